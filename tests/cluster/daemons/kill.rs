//! The agent is killed with -9 around Allocate. Whatever happens to the pod, no device goes twice and the lock goes.

use crate::prelude::*;

const SLOW: PodResourcesMode = PodResourcesMode::Slow(Duration::from_millis(400));

/// After the agent is back: the pod runs with its devices or has failed whole; locks are gone; a next pod is served.
async fn settles(cluster: &TestCluster, name: &str) {
    let phase = cluster.until_phase(name, &["Running", "Failed"]).await;
    if phase == "Running" {
        assert_eq!(cluster.assigned(name).await, cluster.in_kubelet("node-0", name));
    } else {
        assert!(cluster.in_kubelet("node-0", name).is_empty(), "a pod that failed holds nothing");
    }
    cluster.until_unlocked(LOCK_GONE).await;
    cluster.until_agent_is_ready().await;
    cluster.runs(&pod("next").app("main", &[("nvidia.com/gpu", "7")])).await;
    assert_eq!(cluster.assigned("next").await, cluster.in_kubelet("node-0", "next"));
    cluster.check_at_rest().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_before_allocate() {
    let mut cluster = TestCluster::start(1).await;
    cluster.nodes[0].kubelet.controls().delay_admission(Some(Duration::from_millis(500)));
    cluster.binds(&pod("p").app("main", &[("nvidia.com/gpu", "1")])).await;
    cluster.nodes[0].agent.kill();
    cluster.until_phase("p", &["Failed"]).await;
    cluster.nodes[0].kubelet.controls().delay_admission(None);
    cluster.nodes[0].agent.restart();
    settles(&cluster, "p").await;
}

/// Inside the first call, between two containers, and between the GPU and the NIC of one.
#[tokio::test(flavor = "multi_thread")]
async fn killed_while_the_kubelet_asks_leaves_the_pod_whole_or_not_at_all() {
    let one = &[(key::NVIDIA_GPU, "1")];
    for (asks, calls) in [
        (pod("p").app("main", one), 0),
        (pod("p").app("main", one).app("b", one), 1),
        (pod("p").app("main", &[(key::NVIDIA_GPU, "1"), (key::RDMA, "100")]), 1),
    ] {
        let mut cluster = TestCluster::start(1).await;
        cluster.nodes[0].kubelet.controls().set_pod_resources(SLOW);
        cluster.create(&asks).await;
        until(&format!("{calls} calls are answered, and no more"), SOON, async || {
            let view = cluster.nodes[0].kubelet.view();
            let pod = view.get("default/p")?;
            (pod.containers.values().map(|container| container.devices.len()).sum::<usize>() >= calls).then_some(())
        })
        .await;
        cluster.nodes[0].agent.kill();
        cluster.nodes[0].kubelet.controls().set_pod_resources(PodResourcesMode::Normal);
        cluster.nodes[0].agent.restart();
        settles(&cluster, "p").await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_after_allocate_before_the_lock_is_released() {
    let mut cluster = TestCluster::start(1).await;
    cluster.nodes[0].kubelet.controls().delay_admission(Some(Duration::from_millis(300)));
    cluster.binds(&pod("p").app("main", &[("nvidia.com/gpu", "1")])).await;
    if let Some(server) = cluster.control_plane.simulated() {
        // The node cannot be written to any more: the pod is served, its lock stays.
        server.faults().add(FaultRule::on("patch", "nodes").below("-"), Effect::Hang);
    }
    cluster.until_running("p").await;
    cluster.nodes[0].agent.kill();
    match cluster.control_plane.simulated() {
        Some(server) => server.faults().clear(),
        None => cluster.hold_lock_for("p").await,
    }
    assert!(cluster.lock("node-0").await.is_some(), "the lock outlives the agent");
    cluster.nodes[0].kubelet.controls().delay_admission(None);
    cluster.nodes[0].agent.restart();
    cluster.until_unlocked(LOCK_GONE).await;
    assert_eq!(cluster.until_phase("p", &["Running", "Failed"]).await, "Running", "a served pod is left alone");
    settles(&cluster, "p").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_again_and_again_under_a_stream_of_pods() {
    let mut cluster = TestCluster::start(1).await;
    for round in 0..6 {
        let name = format!("p{round}");
        cluster.binds(&pod(&name).app("a", &[(key::GPU, "50")]).app("b", &[(key::RDMA, "20")])).await;
        cluster.nodes[0].agent.restart();
        cluster.until_phase(&name, &["Running", "Failed"]).await;
        cluster.check_at_rest().await;
        cluster.until_agent_is_ready().await;
    }
}

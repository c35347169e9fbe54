//! The kubelet restarts, the node reboots, the API server goes away.

use crate::prelude::*;

#[tokio::test(flavor = "multi_thread")]
async fn a_kubelet_restart_leaves_running_pods_their_devices_and_new_ones_are_served() {
    let cluster = TestCluster::start(1).await;
    cluster.runs(&pod("before").app("main", &[("nvidia.com/gpu", "2"), (key::RDMA, "100")])).await;
    let devices = cluster.in_kubelet("node-0", "before");
    cluster.nodes[0].kubelet.restart().await.unwrap();
    // Until then the Node has what it had before, and a pod that comes is refused.
    let agent = &cluster.nodes[0].agent;
    let notices = async || agent.output().contains("registering again resource=nvidia.com/gpu").then_some(());
    until("the daemon notices", SOON, notices).await;
    cluster.until_agent_is_ready().await;
    cluster.runs(&pod("after").app("main", &[("nvidia.com/gpu", "6")])).await;
    assert_eq!(cluster.in_kubelet("node-0", "before"), devices);
    assert_eq!(cluster.assigned("after").await, cluster.in_kubelet("node-0", "after"));
    cluster.check_at_rest().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reboot_rebuilds_the_ledger_and_nothing_is_given_twice() {
    let mut cluster = TestCluster::start(1).await;
    cluster.runs(&pod("before").app("main", &[("nvidia.com/gpu", "2")])).await;
    let devices = cluster.in_kubelet("node-0", "before");
    cluster.nodes[0].agent.kill();
    cluster.nodes[0].kubelet.power_off().await.unwrap();
    cluster.nodes[0].kubelet.power_on().await.unwrap();
    cluster.nodes[0].agent.restart();
    // The node's object still says what was before: a pod that comes before the registration is refused by the kubelet.
    cluster.until_agent_is_ready().await;
    cluster.runs(&pod("after").app("main", &[("nvidia.com/gpu", "6")])).await;
    assert_eq!(cluster.assigned("after").await, cluster.in_kubelet("node-0", "after"));
    // The kubelet re-admits it without a call, or, when no plugin was registered yet, fails it: with its devices or without.
    match cluster.until_phase("before", &["Running", "Failed"]).await.as_str() {
        "Running" => assert_eq!(cluster.in_kubelet("node-0", "before"), devices),
        _ => assert!(cluster.in_kubelet("node-0", "before").is_empty()),
    }
    cluster.check_at_rest().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_deleted_while_it_waits_for_admission_frees_lock_and_devices() {
    let cluster = TestCluster::start(1).await;
    cluster.nodes[0].kubelet.controls().delay_admission(Some(Duration::from_millis(500)));
    cluster.binds(&pod("gone").app("main", &[("nvidia.com/gpu", "8")])).await;
    cluster.delete("gone").await;
    cluster.nodes[0].kubelet.controls().delay_admission(None);
    cluster.until_unlocked(LOCK_GONE).await;
    cluster.runs(&pod("all").app("main", &[("nvidia.com/gpu", "8")])).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_recreated_under_its_name_is_another_pod() {
    let cluster = TestCluster::start(1).await;
    for _ in 0..3 {
        cluster.runs(&pod("again").app("main", &[("nvidia.com/gpu", "8")])).await;
        assert_eq!(cluster.assigned("again").await, cluster.in_kubelet("node-0", "again"));
        cluster.delete("again").await;
    }
    cluster.until_unlocked(LOCK_GONE).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn broken_watches_and_a_compaction_leave_running_pods_alone() {
    let cluster = TestCluster::start(1).await;
    let Some(server) = cluster.control_plane.simulated() else {
        return skipped("the watches of a real API server are not cut");
    };
    cluster.runs(&pod("before").app("main", &[("nvidia.com/gpu", "1")])).await;
    let devices = cluster.in_kubelet("node-0", "before");
    server.faults().break_watches();
    server.compact();
    cluster.runs(&pod("after").app("main", &[("nvidia.com/gpu", "1")])).await;
    assert_eq!(cluster.in_kubelet("node-0", "before"), devices);
    cluster.check_at_rest().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn while_the_api_server_is_away_running_pods_stay_and_work_goes_on_after() {
    let cluster = TestCluster::start(1).await;
    let Some(server) = cluster.control_plane.simulated() else { return skipped("a real API server is not taken away") };
    cluster.runs(&pod("before").app("main", &[("nvidia.com/gpu", "1")])).await;
    let devices = cluster.in_kubelet("node-0", "before");
    for mode in [Blackout::Refuse, Blackout::Hang] {
        server.faults().blackout(mode);
        let end = clock::mono() + Duration::from_secs(3);
        until("the API server was away for a while", SOON, async || {
            assert_eq!(cluster.in_kubelet("node-0", "before"), devices, "a running pod was touched");
            let live = cluster.nodes[0].agent.get("/livez").await.unwrap_or_default();
            assert!(live.starts_with("HTTP/1.1 200"), "the node daemon must not be restarted for it: {live}");
            (clock::mono() >= end).then_some(())
        })
        .await;
        server.faults().blackout(Blackout::None);
        let name = format!("after-{mode:?}").to_lowercase();
        until("pods can be made again", SOON, async || {
            let made = cluster.try_create(&pod(&name).app("main", &[("nvidia.com/gpu", "1")])).await;
            made.then_some(())
        })
        .await;
        cluster.until_running(&name).await;
    }
    assert_eq!(cluster.in_kubelet("node-0", "before"), devices);
    cluster.check_at_rest().await;
}

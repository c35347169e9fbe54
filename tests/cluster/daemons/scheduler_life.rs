//! The scheduler is killed with -9 between its writes, or its answers are lost: every pod is bound once, no lock is left.

use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding};

use crate::prelude::*;

/// One node, and a scheduler whose Lease ends soon.
async fn cluster() -> TestCluster {
    TestCluster::with_args(1, &[], &[&timings(QUICK_LEASE)]).await
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_between_lock_and_bind_the_next_one_binds_under_the_same_lock() {
    let mut cluster = cluster().await;
    let Some(server) = cluster.control_plane.simulated() else { return skipped("needs injected faults") };
    server.faults().add(FaultRule::on("create", "pods").below("binding"), Effect::Hang);
    cluster.create(&pod("p").app("main", &[("nvidia.com/gpu", "1")])).await;
    let lock = until("the node is locked", SOON, async || cluster.lock("node-0").await).await;
    cluster.scheduler.kill();
    cluster.control_plane.simulated().unwrap().faults().clear();
    cluster.scheduler.restart();
    cluster.until_bound("p").await;
    cluster.until_running("p").await;
    let stamp = cluster.pod("p").await.unwrap().metadata.annotations.unwrap()[key::BIND_TIMESTAMP].clone();
    let time = baton::contract::LockValue::parse(&lock).unwrap().bind_timestamp();
    assert_eq!(stamp, time, "bound under the lock that the killed scheduler had set");
    assert_eq!(cluster.assigned("p").await, cluster.in_kubelet("node-0", "p"));
    cluster.until_unlocked(LOCK_GONE).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_right_after_the_bind_nothing_is_assigned_twice() {
    let mut cluster = cluster().await;
    cluster.nodes[0].kubelet.controls().delay_admission(Some(Duration::from_millis(500)));
    cluster.binds(&pod("p").app("main", &[("nvidia.com/gpu", "4")])).await;
    cluster.scheduler.restart();
    cluster.nodes[0].kubelet.controls().delay_admission(None);
    cluster.binds(&pod("q").app("main", &[("nvidia.com/gpu", "4")])).await;
    for name in ["p", "q"] {
        cluster.until_running(name).await;
        assert_eq!(cluster.assigned(name).await, cluster.in_kubelet("node-0", name));
    }
    cluster.check_at_rest().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn lost_answers_of_lock_and_bind_are_recognised_as_done() {
    let cluster = TestCluster::start(1).await;
    let Some(server) = cluster.control_plane.simulated() else { return skipped("needs injected faults") };
    let lost = [
        FaultRule::on("patch", "nodes").below("-").times(1),
        FaultRule::on("create", "pods").below("binding").times(1),
    ];
    let lost = lost.map(|rule| server.faults().add(rule, Effect::DropAfter));
    cluster.runs(&pod("p").app("main", &[("nvidia.com/gpu", "1")])).await;
    assert_eq!(lost.map(|id| server.faults().fired(id)), [1, 1], "an answer that was to be lost was given");
    assert_eq!(cluster.assigned("p").await, cluster.in_kubelet("node-0", "p"));
    cluster.until_unlocked(LOCK_GONE).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn with_the_option_a_failed_gpu_costs_its_pods_and_no_others() {
    let quick = timings("fault_grace: 1s");
    let cluster = TestCluster::with_args(1, &[], &["--evict-on-fault", &quick]).await;
    // As the chart grants it with the option.
    let rule = json!({"apiGroups": [""], "resources": ["pods/eviction"], "verbs": ["create"]});
    let role: ClusterRole = serde_json::from_value(json!({"metadata": {"name": "evicts"}, "rules": [rule]})).unwrap();
    let subject = json!({"kind": "ServiceAccount", "name": "baton-scheduler", "namespace": "default"});
    let of = json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "evicts"});
    let binding = json!({"metadata": {"name": "evicts"}, "roleRef": of, "subjects": [subject]});
    let binding: ClusterRoleBinding = serde_json::from_value(binding).unwrap();
    kube::Api::all(cluster.client.clone()).create(&PostParams::default(), &role).await.unwrap();
    kube::Api::all(cluster.client.clone()).create(&PostParams::default(), &binding).await.unwrap();
    for name in ["fails", "bare", "runs"] {
        let pod = pod(name).app("main", &[("nvidia.com/gpu", "1")]);
        let asks = if name == "fails" { pod.annotation("baton.io/evict-on-fault", "pod") } else { pod };
        cluster.create(&asks).await;
        cluster.until_running(name).await;
    }
    for (name, xid) in [("fails", 79), ("bare", 79), ("runs", 31)] {
        let ids = cluster.assigned(name).await[&baton::contract::DeviceType::Gpu].clone();
        let gpus = cluster.nodes[0].hardware.gpu_uuids();
        let at = gpus.iter().position(|gpu| ids.iter().any(|id| id.as_str() == gpu)).unwrap();
        cluster.nodes[0].hardware.xid(at, xid).unwrap();
        // Events that are fetched late all carry the last XID: each is seen before the next.
        if xid == 79 {
            cluster.until_out_of_service(&gpus[at]).await;
        }
    }
    until("the pod is evicted", SOON, async || {
        cluster.pod("fails").await.is_none_or(|pod| is_going(&pod)).then_some(())
    })
    .await;
    let events: kube::Api<k8s_openapi::api::events::v1::Event> =
        kube::Api::namespaced(cluster.client.clone(), "default");
    let told = until("the other pod's owner is told", SOON, async || {
        let all = events.list(&kube::api::ListParams::default()).await.ok()?.items;
        all.into_iter().find_map(|event| event.note.filter(|note| note.contains("it has no controller")))
    })
    .await;
    tells(told, ["XID 79"]);
    for name in ["bare", "runs"] {
        assert!(cluster.pod(name).await.is_some_and(|pod| !is_going(&pod)), "{name}");
    }
}

fn is_going(pod: &k8s_openapi::api::core::v1::Pod) -> bool {
    pod.metadata.deletion_timestamp.is_some()
}

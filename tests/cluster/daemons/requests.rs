//! Undisturbed hand-offs: each kind of pod gets exactly the devices that were chosen for it.

use crate::harness::pods::every_kind;
use crate::prelude::*;

#[tokio::test(flavor = "multi_thread")]
async fn every_kind_of_pod_gets_exactly_its_devices_and_no_lock_stays() {
    let cluster = TestCluster::start(1).await;
    let [one, two, phases, share, joint] = every_kind();
    let kinds = [one, two, phases, share, joint, pod("none").app("main", &[])];
    for kind in &kinds {
        cluster.create(kind).await;
    }
    for name in ["one", "two", "phases", "share", "joint", "none"] {
        cluster.until_running(name).await;
        assert_eq!(cluster.assigned(name).await, cluster.in_kubelet("node-0", name), "pod {name}");
        cluster.check_no_device_twice().await;
    }
    let joint = cluster.split("joint").await;
    assert_eq!((joint.of("main", &DeviceType::Gpu).len(), joint.of("main", &DeviceType::Rdma).len()), (2, 1));
    assert!(cluster.assigned("none").await.is_empty());
    cluster.until_unlocked(LOCK_GONE).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_burst_of_shares_on_one_node_is_served_one_by_one_and_writes_three_times_a_pod() {
    let cluster = TestCluster::start(1).await;
    if let Some(server) = cluster.control_plane.simulated() {
        server.counts().reset();
    }
    for number in 0..16 {
        cluster.create(&pod(&format!("half-{number}")).app("main", &[(key::GPU, "50")])).await;
    }
    for number in 0..16 {
        let name = format!("half-{number}");
        cluster.until_running(&name).await;
        assert_eq!(cluster.assigned(&name).await, cluster.in_kubelet("node-0", &name), "pod {name}");
    }
    cluster.check_at_rest().await;
    if let Some(server) = cluster.control_plane.simulated() {
        let of = |verb: &str, resource: &str, below: &str| {
            server.counts().sum(|counted| {
                (counted.verb.as_str(), counted.resource.as_str(), counted.subresource.as_str())
                    == (verb, resource, below)
            })
        };
        assert_eq!(of("create", "pods", "binding"), 16, "one Binding for each, none refused");
        assert_eq!(of("patch", "nodes", ""), 32, "each took the lock once and had it taken off once: one by one");
        assert_eq!(of("patch", "pods", "") + of("update", "pods", ""), 0, "nothing else is written of a pod");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_forged_assignment_is_overwritten_by_the_binding() {
    let cluster = TestCluster::start(1).await;
    let forged = r#"{"gpu":[{"minor":7,"id":"GPU-forged","resources":{"koordinator.sh/gpu-core":"100"}}]}"#;
    let sly = pod("sly")
        .app("main", &[("nvidia.com/gpu", "1")])
        .annotation(key::DEVICE_ALLOCATED, forged)
        .annotation(key::BIND_TIMESTAMP, "1");
    cluster.create(&sly).await;
    cluster.until_running("sly").await;
    let assigned = cluster.assigned("sly").await;
    assert_eq!(assigned, cluster.in_kubelet("node-0", "sly"));
    assert!(!assigned[&DeviceType::Gpu].iter().any(|id| id.as_str() == "GPU-forged"));
    let all = [(key::DEVICE_ALLOCATED, forged), (key::GPU_MINORS, "7"), (key::GANG_COMMITTED, "1.000/1")];
    let bare = all.iter().fold(pod("bare").app("main", &[]), |pod, (key, value)| pod.annotation(key, value));
    cluster.runs(&bare).await;
    let annotations = cluster.pod("bare").await.unwrap().metadata.annotations.unwrap();
    assert_eq!(all.map(|(key, _)| &*annotations[key]), [""; 3], "so are those of a pod without devices");
}

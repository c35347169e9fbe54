//! What becomes of pods: ends, deletions, sidecars, refusals.

use super::node::{Node, container, pod};
use super::plugin::Plugin;
use super::prelude::*;
use super::waiting::wait;

#[tokio::test]
async fn a_deleted_pod_frees_its_devices_for_its_successor_of_the_same_name() {
    let node = Node::start().await;
    node.create_simple("a", 4).await;
    let first = node.phase("a", "Running").await;
    node.cluster.delete_pods().await;
    node.create_simple("a", 4).await;
    let second = node.phase("a", "Running").await;
    assert_ne!(first["metadata"]["uid"], second["metadata"]["uid"]);
    assert_eq!(node.held("a").len(), 4);
    assert_eq!(node.kubelet.view()["default/a"].uid, second["metadata"]["uid"].as_str().unwrap());
}

#[tokio::test]
async fn a_finished_pod_frees_its_devices_and_leaves_the_list() {
    let node = Node::start().await;
    node.create("done", pod("Never", &["sleep", "0"], 4)).await;
    node.phase("done", "Succeeded").await;
    node.create("failed", pod("Never", &["sh", "-c", "exit 3"], 4)).await;
    let failed = node.phase("failed", "Failed").await;
    assert_eq!(failed["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"], 3);
    node.create_simple("next", 4).await;
    node.phase("next", "Running").await;
    let list = node.pod_resources().await.list(ListPodResourcesRequest {}).await.unwrap().into_inner();
    let names: Vec<_> = list.pod_resources.iter().map(|pod| pod.name.as_str()).collect();
    assert_eq!(names, ["next"]);
}

#[tokio::test]
async fn sidecars_end_with_their_pod_and_crashing_containers_back_off() {
    let node = Node::start().await;
    let mut spec = pod("Never", &["sleep", "1"], 1);
    let mut sidecar = container("side", &["sleep", "3000"], 1);
    sidecar["restartPolicy"] = json!("Always");
    spec["initContainers"] = json!([sidecar]);
    node.create("a", spec).await;
    let done = node.phase("a", "Succeeded").await;
    assert!(done["status"]["initContainerStatuses"][0]["state"]["terminated"].is_object());

    node.create("crash", pod("Always", &["false"], 1)).await;
    let waiting = wait("a crash loop", async || {
        let status = node.cluster.pod("crash").await["status"]["containerStatuses"][0].clone();
        (status["state"]["waiting"]["reason"] == "CrashLoopBackOff").then_some(status)
    })
    .await;
    assert_eq!(waiting["lastState"]["terminated"]["exitCode"], 1);
    assert!(waiting["state"]["waiting"]["message"].as_str().unwrap().starts_with("back-off "), "{waiting}");
    assert_eq!(node.calls("Allocate"), 3, "restarts do not allocate");
}

#[tokio::test]
async fn a_plugin_that_comes_after_admission_is_asked_when_the_container_starts_again() {
    let node = Node::start().await;
    let mut spec = pod("Always", &["sleep", "3000"], 0);
    spec["containers"][0]["resources"]["limits"] = json!({"example.com/nic": "1"});
    node.create("a", spec).await;
    node.phase("a", "Running").await;
    let nic = Plugin::new("nic", 2, &node.kubelet.options().root, node.log.clone());
    nic.start().await;
    wait("nic devices", async || {
        (node.cluster.node("node-a").await["status"]["allocatable"]["example.com/nic"] == "2").then_some(())
    })
    .await;
    assert_eq!(node.calls("Allocate"), 0);
    assert!(node.kubelet.fail_container("default", "a", "main", 1));
    wait("a restart with a device", async || {
        (node.kubelet.view()["default/a"].devices("example.com/nic").len() == 1).then_some(())
    })
    .await;
    assert_eq!(node.calls("Allocate"), 1);
    nic.stop();
}

#[tokio::test]
async fn more_cpu_than_the_node_has_is_refused() {
    let node = Node::start().await;
    let mut spec = pod("Never", &["sleep", "3000"], 1);
    spec["containers"][0]["resources"]["limits"]["cpu"] = json!("500");
    node.create("a", spec).await;
    let refused = node.phase("a", "Failed").await;
    assert_eq!(refused["status"]["reason"], "OutOfcpu");
    let text = "Pod was rejected: Node didn't have enough resource: cpu, requested: 500000, used: 0, capacity: 128000";
    assert_eq!(refused["status"]["message"], text);
    node.create_simple("b", 4).await;
    node.phase("b", "Running").await;
}

#[tokio::test]
async fn admission_can_be_slow() {
    let node = Node::start().await;
    node.kubelet.controls().delay_admission(Some(std::time::Duration::from_millis(300)));
    let before = clock::mono();
    node.create_simple("a", 1).await;
    node.phase("a", "Running").await;
    assert!(clock::mono().saturating_sub(before) >= std::time::Duration::from_millis(300));
    assert!(node.kubelet.kill_pod("default", "a"));
    let failed = node.phase("a", "Failed").await;
    assert_eq!(failed["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"], 137);
}

#[tokio::test]
async fn a_node_that_was_given_up_is_ready_again_with_the_kubelets_next_look() {
    let node = Node::start().await;
    let ready = |node: &Value| {
        let conditions = node["status"]["conditions"].as_array().cloned().unwrap_or_default();
        conditions.into_iter().find(|one| one["type"] == "Ready").unwrap_or_default()
    };
    assert_eq!(ready(&node.cluster.node("node-a").await)["status"], "True");
    // As the node lifecycle controller does after 40 s without a sign of life.
    let long_ago = "2020-01-01T00:00:00Z";
    let unknown = json!([{"type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown",
        "message": "Kubelet stopped posting node status.", "lastTransitionTime": long_ago}]);
    node.cluster.patch_node_status("node-a", &json!({"status": {"conditions": unknown}})).await;
    let after = wait("the node to be ready again", async || {
        let ready = ready(&node.cluster.node("node-a").await);
        (ready["status"] == "True").then_some(ready)
    })
    .await;
    assert_eq!(after["reason"], "KubeletReady");
    assert_ne!(after["lastTransitionTime"], long_ago);
}

#[tokio::test]
async fn the_node_and_its_lease_tell_who_and_where_it_is() {
    let node = Node::with(|options| _ = options.labels.insert("pool".into(), "gpu".into())).await;
    let object = node.cluster.node("node-a").await;
    let labels = &object["metadata"]["labels"];
    for (key, value) in [("kubernetes.io/hostname", "node-a"), ("kubernetes.io/os", "linux"), ("pool", "gpu")] {
        assert_eq!(labels[key], value);
    }
    let status = &object["status"];
    assert_eq!(status["nodeInfo"]["bootID"], json!(node.kubelet.boot_id()));
    assert_eq!(status["addresses"][0], json!({"type": "InternalIP", "address": "10.0.0.1"}));
    let conditions = status["conditions"].as_array().unwrap();
    assert!(conditions.iter().any(|one| one["type"] == "Ready" && one["status"] == "True"));
    let lease = wait("a Lease", async || {
        let lease = node.cluster.lease("node-a").await;
        (!lease.is_null()).then_some(lease)
    })
    .await;
    assert_eq!(lease["spec"]["holderIdentity"], "node-a");
    assert_eq!(lease["metadata"]["ownerReferences"][0]["name"], "node-a");
    node.create("picky", {
        let mut spec = pod("Never", &["sleep", "3000"], 1);
        spec["nodeSelector"] = json!({"pool": "cpu"});
        spec
    })
    .await;
    assert_eq!(node.phase("picky", "Failed").await["status"]["reason"], "NodeAffinity");
}

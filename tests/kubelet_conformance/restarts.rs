//! Restarts of the kubelet, of the node and of the API server, which the recordings show only in part.

use super::cluster::Cluster;
use super::node::{GPU, Node, container, pod};
use super::plugin::{Log, Plugin};
use super::prelude::*;
use super::waiting::wait;

#[tokio::test]
async fn until_its_plugin_is_back_a_restarted_kubelet_keeps_pods_and_refuses_new_ones() {
    let node = Node::start().await;
    node.create_simple("old", 2).await;
    node.phase("old", "Running").await;
    let held = node.held("old");
    node.gpu.stop();
    node.kubelet.restart().await.unwrap();
    node.create_simple("new", 1).await;
    let refused = node.phase("new", "Failed").await;
    assert_eq!(refused["status"]["reason"], "UnexpectedAdmissionError");
    let text = "Pod was rejected: Allocate failed due to no healthy devices present; \
                cannot allocate unhealthy devices example.com/gpu, which is unexpected";
    assert_eq!(refused["status"]["message"], text);
    node.allocatable("0").await;
    node.gpu.start().await;
    node.allocatable("4").await;
    node.create_simple("later", 2).await;
    node.phase("later", "Running").await;
    assert_eq!(node.held("old"), held, "the checkpoint keeps what runs");
    assert!(node.held("later").is_disjoint(&held));
    assert_eq!(node.calls("Allocate"), 2, "the running pod is not allocated again");
    assert_eq!(node.cluster.pod("old").await["status"]["containerStatuses"][0]["restartCount"], 0);
}

/// kubernetes/kubernetes#138446: only running containers are passed over while a restarted kubelet waits for plugins.
#[tokio::test]
async fn a_finished_init_container_with_devices_fails_its_pod_before_the_plugin_is_back() {
    let node = Node::start().await;
    let mut spec = pod("Never", &["sleep", "3000"], 1);
    spec["initContainers"] = json!([container("init", &["sleep", "0"], 1)]);
    node.create("a", spec).await;
    wait("a to run", async || {
        let view = node.kubelet.view();
        view.get("default/a")?.containers["main"].running.then_some(())
    })
    .await;
    node.gpu.stop();
    node.kubelet.restart().await.unwrap();
    node.phase("a", "Failed").await;
}

#[tokio::test]
async fn a_reboot_restarts_containers_from_the_cached_answer() {
    let node = Node::start().await;
    std::fs::create_dir_all(node.dir.path().join("cdi")).unwrap();
    std::fs::write(node.dir.path().join("cdi/x.json"), "{}").unwrap();
    node.create("a", pod("Always", &["sleep", "3000"], 2)).await;
    node.phase("a", "Running").await;
    let before = node.kubelet.view()["default/a"].clone();
    let boot_id = || std::fs::read_to_string(node.dir.path().join("proc/sys/kernel/random/boot_id")).unwrap();
    let old_boot = boot_id();
    let status = node.cluster.pod("a").await["status"]["containerStatuses"][0].clone();
    let started: jiff::Timestamp = status["state"]["running"]["startedAt"].as_str().unwrap().parse().unwrap();
    node.kubelet.reboot().await.unwrap();
    let stat = std::fs::read_to_string(node.dir.path().join("proc/stat")).unwrap();
    let booted: i64 = stat.trim().strip_prefix("btime ").unwrap().parse().unwrap();
    assert!(started.as_second() < booted, "what the status shows running has ended with the boot");
    assert!(!node.dir.path().join("cdi/x.json").exists(), "the CDI directory is on tmpfs");
    assert_ne!(boot_id(), old_boot);
    wait("the container to run again", async || {
        let view = node.kubelet.view();
        let main = view.get("default/a")?.containers.get("main")?.clone();
        (main.running && main.restarts == 1).then_some(())
    })
    .await;
    let after = node.kubelet.view()["default/a"].clone();
    assert_eq!(after.containers["main"].injected, before.containers["main"].injected);
    assert_eq!(after.devices(GPU), before.devices(GPU));
    assert_eq!(node.calls("Allocate"), 1, "no second call");
    let reported = wait("the node to report its boot", async || {
        let id = node.cluster.node("node-a").await["status"]["nodeInfo"]["bootID"].as_str()?.to_owned();
        (id == node.kubelet.boot_id()).then_some(id)
    })
    .await;
    assert_eq!(boot_id().trim(), reported);
}

#[tokio::test]
async fn after_a_reboot_without_its_plugin_a_pod_is_refused() {
    let node = Node::start().await;
    node.create("a", pod("Always", &["sleep", "3000"], 1)).await;
    node.phase("a", "Running").await;
    node.gpu.stop();
    node.kubelet.reboot().await.unwrap();
    let refused = node.phase("a", "Failed").await;
    assert_eq!(refused["status"]["reason"], "UnexpectedAdmissionError");
}

#[tokio::test]
async fn a_plugin_that_stays_away_is_dropped_after_its_grace() {
    let node = Node::with(|options| options.periods.endpoint_grace = std::time::Duration::from_secs(20)).await;
    node.gpu.stop();
    wait("0 of 4", async || {
        let status = node.cluster.node("node-a").await["status"].clone();
        (status["capacity"][GPU] == "4" && status["allocatable"][GPU] == "0").then_some(())
    })
    .await;
    wait("0 of 0", async || (node.cluster.node("node-a").await["status"]["capacity"][GPU] == "0").then_some(())).await;
    node.create_simple("a", 1).await;
    let refused = node.phase("a", "Failed").await;
    assert_eq!(refused["status"]["reason"], format!("OutOf{GPU}"));
}

#[tokio::test]
async fn a_kubelet_stopped_in_allocate_asks_again_for_the_same_pod() {
    let node = Node::start().await;
    node.gpu.control(json!({"alloc": "slow"}));
    node.create_simple("a", 2).await;
    wait("the call", async || (node.calls("Allocate") == 1).then_some(())).await;
    node.gpu.control(json!({}));
    node.kubelet.restart().await.unwrap();
    node.phase("a", "Running").await;
    assert_eq!(node.calls("Allocate"), 2);
    assert_eq!(node.held("a").len(), 2);
}

#[tokio::test]
async fn a_lost_api_server_stops_nothing_and_is_caught_up_with() {
    let node = Node::start().await;
    node.create("a", pod("Always", &["sleep", "3000"], 2)).await;
    node.phase("a", "Running").await;
    node.cluster.server().stop();
    assert!(node.kubelet.fail_container("default", "a", "main", 1));
    wait("a restart without an API server", async || {
        let main = node.kubelet.view()["default/a"].containers["main"].clone();
        (main.running && main.restarts == 1).then_some(())
    })
    .await;
    node.cluster.server().restart().await.unwrap();
    node.create_simple("b", 2).await;
    node.phase("b", "Running").await;
    wait("the restart to be reported", async || {
        (node.cluster.pod("a").await["status"]["containerStatuses"][0]["restartCount"] == 1).then_some(())
    })
    .await;
    assert_eq!(node.calls("Allocate"), 2);
}

#[tokio::test]
async fn a_dropped_kubelet_lets_go_of_its_plugins() {
    let dir = crate::directory::directory();
    let cluster = Cluster::start().await;
    let kubelet = Kubelet::start(KubeletOptions::new("node-a", dir.path(), cluster.client())).await.unwrap();
    let log = Log::default();
    let gpu = Plugin::new("gpu", 1, dir.path(), log.clone());
    gpu.start().await;
    wait("the stream", async || log.since(0).iter().any(|call| call["event"] == "opened").then_some(())).await;
    drop(kubelet);
    wait("its end", async || log.since(0).iter().any(|call| call["event"] == "ended").then_some(())).await;
    gpu.stop();
}

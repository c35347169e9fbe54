//! What the recordings do not show: restart windows, reboots, deletion, forced faults.

use std::collections::BTreeSet;
use std::path::Path;

use baton::contract::deviceplugin::RegisterRequest;
use baton::contract::deviceplugin::registration_client::RegistrationClient;
use baton::contract::podresources::pod_resources_lister_client::PodResourcesListerClient;
use baton::contract::podresources::{AllocatableResourcesRequest, GetPodResourcesRequest, ListPodResourcesRequest};
use baton::runtime::clock;
use baton::sim::kubelet::{Kubelet, KubeletError, KubeletOptions, Periods, PodResourcesMode};
use serde_json::{Value, json};

use super::cluster::Cluster;
use super::plugin::{Log, Plugin, dial};
use super::waiting::wait;

const GPU: &str = "example.com/gpu";

struct Node {
    cluster: Cluster,
    kubelet: Kubelet,
    gpu: Plugin,
    log: Log,
    dir: tempfile::TempDir,
}

impl Node {
    /// A node whose GPU plugin is registered.
    async fn start() -> Self {
        Self::with(|_| {}).await
    }

    async fn with(change: impl FnOnce(&mut KubeletOptions)) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let cluster = Cluster::start().await;
        let mut options = KubeletOptions::new("node-a", dir.path().join("k"), cluster.client());
        options.proc_root = Some(dir.path().join("proc"));
        options.cdi_root = Some(dir.path().join("cdi"));
        options.periods = Periods { scale: 0.02, ..Periods::default() };
        change(&mut options);
        let kubelet = Kubelet::start(options).await.unwrap();
        let log = Log::default();
        let gpu = Plugin::new("gpu", 4, &dir.path().join("k"), log.clone());
        gpu.start().await;
        let node = Self { cluster, kubelet, gpu, log, dir };
        node.allocatable("4").await;
        node
    }

    async fn allocatable(&self, count: &str) {
        wait(&format!("allocatable {count}"), async || {
            (self.cluster.node("node-a").await["status"]["allocatable"][GPU] == count).then_some(())
        })
        .await;
    }

    async fn create(&self, name: &str, spec: Value) {
        self.cluster.create_pod(&json!({"name": name, "spec": spec})).await;
    }

    async fn create_simple(&self, name: &str, count: u32) {
        self.create(name, pod("Never", &["sleep", "3000"], count)).await;
    }

    async fn phase(&self, name: &str, phase: &str) -> Value {
        wait(&format!("{name} to be {phase}"), async || {
            let pod = self.cluster.pod(name).await;
            (pod["status"]["phase"] == phase).then_some(pod)
        })
        .await
    }

    fn held(&self, name: &str) -> BTreeSet<String> {
        let view = self.kubelet.view();
        view.get(&format!("default/{name}")).map(|pod| pod.devices(GPU)).unwrap_or_default()
    }

    fn calls(&self, rpc: &str) -> usize {
        self.log.since(0).iter().filter(|call| call["rpc"] == rpc && call["event"].is_null()).count()
    }

    async fn pod_resources(&self) -> PodResourcesListerClient<tonic::transport::Channel> {
        PodResourcesListerClient::new(dial(self.kubelet.options().pod_resources_socket()).await)
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.gpu.stop();
    }
}

fn pod(restart_policy: &str, command: &[&str], count: u32) -> Value {
    json!({"restartPolicy": restart_policy, "containers": [container("main", command, count)]})
}

fn container(name: &str, command: &[&str], count: u32) -> Value {
    json!({"name": name, "image": "pause", "command": command, "resources": {"limits": {GPU: count.to_string()}}})
}

#[tokio::test]
async fn before_its_plugin_is_back_a_restarted_kubelet_keeps_running_pods_and_refuses_new_ones() {
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
async fn a_finished_init_container_with_devices_fails_its_pod_when_the_kubelet_is_back_before_the_plugin() {
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
    node.kubelet.reboot().await.unwrap();
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
    let told = wait("the node to tell its boot", async || {
        let id = node.cluster.node("node-a").await["status"]["nodeInfo"]["bootID"].as_str()?.to_owned();
        (id == node.kubelet.boot_id()).then_some(id)
    })
    .await;
    assert_eq!(boot_id().trim(), told);
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
async fn two_overlapping_plugins_of_one_resource_break_each_other() {
    let node = Node::start().await;
    let second = Plugin::new("gpu", 4, &node.kubelet.options().root, node.log.clone()).on_socket("second.sock");
    second.start().await;
    node.allocatable("4").await;
    node.gpu.stop();
    node.allocatable("0").await;
    let ended = |log: &Log| log.since(0).iter().any(|call| call["event"] == "ended");
    wait("the second plugin's stream to end", async || ended(&node.log).then_some(())).await;
    second.stop();
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
async fn bad_registrations_are_refused_with_the_kubelets_words() {
    let node = Node::start().await;
    let socket = node.kubelet.options().registration_socket();
    let mut client = RegistrationClient::new(dial(socket).await);
    let request = |version: &str, name: &str| RegisterRequest {
        version: version.into(),
        endpoint: "gpu.sock".into(),
        resource_name: name.into(),
        options: None,
    };
    let status = client.register(request("v1", GPU)).await.unwrap_err();
    let text = "requested API version \"v1\" is not supported by kubelet. Supported version is [\"v1beta1\"]";
    assert_eq!(status.message(), text);
    let status = client.register(request("v1beta1", "gpu")).await.unwrap_err();
    assert_eq!(status.message(), "the ResourceName \"gpu\" is invalid");
}

#[tokio::test]
async fn pod_resources_can_be_absent_slow_or_throttled() {
    let node = Node::start().await;
    node.create_simple("a", 1).await;
    node.phase("a", "Running").await;
    let socket = node.kubelet.options().pod_resources_socket();
    let mut client = node.pod_resources().await;
    let get = |name: &str| GetPodResourcesRequest { pod_name: name.into(), pod_namespace: "default".into() };
    let pod = client.get(get("a")).await.unwrap().into_inner().pod_resources.unwrap();
    assert_eq!(pod.containers[0].devices.len(), 1);
    assert_eq!(client.get(get("b")).await.unwrap_err().message(), "pod b in namespace default not found");
    let all = client.get_allocatable_resources(AllocatableResourcesRequest {}).await.unwrap().into_inner();
    assert_eq!(all.devices.len(), 4);

    node.kubelet.controls().set_pod_resources(PodResourcesMode::Throttled);
    let status = client.list(ListPodResourcesRequest {}).await.unwrap_err();
    assert_eq!((status.code(), status.message()), (tonic::Code::ResourceExhausted, "rejected by rate limit"));
    node.kubelet.controls().set_pod_resources(PodResourcesMode::Absent);
    wait("the socket to go", async || (!socket.exists()).then_some(())).await;
    node.kubelet.controls().set_pod_resources(PodResourcesMode::Normal);
    let mut client = node.pod_resources().await;
    client.list(ListPodResourcesRequest {}).await.unwrap();
}

#[tokio::test]
async fn forced_choices_reach_the_plugin() {
    let node = Node::start().await;
    let two = BTreeSet::from(["gpu-0".to_owned(), "gpu-1".to_owned()]);
    node.kubelet.controls().force_affinity(GPU, Some(two));
    node.create_simple("a", 1).await;
    node.phase("a", "Running").await;
    let asked = node.log.since(0).into_iter().find(|call| call["rpc"] == "GetPreferredAllocation").unwrap();
    assert_eq!(asked["available"], json!(["gpu-0", "gpu-1"]));
    assert_eq!(node.held("a"), BTreeSet::from(["gpu-1".to_owned()]));
    node.kubelet.controls().force_affinity(GPU, None);
    node.kubelet.controls().skip_preferred_allocation(true);
    node.create_simple("b", 1).await;
    node.phase("b", "Running").await;
    assert_eq!(node.calls("GetPreferredAllocation"), 1);
    assert_eq!(node.calls("Allocate"), 2);
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
async fn wiped_sockets_and_a_lost_registration_socket_are_what_plugins_must_notice() {
    let node = Node::start().await;
    assert_eq!(node.kubelet.wipe_plugin_sockets().unwrap(), ["gpu.sock"]);
    assert!(node.kubelet.options().registration_socket().exists());
    wait("the plugin to register again", async || (node.calls("Register") == 2).then_some(())).await;
    node.kubelet.remove_registration_socket().unwrap();
    assert!(!node.kubelet.options().registration_socket().exists());
}

#[tokio::test]
async fn a_root_too_deep_for_sockets_is_refused_by_name() {
    let cluster = Cluster::start().await;
    let deep = Path::new("/tmp").join("x".repeat(100));
    let error = Kubelet::start(KubeletOptions::new("n", &deep, cluster.client())).await.err().unwrap();
    assert!(matches!(&error, KubeletError::SocketPath(path) if path.starts_with(&deep)), "{error}");
    assert!(error.to_string().contains("choose a shorter root directory"));
}

#[tokio::test]
async fn a_plugin_that_dies_in_allocate_fails_the_pod_and_frees_its_devices() {
    let node = Node::start().await;
    node.gpu.stop();
    node.allocatable("0").await;
    // Its own runtime: shutting that down closes its sockets as a killed process does.
    let process = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let doomed = Plugin::new("gpu", 4, &node.kubelet.options().root, node.log.clone()).on_socket("doomed.sock");
    doomed.control(json!({"alloc": "slow"}));
    let starting = doomed.clone();
    process.spawn(async move { starting.start().await }).await.unwrap();
    node.allocatable("4").await;
    node.create_simple("a", 4).await;
    wait("the call", async || (node.calls("Allocate") == 1).then_some(())).await;
    process.shutdown_background();
    let failed = node.phase("a", "Failed").await;
    assert_eq!(failed["status"]["reason"], "UnexpectedAdmissionError");
    let message = failed["status"]["message"].as_str().unwrap();
    assert!(message.starts_with("Pod was rejected: Allocate failed due to rpc error: code = "), "{message}");
    let ends = [
        "desc = error reading from server: EOF, which is unexpected",
        "client connection is closing, which is unexpected",
    ];
    assert!(ends.iter().any(|end| message.ends_with(end)), "{message}");
    node.gpu.start().await;
    node.allocatable("4").await;
    node.create_simple("b", 4).await;
    node.phase("b", "Running").await;
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

//! Plugins and services that misbehave, or are made to.

use baton::contract::podresources::{AllocatableResourcesRequest, GetPodResourcesRequest};
use baton::sim::kubelet::{KubeletError, PodResourcesMode};

use super::cluster::Cluster;
use super::node::{GPU, Node};
use super::plugin::{Log, Plugin, dial};
use super::prelude::*;
use super::waiting::wait;

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

/// Kubernetes 1.37, `devicemanager.PluginConnected` and `PluginDisconnected`.
#[tokio::test]
async fn a_newer_kubelet_keeps_plugins_by_socket_and_refuses_one_that_it_has() {
    let node = Node::with(|options| options.minor = 37).await;
    let second = Plugin::new("gpu", 4, &node.kubelet.options().root, node.log.clone()).on_socket("second.sock");
    second.start().await;
    node.gpu.stop();
    node.create_simple("a", 4).await;
    node.phase("a", "Running").await;
    let ended = node.log.since(0).iter().any(|call| call["event"] == "ended");
    assert!(!ended, "the first one's end leaves the second one connected");
    let mut client = RegistrationClient::new(dial(node.kubelet.options().registration_socket()).await);
    let request = RegisterRequest {
        version: "v1beta1".into(),
        endpoint: "second.sock".into(),
        resource_name: GPU.into(),
        options: None,
    };
    let status = client.register(request).await.unwrap_err();
    let socket = node.kubelet.options().device_plugins_dir().join("second.sock");
    assert_eq!(status.message(), format!("device plugin already connected: {}", socket.display()));
    // With the refusal it has forgotten the plugin: it does not notice that the stream ends.
    second.stop();
    node.create_simple("late", 1).await;
    node.phase("late", "Failed").await;
    node.allocatable("4").await;
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
    node.kubelet.controls().skip_preferred_allocation();
    node.create_simple("b", 1).await;
    node.phase("b", "Running").await;
    assert_eq!(node.calls("GetPreferredAllocation"), 1);
    assert_eq!(node.calls("Allocate"), 2);
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

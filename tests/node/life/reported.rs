//! What the daemon tells the cluster, with no more rights than it is granted, and one pod served end to end.

use baton::cluster::notice::{Notice, Notices, Subject};
use baton::contract::inventory::{Device, DeviceSpec};
use baton::contract::key::{AGENT, NODE_GPU_MODEL, NODE_GPU_VENDOR, PCIE_SWITCH};
use baton::contract::{AgentStatus, EventReason, Identity};
use baton::sim::apiserver::Rule;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::events::v1::Event;
use kube::api::ListParams;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::test_node::{Daemon, PATIENCE, TestNode, until};
use crate::harness::TestServer;
use crate::harness::wait::until as waits;
use crate::prelude::*;

const USER: &str = "system:serviceaccount:baton-system:baton-device-plugin";
const GROUP: &str = "scheduling.koordinator.sh";

pub struct NodeCluster {
    server: TestServer,
    pub kubelet: Kubelet,
}

impl std::ops::Deref for NodeCluster {
    type Target = TestServer;
    fn deref(&self) -> &TestServer {
        &self.server
    }
}

/// An API server in which the daemon may do what the documentation says, and nothing else.
pub async fn cluster(node: &mut TestNode) -> NodeCluster {
    let server = TestServer::simulated().await;
    server.create_crds([baton::contract::inventory::crd()]).await;
    server.create_namespace("baton-system").await;
    server.create_namespace("baton-system-nodes").await;
    let rules = [
        ("core", "pods", "get list watch"),
        ("core", "nodes", "get list watch patch"),
        (GROUP, "devices", "get create patch"),
        ("coordination.k8s.io", "leases", "get create update"),
        ("core events.k8s.io", "events", "create patch"),
    ];
    let api = server.server();
    api.allow(USER, rules.map(|(groups, resources, verbs)| Rule::new(groups, resources, verbs)).into());
    let kubelet = node.kubelet_of(server.client.clone()).await;
    until("the node is there", || !api.objects("", "nodes").is_empty()).await;
    std::fs::write(node.path("kubeconfig"), api.plain_kubeconfig(USER)).unwrap();
    NodeCluster { server, kubelet }
}

/// The same, with the daemon as it ships.
pub async fn reporting(node: &mut TestNode) -> (NodeCluster, Daemon) {
    let cluster = cluster(node).await;
    (cluster, node.shipped())
}

impl NodeCluster {
    pub fn device(&self) -> Option<Value> {
        self.server().objects(GROUP, "devices").into_iter().next()
    }

    /// A condition of the Device object.
    pub fn condition(&self, kind: &str) -> Option<Value> {
        let conditions = self.device()?["status"]["conditions"].as_array()?.clone();
        conditions.into_iter().find(|of| of["type"] == kind)
    }

    /// Waits until the Device object stands.
    pub async fn until_reported(&self) -> Value {
        until("the Device object stands", || self.device().is_some()).await;
        self.device().unwrap()
    }

    /// The NICs of the Device object.
    pub fn nics(&self) -> Vec<Value> {
        let devices = self.device().map(|device| device["spec"]["devices"].as_array().unwrap().clone());
        devices.unwrap_or_default().into_iter().filter(|device| device["type"] == "rdma").collect()
    }

    /// A pod on the node that the kubelet chooses devices for, with this environment.
    pub async fn create(&self, name: &str, resource: &str, count: u32, env: Value) {
        let pod = json!({
            "metadata": {"name": name, "namespace": "default"},
            "spec": {"nodeName": "node-a", "terminationGracePeriodSeconds": 0, "containers": [{
                "name": "main", "image": "i", "command": ["sleep", "3600"], "env": env,
                "resources": {"limits": {resource: count.to_string()}}}]}
        });
        let pods = self.pods_in("default");
        pods.create(&PostParams::default(), &serde_json::from_value(pod).unwrap()).await.unwrap();
    }

    /// Whether the container of this pod runs.
    pub fn runs(&self, name: &str) -> bool {
        self.kubelet.view().get(&format!("default/{name}")).is_some_and(|pod| pod.containers["main"].running)
    }

    /// What the node offers of a resource.
    pub async fn until_allocatable(&self, resource: &str, count: &str) {
        until(&format!("the node offers {count} of {resource}"), || {
            self.server().objects("", "nodes")[0]["status"]["allocatable"][resource] == count
        })
        .await;
    }

    /// The writes of the daemon so far.
    fn writes(&self, resource: &str) -> u64 {
        self.server().counts().sum(|c| {
            c.user == USER && c.resource == resource && ["create", "update", "patch"].contains(&c.verb.as_str())
        })
    }

    async fn until_registered(&self, names: usize) {
        let all = || self.status().is_some_and(|status| status.registered.len() == names);
        until(&format!("{names} names are registered"), all).await;
    }

    fn status(&self) -> Option<AgentStatus> {
        let leases = self.server().objects("coordination.k8s.io", "leases");
        let lease = leases.into_iter().find(|lease| lease["metadata"]["name"] == "baton-agent-node-a")?;
        AgentStatus::parse(lease["metadata"]["annotations"][AGENT].as_str()?)
    }

    fn health(&self, id: &str) -> Option<bool> {
        let device = self.device()?;
        let devices = device["spec"]["devices"].as_array()?.clone();
        devices.iter().find(|device| device["id"] == id)?["health"].as_bool()
    }
}

#[tokio::test]
async fn inventory_labels_and_lease_stand_in_the_api_and_change_only_with_the_machine() {
    let mut node = TestNode::new(NodeSpec::new("reported"));
    node.options.timings.heartbeat = Duration::from_millis(300);
    let (cluster, daemon) = reporting(&mut node).await;
    node.until(NVIDIA_GPU, 8).await;
    let device = cluster.until_reported().await;
    let devices = device["spec"]["devices"].as_array().unwrap();
    let kinds: Vec<&str> = devices.iter().map(|device| device["type"].as_str().unwrap()).collect();
    assert_eq!(kinds, [vec!["gpu"; 8], vec!["rdma"; 4]].concat());
    assert_eq!(devices[0]["id"], node.machine.gpu_uuids()[0].as_str());
    assert_eq!(devices[0]["resources"]["koordinator.sh/gpu-memory"], "81559Mi");
    assert_eq!(devices[0]["conditions"][0]["type"], "Healthy");
    let beside = |device: &Value| device["labels"][PCIE_SWITCH].as_str().unwrap().to_owned();
    assert_eq!(beside(&devices[0]), beside(&devices[8]), "the first NIC hangs below the first GPU's switch");
    assert_eq!(device["metadata"]["ownerReferences"][0]["kind"], "Node");
    until("the node is labelled", || {
        let node = &cluster.server().objects("", "nodes")[0]["metadata"]["labels"];
        node[NODE_GPU_VENDOR] == "nvidia" && node[NODE_GPU_MODEL] == "NVIDIA-H100-80GB-HBM3"
    })
    .await;
    until("the Lease names what is registered", || {
        cluster.status().is_some_and(|status| status.registered.len() == 6 && status.identity == Identity::Exact)
    })
    .await;
    assert_eq!(cluster.status().unwrap().lockless, Some(vec![]), "no pod is served without a lock by default");

    let (devices, leases) = (cluster.writes("devices"), cluster.writes("leases"));
    until("the Lease is renewed five times", || cluster.writes("leases") >= leases + 5).await;
    assert_eq!(cluster.writes("devices"), devices, "nothing changed");
    daemon.stop().await;
}

#[tokio::test]
async fn the_lease_goes_with_its_node_and_stands_again_with_the_next_one_of_that_name() {
    let mut node = TestNode::new(NodeSpec::new("replaced"));
    node.options.timings.heartbeat = Duration::from_millis(100);
    let (cluster, daemon) = reporting(&mut node).await;
    let lease = || {
        cluster
            .server()
            .objects("coordination.k8s.io", "leases")
            .into_iter()
            .find(|lease| lease["metadata"]["name"] == "baton-agent-node-a")
    };
    let owner = || lease().map(|lease| lease["metadata"]["ownerReferences"][0].clone());
    until("the Lease stands", || lease().is_some()).await;
    let mut node = cluster.server().objects("", "nodes")[0].clone();
    let first = node["metadata"]["uid"].clone();
    let expected = json!({"apiVersion": "v1", "kind": "Node", "name": "node-a", "uid": first});
    assert_eq!(owner(), Some(expected));

    let nodes: Api<Node> = Api::all(cluster.client.clone());
    nodes.delete("node-a", &DeleteParams::default()).await.unwrap();
    until("the Lease is collected", || lease().is_none()).await;
    let looked = || cluster.server().counts().sum(|c| c.user == USER && c.resource == "leases" && c.verb == "get");
    let before = looked();
    until("the daemon has tried to renew it twice", || looked() >= before + 2).await;
    assert_eq!(lease(), None, "it would stay for ever");

    for field in ["uid", "resourceVersion", "creationTimestamp", "managedFields"] {
        node["metadata"].as_object_mut().unwrap().remove(field);
    }
    nodes.create(&PostParams::default(), &serde_json::from_value(node).unwrap()).await.unwrap();
    until("the next Node owns it", || owner().is_some_and(|owner| owner["uid"] != first)).await;
    assert_eq!(owner().unwrap()["uid"], cluster.server().objects("", "nodes")[0]["metadata"]["uid"]);
    daemon.stop().await;
}

#[tokio::test]
async fn a_virtual_function_without_its_device_node_is_not_offered_to_schedulers() {
    let mut node = TestNode::new(NodeSpec { vfs_per_nic: 2, ..NodeSpec::new("half-loaded") });
    let vf = node.machine.nic_addresses()[1].to_string();
    let verbs = node.machine.sysfs_root().join("class/infiniband_verbs");
    let all = std::fs::read_dir(&verbs).unwrap().map(|entry| entry.unwrap());
    let own = all.filter(|entry| entry.path().canonicalize().unwrap().display().to_string().contains(&vf));
    for entry in own {
        std::fs::remove_file(node.machine.dev_root().join("infiniband").join(entry.file_name())).unwrap();
    }
    let (cluster, daemon) = reporting(&mut node).await;
    let device = cluster.until_reported().await;
    let nics = cluster.nics().into_iter();
    let groups: Vec<Value> = nics.map(|nic| nic["vfGroups"][0]["vfs"].clone()).collect();
    assert_eq!((groups[0].as_array().unwrap().len(), &groups[0][0]["minor"]), (1, &json!(1)), "{device}");
    assert_eq!(groups[1].as_array().unwrap().len(), 2);
    daemon.stop().await;
}

#[tokio::test]
async fn an_unhealthy_gpu_reaches_the_scheduler_within_a_tenth_of_a_second_and_comes_back() {
    let mut node = TestNode::new(NodeSpec::new("sick"));
    let (cluster, daemon) = reporting(&mut node).await;
    let uuid = node.machine.gpu_uuids()[3].clone();
    until("the Device object stands", || cluster.health(&uuid) == Some(true)).await;
    node.until(NVIDIA_GPU, 8).await;
    node.machine.xid(3, 79).unwrap();
    let took = until("it is unhealthy", || cluster.health(&uuid) == Some(false)).await;
    println!("XID to the Device object: {took:?}");
    let device = cluster.device().unwrap();
    let sick =
        device["spec"]["devices"].as_array().unwrap().iter().find(|device| device["id"] == uuid.as_str()).cloned();
    let condition = sick.unwrap()["conditions"][0].clone();
    let message = condition["message"].as_str().unwrap();
    assert!(
        condition["status"] == "False"
            && message.starts_with(
                "XID 79: GPU has fallen off the bus (hardware): drain the node (kubectl drain) and reboot it; "
            ),
        "{condition}"
    );
    until("an event on the node tells it", || {
        let events = [cluster.server().objects("events.k8s.io", "events"), cluster.server().objects("", "events")];
        let tells = |event: &Value| event["reason"] == "DeviceUnhealthy" && event.to_string().contains("XID 79");
        events.concat().iter().any(tells)
    })
    .await;
    until("it is healthy again", || cluster.health(&uuid) == Some(true)).await;
    daemon.stop().await;
}

#[tokio::test]
async fn a_restart_writes_no_device_object_and_keeps_the_times_of_transitions() {
    let mut node = TestNode::new(NodeSpec::new("times"));
    node.options.timings.heartbeat = Duration::from_millis(200);
    node.options.periods.recovery_window = Duration::from_secs(3600);
    let (cluster, daemon) = reporting(&mut node).await;
    let uuids = node.machine.gpu_uuids();
    let (lost, sick) = (node.machine.dev_root().join("nvidia5"), &uuids[3]);
    until("the Device object stands", || cluster.health(sick) == Some(true)).await;
    node.machine.xid(3, 79).unwrap();
    std::fs::remove_file(&lost).unwrap();
    let both = || (cluster.health(sick), cluster.health(&uuids[5]));
    until("both are out of service", || both() == (Some(false), Some(false))).await;
    let times = || {
        let device = cluster.device().unwrap();
        let of = |info: &Value| (info["id"].clone(), info["conditions"][0]["lastTransitionTime"].clone());
        device["spec"]["devices"].as_array().unwrap().iter().map(of).collect::<Vec<_>>()
    };
    let count = |resource: &str| cluster.writes(resource);
    let mut daemon = daemon;
    for _ in 0..3 {
        daemon.stop().await;
        let (before, written, renewed) = (times(), count("devices"), count("leases"));
        // Times are whole seconds: a new one would differ.
        let second = clock::wall().as_second();
        until("another second begins", || clock::wall().as_second() > second + 1).await;
        daemon = node.shipped();
        until("it has looked a few times", || count("leases") >= renewed + 5).await;
        assert_eq!((times(), count("devices") - written), (before, 0), "times, and writes of the Device object");
    }
    // What changes after the restart has its own time, and the rest keeps theirs.
    let before = times();
    std::fs::write(&lost, "").unwrap();
    until("it is back", || both() == (Some(false), Some(true))).await;
    let differ = times().iter().zip(&before).filter(|(now, before)| now != before).count();
    assert_eq!(differ, 1);
    daemon.stop().await;
}

#[tokio::test]
async fn an_object_that_somebody_deletes_is_put_back() {
    let mut node = TestNode::new(NodeSpec::new("back"));
    node.options.timings.heartbeat = Duration::from_millis(200);
    let (cluster, daemon) = reporting(&mut node).await;
    cluster.until_reported().await;
    let devices: Api<Device> = Api::all(cluster.client.clone());
    devices.delete("node-a", &DeleteParams::default()).await.unwrap();
    until("it stands again", || cluster.device().is_some()).await;
    daemon.stop().await;
}

#[tokio::test]
async fn the_last_word_of_an_orderly_end_is_that_nothing_is_registered() {
    let mut node = TestNode::new(NodeSpec::new("last"));
    let (cluster, daemon) = reporting(&mut node).await;
    cluster.until_registered(6).await;
    daemon.stop().await;
    cluster.until_registered(0).await;
}

#[tokio::test]
async fn a_lost_registration_shows_in_the_lease_at_once() {
    let mut node = TestNode::new(NodeSpec::new("lost"));
    let (cluster, daemon) = reporting(&mut node).await;
    cluster.until_registered(6).await;
    cluster.kubelet.stop().await;
    cluster.until_registered(0).await;
    cluster.kubelet.start_again().await.unwrap();
    cluster.until_registered(6).await;
    daemon.stop().await;
}

#[tokio::test]
async fn a_pod_that_the_kubelet_chose_for_is_served_and_shown_everywhere() {
    let mut node = TestNode::new(NodeSpec::new("served"));
    let address = node.listens();
    let (cluster, daemon) = reporting(&mut node).await;
    cluster.until_allocatable(NVIDIA_GPU, "8").await;
    assert!(get(address, "/livez").await.ends_with("\r\n\r\nok\n"));
    assert!(get(address, "/readyz").await.starts_with("HTTP/1.1 200"));
    cluster.create("p", NVIDIA_GPU, 2, json!([])).await;
    until("it runs", || cluster.runs("p")).await;
    let view = cluster.kubelet.view()["default/p"].clone();
    let devices = view.devices(NVIDIA_GPU);
    assert_eq!(devices.len(), 2);
    let text = serde_json::to_string(&view.containers["main"].injected).unwrap();
    for id in &devices {
        assert!(text.contains(&format!("koordinator.sh/gpu={id}")), "{text}");
    }
    let ledger = get(address, "/ledger").await;
    let lines: Value = serde_json::from_str(ledger.rsplit("\r\n\r\n").next().unwrap()).unwrap();
    assert_eq!(lines[0]["pod"], "p");
    assert_eq!(lines[0]["served"]["gpu"].as_array().unwrap().len(), 2);
    assert_eq!(lines[0]["devices"][0]["resources"]["koordinator.sh/gpu-core"], "100");
    // The kubelet's own list, for the same question.
    let listed = get(address, "/kubelet").await;
    let listed: Value = serde_json::from_str(listed.rsplit("\r\n\r\n").next().unwrap()).unwrap();
    assert_eq!((&listed[0]["pod"], &listed[0]["resource"]), (&json!("p"), &json!(NVIDIA_GPU)), "{listed}");
    assert_eq!(listed[0]["ids"], lines[0]["ids"]);
    until("the Device object shows who holds them", || {
        let device = cluster.device().unwrap();
        device["status"]["allocations"][0]["entries"][0]["name"] == "p"
    })
    .await;
    let metrics = get(address, "/metrics").await;
    assert!(metrics.contains(r#"baton_node_allocate_total{resource="nvidia.com/gpu",result="served"} 1"#), "{metrics}");
    tells(metrics, [r#"baton_node_registered{resource="koordinator.sh/rdma"} 1"#]);
    daemon.stop().await;
}

#[tokio::test]
async fn it_is_ready_with_a_device_or_when_there_is_none_for_certain() {
    for (nics, start, ready) in [
        (true, NvmlReturn::DriverNotLoaded, true),
        (false, NvmlReturn::DriverNotLoaded, false),
        (false, NvmlReturn::Success, true),
    ] {
        let mut node = TestNode::new(NodeSpec::new("ready").shaped(Shape::Pairs));
        let address = node.listens();
        node.options.fail_on_init_error = false;
        node.options.timings.nvml_retry = std::time::Duration::from_millis(100);
        if !nics {
            std::fs::remove_dir_all(node.machine.sysfs_root().join("class")).unwrap();
        }
        node.machine.fail_start(start).unwrap();
        let (_kubelet, daemon) = (node.kubelet().await, node.daemon());
        // Until it is registered: then it is ready, or says what it lacks.
        let said = readiness(address, &["200 OK", "without a device"]).await;
        assert_eq!(said.contains("200 OK"), ready, "{said}");
        node.machine.fail_start(NvmlReturn::Success).unwrap();
        node.until(NVIDIA_GPU, 4).await;
        assert!(get(address, "/readyz").await.contains("200 OK"));
        daemon.stop().await;
    }
}

/// The machine has GPUs, and the daemon cannot see them.
#[tokio::test]
async fn a_library_that_cannot_be_loaded_is_said_and_waited_for() {
    let mut node = TestNode::new(NodeSpec::new("broken").shaped(Shape::Pairs));
    let library = node.machine.nvml_library().with_file_name("broken.so");
    std::fs::write(&library, "no library").unwrap();
    std::fs::remove_dir_all(node.machine.sysfs_root().join("class")).unwrap();
    let address = node.listens();
    node.options.paths.nvml_library = Some(library.clone());
    node.options.fail_on_init_error = false;
    node.options.timings.nvml_retry = std::time::Duration::from_millis(100);
    let (_kubelet, daemon) = (node.kubelet().await, node.daemon());
    let said = readiness(address, &["200 OK", "cannot be loaded"]).await;
    assert!(!said.contains("200 OK"), "{said}");
    std::fs::remove_file(&library).unwrap();
    std::os::unix::fs::symlink(node.machine.nvml_library(), &library).unwrap();
    node.until(NVIDIA_GPU, 4).await;
    daemon.stop().await;
}

/// What the daemon says of its readiness, once it has one of these words in it.
pub async fn readiness(address: SocketAddr, words: &[&str]) -> String {
    waits(&format!("it says one of {words:?}"), PATIENCE, async || {
        // The daemon listens once it has been given a turn.
        tokio::task::yield_now().await;
        let said = get(address, "/readyz").await;
        words.iter().any(|word| said.contains(word)).then_some(said)
    })
    .await
}

pub async fn get(address: SocketAddr, path: &str) -> String {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nHost: agent\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    answer
}

#[tokio::test]
async fn the_daemon_does_not_start_beside_cordons_that_are_not_read_any_more() {
    let mut node = TestNode::new(NodeSpec::new("cordoned-before"));
    let cluster = cluster(&mut node).await;
    let before = key::CORDONED.replace("baton.io", "scheduling.koordinator.sh");
    let mut device = Device::new("node-a", DeviceSpec { devices: Vec::new() });
    device.metadata.annotations = Some([(before.clone(), "{\"GPU-0\":{}}".to_owned())].into());
    let devices: Api<Device> = Api::all(cluster.client.clone());
    devices.create(&PostParams::default(), &device).await.unwrap();
    let error = node.shipped().error().await;
    assert!(error.contains("the key is baton.io/cordoned"), "{error}");
    tells(error, [format!("`kubectl annotate device node-a {before}-`")]);
    assert_eq!(node.sockets().len(), 0, "nothing is offered");
    let cleared = json!({"metadata": {"annotations": {before: null}}});
    devices.patch("node-a", &PatchParams::default(), &Patch::Merge(cleared)).await.unwrap();
    let daemon = node.shipped();
    node.until(NVIDIA_GPU, 8).await;
    daemon.stop().await;
}

/// What comes again is one more in a series; an event that a client has deleted meanwhile is written afresh.
#[tokio::test]
async fn a_notice_that_comes_again_is_counted_and_outlives_its_event() {
    let server = TestServer::simulated().await;
    let (notices, writer) = Notices::start(server.client.clone(), "baton-test", "here", async || {});
    let events: Api<Event> = Api::namespaced(server.client.clone(), "default");
    let post = || {
        let (subject, reason) = (Subject::Node("node-a".into()), EventReason::DeviceCordoned);
        notices.post(Notice { subject, warning: false, reason, action: "Cordon", message: "again".to_owned() });
    };
    let counts = async || {
        let all = events.list(&ListParams::default()).await.unwrap().items;
        all.iter().map(|event| event.series.as_ref().map_or(1, |series| series.count)).collect::<Vec<_>>()
    };
    (0..2).for_each(|_| post());
    waits("two are one series", PATIENCE, async || (counts().await == [2]).then_some(())).await;
    events.delete_collection(&DeleteParams::default(), &ListParams::default()).await.unwrap();
    post();
    waits("it is there again", PATIENCE, async || (counts().await == [1]).then_some(())).await;
    drop(notices);
    writer.await.unwrap();
}

//! Pods that run on while things break and restart around them.

use baton::agent::options::DeviceListStrategy;
use baton::sim::apiserver::{Effect, FaultRule};
use k8s_openapi::api::core::v1::Pod;

use super::reported::{NodeCluster, get, reporting};
use super::test_node::{PATIENCE, TestNode, until};
use crate::prelude::*;

fn pods(cluster: &NodeCluster) -> Api<Pod> {
    Api::namespaced(cluster.client.clone(), "default")
}

/// What the kubelet holds for it, once it runs.
async fn running(cluster: &NodeCluster, name: &str) -> (BTreeSet<String>, i32) {
    until("it runs", || cluster.runs(name)).await;
    let pod = cluster.kubelet.view()[&format!("default/{name}")].clone();
    (pod.devices(NVIDIA_GPU), pod.containers["main"].restarts)
}

/// The pods that the ledger names.
async fn in_ledger(address: std::net::SocketAddr) -> Vec<String> {
    let answer = get(address, "/ledger").await;
    let lines: Vec<Value> = serde_json::from_str(answer.rsplit("\r\n\r\n").next().unwrap()).unwrap();
    lines.iter().map(|line| line["pod"].as_str().unwrap().to_owned()).collect()
}

#[tokio::test]
async fn a_running_pod_keeps_its_devices_through_faults_and_restarts() {
    let mut node = TestNode::new(NodeSpec::new("through"));
    node.options.gpu_sharing = false;
    let (cluster, mut daemon) = reporting(&mut node).await;
    cluster.until_allocatable(NVIDIA_GPU, "8").await;
    cluster.create("p", NVIDIA_GPU, 2, json!([])).await;
    let before = running(&cluster, "p").await;
    assert_eq!(before.0.len(), 2);
    let sick = before.0.first().unwrap();
    let gpu = node.machine.gpu_uuids().iter().position(|uuid| uuid == sick).unwrap();
    node.machine.fault(gpu, NvmlReturn::ResetRequired).unwrap();
    node.until(NVIDIA_GPU, 7).await;
    assert_eq!(running(&cluster, "p").await, before, "an unhealthy device does not end the pod that has it");
    for (daemon_restarts, kubelet_restarts) in [(true, false), (false, true), (true, true)] {
        if daemon_restarts {
            daemon.stop().await;
            node.until(NVIDIA_GPU, 0).await;
            daemon = node.shipped();
        }
        if kubelet_restarts {
            cluster.kubelet.restart().await.unwrap();
        }
        node.until(NVIDIA_GPU, 7).await;
        assert_eq!(running(&cluster, "p").await, before, "daemon {daemon_restarts}, kubelet {kubelet_restarts}");
        let cdi = node.cdi("gpu");
        assert!(before.0.iter().all(|uuid| cdi.contains(uuid)), "a restart of its container asks for both names");
    }
    cluster.until_allocatable(NVIDIA_GPU, "7").await;
    cluster.create("q", NVIDIA_GPU, 6, json!([])).await;
    let others = running(&cluster, "q").await.0;
    assert!(others.len() == 6 && others.is_disjoint(&before.0), "{others:?}");
    node.machine.fault(gpu, NvmlReturn::Success).unwrap();
    node.until(NVIDIA_GPU, 8).await;
    assert_eq!(running(&cluster, "p").await, before);
    daemon.stop().await;
}

#[tokio::test]
async fn after_a_reboot_no_container_starts_with_the_number_of_another_pods_nic() {
    reboot(false).await;
}

#[tokio::test]
async fn pods_that_a_kubelet_refuses_after_a_reboot_leave_their_nics_to_the_next() {
    reboot(true).await;
}

/// Two pods have a NIC each, and the NICs change numbers. The kubelet refuses pods that it admits before the daemon has registered.
async fn reboot(kubelet_first: bool) {
    let mut node = TestNode::new(NodeSpec::new("renumbered"));
    node.options.gpu_sharing = false;
    node.options.device_list_strategy = vec![DeviceListStrategy::Envvar];
    let (cluster, daemon) = reporting(&mut node).await;
    cluster.until_allocatable(RDMA, "400").await;
    let create = async |name: &str| cluster.create(name, RDMA, 100, json!([])).await;
    // Its NIC, by the number that the machine lists it with, and the device node that its container has.
    let given = async |name: &str| {
        running(&cluster, name).await;
        let given = cluster.kubelet.view()[&format!("default/{name}")].containers["main"].injected.clone().unwrap();
        let address = &given.envs["PCIDEVICE_KOORDINATOR_SH_RDMA"];
        let nic = node.machine.nic_addresses().iter().position(|nic| nic.to_string() == *address).unwrap();
        let uverbs = given.device_nodes.keys().find(|path| path.contains("uverbs")).unwrap().clone();
        (nic, uverbs)
    };
    create("a").await;
    let (a, node_a) = given("a").await;
    create("b").await;
    let (b, node_b) = given("b").await;
    assert!(a != b && node_a != node_b);
    cluster.kubelet.power_off().await.unwrap();
    daemon.stop().await;
    // The other way round this time.
    let (low, high) = (a.min(b), a.max(b));
    node.machine.unregister_nic(low).unwrap();
    node.machine.unregister_nic(high).unwrap();
    node.machine.register_nic(high).unwrap();
    node.machine.register_nic(low).unwrap();
    node.machine.reboot().unwrap();
    let failed =
        || cluster.server().objects("", "pods").iter().filter(|pod| pod["status"]["phase"] == "Failed").count();
    let daemon = if kubelet_first {
        cluster.kubelet.power_on().await.unwrap();
        until("both are refused", || failed() == 2).await;
        node.shipped()
    } else {
        cluster.kubelet.boot().await.unwrap();
        let daemon = node.shipped();
        cluster.kubelet.start_again().await.unwrap();
        daemon
    };
    for name in ["a", "b"] {
        until("its start is refused in words, or its admission", || {
            let all = cluster.server().objects("", "pods");
            let pod = all.iter().find(|pod| pod["metadata"]["name"] == name).unwrap();
            let why = &pod["status"]["containerStatuses"][0]["state"]["waiting"]["message"];
            let refused = why.as_str().is_some_and(|why| why.contains("does not have the number any more"));
            refused || pod["status"]["phase"] == "Failed"
        })
        .await;
        let pods = cluster.kubelet.view();
        assert!(!pods[&format!("default/{name}")].containers["main"].running, "{name} runs with another pod's NIC");
    }
    if !kubelet_first && failed() > 0 {
        // The kubelet was faster: the other test.
        return daemon.stop().await;
    }
    for name in ["a", "b"] {
        pods(&cluster).delete(name, &DeleteParams::default()).await.unwrap();
        until("it is gone", || !cluster.kubelet.view().contains_key(&format!("default/{name}"))).await;
    }
    cluster.until_allocatable(RDMA, "400").await;
    create("c").await;
    create("d").await;
    for (nic, has) in [given("c").await, given("d").await] {
        let expected = if nic == a { &node_b } else { &node_a };
        assert!(nic != a && nic != b || has == *expected, "NIC {nic} has {has}");
    }
    daemon.stop().await;
}

#[tokio::test]
async fn what_a_pod_writes_into_its_own_environment_gives_it_no_device() {
    let mut node = TestNode::new(NodeSpec::new("env"));
    node.options.gpu_sharing = false;
    node.options.pass_device_specs = true;
    let (cluster, daemon) = reporting(&mut node).await;
    cluster.until_allocatable(NVIDIA_GPU, "8").await;
    let greedy = json!([
        {"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"},
        {"name": "CUDA_VISIBLE_DEVICES", "value": "0,1,2,3,4,5,6,7"},
        {"name": "NVIDIA_DRIVER_CAPABILITIES", "value": "all"}]);
    cluster.create("greedy", NVIDIA_GPU, 1, greedy).await;
    let (devices, _) = running(&cluster, "greedy").await;
    let uuid = devices.first().unwrap();
    let injected = cluster.kubelet.view()["default/greedy"].containers["main"].injected.clone().unwrap();
    assert_eq!(injected.cdi_devices, [format!("koordinator.sh/gpu={uuid}")]);
    // It comes after what an image sets; nothing rests on it, as the pod can set it, too.
    assert_eq!(injected.envs, [("NVIDIA_VISIBLE_DEVICES".to_owned(), "void".to_owned())].into());
    let minor = node.machine.gpu_uuids().iter().position(|other| other == uuid).unwrap();
    let gpus: Vec<&String> = injected
        .device_nodes
        .keys()
        .filter(|path| path.strip_prefix("/dev/nvidia").is_some_and(|rest| rest.parse::<u32>().is_ok()))
        .collect();
    assert_eq!(gpus, [&format!("/dev/nvidia{minor}")]);
    // The spec's own edit comes after the pod's, but for CRI-O before 1.34: a runtime hook that reads the variable finds no device to add.
    assert_eq!(
        node.cdi_spec("gpu")["containerEdits"]["env"],
        json!(["NVIDIA_VISIBLE_DEVICES=void", "TRITON_LIBCUDA_PATH=/usr/local/nvidia/lib64"])
    );
    daemon.stop().await;
}

#[tokio::test]
async fn a_vendors_cdi_file_is_named_in_answers_and_none_is_written_beside_it() {
    let mut node = TestNode::new(NodeSpec::new("vendor"));
    node.options.gpu_sharing = false;
    node.options.cdi_kind = "nvidia.com/gpu".into();
    let (cluster, daemon) = reporting(&mut node).await;
    cluster.until_allocatable(NVIDIA_GPU, "8").await;
    cluster.create("p", NVIDIA_GPU, 1, json!([])).await;
    let (devices, _) = running(&cluster, "p").await;
    let injected = cluster.kubelet.view()["default/p"].containers["main"].injected.clone().unwrap();
    assert_eq!(injected.cdi_devices, [format!("nvidia.com/gpu={}", devices.first().unwrap())]);
    let files: Vec<_> = std::fs::read_dir(node.path("cdi")).unwrap().flatten().map(|file| file.file_name()).collect();
    assert_eq!(files, ["koordinator.sh-rdma.json"], "two files that name one device make a runtime refuse both");
    daemon.stop().await;
}

#[tokio::test]
async fn pods_are_served_and_faults_reach_the_kubelet_while_no_write_is_answered() {
    let mut node = TestNode::new(NodeSpec::new("unheard"));
    node.options.gpu_sharing = false;
    node.options.timings.rescan = Duration::from_secs(3600);
    node.options.periods.recovery_window = Duration::from_secs(3600);
    let (cluster, daemon) = reporting(&mut node).await;
    cluster.until_allocatable(NVIDIA_GPU, "8").await;
    for (verb, resource) in
        [("patch", "nodes"), ("patch", "devices"), ("create", "events"), ("patch", "events"), ("update", "leases")]
    {
        let writes = FaultRule { agent: "baton-device-plugin".to_owned(), ..FaultRule::on(verb, resource) };
        cluster.server().faults().add(writes, Effect::Hang);
    }
    let calls = || {
        let mut calls = node.machine.nvml_calls().unwrap();
        calls.remove("nvmlEventSetWait_v2");
        calls
    };
    let before = calls();
    cluster.create("p", NVIDIA_GPU, 2, json!([])).await;
    assert_eq!(running(&cluster, "p").await.0.len(), 2);
    assert_eq!(calls(), before, "nothing was asked of NVML");
    for (gpu, left) in [(0, 7), (7, 6)] {
        node.machine.xid(gpu, 79).unwrap();
        node.until(NVIDIA_GPU, left).await;
    }
    cluster.create("q", NVIDIA_GPU, 2, json!([])).await;
    assert_eq!(running(&cluster, "q").await.0.len(), 2);
    daemon.stop().await;
}

#[tokio::test]
async fn a_watch_that_falls_silent_is_noticed_and_what_it_missed_is_learned() {
    let mut node = TestNode::new(NodeSpec::new("mute"));
    node.options.gpu_sharing = false;
    node.options.timings.watch_timeout = Duration::from_secs(1);
    let address = node.listens();
    let (cluster, daemon) = reporting(&mut node).await;
    cluster.until_allocatable(NVIDIA_GPU, "8").await;
    cluster.create("p", NVIDIA_GPU, 8, json!([])).await;
    running(&cluster, "p").await;
    assert_eq!(in_ledger(address).await, ["p"]);
    let watches = FaultRule { agent: "baton-device-plugin".to_owned(), ..FaultRule::on("watch", "pods") };
    let mute = cluster.server().faults().add(watches, Effect::SilentWatch);
    cluster.server().faults().break_watches();
    until("a watch is open that says nothing", || cluster.server().faults().fired(mute) > 0).await;
    pods(&cluster).delete("p", &DeleteParams::default().grace_period(0)).await.unwrap();
    let took = until("it is given up for another", || cluster.server().faults().fired(mute) > 1).await;
    println!("a silent watch of one second was given up after {took:?}");
    cluster.server().faults().remove(mute);
    let until = baton::runtime::clock::mono() + PATIENCE;
    while !in_ledger(address).await.is_empty() {
        assert!(baton::runtime::clock::mono() < until, "the deleted pod still holds its devices");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    daemon.stop().await;
}

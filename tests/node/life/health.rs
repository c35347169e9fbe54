//! Devices that go out of service and come back, as the kubelet sees it.

use std::os::fd::AsRawFd;

use baton::agent::options::DeviceListStrategy;
use baton::contract::deviceplugin::Empty;

use super::test_node::{PATIENCE, TestNode, until};
use crate::prelude::*;

#[tokio::test]
async fn four_gpus_of_which_one_then_two_fail_and_recover_are_offered_as_4_3_4_2_3_4() {
    let node = TestNode::new(NodeSpec::new("four").shaped(Shape::Pairs));
    let (_kubelet, daemon) = node.start(NVIDIA_GPU, 4).await;
    node.machine.xid(1, 48).unwrap();
    let took = node.until(NVIDIA_GPU, 3).await;
    println!("XID to the kubelet's list: {took:?}");
    node.until("koordinator.sh/gpu-core", 300).await;
    node.until(NVIDIA_GPU, 4).await;
    node.machine.lose(0).unwrap();
    node.machine.lose(2).unwrap();
    node.until(NVIDIA_GPU, 2).await;
    node.machine.find(0).unwrap();
    node.until(NVIDIA_GPU, 3).await;
    node.machine.find(2).unwrap();
    node.until(NVIDIA_GPU, 4).await;
    daemon.stop().await;
}

#[tokio::test]
async fn an_application_error_takes_nothing_out_of_service() {
    let mut node = TestNode::new(NodeSpec::new("app"));
    node.options.periods.recovery_window = Duration::from_secs(60);
    let (_kubelet, daemon) = node.start(NVIDIA_GPU, 8).await;
    // NVML gives events that wait together the last one's XID: the next comes when this one has been taken.
    let waits = || node.machine.nvml_calls().unwrap().get("nvmlEventSetWait_v2").copied().unwrap_or(0);
    let before = waits();
    node.machine.xid(0, 31).unwrap();
    until("the event is taken and the next is waited for", || waits() >= before + 2).await;
    node.machine.xid(1, 79).unwrap();
    node.until(NVIDIA_GPU, 7).await;
    assert!(node.offered().await[NVIDIA_GPU].contains(&node.machine.gpu_uuids()[0]));
    daemon.stop().await;
}

#[tokio::test]
async fn a_restarted_daemon_knows_the_sick_gpus_until_they_recover_or_the_node_reboots() {
    let mut node = TestNode::new(NodeSpec::new("again"));
    node.options.periods.recovery_window = Duration::from_secs(3600);
    let (_kubelet, daemon) = node.start(NVIDIA_GPU, 8).await;
    node.machine.xid(1, 79).unwrap();
    node.until(NVIDIA_GPU, 7).await;
    let kept = node.options.paths.state_dir.join("health.json");
    let is_kept = || std::fs::read_to_string(&kept).is_ok_and(|text| text.contains("\"xid\":79"));
    until("what is known is kept", is_kept).await;
    daemon.stop().await;
    let daemon = node.daemon();
    let sick = DeviceId::parse(&node.machine.gpu_uuids()[1]).unwrap();
    let refused = || node.handoff.inventory.lock().unwrap().devices.get(&sick).is_some_and(|gpu| gpu.reason.is_some());
    until("the sick one is known", refused).await;
    node.until(NVIDIA_GPU, 7).await;
    daemon.stop().await;
    node.machine.reboot().unwrap();
    let daemon = node.daemon();
    node.until(NVIDIA_GPU, 8).await;
    daemon.stop().await;
}

#[tokio::test]
async fn gpus_that_a_restarted_daemon_cannot_see_are_out_of_service_and_not_gone() {
    let mut node = TestNode::new(NodeSpec::new("unseen"));
    node.options.fail_on_init_error = false;
    let (_kubelet, daemon) = node.start(NVIDIA_GPU, 8).await;
    daemon.stop().await;
    let out_of_service =
        |reason: &str| node.machine.gpu_uuids().iter().filter(|uuid| node.reason(uuid).contains(reason)).count();
    // One fell off the bus while no daemon ran; NVML does not name its UUID any more.
    node.machine.lose(2).unwrap();
    let daemon = node.daemon();
    until("seven answer", || node.handoff.inventory.lock().unwrap().devices.len() >= 8).await;
    node.until(NVIDIA_GPU, 7).await;
    assert_eq!(out_of_service("fell off the bus"), 1);
    node.machine.find(2).unwrap();
    node.until(NVIDIA_GPU, 8).await;
    daemon.stop().await;
    // The driver is being replaced, then the node boots and the driver is not loaded yet.
    for (answer, boots) in [(NvmlReturn::LibRmVersionMismatch, false), (NvmlReturn::DriverNotLoaded, true)] {
        node.machine.fail_start(answer).unwrap();
        if boots {
            node.machine.reboot().unwrap();
        }
        let daemon = node.daemon();
        until("all are known and out of service", || out_of_service("driver") == 8).await;
        node.until(NVIDIA_GPU, 0).await;
        node.machine.fail_start(NvmlReturn::Success).unwrap();
        node.until(NVIDIA_GPU, 8).await;
        daemon.stop().await;
    }
}

#[tokio::test]
async fn an_xid_with_instance_ids_that_mean_nothing_is_about_the_whole_gpu() {
    let mut node = TestNode::new(NodeSpec::new("zeros"));
    node.options.periods.recovery_window = Duration::from_secs(60);
    node.options.mig_strategy = MigStrategy::None;
    let (_kubelet, daemon) = node.start(NVIDIA_GPU, 8).await;
    // NVIDIA's mock library fills the ids with zeros where a GPU is not split.
    node.machine.xid_on_instance(1, 79, (0, 0)).unwrap();
    node.until(NVIDIA_GPU, 7).await;
    assert!(!node.offered().await[NVIDIA_GPU].contains(&node.machine.gpu_uuids()[1]));
    daemon.stop().await;
}

#[tokio::test]
async fn a_gpu_with_mig_on_is_not_handed_out_whole_and_comes_back_when_it_is_off() {
    for parts in [&[][..], &["3g.40gb", "3g.40gb"]] {
        let mut node = TestNode::new(NodeSpec::new("mig-on"));
        node.options.mig_strategy = MigStrategy::None;
        node.machine.mig(2, parts).unwrap();
        let (_kubelet, daemon) = node.start(NVIDIA_GPU, 7).await;
        let whole = node.machine.gpu_uuids()[2].clone();
        assert!(!node.offered().await[NVIDIA_GPU].contains(&whole));
        tells(node.reason(&whole), ["MIG is on", "nvidia-smi -mig 0"]);
        node.machine.unsplit(2).unwrap();
        node.until(NVIDIA_GPU, 8).await;
        daemon.stop().await;
    }
}

#[tokio::test]
async fn gpus_without_the_nodes_or_the_library_that_all_need_wait_for_them() {
    let node = TestNode::new(NodeSpec::new("control"));
    let files = [node.machine.dev_root().join("nvidia-uvm"), node.machine.dev_root().join("nvidiactl")];
    files.iter().for_each(|file| std::fs::remove_file(file).unwrap());
    let (_kubelet, daemon) = (node.kubelet().await, node.daemon());
    until("the machine is known", || node.handoff.inventory.lock().unwrap().devices.len() > 7).await;
    node.until(NVIDIA_GPU, 0).await;
    for file in files {
        std::fs::write(file, "").unwrap();
    }
    node.until(NVIDIA_GPU, 8).await;
    let libraries = node.machine.driver_root().join("usr/lib64");
    let away = node.path("away");
    std::fs::rename(libraries.join("libcuda.so.570.133.20"), &away).unwrap();
    node.until(NVIDIA_GPU, 0).await;
    std::fs::rename(&away, libraries.join("libcuda.so.570.133.20")).unwrap();
    node.until(NVIDIA_GPU, 8).await;
    daemon.stop().await;
}

#[tokio::test]
async fn a_kubelets_directory_removed_under_its_mount_ends_the_daemon() {
    let mut node = TestNode::new(NodeSpec::new("removed"));
    let directory = node.options.paths.kubelet_dir.clone();
    std::fs::create_dir_all(&directory).unwrap();
    // As a mount in a container does, this names the directory and not its path.
    let held = std::fs::File::open(&directory).unwrap();
    node.options.paths.kubelet_dir = format!("/proc/self/fd/{}", held.as_raw_fd()).into();
    let (_kubelet, daemon) = node.start(NVIDIA_GPU, 8).await;
    std::fs::remove_dir_all(&directory).unwrap();
    std::fs::create_dir_all(&directory).unwrap();
    tells(daemon.error().await, ["was removed on the node"]);
}

#[tokio::test]
async fn gpus_wait_for_their_fabric_and_are_offered_when_it_has_them() {
    let mut node = TestNode::new(NodeSpec::new("fabric"));
    node.options.gpu_sharing = false;
    // As after a boot, while the fabric manager is still at work.
    (0..8).for_each(|gpu| node.machine.fabric(gpu, 2, 0).unwrap());
    let (_kubelet, daemon) = (node.kubelet().await, node.daemon());
    until("the machine is known", || !node.handoff.inventory.lock().unwrap().devices.is_empty()).await;
    tells(node.reason(&node.machine.gpu_uuids()[0]), ["fabric"]);
    node.until(NVIDIA_GPU, 0).await;
    (0..8).for_each(|gpu| node.machine.fabric(gpu, 3, 0).unwrap());
    node.until(NVIDIA_GPU, 8).await;
    daemon.stop().await;
}

#[tokio::test]
async fn a_gpu_without_events_is_polled() {
    let node = TestNode::new(NodeSpec::new("polled"));
    node.machine.deliver_no_events().unwrap();
    let (_kubelet, daemon) = node.start(NVIDIA_GPU, 8).await;
    node.machine.fault(5, NvmlReturn::GpuIsLost).unwrap();
    node.until(NVIDIA_GPU, 7).await;
    daemon.stop().await;
}

#[tokio::test]
async fn a_gpu_whose_device_node_goes_is_out_of_service_until_it_returns() {
    let mut node = TestNode::new(NodeSpec::new("nodeless"));
    // Only inotify is this quick.
    node.options.timings.rescan = Duration::from_secs(3600);
    let _kubelet = node.kubelet().await;
    let (file, id) = (node.machine.dev_root().join("nvidia3"), node.machine.gpu_uuids()[3].clone());
    std::fs::remove_file(&file).unwrap();
    let daemon = node.daemon();
    node.until(NVIDIA_GPU, 7).await;
    for _ in 0..2 {
        assert!(node.reason(&id).starts_with("/dev/nvidia3 is missing"), "{}", node.reason(&id));
        std::fs::write(&file, "").unwrap();
        let took = node.until(NVIDIA_GPU, 8).await;
        println!("device node back to the kubelet's list: {took:?}");
        assert!(took < Duration::from_secs(2), "{took:?}");
        // A file beside it is none of ours.
        std::fs::write(node.machine.dev_root().join("loop7"), "").unwrap();
        std::fs::remove_file(&file).unwrap();
        node.until(NVIDIA_GPU, 7).await;
    }
    // A device root that was made again is watched too.
    let (root, old) = (node.machine.dev_root(), node.path("old"));
    std::fs::rename(&root, &old).unwrap();
    std::fs::create_dir(&root).unwrap();
    node.until(NVIDIA_GPU, 0).await;
    for name in ["nvidia3", "nvidiactl", "nvidia-uvm"] {
        std::fs::write(root.join(name), "").unwrap();
    }
    node.until(NVIDIA_GPU, 1).await;
    daemon.stop().await;
}

#[tokio::test]
async fn where_a_runtime_makes_the_nodes_their_absence_here_means_nothing() {
    let mut node = TestNode::new(NodeSpec::new("runtime"));
    node.options.device_list_strategy = vec![DeviceListStrategy::Envvar];
    let _kubelet = node.kubelet().await;
    std::fs::remove_file(node.machine.dev_root().join("nvidia3")).unwrap();
    let daemon = node.daemon();
    node.until(NVIDIA_GPU, 8).await;
    daemon.stop().await;
}

#[tokio::test]
async fn a_link_that_goes_down_takes_its_nic_out_and_three_good_polls_bring_it_back() {
    let node = TestNode::new(NodeSpec::new("link"));
    let (_kubelet, daemon) = node.start(RDMA, 400).await;
    node.machine.port_down(2).unwrap();
    node.until(RDMA, 300).await;
    node.machine.port_up(2).unwrap();
    node.until(RDMA, 400).await;
    node.until(NVIDIA_GPU, 8).await;
    daemon.stop().await;
}

#[tokio::test]
async fn a_nic_and_a_virtual_function_that_pods_have_in_their_own_namespace_stay_reported() {
    let node = TestNode::new(NodeSpec { vfs_per_nic: 2, ..NodeSpec::new("lent") });
    let ids: Vec<DeviceId> =
        node.machine.nic_addresses().iter().map(|at| DeviceId::parse(&at.to_string()).unwrap()).collect();
    // One pod has the last physical function, lent since before the daemon started; another one the first virtual function.
    let (pf, vf) = (ids.len() - 3, 1);
    node.machine.lend_nic(pf).unwrap();
    node.handoff.in_use.lock().unwrap().insert(RDMA.into(), [ids[pf].clone()].into());
    node.handoff.functions.lock().unwrap().insert(ids[vf].clone());
    let (_kubelet, daemon) = (node.kubelet().await, node.daemon());
    let functions = ids.len() / 3;
    node.until(RDMA, functions * 100).await;
    let why = || node.reason(ids[pf].as_str());
    let is_away = || why().contains("another network namespace");
    until("Allocate and the scheduler give the NIC to no other pod", is_away).await;
    let cdi = || node.cdi("rdma");
    assert!(cdi().contains(ids[vf].as_str()));
    node.machine.lend_nic(vf).unwrap();
    // Another change shows that a scan has been since.
    node.machine.remove(0).unwrap();
    node.until(NVIDIA_GPU, 7).await;
    assert!(cdi().contains(ids[vf].as_str()), "a container that restarts asks for this name again");
    assert_eq!(
        node.count(RDMA).await,
        functions * 100,
        "the kubelet counts the ids as those of the pods that have them"
    );
    node.machine.return_nic(pf).unwrap();
    until("the NIC takes pods again", || why().is_empty()).await;
    assert_eq!(node.count(RDMA).await, functions * 100);
    daemon.stop().await;
}

/// Which device node is named for which NICs in the CDI file; the one that all share is left out.
fn owners(node: &TestNode) -> BTreeMap<String, BTreeSet<String>> {
    let spec = node.cdi_spec("rdma");
    let mut owners: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for device in spec["devices"].as_array().unwrap() {
        for path in device["containerEdits"]["deviceNodes"].as_array().unwrap().iter().map(|node| &node["path"]) {
            let path = path.as_str().unwrap().to_owned();
            owners.entry(path).or_default().insert(device["name"].as_str().unwrap().to_owned());
        }
    }
    owners.remove("/dev/infiniband/rdma_cm");
    owners
}

#[tokio::test]
async fn a_held_nic_that_dies_takes_no_pod_and_loses_its_node_to_the_next_that_has_it() {
    let mut node = TestNode::new(NodeSpec::new("dies"));
    node.options.timings.rescan = Duration::from_millis(100);
    let ids: Vec<DeviceId> =
        node.machine.nic_addresses().iter().map(|at| DeviceId::parse(&at.to_string()).unwrap()).collect();
    node.handoff.in_use.lock().unwrap().insert(RDMA.into(), ids[..3].iter().cloned().collect());
    let (_kubelet, daemon) = node.start(RDMA, 400).await;
    let of = |number: u32| owners(&node).remove(&format!("/dev/infiniband/uverbs{number}")).unwrap_or_default();
    let one = |nic: usize| BTreeSet::from([ids[nic].to_string()]);
    assert_eq!([of(0), of(1)], [one(0), one(1)]);
    // As its reset does: both unregister, and only the second comes back, under the first one's number.
    node.machine.unregister_nic(0).unwrap();
    node.machine.unregister_nic(1).unwrap();
    node.until(RDMA, 200).await;
    node.machine.register_nic(1).unwrap();
    node.until(RDMA, 300).await;
    until("one device node has one owner", || of(0) == one(1)).await;
    let devices = node.handoff.inventory.lock().unwrap().devices.clone();
    tells(node.reason(ids[0].as_str()), ["left the machine"]);
    let numbers: Vec<i32> = ids.iter().map(|id| devices[id].minor).collect();
    assert_eq!(numbers, [0, 1, 2, 3], "the name of the dead NIC means no other one");
    // The whole function goes, and a daemon that starts now knows it from the CDI file and from its pod alone.
    node.machine.unplug_nic(0).unwrap();
    node.machine.unregister_nic(2).unwrap();
    node.until(RDMA, 200).await;
    daemon.stop().await;
    let daemon = node.daemon();
    node.until(RDMA, 200).await;
    assert!(owners(&node).values().all(|owners| owners.len() == 1), "{:?}", owners(&node));
    node.machine.register_nic(2).unwrap();
    node.until(RDMA, 300).await;
    assert_eq!([of(0), of(1)], [one(1), one(2)]);
    daemon.stop().await;
}

#[tokio::test]
async fn an_unreadable_nic_does_not_hide_the_others() {
    let node = TestNode::new(NodeSpec::new("unreadable"));
    let class = node.machine.sysfs_root().join("class/infiniband");
    let first = std::fs::read_dir(&class).unwrap().flatten().map(|entry| entry.path()).min().unwrap();
    let broken = class.join("mlx5_broken");
    std::fs::create_dir(&broken).unwrap();
    assert!(first.exists());
    let (_kubelet, daemon) = node.start(RDMA, 400).await;
    daemon.stop().await;
}

#[tokio::test]
async fn a_broken_nvml_hides_no_nic_and_is_waited_for_when_asked_to() {
    let mut node = TestNode::new(NodeSpec::new("broken"));
    node.machine.fail_start(NvmlReturn::DriverNotLoaded).unwrap();
    tells(node.daemon().error().await, ["driver is not loaded", "--fail-on-init-error=false"]);
    node.options.fail_on_init_error = false;
    node.options.timings.nvml_retry = Duration::from_millis(100);
    let (_kubelet, daemon) = node.start(RDMA, 400).await;
    assert_eq!(node.count(NVIDIA_GPU).await, 0);
    node.machine.fail_start(NvmlReturn::Success).unwrap();
    node.until(NVIDIA_GPU, 8).await;
    daemon.stop().await;
}

#[tokio::test]
async fn an_nvml_that_hangs_takes_every_gpu_out_and_no_nic_until_it_answers() {
    let mut node = TestNode::new(NodeSpec::new("hangs"));
    node.options.timings.nvml_deadline = Duration::from_millis(500);
    node.options.timings.nvml_retry = Duration::from_millis(100);
    let (_kubelet, daemon) = node.start(NVIDIA_GPU, 8).await;
    (0..8).for_each(|gpu| node.machine.wedge(gpu).unwrap());
    node.until(NVIDIA_GPU, 0).await;
    node.machine.port_down(2).unwrap();
    node.until(RDMA, 300).await;
    assert!(daemon.runs(), "a process with a call that hangs in the kernel could not end, nor let another one begin");
    (0..8).for_each(|gpu| node.machine.release(gpu).unwrap());
    node.until(NVIDIA_GPU, 8).await;
    daemon.stop().await;
}

#[tokio::test]
async fn a_driver_reloaded_under_the_daemon_takes_its_gpus_out_and_brings_them_back() {
    let mut node = TestNode::new(NodeSpec::new("reload"));
    node.options.fail_on_init_error = false;
    node.options.timings.nvml_retry = Duration::from_millis(100);
    let (_kubelet, daemon) = node.start(NVIDIA_GPU, 8).await;
    // The library of the new driver is there, its kernel modules are not yet.
    node.machine.fail_start(NvmlReturn::LibRmVersionMismatch).unwrap();
    node.machine.fail_calls(NvmlReturn::LibRmVersionMismatch).unwrap();
    node.until(NVIDIA_GPU, 0).await;
    assert_eq!(node.count(RDMA).await, 400, "the NICs have another driver");
    tells(node.reason(&node.machine.gpu_uuids()[0]), ["version"]);
    node.machine.fail_start(NvmlReturn::Success).unwrap();
    node.machine.fail_calls(NvmlReturn::Success).unwrap();
    node.until(NVIDIA_GPU, 8).await;
    node.machine.xid(3, 79).unwrap();
    node.until(NVIDIA_GPU, 7).await;
    daemon.stop().await;
}

/// Files that the CDI spec mounts as the library that CUDA programs load.
fn libcuda(node: &TestNode) -> BTreeSet<String> {
    let spec = node.cdi_spec("gpu");
    let mounts = spec["containerEdits"]["mounts"].as_array().unwrap().iter();
    let of_cuda = mounts.filter(|mount| mount["containerPath"].as_str().unwrap().ends_with("/libcuda.so.1"));
    of_cuda.map(|mount| mount["hostPath"].as_str().unwrap().rsplit('/').next().unwrap().to_owned()).collect()
}

/// As a package manager leaves a node until it boots: NVML and the driver in the kernel are those of before.
#[tokio::test]
async fn a_driver_updated_under_the_daemon_takes_its_gpus_out_until_it_is_loaded() {
    let node = TestNode::new(NodeSpec::new("updated"));
    let (old, new) = ("570.133.20", "580.65.06");
    let named = |version: &str| BTreeSet::from([format!("libcuda.so.{version}")]);
    let (_kubelet, daemon) = node.start(NVIDIA_GPU, 8).await;
    assert_eq!(libcuda(&node), named(old));
    node.machine.update_driver(new).unwrap();
    node.until(NVIDIA_GPU, 0).await;
    assert_eq!(node.count(RDMA).await, 400, "the NICs have another driver");
    let id = node.machine.gpu_uuids()[0].clone();
    let says = |words: &[&str]| words.iter().all(|word| node.reason(&id).contains(word));
    assert!(says(&[old, new, "reboot"]) && !says(&["gone"]));
    assert_eq!(libcuda(&node), named(old), "a container that starts again gets what it had");
    node.machine.update_driver(old).unwrap();
    node.until(NVIDIA_GPU, 8).await;
    // The old library goes with its package, and the next daemon knows from the spec alone what was named.
    node.machine.update_driver(new).unwrap();
    node.until(NVIDIA_GPU, 0).await;
    let library = node.machine.driver_root().join("usr/lib64").join(format!("libcuda.so.{old}"));
    std::fs::remove_file(library).unwrap();
    until("it is said that the file is gone", || says(&[old, new, "gone"])).await;
    daemon.stop().await;
    node.handoff.inventory.lock().unwrap().devices.clear();
    let daemon = node.daemon();
    until("the next daemon says it too", || says(&[old, new, "gone"])).await;
    assert_eq!(libcuda(&node), named(old));
    node.machine.load_driver(new).unwrap();
    node.until(NVIDIA_GPU, 8).await;
    assert_eq!(libcuda(&node), named(new));
    daemon.stop().await;
}

#[tokio::test]
async fn a_gpu_that_is_taken_out_and_put_back_leaves_the_list_and_returns_to_it() {
    let node = TestNode::new(NodeSpec::new("hotplug"));
    let (_kubelet, daemon) = node.start(NVIDIA_GPU, 8).await;
    node.machine.remove(7).unwrap();
    node.until(NVIDIA_GPU, 7).await;
    node.machine.add(7).unwrap();
    node.until(NVIDIA_GPU, 8).await;
    daemon.stop().await;
}

#[tokio::test]
async fn a_gpu_that_is_split_live_is_offered_as_its_instances() {
    let mut node = TestNode::new(NodeSpec::new("mig"));
    node.options.mig_strategy = MigStrategy::Mixed;
    let (_kubelet, daemon) = node.start(NVIDIA_GPU, 8).await;
    let parts = node.machine.mig(3, &["3g.40gb", "1g.10gb", "1g.10gb"]).unwrap();
    node.until("nvidia.com/mig-1g.10gb", 2).await;
    node.until("nvidia.com/mig-3g.40gb", 1).await;
    node.until(NVIDIA_GPU, 7).await;
    let part = DeviceId::parse(&parts[0]).unwrap();
    let inventory = node.handoff.inventory.lock().unwrap().clone();
    let parent = inventory.devices[&part].parent.as_ref().unwrap().to_string();
    assert_eq!(parent, node.machine.gpu_uuids()[3]);
    node.machine.xid(3, 79).unwrap();
    node.until("nvidia.com/mig-1g.10gb", 0).await;
    daemon.stop().await;
}

#[tokio::test]
async fn a_device_in_use_is_never_dropped_from_the_list() {
    let node = TestNode::new(NodeSpec::new("used"));
    let uuid = node.machine.gpu_uuids()[6].clone();
    let id = DeviceId::parse(&uuid).unwrap();
    node.handoff.in_use.lock().unwrap().insert(NVIDIA_GPU.into(), [id.clone()].into());
    let (_kubelet, daemon) = node.start(NVIDIA_GPU, 8).await;
    node.machine.remove(6).unwrap();
    node.until(NVIDIA_GPU, 7).await;
    let device = node.handoff.inventory.lock().unwrap().devices[&id].clone();
    assert!(!device.healthy && device.reason.is_some(), "{device:?}");
    let cdi = node.cdi("gpu");
    assert!(cdi.contains(&uuid), "its name stays for a restart of the container");
    daemon.stop().await;
}

/// A pod has a GPU behind another one's id, as the kubelet chose it: when that GPU fails, the other id is out of service, and the kubelet
/// can still give as many away as there are free.
#[tokio::test]
async fn a_failing_gpu_takes_the_id_with_it_that_stands_for_it() {
    let mut node = TestNode::new(NodeSpec::new("behind"));
    node.options.gpu_sharing = false;
    let uuids = node.machine.gpu_uuids();
    let failing = DeviceId::parse(&uuids[2]).unwrap();
    node.handoff.in_use.lock().unwrap().insert(NVIDIA_GPU.into(), [failing.clone()].into());
    node.handoff.behind.lock().unwrap().insert(NVIDIA_GPU.into(), [(uuids[5].as_str().into(), failing)].into());
    let (_kubelet, daemon) = node.start(NVIDIA_GPU, 8).await;
    node.machine.xid(2, 79).unwrap();
    node.until(NVIDIA_GPU, 7).await;
    let mut unhealthy = Vec::new();
    for socket in node.sockets() {
        let mut client = DevicePluginClient::new(dial(&socket, PATIENCE).await.unwrap());
        let list = client.list_and_watch(Empty {}).await.unwrap().into_inner().message().await.unwrap().unwrap();
        unhealthy.extend(list.devices.into_iter().filter(|of| of.health != "Healthy").map(|of| of.id));
    }
    assert_eq!(unhealthy, [uuids[5].clone()]);
    daemon.stop().await;
}

#[tokio::test]
async fn an_xid_is_in_the_next_list_message_without_a_poll_or_a_scan() {
    let mut node = TestNode::new(NodeSpec::new("fast"));
    // The bench measures the time; here nothing but the event can bring it.
    node.options.timings.health_poll = Duration::from_secs(3600);
    node.options.timings.rescan = Duration::from_secs(3600);
    // One thread is daemon and kubelet here, and an unoptimised build takes its time over thousands of share ids.
    node.options.gpu_sharing = false;
    node.options.periods.recovery_window = Duration::from_secs(60);
    let (_kubelet, daemon) = node.start(NVIDIA_GPU, 8).await;
    let mut took = Vec::new();
    // The list of eight ids is the whole GPUs'.
    for socket in node.sockets() {
        let mut client = DevicePluginClient::new(dial(&socket, PATIENCE).await.unwrap());
        let mut lists = client.list_and_watch(Empty {}).await.unwrap().into_inner();
        if lists.message().await.unwrap().unwrap().devices.len() != 8 {
            continue;
        }
        for gpu in 0..8 {
            let start = baton::runtime::clock::mono();
            node.machine.xid(gpu, 79).unwrap();
            let list = tokio::time::timeout(PATIENCE, lists.message()).await.unwrap().unwrap().unwrap();
            took.push(baton::runtime::clock::mono() - start);
            let sick = list.devices.iter().filter(|device| device.health == "Unhealthy").count();
            assert_eq!((list.devices.len(), sick), (8, gpu + 1), "always the full list");
        }
    }
    took.sort();
    println!("XID to the list message: best {:?}, median {:?}, worst {:?}", took[0], took[4], took[7]);
    daemon.stop().await;
}

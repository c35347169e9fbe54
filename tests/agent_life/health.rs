//! Devices that go out of service and come back, as the kubelet sees it.

use std::time::Duration;

use baton::agent::kubelet::register::dial;
use baton::agent::options::MigStrategy;
use baton::contract::DeviceId;
use baton::contract::deviceplugin::Empty;
use baton::contract::deviceplugin::device_plugin_client::DevicePluginClient;
use baton::contract::key::{NVIDIA_GPU, RDMA};
use baton::sim::hardware::{NodeSpec, NvmlReturn, Shape};

use super::rig::{PATIENCE, Rig};

#[tokio::test]
async fn four_gpus_of_which_one_then_two_fail_and_recover_are_offered_as_4_3_4_2_3_4() {
    let rig = Rig::new(NodeSpec::new("four").shaped(Shape::Pairs));
    let _kubelet = rig.kubelet().await;
    let daemon = rig.daemon();
    rig.until(NVIDIA_GPU, 4).await;
    rig.machine.xid(1, 48).unwrap();
    let took = rig.until(NVIDIA_GPU, 3).await;
    println!("XID to the kubelet's list: {took:?}");
    rig.until("koordinator.sh/gpu-core", 300).await;
    rig.until(NVIDIA_GPU, 4).await;
    rig.machine.lose(0).unwrap();
    rig.machine.lose(2).unwrap();
    rig.until(NVIDIA_GPU, 2).await;
    rig.machine.find(0).unwrap();
    rig.until(NVIDIA_GPU, 3).await;
    rig.machine.find(2).unwrap();
    rig.until(NVIDIA_GPU, 4).await;
    daemon.stop().await;
}

#[tokio::test]
async fn an_application_error_takes_nothing_out_of_service() {
    let mut rig = Rig::new(NodeSpec::new("app"));
    rig.options.periods.recovery_window = Duration::from_secs(60);
    let _kubelet = rig.kubelet().await;
    let daemon = rig.daemon();
    rig.until(NVIDIA_GPU, 8).await;
    // NVML gives events that wait together the last one's XID: the next comes when this one has been taken.
    let waits = || rig.machine.nvml_calls().unwrap().get("nvmlEventSetWait_v2").copied().unwrap_or(0);
    let before = waits();
    rig.machine.xid(0, 31).unwrap();
    super::rig::until("the event is taken and the next is waited for", || waits() >= before + 2).await;
    rig.machine.xid(1, 79).unwrap();
    rig.until(NVIDIA_GPU, 7).await;
    assert!(rig.offered().await[NVIDIA_GPU].contains(&rig.machine.gpu_uuids()[0]));
    daemon.stop().await;
}

#[tokio::test]
async fn a_restarted_daemon_knows_the_sick_gpus_until_they_recover_or_the_node_reboots() {
    let mut rig = Rig::new(NodeSpec::new("again"));
    rig.options.periods.recovery_window = Duration::from_secs(3600);
    let _kubelet = rig.kubelet().await;
    let daemon = rig.daemon();
    rig.until(NVIDIA_GPU, 8).await;
    rig.machine.xid(1, 79).unwrap();
    rig.until(NVIDIA_GPU, 7).await;
    let kept = rig.options.paths.state_dir.join("health.json");
    let is_kept = || std::fs::read_to_string(&kept).is_ok_and(|text| text.contains("\"xid\":79"));
    super::rig::until("what is known is kept", is_kept).await;
    daemon.stop().await;
    let daemon = rig.daemon();
    let sick = DeviceId::parse(&rig.machine.gpu_uuids()[1]).unwrap();
    let refused = || rig.handoff.inventory.lock().unwrap().devices.get(&sick).is_some_and(|gpu| gpu.reason.is_some());
    super::rig::until("the sick one is known", refused).await;
    rig.until(NVIDIA_GPU, 7).await;
    daemon.stop().await;
    rig.machine.reboot().unwrap();
    let daemon = rig.daemon();
    rig.until(NVIDIA_GPU, 8).await;
    daemon.stop().await;
}

#[tokio::test]
async fn gpus_that_a_restarted_daemon_cannot_see_are_out_of_service_and_not_gone() {
    let mut rig = Rig::new(NodeSpec::new("unseen"));
    rig.options.fail_on_init_error = false;
    let _kubelet = rig.kubelet().await;
    let daemon = rig.daemon();
    rig.until(NVIDIA_GPU, 8).await;
    daemon.stop().await;
    let out_of_service = |reason: &str| {
        let inventory = rig.handoff.inventory.lock().unwrap();
        let gpus = rig.machine.gpu_uuids();
        let gpus = gpus.iter().filter_map(|uuid| inventory.devices.get(&DeviceId::parse(uuid).unwrap()));
        gpus.filter(|gpu| gpu.reason.as_ref().is_some_and(|why| why.contains(reason))).count()
    };
    // One fell off the bus while no daemon ran; NVML does not tell its UUID any more.
    rig.machine.lose(2).unwrap();
    let daemon = rig.daemon();
    super::rig::until("seven answer", || rig.handoff.inventory.lock().unwrap().devices.len() >= 8).await;
    rig.until(NVIDIA_GPU, 7).await;
    assert_eq!(out_of_service("fell off the bus"), 1);
    rig.machine.find(2).unwrap();
    rig.until(NVIDIA_GPU, 8).await;
    daemon.stop().await;
    // The driver is being replaced, then the node boots and the driver is not loaded yet.
    for (answer, boots) in [(NvmlReturn::LibRmVersionMismatch, false), (NvmlReturn::DriverNotLoaded, true)] {
        rig.machine.fail_start(answer).unwrap();
        if boots {
            rig.machine.reboot().unwrap();
        }
        let daemon = rig.daemon();
        super::rig::until("all are known and out of service", || out_of_service("driver") == 8).await;
        rig.until(NVIDIA_GPU, 0).await;
        rig.machine.fail_start(NvmlReturn::Success).unwrap();
        rig.until(NVIDIA_GPU, 8).await;
        daemon.stop().await;
    }
}

#[tokio::test]
async fn an_xid_with_instance_ids_that_mean_nothing_is_about_the_whole_gpu() {
    let mut rig = Rig::new(NodeSpec::new("zeros"));
    rig.options.periods.recovery_window = Duration::from_secs(60);
    rig.options.mig_strategy = MigStrategy::None;
    // Split, and offered as a whole: nobody holds an instance of it.
    rig.machine.mig(2, &["3g.40gb", "3g.40gb"]).unwrap();
    let _kubelet = rig.kubelet().await;
    let daemon = rig.daemon();
    rig.until(NVIDIA_GPU, 8).await;
    // NVIDIA's mock library fills the ids with zeros where a GPU is not split.
    rig.machine.xid_on_instance(1, 79, (0, 0)).unwrap();
    rig.until(NVIDIA_GPU, 7).await;
    assert!(!rig.offered().await[NVIDIA_GPU].contains(&rig.machine.gpu_uuids()[1]));
    rig.machine.xid_on_instance(2, 79, (1, 0)).unwrap();
    rig.until(NVIDIA_GPU, 6).await;
    daemon.stop().await;
}

#[tokio::test]
async fn gpus_wait_for_their_fabric_and_are_offered_when_it_has_them() {
    let mut rig = Rig::new(NodeSpec::new("fabric"));
    rig.options.gpu_sharing = false;
    // As after a boot, while the fabric manager is still at work.
    for gpu in 0..8 {
        rig.machine.fabric(gpu, 2, 0).unwrap();
    }
    let _kubelet = rig.kubelet().await;
    let daemon = rig.daemon();
    super::rig::until("the machine is known", || !rig.handoff.inventory.lock().unwrap().devices.is_empty()).await;
    let id = DeviceId::parse(&rig.machine.gpu_uuids()[0]).unwrap();
    let why = rig.handoff.inventory.lock().unwrap().devices[&id].reason.clone();
    assert!(why.as_ref().is_some_and(|why| why.contains("fabric")), "{why:?}");
    rig.until(NVIDIA_GPU, 0).await;
    for gpu in 0..8 {
        rig.machine.fabric(gpu, 3, 0).unwrap();
    }
    rig.until(NVIDIA_GPU, 8).await;
    daemon.stop().await;
}

#[tokio::test]
async fn a_gpu_without_events_is_polled() {
    let rig = Rig::new(NodeSpec::new("polled"));
    rig.machine.support_events(false).unwrap();
    let _kubelet = rig.kubelet().await;
    let daemon = rig.daemon();
    rig.until(NVIDIA_GPU, 8).await;
    rig.machine.fault(5, NvmlReturn::GpuIsLost).unwrap();
    rig.until(NVIDIA_GPU, 7).await;
    daemon.stop().await;
}

#[tokio::test]
async fn a_link_that_goes_down_takes_its_nic_out_and_three_good_polls_bring_it_back() {
    let rig = Rig::new(NodeSpec::new("link"));
    let _kubelet = rig.kubelet().await;
    let daemon = rig.daemon();
    rig.until(RDMA, 400).await;
    rig.machine.set_port(2, false).unwrap();
    rig.until(RDMA, 300).await;
    rig.machine.set_port(2, true).unwrap();
    rig.until(RDMA, 400).await;
    rig.until(NVIDIA_GPU, 8).await;
    daemon.stop().await;
}

#[tokio::test]
async fn a_nic_and_a_virtual_function_that_pods_have_in_their_own_namespace_stay_reported() {
    let rig = Rig::new(NodeSpec { vfs_per_nic: 2, ..NodeSpec::new("lent") });
    let ids: Vec<DeviceId> =
        rig.machine.nic_addresses().iter().map(|at| DeviceId::parse(&at.to_string()).unwrap()).collect();
    // One pod has the last physical function, lent since before the daemon started; another one the first virtual function.
    let (pf, vf) = (ids.len() - 3, 1);
    rig.machine.lend_nic(pf).unwrap();
    rig.handoff.in_use.lock().unwrap().insert(RDMA.into(), [ids[pf].clone()].into());
    rig.handoff.functions.lock().unwrap().insert(ids[vf].clone());
    let _kubelet = rig.kubelet().await;
    let daemon = rig.daemon();
    let functions = ids.len() / 3;
    rig.until(RDMA, functions * 100).await;
    let known = |id: &DeviceId| rig.handoff.inventory.lock().unwrap().devices.get(id).is_some_and(|d| d.healthy);
    assert!(known(&ids[pf]), "lent, not out of order");
    let cdi = || std::fs::read_to_string(rig.path("cdi/koordinator.sh-rdma.json")).unwrap();
    assert!(cdi().contains(ids[vf].as_str()));
    rig.machine.lend_nic(vf).unwrap();
    // Another change shows that a scan has been since.
    rig.machine.remove(0).unwrap();
    rig.until(NVIDIA_GPU, 7).await;
    assert!(cdi().contains(ids[vf].as_str()), "a container that restarts asks for this name again");
    assert_eq!(rig.count(RDMA).await, functions * 100);
    daemon.stop().await;
}

#[tokio::test]
async fn an_unreadable_nic_does_not_hide_the_others() {
    let rig = Rig::new(NodeSpec::new("unreadable"));
    let class = rig.machine.sysfs_root().join("class/infiniband");
    let first = std::fs::read_dir(&class).unwrap().flatten().map(|entry| entry.path()).min().unwrap();
    let broken = class.join("mlx5_broken");
    std::fs::create_dir(&broken).unwrap();
    assert!(first.exists());
    let _kubelet = rig.kubelet().await;
    let daemon = rig.daemon();
    rig.until(RDMA, 400).await;
    daemon.stop().await;
}

#[tokio::test]
async fn a_broken_nvml_hides_no_nic_and_is_waited_for_when_asked_to() {
    let mut rig = Rig::new(NodeSpec::new("broken"));
    rig.machine.fail_start(NvmlReturn::DriverNotLoaded).unwrap();
    let error = rig.daemon().error().await;
    assert!(error.contains("driver is not loaded") && error.contains("--fail-on-init-error=false"), "{error}");
    rig.options.fail_on_init_error = false;
    rig.options.periods.nvml_retry = Duration::from_millis(100);
    let _kubelet = rig.kubelet().await;
    let daemon = rig.daemon();
    rig.until(RDMA, 400).await;
    assert_eq!(rig.count(NVIDIA_GPU).await, 0);
    rig.machine.fail_start(NvmlReturn::Success).unwrap();
    rig.until(NVIDIA_GPU, 8).await;
    daemon.stop().await;
}

#[tokio::test]
async fn a_driver_that_is_reloaded_under_the_daemon_takes_its_gpus_out_and_brings_them_back() {
    let mut rig = Rig::new(NodeSpec::new("reload"));
    rig.options.fail_on_init_error = false;
    rig.options.periods.nvml_retry = Duration::from_millis(100);
    let _kubelet = rig.kubelet().await;
    let daemon = rig.daemon();
    rig.until(NVIDIA_GPU, 8).await;
    // The library of the new driver is there, its kernel modules are not yet.
    rig.machine.fail_start(NvmlReturn::LibRmVersionMismatch).unwrap();
    rig.machine.fail_calls(NvmlReturn::LibRmVersionMismatch).unwrap();
    rig.until(NVIDIA_GPU, 0).await;
    assert_eq!(rig.count(RDMA).await, 400, "the NICs have another driver");
    let id = DeviceId::parse(&rig.machine.gpu_uuids()[0]).unwrap();
    let why = rig.handoff.inventory.lock().unwrap().devices[&id].reason.clone();
    assert!(why.as_ref().is_some_and(|why| why.contains("version")), "{why:?}");
    rig.machine.fail_start(NvmlReturn::Success).unwrap();
    rig.machine.fail_calls(NvmlReturn::Success).unwrap();
    rig.until(NVIDIA_GPU, 8).await;
    rig.machine.xid(3, 79).unwrap();
    rig.until(NVIDIA_GPU, 7).await;
    daemon.stop().await;
}

#[tokio::test]
async fn a_gpu_that_is_taken_out_and_put_back_leaves_the_list_and_returns_to_it() {
    let rig = Rig::new(NodeSpec::new("hotplug"));
    let _kubelet = rig.kubelet().await;
    let daemon = rig.daemon();
    rig.until(NVIDIA_GPU, 8).await;
    rig.machine.remove(7).unwrap();
    rig.until(NVIDIA_GPU, 7).await;
    rig.machine.add(7).unwrap();
    rig.until(NVIDIA_GPU, 8).await;
    daemon.stop().await;
}

#[tokio::test]
async fn a_gpu_that_is_split_live_is_offered_as_its_instances() {
    let mut rig = Rig::new(NodeSpec::new("mig"));
    rig.options.mig_strategy = MigStrategy::Mixed;
    let _kubelet = rig.kubelet().await;
    let daemon = rig.daemon();
    rig.until(NVIDIA_GPU, 8).await;
    let parts = rig.machine.mig(3, &["3g.40gb", "1g.10gb", "1g.10gb"]).unwrap();
    rig.until("nvidia.com/mig-1g.10gb", 2).await;
    rig.until("nvidia.com/mig-3g.40gb", 1).await;
    rig.until(NVIDIA_GPU, 7).await;
    let part = DeviceId::parse(&parts[0]).unwrap();
    let inventory = rig.handoff.inventory.lock().unwrap().clone();
    let parent = inventory.devices[&part].parent.as_ref().unwrap().to_string();
    assert_eq!(parent, rig.machine.gpu_uuids()[3]);
    rig.machine.xid(3, 79).unwrap();
    rig.until("nvidia.com/mig-1g.10gb", 0).await;
    daemon.stop().await;
}

#[tokio::test]
async fn a_device_in_use_is_never_dropped_from_the_list() {
    let rig = Rig::new(NodeSpec::new("used"));
    let uuid = rig.machine.gpu_uuids()[6].clone();
    let id = DeviceId::parse(&uuid).unwrap();
    rig.handoff.in_use.lock().unwrap().insert(NVIDIA_GPU.into(), [id.clone()].into());
    let _kubelet = rig.kubelet().await;
    let daemon = rig.daemon();
    rig.until(NVIDIA_GPU, 8).await;
    rig.machine.remove(6).unwrap();
    rig.until(NVIDIA_GPU, 7).await;
    let device = rig.handoff.inventory.lock().unwrap().devices[&id].clone();
    assert!(!device.healthy && device.reason.is_some(), "{device:?}");
    let cdi = std::fs::read_to_string(rig.path("cdi/koordinator.sh-gpu.json")).unwrap();
    assert!(cdi.contains(&uuid), "its name stays for a restart of the container");
    daemon.stop().await;
}

#[tokio::test]
async fn an_xid_is_in_the_next_list_message_without_a_poll_or_a_scan() {
    let mut rig = Rig::new(NodeSpec::new("fast"));
    // The bench measures the time; here nothing but the event can bring it.
    rig.options.periods.health_poll = Duration::from_secs(3600);
    rig.options.periods.rescan = Duration::from_secs(3600);
    // One thread is daemon and kubelet here, and an unoptimised build takes its time over thousands of share ids.
    rig.options.gpu_sharing = false;
    rig.options.periods.recovery_window = Duration::from_secs(60);
    let _kubelet = rig.kubelet().await;
    let daemon = rig.daemon();
    rig.until(NVIDIA_GPU, 8).await;
    let mut took = Vec::new();
    // The list of eight ids is the whole GPUs'.
    for socket in rig.sockets() {
        let mut client = DevicePluginClient::new(dial(&socket, PATIENCE).await.unwrap());
        let mut lists = client.list_and_watch(Empty {}).await.unwrap().into_inner();
        if lists.message().await.unwrap().unwrap().devices.len() != 8 {
            continue;
        }
        for gpu in 0..8 {
            let start = baton::runtime::clock::mono();
            rig.machine.xid(gpu, 79).unwrap();
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

//! What each target does with its input, shared with `tests/fuzz_corpus.rs`, which runs the seeds through it on stable Rust.
//! Beside "no panic", each states what must hold for whatever was accepted.
#![allow(dead_code)] // each target uses one

use baton::contract::inventory::Device;
use baton::contract::{
    AgentStatus, ContainerDevices, DeviceAllocation, DeviceId, LockFormat, LockRead, LockValue, Quantity, deviceplugin,
    hint, key, podresources,
};
use baton::decide::devices::NodePool;
use baton::hardware::gpu::GpuScan;
use baton::hardware::nic::PortState;
use baton::hardware::{Bdf, NullProvider, Roots, machine, nodes, pci};
use prost::Message;

/// Every annotation that a daemon reads, and what stands inside them.
pub fn annotation(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    if let Ok(allocation) = DeviceAllocation::parse(text) {
        assert!(text.len() <= key::MAX_ANNOTATION, "a longer annotation is refused");
        let printed = allocation.print();
        if printed.len() <= key::MAX_ANNOTATION {
            let again = DeviceAllocation::parse(&printed).expect("what is printed can be read");
            assert_eq!(again.devices, allocation.devices);
        }
    }
    if let Ok(Some(split)) = ContainerDevices::parse(text) {
        let printed = split.print();
        if printed.len() <= key::MAX_ANNOTATION {
            assert_eq!(ContainerDevices::parse(&printed).expect("what is printed can be read"), Some(split));
        }
    }
    let _ = hint::parse_hints(text);
    let _ = hint::parse_joint(text);
    let _ = hint::parse_partition(text);
    if let Some(status) = AgentStatus::parse(text) {
        assert_eq!(AgentStatus::parse(&status.print()), Some(status));
    }
    if let Ok(quantity) = text.parse::<Quantity>() {
        assert_eq!(quantity.to_string().parse::<Quantity>().map(Quantity::milli_value), Ok(quantity.milli_value()));
    }
    if let Ok(id) = DeviceId::parse(text) {
        assert_eq!(DeviceId::of_kubelet_id(&id.unit(99)), Ok(id), "an id and its units are distinct");
    }
    let _ = DeviceId::of_kubelet_id(text);
}

/// The node lock.
pub fn lock(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let read = LockRead::parse(Some(text));
    assert_eq!(read.raw(), Some(text), "compare-and-swap needs the exact value");
    let LockRead::Held { value, .. } = read else { return };
    assert!(value.matches_bind_timestamp(&value.bind_timestamp()) || value.bind_timestamp().len() > 20);
    for format in [LockFormat::Uid, LockFormat::Triple, LockFormat::Timestamp] {
        let again = LockValue::parse(&value.print(format)).expect("what is printed can be read");
        assert_eq!(again.time, value.time);
    }
    assert_eq!(LockValue::parse(&value.to_string()), Some(value));
}

/// The Device object, from its bytes to the scheduler's pool.
pub fn inventory(data: &[u8]) {
    let Ok(device) = serde_json::from_slice::<Device>(data) else { return };
    let (mut pool, _) = NodePool::from_device(&device);
    let _ = pool.update(&device);
    let printed = serde_json::to_vec(&device).expect("an object prints");
    let again: Device = serde_json::from_slice(&printed).expect("what is printed can be read");
    assert_eq!(again.spec, device.spec);
}

/// Files of `/sys`, `/proc` and recordings of NVML. The first byte chooses which, the rest is the contents.
pub fn sysfs(data: &[u8]) {
    let Some((kind, contents)) = data.split_first() else { return };
    if *kind == b'T' {
        return tree(contents);
    }
    let _ = pci::port_type(contents);
    let _ = serde_json::from_slice::<GpuScan>(contents);
    let Ok(text) = std::str::from_utf8(contents) else { return };
    let _ = PortState::parse(text);
    let _ = nodes::mig_minor(text);
    let _ = pci::ancestors(std::path::Path::new(text));
    if let Ok(address) = text.parse::<Bdf>() {
        assert_eq!(address.to_string().parse::<Bdf>().expect("what is printed can be read"), address);
    }
}

/// A machine with one NIC, every file of which has the same contents: it is still found.
fn tree(contents: &[u8]) {
    use std::os::unix::fs::symlink;
    let directory = tempfile::tempdir().expect("temporary directory");
    let root = directory.path();
    let switch = "devices/pci0000:3a/0000:3a:01.0";
    let device = root.join(switch).join("0000:3b:00.0");
    for (class, name) in [("infiniband", "mlx5_0"), ("infiniband_verbs", "uverbs0"), ("infiniband_mad", "umad0")] {
        let entry = device.join(class).join(name);
        std::fs::create_dir_all(entry.join("ports/1")).expect("directory");
        std::fs::create_dir_all(root.join("class").join(class)).expect("directory");
        let target = format!("../../{switch}/0000:3b:00.0/{class}/{name}");
        symlink(target, root.join("class").join(class).join(name)).expect("link");
        for file in ["ibdev", "node_guid", "fw_ver", "ports/1/state", "ports/1/phys_state", "ports/1/rate", "port"] {
            std::fs::write(entry.join(file), contents).expect("file");
        }
    }
    symlink("../../../0000:3b:00.0", device.join("infiniband/mlx5_0/device")).expect("link");
    for file in ["numa_node", "vendor", "device", "config", "../config"] {
        std::fs::write(device.join(file), contents).expect("file");
    }
    std::fs::create_dir_all(root.join("bus/pci/devices")).expect("directory");
    symlink(format!("../../../{switch}/0000:3b:00.0"), root.join("bus/pci/devices/0000:3b:00.0")).expect("link");
    std::fs::create_dir_all(root.join("driver/nvidia-caps")).expect("directory");
    std::fs::write(root.join("driver/nvidia-caps/mig-minors"), contents).expect("file");
    let roots = Roots { sysfs: root.into(), proc: root.into(), dev: root.into(), driver: root.into(), net: None };
    let found = machine::scan(&roots, &NullProvider).expect("the roots exist");
    assert_eq!(found.nics.len(), 1, "the NIC is found whatever its files say");
    let _ = nodes::mig_minors(&roots.proc_tree().expect("the root exists"), |_| true);
}

/// Messages of the kubelet's two APIs, as their services decode them.
pub fn grpc(data: &[u8]) {
    fn of<M: Message + Default + PartialEq + std::fmt::Debug>(data: &[u8]) -> Option<M> {
        let message = M::decode(data).ok()?;
        let again = M::decode(&message.encode_to_vec()[..]).expect("what is encoded can be decoded");
        assert_eq!(again, message);
        Some(message)
    }
    let _ = of::<deviceplugin::AllocateRequest>(data);
    let _ = of::<deviceplugin::PreferredAllocationRequest>(data);
    let _ = of::<deviceplugin::PreStartContainerRequest>(data);
    let _ = of::<deviceplugin::ListAndWatchResponse>(data);
    let _ = of::<deviceplugin::RegisterRequest>(data);
    let _ = of::<deviceplugin::AllocateResponse>(data);
    let _ = of::<podresources::ListPodResourcesResponse>(data);
    let _ = of::<podresources::GetPodResourcesResponse>(data);
    let _ = of::<podresources::AllocatableResourcesResponse>(data);
}

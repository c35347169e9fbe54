//! Nodes and pods in one line each.

use baton::contract::inventory::{DeviceLocation, DeviceSpec, VfGroup, VirtualFunction};
use baton::contract::{ContainerDevices, ContainerRequest};

use crate::prelude::*;

/// Bytes of every GPU's memory, as an H100 reports them.
pub const MEMORY: i64 = 81_559 << 20;

pub fn device(kind: DeviceType, id: &str, minor: i32, switch: &str, root: &str, numa: i32) -> DeviceInfo {
    let resources: &[(&str, &str)] = match kind {
        DeviceType::Gpu => &[(key::GPU_CORE, "100"), (key::GPU_MEMORY, "81559Mi"), (key::GPU_MEMORY_RATIO, "100")],
        _ => &[(key::RDMA, "100")],
    };
    let mut labels = BTreeMap::from([(key::MODEL.to_owned(), "H100".to_owned())]);
    if !switch.is_empty() {
        labels.insert(key::PCIE_SWITCH.to_owned(), switch.to_owned());
    }
    DeviceInfo {
        kind,
        labels,
        id: DeviceId::parse(id).unwrap(),
        minor,
        module_id: None,
        health: true,
        resources: resources.iter().map(|(name, q)| ((*name).to_owned(), q.parse().unwrap())).collect(),
        topology: Some(DeviceLocation { socket_id: 0, node_id: numa, pcie_id: root.to_owned(), bus_id: None }),
        vf_groups: Vec::new(),
        conditions: Vec::new(),
    }
}

pub fn gpu(minor: i32, switch: &str, root: &str, numa: i32) -> DeviceInfo {
    device(DeviceType::Gpu, &format!("GPU-{minor}"), minor, switch, root, numa)
}

pub fn nic(minor: i32, switch: &str, root: &str, numa: i32) -> DeviceInfo {
    device(DeviceType::Rdma, &format!("0000:{minor:02x}:00.0"), minor, switch, root, numa)
}

/// With that NVLink domain.
pub fn nvlinked(mut info: DeviceInfo, domain: &str) -> DeviceInfo {
    info.labels.insert(key::NVLINK_DOMAIN.to_owned(), domain.to_owned());
    info
}

pub fn with_vfs(mut info: DeviceInfo, fabric: &str, vfs: &[&str]) -> DeviceInfo {
    let vfs = vfs.iter().zip(0..).map(|(bus, minor)| VirtualFunction { minor, bus_id: DeviceId::parse(bus).unwrap() });
    let labels = BTreeMap::from([("fabric".to_owned(), fabric.to_owned())]);
    info.vf_groups.push(VfGroup { labels, vfs: vfs.collect() });
    info
}

pub fn mig(id: &str, parent: i32, profile: &str, switch: &str) -> DeviceInfo {
    let mut info = device(DeviceType::Gpu, id, parent, switch, "pci0", 0);
    info.labels.insert(key::MIG_PROFILE.to_owned(), profile.to_owned());
    info.labels.insert(key::PARENT.to_owned(), format!("GPU-{parent}"));
    info.resources = [(format!("{}{profile}", key::MIG_PREFIX), "1".parse().unwrap())].into();
    info
}

pub fn object(devices: Vec<DeviceInfo>) -> Device {
    Device::new("node-a", DeviceSpec { devices })
}

pub fn pool_of(devices: Vec<DeviceInfo>) -> NodePool {
    let (pool, skipped) = NodePool::from_device(&object(devices));
    assert_eq!(skipped, []);
    pool
}

/// 8 GPUs joined by NVLink and 4 NICs below `switches` switches, half of them on each of two NUMA nodes and root complexes.
pub fn machine(switches: i32) -> Vec<DeviceInfo> {
    let place = |at: i32, of: i32| {
        let switch = at * switches / of;
        let half = switch * 2 / switches;
        (format!("0000:{switch:02x}:01.0"), format!("pci{half}"), half)
    };
    let gpus = (0..8).map(|at| {
        let (switch, root, numa) = place(at, 8);
        nvlinked(gpu(at, &switch, &root, numa), "nvswitch")
    });
    let nics = (0..4).map(|at| {
        let (switch, root, numa) = place(at, 4);
        nic(at, &switch, &root, numa)
    });
    gpus.chain(nics).collect()
}

pub type Limits<'a> = &'a [(&'a str, &'a str)];

/// A pod with several containers.
pub fn pod(containers: &[(&str, ContainerKind, Limits<'_>)], wishes: Wishes) -> PodDeviceRequest {
    let judged: Vec<_> = containers
        .iter()
        .map(|(name, kind, limits)| {
            let limits = limits.iter().map(|(name, q)| (*name, q.parse().unwrap()));
            (*name, *kind, ContainerRequest::judge(limits).unwrap())
        })
        .collect();
    PodDeviceRequest::new(judged.iter().map(|(name, kind, request)| (*name, *kind, request)), wishes)
}

/// A pod with one container and no wishes.
pub fn ask(limits: Limits<'_>) -> PodDeviceRequest {
    wish(limits, None, None)
}

/// A pod with one container, `device-allocate-hint` and `device-joint-allocate`.
pub fn wish(limits: Limits<'_>, hint: Option<&str>, joint: Option<&str>) -> PodDeviceRequest {
    pod(&[("main", App, limits)], Wishes::parse(hint, joint, None).unwrap())
}

/// Picks and takes.
pub fn place(pool: &mut NodePool, request: &PodDeviceRequest) -> Result<Assignment, Reason> {
    let assignment = pick(pool, request)?;
    pool.take(&assignment.grant).unwrap();
    Ok(assignment)
}

/// The pool when these grants alone are held: when a pod leaves, the world counts its node again.
pub fn recounted<'a>(pool: &NodePool, held: impl IntoIterator<Item = &'a Grant>) -> NodePool {
    let mut left = pool.emptied();
    held.into_iter().for_each(|grant| left.take(grant).unwrap());
    left
}

pub fn gpu_minors(pool: &NodePool, assignment: &Assignment) -> Vec<i32> {
    minors(pool, assignment, &DeviceType::Gpu)
}

pub fn nic_minors(pool: &NodePool, assignment: &Assignment) -> Vec<i32> {
    minors(pool, assignment, &DeviceType::Rdma)
}

fn minors(pool: &NodePool, assignment: &Assignment, kind: &DeviceType) -> Vec<i32> {
    assignment.device_allocated(pool).of(kind).iter().map(|entry| entry.minor).collect()
}

pub fn gpu_ids(pool: &NodePool, assignment: &Assignment) -> Vec<String> {
    assignment.device_allocated(pool).of(&DeviceType::Gpu).iter().map(|entry| entry.id.to_string()).collect()
}

/// An assignment's annotations, read back.
pub trait Written {
    fn device_allocated(&self, pool: &NodePool) -> DeviceAllocation;
    fn container_devices(&self, pool: &NodePool, request: &PodDeviceRequest, node: &str) -> ContainerDevices;
    fn gpu_minors(&self, pool: &NodePool) -> String;
}

impl Written for Assignment {
    fn device_allocated(&self, pool: &NodePool) -> DeviceAllocation {
        let [text, ..] = self.annotations(pool, &ask(&[]), "node-a");
        if text.is_empty() { DeviceAllocation::default() } else { DeviceAllocation::parse(&text).unwrap() }
    }

    fn container_devices(&self, pool: &NodePool, request: &PodDeviceRequest, node: &str) -> ContainerDevices {
        let [_, text, _] = self.annotations(pool, request, node);
        ContainerDevices::parse(&text).unwrap().unwrap()
    }

    fn gpu_minors(&self, pool: &NodePool) -> String {
        let minors: Vec<String> = gpu_minors(pool, self).iter().map(i32::to_string).collect();
        minors.join(",")
    }
}

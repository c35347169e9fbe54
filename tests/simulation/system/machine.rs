//! A machine: its devices, its kubelet and its node daemon, and what outlives both.

use baton::contract::inventory::{Device, DeviceInfo, DeviceTopology};
use baton::contract::{DeviceEntry, DeviceId, DeviceType, Quantity, key};
use baton::decide::handoff::{AllocatePolicy, InventoryDevice, NodeInventory};
use baton::decide::world::{NodeFacts, Resources};

use super::daemon::Daemon;
use super::kubelet::Kubelet;
use crate::harness::gpu_device;
use crate::harness::scheduler::NAMES;

/// NICs of a node.
const NICS: i32 = 2;

/// A machine: what is on its disk and in its runtime outlives every process.
pub struct Machine {
    pub name: Box<str>,
    gpus: u32,
    pub inventory: NodeInventory,
    pub policy: AllocatePolicy,
    pub kubelet: Kubelet,
    pub kubelet_life: u64,
    pub kubelet_told: bool,
    pub daemon: Option<Daemon>,
    pub daemon_life: u64,
    pub daemon_told: bool,
    /// The ledger's file.
    pub disk: Vec<u8>,
    pub boot: u64,
}

/// What an answer names, as it is stored in the ledger and in the kubelet's checkpoint.
pub type Answer = Vec<u8>;

/// The devices of an answer and how much of each.
pub fn answered(answer: &[u8]) -> Vec<(String, i64)> {
    let text = std::str::from_utf8(answer).unwrap_or_default();
    let parts = text.split(',').filter_map(|part| part.split_once('='));
    parts.map(|(id, amount)| (id.to_owned(), amount.parse().unwrap_or(key::WHOLE))).collect()
}

/// The answer that names these.
pub fn encoded(served: &[(DeviceType, DeviceEntry)]) -> Answer {
    let amount = |kind: &DeviceType, entry: &DeviceEntry| {
        let name = if *kind == DeviceType::Rdma { key::RDMA } else { key::GPU_CORE };
        if entry.resources.contains_key(name) { entry.amount(name) } else { key::WHOLE }
    };
    let parts: Vec<String> =
        served.iter().map(|(kind, entry)| format!("{}={}", entry.id, amount(kind, entry))).collect();
    parts.join(",").into_bytes()
}

fn nic_id(node: usize, at: i32) -> DeviceId {
    DeviceId::parse(&format!("0000:{node:x}{at}:00.0")).unwrap()
}

impl Machine {
    pub fn new(at: usize, gpus: u32) -> Self {
        let name: Box<str> = format!("n{at}").into();
        let device = |kind, minor, memory_bytes| InventoryDevice {
            kind,
            minor,
            healthy: true,
            reason: None,
            memory_bytes,
            parent: None,
            mig_profile: None,
        };
        let mut inventory = NodeInventory::default();
        for info in gpu_device(&name, gpus).spec.devices {
            inventory.devices.insert(info.id, device(DeviceType::Gpu, info.minor, Some(80 << 30)));
        }
        for nic in 0..NICS {
            inventory.devices.insert(nic_id(at, nic), device(DeviceType::Rdma, nic, None));
        }
        inventory.registered = NAMES.into_iter().map(Box::from).collect();
        Self {
            kubelet: Kubelet::default(),
            kubelet_life: 0,
            kubelet_told: false,
            daemon: None,
            daemon_life: 0,
            daemon_told: false,
            disk: Vec::new(),
            boot: 1,
            policy: AllocatePolicy::default(),
            name,
            gpus,
            inventory,
        }
    }

    /// The Node object.
    pub fn facts(&self) -> NodeFacts {
        let amounts = [("cpu", "64"), ("memory", "512Gi")].map(|(name, amount)| (name, amount.parse().unwrap()));
        let mut allocatable = Resources::of(amounts);
        for name in NAMES {
            let units = match name {
                key::NVIDIA_GPU => i64::from(self.gpus),
                key::RDMA => i64::from(NICS) * key::WHOLE,
                _ => i64::from(self.gpus) * key::WHOLE,
            };
            allocatable.set(name, Quantity::units(units));
        }
        NodeFacts { name: self.name.clone(), allocatable: allocatable.into(), max_pods: 110, ..NodeFacts::default() }
    }

    /// The Device object.
    pub fn device(&self) -> Device {
        let mut device = gpu_device(&self.name, self.gpus);
        let like = device.spec.devices[0].clone();
        let nics = self.inventory.devices.iter().filter(|(_, of)| of.kind == DeviceType::Rdma);
        device.spec.devices.extend(nics.map(|(id, of)| DeviceInfo {
            kind: DeviceType::Rdma,
            id: id.clone(),
            minor: of.minor,
            labels: like.labels.clone(),
            resources: [(key::RDMA.to_owned(), Quantity::units(key::WHOLE))].into(),
            topology: Some(DeviceTopology { bus_id: Some(id.to_string()), ..like.topology.clone().unwrap() }),
            ..like.clone()
        }));
        device
    }

    /// The ids of one resource name.
    pub fn ids(&self, resource: &str) -> Vec<String> {
        let kind = if resource == key::RDMA { DeviceType::Rdma } else { DeviceType::Gpu };
        let of_kind = self.inventory.devices.iter().filter(|(_, device)| device.kind == kind).map(|(id, _)| id);
        if resource == key::NVIDIA_GPU {
            return of_kind.map(ToString::to_string).collect();
        }
        of_kind.flat_map(|id| (0..key::WHOLE).map(move |part| format!("{id}::{part}"))).collect()
    }
}

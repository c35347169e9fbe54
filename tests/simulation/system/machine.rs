//! A machine: its devices, its kubelet and its node daemon, and what outlives both.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use baton::contract::inventory::{Device, DeviceInfo, DeviceLocation};
use baton::contract::{DeviceEntry, DeviceId, DeviceType, PodUid, Quantity, key};
use baton::decide::handoff::{AllocatePolicy, InventoryDevice, NodeInventory};
use baton::decide::pod::HandoffPod;
use baton::decide::world::{NodeFacts, Resources};

use super::Mutant;
use super::daemon::Daemon;
use super::kubelet::Kubelet;
use crate::harness::gpu_device;
use crate::harness::scheduler::NAMES;

/// NICs of a node.
const NICS: i32 = 2;
/// What a GPU that is cut is cut into.
pub const MIG: &str = "nvidia.com/mig-1g.10gb";
const PROFILE: &str = "1g.10gb";
const PARTS: u32 = 2;

/// A machine: what is on its disk and in its runtime outlives every process.
pub struct Machine {
    pub name: Box<str>,
    gpus: u32,
    /// Its first GPU is cut into MIG devices.
    is_cut: bool,
    pub inventory: NodeInventory,
    /// What its daemon publishes of them, until a device changes.
    pub device: Option<Device>,
    pub policy: AllocatePolicy,
    pub kubelet: Kubelet,
    pub kubelet_life: u64,
    pub kubelet_has_news: bool,
    pub daemon: Option<Daemon>,
    pub daemon_life: u64,
    pub daemon_has_news: bool,
    /// The ledger's file.
    pub disk: Vec<u8>,
    pub boot: u64,
    /// Pods that ran when it went down, and of which the kubelet has not written a status since.
    pub ran_before: BTreeSet<PodUid>,
    /// Cgroups without a process, and until when each is there.
    pub cgroups: BTreeMap<PodUid, Duration>,
    /// Until when its daemon does not see cgroups.
    pub cgroups_hidden: Duration,
    /// Until when its container runtime is down.
    pub runtime_down: Duration,
    /// When its Node went, while it is gone.
    pub lost: Option<Duration>,
    /// When it joined again.
    pub joined: Option<Duration>,
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
pub fn encoded<'a>(served: impl Iterator<Item = &'a (DeviceType, DeviceEntry)>) -> Answer {
    let amount = |kind: &DeviceType, entry: &DeviceEntry| {
        let name = if *kind == DeviceType::Rdma { key::RDMA } else { key::GPU_CORE };
        if entry.resources.contains_key(name) { entry.amount(name) } else { key::WHOLE }
    };
    let parts: Vec<String> = served.map(|(kind, entry)| format!("{}={}", entry.id, amount(kind, entry))).collect();
    parts.join(",").into_bytes()
}

fn nic_id(node: usize, at: i32) -> DeviceId {
    DeviceId::parse(&format!("0000:{node:x}{at}:00.0")).unwrap()
}

/// A pod as its node daemon reads it: what its status says to run since before the boot has ended.
pub fn since_boot(ran_before: &BTreeSet<PodUid>, mutant: Option<Mutant>, mut pod: HandoffPod) -> HandoffPod {
    pod.resizing &= mutant != Some(Mutant::ResizesUnseen);
    if ran_before.contains(&pod.pod.uid) {
        pod.containers.iter_mut().for_each(|container| container.running = false);
    }
    pod
}

impl Machine {
    /// Nothing runs any more, and what comes is another boot.
    pub fn goes_down(&mut self) {
        self.ran_before.extend(self.kubelet.goes_down());
        self.cgroups.clear();
        self.runtime_down = Duration::ZERO;
        self.boot += 1;
    }

    pub fn new(at: usize, gpus: u32, is_cut: bool) -> Self {
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
        if is_cut {
            let parent = DeviceId::parse(&format!("GPU-{name}-0")).unwrap();
            let whole = inventory.devices.get_mut(&parent).unwrap();
            (whole.healthy, whole.reason) = (false, Some("it is split into MIG devices".into()));
            for _ in 0..PARTS {
                let part = InventoryDevice {
                    memory_bytes: Some(10 << 30),
                    parent: Some(parent.clone()),
                    mig_profile: Some(PROFILE.into()),
                    ..device(DeviceType::Gpu, 0, None)
                };
                inventory.devices.insert(mig_id(&name, inventory.devices.len()), part);
            }
        }
        for nic in 0..NICS {
            inventory.devices.insert(nic_id(at, nic), device(DeviceType::Rdma, nic, None));
        }
        inventory.registered = NAMES.into_iter().chain(is_cut.then_some(MIG)).map(Box::from).collect();
        Self {
            kubelet: Kubelet::default(),
            kubelet_life: 0,
            kubelet_has_news: false,
            daemon: None,
            daemon_life: 0,
            daemon_has_news: false,
            disk: Vec::new(),
            boot: 1,
            ran_before: BTreeSet::new(),
            cgroups: BTreeMap::new(),
            cgroups_hidden: Duration::ZERO,
            runtime_down: Duration::ZERO,
            lost: None,
            joined: None,
            device: None,
            is_cut,
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
        for name in &self.inventory.registered {
            allocatable.set(name, Quantity::units(self.ids(name, |_| true).len() as i64));
        }
        NodeFacts { name: self.name.clone(), allocatable: allocatable.into(), max_pods: 110, ..NodeFacts::default() }
    }

    /// Makes its Device object, where there is none.
    pub fn describe(&mut self) {
        if self.device.is_none() {
            self.device = Some(self.described());
        }
    }

    fn described(&self) -> Device {
        let mut device = gpu_device(&self.name, self.gpus);
        let like = device.spec.devices[0].clone();
        if self.is_cut {
            device.spec.devices[0].resources.clear();
        }
        let others = self.inventory.devices.iter().filter(|(_, of)| of.kind == DeviceType::Rdma || of.parent.is_some());
        device.spec.devices.extend(others.map(|(id, of)| {
            let mut info = DeviceInfo { kind: of.kind.clone(), id: id.clone(), minor: of.minor, ..like.clone() };
            if let Some(parent) = &of.parent {
                info.labels.insert(key::MIG_PROFILE.to_owned(), PROFILE.to_owned());
                info.labels.insert(key::PARENT.to_owned(), parent.to_string());
                info.resources = [(MIG.to_owned(), Quantity::units(1))].into();
            } else {
                info.resources = [(key::RDMA.to_owned(), Quantity::units(key::WHOLE))].into();
                info.topology = Some(DeviceLocation { bus_id: Some(id.to_string()), ..like.topology.clone().unwrap() });
            }
            info
        }));
        for info in &mut device.spec.devices {
            info.health =
                self.inventory.devices.get(&info.id).is_some_and(|of| of.healthy || self.is_whole_of_parts(&info.id));
        }
        device
    }

    fn is_whole_of_parts(&self, id: &DeviceId) -> bool {
        self.inventory.devices.values().any(|part| part.parent.as_ref() == Some(id))
    }

    /// Devices that can fail.
    pub fn whole(&self) -> Vec<DeviceId> {
        self.inventory.devices.keys().filter(|id| !self.is_whole_of_parts(id)).cloned().collect()
    }

    /// The kubelet's ids of one resource name, of the devices that `is` holds of.
    pub fn ids(&self, resource: &str, is: impl Fn(&InventoryDevice) -> bool) -> Vec<String> {
        let serves = |id: &DeviceId, of: &InventoryDevice| match resource {
            key::RDMA => of.kind == DeviceType::Rdma,
            MIG => of.parent.is_some(),
            _ => of.kind == DeviceType::Gpu && of.parent.is_none() && !self.is_whole_of_parts(id),
        };
        let found = self.inventory.devices.iter().filter(|(id, of)| serves(id, of) && is(of)).map(|(id, _)| id);
        if matches!(resource, key::NVIDIA_GPU | MIG) {
            return found.map(ToString::to_string).collect();
        }
        found.flat_map(|id| (0..key::WHOLE).map(move |part| format!("{id}::{part}"))).collect()
    }
}

fn mig_id(node: &str, at: usize) -> DeviceId {
    DeviceId::parse(&format!("MIG-{node}-{at}")).unwrap()
}

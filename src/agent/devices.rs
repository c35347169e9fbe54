//! The devices of this node as one flat list, made of a machine scan and the judgement of its health. Everything that leaves
//! the daemon (lists, Device object, answers, CDI files) is made of this list, so it cannot disagree with itself.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;

use super::options::{AgentOptions, MigStrategy};
use baton_contract::{DeviceId, DeviceType, HealthReason};
use baton_hardware::gpu::{MigInstance, MigMode};
use baton_hardware::nic::PciFunction;
use baton_hardware::{Bdf, GpuInfo, Machine, NicInfo, PciPlace};

/// One device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeDevice {
    /// Physical identity.
    pub id: DeviceId,
    /// Number in the Device object; parts have their whole's.
    pub minor: i32,
    /// What it is.
    pub body: DeviceBody,
    /// PCI address; a MIG device has its GPU's.
    pub bdf: Bdf,
    /// Where it is plugged in.
    pub place: PciPlace,
    /// How it is.
    pub health: DeviceHealth,
}

/// What a device is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DeviceBody {
    /// A GPU.
    Gpu {
        /// As NVML answered.
        gpu: Box<GpuInfo>,
        /// Only its MIG devices are handed out.
        split: bool,
        /// Number of its NVLink neighbourhood, when it has neighbours.
        nvlink: Option<u32>,
    },
    /// A MIG device.
    Mig {
        /// Its GPU.
        parent: DeviceId,
        /// Number of its GPU in NVML.
        parent_index: u32,
        /// Its number below the GPU in NVML, as NVIDIA's plugin counts them: with gaps where instances were destroyed.
        slot: u32,
        /// Model of the GPU.
        model: String,
        /// The instance.
        instance: MigInstance,
    },
    /// A NIC that is listed: a physical function, or a virtual one without a visible parent.
    Nic {
        /// As sysfs said.
        nic: Box<NicInfo>,
        /// Its virtual functions that are there.
        vfs: Vec<DeviceId>,
        /// Only they are handed out, under a name of their own.
        split: bool,
    },
    /// A virtual function of a listed NIC.
    Vf {
        /// Its physical function.
        parent: DeviceId,
        /// Number below it.
        number: u32,
        /// As sysfs said.
        nic: Box<NicInfo>,
        /// It is handed out under a name of its own, and not as a part of its NIC.
        apart: bool,
    },
}

/// How a device is, and since when.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceHealth {
    /// Takes new pods.
    pub healthy: bool,
    /// Reason of the condition.
    pub reason: HealthReason,
    /// For people: what happened and what to do.
    pub message: Box<str>,
    /// When it became so.
    pub since: Timestamp,
}

impl DeviceHealth {
    /// No fault seen.
    pub fn good(since: Timestamp) -> Self {
        Self { healthy: true, reason: HealthReason::Healthy, message: "no fault seen".into(), since }
    }

    /// A fault.
    pub fn bad(reason: HealthReason, message: impl Into<Box<str>>, since: Timestamp) -> Self {
        Self { healthy: false, reason, message: message.into(), since }
    }
}

impl NodeDevice {
    /// The word for its type on every wire.
    pub fn kind(&self) -> DeviceType {
        match self.body {
            DeviceBody::Gpu { .. } | DeviceBody::Mig { .. } => DeviceType::Gpu,
            DeviceBody::Nic { .. } | DeviceBody::Vf { .. } => DeviceType::Rdma,
        }
    }

    /// The device that this one is a part of.
    pub fn parent(&self) -> Option<&DeviceId> {
        match &self.body {
            DeviceBody::Mig { parent, .. } | DeviceBody::Vf { parent, .. } => Some(parent),
            DeviceBody::Gpu { .. } | DeviceBody::Nic { .. } => None,
        }
    }

    /// Parts of it are handed out.
    pub fn may_be_shared(&self) -> bool {
        matches!(self.body, DeviceBody::Gpu { split: false, .. })
    }

    /// Memory in bytes, where it is known.
    pub fn memory(&self) -> Option<i64> {
        let bytes = match &self.body {
            DeviceBody::Gpu { gpu, .. } => gpu.memory_bytes,
            DeviceBody::Mig { instance, .. } => instance.memory_bytes,
            DeviceBody::Nic { .. } | DeviceBody::Vf { .. } => None,
        };
        bytes.and_then(|bytes| i64::try_from(bytes).ok())
    }
}

/// The list, in stable order: GPUs by PCI address, each followed by its MIG devices; then NICs, each followed by its virtual
/// functions. `health` holds the judgement of GPUs and NICs by id; a device without one is as good as it looks.
pub fn list(
    machine: &Machine,
    options: &AgentOptions,
    health: &BTreeMap<DeviceId, DeviceHealth>,
    now: Timestamp,
) -> Vec<NodeDevice> {
    let (strategy, apart) = (options.mig_strategy, !options.rdma_vf_resource.is_empty());
    let mut devices = Vec::new();
    let uniform = uniform_profile(machine);
    let domains = nvlink_domains(machine);
    for gpu in &machine.gpus.gpus {
        let Ok(id) = DeviceId::parse(&gpu.uuid) else {
            tracing::warn!(uuid = %gpu.uuid, "a GPU with an unusable UUID is left out");
            continue;
        };
        let split = strategy != MigStrategy::None && gpu.mig.mode == MigMode::Enabled;
        let judged = health.get(&id).cloned().unwrap_or_else(|| DeviceHealth::good(now));
        let nvlink = domains.get(gpu.uuid.as_str()).copied();
        let whole_offered = !(strategy == MigStrategy::Single && uniform != Uniform::NoMig);
        let own = match (&judged, split || whole_offered) {
            (DeviceHealth { healthy: true, .. }, false) => DeviceHealth::bad(
                HealthReason::NotSplit,
                "--mig-strategy=single offers MIG devices only and this GPU is not split; split it like the others, or \
                 use --mig-strategy=mixed",
                now,
            ),
            _ => judged.clone(),
        };
        devices.push(NodeDevice {
            id: id.clone(),
            minor: gpu.minor as i32,
            body: DeviceBody::Gpu { gpu: Box::new(gpu.clone()), split, nvlink },
            bdf: gpu.bdf,
            place: gpu.place.clone(),
            health: own,
        });
        if split {
            devices.extend(mig_devices(gpu, &id, &judged, health, strategy, &uniform, now));
        }
    }
    devices.extend(nics(machine, apart, health, now));
    devices
}

fn mig_devices<'a>(
    gpu: &'a GpuInfo,
    parent: &'a DeviceId,
    whole: &'a DeviceHealth,
    health: &'a BTreeMap<DeviceId, DeviceHealth>,
    strategy: MigStrategy,
    uniform: &'a Uniform,
    now: Timestamp,
) -> impl Iterator<Item = NodeDevice> + 'a {
    gpu.mig.instances.iter().enumerate().filter_map(move |(rank, instance)| {
        let id = DeviceId::parse(&instance.uuid).ok()?;
        let judged = health.get(&id).unwrap_or(whole);
        let health = if judged.healthy && strategy == MigStrategy::Single && *uniform == Uniform::Several {
            let why = "--mig-strategy=single needs one profile on all GPUs of the node and there are several; use \
                       --mig-strategy=mixed, or split all GPUs alike";
            DeviceHealth::bad(HealthReason::MigNotUniform, why, now)
        } else {
            judged.clone()
        };
        Some(NodeDevice {
            id,
            minor: gpu.minor as i32,
            body: DeviceBody::Mig {
                parent: parent.clone(),
                parent_index: gpu.index,
                slot: instance.slot.unwrap_or(rank as u32),
                model: gpu.model.clone(),
                instance: instance.clone(),
            },
            bdf: gpu.bdf,
            place: gpu.place.clone(),
            health,
        })
    })
}

/// How the GPUs of the node are split.
#[derive(Debug, PartialEq, Eq)]
enum Uniform {
    NoMig,
    One,
    Several,
}

fn uniform_profile(machine: &Machine) -> Uniform {
    let split = machine.gpus.gpus.iter().filter(|gpu| gpu.mig.mode == MigMode::Enabled);
    let (mut any, mut profiles) = (false, BTreeSet::new());
    for gpu in split {
        any = true;
        profiles.extend(gpu.mig.instances.iter().map(|instance| instance.profile.as_str()));
    }
    match (any, profiles.len()) {
        (false, _) => Uniform::NoMig,
        (true, 0 | 1) => Uniform::One,
        (true, _) => Uniform::Several,
    }
}

/// Number of the NVLink neighbourhood of each GPU that has neighbours: the smallest minor in it.
fn nvlink_domains(machine: &Machine) -> BTreeMap<&str, u32> {
    let groups = machine.gpus.nvlink_domains().into_iter().filter(|group| group.len() > 1);
    let numbered = groups.flat_map(|group| {
        let number = group.iter().map(|gpu| gpu.minor).min().unwrap_or_default();
        group.into_iter().map(move |gpu| (gpu.uuid.as_str(), number))
    });
    numbered.collect()
}

fn nics(machine: &Machine, apart: bool, health: &BTreeMap<DeviceId, DeviceHealth>, now: Timestamp) -> Vec<NodeDevice> {
    let id_of = |bdf: Bdf| DeviceId::parse(&bdf.to_string()).ok();
    let by_bdf: BTreeMap<Bdf, &NicInfo> = machine.nics.iter().map(|nic| (nic.bdf, nic)).collect();
    let mut devices = Vec::new();
    for nic in &machine.nics {
        let listed = match &nic.function {
            PciFunction::Physical { .. } => true,
            PciFunction::Virtual { pf } => !by_bdf.contains_key(pf),
        };
        let (true, Some(id)) = (listed, id_of(nic.bdf)) else { continue };
        let own = health.get(&id).cloned().unwrap_or_else(|| DeviceHealth::good(now));
        let vfs: Vec<(u32, &NicInfo)> = match &nic.function {
            PciFunction::Physical { vfs } => {
                vfs.iter().enumerate().filter_map(|(n, bdf)| Some((n as u32, *by_bdf.get(bdf)?))).collect()
            }
            PciFunction::Virtual { .. } => Vec::new(),
        };
        devices.push(NodeDevice {
            id: id.clone(),
            minor: nic.minor as i32,
            body: DeviceBody::Nic {
                nic: Box::new(nic.clone()),
                vfs: vfs.iter().filter_map(|(_, vf)| id_of(vf.bdf)).collect(),
                // Those that are out of view count, too: pods have them.
                split: apart && !matches!(&nic.function, PciFunction::Physical { vfs } if vfs.is_empty()),
            },
            bdf: nic.bdf,
            place: nic.place.clone(),
            health: with_nodes(own.clone(), nic, now),
        });
        for (number, vf) in vfs {
            let Some(vf_id) = id_of(vf.bdf) else { continue };
            devices.push(NodeDevice {
                id: vf_id,
                minor: nic.minor as i32,
                body: DeviceBody::Vf { parent: id.clone(), number, nic: Box::new(vf.clone()), apart },
                bdf: vf.bdf,
                place: vf.place.clone(),
                health: with_nodes(own.clone(), vf, now),
            });
        }
    }
    devices
}

/// A NIC without its required device nodes cannot be used by any container.
fn with_nodes(health: DeviceHealth, nic: &NicInfo, now: Timestamp) -> DeviceHealth {
    let missing = nic.chars.missing();
    if !health.healthy || missing.is_empty() {
        return health;
    }
    let why = format!("device nodes missing: {}; load ib_uverbs and rdma_ucm on this node", missing.join(", "));
    DeviceHealth::bad(NODES_MISSING, why, now)
}

/// A GPU or MIG device whose device nodes are of no use cannot be used by any container that gets nodes from this daemon.
/// `missing` says why, for those.
pub fn without_nodes<'a>(devices: &mut [NodeDevice], missing: impl Fn(&DeviceId) -> Option<&'a str>, now: Timestamp) {
    for device in devices.iter_mut().filter(|device| device.health.healthy) {
        if let Some(why) = missing(&device.id) {
            let advice = "look for the driver's own errors, then make it with nvidia-modprobe on this node";
            device.health = DeviceHealth::bad(NODES_MISSING, format!("{why}; {advice}"), now);
        }
    }
}

/// A virtual function that a pod has as a part of its NIC, from before functions were a resource of their own, is given to no other.
pub fn without_held_functions(devices: &mut [NodeDevice], held: &BTreeSet<DeviceId>, now: Timestamp) {
    let apart = devices.iter_mut().filter(|device| matches!(device.body, DeviceBody::Vf { apart: true, .. }));
    for device in apart.filter(|device| held.contains(&device.id)) {
        device.health = DeviceHealth::bad(HELD_AS_PART, "a pod has it as a part of its NIC, until it ends", now);
    }
}

/// Devices that were in `earlier`, are not in `now`, and are still in use: kept, marked as gone.
pub fn keep_used(devices: &mut Vec<NodeDevice>, earlier: &[NodeDevice], in_use: &BTreeSet<DeviceId>, now: Timestamp) {
    let present: BTreeSet<DeviceId> = devices.iter().map(|device| device.id.clone()).collect();
    for device in earlier.iter().filter(|device| !present.contains(&device.id) && in_use.contains(&device.id)) {
        let mut kept = device.clone();
        if kept.health.reason != GONE {
            kept.health = DeviceHealth::bad(GONE, "the device left the machine while a pod holds it", now);
        }
        devices.push(kept);
    }
}

const GONE: HealthReason = HealthReason::Gone;
const HELD_AS_PART: HealthReason = HealthReason::HeldAsPart;
const NODES_MISSING: HealthReason = HealthReason::DeviceNodesMissing;

/// Conditions keep the time of their last transition while nothing changed.
pub fn keep_since(devices: &mut [NodeDevice], earlier: &[NodeDevice]) {
    for device in devices {
        let before = earlier.iter().find(|before| before.id == device.id).map(|before| &before.health);
        if let Some(before) = before
            && before.healthy == device.health.healthy
            && before.reason == device.health.reason
        {
            device.health.since = before.since;
        }
    }
}

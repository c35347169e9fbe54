//! What a GPU is to the rest of the crate: plain data that NVML answered, valid if it exists.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::bdf::Bdf;
use super::pci::PciPlace;
use super::question::{FailedQuestion, Question};
use baton_contract::HealthReason;

/// One physical GPU. Its identity is `uuid`; `index` and `minor` are only how the driver counts today. What it did not answer is unknown
/// here, and named in `unanswered`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct GpuInfo {
    /// `GPU-…`, the id in every annotation and every kubelet id.
    pub uuid: String,
    /// The number in `/dev/nvidia<minor>`.
    #[serde(default)]
    pub minor: Option<u32>,
    /// NVML's index at the time of the scan.
    pub index: u32,
    /// PCI address, domain as the kernel prints it.
    #[serde(default)]
    pub bdf: Option<Bdf>,
    /// Product name, such as `NVIDIA H100 80GB HBM3`.
    #[serde(default)]
    pub model: Option<String>,
    /// Frame buffer in bytes; `None` where the driver does not support the question (shared-memory machines).
    pub memory_bytes: Option<u64>,
    /// CUDA compute capability, (major, minor).
    pub compute_capability: Option<(u32, u32)>,
    /// Whether the GPU is split, and into what.
    #[serde(default)]
    pub mig: MigState,
    /// NVLink neighbourhood.
    #[serde(default)]
    pub nvlink: NvLinks,
    /// What its registration with the NVSwitch fabric lacks; `None` where it is done, or there is no fabric.
    #[serde(default)]
    pub fabric: Option<String>,
    /// What the driver wants done with it, in words; `None` where it wants nothing, or cannot say.
    #[serde(default)]
    pub wants: Option<String>,
    /// Questions that it should have answered.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unanswered: Vec<FailedQuestion>,
    /// Where it sits on the PCI fabric; filled by the machine scan, unknown from NVML alone.
    #[serde(default)]
    pub place: PciPlace,
}

/// MIG mode and the instances found.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MigState {
    /// The mode in force; a pending change shows after the driver applied it.
    pub mode: MigMode,
    /// Instances, by (GPU instance, compute instance). Empty unless the mode is enabled.
    #[serde(default)]
    pub instances: Vec<MigInstance>,
}

/// The MIG mode in force.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum MigMode {
    /// The GPU cannot be split.
    #[default]
    NotSupported,
    /// It can, and is not.
    Disabled,
    /// Only its instances can be handed out; there may be none yet.
    Enabled,
    /// It does not say.
    Unknown,
}

/// One MIG device: a compute instance of a GPU instance.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MigInstance {
    /// `MIG-…`, its identity.
    pub uuid: String,
    /// `1g.10gb`, `1c.3g.40gb`, `1g.10gb+me`.
    pub profile: String,
    /// GPU instance id.
    pub gpu_instance: u32,
    /// Compute instance id within the GPU instance.
    pub compute_instance: u32,
    /// Memory of the instance in bytes.
    pub memory_bytes: Option<u64>,
    /// Its number below the GPU in NVML (`nvmlDeviceGetMigDeviceHandleByIndex`). Free numbers between stay free. Recordings of
    /// earlier versions have none.
    #[serde(default)]
    pub slot: Option<u32>,
    /// M of `/dev/nvidia-caps/nvidia-cap<M>` for the GPU instance, from `mig-minors`; `None` without that file.
    #[serde(default)]
    pub gpu_instance_cap: Option<u32>,
    /// The same for the compute instance.
    #[serde(default)]
    pub compute_instance_cap: Option<u32>,
}

/// What the active NVLinks of a GPU lead to.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NvLinks {
    /// At least one link ends at an NVSwitch: the GPU reaches every other switched GPU.
    #[serde(default)]
    pub switched: bool,
    /// Addresses of GPUs that a link ends at directly, with the number of links.
    #[serde(default)]
    pub peers: Vec<(Bdf, u32)>,
}

/// How far two GPUs are from each other; smaller is nearer. The numbers are NVML's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum GpuDistance {
    /// On one board.
    Internal = 0,
    /// Below one PCIe switch.
    SingleSwitch = 10,
    /// Below several PCIe switches of one host bridge.
    MultipleSwitches = 20,
    /// At one host bridge.
    HostBridge = 30,
    /// In one NUMA node.
    Node = 40,
    /// Across the machine's interconnect.
    System = 50,
}

/// One pair of GPUs, `a` before `b` in the order of [`GpuScan::gpus`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuPair {
    /// UUID of the earlier GPU.
    pub a: String,
    /// UUID of the later GPU.
    pub b: String,
    /// Distance over PCIe.
    pub level: GpuDistance,
}

/// One scan of the GPUs of this machine.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct GpuScan {
    /// Kernel driver, such as `570.133.20`.
    pub driver_version: String,
    /// NVML library, such as `12.570.133.20`.
    pub nvml_version: String,
    /// CUDA version that the driver supports, as NVML encodes it (12080 is 12.8).
    #[serde(default)]
    pub cuda_version: Option<u32>,
    /// GPUs that answered, by PCI address.
    pub gpus: Vec<GpuInfo>,
    /// Pairwise distance, where NVML answers it.
    #[serde(default)]
    pub pairs: Vec<GpuPair>,
    /// GPUs that NVML counts and that did not answer. Not in `gpus`; a GPU known from an earlier scan is unhealthy now,
    /// not gone.
    #[serde(default)]
    pub faults: Vec<GpuFault>,
}

/// One GPU that could not be read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct GpuFault {
    /// NVML's index; `None` for a GPU that the driver has bound and NVML does not list.
    pub index: Option<u32>,
    /// Its UUID, when it is known from now or an earlier scan.
    #[serde(default)]
    pub uuid: Option<String>,
    /// Its PCI address, likewise.
    #[serde(default)]
    pub bdf: Option<Bdf>,
    /// What happened.
    pub fault: Fault,
}

/// Why one GPU did not answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[serde(rename_all = "camelCase")]
pub enum Fault {
    /// It fell off the bus.
    #[error("the GPU fell off the bus (NVML: GPU is lost)")]
    Lost,
    /// It needs a reset.
    #[error("the GPU needs a reset before it can be used again")]
    ResetRequired,
    /// NVML does not know this UUID (any more).
    #[error("NVML knows no GPU of this UUID; it was removed, or the driver was reloaded without it")]
    Gone,
    /// The call did not return in time; its thread was abandoned.
    #[error("NVML did not answer within {0} ms while asked about this GPU; the call was abandoned")]
    Timeout(u64),
    /// The kernel driver has the function and NVML does not list it.
    #[error("the nvidia driver is bound to {0}, and NVML does not list it")]
    Unlisted(Bdf),
    /// The NVSwitch fabric does not have it (yet).
    #[error("the GPU is not registered with the NVSwitch fabric: {0}")]
    Fabric(String),
    /// Nothing can be said of the GPU without the answer to this question.
    #[error("{0}")]
    Unanswered(FailedQuestion),
}

impl Fault {
    /// Reason of the condition.
    pub fn reason(&self) -> HealthReason {
        match self {
            Self::Lost => HealthReason::Lost,
            Self::ResetRequired => HealthReason::ResetRequired,
            Self::Gone => HealthReason::Gone,
            Self::Timeout(_) => HealthReason::NvmlTimeout,
            Self::Unlisted(_) => HealthReason::Unlisted,
            Self::Fabric(_) => HealthReason::FabricNotReady,
            Self::Unanswered(_) => HealthReason::NvmlError,
        }
    }
}

impl GpuInfo {
    /// Notes a question without an answer, each once.
    pub fn note(&mut self, question: Question, why: impl Into<String>) {
        if self.unanswered.iter().all(|seen| seen.question != question) {
            self.unanswered.push(FailedQuestion { question, why: why.into() });
        }
    }
}

/// What two GPUs cannot both have is known of neither. One UUID at two addresses is no identity: those GPUs are at fault. One GPU that
/// is listed twice is one.
pub fn part_doubles(found: Vec<GpuInfo>) -> (Vec<GpuInfo>, Vec<GpuFault>) {
    let (mut gpus, mut faults) = (Vec::<GpuInfo>::new(), Vec::new());
    let twins = |gpu: &GpuInfo| {
        found.iter().filter(|other| other.uuid == gpu.uuid && other.index != gpu.index).cloned().collect::<Vec<_>>()
    };
    for gpu in &found {
        let twins = twins(gpu);
        let is_same = |other: &GpuInfo| gpu.bdf.is_some() && other.bdf == gpu.bdf;
        if let Some(other) = twins.iter().find(|other| !is_same(other)) {
            let why = format!("it answers {}, as GPU number {} does", gpu.uuid, other.index);
            let fault = Fault::Unanswered(FailedQuestion { question: Question::Uuid, why });
            faults.push(GpuFault { index: Some(gpu.index), uuid: Some(gpu.uuid.clone()), bdf: gpu.bdf, fault });
        } else if twins.iter().all(|other| other.index > gpu.index) {
            gpus.push(gpu.clone());
        }
    }
    forget_doubles(&mut gpus, Question::Minor, |gpu| &mut gpu.minor);
    forget_doubles(&mut gpus, Question::PciAddress, |gpu| &mut gpu.bdf);
    let mut instances: Vec<String> =
        gpus.iter().flat_map(|gpu| &gpu.mig.instances).map(|part| part.uuid.clone()).collect();
    instances.sort_unstable();
    let doubled: BTreeSet<String> =
        instances.windows(2).filter(|pair| pair[0] == pair[1]).map(|pair| pair[0].clone()).collect();
    for gpu in &mut gpus {
        if let Some(part) = gpu.mig.instances.iter().find(|part| doubled.contains(&part.uuid)) {
            let why = format!("two MIG devices answer {}", part.uuid);
            gpu.note(Question::MigUuid, why);
            gpu.mig.instances.retain(|part| !doubled.contains(&part.uuid));
        }
    }
    (gpus, faults)
}

/// Takes a value that several GPUs have from all of them.
fn forget_doubles<T: Copy + PartialEq + std::fmt::Display>(
    gpus: &mut [GpuInfo],
    question: Question,
    value: impl Fn(&mut GpuInfo) -> &mut Option<T>,
) {
    let values: Vec<Option<T>> = gpus.iter_mut().map(|gpu| *value(gpu)).collect();
    for (at, gpu) in gpus.iter_mut().enumerate() {
        let Some(own) = values[at] else { continue };
        if values.iter().filter(|other| **other == Some(own)).count() > 1 {
            *value(gpu) = None;
            gpu.note(question, format!("it answers {own}, as another GPU does"));
        }
    }
}

impl GpuScan {
    /// How many GPUs there are: those that answer, and those at fault that are none of them.
    pub fn count(&self) -> usize {
        let is_known = |fault: &&GpuFault| fault.uuid.as_deref().is_some_and(|uuid| self.gpu(uuid).is_some());
        self.gpus.len() + self.faults.iter().filter(|fault| !is_known(fault)).count()
    }

    /// The GPU of this UUID.
    pub fn gpu(&self, uuid: &str) -> Option<&GpuInfo> {
        self.gpus.iter().find(|gpu| gpu.uuid == uuid)
    }

    /// Names faults that name no GPU, by the index or the PCI address that a GPU of an `earlier` scan had. Indexes shift when a GPU
    /// leaves: one that answers elsewhere is not meant.
    pub fn name_faults(&mut self, earlier: &GpuScan) {
        for fault in self.faults.iter_mut().filter(|fault| fault.uuid.is_none()) {
            let is_it = |gpu: &&GpuInfo| match fault.bdf {
                Some(_) => gpu.bdf == fault.bdf,
                None => Some(gpu.index) == fault.index,
            };
            let known = earlier.gpus.iter().find(is_it);
            fault.uuid =
                known.filter(|gpu| self.gpus.iter().all(|seen| seen.uuid != gpu.uuid)).map(|gpu| gpu.uuid.clone());
        }
    }

    /// What a scan before the last boot says of a machine that has not answered since: the GPUs that are still plugged in, not how
    /// they were split.
    pub fn keep_after_boot(&mut self, is_present: impl Fn(Bdf) -> bool) {
        self.gpus.retain(|gpu| gpu.bdf.is_some_and(&is_present));
        self.gpus.iter_mut().for_each(|gpu| gpu.mig.instances.clear());
    }

    /// Distance of two GPUs in any order; `None` when NVML did not answer it.
    pub fn level(&self, a: &str, b: &str) -> Option<GpuDistance> {
        let found = self.pairs.iter().find(|p| (p.a == a && p.b == b) || (p.a == b && p.b == a));
        found.map(|pair| pair.level)
    }

    /// Groups of GPUs that reach each other over NVLink alone: all switched GPUs are one, directly linked ones are
    /// connected components. Each GPU is in exactly one group; groups and members are in the order of `gpus`.
    pub fn nvlink_domains(&self) -> Vec<Vec<&GpuInfo>> {
        let mut domains: Vec<Vec<&GpuInfo>> = Vec::new();
        let mut seen: BTreeSet<usize> = BTreeSet::new();
        for (start, _) in self.gpus.iter().enumerate() {
            if seen.contains(&start) {
                continue;
            }
            let mut reached = BTreeSet::from([start]);
            let mut open = vec![start];
            while let Some(at) = open.pop() {
                for (next, gpu) in self.gpus.iter().enumerate() {
                    if linked(&self.gpus[at], gpu) && reached.insert(next) {
                        open.push(next);
                    }
                }
            }
            seen.extend(&reached);
            domains.push(reached.into_iter().map(|at| &self.gpus[at]).collect());
        }
        domains
    }
}

fn linked(a: &GpuInfo, b: &GpuInfo) -> bool {
    let ends_at = |from: &GpuInfo, to: &GpuInfo| from.nvlink.peers.iter().any(|(bdf, _)| Some(*bdf) == to.bdf);
    (a.nvlink.switched && b.nvlink.switched) || ends_at(a, b) || ends_at(b, a)
}

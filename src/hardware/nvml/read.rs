//! Questions about one GPU, as they run on the query thread.

use nvml_wrapper::enum_wrappers::device::TopologyLevel;
use nvml_wrapper::enums::device::SampleValue;
use nvml_wrapper::error::NvmlError as Wrapped;
use nvml_wrapper::structs::device::FieldId;
use nvml_wrapper::sys_exports::field_id::NVML_FI_DEV_GET_GPU_RECOVERY_ACTION;
use nvml_wrapper::{Device, Nvml};

use super::raw::{self, RemoteKind};
use crate::bdf::Bdf;
use crate::gpu::{Fault, GpuDistance, GpuInfo, MigInstance, MigMode, MigState, NvLinks};
use crate::pci::PciPlace;
use crate::provider::Recovery;
use crate::question::{FailedQuestion, Question};

/// NVLinks of one GPU: the most that any architecture has so far.
const MAX_LINKS: u32 = 36;
/// Codes of `nvml.h` that the library has no names for: a driver knows another version of the question, or does not answer it any more.
const ARGUMENT_VERSION_MISMATCH: u32 = 25;
const DEPRECATED: u32 = 26;
/// The last minor of a GPU: the driver has its control devices above.
const LAST_MINOR: u32 = 247;
/// GPUs that a driver can have: one for each minor.
pub(super) const MOST_GPUS: u32 = LAST_MINOR + 1;
/// MIG devices that a GPU can have, with room for later ones.
const MOST_MIG: u32 = 256;
/// No GPU has as much memory.
const MOST_MEMORY: u64 = 1 << 50;

/// What concerns the whole machine.
pub(super) struct Frame {
    pub driver_version: String,
    pub nvml_version: String,
    pub cuda_version: Option<u32>,
    pub count: u32,
}

pub(super) fn frame(nvml: &Nvml) -> Result<Frame, Wrapped> {
    Ok(Frame {
        driver_version: nvml.sys_driver_version()?,
        // For people only: a library that does not know its own version still knows its GPUs.
        nvml_version: nvml.sys_nvml_version().unwrap_or_else(|_| "unknown".to_owned()),
        cuda_version: nvml.sys_cuda_driver_version().ok().and_then(|version| u32::try_from(version).ok()),
        count: nvml.device_count()?,
    })
}

/// A GPU that could not be read, with what is known of it.
pub(super) struct Failed {
    pub uuid: Option<String>,
    pub bdf: Option<Bdf>,
    pub fault: Fault,
}

/// Collects the questions that one GPU does not answer. Only what says that the GPU itself is lost ends the reading of it.
#[derive(Default)]
struct Asking {
    unanswered: Vec<FailedQuestion>,
}

impl Asking {
    /// The answer to a question that every GPU answers.
    fn must<T>(&mut self, question: Question, answer: Result<T, Wrapped>) -> Result<Option<T>, Fault> {
        match answer {
            Ok(answer) => Ok(Some(answer)),
            Err(Wrapped::GpuLost) => Err(Fault::Lost),
            Err(Wrapped::ResetRequired) => Err(Fault::ResetRequired),
            Err(error) => {
                self.note(question, error.to_string());
                Ok(None)
            }
        }
    }

    /// The answer to a question that some GPUs and drivers refuse because it does not apply to them.
    fn may<T>(&mut self, question: Question, answer: Result<T, Wrapped>) -> Result<Option<T>, Fault> {
        if answer.as_ref().is_err_and(is_refusal) { Ok(None) } else { self.must(question, answer) }
    }

    /// An answer that can be; what cannot is none.
    fn sane<T: std::fmt::Debug>(
        &mut self,
        question: Question,
        answer: Option<T>,
        can_be: impl Fn(&T) -> bool,
    ) -> Option<T> {
        let answer = answer?;
        if can_be(&answer) {
            return Some(answer);
        }
        self.note(question, format!("it answers {answer:?}, which cannot be"));
        None
    }

    fn note(&mut self, question: Question, why: String) {
        if !self.lacks(question) {
            self.unanswered.push(FailedQuestion { question, why });
        }
    }

    fn lacks(&self, question: Question) -> bool {
        self.unanswered.iter().any(|seen| seen.question == question)
    }
}

/// The question does not apply to this GPU, or this driver does not have it yet.
fn is_refusal(error: &Wrapped) -> bool {
    matches!(
        error,
        Wrapped::NotSupported
            | Wrapped::FailedToLoadSymbol(_)
            | Wrapped::FunctionNotFound
            | Wrapped::InvalidArg
            | Wrapped::UnexpectedVariant(ARGUMENT_VERSION_MISMATCH | DEPRECATED)
    )
}

/// Everything about the GPU at `index`. NVLinks are read only where `links` are not known yet.
pub(super) fn gpu(nvml: &Nvml, index: u32, links: &dyn Fn(&str) -> Option<NvLinks>) -> Result<GpuInfo, Failed> {
    let nameless = |fault| Failed { uuid: None, bdf: None, fault };
    let device = nvml.device_by_index(index).map_err(|error| nameless(fault(Question::Handle, error)))?;
    let mut asking = Asking::default();
    let uuid = device.uuid().map_err(|error| fault(Question::Uuid, error)).and_then(|uuid| {
        let why = || format!("it answers {:?}, which is no UUID", uuid.escape_debug().to_string());
        let bad = || Fault::Unanswered(FailedQuestion { question: Question::Uuid, why: why() });
        if is_uuid(&uuid) { Ok(uuid.clone()) } else { Err(bad()) }
    });
    let bdf = address(&device, &mut asking);
    let known = bdf.as_ref().ok().copied().flatten();
    let failed = |uuid: Option<&String>, fault| Failed { uuid: uuid.cloned(), bdf: known, fault };
    let uuid = uuid.map_err(|fault| failed(None, fault))?;
    let rest = |mut asking: Asking| -> Result<GpuInfo, Fault> {
        let bdf = bdf?;
        let memory = match device.memory_info() {
            Err(Wrapped::FailedToLoadSymbol(_) | Wrapped::FunctionNotFound) => raw::memory_v1(&device),
            answer => answer.map(|memory| memory.total),
        };
        let memory = asking.may(Question::Memory, memory)?;
        let memory_bytes = asking.sane(Question::Memory, memory, |bytes| (1..MOST_MEMORY).contains(bytes));
        let capability = asking.may(Question::ComputeCapability, device.cuda_compute_capability())?;
        let capability = capability.map(|found| (found.major, found.minor));
        let can_be = |(major, minor): &(i32, i32)| (1..100).contains(major) && (0..100).contains(minor);
        let capability = asking.sane(Question::ComputeCapability, capability, can_be);
        let minor = asking.must(Question::Minor, device.minor_number())?;
        let model = asking.must(Question::Model, device.name())?;
        let mig = mig(&device, memory_bytes, &mut asking)?;
        let nvlink = match links(&uuid) {
            Some(known) => known,
            None => nvlinks(&device, &mut asking)?,
        };
        let fabric = fabric(&device, &mut asking)?.filter(|_| mig.mode != MigMode::Enabled);
        Ok(GpuInfo {
            minor: asking.sane(Question::Minor, minor, |minor| *minor <= LAST_MINOR),
            index,
            bdf,
            model: asking.sane(Question::Model, model, |model| !model.trim().is_empty()),
            memory_bytes,
            compute_capability: capability.map(|(major, minor)| (major.unsigned_abs(), minor.unsigned_abs())),
            mig,
            nvlink,
            fabric,
            wants: recovery(&device, &mut asking)?.wanted(),
            unanswered: asking.unanswered,
            place: PciPlace::default(),
            uuid: uuid.clone(),
        })
    };
    rest(asking).map_err(|fault| failed(Some(&uuid), fault))
}

/// The PCI address. Zeros are the host bridge's, and what a library that knows none leaves.
fn address(device: &Device<'_>, asking: &mut Asking) -> Result<Option<Bdf>, Fault> {
    let Some(pci) = asking.must(Question::PciAddress, device.pci_info())? else { return Ok(None) };
    let bdf = pci.bus_id.parse::<Bdf>().ok().filter(|bdf| Bdf { function: 0, ..*bdf } != Bdf::default());
    if bdf.is_none() {
        asking.note(Question::PciAddress, format!("it answers {:?}, which cannot be", pci.bus_id));
    }
    Ok(bdf)
}

/// A UUID as NVIDIA prints it; it becomes part of file names and environment, so nothing else passes.
pub(super) fn is_uuid(uuid: &str) -> bool {
    let prefixed = uuid.starts_with("GPU-") || uuid.starts_with("MIG-");
    prefixed
        && (12..=80).contains(&uuid.len())
        && uuid.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'/'))
}

/// What one failed call says about its GPU, where nothing can be said of it without.
pub(super) fn fault(question: Question, error: Wrapped) -> Fault {
    match error {
        Wrapped::GpuLost => Fault::Lost,
        Wrapped::ResetRequired => Fault::ResetRequired,
        Wrapped::NotFound => Fault::Gone,
        other => Fault::Unanswered(FailedQuestion { question, why: other.to_string() }),
    }
}

fn mig(device: &Device<'_>, parent_memory: Option<u64>, asking: &mut Asking) -> Result<MigState, Fault> {
    let mode = asking.may(Question::MigMode, device.mig_mode())?.map(|mode| mode.current);
    let state = |mode, instances| Ok(MigState { mode, instances });
    match asking.sane(Question::MigMode, mode, |mode| *mode <= 1) {
        None if asking.lacks(Question::MigMode) => return state(MigMode::Unknown, Vec::new()),
        None => return Ok(MigState::default()),
        Some(0) => return state(MigMode::Disabled, Vec::new()),
        Some(_) => {}
    }
    let mut instances = Vec::new();
    let count = asking.may(Question::MigCount, device.mig_device_count())?;
    for index in 0..asking.sane(Question::MigCount, count, |count| *count <= MOST_MIG).unwrap_or(0) {
        let part = match device.mig_device_by_index(index) {
            // Slots are sparse, and NVML refuses beyond the last.
            Err(Wrapped::NotFound | Wrapped::InvalidArg | Wrapped::NotSupported) => None,
            Err(error) => asking.must(Question::MigDevice, Err(error))?,
            Ok(part) => match mig_instance(&part, index, parent_memory) {
                Ok(part) => Some(part),
                // Destroyed between listing and asking.
                Err((_, Wrapped::NotFound | Wrapped::InvalidArg)) => None,
                Err((question, error)) => asking.must(question, Err(error))?,
            },
        };
        match part {
            // Old drivers name a part by its GPU's UUID and two numbers, with slashes; no device id has any.
            Some(part) if is_uuid(&part.uuid) && !part.uuid.contains('/') => instances.push(part),
            Some(part) => asking.note(Question::MigUuid, format!("it answers {:?}, which is no UUID", part.uuid)),
            None => {}
        }
    }
    instances.sort_by_key(|instance| (instance.gpu_instance, instance.compute_instance));
    state(MigMode::Enabled, instances)
}

/// One instance.
fn mig_instance(
    instance: &Device<'_>,
    slot: u32,
    parent_memory: Option<u64>,
) -> Result<MigInstance, (Question, Wrapped)> {
    let of = |question| move |error| (question, error);
    let gpu_instance = raw::gpu_instance(instance).map_err(of(Question::MigGpuInstance))?;
    let compute_instance = raw::compute_instance(instance).map_err(of(Question::MigComputeInstance))?;
    let name = instance.name().unwrap_or_default();
    let (profile, memory_bytes) = match (instance.attributes(), named_profile(&name)) {
        (Ok(attributes), Some(profile)) => (profile.to_owned(), Some(attributes.memory_size_mb << 20)),
        (Ok(attributes), None) => {
            let slices = (attributes.compute_instance_slice_count, attributes.gpu_instance_slice_count);
            let profile = profile_name(slices.0, slices.1, attributes.memory_size_mb, parent_memory);
            (profile, Some(attributes.memory_size_mb << 20))
        }
        // Its name says what it is.
        (Err(error), Some(profile))
            if !matches!(error, Wrapped::GpuLost | Wrapped::ResetRequired | Wrapped::NotFound) =>
        {
            (profile.to_owned(), instance.memory_info().ok().map(|memory| memory.total))
        }
        (Err(error), _) => return Err((Question::MigAttributes, error)),
    };
    Ok(MigInstance {
        uuid: instance.uuid().map_err(of(Question::MigUuid))?,
        profile,
        gpu_instance,
        compute_instance,
        memory_bytes,
        slot: Some(slot),
        gpu_instance_cap: None,
        compute_instance_cap: None,
    })
}

/// The profile at the end of a MIG device's name (`NVIDIA H100 80GB HBM3 MIG 1g.10gb`).
fn named_profile(name: &str) -> Option<&str> {
    let profile = name.rsplit_once(" MIG ")?.1;
    let plain = profile.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'+' | b'-'));
    (plain && profile.contains("g.") && profile.len() <= 32).then_some(profile)
}

/// The profile's name from its size, as NVIDIA computes it: memory as eighths of the whole GPU's, in GB.
pub fn profile_name(compute_slices: u32, gpu_slices: u32, memory_mb: u64, parent_memory: Option<u64>) -> String {
    let gb = match parent_memory {
        Some(total) if total > 0 => {
            let eighths = (memory_mb << 20).saturating_mul(8).div_ceil(total);
            let total_gb = total.div_ceil(1 << 30);
            (eighths * total_gb + 4) / 8
        }
        _ => memory_mb.div_ceil(1024),
    };
    if compute_slices == gpu_slices {
        format!("{gpu_slices}g.{gb}gb")
    } else {
        format!("{compute_slices}c.{gpu_slices}g.{gb}gb")
    }
}

fn nvlinks(device: &Device<'_>, asking: &mut Asking) -> Result<NvLinks, Fault> {
    let mut links = NvLinks::default();
    for number in 0..MAX_LINKS {
        let link = device.link_wrapper_for(number);
        match asking.may(Question::LinkState, link.is_active())? {
            Some(true) => {}
            // Boards leave numbers out: none is not the end.
            Some(false) | None => continue,
        }
        match asking.may(Question::LinkEnd, raw::remote_kind(device, number))? {
            Some(RemoteKind::Switch) => links.switched = true,
            Some(RemoteKind::Gpu) | None => {
                let remote = asking.may(Question::LinkAddress, link.remote_pci_info())?;
                let remote = remote.and_then(|pci| pci.bus_id.parse::<Bdf>().ok());
                let Some(remote) = remote else { continue };
                match links.peers.iter_mut().find(|(peer, _)| *peer == remote) {
                    Some((_, count)) => *count += 1,
                    None => links.peers.push((remote, 1)),
                }
            }
            Some(RemoteKind::Other) => {}
        }
    }
    links.peers.sort_unstable();
    Ok(links)
}

/// What the GPU's registration with the NVSwitch fabric lacks; `None` where it is done, or there is no fabric. Programs cannot
/// start on a GPU that waits for it; the instances of a split GPU do without.
fn fabric(device: &Device<'_>, asking: &mut Asking) -> Result<Option<String>, Fault> {
    Ok(match asking.may(Question::Fabric, raw::fabric(device))? {
        Some((1, _)) => Some("it has not started".to_owned()),
        Some((2, _)) => Some("it is in progress".to_owned()),
        Some((3, status)) if status != 0 => Some(format!("it ended with NVML status {status}")),
        // Not supported, done, or a state of a newer driver.
        Some(_) | None => None,
    })
}

/// Distances from the GPU at `index` to each of `others`, and why one is not known; pairs that NVML cannot judge are left out.
pub(super) fn levels(nvml: &Nvml, index: u32, others: &[u32]) -> Vec<(u32, Result<GpuDistance, String>)> {
    let mut levels = Vec::with_capacity(others.len());
    let device = nvml.device_by_index(index);
    for other in others {
        let level = match (&device, nvml.device_by_index(*other)) {
            (Ok(first), Ok(second)) => first.topology_common_ancestor(second),
            // The scan says what is wrong with it.
            (Err(_), _) | (_, Err(_)) => continue,
        };
        match level {
            Ok(level) => levels.push((*other, Ok(level_of(level)))),
            Err(error) if is_refusal(&error) => {}
            Err(error) => levels.push((*other, Err(error.to_string()))),
        }
    }
    levels
}

fn level_of(level: TopologyLevel) -> GpuDistance {
    match level {
        TopologyLevel::Internal => GpuDistance::Internal,
        TopologyLevel::Single => GpuDistance::SingleSwitch,
        TopologyLevel::Multiple => GpuDistance::MultipleSwitches,
        TopologyLevel::HostBridge => GpuDistance::HostBridge,
        TopologyLevel::Node => GpuDistance::Node,
        TopologyLevel::System => GpuDistance::System,
    }
}

/// Opens the GPU of this UUID, checks that it still is that one, and asks what the driver wants done with it.
pub(super) fn probe(nvml: &Nvml, uuid: &str) -> Result<Recovery, Fault> {
    let device = nvml.device_by_uuid(uuid).map_err(|error| fault(Question::Handle, error))?;
    let answered = device.uuid().map_err(|error| fault(Question::Uuid, error))?;
    if answered != uuid {
        return Err(Fault::Gone);
    }
    let mut asking = Asking::default();
    if let Some(lacks) = fabric(&device, &mut asking)?
        && asking.may(Question::MigMode, device.mig_mode())?.is_none_or(|mode| mode.current != 1)
    {
        return Err(Fault::Fabric(lacks));
    }
    recovery(&device, &mut asking)
}

/// What the driver wants done with a GPU.
fn recovery(device: &Device<'_>, asking: &mut Asking) -> Result<Recovery, Fault> {
    let field = FieldId(NVML_FI_DEV_GET_GPU_RECOVERY_ACTION);
    let values = asking.may(Question::Recovery, device.field_values_for(&[field]))?.unwrap_or_default();
    let value = values.into_iter().next().and_then(Result::ok).and_then(|sample| sample.value.ok());
    Ok(match value.and_then(|value| number(&value)) {
        None => Recovery::NotReported,
        Some(0) => Recovery::None,
        Some(1) => Recovery::Reset,
        Some(2) => Recovery::Reboot,
        Some(3) => Recovery::DrainP2p,
        Some(4) => Recovery::DrainAndReset,
        Some(5) => Recovery::ImexDomain,
        Some(other) => Recovery::Unknown(other),
    })
}

fn number(value: &SampleValue) -> Option<u64> {
    match value {
        SampleValue::U32(n) => Some(u64::from(*n)),
        SampleValue::U64(n) => Some(*n),
        SampleValue::I64(n) => u64::try_from(*n).ok(),
        SampleValue::F64(_) => None,
    }
}

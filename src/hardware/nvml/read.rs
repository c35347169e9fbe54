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

/// NVLinks of one GPU: the most that any architecture has so far.
const MAX_LINKS: u32 = 18;

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

/// A fault, with the UUID when NVML answered it before.
pub(super) type Failed = (Option<String>, Fault);

/// Everything about the GPU at `index`. NVLinks are read only where `links` are not known yet.
pub(super) fn gpu(nvml: &Nvml, index: u32, links: &dyn Fn(&str) -> Option<NvLinks>) -> Result<GpuInfo, Failed> {
    let device = nvml.device_by_index(index).map_err(|error| (None, fault(error)))?;
    let uuid = device.uuid().map_err(|error| (None, fault(error)))?;
    if !is_uuid(&uuid) {
        return Err((None, Fault::Other(format!("the UUID {:?} is not one", uuid.escape_debug().to_string()))));
    }
    let rest = || -> Result<GpuInfo, Fault> {
        let pci = device.pci_info().map_err(fault)?;
        let memory_bytes = optional(match device.memory_info() {
            Err(Wrapped::FailedToLoadSymbol(_) | Wrapped::FunctionNotFound) => raw::memory_v1(&device),
            answer => answer.map(|memory| memory.total),
        })?;
        let capability = welcome("compute capability", device.cuda_compute_capability())?;
        Ok(GpuInfo {
            minor: device.minor_number().map_err(fault)?,
            index,
            bdf: pci.bus_id.parse().map_err(|bad| Fault::Other(format!("{bad}")))?,
            model: device.name().map_err(fault)?,
            memory_bytes,
            compute_capability: capability.map(|c| (c.major.unsigned_abs(), c.minor.unsigned_abs())),
            mig: mig(&device, memory_bytes)?,
            nvlink: match links(&uuid) {
                Some(known) => known,
                None => nvlinks(&device)?,
            },
            fabric: fabric(&device)?,
            place: PciPlace::default(),
            uuid: uuid.clone(),
        })
    };
    rest().map_err(|fault| (Some(uuid.clone()), fault))
}

/// A UUID as NVIDIA prints it; it becomes part of file names and environment, so nothing else passes.
pub(super) fn is_uuid(uuid: &str) -> bool {
    let prefixed = uuid.starts_with("GPU-") || uuid.starts_with("MIG-");
    prefixed && uuid.len() <= 80 && uuid.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'/'))
}

/// What one failed call says about its GPU.
pub(super) fn fault(error: Wrapped) -> Fault {
    match error {
        Wrapped::GpuLost => Fault::Lost,
        Wrapped::ResetRequired => Fault::ResetRequired,
        Wrapped::NotFound => Fault::Gone,
        other => Fault::Other(other.to_string()),
    }
}

/// An answer that some GPUs or drivers cannot give.
fn optional<T>(answer: Result<T, Wrapped>) -> Result<Option<T>, Fault> {
    match answer {
        Ok(value) => Ok(Some(value)),
        Err(
            Wrapped::NotSupported
            | Wrapped::FailedToLoadSymbol(_)
            | Wrapped::FunctionNotFound
            | Wrapped::InvalidArg
            | Wrapped::NoPermission,
        ) => Ok(None),
        Err(error) => Err(fault(error)),
    }
}

/// An answer without which a GPU can be given all the same, and that some libraries do not know how to refuse. What may pass
/// stays a fault: it is asked again.
fn welcome<T>(what: &'static str, answer: Result<T, Wrapped>) -> Result<Option<T>, Fault> {
    if matches!(answer, Err(Wrapped::Unknown)) {
        tracing::debug!(what, "NVML does not answer");
        return Ok(None);
    }
    optional(answer)
}

fn mig(device: &Device<'_>, parent_memory: Option<u64>) -> Result<MigState, Fault> {
    let Some(mode) = optional(device.mig_mode())? else { return Ok(MigState::default()) };
    if mode.current == 0 {
        return Ok(MigState { mode: MigMode::Disabled, instances: Vec::new() });
    }
    let mut instances = Vec::new();
    for index in 0..optional(device.mig_device_count())?.unwrap_or(0) {
        match device.mig_device_by_index(index) {
            Ok(instance) => instances.extend(mig_instance(&instance, index, parent_memory)?),
            // Slots are sparse, and NVML refuses beyond the last.
            Err(Wrapped::NotFound | Wrapped::InvalidArg) => {}
            Err(error) => return Err(fault(error)),
        }
    }
    instances.sort_by_key(|instance| (instance.gpu_instance, instance.compute_instance));
    Ok(MigState { mode: MigMode::Enabled, instances })
}

/// One instance; `None` when it was destroyed between listing and asking.
fn mig_instance(instance: &Device<'_>, slot: u32, parent_memory: Option<u64>) -> Result<Option<MigInstance>, Fault> {
    let read = || -> Result<MigInstance, Wrapped> {
        let (gpu_instance, compute_instance) = raw::instance_ids(instance)?;
        let name = instance.name().unwrap_or_default();
        let (profile, memory_bytes) = match (instance.attributes(), named_profile(&name)) {
            (Ok(attributes), Some(profile)) => (profile.to_owned(), Some(attributes.memory_size_mb << 20)),
            (Ok(attributes), None) => {
                let slices = (attributes.compute_instance_slice_count, attributes.gpu_instance_slice_count);
                let profile = profile_name(slices.0, slices.1, attributes.memory_size_mb, parent_memory);
                (profile, Some(attributes.memory_size_mb << 20))
            }
            // Its name says what it is.
            (Err(Wrapped::NotSupported | Wrapped::FailedToLoadSymbol(_) | Wrapped::Unknown), Some(profile)) => {
                (profile.to_owned(), instance.memory_info().ok().map(|memory| memory.total))
            }
            (Err(error), _) => return Err(error),
        };
        Ok(MigInstance {
            uuid: instance.uuid()?,
            profile,
            gpu_instance,
            compute_instance,
            memory_bytes,
            slot: Some(slot),
            gpu_instance_cap: None,
            compute_instance_cap: None,
        })
    };
    match read() {
        Ok(instance) if is_uuid(&instance.uuid) => Ok(Some(instance)),
        Ok(instance) => Err(Fault::Other(format!("the MIG UUID {:?} is not one", instance.uuid))),
        Err(Wrapped::NotFound | Wrapped::InvalidArg) => Ok(None),
        Err(error) => Err(fault(error)),
    }
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

fn nvlinks(device: &Device<'_>) -> Result<NvLinks, Fault> {
    let mut links = NvLinks::default();
    for number in 0..MAX_LINKS {
        let link = device.link_wrapper_for(number);
        match welcome("NVLink state", link.is_active())? {
            Some(true) => {}
            // Boards leave numbers out: none is not the end.
            Some(false) | None => continue,
        }
        match welcome("NVLink remote device", raw::remote_kind(device, number))? {
            Some(RemoteKind::Switch) => links.switched = true,
            Some(RemoteKind::Gpu) | None => {
                let remote = welcome("NVLink remote PCI address", link.remote_pci_info())?;
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
fn fabric(device: &Device<'_>) -> Result<Option<String>, Fault> {
    let lacks = match optional(raw::fabric(device))? {
        Some((1, _)) => "it has not started".to_owned(),
        Some((2, _)) => "it is in progress".to_owned(),
        Some((3, status)) if status != 0 => format!("it ended with NVML status {status}"),
        // Not supported, done, or a state of a newer driver.
        Some(_) | None => return Ok(None),
    };
    let split = optional(device.mig_mode())?.is_some_and(|mode| mode.current != 0);
    Ok((!split).then_some(lacks))
}

/// Distances from the GPU at `index` to each of `others`; pairs that NVML cannot judge are left out.
pub(super) fn levels(nvml: &Nvml, index: u32, others: &[u32]) -> Result<Vec<(u32, GpuDistance)>, Fault> {
    let device = nvml.device_by_index(index).map_err(fault)?;
    let mut levels = Vec::with_capacity(others.len());
    for other in others {
        let Ok(second) = nvml.device_by_index(*other) else { continue };
        if let Some(level) = welcome("topology", device.topology_common_ancestor(second))? {
            levels.push((*other, level_of(level)));
        }
    }
    Ok(levels)
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
    let device = nvml.device_by_uuid(uuid).map_err(fault)?;
    let answered = device.uuid().map_err(fault)?;
    if answered != uuid {
        return Err(Fault::Gone);
    }
    if let Some(lacks) = fabric(&device)? {
        return Err(Fault::Fabric(lacks));
    }
    let field = FieldId(NVML_FI_DEV_GET_GPU_RECOVERY_ACTION);
    let values = optional(device.field_values_for(&[field]))?.unwrap_or_default();
    let value = values.into_iter().next().and_then(Result::ok).and_then(|sample| sample.value.ok());
    Ok(match value.and_then(|value| number(&value)) {
        None => Recovery::NotReported,
        Some(0) => Recovery::None,
        Some(1) => Recovery::Reset,
        Some(2) => Recovery::Reboot,
        Some(3) => Recovery::DrainP2p,
        Some(4) => Recovery::DrainAndReset,
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

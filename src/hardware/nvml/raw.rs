//! The calls that nvml-wrapper does not offer safely: MIG instance ids, the far end of an NVLink, the fabric, memory of old drivers,
//! and one event set for all GPUs that keeps the instance ids of its events. Every `unsafe` of the crate's shipping code is in this file.

// The wrapper's event type drops the MIG ids, its `register_events` frees the whole set when one GPU refuses, and it has
// no call for instance ids; the raw functions below have no other way in.
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::sync::Arc;

use nvml_wrapper::error::{NvmlError, nvml_sym, nvml_try};
use nvml_wrapper::{Device, Nvml};

/// Critical XID errors.
pub(super) const EVENT_XID: u64 = 8;
/// "No instance" in an event.
const NO_INSTANCE: u32 = u32::MAX;
/// `NVML_DEVICE_UUID_V2_BUFFER_SIZE`.
const UUID_BYTES: usize = 96;

/// GPU instance of a MIG device.
pub(super) fn gpu_instance(device: &Device<'_>) -> Result<u32, NvmlError> {
    let ask = nvml_sym(device.nvml().lib().nvmlDeviceGetGpuInstanceId.as_ref())?;
    let mut id = 0;
    // SAFETY: the handle came from this very library and lives as long as `device`; the out-pointer is valid.
    unsafe { nvml_try(ask(device.handle(), &raw mut id))? };
    Ok(id)
}

/// Compute instance of a MIG device.
pub(super) fn compute_instance(device: &Device<'_>) -> Result<u32, NvmlError> {
    let ask = nvml_sym(device.nvml().lib().nvmlDeviceGetComputeInstanceId.as_ref())?;
    let mut id = 0;
    // SAFETY: as above.
    unsafe { nvml_try(ask(device.handle(), &raw mut id))? };
    Ok(id)
}

/// Total memory by the first version of the call, for drivers before R510, which lack the second.
pub(super) fn memory_v1(device: &Device<'_>) -> Result<u64, NvmlError> {
    let ask = nvml_sym(device.nvml().lib().nvmlDeviceGetMemoryInfo.as_ref())?;
    // SAFETY: the struct is plain C data for which zero is valid, and the out-pointer to it is; the handle is live.
    unsafe {
        let mut memory = std::mem::zeroed();
        nvml_try(ask(device.handle(), &raw mut memory))?;
        Ok(memory.total)
    }
}

/// How far a GPU's registration with the NVSwitch fabric is, and the result of one that is completed.
pub(super) fn fabric(device: &Device<'_>) -> Result<(u8, u32), NvmlError> {
    let ask = nvml_sym(device.nvml().lib().nvmlDeviceGetGpuFabricInfo.as_ref())?;
    // SAFETY: the struct is plain C data for which zero is valid, and the out-pointer to it is; the handle is live.
    unsafe {
        let mut info = std::mem::zeroed();
        nvml_try(ask(device.handle(), &raw mut info))?;
        Ok((info.state, info.status))
    }
}

/// What an NVLink of a GPU ends at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RemoteKind {
    Gpu,
    Switch,
    /// A CPU, or a kind of a newer driver.
    Other,
}

/// What a link ends at. (The wrapper's `remote_device_type` of 0.13 lets NVML write into a temporary and always answers
/// "unknown".)
pub(super) fn remote_kind(device: &Device<'_>, link: u32) -> Result<RemoteKind, NvmlError> {
    let ask = nvml_sym(device.nvml().lib().nvmlDeviceGetNvLinkRemoteDeviceType.as_ref())?;
    let mut kind = u32::MAX;
    // SAFETY: the handle came from this very library and lives as long as `device`; the out-pointer is valid.
    unsafe { nvml_try(ask(device.handle(), link, &raw mut kind))? };
    Ok(match kind {
        0 => RemoteKind::Gpu,
        2 => RemoteKind::Switch,
        _ => RemoteKind::Other,
    })
}

/// An event as NVML gave it.
#[derive(Debug)]
pub(super) struct RawEvent {
    /// The device's handle.
    handle: *mut c_void,
    pub kind: u64,
    pub data: u64,
    pub mig: Option<(u32, u32)>,
}

/// An event set with its library. NVML lets a set be used by one thread at a time: an owner or borrower of this is
/// alone, because registering ends before waiting begins.
pub(super) struct Events {
    nvml: Arc<Nvml>,
    set: *mut c_void,
}

// SAFETY: the pointer is a handle of the library, which is thread-safe; a set only asks not to be used by two threads at
// once, and every use goes through the owner or through one question at a time on the query thread.
unsafe impl Send for Events {}
// SAFETY: as above; shared references are handed out one after another and never used side by side.
unsafe impl Sync for Events {}

impl Events {
    pub fn new(nvml: Arc<Nvml>) -> Result<Self, NvmlError> {
        let set = {
            let create = nvml_sym(nvml.lib().nvmlEventSetCreate.as_ref())?;
            // Checked here so that dropping a set never meets a missing function.
            nvml_sym(nvml.lib().nvmlEventSetFree.as_ref())?;
            let mut set = std::ptr::null_mut();
            // SAFETY: the out-pointer is valid; on success the library filled it.
            unsafe { nvml_try(create(&raw mut set))? };
            set.cast()
        };
        Ok(Self { nvml, set })
    }

    /// Asks for the `kinds` of events of one GPU.
    pub fn register(&self, device: &Device<'_>, kinds: u64) -> Result<(), NvmlError> {
        let register = nvml_sym(self.nvml.lib().nvmlDeviceRegisterEvents.as_ref())?;
        // SAFETY: device and set are live handles of the same library; no other thread uses the set meanwhile.
        unsafe { nvml_try(register(device.handle(), kinds, self.set.cast())) }
    }

    /// Waits for one event; `Ok(None)` when none came in time.
    pub fn wait(&self, millis: u32) -> Result<Option<RawEvent>, NvmlError> {
        let wait = nvml_sym(self.nvml.lib().nvmlEventSetWait_v2.as_ref())?;
        // SAFETY: the struct is plain C data for which zero is valid; the set is live and only waited on by this thread.
        let (waited, data) = unsafe {
            let mut data = std::mem::zeroed();
            (wait(self.set.cast(), &raw mut data, millis), data)
        };
        match nvml_try(waited) {
            Ok(()) => {}
            Err(NvmlError::Timeout) => return Ok(None),
            Err(error) => return Err(error),
        }
        let instance = (data.gpuInstanceId, data.computeInstanceId);
        let mig = (instance.0 != NO_INSTANCE && instance.1 != NO_INSTANCE).then_some(instance);
        Ok(Some(RawEvent { handle: data.device.cast(), kind: data.eventType, data: data.eventData, mig }))
    }

    /// UUID of the GPU that an event is about, asked of the library: for events whose handle is not the one that was registered,
    /// but a MIG device's, or another one of the same GPU.
    pub fn uuid(&self, event: &RawEvent) -> Result<String, NvmlError> {
        if event.handle.is_null() {
            return Err(NvmlError::InvalidArg);
        }
        let ask = nvml_sym(self.nvml.lib().nvmlDeviceGetUUID.as_ref())?;
        let mut text = [0; UUID_BYTES];
        // SAFETY: the handle came from this very library with the event; both out-pointers are valid and the length is theirs.
        unsafe {
            let mut gpu = event.handle.cast();
            if let Ok(parent) = nvml_sym(self.nvml.lib().nvmlDeviceGetDeviceHandleFromMigDeviceHandle.as_ref()) {
                let mut of = std::ptr::null_mut();
                if nvml_try(parent(gpu, &raw mut of)).is_ok() && !of.is_null() {
                    gpu = of;
                }
            }
            nvml_try(ask(gpu, text.as_mut_ptr(), UUID_BYTES as u32))?;
        }
        let bytes: Vec<u8> = text.iter().take_while(|byte| **byte != 0).map(|byte| *byte as u8).collect();
        String::from_utf8(bytes).map_err(|_| NvmlError::Unknown)
    }
}

impl RawEvent {
    /// What identifies the handle inside this library, as [`handle_id`] does.
    pub fn handle_id(&self) -> usize {
        self.handle.addr()
    }
}

impl Drop for Events {
    fn drop(&mut self) {
        if let Ok(free) = nvml_sym(self.nvml.lib().nvmlEventSetFree.as_ref()) {
            // SAFETY: the set was created by this library, is freed once, and the library is still loaded.
            unsafe { free(self.set.cast()) };
        }
    }
}

/// What identifies a GPU's handle inside this library: NVML gives one GPU one handle for as long as it runs.
pub(super) fn handle_id(device: &Device<'_>) -> usize {
    // SAFETY: the handle is only turned into a number; nothing is read through it.
    unsafe { device.handle() }.addr()
}

//! Where GPU facts come from. The daemon sees this trait only; NVML, a recording or nothing stands behind it.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::gpu::{Fault, GpuScan};

/// A source of GPU facts. Every method may block for as long as its deadline: never call it from a gRPC handler.
pub trait GpuProvider: Send + Sync {
    /// Looks at every GPU. One bad GPU is a [`GpuFault`](super::gpu::GpuFault) inside the answer, never an error.
    fn scan(&self) -> Result<GpuScan, NvmlError>;

    /// Opens one GPU by UUID and asks how it is.
    fn probe(&self, uuid: &str) -> Result<Probe, NvmlError>;
}

/// Called from the event thread for each event; must not block.
pub type EventSink = Arc<dyn Fn(GpuEvent) + Send + Sync>;

/// What a probe of one GPU found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Probe {
    /// `Ok` when the handle opened and the UUID is the same.
    pub outcome: Result<Recovery, Fault>,
}

/// What the driver wants done with a GPU (NVML's recovery action).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Recovery {
    /// Nothing.
    None,
    /// This driver cannot say.
    NotReported,
    /// Reset the GPU.
    Reset,
    /// Reboot the node.
    Reboot,
    /// Stop peer-to-peer traffic, then reset.
    DrainP2p,
    /// Let running work end, then reset.
    DrainAndReset,
    /// Recover the IMEX domain that the GPU is part of.
    ImexDomain,
    /// A value of a newer driver.
    Unknown(u64),
}

impl Recovery {
    /// What the driver wants done, in words; `None` when it wants nothing or cannot say.
    pub fn wanted(self) -> Option<String> {
        match self {
            Self::None | Self::NotReported => None,
            Self::Reset => Some("the driver asks for a reset of the GPU (nvidia-smi --gpu-reset)".to_owned()),
            Self::Reboot => Some("the driver asks for a reboot of the node".to_owned()),
            Self::DrainP2p => Some("the driver asks to stop peer-to-peer traffic, then to reset the GPU".to_owned()),
            Self::DrainAndReset => Some("the driver asks to let running work end, then to reset the GPU".to_owned()),
            Self::ImexDomain => Some("the driver asks to recover the IMEX domain (nvidia-imex-ctl)".to_owned()),
            Self::Unknown(action) => {
                Some(format!("the driver asks for recovery action {action}, which is not known here"))
            }
        }
    }
}

/// One event of one GPU, as it came; what it means is decided elsewhere.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuEvent {
    /// The GPU; `None` when NVML could not say, which concerns them all.
    pub uuid: Option<String>,
    /// GPU instance and compute instance, when the event names them.
    pub mig: Option<(u32, u32)>,
    /// What happened.
    pub kind: EventKind,
}

/// What an event says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EventKind {
    /// A critical error with its XID. Errors that happen together may all carry the number of the last (NVML keeps only
    /// that), so an XID that is ignored is still a reason to probe its GPU.
    Xid(u64),
    /// The wait for events itself reported a GPU off the bus: probe them all.
    Lost,
    /// This GPU delivers no events, as long as it is not said to listen; it must be polled.
    Silent(String),
    /// The GPU delivers events from here on.
    Listening,
}

/// NVML as a whole is not usable.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NvmlError {
    /// No library could be loaded.
    #[error("no NVML library could be loaded; tried:{}{}\n{}", list(tried), beside(*bound), advice(tried))]
    NoLibrary {
        /// Every path in the order tried.
        tried: Vec<LoadAttempt>,
        /// PCI functions that NVIDIA's kernel driver has.
        bound: usize,
    },
    /// The library (named) loaded and refused to start because the kernel driver has another version.
    #[error("{}: driver and library versions differ: the driver was updated and not reloaded; reboot the node or reload \
             the nvidia kernel modules, then the daemon continues by itself", .0.display())]
    VersionMismatch(PathBuf),
    /// The library loaded and may not talk to the driver.
    #[error("{}: no permission to talk to the driver; run the daemon as root with /dev/nvidiactl and /dev/nvidia* visible \
             (securityContext.privileged, or the device nodes mounted)", .0.display())]
    NoPermission(PathBuf),
    /// The library loaded and there is no driver.
    #[error("{}: the NVIDIA kernel driver is not loaded; install or load it (modprobe nvidia), or set \
             --fail-on-init-error=false to wait for it", .0.display())]
    DriverNotLoaded(PathBuf),
    /// Another failure of a loaded library.
    #[error("{}: NVML failed: {what}", path.display())]
    Failed {
        /// The library.
        path: PathBuf,
        /// NVML's message.
        what: String,
    },
    /// NVML as a whole did not answer in time.
    #[error("NVML did not answer {what} within {millis} ms; the call was abandoned")]
    Timeout {
        /// What was asked.
        what: String,
        /// The deadline.
        millis: u64,
    },
    /// Too many calls hang. Mostly a new process would be no better off, and one with a call that hangs in the kernel cannot end.
    #[error(
        "{0} NVML calls hang, and no more are begun until one returns; where nvidia-smi answers on this node, restart the node daemon, else reboot \
         the node"
    )]
    Exhausted(usize),
    /// A recording could not be read.
    #[error("recording {}: {what}", path.display())]
    Recording {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        what: String,
    },
}

impl NvmlError {
    /// A call has not returned: a process that it keeps in the driver cannot end.
    pub fn is_hang(&self) -> bool {
        matches!(self, Self::Timeout { .. } | Self::Exhausted(_))
    }

    /// Whether there is no library anywhere, and no GPU that would need it.
    pub fn is_absence(&self) -> bool {
        matches!(self, Self::NoLibrary { tried, bound: 0 } if tried.iter().all(|attempt| !attempt.there))
    }
}

fn beside(bound: usize) -> String {
    if bound == 0 { String::new() } else { format!("\nNVIDIA's kernel driver has {bound} PCI functions here") }
}

/// One path that was tried and what came of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoadAttempt {
    /// The path given to the loader.
    pub path: PathBuf,
    /// The loader's message.
    pub error: String,
    /// A library is there, and cannot be loaded.
    pub there: bool,
}

fn list(tried: &[LoadAttempt]) -> String {
    let lines: Vec<String> = tried.iter().map(|a| format!("\n  {}: {}", a.path.display(), a.error)).collect();
    lines.concat()
}

fn advice(tried: &[LoadAttempt]) -> String {
    let denied = |a: &LoadAttempt| a.error.to_ascii_lowercase().contains("permission denied");
    let foreign = |a: &LoadAttempt| a.error.contains("wrong ELF class") || a.error.contains("invalid ELF header");
    if let Some(found) = tried.iter().find(|a| denied(a)) {
        return format!("a library is there but may not be read: check the permissions of {}", found.path.display());
    }
    if let Some(found) = tried.iter().find(|a| foreign(a)) {
        return format!("{} is not a library of this machine's architecture", found.path.display());
    }
    if let Some(found) = tried.iter().find(|a| a.there) {
        return format!(
            "{} is there and cannot be loaded: a file that it needs is missing where this program runs, or it is damaged or another library",
            found.path.display()
        );
    }
    "install the NVIDIA driver on this node, or say where it is: --nvml-library <file>, or --driver-root <directory> \
     (/run/nvidia/driver with the driver container)"
        .to_owned()
}

/// A machine without GPUs, or a daemon that is to look for none.
#[derive(Clone, Copy, Debug, Default)]
pub struct NullProvider;

impl GpuProvider for NullProvider {
    fn scan(&self) -> Result<GpuScan, NvmlError> {
        Ok(GpuScan::default())
    }

    fn probe(&self, _uuid: &str) -> Result<Probe, NvmlError> {
        Ok(Probe { outcome: Err(Fault::Gone) })
    }
}

/// Answers from a JSON file with one [`GpuScan`], read again at each scan. For tests and for reproducing a report.
#[derive(Clone, Debug)]
pub struct RecordedProvider {
    path: PathBuf,
}

impl RecordedProvider {
    /// A provider over `path`; the file is read at the first question.
    pub fn new(path: impl AsRef<Path>) -> Self {
        Self { path: path.as_ref().to_owned() }
    }
}

impl GpuProvider for RecordedProvider {
    fn scan(&self) -> Result<GpuScan, NvmlError> {
        let failed = |what: String| NvmlError::Recording { path: self.path.clone(), what };
        let text = std::fs::read(&self.path).map_err(|e| failed(e.to_string()))?;
        serde_json::from_slice(&text).map_err(|e| failed(e.to_string()))
    }

    fn probe(&self, uuid: &str) -> Result<Probe, NvmlError> {
        let scan = self.scan()?;
        let fault = scan.faults.iter().find(|f| f.uuid.as_deref() == Some(uuid));
        let outcome = match (scan.gpu(uuid), fault) {
            (_, Some(fault)) => Err(fault.fault.clone()),
            (Some(_), None) => Ok(Recovery::None),
            (None, None) => Err(Fault::Gone),
        };
        Ok(Probe { outcome })
    }
}

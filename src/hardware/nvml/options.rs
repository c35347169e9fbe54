//! What the NVML provider is told from outside.

use std::path::PathBuf;
use std::time::Duration;

/// Where NVML is and how long it may take.
#[derive(Clone, Debug)]
pub struct NvmlOptions {
    /// The one library to load (`--nvml-library`); without it the loader's path and the driver root are searched.
    pub library: Option<PathBuf>,
    /// Root of the driver's files.
    pub driver_root: PathBuf,
    /// Sysfs, to notice GPUs that came or went since NVML started; `None` to trust NVML's list.
    pub sysfs: Option<PathBuf>,
    /// Longest time for one question about one GPU.
    pub deadline: Duration,
    /// Longest time for starting NVML: without persistence mode it wakes every GPU.
    pub init_deadline: Duration,
    /// Longest single wait for events; bounds how long a restart of NVML takes.
    pub event_wait: Duration,
    /// Monotonic time, to notice a library that does not wait for events; `None` to trust it.
    pub clock: Option<fn() -> Duration>,
}

impl Default for NvmlOptions {
    fn default() -> Self {
        Self {
            library: None,
            driver_root: "/".into(),
            sysfs: Some("/sys".into()),
            deadline: Duration::from_secs(2),
            init_deadline: Duration::from_secs(60),
            event_wait: Duration::from_secs(2),
            clock: None,
        }
    }
}

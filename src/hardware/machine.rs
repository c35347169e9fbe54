//! One snapshot of the whole machine: GPUs, NICs, and what of them could not be read.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::gpu::GpuScan;
use super::nic::{Nic, NicFault};

/// Where this machine's files are. Tests and containers give other roots; nothing outside them is read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Roots {
    /// Sysfs, `/sys`.
    pub sysfs: PathBuf,
    /// Procfs, `/proc`.
    pub proc: PathBuf,
    /// Device nodes, `/dev`.
    pub dev: PathBuf,
    /// Root of the driver's user-space files, `/` or `/run/nvidia/driver`.
    pub driver: PathBuf,
}

impl Default for Roots {
    fn default() -> Self {
        Self { sysfs: "/sys".into(), proc: "/proc".into(), dev: "/dev".into(), driver: "/".into() }
    }
}

/// What is in this machine. Order is stable: GPUs and NICs by PCI address, so two snapshots of an unchanged machine are
/// equal.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Machine {
    /// GPUs with their places, and the GPUs that did not answer.
    pub gpus: GpuScan,
    /// RDMA NICs.
    pub nics: Vec<Nic>,
    /// RDMA entries that could not be read.
    pub nic_faults: Vec<NicFault>,
    /// The kernel's boot id; changes with every boot.
    pub boot_id: Option<String>,
}

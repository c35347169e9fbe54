//! What a pod holds of a node's devices: parts of devices, by number.

use super::place::{DeviceSet, Slot};

/// A device, or a part of one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Part {
    /// A GPU or a share of it.
    Gpu {
        /// Its number in the pool.
        gpu: u8,
        /// Percent of compute.
        core: u16,
        /// Memory, in the unit of the GPU's own `memory` (bytes, or percent where bytes are not known).
        memory: i64,
    },
    /// A MIG device.
    Mig {
        /// Its number in the pool.
        mig: u8,
    },
    /// A NIC or a share of it.
    Nic {
        /// Its number in the pool.
        nic: u8,
        /// Percent.
        percent: u16,
        /// Virtual functions, by number below the NIC.
        vfs: u128,
    },
}

impl Part {
    /// The device this is a part of.
    pub fn slot(self) -> Slot {
        match self {
            Self::Gpu { gpu, .. } => Slot::Gpu(gpu),
            Self::Mig { mig } => Slot::Mig(mig),
            Self::Nic { nic, .. } => Slot::Nic(nic),
        }
    }

    /// Both parts held at the same time; `other` must be of the same device.
    pub(super) fn plus(self, other: Self) -> Self {
        match (self, other) {
            (Self::Gpu { gpu, core, memory }, Self::Gpu { core: c, memory: m, .. }) => {
                Self::Gpu { gpu, core: core.saturating_add(c), memory: memory.saturating_add(m) }
            }
            (Self::Nic { nic, percent, vfs }, Self::Nic { percent: p, vfs: v, .. }) => {
                Self::Nic { nic, percent: percent.saturating_add(p), vfs: vfs | v }
            }
            _ => self,
        }
    }

    /// The larger need of two parts that are held one after the other; `other` must be of the same device.
    pub(super) fn peak(self, other: Self) -> Self {
        match (self, other) {
            (Self::Gpu { gpu, core, memory }, Self::Gpu { core: c, memory: m, .. }) => {
                Self::Gpu { gpu, core: core.max(c), memory: memory.max(m) }
            }
            (Self::Nic { nic, percent, vfs }, Self::Nic { percent: p, vfs: v, .. }) => {
                Self::Nic { nic, percent: percent.max(p), vfs: vfs | v }
            }
            _ => self,
        }
    }
}

/// Everything one pod holds on one node: at most one part per device, and the devices that its exclusivity closes to others.
/// Stays valid while its pool is updated from newer Device objects.
#[derive(Debug, Clone, PartialEq, Eq, Default, Hash)]
pub struct Grant {
    /// Sorted by device.
    pub parts: Box<[Part]>,
    /// Devices that no other pod may use meanwhile.
    pub closed: DeviceSet,
}

impl Grant {
    /// The devices held, whole or in part.
    pub fn held(&self) -> DeviceSet {
        self.parts.iter().map(|part| part.slot()).collect()
    }

    /// Mask of the GPUs held, whole or in part.
    pub fn gpus(&self) -> u128 {
        self.held().gpus
    }
}

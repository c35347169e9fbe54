//! What a pod holds of a node's devices: parts of devices, by number.

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

/// A device of a pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Slot {
    /// GPU of that number.
    Gpu(u8),
    /// MIG device of that number.
    Mig(u8),
    /// NIC of that number.
    Nic(u8),
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
    /// GPUs that nobody else may use meanwhile.
    pub closed_gpus: u128,
    /// NICs that nobody else may use meanwhile.
    pub closed_nics: u128,
    /// MIG devices that nobody else may use meanwhile.
    pub closed_migs: u128,
}

impl Grant {
    /// `true` when nothing is held.
    pub fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    /// Mask of the GPUs held, whole or in part.
    pub fn gpus(&self) -> u128 {
        self.parts.iter().fold(0, |mask, part| match part.slot() {
            Slot::Gpu(at) => mask | 1 << at,
            _ => mask,
        })
    }

    /// Mask of the NICs held, whole or in part.
    pub fn nics(&self) -> u128 {
        self.parts.iter().fold(0, |mask, part| match part.slot() {
            Slot::Nic(at) => mask | 1 << at,
            _ => mask,
        })
    }
}

//! What is taken of a node's devices. Pools share their accounts where one state follows from another one in a known way, so
//! that most equal ones are told by a glance.

use super::grant::{Grant, Part, Slot};
use super::place::bit;
use super::summary::Summary;

/// The fingerprint of no devices.
const NOTHING: u64 = 0xcbf2_9ce4_8422_2325;

/// What is taken of one device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Used {
    /// GPU memory in the GPU's own unit.
    pub memory: i64,
    /// Virtual functions.
    pub vfs: u128,
    /// Percent of compute, or of the NIC.
    pub percent: u32,
    /// Pods that hold a part.
    pub holders: u32,
    /// Pods whose exclusivity closes the device to others.
    pub closed: u32,
    /// Pods that hold a part of a NIC itself, and no virtual function of it.
    pub undivided: u32,
}

/// What is taken of every device, by its number, and what that comes to.
#[derive(Debug, Clone)]
pub(super) struct Accounts {
    pub gpus: Vec<Used>,
    pub migs: Vec<Used>,
    pub nics: Vec<Used>,
    /// What is free, in a few numbers.
    pub summary: Summary,
    /// Equal where the same is taken; different for most others.
    pub fingerprint: u64,
}

/// Of no devices.
impl Default for Accounts {
    fn default() -> Self {
        let (gpus, migs, nics) = (Vec::new(), Vec::new(), Vec::new());
        Self { gpus, migs, nics, summary: Summary::default(), fingerprint: NOTHING }
    }
}

/// Equal when the same is taken.
impl PartialEq for Accounts {
    fn eq(&self, other: &Self) -> bool {
        self.fingerprint == other.fingerprint
            && (&self.gpus, &self.migs, &self.nics) == (&other.gpus, &other.migs, &other.nics)
    }
}

impl Eq for Accounts {}

impl Accounts {
    /// Of one device.
    pub fn used(&self, slot: Slot) -> Option<&Used> {
        match slot {
            Slot::Gpu(at) => self.gpus.get(usize::from(at)),
            Slot::Mig(at) => self.migs.get(usize::from(at)),
            Slot::Nic(at) => self.nics.get(usize::from(at)),
        }
    }

    fn used_mut(&mut self, slot: Slot) -> Option<&mut Used> {
        match slot {
            Slot::Gpu(at) => self.gpus.get_mut(usize::from(at)),
            Slot::Mig(at) => self.migs.get_mut(usize::from(at)),
            Slot::Nic(at) => self.nics.get_mut(usize::from(at)),
        }
    }

    /// Counts a grant in, whether there is room or not.
    pub fn count(&mut self, grant: &Grant) {
        for part in &grant.parts {
            if let Some(used) = self.used_mut(part.slot()) {
                used.holders += 1;
                match *part {
                    Part::Gpu { core, memory, .. } => {
                        used.percent += u32::from(core);
                        used.memory = used.memory.saturating_add(memory);
                    }
                    Part::Mig { .. } => {}
                    Part::Nic { percent, vfs, .. } => {
                        used.percent += u32::from(percent);
                        used.vfs |= vfs;
                        used.undivided += u32::from(vfs == 0);
                    }
                }
            }
        }
        self.close(grant, |closed| *closed += 1);
    }

    /// Counts a grant out that was counted in.
    pub fn discount(&mut self, grant: &Grant) {
        for part in &grant.parts {
            if let Some(used) = self.used_mut(part.slot()) {
                used.holders -= 1;
                match *part {
                    Part::Gpu { core, memory, .. } => {
                        used.percent -= u32::from(core);
                        used.memory -= memory;
                    }
                    Part::Mig { .. } => {}
                    Part::Nic { percent, vfs, .. } => {
                        used.percent -= u32::from(percent);
                        used.vfs &= !vfs;
                        used.undivided = used.undivided.saturating_sub(u32::from(vfs == 0));
                    }
                }
            }
        }
        self.close(grant, |closed| *closed = closed.saturating_sub(1));
    }

    fn close(&mut self, grant: &Grant, change: impl Fn(&mut u32)) {
        let each = |mask: u128, list: &mut [Used]| {
            if mask == 0 {
                return;
            }
            for (at, used) in list.iter_mut().enumerate() {
                if mask & bit(at as u8) != 0 {
                    change(&mut used.closed);
                }
            }
        };
        each(grant.closed_gpus, &mut self.gpus);
        each(grant.closed_nics, &mut self.nics);
        each(grant.closed_migs, &mut self.migs);
    }

    /// The fingerprint of what is taken now.
    pub fn mark(&self) -> u64 {
        // FNV-1a over words: what it is mixed of are small numbers, and a wrong guess only costs a comparison.
        let mix = |hash: u64, word: u64| (hash ^ word).wrapping_mul(0x0000_0100_0000_01b3).rotate_left(23);
        [&self.gpus, &self.migs, &self.nics].into_iter().flatten().fold(NOTHING, |hash, used| {
            let taken = mix(mix(hash, used.memory as u64), (u64::from(used.percent) << 32) | u64::from(used.holders));
            let open = mix(taken, u64::from(used.closed));
            if used.vfs == 0 { open } else { mix(mix(open, used.vfs as u64), (used.vfs >> 64) as u64) }
        })
    }
}

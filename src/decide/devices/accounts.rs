//! What is taken of a node's devices, and what that leaves free. Pools share their accounts where one state follows from another
//! one in a known way, so that most equal ones are recognised by a pointer.

use super::grant::{Grant, Part};
use super::inventory::Devices;
use super::place::{Slot, bit, bits};

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
    pub summary: FreeSummary,
    /// Equal where the same is taken; different for most others.
    pub fingerprint: u64,
}

/// Of no devices.
impl Default for Accounts {
    fn default() -> Self {
        let (gpus, migs, nics) = (Vec::new(), Vec::new(), Vec::new());
        Self { gpus, migs, nics, summary: FreeSummary::default(), fingerprint: NOTHING }
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
        for slot in grant.closed.slots() {
            if let Some(used) = self.used_mut(slot) {
                used.closed += 1;
            }
        }
    }

    /// Gives every device an account; call it after devices were added.
    pub fn grow(&mut self, devices: &Devices) {
        self.gpus.resize(devices.gpus.len(), Used::default());
        self.migs.resize(devices.migs.len(), Used::default());
        self.nics.resize(devices.nics.len(), Used::default());
    }

    /// Free compute (percent) and memory (the GPU's unit) of a GPU; never negative.
    pub fn gpu_room(&self, devices: &Devices, at: u8) -> (u16, i64) {
        let (gpu, used) = (&devices.gpus[usize::from(at)], &self.gpus[usize::from(at)]);
        (u32::from(gpu.core).saturating_sub(used.percent) as u16, (gpu.memory - used.memory).max(0))
    }

    /// Free percent of a NIC.
    pub fn nic_room(&self, devices: &Devices, at: u8) -> u16 {
        let percent = u32::from(devices.nics[usize::from(at)].percent);
        percent.saturating_sub(self.nics[usize::from(at)].percent) as u16
    }

    /// Works out what the accounts come to; call it after every change.
    pub fn sum_up(&mut self, devices: &Devices) {
        (self.summary, self.fingerprint) = (FreeSummary::of(devices, self), self.mark());
    }

    fn mark(&self) -> u64 {
        // FNV-1a over words: what it is mixed of are small numbers, and a wrong guess only costs a comparison.
        let mix = |hash: u64, word: u64| (hash ^ word).wrapping_mul(0x0000_0100_0000_01b3).rotate_left(23);
        [&self.gpus, &self.migs, &self.nics].into_iter().flatten().fold(NOTHING, |hash, used| {
            let taken = mix(mix(hash, used.memory as u64), (u64::from(used.percent) << 32) | u64::from(used.holders));
            let open = mix(taken, u64::from(used.closed));
            if used.vfs == 0 { open } else { mix(mix(open, used.vfs as u64), (used.vfs >> 64) as u64) }
        })
    }
}

/// What is free on a node, in a few numbers: for filters, scores and indexes that must not look at each device. Kept up to date.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FreeSummary {
    /// Healthy GPUs that are open, not cordoned and have capacity, by number.
    pub open_gpus: u128,
    /// Of these, the ones of which no pod holds a part.
    pub free_gpus: u128,
    /// Healthy, open NICs that are not cordoned.
    pub open_nics: u128,
    /// Of these, the ones of which no pod holds a part.
    pub free_nics: u128,
    /// Healthy, open, unheld MIG devices that are not cordoned.
    pub free_migs: u128,
    /// GPUs with capacity, healthy or not.
    pub gpus: u32,
    /// NICs with capacity, healthy or not.
    pub nics: u32,
    /// Percent of compute over all GPUs, healthy or not.
    pub core_total: u32,
    /// Percent of compute that is free on open GPUs.
    pub core_free: u32,
    /// Percent of memory that is free on open GPUs.
    pub memory_free: u32,
    /// Percent of all GPUs that is not free, of each the more used of compute and memory; what is not open counts as used.
    pub taken: u32,
    /// Most compute free on one open GPU.
    pub core_most: u16,
    /// Most memory free on one open GPU, percent.
    pub memory_most: u16,
    /// Percent free on open NICs.
    pub nic_free: u32,
    /// Most percent free on one open NIC.
    pub nic_most: u16,
}

impl FreeSummary {
    fn of(devices: &Devices, accounts: &Accounts) -> Self {
        let mut sum = Self::default();
        for (at, gpu) in (0u8..).zip(&devices.gpus).filter(|(_, gpu)| gpu.core > 0) {
            sum.gpus += 1;
            sum.core_total += u32::from(gpu.core);
            sum.taken += u32::from(gpu.core);
            let used = &accounts.gpus[usize::from(at)];
            if gpu.common.is_in_use() && used.closed == 0 {
                sum.open_gpus |= bit(at);
                if used.holders == 0 {
                    sum.free_gpus |= bit(at);
                }
            }
        }
        for at in bits(sum.open_gpus) {
            let (core, memory) = accounts.gpu_room(devices, at);
            let percent = share_of(memory, devices.gpus[usize::from(at)].memory);
            sum.core_free += u32::from(core);
            sum.memory_free += u32::from(percent);
            sum.taken -= u32::from(core.min(percent));
            sum.core_most = sum.core_most.max(core);
            sum.memory_most = sum.memory_most.max(percent);
        }
        for (at, nic) in (0u8..).zip(&devices.nics).filter(|(_, nic)| nic.percent > 0) {
            sum.nics += 1;
            let used = &accounts.nics[usize::from(at)];
            if nic.common.is_in_use() && used.closed == 0 {
                let room = accounts.nic_room(devices, at);
                sum.open_nics |= bit(at);
                sum.nic_free += u32::from(room);
                sum.nic_most = sum.nic_most.max(room);
                if used.holders == 0 {
                    sum.free_nics |= bit(at);
                }
            }
        }
        for (at, mig) in (0u8..).zip(&devices.migs) {
            let used = &accounts.migs[usize::from(at)];
            if mig.common.is_in_use() && used.closed == 0 && used.holders == 0 {
                sum.free_migs |= bit(at);
            }
        }
        sum
    }
}

/// Percent that `part` is of `whole`, 0..=100. Tolerates the byte that a percentage of memory loses in rounding, so that a
/// share asked for in percent reads back as that percent, also summed over a hundred shares.
pub(super) fn share_of(part: i64, whole: i64) -> u16 {
    let slack = if whole >= 1 << 20 { 128 } else { 0 };
    if whole <= 0 || part == 0 {
        return 0;
    }
    if part == whole {
        return 100;
    }
    // Bytes of a GPU fit many times over; wider arithmetic costs, and this is asked for every GPU of every node looked at.
    let percent = match part.checked_add(slack).and_then(|part| part.checked_mul(100)) {
        Some(part) => part / whole,
        None => ((i128::from(part) + i128::from(slack)) * 100 / i128::from(whole)).clamp(0, 100) as i64,
    };
    percent.clamp(0, 100) as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_that_was_asked_for_in_percent_reads_back_as_that_percent() {
        const H100: i64 = 85_520_809_984;
        for percent in 1..=100_i64 {
            // Rounded down to a byte, and a hundred such shares together.
            assert_eq!(i64::from(share_of(H100 * percent / 100, H100)), percent);
            assert_eq!(i64::from(share_of(H100 / 100 * percent, H100)), percent, "{percent} shares of a percent");
        }
        let cases =
            [(0, 100, 0), (1, 100, 1), (-5, 100, 0), (200, 100, 100), (99, 100, 99), (5, 0, 0), (5, -1, 0), (0, 0, 0)];
        for (part, whole, percent) in cases {
            assert_eq!(share_of(part, whole), percent, "{part} of {whole}");
        }
        // One byte less than a percent is not that percent where there are few bytes.
        assert_eq!(
            (share_of(10_485, 1 << 20), share_of(10_485 - 128, 1 << 20), share_of(10_484, (1 << 20) - 1)),
            (1, 0, 0)
        );
        // Too large for 64 bits.
        assert_eq!((share_of(i64::MAX / 2, i64::MAX), share_of(i64::MAX - 1000, i64::MAX)), (50, 99));
    }

    #[test]
    fn accounts_are_equal_where_the_same_is_taken() {
        let used = |percent, memory| Used { percent, memory, holders: 1, ..Used::default() };
        let of = |gpus: Vec<Used>, nics: Vec<Used>| {
            let mut accounts = Accounts { gpus, nics, ..Accounts::default() };
            accounts.fingerprint = accounts.mark();
            accounts
        };
        let one = of(vec![used(50, 7)], vec![used(1, 0)]);
        assert!(one == of(vec![used(50, 7)], vec![used(1, 0)]));
        let vfs = Used { vfs: 1 << 70, ..used(1, 0) };
        let others = [
            of(vec![used(51, 7)], vec![used(1, 0)]),
            of(vec![used(50, 8)], vec![used(1, 0)]),
            of(vec![used(50, 7)], vec![vfs]),
            of(vec![Used { closed: 1, ..used(50, 7) }], vec![used(1, 0)]),
            of(vec![Used { holders: 2, ..used(50, 7) }], vec![used(1, 0)]),
            of(vec![], vec![]),
        ];
        for other in &others {
            assert!(one != *other && one.fingerprint != other.fingerprint);
        }
        // A fingerprint is no proof.
        let mut pretender = others[0].clone();
        pretender.fingerprint = one.fingerprint;
        assert!(one != pretender);
    }
}

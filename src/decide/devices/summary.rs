//! What is free on a node, in a few numbers: for filters, scores and indexes that must not look at each device.

use super::place::{bit, bits};
use super::pool::NodePool;

/// Kept by the pool after every change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Summary {
    /// Healthy GPUs that are open and have capacity, by number.
    pub open_gpus: u128,
    /// Of these, the ones nobody holds a part of.
    pub free_gpus: u128,
    /// Healthy, open NICs.
    pub open_nics: u128,
    /// Of these, the ones nobody holds a part of.
    pub free_nics: u128,
    /// Healthy, open, unheld MIG devices.
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

impl Summary {
    /// Number of whole GPUs that are free.
    pub fn free_gpu_count(&self) -> u32 {
        self.free_gpus.count_ones()
    }

    /// Number of whole NICs that are free.
    pub fn free_nic_count(&self) -> u32 {
        self.free_nics.count_ones()
    }

    pub(super) fn of(pool: &NodePool) -> Self {
        let devices = pool.devices();
        let mut sum = Self::default();
        for (at, gpu) in (0u8..).zip(&devices.gpus).filter(|(_, gpu)| gpu.core > 0) {
            sum.gpus += 1;
            sum.core_total += u32::from(gpu.core);
            sum.taken += u32::from(gpu.core);
            let used = pool.used_gpu(at);
            if gpu.healthy && used.closed == 0 {
                sum.open_gpus |= bit(at);
                if used.holders == 0 {
                    sum.free_gpus |= bit(at);
                }
            }
        }
        for at in bits(sum.open_gpus) {
            let (core, memory) = pool.gpu_room(at);
            let percent = share_of(memory, devices.gpus[usize::from(at)].memory);
            sum.core_free += u32::from(core);
            sum.memory_free += u32::from(percent);
            sum.taken -= u32::from(core.min(percent));
            sum.core_most = sum.core_most.max(core);
            sum.memory_most = sum.memory_most.max(percent);
        }
        for (at, nic) in (0u8..).zip(&devices.nics).filter(|(_, nic)| nic.percent > 0) {
            sum.nics += 1;
            let used = pool.used_nic(at);
            if nic.healthy && used.closed == 0 {
                let room = pool.nic_room(at);
                sum.open_nics |= bit(at);
                sum.nic_free += u32::from(room);
                sum.nic_most = sum.nic_most.max(room);
                if used.holders == 0 {
                    sum.free_nics |= bit(at);
                }
            }
        }
        for (at, mig) in (0u8..).zip(&devices.migs) {
            let used = pool.used_mig(at);
            if mig.healthy && used.closed == 0 && used.holders == 0 {
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

//! Which devices a pod may use at all: healthy, open, matching its selector, and as lonely as its exclusivity asks; and which
//! devices its own exclusivity closes to others.

use super::grant::{Part, Slot};
use super::place::{Level, bit, bits};
use super::pool::NodePool;
use super::reason::Reason;
use super::wishes::{Exclusive, Wishes};
use crate::contract::hint::{DeviceHint, ExclusivePolicy};

/// The devices that a pod may use, by number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Eligible {
    /// GPUs that may be shared with others, where there is room.
    pub gpus: u128,
    /// GPUs nobody holds.
    pub free_gpus: u128,
    /// MIG devices nobody holds.
    pub migs: u128,
    /// NICs that may be shared with others, where there is room.
    pub nics: u128,
    /// NICs nobody holds.
    pub free_nics: u128,
    /// Healthy GPUs and NICs that the selectors match, open or not (with hints; of no use without).
    pub matching: (u128, u128),
}

/// Judges every device of `pool` by `wishes`.
pub(super) fn eligible(pool: &NodePool, wishes: &Wishes) -> Eligible {
    let free = pool.summary();
    if wishes.is_plain() {
        return Eligible {
            gpus: free.open_gpus,
            free_gpus: free.free_gpus,
            migs: free.free_migs,
            nics: free.open_nics,
            free_nics: free.free_nics,
            matching: (free.open_gpus, free.open_nics),
        };
    }
    let (gpus, migs, nics) = healthy(pool);
    let gpu_match = matching(&wishes.gpu, gpus, |at| &pool.devices().gpus[usize::from(at)].labels);
    let mig_match = matching(&wishes.gpu, migs, |at| &pool.devices().migs[usize::from(at)].labels);
    let nic_match = matching(&wishes.rdma, nics, |at| &pool.devices().nics[usize::from(at)].labels);
    let (gpu_alone, mig_alone, _) = alone(pool, wishes.gpu.exclusive_policy);
    let (_, _, nic_alone) = alone(pool, wishes.rdma.exclusive_policy);
    Eligible {
        gpus: free.open_gpus & gpu_match & gpu_alone,
        free_gpus: free.free_gpus & gpu_match & gpu_alone,
        migs: free.free_migs & mig_match & mig_alone,
        nics: free.open_nics & nic_match & nic_alone,
        free_nics: free.free_nics & nic_match & nic_alone,
        matching: (gpu_match, nic_match),
    }
}

/// Why devices that exist are not eligible, where selector or exclusivity is to blame.
pub(super) fn blame(pool: &NodePool, wishes: &Wishes, gpu: bool) -> Option<Reason> {
    let eligible = eligible(pool, wishes);
    let free = pool.summary();
    let (hint, matching, left, open, what) = if gpu {
        (&wishes.gpu, eligible.matching.0, eligible.gpus | eligible.migs, free.open_gpus | free.free_migs, "GPU")
    } else {
        (&wishes.rdma, eligible.matching.1, eligible.nics, free.open_nics, "NIC")
    };
    if hint.selector.is_some() && matching == 0 && (!gpu || eligible.migs == 0) {
        return Some(Reason::NoMatch { what });
    }
    let policy = hint.exclusive_policy?;
    (left == 0 && open != 0).then_some(Reason::NotAlone { what, policy })
}

/// The devices that a pod with these parts closes to others.
pub(super) fn closure(pool: &NodePool, parts: &[Part], exclusive: Exclusive) -> (u128, u128, u128) {
    let (mut gpus, mut nics, mut migs) = (0, 0, 0);
    for part in parts {
        let slot = part.slot();
        let policy = if matches!(slot, Slot::Nic(_)) { exclusive.rdma } else { exclusive.gpu };
        match policy {
            None => {}
            Some(ExclusivePolicy::DeviceLevel) => match slot {
                Slot::Gpu(at) => gpus |= bit(at),
                Slot::Nic(at) => nics |= bit(at),
                Slot::Mig(at) => migs |= bit(at),
            },
            Some(ExclusivePolicy::PcieLevel) => {
                let devices = pool.devices();
                let place = match slot {
                    Slot::Gpu(at) => devices.gpus[usize::from(at)].place,
                    Slot::Nic(at) => devices.nics[usize::from(at)].place,
                    Slot::Mig(at) => devices.migs[usize::from(at)].place,
                };
                // A device of unknown place has no neighbours, and is closed itself.
                match slot {
                    Slot::Gpu(at) => gpus |= bit(at),
                    Slot::Nic(at) => nics |= bit(at),
                    Slot::Mig(at) => migs |= bit(at),
                }
                let group = devices.group(Level::Switch, place.switch);
                gpus |= group.gpus;
                nics |= group.nics;
                migs |= group.migs;
            }
        }
    }
    (gpus, nics, migs)
}

/// Healthy devices with capacity, whoever holds them: GPUs, MIG devices, NICs.
fn healthy(pool: &NodePool) -> (u128, u128, u128) {
    let devices = pool.devices();
    let mask = |healthy: &mut dyn Iterator<Item = bool>| {
        healthy.zip(0u8..).fold(0u128, |mask, (ok, at)| if ok { mask | bit(at) } else { mask })
    };
    let gpus = mask(&mut devices.gpus.iter().map(|gpu| gpu.healthy && gpu.core > 0));
    let migs = mask(&mut devices.migs.iter().map(|mig| mig.healthy));
    let nics = mask(&mut devices.nics.iter().map(|nic| nic.healthy && nic.percent > 0));
    (gpus, migs, nics)
}

fn matching<'a>(hint: &DeviceHint, all: u128, labels: impl Fn(u8) -> &'a super::devices::Labels) -> u128 {
    match &hint.selector {
        None => all,
        Some(selector) => bits(all).filter(|at| selector.matches(labels(*at))).fold(0, |mask, at| mask | bit(at)),
    }
}

/// Devices with as little company as `policy` asks: GPUs, MIG devices, NICs.
fn alone(pool: &NodePool, policy: Option<ExclusivePolicy>) -> (u128, u128, u128) {
    let Some(policy) = policy else { return (u128::MAX, u128::MAX, u128::MAX) };
    let devices = pool.devices();
    let busy = |len: usize, holders: &dyn Fn(u8) -> u32| {
        (0..len as u8).filter(|at| holders(*at) > 0).fold(0, |mask, at| mask | bit(at))
    };
    let (mut gpus, mut migs, mut nics) = (
        busy(devices.gpus.len(), &|at| pool.used_gpu(at).holders),
        busy(devices.migs.len(), &|at| pool.used_mig(at).holders),
        busy(devices.nics.len(), &|at| pool.used_nic(at).holders),
    );
    if policy == ExclusivePolicy::PcieLevel {
        for group in devices.groups(Level::Switch) {
            if group.gpus & gpus != 0 || group.migs & migs != 0 || group.nics & nics != 0 {
                gpus |= group.gpus;
                migs |= group.migs;
                nics |= group.nics;
            }
        }
    }
    (!gpus, !migs, !nics)
}

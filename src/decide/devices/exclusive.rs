//! Which devices a pod may use at all: healthy, open, matching its selector, and as free of other pods as its exclusivity asks; and
//! which devices its own exclusivity closes to others.

use super::grant::Part;
use super::place::{DeviceSet, Level, Slot};
use super::pool::NodePool;
use super::reason::Reason;
use super::wishes::{Exclusive, Wishes};
use baton_contract::hint::{DeviceHint, ExclusivePolicy};

/// The devices that a pod may use, by number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Eligible {
    /// GPUs that may be shared with others, where there is room.
    pub gpus: u128,
    /// GPUs that no pod holds.
    pub free_gpus: u128,
    /// MIG devices that no pod holds.
    pub migs: u128,
    /// NICs that may be shared with others, where there is room.
    pub nics: u128,
    /// NICs that no pod holds.
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
    let devices = pool.devices();
    let matches = |slot: &Slot| {
        let hint = if matches!(slot, Slot::Nic(_)) { &wishes.rdma } else { &wishes.gpu };
        hint.selector
            .as_ref()
            .is_none_or(|selector| selector.matches_device(devices.labels(*slot), devices.uuid(*slot)))
    };
    let matching: DeviceSet = devices.slots().filter(|slot| devices.is_usable(*slot)).filter(matches).collect();
    let for_nics = matching & alone(pool, wishes.rdma.exclusive_policy);
    let for_gpus = matching & alone(pool, wishes.gpu.exclusive_policy);
    Eligible {
        gpus: free.open_gpus & for_gpus.gpus,
        free_gpus: free.free_gpus & for_gpus.gpus,
        migs: free.free_migs & for_gpus.migs,
        nics: free.open_nics & for_nics.nics,
        free_nics: free.free_nics & for_nics.nics,
        matching: (matching.gpus, matching.nics),
    }
}

/// Why GPUs and MIG devices that exist are not eligible, where selector or exclusivity is to blame.
pub(super) fn gpus_to_blame(pool: &NodePool, wishes: &Wishes) -> Option<Reason> {
    let (eligible, free) = (eligible(pool, wishes), pool.summary());
    let (left, open) = (eligible.gpus | eligible.migs, free.open_gpus | free.free_migs);
    blame(&wishes.gpu, "GPU", eligible.matching.0 | eligible.migs, left, open)
}

/// Why NICs that exist are not eligible, where selector or exclusivity is to blame.
pub(super) fn nics_to_blame(pool: &NodePool, wishes: &Wishes) -> Option<Reason> {
    let (eligible, free) = (eligible(pool, wishes), pool.summary());
    blame(&wishes.rdma, "NIC", eligible.matching.1, eligible.nics, free.open_nics)
}

/// `matching`, `left` and `open` are the devices that the selector matches, those left by selector and exclusivity, and those open at all.
fn blame(hint: &DeviceHint, what: &'static str, matching: u128, left: u128, open: u128) -> Option<Reason> {
    if hint.selector.is_some() && matching == 0 {
        return Some(Reason::NoMatch { what });
    }
    let policy = hint.exclusive_policy?;
    (left == 0 && open != 0).then_some(Reason::NotAlone { what, policy })
}

/// The devices that a pod with these parts closes to others.
pub(super) fn closure(pool: &NodePool, parts: &[Part], exclusive: Exclusive) -> DeviceSet {
    let devices = pool.devices();
    let mut closed = DeviceSet::default();
    for slot in parts.iter().map(|part| part.slot()) {
        let policy = if matches!(slot, Slot::Nic(_)) { exclusive.rdma } else { exclusive.gpu };
        let Some(policy) = policy else { continue };
        // A device of unknown place has no neighbours, and is closed itself.
        closed |= DeviceSet::of(slot);
        if policy == ExclusivePolicy::PcieLevel {
            closed |= devices.group(Level::Switch, devices.place(slot).switch);
        }
    }
    closed
}

/// Devices that share no device, or no PCIe switch, with another pod, as `policy` asks.
fn alone(pool: &NodePool, policy: Option<ExclusivePolicy>) -> DeviceSet {
    let Some(policy) = policy else { return DeviceSet::ALL };
    let devices = pool.devices();
    let held = |slot: &Slot| pool.used(*slot).is_some_and(|used| used.holders > 0);
    let mut busy: DeviceSet = devices.slots().filter(held).collect();
    if policy == ExclusivePolicy::PcieLevel {
        for group in devices.groups(Level::Switch) {
            if !(*group & busy).is_empty() {
                busy |= *group;
            }
        }
    }
    !busy
}

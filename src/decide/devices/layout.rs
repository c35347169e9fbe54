//! What two nodes of one make have in common: everything about their devices that a choice reads, which is all but the names.

use super::accounts::Accounts;
use super::devices::{Devices, Gpu, Labels, Mig, Nic, VfSlot};
use super::held::Amounts;
use super::partition::PartitionTable;
use super::place::Place;
use super::pool::NodePool;
use crate::contract::Shared;

/// The devices of a node without their identities. Nodes with equal layouts get equal choices while the same is taken.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Layout {
    gpus: Box<[GpuLike]>,
    migs: Box<[MigLike]>,
    nics: Box<[NicLike]>,
    partitions: Option<PartitionTable>,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct GpuLike {
    minor: i32,
    place: Place,
    core: u16,
    memory: i64,
    bytes_known: bool,
    healthy: bool,
    labels: Shared<Labels>,
    capacity: Option<Shared<Amounts>>,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct MigLike {
    minor: i32,
    place: Place,
    profile: Box<str>,
    /// Number of the GPU that it is a part of.
    parent: Option<u8>,
    healthy: bool,
    labels: Shared<Labels>,
    capacity: Option<Shared<Amounts>>,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct NicLike {
    minor: i32,
    place: Place,
    percent: u16,
    /// Number, whether the inventory lists it, labels.
    vfs: Box<[(i32, bool, Shared<Labels>)]>,
    healthy: bool,
    labels: Shared<Labels>,
    capacity: Option<Shared<Amounts>>,
}

impl Layout {
    // Every field is named, so that a new one does not compile before somebody has said whether a choice reads it.
    pub(super) fn of(devices: &Devices) -> Self {
        let gpu = |gpu: &Gpu| {
            let Gpu { id: _, minor, place, core, memory, bytes_known, healthy, labels, capacity } = gpu.clone();
            GpuLike { minor, place, core, memory, bytes_known, healthy, labels, capacity }
        };
        let mig = |mig: &Mig| {
            let Mig { id: _, minor, place, profile, parent, healthy, labels, capacity } = mig.clone();
            let parent = devices.gpus.iter().position(|gpu| *gpu.id.as_str() == *parent).map(|at| at as u8);
            MigLike { minor, place, profile, parent, healthy, labels, capacity }
        };
        let vf = |vf: &VfSlot| {
            let VfSlot { minor, bus_id: _, listed, labels } = vf.clone();
            (minor, listed, labels)
        };
        let nic = |nic: &Nic| {
            let Nic { id: _, minor, place, percent, vfs, healthy, labels, capacity } = nic.clone();
            NicLike { minor, place, percent, vfs: vfs.iter().map(vf).collect(), healthy, labels, capacity }
        };
        Self {
            gpus: devices.gpus.iter().map(gpu).collect(),
            migs: devices.migs.iter().map(mig).collect(),
            nics: devices.nics.iter().map(nic).collect(),
            partitions: devices.partitions.clone(),
        }
    }
}

/// All that a choice reads of a pool: the layout and what is taken.
#[derive(Debug, Clone)]
pub struct PoolState {
    layout: Shared<Layout>,
    accounts: Shared<Accounts>,
}

impl PoolState {
    /// Of this pool, now.
    pub fn of(pool: &NodePool) -> Self {
        Self { layout: pool.devices().layout().clone(), accounts: pool.accounts().clone() }
    }

    /// Every choice on `pool` is what it was on the pool that this is of. A layout that is not stored once is not recognised,
    /// which costs a choice and changes none.
    pub fn is_of(&self, pool: &NodePool) -> bool {
        self.layout.is_same(pool.devices().layout()) && self.accounts == *pool.accounts()
    }

    /// [`NodePool::fingerprint`] of such pools.
    pub fn fingerprint(&self) -> u64 {
        self.accounts.fingerprint
    }
}

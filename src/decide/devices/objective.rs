//! Which of two sets of whole GPUs, and which of two GPUs for a share, is better: the orders that the searches minimise, stated once,
//! for search and test alike.

use super::place::{Level, bits};
use super::pool::NodePool;

/// How far apart the GPUs of each container lie, summed over a pod's containers. Compared field by field in this order;
/// smaller is better.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Dispersion {
    /// 1. NVLink domains.
    pub nvlink_domains: u32,
    /// 2. Containers whose GPUs are not all below one PCIe switch.
    pub beyond_switch: u32,
    /// 3. NUMA nodes.
    pub numa_nodes: u32,
    /// 4. PCIe switches.
    pub switches: u32,
}

impl Dispersion {
    /// Both, of two containers.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self {
            nvlink_domains: self.nvlink_domains + other.nvlink_domains,
            beyond_switch: self.beyond_switch + other.beyond_switch,
            numa_nodes: self.numa_nodes + other.numa_nodes,
            switches: self.switches + other.switches,
        }
    }
}

/// How bad a set of whole GPUs is. Compared field by field in this order; smaller is better.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Objective {
    /// 0. How far apart each container's own GPUs lie, where several containers want some and NICs have no say; else nothing.
    pub spread: Dispersion,
    /// 1. NVLink domains that the set lies in; a GPU without domain counts as one of its own.
    pub nvlink_domains: u32,
    /// 2. Steps from the GPUs to the NICs that would come with them (joint allocation only, else 0).
    pub nic_distance: u32,
    /// 3. Not all below one PCIe switch.
    pub beyond_switch: bool,
    /// 4. NUMA nodes that the set lies on.
    pub numa_nodes: u32,
    /// 5. PCIe switches that the set lies below; a GPU of unknown place counts as below one of its own.
    pub switches: u32,
    /// 6. Worth of free groups that the set breaks, see [`worth`], summed over switches, NUMA nodes and NVLink domains.
    pub broken: u64,
    /// 7. Minors: of two sets, the one that has the lowest minor that is not in both is smaller.
    pub minors: u128,
}

/// Worth of `free` free GPUs in one group: the sum of the squares of the powers of two that `free` is made of, so that 8
/// together (64) are worth more than 4 + 4 (32), and 7 (16 + 4 + 1) little more than 6 (16 + 4). Where these are equal, below
/// them (a node's squares of all levels are less than 2^16) the larger group counts more: of 3 and 2, 3 stay together.
pub fn worth(free: u32) -> u64 {
    let powers = (0..8).filter(|power| free & (1 << power) != 0).map(|power| 1u64 << (2 * power)).sum::<u64>();
    (powers << 16) + u64::from(free * free)
}

/// Judges the set of GPUs `set` (a mask of numbers in `pool`), all of them free.
pub fn objective(pool: &NodePool, set: u128, nic_distance: u32) -> Objective {
    let devices = pool.devices();
    let free = pool.summary().free_gpus;
    let mut broken = 0;
    let mut spans = |level: Level, weigh: bool| {
        let (mut groups, mut placed) = (0, 0);
        for group in devices.groups(level) {
            let taken = group.gpus & set;
            if taken != 0 {
                groups += 1;
                placed |= taken;
                if weigh {
                    let before = group.gpus & free;
                    broken += worth(before.count_ones()) - worth((before & !taken).count_ones());
                }
            }
        }
        groups + (set & !placed).count_ones()
    };
    let switches = spans(Level::Switch, true);
    let numa_nodes = spans(Level::Numa, true);
    let nvlink_domains = spans(Level::Nvlink, true);
    let minors =
        bits(set).fold(0, |mask, at| mask | 1 << (127 - devices.gpus[usize::from(at)].common.minor.clamp(0, 127)));
    let beyond_switch = switches > 1;
    Objective {
        spread: Dispersion::default(),
        nvlink_domains,
        nic_distance,
        beyond_switch,
        numa_nodes,
        switches,
        broken,
        minors: !minors,
    }
}

/// How well a share fits a GPU. Compared field by field in this order; smaller is better.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Fit {
    /// 1. Not on a GPU that the pod holds whole anyway, at a time when it is idle.
    pub foreign: bool,
    /// 2. On a GPU of which no pod holds a part yet.
    pub breaks_whole: bool,
    /// 3. Steps to the NICs (joint allocation only, else 0).
    pub nic_distance: u32,
    /// 4. What is left on the GPU afterwards: thousandths of compute plus thousandths of memory.
    pub left: i64,
    /// 5. Worth of free groups that is broken, as for whole GPUs.
    pub broken: u64,
    /// 6. Minor.
    pub minor: i32,
    /// 7. Number in the pool.
    pub number: u8,
}

//! How good a node is for a request, as far as devices decide: pure helpers for the score plugins, each 0..=100 or a fraction.

use super::accounts::share_of;
use super::assignment::Assignment;
use super::objective::objective;
use super::place::{bit, bits};
use super::pool::NodePool;

/// How well a pick lies together, 0..=100. The GPUs' NVLink domains, switches and NUMA nodes count alike: each is 100 when all
/// GPUs are in one, falling evenly to 0 when each is in one of its own. A pick of at most one GPU lies as well as can be.
pub fn topology_fit(pool: &NodePool, assignment: &Assignment) -> u32 {
    let set = assignment.grant.gpus();
    let count = set.count_ones();
    if count < 2 {
        return 100;
    }
    let value = objective(pool, set, 0);
    let together = |groups: u32| 100 * (count - groups.clamp(1, count)) / (count - 1);
    (together(value.nvlink_domains) + together(value.switches) + together(value.numa_nodes)) / 3
}

/// A kind of request that the cluster sees, for [`fragmentation`].
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct TypicalRequest {
    /// Percent of compute and of memory per GPU; 100 and 100 for whole GPUs.
    pub core: u16,
    /// Percent of memory per GPU.
    pub memory: u16,
    /// Bytes of memory per GPU, where they are asked for instead of a percentage.
    pub bytes: i64,
    /// Number of GPUs.
    pub count: u32,
    /// Thousandths of a CPU beside the GPUs.
    pub milli_cpu: i64,
    /// Bytes of the node's memory beside the GPUs.
    pub node_memory: i64,
    /// How often, in any unit.
    pub weight: f64,
}

/// What a node has left beside its devices: thousandths of a CPU and bytes of memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FreeCpuMemory {
    /// Thousandths of a CPU.
    pub milli_cpu: i64,
    /// Bytes.
    pub memory: i64,
}

impl FreeCpuMemory {
    /// More than any pod asks for.
    pub const PLENTY: Self = Self { milli_cpu: i64::MAX, memory: i64::MAX };
}

/// Compute (in GPUs) that is free on the node but of no use to a request drawn from `mix`: for each kind, the free compute of
/// GPUs that the kind does not fit on, or of all when the node has too few that it fits on or too little beside them; averaged
/// by weight. 0 for an empty mix. The difference between before and after a pick is the gradient that a score plugin weighs.
pub fn fragmentation(pool: &NodePool, beside: FreeCpuMemory, mix: &[TypicalRequest]) -> f64 {
    let weight: f64 = mix.iter().map(|kind| kind.weight).sum();
    if weight <= 0.0 {
        return 0.0;
    }
    let summary = pool.summary();
    let lost: f64 = mix
        .iter()
        .map(|kind| {
            let (mut fitting, mut useless) = (0u32, 0u32);
            for at in bits(summary.open_gpus) {
                let (core, memory) = pool.gpu_room(at);
                let gpu = &pool.devices().gpus[usize::from(at)];
                let bytes = kind.bytes == 0 || (gpu.bytes_known && memory >= kind.bytes);
                let memory = share_of(memory, gpu.memory);
                let whole = kind.core < 100 || kind.memory < 100 || summary.free_gpus & bit(at) != 0;
                if whole && core >= kind.core && memory >= kind.memory && bytes {
                    fitting += 1;
                } else {
                    useless += u32::from(core);
                }
            }
            let starved = kind.milli_cpu > beside.milli_cpu || kind.node_memory > beside.memory;
            let useless = if starved || fitting < kind.count { summary.core_free } else { useless };
            kind.weight * f64::from(useless) / 100.0
        })
        .sum();
    lost / weight
}

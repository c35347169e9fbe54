//! How good a node is for a request, as far as devices decide: pure helpers for the score plugins, each 0..=100 or a fraction.

use super::accounts::share_of;
use super::assignment::Assignment;
use super::grant::{Grant, Part};
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

/// Percent that are free of each open GPU, of each the less free of compute and memory.
#[derive(Debug, Clone, Copy)]
pub struct Rests {
    percents: [u8; 128],
    count: usize,
}

impl Rests {
    /// By number.
    pub fn percents(&self) -> &[u8] {
        &self.percents[..self.count]
    }
}

/// What is free of a node's GPUs once `grant` is taken, too. A GPU that some pod holds a part of is never whole.
pub fn rests(pool: &NodePool, grant: Option<&Grant>) -> Rests {
    let summary = pool.summary();
    let mut rests = Rests { percents: [0; 128], count: 0 };
    let closed = grant.map_or(0, |grant| grant.closed.gpus);
    for at in bits(summary.open_gpus & !closed) {
        let (mut core, mut memory) = pool.gpu_room(at);
        let mut whole = summary.free_gpus & bit(at) != 0;
        for part in grant.iter().flat_map(|grant| &grant.parts) {
            if let Part::Gpu { gpu, core: taken, memory: bytes } = *part
                && gpu == at
            {
                (core, memory, whole) = (core.saturating_sub(taken), (memory - bytes).max(0), false);
            }
        }
        let percent = core.min(share_of(memory, pool.devices().gpus[usize::from(at)].memory));
        rests.percents[rests.count] = percent.min(if whole { 100 } else { 99 }) as u8;
        rests.count += 1;
    }
    rests
}

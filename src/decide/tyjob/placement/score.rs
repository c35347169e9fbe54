//! How the basic policies rate a node for one pod.

use crate::core::MetricWeights;
use crate::world::{Node, Resources, World};
use baton_contract::key;
use baton_contract::tyjob::{BasicPolicy, Role};

use super::folded::{Folded, GPU_PERCENT, gpu_percent};

/// CPU, memory and GPU of a node: what pods hold, and what there is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Utilisation {
    /// Held.
    pub used: [i64; 3],
    /// There.
    pub total: [i64; 3],
}

impl Utilisation {
    /// Of a node: what its pods ask for, and what it says that it offers.
    pub fn of(world: &World, node: &Node) -> Self {
        let Some(facts) = &node.facts else { return Self::default() };
        let (used, total) = (&node.used, &facts.allocatable);
        let gpu_total = if total.scalar.is_empty() { 0 } else { Folded::offered(total).get(GPU_PERCENT) };
        let gpu_used = if used.scalar(key::GPU_CORE) > 0 && used.scalar(key::GPU_MEMORY_RATIO) > 0 {
            // The larger of the two counts for each pod, so their sums do not decide.
            let pods = node.pods.iter().filter_map(|id| world.pod(*id));
            pods.fold(0, |sum: i64, pod| sum.saturating_add(gpu_percent(&pod.facts.spec.requests)))
        } else {
            gpu_percent(used)
        };
        Self { used: [used.milli_cpu, used.memory, gpu_used], total: [total.milli_cpu, total.memory, gpu_total] }
    }

    /// `(held + wanted) / total` of each resource, at most 1; `None` for one that the node has none of.
    fn with(&self, wanted: [i64; 3]) -> [Option<f64>; 3] {
        std::array::from_fn(|at| {
            let total = self.total[at];
            let held = self.used[at].saturating_add(wanted[at]).max(0);
            (total > 0).then(|| (held as f64 / total as f64).min(1.0))
        })
    }
}

/// CPU, memory and GPU that a pod asks for, as [`Utilisation`] counts them.
pub fn wanted(requests: &Resources) -> [i64; 3] {
    [requests.milli_cpu, requests.memory, gpu_percent(requests)]
}

/// What of a rating depends on the node and the pod alone; higher is better.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Metric {
    /// Weighted mean of utilisation.
    Full,
    /// The lowest weighted mean, with GPUs raised.
    EmptyGpuRaised,
    /// Weighted mean, with CPU raised.
    FullCpuRaised,
    /// Weighted mean, less where CPU and memory are used unequally.
    Even,
    /// The lowest weighted mean.
    Empty,
}

/// Ratings are compared in billionths: nodes that are equal but for rounding are equal.
const UNIT: f64 = 1e9;

impl Metric {
    /// The metric of a policy for a role.
    pub fn of(policy: BasicPolicy, role: Role) -> Self {
        match (policy, role) {
            (BasicPolicy::Gang | BasicPolicy::BinPack | BasicPolicy::JobAffinity, _) => Self::Full,
            (BasicPolicy::LeaderFirst, Role::Leader) => Self::EmptyGpuRaised,
            (BasicPolicy::LeaderFirst, Role::Worker) => Self::FullCpuRaised,
            (BasicPolicy::MinFragment, _) => Self::Even,
            (BasicPolicy::JobAntiAffinity, _) => Self::Empty,
        }
    }

    /// 0 to a billion.
    pub fn rate(self, load: &Utilisation, requests: &Resources, weights: &MetricWeights) -> i64 {
        let used = load.with(wanted(requests));
        let MetricWeights { cpu, memory, gpu, raised } = *weights;
        let weights = match self {
            Self::EmptyGpuRaised => [cpu, memory, raised],
            Self::FullCpuRaised => [raised, memory, gpu],
            Self::Full | Self::Even | Self::Empty => [cpu, memory, gpu],
        };
        // A node that has none of these resources is rated lowest.
        let Some(mean) = mean(used, weights) else { return 0 };
        let rating = match self {
            Self::Full | Self::FullCpuRaised => mean,
            Self::EmptyGpuRaised | Self::Empty => 1.0 - mean,
            Self::Even => {
                let apart = used[0].zip(used[1]).map_or(0.0, |(cpu, memory)| (cpu - memory).abs());
                (1.0 - apart) * mean
            }
        };
        (rating * UNIT).round() as i64
    }
}

fn mean(used: [Option<f64>; 3], weights: [u32; 3]) -> Option<f64> {
    let (mut sum, mut weight) = (0.0, 0.0);
    for (used, by) in used.into_iter().zip(weights) {
        if let Some(used) = used {
            sum += used * f64::from(by);
            weight += f64::from(by);
        }
    }
    (weight > 0.0).then(|| sum / weight)
}

/// A rating as a policy compares it, first to last; the greater wins, ties go by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, serde::Serialize, serde::Deserialize)]
pub struct Rank {
    /// `JobAffinity`: pods of the job on the node. `JobAntiAffinity`: the same, below zero. Others: 0.
    pub company: i64,
    /// `JobAffinity`: how many more of the job's pods would fit there. Others: 0.
    pub room: i64,
    /// The metric, in billionths.
    pub metric: i64,
}

impl Rank {
    /// The rating of a node. `here`: pods of the job on it. `room`: how many more of them would fit; asked for where it counts.
    pub fn of(policy: BasicPolicy, metric: i64, here: i64, room: impl FnOnce() -> i64) -> Self {
        match policy {
            BasicPolicy::JobAffinity => Self { company: here, room: room(), metric },
            BasicPolicy::JobAntiAffinity => Self { company: -here, room: 0, metric },
            _ => Self { company: 0, room: 0, metric },
        }
    }
}

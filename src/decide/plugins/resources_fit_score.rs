//! `NodeResourcesFit` as a rating, by its scoring strategy: the emptiest node first, the fullest first, or a line of one's own.
//! The figures are kube-scheduler's: whole numbers, rounded down per resource and once more in the weighted mean.

use crate::decide::framework::{Score, Slots, View};
use crate::decide::world::{Node, NodeId, Pod};

use super::requested_to_capacity_ratio::RatioConfig;
use super::resources_fit::NodeResourcesFit;
use super::usage::{Counted, Usage, Weights};

/// How a node is rated by what it has left.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Strategy {
    /// The more is left the better: spreads.
    LeastAllocated(Weights),
    /// The less is left the better: packs.
    MostAllocated(Weights),
    /// By a line through points.
    RequestedToCapacityRatio(RatioConfig),
}

impl Default for Strategy {
    fn default() -> Self {
        Self::LeastAllocated(Weights::cpu_and_memory())
    }
}

impl Strategy {
    /// As the configuration calls it.
    pub fn name(&self) -> &'static str {
        match self {
            Self::LeastAllocated(_) => "LeastAllocated",
            Self::MostAllocated(_) => "MostAllocated",
            Self::RequestedToCapacityRatio(_) => "RequestedToCapacityRatio",
        }
    }

    /// What the resources weigh.
    pub fn weights(&self) -> &Weights {
        match self {
            Self::LeastAllocated(weights) | Self::MostAllocated(weights) => weights,
            Self::RequestedToCapacityRatio(config) => config.weights(),
        }
    }
}

impl Score for NodeResourcesFit {
    fn score(&self, _: View<'_>, pod: &Pod, (_, node): (NodeId, &Node), _: &mut Slots) -> i64 {
        match &self.strategy {
            Strategy::LeastAllocated(weights) => mean(weights, pod, node, free_percent),
            Strategy::MostAllocated(weights) => mean(weights, pod, node, full_percent),
            Strategy::RequestedToCapacityRatio(config) => config.rate(pod, node),
        }
    }

    fn is_absolute(&self) -> bool {
        true
    }
}

/// The weighted mean over the resources that the node has and that concern the pod; 0 when there are none.
fn mean(weights: &Weights, pod: &Pod, node: &Node, percent: fn(i128, i128) -> i128) -> i64 {
    let (mut sum, mut all) = (0, 0);
    for (resource, weight) in weights.iter() {
        let Usage { wanted, used, total } = Usage::if_concerned(resource, Counted::Rated, pod, node);
        if total > 0 {
            sum += percent(i128::from(wanted) + i128::from(used), i128::from(total)) * i128::from(weight);
            all += i128::from(weight);
        }
    }
    if all == 0 { 0 } else { (sum / all) as i64 }
}

/// What is left of `total` once `taken` is, in percent; nothing of an overfull one.
fn free_percent(taken: i128, total: i128) -> i128 {
    (total - taken).max(0) * 100 / total
}

/// What is taken of `total`, in percent; at most all.
fn full_percent(taken: i128, total: i128) -> i128 {
    taken.min(total) * 100 / total
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn free_and_full_are_rounded_down_and_stay_within_bounds() {
        assert_eq!((free_percent(1, 3), full_percent(1, 3)), (66, 33));
        assert_eq!((free_percent(5, 3), full_percent(5, 3)), (0, 100));
        assert_eq!((free_percent(0, 7), full_percent(0, 7)), (100, 0));
    }
}

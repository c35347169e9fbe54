//! `NodeResourcesFit` as a rating, by its scoring strategy: the emptiest node first, the fullest first, or a line of one's own.
//! The figures are kube-scheduler's: whole numbers, rounded down per resource and once more in the weighted mean. By a line, its
//! mean leaves out resources that score 0, and is rounded to the nearest number; the rule `RequestedToCapacityRatio` does neither.

use crate::decide::scheduler::rules::{Score, Slots, View};
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
            Strategy::LeastAllocated(weights) => {
                let (sum, all) = sum(weights, pod, node, free_percent, |_| true);
                if all == 0 { 0 } else { (sum / all) as i64 }
            }
            Strategy::MostAllocated(weights) => {
                let (sum, all) = sum(weights, pod, node, full_percent, |_| true);
                if all == 0 { 0 } else { (sum / all) as i64 }
            }
            Strategy::RequestedToCapacityRatio(config) => {
                let score = |taken, total| line(config.shape(), full_percent(taken, total));
                let (sum, all) = sum(config.weights(), pod, node, score, |score| score > 0);
                if all == 0 { 0 } else { (sum as f64 / all as f64).round() as i64 }
            }
        }
    }

    fn is_absolute(&self) -> bool {
        true
    }
}

/// The weighted scores of the resources that the node has and that concern the pod, and their weights; those that do not `count`
/// are left out of both.
fn sum(
    weights: &Weights,
    pod: &Pod,
    node: &Node,
    score: impl Fn(i128, i128) -> i128,
    counts: impl Fn(i128) -> bool,
) -> (i128, i128) {
    let (mut sum, mut all) = (0, 0);
    for (resource, weight) in weights.iter() {
        let Usage { wanted, used, total } = Usage::if_concerned(resource, Counted::Rated, pod, node);
        if total > 0 {
            let score = score(i128::from(wanted) + i128::from(used), i128::from(total));
            if counts(score) {
                sum += score * i128::from(weight);
                all += i128::from(weight);
            }
        }
    }
    (sum, all)
}

/// The line through points (percent, tenth of a score) at whole percents, 0..=100: between two points it is rounded towards the
/// first.
fn line(shape: &[(i64, i64)], percent: i128) -> i128 {
    let points = || shape.iter().map(|(utilization, score)| (i128::from(*utilization), i128::from(*score) * 10));
    let mut before: Option<(i128, i128)> = None;
    for (at, score) in points() {
        if percent <= at {
            return before.map_or(score, |(x, y)| y + (score - y) * (percent - x) / (at - x));
        }
        before = Some((at, score));
    }
    before.map_or(0, |(_, last)| last)
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

    #[test]
    fn the_line_is_rounded_towards_the_point_before_and_is_flat_outside() {
        let shape = [(10, 0), (40, 7), (100, 3)];
        let scores = [0, 10, 11, 25, 39, 40, 41, 99, 100].map(|percent| line(&shape, percent));
        assert_eq!(scores, [0, 0, 2, 35, 67, 70, 70, 31, 30]);
    }
}

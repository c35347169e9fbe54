//! `NodeResourcesBalancedAllocation`: rates a node by whether the pod makes its resources more evenly used, or less.

use crate::core::rules::{Plugin, Reads, Score, Slots, View};
use crate::world::{Node, NodeId, Pod};

use super::usage::{CountedRequests, ResourceUsage, Weights};

/// The rule, over these resources; their weights do not matter, all count alike.
pub struct NodeResourcesBalancedAllocation(pub Weights);

impl Plugin for NodeResourcesBalancedAllocation {
    fn name(&self) -> &'static str {
        "NodeResourcesBalancedAllocation"
    }

    fn reads(&self, _: &Pod, _: &Slots) -> Reads {
        Reads::Node
    }
}

impl Score for NodeResourcesBalancedAllocation {
    /// 75 where the pod changes nothing, up to 100 where it evens out, down to 50 where it unbalances. A pod that asks for none of
    /// the resources is not rated: all such pods would go to one node.
    fn score(&self, _: View<'_>, pod: &Pod, (_, node): (NodeId, &Node), _: &mut Slots) -> i64 {
        let wanted = |(resource, _)| ResourceUsage::of(resource, CountedRequests::Requests, pod, node).wanted;
        if self.0.iter().map(wanted).all(|wanted| wanted == 0) {
            return 0;
        }
        let usages = self
            .0
            .iter()
            .map(|(resource, _)| ResourceUsage::if_concerned(resource, CountedRequests::Requests, pod, node));
        let usages: Vec<ResourceUsage> = usages.filter(|usage| usage.total > 0).collect();
        let share = |amount: i64, total: i64| (amount as f64 / total as f64).min(1.0);
        let with = evenness(usages.iter().map(|usage| share(usage.wanted + usage.used, usage.total)).collect());
        let without = evenness(usages.iter().map(|usage| share(usage.used, usage.total)).collect());
        50 + (50 + with - without) / 2
    }

    fn is_absolute(&self) -> bool {
        true
    }
}

/// 100 less the standard deviation in percent, rounded down: 50..=100.
fn evenness(shares: Vec<f64>) -> i64 {
    let count = shares.len().max(1) as f64;
    let mean = shares.iter().sum::<f64>() / count;
    let deviation = match shares.as_slice() {
        [] | [_] => 0.0,
        [a, b] => ((a - b) / 2.0).abs(),
        several => (several.iter().map(|share| (share - mean).powi(2)).sum::<f64>() / count).sqrt(),
    };
    ((1.0 - deviation) * 100.0) as i64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn evenness_falls_with_the_deviation() {
        assert_eq!(evenness(vec![]), 100);
        assert_eq!(evenness(vec![0.3]), 100);
        assert_eq!(evenness(vec![0.0, 1.0]), 50);
        assert_eq!(evenness(vec![0.5, 0.75]), 87);
        assert_eq!(evenness(vec![0.0, 0.5, 1.0]), 59);
    }
}

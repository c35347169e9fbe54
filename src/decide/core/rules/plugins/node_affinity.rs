//! `NodeAffinity`: node selector and required node affinity; preferred terms score by their weights.

use crate::core::rules::points::normalize_to_hundred;
use crate::core::rules::{Eligibility, Filter, NodeScore, Outcome, Plugin, Reads, Score, Slots, View};
use crate::world::{Node, NodeId, Pod, Wake};

/// The rule.
pub struct NodeAffinity;

/// The rule's name.
pub const NAME: &str = "NodeAffinity";

impl Plugin for NodeAffinity {
    fn name(&self) -> &'static str {
        NAME
    }

    fn reads(&self, pod: &Pod, _: &Slots) -> Reads {
        let spec = &pod.facts.spec;
        let anywhere = spec.node_selector.is_empty() && spec.node_required.is_none() && spec.node_preferred.is_empty();
        if anywhere { Reads::Nothing } else { Reads::Node }
    }
}

impl Filter for NodeAffinity {
    fn filter(&self, _: View<'_>, pod: &Pod, (_, node): (NodeId, &Node), _: &mut Slots) -> Outcome {
        let fits = node.facts.as_ref().is_some_and(|facts| pod.facts.spec.accepts_node(&node.name, &facts.labels));
        if fits {
            return Outcome::Fit;
        }
        let text = "have no labels that match the pod's nodeSelector or node affinity";
        Outcome::never(NAME, text, Wake::NODE_ADDED.or(Wake::NODE_CHANGED))
    }

    fn refused(&self) -> Eligibility {
        Eligibility::Never
    }
}

impl Score for NodeAffinity {
    fn score(&self, _: View<'_>, pod: &Pod, (_, node): (NodeId, &Node), _: &mut Slots) -> i64 {
        let Some(facts) = &node.facts else { return 0 };
        let preferred = pod.facts.spec.node_preferred.iter();
        preferred.filter(|(_, term)| term.matches(&node.name, &facts.labels)).map(|(weight, _)| weight).sum()
    }

    fn normalize(&self, _: View<'_>, _: &Pod, scores: &mut [NodeScore]) {
        normalize_to_hundred(scores);
    }
}

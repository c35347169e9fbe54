//! `NodeName`: a pod that names its node goes nowhere else.

use crate::core::rules::{Filter, Outcome, Plugin, Reads, Slots, View};
use crate::world::{Node, NodeId, Pod, Wake};

/// The rule.
pub struct NodeName;

const NAME: &str = "NodeName";

impl Plugin for NodeName {
    fn name(&self) -> &'static str {
        NAME
    }

    fn reads(&self, pod: &Pod, _: &Slots) -> Reads {
        if pod.facts.handoff.node.is_none() { Reads::Nothing } else { Reads::Node }
    }
}

impl Filter for NodeName {
    fn filter(&self, _: View<'_>, pod: &Pod, (_, node): (NodeId, &Node), _: &mut Slots) -> Outcome {
        match pod.facts.handoff.node.as_deref() {
            Some(wanted) if *wanted != *node.name => Outcome::never(NAME, "not the named node", Wake::NODE_ADDED),
            _ => Outcome::Fit,
        }
    }
}

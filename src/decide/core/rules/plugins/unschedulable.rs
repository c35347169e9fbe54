//! `NodeUnschedulable`: a cordoned node takes only pods that tolerate that taint.

use crate::core::rules::{Eligibility, Filter, Outcome, Plugin, Reads, Slots, View};
use crate::help::Help;
use crate::world::spec::{Taint, TaintEffect};
use crate::world::{Node, NodeId, Pod, PodSpec, Wake};

/// The rule.
pub struct NodeUnschedulable;

/// The rule's name.
pub const NAME: &str = "NodeUnschedulable";
/// Why a cordoned node takes no pods.
pub const CORDONED: &str = "it is cordoned (`kubectl uncordon`)";

impl Plugin for NodeUnschedulable {
    fn name(&self) -> &'static str {
        NAME
    }

    fn reads(&self, _: &Pod, _: &Slots) -> Reads {
        Reads::Node
    }
}

impl Filter for NodeUnschedulable {
    fn filter(&self, _: View<'_>, pod: &Pod, (_, node): (NodeId, &Node), _: &mut Slots) -> Outcome {
        let unschedulable = node.facts.as_ref().is_some_and(|facts| facts.unschedulable);
        if !unschedulable || tolerates(&pod.facts.spec) {
            return Outcome::Fit;
        }
        Outcome::never(NAME, "unschedulable", Wake::NODE_CHANGED)
    }

    fn closed(&self, node: &Node) -> Option<(String, Help)> {
        let facts = node.facts.as_ref()?;
        (!facts.takes_pods()).then(|| (CORDONED.to_owned(), Help::Rule))
    }

    fn refused(&self) -> Eligibility {
        Eligibility::NotNow
    }
}

fn tolerates(spec: &PodSpec) -> bool {
    let taint = Taint {
        key: "node.kubernetes.io/unschedulable".to_owned(),
        value: String::new(),
        effect: TaintEffect::NoSchedule,
    };
    spec.tolerations.iter().any(|toleration| toleration.covers(&taint))
}

//! `NodePorts`: two pods on one node cannot take the same port.

use crate::core::rules::{Filter, Outcome, Plugin, Reads, Slots, View};
use crate::world::{Node, NodeId, Pod, Wake};

/// The rule.
pub struct NodePorts;

const NAME: &str = "NodePorts";

impl Plugin for NodePorts {
    fn name(&self) -> &'static str {
        NAME
    }

    fn reads(&self, pod: &Pod, _: &Slots) -> Reads {
        if pod.facts.spec.host_ports.is_empty() { Reads::Nothing } else { Reads::World }
    }
}

impl Filter for NodePorts {
    fn filter(&self, view: View<'_>, pod: &Pod, (_, node): (NodeId, &Node), _: &mut Slots) -> Outcome {
        let wanted = &pod.facts.spec.host_ports;
        if wanted.is_empty() {
            return Outcome::Fit;
        }
        let others = node.pods.iter().filter(|id| **id != pod.id).filter_map(|id| view.world.pod(*id));
        let taken = others.flat_map(|other| &other.facts.spec.host_ports);
        for port in taken {
            if wanted.iter().any(|mine| mine.conflicts(port)) {
                return Outcome::unfit(NAME, "host port taken", Wake::POD_FREED.or(Wake::NODE_ADDED));
            }
        }
        Outcome::Fit
    }
}

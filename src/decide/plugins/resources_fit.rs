//! `NodeResourcesFit`: what the pod asks for must fit in allocatable minus requests, as kube-scheduler counts it.

use crate::contract::key;
use crate::decide::framework::{Filter, Outcome, Plugin, Reads, Slots, Text, View};
use crate::decide::help::Help;
use crate::decide::world::{Node, NodeId, Pod, Resources, Wake};

use super::resources_fit_score::Strategy;

/// The rule.
#[derive(Default)]
pub struct NodeResourcesFit {
    /// How it rates nodes.
    pub strategy: Strategy,
}

const NAME: &str = "NodeResourcesFit";

impl Plugin for NodeResourcesFit {
    fn name(&self) -> &'static str {
        NAME
    }

    fn reads(&self, _: &Pod, _: &Slots) -> Reads {
        Reads::Node
    }
}

impl Filter for NodeResourcesFit {
    fn filter(&self, _: View<'_>, pod: &Pod, (_, node): (NodeId, &Node), _: &mut Slots) -> Outcome {
        match shortage(&pod.facts.spec.requests, node) {
            None => Outcome::Fit,
            Some((text, help)) => {
                // Bytes of GPU memory come with the agent and its inventory.
                let room = Wake::POD_FREED.or(Wake::NODE_ROOM).or(Wake::NODE_ADDED);
                Outcome::unfit(NAME, text, room.or(Wake::AGENT).or(Wake::DEVICES)).helped_by(help)
            }
        }
    }
}

/// What the node has too little of; `None` when the request fits.
fn shortage(request: &Resources, node: &Node) -> Option<(Text, Help)> {
    let facts = node.facts.as_ref()?;
    let (have, used) = (&facts.allocatable, &node.used);
    if node.pods.len() as i64 + 1 > facts.max_pods {
        return Some(("too many pods".into(), Help::MaxPods));
    }
    let short = |wanted: i64, have: i64, used: i64| wanted > 0 && wanted > have.saturating_sub(used);
    if short(request.milli_cpu, have.milli_cpu, used.milli_cpu) {
        return Some(("insufficient cpu".into(), Help::Rule));
    }
    if short(request.memory, have.memory, used.memory) {
        return Some(("insufficient memory".into(), Help::Rule));
    }
    if short(request.ephemeral, have.ephemeral, used.ephemeral) {
        return Some(("insufficient ephemeral-storage".into(), Help::Rule));
    }
    let lacking = request.scalar.iter().find(|(name, wanted)| {
        short(**wanted, have.scalar(name), used.scalar(name)) && !is_counted_by_devices(name, node)
    });
    lacking.map(|(name, wanted)| match &**name {
        key::NVIDIA_GPU => (format!("have fewer than {wanted} free GPUs").into(), Help::Room),
        name => (format!("insufficient {name}").into(), Help::Rule),
    })
}

/// Bytes of GPU memory are no resource of the kubelet: the device rule counts them where an agent serves shares.
fn is_counted_by_devices(name: &str, node: &Node) -> bool {
    name == key::GPU_MEMORY && node.live_agent().is_some() && node.stock.is_some()
}

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
    fn filter(&self, _: View<'_>, pod: &Pod, (_, node): (NodeId, &Node), slots: &mut Slots) -> Outcome {
        match shortage(&pod.facts.spec.requests, node, slots.kept::<Lacks>()) {
            None => Outcome::Fit,
            Some((text, help)) => {
                // Bytes of GPU memory come with the agent and its inventory.
                let room = Wake::POD_FREED.or(Wake::NODE_ROOM).or(Wake::NODE_ADDED);
                Outcome::unfit(NAME, text, room.or(Wake::AGENT).or(Wake::DEVICES)).helped_by(help)
            }
        }
    }
}

/// What nodes with too little of an extended resource say: many say the same.
#[derive(Default)]
pub(super) struct Lacks(Vec<(Box<str>, i64, Text)>);

impl Lacks {
    fn text(&mut self, name: &str, wanted: i64) -> Text {
        if let Some((_, _, text)) = self.0.iter().find(|(known, amount, _)| **known == *name && *amount == wanted) {
            return text.clone();
        }
        let text = Text::from(match name {
            key::NVIDIA_GPU => format!("have fewer than {wanted} free GPUs"),
            name => format!("insufficient {name}"),
        });
        self.0.push((name.into(), wanted, text.clone()));
        text
    }
}

/// What the node has too little of; `None` when the request fits.
fn shortage(request: &Resources, node: &Node, lacks: &mut Lacks) -> Option<(Text, Help)> {
    let facts = node.facts.as_ref()?;
    let (have, used) = (&facts.allocatable, &node.used);
    if node.pods.len() as i64 + 1 > facts.max_pods {
        return Some(("too many pods".into(), Help::MaxPods));
    }
    if short(request.milli_cpu, have.milli_cpu, used.milli_cpu) {
        return Some(("insufficient cpu".into(), Help::Rule));
    }
    if short(request.memory, have.memory, used.memory) {
        return Some(("insufficient memory".into(), Help::Rule));
    }
    if short(request.ephemeral, have.ephemeral, used.ephemeral) {
        return Some(("insufficient ephemeral-storage".into(), Help::Rule));
    }
    scalar_shortage(request, node, lacks, |_| true)
}

/// The same of devices alone.
pub(super) fn device_shortage(request: &Resources, node: &Node, lacks: &mut Lacks) -> Option<(Text, Help)> {
    scalar_shortage(request, node, lacks, key::is_device_resource)
}

fn short(wanted: i64, have: i64, used: i64) -> bool {
    wanted > 0 && wanted > have.saturating_sub(used)
}

fn scalar_shortage(
    request: &Resources,
    node: &Node,
    lacks: &mut Lacks,
    counts: impl Fn(&str) -> bool,
) -> Option<(Text, Help)> {
    let facts = node.facts.as_ref()?;
    let (have, used) = (&facts.allocatable, &node.used);
    let (name, wanted) = request.scalar.iter().find(|(name, wanted)| {
        counts(name) && short(**wanted, have.scalar(name), used.scalar(name)) && !is_counted_by_devices(name, node)
    })?;
    // The kubelet offers none of what is there and healthy: nobody serves it now.
    if have.scalar(name) == 0 && has_healthy(node, name) {
        return Some(match node.live_agent() {
            None => ("agent not ready".into(), Help::Daemon),
            Some(_) => (format!("agent does not serve {name}").into(), Help::Registration),
        });
    }
    let help = if **name == *key::NVIDIA_GPU { Help::Room } else { Help::Rule };
    Some((lacks.text(name, *wanted), help))
}

/// The node's inventory lists a healthy device that is handed out by this name.
fn has_healthy(node: &Node, name: &str) -> bool {
    let Some(stock) = &node.stock else { return false };
    let devices = stock.pool().devices();
    if let Some(profile) = name.strip_prefix(key::MIG_PREFIX) {
        return devices.migs.iter().any(|mig| mig.healthy && *mig.profile == *profile);
    }
    match name {
        key::RDMA => devices.nics.iter().any(|nic| nic.healthy),
        name if key::is_device_resource(name) => devices.gpus.iter().any(|gpu| gpu.healthy && gpu.core > 0),
        _ => false,
    }
}

/// Bytes of GPU memory are no resource of the kubelet: the device rule counts them where an agent serves shares.
fn is_counted_by_devices(name: &str, node: &Node) -> bool {
    name == key::GPU_MEMORY && node.live_agent().is_some() && node.stock.is_some()
}

//! `NodeResourcesFit`: what the pod asks for must fit in allocatable minus requests, as kube-scheduler counts it.

use crate::contract::key;
use crate::decide::help::Help;
use crate::decide::scheduler::rules::{Filter, Outcome, Plugin, Reads, Slots, Text, View};
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
        match shortage(&pod.facts.spec.requests, node) {
            None => Outcome::Fit,
            Some(shortage) => {
                // Bytes of GPU memory come with the agent and its inventory.
                let room = Wake::POD_FREED.or(Wake::NODE_ROOM).or(Wake::NODE_ADDED);
                let (text, help) = shortage.told(slots);
                Outcome::unfit(NAME, text, room.or(Wake::AGENT).or(Wake::DEVICES)).helped_by(help)
            }
        }
    }
}

/// What a node has too little of.
pub(super) enum Shortage<'a> {
    /// Said in constant words.
    Plain(&'static str, Help),
    /// Of an extended resource, beside what is wanted of it.
    Extended(&'a str, i64),
    /// The kubelet offers none of what is there and healthy.
    Unserved(&'a str),
}

impl Shortage<'_> {
    /// The words for it, and what people can do.
    pub(super) fn told(self, slots: &mut Slots) -> (Text, Help) {
        match self {
            Self::Plain(text, help) => (text.into(), help),
            Self::Unserved(name) => (format!("agent does not serve {name}").into(), Help::Registration),
            Self::Extended(name, wanted) => {
                let help = if name == key::NVIDIA_GPU { Help::Room } else { Help::Rule };
                (slots.kept::<Lacks>().text(name, wanted), help)
            }
        }
    }
}

/// What nodes with too little of an extended resource say: many say the same.
#[derive(Default)]
struct Lacks(Vec<(Box<str>, i64, Text)>);

impl Lacks {
    fn text(&mut self, name: &str, wanted: i64) -> Text {
        if let Some((_, _, text)) = self.0.iter().find(|(known, amount, _)| *amount == wanted && **known == *name) {
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
fn shortage<'a>(request: &'a Resources, node: &Node) -> Option<Shortage<'a>> {
    let facts = node.facts.as_ref()?;
    let (have, used) = (&facts.allocatable, &node.used);
    if node.pods.len() as i64 + 1 > facts.max_pods {
        return Some(Shortage::Plain("too many pods", Help::MaxPods));
    }
    if short(request.milli_cpu, have.milli_cpu, used.milli_cpu) {
        return Some(Shortage::Plain("insufficient cpu", Help::Rule));
    }
    if short(request.memory, have.memory, used.memory) {
        return Some(Shortage::Plain("insufficient memory", Help::Rule));
    }
    if short(request.ephemeral, have.ephemeral, used.ephemeral) {
        return Some(Shortage::Plain("insufficient ephemeral-storage", Help::Rule));
    }
    scalar_shortage(request, node, |_| true)
}

/// The same of devices alone.
pub(super) fn device_shortage<'a>(request: &'a Resources, node: &Node) -> Option<Shortage<'a>> {
    scalar_shortage(request, node, key::is_device_resource)
}

fn short(wanted: i64, have: i64, used: i64) -> bool {
    wanted > 0 && wanted > have.saturating_sub(used)
}

fn scalar_shortage<'a>(request: &'a Resources, node: &Node, counts: impl Fn(&str) -> bool) -> Option<Shortage<'a>> {
    let facts = node.facts.as_ref()?;
    let (have, used) = (&facts.allocatable, &node.used);
    let (name, wanted) = request.scalar.iter().find(|(name, wanted)| {
        counts(name) && short(*wanted, have.scalar(name), used.scalar(name)) && !is_counted_by_devices(name, node)
    })?;
    // The kubelet offers none of what is there and healthy: nobody serves it now.
    if have.scalar(name) == 0 && has_healthy(node, name) {
        return Some(match node.live_agent() {
            None => Shortage::Plain("agent not ready", Help::Daemon),
            Some(_) => Shortage::Unserved(name),
        });
    }
    Some(Shortage::Extended(name, wanted))
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

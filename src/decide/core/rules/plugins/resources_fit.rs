//! `NodeResourcesFit`: what the pod asks for must fit in allocatable minus requests, as kube-scheduler counts it.
//!
//! As a rating, by its scoring strategy: the emptiest node first, the fullest first, or a line of one's own. The figures are
//! kube-scheduler's: whole numbers, rounded down per resource and once more in the weighted mean. By a line, its mean leaves out
//! resources that score 0, and is rounded to the nearest number; the rule `RequestedToCapacityRatio` does neither.

use std::sync::LazyLock;

use crate::core::rules::{Filter, Outcome, Plugin, Reads, Score, Slots, Text, View};
use crate::help::Help;
use crate::lock::DaemonState;
use crate::world::{Node, NodeId, Pod, Resources, Wake};
use baton_contract::{DeviceType, key};

use super::requested_to_capacity_ratio::RatioConfig;
use super::usage::{CountedRequests, ResourceUsage, Weights};

/// The rule.
#[derive(Default)]
pub struct NodeResourcesFit {
    /// How it rates nodes.
    pub strategy: Strategy,
}

/// The rule's name.
pub const NAME: &str = "NodeResourcesFit";

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
                let (text, help) = shortage.explain(slots);
                Outcome::unfit(NAME, text, room.or(Wake::AGENT).or(Wake::DEVICES)).helped_by(help)
            }
        }
    }
}

/// What a node has too little of.
pub(super) enum Shortage<'a> {
    /// With a constant text.
    Plain(&'static str, Help),
    /// Of an extended resource, beside what is wanted of it and what the empty node has.
    Extended(&'a str, i64, i64),
    /// The kubelet offers none of what is there and healthy: [`unserved`].
    Unserved(String, Help),
}

impl Shortage<'_> {
    /// The refusal's text, and what an operator can do.
    pub(super) fn explain(self, slots: &mut Slots) -> (Text, Help) {
        match self {
            Self::Plain(text, help) => (text.into(), help),
            Self::Unserved(text, help) => (text.into(), help),
            Self::Extended(name, wanted, most) => {
                let help = match key::is_device_resource(name) {
                    true if most > 0 && wanted > most => Help::LargerNode,
                    true => Help::Room,
                    false => Help::Rule,
                };
                if name != key::NVIDIA_GPU {
                    return (slots.kept::<ShortageTexts>().text(name), help);
                }
                let (texts, what) = if help == Help::LargerNode { (&*SMALL_NODE, SERVED) } else { (&*FEW_GPUS, FREE) };
                let made = usize::try_from(wanted).ok().and_then(|wanted| texts.get(wanted)).cloned();
                (made.unwrap_or_else(|| fewer(wanted, what)), help)
            }
        }
    }
}

/// Texts for requests of up to 16 GPUs: many nodes get the same.
static FEW_GPUS: LazyLock<[Text; 17]> = LazyLock::new(|| std::array::from_fn(|wanted| fewer(wanted as i64, FREE)));
/// The same where no more would be free on the empty node.
static SMALL_NODE: LazyLock<[Text; 17]> = LazyLock::new(|| std::array::from_fn(|wanted| fewer(wanted as i64, SERVED)));
const FREE: &str = "free GPUs";
const SERVED: &str = "GPUs in service";

fn fewer(wanted: i64, what: &str) -> Text {
    if wanted == 1 { "have no free GPU".into() } else { format!("have fewer than {wanted} {what}").into() }
}

/// Texts about other extended resources that were made already.
#[derive(Default)]
struct ShortageTexts(Vec<(Box<str>, Text)>);

impl ShortageTexts {
    fn text(&mut self, name: &str) -> Text {
        if let Some((_, text)) = self.0.iter().find(|(known, _)| **known == *name) {
            return text.clone();
        }
        let text = Text::from(format!("insufficient {name}"));
        self.0.push((name.into(), text.clone()));
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
    let (name, wanted, most) = request.scalar.iter().filter(|(name, _)| counts(name)).find_map(|(name, wanted)| {
        let most = have.scalar(name);
        let is_short = short(wanted, most, used.scalar(name)) && !is_counted_by_devices(name, node);
        is_short.then_some((name, wanted, most))
    })?;
    // The kubelet offers none of what is there and healthy: no agent serves it now.
    if most == 0 && has_healthy(node, name) {
        let (text, help) = unserved(node, name);
        return Some(Shortage::Unserved(text, help));
    }
    Some(Shortage::Extended(name, wanted, most))
}

/// Of a node whose daemon does not serve this resource: the refusal's text, and what an operator can do. How long ago it was heard makes
/// no difference: equal texts are counted together.
pub(super) fn unserved(node: &Node, name: &str) -> (String, Help) {
    let daemon = match node.agent_status() {
        Some(status) if status.ended => DaemonState::Ended,
        // Registered by its own word: the kubelet sets a resource to 0 as soon as the socket is gone.
        Some(_) if node.is_not_offered(name) => return (DaemonState::gone_with(name), Help::Daemon),
        Some(status) if node.live_agent().is_some() => {
            if status.registered.is_empty() {
                DaemonState::Unregistered
            } else {
                DaemonState::Fresh
            }
        }
        _ => DaemonState::Missing,
    };
    (daemon.not_serving(name), daemon.help())
}

/// The node's inventory lists a healthy device that is handed out by this name.
fn has_healthy(node: &Node, name: &str) -> bool {
    let Some(stock) = &node.stock else { return false };
    let devices = stock.pool().devices();
    if let Some(profile) = name.strip_prefix(key::MIG_PREFIX) {
        return devices.migs.iter().any(|mig| mig.common.healthy && *mig.profile == *profile);
    }
    match name {
        key::RDMA => devices.nics.iter().any(|nic| nic.common.healthy),
        name if key::is_device_resource(name) => devices.gpus.iter().any(|gpu| gpu.common.healthy && gpu.core > 0),
        _ => false,
    }
}

/// The device rule alone counts this name. Bytes of GPU memory are no resource of the kubelet. And a device that fails under its pod is
/// gone from what the kubelet offers while the pod's request still counts, so that it would count twice.
pub fn is_counted_by_devices(name: &str, node: &Node) -> bool {
    let Some(stock) = &node.stock else { return false };
    if name == key::GPU_MEMORY {
        return node.live_agent().is_some();
    }
    let kind = if name == key::RDMA { DeviceType::Rdma } else { DeviceType::Gpu };
    key::is_device_resource(name) && stock.pool().holds_unhealthy(&kind) && node.serves(name)
}

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
        let ResourceUsage { wanted, used, total } =
            ResourceUsage::if_concerned(resource, CountedRequests::Rated, pod, node);
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

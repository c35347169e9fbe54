//! All nodes judged for one pod, the refusals counted.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use crate::core::rules::plugins::node_affinity;
use crate::core::rules::{Outcome, Plugins, Refusal, Slots, View};
use crate::core::select::choose::{Diagnosis, NodeChoice, agreed, judge, prepare};
use crate::core::select::nearest::nearest;
use crate::devices::{Held, HeldDevice};
use crate::help::Help;
use crate::world::devices::{DeviceRoom, request_of};
use crate::world::spec::HOSTNAME;
use crate::world::{DeviceState, Node, NodeId, Pod, Stock, Wake, World, still_used};
use baton_contract::{DeviceType, key};

use super::advice::advice;
use super::answer::{DeviceDetail, NodeVerdict, PodVerdict, RuleCount};

/// What wakes a gang that is held back.
pub(super) const GANG_CHANGES: &str = "the gang or its members change";

/// Where an advice names the node.
pub(super) const NODE: &str = "NODE";

/// Nodes that are named per refusal.
const EXAMPLES: usize = 3;

/// The rules' verdicts on a pod, on all nodes.
pub(super) struct NodeJudgements {
    /// The refusals, counted; its message is empty when some node fits.
    pub verdict: PodVerdict,
    /// Nodes that fit.
    pub fitting: Vec<NodeId>,
    /// What filters left for scoring and for the plan.
    pub slots: Slots,
    /// No node would take it, however many pods end.
    pub never: bool,
}

/// Judges every node by every filter.
pub(super) fn judge_all(view: View<'_>, plugins: &Plugins, pod: &Pod) -> NodeJudgements {
    let mut slots = match prepare(view, plugins, pod) {
        Ok(slots) => slots,
        Err(end) => {
            return NodeJudgements {
                verdict: refused(end),
                fitting: Vec::new(),
                slots: Slots::default(),
                never: false,
            };
        }
    };
    let mut nodes = Vec::new();
    let mut fitting = Vec::new();
    let mut counts: BTreeMap<Refusal, Vec<String>> = BTreeMap::new();
    let (mut faults, mut short, mut small) = (Vec::new(), Vec::new(), Vec::new());
    for (id, node) in view.world.nodes() {
        let mut verdict = NodeVerdict {
            node: node.name.to_string(),
            fits: false,
            rule: None,
            reason: None,
            devices: devices(view.world, pod, node),
        };
        match judge(view, plugins, pod, (id, node), &mut slots) {
            Outcome::Fit => {
                verdict.fits = true;
                fitting.push(id);
            }
            Outcome::Unfit(no) | Outcome::Never(no) | Outcome::WaitUntil(_, no) => {
                (verdict.rule, verdict.reason) = (Some(no.rule.to_owned()), Some(agreed(1, &no.text).into_owned()));
                match no.help {
                    Help::Room => short.push(node),
                    Help::LargerNode => small.push(node),
                    _ => {}
                }
                counts.entry(no).or_default().push(node.name.to_string());
            }
            Outcome::Fault(text) => {
                verdict.reason = Some(text.to_string());
                faults.push(text);
            }
        }
        nodes.push(verdict);
    }
    let refusals = counts.iter().map(|(refusal, names)| (refusal.clone().into(), names.len())).collect();
    let diagnosis = Diagnosis::of(nodes.len(), refusals);
    let mut verdict = PodVerdict { nodes, wakes: wakes(diagnosis.wake), ..PodVerdict::default() };
    if let Some(text) = faults.first() {
        verdict.message = text.to_string();
    } else if fitting.is_empty() {
        let short = if short.is_empty() { small } else { short };
        verdict.nearest = nearest(view.world, pod, short.into_iter()).map(|found| found.to_string());
        verdict.advice = unknown(view.world, pod);
    }
    // Each reason once, whichever rule gives it.
    let mut reasons: BTreeMap<(bool, &str), RulesAndNodes<'_>> = BTreeMap::new();
    for (refusal, names) in &counts {
        let (rules, nodes) = reasons.entry((refusal.is_of_the_pod(), &refusal.text)).or_default();
        rules.insert(refusal.rule);
        nodes.extend(names.iter().cloned());
    }
    let mut reasons: Vec<_> = reasons.into_iter().collect();
    reasons.sort_by_key(|((own, _), (_, nodes))| (*own, Reverse(nodes.len())));
    let rules = reasons.into_iter().map(|((_, reason), (rules, nodes))| {
        let rules: Vec<&str> = rules.into_iter().collect();
        counted(&rules.join(", "), reason, nodes)
    });
    verdict.rules = rules.collect();
    if faults.is_empty() && fitting.is_empty() {
        let nearest = verdict.nearest.iter().map(|nearest| format!("; nearest: {nearest}"));
        verdict.message = diagnosis.message() + &nearest.collect::<String>();
    }
    let mut refusals: Vec<&Refusal> = counts.keys().collect();
    let never = fitting.is_empty() && is_hopeless(view.world, pod);
    // Where no rule but that refuses, the node that it names is not as it asks; a name that no node has is said already.
    let only_words = counts.keys().all(|refusal| refusal.rule == node_affinity::NAME) && verdict.advice.is_empty();
    let named = pod.facts.spec.names_its_nodes() && !only_words;
    if never {
        verdict.wakes.retain(|when| !frees(when));
        // All devices in service would not be enough either.
        verdict.advice.extend(advice("", Help::LargerNode, named, false).map(str::to_owned));
        refusals.retain(|refusal| !matches!(refusal.help, Help::Room | Help::LargerNode));
    }
    if refusals.iter().any(|refusal| refusal.help == Help::Room) {
        refusals.retain(|refusal| refusal.help != Help::LargerNode);
    }
    refusals.sort_by_key(|refusal| (refusal.is_of_the_pod(), Reverse(counts[*refusal].len())));
    let small = |refusal: &&Refusal| refusal.help == Help::LargerNode;
    let away = counts.keys().filter(small).flat_map(|refusal| &counts[refusal]).any(|node| lacks_one(view.world, node));
    verdict.advice.extend(advised(named, away, refusals.into_iter().map(|refusal| (refusal, &*counts[refusal][0]))));
    NodeJudgements { verdict, fitting, slots, never }
}

/// Rules that give one reason, and the nodes of which they give it.
type RulesAndNodes<'a> = (BTreeSet<&'a str>, Vec<String>);

/// Advice about labels that no node has and requested resources that none offers, mostly typing errors.
fn unknown(world: &World, pod: &Pod) -> Vec<String> {
    let offers =
        |node: &Node, name: &str| node.facts.as_ref().is_some_and(|facts| facts.allocatable.scalar.get(name).is_some());
    let requested =
        pod.facts.spec.requests.scalar.iter().filter(|(name, wanted)| *wanted > 0 && !key::is_device_resource(name));
    let nowhere = requested.filter(|(name, _)| !world.nodes().any(|(_, node)| offers(node, name)));
    let resources = nowhere
        .map(|(name, _)| format!("No node offers {name}: correct the name in the pod, or install what provides it"));
    let no_node = selected(pod).filter(|label| !is_label_of_a_node(world, *label));
    let labels = no_node.map(|(name, value)| {
        // The name of a node is not given by hand.
        let or = if name == HOSTNAME { "" } else { ", or label a node" };
        format!("No node has the label {name}={value}, which the pod's nodeSelector demands: correct it{or}")
    });
    labels.chain(resources).collect()
}

/// The labels that the pod's nodeSelector demands.
pub(super) fn selected(pod: &Pod) -> impl Iterator<Item = (&str, &str)> {
    pod.facts.spec.node_selector.iter().map(|(name, value)| (&**name, &**value))
}

/// Some node has that label with that value.
pub(super) fn is_label_of_a_node(world: &World, (name, value): (&str, &str)) -> bool {
    let has =
        |node: &Node| node.facts.as_ref().and_then(|facts| facts.labels.get(name)).is_some_and(|of| **of == *value);
    world.nodes().any(|(_, node)| has(node))
}

/// The verdict on a pod that is refused before any node is judged.
fn refused(end: NodeChoice) -> PodVerdict {
    let of = |refusal: Refusal| {
        let rules = vec![counted(refusal.rule, &refusal.text, Vec::new())];
        let message = refusal.text.to_string();
        let advice = advised(false, false, [(&refusal, NODE)].into_iter());
        PodVerdict { message, advice, wakes: wakes(refusal.wake), rules, ..PodVerdict::default() }
    };
    match end {
        NodeChoice::Nowhere(Diagnosis { pod: Some(refusal), .. }) | NodeChoice::WaitUntil(_, refusal) => of(refusal),
        NodeChoice::Fault(text) => PodVerdict { message: text.into_owned(), ..PodVerdict::default() },
        NodeChoice::Nowhere(_) | NodeChoice::Node(..) => PodVerdict::default(),
    }
}

fn counted(rule: &str, reason: &str, mut names: Vec<String>) -> RuleCount {
    let count = names.len();
    names.sort_unstable();
    names.truncate(EXAMPLES);
    RuleCount { rule: rule.to_owned(), reason: reason.to_owned(), count, examples: names }
}

/// `3 nodes have no free GPU`, `1 node has no free GPU`, `1 node: taint gpu=reserved`.
pub fn on_nodes(count: usize, reason: &str) -> String {
    let nodes = if count == 1 { "node" } else { "nodes" };
    let between = if reason.starts_with("have ") { "" } else { ":" };
    format!("{count} {nodes}{between} {}", agreed(count, reason))
}

/// What may help against refusals, each with a node that it is of.
fn advised<'a>(named: bool, away: bool, refusals: impl Iterator<Item = (&'a Refusal, &'a str)>) -> Vec<String> {
    let (mut all, mut known) = (Vec::new(), BTreeSet::new());
    let of = |(refusal, node): (&Refusal, &'a str)| Some((advice(refusal.rule, refusal.help, named, away)?, node));
    for (text, node) in refusals.filter_map(of) {
        if known.insert(text) {
            all.push(text.replace(NODE, node));
        }
    }
    all
}

/// A device of that node is out of service.
fn lacks_one(world: &World, node: &str) -> bool {
    let stock = world.node_id(node).and_then(|id| world.node(id)?.stock.as_ref());
    stock.is_some_and(|stock| stock.states().any(|(_, state)| state == DeviceState::Unhealthy))
}

/// One of these words is of a pod that makes room.
pub(super) fn frees(when: &str) -> bool {
    Wake::POD_FREED.words().any(|freed| freed == when)
}

/// The changes that wake a pod, in words.
pub(super) fn wakes(wake: Wake) -> Vec<String> {
    wake.words().map(str::to_owned).collect()
}

/// The node's devices and the pods that hold them, if the pod requests devices.
fn devices(world: &World, pod: &Pod, node: &Node) -> Vec<DeviceDetail> {
    if pod.asks_for_devices() { devices_of(world, node) } else { Vec::new() }
}

/// The node's devices and the pods that hold them.
pub(super) fn devices_of(world: &World, node: &Node) -> Vec<DeviceDetail> {
    let Some(stock) = &node.stock else { return Vec::new() };
    let mut holders: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for other in node.pods.iter().filter_map(|id| world.pod(*id)) {
        for device in node.holding(other).into_iter().flat_map(Held::devices) {
            holders.entry(device.id.as_str()).or_default().push(other.key().to_string());
        }
    }
    let uses = |room: &DeviceRoom, held: &Held| held.devices().iter().any(|device| device.id == room.id);
    let still_used = |room: &DeviceRoom| {
        node.leaving().filter(|(_, held)| uses(room, held)).map(|(pod, _)| still_used(pod)).collect()
    };
    let detail = |room: DeviceRoom| DeviceDetail {
        still_used: still_used(&room),
        held_by: holders.get(room.id.as_str()).cloned().unwrap_or_default(),
        kind: room.kind.to_owned(),
        minor: room.minor,
        id: room.id.to_string(),
        healthy: room.healthy,
        cordon: room.cordon,
        free: room.free,
        reason: None,
        since: None,
    };
    stock.describe().into_iter().map(detail).collect()
}

/// Devices by their names: `gpu-3 (GPU-…)`, `50% of nic-0 (0000:3c:00.0)`. The name of a MIG device has a number that is not known here.
pub(super) fn held_words(held: &Held) -> Vec<String> {
    let words = |kind: &DeviceType, device: &HeldDevice| {
        let id = device.id.as_str();
        let part = if device.percent() < key::WHOLE { format!("{}% of ", device.percent()) } else { String::new() };
        match kind {
            DeviceType::Rdma => format!("{part}nic-{} ({id})", device.minor),
            _ if id.starts_with("MIG-") => id.to_owned(),
            _ => format!("{part}gpu-{} ({id})", device.minor),
        }
    };
    let kinds = [DeviceType::Gpu, DeviceType::Rdma];
    kinds.iter().flat_map(|kind| held.of_kind(kind).iter().map(move |device| words(kind, device))).collect()
}

/// There are nodes with devices, and none has those that the pod asks for, even when it is empty and all of it is in service.
fn is_hopeless(world: &World, pod: &Pod) -> bool {
    let Some(request) = request_of(pod).ok().filter(|_| pod.asks_for_devices()) else { return false };
    let wanted = pod.facts.spec.requests.scalar.iter().filter(|(name, _)| key::is_device_resource(name));
    let wanted: Vec<(&str, i64)> = wanted.collect();
    let (mut known, mut makes) = (false, Vec::<&Stock>::new());
    for (_, node) in world.nodes() {
        if let Some(stock) = node.stock.as_ref().filter(|stock| stock.pool().devices().slots().next().is_some()) {
            known = true;
            if makes.iter().any(|make| make.is_of_make(stock)) {
                continue;
            }
            if stock.could_serve(&request) {
                return false;
            }
            makes.push(stock);
            continue;
        }
        // Without a node daemon, what the kubelet offers counts.
        let have = |name: &str| node.facts.as_ref().map_or(0, |facts| facts.allocatable.scalar(name));
        known |= wanted.iter().any(|(name, _)| have(name) > 0);
        if wanted.iter().all(|(name, amount)| *amount <= have(name)) {
            return false;
        }
    }
    known
}

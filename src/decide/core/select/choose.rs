//! One decision: which node for this pod, on this world.

use std::borrow::Cow;
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;

use crate::core::rules::{NodeScore, Outcome, Plugins, Reads, Refusal, Slots, Text, View};
use crate::world::{Node, NodeId, Pod, Wake, World};
use baton_contract::ConditionReason;

/// The answer.
pub enum NodeChoice {
    /// This node; the slots hold what plugins planned for it.
    Node(NodeId, Box<Slots>),
    /// No node, and why.
    Nowhere(Diagnosis),
    /// Not before this monotonic time.
    WaitUntil(std::time::Duration, Refusal),
    /// A rule could not be judged.
    Fault(Text),
}

/// Why no node was chosen.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Diagnosis {
    /// Nodes that were looked at.
    pub nodes: usize,
    /// The pod's own fault, before any node was looked at.
    pub pod: Option<Refusal>,
    /// First refusals of nodes, and how many nodes gave each.
    pub refusals: BTreeMap<Arc<Refusal>, usize>,
    /// Changes that may turn any of them.
    pub wake: Wake,
}

impl Diagnosis {
    /// Of nodes that were looked at.
    pub fn of(nodes: usize, refusals: BTreeMap<Arc<Refusal>, usize>) -> Self {
        let wake = refusals.keys().fold(Wake::NODE_ADDED, |wake, refusal| wake.or(refusal.wake));
        Self { nodes, pod: None, refusals, wake }
    }

    /// The same with the nodes that the pod may not use: they were not looked at.
    #[must_use]
    pub(super) fn with_outside(mut self, world: &World, slots: &Slots) -> Self {
        let outside = world.node_objects().saturating_sub(self.nodes);
        if let Some(Outcome::Never(refusal)) = slots.outside_all().filter(|_| outside > 0) {
            self.nodes += outside;
            self.wake = self.wake.or(refusal.wake);
            self.refusals.insert(Arc::new(refusal), outside);
        }
        self
    }

    /// `0/12 nodes: 7 have fewer than 4 free GPUs, 3 have no live node daemon, 2 taint gpu=reserved`.
    pub fn message(&self) -> String {
        if let Some(refusal) = &self.pod {
            return refusal.text.clone().into_owned();
        }
        let mut counts: BTreeMap<(bool, &str), usize> = BTreeMap::new();
        for (refusal, count) in &self.refusals {
            *counts.entry((refusal.is_of_the_pod(), &refusal.text)).or_insert(0) += count;
        }
        let mut counts: Vec<_> = counts.into_iter().collect();
        counts.sort_by_key(|((own, text), count)| (*own, Reverse(*count), *text));
        let parts = counts.into_iter().map(|((_, text), count)| format!("{count} {}", agreed(count, text)));
        let parts: Vec<String> = parts.collect();
        let nodes = self.nodes;
        if parts.is_empty() { format!("0/{nodes} nodes") } else { format!("0/{nodes} nodes: {}", parts.join(", ")) }
    }

    /// The rules that refused.
    pub fn rules(&self) -> impl Iterator<Item = &'static str> {
        self.pod.iter().map(|refusal| refusal.rule).chain(self.refusals.keys().map(|refusal| refusal.rule))
    }

    /// The reason of the pod's condition. Autoscalers add nodes for `Unschedulable`; `Unfit` is a pod that only a change of its own helps.
    /// They judge by themselves which kind of node helps: a kind of which there is none yet may.
    pub fn reason(&self) -> ConditionReason {
        let is_hopeless = self.pod.as_ref().is_some_and(|refusal| refusal.wake.is_none());
        if is_hopeless { ConditionReason::Unfit } else { ConditionReason::Unschedulable }
    }

    /// `true` when no other pod's leaving could help.
    pub fn is_final(&self) -> bool {
        self.pod.is_some()
    }
}

/// A reason that is worded for several nodes, for this many: one node *has* no free GPU.
pub fn agreed(count: usize, reason: &str) -> Cow<'_, str> {
    match reason.strip_prefix("have ").filter(|_| count == 1) {
        Some(rest) => format!("has {rest}").into(),
        None => reason.into(),
    }
}

/// A reason of one node, by its name: `node a has no free GPU`, `node a: taint gpu=reserved`.
pub fn refused_by(node: &str, reason: &str) -> String {
    let between = if reason.starts_with("have ") { "" } else { ":" };
    format!("node {node}{between} {}", agreed(1, reason))
}

/// Runs PreFilter to Score on every node; with `only`, on no other node. Also returns how many nodes were judged.
pub fn choose(view: View<'_>, plugins: &Plugins, pod: &Pod, only: Option<NodeId>) -> (NodeChoice, u64) {
    match prepare(view, plugins, pod) {
        Ok(slots) => scan(view, plugins, pod, only, slots),
        Err(end) => (end, 0),
    }
}

/// Runs PreFilter. The error ends the cycle.
pub fn prepare(view: View<'_>, plugins: &Plugins, pod: &Pod) -> Result<Slots, NodeChoice> {
    let mut slots = Slots::default();
    prepare_in(view, plugins, pod, &mut slots)?;
    Ok(slots)
}

/// The same in slots that are there already.
pub fn prepare_in(view: View<'_>, plugins: &Plugins, pod: &Pod, slots: &mut Slots) -> Result<(), NodeChoice> {
    slots.confine(view.world.confinement_of(pod));
    for plugin in &plugins.enabled().pre_filter {
        match plugin.pre_filter(view, pod, slots) {
            Outcome::Fit => {}
            Outcome::Unfit(refusal) | Outcome::Never(refusal) => {
                let wake = refusal.wake;
                return Err(NodeChoice::Nowhere(Diagnosis { pod: Some(refusal), wake, ..Diagnosis::default() }));
            }
            Outcome::WaitUntil(at, refusal) => return Err(NodeChoice::WaitUntil(at, refusal)),
            Outcome::Fault(text) => return Err(NodeChoice::Fault(text)),
        }
    }
    Ok(())
}

/// Runs Filter to Score.
pub fn scan(view: View<'_>, plugins: &Plugins, pod: &Pod, only: Option<NodeId>, mut slots: Slots) -> (NodeChoice, u64) {
    let mut nodes = 0;
    let mut refusals: BTreeMap<Arc<Refusal>, usize> = BTreeMap::new();
    let mut fitting: Vec<NodeId> = Vec::new();
    let pinned = only.and_then(|id| Some((id, view.world.node(id).filter(|node| node.facts.is_some())?)));
    let within = slots.within().filter(|_| only.is_none()).cloned();
    let all = (only.is_none() && within.is_none()).then(|| view.world.nodes()).into_iter().flatten();
    let inside = within.iter().flat_map(|within| view.world.nodes_in(Some(within)));
    for (id, node) in pinned.into_iter().chain(all).chain(inside) {
        nodes += 1;
        match judge(view, plugins, pod, (id, node), &mut slots) {
            Outcome::Fit => fitting.push(id),
            Outcome::Unfit(refusal) | Outcome::Never(refusal) | Outcome::WaitUntil(_, refusal) => {
                *refusals.entry(Arc::new(refusal)).or_insert(0) += 1;
            }
            Outcome::Fault(text) => return (NodeChoice::Fault(text), nodes as u64),
        }
    }
    let judged = nodes as u64;
    let choice = match best(view, plugins, pod, &fitting, &mut slots) {
        Ok(Some(node)) => NodeChoice::Node(node, Box::new(slots)),
        Ok(None) if only.is_some() => NodeChoice::Nowhere(Diagnosis::of(nodes, refusals)),
        Ok(None) => NodeChoice::Nowhere(Diagnosis::of(nodes, refusals).with_outside(view.world, &slots)),
        Err(text) => NodeChoice::Fault(text),
    };
    (choice, judged)
}

/// The first filter that does not say fit.
pub fn judge(view: View<'_>, plugins: &Plugins, pod: &Pod, node: (NodeId, &Node), slots: &mut Slots) -> Outcome {
    if let Some(outside) = slots.outside(node.1) {
        return outside;
    }
    let verdicts = plugins.enabled().filter.iter().map(|plugin| plugin.filter(view, pod, node, slots));
    verdicts.into_iter().find(|outcome| !outcome.is_fit()).unwrap_or_default()
}

/// The node with the highest weighted score; the oldest among equals.
fn best(
    view: View<'_>,
    plugins: &Plugins,
    pod: &Pod,
    fitting: &[NodeId],
    slots: &mut Slots,
) -> Result<Option<NodeId>, Text> {
    if fitting.len() <= 1 {
        return Ok(fitting.first().copied());
    }
    let mut totals: BTreeMap<NodeId, i64> = fitting.iter().map(|id| (*id, 0)).collect();
    rate(view, plugins, pod, fitting, slots, |id, _, score, weight| {
        *totals.entry(id).or_insert(0) += score * weight;
    })?;
    Ok(totals.into_iter().max_by(|a, b| a.1.cmp(&b.1).then(b.0.cmp(&a.0))).map(|(id, _)| id))
}

/// Runs PreScore and Score on nodes that fit; `each` hears node, rule, score 0..=100 and weight. A rule that the pod does not
/// concern says 0 of every node.
pub fn rate(
    view: View<'_>,
    plugins: &Plugins,
    pod: &Pod,
    fitting: &[NodeId],
    slots: &mut Slots,
    mut each: impl FnMut(NodeId, &'static str, i64, i64),
) -> Result<(), Text> {
    for plugin in &plugins.enabled().pre_score {
        if let Outcome::Fault(text) = plugin.pre_score(view, pod, fitting, slots) {
            return Err(text);
        }
    }
    for (plugin, weight) in &plugins.enabled().score {
        let rate = |id: &NodeId| Some((*id, plugin.score(view, pod, (*id, view.world.node(*id)?), slots)));
        let mut scores: Vec<NodeScore> = fitting.iter().filter_map(rate).collect();
        if !plugin.is_absolute() && plugin.reads(pod, slots) != Reads::Nothing {
            plugin.normalize(view, pod, &mut scores);
        }
        scores.into_iter().for_each(|(id, score)| each(id, plugin.name(), score.clamp(0, 100), *weight));
    }
    Ok(())
}

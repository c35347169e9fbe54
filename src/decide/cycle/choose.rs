//! One decision: which node for this pod, on this world.

use std::collections::BTreeMap;

use crate::decide::framework::{NodeScore, Outcome, Plugins, Refusal, Slots, Text, View};
use crate::decide::world::{Node, NodeId, Pod, Wake};

/// The answer.
pub enum Choice {
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
    /// First refusal of each node.
    pub refusals: Vec<(NodeId, Refusal)>,
    /// Changes that may turn any of them.
    pub wake: Wake,
}

impl Diagnosis {
    /// `0/12 nodes: 7 have fewer than 4 free GPUs, 3 agent not ready, 2 taint gpu=reserved`.
    pub fn message(&self) -> String {
        if let Some(refusal) = &self.pod {
            return refusal.text.clone().into_owned();
        }
        let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
        for (_, refusal) in &self.refusals {
            *counts.entry(&refusal.text).or_insert(0) += 1;
        }
        let mut counts: Vec<(&str, usize)> = counts.into_iter().collect();
        counts.sort_by(|a, b| b.1.cmp(&a.1).then(a.0.cmp(b.0)));
        let parts: Vec<String> = counts.into_iter().map(|(text, count)| format!("{count} {text}")).collect();
        let nodes = self.nodes;
        if parts.is_empty() { format!("0/{nodes} nodes") } else { format!("0/{nodes} nodes: {}", parts.join(", ")) }
    }

    /// `true` when no other pod's leaving could help.
    pub fn is_final(&self) -> bool {
        self.pod.is_some()
    }
}

/// Runs PreFilter to Score. With `only`, no other node is looked at.
pub fn choose(view: View<'_>, plugins: &Plugins, pod: &Pod, only: Option<NodeId>) -> Choice {
    let enabled = plugins.enabled();
    let mut slots = Slots::default();
    for plugin in &enabled.pre_filter {
        match plugin.pre_filter(view, pod, &mut slots) {
            Outcome::Fit => {}
            Outcome::Unfit(refusal) | Outcome::Never(refusal) => {
                let wake = refusal.wake;
                let nodes = view.world.nodes().count();
                return Choice::Nowhere(Diagnosis { nodes, pod: Some(refusal), wake, refusals: vec![] });
            }
            Outcome::WaitUntil(at, refusal) => return Choice::WaitUntil(at, refusal),
            Outcome::Fault(text) => return Choice::Fault(text),
        }
    }
    let mut diagnosis = Diagnosis { wake: Wake::NODE_ADDED, ..Diagnosis::default() };
    let mut fitting: Vec<NodeId> = Vec::new();
    for (id, node) in view.world.nodes().filter(|(id, _)| only.is_none_or(|only| only == *id)) {
        diagnosis.nodes += 1;
        match judge(view, plugins, pod, (id, node), &mut slots) {
            Outcome::Fit => fitting.push(id),
            Outcome::Unfit(refusal) | Outcome::Never(refusal) | Outcome::WaitUntil(_, refusal) => {
                diagnosis.wake = diagnosis.wake.or(refusal.wake);
                diagnosis.refusals.push((id, refusal));
            }
            Outcome::Fault(text) => return Choice::Fault(text),
        }
    }
    match best(view, plugins, pod, &fitting, &mut slots) {
        Ok(Some(node)) => Choice::Node(node, Box::new(slots)),
        Ok(None) => Choice::Nowhere(diagnosis),
        Err(text) => Choice::Fault(text),
    }
}

/// The first filter that does not say fit.
pub(super) fn judge(view: View<'_>, plugins: &Plugins, pod: &Pod, node: (NodeId, &Node), slots: &mut Slots) -> Outcome {
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
    for plugin in &plugins.enabled().pre_score {
        if let Outcome::Fault(text) = plugin.pre_score(view, pod, fitting, slots) {
            return Err(text);
        }
    }
    let mut totals: BTreeMap<NodeId, i64> = fitting.iter().map(|id| (*id, 0)).collect();
    for (plugin, weight) in &plugins.enabled().score {
        let rate = |id: &NodeId| Some((*id, plugin.score(view, pod, (*id, view.world.node(*id)?), slots)));
        let mut scores: Vec<NodeScore> = fitting.iter().filter_map(rate).collect();
        plugin.normalize(&mut scores);
        for (id, score) in scores {
            *totals.entry(id).or_insert(0) += score.clamp(0, 100) * weight;
        }
    }
    Ok(totals.into_iter().max_by(|a, b| a.1.cmp(&b.1).then(b.0.cmp(&a.0))).map(|(id, _)| id))
}

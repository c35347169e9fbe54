//! Which pods would have to leave a node, found out by taking them out of the accounts and asking the rules.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::Timestamp;

use crate::decide::cycle::choose::{judge, prepare};
use crate::decide::framework::{Outcome, Plugins, View};
use crate::decide::world::{NodeId, Place, Pod, PodId, World};

/// A pod that would be evicted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Victim {
    /// The pod.
    pub pod: PodId,
    /// Its priority.
    pub priority: i32,
    /// Its creation.
    pub created: Timestamp,
    /// No PodDisruptionBudget allows it.
    pub breaks_budget: bool,
}

/// A node on which the pod would fit without these.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Candidate {
    /// The node.
    pub node: NodeId,
    /// Whoever must leave; empty when it is enough to wait for pods that are leaving already.
    pub victims: Vec<Victim>,
}

/// Nodes that are looked at closely: a tenth of all, and at least this many.
const LEAST_LOOKED_AT: usize = 100;

/// Every node on which `pod` would fit when pods of lower priority left, up to a tenth of all nodes (at least 100).
/// The world comes back as it was.
pub(in crate::decide::cycle) fn candidates(
    world: &mut World,
    plugins: &Plugins,
    pod: &Pod,
    now: Duration,
) -> Vec<Candidate> {
    if world.lowest_priority().is_none_or(|lowest| lowest >= pod.facts.spec.priority) {
        return Vec::new();
    }
    let nodes: Vec<NodeId> = world.nodes().map(|(id, _)| id).collect();
    let enough = LEAST_LOOKED_AT.max(nodes.len() / 10);
    let mut found = Vec::new();
    for node in nodes {
        if found.len() >= enough {
            break;
        }
        found.extend(on_node(world, plugins, pod, node, now));
    }
    found
}

/// Who must leave `node`; `None` when even all of lower priority would not help.
fn on_node(world: &mut World, plugins: &Plugins, pod: &Pod, node: NodeId, now: Duration) -> Option<Candidate> {
    let lower = lower_priority(world, pod, node);
    if lower.is_empty() || matches!(verdict(world, plugins, pod, node, now), Outcome::Never(_)) {
        return None;
    }
    for id in &lower {
        world.displace(*id);
    }
    if !verdict(world, plugins, pod, node, now).is_fit() {
        for id in &lower {
            world.put_back(*id);
        }
        return None;
    }
    // Whoever is leaving anyway stays out: waiting for it costs nobody anything.
    let (leaving, staying): (Vec<PodId>, Vec<PodId>) =
        lower.iter().copied().partition(|id| world.pod(*id).is_some_and(|pod| pod.facts.handoff.deleting.is_some()));
    let victims = spare(world, plugins, pod, node, &staying, now);
    for id in leaving.iter().chain(victims.iter().map(|victim| &victim.pod)) {
        world.put_back(*id);
    }
    Some(Candidate { node, victims })
}

/// Puts back whoever can stay, the most important first, and among all those first whose eviction breaks a budget. What is
/// left out are the victims.
fn spare(world: &mut World, plugins: &Plugins, pod: &Pod, node: NodeId, out: &[PodId], now: Duration) -> Vec<Victim> {
    let mut all: Vec<Victim> = judge_budgets(world, out);
    all.sort_by(|a, b| {
        b.breaks_budget.cmp(&a.breaks_budget).then(b.priority.cmp(&a.priority)).then(a.created.cmp(&b.created))
    });
    let mut victims = Vec::new();
    for victim in all {
        world.put_back(victim.pod);
        if !verdict(world, plugins, pod, node, now).is_fit() {
            world.displace(victim.pod);
            victims.push(victim);
        }
    }
    victims
}

/// Says of each pod whether evicting it, after those before it, would break a budget. The most important ones use the budget
/// last.
fn judge_budgets(world: &World, pods: &[PodId]) -> Vec<Victim> {
    let mut victims: Vec<Victim> = pods
        .iter()
        .filter_map(|id| {
            let pod = world.pod(*id)?;
            let (priority, created) = (pod.facts.spec.priority, pod.facts.handoff.created);
            Some(Victim { pod: *id, priority, created, breaks_budget: false })
        })
        .collect();
    victims.sort_by(|a, b| b.priority.cmp(&a.priority).then(a.created.cmp(&b.created)));
    let mut used: BTreeMap<&crate::contract::PodKey, i64> = BTreeMap::new();
    for victim in &mut victims {
        let Some(pod) = world.pod(victim.pod) else { continue };
        for (key, budget) in world.budgets_of(pod) {
            let used = used.entry(key).or_insert(0);
            *used += 1;
            victim.breaks_budget |= *used > budget.allowed;
        }
    }
    victims
}

fn lower_priority(world: &World, pod: &Pod, node: NodeId) -> Vec<PodId> {
    let Some(node) = world.node(node) else { return Vec::new() };
    let pods: BTreeSet<PodId> = node.pods.iter().copied().collect();
    pods.into_iter()
        .filter(|id| {
            world.pod(*id).is_some_and(|other| {
                matches!(other.place, Place::Bound(_)) && other.facts.spec.priority < pod.facts.spec.priority
            })
        })
        .collect()
}

/// What every rule says of `pod` on `node` as the accounts stand.
fn verdict(world: &World, plugins: &Plugins, pod: &Pod, node: NodeId, now: Duration) -> Outcome {
    let view = View { world, now };
    let Some(found) = world.node(node).filter(|node| node.facts.is_some()) else {
        return Outcome::Fault("the node is gone".into());
    };
    match prepare(view, plugins, pod) {
        Ok(mut slots) => judge(view, plugins, pod, (node, found), &mut slots),
        Err(_) => Outcome::Fault("the pod is refused before any node".into()),
    }
}

//! Which pods would have to leave a node: a dry run takes them out of the accounts and runs the rules.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::core::rules::{Outcome, Plugins, PreemptionCandidate, Victim, View};
use crate::core::select::choose::{judge, prepare};
use crate::core::timers::Moment;
use crate::world::{NodeId, Place, Pod, PodId, World};

use super::leaving::{SOON, leaves_within};
use super::units::Units;

/// Fewest candidates after which the search ends; a tenth of all nodes where that is more.
const LEAST_LOOKED_AT: usize = 100;

/// Nodes on which `pod` would fit without pods of lower priority, up to a tenth of all nodes (at least 100). Pods in `gone` are
/// victims already. The world is unchanged afterwards.
pub fn candidates(
    world: &mut World,
    plugins: &Plugins,
    pod: &Pod,
    gone: &BTreeSet<PodId>,
    now: Moment,
) -> Vec<PreemptionCandidate> {
    if world.lowest_priority().is_none_or(|lowest| lowest >= pod.facts.spec.priority) {
        return Vec::new();
    }
    let enough = LEAST_LOOKED_AT.max(world.nodes().count() / 10);
    let within = world.confinement_of(pod);
    let nodes: Vec<NodeId> = world.nodes_in(within.as_deref()).map(|(id, _)| id).collect();
    let mut found = Vec::new();
    let mut units = Units::new(pod.facts.spec.priority, gone);
    for node in nodes {
        if found.len() >= enough {
            break;
        }
        found.extend(on_node(world, plugins, pod, node, &mut units, now));
    }
    found
}

/// Pods that leave or stay together.
pub struct VictimSet {
    /// Its pods on the nodes in question.
    pub pods: Vec<Victim>,
    /// The members of their gang, on any node, which leave when these do.
    pub others: Vec<PodId>,
}

/// The victims on `node`; `None` when `pod` would not fit even without all pods of lower priority.
fn on_node(
    world: &mut World,
    plugins: &Plugins,
    pod: &Pod,
    node: NodeId,
    units: &mut Units<'_>,
    now: Moment,
) -> Option<PreemptionCandidate> {
    let lower = lower_priority(world, pod, node);
    if lower.is_empty() || matches!(verdict(world, plugins, pod, node, now.mono), Outcome::Never(_)) {
        return None;
    }
    let (leaving, staying) = split_leaving(world, lower, now.mono);
    let sets = victim_sets(world, &staying, units);
    let out: Vec<PodId> = leaving.iter().copied().chain(sets.iter().flat_map(|set| &set.pods).map(|v| v.pod)).collect();
    for id in &out {
        world.remove_for_dry_run(*id);
    }
    let fits = !out.is_empty() && verdict(world, plugins, pod, node, now.mono).is_fit();
    let victims = if fits { reprieve(world, plugins, (pod, node), sets, units.gone(), now.mono) } else { Vec::new() };
    out.into_iter().for_each(|id| world.restore_after_dry_run(id));
    fits.then_some(PreemptionCandidate { node, victims })
}

/// Pods that leave soon, and pods that are not being deleted. The first stay out of the accounts: waiting for them evicts no pod. A pod
/// that leaves late, or should have left, is neither: it stays in them, and no pod is evicted for it.
pub fn split_leaving(world: &World, pods: Vec<PodId>, now: Duration) -> (Vec<PodId>, Vec<PodId>) {
    let is_leaving = |id: &PodId| world.pod(*id).is_some_and(|pod| pod.facts.handoff.deleting.is_some());
    let (mut leaving, staying): (Vec<PodId>, Vec<PodId>) = pods.into_iter().partition(is_leaving);
    leaving.retain(|id| world.pod(*id).is_some_and(|pod| leaves_within(pod, (now, SOON))));
    (leaving, staying)
}

/// Pods that can leave: each by itself, or together the members of a gang that it cannot do without. Pods that may not leave are
/// left out.
pub fn victim_sets(world: &World, staying: &[PodId], units: &mut Units<'_>) -> Vec<VictimSet> {
    let mut sets = Vec::new();
    let mut gangs: BTreeMap<_, Vec<Victim>> = BTreeMap::new();
    for victim in judge_budgets(world, staying, units.gone()) {
        match units.of(world, victim.pod) {
            None => sets.push(VictimSet { pods: vec![victim], others: Vec::new() }),
            Some(gang) => gangs.entry(gang).or_default().push(victim),
        }
    }
    for (gang, mut members) in gangs {
        let unit = units.get(&gang);
        // The least important members are the surplus; the leader never is.
        members.sort_by_key(|member| {
            (unit.leader == Some(member.pod), member.priority, std::cmp::Reverse(member.created))
        });
        let spared = members.iter().take_while(|member| unit.leader != Some(member.pod)).count().min(unit.surplus);
        let core = members.split_off(spared);
        sets.extend(members.into_iter().map(|member| VictimSet { pods: vec![member], others: Vec::new() }));
        if !core.is_empty() && unit.movable {
            sets.push(VictimSet { pods: core, others: unit.members.clone() });
        }
    }
    sets
}

/// Puts back every set that can stay: first those whose eviction breaks a budget, then the most important. The others are the
/// victims.
fn reprieve(
    world: &mut World,
    plugins: &Plugins,
    (pod, node): (&Pod, NodeId),
    mut sets: Vec<VictimSet>,
    gone: &BTreeSet<PodId>,
    now: Duration,
) -> Vec<Victim> {
    most_important_first(&mut sets);
    let mut victims: Vec<Victim> = Vec::new();
    let mut evicted: BTreeSet<PodId> = BTreeSet::new();
    for set in sets {
        set.pods.iter().for_each(|victim| world.restore_after_dry_run(victim.pod));
        if !verdict(world, plugins, pod, node, now).is_fit() {
            set.pods.iter().for_each(|victim| world.remove_for_dry_run(victim.pod));
            evicted.extend(set.others);
            victims.extend(set.pods);
        }
    }
    // A gang that cannot stay leaves whole, with its members on other nodes.
    let known: BTreeSet<PodId> = victims.iter().map(|victim| victim.pod).collect();
    let others: Vec<PodId> = evicted.difference(&known).copied().collect();
    let gone: BTreeSet<PodId> = gone.union(&known).copied().collect();
    victims.extend(judge_budgets(world, &others, &gone));
    victims
}

/// Sorts the sets by how important it is that they stay.
pub fn most_important_first(sets: &mut [VictimSet]) {
    sets.sort_by_key(|set| {
        let breaks_budget = set.pods.iter().any(|victim| victim.breaks_budget);
        let highest = set.pods.iter().map(|victim| victim.priority).max();
        let earliest = set.pods.iter().map(|victim| victim.created).min();
        (std::cmp::Reverse((breaks_budget, highest, !set.others.is_empty())), earliest)
    });
}

/// Says for each pod whether evicting it, after those before it and those in `gone`, would break a budget. The most important ones use
/// the budget first, as in kube-scheduler.
pub fn judge_budgets(world: &World, pods: &[PodId], gone: &BTreeSet<PodId>) -> Vec<Victim> {
    let mut victims: Vec<Victim> = pods
        .iter()
        .filter_map(|id| {
            let pod = world.pod(*id)?;
            let (priority, created) = (pod.facts.spec.priority, pod.facts.handoff.created);
            Some(Victim { pod: *id, priority, created, breaks_budget: false })
        })
        .collect();
    victims.sort_by(|a, b| b.priority.cmp(&a.priority).then(a.created.cmp(&b.created)));
    let mut used: BTreeMap<&baton_contract::PodKey, i64> = BTreeMap::new();
    // Of a victim that is shown as being deleted its budget knows.
    let unseen = |id: &PodId| {
        let pod = world.pod(*id).filter(|_| !pods.contains(id));
        pod.filter(|pod| pod.facts.handoff.deleting.is_none())
    };
    for (key, _) in gone.iter().filter_map(unseen).flat_map(|pod| world.budgets_of(pod)) {
        *used.entry(key).or_insert(0) += 1;
    }
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

/// Bound pods of a node that are less important than `pod`.
pub fn lower_priority(world: &World, pod: &Pod, node: NodeId) -> Vec<PodId> {
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

/// The verdict of all filters on `pod` on `node`, by the present accounts.
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

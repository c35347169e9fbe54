//! Which pods would have to leave a node, found out by taking them out of the accounts and asking the rules.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::decide::scheduler::rules::{Candidate, Outcome, Plugins, Victim, View};
use crate::decide::scheduler::select::choose::{judge, prepare};
use crate::decide::world::{NodeId, Place, Pod, PodId, World};

use super::units::Units;

/// Nodes that are looked at closely: a tenth of all, and at least this many.
const LEAST_LOOKED_AT: usize = 100;

/// Every node on which `pod` would fit when pods of lower priority left, up to a tenth of all nodes (at least 100).
/// Pods in `gone` have been chosen to leave already. The world comes back as it was.
pub fn candidates(
    world: &mut World,
    plugins: &Plugins,
    pod: &Pod,
    gone: &BTreeSet<PodId>,
    now: Duration,
) -> Vec<Candidate> {
    if world.lowest_priority().is_none_or(|lowest| lowest >= pod.facts.spec.priority) {
        return Vec::new();
    }
    let nodes: Vec<NodeId> = world.nodes().map(|(id, _)| id).collect();
    let enough = LEAST_LOOKED_AT.max(nodes.len() / 10);
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

/// What is put back as one, when it can stay.
pub struct Lot {
    /// Whoever leaves or stays together.
    pub pods: Vec<Victim>,
    /// Everybody who leaves when these do: the rest of their gang, wherever it is.
    pub others: Vec<PodId>,
}

/// Who must leave `node`; `None` when even all of lower priority would not help.
fn on_node(
    world: &mut World,
    plugins: &Plugins,
    pod: &Pod,
    node: NodeId,
    units: &mut Units<'_>,
    now: Duration,
) -> Option<Candidate> {
    let lower = lower_priority(world, pod, node);
    if lower.is_empty() || matches!(verdict(world, plugins, pod, node, now), Outcome::Never(_)) {
        return None;
    }
    // Whoever is leaving anyway stays out: waiting for it costs nobody anything.
    let (leaving, staying): (Vec<PodId>, Vec<PodId>) =
        lower.into_iter().partition(|id| world.pod(*id).is_some_and(|pod| pod.facts.handoff.deleting.is_some()));
    let lots = lots(world, &staying, units);
    let out: Vec<PodId> = leaving.iter().copied().chain(lots.iter().flat_map(|lot| &lot.pods).map(|v| v.pod)).collect();
    for id in &out {
        world.remove_for_dry_run(*id);
    }
    let fits = !out.is_empty() && verdict(world, plugins, pod, node, now).is_fit();
    let victims = if fits { spare(world, plugins, pod, node, lots, now) } else { Vec::new() };
    // Whoever was spared is back already.
    let still = |id: &PodId| !fits || leaving.contains(id) || victims.iter().any(|victim| victim.pod == *id);
    for id in out.into_iter().filter(still) {
        world.restore_after_dry_run(id);
    }
    fits.then_some(Candidate { node, victims })
}

/// Pods as they can leave: one by one, or what a gang cannot spare as one lot. What may not leave at all is left out.
pub fn lots(world: &World, staying: &[PodId], units: &mut Units<'_>) -> Vec<Lot> {
    let mut lots = Vec::new();
    let mut gangs: BTreeMap<_, Vec<Victim>> = BTreeMap::new();
    for victim in judge_budgets(world, staying) {
        match units.of(world, victim.pod) {
            None => lots.push(Lot { pods: vec![victim], others: Vec::new() }),
            Some(gang) => gangs.entry(gang).or_default().push(victim),
        }
    }
    for (gang, mut members) in gangs {
        let unit = units.get(&gang);
        // The least important are the surplus; the leader never is.
        members.sort_by_key(|member| {
            (unit.leader == Some(member.pod), member.priority, std::cmp::Reverse(member.created))
        });
        let spared = members.iter().take_while(|member| unit.leader != Some(member.pod)).count().min(unit.surplus);
        let core = members.split_off(spared);
        lots.extend(members.into_iter().map(|member| Lot { pods: vec![member], others: Vec::new() }));
        if !core.is_empty() && unit.movable {
            lots.push(Lot { pods: core, others: unit.members.clone() });
        }
    }
    lots
}

/// Puts back whatever can stay, the most important first, and among all those first whose eviction breaks a budget. What is
/// left out are the victims.
fn spare(
    world: &mut World,
    plugins: &Plugins,
    pod: &Pod,
    node: NodeId,
    mut lots: Vec<Lot>,
    now: Duration,
) -> Vec<Victim> {
    in_order_of_worth(&mut lots);
    let mut victims: Vec<Victim> = Vec::new();
    let mut fallen: BTreeSet<PodId> = BTreeSet::new();
    for lot in lots {
        lot.pods.iter().for_each(|victim| world.restore_after_dry_run(victim.pod));
        if !verdict(world, plugins, pod, node, now).is_fit() {
            lot.pods.iter().for_each(|victim| world.remove_for_dry_run(victim.pod));
            fallen.extend(lot.others);
            victims.extend(lot.pods);
        }
    }
    // A gang that cannot be kept leaves whole, its members on other nodes too.
    let known: BTreeSet<PodId> = victims.iter().map(|victim| victim.pod).collect();
    let others: Vec<PodId> = fallen.difference(&known).copied().collect();
    victims.extend(judge_budgets(world, &others));
    victims
}

/// Whoever is to stay before others comes first.
pub fn in_order_of_worth(lots: &mut [Lot]) {
    lots.sort_by_key(|lot| {
        let breaks_budget = lot.pods.iter().any(|victim| victim.breaks_budget);
        let highest = lot.pods.iter().map(|victim| victim.priority).max();
        let earliest = lot.pods.iter().map(|victim| victim.created).min();
        (std::cmp::Reverse((breaks_budget, highest, !lot.others.is_empty())), earliest)
    });
}

/// Says of each pod whether evicting it, after those before it, would break a budget. The most important ones use the budget
/// first, as in kube-scheduler.
pub fn judge_budgets(world: &World, pods: &[PodId]) -> Vec<Victim> {
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

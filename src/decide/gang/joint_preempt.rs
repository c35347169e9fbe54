//! Victims for a group of different members, where choosing them for one member after the other fails. The search first assumes
//! that every evictable pod is gone, places the group, and puts back every pod that need not leave for it.

use std::collections::BTreeSet;

use crate::core::agenda::Terms;
use crate::core::placing::Placing;
use crate::core::preemption::{
    Units, VictimSet, judge_budgets, lower_priority, most_important_first, refuses_for_good, split_leaving, victim_sets,
};
use crate::core::reservations::Saved;
use crate::core::rules::{PreemptionCandidate, Slots};
use crate::core::select::choose::{judge, prepare};
use crate::world::gangs::GroupId;
use crate::world::{NodeId, Pod, PodId, World};

use super::alike::looks_at_others;
use super::preempt::{VictimPlan, undo_places};
use super::report::missing_resources;
use super::search::{Budget, MEMBERS, one_of_each_kind, reserve_all, search, search_within};
use super::try_order::Aim;
use super::{Gangs, TryOrder};

/// Most nodes whose pods are victims.
const NODES: usize = 32;
/// Most nodes that are judged without their pods of lower priority.
const LOOKED_AT: usize = 128;

impl Gangs {
    /// A node for each member that the group needs, with the victims there. `None` when no such plan is found, or when no pod has to
    /// leave. Nothing changes.
    pub(super) fn plan_victims_jointly(&mut self, placing: &mut Placing<'_>, group: &GroupId) -> Option<VictimPlan> {
        let aim = Aim::Minimum { once: self.satisfied_once(group) };
        let order = TryOrder::of(placing.world, placing.stats, group, &[], aim);
        let all: Vec<Pod> = order.all().filter_map(|id| placing.world.pod(id).cloned()).collect();
        if all.is_empty() || all.len() > MEMBERS || all.iter().any(|pod| pod.facts.spec.never_preempts) {
            return None;
        }
        // Where a search is of no use, no victim is looked for.
        let kinds = one_of_each_kind(placing.world, &order)?;
        let kinds: Vec<Pod> = kinds.into_iter().filter_map(|id| placing.world.pod(id).cloned()).collect();
        let gone = placing.preemption.chosen_victims(placing.world);
        let mut units = Units::new(all[0].facts.spec.priority, &gone);
        let lower = lower_where_it_helps(placing.terms, placing.world, &kinds);
        if lower.is_empty() {
            return None;
        }
        let (leaving, staying) = split_leaving(placing.world, lower, placing.terms.now.mono);
        let mut sets = victim_sets(placing.world, &staying, &mut units);
        most_important_first(&mut sets);
        let out = sets.iter().flat_map(|set| &set.pods).map(|victim| victim.pod);
        let out: Vec<PodId> = leaving.iter().copied().chain(out).collect();
        out.iter().for_each(|id| placing.world.remove_for_dry_run(*id));
        let Some(mut held) = search(placing, &order) else {
            out.into_iter().for_each(|id| placing.world.restore_after_dry_run(id));
            return None;
        };
        let look_around = all.iter().any(looks_at_others);
        let evicted = reprieve(placing, &order, sets, &mut held, look_around);
        let enough = missing_resources(placing.world, group).is_none();
        let places = undo_places(placing, &held);
        leaving.iter().for_each(|id| placing.world.restore_after_dry_run(*id));
        evicted.iter().flat_map(|set| &set.pods).for_each(|victim| placing.world.restore_after_dry_run(victim.pod));
        let on_place = |id: &PodId| {
            let node = placing.world.pod(*id).and_then(Pod::node);
            places.iter().any(|(_, at)| Some(*at) == node)
        };
        let waits = leaving.iter().any(on_place);
        (enough && (waits || !evicted.is_empty())).then(|| share_out(placing.world, places, evicted, &gone))
    }
}

/// Pods of lower priority on nodes where a pod of `kinds` would fit without them.
fn lower_where_it_helps(terms: Terms<'_>, world: &mut World, kinds: &[Pod]) -> Vec<PodId> {
    let within = world.pod(kinds[0].id).and_then(|pod| world.confinement_of(pod));
    let nodes: Vec<NodeId> = world.nodes_in(within.as_deref()).map(|(id, _)| id).collect();
    let (mut found, mut helpful, mut looked_at) = (Vec::new(), 0, 0);
    // A pod with affinity may fit any node once the pods that it wants to be near to are there.
    let look_around = kinds.iter().any(looks_at_others);
    let view = terms.view(world);
    let prepared = kinds.iter().filter(|_| !look_around);
    let mut prepared: Vec<(&Pod, Slots)> =
        prepared.filter_map(|pod| Some((pod, prepare(view, terms.rules, pod).ok()?))).collect();
    for node in nodes {
        if helpful == NODES || looked_at == LOOKED_AT {
            break;
        }
        let lower = lower_priority(world, &kinds[0], node);
        // A refusal for good stays, whichever pods leave the node.
        let refuses = |(pod, slots): &mut (&Pod, Slots)| refuses_for_good(terms.scene(world), pod, node, slots);
        if lower.is_empty() || !look_around && prepared.iter_mut().all(refuses) {
            continue;
        }
        looked_at += 1;
        lower.iter().for_each(|id| world.remove_for_dry_run(*id));
        let view = terms.view(world);
        let fits = |pod: &Pod| {
            let (Some(there), Ok(mut slots)) = (world.node(node), prepare(view, terms.rules, pod)) else {
                return false;
            };
            judge(view, terms.rules, pod, (node, there), &mut slots).is_fit()
        };
        let helps = look_around || kinds.iter().any(fits);
        lower.iter().for_each(|id| world.restore_after_dry_run(*id));
        if helps {
            helpful += 1;
            found.extend(lower);
        }
    }
    found
}

/// Puts back every victim set that can stay while the group still fits, if necessary on other nodes. Returns the sets that cannot.
/// All searches for other nodes together have the budget of one: a set that would need more leaves.
fn reprieve(
    placing: &mut Placing<'_>,
    order: &TryOrder,
    sets: Vec<VictimSet>,
    held: &mut Vec<PodId>,
    look_around: bool,
) -> Vec<VictimSet> {
    let mut evicted = Vec::new();
    let mut budget = Budget::of_many(order);
    for set in sets {
        let nodes: BTreeSet<NodeId> =
            set.pods.iter().filter_map(|victim| placing.world.pod(victim.pod).and_then(Pod::node)).collect();
        let on_them = |id: &PodId| placing.reservations.get(*id).is_some_and(|found| nodes.contains(&found.node));
        let beside: Vec<PodId> = held.iter().copied().filter(|id| look_around || on_them(id)).collect();
        let before: Vec<Saved> =
            beside.iter().filter_map(|id| placing.reservations.save(placing.terms, placing.world, *id)).collect();
        set.pods.iter().for_each(|victim| placing.world.restore_after_dry_run(victim.pod));
        // Most often there is room for both the set and the members.
        if before.is_empty() || reserve_again(placing, &before) {
            continue;
        }
        let others: Vec<Saved> =
            held.iter().filter_map(|id| placing.reservations.save(placing.terms, placing.world, *id)).collect();
        if let Some(found) = search_within(placing, order, &mut budget) {
            *held = found;
            continue;
        }
        set.pods.iter().for_each(|victim| placing.world.remove_for_dry_run(victim.pod));
        before.into_iter().chain(others).for_each(|saved| placing.reservations.restore(placing.world, saved));
        evicted.push(set);
    }
    evicted
}

/// Reserves these members on their former nodes, possibly with other devices, or none of them.
fn reserve_again(placing: &mut Placing<'_>, before: &[Saved]) -> bool {
    let Some(first) = before.first().map(|saved| saved.pod) else { return true };
    let Some(priority) = placing.world.pod(first).map(|pod| pod.facts.spec.priority) else { return false };
    placing.with_nominated(priority, first, |placing| {
        reserve_all(placing, before.iter().map(|saved| (saved.pod, saved.node(), None)))
    })
}

/// Each member with its node and the victims there; a victim on a node without a member leaves for the first member.
fn share_out(
    world: &World,
    places: Vec<(PodId, NodeId)>,
    evicted: Vec<VictimSet>,
    gone: &BTreeSet<PodId>,
) -> VictimPlan {
    let mut plan: VictimPlan =
        places.into_iter().map(|(id, node)| (id, PreemptionCandidate { node, victims: Vec::new() })).collect();
    let own: BTreeSet<PodId> = evicted.iter().flat_map(|set| &set.pods).map(|victim| victim.pod).collect();
    let others: BTreeSet<PodId> = evicted.iter().flat_map(|set| set.others.iter().copied()).collect();
    let others: Vec<PodId> = others.difference(&own).copied().collect();
    let gone: BTreeSet<PodId> = gone.union(&own).copied().collect();
    let victims = evicted.into_iter().flat_map(|set| set.pods).chain(judge_budgets(world, &others, &gone));
    for victim in victims {
        let node = world.pod(victim.pod).and_then(Pod::node);
        let at = plan.iter().position(|(_, candidate)| Some(candidate.node) == node).unwrap_or(0);
        if let Some((_, candidate)) = plan.get_mut(at) {
            candidate.victims.push(victim);
        }
    }
    plan
}

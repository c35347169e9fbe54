//! Victims for a group of unlike members. Where choosing for one member after the other ends in a corner, the search first
//! assumes that every evictable pod is gone, places the group, and puts back every pod that need not leave for that.

use std::collections::BTreeSet;

use crate::decide::scheduler::context::Context;
use crate::decide::scheduler::preemption::{
    Lot, Preemption, Units, in_order_of_worth, judge_budgets, lots, lower_priority,
};
use crate::decide::scheduler::reservations::{Reservations, Saved};
use crate::decide::scheduler::rules::Candidate;
use crate::decide::scheduler::rules::Slots;
use crate::decide::scheduler::select::choose::{judge, prepare};
use crate::decide::world::gangs::GroupId;
use crate::decide::world::{NodeId, Pod, PodId};

use super::Gangs;
use super::alike::looks_at_others;
use super::offer::{Aim, Offer};
use super::report::missing_resources;
use super::search::{Budget, MEMBERS, hold_on, one_of_each_kind, search, search_within};

/// Nodes whose pods may leave.
const NODES: usize = 32;
/// Nodes that are looked at without their pods of lower priority, whether that helps anybody or not.
const LOOKED_AT: usize = 128;

impl Gangs {
    /// Where each member that the group needs would go, and who would have to leave for it; `None` when that is not found, or
    /// when nobody has to leave. Nothing changes.
    pub fn plan_victims_jointly(&mut self, cx: &mut Context<'_>, group: &GroupId) -> Option<Vec<(PodId, Candidate)>> {
        let aim = Aim::Minimum { once: self.satisfied_once(group) };
        let offer = self.offer(cx, group, &[], aim);
        let all: Vec<Pod> = offer.all().filter_map(|id| cx.world.pod(id).cloned()).collect();
        if all.is_empty() || all.len() > MEMBERS || all.iter().any(|pod| pod.facts.spec.never_preempts) {
            return None;
        }
        // Where the search would find nothing, nobody is looked for.
        let kinds = one_of_each_kind(cx, &offer)?;
        let kinds: Vec<Pod> = kinds.into_iter().filter_map(|id| cx.world.pod(id).cloned()).collect();
        let gone = cx.preemption.chosen_victims(cx.world);
        let mut units = Units::new(all[0].facts.spec.priority, &gone);
        let lower = lower_where_it_helps(cx, &kinds);
        if lower.is_empty() {
            return None;
        }
        // Whoever is leaving anyway is waited for at nobody's cost.
        let (leaving, staying): (Vec<PodId>, Vec<PodId>) =
            lower.into_iter().partition(|id| cx.world.pod(*id).is_some_and(|pod| pod.facts.handoff.deleting.is_some()));
        let mut lots = lots(cx.world, &staying, &mut units);
        in_order_of_worth(&mut lots);
        let out = lots.iter().flat_map(|lot| &lot.pods).map(|victim| victim.pod);
        let out: Vec<PodId> = leaving.iter().copied().chain(out).collect();
        out.iter().for_each(|id| cx.world.remove_for_dry_run(*id));
        let Some(mut held) = search(cx, &offer) else {
            out.into_iter().for_each(|id| cx.world.restore_after_dry_run(id));
            return None;
        };
        let social = all.iter().any(looks_at_others);
        let fallen = spare(cx, &offer, lots, &mut held, social);
        let enough = missing_resources(cx, group).is_none();
        let places: Vec<(PodId, NodeId)> =
            held.iter().filter_map(|id| Some((*id, cx.reservations.get(*id)?.node))).collect();
        Reservations::undo(cx, &held);
        leaving.iter().for_each(|id| cx.world.restore_after_dry_run(*id));
        fallen.iter().flat_map(|lot| &lot.pods).for_each(|victim| cx.world.restore_after_dry_run(victim.pod));
        let waited = leaving.iter().any(|id| {
            let node = cx.world.pod(*id).and_then(Pod::node);
            places.iter().any(|(_, at)| Some(*at) == node)
        });
        (enough && (waited || !fallen.is_empty())).then(|| share_out(cx, places, fallen))
    }
}

/// Pods of lower priority on nodes where somebody of `kinds` would fit without them.
fn lower_where_it_helps(cx: &mut Context<'_>, kinds: &[Pod]) -> Vec<PodId> {
    let nodes: Vec<NodeId> = cx.world.nodes().map(|(id, _)| id).collect();
    let (mut found, mut helpful, mut looked_at) = (Vec::new(), 0, 0);
    // Whoever wants to be near others may go anywhere once these are there.
    let social = kinds.iter().any(looks_at_others);
    let view = cx.view();
    let prepared = kinds.iter().filter(|_| !social);
    let mut prepared: Vec<(&Pod, Slots)> =
        prepared.filter_map(|pod| Some((pod, prepare(view, cx.rules, pod).ok()?))).collect();
    for node in nodes {
        if helpful == NODES || looked_at == LOOKED_AT {
            break;
        }
        let lower = lower_priority(cx.world, &kinds[0], node);
        // What the node itself says stays true whoever leaves.
        let refuses = |(pod, slots): &mut (&Pod, Slots)| Preemption::refuses_for_good(cx, pod, node, slots);
        if lower.is_empty() || !social && prepared.iter_mut().all(refuses) {
            continue;
        }
        looked_at += 1;
        lower.iter().for_each(|id| cx.world.remove_for_dry_run(*id));
        let view = cx.view();
        let fits = |pod: &Pod| {
            let (Some(there), Ok(mut slots)) = (cx.world.node(node), prepare(view, cx.rules, pod)) else {
                return false;
            };
            judge(view, cx.rules, pod, (node, there), &mut slots).is_fit()
        };
        let helps = social || kinds.iter().any(fits);
        lower.iter().for_each(|id| cx.world.restore_after_dry_run(*id));
        if helps {
            helpful += 1;
            found.extend(lower);
        }
    }
    found
}

/// Puts back whoever can stay while the group still has its places, which may move for that. Returns who cannot. All the
/// searches for other places together take no more than one: whoever would need a further one leaves.
fn spare(cx: &mut Context<'_>, offer: &Offer, lots: Vec<Lot>, held: &mut Vec<PodId>, social: bool) -> Vec<Lot> {
    let mut fallen = Vec::new();
    let mut budget = Budget::of_many(offer);
    for lot in lots {
        let nodes: BTreeSet<NodeId> =
            lot.pods.iter().filter_map(|victim| cx.world.pod(victim.pod).and_then(Pod::node)).collect();
        let on_them = |id: &PodId| cx.reservations.get(*id).is_some_and(|hold| nodes.contains(&hold.node));
        let beside: Vec<PodId> = held.iter().copied().filter(|id| social || on_them(id)).collect();
        let before: Vec<Saved> = beside.iter().filter_map(|id| Reservations::save(cx, *id)).collect();
        lot.pods.iter().for_each(|victim| cx.world.restore_after_dry_run(victim.pod));
        // Most often there is room for both.
        if before.is_empty() || hold_again(cx, &before) {
            continue;
        }
        let others: Vec<Saved> = held.iter().filter_map(|id| Reservations::save(cx, *id)).collect();
        if let Some(found) = search_within(cx, offer, &mut budget) {
            *held = found;
            continue;
        }
        lot.pods.iter().for_each(|victim| cx.world.remove_for_dry_run(victim.pod));
        before.into_iter().chain(others).for_each(|kept| Reservations::restore(cx, kept));
        fallen.push(lot);
    }
    fallen
}

/// Holds these members on the nodes where they were, be it with other devices; `false` holds nobody.
fn hold_again(cx: &mut Context<'_>, before: &[Saved]) -> bool {
    let Some(first) = before.first().map(|kept| kept.pod) else { return true };
    let Some(priority) = cx.world.pod(first).map(|pod| pod.facts.spec.priority) else { return false };
    let mut held = Vec::new();
    let all = Preemption::with_nominated(cx, priority, first, |cx| {
        before.iter().all(|saved| {
            let holds = hold_on(cx, saved.pod, saved.node(), None);
            held.extend(holds.then_some(saved.pod));
            holds
        })
    });
    if !all {
        Reservations::undo(cx, &held);
    }
    all
}

/// Each member with its node and those who leave it; who has no member on his node leaves for the first one.
fn share_out(cx: &Context<'_>, places: Vec<(PodId, NodeId)>, fallen: Vec<Lot>) -> Vec<(PodId, Candidate)> {
    let mut plan: Vec<(PodId, Candidate)> =
        places.into_iter().map(|(id, node)| (id, Candidate { node, victims: Vec::new() })).collect();
    let own: BTreeSet<PodId> = fallen.iter().flat_map(|lot| &lot.pods).map(|victim| victim.pod).collect();
    let others: BTreeSet<PodId> = fallen.iter().flat_map(|lot| lot.others.iter().copied()).collect();
    let others: Vec<PodId> = others.difference(&own).copied().collect();
    let victims = fallen.into_iter().flat_map(|lot| lot.pods).chain(judge_budgets(cx.world, &others));
    for victim in victims {
        let node = cx.world.pod(victim.pod).and_then(Pod::node);
        let at = plan.iter().position(|(_, candidate)| Some(candidate.node) == node).unwrap_or(0);
        if let Some((_, candidate)) = plan.get_mut(at) {
            candidate.victims.push(victim);
        }
    }
    plan
}

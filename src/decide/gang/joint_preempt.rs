//! Victims for a group of unlike members: where choosing for one member after the other ends in a corner, everybody who may leave
//! is taken out at once, the exact search places the group, and whoever need not leave for that is put back.

use std::collections::BTreeSet;

use crate::decide::scheduler::Candidate;
use crate::decide::scheduler::engine::Engine;
use crate::decide::scheduler::preemption::{Lot, Units, in_order_of_worth, judge_budgets, lots, lower_priority};
use crate::decide::scheduler::rules::{Slots, View};
use crate::decide::scheduler::select::choose::{judge, prepare};
use crate::decide::scheduler::settings::Moment;
use crate::decide::world::gangs::GroupId;
use crate::decide::world::{NodeId, Pod, PodId};

use super::alike::looks_at_others;
use super::deadlock::Kept;
use super::offer::{Aim, Offer};
use super::search::{Budget, MEMBERS};

/// Nodes whose pods may leave.
const NODES: usize = 32;
/// Nodes that are looked at without their pods of lower priority, whether that helps anybody or not.
const LOOKED_AT: usize = 128;

impl Engine {
    /// Where each member that the group needs would go, and who would have to leave for it; `None` when that is not found, or
    /// when nobody has to leave. Nothing changes.
    pub(in crate::decide) fn plan_victims_jointly(
        &mut self,
        group: &GroupId,
        now: Moment,
    ) -> Option<Vec<(PodId, Candidate)>> {
        let aim = Aim::Minimum { once: self.satisfied_once(group) };
        let offer = self.offer(group, &[], aim);
        let all: Vec<Pod> = offer.all().filter_map(|id| self.world.pod(id).cloned()).collect();
        if all.is_empty() || all.len() > MEMBERS || all.iter().any(|pod| pod.facts.spec.never_preempts) {
            return None;
        }
        // Where the search would find nothing, nobody is looked for.
        let kinds = self.one_of_each_kind(&offer)?;
        let kinds: Vec<Pod> = kinds.into_iter().filter_map(|id| self.world.pod(id).cloned()).collect();
        let gone = self.chosen_victims();
        let mut units = Units::new(all[0].facts.spec.priority, &gone);
        let lower = self.lower_where_it_helps(&kinds, now);
        if lower.is_empty() {
            return None;
        }
        // Whoever is leaving anyway is waited for at nobody's cost.
        let (leaving, staying): (Vec<PodId>, Vec<PodId>) = lower
            .into_iter()
            .partition(|id| self.world.pod(*id).is_some_and(|pod| pod.facts.handoff.deleting.is_some()));
        let mut lots = lots(&self.world, &staying, &mut units);
        in_order_of_worth(&mut lots);
        let out = lots.iter().flat_map(|lot| &lot.pods).map(|victim| victim.pod);
        let out: Vec<PodId> = leaving.iter().copied().chain(out).collect();
        out.iter().for_each(|id| self.world.displace(*id));
        let Some(mut held) = self.search(&offer, now) else {
            out.into_iter().for_each(|id| self.world.put_back(id));
            return None;
        };
        let social = all.iter().any(looks_at_others);
        let fallen = self.spare(&offer, lots, &mut held, social, now);
        let enough = self.missing_resources(group).is_none();
        let places: Vec<(PodId, NodeId)> = held.iter().filter_map(|id| Some((*id, self.holds.get(id)?.node))).collect();
        self.undo(&held);
        leaving.iter().for_each(|id| self.world.put_back(*id));
        fallen.iter().flat_map(|lot| &lot.pods).for_each(|victim| self.world.put_back(victim.pod));
        let waited = leaving.iter().any(|id| {
            let node = self.world.pod(*id).and_then(Pod::node);
            places.iter().any(|(_, at)| Some(*at) == node)
        });
        (enough && (waited || !fallen.is_empty())).then(|| self.share_out(places, fallen))
    }

    /// Pods of lower priority on nodes where somebody of `kinds` would fit without them.
    fn lower_where_it_helps(&mut self, kinds: &[Pod], now: Moment) -> Vec<PodId> {
        let nodes: Vec<NodeId> = self.world.nodes().map(|(id, _)| id).collect();
        let (mut found, mut helpful, mut looked_at) = (Vec::new(), 0, 0);
        // Whoever wants to be near others may go anywhere once these are there.
        let social = kinds.iter().any(looks_at_others);
        let view = View { world: &self.world, now: now.mono };
        let prepared = kinds.iter().filter(|_| !social);
        let mut prepared: Vec<(&Pod, Slots)> =
            prepared.filter_map(|pod| Some((pod, prepare(view, &self.plugins, pod).ok()?))).collect();
        for node in nodes {
            if helpful == NODES || looked_at == LOOKED_AT {
                break;
            }
            let lower = lower_priority(&self.world, &kinds[0], node);
            // What the node itself says stays true whoever leaves.
            let refuses = |(pod, slots): &mut (&Pod, Slots)| self.refuses_for_good(pod, node, slots, now);
            if lower.is_empty() || !social && prepared.iter_mut().all(refuses) {
                continue;
            }
            looked_at += 1;
            lower.iter().for_each(|id| self.world.displace(*id));
            let view = View { world: &self.world, now: now.mono };
            let fits = |pod: &Pod| {
                let (Some(there), Ok(mut slots)) = (self.world.node(node), prepare(view, &self.plugins, pod)) else {
                    return false;
                };
                judge(view, &self.plugins, pod, (node, there), &mut slots).is_fit()
            };
            let helps = social || kinds.iter().any(fits);
            lower.iter().for_each(|id| self.world.put_back(*id));
            if helps {
                helpful += 1;
                found.extend(lower);
            }
        }
        found
    }

    /// Puts back whoever can stay while the group still has its places, which may move for that. Returns who cannot. All the
    /// searches for other places together take no more than one: whoever would need a further one leaves.
    fn spare(&mut self, offer: &Offer, lots: Vec<Lot>, held: &mut Vec<PodId>, social: bool, now: Moment) -> Vec<Lot> {
        let mut fallen = Vec::new();
        let mut budget = Budget::of_many(offer);
        for lot in lots {
            let nodes: BTreeSet<NodeId> =
                lot.pods.iter().filter_map(|victim| self.world.pod(victim.pod).and_then(Pod::node)).collect();
            let on_them = |id: &PodId| self.holds.get(id).is_some_and(|hold| nodes.contains(&hold.node));
            let beside: Vec<PodId> = held.iter().copied().filter(|id| social || on_them(id)).collect();
            let before: Vec<Kept> = beside.iter().filter_map(|id| self.take_kept(*id)).collect();
            lot.pods.iter().for_each(|victim| self.world.put_back(victim.pod));
            // Most often there is room for both.
            if before.is_empty() || self.hold_again(&before, now) {
                continue;
            }
            let others: Vec<Kept> = held.iter().filter_map(|id| self.take_kept(*id)).collect();
            if let Some(found) = self.search_within(offer, &mut budget, now) {
                *held = found;
                continue;
            }
            lot.pods.iter().for_each(|victim| self.world.displace(victim.pod));
            before.into_iter().chain(others).for_each(|kept| self.put_kept(kept));
            fallen.push(lot);
        }
        fallen
    }

    /// Holds these members on the nodes where they were, be it with other devices; `false` holds nobody.
    fn hold_again(&mut self, before: &[Kept], now: Moment) -> bool {
        let Some(first) = before.first().map(|kept| kept.pod) else { return true };
        let Some(priority) = self.world.pod(first).map(|pod| pod.facts.spec.priority) else { return false };
        let shadows = self.shadow(priority, first, now);
        let mut held = Vec::new();
        let all = before.iter().all(|kept| {
            let holds = self.hold_on(kept.pod, kept.node(), None, now);
            held.extend(holds.then_some(kept.pod));
            holds
        });
        self.lift(shadows);
        if !all {
            self.undo(&held);
        }
        all
    }

    /// Each member with its node and those who leave it; who has no member on his node leaves for the first one.
    fn share_out(&self, places: Vec<(PodId, NodeId)>, fallen: Vec<Lot>) -> Vec<(PodId, Candidate)> {
        let mut plan: Vec<(PodId, Candidate)> =
            places.into_iter().map(|(id, node)| (id, Candidate { node, victims: Vec::new() })).collect();
        let own: BTreeSet<PodId> = fallen.iter().flat_map(|lot| &lot.pods).map(|victim| victim.pod).collect();
        let others: BTreeSet<PodId> = fallen.iter().flat_map(|lot| lot.others.iter().copied()).collect();
        let others: Vec<PodId> = others.difference(&own).copied().collect();
        let victims = fallen.into_iter().flat_map(|lot| lot.pods).chain(judge_budgets(&self.world, &others));
        for victim in victims {
            let node = self.world.pod(victim.pod).and_then(Pod::node);
            let at = plan.iter().position(|(_, candidate)| Some(candidate.node) == node).unwrap_or(0);
            if let Some((_, candidate)) = plan.get_mut(at) {
                candidate.victims.push(victim);
            }
        }
        plan
    }
}

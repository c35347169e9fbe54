//! Victims for a group of unlike members: where choosing for one member after the other ends in a corner, everybody who may leave
//! is taken out at once, the exact search places the group, and whoever need not leave for that is put back.

use std::collections::BTreeSet;

use crate::decide::cycle::Candidate;
use crate::decide::cycle::choose::{judge, prepare};
use crate::decide::cycle::engine::Engine;
use crate::decide::cycle::preempt::{Lot, Units, in_order_of_worth, judge_budgets, lots, lower_priority};
use crate::decide::cycle::settings::Moment;
use crate::decide::framework::View;
use crate::decide::gang::GroupId;
use crate::decide::world::{NodeId, Pod, PodId};

use super::alike::looks_at_others;
use super::deadlock::Kept;
use super::offer::{Aim, Offer};
use super::search::MEMBERS;

/// Nodes whose pods may leave.
const NODES: usize = 32;

impl Engine {
    /// Where each member that the group needs would go, and who would have to leave for it; `None` when that is not found, or
    /// when nobody has to leave. Nothing changes.
    pub(super) fn plan_victims_jointly(&mut self, group: &GroupId, now: Moment) -> Option<Vec<(PodId, Candidate)>> {
        let aim = Aim::Minimum { once: self.satisfied_once(group) };
        let offer = self.offer(group, &[], aim);
        let all: Vec<Pod> = offer.all().filter_map(|id| self.world.pod(id).cloned()).collect();
        if all.is_empty() || all.len() > MEMBERS || all.iter().any(|pod| pod.facts.spec.never_preempts) {
            return None;
        }
        let gone = self.chosen_victims();
        let mut units = Units::new(all[0].facts.spec.priority, &gone);
        let lower = self.lower_where_it_helps(&all, now);
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

    /// Pods of lower priority on nodes where somebody of `all` would fit without them.
    fn lower_where_it_helps(&mut self, all: &[Pod], now: Moment) -> Vec<PodId> {
        let nodes: Vec<NodeId> = self.world.nodes().map(|(id, _)| id).collect();
        let (mut found, mut looked_at) = (Vec::new(), 0);
        for node in nodes {
            if looked_at == NODES {
                break;
            }
            let lower = lower_priority(&self.world, &all[0], node);
            if lower.is_empty() {
                continue;
            }
            lower.iter().for_each(|id| self.world.displace(*id));
            let view = View { world: &self.world, now: now.mono };
            let fits = |pod: &Pod| {
                let (Some(there), Ok(mut slots)) = (self.world.node(node), prepare(view, &self.plugins, pod)) else {
                    return false;
                };
                judge(view, &self.plugins, pod, (node, there), &mut slots).is_fit()
            };
            let helps = all.iter().any(|pod| fits(pod) || looks_at_others(pod));
            lower.iter().for_each(|id| self.world.put_back(*id));
            if helps {
                looked_at += 1;
                found.extend(lower);
            }
        }
        found
    }

    /// Puts back whoever can stay while the group still has its places, which may move for that. Returns who cannot.
    fn spare(&mut self, offer: &Offer, lots: Vec<Lot>, held: &mut Vec<PodId>, social: bool, now: Moment) -> Vec<Lot> {
        let mut fallen = Vec::new();
        for lot in lots {
            let nodes: BTreeSet<NodeId> =
                lot.pods.iter().filter_map(|victim| self.world.pod(victim.pod).and_then(Pod::node)).collect();
            let beside = held.iter().any(|id| self.holds.get(id).is_some_and(|hold| nodes.contains(&hold.node)));
            lot.pods.iter().for_each(|victim| self.world.put_back(victim.pod));
            if !beside && !social {
                continue;
            }
            let before: Vec<Kept> = held.iter().filter_map(|id| self.take_kept(*id)).collect();
            if let Some(found) = self.search(offer, now) {
                *held = found;
                continue;
            }
            lot.pods.iter().for_each(|victim| self.world.displace(victim.pod));
            before.into_iter().for_each(|kept| self.put_kept(kept));
            fallen.push(lot);
        }
        fallen
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

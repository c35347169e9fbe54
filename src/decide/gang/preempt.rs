//! Room for a whole group at the cost of pods of lower priority: nobody leaves unless every gang's minimum fits then.

use crate::decide::scheduler::Candidate;
use crate::decide::scheduler::effect::Effects;
use crate::decide::scheduler::engine::Engine;
use crate::decide::scheduler::preemption::candidates;
use crate::decide::scheduler::settings::Moment;
use crate::decide::world::gangs::GroupId;
use crate::decide::world::{NodeId, Pod, PodId, Wake};

use super::alike::Kind;
use super::offer::Aim;

/// Orders that are tried, each without one more kind of members.
const ORDERS: usize = 8;

impl Engine {
    /// Looks for victims for everybody whom the group needs. Evicts them and nominates the members, or changes nothing. `true` when
    /// the group waits for victims.
    pub(in crate::decide) fn preempt_for_group(&mut self, group: &GroupId, now: Moment, effects: &mut Effects) -> bool {
        if self.plugins.enabled().post_filter.is_empty() {
            return false;
        }
        let once = self.satisfied_once(group);
        // Most often nobody has less to say than the group.
        let lowest = self.world.lowest_priority();
        let outranks = lowest.is_some_and(|lowest| lowest < self.priority_of(group));
        if !outranks && self.nominations.is_empty() {
            return false;
        }
        let needed: Vec<PodId> = self.offer(group, &[], Aim::Minimum { once }).needed().collect();
        // One member's node has died: what was planned for all of them does not stand any more.
        let nominated = needed.iter().filter_map(|id| Some((self.world.pod(*id)?, self.nominations.get(id)?.node)));
        if self.is_any_hopeless(nominated, now) {
            self.denominate_group(group, effects);
            self.jobs_news(Wake::POD_FREED, now);
        }
        let waits = |id: &PodId| self.nominations.get(id).is_some_and(|nomination| !nomination.victims.is_empty());
        if needed.iter().any(waits) {
            return true;
        }
        let may = |id: &PodId| {
            let pod = self.world.pod(*id).filter(|pod| !pod.facts.spec.never_preempts);
            pod.is_some_and(|pod| lowest.is_some_and(|lowest| lowest < pod.facts.spec.priority))
        };
        if needed.is_empty() || !needed.iter().all(may) {
            return false;
        }
        // Where neither the room that others hold nor that of victims is enough, both together may be.
        let below = self.holders_below(self.priority_of(group));
        // One after the other first; unlike members may need another plan.
        let plan = |engine: &mut Self| {
            let one_by_one = engine.plan_victims(group, now);
            one_by_one.or_else(|| engine.plan_victims_jointly(group, now))
        };
        let planned = plan(self).map(|plan| (plan, Vec::new()));
        let planned = planned.or_else(|| self.give_way(&below, plan, |_| {}));
        let Some((plan, released)) = planned else { return false };
        if !released.is_empty() {
            self.tell_released(&released, &format!("group {group} goes first"), effects);
        }
        for (id, candidate) in plan {
            self.nominate(id, &candidate, Some(group), now, effects);
        }
        true
    }

    /// Where each member that is needed would go, and who would have to leave for it; `None` when that is not enough for all, or
    /// when nobody has to leave. Members for whom nobody can make room are left out as long as the others suffice. Nothing changes.
    fn plan_victims(&mut self, group: &GroupId, now: Moment) -> Option<Vec<(PodId, Candidate)>> {
        let aim = Aim::Minimum { once: self.satisfied_once(group) };
        let mut failed: Vec<Kind> = Vec::new();
        for _ in 0..ORDERS {
            let offer = self.offer(group, &failed, aim);
            let needed: Vec<PodId> = offer.needed().collect();
            match self.plan_in_order(group, &needed, now) {
                Ok(plan) => return plan,
                Err(miss) => failed.push(offer.kind(&self.world, self.world.pod(miss)?)),
            }
            if !offer.suffices_without(&self.world, &failed) {
                return None;
            }
        }
        None
    }

    /// The same for these members, one after the other; the error is the first for whom nobody can make room.
    fn plan_in_order(
        &mut self,
        group: &GroupId,
        needed: &[PodId],
        now: Moment,
    ) -> Result<Option<Vec<(PodId, Candidate)>>, PodId> {
        let mut held: Vec<PodId> = Vec::new();
        let mut out: Vec<PodId> = Vec::new();
        let mut gone = self.chosen_victims();
        let mut plans: Vec<(PodId, Candidate)> = Vec::new();
        let mut missed = None;
        for id in needed.iter().copied() {
            if self.try_member(id, now).is_ok() {
                held.push(id);
                continue;
            }
            let Some(pod) = self.world.pod(id).cloned() else { continue };
            let shadows = self.shadow(pod.facts.spec.priority, id, now);
            let found = candidates(&mut self.world, &self.plugins, &pod, &gone, now.mono);
            self.lift(shadows);
            let picked = self.plugins.enabled().post_filter.iter().find_map(|plugin| plugin.pick(&found)).cloned();
            let Some(picked) = picked else {
                missed = Some(id);
                break;
            };
            // Whoever is leaving that node already is waited for as well.
            let leaving = self.leaving(picked.node, pod.facts.spec.priority);
            for victim in picked.victims.iter().map(|victim| victim.pod).chain(leaving) {
                if self.world.pod(victim).is_some_and(|pod| pod.node().is_some()) && !out.contains(&victim) {
                    self.world.displace(victim);
                    out.push(victim);
                }
            }
            gone.extend(picked.victims.iter().map(|victim| victim.pod));
            plans.push((id, picked));
            if self.try_member(id, now).is_ok() {
                held.push(id);
            } else {
                missed = Some(id);
                break;
            }
        }
        let enough = self.missing_resources(group).is_none();
        // Members that fit as it is need their room kept as well.
        let places: Vec<(PodId, NodeId)> = held.iter().filter_map(|id| Some((*id, self.holds.get(id)?.node))).collect();
        self.undo(&held);
        for id in out.into_iter().rev() {
            self.world.put_back(id);
        }
        if let Some(missed) = missed {
            return Err(missed);
        }
        if !enough || plans.is_empty() {
            return Ok(None);
        }
        let victims = |id: PodId| plans.iter().find(|(of, _)| *of == id).map(|(_, plan)| plan.victims.clone());
        let planned = |(id, node): (PodId, NodeId)| (id, Candidate { node, victims: victims(id).unwrap_or_default() });
        Ok(Some(places.into_iter().map(planned).collect()))
    }

    /// Pods of lower priority whose deletion from this node is under way.
    fn leaving(&self, node: NodeId, below: i32) -> Vec<PodId> {
        let pods = self.world.node(node).into_iter().flat_map(|node| node.pods.iter().copied());
        let leaves = |pod: &Pod| pod.facts.handoff.deleting.is_some() && pod.facts.spec.priority < below;
        pods.filter(|id| self.world.pod(*id).is_some_and(leaves)).collect()
    }
}

//! Room at the cost of pods of lower priority, for a whole group: no pod is evicted unless every gang's minimum fits then; and for
//! one pod, together with room that groups of lower priority only hold.

use crate::decide::scheduler::context::{Context, Step};
use crate::decide::scheduler::preemption::{Preemption, candidates};
use crate::decide::scheduler::reservations::Reservations;
use crate::decide::scheduler::rules::Candidate;
use crate::decide::world::gangs::GroupId;
use crate::decide::world::{NodeId, Pod, PodId, Wake};

use super::Gangs;
use super::alike::Kind;
use super::members::priority_of;
use super::offer::Aim;
use super::report::missing_resources;

/// Orders that are tried, each without one more kind of members.
const ORDERS: usize = 8;

impl Gangs {
    /// Looks for victims for a pod that fits nowhere; evicts them and nominates the pod. Returns what to report about it.
    pub fn preempt_for_pod(&mut self, cx: &mut Context<'_>, id: PodId) -> Option<String> {
        let pod = cx.world.pod(id)?.clone();
        if pod.facts.spec.never_preempts || cx.rules.enabled().post_filter.is_empty() {
            return None;
        }
        if cx.preemption.get(id).is_some_and(|nomination| Preemption::is_hopeless(cx, [(&pod, nomination.node)])) {
            Preemption::withdraw(cx, id);
            cx.wake(Wake::POD_FREED);
            cx.steps.push(Step::RoomFreed(Wake::POD_FREED));
        }
        if let Some(nomination) = cx.preemption.get(id).filter(|nomination| !nomination.victims.is_empty()) {
            let node = cx.world.node(nomination.node).map_or("", |node| &node.name);
            return Some(format!("waits for {} pods to leave node {node}", nomination.victims.len()));
        }
        let priority = pod.facts.spec.priority;
        let pick = |_: &mut Self, cx: &mut Context<'_>| {
            let gone = cx.preemption.chosen_victims(cx.world);
            let found = Preemption::with_nominated(cx, priority, id, |cx| {
                candidates(cx.world, cx.rules, &pod, &gone, cx.now.mono)
            });
            cx.rules.enabled().post_filter.iter().find_map(|rule| rule.pick(&found)).cloned()
        };
        // Where neither the room that groups hold nor that of victims is enough, both together may be.
        let below = self.holders_below(cx, priority);
        let picked = pick(self, cx).map(|picked| (picked, Vec::new()));
        let (picked, released) = picked.or_else(|| self.give_way(cx, &below, pick, |_, _| {}))?;
        if !released.is_empty() {
            self.report_released(cx, &released, &format!("pod {} goes first", pod.key()));
        }
        Some(Preemption::nominate(cx, id, &picked, None))
    }

    /// Looks for victims for everybody whom the group needs. Evicts them and nominates the members, or changes nothing. `true` when
    /// the group waits for victims.
    pub fn preempt_for_group(&mut self, cx: &mut Context<'_>, group: &GroupId) -> bool {
        if cx.rules.enabled().post_filter.is_empty() {
            return false;
        }
        let once = self.satisfied_once(group);
        // Most often nobody has less to say than the group.
        let lowest = cx.world.lowest_priority();
        let outranks = lowest.is_some_and(|lowest| lowest < priority_of(cx, group));
        if !outranks && cx.preemption.all().is_empty() {
            return false;
        }
        let needed: Vec<PodId> = self.offer(cx, group, &[], Aim::Minimum { once }).needed().collect();
        // One member's node has died: what was planned for all of them does not stand any more.
        let nominated = needed.iter().filter_map(|id| Some((cx.world.pod(*id)?, cx.preemption.get(*id)?.node)));
        if Preemption::is_hopeless(cx, nominated) {
            Preemption::withdraw_group(cx, group);
            cx.steps.push(Step::RoomFreed(Wake::POD_FREED));
        }
        let waits = |id: &PodId| cx.preemption.get(*id).is_some_and(|nomination| !nomination.victims.is_empty());
        if needed.iter().any(waits) {
            return true;
        }
        let may = |id: &PodId| {
            let pod = cx.world.pod(*id).filter(|pod| !pod.facts.spec.never_preempts);
            pod.is_some_and(|pod| lowest.is_some_and(|lowest| lowest < pod.facts.spec.priority))
        };
        if needed.is_empty() || !needed.iter().all(may) {
            return false;
        }
        // Where neither the room that others hold nor that of victims is enough, both together may be.
        let below = self.holders_below(cx, priority_of(cx, group));
        // One after the other first; unlike members may need another plan.
        let plan = |gangs: &mut Self, cx: &mut Context<'_>| {
            let one_by_one = gangs.plan_victims(cx, group);
            one_by_one.or_else(|| gangs.plan_victims_jointly(cx, group))
        };
        let planned = plan(self, cx).map(|plan| (plan, Vec::new()));
        let planned = planned.or_else(|| self.give_way(cx, &below, plan, |_, _| {}));
        let Some((plan, released)) = planned else { return false };
        if !released.is_empty() {
            self.report_released(cx, &released, &format!("group {group} goes first"));
        }
        for (id, candidate) in plan {
            Preemption::nominate(cx, id, &candidate, Some(group));
        }
        true
    }

    /// Where each member that is needed would go, and who would have to leave for it; `None` when that is not enough for all, or
    /// when nobody has to leave. Members for whom nobody can make room are left out as long as the others suffice. Nothing changes.
    fn plan_victims(&mut self, cx: &mut Context<'_>, group: &GroupId) -> Option<Vec<(PodId, Candidate)>> {
        let aim = Aim::Minimum { once: self.satisfied_once(group) };
        let mut failed: Vec<Kind> = Vec::new();
        for _ in 0..ORDERS {
            let offer = self.offer(cx, group, &failed, aim);
            let needed: Vec<PodId> = offer.needed().collect();
            match Self::plan_in_order(cx, group, &needed) {
                Ok(plan) => return plan,
                Err(miss) => failed.push(offer.kind(cx.world, cx.world.pod(miss)?)),
            }
            if !offer.suffices_without(cx.world, &failed) {
                return None;
            }
        }
        None
    }

    /// The same for these members, one after the other; the error is the first for whom nobody can make room.
    fn plan_in_order(
        cx: &mut Context<'_>,
        group: &GroupId,
        needed: &[PodId],
    ) -> Result<Option<Vec<(PodId, Candidate)>>, PodId> {
        let mut held: Vec<PodId> = Vec::new();
        let mut out: Vec<PodId> = Vec::new();
        let mut gone = cx.preemption.chosen_victims(cx.world);
        let mut plans: Vec<(PodId, Candidate)> = Vec::new();
        let mut missed = None;
        for id in needed.iter().copied() {
            if Self::try_member(cx, id).is_ok() {
                held.push(id);
                continue;
            }
            let Some(pod) = cx.world.pod(id).cloned() else { continue };
            let found = Preemption::with_nominated(cx, pod.facts.spec.priority, id, |cx| {
                candidates(cx.world, cx.rules, &pod, &gone, cx.now.mono)
            });
            let picked = cx.rules.enabled().post_filter.iter().find_map(|plugin| plugin.pick(&found)).cloned();
            let Some(picked) = picked else {
                missed = Some(id);
                break;
            };
            // Whoever is leaving that node already is waited for as well.
            let leaving = leaving(cx, picked.node, pod.facts.spec.priority);
            for victim in picked.victims.iter().map(|victim| victim.pod).chain(leaving) {
                if cx.world.pod(victim).is_some_and(|pod| pod.node().is_some()) && !out.contains(&victim) {
                    cx.world.remove_for_dry_run(victim);
                    out.push(victim);
                }
            }
            gone.extend(picked.victims.iter().map(|victim| victim.pod));
            plans.push((id, picked));
            if Self::try_member(cx, id).is_ok() {
                held.push(id);
            } else {
                missed = Some(id);
                break;
            }
        }
        let enough = missing_resources(cx, group).is_none();
        // Members that fit as it is need their room kept as well.
        let places: Vec<(PodId, NodeId)> =
            held.iter().filter_map(|id| Some((*id, cx.reservations.get(*id)?.node))).collect();
        Reservations::undo(cx, &held);
        for id in out.into_iter().rev() {
            cx.world.restore_after_dry_run(id);
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
}

/// Pods of lower priority whose deletion from this node is under way.
fn leaving(cx: &Context<'_>, node: NodeId, below: i32) -> Vec<PodId> {
    let pods = cx.world.node(node).into_iter().flat_map(|node| node.pods.iter().copied());
    let leaves = |pod: &Pod| pod.facts.handoff.deleting.is_some() && pod.facts.spec.priority < below;
    pods.filter(|id| cx.world.pod(*id).is_some_and(leaves)).collect()
}

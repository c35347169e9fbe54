//! Preemption for a whole group: no pod is evicted unless every gang's minimum fits afterwards; and for one pod, where groups of
//! lower priority may also have to release their reservations.

use super::trying::try_member;
use crate::core::context::Context;
use crate::core::placing::Placing;
use crate::core::placing::pick;
use crate::core::preemption::leaving;
use crate::core::rules::PreemptionCandidate;
use crate::world::gangs::GroupId;
use crate::world::{NodeId, PodId};

use super::alike::MemberKind;
use super::members::priority_of;
use super::report::missing_resources;
use super::try_order::Aim;
use super::{Gangs, TryOrder};

/// Orders that are tried, each with one more kind of members last.
const ORDERS: usize = 8;

/// A node for each member, with the victims there.
pub(super) type VictimPlan = Vec<(PodId, PreemptionCandidate)>;

impl Gangs {
    /// Looks for victims for a pod that fits no node, evicts them and nominates the pod. Returns what to report about it.
    pub fn preempt_for_pod(&mut self, cx: &mut Context<'_>, id: PodId) -> Option<String> {
        let pod = cx.world.pod(id)?.clone();
        if pod.facts.spec.never_preempts || cx.terms.rules.enabled().post_filter().is_empty() {
            return None;
        }
        if cx.preemption.is_hopeless(cx.terms.scene(cx.world), &[id]) {
            cx.preemption.withdraw(cx.world, cx.agenda, id);
            cx.agenda.room_freed();
        }
        if let Some(nomination) = cx.preemption.get(id).filter(|nomination| !nomination.victims.is_empty()) {
            let node = cx.world.node(nomination.node).map_or("", |node| &node.name);
            return Some(format!("waits for {} pods to leave, to make room on node {node}", nomination.victims.len()));
        }
        let pick = |_: &mut Self, placing: &mut Placing<'_>| {
            let gone = placing.preemption.chosen_victims(placing.world);
            pick(placing, &pod, &gone)
        };
        // Where neither the reservations of groups nor victims are enough, both together may be.
        let below = self.holders_below(cx.world, pod.facts.spec.priority);
        let picked = pick(self, &mut cx.placing()).map(|picked| (picked, Vec::new()));
        let (picked, released) = picked.or_else(|| self.give_way(&mut cx.placing(), &below, pick, |_, _| {}))?;
        if !released.is_empty() {
            self.report_released(
                cx.terms.scene(cx.world),
                cx.agenda,
                &released,
                &format!("pod {} goes first", pod.key()),
            );
        }
        Some(cx.preemption.nominate(cx.terms.scene(cx.world), cx.agenda, id, &picked, None))
    }

    /// Looks for victims for all members that the group needs. Evicts them and nominates the members, or changes nothing. `true`
    /// when the group waits for victims.
    pub(super) fn preempt_for_group(&mut self, cx: &mut Context<'_>, group: &GroupId) -> bool {
        if cx.terms.rules.enabled().post_filter().is_empty() {
            return false;
        }
        let once = self.satisfied_once(group);
        // Most often no pod has a lower priority than the group.
        let lowest = cx.world.lowest_priority();
        let outranks = lowest.is_some_and(|lowest| lowest < priority_of(cx.world, group));
        if !outranks && cx.preemption.all().is_empty() {
            return false;
        }
        let needed: Vec<PodId> =
            TryOrder::of(cx.world, &mut cx.agenda.stats, group, &[], Aim::Minimum { once }).needed().collect();
        // When the node of one member is lost, or a victim does not leave, the plan for all of them is void.
        if cx.preemption.is_hopeless(cx.terms.scene(cx.world), &needed) {
            cx.preemption.withdraw_group(cx.world, cx.agenda, group);
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
        // Where neither the reservations of others nor victims are enough, both together may be.
        let below = self.holders_below(cx.world, priority_of(cx.world, group));
        // First for one member after the other; for different members that may fail.
        let plan = |gangs: &mut Self, placing: &mut Placing<'_>| {
            gangs.in_each_domain(placing, group, |gangs, placing| {
                let one_by_one = gangs.plan_victims(placing, group);
                one_by_one.or_else(|| gangs.plan_victims_jointly(placing, group))
            })
        };
        let planned = plan(self, &mut cx.placing()).map(|plan| (plan, Vec::new()));
        let planned = planned.or_else(|| self.give_way(&mut cx.placing(), &below, plan, |_, _| {}));
        let Some((plan, released)) = planned else { return false };
        if !released.is_empty() {
            self.report_released(cx.terms.scene(cx.world), cx.agenda, &released, &format!("group {group} goes first"));
        }
        for (id, candidate) in plan {
            cx.preemption.nominate(cx.terms.scene(cx.world), cx.agenda, id, &candidate, Some(group));
        }
        true
    }

    /// A plan for the members that the group needs; `None` when they do not all fit, or when no pod has to leave. Members that fit
    /// even with victims nowhere are left out as long as the others suffice. Nothing changes.
    fn plan_victims(&mut self, placing: &mut Placing<'_>, group: &GroupId) -> Option<VictimPlan> {
        let aim = Aim::Minimum { once: self.satisfied_once(group) };
        let mut failed: Vec<MemberKind> = Vec::new();
        for _ in 0..ORDERS {
            let order = TryOrder::of(placing.world, placing.stats, group, &failed, aim);
            let needed: Vec<PodId> = order.needed().collect();
            match plan_in_order(placing, group, &needed) {
                Ok(plan) => return plan,
                Err(unfit) => failed.push(order.kind(placing.world, placing.world.pod(unfit)?)),
            }
            if !order.suffices_without(placing.world, &failed) {
                return None;
            }
        }
        None
    }
}

/// Undoes these reservations and returns their nodes.
pub(super) fn undo_places(placing: &mut Placing<'_>, held: &[PodId]) -> Vec<(PodId, NodeId)> {
    let places = held.iter().filter_map(|id| Some((*id, placing.reservations.get(*id)?.node))).collect();
    placing.reservations.undo(placing.terms, placing.world, held);
    places
}

/// The same for these members, one after the other. The error is the first for which no victims make room.
fn plan_in_order(placing: &mut Placing<'_>, group: &GroupId, needed: &[PodId]) -> Result<Option<VictimPlan>, PodId> {
    let mut held: Vec<PodId> = Vec::new();
    let mut out: Vec<PodId> = Vec::new();
    let mut gone = placing.preemption.chosen_victims(placing.world);
    let mut plans: VictimPlan = Vec::new();
    let mut unfit = None;
    for id in needed.iter().copied() {
        if try_member(placing, id).is_ok() {
            held.push(id);
            continue;
        }
        let Some(pod) = placing.world.pod(id).cloned() else { continue };
        let Some(picked) = pick(placing, &pod, &gone) else {
            unfit = Some(id);
            break;
        };
        // The group waits for pods that are leaving that node already as well.
        let leaving: Vec<PodId> =
            leaving(placing.world, picked.node, &pod, placing.terms.now.mono).map(|pod| pod.id).collect();
        for victim in picked.victims.iter().map(|victim| victim.pod).chain(leaving) {
            if placing.world.pod(victim).is_some_and(|pod| pod.node().is_some()) && !out.contains(&victim) {
                placing.world.remove_for_dry_run(victim);
                out.push(victim);
            }
        }
        gone.extend(picked.victims.iter().map(|victim| victim.pod));
        plans.push((id, picked));
        if try_member(placing, id).is_ok() {
            held.push(id);
        } else {
            unfit = Some(id);
            break;
        }
    }
    let enough = missing_resources(placing.world, group).is_none();
    // Members that fit without victims need their room kept as well.
    let places = undo_places(placing, &held);
    for id in out.into_iter().rev() {
        placing.world.restore_after_dry_run(id);
    }
    if let Some(unfit) = unfit {
        return Err(unfit);
    }
    if !enough || plans.is_empty() {
        return Ok(None);
    }
    let victims = |id: PodId| plans.iter().find(|(of, _)| *of == id).map(|(_, plan)| plan.victims.clone());
    let planned =
        |(id, node): (PodId, NodeId)| (id, PreemptionCandidate { node, victims: victims(id).unwrap_or_default() });
    Ok(Some(places.into_iter().map(planned).collect()))
}

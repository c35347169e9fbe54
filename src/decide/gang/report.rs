//! What is reported of a group: what a group that is short of room lacks, why one is not ready, what is wrong with its
//! declarations. Events come once per change of state, on its oldest member that waits.

use std::collections::{BTreeMap, BTreeSet};

use crate::contract::Quantity;
use crate::contract::gang::{GangId, MatchPolicy};
use crate::decide::scheduler::context::Context;
use crate::decide::scheduler::queue::Item;
use crate::decide::scheduler::reporter::Reporter;
use crate::decide::scheduler::reservations::Reservations;
use crate::decide::world::gangs::{Gang, GroupId, MemberState, Warning, rule};
use crate::decide::world::{PodId, Resources, Wake};

use super::members::{held_members, is_ours, pending_members, waiting};
use super::{Gangs, Look, RootCause, Route};

/// Why a member has no place.
#[derive(Debug, Clone)]
pub struct Miss {
    /// The member.
    pub pod: PodId,
    /// What every node said, or the fault.
    pub text: String,
    /// What may turn it.
    pub wake: Wake,
    /// By gang: members that had found room by then, and gave it back.
    pub found: BTreeMap<GangId, u32>,
}

impl Miss {
    /// One that nobody gave room back for.
    pub const fn of(pod: PodId, text: String, wake: Wake) -> Self {
        Self { pod, text, wake, found: BTreeMap::new() }
    }
}

impl Gangs {
    /// Members that the satisfied group does not need found no place: they wait with it and say why.
    pub fn report_surplus(&mut self, cx: &mut Context<'_>, group: &GroupId) {
        let waiting: Vec<PodId> = pending_members(cx, group)
            .into_iter()
            .filter(|id| {
                cx.world
                    .pod(*id)
                    .is_some_and(|pod| matches!(self.route(cx.world, cx.reservations, pod), Route::Group(_)))
            })
            .collect();
        let Some(first) = waiting.first().copied() else { return };
        let Err(mut miss) = Self::try_member(cx, first) else {
            // It fits after all: the next attempt takes it along.
            Reservations::undo(cx, &[first]);
            return self.queue_group(cx, group);
        };
        // Under only-waiting nobody counts it any more by the time that others have left.
        let gang = cx.world.gangs().gang_of(first);
        let lasts = gang.is_some_and(|gang| gang.config().policy != MatchPolicy::OnlyWaiting);
        if lasts && let Some(way) = self.preempt_for_pod(cx, first) {
            miss.text = format!("{}; {way}", miss.text);
        }
        let message = shortage(cx, group, &miss);
        let culprit = cx.world.pod(miss.pod).map(|pod| pod.key().to_string());
        if let Some(record) = self.groups.get_mut(group) {
            record.progress.last_failure = Some(message.clone());
            record.root_cause = culprit.map(|pod| RootCause { pod, summary: miss.text.clone() });
        }
        self.notice_waiting(cx, group, "Unschedulable", &message);
        Reporter::conditions(cx, waiting, "Unschedulable", message);
    }

    /// The group is parked; reservations of a NonStrict one stay and its clock runs.
    pub fn short(&mut self, cx: &mut Context<'_>, group: &GroupId, miss: Miss) {
        cx.stats.unschedulable += 1;
        let held = held_members(cx, group);
        let looks: Vec<Look> = cx.world.gangs().of_group(group).map(Look::of).collect();
        let message = shortage(cx, group, &miss);
        let culprit = cx.world.pod(miss.pod).map(|pod| pod.key().to_string());
        let wake = miss.wake.or(Wake::NODE_ADDED);
        cx.queue.park(Item::Group(group.clone()), wake, cx.now.mono, cx.now.wall);
        if let Some(record) = self.groups.get_mut(group) {
            record.tried = Some(looks);
            record.progress.last_failure = Some(message.clone());
            record.root_cause = culprit.map(|pod| RootCause { pod, summary: miss.text.clone() });
        }
        self.run_clock(cx, group, !held.is_empty());
        self.notice_waiting(cx, group, "Unschedulable", &message);
        // Whoever holds room waits as well, and for the same reason.
        let mut waiting = held;
        waiting.extend(pending_members(cx, group));
        Reporter::conditions(cx, waiting, "Unschedulable", message);
    }

    /// Says that a group is held, and why.
    pub fn notice_hold(&mut self, cx: &mut Context<'_>, group: &GroupId) {
        let Some((reason, message)) = self.groups.get(group).and_then(|record| record.not_ready.clone()) else {
            return;
        };
        // The end of the wait was told when it came.
        if reason == "GangTimeout" {
            if let Some(record) = self.groups.get_mut(group) {
                record.reported = Some(reason);
            }
            return;
        }
        self.notice_waiting(cx, group, reason, &message);
    }

    /// Says why a group waits, once for as long as the reason stays.
    pub fn notice_waiting(&mut self, cx: &mut Context<'_>, group: &GroupId, reason: &'static str, message: &str) {
        let Some(first) = waiting(cx.world, &cx.config.scheduler_names, group).next().map(|member| member.pod) else {
            return;
        };
        let Some(record) = self.groups.get_mut(group).filter(|record| record.reported != Some(reason)) else { return };
        record.reported = Some(reason);
        cx.event(first, true, reason, message.to_owned());
    }

    /// Says what is wrong with the declarations of a group, each thing once for as long as it lasts.
    pub fn warn(&mut self, cx: &mut Context<'_>, group: &GroupId) {
        let flag = cx.world.gangs().defaults().scheduling_groups;
        let gangs = cx.world.gangs().of_group(group).filter(|gang| gang.group() == group);
        let mut found: BTreeSet<(GangId, Warning)> = BTreeSet::new();
        let mut news: Vec<(PodId, Warning)> = Vec::new();
        let known = self.groups.get(group).map(|record| &record.warned);
        for gang in gangs.filter(|gang| is_ours(&cx.config.scheduler_names, gang)) {
            let Some(oldest) = gang.members().next().filter(|member| member.state.is_live()) else { continue };
            for warning in gang.warnings() {
                let key = (gang.id().clone(), warning);
                if known.is_none_or(|known| !known.contains(&key)) {
                    news.push((subject(gang, &key.1, flag).unwrap_or(oldest.pod), key.1.clone()));
                }
                found.insert(key);
            }
        }
        let Some(record) = self.groups.get_mut(group).filter(|record| record.warned != found) else { return };
        record.warned = found;
        for (pod, warning) in news {
            cx.event(pod, true, warning.reason(), warning.to_string());
        }
    }
}

/// `gang ml/a: 0 of 5 placed (3 found room); pod ml/a-3: 0/4 nodes: 4 have fewer than 2 free GPUs`: a Strict group places
/// nobody before all of it fits, so beside it stands how far the attempt came. Several gangs are told as their group.
fn shortage(cx: &Context<'_>, group: &GroupId, miss: &Miss) -> String {
    let counts = |gang: &Gang| {
        let (policy, min) = (gang.config().policy, gang.config().min.unwrap_or(0));
        let placed = rule::weight(policy, gang.counts());
        let found = miss.found.get(gang.id()).map(|found| format!(" ({found} found room)")).unwrap_or_default();
        format!("gang {}: {placed} of {min} placed{found}", gang.id())
    };
    let gangs: Vec<String> = cx.world.gangs().of_group(group).take(8).map(counts).collect();
    let of_group = if group.is_alone() { String::new() } else { format!("group {group}; ") };
    let culprit = cx.world.pod(miss.pod).map(|pod| format!("pod {}: ", pod.key())).unwrap_or_default();
    format!("{of_group}{}; {culprit}{}", gangs.join(", "), miss.text)
}

/// The member that a warning is about, where it is about one.
fn subject(gang: &Gang, warning: &Warning, flag: bool) -> Option<PodId> {
    let mut live = gang.members().take_while(|member| member.state.is_live());
    live.find(|member| member.declared.all_warnings(flag).any(|known| *known == *warning)).map(|member| member.pod)
}

/// What a PodGroup asks for in all is compared with what is free, before anything is tried.
pub(super) fn missing_resources(cx: &Context<'_>, group: &GroupId) -> Option<Miss> {
    for gang in cx.world.gangs().of_group(group) {
        let Some(object) = gang.pod_group().filter(|object| !object.min_resources.is_zero()) else { continue };
        let mut wanted = object.min_resources.clone();
        let placed = gang
            .members()
            .filter(|member| matches!(member.state, MemberState::Bound | MemberState::Running | MemberState::Reserved));
        placed.filter_map(|member| cx.world.pod(member.pod)).for_each(|pod| wanted.sub(&pod.facts.spec.requests));
        let mut free = Resources::default();
        for (_, node) in cx.world.nodes() {
            let Some(facts) = node.facts.as_ref().filter(|facts| !facts.unschedulable) else { continue };
            let mut left = facts.allocatable.clone();
            left.sub(&node.used);
            free.add(&left);
        }
        let short = [
            ("cpu", Quantity::millis(wanted.milli_cpu), Quantity::millis(free.milli_cpu)),
            ("memory", Quantity::bytes(wanted.memory), Quantity::bytes(free.memory)),
            ("ephemeral-storage", Quantity::bytes(wanted.ephemeral), Quantity::bytes(free.ephemeral)),
        ];
        let mut short = short.into_iter();
        let units = |name: &str| Quantity::units(free.scalar(name));
        let mut scalars = wanted.scalar.iter().map(|(name, wanted)| (name, Quantity::units(wanted), units(name)));
        let found = short.find(|(_, wanted, free)| wanted > free);
        let found = found.or_else(|| scalars.find(|(_, wanted, free)| wanted > free));
        if let Some((name, wanted, free)) = found {
            let text = format!(
                "gang {} asks for at least {wanted} {name} beyond what its members have, {free} are free in all",
                gang.id()
            );
            let pod = gang.members().next().map_or(PodId(u64::MAX), |member| member.pod);
            return Some(Miss::of(pod, text, Wake::ANY));
        }
    }
    None
}

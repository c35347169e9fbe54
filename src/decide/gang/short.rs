//! A group that is short of room: what it lacks, who hears of it, and what its PodGroup asks for in all.

use std::collections::BTreeMap;

use crate::contract::Quantity;
use crate::contract::gang::{GangId, MatchPolicy};
use crate::decide::scheduler::effect::Effects;
use crate::decide::scheduler::engine::Engine;
use crate::decide::scheduler::queue::Item;
use crate::decide::scheduler::settings::Moment;
use crate::decide::world::gangs::{Gang, GroupId, MemberState};
use crate::decide::world::{PodId, Wake};

use super::record::Look;
use super::review::Route;
use super::view::RootCause;

/// Why a member has no place.
#[derive(Debug, Clone)]
pub(in crate::decide) struct Miss {
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

impl Engine {
    /// Members that the satisfied group does not need found no place: they wait with it and say why.
    pub(in crate::decide) fn tell_surplus(&mut self, group: &GroupId, now: Moment, effects: &mut Effects) {
        let waiting: Vec<PodId> = self
            .pending_members(group)
            .into_iter()
            .filter(|id| self.world.pod(*id).is_some_and(|pod| matches!(self.route(pod), Route::Group(_))))
            .collect();
        let Some(first) = waiting.first().copied() else { return };
        let Err(mut miss) = self.try_member(first, now) else {
            // It fits after all: the next attempt takes it along.
            self.undo(&[first]);
            return self.queue_group(group, now);
        };
        // Under only-waiting nobody counts it any more by the time that others have left.
        let gang = self.world.gangs().gang_of(first);
        let lasts = gang.is_some_and(|gang| gang.config().policy != MatchPolicy::OnlyWaiting);
        if lasts && let Some(way) = self.preempt(first, now, effects) {
            miss.text = format!("{}; {way}", miss.text);
        }
        let message = self.shortage(group, &miss);
        let culprit = self.world.pod(miss.pod).map(|pod| pod.key().to_string());
        if let Some(record) = self.groups.get_mut(group) {
            record.progress.last_failure = Some(message.clone());
            record.root_cause = culprit.map(|pod| RootCause { pod, summary: miss.text.clone() });
        }
        self.notice_waiting(group, "Unschedulable", &message, effects);
        self.tell_members(waiting, "Unschedulable", message, now, effects);
    }

    /// What a PodGroup asks for in all is compared with what is free, before anything is tried.
    pub(in crate::decide) fn missing_resources(&self, group: &GroupId) -> Option<Miss> {
        for gang in self.world.gangs().of_group(group) {
            let Some(object) = gang.pod_group().filter(|object| !object.min_resources.is_zero()) else { continue };
            let mut wanted = object.min_resources.clone();
            let placed = gang.members().filter(|member| {
                matches!(member.state, MemberState::Bound | MemberState::Running | MemberState::Reserved)
            });
            placed.filter_map(|member| self.world.pod(member.pod)).for_each(|pod| wanted.sub(&pod.facts.spec.requests));
            let mut free = crate::decide::world::Resources::default();
            for (_, node) in self.world.nodes() {
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

    /// The group is parked; reservations of a NonStrict one stay and its clock runs.
    pub(in crate::decide) fn short(&mut self, group: &GroupId, miss: Miss, now: Moment, effects: &mut Effects) {
        self.stats.unschedulable += 1;
        let held = self.held_members(group);
        let looks: Vec<Look> = self.world.gangs().of_group(group).map(Look::of).collect();
        let message = self.shortage(group, &miss);
        let culprit = self.world.pod(miss.pod).map(|pod| pod.key().to_string());
        let wake = miss.wake.or(Wake::NODE_ADDED);
        self.queue.park(Item::Group(group.clone()), wake, now.mono, now.wall);
        if let Some(record) = self.groups.get_mut(group) {
            record.tried = Some(looks);
            record.progress.last_failure = Some(message.clone());
            record.root_cause = culprit.map(|pod| RootCause { pod, summary: miss.text.clone() });
        }
        self.run_clock(group, !held.is_empty(), now, effects);
        self.notice_waiting(group, "Unschedulable", &message, effects);
        // Whoever holds room waits as well, and for the same reason.
        let mut waiting = held;
        waiting.extend(self.pending_members(group));
        self.tell_members(waiting, "Unschedulable", message, now, effects);
    }

    /// `gang ml/a: 0 of 5 placed (3 found room); pod ml/a-3: 0/4 nodes: 4 have fewer than 2 free GPUs`: a Strict group places
    /// nobody before all of it fits, so beside it stands how far the attempt came. Several gangs are told as their group.
    fn shortage(&self, group: &GroupId, miss: &Miss) -> String {
        let counts = |gang: &Gang| {
            let (policy, min) = (gang.config().policy, gang.config().min.unwrap_or(0));
            let placed = crate::decide::world::gangs::rule::weight(policy, gang.counts());
            let found = miss.found.get(gang.id()).map(|found| format!(" ({found} found room)")).unwrap_or_default();
            format!("gang {}: {placed} of {min} placed{found}", gang.id())
        };
        let gangs: Vec<String> = self.world.gangs().of_group(group).take(8).map(counts).collect();
        let of_group = if group.is_alone() { String::new() } else { format!("group {group}; ") };
        let culprit = self.world.pod(miss.pod).map(|pod| format!("pod {}: ", pod.key())).unwrap_or_default();
        format!("{of_group}{}; {culprit}{}", gangs.join(", "), miss.text)
    }
}

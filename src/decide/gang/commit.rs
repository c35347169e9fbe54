//! A satisfied group is bound: the volumes of all members first, then locks and Bindings.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use crate::contract::gang::{Committed, MatchPolicy};
use crate::contract::key;
use crate::decide::scheduler::binder::Binder;
use crate::decide::scheduler::context::{Context, Step};
use crate::decide::scheduler::effect::Effect;
use crate::decide::scheduler::preemption::Preemption;
use crate::decide::scheduler::queue::Item;
use crate::decide::scheduler::reservations::Reservations;
use crate::decide::scheduler::timers::Timer;
use crate::decide::world::gangs::{Gang, GroupId, Member, MemberState, rule};
use crate::decide::world::{PodId, Wake};

use super::members::by_gang;
use super::policy::OnBindFailure;
use super::{Commit, Gangs, Look, Route};

/// First and longest rest of a group after a Binding that was refused.
const REST: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));

/// A pod that was deleted with its gang and is still there is deleted again after this time.
const EVICT_AGAIN: Duration = Duration::from_secs(10);

impl Gangs {
    /// Sends the held members of a satisfied group on their way.
    /// `rest`: they complete that commit.
    pub fn commit_group(&mut self, cx: &mut Context<'_>, group: &GroupId, held: Vec<PodId>, rest: Option<Committed>) {
        let attempt = self.attempt_stamp(cx, group);
        let members = u32::try_from(held.len()).unwrap_or(u32::MAX);
        let committed = rest.unwrap_or_else(|| group.commit(attempt, members));
        let number = cx.sequence.number();
        let text = committed.to_string();
        for id in &held {
            cx.reservations.commit(*id, Some(number), text.clone());
        }
        let gangs = || cx.world.gangs().of_group(group).filter(|gang| gang.group() == group);
        let looks: Vec<Look> = cx.world.gangs().of_group(group).map(Look::of).collect();
        let item = Item::Group(group.clone());
        // Where the rule stays, each new quorum is one: without the held members some gang would not have what it needs.
        let stays = |gang: &Gang| gang.config().policy != MatchPolicy::OnceSatisfied;
        let with_them = if gangs().any(stays) { by_gang(cx, &held) } else { BTreeMap::new() };
        let needs = |gang: &Gang| {
            let (policy, min) = (gang.config().policy, gang.config().min.unwrap_or(0));
            let own = with_them.get(gang.id()).copied().unwrap_or(0);
            stays(gang) && rule::weight(policy, gang.counts()).saturating_sub(own) < min
        };
        let quorum = rest.is_none() && gangs().any(needs);
        let landed: u32 = gangs().filter_map(|gang| gang.commits().get(&committed)).sum();
        let missing = committed.members.saturating_sub(landed);
        let Some(record) = self.groups.get_mut(group) else { return };
        let news = !record.progress.satisfied_once;
        let quorum = news || quorum;
        (record.progress.satisfied_once, record.outlived) = (true, false);
        record.progress.last_failure = None;
        record.progress.next_try = None;
        record.progress.holding_since = None;
        (record.holding, record.clock, record.reported) = (None, None, None);
        record.failed.clear();
        record.root_cause = None;
        record.tried = Some(looks);
        if held.is_empty() {
            cx.queue.park(item, Wake::ANY, cx.now.mono, cx.now.wall);
            return self.enqueue_free(cx, group);
        }
        cx.queue.remove(item);
        if news {
            let created = cx.world.gangs().of_group(group).filter_map(Gang::created).min();
            let waited =
                created.map(|created| cx.now.wall.duration_since(created).max(SignedDuration::ZERO).unsigned_abs());
            self.waits.extend(waited);
        }
        Preemption::withdraw_group(cx, group);
        cx.stats.groups_satisfied += u64::from(quorum);
        if quorum && let Some(first) = held.first() {
            let message = format!("group {group} has room for {} pods: binding", held.len());
            cx.event(*first, false, "GangSatisfied", message);
        }
        let members: BTreeSet<PodId> = held.iter().copied().collect();
        let unprepared = members.clone();
        let (once, rest) = (!news, rest.is_some());
        let commit = Commit { group: group.clone(), unprepared, members, once, rest, committed, missing };
        self.commits.insert(number, commit);
        for id in held {
            cx.steps.push(Step::Permit(id));
        }
        self.enqueue_free(cx, group);
    }

    /// When a commit was decided, later than every member was created and every earlier commit of the group, whatever the clocks of
    /// API server and scheduler say.
    fn attempt_stamp(&mut self, cx: &mut Context<'_>, group: &GroupId) -> Timestamp {
        let stamp = cx.sequence.stamp(cx.now.wall);
        let gangs = || cx.world.gangs().of_group(group);
        let second = SignedDuration::from_secs(1);
        let newest = gangs().filter_map(Gang::newest_live).max().and_then(|newest| newest.checked_add(second).ok());
        let seen = gangs().filter_map(|gang| gang.commits().last_key_value()).map(|(commit, _)| commit.attempt);
        let earlier = seen.chain(self.groups.get(group).and_then(|record| record.attempt)).max();
        let later = SignedDuration::from_micros(1);
        let attempt = [newest, earlier].into_iter().flatten().fold(stamp, Timestamp::max);
        let attempt = attempt.checked_add(later).unwrap_or(attempt);
        if let Some(record) = self.groups.get_mut(group) {
            record.attempt = Some(attempt);
        }
        attempt
    }

    /// A member that no rule binds any more is a commit of its own: its Binding, too, proves that the group was satisfied.
    pub fn commit_alone(&mut self, cx: &mut Context<'_>, id: PodId) {
        let Some(gang) = cx.world.gangs().gang_of(id) else { return };
        let group = gang.group().clone();
        if !rule::is_over(gang.config().policy, self.satisfied_once(&group)) {
            return;
        }
        let committed = group.commit(cx.sequence.stamp(cx.now.wall), 1);
        cx.reservations.commit(id, None, committed.to_string());
    }

    /// What an attempt leaves behind is sorted out: members that the rule does not bind any more go by themselves, others wait.
    pub fn after_attempt(&mut self, cx: &mut Context<'_>, group: &GroupId) {
        // What the attempt itself has moved is no news; what it did to other groups is.
        cx.world.settle_changed_gangs(group);
        self.review(cx, group);
        let once = self.satisfied_once(group);
        let over = |gang: &Gang| rule::is_over(gang.config().policy, once) && gang.counts().unplaced() > 0;
        if cx.world.gangs().of_group(group).any(over) {
            self.enqueue_members(cx, group);
        }
    }

    /// A member's volumes are settled: when those of all members are, all proceed.
    pub fn member_prepared(&mut self, cx: &mut Context<'_>, commit: u64, id: PodId) {
        let Some(commit) = self.commits.get_mut(&commit) else { return cx.steps.push(Step::Proceed(vec![id])) };
        commit.unprepared.remove(&id);
        if commit.unprepared.is_empty() {
            cx.steps.push(Step::Proceed(commit.members.iter().copied().collect()));
        }
    }

    /// A member's bind attempt has ended, well or not: members that waited only for it proceed.
    fn member_left(&mut self, cx: &mut Context<'_>, number: u64, id: PodId) {
        let Some(commit) = self.commits.get_mut(&number) else { return };
        commit.members.remove(&id);
        if commit.unprepared.remove(&id) && commit.unprepared.is_empty() {
            cx.steps.push(Step::Proceed(commit.members.iter().copied().collect()));
        }
        if commit.members.is_empty() {
            self.commits.remove(&number);
        }
    }

    /// A member of a commit is not being bound any more and has given its room back. While no member of the commit has gone for a
    /// lock, and without this one some gang lacks members, the commit is taken back whole.
    pub fn member_lost(&mut self, cx: &mut Context<'_>, number: u64, id: PodId) {
        let Some(commit) = self.commits.get(&number) else { return };
        let waits = !commit.unprepared.is_empty() && commit.members.contains(&id) && !commit.rest;
        let lacks = |gang: &Gang| {
            let config = gang.config();
            rule::needed(config.policy, config.min.unwrap_or(0), gang.counts(), commit.once) > 0
        };
        if waits && cx.world.gangs().of_group(&commit.group).any(lacks) {
            let why = format!("a member of group {} was lost while it was being bound", commit.group);
            return self.call_off(cx, number, Some(id), &why);
        }
        self.member_left(cx, number, id);
    }

    /// Takes back what was committed for a group that is not what it was, as long as no member of the commit has gone for a lock.
    pub fn call_off_unlocked(&mut self, cx: &mut Context<'_>, group: &GroupId, why: &str) {
        let unlocked = |commit: &Commit| commit.group == *group && !commit.unprepared.is_empty();
        let unlocked = self.commits.iter().filter(|(_, commit)| unlocked(commit)).map(|(number, _)| *number);
        for number in unlocked.collect::<Vec<_>>() {
            self.call_off(cx, number, None, why);
        }
    }

    /// Takes a commit back, but for `lost`, which has given its room back.
    fn call_off(&mut self, cx: &mut Context<'_>, number: u64, lost: Option<PodId>, why: &str) {
        let Some(Commit { group, mut members, once, .. }) = self.commits.remove(&number) else { return };
        if let Some(lost) = lost {
            members.remove(&lost);
        }
        for id in &members {
            if let Some(reservation) = cx.reservations.take(*id) {
                Reservations::free(cx, *id, reservation.node);
            }
        }
        cx.steps.push(Step::Withdraw(members.iter().copied().collect()));
        cx.stats.group_releases += 1;
        if let Some(record) = self.groups.get_mut(&group) {
            (record.progress.satisfied_once, record.outlived) = (once, true);
        }
        if let Some(first) = members.first() {
            let message = format!("room of {} pods given back: {why}", members.len());
            cx.event(*first, true, "GangHoldReleased", message);
        }
        match lost {
            Some(lost) => cx.steps.push(Step::RestGroup(lost)),
            // Each waits with the group that is its own now.
            None => members.into_iter().for_each(|id| cx.enqueue(id)),
        }
    }

    /// Members whose room was given back while they were part of a commit.
    pub fn settle_lost(&mut self, cx: &mut Context<'_>) {
        for (commit, id) in cx.reservations.take_lost() {
            if !cx.leading {
                continue;
            }
            self.member_lost(cx, commit, id);
            if cx.world.pod(id).is_some_and(|pod| MemberState::of(pod) == MemberState::Pending) {
                // A member that was not permitted is not asked for again at once.
                cx.steps.push(Step::RestGroup(id));
            }
        }
    }

    /// A member could not be bound: its group, if that still has to try for it, does so when it has rested, longer each time.
    pub fn rest_group_of(&mut self, cx: &mut Context<'_>, id: PodId) {
        let route = cx.world.pod(id).map(|pod| self.route(cx.world, cx.reservations, pod));
        let Some(Route::Completes(group) | Route::Group(group)) = route else { return };
        let Some(record) = self.groups.get_mut(&group) else { return };
        // Members that fail together are one failure.
        if record.rest_until.is_none_or(|until| until <= cx.now.mono) {
            let pause = REST.0.saturating_mul(1 << record.bind_failures.min(6)).min(REST.1);
            record.bind_failures += 1;
            record.rest_until = Some(cx.now.mono + pause);
        }
        self.queue_group(cx, &group);
    }

    /// A member is bound: its group's next failure is the first one again.
    pub fn member_bound(&mut self, cx: &mut Context<'_>, number: u64, id: PodId) {
        if let Some(commit) = self.commits.get_mut(&number)
            && let Some(record) = self.groups.get_mut(&commit.group)
        {
            record.bind_failures = 0;
            commit.missing = commit.missing.saturating_sub(1);
            if commit.missing == 0 {
                // A member that has ended by now was bound all the same: nothing broke off.
                record.whole = record.whole.max(Some(commit.committed));
            }
        }
        self.member_left(cx, number, id);
    }

    /// The kubelet may have refused a member: with `evictGang` those that were bound with it are deleted.
    pub fn member_refused(&mut self, cx: &mut Context<'_>, binder: &Binder, id: PodId) {
        let Some(pod) = cx.world.pod(id).filter(|pod| pod.facts.spec.refused) else { return };
        let commit = pod.facts.handoff.assignment.committed;
        let (Some(commit), Some(gang)) = (commit, cx.world.gangs().gang_of(id)) else { return };
        if !cx.leading || cx.config.gangs.on_bind_failure != OnBindFailure::EvictGang {
            return;
        }
        let (group, text) = (gang.group(), commit.to_string());
        // Where the rule stays, the gang is not what it must be without this one, whenever the others were bound.
        let required = gang.config().policy != MatchPolicy::OnceSatisfied;
        let with_it = |member: &&Member| {
            if required && matches!(member.state, MemberState::Bound | MemberState::Running | MemberState::Reserved) {
                return true;
            }
            let attempt = binder.attempts().get(&member.pod);
            let going = attempt.and_then(|attempt| attempt.annotations.get(key::GANG_COMMITTED)) == Some(text.as_str());
            going || (member.state.is_bound() && member.committed == Some(commit))
        };
        let members = cx.world.gangs().of_group(group).flat_map(Gang::members).filter(with_it);
        let members: Vec<PodId> = members.map(|member| member.pod).collect();
        let message = format!("pod {} of group {group} was refused by its node's kubelet", pod.key());
        members.into_iter().for_each(|id| self.evict(cx, id, message.clone()));
    }

    /// A member could not be bound for good: with `evictGang` the others are deleted.
    pub fn member_failed(&mut self, cx: &mut Context<'_>, commit: u64, id: PodId, why: &str) {
        let Some(group) = self.commits.get(&commit).map(|commit| commit.group.clone()) else { return };
        cx.event(id, true, "GangBindFailed", why.to_owned());
        if cx.config.gangs.on_bind_failure != OnBindFailure::EvictGang {
            return;
        }
        let gangs = cx.world.gangs().of_group(&group);
        let others = gangs
            .flat_map(Gang::members)
            .filter(|member| matches!(member.state, MemberState::Bound | MemberState::Running | MemberState::Reserved))
            .filter(|member| member.pod != id);
        let others: Vec<PodId> = others.map(|member| member.pod).collect();
        let message = format!("a member of group {group} could not be bound: {why}");
        others.into_iter().for_each(|id| self.evict(cx, id, message.clone()));
    }

    /// Deletes a pod, until the watch shows that.
    fn evict(&mut self, cx: &mut Context<'_>, id: PodId, message: String) {
        let Some(pod) = cx.world.pod(id).map(|pod| pod.facts.handoff.pod.clone()) else { return };
        cx.effects.push(Effect::Evict { pod, message: message.clone() });
        self.evicted.insert(id, message);
        cx.timers.set(cx.now.mono + EVICT_AGAIN, Timer::EvictMember(id));
    }

    /// A deletion may not have been heard.
    pub fn evict_again(&mut self, cx: &mut Context<'_>, id: PodId) {
        let Some(message) = self.evicted.remove(&id) else { return };
        if cx.world.pod(id).is_some_and(|pod| MemberState::of(pod).is_live()) {
            self.evict(cx, id, message);
        }
    }
}

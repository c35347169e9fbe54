//! A satisfied group goes on its way: the volumes of all members first, then locks and Bindings.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use crate::contract::gang::{Committed, MatchPolicy};
use crate::contract::key;
use crate::decide::lock::ReleaseReason;
use crate::decide::scheduler::effect::{Effect, Effects};
use crate::decide::scheduler::engine::{Engine, Timer};
use crate::decide::scheduler::queue::Item;
use crate::decide::scheduler::settings::Moment;
use crate::decide::world::gangs::{Gang, GroupId, Member, MemberState, rule};
use crate::decide::world::{PodId, Wake};

use super::record::{Look, OnBindFailure};
use super::review::Route;

/// First and longest rest of a group after a Binding that was refused.
const REST: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));

/// A pod that was deleted with its gang and is still there is deleted again after this time.
const SEND_AGAIN: Duration = Duration::from_secs(10);

/// Members that were committed together and are on their way.
#[derive(Debug, Clone)]
pub(crate) struct Commit {
    /// Their group.
    pub group: GroupId,
    /// Members whose flight has not ended.
    pub members: BTreeSet<PodId>,
    /// Of these, the ones whose volumes are not settled. While there is one, nobody locks.
    pub unprepared: BTreeSet<PodId>,
    /// The group had been satisfied before.
    once: bool,
    /// It completes one that broke off: whoever finds a place goes.
    rest: bool,
    /// What the Bindings say.
    committed: Committed,
    /// How many more members are to be bound until all that it names were.
    missing: u32,
}

impl Engine {
    /// Sends the held members of a satisfied group on their way.
    /// `rest`: they complete that commit.
    pub(in crate::decide) fn commit_group(
        &mut self,
        group: &GroupId,
        held: Vec<PodId>,
        rest: Option<Committed>,
        now: Moment,
        effects: &mut Effects,
    ) {
        let attempt = self.attempt_stamp(group, now);
        let members = u32::try_from(held.len()).unwrap_or(u32::MAX);
        let committed = rest.unwrap_or_else(|| group.commit(attempt, members));
        self.serial += 1;
        let number = self.serial;
        let text = committed.to_string();
        for id in &held {
            if let Some(hold) = self.holds.get_mut(id) {
                hold.annotations.set(key::GANG_COMMITTED, text.clone());
                hold.commit = Some(number);
            }
        }
        let gangs = || self.world.gangs().of_group(group).filter(|gang| gang.group() == group);
        let looks: Vec<Look> = self.world.gangs().of_group(group).map(Look::of).collect();
        let item = Item::Group(group.clone());
        // Where the rule stays, each new quorum is one: without the held members some gang would not have what it needs.
        let stays = |gang: &Gang| gang.config().policy != MatchPolicy::OnceSatisfied;
        let with_them = if gangs().any(stays) { self.by_gang(&held) } else { BTreeMap::new() };
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
        (record.holding, record.clock, record.told) = (None, None, None);
        record.failed.clear();
        record.root_cause = None;
        record.tried = Some(looks);
        if held.is_empty() {
            self.queue.park(item, Wake::ANY, now.mono, now.wall);
            return self.enqueue_free(group, now, effects);
        }
        self.queue.remove(item);
        if news {
            let created = self.world.gangs().of_group(group).filter_map(Gang::created).min();
            let waited =
                created.map(|created| now.wall.duration_since(created).max(SignedDuration::ZERO).unsigned_abs());
            self.group_waits.extend(waited);
        }
        self.denominate_group(group, effects);
        self.stats.groups_satisfied += u64::from(quorum);
        if quorum && let Some(first) = held.first() {
            let message = format!("group {group} has room for {} pods: binding", held.len());
            self.notice(*first, false, "GangSatisfied", message, effects);
        }
        let members: BTreeSet<PodId> = held.iter().copied().collect();
        let unprepared = members.clone();
        let (once, rest) = (!news, rest.is_some());
        let commit = Commit { group: group.clone(), unprepared, members, once, rest, committed, missing };
        self.commits.insert(number, commit);
        for id in held {
            self.permit(id, now, effects);
        }
        self.enqueue_free(group, now, effects);
    }

    /// When a commit was decided, later than every member was created and every earlier commit of the group, whatever the clocks of
    /// API server and scheduler say.
    fn attempt_stamp(&mut self, group: &GroupId, now: Moment) -> Timestamp {
        let stamp = self.stamp(now);
        let gangs = || self.world.gangs().of_group(group);
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
    pub(in crate::decide) fn commit_alone(&mut self, id: PodId, now: Moment) {
        let Some(gang) = self.world.gangs().gang_of(id) else { return };
        let group = gang.group().clone();
        if !rule::is_over(gang.config().policy, self.satisfied_once(&group)) {
            return;
        }
        let committed = group.commit(self.stamp(now), 1);
        if let Some(hold) = self.holds.get_mut(&id) {
            hold.annotations.set(key::GANG_COMMITTED, committed.to_string());
        }
    }

    /// What an attempt leaves behind is sorted out: members that the rule does not bind any more go by themselves, others wait.
    pub(in crate::decide) fn after_attempt(&mut self, group: &GroupId, now: Moment, effects: &mut Effects) {
        self.review(group, now, effects);
        let once = self.satisfied_once(group);
        let over = |gang: &Gang| rule::is_over(gang.config().policy, once) && gang.counts().unplaced() > 0;
        if self.world.gangs().of_group(group).any(over) {
            self.enqueue_members(group, now, effects);
        }
    }

    /// A member's volumes are settled. `true` when nobody of its commit is waited for any more.
    pub(in crate::decide) fn member_prepared(&mut self, commit: u64, id: PodId) -> Vec<PodId> {
        let Some(commit) = self.commits.get_mut(&commit) else { return vec![id] };
        commit.unprepared.remove(&id);
        if commit.unprepared.is_empty() { commit.members.iter().copied().collect() } else { Vec::new() }
    }

    /// A member's flight has ended, well or not. Returns those who waited only for it.
    pub(in crate::decide) fn member_left(&mut self, number: u64, id: PodId) -> Vec<PodId> {
        let Some(commit) = self.commits.get_mut(&number) else { return Vec::new() };
        commit.members.remove(&id);
        let was_last = commit.unprepared.remove(&id) && commit.unprepared.is_empty();
        let free = if was_last { commit.members.iter().copied().collect() } else { Vec::new() };
        if commit.members.is_empty() {
            self.commits.remove(&number);
        }
        free
    }

    /// A member of a commit is on its way no more and has given its room back. While nobody of the commit has gone for a lock,
    /// and without it not every gang has what it needs, nobody goes: all is as before the commit.
    pub(in crate::decide) fn member_lost(&mut self, number: u64, id: PodId, now: Moment, effects: &mut Effects) {
        let Some(commit) = self.commits.get(&number) else { return };
        let waits = !commit.unprepared.is_empty() && commit.members.contains(&id) && !commit.rest;
        let lacks = |gang: &Gang| {
            let config = gang.config();
            rule::needed(config.policy, config.min.unwrap_or(0), gang.counts(), commit.once) > 0
        };
        if waits && self.world.gangs().of_group(&commit.group).any(lacks) {
            let why = format!("a member of group {} was lost on its way", commit.group);
            return self.call_off(number, Some(id), &why, now, effects);
        }
        self.member_left(number, id).into_iter().for_each(|id| self.go(id, now, effects));
    }

    /// Takes back what was committed for a group that is not what it was, as long as nobody of the commit has gone for a lock.
    pub(in crate::decide) fn call_off_unlocked(
        &mut self,
        group: &GroupId,
        why: &str,
        now: Moment,
        effects: &mut Effects,
    ) {
        let unlocked = |commit: &Commit| commit.group == *group && !commit.unprepared.is_empty();
        let unlocked = self.commits.iter().filter(|(_, commit)| unlocked(commit)).map(|(number, _)| *number);
        for number in unlocked.collect::<Vec<_>>() {
            self.call_off(number, None, why, now, effects);
        }
    }

    /// Takes everybody of a commit back, but for `lost`, who has given its room back.
    fn call_off(&mut self, number: u64, lost: Option<PodId>, why: &str, now: Moment, effects: &mut Effects) {
        let Some(Commit { group, mut members, once, .. }) = self.commits.remove(&number) else { return };
        if let Some(lost) = lost {
            members.remove(&lost);
        }
        for id in &members {
            if let Some(hold) = self.holds.remove(id) {
                self.unreserve(*id, hold.node);
            } else if let Some(flight) = self.drop_flight(*id) {
                if let Some(raw) = flight.lock_value {
                    self.release(flight.node, &raw, ReleaseReason::BindFailed, effects);
                }
                self.unreserve(*id, flight.node);
            }
        }
        self.stats.group_releases += 1;
        if let Some(record) = self.groups.get_mut(&group) {
            (record.progress.satisfied_once, record.outlived) = (once, true);
        }
        if let Some(first) = members.first() {
            let message = format!("room of {} pods given back: {why}", members.len());
            self.notice(*first, true, "GangHoldReleased", message, effects);
        }
        match lost {
            Some(lost) => self.rest_group_of(lost, now),
            // Each waits with the group that is its own now.
            None => members.into_iter().for_each(|id| self.enqueue(id, now, effects)),
        }
    }

    /// Members whose room was given back while they were part of a commit.
    pub(in crate::decide) fn settle_strays(&mut self, now: Moment, effects: &mut Effects) {
        for (commit, id) in std::mem::take(&mut self.strays) {
            self.member_lost(commit, id, now, effects);
            if self.world.pod(id).is_some_and(|pod| MemberState::of(pod) == MemberState::Pending) {
                // Whoever was not permitted is not asked for again at once.
                self.rest_group_of(id, now);
            }
        }
    }

    /// A member could not be bound: its group, if that still has to try for it, does so when it has rested, longer each time.
    pub(in crate::decide) fn rest_group_of(&mut self, id: PodId, now: Moment) {
        let route = self.world.pod(id).map(|pod| self.route(pod));
        let Some(Route::Owed(group) | Route::Group(group)) = route else { return };
        let Some(record) = self.groups.get_mut(&group) else { return };
        // Members that fail together are one failure.
        if record.rest_until.is_none_or(|until| until <= now.mono) {
            let pause = REST.0.saturating_mul(1 << record.bind_failures.min(6)).min(REST.1);
            record.bind_failures += 1;
            record.rest_until = Some(now.mono + pause);
        }
        self.queue_group(&group, now);
    }

    /// A member is bound: its group's next failure is the first one again.
    pub(in crate::decide) fn member_bound(&mut self, commit: u64) {
        if let Some(commit) = self.commits.get_mut(&commit)
            && let Some(record) = self.groups.get_mut(&commit.group)
        {
            record.bind_failures = 0;
            commit.missing = commit.missing.saturating_sub(1);
            if commit.missing == 0 {
                // Whoever has ended by now was bound all the same: nothing broke off.
                record.whole = record.whole.max(Some(commit.committed));
            }
        }
    }

    /// The kubelet may have refused a member: with `evictGang` those who were bound with it are deleted.
    pub(in crate::decide) fn member_refused(&mut self, id: PodId, now: Moment, effects: &mut Effects) {
        let Some(pod) = self.world.pod(id).filter(|pod| pod.facts.spec.refused) else { return };
        let commit = pod.facts.handoff.assignment.committed;
        let (Some(commit), Some(gang)) = (commit, self.world.gangs().gang_of(id)) else { return };
        if !self.leading || self.config.gangs.on_bind_failure != OnBindFailure::EvictGang {
            return;
        }
        let (group, text) = (gang.group(), commit.to_string());
        // Where the rule stays, the gang is not what it must be without this one, whenever the others were bound.
        let required = gang.config().policy != MatchPolicy::OnceSatisfied;
        let with_it = |member: &&Member| {
            if required && matches!(member.state, MemberState::Bound | MemberState::Running | MemberState::Reserved) {
                return true;
            }
            let flight = self.flights.get(&member.pod);
            let going = flight.and_then(|flight| flight.annotations.get(key::GANG_COMMITTED)) == Some(text.as_str());
            going || (member.state.is_bound() && member.committed == Some(commit))
        };
        let members = self.world.gangs().of_group(group).flat_map(Gang::members).filter(with_it);
        let members: Vec<PodId> = members.map(|member| member.pod).collect();
        let message = format!("pod {} of group {group} was refused by its node's kubelet", pod.key());
        members.into_iter().for_each(|id| self.send_away(id, message.clone(), now, effects));
    }

    /// A member could not be bound for good: with `evictGang` the others are deleted.
    pub(in crate::decide) fn member_failed(
        &mut self,
        id: PodId,
        group: &GroupId,
        why: &str,
        now: Moment,
        effects: &mut Effects,
    ) {
        if self.config.gangs.on_bind_failure != OnBindFailure::EvictGang {
            return;
        }
        let gangs = self.world.gangs().of_group(group);
        let others = gangs
            .flat_map(Gang::members)
            .filter(|member| matches!(member.state, MemberState::Bound | MemberState::Running | MemberState::Reserved))
            .filter(|member| member.pod != id);
        let others: Vec<PodId> = others.map(|member| member.pod).collect();
        let message = format!("a member of group {group} could not be bound: {why}");
        others.into_iter().for_each(|id| self.send_away(id, message.clone(), now, effects));
    }

    /// Deletes a pod, until the watch shows that.
    fn send_away(&mut self, id: PodId, message: String, now: Moment, effects: &mut Effects) {
        let Some(pod) = self.world.pod(id).map(|pod| pod.facts.handoff.pod.clone()) else { return };
        effects.push(Effect::Evict { pod, message: message.clone() });
        self.sent_away.insert(id, message);
        self.timers.insert((now.mono + SEND_AGAIN, Timer::SentAway(id)));
    }

    /// A deletion may not have been heard.
    pub(in crate::decide) fn sent_away_due(&mut self, id: PodId, now: Moment, effects: &mut Effects) {
        let Some(message) = self.sent_away.remove(&id) else { return };
        if self.world.pod(id).is_some_and(|pod| MemberState::of(pod).is_live()) {
            self.send_away(id, message, now, effects);
        }
    }
}

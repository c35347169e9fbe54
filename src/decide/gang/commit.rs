//! Binds a satisfied group: first the volumes of all members are prepared, then locks are taken and Bindings made.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use super::review::enqueue_members;
use crate::bind::Binder;
use crate::core::agenda::{Agenda, Scene, Step};
use crate::core::context::Context;
use crate::core::effect::Effect;
use crate::core::placing::Rooms;
use crate::core::queue::Item;
use crate::core::reservations::Reservations;
use crate::core::timers::Timer;
use crate::world::gangs::{Gang, Generation, GroupId, Member, MemberState, rule};
use crate::world::{Pod, PodId, Wake, World};
use baton_contract::gang::{Committed, MatchPolicy};

use super::members::{by_gang, reserved_members};
use super::{Commit, CommitKind, CommitMember, GangState, Gangs, MemberStep, Route};
use crate::core::OnBindFailure;
use baton_contract::{EventReason, key};

/// A pod that is evicted with its gang is evicted again after this time, while it is still there.
const EVICT_AGAIN: Duration = Duration::from_secs(10);

impl Gangs {
    /// Starts to bind the reserved members of a satisfied group. `rest`: they complete that commit.
    pub(super) fn commit_group(
        &mut self,
        cx: &mut Context<'_>,
        group: &GroupId,
        held: Vec<PodId>,
        rest: Option<Committed>,
    ) {
        let attempt = self.attempt_stamp(cx.terms.scene(cx.world), cx.agenda, group);
        let committed = rest.unwrap_or_else(|| group.commit(attempt, u32::try_from(held.len()).unwrap_or(u32::MAX)));
        let number = cx.agenda.sequence.number();
        let text = committed.to_string();
        for id in &held {
            cx.reservations.commit(*id, Some(number), text.clone());
        }
        let gangs = || cx.world.gangs().listing(group);
        let item = Item::Group(group.clone());
        // A policy that still counts after the first time is satisfied again by each commit without which a gang lacks members.
        let stays = |gang: &Gang| gang.config().policy != MatchPolicy::OnceSatisfied;
        let with_them = if gangs().any(stays) { by_gang(cx.world, &held) } else { BTreeMap::new() };
        let needs = |gang: &Gang| {
            let (policy, min) = (gang.config().policy, gang.config().min.unwrap_or(0));
            let own = with_them.get(gang.id()).copied().unwrap_or(0);
            stays(gang) && rule::weight(policy, gang.counts()).saturating_sub(own) < min
        };
        let quorum = rest.is_none() && gangs().any(needs);
        cx.earmarks.end(cx.world, cx.agenda, &item);
        // A younger member may hold room while the rest of a commit goes: it still waits for others.
        let waits = !reserved_members(cx.world, cx.reservations, group).is_empty();
        let Some(record) = self.groups.get_mut(group) else { return };
        if let Some(rest) = rest {
            // Those that are bound may be gone before these take their locks.
            let unbound = record.commits.unbound_of(cx.world, group, rest);
            record.commits.unbound.insert(rest, unbound);
        }
        let first = !record.progress.satisfied_once();
        let quorum = first || quorum;
        record.progress.generation = Generation::Satisfied;
        if !waits {
            record.stop_waiting();
        }
        record.progress.last_failure = None;
        record.root_cause = None;
        record.attempt.failed.clear();
        record.attempt.gangs = Some(GangState::of_group(cx.world, group));
        if held.is_empty() {
            cx.agenda.queue.park(item, Wake::ANY, cx.terms.now.mono);
            return self.enqueue_free(cx.world, cx.agenda, group);
        }
        cx.agenda.queue.remove(item);
        if first {
            let created = cx.world.gangs().of_group(group).filter_map(Gang::created).min();
            let waited = created
                .map(|created| cx.terms.now.wall.duration_since(created).max(SignedDuration::ZERO).unsigned_abs());
            self.waits.extend(waited);
        }
        cx.preemption.withdraw_group(cx.world, cx.agenda, group);
        cx.agenda.stats.groups.satisfied += u64::from(quorum);
        if quorum && let Some(id) = held.first() {
            let message = format!("group {group} has room for {} pods: binding", held.len());
            cx.agenda.event(cx.world, *id, EventReason::GangSatisfied, message);
        }
        let member = CommitMember { states: committed, step: MemberStep::Prepares };
        let members = held.iter().map(|id| (*id, member)).collect();
        let kind = match rest {
            Some(_) => CommitKind::Rest,
            None if first => CommitKind::First,
            None => CommitKind::Again,
        };
        self.commits.insert(number, Commit { group: group.clone(), members, kind, committed });
        for id in held {
            cx.agenda.steps.push(Step::Permit(id));
        }
        self.enqueue_free(cx.world, cx.agenda, group);
    }

    /// The time of a commit: later than the creation of every member and than every earlier commit of the group, however the clocks
    /// of API server and scheduler differ.
    fn attempt_stamp(&self, scene: Scene<'_>, agenda: &mut Agenda, group: &GroupId) -> Timestamp {
        let stamp = agenda.sequence.stamp(scene.terms.now.wall);
        let gangs = || scene.world.gangs().of_group(group);
        let newest = gangs().filter_map(Gang::newest_live).max();
        let seen = gangs().filter_map(|gang| gang.landed().last_key_value()).map(|(commit, _)| commit.attempt);
        let own = self.groups.get(group).and_then(|record| record.commits.last.max(record.commits.whole));
        let under_way = self.commits.values().filter(|commit| commit.group == *group).map(|commit| commit.committed);
        let earlier = seen.chain(own.into_iter().chain(under_way).map(|commit| commit.attempt)).max();
        let later = SignedDuration::from_micros(1);
        let attempt = [newest, earlier].into_iter().flatten().fold(stamp, Timestamp::max);
        attempt.checked_add(later).unwrap_or(attempt)
    }

    /// A member whose group is satisfied for good is a commit of its own: its Binding, too, proves that the group was satisfied. One
    /// that comes back from a commit of which others are still to be bound stays of that commit.
    pub fn commit_alone(&mut self, scene: Scene<'_>, reservations: &mut Reservations, agenda: &mut Agenda, id: PodId) {
        let Some(gang) = scene.world.gangs().gang_of(id) else { return };
        let group = gang.group().clone();
        if !rule::is_over(gang.config().policy, self.satisfied_once(&group)) {
            return;
        }
        let is_of = |commit: &Committed| {
            let older = |pod: &Pod| pod.facts.handoff.created < commit.attempt;
            commit.members > 1 && scene.world.pod(id).is_some_and(older)
        };
        let broken = self.groups.get(&group).and_then(|record| record.commits.broken());
        let committed = match broken.filter(is_of) {
            Some(broken) => broken,
            None => group.commit(self.attempt_stamp(scene, agenda, &group), 1),
        };
        reservations.commit(id, None, committed.to_string());
    }

    /// Reviews a group after its attempt: members of a group that is satisfied for good are queued as single pods.
    pub fn after_attempt(&mut self, cx: &mut Context<'_>, group: &GroupId) {
        // The attempt's own changes need no further review; its changes of other groups do.
        cx.world.settle_changed_gangs(group);
        self.review(cx, group);
        let once = self.satisfied_once(group);
        let over = |gang: &Gang| rule::is_over(gang.config().policy, once) && gang.counts().unplaced() > 0;
        if cx.world.gangs().of_group(group).any(over) {
            enqueue_members(cx.terms.scene(cx.world), cx.agenda, group);
        }
    }

    /// Commits of a group none of whose members takes a lock: they may still be cancelled.
    pub(super) fn open_commits(&self, group: &GroupId) -> impl Iterator<Item = (u64, &Commit)> {
        let is_open = |number: &u64, commit: &Commit| !commit.is_prepared() || self.waiting.contains(number);
        let open =
            self.commits.iter().filter(move |(number, commit)| commit.group == *group && is_open(number, commit));
        open.map(|(number, commit)| (*number, commit))
    }

    /// A member's volumes are prepared: when those of all members are, all take their locks.
    pub fn member_prepared(&mut self, world: &World, agenda: &mut Agenda, commit: u64, id: PodId) {
        let Some(prepared) = self.commits.get_mut(&commit) else {
            return agenda.steps.push(Step::Proceed(vec![id]));
        };
        let Some(member) = prepared.members.get_mut(&id).filter(|member| member.step == MemberStep::Prepares) else {
            return;
        };
        member.step = MemberStep::Prepared;
        if prepared.is_prepared() {
            self.waiting.insert(commit);
            let group = prepared.group.clone();
            self.go_on(world, agenda, &group);
        }
    }

    /// Commits of the group that wait take their locks when those before them have, and no Binding of the group is on its way: one that
    /// is lost would be missing from what they state.
    fn go_on(&mut self, world: &World, agenda: &mut Agenda, group: &GroupId) {
        let is_of = |number: &&u64| self.commits.get(number).is_some_and(|commit| commit.group == *group);
        let waiting: Vec<u64> = self.waiting.iter().filter(is_of).copied().collect();
        if waiting.is_empty() || self.commits.values().any(|other| other.group == *group && other.is_requested()) {
            return;
        }
        let mut going = Vec::new();
        for number in waiting {
            if self.open_commits(group).next().is_some_and(|(first, _)| first == number) {
                going.extend(self.proceed(world, agenda, number));
            }
        }
        // A member without a lock is bound at once: what it states must be final.
        agenda.steps.push(Step::Proceed(going));
    }

    /// The members of a commit, which take their locks: it cannot be cancelled any more. Only now it is known how many members it has.
    /// Those that earlier commits are still binding have counted for it, and its Bindings count them.
    fn proceed(&mut self, world: &World, agenda: &mut Agenda, number: u64) -> Vec<PodId> {
        self.waiting.remove(&number);
        let Some(commit) = self.commits.get(&number) else { return Vec::new() };
        let (group, former) = (commit.group.clone(), commit.committed);
        if commit.kind == CommitKind::First {
            // The group is satisfied for good: its surplus goes on.
            agenda.steps.push(Step::AfterAttempt(group.clone()));
        }
        let Some(record) = self.groups.get_mut(&group) else { return Vec::new() };
        let own: Vec<PodId> = commit.members.keys().copied().collect();
        if commit.kind == CommitKind::Rest {
            record.commits.last = record.commits.last.max(Some(former));
            return own;
        }
        let is_reserved = |id: &PodId| world.pod(*id).is_some_and(|pod| MemberState::of(pod) == MemberState::Reserved);
        let earlier = self.commits.range_mut(..=number).map(|(_, other)| other).filter(|other| other.group == group);
        let to_come: Vec<(&PodId, &mut CommitMember)> =
            earlier.flat_map(|other| &mut other.members).filter(|(id, _)| is_reserved(id)).collect();
        let committed = group.commit(former.attempt, u32::try_from(to_come.len()).unwrap_or(u32::MAX).max(1));
        let mut renamed = Vec::new();
        for (id, member) in to_come {
            if std::mem::replace(&mut member.states, committed) != committed {
                renamed.push(*id);
            }
        }
        if let Some(commit) = self.commits.get_mut(&number) {
            commit.committed = committed;
        }
        record.commits.last = record.commits.last.max(Some(committed));
        record.commits.unbound.insert(committed, committed.members);
        if !renamed.is_empty() {
            agenda.steps.push(Step::RestateCommit(renamed, committed.to_string()));
        }
        own
    }

    /// A member's bind attempt has ended: members that waited only for it take their locks.
    fn member_left(&mut self, world: &World, agenda: &mut Agenda, number: u64, id: PodId) {
        let Some(commit) = self.commits.get_mut(&number) else { return };
        let group = commit.group.clone();
        let prepared = commit.members.remove(&id).is_some_and(|member| member.step == MemberStep::Prepares);
        if commit.members.is_empty() {
            self.waiting.remove(&number);
        } else if prepared && commit.is_prepared() {
            self.waiting.insert(number);
        }
        if commit.members.is_empty() {
            self.commits.remove(&number);
            if let Some(record) = self.groups.get_mut(&group)
                && !self.commits.values().any(|commit| commit.group == group)
            {
                // The last one may have broken off.
                record.commits.unbound.retain(|commit, _| record.commits.last == Some(*commit));
            }
            if world.gangs().of_group(&group).any(|gang| gang.counts().unplaced() > 0) {
                // While it was under way, the others of the group were queued by another rule.
                agenda.steps.push(Step::AfterAttempt(group.clone()));
            }
        }
        self.go_on(world, agenda, &group);
    }

    /// A member of a commit is not being bound any more and has released its room. When some gang lacks members without it, each
    /// commit of the group is cancelled of which no member takes its lock yet.
    pub fn member_lost(&mut self, rooms: &mut Rooms<'_>, number: u64, id: PodId) {
        let Some(commit) = self.commits.get(&number).filter(|commit| commit.members.contains_key(&id)) else { return };
        let group = commit.group.clone();
        let why = format!("a member of group {group} was lost while it was being bound");
        self.cancel_short(rooms, &group, Some((number, id)), &why);
        self.member_left(rooms.world, rooms.agenda, number, id);
        self.go_on(rooms.world, rooms.agenda, &group);
    }

    /// Cancels the commits of a group that lack members, none of whose members takes its lock. `lost`: the one that has released its room.
    pub(super) fn cancel_short(
        &mut self,
        rooms: &mut Rooms<'_>,
        group: &GroupId,
        lost: Option<(u64, PodId)>,
        why: &str,
    ) {
        let open = self.open_commits(group).filter(|(_, commit)| commit.kind != CommitKind::Rest);
        let open: Vec<(u64, CommitKind)> = open.map(|(number, commit)| (number, commit.kind)).collect();
        // Those after it have counted its members.
        let first =
            open.iter().position(|(number, kind)| self.lacks(rooms.world, group, (*number, *kind), lost.is_some()));
        for (open, _) in first.map_or(&[][..], |first| &open[first..]) {
            self.cancel(rooms, (*open, lost.filter(|(number, _)| number == open).map(|(_, id)| id)), why);
        }
    }

    /// Some gang lacks members without those of later commits, of which none takes its lock before this commit goes.
    fn lacks(&self, world: &World, group: &GroupId, (number, kind): (u64, CommitKind), lost: bool) -> bool {
        let is_reserved = |id: &PodId| world.pod(*id).is_some_and(|pod| MemberState::of(pod) == MemberState::Reserved);
        let later = self.commits.range(number + 1..).filter(|(_, other)| other.group == *group);
        let later: Vec<PodId> =
            later.flat_map(|(_, other)| other.members.keys().copied()).filter(is_reserved).collect();
        let later = by_gang(world, &later);
        group.gangs().iter().any(|id| {
            let Some(gang) = world.gangs().gang(id).filter(|gang| gang.group() == group) else { return true };
            let (policy, min) = (gang.config().policy, gang.config().min.unwrap_or(0));
            let less = later.get(id).copied().unwrap_or(0);
            // Without a loss, who waits grows fewer because earlier members are bound.
            let counts = lost || policy != MatchPolicy::OnlyWaiting;
            counts
                && !rule::is_over(policy, kind != CommitKind::First)
                && rule::weight(policy, gang.counts()).saturating_sub(less) < min
        })
    }

    /// Cancels the commits of a group whose gangs have changed, as long as none of their members takes its lock.
    pub(super) fn cancel_unlocked(&mut self, rooms: &mut Rooms<'_>, group: &GroupId, why: &str) {
        for number in self.open_commits(group).map(|(number, _)| number).collect::<Vec<_>>() {
            self.cancel(rooms, (number, None), why);
        }
    }

    /// Cancels a commit. `lost`: a member that has released its room already.
    fn cancel(&mut self, rooms: &mut Rooms<'_>, (number, lost): (u64, Option<PodId>), why: &str) {
        let Rooms { terms, world, reservations, agenda } = rooms;
        self.waiting.remove(&number);
        let Some(Commit { group, members, kind, .. }) = self.commits.remove(&number) else { return };
        let members: Vec<PodId> = members.into_keys().filter(|id| Some(*id) != lost).collect();
        for id in &members {
            if let Some(reservation) = reservations.take(*id) {
                reservations.free(*terms, world, agenda, *id, reservation.node);
            }
        }
        agenda.steps.push(Step::Withdraw(members.clone()));
        agenda.stats.groups.releases += 1;
        if let Some(record) = self.groups.get_mut(&group).filter(|_| kind == CommitKind::First) {
            record.progress.generation = Generation::New;
        }
        if let Some(id) = members.first() {
            let message = format!("room of {} pods given back: {why}", members.len());
            agenda.warning(world, *id, EventReason::GangHoldReleased, message);
        }
        match lost {
            Some(lost) => agenda.steps.push(Step::BindRefused(lost)),
            // Each member is queued with its present group.
            None => members.into_iter().for_each(|id| agenda.enqueue(id)),
        }
        // The surplus waits with its group again.
        enqueue_members(terms.scene(world), agenda, &group);
    }

    /// Handles members of commits whose reservation was released.
    pub fn settle_lost(&mut self, rooms: &mut Rooms<'_>) {
        for (commit, id) in rooms.reservations.take_lost() {
            if !rooms.terms.leading {
                continue;
            }
            self.member_lost(rooms, commit, id);
            if rooms.world.pod(id).is_some_and(|pod| MemberState::of(pod) == MemberState::Pending) {
                // A member that Permit refused is not tried again at once.
                rooms.agenda.steps.push(Step::BindRefused(id));
            }
        }
    }

    /// A member could not be bound: its group, where it is still queued with one, is tried again after a pause that grows.
    pub fn bind_refused(&mut self, scene: Scene<'_>, reservations: &Reservations, agenda: &mut Agenda, id: PodId) {
        let Some(Route::Group(group)) = self.route_of(scene.world, reservations, id) else {
            return;
        };
        let Some(record) = self.groups.get_mut(&group) else { return };
        record.refusals.count(scene.terms.now.mono);
        self.queue_group(scene, reservations, agenda, &group);
    }

    /// A member is bound: the pause of its group begins at its shortest again.
    pub fn member_bound(&mut self, world: &World, agenda: &mut Agenda, number: u64, id: PodId) {
        if let Some(commit) = self.commits.get_mut(&number)
            && let Some(record) = self.groups.get_mut(&commit.group)
        {
            record.refusals.in_a_row = 0;
            if let Some(member) = commit.members.get(&id) {
                record.commits.bound(member.states);
            }
        }
        self.member_left(world, agenda, number, id);
    }

    /// The Binding of a member is requested.
    pub fn member_requested(&mut self, number: u64, id: PodId) {
        if let Some(member) = self.commits.get_mut(&number).and_then(|commit| commit.members.get_mut(&id)) {
            member.step = MemberStep::Requested;
        }
    }

    /// When the kubelet refused a member, `evictGang` evicts those that were bound with it.
    pub fn member_refused(&mut self, scene: Scene<'_>, agenda: &mut Agenda, binder: &Binder, id: PodId) {
        let Some(pod) = scene.world.pod(id).filter(|pod| pod.facts.spec.refused) else { return };
        let commit = pod.facts.handoff.assignment.committed;
        let (Some(commit), Some(gang)) = (commit, scene.world.gangs().gang_of(id)) else { return };
        if !scene.terms.leading || scene.terms.config.gangs.on_bind_failure != OnBindFailure::EvictGang {
            return;
        }
        let (group, text) = (gang.group(), commit.to_string());
        // Under a policy that still counts, the gang lacks this member, whenever the others were bound.
        let required = gang.config().policy != MatchPolicy::OnceSatisfied;
        let with_it = |member: &&Member| {
            if required && member.state.has_node() {
                return true;
            }
            let attempt = binder.attempts().get(&member.pod);
            let going = attempt.and_then(|attempt| attempt.annotations.get(key::GANG_COMMITTED)) == Some(text.as_str());
            going || (member.state.is_bound() && member.committed == Some(commit))
        };
        let members = scene.world.gangs().of_group(group).flat_map(Gang::members).filter(with_it);
        let members: Vec<PodId> = members.map(|member| member.pod).collect();
        let message = format!("pod {} of group {group} was refused by its node's kubelet", pod.key());
        members.into_iter().for_each(|id| self.evict(scene, agenda, id, message.clone()));
    }

    /// A member could finally not be bound: `evictGang` evicts the others.
    pub fn member_failed(&mut self, scene: Scene<'_>, agenda: &mut Agenda, commit: u64, id: PodId, why: &str) {
        let Some(group) = self.commits.get(&commit).map(|commit| commit.group.clone()) else { return };
        agenda.warning(scene.world, id, EventReason::GangBindFailed, why.to_owned());
        if scene.terms.config.gangs.on_bind_failure != OnBindFailure::EvictGang {
            return;
        }
        let members = scene.world.gangs().of_group(&group).flat_map(Gang::members);
        let others = members.filter(|member| member.state.has_node() && member.pod != id);
        let others: Vec<PodId> = others.map(|member| member.pod).collect();
        let message = format!("a member of group {group} could not be bound: {why}");
        others.into_iter().for_each(|id| self.evict(scene, agenda, id, message.clone()));
    }

    /// Evicts a pod, again and again until the watch shows its deletion.
    fn evict(&mut self, scene: Scene<'_>, agenda: &mut Agenda, id: PodId, message: String) {
        let Some(pod) = scene.world.pod(id).map(|pod| pod.facts.handoff.pod.clone()) else { return };
        agenda.effects.push(Effect::Evict { pod, message: message.clone() });
        self.evicted.insert(id, message);
        agenda.timers.set(scene.terms.now.mono + EVICT_AGAIN, Timer::EvictMember(id));
    }

    /// The timer of an eviction fired: the request may have been lost.
    pub fn evict_again(&mut self, scene: Scene<'_>, agenda: &mut Agenda, id: PodId) {
        let Some(message) = self.evicted.remove(&id) else { return };
        if scene.world.pod(id).is_some_and(|pod| MemberState::of(pod).is_live()) {
            self.evict(scene, agenda, id, message);
        }
    }
}

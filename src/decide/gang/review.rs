//! After every change of a gang: may its group be tried, and which item is a pod queued under?

use std::collections::BTreeMap;

use crate::contract::gang::{Committed, GangId, Mode};
use crate::decide::scheduler::effect::Effects;
use crate::decide::scheduler::engine::{Engine, Timer};
use crate::decide::scheduler::queue::{Item, QueueState};
use crate::decide::scheduler::rules::Queued;
use crate::decide::scheduler::settings::Moment;
use crate::decide::world::gangs::{Change, Gang, GroupId, Hold, Member, MemberState, rule};
use crate::decide::world::{Place, Pod, PodId};

use super::before::was_satisfied_before;
use super::record::Look;

/// Under what a pod that waits is queued.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Route {
    /// By itself.
    Alone,
    /// With its group, to complete a commit that broke off, whatever else the group's rule says.
    Owed(GroupId),
    /// With its group.
    Group(GroupId),
    /// Not at all until something changes.
    Held(Hold),
}

impl Engine {
    /// Under what a pod that waits is queued.
    pub(in crate::decide) fn route(&self, pod: &Pod) -> Route {
        let Some(declared) = &pod.facts.spec.gang else { return Route::Alone };
        let book = self.world.gangs();
        match book.named(declared) {
            None => return Route::Alone,
            Some(Err(bad)) => return Route::Held(Hold::BadName(bad.clone())),
            Some(Ok(_)) => {}
        }
        let Some(gang) = book.gang_of(pod.id) else { return Route::Alone };
        let group = gang.group();
        if !declared.timed_out && self.owes(gang, pod) {
            return Route::Owed(group.clone());
        }
        let once = self.satisfied_once(group);
        if let Some(hold) = book.holds_pod(pod, once) {
            return Route::Held(hold);
        }
        let config = gang.config();
        let free = config.min == Some(0) && group.is_alone();
        if free || rule::is_over(config.policy, once) { Route::Alone } else { Route::Group(group.clone()) }
    }

    /// A commit of its group broke off, and this pod was there when that was decided.
    fn owes(&self, gang: &Gang, pod: &Pod) -> bool {
        self.broken_commit(gang.group()).is_some_and(|commit| pod.facts.handoff.created < commit.attempt)
    }

    /// The latest commit of a group, when it was never seen whole and none of its members is on its way.
    pub(in crate::decide) fn broken_commit(&self, group: &GroupId) -> Option<Committed> {
        let (commit, bound) = self.latest_commit(group)?;
        let whole = self.groups.get(group).is_some_and(|record| record.whole.is_some_and(|whole| whole >= commit));
        if whole || bound >= commit.members || self.commits.values().any(|under_way| under_way.group == *group) {
            return None;
        }
        // Bound by us, the watch is yet to show it.
        let gangs = self.world.gangs().of_group(group).filter(|gang| gang.group() == group);
        let reserved: u32 = gangs.map(|gang| gang.counts().reserved).sum();
        let held = self.holds.values().filter(|hold| hold.group.as_ref() == Some(group)).count();
        (reserved as usize <= held).then_some(commit)
    }

    /// The latest commit of several members that the group has made, and how many of them live with a node.
    fn latest_commit(&self, group: &GroupId) -> Option<(Committed, u32)> {
        let gangs = || self.world.gangs().of_group(group).filter(|gang| gang.group() == group);
        let of_group = |commit: &&Committed| commit.members > 1 && group.made(commit);
        let latest = |gang: &Gang| gang.commits().keys().rev().find(of_group).copied();
        let commit = gangs().filter_map(latest).max()?;
        Some((commit, gangs().filter_map(|gang| gang.commits().get(&commit)).sum()))
    }

    /// Members that have to complete a commit that broke off.
    pub(in crate::decide) fn who_owes(&self, group: &GroupId) -> Vec<PodId> {
        // Asked after every change of every gang: most often, above all while a commit is under way, nobody waits.
        if self.world.gangs().of_group(group).all(|gang| gang.counts().pending == 0) {
            return Vec::new();
        }
        let Some(commit) = self.broken_commit(group) else { return Vec::new() };
        let gangs = self.world.gangs().of_group(group).filter(|gang| gang.group() == group);
        let pending = gangs.flat_map(Gang::members).filter(|member| member.state == MemberState::Pending);
        let pods = pending.filter_map(|member| self.world.pod(member.pod));
        pods.filter(|pod| pod.facts.handoff.created < commit.attempt).map(|pod| pod.id).collect()
    }

    /// Every gang of the group was satisfied at once, now or before.
    pub(in crate::decide) fn satisfied_once(&self, group: &GroupId) -> bool {
        self.groups.get(group).is_some_and(|record| record.progress.satisfied_once)
    }

    /// Looks at every gang that changed.
    pub(in crate::decide) fn gangs_changed(&mut self, now: Moment, effects: &mut Effects) {
        let changed = self.world.take_changed_gangs();
        if changed.is_empty() {
            return;
        }
        let mut groups: BTreeMap<GroupId, Change> = BTreeMap::new();
        for (id, change) in changed {
            let group = self.world.gangs().gang(&id).map(|gang| gang.group().clone());
            let before = match &group {
                Some(group) if self.group_of.get(&id) == Some(group) => None,
                Some(group) => self.group_of.insert(id.clone(), group.clone()),
                None => self.group_of.remove(&id),
            };
            if let (Some(former), Some(group)) = (&before, &group)
                && self.satisfied_once(former)
                && group.gangs().iter().all(|gang| former.contains(gang))
            {
                // Who was satisfied together with others was satisfied.
                self.groups.entry(group.clone()).or_default().progress.satisfied_once = true;
            }
            if let Some(former) = before.as_ref().filter(|_| group.is_some()) {
                let why = format!("gang {id} belongs to another group now");
                self.call_off_unlocked(former, &why, now, effects);
            }
            for group in before.into_iter().chain(group) {
                let known = groups.entry(group).or_insert(change);
                *known = change.max(*known);
            }
        }
        for (group, change) in groups {
            if change == Change::Moved && self.is_at_rest(&group) {
                self.note_whole(&group);
                self.tell_pod_groups(&group, now, effects);
            } else {
                self.review(&group, now, effects);
            }
        }
    }

    /// Nobody of a satisfied group waits or is held: members that only move on, as they do when their Bindings are seen, leave
    /// every verdict as it is.
    fn is_at_rest(&self, group: &GroupId) -> bool {
        let Some(record) = self.groups.get(group) else { return false };
        if !record.progress.satisfied_once
            || record.holding.is_some()
            || record.clock.is_some()
            || record.held.is_some()
            || record.told.is_some()
            || !record.marking.is_empty()
            || self.queue.state(Item::Group(group.clone())).is_some()
        {
            return false;
        }
        let book = self.world.gangs();
        let at_rest = |id: &GangId| {
            let gang = book.gang(id).filter(|gang| gang.group() == group);
            gang.is_some_and(|gang| gang.counts().unplaced() == 0 && gang.counts().children() > 0)
        };
        group.gangs().iter().all(at_rest)
    }

    /// Remembers the latest commit when it is seen whole.
    fn note_whole(&mut self, group: &GroupId) {
        if let Some((commit, bound)) = self.latest_commit(group)
            && bound >= commit.members
            && let Some(record) = self.groups.get_mut(group)
        {
            record.whole = record.whole.max(Some(commit));
        }
    }

    /// Judges a group as its gangs stand: queued, held, or forgotten.
    pub(in crate::decide) fn review(&mut self, group: &GroupId, now: Moment, effects: &mut Effects) {
        self.stats.group_reviews += 1;
        if self.has_left(group) {
            self.release_group(group, "one of its gangs belongs to another group now", effects);
        }
        let book = self.world.gangs();
        let gangs: Vec<&Gang> = book.of_group(group).filter(|gang| gang.group() == group).collect();
        if gangs.is_empty() {
            self.release_group(group, "the group does not exist any more", effects);
            self.queue.remove(Item::Group(group.clone()));
            self.groups.remove(group);
            return;
        }
        let live = gangs.iter().any(|gang| gang.counts().children() > 0);
        let said = self.groups.get(group).is_none_or(|record| !record.outlived);
        let before = was_satisfied_before(group, &gangs, said);
        let waits = gangs.iter().any(|gang| gang.counts().unplaced() > 0);
        let waits = waits || self.groups.get(group).is_some_and(|record| record.holding.is_some());
        let strict = gangs.iter().any(|gang| gang.config().mode == Mode::Strict);
        let looks: Vec<Look> = gangs.iter().map(|gang| Look::of(gang)).collect();
        let record = self.groups.entry(group.clone()).or_default();
        let was_once = record.progress.satisfied_once;
        // Nobody lives: whoever comes under this name is a new generation.
        record.progress.satisfied_once = live && (was_once || before);
        record.outlived |= !live;
        let once = record.progress.satisfied_once;
        self.note_whole(group);
        self.set_holders_free(group, now, effects);
        let Some(record) = self.groups.get_mut(group) else { return };
        let marking: Vec<PodId> = record.marking.iter().copied().collect();
        for id in marking {
            let open = self
                .world
                .pod(id)
                .is_some_and(|pod| matches!(MemberState::of(pod), MemberState::Pending | MemberState::Gated));
            if !open && let Some(record) = self.groups.get_mut(group) {
                record.marking.remove(&id);
            }
        }
        let book = self.world.gangs();
        let gangs: Vec<&Gang> = book.of_group(group).filter(|gang| gang.group() == group).collect();
        let holds: Vec<Hold> = if waits { self.why_held(group).collect() } else { Vec::new() };
        let being_marked = self.groups.get(group).is_some_and(|record| !record.marking.is_empty());
        // Who holds may have got the rest by somebody else's hand.
        let holding = self.groups.get(group).is_some_and(|record| record.holding.is_some());
        let ruled = holding
            || gangs.iter().any(|gang| {
                let (config, counts) = (gang.config(), gang.counts());
                counts.pending > 0
                    && !rule::is_over(config.policy, once)
                    && !(config.min == Some(0) && group.is_alone())
            });
        let owed = !self.who_owes(group).is_empty();
        let set_free = once && !was_once || owed;
        if strict && self.groups.get(group).is_some_and(|record| record.holding.is_some()) {
            // It has accumulated until somebody said that it must not.
            self.release_group(group, "its mode is Strict now", effects);
        }
        match holds.len() {
            _ if owed => {
                let Some(record) = self.groups.get_mut(group) else { return };
                record.held = None;
                let changed = record.tried.as_ref() != Some(&looks);
                if changed || self.queue.state(Item::Group(group.clone())).is_none() {
                    self.queue_group(group, now);
                }
            }
            0 if being_marked => {}
            0 => {
                let Some(record) = self.groups.get_mut(group) else { return };
                let was_held = record.held.take().is_some();
                let changed = record.tried.as_ref() != Some(&looks);
                if was_held && ruled {
                    // They were parked by themselves while nobody could try them together.
                    self.waiting_members(group).into_iter().for_each(|id| self.queue.remove(id));
                }
                if !ruled {
                    self.queue.remove(Item::Group(group.clone()));
                } else if self.queue.state(Item::Group(group.clone())).is_none() || was_held || changed {
                    self.queue_group(group, now);
                } else {
                    let queued = self.queued(group, now);
                    self.queue.restate(Item::Group(group.clone()), queued, self.plugins.queue_sort());
                }
            }
            _ => self.hold_group(group, holds, now, effects),
        }
        if set_free {
            self.enqueue_members(group, now, effects);
        } else {
            self.enqueue_free(group, now, effects);
        }
        if !waits && let Some(record) = self.groups.get_mut(group) {
            (record.held, record.told) = (None, None);
        }
        self.arm(group, now);
        self.warn(group, effects);
        self.tell_pod_groups(group, now, effects);
    }

    /// Room is held under this group for members of a gang that lists another one now.
    fn has_left(&self, group: &GroupId) -> bool {
        let others = self.world.gangs().of_group(group).filter(|gang| gang.group() != group);
        let reserved = others.filter(|gang| gang.counts().reserved > 0).flat_map(Gang::members);
        let mut held = reserved.filter_map(|member| self.holds.get(&member.pod));
        held.any(|hold| hold.group.as_ref() == Some(group))
    }

    /// Why the group is not tried, as each of its gangs has it. Where nobody waits there is nobody to hold.
    pub(in crate::decide) fn why_held<'a>(&'a self, group: &'a GroupId) -> impl Iterator<Item = Hold> {
        let (book, once) = (self.world.gangs(), self.satisfied_once(group));
        let asks = |gang: &&Gang| gang.counts().unplaced() + gang.counts().reserved > 0;
        let gangs = book.of_group(group).filter(move |gang| gang.group() == group);
        gangs.filter(asks).filter_map(move |gang| book.holds(gang, once))
    }

    /// Somebody else's hand has satisfied the group, and no rule binds its members any more: whoever holds room goes on its way.
    fn set_holders_free(&mut self, group: &GroupId, now: Moment, effects: &mut Effects) {
        let once = self.satisfied_once(group);
        let ruled = |gang: &Gang| gang.group() == group && !rule::is_over(gang.config().policy, once);
        if self.groups.get(group).is_none_or(|record| record.holding.is_none())
            || self.world.gangs().of_group(group).any(ruled)
        {
            return;
        }
        let before = self.held_members(group);
        self.drop_outdated(group, now);
        let held = self.held_members(group);
        if held.is_empty() {
            self.queue.remove(Item::Group(group.clone()));
            if let Some(record) = self.groups.get_mut(group) {
                (record.holding, record.clock) = (None, None);
                record.progress.holding_since = None;
            }
        } else {
            self.commit_group(group, held, None, now, effects);
        }
        for id in before {
            // Its room was not what it had been.
            if self.world.pod(id).is_some_and(|pod| pod.place == Place::Waiting) {
                self.enqueue(id, now, effects);
            }
        }
    }

    /// Keeps a group from being tried and says why, to everybody when the reason of one of its gangs is new.
    fn hold_group(&mut self, group: &GroupId, holds: Vec<Hold>, now: Moment, effects: &mut Effects) {
        let Some((reason, message)) = holds.first().map(|hold| (hold.reason(), hold.to_string())) else { return };
        self.release_group(group, &message, effects);
        self.queue.remove(Item::Group(group.clone()));
        let Some(record) = self.groups.get_mut(group) else { return };
        let news = record.held.is_none() || !record.holds.iter().map(Hold::reason).eq(holds.iter().map(Hold::reason));
        let changed = record.holds != holds;
        record.progress.last_failure = Some(message.clone());
        (record.held, record.holds) = (Some((reason, message)), holds);
        if news {
            self.notice_hold(group, effects);
            self.tell_held(group, now, effects);
        } else if changed {
            self.timers.insert((now.mono + self.config.gangs.condition_pause, Timer::TellGroup(group.clone())));
        }
    }

    /// Tells every waiting member why its group is held.
    pub(in crate::decide) fn tell_held(&mut self, group: &GroupId, now: Moment, effects: &mut Effects) {
        if self.groups.get(group).is_none_or(|record| record.held.is_none()) {
            return;
        }
        for id in self.waiting_members(group) {
            // Each gang of a group may be held for a reason of its own.
            let hold = self.world.pod(id).map(|pod| self.route(pod));
            if let Some(Route::Held(hold)) = hold {
                self.tell(id, hold.reason(), hold.to_string(), now, effects);
            }
        }
    }

    /// Members without a node that are ours to place, the oldest first.
    pub(in crate::decide) fn waiting<'a>(&'a self, group: &'a GroupId) -> impl Iterator<Item = &'a Member> {
        let gangs = self.world.gangs().of_group(group);
        let gangs = gangs.filter(move |gang| gang.group() == group && gang.counts().unplaced() > 0);
        gangs.flat_map(Gang::members).filter(|member| {
            matches!(member.state, MemberState::Pending | MemberState::Gated | MemberState::TimedOut)
                && self.config.scheduler_names.contains(&member.scheduler)
        })
    }

    /// Ids of [`Engine::waiting`].
    pub(in crate::decide) fn waiting_members(&self, group: &GroupId) -> Vec<PodId> {
        self.waiting(group).map(|member| member.pod).collect()
    }

    /// Of these, the ones that nothing but room keeps waiting: a gated pod says so by itself, and nobody is to make room for it.
    pub(in crate::decide) fn pending_members(&self, group: &GroupId) -> Vec<PodId> {
        let gated = |member: &Member| match member.state {
            MemberState::Pending => false,
            _ => self.world.pod(member.pod).is_none_or(|pod| !pod.facts.spec.gates.is_empty()),
        };
        self.waiting(group).filter(|member| !gated(member)).map(|member| member.pod).collect()
    }

    /// Routes every waiting member anew.
    pub(in crate::decide) fn enqueue_members(&mut self, group: &GroupId, now: Moment, effects: &mut Effects) {
        for id in self.waiting_members(group) {
            self.enqueue(id, now, effects);
        }
    }

    /// Queues members that no rule binds any more, or never did, and that are not queued by themselves yet.
    pub(in crate::decide) fn enqueue_free(&mut self, group: &GroupId, now: Moment, effects: &mut Effects) {
        let once = self.satisfied_once(group);
        let book = self.world.gangs();
        let free = |gang: &&Gang| {
            let none = gang.config().min == Some(0) && group.is_alone();
            gang.group() == group
                && gang.counts().pending > 0
                && (none || rule::is_over(gang.config().policy, once))
                && book.holds(gang, once).is_none()
        };
        let pending = book.of_group(group).filter(free).flat_map(Gang::members);
        let pending = pending.filter(|member| member.state == MemberState::Pending).map(|member| member.pod);
        let lost = |id: &PodId| match self.queue.state(*id) {
            None => true,
            Some(QueueState::Parked(wake, _)) => wake.is_none(),
            Some(_) => false,
        };
        let lost: Vec<PodId> = pending.filter(lost).collect();
        for id in lost {
            self.enqueue(id, now, effects);
        }
    }

    /// A waiting member asks for something else now, or tolerates more: its group is worth another try, as a pod by itself is.
    pub(in crate::decide) fn member_changed(&mut self, id: PodId, now: Moment) {
        let Some(Route::Group(group) | Route::Owed(group)) = self.world.pod(id).map(|pod| self.route(pod)) else {
            return;
        };
        if self.queue.state(Item::Group(group.clone())).is_some() {
            self.queue_group(&group, now);
        }
    }

    /// A held pod that has moved to another group takes nothing along.
    pub(in crate::decide) fn member_moved(&mut self, id: PodId, now: Moment, effects: &mut Effects) {
        let group = self.world.gangs().gang_of(id).map(Gang::group);
        let commit = self.flights.get(&id).and_then(|flight| self.commits.get(&flight.commit?));
        if let Some(former) = commit.map(|commit| commit.group.clone()).filter(|former| Some(former) != group) {
            let why = format!("a member of group {former} belongs to another gang now");
            self.call_off_unlocked(&former, &why, now, effects);
        } else if self.holds.get(&id).is_some_and(|hold| hold.group.as_ref() != group) {
            self.let_go(id);
            self.enqueue(id, now, effects);
        }
    }

    /// Where the group stands in the queue.
    fn queued(&self, group: &GroupId, now: Moment) -> Queued {
        let gangs: Vec<&Gang> = self.world.gangs().of_group(group).filter(|gang| gang.group() == group).collect();
        let oldest = gangs.iter().min_by_key(|gang| (gang.created(), gang.id()));
        let owed = self.broken_commit(group).filter(|_| !self.who_owes(group).is_empty());
        Queued {
            priority: gangs.iter().flat_map(|gang| gang.priorities()).max().unwrap_or(0),
            // Whoever completes a commit goes before others of its priority, and of several the latest: its room was kept when
            // the scheduler died.
            sub_priority: owed.map_or_else(
                || oldest.map_or(0, |gang| gang.sub_priority()),
                |commit| i64::MAX / 2 + commit.attempt.as_second(),
            ),
            created: oldest.and_then(|gang| gang.created()).unwrap_or(now.wall),
            failed: None,
            class: gangs.iter().filter_map(|gang| gang.class()).max().unwrap_or(0),
            id: group.gangs().iter().map(GangId::to_string).collect::<Vec<_>>().join(",").into(),
        }
    }

    /// Puts a group into the queue, or makes it active when it may be tried again.
    pub(in crate::decide) fn queue_group(&mut self, group: &GroupId, now: Moment) {
        let mut gangs = self.world.gangs().of_group(group);
        if !self.leading || !gangs.any(|gang| self.gang_is_ours(gang)) {
            return;
        }
        let queued = self.queued(group, now);
        let item = Item::Group(group.clone());
        match self.queue.state(item.clone()) {
            None => self.queue.add(item.clone(), queued, self.plugins.queue_sort(), now.mono),
            Some(QueueState::Taken) => return,
            Some(_) => self.queue.offer(item.clone(), queued, self.plugins.queue_sort(), now.mono),
        }
        let rests = self.groups.get(group).and_then(|record| record.rest_until).filter(|until| now.mono < *until);
        if let Some(until) = rests {
            self.queue.wait_until(item, until, now.wall);
        }
    }
}

impl Engine {
    /// `true` when a pod that waits is in the queue, by itself or with its group, or is held for a reason that was told.
    pub fn is_queued(&self, pod: &Pod) -> bool {
        match self.route(pod) {
            Route::Group(group) | Route::Owed(group) => {
                self.queue.state(Item::Group(group.clone())).is_some()
                    || self.groups.get(&group).is_some_and(|record| record.held.is_some() || !record.marking.is_empty())
            }
            Route::Held(_) => true,
            Route::Alone => self.queue.state(pod.id).is_some(),
        }
    }
}

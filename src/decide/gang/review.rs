//! After every change of a gang: may its group be tried, and which item is a pod queued under?

use std::collections::{BTreeMap, BTreeSet};

use crate::contract::gang::{Committed, GangId, Mode};
use crate::decide::scheduler::context::{Context, Step};
use crate::decide::scheduler::queue::{Item, QueueState};
use crate::decide::scheduler::reporter::Reporter;
use crate::decide::scheduler::reservations::Reservations;
use crate::decide::scheduler::rules::Queued;
use crate::decide::scheduler::timers::Timer;
use crate::decide::world::gangs::{Gang, GangChange, GroupId, MemberState, NotReady, rule};
use crate::decide::world::{Place, Pod, PodId, World};

use super::members::{held_members, is_ours, latest_commit, waiting_members, was_satisfied_before};
use super::{Gangs, Look, Route};

impl Gangs {
    /// Under what a pod that waits is queued.
    pub fn route(&self, world: &World, reservations: &Reservations, pod: &Pod) -> Route {
        let Some(declared) = &pod.facts.spec.gang else { return Route::Alone };
        let book = world.gangs();
        match book.named(declared) {
            None => return Route::Alone,
            Some(Err(bad)) => return Route::NotReady(NotReady::BadName(bad.clone())),
            Some(Ok(_)) => {}
        }
        let Some(gang) = book.gang_of(pod.id) else { return Route::Alone };
        let group = gang.group();
        if !declared.timed_out && self.completes(world, reservations, gang, pod) {
            return Route::Completes(group.clone());
        }
        let once = self.satisfied_once(group);
        if let Some(hold) = book.holds_pod(pod, once) {
            return Route::NotReady(hold);
        }
        let config = gang.config();
        let free = config.min == Some(0) && group.is_alone();
        if free || rule::is_over(config.policy, once) { Route::Alone } else { Route::Group(group.clone()) }
    }

    /// A commit of its group broke off, and this pod was there when that was decided.
    fn completes(&self, world: &World, reservations: &Reservations, gang: &Gang, pod: &Pod) -> bool {
        self.broken_commit(world, reservations, gang.group())
            .is_some_and(|commit| pod.facts.handoff.created < commit.attempt)
    }

    /// The latest commit of a group, when it was never seen whole and none of its members is on its way.
    pub(super) fn broken_commit(
        &self,
        world: &World,
        reservations: &Reservations,
        group: &GroupId,
    ) -> Option<Committed> {
        let (commit, bound) = latest_commit(world, group)?;
        let whole = self.groups.get(group).is_some_and(|record| record.whole.is_some_and(|whole| whole >= commit));
        if whole || bound >= commit.members || self.commits.values().any(|under_way| under_way.group == *group) {
            return None;
        }
        // A member that we have bound counts as reserved until the watch shows it.
        let gangs = world.gangs().of_group(group).filter(|gang| gang.group() == group);
        let reserved: u32 = gangs.map(|gang| gang.counts().reserved).sum();
        let held = reservations.of_group(group).count();
        (reserved as usize <= held).then_some(commit)
    }

    /// Members that complete a commit that broke off, before anything else of the group is tried.
    pub(super) fn completing_members(&self, cx: &Context<'_>, group: &GroupId) -> Vec<PodId> {
        // Asked after every change of every gang: most often, above all while a commit is under way, nobody waits.
        if cx.world.gangs().of_group(group).all(|gang| gang.counts().pending == 0) {
            return Vec::new();
        }
        let Some(commit) = self.broken_commit(cx.world, cx.reservations, group) else { return Vec::new() };
        let gangs = cx.world.gangs().of_group(group).filter(|gang| gang.group() == group);
        let pending = gangs.flat_map(Gang::members).filter(|member| member.state == MemberState::Pending);
        let pods = pending.filter_map(|member| cx.world.pod(member.pod));
        pods.filter(|pod| pod.facts.handoff.created < commit.attempt).map(|pod| pod.id).collect()
    }

    /// `true` when no gang reports for the pod.
    pub fn is_alone(&self, cx: &Context<'_>, id: PodId) -> bool {
        cx.world.pod(id).is_some_and(|pod| self.route(cx.world, cx.reservations, pod) == Route::Alone)
    }

    /// Starts with the gangs of the world: this process leads now.
    pub fn lead(&mut self, cx: &mut Context<'_>) {
        let gangs = || cx.world.gangs().gangs();
        let groups: BTreeSet<GroupId> = gangs().map(|gang| gang.group().clone()).collect();
        self.group_of.extend(gangs().map(|gang| (gang.id().clone(), gang.group().clone())));
        cx.world.take_changed_gangs();
        for group in groups {
            self.review(cx, &group);
        }
    }

    /// Looks at every gang that changed.
    pub fn reconcile(&mut self, cx: &mut Context<'_>) {
        let changed = cx.world.take_changed_gangs();
        if changed.is_empty() || !cx.leading {
            return;
        }
        let mut groups: BTreeMap<GroupId, GangChange> = BTreeMap::new();
        for (id, change) in changed {
            let group = cx.world.gangs().gang(&id).map(|gang| gang.group().clone());
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
                self.call_off_unlocked(cx, former, &why);
            }
            for group in before.into_iter().chain(group) {
                let known = groups.entry(group).or_insert(change);
                *known = change.max(*known);
            }
        }
        for (group, change) in groups {
            if change == GangChange::Moved && self.is_at_rest(cx, &group) {
                self.note_whole(cx, &group);
                self.report_pod_groups(cx, &group);
            } else {
                self.review(cx, &group);
            }
        }
    }

    /// Nobody of a satisfied group waits or is held: members that only move on, as they do when their Bindings are seen, leave
    /// every verdict as it is.
    fn is_at_rest(&self, cx: &Context<'_>, group: &GroupId) -> bool {
        let Some(record) = self.groups.get(group) else { return false };
        if !record.progress.satisfied_once
            || record.holding.is_some()
            || record.clock.is_some()
            || record.not_ready.is_some()
            || record.reported.is_some()
            || !record.marking.is_empty()
            || cx.queue.state(Item::Group(group.clone())).is_some()
        {
            return false;
        }
        let book = cx.world.gangs();
        let at_rest = |id: &GangId| {
            let gang = book.gang(id).filter(|gang| gang.group() == group);
            gang.is_some_and(|gang| gang.counts().unplaced() == 0 && gang.counts().children() > 0)
        };
        group.gangs().iter().all(at_rest)
    }

    /// Remembers the latest commit when it is seen whole.
    fn note_whole(&mut self, cx: &mut Context<'_>, group: &GroupId) {
        if let Some((commit, bound)) = latest_commit(cx.world, group)
            && bound >= commit.members
            && let Some(record) = self.groups.get_mut(group)
        {
            record.whole = record.whole.max(Some(commit));
        }
    }

    /// Judges a group as its gangs stand: queued, held, or forgotten.
    pub fn review(&mut self, cx: &mut Context<'_>, group: &GroupId) {
        cx.stats.group_reviews += 1;
        if Self::has_left(cx, group) {
            self.release_group(cx, group, "one of its gangs belongs to another group now");
        }
        let book = cx.world.gangs();
        let gangs: Vec<&Gang> = book.of_group(group).filter(|gang| gang.group() == group).collect();
        if gangs.is_empty() {
            self.release_group(cx, group, "the group does not exist any more");
            cx.queue.remove(Item::Group(group.clone()));
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
        self.note_whole(cx, group);
        if self.set_holders_free(cx, group) {
            // Reviewed when they are being bound.
            return cx.steps.push(Step::AfterAttempt(group.clone()));
        }
        let Some(record) = self.groups.get_mut(group) else { return };
        let marking: Vec<PodId> = record.marking.iter().copied().collect();
        for id in marking {
            let open = cx
                .world
                .pod(id)
                .is_some_and(|pod| matches!(MemberState::of(pod), MemberState::Pending | MemberState::Gated));
            if !open && let Some(record) = self.groups.get_mut(group) {
                record.marking.remove(&id);
            }
        }
        let book = cx.world.gangs();
        let gangs: Vec<&Gang> = book.of_group(group).filter(|gang| gang.group() == group).collect();
        let holds: Vec<NotReady> = if waits { self.not_ready(cx, group).collect() } else { Vec::new() };
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
        let owed = !self.completing_members(cx, group).is_empty();
        let set_free = once && !was_once || owed;
        if strict && self.groups.get(group).is_some_and(|record| record.holding.is_some()) {
            // It has accumulated until somebody said that it must not.
            self.release_group(cx, group, "its mode is Strict now");
        }
        match holds.len() {
            _ if owed => {
                let Some(record) = self.groups.get_mut(group) else { return };
                record.not_ready = None;
                let changed = record.tried.as_ref() != Some(&looks);
                if changed || cx.queue.state(Item::Group(group.clone())).is_none() {
                    self.queue_group(cx, group);
                }
            }
            0 if being_marked => {}
            0 => {
                let Some(record) = self.groups.get_mut(group) else { return };
                let was_held = record.not_ready.take().is_some();
                let changed = record.tried.as_ref() != Some(&looks);
                if was_held && ruled {
                    // They were parked by themselves while nobody could try them together.
                    waiting_members(cx, group).into_iter().for_each(|id| cx.queue.remove(id));
                }
                if !ruled {
                    cx.queue.remove(Item::Group(group.clone()));
                } else if cx.queue.state(Item::Group(group.clone())).is_none() || was_held || changed {
                    self.queue_group(cx, group);
                } else {
                    let queued = self.queued(cx, group);
                    cx.queue.restate(Item::Group(group.clone()), queued, cx.rules.queue_sort());
                }
            }
            _ => self.hold_group(cx, group, holds),
        }
        if set_free {
            self.enqueue_members(cx, group);
        } else {
            self.enqueue_free(cx, group);
        }
        if !waits && let Some(record) = self.groups.get_mut(group) {
            (record.not_ready, record.reported) = (None, None);
        }
        self.arm(cx, group);
        self.warn(cx, group);
        self.report_pod_groups(cx, group);
    }

    /// Room is held under this group for members of a gang that lists another one now.
    fn has_left(cx: &Context<'_>, group: &GroupId) -> bool {
        let others = cx.world.gangs().of_group(group).filter(|gang| gang.group() != group);
        let reserved = others.filter(|gang| gang.counts().reserved > 0).flat_map(Gang::members);
        let mut held = reserved.filter_map(|member| cx.reservations.get(member.pod));
        held.any(|hold| hold.group.as_ref() == Some(group))
    }

    /// Why the group is not tried, as each of its gangs has it. Where nobody waits there is nobody to hold.
    pub fn not_ready<'a>(&self, cx: &'a Context<'_>, group: &'a GroupId) -> impl Iterator<Item = NotReady> + use<'a> {
        let (book, once) = (cx.world.gangs(), self.satisfied_once(group));
        let asks = |gang: &&Gang| gang.counts().unplaced() + gang.counts().reserved > 0;
        let gangs = book.of_group(group).filter(move |gang| gang.group() == group);
        gangs.filter(asks).filter_map(move |gang| book.holds(gang, once))
    }

    /// Somebody else's hand has satisfied the group, and no rule binds its members any more: members that hold room are
    /// bound. `true` when there are any.
    fn set_holders_free(&mut self, cx: &mut Context<'_>, group: &GroupId) -> bool {
        let once = self.satisfied_once(group);
        let ruled = |gang: &Gang| gang.group() == group && !rule::is_over(gang.config().policy, once);
        if self.groups.get(group).is_none_or(|record| record.holding.is_none())
            || cx.world.gangs().of_group(group).any(ruled)
        {
            return false;
        }
        let before = held_members(cx, group);
        self.drop_outdated(cx, group);
        let held = held_members(cx, group);
        let free = !held.is_empty();
        if held.is_empty() {
            cx.queue.remove(Item::Group(group.clone()));
            if let Some(record) = self.groups.get_mut(group) {
                (record.holding, record.clock) = (None, None);
                record.progress.holding_since = None;
            }
        } else {
            self.commit_group(cx, group, held, None);
        }
        for id in before {
            // Its room was not what it had been.
            if cx.world.pod(id).is_some_and(|pod| pod.place == Place::Waiting) {
                cx.enqueue(id);
            }
        }
        free
    }

    /// Keeps a group from being tried and says why, to everybody when the reason of one of its gangs is new.
    fn hold_group(&mut self, cx: &mut Context<'_>, group: &GroupId, holds: Vec<NotReady>) {
        let Some((reason, message)) = holds.first().map(|hold| (hold.reason(), hold.to_string())) else { return };
        self.release_group(cx, group, &message);
        cx.queue.remove(Item::Group(group.clone()));
        let Some(record) = self.groups.get_mut(group) else { return };
        let news = record.not_ready.is_none()
            || !record.reasons.iter().map(NotReady::reason).eq(holds.iter().map(NotReady::reason));
        let changed = record.reasons != holds;
        record.progress.last_failure = Some(message.clone());
        (record.not_ready, record.reasons) = (Some((reason, message)), holds);
        if news {
            self.notice_hold(cx, group);
            self.report_not_ready(cx, group);
        } else if changed {
            cx.timers.set(cx.now.mono + cx.config.gangs.condition_pause, Timer::ReportGroup(group.clone()));
        }
    }

    /// Tells every waiting member why its group is held.
    pub fn report_not_ready(&mut self, cx: &mut Context<'_>, group: &GroupId) {
        if self.groups.get(group).is_none_or(|record| record.not_ready.is_none()) {
            return;
        }
        for id in waiting_members(cx, group) {
            // Each gang of a group may be held for a reason of its own.
            let hold = cx.world.pod(id).map(|pod| self.route(cx.world, cx.reservations, pod));
            if let Some(Route::NotReady(hold)) = hold {
                Reporter::report(cx, id, hold.reason(), &hold.to_string().into(), false);
            }
        }
    }

    /// Routes every waiting member anew.
    pub fn enqueue_members(&mut self, cx: &mut Context<'_>, group: &GroupId) {
        for id in waiting_members(cx, group) {
            cx.enqueue(id);
        }
    }

    /// Queues members that no rule binds any more, or never did, and that are not queued by themselves yet.
    pub fn enqueue_free(&mut self, cx: &mut Context<'_>, group: &GroupId) {
        let once = self.satisfied_once(group);
        let book = cx.world.gangs();
        let free = |gang: &&Gang| {
            let none = gang.config().min == Some(0) && group.is_alone();
            gang.group() == group
                && gang.counts().pending > 0
                && (none || rule::is_over(gang.config().policy, once))
                && book.holds(gang, once).is_none()
        };
        let pending = book.of_group(group).filter(free).flat_map(Gang::members);
        let pending = pending.filter(|member| member.state == MemberState::Pending).map(|member| member.pod);
        let lost = |id: &PodId| match cx.queue.state(*id) {
            None => true,
            Some(QueueState::Parked(wake, _)) => wake.is_none(),
            Some(_) => false,
        };
        let lost: Vec<PodId> = pending.filter(lost).collect();
        for id in lost {
            cx.enqueue(id);
        }
    }

    /// A waiting member asks for something else now, or tolerates more: its group is worth another try, as a pod by itself is.
    pub fn member_changed(&mut self, cx: &mut Context<'_>, id: PodId) {
        let Some(Route::Group(group) | Route::Completes(group)) =
            cx.world.pod(id).map(|pod| self.route(cx.world, cx.reservations, pod))
        else {
            return;
        };
        if cx.queue.state(Item::Group(group.clone())).is_some() {
            self.queue_group(cx, &group);
        }
    }

    /// A held pod that has moved to another group takes nothing along.
    pub fn member_moved(&mut self, cx: &mut Context<'_>, id: PodId) {
        let group = cx.world.gangs().gang_of(id).map(Gang::group);
        let commit = self.commits.values().find(|commit| commit.members.contains(&id));
        if let Some(former) = commit.map(|commit| commit.group.clone()).filter(|former| Some(former) != group) {
            let why = format!("a member of group {former} belongs to another gang now");
            self.call_off_unlocked(cx, &former, &why);
        } else if cx.reservations.get(id).is_some_and(|held| held.group.as_ref() != group) {
            Reservations::release(cx, id);
            cx.enqueue(id);
        }
    }

    /// Where the group stands in the queue.
    fn queued(&self, cx: &Context<'_>, group: &GroupId) -> Queued {
        let gangs: Vec<&Gang> = cx.world.gangs().of_group(group).filter(|gang| gang.group() == group).collect();
        let oldest = gangs.iter().min_by_key(|gang| (gang.created(), gang.id()));
        let owed = self
            .broken_commit(cx.world, cx.reservations, group)
            .filter(|_| !self.completing_members(cx, group).is_empty());
        Queued {
            priority: gangs.iter().flat_map(|gang| gang.priorities()).max().unwrap_or(0),
            // Whoever completes a commit goes before others of its priority, and of several the latest: its room was kept when
            // the scheduler died.
            sub_priority: owed.map_or_else(
                || oldest.map_or(0, |gang| gang.sub_priority()),
                |commit| i64::MAX / 2 + commit.attempt.as_second(),
            ),
            created: oldest.and_then(|gang| gang.created()).unwrap_or(cx.now.wall),
            failed: None,
            class: gangs.iter().filter_map(|gang| gang.class()).max().unwrap_or(0),
            id: group.gangs().iter().map(GangId::to_string).collect::<Vec<_>>().join(",").into(),
        }
    }

    /// Puts a group into the queue, or makes it active when it may be tried again.
    pub fn queue_group(&mut self, cx: &mut Context<'_>, group: &GroupId) {
        let mut gangs = cx.world.gangs().of_group(group);
        if !cx.leading || !gangs.any(|gang| is_ours(&cx.config.scheduler_names, gang)) {
            return;
        }
        let queued = self.queued(cx, group);
        let item = Item::Group(group.clone());
        match cx.queue.state(item.clone()) {
            None => cx.queue.add(item.clone(), queued, cx.rules.queue_sort(), cx.now.mono),
            Some(QueueState::Taken) => return,
            Some(_) => cx.queue.offer(item.clone(), queued, cx.rules.queue_sort(), cx.now.mono),
        }
        let rests = self.groups.get(group).and_then(|record| record.rest_until).filter(|until| cx.now.mono < *until);
        if let Some(until) = rests {
            cx.queue.wait_until(item, until, cx.now.wall);
        }
    }
}

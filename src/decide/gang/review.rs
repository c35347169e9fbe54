//! The review after every change of a gang: may its group be tried, and how is each of its pods queued?

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::core::agenda::{Agenda, Scene, Step};
use crate::core::context::Context;
use crate::core::placing::Rooms;
use crate::core::queue::{Item, Queue, QueueState};
use crate::core::reporter::{Reporter, WaitsFor};
use crate::core::reservations::Reservations;
use crate::core::rules::Queued;
use crate::core::timers::Timer;
use crate::world::gangs::{Gang, GangChange, Generation, GroupId, MemberState, NotReady, rule};
use crate::world::{Place, Pod, PodId, World};
use baton_contract::gang::{Committed, GangId, Mode};

use super::members::{is_ours, latest_commit, reserved_members, waiting_members, was_satisfied_before};
use super::{CommitKind, GangState, Gangs, Route};

/// Changes of a number that come within this time are reported together.
const TOGETHER: Duration = Duration::from_secs(1);

impl Gangs {
    /// How a waiting pod is queued.
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
        if self.is_rest(world, reservations, pod) {
            return Route::Group(group.clone());
        }
        let once = self.satisfied_once(group);
        if let Some(why) = book.pod_not_ready(pod, once) {
            return Route::NotReady(self.with_marks(world, why));
        }
        if !is_free(gang, group, once) {
            Route::Group(group.clone())
        } else if !is_free(gang, group, false) && self.may_be_void(group) {
            Route::NotReady(NotReady::NotSure(group.clone()))
        } else {
            Route::Alone
        }
    }

    /// What satisfies the group for the first time may still be cancelled: no member is bound before that is sure.
    fn may_be_void(&self, group: &GroupId) -> bool {
        self.open_commits(group).any(|(_, commit)| commit.kind == CommitKind::First)
    }

    /// Counts the members that are being marked as timed out with those that the watch shows with their mark.
    fn with_marks(&self, world: &World, why: NotReady) -> NotReady {
        match why {
            NotReady::TimedOut { group, marked } => {
                let marking = self.groups.get(&group).into_iter().flat_map(|record| &record.marking);
                let more = marking.filter(|id| world.pod(**id).is_some_and(is_unmarked)).count();
                NotReady::TimedOut { group, marked: marked + more as u32 }
            }
            why => why,
        }
    }

    /// [`Gangs::route`] of a pod by its id.
    pub(super) fn route_of(&self, world: &World, reservations: &Reservations, id: PodId) -> Option<Route> {
        world.pod(id).map(|pod| self.route(world, reservations, pod))
    }

    /// A commit of its group broke off, and this pod is older than the commit: it is of the rest.
    pub fn is_rest(&self, world: &World, reservations: &Reservations, pod: &Pod) -> bool {
        let timed_out = pod.facts.spec.gang.as_ref().is_none_or(|declared| declared.timed_out);
        let gang = world.gangs().gang_of(pod.id).filter(|_| !timed_out);
        let commit = gang.and_then(|gang| self.broken_commit(world, reservations, gang.group()));
        commit.is_some_and(|commit| pod.facts.handoff.created < commit.attempt)
    }

    /// The latest commit of a group, when its members were never all seen bound and none of them is being bound.
    pub(super) fn broken_commit(
        &self,
        world: &World,
        reservations: &Reservations,
        group: &GroupId,
    ) -> Option<Committed> {
        if self.commits.values().any(|under_way| under_way.group == *group) {
            return None;
        }
        let (commit, bound) = latest_commit(world, group)?;
        let whole =
            self.groups.get(group).is_some_and(|record| record.commits.whole.is_some_and(|whole| whole >= commit));
        if whole || bound >= commit.members {
            return None;
        }
        // A member that this process has bound counts as reserved until the watch shows its node.
        let reserved: u32 = world.gangs().listing(group).map(|gang| gang.counts().reserved).sum();
        let held = reservations.of_group(group).count();
        (reserved as usize <= held).then_some(commit)
    }

    /// The rest of a commit that broke off. They are tried before all other members of the group. Some may have a
    /// reservation already, which an attempt made while others of them were being bound.
    pub(super) fn rest_members(&self, world: &World, reservations: &Reservations, group: &GroupId) -> Vec<PodId> {
        // This runs after every change of every gang; most often no member waits.
        if world.gangs().of_group(group).all(|gang| gang.counts().pending + gang.counts().reserved == 0) {
            return Vec::new();
        }
        let Some(commit) = self.broken_commit(world, reservations, group) else { return Vec::new() };
        let members = world.gangs().listing(group).flat_map(Gang::members);
        let open = members.filter(|member| matches!(member.state, MemberState::Pending | MemberState::Reserved));
        let pods = open.filter_map(|member| world.pod(member.pod));
        pods.filter(|pod| pod.facts.handoff.created < commit.attempt).map(|pod| pod.id).collect()
    }

    /// Whether the pod is queued as a single pod, or with its gang.
    pub fn waits_for(&self, world: &World, reservations: &Reservations, id: PodId) -> WaitsFor {
        match self.route_of(world, reservations, id) {
            Some(Route::Alone) => WaitsFor::Itself,
            _ => WaitsFor::Gang,
        }
    }

    /// Starts with the gangs of the world when this process begins to lead.
    pub fn lead(&mut self, cx: &mut Context<'_>) {
        let gangs = || cx.world.gangs().gangs();
        let groups: BTreeSet<GroupId> = gangs().map(|gang| gang.group().clone()).collect();
        self.group_of.extend(gangs().map(|gang| (gang.id().clone(), gang.group().clone())));
        cx.world.take_changed_gangs();
        for group in groups {
            self.review(cx, &group);
        }
    }

    /// Reviews the groups of every gang that changed.
    pub fn reconcile(&mut self, cx: &mut Context<'_>) {
        let changed = cx.world.take_changed_gangs();
        if changed.is_empty() || !cx.terms.leading {
            return;
        }
        let mut groups: BTreeMap<GroupId, GangChange> = BTreeMap::new();
        let steps = cx.agenda.steps.len();
        for (id, change) in changed {
            let group = cx.world.gangs().gang(&id).map(|gang| gang.group().clone());
            let before = match &group {
                Some(group) if self.group_of.get(&id) == Some(group) => None,
                Some(group) => self.group_of.insert(id.clone(), group.clone()),
                None => self.group_of.remove(&id),
            };
            if let (Some(former), Some(group)) = (&before, &group) {
                let why = format!("gang {id} belongs to another group now");
                self.cancel_unlocked(&mut cx.rooms(), former, &why);
                if self.satisfied_once(former) && group.gangs().iter().all(|gang| former.contains(gang)) {
                    // A gang that was satisfied together with others is satisfied alone.
                    self.groups.entry(group.clone()).or_default().progress.generation = Generation::Satisfied;
                }
            }
            for group in before.into_iter().chain(group) {
                let known = groups.entry(group).or_insert(change);
                *known = change.max(*known);
            }
        }
        for group in groups.keys() {
            self.cancel_short(&mut cx.rooms(), group, None, "its gangs lack members now");
        }
        let cancelled = cx.agenda.steps.len() > steps;
        for (group, change) in groups {
            if cancelled {
                // Its members are free only when the steps before are done.
                cx.agenda.steps.push(Step::AfterAttempt(group));
            } else if change == GangChange::Moved && self.is_at_rest(cx.world, &cx.agenda.queue, &group) {
                self.note_whole(cx.world, &group);
                self.report_pod_groups(cx.terms.scene(cx.world), cx.agenda, &group);
            } else {
                self.review(cx, &group);
            }
        }
    }

    /// No member of a satisfied group waits or has a reservation: a change of a member's state, as when its Binding is seen, changes
    /// no result of a review.
    fn is_at_rest(&self, world: &World, queue: &Queue, group: &GroupId) -> bool {
        let Some(record) = self.groups.get(group) else { return false };
        if !record.progress.satisfied_once()
            || record.waits.held.is_some()
            || record.waits.failed.is_some()
            || record.not_ready.is_some()
            || !record.marking.is_empty()
            || queue.state(Item::Group(group.clone())).is_some()
        {
            return false;
        }
        let book = world.gangs();
        let at_rest = |id: &GangId| {
            let gang = book.gang(id).filter(|gang| gang.group() == group);
            gang.is_some_and(|gang| gang.counts().unplaced() == 0 && gang.counts().children() > 0)
        };
        group.gangs().iter().all(at_rest)
    }

    /// Remembers the latest commit once all its members are seen bound.
    fn note_whole(&mut self, world: &World, group: &GroupId) {
        if let Some((commit, bound)) = latest_commit(world, group)
            && bound >= commit.members
            && let Some(record) = self.groups.get_mut(group)
        {
            record.commits.whole = record.commits.whole.max(Some(commit));
        }
    }

    /// Decides from the state of its gangs whether a group is queued, not ready, or forgotten.
    pub(super) fn review(&mut self, cx: &mut Context<'_>, group: &GroupId) {
        cx.agenda.stats.groups.reviews += 1;
        if has_left(cx.world, cx.reservations, group) {
            self.release_group(&mut cx.rooms(), group, "one of its gangs belongs to another group now");
        }
        let gangs: Vec<&Gang> = cx.world.gangs().listing(group).collect();
        if gangs.is_empty() {
            self.release_group(&mut cx.rooms(), group, "the group does not exist any more");
            cx.agenda.queue.remove(Item::Group(group.clone()));
            self.groups.remove(group);
            return;
        }
        let live = gangs.iter().any(|gang| gang.counts().children() > 0);
        let before = self.groups.get(group).map(|record| record.progress.generation).unwrap_or_default();
        let was_once = before == Generation::Satisfied;
        // Without a live member, the next pods of this name are a new generation, unless they and what has succeeded prove otherwise.
        let once = live && (was_once || was_satisfied_before(group, &gangs, before));
        let unplaced = gangs.iter().any(|gang| gang.counts().unplaced() > 0);
        let strict = gangs.iter().any(|gang| gang.config().mode == Mode::Strict);
        let states = GangState::of_group(cx.world, group);
        let record = self.groups.entry(group.clone()).or_default();
        let waits = unplaced || record.waits.held.is_some();
        record.progress.generation = match (live, once) {
            (true, false) => before,
            (true, true) => Generation::Satisfied,
            (false, _) => Generation::New,
        };
        self.note_whole(cx.world, group);
        if self.bind_holders(cx, group) {
            // The group is reviewed once they are being bound.
            return cx.agenda.steps.push(Step::AfterAttempt(group.clone()));
        }
        let Some(record) = self.groups.get_mut(group) else { return };
        record.marking.retain(|id| cx.world.pod(*id).is_some_and(is_unmarked));
        let being_marked = !record.marking.is_empty();
        // Another scheduler may have bound the members that a group with reservations lacked.
        let holding = record.waits.held.is_some();
        let ruled = |gang: &Gang| gang.counts().pending > 0 && !is_free(gang, group, once);
        let ruled = holding || cx.world.gangs().listing(group).any(ruled);
        let reasons: Vec<NotReady> = if waits { self.not_ready(cx.world, group).collect() } else { Vec::new() };
        let rest = self.rest_members(cx.world, cx.reservations, group);
        // The next attempt binds these, or they lose their room.
        let reserved = rest.iter().any(|id| cx.reservations.get(*id).is_some());
        let has_rest = !rest.is_empty();
        let released = once && !was_once || has_rest;
        if strict && holding {
            self.release_group(&mut cx.rooms(), group, "its mode is Strict now");
        }
        let item = Item::Group(group.clone());
        let Some(record) = self.groups.get_mut(group) else { return };
        let changed = record.attempt.gangs.as_ref() != Some(&states) || cx.agenda.queue.state(item.clone()).is_none();
        if has_rest {
            record.not_ready = None;
            if changed || reserved {
                self.queue_group(cx.terms.scene(cx.world), cx.reservations, cx.agenda, group);
            }
        } else if !reasons.is_empty() {
            self.set_not_ready(cx, group, reasons);
        } else if !being_marked {
            let became_ready = record.not_ready.take().is_some();
            if !ruled {
                cx.agenda.queue.remove(item);
            } else if became_ready || changed {
                if became_ready {
                    // While the group was not ready, each of them was parked as a single pod.
                    waiting_members(cx.terms.scene(cx.world), group)
                        .into_iter()
                        .for_each(|id| cx.agenda.queue.remove(id));
                }
                self.queue_group(cx.terms.scene(cx.world), cx.reservations, cx.agenda, group);
            } else {
                let queued = self.queued(cx.terms.scene(cx.world), cx.reservations, group);
                cx.agenda.queue.restate(&item, &queued, cx.terms.rules.queue_sort());
            }
        }
        if released {
            enqueue_members(cx.terms.scene(cx.world), cx.agenda, group);
        } else {
            self.enqueue_free(cx.world, cx.agenda, group);
        }
        if !waits && let Some(record) = self.groups.get_mut(group) {
            record.not_ready = None;
            record.stop_waiting();
        }
        self.arm(cx.terms.scene(cx.world), cx.agenda, group);
        self.warn(cx.terms.scene(cx.world), cx.agenda, group);
        self.report_pod_groups(cx.terms.scene(cx.world), cx.agenda, group);
    }

    /// Why each gang of the group that has waiting members is not ready.
    pub(super) fn not_ready<'a>(&'a self, world: &'a World, group: &'a GroupId) -> impl Iterator<Item = NotReady> {
        let (book, once) = (world.gangs(), self.satisfied_once(group));
        let asks = |gang: &&Gang| gang.counts().unplaced() + gang.counts().reserved > 0;
        book.listing(group)
            .filter(asks)
            .filter_map(move |gang| Some(self.with_marks(world, book.not_ready(gang, once)?)))
    }

    /// Another scheduler has satisfied the group for good: its members with reservations are bound. `true` when there are any.
    fn bind_holders(&mut self, cx: &mut Context<'_>, group: &GroupId) -> bool {
        let once = self.satisfied_once(group);
        let ruled = |gang: &Gang| !rule::is_over(gang.config().policy, once);
        if self.groups.get(group).is_none_or(|record| record.waits.held.is_none())
            || cx.world.gangs().listing(group).any(ruled)
        {
            return false;
        }
        let before = reserved_members(cx.world, cx.reservations, group);
        self.drop_outdated(&mut cx.rooms(), group);
        let held = reserved_members(cx.world, cx.reservations, group);
        let free = !held.is_empty();
        if held.is_empty() {
            cx.agenda.queue.remove(Item::Group(group.clone()));
            if let Some(record) = self.groups.get_mut(group) {
                record.stop_waiting();
            }
        } else {
            self.commit_group(cx, group, held, None);
        }
        for id in before {
            // Its reservation was outdated.
            if cx.world.pod(id).is_some_and(|pod| pod.place == Place::Waiting) {
                cx.agenda.enqueue(id);
            }
        }
        free
    }

    /// Takes a group out of the queue. Every waiting member reports why when the reason of one of its gangs is new.
    fn set_not_ready(&mut self, cx: &mut Context<'_>, group: &GroupId, reasons: Vec<NotReady>) {
        let Some((reason, message)) = reasons.first().map(|why| (why.reason(), why.to_string())) else { return };
        self.release_group(&mut cx.rooms(), group, &message);
        cx.agenda.queue.remove(Item::Group(group.clone()));
        let Some(record) = self.groups.get_mut(group) else { return };
        let news = record.not_ready.is_none()
            || !record.reports.reasons.iter().map(NotReady::reason).eq(reasons.iter().map(NotReady::reason));
        let changed = record.reports.reasons != reasons;
        let stepped = !reasons.iter().map(NotReady::step).eq(record.reports.steps.iter().copied());
        record.progress.last_failure = Some(message.clone());
        (record.not_ready, record.reports.reasons) = (Some((reason, message)), reasons);
        if news {
            self.report_not_ready(cx.terms.scene(cx.world), cx.reservations, cx.reporter, cx.agenda, group);
        } else if changed {
            // Pods that come together change the number together.
            let pause = if stepped { TOGETHER } else { cx.terms.config.gangs.condition_pause };
            cx.agenda.timers.set(cx.terms.now.mono + pause, Timer::ReportGroup(group.clone()));
        }
    }

    /// Brings what is reported of a group up to date: a group that lacked room is tried again for it.
    pub fn report_group(
        &mut self,
        scene: Scene<'_>,
        reservations: &Reservations,
        reporter: &mut Reporter,
        agenda: &mut Agenda,
        group: &GroupId,
    ) {
        if matches!(agenda.queue.state(Item::Group(group.clone())), Some(QueueState::Parked(..))) {
            self.queue_group(scene, reservations, agenda, group);
        }
        self.report_not_ready(scene, reservations, reporter, agenda, group);
    }

    /// Reports on every waiting member why its group is not ready.
    fn report_not_ready(
        &mut self,
        scene: Scene<'_>,
        reservations: &Reservations,
        reporter: &mut Reporter,
        agenda: &mut Agenda,
        group: &GroupId,
    ) {
        let Some(record) = self.groups.get_mut(group).filter(|record| record.not_ready.is_some()) else { return };
        let steps: Vec<u32> = record.reports.reasons.iter().map(NotReady::step).collect();
        let stepped = std::mem::replace(&mut record.reports.steps, steps) != record.reports.steps;
        for id in waiting_members(scene, group) {
            // Each gang of a group may have a reason of its own.
            if let Some(Route::NotReady(why)) = self.route_of(scene.world, reservations, id) {
                if stepped {
                    reporter.end_pause(id);
                }
                reporter.report(scene, agenda, id, why.reason(), &why.to_string().into(), WaitsFor::Gang);
            }
        }
    }

    /// Queues members as single pods whose gang has no rule, or is satisfied for good, and that are not queued yet.
    pub(super) fn enqueue_free(&mut self, world: &World, agenda: &mut Agenda, group: &GroupId) {
        let once = self.satisfied_once(group);
        let book = world.gangs();
        let free = |gang: &&Gang| {
            gang.counts().pending > 0 && is_free(gang, group, once) && book.not_ready(gang, once).is_none()
        };
        let pending = book.listing(group).filter(free).flat_map(Gang::members);
        let pending = pending.filter(|member| member.state == MemberState::Pending).map(|member| member.pod);
        let lost = |id: &PodId| match agenda.queue.state(*id) {
            None => true,
            Some(QueueState::Parked(wake, _)) => wake.is_none(),
            Some(_) => false,
        };
        let lost: Vec<PodId> = pending.filter(lost).collect();
        for id in lost {
            agenda.enqueue(id);
        }
    }

    /// The spec of a waiting member has changed: its group is tried again.
    pub fn member_changed(&mut self, scene: Scene<'_>, reservations: &Reservations, agenda: &mut Agenda, id: PodId) {
        let Some(Route::Group(group)) = self.route_of(scene.world, reservations, id) else {
            return;
        };
        if agenda.queue.state(Item::Group(group.clone())).is_some() {
            self.queue_group(scene, reservations, agenda, &group);
        }
    }

    /// A pod that has moved to another group loses its reservation.
    pub fn member_moved(&mut self, rooms: &mut Rooms<'_>, id: PodId) {
        let Rooms { terms, world, reservations, agenda } = rooms;
        let group = world.gangs().gang_of(id).map(Gang::group);
        let in_binding = reservations.get(id).is_none();
        let commit = self.commits.values().find(|commit| in_binding && commit.members.contains_key(&id));
        if let Some(former) = commit.map(|commit| commit.group.clone()).filter(|former| Some(former) != group) {
            let why = format!("a member of group {former} belongs to another gang now");
            self.cancel_unlocked(rooms, &former, &why);
        } else if reservations.get(id).is_some_and(|held| held.group.as_ref() != group) {
            reservations.release(*terms, world, agenda, id);
            agenda.enqueue(id);
        }
    }

    /// Where the group stands in the queue.
    fn queued(&self, scene: Scene<'_>, reservations: &Reservations, group: &GroupId) -> Queued {
        let gangs: Vec<&Gang> = scene.world.gangs().listing(group).collect();
        let oldest = gangs.iter().min_by_key(|gang| (gang.created(), gang.id()));
        let rest = self
            .broken_commit(scene.world, reservations, group)
            .filter(|_| !self.rest_members(scene.world, reservations, group).is_empty());
        Queued {
            priority: gangs.iter().flat_map(|gang| gang.priorities()).max().unwrap_or(0),
            // A group with the rest of a commit goes before others of its priority, the latest commit first: its room was kept when
            // the scheduler stopped.
            sub_priority: rest.map_or_else(
                || oldest.map_or(0, |gang| gang.sub_priority()),
                |commit| i64::MAX / 2 + commit.attempt.as_second(),
            ),
            created: oldest.and_then(|gang| gang.created()).unwrap_or(scene.terms.now.wall),
            class: gangs.iter().filter_map(|gang| gang.class()).max().unwrap_or(0),
            id: group.gangs().iter().map(GangId::to_string).collect::<Vec<_>>().join(",").into(),
        }
    }

    /// Adds a group to the queue, or activates it there.
    pub(super) fn queue_group(
        &mut self,
        scene: Scene<'_>,
        reservations: &Reservations,
        agenda: &mut Agenda,
        group: &GroupId,
    ) {
        let mut gangs = scene.world.gangs().of_group(group);
        if !scene.terms.leading || !gangs.any(|gang| is_ours(&scene.terms.config.scheduler_names, gang)) {
            return;
        }
        let queued = self.queued(scene, reservations, group);
        if let Some(record) = self.groups.get_mut(group) {
            record.attempt.least = None;
        }
        let item = Item::Group(group.clone());
        match agenda.queue.state(item.clone()) {
            None => agenda.queue.add(item.clone(), &queued, scene.terms.rules.queue_sort(), scene.terms.now.mono),
            Some(QueueState::Taken) => return,
            Some(_) => agenda.queue.offer(item.clone(), &queued, scene.terms.rules.queue_sort(), scene.terms.now.mono),
        }
        let pause = self.groups.get(group).and_then(|record| record.refusals.until);
        if let Some(until) = pause.filter(|until| scene.terms.now.mono < *until) {
            agenda.queue.wait_until(item, until);
        }
    }
}

/// The watch shows no mark on a pod that waits.
fn is_unmarked(pod: &Pod) -> bool {
    matches!(MemberState::of(pod), MemberState::Pending | MemberState::Gated)
}

/// The members of a gang are placed as single pods: it has no rule, or its group is satisfied for good.
fn is_free(gang: &Gang, group: &GroupId, once: bool) -> bool {
    let config = gang.config();
    (config.min == Some(0) && group.is_alone()) || rule::is_over(config.policy, once)
}

/// Members of a gang that lists another group now still have reservations of this group.
fn has_left(world: &World, reservations: &Reservations, group: &GroupId) -> bool {
    let others = world.gangs().of_group(group).filter(|gang| gang.group() != group);
    let reserved = others.filter(|gang| gang.counts().reserved > 0).flat_map(Gang::members);
    let mut held = reserved.filter_map(|member| reservations.get(member.pod));
    held.any(|found| found.group.as_ref() == Some(group))
}

/// Queues every waiting member by its present route.
pub(super) fn enqueue_members(scene: Scene<'_>, agenda: &mut Agenda, group: &GroupId) {
    for id in waiting_members(scene, group) {
        agenda.enqueue(id);
    }
}

//! One attempt of a group: a transaction on the world.

use std::time::Duration;

use crate::core::agenda::{Scene, Step};
use crate::core::context::Context;
use crate::core::earmarks::is_aged;
use crate::core::placing::{Placing, Rooms};
use crate::core::preemption::Preemption;
use crate::core::queue::Item;
use crate::core::rules::plugins::device_fit;
use crate::core::select::choose::{NodeChoice, choose};
use crate::core::timers::Timer;
use crate::world::gangs::{Gang, GroupId, MemberState, rule};
use crate::world::{NodeId, Pod, PodId, Wake, World};
use baton_contract::gang::Committed;

use super::alike::{MemberKind, looks_at_others};
use super::members::{SavedGroup, is_strict, priority_of, reserved_members};
use super::report::missing_resources;
use super::search::{MEMBERS, search};
use super::try_order::Aim;
use super::trying::{Failures, try_each, try_member, try_until_unfit};
use super::{GangState, Gangs, TryOrder, UnfitMember};
use baton_contract::ConditionReason;

/// Orders that are tried with the members that are hardest to place first.
const HARDEST_FIRST: usize = 8;
/// Cycles of one pass: enough for as many kinds of members to fail.
const CYCLES: usize = 128;
/// How long an attempt waits for the deletion of a member that was preempted.
const LEAVING: Duration = Duration::from_secs(60);

/// How much is tried where one member after the other does not fit.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Search {
    /// All of them jointly.
    Joint,
    /// Nothing.
    None,
}

/// The result of an attempt.
pub(super) enum Attempt {
    /// Every gang of the group has what it needs; these members have reservations.
    Satisfied(Vec<PodId>),
    /// The first member that fits no node.
    Unfit(UnfitMember),
}

impl Gangs {
    /// Tries a group that was popped from the queue.
    pub fn attempt_group(&mut self, cx: &mut Context<'_>, group: &GroupId) {
        let stale = self.groups.get(group).map(|record| record.attempt.at + cx.terms.config.gangs.condition_pause);
        if let Some(stale) = stale.filter(|stale| cx.terms.now.mono < *stale)
            && self.is_out_of_reach(cx, group)
            && cx.agenda.queue.park_again(
                &Item::Group(group.clone()),
                device_fit::ROOM.or(Wake::NODE_ROOM),
                cx.terms.now.mono,
            )
        {
            // The numbers that were reported have changed all the same.
            return cx.agenda.timers.set(stale, Timer::ReportGroup(group.clone()));
        }
        self.try_group(cx, group, true);
        cx.agenda.steps.push(Step::AfterAttempt(group.clone()));
    }

    /// Tries a group. `resolve`: groups of lower rank may have to release their reservations for it.
    pub(super) fn try_group(&mut self, cx: &mut Context<'_>, group: &GroupId, resolve: bool) {
        let priority = priority_of(cx.world, group);
        cx.earmarks.open_for(cx.terms, cx.world, &Item::Group(group.clone()), priority, None);
        self.try_with_room(cx, group, resolve);
        cx.earmarks.close(cx.world);
    }

    /// The same, nodes that are kept for others of lower priority being open.
    fn try_with_room(&mut self, cx: &mut Context<'_>, group: &GroupId, resolve: bool) {
        let item = Item::Group(group.clone());
        let rest = self.rest_members(cx.world, cx.reservations, group);
        if !rest.is_empty()
            && let Some(commit) = self.broken_commit(cx.world, cx.reservations, group)
            && self.bind_rest(cx, group, commit)
        {
            return;
        }
        let once = self.satisfied_once(group);
        let not_ready = self.not_ready(cx.world, group).next().is_some();
        let over = cx.world.gangs().listing(group).all(|gang| rule::is_over(gang.config().policy, once));
        let unmarked = self.groups.get(group).is_some_and(|record| record.marking.is_empty());
        if not_ready || over || !unmarked {
            if rest.is_empty() {
                cx.agenda.queue.remove(item);
                return;
            }
            cx.agenda.queue.park(item, Wake::ANY, cx.terms.now.mono);
            if let Some(record) = self.groups.get_mut(group) {
                record.attempt.gangs = Some(GangState::of_group(cx.world, group));
            }
            self.make_room_for_rest(cx, group, rest);
            return;
        }
        if let Some((pod, until)) = leaving_member(cx.terms.scene(cx.world), cx.preemption, group) {
            // It still counts as bound. The watch shows its deletion soon, and the group is tried with the right count.
            let text = "it is being preempted, the group waits until it is gone".to_owned();
            self.report_short(cx, group, UnfitMember::of(pod, text, Wake::ANY));
            return cx.agenda.queue.hurry(item, until);
        }
        cx.agenda.stats.groups.attempts += 1;
        self.drop_outdated(&mut cx.rooms(), group);
        if let Some(record) = self.groups.get_mut(group) {
            record.progress.attempts += 1;
            record.attempt.at = cx.terms.now.mono;
            if cx.agenda.queue.failures(item) == 0 {
                // A useful event has come since.
                record.attempt.failed.clear();
            }
        }
        let before = SavedGroup::copy(cx.world, cx.reservations, group);
        match self.attempt_once(&mut cx.placing(), group) {
            Attempt::Satisfied(held) => {
                if before.has_moved(cx.world) {
                    cx.agenda.room_freed();
                }
                let none = held.is_empty();
                self.commit_group(cx, group, held, None);
                if none {
                    self.report_surplus(cx, group);
                }
            }
            Attempt::Unfit(_) if resolve && self.resolve_holders(cx, group) => {}
            Attempt::Unfit(mut unfit) => {
                cx.agenda.stats.work.begin();
                if self.preempt_for_group(cx, group) {
                    unfit.text.push_str("; others make room");
                }
                self.report_short(cx, group, unfit);
            }
        }
    }

    /// One attempt in the group's mode. Changes nothing but reservations of the group.
    pub(super) fn attempt_once(&mut self, placing: &mut Placing<'_>, group: &GroupId) -> Attempt {
        match placing.world.gangs().topology_of(group) {
            None => self.attempt_anywhere(placing, group),
            Some(topology) => self.attempt_gathered(placing, group, &topology),
        }
    }

    /// The same on all nodes that the group may use.
    pub(super) fn attempt_anywhere(&mut self, placing: &mut Placing<'_>, group: &GroupId) -> Attempt {
        let aim = Aim::Minimum { once: self.satisfied_once(group) };
        if is_strict(placing.world, group) {
            return self.attempt_in_hand(placing, group, aim, Search::Joint);
        }
        match missing_resources(placing.world, group) {
            Some(unfit) => Attempt::Unfit(unfit),
            None => self.attempt_accumulating(placing, group, aim),
        }
    }

    /// All of the group at once, in either mode.
    pub(super) fn attempt_in_hand(
        &mut self,
        placing: &mut Placing<'_>,
        group: &GroupId,
        aim: Aim,
        search: Search,
    ) -> Attempt {
        match missing_resources(placing.world, group) {
            Some(unfit) => Attempt::Unfit(unfit),
            None => self.attempt_strict(placing, group, aim, search),
        }
    }

    /// Fewer GPUs are free in all than the members need that were missing at the last attempt, nothing gives way to this group, and no
    /// node can be kept for it now.
    fn is_out_of_reach(&self, cx: &mut Context<'_>, group: &GroupId) -> bool {
        // What a group holds is given back for its next attempt, and is not free before.
        let record = self.groups.get(group).filter(|record| record.waits.held.is_none());
        let Some(least) = record.and_then(|record| record.attempt.least) else { return false };
        let outranks = cx.world.lowest_priority().is_some_and(|lowest| lowest < priority_of(cx.world, group));
        let created = cx.world.gangs().of_group(group).filter_map(Gang::created).min();
        let is_aged = created
            .is_some_and(|created| is_aged(cx.terms, &mut cx.agenda.queue, &Item::Group(group.clone()), created));
        let has_turn = is_aged && cx.earmarks.all().is_empty();
        !outranks && !has_turn && cx.preemption.all().is_empty() && cx.index.free_gpus(cx.world) < least
    }

    /// Binds the rest of a commit that broke off: members that have room already, then all that the group still needs, or else the
    /// members that fit. `false` when there are none.
    fn bind_rest(&mut self, cx: &mut Context<'_>, group: &GroupId, commit: Committed) -> bool {
        let Some(record) = self.groups.get(group) else { return false };
        let rest = record.commits.unbound_of(cx.world, group, commit) as usize;
        self.drop_outdated(&mut cx.rooms(), group);
        let was_there = |id: &PodId| cx.world.pod(*id).is_some_and(|pod| pod.facts.handoff.created < commit.attempt);
        let mut held: Vec<PodId> =
            reserved_members(cx.world, cx.reservations, group).into_iter().filter(was_there).take(rest).collect();
        if held.len() < rest {
            let mut placed = match self.attempt_strict(&mut cx.placing(), group, Aim::Rest(commit), Search::Joint) {
                Attempt::Satisfied(placed) => placed,
                Attempt::Unfit(_) => {
                    let order = TryOrder::of(cx.world, &mut cx.agenda.stats, group, &[], Aim::Rest(commit));
                    order.needed().filter(|id| try_member(&mut cx.placing(), *id).is_ok()).collect()
                }
            };
            // The best come first: members beyond the number that was decided wait.
            let more = placed.split_off(placed.len().min(rest - held.len()));
            cx.reservations.undo(cx.terms, cx.world, &more);
            held.append(&mut placed);
        }
        if held.is_empty() {
            return false;
        }
        self.commit_group(cx, group, held, Some(commit));
        true
    }

    /// The rest of a commit fits no node, and the group's own rule makes no room for them. As for pods without a gang, groups of
    /// lower priority release their reservations, or else pods of lower priority are preempted, for one member at a time.
    fn make_room_for_rest(&mut self, cx: &mut Context<'_>, group: &GroupId, rest: Vec<PodId>) {
        let mut message = format!("there is no room yet for the rest of group {group}, a part of which is bound");
        let commit = self.broken_commit(cx.world, cx.reservations, group);
        if let Some((first, commit)) = rest.first().copied().zip(commit) {
            let below = self.holders_below(cx.world, priority_of(cx.world, group));
            let attempt = |_: &mut Self, placing: &mut Placing<'_>| try_member(placing, first).ok();
            let undo = |_: &mut Self, placing: &mut Placing<'_>| {
                placing.reservations.undo(placing.terms, placing.world, &[first]);
            };
            if let Some(((), released)) = self.give_way(&mut cx.placing(), &below, attempt, undo) {
                self.report_released(
                    cx.terms.scene(cx.world),
                    cx.agenda,
                    &released,
                    &format!("the rest of group {group} goes first"),
                );
                self.commit_group(cx, group, vec![first], Some(commit));
                return released.iter().rev().for_each(|last| self.try_group(cx, last, false));
            }
            if let Some(way) = self.preempt_for_pod(cx, first) {
                message = format!("{message}; {way}");
            }
        }
        cx.reporter.conditions(cx.terms.scene(cx.world), cx.agenda, rest, ConditionReason::Unschedulable, message);
    }

    fn attempt_strict(&mut self, placing: &mut Placing<'_>, group: &GroupId, aim: Aim, search: Search) -> Attempt {
        let mut failed = self.groups.get(group).map(|record| record.attempt.failed.clone()).unwrap_or_default();
        let mut reported: Option<UnfitMember> = None;
        let (mut uniform, mut members) = (false, 0);
        let mut most: Vec<(PodId, NodeId)> = Vec::new();
        for _ in 0..CYCLES {
            let order = TryOrder::of(placing.world, placing.stats, group, &failed, aim);
            (uniform, members) = (order.is_uniform(), order.len());
            if let Some(record) = self.groups.get_mut(group).filter(|_| matches!(aim, Aim::Minimum { .. })) {
                record.attempt.least = Some(order.least(placing.world));
            }
            let (mut held, unfit) = try_until_unfit(placing, order.needed());
            if unfit.is_some()
                && let Some(record) = self.groups.get_mut(group)
            {
                record.progress.cycle_valid = false;
            }
            self.note_cycle(placing.world, group, &order);
            let Some(unfit) = unfit else {
                if held.len() < order.len() {
                    place_surplus(placing, group, aim, &mut held);
                }
                return Attempt::Satisfied(held);
            };
            if held.len() > most.len() {
                most = held.iter().filter_map(|id| Some((*id, placing.reservations.node_of(*id)?))).collect();
            }
            placing.reservations.undo(placing.terms, placing.world, &held);
            let needed = order.needed().collect();
            let blocking = placing.world.pod(unfit.pod);
            // A pod with affinity may fit when it comes after the pods that it wants to be near to.
            let other_order =
                blocking.is_some_and(|pod| looks_at_others(pod) && !order.is_any(placing.world, &failed, pod));
            failed.extend(blocking.map(|pod| order.kind(placing.world, pod)));
            // The last one is reported: without it the others do not suffice. An event that may help any of them wakes the group.
            let wake = reported.map_or(unfit.wake, |before: UnfitMember| before.wake.or(unfit.wake));
            reported = Some(UnfitMember { wake, needed, ..unfit });
            if !other_order && !order.suffices_without(placing.world, &failed) {
                break;
            }
        }
        // The order of many identical members does not matter.
        let hopeless = search == Search::None || uniform && members > MEMBERS;
        if !hopeless && let Some(mut held) = self.try_other_orders(placing, group, aim, uniform) {
            place_surplus(placing, group, aim, &mut held);
            return Attempt::Satisfied(held);
        }
        if let Some(record) = self.groups.get_mut(group) {
            record.attempt.failed = failed;
        }
        Attempt::Unfit(UnfitMember { found: most, ..reported.unwrap_or_else(UnfitMember::none) })
    }

    /// After all orders with failed kinds last: the exact search, then the kinds that are hardest to place first. `uniform`: all
    /// waiting members are of one kind, and their order does not matter.
    fn try_other_orders(
        &mut self,
        placing: &mut Placing<'_>,
        group: &GroupId,
        aim: Aim,
        uniform: bool,
    ) -> Option<Vec<PodId>> {
        let order = TryOrder::of(placing.world, placing.stats, group, &[], aim);
        let found = search(placing, &order);
        let found = if uniform { found } else { found.or_else(|| hardest_first(placing, &order)) };
        if found.is_some() {
            // Each other order that is tried is a further cycle.
            self.note_cycle(placing.world, group, &order);
        }
        found
    }

    fn attempt_accumulating(&mut self, placing: &mut Placing<'_>, group: &GroupId, aim: Aim) -> Attempt {
        let failed = self.groups.get(group).map(|record| record.attempt.failed.clone()).unwrap_or_default();
        let order = TryOrder::of(placing.world, placing.stats, group, &failed, aim);
        let mut failures = Failures::default();
        for gang in &order.gangs {
            try_each(placing, &order, gang.pending.iter().copied(), gang.needed, &mut failures);
        }
        self.note_cycle(placing.world, group, &order);
        if TryOrder::of(placing.world, placing.stats, group, &[], aim).is_satisfied() {
            let mut held = reserved_members(placing.world, placing.reservations, group);
            place_surplus(placing, group, aim, &mut held);
            return Attempt::Satisfied(held);
        }
        // Reserved members may block the others: the whole group is placed from the beginning.
        let saved = SavedGroup::take(placing, group);
        if let Some(mut held) = self.try_other_orders(placing, group, aim, false) {
            place_surplus(placing, group, aim, &mut held);
            return Attempt::Satisfied(held);
        }
        saved.put(placing);
        if let Some(record) = self.groups.get_mut(group) {
            record.attempt.failed = failures.kinds;
        }
        let needed = order.needed().collect();
        Attempt::Unfit(UnfitMember { needed, ..failures.first.unwrap_or_else(UnfitMember::none) })
    }

    /// Releases members whose node or devices have changed, or whose node would not accept them any more.
    pub(super) fn drop_outdated(&mut self, rooms: &mut Rooms<'_>, group: &GroupId) {
        let Rooms { terms, world, reservations, agenda } = rooms;
        for id in reserved_members(world, reservations, group) {
            if reservations.is_outdated(world, id) {
                reservations.release(*terms, world, agenda, id);
                continue;
            }
            let Some(saved) = reservations.save(*terms, world, id) else { continue };
            let choice = world.pod(id).map(|pod| choose(terms.view(world), terms.rules, pod, Some(saved.node())).0);
            if matches!(choice, Some(NodeChoice::Node(..))) {
                reservations.restore(world, saved);
            } else {
                agenda.wake(Wake::POD_FREED);
            }
        }
        let none = reserved_members(world, reservations, group).is_empty();
        if let Some(record) = self.groups.get_mut(group).filter(|record| none && record.waits.held.is_some()) {
            // The waiting time begins again with the next reservation.
            record.waits.held = None;
            record.progress.holding_since = None;
        }
    }

    /// Every member was tried in this cycle: the next one begins, and no member has failed in it.
    fn note_cycle(&mut self, world: &World, group: &GroupId, order: &TryOrder) {
        let Some(record) = self.groups.get_mut(group) else { return };
        let progress = &mut record.progress;
        let cycle = progress.cycle;
        progress.rounds.extend(order.all().map(|id| (id, cycle)));
        let members: u32 = world.gangs().of_group(group).map(|gang| gang.counts().all()).sum();
        if progress.rounds.len() > members as usize {
            progress.rounds.retain(|id, _| world.pod(*id).is_some());
        }
        progress.cycle += 1;
        progress.cycle_valid = true;
    }
}

/// A bound member that was preempted and whose deletion the watch does not show yet. When the deletion does not come about, the
/// group is tried without waiting for it from the returned time on.
fn leaving_member(scene: Scene<'_>, preemption: &Preemption, group: &GroupId) -> Option<(PodId, Duration)> {
    let young = preemption.all().values().map(|nomination| (nomination, nomination.since + LEAVING));
    let young = young.filter(|(_, until)| scene.terms.now.mono < *until);
    let victims = young.flat_map(|(nomination, until)| nomination.victims.iter().map(move |uid| (uid, until)));
    let bound = |id: &PodId| {
        let pod = scene.world.pod(*id).filter(|pod| MemberState::of(pod).is_bound());
        pod.is_some() && scene.world.gangs().gang_of(*id).is_some_and(|gang| gang.group() == group)
    };
    let leaving = victims.filter_map(|(uid, until)| Some((scene.world.pod_id(uid).filter(bound)?, until)));
    leaving.max_by_key(|(_, until)| *until)
}

/// Tries kinds that fitted no node before all others, the latest first: a kind that fits few nodes takes them before the
/// others do. `None` leaves no reservation.
fn hardest_first(placing: &mut Placing<'_>, order: &TryOrder) -> Option<Vec<PodId>> {
    let all: Vec<PodId> = order.needed().collect();
    let one = placing.world.pod(*all.first()?)?;
    let (first, kinds) = (order.kind(placing.world, one), &order.anti_affinity);
    let like_first = |pod: &Pod| one.is_of_template(pod) || kinds.is(placing.world, &first, pod);
    if all.iter().all(|id| placing.world.pod(*id).is_none_or(like_first)) {
        return None;
    }
    let mut hardest: Vec<MemberKind> = Vec::new();
    for _ in 0..HARDEST_FIRST {
        let rank = |id: &PodId| {
            let pod = placing.world.pod(*id);
            let at = pod.and_then(|pod| hardest.iter().rposition(|kind| kinds.is(placing.world, kind, pod)));
            std::cmp::Reverse(at.map_or(0, |at| at + 1))
        };
        let mut members = all.clone();
        members.sort_by_key(rank);
        let (held, unfit) = try_until_unfit(placing, members);
        let Some(unfit) = unfit else { return Some(held) };
        placing.reservations.undo(placing.terms, placing.world, &held);
        let kind = order.kind(placing.world, placing.world.pod(unfit.pod)?);
        if held.is_empty() || hardest.last() == Some(&kind) {
            return None;
        }
        hardest.retain(|known| *known != kind);
        hardest.push(kind);
    }
    None
}

/// Members beyond the minimum of a satisfied group: those that fit are bound with it, the others wait.
fn place_surplus(placing: &mut Placing<'_>, group: &GroupId, aim: Aim, held: &mut Vec<PodId>) {
    let aim = if matches!(aim, Aim::Rest(_)) { aim } else { Aim::Surplus };
    let order = TryOrder::of(placing.world, placing.stats, group, &[], aim);
    held.extend(try_each(placing, &order, order.all(), usize::MAX, &mut Failures::default()));
}

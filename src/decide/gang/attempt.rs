//! One attempt of a group: a transaction on the world.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::contract::gang::{Committed, GangId};
use crate::decide::scheduler::context::{Context, Step};
use crate::decide::scheduler::preemption::Preemption;
use crate::decide::scheduler::queue::Item;
use crate::decide::scheduler::reporter::Reporter;
use crate::decide::scheduler::reservations::Reservations;
use crate::decide::scheduler::select::choose::{Choice, choose};
use crate::decide::world::gangs::{GroupId, MemberState, rule};
use crate::decide::world::{Pod, PodId, Wake};

use super::alike::{Kind, looks_at_others};
use super::members::{Holdings, by_gang, held_members, is_strict, priority_of};
use super::offer::{Aim, Offer};
use super::report::{Miss, missing_resources};
use super::search::{MEMBERS, search};
use super::{Gangs, Look, TimeoutClock};

/// Orders that are tried with the members that are hardest to place first.
const HARDEST_FIRST: usize = 8;
/// Cycles of one pass: enough for as many kinds of members to fail.
const CYCLES: usize = 128;
/// How long the deletion of a member that was chosen to leave is waited for.
const LEAVING: Duration = Duration::from_secs(60);

/// The first miss is the one that is told; whatever may turn any of them is worth another try.
fn note(first: &mut Option<Miss>, miss: Miss) {
    match first {
        Some(first) => first.wake = first.wake.or(miss.wake),
        None => *first = Some(miss),
    }
}

/// What came of an attempt.
pub enum Attempt {
    /// Every gang of the group has what it needs; these members are held for it.
    Satisfied(Vec<PodId>),
    /// The first member that found no place.
    Short(Miss),
}

impl Gangs {
    /// Tries a group that was popped from the queue.
    pub fn attempt_group(&mut self, cx: &mut Context<'_>, group: &GroupId) {
        self.try_group(cx, group, true);
        cx.steps.push(Step::AfterAttempt(group.clone()));
    }

    /// Tries a group; `resolve`: lower holders may have to give way.
    pub fn try_group(&mut self, cx: &mut Context<'_>, group: &GroupId, resolve: bool) {
        let item = Item::Group(group.clone());
        let owing = self.completing_members(cx, group);
        if !owing.is_empty()
            && let Some(commit) = self.broken_commit(cx.world, cx.reservations, group)
            && self.complete_commit(cx, group, commit)
        {
            return;
        }
        let once = self.satisfied_once(group);
        let book = cx.world.gangs();
        let gangs = || book.of_group(group).filter(|gang| gang.group() == group);
        let held = self.not_ready(cx, group).next().is_some();
        let over = gangs().all(|gang| rule::is_over(gang.config().policy, once));
        let marking = self.groups.get(group).is_some_and(|record| !record.marking.is_empty());
        if held || over || marking || !self.groups.contains_key(group) {
            if owing.is_empty() {
                cx.queue.remove(item);
                return;
            }
            cx.queue.park(item, Wake::ANY, cx.now.mono, cx.now.wall);
            let looks: Vec<Look> = cx.world.gangs().of_group(group).map(Look::of).collect();
            if let Some(record) = self.groups.get_mut(group) {
                record.tried = Some(looks);
            }
            self.make_room_for_rest(cx, group, owing);
            return;
        }
        if let Some((pod, until)) = leaving_member(cx, group) {
            // Whoever is about to leave still counts as bound: nobody joins them. Their deletion is seen soon.
            let text = "is about to make room for others, and nobody joins it".to_owned();
            self.short(cx, group, Miss::of(pod, text, Wake::ANY));
            return cx.queue.hurry(item, until);
        }
        cx.stats.group_attempts += 1;
        self.drop_outdated(cx, group);
        if let Some(record) = self.groups.get_mut(group) {
            record.progress.attempts += 1;
            if cx.queue.failures(item) == 0 {
                // A useful event has come since.
                record.failed.clear();
            }
        }
        match self.attempt_once(cx, group) {
            Attempt::Satisfied(held) => {
                let nobody = held.is_empty();
                self.commit_group(cx, group, held, None);
                if nobody {
                    self.report_surplus(cx, group);
                }
            }
            Attempt::Short(miss) => {
                if resolve && self.resolve_holders(cx, group) {
                    return;
                }
                if self.preempt_for_group(cx, group) {
                    let text = format!("{}; others make room", miss.text);
                    return self.short(cx, group, Miss { text, ..miss });
                }
                self.short(cx, group, miss);
            }
        }
    }

    /// One attempt in the group's mode, without consequences beside what it holds.
    pub fn attempt_once(&mut self, cx: &mut Context<'_>, group: &GroupId) -> Attempt {
        if let Some(miss) = missing_resources(cx, group) {
            return Attempt::Short(miss);
        }
        let aim = Aim::Minimum { once: self.satisfied_once(group) };
        if is_strict(cx, group) {
            self.attempt_strict(cx, group, aim)
        } else {
            self.attempt_accumulating(cx, group, aim)
        }
    }

    /// Places the rest of a commit that broke off: all that the group still needs, or else whoever finds a place. `false` when
    /// nobody of them does.
    fn complete_commit(&mut self, cx: &mut Context<'_>, group: &GroupId, commit: Committed) -> bool {
        let gangs = cx.world.gangs().of_group(group).filter(|gang| gang.group() == group);
        let bound: u32 = gangs.filter_map(|gang| gang.commits().get(&commit)).sum();
        let rest = commit.members.saturating_sub(bound) as usize;
        let mut held = match self.attempt_strict(cx, group, Aim::Rest(commit)) {
            Attempt::Satisfied(held) => held,
            Attempt::Short(_) => {
                let offer = self.offer(cx, group, &[], Aim::Rest(commit));
                offer.needed().filter(|id| Self::try_member(cx, *id).is_ok()).collect()
            }
        };
        // The best come first: whoever was not needed and is more than was decided waits.
        let more = held.split_off(rest.min(held.len()));
        Reservations::undo(cx, &more);
        if held.is_empty() {
            return false;
        }
        self.commit_group(cx, group, held, Some(commit));
        true
    }

    /// Members that owe find no place, and no rule is left that would make room for them: as for pods by themselves, lower groups
    /// that only hold room give way, or else pods of lower priority leave, for one member at a time.
    fn make_room_for_rest(&mut self, cx: &mut Context<'_>, group: &GroupId, owing: Vec<PodId>) {
        let mut message = format!("there is no room yet for the rest of group {group}, a part of which is bound");
        if let Some((first, commit)) = owing.first().copied().zip(self.broken_commit(cx.world, cx.reservations, group))
        {
            let below = self.holders_below(cx, priority_of(cx, group));
            let attempt = |_: &mut Self, cx: &mut Context<'_>| Self::try_member(cx, first).ok();
            if let Some(((), released)) = self.give_way(cx, &below, attempt, |_, cx| Reservations::undo(cx, &[first])) {
                self.report_released(cx, &released, &format!("the rest of group {group} goes first"));
                self.commit_group(cx, group, vec![first], Some(commit));
                return released.iter().rev().for_each(|last| self.try_group(cx, last, false));
            }
            if let Some(way) = self.preempt_for_pod(cx, first) {
                message = format!("{message}; {way}");
            }
        }
        Reporter::conditions(cx, owing, "Unschedulable", message);
    }

    fn attempt_strict(&mut self, cx: &mut Context<'_>, group: &GroupId, aim: Aim) -> Attempt {
        let mut failed = self.groups.get(group).map(|record| record.failed.clone()).unwrap_or_default();
        let mut told: Option<Miss> = None;
        let (mut uniform, mut members) = (false, 0);
        let mut most: BTreeMap<GangId, u32> = BTreeMap::new();
        for _ in 0..CYCLES {
            let offer = self.offer(cx, group, &failed, aim);
            (uniform, members) = (offer.is_uniform(), offer.len());
            let mut held = Vec::new();
            let mut miss = None;
            for id in offer.needed() {
                match Self::try_member(cx, id) {
                    Ok(()) => held.push(id),
                    Err(found) => {
                        miss = Some(found);
                        break;
                    }
                }
            }
            if miss.is_some()
                && let Some(record) = self.groups.get_mut(group)
            {
                record.progress.cycle_valid = false;
            }
            self.note_cycle(cx, group, &offer);
            let Some(miss) = miss else {
                if held.len() < offer.len() {
                    self.place_surplus(cx, group, aim, &mut held);
                }
                return Attempt::Satisfied(held);
            };
            let found = by_gang(cx, &held);
            if found.values().sum::<u32>() > most.values().sum::<u32>() {
                most = found;
            }
            Reservations::undo(cx, &held);
            let culprit = cx.world.pod(miss.pod);
            // Behind the others, whoever looks at other pods may find whom it wants to be near to.
            let other_order = culprit.is_some_and(|pod| looks_at_others(pod) && !offer.is_any(cx.world, &failed, pod));
            failed.extend(culprit.map(|pod| offer.kind(cx.world, pod)));
            // The one without which it does not suffice any more is told; whatever may turn any of them is worth another try.
            let wake = told.map_or(miss.wake, |before: Miss| before.wake.or(miss.wake));
            told = Some(Miss { wake, ..miss });
            if !other_order && !offer.suffices_without(cx.world, &failed) {
                break;
            }
        }
        // Of many that are alike, whoever is tried first is as good as any other.
        let hopeless = uniform && members > MEMBERS;
        if !hopeless && let Some(mut held) = self.another_way(cx, group, aim, uniform) {
            self.place_surplus(cx, group, aim, &mut held);
            return Attempt::Satisfied(held);
        }
        if let Some(record) = self.groups.get_mut(group) {
            record.failed = failed;
        }
        let nobody = || Miss::of(PodId(u64::MAX), "no member could be offered".to_owned(), Wake::ANY);
        Attempt::Short(Miss { found: most, ..told.unwrap_or_else(nobody) })
    }

    /// Whoever may be offered, counted.
    pub fn offer(&mut self, cx: &mut Context<'_>, group: &GroupId, failed: &[Kind], aim: Aim) -> Offer {
        let offer = Offer::of(cx.world, group, failed, aim);
        cx.stats.group_offered += offer.len() as u64;
        offer
    }

    /// What no order of failing last has found: the exact search, then whoever is hard to place first. `uniform`: all that wait are
    /// of one kind, whose order does not matter.
    fn another_way(&mut self, cx: &mut Context<'_>, group: &GroupId, aim: Aim, uniform: bool) -> Option<Vec<PodId>> {
        let offer = self.offer(cx, group, &[], aim);
        let found = search(cx, &offer);
        let found = if uniform { found } else { found.or_else(|| Self::hardest_first(cx, &offer)) };
        if found.is_some() {
            // Each other order that is tried is a further cycle.
            self.note_cycle(cx, group, &offer);
        }
        found
    }

    /// Offers kinds that found no place before all others, the latest first: whoever fits in few places only comes before those
    /// who took them. `None` leaves nothing held.
    fn hardest_first(cx: &mut Context<'_>, offer: &Offer) -> Option<Vec<PodId>> {
        let all: Vec<PodId> = offer.needed().collect();
        let one = cx.world.pod(*all.first()?)?;
        let (first, kinds) = (offer.kind(cx.world, one), &offer.refusals);
        let like_first = |pod: &Pod| one.is_of_template(pod) || kinds.is(cx.world, &first, pod);
        if all.iter().all(|id| cx.world.pod(*id).is_none_or(like_first)) {
            return None;
        }
        let mut choosy: Vec<Kind> = Vec::new();
        for _ in 0..HARDEST_FIRST {
            let rank = |id: &PodId| {
                let pod = cx.world.pod(*id);
                let at = pod.and_then(|pod| choosy.iter().rposition(|kind| kinds.is(cx.world, kind, pod)));
                std::cmp::Reverse(at.map_or(0, |at| at + 1))
            };
            let mut order = all.clone();
            order.sort_by_key(rank);
            let mut held = Vec::new();
            let miss = order.into_iter().find(|id| match Self::try_member(cx, *id) {
                Ok(()) => {
                    held.push(*id);
                    false
                }
                Err(_) => true,
            });
            let Some(miss) = miss else { return Some(held) };
            let none = held.is_empty();
            Reservations::undo(cx, &held);
            let kind = offer.kind(cx.world, cx.world.pod(miss)?);
            if none || choosy.last() == Some(&kind) {
                return None;
            }
            choosy.retain(|known| *known != kind);
            choosy.push(kind);
        }
        None
    }

    fn attempt_accumulating(&mut self, cx: &mut Context<'_>, group: &GroupId, aim: Aim) -> Attempt {
        let failed = self.groups.get(group).map(|record| record.failed.clone()).unwrap_or_default();
        let offer = self.offer(cx, group, &failed, aim);
        let mut blocked: Vec<Kind> = Vec::new();
        let mut first: Option<Miss> = None;
        for gang in &offer.gangs {
            let mut needed = gang.needed;
            for id in &gang.pending {
                if needed == 0 {
                    break;
                }
                if cx.world.pod(*id).is_none_or(|pod| offer.is_any(cx.world, &blocked, pod)) {
                    continue;
                }
                match Self::try_member(cx, *id) {
                    Ok(()) => needed -= 1,
                    Err(miss) => {
                        blocked.extend(cx.world.pod(*id).map(|pod| offer.kind(cx.world, pod)));
                        note(&mut first, miss);
                    }
                }
            }
        }
        self.note_cycle(cx, group, &offer);
        if self.offer(cx, group, &[], aim).is_satisfied() {
            let mut held = held_members(cx, group);
            self.place_surplus(cx, group, aim, &mut held);
            return Attempt::Satisfied(held);
        }
        // What is held may stand in the way of what is not: all of the group is planned anew.
        let holdings = Holdings::take(cx, group);
        if let Some(mut held) = self.another_way(cx, group, aim, false) {
            self.place_surplus(cx, group, aim, &mut held);
            return Attempt::Satisfied(held);
        }
        holdings.put(cx);
        if let Some(record) = self.groups.get_mut(group) {
            record.failed = blocked;
        }
        let nobody = || Miss::of(PodId(u64::MAX), "no member could be offered".to_owned(), Wake::ANY);
        Attempt::Short(first.unwrap_or_else(nobody))
    }

    /// Members beyond the minimum, once the group is satisfied: whoever finds a place comes along, the others wait.
    fn place_surplus(&mut self, cx: &mut Context<'_>, group: &GroupId, aim: Aim, held: &mut Vec<PodId>) {
        let aim = if matches!(aim, Aim::Rest(_)) { aim } else { Aim::Surplus };
        let offer = self.offer(cx, group, &[], aim);
        let mut blocked: Vec<Kind> = Vec::new();
        for id in offer.all() {
            if cx.world.pod(id).is_none_or(|pod| offer.is_any(cx.world, &blocked, pod)) {
                continue;
            }
            match Self::try_member(cx, id) {
                Ok(()) => held.push(id),
                Err(_) => blocked.extend(cx.world.pod(id).map(|pod| offer.kind(cx.world, pod))),
            }
        }
    }

    /// Chooses a node for one member and reserves its room.
    pub fn try_member(cx: &mut Context<'_>, id: PodId) -> Result<(), Miss> {
        let miss = |text: String, wake: Wake| Miss::of(id, text, wake);
        let Some(priority) = cx.world.pod(id).map(|pod| pod.facts.spec.priority) else {
            return Err(miss("the pod is gone".to_owned(), Wake::NONE));
        };
        cx.stats.attempts += 1;
        let pinned = cx.reservations.pinned(id);
        let (found, unpinned) = Preemption::with_nominated(cx, priority, id, |cx| {
            // Under the lock that it holds, if that can be; elsewhere the lock would stand until it counts as abandoned.
            let there = pinned.and_then(|_| cx.choose(id, pinned));
            let there = there.filter(|(choice, _)| matches!(choice, Choice::Node(..)));
            let unpinned = pinned.is_some() && there.is_none();
            (there.or_else(|| cx.choose(id, None)), unpinned)
        });
        if unpinned {
            // It cannot be resumed there: the lock is released when it has stood for a while.
            cx.reservations.unpin(id);
        }
        let Some((choice, judged)) = found else { return Err(miss("the pod is gone".to_owned(), Wake::NONE)) };
        cx.stats.judged += judged;
        match choice {
            Choice::Node(node, slots) => {
                if Reservations::reserve(cx, id, node, *slots) {
                    Ok(())
                } else {
                    Err(miss("a reservation was refused".to_owned(), Wake::ANY))
                }
            }
            Choice::Nowhere(diagnosis) => Err(miss(diagnosis.message(), diagnosis.wake)),
            Choice::WaitUntil(_, refusal) => Err(miss(refusal.text.into_owned(), Wake::ANY)),
            Choice::Fault(text) => Err(miss(text.into_owned(), Wake::ANY)),
        }
    }

    /// Held members whose node or devices are not what they were, or whose node would not take them any more.
    pub fn drop_outdated(&mut self, cx: &mut Context<'_>, group: &GroupId) {
        for id in held_members(cx, group) {
            if cx.reservations.is_outdated(cx.world, id) {
                Reservations::release(cx, id);
                continue;
            }
            let Some(saved) = Reservations::save(cx, id) else { continue };
            let choice = cx.world.pod(id).map(|pod| choose(cx.view(), cx.rules, pod, Some(saved.node())).0);
            if matches!(choice, Some(Choice::Node(..))) {
                Reservations::restore(cx, saved);
            } else {
                cx.wake(Wake::POD_FREED);
            }
        }
        let none = held_members(cx, group).is_empty();
        if let Some(record) = self.groups.get_mut(group).filter(|record| none && record.holding.is_some()) {
            // All of it is released: whoever is held next waits from then on.
            record.holding = None;
            record.progress.holding_since = None;
            if cx.config.gangs.clock == TimeoutClock::Holding {
                record.clock = None;
            }
        }
    }

    /// Every member was offered in this cycle: the next one opens, and no member has failed in it.
    fn note_cycle(&mut self, cx: &mut Context<'_>, group: &GroupId, offer: &Offer) {
        let Some(record) = self.groups.get_mut(group) else { return };
        let progress = &mut record.progress;
        let cycle = progress.cycle;
        progress.rounds.extend(offer.all().map(|id| (id, cycle)));
        let members: u32 = cx.world.gangs().of_group(group).map(|gang| gang.counts().all()).sum();
        if progress.rounds.len() > members as usize {
            progress.rounds.retain(|id, _| cx.world.pod(*id).is_some());
        }
        progress.cycle += 1;
        progress.cycle_valid = true;
    }
}

/// A bound member that was chosen to make room for others, and whose deletion is yet to be seen: where that does not come
/// about, the group goes on without waiting for it from the time that is answered.
fn leaving_member(cx: &Context<'_>, group: &GroupId) -> Option<(PodId, Duration)> {
    let young = cx.preemption.all().values().map(|nomination| (nomination, nomination.since + LEAVING));
    let young = young.filter(|(_, until)| cx.now.mono < *until);
    let victims = young.flat_map(|(nomination, until)| nomination.victims.iter().map(move |uid| (uid, until)));
    let bound = |id: &PodId| {
        let pod = cx.world.pod(*id).filter(|pod| MemberState::of(pod).is_bound());
        pod.is_some() && cx.world.gangs().gang_of(*id).is_some_and(|gang| gang.group() == group)
    };
    let leaving = victims.filter_map(|(uid, until)| Some((cx.world.pod_id(uid).filter(bound)?, until)));
    leaving.max_by_key(|(_, until)| *until)
}

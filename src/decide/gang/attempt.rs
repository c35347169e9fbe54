//! One attempt of a group: a transaction on the world.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::contract::gang::{Committed, GangId, Mode};
use crate::decide::scheduler::effect::Effects;
use crate::decide::scheduler::engine::Engine;
use crate::decide::scheduler::queue::Item;
use crate::decide::scheduler::rules::View;
use crate::decide::scheduler::select::choose::{Choice, choose};
use crate::decide::scheduler::settings::{Moment, Search};
use crate::decide::world::gangs::{Gang, GroupId, MemberState, rule};
use crate::decide::world::{NodeId, Pod, PodId, Wake};

use super::alike::{Kind, is_twin, looks_at_others};
use super::offer::{Aim, Offer};
use super::record::{Look, TimeoutClock};
use super::search::MEMBERS;
use super::short::Miss;

/// Orders that are tried with whoever is hard to place first.
const CHOOSY: usize = 8;
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
pub(in crate::decide) enum Attempt {
    /// Every gang of the group has what it needs; these members are held for it.
    Satisfied(Vec<PodId>),
    /// The first member that found no place.
    Short(Miss),
}

impl Engine {
    /// Tries a group that was popped from the queue.
    pub(in crate::decide) fn attempt_group(&mut self, group: &GroupId, now: Moment, effects: &mut Effects) {
        self.try_group(group, true, now, effects);
        // What the attempt itself has moved is no news; what it did to other groups is.
        self.world.settle_changed_gangs(group);
        self.after_attempt(group, now, effects);
    }

    /// Tries a group; `resolve`: lower holders may have to give way.
    pub(in crate::decide) fn try_group(&mut self, group: &GroupId, resolve: bool, now: Moment, effects: &mut Effects) {
        let item = Item::Group(group.clone());
        let owing = self.who_owes(group);
        if !owing.is_empty()
            && let Some(commit) = self.broken_commit(group)
            && self.complete_commit(group, commit, now, effects)
        {
            return;
        }
        let once = self.satisfied_once(group);
        let book = self.world.gangs();
        let gangs = || book.of_group(group).filter(|gang| gang.group() == group);
        let held = self.why_held(group).next().is_some();
        let over = gangs().all(|gang| rule::is_over(gang.config().policy, once));
        let marking = self.groups.get(group).is_some_and(|record| !record.marking.is_empty());
        if held || over || marking || !self.groups.contains_key(group) {
            if owing.is_empty() {
                self.queue.remove(item);
                return;
            }
            self.queue.park(item, Wake::ANY, now.mono, now.wall);
            let looks: Vec<Look> = self.world.gangs().of_group(group).map(Look::of).collect();
            if let Some(record) = self.groups.get_mut(group) {
                record.tried = Some(looks);
            }
            self.make_room_for_rest(group, owing, now, effects);
            return;
        }
        if let Some((pod, until)) = self.leaving_member(group, now) {
            // Whoever is about to leave still counts as bound: nobody joins them. Their deletion is seen soon.
            let text = "is about to make room for others, and nobody joins it".to_owned();
            self.short(group, Miss::of(pod, text, Wake::ANY), now, effects);
            return self.queue.hurry(item, until);
        }
        self.stats.group_attempts += 1;
        self.drop_outdated(group, now);
        if let Some(record) = self.groups.get_mut(group) {
            record.progress.attempts += 1;
            if self.queue.failures(item) == 0 {
                // A useful event has come since.
                record.failed.clear();
            }
        }
        match self.attempt_once(group, now) {
            Attempt::Satisfied(held) => {
                let nobody = held.is_empty();
                self.commit_group(group, held, None, now, effects);
                if nobody {
                    self.tell_surplus(group, now, effects);
                }
            }
            Attempt::Short(miss) => {
                if resolve && self.resolve_holders(group, now, effects) {
                    return;
                }
                if self.preempt_for_group(group, now, effects) {
                    let text = format!("{}; others make room", miss.text);
                    return self.short(group, Miss { text, ..miss }, now, effects);
                }
                self.short(group, miss, now, effects);
            }
        }
    }

    /// A bound member that was chosen to make room for others, and whose deletion is yet to be seen: where that does not come
    /// about, the group goes on without waiting for it from the time that is answered.
    fn leaving_member(&self, group: &GroupId, now: Moment) -> Option<(PodId, Duration)> {
        let young = self.nominations.values().map(|nomination| (nomination, nomination.since + LEAVING));
        let young = young.filter(|(_, until)| now.mono < *until);
        let victims = young.flat_map(|(nomination, until)| nomination.victims.iter().map(move |uid| (uid, until)));
        let bound = |id: &PodId| {
            let pod = self.world.pod(*id).filter(|pod| MemberState::of(pod).is_bound());
            pod.is_some() && self.world.gangs().gang_of(*id).is_some_and(|gang| gang.group() == group)
        };
        let leaving = victims.filter_map(|(uid, until)| Some((self.world.pod_id(uid).filter(bound)?, until)));
        leaving.max_by_key(|(_, until)| *until)
    }

    /// One attempt in the group's mode, without consequences beside what it holds.
    pub(in crate::decide) fn attempt_once(&mut self, group: &GroupId, now: Moment) -> Attempt {
        if let Some(miss) = self.missing_resources(group) {
            return Attempt::Short(miss);
        }
        let aim = Aim::Minimum { once: self.satisfied_once(group) };
        if self.is_strict(group) {
            self.attempt_strict(group, aim, now)
        } else {
            self.attempt_accumulating(group, aim, now)
        }
    }

    /// Places the rest of a commit that broke off: all that the group still needs, or else whoever finds a place. `false` when
    /// nobody of them does.
    fn complete_commit(&mut self, group: &GroupId, commit: Committed, now: Moment, effects: &mut Effects) -> bool {
        let gangs = self.world.gangs().of_group(group).filter(|gang| gang.group() == group);
        let bound: u32 = gangs.filter_map(|gang| gang.commits().get(&commit)).sum();
        let rest = commit.members.saturating_sub(bound) as usize;
        let mut held = match self.attempt_strict(group, Aim::Rest(commit), now) {
            Attempt::Satisfied(held) => held,
            Attempt::Short(_) => {
                let offer = self.offer(group, &[], Aim::Rest(commit));
                offer.needed().filter(|id| self.try_member(*id, now).is_ok()).collect()
            }
        };
        // The best come first: whoever was not needed and is more than was decided waits.
        let more = held.split_off(rest.min(held.len()));
        self.undo(&more);
        if held.is_empty() {
            return false;
        }
        self.commit_group(group, held, Some(commit), now, effects);
        true
    }

    /// Members that owe find no place, and no rule is left that would make room for them: as for pods by themselves, lower groups
    /// that only hold room give way, or else pods of lower priority leave, for one member at a time.
    fn make_room_for_rest(&mut self, group: &GroupId, owing: Vec<PodId>, now: Moment, effects: &mut Effects) {
        let mut message = format!("there is no room yet for the rest of group {group}, a part of which is bound");
        if let Some((first, commit)) = owing.first().copied().zip(self.broken_commit(group)) {
            let below = self.holders_below(self.priority_of(group));
            let attempt = |engine: &mut Self| engine.try_member(first, now).ok();
            if let Some(((), released)) = self.give_way(&below, attempt, |engine| engine.undo(&[first])) {
                self.tell_released(&released, &format!("the rest of group {group} goes first"), effects);
                self.commit_group(group, vec![first], Some(commit), now, effects);
                return released.iter().rev().for_each(|last| self.try_group(last, false, now, effects));
            }
            if let Some(way) = self.preempt(first, now, effects) {
                message = format!("{message}; {way}");
            }
        }
        self.tell_members(owing, "Unschedulable", message, now, effects);
    }

    /// Strict if any of its gangs is.
    pub(in crate::decide) fn is_strict(&self, group: &GroupId) -> bool {
        self.world.gangs().of_group(group).any(|gang| gang.config().mode == Mode::Strict)
    }

    fn attempt_strict(&mut self, group: &GroupId, aim: Aim, now: Moment) -> Attempt {
        let mut failed = self.groups.get(group).map(|record| record.failed.clone()).unwrap_or_default();
        let mut told: Option<Miss> = None;
        let (mut uniform, mut members) = (false, 0);
        let mut most: BTreeMap<GangId, u32> = BTreeMap::new();
        for _ in 0..CYCLES {
            let offer = self.offer(group, &failed, aim);
            (uniform, members) = (offer.is_uniform(), offer.len());
            let mut held = Vec::new();
            let mut miss = None;
            for id in offer.needed() {
                match self.try_member(id, now) {
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
            self.note_cycle(group, &offer);
            let Some(miss) = miss else {
                if held.len() < offer.len() {
                    self.place_surplus(group, aim, &mut held, now);
                }
                return Attempt::Satisfied(held);
            };
            let found = self.by_gang(&held);
            if found.values().sum::<u32>() > most.values().sum::<u32>() {
                most = found;
            }
            self.undo(&held);
            let culprit = self.world.pod(miss.pod);
            // Behind the others, whoever looks at other pods may find whom it wants to be near to.
            let other_order =
                culprit.is_some_and(|pod| looks_at_others(pod) && !offer.is_any(&self.world, &failed, pod));
            failed.extend(culprit.map(|pod| offer.kind(&self.world, pod)));
            // The one without which it does not suffice any more is told; whatever may turn any of them is worth another try.
            let wake = told.map_or(miss.wake, |before: Miss| before.wake.or(miss.wake));
            told = Some(Miss { wake, ..miss });
            if !other_order && !offer.suffices_without(&self.world, &failed) {
                break;
            }
        }
        // Of many that are alike, whoever is tried first is as good as any other.
        let hopeless = uniform && members > MEMBERS;
        if !hopeless && let Some(mut held) = self.another_way(group, aim, uniform, now) {
            self.place_surplus(group, aim, &mut held, now);
            return Attempt::Satisfied(held);
        }
        if let Some(record) = self.groups.get_mut(group) {
            record.failed = failed;
        }
        let nobody = || Miss::of(PodId(u64::MAX), "no member could be offered".to_owned(), Wake::ANY);
        Attempt::Short(Miss { found: most, ..told.unwrap_or_else(nobody) })
    }

    /// How many of these pods each gang has.
    pub(in crate::decide) fn by_gang(&self, pods: &[PodId]) -> BTreeMap<GangId, u32> {
        let mut counts = BTreeMap::new();
        for gang in pods.iter().filter_map(|id| self.world.gangs().gang_of(*id)) {
            match counts.get_mut(gang.id()) {
                Some(count) => *count += 1,
                None => drop(counts.insert(gang.id().clone(), 1)),
            }
        }
        counts
    }

    /// Whoever may be offered, counted.
    pub(in crate::decide) fn offer(&mut self, group: &GroupId, failed: &[Kind], aim: Aim) -> Offer {
        let offer = Offer::of(&self.world, group, failed, aim);
        self.stats.group_offered += offer.len() as u64;
        offer
    }

    /// What no order of failing last has found: the exact search, then whoever is hard to place first. `uniform`: all that wait are
    /// of one kind, whose order does not matter.
    fn another_way(&mut self, group: &GroupId, aim: Aim, uniform: bool, now: Moment) -> Option<Vec<PodId>> {
        let offer = self.offer(group, &[], aim);
        let found = self.search(&offer, now);
        let found = if uniform { found } else { found.or_else(|| self.choosy_first(&offer, now)) };
        if found.is_some() {
            // Each other order that is tried is a further cycle.
            self.note_cycle(group, &offer);
        }
        found
    }

    /// Offers kinds that found no place before all others, the latest first: whoever fits in few places only comes before those
    /// who took them. `None` leaves nothing held.
    fn choosy_first(&mut self, offer: &Offer, now: Moment) -> Option<Vec<PodId>> {
        let all: Vec<PodId> = offer.needed().collect();
        let one = self.world.pod(*all.first()?)?;
        let (first, kinds) = (offer.kind(&self.world, one), &offer.refusals);
        let like_first = |pod: &Pod| is_twin(one, pod) || kinds.is(&self.world, &first, pod);
        if all.iter().all(|id| self.world.pod(*id).is_none_or(like_first)) {
            return None;
        }
        let mut choosy: Vec<Kind> = Vec::new();
        for _ in 0..CHOOSY {
            let rank = |id: &PodId| {
                let pod = self.world.pod(*id);
                let at = pod.and_then(|pod| choosy.iter().rposition(|kind| kinds.is(&self.world, kind, pod)));
                std::cmp::Reverse(at.map_or(0, |at| at + 1))
            };
            let mut order = all.clone();
            order.sort_by_key(rank);
            let mut held = Vec::new();
            let miss = order.into_iter().find(|id| match self.try_member(*id, now) {
                Ok(()) => {
                    held.push(*id);
                    false
                }
                Err(_) => true,
            });
            let Some(miss) = miss else { return Some(held) };
            let none = held.is_empty();
            self.undo(&held);
            let kind = offer.kind(&self.world, self.world.pod(miss)?);
            if none || choosy.last() == Some(&kind) {
                return None;
            }
            choosy.retain(|known| *known != kind);
            choosy.push(kind);
        }
        None
    }

    fn attempt_accumulating(&mut self, group: &GroupId, aim: Aim, now: Moment) -> Attempt {
        let failed = self.groups.get(group).map(|record| record.failed.clone()).unwrap_or_default();
        let offer = self.offer(group, &failed, aim);
        let mut blocked: Vec<Kind> = Vec::new();
        let mut first: Option<Miss> = None;
        for gang in &offer.gangs {
            let mut needed = gang.needed;
            for id in &gang.pending {
                if needed == 0 {
                    break;
                }
                if self.world.pod(*id).is_none_or(|pod| offer.is_any(&self.world, &blocked, pod)) {
                    continue;
                }
                match self.try_member(*id, now) {
                    Ok(()) => needed -= 1,
                    Err(miss) => {
                        blocked.extend(self.world.pod(*id).map(|pod| offer.kind(&self.world, pod)));
                        note(&mut first, miss);
                    }
                }
            }
        }
        self.note_cycle(group, &offer);
        if self.offer(group, &[], aim).is_satisfied() {
            let mut held = self.held_members(group);
            self.place_surplus(group, aim, &mut held, now);
            return Attempt::Satisfied(held);
        }
        // What is held may stand in the way of what is not: all of the group is planned anew.
        let holdings = self.take_holdings(group);
        if let Some(mut held) = self.another_way(group, aim, false, now) {
            self.place_surplus(group, aim, &mut held, now);
            return Attempt::Satisfied(held);
        }
        self.put_holdings(holdings);
        if let Some(record) = self.groups.get_mut(group) {
            record.failed = blocked;
        }
        let nobody = || Miss::of(PodId(u64::MAX), "no member could be offered".to_owned(), Wake::ANY);
        Attempt::Short(first.unwrap_or_else(nobody))
    }

    /// Members beyond the minimum, once the group is satisfied: whoever finds a place comes along, the others wait.
    fn place_surplus(&mut self, group: &GroupId, aim: Aim, held: &mut Vec<PodId>, now: Moment) {
        let aim = if matches!(aim, Aim::Rest(_)) { aim } else { Aim::Surplus };
        let offer = self.offer(group, &[], aim);
        let mut blocked: Vec<Kind> = Vec::new();
        for id in offer.all() {
            if self.world.pod(id).is_none_or(|pod| offer.is_any(&self.world, &blocked, pod)) {
                continue;
            }
            match self.try_member(id, now) {
                Ok(()) => held.push(id),
                Err(_) => blocked.extend(self.world.pod(id).map(|pod| offer.kind(&self.world, pod))),
            }
        }
    }

    /// Chooses a node for one member and holds its room.
    pub(in crate::decide) fn try_member(&mut self, id: PodId, now: Moment) -> Result<(), Miss> {
        let miss = |text: String, wake: Wake| Miss::of(id, text, wake);
        let Some(priority) = self.world.pod(id).map(|pod| pod.facts.spec.priority) else {
            return Err(miss("the pod is gone".to_owned(), Wake::NONE));
        };
        self.stats.attempts += 1;
        let shadows = self.shadow(priority, id, now);
        let pinned = self.pinned.get(&id).copied();
        let mut choose_on = |only: Option<NodeId>| {
            let pod = self.world.pod(id)?;
            let view = View { world: &self.world, now: now.mono };
            Some(match self.config.search {
                Search::Indexed => self.index.choose(view, &self.plugins, pod, only),
                Search::Scanning => choose(view, &self.plugins, pod, only),
            })
        };
        // Under the lock that it holds, if that can be; elsewhere the lock would stand until it counts as abandoned.
        let there = pinned.and_then(|_| choose_on(pinned)).filter(|(choice, _)| matches!(choice, Choice::Node(..)));
        let gone = pinned.is_some() && there.is_none();
        let found = there.or_else(|| choose_on(None));
        self.lift(shadows);
        if gone {
            // It cannot be resumed there: the lock goes when it has stood for a while.
            self.pinned.remove(&id);
        }
        let Some((choice, judged)) = found else { return Err(miss("the pod is gone".to_owned(), Wake::NONE)) };
        self.stats.judged += judged;
        match choice {
            Choice::Node(node, slots) => {
                if self.hold(id, node, *slots, now) {
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

    /// Gives back what this attempt took. Nobody is woken: nothing was ever visible.
    pub(in crate::decide) fn undo(&mut self, held: &[PodId]) {
        for id in held.iter().rev() {
            if let Some(hold) = self.holds.remove(id) {
                self.give_back(*id, hold.node);
            }
        }
    }

    /// Members of this group that are held and not on their way.
    pub(in crate::decide) fn held_members(&self, group: &GroupId) -> Vec<PodId> {
        let gangs = self.world.gangs().of_group(group).filter(|gang| gang.counts().reserved > 0);
        let reserved = gangs.flat_map(Gang::members).filter(|member| member.state == MemberState::Reserved);
        let ours = |id: &PodId| self.holds.get(id).is_some_and(|hold| hold.group.as_ref() == Some(group));
        reserved.map(|member| member.pod).filter(ours).collect()
    }

    /// Held members whose node or devices are not what they were, or whose node would not take them any more.
    pub(in crate::decide) fn drop_outdated(&mut self, group: &GroupId, now: Moment) {
        for id in self.held_members(group) {
            let Some(node) = self.holds.get(&id).map(|hold| hold.node) else { continue };
            if self.hold_outdated(id, node) {
                self.let_go(id);
                continue;
            }
            let Some(kept) = self.take_kept(id) else { continue };
            let view = View { world: &self.world, now: now.mono };
            let choice = self.world.pod(id).map(|pod| choose(view, &self.plugins, pod, Some(node)).0);
            if matches!(choice, Some(Choice::Node(..))) {
                self.put_kept(kept);
            } else {
                self.woken(Wake::POD_FREED);
            }
        }
        let none = self.held_members(group).is_empty();
        if let Some(record) = self.groups.get_mut(group).filter(|record| none && record.holding.is_some()) {
            // All of it is released: whoever is held next waits from then on.
            record.holding = None;
            record.progress.holding_since = None;
            if self.config.gangs.clock == TimeoutClock::Holding {
                record.clock = None;
            }
        }
    }

    /// Every member was offered in this cycle: the next one opens, and no member has failed in it.
    fn note_cycle(&mut self, group: &GroupId, offer: &Offer) {
        let Some(record) = self.groups.get_mut(group) else { return };
        let progress = &mut record.progress;
        let cycle = progress.cycle;
        progress.rounds.extend(offer.all().map(|id| (id, cycle)));
        let members: u32 = self.world.gangs().of_group(group).map(|gang| gang.counts().all()).sum();
        if progress.rounds.len() > members as usize {
            progress.rounds.retain(|id, _| self.world.pod(*id).is_some());
        }
        progress.cycle += 1;
        progress.cycle_valid = true;
    }
}

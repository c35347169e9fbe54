//! Groups that accumulate reservations can block each other forever. The group of the highest rank gets what it lacks from those
//! of the lowest: they release their reservations, one group at a time. Bindings are never taken back.

use std::cmp::Reverse;
use std::time::Duration;

use super::trying::try_member;
use crate::core::agenda::{Agenda, Scene, Step};
use crate::core::context::Context;
use crate::core::placing::Placing;
use crate::core::reservations::Reservations;
use crate::world::gangs::GroupId;
use crate::world::{PodId, Wake, World};

use super::alike::MemberKind;
use super::attempt::Attempt;
use super::members::{SavedGroup, priority_of, waiting};
use super::{Gangs, GroupRecord};
use baton_contract::EventReason;

/// Higher priority first, then the longest holding, then by id. The smaller one ranks higher.
type HolderRank = (Reverse<i32>, Duration, GroupId);

/// A group before it is tried: its reservations, which an attempt may move to other nodes, and the kinds that have failed.
struct Trial {
    own: SavedGroup,
    failed: Vec<MemberKind>,
}

impl Trial {
    fn attempt(&self, gangs: &mut Gangs, placing: &mut Placing<'_>) -> Option<Vec<PodId>> {
        let Attempt::Satisfied(held) = gangs.attempt_once(placing, self.own.group()) else { return None };
        Some(held)
    }

    fn restore(&self, gangs: &mut Gangs, placing: &mut Placing<'_>) {
        SavedGroup::take(placing, self.own.group());
        self.own.clone().put(placing);
        if let Some(record) = gangs.groups.get_mut(self.own.group()) {
            record.attempt.failed.clone_from(&self.failed);
        }
    }
}

impl Gangs {
    /// A group could not be satisfied. When reservations of unsatisfied groups of lower rank are the reason, these groups release
    /// them, the lowest first, and all of these groups are tried again in rank order. `true` when the group is satisfied.
    pub(super) fn resolve_holders(&mut self, cx: &mut Context<'_>, group: &GroupId) -> bool {
        let holders = self.holders(cx.world);
        let own = holders.iter().find(|(_, _, id)| id == group).cloned();
        let above = holders.iter().take_while(|rank| own.is_some() && Some(*rank) != own.as_ref());
        for (at, (.., upper)) in above.enumerate() {
            if cx.agenda.stats.work.is_half_spent() {
                // The other half is for the group itself.
                break;
            }
            let below: Vec<GroupId> = holders[at + 1..].iter().map(|(.., id)| id.clone()).collect();
            if self.would_help(&mut cx.placing(), upper, &below) {
                // A group of higher rank that can be satisfied this way goes first.
                return false;
            }
        }
        let priority = priority_of(cx.world, group);
        let below: Vec<GroupId> = holders
            .iter()
            .filter(|rank| match &own {
                Some(own) => *rank > own,
                // A group without reservations outranks lower priority only.
                None => rank.0.0 < priority,
            })
            .map(|(.., id)| id.clone())
            .collect();
        if below.is_empty() {
            return false;
        }
        let trial = self.trial(cx.world, cx.reservations, group);
        let attempt = |gangs: &mut Self, placing: &mut Placing<'_>| trial.attempt(gangs, placing);
        let restore = |gangs: &mut Self, placing: &mut Placing<'_>| trial.restore(gangs, placing);
        let Some((held, released)) = self.give_way(&mut cx.placing(), &below, attempt, restore) else { return false };
        self.report_released(cx.terms.scene(cx.world), cx.agenda, &released, &format!("group {group} goes first"));
        self.commit_group(cx, group, held, None);
        for next in &below {
            if !released.contains(next) {
                self.try_group(cx, next, true);
            }
        }
        for last in released.iter().rev() {
            self.try_group(cx, last, false);
        }
        true
    }

    /// A pod without a gang fits no node: groups of lower priority release their reservations. `true` when the pod is reserved now.
    pub fn resolve_for_pod(&mut self, cx: &mut Context<'_>, id: PodId) -> bool {
        if cx.reservations.all().is_empty() {
            return false;
        }
        let Some(pod) = cx.world.pod(id) else { return false };
        let (priority, key) = (pod.facts.spec.priority, pod.key().clone());
        let below = self.holders_below(cx.world, priority);
        let attempt = |_: &mut Self, placing: &mut Placing<'_>| try_member(placing, id).ok();
        let restore =
            |_: &mut Self, placing: &mut Placing<'_>| placing.reservations.undo(placing.terms, placing.world, &[id]);
        let Some(((), released)) = self.give_way(&mut cx.placing(), &below, attempt, restore) else { return false };
        self.report_released(cx.terms.scene(cx.world), cx.agenda, &released, &format!("pod {key} goes first"));
        self.commit_alone(cx.terms.scene(cx.world), cx.reservations, cx.agenda, id);
        cx.agenda.steps.push(Step::Permit(id));
        for last in released.iter().rev() {
            self.try_group(cx, last, false);
        }
        true
    }

    /// Releases the reservations of groups, the last of `below` first, until `attempt` succeeds; where the attempts cost too much, all
    /// others at once. When not even all of them help, nothing changes. `restore` undoes what an attempt did, also when it only moved a
    /// reservation. Returns the result of the attempt, and the groups that gave way.
    pub(super) fn give_way<T>(
        &mut self,
        placing: &mut Placing<'_>,
        below: &[GroupId],
        mut attempt: impl FnMut(&mut Self, &mut Placing<'_>) -> Option<T>,
        mut restore: impl FnMut(&mut Self, &mut Placing<'_>),
    ) -> Option<(T, Vec<GroupId>)> {
        if below.is_empty() || !self.helps(placing, below, &mut attempt, &mut restore) {
            return None;
        }
        let mut taken = Vec::new();
        for (at, group) in below.iter().enumerate().rev() {
            taken.push(SavedGroup::take(placing, group));
            match at {
                0 => placing.stats.work.begin(),
                _ if placing.stats.work.is_half_spent() => continue,
                _ => {}
            }
            if let Some(done) = attempt(self, placing) {
                return Some((done, taken.into_iter().map(|holdings| holdings.group().clone()).collect()));
            }
            restore(self, placing);
        }
        for holdings in taken.into_iter().rev() {
            holdings.put(placing);
        }
        None
    }

    /// `true` when `attempt` succeeds once all of `below` give way. Nothing changes.
    fn helps<T>(
        &mut self,
        placing: &mut Placing<'_>,
        below: &[GroupId],
        attempt: &mut impl FnMut(&mut Self, &mut Placing<'_>) -> Option<T>,
        restore: &mut impl FnMut(&mut Self, &mut Placing<'_>),
    ) -> bool {
        let all: Vec<SavedGroup> = below.iter().map(|group| SavedGroup::take(placing, group)).collect();
        let helps = attempt(self, placing).is_some();
        restore(self, placing);
        for holdings in all {
            holdings.put(placing);
        }
        helps
    }

    /// `true` when a group would be satisfied if all of `below` gave way.
    fn would_help(&mut self, placing: &mut Placing<'_>, group: &GroupId, below: &[GroupId]) -> bool {
        let shown = self.groups.get(group).map(|record| record.progress.clone());
        let trial = self.trial(placing.world, placing.reservations, group);
        let mut attempt = |gangs: &mut Self, placing: &mut Placing<'_>| trial.attempt(gangs, placing);
        let mut restore = |gangs: &mut Self, placing: &mut Placing<'_>| trial.restore(gangs, placing);
        let helps = self.helps(placing, below, &mut attempt, &mut restore);
        // This does not count as an attempt: the group was not popped from the queue.
        if let (Some(record), Some(shown)) = (self.groups.get_mut(group), shown) {
            record.progress = shown;
        }
        helps
    }

    fn trial(&self, world: &World, reservations: &Reservations, group: &GroupId) -> Trial {
        let failed = self.groups.get(group).map(|record| record.attempt.failed.clone()).unwrap_or_default();
        Trial { own: SavedGroup::copy(world, reservations, group), failed }
    }

    /// Reports that these groups released their reservations.
    pub(super) fn report_released(&mut self, scene: Scene<'_>, agenda: &mut Agenda, released: &[GroupId], why: &str) {
        agenda.wake(Wake::POD_FREED);
        for group in released {
            agenda.stats.groups.releases += 1;
            if let Some(record) = self.groups.get_mut(group) {
                record.stop_waiting();
            }
            let first =
                waiting(scene.world, &scene.terms.config.scheduler_names, group).next().map(|member| member.pod);
            if let Some(first) = first {
                let message = format!("group {group} gave its room back: {why}");
                agenda.warning(scene.world, first, EventReason::GangHoldReleased, message);
            }
        }
    }

    /// Unsatisfied groups with reservations, in rank order.
    fn holders(&self, world: &World) -> Vec<HolderRank> {
        let rank = |(group, record): (&GroupId, &GroupRecord)| {
            let since = record.waits.held?;
            Some((Reverse(priority_of(world, group)), since, group.clone()))
        };
        let mut ranks: Vec<HolderRank> = self.groups.iter().filter_map(rank).collect();
        ranks.sort();
        ranks
    }

    /// Unsatisfied groups of strictly lower priority with reservations, in rank order.
    pub(super) fn holders_below(&self, world: &World, priority: i32) -> Vec<GroupId> {
        self.holders(world).into_iter().filter(|rank| rank.0.0 < priority).map(|(.., id)| id).collect()
    }
}

//! Groups that accumulate reservations can block each other for ever. The first of them in rank gets what it lacks from the
//! last ones: reservations are given back one group at a time, never Bindings.

use std::cmp::Reverse;
use std::time::Duration;

use crate::decide::scheduler::context::{Context, Step};
use crate::decide::scheduler::reservations::Reservations;
use crate::decide::world::gangs::GroupId;
use crate::decide::world::{PodId, Wake};

use super::Gangs;
use super::alike::Kind;
use super::attempt::Attempt;
use super::members::{Holdings, priority_of, waiting};

/// Higher priority first, then the longest holding, then by id. Smaller goes first.
type Rank = (Reverse<i32>, Duration, GroupId);

/// A group as it stands before it is tried: what it holds, which an attempt may move to other nodes, and what is known to have
/// failed.
struct Trial {
    own: Holdings,
    failed: Vec<Kind>,
}

impl Trial {
    fn attempt(&self, gangs: &mut Gangs, cx: &mut Context<'_>) -> Option<Vec<PodId>> {
        match gangs.attempt_once(cx, self.own.group()) {
            Attempt::Satisfied(held) => Some(held),
            Attempt::Short(_) => None,
        }
    }

    fn restore(&self, gangs: &mut Gangs, cx: &mut Context<'_>) {
        Holdings::take(cx, self.own.group());
        self.own.clone().put(cx);
        if let Some(record) = gangs.groups.get_mut(self.own.group()) {
            record.failed.clone_from(&self.failed);
        }
    }
}

impl Gangs {
    /// A group could not be satisfied. When that is only for what unsatisfied groups of lower rank hold, they give way, the
    /// last one first, and every group that had to do with it is tried again in rank order. `true` when the group is satisfied.
    pub fn resolve_holders(&mut self, cx: &mut Context<'_>, group: &GroupId) -> bool {
        let holders = self.holders(cx);
        let own = holders.iter().find(|(_, _, id)| id == group).cloned();
        let above = holders.iter().take_while(|rank| own.is_some() && Some(*rank) != own.as_ref());
        let above: Vec<GroupId> = above.map(|(.., id)| id.clone()).collect();
        for (at, upper) in above.iter().enumerate() {
            let below: Vec<GroupId> = holders[at + 1..].iter().map(|(.., id)| id.clone()).collect();
            if self.would_help(cx, upper, &below) {
                // A group that ranks above it and can be helped is helped first.
                return false;
            }
        }
        let priority = priority_of(cx, group);
        let below: Vec<GroupId> = holders
            .iter()
            .filter(|rank| match &own {
                Some(own) => *rank > own,
                // A group that holds nothing outranks lower priority only.
                None => rank.0.0 < priority,
            })
            .map(|(.., id)| id.clone())
            .collect();
        if below.is_empty() {
            return false;
        }
        let trial = self.trial(cx, group);
        let attempt = |gangs: &mut Self, cx: &mut Context<'_>| trial.attempt(gangs, cx);
        let restore = |gangs: &mut Self, cx: &mut Context<'_>| trial.restore(gangs, cx);
        let Some((held, released)) = self.give_way(cx, &below, attempt, restore) else { return false };
        self.report_released(cx, &released, &format!("group {group} goes first"));
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

    /// A single pod fits nowhere: groups of lower priority that only hold room give it back. `true` when the pod is held now.
    pub fn resolve_for_pod(&mut self, cx: &mut Context<'_>, id: PodId) -> bool {
        if cx.reservations.all().is_empty() {
            return false;
        }
        let Some(pod) = cx.world.pod(id) else { return false };
        let (priority, key) = (pod.facts.spec.priority, pod.key().clone());
        let below = self.holders_below(cx, priority);
        let attempt = |_: &mut Self, cx: &mut Context<'_>| Self::try_member(cx, id).ok();
        let restore = |_: &mut Self, cx: &mut Context<'_>| Reservations::undo(cx, &[id]);
        let Some(((), released)) = self.give_way(cx, &below, attempt, restore) else { return false };
        self.report_released(cx, &released, &format!("pod {key} goes first"));
        self.commit_alone(cx, id);
        cx.steps.push(Step::Permit(id));
        for last in released.iter().rev() {
            self.try_group(cx, last, false);
        }
        true
    }

    /// Lets groups give their room back, the last of `below` first, until `attempt` succeeds. When even all of it would not
    /// help, nothing has changed. `restore` undoes whatever an attempt did, be it only that a member is held elsewhere. Returns
    /// what the attempt returned, and who gave way.
    pub fn give_way<T>(
        &mut self,
        cx: &mut Context<'_>,
        below: &[GroupId],
        mut attempt: impl FnMut(&mut Self, &mut Context<'_>) -> Option<T>,
        mut restore: impl FnMut(&mut Self, &mut Context<'_>),
    ) -> Option<(T, Vec<GroupId>)> {
        // First whether it would help at all.
        if below.is_empty() || !self.helps(cx, below, &mut attempt, &mut restore) {
            return None;
        }
        let mut taken = Vec::new();
        for group in below.iter().rev() {
            taken.push(Holdings::take(cx, group));
            if let Some(done) = attempt(self, cx) {
                return Some((done, taken.into_iter().map(|holdings| holdings.group().clone()).collect()));
            }
            restore(self, cx);
        }
        for holdings in taken.into_iter().rev() {
            holdings.put(cx);
        }
        None
    }

    /// Whether `attempt` succeeds when all of `below` give way. Nothing changes.
    fn helps<T>(
        &mut self,
        cx: &mut Context<'_>,
        below: &[GroupId],
        attempt: &mut impl FnMut(&mut Self, &mut Context<'_>) -> Option<T>,
        restore: &mut impl FnMut(&mut Self, &mut Context<'_>),
    ) -> bool {
        let all: Vec<Holdings> = below.iter().map(|group| Holdings::take(cx, group)).collect();
        let helps = attempt(self, cx).is_some();
        restore(self, cx);
        for holdings in all {
            holdings.put(cx);
        }
        helps
    }

    /// Whether a group would be satisfied if all of `below` gave way.
    fn would_help(&mut self, cx: &mut Context<'_>, group: &GroupId, below: &[GroupId]) -> bool {
        let shown = self.groups.get(group).map(|record| record.progress.clone());
        let trial = self.trial(cx, group);
        let mut attempt = |gangs: &mut Self, cx: &mut Context<'_>| trial.attempt(gangs, cx);
        let mut restore = |gangs: &mut Self, cx: &mut Context<'_>| trial.restore(gangs, cx);
        let helps = self.helps(cx, below, &mut attempt, &mut restore);
        // It was not its turn: this counts as no attempt.
        if let (Some(record), Some(shown)) = (self.groups.get_mut(group), shown) {
            record.progress = shown;
        }
        helps
    }

    fn trial(&self, cx: &Context<'_>, group: &GroupId) -> Trial {
        let failed = self.groups.get(group).map(|record| record.failed.clone()).unwrap_or_default();
        Trial { own: Holdings::copy(cx, group), failed }
    }

    /// Reports that these groups gave their room back.
    pub(super) fn report_released(&mut self, cx: &mut Context<'_>, released: &[GroupId], why: &str) {
        cx.wake(Wake::POD_FREED);
        for group in released {
            cx.stats.group_releases += 1;
            if let Some(record) = self.groups.get_mut(group) {
                (record.holding, record.clock) = (None, None);
                record.progress.holding_since = None;
            }
            let first = waiting(cx.world, &cx.config.scheduler_names, group).next().map(|member| member.pod);
            if let Some(first) = first {
                let message = format!("group {group} gave its room back: {why}");
                cx.event(first, true, "GangHoldReleased", message);
            }
        }
    }

    /// Unsatisfied groups that hold room, in rank order.
    fn holders(&self, cx: &Context<'_>) -> Vec<Rank> {
        let mut ranks: Vec<Rank> = self
            .groups
            .iter()
            .filter_map(|(group, record)| Some((group, record.holding?)))
            .map(|(group, since)| (Reverse(priority_of(cx, group)), since, group.clone()))
            .collect();
        ranks.sort();
        ranks
    }

    /// Groups of strictly lower priority that hold room, in rank order.
    pub fn holders_below(&self, cx: &Context<'_>, priority: i32) -> Vec<GroupId> {
        self.holders(cx).into_iter().filter(|rank| rank.0.0 < priority).map(|(.., id)| id).collect()
    }
}

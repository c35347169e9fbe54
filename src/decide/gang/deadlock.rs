//! Groups that accumulate reservations can block each other for ever. The first of them in rank gets what it lacks from the
//! last ones: reservations are given back one group at a time, never Bindings.

use std::cmp::Reverse;
use std::time::Duration;

use crate::decide::devices::Held;
use crate::decide::scheduler::Hold;
use crate::decide::scheduler::effect::Effects;
use crate::decide::scheduler::engine::Engine;
use crate::decide::scheduler::settings::Moment;
use crate::decide::world::gangs::GroupId;
use crate::decide::world::volume::VolumePlan;
use crate::decide::world::{NodeId, PodId, Wake};

use super::attempt::Attempt;

/// Higher priority first, then whoever has held longest, then by id. Smaller goes first.
type Rank = (Reverse<i32>, Duration, GroupId);

/// What one group holds, to be put back as it was.
#[derive(Clone)]
pub(in crate::decide) struct Holdings {
    group: GroupId,
    pods: Vec<Kept>,
}

/// How one member was held.
#[derive(Clone)]
pub(in crate::decide) struct Kept {
    /// The member.
    pub pod: PodId,
    hold: Hold,
    devices: Option<Held>,
    volumes: Option<VolumePlan>,
}

impl Kept {
    /// Where it was held.
    pub const fn node(&self) -> NodeId {
        self.hold.node
    }
}

impl Engine {
    /// A group could not be satisfied. When that is only for what unsatisfied groups of lower rank hold, they give way, the
    /// last one first, and every group that had to do with it is tried again in rank order. `true` when the group is satisfied.
    pub(in crate::decide) fn resolve_holders(&mut self, group: &GroupId, now: Moment, effects: &mut Effects) -> bool {
        let holders = self.holders();
        let own = holders.iter().find(|(_, _, id)| id == group).cloned();
        let above = holders.iter().take_while(|rank| own.is_some() && Some(*rank) != own.as_ref());
        let above: Vec<GroupId> = above.map(|(.., id)| id.clone()).collect();
        for (at, upper) in above.iter().enumerate() {
            let below: Vec<GroupId> = holders[at + 1..].iter().map(|(.., id)| id.clone()).collect();
            if self.would_help(upper, &below, now) {
                // Whoever ranks above it and can be helped is to be helped first.
                return false;
            }
        }
        let priority = self.priority_of(group);
        let below: Vec<GroupId> = holders
            .iter()
            .filter(|rank| match &own {
                Some(own) => *rank > own,
                // Who holds nothing outranks lower priority only.
                None => rank.0.0 < priority,
            })
            .map(|(.., id)| id.clone())
            .collect();
        if below.is_empty() {
            return false;
        }
        let (attempt, restore) = self.tries_of(group, now);
        let Some((held, released)) = self.give_way(&below, attempt, restore) else { return false };
        self.tell_released(&released, &format!("group {group} goes first"), effects);
        self.commit_group(group, held, None, now, effects);
        for next in &below {
            if !released.contains(next) {
                self.try_group(next, true, now, effects);
            }
        }
        for last in released.iter().rev() {
            self.try_group(last, false, now, effects);
        }
        true
    }

    /// A single pod fits nowhere: groups of lower priority that only hold room give it back. `true` when the pod is held now.
    pub(in crate::decide) fn resolve_for_pod(&mut self, id: PodId, now: Moment, effects: &mut Effects) -> bool {
        if self.holds.is_empty() {
            return false;
        }
        let Some(pod) = self.world.pod(id) else { return false };
        let (priority, key) = (pod.facts.spec.priority, pod.key().clone());
        let below = self.holders_below(priority);
        let attempt = |engine: &mut Self| engine.try_member(id, now).ok();
        let restore = |engine: &mut Self| engine.undo(&[id]);
        let Some(((), released)) = self.give_way(&below, attempt, restore) else { return false };
        self.tell_released(&released, &format!("pod {key} goes first"), effects);
        self.commit_alone(id, now);
        self.permit(id, now, effects);
        for last in released.iter().rev() {
            self.try_group(last, false, now, effects);
        }
        true
    }

    /// Lets groups give their room back, the last of `below` first, until `attempt` succeeds. When even all of it would not
    /// help, nothing has changed. `restore` undoes whatever an attempt did, be it only that a member is held elsewhere. Returns
    /// what the attempt returned, and who gave way.
    pub(in crate::decide) fn give_way<T>(
        &mut self,
        below: &[GroupId],
        mut attempt: impl FnMut(&mut Self) -> Option<T>,
        mut restore: impl FnMut(&mut Self),
    ) -> Option<(T, Vec<GroupId>)> {
        // First whether it would help at all.
        if below.is_empty() || !self.helps(below, &mut attempt, &mut restore) {
            return None;
        }
        let mut taken = Vec::new();
        for group in below.iter().rev() {
            taken.push(self.take_holdings(group));
            if let Some(done) = attempt(self) {
                return Some((done, taken.into_iter().map(|holdings| holdings.group).collect()));
            }
            restore(self);
        }
        for holdings in taken.into_iter().rev() {
            self.put_holdings(holdings);
        }
        None
    }

    /// Whether `attempt` succeeds when all of `below` give way. Nothing changes.
    fn helps<T>(
        &mut self,
        below: &[GroupId],
        attempt: &mut impl FnMut(&mut Self) -> Option<T>,
        restore: &mut impl FnMut(&mut Self),
    ) -> bool {
        let all: Vec<Holdings> = below.iter().map(|group| self.take_holdings(group)).collect();
        let helps = attempt(self).is_some();
        restore(self);
        for holdings in all {
            self.put_holdings(holdings);
        }
        helps
    }

    /// Whether a group would be satisfied if all of `below` gave way.
    fn would_help(&mut self, group: &GroupId, below: &[GroupId], now: Moment) -> bool {
        let shown = self.groups.get(group).map(|record| record.progress.clone());
        let (mut attempt, mut restore) = self.tries_of(group, now);
        let helps = self.helps(below, &mut attempt, &mut restore);
        // It was not its turn: nobody counts this as an attempt.
        if let (Some(record), Some(shown)) = (self.groups.get_mut(group), shown) {
            record.progress = shown;
        }
        helps
    }

    /// How a group is tried, and how it is put back to where it is now: with what it holds, which may have moved to other nodes,
    /// and with what is known to have failed.
    fn tries_of(
        &self,
        group: &GroupId,
        now: Moment,
    ) -> (impl FnMut(&mut Self) -> Option<Vec<PodId>> + use<>, impl FnMut(&mut Self) + use<>) {
        let own = self.copy_holdings(group);
        let failed = self.groups.get(group).map(|record| record.failed.clone()).unwrap_or_default();
        let (of_try, of_restore) = (group.clone(), group.clone());
        let attempt = move |engine: &mut Self| match engine.attempt_once(&of_try, now) {
            Attempt::Satisfied(held) => Some(held),
            Attempt::Short(_) => None,
        };
        let restore = move |engine: &mut Self| {
            engine.take_holdings(&of_restore);
            engine.put_holdings(own.clone());
            if let Some(record) = engine.groups.get_mut(&of_restore) {
                record.failed.clone_from(&failed);
            }
        };
        (attempt, restore)
    }

    pub(in crate::decide) fn tell_released(&mut self, released: &[GroupId], why: &str, effects: &mut Effects) {
        self.woken(Wake::POD_FREED);
        for group in released {
            self.stats.group_releases += 1;
            if let Some(record) = self.groups.get_mut(group) {
                (record.holding, record.clock) = (None, None);
                record.progress.holding_since = None;
            }
            if let Some(first) = self.waiting(group).next().map(|member| member.pod) {
                let message = format!("group {group} gave its room back: {why}");
                self.notice(first, true, "GangHoldReleased", message, effects);
            }
        }
    }

    /// Unsatisfied groups that hold room, in rank order.
    fn holders(&self) -> Vec<Rank> {
        let mut ranks: Vec<Rank> = self
            .groups
            .iter()
            .filter_map(|(group, record)| Some((group, record.holding?)))
            .map(|(group, since)| (Reverse(self.priority_of(group)), since, group.clone()))
            .collect();
        ranks.sort();
        ranks
    }

    /// Groups of strictly lower priority that hold room, in rank order.
    pub(in crate::decide) fn holders_below(&self, priority: i32) -> Vec<GroupId> {
        self.holders().into_iter().filter(|rank| rank.0.0 < priority).map(|(.., id)| id).collect()
    }

    pub(in crate::decide) fn priority_of(&self, group: &GroupId) -> i32 {
        self.world.gangs().of_group(group).flat_map(crate::decide::world::gangs::Gang::priorities).max().unwrap_or(0)
    }

    pub(in crate::decide) fn take_holdings(&mut self, group: &GroupId) -> Holdings {
        let pods = self.held_members(group).into_iter().filter_map(|id| self.take_kept(id)).collect();
        Holdings { group: group.clone(), pods }
    }

    /// What a group holds, without taking it.
    fn copy_holdings(&self, group: &GroupId) -> Holdings {
        let copy = |id: PodId| {
            let devices = self.world.pod(id).and_then(|pod| pod.devices.clone());
            let volumes = self.world.volume_plan(id).cloned();
            Some(Kept { pod: id, hold: self.holds.get(&id)?.clone(), devices, volumes })
        };
        Holdings { group: group.clone(), pods: self.held_members(group).into_iter().filter_map(copy).collect() }
    }

    /// Takes back the room of one member.
    pub(in crate::decide) fn take_kept(&mut self, id: PodId) -> Option<Kept> {
        let devices = self.world.pod(id).and_then(|pod| pod.devices.clone());
        let volumes = self.world.volume_plan(id).cloned();
        let hold = self.holds.remove(&id)?;
        self.give_back(id, hold.node);
        Some(Kept { pod: id, hold, devices, volumes })
    }

    /// Undoes [`Engine::take_kept`].
    pub(in crate::decide) fn put_kept(&mut self, kept: Kept) {
        let Kept { pod, hold, devices, volumes } = kept;
        if self.world.assume(pod, hold.node, devices) {
            if let Some(plan) = volumes {
                self.world.plan_volumes(pod, plan);
            }
            self.holds.insert(pod, hold);
        }
    }

    pub(in crate::decide) fn put_holdings(&mut self, holdings: Holdings) {
        debug_assert!(self.groups.contains_key(&holdings.group), "only known groups hold");
        holdings.pods.into_iter().for_each(|kept| self.put_kept(kept));
    }
}

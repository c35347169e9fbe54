//! How long a group's reservations wait, and what happens when that is over.

use std::time::Duration;

use crate::contract::gang::key;
use crate::decide::scheduler::effect::{Effect, Effects};
use crate::decide::scheduler::engine::{Engine, Timer};
use crate::decide::scheduler::settings::Moment;
use crate::decide::world::gangs::{Gang, GroupId, MemberState};
use crate::decide::world::{PodId, Wake};

use super::record::TimeoutClock;

/// A mark that the watch does not show is written again after this time.
const MARK_AGAIN: Duration = Duration::from_secs(5);

impl Engine {
    /// After a failed attempt: the clock starts with the first reservation, or with the first failure, as configured.
    pub(in crate::decide) fn run_clock(&mut self, group: &GroupId, holding: bool, now: Moment, effects: &mut Effects) {
        let Some(record) = self.groups.get_mut(group) else { return };
        let starts = holding && record.holding.is_none();
        if holding {
            record.holding.get_or_insert(now.mono);
            record.progress.holding_since.get_or_insert(now.wall);
        } else {
            record.holding = None;
            record.progress.holding_since = None;
        }
        match self.config.gangs.clock {
            TimeoutClock::Pending => {
                record.clock.get_or_insert(now.mono);
            }
            TimeoutClock::Holding => record.clock = record.holding,
        }
        self.arm(group, now);
        let held = if starts { self.held_members(group) } else { Vec::new() };
        if let Some(first) = held.first() {
            let message = format!("group {group} holds room for {} pods and waits for more", held.len());
            self.notice(*first, false, "GangHold", message, effects);
        }
    }

    /// Sets the timer of a running clock.
    pub(in crate::decide) fn arm(&mut self, group: &GroupId, now: Moment) {
        let Some(since) = self.groups.get(group).and_then(|record| record.clock) else { return };
        let due = since.saturating_add(self.wait_of(group));
        self.timers.insert((due.max(now.mono), Timer::GroupWait(group.clone())));
    }

    /// The smallest wait of its gangs.
    fn wait_of(&self, group: &GroupId) -> Duration {
        let waits = self.world.gangs().of_group(group).map(|gang| gang.config().wait);
        waits.min().unwrap_or_default()
    }

    /// The wait may be over.
    pub(in crate::decide) fn group_due(&mut self, group: &GroupId, now: Moment, effects: &mut Effects) {
        let Some(since) = self.groups.get(group).and_then(|record| record.clock) else { return };
        if since.saturating_add(self.wait_of(group)) > now.mono {
            return self.arm(group, now);
        }
        self.stats.group_timeouts += 1;
        let wait = self.wait_of(group);
        let why = format!("group {group} was not satisfied within {} s", wait.as_secs_f64());
        let first = self.held_members(group).first().copied().or_else(|| self.waiting_members(group).first().copied());
        self.release_group(group, &why, effects);
        if let Some(first) = first {
            self.notice(first, true, "GangTimeout", why, effects);
        }
        let gangs = self.world.gangs().of_group(group).filter(|gang| gang.group() == group);
        let open = gangs
            .flat_map(Gang::members)
            .filter(|member| matches!(member.state, MemberState::Pending | MemberState::Gated));
        let open: Vec<PodId> = open.map(|member| member.pod).collect();
        if let Some(record) = self.groups.get_mut(group) {
            record.marking = open.into_iter().collect();
            record.clock = None;
        }
        self.mark(group, now, effects);
    }

    /// Marks whoever is not marked yet, until the watch shows every mark.
    pub(in crate::decide) fn mark(&mut self, group: &GroupId, now: Moment, effects: &mut Effects) {
        let Some(record) = self.groups.get(group).filter(|record| !record.marking.is_empty()) else { return };
        for id in &record.marking {
            if let Some(pod) = self.world.pod(*id) {
                effects.push(Effect::MarkTimedOut { pod: pod.facts.handoff.pod.clone(), key: key::TIMEOUT });
            }
        }
        self.timers.insert((now.mono + MARK_AGAIN, Timer::Mark(group.clone())));
    }

    /// Gives back everything that a group holds and waits with; members on their way are left alone.
    pub(in crate::decide) fn release_group(&mut self, group: &GroupId, why: &str, effects: &mut Effects) {
        let held: Vec<PodId> =
            self.holds.iter().filter(|(_, hold)| hold.group.as_ref() == Some(group)).map(|(id, _)| *id).collect();
        if let Some(record) = self.groups.get_mut(group) {
            (record.holding, record.clock) = (None, None);
            record.progress.holding_since = None;
        }
        if held.is_empty() {
            return;
        }
        self.stats.group_releases += 1;
        let message = format!("room of {} pods given back: {why}", held.len());
        for id in &held {
            if let Some(hold) = self.holds.remove(id) {
                self.unreserve(*id, hold.node);
                self.strays.extend(hold.commit.map(|commit| (commit, *id)));
            }
        }
        if let Some(first) = held.first() {
            self.notice(*first, true, "GangHoldReleased", message, effects);
        }
        self.woken(Wake::POD_FREED);
    }
}

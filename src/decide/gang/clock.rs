//! When the waiting time of a group runs, and what happens when it is over. When it begins, and what it is: `docs/gang.md`, "Waiting and
//! giving up".

use std::time::Duration;

use crate::core::agenda::{Agenda, Scene};
use crate::core::effect::Effect;
use crate::core::placing::Rooms;
use crate::core::timers::Timer;
use crate::world::gangs::{Gang, GroupId, MemberState};
use crate::world::{PodId, Wake};
use baton_contract::gang::key;

use super::Gangs;
use super::members::{clock_of, reserved_members, wait_of, waiting_members};
use baton_contract::EventReason;

/// The timeout annotation is written again after this time while the watch does not show it.
const MARK_AGAIN: Duration = Duration::from_secs(5);

impl Gangs {
    /// After a failed attempt: starts the waiting time where it does not run. `held`: members with reservations.
    pub(super) fn run_clock(&mut self, scene: Scene<'_>, agenda: &mut Agenda, group: &GroupId, held: &[PodId]) {
        let Some(record) = self.groups.get_mut(group) else { return };
        record.waits.failed.get_or_insert(scene.terms.now.mono);
        let held_before = record.waits.held.is_some();
        if held.is_empty() {
            record.waits.held = None;
            record.progress.holding_since = None;
        } else {
            record.waits.held.get_or_insert(scene.terms.now.mono);
            record.progress.holding_since.get_or_insert(scene.terms.now.wall);
        }
        self.arm(scene, agenda, group);
        if let Some(first) = held.first().filter(|_| !held_before) {
            let message = format!("group {group} holds room for {} pods and waits for more", held.len());
            agenda.event(scene.world, *first, EventReason::GangHold, message);
        }
    }

    /// When the waiting time of a group began, by what its gangs state now.
    fn waits_since(&self, scene: Scene<'_>, group: &GroupId) -> Option<Duration> {
        self.groups.get(group)?.waits.since(clock_of(scene, group))
    }

    /// Sets the timer of the waiting time.
    pub(super) fn arm(&mut self, scene: Scene<'_>, agenda: &mut Agenda, group: &GroupId) {
        let Some(since) = self.waits_since(scene, group) else { return };
        let due = since.saturating_add(wait_of(scene.world, group));
        agenda.timers.set(due.max(scene.terms.now.mono), Timer::GroupWait(group.clone()));
    }

    /// The timer of the waiting time fired.
    pub fn wait_due(&mut self, rooms: &mut Rooms<'_>, group: &GroupId) {
        let Rooms { terms, world, reservations, agenda } = rooms;
        let Some(since) = self.waits_since(terms.scene(world), group) else { return };
        if since.saturating_add(wait_of(world, group)) > terms.now.mono {
            return self.arm(terms.scene(world), agenda, group);
        }
        agenda.stats.groups.timeouts += 1;
        let wait = wait_of(world, group);
        let why = format!("group {group} was not satisfied within {} s", wait.as_secs_f64());
        let mut members = reserved_members(world, reservations, group);
        members.extend(waiting_members(terms.scene(world), group));
        self.release_group(rooms, group, &why);
        let Rooms { terms, world, agenda, .. } = rooms;
        members.into_iter().for_each(|id| agenda.warning(world, id, EventReason::GangTimeout, why.clone()));
        if let Some(record) = self.groups.get_mut(group) {
            let members = world.gangs().listing(group).flat_map(Gang::members);
            let open = members.filter(|member| matches!(member.state, MemberState::Pending | MemberState::Gated));
            record.marking = open.map(|member| member.pod).collect();
        }
        self.mark(terms.scene(world), agenda, group);
    }

    /// Writes the timeout annotation to members that lack it, until the watch shows it on all of them.
    pub fn mark(&mut self, scene: Scene<'_>, agenda: &mut Agenda, group: &GroupId) {
        let Some(record) = self.groups.get(group).filter(|record| !record.marking.is_empty()) else { return };
        for id in &record.marking {
            if let Some(pod) = scene.world.pod(*id) {
                agenda.effects.push(Effect::MarkTimedOut { pod: pod.facts.handoff.pod.clone(), key: key::TIMEOUT });
            }
        }
        agenda.timers.set(scene.terms.now.mono + MARK_AGAIN, Timer::MarkTimedOut(group.clone()));
    }

    /// Releases the reservations with which a group waits. Members that are being bound keep theirs.
    pub(super) fn release_group(&mut self, rooms: &mut Rooms<'_>, group: &GroupId, why: &str) {
        let Rooms { terms, world, reservations, agenda } = rooms;
        let held: Vec<PodId> = reservations.of_group(group).collect();
        if let Some(record) = self.groups.get_mut(group) {
            record.stop_waiting();
        }
        if held.is_empty() {
            return;
        }
        agenda.stats.groups.releases += 1;
        let message = format!("room of {} pods given back: {why}", held.len());
        for id in &held {
            reservations.release(*terms, world, agenda, *id);
        }
        if let Some(first) = held.first() {
            agenda.warning(world, *first, EventReason::GangHoldReleased, message);
        }
        agenda.wake(Wake::POD_FREED);
    }
}

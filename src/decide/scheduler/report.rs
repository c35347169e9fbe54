//! Answers to effects.

use std::time::Duration;

use crate::contract::{LockRead, PodKey};
use crate::decide::world::{NodeId, PodFacts, PodId, WorldEvent};

use super::effect::{BindResult, Effect, Effects, LockResult, Report, Ticket};
use super::engine::{Engine, Timer};
use super::flight::{Cancel, Flight, Line, Stage};
use super::settings::Moment;

impl Engine {
    /// Takes in what came of an effect.
    pub fn report(&mut self, report: Report, now: Moment) -> Effects {
        let mut effects = Effects::new();
        match report {
            Report::Lock { ticket, result } => self.lock_answered(ticket, result, now, &mut effects),
            Report::Bind { ticket, result } => self.bind_answered(ticket, result, now, &mut effects),
            Report::Release { node, old, result } => self.release_answered(&node, &old, result, now, &mut effects),
            Report::JobWritten { job, result } => self.job_written(&job, result, now, &mut effects),
            Report::PodRead { pod, result } => self.pod_read(&pod, result, now, &mut effects),
            Report::ConditionLost { pod } => self.condition_lost(&pod, now),
            Report::NominationLost { pod } => self.nomination_lost(&pod, now),
            Report::PodGroup { gang, result } => {
                self.pod_group_answered(&gang, result.map(|stored| *stored), now, &mut effects);
            }
        }
        self.heed_gangs(now, &mut effects);
        self.heed_jobs(now, &mut effects);
        effects
    }

    fn lock_answered(&mut self, ticket: Ticket, result: LockResult, now: Moment, effects: &mut Effects) {
        let Some(id) = self.tickets.remove(&ticket) else { return };
        let Some(flight) = self.flights.get_mut(&id) else { return };
        let node = flight.node;
        flight.stage = Stage::Line;
        match result {
            LockResult::Done => {
                let value = flight.lock_value.clone();
                flight.trouble_since = None;
                flight.failures = 0;
                self.lock_waits.push(now.mono.saturating_sub(flight.in_line));
                self.saw_lock(node, LockRead::parse(value.as_deref()), now);
                if !self.ended_by_cancel(id, now, effects) {
                    self.bind(id, effects);
                }
            }
            LockResult::Contended(read) => {
                self.stats.contended += 1;
                if read.raw() != flight.lock_value.as_deref() {
                    flight.lock_value = None;
                }
                let free = read == LockRead::Free;
                self.saw_lock(node, read, now);
                if self.ended_by_cancel(id, now, effects) {
                    return;
                }
                // A lock that comes and goes under our hands: not at once again.
                if !(free && self.pause(id, Stage::Line, None, now)) {
                    self.back_to_line(id, now);
                    self.advance(node, now, effects);
                }
            }
            LockResult::NodeGone => {
                flight.lock_value = None;
                if !self.ended_by_cancel(id, now, effects) {
                    self.give_up(id, "the node is gone".to_owned(), now, effects);
                }
            }
            LockResult::Failed(why, after) => {
                self.note_trouble(id, &why);
                if !self.ended_by_cancel(id, now, effects) && !self.pause(id, Stage::Line, after, now) {
                    self.give_up(id, why, now, effects);
                }
            }
        }
    }

    fn bind_answered(&mut self, ticket: Ticket, result: BindResult, now: Moment, effects: &mut Effects) {
        let Some(id) = self.tickets.remove(&ticket) else { return };
        let Some(flight) = self.flights.get_mut(&id) else { return };
        match result {
            BindResult::Done => self.land(id, now, effects),
            BindResult::NotFound => {
                flight.stage = Stage::Line;
                self.end_flight(id, now, effects);
                // Should the watch still show it, it is tried again after a while; most often the deletion is on its way.
                self.enqueue(id, now, effects);
                self.queue.fail(id, now.mono, now.wall);
            }
            BindResult::Conflict(_) => {
                flight.stage = Stage::Reading;
                effects.push(Effect::ReadPod { pod: flight.pod.key.clone() });
            }
            BindResult::Refused(why) => {
                flight.stage = Stage::Line;
                if !self.ended_by_cancel(id, now, effects) {
                    self.give_up(id, why, now, effects);
                }
            }
            BindResult::Retry(why, after) => {
                let gone = flight.cancelled.is_some();
                self.note_trouble(id, &why);
                // The answer may be lost and the pod bound: only a read tells.
                if gone || !self.pause(id, Stage::BindAgain, after, now) {
                    self.read(id, effects);
                }
            }
        }
    }

    fn read(&mut self, id: PodId, effects: &mut Effects) {
        let Some(flight) = self.flights.get_mut(&id) else { return };
        flight.stage = Stage::Reading;
        effects.push(Effect::ReadPod { pod: flight.pod.key.clone() });
    }

    fn pod_read(
        &mut self,
        key: &PodKey,
        result: Result<Option<Box<PodFacts>>, String>,
        now: Moment,
        effects: &mut Effects,
    ) {
        let reading = self.flights.iter().find(|(_, flight)| flight.pod.key == *key && flight.stage == Stage::Reading);
        let reading: Option<PodId> = reading.map(|(id, _)| *id);
        match result {
            Err(_) => {
                if let Some(id) = reading {
                    // Neither bound nor unbound is known, so neither lock nor room may go.
                    if let Some(flight) = self.flights.get_mut(&id) {
                        flight.stage = Stage::ReadAgain;
                        flight.not_before = now.mono + Duration::from_secs(1);
                        self.timers.insert((flight.not_before, Timer::Flight(id)));
                    }
                }
            }
            Ok(None) => {
                self.prove(key, None, now, effects);
                if let Some(id) = reading {
                    self.settle(id, now, effects, |flight| flight.cancelled = Some(Cancel::PodGone));
                }
            }
            Ok(Some(facts)) => {
                let uid = facts.handoff.pod.uid.clone();
                let deleting = facts.handoff.deleting.is_some();
                let changes = self.world.apply(WorldEvent::Pod(facts), now.mono, now.wall);
                self.react(&changes, now, effects);
                self.prove(key, Some(uid.as_str()), now, effects);
                let still = reading.filter(|id| self.flights.get(id).is_some_and(|f| f.stage == Stage::Reading));
                let Some(id) = still else { return };
                let same = self.flights.get(&id).is_some_and(|flight| flight.pod.uid == uid);
                if !same || deleting {
                    self.settle(id, now, effects, |flight| flight.cancelled = Some(Cancel::PodGone));
                } else {
                    self.settle(id, now, effects, |_| {});
                    if self.flights.contains_key(&id) && !self.pause(id, Stage::BindAgain, None, now) {
                        self.give_up(id, "the Binding did not come about in time".to_owned(), now, effects);
                    }
                }
            }
        }
    }

    /// The read is over; a cancelled flight ends now.
    fn settle(&mut self, id: PodId, now: Moment, effects: &mut Effects, with: impl FnOnce(&mut Flight)) {
        if let Some(flight) = self.flights.get_mut(&id) {
            flight.stage = Stage::BindAgain;
            with(flight);
        }
        self.ended_by_cancel(id, now, effects);
    }

    fn ended_by_cancel(&mut self, id: PodId, now: Moment, effects: &mut Effects) -> bool {
        let Some(why) = self.flights.get_mut(&id).and_then(|flight| flight.cancelled.take()) else { return false };
        self.cancel(id, why, now, effects);
        true
    }

    fn back_to_line(&mut self, id: PodId, now: Moment) {
        let Some(flight) = self.flights.get(&id) else { return };
        let line: &mut Line = self.lines.entry(flight.node).or_default();
        line.head = None;
        line.waiting.insert(flight.turn);
        let node = flight.node;
        self.watch_line(node, now);
    }

    fn release_answered(&mut self, node: &str, old: &str, result: LockResult, now: Moment, effects: &mut Effects) {
        let Some(id) = self.world.node_id(node) else {
            self.releases.retain(|(_, raw), _| **raw != *old);
            return;
        };
        let key: (NodeId, Box<str>) = (id, old.into());
        match result {
            LockResult::Done => {
                self.releases.remove(&key);
                if self.world.node(id).is_some_and(|node| node.lock.read.raw() == Some(old)) {
                    self.saw_lock(id, LockRead::Free, now);
                }
            }
            LockResult::Contended(read) => {
                self.releases.remove(&key);
                self.saw_lock(id, read, now);
            }
            LockResult::NodeGone => {
                self.releases.remove(&key);
            }
            LockResult::Failed(_, at_least) => {
                if let Some((_, under_way)) = self.releases.get_mut(&key) {
                    *under_way = false;
                }
                let wait = Duration::from_secs(1).max(at_least.unwrap_or_default());
                self.timers.insert((now.mono + wait, Timer::Release(id, old.into())));
            }
        }
        self.sweep(id, now, effects);
        self.advance(id, now, effects);
    }
}

//! From a chosen node to take-off: reserve, hold the room, ask the gatekeepers, prepare what comes before the lock.
//!
//! ```text
//!   hold ──▶ held ──permit──▶ depart ──▶ preparing ──▶ in the node's line, or straight to the Binding
//!              │  ▲   │                      │
//!              │  └wait                      └── refused: give up
//!              └── let go (the room is free again)
//! ```

use std::sync::Arc;
use std::time::Duration;

use crate::contract::Shared;
use crate::decide::scheduler::rules::{Claimed, Outcome, Slots, View, Wanted};
use crate::decide::world::gangs::GroupId;
use crate::decide::world::{Node, NodeId, Pod, PodId, Wake};

use super::annotations::Annotations;
use super::effect::Effects;
use super::engine::{Engine, Timer};
use super::flight::{Flight, Stage};
use super::settings::{LockMode, Moment};

/// What comes before the lock is asked for again after this time, unless its object has changed.
const ASK_AGAIN: Duration = Duration::from_secs(5);

/// Room that is held for a pod that is not on its way yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hold {
    /// The node.
    pub node: NodeId,
    /// The Binding's annotations, all but the time.
    pub annotations: Shared<Annotations>,
    /// What the pod was judged to want of devices.
    pub wanted: Option<Arc<Wanted>>,
    /// Monotonic time since which the room is held.
    pub since: Duration,
    /// The group that holds it.
    pub group: Option<GroupId>,
    /// Once the group is satisfied: the commit that the pod is part of.
    pub commit: Option<u64>,
}

impl Engine {
    /// Runs the reservations and takes the room of `node`. `false` when a reservation was refused; then nothing is held.
    pub(in crate::decide) fn hold(&mut self, id: PodId, node: NodeId, mut slots: Slots, now: Moment) -> bool {
        let Some(pod) = self.world.pod(id) else { return false };
        let view = View { world: &self.world, now: now.mono };
        let mut claimed = Claimed::default();
        for (done, plugin) in self.plugins.enabled().reserve.iter().enumerate() {
            if !plugin.reserve(view, pod, node, &mut slots, &mut claimed).is_fit() {
                let made = &self.plugins.enabled().reserve[..done];
                made.iter().rev().for_each(|plugin| plugin.unreserve(pod, node));
                return false;
            }
        }
        let Claimed { annotations, wanted, devices, choice, volumes } = claimed;
        let group = self.world.gangs().gang_of(id).map(|gang| gang.group().clone());
        if self.world.assume_chosen(id, node, devices, choice.as_deref())
            && let Some(plan) = volumes
        {
            self.world.plan_volumes(id, plan);
        }
        let annotations = annotations.into();
        self.holds.insert(id, Hold { node, annotations, wanted, since: now.mono, group, commit: None });
        true
    }

    /// Gives back what [`Engine::hold`] took; the pod waits again, or is whatever the API shows. `false` when nothing was held.
    pub(in crate::decide) fn let_go(&mut self, id: PodId) -> bool {
        let Some(hold) = self.holds.remove(&id) else { return false };
        self.unreserve(id, hold.node);
        self.strays.extend(hold.commit.map(|commit| (commit, id)));
        true
    }

    /// Undoes the reservations and frees the room, unless the API has shown the pod bound meanwhile. Whoever waits for room hears
    /// of it.
    pub(in crate::decide) fn unreserve(&mut self, id: PodId, node: NodeId) {
        if self.give_back(id, node) {
            self.woken(Wake::POD_FREED);
        }
    }

    /// The same for room that nobody else ever missed: a try that is undone wakes nobody.
    pub(in crate::decide) fn give_back(&mut self, id: PodId, node: NodeId) -> bool {
        if let Some(pod) = self.world.pod(id) {
            let reserve = &self.plugins.enabled().reserve;
            reserve.iter().rev().for_each(|plugin| plugin.unreserve(pod, node));
        }
        let freed = self.world.forget(id);
        if freed {
            self.note_job_pod(id);
        }
        freed
    }

    /// Asks the gatekeepers about a held pod: it goes on its way, waits, or goes back to the queue.
    pub(in crate::decide) fn permit(&mut self, id: PodId, now: Moment, effects: &mut Effects) {
        let (Some(hold), Some(pod)) = (self.holds.get(&id), self.world.pod(id)) else { return };
        let view = View { world: &self.world, now: now.mono };
        let mut slots = Slots::default();
        let verdicts = self.plugins.enabled().permit.iter();
        let no = verdicts.map(|plugin| plugin.permit(view, pod, hold.node, &mut slots)).find(|no| !no.is_fit());
        match no {
            None | Some(Outcome::Fit) => self.depart(id, now, effects),
            Some(Outcome::WaitUntil(at, _)) => {
                self.timers.insert((at.max(now.mono + Duration::from_millis(1)), Timer::Permit(id)));
            }
            Some(Outcome::Unfit(no) | Outcome::Never(no)) => {
                self.let_go(id);
                self.queue.park(id, no.wake, now.mono, now.wall);
                self.tell(id, "Unschedulable", no.text.into_owned(), now, effects);
            }
            Some(Outcome::Fault(text)) => {
                self.let_go(id);
                self.queue.fail(id, now.mono, now.wall);
                self.tell(id, "SchedulerError", text.into_owned(), now, effects);
            }
        }
    }

    /// A held pod asks its gatekeepers again.
    pub(in crate::decide) fn permit_again(&mut self, id: PodId, now: Moment, effects: &mut Effects) {
        if self.holds.contains_key(&id) {
            self.permit(id, now, effects);
        }
    }

    /// Sends a held pod on its way.
    pub(in crate::decide) fn depart(&mut self, id: PodId, now: Moment, effects: &mut Effects) {
        let Some(hold) = self.holds.remove(&id) else { return };
        let time = self.stamp(now);
        self.serial += 1;
        let (Some(pod), Some(node)) = (self.world.pod(id), self.world.node(hold.node)) else { return };
        let calls = calls(pod, node, hold.wanted.as_deref());
        let exact = self.config.lock_mode == LockMode::Auto && node.needs_no_lock(&pod.facts.handoff.scheduler_name);
        let resumed = self.pinned.remove(&id) == Some(hold.node);
        let flight = Flight {
            pod: pod.facts.handoff.pod.clone(),
            node: hold.node,
            node_name: node.name.clone(),
            time,
            locks: !calls.is_empty() && !exact,
            calls,
            annotations: hold.annotations,
            commit: hold.commit,
            stage: Stage::Preparing,
            lock_value: resumed.then(|| node.lock.read.raw().map(Into::into)).flatten(),
            // A commit in progress goes before others of its priority.
            turn: (-2 * i64::from(pod.facts.spec.priority) - i64::from(hold.commit.is_some()), self.serial, id),
            since: now.mono,
            in_line: now.mono,
            not_before: Duration::ZERO,
            failures: 0,
            trouble_since: None,
            asked: Vec::new(),
            cancelled: None,
        };
        self.told_before(id);
        self.flights.insert(id, flight);
        self.prepare_flight(id, now, effects);
    }

    /// Asks every PreBind rule; when all are content, the pod goes for its lock or its Binding.
    pub(in crate::decide) fn prepare_flight(&mut self, id: PodId, now: Moment, effects: &mut Effects) {
        let Some(flight) = self.flights.get(&id).filter(|flight| flight.stage == Stage::Preparing) else { return };
        let Some(pod) = self.world.pod(id) else { return };
        let (node, since) = (flight.node, flight.since);
        let view = View { world: &self.world, now: now.mono };
        let mut wait: Option<Duration> = None;
        let mut asked = Effects::new();
        for plugin in &self.plugins.enabled().pre_bind {
            match plugin.pre_bind(view, pod, node, since, &mut asked) {
                Outcome::Fit => {}
                Outcome::WaitUntil(at, _) => wait = Some(wait.map_or(at, |wait| wait.min(at))),
                Outcome::Unfit(no) | Outcome::Never(no) => {
                    return self.give_up(id, no.text.into_owned(), now, effects);
                }
                Outcome::Fault(text) => return self.give_up(id, text.into_owned(), now, effects),
            }
        }
        let Some(flight) = self.flights.get_mut(&id) else { return };
        // Every change of any volume asks again: what is under way is not sent twice.
        flight.asked.retain(|(_, at)| now.mono < *at + ASK_AGAIN);
        asked.retain(|effect| !flight.asked.iter().any(|(known, _)| known == effect));
        flight.asked.extend(asked.iter().map(|effect| (effect.clone(), now.mono)));
        effects.extend(asked);
        if let Some(at) = wait {
            // Never at once again: time has to pass, or volumes to change.
            flight.not_before = at.max(now.mono + Duration::from_millis(1));
            self.timers.insert((flight.not_before, Timer::Flight(id)));
            self.preparing.insert(id);
            return;
        }
        self.preparing.remove(&id);
        match flight.commit {
            None => self.go(id, now, effects),
            // Nobody of a commit locks before the volumes of all are settled.
            Some(commit) => self.member_prepared(commit, id).into_iter().for_each(|id| self.go(id, now, effects)),
        }
    }

    /// Sends a prepared flight for its lock or its Binding.
    pub(in crate::decide) fn go(&mut self, id: PodId, now: Moment, effects: &mut Effects) {
        let Some(flight) = self.flights.get_mut(&id).filter(|flight| flight.stage == Stage::Preparing) else { return };
        flight.stage = Stage::Line;
        flight.not_before = Duration::ZERO;
        flight.in_line = now.mono;
        let (node, locks, turn) = (flight.node, flight.locks, flight.turn);
        if locks {
            self.lines.entry(node).or_default().waiting.insert(turn);
            self.advance(node, now, effects);
            self.watch_line(node, now);
        } else {
            self.bind(id, effects);
        }
    }

    /// Why the decision behind a hold does not stand any more: the node is gone, a device is not healthy or went to another pod.
    pub(in crate::decide) fn hold_outdated(&self, id: PodId, node: NodeId) -> bool {
        let Some(found) = self.world.node(node).filter(|node| node.facts.is_some()) else { return true };
        let Some(pod) = self.world.pod(id) else { return true };
        let Some(devices) = &pod.devices else { return false };
        let sick = found.stock.as_ref().is_none_or(|stock| !stock.unhealthy_of(devices).is_empty());
        sick || self.world.contested_device(id).is_some()
            || calls(pod, found, None).iter().any(|name| !found.serves(name))
    }

    /// Volumes changed: every flight that waits for them is looked at.
    pub(in crate::decide) fn prepare_all(&mut self, now: Moment, effects: &mut Effects) {
        for id in self.preparing.clone() {
            self.prepare_flight(id, now, effects);
        }
    }
}

/// Names of the Allocate calls that will come for `pod` on `node`: most often all that it wants.
fn calls(pod: &Pod, node: &Node, wanted: Option<&Wanted>) -> Shared<Vec<Box<str>>> {
    if let Some(names) = wanted.and_then(|wanted| wanted.names_of(pod))
        && names.iter().all(|name| node.serves(name))
    {
        return names.clone();
    }
    let mut names: Vec<Box<str>> =
        pod.facts.handoff.expected_calls(|name| node.serves(name)).map(|call| call.resource.into()).collect();
    names.sort();
    names.dedup();
    names.into()
}

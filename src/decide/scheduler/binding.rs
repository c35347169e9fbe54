//! From a decision to a Binding: the flight of one pod.

use std::time::Duration;

use crate::contract::{LockRead, key};
use crate::decide::scheduler::rules::View;
use crate::decide::scheduler::rules::plugins::scheduling_gates;
use crate::decide::world::{NodeId, Place, PodId, Wake};

use super::effect::{Effect, Effects};
use super::engine::{Engine, Timer};
use super::errand::BindVerdict;
use super::flight::{Cancel, Flight, Line, Stage};
use super::select::choose::{Choice, choose};
use super::settings::{Moment, Search};
use crate::decide::explain::JOB;
use crate::decide::gang::Route;
use crate::decide::lock::ReleaseReason;
use crate::decide::tyjob::JobRoute;

impl Engine {
    /// Decides one pod that was popped from the queue.
    pub(in crate::decide) fn attempt(&mut self, id: PodId, now: Moment, effects: &mut Effects) {
        let pinned = self.pinned.get(&id).copied();
        let Some(pod) = self.world.pod(id).filter(|pod| pod.place == Place::Waiting) else {
            self.queue.remove(id);
            return;
        };
        match self.job_route(pod) {
            JobRoute::None => {}
            JobRoute::Place(job) => return self.take_place(id, &job, now, effects),
            JobRoute::Waits(why) => {
                // Its job wakes it.
                self.queue.park(id, Wake::NONE, now.mono, now.wall);
                self.tell(id, "Unschedulable", why, now, effects);
                return self.note_rules(id, [JOB]);
            }
        }
        if self.route(pod) != Route::Alone {
            // It has become bound to a gang meanwhile.
            return self.enqueue(id, now, effects);
        }
        self.stats.attempts += 1;
        let priority = pod.facts.spec.priority;
        let shadows = self.shadow(priority, id, now);
        let Some(pod) = self.world.pod(id) else { return };
        let view = View { world: &self.world, now: now.mono };
        let (choice, judged) = match self.config.search {
            Search::Indexed => self.index.choose(view, &self.plugins, pod, pinned),
            Search::Scanning => choose(view, &self.plugins, pod, pinned),
        };
        self.stats.judged += judged;
        self.lift(shadows);
        if pinned.is_some() && !matches!(choice, Choice::Node(..)) {
            // It cannot be resumed under its lock: on with the others, and the lock goes when it has stood for a while.
            self.pinned.remove(&id);
            self.queue.activate(id, self.plugins.queue_sort());
            return;
        }
        match choice {
            Choice::Node(node, slots) => {
                if self.hold(id, node, *slots, now) {
                    self.commit_alone(id, now);
                    self.permit(id, now, effects);
                } else {
                    self.queue.fail(id, now.mono, now.wall);
                }
            }
            Choice::Nowhere(diagnosis) => {
                if diagnosis.pod.as_ref().is_some_and(|refusal| refusal.rule == scheduling_gates::NAME) {
                    // The API server has said so in the pod's condition. Whoever reads "Unschedulable" makes room for it.
                    return self.queue.park(id, diagnosis.wake, now.mono, now.wall);
                }
                self.stats.unschedulable += 1;
                if !diagnosis.is_final() && self.resolve_for_pod(id, now, effects) {
                    return;
                }
                let mut message = diagnosis.message();
                if !diagnosis.is_final()
                    && let Some(way) = self.preempt(id, now, effects)
                {
                    message = format!("{message}; {way}");
                }
                self.queue.park(id, diagnosis.wake, now.mono, now.wall);
                self.tell(id, "Unschedulable", message, now, effects);
                self.note_rules(id, diagnosis.rules());
            }
            Choice::WaitUntil(at, refusal) => {
                self.queue.wait_until(id, at, now.wall);
                self.tell(id, "Unschedulable", refusal.text.into_owned(), now, effects);
                self.note_rules(id, [refusal.rule]);
            }
            Choice::Fault(text) => {
                self.queue.fail(id, now.mono, now.wall);
                self.tell(id, "SchedulerError", text.into_owned(), now, effects);
            }
        }
    }

    /// Posts the Binding.
    pub(in crate::decide) fn bind(&mut self, id: PodId, effects: &mut Effects) {
        let ticket = self.ticket(id);
        let Some(flight) = self.flights.get_mut(&id) else { return };
        flight.stage = Stage::Binding(ticket);
        let stamp = flight.time.as_nanosecond().to_string();
        flight.annotations.set(key::BIND_TIMESTAMP, stamp);
        effects.push(Effect::Bind {
            ticket,
            pod: flight.pod.clone(),
            node: flight.node_name.clone(),
            annotations: flight.annotations.clone(),
        });
    }

    /// The API shows the pod bound, whoever did it.
    pub(in crate::decide) fn seen_bound(&mut self, id: PodId, now: Moment, effects: &mut Effects) {
        let (Some(flight), Some(pod)) = (self.flights.get(&id), self.world.pod(id)) else { return };
        let stamp = pod.facts.handoff.assignment.bind_timestamp.as_deref();
        let ours = pod.node() == Some(flight.node) && stamp == Some(flight.time.as_nanosecond().to_string().as_str());
        if ours {
            self.land(id, now, effects);
        } else {
            // Another scheduler was faster; what it wrote is the truth.
            self.fail_errand(id, "another scheduler has bound the pod");
            self.end_flight(id, now, effects);
        }
    }

    /// The pod is bound by us.
    pub(in crate::decide) fn land(&mut self, id: PodId, now: Moment, effects: &mut Effects) {
        let Some(flight) = self.drop_flight(id) else { return };
        self.told.remove(&id);
        if let Some(commit) = flight.commit {
            self.member_bound(commit);
        }
        self.leave_commit(&flight, id, now, effects);
        self.stats.bound += 1;
        self.queue.remove(id);
        // Whoever asked for the bind tells people itself.
        if !self.end_errand(id, BindVerdict::Bound) {
            let message = format!("Successfully assigned {} to {}", flight.pod.key, flight.node_name);
            self.notice(id, false, "Scheduled", message, effects);
        }
        if let Some(pod) = self.world.pod(id) {
            let waited = now.wall.duration_since(pod.facts.handoff.created);
            self.pod_waits.push(Duration::try_from(waited).unwrap_or_default());
        }
        if let Some(raw) = flight.lock_value.filter(|_| !flight.locks) {
            // No call will come for this pod, so nobody else would take its lock away.
            self.release(flight.node, &raw, ReleaseReason::NoCall, effects);
        }
        self.woken(Wake::POD_PLACED);
        self.advance(flight.node, now, effects);
    }

    /// Ends a flight whose pod is not ours to bind any more: its lock goes, its room too.
    pub(in crate::decide) fn end_flight(&mut self, id: PodId, now: Moment, effects: &mut Effects) {
        let Some(flight) = self.drop_flight(id) else { return };
        self.fail_errand(id, "the pod is gone or changed while it was being bound");
        if let Some(raw) = flight.lock_value {
            self.release(flight.node, &raw, ReleaseReason::BindFailed, effects);
        }
        self.unreserve(id, flight.node);
        if let Some(commit) = flight.commit {
            self.member_lost(commit, id, now, effects);
        }
        self.advance(flight.node, now, effects);
    }

    /// Whoever of its commit waited for this flight only goes on.
    fn leave_commit(&mut self, flight: &Flight, id: PodId, now: Moment, effects: &mut Effects) {
        let free = flight.commit.map(|commit| self.member_left(commit, id)).unwrap_or_default();
        free.into_iter().for_each(|id| self.go(id, now, effects));
    }

    /// Ends a flight and sends the pod back to the queue.
    pub(in crate::decide) fn give_up(&mut self, id: PodId, why: String, now: Moment, effects: &mut Effects) {
        self.stats.bind_failures += 1;
        let commit = self.flights.get(&id).and_then(|flight| flight.commit);
        if let Some(group) = commit.and_then(|commit| self.commits.get(&commit)).map(|commit| commit.group.clone()) {
            self.member_failed(id, &group, &why, now, effects);
            self.notice(id, true, "GangBindFailed", why.clone(), effects);
        }
        let asked = self.fail_errand(id, &why);
        self.end_flight(id, now, effects);
        self.enqueue(id, now, effects);
        self.queue.fail(id, now.mono, now.wall);
        self.rest_group_of(id, now);
        if asked {
            return;
        }
        self.notice(id, true, "FailedBinding", why.clone(), effects);
        self.tell(id, "SchedulerError", why, now, effects);
    }

    /// Ends a flight as soon as nothing is under way for it.
    pub(in crate::decide) fn cancel(&mut self, id: PodId, why: Cancel, now: Moment, effects: &mut Effects) {
        let Some(flight) = self.flights.get_mut(&id) else { return };
        if flight.is_asking() {
            flight.cancelled = Some(why);
            return;
        }
        match why {
            Cancel::PodGone => self.end_flight(id, now, effects),
            Cancel::Requeue(why) => {
                self.fail_errand(id, &why);
                // Not the pod's fault: it is tried at once.
                self.end_flight(id, now, effects);
                self.enqueue(id, now, effects);
                self.queue.activate(id, self.plugins.queue_sort());
            }
        }
    }

    /// Takes a flight out of every table but the world.
    pub(in crate::decide) fn drop_flight(&mut self, id: PodId) -> Option<Flight> {
        let flight = self.flights.remove(&id)?;
        if let Stage::Locking(ticket) | Stage::Binding(ticket) = flight.stage {
            self.tickets.remove(&ticket);
        }
        self.preparing.remove(&id);
        if let Some(line) = self.lines.get_mut(&flight.node) {
            line.waiting.remove(&flight.turn);
            line.head = line.head.filter(|head| *head != id);
            if line.is_empty() {
                self.lines.remove(&flight.node);
            }
        }
        Some(flight)
    }

    /// Pauses a flight after a failure that may pass. `false` when it has lasted too long.
    pub(in crate::decide) fn pause(
        &mut self,
        id: PodId,
        stage: Stage,
        at_least: Option<Duration>,
        now: Moment,
    ) -> bool {
        let (first, longest, limit) = self.config.retry;
        let Some(flight) = self.flights.get_mut(&id) else { return false };
        let since = *flight.trouble_since.get_or_insert(now.mono);
        if now.mono >= since + limit {
            return false;
        }
        let wait = (first * (1 << flight.failures.min(16))).min(longest).max(at_least.unwrap_or_default());
        flight.failures += 1;
        flight.not_before = now.mono + wait;
        flight.stage = stage;
        let at = flight.not_before;
        if stage == Stage::Line {
            let (node, turn) = (flight.node, flight.turn);
            let line: &mut Line = self.lines.entry(node).or_default();
            line.head = None;
            line.waiting.insert(turn);
            self.watch_line(node, now);
        }
        self.timers.insert((at, Timer::Flight(id)));
        true
    }

    /// A paused flight goes on.
    pub(in crate::decide) fn resume_flight(&mut self, id: PodId, now: Moment, effects: &mut Effects) {
        let Some(flight) = self.flights.get_mut(&id).filter(|flight| flight.not_before <= now.mono) else { return };
        match flight.stage {
            Stage::Line => {
                let node = flight.node;
                self.advance(node, now, effects);
            }
            Stage::Preparing => self.prepare_flight(id, now, effects),
            Stage::BindAgain => self.bind(id, effects),
            Stage::ReadAgain => {
                flight.stage = Stage::Reading;
                effects.push(Effect::ReadPod { pod: flight.pod.key.clone() });
            }
            Stage::Locking(_) | Stage::Binding(_) | Stage::Reading => {}
        }
    }

    /// Why the decision behind a flight does not hold any more; `None` while it does.
    pub(in crate::decide) fn outdated(&self, flight: &Flight) -> Option<String> {
        let Some(node) = self.world.node(flight.node).filter(|node| node.facts.is_some()) else {
            return Some(format!("node {} is gone", flight.node_name));
        };
        if let Some(name) = flight.calls.iter().find(|name| !node.serves(name)) {
            return Some(format!("the agent of node {} does not serve {name} any more", flight.node_name));
        }
        let id = self.world.pod_id(&flight.pod.uid)?;
        let devices = self.world.pod(id)?.devices.as_ref()?;
        if let Some(device) = self.world.contested_device(id) {
            return Some(format!("device {device} of node {} went to another pod", flight.node_name));
        }
        let unhealthy = node.stock.as_ref().map_or_else(Vec::new, |stock| stock.unhealthy_of(devices));
        unhealthy.first().map(|device| format!("device {device} of node {} is not healthy", flight.node_name))
    }

    /// Notes a lock value that we read or wrote.
    pub(in crate::decide) fn saw_lock(&mut self, node: NodeId, read: LockRead, now: Moment) {
        self.world.observe_lock(node, read, now.mono);
    }
}

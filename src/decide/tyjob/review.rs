//! After every change of a job or of one of its pods: which places stand, which are void, and whether the job waits.

use std::time::Duration;

use jiff::Unit;

use crate::contract::PodKey;
use crate::contract::tyjob::ScheduleState;
use crate::decide::pod::Phase;
use crate::decide::scheduler::context::{Context, Step};
use crate::decide::scheduler::queue::Item;
use crate::decide::scheduler::timers::{Moment, Timer};
use crate::decide::world::{Changes, Place, Wake};

use super::place::{NOBODY, pod_to_place, reserve_at};
use super::placement::{Class, JobFacts, Seat, Situation, classify, verdict};
use super::round::{leader_made, tally};
use super::{JobPlace, JobRecord, TyJobs};

/// What stands in for a place at the moment.
enum Occupant {
    /// Nobody yet: the controller may make the pod, or has made it and it waits to take the place.
    Nobody,
    /// The pod itself holds the room, or has done its work.
    Settled,
    /// Some pod has the name and is not the one that is meant: the controller waits for its end.
    Other,
}

impl TyJobs {
    /// Notes what an event means for jobs.
    pub fn note(&mut self, cx: &mut Context<'_>, changes: &Changes) {
        self.changed.extend(changes.jobs.iter().cloned());
        let gone = |id| cx.world.node(id).is_none_or(|node| node.facts.is_none());
        if changes.nodes.iter().any(|id| gone(*id)) {
            // A node vanished: whoever has a place there loses it.
            let placed = self.records.iter().filter(|(_, record)| !record.places.is_empty());
            let placed: Vec<PodKey> = placed.map(|(key, _)| key.clone()).collect();
            self.changed.extend(placed);
        }
        self.room_changed(cx, changes.wake);
    }

    /// Looks at every job that changed.
    pub fn reconcile(&mut self, cx: &mut Context<'_>) {
        self.changed.extend(cx.reservations.take_freed_jobs());
        if !cx.leading {
            self.changed.clear();
            return;
        }
        while let Some(key) = self.changed.pop_first() {
            self.review_job(cx, &key);
        }
    }

    fn review_job(&mut self, cx: &mut Context<'_>, key: &PodKey) {
        let Some(job) = cx.world.job(key).cloned() else { return self.forget_job(cx, key) };
        let same = |record: &JobRecord| record.uid == job.job.uid && record.attempt == job.attempt;
        let known = self.records.get(key);
        let again = known.is_none_or(|record| !same(record));
        if again {
            let former = known.filter(|record| record.uid == job.job.uid).cloned();
            self.forget_job(cx, key);
            let mut record = adopted(&job, cx.now);
            if let Some(former) = former {
                // A write that is under way is answered yet.
                (record.writing, record.version) = (former.writing, former.version);
                (record.pinned, record.stale, record.stale_until) = (former.pinned, former.stale, former.stale_until);
            }
            self.records.insert(key.clone(), record);
            (self.news, self.unkeyed) = (true, true);
        }
        if let Some(former) = self.records.get_mut(key).and_then(|record| record.look(&job)) {
            self.news = true;
            self.unkeyed = true;
            self.give_up_remade(cx, key, &former, &job);
        }
        if job.is_over() || job.spec.is_err() {
            self.release_places(cx, key);
            self.class_is(key, if job.is_over() { Class::Over } else { Class::Invalid });
            self.call_waiting(cx);
            self.say_unreadable(cx, key, &job);
            return self.clear_job(cx, key, &job);
        }
        if let Some(record) = self.records.get_mut(key) {
            if !job.has_address {
                record.address_since = None;
            } else if record.address_since.is_none() {
                record.address_since = Some(cx.now.mono);
            }
        }
        self.keep_places(cx, (key, &job), again);
        self.conclude(cx, key, &job);
    }

    /// Until the leader pod is there, a template may change: room that was kept by the old one says nothing of the new one.
    fn give_up_remade(&mut self, cx: &mut Context<'_>, key: &PodKey, former: &JobFacts, job: &JobFacts) {
        if leader_made(cx, job) {
            return;
        }
        let Some(record) = self.records.get_mut(key) else { return };
        let pods = record.remade(former, job);
        let places: Vec<JobPlace> = pods.iter().filter_map(|pod| record.places.remove(pod)).collect();
        let mut freed = false;
        for mut place in places {
            freed |= free_place(cx, &mut place);
        }
        if freed {
            cx.steps.push(Step::RoomFreed(Wake::POD_FREED));
        }
    }

    /// Goes over the places of a job: reservations are made and given back, void places go.
    /// `again`: they are what another leader has left.
    fn keep_places(&mut self, cx: &mut Context<'_>, (key, job): (&PodKey, &JobFacts), again: bool) {
        let Ok(spec) = &job.spec else { return };
        let Some(mut record) = self.records.remove(key) else { return };
        adopt_bound(cx, &mut record, job);
        let timeout = cx.config.jobs.reservation_timeout;
        let mut freed = false;
        let mut void = 0;
        let mut due: Option<Duration> = None;
        let pods: Vec<Box<str>> = record.places.keys().cloned().collect();
        for pod in pods {
            let seat = spec.seat(&job.job.key.name, &pod);
            let ended = job.ended.contains_key(&pod);
            let occupant = occupant(cx, key, &record, &pod);
            let Some(place) = record.places.get_mut(&pod) else { continue };
            let node = cx.world.node_id(&place.node);
            let node = node.filter(|id| cx.world.node(*id).is_some_and(|node| node.facts.is_some()));
            if seat.is_none() || ended || matches!(occupant, Occupant::Settled) {
                freed |= free_place(cx, place);
                if let Some(node) = node_of_pod(cx, key, &pod).filter(|_| matches!(occupant, Occupant::Settled)) {
                    place.node = node;
                }
                if seat.is_none() {
                    record.places.remove(&pod);
                }
                continue;
            }
            let leader = seat.as_ref().is_some_and(Seat::is_leader);
            // Only from now on can the controller make a pod for it: until now there was one, or this scheduler was not there.
            if matches!(occupant, Occupant::Other) || place.reservation.is_none() {
                place.since = cx.now.mono;
            }
            let usable = match (leader, record.address_since) {
                (true, _) => Some(place.since),
                (false, address) => address.map(|address| address.max(place.since)),
            };
            let deadline = usable.map(|usable| usable + timeout);
            let expired = deadline.is_some_and(|deadline| deadline <= cx.now.mono);
            let kept = node.filter(|_| !expired).is_some_and(|node| {
                place.reservation.is_some() || {
                    let facts = seat.as_ref().and_then(|seat| pod_to_place(cx.world, job, spec, seat));
                    place.reservation = facts.and_then(|facts| reserve_at(cx, facts, node, (NOBODY, again)));
                    place.reservation.is_some()
                }
            });
            if kept {
                due = [due, deadline].into_iter().flatten().min();
                continue;
            }
            freed |= free_place(cx, place);
            record.places.remove(&pod);
            void += 1;
        }
        if let Some(at) = due {
            cx.timers.set(at.max(cx.now.mono + Duration::from_millis(1)), Timer::TyJob(key.clone()));
        }
        self.news |= void > 0;
        cx.stats.job_places_void += void;
        self.records.insert(key.clone(), record);
        if freed {
            cx.steps.push(Step::RoomFreed(Wake::POD_FREED));
        }
    }

    /// What the places come to: the job waits, or does not.
    fn conclude(&mut self, cx: &mut Context<'_>, key: &PodKey, job: &JobFacts) {
        let Some(record) = self.records.get(key) else { return };
        let missing = job.open_seats().iter().any(|seat| !record.places.contains_key(&seat.pod));
        let situation = Situation { missing, nodes_changed: record.nodes_changed };
        let class = classify(job, record.state, situation);
        let fresh = class == Class::Waiting && record.class != Class::Waiting || record.state.is_none();
        self.class_is(key, class);
        match class {
            Class::Waiting => {
                self.news |= fresh || self.is_outdated(cx, key);
                self.call_round(cx);
            }
            Class::Placed => self.stay_placed(cx, key, job),
            Class::Over | Class::Invalid | Class::Unfit => {}
        }
        self.write_job(cx, key);
    }

    fn class_is(&mut self, key: &PodKey, class: Class) {
        let Some(record) = self.records.get_mut(key) else { return };
        self.unkeyed |= (record.class == Class::Waiting) != (class == Class::Waiting);
        record.class = class;
    }

    /// The places that are left do not come to what was said of them: the next round says what they come to.
    pub fn is_outdated(&self, cx: &Context<'_>, key: &PodKey) -> bool {
        let (Some(job), Some(record)) = (cx.world.job(key), self.records.get(key)) else { return false };
        let placed = matches!(record.state, Some(ScheduleState::ScheduledSucceed | ScheduleState::ScheduledPartly));
        let Some(spec) = job.spec.as_ref().ok().filter(|_| placed && record.class == Class::Waiting) else {
            return false;
        };
        let tally = tally(job, spec, |seat| record.places.contains_key(&seat.pod));
        let judged = verdict(spec.basic, spec.min_workers, leader_made(cx, job), tally);
        record.state != Some(judged.state)
    }

    /// Sees to it that a round comes while some job waits.
    fn call_waiting(&mut self, cx: &mut Context<'_>) {
        if self.records.values().any(|record| record.class == Class::Waiting) {
            self.call_round(cx);
        } else {
            cx.queue.remove(Item::Jobs);
        }
    }

    /// A timer of a job is due.
    pub fn due(&mut self, cx: &mut Context<'_>, key: &PodKey) {
        self.say_late(cx, key);
        self.review_job(cx, key);
    }

    fn forget_job(&mut self, cx: &mut Context<'_>, key: &PodKey) {
        self.release_places(cx, key);
        self.records.remove(key);
        self.unkeyed = true;
    }

    /// Gives back every place of a job.
    pub fn release_places(&mut self, cx: &mut Context<'_>, key: &PodKey) {
        let Some(record) = self.records.get_mut(key) else { return };
        let places = std::mem::take(&mut record.places);
        let mut freed = false;
        for mut place in places.into_values() {
            freed |= free_place(cx, &mut place);
        }
        if freed {
            cx.steps.push(Step::RoomFreed(Wake::POD_FREED));
        }
    }
}

/// A job as its status shows it: places of the present attempt stand.
fn adopted(job: &JobFacts, now: Moment) -> JobRecord {
    let mut record = JobRecord::new(&job.job.uid, job.attempt);
    record.told_since = job.scheduled.as_ref().map(|scheduled| (scheduled.holds, scheduled.since));
    let present = job.allocations.iter().filter(|place| place.attempt == job.attempt);
    let places = present.map(|place| {
        let node = place.node.as_str().into();
        (place.pod.as_str().into(), JobPlace { node, reservation: None, since: now.mono })
    });
    record.places = places.collect();
    let void = job.allocations.iter().any(|place| place.attempt != job.attempt);
    record.state = job.state;
    if void {
        // Said at once, whether or not there is room for the present attempt.
        record.state = Some(ScheduleState::Unscheduled);
        record.said = Some(("NewAttempt", format!("the places of attempt {} are to be found", job.attempt), now.mono));
        record.told_since = Some((false, now.wall.round(Unit::Second).unwrap_or(now.wall)));
    }
    record
}

/// Gives back the room of one place.
fn free_place(cx: &mut Context<'_>, place: &mut JobPlace) -> bool {
    let Some(id) = place.reservation.take() else { return false };
    cx.world.cancel_place(id);
    true
}

/// A pod of the job that is bound has its place where it is, whatever the status says.
fn adopt_bound(cx: &Context<'_>, record: &mut JobRecord, job: &JobFacts) {
    for seat in job.open_seats() {
        if record.places.contains_key(&seat.pod) {
            continue;
        }
        let pod = cx.world.pod_by_key(&PodKey::new(&job.job.key.namespace, &seat.pod));
        let claim = pod.and_then(|pod| Some((pod, pod.facts.spec.job.as_ref()?)));
        let ours = claim.filter(|(_, claim)| claim.uid == record.uid && claim.attempt == Some(record.attempt));
        let Some((pod, _)) = ours.filter(|(pod, _)| pod.facts.handoff.deleting.is_none()) else { continue };
        if let Some(node) = pod.node().and_then(|id| cx.world.node(id)).filter(|node| node.facts.is_some()) {
            let place = JobPlace { node: node.name.clone(), reservation: None, since: cx.now.mono };
            record.places.insert(seat.pod, place);
        }
    }
}

/// Where a pod of the job is.
fn node_of_pod(cx: &Context<'_>, key: &PodKey, pod: &str) -> Option<Box<str>> {
    let node = cx.world.pod_by_key(&PodKey::new(&key.namespace, pod))?.node()?;
    Some(cx.world.node(node)?.name.clone())
}

fn occupant(cx: &Context<'_>, key: &PodKey, record: &JobRecord, pod: &str) -> Occupant {
    let Some(pod) = cx.world.pod_by_key(&PodKey::new(&key.namespace, pod)) else { return Occupant::Nobody };
    let claim = pod.facts.spec.job.as_ref();
    let ours = claim.is_some_and(|claim| claim.uid == record.uid && claim.attempt == Some(record.attempt));
    let (handoff, succeeded) = (&pod.facts.handoff, pod.facts.handoff.phase == Phase::Succeeded);
    match pod.place {
        _ if !ours => Occupant::Other,
        Place::Assumed(_) | Place::Bound(_) => Occupant::Settled,
        // One that was asked to go has not done its work: it is made again, unless the job says otherwise.
        Place::Ended if succeeded && handoff.deleting.is_none() => Occupant::Settled,
        Place::Ended => Occupant::Other,
        Place::Waiting if handoff.deleting.is_some() => Occupant::Other,
        Place::Waiting => Occupant::Nobody,
    }
}

//! After every change of a job or of one of its pods: which places stand, which are void, and whether the job waits.

use std::time::Duration;

use jiff::Unit;

use crate::contract::PodKey;
use crate::contract::tyjob::ScheduleState;
use crate::decide::pod::Phase;
use crate::decide::scheduler::effect::Effects;
use crate::decide::scheduler::engine::{Engine, Timer};
use crate::decide::scheduler::queue::Item;
use crate::decide::scheduler::settings::Moment;
use crate::decide::tyjob::placement::{Class, JobFacts, Situation, classify, verdict};
use crate::decide::world::{Changes, Place, Wake};

use super::place::NOBODY;
use super::record::{JobPlace, JobRecord};
use super::round::tally;

/// What stands in for a place at the moment.
enum Occupant {
    /// Nobody yet: the controller may make the pod, or has made it and it waits to take the place.
    Nobody,
    /// The pod itself holds the room, or has done its work.
    Settled,
    /// Some pod has the name and is not the one that is meant: the controller waits for its end.
    Other,
}

impl Engine {
    /// Notes what an event means for jobs.
    pub(in crate::decide) fn note_jobs(&mut self, changes: &Changes, now: Moment) {
        self.jobs.dirty.extend(changes.jobs.iter().cloned());
        let gone = |id| self.world.node(id).is_none_or(|node| node.facts.is_none());
        if changes.nodes.iter().any(|id| gone(*id)) {
            // A node vanished: whoever has a place there loses it.
            let placed = self.jobs.records.iter().filter(|(_, record)| !record.places.is_empty());
            let placed: Vec<PodKey> = placed.map(|(key, _)| key.clone()).collect();
            self.jobs.dirty.extend(placed);
        }
        self.jobs_news(changes.wake, now);
    }

    /// Looks at every job that changed.
    pub(in crate::decide) fn heed_jobs(&mut self, now: Moment, effects: &mut Effects) {
        if !self.leading {
            self.jobs.dirty.clear();
            return;
        }
        while let Some(key) = self.jobs.dirty.pop_first() {
            self.review_job(&key, now, effects);
        }
    }

    /// Starts with what the objects say, or forgets everything.
    pub(in crate::decide) fn lead_jobs(&mut self, leading: bool, now: Moment, effects: &mut Effects) {
        for key in self.jobs.records.keys().cloned().collect::<Vec<_>>() {
            self.release_places(&key, now);
        }
        self.jobs.records.clear();
        (self.jobs.ran, self.jobs.mark, self.jobs.news) = (None, None, true);
        self.jobs.dirty.clear();
        if leading {
            self.jobs.dirty.extend(self.world.jobs().map(|(key, _)| key.clone()));
            self.heed_jobs(now, effects);
        }
    }

    fn review_job(&mut self, key: &PodKey, now: Moment, effects: &mut Effects) {
        let Some(job) = self.world.job(key).cloned() else { return self.forget_job(key, now) };
        let same = |record: &JobRecord| record.uid == job.job.uid && record.attempt == job.attempt;
        let known = self.jobs.records.get(key);
        let again = known.is_none_or(|record| !same(record));
        if again {
            let former = known.filter(|record| record.uid == job.job.uid).cloned();
            self.forget_job(key, now);
            let mut record = adopted(&job, now);
            if let Some(former) = former {
                // A write that is under way is answered yet.
                (record.writing, record.version) = (former.writing, former.version);
                (record.pinned, record.stale, record.stale_until) = (former.pinned, former.stale, former.stale_until);
            }
            self.jobs.records.insert(key.clone(), record);
            (self.jobs.news, self.jobs.unkeyed) = (true, true);
        }
        if let Some(former) = self.jobs.records.get_mut(key).and_then(|record| record.look(&job)) {
            self.jobs.news = true;
            self.jobs.unkeyed = true;
            self.give_up_remade(key, &former, &job, now);
        }
        if job.is_over() || job.spec.is_err() {
            self.release_places(key, now);
            self.class_is(key, if job.is_over() { Class::Over } else { Class::Invalid });
            self.call_waiting(now);
            self.say_unreadable(key, &job, now, effects);
            return self.clear_job(key, &job, now, effects);
        }
        if let Some(record) = self.jobs.records.get_mut(key) {
            if !job.has_address {
                record.address_since = None;
            } else if record.address_since.is_none() {
                record.address_since = Some(now.mono);
            }
        }
        self.keep_places((key, &job), again, now);
        self.conclude(key, &job, now, effects);
    }

    /// Until the leader pod is there, a template may change: room that was kept by the old one says nothing of the new one.
    fn give_up_remade(&mut self, key: &PodKey, former: &JobFacts, job: &JobFacts, now: Moment) {
        if self.leader_made(job) {
            return;
        }
        let Some(record) = self.jobs.records.get_mut(key) else { return };
        let pods = record.remade(former, job);
        let places: Vec<JobPlace> = pods.iter().filter_map(|pod| record.places.remove(pod)).collect();
        let mut freed = false;
        for mut place in places {
            freed |= self.free_place(&mut place);
        }
        if freed {
            self.room_freed(now);
        }
    }

    /// Goes over the places of a job: reservations are made and given back, void places go.
    /// `again`: they are what another leader has left.
    fn keep_places(&mut self, (key, job): (&PodKey, &JobFacts), again: bool, now: Moment) {
        let Ok(spec) = &job.spec else { return };
        let Some(mut record) = self.jobs.records.remove(key) else { return };
        self.adopt_bound(&mut record, job, now);
        let timeout = self.config.jobs.reservation_timeout;
        let mut freed = false;
        let mut void = 0;
        let mut due: Option<Duration> = None;
        let pods: Vec<Box<str>> = record.places.keys().cloned().collect();
        for pod in pods {
            let seat = spec.seat(&job.job.key.name, &pod);
            let ended = job.ended.contains_key(&pod);
            let occupant = self.occupant(key, &record, &pod);
            let Some(place) = record.places.get_mut(&pod) else { continue };
            let node = self.world.node_id(&place.node);
            let node = node.filter(|id| self.world.node(*id).is_some_and(|node| node.facts.is_some()));
            if seat.is_none() || ended || matches!(occupant, Occupant::Settled) {
                freed |= self.free_place(place);
                if let Some(node) = self.node_of_pod(key, &pod).filter(|_| matches!(occupant, Occupant::Settled)) {
                    place.node = node;
                }
                if seat.is_none() {
                    record.places.remove(&pod);
                }
                continue;
            }
            let leader = seat.as_ref().is_some_and(crate::decide::tyjob::placement::Seat::is_leader);
            // Only from now on can the controller make a pod for it: until now there was one, or this scheduler was not there.
            if matches!(occupant, Occupant::Other) || place.reservation.is_none() {
                place.since = now.mono;
            }
            let usable = match (leader, record.address_since) {
                (true, _) => Some(place.since),
                (false, address) => address.map(|address| address.max(place.since)),
            };
            let deadline = usable.map(|usable| usable + timeout);
            let expired = deadline.is_some_and(|deadline| deadline <= now.mono);
            let kept = node.filter(|_| !expired).is_some_and(|node| {
                place.reservation.is_some() || {
                    let facts = seat.as_ref().and_then(|seat| self.pod_to_place(job, spec, seat));
                    place.reservation = facts.and_then(|facts| self.reserve_at(facts, node, (NOBODY, again), now));
                    place.reservation.is_some()
                }
            });
            if kept {
                due = [due, deadline].into_iter().flatten().min();
                continue;
            }
            freed |= self.free_place(place);
            record.places.remove(&pod);
            void += 1;
        }
        if let Some(at) = due {
            self.timers.insert((at.max(now.mono + Duration::from_millis(1)), Timer::Job(key.clone())));
        }
        self.jobs.news |= void > 0;
        self.stats.job_places_void += void;
        self.jobs.records.insert(key.clone(), record);
        if freed {
            self.room_freed(now);
        }
    }

    /// A pod of the job that is bound has its place where it is, whatever the status says.
    fn adopt_bound(&self, record: &mut JobRecord, job: &JobFacts, now: Moment) {
        for seat in job.open_seats() {
            if record.places.contains_key(&seat.pod) {
                continue;
            }
            let pod = self.world.pod_by_key(&PodKey::new(&job.job.key.namespace, &seat.pod));
            let claim = pod.and_then(|pod| Some((pod, pod.facts.spec.job.as_ref()?)));
            let ours = claim.filter(|(_, claim)| claim.uid == record.uid && claim.attempt == Some(record.attempt));
            let Some((pod, _)) = ours.filter(|(pod, _)| pod.facts.handoff.deleting.is_none()) else { continue };
            if let Some(node) = pod.node().and_then(|id| self.world.node(id)).filter(|node| node.facts.is_some()) {
                let place = JobPlace { node: node.name.clone(), reservation: None, since: now.mono };
                record.places.insert(seat.pod, place);
            }
        }
    }

    /// Where a pod of the job is.
    fn node_of_pod(&self, key: &PodKey, pod: &str) -> Option<Box<str>> {
        let node = self.world.pod_by_key(&PodKey::new(&key.namespace, pod))?.node()?;
        Some(self.world.node(node)?.name.clone())
    }

    fn occupant(&self, key: &PodKey, record: &JobRecord, pod: &str) -> Occupant {
        let Some(pod) = self.world.pod_by_key(&PodKey::new(&key.namespace, pod)) else { return Occupant::Nobody };
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

    /// What the places come to: the job waits, or does not.
    fn conclude(&mut self, key: &PodKey, job: &JobFacts, now: Moment, effects: &mut Effects) {
        let Some(record) = self.jobs.records.get(key) else { return };
        let missing = job.open_seats().iter().any(|seat| !record.places.contains_key(&seat.pod));
        let situation = Situation { missing, nodes_changed: record.nodes_changed };
        let class = classify(job, record.state, situation);
        let fresh = class == Class::Waiting && record.class != Class::Waiting || record.state.is_none();
        self.class_is(key, class);
        match class {
            Class::Waiting => {
                self.jobs.news |= fresh || self.is_outdated(key);
                self.call_round(now);
            }
            Class::Placed => self.stay_placed(key, job, now, effects),
            Class::Over | Class::Invalid | Class::Unfit => {}
        }
        self.write_job(key, now, effects);
    }

    fn class_is(&mut self, key: &PodKey, class: Class) {
        let Some(record) = self.jobs.records.get_mut(key) else { return };
        self.jobs.unkeyed |= (record.class == Class::Waiting) != (class == Class::Waiting);
        record.class = class;
    }

    /// The places that are left do not come to what was said of them: the next round says what they come to.
    pub(in crate::decide) fn is_outdated(&self, key: &PodKey) -> bool {
        let (Some(job), Some(record)) = (self.world.job(key), self.jobs.records.get(key)) else { return false };
        let placed = matches!(record.state, Some(ScheduleState::ScheduledSucceed | ScheduleState::ScheduledPartly));
        let Some(spec) = job.spec.as_ref().ok().filter(|_| placed && record.class == Class::Waiting) else {
            return false;
        };
        let tally = tally(job, spec, |seat| record.places.contains_key(&seat.pod));
        let judged = verdict(spec.basic, spec.min_workers, self.leader_made(job), tally);
        record.state != Some(judged.state)
    }

    /// Sees to it that a round comes while some job waits.
    fn call_waiting(&mut self, now: Moment) {
        if self.jobs.records.values().any(|record| record.class == Class::Waiting) {
            self.call_round(now);
        } else {
            self.queue.remove(Item::Jobs);
        }
    }

    /// A timer of a job is due.
    pub(in crate::decide) fn job_due(&mut self, key: &PodKey, now: Moment, effects: &mut Effects) {
        self.say_late(key, now);
        self.review_job(key, now, effects);
    }

    fn forget_job(&mut self, key: &PodKey, now: Moment) {
        self.release_places(key, now);
        self.jobs.records.remove(key);
        self.jobs.unkeyed = true;
    }

    /// Gives back every place of a job.
    pub(in crate::decide) fn release_places(&mut self, key: &PodKey, now: Moment) {
        let Some(record) = self.jobs.records.get_mut(key) else { return };
        let places = std::mem::take(&mut record.places);
        let mut freed = false;
        for mut place in places.into_values() {
            freed |= self.free_place(&mut place);
        }
        if freed {
            self.room_freed(now);
        }
    }

    /// Room is free that a job had: whoever waits for some is tried, jobs and pods.
    fn room_freed(&mut self, now: Moment) {
        self.woken(Wake::POD_FREED);
        self.jobs_news(Wake::POD_FREED, now);
    }

    /// Gives back the room of one place.
    pub(in crate::decide) fn free_place(&mut self, place: &mut JobPlace) -> bool {
        let Some(id) = place.reservation.take() else { return false };
        self.world.cancel_place(id);
        true
    }
}

/// A job as its status shows it: places of the present attempt stand.
fn adopted(job: &JobFacts, now: Moment) -> JobRecord {
    let mut record = JobRecord::new(&job.job.uid, job.attempt);
    record.told_since = job.told.as_ref().map(|told| (told.holds, told.since));
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

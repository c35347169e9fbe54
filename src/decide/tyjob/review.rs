//! The review of a job after a change of it or of one of its pods: which places stay, which are void, and whether the job waits.

use std::time::Duration;

use jiff::Unit;

use crate::core::agenda::{Agenda, NEW_POD, Scene};
use crate::core::context::Context;
use crate::core::queue::Item;
use crate::core::timers::{Moment, Timer};
use crate::pod::Phase;
use crate::world::{Changes, NodeId, Place, World};
use baton_contract::tyjob::ScheduleState;
use baton_contract::{ConditionReason, PodKey};

use super::place::{claims, free_place, free_places, leader_created, pod_to_place, reserve_at};
use super::placement::{JobClass, JobFacts, Seat, Situation, classify, verdict};
use super::round::tally;
use super::start_limit::{PodProgress, adopted_since};
use super::{JobPlace, JobRecord, TyJobs};

/// Places may be beyond a quota for this long.
const QUOTA_PATIENCE: Duration = Duration::from_secs(10);

/// The pod that has the name of a place's pod.
enum PlacePod {
    /// None.
    Awaited,
    /// One that waits to take the place over.
    Made,
    /// It holds the room itself, or has done its work.
    Settled,
    /// Not the pod that is meant, or one that goes: the controller waits for its end.
    NameTaken,
}

impl TyJobs {
    /// Marks the jobs that an event concerns for review.
    pub fn observe(&mut self, scene: Scene<'_>, agenda: &mut Agenda, changes: &Changes) {
        self.changed.extend(changes.jobs.iter().cloned());
        let gone = |id| scene.world.node(id).is_none_or(|node| node.facts.is_none());
        if changes.nodes.iter().any(|id| gone(*id)) {
            // A node is gone: the places on it are void.
            let placed = self.records.iter().filter(|(_, record)| !record.places.is_empty());
            self.changed.extend(placed.map(|(key, _)| key.clone()));
        }
        self.quotas_changed.extend(changes.quotas.clone());
        self.room_changed(scene, agenda, changes.wake);
    }

    /// Releases the room of places on a node with devices that are held beyond their capacity; it is reserved there again, or they are void.
    pub fn release_contested(&mut self, world: &mut World, agenda: &mut Agenda, node: NodeId) {
        for (key, record) in &mut self.records {
            let contested = |world: &World, place: &JobPlace| {
                place.reservation.is_some_and(|id| {
                    world.pod(id).is_some_and(|pod| pod.node() == Some(node)) && world.contested_device(id).is_some()
                })
            };
            for place in record.places.values_mut() {
                if contested(world, place) && free_place(world, place) {
                    self.changed.insert(key.clone());
                    agenda.room_freed();
                }
            }
        }
    }

    /// Reviews every job that changed.
    pub fn reconcile(&mut self, cx: &mut Context<'_>) {
        self.changed.extend(cx.reservations.take_freed_jobs());
        if !cx.terms.leading {
            self.changed.clear();
            self.quotas_changed.clear();
            return;
        }
        while let Some(key) = self.changed.pop_first() {
            self.review_job(cx, &key);
        }
        while let Some(namespace) = self.quotas_changed.pop_first() {
            if !self.beyond_quota(cx.world, &namespace, cx.terms.now.wall).is_empty() {
                // A quota is often seen to be used a moment before the pod that uses it.
                cx.agenda.timers.set(cx.terms.now.mono + QUOTA_PATIENCE, Timer::Quotas(namespace));
            }
        }
    }

    /// Gives the places back that a namespace may not have any more.
    pub fn quotas_due(&mut self, cx: &mut Context<'_>, namespace: &str) {
        for (key, why) in self.beyond_quota(cx.world, namespace, cx.terms.now.wall) {
            self.release_places(cx.world, cx.agenda, &key);
            let text = format!("its places are given back: {why}");
            self.report(
                cx.terms.scene(cx.world),
                cx.agenda,
                &key,
                ScheduleState::Unscheduled,
                ConditionReason::QuotaLowered,
                text,
            );
            self.changed.insert(key);
        }
        self.reconcile(cx);
    }

    fn review_job(&mut self, cx: &mut Context<'_>, key: &PodKey) {
        let Some(job) = cx.world.job(key).cloned() else { return self.forget_job(cx.world, cx.agenda, key) };
        let same = |record: &JobRecord| record.uid == job.job.uid && record.attempt == job.attempt;
        let known = self.records.get(key);
        let adopted = known.is_none_or(|record| !same(record));
        if adopted {
            let former = known.filter(|record| record.uid == job.job.uid).cloned();
            self.forget_job(cx.world, cx.agenda, key);
            let mut record = record_of(&job, cx.terms.now);
            if let Some(former) = former {
                record.start = former.start.of_next_attempt();
                record.writes = former.writes.of_next_attempt();
            }
            self.records.insert(key.clone(), record);
            self.placeable_changed = true;
            self.drop_round();
        }
        if let Some(former) = self.records.get_mut(key).and_then(|record| record.observe(&job)) {
            self.placeable_changed = true;
            self.drop_round();
            self.release_changed_templates(cx.world, cx.agenda, key, &former, &job);
        }
        if job.is_over() || job.spec.is_err() {
            self.release_places(cx.world, cx.agenda, key);
            self.set_class(key, if job.is_over() { JobClass::Over } else { JobClass::Invalid });
            self.schedule_round_if_waiting(cx.terms.scene(cx.world), cx.agenda);
            self.report_invalid_template(cx.terms.scene(cx.world), cx.agenda, key, &job);
            return self.clear_status(cx.terms.scene(cx.world), cx.agenda, key, &job);
        }
        if let Some(record) = self.records.get_mut(key) {
            if !job.has_address {
                record.address_since = None;
            } else if record.address_since.is_none() {
                record.address_since = Some(cx.terms.now.mono);
                // What its workers waited for is there.
                record.start.end_rest();
            }
        }
        self.review_places(cx, (key, &job), adopted);
        self.placeable_changed |= self.check_start(cx.terms, cx.world, cx.agenda, key, &job);
        self.update_class(cx.terms.scene(cx.world), cx.agenda, key, &job);
    }

    /// Releases the places of pods whose template has changed, which is allowed until the leader pod is created: room that was
    /// reserved by the old template may not fit the new one.
    fn release_changed_templates(
        &mut self,
        world: &mut World,
        agenda: &mut Agenda,
        key: &PodKey,
        former: &JobFacts,
        job: &JobFacts,
    ) {
        if leader_created(world, job) {
            return;
        }
        let Some(record) = self.records.get_mut(key) else { return };
        let pods = record.changed_templates(former, job);
        let places: Vec<JobPlace> = pods.iter().filter_map(|pod| record.places.remove(pod)).collect();
        free_places(world, agenda, places);
    }

    /// Reviews the places of a job: makes and releases their reservations and drops void places. `adopted`: the places come from the
    /// status, from another leader or attempt.
    fn review_places(&mut self, cx: &mut Context<'_>, (key, job): (&PodKey, &JobFacts), adopted: bool) {
        let Ok(spec) = &job.spec else { return };
        let Some(mut record) = self.records.remove(key) else { return };
        adopt_bound(cx.terms.scene(cx.world), &mut record, job);
        let timeout = cx.terms.config.jobs.reservation_timeout;
        let mut freed = false;
        let mut void = 0;
        let mut due: Option<Duration> = None;
        let pods: Vec<Box<str>> = record.places.keys().cloned().collect();
        for pod in pods {
            let seat = spec.seat(&job.job.key.name, &pod);
            let ended = job.ended.contains_key(&pod);
            let found = place_pod(cx.world, key, &record, &pod);
            let Some(place) = record.places.get_mut(&pod) else { continue };
            let node = cx.world.node_id(&place.node);
            let node = node.filter(|id| cx.world.node(*id).is_some_and(|node| node.facts.is_some()));
            let progress = match found {
                PlacePod::Settled => PodProgress::Settled,
                _ if ended => PodProgress::Settled,
                PlacePod::Made => PodProgress::Made,
                PlacePod::Awaited | PlacePod::NameTaken => PodProgress::Awaited,
            };
            record.start.note(
                &pod,
                progress,
                (if adopted { adopted_since(job, cx.terms.now) } else { cx.terms.now.mono }, cx.terms.now.mono),
            );
            if seat.is_none() || ended || matches!(found, PlacePod::Settled) {
                freed |= free_place(cx.world, place);
                if let Some(node) = node_of_pod(cx.world, key, &pod).filter(|_| matches!(found, PlacePod::Settled)) {
                    place.node = node;
                }
                if seat.is_none() {
                    record.places.remove(&pod);
                    record.start.keep(|other| *other != *pod);
                }
                continue;
            }
            let leader = seat.as_ref().is_some_and(Seat::is_leader);
            // The controller can create the pod only from now on: until now its name was taken, or this scheduler did not lead.
            if matches!(found, PlacePod::NameTaken) || place.reservation.is_none() {
                place.since = cx.terms.now.mono;
            }
            let usable = match (record.start.made(&pod), record.address_since) {
                // It can take its place over now, whatever else its job waits for.
                (Some(made), _) => Some(made),
                (None, _) if leader => Some(place.since),
                (None, address) => address.map(|address| address.max(place.since)),
            };
            let deadline = usable.map(|usable| usable + timeout);
            let expired = deadline.is_some_and(|deadline| deadline <= cx.terms.now.mono);
            let kept = node.filter(|_| !expired).is_some_and(|node| {
                place.reservation.is_some() || {
                    let facts = seat.as_ref().and_then(|seat| pod_to_place(cx.world, job, spec, seat));
                    place.reservation =
                        facts.and_then(|facts| reserve_at(&mut cx.placing(), facts, node, (NEW_POD, adopted)));
                    place.reservation.is_some()
                }
            });
            if kept {
                due = [due, deadline].into_iter().flatten().min();
                continue;
            }
            freed |= free_place(cx.world, place);
            record.places.remove(&pod);
            void += 1;
        }
        record.forget_ended(job);
        if let Some(at) = due {
            cx.agenda.timers.set(at.max(cx.terms.now.mono + Duration::from_millis(1)), Timer::TyJob(key.clone()));
        }
        self.placeable_changed |= void > 0;
        cx.agenda.stats.jobs.places_void += void;
        self.records.insert(key.clone(), record);
        if freed {
            cx.agenda.room_freed();
        }
    }

    /// Classifies the job by its places: it waits for more or not.
    fn update_class(&mut self, scene: Scene<'_>, agenda: &mut Agenda, key: &PodKey, job: &JobFacts) {
        let Some(record) = self.records.get(key) else { return };
        let missing = job.open_seats().iter().any(|seat| !record.places.contains_key(&seat.pod));
        let resting = record.start.resting().map(|(reason, why)| (reason, why.to_owned()));
        let situation = Situation { missing, nodes_changed: record.judged.nodes_changed, resting: resting.is_some() };
        let class = classify(job, record.state, situation);
        let fresh = class == JobClass::Waiting && record.judged.class != JobClass::Waiting;
        self.set_class(key, class);
        match class {
            JobClass::Waiting => {
                self.placeable_changed |= fresh || self.report_is_outdated(scene.world, key);
                // Else it waits as before: a round that is under way goes on to the jobs behind it.
                if self.placeable_changed || agenda.queue.state(Item::Jobs).is_none() {
                    self.schedule_round(scene, agenda);
                }
            }
            JobClass::Placed => self.report_placed(scene, agenda, key, job),
            JobClass::Resting => {
                let placed = leader_created(scene.world, job);
                let state = if placed { ScheduleState::ScheduledPartly } else { ScheduleState::Unscheduled };
                if let Some((reason, why)) = resting {
                    self.report(scene, agenda, key, state, reason, why);
                }
            }
            JobClass::Over | JobClass::Invalid | JobClass::Unfit => {}
        }
        self.write_job(scene, agenda, key);
    }

    fn set_class(&mut self, key: &PodKey, class: JobClass) {
        let Some(record) = self.records.get_mut(key) else { return };
        let former = std::mem::replace(&mut record.judged.class, class);
        if (former == JobClass::Waiting) != (class == JobClass::Waiting) {
            self.drop_round();
        }
    }

    /// `true` when the places that are left do not match the reported state: the next round reports their state.
    pub(super) fn report_is_outdated(&self, world: &World, key: &PodKey) -> bool {
        let (Some(job), Some(record)) = (world.job(key), self.records.get(key)) else { return false };
        let placed = matches!(record.state, Some(ScheduleState::ScheduledSucceed | ScheduleState::ScheduledPartly));
        let Some(spec) = job.spec.as_ref().ok().filter(|_| placed && record.judged.class == JobClass::Waiting) else {
            return false;
        };
        let tally = tally(job, spec, |seat| record.places.contains_key(&seat.pod));
        let judged = verdict(spec.basic, spec.min_workers, leader_created(world, job), tally);
        record.state != Some(judged.state)
    }

    /// Queues a round while some job waits.
    fn schedule_round_if_waiting(&mut self, scene: Scene<'_>, agenda: &mut Agenda) {
        if self.records.values().any(|record| record.judged.class == JobClass::Waiting) {
            self.schedule_round(scene, agenda);
        } else {
            agenda.queue.remove(Item::Jobs);
        }
    }

    /// A timer of a job is due.
    pub fn due(&mut self, cx: &mut Context<'_>, key: &PodKey) {
        self.report_pending(cx.terms, key);
        self.review_job(cx, key);
    }

    fn forget_job(&mut self, world: &mut World, agenda: &mut Agenda, key: &PodKey) {
        self.release_places(world, agenda, key);
        self.records.remove(key);
        self.drop_round();
    }

    /// Releases every place of a job.
    pub(super) fn release_places(&mut self, world: &mut World, agenda: &mut Agenda, key: &PodKey) {
        let Some(record) = self.records.get_mut(key) else { return };
        record.start.keep(|_| false);
        free_places(world, agenda, std::mem::take(&mut record.places).into_values());
    }
}

/// The record of a job as its status shows it, with the places of the present attempt.
fn record_of(job: &JobFacts, now: Moment) -> JobRecord {
    let mut record = JobRecord { uid: job.job.uid.clone(), attempt: job.attempt, ..JobRecord::default() };
    record.report.since = job.scheduled.as_ref().map(|condition| (condition.holds, condition.since));
    let present = job.allocations.iter().filter(|place| place.attempt == job.attempt);
    let places = present.map(|place| {
        let node = place.node.as_str().into();
        (place.pod.as_str().into(), JobPlace { node, reservation: None, since: now.mono })
    });
    record.places = places.collect();
    let void = job.allocations.iter().any(|place| place.attempt != job.attempt);
    record.state = job.state;
    if void {
        // Reported at once, whether or not there is room for the present attempt.
        record.state = Some(ScheduleState::Unscheduled);
        record.report.last = Some((
            ConditionReason::NewAttempt,
            format!("the places of attempt {} are to be found", job.attempt),
            now.mono,
        ));
        record.report.since = Some((false, now.wall.round(Unit::Second).unwrap_or(now.wall)));
    }
    record
}

/// Adds a place for every bound pod of the job: the pod's node counts, not the status.
fn adopt_bound(scene: Scene<'_>, record: &mut JobRecord, job: &JobFacts) {
    for seat in job.open_seats() {
        if record.places.contains_key(&seat.pod) {
            continue;
        }
        let pod = scene.world.pod_by_key(&PodKey::new(&job.job.key.namespace, &seat.pod));
        let ours = pod.filter(|pod| claims(pod, &record.uid, record.attempt));
        let Some(pod) = ours.filter(|pod| pod.facts.handoff.deleting.is_none()) else { continue };
        if let Some(node) = pod.node().and_then(|id| scene.world.node(id)).filter(|node| node.facts.is_some()) {
            let place = JobPlace { node: node.name.clone(), reservation: None, since: scene.terms.now.mono };
            record.places.insert(seat.pod, place);
        }
    }
}

/// The node of a pod of the job.
fn node_of_pod(world: &World, key: &PodKey, pod: &str) -> Option<Box<str>> {
    let node = world.pod_by_key(&PodKey::new(&key.namespace, pod))?.node()?;
    Some(world.node(node)?.name.clone())
}

fn place_pod(world: &World, key: &PodKey, record: &JobRecord, pod: &str) -> PlacePod {
    let Some(pod) = world.pod_by_key(&PodKey::new(&key.namespace, pod)) else { return PlacePod::Awaited };
    let (handoff, succeeded) = (&pod.facts.handoff, pod.facts.handoff.phase == Phase::Succeeded);
    match pod.place {
        _ if !claims(pod, &record.uid, record.attempt) => PlacePod::NameTaken,
        Place::Assumed(_) | Place::Bound(_) => PlacePod::Settled,
        // A pod that was deleted has not done its work: the controller creates it again, unless the job says otherwise.
        Place::Ended if succeeded && handoff.deleting.is_none() => PlacePod::Settled,
        Place::Ended => PlacePod::NameTaken,
        Place::Waiting if handoff.deleting.is_some() => PlacePod::NameTaken,
        Place::Waiting => PlacePod::Made,
    }
}

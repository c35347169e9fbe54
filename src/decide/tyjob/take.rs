//! The controller's pods take the places of their job over: the room goes from the place to the pod, and from there on the
//! pod is held, locked for and bound like any other.

use crate::contract::PodKey;
use crate::decide::scheduler::effect::Effects;
use crate::decide::scheduler::engine::Engine;
use crate::decide::scheduler::rules::View;
use crate::decide::scheduler::select::choose::{Choice, choose};
use crate::decide::scheduler::settings::Moment;
use crate::decide::tyjob::placement::Class;
use crate::decide::world::{Place, Pod, PodId, Wake};

/// What a pod's claim to a job's place comes to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::decide) enum JobRoute {
    /// No claim, or none that counts: the pod is on its own.
    None,
    /// The job's place for this very pod.
    Place(PodKey),
    /// The job's own pod, without a place for now.
    Waits(String),
}

impl Engine {
    /// A claim counts only where the job of that name and uid is there; and a place is had only where it asks for such a pod.
    pub(in crate::decide) fn job_route(&self, pod: &Pod) -> JobRoute {
        let Some(claim) = &pod.facts.spec.job else { return JobRoute::None };
        let key = PodKey::new(&pod.key().namespace, &claim.name);
        let job = self.world.job(&key).filter(|job| job.job.uid == claim.uid);
        let Some((job, record)) = job.zip(self.jobs.records.get(&key)) else { return JobRoute::None };
        let spec = match &job.spec {
            Ok(spec) => spec,
            Err(why) => return JobRoute::Waits(format!("TYJob {key} cannot be read now: {why}")),
        };
        let asked = spec.seat(&key.name, &pod.key().name);
        let job = &key;
        if asked.is_none() {
            // Made when the job asked for more: its controller takes it away, and its room is not the job's any more.
            return JobRoute::Waits(format!("TYJob {job} asks for no pod of this name"));
        }
        match record.class {
            Class::Over | Class::Invalid => return JobRoute::Waits(format!("TYJob {job} has ended")),
            _ if claim.attempt != Some(record.attempt) => {
                return JobRoute::Waits(format!(
                    "made for another attempt of TYJob {job} than the present {}",
                    record.attempt
                ));
            }
            _ => {}
        }
        if record.places.contains_key(&pod.key().name) {
            return JobRoute::Place(key);
        }
        JobRoute::Waits(format!("TYJob {job} has no place for this pod for now"))
    }

    /// Gives a pod the place of its job. When it does not fit there any more it waits; the place goes in time, and another one
    /// is looked for.
    pub(in crate::decide) fn take_place(&mut self, id: PodId, key: &PodKey, now: Moment, effects: &mut Effects) {
        let Some(pod) = self.world.pod(id) else { return };
        let name = pod.key().name.clone();
        let priority = pod.facts.spec.priority;
        let place = self.jobs.records.get_mut(key).and_then(|record| record.places.get_mut(&name));
        let Some(place) = place else { return };
        let (node, reservation) = (self.world.node_id(&place.node), place.reservation.take());
        if let Some(reservation) = reservation {
            self.world.cancel_place(reservation);
        }
        self.stats.attempts += 1;
        let shadows = self.shadow(priority, id, now);
        let view = View { world: &self.world, now: now.mono };
        let found = self.world.pod(id).zip(node).map(|(pod, node)| choose(view, &self.plugins, pod, Some(node)));
        self.lift(shadows);
        let (text, wake) = match found {
            Some((Choice::Node(node, slots), judged)) => {
                self.stats.judged += judged;
                if self.hold(id, node, *slots, now) {
                    self.stats.job_places_taken += 1;
                    return self.permit(id, now, effects);
                }
                ("a reservation was refused".to_owned(), Wake::ANY)
            }
            Some((Choice::Nowhere(diagnosis), _)) => (diagnosis.message(), diagnosis.wake.or(Wake::ANY)),
            Some((Choice::WaitUntil(_, refusal), _)) => (refusal.text.into_owned(), Wake::ANY),
            Some((Choice::Fault(text), _)) => (text.into_owned(), Wake::ANY),
            None => ("the node of its place is gone".to_owned(), Wake::ANY),
        };
        // Room that was kept stays kept until the place is void: nobody else gets it meanwhile.
        self.keep_room(id, key, now);
        self.queue.park(id, wake, now.mono, now.wall);
        self.tell(id, "Unschedulable", format!("does not fit into its place of TYJob {key}: {text}"), now, effects);
    }

    fn keep_room(&mut self, id: PodId, key: &PodKey, now: Moment) {
        let Some(pod) = self.world.pod(id) else { return };
        let name = pod.key().name.clone();
        let Some(job) = self.world.job(key).cloned() else { return };
        let place = self.jobs.records.get(key).and_then(|record| record.places.get(&name));
        let node = place.and_then(|place| self.world.node_id(&place.node));
        let facts = job.spec.as_ref().ok().and_then(|spec| {
            let seat = spec.seat(&key.name, &name)?;
            self.pod_to_place(&job, spec, &seat)
        });
        let reservation = node.zip(facts).and_then(|(node, facts)| self.reserve_at(facts, node, (id, false), now));
        let place = self.jobs.records.get_mut(key).and_then(|record| record.places.get_mut(&name));
        match (place, reservation) {
            (Some(place), Some(reservation)) => place.reservation = Some(reservation),
            // Not even the plan fits any more: the place is void.
            _ => self.void_place(key, &name),
        }
    }

    fn void_place(&mut self, key: &PodKey, name: &str) {
        if let Some(record) = self.jobs.records.get_mut(key)
            && record.places.remove(name).is_some()
        {
            self.stats.job_places_void += 1;
            self.jobs.news = true;
            self.jobs.dirty.insert(key.clone());
        }
    }

    /// Places were found: pods that wait for one are tried.
    pub(in crate::decide) fn pods_may_come(&mut self, key: &PodKey, now: Moment, effects: &mut Effects) {
        let Some(record) = self.jobs.records.get(key) else { return };
        let names = record.places.keys().map(|name| PodKey::new(&key.namespace, name));
        let waiting = names.filter_map(|name| self.world.pod_by_key(&name));
        let waiting: Vec<PodId> = waiting.filter(|pod| pod.place == Place::Waiting).map(|pod| pod.id).collect();
        for id in waiting {
            self.enqueue(id, now, effects);
        }
    }

    /// The pod has given its room back: its job keeps the place.
    pub(in crate::decide) fn note_job_pod(&mut self, id: PodId) {
        let claim = self.world.pod(id).and_then(|pod| Some((pod.key(), pod.facts.spec.job.as_ref()?)));
        if let Some(key) = claim.map(|(key, claim)| PodKey::new(&key.namespace, &claim.name)) {
            self.jobs.dirty.insert(key);
        }
    }
}

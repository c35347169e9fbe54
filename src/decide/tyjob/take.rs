//! The controller's pods take over the places of their job: the reservation passes from the place to the pod, which is then locked
//! for and bound like any other.

use crate::core::agenda::{Agenda, Step};
use crate::core::context::Context;
use crate::core::select::choose::{NodeChoice, choose};
use crate::world::{Place, Pod, PodId, Wake, World};
use baton_contract::{ConditionReason, PodKey};

use super::place::{pod_to_place, reserve_at};
use super::placement::JobClass;
use super::{PlaceRoute, TyJobs};

impl TyJobs {
    /// What the pod's claim results in. It is valid only if a job of that name and uid exists; a place is given only to a pod that
    /// the spec asks for.
    pub fn route(&self, world: &World, pod: &Pod) -> PlaceRoute {
        let Some(claim) = &pod.facts.spec.job else { return PlaceRoute::None };
        let key = PodKey::new(&pod.key().namespace, &claim.name);
        let job = world.job(&key).filter(|job| job.job.uid == claim.uid);
        let Some((job, record)) = job.zip(self.records.get(&key)) else { return PlaceRoute::None };
        let spec = match &job.spec {
            Ok(spec) => spec,
            Err(why) => return PlaceRoute::Waits(format!("TYJob {key} cannot be read now: {why}")),
        };
        let seat = spec.seat(&key.name, &pod.key().name);
        let job = &key;
        if seat.is_none() {
            // Created when the job asked for more pods: the controller deletes it, and its place is already released.
            return PlaceRoute::Waits(format!("TYJob {job} asks for no pod of this name"));
        }
        match record.judged.class {
            JobClass::Over | JobClass::Invalid => return PlaceRoute::Waits(format!("TYJob {job} has ended")),
            _ if claim.attempt != Some(record.attempt) => {
                return PlaceRoute::Waits(format!(
                    "made for another attempt of TYJob {job} than the present {}",
                    record.attempt
                ));
            }
            _ => {}
        }
        if record.places.contains_key(&pod.key().name) {
            return PlaceRoute::Place(key);
        }
        PlaceRoute::Waits(format!("TYJob {job} has no place for this pod for now"))
    }

    /// Lets a pod take over its place. If it does not fit there any more it waits: the place becomes void in time, and another one is
    /// searched for.
    pub fn take_place(&mut self, cx: &mut Context<'_>, id: PodId, key: &PodKey) {
        let Some(pod) = cx.world.pod(id) else { return };
        let place = self.records.get(key).and_then(|record| record.places.get(&pod.key().name));
        if let Some(node) = place.and_then(|place| cx.world.node_id(&place.node)) {
            cx.earmarks.open_node(cx.world, node);
        }
        self.take_open_place(cx, id, key);
        cx.earmarks.close(cx.world);
    }

    /// The same, its node being open.
    fn take_open_place(&mut self, cx: &mut Context<'_>, id: PodId, key: &PodKey) {
        let Some(pod) = cx.world.pod(id) else { return };
        let name = pod.key().name.clone();
        let place = self.records.get_mut(key).and_then(|record| record.places.get_mut(&name));
        let Some(place) = place else { return };
        let (node, reservation) = (cx.world.node_id(&place.node), place.reservation.take());
        let held = reservation.and_then(|reservation| cx.world.cancel_place(reservation));
        cx.agenda.stats.attempts += 1;
        // The room is the job's: what is nominated there has room beside it, though its victims may not have left.
        let found = cx
            .world
            .pod(id)
            .zip(node)
            .map(|(pod, node)| choose(cx.terms.view(cx.world), cx.terms.rules, pod, Some(node)));
        let (text, wake) = match found {
            Some((NodeChoice::Node(node, slots), judged)) => {
                cx.agenda.stats.judged += judged;
                if cx.reservations.reserve(cx.terms, cx.world, id, node, *slots) {
                    cx.agenda.stats.jobs.places_taken += 1;
                    wake_for_rest(cx, held.as_deref(), id);
                    return cx.agenda.steps.push(Step::Permit(id));
                }
                ("a reservation was refused".to_owned(), Wake::ANY)
            }
            Some((NodeChoice::Nowhere(diagnosis), _)) => (diagnosis.message(), diagnosis.wake.or(Wake::ANY)),
            Some((NodeChoice::WaitUntil(_, refusal), _)) => (refusal.text.into_owned(), Wake::ANY),
            Some((NodeChoice::Fault(text), _)) => (text.into_owned(), Wake::ANY),
            None => ("the node of its place is gone".to_owned(), Wake::ANY),
        };
        // The room stays reserved until the place is void: no other pod gets it meanwhile.
        if let Some(reservation) = self.reserve_again(cx, id, key) {
            wake_for_rest(cx, held.as_deref(), reservation);
        }
        cx.agenda.queue.park(id, wake, cx.terms.now.mono);
        cx.agenda.steps.push(Step::Report(
            id,
            ConditionReason::Unschedulable,
            format!("does not fit into its place of TYJob {key}: {text}").into(),
        ));
    }

    /// Reserves the room of a place that its pod could not take over.
    fn reserve_again(&mut self, cx: &mut Context<'_>, id: PodId, key: &PodKey) -> Option<PodId> {
        let name = cx.world.pod(id)?.key().name.clone();
        let job = cx.world.job(key).cloned()?;
        let place = self.records.get(key).and_then(|record| record.places.get(&name));
        let node = place.and_then(|place| cx.world.node_id(&place.node));
        let facts = job.spec.as_ref().ok().and_then(|spec| {
            let seat = spec.seat(&key.name, &name)?;
            pod_to_place(cx.world, &job, spec, &seat)
        });
        let reservation =
            node.zip(facts).and_then(|(node, facts)| reserve_at(&mut cx.placing(), facts, node, (id, false)));
        let place = self.records.get_mut(key).and_then(|record| record.places.get_mut(&name));
        match (place, reservation) {
            (Some(place), Some(reservation)) => place.reservation = Some(reservation),
            // The template does not fit any more either: the place is void.
            _ => self.void_place(cx.agenda, key, &name),
        }
        reservation
    }

    fn void_place(&mut self, agenda: &mut Agenda, key: &PodKey, name: &str) {
        if let Some(record) = self.records.get_mut(key)
            && record.places.remove(name).is_some()
        {
            agenda.stats.jobs.places_void += 1;
            self.placeable_changed = true;
            self.changed.insert(key.clone());
            agenda.room_freed();
        }
    }

    /// Queues the created pods of a job that has got places.
    pub(super) fn enqueue_pods(&mut self, world: &World, agenda: &mut Agenda, key: &PodKey) {
        let Some(record) = self.records.get(key) else { return };
        let names = record.places.keys().map(|name| PodKey::new(&key.namespace, name));
        let waiting = names.filter_map(|name| world.pod_by_key(&name));
        let waiting: Vec<PodId> = waiting.filter(|pod| pod.place == Place::Waiting).map(|pod| pod.id).collect();
        for id in waiting {
            agenda.enqueue(id);
        }
    }
}

/// Devices are chosen again when a place is taken over, and its pod may ask for less than the template: what is left is other pods'.
fn wake_for_rest(cx: &mut Context<'_>, held: Option<&Pod>, now: PodId) {
    if held.zip(cx.world.pod(now)).is_some_and(|(held, now)| held.leaves_room(now)) {
        cx.agenda.room_freed();
    }
}

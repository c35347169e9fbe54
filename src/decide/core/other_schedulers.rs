//! Pods for Baton that name a scheduler which is not Baton: they carry a gang key or ask for a device, and nothing will hold the gang
//! together or assign the device. Each controller of such pods gets one event while they wait; and each pod of a gang gets one when
//! another scheduler has bound it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::world::gangs::NamedBy;
use crate::world::{Place, Pod, PodId, World};

use super::agenda::{Agenda, Terms};
use super::timers::Timer;
use baton_contract::EventReason;

/// How long such a pod waits unbound before it is reported: its own scheduler may bind it meanwhile.
pub const OTHER_SCHEDULER_AFTER: Duration = Duration::from_secs(30);

/// What a pod wants of Baton that the scheduler it names does not give: a gang, or a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UnservedWant {
    /// It carries a key of a gang.
    Gang,
    /// It asks for a device.
    Device,
}

/// What `pod` wants of Baton, if it waits for a scheduler that is not one of `served`.
pub fn wants_of_another(world: &World, pod: &Pod, served: impl Fn(&str) -> bool) -> Option<UnservedWant> {
    let handoff = &pod.facts.handoff;
    let waits = pod.place == Place::Waiting && handoff.deleting.is_none() && pod.facts.spec.gates.is_empty();
    if !waits || served(&handoff.scheduler_name) {
        return None;
    }
    let gang = pod.facts.spec.gang.as_ref().and_then(|declared| world.gangs().named(declared));
    gang.map(|_| UnservedWant::Gang).or_else(|| pod.asks_for_devices().then_some(UnservedWant::Device))
}

/// Why Baton leaves such a pod alone, and what to do. `ours`: the name to set.
pub fn other_scheduler_text(want: UnservedWant, named: &str, ours: &str) -> String {
    let want = match want {
        UnservedWant::Gang => "carries a gang key",
        UnservedWant::Device => "asks for a device",
    };
    format!(
        "the pod {want}, but names the scheduler {named:?}, which is not Baton: set spec.schedulerName: {ours} in the pod template and create the pod again"
    )
}

/// Uid of the pod's controller, or of the pod where it has none.
pub fn controller_of(pod: &Pod) -> &str {
    let spec = &pod.facts.spec;
    let of_gang = || Some(&spec.gang.as_ref()?.owner.as_ref()?.uid);
    spec.controller.as_ref().or_else(of_gang).map_or_else(|| pod.facts.handoff.pod.uid.as_str(), Box::as_ref)
}

/// Pods of one controller that wait for a scheduler that is not Baton.
#[derive(Debug, Default)]
struct PodsOfController {
    pods: BTreeSet<PodId>,
    reported: bool,
}

/// Pods of other schedulers that were seen.
#[derive(Debug, Default)]
pub struct OtherSchedulers {
    controller_of: BTreeMap<PodId, Box<str>>,
    controllers: BTreeMap<Box<str>, PodsOfController>,
    /// Pods of gangs that were seen without a node.
    members: BTreeSet<PodId>,
}

impl OtherSchedulers {
    /// A pod has come or changed.
    pub fn observe(&mut self, terms: Terms<'_>, world: &World, agenda: &mut Agenda, id: PodId) {
        self.observe_member(terms, world, agenda, id);
        let known = self.controller_of.contains_key(&id);
        match world.pod(id).filter(|pod| terms.leading && want(terms, world, pod).is_some()) {
            None => self.forget(id),
            Some(_) if known => {}
            Some(pod) => {
                let key: Box<str> = controller_of(pod).into();
                self.controllers.entry(Box::clone(&key)).or_default().pods.insert(id);
                self.controller_of.insert(id, key);
                agenda.timers.set(terms.now.mono + OTHER_SCHEDULER_AFTER, Timer::OtherScheduler(id));
            }
        }
    }

    /// Reports a member of a gang that was seen without a node and has one now that Baton did not choose.
    fn observe_member(&mut self, terms: Terms<'_>, world: &World, agenda: &mut Agenda, id: PodId) {
        let Some(pod) = world.pod(id).filter(|_| terms.leading) else { return };
        // kube-scheduler itself holds the gangs of `spec.schedulingGroup` together.
        let book = world.gangs();
        let named = pod.facts.spec.gang.as_ref().and_then(|said| said.named(book.defaults()));
        let Some(named) = named.filter(|named| named.by != NamedBy::SchedulingGroup) else { return };
        if pod.place == Place::Waiting {
            self.members.insert(id);
            return;
        }
        if !self.members.remove(&id) || !matches!(pod.place, Place::Bound(_)) {
            return;
        }
        let handoff = &pod.facts.handoff;
        let (ours, name) = (terms.is_ours(pod), &handoff.scheduler_name);
        let with = named.gang.as_ref().map_or_else(|_| "a gang".to_owned(), |gang| format!("gang {gang}"));
        let set = terms.config.scheduler_names.first().map_or("", |name| name);
        let text = match (ours, handoff.assignment.bind_timestamp.is_some()) {
            (true, true) => return,
            (true, false) => format!("the pod was bound by another client than Baton, and not together with {with}"),
            (false, _) => format!(
                "the scheduler {name:?} has bound the pod, and Baton does not see to it that {with} starts together: if that scheduler does \
                 not either, set spec.schedulerName: {set} in the pod template and create the pod again"
            ),
        };
        agenda.warning(world, id, EventReason::NotScheduledByBaton, text);
    }

    /// A pod has waited for [`OTHER_SCHEDULER_AFTER`].
    pub fn due(&mut self, terms: Terms<'_>, world: &World, agenda: &mut Agenda, id: PodId) {
        let Some((pod, want)) = world.pod(id).and_then(|pod| Some((pod, want(terms, world, pod)?))) else { return };
        let ours = terms.config.scheduler_names.first().map_or("", |name| name);
        let text = other_scheduler_text(want, &pod.facts.handoff.scheduler_name, ours);
        let Some(key) = self.controller_of.get(&id) else { return };
        let Some(controller) = self.controllers.get_mut(key) else { return };
        if !std::mem::replace(&mut controller.reported, true) {
            agenda.warning(world, id, EventReason::NotScheduledByBaton, text);
        }
    }

    /// A pod is gone.
    pub fn gone(&mut self, id: PodId) {
        self.members.remove(&id);
        self.forget(id);
    }

    /// A pod is gone, bound or served after all.
    fn forget(&mut self, id: PodId) {
        let Some(key) = self.controller_of.remove(&id) else { return };
        let Some(controller) = self.controllers.get_mut(&key) else { return };
        controller.pods.remove(&id);
        if controller.pods.is_empty() {
            self.controllers.remove(&key);
        }
    }
}

fn want(terms: Terms<'_>, world: &World, pod: &Pod) -> Option<UnservedWant> {
    let config = terms.config;
    wants_of_another(world, pod, |name| config.scheduler_names.contains(name) || config.asking_names.contains(name))
}

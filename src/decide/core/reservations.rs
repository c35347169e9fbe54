//! Room that is reserved for a pod from the choice of its node until it is being bound. The Reserve rules make a reservation, the
//! Permit rules let it go on, and it is released as a whole.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::devices::Held;
use crate::world::gangs::GroupId;
use crate::world::volume::VolumePlan;
use crate::world::{Node, NodeId, Pod, PodId, Wake, World};
use baton_contract::{ConditionReason, PodKey, Shared, key};

use super::agenda::{Agenda, Step, Terms};
use super::rules::points::ClaimedParts;
use super::rules::{Annotations, Claimed, KnownRequest, Outcome, Slots};
use super::timers::Timer;

/// The room of a pod that is not being bound yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reservation {
    /// The node.
    pub node: NodeId,
    /// The Binding's annotations, all but the time.
    pub annotations: Shared<Annotations>,
    /// The pod's device request, as judged.
    pub wanted: Option<Arc<KnownRequest>>,
    /// Monotonic time of the reservation.
    pub since: Duration,
    /// The pod's group.
    pub group: Option<GroupId>,
    /// Once the group is satisfied: the commit to which the pod belongs.
    pub commit: Option<u64>,
}

/// A reservation that was undone and can be restored.
#[derive(Debug, Clone)]
pub struct Saved {
    /// The pod.
    pub pod: PodId,
    reservation: Reservation,
    devices: Option<Held>,
    volumes: Option<VolumePlan>,
}

impl Saved {
    /// The node.
    pub const fn node(&self) -> NodeId {
        self.reservation.node
    }

    /// The pod has the same room, still or again.
    pub fn stands(&self, world: &World) -> bool {
        let at = Some(self.reservation.node);
        world.pod(self.pod).is_some_and(|pod| pod.node() == at && pod.devices == self.devices)
    }
}

/// All reservations. They are made, released and restored only here.
#[derive(Debug, Clone, Default)]
pub struct Reservations {
    held: BTreeMap<PodId, Reservation>,
    /// Members of a commit that lost their room before their bind attempt began, since the last [`Reservations::take_lost`].
    lost: Vec<(u64, PodId)>,
    /// TYJobs of pods that lost their room, since the last [`Reservations::take_freed_jobs`].
    freed_jobs: Vec<PodKey>,
    /// Pods that may go to one node only: their bind is resumed under the lock that they hold there.
    pinned: BTreeMap<PodId, NodeId>,
}

impl Reservations {
    /// The reservation of a pod.
    pub fn get(&self, id: PodId) -> Option<&Reservation> {
        self.held.get(&id)
    }

    /// The node on which a pod has its reservation.
    pub fn node_of(&self, id: PodId) -> Option<NodeId> {
        self.held.get(&id).map(|reservation| reservation.node)
    }

    /// All reservations by pod.
    pub const fn all(&self) -> &BTreeMap<PodId, Reservation> {
        &self.held
    }

    /// Pods of a group that have a reservation.
    pub fn of_group<'a>(&'a self, group: &'a GroupId) -> impl Iterator<Item = PodId> + 'a {
        let of_group = |(_, reservation): &(&PodId, &Reservation)| reservation.group.as_ref() == Some(group);
        self.held.iter().filter(of_group).map(|(id, _)| *id)
    }

    /// Runs the Reserve rules and reserves the pod's room on `node`. `false` when a rule refuses; then nothing is reserved.
    pub fn reserve(&mut self, terms: Terms<'_>, world: &mut World, id: PodId, node: NodeId, mut slots: Slots) -> bool {
        let Some(pod) = world.pod(id) else { return false };
        let mut claimed = Claimed::default();
        let rules = &terms.rules.enabled().reserve;
        for (done, rule) in rules.iter().enumerate() {
            if !matches!(rule.reserve(terms.view(world), pod, node, &mut slots, &mut claimed), Outcome::Fit) {
                rules[..done].iter().rev().for_each(|rule| rule.unreserve(pod, node));
                return false;
            }
        }
        let group = world.gangs().gang_of(id).map(|gang| gang.group().clone());
        let ClaimedParts(annotations, wanted, devices, choice, volumes) = claimed.into_parts();
        if world.assume_chosen(id, node, devices, choice.as_deref())
            && let Some(plan) = volumes
        {
            world.plan_volumes(id, plan);
        }
        let (annotations, since) = (annotations.into(), terms.now.mono);
        self.held.insert(id, Reservation { node, annotations, wanted, since, group, commit: None });
        true
    }

    /// Makes the reservation part of a commit, which its Binding carries as an annotation.
    pub fn commit(&mut self, id: PodId, commit: Option<u64>, annotation: String) {
        if let Some(reservation) = self.held.get_mut(&id) {
            reservation.annotations.set(key::GANG_COMMITTED, annotation);
            reservation.commit = commit;
        }
    }

    /// Hands the reservation to a bind attempt: the room stays taken in the world.
    pub fn take(&mut self, id: PodId) -> Option<Reservation> {
        self.held.remove(&id)
    }

    /// Releases a reservation and wakes what waits for room; the pod waits again, or is in the state that the API shows. `false` when
    /// it had none.
    pub fn release(&mut self, terms: Terms<'_>, world: &mut World, agenda: &mut Agenda, id: PodId) -> bool {
        let Some(reservation) = self.held.remove(&id) else { return false };
        self.free(terms, world, agenda, id, reservation.node);
        self.lost.extend(reservation.commit.map(|commit| (commit, id)));
        true
    }

    /// Releases the reservations on a node with devices that are held beyond their capacity; their pods are queued again.
    pub fn release_contested(&mut self, terms: Terms<'_>, world: &mut World, agenda: &mut Agenda, node: NodeId) {
        let here = |(_, reservation): &(&PodId, &Reservation)| reservation.node == node;
        for id in self.held.iter().filter(here).map(|(id, _)| *id).collect::<Vec<_>>() {
            if world.contested_device(id).is_some() && self.release(terms, world, agenda, id) {
                agenda.steps.push(Step::Retry(id));
            }
        }
    }

    /// Releases the room of a pod, reserved or taken over by a bind attempt, with devices, ports and volumes, and wakes what waits for
    /// room. Nothing happens if the API shows the pod bound.
    pub fn free(&mut self, terms: Terms<'_>, world: &mut World, agenda: &mut Agenda, id: PodId, node: NodeId) {
        if self.give_back(terms, world, id, node) {
            agenda.wake(Wake::POD_FREED);
        }
    }

    /// The same without waking: used where no decision has seen the room taken.
    fn give_back(&mut self, terms: Terms<'_>, world: &mut World, id: PodId, node: NodeId) -> bool {
        if let Some(pod) = world.pod(id) {
            terms.rules.enabled().reserve.iter().rev().for_each(|rule| rule.unreserve(pod, node));
        }
        let freed = world.forget(id);
        if freed
            && let Some(pod) = world.pod(id)
            && let Some(claim) = &pod.facts.spec.job
        {
            self.freed_jobs.push(PodKey::new(&pod.key().namespace, &claim.name));
        }
        freed
    }

    /// Undoes the reservations of a failed attempt, the latest first.
    pub fn undo(&mut self, terms: Terms<'_>, world: &mut World, pods: &[PodId]) {
        for id in pods.iter().rev() {
            if let Some(reservation) = self.held.remove(id) {
                self.give_back(terms, world, *id, reservation.node);
            }
        }
    }

    /// A copy of a reservation with its devices and volumes.
    pub fn copy(&self, world: &World, id: PodId) -> Option<Saved> {
        let reservation = self.held.get(&id)?.clone();
        let devices = world.pod(id).and_then(|pod| pod.devices.clone());
        Some(Saved { pod: id, reservation, devices, volumes: world.volumes().plan_of(id).cloned() })
    }

    /// Undoes a reservation so that it can be restored.
    pub fn save(&mut self, terms: Terms<'_>, world: &mut World, id: PodId) -> Option<Saved> {
        let saved = self.copy(world, id)?;
        self.undo(terms, world, &[id]);
        Some(saved)
    }

    /// Restores a saved reservation.
    pub fn restore(&mut self, world: &mut World, saved: Saved) {
        let Saved { pod, reservation, devices, volumes } = saved;
        if world.assume(pod, reservation.node, devices) {
            if let Some(plan) = volumes {
                world.plan_volumes(pod, plan);
            }
            self.held.insert(pod, reservation);
        }
    }

    /// Runs the Permit rules for a reserved pod. `true` when it may be bound now; else it waits, or is queued again.
    pub fn permit(&mut self, terms: Terms<'_>, world: &mut World, agenda: &mut Agenda, id: PodId) -> bool {
        let (Some(node), Some(pod)) = (self.node_of(id), world.pod(id)) else { return false };
        let mut slots = Slots::default();
        let verdicts =
            terms.rules.enabled().permit.iter().map(|rule| rule.permit(terms.view(world), pod, node, &mut slots));
        let (reason, text) = match verdicts.into_iter().find(|verdict| !verdict.is_fit()) {
            None | Some(Outcome::Fit) => return true,
            Some(Outcome::WaitUntil(at, _)) => {
                agenda.timers.set(at.max(terms.now.mono + Duration::from_millis(1)), Timer::Permit(id));
                return false;
            }
            Some(Outcome::Unfit(no) | Outcome::Never(no)) => {
                self.release(terms, world, agenda, id);
                agenda.queue.park(id, no.wake, terms.now.mono);
                (ConditionReason::Unschedulable, no.text)
            }
            Some(Outcome::Fault(text)) => {
                self.release(terms, world, agenda, id);
                agenda.queue.fail(id, terms.now.mono);
                (ConditionReason::SchedulerError, text)
            }
        };
        agenda.steps.push(Step::Report(id, reason, text.into_owned().into()));
        false
    }

    /// `true` when the decision behind a reservation is void: the node is gone or suspect, a device is out of use or assigned to another pod, or
    /// the node does not serve a resource name, or GPU shares, any more.
    pub fn is_outdated(&self, world: &World, id: PodId) -> bool {
        let Some(node) = self.node_of(id) else { return false };
        let Some(found) = world.node(node).filter(|node| node.facts.is_some()) else { return true };
        let Some(pod) = world.pod(id) else { return true };
        let Some(devices) = &pod.devices else { return false };
        let out_of_use = found.stock.as_ref().is_none_or(|stock| stock.out_of_use(devices).is_some());
        out_of_use
            || matches!(found.suspect(), Some((_, true)))
            || found.stock.as_ref().is_some_and(|stock| stock.refusal_of_shares(pod).is_some())
            || world.contested_device(id).is_some()
            || expected_names(pod, found, None).iter().any(|name| !found.serves(name))
    }

    /// Members of a commit that lost their room before their bind attempt began, since the last call.
    pub fn take_lost(&mut self) -> Vec<(u64, PodId)> {
        std::mem::take(&mut self.lost)
    }

    /// TYJobs of pods that lost their room, since the last call: the places are the jobs' again.
    pub fn take_freed_jobs(&mut self) -> Vec<PodKey> {
        std::mem::take(&mut self.freed_jobs)
    }

    /// Restricts a pod to this node: it holds the lock there.
    pub fn pin(&mut self, id: PodId, node: NodeId) {
        self.pinned.insert(id, node);
    }

    /// The node to which a pod is restricted.
    pub fn pinned(&self, id: PodId) -> Option<NodeId> {
        self.pinned.get(&id).copied()
    }

    /// Lifts the restriction; returns the node.
    pub fn unpin(&mut self, id: PodId) -> Option<NodeId> {
        self.pinned.remove(&id)
    }

    /// Releases everything: this process starts or stops leading.
    pub fn clear(&mut self, terms: Terms<'_>, world: &mut World, agenda: &mut Agenda) {
        for id in self.held.keys().copied().collect::<Vec<_>>() {
            self.release(terms, world, agenda, id);
        }
        *self = Self::default();
    }
}

/// Resource names for which the kubelet of `node` will call Allocate for `pod`, sorted: usually all that it requests.
pub fn expected_names(pod: &Pod, node: &Node, wanted: Option<&KnownRequest>) -> Shared<Vec<Box<str>>> {
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

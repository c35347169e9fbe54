//! Room that is held for a pod from the choice of its node until it is being bound: reserved by the Reserve rules, let go on by
//! the Permit rules, given back whole.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::contract::{PodKey, Shared, key};
use crate::decide::devices::Held;
use crate::decide::world::gangs::GroupId;
use crate::decide::world::volume::VolumePlan;
use crate::decide::world::{Node, NodeId, Pod, PodId, Wake, World};

use super::context::{Context, Step};
use super::rules::{Annotations, Claimed, Outcome, Slots, Wanted};
use super::timers::Timer;

/// Room that is held for a pod that is not being bound yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reservation {
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

/// A reservation that was taken back and may be held again as it was.
#[derive(Debug, Clone)]
pub struct Saved {
    /// The pod.
    pub pod: PodId,
    reservation: Reservation,
    devices: Option<Held>,
    volumes: Option<VolumePlan>,
}

impl Saved {
    /// Where it was held.
    pub const fn node(&self) -> NodeId {
        self.reservation.node
    }
}

/// All reservations. They are made, given back and restored here only.
#[derive(Debug, Default)]
pub struct Reservations {
    held: BTreeMap<PodId, Reservation>,
    /// Members of a commit whose room was given back before they were being bound, since somebody took these.
    lost: Vec<(u64, PodId)>,
    /// TYJobs of which a pod gave its room back, since somebody took these.
    freed_jobs: Vec<PodKey>,
    /// Pods that may go to one node only: their binds are resumed under the lock that they hold there.
    pinned: BTreeMap<PodId, NodeId>,
}

impl Reservations {
    /// The reservation of a pod.
    pub fn get(&self, id: PodId) -> Option<&Reservation> {
        self.held.get(&id)
    }

    /// The node on which room is held for a pod.
    pub fn node_of(&self, id: PodId) -> Option<NodeId> {
        self.held.get(&id).map(|reservation| reservation.node)
    }

    /// All of them by pod.
    pub const fn all(&self) -> &BTreeMap<PodId, Reservation> {
        &self.held
    }

    /// Pods for which a group holds room.
    pub fn of_group<'a>(&'a self, group: &'a GroupId) -> impl Iterator<Item = PodId> + 'a {
        let of_group = |(_, reservation): &(&PodId, &Reservation)| reservation.group.as_ref() == Some(group);
        self.held.iter().filter(of_group).map(|(id, _)| *id)
    }

    /// Runs the Reserve rules and takes the room of `node`. `false` when a rule refused; then nothing is held.
    pub fn reserve(cx: &mut Context<'_>, id: PodId, node: NodeId, mut slots: Slots) -> bool {
        let Some(pod) = cx.world.pod(id) else { return false };
        let mut claimed = Claimed::default();
        let rules = &cx.rules.enabled().reserve;
        for (done, rule) in rules.iter().enumerate() {
            if !matches!(rule.reserve(cx.view(), pod, node, &mut slots, &mut claimed), Outcome::Fit) {
                rules[..done].iter().rev().for_each(|rule| rule.unreserve(pod, node));
                return false;
            }
        }
        let group = cx.world.gangs().gang_of(id).map(|gang| gang.group().clone());
        let Claimed { devices, choice, wanted, volumes, annotations } = claimed;
        if cx.world.assume_chosen(id, node, devices, choice.as_deref())
            && let Some(plan) = volumes
        {
            cx.world.plan_volumes(id, plan);
        }
        let (annotations, since) = (annotations.into(), cx.now.mono);
        cx.reservations.held.insert(id, Reservation { node, annotations, wanted, since, group, commit: None });
        true
    }

    /// Makes the reservation part of a commit, and lets its Binding say so.
    pub fn commit(&mut self, id: PodId, commit: Option<u64>, annotation: String) {
        if let Some(reservation) = self.held.get_mut(&id) {
            reservation.annotations.set(key::GANG_COMMITTED, annotation);
            reservation.commit = commit;
        }
    }

    /// Takes the reservation over for a bind attempt: the room stays taken.
    pub fn take(&mut self, id: PodId) -> Option<Reservation> {
        self.held.remove(&id)
    }

    /// Gives a reservation back and wakes what waits for room; the pod waits again, or is whatever the API shows. `false` when
    /// nothing was held.
    pub fn release(cx: &mut Context<'_>, id: PodId) -> bool {
        let Some(reservation) = cx.reservations.held.remove(&id) else { return false };
        Self::free(cx, id, reservation.node);
        cx.reservations.lost.extend(reservation.commit.map(|commit| (commit, id)));
        true
    }

    /// Gives the room of a pod back, be it reserved or taken over by a bind attempt, unless the API has shown the pod bound
    /// meanwhile: devices, ports and volumes go with it. What waits for room is woken.
    pub fn free(cx: &mut Context<'_>, id: PodId, node: NodeId) {
        if Self::give_back(cx, id, node) {
            cx.wake(Wake::POD_FREED);
        }
    }

    /// The same for room that no decision has ever missed: an attempt that is undone wakes nothing.
    fn give_back(cx: &mut Context<'_>, id: PodId, node: NodeId) -> bool {
        if let Some(pod) = cx.world.pod(id) {
            cx.rules.enabled().reserve.iter().rev().for_each(|rule| rule.unreserve(pod, node));
        }
        let freed = cx.world.forget(id);
        if freed
            && let Some(pod) = cx.world.pod(id)
            && let Some(claim) = &pod.facts.spec.job
        {
            cx.reservations.freed_jobs.push(PodKey::new(&pod.key().namespace, &claim.name));
        }
        freed
    }

    /// Undoes the reservations of an attempt that came to nothing, the latest first.
    pub fn undo(cx: &mut Context<'_>, pods: &[PodId]) {
        for id in pods.iter().rev() {
            if let Some(reservation) = cx.reservations.held.remove(id) {
                Self::give_back(cx, *id, reservation.node);
            }
        }
    }

    /// A copy of a reservation with what it holds.
    pub fn copy(&self, world: &World, id: PodId) -> Option<Saved> {
        let reservation = self.held.get(&id)?.clone();
        let devices = world.pod(id).and_then(|pod| pod.devices.clone());
        Some(Saved { pod: id, reservation, devices, volumes: world.volume_plan(id).cloned() })
    }

    /// Undoes one reservation so that it can be restored.
    pub fn save(cx: &mut Context<'_>, id: PodId) -> Option<Saved> {
        let saved = cx.reservations.copy(cx.world, id)?;
        Self::undo(cx, &[id]);
        Some(saved)
    }

    /// Holds a saved reservation again as it was.
    pub fn restore(cx: &mut Context<'_>, saved: Saved) {
        let Saved { pod, reservation, devices, volumes } = saved;
        if cx.world.assume(pod, reservation.node, devices) {
            if let Some(plan) = volumes {
                cx.world.plan_volumes(pod, plan);
            }
            cx.reservations.held.insert(pod, reservation);
        }
    }

    /// Asks the Permit rules about a reserved pod. `true` when it may be bound now; else it waits, or is queued again.
    pub fn permit(cx: &mut Context<'_>, id: PodId) -> bool {
        let (Some(node), Some(pod)) = (cx.reservations.node_of(id), cx.world.pod(id)) else { return false };
        let mut slots = Slots::default();
        let verdicts = cx.rules.enabled().permit.iter().map(|rule| rule.permit(cx.view(), pod, node, &mut slots));
        let (reason, text) = match verdicts.into_iter().find(|verdict| !verdict.is_fit()) {
            None | Some(Outcome::Fit) => return true,
            Some(Outcome::WaitUntil(at, _)) => {
                cx.timers.set(at.max(cx.now.mono + Duration::from_millis(1)), Timer::Permit(id));
                return false;
            }
            Some(Outcome::Unfit(no) | Outcome::Never(no)) => {
                Self::release(cx, id);
                cx.queue.park(id, no.wake, cx.now.mono, cx.now.wall);
                ("Unschedulable", no.text)
            }
            Some(Outcome::Fault(text)) => {
                Self::release(cx, id);
                cx.queue.fail(id, cx.now.mono, cx.now.wall);
                ("SchedulerError", text)
            }
        };
        cx.steps.push(Step::Report(id, reason, text.into_owned().into()));
        false
    }

    /// Why the decision behind a reservation does not hold any more: the node is gone, a device is not healthy or was given to
    /// another pod, or the node does not serve a name any more.
    pub fn is_outdated(&self, world: &World, id: PodId) -> bool {
        let Some(node) = self.node_of(id) else { return false };
        let Some(found) = world.node(node).filter(|node| node.facts.is_some()) else { return true };
        let Some(pod) = world.pod(id) else { return true };
        let Some(devices) = &pod.devices else { return false };
        let unhealthy = found.stock.as_ref().is_none_or(|stock| !stock.unhealthy_of(devices).is_empty());
        unhealthy
            || world.contested_device(id).is_some()
            || expected_names(pod, found, None).iter().any(|name| !found.serves(name))
    }

    /// Members of a commit whose room was given back before they were being bound, since the last call.
    pub fn take_lost(&mut self) -> Vec<(u64, PodId)> {
        std::mem::take(&mut self.lost)
    }

    /// TYJobs of which a pod gave its room back, since the last call: the place is the job's again.
    pub fn take_freed_jobs(&mut self) -> Vec<PodKey> {
        std::mem::take(&mut self.freed_jobs)
    }

    /// Lets a pod go to this node only: it holds the lock there.
    pub fn pin(&mut self, id: PodId, node: NodeId) {
        self.pinned.insert(id, node);
    }

    /// The only node that a pod may go to.
    pub fn pinned(&self, id: PodId) -> Option<NodeId> {
        self.pinned.get(&id).copied()
    }

    /// Lets a pod go anywhere again; returns where it was to go.
    pub fn unpin(&mut self, id: PodId) -> Option<NodeId> {
        self.pinned.remove(&id)
    }

    /// Gives everything back: this process does not lead any more.
    pub fn clear(cx: &mut Context<'_>) {
        for id in cx.reservations.held.keys().copied().collect::<Vec<_>>() {
            Self::release(cx, id);
        }
        *cx.reservations = Self::default();
    }
}

/// Names of the Allocate calls that will come for `pod` on `node`: most often all that it wants.
pub fn expected_names(pod: &Pod, node: &Node, wanted: Option<&Wanted>) -> Shared<Vec<Box<str>>> {
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

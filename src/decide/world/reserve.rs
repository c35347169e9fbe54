//! Reserving and giving back room: assume, forget, and the accounts behind them.
//!
//! A place that is reserved for a pod that is not made yet is a record of its own kind: assumed on its node and charged like any
//! pod, but not found by the name of the pod that it stands for. So every rule sees the room of the node as taken.

use std::sync::Arc;

use crate::devices::Held;

use super::devices::{Charge, DeviceChoice, Stock, exclusive_of};
use super::pod::{Place, Pod, PodFacts};
use super::resources::{Rated, Resources};
use super::{NodeId, PodId, World};

impl World {
    /// Reserves room on `node` for a waiting pod, ahead of the API. Nothing happens when the pod does not wait.
    pub fn assume(&mut self, id: PodId, node: NodeId, devices: Option<Held>) -> bool {
        self.assume_chosen(id, node, devices, None)
    }

    /// [`World::assume`] with the choice that `devices` come from: it need not be read back from them.
    pub fn assume_chosen(
        &mut self,
        id: PodId,
        node: NodeId,
        devices: Option<Held>,
        choice: Option<&DeviceChoice>,
    ) -> bool {
        let Some(pod) = self.pods.get_mut(id).filter(|pod| pod.place == Place::Waiting) else { return false };
        pod.place = Place::Assumed(node);
        pod.devices = devices;
        pod.exclusive = exclusive_of(&pod.facts);
        self.shared.held(&mut pod.devices);
        self.generation += 1;
        self.charge_chosen(id, choice);
        self.enter_gang(id);
        true
    }

    /// [`World::assume`] for a pod that is nominated and not there: its room is reserved, and rules about other pods judge this node
    /// with and without it. [`World::forget`] ends it.
    pub fn assume_nominated(&mut self, id: PodId, node: NodeId, devices: Option<Held>) -> bool {
        let kept = self.assume(id, node, devices);
        if kept {
            self.placed.reserve(id, node);
        }
        kept
    }

    /// Gives back what [`World::assume`] took. Nothing happens when the API has shown the pod bound meanwhile.
    pub fn forget(&mut self, id: PodId) -> bool {
        let Some(Place::Assumed(node)) = self.pods.get(id).map(|pod| pod.place) else { return false };
        self.discharge(id);
        self.placed.release(id, node);
        self.volumes.forget_plan(id);
        if let Some(pod) = self.pods.get_mut(id) {
            pod.place = Place::Waiting;
            pod.devices = None;
        }
        self.generation += 1;
        self.enter_gang(id);
        self.nodes.note_left(node);
        true
    }

    /// Reserves room on a node for a pod that is not there yet.
    pub fn reserve_place(&mut self, mut facts: PodFacts, node: NodeId, devices: Option<Held>) -> PodId {
        let id = self.pods.next_id();
        self.shared.facts(&mut facts);
        let exclusive = exclusive_of(&facts);
        let mut pod = Pod { place: Place::Assumed(node), devices, exclusive, ..Pod::unplaced(id, facts) };
        self.shared.held(&mut pod.devices);
        self.pods.insert_place(pod);
        self.generation += 1;
        self.charge(id);
        id
    }

    /// Gives back what [`World::reserve_place`] reserved. Returns the place.
    pub fn cancel_place(&mut self, id: PodId) -> Option<Box<Pod>> {
        self.discharge(id);
        let pod = self.pods.remove(id)?;
        self.generation += 1;
        if let Some(node) = pod.node() {
            self.nodes.note_left(node);
        }
        Some(pod)
    }

    /// Keeps a node for a group or pod, or for none.
    pub fn keep(&mut self, id: NodeId, name: Option<Arc<str>>) {
        if let Some(node) = self.nodes.get_mut(id).filter(|node| node.kept_for != name) {
            node.kept_for = name;
            self.generation += 1;
            self.nodes.touch(id);
        }
    }

    /// Enters the state of a pod into its gang.
    pub(super) fn enter_gang(&mut self, id: PodId) {
        if let Some(pod) = self.pods.get(id) {
            self.gangs.pod(pod);
        }
    }

    /// Takes a placed pod out of the accounts of its node, for a dry run; [`World::restore_after_dry_run`] must follow.
    pub fn remove_for_dry_run(&mut self, id: PodId) {
        self.generation += 1;
        self.discharge(id);
    }

    /// Undoes [`World::remove_for_dry_run`]. Nothing happens when the pod is back already.
    pub fn restore_after_dry_run(&mut self, id: PodId) {
        self.generation += 1;
        self.charge(id);
    }

    /// Enters a pod into the accounts of its node, once.
    pub(super) fn charge(&mut self, id: PodId) {
        self.charge_chosen(id, None);
    }

    fn charge_chosen(&mut self, id: PodId, choice: Option<&DeviceChoice>) {
        let Some(pod) = self.pods.get(id) else { return };
        let Some(at) = pod.node() else { return };
        let devices = pod.asks_for_devices() || pod.devices.is_some();
        let mut counted = false;
        if let Some(node) = self.nodes.get_mut(at) {
            if !node.pods.insert(id) {
                return; // it is counted already
            }
            node.used.add(&pod.facts.spec.requests);
            node.rated.add(pod.facts.spec.rated);
            self.placed.enter(pod);
            // One more pod is counted in: what all sum up to does not depend on the order.
            if let (Some(stock), holders) = node.stock_and_holders()
                && devices
                && holders.exceptions().is_empty()
            {
                counted = Charge::of(pod, holders).is_some_and(|charge| stock.count_in(&charge, choice));
            }
            self.nodes.touch(at);
        }
        if devices && !counted {
            self.recount_devices(at);
        } else if cfg!(debug_assertions) && counted {
            let pool =
                |world: &Self| world.nodes.get(at).and_then(|node| node.stock.as_ref()).map(Stock::pool).cloned();
            let kept = pool(self);
            self.recount_devices(at);
            debug_assert_eq!(kept, pool(self), "counting pods in one by one gives what counting afresh gives");
        }
    }

    /// Takes a pod out of the accounts of its node.
    pub(super) fn discharge(&mut self, id: PodId) {
        let Some(pod) = self.pods.get(id) else { return };
        let Some(at) = pod.node() else { return };
        let devices = pod.asks_for_devices() || pod.devices.is_some();
        if let Some(node) = self.nodes.get_mut(at)
            && node.pods.remove(&id)
        {
            node.used.sub(&pod.facts.spec.requests);
            node.rated.sub(pod.facts.spec.rated);
            self.placed.leave(pod);
            if pod.facts.spec.requests.is_absurd() {
                // Sums saturate: what was lost there is counted again.
                let pods = &self.pods;
                let specs = || node.pods.iter().filter_map(|id| pods.get(*id)).map(|pod| &pod.facts.spec);
                let (mut used, mut rated) = (Resources::default(), Rated::default());
                specs().for_each(|spec| used.add(&spec.requests));
                specs().for_each(|spec| rated.add(spec.rated));
                (node.used, node.rated) = (used, rated);
            }
            self.nodes.touch(at);
        }
        if devices {
            self.recount_devices(at);
        }
    }

    /// Counts a node's devices again from the pods on it: every change and every leaving pod does this, so nothing drifts.
    pub(super) fn recount_devices(&mut self, id: NodeId) {
        let Some(node) = self.nodes.get_mut(id) else { return };
        let pods = &self.pods;
        if !node.exceptions.is_empty() {
            let on = node.pods.iter().filter_map(|id| pods.get(*id)).map(|pod| &pod.facts.handoff.pod.uid);
            node.exceptions.note_pods(on);
        }
        let on: Vec<&Pod> = node.pods.iter().filter_map(|id| pods.get(*id)).collect();
        if let (Some(stock), holders) = node.stock_and_holders() {
            stock.recount(Charge::all(on.into_iter(), holders));
        }
    }
}

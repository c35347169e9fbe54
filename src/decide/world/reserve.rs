//! Reserving and giving back room: assume, forget, and the accounts behind them.

use std::sync::Arc;

use crate::devices::Held;

use super::devices::{Charge, DeviceChoice, Stock, exclusive_of};
use super::pod::Place;
use super::resources::{Rated, Resources};
use super::state::World;
use super::{NodeId, PodId};

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
        let amounts = &mut self.shared.amounts;
        pod.devices.iter_mut().for_each(|held| held.share(|value| amounts.intern(value)));
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
            self.nominated_reservations.insert(id);
            self.nominated_by_node.entry(node).or_default().push(id);
        }
        kept
    }

    /// Gives back what [`World::assume`] took. Nothing happens when the API has shown the pod bound meanwhile.
    pub fn forget(&mut self, id: PodId) -> bool {
        let Some(Place::Assumed(node)) = self.pods.get(id).map(|pod| pod.place) else { return false };
        self.discharge(id);
        if self.nominated_reservations.remove(&id)
            && let Some(here) = self.nominated_by_node.get_mut(&node)
        {
            // They go in the opposite order.
            if let Some(at) = here.iter().rposition(|other| *other == id) {
                here.remove(at);
            }
            if here.is_empty() {
                self.nominated_by_node.remove(&node);
            }
        }
        self.plans.plans.remove(&id);
        if let Some(pod) = self.pods.get_mut(id) {
            pod.place = Place::Waiting;
            pod.devices = None;
        }
        self.generation += 1;
        self.enter_gang(id);
        self.note_left(node);
        true
    }

    /// A node whose Node object is gone may have no pod any more. It stays until the next event: its pods may be back by then, as
    /// after a dry run.
    pub(super) fn note_left(&mut self, node: NodeId) {
        if self.nodes.get(node).is_some_and(|node| node.facts.is_none()) {
            self.left.push(node);
        }
    }

    /// Keeps a node for a group or pod, or for none.
    pub fn keep(&mut self, id: NodeId, name: Option<Arc<str>>) {
        let nodes = self.nodes.len();
        if let Some(node) = self.nodes.get_mut(id) {
            node.kept_for = name;
            self.generation += 1;
            self.journal.note(id, nodes);
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
        let anti = !pod.facts.spec.anti_affinity.is_empty();
        let with_affinity = !pod.facts.spec.affinity.is_empty() || !pod.facts.spec.pods_preferred.is_empty();
        let devices = pod.asks_for_devices() || pod.devices.is_some();
        let (nodes, mut counted) = (self.nodes.len(), false);
        if let Some(node) = self.nodes.get_mut(at) {
            if !node.pods.insert(id) {
                return; // it is counted already
            }
            node.used.add(&pod.facts.spec.requests);
            *self.priorities.entry(pod.facts.spec.priority).or_insert(0) += 1;
            node.rated.add(pod.facts.spec.rated);
            self.device_pods += usize::from(pod.asks_for_devices());
            self.journal.note(at, nodes);
            // One more pod is counted in: what all sum up to does not depend on the order.
            if let (Some(stock), holders) = node.stock_and_holders()
                && devices
                && holders.exceptions().is_empty()
            {
                counted = Charge::of(pod, holders).is_some_and(|charge| stock.count_in(&charge, choice));
            }
        }
        if anti {
            self.anti.insert(id);
        }
        if with_affinity {
            self.with_affinity.insert(id);
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
            self.device_pods -= usize::from(pod.asks_for_devices());
            if pod.facts.spec.requests.is_absurd() {
                // Sums saturate: what was lost there is counted again.
                let pods = &self.pods;
                let specs = || node.pods.iter().filter_map(|id| pods.get(*id)).map(|pod| &pod.facts.spec);
                let (mut used, mut rated) = (Resources::default(), Rated::default());
                specs().for_each(|spec| used.add(&spec.requests));
                specs().for_each(|spec| rated.add(spec.rated));
                (node.used, node.rated) = (used, rated);
            }
            if let Some(count) = self.priorities.get_mut(&pod.facts.spec.priority) {
                *count -= 1;
                if *count == 0 {
                    self.priorities.remove(&pod.facts.spec.priority);
                }
            }
            self.journal.note(at, self.nodes.len());
        }
        self.anti.remove(&id);
        self.with_affinity.remove(&id);
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
        let on: Vec<&super::Pod> = node.pods.iter().filter_map(|id| pods.get(*id)).map(|pod| &**pod).collect();
        if let (Some(stock), holders) = node.stock_and_holders() {
            stock.recount(Charge::all(on.into_iter(), holders));
        }
    }
}

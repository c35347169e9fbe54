//! Taking and giving back room: assume, forget, and the accounts behind them.

use crate::contract::DeviceAllocation;

use super::devices::Charge;
use super::pod::Place;
use super::state::World;
use super::{NodeId, PodId};

impl World {
    /// Takes room on `node` for a pod that waits, ahead of the API. Nothing happens when the pod does not wait.
    pub fn assume(&mut self, id: PodId, node: NodeId, devices: Option<DeviceAllocation>) -> bool {
        let Some(pod) = self.pods.get_mut(&id).filter(|pod| pod.place == Place::Waiting) else { return false };
        pod.place = Place::Assumed(node);
        pod.devices = devices;
        self.generation += 1;
        self.charge(id);
        true
    }

    /// Gives back what [`World::assume`] took. Nothing happens when the API has shown the pod bound meanwhile.
    pub fn forget(&mut self, id: PodId) -> bool {
        let Some(Place::Assumed(node)) = self.pods.get(&id).map(|pod| pod.place) else { return false };
        self.discharge(id);
        if let Some(pod) = self.pods.get_mut(&id) {
            pod.place = Place::Waiting;
            pod.devices = None;
        }
        self.generation += 1;
        self.forget_if_unused(node);
        true
    }

    /// Enters a pod into the accounts of its node.
    pub(super) fn charge(&mut self, id: PodId) {
        let Some(pod) = self.pods.get(&id) else { return };
        let Some(at) = pod.node() else { return };
        let anti = !pod.facts.spec.anti_affinity.is_empty();
        let devices = pod.asks_for_devices() || pod.devices.is_some();
        if let Some(node) = self.nodes.get_mut(&at)
            && node.pods.insert(id)
        {
            node.used.add(&pod.facts.spec.requests);
            self.journal.note(at, self.nodes.len());
        }
        if anti {
            self.anti.insert(id);
        }
        if devices {
            self.recount_devices(at);
        }
    }

    /// Takes a pod out of the accounts of its node.
    pub(super) fn discharge(&mut self, id: PodId) {
        let Some(pod) = self.pods.get(&id) else { return };
        let Some(at) = pod.node() else { return };
        let devices = pod.asks_for_devices() || pod.devices.is_some();
        if let Some(node) = self.nodes.get_mut(&at)
            && node.pods.remove(&id)
        {
            node.used.sub(&pod.facts.spec.requests);
            self.journal.note(at, self.nodes.len());
        }
        self.anti.remove(&id);
        if devices {
            self.recount_devices(at);
        }
    }

    /// Counts a node's devices afresh from the pods on it. A node has few device pods; counting afresh cannot drift.
    pub(super) fn recount_devices(&mut self, id: NodeId) {
        let Some(node) = self.nodes.get_mut(&id) else { return };
        let Some(stock) = node.stock.as_mut() else { return };
        let pods = &self.pods;
        stock.recount(node.pods.iter().filter_map(|id| pods.get(id)).filter_map(Charge::of));
    }
}

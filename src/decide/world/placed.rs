//! What rules ask of all pods that have room on a node, counted once instead of sought among them.

use std::collections::{BTreeMap, BTreeSet};

use super::pod::Pod;
use super::spec::PodSpec;
use super::{NodeId, PodId};

/// Pods that are in the accounts of a node.
#[derive(Debug, Clone, Default)]
pub(super) struct Placed {
    /// How many have each priority.
    priorities: BTreeMap<i32, usize>,
    /// How many ask for devices.
    with_devices: usize,
    /// Terms of the two kinds of pods that follow.
    terms: usize,
    /// Those with required anti-affinity: they refuse others.
    refusing: BTreeSet<PodId>,
    /// Those with required affinity or preferred terms: they attract other pods, or repel them.
    attracting: BTreeSet<PodId>,
    /// Assumed pods that are nominated only: their room is reserved, and they are not there.
    reserved: BTreeSet<PodId>,
    /// The same by node: every filter looks them up.
    reserved_by_node: BTreeMap<NodeId, Vec<PodId>>,
}

impl Placed {
    pub fn enter(&mut self, pod: &Pod) {
        let spec = &pod.facts.spec;
        *self.priorities.entry(spec.priority).or_insert(0) += 1;
        self.with_devices += usize::from(pod.asks_for_devices());
        self.terms += terms_of(spec);
        if !spec.anti_affinity.is_empty() {
            self.refusing.insert(pod.id);
        }
        if !spec.affinity.is_empty() || !spec.pods_preferred.is_empty() {
            self.attracting.insert(pod.id);
        }
    }

    /// Undoes [`Placed::enter`] of the same record.
    pub fn leave(&mut self, pod: &Pod) {
        self.with_devices -= usize::from(pod.asks_for_devices());
        self.terms -= terms_of(&pod.facts.spec);
        let priority = pod.facts.spec.priority;
        if let Some(count) = self.priorities.get_mut(&priority) {
            *count -= 1;
            if *count == 0 {
                self.priorities.remove(&priority);
            }
        }
        self.refusing.remove(&pod.id);
        self.attracting.remove(&pod.id);
    }

    pub fn reserve(&mut self, id: PodId, node: NodeId) {
        self.reserved.insert(id);
        self.reserved_by_node.entry(node).or_default().push(id);
    }

    /// Undoes [`Placed::reserve`]; nothing happens for another pod.
    pub fn release(&mut self, id: PodId, node: NodeId) {
        if self.reserved.remove(&id)
            && let Some(here) = self.reserved_by_node.get_mut(&node)
        {
            // They go in the opposite order.
            if let Some(at) = here.iter().rposition(|other| *other == id) {
                here.remove(at);
            }
            if here.is_empty() {
                self.reserved_by_node.remove(&node);
            }
        }
    }

    pub fn is_reserved(&self, id: PodId) -> bool {
        !self.reserved.is_empty() && self.reserved.contains(&id)
    }

    pub fn reserved(&self) -> impl Iterator<Item = PodId> {
        self.reserved.iter().copied()
    }

    pub fn reserved_on(&self, node: NodeId) -> impl Iterator<Item = PodId> {
        self.reserved_by_node.get(&node).into_iter().flatten().copied()
    }

    pub fn lowest_priority(&self) -> Option<i32> {
        self.priorities.keys().next().copied()
    }

    pub fn count(&self) -> usize {
        self.priorities.values().sum()
    }

    pub fn terms(&self) -> usize {
        self.terms
    }

    pub fn with_devices(&self) -> usize {
        self.with_devices
    }

    /// Those with required anti-affinity that are there.
    pub fn refusing(&self) -> impl Iterator<Item = PodId> {
        self.refusing.iter().copied().filter(|id| !self.is_reserved(*id))
    }

    /// Those with required affinity or preferred (anti-)affinity that are there.
    pub fn attracting(&self) -> impl Iterator<Item = PodId> {
        self.attracting.iter().copied().filter(|id| !self.is_reserved(*id))
    }
}

fn terms_of(spec: &PodSpec) -> usize {
    spec.anti_affinity.len() + spec.affinity.len() + spec.pods_preferred.len()
}

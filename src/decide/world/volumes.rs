//! The tables of volumes, claims, classes and storage, and the plans for the claims of pods that are assumed.

use std::collections::BTreeMap;

use baton_contract::PodKey;

use super::PodId;
use super::capacity::{Capacities, Storage};
use super::changes::Wake;
use super::event::WorldEvent;
use super::pod::Pod;
use super::volume::{ClaimFacts, ClassFacts, VolumeFacts, VolumePlan};

/// What is known of storage.
#[derive(Debug, Clone, Default)]
pub struct VolumeTable {
    all: BTreeMap<Box<str>, VolumeFacts>,
    claims: BTreeMap<PodKey, ClaimFacts>,
    classes: BTreeMap<Box<str>, ClassFacts>,
    capacities: Capacities,
    plans: BTreeMap<PodId, VolumePlan>,
}

impl VolumeTable {
    /// Folds an event of one of these kinds in. `at` finds a pod, and the name of its node.
    pub(super) fn apply<'a>(&mut self, event: WorldEvent, at: impl Fn(PodId) -> Option<(&'a Pod, &'a str)>) -> Wake {
        let changed = match event {
            WorldEvent::Volume(name, facts) => {
                self.all.insert(name, facts);
                true
            }
            WorldEvent::VolumeGone(name) => {
                self.all.remove(&name);
                true
            }
            WorldEvent::Claim(key, facts) => {
                self.claim_seen(&key, &facts, at);
                self.claims.insert(key, facts);
                true
            }
            WorldEvent::ClaimGone(key) => {
                self.claims.remove(&key);
                true
            }
            WorldEvent::Class(name, facts) => {
                self.classes.insert(name, facts);
                true
            }
            WorldEvent::ClassGone(name) => {
                self.classes.remove(&name);
                false
            }
            WorldEvent::Driver(name, counts) => self.capacities.driver(name, counts),
            WorldEvent::Capacity(key, facts) => {
                let counts = facts.as_ref().is_some_and(|facts| self.publishes(&facts.class));
                self.capacities.object(key, facts) && counts
            }
            _ => false,
        };
        if changed { Wake::VOLUME } else { Wake::NONE }
    }

    /// A claim changed: where it shows the selected node, the provisioner has seen the plan of the pod.
    fn claim_seen<'a>(&mut self, key: &PodKey, facts: &ClaimFacts, at: impl Fn(PodId) -> Option<(&'a Pod, &'a str)>) {
        let Some(selected) = facts.selected_node.as_deref() else { return };
        for (id, plan) in &mut self.plans {
            let here = at(*id).is_some_and(|(pod, node)| pod.key().namespace == key.namespace && *node == *selected);
            for provision in plan.provision.iter_mut().filter(|provision| here && *provision.claim == *key.name) {
                provision.seen = true;
            }
        }
    }

    /// `true` when the capacity of that class counts.
    fn publishes(&self, class: &str) -> bool {
        self.classes.get(class).is_some_and(|class| self.capacities.counts(&class.provisioner))
    }

    /// A persistent volume.
    pub fn volume(&self, name: &str) -> Option<&VolumeFacts> {
        self.all.get(name)
    }

    /// A claim.
    pub fn claim(&self, key: &PodKey) -> Option<&ClaimFacts> {
        self.claims.get(key)
    }

    /// A storage class.
    pub fn class(&self, name: &str) -> Option<&ClassFacts> {
        self.classes.get(name)
    }

    /// Persistent volumes of a class, by name.
    pub fn of_class<'a>(&'a self, class: &'a str) -> impl Iterator<Item = (&'a str, &'a VolumeFacts)> {
        let all = self.all.iter().map(|(name, facts)| (&**name, facts));
        all.filter(move |(_, facts)| facts.class.as_deref() == Some(class))
    }

    /// Where a volume of that many bytes can be made; `None` where every node will do: the class's provisioner is no CSI driver that
    /// publishes its capacity, or the claim names no size.
    pub fn storage_for(&self, class: &str, bytes: i64) -> Option<Storage> {
        (bytes != 0 && self.publishes(class)).then(|| self.capacities.storage_for(class, bytes))
    }

    pub(super) fn plan(&mut self, id: PodId, plan: VolumePlan) {
        self.plans.insert(id, plan);
    }

    pub(super) fn forget_plan(&mut self, id: PodId) {
        self.plans.remove(&id);
    }

    /// What must happen to the claims of an assumed pod.
    pub fn plan_of(&self, id: PodId) -> Option<&VolumePlan> {
        self.plans.get(&id)
    }

    /// Plans of other pods.
    pub(super) fn plans_of_others(&self, except: PodId) -> impl Iterator<Item = (PodId, &VolumePlan)> {
        self.plans.iter().map(|(id, plan)| (*id, plan)).filter(move |(id, _)| *id != except)
    }

    /// `true` when the plan of another pod promises the volume to one of its claims.
    pub fn is_promised(&self, volume: &str, except: PodId) -> bool {
        let mut promised = self.plans_of_others(except).flat_map(|(_, plan)| &plan.bind);
        promised.any(|(_, promised)| **promised == *volume)
    }
}

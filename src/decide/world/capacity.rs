//! How much storage a CSI driver can still provide, and where: what drivers with `spec.storageCapacity` publish.

use std::collections::{BTreeMap, BTreeSet};

use baton_contract::PodKey;
use baton_contract::hint::{LabelSelector, Requirement};

use super::spec::Labels;

/// What a CSIStorageCapacity object says; there is one for each class and each part of the cluster, often for each node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CapacityFacts {
    /// `storageClassName`.
    pub class: Box<str>,
    /// The largest volume in bytes: `maximumVolumeSize`, or else `capacity`.
    pub limit: i64,
    /// `nodeTopology`: labels that all nodes there have; without any, all nodes.
    pub labels: Box<[(Box<str>, Box<str>)]>,
    /// `nodeTopology`: what else must hold of their labels.
    pub expressions: Box<[Requirement]>,
}

impl CapacityFacts {
    /// Of a class, a limit and the nodes that reach it.
    pub fn new(class: &str, limit: i64, nodes: LabelSelector) -> Self {
        let labels = nodes.match_labels.into_iter().map(|(key, value)| (key.into(), value.into()));
        Self { class: class.into(), limit, labels: labels.collect(), expressions: nodes.match_expressions.into() }
    }

    fn is_only_of_one_label(&self) -> Option<&(Box<str>, Box<str>)> {
        match &*self.labels {
            [label] if self.expressions.is_empty() => Some(label),
            _ => None,
        }
    }

    fn reaches(&self, labels: &Labels) -> bool {
        self.labels.iter().all(|(key, value)| labels.get(&**key).is_some_and(|have| **have == **value))
            && self
                .expressions
                .iter()
                .all(|expression| expression.holds(labels.get(&expression.key).map(String::as_str)))
    }

    /// A claim that `former` was too little for may have room here.
    fn exceeds(&self, former: &Self) -> bool {
        let elsewhere =
            (&self.class, &self.labels, &self.expressions) != (&former.class, &former.labels, &former.expressions);
        elsewhere || self.limit > former.limit
    }
}

/// Where a claim finds storage enough.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Storage {
    /// Values by label: mostly a node has its own, and there are thousands.
    by_label: BTreeMap<Box<str>, BTreeSet<Box<str>>>,
    others: Vec<CapacityFacts>,
}

impl Storage {
    /// `true` when a node with these labels reaches some.
    pub fn is_near(&self, labels: &Labels) -> bool {
        let has = |key: &str, values: &BTreeSet<Box<str>>| {
            labels.get(key).is_some_and(|value| values.contains(value.as_str()))
        };
        self.by_label.iter().any(|(key, values)| has(key, values))
            || self.others.iter().any(|capacity| capacity.reaches(labels))
    }
}

/// What drivers publish.
#[derive(Debug, Clone, Default)]
pub(super) struct Capacities {
    /// Drivers whose capacity counts.
    drivers: BTreeSet<Box<str>>,
    objects: BTreeMap<PodKey, CapacityFacts>,
}

impl Capacities {
    /// Records whether a driver's capacity counts. `true` when that has changed.
    pub fn driver(&mut self, name: Box<str>, counts: bool) -> bool {
        if counts { self.drivers.insert(name) } else { self.drivers.remove(&name) }
    }

    /// Enters an object, or takes it out with `None`. `true` when there is room where there was none.
    pub fn object(&mut self, key: PodKey, facts: Option<CapacityFacts>) -> bool {
        let Some(facts) = facts else {
            self.objects.remove(&key);
            return false;
        };
        let news = self.objects.get(&key).is_none_or(|former| facts.exceeds(former));
        self.objects.insert(key, facts);
        news
    }

    pub fn counts(&self, driver: &str) -> bool {
        self.drivers.contains(driver)
    }

    /// Where a volume of that class and size can be made.
    pub fn storage_for(&self, class: &str, bytes: i64) -> Storage {
        let mut found = Storage::default();
        for capacity in self.objects.values().filter(|capacity| *capacity.class == *class && capacity.limit >= bytes) {
            match capacity.is_only_of_one_label() {
                Some((key, value)) => {
                    found.by_label.entry(key.clone()).or_default().insert(value.clone());
                }
                None => found.others.push(capacity.clone()),
            }
        }
        found
    }
}

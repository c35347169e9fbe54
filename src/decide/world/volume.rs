//! Claims, volumes and storage classes, and what pods on their way have planned for them.

use std::collections::BTreeMap;

use crate::contract::PodKey;
use crate::contract::hint::LabelSelector;

use super::spec::{Labels, NodeTerm};
use super::state::World;
use super::{NodeId, PodId};

/// What a persistent volume says.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct VolumeFacts {
    /// `spec.nodeAffinity.required`.
    pub required: Option<Vec<NodeTerm>>,
    /// Labels; the zone and region labels name a place, several ones separated by `__`.
    pub labels: Labels,
    /// `spec.storageClassName`.
    pub class: Option<Box<str>>,
    /// `spec.capacity.storage` in bytes.
    pub capacity: i64,
    /// `spec.accessModes`.
    pub modes: AccessModes,
    /// `spec.volumeMode` is Block.
    pub block: bool,
    /// `spec.claimRef`: the claim, and its uid once the volume is bound.
    pub claim: Option<(PodKey, Box<str>)>,
    /// `status.phase` is Available.
    pub available: bool,
    /// Deletion has been asked for.
    pub deleting: bool,
    /// resourceVersion.
    pub version: Box<str>,
}

impl VolumeFacts {
    /// `true` when the volume's node affinity accepts a node with these labels. Of volumes, kubelets and kube-scheduler ask the
    /// labels only: to what a term says of the node's name, every node is one without a name.
    pub fn reaches(&self, labels: &Labels) -> bool {
        self.required.as_ref().is_none_or(|terms| terms.iter().any(|term| term.matches("", labels)))
    }

    /// `true` when the volume is promised to this very claim.
    pub fn is_for(&self, key: &PodKey, uid: &str) -> bool {
        self.claim.as_ref().is_some_and(|(claim, bound)| claim == key && (bound.is_empty() || **bound == *uid))
    }
}

/// What a claim says.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ClaimFacts {
    /// Uid.
    pub uid: Box<str>,
    /// `spec.volumeName`, once bound.
    pub volume: Option<Box<str>>,
    /// Annotation `pv.kubernetes.io/bind-completed` is there.
    pub complete: bool,
    /// `status.phase` is Lost: its volume is gone.
    pub lost: bool,
    /// `spec.storageClassName`.
    pub class: Option<Box<str>>,
    /// Deletion has been asked for.
    pub deleting: bool,
    /// `ReadWriteOncePod` is among the access modes.
    pub single_pod: bool,
    /// `spec.accessModes`.
    pub modes: AccessModes,
    /// `spec.volumeMode` is Block.
    pub block: bool,
    /// `spec.resources.requests.storage` in bytes.
    pub request: i64,
    /// `spec.selector`: only volumes with such labels will do.
    pub selector: Option<LabelSelector>,
    /// Annotation `volume.kubernetes.io/selected-node`: the provisioner makes its volume for this node.
    pub selected_node: Option<Box<str>>,
    /// Uid of the pod that the claim was made for.
    pub owner: Option<Box<str>>,
    /// resourceVersion.
    pub version: Box<str>,
}

/// Access modes as a set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct AccessModes(u8);

impl AccessModes {
    /// From their words; strange ones count as one of their own.
    pub fn of<'a>(words: impl IntoIterator<Item = &'a str>) -> Self {
        let bit = |word| match word {
            "ReadWriteOnce" => 1,
            "ReadOnlyMany" => 2,
            "ReadWriteMany" => 4,
            "ReadWriteOncePod" => 8,
            _ => 16,
        };
        Self(words.into_iter().map(bit).fold(0, |all, one| all | one))
    }

    /// `true` when all of `wanted` are among these.
    pub const fn cover(self, wanted: Self) -> bool {
        wanted.0 & !self.0 == 0
    }
}

/// A label and the values that will do.
pub type LabelValues = (Box<str>, Vec<Box<str>>);

/// What a storage class says.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ClassFacts {
    /// `volumeBindingMode` is WaitForFirstConsumer: the pod's node is chosen before the volume.
    pub waits: bool,
    /// There is a provisioner: `kubernetes.io/no-provisioner` makes no volumes.
    pub provisions: bool,
    /// `provisioner`: the CSI driver, if it is one.
    pub provisioner: Box<str>,
    /// `allowedTopologies`: terms of which one must hold, each of labels and their values; empty allows every node.
    pub topologies: Vec<Vec<LabelValues>>,
}

impl ClassFacts {
    /// `true` when the provisioner makes volumes for a node with these labels.
    pub fn provisions_at(&self, labels: &Labels) -> bool {
        let holds = |(key, values): &LabelValues| {
            labels.get(&**key).is_some_and(|have| values.iter().any(|value| **value == **have))
        };
        let any = || self.topologies.iter().any(|term| !term.is_empty() && term.iter().all(holds));
        self.provisions && (self.topologies.is_empty() || any())
    }
}

/// What happens to the claims of a pod on its way before it is bound; by name, in the pod's namespace.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct VolumePlan {
    /// Claims and the volumes that they are bound to.
    pub bind: Vec<(Box<str>, Box<str>)>,
    /// Claims whose volume is made for the pod's node.
    pub provision: Vec<Provision>,
}

/// A claim whose volume is made for a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Provision {
    /// The claim.
    pub claim: Box<str>,
    /// A watch has shown the claim with this node selected. When it shows none afterwards, the provisioner has given up there.
    pub seen: bool,
}

/// What pods on their way have planned, and the storage classes.
#[derive(Debug, Clone, Default)]
pub(super) struct VolumePlans {
    pub classes: BTreeMap<Box<str>, ClassFacts>,
    pub plans: BTreeMap<PodId, VolumePlan>,
}

impl World {
    /// A storage class.
    pub fn storage_class(&self, name: &str) -> Option<&ClassFacts> {
        self.plans.classes.get(name)
    }

    /// Persistent volumes of a class, by name.
    pub fn volumes_of<'a>(&'a self, class: &'a str) -> impl Iterator<Item = (&'a str, &'a VolumeFacts)> {
        let all = self.volumes.iter().map(|(name, facts)| (&**name, facts));
        all.filter(move |(_, facts)| facts.class.as_deref() == Some(class))
    }

    /// Records what must happen to the claims of a pod that was assumed; forgotten with the assumption.
    pub fn plan_volumes(&mut self, id: PodId, plan: VolumePlan) {
        self.generation += 1;
        self.plans.plans.insert(id, plan);
    }

    /// What must happen to the claims of a pod on its way.
    pub fn volume_plan(&self, id: PodId) -> Option<&VolumePlan> {
        self.plans.plans.get(&id)
    }

    /// `true` when another pod on its way has promised the volume to one of its claims.
    pub fn is_promised(&self, volume: &str, except: PodId) -> bool {
        let others = self.plans.plans.iter().filter(|(id, _)| **id != except);
        others.flat_map(|(_, plan)| &plan.bind).any(|(_, promised)| **promised == *volume)
    }

    /// The node of another pod on its way that has planned something for the claim, and the volume that it gets, if one was
    /// chosen.
    pub fn planned_for(&self, claim: &PodKey, except: PodId) -> Option<(NodeId, Option<&str>)> {
        let others = self.plans.plans.iter().filter(|(id, _)| **id != except);
        let found = others.filter_map(|(id, plan)| {
            let pod = self.pod(*id).filter(|pod| pod.key().namespace == claim.namespace)?;
            let bound = plan.bind.iter().find(|(name, _)| **name == *claim.name);
            let made = plan.provision.iter().any(|provision| *provision.claim == *claim.name);
            (bound.is_some() || made).then_some(())?;
            Some((pod.node()?, bound.map(|(_, volume)| &**volume)))
        });
        found.into_iter().next()
    }

    /// A claim changed: whoever waits for its volume may have been seen by the provisioner.
    pub(super) fn claim_seen(&mut self, key: &PodKey, facts: &ClaimFacts) {
        let Some(selected) = facts.selected_node.as_deref() else { return };
        let (pods, nodes) = (&self.pods, &self.nodes);
        for (id, plan) in &mut self.plans.plans {
            let Some(pod) = pods.get(*id).filter(|pod| pod.key().namespace == key.namespace) else { continue };
            let here = pod.node().and_then(|node| nodes.get(node)).is_some_and(|node| *node.name == *selected);
            for provision in plan.provision.iter_mut().filter(|provision| here && *provision.claim == *key.name) {
                provision.seen = true;
            }
        }
    }
}

//! Claims, volumes and storage classes, and what is planned for them on behalf of pods that are being bound.

use baton_contract::PodKey;
use baton_contract::hint::LabelSelector;

use super::spec::{Labels, NodeTerm};

/// What a persistent volume says.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct VolumeFacts {
    /// `spec.nodeAffinity.required`.
    pub required: Option<Vec<NodeTerm>>,
    /// Labels; the zone and region labels name a place, several ones separated by `__`.
    pub labels: Labels,
    /// `spec.storageClassName`.
    pub class: Option<Box<str>>,
    /// `spec.volumeAttributesClassName`; empty where there is none.
    pub attributes: Box<str>,
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
    /// `true` when the volume's node affinity accepts a node with these labels. As in kubelets and
    /// kube-scheduler, only labels count: for a term about the node's name, every node has none.
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
    /// `spec.volumeAttributesClassName`; empty where there is none.
    pub attributes: Box<str>,
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
    /// From their words; unknown ones count as one mode of their own.
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

/// What happens to the claims of a pod before it is bound; by name, in the pod's namespace.
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

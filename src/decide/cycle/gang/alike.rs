//! Members that ask for the same: what is found out about one holds for all of them.

use crate::decide::cycle::PodShape;
use crate::decide::world::Pod;
use crate::decide::world::spec::{HostPort, Labels, PodTerm, Spread, VolumeUse};

/// Everything of a pod that decides where it fits. Pods of one kind fit the same places.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Kind {
    shape: PodShape,
    /// What looks at other pods; `None` for most pods.
    around: Option<Box<Around>>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Around {
    namespace: Box<str>,
    labels: Labels,
    host_ports: Vec<HostPort>,
    near: Vec<PodTerm>,
    away: Vec<PodTerm>,
    spread: Vec<Spread>,
    volumes: Vec<VolumeUse>,
}

impl Kind {
    /// The pod's kind.
    pub fn of(pod: &Pod) -> Self {
        let spec = &pod.facts.spec;
        let alone = spec.host_ports.is_empty()
            && spec.affinity.is_empty()
            && spec.anti_affinity.is_empty()
            && spec.spread.is_empty()
            && spec.volumes.is_empty();
        let around = (!alone).then(|| {
            Box::new(Around {
                namespace: pod.key().namespace.as_ref().into(),
                labels: spec.labels.clone(),
                host_ports: spec.host_ports.clone(),
                near: spec.affinity.clone(),
                away: spec.anti_affinity.clone(),
                spread: spec.spread.clone(),
                volumes: spec.volumes.clone(),
            })
        });
        Self { shape: PodShape::of(pod), around }
    }

    /// `self == Kind::of(pod)`, cheaply for pods that do not look at others.
    pub fn is_of(&self, pod: &Pod) -> bool {
        self.shape.is_of(pod) && *self == Self::of(pod)
    }
}

/// Surely of one kind: they share what they say. Pods of one template do; what else is alike may be told apart by this.
pub(super) fn is_twin(one: &Pod, other: &Pod) -> bool {
    let (of_one, of_other) = (&one.facts, &other.facts);
    of_one.spec.is_same(&of_other.spec)
        && of_one.handoff.containers.is_same(&of_other.handoff.containers)
        && of_one.handoff.node == of_other.handoff.node
        && one.key().namespace == other.key().namespace
}

/// Where the pod fits depends on which pods run elsewhere.
pub(super) fn looks_at_others(pod: &Pod) -> bool {
    let spec = &pod.facts.spec;
    !(spec.affinity.is_empty() && spec.anti_affinity.is_empty() && spec.spread.is_empty())
}

/// `true` when the pod is of one of these kinds.
pub(super) fn is_any(kinds: &[Kind], pod: &Pod) -> bool {
    kinds.iter().any(|kind| kind.is_of(pod))
}

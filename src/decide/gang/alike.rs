//! Kinds of members: members of one kind fit the same nodes, so that one attempt says for all of them whether they fit.

use std::collections::BTreeMap;

use crate::core::rules::plugins::inter_pod_affinity;
use crate::core::select::shape::PodShape;
use crate::world::spec::{HostPort, Labels, PodTerm, Spread, VolumeUse};
use crate::world::{Pod, PodId, World};

/// Everything of a pod that decides where it fits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct MemberKind {
    shape: PodShape,
    /// `spec.resourceClaims` is not empty.
    resource_claims: bool,
    /// Anti-affinity terms of other pods that match it, with the namespaces of these pods.
    refused_by: Vec<(Box<str>, PodTerm)>,
    /// Everything that refers to other pods; `None` for most pods.
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

/// Required anti-affinity that may match members of a group: of pods with a node, and of its own members. Of equal terms in one
/// namespace, one pod stands for all.
pub(super) struct AntiAffinityTerms(Vec<(PodId, PodTerm)>);

impl AntiAffinityTerms {
    /// All terms that may match `members`.
    pub(super) fn of<'a>(world: &'a World, members: impl Iterator<Item = &'a Pod>) -> Self {
        let mut known: BTreeMap<(&str, &PodTerm), PodId> = BTreeMap::new();
        let mut last: Option<&Pod> = None;
        for pod in world.placed_with_anti_affinity().chain(members) {
            if !last.is_some_and(|last| last.facts.spec.is_same(&pod.facts.spec)) {
                for term in &pod.facts.spec.anti_affinity {
                    known.entry((&pod.key().namespace, term)).or_insert(pod.id);
                }
            }
            last = Some(pod);
        }
        Self(known.into_iter().map(|((_, term), owner)| (owner, term.clone())).collect())
    }

    fn matching(&self, world: &World, pod: &Pod) -> Vec<(Box<str>, PodTerm)> {
        let matching = |(owner, term): &(PodId, PodTerm)| {
            let owner = world.pod(*owner)?;
            inter_pod_affinity::matches(term, owner, pod, world).then(|| (owner.key().namespace.clone(), term.clone()))
        };
        self.0.iter().filter_map(matching).collect()
    }

    pub(super) fn kind(&self, world: &World, pod: &Pod) -> MemberKind {
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
        let refused_by = self.matching(world, pod);
        MemberKind { shape: PodShape::of(pod), resource_claims: spec.resource_claims, refused_by, around }
    }

    /// `*kind == self.kind(pod)`, and quick where the shapes differ.
    pub(super) fn is(&self, world: &World, kind: &MemberKind, pod: &Pod) -> bool {
        kind.shape.is_of(pod) && *kind == self.kind(world, pod)
    }

    pub(super) fn is_any(&self, world: &World, kinds: &[MemberKind], pod: &Pod) -> bool {
        kinds.iter().any(|kind| self.is(world, kind, pod))
    }
}

/// Where the pod fits depends on which pods run on other nodes.
pub(super) fn looks_at_others(pod: &Pod) -> bool {
    let spec = &pod.facts.spec;
    !(spec.affinity.is_empty() && spec.anti_affinity.is_empty() && spec.spread.is_empty())
}

//! The part of a pod that rules about single nodes may read: pods of one shape get the same answers.

use crate::pod::{ContainerKind, PodContainer};
use crate::world::spec::{DeviceWishes, Labels, NodeTerm, Toleration};
use crate::world::{Pod, PodSpec, Rated, Resources};
use baton_contract::image::ImageName;
use baton_contract::{ContainerRequest, RequestError};

/// A pod without its name, its labels, and whatever only other pods and the queue care about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodShape {
    requests: Resources,
    rated: Rated,
    wishes: DeviceWishes,
    node: Option<Box<str>>,
    selector: Labels,
    required: Option<Vec<NodeTerm>>,
    preferred: Vec<(i64, NodeTerm)>,
    tolerations: Vec<Toleration>,
    containers: Box<[Container]>,
    images: Box<[ImageName]>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Container {
    kind: ContainerKind,
    request: Result<ContainerRequest, RequestError>,
    dra_backed: Vec<Box<str>>,
}

impl Container {
    fn is_like(&self, other: &PodContainer) -> bool {
        self.kind == other.kind && self.request == other.request && self.dra_backed == other.dra_backed
    }
}

impl PodShape {
    /// The pod's shape.
    pub fn of(pod: &Pod) -> Self {
        // A new field does not compile here until it is named: where rules about single nodes read it, it belongs to the shape and to
        // `is_of`. Below the line is what they do not read.
        let PodSpec {
            requests,
            rated,
            wishes,
            node_selector,
            node_required,
            node_preferred,
            tolerations,
            images,
            // ---
            gang: _,
            labels: _,
            priority: _,
            deadline: _,
            never_preempts: _,
            nominated: _,
            refused: _,
            unserved: _,
            on_fault: _,
            qos: _,
            host_ports: _,
            gates: _,
            resource_claims: _,
            affinity: _,
            anti_affinity: _,
            pods_preferred: _,
            spread: _,
            volumes: _,
            too_large: _,
            unsupported: _,
            annotation_bytes: _,
            own_priority: _,
            controller: _,
            job: _,
        } = &*pod.facts.spec;
        let handoff = &pod.facts.handoff;
        let container = |container: &PodContainer| Container {
            kind: container.kind,
            request: container.request.clone(),
            dra_backed: container.dra_backed.clone(),
        };
        Self {
            requests: requests.clone(),
            rated: *rated,
            wishes: wishes.clone(),
            node: handoff.node.clone(),
            selector: node_selector.clone(),
            required: node_required.clone(),
            preferred: node_preferred.clone(),
            tolerations: tolerations.clone(),
            containers: handoff.containers.iter().map(container).collect(),
            images: images.clone(),
        }
    }

    /// The node that the pod names.
    pub fn node(&self) -> Option<&str> {
        self.node.as_deref()
    }

    /// `self == PodShape::of(pod)`, without building it.
    pub fn is_of(&self, pod: &Pod) -> bool {
        let (spec, handoff) = (&pod.facts.spec, &pod.facts.handoff);
        self.requests == spec.requests
            && self.rated == spec.rated
            && self.wishes == spec.wishes
            && self.node == handoff.node
            && self.selector == spec.node_selector
            && self.required == spec.node_required
            && self.preferred == spec.node_preferred
            && self.tolerations == spec.tolerations
            && self.images == spec.images
            && self.containers.len() == handoff.containers.len()
            && self.containers.iter().zip(&handoff.containers).all(|(mine, other)| mine.is_like(other))
    }
}

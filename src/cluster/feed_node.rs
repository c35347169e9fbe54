//! Nodes, volumes and claims for the scheduler.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{self as core, Node, PersistentVolume, PersistentVolumeClaim};
use kube::Resource;
use kube::api::ObjectMeta;
use serde::Deserialize;

use super::feed_term as term;
use crate::contract::{PodKey, Quantity};
use crate::decide::world::{ClaimFacts, NodeFacts, Resources, VolumeFacts};

/// A node with the fields that scheduling needs. Watch with it, never write.
#[derive(Debug, Clone, Deserialize, Resource)]
#[resource(inherit = Node)]
pub struct FeedNode {
    /// Metadata.
    pub metadata: ObjectMeta,
    #[serde(default)]
    spec: FeedNodeSpec,
    #[serde(default)]
    status: FeedNodeStatus,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct FeedNodeSpec {
    taints: Vec<core::Taint>,
    unschedulable: bool,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct FeedNodeStatus {
    allocatable: BTreeMap<Box<str>, Box<str>>,
}

impl FeedNode {
    /// The world's record. `lock_key` is the annotation of the node lock.
    pub fn facts(self, lock_key: &str) -> NodeFacts {
        let amounts = &self.status.allocatable;
        let read = |text: &str| text.parse::<Quantity>().ok();
        let list = amounts.iter().filter_map(|(name, text)| Some((&**name, read(text)?)));
        NodeFacts {
            allocatable: Resources::of(list).into(),
            max_pods: amounts.get("pods").and_then(|text| read(text)).map_or(0, Quantity::value),
            lock: self.metadata.annotations.as_ref().and_then(|all| all.get(lock_key)).map(|raw| raw.as_str().into()),
            name: self.metadata.name.unwrap_or_default().into(),
            labels: self.metadata.labels.unwrap_or_default(),
            taints: self.spec.taints.iter().filter_map(term::taint).collect(),
            unschedulable: self.spec.unschedulable,
        }
    }
}

/// The place of a persistent volume.
pub fn volume_facts(volume: &PersistentVolume) -> VolumeFacts {
    let affinity = volume.spec.as_ref().and_then(|spec| spec.node_affinity.as_ref()?.required.as_ref());
    VolumeFacts {
        required: affinity.map(|selector| selector.node_selector_terms.iter().map(term::node_term).collect()),
        labels: volume.metadata.labels.clone().unwrap_or_default(),
    }
}

/// A claim and its key.
pub fn claim_facts(claim: &PersistentVolumeClaim) -> (PodKey, ClaimFacts) {
    let meta = &claim.metadata;
    let spec = claim.spec.as_ref();
    let facts = ClaimFacts {
        volume: spec.and_then(|spec| spec.volume_name.as_deref()).filter(|name| !name.is_empty()).map(Into::into),
        complete: meta.annotations.as_ref().is_some_and(|all| all.contains_key("pv.kubernetes.io/bind-completed")),
        class: spec.and_then(|spec| spec.storage_class_name.as_deref()).map(Into::into),
        deleting: meta.deletion_timestamp.is_some(),
        single_pod: spec.is_some_and(|spec| spec.access_modes.iter().flatten().any(|mode| mode == "ReadWriteOncePod")),
    };
    (PodKey::new(meta.namespace.as_deref().unwrap_or_default(), meta.name.as_deref().unwrap_or_default()), facts)
}

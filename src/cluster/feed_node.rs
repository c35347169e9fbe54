//! Nodes for the scheduler.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{self as core, Node};
use kube::Resource;
use kube::api::ObjectMeta;
use serde::Deserialize;

use super::feed_image::Listed;
use super::feed_term as term;
use crate::contract::Quantity;
use crate::decide::world::{NodeFacts, Resources};

/// A node with the fields that scheduling needs. Watch with it, never write.
#[derive(Debug, Clone, Deserialize, Resource)]
#[resource(inherit = Node)]
pub struct FeedNode {
    /// Metadata.
    #[serde(deserialize_with = "super::light_meta::read")]
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
    conditions: Vec<FeedNodeCondition>,
    images: Vec<FeedNodeImage>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct FeedNodeCondition {
    #[serde(rename = "type")]
    kind: Box<str>,
    status: Box<str>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct FeedNodeImage {
    names: Vec<Listed>,
    size_bytes: i64,
}

impl FeedNode {
    /// The world's record. `lock_key` is the annotation of the node lock.
    pub fn facts(self, lock_key: &str) -> NodeFacts {
        let amounts = &self.status.allocatable;
        let read = |text: &str| text.parse::<Quantity>().ok();
        let list = amounts.iter().filter_map(|(name, text)| Some((&**name, read(text)?)));
        let image =
            |image: &FeedNodeImage| image.names.iter().map(|name| (name.0, image.size_bytes)).collect::<Vec<_>>();
        let mut images: Vec<_> = self.status.images.iter().flat_map(image).collect();
        // The first of a name counts.
        images.sort_by_key(|(name, _)| *name);
        images.dedup_by_key(|(name, _)| *name);
        let ready = self.status.conditions.iter().find(|found| &*found.kind == "Ready");
        NodeFacts {
            not_ready: ready.is_some_and(|ready| &*ready.status != "True"),
            allocatable: Resources::of(list).into(),
            max_pods: amounts.get("pods").and_then(|text| read(text)).map_or(0, Quantity::value),
            lock: self.metadata.annotations.as_ref().and_then(|all| all.get(lock_key)).map(|raw| raw.as_str().into()),
            name: self.metadata.name.unwrap_or_default().into(),
            labels: self.metadata.labels.unwrap_or_default(),
            taints: self.spec.taints.iter().filter_map(term::taint).collect(),
            unschedulable: self.spec.unschedulable,
            images: images.into(),
        }
    }
}

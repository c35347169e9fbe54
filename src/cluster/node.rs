//! Nodes at the border: the one light wire type and the records of them.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, Taint};
use kube::Resource;
use kube::api::ObjectMeta;
use serde::Deserialize;

use super::light_meta::light;
use super::spec_part::{ListedImage, taint};
use baton_contract::Quantity;
use baton_decide::tyjob::stages::NodeReachability;
use baton_decide::world::{NodeFacts, Resources};

/// A node with the fields that Baton reads; the rest is skipped while parsing. Watch and read with it, never write.
#[derive(Debug, Clone, Deserialize, Resource)]
#[resource(inherit = Node)]
pub struct LightNode {
    /// Metadata without `managedFields`.
    #[serde(deserialize_with = "super::light_meta::read")]
    pub metadata: ObjectMeta,
    #[serde(default)]
    spec: LightNodeSpec,
    #[serde(default)]
    status: LightNodeStatus,
}

light! {
    struct LightNodeSpec {
        taints: Vec<Taint>,
        unschedulable: bool,
    }

    struct LightNodeStatus {
        allocatable: BTreeMap<Box<str>, Box<str>>,
        conditions: Vec<LightNodeCondition>,
        node_info: LightNodeInfo,
        images: Vec<LightNodeImage>,
    }

    struct LightNodeInfo {
        #[serde(rename = "bootID")]
        boot_id: Box<str>,
    }

    struct LightNodeCondition {
        #[serde(rename = "type")]
        kind: Box<str>,
        status: Box<str>,
        last_transition_time: Option<Timestamp>,
    }

    struct LightNodeImage {
        names: Vec<ListedImage>,
        size_bytes: i64,
    }
}

impl LightNode {
    /// The scheduler's record. `lock_key` is the annotation of the node lock.
    pub fn facts(self, lock_key: &str) -> NodeFacts {
        let amounts = &self.status.allocatable;
        let read = |text: &str| text.parse::<Quantity>().ok();
        let list = amounts.iter().filter_map(|(name, text)| Some((&**name, read(text)?)));
        let image =
            |image: &LightNodeImage| image.names.iter().map(|name| (name.0, image.size_bytes)).collect::<Vec<_>>();
        let mut images: Vec<_> = self.status.images.iter().flat_map(image).collect();
        // The first of a name counts.
        images.sort_by_key(|(name, _)| *name);
        images.dedup_by_key(|(name, _)| *name);
        NodeFacts {
            not_ready: !self.kubelet_ready(),
            allocatable: Resources::of(list).into(),
            max_pods: amounts.get("pods").and_then(|text| read(text)).map_or(0, Quantity::value),
            lock: self.metadata.annotations.as_ref().and_then(|all| all.get(lock_key)).map(|raw| raw.as_str().into()),
            name: self.metadata.name.unwrap_or_default().into(),
            labels: self.metadata.labels.unwrap_or_default(),
            taints: self.spec.taints.iter().filter_map(taint).collect(),
            unschedulable: self.spec.unschedulable,
            boot_id: self.status.node_info.boot_id,
            images: images.into(),
        }
    }

    /// The controller's record: whether the kubelet reports. `Ready` is `Unknown` while it does not.
    pub fn reachability(&self) -> NodeReachability {
        let silent =
            self.ready().filter(|found| &*found.status == "Unknown").and_then(|found| found.last_transition_time);
        silent.map_or(NodeReachability::There, NodeReachability::UnreachableSince)
    }

    /// What the kubelet offers to pods, by resource name.
    pub fn allocatable(&self) -> impl Iterator<Item = (&str, i64)> {
        self.status
            .allocatable
            .iter()
            .filter_map(|(name, text)| Some((&**name, text.parse::<Quantity>().ok()?.value())))
    }

    /// No condition says that the kubelet is not ready, or does not report.
    pub fn kubelet_ready(&self) -> bool {
        self.ready().is_none_or(|ready| &*ready.status == "True")
    }

    /// People let no new pods come.
    pub fn is_cordoned(&self) -> bool {
        self.spec.unschedulable
    }

    /// As `kubectl` shows it: `Ready` or `NotReady`, `Unknown` without that condition, with `SchedulingDisabled` behind a comma on a
    /// cordoned node.
    pub fn status_words(&self) -> String {
        let ready = match self.ready() {
            None => "Unknown",
            Some(_) if self.kubelet_ready() => "Ready",
            Some(_) => "NotReady",
        };
        if self.spec.unschedulable { format!("{ready},SchedulingDisabled") } else { ready.to_owned() }
    }

    fn ready(&self) -> Option<&LightNodeCondition> {
        self.status.conditions.iter().find(|found| &*found.kind == "Ready")
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_start_of_the_machine_is_read() {
        let node = json!({ "metadata": { "name": "n" }, "status": { "nodeInfo": { "bootID": "5b1e" } } });
        assert_eq!(&*serde_json::from_value::<LightNode>(node).unwrap().facts("lock").boot_id, "5b1e");
        let without = json!({ "metadata": { "name": "n" } });
        assert_eq!(&*serde_json::from_value::<LightNode>(without).unwrap().facts("lock").boot_id, "");
    }

    #[test]
    fn a_node_is_unreachable_while_its_readiness_is_unknown() {
        let node = |status: &str| {
            let ready = json!({ "type": "Ready", "status": status, "lastTransitionTime": "2026-01-01T00:00:00Z" });
            let node = json!({ "metadata": { "name": "n" }, "status": { "conditions": [ready] } });
            serde_json::from_value::<LightNode>(node).unwrap().reachability()
        };
        assert_eq!(node("True"), NodeReachability::There);
        assert_eq!(node("False"), NodeReachability::There, "its kubelet reports");
        assert_eq!(node("Unknown"), NodeReachability::UnreachableSince("2026-01-01T00:00:00Z".parse().unwrap()));
    }
}

//! Writes the inventory of a node: its Device object by server-side apply, and the node's labels. Only differences are written,
//! and nothing is ever deleted.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Node;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::{Api, Patch, PatchParams};
use kube::{Client, Resource, ResourceExt};
use serde_json::{Value, json};

use crate::contract::inventory::{Device, DeviceHeld, DeviceInfo, DeviceStatus};

/// Labels of the node; `None` takes one away.
pub type NodeLabels = BTreeMap<&'static str, Option<String>>;

/// The inventory of a node as it is now.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Published {
    /// Its devices, in order.
    pub devices: Vec<DeviceInfo>,
    /// Devices that pods hold without an assignment of the scheduler.
    pub held: Vec<DeviceHeld>,
    /// Labels of the node. Those that have a value stand on the Device object too, but for the driver's version.
    pub labels: NodeLabels,
}

/// The inventory of one node in the API.
pub struct InventoryWriter {
    devices: Api<Device>,
    nodes: Api<Node>,
    node: String,
    manager: String,
    /// State of the API after the last pass.
    last: Option<Last>,
}

struct Last {
    /// Version of the Device object.
    version: String,
    /// Uid of the node, its owner.
    node_uid: Option<String>,
    published: Published,
}

/// Writes of one pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Written {
    /// The Device object was applied.
    pub device: bool,
    /// The node's labels were patched.
    pub labels: bool,
}

/// Longest field manager.
const MAX_MANAGER: usize = 128;

impl InventoryWriter {
    /// A writer for `node`, with a field manager of its own.
    pub fn new(client: Client, node: &str) -> Self {
        // The API server accepts no longer one. Nodes whose names share the beginning write different objects.
        let mut manager = format!("baton-agent-{node}");
        manager.truncate(manager.floor_char_boundary(MAX_MANAGER));
        Self { devices: Api::all(client.clone()), nodes: Api::all(client), node: node.to_owned(), manager, last: None }
    }

    /// Makes the API show `now`. Nothing is written when it does already; a change or deletion by another client is undone.
    pub async fn publish(&mut self, now: &Published) -> Result<Written, kube::Error> {
        // A change of health is one request: the state before it is known.
        if let Some(last) = self.last.take_if(|last| last.published != *now && last.published.labels == now.labels) {
            return self.apply(now, last.node_uid).await.map(|()| Written { device: true, labels: false });
        }
        let seen = self.devices.get_metadata_opt(&self.node).await?.and_then(|device| device.resource_version());
        if let Some(last) = &self.last
            && seen.as_ref() == Some(&last.version)
            && last.published == *now
        {
            return Ok(Written::default());
        }
        let node = self.nodes.get_metadata(&self.node).await?;
        let labels = self.write_labels(node.labels(), &now.labels).await?;
        let current = match seen {
            Some(_) => self.devices.get_opt(&self.node).await?,
            None => None,
        };
        let wanted = self.object(now, node.uid().as_deref());
        match current.filter(|current| matches(current, &wanted)) {
            Some(current) => {
                let keep = |version| Last { version, node_uid: node.uid(), published: now.clone() };
                self.last = current.resource_version().map(keep);
                Ok(Written { device: false, labels })
            }
            None => self.apply(now, node.uid()).await.map(|()| Written { device: true, labels }),
        }
    }

    async fn apply(&mut self, now: &Published, node_uid: Option<String>) -> Result<(), kube::Error> {
        let params = PatchParams::apply(&self.manager).force();
        let wanted = self.object(now, node_uid.as_deref());
        let written = self.devices.patch(&self.node, &params, &Patch::Apply(&wanted)).await?;
        self.last = written.resource_version().map(|version| Last { version, node_uid, published: now.clone() });
        Ok(())
    }

    fn object(&self, now: &Published, node_uid: Option<&str>) -> Device {
        let mut device =
            Device::new(&self.node, crate::contract::inventory::DeviceSpec { devices: now.devices.clone() });
        let labels = now.labels.iter().filter(|(key, _)| **key != crate::contract::key::NODE_GPU_DRIVER);
        let labels: BTreeMap<String, String> =
            labels.filter_map(|(key, value)| Some(((*key).to_owned(), value.clone()?))).collect();
        device.metadata.labels = (!labels.is_empty()).then_some(labels);
        device.metadata.owner_references = node_uid.map(|uid| {
            vec![OwnerReference {
                api_version: Node::api_version(&()).into_owned(),
                kind: Node::kind(&()).into_owned(),
                name: self.node.clone(),
                uid: uid.to_owned(),
                ..OwnerReference::default()
            }]
        });
        device.status = (!now.held.is_empty()).then(|| DeviceStatus { allocations: now.held.clone() });
        device
    }

    async fn write_labels(&self, seen: &BTreeMap<String, String>, wanted: &NodeLabels) -> Result<bool, kube::Error> {
        let differs = |(key, value): &(&&'static str, &Option<String>)| seen.get(**key) != value.as_ref();
        let patch: BTreeMap<&str, Option<&str>> =
            wanted.iter().filter(differs).map(|(key, value)| (*key, value.as_deref())).collect();
        if patch.is_empty() {
            return Ok(false);
        }
        // Merge, not apply: an apply would create a Node that is not there.
        let patch: Value = json!({"metadata": {"labels": patch}});
        self.nodes.patch_metadata(&self.node, &PatchParams::default(), &Patch::Merge(patch)).await?;
        Ok(true)
    }
}

/// The object in the API has everything that is wanted, and in `spec` nothing else.
fn matches(current: &Device, wanted: &Device) -> bool {
    let has = |now: &BTreeMap<String, String>, wanted: &BTreeMap<String, String>| {
        wanted.iter().all(|(key, value)| now.get(key) == Some(value))
    };
    let owners = |device: &Device| device.owner_references().iter().map(|owner| owner.uid.clone()).collect::<Vec<_>>();
    let allocations = |device: &Device| device.status.clone().unwrap_or_default();
    current.spec == wanted.spec
        && has(current.labels(), wanted.labels())
        && owners(wanted).iter().all(|uid| owners(current).contains(uid))
        && allocations(current) == allocations(wanted)
}

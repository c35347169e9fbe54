//! Writes the inventory of a node: its Device object by server-side apply, and the node's labels. Only differences are written,
//! and nothing is ever deleted.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Node;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, OwnerReference};
use kube::api::{Api, Patch, PatchParams};
use kube::{Client, Resource, ResourceExt};
use serde_json::{Value, json};

use baton_contract::inventory::{Device, DeviceCounts, DeviceHeld, DeviceInfo, DeviceSpec, DeviceStatus};
use baton_contract::{DeviceType, key};

/// Labels of the node; `None` takes one away.
pub type NodeLabels = BTreeMap<&'static str, Option<String>>;

/// The inventory of a node as it is now.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Published {
    /// Its devices, in order.
    pub devices: Vec<DeviceInfo>,
    /// Devices that pods hold without an assignment of the scheduler.
    pub held: Vec<DeviceHeld>,
    /// What is to be said of the node itself.
    pub conditions: Vec<Condition>,
    /// Labels of the node. Those that have a value stand on the Device object too, but for the driver's version; how GPU shares are
    /// limited stands there alone.
    pub labels: NodeLabels,
}

impl Published {
    fn counts(&self) -> DeviceCounts {
        let mut counts = DeviceCounts::default();
        // A GPU that is split has no resources of its own.
        for info in self.devices.iter().filter(|info| !info.resources.is_empty()) {
            counts.unhealthy += u32::from(!info.health);
            match info.kind {
                DeviceType::Gpu => counts.gpus += 1,
                _ => counts.nics += 1,
            }
        }
        counts
    }
}

/// The inventory of one node in the API.
pub struct InventoryWriter {
    devices: Api<Device>,
    nodes: Api<Node>,
    node: String,
    manager: String,
    /// The cluster's kind is Koordinator's, whose status has neither counts nor conditions.
    plain: bool,
    /// State of the API after the last pass.
    last: Option<Last>,
}

struct Last {
    /// Version of the Device object.
    version: String,
    /// Uid of the node, its owner.
    node_uid: Option<String>,
    published: Published,
    /// The object as it stands there.
    stored: Device,
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

/// In the API server's word on an apply with fields that the kind does not have.
const UNDECLARED: &str = "field not declared in schema";

impl InventoryWriter {
    /// A writer for `node`, with a field manager of its own.
    pub fn new(client: Client, node: &str) -> Self {
        // The API server accepts no longer one. Nodes whose names share the beginning write different objects.
        let mut manager = format!("baton-agent-{node}");
        manager.truncate(manager.floor_char_boundary(MAX_MANAGER));
        let (devices, nodes) = (Api::all(client.clone()), Api::all(client));
        Self { devices, nodes, node: node.to_owned(), manager, plain: false, last: None }
    }

    /// The annotation of the Device object with cordons that are not read any more.
    pub async fn cordoned_before(&self) -> Result<Option<String>, kube::Error> {
        let device = self.devices.get_metadata_opt(&self.node).await?;
        let mut names =
            device.and_then(|device| device.metadata.annotations).into_iter().flatten().map(|(name, _)| name);
        Ok(names.find(|name| key::moved(name) == Some(key::CORDONED)))
    }

    /// Makes the API show `now`. Nothing is written when it does already; a change or deletion by another client is undone.
    pub async fn publish(&mut self, now: &Published) -> Result<Written, kube::Error> {
        // A change of health is one request: the state before it is known.
        if let Some(last) = self.last.take_if(|last| *now != last.published && last.published.labels == now.labels) {
            let wanted = self.object(now, last.node_uid.as_deref(), Some(&last.stored));
            self.apply(wanted, now, last.node_uid).await?;
            return Ok(Written { device: true, labels: false });
        }
        let seen = self.devices.get_metadata_opt(&self.node).await?;
        let seen = seen.and_then(|device| device.resource_version());
        if let Some(last) = &self.last
            && seen.as_ref() == Some(&last.version)
            && *now == last.published
        {
            return Ok(Written::default());
        }
        let node = self.nodes.get_metadata(&self.node).await?;
        let labels = self.write_labels(node.labels(), &now.labels).await?;
        let current = match seen {
            Some(_) => match self.devices.get_opt(&self.node).await {
                // Another client's words that cannot be read are undone, too.
                Err(kube::Error::SerdeError(_)) => None,
                read => read?,
            },
            None => None,
        };
        let wanted = self.object(now, node.uid().as_deref(), current.as_ref());
        if let Some(current) = current.filter(|current| matches(current, &wanted)) {
            self.keep(now, current, node.uid());
            return Ok(Written { device: false, labels });
        }
        self.apply(wanted, now, node.uid()).await?;
        Ok(Written { device: true, labels })
    }

    async fn apply(
        &mut self,
        mut wanted: Device,
        now: &Published,
        node_uid: Option<String>,
    ) -> Result<(), kube::Error> {
        let params = PatchParams::apply(&self.manager).force();
        let mut written = self.devices.patch(&self.node, &params, &Patch::Apply(&wanted)).await;
        if let Err(kube::Error::Api(refused)) = &written
            && !self.plain
            && refused.message.contains(UNDECLARED)
        {
            tracing::warn!(%refused, "the cluster's kind Device is another one: counts and conditions are left out");
            self.plain = true;
            wanted.status = Some(self.status(now));
            written = self.devices.patch(&self.node, &params, &Patch::Apply(&wanted)).await;
        }
        let written = written?;
        self.keep(now, written, node_uid);
        Ok(())
    }

    fn keep(&mut self, now: &Published, stored: Device, node_uid: Option<String>) {
        let published = now.clone();
        self.last = stored.resource_version().map(|version| Last { version, node_uid, published, stored });
    }

    fn object(&self, now: &Published, node_uid: Option<&str>, stored: Option<&Device>) -> Device {
        let mut device = Device::new(&self.node, DeviceSpec { devices: now.devices.clone() });
        for info in &mut device.spec.devices {
            let before = stored.and_then(|stored| stored.spec.devices.iter().find(|before| before.id == info.id));
            keep_times(&mut info.conditions, before.map(|before| &*before.conditions));
        }
        let labels = now.labels.iter().filter(|(key, _)| **key != baton_contract::key::NODE_GPU_DRIVER);
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
        let mut status = self.status(now);
        keep_times(&mut status.conditions, stored.and_then(|stored| Some(&*stored.status.as_ref()?.conditions)));
        device.status = Some(status);
        device
    }

    fn status(&self, now: &Published) -> DeviceStatus {
        let held = DeviceStatus { allocations: now.held.clone(), ..DeviceStatus::default() };
        if self.plain {
            return held;
        }
        DeviceStatus { counts: Some(now.counts()), conditions: now.conditions.clone(), ..held }
    }

    async fn write_labels(&self, seen: &BTreeMap<String, String>, wanted: &NodeLabels) -> Result<bool, kube::Error> {
        // On nodes it is Koordinator's label, which people write.
        let differs = |(key, value): &(&&'static str, &Option<String>)| {
            **key != baton_contract::key::GPU_ISOLATION_PROVIDER && seen.get(**key) != value.as_ref()
        };
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

/// A condition that says the same as the stored one has its time: this process may have started after the transition.
fn keep_times(conditions: &mut [Condition], stored: Option<&[Condition]>) {
    for condition in conditions {
        let same = |before: &&Condition| {
            (&before.type_, &before.status, &before.reason) == (&condition.type_, &condition.status, &condition.reason)
        };
        if let Some(before) = stored.unwrap_or_default().iter().find(same) {
            condition.last_transition_time = before.last_transition_time.clone();
        }
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

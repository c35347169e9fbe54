//! One reading of every object that `baton get` shows.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::Timestamp;
use kube::Client;
use kube::api::{Api, ListParams};

use crate::live::{self, all};
use crate::say::remark;
use baton_cluster::agent_lease::LightLease;
use baton_cluster::device::RawDevice;
use baton_cluster::node::LightNode;
use baton_cluster::pod::LightPod;
use baton_cluster::tyjob::RawTyJob;
use baton_contract::allocation::Entries;
use baton_contract::hint::parse_hints;
use baton_contract::inventory::Device;
use baton_contract::{AgentStatus, LEASE_PREFIX, LeavingPod, LockRead, PodKey, PodUid, key};
use baton_decide::lock::{HolderState, Lookup};
use baton_decide::pod::HandoffPod;
use baton_runtime::clock;

/// The cluster at one moment.
#[derive(Debug, Default)]
pub struct Snapshot {
    /// Reader's wall time.
    pub wall: Timestamp,
    /// By name.
    pub nodes: BTreeMap<String, LightNode>,
    /// By node.
    pub devices: BTreeMap<String, Device>,
    /// Entries of Device objects that cannot be read, by node.
    pub(super) skipped: BTreeMap<String, Vec<String>>,
    /// Pods of every namespace.
    pub pods: BTreeMap<PodKey, HandoffPod>,
    /// What else people read of them.
    pub(crate) notes: BTreeMap<PodKey, Notes>,
    /// The agents' Leases by name.
    pub leases: BTreeMap<String, LightLease>,
    /// TYJobs by namespace and name.
    pub(crate) jobs: BTreeMap<(String, String), RawTyJob>,
    /// Pods by node, of those that a follower has put here.
    pub(super) placed: BTreeMap<Box<str>, BTreeSet<PodKey>>,
    /// Nodes whose rows may have changed since this set was last emptied, by a follower.
    pub(crate) changed: BTreeSet<String>,
    /// Earlier states of nodes whose annotations have changed since this list was last emptied, and when, by a follower.
    pub(crate) replaced: Vec<(LightNode, Timestamp)>,
    /// Kinds of objects that a follower cannot read, by their plural, and why.
    pub(crate) unread: BTreeMap<String, String>,
}

/// Settings of this cluster's daemons, as far as they decide what a lock is.
#[derive(Debug, Clone)]
pub struct Rules {
    /// Node annotation of the lock.
    pub lock_key: String,
    /// A lock of this age is expired.
    pub expiry: Duration,
}

impl Default for Rules {
    fn default() -> Self {
        Self { lock_key: key::NODE_LOCK.to_owned(), expiry: Duration::from_secs(300) }
    }
}

impl Lookup for Snapshot {
    fn by_key(&self, key: &PodKey) -> Option<&HandoffPod> {
        self.pods.get(key)
    }
    fn by_bind_timestamp(&self, nanos: &str) -> Option<&HandoffPod> {
        self.pods.values().find(|pod| pod.assignment.bind_timestamp.as_deref() == Some(nanos))
    }
}

impl Snapshot {
    pub fn node(&self, name: &str) -> Option<&LightNode> {
        self.nodes.get(name)
    }

    pub fn labels_of(&self, node: &str) -> BTreeMap<String, String> {
        self.node(node).and_then(|node| node.metadata.labels.clone()).unwrap_or_default()
    }

    /// Pods that have left before their processes, by the daemons' words: node, uid, name and what they use.
    pub(super) fn leaving(&self) -> Vec<(String, PodUid, LeavingPod, Entries)> {
        let mut all = Vec::new();
        for (lease, found) in &self.leases {
            let (Some(node), Some(status)) = (lease.strip_prefix(LEASE_PREFIX), found.status()) else { continue };
            let own = |(uid, pod, held): (&PodUid, &LeavingPod, &Entries)| {
                (node.to_owned(), uid.clone(), pod.clone(), held.clone())
            };
            all.extend(status.leaving().map(own));
        }
        all
    }

    /// Puts a pod in the place of its earlier state.
    pub(crate) fn put_pod(&mut self, pod: LightPod) {
        let (notes, pod) = (Notes::of(&pod), pod.handoff());
        let key = pod.pod.key.clone();
        let before = self.pods.insert(key.clone(), pod);
        self.notes.insert(key.clone(), notes);
        self.moved(&key, before);
    }

    pub(super) fn remove_pod(&mut self, key: &PodKey) {
        self.notes.remove(key);
        let before = self.pods.remove(key);
        self.moved(key, before);
    }

    /// Keeps `placed` and `changed` after a pod was put or removed.
    fn moved(&mut self, key: &PodKey, before: Option<HandoffPod>) {
        let now = self.pods.get(key);
        let holds = |pod: &HandoffPod| pod.asks_for_devices() || pod.assignment.device_allocated.is_some();
        let of = |pod: &HandoffPod| pod.node.clone().filter(|_| holds(pod));
        let (from, to) = (before.as_ref().and_then(of), now.and_then(of));
        if let Some(node) = from.as_ref().filter(|node| to.as_ref() != Some(node))
            && let Some(pods) = self.placed.get_mut(node)
        {
            pods.remove(key);
        }
        if let Some(node) = &to {
            self.placed.entry(node.clone()).or_default().insert(key.clone());
        }
        self.changed.extend([from, to].into_iter().flatten().map(String::from));
    }

    /// The pods with devices on a node, of those that a follower has put here.
    pub(crate) fn pods_on(&self, node: &str) -> impl Iterator<Item = &HandoffPod> {
        self.placed.get(node).into_iter().flatten().filter_map(|key| self.pods.get(key))
    }

    /// A Device object, with what of it can be read.
    pub(crate) fn put_device(&mut self, device: RawDevice) {
        let (device, skipped) = device.read();
        let name = device.metadata.name.clone().unwrap_or_default();
        self.skipped.remove(&name);
        if !skipped.is_empty() {
            self.skipped.insert(name.clone(), skipped);
        }
        self.devices.insert(name, device);
    }

    /// What the rows of these nodes are made of: the nodes, what is on them, and the pods that their locks name.
    pub(crate) fn part(&self, nodes: &BTreeSet<String>, lock_key: &str) -> Self {
        let mut part = Self { wall: self.wall, ..Self::default() };
        for name in nodes {
            let lease = AgentStatus::lease_name(name);
            part.leases.extend(self.leases.get(&lease).map(|found| (lease, found.clone())));
            part.devices.extend(self.devices.get(name).map(|device| (name.clone(), device.clone())));
            part.skipped.extend(self.skipped.get(name).map(|skipped| (name.clone(), skipped.clone())));
            part.pods.extend(self.pods_on(name).map(|pod| (pod.pod.key.clone(), pod.clone())));
            let Some(node) = self.nodes.get(name) else { continue };
            part.nodes.insert(name.clone(), node.clone());
            let Some((read, holder)) = self.lock(node, lock_key) else { continue };
            let named = match (read, holder) {
                (_, HolderState::Unbound(pod) | HolderState::BoundHere(pod)) => Some(pod.key),
                (LockRead::Held { value, .. }, _) => value.holder.map(|holder| holder.pod),
                _ => None,
            };
            let named = named.and_then(|key| self.pods.get(&key));
            part.pods.extend(named.map(|pod| (pod.pod.key.clone(), pod.clone())));
        }
        part
    }

    /// The lock annotation of `node` and its holder; `None` when the node is not locked.
    pub fn lock(&self, node: &LightNode, key: &str) -> Option<(LockRead, HolderState)> {
        let raw = node.metadata.annotations.as_ref()?.get(key)?;
        let read = LockRead::parse(Some(raw));
        let holder = HolderState::of(&read, name_of(node), self, self.wall)?;
        Some((read, holder))
    }
}

/// What only people read of a pod: why it is where it is, in others' words.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Notes {
    /// Message of condition `PodScheduled` while it is False.
    pub unscheduled: Option<String>,
    /// There is a condition `PodScheduled`: a scheduler has tried the pod.
    pub tried: bool,
    /// `status.reason` and `status.message` of a pod that failed.
    pub failed: Option<String>,
    /// Why `device-allocate-hint` cannot be read.
    pub hint: Option<String>,
    pub labels: BTreeMap<String, String>,
    /// `Job train`, which makes another pod; `None` for a pod that nothing makes again.
    pub owner: Option<Box<str>>,
}

impl Notes {
    pub fn of(pod: &LightPod) -> Self {
        let scheduled = pod.condition("PodScheduled");
        let refused = scheduled.filter(|condition| &*condition.status == "False");
        let words = refused.and_then(|of| [&of.message, &of.reason].into_iter().find(|text| !text.is_empty()));
        let hint = pod.annotation(key::DEVICE_ALLOCATE_HINT);
        Self {
            unscheduled: words.map(ToString::to_string),
            tried: scheduled.is_some(),
            failed: pod.failure(),
            labels: pod.metadata.labels.clone().unwrap_or_default(),
            owner: pod.controller().map(|owner| format!("{} {}", owner.kind, owner.name).into()),
            hint: hint.and_then(|hint| parse_hints(hint).err()).map(|bad| bad.to_string()),
        }
    }
}

pub fn name_of(node: &LightNode) -> &str {
    node.metadata.name.as_deref().unwrap_or_default()
}

/// Reads the cluster, page by page, with the daemons in `namespace`.
pub async fn read(client: Client, namespace: &str) -> anyhow::Result<Snapshot> {
    let nodes = all(Api::<LightNode>::all(client.clone()), "nodes").await?;
    let devices = live::devices(client.clone()).await?;
    let pods = all(Api::<LightPod>::all(client.clone()), "pods").await?;
    let leases = live::agent_leases(client, namespace).await?;
    let named = |name: Option<String>| name.unwrap_or_default();
    let mut snapshot = Snapshot { wall: clock::wall(), ..Snapshot::default() };
    snapshot.nodes = nodes.into_iter().map(|node| (named(node.metadata.name.clone()), node)).collect();
    devices.into_iter().for_each(|device| snapshot.put_device(device));
    pods.into_iter().for_each(|pod| snapshot.put_pod(pod));
    snapshot.leases = leases;
    Ok(snapshot)
}

/// Reads what is of one node: its objects and its pods.
pub async fn read_node(client: Client, namespace: &str, name: &str) -> anyhow::Result<Snapshot> {
    let mut snapshot = Snapshot { wall: clock::wall(), ..Snapshot::default() };
    let cannot = |what| move |error| live::cannot(&format!("read the {what} of {name}"), error);
    let node = Api::<LightNode>::all(client.clone()).get_opt(name).await.map_err(cannot("node"))?;
    snapshot.nodes = node.into_iter().map(|node| (name.to_owned(), node)).collect();
    let device = Api::<RawDevice>::all(client.clone()).get_opt(name).await.map_err(cannot("Device object"))?;
    device.into_iter().for_each(|device| snapshot.put_device(device));
    let lease = AgentStatus::lease_name(name);
    let leases = Api::<LightLease>::namespaced(client.clone(), &AgentStatus::lease_namespace(namespace));
    let found = leases.get_opt(&lease).await.map_err(cannot("daemon's Lease"))?;
    if found.is_none() {
        live::elsewhere(client.clone(), namespace).await.into_iter().for_each(remark);
    }
    snapshot.leases = found.into_iter().map(|found| (lease.clone(), found)).collect();
    let here = ListParams::default().fields(&format!("spec.nodeName={name}"));
    let pods = Api::<LightPod>::all(client).list(&here).await.map_err(|error| live::cannot("list pods", error))?;
    pods.items.into_iter().for_each(|pod| snapshot.put_pod(pod));
    Ok(snapshot)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use serde_json::{Value, from_value, json};

    fn gpu(id: &str, minor: i32, health: bool) -> Value {
        json!({"type": "gpu", "id": id, "minor": minor, "health": health, "resources": {"koordinator.sh/gpu-core": "100"}})
    }

    /// Processes of a pod that has left use GPU-a0, says the daemon of node-a.
    pub fn leave(cluster: &mut Snapshot, uid: &str, name: &str) {
        let status = json!({"version": "0.1.0", "registered": ["nvidia.com/gpu"], "identity": "exact",
            "exceptions": {uid: {"gpu": [{"minor": 0, "id": "GPU-a0", "resources": {"koordinator.sh/gpu-core": "100"}}]}},
            "leaving": {uid: {"namespace": "ml", "name": name, "since": "2026-11-21T02:35:30Z"}}});
        let annotations = [(baton_contract::key::AGENT.to_owned(), status.to_string())].into();
        cluster.leases.get_mut("baton-agent-node-a").unwrap().metadata.annotations = Some(annotations);
    }

    /// [`cluster`] without the lock of node-a, which is stuck.
    pub fn unlocked() -> Snapshot {
        let mut cluster = cluster();
        cluster.nodes.get_mut("node-a").unwrap().metadata.annotations = None;
        cluster
    }

    /// Two GPUs on node-a, one of them with ml/train, which holds the lock; a dangling lock on node-b, a broken one on node-c.
    pub fn cluster() -> Snapshot {
        let wall: Timestamp = "2026-11-21T02:36:00Z".parse().unwrap();
        let stamp = "2026-11-21T02:35:12.000000001Z";
        let nanos = stamp.parse::<Timestamp>().unwrap().as_nanosecond().to_string();
        let node = |name: &str, lock: &str| -> LightNode {
            let annotations = json!({"scheduling.koordinator.sh/node-lock": lock});
            let status = json!({"allocatable": {"nvidia.com/gpu": "2"}});
            from_value(json!({"metadata": {"name": name, "annotations": annotations}, "status": status})).unwrap()
        };
        let device = |name: &str, devices: Value| -> Device {
            from_value(json!({"apiVersion": "scheduling.koordinator.sh/v1alpha1", "kind": "Device", "metadata": {"name": name}, "spec": {"devices": devices}})).unwrap()
        };
        let lease = |name: &str, renewed: &str| -> LightLease {
            let status = r#"{"version":"0.1.0","registered":["nvidia.com/gpu"],"identity":"exact"}"#;
            from_value(json!({"metadata": {"name": name, "annotations": {key::AGENT: status}}, "spec": {"renewTime": renewed}})).unwrap()
        };
        let allocated = r#"{"gpu":[{"minor":0,"id":"GPU-a0","resources":{"koordinator.sh/gpu-core":"100"}}]}"#;
        let train: LightPod = from_value(json!({
            "metadata": {"name": "train", "namespace": "ml", "uid": "u1", "creationTimestamp": "2026-11-21T02:35:10Z",
                "annotations": {"scheduling.koordinator.sh/device-allocated": allocated, "scheduling.koordinator.sh/bind-timestamp": nanos}},
            "spec": {"nodeName": "node-a", "schedulerName": "baton-scheduler", "containers": [{"name": "main", "resources": {"limits": {"nvidia.com/gpu": "1"}}}]},
            "status": {"phase": "Pending"}
        }))
        .unwrap();
        let train = train.handoff();
        Snapshot {
            wall,
            nodes: [
                node("node-a", &format!("{stamp},ml,train,u1")),
                node("node-b", &format!("{stamp},ml,gone,u2")),
                node("node-c", "yes"),
            ]
            .map(|node| (name_of(&node).to_owned(), node))
            .into(),
            devices: [
                ("node-a".to_owned(), device("node-a", json!([gpu("GPU-a0", 0, true), gpu("GPU-a1", 1, true)]))),
                ("node-b".to_owned(), device("node-b", json!([gpu("GPU-b0", 0, false)]))),
            ]
            .into(),
            pods: [(train.pod.key.clone(), train)].into(),
            leases: [
                ("baton-agent-node-a".to_owned(), lease("baton-agent-node-a", "2026-11-21T02:35:50.000000Z")),
                ("baton-agent-node-b".to_owned(), lease("baton-agent-node-b", "2026-11-21T02:30:00.000000Z")),
            ]
            .into(),
            ..Snapshot::default()
        }
    }
}

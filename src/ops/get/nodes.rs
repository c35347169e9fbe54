//! Devices of each node, how many of them are free, and whether its node daemon serves them.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::Timestamp;
use serde::Serialize;

use super::output::{Row, age};
use super::snapshot::{Rules, Snapshot, name_of};
use crate::cluster::agent_lease::LightLease;
use crate::cluster::node::LightNode;
use crate::contract::inventory::Device;
use crate::contract::{AgentStatus, DeviceAllocation, DeviceType, Identity, key};
use crate::decide::explain::{QueueReport, ReservedDevices};

/// One node.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeRow {
    /// Name.
    pub name: String,
    /// As kubectl shows it: `Ready` or `NotReady`, with `SchedulingDisabled` behind a comma on a cordoned node.
    pub status: String,
    /// GPUs, MIG devices among them.
    pub gpu: DeviceCount,
    /// RDMA NICs.
    pub rdma: DeviceCount,
    /// The node daemon; absent when it never wrote a Lease.
    pub agent: Option<AgentRow>,
    /// The lock, if the node is locked.
    pub lock: Option<super::LockRow>,
    /// The gang or pod that it is kept for, where the scheduler could be asked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kept_for: Option<String>,
    /// Jobs, gangs and pods for which the scheduler has reserved devices here.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub reserved_for: BTreeSet<String>,
}

/// Devices of one type.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct DeviceCount {
    /// All.
    pub total: usize,
    /// Healthy, no live pod has any part of it, and none is reserved.
    pub free: usize,
    /// Healthy, and the scheduler has reserved a part of it for pods that are not bound yet.
    pub reserved: usize,
    /// Healthy, and a part of it is left.
    pub partly: usize,
    /// Take no new pods.
    pub unhealthy: usize,
}

/// Status of a node daemon, from its Lease.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct AgentRow {
    /// Version; absent when the Lease carries no status.
    pub version: Option<String>,
    /// Resource names that the kubelet has registered.
    pub registered: Vec<String>,
    /// How it identifies the calling pod.
    pub identity: Option<Identity>,
    /// Since the last renewal, by this machine's clock.
    pub renewed_seconds: Option<u64>,
    /// Renewed within the time after which the scheduler holds it for stale.
    pub fresh: bool,
}

/// Every node, with what the scheduler says of it.
pub fn rows(snapshot: &Snapshot, rules: &Rules, said: &QueueReport) -> Vec<NodeRow> {
    let locks = super::locks::rows(snapshot, rules);
    let agent = |lease| agent(lease, snapshot.wall, rules.stale);
    let row = |node: &LightNode, name: &str| NodeRow {
        name: name.to_owned(),
        status: node.status_words(),
        gpu: count(snapshot, name, &DeviceType::Gpu, said),
        rdma: count(snapshot, name, &DeviceType::Rdma, said),
        reserved_for: reserved(said, name).map(|reserved| reserved.reserved_for.clone()).collect(),
        agent: snapshot.leases.get(&AgentStatus::lease_name(name)).map(agent),
        lock: locks.iter().find(|lock| lock.node == name).cloned(),
        kept_for: said.kept.iter().find(|kept| kept.node == name).map(|kept| kept.kept_for.clone()),
    };
    snapshot.nodes.iter().map(|node| row(node, name_of(node))).collect()
}

/// The status in a Lease.
pub fn agent(lease: &LightLease, wall: Timestamp, stale: Duration) -> AgentRow {
    let status = lease.status();
    // A renewal from the future comes from a clock that is ahead: just renewed.
    let renewed = lease.renewed().map(|time| Duration::try_from(wall.duration_since(time)).unwrap_or_default());
    AgentRow {
        version: status.as_ref().map(|status| status.version.clone()),
        identity: status.as_ref().map(|status| status.identity),
        registered: status.map(|status| status.registered).unwrap_or_default(),
        renewed_seconds: renewed.map(|renewed| renewed.as_secs()),
        fresh: renewed.is_some_and(|renewed| renewed <= stale),
    }
}

fn reserved<'a>(said: &'a QueueReport, node: &'a str) -> impl Iterator<Item = &'a ReservedDevices> {
    said.reserved.iter().filter(move |reserved| reserved.node == node)
}

fn count(snapshot: &Snapshot, node: &str, kind: &DeviceType, said: &QueueReport) -> DeviceCount {
    let Some(device) = snapshot.devices.get(node) else { return DeviceCount::default() };
    let used = used(snapshot, node, device, kind);
    let mut count = DeviceCount::default();
    // A GPU that is split into MIG devices has no resources of its own.
    for info in device.spec.devices.iter().filter(|info| info.kind == *kind && !info.resources.is_empty()) {
        count.total += 1;
        let of_id = |reserved: &ReservedDevices| reserved.devices.get(info.id.as_str()).copied();
        let reserved: i64 = reserved(said, node).filter_map(of_id).sum();
        count.reserved += usize::from(info.health && reserved > 0);
        match used.get(info.id.as_str()).copied().unwrap_or(0) + reserved {
            _ if !info.health => count.unhealthy += 1,
            0 => count.free += 1,
            part if part < key::WHOLE => count.partly += 1,
            _ => {}
        }
    }
    count
}

/// Percent in use by device id: assignments of live pods, and devices that pods hold without one, as the node daemon reports.
fn used(snapshot: &Snapshot, node: &str, device: &Device, kind: &DeviceType) -> BTreeMap<String, i64> {
    let mut used: BTreeMap<String, i64> = BTreeMap::new();
    let live = snapshot.pods.values().filter(|pod| pod.is_live() && pod.node.as_deref() == Some(node));
    for text in live.filter_map(|pod| pod.assignment.device_allocated.as_deref()) {
        for entry in DeviceAllocation::parse(text).unwrap_or_default().of(kind) {
            let core = entry.amount(key::GPU_CORE).max(entry.amount(key::GPU_MEMORY_RATIO));
            let part = core.max(entry.amount(key::RDMA));
            // An entry without a known amount (MIG) is the whole device.
            *used.entry(entry.id.to_string()).or_default() += if part > 0 { part } else { key::WHOLE };
        }
    }
    let held = device.status.iter().flat_map(|status| &status.allocations).filter(|held| held.kind == *kind);
    for minor in held.flat_map(|held| &held.entries).flat_map(|entry| &entry.minors) {
        for info in device.spec.devices.iter().filter(|info| info.kind == *kind && info.minor == *minor) {
            used.insert(info.id.to_string(), key::WHOLE);
        }
    }
    used
}

impl NodeRow {
    /// How many devices are reserved, and for which one, or for how many.
    fn reserved_cell(&self) -> String {
        let devices = self.gpu.reserved + self.rdma.reserved;
        match (self.reserved_for.len(), self.reserved_for.first()) {
            (1, Some(one)) => format!("{devices} for {one}"),
            (0, _) => devices.to_string(),
            (many, _) => format!("{devices} for {many} jobs or pods"),
        }
    }
}

impl DeviceCount {
    fn cell(&self) -> String {
        if self.total == 0 { String::new() } else { format!("{}/{}", self.free, self.total) }
    }
}

impl Row for NodeRow {
    const WHAT: &'static str = "node";
    const PLURAL: &'static str = "nodes";
    const NONE: &'static str = "The cluster has no nodes.";
    const HEADERS: &'static str = "NAME,STATUS,GPUS FREE,SHARED,RESERVED,UNHEALTHY,NICS FREE,AGENT,LOCK HOLDER,LOCK AGE,KEPT FOR,VERSION,IDENTITY,REGISTERED";
    const NARROW: usize = 11;
    fn name(&self) -> &str {
        &self.name
    }
    fn cells(&self) -> Vec<String> {
        let seconds = |seconds: u64| age(Duration::from_secs(seconds));
        let agent = self.agent.as_ref();
        let lock = self.lock.as_ref();
        let freshness = agent.map_or_else(
            || "none".to_owned(),
            |agent| {
                let silent = agent.registered.is_empty() && self.gpu.total + self.rdma.total > 0;
                let word = match agent.fresh {
                    // A daemon that has just ended, or one that the kubelet has not registered yet.
                    true if silent => "unregistered",
                    true => "fresh",
                    false => "stale",
                };
                format!("{word} {}", agent.renewed_seconds.map(seconds).unwrap_or_default())
            },
        );
        let identity = agent.and_then(|agent| agent.identity).map(|identity| match identity {
            Identity::Exact => "exact",
            Identity::Lock => "lock",
        });
        vec![
            self.name.clone(),
            self.status.clone(),
            self.gpu.cell(),
            self.gpu.partly.to_string(),
            self.reserved_cell(),
            (self.gpu.unhealthy + self.rdma.unhealthy).to_string(),
            self.rdma.cell(),
            freshness.trim_end().to_owned(),
            lock.map(|lock| lock.holder.clone().unwrap_or_else(|| lock.state.word().to_owned())).unwrap_or_default(),
            lock.and_then(|lock| lock.age_seconds).map(seconds).unwrap_or_default(),
            self.kept_for.clone().unwrap_or_default(),
            agent.and_then(|agent| agent.version.clone()).unwrap_or_default(),
            identity.unwrap_or_default().to_owned(),
            agent.map(|agent| agent.registered.join(",")).unwrap_or_default(),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::get::snapshot::tests::{cluster, rules};

    #[test]
    fn devices_are_free_partly_used_or_unhealthy() {
        let mut cluster = cluster();
        let gpus = |cluster: &Snapshot, at: usize| rows(cluster, &rules(), &QueueReport::default())[at].gpu.clone();
        assert_eq!(gpus(&cluster, 0), DeviceCount { total: 2, free: 1, ..DeviceCount::default() });
        assert_eq!(gpus(&cluster, 1), DeviceCount { total: 1, unhealthy: 1, ..DeviceCount::default() });
        let train = cluster.pods.values_mut().next().unwrap();
        let half = r#"{"gpu":[{"minor":0,"id":"GPU-a0","resources":{"koordinator.sh/gpu-core":"50"}}]}"#;
        train.assignment.device_allocated = Some(half.into());
        assert_eq!(gpus(&cluster, 0), DeviceCount { total: 2, free: 1, partly: 1, ..DeviceCount::default() });
        cluster.pods.values_mut().next().unwrap().phase = crate::decide::pod::Phase::Failed;
        assert_eq!(gpus(&cluster, 0).free, 2);
    }

    #[test]
    fn an_agent_is_stale_after_ninety_seconds() {
        let mut cluster = cluster();
        let fresh =
            |cluster: &Snapshot| rows(cluster, &rules(), &QueueReport::default())[0].agent.clone().unwrap().fresh;
        assert!(fresh(&cluster));
        cluster.wall = "2026-11-21T02:37:21Z".parse().unwrap();
        assert!(!fresh(&cluster));
        assert!(rows(&cluster, &rules(), &QueueReport::default())[2].agent.is_none());
    }
}

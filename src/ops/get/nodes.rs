//! Devices of each node, how many of them are free, and whether its node daemon serves them.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::Timestamp;
use serde::Serialize;

use super::output::{Row, age};
use super::snapshot::{Rules, Snapshot};
use super::usage::DeviceHolders;
use super::{LockRow, LockState};
use crate::say::amount;
use baton_cluster::agent_lease::LightLease;
use baton_cluster::node::LightNode;
use baton_contract::inventory::DeviceStatus;
use baton_contract::{AgentStatus, Cordons, DeviceType, Identity, key};
use baton_decide::explain::{QueueReport, ReservedDevices};
use baton_decide::lock::LATE;
use baton_decide::world::offered;

/// One node.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeRow {
    /// Name.
    pub name: String,
    /// As kubectl shows it: `Ready` or `NotReady`, with `SchedulingDisabled` behind a comma on a cordoned node.
    pub status: String,
    /// Why its daemon holds the machine to blame for pods that failed, and until when it takes no new ones with devices.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub suspect: Option<String>,
    /// GPUs, MIG devices among them.
    pub gpu: DeviceCount,
    /// RDMA NICs.
    pub rdma: DeviceCount,
    /// The node daemon; absent when it never wrote a Lease.
    pub agent: Option<AgentRow>,
    /// The node daemon has died: how many devices the kubelet offers, of how many that are healthy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub daemon_gone: Option<String>,
    /// The lock, if the node is locked.
    pub lock: Option<LockRow>,
    /// The gang or pod that it is kept for, where the scheduler could be asked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kept_for: Option<String>,
    /// Jobs, gangs and pods for which the scheduler has reserved devices here.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub reserved_for: BTreeSet<String>,
    #[serde(skip)]
    labels: BTreeMap<String, String>,
}

/// Devices of one type.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct DeviceCount {
    /// All.
    pub total: usize,
    /// A new pod can have it whole: it is healthy, not cordoned and not reserved, no live pod has any part of it, the node daemon
    /// reports and the kubelet offers its resource.
    pub free: usize,
    /// Healthy, and the scheduler has reserved a part of it for pods that are not bound yet.
    pub reserved: usize,
    /// The same of a part.
    pub partly: usize,
    /// Take no new pods.
    pub unhealthy: usize,
    /// Healthy, and taken out of use by people.
    pub cordoned: usize,
    /// What the kubelet offers.
    pub offered: i64,
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
    /// It knows what every pod of its node holds.
    pub knows_pods: bool,
    /// Since the last renewal, by this machine's clock.
    pub renewed_seconds: Option<u64>,
    /// Renewed within the time after which the scheduler holds it for stale.
    pub fresh: bool,
}

/// Every node, with what the scheduler says of it.
pub fn rows(snapshot: &Snapshot, rules: &Rules, said: &QueueReport) -> Vec<NodeRow> {
    let usage = DeviceHolders::of(snapshot);
    let locks = super::locks::rows(snapshot, rules);
    let locks: BTreeMap<&str, &LockRow> = locks.iter().map(|lock| (lock.node.as_str(), lock)).collect();
    let kept: BTreeMap<&str, &str> =
        said.kept.iter().map(|kept| (kept.node.as_str(), kept.kept_for.as_str())).collect();
    let row = |node: &LightNode, name: &str| {
        let agent = snapshot.leases.get(&AgentStatus::lease_name(name)).map(|of| agent(of, snapshot.wall, rules.stale));
        let serves = agent.as_ref().is_some_and(|agent| agent.fresh);
        let reserved: Vec<&ReservedDevices> = said.reserved.iter().filter(|reserved| reserved.node == name).collect();
        let count = |kind: &DeviceType| count(snapshot, &usage, (name, node), kind, &reserved, serves);
        let (gpu, rdma) = (count(&DeviceType::Gpu), count(&DeviceType::Rdma));
        let registered = agent.as_ref().is_some_and(|agent| !agent.registered.is_empty());
        let gone = [&gpu, &rdma].into_iter().find(|count| registered && count.is_not_offered());
        let status = snapshot.devices.get(name).and_then(|device| device.status.as_ref());
        NodeRow {
            name: name.to_owned(),
            status: node.status_words(),
            suspect: status.and_then(DeviceStatus::suspect).map(|condition| condition.message.clone()),
            daemon_gone: gone.map(|count| format!("kubelet offers 0 of {}", count.healthy())),
            gpu,
            rdma,
            agent,
            lock: locks.get(name).map(|lock| (*lock).clone()),
            kept_for: kept.get(name).map(|kept_for| (*kept_for).to_owned()),
            reserved_for: reserved.iter().map(|reserved| reserved.reserved_for.clone()).collect(),
            labels: snapshot.labels_of(name),
        }
    };
    snapshot.nodes.iter().map(|(name, node)| row(node, name)).collect()
}

/// The status in a Lease.
pub fn agent(lease: &LightLease, wall: Timestamp, stale: Duration) -> AgentRow {
    let status = lease.status();
    // A renewal from the future comes from a clock that is ahead: just renewed.
    let renewed = lease.renewed().map(|time| Duration::try_from(wall.duration_since(time)).unwrap_or_default());
    AgentRow {
        version: status.as_ref().map(|status| status.version.clone()),
        identity: status.as_ref().map(|status| status.identity),
        knows_pods: status.as_ref().is_some_and(|status| status.exceptions.is_some()),
        registered: status.map(|status| status.registered).unwrap_or_default(),
        renewed_seconds: renewed.map(|renewed| renewed.as_secs()),
        fresh: renewed.is_some_and(|renewed| renewed <= stale),
    }
}

/// `serves`: the node daemon reports.
fn count(
    snapshot: &Snapshot,
    usage: &DeviceHolders,
    (name, node): (&str, &LightNode),
    kind: &DeviceType,
    reserved: &[&ReservedDevices],
    serves: bool,
) -> DeviceCount {
    let mut count = DeviceCount { offered: offered(node.allocatable(), kind), ..DeviceCount::default() };
    let Some(device) = snapshot.devices.get(name) else { return count };
    let cordons = Cordons::of_object(device);
    // A GPU that is split into MIG devices has no resources of its own.
    for info in device.spec.devices.iter().filter(|info| info.kind == *kind && !info.resources.is_empty()) {
        let cordoned = cordons.of(info.id.as_str(), info.labels.get(key::PARENT).map(String::as_str), snapshot.wall);
        count.total += 1;
        let of_id = |reserved: &&ReservedDevices| reserved.devices.get(info.id.as_str()).copied();
        let reserved: i64 = reserved.iter().filter_map(of_id).sum();
        count.reserved += usize::from(info.health && reserved > 0);
        match usage.percent(name, info.id.as_str()) + reserved {
            _ if !info.health => count.unhealthy += 1,
            _ if cordoned.is_some() => count.cordoned += 1,
            0 => count.free += 1,
            part if part < key::WHOLE => count.partly += 1,
            _ => {}
        }
    }
    if !serves || count.is_not_offered() {
        (count.free, count.partly) = (0, 0);
    }
    count
}

impl DeviceCount {
    fn healthy(&self) -> usize {
        self.total - self.unhealthy
    }

    /// There are some, and the kubelet offers none: the device plugin's socket is gone.
    fn is_not_offered(&self) -> bool {
        self.offered == 0 && self.healthy() > 0
    }

    fn cell(&self) -> String {
        if self.total == 0 { String::new() } else { format!("{}/{}", self.free, self.total) }
    }
}

impl NodeRow {
    /// `1 GPU and 2 NICs`; nothing where there is none.
    fn devices(&self, of: impl Fn(&DeviceCount) -> usize) -> Option<String> {
        let counts = [(of(&self.gpu), "GPU"), (of(&self.rdma), "NIC")].into_iter().filter(|(count, _)| *count > 0);
        let words: Vec<String> = counts.map(|(count, what)| amount(count, what)).collect();
        (!words.is_empty()).then(|| words.join(" and "))
    }

    /// What is not as on any other node: `2 unhealthy, 1 cordoned, locked by ml/a for 3s`.
    fn notes(&self) -> String {
        let mut notes = Vec::new();
        if let Some(why) = &self.suspect {
            notes.push(format!("suspect: {why}"));
        }
        for (of, word) in [
            ((|count| count.unhealthy) as fn(&DeviceCount) -> usize, "unhealthy"),
            (|count| count.cordoned, "cordoned"),
        ] {
            notes.extend(self.devices(of).map(|devices| format!("{devices} {word}")));
        }
        if let Some(devices) = self.devices(|count| count.reserved) {
            let many = format!("{} jobs or pods", self.reserved_for.len());
            let one = self.reserved_for.first().filter(|_| self.reserved_for.len() == 1);
            notes.push(format!("reserved: {devices} for {}", one.unwrap_or(&many)));
        }
        if let Some(lock) = &self.lock {
            let age = lock.age_seconds.map(|seconds| format!(" for {}", age(Duration::from_secs(seconds))));
            let holder = lock.holder.as_deref().unwrap_or("no pod that it names");
            let state = match lock.state {
                LockState::Held => String::new(),
                state => format!(" ({state})"),
            };
            notes.push(format!("locked by {holder}{}{state}", age.unwrap_or_default()));
        }
        notes.extend(self.kept_for.iter().map(|kept_for| format!("kept for {kept_for}")));
        notes.join(", ")
    }
}

impl NodeRow {
    /// `gone` (the kubelet has lost it), `fresh`, `late` (two renewals are missing), `stale`, `unregistered` (it has just ended, or the kubelet has not registered it yet)
    /// or `none`.
    pub fn daemon_word(&self) -> &'static str {
        let silent = |agent: &AgentRow| agent.registered.is_empty() && self.gpu.total + self.rdma.total > 0;
        match &self.agent {
            _ if self.daemon_gone.is_some() => "gone",
            None => "none",
            Some(agent) if !agent.fresh => "stale",
            Some(agent) if silent(agent) => "unregistered",
            Some(agent) if agent.renewed_seconds.is_some_and(|ago| ago > LATE.as_secs()) => "late",
            Some(_) => "fresh",
        }
    }
}

impl Row for NodeRow {
    const WHAT: &'static str = "node";
    const PLURAL: &'static str = "nodes";
    const NONE: &'static str = "The cluster has no nodes.";
    const HEADERS: &'static str =
        "NAME,STATUS,GPUS FREE,PARTLY FREE,NICS FREE,DAEMON,NOTES,VERSION,IDENTITY,REGISTERED";
    const NARROW: usize = 7;
    fn name(&self) -> &str {
        &self.name
    }
    fn node(&self) -> Option<&str> {
        Some(&self.name)
    }
    fn labels(&self) -> Option<&BTreeMap<String, String>> {
        Some(&self.labels)
    }
    fn cells(&self) -> Vec<String> {
        let seconds = |seconds: u64| age(Duration::from_secs(seconds));
        let agent = self.agent.as_ref();
        let renewed = agent.and_then(|agent| agent.renewed_seconds).map(seconds).unwrap_or_default();
        let daemon = match &self.daemon_gone {
            Some(offers) => format!("daemon gone ({offers})"),
            None => format!("{} {renewed}", self.daemon_word()).trim_end().to_owned(),
        };
        let identity = agent.and_then(|agent| agent.identity).map(|identity| match identity {
            Identity::Exact => "exact",
            Identity::Lock => "lock",
        });
        vec![
            self.name.clone(),
            if self.suspect.is_some() { format!("{},NodeSuspect", self.status) } else { self.status.clone() },
            self.gpu.cell(),
            self.gpu.partly.to_string(),
            self.rdma.cell(),
            daemon,
            self.notes(),
            agent.and_then(|agent| agent.version.clone()).unwrap_or_default(),
            identity.unwrap_or_default().to_owned(),
            agent.map(|agent| agent.registered.join(",")).unwrap_or_default(),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::get::snapshot::tests::{cluster, rules};

    /// Total, free, shared, unhealthy.
    fn counts(cluster: &Snapshot, at: usize) -> (usize, usize, usize, usize) {
        let gpu = rows(cluster, &rules(), &QueueReport::default())[at].gpu.clone();
        (gpu.total, gpu.free, gpu.partly, gpu.unhealthy)
    }

    #[test]
    fn devices_are_free_partly_used_or_unhealthy() {
        let mut cluster = cluster();
        assert_eq!((counts(&cluster, 0), counts(&cluster, 1)), ((2, 1, 0, 0), (1, 0, 0, 1)));
        let train = cluster.pods.values_mut().next().unwrap();
        let half = r#"{"gpu":[{"minor":0,"id":"GPU-a0","resources":{"koordinator.sh/gpu-core":"50"}}]}"#;
        train.assignment.device_allocated = Some(half.into());
        assert_eq!(counts(&cluster, 0), (2, 1, 1, 0));
        cluster.pods.values_mut().next().unwrap().phase = baton_decide::pod::Phase::Failed;
        assert_eq!(counts(&cluster, 0), (2, 2, 0, 0));
    }

    #[test]
    fn one_column_has_all_that_is_wrong_and_nothing_else() {
        let mut cluster = cluster();
        let notes =
            |cluster: &Snapshot, at: usize| rows(cluster, &rules(), &QueueReport::default())[at].cells()[6].clone();
        assert_eq!(notes(&cluster, 0), "locked by ml/train for 47s");
        assert_eq!(notes(&cluster, 1), "1 GPU unhealthy, locked by ml/gone for 47s (dangling)");
        let devices = &mut cluster.devices.get_mut("node-b").unwrap().spec.devices;
        let nic = baton_contract::inventory::DeviceInfo { kind: DeviceType::Rdma, ..devices[0].clone() };
        devices.extend([nic.clone(), nic]);
        assert!(notes(&cluster, 1).starts_with("1 GPU and 2 NICs unhealthy, locked"), "{}", notes(&cluster, 1));
        cluster.devices.get_mut("node-b").unwrap().spec.devices.clear();
        cluster.nodes.get_mut("node-b").unwrap().metadata.annotations = None;
        assert_eq!(notes(&cluster, 1), "");
    }

    #[test]
    fn a_cordoned_device_is_counted_apart_until_the_cordon_ends() {
        let mut cluster = cluster();
        let cordoned = |cluster: &Snapshot| rows(cluster, &rules(), &QueueReport::default())[0].gpu.cordoned;
        let text = r#"{"GPU-a1":{"until":"2026-11-21T02:36:10Z"}}"#;
        let device = cluster.devices.get_mut("node-a").unwrap();
        device.metadata.annotations = Some([(key::CORDONED.to_owned(), text.to_owned())].into());
        assert_eq!((counts(&cluster, 0), cordoned(&cluster)), ((2, 0, 0, 0), 1));
        cluster.wall = "2026-11-21T02:36:10Z".parse().unwrap();
        assert_eq!((counts(&cluster, 0), cordoned(&cluster)), ((2, 1, 0, 0), 0));
    }

    #[test]
    fn a_daemon_that_died_is_said_at_once_and_nothing_of_its_node_is_free() {
        let mut cluster = cluster();
        let agent = |cluster: &Snapshot| rows(cluster, &rules(), &QueueReport::default())[0].cells()[5].clone();
        assert!(agent(&cluster).starts_with("fresh"), "{}", agent(&cluster));
        // The kubelet has seen the socket go; the Lease is still fresh.
        let none =
            serde_json::json!({"metadata": {"name": "node-a"}, "status": {"allocatable": {"nvidia.com/gpu": "0"}}});
        cluster.nodes.insert("node-a".to_owned(), serde_json::from_value(none).unwrap());
        assert_eq!(agent(&cluster), "daemon gone (kubelet offers 0 of 2)");
        assert_eq!(counts(&cluster, 0), (2, 0, 0, 0));
    }

    #[test]
    fn an_agent_is_stale_after_ninety_seconds() {
        let mut cluster = cluster();
        let fresh =
            |cluster: &Snapshot| rows(cluster, &rules(), &QueueReport::default())[0].agent.clone().unwrap().fresh;
        assert!(fresh(&cluster));
        cluster.wall = "2026-11-21T02:37:21Z".parse().unwrap();
        assert!(!fresh(&cluster));
        assert_eq!(counts(&cluster, 0), (2, 0, 0, 0), "its GPUs are given to no new pod");
        assert!(rows(&cluster, &rules(), &QueueReport::default())[2].agent.is_none());
    }
}

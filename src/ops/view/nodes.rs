//! Devices of each node, how many of them are free, and whether its node daemon serves them.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde::{Serialize, Serializer};

use super::daemons::{self, AgentRow};
use super::devices::{self, DeviceRow, DeviceSurroundings, ShownHealth, WhyNone};
use super::locks::{self, LockRow};
use super::snapshot::{Rules, Snapshot};
use super::table::{Row, RowId, age};
use super::usage::DeviceHolders;
use crate::say::amount;
use baton_cluster::node::LightNode;
use baton_contract::{Cordons, DeviceType, Identity, key};
use baton_decide::core::rules::plugins::unschedulable::CORDONED;
use baton_decide::explain::{ClosedNode, NodeRecords, QueueReport, ReservedDevices};
use baton_decide::lock::DaemonState;
use baton_decide::world::{DeviceState, offered};

/// One node.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeRow {
    /// Name.
    pub name: String,
    /// As kubectl shows it: `Ready` or `NotReady`, with `SchedulingDisabled` behind a comma on a cordoned node.
    pub status: String,
    /// Entries of its Device object that cannot be read.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    unreadable: Vec<String>,
    /// Why its daemon holds the machine to blame for pods that failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub suspect: Option<String>,
    /// The scheduler sends pods nevertheless.
    #[serde(skip)]
    unheeded: bool,
    /// Why it takes no new pods with devices, in the words of `baton explain node`; some reasons only where the scheduler could be asked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub closed: Option<String>,
    /// The same of one type of devices.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub not_given: BTreeMap<DeviceType, String>,
    /// GPUs, MIG devices among them.
    pub gpu: DeviceCount,
    /// RDMA NICs.
    pub rdma: DeviceCount,
    /// The node daemon; absent when it never wrote a Lease.
    pub agent: Option<AgentRow>,
    /// Whether its daemon serves.
    #[serde(serialize_with = "word")]
    pub daemon: DaemonState,
    /// What is wrong with its daemon.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub daemon_fault: Option<String>,
    /// The lock, if the node is locked.
    pub lock: Option<LockRow>,
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
    /// A new pod can have it whole now.
    pub free: usize,
    /// Healthy, and the scheduler has reserved a part of it for pods that are not bound yet.
    pub reserved: usize,
    /// A new pod can have a part of it now.
    pub partly: usize,
    /// Take no new pods.
    pub unhealthy: usize,
    /// Healthy, and taken out of use by people.
    pub cordoned: usize,
    /// What the kubelet offers.
    pub offered: i64,
}

/// The nodes of a snapshot and the devices on them, with what the scheduler says of them. Free counts are made here alone.
#[derive(Debug, Default)]
pub struct NodesView {
    /// By name.
    pub nodes: Vec<NodeRow>,
    /// By node; also those of Device objects without a node.
    pub devices: Vec<DeviceRow>,
}

impl NodesView {
    /// Of this snapshot.
    pub fn of(snapshot: &Snapshot, rules: &Rules, said: &QueueReport) -> Self {
        let usage = DeviceHolders::of(snapshot);
        let mut reserved = BTreeMap::<&str, Vec<&ReservedDevices>>::new();
        said.reserved.iter().for_each(|of| reserved.entry(&of.node).or_default().push(of));
        let mut closed = BTreeMap::<&str, Vec<&ClosedNode>>::new();
        said.closed.iter().for_each(|of| closed.entry(&of.node).or_default().push(of));
        let reserved_on = |name: &str| reserved.get(name).map_or(&[][..], Vec::as_slice);
        let mut view = Self::default();
        for (name, node) in &snapshot.nodes {
            let mut row = row(snapshot, rules, said, name, node);
            closed.get(&**name).into_iter().flatten().for_each(|of| row.close(of));
            row.reserved_for = reserved_on(name).iter().map(|of| of.reserved_for.clone()).collect();
            view.nodes.push(row);
        }
        for (name, object) in &snapshot.devices {
            let node = view.nodes.binary_search_by(|row| row.name.cmp(name)).ok().map(|at| &mut view.nodes[at]);
            let (usage, reserved, wall) = (&usage, reserved_on(name), snapshot.wall);
            let why = |kind: &DeviceType| node.as_deref().and_then(|row| row.gives_none(kind));
            let gives_none = node.is_some().then_some(&why as WhyNone<'_>);
            let devices = devices::of_node(name, object, &DeviceSurroundings { usage, reserved, gives_none, wall });
            if let Some(row) = node {
                devices.iter().for_each(|device| row.count(device));
            }
            view.devices.extend(devices);
        }
        view
    }

    /// The devices of one node.
    pub fn devices_of(&self, node: &str) -> &[DeviceRow] {
        let from = self.devices.partition_point(|device| *device.node < *node);
        &self.devices[from..][..self.devices[from..].partition_point(|device| *device.node == *node)]
    }
}

/// The node in its own row: a second long name would leave no room for other columns.
const HERE: &str = "this node";

/// Without its devices, and without what the scheduler says of more than its lock.
fn row(snapshot: &Snapshot, rules: &Rules, said: &QueueReport, name: &str, node: &LightNode) -> NodeRow {
    let device = snapshot.devices.get(name);
    let suspect = device.and_then(|device| device.status.as_ref()?.suspect()).map(|of| of.message.clone());
    let unheeded = said.unheeded.contains(name);
    let cordons = device.map(Cordons::of_object);
    let agent = daemons::of_node(snapshot, node);
    let daemon = daemons::state(snapshot, node, agent.as_ref());
    // A node without devices needs none.
    let needs_daemon = agent.is_some() || device.is_some();
    let lists_devices = device.map(|device| !device.spec.devices.is_empty());
    let seen = NodeRecords {
        name: HERE,
        daemon,
        lists_devices,
        unreadable_cordons: cordons.as_ref().and_then(Cordons::unreadable),
        suspect: suspect.as_deref().filter(|_| !unheeded),
        too_many_exceptions: agent.as_ref().is_some_and(|agent| agent.too_many_exceptions),
    };
    let closed = seen.closed().map(|(why, _)| why).filter(|_| needs_daemon);
    let cordoned = || (node.is_cordoned() && lists_devices == Some(true)).then(|| CORDONED.to_owned());
    let count = |kind| DeviceCount { offered: offered(node.allocatable(), &kind), ..DeviceCount::default() };
    NodeRow {
        name: name.to_owned(),
        status: node.status_words(),
        unreadable: snapshot.skipped.get(name).cloned().unwrap_or_default(),
        closed: closed.or_else(cordoned),
        not_given: BTreeMap::new(),
        suspect,
        unheeded,
        gpu: count(DeviceType::Gpu),
        rdma: count(DeviceType::Rdma),
        agent,
        daemon_fault: daemon.fault(name).filter(|_| needs_daemon),
        daemon,
        lock: locks::of_node(snapshot, rules, said, node),
        reserved_for: BTreeSet::new(),
        labels: snapshot.labels_of(name),
    }
}

impl DeviceCount {
    fn cell(&self) -> String {
        if self.total == 0 { String::new() } else { format!("{}/{}", self.free, self.total) }
    }
}

impl NodeRow {
    /// The scheduler says this of it. What its own objects say comes first.
    fn close(&mut self, said: &ClosedNode) {
        if let Some(kind) = &said.kind {
            self.not_given.insert(kind.clone(), said.why.clone());
        } else if self.closed.is_none() {
            self.closed = Some(said.why.clone());
        }
    }

    /// New pods with devices can come now, if the kubelet offers some.
    pub fn takes_now(&self) -> bool {
        self.daemon.serves() && self.closed.is_none() && !self.is_stuck()
    }

    /// Its lock keeps new pods with devices away until something is done.
    fn is_stuck(&self) -> bool {
        self.lock.as_ref().is_some_and(|lock| lock.stands)
    }

    /// Why new pods get no devices of this type now. Nothing of them is free then: that is what can be handed out now.
    pub(super) fn gives_none(&self, kind: &DeviceType) -> Option<String> {
        let count = if *kind == DeviceType::Rdma { &self.rdma } else { &self.gpu };
        let none = "its node takes no new pods with devices";
        match self.closed.as_ref().or_else(|| self.not_given.get(kind)) {
            Some(why) => Some(format!("{none}: {why}")),
            None if self.is_stuck() => Some(format!("{none} until its lock is free")),
            None => (count.offered == 0).then(|| "the kubelet offers none of its type".to_owned()),
        }
    }

    /// Why it gives nothing, or nothing of some types, without its lock.
    pub fn why_none(&self) -> Option<String> {
        let of_types = || self.not_given.values().cloned().collect::<Vec<_>>().join("; ");
        self.closed.clone().or_else(|| Some(of_types()).filter(|why| !why.is_empty()))
    }

    /// Counts a device of it.
    fn count(&mut self, device: &DeviceRow) {
        let count = if device.is_nic() { &mut self.rdma } else { &mut self.gpu };
        if device.state == DeviceState::Split {
            return;
        }
        count.total += 1;
        count.free += usize::from(device.free == key::WHOLE);
        count.partly += usize::from((1..key::WHOLE).contains(&device.free));
        count.reserved += usize::from(!device.reserved_for.is_empty() && device.health != ShownHealth::Unhealthy);
        count.unhealthy += usize::from(device.state == DeviceState::Unhealthy);
        count.cordoned += usize::from(device.state == DeviceState::Cordoned);
    }

    /// `1 GPU and 2 NICs`; nothing where there is none.
    fn devices(&self, of: impl Fn(&DeviceCount) -> usize) -> Option<String> {
        let counts = [(of(&self.gpu), "GPU"), (of(&self.rdma), "NIC")].into_iter().filter(|(count, _)| *count > 0);
        let words: Vec<String> = counts.map(|(count, what)| amount(count, what)).collect();
        (!words.is_empty()).then(|| words.join(" and "))
    }

    /// What is not as on any other node: `2 unhealthy, 1 cordoned, locked by ml/a for 3s`.
    fn notes(&self) -> String {
        let daemon = || self.daemon_fault.as_ref().and_then(|_| self.daemon.fault(HERE));
        let mut notes: Vec<String> = self.why_none().or_else(daemon).into_iter().collect();
        notes.extend(self.unreadable.iter().map(|entry| format!("not read: {entry}")));
        if let Some(why) = self.suspect.as_ref().filter(|_| self.unheeded) {
            notes.push(format!("suspect, but so are too many nodes to keep pods away: {why}"));
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
            let mark = lock.mark().map(|mark| format!(" ({mark})")).unwrap_or_default();
            notes.push(format!("locked by {}{mark}", lock.whose()));
        }
        notes.join(", ")
    }
}

fn word<S: Serializer>(daemon: &DaemonState, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(daemon.word())
}

impl Row for NodeRow {
    const WHAT: &'static str = "node";
    const PLURAL: &'static str = "nodes";
    const NONE: &'static str = "The cluster has no nodes.";
    const HEADERS: &'static str =
        "NAME,STATUS,GPUS FREE,PARTLY FREE,NICS FREE,DAEMON,NOTES,VERSION,IDENTITY,REGISTERED";
    const NARROW: usize = 7;
    fn id(&self) -> RowId<'_> {
        RowId { name: &self.name, node: Some(&self.name), labels: Some(&self.labels), ..RowId::default() }
    }
    fn cells(&self) -> Vec<String> {
        let seconds = |seconds: u64| age(Duration::from_secs(seconds));
        let agent = self.agent.as_ref();
        let renewed = agent.and_then(|agent| agent.renewed_seconds).map(seconds).unwrap_or_default();
        let daemon = match self.daemon {
            DaemonState::Gone(healthy, _) => format!("daemon gone (kubelet offers 0 of {healthy})"),
            // Not for how long: its Lease may be renewed all the while.
            DaemonState::Unregistered | DaemonState::KubeletAway | DaemonState::Ended => self.daemon.word().to_owned(),
            state => format!("{} {renewed}", state.word()).trim_end().to_owned(),
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
    use crate::view::snapshot_tests::{cluster, unlocked};
    use baton_contract::inventory::DeviceStatus;
    use serde_json::{Value, json};

    fn view(cluster: &Snapshot) -> NodesView {
        NodesView::of(cluster, &Rules::default(), &QueueReport::default())
    }

    /// Total, free, shared, unhealthy.
    fn counts(cluster: &Snapshot, at: usize) -> (usize, usize, usize, usize) {
        let gpu = view(cluster).nodes[at].gpu.clone();
        (gpu.total, gpu.free, gpu.partly, gpu.unhealthy)
    }

    #[test]
    fn devices_are_free_partly_used_or_unhealthy() {
        let mut cluster = unlocked();
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
        let notes = |cluster: &Snapshot, at: usize| view(cluster).nodes[at].cells()[6].clone();
        assert_eq!(notes(&cluster, 0), "locked by ml/train for 47s (stuck)");
        let silent = "the node daemon of this node has not been heard for over 5 min";
        assert_eq!(notes(&cluster, 1), format!("{silent}, 1 GPU unhealthy, locked by ml/gone for 47s (dangling)"));
        let devices = &mut cluster.devices.get_mut("node-b").unwrap().spec.devices;
        let nic = baton_contract::inventory::DeviceInfo { kind: DeviceType::Rdma, ..devices[0].clone() };
        devices.extend([nic.clone(), nic]);
        assert!(notes(&cluster, 1).contains(", 1 GPU and 2 NICs unhealthy, locked"), "{}", notes(&cluster, 1));
        cluster.devices.get_mut("node-b").unwrap().spec.devices.clear();
        cluster.nodes.get_mut("node-b").unwrap().metadata.annotations = None;
        assert_eq!(notes(&cluster, 1), silent);
    }

    #[test]
    fn a_cordoned_device_is_counted_apart_until_the_cordon_ends() {
        let mut cluster = unlocked();
        let cordoned = |cluster: &Snapshot| view(cluster).nodes[0].gpu.cordoned;
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
        let agent = |cluster: &Snapshot| view(cluster).nodes[0].cells()[5].clone();
        assert!(agent(&cluster).starts_with("fresh"), "{}", agent(&cluster));
        // The kubelet has seen the socket go; the Lease is still fresh.
        let none = json!({"metadata": {"name": "node-a"}, "status": {"allocatable": {"nvidia.com/gpu": "0"}}});
        cluster.nodes.insert("node-a".to_owned(), serde_json::from_value(none).unwrap());
        assert_eq!(agent(&cluster), "daemon gone (kubelet offers 0 of 2)");
        assert_eq!(counts(&cluster, 0), (2, 0, 0, 0));
    }

    fn changed(change: impl Fn(&mut Snapshot)) -> Snapshot {
        let mut cluster = unlocked();
        change(&mut cluster);
        cluster
    }

    /// With another node-a.
    fn with(part: &str, value: Value) -> Snapshot {
        let status = json!({"allocatable": {"nvidia.com/gpu": "2"}});
        let mut node = json!({"metadata": {"name": "node-a"}, "spec": {}, "status": status});
        *node.pointer_mut(part).unwrap() = value;
        let node: LightNode = serde_json::from_value(node).unwrap();
        changed(|cluster| drop(cluster.nodes.insert("node-a".to_owned(), node.clone())))
    }

    fn suspect() -> Snapshot {
        let condition = json!({"type": "NodeSuspect", "status": "True", "reason": "MachineFailedPods",
            "message": "disk full", "lastTransitionTime": "2026-11-21T02:30:00Z"});
        let status: DeviceStatus = serde_json::from_value(json!({ "conditions": [condition] })).unwrap();
        changed(|cluster| cluster.devices.get_mut("node-a").unwrap().status = Some(status.clone()))
    }

    fn too_many() -> Snapshot {
        let status = r#"{"version":"1","registered":["nvidia.com/gpu"],"identity":"exact","tooManyExceptions":true}"#;
        let annotations: BTreeMap<_, _> = [(key::AGENT.to_owned(), status.to_owned())].into();
        let lease = "baton-agent-node-a";
        changed(|cluster| cluster.leases.get_mut(lease).unwrap().metadata.annotations = Some(annotations.clone()))
    }

    #[test]
    fn of_a_node_that_is_not_ready_and_has_no_daemon_the_kubelet_comes_first() {
        let mut cluster = unlocked();
        cluster.leases.clear();
        let status = serde_json::json!({"conditions": [{"type": "Ready", "status": "Unknown"}]});
        for name in ["node-b", "node-c"] {
            let node = serde_json::json!({"metadata": {"name": name}, "status": status});
            cluster.nodes.insert(name.to_owned(), serde_json::from_value(node).unwrap());
        }
        let rows = view(&cluster).nodes;
        let both =
            "the kubelet of node-b is away or not well: the Node is not Ready; no node daemon has reported from node-b";
        assert_eq!(rows[1].daemon_fault.as_deref(), Some(both));
        assert!(rows[1].notes().starts_with(&both.replace("node-b", HERE)), "{}", rows[1].notes());
        assert_eq!(rows[2].daemon_fault, None, "it has no devices and needs no daemon");
    }

    #[test]
    fn where_no_pod_can_go_nothing_is_free_in_any_row_and_it_says_why() {
        let none = QueueReport::default;
        let kept = |node: &str, kind: Option<DeviceType>| {
            let closed = vec![ClosedNode { node: node.to_owned(), kind, why: "it is kept for gang ml/big".to_owned() }];
            QueueReport { closed, ..none() }
        };
        let unheeded = QueueReport { unheeded: ["node-a".to_owned()].into(), ..none() };
        let cordoned = json!({"unschedulable": true});
        let ready = json!([{"type": "Ready", "status": "False"}]);
        let not_ready = json!({"allocatable": {"nvidia.com/gpu": "2"}, "conditions": ready});
        let silent = changed(|cluster| cluster.leases.clear());
        let gone = changed(|cluster| drop(cluster.nodes.remove("node-a")));
        let dead = "the node daemon of this node is gone: the kubelet offers 0 of 2 GPUs";
        let away = "the kubelet of this node is away or not well: the Node is not Ready";
        let more = "the pods there hold more than the node daemon's Lease can say";
        let nevertheless = "suspect, but so are too many nodes to keep pods away: disk full";
        let cases = [
            (unlocked(), kept("node-b", None), 1, ""),
            (unlocked(), kept("node-a", None), 0, "it is kept for gang ml/big"),
            (unlocked(), kept("node-a", Some(DeviceType::Gpu)), 0, "it is kept for gang ml/big"),
            (unlocked(), kept("node-a", Some(DeviceType::Rdma)), 1, "it is kept for gang ml/big"),
            (cluster(), none(), 0, "locked by ml/train for 47s (stuck)"),
            (with("/spec", cordoned), none(), 0, CORDONED),
            (with("/status/allocatable", json!({})), none(), 0, dead),
            (with("/status", not_ready), none(), 0, away),
            (suspect(), none(), 0, "it is suspect: disk full"),
            (suspect(), unheeded, 1, nevertheless),
            (too_many(), none(), 0, more),
            (silent, kept("node-a", None), 0, "no node daemon has reported from this node"),
            (gone, none(), 0, ""),
        ];
        for (at, (cluster, said, free, why)) in cases.into_iter().enumerate() {
            let view = NodesView::of(&cluster, &Rules::default(), &said);
            let row = view.nodes.iter().find(|row| row.name == "node-a");
            let whole = view.devices_of("node-a").iter().filter(|device| device.free == key::WHOLE).count();
            let word = view.devices_of("node-a").iter().filter(|device| device.state == DeviceState::Free).count();
            assert_eq!((row.map_or(0, |row| row.gpu.free), whole, word), (free, free, free), "case {at}");
            assert_eq!(row.map(NodeRow::notes).unwrap_or_default(), why, "case {at}");
        }
    }

    #[test]
    fn an_entry_that_cannot_be_read_is_noted_and_hides_no_other() {
        let mut cluster = cluster();
        let good = json!({"type": "gpu", "id": "GPU-a1", "minor": 1, "health": true});
        let bad = json!({"type": "gpu", "id": "GPU-a/b", "minor": 0, "health": true});
        let mut put = |devices: &[&serde_json::Value]| {
            let object = json!({"metadata": {"name": "node-a"}, "spec": {"devices": devices}});
            cluster.put_device(serde_json::from_value(object).unwrap());
            let view = view(&cluster);
            (view.devices_of("node-a").len(), view.nodes[0].notes())
        };
        let (count, notes) = put(&[&bad, &good]);
        assert!(count == 1 && notes.starts_with("not read: spec.devices[0]: ") && notes.contains("GPU-a/b"), "{notes}");
        let (count, notes) = put(&[&good]);
        assert!(count == 1 && !notes.contains("not read"), "{notes}");
    }

    #[test]
    fn an_agent_is_stale_after_ninety_seconds() {
        let mut cluster = unlocked();
        let fresh = |cluster: &Snapshot| view(cluster).nodes[0].agent.clone().unwrap().fresh;
        assert!(fresh(&cluster));
        cluster.wall = "2026-11-21T02:37:21Z".parse().unwrap();
        assert!(!fresh(&cluster));
        assert_eq!(counts(&cluster, 0), (2, 0, 0, 0), "its GPUs are given to no new pod");
        assert!(view(&cluster).nodes[2].agent.is_none());
    }
}

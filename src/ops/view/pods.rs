//! Pods that request devices: their node, their devices, whether they hold a lock.

use std::collections::BTreeMap;

use serde::Serialize;

use super::daemons;
use super::locks::{self, LockRow, LockState};
use super::snapshot::{Notes, Rules, Snapshot};
use super::table::{Row, RowId};
use super::usage::amounts;
use baton_contract::allocation::Entries;
use baton_contract::inventory::{DeviceInfo, device_names};
use baton_contract::{AgentStatus, DeviceAllocation, DeviceEntry, LeavingPod, PodUid, key};
use baton_decide::explain::QueueReport;
use baton_decide::lock::{DaemonState, Delay};
use baton_decide::pod::{HandoffPod, Phase};
use baton_decide::world::{holds_otherwise, still_used, without_devices};

/// Name of the scheduler, unless it was given another one.
const DEFAULT_NAME: &str = "baton-scheduler";

#[derive(Debug, Clone, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PodRow {
    pub namespace: String,
    pub name: String,
    pub uid: String,
    /// Node, once bound.
    pub node: Option<String>,
    /// `Pending`, `Running`, …; `Leaving` for one that the API server does not have any more.
    pub phase: String,
    /// Most that the containers hold at once, by resource name.
    pub wants: BTreeMap<String, i64>,
    /// Ids by device type, from the assignment: of a pod that has ended, what it had.
    pub devices: BTreeMap<String, Vec<String>>,
    /// How much of devices that is, in words.
    #[serde(skip)]
    amounts: String,
    /// It has ended, and nothing of it uses them.
    #[serde(skip)]
    had: bool,
    /// The lock of its node names it.
    pub holds_lock: bool,
    /// What a container asks for is not valid.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub refused: bool,
    /// What is wrong: an assignment, a request or a hint that cannot be used, what its scheduler says while it waits, how it
    /// failed.
    pub problem: Option<String>,
    #[serde(skip)]
    labels: BTreeMap<String, String>,
}

/// Every pod of `namespace` (all when `None`) that asks for devices or has some.
pub fn rows(snapshot: &Snapshot, namespace: Option<&str>, rules: &Rules) -> Vec<PodRow> {
    let locks = locks::rows(snapshot, rules, &QueueReport::default()).into_iter();
    let late = |lock: &LockRow| lock.state == LockState::Held && lock.delay > Some(Delay::Usual);
    // Uid, and what does not answer.
    let holder = |lock: LockRow| Some((lock.holder_uid.clone()?, late(&lock).then_some(lock.advice)));
    let holders: BTreeMap<String, Option<String>> = locks.filter(LockRow::is_live).filter_map(holder).collect();
    let of_namespace = |pod: &&HandoffPod| namespace.is_none_or(|namespace| *pod.pod.key.namespace == *namespace);
    let pods = snapshot.pods.values().filter(of_namespace);
    let pods = pods.filter(|pod| pod.asks_for_devices() || pod.assignment.device_allocated.is_some());
    let none = Notes::default();
    // Once for each node: most of them have pods.
    let daemon = |(name, node)| {
        let agent = daemons::of_node(snapshot, node);
        (name, daemons::state(snapshot, node, agent.as_ref()))
    };
    let daemons: BTreeMap<&String, DaemonState> = snapshot.nodes.iter().map(daemon).collect();
    pods.map(|pod| {
        let otherwise = held_otherwise(snapshot, pod);
        let mut row = row(pod, snapshot.notes.get(&pod.pod.key).unwrap_or(&none), otherwise, &holders, snapshot);
        let daemon = || row.node.as_ref().and_then(|node| daemons.get(node)?.fault_for(pod, node));
        row.problem = row.problem.take().or_else(daemon);
        row
    })
    .chain(leaving(snapshot, namespace))
    .collect()
}

/// Pods that the API server does not have any more and whose processes use devices still.
fn leaving(snapshot: &Snapshot, namespace: Option<&str>) -> impl Iterator<Item = PodRow> {
    let gone = |uid: &PodUid| snapshot.pods.values().all(|pod| pod.pod.uid != *uid);
    let row = move |(node, uid, pod, held): (String, PodUid, LeavingPod, Entries)| {
        let of_namespace = namespace.is_none_or(|namespace| *pod.namespace == *namespace);
        (of_namespace && gone(&uid)).then(|| PodRow {
            namespace: pod.namespace.to_string(),
            name: pod.name.to_string(),
            uid: uid.to_string(),
            node: Some(node),
            phase: "Leaving".to_owned(),
            amounts: amounts(&held),
            devices: ids(held),
            problem: Some(format!("its devices are {}", still_used(&pod))),
            ..PodRow::default()
        })
    };
    snapshot.leaving().into_iter().filter_map(row)
}

/// Ids by device type.
fn ids(devices: Entries) -> BTreeMap<String, Vec<String>> {
    let of = |entries: Vec<DeviceEntry>| entries.iter().map(|entry| entry.id.to_string()).collect();
    devices.into_iter().map(|(kind, entries)| (kind.to_string(), of(entries))).collect()
}

/// What its node's daemon says of a pod that holds other devices than its annotation says.
fn held_otherwise(snapshot: &Snapshot, pod: &HandoffPod) -> Option<String> {
    let lease = snapshot.leases.get(&AgentStatus::lease_name(pod.node.as_deref()?))?;
    let status = lease.status()?;
    if let Some(leaving) = status.leaving.get(&pod.pod.uid).filter(|_| !pod.is_live()) {
        return Some(format!("its devices are {}", still_used(leaving)));
    }
    let held = status.exceptions?.remove(&pod.pod.uid)?;
    let ids: Vec<&str> = held.values().flatten().map(|entry| entry.id.as_str()).collect();
    Some(if ids.is_empty() {
        format!("it {}", without_devices(pod.node.as_deref()?))
    } else if pod.assignment.device_allocated.is_none() {
        format!("without an assignment it holds {}", ids.join(", "))
    } else {
        format!("it {}", holds_otherwise(ids.into_iter()))
    })
}

fn row(
    pod: &HandoffPod,
    notes: &Notes,
    otherwise: Option<String>,
    holders: &BTreeMap<String, Option<String>>,
    snapshot: &Snapshot,
) -> PodRow {
    let assigned = pod.assignment.device_allocated.as_deref().map(DeviceAllocation::parse).transpose();
    let refused = pod.containers.iter().find_map(|container| {
        container.request.as_ref().err().map(|error| format!("container {}: {error}", container.name))
    });
    let lost = pod.node.as_deref().filter(|node| snapshot.node(node).is_none());
    let lost = lost.map(|node| format!("node {node} does not exist"));
    let unassigned = (pod.node.is_some() && pod.asks_for_devices() && pod.assignment.device_allocated.is_none())
        .then(|| "bound without an assignment: by which scheduler?".to_owned());
    let hint = notes.hint.as_ref().map(|bad| format!("annotation {}: {bad}", key::DEVICE_ALLOCATE_HINT));
    let failed = notes.failed.clone();
    let bad = assigned.as_ref().err().map(ToString::to_string);
    let had = pod.has_ended() && otherwise.is_none();
    let problem = otherwise.or(bad).or(failed).or(refused).or(hint);
    let held = holders.get(pod.pod.uid.as_str());
    let problem = problem.or(lost).or(unassigned).or_else(|| held.cloned().flatten()).or_else(|| waits(pod, notes));
    let devices = assigned.ok().flatten().map(|allocation| allocation.devices).unwrap_or_default();
    let problem = problem.or_else(|| faults(snapshot, pod, &devices));
    let (amounts, devices) = (amounts(&devices), ids(devices));
    PodRow {
        namespace: pod.pod.key.namespace.to_string(),
        name: pod.pod.key.name.to_string(),
        uid: pod.pod.uid.to_string(),
        node: pod.node.as_deref().map(str::to_owned),
        phase: phase(pod).to_owned(),
        wants: pod.wanted().into_iter().map(|(name, amount)| (name.into(), amount)).collect(),
        devices,
        amounts,
        had,
        holds_lock: held.is_some(),
        refused: pod.containers.iter().any(|container| container.request.is_err()),
        problem,
        labels: notes.labels.clone(),
    }
}

/// Which of a pod's devices are out of service, and why.
pub fn faults(snapshot: &Snapshot, pod: &HandoffPod, devices: &Entries) -> Option<String> {
    let listed = &snapshot.devices.get(pod.node.as_deref().filter(|_| pod.is_live())?)?.spec.devices;
    let held = |info: &DeviceInfo| devices.values().flatten().any(|entry| entry.id.as_str() == info.id.as_str());
    let mut faults = listed
        .iter()
        .enumerate()
        .filter(|(_, info)| held(info))
        .filter_map(|(at, info)| Some((at, info.fault_of_holder()?)))
        .peekable();
    faults.peek()?;
    let names = device_names(listed);
    Some(faults.map(|(at, fault)| format!("{} is out of service: {fault}", names[at])).collect::<Vec<_>>().join("; "))
}

/// Why a pod has no node.
fn waits(pod: &HandoffPod, notes: &Notes) -> Option<String> {
    if pod.node.is_some() || pod.phase.is_terminal() || pod.deleting.is_some() {
        return None;
    }
    if notes.unscheduled.is_some() {
        return notes.unscheduled.clone();
    }
    let untried = !notes.tried && &*pod.scheduler_name != DEFAULT_NAME;
    untried.then(|| {
        let name = &pod.scheduler_name;
        format!("spec.schedulerName is {name}, and no scheduler of that name has tried the pod; Baton places those of {DEFAULT_NAME}: create it again with that name")
    })
}

fn phase(pod: &HandoffPod) -> &'static str {
    match pod.phase {
        _ if pod.deleting.is_some() => "Terminating",
        Phase::Pending => "Pending",
        Phase::Running => "Running",
        Phase::Succeeded => "Succeeded",
        Phase::Failed => "Failed",
        Phase::Unknown => "Unknown",
    }
}

impl Row for PodRow {
    const WHAT: &'static str = "pod with devices";
    const PLURAL: &'static str = "pods";
    const NONE: &'static str = "No pod here asks for devices; -A lists every namespace.";
    const HEADERS: &'static str = "NAMESPACE,NAME,PHASE,NODE,WANTS,DEVICES,LOCK,PROBLEM,IDS,UID";
    const NARROW: usize = 8;
    fn id(&self) -> RowId<'_> {
        let (namespace, node) = (Some(&*self.namespace), self.node.as_deref());
        RowId { name: &self.name, namespace, node, labels: Some(&self.labels) }
    }
    fn cells(&self) -> Vec<String> {
        let bare = |name: &str| name.strip_prefix("koordinator.sh/").unwrap_or(name).to_owned();
        let wants = self.wants.iter().map(|(name, amount)| format!("{}={amount}", bare(name)));
        let wants: Vec<String> = wants.chain(self.refused.then(|| "not valid".to_owned())).collect();
        let had = if self.had && !self.amounts.is_empty() { "had " } else { "" };
        let ids: Vec<String> = self.devices.values().flatten().cloned().collect();
        vec![
            self.namespace.clone(),
            self.name.clone(),
            self.phase.clone(),
            self.node.clone().unwrap_or_default(),
            wants.join(", "),
            had.to_owned() + &self.amounts,
            if self.holds_lock { "held".to_owned() } else { String::new() },
            self.problem.clone().unwrap_or_default(),
            ids.join(","),
            self.uid.clone(),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view::snapshot_tests::{cluster, leave};
    use baton_cluster::pod::LightPod;
    use serde_json::json;

    #[test]
    fn why_a_pod_waits_or_failed_is_said_in_its_schedulers_or_kubelets_words() {
        let row = |status: serde_json::Value, change: &dyn Fn(&mut serde_json::Value)| {
            let mut pod = json!({
                "metadata": {"name": "a", "namespace": "ml", "uid": "u"},
                "spec": {"schedulerName": "baton-scheduler", "initContainers": [
                        {"name": "init", "resources": {"limits": {"nvidia.com/gpu": "4"}}},
                        {"name": "side", "restartPolicy": "Always", "resources": {"limits": {"nvidia.com/gpu": "1"}}}],
                    "containers": [{"name": "main", "resources": {"limits": {"nvidia.com/gpu": "2"}}}]},
                "status": status
            });
            change(&mut pod);
            let pod: LightPod = serde_json::from_value(pod).unwrap();
            let (mut cluster, notes, pod) = (cluster(), Notes::of(&pod), pod.handoff());
            cluster.pods = [(pod.pod.key.clone(), pod.clone())].into();
            cluster.notes = [(pod.pod.key, notes)].into();
            rows(&cluster, None, &Rules::default()).remove(0)
        };
        let as_is = |_: &mut serde_json::Value| {};
        let refused = json!({"phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "False",
            "reason": "Unschedulable", "message": "0/3 nodes: 3 have fewer than 2 free GPUs"}]});
        let waiting = row(refused.clone(), &as_is);
        assert_eq!(waiting.problem.as_deref(), Some("0/3 nodes: 3 have fewer than 2 free GPUs"));
        assert_eq!(waiting.wants["nvidia.com/gpu"], 4, "the others get the init container's devices later");
        assert_eq!(row(json!({"phase": "Pending"}), &as_is).problem, None, "it is tried in a moment");
        let other = row(json!({}), &|pod| pod["spec"]["schedulerName"] = json!("other"));
        assert!(other.problem.unwrap().starts_with("spec.schedulerName is other, and no scheduler of that name"));
        let hint = row(refused, &|pod| pod["metadata"]["annotations"] = json!({key::DEVICE_ALLOCATE_HINT: "{"}));
        assert!(hint.problem.unwrap().contains("device-allocate-hint"));
        let failed = json!({"phase": "Failed", "reason": "UnexpectedAdmissionError", "message": "no room\nat all"});
        let failed = row(failed, &|pod| pod["spec"]["nodeName"] = json!("node-a"));
        assert_eq!(failed.problem.as_deref(), Some("UnexpectedAdmissionError: no room\nat all"));
        assert_eq!(failed.cells()[7], "UnexpectedAdmissionError: no room\nat all");
    }

    #[test]
    fn a_pod_that_asks_always_says_what_it_wants() {
        let wants = |limits: serde_json::Value| {
            let pod: LightPod =
                serde_json::from_value(json!({"metadata": {"name": "a", "namespace": "ml", "uid": "u"},
                "spec": {"containers": [{"name": "main", "resources": {"limits": limits}}]}}))
                .unwrap();
            let pod = pod.handoff();
            let cluster = Snapshot { pods: [(pod.pod.key.clone(), pod)].into(), ..cluster() };
            rows(&cluster, None, &Rules::default())[0].cells()[4].clone()
        };
        assert_eq!(
            wants(json!({"koordinator.sh/gpu-core": "50", "koordinator.sh/gpu-memory-ratio": "40"})),
            "gpu-core=50, gpu-memory-ratio=40"
        );
        assert_eq!(wants(json!({"koordinator.sh/gpu-core": "50"})), "not valid");
    }

    #[test]
    fn a_pod_that_has_left_has_a_row_while_its_processes_use_its_devices() {
        let mut cluster = cluster();
        leave(&mut cluster, "u1", "train");
        let words = "its devices are still used by processes of ml/train, which was deleted or written as ended at 2026-11-21T02:35:30Z";
        let row = |cluster: &Snapshot| {
            let mut rows = rows(cluster, Some("ml"), &Rules::default());
            assert_eq!(rows.len(), 1);
            let row = rows.remove(0);
            (row.phase, row.node.unwrap(), row.devices["gpu"].clone(), row.problem)
        };
        let of = |phase: &str, problem: Option<&str>| {
            (phase.to_owned(), "node-a".to_owned(), vec!["GPU-a0".to_owned()], problem.map(str::to_owned))
        };
        cluster.pods.values_mut().next().unwrap().phase = Phase::Failed;
        assert_eq!(row(&cluster), of("Failed", Some(words)), "another client says so");
        cluster.pods.clear();
        assert_eq!(row(&cluster), of("Leaving", Some(words)));
        assert!(rows(&cluster, Some("other"), &Rules::default()).is_empty());
    }

    #[test]
    fn what_is_wrong_with_a_pod_is_said() {
        let mut cluster = cluster();
        let problem = |cluster: &Snapshot| rows(cluster, None, &Rules::default())[0].problem.clone();
        assert!(problem(&cluster).unwrap().starts_with("stuck: not served for over 15 s"));
        cluster.wall = "2026-11-21T02:35:20Z".parse().unwrap();
        assert!(problem(&cluster).unwrap().starts_with("slow: not served yet"));
        cluster.wall = "2026-11-21T02:35:13Z".parse().unwrap();
        assert_eq!(problem(&cluster), None);
        let gpu = &mut cluster.devices.get_mut("node-a").unwrap().spec.devices[0];
        gpu.health = false;
        gpu.conditions = serde_json::from_value(json!([{"type": "Healthy", "status": "False", "reason": "Xid",
            "message": "XID 79: off the bus", "lastTransitionTime": "2026-11-21T02:35:00Z"}]))
        .unwrap();
        assert_eq!(problem(&cluster).unwrap(), "gpu-0 is out of service: XID 79: off the bus");
        let device = &mut cluster.devices.get_mut("node-a").unwrap().spec.devices[0];
        device.conditions[0].reason = "NicAway".to_owned();
        assert_eq!(problem(&cluster), None, "its own pod has it");
        let cells = |cluster: &Snapshot| rows(cluster, None, &Rules::default())[0].cells()[5].clone();
        for (phase, shown) in [(Phase::Running, "1 GPU"), (Phase::Succeeded, "had 1 GPU"), (Phase::Running, "1 GPU")] {
            cluster.pods.values_mut().next().unwrap().phase = phase;
            assert_eq!(cells(&cluster), shown);
        }
        let half = r#"{"gpu":[{"minor":0,"id":"GPU-a0","resources":{"koordinator.sh/gpu-core":"50"}}]}"#;
        cluster.pods.values_mut().next().unwrap().assignment.device_allocated = Some(half.into());
        assert_eq!(cells(&cluster), "50% of a GPU");
        cluster.pods.values_mut().next().unwrap().assignment.device_allocated = Some("{".into());
        assert!(problem(&cluster).unwrap().contains("device-allocated"));
        cluster.pods.values_mut().next().unwrap().assignment.device_allocated = None;
        assert!(problem(&cluster).unwrap().contains("without an assignment"));
        cluster.nodes.clear();
        assert!(problem(&cluster).unwrap().contains("node-a does not exist"));
    }
}

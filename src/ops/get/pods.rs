//! Pods that ask for devices: where they are, what they have, whether they hold a lock.

use std::collections::BTreeMap;

use serde::Serialize;

use super::output::Row;
use super::snapshot::{Snapshot, name_of};
use crate::contract::{DeviceAllocation, PodKey, PodUid};
use crate::decide::lock::HolderState;
use crate::decide::pod::{HandoffPod, Phase};

/// One pod.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PodRow {
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// Uid.
    pub uid: String,
    /// Node, once bound.
    pub node: Option<String>,
    /// `Pending`, `Running`, …
    pub phase: String,
    /// What the containers ask for, summed by resource name.
    pub wants: BTreeMap<String, i64>,
    /// Ids by device type, from the assignment.
    pub devices: BTreeMap<String, Vec<String>>,
    /// The lock of its node names it.
    pub holds_lock: bool,
    /// Why an assignment or a request cannot be used.
    pub problem: Option<String>,
}

/// Every pod of `namespace` (all when `None`) that asks for devices or has some.
pub fn rows(snapshot: &Snapshot, namespace: Option<&str>, key: &str) -> Vec<PodRow> {
    let holders: Vec<(PodKey, PodUid)> = snapshot
        .nodes
        .iter()
        .filter_map(|node| match snapshot.lock(node, key)?.1 {
            HolderState::Unbound(pod) | HolderState::BoundHere(pod) => Some((pod.key, pod.uid)),
            HolderState::Unknown | HolderState::Gone(_) => None,
        })
        .collect();
    let known: Vec<&str> = snapshot.nodes.iter().map(name_of).collect();
    let of_namespace = |pod: &&HandoffPod| namespace.is_none_or(|namespace| *pod.pod.key.namespace == *namespace);
    let pods = snapshot.pods.values().filter(of_namespace);
    let pods = pods.filter(|pod| pod.asks_for_devices() || pod.assignment.device_allocated.is_some());
    pods.map(|pod| row(pod, &holders, &known)).collect()
}

fn row(pod: &HandoffPod, holders: &[(PodKey, PodUid)], known: &[&str]) -> PodRow {
    let assigned = pod.assignment.device_allocated.as_deref().map(DeviceAllocation::parse).transpose();
    let refused = pod.containers.iter().find_map(|container| {
        container.request.as_ref().err().map(|error| format!("container {}: {error}", container.name))
    });
    let lost = pod.node.as_deref().filter(|node| !known.contains(node));
    let lost = lost.map(|node| format!("node {node} does not exist"));
    let unassigned = (pod.node.is_some() && pod.asks_for_devices() && pod.assignment.device_allocated.is_none())
        .then(|| "bound without an assignment: by which scheduler?".to_owned());
    let problem = assigned.as_ref().err().map(ToString::to_string).or(refused).or(lost).or(unassigned);
    let devices = assigned.ok().flatten().map(|allocation| allocation.devices).unwrap_or_default();
    PodRow {
        namespace: pod.pod.key.namespace.to_string(),
        name: pod.pod.key.name.to_string(),
        uid: pod.pod.uid.to_string(),
        node: pod.node.as_deref().map(str::to_owned),
        phase: phase(pod).to_owned(),
        wants: pod.wanted().into_iter().map(|(name, amount)| (name.into(), amount)).collect(),
        devices: devices
            .into_iter()
            .map(|(kind, entries)| (kind.to_string(), entries.iter().map(|entry| entry.id.to_string()).collect()))
            .collect(),
        holds_lock: holders.iter().any(|(key, uid)| *key == pod.pod.key && *uid == pod.pod.uid),
        problem,
    }
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
    const NONE: &'static str = "No pod here asks for devices; -A looks at every namespace.";
    const HEADERS: &'static [&'static str] =
        &["NAMESPACE", "NAME", "PHASE", "NODE", "WANTS", "DEVICES", "LOCK", "PROBLEM", "IDS", "UID"];
    const NARROW: usize = 8;
    fn name(&self) -> &str {
        &self.name
    }
    fn namespace(&self) -> Option<&str> {
        Some(&self.namespace)
    }
    fn cells(&self) -> Vec<String> {
        let wants: Vec<String> = self.wants.iter().map(|(name, amount)| format!("{name}={amount}")).collect();
        let counts: Vec<String> = self.devices.iter().map(|(kind, ids)| format!("{} {kind}", ids.len())).collect();
        let ids: Vec<String> = self.devices.values().flatten().cloned().collect();
        vec![
            self.namespace.clone(),
            self.name.clone(),
            self.phase.clone(),
            self.node.clone().unwrap_or_default(),
            wants.join(","),
            counts.join(", "),
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
    use crate::contract::key;
    use crate::ops::get::snapshot::tests::cluster;

    #[test]
    fn what_is_wrong_with_a_pod_is_said() {
        let mut cluster = cluster();
        let problem = |cluster: &Snapshot| rows(cluster, None, key::NODE_LOCK)[0].problem.clone();
        assert_eq!(problem(&cluster), None);
        cluster.pods.values_mut().next().unwrap().assignment.device_allocated = Some("{".into());
        assert!(problem(&cluster).unwrap().contains("device-allocated"));
        cluster.pods.values_mut().next().unwrap().assignment.device_allocated = None;
        assert!(problem(&cluster).unwrap().contains("without an assignment"));
        cluster.nodes.clear();
        assert!(problem(&cluster).unwrap().contains("node-a does not exist"));
    }
}

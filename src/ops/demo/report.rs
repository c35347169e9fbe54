//! The findings of the demo, in the shape of `-o json`, and the verdict: annotations, kubelet and ledger must name the same
//! devices.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use crate::view::DeviceRow;
use baton_contract::{DeviceAllocation, DeviceId, DeviceType, key};

/// Ids by type, sorted; units of a share count as their device.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct DeviceIds {
    /// GPU UUIDs.
    pub gpu: BTreeSet<String>,
    /// PCI addresses of NICs.
    pub rdma: BTreeSet<String>,
}

impl DeviceIds {
    /// From `device-allocated`.
    pub fn of_annotation(text: &str) -> Result<Self, String> {
        let allocation = DeviceAllocation::parse(text).map_err(|error| error.to_string())?;
        let ids = |kind: &DeviceType| allocation.of(kind).iter().map(|entry| entry.id.to_string()).collect();
        Ok(Self { gpu: ids(&DeviceType::Gpu), rdma: ids(&DeviceType::Rdma) })
    }

    /// Adds an id that the kubelet knows under `resource`: `GPU-…`, or `GPU-…::17` for a unit of a share.
    pub fn add(&mut self, resource: &str, id: &str) {
        let device = DeviceId::of_kubelet_id(id).map_or_else(|_| id.to_owned(), |device| device.to_string());
        if resource == key::RDMA { &mut self.rdma } else { &mut self.gpu }.insert(device);
    }

    pub fn is_empty(&self) -> bool {
        self.gpu.is_empty() && self.rdma.is_empty()
    }
}

#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PodReport {
    pub name: String,
    /// Node; empty when it was never bound.
    pub node: String,
    /// What the scheduler wrote in the Binding.
    pub assigned: DeviceIds,
    /// What the kubelet's checkpoint holds.
    pub kubelet: DeviceIds,
    /// What the node daemon's ledger says was served.
    pub ledger: DeviceIds,
    /// From the lock's appearance to its disappearance, as a watcher sees it; absent when no lock was seen.
    pub lock_held_ms: Option<f64>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct JobReport {
    pub name: String,
    /// Stages in the order in which a watch showed them.
    pub stages: Vec<&'static str>,
    /// Node of each pod when all of them ran, by pod.
    pub pods: BTreeMap<String, String>,
    /// Address of the leader, as its workers have it.
    pub leader_address: String,
    /// Workers that failed and were made again.
    pub worker_restarts: i32,
    /// Pods that were left when the job had ended.
    pub pods_left: usize,
}

#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct DemoReport {
    pub ok: bool,
    /// In the order of submission.
    pub pods: Vec<PodReport>,
    /// Absent on one node, where that chapter is left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub job: Option<JobReport>,
    /// Lock, binding and unlock requests that reached the API server, refused ones included, divided by pods.
    pub api_writes_per_pod: f64,
    pub violations: Vec<String>,
}

impl DemoReport {
    /// Judges the pods; `violations` are those that were found on the way.
    pub fn new(pods: Vec<PodReport>, api_writes: u64, mut violations: Vec<String>) -> Self {
        for pod in &pods {
            violations.extend(judge(pod));
        }
        let api_writes_per_pod = api_writes as f64 / pods.len().max(1) as f64;
        Self { ok: violations.is_empty(), pods, job: None, api_writes_per_pod, violations }
    }

    /// Adds what else is wrong.
    pub fn blame(&mut self, violations: Vec<String>) {
        self.violations.extend(violations);
        self.ok = self.violations.is_empty();
    }
}

fn judge(pod: &PodReport) -> Vec<String> {
    let name = &pod.name;
    if pod.node.is_empty() {
        return vec![format!("pod {name} was never bound")];
    }
    let mut found = Vec::new();
    if pod.assigned.is_empty() {
        found.push(format!("pod {name} is bound to {} without any device", pod.node));
    }
    for (who, devices) in [("kubelet", &pod.kubelet), ("ledger", &pod.ledger)] {
        if *devices != pod.assigned {
            found.push(format!("pod {name}: assigned {}, {who} {}", list(&pod.assigned), list(devices)));
        }
    }
    if pod.lock_held_ms.is_none() {
        found.push(format!("pod {name}: its node lock was not seen to be set and released"));
    }
    found
}

/// For messages and tables.
pub fn list(devices: &DeviceIds) -> String {
    let all: Vec<&str> = devices.gpu.iter().chain(&devices.rdma).map(String::as_str).collect();
    if all.is_empty() { "nothing".to_owned() } else { all.join(" ") }
}

/// Devices that are given away more than once.
pub fn overfull(devices: &[DeviceRow]) -> impl Iterator<Item = String> {
    devices.iter().filter(|device| device.used > key::WHOLE).map(|device| {
        let pods: Vec<&str> = device.holders.iter().map(|holder| &*holder.pod.name).collect();
        format!("device {} of {} is held to {} percent by {}", device.id, device.node, device.used, pods.join(", "))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view::{NodesView, Rules, Snapshot};
    use baton_contract::PodRef;
    use baton_decide::explain::QueueReport;

    const WHOLE: &str = r#"{"gpu":[{"minor":0,"id":"GPU-a","resources":{"koordinator.sh/gpu-core":"100"}}]}"#;

    fn pod() -> PodReport {
        let assigned = DeviceIds::of_annotation(WHOLE).unwrap();
        let (kubelet, ledger) = (assigned.clone(), assigned.clone());
        PodReport { name: "p".into(), node: "n".into(), assigned, kubelet, ledger, lock_held_ms: Some(3.5) }
    }

    fn violations(pod: PodReport) -> String {
        let report = DemoReport::new(vec![pod], 3, Vec::new());
        assert_eq!(report.ok, report.violations.is_empty());
        report.violations.join("; ")
    }

    #[test]
    fn any_disagreement_is_a_violation() {
        assert_eq!(violations(pod()), "");
        let mut other = pod();
        other.kubelet.add(key::GPU_CORE, "GPU-b::17");
        assert!(violations(other).contains("kubelet GPU-a GPU-b"));
        assert!(violations(PodReport { ledger: DeviceIds::default(), ..pod() }).contains("ledger nothing"));
        assert!(violations(PodReport { node: String::new(), ..pod() }).contains("never bound"));
        assert!(violations(PodReport { lock_held_ms: None, ..pod() }).contains("lock"));
        let nothing = DeviceIds::default;
        let empty = PodReport { assigned: nothing(), kubelet: nothing(), ledger: nothing(), ..pod() };
        assert!(violations(empty).contains("without any device"));
    }

    #[test]
    fn a_device_given_twice_is_a_violation() {
        let mut cluster = crate::view::snapshot_tests::cluster();
        let found = |cluster: &Snapshot| {
            overfull(&NodesView::of(cluster, &Rules::default(), &QueueReport::default()).devices)
                .collect::<Vec<_>>()
                .join("; ")
        };
        assert_eq!(found(&cluster), "");
        let (key, mut other) =
            cluster.pods.iter().find(|(key, _)| &*key.name == "train").map(|(k, p)| (k.clone(), p.clone())).unwrap();
        other.pod = PodRef::new(&key.namespace, "other", "other");
        cluster.pods.insert(other.pod.key.clone(), other);
        assert!(
            found(&cluster).contains("GPU-a0 of node-a is held to 200 percent by other, train"),
            "{}",
            found(&cluster)
        );
    }
}

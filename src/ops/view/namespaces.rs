//! What each namespace holds of the devices, and what its pods wait for.

use std::collections::BTreeMap;

use serde::Serialize;

use super::snapshot::Snapshot;
use super::table::{Row, RowId};
use super::usage::{entries_of, percent};
use baton_contract::{DeviceType, key, request};

/// One namespace that has pods with devices, or that wait for some.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NamespaceRow {
    pub name: String,
    /// Pods that hold devices.
    pub pods: usize,
    /// Percent of GPUs that they hold in all; a MIG device is a whole one.
    pub gpu_percent: i64,
    /// The same of NICs.
    pub nic_percent: i64,
    /// Pods that wait for a node.
    pub waiting: usize,
    /// What they ask for in all, by resource name.
    pub waits_for: BTreeMap<String, i64>,
}

/// Every namespace, by name.
pub fn rows(snapshot: &Snapshot) -> Vec<NamespaceRow> {
    let mut rows = BTreeMap::<&str, NamespaceRow>::new();
    for (key, pod) in &snapshot.pods {
        if pod.phase.is_terminal() || !pod.asks_for_devices() && pod.assignment.device_allocated.is_none() {
            continue;
        }
        let row = rows.entry(&key.namespace).or_default();
        if pod.node.is_none() {
            row.waiting += 1;
            for (name, amount) in pod.wanted() {
                let all = row.waits_for.entry(name.into()).or_default();
                *all = all.saturating_add(amount);
            }
            continue;
        }
        row.pods += 1;
        for (kind, entries) in entries_of(snapshot, pod) {
            let held: i64 = entries.iter().map(percent).sum();
            *if kind == DeviceType::Rdma { &mut row.nic_percent } else { &mut row.gpu_percent } += held;
        }
    }
    rows.into_iter().map(|(name, row)| NamespaceRow { name: name.to_owned(), ..row }).collect()
}

impl Row for NamespaceRow {
    const WHAT: &'static str = "namespace";
    const PLURAL: &'static str = "namespaces";
    const NONE: &'static str = "No pod has devices or waits for some.";
    const HEADERS: &'static str = "NAME,PODS,GPUS HELD,NICS HELD,WAITING,WAITS FOR";
    const NARROW: usize = 6;
    fn id(&self) -> RowId<'_> {
        RowId { name: &self.name, ..RowId::default() }
    }
    fn cells(&self) -> Vec<String> {
        let devices = |percent: i64| match percent % key::WHOLE {
            0 => (percent / key::WHOLE).to_string(),
            part => format!("{}.{part:02}", percent / key::WHOLE),
        };
        vec![
            self.name.clone(),
            self.pods.to_string(),
            devices(self.gpu_percent),
            devices(self.nic_percent),
            self.waiting.to_string(),
            request::words(self.waits_for.iter().map(|(name, amount)| (&**name, *amount))),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view::snapshot_tests::cluster;
    use baton_contract::key::NVIDIA_GPU;
    use baton_contract::{ContainerRequest, PodKey, Quantity};

    #[test]
    fn a_namespace_holds_and_waits() {
        let mut cluster = cluster();
        let cells = |cluster: &Snapshot| rows(cluster)[0].cells().join(" ");
        assert_eq!(cells(&cluster), "ml 1 1 0 0 ");
        let train = cluster.pods.values_mut().next().unwrap();
        let half = r#"{"gpu":[{"minor":0,"id":"GPU-a0","resources":{"koordinator.sh/gpu-core":"50"}}]}"#;
        train.assignment.device_allocated = Some(half.into());
        assert_eq!(cells(&cluster), "ml 1 0.50 0 0 ");
        let train = cluster.pods.values_mut().next().unwrap();
        (train.node, train.assignment.device_allocated) = (None, None);
        assert_eq!(cells(&cluster), "ml 0 0 0 1 1 GPU");
        cluster.pods.clear();
        assert!(rows(&cluster).is_empty());
    }

    #[test]
    fn what_no_node_could_have_is_waited_for_as_the_most_there_is() {
        let mut cluster = cluster();
        let (key, mut pod) = cluster.pods.pop_first().unwrap();
        (pod.node, pod.assignment.device_allocated) = (None, None);
        let mut container = pod.containers[0].clone();
        container.request = ContainerRequest::judge([(NVIDIA_GPU, Quantity::units(i64::MAX))]);
        pod.containers = vec![container.clone(), container].into();
        cluster.pods.insert(PodKey::new("ml", "other"), pod.clone());
        cluster.pods.insert(key, pod);
        assert_eq!(rows(&cluster)[0].waits_for[NVIDIA_GPU], i64::MAX);
    }
}

//! What must hold at every moment, judged from the API server's objects and the kubelets' own view, not from our daemons.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use baton::contract::{DeviceAllocation, DeviceId, key};
use baton::ops::audit::{AuditRules, ClusterObjects, report};
use baton::runtime::clock;
use baton::sim::kubelet::KubeletView;
use serde_json::Value;

/// A bound pod's assignment, as first seen.
struct Assigned {
    pod: String,
    node: String,
    text: String,
    allocation: DeviceAllocation,
}

/// A lock value and when it was first seen.
struct Lock {
    value: String,
    since: Duration,
}

/// Running checks. Any violation panics, naming pods and devices.
#[derive(Default)]
pub struct Audit {
    by_uid: BTreeMap<String, Assigned>,
    locks: BTreeMap<String, Lock>,
    /// Number of looks.
    pub looks: u64,
    /// Looks with the rules of `baton audit`.
    pub judged: u64,
    /// Answers that were compared with assignments.
    pub answers: u64,
    /// Locks that were seen.
    pub locks_seen: u64,
    /// The longest that one lock value stood.
    pub longest_lock: Duration,
    /// Pods whose kubelet ids were not the assigned devices.
    pub renamed: BTreeSet<String>,
}

type Used<'a> = BTreeMap<(String, DeviceId, &'static str), (i64, Vec<&'a str>)>;

fn add<'a>(
    used: &mut Used<'a>,
    node: &str,
    pod: &'a str,
    allocation: &DeviceAllocation,
    only: Option<&BTreeSet<String>>,
) {
    for entry in allocation.devices.values().flatten() {
        if only.is_some_and(|only| !only.contains(entry.id.as_str())) {
            continue;
        }
        for resource in [key::GPU_CORE, key::GPU_MEMORY_RATIO, key::RDMA] {
            let (sum, pods) = used.entry((node.to_owned(), entry.id.clone(), resource)).or_default();
            *sum += entry.amount(resource);
            pods.push(pod);
        }
    }
}

fn check(used: &Used<'_>, whose: &str) {
    for ((node, id, resource), (sum, pods)) in used {
        assert!(*sum <= 100, "DOUBLE ASSIGNMENT by {whose}: {id} on {node} has {sum} of {resource}, held by {pods:?}");
    }
}

impl Audit {
    /// One look. `views` must have been taken before `pods`, so that every pod a kubelet knows has been seen bound.
    pub fn look(&mut self, views: &[(String, KubeletView)], pods: &[Value], nodes: &[Value], now: Duration) {
        self.looks += 1;
        self.look_at_assignments(pods);
        self.look_at_kubelets(views);
        self.look_at_locks(nodes, now);
    }

    /// The rules of `baton audit` over the same objects. `devices` must have been taken before `pods`.
    pub fn judge(&mut self, nodes: &[Value], devices: &[Value], pods: &[Value], lock_ends: Duration) {
        fn all<T: serde::de::DeserializeOwned>(objects: &[Value]) -> Vec<T> {
            let read = |object: &Value| serde_json::from_value(object.clone()).expect("the object can be read");
            objects.iter().map(read).collect()
        }
        let objects =
            ClusterObjects { nodes: all(nodes), devices: all(devices), pods: all(pods), ..ClusterObjects::default() };
        let rules = AuditRules { lock_ends, ..AuditRules::default() };
        let report = report(objects, &rules, clock::wall());
        assert!(report.violations.is_empty(), "BROKEN: {:#?}", report.violations);
        self.judged += 1;
    }

    fn look_at_assignments(&mut self, pods: &[Value]) {
        let mut live = Vec::new();
        for pod in pods {
            let meta = &pod["metadata"];
            let (Some(uid), Some(name)) = (meta["uid"].as_str(), meta["name"].as_str()) else { continue };
            let Some(node) = pod["spec"]["nodeName"].as_str() else { continue };
            let text = meta["annotations"][key::DEVICE_ALLOCATED].as_str().unwrap_or_default();
            let seen = self.by_uid.entry(uid.to_owned()).or_insert_with(|| Assigned {
                pod: name.to_owned(),
                node: node.to_owned(),
                text: text.to_owned(),
                allocation: DeviceAllocation::parse(text).unwrap_or_else(|error| panic!("pod {name}: {error}")),
            });
            assert_eq!((seen.node.as_str(), seen.text.as_str()), (node, text), "the assignment of {name} changed");
            if !matches!(pod["status"]["phase"].as_str(), Some("Succeeded" | "Failed")) {
                live.push(uid);
            }
        }
        let mut used = Used::new();
        for uid in live {
            let Assigned { pod, node, allocation, .. } = &self.by_uid[uid];
            add(&mut used, node, pod, allocation, None);
        }
        check(&used, "assignment");
    }

    fn look_at_kubelets(&mut self, views: &[(String, KubeletView)]) {
        for (node, view) in views {
            let mut used = Used::new();
            for pod in view.values().filter(|pod| pod.active) {
                let Some(assigned) = self.by_uid.get(&pod.uid) else { continue };
                let answers = pod.containers.values().flat_map(|container| container.answers.values());
                let given: BTreeSet<String> = answers
                    .flat_map(|answer| &answer.cdi_devices)
                    .filter_map(|name| name.split_once('='))
                    .map(|(_, id)| id.to_owned())
                    .collect();
                let entries = || assigned.allocation.devices.values().flatten();
                let own: BTreeSet<String> = entries().map(|entry| entry.id.to_string()).collect();
                assert!(given.is_subset(&own), "{} on {node} was given {given:?} but assigned {own:?}", assigned.pod);
                self.answers += given.len() as u64;
                let ids = pod.containers.values().flat_map(|container| container.devices.values().flatten());
                let named: BTreeSet<String> =
                    ids.filter_map(|id| Some(DeviceId::of_kubelet_id(id).ok()?.to_string())).collect();
                if !named.is_subset(&own) {
                    self.renamed.insert(pod.uid.clone());
                }
                add(&mut used, node, &assigned.pod, &assigned.allocation, Some(&given));
            }
            check(&used, "the kubelet's containers");
        }
    }

    fn look_at_locks(&mut self, nodes: &[Value], now: Duration) {
        for node in nodes {
            let name = node["metadata"]["name"].as_str().unwrap_or_default();
            let Some(value) = node["metadata"]["annotations"][key::NODE_LOCK].as_str() else {
                self.locks.remove(name);
                continue;
            };
            let known = self.locks.get(name).is_some_and(|lock| lock.value == value);
            if !known {
                self.locks_seen += 1;
                self.locks.insert(name.to_owned(), Lock { value: value.to_owned(), since: now });
            }
            self.longest_lock = self.longest_lock.max(now.saturating_sub(self.locks[name].since));
        }
    }

    /// A lock that has stood for longer than `bound`: node, value and how long.
    pub fn lost_lock(&self, bound: Duration, now: Duration) -> Option<(String, String, Duration)> {
        let over = |lock: &Lock| now.saturating_sub(lock.since);
        let found = self.locks.iter().find(|(_, lock)| over(lock) > bound)?;
        Some((found.0.clone(), found.1.value.clone(), over(found.1)))
    }
}

//! The cluster as a scheduler would know it, and its violations.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use kube::{Api, Client};
use serde::Serialize;

use crate::live::{self, all};
use crate::say::amount;
use baton_cluster::agent_lease::LightLease;
use baton_cluster::client::status_code;
use baton_cluster::node::LightNode;
use baton_cluster::pod::LightPod;
use baton_cluster::resource_slice::LightSlice;
use baton_cluster::visible_devices::NamingPod;
use baton_contract::inventory::{Device, DeviceInfo, device_names};
use baton_contract::key;
use baton_decide::audit::{Violation, check_cluster, leaving, stuck, unserved};
use baton_decide::devices::Held;
use baton_decide::pod::HandoffPod;
use baton_decide::scheduler::{OTHER_SCHEDULER_AFTER, controller_of, other_scheduler_text, wants_of_another};
use baton_decide::world::{Place, Pod, World, WorldEvent, WorldPolicy};
use baton_runtime::clock;

/// Pods that the conclusion names.
const NAMED: usize = 3;

/// The objects read and the violations found.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct AuditReport {
    /// Nodes read.
    pub nodes: usize,
    /// Device objects read.
    pub devices: usize,
    /// Pods read.
    pub pods: usize,
    /// Those of them that ask for devices or have some, which are the rows of `baton get pods`: they are judged.
    pub pods_with_devices: usize,
    /// Empty when all holds.
    pub violations: Vec<Violation>,
    /// Why the Leases of the node daemons were not read: then pods count for what their annotations say.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub leases_unread: Option<String>,
    /// Why the ResourceSlices could not be read: then no other GPU driver is found.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slices_unread: Option<String>,
    /// Devices that pods use which have left the API server.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub leaving: Vec<String>,
    /// Locks that are stuck, and do not stand for as long yet as would be a violation.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub stuck: Vec<String>,
    /// Nodes with devices whose daemon serves none, where the daemons were heard.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unserved: Vec<String>,
    /// Devices that are out of service while pods hold them, as `baton get devices` has them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unhealthy: Vec<String>,
    /// Entries of Device objects that cannot be read, with their node.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unreadable: Vec<String>,
    /// Pods that wait for a scheduler that is not Baton, or that one has bound to a node of Baton's, by controller.
    pub other_scheduler: Vec<NotedPods>,
    /// Pods that name GPUs in their environment and ask for none, by controller.
    pub visible_devices: Vec<NotedPods>,
}

impl AuditReport {
    /// The conclusion, with so many `broken` policies. What is wrong and breaks no promise is said, too.
    pub fn outcome(&self, broken: usize) -> String {
        let words = |(count, what): (usize, &str)| {
            let (things, verb) = (amount(count, what), if count == 1 { "is" } else { "are" });
            (count > 0).then(|| format!("{things} {verb}"))
        };
        let held =
            words((self.unhealthy.len(), "device")).map(|devices| format!("{devices} out of service under pods"));
        let stuck = words((self.stuck.len(), "lock")).map(|locks| format!("{locks} stuck"));
        let takes = if self.unserved.len() == 1 { "takes" } else { "take" };
        let unserved = (!self.unserved.is_empty())
            .then(|| format!("{} {takes} no new pods with devices", amount(self.unserved.len(), "node")));
        let others: Vec<&str> = self.other_scheduler.iter().flat_map(|of| &of.pods).map(String::as_str).collect();
        let named = others.iter().take(NAMED).copied().collect::<Vec<_>>().join(", ");
        let more = others.len().saturating_sub(NAMED);
        let named = if more > 0 { format!("{named} and {more} more") } else { named };
        let others = words((others.len(), "pod")).map(|pods| format!("{pods} not placed by Baton ({named})"));
        let unread = self.leases_unread.as_ref().map(|_| "the node daemons were not heard".to_owned());
        let drivers = self.slices_unread.as_ref().map(|_| "other GPU drivers were not looked for".to_owned());
        let entries = self.unreadable.len();
        let unreadable = (entries > 0).then(|| format!("{} cannot be read", amount(entries, "listed device")));
        let wrong = [held, unreadable, stuck, unserved, others, unread, drivers]
            .into_iter()
            .flatten()
            .collect::<Vec<_>>()
            .join(" and ");
        match (self.violations.len() + broken, &*wrong) {
            (0, "") => "no violation".to_owned(),
            (0, wrong) => format!("no violation, but {wrong}"),
            (count, "") => amount(count, "violation"),
            (count, wrong) => format!("{}; {wrong}", amount(count, "violation")),
        }
    }
}

/// Pods of one controller of which the same is said.
#[derive(Debug, Clone, Serialize)]
pub struct NotedPods {
    /// `namespace/name`.
    pub pods: Vec<String>,
    /// What is wrong, and what to do.
    pub text: String,
}

/// Reads the cluster, with the daemons in `namespace`, and checks it. Pods are read last: a device that changes hands in between is missing rather than held twice.
pub async fn read(client: Client, namespace: &str, rules: &AuditRules) -> anyhow::Result<AuditReport> {
    let nodes = all(Api::<LightNode>::all(client.clone()), "nodes").await?;
    let (mut devices, mut unreadable) = (Vec::new(), Vec::new());
    for object in live::devices(client.clone()).await? {
        let (device, skipped) = object.read();
        let node = device.metadata.name.clone().unwrap_or_default();
        unreadable.extend(skipped.iter().map(|entry| format!("Device object {node}: {entry}; it is passed over")));
        devices.push(device);
    }
    let (leases, leases_unread) = match live::agent_leases(client.clone(), namespace).await {
        Ok(found) => (found, None),
        // No answer of the API server: the daemons are in another namespace, and so are the policies.
        Err(error) if error.downcast_ref::<kube::Error>().is_none() => return Err(error),
        Err(error) => (BTreeMap::new(), Some(format!("{error:#}"))),
    };
    let (slices, slices_unread) = match all(Api::<LightSlice>::all(client.clone()), "resourceslices").await {
        Ok(slices) => (slices, None),
        // Kubernetes before 1.34 has none.
        Err(error) if error.downcast_ref::<kube::Error>().and_then(status_code) == Some(404) => (Vec::new(), None),
        Err(error) => (Vec::new(), Some(format!("{error:#}"))),
    };
    let naming = all(Api::<NamingPod>::all(client.clone()), "pods").await?;
    let visible_devices = visible_devices(&naming);
    drop(naming);
    let pods = all(Api::<LightPod>::all(client), "pods").await?;
    let read = ClusterObjects { nodes, devices, leases: leases.into_values().collect(), slices, pods };
    let mut report = report(read, rules, clock::wall());
    if leases_unread.is_some() {
        report.unserved.clear();
    }
    report.unreadable = unreadable;
    Ok(AuditReport { leases_unread, slices_unread, visible_devices, ..report })
}

/// Settings of this cluster's daemons, as far as they decide what is in order.
#[derive(Debug, Clone)]
pub struct AuditRules {
    /// Node annotation of the lock.
    pub lock_key: String,
    /// A lock that is older than this by its own time should have ended.
    pub lock_ends: Duration,
    /// Scheduler names that Baton serves; the first is the one to set.
    pub schedulers: Vec<String>,
}

impl Default for AuditRules {
    fn default() -> Self {
        Self {
            lock_key: key::NODE_LOCK.to_owned(),
            lock_ends: Duration::from_secs(60),
            schedulers: vec!["baton-scheduler".to_owned()],
        }
    }
}

/// What was read of a cluster.
#[derive(Default)]
pub struct ClusterObjects {
    /// Nodes.
    pub nodes: Vec<LightNode>,
    /// Device objects.
    pub devices: Vec<Device>,
    /// Leases of node daemons.
    pub leases: Vec<LightLease>,
    /// ResourceSlices.
    pub slices: Vec<LightSlice>,
    /// Pods of every namespace.
    pub pods: Vec<LightPod>,
}

/// Checks these objects.
pub fn report(read: ClusterObjects, rules: &AuditRules, wall: Timestamp) -> AuditReport {
    let ClusterObjects { nodes, devices, leases, slices, pods } = read;
    let counts = (nodes.len(), devices.len(), pods.len());
    let pods: Vec<_> = pods.into_iter().map(LightPod::facts).collect();
    let has_devices = |pod: &HandoffPod| pod.asks_for_devices() || pod.assignment.device_allocated.is_some();
    let pods_with_devices = pods.iter().filter(|pod| has_devices(&pod.handoff)).count();
    let policy = WorldPolicy::default();
    // A Lease that is read once counts as live for twice this time: that is the time of `baton get`.
    let agent_stale = policy.agent_stale / 2;
    let mut world = World::new(WorldPolicy { keep_assignments: true, agent_stale, ..policy });
    let faults = faults(&devices);
    let nodes = nodes.into_iter().map(|node| WorldEvent::Node(node.facts(&rules.lock_key)));
    let devices = devices.into_iter().map(|device| WorldEvent::Devices(Box::new(device)));
    let leases = leases.into_iter().filter_map(LightLease::event);
    let slices = slices.into_iter().filter_map(|slice| {
        let name = slice.metadata.name.clone()?;
        Some(WorldEvent::Slice(name.into(), slice.facts()))
    });
    let pods = pods.into_iter().map(|pod| WorldEvent::Pod(Box::new(pod)));
    for event in nodes.chain(devices).chain(leases).chain(slices).chain(pods) {
        world.apply(event, Duration::ZERO, wall);
    }
    let violations = check_cluster(&world, wall, rules.lock_ends);
    AuditReport {
        nodes: counts.0,
        devices: counts.1,
        pods: counts.2,
        pods_with_devices,
        violations,
        leaving: leaving(&world),
        stuck: stuck(&world, wall, rules.lock_ends),
        unserved: unserved(&world, wall),
        unhealthy: held(&world, faults),
        unreadable: Vec::new(),
        other_scheduler: other_scheduler(&world, rules, wall),
        visible_devices: Vec::new(),
        leases_unread: None,
        slices_unread: None,
    }
}

/// What is wrong with devices for the pods that have them, by node and id.
fn faults(objects: &[Device]) -> BTreeMap<(String, String), (String, String)> {
    let of_node = |object: &Device| -> Vec<((String, String), (String, String))> {
        let (node, devices) = (object.metadata.name.clone().unwrap_or_default(), &object.spec.devices);
        let fault = |(info, name): (&DeviceInfo, String)| {
            let since = info.health_condition().map(|of| format!(" since {:.0}", of.last_transition_time.0));
            let words = format!("{name} is out of service{}: {}", since.unwrap_or_default(), info.fault_of_holder()?);
            Some(((node.clone(), info.id.to_string()), (name, words)))
        };
        devices.iter().zip(device_names(devices)).filter_map(fault).collect()
    };
    objects.iter().flat_map(of_node).collect()
}

/// Those of them that pods hold, with the pods.
fn held(world: &World, faults: BTreeMap<(String, String), (String, String)>) -> Vec<String> {
    let of = |((node, id), (name, fault)): ((String, String), (String, String))| {
        let found = world.node(world.node_id(&node)?)?;
        let pods = found.pods.iter().filter_map(|pod| world.pod(*pod));
        let holds = |held: &Held| held.devices().iter().any(|device| device.id.as_str() == id);
        let pods = pods.filter(|pod| found.holding(pod).is_some_and(holds)).map(|pod| pod.key().to_string());
        let pods: Vec<String> = pods.collect();
        (!pods.is_empty())
            .then(|| format!("node {node}: {fault}; held by {}: once its work is saved, `baton drain {node}/{name} --yes` evicts and cordons", pods.join(", ")))
    };
    faults.into_iter().filter_map(of).collect()
}

fn visible_devices(pods: &[NamingPod]) -> Vec<NotedPods> {
    let mut found: BTreeMap<String, NotedPods> = BTreeMap::new();
    for pod in pods {
        let (Some(named), meta) = (pod.names_unasked(), &pod.metadata) else { continue };
        let controller = meta.owner_references.iter().flatten().find(|owner| owner.controller == Some(true));
        let uid = controller.map_or_else(|| meta.uid.clone().unwrap_or_default(), |owner| owner.uid.clone());
        let noted = found.entry(uid).or_insert_with(|| NotedPods {
            pods: Vec::new(),
            text: format!("{named} and asks for no GPU: where the node's runtime honours that, it uses GPUs past the ledger (the line runtime-bypass of `baton doctor` says so, docs/security.md who refuses it)"),
        });
        let part = |part: &Option<String>| part.clone().unwrap_or_default();
        noted.pods.push(format!("{}/{}", part(&meta.namespace), part(&meta.name)));
    }
    found.into_values().collect()
}

fn other_scheduler(world: &World, rules: &AuditRules, wall: Timestamp) -> Vec<NotedPods> {
    let mut found: BTreeMap<(&str, String), Vec<String>> = BTreeMap::new();
    let served = |name: &str| rules.schedulers.iter().any(|ours| ours == name);
    let ours = rules.schedulers.first().map_or("", String::as_str);
    let waits = |pod: &Pod| {
        let handoff = &pod.facts.handoff;
        let age = Duration::try_from(wall.duration_since(handoff.created)).unwrap_or_default();
        let want = wants_of_another(world, pod, served).filter(|_| age >= OTHER_SCHEDULER_AFTER)?;
        Some(other_scheduler_text(want, &handoff.scheduler_name, ours))
    };
    for pod in world.pods() {
        if let Some(text) = waits(pod).or_else(|| bound_by_another(world, pod)) {
            found.entry((controller_of(pod), text)).or_default().push(pod.key().to_string());
        }
    }
    found.into_iter().map(|((_, text), pods)| NotedPods { pods, text }).collect()
}

/// A pod that asks for devices and was bound without an assignment, to a node whose devices are known.
fn bound_by_another(world: &World, pod: &Pod) -> Option<String> {
    let (handoff, Place::Bound(node)) = (&pod.facts.handoff, pod.place) else { return None };
    let node = world.node(node).filter(|node| node.stock.is_some())?;
    let assignment = &handoff.assignment;
    if !pod.asks_for_devices() || assignment.bind_timestamp.is_some() || assignment.device_allocated.is_some() {
        return None;
    }
    let reported = if node.said_of(pod).is_some() { "what it holds" } else { "nothing of it" };
    let name = &handoff.scheduler_name;
    Some(format!("bound without an assignment (schedulerName {name}); its node daemon reports {reported}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, from_value, json};

    const STAMP: &str = "1795226400000000000"; // 2026-11-21T02:00:00Z

    fn node(name: &str, lock: Option<&str>) -> LightNode {
        let annotations = lock.map(|lock| json!({key::NODE_LOCK: lock})).unwrap_or_default();
        from_value(json!({"metadata": {"name": name, "annotations": annotations}})).unwrap()
    }

    fn device(name: &str, ids: &[&str]) -> Device {
        let whole = json!({"koordinator.sh/gpu-core": "100", "koordinator.sh/gpu-memory-ratio": "100", "koordinator.sh/gpu-memory": "80Gi"});
        let gpus = ids
            .iter()
            .enumerate()
            .map(|(minor, id)| json!({"type": "gpu", "id": id, "minor": minor, "health": true, "resources": whole}));
        let spec = json!({"devices": gpus.collect::<Vec<_>>()});
        from_value(json!({"apiVersion": "scheduling.koordinator.sh/v1alpha1", "kind": "Device", "metadata": {"name": name}, "spec": spec})).unwrap()
    }

    fn entry(id: &str) -> Value {
        json!({"minor": 0, "id": id, "resources": {"koordinator.sh/gpu-core": "100", "koordinator.sh/gpu-memory-ratio": "100", "koordinator.sh/gpu-memory": "80Gi"}})
    }

    /// A bound pod of one container; `split` and `merged` name one device each.
    fn pod(name: &str, node: &str, split: Option<&str>, merged: Option<&str>) -> LightPod {
        pod_in("Running", name, node, split, merged)
    }

    fn pod_in(phase: &str, name: &str, node: &str, split: Option<&str>, merged: Option<&str>) -> LightPod {
        let mut annotations = json!({key::BIND_TIMESTAMP: STAMP});
        if let Some(id) = split {
            let text =
                json!({"version": 1, "node": "node-a", "containers": {"main": {"gpu": [entry(id)]}}}).to_string();
            annotations[key::CONTAINER_DEVICES] = json!(text);
        }
        if let Some(id) = merged {
            annotations[key::DEVICE_ALLOCATED] = json!(json!({"gpu": [entry(id)]}).to_string());
        }
        from_value(json!({
            "metadata": {"name": name, "namespace": "ml", "uid": format!("uid-{name}"), "creationTimestamp": "2026-11-21T02:00:00Z", "annotations": annotations},
            "spec": {"nodeName": node, "schedulerName": "baton-scheduler", "containers": [{"name": "main", "resources": {"limits": {"nvidia.com/gpu": "1"}}}]},
            "status": {"phase": phase},
        }))
        .unwrap()
    }

    fn found(nodes: Vec<LightNode>, pods: Vec<LightPod>) -> Vec<String> {
        let devices = vec![device("node-a", &["GPU-0", "GPU-1"])];
        let wall = "2026-11-21T02:36:00Z".parse().unwrap();
        let read = ClusterObjects { nodes, devices, pods, ..ClusterObjects::default() };
        let report = report(read, &AuditRules::default(), wall);
        report.violations.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_dead_device_or_a_lock_that_stands_is_part_of_the_conclusion() {
        let outcome = |unhealthy: &[&str], stuck: &[&str], unread: Option<&str>, broken| {
            let own = |words: &[&str]| words.iter().map(ToString::to_string).collect::<Vec<_>>();
            let report = report(ClusterObjects::default(), &AuditRules::default(), Timestamp::UNIX_EPOCH);
            let (unhealthy, stuck, leases_unread) = (own(unhealthy), own(stuck), unread.map(str::to_owned));
            AuditReport { leases_unread, stuck, unhealthy, ..report }.outcome(broken)
        };
        assert_eq!(outcome(&[], &[], None, 0), "no violation");
        assert_eq!(outcome(&["a"], &[], None, 0), "no violation, but 1 device is out of service under pods");
        let both = "2 violations; 2 devices are out of service under pods and 1 lock is stuck";
        assert_eq!(outcome(&["a", "b"], &["c"], None, 2), both);
        assert_eq!(outcome(&[], &[], Some("x"), 0), "no violation, but the node daemons were not heard");
    }

    #[test]
    fn a_lock_is_noted_while_it_is_stuck_and_a_violation_afterwards() {
        let bind = |age: &str| {
            let lock = "2026-11-21T02:00:00Z,ml,a,uid-a";
            let read = ClusterObjects {
                nodes: vec![node("node-a", Some(lock))],
                devices: vec![device("node-a", &["GPU-0"])],
                pods: vec![pod_in("Pending", "a", "node-a", Some("GPU-0"), Some("GPU-0"))],
                ..ClusterObjects::default()
            };
            let found = report(read, &AuditRules::default(), age.parse().unwrap());
            (found.stuck.len(), found.violations.len())
        };
        let at = ["2026-11-21T02:00:10Z", "2026-11-21T02:00:20Z", "2026-11-21T02:01:30Z"];
        assert_eq!(at.map(bind), [(0, 0), (1, 0), (0, 1)]);
        let ahead = ["2026-11-21T01:59:58Z", "2026-11-21T01:59:50Z", "2026-11-21T01:00:00Z"];
        assert_eq!(ahead.map(bind), [(0, 0), (1, 0), (0, 1)], "its time is in the future");
    }

    #[test]
    fn pods_for_baton_that_wait_for_another_scheduler_are_listed_by_controller() {
        let waits = |name: &str, created: &str, owner: Option<&str>, scheduler: &str| -> LightPod {
            let owner = owner.map(
                |uid| json!([{"apiVersion": "batch/v1", "kind": "Job", "name": "j", "uid": uid, "controller": true}]),
            );
            from_value(json!({
                "metadata": {"name": name, "namespace": "ml", "uid": name, "creationTimestamp": created, "ownerReferences": owner},
                "spec": {"schedulerName": scheduler, "containers": [{"name": "main", "resources": {"limits": {"nvidia.com/gpu": "1"}}}]},
                "status": {"phase": "Pending"},
            }))
            .unwrap()
        };
        let (old, young, default) = ("2026-11-21T02:00:00Z", "2026-11-21T02:35:40Z", "default-scheduler");
        let pods = vec![
            waits("j-0", old, Some("u"), default),
            waits("j-1", old, Some("u"), default),
            waits("alone", old, None, default),
            waits("ours", old, None, "baton-scheduler"),
            waits("young", young, None, default),
        ];
        let wall = "2026-11-21T02:36:00Z".parse().unwrap();
        let report = report(ClusterObjects { pods, ..ClusterObjects::default() }, &AuditRules::default(), wall);
        let pods: Vec<Vec<String>> = report.other_scheduler.iter().map(|of| of.pods.clone()).collect();
        assert_eq!(pods, [vec!["ml/alone"], vec!["ml/j-0", "ml/j-1"]]);
        let said = &report.other_scheduler[0].text;
        assert!(
            said.contains("\"default-scheduler\"") && said.contains("spec.schedulerName: baton-scheduler"),
            "{said}"
        );
        assert!(report.violations.is_empty(), "it is no fault of Baton's");
    }

    #[test]
    fn a_pod_that_another_scheduler_has_bound_is_named_with_what_is_reported() {
        let pod = |name: &str, scheduler: &str| -> LightPod {
            from_value(json!({
                "metadata": {"name": name, "namespace": "ml", "uid": format!("uid-{name}"), "creationTimestamp": "2026-11-21T02:35:50Z"},
                "spec": {"nodeName": "node-a", "schedulerName": scheduler, "containers": [{"name": "main", "resources": {"limits": {"nvidia.com/gpu": "1"}}}]},
                "status": {"phase": "Running"},
            }))
            .unwrap()
        };
        let offers = json!({"metadata": {"name": "node-a"}, "status": {"allocatable": {key::NVIDIA_GPU: "2"}}});
        let offers: LightNode = from_value(offers).unwrap();
        let of = |pods: Vec<LightPod>, exceptions: Value| {
            let status = json!({"version": "1", "registered": [key::NVIDIA_GPU], "identity": "exact", "exceptions": exceptions, "leaving": {}});
            let lease =
                json!({"metadata": {"name": "baton-agent-node-a", "annotations": {key::AGENT: status.to_string()}}});
            let (nodes, devices) = (vec![offers.clone()], vec![device("node-a", &["GPU-0", "GPU-1"])]);
            let read =
                ClusterObjects { nodes, devices, pods, leases: vec![from_value(lease).unwrap()], slices: vec![] };
            report(read, &AuditRules::default(), "2026-11-21T02:36:00Z".parse().unwrap())
        };
        for (exceptions, reported) in [
            (json!({"uid-x": {"gpu": [entry("GPU-0")]}}), "what it holds"),
            (json!({}), "nothing of it"),
            (Value::Null, "nothing of it"),
        ] {
            let found = of(vec![pod("x", "volcano")], exceptions);
            assert_eq!(found.outcome(0), "no violation, but 1 pod is not placed by Baton (ml/x)");
            assert_eq!(
                found.other_scheduler[0].text,
                format!("bound without an assignment (schedulerName volcano); its node daemon reports {reported}")
            );
        }
        let many = of(["a", "b", "c", "d"].map(|name| pod(name, "baton-scheduler")).to_vec(), json!({}));
        assert!(
            many.other_scheduler[0].text.starts_with("bound without an assignment (schedulerName baton-scheduler)")
        );
        let words = "no violation, but 4 pods are not placed by Baton (ml/a, ml/b, ml/c and 1 more)";
        assert_eq!(many.outcome(0), words);
    }

    #[test]
    fn pods_that_name_gpus_and_ask_for_none_are_listed_by_controller() {
        let pod = |name: &str, value: &str, owner: Option<&str>| -> NamingPod {
            let owner = owner.map(
                |uid| json!([{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "r", "uid": uid, "controller": true}]),
            );
            from_value(json!({
                "metadata": {"name": name, "namespace": "ml", "uid": name, "ownerReferences": owner},
                "spec": {"containers": [{"name": "main", "env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": value}]}]},
                "status": {"phase": "Running"},
            }))
            .unwrap()
        };
        let pods =
            [pod("r-0", "all", Some("u")), pod("r-1", "all", Some("u")), pod("a", "0", None), pod("b", "void", None)];
        let found = super::visible_devices(&pods);
        let pods: Vec<Vec<String>> = found.iter().map(|of| of.pods.clone()).collect();
        assert_eq!(pods, [vec!["ml/a"], vec!["ml/r-0", "ml/r-1"]]);
        assert!(
            found[1].text.starts_with("container main sets NVIDIA_VISIBLE_DEVICES=all and asks for no GPU"),
            "{}",
            found[1].text
        );
    }

    fn of_pods(pods: Vec<LightPod>) -> Vec<String> {
        found(vec![node("node-a", None), node("node-b", None)], pods)
    }

    #[test]
    fn pods_with_devices_of_their_own_are_sound() {
        let pods =
            vec![pod("a", "node-a", Some("GPU-0"), Some("GPU-0")), pod("b", "node-a", Some("GPU-1"), Some("GPU-1"))];
        assert_eq!(of_pods(pods), Vec::<String>::new());
    }

    #[test]
    fn a_device_that_fails_under_a_pod_is_noted_with_its_fault_and_the_pod() {
        let mut devices = device("node-a", &["GPU-0", "GPU-1"]);
        for info in &mut devices.spec.devices {
            info.health = false;
            info.conditions = from_value(json!([{"type": "Healthy", "status": "False", "reason": "Xid79",
                "message": "GPU has fallen off the bus", "lastTransitionTime": "2026-11-21T02:30:00Z"}]))
            .unwrap();
        }
        let pods = vec![pod("a", "node-a", Some("GPU-0"), Some("GPU-0"))];
        let wall = "2026-11-21T02:36:00Z".parse().unwrap();
        let read =
            ClusterObjects { nodes: vec![node("node-a", None)], devices: vec![devices], pods, ..Default::default() };
        let report = report(read, &AuditRules::default(), wall);
        let words = "node node-a: gpu-0 is out of service since 2026-11-21T02:30:00Z: Xid79: GPU has fallen off the bus; held by ml/a: once its work is saved, `baton drain node-a/gpu-0 --yes` evicts and cordons";
        assert_eq!((report.unhealthy, report.violations.len()), (vec![words.to_owned()], 0));
    }

    #[test]
    fn a_device_of_two_pods_is_found() {
        let pods = ["a", "b"].map(|name| pod(name, "node-a", Some("GPU-0"), Some("GPU-0"))).to_vec();
        let said = of_pods(pods).join("\n");
        assert!(said.contains("device GPU-0 of node node-a: pods hold 200 of 100 compute"), "{said}");
    }

    #[test]
    fn a_device_of_a_pod_that_has_left_is_a_fault_only_with_another_holder() {
        let status = json!({"version": "1", "registered": [key::NVIDIA_GPU], "identity": "exact", "exceptions": {"uid-a": {"gpu": [entry("GPU-0")]}},
            "leaving": {"uid-a": {"namespace": "ml", "name": "a", "since": "2026-11-21T02:35:30Z"}}});
        let annotations = json!({key::AGENT: status.to_string()});
        let lease: LightLease =
            from_value(json!({"metadata": {"name": "baton-agent-node-a", "annotations": annotations}})).unwrap();
        let offers = json!({"metadata": {"name": "node-a"}, "status": {"allocatable": {key::NVIDIA_GPU: "2"}}});
        let offers: LightNode = from_value(offers).unwrap();
        let of = |pods: Vec<LightPod>| {
            let (nodes, devices) = (vec![offers.clone()], vec![device("node-a", &["GPU-0", "GPU-1"])]);
            let read = ClusterObjects { nodes, devices, pods, leases: vec![lease.clone()], slices: vec![] };
            report(read, &AuditRules::default(), "2026-11-21T02:36:00Z".parse().unwrap())
        };
        let words = "node node-a: GPU-0 still used by processes of ml/a, which was deleted or written as ended at 2026-11-21T02:35:30Z";
        let alone = of(vec![pod("b", "node-a", Some("GPU-1"), Some("GPU-1"))]);
        assert_eq!((alone.leaving, alone.violations.len()), (vec![words.to_owned()], 0));
        let both = of(vec![pod("b", "node-a", Some("GPU-0"), Some("GPU-0"))]);
        let twice = |found: &Violation| matches!(found, Violation::DeviceTwice { .. });
        assert!(both.leaving == [words] && both.violations.iter().all(twice) && !both.violations.is_empty());
    }

    #[test]
    fn an_assignment_that_is_not_complete_is_found() {
        for (pod, because) in [
            (pod("a", "node-a", None, None), "it was bound without devices"),
            (pod("a", "node-b", Some("GPU-0"), Some("GPU-0")), "its devices were chosen on node node-a"),
            (pod("a", "node-a", Some("GPU-0"), Some("GPU-1")), "name different devices: GPU-1 and GPU-0"),
            (pod("a", "node-a", Some("GPU-9"), Some("GPU-9")), "device GPU-9 is not in the node's inventory"),
        ] {
            let said = of_pods(vec![pod]).join("\n");
            assert!(said.contains("pod ml/a on node") && said.contains(because), "{because}: {said}");
        }
    }

    #[test]
    fn a_lock_that_nothing_ends_is_found() {
        let young = found(vec![node("node-a", Some("2026-11-21T02:35:10Z,ml,a,uid-a"))], vec![]);
        assert_eq!(young, Vec::<String>::new());
        let old = found(vec![node("node-a", Some("2026-11-21T02:20:00Z,ml,a,uid-a"))], vec![]).join("\n");
        assert!(old.contains("node node-a has been locked for 960 s by ml/a"), "{old}");
        let ahead = found(vec![node("node-a", Some("2026-11-21T02:46:00Z,ml,a,uid-a"))], vec![]).join("\n");
        let words = "node node-a is locked by ml/a with a time 600 s in the future: a clock is wrong";
        assert!(ahead.starts_with(words), "{ahead}");
        let mine = found(vec![node("node-a", Some("mine"))], vec![]).join("\n");
        let words = "\"mine\", which names no pod; if it still stands unchanged once --node-lock-expiry has passed";
        assert!(mine.contains(words), "{mine}");
    }
}

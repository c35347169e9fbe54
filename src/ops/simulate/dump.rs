//! A cluster of one's own: `kubectl get nodes,pods,devices -A -o json`.
//!
//! Pods that ask for GPUs are replayed, whichever scheduler placed them, and Baton's pods without GPUs. What Baton cannot replay stays
//! on its node and takes its CPU and memory; each such case is a note.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use jiff::Timestamp;
use serde::Deserialize;
use serde_json::Value;

use baton_cluster::node::LightNode;
use baton_cluster::pod::LightPod;
use baton_contract::inventory::Device;
use baton_contract::{DeviceType, GpuRequest, key};
use baton_decide::pod::Phase;
use baton_decide::world::{NodeFacts, PodFacts};

use super::input::InputError;
use super::trace::{Span, Trace, TraceAsk, TraceMachine, WHOLE};

/// Labels that name the model of a node's GPUs, the first that is there counts.
const MODELS: [&str; 3] = ["nvidia.com/gpu.product", key::NODE_GPU_MODEL, key::MODEL];
/// Pods of this scheduler are replayed even without GPUs.
const OURS: &str = "baton-scheduler";
/// Memory of a GPU whose size is not known, for pods that ask for bytes of it.
const GPU_BYTES: i64 = 80 << 30;

/// What `-o json` prints for several kinds.
#[derive(Deserialize)]
struct DumpList {
    items: Vec<Value>,
}

/// A node of the dump.
struct DumpNode {
    machine: TraceMachine,
    facts: NodeFacts,
    gpu_bytes: i64,
}

/// What is left out of the replay, with the first pod of each reason.
#[derive(Default)]
struct LeftOut(BTreeMap<&'static str, (usize, String)>);

impl LeftOut {
    fn note(&mut self, why: &'static str, pod: &PodFacts) {
        self.0.entry(why).or_insert_with(|| (0, pod.handoff.pod.key.to_string())).0 += 1;
    }
}

/// Reads a dump.
pub fn read(path: &Path, name: String) -> Result<Trace, InputError> {
    let wrong = |problem: String| InputError::File { path: path.to_owned(), problem };
    let bytes = std::fs::read(path).map_err(|source| InputError::Unreadable { path: path.to_owned(), source })?;
    let list: DumpList = serde_json::from_slice(&bytes).map_err(|error| {
        wrong(format!("{error}; expected the output of `kubectl get nodes,pods,devices -A -o json`"))
    })?;
    let (mut nodes, mut pods, mut devices) = (Vec::new(), Vec::new(), BTreeMap::new());
    for (at, item) in list.items.into_iter().enumerate() {
        let kind = item.get("kind").and_then(Value::as_str).unwrap_or_default().to_owned();
        let bad =
            |error: serde_json::Error| wrong(format!("items[{at}] is no {kind} that Kubernetes would print: {error}"));
        match kind.as_str() {
            "Node" => nodes.push(serde_json::from_value::<LightNode>(item).map_err(bad)?),
            "Pod" => {
                let end = ended(&item);
                pods.push((serde_json::from_value::<LightPod>(item).map_err(bad)?, end));
            }
            "Device" => {
                let device = serde_json::from_value::<Device>(item).map_err(bad)?;
                devices.insert(device.metadata.name.clone().unwrap_or_default(), device);
            }
            _ => return Err(wrong(format!("items[{at}] is of kind {kind:?}; expected Node, Pod and Device"))),
        }
    }
    if nodes.is_empty() {
        return Err(wrong(
            "holds no Node; expected the output of `kubectl get nodes,pods,devices -A -o json`".to_owned(),
        ));
    }
    let mut found: Vec<DumpNode> = nodes.into_iter().map(|node| machine(node, &devices)).collect();
    let mut trace = Trace::of(name, Vec::new());
    let mut left_out = LeftOut::default();
    let without_devices =
        found.iter().filter(|node| !devices.contains_key(&node.machine.name) && node.machine.gpus > 0).count();
    if without_devices > 0 {
        trace
            .notes
            .push(format!("{without_devices} nodes have no Device object: their GPUs are counted by allocatable"));
    }
    let mut replayed = Vec::new();
    for (pod, end) in pods {
        let facts = pod.facts();
        match request(&facts, &found) {
            Ok(Some(ask)) => {
                let arrive = seconds(facts.handoff.created);
                let end = facts
                    .handoff
                    .deleting
                    .as_ref()
                    .map(|deletion| deletion.at)
                    .or(end)
                    .map(|end| seconds(end).max(arrive));
                replayed.push((ask, Span { arrive, end }));
            }
            Ok(None) => stay(&facts, &mut found),
            Err(why) => {
                left_out.note(why, &facts);
                stay(&facts, &mut found);
            }
        }
    }
    replayed.sort_by(|a, b| a.1.arrive.total_cmp(&b.1.arrive));
    for (ask, span) in replayed {
        trace.add(ask, Some(span), 1);
    }
    trace.machines = found.into_iter().map(|node| node.machine).collect();
    for (why, (count, first)) in left_out.0 {
        trace.notes.push(format!("{count} pods are not replayed and stay where they are, {first} first: {why}"));
    }
    Ok(trace)
}

fn seconds(time: Timestamp) -> f64 {
    time.as_millisecond() as f64 / 1000.0
}

/// When the last container of an ended pod ended.
fn ended(pod: &Value) -> Option<Timestamp> {
    let phase = pod.pointer("/status/phase")?.as_str()?;
    if !matches!(phase, "Succeeded" | "Failed") {
        return None;
    }
    let containers = pod.pointer("/status/containerStatuses").and_then(Value::as_array);
    let ends = containers
        .into_iter()
        .flatten()
        .filter_map(|container| container.pointer("/state/terminated/finishedAt")?.as_str()?.parse().ok());
    let created = || pod.pointer("/metadata/creationTimestamp")?.as_str()?.parse().ok();
    ends.max().or_else(created)
}

fn machine(node: LightNode, devices: &BTreeMap<String, Device>) -> DumpNode {
    let facts = node.facts(key::NODE_LOCK);
    let device = devices.get(&*facts.name);
    let listed = device.iter().flat_map(|device| &device.spec.devices);
    let gpus: Vec<_> = listed
        .filter(|device| device.kind == DeviceType::Gpu && device.health && !device.resources.is_empty())
        .collect();
    let whole = |device: &&&baton_contract::inventory::DeviceInfo| device.resources.contains_key(key::GPU_CORE);
    let count = match device {
        Some(_) => gpus.iter().filter(whole).count() as i64,
        None => facts.allocatable.scalar(key::NVIDIA_GPU),
    };
    let labelled = MODELS.iter().find_map(|label| facts.labels.get(*label));
    let model =
        labelled.or_else(|| gpus.iter().find_map(|gpu| gpu.labels.get(key::MODEL))).cloned().unwrap_or_default();
    let bytes = gpus.iter().find_map(|gpu| gpu.resources.get(key::GPU_MEMORY)).map_or(GPU_BYTES, |bytes| bytes.value());
    let machine = TraceMachine {
        name: facts.name.to_string(),
        milli_cpu: facts.allocatable.milli_cpu,
        memory: facts.allocatable.memory,
        gpus: count.clamp(0, 128) as u32,
        model,
    };
    DumpNode { machine, facts, gpu_bytes: bytes.max(1) }
}

/// A pod that is not replayed takes its CPU and memory where it is.
fn stay(pod: &PodFacts, nodes: &mut [DumpNode]) {
    let Some(node) = pod.handoff.node.as_deref().filter(|_| !pod.handoff.phase.is_terminal()) else { return };
    if let Some(found) = nodes.iter_mut().find(|found| found.machine.name == node) {
        found.machine.milli_cpu = (found.machine.milli_cpu - pod.spec.requests.milli_cpu).max(0);
        found.machine.memory = (found.machine.memory - pod.spec.requests.memory).max(0);
    }
}

/// What a pod asks for; `None` for a pod that is no concern of Baton's, an error for one that cannot be replayed.
fn request(pod: &PodFacts, nodes: &[DumpNode]) -> Result<Option<TraceAsk>, &'static str> {
    let mut wants = Vec::new();
    for container in &*pod.handoff.containers {
        match &container.request {
            Ok(request) => wants.extend(request.gpu.as_ref()),
            Err(_) => return Err("what they ask of GPUs cannot be served"),
        }
    }
    if pod.spec.resource_claims {
        return Err("they hold devices by DRA claims");
    }
    if wants.is_empty() && (&*pod.handoff.scheduler_name != OURS || pod.handoff.phase == Phase::Succeeded) {
        return Ok(None);
    }
    let (mut gpus, mut milli) = (0u32, 0);
    for want in &wants {
        let (count, part) = match want {
            GpuRequest::Whole { count } => (*count, WHOLE),
            GpuRequest::Share { count, core, ratio, memory } => {
                let bytes = nodes.iter().map(|node| node.gpu_bytes).max().unwrap_or(GPU_BYTES);
                let memory = memory.map(|memory| (memory.saturating_mul(100) / bytes).clamp(1, 100));
                (*count, 10 * ratio.or(memory).unwrap_or(0).max(*core).clamp(1, 100))
            }
            GpuRequest::Mig { .. } => return Err("they ask for MIG devices"),
        };
        if milli != 0 && milli != part || part < WHOLE && wants.len() > 1 {
            return Err("several containers ask for shares of GPUs");
        }
        (gpus, milli) = (gpus.saturating_add(count), part);
    }
    if gpus > 128 {
        return Err("they ask for more than 128 GPUs");
    }
    let accepted = |node: &&DumpNode| pod.spec.accepts_node(&node.machine.name, &node.facts.labels);
    let all: BTreeSet<&str> =
        nodes.iter().filter(|node| node.machine.gpus > 0).map(|node| &*node.machine.model).collect();
    let models: BTreeSet<&str> =
        nodes.iter().filter(|node| node.machine.gpus > 0).filter(accepted).map(|node| &*node.machine.model).collect();
    let models = match models {
        _ if gpus == 0 => Vec::new(),
        models if models == all => Vec::new(),
        // No node will do: it stays in the demand.
        models if models.is_empty() => vec!["no node".to_owned()],
        models => models.into_iter().map(str::to_owned).collect(),
    };
    let requests = &pod.spec.requests;
    Ok(Some(TraceAsk { milli_cpu: requests.milli_cpu.max(0), memory: requests.memory.max(0), gpus, milli, models }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn pod(name: &str, spec: Value, more: Value) -> Value {
        let mut pod = json!({"kind": "Pod", "apiVersion": "v1",
            "metadata": {"name": name, "namespace": "ml", "uid": name, "creationTimestamp": "2026-11-20T10:00:00Z"},
            "spec": {"containers": [{"name": "main", "resources": {"limits": {"nvidia.com/gpu": "2", "cpu": "8"}, "requests": {"cpu": "8"}}}]},
            "status": {"phase": "Running"}});
        for (part, value) in [("spec", spec), ("metadata", more)] {
            for (key, value) in value.as_object().cloned().unwrap_or_default() {
                pod[part][key] = value;
            }
        }
        pod
    }

    fn dump(items: Vec<Value>) -> Result<Trace, String> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("dump.json");
        std::fs::write(&path, json!({"kind": "List", "items": items}).to_string()).unwrap();
        read(&path, "mine".into()).map_err(|error| error.to_string())
    }

    fn node(name: &str, model: &str) -> Value {
        json!({"kind": "Node", "apiVersion": "v1", "metadata": {"name": name, "labels": {"nvidia.com/gpu.product": model}},
            "status": {"allocatable": {"cpu": "64", "memory": "512Gi", "nvidia.com/gpu": "8"}}})
    }

    #[test]
    fn pods_with_gpus_are_replayed_and_the_others_stay_with_a_note() {
        let none = || json!({});
        let sidecar = json!({"nodeName": "a", "containers": [{"name": "c", "resources": {"requests": {"cpu": "4"}}}]});
        let dra = json!({"nodeName": "a", "resourceClaims": [{"name": "gpu"}]});
        let mig = json!({"containers": [{"name": "c", "resources": {"limits": {"nvidia.com/mig-1g.10gb": "1"}}}]});
        let leaving = json!({"deletionTimestamp": "2026-11-20T11:00:00Z", "deletionGracePeriodSeconds": 30});
        let trace = dump(vec![
            node("a", "H100"),
            node("b", "A10"),
            pod("foreign", json!({"schedulerName": "default-scheduler", "nodeName": "a"}), none()),
            pod("bound-to-a10", json!({"nodeSelector": {"nvidia.com/gpu.product": "A10"}}), none()),
            pod("nowhere", json!({"nodeSelector": {"nvidia.com/gpu.product": "B200"}}), none()),
            pod("leaving", json!({"nodeName": "b"}), leaving),
            pod("daemon", sidecar, none()),
            pod("dra", dra, none()),
            pod("mig", mig, none()),
        ])
        .unwrap();
        assert_eq!(trace.pods.len(), 4);
        assert_eq!(trace.machines[0].milli_cpu, 52_000, "64 less 4 of the daemon and 8 of the pod with a claim");
        let models: BTreeSet<_> = trace.asks.iter().map(|ask| ask.models.join("|")).collect();
        assert_eq!(models, ["", "A10", "no node"].map(str::to_owned).into());
        let ends: Vec<_> = trace.pods.iter().filter_map(|pod| pod.span.unwrap().end).collect();
        assert_eq!(ends.len(), 1);
        let notes = trace.notes.join("; ");
        for said in [
            "2 nodes have no Device object",
            "1 pods are not replayed and stay where they are, ml/dra first: they hold devices by DRA claims",
            "ml/mig first: they ask for MIG",
        ] {
            assert!(notes.contains(said), "{notes}");
        }
    }

    #[test]
    fn what_is_no_dump_says_what_is_expected() {
        assert!(dump(vec![]).unwrap_err().contains("holds no Node"));
        assert!(dump(vec![json!({"kind": "Secret"})]).unwrap_err().contains("items[0] is of kind \"Secret\""));
        assert!(dump(vec![json!({"kind": "Node", "metadata": 3})]).unwrap_err().contains("items[0] is no Node"));
    }
}

//! A cluster of one's own: `kubectl get nodes,pods,devices -A -o json`, as JSON or YAML, in one list or several.
//!
//! Where a node has no Device object, `allocatable` counts what its plugin offers. That may be each GPU several times, so the labels of
//! GPU feature discovery say how many GPUs there are.
//!
//! Pods that ask for GPUs are replayed, whichever scheduler placed them, and Baton's pods without GPUs; equal pods of one gang together. What Baton cannot replay stays
//! on its node and takes its CPU and memory; each such case is a note.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use jiff::Timestamp;
use serde_json::Value;

use baton_cluster::node::LightNode;
use baton_cluster::pod::LightPod;
use baton_contract::gang::{GangId, TopologySpec};
use baton_contract::inventory::Device;
use baton_contract::{DeviceType, GpuRequest, key};
use baton_decide::pod::Phase;
use baton_decide::world::{NodeFacts, PodFacts};

use crate::config::read_documents;

use super::input::InputError;
use super::own::MOST_GPUS;
use super::trace::{Span, Trace, TraceAsk, TraceGang, TraceMachine, WHOLE};

/// Labels that name the model of a node's GPUs, the first that is there counts.
const MODELS: [&str; 3] = ["nvidia.com/gpu.product", key::NODE_GPU_MODEL, key::MODEL];
/// Pods of this scheduler are replayed even without GPUs.
const OURS: &str = "baton-scheduler";
/// Memory of a GPU whose size is not known, for pods that ask for bytes of it.
const GPU_BYTES: i64 = 80 << 30;

/// Labels of GPU feature discovery: GPUs of a node, how often its plugin offers each, and by which means.
const COUNT: &str = "nvidia.com/gpu.count";
const REPLICAS: &str = "nvidia.com/gpu.replicas";
const STRATEGY: &str = "nvidia.com/gpu.sharing-strategy";
/// GPUs that are offered several times, where the plugin gives them a name of their own.
const SHARED: &str = "nvidia.com/gpu.shared";
/// By what pods of HAMi say which part of a GPU they want, and a node which GPUs it has.
const HAMI: [&str; 4] =
    ["nvidia.com/gpumem", "nvidia.com/gpumem-percentage", "nvidia.com/gpucores", "hami.io/node-nvidia-register"];
const EXPECTED: &str = "expected the output of `kubectl get nodes,pods,devices -A -o json` (or -o yaml)";

/// A node of the dump.
struct DumpNode {
    machine: TraceMachine,
    facts: NodeFacts,
    gpu_bytes: i64,
    /// How often its plugin offers each GPU.
    replicas: i64,
}

/// What is left out of the replay, with the first pod of each reason.
#[derive(Default)]
struct LeftOut(BTreeMap<&'static str, (usize, String)>);

impl LeftOut {
    fn note(&mut self, why: &'static str, pod: &PodFacts) {
        self.0.entry(why).or_insert_with(|| (0, pod.handoff.pod.key.to_string())).0 += 1;
    }
}

/// The objects of a dump.
#[derive(Default)]
struct DumpItems {
    nodes: Vec<LightNode>,
    devices: BTreeMap<String, Device>,
    pods: Vec<DumpPod>,
    /// Nodes where HAMi offers GPUs, or serves a pod.
    hami: BTreeSet<String>,
}

/// A pod of the dump.
struct DumpPod {
    pod: LightPod,
    end: Option<Timestamp>,
    /// It asks for parts of GPUs in HAMi's words.
    parts: bool,
}

impl DumpItems {
    fn of(items: Vec<Value>) -> Result<Self, String> {
        let mut found = Self::default();
        let mut seen = BTreeSet::new();
        for (at, item) in items.into_iter().enumerate() {
            let word = |path: &str| item.pointer(path).and_then(Value::as_str).unwrap_or_default().to_owned();
            let kind = word("/kind");
            let bad =
                |error: serde_json::Error| format!("items[{at}] is no {kind} that Kubernetes would print: {error}");
            // Lists of one cluster may overlap.
            if !seen.insert((kind.clone(), word("/metadata/namespace"), word("/metadata/name"))) {
                continue;
            }
            let parts = names_hami(&item);
            if parts {
                found.hami.insert(if kind == "Node" { word("/metadata/name") } else { word("/spec/nodeName") });
            }
            match kind.as_str() {
                "Node" => found.nodes.push(serde_json::from_value(item).map_err(bad)?),
                "Pod" => {
                    let end = ended(&item);
                    found.pods.push(DumpPod { pod: serde_json::from_value(item).map_err(bad)?, end, parts });
                }
                "Device" => {
                    let device = serde_json::from_value::<Device>(item).map_err(bad)?;
                    found.devices.insert(device.metadata.name.clone().unwrap_or_default(), device);
                }
                _ => return Err(format!("items[{at}] is of kind {kind:?}; expected Node, Pod and Device")),
            }
        }
        Ok(found)
    }
}

/// The pods of a dump, sorted into those that are replayed and those that are not.
#[derive(Default)]
struct ReplayedPods {
    pods: Vec<(TraceAsk, Span)>,
    gangs: BTreeMap<GangId, Vec<(TraceAsk, Span)>>,
    left_out: LeftOut,
    /// Those that are replayed with another part of a GPU than they have.
    parted: LeftOut,
}

impl ReplayedPods {
    fn enter(&mut self, DumpPod { pod, end, parts }: DumpPod, nodes: &mut [DumpNode]) {
        let facts = pod.facts();
        let ask = match request(&facts, nodes) {
            Ok(Some(ask)) => ask,
            Ok(None) => return stay(&facts, nodes),
            Err(why) => {
                self.left_out.note(why, &facts);
                return stay(&facts, nodes);
            }
        };
        if ask.gpus > 0 && parts {
            self.parted.note("ask for parts of GPUs in HAMi's words: they are replayed with whole GPUs", &facts);
        } else if ask.gpus > 0 && replicas(&facts, nodes) > 1 {
            self.parted.note("run on GPUs that are offered several times: they are replayed with parts", &facts);
        }
        let arrive = seconds(facts.handoff.created);
        let end = facts.handoff.deleting.as_ref().map(|deletion| deletion.at).or(end);
        let span = Span { arrive, end: end.map(|end| seconds(end).max(arrive)) };
        match gang(&facts) {
            Some((id, topology)) => {
                let gang = Some(TraceGang { members: 1, topology });
                self.gangs.entry(id).or_default().push((TraceAsk { gang, ..ask }, span));
            }
            None => self.pods.push((ask, span)),
        }
    }

    /// Puts them into a trace in the order in which they came, and notes what they lack there.
    fn enter_all(mut self, trace: &mut Trace) {
        for (id, members) in self.gangs {
            if let Some(gang) = together(&members) {
                self.pods.push(gang);
            } else {
                let why = "its pods differ, or one had ended when another came";
                trace.notes.push(format!("gang {id} is replayed pod by pod: {why}"));
                self.pods.extend(members.into_iter().map(|(ask, span)| (TraceAsk { gang: None, ..ask }, span)));
            }
        }
        self.pods.sort_by(|a, b| a.1.arrive.total_cmp(&b.1.arrive));
        for (ask, span) in self.pods {
            trace.add(ask, Some(span), 1);
        }
        for (why, (count, first)) in self.left_out.0 {
            trace.notes.push(format!("{count} pods are not replayed and stay where they are, {first} first: {why}"));
        }
        for (what, (count, first)) in self.parted.0 {
            trace.notes.push(format!("{count} pods, {first} first, {what}"));
        }
    }
}

/// Reads a dump.
pub fn read(path: &Path, name: String) -> Result<Trace, InputError> {
    let wrong = |problem: String| InputError::of(path, problem);
    let text = std::fs::read_to_string(path).map_err(|error| InputError::of(path, error))?;
    let mut items = Vec::new();
    let documents = read_documents(&text).map_err(|error| wrong(format!("{error}; {EXPECTED}")))?;
    documents.into_iter().for_each(|document| unpack(document, &mut items));
    let DumpItems { nodes, devices, pods, hami } = DumpItems::of(items).map_err(wrong)?;
    if nodes.is_empty() {
        return Err(wrong(format!("holds no Node; {EXPECTED}")));
    }
    let made = nodes.into_iter().map(|node| machine(node, &devices, &hami));
    let mut found = made.collect::<Result<Vec<DumpNode>, String>>().map_err(wrong)?;
    let mut trace = Trace::of(name, Vec::new());
    let without_devices =
        found.iter().filter(|node| !devices.contains_key(&node.machine.name) && node.machine.gpus > 0).count();
    if without_devices > 0 {
        trace.notes.push(format!(
            "{without_devices} nodes have no Device object: their GPUs are counted by allocatable and {COUNT}"
        ));
    }
    let mut replayed = ReplayedPods::default();
    pods.into_iter().for_each(|pod| replayed.enter(pod, &mut found));
    replayed.enter_all(&mut trace);
    trace.machines = found.into_iter().map(|node| node.machine).collect();
    Ok(trace)
}

/// The objects of a document: one, or those of a list, whose items need not name their kind.
fn unpack(mut document: Value, items: &mut Vec<Value>) {
    let kind = document["kind"].as_str().unwrap_or_default().to_owned();
    let Some((of, Value::Array(list))) = kind.strip_suffix("List").zip(document.get_mut("items").map(Value::take))
    else {
        return items.push(document);
    };
    for mut item in list {
        if item.is_object() && item["kind"].is_null() {
            item["kind"] = of.into();
        }
        unpack(item, items);
    }
}

fn names_hami(item: &Value) -> bool {
    let names =
        |object: Option<&Value>| HAMI.iter().any(|name| object.is_some_and(|object| object.get(name).is_some()));
    let containers = item.pointer("/spec/containers").and_then(Value::as_array);
    names(item.pointer("/metadata/annotations"))
        || containers.into_iter().flatten().any(|container| names(container.pointer("/resources/limits")))
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

/// GPUs of a node, and how often each is offered, where only `allocatable` and labels say it.
fn labelled(facts: &NodeFacts, hami: &BTreeSet<String>) -> Result<(i64, i64), String> {
    let own_name = facts.allocatable.scalar(SHARED);
    let offered = facts.allocatable.scalar(key::NVIDIA_GPU).saturating_add(own_name);
    if offered == 0 {
        return Ok((0, 1));
    }
    let name = &facts.name;
    let number = |label: &str| match facts.labels.get(label).map(|text| (text, text.parse::<u32>())) {
        None => Ok(None),
        Some((_, Ok(number))) => Ok(Some(i64::from(number))),
        Some((text, Err(_))) => Err(format!("node {name}: label {label} is {text:?}; expected a number")),
    };
    let product = facts.labels.get(MODELS[0]).map_or("", String::as_str);
    if product.contains("-MIG-") {
        return Err(format!(
            "node {name}: its {} are MIG devices ({product}), which are not replayed; leave the node out",
            key::NVIDIA_GPU
        ));
    }
    let (count, replicas) = (number(COUNT)?, number(REPLICAS)?.filter(|replicas| *replicas > 0));
    let strategy = facts.labels.get(STRATEGY).is_some_and(|strategy| strategy != "none");
    let by_words = own_name > 0 || strategy || product.ends_with("-SHARED");
    let each = replicas.unwrap_or(1);
    let gpus = count.map_or(offered / each, |count| count.min(offered));
    let unknown = count.is_none() && (hami.contains(&**name) || by_words && replicas.is_none());
    if unknown || gpus > i64::from(MOST_GPUS) {
        return Err(format!(
            "node {name} offers its GPUs several times, {offered} in all, and nothing says how many it has (up to {MOST_GPUS}): \
             add the label {COUNT}"
        ));
    }
    Ok((gpus, each))
}

fn machine(node: LightNode, devices: &BTreeMap<String, Device>, hami: &BTreeSet<String>) -> Result<DumpNode, String> {
    let facts = node.facts(key::NODE_LOCK);
    let device = devices.get(&*facts.name);
    let listed = device.iter().flat_map(|device| &device.spec.devices);
    let gpus: Vec<_> = listed
        .filter(|device| device.kind == DeviceType::Gpu && device.health && !device.resources.is_empty())
        .collect();
    let whole = |device: &&&baton_contract::inventory::DeviceInfo| device.resources.contains_key(key::GPU_CORE);
    let (count, replicas) = match device {
        Some(_) => (gpus.iter().filter(whole).count() as i64, 1),
        None => labelled(&facts, hami)?,
    };
    let labelled = MODELS.iter().find_map(|label| facts.labels.get(*label));
    let model =
        labelled.or_else(|| gpus.iter().find_map(|gpu| gpu.labels.get(key::MODEL))).cloned().unwrap_or_default();
    let bytes = gpus.iter().find_map(|gpu| gpu.resources.get(key::GPU_MEMORY)).map_or(GPU_BYTES, |bytes| bytes.value());
    let machine = TraceMachine {
        name: facts.name.to_string(),
        milli_cpu: facts.allocatable.milli_cpu,
        memory: facts.allocatable.memory,
        gpus: count.clamp(0, MOST_GPUS.into()) as u32,
        model,
        labels: facts.labels.clone(),
    };
    Ok(DumpNode { machine, facts, gpu_bytes: bytes.max(1), replicas })
}

/// How often each GPU is offered where the pod runs.
fn replicas(pod: &PodFacts, nodes: &[DumpNode]) -> i64 {
    let node = pod.handoff.node.as_deref().and_then(|name| nodes.iter().find(|node| &*node.facts.name == name));
    node.map_or(1, |node| node.replicas)
}

/// A pod that is not replayed takes its CPU and memory where it is.
fn stay(pod: &PodFacts, nodes: &mut [DumpNode]) {
    let Some(node) = pod.handoff.node.as_deref().filter(|_| !pod.handoff.phase.is_terminal()) else { return };
    if let Some(found) = nodes.iter_mut().find(|found| found.machine.name == node) {
        found.machine.milli_cpu = (found.machine.milli_cpu - pod.spec.requests.milli_cpu).max(0);
        found.machine.memory = (found.machine.memory - pod.spec.requests.memory).max(0);
    }
}

/// The gang that a pod names, and where it says that it is gathered. `None` where no other pod has to start with it.
fn gang(pod: &PodFacts) -> Option<(GangId, TopologySpec)> {
    let declared = pod.spec.gang.as_ref()?;
    let id = declared.scheduling_group.as_ref().or(declared.named.as_ref())?.gang.as_ref().ok()?;
    let of = &declared.koordinator;
    let topology = of.topology.as_ref().or(of.own_topology.as_ref()).map(|topology| (**topology).clone());
    of.min.or(declared.pod_group.min).is_none_or(|min| min > 1).then(|| (id.clone(), topology.unwrap_or_default()))
}

/// The members of a gang as one: equal pods, all of which were there at one time.
fn together(members: &[(TraceAsk, Span)]) -> Option<(TraceAsk, Span)> {
    let (first, _) = members.first()?;
    let arrive = members.iter().map(|(_, span)| span.arrive).fold(f64::MIN, f64::max);
    let ends = || members.iter().map(|(_, span)| span.end.unwrap_or(f64::MAX));
    let end = ends().fold(f64::MIN, f64::max);
    let whole = members.iter().all(|(ask, _)| ask == first) && ends().all(|end| end >= arrive);
    let gang = first.gang.clone().map(|gang| TraceGang { members: members.len() as u32, ..gang });
    whole.then(|| (TraceAsk { gang, ..first.clone() }, Span { arrive, end: (end < f64::MAX).then_some(end) }))
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
    if pod.spec.requests.scalar(SHARED) > 0 {
        return Err("they ask for nvidia.com/gpu.shared");
    }
    if wants.is_empty() && (&*pod.handoff.scheduler_name != OURS || pod.handoff.phase == Phase::Succeeded) {
        return Ok(None);
    }
    let (mut gpus, mut milli) = (0u32, 0);
    for want in &wants {
        let (count, part) = match want {
            GpuRequest::Whole { count } => (*count, 10 * (100 / replicas(pod, nodes)).max(1)),
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
    if gpus > MOST_GPUS {
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
        models if models.is_empty() => vec!["that their node selector names".to_owned()],
        models => models.into_iter().map(str::to_owned).collect(),
    };
    let requests = &pod.spec.requests;
    let (milli_cpu, memory) = (requests.milli_cpu.max(0), requests.memory.max(0));
    Ok(Some(TraceAsk { milli_cpu, memory, gpus, milli, models, gang: None }))
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
        text(&json!({"kind": "List", "items": items}).to_string())
    }

    fn text(text: &str) -> Result<Trace, String> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("dump.json");
        std::fs::write(&path, text).unwrap();
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
        assert_eq!(models, ["", "A10", "that their node selector names"].map(str::to_owned).into());
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
    fn the_pods_of_a_gang_are_replayed_together_where_they_are_alike() {
        let of = |gang: &str, min: &str| {
            let domain = "gang.scheduling.koordinator.sh";
            json!({"annotations": {format!("{domain}/name"): gang, format!("{domain}/min-available"): min,
                "baton.io/required-topology": "rack"}})
        };
        let small = json!({"containers": [{"name": "c", "resources": {"limits": {"nvidia.com/gpu": "1"}}}]});
        let mut a = node("a", "H100");
        a["metadata"]["labels"]["rack"] = "r1".into();
        let names = ["train-0", "train-1", "train-2"];
        let mut items: Vec<Value> = names.map(|name| pod(name, json!({}), of("train", "3"))).into();
        items.push(pod("mixed-0", json!({}), of("mixed", "2")));
        items.push(pod("mixed-1", small, of("mixed", "2")));
        items.push(pod("alone", json!({}), of("alone", "1")));
        items.push(a);
        let trace = dump(items).unwrap();
        assert_eq!(trace.machines[0].labels.get("rack").map(String::as_str), Some("r1"));
        let sizes: Vec<String> = trace.pods.iter().map(|pod| trace.asks[pod.ask].size()).collect();
        let gangs: Vec<_> = trace.asks.iter().filter_map(|ask| ask.gang.clone()).collect();
        assert_eq!((sizes.len(), gangs.len(), gangs[0].members), (4, 1, 3), "{sizes:?}");
        assert!(gangs[0].topology.required.contains("rack"));
        assert!(trace.notes.join(";").contains("gang ml/mixed is replayed pod by pod"), "{:?}", trace.notes);
    }

    #[test]
    fn what_is_no_dump_says_what_is_expected() {
        assert!(dump(vec![]).unwrap_err().contains("holds no Node"));
        assert!(dump(vec![json!({"kind": "Secret"})]).unwrap_err().contains("items[0] is of kind \"Secret\""));
        assert!(dump(vec![json!({"kind": "Node", "metadata": 3})]).unwrap_err().contains("items[0] is no Node"));
    }

    /// A node of 8 GPUs by its labels and what its plugin offers.
    fn offering(labels: Value, offered: Value) -> Value {
        let mut node = node("a", "T4");
        let parts = [("/metadata/labels", labels), ("/status/allocatable", offered)];
        for (path, more) in parts {
            let to = node.pointer_mut(path).unwrap().as_object_mut().unwrap();
            to.extend(more.as_object().unwrap().clone());
        }
        node
    }

    #[test]
    fn a_gpu_that_is_offered_several_times_is_one() {
        let gpu = |count: &str| json!({"nvidia.com/gpu": count});
        let count = |count: &str, replicas: &str| json!({COUNT: count, REPLICAS: replicas});
        let shared = || json!({MODELS[0]: "T4-SHARED"});
        let renamed = || json!({"nvidia.com/gpu": "0", SHARED: "32"});
        for (labels, offered, gpus) in [
            (json!({}), gpu("8"), Ok(8)),
            (count("8", "1"), gpu("8"), Ok(8)),
            (count("8", "1"), gpu("7"), Ok(7)),
            (count("8", "0"), gpu("8"), Ok(8)),
            (count("8", "4"), gpu("32"), Ok(8)),
            (json!({COUNT: "8", STRATEGY: "mps"}), gpu("32"), Ok(8)),
            (count("8", "4"), renamed(), Ok(8)),
            (json!({REPLICAS: "4"}), gpu("32"), Ok(8)),
            (count("8", "1"), gpu("80"), Ok(8)),
            (json!({}), gpu("200"), Err("node a offers its GPUs several times, 200 in all")),
            (count("200", "1"), gpu("200"), Err("node a offers its GPUs several times, 200 in all")),
            (shared(), gpu("32"), Err("node a offers its GPUs several times, 32 in all")),
            (json!({}), renamed(), Err("add the label nvidia.com/gpu.count")),
            (json!({STRATEGY: "time-slicing"}), gpu("32"), Err("node a")),
            (json!({STRATEGY: "none"}), gpu("8"), Ok(8)),
            (count("eight", "1"), gpu("8"), Err("node a: label nvidia.com/gpu.count is \"eight\"")),
            (
                json!({MODELS[0]: "A100-MIG-1g.5gb", COUNT: "56"}),
                gpu("56"),
                Err("node a: its nvidia.com/gpu are MIG devices"),
            ),
        ] {
            let found = dump(vec![offering(labels.clone(), offered.clone())]);
            match (found.map(|trace| trace.machines[0].gpus), gpus) {
                (Ok(found), Ok(gpus)) => assert_eq!(found, gpus, "{labels} {offered}"),
                (Err(found), Err(part)) => assert!(found.contains(part), "{labels} {offered}: {found}"),
                (found, _) => panic!("{labels} {offered}: {found:?}"),
            }
        }
    }

    #[test]
    fn pods_on_shared_gpus_are_replayed_with_their_part_or_a_note_says_with_what() {
        let on_a = || pod("p", json!({"nodeName": "a"}), json!({}));
        let sliced =
            dump(vec![offering(json!({COUNT: "8", REPLICAS: "4"}), json!({"nvidia.com/gpu": "32"})), on_a()]).unwrap();
        assert_eq!((sliced.asks[0].gpus, sliced.asks[0].milli), (2, 250));
        assert!(
            sliced.notes.join(";").contains("1 pods, ml/p first, run on GPUs that are offered several times"),
            "{:?}",
            sliced.notes
        );
        let mut hami = on_a();
        hami["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpumem"] = "8000".into();
        let many = || json!({"nvidia.com/gpu": "80"});
        let counted = dump(vec![offering(json!({COUNT: "8"}), many()), hami.clone()]).unwrap();
        assert_eq!((counted.machines[0].gpus, counted.asks[0].milli), (8, WHOLE));
        assert!(counted.notes.join(";").contains("ask for parts of GPUs in HAMi's words"), "{:?}", counted.notes);
        assert!(
            dump(vec![offering(json!({}), many()), hami]).unwrap_err().contains("node a offers its GPUs several times")
        );
        let mut registered = offering(json!({}), many());
        registered["metadata"]["annotations"] = json!({HAMI[3]: "[]"});
        assert!(dump(vec![registered]).unwrap_err().contains("node a offers its GPUs several times"));
    }

    #[test]
    fn every_form_in_which_kubectl_prints_a_cluster_is_read() {
        let (node, pod) = (|| node("a", "H100"), || pod("p", json!({}), json!({})));
        let list = |kind: &str, items: Value| json!({"apiVersion": "v1", "kind": kind, "items": items});
        let bare = |mut item: Value| {
            item.as_object_mut().unwrap().retain(|key, _| !matches!(key.as_str(), "kind" | "apiVersion"));
            item
        };
        let (nodes, pods) = (list("NodeList", json!([bare(node())])), list("PodList", json!([bare(pod())])));
        let (two, both) = (list("List", json!([node()])), list("List", json!([node(), pod()])));
        let yaml = |value: &Value| crate::config::print_yaml(value).unwrap();
        for dumped in [
            both.to_string(),
            format!("{two}{both}"),
            format!("{two:#}\n{pods:#}\n"),
            format!("{nodes}\n{pods}"),
            format!("{}\n{}", node(), pod()),
            list("List", json!([nodes, pods])).to_string(),
            yaml(&both),
            format!("---\n{}", yaml(&both)),
            format!("{}---\n{}", yaml(&nodes), yaml(&pods)),
            format!("{}{}", yaml(&two), yaml(&both)),
        ] {
            let trace = text(&dumped).unwrap_or_else(|error| panic!("{error}\n{dumped}"));
            assert_eq!((trace.machines.len(), trace.machines[0].gpus, trace.pods.len()), (1, 8, 1), "{dumped}");
        }
        assert!(text("apiVersion: v1\nkind: [\n").unwrap_err().contains("-o yaml"));
        assert!(text("{\"kind\": ").unwrap_err().contains("expected the output of"));
    }
}

//! Submits the pods, follows them until they are served, and gathers the three records that must agree.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use anyhow::bail;
use futures::{StreamExt, TryStreamExt};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::Api;
use kube::api::PostParams;
use kube::runtime::watcher;
use serde::Deserialize;
use tokio::sync::mpsc;

use super::args::ProgressOutput;
use super::cluster::{DemoCluster, SYSTEM};
use super::pods::{self, DemoPod, NAMESPACE, Needs};
use super::report::{DemoReport, DeviceIds, PodReport, overfull};
use super::timeline::{StoryLine, StoryStep, Timeline};
use crate::leader::LeaderClient;
use crate::manifests::Values;
use crate::say::amount;
use crate::view::{DeviceRow, NodesView, Rules, read_snapshot};
use baton_cluster::pod::LightPod;
use baton_contract::{PodKey, key};
use baton_decide::explain::QueueReport;
use baton_decide::pod::{HandoffPod, Phase};
use baton_runtime::clock;

/// Time for the pods of one stage.
const STAGE_LIMIT: Duration = Duration::from_secs(60);
/// Lines come from three sources, each of which may be late: they are held back for this long and printed in order.
const PATIENCE: Duration = Duration::from_millis(200);
/// Period of the reads of the kubelets' device managers.
const LOOK: Duration = Duration::from_millis(2);

pub struct StoryOutcome {
    pub report: DemoReport,
    /// The nodes' devices, and who holds them.
    pub devices: Vec<DeviceRow>,
}

enum WatchedChange {
    Node(String, Option<String>),
    Pod(Box<HandoffPod>),
}

struct Story {
    timeline: Timeline,
    pods: BTreeMap<PodKey, HandoffPod>,
    seen: mpsc::UnboundedReceiver<(Duration, WatchedChange)>,
    /// Pods whose answers are all printed.
    answered: BTreeSet<PodKey>,
}

pub async fn play(cluster: &mut DemoCluster, progress: ProgressOutput) -> anyhow::Result<StoryOutcome> {
    progress.heading("Pods: from the scheduler's choice to the devices in the container");
    let (sender, seen) = mpsc::unbounded_channel();
    let _watches = watch(cluster, &sender);
    let (timeline, pods) = (Timeline::default(), BTreeMap::new());
    let mut story = Story { timeline, pods, seen, answered: BTreeSet::new() };
    let mut violations = Vec::new();
    let mut submitted: Vec<String> = Vec::new();
    cluster.server.counts().reset();

    let inventory = cluster.inventory().await?;
    let room = inventory.values().fold(Needs { gpus: 0, nics: 0 }, |most, node| Needs {
        gpus: most.gpus.max(node.gpus),
        nics: most.nics.max(node.nics),
    });
    let (fits, too_large): (Vec<DemoPod>, Vec<DemoPod>) =
        pods::first().into_iter().partition(|pod| pod.needs.gpus <= room.gpus && pod.needs.nics <= room.nics);
    for pod in too_large {
        cluster.say(progress, &pod.name, &format!("left out: this machine has no room for {}", pod.what));
    }
    // One machine cannot hold them all at once: then each is served and deleted before the next comes.
    if cluster.nodes.len() > 1 {
        violations.extend(stage(cluster, &mut story, &fits, &mut submitted, progress).await?);
    } else {
        return one_by_one(cluster, story, fits, progress).await;
    }
    if let Some((node, room)) = emptiest(&story, &inventory) {
        let burst = pods::burst(&node, pods::BURST.min(room * 2));
        violations.extend(stage(cluster, &mut story, &burst, &mut submitted, progress).await?);
    }
    let mut records = StoryRecords::default();
    records.gather(cluster, &story, &submitted).await?;
    Ok(finish(cluster, &story, records, violations))
}

/// On one machine: serve, judge and delete each pod, then the next.
async fn one_by_one(
    cluster: &mut DemoCluster,
    mut story: Story,
    pods: Vec<DemoPod>,
    progress: ProgressOutput,
) -> anyhow::Result<StoryOutcome> {
    let mut violations = Vec::new();
    let mut records = StoryRecords::default();
    let node = cluster.nodes[0].name.clone();
    let gpus = cluster.inventory().await?.get(&node).map_or(0, |room| room.gpus);
    let burst = pods::burst(&node, pods::BURST.min(gpus * 2));
    let stages: Vec<Vec<DemoPod>> =
        pods.into_iter().map(|pod| vec![pod]).chain([burst]).filter(|s| !s.is_empty()).collect();
    let last = stages.len().saturating_sub(1);
    for (k, pods) in stages.into_iter().enumerate() {
        let mut submitted = Vec::new();
        violations.extend(stage(cluster, &mut story, &pods, &mut submitted, progress).await?);
        records.gather(cluster, &story, &submitted).await?;
        if k < last {
            delete(cluster, &mut story, &submitted, progress).await?;
        }
    }
    Ok(finish(cluster, &story, records, violations))
}

fn finish(cluster: &DemoCluster, story: &Story, records: StoryRecords, mut violations: Vec<String>) -> StoryOutcome {
    violations.extend(records.violations);
    let together = records.pods.iter().filter(|pod| pod.name == pods::TOGETHER);
    violations.extend(together.filter_map(|pod| apart(pod, &records.devices)));
    violations.extend(story.timeline.locked().map(|node| format!("node {node} is still locked at the end")));
    let report = DemoReport::new(records.pods, api_writes(cluster), violations);
    StoryOutcome { report, devices: records.devices }
}

/// What is wrong when the devices of a pod are not all below one PCIe switch, by the Device object.
fn apart(pod: &PodReport, devices: &[DeviceRow]) -> Option<String> {
    let ids: BTreeSet<&String> = pod.assigned.gpu.iter().chain(&pod.assigned.rdma).collect();
    let mine = devices.iter().filter(|device| device.node == pod.node && ids.contains(&device.id));
    let switches: BTreeSet<_> = mine.map(|device| device.label(key::PCIE_SWITCH)).collect();
    (switches.len() != 1)
        .then(|| format!("pod {}: its devices are below {} switches: {switches:?}", pod.name, switches.len()))
}

/// Creates the pods at once and follows them until each is served and its lock is gone.
async fn stage(
    cluster: &mut DemoCluster,
    story: &mut Story,
    pods: &[DemoPod],
    submitted: &mut Vec<String>,
    progress: ProgressOutput,
) -> anyhow::Result<Vec<String>> {
    let failed = follow(cluster, story, pods, submitted, progress).await;
    story.print_lines(Duration::MAX, progress);
    if let Some(burst) = story.burst(pods) {
        cluster.say(progress, "burst", &burst);
    }
    failed
}

async fn follow(
    cluster: &mut DemoCluster,
    story: &mut Story,
    pods: &[DemoPod],
    submitted: &mut Vec<String>,
    progress: ProgressOutput,
) -> anyhow::Result<Vec<String>> {
    let api: Api<Pod> = Api::namespaced(cluster.client.clone(), NAMESPACE);
    for pod in pods {
        let at = clock::mono().saturating_sub(cluster.start);
        story.timeline.keep([StoryLine::new(at, &pod.name, format!("submitted: {}", pod.what), StoryStep::Submitted)]);
        api.create(&PostParams::default(), &pod.pod).await?;
        submitted.push(pod.name.clone());
    }
    let wanted: Vec<PodKey> = pods.iter().map(|pod| PodKey::new(NAMESPACE, &pod.name)).collect();
    let deadline = clock::mono() + STAGE_LIMIT;
    loop {
        cluster.check_daemons()?;
        story.look(cluster, progress).await;
        let missing: Vec<&PodKey> = wanted.iter().filter(|pod| !story.served(pod)).collect();
        if missing.is_empty() {
            return Ok(Vec::new());
        }
        if missing.iter().all(|pod| story.ended(pod)) {
            let mut failed = Vec::new();
            for pod in missing {
                let said = api.get(&pod.name).await?.status.and_then(|status| status.message).unwrap_or_default();
                failed.push(format!("pod {} ended without being served: {said}", pod.name));
            }
            return Ok(failed);
        }
        if clock::mono() > deadline {
            progress.line(format!("The daemons' last lines:\n{}", cluster.last_lines(12)));
            return Ok(missing.into_iter().map(|pod| story.unserved(pod)).collect());
        }
    }
}

/// Deletes pods and waits until they are gone.
async fn delete(
    cluster: &mut DemoCluster,
    story: &mut Story,
    names: &[String],
    progress: ProgressOutput,
) -> anyhow::Result<()> {
    let api: Api<Pod> = Api::namespaced(cluster.client.clone(), NAMESPACE);
    for name in names {
        let params = kube::api::DeleteParams { grace_period_seconds: Some(0), ..kube::api::DeleteParams::default() };
        api.delete(name, &params).await?;
    }
    let deadline = clock::mono() + STAGE_LIMIT;
    for name in names {
        while api.get_opt(name).await?.is_some() && clock::mono() < deadline {
            story.look(cluster, progress).await;
        }
    }
    Ok(())
}

impl Story {
    /// Takes in what the watches brought and what the kubelets hold, for a moment.
    async fn look(&mut self, cluster: &DemoCluster, progress: ProgressOutput) {
        let mut next = tokio::time::timeout(LOOK, self.seen.recv()).await.ok().flatten();
        while let Some((at, seen)) = next {
            let at = at.saturating_sub(cluster.start);
            let lines = match seen {
                WatchedChange::Node(name, lock) => self.timeline.node(at, &name, lock.as_deref()),
                WatchedChange::Pod(pod) => {
                    let lines = self.timeline.pod(at, &pod);
                    self.pods.insert(pod.pod.key.clone(), *pod);
                    lines
                }
            };
            self.timeline.keep(lines);
            next = self.seen.try_recv().ok();
        }
        // After what the watches brought: of a pod that is not known to be bound the kubelets are not asked.
        let lines = self.answers(cluster);
        self.timeline.keep(lines);
        self.print_lines(clock::mono().saturating_sub(cluster.start).saturating_sub(PATIENCE), progress);
    }

    /// Prints what happened up to `until`.
    fn print_lines(&mut self, until: Duration, progress: ProgressOutput) {
        let shown = |line: &StoryLine| progress.verbose || !pods::of_burst(&line.subject);
        self.timeline.due(until).into_iter().filter(shown).for_each(|line| progress.line(line));
    }

    /// The burst among these pods in one line: how many were served, and how long they held the node's lock.
    fn burst(&self, pods: &[DemoPod]) -> Option<String> {
        let burst = pods.iter().filter(|pod| pods::of_burst(&pod.name)).map(|pod| PodKey::new(NAMESPACE, &pod.name));
        let burst: Vec<PodKey> = burst.collect();
        let held = burst.iter().filter(|pod| self.served(pod)).filter_map(|pod| self.timeline.held(pod));
        let held: Vec<f64> = held.map(|held| held.as_secs_f64() * 1e3).collect();
        let least = held.iter().copied().reduce(f64::min)?;
        let most = held.iter().copied().reduce(f64::max)?;
        let (served, node) = (amount(held.len(), "pod"), self.pods.get(burst.first()?)?.node.as_deref()?);
        Some(format!(
            "{served} of {} served on {node}, half a GPU each; a lock was held {least:.1} to {most:.1} ms",
            burst.len()
        ))
    }

    /// Returns what the kubelets' device managers got since the last call.
    fn answers(&mut self, cluster: &DemoCluster) -> Vec<StoryLine> {
        let mut lines = Vec::new();
        let waits = |pod: &&HandoffPod| pod.is_live() && !self.answered.contains(&pod.pod.key);
        let waiting: Vec<HandoffPod> = self.pods.values().filter(waits).cloned().collect();
        if waiting.is_empty() {
            return lines;
        }
        let views: BTreeMap<&str, _> =
            cluster.nodes.iter().map(|node| (node.name.as_str(), (&node.kubelet, node.kubelet.view()))).collect();
        for pod in waiting {
            let Some((kubelet, view)) = pod.node.as_deref().and_then(|node| views.get(node)) else { continue };
            let Some(view) = view.get(&pod.pod.key.to_string()) else { continue };
            let mut expected = 0;
            let mut answered = 0;
            for call in pod.expected_calls(|_| true) {
                expected += 1;
                let container = view.containers.get(&*call.container.name);
                let Some(ids) = container.and_then(|container| container.devices.get(call.resource)) else { continue };
                answered += 1;
                let name = &call.container.name;
                let at = kubelet.answered_at(&view.uid, name, call.resource).unwrap_or_else(clock::mono);
                let at = at.saturating_sub(cluster.start);
                lines.extend(self.timeline.answered(at, &pod.pod.key, name, call.resource, ids.len()));
            }
            if expected == answered {
                self.answered.insert(pod.pod.key.clone());
            }
        }
        lines
    }

    /// Runs, was answered, and its lock is gone.
    fn served(&self, pod: &PodKey) -> bool {
        let runs = self.pods.get(pod).is_some_and(|pod| pod.phase == Phase::Running);
        runs && self.answered.contains(pod) && self.timeline.held(pod).is_some()
    }

    fn ended(&self, pod: &PodKey) -> bool {
        self.pods.get(pod).is_some_and(|pod| pod.phase.is_terminal())
    }

    fn unserved(&self, key: &PodKey) -> String {
        let limit = STAGE_LIMIT.as_secs();
        let Some(pod) = self.pods.get(key) else { return format!("pod {} was not seen in {limit} s", key.name) };
        let node = pod.node.as_deref().map_or_else(|| "not bound".to_owned(), |node| format!("bound to {node}"));
        let answered = if self.answered.contains(key) { "answered" } else { "not answered" };
        let lock = if self.timeline.held(key).is_some() { "lock released" } else { "lock not seen released" };
        format!("pod {} was not served in {limit} s: {node}, {:?}, {answered}, {lock}", key.name, pod.phase)
    }
}

/// The records of pods that were served.
#[derive(Default)]
struct StoryRecords {
    pods: Vec<PodReport>,
    devices: Vec<DeviceRow>,
    violations: Vec<String>,
}

impl StoryRecords {
    async fn gather(&mut self, cluster: &DemoCluster, story: &Story, names: &[String]) -> anyhow::Result<()> {
        let mut ledgers = BTreeMap::new();
        for node in &cluster.nodes {
            let daemon = LeaderClient::of_node(cluster.client.clone(), SYSTEM, &node.name, None).await?;
            ledgers.insert(node.name.as_str(), by_pod(daemon.get("/ledger").await?)?);
        }
        for name in names {
            let key = PodKey::new(NAMESPACE, name);
            let Some(pod) = story.pods.get(&key) else {
                self.violations.push(format!("pod {name} was never seen"));
                continue;
            };
            let node = pod.node.as_deref().unwrap_or_default();
            let annotation = pod.assignment.device_allocated.as_deref().unwrap_or_default();
            let assigned = DeviceIds::of_annotation(annotation).unwrap_or_else(|error| {
                self.violations.push(format!("pod {name}: {error}"));
                DeviceIds::default()
            });
            let mut kubelet = DeviceIds::default();
            if let Some(found) = cluster.nodes.iter().find(|found| found.name == node)
                && let Some(view) = found.kubelet.view().get(&key.to_string())
            {
                let mut started = DeviceIds::default();
                for container in view.containers.values() {
                    for (resource, ids) in &container.devices {
                        for id in ids {
                            kubelet.add(resource, id);
                        }
                    }
                    let names = container.injected.iter().flat_map(|injected| &injected.cdi_devices);
                    for (kind, id) in names.filter_map(|name| name.rsplit_once('=')) {
                        started.add(if kind.ends_with("/rdma") { key::RDMA } else { key::NVIDIA_GPU }, id);
                    }
                }
                if started != assigned {
                    let (assigned, started) = (super::report::list(&assigned), super::report::list(&started));
                    self.violations.push(format!("pod {name}: assigned {assigned}, started with {started}"));
                }
            }
            let ledger = ledgers.get(node).and_then(|pods| pods.get(pod.pod.uid.as_str())).cloned().unwrap_or_default();
            let lock_held_ms = story.timeline.held(&key).map(|held| (held.as_secs_f64() * 1e6).round() / 1e3);
            self.pods.push(PodReport {
                name: name.clone(),
                node: node.to_owned(),
                assigned,
                kubelet,
                ledger,
                lock_held_ms,
            });
        }
        // On one machine pods come one after the other: only those of this stage are there together.
        let snapshot = read_snapshot(cluster.client.clone(), &Values::default().namespace).await?;
        self.devices = NodesView::of(&snapshot, &Rules::default(), &QueueReport::default()).devices;
        self.violations.extend(overfull(&self.devices));
        Ok(())
    }
}

/// Requests that lock, bind and unlock: writes of Nodes and Pods that are no status, and Bindings. The labels that the node
/// daemons write at their start came before the counters were reset.
fn api_writes(cluster: &DemoCluster) -> u64 {
    cluster.server.counts().sum(|counted| {
        let write = matches!(counted.verb.as_str(), "patch" | "update");
        let object = matches!(counted.resource.as_str(), "nodes" | "pods") && counted.subresource.is_empty();
        let binding = counted.resource == "pods" && counted.subresource == "binding" && counted.verb == "create";
        (object && write) || binding
    })
}

/// The node with the most GPUs free of any pod, and how many those are.
fn emptiest(story: &Story, inventory: &BTreeMap<String, Needs>) -> Option<(String, usize)> {
    let used = |node: &str| -> usize {
        let here = story.pods.values().filter(|pod| pod.is_live() && pod.node.as_deref() == Some(node));
        let texts = here.filter_map(|pod| pod.assignment.device_allocated.as_deref());
        let devices = texts.filter_map(|text| DeviceIds::of_annotation(text).ok()).flat_map(|devices| devices.gpu);
        devices.collect::<BTreeSet<_>>().len()
    };
    let free = inventory.iter().map(|(node, room)| (room.gpus.saturating_sub(used(node)), node));
    free.max().filter(|(free, _)| *free > 0).map(|(free, node)| (node.clone(), free))
}

/// Watches of Nodes and Pods into `sender`, with the time of arrival.
fn watch(cluster: &DemoCluster, sender: &mpsc::UnboundedSender<(Duration, WatchedChange)>) -> tokio::task::JoinSet<()> {
    let mut tasks = tokio::task::JoinSet::new();
    let nodes = watcher(Api::<Node>::all(cluster.client.clone()), watcher::Config::default());
    let to = sender.clone();
    tasks.spawn(async move {
        let mut nodes = std::pin::pin!(nodes.into_stream());
        while let Some(event) = nodes.next().await {
            if let Ok(watcher::Event::Apply(node) | watcher::Event::InitApply(node)) = event {
                let lock = node.metadata.annotations.and_then(|mut map| map.remove(key::NODE_LOCK));
                let seen = WatchedChange::Node(node.metadata.name.unwrap_or_default(), lock);
                if to.send((clock::mono(), seen)).is_err() {
                    return;
                }
            }
        }
    });
    let pods = watcher(Api::<LightPod>::namespaced(cluster.client.clone(), NAMESPACE), watcher::Config::default());
    let to = sender.clone();
    tasks.spawn(async move {
        let mut pods = std::pin::pin!(pods.into_stream());
        while let Some(event) = pods.next().await {
            if let Ok(watcher::Event::Apply(pod) | watcher::Event::InitApply(pod)) = event
                && to.send((clock::mono(), WatchedChange::Pod(Box::new(pod.handoff())))).is_err()
            {
                return;
            }
        }
    });
    tasks
}

/// One line of the node daemon's `/ledger`, as far as the demo compares it.
#[derive(Debug, Deserialize)]
struct ServedPod {
    uid: String,
    /// Devices that were served, by type.
    served: BTreeMap<String, Vec<String>>,
}

fn by_pod(lines: Vec<ServedPod>) -> anyhow::Result<BTreeMap<String, DeviceIds>> {
    let mut pods: BTreeMap<String, DeviceIds> = BTreeMap::new();
    for line in lines {
        let devices = pods.entry(line.uid).or_default();
        for (kind, ids) in line.served {
            match kind.as_str() {
                "gpu" => devices.gpu.extend(ids),
                "rdma" => devices.rdma.extend(ids),
                other => bail!("device type {other:?} is not known"),
            }
        }
    }
    Ok(pods)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_containers_of_a_pod_are_put_together() {
        let body = r#"[{"namespace":"d","pod":"p","uid":"u","container":"a","resource":"nvidia.com/gpu","ids":["GPU-b"],"served":{"gpu":["GPU-a"]}},
            {"namespace":"d","pod":"p","uid":"u","container":"b","resource":"koordinator.sh/rdma","ids":["x::1"],"served":{"rdma":["0000:3c:00.0"]}}]"#;
        let pods = by_pod(serde_json::from_str(body).unwrap()).unwrap();
        assert_eq!(super::super::report::list(&pods["u"]), "GPU-a 0000:3c:00.0");
    }
}

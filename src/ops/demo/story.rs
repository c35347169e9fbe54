//! Submits the pods, follows them until they are served, and gathers the three records that must agree.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use anyhow::bail;
use futures::{StreamExt, TryStreamExt};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::Api;
use kube::api::{DeleteParams, PostParams};
use kube::runtime::watcher;
use serde::Deserialize;
use tokio::sync::mpsc;

use super::args::ProgressOutput;
use super::cluster::{DemoCluster, SYSTEM};
use super::pods::{self, DemoPod, NAMESPACE, Needs};
use super::report::{DemoReport, DeviceIds, PodReport, list, overfull};
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
    /// Of those that were served.
    reports: Vec<PodReport>,
    devices: Vec<DeviceRow>,
    violations: Vec<String>,
    timeline: Timeline,
    pods: BTreeMap<PodKey, HandoffPod>,
    seen: mpsc::UnboundedReceiver<(Duration, WatchedChange)>,
    /// Pods whose answers are all printed.
    answered: BTreeSet<PodKey>,
}

pub async fn play(cluster: &mut DemoCluster) -> anyhow::Result<StoryOutcome> {
    cluster.progress.heading("Pods: from the scheduler's choice to the devices in the container");
    let (sender, seen) = mpsc::unbounded_channel();
    let _watches = watch(cluster, &sender);
    let (reports, devices, violations) = (Vec::new(), Vec::new(), Vec::new());
    let (timeline, pods) = (Timeline::default(), BTreeMap::new());
    let mut story = Story { reports, devices, violations, timeline, pods, seen, answered: BTreeSet::new() };
    cluster.server.counts().reset();

    let inventory = cluster.inventory().await?;
    let room = inventory.values().fold(Needs { gpus: 0, nics: 0 }, |most, node| Needs {
        gpus: most.gpus.max(node.gpus),
        nics: most.nics.max(node.nics),
    });
    let (mut fits, too_large): (Vec<DemoPod>, Vec<DemoPod>) =
        pods::first().into_iter().partition(|pod| pod.needs.gpus <= room.gpus && pod.needs.nics <= room.nics);
    for pod in too_large {
        cluster.say(&pod.name, &format!("left out: this machine has no room for {}", pod.what));
    }
    if cluster.nodes.len() > 1 {
        stage(cluster, &mut story, &fits).await?;
        if let Some((node, room)) = emptiest(&story, &inventory) {
            let burst = pods::burst(&node, pods::BURST.min(room * 2));
            stage(cluster, &mut story, &burst).await?;
            fits.extend(burst);
        }
        story.gather(cluster, &fits).await?;
    } else {
        one_by_one(cluster, &mut story, fits).await?;
    }
    Ok(finish(cluster, story))
}

/// One machine cannot hold them all at once: serve, judge and delete each pod, then the next.
async fn one_by_one(cluster: &mut DemoCluster, story: &mut Story, pods: Vec<DemoPod>) -> anyhow::Result<()> {
    let node = cluster.nodes[0].name.clone();
    let gpus = cluster.inventory().await?.get(&node).map_or(0, |room| room.gpus);
    let burst = pods::burst(&node, pods::BURST.min(gpus * 2));
    let stages: Vec<Vec<DemoPod>> =
        pods.into_iter().map(|pod| vec![pod]).chain([burst]).filter(|s| !s.is_empty()).collect();
    let last = stages.len().saturating_sub(1);
    for (k, pods) in stages.into_iter().enumerate() {
        stage(cluster, story, &pods).await?;
        story.gather(cluster, &pods).await?;
        if k < last {
            delete(cluster, story, &pods).await?;
        }
    }
    Ok(())
}

fn finish(cluster: &DemoCluster, story: Story) -> StoryOutcome {
    let Story { reports, devices, mut violations, timeline, .. } = story;
    let together = reports.iter().filter(|pod| pod.name == pods::TOGETHER);
    violations.extend(together.filter_map(|pod| apart(pod, &devices)));
    violations.extend(timeline.locked().map(|node| format!("node {node} is still locked at the end")));
    StoryOutcome { report: DemoReport::new(reports, api_writes(cluster), violations), devices }
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
async fn stage(cluster: &mut DemoCluster, story: &mut Story, pods: &[DemoPod]) -> anyhow::Result<()> {
    let followed = follow(cluster, story, pods).await;
    story.print_lines(Duration::MAX, cluster.progress);
    if let Some(burst) = story.burst(pods) {
        cluster.say("burst", &burst);
    }
    followed
}

async fn follow(cluster: &mut DemoCluster, story: &mut Story, pods: &[DemoPod]) -> anyhow::Result<()> {
    let api: Api<Pod> = Api::namespaced(cluster.client.clone(), NAMESPACE);
    for pod in pods {
        let at = clock::mono().saturating_sub(cluster.start);
        story.timeline.keep([StoryLine::new(at, &pod.name, format!("submitted: {}", pod.what), StoryStep::Submitted)]);
        api.create(&PostParams::default(), &pod.pod).await?;
    }
    let wanted: Vec<PodKey> = pods.iter().map(|pod| PodKey::new(NAMESPACE, &pod.name)).collect();
    let deadline = clock::mono() + STAGE_LIMIT;
    loop {
        cluster.check_daemons()?;
        story.look(cluster).await;
        let missing: Vec<&PodKey> = wanted.iter().filter(|pod| !story.served(pod)).collect();
        if missing.is_empty() {
            return Ok(());
        }
        if missing.iter().all(|pod| story.ended(pod)) {
            for pod in missing {
                let said = api.get(&pod.name).await?.status.and_then(|status| status.message).unwrap_or_default();
                story.violations.push(format!("pod {} ended without being served: {said}", pod.name));
            }
            return Ok(());
        }
        if clock::mono() > deadline {
            cluster.progress.line(format!("The daemons' last lines:\n{}", cluster.last_lines(12)));
            let unserved: Vec<String> = missing.into_iter().map(|pod| story.unserved(pod)).collect();
            story.violations.extend(unserved);
            return Ok(());
        }
    }
}

/// Deletes pods and waits until they are gone.
async fn delete(cluster: &DemoCluster, story: &mut Story, pods: &[DemoPod]) -> anyhow::Result<()> {
    let api: Api<Pod> = Api::namespaced(cluster.client.clone(), NAMESPACE);
    for pod in pods {
        api.delete(&pod.name, &DeleteParams::default().grace_period(0)).await?;
    }
    let deadline = clock::mono() + STAGE_LIMIT;
    for pod in pods {
        while api.get_opt(&pod.name).await?.is_some() && clock::mono() < deadline {
            story.look(cluster).await;
        }
    }
    Ok(())
}

impl Story {
    /// Takes in what the watches brought and what the kubelets hold, for a moment.
    async fn look(&mut self, cluster: &DemoCluster) {
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
        self.print_lines(clock::mono().saturating_sub(cluster.start).saturating_sub(PATIENCE), cluster.progress);
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

    /// Reads the three records of these pods.
    async fn gather(&mut self, cluster: &DemoCluster, pods: &[DemoPod]) -> anyhow::Result<()> {
        let mut ledgers = BTreeMap::new();
        for node in &cluster.nodes {
            let daemon = LeaderClient::of_node(cluster.client.clone(), SYSTEM, &node.name, None).await?;
            ledgers.insert(node.name.as_str(), by_pod(daemon.get("/ledger").await?)?);
        }
        for DemoPod { name, .. } in pods {
            let key = PodKey::new(NAMESPACE, name);
            let Some(pod) = self.pods.get(&key) else {
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
                    let (assigned, started) = (list(&assigned), list(&started));
                    self.violations.push(format!("pod {name}: assigned {assigned}, started with {started}"));
                }
            }
            let ledger = ledgers.get(node).and_then(|pods| pods.get(pod.pod.uid.as_str())).cloned().unwrap_or_default();
            let lock_held_ms = self.timeline.held(&key).map(|held| (held.as_secs_f64() * 1e6).round() / 1e3);
            self.reports.push(PodReport {
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

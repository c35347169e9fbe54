//! How pods leave a node, held to 19 timelines of a real kubelet: the same steps, at the recorded distances in scaled time; the
//! same chains of API events, calls, PodResources, checkpoint entries, cgroups and processes.

use baton::sim::kubelet::{CgroupLayout, STOP_SECONDS};
use futures::{FutureExt, StreamExt};
use kube::Api;
use kube::api::{DeleteParams, EvictParams, Patch, PatchParams, PostParams};

use super::cluster::Cluster;
use super::observer::{GPU, Observer, gone_status};
use super::prelude::*;
use super::timeline::{self, Chains, Done, LEFT_OUT, LINES_LEFT_OUT, Timeline, chains};
use super::waiting::wait;

/// Real seconds for each recorded one. A busy machine is late by so many real seconds: what differs is played again with more of
/// them, and a simulated kubelet that does differ does so at both.
const SCALES: [f64; 2] = [0.15, 1.0];
/// The recorder's period.
const SAMPLED: Duration = Duration::from_millis(100);
/// Longer pauses between two steps say nothing: the recorder waited for a person or for its own time limit.
const LONGEST_PAUSE: f64 = 13.0;
/// What was seen before a step in the recording must be seen before it here; closer than this it has no order.
const SEEN_BEFORE: f64 = 0.15;
/// Longest wait for what comes before a step, or at the end, in recorded seconds.
const DEADLINE: Duration = Duration::from_secs(80);
/// Scenarios at a time.
const AT_ONCE: usize = 6;

/// Beside what [`LEFT_OUT`] names.
const NOT_DRIVEN: [&str; 4] = [
    "preStop hooks and each container's own stop time: a pod has one stop time, which is longer than its grace where theirs are",
    "hostPID, hostNetwork and memory volumes are written into the pod; the simulated kubelet does nothing with them",
    "which of several free ids is taken: the plugin prefers the recorded one",
    "cgroups: the number of pids, and the child cgroups of containers",
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pods_leave_as_recorded() {
    let only = std::env::var("BATON_SCENARIO").ok();
    let timelines: Vec<Timeline> = timeline::read()
        .into_iter()
        .filter(|timeline| only.as_ref().is_none_or(|only| timeline.scenario == *only))
        .collect();
    assert!(only.is_some() || timelines.len() == 19, "the recording has 19 scenarios");
    let played = timelines.into_iter().enumerate().map(|(number, timeline)| async move {
        let mut differences = Vec::new();
        for scale in SCALES {
            let playing = std::panic::AssertUnwindSafe(play(number, &timeline, scale)).catch_unwind().await;
            differences = playing.unwrap_or_else(|_| vec!["it panicked".to_owned()]);
            if differences.is_empty() {
                break;
            }
            println!("{} at {scale}:\n    {}", timeline.scenario, differences.join("\n    "));
        }
        (timeline.scenario, differences)
    });
    let results: Vec<_> = futures::stream::iter(played).buffer_unordered(AT_ONCE).collect().await;
    let mut failed = Vec::new();
    for (scenario, differences) in results {
        println!("{scenario}: {}", if differences.is_empty() { "as recorded" } else { "DIFFERS" });
        if !differences.is_empty() {
            failed.push(format!("{scenario}:\n    {}", differences.join("\n    ")));
        }
    }
    for (what, why) in LEFT_OUT {
        println!("left out: {what}: {why}");
    }
    for (scenario, what, name, is, why) in LINES_LEFT_OUT {
        println!("left out of {scenario}: {what} {name} {is}: {why}");
    }
    NOT_DRIVEN.iter().for_each(|what| println!("left out: {what}"));
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

/// What was done.
#[derive(Debug, Clone, PartialEq)]
enum Act {
    Create(String),
    Delete(String, Option<u32>),
    Evict(String),
    SetPhase(String),
    KubeletStops,
    KubeletStarts,
    RuntimeStops,
    RuntimeStarts,
    CutOff,
    ComesBack,
    Thaw(String),
    Nothing,
}

impl Act {
    /// The pod it is done to; none: it is done to the node.
    fn to_whom(&self) -> Option<String> {
        match self {
            Self::Create(name)
            | Self::Delete(name, _)
            | Self::Evict(name)
            | Self::SetPhase(name)
            | Self::Thaw(name) => Some(name.clone()),
            _ => None,
        }
    }
}

/// The steps with their times. The recorder did not note that it made pods, nor how it cleaned up; their events say so.
fn acts(timeline: &Timeline) -> Vec<(f64, Act)> {
    let mut acts: Vec<(f64, Act)> = Vec::new();
    let mut asked = std::collections::BTreeSet::new();
    let mut made = std::collections::BTreeSet::new();
    for line in &timeline.lines {
        let name = line.name.clone();
        let last = |text: &str| text.rsplit(' ').next().unwrap().to_owned();
        if line.what == "step" {
            let is = line.is.as_str();
            let act = match is {
                "stop kubelet" => Act::KubeletStops,
                "start kubelet" => Act::KubeletStarts,
                "stop containerd" => Act::RuntimeStops,
                "start containerd" | "containerd restarted" => Act::RuntimeStarts,
                "cut off" => Act::CutOff,
                "comes back" => Act::ComesBack,
                _ if is.starts_with("force delete") => Act::Delete(last(is), Some(0)),
                _ if is.starts_with("delete") => Act::Delete(last(is), None),
                _ if is.starts_with("evict") => Act::Evict(last(is)),
                _ if is.starts_with("patch") => Act::SetPhase(last(is)),
                _ if is.starts_with("thaw") => Act::Thaw(last(is)),
                "API server ready" | "successor" => Act::Nothing,
                other => panic!("an unknown step: {other}"),
            };
            if let Act::Delete(name, _) | Act::Evict(name) = &act {
                asked.insert(name.clone());
            }
            acts.push((line.at, act));
        } else if line.what == "api" && line.is == "ADDED Pending" && made.insert(name.clone()) {
            // Bound while the node was cut off: its event came with the list.
            match acts.iter().position(|(_, act)| *act == Act::ComesBack) {
                Some(at) => acts.insert(at, (acts[at].0 - 1.0, Act::Create(name))),
                None => acts.push((line.at - 0.05, Act::Create(name))),
            }
        } else if line.what == "api" && line.is.contains("deleting(") && asked.insert(name.clone()) {
            acts.push((line.at - 0.02, Act::Delete(name, Some(1))));
        }
    }
    if timeline.scenario == "runtime-restarts" {
        // The step was noted when it was done.
        acts.push((2.1, Act::RuntimeStops));
    }
    acts.sort_by(|a, b| a.0.total_cmp(&b.0));
    acts
}

/// A pod of the recorder.
fn pod(scenario: &str, name: &str) -> Value {
    let container = |name: &str, gpus: u32, command: &[&str]| {
        let limits = if gpus == 0 { json!({}) } else { json!({GPU: gpus.to_string()}) };
        json!({"name": name, "image": "pause", "command": command, "resources": {"limits": limits}})
    };
    let (containers, policy) = match (scenario, name) {
        ("force-delete-three-containers", _) => {
            (vec![container("a", 1, &[]), container("b", 1, &[]), container("plain", 0, &[])], "Never")
        }
        (_, "self") => (vec![container("main", 1, &["sleep", "3"])], "Never"),
        (_, "two") => (vec![container("main", 1, &["sleep", "3"]), container("side", 0, &["sleep", "5"])], "OnFailure"),
        _ => (vec![container("main", 1, &[])], "Never"),
    };
    let mut spec = json!({"nodeName": "node-a", "restartPolicy": policy, "containers": containers});
    match name {
        "d" => spec["activeDeadlineSeconds"] = json!(3),
        "h" => {
            spec["hostPID"] = json!(true);
            spec["hostNetwork"] = json!(true);
        }
        "v" => spec["volumes"] = json!([{"name": "m", "emptyDir": {"medium": "Memory"}}]),
        _ => {}
    }
    json!({"metadata": {"name": name, "annotations": {STOP_SECONDS: "12"}}, "spec": spec})
}

struct World {
    scale: f64,
    kubelet: Arc<Kubelet>,
    observer: Observer,
    pods: Api<Pod>,
    cut: watch::Sender<bool>,
    uids: BTreeMap<String, String>,
    _cluster: Cluster,
    _dir: tempfile::TempDir,
}

/// Plays a scenario; gives the differences.
async fn play(number: usize, timeline: &Timeline, scale: f64) -> Vec<String> {
    let recorded = chains(&timeline.lines);
    let mut world = World::start(number, timeline, &recorded, scale).await;
    let mut done: Vec<Done> = Vec::new();
    for (at, act) in acts(timeline) {
        if let Some((_, before, since)) = done.last() {
            let due = since + (at - before).min(LONGEST_PAUSE) * scale;
            let left = due - world.observer.notes.now();
            tokio::time::sleep(Duration::from_secs_f64(left.max(0.0))).await;
        }
        let missing = world.until_seen(&recorded, at - SEEN_BEFORE).await;
        if !missing.is_empty() {
            return vec![format!("before {act:?}:\n      {}", missing.join("\n      "))];
        }
        done.push((act.to_whom(), at, world.observer.notes.now()));
        world.act(&timeline.scenario, act).await;
    }
    let missing = world.until_seen(&recorded, f64::INFINITY).await;
    let simulated = chains(&world.observer.notes.lines());
    let mut found: Vec<String> = missing.into_iter().map(|what| format!("in the end: {what}")).collect();
    found.extend(timeline::differences(&recorded, &simulated, &done, scale));
    let left_behind = world.observer.left_behind.lock().unwrap().clone();
    let forced = |name: &String| acts(timeline).iter().any(|(_, act)| *act == Act::Delete(name.clone(), Some(0)));
    found.extend(
        left_behind
            .iter()
            .filter(|name| !forced(name))
            .map(|name| format!("{name}: its cgroup was there when its normal deletion ended")),
    );
    world.kubelet.stop().await;
    found
}

impl World {
    async fn start(number: usize, timeline: &Timeline, recorded: &Chains, scale: f64) -> Self {
        let dir = crate::directory::directory();
        let cluster = Cluster::start().await;
        let mut options = KubeletOptions::new("node-a", dir.path().join("k"), cluster.client());
        options.set_machine(&dir.path().join("sys"), &dir.path().join("proc"));
        let layouts = [CgroupLayout::V2, CgroupLayout::V2Systemd, CgroupLayout::V1];
        options.cgroup_layout = layouts[number % layouts.len()];
        let source_delay = Duration::from_millis(100);
        options.periods = Periods { scale, fast_status: true, source_delay, ..Periods::default() };
        let kubelet = Arc::new(Kubelet::start(options).await.unwrap());
        let gated = timeline.lines.iter().any(|line| line.what.starts_with("prestart"));
        let gate = gated.then(|| Duration::from_secs(20).mul_f64(scale));
        let cut = watch::Sender::new(false);
        let pause = SAMPLED.mul_f64(scale);
        let observer = Observer::start(kubelet.clone(), cluster.client(), gate, cut.subscribe(), pause);
        observer.serve_plugin().await;
        wait("the node to offer its devices", async || {
            (cluster.node("node-a").await["status"]["allocatable"][GPU] == "4").then_some(())
        })
        .await;
        let pods = Api::namespaced(cluster.client(), "default");
        let mut world =
            Self { scale, kubelet, observer, pods, cut, uids: BTreeMap::new(), _cluster: cluster, _dir: dir };
        world.pods_of_before(timeline, recorded).await;
        world
    }

    /// Pods that a scenario found there.
    async fn pods_of_before(&mut self, timeline: &Timeline, recorded: &Chains) {
        let names = recorded.iter().filter(|((what, _), chain)| what == "api" && !chain[0].1.starts_with("ADDED"));
        let names: Vec<String> = names.map(|((_, name), _)| name.clone()).collect();
        let calls = timeline.lines.iter().filter(|line| line.what == "allocate").map(|line| line.is.clone());
        let calls: Vec<String> = calls.collect();
        let mut others = (0..4).map(|n| format!("gpu-{n}")).filter(|id| !calls.contains(id));
        for name in names {
            let id = others.next().unwrap();
            self.observer.wanted.lock().unwrap().push(id);
            self.create(&timeline.scenario, &name).await;
            wait("a pod to run", async || self.kubelet.processes().iter().any(|run| run.name == name).then_some(()))
                .await;
            wait("its status", async || {
                let status = self.pods.get(&name).await.unwrap().status?;
                (status.phase.as_deref() == Some("Running")).then_some(())
            })
            .await;
        }
        // The observer, too, must have seen all of it.
        tokio::time::sleep(SAMPLED).await;
        self.observer.notes.clear();
        *self.observer.wanted.lock().unwrap() = calls;
    }

    /// Waits until all that was recorded before a time has been seen; gives what has not.
    async fn until_seen(&self, recorded: &Chains, until: f64) -> Vec<String> {
        let deadline = clock::mono() + DEADLINE.mul_f64(self.scale);
        loop {
            let missing = timeline::missing(recorded, &chains(&self.observer.notes.lines()), until);
            if missing.is_empty() || clock::mono() > deadline {
                return missing;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    async fn create(&mut self, scenario: &str, name: &str) {
        let pod: Pod = serde_json::from_value(pod(scenario, name)).unwrap();
        let made = self.pods.create(&PostParams::default(), &pod).await.unwrap();
        let uid = made.metadata.uid.unwrap();
        self.observer.names.lock().unwrap().insert(uid.clone(), name.to_owned());
        self.uids.insert(name.to_owned(), uid);
    }

    async fn act(&mut self, scenario: &str, act: Act) {
        match act {
            Act::Create(name) => self.create(scenario, &name).await,
            Act::Delete(name, grace) => {
                if scenario.ends_with("cannot-be-killed") && grace == Some(0) {
                    assert!(self.kubelet.freeze(&self.uids[&name]), "{name} runs");
                }
                let params = DeleteParams { grace_period_seconds: grace, ..DeleteParams::default() };
                self.pods.delete(&name, &params).await.unwrap();
            }
            Act::Evict(name) => {
                self.pods.evict(&name, &EvictParams::default()).await.unwrap();
            }
            Act::SetPhase(name) => {
                let patch = Patch::Merge(gone_status());
                self.pods.patch_status(&name, &PatchParams::default(), &patch).await.unwrap();
            }
            Act::KubeletStops => self.kubelet.stop().await,
            Act::KubeletStarts => {
                self.kubelet.start_again().await.unwrap();
                // The recorder's plugin came back long after the kubelet.
                self.refused("k2").await;
                self.observer.serve_plugin().await;
            }
            Act::RuntimeStops => self.kubelet.stop_runtime(),
            Act::RuntimeStarts => self.kubelet.start_runtime(),
            Act::CutOff => {
                self.kubelet.controls().cut_off();
                self.cut.send_replace(true);
            }
            Act::ComesBack => {
                self.kubelet.controls().reconnect();
                self.cut.send_replace(false);
            }
            Act::Thaw(name) => assert!(self.kubelet.thaw(&self.uids[&name]), "{name} runs"),
            Act::Nothing => {}
        }
    }

    async fn refused(&self, name: &str) {
        wait(&format!("{name} to be refused"), async || {
            let status = self.pods.get(name).await.unwrap().status?;
            (status.phase.as_deref() == Some("Failed")).then_some(())
        })
        .await;
    }
}

//! Jobs, their pods and nodes for the job controller: light wire types, their records, and the watch that tells of them.

use std::collections::BTreeSet;
use std::fmt::Debug;

use futures::StreamExt;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{Api, ObjectMeta};
use kube::runtime::watcher::{Config, Event, watcher};
use kube::{Client, Resource};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::rewatch::{CENTRAL, patient};
use crate::contract::tyjob::{InvalidField, TyJob, keys};
use crate::decide::tyjob::stages::{ImageWait, NodeSight, Phase, PodView};
use crate::runtime::words;

/// A TYJob as it is on the wire, whatever it says.
#[derive(Debug, Clone, Deserialize, Resource)]
#[resource(inherit = TyJob)]
pub struct RawJob {
    /// Metadata.
    pub metadata: ObjectMeta,
    /// Spec, unread.
    #[serde(default)]
    pub spec: Value,
    /// Status, unread.
    #[serde(default)]
    pub status: Value,
}

impl RawJob {
    /// The job, and the part of its spec that does not fit the type.
    pub fn read(mut self) -> Result<(TyJob, Option<InvalidField>), InvalidField> {
        self.metadata.managed_fields = None;
        TyJob::of_parts(self.metadata, &self.spec, &self.status)
    }
}

/// A pod with the fields that a job's life depends on. Watch and read with it, never write.
#[derive(Debug, Clone, Deserialize, Resource)]
#[resource(inherit = Pod)]
pub struct JobPod {
    /// Metadata.
    pub metadata: ObjectMeta,
    #[serde(default)]
    spec: JobPodSpec,
    #[serde(default)]
    status: JobPodStatus,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct JobPodSpec {
    node_name: Option<String>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct JobPodStatus {
    phase: Option<String>,
    reason: Option<String>,
    message: Option<String>,
    #[serde(rename = "podIP")]
    pod_ip: Option<String>,
    conditions: Vec<JobCondition>,
    init_container_statuses: Vec<JobContainer>,
    container_statuses: Vec<JobContainer>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct JobCondition {
    #[serde(rename = "type")]
    kind: String,
    status: String,
    last_transition_time: Option<Timestamp>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct JobContainer {
    name: String,
    restart_count: i32,
    state: JobContainerState,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct JobContainerState {
    waiting: Option<Waiting>,
    terminated: Option<Terminated>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct Waiting {
    reason: String,
    message: String,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Terminated {
    exit_code: i32,
    reason: String,
    finished_at: Option<Timestamp>,
}

/// What a kubelet says of an image that it cannot have.
const IMAGE_REASONS: [&str; 7] = [
    "InvalidImageName",
    "ErrImageNeverPull",
    "ErrImagePull",
    "ImagePullBackOff",
    "ImageInspectError",
    "RegistryUnavailable",
    "SignatureValidationFailed",
];

/// So many of [`IMAGE_REASONS`] never change to the better.
const NO_HOPE: usize = 2;

/// A pod and the job that controls it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OwnedPod {
    /// Uid of the controlling TYJob; `None` for a pod that only carries the label.
    pub job_uid: Option<String>,
    /// Version, for the order of what is told.
    pub version: String,
    /// What the controller looks at; the sight of its node is filled in later.
    pub view: PodView,
}

impl JobPod {
    /// The controller's record.
    pub fn facts(self) -> OwnedPod {
        let Self { metadata: meta, spec, status } = self;
        let owners = meta.owner_references.iter().flatten();
        let mut controller = owners.filter(|owner| owner.controller == Some(true) && owner.kind == keys::KIND);
        let label = |key: &str| meta.labels.as_ref().and_then(|labels| labels.get(key));
        let all = || status.init_container_statuses.iter().chain(&status.container_statuses);
        // The most hopeless one tells most; of equals, the first.
        let waits = all().filter_map(|container| {
            let waiting = container.state.waiting.as_ref()?;
            let hope = IMAGE_REASONS.iter().position(|reason| *reason == waiting.reason)?.min(NO_HOPE);
            Some((hope, ImageWait { reason: waiting.reason.clone(), message: waiting.message.clone() }))
        });
        let image = waits.min_by_key(|(hope, _)| *hope).map(|(_, image)| image);
        let phase = match status.phase.as_deref() {
            Some("Running") => Phase::Running,
            Some("Succeeded") => Phase::Succeeded,
            Some("Failed") => Phase::Failed,
            _ => Phase::Pending,
        };
        // The time of deletion is the end of the grace; it was asked for that much earlier.
        let grace = SignedDuration::from_secs(meta.deletion_grace_period_seconds.unwrap_or(0));
        let asked = meta.deletion_timestamp.as_ref().and_then(|end| end.0.checked_sub(grace).ok());
        let stopped = asked.is_some_and(|asked| {
            let ends = status.container_statuses.iter().filter_map(|container| container.state.terminated.as_ref());
            ends.filter_map(|ended| ended.finished_at).max().is_none_or(|last| last >= asked)
        });
        let view = PodView {
            stopped,
            disrupted: phase == Phase::Failed && disrupted(&status),
            attempt: label(keys::ATTEMPT).and_then(|attempt| attempt.parse().ok()),
            phase,
            ready: status.conditions.iter().any(|found| found.kind == "Ready" && found.status == "True"),
            ip: status.pod_ip.clone().filter(|ip| !ip.is_empty()),
            node: spec.node_name.filter(|node| !node.is_empty()),
            sight: NodeSight::There,
            allocation: meta.annotations.as_ref().and_then(|all| all.get(keys::ALLOCATION)).cloned(),
            deleting: meta.deletion_timestamp.as_ref().map(|time| time.0),
            container_restarts: all().map(|container| container.restart_count).sum(),
            image,
            failure: (phase == Phase::Failed).then(|| failure(&status)),
            name: meta.name.unwrap_or_default(),
            uid: meta.uid.unwrap_or_default(),
        };
        let job_uid = controller.next().map(|owner| owner.uid.clone());
        OwnedPod { job_uid, version: meta.resource_version.unwrap_or_default(), view }
    }
}

/// The pod was ended for the sake of others: preempted, drained, collected after its node, or stopped with it. A pod that the
/// kubelet evicts for what it uses is not among these, although its condition says so too: a pod that fills its node would be
/// made again for ever.
fn disrupted(status: &JobPodStatus) -> bool {
    let told = |found: &JobCondition| found.kind == "DisruptionTarget" && found.status == "True";
    status.conditions.iter().any(told) && status.reason.as_deref() != Some("Evicted")
}

/// Why a pod failed: what its status says, or else how its containers ended.
fn failure(status: &JobPodStatus) -> String {
    let words: Vec<&str> = [&status.reason, &status.message].into_iter().flatten().map(String::as_str).collect();
    if !words.is_empty() {
        return words.join(": ");
    }
    let all = status.init_container_statuses.iter().chain(&status.container_statuses);
    let ends = all.filter_map(|container| {
        let ended = container.state.terminated.as_ref().filter(|ended| ended.exit_code != 0)?;
        Some(format!("{} exited with {} ({})", container.name, ended.exit_code, ended.reason))
    });
    let text = ends.collect::<Vec<_>>().join(", ");
    if text.is_empty() { "no reason given".to_owned() } else { text }
}

/// A node, as far as its pods' end depends on it.
#[derive(Debug, Clone, Deserialize, Resource)]
#[resource(inherit = Node)]
pub struct JobNode {
    /// Metadata.
    pub metadata: ObjectMeta,
    #[serde(default)]
    status: JobNodeStatus,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct JobNodeStatus {
    conditions: Vec<JobCondition>,
}

impl JobNode {
    /// Whether its kubelet is heard of: `Ready` is `Unknown` when not.
    pub fn sight(&self) -> NodeSight {
        let ready = self.status.conditions.iter().find(|found| found.kind == "Ready");
        let silent = ready.filter(|found| found.status == "Unknown").and_then(|found| found.last_transition_time);
        silent.map_or(NodeSight::There, NodeSight::UnreachableSince)
    }
}

/// What the watches tell the controller.
#[derive(Debug)]
pub enum JobMessage {
    /// A job is there, or changed.
    Job(Box<RawJob>),
    /// A job is gone: namespace and name.
    JobGone(String, String),
    /// A pod that carries the label is there, or changed. With its namespace.
    Pod(String, Box<OwnedPod>),
    /// A pod is gone, by uid.
    PodGone(String),
    /// A node is there, or changed.
    Node(String, NodeSight),
    /// A node is gone.
    NodeGone(String),
    /// The first list of this watch is complete.
    Synced(&'static str),
}

/// The watches that [`JobMessage::Synced`] names.
pub const FEEDS: [&str; 3] = ["tyjobs", "pods", "nodes"];

/// A watch is closed by the server after this many seconds and goes on where it was.
const WATCH_SECONDS: u32 = 120;

/// Starts the watches of the controller; they end when `tasks` or the receiver is dropped.
pub fn start_job_feeds(client: &Client, out: &mpsc::Sender<JobMessage>, tasks: &mut JoinSet<()>) {
    let config = Config::default().timeout(WATCH_SECONDS);
    let jobs: Api<RawJob> = Api::all(client.clone());
    let gone = |meta: &ObjectMeta| {
        JobMessage::JobGone(meta.namespace.clone().unwrap_or_default(), meta.name.clone().unwrap_or_default())
    };
    tasks.spawn(follow(FEEDS[0], jobs, config.clone(), out.clone(), |job| JobMessage::Job(Box::new(job)), gone));
    let pods: Api<JobPod> = Api::all(client.clone());
    let told = |pod: JobPod| JobMessage::Pod(pod.metadata.namespace.clone().unwrap_or_default(), Box::new(pod.facts()));
    let gone = |meta: &ObjectMeta| JobMessage::PodGone(meta.uid.clone().unwrap_or_default());
    tasks.spawn(follow(FEEDS[1], pods, config.clone().labels(keys::JOB), out.clone(), told, gone));
    let nodes: Api<JobNode> = Api::all(client.clone());
    let told = |node: JobNode| JobMessage::Node(node.metadata.name.clone().unwrap_or_default(), node.sight());
    let gone = |meta: &ObjectMeta| JobMessage::NodeGone(meta.name.clone().unwrap_or_default());
    tasks.spawn(follow(FEEDS[2], nodes, config, out.clone(), told, gone));
}

/// Identity of what a watch showed: by uid, so that an object that was replaced unseen is told as gone.
type Seen = (Option<String>, Option<String>, Option<String>);

async fn follow<K>(
    name: &'static str,
    api: Api<K>,
    config: Config,
    out: mpsc::Sender<JobMessage>,
    told: impl Fn(K) -> JobMessage + Send,
    gone: impl Fn(&ObjectMeta) -> JobMessage + Send,
) where
    K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
{
    let seen = |object: &K| -> Seen {
        let meta = object.meta();
        (meta.namespace.clone(), meta.name.clone(), meta.uid.clone())
    };
    let lost = |(namespace, name, uid): &Seen| {
        let (namespace, name, uid) = (namespace.clone(), name.clone(), uid.clone());
        gone(&ObjectMeta { namespace, name, uid, ..ObjectMeta::default() })
    };
    let mut stream = std::pin::pin!(patient(watcher(api, config), CENTRAL));
    let (mut known, mut fresh) = (BTreeSet::<Seen>::new(), BTreeSet::<Seen>::new());
    while let Some(next) = stream.next().await {
        let mut messages = Vec::new();
        match next {
            Ok(Event::Init) => fresh.clear(),
            Ok(Event::InitApply(object)) => {
                fresh.insert(seen(&object));
                messages.push(told(object));
            }
            Ok(Event::InitDone) => {
                // Of an object that was replaced the new one has been told: only what no new one has the name of is gone.
                let names: BTreeSet<_> = fresh.iter().map(|(namespace, name, _)| (namespace, name)).collect();
                let by_name = name != FEEDS[1];
                let replaced = |seen: &Seen| by_name && names.contains(&(&seen.0, &seen.1));
                messages.extend(known.difference(&fresh).filter(|seen| !replaced(seen)).map(lost));
                known = std::mem::take(&mut fresh);
                messages.push(JobMessage::Synced(name));
            }
            Ok(Event::Apply(object)) => {
                known.insert(seen(&object));
                messages.push(told(object));
            }
            Ok(Event::Delete(object)) => {
                let seen = seen(&object);
                known.remove(&seen);
                messages.push(lost(&seen));
            }
            Err(error) => tracing::warn!(feed = name, error = words(&error), "watch failed, trying again"),
        }
        for message in messages {
            if out.send(message).await.is_err() {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod(status: Value) -> PodView {
        let pod = json!({
            "metadata": {
                "name": "rl-actor-0", "namespace": "a", "uid": "u", "resourceVersion": "7",
                "labels": { keys::JOB: "rl", keys::ATTEMPT: "2" }, "annotations": { keys::ALLOCATION: "n2" },
                "deletionTimestamp": "2026-01-01T00:00:30Z", "deletionGracePeriodSeconds": 30,
                "ownerReferences": [
                    { "apiVersion": "v1", "kind": "ConfigMap", "name": "x", "uid": "other" },
                    { "apiVersion": keys::API_VERSION, "kind": "TYJob", "name": "rl", "uid": "job", "controller": true },
                ],
            },
            "spec": { "nodeName": "n1", "containers": [] },
            "status": status,
        });
        let facts = serde_json::from_value::<JobPod>(pod).unwrap().facts();
        assert_eq!((facts.job_uid.as_deref(), facts.version.as_str()), (Some("job"), "7"));
        facts.view
    }

    #[test]
    fn a_running_pod_becomes_a_record() {
        let view = pod(json!({
            "phase": "Running", "podIP": "10.0.0.1", "conditions": [{ "type": "Ready", "status": "True" }],
            "initContainerStatuses": [{ "name": "i", "restartCount": 1, "state": {} }],
            "containerStatuses": [{ "name": "c", "restartCount": 2, "state": { "running": {} } }],
        }));
        assert_eq!((view.attempt, view.phase, view.ready, view.container_restarts), (Some(2), Phase::Running, true, 3));
        assert_eq!((view.ip.as_deref(), view.node.as_deref()), (Some("10.0.0.1"), Some("n1")));
        assert_eq!((view.allocation.as_deref(), view.deleting.is_some()), (Some("n2"), true));
        assert!(view.image.is_none() && view.failure.is_none());
    }

    #[test]
    fn a_pod_that_failed_for_the_sake_of_others_is_told_from_one_that_used_too_much() {
        let conditions = json!([{ "type": "DisruptionTarget", "status": "True", "reason": "TerminationByKubelet" }]);
        for (phase, reason, disrupted) in [
            ("Failed", json!("Terminated"), true),
            ("Failed", json!("Evicted"), false),
            ("Failed", Value::Null, true),
            ("Running", Value::Null, false),
        ] {
            let view = pod(json!({ "phase": phase, "reason": reason, "conditions": conditions }));
            assert_eq!(view.disrupted, disrupted, "{phase} {reason}");
        }
        assert!(!pod(json!({ "phase": "Failed" })).disrupted);
    }

    #[test]
    fn a_failure_is_told_by_the_pod_or_by_its_containers() {
        let told = |status: Value| pod(status).failure.unwrap();
        assert_eq!(
            told(json!({ "phase": "Failed", "reason": "Evicted", "message": "low on memory" })),
            "Evicted: low on memory"
        );
        let ended = json!([{ "name": "c", "state": { "terminated": { "exitCode": 137, "reason": "OOMKilled" } } }]);
        assert_eq!(told(json!({ "phase": "Failed", "containerStatuses": ended })), "c exited with 137 (OOMKilled)");
        assert_eq!(told(json!({ "phase": "Failed" })), "no reason given");
    }

    #[test]
    fn a_pod_that_ended_before_its_deletion_was_asked_for_was_not_stopped() {
        let ended = |at: &str| {
            let state = json!({ "terminated": { "exitCode": 0, "reason": "Completed", "finishedAt": at } });
            pod(json!({ "phase": "Succeeded", "containerStatuses": [{ "name": "c", "state": state }] })).stopped
        };
        // Thirty seconds of grace end at 00:00:30.
        assert!(!ended("2025-12-31T23:59:59Z"));
        assert!(ended("2026-01-01T00:00:00Z") && ended("2026-01-01T00:00:10Z"));
    }

    #[test]
    fn only_waits_for_images_count_as_such() {
        let waits = |reason: &str| {
            let state = json!({ "waiting": { "reason": reason, "message": "m" } });
            pod(json!({ "phase": "Pending", "containerStatuses": [{ "name": "c", "state": state }] })).image
        };
        assert_eq!(waits("ImagePullBackOff").unwrap().message, "m");
        assert_eq!(waits("ContainerCreating"), None);
    }

    #[test]
    fn a_node_is_unreachable_while_its_readiness_is_unknown() {
        let node = |status: &str| {
            let ready = json!({ "type": "Ready", "status": status, "lastTransitionTime": "2026-01-01T00:00:00Z" });
            let node = json!({ "metadata": { "name": "n" }, "status": { "conditions": [ready] } });
            serde_json::from_value::<JobNode>(node).unwrap().sight()
        };
        assert_eq!(node("True"), NodeSight::There);
        assert_eq!(node("False"), NodeSight::There, "its kubelet speaks");
        assert_eq!(node("Unknown"), NodeSight::UnreachableSince("2026-01-01T00:00:00Z".parse().unwrap()));
    }
}

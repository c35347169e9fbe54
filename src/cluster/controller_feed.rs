//! The watches of the TYJob controller: TYJobs, their pods and nodes, and the controller's records of a TYJob and a pod.

use std::collections::BTreeSet;

use jiff::SignedDuration;
use kube::Client;
use kube::api::Api;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::feed::{Feed, FeedMessage, watch_config};
use super::node::LightNode;
use super::pod::{LightContainerStatus, LightPod, LightPodStatus};
use super::tyjob::RawTyJob;
use baton_contract::tyjob::keys;
use baton_decide::controller::{ControllerEvent, OwnedPod, ShownJob};
use baton_decide::pod::Phase;
use baton_decide::tyjob::stages::{ImageWait, NodeReachability, PodView};

/// Reasons of a container that waits because the kubelet cannot get its image.
const IMAGE_REASONS: [&str; 7] = [
    "InvalidImageName",
    "ErrImageNeverPull",
    "ErrImagePull",
    "ImagePullBackOff",
    "ImageInspectError",
    "RegistryUnavailable",
    "SignatureValidationFailed",
];

/// The first so many of [`IMAGE_REASONS`] are permanent.
const PERMANENT: usize = 2;

impl RawTyJob {
    /// The controller's record; `None` for a TYJob whose status cannot be read.
    pub fn shown(self) -> Option<ShownJob> {
        let name = self.metadata.name.clone();
        let namespace = self.metadata.namespace.clone();
        match self.read() {
            Ok((job, unreadable)) => Some(ShownJob { job, unreadable }),
            Err(error) => {
                tracing::error!(namespace, job = name, %error, "the status of this TYJob cannot be read: the TYJob is left alone");
                None
            }
        }
    }
}

impl LightPod {
    /// The controller's record.
    pub fn owned(self) -> OwnedPod {
        let job_uid = self.controller().filter(|owner| owner.kind == keys::KIND).map(|owner| owner.uid.clone());
        let allocation = self.annotation(keys::ALLOCATION).map(str::to_owned);
        let Self { metadata: meta, spec, status } = self;
        let label = |key: &str| meta.labels.as_ref().and_then(|labels| labels.get(key));
        // A permanent reason says most; of equals, the first.
        let waits = status.all_containers().filter_map(|container| {
            let waiting = container.state.waiting.as_ref()?;
            let rank = IMAGE_REASONS.iter().position(|reason| *reason == &*waiting.reason)?.min(PERMANENT);
            Some((rank, ImageWait { reason: waiting.reason.to_string(), message: waiting.message.to_string() }))
        });
        let image = waits.min_by_key(|(rank, _)| *rank).map(|(_, image)| image);
        // The time of deletion is the end of the grace period; the deletion was requested that much earlier.
        let grace = SignedDuration::from_secs(meta.deletion_grace_period_seconds.unwrap_or(0));
        let requested = meta.deletion_timestamp.as_ref().and_then(|end| end.0.checked_sub(grace).ok());
        let stopped = requested.is_some_and(|requested| {
            let ends = status.container_statuses.iter().filter_map(|container| container.state.terminated.as_ref());
            ends.filter_map(|ended| ended.finished_at).max().is_none_or(|last| last >= requested)
        });
        let mut targets = status.conditions.iter().filter(|found| &*found.kind == "DisruptionTarget");
        let target = targets.find(|found| &*found.status == "True").map(|found| &*found.reason);
        let phase = match Phase::of(status.phase.as_deref()) {
            // With its node, or for what it used: containers that end well when they are asked to make a pod that has succeeded.
            Phase::Succeeded if stopped || target == Some("TerminationByKubelet") => Phase::Failed,
            Phase::Unknown => Phase::default(),
            phase => phase,
        };
        // A pod that fills its node would be made again for ever.
        let evicted = status.reason.as_deref() == Some("Evicted");
        let plain_init = |name: &str| spec.init_containers.iter().any(|init| *init.name == *name && !init.is_sidecar());
        let lasting = || status.all_containers().filter(|container| !plain_init(&container.name));
        let waits_again = |container: &LightContainerStatus| {
            container.state.waiting.as_ref().is_some_and(|waiting| &*waiting.reason == "CrashLoopBackOff")
        };
        let view = PodView {
            version: meta.resource_version.and_then(|version| version.parse().ok()).unwrap_or(0),
            container_restarts: lasting()
                .map(|container| (container.name.to_string(), container.restart_count.max(0)))
                .collect(),
            crash_loops: lasting().any(waits_again),
            disrupted: phase == Phase::Failed && target.is_some() && !evicted,
            attempt: label(keys::ATTEMPT).and_then(|attempt| attempt.parse().ok()),
            phase,
            // A pod without its devices is not ready for its job, whatever its own probes say.
            ready: !status.unserved()
                && status.conditions.iter().any(|found| &*found.kind == "Ready" && &*found.status == "True"),
            ip: status.pod_ip.as_deref().filter(|ip| !ip.is_empty()).map(str::to_owned),
            node: spec.node_name.as_deref().filter(|node| !node.is_empty()).map(str::to_owned),
            reachability: NodeReachability::There,
            allocation,
            deleting: meta.deletion_timestamp.as_ref().map(|time| time.0),
            image,
            failure: (phase == Phase::Failed).then(|| failure(&status)),
            name: meta.name.unwrap_or_default(),
            uid: meta.uid.unwrap_or_default(),
        };
        OwnedPod { job_uid, view }
    }
}

/// Why a pod failed: what its status says, or else how its containers ended.
fn failure(status: &LightPodStatus) -> String {
    if let Some(explanation) = status.explanation() {
        return explanation;
    }
    let ends = status.all_containers().filter_map(|container| {
        let ended = container.state.terminated.as_ref().filter(|ended| ended.exit_code != 0)?;
        Some(format!("{} exited with {} ({})", container.name, ended.exit_code, ended.reason))
    });
    let text = ends.collect::<Vec<_>>().join(", ");
    match Phase::of(status.phase.as_deref()) {
        Phase::Succeeded => "it was asked to end".to_owned(),
        _ if text.is_empty() => "no reason given".to_owned(),
        _ => text,
    }
}

/// Starts the watches of the controller; they end when `tasks` or the receiver is dropped. Returns the names whose
/// [`FeedMessage::Synced`] completes the view.
pub fn start_controller_feeds(
    client: &Client,
    out: &mpsc::Sender<FeedMessage<ControllerEvent>>,
    tasks: &mut JoinSet<()>,
) -> BTreeSet<&'static str> {
    let jobs = Feed {
        name: "tyjobs",
        apis: vec![Api::<RawTyJob>::all(client.clone())],
        config: watch_config(),
        optional: false,
        on_access: None,
        on_apply: Box::new(|job: RawTyJob| Some(ControllerEvent::Job(Box::new(job.shown()?)))),
        on_delete: Box::new(|gone| Some(ControllerEvent::JobGone(gone.namespace().to_owned(), gone.name().to_owned()))),
    };
    let pods = Feed {
        name: "pods",
        apis: vec![Api::<LightPod>::all(client.clone())],
        config: watch_config().labels(keys::JOB),
        optional: false,
        on_access: None,
        on_apply: Box::new(|pod| Some(ControllerEvent::Pod(Box::new(pod.owned())))),
        on_delete: Box::new(|gone| Some(ControllerEvent::PodGone(gone.uid().to_owned()))),
    };
    let nodes = Feed {
        name: "nodes",
        apis: vec![Api::<LightNode>::all(client.clone())],
        config: watch_config(),
        optional: false,
        on_access: None,
        on_apply: Box::new(|node| Some(ControllerEvent::Node(node.metadata.name.clone()?, node.reachability()))),
        on_delete: Box::new(|gone| Some(ControllerEvent::NodeGone(gone.name().to_owned()))),
    };
    let names = BTreeSet::from([jobs.name, pods.name, nodes.name]);
    tasks.spawn(jobs.run(out.clone()));
    tasks.spawn(pods.run(out.clone()));
    tasks.spawn(nodes.run(out.clone()));
    names
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

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
            "spec": {
                "nodeName": "n1", "containers": [{ "name": "c" }],
                "initContainers": [{ "name": "i" }, { "name": "side", "restartPolicy": "Always" }],
            },
            "status": status,
        });
        let facts = serde_json::from_value::<LightPod>(pod).unwrap().owned();
        assert_eq!((facts.job_uid.as_deref(), facts.view.version), (Some("job"), 7));
        facts.view
    }

    #[test]
    fn a_running_pod_becomes_a_record() {
        let view = pod(json!({
            "phase": "Running", "podIP": "10.0.0.1", "conditions": [{ "type": "Ready", "status": "True" }],
            "initContainerStatuses": [{ "name": "i", "restartCount": 1, "state": {} }],
            "containerStatuses": [{ "name": "c", "restartCount": 2, "state": { "running": {} } }],
        }));
        assert_eq!((view.attempt, view.phase, view.ready), (Some(2), Phase::Running, true));
        assert_eq!((view.ip.as_deref(), view.node.as_deref()), (Some("10.0.0.1"), Some("n1")));
        assert_eq!((view.allocation.as_deref(), view.deleting.is_some()), (Some("n2"), true));
        assert!(view.image.is_none() && view.failure.is_none());
    }

    #[test]
    fn a_pod_without_its_devices_is_not_ready() {
        let served = |status: &str| json!({ "type": "baton.io/DevicesServed", "status": status });
        let ready = |status| {
            pod(json!({ "phase": "Running", "conditions": [{ "type": "Ready", "status": "True" }, served(status)] }))
                .ready
        };
        assert_eq!(["True", "Unknown", "False"].map(ready), [true, true, false]);
    }

    #[test]
    fn restarts_of_apps_and_sidecars_count_and_those_of_plain_init_containers_do_not() {
        let waits = |reason: &str| json!({ "waiting": { "reason": reason } });
        let view = |of: &str, reason: &str| {
            let state = |name: &str| if name == of { waits(reason) } else { json!({ "running": {} }) };
            pod(json!({
                "phase": "Running",
                "initContainerStatuses": [
                    { "name": "i", "restartCount": 7, "state": state("i") },
                    { "name": "side", "restartCount": 2, "state": state("side") },
                ],
                "containerStatuses": [{ "name": "c", "restartCount": 0, "state": state("c") }],
            }))
        };
        let told = view("", "").container_restarts;
        assert_eq!(told, [("c".to_owned(), 0), ("side".to_owned(), 2)].into());
        for (of, reason, loops) in [
            ("c", "CrashLoopBackOff", true),
            ("side", "CrashLoopBackOff", true),
            ("i", "CrashLoopBackOff", false),
            ("c", "ImagePullBackOff", false),
            ("c", "ContainerCreating", false),
        ] {
            assert_eq!(view(of, reason).crash_loops, loops, "{of}: {reason}");
        }
        assert!(pod(json!({ "phase": "Failed", "reason": "Evicted" })).container_restarts.is_empty());
    }

    #[test]
    fn a_pod_that_was_disrupted_is_distinguished_from_one_that_used_too_much() {
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

    /// kubernetes#118310: a kubelet that stops its node sends no deletion, and takes the phase from the exit codes.
    #[test]
    fn a_pod_that_ends_well_because_its_kubelet_ended_it_has_failed() {
        let state =
            json!({ "terminated": { "exitCode": 0, "reason": "Completed", "finishedAt": "2025-12-31T23:59:59Z" } });
        for (kind, holds, by, reason, ended, disrupted) in [
            ("DisruptionTarget", "True", "TerminationByKubelet", json!("Terminated"), Phase::Failed, true),
            ("DisruptionTarget", "True", "TerminationByKubelet", Value::Null, Phase::Failed, true),
            ("DisruptionTarget", "True", "TerminationByKubelet", json!("Evicted"), Phase::Failed, false),
            ("DisruptionTarget", "False", "TerminationByKubelet", Value::Null, Phase::Succeeded, false),
            ("DisruptionTarget", "True", "EvictionByEvictionAPI", Value::Null, Phase::Succeeded, false),
            ("Ready", "True", "TerminationByKubelet", Value::Null, Phase::Succeeded, false),
        ] {
            let view = pod(json!({
                "phase": "Succeeded", "reason": reason, "containerStatuses": [{ "name": "c", "state": state }],
                "conditions": [{ "type": kind, "status": holds, "reason": by }],
            }));
            assert_eq!((view.phase, view.disrupted), (ended, disrupted), "{kind} {holds} {by} {reason}");
            let failed = (ended == Phase::Failed).then(|| reason.as_str().unwrap_or("it was asked to end").to_owned());
            assert_eq!(view.failure, failed);
        }
    }

    #[test]
    fn a_failure_is_described_by_the_pod_or_by_its_containers() {
        let failure_of = |status: Value| pod(status).failure.unwrap();
        assert_eq!(
            failure_of(json!({ "phase": "Failed", "reason": "Evicted", "message": "low on memory" })),
            "Evicted: low on memory"
        );
        let ended = json!([{ "name": "c", "state": { "terminated": { "exitCode": 137, "reason": "OOMKilled" } } }]);
        assert_eq!(
            failure_of(json!({ "phase": "Failed", "containerStatuses": ended })),
            "c exited with 137 (OOMKilled)"
        );
        assert_eq!(failure_of(json!({ "phase": "Failed" })), "no reason given");
    }

    #[test]
    fn a_pod_that_ended_before_its_deletion_was_asked_for_was_not_stopped() {
        let ended = |at: &str| {
            let state = json!({ "terminated": { "exitCode": 0, "reason": "Completed", "finishedAt": at } });
            pod(json!({ "phase": "Succeeded", "containerStatuses": [{ "name": "c", "state": state }] })).phase
        };
        // Thirty seconds of grace end at 00:00:30.
        assert_eq!(ended("2025-12-31T23:59:59Z"), Phase::Succeeded);
        assert_eq!(["2026-01-01T00:00:00Z", "2026-01-01T00:00:10Z"].map(ended), [Phase::Failed; 2]);
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
}

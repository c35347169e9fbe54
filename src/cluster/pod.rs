//! Pods at the border: the one light wire type, and the record of them that the hand-off works on.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Affinity, Pod, Toleration, TopologySpreadConstraint};
use kube::Resource;
use kube::api::ObjectMeta;
use serde::de::IgnoredAny;
use serde::{Deserialize, Deserializer};

use super::light_meta::light;
use super::spec_part::{AskedImage, OfText};
use baton_contract::gang::Committed;
use baton_contract::hint::{Counting, DeviceHint, parse_hints};
use baton_contract::{ContainerRequest, DeviceType, GpuRequest, PodRef, Quantity, RequestError, ShareIsolation, key};
use baton_decide::handoff::ListedContainers;
use baton_decide::pod::{AssignmentText, ContainerKind, Deletion, HandoffPod, Phase, PodContainer};
use baton_decide::shares::{ShareTerms, undone_by_mount, undone_by_variable};

/// A pod with the fields that Baton reads; the rest is skipped while parsing. Watch and read with it, never write. Each reader
/// makes its own record of it and drops it.
#[derive(Debug, Clone, Deserialize, Resource)]
#[resource(inherit = Pod)]
pub struct LightPod {
    /// Metadata without `managedFields`.
    /// A longer annotation than [`key::MAX_ANNOTATION`] is there as its length only.
    #[serde(deserialize_with = "super::light_meta::read_short")]
    pub metadata: ObjectMeta,
    #[serde(default)]
    pub(super) spec: LightPodSpec,
    #[serde(default)]
    pub(super) status: LightPodStatus,
}

/// Digits that a time in nanoseconds has at most; a longer text is none.
const MAX_NANOS: usize = 20;

/// Of a pod that says nothing of it, as the API server sets it.
const GRACE: u32 = 30;

pub(super) type WrittenAmounts = BTreeMap<Box<str>, Box<str>>;

light! {
    pub(super) struct LightPodSpec {
        pub node_name: Option<Box<str>>,
        pub scheduler_name: Option<Box<str>>,
        pub priority: Option<i32>,
        pub preemption_policy: Option<Box<str>>,
        pub active_deadline_seconds: Option<i64>,
        pub termination_grace_period_seconds: Option<i64>,
        pub node_selector: BTreeMap<String, String>,
        pub affinity: Option<Affinity>,
        pub tolerations: Vec<Toleration>,
        pub scheduling_gates: Vec<Named>,
        pub resource_claims: Vec<IgnoredAny>,
        pub init_containers: Vec<LightContainer>,
        pub containers: Vec<LightContainer>,
        pub resources: Option<LightResources>,
        pub overhead: WrittenAmounts,
        pub topology_spread_constraints: Vec<TopologySpreadConstraint>,
        pub volumes: Vec<LightVolume>,
        pub scheduling_group: Option<LightSchedulingGroup>,
    }

    pub(super) struct LightSchedulingGroup {
        pub pod_group_name: Option<Box<str>>,
    }

    pub(super) struct Named {
        pub name: Box<str>,
    }

    pub(super) struct LightContainer {
        pub name: Box<str>,
        pub image: AskedImage,
        /// `Always` makes an init container a sidecar.
        pub restart_policy: Option<Box<str>>,
        pub resources: LightResources,
        pub ports: Vec<LightPort>,
        pub env: Vec<LightVariable>,
        pub volume_mounts: Vec<LightMount>,
    }

    pub(super) struct LightVariable {
        pub name: Undoing<false>,
    }

    pub(super) struct LightMount {
        pub mount_path: Undoing<true>,
    }

    pub(super) struct LightResources {
        pub requests: WrittenAmounts,
        pub limits: WrittenAmounts,
    }

    pub(super) struct LightPort {
        #[serde(rename = "hostPort")]
        pub host_port: Option<i32>,
        #[serde(rename = "hostIP")]
        pub host_ip: Option<Box<str>>,
        pub protocol: Option<Box<str>>,
    }

    pub(super) struct LightVolume {
        pub name: Box<str>,
        pub persistent_volume_claim: Option<LightClaimVolume>,
        pub ephemeral: Option<IgnoredAny>,
        pub image: Option<LightImageVolume>,
    }

    pub(super) struct LightImageVolume {
        pub reference: AskedImage,
    }

    pub(super) struct LightClaimVolume {
        pub claim_name: Box<str>,
    }

    pub(super) struct LightPodStatus {
        pub phase: Option<Box<str>>,
        /// Why the pod is in its phase; a kubelet that refuses a pod says it here.
        pub reason: Option<Box<str>>,
        pub message: Option<Box<str>>,
        #[serde(rename = "podIP")]
        pub pod_ip: Option<Box<str>>,
        pub conditions: Vec<LightCondition>,
        /// The generation of the spec that the kubelet has read; absent where it does not say (before Kubernetes 1.34).
        pub observed_generation: Option<i64>,
        pub init_container_statuses: Vec<LightContainerStatus>,
        pub container_statuses: Vec<LightContainerStatus>,
        /// What the pod has as a whole; differs from the spec while it is resized.
        pub resources: Option<LightResources>,
        /// What the node keeps for the pod as a whole.
        pub allocated_resources: WrittenAmounts,
        pub nominated_node_name: Option<Box<str>>,
        /// Extended resources that a DRA claim serves.
        pub extended_resource_claim_status: Option<LightClaimStatus>,
    }

    /// Part of a condition of a pod.
    pub struct LightCondition {
        /// E.g. `PodScheduled`.
        #[serde(rename = "type")]
        pub kind: Box<str>,
        /// `True`, `False` or `Unknown`.
        pub status: Box<str>,
        /// The reason in one word.
        pub reason: Box<str>,
        /// The reason for people.
        pub message: Box<str>,
    }

    pub(super) struct LightContainerStatus {
        pub name: Box<str>,
        pub restart_count: i32,
        pub state: LightContainerState,
        /// The one before.
        pub last_state: LightContainerState,
        /// What the container has now; differs from the spec while it is resized.
        pub resources: Option<LightResources>,
        /// What the node keeps for the container.
        pub allocated_resources: WrittenAmounts,
        /// Devices that the kubelet says the container has (KEP-4680); absent where the kubelet does not report them.
        pub allocated_resources_status: Vec<LightResourceStatus>,
    }

    pub(super) struct LightContainerState {
        pub waiting: Option<LightWaiting>,
        pub running: Option<LightRunning>,
        pub terminated: Option<LightTerminated>,
    }

    pub(super) struct LightRunning {
        pub started_at: Option<Timestamp>,
    }

    pub(super) struct LightWaiting {
        pub reason: Box<str>,
        pub message: Box<str>,
    }

    pub(super) struct LightTerminated {
        pub exit_code: i32,
        pub reason: Box<str>,
        pub message: AboutDevices,
        pub finished_at: Option<Timestamp>,
    }

    pub(super) struct LightResourceStatus {
        /// Resource name, or `claim:<name>/<request>` of a DRA claim.
        pub name: Box<str>,
        pub resources: Vec<LightResourceHealth>,
    }

    pub(super) struct LightResourceHealth {
        /// The kubelet's id.
        #[serde(rename = "resourceID")]
        pub id: Box<str>,
    }

    pub(super) struct LightClaimStatus {
        /// Which container and resource a claim serves.
        pub request_mappings: Vec<LightClaimMapping>,
    }

    pub(super) struct LightClaimMapping {
        pub container_name: Box<str>,
        pub resource_name: Box<str>,
    }
}

/// The name of a variable, or the place of a volume, where it undoes the limits of GPU shares; of all others nothing is kept.
#[derive(Debug, Clone, Default)]
pub(super) struct Undoing<const MOUNT: bool>(Option<(ShareIsolation, Box<str>)>);

impl<'de, const MOUNT: bool> Deserialize<'de> for Undoing<MOUNT> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        fn undone<const MOUNT: bool>(text: &str) -> Option<(ShareIsolation, Box<str>)> {
            let of = if MOUNT { undone_by_mount(text) } else { undone_by_variable(text) };
            of.map(|of| (of, text.into()))
        }
        from.deserialize_str(OfText(undone::<MOUNT>)).map(Self)
    }
}

/// Whether a message is about devices; nothing else of it is kept.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct AboutDevices(bool);

impl AboutDevices {
    fn of(message: &str) -> Self {
        let words = ["CDI device", "nvidia-container-", "/dev/nvidia", "/dev/infiniband"];
        Self(words.iter().any(|word| message.contains(word)))
    }
}

impl<'de> Deserialize<'de> for AboutDevices {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_str(OfText(Self::of))
    }
}

impl LightContainer {
    /// What of the container undoes the limits of its GPU share, if it has one: by what sets them, one clause each.
    fn undone(&self) -> impl Iterator<Item = (ShareIsolation, Box<str>)> {
        let shares = matches!(self.request(), Ok(ContainerRequest { gpu: Some(GpuRequest::Share { .. }), .. }));
        let variables = self.env.iter().filter_map(|of| of.name.0.as_ref()).map(|of| (of, "sets"));
        let mounts =
            self.volume_mounts.iter().filter_map(|of| of.mount_path.0.as_ref()).map(|of| (of, "has a volume at"));
        let all = variables.chain(mounts).filter(move |_| shares);
        all.map(|((of, what), does)| (*of, format!("container {} {does} {what}", self.name).into()))
    }

    pub fn is_sidecar(&self) -> bool {
        self.restart_policy.as_deref() == Some("Always")
    }

    /// The API server has validated the quantities. A quantity that cannot be read asks for nothing that could be served.
    fn request(&self) -> Result<ContainerRequest, RequestError> {
        let limits = self.resources.limits.iter().filter(|(name, _)| key::is_device_resource(name));
        ContainerRequest::judge(limits.filter_map(|(name, text)| Some((&**name, text.parse::<Quantity>().ok()?))))
    }
}

impl LightPodSpec {
    /// Every container with its kind, init containers first.
    pub fn all_containers(&self) -> impl Iterator<Item = (&LightContainer, ContainerKind)> {
        let init = self.init_containers.iter().map(|container| {
            (container, if container.is_sidecar() { ContainerKind::Sidecar } else { ContainerKind::Init })
        });
        init.chain(self.containers.iter().map(|container| (container, ContainerKind::App)))
    }
}

impl LightContainerStatus {
    /// The container runtime could not make or start it, and its words are about devices. What a pod's author gets wrong (a command
    /// that is not there, a ConfigMap) is not. A container that is not started again has ended with these words, one that waits for its
    /// next start has them in its last state; one that runs has them there too, and is well. An end from before the node has started at
    /// `booted` says nothing of it.
    fn lacks_devices(&self, booted: Option<Timestamp>) -> bool {
        let waits = self.state.waiting.as_ref();
        let waits = waits.filter(|of| matches!(&*of.reason, "CreateContainerError" | "RunContainerError"));
        let ended = self.state.terminated.as_ref().or(self.last_state.terminated.as_ref());
        // The reasons of containerd and of Docker for a container that has never run.
        let ended = ended.filter(|of| matches!(&*of.reason, "StartError" | "ContainerCannotRun"));
        let ended = ended.filter(|of| of.finished_at.zip(booted).is_none_or(|(at, booted)| at >= booted));
        self.state.running.is_none()
            && (waits.is_some_and(|of| AboutDevices::of(&of.message).0) || ended.is_some_and(|of| of.message.0))
    }
}

impl LightPodStatus {
    /// Status of every container, init containers first.
    pub fn all_containers(&self) -> impl Iterator<Item = &LightContainerStatus> {
        self.init_container_statuses.iter().chain(&self.container_statuses)
    }

    /// The kubelet has refused the pod: it failed for a reason of the kubelet's, and no container was ever made.
    pub fn refused(&self) -> bool {
        self.phase.as_deref() == Some("Failed") && self.reason.is_some() && self.all_containers().next().is_none()
    }

    /// The scheduler has found that the pod runs without its devices.
    pub fn unserved(&self) -> bool {
        self.conditions.iter().any(|found| &*found.kind == key::DEVICES_SERVED && &*found.status == "False")
    }

    /// `status.reason` and `status.message`, as far as they say something; `None` when they do not.
    pub fn explanation(&self) -> Option<String> {
        let words = [&self.reason, &self.message].into_iter().flatten().map(|text| &**text);
        let words: Vec<&str> = words.filter(|text| !text.is_empty()).collect();
        (!words.is_empty()).then(|| words.join(": "))
    }
}

impl LightPod {
    /// One annotation.
    pub fn annotation(&self, key: &str) -> Option<&str> {
        self.metadata.annotations.as_ref()?.get(key).map(String::as_str)
    }

    /// The condition of a type.
    pub fn condition(&self, kind: &str) -> Option<&LightCondition> {
        self.status.conditions.iter().find(|condition| &*condition.kind == kind)
    }

    /// Why the pod failed, as its status says; `None` for a pod that has not failed or whose status gives no reason.
    pub fn failure(&self) -> Option<String> {
        self.status.explanation().filter(|_| self.status.phase.as_deref() == Some("Failed"))
    }

    /// What the pod says about the limits of its GPU shares.
    pub(super) fn share_terms(&self) -> Option<Box<ShareTerms>> {
        let provider = self.metadata.labels.as_ref().and_then(|labels| labels.get(key::GPU_ISOLATION_PROVIDER));
        let provider = provider.map(|value| value.as_str().into());
        let undone: Vec<_> = self.spec.all_containers().flat_map(|(container, _)| container.undone()).collect();
        (provider.is_some() || !undone.is_empty()).then(|| Box::new(ShareTerms { provider, undone }))
    }

    /// [`LightPod::handoff`] on a node that has started at `booted`: what the status says to run since before then has ended, and the
    /// kubelet has not written it yet. A start that failed before then is tried again.
    pub fn handoff_since(&self, booted: Option<Timestamp>) -> HandoffPod {
        let mut pod = self.handoff();
        for container in &mut *pod.containers {
            let status = self.status.all_containers().find(|status| status.name == container.name);
            let since = status.and_then(|status| status.state.running.as_ref()?.started_at);
            container.running &= since.zip(booted).is_none_or(|(since, booted)| since >= booted);
            container.lacks_devices = status.is_some_and(|status| status.lacks_devices(booted));
        }
        pod
    }

    /// The hand-off's record.
    pub fn handoff(&self) -> HandoffPod {
        let meta = &self.metadata;
        HandoffPod {
            pod: PodRef::new(
                meta.namespace.as_deref().unwrap_or_default(),
                meta.name.as_deref().unwrap_or_default(),
                meta.uid.as_deref().unwrap_or_default(),
            ),
            node: self.spec.node_name.clone().filter(|node| !node.is_empty()),
            scheduler_name: self.spec.scheduler_name.clone().unwrap_or_else(|| "default-scheduler".into()),
            phase: Phase::of(self.status.phase.as_deref()),
            deleting: meta
                .deletion_timestamp
                .as_ref()
                .map(|at| Deletion { at: at.0, grace_seconds: meta.deletion_grace_period_seconds.unwrap_or(0) }),
            grace_seconds: self
                .spec
                .termination_grace_period_seconds
                .map_or(GRACE, |of| u32::try_from(of).unwrap_or(0)),
            scheduled_condition: self.condition("PodScheduled").is_some_and(|found| &*found.status == "True"),
            resizing: self.resizing(),
            created: meta.creation_timestamp.as_ref().map_or(Timestamp::UNIX_EPOCH, |at| at.0),
            containers: self.handoff_containers().collect(),
            assignment: self.assignment(),
        }
    }

    /// What the spec asks for each container, and what the kubelet shows of it.
    fn handoff_containers(&self) -> impl Iterator<Item = PodContainer> {
        self.spec.all_containers().map(move |(container, kind)| {
            let own = || self.status.all_containers().filter(|of| of.name == container.name);
            let has_started = |of: &LightContainerStatus| {
                of.state.running.is_some() || of.state.terminated.is_some() || of.restart_count > 0
            };
            let end = |of: &LightContainerStatus| {
                [&of.state, &of.last_state].into_iter().find_map(|state| state.terminated.as_ref()?.finished_at)
            };
            PodContainer {
                name: container.name.clone(),
                kind,
                request: container.request(),
                running: own().any(|of| of.state.running.is_some()),
                started: own().any(has_started),
                lacks_devices: own().any(|of| of.lacks_devices(None)),
                ended: own().find_map(end),
                dra_backed: self.dra_backed(&container.name),
            }
        })
    }

    /// What annotations say of its devices and its commit.
    fn assignment(&self) -> AssignmentText {
        let text = |key: &str| self.annotation(key).map(Into::into);
        let hints = self.annotation(key::DEVICE_ALLOCATE_HINT).and_then(|text| parse_hints(text).ok());
        let counting = |kind| {
            hints.as_ref().and_then(|hints| hints.get(&kind)).map_or_else(Counting::default, DeviceHint::counting)
        };
        let bind_timestamp = self.annotation(key::BIND_TIMESTAMP).filter(|text| text.len() <= MAX_NANOS);
        AssignmentText {
            device_allocated: text(key::DEVICE_ALLOCATED),
            container_devices: text(key::CONTAINER_DEVICES),
            bind_timestamp: bind_timestamp.map(Into::into),
            joint: self.annotation(key::DEVICE_JOINT_ALLOCATE).is_some_and(|value| !value.is_empty()),
            gpus: counting(DeviceType::Gpu),
            nics: counting(DeviceType::Rdma),
            committed: self.annotation(key::GANG_COMMITTED).and_then(|text| Committed::parse(text).ok()),
            shares: self.share_terms(),
        }
    }

    /// The kubelet has not read the spec, or has not done what it asks for: it may still try, also what was infeasible before it started
    /// again. What the spec does not name a kubelet fills in from the pod as a whole.
    fn resizing(&self) -> bool {
        let status = &self.status;
        let is_unread = status.observed_generation.zip(self.metadata.generation).is_some_and(|(read, is)| read < is);
        let differs = |asked: &WrittenAmounts, has: &WrittenAmounts| {
            let amount = |of: &WrittenAmounts, name: &str| of.get(name)?.parse::<Quantity>().ok();
            ["cpu", "memory"]
                .iter()
                .any(|name| amount(asked, name).is_some_and(|asked| amount(has, name) != Some(asked)))
        };
        let is_undone = |(asked, _): (&LightContainer, ContainerKind)| {
            let mut has =
                status.all_containers().filter(|of| of.name == asked.name).filter_map(|of| of.resources.as_ref());
            let asked = &asked.resources;
            has.any(|has| differs(&asked.requests, &has.requests) || differs(&asked.limits, &has.limits))
        };
        is_unread || self.condition("PodResizePending").is_some() || self.spec.all_containers().any(is_undone)
    }

    /// The kubelet's ids by container and resource, as the statuses of the containers name them.
    pub fn reported(&self) -> ListedContainers {
        let reported = self.status.all_containers().filter(|status| !status.allocated_resources_status.is_empty());
        let ids = |entry: &LightResourceStatus| entry.resources.iter().map(|device| device.id.clone()).collect();
        let of_container = |status: &LightContainerStatus| {
            let resources = status.allocated_resources_status.iter().map(|entry| (entry.name.clone(), ids(entry)));
            (status.name.clone(), resources.collect())
        };
        reported.map(of_container).collect()
    }

    fn dra_backed(&self, container: &str) -> Vec<Box<str>> {
        let mappings = self.status.extended_resource_claim_status.iter().flat_map(|claim| &claim.request_mappings);
        mappings.filter(|m| &*m.container_name == container).map(|m| m.resource_name.clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_start_lacks_devices_by_the_words_of_their_runtime_and_not_of_an_image() {
        let lacks = |message: &str| {
            let state = serde_json::json!({"waiting": {"reason": "RunContainerError", "message": message}});
            serde_json::from_value::<LightContainerStatus>(serde_json::json!({"name": "main", "state": state}))
                .unwrap()
                .lacks_devices(None)
        };
        for (message, expected) in [
            (
                "error modifying OCI spec: failed to inject CDI devices: unresolvable CDI devices nvidia.com/gpu=all: unknown",
                true,
            ),
            (
                "error running hook #0: exit status 1: nvidia-container-cli: detection error: nvml error: unknown error",
                true,
            ),
            ("fork/exec /usr/bin/nvidia-container-runtime: no such file or directory", true),
            ("error gathering device information while adding custom device \"/dev/nvidia3\": no such file", true),
            ("error gathering device information while adding custom device \"/dev/infiniband/uverbs0\"", true),
            ("exec: \"nvidia-smi\": executable file not found in $PATH", false),
            ("exec: \"/opt/nvidia/nvidia_entrypoint.sh\": permission denied", false),
        ] {
            assert_eq!(lacks(message), expected, "{message}");
        }
    }

    #[test]
    fn a_start_that_failed_for_good_or_until_the_next_one_lacks_devices() {
        let words = "error running hook #0: nvidia-container-cli: nvml error: unknown error";
        let ended =
            |reason: &str| serde_json::json!({"terminated": {"exitCode": 128, "reason": reason, "message": words}});
        let backs_off = || serde_json::json!({"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 10s"}});
        let (runs, never) = (serde_json::json!({"running": {}}), serde_json::json!({}));
        for (state, last, expected) in [
            (ended("StartError"), never.clone(), true),
            (ended("ContainerCannotRun"), never.clone(), true),
            (ended("Error"), never.clone(), false),
            (backs_off(), ended("StartError"), true),
            (backs_off(), ended("Error"), false),
            (runs, ended("StartError"), false),
            (ended("Completed"), ended("StartError"), false),
            (never.clone(), never, false),
        ] {
            let status = serde_json::json!({"name": "main", "state": state, "lastState": last});
            let read = serde_json::from_value::<LightContainerStatus>(status.clone()).unwrap();
            assert_eq!(read.lacks_devices(None), expected, "{status}");
        }
        let read = |ended: serde_json::Value| {
            let status = serde_json::json!({"name": "main", "lastState": {"terminated": ended}});
            serde_json::from_value::<LightContainerStatus>(status).unwrap()
        };
        assert!(!read(serde_json::json!({"exitCode": 128, "reason": "StartError"})).lacks_devices(None), "no words");
        let at = |time: &str| Some(time.parse::<Timestamp>().unwrap());
        let end = serde_json::json!({"reason": "StartError", "message": words, "finishedAt": "2026-11-29T22:05:28Z"});
        let lacks = |booted| read(end.clone()).lacks_devices(booted);
        assert!(lacks(None) && lacks(at("2026-11-29T22:05:28Z")) && !lacks(at("2026-11-29T22:05:29Z")));
    }

    /// As a kubelet 1.36.3 shows it: `.ci/real-node.lost`.
    #[test]
    fn a_pod_is_being_resized_until_its_kubelet_says_that_it_has_what_it_asks_for() {
        let pod = |change: fn(&mut serde_json::Value)| {
            let asked = serde_json::json!({"limits": {"nvidia.com/gpu": "1"}, "requests": {"cpu": "100m", "nvidia.com/gpu": "1"}});
            let mut pod = serde_json::json!({
                "metadata": {"name": "p", "namespace": "ml", "uid": "u", "generation": 2},
                "spec": {"nodeName": "n", "initContainers": [{"name": "init", "resources": {"requests": {"cpu": "1"}}}],
                    "containers": [{"name": "main", "resources": asked}]},
                "status": {"observedGeneration": 2, "initContainerStatuses": [{"name": "init", "state": {"terminated": {"exitCode": 0}}}],
                    "containerStatuses": [{"name": "main", "resources": asked,
                        "state": {"waiting": {"reason": "CreateContainerConfigError"}},
                        "lastState": {"terminated": {"exitCode": 137, "finishedAt": "2026-11-29T22:05:28Z"}}}]}});
            change(&mut pod);
            serde_json::from_value::<LightPod>(pod).unwrap().handoff()
        };
        let plain = pod(|_| {});
        assert!(!plain.resizing);
        assert_eq!(plain.containers[1].ended.unwrap().to_string(), "2026-11-29T22:05:28Z");
        assert!(pod(|pod| pod["metadata"]["generation"] = 3.into()).resizing, "the kubelet has not read it");
        assert!(pod(|pod| pod["spec"]["containers"][0]["resources"]["requests"]["cpu"] = "200m".into()).resizing);
        assert!(!pod(|pod| pod["spec"]["containers"][0]["resources"]["requests"]["cpu"] = "0.1".into()).resizing);
        let pending = pod(|pod| {
            pod["status"]["conditions"] =
                serde_json::json!([{"type": "PodResizePending", "status": "True", "reason": "Infeasible"}]);
        });
        assert!(pending.resizing);
        assert!(
            pod(|pod| pod["spec"]["containers"][0]["resources"]["limits"]["cpu"] = "1".into()).resizing,
            "the first"
        );
        let of_pod = pod(|pod| pod["status"]["containerStatuses"][0]["resources"]["limits"]["cpu"] = "2".into());
        assert!(!of_pod.resizing, "the limit of the pod as a whole");
        let old = pod(|pod| {
            // Before 1.33 a kubelet says neither.
            pod["status"]["observedGeneration"] = serde_json::Value::Null;
            pod["status"]["containerStatuses"][0]["resources"] = serde_json::Value::Null;
        });
        assert!(!old.resizing);
    }

    #[test]
    fn a_pod_of_all_container_kinds_becomes_a_record() {
        let pod: LightPod = serde_json::from_value(serde_json::json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": "p", "namespace": "ml", "uid": "u", "creationTimestamp": "2026-11-21T02:00:00Z",
                "annotations": {key::BIND_TIMESTAMP: "1"}, "deletionTimestamp": "2026-11-21T02:01:00Z", "deletionGracePeriodSeconds": 30},
            "spec": {"nodeName": "n", "schedulerName": "baton-scheduler",
                "initContainers": [
                    {"name": "init", "resources": {"limits": {"nvidia.com/gpu": "1", "cpu": "1"}}},
                    {"name": "side", "restartPolicy": "Always"}],
                "containers": [{"name": "main", "resources": {"limits": {"koordinator.sh/gpu-core": "50"}}}]},
            "status": {"phase": "Running", "conditions": [{"type": "PodScheduled", "status": "True"}],
                "initContainerStatuses": [{"name": "init"}],
                "containerStatuses": [{"name": "main", "state": {"running": {"startedAt": "2026-11-21T02:00:01Z"}},
                    "allocatedResourcesStatus": [{"name": "koordinator.sh/gpu-core", "resources": [
                        {"resourceID": "GPU-a::1", "health": "Healthy"}, {"resourceID": "GPU-a::2", "health": "Unknown"}]}]}],
                "extendedResourceClaimStatus": {"requestMappings": [{"containerName": "init", "resourceName": "nvidia.com/gpu"}]}}
        }))
        .unwrap();
        let runs = |booted: &str| pod.handoff_since(Some(booted.parse().unwrap())).containers.iter().any(|c| c.running);
        assert!(
            runs("2026-11-21T02:00:01Z") && !runs("2026-11-21T02:00:02Z"),
            "it ran before the node has started again"
        );
        let record = pod.handoff();
        assert_eq!(pod.handoff_since(None), record);
        let kinds: Vec<_> =
            record.containers.iter().map(|c| (&*c.name, c.kind, c.running, c.request.is_ok())).collect();
        assert_eq!(
            kinds,
            [
                ("init", ContainerKind::Init, false, true),
                ("side", ContainerKind::Sidecar, false, true),
                ("main", ContainerKind::App, true, false)
            ]
        );
        assert!(record.is_live() && record.scheduled_condition);
        assert_eq!(record.deleting.unwrap().grace_seconds, 30);
        assert_eq!(record.assignment.bind_timestamp.as_deref(), Some("1"));
        let reported = serde_json::to_value(pod.reported()).unwrap();
        assert_eq!(reported, serde_json::json!({"main": {"koordinator.sh/gpu-core": ["GPU-a::1", "GPU-a::2"]}}));
        assert_eq!(record.expected_calls(|_| true).count(), 0, "DRA-backed and invalid requests make no call");
    }
}

//! Pods at the border: a light wire type that holds only what the hand-off reads, and its conversion.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Pod;
use kube::Resource;
use kube::api::ObjectMeta;
use serde::Deserialize;

use crate::contract::gang::Committed;
use crate::contract::hint::{Counting, DeviceHint, parse_hints};
use crate::contract::{ContainerRequest, DeviceType, PodRef, Quantity, key};
use crate::decide::handoff::ListedContainers;
use crate::decide::pod::{AssignmentText, ContainerKind, Deletion, HandoffPod, Phase, PodContainer};

/// A pod with the fields that the hand-off needs; the rest is skipped while parsing. Watch and read with it, never write.
#[derive(Debug, Clone, Deserialize, Resource)]
#[resource(inherit = Pod)]
pub struct LightPod {
    /// Metadata.
    #[serde(deserialize_with = "super::light_meta::read")]
    pub metadata: ObjectMeta,
    /// Desired state.
    #[serde(default)]
    pub spec: LightPodSpec,
    /// Observed state.
    #[serde(default)]
    pub status: LightPodStatus,
}

/// Part of `spec`.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct LightPodSpec {
    /// Node, once bound.
    pub node_name: Option<Box<str>>,
    /// Scheduler.
    pub scheduler_name: Option<Box<str>>,
    /// Init containers and sidecars.
    pub init_containers: Vec<LightContainer>,
    /// App containers.
    pub containers: Vec<LightContainer>,
}

/// Part of a container.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct LightContainer {
    /// Name.
    pub name: Box<str>,
    /// `Always` makes an init container a sidecar.
    pub restart_policy: Option<Box<str>>,
    /// Limits and requests.
    pub resources: LightResources,
}

/// Part of `resources`.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct LightResources {
    /// What the kubelet hands out.
    pub limits: BTreeMap<Box<str>, Box<str>>,
}

/// Part of `status`.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct LightPodStatus {
    /// Phase.
    pub phase: Option<Box<str>>,
    /// Why the pod is in it; a kubelet that refuses a pod says it here.
    pub reason: Option<serde::de::IgnoredAny>,
    /// Conditions.
    pub conditions: Vec<LightCondition>,
    /// Init containers and sidecars.
    pub init_container_statuses: Vec<LightContainerStatus>,
    /// App containers.
    pub container_statuses: Vec<LightContainerStatus>,
    /// Where others make room for it.
    pub nominated_node_name: Option<Box<str>>,
    /// Extended resources that a DRA claim serves.
    pub extended_resource_claim_status: Option<LightClaimStatus>,
}

impl LightPodStatus {
    /// The kubelet has refused the pod: it failed for a reason of the kubelet's, and no container was ever made.
    pub fn refused(&self) -> bool {
        let made = !self.init_container_statuses.is_empty() || !self.container_statuses.is_empty();
        self.phase.as_deref() == Some("Failed") && self.reason.is_some() && !made
    }
}

/// Part of a condition.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct LightCondition {
    /// E.g. `PodScheduled`.
    #[serde(rename = "type")]
    pub kind: Box<str>,
    /// `True`, `False` or `Unknown`.
    pub status: Box<str>,
    /// One word why.
    pub reason: Box<str>,
}

/// Part of a container status.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct LightContainerStatus {
    /// Container.
    pub name: Box<str>,
    /// Only `running` matters.
    pub state: LightState,
    /// What the container has now; differs from the spec while it is resized.
    pub resources: Option<LightRequests>,
    /// What the node keeps for the container.
    #[serde(rename = "allocatedResources")]
    pub kept: BTreeMap<Box<str>, Box<str>>,
    /// Devices that the kubelet says the container has (KEP-4680); absent where the kubelet does not tell.
    #[serde(rename = "allocatedResourcesStatus")]
    pub allocated: Vec<LightResourceStatus>,
}

/// Part of the resources in a container status.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct LightRequests {
    /// `requests`.
    pub requests: BTreeMap<Box<str>, Box<str>>,
}

/// One entry of `allocatedResourcesStatus`.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct LightResourceStatus {
    /// Resource name, or `claim:<name>/<request>` of a DRA claim.
    pub name: Box<str>,
    /// Its devices.
    pub resources: Vec<LightResourceHealth>,
}

/// One device of a container, as its status names it.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct LightResourceHealth {
    /// The kubelet's id.
    #[serde(rename = "resourceID")]
    pub id: Box<str>,
}

/// Part of a container state.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct LightState {
    /// There while the container runs.
    pub running: Option<serde::de::IgnoredAny>,
}

/// `status.extendedResourceClaimStatus`.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct LightClaimStatus {
    /// Which container and resource a claim serves.
    pub request_mappings: Vec<LightClaimMapping>,
}

/// One mapping of a claim.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct LightClaimMapping {
    /// Container.
    pub container_name: Box<str>,
    /// Extended resource.
    pub resource_name: Box<str>,
}

impl LightPod {
    /// The hand-off's record.
    pub fn handoff(&self) -> HandoffPod {
        let meta = &self.metadata;
        let text =
            |key: &str| meta.annotations.as_ref().and_then(|map| map.get(key)).map(|value| value.as_str().into());
        let hints = meta.annotations.as_ref().and_then(|map| parse_hints(map.get(key::DEVICE_ALLOCATE_HINT)?).ok());
        let counting = |kind| {
            hints.as_ref().and_then(|hints| hints.get(&kind)).map_or_else(Counting::default, DeviceHint::counting)
        };
        let status = &self.status;
        let running = |name: &str| {
            let mut all = status.init_container_statuses.iter().chain(&status.container_statuses);
            all.any(|container| &*container.name == name && container.state.running.is_some())
        };
        let init = self.spec.init_containers.iter().map(|container| {
            let sidecar = container.restart_policy.as_deref() == Some("Always");
            (container, if sidecar { ContainerKind::Sidecar } else { ContainerKind::Init })
        });
        let app = self.spec.containers.iter().map(|container| (container, ContainerKind::App));
        let containers = init.chain(app).map(|(container, kind)| PodContainer {
            name: container.name.clone(),
            kind,
            request: judge(&container.resources),
            running: running(&container.name),
            dra_backed: self.dra_backed(&container.name),
        });
        HandoffPod {
            pod: PodRef::new(
                meta.namespace.as_deref().unwrap_or_default(),
                meta.name.as_deref().unwrap_or_default(),
                meta.uid.as_deref().unwrap_or_default(),
            ),
            node: self.spec.node_name.clone().filter(|node| !node.is_empty()),
            scheduler_name: self.spec.scheduler_name.clone().unwrap_or_else(|| "default-scheduler".into()),
            phase: Phase::of(status.phase.as_deref()),
            deleting: meta
                .deletion_timestamp
                .as_ref()
                .map(|at| Deletion { at: at.0, grace_seconds: meta.deletion_grace_period_seconds.unwrap_or(0) }),
            scheduled_condition: status.conditions.iter().any(|c| &*c.kind == "PodScheduled" && &*c.status == "True"),
            created: meta.creation_timestamp.as_ref().map_or(jiff::Timestamp::UNIX_EPOCH, |at| at.0),
            containers: containers.collect(),
            assignment: AssignmentText {
                device_allocated: text(key::DEVICE_ALLOCATED),
                container_devices: text(key::CONTAINER_DEVICES),
                bind_timestamp: text(key::BIND_TIMESTAMP),
                joint: text(key::DEVICE_JOINT_ALLOCATE).is_some_and(|value: Box<str>| !value.is_empty()),
                gpus: counting(DeviceType::Gpu),
                nics: counting(DeviceType::Rdma),
                committed: meta
                    .annotations
                    .as_ref()
                    .and_then(|map| map.get(key::GANG_COMMITTED))
                    .and_then(|text| Committed::parse(text).ok()),
            },
        }
    }

    /// The kubelet's ids by container and resource, as the statuses of the containers name them.
    pub fn reported(&self) -> ListedContainers {
        let statuses = self.status.init_container_statuses.iter().chain(&self.status.container_statuses);
        let told = statuses.filter(|status| !status.allocated.is_empty());
        let ids = |entry: &LightResourceStatus| entry.resources.iter().map(|device| device.id.clone()).collect();
        told.map(|status| {
            let resources = status.allocated.iter().map(|entry| (entry.name.clone(), ids(entry)));
            (status.name.clone(), resources.collect())
        })
        .collect()
    }

    fn dra_backed(&self, container: &str) -> Vec<Box<str>> {
        let mappings = self.status.extended_resource_claim_status.iter().flat_map(|claim| &claim.request_mappings);
        mappings.filter(|m| &*m.container_name == container).map(|m| m.resource_name.clone()).collect()
    }
}

/// The API server has validated the quantities; one that we cannot read asks for nothing that we could serve.
fn judge(resources: &LightResources) -> Result<ContainerRequest, crate::contract::RequestError> {
    let limits = resources.limits.iter().filter(|(name, _)| key::is_device_resource(name));
    ContainerRequest::judge(limits.filter_map(|(name, text)| Some((&**name, text.parse::<Quantity>().ok()?))))
}

#[cfg(test)]
mod tests {
    use super::*;

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
        let record = pod.handoff();
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

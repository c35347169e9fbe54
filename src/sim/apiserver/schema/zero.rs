//! Fields that a real server always writes, because its Go types have no `omitempty` there.

use serde_json::{Map, Value, json};

use super::Schema;

/// Kinds whose spec and status are always written.
const WITH_STATUS: [&str; 17] = [
    "core.v1.Pod",
    "core.v1.Node",
    "core.v1.Namespace",
    "core.v1.PersistentVolume",
    "core.v1.PersistentVolumeClaim",
    "apps.v1.Deployment",
    "apps.v1.ReplicaSet",
    "apps.v1.StatefulSet",
    "apps.v1.DaemonSet",
    "batch.v1.Job",
    "batch.v1.CronJob",
    "policy.v1.PodDisruptionBudget",
    "core.v1.ReplicationController",
    "core.v1.ResourceQuota",
    "resource.v1.ResourceClaim",
    "admissionregistration.v1.ValidatingAdmissionPolicy",
    "apiextensions.v1.CustomResourceDefinition",
];

/// Adds to a struct of type `full` (e.g. `core.v1.PodCondition`) what is always written.
pub(super) fn fill(full: &str, map: &mut Map<String, Value>) {
    let Value::Object(fields) = always_written(full) else { return };
    for (key, value) in fields {
        let slot = map.entry(key).or_insert(Value::Null);
        if slot.is_null() {
            *slot = value;
        }
    }
}

/// What is always written of a type, with the values of an empty one.
fn always_written(full: &str) -> Value {
    match full {
        _ if WITH_STATUS.contains(&full) => json!({"spec": {}, "status": {}}),
        "core.v1.NodeCondition" => json!({"lastHeartbeatTime": null, "lastTransitionTime": null}),
        "core.v1.PodCondition" | "core.v1.PersistentVolumeClaimCondition" => {
            json!({"lastProbeTime": null, "lastTransitionTime": null})
        }
        "core.v1.Service" => json!({"spec": {}, "status": {"loadBalancer": {}}}),
        "coordination.v1.Lease" | "admissionregistration.v1.ValidatingAdmissionPolicyBinding" => json!({"spec": {}}),
        "admissionregistration.v1.Validation"
        | "admissionregistration.v1.MatchCondition"
        | "admissionregistration.v1.Variable" => json!({"expression": ""}),
        "core.v1.PodSpec" => json!({"containers": null}),
        "core.v1.Container" | "core.v1.EphemeralContainer" => json!({"resources": {}}),
        "core.v1.NodeStatus" => json!({"daemonEndpoints": {"kubeletEndpoint": {"Port": 0}}, "nodeInfo": {}}),
        "core.v1.NodeSystemInfo" => json!({
            "machineID": "", "systemUUID": "", "bootID": "", "kernelVersion": "", "osImage": "",
            "containerRuntimeVersion": "", "kubeletVersion": "", "kubeProxyVersion": "", "operatingSystem": "",
            "architecture": "",
        }),
        "core.v1.NodeDaemonEndpoints" => json!({"kubeletEndpoint": {"Port": 0}}),
        "core.v1.ContainerStatus" => json!({
            "ready": false, "restartCount": 0, "image": "", "imageID": "", "state": {}, "lastState": {},
        }),
        "core.v1.Event" => json!({
            "involvedObject": {}, "source": {}, "firstTimestamp": null, "lastTimestamp": null, "eventTime": null,
            "reportingComponent": "", "reportingInstance": "",
        }),
        "events.v1.Event" => json!({
            "eventTime": null, "regarding": {}, "deprecatedSource": {}, "deprecatedFirstTimestamp": null,
            "deprecatedLastTimestamp": null,
        }),
        "policy.v1.PodDisruptionBudgetStatus" => json!({
            "disruptionsAllowed": 0, "currentHealthy": 0, "desiredHealthy": 0, "expectedPods": 0,
        }),
        "apps.v1.DaemonSetStatus" => json!({
            "currentNumberScheduled": 0, "numberMisscheduled": 0, "desiredNumberScheduled": 0, "numberReady": 0,
        }),
        "apps.v1.ReplicaSetStatus" => json!({"replicas": 0}),
        "apps.v1.StatefulSetStatus" => json!({"replicas": 0, "availableReplicas": 0}),
        "apps.v1.DeploymentSpec" => json!({"strategy": {}}),
        "apps.v1.StatefulSetSpec" | "apps.v1.DaemonSetSpec" => json!({"updateStrategy": {}}),
        "core.v1.PodTemplateSpec" => json!({"metadata": {}, "spec": {}}),
        "apiextensions.v1.CustomResourceDefinitionSpec" => {
            json!({"group": "", "names": {}, "scope": "", "versions": null})
        }
        "apiextensions.v1.CustomResourceDefinitionStatus" => {
            json!({"conditions": null, "acceptedNames": {}, "storedVersions": null})
        }
        "apiextensions.v1.CustomResourceDefinitionNames" => json!({"plural": "", "kind": ""}),
        _ => Value::Null,
    }
}

/// The empty object of a kind as a real server serialises it: what a create is compared with for field ownership.
pub fn zero_object(schema: &Schema) -> Value {
    match super::decode(schema, json!({"metadata": {}})) {
        Ok(decoded) => decoded.value,
        Err(_) => json!({"metadata": {}}),
    }
}

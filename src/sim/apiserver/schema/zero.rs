//! Fields that a real server always writes, because its Go types have no `omitempty` there.

use serde_json::{Value, json};

use super::Schema;

/// Adds to a struct of type `full` (e.g. `core.v1.PodCondition`) what is always written.
pub(super) fn fill(full: &str, map: &mut serde_json::Map<String, Value>) {
    let mut set = |key: &str, value: Value| {
        let slot = map.entry(key.to_owned()).or_insert(Value::Null);
        if slot.is_null() {
            *slot = value;
        }
    };
    match full {
        "core.v1.NodeCondition" => {
            set("lastHeartbeatTime", Value::Null);
            set("lastTransitionTime", Value::Null);
        }
        "core.v1.PodCondition" | "core.v1.PersistentVolumeClaimCondition" => {
            set("lastProbeTime", Value::Null);
            set("lastTransitionTime", Value::Null);
        }
        "core.v1.Pod"
        | "core.v1.Node"
        | "core.v1.Namespace"
        | "core.v1.PersistentVolume"
        | "core.v1.PersistentVolumeClaim"
        | "apps.v1.Deployment"
        | "apps.v1.ReplicaSet"
        | "apps.v1.StatefulSet"
        | "apps.v1.DaemonSet"
        | "batch.v1.Job"
        | "batch.v1.CronJob"
        | "policy.v1.PodDisruptionBudget"
        | "core.v1.ReplicationController"
        | "core.v1.ResourceQuota"
        | "resource.v1.ResourceClaim"
        | "admissionregistration.v1.ValidatingAdmissionPolicy"
        | "apiextensions.v1.CustomResourceDefinition" => {
            set("spec", json!({}));
            set("status", json!({}));
        }
        "core.v1.Service" => {
            set("spec", json!({}));
            set("status", json!({"loadBalancer": {}}));
        }
        "coordination.v1.Lease" | "admissionregistration.v1.ValidatingAdmissionPolicyBinding" => set("spec", json!({})),
        "admissionregistration.v1.Validation"
        | "admissionregistration.v1.MatchCondition"
        | "admissionregistration.v1.Variable" => set("expression", json!("")),
        "core.v1.PodSpec" => set("containers", Value::Null),
        "core.v1.Container" | "core.v1.EphemeralContainer" => set("resources", json!({})),
        "core.v1.NodeStatus" => {
            set("daemonEndpoints", json!({"kubeletEndpoint": {"Port": 0}}));
            set("nodeInfo", json!({}));
        }
        "core.v1.NodeSystemInfo" => {
            for key in [
                "machineID",
                "systemUUID",
                "bootID",
                "kernelVersion",
                "osImage",
                "containerRuntimeVersion",
                "kubeletVersion",
                "kubeProxyVersion",
                "operatingSystem",
                "architecture",
            ] {
                set(key, json!(""));
            }
        }
        "core.v1.NodeDaemonEndpoints" => set("kubeletEndpoint", json!({"Port": 0})),
        "core.v1.ContainerStatus" => {
            set("ready", json!(false));
            set("restartCount", json!(0));
            set("image", json!(""));
            set("imageID", json!(""));
            set("state", json!({}));
            set("lastState", json!({}));
        }
        "core.v1.Event" => {
            set("involvedObject", json!({}));
            set("source", json!({}));
            set("firstTimestamp", Value::Null);
            set("lastTimestamp", Value::Null);
            set("eventTime", Value::Null);
            set("reportingComponent", json!(""));
            set("reportingInstance", json!(""));
        }
        "events.v1.Event" => {
            set("eventTime", Value::Null);
            set("regarding", json!({}));
            set("deprecatedSource", json!({}));
            set("deprecatedFirstTimestamp", Value::Null);
            set("deprecatedLastTimestamp", Value::Null);
        }
        "policy.v1.PodDisruptionBudgetStatus" => {
            for key in ["disruptionsAllowed", "currentHealthy", "desiredHealthy", "expectedPods"] {
                set(key, json!(0));
            }
        }
        "apps.v1.DaemonSetStatus" => {
            for key in ["currentNumberScheduled", "numberMisscheduled", "desiredNumberScheduled", "numberReady"] {
                set(key, json!(0));
            }
        }
        "apps.v1.ReplicaSetStatus" => set("replicas", json!(0)),
        "apps.v1.StatefulSetStatus" => {
            set("replicas", json!(0));
            set("availableReplicas", json!(0));
        }
        "apps.v1.DeploymentSpec" => set("strategy", json!({})),
        "apps.v1.StatefulSetSpec" | "apps.v1.DaemonSetSpec" => set("updateStrategy", json!({})),
        "core.v1.PodTemplateSpec" => {
            set("metadata", json!({}));
            set("spec", json!({}));
        }
        "apiextensions.v1.CustomResourceDefinitionSpec" => {
            set("group", json!(""));
            set("names", json!({}));
            set("scope", json!(""));
            set("versions", Value::Null);
        }
        "apiextensions.v1.CustomResourceDefinitionStatus" => {
            set("conditions", Value::Null);
            set("acceptedNames", json!({}));
            set("storedVersions", Value::Null);
        }
        "apiextensions.v1.CustomResourceDefinitionNames" => {
            set("plural", json!(""));
            set("kind", json!(""));
        }
        _ => {}
    }
}

/// The empty object of a kind as a real server serialises it: what a create is compared with for field ownership.
pub fn zero_object(schema: &Schema) -> Value {
    match super::decode(schema, json!({"metadata": {}})) {
        Ok(decoded) => decoded.value,
        Err(_) => json!({"metadata": {}}),
    }
}

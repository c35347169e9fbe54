//! Defaults by kind.

use serde_json::{Value, json};

use super::pod::{self, set};
use crate::apiserver::resource::Resource;

/// Defaults that belong to the type and are owned by the manager that writes the object.
pub fn decode_time(resource: &Resource, value: &mut Value) {
    match (resource.group.as_str(), resource.plural.as_str()) {
        ("", "pods") => pod::spec(&mut value["spec"]),
        ("", "podtemplates" | "replicationcontrollers") => pod::template(value, &["template"], "/spec/template/spec"),
        ("apps", "deployments" | "replicasets" | "statefulsets" | "daemonsets") | ("batch", "jobs") => {
            workload(&resource.plural, value);
        }
        ("", "namespaces") => {
            let name = value["metadata"]["name"].clone();
            set(value, "/metadata", "labels", json!({}));
            value["metadata"]["labels"]["kubernetes.io/metadata.name"] = name;
        }
        ("", "secrets") => set(value, "", "type", json!("Opaque")),
        ("", "services") => {
            set(value, "/spec", "type", json!("ClusterIP"));
            set(value, "/spec", "sessionAffinity", json!("None"));
            set(value, "/spec", "internalTrafficPolicy", json!("Cluster"));
            for port in value["spec"]["ports"].as_array_mut().into_iter().flatten() {
                set(port, "", "protocol", json!("TCP"));
                let target = port["port"].clone();
                set(port, "", "targetPort", target);
            }
        }
        ("", "persistentvolumes") => {
            set(value, "/spec", "persistentVolumeReclaimPolicy", json!("Retain"));
            set(value, "/spec", "volumeMode", json!("Filesystem"));
        }
        ("", "persistentvolumeclaims") => set(value, "/spec", "volumeMode", json!("Filesystem")),
        ("storage.k8s.io", "storageclasses") => {
            set(value, "", "reclaimPolicy", json!("Delete"));
            set(value, "", "volumeBindingMode", json!("Immediate"));
        }
        ("storage.k8s.io", "csidrivers") => {
            set(value, "/spec", "attachRequired", json!(true));
            set(value, "/spec", "podInfoOnMount", json!(false));
            set(value, "/spec", "storageCapacity", json!(false));
            set(value, "/spec", "fsGroupPolicy", json!("ReadWriteOnceWithFSType"));
            set(value, "/spec", "volumeLifecycleModes", json!(["Persistent"]));
            set(value, "/spec", "requiresRepublish", json!(false));
        }
        ("scheduling.k8s.io", "priorityclasses") => set(value, "", "preemptionPolicy", json!("PreemptLowerPriority")),
        ("rbac.authorization.k8s.io", "clusterrolebindings" | "rolebindings") => {
            for subject in value["subjects"].as_array_mut().into_iter().flatten() {
                if subject["kind"] != "ServiceAccount" {
                    set(subject, "", "apiGroup", json!("rbac.authorization.k8s.io"));
                }
            }
        }
        ("admissionregistration.k8s.io", "validatingadmissionpolicies") => {
            set(value, "/spec", "failurePolicy", json!("Fail"));
            match_resources(value, "/spec/matchConstraints");
        }
        ("admissionregistration.k8s.io", "validatingadmissionpolicybindings") => {
            match_resources(value, "/spec/matchResources");
        }
        ("apiextensions.k8s.io", "customresourcedefinitions") => definition(value),
        _ => {}
    }
}

/// What makes pods by a template.
fn workload(plural: &str, value: &mut Value) {
    pod::template(value, &[], "/spec/template/spec");
    match plural {
        "deployments" => {
            set(value, "/spec", "replicas", json!(1));
            set(value, "/spec", "revisionHistoryLimit", json!(10));
            set(value, "/spec", "progressDeadlineSeconds", json!(600));
            set(value, "/spec/strategy", "type", json!("RollingUpdate"));
            if value["spec"]["strategy"]["type"] == "RollingUpdate" {
                set(value, "/spec/strategy", "rollingUpdate", json!({"maxUnavailable": "25%", "maxSurge": "25%"}));
            }
        }
        "replicasets" => set(value, "/spec", "replicas", json!(1)),
        "statefulsets" => {
            set(value, "/spec", "replicas", json!(1));
            set(value, "/spec", "revisionHistoryLimit", json!(10));
            set(value, "/spec", "podManagementPolicy", json!("OrderedReady"));
            set(value, "/spec/updateStrategy", "type", json!("RollingUpdate"));
        }
        "daemonsets" => {
            set(value, "/spec", "revisionHistoryLimit", json!(10));
            set(value, "/spec/updateStrategy", "type", json!("RollingUpdate"));
            if value["spec"]["updateStrategy"]["type"] == "RollingUpdate" {
                let rolling = json!({"maxUnavailable": 1, "maxSurge": 0});
                set(value, "/spec/updateStrategy", "rollingUpdate", rolling);
            }
        }
        "jobs" => {
            for (key, default) in [
                ("parallelism", json!(1)),
                ("completions", json!(1)),
                ("backoffLimit", json!(6)),
                ("suspend", json!(false)),
                ("completionMode", json!("NonIndexed")),
                ("manualSelector", json!(false)),
                ("podReplacementPolicy", json!("TerminatingOrFailed")),
            ] {
                set(value, "/spec", key, default);
            }
        }
        _ => {}
    }
}

/// What an admission policy or its binding matches.
fn match_resources(value: &mut Value, at: &str) {
    set(value, at, "matchPolicy", json!("Equivalent"));
    set(value, at, "namespaceSelector", json!({}));
    set(value, at, "objectSelector", json!({}));
    for rules in ["resourceRules", "excludeResourceRules"] {
        let list = value.pointer_mut(&format!("{at}/{rules}")).and_then(Value::as_array_mut);
        for rule in list.into_iter().flatten() {
            set(rule, "", "scope", json!("*"));
        }
    }
}

fn definition(value: &mut Value) {
    let kind = value["spec"]["names"]["kind"].as_str().unwrap_or_default().to_owned();
    set(value, "/spec/names", "singular", json!(kind.to_lowercase()));
    set(value, "/spec/names", "listKind", json!(format!("{kind}List")));
    set(value, "/spec", "conversion", json!({"strategy": "None"}));
    let none = value["status"]["storedVersions"].as_array().is_none_or(Vec::is_empty);
    if none {
        let stored = value["spec"]["versions"]
            .as_array()
            .into_iter()
            .flatten()
            .find(|v| v["storage"] == true)
            .map(|v| v["name"].clone());
        value["status"]["storedVersions"] = stored.into_iter().collect();
    }
}

//! What creation itself sets: the status that every object starts with.

use serde_json::{Map, Value, json};

use crate::apiserver::resource::Resource;
use crate::apiserver::schema::zero_object;
use crate::apiserver::validate::quantity;

/// Resets what a client cannot bring along and sets the first status.
pub fn prepare(resource: &Resource, value: &mut Value) {
    if let Some(custom) = &resource.custom {
        if custom.status_subresource
            && let Some(map) = value.as_object_mut()
        {
            map.remove("status");
        }
        return;
    }
    match (resource.group.as_str(), resource.plural.as_str()) {
        // A kubelet registers its node with a status.
        ("", "nodes") => {}
        ("", "pods") => {
            let qos = qos(&value["spec"]);
            value["status"] = json!({"phase": "Pending", "qosClass": qos});
            if value["spec"]["schedulingGates"].as_array().is_some_and(|g| !g.is_empty()) {
                value["status"]["conditions"] = json!([{
                    "type": "PodScheduled", "status": "False", "reason": "SchedulingGated",
                    "message": "Scheduling is blocked due to non-empty scheduling gates",
                    "lastProbeTime": null, "lastTransitionTime": null,
                }]);
            }
        }
        ("", "namespaces") => {
            value["status"] = json!({"phase": "Active"});
            value["spec"]["finalizers"] = json!(["kubernetes"]);
        }
        ("", "persistentvolumes" | "persistentvolumeclaims") => value["status"] = json!({"phase": "Pending"}),
        ("apiextensions.k8s.io", "customresourcedefinitions") => {
            let stored = value["status"]["storedVersions"].clone();
            value["status"] =
                json!({"conditions": null, "acceptedNames": {"plural": "", "kind": ""}, "storedVersions": stored});
        }
        _ if resource.has_status() => {
            let zero = zero_object(&resource.schema);
            match zero.get("status") {
                Some(status) => value["status"] = status.clone(),
                None => {
                    if let Some(map) = value.as_object_mut() {
                        map.remove("status");
                    }
                }
            }
        }
        _ => {}
    }
}

/// The quality-of-service class of a pod spec.
pub fn qos(spec: &Value) -> &'static str {
    let mut any = false;
    let mut guaranteed = true;
    let groups = ["containers", "initContainers"];
    for container in groups.iter().flat_map(|g| spec[*g].as_array().into_iter().flatten()) {
        let map = |key: &str| container["resources"][key].as_object().cloned().unwrap_or_default();
        let amount = |m: &Map<String, Value>, key: &str| {
            m.get(key).and_then(Value::as_str).and_then(quantity::parse).filter(|n| *n > 0)
        };
        let (limits, requests) = (map("limits"), map("requests"));
        for key in ["cpu", "memory"] {
            let (limit, request) = (amount(&limits, key), amount(&requests, key));
            any |= limit.is_some() || request.is_some();
            guaranteed &= limit.is_some() && limit == request;
        }
    }
    match (any, guaranteed) {
        (false, _) => "BestEffort",
        (true, true) => "Guaranteed",
        (true, false) => "Burstable",
    }
}

//! The admission plugins that change new objects: tolerations, priority, service account, node taint.

use serde_json::{Value, json};

use super::pod::set;
use crate::apiserver::failure::Failure;
use crate::apiserver::object::meta;
use crate::apiserver::resource::Resource;

/// What priority admission looks up: (value, preemption policy) of a class, or of the default class for `""`.
pub type Classes<'a> = dyn Fn(&str) -> Option<(String, i64, String)> + 'a;

/// Changes a new object as admission does.
pub fn admit_new(resource: &Resource, value: &mut Value, classes: &Classes<'_>) -> Result<(), Failure> {
    match (resource.group.as_str(), resource.plural.as_str()) {
        ("", "pods") => pod(resource, value, classes),
        ("", "nodes") => {
            let taint = json!({"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"});
            let taints = value["spec"]["taints"].as_array().cloned().unwrap_or_default();
            let there = taints.iter().any(|t| t["key"] == taint["key"] && t["effect"] == taint["effect"]);
            if !there {
                value["spec"]["taints"] = taints.into_iter().chain([taint]).collect();
            }
            Ok(())
        }
        _ => Ok(()),
    }
}

fn pod(resource: &Resource, value: &mut Value, classes: &Classes<'_>) -> Result<(), Failure> {
    let name = meta(value, "name").to_owned();
    let spec = &mut value["spec"];
    let class = spec["priorityClassName"].as_str().unwrap_or_default().to_owned();
    let found = match class.as_str() {
        "system-node-critical" => Some((class.clone(), 2_000_001_000, "PreemptLowerPriority".to_owned())),
        "system-cluster-critical" => Some((class.clone(), 2_000_000_000, "PreemptLowerPriority".to_owned())),
        other => classes(other),
    };
    let (class_name, priority, policy) = match found {
        Some(found) => found,
        None if class.is_empty() => (String::new(), 0, "PreemptLowerPriority".to_owned()),
        None => {
            return Err(Failure::forbidden(
                format!("pods \"{name}\" is forbidden: no PriorityClass with name {class} was found"),
                resource.details(&name, "pods"),
            ));
        }
    };
    if let Some(given) = spec["priority"].as_i64()
        && given != priority
    {
        return Err(Failure::forbidden(
            format!(
                "pods \"{name}\" is forbidden: the integer value of priority ({given}) must not be provided in pod \
                 spec; priority admission controller computed {priority} from the given PriorityClass name"
            ),
            resource.details(&name, "pods"),
        ));
    }
    if !class_name.is_empty() {
        spec["priorityClassName"] = json!(class_name);
    }
    spec["priority"] = json!(priority);
    set(spec, "", "preemptionPolicy", json!(policy));
    set(spec, "", "serviceAccountName", json!("default"));
    let account = spec["serviceAccountName"].clone();
    set(spec, "", "serviceAccount", account);
    tolerations(spec);
    Ok(())
}

/// Tolerates an unready and an unreachable node for five minutes, unless the pod says something about them.
fn tolerations(spec: &mut Value) {
    let mut list = spec["tolerations"].as_array().cloned().unwrap_or_default();
    for key in ["node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"] {
        let said = list.iter().any(|t| {
            let any_key = t["key"].as_str().unwrap_or_default();
            let effect = t["effect"].as_str().unwrap_or_default();
            (any_key == key || any_key.is_empty()) && (effect == "NoExecute" || effect.is_empty())
        });
        if !said {
            list.push(json!({"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}));
        }
    }
    spec["tolerations"] = Value::Array(list);
}

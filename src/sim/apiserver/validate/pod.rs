//! Pods: what a new one needs and what may never change.

use serde_json::{Map, Value, json};

use super::names::{dns_label, dns_subdomain};
use super::quantity;
use crate::apiserver::failure::Cause;

const MAY_CHANGE: &str = "pod updates may not change fields other than `spec.containers[*].image`,\
`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations),\
`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)";

/// Checks the spec of a new pod.
pub fn pod(value: &Value) -> Vec<Cause> {
    let spec = &value["spec"];
    let mut causes = Vec::new();
    let mut names: Vec<&str> = Vec::new();
    if spec["containers"].as_array().is_none_or(Vec::is_empty) {
        causes.push(Cause::required("spec.containers", ""));
    }
    for group in ["containers", "initContainers"] {
        for (index, container) in spec[group].as_array().into_iter().flatten().enumerate() {
            let at = format!("spec.{group}[{index}]");
            self::container(container, &at, &mut names, &mut causes);
        }
    }
    for (index, volume) in spec["volumes"].as_array().into_iter().flatten().enumerate() {
        let name = volume["name"].as_str().unwrap_or_default();
        let at = format!("spec.volumes[{index}].name");
        if name.is_empty() {
            causes.push(Cause::required(at, ""));
        } else if let Some(why) = dns_label(name) {
            causes.push(Cause::invalid(at, &volume["name"], &why));
        }
    }
    one_of(spec, "restartPolicy", &["Always", "OnFailure", "Never"], &mut causes);
    one_of(spec, "dnsPolicy", &["ClusterFirst", "ClusterFirstWithHostNet", "Default", "None"], &mut causes);
    if let Some(node) = spec["nodeName"].as_str().filter(|n| !n.is_empty())
        && let Some(why) = dns_subdomain(node)
    {
        causes.push(Cause::invalid("spec.nodeName", &spec["nodeName"], &why));
    }
    for (index, toleration) in spec["tolerations"].as_array().into_iter().flatten().enumerate() {
        self::toleration(toleration, &format!("spec.tolerations[{index}]"), &mut causes);
    }
    if spec["schedulingGates"].as_array().is_some_and(|g| !g.is_empty()) && !spec["nodeName"].is_null() {
        causes.push(Cause::forbidden("spec.nodeName", "cannot be set until all schedulingGates have been cleared"));
    }
    causes
}

fn one_of(spec: &Value, key: &str, allowed: &[&str], causes: &mut Vec<Cause>) {
    let text = spec[key].as_str().unwrap_or_default();
    if !allowed.contains(&text) {
        let list: Vec<String> = allowed.iter().map(|a| (*a).to_owned()).collect();
        causes.push(Cause::unsupported(format!("spec.{key}"), &json!(text), &list));
    }
}

fn toleration(toleration: &Value, at: &str, causes: &mut Vec<Cause>) {
    let operator = toleration["operator"].as_str().unwrap_or("Equal");
    if !matches!(operator, "Exists" | "Equal" | "Lt" | "Gt") {
        let list = ["Equal".to_owned(), "Exists".to_owned()];
        causes.push(Cause::unsupported(format!("{at}.operator"), &json!(operator), &list));
    }
    if operator == "Exists" && toleration["value"].as_str().is_some_and(|v| !v.is_empty()) {
        causes.push(Cause::invalid(at, toleration, "value must be empty when `operator` is 'Exists'"));
    }
    let effect = toleration["effect"].as_str().unwrap_or_default();
    if !matches!(effect, "" | "NoSchedule" | "PreferNoSchedule" | "NoExecute") {
        let list: Vec<String> = ["NoSchedule", "PreferNoSchedule", "NoExecute"].map(str::to_owned).to_vec();
        causes.push(Cause::unsupported(format!("{at}.effect"), &json!(effect), &list));
    }
    if toleration.get("tolerationSeconds").is_some_and(|s| !s.is_null()) && effect != "NoExecute" {
        causes.push(Cause::invalid(
            format!("{at}.effect"),
            &json!(effect),
            "effect must be 'NoExecute' when `tolerationSeconds` is set",
        ));
    }
}

fn container<'a>(container: &'a Value, at: &str, names: &mut Vec<&'a str>, causes: &mut Vec<Cause>) {
    let name = container["name"].as_str().unwrap_or_default();
    if name.is_empty() {
        causes.push(Cause::required(format!("{at}.name"), ""));
    } else if let Some(why) = dns_label(name) {
        causes.push(Cause::invalid(format!("{at}.name"), &container["name"], &why));
    } else if names.contains(&name) {
        causes.push(Cause::duplicate(format!("{at}.name"), &container["name"]));
    }
    names.push(name);
    if container["image"].as_str().unwrap_or_default().is_empty() {
        causes.push(Cause::required(format!("{at}.image"), ""));
    }
    if let Some(policy) = container["restartPolicy"].as_str()
        && !matches!(policy, "Always" | "OnFailure" | "Never")
    {
        let allowed: Vec<String> = ["Always", "OnFailure", "Never"].map(str::to_owned).to_vec();
        causes.push(Cause::unsupported(format!("{at}.restartPolicy"), &json!(policy), &allowed));
    }
    resources(&container["resources"], &format!("{at}.resources"), causes);
}

/// Native resources have no domain or the one of Kubernetes itself; all others are extended and cannot be overcommitted.
fn extended(name: &str) -> bool {
    name.contains('/') && !name.starts_with("kubernetes.io/") && !name.contains(".kubernetes.io/")
}

/// A limit or request.
fn amount(at: &str, kind: &str, (name, value): (&str, &Value), causes: &mut Vec<Cause>) {
    let field = format!("{at}.{kind}.{name}");
    let text = value.as_str().unwrap_or_default();
    let Some(nano) = quantity::parse(text) else { return };
    let native = matches!(name, "cpu" | "memory" | "ephemeral-storage") || name.starts_with("hugepages-");
    if !name.contains('/') && !native {
        for why in ["must be a standard resource type or fully qualified", "must be a standard resource for containers"]
        {
            causes.push(Cause::invalid(format!("{at}.{kind}[{name}]"), &json!(name), why));
        }
    }
    if nano < 0 {
        causes.push(Cause::invalid(field, value, "must be greater than or equal to 0"));
    } else if extended(name) && nano % 1_000_000_000 != 0 {
        causes.push(Cause::invalid(field, value, "must be an integer"));
    }
}

fn resources(resources: &Value, at: &str, causes: &mut Vec<Cause>) {
    let map = |key: &str| resources[key].as_object().cloned().unwrap_or_default();
    let (limits, requests) = (map("limits"), map("requests"));
    for (kind, list) in [("limits", &limits), ("requests", &requests)] {
        for (name, value) in list {
            amount(at, kind, (name, value), causes);
        }
    }
    for (name, request) in &requests {
        let field = format!("{at}.requests");
        match limits.get(name) {
            Some(limit) => {
                let (r, l) = (nano(request), nano(limit));
                if extended(name) && r != l {
                    causes.push(Cause::invalid(
                        field,
                        request,
                        &format!("must be equal to {name} limit of {}", limit.as_str().unwrap_or_default()),
                    ));
                } else if r > l {
                    causes.push(Cause::invalid(
                        field,
                        request,
                        &format!(
                            "must be less than or equal to {name} limit of {}",
                            limit.as_str().unwrap_or_default()
                        ),
                    ));
                }
            }
            None if extended(name) => {
                causes.push(Cause::required(
                    format!("{at}.limits"),
                    "Limit must be set for non overcommitable resources",
                ));
            }
            None => {}
        }
    }
}

fn nano(value: &Value) -> i128 {
    value.as_str().and_then(quantity::parse).unwrap_or_default()
}

/// Checks that an update of the main resource leaves alone what may not change.
pub fn pod_update(value: &Value, old: &Value) -> Vec<Cause> {
    let mut causes = Vec::new();
    let tolerations = |v: &Value| v["spec"]["tolerations"].as_array().cloned().unwrap_or_default();
    let (new_tolerations, old_tolerations) = (tolerations(value), tolerations(old));
    let lost = old_tolerations.iter().any(|t| {
        let key = |t: &Value| {
            let mut map: Map<String, Value> = t.as_object().cloned().unwrap_or_default();
            map.remove("tolerationSeconds");
            map
        };
        !new_tolerations.iter().any(|n| key(n) == key(t))
    });
    if lost {
        causes.push(Cause::forbidden(
            "spec.tolerations",
            "existing toleration can not be modified except its tolerationSeconds",
        ));
    }
    let gates = |v: &Value| v["spec"]["schedulingGates"].as_array().cloned().unwrap_or_default();
    let (new_gates, old_gates) = (gates(value), gates(old));
    for gate in &new_gates {
        if !old_gates.contains(gate) {
            causes.push(Cause::forbidden(
                "spec.schedulingGates[0].name",
                "only deletion is allowed, but found new scheduling gate",
            ));
        }
    }
    let free_while_gated: &[&str] = if old_gates.is_empty() { &[] } else { &["nodeSelector", "affinity"] };
    let (new, was) = (fixed_part(value, free_while_gated), fixed_part(old, free_while_gated));
    if new != was {
        causes.push(Cause::forbidden("spec", &format!("{MAY_CHANGE}\n{}", difference(&was, &new))));
    }
    causes
}

/// The spec without what may change: `free`, and what always may.
fn fixed_part(value: &Value, free: &[&str]) -> Value {
    let mut spec = value["spec"].clone();
    if let Some(map) = spec.as_object_mut() {
        let always = ["activeDeadlineSeconds", "tolerations", "terminationGracePeriodSeconds", "schedulingGates"];
        for key in always.iter().chain(free) {
            map.remove(*key);
        }
    }
    for group in ["containers", "initContainers"] {
        for container in spec[group].as_array_mut().into_iter().flatten() {
            if let Some(map) = container.as_object_mut() {
                map.remove("image");
            }
        }
    }
    spec
}

/// The lines that differ, in the form of a unified diff without context.
fn difference(old: &Value, new: &Value) -> String {
    let keys = |v: &Value| v.as_object().cloned().unwrap_or_default();
    let (old, new) = (keys(old), keys(new));
    let line = |sign: &str, key: &str, value: &Value| format!("{sign} \"{}\": {value},\n", title(key));
    let mut lines = String::new();
    for (key, was) in &old {
        match new.get(key) {
            Some(is) if is == was => {}
            found => {
                lines.push_str(&line("-", key, was));
                lines.extend(found.map(|is| line("+", key, is)));
            }
        }
    }
    for (key, is) in new.iter().filter(|(k, _)| !old.contains_key(*k)) {
        lines.push_str(&line("+", key, is));
    }
    lines
}

fn title(key: &str) -> String {
    let mut chars = key.chars();
    chars.next().map(|c| c.to_uppercase().collect::<String>() + chars.as_str()).unwrap_or_default()
}

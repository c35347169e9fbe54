//! Defaults of a pod's spec.

use serde_json::{Map, Value, json};

/// Defaults the pod spec of a template at a pointer, if there is one.
pub(super) fn template(value: &mut Value, extra: &[&str], at: &str) {
    for key in extra {
        if let Some(inner) = value.pointer_mut(&format!("/{key}/spec")) {
            spec(inner);
        }
    }
    if let Some(inner) = value.pointer_mut(at) {
        spec(inner);
    }
}

/// Defaults a pod spec.
pub(super) fn spec(spec: &mut Value) {
    if !spec.is_object() {
        return;
    }
    set(spec, "", "restartPolicy", json!("Always"));
    set(spec, "", "terminationGracePeriodSeconds", json!(30));
    set(spec, "", "dnsPolicy", json!("ClusterFirst"));
    set(spec, "", "securityContext", json!({}));
    set(spec, "", "schedulerName", json!("default-scheduler"));
    set(spec, "", "enableServiceLinks", json!(true));
    if spec["nodeName"] == "" {
        drop_key(spec, "nodeName");
    }
    match (spec["serviceAccountName"].clone(), spec["serviceAccount"].clone()) {
        (Value::String(name), _) => spec["serviceAccount"] = json!(name),
        (_, Value::String(name)) => spec["serviceAccountName"] = json!(name),
        _ => {
            drop_key(spec, "serviceAccount");
            drop_key(spec, "serviceAccountName");
        }
    }
    let host_network = spec["hostNetwork"] == true;
    for group in ["containers", "initContainers", "ephemeralContainers"] {
        if spec.get(group).is_none() {
            continue;
        }
        for container in spec[group].as_array_mut().into_iter().flatten() {
            self::container(container);
            if host_network {
                host_ports(container);
            }
        }
    }
    if spec.get("volumes").is_some() {
        for volume in spec["volumes"].as_array_mut().into_iter().flatten() {
            self::volume(volume);
        }
    }
}

fn drop_key(value: &mut Value, key: &str) {
    if let Some(map) = value.as_object_mut() {
        map.remove(key);
    }
}

fn container(container: &mut Value) {
    set(container, "", "terminationMessagePath", json!("/dev/termination-log"));
    set(container, "", "terminationMessagePolicy", json!("File"));
    let image = container["image"].as_str().unwrap_or_default().to_owned();
    let last = image.rsplit('/').next().unwrap_or_default();
    let latest = !image.contains('@') && (!last.contains(':') || last.ends_with(":latest"));
    set(container, "", "imagePullPolicy", json!(if latest { "Always" } else { "IfNotPresent" }));
    if let Some(Value::Object(limits)) = container["resources"].get("limits").cloned() {
        let mut requests: Map<String, Value> =
            container["resources"].get("requests").and_then(Value::as_object).cloned().unwrap_or_default();
        for (name, amount) in limits {
            requests.entry(name).or_insert(amount);
        }
        container["resources"]["requests"] = Value::Object(requests);
    }
    if container.get("ports").is_some() {
        for port in container["ports"].as_array_mut().into_iter().flatten() {
            set(port, "", "protocol", json!("TCP"));
        }
    }
    for probe in ["livenessProbe", "readinessProbe", "startupProbe"] {
        if container.get(probe).is_some_and(Value::is_object) {
            let probe = &mut container[probe];
            for (key, default) in
                [("timeoutSeconds", 1), ("periodSeconds", 10), ("successThreshold", 1), ("failureThreshold", 3)]
            {
                set(probe, "", key, json!(default));
            }
            set(probe, "/httpGet", "scheme", json!("HTTP"));
            set(probe, "/httpGet", "path", json!("/"));
        }
    }
    if container.get("env").is_some() {
        for variable in container["env"].as_array_mut().into_iter().flatten() {
            set(variable, "/valueFrom/fieldRef", "apiVersion", json!("v1"));
        }
    }
}

fn host_ports(container: &mut Value) {
    for port in container.get_mut("ports").and_then(Value::as_array_mut).into_iter().flatten() {
        let number = port["containerPort"].clone();
        set(port, "", "hostPort", number);
    }
}

fn volume(volume: &mut Value) {
    for source in ["secret", "configMap", "downwardAPI", "projected"] {
        set(volume, &format!("/{source}"), "defaultMode", json!(420));
    }
    set(volume, "/hostPath", "type", json!(""));
    if volume.as_object().is_some_and(|m| m.len() == 1) {
        set(volume, "", "emptyDir", json!({}));
    }
}

/// Sets `key` of the object at a JSON pointer, if that object is there and the key is not.
pub(super) fn set(value: &mut Value, at: &str, key: &str, default: Value) {
    let Some(map) = value.pointer_mut(at).and_then(Value::as_object_mut) else { return };
    let slot = map.entry(key.to_owned()).or_insert(Value::Null);
    if slot.is_null() {
        *slot = default;
    }
}

//! What the API server fills in when it stores a pod, for pods that only exist as a manifest or a template.

use serde_json::{Value, json};

/// Writes the pod's own values into the selectors of its pod affinity, as `matchLabelKeys` and `mismatchLabelKeys` say.
pub fn merge_label_keys(pod: &mut Value) {
    let labels = pod["metadata"]["labels"].clone();
    for kind in ["podAffinity", "podAntiAffinity"] {
        for (list, inner) in [
            ("requiredDuringSchedulingIgnoredDuringExecution", ""),
            ("preferredDuringSchedulingIgnoredDuringExecution", "/podAffinityTerm"),
        ] {
            let terms = pod.pointer_mut(&format!("/spec/affinity/{kind}/{list}")).and_then(Value::as_array_mut);
            for term in terms.into_iter().flatten().filter_map(|entry| entry.pointer_mut(inner)) {
                merge_into(term, &labels);
            }
        }
    }
}

fn merge_into(term: &mut Value, labels: &Value) {
    for (keys, operator) in [("matchLabelKeys", "In"), ("mismatchLabelKeys", "NotIn")] {
        let keys = term.get(keys).and_then(Value::as_array).cloned().unwrap_or_default();
        let own = keys.iter().filter_map(|key| Some((key, labels.get(key.as_str()?)?)));
        let expression = |(key, value): (&Value, &Value)| json!({"key": key, "operator": operator, "values": [value]});
        let expressions: Vec<Value> = own.map(expression).collect();
        let Some(selector) = term.get_mut("labelSelector").and_then(Value::as_object_mut) else { continue };
        if expressions.is_empty() {
            continue;
        }
        match selector.entry("matchExpressions").or_insert(Value::Null) {
            Value::Array(all) => all.extend(expressions),
            all => *all = expressions.into(),
        }
    }
}

/// On the host's network every container port is a port of the host.
pub fn host_ports(spec: &mut Value) {
    if spec.get("hostNetwork") != Some(&json!(true)) {
        return;
    }
    for list in ["initContainers", "containers"] {
        let containers = spec.get_mut(list).and_then(Value::as_array_mut).into_iter().flatten();
        let ports = containers.filter_map(|container| container.get_mut("ports")?.as_array_mut());
        for port in ports.flatten().filter_map(Value::as_object_mut) {
            if port.get("hostPort").and_then(Value::as_i64).unwrap_or(0) == 0 {
                port.insert("hostPort".to_owned(), port.get("containerPort").cloned().unwrap_or_default());
            }
        }
    }
}

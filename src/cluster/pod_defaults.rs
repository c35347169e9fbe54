//! What the API server fills in when it stores a pod, for pods that only exist as a manifest or a template.

use serde_json::{Value, json};

use super::pod::LightPod;

/// All of it.
pub fn fill(pod: &mut Value) {
    merge_label_keys(pod);
    host_ports(&mut pod["spec"]);
    pod_requests(pod);
}

/// Writes the pod's own values into the selectors of its pod affinity, as `matchLabelKeys` and `mismatchLabelKeys` say.
fn merge_label_keys(pod: &mut Value) {
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

/// What a pod as a whole asks for where it only limits it: what its containers ask for, and else its limits.
fn pod_requests(pod: &mut Value) {
    if pod.pointer("/spec/resources/limits").and_then(Value::as_object).is_none_or(serde_json::Map::is_empty) {
        return;
    }
    let mut containers = pod.clone();
    containers["spec"]["resources"] = Value::Null;
    // The caller reports what cannot be read.
    let Ok(containers) = serde_json::from_value::<LightPod>(containers) else { return };
    let sum = containers.requested();
    let named = |name: &str| !pod["spec"]["resources"]["requests"][name].is_null();
    let sums = [("cpu", sum.milli_cpu, "m"), ("memory", sum.memory, "")];
    let missing: Vec<_> = sums.into_iter().filter(|(name, amount, _)| *amount > 0 && !named(name)).collect();
    for (name, amount, unit) in missing {
        pod["spec"]["resources"]["requests"][name] = format!("{amount}{unit}").into();
    }
}

/// On the host's network every container port is a port of the host.
fn host_ports(spec: &mut Value) {
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Of pod-level limits, as `defaultPodRequests` of Kubernetes 1.37 has it.
    #[test]
    fn a_pod_that_limits_itself_as_a_whole_asks_for_what_its_containers_do() {
        let asked = |limits: Value, container: Value| {
            let containers = json!([{"name": "a", "resources": {"requests": container}}, {"name": "b"}]);
            let mut pod = json!({"metadata": {"name": "p", "namespace": "ml"},
                "spec": {"resources": {"limits": limits}, "containers": containers}});
            fill(&mut pod);
            let sum = serde_json::from_value::<LightPod>(pod).unwrap().requested();
            (sum.milli_cpu, sum.memory)
        };
        assert_eq!(asked(json!({"cpu": "32"}), json!({"cpu": "1"})), (1000, 0), "its containers");
        assert_eq!(asked(json!({"cpu": "32"}), json!({})), (32_000, 0), "its limit: they ask for nothing");
        assert_eq!(asked(json!({"memory": "4Gi"}), json!({"cpu": "1"})), (1000, 4 << 30));
        assert_eq!(asked(json!({}), json!({"cpu": "1"})), (1000, 0));
    }
}

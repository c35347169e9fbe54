//! `pods/binding` and `pods/eviction`.

use serde_json::{Value, json};

use super::core::Core;
use super::delete::{self, DeleteOptions};
use super::failure::{Cause, Failure, success};
use super::object::{Object, deleting, key, meta, metadata_mut, text};
use super::policies::Asked;
use super::request::Request;
use super::resource::Resource;
use super::schema;
use super::selectors::selects;

/// Binds a pod: node name, annotations and the scheduled condition in one write.
pub fn bind(core: &Core, pods: &Resource, request: &Request, name: &str, binding: &Value) -> Result<Value, Failure> {
    let namespace = &request.target.namespace;
    let given = meta(binding, "name");
    if !given.is_empty() && given != name {
        return Err(Failure::bad_request(format!(
            "name in URL does not match name in Binding object: {given} != {name}"
        )));
    }
    let target = text(binding, &["target", "name"]);
    let kind = text(binding, &["target", "kind"]);
    if target.is_empty() {
        let cause = Cause::required("target.name", "");
        return Err(Failure::invalid_as(pods, "pods/binding", name, &[cause]));
    }
    if !matches!(kind, "" | "Node") {
        let allowed = ["Node".to_owned(), "<empty>".to_owned()];
        let cause = Cause::unsupported("target.kind", &json!(kind), &allowed);
        return Err(Failure::invalid_as(pods, "pods/binding", name, &[cause]));
    }
    judge(core, pods, request, (name, binding), ("", "Binding"))?;
    let key = key(namespace, name);
    loop {
        let live = core.store.get(&pods.storage, &key).ok_or_else(|| Failure::not_found(pods, name))?;
        check_bindable(pods, binding, (name, &key), &live)?;
        let mut value = live.value.clone();
        value["spec"]["nodeName"] = json!(target);
        if let Some(annotations) = binding["metadata"]["annotations"].as_object().filter(|a| !a.is_empty()) {
            let metadata = metadata_mut(&mut value);
            let slot = metadata.entry("annotations").or_insert_with(|| json!({}));
            for (key, text) in annotations {
                slot[key] = text.clone();
            }
        }
        scheduled(core, &mut value);
        if request.query.get("dryRun") == Some("All")
            || core.store.commit(&pods.storage, &key, Some(live.version), Some(value)).is_ok()
        {
            return Ok(success(None, Some(201)));
        }
    }
}

/// Refuses what the binding does not mean, and a pod that has a node or may not have one.
fn check_bindable(pods: &Resource, binding: &Value, (name, key): (&str, &str), live: &Object) -> Result<(), Failure> {
    let storage_error = |why: String| {
        let text = format!(
            "StorageError: invalid object, Code: 4, Key: /registry/pods{key}, ResourceVersion: 0, \
             AdditionalErrorMsg: Precondition failed: {why}"
        );
        Failure::conflict(pods, "pods", name, &text)
    };
    let (uid, found) = (meta(binding, "uid"), meta(&live.value, "uid"));
    if !uid.is_empty() && uid != found {
        return Err(storage_error(format!("UID in precondition: {uid}, UID in object meta: {found}")));
    }
    let version = meta(binding, "resourceVersion");
    if !version.is_empty() && version != live.version.to_string() {
        return Err(storage_error(format!(
            "ResourceVersion in precondition: {version}, ResourceVersion in object meta: {}",
            live.version
        )));
    }
    let refused = |why: String| Failure::conflict(pods, "pods/binding", name, &why);
    if deleting(&live.value) {
        return Err(refused(format!("pod {name} is being deleted, cannot be assigned to a host")));
    }
    let node = text(&live.value, &["spec", "nodeName"]);
    if !node.is_empty() {
        return Err(refused(format!("pod {name} is already assigned to node \"{node}\"")));
    }
    if live.value["spec"]["schedulingGates"].as_array().is_some_and(|g| !g.is_empty()) {
        return Err(refused(format!("pod {name} has non-empty .spec.schedulingGates")));
    }
    Ok(())
}

/// Lets admission policies judge a body, of a kind of version `v1`, that is posted for a pod.
fn judge(
    core: &Core,
    pods: &Resource,
    request: &Request,
    (name, body): (&str, &Value),
    (group, kind): (&str, &str),
) -> Result<(), Failure> {
    if !core.has_policies() {
        return Ok(());
    }
    let misfit = |why| Failure::bad_request(format!("{kind} in version \"v1\" cannot be handled as a {kind}: {why}"));
    let decoded = schema::decode(&schema::builtin_schema(group, "v1", kind), body.clone());
    let mut value = decoded.map_err(|why| misfit(why.to_string()))?.value;
    let metadata = metadata_mut(&mut value);
    metadata.insert("name".into(), json!(name));
    metadata.insert("namespace".into(), json!(request.target.namespace));
    // A binding comes by the path of its pod, or as a resource of its own.
    let registry = core.registry.load();
    let target = &request.target;
    let own = registry.find(&target.group, &target.version, &target.resource);
    let asked = Asked::of(request, own.as_deref().unwrap_or(pods), "CREATE");
    core.judge(&Asked { kind: (group, "v1", kind), name, object: Some(&value), ..asked })
}

/// Sets the condition PodScheduled to True.
fn scheduled(core: &Core, value: &mut Value) {
    let now = core.now();
    let condition = json!({
        "type": "PodScheduled", "status": "True", "lastProbeTime": null, "lastTransitionTime": now,
    });
    let mut list = value["status"]["conditions"].as_array().cloned().unwrap_or_default();
    match list.iter_mut().find(|c| c["type"] == "PodScheduled") {
        Some(slot) if slot["status"] == "True" => {
            let since = slot["lastTransitionTime"].clone();
            *slot = condition;
            slot["lastTransitionTime"] = since;
        }
        Some(slot) => *slot = condition,
        None => list.push(condition),
    }
    value["status"]["conditions"] = Value::Array(list);
}

/// Evicts a pod, unless a disruption budget forbids it.
pub fn evict(core: &Core, pods: &Resource, request: &Request, name: &str, body: &Value) -> Result<Value, Failure> {
    let namespace = &request.target.namespace;
    let given = meta(body, "name");
    if !given.is_empty() && given != name {
        return Err(Failure::bad_request(format!(
            "name in URL does not match name in Eviction object: {given} != {name}"
        )));
    }
    let key = key(namespace, name);
    let options = DeleteOptions::read(request, body.get("deleteOptions"));
    let live = core.store.get(&pods.storage, &key).ok_or_else(|| Failure::not_found(pods, name))?;
    judge(core, pods, request, (name, body), ("policy", "Eviction"))?;
    let phase = text(&live.value, &["status", "phase"]);
    let counts = !matches!(phase, "Succeeded" | "Failed" | "Pending") && !deleting(&live.value);
    if counts {
        take_from_budget(core, namespace, &live.value)?;
    }
    if !options.dry {
        disrupted(core, pods, &key);
    }
    delete::delete(core, pods, (namespace, name), &options, None)?;
    Ok(success(None, Some(201)))
}

/// Sets the condition DisruptionTarget, as the eviction API does before deleting.
fn disrupted(core: &Core, pods: &Resource, key: &str) {
    while let Some(live) = core.store.get(&pods.storage, key) {
        let mut value = live.value.clone();
        let mut list = value["status"]["conditions"].as_array().cloned().unwrap_or_default();
        if list.iter().any(|c| c["type"] == "DisruptionTarget" && c["status"] == "True") {
            return;
        }
        list.retain(|c| c["type"] != "DisruptionTarget");
        list.push(json!({
            "type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI",
            "message": "Eviction API: evicting", "lastProbeTime": null, "lastTransitionTime": core.now(),
        }));
        value["status"]["conditions"] = Value::Array(list);
        if core.store.commit(&pods.storage, key, Some(live.version), Some(value)).is_ok() {
            return;
        }
    }
}

const BUDGETS: &str = "policy/poddisruptionbudgets";

/// Finds the budget of a pod and takes one disruption from it, or answers 429.
fn take_from_budget(core: &Core, namespace: &str, pod: &Value) -> Result<(), Failure> {
    loop {
        let Ok(all) = core.store.list(BUDGETS, &format!("/{namespace}/"), None, None) else { return Ok(()) };
        let mut found: Vec<_> =
            all.items.into_iter().filter(|(_, b)| selects(&b.value["spec"]["selector"], pod)).collect();
        if found.len() > 1 {
            return Err(Failure::internal(
                "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support.",
            ));
        }
        let Some((key, budget)) = found.pop() else { return Ok(()) };
        let allowed = budget.value["status"]["disruptionsAllowed"].as_i64().unwrap_or(0);
        if allowed <= 0 {
            let name = meta(&budget.value, "name");
            let healthy = |k: &str| budget.value["status"][k].as_i64().unwrap_or(0);
            let cause = json!([{
                "reason": "DisruptionBudget",
                "message": format!(
                    "The disruption budget {name} needs {} healthy pods and has {} currently",
                    healthy("desiredHealthy"), healthy("currentHealthy")
                ),
            }]);
            let text = "Cannot evict pod as it would violate the pod's disruption budget.";
            return Err(Failure::too_many_requests(text, 0, Some(cause)));
        }
        let mut value = budget.value.clone();
        value["status"]["disruptionsAllowed"] = json!(allowed - 1);
        value["status"]["disruptedPods"][meta(pod, "name")] = json!(core.now());
        if core.store.commit(BUDGETS, &key, Some(budget.version), Some(value)).is_ok() {
            return Ok(());
        }
    }
}

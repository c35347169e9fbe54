//! Deleting: preconditions, graceful deletion of pods, finalizers, propagation.

use jiff::ToSpan;
use serde_json::{Value, json};

use super::core::{Core, rfc3339};
use super::events::from_stored;
use super::failure::{Failure, success};
use super::object::{Object, deleting, finalized, key, meta, metadata_mut, text};
use super::policies::Asked;
use super::request::Request;
use super::resource::Resource;

/// What a client asks of a deletion.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DeleteOptions {
    /// Seconds; the pod's own when `None`.
    pub grace: Option<i64>,
    /// `Background`, `Foreground`, `Orphan`, or empty.
    pub propagation: String,
    /// The object must have this uid.
    pub uid: Option<String>,
    /// The object must be in this version.
    pub version: Option<String>,
    /// Nothing is written.
    pub dry: bool,
}

impl DeleteOptions {
    /// Reads query and body; the body wins.
    pub fn read(request: &Request, body: Option<&Value>) -> Self {
        let query = &request.query;
        let mut options = Self {
            grace: query.get("gracePeriodSeconds").and_then(|v| v.parse().ok()),
            propagation: query.text("propagationPolicy").to_owned(),
            dry: query.get("dryRun") == Some("All"),
            ..Self::default()
        };
        if query.flag("orphanDependents") {
            options.propagation = "Orphan".into();
        }
        if let Some(body) = body {
            options.grace = body["gracePeriodSeconds"].as_i64().or(options.grace);
            let policy = text(body, &["propagationPolicy"]);
            if !policy.is_empty() {
                policy.clone_into(&mut options.propagation);
            }
            if body["orphanDependents"] == true {
                options.propagation = "Orphan".into();
            }
            options.uid = body["preconditions"]["uid"].as_str().map(str::to_owned);
            options.version = body["preconditions"]["resourceVersion"].as_str().map(str::to_owned);
            options.dry |= body["dryRun"].as_array().is_some_and(|d| d.iter().any(|v| v == "All"));
        }
        options
    }
}

/// What a deletion leaves.
pub enum Gone {
    /// The object as it is now: terminating, or its last state.
    Object(Value),
    /// The answer of kinds that do not show the deleted object.
    Status(Value),
}

/// Kinds whose deleted object is shown.
fn shows(resource: &Resource) -> bool {
    resource.group.is_empty()
        && matches!(
            resource.plural.as_str(),
            "pods"
                | "serviceaccounts"
                | "services"
                | "persistentvolumes"
                | "persistentvolumeclaims"
                | "podtemplates"
                | "resourcequotas"
        )
        || resource.is("storage.k8s.io", "storageclasses")
        || resource.is("storage.k8s.io", "csidrivers")
}

/// Deletes one object, for a request if its admission is to be judged.
pub fn delete(
    core: &Core,
    resource: &Resource,
    (namespace, name): (&str, &str),
    options: &DeleteOptions,
    request: Option<&Request>,
) -> Result<Gone, Failure> {
    let key = key(namespace, name);
    loop {
        let live = core.store.get(&resource.storage, &key).ok_or_else(|| Failure::not_found(resource, name))?;
        check(resource, name, &live, options)?;
        if let Some(request) = request.filter(|_| core.has_policies()) {
            let old = from_stored(resource, &live.value);
            let asked = Asked::of(request, resource, "DELETE");
            core.judge(&Asked { old: Some(&old), dry: options.dry, ..asked })?;
        }
        if options.dry {
            return Ok(Gone::Object(from_stored(resource, &live.value)));
        }
        if let Some(gone) = step(core, resource, &key, &live, options) {
            return Ok(gone);
        }
    }
}

fn check(resource: &Resource, name: &str, live: &Object, options: &DeleteOptions) -> Result<(), Failure> {
    let found = meta(&live.value, "uid");
    if let Some(uid) = options.uid.as_deref().filter(|u| *u != found) {
        let why = format!(
            "the UID in the precondition ({uid}) does not match the UID in record ({found}). The object might have been \
             deleted and then recreated"
        );
        return Err(Failure::conflict(resource, &resource.kind, name, &why));
    }
    if let Some(version) = options.version.as_deref().filter(|v| *v != live.version.to_string()) {
        let why = format!(
            "the ResourceVersion in the precondition ({version}) does not match the ResourceVersion in record ({}). The \
             object might have been modified",
            live.version
        );
        return Err(Failure::conflict(resource, &resource.kind, name, &why));
    }
    Ok(())
}

/// Seconds of grace that a pod gets; `None` for kinds without graceful deletion.
fn grace_of(resource: &Resource, value: &Value, options: &DeleteOptions) -> Option<i64> {
    if !resource.is_pods() {
        return None;
    }
    let spec = &value["spec"];
    let mut grace = options.grace.or_else(|| spec["terminationGracePeriodSeconds"].as_i64()).unwrap_or(30);
    let phase = text(value, &["status", "phase"]);
    if text(spec, &["nodeName"]).is_empty() || matches!(phase, "Succeeded" | "Failed") {
        grace = 0;
    }
    if grace < 0 {
        grace = 1;
    }
    Some(grace)
}

fn finalizers(value: &Value, options: &DeleteOptions) -> Vec<Value> {
    let mut list: Vec<Value> = value["metadata"]["finalizers"].as_array().cloned().unwrap_or_default();
    let (wanted, other) = match options.propagation.as_str() {
        "Foreground" => (Some("foregroundDeletion"), "orphan"),
        "Orphan" => (Some("orphan"), "foregroundDeletion"),
        "Background" => {
            list.retain(|f| f != "orphan" && f != "foregroundDeletion");
            return list;
        }
        _ => return list,
    };
    list.retain(|f| f != other);
    if let Some(wanted) = wanted
        && !list.iter().any(|f| f == wanted)
    {
        list.push(json!(wanted));
    }
    list
}

/// One try; `None` when the object changed under it.
fn step(core: &Core, resource: &Resource, key: &str, live: &Object, options: &DeleteOptions) -> Option<Gone> {
    let mut value = live.value.clone();
    let finalizers = finalizers(&value, options);
    let grace = grace_of(resource, &value, options);
    if resource.is("", "namespaces") {
        return namespace(core, resource, key, live);
    }
    if deleting(&value) {
        let had = value["metadata"]["deletionGracePeriodSeconds"].as_i64().unwrap_or(0);
        let shorter = grace.is_some_and(|g| options.grace.is_some() && g < had)
            || (grace == Some(0) && had > 0 && options.grace.is_some());
        if !shorter {
            // Asked again without a shorter grace: nothing changes.
            let stuck = finalized(&value) || had > 0;
            if stuck {
                return Some(Gone::Object(from_stored(resource, &value)));
            }
        }
    }
    let hold = !finalizers.is_empty();
    if grace.is_none() && !hold {
        return core
            .store
            .commit(&resource.storage, key, Some(live.version), None)
            .ok()
            .map(|last| gone(resource, &last.value));
    }
    let was_deleting = deleting(&value);
    let seconds = grace.unwrap_or(0);
    let started = text(&value, &["metadata", "deletionTimestamp"]).parse::<jiff::Timestamp>().ok();
    let had = value["metadata"]["deletionGracePeriodSeconds"].as_i64().unwrap_or(0);
    let from = match started {
        Some(due) => due.checked_sub(had.seconds()).unwrap_or(due),
        None => core.time(),
    };
    let due = from.checked_add(seconds.seconds()).unwrap_or(from);
    let metadata = metadata_mut(&mut value);
    metadata.insert("deletionTimestamp".into(), json!(rfc3339(due)));
    metadata.insert("deletionGracePeriodSeconds".into(), json!(seconds));
    if hold {
        metadata.insert("finalizers".into(), Value::Array(finalizers));
    } else {
        metadata.remove("finalizers");
    }
    if let Some(generation) = metadata.get("generation").and_then(Value::as_i64)
        && !was_deleting
    {
        metadata.insert("generation".into(), json!(generation + 1));
    }
    let Ok(marked) = core.store.commit(&resource.storage, key, Some(live.version), Some(value)) else {
        return None;
    };
    if hold || seconds > 0 {
        return Some(Gone::Object(from_stored(resource, &marked.value)));
    }
    core.store.commit(&resource.storage, key, Some(marked.version), None).ok().map(|last| gone(resource, &last.value))
}

/// Namespaces first terminate; the background task empties and then removes them.
fn namespace(core: &Core, resource: &Resource, key: &str, live: &Object) -> Option<Gone> {
    if deleting(&live.value) {
        return Some(Gone::Object(live.value.clone()));
    }
    let mut value = live.value.clone();
    metadata_mut(&mut value).insert("deletionTimestamp".into(), json!(core.now()));
    value["status"]["phase"] = json!("Terminating");
    core.store
        .commit(&resource.storage, key, Some(live.version), Some(value))
        .ok()
        .map(|object| Gone::Object(object.value.clone()))
}

fn gone(resource: &Resource, last: &Value) -> Gone {
    if shows(resource) {
        return Gone::Object(from_stored(resource, last));
    }
    let mut details = resource.details(meta(last, "name"), &resource.plural);
    details["uid"] = last["metadata"]["uid"].clone();
    Gone::Status(success(Some(details), None))
}

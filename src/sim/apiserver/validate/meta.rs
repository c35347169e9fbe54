//! Object metadata: name, labels, annotations, owner references, finalizers, and what may never change.

use serde_json::{Value, json};

use super::names::{dns_label, dns_subdomain, label_key, label_value};
use crate::apiserver::failure::Cause;
use crate::apiserver::object::{finalized, meta};
use crate::apiserver::resource::Resource;

/// Most bytes of all annotation keys and values together.
const ANNOTATIONS_LIMIT: usize = 262_144;

/// Checks the metadata of a new object.
pub fn metadata(resource: &Resource, value: &Value) -> Vec<Cause> {
    let mut causes = Vec::new();
    let name = meta(value, "name");
    if let Some(why) = name_rule(resource, name) {
        causes.push(Cause::invalid("metadata.name", &json!(name), &why));
    }
    causes.extend(labels(value));
    causes.extend(annotations(value));
    causes.extend(owners(value));
    causes.extend(finalizers(value));
    causes
}

/// Checks the metadata of an update. Several layers of a real server repeat the checks, and so does the list of causes.
pub fn metadata_update(resource: &Resource, value: &Value, old: &Value) -> Vec<Cause> {
    let repeats = if resource.is("", "nodes") { 4 } else { 2 };
    let mut once = labels(value);
    once.extend(annotations(value));
    let mut causes: Vec<Cause> = std::iter::repeat_n(once, repeats).flatten().collect();
    causes.extend(owners(value));
    causes.extend(finalizers(value));
    for key in ["uid", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds"] {
        let (new, was) = (&value["metadata"][key], &old["metadata"][key]);
        if new != was {
            causes.push(Cause::invalid(format!("metadata.{key}"), new, "field is immutable"));
        }
    }
    if old["metadata"].get("deletionTimestamp").is_some() && finalized(value) {
        let had: Vec<&Value> = old["metadata"]["finalizers"].as_array().into_iter().flatten().collect();
        let new: Vec<&Value> =
            value["metadata"]["finalizers"].as_array().into_iter().flatten().filter(|f| !had.contains(f)).collect();
        if !new.is_empty() {
            let why = format!(
                "no new finalizers can be added if the object is being deleted, found new finalizers {}",
                json!(new)
            );
            causes.push(Cause::forbidden("metadata.finalizers", &why));
        }
    }
    causes
}

fn name_rule(resource: &Resource, name: &str) -> Option<String> {
    if name.is_empty() {
        return Some("name or generateName is required".to_owned());
    }
    match (resource.group.as_str(), resource.plural.as_str()) {
        ("", "namespaces" | "services") => dns_label(name),
        ("rbac.authorization.k8s.io", _) => path_segment(name),
        _ => dns_subdomain(name),
    }
}

fn path_segment(name: &str) -> Option<String> {
    if name == "." || name == ".." {
        return Some(format!("may not be '{name}'"));
    }
    ['/', '%'].iter().find(|c| name.contains(**c)).map(|c| format!("may not contain '{c}'"))
}

fn entries<'a>(value: &'a Value, key: &str) -> impl Iterator<Item = (&'a String, &'a str)> {
    value["metadata"][key].as_object().into_iter().flatten().map(|(k, v)| (k, v.as_str().unwrap_or_default()))
}

fn labels(value: &Value) -> Vec<Cause> {
    let mut causes = Vec::new();
    for (key, text) in entries(value, "labels") {
        if let Some(why) = label_key(key) {
            causes.push(Cause::invalid("metadata.labels", &json!(key), &why));
        }
        if let Some(why) = label_value(text) {
            causes.push(Cause::invalid("metadata.labels", &json!(text), &why));
        }
    }
    causes
}

fn annotations(value: &Value) -> Vec<Cause> {
    let mut causes = Vec::new();
    let mut total = 0;
    for (key, text) in entries(value, "annotations") {
        if let Some(why) = label_key(&key.to_lowercase()) {
            causes.push(Cause::invalid("metadata.annotations", &json!(key), &why));
        }
        total += key.len() + text.len();
    }
    if total > ANNOTATIONS_LIMIT {
        causes
            .push(Cause::too_long("metadata.annotations", &format!("may not be more than {ANNOTATIONS_LIMIT} bytes")));
    }
    causes
}

fn owners(value: &Value) -> Vec<Cause> {
    let mut causes = Vec::new();
    let list = value["metadata"]["ownerReferences"].as_array();
    for owner in list.into_iter().flatten() {
        for (key, what) in [("apiVersion", "version"), ("kind", "kind"), ("name", "name"), ("uid", "uid")] {
            if owner.get(key).and_then(Value::as_str).unwrap_or_default().is_empty() {
                let field = format!("metadata.ownerReferences.{key}");
                causes.push(Cause::invalid(field, &json!(""), &format!("{what} must not be empty")));
            }
        }
    }
    let controllers = list.into_iter().flatten().filter(|o| o["controller"] == json!(true)).count();
    if controllers > 1 {
        causes.push(Cause::invalid(
            "metadata.ownerReferences",
            list.map_or(&Value::Null, |_| &value["metadata"]["ownerReferences"]),
            "Only one reference can have Controller set to true",
        ));
    }
    causes
}

fn finalizers(value: &Value) -> Vec<Cause> {
    let standard = ["orphan", "foregroundDeletion", "kubernetes"];
    let mut causes = Vec::new();
    for finalizer in value["metadata"]["finalizers"].as_array().into_iter().flatten() {
        let text = finalizer.as_str().unwrap_or_default();
        if let Some(why) = label_key(text) {
            causes.push(Cause::invalid("metadata.finalizers", finalizer, &why));
        } else if !text.contains('/') && !standard.contains(&text) {
            causes.push(Cause::invalid(
                "metadata.finalizers",
                finalizer,
                "name is neither a standard finalizer name nor is it fully qualified",
            ));
        }
    }
    causes
}

//! CustomResourceDefinitions: checking them, serving what they define, and telling so in their conditions.

use std::sync::Arc;

use serde_json::{Value, json};

use super::core::Core;
use super::failure::Cause;
use super::managed::{self, Manager};
use super::object::{deleting, key_of, meta, text};
use super::resource::{Custom, Resource, Subresource};
use super::schema::{builtin_schema, custom_schema};
use super::table::Column;

/// Collection of the definitions.
pub const COLLECTION: &str = "apiextensions.k8s.io/customresourcedefinitions";

/// Checks a definition as far as the rest of the server relies on it.
pub fn validate(value: &Value) -> Vec<Cause> {
    let mut causes = Vec::new();
    let spec = &value["spec"];
    let (plural, group) = (text(spec, &["names", "plural"]), text(spec, &["group"]));
    let wanted = format!("{plural}.{group}");
    if meta(value, "name") != wanted {
        causes.push(Cause::invalid(
            "metadata.name",
            &value["metadata"]["name"],
            "must be spec.names.plural+\".\"+spec.group",
        ));
    }
    for (field, path) in [
        ("spec.group", &["group"][..]),
        ("spec.names.plural", &["names", "plural"]),
        ("spec.names.kind", &["names", "kind"]),
    ] {
        if text(spec, path).is_empty() {
            causes.push(Cause::required(field, ""));
        }
    }
    if !matches!(text(spec, &["scope"]), "Cluster" | "Namespaced") {
        let allowed = ["Cluster".to_owned(), "Namespaced".to_owned()];
        causes.push(Cause::unsupported("spec.scope", &spec["scope"], &allowed));
    }
    let versions = spec["versions"].as_array().cloned().unwrap_or_default();
    if versions.iter().filter(|v| v["storage"] == true).count() != 1 {
        causes.push(Cause::invalid(
            "spec.versions",
            &spec["versions"],
            "must have exactly one version marked as storage version",
        ));
    }
    for (index, version) in versions.iter().enumerate() {
        let at = format!("spec.versions[{index}].schema.openAPIV3Schema");
        let schema = &version["schema"]["openAPIV3Schema"];
        if !schema.is_object() {
            causes.push(Cause::required(at, "schemas are required"));
        } else if schema["type"] != "object" {
            causes.push(Cause::invalid(format!("{at}.type"), &schema["type"], "must be object at the root"));
        } else {
            structural(schema, &at, &mut causes);
            super::validate::check_rules(schema, &at, &mut causes);
        }
    }
    causes
}

/// A structural schema names a type everywhere.
fn structural(schema: &Value, at: &str, causes: &mut Vec<Cause>) {
    let free = ["x-kubernetes-int-or-string", "x-kubernetes-preserve-unknown-fields"];
    if text(schema, &["type"]).is_empty() && !free.iter().any(|k| schema[*k] == true) {
        causes.push(Cause::required(format!("{at}.type"), "must not be empty for specified object fields"));
    }
    for (name, inner) in schema["properties"].as_object().into_iter().flatten() {
        structural(inner, &format!("{at}.properties[{name}]"), causes);
    }
    if schema["items"].is_object() {
        structural(&schema["items"], &format!("{at}.items"), causes);
    }
    if schema["additionalProperties"].is_object() {
        structural(&schema["additionalProperties"], &format!("{at}.additionalProperties"), causes);
    }
}

/// The resources that a definition adds, one per served version.
pub fn resources(value: &Value) -> Vec<Resource> {
    let spec = &value["spec"];
    let names = &spec["names"];
    let list = |v: &Value| -> Vec<String> {
        v.as_array().into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect()
    };
    let (group, plural) = (text(spec, &["group"]).to_owned(), text(names, &["plural"]).to_owned());
    let kind = text(names, &["kind"]).to_owned();
    let verbs = ["delete", "deletecollection", "get", "list", "patch", "create", "update", "watch"];
    spec["versions"]
        .as_array()
        .into_iter()
        .flatten()
        .filter(|v| v["served"] == true)
        .map(|version| {
            let schema = version["schema"]["openAPIV3Schema"].clone();
            let status = version["subresources"].get("status").is_some();
            let mut subresources = Vec::new();
            if status {
                let verbs = ["get", "patch", "update"].map(str::to_owned).to_vec();
                subresources.push(Subresource { name: "status".into(), gvk: None, kind: kind.clone(), verbs });
            }
            let columns = version["additionalPrinterColumns"]
                .as_array()
                .map_or_else(|| vec![Column::age_of_custom()], |columns| columns.iter().map(Column::custom).collect());
            let selectable = version["selectableFields"]
                .as_array()
                .into_iter()
                .flatten()
                .filter_map(|f| f["jsonPath"].as_str())
                .map(str::to_owned)
                .collect();
            Resource {
                group: group.clone(),
                version: text(version, &["name"]).to_owned(),
                plural: plural.clone(),
                singular: text(names, &["singular"]).to_owned(),
                kind: kind.clone(),
                list_kind: text(names, &["listKind"]).to_owned(),
                namespaced: spec["scope"] == "Namespaced",
                short: list(&names["shortNames"]),
                categories: list(&names["categories"]),
                verbs: verbs.map(str::to_owned).to_vec(),
                subresources,
                storage: format!("{group}/{plural}"),
                schema: Arc::new(custom_schema(&schema)),
                custom: Some(Arc::new(Custom {
                    schema,
                    status_subresource: status,
                    columns,
                    definition: meta(value, "name").to_owned(),
                    selectable,
                })),
            }
        })
        .collect()
}

/// Serves (or no longer serves) what a written definition says. Called after every write to a definition, so that its
/// resource is there when the client's next request comes.
pub fn serve(core: &Core, name: &str) {
    let found = core.store.get(COLLECTION, &format!("/{name}"));
    let mut registry = (**core.registry.load()).clone();
    registry.remove_custom(name);
    if let Some(definition) = found.filter(|d| !deleting(&d.value)) {
        for resource in resources(&definition.value) {
            registry.add_custom(resource);
        }
    }
    core.registry.store(Arc::new(registry));
    establish(core, name);
}

/// Writes the conditions of an accepted definition, in two steps as a real server does.
fn establish(core: &Core, name: &str) {
    let schema = builtin_schema("apiextensions.k8s.io", "v1", "CustomResourceDefinition");
    for step in 0..2 {
        let Some(live) = core.store.get(COLLECTION, &format!("/{name}")) else { return };
        if deleting(&live.value) {
            return;
        }
        let now = core.now();
        let mut value = live.value.clone();
        value["status"]["acceptedNames"] = value["spec"]["names"].clone();
        let mut conditions = value["status"]["conditions"].as_array().cloned().unwrap_or_default();
        let wanted = [
            ("NamesAccepted", "NoConflicts", "no conflicts found"),
            ("Established", "InitialNamesAccepted", "the initial names have been accepted"),
        ];
        let (kind, reason, message) = wanted[step];
        if conditions.iter().any(|c| c["type"] == kind && c["status"] == "True")
            && value["status"]["acceptedNames"] == live.value["status"]["acceptedNames"]
        {
            continue;
        }
        conditions.retain(|c| c["type"] != kind);
        conditions.push(json!({
            "type": kind, "status": "True", "lastTransitionTime": now, "reason": reason, "message": message,
        }));
        value["status"]["conditions"] = Value::Array(conditions);
        let manager = Manager {
            name: "kube-apiserver".into(),
            applies: false,
            api_version: "apiextensions.k8s.io/v1".into(),
            subresource: "status".into(),
        };
        managed::record_update(&schema, &live.value, &mut value, &manager, &now);
        let key = key_of(&value);
        // Another write came in between: that one establishes.
        if core.store.commit(COLLECTION, &key, Some(live.version), Some(value)).is_err() {
            return;
        }
    }
}

/// Serves again what a write may have changed: the definition named in the path, or in the body of a create, or, for a
/// collection, all of them.
pub fn serve_all(core: &Core, name: &str, body: &[u8]) {
    if !name.is_empty() {
        return serve(core, name);
    }
    let named = serde_json::from_slice::<Value>(body).ok().map(|b| meta(&b, "name").to_owned());
    if let Some(name) = named.filter(|n| !n.is_empty()) {
        serve(core, &name);
    } else {
        let registry = core.registry.load_full();
        let known = registry.stored().into_iter().filter_map(|r| r.custom.as_ref().map(|c| c.definition.clone()));
        let stored = core.store.list(COLLECTION, "/", None, None).map(|s| s.items).unwrap_or_default();
        let mut names: Vec<String> =
            known.chain(stored.into_iter().map(|(_, o)| meta(&o.value, "name").to_owned())).collect();
        names.sort();
        names.dedup();
        for name in names {
            serve(core, &name);
        }
    }
}

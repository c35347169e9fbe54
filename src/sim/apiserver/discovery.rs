//! What the server serves, in both discovery forms, and its version.

use std::sync::Arc;

use serde_json::{Map, Value, json};

use super::builtin::storage_hash;
use super::registry::Registry;
use super::resource::Resource;

/// Media type of aggregated discovery.
pub const AGGREGATED: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";

/// Whether the client prefers aggregated discovery.
pub fn wants_aggregated(accept: &str) -> bool {
    accept.split(',').any(|part| {
        part.contains("g=apidiscovery.k8s.io") && part.contains("v=v2;") && part.contains("as=APIGroupDiscoveryList")
            || part.ends_with("v=v2") && part.contains("as=APIGroupDiscoveryList")
    })
}

/// `/version`.
pub fn version() -> Value {
    json!({
        "major": "1", "minor": "36", "emulationMajor": "1", "emulationMinor": "36", "minCompatibilityMajor": "1",
        "minCompatibilityMinor": "35", "gitVersion": "v1.36.0", "gitCommit": "", "gitTreeState": "clean",
        "buildDate": "1970-01-01T00:00:00Z", "goVersion": "", "compiler": "rustc", "platform": "linux/amd64",
    })
}

/// `/api`.
pub fn core_versions(address: &str) -> Value {
    json!({
        "kind": "APIVersions", "versions": ["v1"],
        "serverAddressByClientCIDRs": [{"clientCIDR": "0.0.0.0/0", "serverAddress": address}],
    })
}

/// One group of `/apis`, also `/apis/<group>`.
pub fn group(name: &str, versions: &[String]) -> Value {
    let shown: Vec<Value> =
        versions.iter().map(|v| json!({"groupVersion": format!("{name}/{v}"), "version": v})).collect();
    json!({"name": name, "versions": shown, "preferredVersion": shown.first()})
}

/// `/apis`.
pub fn groups(registry: &Registry) -> Value {
    let groups: Vec<Value> = registry.groups().iter().map(|(name, versions)| group(name, versions)).collect();
    json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups})
}

/// `/api/v1` and `/apis/<group>/<version>`.
pub fn resources(registry: &Registry, group: &str, version: &str) -> Value {
    let mut list: Vec<Value> = Vec::new();
    for resource in registry.of(group, version) {
        let mut entry = json!({
            "name": resource.plural, "singularName": resource.singular, "namespaced": resource.namespaced,
            "kind": resource.kind, "verbs": resource.verbs,
        });
        names(resource, &mut entry);
        let hash = storage_hash(resource);
        if !hash.is_empty() {
            entry["storageVersionHash"] = json!(hash);
        }
        list.push(entry);
        for sub in &resource.subresources {
            let mut entry = json!({
                "name": format!("{}/{}", resource.plural, sub.name), "singularName": "",
                "namespaced": resource.namespaced, "kind": sub.kind, "verbs": sub.verbs,
            });
            if let Some((group, version)) = &sub.gvk {
                entry["group"] = json!(group);
                entry["version"] = json!(version);
            }
            list.push(entry);
        }
    }
    let name = if group.is_empty() { version.to_owned() } else { format!("{group}/{version}") };
    let mut body = json!({"kind": "APIResourceList", "groupVersion": name, "resources": list});
    if !group.is_empty() {
        body["apiVersion"] = json!("v1");
    }
    body
}

fn names(resource: &Resource, entry: &mut Value) {
    if !resource.short.is_empty() {
        entry["shortNames"] = json!(resource.short);
    }
    if !resource.categories.is_empty() {
        entry["categories"] = json!(resource.categories);
    }
}

/// Aggregated `/api`.
pub fn aggregated_core(registry: &Registry) -> Value {
    list(vec![json!({"metadata": {}, "versions": [aggregated_version(registry, "", "v1")]})])
}

/// Aggregated `/apis`.
pub fn aggregated_groups(registry: &Registry) -> Value {
    let items = registry
        .groups()
        .iter()
        .map(|(name, versions)| {
            let versions: Vec<Value> = versions.iter().map(|v| aggregated_version(registry, name, v)).collect();
            json!({"metadata": {"name": name}, "versions": versions})
        })
        .collect();
    list(items)
}

fn list(items: Vec<Value>) -> Value {
    json!({
        "kind": "APIGroupDiscoveryList", "apiVersion": "apidiscovery.k8s.io/v2", "metadata": {}, "items": items,
    })
}

fn aggregated_version(registry: &Registry, group: &str, version: &str) -> Value {
    let built_in = |resource: &Arc<Resource>| resource.custom.is_none();
    let resources: Vec<Value> = registry
        .of(group, version)
        .map(|resource| {
            // Built-in kinds are listed without group and version, as they are those of the list.
            let kind_of = |kind: &str, gvk: Option<&(String, String)>| {
                let (group, version) = match gvk {
                    Some((g, v)) => (g.as_str(), v.as_str()),
                    None if built_in(resource) => ("", ""),
                    None => (group, version),
                };
                json!({"group": group, "version": version, "kind": kind})
            };
            let scope = if resource.namespaced { "Namespaced" } else { "Cluster" };
            let mut entry = json!({
                "resource": resource.plural, "responseKind": kind_of(&resource.kind, None), "scope": scope,
                "singularResource": resource.singular, "verbs": resource.verbs,
            });
            names(resource, &mut entry);
            if !resource.subresources.is_empty() {
                let subresources: Vec<Value> = resource
                    .subresources
                    .iter()
                    .map(|sub| {
                        json!({
                            "subresource": sub.name, "responseKind": kind_of(&sub.kind, sub.gvk.as_ref()),
                            "verbs": sub.verbs,
                        })
                    })
                    .collect();
                entry["subresources"] = json!(subresources);
            }
            entry
        })
        .collect();
    let mut shown = Map::new();
    shown.insert("version".into(), json!(version));
    if !resources.is_empty() {
        shown.insert("resources".into(), json!(resources));
    }
    shown.insert("freshness".into(), json!("Current"));
    Value::Object(shown)
}

//! OpenAPI v3: an index and, per group and version, the paths and types that clients look for before they write.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

use super::registry::Registry;
use super::resource::Resource;
use super::schema::{type_definitions, type_name};

/// `/openapi/v3`.
pub fn index(registry: &Registry) -> Value {
    let mut names: Vec<String> =
        [".well-known/openid-configuration", "api", "api/v1", "apis", "openid/v1/jwks", "version"]
            .map(str::to_owned)
            .to_vec();
    for (group, versions) in registry.groups() {
        names.push(format!("apis/{group}"));
        names.extend(versions.iter().map(|v| format!("apis/{group}/{v}")));
    }
    let mut paths = Map::new();
    for name in names {
        // Clients cache a document by its hash, so it follows what is served.
        let hash = hash(&name, registry);
        paths.insert(name.clone(), json!({"serverRelativeURL": format!("/openapi/v3/{name}?hash={hash}")}));
    }
    json!({ "paths": paths })
}

fn hash(name: &str, registry: &Registry) -> String {
    let (group, version) = split(name).unwrap_or_default();
    let mut state: u64 = 0xcbf2_9ce4_8422_2325;
    let mut feed = |text: &str| {
        for byte in text.bytes() {
            state = (state ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
    };
    feed(name);
    for resource in registry.of(&group, &version) {
        feed(&resource.plural);
        if let Some(custom) = &resource.custom {
            feed(&custom.schema.to_string());
        }
    }
    format!("{state:016X}")
}

fn split(name: &str) -> Option<(String, String)> {
    match name.split('/').collect::<Vec<_>>().as_slice() {
        ["api", version] => Some((String::new(), (*version).to_owned())),
        ["apis", group, version] => Some(((*group).to_owned(), (*version).to_owned())),
        _ => None,
    }
}

/// One document; `name` is what the index calls it. `None` when there is none.
pub fn document(registry: &Registry, name: &str) -> Option<Value> {
    let mut paths = Map::new();
    let mut wanted: BTreeSet<String> = BTreeSet::new();
    let mut schemas = Map::new();
    match split(name) {
        Some((group, version)) => {
            let known = group.is_empty() || registry.groups().iter().any(|(g, v)| *g == group && v.contains(&version));
            if !known {
                return None;
            }
            for resource in registry.of(&group, &version) {
                describe(resource, &mut paths, &mut schemas, &mut wanted);
            }
        }
        None => {
            paths.insert(format!("/{name}/"), json!({}));
        }
    }
    close(&mut schemas, wanted);
    Some(json!({
        "openapi": "3.0.0", "info": {"title": "Kubernetes", "version": "v1.36.0"}, "paths": paths,
        "components": {"schemas": schemas},
    }))
}

fn describe(
    resource: &Resource,
    paths: &mut Map<String, Value>,
    schemas: &mut Map<String, Value>,
    wanted: &mut BTreeSet<String>,
) {
    let gvk = json!({"group": resource.group, "version": resource.version, "kind": resource.kind});
    let root =
        if resource.group.is_empty() { "/api/v1".to_owned() } else { format!("/apis/{}", resource.api_version()) };
    let scope = if resource.namespaced { "/namespaces/{namespace}" } else { "" };
    let collection = format!("{root}{scope}/{}", resource.plural);
    let component = component(resource, &gvk, schemas);
    if resource.custom.is_none() {
        wanted.insert(component.clone());
    }
    let body = json!({"schema": {"$ref": format!("#/components/schemas/{component}")}});
    let query = |name: &str| json!({"name": name, "in": "query", "schema": {"type": "string", "uniqueItems": true}});
    let operation = |action: &str, parameters: &[&str], media: &[&str]| {
        let content: Map<String, Value> = media.iter().map(|m| ((*m).to_owned(), body.clone())).collect();
        let mut operation = json!({
            "x-kubernetes-action": action, "x-kubernetes-group-version-kind": gvk,
            "parameters": parameters.iter().map(|p| query(p)).collect::<Vec<_>>(),
            "responses": {"200": {"description": "OK", "content": {"application/json": body}}},
        });
        if !content.is_empty() {
            operation["requestBody"] = json!({ "content": content });
        }
        operation
    };
    let write = ["dryRun", "fieldManager", "fieldValidation"];
    let json_media = ["application/json"];
    paths.insert(
        collection.clone(),
        json!({
            "get": operation("list", &["limit", "continue", "labelSelector", "fieldSelector", "watch"], &[]),
            "post": operation("post", &write, &json_media),
        }),
    );
    let mut patches =
        vec!["application/apply-patch+yaml", "application/json-patch+json", "application/merge-patch+json"];
    if resource.custom.is_none() {
        patches.push("application/strategic-merge-patch+json");
    }
    paths.insert(
        format!("{collection}/{{name}}"),
        json!({
            "get": operation("get", &[], &[]),
            "put": operation("put", &write, &json_media),
            "patch": operation("patch", &["dryRun", "fieldManager", "fieldValidation", "force"], &patches),
            "delete": operation("delete", &["dryRun", "gracePeriodSeconds", "propagationPolicy"], &[]),
        }),
    );
    // The kind of a built-in type is what clients find its schema by.
    if let Some(mut schema) = type_definitions().get(&component).cloned().filter(|_| resource.custom.is_none()) {
        schema["x-kubernetes-group-version-kind"] = json!([gvk]);
        schemas.insert(component, rewritten(schema));
    }
}

/// The name of the schema of a kind; that of a custom one is entered.
fn component(resource: &Resource, gvk: &Value, schemas: &mut Map<String, Value>) -> String {
    let Some(custom) = &resource.custom else {
        return type_name(&resource.group, &resource.version, &resource.kind);
    };
    let name = format!("{}.{}.{}", reversed(&resource.group), resource.version, resource.kind);
    let mut schema = custom.schema.clone();
    schema["x-kubernetes-group-version-kind"] = json!([gvk]);
    schemas.insert(name.clone(), schema);
    name
}

fn reversed(group: &str) -> String {
    group.split('.').rev().collect::<Vec<_>>().join(".")
}

/// Adds the types that are referred to, and theirs.
fn close(schemas: &mut Map<String, Value>, mut wanted: BTreeSet<String>) {
    for schema in schemas.values() {
        references(schema, &mut wanted);
    }
    let mut done: BTreeSet<String> = BTreeSet::new();
    while let Some(name) = wanted.pop_first() {
        if !done.insert(name.clone()) {
            continue;
        }
        let schema = match schemas.get(&name) {
            Some(there) => there.clone(),
            None => match type_definitions().get(&name) {
                Some(found) => {
                    let schema = rewritten(found.clone());
                    schemas.insert(name, schema.clone());
                    schema
                }
                None => continue,
            },
        };
        let mut more = BTreeSet::new();
        references(&schema, &mut more);
        wanted.extend(more.into_iter().filter(|m| !done.contains(m)));
    }
}

fn references(value: &Value, found: &mut BTreeSet<String>) {
    match value {
        Value::Object(map) => {
            if let Some(target) = map.get("$ref").and_then(Value::as_str) {
                found.insert(target.rsplit('/').next().unwrap_or_default().to_owned());
            }
            map.values().for_each(|v| references(v, found));
        }
        Value::Array(items) => items.iter().for_each(|v| references(v, found)),
        _ => {}
    }
}

/// References point into the document's components, and beside a reference OpenAPI 3.0 allows nothing else.
fn rewritten(mut value: Value) -> Value {
    match &mut value {
        Value::Object(map) => {
            if let Some(Value::String(target)) = map.get("$ref") {
                let to = target.replace("#/$defs/", "#/components/schemas/");
                let description = map.get("description").cloned().unwrap_or(json!(""));
                return json!({"description": description, "allOf": [{"$ref": to}]});
            }
            for item in map.values_mut() {
                *item = rewritten(item.take());
            }
        }
        Value::Array(items) => {
            for item in items {
                *item = rewritten(item.take());
            }
        }
        _ => {}
    }
    value
}

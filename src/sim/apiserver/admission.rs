//! What admission looks up in the store: namespaces and priority classes.

use super::core::Core;
use super::failure::Failure;
use super::object::{deleting, meta, text};
use super::resource::Resource;

use serde_json::{Value, json};

/// Refuses a new object in a namespace that is not there or going away.
pub fn namespace_open(core: &Core, resource: &Resource, value: &Value) -> Result<(), Failure> {
    if !resource.namespaced {
        return Ok(());
    }
    let namespace = meta(value, "namespace");
    let Some(found) = core.store.get("/namespaces", &format!("/{namespace}")) else {
        let registry = core.registry.load();
        let namespaces = registry.find("", "v1", "namespaces").ok_or_else(Failure::unknown_resource)?;
        return Err(Failure::not_found(&namespaces, namespace));
    };
    if deleting(&found.value) {
        let name = meta(value, "name");
        let message = format!(
            "{} \"{name}\" is forbidden: unable to create new content in namespace {namespace} because it is being \
             terminated",
            resource.qualified()
        );
        let mut details = resource.details(name, &resource.plural);
        details["causes"] = json!([{
            "reason": "NamespaceTerminating", "message": format!("namespace {namespace} is being terminated"),
            "field": "metadata.namespace",
        }]);
        return Err(Failure::forbidden(message, details));
    }
    Ok(())
}

/// A priority class by name, or the default one for `""`.
pub fn priority_class(core: &Core, name: &str) -> Option<(String, i64, String)> {
    const COLLECTION: &str = "scheduling.k8s.io/priorityclasses";
    let read = |value: &Value| {
        let policy = text(value, &["preemptionPolicy"]);
        let policy = if policy.is_empty() { "PreemptLowerPriority" } else { policy };
        (meta(value, "name").to_owned(), value["value"].as_i64().unwrap_or(0), policy.to_owned())
    };
    if !name.is_empty() {
        return core.store.get(COLLECTION, &format!("/{name}")).map(|o| read(&o.value));
    }
    if core.store.count(COLLECTION) == 0 {
        return None;
    }
    let all = core.store.list(COLLECTION, "/", None, None).ok()?;
    all.items.iter().find(|(_, o)| o.value["globalDefault"] == true).map(|(_, o)| read(&o.value))
}

//! What the controllers of a real cluster do behind the API, as far as a simulated one needs it: owner-reference
//! garbage collection, namespace removal, removal of a definition's objects, and the node's readiness taints.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use super::core::Core;
use super::definitions;
use super::delete::{self, DeleteOptions};
use super::object::{Object, deleting, key_of, meta, metadata_mut, text};
use super::resource::Resource;
use super::selectors::Selection;

/// Sweeps are at least this far apart, so that a burst of deletions costs few of them.
const PAUSE: Duration = Duration::from_millis(20);

/// Sweeps whenever a write left something to do. Ends when the core is gone.
pub async fn sweep_forever(core: Arc<Core>) {
    loop {
        core.store.untidy.notified().await;
        while sweep(&core) {
            tokio::time::sleep(PAUSE).await;
        }
        tokio::time::sleep(PAUSE).await;
    }
}

type Found = (Option<Arc<Resource>>, String, Arc<Object>);

/// One sweep; answers whether it did anything.
fn sweep(core: &Core) -> bool {
    let registry = core.registry.load_full();
    let by_storage: HashMap<String, Arc<Resource>> =
        registry.stored().into_iter().map(|r| (r.storage.clone(), r)).collect();
    let mut all: Vec<Found> = Vec::new();
    for collection in core.store.collections() {
        let resource = by_storage.get(&collection).cloned();
        let Ok(snapshot) = core.store.list(&collection, "/", None, None) else { continue };
        all.extend(snapshot.items.into_iter().map(|(_, o)| (resource.clone(), collection.clone(), o)));
    }
    let uids: HashSet<String> = all.iter().map(|(_, _, o)| meta(&o.value, "uid").to_owned()).collect();
    let mut busy = false;
    busy |= orphaned_kinds(core, &all);
    busy |= collect(core, &all, &uids);
    busy |= finish_owners(core, &all);
    busy |= namespaces(core, &all);
    busy
}

/// Objects of kinds that are no longer defined go.
fn orphaned_kinds(core: &Core, all: &[Found]) -> bool {
    let mut busy = false;
    for (_, collection, object) in all.iter().filter(|(r, _, _)| r.is_none()) {
        busy |= core.store.commit(collection, &key_of(&object.value), Some(object.version), None).is_ok();
    }
    busy
}

fn remove(core: &Core, resource: &Resource, object: &Object, propagation: &str) -> bool {
    let options = DeleteOptions {
        propagation: propagation.to_owned(),
        uid: Some(meta(&object.value, "uid").to_owned()),
        ..DeleteOptions::default()
    };
    let (namespace, name) = (meta(&object.value, "namespace"), meta(&object.value, "name"));
    let done = delete::delete(core, resource, (namespace, name), &options, None).is_ok();
    if done && resource.storage == definitions::COLLECTION {
        definitions::serve(core, name);
    }
    done
}

fn owners(object: &Object) -> impl Iterator<Item = &Value> {
    object.value["metadata"].get("ownerReferences").and_then(Value::as_array).into_iter().flatten()
}

/// Deletes what no living owner holds any more.
fn collect(core: &Core, all: &[Found], uids: &HashSet<String>) -> bool {
    let mut busy = false;
    for (resource, _, object) in all {
        let Some(resource) = resource else { continue };
        if deleting(&object.value) {
            continue;
        }
        let mut owners = owners(object).peekable();
        if owners.peek().is_some() && !owners.any(|o| uids.contains(text(o, &["uid"]))) {
            busy |= remove(core, resource, object, "Background");
        }
    }
    busy
}

fn has_finalizer(object: &Object, finalizer: &str) -> bool {
    object.value["metadata"]["finalizers"].as_array().is_some_and(|f| f.iter().any(|f| f == finalizer))
}

/// Owners that wait for their dependents: foreground deletion removes these, orphaning lets them go.
fn finish_owners(core: &Core, all: &[Found]) -> bool {
    let mut busy = false;
    for (resource, _, owner) in all {
        let Some(resource) = resource else { continue };
        if !deleting(&owner.value) {
            continue;
        }
        let uid = meta(&owner.value, "uid");
        let dependents: Vec<&Found> =
            all.iter().filter(|(_, _, o)| owners(o).any(|r| text(r, &["uid"]) == uid)).collect();
        if has_finalizer(owner, "foregroundDeletion") {
            for (kind, _, dependent) in &dependents {
                if let Some(kind) = kind
                    && !deleting(&dependent.value)
                {
                    busy |= remove(core, kind, dependent, "Foreground");
                }
            }
            let blocked = dependents
                .iter()
                .any(|(_, _, d)| owners(d).any(|r| text(r, &["uid"]) == uid && r["blockOwnerDeletion"] == true));
            if !blocked {
                busy |= drop_finalizer(core, resource, owner, "foregroundDeletion");
            }
        } else if has_finalizer(owner, "orphan") {
            for (_, collection, dependent) in &dependents {
                let mut value = dependent.value.clone();
                let kept: Vec<Value> = owners(dependent).filter(|r| text(r, &["uid"]) != uid).cloned().collect();
                let metadata = metadata_mut(&mut value);
                if kept.is_empty() {
                    metadata.remove("ownerReferences");
                } else {
                    metadata.insert("ownerReferences".into(), Value::Array(kept));
                }
                let key = key_of(&value);
                busy |= core.store.commit(collection, &key, Some(dependent.version), Some(value)).is_ok();
            }
            busy |= drop_finalizer(core, resource, owner, "orphan");
        }
    }
    busy
}

/// Takes a finalizer off a terminating object and removes the object when that was the last.
fn drop_finalizer(core: &Core, resource: &Resource, object: &Object, finalizer: &str) -> bool {
    let key = key_of(&object.value);
    let Some(live) = core.store.get(&resource.storage, &key) else { return false };
    let mut value = live.value.clone();
    let mut list = value["metadata"]["finalizers"].as_array().cloned().unwrap_or_default();
    let before = list.len();
    list.retain(|f| f != finalizer);
    if list.len() == before {
        return false;
    }
    let grace = value["metadata"]["deletionGracePeriodSeconds"].as_i64().unwrap_or(0);
    if list.is_empty() && grace == 0 {
        return core.store.commit(&resource.storage, &key, Some(live.version), None).is_ok();
    }
    let metadata = metadata_mut(&mut value);
    if list.is_empty() {
        metadata.remove("finalizers");
    } else {
        metadata.insert("finalizers".into(), Value::Array(list));
    }
    core.store.commit(&resource.storage, &key, Some(live.version), Some(value)).is_ok()
}

/// Empties terminating namespaces and removes the empty ones.
fn namespaces(core: &Core, all: &[Found]) -> bool {
    let mut busy = false;
    for (_, collection, namespace) in all.iter().filter(|(_, c, o)| c == "/namespaces" && deleting(&o.value)) {
        let name = meta(&namespace.value, "name");
        let mut left = false;
        for (resource, _, object) in all.iter().filter(|(_, _, o)| meta(&o.value, "namespace") == name) {
            left = true;
            if let Some(resource) = resource
                && !deleting(&object.value)
            {
                busy |= remove(core, resource, object, "Background");
            }
        }
        let finalized = super::object::finalized(&namespace.value);
        if !left && !finalized {
            let key = format!("/{name}");
            busy |= core.store.commit(collection, &key, Some(namespace.version), None).is_ok();
        }
    }
    busy
}

/// Keeps the taints of nodes in step with their Ready condition, as the node lifecycle controller does. Ends when the
/// store is gone.
pub async fn taint_forever(core: Arc<Core>) {
    loop {
        let everything = Arc::new(Selection::default());
        let Ok(mut changes) = core.store.subscribe("/nodes", "/", None, everything) else { return };
        for (key, node) in core.store.list("/nodes", "/", None, None).map(|s| s.items).unwrap_or_default() {
            taint(&core, &key, node);
        }
        while let Some(change) = changes.rx.recv().await {
            if let Some(node) = &change.after {
                taint(&core, &change.key, Arc::clone(node));
            }
        }
    }
}

const NOT_READY: &str = "node.kubernetes.io/not-ready";
const UNREACHABLE: &str = "node.kubernetes.io/unreachable";

fn taint(core: &Core, key: &str, mut node: Arc<Object>) {
    loop {
        let conditions = node.value["status"]["conditions"].as_array();
        let ready = conditions.into_iter().flatten().find(|c| c["type"] == "Ready");
        let Some(ready) = ready else { return };
        let (condition, effects): (Option<&str>, &[&str]) = match text(ready, &["status"]) {
            "True" => (None, &[]),
            "False" => (Some(NOT_READY), &["NoSchedule", "NoExecute"]),
            _ => (Some(UNREACHABLE), &["NoSchedule", "NoExecute"]),
        };
        let old = node.value["spec"]["taints"].as_array().cloned().unwrap_or_default();
        let ours = |t: &Value| t["key"] == NOT_READY || t["key"] == UNREACHABLE;
        let mut new: Vec<Value> =
            old.iter().filter(|t| !ours(t) || condition.is_some_and(|k| t["key"] == k)).cloned().collect();
        if let Some(wanted) = condition {
            for effect in effects {
                if !new.iter().any(|t| t["key"] == wanted && t["effect"] == *effect) {
                    new.push(json!({"key": wanted, "effect": effect, "timeAdded": core.now()}));
                }
            }
        }
        if new == old {
            return;
        }
        let mut value = node.value.clone();
        if new.is_empty() {
            if let Some(spec) = value["spec"].as_object_mut() {
                spec.remove("taints");
            }
        } else {
            value["spec"]["taints"] = Value::Array(new);
        }
        if core.store.commit("/nodes", key, Some(node.version), Some(value)).is_ok() {
            return;
        }
        match core.store.get("/nodes", key) {
            Some(current) => node = current,
            None => return,
        }
    }
}

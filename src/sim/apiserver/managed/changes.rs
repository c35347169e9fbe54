//! What differs between two versions of an object, as field sets, by the merge rules of its type.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::FieldSet;
use crate::apiserver::schema::{Node, Rel, Schema, item_key};

/// The fields that came, changed and went.
#[derive(Debug, Default)]
pub struct Changes {
    /// In the new version only.
    pub added: FieldSet,
    /// In both, with other values.
    pub modified: FieldSet,
    /// In the old version only.
    pub removed: FieldSet,
}

impl Changes {
    /// Added and modified.
    pub fn written(&self) -> FieldSet {
        let mut set = self.added.clone();
        set.union(&self.modified);
        set
    }
}

struct ChangesWalk<'a> {
    schema: &'a Schema,
    changes: Changes,
    path: Vec<String>,
}

/// Compares two objects. Of the metadata only what clients own is compared.
pub fn compare(schema: &Schema, old: &Value, new: &Value) -> Changes {
    let mut walk = ChangesWalk { schema, changes: Changes::default(), path: Vec::new() };
    walk.node(schema.root(), Some(old), Some(new));
    let mut changes = walk.changes;
    for set in [&mut changes.added, &mut changes.modified, &mut changes.removed] {
        strip(set);
    }
    changes
}

/// Removes the fields that no manager owns.
pub(super) fn strip(set: &mut FieldSet) {
    set.retain(|key| !matches!(key, "f:apiVersion" | "f:kind"));
    if let Some(metadata) = set.child_mut("f:metadata") {
        metadata.retain(|key| {
            matches!(key, "f:labels" | "f:annotations" | "f:generateName" | "f:ownerReferences" | "f:finalizers")
        });
    }
    let empty = set.child("f:metadata").is_some_and(|m| m.paths().iter().all(Vec::is_empty));
    if empty {
        set.retain(|key| key != "f:metadata");
    }
}

impl ChangesWalk<'_> {
    fn node(&mut self, node: &Node, old: Option<&Value>, new: Option<&Value>) {
        if old == new {
            return;
        }
        if !self.path.is_empty() {
            if old.is_none() {
                self.changes.added.insert(&self.path);
            }
            if new.is_none() {
                self.changes.removed.insert(&self.path);
            }
        }
        let schema = self.schema;
        match schema.resolve(node) {
            Node::Struct(s) if !s.atomic => self.maps(node, old, new),
            Node::Map(_, false) | Node::Any => self.maps(node, old, new),
            Node::List(elem, Rel::Keys { keys, .. }) => self.lists(elem, old, new, &|item| item_key(item, keys)),
            Node::List(elem, Rel::Set) => self.lists(elem, old, new, &|item| Some(format!("v:{item}"))),
            _ => self.leaf(old, new),
        }
    }

    fn leaf(&mut self, old: Option<&Value>, new: Option<&Value>) {
        if old.is_some() && new.is_some() {
            self.changes.modified.insert(&self.path);
        }
    }

    fn maps(&mut self, node: &Node, old: Option<&Value>, new: Option<&Value>) {
        let is_map = |v: Option<&Value>| v.is_none_or(|v| v.is_object() || v.is_null());
        let empty = |v: Option<&Value>| v.and_then(Value::as_object).is_none_or(Map::is_empty);
        if !is_map(old) || !is_map(new) || (empty(old) && empty(new)) {
            return self.leaf(old, new);
        }
        let none = Map::new();
        let old = old.and_then(Value::as_object).unwrap_or(&none);
        let new = new.and_then(Value::as_object).unwrap_or(&none);
        let schema = self.schema;
        for key in old.keys().chain(new.keys().filter(|k| !old.contains_key(*k))) {
            let inner = schema.field(node, key).unwrap_or(&Node::Any);
            self.path.push(format!("f:{key}"));
            self.node(inner, old.get(key), new.get(key));
            self.path.pop();
        }
    }

    fn lists(&mut self, elem: &Node, old: Option<&Value>, new: Option<&Value>, key: &dyn Fn(&Value) -> Option<String>) {
        let index = |v: Option<&Value>| -> Option<BTreeMap<String, Value>> {
            let items = v.and_then(Value::as_array).cloned().unwrap_or_default();
            items.into_iter().map(|item| key(&item).map(|k| (k, item))).collect()
        };
        let (Some(old_items), Some(new_items)) = (index(old), index(new)) else { return self.leaf(old, new) };
        if old_items.is_empty() && new_items.is_empty() {
            return self.leaf(old, new);
        }
        for name in old_items.keys().chain(new_items.keys().filter(|k| !old_items.contains_key(*k))) {
            self.path.push(name.clone());
            self.node(elem, old_items.get(name), new_items.get(name));
            self.path.pop();
        }
    }
}

//! `metadata.managedFields` as entries, and what an update does to them.

use serde_json::{Value, json};

use super::{FieldSet, compare};
use crate::apiserver::object::metadata_mut;
use crate::apiserver::schema::Schema;

/// Who writes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Manager {
    /// Field manager's name.
    pub name: String,
    /// Whether by server-side apply.
    pub applies: bool,
    /// Version written in.
    pub api_version: String,
    /// `status`, or empty.
    pub subresource: String,
}

#[derive(Debug, Clone)]
struct ManagedEntry {
    manager: Manager,
    time: String,
    set: FieldSet,
}

/// All entries of an object.
#[derive(Debug, Clone, Default)]
pub struct Entries(Vec<ManagedEntry>);

impl Entries {
    /// Reads the metadata of an object.
    pub fn read(object: &Value) -> Self {
        let list = object["metadata"]["managedFields"].as_array();
        let text = |v: &Value, key: &str| v[key].as_str().unwrap_or_default().to_owned();
        Self(
            list.into_iter()
                .flatten()
                .map(|v| ManagedEntry {
                    manager: Manager {
                        name: text(v, "manager"),
                        applies: v["operation"] == "Apply",
                        api_version: text(v, "apiVersion"),
                        subresource: text(v, "subresource"),
                    },
                    time: text(v, "time"),
                    set: FieldSet::from_json(&v["fieldsV1"]),
                })
                .collect(),
        )
    }

    /// Writes them into the metadata, in the order of a real server.
    pub fn write(mut self, object: &mut Value) {
        self.0.retain(|e| !e.set.is_empty());
        self.0.sort_by(|a, b| {
            let key = |e: &ManagedEntry| {
                let m = &e.manager;
                (!m.applies, e.time.clone(), m.name.clone(), m.api_version.clone(), m.subresource.clone())
            };
            key(a).cmp(&key(b))
        });
        let list: Vec<Value> = self
            .0
            .iter()
            .map(|e| {
                let mut v = json!({
                    "manager": e.manager.name, "operation": if e.manager.applies { "Apply" } else { "Update" },
                    "apiVersion": e.manager.api_version, "time": e.time, "fieldsType": "FieldsV1",
                    "fieldsV1": e.set.to_json(),
                });
                if !e.manager.subresource.is_empty() {
                    v["subresource"] = json!(e.manager.subresource);
                }
                v
            })
            .collect();
        let metadata = metadata_mut(object);
        if list.is_empty() {
            metadata.remove("managedFields");
        } else {
            metadata.insert("managedFields".into(), Value::Array(list));
        }
    }

    /// The set of one manager.
    pub(super) fn set_of(&self, manager: &Manager) -> Option<&FieldSet> {
        self.0.iter().find(|e| e.manager == *manager).map(|e| &e.set)
    }

    /// All other managers with their sets.
    pub(super) fn others<'a>(&'a self, manager: &'a Manager) -> impl Iterator<Item = (&'a Manager, &'a FieldSet)> {
        self.0.iter().filter(move |e| e.manager != *manager).map(|e| (&e.manager, &e.set))
    }

    /// Takes `lost` from every manager but `manager`.
    pub(super) fn take_from_others(&mut self, manager: &Manager, lost: &FieldSet) {
        for entry in self.0.iter_mut().filter(|e| e.manager != *manager) {
            entry.set.subtract(lost);
        }
    }

    /// Takes `lost` from every manager.
    pub(super) fn take_from_all(&mut self, lost: &FieldSet) {
        for entry in &mut self.0 {
            entry.set.subtract(lost);
        }
    }

    /// Replaces the set of `manager`, touching its time only when the set changes.
    pub(super) fn replace(&mut self, manager: &Manager, set: FieldSet, now: &str) {
        match self.0.iter_mut().find(|e| e.manager == *manager) {
            Some(entry) if entry.set == set => {}
            Some(entry) => {
                entry.set = set;
                now.clone_into(&mut entry.time);
            }
            None => self.0.push(ManagedEntry { manager: manager.clone(), time: now.to_owned(), set }),
        }
    }

    /// Adds to the set of `manager`.
    fn extend(&mut self, manager: &Manager, set: &FieldSet, now: &str) {
        match self.0.iter_mut().find(|e| e.manager == *manager) {
            Some(entry) => {
                entry.set.union(set);
                now.clone_into(&mut entry.time);
            }
            None => self.0.push(ManagedEntry { manager: manager.clone(), time: now.to_owned(), set: set.clone() }),
        }
    }
}

/// Records a create or update: `manager` owns what it wrote, the others lose it, and removed fields have no owner.
/// `new` may carry entries of its own (a client may reset them by an empty list).
pub fn record_update(schema: &Schema, old: &Value, new: &mut Value, manager: &Manager, now: &str) {
    let sent = new["metadata"].get("managedFields");
    let reset = sent.and_then(Value::as_array).is_some_and(|list| list.len() == 1 && list[0] == json!({}));
    let mut entries = if reset { Entries::default() } else { Entries::read(old) };
    let changes = compare(schema, old, new);
    let written = changes.written();
    if !written.is_empty() {
        entries.take_from_others(manager, &written);
        entries.extend(manager, &written, now);
    }
    entries.take_from_all(&changes.removed);
    entries.write(new);
}

/// The object without its managed fields' times, to find out whether anything changed at all.
pub fn forget(object: &Value) -> Value {
    let mut copy = object.clone();
    for entry in copy["metadata"]["managedFields"].as_array_mut().into_iter().flatten() {
        if let Some(map) = entry.as_object_mut() {
            map.remove("time");
        }
    }
    copy
}

//! Events have two API forms and one store; they are stored in the core form.

use serde_json::{Map, Value};

use super::resource::Resource;

type FieldNames = (&'static str, &'static str);

/// (core field, events.k8s.io field)
const RENAMED: [FieldNames; 7] = [
    ("involvedObject", "regarding"),
    ("message", "note"),
    ("source", "deprecatedSource"),
    ("firstTimestamp", "deprecatedFirstTimestamp"),
    ("lastTimestamp", "deprecatedLastTimestamp"),
    ("count", "deprecatedCount"),
    ("reportingComponent", "reportingController"),
];

fn is_new_form(resource: &Resource) -> bool {
    resource.is("events.k8s.io", "events")
}

/// `turn` makes (name, new name) of one of [`RENAMED`].
fn rename(value: Value, turn: fn(FieldNames) -> FieldNames) -> Value {
    let Value::Object(map) = value else { return value };
    let mut out = Map::new();
    for (key, item) in map {
        let renamed = RENAMED.into_iter().map(turn).find(|(from, _)| *from == key);
        out.insert(renamed.map_or(key, |(_, to)| to.to_owned()), item);
    }
    Value::Object(out)
}

/// From the resource's form to the stored one.
pub fn to_stored(resource: &Resource, value: Value) -> Value {
    if is_new_form(resource) { rename(value, |(core, new)| (new, core)) } else { value }
}

/// From the stored form to the resource's.
pub fn from_stored(resource: &Resource, value: &Value) -> Value {
    if is_new_form(resource) { rename(value.clone(), |names| names) } else { value.clone() }
}

/// Whether stored bytes can be sent as they are.
pub fn is_stored_form(resource: &Resource) -> bool {
    !is_new_form(resource)
}

//! Events have two API forms and one store; they are stored in the core form.

use serde_json::{Map, Value};

use super::resource::Resource;

/// (core field, events.k8s.io field)
const RENAMED: [(&str, &str); 7] = [
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

fn rename(value: Value, to_core: bool) -> Value {
    let Value::Object(map) = value else { return value };
    let mut out = Map::new();
    for (key, item) in map {
        let name = RENAMED
            .iter()
            .map(|(core, new)| if to_core { (*new, *core) } else { (*core, *new) })
            .find(|(from, _)| *from == key)
            .map_or(key.clone(), |(_, to)| to.to_owned());
        out.insert(name, item);
    }
    Value::Object(out)
}

/// From the resource's form to the stored one.
pub fn to_stored(resource: &Resource, value: Value) -> Value {
    if is_new_form(resource) { rename(value, true) } else { value }
}

/// From the stored form to the resource's.
pub fn from_stored(resource: &Resource, value: &Value) -> Value {
    if is_new_form(resource) { rename(value.clone(), false) } else { value.clone() }
}

/// Whether stored bytes can be sent as they are.
pub fn is_stored_form(resource: &Resource) -> bool {
    !is_new_form(resource)
}

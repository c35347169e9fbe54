//! A stored object: its fields without kind and version, and its bytes, serialised once and shared by every reader.

use std::sync::{Arc, OnceLock};

use axum::body::Bytes;
use serde_json::{Map, Value};

use super::resource::Resource;

/// One version of one object. `value` has no `kind` and no `apiVersion`; they belong to the resource it is read through.
#[derive(Debug)]
pub struct Object {
    /// The fields.
    pub value: Value,
    /// resourceVersion.
    pub version: u64,
    bytes: OnceLock<Bytes>,
}

impl Object {
    /// Wraps a value whose `metadata.resourceVersion` is `version`.
    pub fn new(value: Value, version: u64) -> Arc<Self> {
        Arc::new(Self { value, version, bytes: OnceLock::new() })
    }

    /// The JSON text without kind and version.
    pub fn bytes(&self) -> &Bytes {
        self.bytes.get_or_init(|| Bytes::from(self.value.to_string()))
    }

    /// Appends the JSON text with kind and version in front.
    pub fn write_typed(&self, resource: &Resource, out: &mut Vec<u8>) {
        out.extend_from_slice(b"{\"kind\":\"");
        out.extend_from_slice(resource.kind.as_bytes());
        out.extend_from_slice(b"\",\"apiVersion\":\"");
        out.extend_from_slice(resource.api_version().as_bytes());
        out.push(b'"');
        let body = self.bytes();
        if body.len() > 2 {
            out.push(b',');
        }
        out.extend_from_slice(&body[1..]);
    }
}

/// The object with kind and version in front of the fields.
pub fn typed(resource: &Resource, value: &Value) -> Value {
    let mut map = value.as_object().cloned().unwrap_or_default();
    map.insert("kind".into(), Value::String(resource.kind.clone()));
    map.insert("apiVersion".into(), Value::String(resource.api_version()));
    Value::Object(map)
}

/// The metadata map, created when absent.
pub fn metadata_mut(value: &mut Value) -> &mut Map<String, Value> {
    if !value.is_object() {
        *value = Value::Object(Map::new());
    }
    let slot = &mut value["metadata"];
    if !slot.is_object() {
        *slot = Value::Object(Map::new());
    }
    slot.as_object_mut().expect("metadata was just made an object")
}

/// A string of the metadata, empty when absent.
pub fn meta<'a>(value: &'a Value, key: &str) -> &'a str {
    value["metadata"][key].as_str().unwrap_or_default()
}

/// The string at a path of fields, empty when absent.
pub fn text<'a>(value: &'a Value, path: &[&str]) -> &'a str {
    path.iter().try_fold(value, |at, key| at.get(*key)).and_then(Value::as_str).unwrap_or_default()
}

/// Whether deletion has been asked for.
pub fn deleting(value: &Value) -> bool {
    value["metadata"].get("deletionTimestamp").is_some_and(|t| !t.is_null())
}

/// Whether any finalizer is set.
pub fn finalized(value: &Value) -> bool {
    value["metadata"].get("finalizers").and_then(Value::as_array).is_some_and(|f| !f.is_empty())
}

/// Storage key: `/<namespace>/<name>` or `/<name>`, ordered as in etcd.
pub fn key(namespace: &str, name: &str) -> String {
    if namespace.is_empty() { format!("/{name}") } else { format!("/{namespace}/{name}") }
}

/// The storage key of a value.
pub fn key_of(value: &Value) -> String {
    key(meta(value, "namespace"), meta(value, "name"))
}

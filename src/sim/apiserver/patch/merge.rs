//! Merge patch (RFC 7386).

use serde_json::{Map, Value};

/// Merges `patch` into `value`; nulls remove.
pub fn merge_patch(value: &Value, patch: &Value) -> Value {
    let Value::Object(patch) = patch else { return patch.clone() };
    let mut out: Map<String, Value> = value.as_object().cloned().unwrap_or_default();
    for (key, item) in patch {
        if item.is_null() {
            out.remove(key);
        } else {
            let merged = merge_patch(out.get(key).unwrap_or(&Value::Null), item);
            out.insert(key.clone(), merged);
        }
    }
    Value::Object(out)
}

//! Strategic merge patch: like a merge patch, but lists merge by the keys of their type, and `$` directives are obeyed.

use serde_json::{Map, Value};

use crate::apiserver::failure::Failure;
use crate::apiserver::schema::{Node, Rel, Schema};

/// Merges `patch` into `value` by the types of `schema`.
pub fn strategic_patch(schema: &Schema, value: &Value, patch: &Value) -> Result<Value, Failure> {
    let Value::Object(patch) = patch else {
        return Err(Failure::bad_request("unable to find api field in struct: the patch is not an object"));
    };
    let empty = Map::new();
    maps(schema, schema.root(), value.as_object().unwrap_or(&empty), patch)
}

fn maps(schema: &Schema, node: &Node, old: &Map<String, Value>, patch: &Map<String, Value>) -> Result<Value, Failure> {
    match patch.get("$patch").and_then(Value::as_str) {
        Some("replace") => {
            let kept = patch.iter().filter(|(k, _)| *k != "$patch").map(|(k, v)| (k.clone(), v.clone()));
            return Ok(Value::Object(kept.collect()));
        }
        Some("delete") => return Ok(Value::Object(Map::new())),
        Some("merge") | None => {}
        Some(other) => return Err(Failure::bad_request(format!("Unknown patch type: {other} in map: {patch:?}"))),
    }
    let mut out = old.clone();
    if let Some(Value::Array(kept)) = patch.get("$retainKeys") {
        out.retain(|key, _| kept.iter().any(|k| k == key));
    }
    for (key, item) in patch {
        if let Some(list) = key.strip_prefix("$deleteFromPrimitiveList/") {
            if let (Some(Value::Array(items)), Value::Array(gone)) = (out.get_mut(list), item) {
                items.retain(|i| !gone.contains(i));
            }
            continue;
        }
        // The order of merged lists is a wish of the client, which no reader relies on here.
        if key.starts_with('$') {
            continue;
        }
        if item.is_null() {
            out.remove(key);
            continue;
        }
        let inner = schema.field(node, key).unwrap_or(&Node::Any);
        let merged = merge(schema, inner, out.get(key), item)?;
        out.insert(key.clone(), merged);
    }
    Ok(Value::Object(out))
}

fn merge(schema: &Schema, node: &Node, old: Option<&Value>, patch: &Value) -> Result<Value, Failure> {
    match (schema.resolve(node), patch) {
        (_, Value::Object(new)) => {
            let empty = Map::new();
            maps(schema, node, old.and_then(Value::as_object).unwrap_or(&empty), new)
        }
        (Node::List(elem, Rel::Keys { merge: Some(key), .. } | Rel::AtomicMergedBy(key)), Value::Array(new)) => {
            lists(schema, elem, old.and_then(Value::as_array).map_or(&[][..], Vec::as_slice), new, key)
        }
        (Node::List(_, Rel::Set), Value::Array(new)) => {
            let mut out = old.and_then(Value::as_array).cloned().unwrap_or_default();
            for item in new {
                if !out.contains(item) {
                    out.push(item.clone());
                }
            }
            Ok(Value::Array(out))
        }
        _ => Ok(patch.clone()),
    }
}

fn lists(schema: &Schema, elem: &Node, old: &[Value], patch: &[Value], key: &str) -> Result<Value, Failure> {
    let directive = |item: &Value| item.get("$patch").and_then(Value::as_str).map(str::to_owned);
    let replace = patch.iter().any(|i| directive(i).as_deref() == Some("replace"));
    let mut out = if replace { Vec::new() } else { old.to_vec() };
    for item in patch {
        let verb = directive(item);
        if verb.as_deref() == Some("replace") {
            continue;
        }
        let Some(name) = item.get(key) else {
            return Err(Failure::bad_request(format!("map: {item} does not contain declared merge key: {key}")));
        };
        if verb.as_deref() == Some("delete") {
            out.retain(|o| o.get(key) != Some(name));
            continue;
        }
        match out.iter_mut().find(|o| o.get(key) == Some(name)) {
            Some(slot) => *slot = merge(schema, elem, Some(slot), item)?,
            None => out.push(merge(schema, elem, None, item)?),
        }
    }
    Ok(Value::Array(out))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::apiserver::schema::builtin_schema;

    #[test]
    fn lists_merge_by_their_keys_and_directives_delete_and_replace() {
        let pod = json!({"spec": {"containers": [{"name": "a", "image": "1", "env": [{"name": "X", "value": "1"}]}, {"name": "b"}],
            "tolerations": [{"key": "t"}]}, "metadata": {"finalizers": ["x/a"]}});
        let patch = json!({"metadata": {"finalizers": ["x/b"]}, "spec": {
            "$setElementOrder/containers": [{"name": "a"}, {"name": "c"}],
            "containers": [{"name": "a", "image": "2", "env": [{"name": "Y", "value": "2"}]}, {"name": "c"}, {"name": "b", "$patch": "delete"}],
            "tolerations": [{"key": "u"}]}});
        let merged = strategic_patch(&builtin_schema("", "v1", "Pod"), &pod, &patch).unwrap();
        assert_eq!(
            merged,
            json!({"spec": {"containers": [
                {"name": "a", "image": "2", "env": [{"name": "X", "value": "1"}, {"name": "Y", "value": "2"}]}, {"name": "c"}],
                "tolerations": [{"key": "u"}]}, "metadata": {"finalizers": ["x/a", "x/b"]}})
        );
        let gone = json!({"metadata": {"$deleteFromPrimitiveList/finalizers": ["x/a"]}, "spec": {"$patch": "replace", "nodeName": "n"}});
        let merged = strategic_patch(&builtin_schema("", "v1", "Pod"), &pod, &gone).unwrap();
        assert_eq!(merged, json!({"metadata": {"finalizers": []}, "spec": {"nodeName": "n"}}));
    }
}

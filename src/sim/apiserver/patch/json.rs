//! JSON patch (RFC 6902) with the leniency of the server's library: a `test` for null holds where the value is absent.

use serde_json::Value;

use crate::apiserver::failure::Failure;

/// Applies the operations in order; nothing is changed unless all hold.
pub fn json_patch(value: &Value, patch: &Value) -> Result<Value, Failure> {
    let operations = patch
        .as_array()
        .ok_or_else(|| Failure::bad_request("json: cannot unmarshal object into Go value of type jsonpatch.Patch"))?;
    if operations.len() > 10_000 {
        return Err(Failure::too_large(10_000));
    }
    let mut out = value.clone();
    for operation in operations {
        apply(&mut out, operation).ok_or_else(Failure::patch_failed)?;
    }
    Ok(out)
}

fn apply(value: &mut Value, operation: &Value) -> Option<()> {
    let path = tokens(operation.get("path")?.as_str()?)?;
    match operation.get("op")?.as_str()? {
        "add" => add(value, &path, operation.get("value")?.clone()),
        "remove" => take(value, &path).map(|_| ()),
        "replace" => {
            let new = operation.get("value")?.clone();
            if path.is_empty() {
                *value = new;
                return Some(());
            }
            *find_mut(value, &path)? = new;
            Some(())
        }
        "move" => {
            let item = take(value, &tokens(operation.get("from")?.as_str()?)?)?;
            add(value, &path, item)
        }
        "copy" => {
            let item = find(value, &tokens(operation.get("from")?.as_str()?)?)?.clone();
            add(value, &path, item)
        }
        "test" => {
            let wanted = operation.get("value").unwrap_or(&Value::Null);
            // The parent must be there; only the last step may be absent, and then equals null.
            let (last, parent) = match path.split_last() {
                Some((last, parent)) => (last, find(value, parent)?),
                None => return (value == wanted).then_some(()),
            };
            let found = match parent {
                Value::Object(map) => map.get(last),
                Value::Array(items) => Some(items.get(last.parse::<usize>().ok()?)?),
                _ => return None,
            };
            (found.unwrap_or(&Value::Null) == wanted).then_some(())
        }
        _ => None,
    }
}

fn tokens(path: &str) -> Option<Vec<String>> {
    if path.is_empty() {
        return Some(Vec::new());
    }
    Some(path.strip_prefix('/')?.split('/').map(|t| t.replace("~1", "/").replace("~0", "~")).collect())
}

fn find<'a>(value: &'a Value, path: &[String]) -> Option<&'a Value> {
    path.iter().try_fold(value, |at, key| match at {
        Value::Object(map) => map.get(key),
        Value::Array(items) => items.get(key.parse::<usize>().ok()?),
        _ => None,
    })
}

fn find_mut<'a>(value: &'a mut Value, path: &[String]) -> Option<&'a mut Value> {
    path.iter().try_fold(value, |at, key| match at {
        Value::Object(map) => map.get_mut(key),
        Value::Array(items) => items.get_mut(key.parse::<usize>().ok()?),
        _ => None,
    })
}

fn add(value: &mut Value, path: &[String], item: Value) -> Option<()> {
    let Some((last, parent)) = path.split_last() else {
        *value = item;
        return Some(());
    };
    match find_mut(value, parent)? {
        Value::Object(map) => {
            map.insert(last.clone(), item);
        }
        Value::Array(items) if last == "-" => items.push(item),
        Value::Array(items) => {
            let index: usize = last.parse().ok()?;
            if index > items.len() {
                return None;
            }
            items.insert(index, item);
        }
        _ => return None,
    }
    Some(())
}

fn take(value: &mut Value, path: &[String]) -> Option<Value> {
    let (last, parent) = path.split_last()?;
    match find_mut(value, parent)? {
        Value::Object(map) => map.remove(last),
        Value::Array(items) => {
            let index: usize = last.parse().ok()?;
            (index < items.len()).then(|| items.remove(index))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_test_for_null_holds_where_the_key_is_absent_but_not_where_its_parent_is() {
        let set =
            json!([{"op": "test", "path": "/m/a~1b", "value": null}, {"op": "add", "path": "/m/a~1b", "value": 1}]);
        assert_eq!(json_patch(&json!({"m": {}}), &set).ok(), Some(json!({"m": {"a/b": 1}})));
        assert!(json_patch(&json!({}), &set).is_err());
        assert!(json_patch(&json!({"m": {"a/b": 2}}), &set).is_err());
    }

    #[test]
    fn lists_are_patched_by_index() {
        let patch = json!([
            {"op": "add", "path": "/l/-", "value": 3},
            {"op": "add", "path": "/l/0", "value": 0},
            {"op": "remove", "path": "/l/1"},
            {"op": "move", "from": "/l/0", "path": "/x"},
            {"op": "copy", "from": "/x", "path": "/y"},
        ]);
        assert_eq!(json_patch(&json!({"l": [1, 2]}), &patch).ok(), Some(json!({"l": [2, 3], "x": 0, "y": 0})));
        assert!(json_patch(&json!({"l": []}), &json!([{"op": "remove", "path": "/l/0"}])).is_err());
    }
}

//! Custom objects against the structural schema of their definition: pruning, defaults, validation.

use std::collections::HashMap;
use std::sync::{LazyLock, Mutex, PoisonError};

use serde_json::{Map, Value};

use crate::apiserver::failure::Cause;

fn flag(schema: &Value, key: &str) -> bool {
    schema.get(key).and_then(Value::as_bool).unwrap_or(false)
}

/// Drops fields that the schema does not declare; answers their paths.
pub fn prune(schema: &Value, value: &mut Value) -> Vec<String> {
    let mut dropped = Vec::new();
    if let Some(map) = value.as_object_mut() {
        let keep: Vec<(String, Option<Value>)> =
            ["apiVersion", "kind", "metadata"].iter().map(|k| ((*k).to_owned(), map.remove(*k))).collect();
        prune_map(schema, map, "", &mut dropped);
        for (key, item) in keep {
            if let Some(item) = item {
                map.insert(key, item);
            }
        }
    }
    dropped
}

fn prune_map(schema: &Value, map: &mut Map<String, Value>, at: &str, dropped: &mut Vec<String>) {
    let properties = schema.get("properties").and_then(Value::as_object);
    let rest = schema.get("additionalProperties");
    let preserve = flag(schema, "x-kubernetes-preserve-unknown-fields");
    map.retain(|key, item| {
        let path = if at.is_empty() { key.clone() } else { format!("{at}.{key}") };
        if let Some(inner) = properties.and_then(|p| p.get(key)) {
            prune_value(inner, item, &path, dropped);
            return true;
        }
        match rest {
            Some(inner) if inner.is_object() => {
                prune_value(inner, item, &path, dropped);
                true
            }
            Some(Value::Bool(true)) => true,
            _ if preserve => true,
            _ => {
                dropped.push(path);
                false
            }
        }
    });
}

fn prune_value(schema: &Value, value: &mut Value, at: &str, dropped: &mut Vec<String>) {
    match value {
        Value::Object(map) => {
            if flag(schema, "x-kubernetes-embedded-resource") {
                return;
            }
            prune_map(schema, map, at, dropped);
        }
        Value::Array(items) => {
            if let Some(inner) = schema.get("items") {
                for (index, item) in items.iter_mut().enumerate() {
                    prune_value(inner, item, &format!("{at}[{index}]"), dropped);
                }
            }
        }
        _ => {}
    }
}

/// Fills in the schema's defaults; nulls that may not be null give way to them.
pub fn apply_defaults(schema: &Value, value: &mut Value) {
    match value {
        Value::Object(map) => {
            for (key, inner) in schema.get("properties").and_then(Value::as_object).into_iter().flatten() {
                if map.get(key).is_some_and(Value::is_null)
                    && !flag(inner, "nullable")
                    && inner.get("default").is_some()
                {
                    map.remove(key);
                }
                if let (None, Some(default)) = (map.get(key), inner.get("default")) {
                    map.insert(key.clone(), default.clone());
                }
                if let Some(item) = map.get_mut(key) {
                    apply_defaults(inner, item);
                }
            }
            if let Some(inner) = schema.get("additionalProperties").filter(|v| v.is_object()) {
                let declared = schema.get("properties").and_then(Value::as_object);
                for (key, item) in map.iter_mut() {
                    if declared.is_none_or(|d| !d.contains_key(key)) {
                        apply_defaults(inner, item);
                    }
                }
            }
        }
        Value::Array(items) => {
            if let Some(inner) = schema.get("items") {
                for item in items {
                    apply_defaults(inner, item);
                }
            }
        }
        _ => {}
    }
}

/// Checks a custom object; causes name fields as a real server does.
pub fn custom(schema: &Value, value: &Value) -> Vec<Cause> {
    let mut causes = Vec::new();
    check(schema, value, "", &mut causes);
    causes
}

fn join(at: &str, key: &str) -> String {
    if at.is_empty() { key.to_owned() } else { format!("{at}.{key}") }
}

fn type_name(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(n) if n.is_f64() => "number",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

fn check(schema: &Value, value: &Value, at: &str, causes: &mut Vec<Cause>) {
    if value.is_null() && flag(schema, "nullable") {
        return;
    }
    if flag(schema, "x-kubernetes-int-or-string") && (value.is_i64() || value.is_string()) {
        return;
    }
    if let Some(wanted) = schema.get("type").and_then(Value::as_str) {
        let found = type_name(value);
        let fits = wanted == found || (wanted == "number" && found == "integer");
        if !fits {
            let shown = if at.is_empty() { "<nil>" } else { at };
            causes.push(Cause::wrong_type(
                shown,
                &format!("\"{found}\": {at} in body must be of type {wanted}: \"{found}\""),
            ));
            return;
        }
    }
    if let Some(allowed) = schema.get("enum").and_then(Value::as_array)
        && !allowed.contains(value)
    {
        let list: Vec<String> =
            allowed.iter().map(|a| a.as_str().map_or_else(|| a.to_string(), str::to_owned)).collect();
        causes.push(Cause::unsupported(at, value, &list));
    }
    match value {
        Value::Object(map) => object(schema, map, at, causes),
        Value::Array(items) => list(schema, items, at, causes),
        Value::String(text) => string(schema, text, at, causes),
        Value::Number(_) => number(schema, value, at, causes),
        _ => {}
    }
}

fn object(schema: &Value, map: &Map<String, Value>, at: &str, causes: &mut Vec<Cause>) {
    for key in schema.get("required").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str) {
        if !map.contains_key(key) {
            causes.push(Cause::required(join(at, key), ""));
        }
    }
    let properties = schema.get("properties").and_then(Value::as_object);
    let rest = schema.get("additionalProperties").filter(|v| v.is_object());
    for (key, item) in map {
        if at.is_empty() && matches!(key.as_str(), "metadata" | "apiVersion" | "kind") {
            continue;
        }
        if let Some(inner) = properties.and_then(|p| p.get(key)) {
            check(inner, item, &join(at, key), causes);
        } else if let Some(inner) = rest {
            check(inner, item, &join(at, key), causes);
        }
    }
    if let Some(max) = limit(schema, "maxProperties")
        && map.len() > max
    {
        causes.push(Cause {
            reason: "FieldValueTooMany",
            message: format!("Too many: {}: must have at most {max} items", map.len()),
            field: at.to_owned(),
        });
    }
}

fn limit(schema: &Value, key: &str) -> Option<usize> {
    schema.get(key).and_then(Value::as_u64).and_then(|n| usize::try_from(n).ok())
}

fn list(schema: &Value, items: &[Value], at: &str, causes: &mut Vec<Cause>) {
    if let Some(inner) = schema.get("items") {
        for (index, item) in items.iter().enumerate() {
            check(inner, item, &format!("{at}[{index}]"), causes);
        }
    }
    if let Some(max) = limit(schema, "maxItems")
        && items.len() > max
    {
        causes.push(Cause {
            reason: "FieldValueTooMany",
            message: format!("Too many: {}: must have at most {max} items", items.len()),
            field: at.to_owned(),
        });
    }
    if let Some(min) = limit(schema, "minItems")
        && items.len() < min
    {
        causes.push(Cause::invalid(
            at,
            &Value::from(items.len()),
            &format!("{at} in body should have at least {min} items"),
        ));
    }
    let keys: Vec<String> = schema
        .get("x-kubernetes-list-map-keys")
        .and_then(Value::as_array)
        .map(|a| a.iter().filter_map(Value::as_str).map(str::to_owned).collect())
        .unwrap_or_default();
    let list_type = schema.get("x-kubernetes-list-type").and_then(Value::as_str);
    for (index, item) in items.iter().enumerate() {
        let key = |v: &Value| match list_type {
            Some("map") => keys.iter().map(|k| v.get(k).cloned().unwrap_or(Value::Null)).collect::<Value>(),
            _ => v.clone(),
        };
        let distinct = matches!(list_type, Some("map" | "set"));
        if distinct && items[..index].iter().any(|other| key(other) == key(item)) {
            causes.push(Cause::duplicate(format!("{at}[{index}]"), item));
        }
    }
}

fn string(schema: &Value, text: &str, at: &str, causes: &mut Vec<Cause>) {
    let shown = Value::String(text.to_owned());
    let length = text.chars().count();
    if let Some(max) = limit(schema, "maxLength")
        && length > max
    {
        causes.push(Cause::too_long(at, &format!("may not be more than {max} bytes")));
    }
    if let Some(min) = limit(schema, "minLength")
        && length < min
    {
        causes.push(Cause::invalid(at, &shown, &format!("{at} in body should be at least {min} chars long")));
    }
    if let Some(pattern) = schema.get("pattern").and_then(Value::as_str)
        && !matches_pattern(pattern, text)
    {
        causes.push(Cause::invalid(at, &shown, &format!("{at} in body should match '{pattern}'")));
    }
    if schema.get("format").and_then(Value::as_str) == Some("date-time") && text.parse::<jiff::Timestamp>().is_err() {
        causes.push(Cause::invalid(at, &shown, &format!("{at} in body must be of type date-time: {shown}")));
    }
}

fn number(schema: &Value, value: &Value, at: &str, causes: &mut Vec<Cause>) {
    let number = value.as_f64().unwrap_or_default();
    let bound = |key: &str| schema.get(key).and_then(Value::as_f64).map(|b| (b, schema[key].clone()));
    if let Some((max, shown)) = bound("maximum") {
        if flag(schema, "exclusiveMaximum") && number >= max {
            causes.push(Cause::invalid(at, value, &format!("{at} in body should be less than {shown}")));
        } else if number > max {
            causes.push(Cause::invalid(at, value, &format!("{at} in body should be less than or equal to {shown}")));
        }
    }
    if let Some((min, shown)) = bound("minimum") {
        if flag(schema, "exclusiveMinimum") && number <= min {
            causes.push(Cause::invalid(at, value, &format!("{at} in body should be greater than {shown}")));
        } else if number < min {
            causes.push(Cause::invalid(at, value, &format!("{at} in body should be greater than or equal to {shown}")));
        }
    }
    let fits = match schema.get("format").and_then(Value::as_str) {
        Some("int32") => value.as_i64().is_some_and(|n| i32::try_from(n).is_ok()),
        _ => true,
    };
    if !fits {
        causes.push(Cause::invalid(at, value, &format!("{at} in body must be of type int32: {value}")));
    }
}

/// Patterns are compiled once; one that does not compile matches nothing, as the definition should not have been taken.
fn matches_pattern(pattern: &str, text: &str) -> bool {
    static COMPILED: LazyLock<Mutex<HashMap<String, Option<regex::Regex>>>> = LazyLock::new(Mutex::default);
    let mut compiled = COMPILED.lock().unwrap_or_else(PoisonError::into_inner);
    compiled
        .entry(pattern.to_owned())
        .or_insert_with(|| regex::Regex::new(pattern).ok())
        .as_ref()
        .is_some_and(|r| r.is_match(text))
}

//! Server-side apply: merge by type, conflicts with other owners, removal of what is no longer applied.

use std::fmt::Write as _;

use serde_json::{Map, Value};

use super::changes::strip;
use super::fieldset::shown;
use super::{Entries, FieldSet, Manager, compare};
use crate::apiserver::failure::Failure;
use crate::apiserver::schema::{Node, Rel, Schema, item_key};

/// The result of an apply.
pub struct Applied {
    /// The merged object, with managed fields.
    pub value: Value,
}

/// What becomes of fields that other managers own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnConflict {
    /// They are not applied.
    Refuse,
    /// The manager takes them.
    Take,
}

/// Applies `patch` to `live` for `manager`. `live` is the kind's empty object where none exists.
pub fn apply(
    schema: &Schema,
    live: &Value,
    patch: &Value,
    manager: &Manager,
    conflicts: OnConflict,
    now: &str,
) -> Result<Applied, Failure> {
    let mut wanted = FieldSet::default();
    collect(schema, schema.root(), patch, &mut Vec::new(), &mut wanted);
    strip(&mut wanted);
    let mut entries = Entries::read(live);
    let mut merged = merge(schema, schema.root(), Some(live), patch);
    if let Some(before) = entries.set_of(manager) {
        let mut dropped = before.clone();
        dropped.subtract(&wanted);
        let mut kept = wanted.clone();
        for (_, set) in entries.others(manager) {
            kept.union(set);
        }
        let mut gone: Vec<Vec<String>> = dropped.paths();
        gone.reverse();
        for path in gone {
            if !owned_at_or_below(&kept, &path) {
                remove(&mut merged, &path);
            }
        }
    }
    let changes = compare(schema, live, &merged);
    let written = changes.written();
    let mut found: Vec<(String, String)> = Vec::new();
    for (other, set) in entries.others(manager) {
        for path in set.intersection(&written).paths() {
            let mut text = format!("conflict with \"{}\"", other.name);
            if !other.subresource.is_empty() {
                let _ = write!(text, " with subresource \"{}\"", other.subresource);
            }
            if !other.applies {
                let _ = write!(text, " using {}", other.api_version);
            }
            found.push((text, shown(&path)));
        }
    }
    if !found.is_empty() && conflicts == OnConflict::Refuse {
        return Err(Failure::apply_conflict(conflict_text(&found), &found));
    }
    entries.take_from_others(manager, &written);
    entries.take_from_all(&changes.removed);
    entries.replace(manager, wanted, now);
    entries.write(&mut merged);
    Ok(Applied { value: merged })
}

fn conflict_text(conflicts: &[(String, String)]) -> String {
    if let [(who, field)] = conflicts {
        return format!("Apply failed with 1 conflict: {who}: {field}");
    }
    let mut text = format!("Apply failed with {} conflicts: ", conflicts.len());
    let mut owners: Vec<&str> = conflicts.iter().map(|(who, _)| who.as_str()).collect();
    owners.dedup();
    let parts: Vec<String> = owners
        .iter()
        .map(|owner| {
            let fields: Vec<String> =
                conflicts.iter().filter(|(who, _)| who == owner).map(|(_, f)| format!("- {f}")).collect();
            format!("{}:\n{}", owner.replacen("conflict with", "conflicts with", 1), fields.join("\n"))
        })
        .collect();
    text.push_str(&parts.join("\n"));
    text
}

fn owned_at_or_below(set: &FieldSet, path: &[String]) -> bool {
    let mut at = set;
    for key in path {
        match at.child(key) {
            Some(next) => at = next,
            None => return false,
        }
    }
    !at.is_empty()
}

/// The fields that an applied object claims.
fn collect(schema: &Schema, node: &Node, value: &Value, path: &mut Vec<String>, set: &mut FieldSet) {
    match (schema.resolve(node), value) {
        (Node::Struct(s), Value::Object(map)) if !s.atomic => collect_map(schema, node, map, path, set),
        (Node::Map(_, false) | Node::Any, Value::Object(map)) => collect_map(schema, node, map, path, set),
        (Node::List(elem, Rel::Keys { keys, .. }), Value::Array(items)) => {
            for item in items {
                if let Some(key) = item_key(item, keys) {
                    path.push(key);
                    set.insert(path);
                    collect(schema, elem, item, path, set);
                    path.pop();
                }
            }
        }
        (Node::List(_, Rel::Set), Value::Array(items)) => {
            for item in items {
                path.push(format!("v:{item}"));
                set.insert(path);
                path.pop();
            }
        }
        _ if path.is_empty() => {}
        _ => set.insert(path),
    }
}

fn collect_map(schema: &Schema, node: &Node, map: &Map<String, Value>, path: &mut Vec<String>, set: &mut FieldSet) {
    let declared = |key: &str| matches!(schema.resolve(node), Node::Struct(s) if s.fields.contains_key(key));
    for (key, item) in map {
        path.push(format!("f:{key}"));
        let inner = schema.field(node, key).unwrap_or(&Node::Any);
        collect(schema, inner, item, path, set);
        let empty = item.is_null() || item.as_object().is_some_and(Map::is_empty);
        if empty || !declared(key) {
            set.insert(path);
        }
        path.pop();
    }
}

fn merge(schema: &Schema, node: &Node, live: Option<&Value>, patch: &Value) -> Value {
    match (schema.resolve(node), live, patch) {
        (Node::Struct(s), Some(Value::Object(old)), Value::Object(new)) if !s.atomic => {
            merge_maps(schema, node, old, new)
        }
        (Node::Map(_, false) | Node::Any, Some(Value::Object(old)), Value::Object(new)) => {
            merge_maps(schema, node, old, new)
        }
        (Node::List(elem, Rel::Keys { keys, .. }), Some(Value::Array(old)), Value::Array(new)) => {
            merge_lists(schema, elem, old, new, &|item| item_key(item, keys))
        }
        (Node::List(elem, Rel::Set), Some(Value::Array(old)), Value::Array(new)) => {
            merge_lists(schema, elem, old, new, &|item| Some(item.to_string()))
        }
        _ => patch.clone(),
    }
}

fn merge_maps(schema: &Schema, node: &Node, old: &Map<String, Value>, new: &Map<String, Value>) -> Value {
    let mut out = old.clone();
    for (key, item) in new {
        let inner = schema.field(node, key).unwrap_or(&Node::Any);
        out.insert(key.clone(), merge(schema, inner, old.get(key), item));
    }
    Value::Object(out)
}

/// Items of the patch are merged into theirs; new ones follow.
fn merge_lists(
    schema: &Schema,
    elem: &Node,
    old: &[Value],
    new: &[Value],
    key: &dyn Fn(&Value) -> Option<String>,
) -> Value {
    let mut out = old.to_vec();
    for item in new {
        let name = key(item);
        match out.iter_mut().find(|o| key(o) == name) {
            Some(slot) => *slot = merge(schema, elem, Some(slot), item),
            None => out.push(item.clone()),
        }
    }
    Value::Array(out)
}

fn remove(value: &mut Value, path: &[String]) {
    let Some((key, rest)) = path.split_first() else { return };
    if let Some(name) = key.strip_prefix("f:") {
        let Some(map) = value.as_object_mut() else { return };
        if rest.is_empty() {
            map.remove(name);
        } else if let Some(inner) = map.get_mut(name) {
            remove(inner, rest);
        }
        return;
    }
    let Some(items) = value.as_array_mut() else { return };
    let is_it = |item: &Value| {
        if let Some(text) = key.strip_prefix("v:") {
            return serde_json::from_str::<Value>(text).is_ok_and(|wanted| wanted == *item);
        }
        let wanted: Map<String, Value> = serde_json::from_str(key.trim_start_matches("k:")).unwrap_or_default();
        wanted.iter().all(|(k, v)| item.get(k) == Some(v) || (k == "protocol" && item.get(k).is_none()))
    };
    if rest.is_empty() {
        items.retain(|item| !is_it(item));
    } else if let Some(item) = items.iter_mut().find(|item| is_it(item)) {
        remove(item, rest);
    }
}

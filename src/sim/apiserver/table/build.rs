//! Putting a table together.

use serde_json::{Value, json};

use super::{Column, events, nodes, others, pods};
use crate::apiserver::codec::partial;
use crate::apiserver::object::typed;
use crate::apiserver::resource::Resource;

/// Builds the table of some objects. `include` is the `includeObject` parameter.
pub fn table(resource: &Resource, items: &[Value], metadata: Value, include: &str) -> Value {
    let columns = columns(resource);
    let now = baton_runtime::clock::wall();
    let rows: Vec<Value> = items
        .iter()
        .map(|item| {
            let object = match include {
                "None" => None,
                "Object" => Some(typed(resource, item)),
                _ => Some(partial(item)),
            };
            let mut row = json!({ "cells": cells(resource, &columns, item, now) });
            if let Some(object) = object {
                row["object"] = object;
            }
            row
        })
        .collect();
    let mut shown = serde_json::Map::new();
    for key in ["resourceVersion", "continue", "remainingItemCount"] {
        if let Some(value) = metadata.get(key) {
            shown.insert(key.into(), value.clone());
        }
    }
    let definitions: Value = columns.iter().map(Column::to_json).collect();
    json!({
        "kind": "Table", "apiVersion": "meta.k8s.io/v1", "metadata": shown, "columnDefinitions": definitions,
        "rows": rows,
    })
}

fn columns(resource: &Resource) -> Vec<Column> {
    if let Some(custom) = &resource.custom {
        return std::iter::once(Column::name()).chain(custom.columns.iter().cloned()).collect();
    }
    match (resource.group.as_str(), resource.plural.as_str()) {
        ("", "pods") => pods::columns(),
        ("", "nodes") => nodes::columns(),
        (_, "events") => events::columns(),
        _ => others::columns(resource),
    }
}

fn cells(resource: &Resource, columns: &[Column], item: &Value, now: jiff::Timestamp) -> Vec<Value> {
    match (resource.group.as_str(), resource.plural.as_str()) {
        ("", "pods") => pods::cells(item, now),
        ("", "nodes") => nodes::cells(item, now),
        (_, "events") => events::cells(item, now),
        _ => columns.iter().map(|c| c.cell(item, now)).collect(),
    }
}

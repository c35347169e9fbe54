//! Custom types: the structural schema of a CustomResourceDefinition as field knowledge.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::Value;

use super::{Node, Rel, Scalar, Schema, Struct, builtin};

/// The schema of a custom kind, with the object metadata of built-in ones.
pub fn custom_schema(open_api: &Value) -> Schema {
    let mut root = match read(open_api) {
        Node::Struct(s) => s,
        _ => Struct { preserve: true, ..Struct::default() },
    };
    root.fields.insert("apiVersion".into(), Node::Scalar(Scalar::Text));
    root.fields.insert("kind".into(), Node::Scalar(Scalar::Text));
    root.fields.insert("metadata".into(), Node::Ref("io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta".into()));
    Schema { defs: Arc::clone(&builtin::shared()), root: Node::Struct(root) }
}

fn flag(schema: &Value, key: &str) -> bool {
    schema.get(key).and_then(Value::as_bool).unwrap_or(false)
}

fn read(schema: &Value) -> Node {
    if flag(schema, "x-kubernetes-int-or-string") {
        return Node::Scalar(Scalar::IntOrString);
    }
    let preserve = flag(schema, "x-kubernetes-preserve-unknown-fields");
    match schema.get("type").and_then(Value::as_str) {
        Some("object") => {
            let atomic = schema.get("x-kubernetes-map-type").and_then(Value::as_str) == Some("atomic");
            if let Some(elem) = schema.get("additionalProperties").filter(|v| v.is_object()) {
                return Node::Map(Box::new(read(elem)), atomic);
            }
            let fields: BTreeMap<String, Node> = schema
                .get("properties")
                .and_then(Value::as_object)
                .map(|p| p.iter().map(|(name, s)| (name.clone(), read(s))).collect())
                .unwrap_or_default();
            if flag(schema, "x-kubernetes-embedded-resource") || (fields.is_empty() && preserve) {
                return Node::Any;
            }
            Node::Struct(Struct { fields, atomic, preserve, ..Struct::default() })
        }
        Some("array") => {
            let elem = schema.get("items").map_or(Node::Any, read);
            let rel = match schema.get("x-kubernetes-list-type").and_then(Value::as_str) {
                Some("set") => Rel::Set,
                Some("map") => Rel::Keys {
                    keys: schema
                        .get("x-kubernetes-list-map-keys")
                        .and_then(Value::as_array)
                        .map(|a| a.iter().filter_map(Value::as_str).map(str::to_owned).collect())
                        .unwrap_or_default(),
                    merge: None,
                },
                _ => Rel::Atomic,
            };
            Node::List(Box::new(elem), rel)
        }
        Some("string") => Node::Scalar(Scalar::Text),
        Some("integer") => Node::Scalar(Scalar::Int64),
        Some("number") => Node::Scalar(Scalar::Number),
        Some("boolean") => Node::Scalar(Scalar::Bool),
        _ => Node::Any,
    }
}

//! Reading a built-in object as the typed decoder of a real server does: unknown fields are dropped and reported, wrong
//! types refused, nulls and empty lists left out, quantities and times written canonically.

use serde_json::{Map, Value};

use super::{Node, Scalar, Schema, Struct, zero};
use crate::apiserver::validate::quantity;

/// A decoded object.
#[derive(Debug)]
pub struct Decoded {
    /// The object in canonical form.
    pub value: Value,
    /// Paths of fields that the type does not have.
    pub unknown: Vec<String>,
}

/// A value that the type cannot hold; the text is that of Go's JSON decoder.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Mismatch(pub String);

struct DecodeWalk<'a> {
    schema: &'a Schema,
    unknown: Vec<String>,
}

/// Where the walk stands: the innermost struct's type name, the path without map keys and indexes (as Go names it), and
/// the full path.
struct At<'a> {
    owner: &'a str,
    go: String,
    full: String,
}

/// Decodes `value` by `schema`.
pub fn decode(schema: &Schema, value: Value) -> Result<Decoded, Mismatch> {
    let mut walk = DecodeWalk { schema, unknown: Vec::new() };
    let at = At { owner: "", go: String::new(), full: String::new() };
    let value = walk.node(schema.root(), value, &at)?;
    Ok(Decoded { value, unknown: walk.unknown })
}

impl DecodeWalk<'_> {
    fn node(&mut self, node: &Node, value: Value, at: &At<'_>) -> Result<Value, Mismatch> {
        match self.schema.resolve(node) {
            Node::Struct(s) => {
                let Value::Object(map) = value else { return Err(self.mismatch(node, &value, at)) };
                let mut out = Map::new();
                for (key, item) in map {
                    let full = join(&at.full, &key);
                    // Kind and version of the object itself are not part of the stored form.
                    if at.full.is_empty() && (key == "kind" || key == "apiVersion") {
                        continue;
                    }
                    let Some(field) = s.fields.get(&key) else {
                        self.unknown.push(full);
                        continue;
                    };
                    if item.is_null() {
                        continue;
                    }
                    let inner = At { owner: &s.name, go: join(&at.go, &key), full };
                    let item = self.node(field, item, &inner)?;
                    let drop = match (self.schema.resolve(field), &item) {
                        (Node::List(..), Value::Array(a)) => a.is_empty(),
                        (Node::Map(..), Value::Object(m)) => m.is_empty(),
                        _ => item.is_null(),
                    };
                    if !drop {
                        out.insert(key, item);
                    }
                }
                fill(self.schema, s, &mut out);
                Ok(Value::Object(out))
            }
            Node::Map(elem, _) => {
                let Value::Object(map) = value else { return Err(self.mismatch(node, &value, at)) };
                let mut out = Map::new();
                for (key, item) in map {
                    let inner = At { owner: at.owner, go: at.go.clone(), full: format!("{}.{key}", at.full) };
                    let item = if item.is_null() { zero_of(self.schema.resolve(elem)) } else { item };
                    out.insert(key, self.node(elem, item, &inner)?);
                }
                Ok(Value::Object(out))
            }
            Node::List(elem, _) => {
                let Value::Array(items) = value else { return Err(self.mismatch(node, &value, at)) };
                let mut out = Vec::with_capacity(items.len());
                for (index, item) in items.into_iter().enumerate() {
                    let inner = At { owner: at.owner, go: at.go.clone(), full: format!("{}[{index}]", at.full) };
                    out.push(self.node(elem, item, &inner)?);
                }
                Ok(Value::Array(out))
            }
            Node::Scalar(scalar) => self.scalar(*scalar, node, value, at),
            Node::Ref(_) | Node::Any => Ok(value),
        }
    }

    fn scalar(&self, scalar: Scalar, node: &Node, value: Value, at: &At<'_>) -> Result<Value, Mismatch> {
        let fits = match scalar {
            Scalar::Text | Scalar::Bytes => value.is_string(),
            Scalar::Int32 => value.as_i64().is_some_and(|n| i32::try_from(n).is_ok()),
            Scalar::Int64 => value.as_i64().is_some() || value.as_f64().is_some_and(|f| f.fract() == 0.0),
            Scalar::Number => value.is_number(),
            Scalar::Bool => value.is_boolean(),
            Scalar::IntOrString => value.is_string() || value.is_i64(),
            Scalar::Time | Scalar::MicroTime => return time(scalar, &value),
            Scalar::Quantity => {
                let text = match &value {
                    Value::String(s) => s.clone(),
                    Value::Number(n) => n.to_string(),
                    _ => String::new(),
                };
                return quantity::canonical(&text).map(Value::String).ok_or_else(|| {
                    Mismatch(
                        "quantities must match the regular expression \
                         '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"
                            .to_owned(),
                    )
                });
            }
        };
        if fits { Ok(value) } else { Err(self.mismatch(node, &value, at)) }
    }

    fn mismatch(&self, node: &Node, value: &Value, at: &At<'_>) -> Mismatch {
        let found = match value {
            Value::Null => "null",
            Value::Bool(_) => "bool",
            Value::Number(_) => "number",
            Value::String(_) => "string",
            Value::Array(_) => "array",
            Value::Object(_) => "object",
        };
        let wanted = self.go_type(node);
        if at.go.is_empty() {
            return Mismatch(format!("json: cannot unmarshal {found} into Go value of type {wanted}"));
        }
        Mismatch(format!(
            "json: cannot unmarshal {found} into Go struct field {}.{} of type {}",
            at.owner, at.go, wanted
        ))
    }

    fn go_type(&self, node: &Node) -> String {
        match self.schema.resolve(node) {
            Node::Struct(s) => {
                let package = s.full.split('.').nth(1).unwrap_or("v1");
                format!("{package}.{}", s.name)
            }
            Node::Map(elem, _) => format!("map[string]{}", self.go_type(elem)),
            Node::List(elem, _) => format!("[]{}", self.go_type(elem)),
            Node::Scalar(scalar) => match scalar {
                Scalar::Text => "string",
                Scalar::Bytes => "[]uint8",
                Scalar::Time => "v1.Time",
                Scalar::MicroTime => "v1.MicroTime",
                Scalar::Int32 => "int32",
                Scalar::Int64 => "int64",
                Scalar::Number => "float64",
                Scalar::Bool => "bool",
                Scalar::Quantity => "resource.Quantity",
                Scalar::IntOrString => "intstr.IntOrString",
            }
            .to_owned(),
            Node::Ref(_) | Node::Any => "map[string]interface {}".to_owned(),
        }
    }
}

/// Adds what is always written, also in structs that this adds.
fn fill(schema: &Schema, of: &Struct, map: &mut Map<String, Value>) {
    let before: Vec<String> = map.keys().cloned().collect();
    zero::fill(&of.full, map);
    for (key, item) in map.iter_mut().filter(|(key, _)| !before.contains(key)) {
        if let (Some(Node::Struct(inner)), Value::Object(map)) = (of.fields.get(key).map(|n| schema.resolve(n)), item) {
            fill(schema, inner, map);
        }
    }
}

fn zero_of(node: &Node) -> Value {
    match node {
        Node::Scalar(Scalar::Text | Scalar::Bytes) => Value::String(String::new()),
        Node::Scalar(Scalar::Quantity) => Value::String("0".to_owned()),
        _ => Value::Null,
    }
}

fn time(scalar: Scalar, value: &Value) -> Result<Value, Mismatch> {
    let text = value.as_str().unwrap_or_default();
    let parsed: jiff::Timestamp = text.parse().map_err(|_| {
        Mismatch(format!("parsing time {value} as \"2006-01-02T15:04:05Z07:00\": cannot parse {value} as \"2006\""))
    })?;
    let format = if scalar == Scalar::MicroTime { "%Y-%m-%dT%H:%M:%S.%6fZ" } else { "%Y-%m-%dT%H:%M:%SZ" };
    Ok(Value::String(parsed.strftime(format).to_string()))
}

fn join(base: &str, key: &str) -> String {
    if base.is_empty() { key.to_owned() } else { format!("{base}.{key}") }
}

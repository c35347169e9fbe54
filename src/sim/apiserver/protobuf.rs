//! Bodies in protobuf, as `kubectl create` and `kubectl auth can-i` send them: read into the JSON that the object would have, by
//! `proto/objects.proto`. Answers are JSON, which every such client takes too.

use std::sync::LazyLock;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use jiff::Timestamp;
use prost_reflect::{DescriptorError, DescriptorPool, DynamicMessage, MapKey, ReflectMessage, Value as Wire};
use serde_json::{Map, Value};

use super::failure::Failure;

/// The media type.
pub const MEDIA: &str = "application/vnd.kubernetes.protobuf";

/// What an object begins with; a `runtime.Unknown` with kind and content follows.
const MAGIC: &[u8] = b"k8s\0";

/// API versions whose kinds stand in the file, each by its name alone.
const VERSIONS: [&str; 10] = [
    "v1",
    "apps/v1",
    "batch/v1",
    "policy/v1",
    "autoscaling/v1",
    "scheduling.k8s.io/v1",
    "coordination.k8s.io/v1",
    "authentication.k8s.io/v1",
    "authorization.k8s.io/v1",
    "rbac.authorization.k8s.io/v1",
];

static POOL: LazyLock<Result<DescriptorPool, DescriptorError>> =
    LazyLock::new(|| DescriptorPool::decode(include_bytes!(concat!(env!("OUT_DIR"), "/objects.bin")).as_slice()));

/// Reads one object. 415 for a kind that is not known in protobuf, as for kinds of CRDs; 400 for what is broken.
pub fn read(body: &[u8]) -> Result<Value, Failure> {
    let broken = |why: String| Failure::bad_request(format!("the object provided is unrecognized (protobuf): {why}"));
    let unknown = body.strip_prefix(MAGIC).ok_or_else(|| broken("it does not begin with \"k8s\\0\"".to_owned()))?;
    let unknown = decode("Unknown", unknown).ok_or_else(unsupported)?.map_err(broken)?;
    let field = |name: &str| unknown.get_field_by_name(name);
    let Some(Value::Object(mut object)) = field("typeMeta").map(|meta| json(&meta)).transpose().map_err(broken)? else {
        return Err(broken("it has no kind".to_owned()));
    };
    let word = |key: &str| object.get(key).and_then(Value::as_str).unwrap_or_default();
    let (version, kind) = (word("apiVersion"), word("kind"));
    let is_known = VERSIONS.contains(&version) || kind == "DeleteOptions";
    let raw = field("raw").and_then(|raw| raw.as_bytes().cloned()).unwrap_or_default();
    let content = decode(kind, &raw).filter(|_| is_known).ok_or_else(unsupported)?.map_err(broken)?;
    members(&content, &mut object).map_err(broken)?;
    Ok(Value::Object(object))
}

fn unsupported() -> Failure {
    Failure::unsupported_media(&["application/json", "application/yaml"])
}

/// `None` where there is no such message.
fn decode(name: &str, bytes: &[u8]) -> Option<Result<DynamicMessage, String>> {
    let message = POOL.as_ref().ok()?.get_message_by_name(&format!("k8s.{name}"))?;
    Some(DynamicMessage::decode(message, bytes).map_err(|error| error.to_string()))
}

/// Adds the fields that are set. An empty string stands for none: Go writes those too.
fn members(message: &DynamicMessage, object: &mut Map<String, Value>) -> Result<(), String> {
    if let Some(field) = message.unknown_fields().next() {
        let name = message.descriptor().name().to_owned();
        return Err(format!("field {} of {name} is not known to the simulated API server; send JSON", field.number()));
    }
    for (field, wire) in message.fields() {
        match (field.name(), wire) {
            ("inline", Wire::Message(inner)) => members(inner, object)?,
            (name, wire) => {
                let value = json(wire)?;
                if !value.is_null() && value != "" {
                    object.insert(name.to_owned(), value);
                }
            }
        }
    }
    Ok(())
}

fn json(wire: &Wire) -> Result<Value, String> {
    Ok(match wire {
        Wire::Bool(value) => (*value).into(),
        Wire::I32(value) | Wire::EnumNumber(value) => (*value).into(),
        Wire::I64(value) => (*value).into(),
        Wire::U32(value) => (*value).into(),
        Wire::U64(value) => (*value).into(),
        Wire::F32(value) => (*value).into(),
        Wire::F64(value) => (*value).into(),
        Wire::String(value) => value.as_str().into(),
        Wire::Bytes(value) => BASE64_STANDARD.encode(value).into(),
        Wire::Message(value) => message(value)?,
        Wire::List(values) => Value::Array(values.iter().map(json).collect::<Result<_, _>>()?),
        Wire::Map(values) => {
            let text = |key: &MapKey| key.as_str().unwrap_or_default().to_owned();
            values
                .iter()
                .map(|(key, value)| Ok((text(key), json(value)?)))
                .collect::<Result<Map<_, _>, String>>()?
                .into()
        }
    })
}

/// Types that have a JSON of their own.
fn message(message: &DynamicMessage) -> Result<Value, String> {
    let field = |name: &str| message.get_field_by_name(name);
    let number = |name: &str| field(name).and_then(|value| value.as_i64().or_else(|| value.as_i32().map(i64::from)));
    Ok(match message.descriptor().name() {
        "Quantity" => field("string").map(|text| json(&text)).transpose()?.into(),
        "IntOrString" if number("type") == Some(1) => field("strVal").map(|text| json(&text)).transpose()?.into(),
        "IntOrString" => number("intVal").into(),
        "ExtraValue" => field("items").map(|items| json(&items)).transpose()?.into(),
        // Go's zero time is written as nothing.
        "Time" | "MicroTime" if !message.has_field_by_name("seconds") => Value::Null,
        "Time" | "MicroTime" => {
            let nanos = i32::try_from(number("nanos").unwrap_or(0)).unwrap_or(0);
            let time = Timestamp::new(number("seconds").unwrap_or(0), nanos).map_err(|error| error.to_string())?;
            time.to_string().into()
        }
        name @ ("RawExtension" | "FieldsV1") => {
            let raw = field(if name == "FieldsV1" { "Raw" } else { "raw" });
            let raw = raw.and_then(|raw| raw.as_bytes().cloned()).unwrap_or_default();
            serde_json::from_slice(&raw).map_err(|error| format!("{name}: {error}"))?
        }
        _ => {
            let mut object = Map::new();
            members(message, &mut object)?;
            object.into()
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Without what Go leaves out of one form and writes in the other.
    fn pruned(value: &Value) -> Value {
        let is_empty = |value: &Value| {
            matches!(value, Value::Null | Value::Bool(false))
                || *value == ""
                || *value == 0
                || *value == Value::Object(Map::new())
        };
        match value {
            Value::Object(object) => {
                let members = object.iter().map(|(key, value)| (key.clone(), pruned(value)));
                Value::Object(members.filter(|(_, value)| !is_empty(value)).collect())
            }
            Value::Array(items) => items.iter().map(pruned).collect(),
            value => value.clone(),
        }
    }

    #[test]
    fn what_kubectl_writes_is_the_object_that_it_prints() {
        let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures/protobuf");
        let mut seen = 0;
        for entry in std::fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_some_and(|extension| extension == "bin") {
                let object =
                    read(&std::fs::read(&path).unwrap()).unwrap_or_else(|failure| panic!("{path:?}: {failure:?}"));
                let printed: Value =
                    serde_json::from_slice(&std::fs::read(path.with_extension("json")).unwrap()).unwrap();
                assert_eq!(pruned(&object), pruned(&printed), "{path:?}");
                seen += 1;
            }
        }
        assert_eq!(seen, 17);
    }

    #[test]
    fn what_is_broken_or_not_known_is_refused_by_name() {
        let said = |body: &[u8]| read(body).unwrap_err().body()["message"].to_string();
        assert!(said(b"{}").contains("does not begin with"), "{}", said(b"{}"));
        assert!(said(b"k8s\0\xff\xff").contains("(protobuf)"));
        // `Unknown { typeMeta { apiVersion: "v1", kind: "Namespace" }, raw }`; then another kind, and a field that no Namespace has.
        let of = |kind: &str, raw: &[u8]| {
            let meta = [b"\x0a\x02v1\x12", &[kind.len() as u8][..], kind.as_bytes()].concat();
            [b"k8s\0\x0a", &[meta.len() as u8][..], &meta, b"\x12", &[raw.len() as u8], raw].concat()
        };
        assert!(read(&of("Namespace", b"")).is_ok());
        assert!(said(&of("Webhook", b"")).contains("accepted media types"));
        assert!(said(&of("Namespace", b"\x78\x01")).contains("field 15 of Namespace is not known"));
    }
}

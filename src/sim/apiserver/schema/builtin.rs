//! Built-in types: read once from the JSON schemas that the Kubernetes type library carries.

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};

use k8s_openapi::api;
use schemars::SchemaGenerator;
use serde_json::{Value, json};

use super::{Node, Rel, Scalar, Schema, Struct, topology};

static DEFS: LazyLock<Arc<BTreeMap<String, Node>>> = LazyLock::new(|| {
    Arc::new(type_definitions().iter().map(|(name, schema)| (name.clone(), named(name, schema))).collect())
});

static DEFINITIONS: LazyLock<serde_json::Map<String, Value>> = LazyLock::new(definitions);

/// The JSON schemas of all built-in types, by full name.
pub fn type_definitions() -> &'static serde_json::Map<String, Value> {
    &DEFINITIONS
}

fn definitions() -> serde_json::Map<String, Value> {
    use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1 as extensions;
    let mut generator = SchemaGenerator::default();
    macro_rules! with {
        ($($group:ident::$version:ident: $($kind:ident),*;)*) => {
            $($( let _ = generator.subschema_for::<api::$group::$version::$kind>(); )*)*
        };
    }
    with!(
        core::v1: ConfigMap, Endpoints, Event, LimitRange, Namespace, Node, PersistentVolumeClaim, PersistentVolume,
            Pod, PodTemplate, ReplicationController, ResourceQuota, Secret, ServiceAccount, Service, Binding;
        apps::v1: ControllerRevision, DaemonSet, Deployment, ReplicaSet, StatefulSet;
        events::v1: Event;
        batch::v1: CronJob, Job;
        policy::v1: PodDisruptionBudget, Eviction;
        rbac::v1: ClusterRoleBinding, ClusterRole, RoleBinding, Role;
        storage::v1: CSIDriver, CSINode, CSIStorageCapacity, StorageClass, VolumeAttachment;
        admissionregistration::v1: ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding;
        authentication::v1: TokenRequest;
        scheduling::v1: PriorityClass;
        coordination::v1: Lease;
        node::v1: RuntimeClass;
        discovery::v1: EndpointSlice;
        resource::v1: DeviceClass, ResourceClaim, ResourceClaimTemplate, ResourceSlice;
        networking::v1: NetworkPolicy;
    );
    let _ = generator.subschema_for::<extensions::CustomResourceDefinition>();
    let mut definitions = generator.take_definitions(true);
    for (name, definition) in &mut definitions {
        mark(short(name), definition);
    }
    definitions
}

/// Marks how lists merge: clients compute their patches by it.
fn mark(owner: &str, definition: &mut Value) {
    for (field, schema) in definition["properties"].as_object_mut().into_iter().flatten() {
        let Some(relation) = topology::list(owner, field) else { continue };
        let (kind, merge) = match &relation {
            Rel::Atomic => continue,
            Rel::Set => ("set", None),
            Rel::Keys { keys, merge } => {
                schema["x-kubernetes-list-map-keys"] = json!(keys);
                ("map", merge.as_ref())
            }
            Rel::AtomicMergedBy(key) => ("atomic", Some(key)),
        };
        schema["x-kubernetes-list-type"] = json!(kind);
        if merge.is_some() || relation == Rel::Set {
            schema["x-kubernetes-patch-strategy"] = json!("merge");
        }
        if let Some(key) = merge {
            schema["x-kubernetes-patch-merge-key"] = json!(key);
        }
    }
}

/// The package-qualified name that the list table uses.
fn short(full_name: &str) -> &str {
    full_name
        .trim_start_matches("io.k8s.api.")
        .trim_start_matches("io.k8s.apimachinery.pkg.apis.")
        .trim_start_matches("io.k8s.apiextensions-apiserver.pkg.apis.")
}

pub(super) fn shared() -> Arc<BTreeMap<String, Node>> {
    Arc::clone(&DEFS)
}

/// The schema of a built-in kind; one that knows nothing for a kind outside the table.
pub fn builtin_schema(group: &str, version: &str, kind: &str) -> Arc<Schema> {
    Arc::new(Schema { defs: shared(), root: Node::Ref(type_name(group, version, kind)) })
}

/// Full name of a built-in kind's type.
pub fn type_name(group: &str, version: &str, kind: &str) -> String {
    let package = group.split('.').next().unwrap_or_default();
    let package = if package.is_empty() { "core" } else { package };
    if package == "apiextensions" {
        format!("io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.{version}.{kind}")
    } else {
        format!("io.k8s.api.{package}.{version}.{kind}")
    }
}

fn named(full_name: &str, schema: &Value) -> Node {
    match full_name.rsplit('.').next().unwrap_or_default() {
        "Quantity" => Node::Scalar(Scalar::Quantity),
        "IntOrString" => Node::Scalar(Scalar::IntOrString),
        "Time" => Node::Scalar(Scalar::Time),
        "MicroTime" => Node::Scalar(Scalar::MicroTime),
        "FieldsV1" | "RawExtension" | "JSON" | "JSONSchemaProps" => Node::Any,
        _ => read(short(full_name), "", schema),
    }
}

/// Reads one schema; `owner` and `field` say where it stands, for the list table.
fn read(owner: &str, field: &str, schema: &Value) -> Node {
    if let Some(target) = schema.get("$ref").and_then(Value::as_str) {
        return Node::Ref(target.trim_start_matches("#/$defs/").to_owned());
    }
    match schema.get("type").and_then(Value::as_str) {
        Some("object") => {
            if let Some(properties) = schema.get("properties").and_then(Value::as_object) {
                let fields = properties.iter().map(|(name, s)| (name.clone(), read(owner, name, s))).collect();
                Node::Struct(Struct {
                    name: owner.rsplit('.').next().unwrap_or_default().to_owned(),
                    full: owner.to_owned(),
                    fields,
                    atomic: topology::atomic_struct(owner),
                    preserve: false,
                })
            } else if let Some(elem) = schema.get("additionalProperties").filter(|v| v.is_object()) {
                Node::Map(Box::new(read(owner, "", elem)), topology::atomic_map(owner, field))
            } else {
                Node::Any
            }
        }
        Some("array") => {
            let elem = schema.get("items").map_or(Node::Any, |items| read(owner, "", items));
            let rel = topology::list(owner, field).unwrap_or(Rel::Atomic);
            Node::List(Box::new(elem), rel)
        }
        Some("string") => match schema.get("format").and_then(Value::as_str) {
            Some("byte") => Node::Scalar(Scalar::Bytes),
            Some("date-time") => Node::Scalar(Scalar::Time),
            _ => Node::Scalar(Scalar::Text),
        },
        Some("integer") => match schema.get("format").and_then(Value::as_str) {
            Some("int32") => Node::Scalar(Scalar::Int32),
            _ => Node::Scalar(Scalar::Int64),
        },
        Some("number") => Node::Scalar(Scalar::Number),
        Some("boolean") => Node::Scalar(Scalar::Bool),
        _ => Node::Any,
    }
}

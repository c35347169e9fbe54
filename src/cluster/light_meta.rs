//! Metadata without `managedFields`: these are the largest part of many an object, and no reader here needs them.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{OwnerReference, Time};
use kube::api::ObjectMeta;
use serde::{Deserialize, Deserializer};

/// The fields that are kept.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct KeptMeta {
    annotations: Option<BTreeMap<String, String>>,
    creation_timestamp: Option<Time>,
    deletion_grace_period_seconds: Option<i64>,
    deletion_timestamp: Option<Time>,
    finalizers: Option<Vec<String>>,
    generate_name: Option<String>,
    generation: Option<i64>,
    labels: Option<BTreeMap<String, String>>,
    name: Option<String>,
    namespace: Option<String>,
    owner_references: Option<Vec<OwnerReference>>,
    resource_version: Option<String>,
    uid: Option<String>,
}

/// For `#[serde(deserialize_with)]`: skips `managedFields` while parsing.
pub(super) fn read<'de, D: Deserializer<'de>>(from: D) -> Result<ObjectMeta, D::Error> {
    let kept = KeptMeta::deserialize(from)?;
    Ok(ObjectMeta {
        annotations: kept.annotations,
        creation_timestamp: kept.creation_timestamp,
        deletion_grace_period_seconds: kept.deletion_grace_period_seconds,
        deletion_timestamp: kept.deletion_timestamp,
        finalizers: kept.finalizers,
        generate_name: kept.generate_name,
        generation: kept.generation,
        labels: kept.labels,
        name: kept.name,
        namespace: kept.namespace,
        owner_references: kept.owner_references,
        resource_version: kept.resource_version,
        uid: kept.uid,
        ..ObjectMeta::default()
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    #[test]
    fn everything_but_managed_fields_is_read_as_the_library_reads_it() {
        let text = json!({
            "name": "n", "namespace": "ml", "uid": "u", "resourceVersion": "7", "generation": 3, "generateName": "n-",
            "labels": {"a": "b"}, "annotations": {"c": "d"}, "finalizers": ["f"],
            "creationTimestamp": "2026-11-21T02:00:00Z", "deletionTimestamp": "2026-11-21T02:00:01Z",
            "deletionGracePeriodSeconds": 30,
            "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": "n", "uid": "o", "controller": true}],
            "managedFields": [{"manager": "m", "operation": "Apply", "fieldsV1": {"f:spec": {}}}],
        });
        let mut whole: kube::api::ObjectMeta = serde_json::from_value(text.clone()).unwrap();
        whole.managed_fields = None;
        assert_eq!(super::read(text).unwrap(), whole);
        assert_eq!(super::read(json!({"labels": null})).unwrap(), kube::api::ObjectMeta::default());
    }
}

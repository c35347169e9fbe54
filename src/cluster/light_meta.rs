//! What light wire types share: their form, and metadata without `managedFields`, which are the largest part of many objects and
//! which no reader here needs.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{OwnerReference, Time};
use kube::api::ObjectMeta;
use serde::{Deserialize, Deserializer};

use baton_contract::key::MAX_ANNOTATION;

/// Part of an object on the wire: absent fields have their default, unknown ones are skipped.
macro_rules! light {
    ($($(#[$meta:meta])* $vis:vis struct $name:ident { $($fields:tt)* })+) => {
        $(#[derive(Debug, Clone, Default, serde::Deserialize)]
        #[serde(rename_all = "camelCase", default)]
        $(#[$meta])*
        $vis struct $name { $($fields)* })+
    };
}
pub(super) use light;

/// Makes the reader of metadata that keeps these fields.
macro_rules! kept {
    ($($field:ident: $type:ty,)+) => {
        light! { struct KeptMeta { $($field: Option<$type>,)+ } }

        /// For `#[serde(deserialize_with)]`: skips `managedFields` while parsing.
        pub(super) fn read<'de, D: Deserializer<'de>>(from: D) -> Result<ObjectMeta, D::Error> {
            let kept = KeptMeta::deserialize(from)?;
            Ok(ObjectMeta { $($field: kept.$field,)+ ..ObjectMeta::default() })
        }
    };
}

/// The same, for pods: a tenant writes what it likes into their annotations, and what is too long to be read is kept as its
/// length only, for messages.
pub(super) fn read_short<'de, D: Deserializer<'de>>(from: D) -> Result<ObjectMeta, D::Error> {
    let mut meta = read(from)?;
    for text in meta.annotations.iter_mut().flat_map(BTreeMap::values_mut).filter(|text| text.len() > MAX_ANNOTATION) {
        *text = format!("<{} bytes>", text.len());
    }
    Ok(meta)
}

kept! {
    annotations: BTreeMap<String, String>,
    creation_timestamp: Time,
    deletion_grace_period_seconds: i64,
    deletion_timestamp: Time,
    finalizers: Vec<String>,
    generate_name: String,
    generation: i64,
    labels: BTreeMap<String, String>,
    name: String,
    namespace: String,
    owner_references: Vec<OwnerReference>,
    resource_version: String,
    uid: String,
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    #[test]
    fn an_annotation_that_is_too_long_is_its_length() {
        let text = json!({"annotations": {"short": "x".repeat(65_536), "long": "x".repeat(65_537)}});
        let annotations = super::read_short(text).unwrap().annotations.unwrap();
        assert_eq!((annotations["short"].len(), &*annotations["long"]), (65_536, "<65537 bytes>"));
    }

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

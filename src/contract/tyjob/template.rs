//! A pod template, kept as its author wrote it: fields that this version does not know reach the pod.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// `metadata` (labels and annotations) and `spec` of a pod, as JSON.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct PodTemplate(pub Map<String, Value>);

impl PodTemplate {
    /// The pod's spec; null when absent.
    pub fn spec(&self) -> &Value {
        self.0.get("spec").unwrap_or(&Value::Null)
    }

    /// Labels or annotations (`labels`, `annotations`) that are strings, in the order of their keys.
    pub fn metadata(&self, map: &str) -> impl Iterator<Item = (&str, &str)> {
        let map = self.0.get("metadata").and_then(|metadata| metadata.get(map)).and_then(Value::as_object);
        map.into_iter().flatten().filter_map(|(key, value)| Some((key.as_str(), value.as_str()?)))
    }

    /// `spec.restartPolicy`, `Never` when unset.
    pub fn restart_policy(&self) -> &str {
        self.spec()["restartPolicy"].as_str().filter(|policy| !policy.is_empty()).unwrap_or("Never")
    }
}

impl JsonSchema for PodTemplate {
    fn schema_name() -> Cow<'static, str> {
        "PodTemplate".into()
    }

    fn inline_schema() -> bool {
        true
    }

    // Only fields that rules read are declared; the API server judges the rest when the pod is made.
    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        let strings = json_schema!({ "type": "object", "additionalProperties": { "type": "string" } });
        json_schema!({
            "type": "object",
            "required": ["spec"],
            "properties": {
                "metadata": {
                    "type": "object",
                    "properties": { "labels": strings, "annotations": strings },
                    "x-kubernetes-preserve-unknown-fields": true,
                },
                "spec": {
                    "type": "object",
                    "required": ["containers"],
                    "properties": {
                        "containers": {
                            "type": "array",
                            "minItems": 1,
                            "items": {
                                "type": "object",
                                "required": ["name"],
                                "properties": { "name": { "type": "string", "minLength": 1, "maxLength": 63 } },
                                "x-kubernetes-preserve-unknown-fields": true,
                            },
                            "x-kubernetes-list-type": "map",
                            "x-kubernetes-list-map-keys": ["name"],
                        },
                        "restartPolicy": { "type": "string", "enum": ["Always", "OnFailure", "Never"] },
                        "schedulerName": { "type": "string" },
                        "nodeName": { "type": "string" },
                    },
                    "x-kubernetes-preserve-unknown-fields": true,
                    "x-kubernetes-validations": [
                        {
                            "rule": "!has(self.schedulerName) || self.schedulerName == ''",
                            "message": "schedulerName is set by the controller: leave it out",
                            "fieldPath": ".schedulerName",
                        },
                        {
                            "rule": "!has(self.nodeName) || self.nodeName == ''",
                            "message": "nodeName is chosen by the scheduler: leave it out",
                            "fieldPath": ".nodeName",
                        },
                    ],
                },
            },
            "x-kubernetes-preserve-unknown-fields": true,
        })
    }
}

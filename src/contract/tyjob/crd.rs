//! The CustomResourceDefinition: the schema of the types, and the rules between fields.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::CustomResourceExt;
use serde_json::{Value, json};

use super::spec::{MAX_WORKER_SETS, TyJob};

/// The CRD of [`TyJob`].
pub fn crd() -> CustomResourceDefinition {
    let mut crd = TyJob::crd();
    for version in &mut crd.spec.versions {
        let Some(schema) = version.schema.as_mut().and_then(|schema| schema.open_api_v3_schema.as_mut()) else {
            continue;
        };
        let mut value = serde_json::to_value(&*schema).unwrap_or_default();
        shape(&mut value);
        if let Ok(shaped) = serde_json::from_value(value) {
            *schema = shaped;
        }
    }
    crd
}

/// Adds what the derive cannot express.
fn shape(schema: &mut Value) {
    schema["x-kubernetes-validations"] = json!([
        { "rule": "self.metadata.name.size() <= 61 && self.metadata.name.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?$')",
          "message": "the name of a job is the first part of its pods' names: an RFC 1123 label of at most 61 characters" },
        { "rule": "self.metadata.name.size() + 1 + self.spec.leader.name.size() <= 63",
          "message": "the leader pod <job>-<leader> would have a name of more than 63 characters", "fieldPath": ".spec.leader.name" },
        { "rule": "self.spec.workerSets.all(s, self.metadata.name.size() + s.name.size() + 2 + string(s.counts - 1).size() <= 63)",
          "message": "a worker pod <job>-<workerset>-<index> would have a name of more than 63 characters", "fieldPath": ".spec.workerSets" },
    ]);
    let spec = &mut schema["properties"]["spec"];
    spec["x-kubernetes-validations"] = json!([
        { "rule": "self.minWorkersNum <= self.workerSets.map(s, s.counts).sum()",
          "message": "minWorkersNum is more than the workers of all sets", "fieldPath": ".minWorkersNum" },
        { "rule": "self.workerSets.map(s, s.counts).sum() <= 5000",
          "message": "more than 5000 workers in all", "fieldPath": ".workerSets" },
        { "rule": "!has(self.leader.template.spec.restartPolicy) || self.leader.template.spec.restartPolicy != 'Always'",
          "message": "restartPolicy Always never ends: expected Never or OnFailure", "fieldPath": ".leader.template.spec.restartPolicy" },
        { "rule": "self.workerSets.all(s, !(self.leader.name.startsWith(s.name + '-') && self.leader.name.substring(s.name.size() + 1).matches('^(0|[1-9][0-9]{0,5})$') && int(self.leader.name.substring(s.name.size() + 1)) < s.counts))",
          "message": "the leader and a worker would have the same pod name", "fieldPath": ".leader.name" },
        { "rule": "self.workerSets.all(s, s.name != self.leader.name)",
          "message": "the leader and a worker set have the same name", "fieldPath": ".leader.name" },
    ]);
    let sets = &mut spec["properties"]["workerSets"];
    sets["minItems"] = 1.into();
    sets["maxItems"] = MAX_WORKER_SETS.into();
    sets["x-kubernetes-list-type"] = "map".into();
    sets["x-kubernetes-list-map-keys"] = json!(["name"]);
    // Each is written whole by one writer; the owners of thousands of entries would make the object half as large again.
    let status = &mut schema["properties"]["status"]["properties"];
    for (name, of) in
        [("allocations", "list"), ("replaced", "map"), ("countedRestarts", "map"), ("endedWorkers", "map")]
    {
        status[name][format!("x-kubernetes-{of}-type")] = "atomic".into();
    }
    without_defaults(&mut schema["properties"]["status"]);
}

/// A default in the status would be a value that no daemon has written.
fn without_defaults(schema: &mut Value) {
    if let Some(map) = schema.as_object_mut() {
        map.remove("default");
        for inner in map.values_mut() {
            without_defaults(inner);
        }
    }
}

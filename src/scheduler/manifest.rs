//! A pod's manifest as people write it, read as the API server would store it: for "what if".

use serde_json::{Map, Value, json};

use crate::cluster::feed_pod::FeedPod;
use crate::contract::Quantity;
use crate::decide::world::PodFacts;

/// A manifest that is no pod. The text says where and what was expected.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ManifestError {
    /// No YAML.
    #[error("line {line}, column {column}: {problem}")]
    Yaml {
        /// From 1.
        line: u64,
        /// From 1.
        column: u64,
        /// What is wrong.
        problem: String,
    },
    /// Another kind of object.
    #[error(
        "kind is {0:?}: what-if judges one Pod; of a Deployment or Job give spec.template as a Pod (kind: Pod, apiVersion: v1)"
    )]
    Kind(String),
    /// A field that a pod cannot have like this.
    #[error("{0}")]
    Field(String),
}

/// Reads one Pod from YAML or JSON and fills in what the API server would.
pub fn read(text: &str) -> Result<PodFacts, ManifestError> {
    let mut pod: Value = serde_saphyr::from_str(text).map_err(|error| {
        let (line, column) = error.location().map_or((1, 1), |at| (at.line(), at.column()));
        let full = error.without_snippet().to_string();
        let problem = full.lines().next().unwrap_or_default();
        let problem = problem.split(" at line ").next().unwrap_or(problem).trim_start_matches("error: ").to_owned();
        ManifestError::Yaml { line, column, problem }
    })?;
    let kind = pod["kind"].as_str().unwrap_or_default();
    if kind != "Pod" || pod["apiVersion"] != "v1" {
        let version = pod["apiVersion"].as_str().unwrap_or_default();
        return Err(ManifestError::Kind(if kind == "Pod" { format!("{version}/Pod") } else { kind.to_owned() }));
    }
    if pod["spec"]["containers"].as_array().is_none_or(Vec::is_empty) {
        return Err(ManifestError::Field("spec.containers is empty: a pod has at least one container".to_owned()));
    }
    default_names(&mut pod);
    default_spec(&mut pod["spec"])?;
    let pod: FeedPod = serde_json::from_value(pod).map_err(|error| ManifestError::Field(error.to_string()))?;
    Ok(pod.facts())
}

fn default_names(pod: &mut Value) {
    if !pod["metadata"].is_object() {
        pod["metadata"] = json!({});
    }
    let metadata = &mut pod["metadata"];
    let prefix = metadata["generateName"].as_str().map(|prefix| format!("{prefix}what-if"));
    for (key, value) in [
        ("namespace", "default".to_owned()),
        ("name", prefix.unwrap_or_else(|| "what-if".to_owned())),
        ("uid", "what-if".to_owned()),
    ] {
        if metadata[key].as_str().is_none_or(str::is_empty) {
            metadata[key] = json!(value);
        }
    }
    // Set by servers only.
    for key in ["deletionTimestamp", "creationTimestamp", "managedFields"] {
        metadata.as_object_mut().map(|fields| fields.remove(key));
    }
    pod.as_object_mut().map(|fields| fields.remove("status"));
}

fn default_spec(spec: &mut Value) -> Result<(), ManifestError> {
    spec.as_object_mut().map(|fields| fields.remove("nodeName"));
    if spec["schedulerName"].is_null() {
        spec["schedulerName"] = json!("default-scheduler");
    }
    // The classes that every cluster has; others are not read here.
    if spec["priority"].is_null() {
        match spec["priorityClassName"].as_str() {
            Some("system-cluster-critical") => spec["priority"] = json!(2_000_000_000),
            Some("system-node-critical") => spec["priority"] = json!(2_000_001_000),
            Some(class) if !class.is_empty() => {
                let text = format!("spec.priorityClassName {class} is not looked up: give its value as spec.priority");
                return Err(ManifestError::Field(text));
            }
            _ => {}
        }
    }
    for list in ["initContainers", "containers"] {
        for (at, container) in spec[list].as_array_mut().into_iter().flatten().enumerate() {
            amounts(&mut container["resources"], &format!("spec.{list}[{at}].resources"))?;
        }
    }
    if spec["resources"].is_object() {
        amounts(&mut spec["resources"], "spec.resources")?;
    }
    if let Some(overhead) = spec["overhead"].as_object_mut() {
        quantities(overhead, "spec.overhead")?;
    }
    // A key that only indexing has made is not there for the reader.
    if let Some(fields) = spec.as_object_mut() {
        fields.retain(|_, value| !value.is_null());
    }
    Ok(())
}

fn amounts(resources: &mut Value, path: &str) -> Result<(), ManifestError> {
    for part in ["requests", "limits"] {
        match resources.get_mut(part) {
            None | Some(Value::Null) => {}
            Some(Value::Object(list)) => quantities(list, &format!("{path}.{part}"))?,
            Some(other) => {
                return Err(ManifestError::Field(format!("{path}.{part} is {other}: expected `name: amount` lines")));
            }
        }
    }
    if let Some(fields) = resources.as_object_mut() {
        fields.retain(|_, value| !value.is_null());
    }
    if resources.is_null() {
        *resources = json!({});
    }
    Ok(())
}

/// Amounts may be written as numbers; the API server makes texts of them.
fn quantities(list: &mut Map<String, Value>, path: &str) -> Result<(), ManifestError> {
    for (name, amount) in list {
        let text = match amount {
            Value::String(text) => text.clone(),
            Value::Number(number) => number.to_string(),
            other => return Err(ManifestError::Field(format!("{path}.{name} is {other}: expected an amount"))),
        };
        let bad = |error| ManifestError::Field(format!("{path}.{name}: {error}"));
        text.parse::<Quantity>().map_err(bad)?;
        *amount = Value::String(text);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const POD: &str = "apiVersion: v1\nkind: Pod\nmetadata:\n  name: a\nspec:\n  schedulerName: baton-scheduler\n  containers:\n  - name: main\n    image: x\n    resources:\n      limits:\n        nvidia.com/gpu: 4\n        cpu: 500m\n";

    #[test]
    fn a_manifest_is_read_as_the_api_server_would_store_it() {
        let facts = read(POD).unwrap();
        assert_eq!(facts.handoff.pod.key.to_string(), "default/a");
        assert_eq!(&*facts.handoff.scheduler_name, "baton-scheduler");
        assert_eq!(facts.handoff.wanted()["nvidia.com/gpu"], 4);
        assert_eq!(facts.spec.requests.milli_cpu, 500, "requests come from limits");
        let bare = "{\"apiVersion\": \"v1\", \"kind\": \"Pod\", \"spec\": {\"containers\": [{\"name\": \"c\"}]}}";
        let facts = read(bare).unwrap();
        assert_eq!((&*facts.handoff.pod.key.name, &*facts.handoff.scheduler_name), ("what-if", "default-scheduler"));
    }

    #[test]
    fn what_is_no_pod_is_named_with_its_place() {
        let error = |text: &str| read(text).unwrap_err().to_string();
        let line = error(&POD.replace("  containers:", "  containers: ]"));
        assert!(line.starts_with("line 7,"), "{line}");
        let line = error(&POD.replace("  name: a", "\tname: a"));
        assert!(line.starts_with("line 4,"), "{line}");
        assert!(error(&POD.replace("kind: Pod", "kind: Deployment")).contains("\"Deployment\""));
        assert!(error(&POD.replace("500m", "many")).contains("spec.containers[0].resources.limits.cpu"));
        assert!(error("apiVersion: v1\nkind: Pod\n").contains("spec.containers"));
        assert!(error("just words").contains("kind"));
        assert!(error("").contains("kind"));
        assert!(error(&format!("{POD}---\n{POD}")).contains("line"), "two documents");
        let class = POD.replace("  containers:", "  priorityClassName: gold\n  containers:");
        assert!(error(&class).contains("give its value as spec.priority"));
    }
}

//! The scheduler extender's HTTP bodies, v1. They are Go structs without JSON tags, so keys are PascalCase and an empty list
//! arrives as null; camelCase is read as well. Objects of Kubernetes inside them keep their own JSON.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

/// Highest score of one node.
pub const MAX_SCORE: i64 = 10;

/// Reasons by node name.
pub type Reasons = BTreeMap<String, String>;

/// Body of the filter and prioritize verbs.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct ExtenderArgs {
    /// The pod, a `v1.Pod`.
    #[serde(alias = "pod")]
    pub pod: Value,
    /// Candidates as a `v1.NodeList`; null where the extender is `nodeCacheCapable`.
    #[serde(default, alias = "nodes")]
    pub nodes: Option<Value>,
    /// Candidates by name, where the extender is `nodeCacheCapable`.
    #[serde(default, alias = "nodeNames")]
    pub node_names: Option<Vec<String>>,
}

/// Answer of the filter verb. Exactly one of the two lists is given, in the form of the request.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
#[serde(rename_all = "PascalCase")]
pub struct ExtenderFilterResult {
    /// The nodes that fit, as a `v1.NodeList`.
    pub nodes: Option<Value>,
    /// The nodes that fit, by name.
    pub node_names: Option<Vec<String>>,
    /// Nodes that do not fit now; preemption may help.
    pub failed_nodes: Reasons,
    /// Nodes that no preemption makes fit.
    pub failed_and_unresolvable_nodes: Reasons,
    /// Why there is no answer; empty for an answer.
    pub error: String,
}

/// One entry of the prioritize verb's answer, which is a list.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "PascalCase")]
pub struct HostPriority {
    /// Node.
    pub host: String,
    /// 0..=[`MAX_SCORE`].
    pub score: i64,
}

/// Body of the bind verb.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct ExtenderBindingArgs {
    /// Name.
    #[serde(alias = "podName")]
    pub pod_name: String,
    /// Namespace.
    #[serde(alias = "podNamespace")]
    pub pod_namespace: String,
    /// Uid.
    #[serde(rename = "PodUID", alias = "podUID", alias = "podUid")]
    pub pod_uid: String,
    /// The node that kube-scheduler chose.
    #[serde(alias = "node")]
    pub node: String,
}

/// Answer of the bind verb.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "PascalCase")]
pub struct ExtenderBindingResult {
    /// Empty when the pod is bound.
    pub error: String,
}

/// Body of the preempt verb.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct ExtenderPreemptionArgs {
    /// The pod that needs room, a `v1.Pod`.
    #[serde(alias = "pod")]
    pub pod: Value,
    /// Victims as whole pods, where the extender is not `nodeCacheCapable`.
    #[serde(default, alias = "nodeNameToVictims", deserialize_with = "null_as_default")]
    pub node_name_to_victims: BTreeMap<String, Option<Victims>>,
    /// Victims by uid.
    #[serde(default, alias = "nodeNameToMetaVictims", deserialize_with = "null_as_default")]
    pub node_name_to_meta_victims: BTreeMap<String, Option<MetaVictims>>,
}

/// Victims on one node as whole pods.
#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct Victims {
    /// `v1.Pod` each.
    #[serde(default, alias = "pods", deserialize_with = "null_as_default")]
    pub pods: Vec<Value>,
    /// Victims whose disruption budget would be broken.
    #[serde(default, rename = "NumPDBViolations", alias = "numPDBViolations", alias = "numPdbViolations")]
    pub num_pdb_violations: i64,
}

/// Victims on one node by uid.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct MetaVictims {
    /// Uids.
    #[serde(default, alias = "pods", deserialize_with = "null_as_default")]
    pub pods: Vec<MetaPod>,
    /// Victims whose disruption budget would be broken.
    #[serde(default, rename = "NumPDBViolations", alias = "numPDBViolations", alias = "numPdbViolations")]
    pub num_pdb_violations: i64,
}

/// One victim.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct MetaPod {
    /// Uid.
    #[serde(rename = "UID", alias = "uid")]
    pub uid: String,
}

/// Answer of the preempt verb: the nodes on which evicting these victims makes room.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "PascalCase")]
pub struct ExtenderPreemptionResult {
    /// By node name.
    pub node_name_to_meta_victims: BTreeMap<String, MetaVictims>,
}

impl ExtenderPreemptionArgs {
    /// The victims by uid, whichever form they came in. A pod without a uid is left out.
    pub fn victims(&self) -> BTreeMap<String, MetaVictims> {
        let meta = self.node_name_to_meta_victims.iter();
        let mut all: BTreeMap<String, MetaVictims> =
            meta.map(|(node, victims)| (node.clone(), victims.clone().unwrap_or_default())).collect();
        for (node, victims) in &self.node_name_to_victims {
            let victims = victims.clone().unwrap_or_default();
            let uids = victims.pods.iter().filter_map(|pod| pod["metadata"]["uid"].as_str());
            all.entry(node.clone()).or_insert_with(|| MetaVictims {
                pods: uids.map(|uid| MetaPod { uid: uid.to_owned() }).collect(),
                num_pdb_violations: victims.num_pdb_violations,
            });
        }
        all
    }
}

fn null_as_default<'de, T: Default + Deserialize<'de>, D: Deserializer<'de>>(from: D) -> Result<T, D::Error> {
    Ok(Option::<T>::deserialize(from)?.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{from_value, json, to_value};

    #[test]
    fn pascal_case_camel_case_and_null_lists_are_read() {
        let pascal: ExtenderArgs = from_value(json!({"Pod": {}, "Nodes": null, "NodeNames": ["n"]})).unwrap();
        let camel: ExtenderArgs = from_value(json!({"pod": {}, "nodeNames": ["n"]})).unwrap();
        assert_eq!(pascal, camel);
        let names: ExtenderArgs = from_value(json!({"Pod": {}, "Nodes": {"items": null}, "NodeNames": null})).unwrap();
        assert_eq!((names.node_names, names.nodes), (None, Some(json!({"items": null}))));
        let upper = json!({"PodName": "p", "PodNamespace": "ml", "PodUID": "u", "Node": "n"});
        let lower = json!({"podName": "p", "podNamespace": "ml", "podUID": "u", "node": "n"});
        assert_eq!(
            from_value::<ExtenderBindingArgs>(upper).unwrap(),
            from_value::<ExtenderBindingArgs>(lower).unwrap()
        );
        assert!(from_value::<ExtenderArgs>(json!({"NodeNames": []})).unwrap_err().to_string().contains("Pod"));
    }

    #[test]
    fn both_forms_of_victims_become_uids() {
        let args = json!({"Pod": {}, "NodeNameToVictims": {"a": {"Pods": [{"metadata": {"uid": "u1"}}], "NumPDBViolations": 1},
            "b": null}, "NodeNameToMetaVictims": null});
        let victims = from_value::<ExtenderPreemptionArgs>(args).unwrap().victims();
        assert_eq!(victims["a"], MetaVictims { pods: vec![MetaPod { uid: "u1".into() }], num_pdb_violations: 1 });
        assert_eq!(victims["b"], MetaVictims::default());
        let args = json!({"pod": {}, "nodeNameToMetaVictims": {"a": {"pods": [{"uid": "u2"}]}, "b": {"Pods": null}}});
        let victims = from_value::<ExtenderPreemptionArgs>(args).unwrap().victims();
        assert_eq!((victims["a"].pods[0].uid.as_str(), victims["b"].pods.len()), ("u2", 0));
    }

    #[test]
    fn answers_are_written_as_kube_scheduler_reads_them() {
        let victims = MetaVictims { pods: vec![MetaPod { uid: "u".into() }], num_pdb_violations: 2 };
        let result = ExtenderPreemptionResult { node_name_to_meta_victims: [("n".to_owned(), victims)].into() };
        assert_eq!(
            to_value(result).unwrap(),
            json!({"NodeNameToMetaVictims": {"n": {"Pods": [{"UID": "u"}], "NumPDBViolations": 2}}})
        );
        assert_eq!(to_value(ExtenderBindingResult::default()).unwrap(), json!({"Error": ""}));
        assert_eq!(to_value(HostPriority { host: "n".into(), score: 7 }).unwrap(), json!({"Host": "n", "Score": 7}));
        let filter = to_value(ExtenderFilterResult { node_names: Some(vec![]), ..Default::default() }).unwrap();
        let empty =
            json!({"Nodes": null, "NodeNames": [], "FailedNodes": {}, "FailedAndUnresolvableNodes": {}, "Error": ""});
        assert_eq!(filter, empty);
    }
}

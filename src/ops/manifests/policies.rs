//! Admission policies: who may write what decides. Rules and messages are in `daemonset/chart/templates/admission.yaml`; here is
//! whether a policy that stands in a cluster is the one that was installed.

use serde_json::Value;

/// Annotation of a policy: digest of its spec as it was installed.
const DIGEST: &str = "baton.io/digest";

/// Every policy by its name in the usual namespace.
pub const POLICIES: [&str; 8] = [
    "baton-node-daemon-nodes",
    "baton-node-daemon-devices",
    "baton-node-daemon-leases",
    "baton-assignments",
    PINNED_PODS,
    NODE_LOCKS,
    "baton-pod-groups",
    "baton-controller-pods",
];

/// The policy of the node lock.
pub const NODE_LOCKS: &str = "baton-node-locks";

/// The policy that is left out where pods without an assignment are served.
pub const PINNED_PODS: &str = "baton-pinned-pods";

/// The policy that is installed by choice (the chart's `visibleDevices.deny`).
pub const VISIBLE_DEVICES: &str = "baton-visible-devices";

/// A document with the digest of what it says now, where it has one.
pub(super) fn with_digest(document: String) -> String {
    let key = format!("{DIGEST}: \"");
    let Some(at) = document.find(&key).map(|at| at + key.len()) else { return document };
    let policy: Value = serde_saphyr::from_str(&document).expect("a checked-in policy is YAML: tests read every one");
    [&document[..at], &digest(&policy["spec"]), &document[at + DIGITS..]].concat()
}

const DIGITS: usize = 16;

/// What a spec says, in [`DIGITS`] digits: an object that was read back has the one of the file that it was made from.
fn digest(spec: &Value) -> String {
    let sum = ring::digest::digest(&ring::digest::SHA256, spec.to_string().as_bytes());
    let head = sum.as_ref().first_chunk().copied().map_or(0, u64::from_be_bytes);
    format!("{head:0DIGITS$x}")
}

/// Why a policy and its binding, as the API server has them, do not do what they were installed for; `None` where they do.
pub fn altered(policy: &Value, binding: Option<&Value>) -> Option<&'static str> {
    let Some(binding) = binding else { return Some("has no binding, so it denies nothing") };
    let spec = &binding["spec"];
    let denies =
        spec["validationActions"].as_array().is_some_and(|actions| actions.iter().any(|action| action == "Deny"));
    if !denies {
        return Some("does not deny: its binding's validationActions lack Deny");
    }
    if narrows(&spec["matchResources"])
        || !spec["paramRef"].is_null()
        || spec["policyName"] != policy["metadata"]["name"]
    {
        return Some("is narrowed by its binding");
    }
    let written = policy["metadata"]["annotations"][DIGEST].as_str();
    (written != Some(&digest(&policy["spec"]))).then_some("was altered after it was installed")
}

/// A binding's `matchResources` that leaves something out; the API server fills an empty one with defaults.
fn narrows(resources: &Value) -> bool {
    let filled = |field: &str| match &resources[field] {
        Value::Array(list) => !list.is_empty(),
        Value::Object(selector) => !selector.is_empty(),
        _ => false,
    };
    ["resourceRules", "excludeResourceRules", "namespaceSelector", "objectSelector"].into_iter().any(filled)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifests::{Values, files};

    fn documents(values: &Values) -> Vec<Value> {
        let files = files(values)
            .into_iter()
            .filter(|file| ["admission.yaml", "components/visible-devices/visible-devices.yaml"].contains(&file.path));
        files.flat_map(|file| serde_saphyr::from_str_multiple::<Value, Vec<Value>>(&file.text).unwrap()).collect()
    }

    fn of_kind<'a>(documents: &'a [Value], kind: &str) -> Vec<&'a Value> {
        documents.iter().filter(|document| document["kind"] == kind).collect()
    }

    #[test]
    fn each_policy_has_a_binding_that_denies_and_a_digest_of_its_own() {
        for namespace in ["baton-system", "gpu-system"] {
            each_has_a_binding_and_a_digest(&Values { namespace: namespace.to_owned(), ..Values::default() });
        }
    }

    fn each_has_a_binding_and_a_digest(values: &Values) {
        let documents = documents(values);
        let (policies, bindings) =
            (of_kind(&documents, "ValidatingAdmissionPolicy"), of_kind(&documents, "ValidatingAdmissionPolicyBinding"));
        let names: Vec<_> = policies.iter().map(|policy| policy["metadata"]["name"].as_str().unwrap()).collect();
        let all: Vec<_> = POLICIES.into_iter().chain([VISIBLE_DEVICES]).map(|name| values.cluster_name(name)).collect();
        assert_eq!(names, all);
        for (policy, binding) in policies.iter().zip(&bindings) {
            assert_eq!(altered(policy, Some(binding)), None);
            let mut edited = (*policy).clone();
            edited["spec"]["validations"][0]["expression"] = "true".into();
            assert_eq!(altered(&edited, Some(binding)), Some("was altered after it was installed"));
            let mut silent = (*binding).clone();
            silent["spec"]["validationActions"] = serde_json::json!(["Audit"]);
            assert!(altered(policy, Some(&silent)).unwrap().contains("lack Deny"));
            let mut narrow = (*binding).clone();
            narrow["spec"]["matchResources"] = serde_json::json!({"namespaceSelector": {"matchLabels": {"a": "b"}}});
            assert!(altered(policy, Some(&narrow)).unwrap().contains("narrowed"));
            assert!(altered(policy, None).unwrap().contains("no binding"));
        }
    }

    #[test]
    fn every_default_of_the_api_server_is_written() {
        for policy in of_kind(&documents(&Values::default()), "ValidatingAdmissionPolicy") {
            let matches = &policy["spec"]["matchConstraints"];
            assert_eq!(
                (&policy["spec"]["failurePolicy"], &matches["matchPolicy"]),
                (&"Fail".into(), &"Equivalent".into())
            );
            assert!(matches["resourceRules"].as_array().unwrap().iter().all(|rule| rule["scope"] == "*"));
            for validation in policy["spec"]["validations"].as_array().unwrap() {
                assert_eq!(validation["reason"], "Forbidden");
                let expression = validation["expression"].as_str().unwrap();
                assert!(
                    expression.ends_with("authorizer.group('baton.io').resource('overrides').check('use').allowed()"),
                    "an operator cannot break the glass: {expression}"
                );
                assert!(!validation["message"].as_str().unwrap().is_empty());
            }
        }
    }
}

//! Admission policies: who may write what decides. Rules and messages are in `templates/admission.yaml`; here are the names in
//! them, and whether a policy that stands in a cluster is the one that was installed.

use anyhow::Context;
use kube::Resource;
use serde_json::Value;

use super::choices::Values;
use super::rbac::{CONTROLLER_ACCOUNT, NODE_DAEMON, SCHEDULER_ACCOUNT};
use baton_contract::gang::PodGroupApi;
use baton_contract::gang::key::{MANAGED_BY, MANAGED_BY_BATON, TIMEOUT};
use baton_contract::{AgentStatus, LEASE_PREFIX, inventory, key, tyjob};

/// Annotation of a policy: digest of its spec as it was generated.
pub const DIGEST: &str = "baton.io/digest";

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

const TEMPLATE: &str = include_str!("templates/admission.yaml");

/// Requesters that no policy binds: cluster-admins, and those to whom an operator grants it.
const OVERRIDE: &str = "authorizer.group('baton.io').resource('overrides').check('use').allowed()";
/// The node that a token is bound to; empty for any other token.
const TOKEN_NODE: &str = "\"has(request.userInfo.extra) && 'authentication.kubernetes.io/node-name' in request.userInfo.extra ? \
                          request.userInfo.extra['authentication.kubernetes.io/node-name'][0] : ''\"";

/// Neither finalizers nor foreign owners, which could keep the object, and what waits for it, from being deleted; but for those that
/// stand there: koordlet's Device objects have their Node as an owner that waits for them.
const OWN_METADATA: &str = "(has(object.metadata.finalizers) ? object.metadata.finalizers : []) == (oldObject != null && \
                            has(oldObject.metadata.finalizers) ? oldObject.metadata.finalizers : []) && \
                            (!has(object.metadata.ownerReferences) || object.metadata.ownerReferences.all(o, o.kind == 'Node' \
                            && o.name == variables.node && !(has(o.blockOwnerDeletion) && o.blockOwnerDeletion) || oldObject != null && \
                            has(oldObject.metadata.ownerReferences) && o in oldObject.metadata.ownerReferences))";

/// A string of CEL. Every value here is a name that has no quotes.
fn text(value: &str) -> String {
    format!("'{value}'")
}

/// A list of strings of CEL.
pub(super) fn list<'a>(values: impl IntoIterator<Item = &'a str>) -> String {
    format!("[{}]", values.into_iter().map(text).collect::<Vec<_>>().join(", "))
}

/// The policies with their bindings; nothing where they are left out.
pub(super) fn yaml(values: &Values) -> anyhow::Result<String> {
    let admission = &values.admission;
    if !admission.on {
        return Ok(String::new());
    }
    let namespace = &values.namespace;
    let account = |name: &str| format!("system:serviceaccount:{namespace}:{name}");
    let [node_daemon, scheduler, controller] = [NODE_DAEMON, SCHEDULER_ACCOUNT, CONTROLLER_ACCOUNT].map(account);
    let writers: Vec<&str> =
        [scheduler.as_str()].into_iter().chain(admission.more_writers.iter().map(String::as_str)).collect();
    let suffix = values.cluster_name("");
    let groups = [PodGroupApi::Sigs.group(), PodGroupApi::Community.group()].join(", ");
    let device_names = list(key::DEVICE_NAMES);
    let filled = [
        ("${suffix}", suffix.as_str()),
        ("${override}", OVERRIDE),
        ("${token_node}", TOKEN_NODE),
        ("${node_daemon}", &text(&node_daemon)),
        ("${scheduler}", &text(&scheduler)),
        ("${controller}", &text(&controller)),
        ("${tyjob_group}", &text(&format!("{}/", tyjob::TyJob::group(&())))),
        ("${system_namespaces}", &list([namespace, &AgentStatus::lease_namespace(namespace), "kube-system"])),
        ("${own_metadata}", OWN_METADATA),
        ("${own_metadata_message}", "a node daemon adds no finalizers, and no owner but its own Node"),
        ("${writers}", &list(writers.iter().copied())),
        ("${writers_text}", &writers.join(" or ")),
        ("${node_labels}", &list([key::NODE_GPU_VENDOR, key::NODE_GPU_MODEL, key::NODE_GPU_DRIVER])),
        ("${lock_key}", &text(&admission.lock_key)),
        ("${device_group}", &inventory::Device::group(&())),
        ("${cordoned}", &text(key::CORDONED)),
        ("${lease_prefix}", &text(LEASE_PREFIX)),
        ("${lease_namespace}", &text(&AgentStatus::lease_namespace(namespace))),
        ("${assignment_keys}", &list(key::SCHEDULER_KEYS)),
        ("${timeout_keys}", &list([TIMEOUT])),
        ("${pinned_namespaces}", &list(admission.pinned_namespaces.iter().map(String::as_str))),
        ("${device_names}", &device_names),
        ("${mig_prefix}", &text(key::MIG_PREFIX)),
        ("${pod_group_groups}", &groups),
        ("${managed_label}", &text(MANAGED_BY)),
        ("${managed_value}", &text(MANAGED_BY_BATON)),
    ]
    .into_iter()
    .fold(TEMPLATE.to_owned(), |text, (name, value)| text.replace(name, value));
    let mut documents = Vec::new();
    for document in filled.split("---\n") {
        let policy: Value = serde_saphyr::from_str(document).context("a policy of templates/admission.yaml")?;
        let name = policy["metadata"]["name"].as_str().unwrap_or_default();
        if admission.unassigned && name.starts_with(PINNED_PODS) {
            continue;
        }
        documents.push(document.replace("${digest}", &digest(&policy["spec"])));
        documents.push(format!(
            "apiVersion: admissionregistration.k8s.io/v1\nkind: ValidatingAdmissionPolicyBinding\nmetadata:\n  name: {name}\n  \
             labels:\n    app.kubernetes.io/part-of: baton\nspec:\n  policyName: {name}\n  validationActions: [Deny]\n"
        ));
    }
    Ok(documents.join("---\n"))
}

/// What a spec says, in 16 digits: an object that was read back has the one of the file that it was made from.
fn digest(spec: &Value) -> String {
    let sum = ring::digest::digest(&ring::digest::SHA256, spec.to_string().as_bytes());
    let head = sum.as_ref().first_chunk().copied().map_or(0, u64::from_be_bytes);
    format!("{head:016x}")
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
    use crate::manifests::choices::Admission;

    fn documents(values: &Values) -> Vec<Value> {
        serde_saphyr::from_str_multiple(&yaml(values).unwrap()).unwrap()
    }

    fn of_kind<'a>(documents: &'a [Value], kind: &str) -> Vec<&'a Value> {
        documents.iter().filter(|document| document["kind"] == kind).collect()
    }

    #[test]
    fn each_policy_has_a_binding_that_denies_and_a_digest_of_its_own() {
        let documents = documents(&Values::default());
        let (policies, bindings) =
            (of_kind(&documents, "ValidatingAdmissionPolicy"), of_kind(&documents, "ValidatingAdmissionPolicyBinding"));
        let names: Vec<_> = policies.iter().map(|policy| policy["metadata"]["name"].as_str().unwrap()).collect();
        assert_eq!(names, POLICIES);
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
    fn nothing_is_left_to_fill_and_every_default_of_the_api_server_is_written() {
        let text = yaml(&Values::default()).unwrap();
        assert!(!text.contains("${"), "{text}");
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
                assert!(expression.ends_with(OVERRIDE), "an operator cannot break the glass: {expression}");
                assert!(!validation["message"].as_str().unwrap().is_empty());
            }
        }
    }

    #[test]
    fn an_installation_names_its_namespace_its_writers_and_its_lock() {
        let admission = Admission {
            more_writers: vec!["system:serviceaccount:koordinator-system:koord-scheduler".into()],
            pinned_namespaces: vec!["gpu-operator".into()],
            lock_key: "hami.io/mutex.lock".into(),
            ..Admission::default()
        };
        let values = Values { namespace: "gpu".into(), admission, ..Values::default() };
        let text = yaml(&values).unwrap();
        for word in [
            "name: baton-assignments-gpu",
            "'system:serviceaccount:gpu:baton-scheduler', 'system:serviceaccount:koordinator-system:koord-scheduler'",
            "in ['gpu-operator']",
            "'hami.io/mutex.lock' in",
            "request.namespace == 'gpu-nodes'",
        ] {
            assert!(text.contains(word), "{word}");
        }
        assert!(!text.contains("baton-system") && !text.contains(key::NODE_LOCK));
        let serve = Values { admission: Admission { unassigned: true, ..Admission::default() }, ..Values::default() };
        assert!(!yaml(&serve).unwrap().contains(PINNED_PODS));
        let off = Values { admission: Admission { on: false, ..Admission::default() }, ..Values::default() };
        assert_eq!(yaml(&off).unwrap(), "");
    }
}

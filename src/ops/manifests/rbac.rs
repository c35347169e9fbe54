//! Permissions of the node daemon, as `rbac.yaml` grants them, each with the reason that stands above its rule.

use k8s_openapi::api::rbac::v1::PolicyRule;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::files::{NAMESPACE, RBAC};

/// ServiceAccount and roles of the node daemon.
const NODE_DAEMON: &str = "baton-device-plugin";

/// One permission of the node daemon.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Permission {
    /// API group, empty for core.
    pub group: String,
    /// `devices` or `pods/status`.
    pub resource: String,
    /// `patch`.
    pub verb: String,
    /// Everywhere when `None`.
    pub namespace: Option<String>,
    /// Only the object of this name; all when `None`.
    pub name: Option<String>,
    /// Its reason.
    pub why: String,
}

impl Permission {
    /// `leases.coordination.k8s.io in baton-system`.
    pub fn title(&self) -> String {
        let dot = if self.group.is_empty() { "" } else { "." };
        let scope = self.namespace.as_ref().map(|namespace| format!(" in {namespace}")).unwrap_or_default();
        format!("{}{dot}{}{scope}", self.resource, self.group)
    }
}

/// Every permission of the node daemon, for daemons in `namespace`.
pub fn agent_permissions(namespace: &str) -> Vec<Permission> {
    let mut all = Vec::new();
    for (role, rules) in RBAC.split("---\n").filter_map(|document| document.split_once("\nrules:\n")) {
        let role: Value = parsed(role);
        if role["metadata"]["name"] != NODE_DAEMON {
            continue;
        }
        let within = role["metadata"]["namespace"].as_str().map(|within| within.replace(NAMESPACE, namespace));
        for (why, rule) in rules.split("# ").filter_map(|text| text.split_once('\n')) {
            let rules: Vec<PolicyRule> = parsed(rule);
            for rule in rules {
                all.extend(permissions(&rule, within.as_ref(), why));
            }
        }
    }
    all
}

fn permissions(rule: &PolicyRule, namespace: Option<&String>, why: &str) -> Vec<Permission> {
    let (groups, resources) = (rule.api_groups.iter().flatten(), rule.resources.as_deref().unwrap_or_default());
    let granted = groups.flat_map(|group| resources.iter().map(move |resource| (group, resource)));
    let granted = granted.flat_map(|(group, resource)| rule.verbs.iter().map(move |verb| (group, resource, verb)));
    let permission = |(group, resource, verb): (&String, &String, &String)| Permission {
        group: group.clone(),
        resource: resource.clone(),
        verb: verb.clone(),
        namespace: namespace.cloned(),
        name: rule.resource_names.as_ref().and_then(|names| names.first().cloned()),
        why: why.to_owned(),
    };
    granted.map(permission).collect()
}

/// A part of the checked-in text.
fn parsed<T: DeserializeOwned>(text: &str) -> T {
    serde_saphyr::from_str(text).expect("rbac.yaml is YAML: tests read every rule")
}

//! The table of nodes.

use jiff::Timestamp;
use serde_json::{Value, json};

use super::{Column, age};
use crate::apiserver::object::text;

/// (name, priority, description), name and age apart.
#[rustfmt::skip]
const COLUMNS: &[(&str, i64, &str)] = &[
    ("Status", 0,
     "The status of the node"),
    ("Roles", 0,
     "The roles of the node"),
    ("Version", 0,
     "Kubelet Version reported by the node."),
    ("Internal-IP", 1,
     "List of addresses reachable to the node. Queried from cloud provider, if available. More info: \
     https://kubernetes.io/docs/reference/node/node-status/#addresses Note: This field is declared \
     as mergeable, but the merge key is not sufficiently unique, which can cause data corruption \
     when it is merged. Callers should instead use a full-replacement patch. See \
     https://pr.k8s.io/79391 for an example. Consumers should assume that addresses can change \
     during the lifetime of a Node. However, there are some exceptions where this may not be \
     possible, such as Pods that inherit a Node's address in its own status or consumers of the \
     downward API (status.hostIP)."),
    ("External-IP", 1,
     "List of addresses reachable to the node. Queried from cloud provider, if available. More info: \
     https://kubernetes.io/docs/reference/node/node-status/#addresses Note: This field is declared \
     as mergeable, but the merge key is not sufficiently unique, which can cause data corruption \
     when it is merged. Callers should instead use a full-replacement patch. See \
     https://pr.k8s.io/79391 for an example. Consumers should assume that addresses can change \
     during the lifetime of a Node. However, there are some exceptions where this may not be \
     possible, such as Pods that inherit a Node's address in its own status or consumers of the \
     downward API (status.hostIP)."),
    ("OS-Image", 1,
     "OS Image reported by the node from /etc/os-release (e.g. Debian GNU/Linux 7 (wheezy))."),
    ("Kernel-Version", 1,
     "Kernel Version reported by the node from 'uname -r' (e.g. 3.16.0-0.bpo.4-amd64)."),
    ("Container-Runtime", 1,
     "ContainerRuntime Version reported by the node through runtime remote API (e.g. \
     containerd://1.4.2)."),
];

pub(super) fn columns() -> Vec<Column> {
    let rest = |from: usize, to: usize| {
        COLUMNS[from..to].iter().map(|(name, priority, description)| Column::new(name, *priority, description, ""))
    };
    std::iter::once(Column::name())
        .chain(rest(0, 2))
        .chain(std::iter::once(Column::age()))
        .chain(rest(2, COLUMNS.len()))
        .collect()
}

pub(super) fn cells(node: &Value, now: Timestamp) -> Vec<Value> {
    let conditions = node["status"]["conditions"].as_array();
    let ready = conditions.into_iter().flatten().find(|c| c["type"] == "Ready").map(|c| c["status"] == "True");
    let mut status = match ready {
        Some(true) => "Ready".to_owned(),
        Some(false) => "NotReady".to_owned(),
        None => "Unknown".to_owned(),
    };
    if node["spec"]["unschedulable"] == true {
        status.push_str(",SchedulingDisabled");
    }
    let mut roles: Vec<&str> = node["metadata"]["labels"]
        .as_object()
        .into_iter()
        .flatten()
        .filter_map(|(key, value)| match key.strip_prefix("node-role.kubernetes.io/") {
            Some(role) if !role.is_empty() => Some(role),
            _ if key == "kubernetes.io/role" => value.as_str(),
            _ => None,
        })
        .collect();
    roles.sort_unstable();
    let roles = if roles.is_empty() { "<none>".to_owned() } else { roles.join(",") };
    let address = |kind: &str| {
        let list = node["status"]["addresses"].as_array();
        let found = list.into_iter().flatten().find(|a| a["type"] == kind);
        found.and_then(|a| a["address"].as_str()).unwrap_or("<none>").to_owned()
    };
    let info = |key: &str| match text(node, &["status", "nodeInfo", key]) {
        "" => "<unknown>".to_owned(),
        found => found.to_owned(),
    };
    vec![
        node["metadata"]["name"].clone(),
        json!(status),
        json!(roles),
        json!(age(node["metadata"]["creationTimestamp"].as_str(), now)),
        json!(text(node, &["status", "nodeInfo", "kubeletVersion"])),
        json!(address("InternalIP")),
        json!(address("ExternalIP")),
        json!(info("osImage")),
        json!(info("kernelVersion")),
        json!(info("containerRuntimeVersion")),
    ]
}

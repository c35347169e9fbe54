//! Tables of the other built-in kinds: the columns that matter to a reader.

use super::Column;
use crate::apiserver::resource::Resource;

/// (group, plural, columns as `Name=path`, `+` marks the wide ones).
#[rustfmt::skip]
const TABLES: &[(&str, &str, &[&str])] = &[
    ("", "namespaces", &["Status=.status.phase"]),
    ("", "configmaps", &[]),
    ("", "secrets", &["Type=.type"]),
    ("", "services", &["Type=.spec.type", "Cluster-IP=.spec.clusterIP", "Port(S)=.spec.ports[*].port"]),
    ("", "serviceaccounts", &[]),
    ("", "persistentvolumes", &["Capacity=.spec.capacity.storage", "Access Modes=.spec.accessModes[*]", "Reclaim Policy=.spec.persistentVolumeReclaimPolicy", "Status=.status.phase", "Claim=.spec.claimRef.name", "StorageClass=.spec.storageClassName"]),
    ("", "persistentvolumeclaims", &["Status=.status.phase", "Volume=.spec.volumeName", "Capacity=.status.capacity.storage", "Access Modes=.spec.accessModes[*]", "StorageClass=.spec.storageClassName"]),
    ("apps", "deployments", &["Ready=.status.readyReplicas", "Up-to-date=.status.updatedReplicas", "Available=.status.availableReplicas"]),
    ("apps", "replicasets", &["Desired=.spec.replicas", "Current=.status.replicas", "Ready=.status.readyReplicas"]),
    ("apps", "statefulsets", &["Ready=.status.readyReplicas"]),
    ("apps", "daemonsets", &["Desired=.status.desiredNumberScheduled", "Current=.status.currentNumberScheduled", "Ready=.status.numberReady", "Up-to-date=.status.updatedNumberScheduled", "Available=.status.numberAvailable"]),
    ("batch", "jobs", &["Status=.status.conditions[0].type", "Completions=.status.succeeded"]),
    ("policy", "poddisruptionbudgets", &["Min Available=.spec.minAvailable", "Max Unavailable=.spec.maxUnavailable", "Allowed Disruptions=.status.disruptionsAllowed"]),
    ("coordination.k8s.io", "leases", &["Holder=.spec.holderIdentity"]),
    ("scheduling.k8s.io", "priorityclasses", &["Value=.value", "Global-Default=.globalDefault"]),
    ("storage.k8s.io", "csidrivers", &["AttachRequired=.spec.attachRequired", "PodInfoOnMount=.spec.podInfoOnMount", "StorageCapacity=.spec.storageCapacity", "RequiresRepublish=.spec.requiresRepublish", "Modes=.spec.volumeLifecycleModes[*]"]),
    ("storage.k8s.io", "csistoragecapacities", &["Created At=.metadata.creationTimestamp"]),
    ("storage.k8s.io", "storageclasses", &["Provisioner=.provisioner", "ReclaimPolicy=.reclaimPolicy", "VolumeBindingMode=.volumeBindingMode"]),
    ("apiextensions.k8s.io", "customresourcedefinitions", &["Created At=.metadata.creationTimestamp"]),
];

pub(super) fn columns(resource: &Resource) -> Vec<Column> {
    let found = TABLES.iter().find(|(g, p, _)| resource.is(g, p));
    let mut columns = vec![Column::name()];
    let mut aged = false;
    for text in found.map_or(&[][..], |(_, _, c)| c) {
        let (name, path) = text.split_once('=').unwrap_or((text, ""));
        aged |= path == "age" || name == "Created At";
        columns.push(Column::new(name, 0, "", path));
    }
    if !aged {
        columns.push(Column::age());
    }
    columns
}

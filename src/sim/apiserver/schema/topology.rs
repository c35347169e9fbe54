//! How the lists and maps of built-in types merge. The type library does not carry it, so it is a table, by type and
//! field, of the `x-kubernetes-list-*` and patch-merge marks of the Kubernetes API.

use super::Rel;

/// (type, field, keys of the list, key of strategic merge patches where it is another one or there is none: `-`).
#[rustfmt::skip]
const LISTS: &[(&str, &str, &str, &str)] = &[
    ("core.v1.PodSpec", "containers", "name", ""),
    ("core.v1.PodSpec", "initContainers", "name", ""),
    ("core.v1.PodSpec", "ephemeralContainers", "name", ""),
    ("core.v1.PodSpec", "volumes", "name", ""),
    ("core.v1.PodSpec", "imagePullSecrets", "name", ""),
    ("core.v1.PodSpec", "hostAliases", "ip", ""),
    ("core.v1.PodSpec", "topologySpreadConstraints", "topologyKey whenUnsatisfiable", "topologyKey"),
    ("core.v1.PodSpec", "resourceClaims", "name", ""),
    ("core.v1.PodSpec", "schedulingGates", "name", ""),
    ("core.v1.Container", "env", "name", ""),
    ("core.v1.Container", "ports", "containerPort protocol", "containerPort"),
    ("core.v1.Container", "volumeMounts", "mountPath", ""),
    ("core.v1.Container", "volumeDevices", "devicePath", ""),
    ("core.v1.EphemeralContainer", "env", "name", ""),
    ("core.v1.EphemeralContainer", "ports", "containerPort protocol", "containerPort"),
    ("core.v1.EphemeralContainer", "volumeMounts", "mountPath", ""),
    ("core.v1.EphemeralContainer", "volumeDevices", "devicePath", ""),
    ("core.v1.ResourceRequirements", "claims", "name", "-"),
    ("core.v1.VolumeResourceRequirements", "claims", "name", "-"),
    ("core.v1.PodStatus", "conditions", "type", ""),
    ("core.v1.PodStatus", "podIPs", "ip", ""),
    ("core.v1.PodStatus", "resourceClaimStatuses", "name", ""),
    ("core.v1.ContainerStatus", "allocatedResourcesStatus", "name", ""),
    ("core.v1.ContainerStatus", "volumeMounts", "mountPath", ""),
    ("core.v1.ResourceStatus", "resources", "resourceID", "-"),
    ("core.v1.NodeStatus", "conditions", "type", ""),
    ("core.v1.NodeStatus", "addresses", "type", ""),
    ("core.v1.NamespaceStatus", "conditions", "type", ""),
    ("core.v1.ServiceSpec", "ports", "port protocol", "port"),
    ("core.v1.ServiceStatus", "conditions", "type", ""),
    ("core.v1.ServiceAccount", "secrets", "name", ""),
    ("core.v1.PersistentVolumeClaimStatus", "conditions", "type", ""),
    ("core.v1.ReplicationControllerStatus", "conditions", "type", ""),
    ("apps.v1.DeploymentStatus", "conditions", "type", ""),
    ("apps.v1.ReplicaSetStatus", "conditions", "type", ""),
    ("apps.v1.StatefulSetStatus", "conditions", "type", ""),
    ("apps.v1.DaemonSetStatus", "conditions", "type", ""),
    ("policy.v1.PodDisruptionBudgetStatus", "conditions", "type", ""),
    ("networking.v1.NetworkPolicyStatus", "conditions", "type", "-"),
    ("apiextensions.v1.CustomResourceDefinitionStatus", "conditions", "type", "-"),
    ("admissionregistration.v1.ValidatingAdmissionPolicySpec", "matchConditions", "name", ""),
    ("admissionregistration.v1.ValidatingAdmissionPolicySpec", "variables", "name", ""),
    ("admissionregistration.v1.ValidatingAdmissionPolicyStatus", "conditions", "type", "-"),
    ("storage.v1.CSINodeSpec", "drivers", "name", ""),
    ("resource.v1.ResourceClaimStatus", "reservedFor", "uid", ""),
    ("resource.v1.ResourceClaimStatus", "devices", "driver device pool", "-"),
    ("meta.v1.ObjectMeta", "ownerReferences", "uid", ""),
];

const SETS: &[(&str, &str)] = &[
    ("meta.v1.ObjectMeta", "finalizers"),
    ("core.v1.NodeSpec", "podCIDRs"),
    ("discovery.v1.Endpoint", "addresses"),
    ("admissionregistration.v1.ValidatingAdmissionPolicyBindingSpec", "validationActions"),
    ("core.v1.ServiceSpec", "externalIPs"),
];

/// Atomic for ownership, but merged by a key in strategic merge patches.
const MERGED_ONLY: &[(&str, &str, &str)] = &[
    ("core.v1.PodStatus", "hostIPs", "ip"),
    ("core.v1.ServiceAccount", "imagePullSecrets", "name"),
    ("batch.v1.JobStatus", "conditions", "type"),
];

const ATOMIC_STRUCTS: &[&str] = &[
    "core.v1.ObjectReference",
    "core.v1.LocalObjectReference",
    "core.v1.TypedLocalObjectReference",
    "core.v1.SecretReference",
    "core.v1.SecretKeySelector",
    "core.v1.ConfigMapKeySelector",
    "core.v1.ObjectFieldSelector",
    "core.v1.ResourceFieldSelector",
    "core.v1.NodeSelector",
    "core.v1.NodeSelectorTerm",
    "core.v1.TopologySelectorTerm",
    "core.v1.ScopeSelector",
    "meta.v1.LabelSelector",
    "admissionregistration.v1.NamedRuleWithOperations",
    "admissionregistration.v1.ParamKind",
    "admissionregistration.v1.ParamRef",
    "rbac.v1.RoleRef",
    "rbac.v1.Subject",
];

pub(super) fn list(owner: &str, field: &str) -> Option<Rel> {
    if SETS.contains(&(owner, field)) {
        return Some(Rel::Set);
    }
    if let Some((_, _, key)) = MERGED_ONLY.iter().find(|(o, f, _)| *o == owner && *f == field) {
        return Some(Rel::AtomicMergedBy((*key).to_owned()));
    }
    let (_, _, keys, merge) = LISTS.iter().find(|(o, f, _, _)| *o == owner && *f == field)?;
    let keys: Vec<String> = keys.split(' ').map(str::to_owned).collect();
    let merge = match *merge {
        "" => keys.first().cloned(),
        "-" => None,
        other => Some(other.to_owned()),
    };
    Some(Rel::Keys { keys, merge })
}

pub(super) fn atomic_struct(name: &str) -> bool {
    ATOMIC_STRUCTS.contains(&name)
}

pub(super) fn atomic_map(owner: &str, field: &str) -> bool {
    matches!(
        (owner, field),
        ("core.v1.PodSpec", "nodeSelector")
            | ("core.v1.ServiceSpec" | "core.v1.ReplicationControllerSpec", "selector")
            | ("core.v1.ResourceQuotaStatus" | "core.v1.ResourceQuotaSpec", "hard")
    )
}

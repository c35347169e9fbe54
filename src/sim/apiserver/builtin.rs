//! The table of built-in resources: names, scope, short names, subresources, storage hashes.

use std::sync::{Arc, LazyLock};

use super::resource::{Resource, Subresource};
use super::schema::{Schema, builtin_schema};

const FULL: &str = "create delete deletecollection get list patch update watch";
const GPU: &str = "get patch update";
const PROXY: &str = "create delete get patch update";

/// group/version, plural, singular, kind, scope (n or c), short names, categories, storage hash, subresources
/// (`name:Kind:verbs[:group/version]`, comma separated).
type KindRow = (&'static str, &'static str, &'static str, char, &'static str, &'static str, &'static str);

#[rustfmt::skip]
const ROWS: &[KindRow] = &[
    ("v1", "configmaps", "ConfigMap", 'n', "cm", "qFsyl6wFWjQ=", ""),
    ("v1", "endpoints", "Endpoints", 'n', "ep", "fWeeMqaN/OA=", ""),
    ("v1", "events", "Event", 'n', "ev", "r2yiGXH7wu8=", ""),
    ("v1", "limitranges", "LimitRange", 'n', "limits", "EBKMFVe6cwo=", ""),
    ("v1", "namespaces", "Namespace", 'c', "ns", "Q3oi5N2YM8M=", "finalize:Namespace:update,status:Namespace:gpu"),
    ("v1", "nodes", "Node", 'c', "no", "XwShjMxG9Fs=", "proxy:NodeProxyOptions:proxy,status:Node:gpu"),
    ("v1", "persistentvolumeclaims", "PersistentVolumeClaim", 'n', "pvc", "QWTyNDq0dC4=", "status:PersistentVolumeClaim:gpu"),
    ("v1", "persistentvolumes", "PersistentVolume", 'c', "pv", "HN/zwEC+JgM=", "status:PersistentVolume:gpu"),
    ("v1", "pods", "Pod", 'n', "po", "xPOwRZ+Yhw8=", "attach:PodAttachOptions:create get,binding:Binding:create,ephemeralcontainers:Pod:gpu,eviction:Eviction:create:policy/v1,exec:PodExecOptions:create get,log:Pod:get,portforward:PodPortForwardOptions:create get,proxy:PodProxyOptions:proxy,resize:Pod:gpu,status:Pod:gpu"),
    ("v1", "podtemplates", "PodTemplate", 'n', "", "LIXB2x4IFpk=", ""),
    ("v1", "replicationcontrollers", "ReplicationController", 'n', "rc", "Jond2If31h0=", "scale:Scale:gpu:autoscaling/v1,status:ReplicationController:gpu"),
    ("v1", "resourcequotas", "ResourceQuota", 'n', "quota", "8uhSgffRX6w=", "status:ResourceQuota:gpu"),
    ("v1", "secrets", "Secret", 'n', "", "S6u1pOWzb84=", ""),
    ("v1", "serviceaccounts", "ServiceAccount", 'n', "sa", "pbx9ZvyFpBE=", "token:TokenRequest:create:authentication.k8s.io/v1"),
    ("v1", "services", "Service", 'n', "svc", "0/CO1lhkEBI=", "proxy:ServiceProxyOptions:proxy,status:Service:gpu"),
    ("apps/v1", "controllerrevisions", "ControllerRevision", 'n', "", "85nkx63pcBU=", ""),
    ("apps/v1", "daemonsets", "DaemonSet", 'n', "ds", "dd7pWHUlMKQ=", "status:DaemonSet:gpu"),
    ("apps/v1", "deployments", "Deployment", 'n', "deploy", "8aSe+NMegvE=", "scale:Scale:gpu:autoscaling/v1,status:Deployment:gpu"),
    ("apps/v1", "replicasets", "ReplicaSet", 'n', "rs", "P1RzHs8/mWQ=", "scale:Scale:gpu:autoscaling/v1,status:ReplicaSet:gpu"),
    ("apps/v1", "statefulsets", "StatefulSet", 'n', "sts", "H+vl74LkKdo=", "scale:Scale:gpu:autoscaling/v1,status:StatefulSet:gpu"),
    ("events.k8s.io/v1", "events", "Event", 'n', "ev", "r2yiGXH7wu8=", ""),
    ("batch/v1", "cronjobs", "CronJob", 'n', "cj", "sd5LIXh4Fjs=", "status:CronJob:gpu"),
    ("batch/v1", "jobs", "Job", 'n', "", "mudhfqk/qZY=", "status:Job:gpu"),
    ("policy/v1", "poddisruptionbudgets", "PodDisruptionBudget", 'n', "pdb", "EVWiDmWqyJw=", "status:PodDisruptionBudget:gpu"),
    ("rbac.authorization.k8s.io/v1", "clusterrolebindings", "ClusterRoleBinding", 'c', "", "48tpQ8gZHFc=", ""),
    ("rbac.authorization.k8s.io/v1", "clusterroles", "ClusterRole", 'c', "", "bYE5ZWDrJ44=", ""),
    ("rbac.authorization.k8s.io/v1", "rolebindings", "RoleBinding", 'n', "", "eGsCzGH6b1g=", ""),
    ("rbac.authorization.k8s.io/v1", "roles", "Role", 'n', "", "7FuwZcIIItM=", ""),
    ("storage.k8s.io/v1", "csidrivers", "CSIDriver", 'c', "", "hL6j/rwBV5w=", ""),
    ("storage.k8s.io/v1", "csinodes", "CSINode", 'c', "", "Pe62DkZtjuo=", ""),
    ("storage.k8s.io/v1", "csistoragecapacities", "CSIStorageCapacity", 'n', "", "xeVl+2Ly1kE=", ""),
    ("storage.k8s.io/v1", "storageclasses", "StorageClass", 'c', "sc", "K+m6uJwbjGY=", ""),
    ("storage.k8s.io/v1", "volumeattachments", "VolumeAttachment", 'c', "", "tJx/ezt6UDU=", "status:VolumeAttachment:gpu"),
    ("admissionregistration.k8s.io/v1", "validatingadmissionpolicies", "ValidatingAdmissionPolicy", 'c', "", "6OxvlMmQ6is=", "status:ValidatingAdmissionPolicy:gpu"),
    ("admissionregistration.k8s.io/v1", "validatingadmissionpolicybindings", "ValidatingAdmissionPolicyBinding", 'c', "", "v9715VZqakg=", ""),
    ("apiextensions.k8s.io/v1", "customresourcedefinitions", "CustomResourceDefinition", 'c', "crd crds", "jfWCUB31mvA=", "status:CustomResourceDefinition:gpu"),
    ("scheduling.k8s.io/v1", "priorityclasses", "PriorityClass", 'c', "pc", "1QwjyaZjj3Y=", ""),
    ("coordination.k8s.io/v1", "leases", "Lease", 'n', "", "/sY7hl8ol1U=", ""),
    ("node.k8s.io/v1", "runtimeclasses", "RuntimeClass", 'c', "", "WQTu1GL3T2Q=", ""),
    ("discovery.k8s.io/v1", "endpointslices", "EndpointSlice", 'n', "", "Nx3SIv6I0mE=", ""),
    ("resource.k8s.io/v1", "deviceclasses", "DeviceClass", 'c', "", "", ""),
    ("resource.k8s.io/v1", "resourceclaims", "ResourceClaim", 'n', "", "", "status:ResourceClaim:gpu"),
    ("resource.k8s.io/v1", "resourceclaimtemplates", "ResourceClaimTemplate", 'n', "", "", ""),
    ("resource.k8s.io/v1", "resourceslices", "ResourceSlice", 'c', "", "", ""),
    ("networking.k8s.io/v1", "networkpolicies", "NetworkPolicy", 'n', "netpol", "YpfwF18m1G8=", ""),
];

/// Groups in the order of a real server's `/apis`. Groups that this server keeps no resources for are listed too, so
/// that clients see the same API surface; their resource lists are empty.
pub fn groups() -> Vec<(String, Vec<String>)> {
    [
        ("apiregistration.k8s.io", "v1"),
        ("apps", "v1"),
        ("events.k8s.io", "v1"),
        ("authentication.k8s.io", "v1"),
        ("authorization.k8s.io", "v1"),
        ("autoscaling", "v2 v1"),
        ("batch", "v1"),
        ("certificates.k8s.io", "v1"),
        ("networking.k8s.io", "v1"),
        ("policy", "v1"),
        ("rbac.authorization.k8s.io", "v1"),
        ("storage.k8s.io", "v1"),
        ("admissionregistration.k8s.io", "v1"),
        ("apiextensions.k8s.io", "v1"),
        ("scheduling.k8s.io", "v1"),
        ("coordination.k8s.io", "v1"),
        ("node.k8s.io", "v1"),
        ("discovery.k8s.io", "v1"),
        ("resource.k8s.io", "v1"),
        ("flowcontrol.apiserver.k8s.io", "v1"),
    ]
    .into_iter()
    .map(|(group, versions)| (group.to_owned(), versions.split(' ').map(str::to_owned).collect()))
    .collect()
}

fn verbs(word: &str) -> Vec<String> {
    let list = match word {
        "gpu" => GPU,
        "proxy" => PROXY,
        other => other,
    };
    list.split(' ').map(str::to_owned).collect()
}

fn subresource(text: &str) -> Subresource {
    let mut parts = text.split(':');
    let mut next = || parts.next().unwrap_or_default().to_owned();
    let (name, kind, verb) = (next(), next(), next());
    let gv = next();
    let gvk = gv.split_once('/').map(|(g, v)| (g.to_owned(), v.to_owned()));
    Subresource { name, gvk, kind, verbs: verbs(&verb) }
}

fn row(&(gv, plural, kind, scope, short, _, subs): &KindRow) -> Resource {
    let (group, version) = gv.split_once('/').unwrap_or(("", gv));
    let all = matches!(
        plural,
        "pods"
            | "services"
            | "replicationcontrollers"
            | "daemonsets"
            | "deployments"
            | "replicasets"
            | "statefulsets"
            | "jobs"
            | "cronjobs"
    );
    let extends = plural == "customresourcedefinitions" || group == "admissionregistration.k8s.io";
    let extensions: &[&str] = if extends { &["api-extensions"] } else { &[] };
    // Namespaces are deleted one by one only.
    let verb_list = if plural == "namespaces" { FULL.replace("deletecollection ", "") } else { FULL.to_owned() };
    let storage = if plural == "events" { "/events".to_owned() } else { format!("{group}/{plural}") };
    Resource {
        group: group.to_owned(),
        version: version.to_owned(),
        plural: plural.to_owned(),
        singular: kind.to_lowercase(),
        kind: kind.to_owned(),
        list_kind: format!("{kind}List"),
        namespaced: scope == 'n',
        short: short.split(' ').filter(|s| !s.is_empty()).map(str::to_owned).collect(),
        categories: if all { vec!["all".to_owned()] } else { extensions.iter().map(|s| (*s).to_owned()).collect() },
        verbs: verb_list.split(' ').map(str::to_owned).collect(),
        subresources: subs.split(',').filter(|s| !s.is_empty()).map(subresource).collect(),
        storage,
        schema: builtin_schema(group, version, kind),
        custom: None,
    }
}

/// Storage version hash of a built-in resource, as recorded; empty when unknown.
pub fn storage_hash(resource: &Resource) -> &'static str {
    let gv = resource.api_version();
    ROWS.iter().find(|r| r.0 == gv && r.1 == resource.plural).map_or("", |r| r.5)
}

/// All built-in resources. The two without objects of their own come last.
pub fn resources() -> Vec<Resource> {
    static ALL: LazyLock<Vec<Resource>> = LazyLock::new(|| {
        let mut all: Vec<Resource> = ROWS.iter().map(row).collect();
        let bare = |plural: &str, kind: &str, namespaced, verbs: &str, short: &[&str]| Resource {
            group: String::new(),
            version: "v1".to_owned(),
            plural: plural.to_owned(),
            singular: kind.to_lowercase(),
            kind: kind.to_owned(),
            list_kind: format!("{kind}List"),
            namespaced,
            short: short.iter().map(|s| (*s).to_owned()).collect(),
            categories: Vec::new(),
            verbs: verbs.split(' ').map(str::to_owned).collect(),
            subresources: Vec::new(),
            storage: String::new(),
            schema: Arc::new(Schema::any()),
            custom: None,
        };
        all.push(bare("bindings", "Binding", true, "create", &[]));
        all.push(bare("componentstatuses", "ComponentStatus", false, "get list", &["cs"]));
        let review = |plural: &str, kind: &str, namespaced| Resource {
            group: "authorization.k8s.io".to_owned(),
            ..bare(plural, kind, namespaced, "create", &[])
        };
        all.push(review("localsubjectaccessreviews", "LocalSubjectAccessReview", true));
        all.push(review("selfsubjectaccessreviews", "SelfSubjectAccessReview", false));
        all.push(review("selfsubjectrulesreviews", "SelfSubjectRulesReview", false));
        all.push(review("subjectaccessreviews", "SubjectAccessReview", false));
        for (plural, kind) in [("selfsubjectreviews", "SelfSubjectReview"), ("tokenreviews", "TokenReview")] {
            all.push(Resource {
                group: "authentication.k8s.io".to_owned(),
                ..bare(plural, kind, false, "create", &[])
            });
        }
        all
    });
    ALL.clone()
}

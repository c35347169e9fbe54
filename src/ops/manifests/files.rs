//! The checked-in files, with another image and namespace in them.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;

use super::policies::with_digest;
use baton_contract::{gang, inventory, tyjob};

/// What an operator chooses without Helm.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Values {
    /// Image of every daemon.
    pub image: String,
    /// Namespace of the daemons and of their Leases.
    pub namespace: String,
}

/// The usual namespace of the daemons.
pub(super) const NAMESPACE: &str = "baton-system";

impl Default for Values {
    fn default() -> Self {
        Self { image: format!("baton:{}", env!("CARGO_PKG_VERSION")), namespace: NAMESPACE.to_owned() }
    }
}

impl Values {
    /// Name of a cluster-scoped object: with the namespace where that is not the usual one, so that two installations do not
    /// overwrite each other's.
    pub fn cluster_name(&self, name: &str) -> String {
        if self.namespace == NAMESPACE { name.to_owned() } else { format!("{name}-{}", self.namespace) }
    }
}

/// One file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct File {
    /// Below the directory.
    pub path: &'static str,
    /// Content.
    pub text: String,
    /// Belongs to the installation; examples and the kustomizations do not.
    pub applied: bool,
}

/// Files of `daemonset/` and their texts.
macro_rules! checked_in {
    ($($path:literal)+) => { [$(($path, include_str!(concat!("../../../daemonset/", $path)))),+] };
}

/// In the order in which they are applied.
const INSTALLATION: [(&str, &str); 8] = checked_in! {
    "namespace.yaml" "crds.yaml" "rbac.yaml" "admission.yaml" "network.yaml" "daemonset.yaml" "scheduler.yaml" "controller.yaml"
};

/// Where [`INSTALLATION`] has the roles.
pub(super) const RBAC: &str = INSTALLATION[2].1;

/// The scheduler that schedules by itself.
pub(super) const SCHEDULER: &str = "scheduler.yaml";
/// The scheduler that also serves kube-scheduler.
pub(super) const EXTENDER: &str = "extender/extender.yaml";
/// What keeps gangs from kube-scheduler.
pub(super) const EXTENDER_GANGS: &str = "extender/gangs.yaml";
/// How kube-scheduler finds it.
pub(super) const KUBE_SCHEDULER: &str = "extender/kube-scheduler.yaml";

const OTHERS: [(&str, &str); 17] = checked_in! {
    "kustomization.yaml"
    "components/driver-container/kustomization.yaml"
    "components/gpu-taint/kustomization.yaml"
    "components/keep-kinds/kustomization.yaml"
    "components/monitoring/kustomization.yaml"
    "components/monitoring/monitoring.yaml"
    "components/visible-devices/kustomization.yaml"
    "components/visible-devices/visible-devices.yaml"
    "components/without-policies/kustomization.yaml"
    "examples/one-gpu.yaml"
    "examples/gpu-share.yaml"
    "examples/gpu-rdma.yaml"
    "examples/multi-container.yaml"
    "examples/tyjob.yaml"
    "extender/extender.yaml"
    "extender/gangs.yaml"
    "extender/kube-scheduler.yaml"
};

/// Every file but those of the chart.
pub fn files(values: &Values) -> Vec<File> {
    let file = |(path, text): (&'static str, &str), applied| File { path, text: substituted(text, values), applied };
    let installation = INSTALLATION.into_iter().map(|of| file(of, true));
    installation.chain(OTHERS.into_iter().map(|of| file(of, false))).collect()
}

/// Every custom resource of Baton. Helm never removes a kind: the objects of that kind would go with it.
pub fn crds() -> Vec<CustomResourceDefinition> {
    let mut crds = vec![inventory::crd(), gang::pod_group::crd(), tyjob::crd()];
    for crd in &mut crds {
        let annotations = crd.metadata.annotations.get_or_insert_default();
        annotations.insert("helm.sh/resource-policy".to_owned(), "keep".to_owned());
    }
    crds
}

/// Puts another image and namespace into a checked-in text.
fn substituted(text: &str, values: &Values) -> String {
    let usual = Values::default();
    let text = text.replace(&format!("image: \"{}\"\n", usual.image), &format!("image: \"{}\"\n", values.image));
    if values.namespace == usual.namespace {
        return text;
    }
    let documents = text.split("---\n").map(|document| {
        let document = document.replace(NAMESPACE, &values.namespace);
        with_digest(with_cluster_names(document, values))
    });
    documents.collect::<Vec<_>>().join("---\n")
}

/// Kinds whose objects have no namespace and a name of one installation.
const CLUSTER_KINDS: [&str; 4] =
    ["ClusterRole", "ClusterRoleBinding", "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"];

/// What stands before the name of such an object, in it and where it is referred to.
const BEFORE_NAME: [&str; 3] = ["\nmetadata:\n  name: ", "\n  kind: ClusterRole\n  name: ", "\n  policyName: "];

fn with_cluster_names(mut document: String, values: &Values) -> String {
    if CLUSTER_KINDS.iter().any(|kind| document.contains(&format!("\nkind: {kind}\n"))) {
        for before in BEFORE_NAME {
            let Some(start) = document.find(before).map(|at| at + before.len()) else { continue };
            let end = document[start..].find('\n').map_or(document.len(), |length| start + length);
            let name = values.cluster_name(&document[start..end]);
            document.replace_range(start..end, &name);
        }
    }
    document
}

#[cfg(test)]
mod tests {
    use super::*;
    use baton_contract::key;
    use k8s_openapi::api::{admissionregistration as admission, apps, coordination, core, networking, policy, rbac};
    use serde_json::Value;
    use std::time::Duration;

    fn documents(text: &str) -> Vec<Value> {
        serde_saphyr::from_str_multiple::<Value, Vec<Value>>(text).unwrap()
    }

    /// What was written must survive; empty objects may be added.
    fn within(written: &Value, back: &mut Value, place: &str) {
        match (written, &mut *back) {
            (Value::Object(written), Value::Object(back)) => {
                for (key, value) in written {
                    let place = format!("{place}.{key}");
                    let kept = back.get_mut(key).unwrap_or_else(|| panic!("{place} is no field of its type"));
                    within(value, kept, &place);
                }
            }
            (Value::Array(written), Value::Array(back)) => {
                assert_eq!(written.len(), back.len(), "{place}");
                written.iter().zip(back).for_each(|(written, back)| within(written, back, place));
            }
            // Quantities and IntOrString may change between number and string.
            (written, back) => {
                assert_eq!(written.to_string().trim_matches('"'), back.to_string().trim_matches('"'), "{place}");
            }
        }
    }

    /// Reads a document as its Kubernetes type and back: a field that the type does not know is lost on the way.
    fn typed<T: serde::de::DeserializeOwned + serde::Serialize>(document: &Value, place: &str) {
        let typed: T = serde_json::from_value(document.clone()).unwrap_or_else(|error| panic!("{place}: {error}"));
        let mut back = serde_json::to_value(&typed).unwrap();
        within(document, &mut back, place);
    }

    #[test]
    fn every_document_is_an_object_of_its_kind_without_unknown_fields() {
        let mut kinds = Vec::new();
        for file in files(&Values::default()) {
            assert!(file.text.ends_with('\n') && !file.text.starts_with("---"), "{}", file.path);
            for document in documents(&file.text) {
                let kind = document["kind"].as_str().unwrap().to_owned();
                let place = format!("{}: {kind}", file.path);
                match kind.as_str() {
                    "Namespace" => typed::<core::v1::Namespace>(&document, &place),
                    "ServiceAccount" => typed::<core::v1::ServiceAccount>(&document, &place),
                    "Lease" => typed::<coordination::v1::Lease>(&document, &place),
                    "Pod" => typed::<core::v1::Pod>(&document, &place),
                    "DaemonSet" => typed::<apps::v1::DaemonSet>(&document, &place),
                    "Deployment" => typed::<apps::v1::Deployment>(&document, &place),
                    "PodDisruptionBudget" => typed::<policy::v1::PodDisruptionBudget>(&document, &place),
                    "NetworkPolicy" => typed::<networking::v1::NetworkPolicy>(&document, &place),
                    "ClusterRole" => typed::<rbac::v1::ClusterRole>(&document, &place),
                    "ClusterRoleBinding" => typed::<rbac::v1::ClusterRoleBinding>(&document, &place),
                    "Role" => typed::<rbac::v1::Role>(&document, &place),
                    "RoleBinding" => typed::<rbac::v1::RoleBinding>(&document, &place),
                    "ValidatingAdmissionPolicy" => typed::<admission::v1::ValidatingAdmissionPolicy>(&document, &place),
                    "ValidatingAdmissionPolicyBinding" => {
                        typed::<admission::v1::ValidatingAdmissionPolicyBinding>(&document, &place);
                    }
                    "CustomResourceDefinition" => typed::<CustomResourceDefinition>(&document, &place),
                    "Service" => typed::<core::v1::Service>(&document, &place),
                    "Secret" => typed::<core::v1::Secret>(&document, &place),
                    "ConfigMap" => typed::<core::v1::ConfigMap>(&document, &place),
                    "TYJob" => typed::<tyjob::TyJob>(&document, &place),
                    "Kustomization" | "Component" | "KubeSchedulerConfiguration" | "PodMonitor" | "PrometheusRule" => {}
                    other => panic!("{place}: {other} is not checked"),
                }
                kinds.push(kind);
            }
        }
        for kind in ["DaemonSet", "Deployment", "PodDisruptionBudget", "CustomResourceDefinition", "ClusterRole", "Pod"]
        {
            assert!(kinds.iter().any(|found| found == kind), "no {kind}");
        }
    }

    #[test]
    fn the_kustomization_names_every_file_of_the_installation() {
        let files = files(&Values::default());
        let kustomization = files.iter().find(|file| file.path == "kustomization.yaml").unwrap();
        let listed = documents(&kustomization.text)[0]["resources"].clone();
        let applied: Vec<&str> = files.iter().filter(|file| file.applied).map(|file| file.path).collect();
        assert_eq!(listed, serde_json::json!(applied));
    }

    #[test]
    fn the_flags_of_the_manifests_exist() {
        let files = files(&Values::default());
        for file in ["daemonset.yaml", "scheduler.yaml", "controller.yaml", "extender/extender.yaml"] {
            let text = &files.iter().find(|found| found.path == file).unwrap().text;
            let documents = documents(text);
            let workload = documents.iter().find(|document| document.pointer("/spec/template").is_some()).unwrap();
            let container = &workload["spec"]["template"]["spec"]["containers"][0];
            // The image's entrypoint is `baton`.
            let entrypoint = serde_json::json!(["/usr/bin/baton"]);
            let program = if container["command"].is_null() { &entrypoint } else { &container["command"] };
            let line = [program, &container["args"]].into_iter().filter_map(Value::as_array).flatten();
            let line: Vec<&str> = line.filter_map(Value::as_str).collect();
            let command = match line[0] {
                "/usr/bin/baton" => crate::cli::command(),
                "/usr/bin/baton-device-plugin" => crate::cli::node_daemon("baton-device-plugin"),
                other => panic!("{file}: the image has no {other}"),
            };
            command.try_get_matches_from(line).unwrap_or_else(|error| panic!("{file}: {error}"));
        }
    }

    #[test]
    fn the_configuration_of_kube_scheduler_names_every_verb_limit_and_device() {
        let files = files(&Values::default());
        let config = documents(&files.iter().find(|file| file.path == KUBE_SCHEDULER).unwrap().text);
        let extender = &config[0]["extenders"][0];
        for (key, verb) in [("filterVerb", "filter"), ("prioritizeVerb", "prioritize"), ("preemptVerb", "preempt")] {
            assert_eq!(extender[key], verb);
        }
        let expected =
            [("bindVerb", serde_json::json!("bind")), ("nodeCacheCapable", true.into()), ("weight", 5.into())];
        for (key, value) in expected {
            assert_eq!(extender[key], value, "{key}");
        }
        let timeout: Duration = humantime::parse_duration(extender["httpTimeout"].as_str().unwrap()).unwrap();
        assert!(timeout > baton_scheduler::SchedulerTimings::default().bind_wait);
        let managed = extender["managedResources"].as_array().unwrap();
        assert!(managed.iter().all(|resource| resource["ignoredByScheduler"] == true));
        let names: Vec<&str> = managed.iter().filter_map(|resource| resource["name"].as_str()).collect();
        assert!(names.iter().all(|name| key::is_device_resource(name)), "{names:?}");
        for name in key::GPU_DELIVERY_ORDER.into_iter().chain([key::GPU_MEMORY, key::RDMA]) {
            assert!(names.contains(&name), "{name} is missing");
        }
        let profiles: Vec<&str> = names.iter().filter_map(|name| name.strip_prefix(key::MIG_PREFIX)).collect();
        assert!(profiles.len() > 50 && profiles.is_sorted_by(|a, b| size(a) <= size(b)), "{profiles:?}");
    }

    /// Slices and gigabytes of a MIG profile as the node daemon registers it, such as `1g.24gb.me.all` or `1g.24gb-me`.
    fn size(profile: &str) -> (u32, u32) {
        let (slices, rest) = profile.split_once("g.").unwrap_or_else(|| panic!("{profile}"));
        let (gigabytes, more) = rest.split_once("gb").unwrap_or_else(|| panic!("{profile}"));
        assert!(["", ".me", ".me.all", "-me", ".gfx"].contains(&more), "{profile}");
        (slices.parse().unwrap(), gigabytes.parse().unwrap())
    }

    #[test]
    fn an_examples_requests_are_valid() {
        use baton_contract::ContainerRequest;
        let mut judged = 0;
        for file in files(&Values::default()).iter().filter(|file| file.path.starts_with("examples/")) {
            for object in documents(&file.text) {
                let spec = &object["spec"];
                let pods: Vec<&Value> = if object["kind"] == "TYJob" {
                    let job: tyjob::TyJob = serde_json::from_value(object.clone()).unwrap();
                    assert_eq!(tyjob::validate(&job), [], "{}", file.path);
                    let sets = spec["workerSets"].as_array().unwrap();
                    std::iter::once(&spec["leader"]).chain(sets).map(|part| &part["template"]["spec"]).collect()
                } else {
                    assert_eq!(spec["schedulerName"], "baton-scheduler", "{}", file.path);
                    vec![spec]
                };
                let lists = pods.into_iter().flat_map(|pod| [&pod["containers"], &pod["initContainers"]]);
                for container in lists.filter_map(Value::as_array).flatten() {
                    let limits = container["resources"]["limits"].as_object().cloned().unwrap_or_default();
                    let limits = limits.iter().map(|(name, amount)| {
                        let text = amount.as_str().map_or_else(|| amount.to_string(), str::to_owned);
                        (name.as_str(), text.parse().unwrap())
                    });
                    ContainerRequest::judge(limits).unwrap_or_else(|error| panic!("{}: {error}", file.path));
                    judged += 1;
                }
            }
        }
        assert!(judged >= 8, "only {judged} containers");
    }

    #[test]
    fn the_schedulers_of_both_installations_are_found_by_the_same_labels() {
        for path in [SCHEDULER, EXTENDER] {
            let files = files(&Values::default());
            let text = &files.iter().find(|file| file.path == path).unwrap().text;
            let documents = documents(text);
            let workload = documents.iter().find(|document| document["kind"] == "Deployment").unwrap();
            let labels = &workload["spec"]["template"]["metadata"]["labels"];
            for (label, value) in crate::leader::LABELS.split(',').filter_map(|pair| pair.split_once('=')) {
                assert_eq!(labels[label], value, "{path}");
            }
        }
    }

    #[test]
    fn another_image_and_namespace_reach_every_file() {
        let (image, namespace) = ("registry.example/baton:2".to_owned(), "gpu-system".to_owned());
        let values = Values { image, namespace };
        for file in files(&values) {
            assert!(!file.text.contains(NAMESPACE), "{}", file.path);
            assert!(!file.text.contains(&format!("\"{}\"", Values::default().image)), "{}", file.path);
            for document in documents(&file.text) {
                let kind = document["kind"].as_str().unwrap();
                let ours = CLUSTER_KINDS.contains(&kind);
                assert_eq!(
                    document["metadata"]["name"].as_str().is_some_and(|name| name.ends_with("-gpu-system")),
                    ours,
                    "{}: {kind}",
                    file.path
                );
            }
        }
    }
}

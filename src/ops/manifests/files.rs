//! The files of `daemonset/`: templates filled with the constants of the code, RBAC from its table, CRDs from their types.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;

use super::choices::{Kinds, Values};
use super::dashboards::dashboards;
use super::{mig, policies, rbac};
use crate::config::print_yaml;
use baton_contract::{gang, inventory, key, tyjob};
use baton_scheduler::extender::ExtenderOptions;

/// One generated file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct File {
    /// Below the directory.
    pub path: String,
    /// Content.
    pub text: String,
    /// Belongs to the installation; examples and the kustomization do not.
    pub applied: bool,
}

/// Every custom resource of Baton.
pub fn crds() -> Vec<CustomResourceDefinition> {
    vec![inventory::crd(), gang::pod_group::crd(), tyjob::crd()]
}

/// Those that are chosen.
pub(super) fn chosen(kinds: Kinds) -> Vec<CustomResourceDefinition> {
    match kinds {
        Kinds::All => crds(),
        Kinds::Own => vec![tyjob::crd()],
        Kinds::None => Vec::new(),
    }
}

pub(super) const CRDS: &str = "crds.yaml";
pub(super) const NAMESPACES: &str = "namespace.yaml";
pub(super) const NETWORK: &str = "network.yaml";
const ADMISSION: &str = "admission.yaml";
/// What the Prometheus operator and Grafana read.
pub(super) const MONITORING: &str = "monitoring.yaml";
/// The scheduler that schedules by itself.
pub(super) const SCHEDULER: &str = "scheduler.yaml";
/// The scheduler that also serves kube-scheduler.
pub(super) const EXTENDER: &str = "extender/extender.yaml";
/// What keeps gangs from kube-scheduler.
pub(super) const EXTENDER_GANGS: &str = "extender/gangs.yaml";
/// How kube-scheduler finds it.
pub(super) const KUBE_SCHEDULER: &str = "extender/kube-scheduler.yaml";

/// Template, where it goes, whether it is part of the installation.
const TEMPLATES: [(&str, &str, bool); 14] = [
    (NAMESPACES, include_str!("templates/namespace.yaml"), true),
    (NETWORK, include_str!("templates/network.yaml"), true),
    ("daemonset.yaml", include_str!("templates/daemonset.yaml"), true),
    (SCHEDULER, include_str!("templates/scheduler.yaml"), true),
    ("controller.yaml", include_str!("templates/controller.yaml"), true),
    ("kustomization.yaml", include_str!("templates/kustomization.yaml"), false),
    ("examples/one-gpu.yaml", include_str!("templates/examples/one-gpu.yaml"), false),
    ("examples/gpu-share.yaml", include_str!("templates/examples/gpu-share.yaml"), false),
    ("examples/gpu-rdma.yaml", include_str!("templates/examples/gpu-rdma.yaml"), false),
    ("examples/multi-container.yaml", include_str!("templates/examples/multi-container.yaml"), false),
    ("examples/tyjob.yaml", include_str!("templates/examples/tyjob.yaml"), false),
    (EXTENDER, include_str!("templates/extender/extender.yaml"), false),
    (EXTENDER_GANGS, include_str!("templates/extender/gangs.yaml"), false),
    (KUBE_SCHEDULER, include_str!("templates/extender/kube-scheduler.yaml"), false),
];

/// Every file, in the order in which they are applied.
pub fn files(values: &Values) -> anyhow::Result<Vec<File>> {
    let template =
        |(path, text, applied): (&str, &str, bool)| File { path: path.to_owned(), text: fill(text, values), applied };
    let mut files: Vec<File> = TEMPLATES.into_iter().map(template).collect();
    files.retain(|file| values.admission.on || file.path != EXTENDER_GANGS);
    let documents: Vec<String> = chosen(values.crds).iter().map(print_yaml).collect::<Result<_, _>>()?;
    let crds = File { path: CRDS.to_owned(), text: documents.join("---\n"), applied: true };
    let rbac = File { path: "rbac.yaml".to_owned(), text: rbac::yaml(values), applied: true };
    let admission = File { path: ADMISSION.to_owned(), text: policies::yaml(values)?, applied: true };
    let monitoring = File { path: MONITORING.to_owned(), text: monitoring(values)?, applied: values.monitoring };
    files.push(monitoring);
    let generated = [crds, rbac, admission].into_iter().filter(|file| !file.text.is_empty());
    files.splice(1..1, generated);
    Ok(files)
}

/// Collector, alerts, and a ConfigMap for each dashboard.
fn monitoring(values: &Values) -> anyhow::Result<String> {
    let lines = include_str!("templates/monitoring.yaml").split_inclusive('\n');
    let template: String = lines.filter(|line| values.docs_url.is_some() || !line.contains("${docs_url}")).collect();
    let mut text = fill(&template, values);
    for (name, dashboard) in dashboards() {
        let head = fill(include_str!("templates/dashboard.yaml"), values).replace("${name}", name);
        text.extend(["---\n", &head, &indented(&serde_json::to_string_pretty(&dashboard)?, "    ")]);
    }
    Ok(text)
}

/// Every line with this before it.
pub(super) fn indented(text: &str, by: &str) -> String {
    text.lines().flat_map(|line| [by, line, "\n"]).collect()
}

/// One managed resource of kube-scheduler for each profile.
fn mig_profiles() -> String {
    let entry = |name: String| ["  - name: ", &name, "\n    ignoredByScheduler: true\n"].concat();
    mig::resources().into_iter().map(entry).collect()
}

/// Puts values and names of the contract into a template.
fn fill(template: &str, values: &Values) -> String {
    let (image_name, image_version) = split_image(&values.image);
    let crds = if values.crds == Kinds::None { String::new() } else { format!("- {CRDS}\n") };
    let lock_key = match values.admission.lock_key.as_str() {
        key::NODE_LOCK => String::new(),
        key => format!("        - --node-lock-key={key}\n"),
    };
    let serves = if values.admission.unassigned { "        - --unassigned-pods=serve\n" } else { "" };
    let block = |cidr: &String| format!("    - ipBlock:\n        cidr: {cidr}\n");
    let from = values.admin_from.iter().map(block).collect::<String>();
    let from = if from.is_empty() { from } else { format!("    from:\n{from}") };
    let admission = if values.admission.on { format!("- {ADMISSION}\n") } else { String::new() };
    [
        ("${crds}", crds.as_str()),
        ("${admission}", admission.as_str()),
        ("${monitoring}", if values.monitoring { "- monitoring.yaml\n" } else { "" }),
        ("${docs_url}", values.docs_url.as_deref().unwrap_or_default()),
        ("${suffix}", &values.cluster_name("")),
        ("${admin_from}", from.as_str()),
        ("${agent_flags}", &format!("{lock_key}{serves}")),
        ("${scheduler_args}", &lock_key),
        ("${image}", values.image.as_str()),
        ("${image_name}", image_name),
        ("${image_version}", &image_version),
        ("${namespace}", &values.namespace),
        ("${nvidia_gpu}", key::NVIDIA_GPU),
        ("${gpu}", key::GPU),
        ("${gpu_core}", key::GPU_CORE),
        ("${gpu_memory}", key::GPU_MEMORY),
        ("${gpu_shared}", key::GPU_SHARED),
        ("${mig_profiles}", &mig_profiles()),
        ("${gpu_memory_ratio}", key::GPU_MEMORY_RATIO),
        ("${rdma}", key::RDMA),
        ("${joint_allocate}", key::DEVICE_JOINT_ALLOCATE),
        ("${gang_keys}", &policies::list(gang::key::POD_KEYS.iter().map(|place| place.key))),
        (
            "${kube_scheduler_names}",
            &policies::list(ExtenderOptions::default().scheduler_names.iter().map(String::as_str)),
        ),
    ]
    .into_iter()
    .fold(template.to_owned(), |text, (name, value)| text.replace(name, value))
}

/// Name of an image, and its tag or digest as a kustomization says it. A `:` before the last `/` belongs to a port.
fn split_image(image: &str) -> (&str, String) {
    if let Some((name, digest)) = image.split_once('@') {
        let tagged = name.rsplit_once(':').filter(|(_, tag)| !tag.contains('/'));
        let name = tagged.map_or(name, |(name, _)| name);
        return (name, format!("digest: {digest}"));
    }
    match image.rsplit_once(':').filter(|(_, tag)| !tag.contains('/')) {
        Some((name, tag)) => (name, format!("newTag: \"{tag}\"")),
        None => (image, "newTag: latest".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::super::choices::Admission;
    use super::*;
    use k8s_openapi::api::{admissionregistration as admission, apps, core, networking, policy, rbac};
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
        for file in files(&Values::default()).unwrap() {
            assert!(!file.text.contains("${"), "{}: a value is not filled in", file.path);
            assert!(file.text.ends_with('\n') && !file.text.starts_with("---"), "{}", file.path);
            for document in documents(&file.text) {
                let kind = document["kind"].as_str().unwrap().to_owned();
                let place = format!("{}: {kind}", file.path);
                match kind.as_str() {
                    "Namespace" => typed::<core::v1::Namespace>(&document, &place),
                    "ServiceAccount" => typed::<core::v1::ServiceAccount>(&document, &place),
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
                    "Kustomization" | "KubeSchedulerConfiguration" | "PodMonitor" | "PrometheusRule" => {}
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
        let files = files(&Values { monitoring: true, ..Values::default() }).unwrap();
        let kustomization = files.iter().find(|file| file.path == "kustomization.yaml").unwrap();
        let listed = documents(&kustomization.text)[0]["resources"].clone();
        let applied: Vec<&str> = files.iter().filter(|file| file.applied).map(|file| file.path.as_str()).collect();
        assert_eq!(listed, serde_json::json!(applied));
    }

    #[test]
    fn the_flags_of_the_manifests_exist() {
        let admission =
            Admission { lock_key: "other.example/lock".to_owned(), unassigned: true, ..Admission::default() };
        let files = files(&Values { admission, ..Values::default() }).unwrap();
        for (file, flags) in
            [("daemonset.yaml", 2), ("scheduler.yaml", 1), ("controller.yaml", 0), ("extender/extender.yaml", 1)]
        {
            let text = &files.iter().find(|found| found.path == file).unwrap().text;
            let documents = documents(text);
            let workload = documents.iter().find(|document| document["kind"] != "Service").unwrap();
            let container = &workload["spec"]["template"]["spec"]["containers"][0];
            // The image's entrypoint is `baton`.
            let entrypoint = serde_json::json!(["/usr/bin/baton"]);
            let program = if container["command"].is_null() { &entrypoint } else { &container["command"] };
            let line = [program, &container["args"]].into_iter().filter_map(Value::as_array).flatten();
            let line: Vec<&str> = line.filter_map(Value::as_str).collect();
            assert!(line.iter().filter(|word| word.starts_with("--")).count() >= flags, "{file}: {line:?}");
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
        let files = files(&Values::default()).unwrap();
        let config = documents(&files.iter().find(|file| file.path == "extender/kube-scheduler.yaml").unwrap().text);
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
    }

    #[test]
    fn an_examples_requests_are_valid() {
        use baton_contract::ContainerRequest;
        let mut judged = 0;
        for file in files(&Values::default()).unwrap().iter().filter(|file| file.path.starts_with("examples/")) {
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
    fn an_image_has_a_tag_a_digest_or_neither() {
        for (image, name, version) in [
            ("baton:0.1.0", "baton", "newTag: \"0.1.0\""),
            ("reg:5000/baton", "reg:5000/baton", "newTag: latest"),
            ("reg:5000/baton:2", "reg:5000/baton", "newTag: \"2\""),
            ("r/b@sha256:abc", "r/b", "digest: sha256:abc"),
            ("reg:5000/b:1@sha256:abc", "reg:5000/b", "digest: sha256:abc"),
        ] {
            assert_eq!(split_image(image), (name, version.to_owned()), "{image}");
            let values = Values { image: image.to_owned(), ..Values::default() };
            let files = files(&values).unwrap();
            let text = &files.iter().find(|file| file.path == "kustomization.yaml").unwrap().text;
            let images = documents(text)[0]["images"].clone();
            assert_eq!((&images[0]["name"], &images[0]["newName"]), (&name.into(), &name.into()), "{text}");
        }
    }

    #[test]
    fn crds_that_other_systems_install_can_be_left_out() {
        let names = |crds| {
            let files = files(&Values { crds, ..Values::default() }).unwrap();
            let kustomization = &files.iter().find(|file| file.path == "kustomization.yaml").unwrap().text;
            let file = files.iter().find(|file| file.path == CRDS);
            assert_eq!(kustomization.contains("\n- crds.yaml\n- rbac.yaml\n"), file.is_some(), "{kustomization}");
            let documents = file.map(|file| documents(&file.text)).unwrap_or_default();
            let name = |crd: &Value| crd["metadata"]["name"].as_str().unwrap().split('.').next().unwrap().to_owned();
            documents.iter().map(name).collect::<Vec<_>>()
        };
        assert_eq!(names(Kinds::All), ["devices", "podgroups", "tyjobs"]);
        assert_eq!(names(Kinds::Own), ["tyjobs"]);
        assert!(names(Kinds::None).is_empty());
    }

    #[test]
    fn the_schedulers_of_both_installations_are_found_by_the_same_labels() {
        for path in [SCHEDULER, EXTENDER] {
            let files = files(&Values::default()).unwrap();
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
        let values = Values { image, namespace, ..Values::default() };
        for file in files(&values).unwrap().iter().filter(|file| file.applied) {
            assert!(
                !file.text.contains("baton-system") && !file.text.contains(&Values::default().image),
                "{}",
                file.path
            );
        }
    }
}

//! Manifests as people write them, read as the API server would store it: for "what if".

use serde_json::{Map, Value, json};

use baton_cluster::pod::LightPod;
use baton_cluster::pod_defaults;
use baton_cluster::pod_group::RawPodGroup;
use baton_contract::gang::PodGroupApi;
use baton_contract::tyjob::keys;
use baton_contract::{Quantity, QuantityError};
use baton_decide::explain::{Unadmitted, UnadmittedObject};
use baton_runtime::yaml_words;

/// A manifest that is no pod. The text says where and what was expected.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ManifestError {
    /// No YAML.
    #[error("line {line}, column {column}: {problem}")]
    Yaml {
        /// From 1.
        line: u64,
        /// From 1.
        column: u64,
        /// What is wrong.
        problem: String,
    },
    /// Another kind of object.
    #[error(
        "kind is {0:?}: what-if judges Pods (apiVersion: v1), Jobs, Deployments, ReplicaSets, StatefulSets, TYJobs and Lists of them"
    )]
    Kind(String),
    /// What is wrong with one of several documents.
    #[error("document {0}: {1}")]
    Document(usize, Box<Self>),
    /// A field that a pod cannot have like this.
    #[error("{0}")]
    Field(String),
}

/// Most pods that are judged together.
const MOST: usize = 256;

/// Reads the objects of a text, YAML or JSON: several documents, Lists, and what makes pods. Each pod is filled in as the API server would,
/// but for what only the cluster knows.
pub fn read_all(text: &str) -> Result<Vec<UnadmittedObject>, ManifestError> {
    let documents: Vec<Value> = serde_saphyr::from_str_multiple(text).map_err(|error| yaml(&error))?;
    let mut objects = Vec::new();
    let (many, given) = (documents.len() > 1, (1..).zip(documents));
    for (at, document) in given.filter(|(_, document)| !document.is_null() && *document != "") {
        let items = match document {
            Value::Object(mut list)
                if list.get("kind").and_then(Value::as_str).is_some_and(|kind| kind.ends_with("List")) =>
            {
                list.remove("items").and_then(|items| items.as_array().cloned()).unwrap_or_default()
            }
            other => vec![other],
        };
        for item in items {
            // What templates refer to is known from the cluster.
            let object = pods_of(item);
            if let Some(object) =
                object.map_err(|error| if many { ManifestError::Document(at, error.into()) } else { error })?
            {
                objects.push(object);
            }
        }
    }
    let pods: usize = objects.iter().map(|object| object.pods.len()).sum();
    if pods == 0 {
        let text = "the manifest is empty: it is to have a Pod (kind: Pod, apiVersion: v1), or what makes pods";
        return Err(ManifestError::Field(text.to_owned()));
    }
    if pods > MOST {
        return Err(ManifestError::Field(format!("the objects have {pods} pods: {MOST} are judged at most")));
    }
    Ok(objects)
}

/// The pods that an object would have, or the gang that it declares; `None` for what a template refers to.
fn pods_of(object: Value) -> Result<Option<UnadmittedObject>, ManifestError> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let (kind, version) = (text(&object["kind"]), text(&object["apiVersion"]));
    let (namespace, name) = (text(&object["metadata"]["namespace"]), text(&object["metadata"]["name"]));
    let namespace = if namespace.is_empty() { "default".to_owned() } else { namespace };
    let spec = &object["spec"];
    let count = |field: &str| spec[field].as_u64().unwrap_or(1).min(MOST as u64 + 1) as usize;
    let (templates, together) = match (&*kind, &*version) {
        ("Pod", "v1") => {
            let pod = admit(object)?;
            let name = format!("Pod {}", pod.facts.handoff.pod.key);
            return Ok(Some(UnadmittedObject { name, pods: vec![pod], ..UnadmittedObject::default() }));
        }
        ("PodGroup", _) => {
            let api = PodGroupApi::ALL.into_iter().find(|api| version.starts_with(&format!("{}/", api.group())));
            let Some(api) = api else { return Ok(None) };
            let mut object = object;
            if let Some(metadata) = object["metadata"].as_object_mut() {
                metadata.insert("namespace".to_owned(), json!(namespace));
            }
            let raw = serde_json::from_value::<RawPodGroup>(object);
            let raw = raw.map_err(|error| ManifestError::Field(format!("PodGroup {namespace}/{name}: {error}")))?;
            let pod_group = raw.facts(api).map(Box::new);
            return Ok(Some(UnadmittedObject { pod_group, ..UnadmittedObject::default() }));
        }
        ("ConfigMap" | "Service" | "Secret" | "ServiceAccount" | "Namespace" | "PersistentVolumeClaim", _) => {
            return Ok(None);
        }
        ("Job", "batch/v1") => (vec![(String::new(), &spec["template"], count("parallelism"))], 0),
        ("Deployment" | "ReplicaSet" | "StatefulSet", "apps/v1") | ("ReplicationController", "v1") => {
            (vec![(String::new(), &spec["template"], count("replicas"))], 0)
        }
        (keys::KIND, _) => {
            let leader = &spec["leader"];
            let mut templates = vec![(format!("{}-", text(&leader["name"])), &leader["template"], 1)];
            for set in spec["workerSets"].as_array().into_iter().flatten() {
                let counts = set["counts"].as_u64().unwrap_or(1).min(MOST as u64 + 1) as usize;
                templates.push((format!("{}-", text(&set["name"])), &set["template"], counts));
            }
            let all = templates.iter().map(|(_, _, count)| count).sum();
            let is_gang = spec["schedulerPolicy"]["basicPolicy"] == "Gang";
            (templates, if is_gang { all } else { 1 + count("minWorkersNum") })
        }
        _ if kind == "Pod" => return Err(ManifestError::Kind(format!("{version}/Pod"))),
        _ => return Err(ManifestError::Kind(kind)),
    };
    let mut pods = Vec::new();
    for (part, template, count) in templates {
        for at in 0..count.min(MOST + 1) {
            pods.push(admit(pod_of(template, &kind, &namespace, &format!("{name}-{part}{at}")))?);
        }
    }
    let (name, is_tyjob) = (format!("{kind} {namespace}/{name}"), kind == keys::KIND);
    Ok(Some(UnadmittedObject { name, pods, together, is_tyjob, pod_group: None }))
}

/// A pod of this name, as the controller of this kind makes it of its template.
fn pod_of(template: &Value, kind: &str, namespace: &str, name: &str) -> Value {
    let mut pod =
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": template["metadata"], "spec": template["spec"]});
    if !pod["metadata"].is_object() {
        pod["metadata"] = json!({});
    }
    pod["metadata"]["namespace"] = json!(namespace);
    pod["metadata"]["uid"] = json!(format!("what-if-{kind}-{namespace}-{name}"));
    pod["metadata"]["name"] = json!(name);
    if kind == keys::KIND {
        // Unless the controller was told another one.
        pod["spec"]["schedulerName"] = json!("baton-scheduler");
    }
    pod
}

fn yaml(error: &serde_saphyr::Error) -> ManifestError {
    let (line, column) = error.location().map_or((1, 1), |at| (at.line(), at.column()));
    let full = error.without_snippet().to_string();
    let problem = full.lines().next().unwrap_or_default();
    let problem = problem.split(" at line ").next().unwrap_or(problem).trim_start_matches("error: ");
    ManifestError::Yaml { line, column, problem: yaml_words(problem) }
}

/// A pod as the API server would store it.
fn admit(mut pod: Value) -> Result<Unadmitted, ManifestError> {
    if let Some(problem) = without_containers(&pod["spec"]) {
        return Err(ManifestError::Field(problem));
    }
    default_names(&mut pod);
    default_spec(&mut pod["spec"])?;
    pod_defaults::fill(&mut pod);
    let text = |value: &Value| value.as_str().filter(|text| !text.is_empty()).map(str::to_owned);
    let class = text(&pod["spec"]["priorityClassName"]).map(Into::into);
    let priority = pod["spec"]["priority"].as_i64().map(|priority| priority as i32);
    let never_preempts = text(&pod["spec"]["preemptionPolicy"]).map(|policy| policy == "Never");
    // Reading a key by index has made those that were absent.
    if let Some(fields) = pod["spec"].as_object_mut() {
        fields.retain(|_, value| !value.is_null());
    }
    let pod: LightPod = serde_json::from_value(pod).map_err(|error| ManifestError::Field(error.to_string()))?;
    Ok(Unadmitted { facts: pod.facts(), class, priority, never_preempts })
}

fn default_names(pod: &mut Value) {
    if !pod["metadata"].is_object() {
        pod["metadata"] = json!({});
    }
    let metadata = &mut pod["metadata"];
    let prefix = metadata["generateName"].as_str().map(|prefix| format!("{prefix}what-if"));
    for (key, value) in [
        ("namespace", "default".to_owned()),
        ("name", prefix.unwrap_or_else(|| "what-if".to_owned())),
        ("uid", "what-if".to_owned()),
    ] {
        if metadata[key].as_str().is_none_or(str::is_empty) {
            metadata[key] = json!(value);
        }
    }
    // Set by servers only.
    for key in ["deletionTimestamp", "creationTimestamp", "managedFields"] {
        metadata.as_object_mut().map(|fields| fields.remove(key));
    }
    pod.as_object_mut().map(|fields| fields.remove("status"));
}

fn default_spec(spec: &mut Value) -> Result<(), ManifestError> {
    spec.as_object_mut().map(|fields| fields.remove("nodeName"));
    if spec["schedulerName"].is_null() {
        spec["schedulerName"] = json!("default-scheduler");
    }
    for list in ["initContainers", "containers"] {
        for (at, container) in spec[list].as_array_mut().into_iter().flatten().enumerate() {
            if !container.is_object() {
                return Err(ManifestError::Field(format!("spec.{list}[{at}] is {container}: expected a container")));
            }
            amounts(&mut container["resources"], &format!("spec.{list}[{at}].resources"))?;
            let ports = container.get_mut("ports").and_then(Value::as_array_mut);
            if let Some((number, port)) = ports.into_iter().flatten().enumerate().find(|(_, port)| !port.is_object()) {
                let problem = format!("is {port}: expected `containerPort: number`");
                return Err(ManifestError::Field(format!("spec.{list}[{at}].ports[{number}] {problem}")));
            }
        }
    }
    if spec["resources"].is_object() {
        amounts(&mut spec["resources"], "spec.resources")?;
    }
    if let Some(overhead) = spec["overhead"].as_object_mut() {
        quantities(overhead, "spec.overhead")?;
    }
    Ok(())
}

fn amounts(resources: &mut Value, path: &str) -> Result<(), ManifestError> {
    for part in ["requests", "limits"] {
        match resources.get_mut(part) {
            None | Some(Value::Null) => {}
            Some(Value::Object(list)) => quantities(list, &format!("{path}.{part}"))?,
            Some(other) => {
                return Err(ManifestError::Field(format!("{path}.{part} is {other}: expected `name: amount` lines")));
            }
        }
    }
    if let Some(fields) = resources.as_object_mut() {
        fields.retain(|_, value| !value.is_null());
    }
    if resources.is_null() {
        *resources = json!({});
    }
    Ok(())
}

/// Amounts may be written as numbers; the API server makes texts of them.
fn quantities(list: &mut Map<String, Value>, path: &str) -> Result<(), ManifestError> {
    for (name, amount) in list {
        let text = match amount {
            Value::String(text) => text.clone(),
            Value::Number(number) => number.to_string(),
            other => return Err(ManifestError::Field(format!("{path}.{name} is {other}: expected an amount"))),
        };
        let bad = |error: QuantityError| ManifestError::Field(format!("{path}.{name}: {}", error.of(name)));
        text.parse::<Quantity>().map_err(bad)?;
        *amount = Value::String(text);
    }
    Ok(())
}

/// Why there are no containers; `None` where there are some.
fn without_containers(spec: &Value) -> Option<String> {
    const NEEDED: &str = "a pod has at least one container";
    match &spec["containers"] {
        Value::Array(list) if !list.is_empty() => None,
        Value::Array(_) => Some(format!("spec.containers is empty: {NEEDED}")),
        Value::Null if !spec["container"].is_null() => Some(
            "spec.containers is missing, and a pod has no field spec.container: did you mean containers?".to_owned(),
        ),
        Value::Null => Some(format!("spec.containers is missing: {NEEDED}")),
        other => Some(format!("spec.containers is {other}: expected a list of containers")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The one pod of a text.
    fn read(text: &str) -> Result<Unadmitted, ManifestError> {
        read_all(text).map(|mut objects| objects.remove(0).pods.remove(0))
    }

    #[test]
    fn every_object_that_makes_pods_is_read() {
        let template = "template: {metadata: {labels: {a: b}}, spec: {containers: [{name: c}]}}";
        let text = format!(
            "{POD}---\napiVersion: batch/v1\nkind: Job\nmetadata: {{name: j}}\nspec: {{parallelism: 3, {template}}}\n---\n\
             apiVersion: v1\nkind: List\nitems:\n- {{apiVersion: apps/v1, kind: Deployment, metadata: {{name: d, namespace: ml}}, \
             spec: {{replicas: 2, {template}}}}}\n- {{apiVersion: v1, kind: Service, metadata: {{name: s}}}}\n---\n\
             apiVersion: arranger.taichu.io/v1alpha1\nkind: TYJob\nmetadata: {{name: t}}\nspec: {{leader: {{name: l, {template}}}, \
             workerSets: [{{name: w, counts: 2, {template}}}]}}\n"
        );
        let objects = read_all(&text).unwrap();
        let found: Vec<(&str, usize, usize)> =
            objects.iter().map(|object| (&*object.name, object.pods.len(), object.together)).collect();
        let wanted =
            [("Pod default/a", 1, 0), ("Job default/j", 3, 0), ("Deployment ml/d", 2, 0), ("TYJob default/t", 3, 2)];
        assert_eq!(found, wanted);
        let names: Vec<String> = objects[3].pods.iter().map(|pod| pod.facts.handoff.pod.key.to_string()).collect();
        assert_eq!(names, ["default/t-l-0", "default/t-w-0", "default/t-w-1"]);
        let gang = text.replace("spec: {leader", "spec: {schedulerPolicy: {basicPolicy: Gang}, leader");
        assert_eq!(read_all(&gang).unwrap()[3].together, 3, "the whole job or none of it");
        let odd = "apiVersion: batch/v1\nkind: Job\nspec: {template: {metadata: x, spec: {containers: [{name: c}]}}}\n";
        assert_eq!(read_all(odd).unwrap()[0].pods.len(), 1);
        let many = format!("apiVersion: batch/v1\nkind: Job\nspec: {{parallelism: 4000000000, {template}}}\n");
        assert!(read_all(&many).unwrap_err().to_string().contains("256 are judged at most"));
    }

    #[test]
    fn a_pod_group_of_each_api_declares_a_gang_and_others_nothing() {
        for (version, spec, min) in [
            ("scheduling.sigs.k8s.io/v1alpha1", "{minMember: 3}", Some(3)),
            ("scheduling.x-k8s.io/v1alpha1", "{minMember: 3}", Some(3)),
            ("scheduling.k8s.io/v1beta1", "{schedulingPolicy: {gang: {minCount: 3}}}", Some(3)),
            ("scheduling.volcano.sh/v1beta1", "{minMember: 3}", None),
        ] {
            let text =
                format!("apiVersion: {version}\nkind: PodGroup\nmetadata: {{name: g}}\nspec: {spec}\n---\n{POD}");
            let objects = read_all(&text).unwrap();
            let declared = objects[0].pod_group.as_ref().and_then(|group| group.spec.min);
            assert_eq!((objects.len(), declared), (1 + min.iter().len(), min), "{version}");
        }
        let bad = format!("apiVersion: scheduling.x-k8s.io/v1alpha1\nkind: PodGroup\nmetadata: [g]\n---\n{POD}");
        assert!(read_all(&bad).unwrap_err().to_string().contains("PodGroup"));
    }

    const POD: &str = "apiVersion: v1\nkind: Pod\nmetadata:\n  name: a\nspec:\n  schedulerName: baton-scheduler\n  containers:\n  - name: main\n    image: x\n    resources:\n      limits:\n        nvidia.com/gpu: 4\n        cpu: 500m\n";

    #[test]
    fn a_manifest_is_read_as_the_api_server_would_store_it() {
        let facts = read(POD).unwrap().facts;
        assert_eq!(facts.handoff.pod.key.to_string(), "default/a");
        assert_eq!(&*facts.handoff.scheduler_name, "baton-scheduler");
        assert_eq!(facts.handoff.wanted()["nvidia.com/gpu"], 4);
        assert_eq!(facts.spec.requests.milli_cpu, 500, "requests come from limits");
        let bare = "{\"apiVersion\": \"v1\", \"kind\": \"Pod\", \"spec\": {\"containers\": [{\"name\": \"c\"}]}}";
        let facts = read(bare).unwrap().facts;
        assert_eq!((&*facts.handoff.pod.key.name, &*facts.handoff.scheduler_name), ("what-if", "default-scheduler"));
    }

    #[test]
    fn what_is_wrong_with_the_containers_is_said() {
        let error = |containers: &str| {
            read(&format!("apiVersion: v1\nkind: Pod\nspec:\n  {containers}\n")).unwrap_err().to_string()
        };
        assert_eq!(error("containers: 5"), "spec.containers is 5: expected a list of containers");
        assert!(error("containers: []").starts_with("spec.containers is empty"));
        assert!(error("container: []").contains("did you mean containers?"));
        assert!(error("x: 1").starts_with("spec.containers is missing: a pod has"));
        assert!(read("").unwrap_err().to_string().starts_with("the manifest is empty"));
    }

    #[test]
    fn what_is_no_pod_is_named_with_its_place() {
        let error = |text: &str| read(text).unwrap_err().to_string();
        let line = error(&POD.replace("  containers:", "  containers: ]"));
        assert!(line.starts_with("line 7,"), "{line}");
        let line = error(&POD.replace("  name: a", "\tname: a"));
        assert!(line.starts_with("line 4,"), "{line}");
        assert!(error(&POD.replace("kind: Pod", "kind: CronJob")).contains("\"CronJob\""));
        assert!(error(&POD.replace("500m", "many")).contains("spec.containers[0].resources.limits.cpu"));
        assert_eq!(
            error(&POD.replace("gpu: 4", "gpu: four")),
            "spec.containers[0].resources.limits.nvidia.com/gpu: \"four\" is not a quantity: expected a whole number such as 1 or 2"
        );
        assert!(error("apiVersion: v1\nkind: Pod\n").contains("spec.containers"));
        assert!(error("just words").contains("kind"));
        assert!(error(&format!("{POD}---\njust words\n")).starts_with("document 2: kind is \"\""));
        let ports = POD.replace("  containers:", "  hostNetwork: true\n  containers:");
        let ports = ports.replace("    image: x", "    image: x\n    ports: [8080]");
        assert!(error(&ports).contains("spec.containers[0].ports[0] is 8080"));
        assert!(
            error(&POD.replace("  - name: main", "  - main\n  - name: main"))
                .contains("spec.containers[0] is \"main\"")
        );
        assert!(error("").contains("kind"));
    }

    #[test]
    fn what_the_api_server_fills_in_is_filled_in() {
        let class = POD.replace("  containers:", "  priorityClassName: gold\n  preemptionPolicy: Never\n  containers:");
        let read_back = read(&class).unwrap();
        assert_eq!((read_back.class.as_deref(), read_back.priority), (Some("gold"), None));
        assert_eq!(read_back.never_preempts, Some(true));
        let ports = POD.replace("  containers:", "  hostNetwork: true\n  containers:");
        let ports = ports.replace(
            "    image: x",
            "    image: x\n    ports: [{containerPort: 8080}, {containerPort: 1, hostPort: 2}]",
        );
        let facts = read(&ports).unwrap().facts;
        assert_eq!(facts.spec.host_ports.iter().map(|port| port.port).collect::<Vec<_>>(), [8080, 2]);
        let keys = POD.replace("  name: a", "  name: a\n  labels: {app: web, hash: x1}").replace(
            "  containers:",
            "  affinity:\n    podAntiAffinity:\n      requiredDuringSchedulingIgnoredDuringExecution:\n      - topologyKey: h\n        labelSelector: {matchLabels: {app: web}}\n        matchLabelKeys: [hash, absent]\n        mismatchLabelKeys: [app]\n  containers:",
        );
        let facts = read(&keys).unwrap().facts;
        let selector = facts.spec.anti_affinity[0].selector.clone().unwrap();
        let keys: Vec<&str> = selector.match_expressions.iter().map(|one| one.key.as_str()).collect();
        assert_eq!(keys, ["hash", "app"], "{selector:?}");
    }
}

//! The pods that the demo submits: each kind of request that the hand-off knows.

use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, from_value, json};

use crate::config::read_yaml_value;
use crate::manifests::{Values, files};
use baton_contract::key;

/// Namespace of the demo's pods.
pub const NAMESPACE: &str = "default";
/// Scheduler that the pods ask for.
pub const SCHEDULER: &str = "baton-scheduler";
/// Pods of the burst: half a GPU each, so that they fill a node of 8 GPUs.
pub const BURST: usize = 16;

/// The pod whose devices must lie below one switch.
pub const TOGETHER: &str = "gpu-rdma";

/// Free devices that a machine must have for a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Needs {
    pub gpus: usize,
    pub nics: usize,
}

/// One pod and why it is there.
#[derive(Debug, Clone)]
pub struct DemoPod {
    pub name: String,
    /// One line for the reader.
    pub what: &'static str,
    /// What it takes of a machine.
    pub needs: Needs,
    pub pod: Pod,
}

/// The pods before the burst.
pub fn first() -> Vec<DemoPod> {
    let gpu = |count: u32| json!({ key::NVIDIA_GPU: count.to_string() });
    vec![
        example("one-gpu", "one whole GPU", (1, 0)),
        pod(
            "two-containers",
            "two containers, two GPUs and one",
            (3, 0),
            json!({"containers": [container("trainer", &gpu(2)), container("evaluator", &gpu(1))]}),
        ),
        pod("init-and-sidecar", "an init container hands its GPU on; a sidecar keeps its own", (2, 0), {
            let mut sidecar = container("monitor", &gpu(1));
            sidecar["restartPolicy"] = json!("Always");
            let mut init = container("check", &gpu(1));
            init["command"] = json!(["true"]);
            json!({"initContainers": [init, sidecar], "containers": [container("main", &gpu(1))]})
        }),
        example("gpu-share", "half of one GPU", (1, 0)),
        example(TOGETHER, "4 GPUs and 2 NICs under one switch", (4, 2)),
    ]
}

/// Whether the pod of this name is one of the burst.
pub fn of_burst(name: &str) -> bool {
    name.starts_with("burst-")
}

/// `count` half GPUs on `node`, created at once.
pub fn burst(node: &str, count: usize) -> Vec<DemoPod> {
    let one = |k: usize| {
        pod(
            &format!("burst-{k:02}"),
            "half of one GPU, in a burst on one node",
            (0, 0),
            json!({
                "nodeSelector": {"kubernetes.io/hostname": node},
                "containers": [container("main", &json!({key::GPU: "50"}))],
            }),
        )
    };
    (0..count).map(one).collect()
}

/// The example of this name as it is in `daemonset/`, so that applying it to the kept cluster changes nothing.
fn example(name: &str, what: &'static str, needs: (usize, usize)) -> DemoPod {
    let path = format!("examples/{name}.yaml");
    let files = files(&Values::default());
    let text = files.iter().find(|file| file.path == path).map(|file| file.text.as_str()).unwrap_or_default();
    // By way of a value: reading typed objects from YAML would be megabytes of code in the binary.
    let pod = read_yaml_value(text).expect("an example is YAML: a test of the manifests reads it");
    let mut pod: Pod = from_value(pod).expect("an example is a pod: a test of the manifests reads it");
    pod.metadata.namespace = Some(NAMESPACE.to_owned());
    DemoPod { name: name.to_owned(), what, needs: Needs { gpus: needs.0, nics: needs.1 }, pod }
}

fn container(name: &str, limits: &Value) -> Value {
    json!({"name": name, "image": "demo", "resources": {"limits": limits, "requests": limits}})
}

fn pod(name: &str, what: &'static str, needs: (usize, usize), spec: Value) -> DemoPod {
    let mut object = json!({"metadata": {"name": name, "namespace": NAMESPACE}, "spec": spec});
    object["spec"]["schedulerName"] = json!(SCHEDULER);
    object["spec"]["restartPolicy"] = json!("Never");
    let pod = serde_json::from_value(object).expect("the demo's pods are literals of the right shape");
    DemoPod { name: name.to_owned(), what, needs: Needs { gpus: needs.0, nics: needs.1 }, pod }
}

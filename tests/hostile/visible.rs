//! Containers that name GPUs in their environment and ask for none, where the policy against it is chosen.

use baton::ops::demo::apply_all;
use baton::ops::manifests::{VISIBLE_DEVICES, Values, files};
use serde_json::{Value, json};

use crate::harness::wait::until;
use crate::world::{Call, SOON, World, pod};

const PODS: &str = "/api/v1/namespaces/ml/pods";
const VARIABLE: &str = "NVIDIA_VISIBLE_DEVICES";

async fn world() -> World {
    let world = World::start().await;
    let files = files(&Values::default());
    let file = files.iter().find(|file| file.path == "components/visible-devices/visible-devices.yaml").unwrap();
    apply_all(&world.client, &file.text).await.unwrap();
    let tenant = world.tenant().await;
    let probe = Call::create(format!("{PODS}?dryRun=All"), with("probe", json!({}), json!([var("all")])));
    until("the policy judges", SOON, async || probe.send(&tenant).await.is_err().then_some(())).await;
    world
}

fn var(value: &str) -> Value {
    json!({"name": VARIABLE, "value": value})
}

/// A pod whose container has these limits and this environment.
fn with(name: &str, limits: Value, env: Value) -> Value {
    let mut pod = pod(name, limits);
    pod["spec"]["containers"][0]["env"] = env;
    pod
}

fn debugger(pod: &str, name: &str, env: Value) -> Call {
    let container = json!({"name": name, "image": "i", "env": env});
    let path = format!("{PODS}/{pod}/ephemeralcontainers");
    Call::json_patch(path, json!([{"op": "add", "path": "/spec/ephemeralContainers", "value": [container]}]))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_container_that_asks_for_no_gpu_names_none() {
    let world = world().await;
    world.admin(Call::create(PODS, pod("own", json!({})))).await;
    let from = json!({"name": VARIABLE, "valueFrom": {"fieldRef": {"fieldPath": "metadata.annotations['a']"}}});
    let values = ["all", "none", "0", "GPU-1,GPU-2", "void,all", " void", "Void", "nvidia.com/gpu=all", "$(V)"];
    let mut pods: Vec<Value> = values
        .iter()
        .enumerate()
        .map(|(at, value)| with(&format!("v{at}"), json!({}), json!([{"name": "A", "value": "b"}, var(value)])))
        .collect();
    pods.push(with("from", json!({}), json!([from])));
    pods.push(with("twice", json!({}), json!([var("void"), var("all")])));
    pods.push(with("zero", json!({"nvidia.com/gpu": "0"}), json!([var("all")])));
    pods.push(with("nic", json!({"koordinator.sh/rdma": "1", "cpu": "1"}), json!([var("all")])));
    for list in ["containers", "initContainers"] {
        // Beside a container that asks for one.
        let mut beside = pod(&list.to_lowercase(), json!({"nvidia.com/gpu": "1"}));
        let mut all = beside["spec"][list].as_array().cloned().unwrap_or_default();
        all.push(json!({"name": "beside", "image": "i", "env": [var("all")]}));
        beside["spec"][list] = json!(all);
        pods.push(beside);
    }
    let mut calls: Vec<Call> = pods.into_iter().map(|pod| Call::create(PODS, pod)).collect();
    calls.push(debugger("own", "shell", json!([var("all")])));
    world.attack(&world.tenant().await, VISIBLE_DEVICES, "asks for no GPU", &calls).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_names_no_gpu_or_asks_for_one_is_let_in() {
    let world = world().await;
    // From before the policy.
    let mut old = with("old", json!({}), json!([var("all")]));
    old["metadata"]["labels"] = json!({"a": "b"});
    world.admin(Call::create(PODS, old)).await;
    let mut calls: Vec<Call> = [
        with("unset", json!({}), json!([{"name": "NVIDIA_DRIVER_CAPABILITIES", "value": "all"}])),
        with("void", json!({}), json!([var("void")])),
        with("empty", json!({}), json!([var(""), {"name": VARIABLE}])),
        with("whole", json!({"nvidia.com/gpu": "1"}), json!([var("all")])),
        with("mig", json!({"nvidia.com/mig-1g.5gb": "1"}), json!([var("all")])),
        with("share", json!({"koordinator.sh/gpu-core": "50"}), json!([var("all")])),
    ]
    .into_iter()
    .map(|pod| Call::create(PODS, pod))
    .collect();
    calls.push(Call::patch(format!("{PODS}/old"), json!({"metadata": {"labels": {"a": "c"}}})));
    calls.push(debugger("old", "shell", json!([var("void")])));
    world.allowed(&world.tenant().await, &calls).await;
}

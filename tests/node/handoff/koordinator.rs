//! Pods that koord-scheduler placed: it writes no lock and no split per container, only `device-allocated` in Koordinator's form, by a
//! patch of the pod before a plain Binding.

use baton::decide::lock::LockMode;

use super::handoff_node::{HandoffNode, NODE};
use super::pods::{Kind, PodSpec, container, gpus, pod};
use crate::prelude::*;

const KOORD: &str = "koord-scheduler";

/// As `docs/operate.md` has it: `--node-lock=auto --scheduler-names=baton-scheduler,koord-scheduler`.
async fn beside_koord_scheduler() -> HandoffNode {
    let scheduler_names = ["baton-scheduler", KOORD].map(Box::from).into();
    HandoffNode::with(AllocatePolicy { lock: LockMode::Auto, scheduler_names, ..AllocatePolicy::default() }).await
}

/// Creates the pod, patches the assignment in, and binds.
async fn koord_places(machine: &HandoffNode, spec: &PodSpec, allocated: Value) {
    let mut object = spec.object();
    object["spec"]["schedulerName"] = json!(KOORD);
    machine.pods().create(&PostParams::default(), &serde_json::from_value(object).unwrap()).await.unwrap();
    let patch = json!({"metadata": {"annotations": {key::DEVICE_ALLOCATED: allocated.to_string()}}});
    machine.pods().patch(spec.name, &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
    let binding = json!({
        "apiVersion": "v1", "kind": "Binding", "metadata": {"name": spec.name, "namespace": "default"},
        "target": {"apiVersion": "v1", "kind": "Node", "name": NODE},
    });
    let _: Value =
        machine.pods().create_subresource("binding", spec.name, &PostParams::default(), &binding).await.unwrap();
}

fn gpu(minor: u32, percent: u32) -> Value {
    let resources = json!({key::GPU_CORE: percent.to_string(), key::GPU_MEMORY: format!("{}Mi", 81920 * percent / 100),
        key::GPU_MEMORY_RATIO: percent.to_string()});
    json!({"minor": minor, "resources": resources, "id": format!("GPU-{minor}")})
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn half_a_gpu_and_two_gpus_with_a_nic_of_koord_scheduler_are_served_exactly() {
    let machine = beside_koord_scheduler().await;
    let half = [(key::GPU_CORE, 50), (key::GPU_MEMORY_RATIO, 50)];
    let half = pod("half", vec![container("main", Kind::App, &half, &[("GPU-5", 50)])]);
    koord_places(&machine, &half, json!({"gpu": [gpu(5, 50)]})).await;
    machine.agrees(&half).await;
    let nic = "0000:01:00.0";
    let plan = [("GPU-2", 100), ("GPU-3", 100), (nic, 100)];
    let joint = pod("joint", vec![container("main", Kind::App, &[(key::NVIDIA_GPU, 2), (key::RDMA, 100)], &plan)]);
    let rdma = json!([{"minor": 1, "resources": {key::RDMA: "100"}, "id": nic}]);
    koord_places(&machine, &joint, json!({"gpu": [gpu(2, 100), gpu(3, 100)], "rdma": rdma})).await;
    machine.agrees(&joint).await;
    assert_eq!(machine.env("joint", "main", "GPUS"), "GPU-2,GPU-3");
    assert_eq!(machine.env("joint", "main", "NICS"), nic);
    // The next pod of Baton's scheduler, under the lock, beside them.
    machine.serves(&gpus("ours", &["GPU-0"])).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_the_lock_as_proof_the_refusal_names_the_flags_that_serve_koord_scheduler() {
    let machine = HandoffNode::start().await;
    koord_places(&machine, &gpus("a", &["GPU-0"]), json!({"gpu": [gpu(0, 100)]})).await;
    let text = machine.refused("a").await;
    let flags = "--node-lock=auto --scheduler-names=baton-scheduler,koord-scheduler";
    tells(text, ["has no lock", flags]);
}

//! A kubelet that chooses other devices than the assignment, and the barrier that may stand against it.

use baton::decide::handoff::IdMismatch;

use super::agent::Agent;
use super::handoff_node::{HandoffNode, eventually};
use super::pods::Kind::{App, Init};
use super::pods::{container, gpus, pod};
use crate::prelude::*;

/// What the topology manager would leave of the GPUs.
fn force(machine: &HandoffNode, ids: &[&str]) {
    let ids = (!ids.is_empty()).then(|| ids.iter().map(|id| (*id).to_owned()).collect());
    machine.kubelet.controls().force_affinity(NVIDIA_GPU, ids);
}

/// The state of a container, as its status tells it.
fn state(machine: &HandoffNode, pod: &str, container: &str) -> Value {
    let object = machine.object(pod).unwrap_or_default();
    let statuses = object["status"]["containerStatuses"].as_array().cloned().unwrap_or_default();
    statuses
        .into_iter()
        .find(|status| status["name"] == container)
        .map(|status| status["state"].clone())
        .unwrap_or_default()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_kubelet_that_forces_a_numa_node_gets_the_assignment_and_is_reported() {
    let machine = HandoffNode::start().await;
    force(&machine, &["GPU-0"]);
    machine.schedule(&gpus("a", &["GPU-5"])).await;
    machine.runs("a").await;
    machine.unlocked().await;
    assert_eq!(machine.kubelet_of("a", "main"), ["GPU-0".to_owned()].into());
    assert_eq!(machine.env("a", "main", "GPUS"), "GPU-5");
    assert_eq!(machine.agent().ledger_of("a").await, ["GPU-5"]);
    eventually("the divergence is reported", || !machine.events("DeviceDivergence").is_empty()).await;
    // The scheduler goes by what was served: the device that the kubelet believes taken is free for its pod.
    force(&machine, &[]);
    machine.schedule(&gpus("b", &["GPU-0"])).await;
    machine.runs("b").await;
    assert_eq!(machine.env("b", "main", "GPUS"), "GPU-0");
    machine.unlocked().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_preference_among_a_forced_numa_node_is_answered_with_what_is_offered() {
    let machine = HandoffNode::start().await;
    force(&machine, &["GPU-1", "GPU-2", "GPU-3"]);
    machine.serves(&gpus("in", &["GPU-3"])).await;
    machine.schedule(&gpus("out", &["GPU-6"])).await;
    machine.runs("out").await;
    let held = machine.kubelet_of("out", "main");
    assert!(held.is_subset(&["GPU-1".to_owned(), "GPU-2".to_owned()].into()) && held.len() == 1, "{held:?}");
    assert_eq!(machine.env("out", "main", "GPUS"), "GPU-6");
    machine.unlocked().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn other_ids_are_refused_where_the_operator_wants_that() {
    let machine =
        HandoffNode::with(AllocatePolicy { id_mismatch: IdMismatch::Reject, ..AllocatePolicy::default() }).await;
    force(&machine, &["GPU-0"]);
    machine.schedule(&gpus("a", &["GPU-5"])).await;
    tells(machine.refused("a").await, ["GPU-5", "default/a"]);
    machine.unlocked().await;
    force(&machine, &[]);
    machine.serves(&gpus("again", &["GPU-5"])).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pod_that_is_refused_after_its_first_call_frees_what_that_call_gave() {
    let machine = HandoffNode::start().await;
    machine.serves(&gpus("holder", &["GPU-2"])).await;
    let gpu = [(NVIDIA_GPU, 1)];
    let half =
        pod("half", vec![container("m1", App, &gpu, &[("GPU-1", 100)]), container("m2", App, &gpu, &[("GPU-2", 100)])]);
    machine.schedule(&half).await;
    tells(machine.refused("half").await, ["container m2", "held by default/holder"]);
    machine.unlocked().await;
    machine.forgotten("half").await;
    machine.serves(&gpus("next", &["GPU-1"])).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_barrier_keeps_a_container_with_other_devices_from_starting() {
    let machine = HandoffNode::with_barrier(AllocatePolicy::default()).await;
    force(&machine, &["GPU-0"]);
    machine.schedule(&gpus("a", &["GPU-5"])).await;
    let mut waiting = Value::Null;
    eventually("its start is refused", || {
        waiting = state(&machine, "a", "main")["waiting"].clone();
        waiting["reason"] == "CreateContainerConfigError"
    })
    .await;
    tells(waiting["message"].as_str().unwrap_or_default(), ["committed GPU-0, assigned are GPU-5"]);
    assert_eq!(
        machine.object("a").unwrap()["status"]["phase"],
        "Pending",
        "the pod lives, and the kubelet tries again"
    );
    machine.delete("a").await;
    machine.forgotten("a").await;
    force(&machine, &[]);
    machine.serves(&gpus("a", &["GPU-5"])).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_start_that_was_refused_comes_about_at_a_later_try() {
    let mut machine = HandoffNode::with_barrier(AllocatePolicy::default()).await;
    // The devices of all containers are given at admission; the second starts when the first has ended.
    let mut spec = pod(
        "late",
        vec![container("first", Init, &[], &[]), container("main", App, &[(NVIDIA_GPU, 1)], &[("GPU-4", 100)])],
    );
    spec.init_seconds = "60";
    machine.schedule(&spec).await;
    eventually("its devices are given", || !machine.kubelet_of("late", "main").is_empty()).await;
    machine.unlocked().await;
    machine.stop_agent().await;
    machine.lose_ledger();
    // A daemon that cannot know yet what was handed out.
    machine.kubelet.controls().set_pod_resources(PodResourcesMode::Throttled);
    let (root, boot) = (machine.root().to_owned(), machine.kubelet.boot_id());
    let starting = Agent::start(machine.client.clone(), &root, &boot, machine.policy.clone(), true);
    let refused = async {
        eventually("a start is refused because the ledger is not known", || {
            let waiting = state(&machine, "late", "main")["waiting"].clone();
            waiting["reason"] == "CreateContainerConfigError"
                && waiting["message"].as_str().is_some_and(|text| text.contains("ledger is not known yet"))
        })
        .await;
        machine.kubelet.controls().set_pod_resources(PodResourcesMode::Normal);
    };
    let (agent, ()) = tokio::join!(starting, refused);
    machine.agent = Some(agent);
    machine.agrees(&spec).await;
    assert_eq!(state(&machine, "late", "main")["waiting"], json!(null));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_status_that_names_other_devices_is_told_once() {
    use kube::api::{Patch, PatchParams};
    let machine = HandoffNode::start().await;
    machine.serves(&gpus("a", &["GPU-5"])).await;
    let resources = |object: &Value| object["status"]["containerStatuses"][0]["allocatedResourcesStatus"].clone();
    eventually("the kubelet's own status names the device", || {
        machine.object("a").is_some_and(|pod| resources(&pod)[0]["resources"][0]["resourceID"] == "GPU-5")
    })
    .await;
    assert_eq!(machine.events("DeviceDivergence").len(), 0);
    let mut status = machine.object("a").unwrap()["status"].clone();
    status["containerStatuses"][0]["allocatedResourcesStatus"][0]["resources"][0]["resourceID"] = json!("GPU-1");
    let patch = json!({"status": {"containerStatuses": status["containerStatuses"]}});
    machine.pods().patch_status("a", &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
    eventually("the divergence is reported", || machine.events("DeviceDivergence").len() == 1).await;
}

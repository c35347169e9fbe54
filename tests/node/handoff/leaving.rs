//! Pods that leave before their processes: the next pod is admitted, and its container starts when the devices are free. Judged by the
//! processes of the simulated runtime, which no daemon sees.

use baton::contract::PodUid;

use super::handoff_node::{DEADLINE, HandoffNode, eventually};
use super::pods::Kind::App;
use super::pods::{PodSpec, container, gpus, pod};
use crate::prelude::*;

/// The pod runs, its process cannot be killed, and it is deleted by force.
async fn leaves(machine: &HandoffNode, spec: &PodSpec) -> PodUid {
    let uid = machine.serves(spec).await;
    assert!(machine.kubelet.freeze(uid.as_str()));
    let force = DeleteParams { grace_period_seconds: Some(0), ..DeleteParams::default() };
    machine.pods().delete(spec.name, &force).await.unwrap();
    eventually("the pod's object is gone", || machine.uid(spec.name).as_ref() != Some(&uid)).await;
    uid
}

/// The pod's container waits, and an event names the pod that it waits for.
async fn waits_for(machine: &HandoffNode, pod: &str, user: &str) {
    let all = || machine.events("DevicesStillUsed");
    let about = |event: &serde_json::Value| {
        let of = if event["regarding"].is_null() { &event["involvedObject"] } else { &event["regarding"] };
        let note = if event["note"].is_null() { &event["message"] } else { &event["note"] };
        of["name"] == pod && note.as_str().is_some_and(|of| of.contains(user))
    };
    let until = clock::mono() + DEADLINE;
    while !all().iter().any(about) {
        let seen = machine.object(pod).unwrap_or_default();
        let is_over = seen["status"]["phase"] == "Failed" || clock::mono() >= until;
        assert!(!is_over, "the wait is not reported: {seen:#}; {:#?}; {:#?}", all(), machine.kubelet.processes());
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let uid = machine.uid(pod).unwrap();
    assert!(machine.kubelet.processes().iter().all(|run| run.uid != uid.as_str()), "it has started");
}

/// No device was in two processes at a time.
fn never_twice(machine: &HandoffNode) {
    let all = machine.kubelet.process_history();
    let devices = |at: usize| all[at].injected.envs.get("GPUS").cloned().unwrap_or_default();
    for first in 0..all.len() {
        for second in first + 1..all.len() {
            let shared = devices(first).split(',').any(|id| devices(second).split(',').any(|other| id == other));
            assert!(!shared || !all[first].overlaps(&all[second]), "{:?} and {:?}", all[first], all[second]);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_container_of_the_next_pod_waits_for_the_processes_of_one_deleted_by_force() {
    let machine = HandoffNode::start().await;
    let (a, b, c) = (gpus("a", &["GPU-0", "GPU-1"]), gpus("b", &["GPU-1", "GPU-2"]), gpus("c", &["GPU-3"]));
    let uid = leaves(&machine, &a).await;
    machine.schedule(&b).await;
    machine.unlocked().await;
    waits_for(&machine, "b", "default/a").await;
    // Calls and starts of other pods go on.
    machine.serves(&c).await;
    assert!(machine.kubelet.thaw(uid.as_str()));
    machine.agrees(&b).await;
    machine.forgotten("a").await;
    never_twice(&machine);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn starts_that_wait_keep_no_call_waiting() {
    let machine = HandoffNode::start().await;
    let uid = leaves(&machine, &gpus("a", &["GPU-0"])).await;
    let names: [&'static str; 24] = [
        "s0", "s1", "s2", "s3", "s4", "s5", "s6", "s7", "s8", "s9", "s10", "s11", "s12", "s13", "s14", "s15", "s16",
        "s17", "s18", "s19", "s20", "s21", "s22", "s23",
    ];
    let limits = [(key::GPU_CORE, 4), (key::GPU_MEMORY_RATIO, 4)];
    let share = |name| pod(name, vec![container("main", App, &limits, &[("GPU-0", 4)])]);
    for name in names {
        machine.schedule(&share(name)).await;
    }
    machine.unlocked().await;
    waits_for(&machine, "s23", "default/a").await;
    machine.serves(&gpus("b", &["GPU-1"])).await;
    assert!(machine.kubelet.thaw(uid.as_str()));
    for name in names {
        machine.runs(name).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_successor_of_the_same_name_waits_for_its_predecessors_processes() {
    let machine = HandoffNode::start().await;
    let a = gpus("a", &["GPU-0"]);
    let uid = leaves(&machine, &a).await;
    machine.schedule(&a).await;
    waits_for(&machine, "a", "default/a").await;
    assert!(machine.kubelet.thaw(uid.as_str()));
    machine.agrees(&a).await;
    never_twice(&machine);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_phase_that_another_client_writes_frees_no_device() {
    let machine = HandoffNode::start().await;
    let (a, b) = (gpus("a", &["GPU-0"]), gpus("b", &["GPU-0"]));
    machine.serves(&a).await;
    let failed = Patch::Merge(json!({"status": {"phase": "Failed", "reason": "Gone"}}));
    machine.pods().patch_status("a", &PatchParams::default(), &failed).await.unwrap();
    machine.schedule(&b).await;
    waits_for(&machine, "b", "default/a").await;
    machine.runs("a").await;
    machine.delete("a").await;
    machine.runs("b").await;
    never_twice(&machine);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_daemon_that_starts_again_knows_which_processes_run_on() {
    for (ledger_lost, list_is_written) in [(false, false), (true, false), (true, true)] {
        let mut machine = HandoffNode::start().await;
        let (a, b) = (gpus("a", &["GPU-0"]), gpus("b", &["GPU-0"]));
        let uid = leaves(&machine, &a).await;
        machine.stop_agent().await;
        if ledger_lost {
            machine.lose_ledger();
        }
        if list_is_written {
            // The list that the daemon asks for makes the kubelet forget the pod, also in its checkpoint.
            machine.kubelet.controls().set_pod_resources(PodResourcesMode::Written);
        }
        machine.start_agent().await;
        machine.schedule(&b).await;
        // The kubelet's checkpoint has no names.
        waits_for(&machine, "b", if ledger_lost { uid.as_str() } else { "default/a" }).await;
        assert!(machine.kubelet.thaw(uid.as_str()));
        machine.runs("b").await;
        never_twice(&machine);
    }
}

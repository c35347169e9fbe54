//! Pods that get what was assigned to them.

use baton::contract::key::{GPU_CORE, GPU_MEMORY_RATIO, NVIDIA_GPU, RDMA};

use super::handoff_node::HandoffNode;
use super::pods::Kind::{App, Init, Sidecar};
use super::pods::{container, gpus, pod};
use crate::harness::tells::tells;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_gpu_goes_to_its_pod_and_the_lock_goes_away() {
    let machine = HandoffNode::start().await;
    machine.serves(&gpus("a", &["GPU-5"])).await;
    assert_eq!(machine.env("a", "main", "GPUS"), "GPU-5");
    let writes = machine.server().counts().writes("nodes");
    println!("writes to nodes, kubelet's included: {writes}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_containers_get_their_own_devices() {
    let machine = HandoffNode::start().await;
    let gpu = [(NVIDIA_GPU, 1)];
    let spec =
        pod("two", vec![container("m1", App, &gpu, &[("GPU-6", 100)]), container("m2", App, &gpu, &[("GPU-1", 100)])]);
    machine.serves(&spec).await;
    assert_eq!(machine.env("two", "m1", "GPUS"), "GPU-6");
    assert_eq!(machine.env("two", "m2", "GPUS"), "GPU-1");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn init_sidecar_and_main_share_and_differ_as_they_should() {
    let machine = HandoffNode::start().await;
    let spec = pod(
        "family",
        vec![
            container("init", Init, &[(NVIDIA_GPU, 2)], &[("GPU-2", 100), ("GPU-3", 100)]),
            container("side", Sidecar, &[(NVIDIA_GPU, 1)], &[("GPU-2", 100)]),
            container("main", App, &[(NVIDIA_GPU, 2)], &[("GPU-3", 100), ("GPU-7", 100)]),
        ],
    );
    machine.serves(&spec).await;
    let (side, main) = (machine.kubelet_of("family", "side"), machine.kubelet_of("family", "main"));
    assert!(side.is_disjoint(&main), "{side:?} {main:?}");
    let list = |container: &str| machine.env("family", container, "GPUS").split(',').map(str::to_owned).collect();
    assert_eq!((side, main), (list("side"), list("main")), "the answer follows the kubelet inside the pod's set");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_shares_live_on_one_gpu() {
    let machine = HandoffNode::start().await;
    let half = [(GPU_CORE, 50), (GPU_MEMORY_RATIO, 50)];
    let specs = [
        pod("s1", vec![container("main", App, &half, &[("GPU-4", 50)])]),
        pod("s2", vec![container("main", App, &half, &[("GPU-4", 50)])]),
    ];
    for spec in &specs {
        machine.serves(spec).await;
        assert_eq!(machine.env(spec.name, "main", "GPUS"), "GPU-4");
    }
    let third = pod("s3", vec![container("main", App, &half, &[("GPU-4", 50)])]);
    machine.schedule(&third).await;
    tells(machine.refused("s3").await, ["GPU-4 has no room", "code = ResourceExhausted"]);
    machine.unlocked().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn gpus_and_nics_come_together() {
    let machine = HandoffNode::start().await;
    let limits = [(NVIDIA_GPU, 4), (RDMA, 200)];
    let plan =
        [("GPU-0", 100), ("GPU-1", 100), ("GPU-2", 100), ("GPU-3", 100), ("0000:02:00.0", 100), ("0000:01:00.0", 100)];
    let spec = pod("joint", vec![container("main", App, &limits, &plan)]);
    machine.serves(&spec).await;
    assert_eq!(machine.env("joint", "main", "NICS"), "0000:02:00.0,0000:01:00.0");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_share_of_every_nic_and_a_count_of_nics_are_served_as_planned() {
    let machine = HandoffNode::start().await;
    let nics = ["0000:00:00.0", "0000:01:00.0", "0000:02:00.0", "0000:03:00.0"];
    let plan = |nics: &[&'static str], percent| nics.iter().map(|nic| (*nic, percent)).collect::<Vec<_>>();
    let mut every = pod("every", vec![container("main", App, &[(RDMA, 10)], &plan(&nics, 10))]);
    every.hint = Some(r#"{"rdma":{"allocateStrategy":"ApplyForAll"}}"#);
    let mut two = pod("two", vec![container("main", App, &[(RDMA, 2)], &plan(&nics[..2], 1))]);
    two.hint = Some(r#"{"rdma":{"allocateStrategy":"RequestsAsCount"}}"#);
    for (spec, served) in [(&every, nics.join(",")), (&two, nics[..2].join(","))] {
        machine.serves(spec).await;
        assert_eq!(machine.env(spec.name, "main", "NICS"), served);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pods_bound_in_reverse_order_of_creation_get_their_own_devices() {
    let machine = HandoffNode::start().await;
    let (a, b) = (gpus("a", &["GPU-0"]), gpus("b", &["GPU-1"]));
    let uid_of_a = machine.create(&a).await;
    let uid_of_b = machine.create(&b).await;
    for (spec, uid) in [(&b, &uid_of_b), (&a, &uid_of_a)] {
        let time = machine.lock(spec.name, uid).await;
        machine.bind(spec, uid, time).await;
    }
    machine.agrees(&b).await;
    machine.agrees(&a).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pod_created_again_under_the_same_name_gets_its_new_devices() {
    let machine = HandoffNode::start().await;
    machine.serves(&gpus("web-0", &["GPU-1"])).await;
    machine.delete("web-0").await;
    machine.serves(&gpus("web-0", &["GPU-2"])).await;
    assert_eq!(machine.env("web-0", "main", "GPUS"), "GPU-2");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_row_of_pods_and_the_next_generation_keep_their_devices_apart() {
    let machine = HandoffNode::start().await;
    let names = ["p0", "p1", "p2", "p3", "p4", "p5", "p6", "p7"];
    let devices = ["GPU-7", "GPU-2", "GPU-5", "GPU-0", "GPU-6", "GPU-1", "GPU-4", "GPU-3"];
    let specs: Vec<_> = names.into_iter().zip(devices).map(|(name, device)| gpus(name, &[device])).collect();
    for spec in &specs {
        machine.schedule(spec).await;
    }
    for spec in &specs {
        machine.agrees(spec).await;
    }
    for spec in &specs[..4] {
        machine.delete(spec.name).await;
    }
    machine.serves(&gpus("next", &["GPU-0", "GPU-2", "GPU-5", "GPU-7"])).await;
}

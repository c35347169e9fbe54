//! Split GPUs, as the kubelet is offered them under each strategy, while the partition changes.

use super::test_node::{TestNode, until};
use crate::prelude::*;

const SMALL: &str = "nvidia.com/mig-1g.10gb";
const WHOLE: &str = "nvidia.com/mig-7g.80gb";

fn node(name: &str, strategy: MigStrategy) -> TestNode {
    let mut node = TestNode::new(NodeSpec::new(name).shaped(Shape::Pairs));
    node.options.mig_strategy = strategy;
    node.options.gpu_sharing = false;
    node
}

/// Splits every GPU alike; answers the UUIDs.
fn split_all(node: &TestNode, profiles: &[&str]) -> BTreeSet<String> {
    (0..4).flat_map(|gpu| node.machine.mig(gpu, profiles).unwrap()).collect()
}

#[tokio::test]
async fn gpus_that_are_split_alike_are_offered_as_plain_gpus_under_single() {
    let node = node("single", MigStrategy::Single);
    let parts = split_all(&node, &["3g.40gb", "3g.40gb"]);
    let (_kubelet, daemon) = node.start(NVIDIA_GPU, 8).await;
    assert_eq!(node.offered().await[NVIDIA_GPU], parts);
    let spec = node.cdi_spec("gpu");
    let devices = spec["devices"].as_array().unwrap();
    for uuid in &parts {
        let device = devices.iter().find(|device| device["name"] == uuid.as_str()).unwrap();
        let nodes = device["containerEdits"]["deviceNodes"].as_array().unwrap();
        let paths: Vec<&str> = nodes.iter().map(|node| node["path"].as_str().unwrap()).collect();
        let [gpu, caps @ ..] = &paths[..] else { panic!("{uuid} has no node") };
        assert!(gpu.starts_with("/dev/nvidia") && caps.len() == 2, "its GPU's and two capabilities: {paths:?}");
        assert!(caps.iter().all(|cap| cap.starts_with("/dev/nvidia-caps/nvidia-cap")), "{paths:?}");
    }
    daemon.stop().await;
}

#[tokio::test]
async fn an_error_of_a_gpu_reaches_its_parts_under_single_too() {
    let node = node("single-sick", MigStrategy::Single);
    split_all(&node, &["3g.40gb", "3g.40gb"]);
    let (_kubelet, daemon) = node.start(NVIDIA_GPU, 8).await;
    node.machine.xid(2, 79).unwrap();
    node.until(NVIDIA_GPU, 6).await;
    node.until(NVIDIA_GPU, 8).await;
    daemon.stop().await;
}

#[tokio::test]
async fn profiles_that_differ_are_out_of_service_under_single_until_they_are_alike() {
    let node = node("several", MigStrategy::Single);
    split_all(&node, &["3g.40gb", "3g.40gb"]);
    let odd = node.machine.mig(3, &["1g.10gb"]).unwrap();
    let (_kubelet, daemon) = (node.kubelet().await, node.daemon());
    until("the machine is known", || node.handoff.inventory.lock().unwrap().devices.len() > 7).await;
    node.until(NVIDIA_GPU, 0).await;
    tells(node.reason(&odd[0]), ["--mig-strategy=mixed"]);
    node.machine.mig(3, &["3g.40gb", "3g.40gb"]).unwrap();
    node.until(NVIDIA_GPU, 8).await;
    daemon.stop().await;
}

#[tokio::test]
async fn a_whole_gpu_among_split_ones_is_not_offered_under_single_and_says_why() {
    let node = node("odd", MigStrategy::Single);
    (0..3).for_each(|gpu| _ = node.machine.mig(gpu, &["7g.80gb"]).unwrap());
    let (_kubelet, daemon) = node.start(NVIDIA_GPU, 3).await;
    let whole = node.machine.gpu_uuids()[3].clone();
    assert!(!node.offered().await[NVIDIA_GPU].contains(&whole));
    tells(node.reason(&whole), ["not split"]);
    daemon.stop().await;
}

#[tokio::test]
async fn a_new_partition_is_offered_without_a_restart_and_the_old_name_offers_nothing() {
    let node = node("again", MigStrategy::Mixed);
    let first = split_all(&node, &["1g.10gb"; 7]);
    let (_kubelet, daemon) = node.start(SMALL, 28).await;
    let sockets = node.sockets();
    let second = split_all(&node, &["7g.80gb"]);
    node.until(WHOLE, 4).await;
    node.until(SMALL, 0).await;
    assert_eq!(node.offered().await[WHOLE], second);
    assert!(first.is_disjoint(&second));
    assert!(
        node.sockets().is_superset(&sockets),
        "the name stays registered: a pod that asks for it is refused, not let run"
    );
    daemon.stop().await;
}

#[tokio::test]
async fn a_part_in_use_stays_listed_and_named_after_its_gpu_was_split_again() {
    let node = node("held", MigStrategy::Mixed);
    let parts = node.machine.mig(0, &["1g.10gb", "1g.10gb"]).unwrap();
    let held = DeviceId::parse(&parts[0]).unwrap();
    node.handoff.in_use.lock().unwrap().insert(SMALL.into(), [held.clone()].into());
    let (_kubelet, daemon) = node.start(SMALL, 2).await;
    node.machine.mig(0, &["7g.80gb"]).unwrap();
    node.until(SMALL, 0).await;
    assert!(!node.handoff.inventory.lock().unwrap().devices[&held].healthy);
    let cdi = node.cdi("gpu");
    assert!(cdi.contains(held.as_str()), "a restart of its container asks for this name");
    assert!(!cdi.contains(&parts[1]), "no pod can ask for this one any more");
    daemon.stop().await;
}

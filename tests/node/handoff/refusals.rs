//! Pods that must not be served, and whose text says why.

use baton::decide::lock::LockMode;

use super::handoff_node::{HandoffNode, NODE, eventually};
use super::pods::gpus;
use crate::prelude::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_under_a_foreign_lock_is_refused_and_the_lock_stays() {
    let machine = HandoffNode::start().await;
    let foreign = gpus("foreign", &["GPU-1"]);
    let uid_of_foreign = machine.create(&foreign).await;
    machine.lock("foreign", &uid_of_foreign).await;
    let held = machine.lock_now();
    machine.bind_without_lock(&gpus("a", &["GPU-0"])).await;
    let text = machine.refused("a").await;
    assert!(text.contains("code = FailedPrecondition") && text.contains("default/a, container main"), "{text}");
    tells(text, ["is another pod's"]);
    assert_eq!(machine.lock_now(), held);
    assert_eq!(machine.agent().ledger_of("a").await, Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_forged_annotation_of_a_pinned_pod_is_refused() {
    for policy in [AllocatePolicy::default(), AllocatePolicy { lock: LockMode::Auto, ..AllocatePolicy::default() }] {
        let machine = HandoffNode::with(policy).await;
        let mut forged = gpus("forged", &["GPU-0"]);
        forged.node_name = Some(NODE);
        machine.create(&forged).await;
        let text = machine.refused("forged").await;
        assert!(text.contains("has no lock") || text.contains("spec.nodeName"), "{text}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn under_auto_a_scheduled_pod_needs_no_lock() {
    let machine = HandoffNode::with(AllocatePolicy { lock: LockMode::Auto, ..AllocatePolicy::default() }).await;
    let a = gpus("a", &["GPU-3"]);
    machine.bind_without_lock(&a).await;
    machine.agrees(&a).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_lock_goes_with_an_unusable_assignment_and_with_a_holder_that_is_gone() {
    let machine = HandoffNode::start().await;
    machine.schedule(&gpus("bad", &["GPU-77"])).await;
    tells(machine.refused("bad").await, ["no gpu device GPU-77"]);
    machine.unlocked().await;
    let uid = machine.create(&gpus("gone", &["GPU-0"])).await;
    machine.lock("gone", &uid).await;
    assert_ne!(machine.lock_now(), LockRead::Free);
    machine.delete("gone").await;
    machine.unlocked().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refusal_is_told_as_an_event_on_the_pod() {
    let machine = HandoffNode::start().await;
    machine.bind_without_lock(&gpus("a", &["GPU-0"])).await;
    machine.refused("a").await;
    eventually("the event is written", || !machine.events("AllocateRefused").is_empty()).await;
}

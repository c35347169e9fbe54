//! bind: devices, lock, line, and what is left over when it does not come about.

use baton::contract::LockValue;

use super::process::{Extender, binding};
use crate::prelude::*;
use crate::scheduler::verbs::until;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bind_chooses_devices_locks_the_node_and_writes_everything_in_one_binding() {
    let extender = Extender::start(&["n1"]).await;
    let pod = extender.pod("a", json!({"nvidia.com/gpu": "2"})).await;
    extender.cluster.server().counts().reset();
    assert_eq!(extender.bind(&pod, "n1").await, "");
    let bound = extender.cluster.get("a").await.unwrap();
    assert_eq!(bound.spec.as_ref().unwrap().node_name.as_deref(), Some("n1"));
    for key in key::SCHEDULER_KEYS {
        assert!(bound.annotations().contains_key(key), "{key} is missing");
    }
    let allocation = DeviceAllocation::parse(&bound.annotations()[key::DEVICE_ALLOCATED]).unwrap();
    assert_eq!(allocation.of(&DeviceType::Gpu).len(), 2);
    let lock = LockValue::parse(&extender.cluster.lock("n1").await.unwrap()).unwrap();
    assert!(lock.matches_bind_timestamp(&bound.annotations()[key::BIND_TIMESTAMP]));
    assert_eq!(lock.holder.unwrap().uid.unwrap().as_str(), pod.uid().unwrap());
    let counts = extender.cluster.server().counts();
    assert_eq!((counts.of("create", "pods", "binding"), counts.writes("nodes")), (1, 1), "{:?}", counts.all());
    // kube-scheduler asks again when an answer was lost: done is done, elsewhere is an error.
    assert_eq!(extender.bind(&pod, "n1").await, "");
    assert_eq!(extender.cluster.server().counts().of("create", "pods", "binding"), 1);
    // A pod for which no Allocate call comes takes no lock, and is bound although the node is locked.
    extender.binds("plain", json!({"cpu": "1"}), "n1").await;
    tells(extender.cluster.lock("n1").await.unwrap(), [",a,"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn binds_for_one_node_go_out_in_the_order_of_their_asking_and_never_share_a_device() {
    let extender = Extender::start(&["n1"]).await;
    extender.binds("p0", json!({"nvidia.com/gpu": "2"}), "n1").await;
    let mut asked = Vec::new();
    for name in ["p1", "p2", "p3"] {
        let pod = extender.pod(name, json!({"nvidia.com/gpu": "2"})).await;
        asked.push((name, extender.asks(&pod, "n1").await));
        extender.in_state(name, "waitingForLock").await;
    }
    for (name, stream) in &mut asked {
        extender.cluster.set_lock("n1", None).await;
        let (status, text) = super::process::answer(stream).await;
        assert_eq!((status, text.as_str()), (200, "{\"Error\":\"\"}"), "{name}");
        extender.cluster.locked_by("n1", name).await;
    }
    let mut held: Vec<String> = Vec::new();
    for name in ["p0", "p1", "p2", "p3"] {
        let pod = extender.cluster.get(name).await.unwrap();
        let allocation = DeviceAllocation::parse(&pod.annotations()[key::DEVICE_ALLOCATED]).unwrap();
        held.extend(allocation.of(&DeviceType::Gpu).iter().map(|entry| entry.id.to_string()));
    }
    held.sort();
    held.dedup();
    assert_eq!(held.len(), 8);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_leaves_takes_its_bind_out_of_the_line() {
    let extender = Extender::start(&["n1"]).await;
    extender.binds("holder", json!({"nvidia.com/gpu": "1"}), "n1").await;
    let gone = extender.pod("gone", json!({"nvidia.com/gpu": "7"})).await;
    let asked = extender.asks(&gone, "n1").await;
    extender.in_state("gone", "waitingForLock").await;
    drop(asked);
    extender.in_state("gone", "foreign").await;
    // Its place and its devices are free.
    let next = extender.pod("next", json!({"nvidia.com/gpu": "7"})).await;
    extender.cluster.set_lock("n1", None).await;
    assert_eq!(extender.bind(&next, "n1").await, "");
    assert_eq!(extender.cluster.get("gone").await.unwrap().spec.unwrap().node_name, None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_cannot_be_bound_is_an_error_that_says_why() {
    let extender = Extender::start(&["n1", "n2"]).await;
    let pod = extender.pod("a", json!({"nvidia.com/gpu": "1"})).await;
    let mut other = binding(&pod, "n1");
    other["PodUID"] = json!("00000000-0000-0000-0000-000000000000");
    let error = extender.call("/bind", &other).await["Error"].as_str().unwrap().to_owned();
    tells(error, ["created again", &pod.uid().unwrap()]);
    other["PodName"] = json!("nobody");
    tells(extender.call("/bind", &other).await["Error"].as_str().unwrap(), ["ml/nobody does not exist"]);
    assert!(extender.bind(&pod, "n9").await.contains("node n9 is not known"));
    let big = extender.pod("big", json!({"nvidia.com/gpu": "9"})).await;
    assert!(extender.bind(&big, "n1").await.contains("has fewer than 9 free GPUs"));
    assert_eq!(extender.bind(&pod, "n1").await, "");
    // Until the watch has shown the Binding, it is one under way; either way no second one is made.
    until("the bind is known", || async {
        let error = extender.bind(&pod, "n2").await;
        assert!(error.contains("is bound to node n1 already") || error.contains("node n1 is under way"), "{error}");
        error.contains("already").then_some(())
    })
    .await;
    assert_eq!(extender.cluster.lock("n2").await, None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bind_waits_for_the_lock_no_longer_than_bind_wait_and_leaves_nothing() {
    let extender = Extender::start_with(&["n1"], ", bind_wait: 400ms", &[]).await;
    extender.binds("holder", json!({"nvidia.com/gpu": "1"}), "n1").await;
    let pod = extender.pod("late", json!({"nvidia.com/gpu": "7"})).await;
    let start = tokio::time::Instant::now();
    let error = extender.bind(&pod, "n1").await;
    let taken = start.elapsed();
    println!("gave up after {taken:?}: {error}");
    tells(error, ["waited 400ms for the lock of node n1", "holder"]);
    assert!(taken >= Duration::from_millis(400), "{taken:?}");
    assert!(extender.cluster.lock("n1").await.unwrap().contains(",holder,"));
    extender.cluster.set_lock("n1", None).await;
    assert_eq!(extender.bind(&pod, "n1").await, "", "its devices were given back, and it can come again");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_binding_that_fails_releases_the_lock_and_returns_the_error() {
    // After 500 the Binding may still be made, for as long as a lock counts as not abandoned.
    let extender = Extender::start_with(&["n1"], ", bind_wait: 500ms, lock_abandoned: 2s", &[]).await;
    for status in [403, 422, 500] {
        let rule = FaultRule::on("create", "pods").below("binding");
        let id = extender.cluster.server().faults().add(rule, Effect::Answer(status, None));
        let name = format!("p{status}");
        let pod = extender.pod(&name, json!({"nvidia.com/gpu": "8"})).await;
        let error = extender.bind(&pod, "n1").await;
        println!("{status}: {error}");
        assert!(!error.is_empty(), "{status}");
        assert!(extender.cluster.server().faults().remove(id) > 0, "{status} hit nothing");
        extender.cluster.unlocked("n1").await;
        let after = extender.cluster.get(&name).await.unwrap();
        assert_eq!(after.spec.unwrap().node_name, None);
        let conditions = after.status.and_then(|status| status.conditions).unwrap_or_default();
        assert!(conditions.is_empty(), "its conditions are kube-scheduler's: {conditions:?}");
        extender.cluster.delete(&name).await;
    }
    let pod = extender.pod("well", json!({"nvidia.com/gpu": "8"})).await;
    until("the devices are free again", || async { extender.bind(&pod, "n1").await.is_empty().then_some(()) }).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_to_the_binding_that_was_lost_is_found_out() {
    let extender = Extender::start(&["n1"]).await;
    let rule = FaultRule::on("create", "pods").below("binding").times(1);
    let id = extender.cluster.server().faults().add(rule, Effect::DropAfter);
    extender.binds("a", json!({"nvidia.com/gpu": "1"}), "n1").await;
    assert_eq!(extender.cluster.server().faults().fired(id), 1);
    extender.cluster.locked_by("n1", "a").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_that_a_dead_extender_left_is_taken_up_on_its_node_and_removed_elsewhere() {
    let extender = Extender::start_with(&["n1", "n2"], ", lock_abandoned: 700ms", &[]).await;
    let now = baton::runtime::clock::wall();
    let pod = extender.pod("a", json!({"nvidia.com/gpu": "1"})).await;
    let left = format!("{now:.9},ml,a,{}", pod.uid().unwrap());
    for node in ["n1", "n2"] {
        extender.cluster.set_lock(node, Some(&left)).await;
    }
    until("the world knows the lock", || async { extender.state("a").await.map(drop) }).await;
    assert_eq!(extender.bind(&pod, "n1").await, "");
    assert!(extender.cluster.lock("n1").await.unwrap().contains(",a,"));
    extender.cluster.unlocked("n2").await;
}

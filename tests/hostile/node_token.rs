//! One node is stolen: what the token of its daemon reaches.

use baton::contract::key;
use serde_json::{Value, json};

use crate::world::{Call, LEASES, SYSTEM, World, assignment, device, pod};

const NODES: &str = "baton-node-daemon-nodes";
const DEVICES: &str = "baton-node-daemon-devices";
const LEASE_POLICY: &str = "baton-node-daemon-leases";
const OTHER: &str = "/api/v1/nodes/node-b";
const OWN: &str = "/api/v1/nodes/node-a";
const DEVICE_PATH: &str = "/apis/scheduling.koordinator.sh/v1alpha1/devices";

fn annotate(key: &str, value: Value) -> Value {
    json!({"metadata": {"annotations": {key: value}}})
}

fn lease(name: &str, holder: &str, seconds: i64) -> Value {
    json!({"metadata": {"name": name}, "spec": {"holderIdentity": holder, "leaseDurationSeconds": seconds}})
}

/// The Lease that was read, to be written by compare-and-swap.
fn held_by_the_thief(mut lease: Value, seconds: i64) -> Value {
    lease["spec"]["holderIdentity"] = json!("thief");
    lease["spec"]["leaseDurationSeconds"] = json!(seconds);
    lease
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_node_is_neither_annotated_tainted_labelled_nor_cordoned() {
    let world = World::start().await;
    let thief = world.node_daemon("node-a").await;
    let taint = json!({"spec": {"taints": [{"key": "a", "value": "b", "effect": "NoExecute"}]}});
    let calls = [
        Call::patch(OTHER, annotate("a", json!("b"))),
        Call::patch(OTHER, json!({"metadata": {"labels": {key::NODE_GPU_MODEL: "none"}}})),
        Call::patch(OTHER, json!({"metadata": {"labels": {"zone": null}}})),
        Call::patch(OTHER, taint),
        Call::patch(OTHER, json!({"spec": {"unschedulable": true}})),
    ];
    world.attack(&thief, NODES, "this token is for node node-a", &calls).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_writes_the_labels_device_and_lease_of_its_own_node_and_no_more_of_any() {
    let world = World::start().await;
    let (own, other) = (format!("{DEVICE_PATH}/node-a"), format!("{DEVICE_PATH}/node-b"));
    let leases = format!("/apis/coordination.k8s.io/v1/namespaces/{LEASES}/leases");
    let theirs = world.admin(Call::create(&leases, lease("baton-agent-node-b", "node-b", 90))).await;
    let taken_out = annotate(key::CORDONED, json!("{\"GPU-node-a\":{\"reason\":\"burns\"}}"));
    world.admin(Call::patch(&own, taken_out)).await;
    let spec = [
        Call::patch(OWN, json!({"spec": {"unschedulable": true}})),
        Call::patch(OWN, json!({"spec": {"taints": [{"key": "a", "effect": "NoSchedule"}]}})),
    ];
    let labels = [
        Call::patch(OWN, json!({"metadata": {"labels": {"node-role.kubernetes.io/control-plane": ""}}})),
        Call::patch(OWN, json!({"metadata": {"labels": {"zone": "2"}}})),
        Call::json_patch(OWN, json!([{"op": "remove", "path": "/metadata/labels/zone"}])),
    ];
    let devices = [
        Call::patch(&other, json!({"spec": {"devices": []}})),
        Call::apply(&other, device("node-b")),
        Call::create(DEVICE_PATH, device("node-c")),
        Call::apply(&format!("{DEVICE_PATH}/node-d"), device("node-d")),
    ];
    let put_back = [json!("{}"), Value::Null].map(|word| Call::patch(&own, annotate(key::CORDONED, word)));
    let of_leases = [
        Call::replace(format!("{leases}/baton-agent-node-b"), held_by_the_thief(theirs, 90)),
        Call::create(&leases, lease("baton-agent-node-c", "thief", 90)),
        Call::create(&leases, lease("anything", "thief", 90)),
    ];
    // The garbage collector deletes what belongs to an object that is not there, and a finalizer keeps what is deleted.
    let uid = "00000000-0000-0000-0000-000000000000";
    let node = json!([{"apiVersion": "v1", "kind": "Node", "name": "node-b", "uid": uid, "blockOwnerDeletion": true}]);
    let gone = json!([{"apiVersion": "v1", "kind": "ConfigMap", "name": "gone", "uid": uid}]);
    let kept = |path: &str, owner: Value| {
        [json!({"finalizers": ["example.com/keep"]}), json!({ "ownerReferences": owner })]
            .map(|metadata| Call::patch(path, json!({ "metadata": metadata })))
    };
    let all: [(&str, &str, &[Call]); 7] = [
        (NODES, "no spec of a Node", &spec),
        (NODES, "only those of its GPUs", &labels),
        (DEVICES, "this token is for node node-a", &devices),
        (DEVICES, "people have taken out", &put_back),
        (LEASE_POLICY, "this token is for node node-a", &of_leases),
        (DEVICES, "no owner but its own Node", &kept(&own, node)),
        (NODES, "neither finalizers nor owners", &kept(OWN, gone)),
    ];
    world.attacks(&world.node_daemon("node-a").await, &all).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_locks_no_node_not_even_its_own() {
    let world = World::start().await;
    world.served_pod("victim", "node-a").await;
    let thief = world.node_daemon("node-a").await;
    let old = "2026-11-22T10:00:00.000000000Z,ml,victim,00000000-0000-0000-0000-000000000000";
    let calls = [
        Call::patch(OWN, annotate(key::NODE_LOCK, json!(old))),
        Call::patch(OWN, annotate("a", json!("b"))),
        Call::apply(
            OWN,
            json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node-a", "annotations": {"c": "d"}}}),
        ),
    ];
    world.attack(&thief, "denied request", "node lock", &calls).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_neither_sets_nor_removes_the_lock_of_another_node() {
    let world = World::start().await;
    world.admin(Call::patch(OTHER, annotate(key::NODE_LOCK, json!("2026-11-22T10:00:00Z,ml,other,uid")))).await;
    let thief = world.node_daemon("node-a").await;
    let lock = "/metadata/annotations/scheduling.koordinator.sh~1node-lock";
    let calls = [
        Call::patch(OTHER, annotate(key::NODE_LOCK, json!("2026-11-22T10:00:00Z,ml,victim,uid"))),
        Call::json_patch(OTHER, json!([{"op": "remove", "path": lock}])),
    ];
    // Two policies deny it, each by itself.
    world.remove_policy(NODES).await;
    world.attack(&thief, "baton-node-locks", "the node lock is set by", &calls).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_leaders_lease_is_out_of_reach_by_rights_and_by_policy() {
    let world = World::start().await;
    let path = format!("/apis/coordination.k8s.io/v1/namespaces/{SYSTEM}/leases");
    let leader =
        world.admin(Call::patch(format!("{path}/baton-scheduler"), lease("baton-scheduler", "the-leader", 15))).await;
    let thief = world.node_daemon("node-a").await;
    let take = Call::replace(format!("{path}/baton-scheduler"), held_by_the_thief(leader, 2_000_000_000));
    let why = take.send(&thief).await.unwrap_err();
    assert!(why.contains("cannot update resource"), "rights alone: {why}");

    // A role that grants too much.
    let rules =
        json!([{"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["get", "create", "update"]}]);
    let daemons = json!({"kind": "ServiceAccount", "name": "baton-device-plugin", "namespace": SYSTEM});
    world.role(Some(SYSTEM), "too-much", rules, daemons).await;
    crate::harness::wait::until("the role counts", crate::world::SOON, async || {
        take.send(&thief).await.err().filter(|why| !why.contains("cannot update resource"))
    })
    .await;
    let own_name = Call::create(&path, lease("baton-agent-node-a", "node-a", 90));
    world.attack(&thief, LEASE_POLICY, "this token is for node node-a", &[take, own_name]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_token_that_is_bound_to_no_node_writes_nothing() {
    let world = World::start().await;
    let path = format!("/apis/coordination.k8s.io/v1/namespaces/{LEASES}/leases");
    let thief = world.client_of(SYSTEM, "baton-device-plugin", None).await;
    let label = Call::patch(OWN, json!({"metadata": {"labels": {key::NODE_GPU_VENDOR: "nvidia"}}}));
    let calls = [
        label,
        Call::apply(&format!("{DEVICE_PATH}/node-a"), device("node-a")),
        Call::create(&path, lease("baton-agent-node-a", "x", 90)),
    ];
    world.attack(&thief, "baton-node-daemon-", "this token is for no node", &calls).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pods_are_not_its_to_write() {
    let world = World::start().await;
    world.served_pod("victim", "node-b").await;
    let thief = world.node_daemon("node-a").await;
    let binding =
        json!({"metadata": {"name": "new", "annotations": assignment()}, "target": {"kind": "Node", "name": "node-a"}});
    for call in [
        Call::patch("/api/v1/namespaces/ml/pods/victim", annotate(key::DEVICE_ALLOCATED, json!("{}"))),
        Call::delete("/api/v1/namespaces/ml/pods/victim"),
        Call::create("/api/v1/namespaces/ml/pods", pod("new", json!({}))),
        Call::create("/api/v1/namespaces/ml/pods/new/binding", binding),
        Call::delete(OTHER),
        Call::delete(format!("{DEVICE_PATH}/node-b")),
    ] {
        let why = call.send(&thief).await.unwrap_err();
        assert!(why.contains("cannot"), "{call:?}: {why}");
    }
}

//! What a tenant, a kubelet or the scheduler's token writes of other people's devices.

use baton::contract::{gang, key};
use serde_json::{Value, json};

use crate::world::{Call, World, assignment, pod};

const ASSIGNMENTS: &str = "baton-assignments";
const PINNED: &str = "baton-pinned-pods";
const LOCKS: &str = "baton-node-locks";
const PODS: &str = "/api/v1/namespaces/ml/pods";

fn annotate(key: &str, value: Value) -> Value {
    json!({"metadata": {"annotations": {key: value}}})
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_assignment_of_a_running_pod_is_neither_changed_nor_removed() {
    let world = World::start().await;
    world.served_pod("own", "node-a").await;
    let path = format!("{PODS}/own");
    let mut calls: Vec<Call> =
        key::SCHEDULER_KEYS.iter().map(|of| Call::patch(&path, annotate(of, json!("forged")))).collect();
    // Without its key, and with all annotations gone at once.
    calls.push(Call::patch(&path, annotate(key::DEVICE_ALLOCATED, Value::Null)));
    calls.push(Call::patch(format!("{path}/status"), annotate(key::GPU_MINORS, json!("7"))));
    calls.push(Call::apply(
        &path,
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "own", "annotations": {key::BIND_TIMESTAMP: "1"}}}),
    ));
    calls.push(Call::patch(&path, json!({"metadata": {"annotations": null}})));
    world.attack(&world.tenant().await, ASSIGNMENTS, "is the scheduler's to write", &calls).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pod_does_not_come_with_an_assignment() {
    let world = World::start().await;
    let mut forged = pod("forged", json!({"koordinator.sh/gpu-memory": "1"}));
    forged["metadata"]["annotations"] = assignment();
    let mut timed_out = pod("timed-out", json!({}));
    timed_out["metadata"]["annotations"] = json!({gang::key::TIMEOUT: "true"});
    let calls = [Call::create(PODS, forged), Call::create(PODS, timed_out)];
    world.attack(&world.tenant().await, ASSIGNMENTS, "leave it out", &calls).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_stranger_binds_with_an_assignment() {
    let world = World::start().await;
    for name in ["one", "two"] {
        world.admin(Call::create(PODS, pod(name, json!({"nvidia.com/gpu": "1"})))).await;
    }
    let binding = |name: &str| json!({"metadata": {"name": name, "annotations": assignment()}, "target": {"kind": "Node", "name": "node-a"}});
    let calls = [
        Call::create(format!("{PODS}/one/binding"), binding("one")),
        Call::create("/api/v1/namespaces/ml/bindings", binding("two")),
    ];
    world.attack(&world.tenant().await, ASSIGNMENTS, "is the scheduler's to write", &calls).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gang_is_not_marked_as_timed_out_by_its_owner_but_the_mark_is_taken_off() {
    let world = World::start().await;
    let path = format!("{PODS}/member");
    world.admin(Call::create(PODS, pod("member", json!({})))).await;
    let tenant = world.tenant().await;
    let mark = annotate(gang::key::TIMEOUT, json!("true"));
    let why = Call::patch(&path, mark.clone()).send(&tenant).await.unwrap_err();
    assert!(why.contains(ASSIGNMENTS), "{why}");
    world.admin(Call::patch(&path, mark.clone())).await;
    world.allowed(&tenant, &[Call::patch(&path, annotate(gang::key::TIMEOUT, Value::Null))]).await;
    world.attack(&tenant, ASSIGNMENTS, "timeout", &[Call::patch(&path, mark)]).await;
}

/// A pod that comes with its node and asks for `limits`.
fn pinned(name: &str, limits: Value) -> Value {
    let mut pinned = pod(name, limits);
    pinned["spec"]["nodeName"] = json!("node-a");
    pinned
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pod_that_asks_for_devices_does_not_come_with_its_node() {
    let world = World::start().await;
    let names = key::DEVICE_NAMES.iter().copied().chain(["nvidia.com/mig-9g.999gb", "nvidia.com/mig-1g.5gb"]);
    let mut calls: Vec<Call> =
        names.enumerate().map(|(at, name)| Call::create(PODS, pinned(&format!("p{at}"), json!({name: "1"})))).collect();
    let mut early = pinned("early", json!({}));
    early["spec"]["initContainers"] =
        json!([{"name": "first", "image": "i", "resources": {"limits": {"nvidia.com/gpu": "1"}}}]);
    let mut mirror = pinned("mirror", json!({"nvidia.com/gpu": "1"}));
    mirror["metadata"]["annotations"] = json!({"kubernetes.io/config.mirror": "forged"});
    let mut asked = pinned("asked", json!({"nvidia.com/gpu": "1"}));
    asked["spec"]["containers"][0]["resources"]["requests"] = json!({"nvidia.com/gpu": "1"});
    calls.extend([early, mirror, asked].map(|pod| Call::create(PODS, pod)));
    world.attack(&world.tenant().await, PINNED, "leaves out spec.nodeName", &calls).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_node_lock_is_set_by_no_kubelet() {
    let world = World::start().await;
    let kubelet = world.kubelet("node-a").await;
    let lock = json!("2026-11-22T10:00:00Z,ml,victim,uid");
    let own = "/api/v1/nodes/node-a";
    let calls = [
        Call::patch(own, annotate(key::NODE_LOCK, lock.clone())),
        Call::patch(format!("{own}/status"), annotate(key::NODE_LOCK, json!("another"))),
        Call::create("/api/v1/nodes", json!({"metadata": {"name": "node-z", "annotations": {key::NODE_LOCK: lock}}})),
    ];
    world.attack(&kubelet, LOCKS, "the node lock is set by", &calls).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_node_lock_is_removed_by_no_kubelet_and_no_other_node() {
    let world = World::start().await;
    let own = "/api/v1/nodes/node-a";
    world.admin(Call::patch(own, annotate(key::NODE_LOCK, json!("2026-11-22T10:00:00Z,ml,victim,uid")))).await;
    let kubelet = world.kubelet("node-a").await;
    world
        .attack(&kubelet, LOCKS, "the node lock is set by", &[Call::patch(own, annotate(key::NODE_LOCK, Value::Null))])
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_schedulers_token_neither_changes_nor_makes_other_peoples_pod_groups() {
    let world = World::start().await;
    let path = "/apis/scheduling.sigs.k8s.io/v1alpha1/namespaces/ml/podgroups";
    let group = |name: &str, labels: Value| json!({"apiVersion": "scheduling.sigs.k8s.io/v1alpha1", "kind": "PodGroup", "metadata": {"name": name, "labels": labels}, "spec": {"minMember": 2}});
    let ours = json!({gang::key::MANAGED_BY: gang::key::MANAGED_BY_BATON});
    world.admin(Call::create(path, group("theirs", json!({})))).await;
    let scheduler = world.scheduler().await;
    let made = [
        Call::create(path, group("made", ours.clone())),
        Call::patch(format!("{path}/theirs/status"), json!({"status": {"phase": "Pending"}})),
    ];
    world.allowed(&scheduler, &made).await;
    let calls = [
        Call::create(path, group("forged", json!({}))),
        Call::patch(format!("{path}/theirs"), json!({"spec": {"minMember": 9}})),
        Call::patch(format!("{path}/theirs"), json!({"metadata": {"labels": ours}})),
    ];
    world.attack(&scheduler, "baton-pod-groups", "only PodGroups with its label", &calls).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_controllers_token_makes_no_pod_beside_daemons_and_none_that_no_tyjob_owns() {
    let world = World::start().await;
    let controller = world.client_of("baton-system", "baton-controller", None).await;
    let owner = |kind: &str| json!([{"apiVersion": "arranger.taichu.io/v1alpha1", "kind": kind, "name": "j", "uid": "00000000-0000-0000-0000-000000000000", "controller": true}]);
    let mut member = pod("member", json!({"nvidia.com/gpu": "1"}));
    member["metadata"]["ownerReferences"] = owner("TYJob");
    world.allowed(&controller, &[Call::create(PODS, member.clone())]).await;
    member["metadata"]["name"] = json!("beside");
    let calls = [
        Call::create("/api/v1/namespaces/baton-system/pods", member.clone()),
        Call::create("/api/v1/namespaces/kube-system/pods", member),
        Call::create(PODS, pod("alone", json!({}))),
    ];
    world.attack(&controller, "baton-controller-pods", "only pods that a TYJob owns", &calls).await;
}

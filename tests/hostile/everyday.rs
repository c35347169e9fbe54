//! What clusters do all day, with every policy in force: nothing of it is denied.

use baton::contract::key;
use kube::Client;
use serde_json::{Value, json};

use crate::world::{Call, LEASES, SYSTEM, World, assignment, device, pod, user};

const PODS: &str = "/api/v1/namespaces/ml/pods";
const NODE: &str = "/api/v1/nodes/node-a";

fn annotate(key: &str, value: Value) -> Value {
    json!({"metadata": {"annotations": {key: value}}})
}

fn lock() -> Value {
    json!("2026-11-22T10:00:00.000000000Z,ml,served,00000000-0000-0000-0000-000000000000")
}

/// A controller of kube-system, with rights over pods and nodes and none to override.
async fn controller(world: &World, name: &str) -> Client {
    let account = format!("system:serviceaccount:kube-system:{name}");
    let rules = json!([{"apiGroups": ["", "policy"], "resources": ["*"], "verbs": ["*"]}]);
    world.role(None, name, rules, user(&account)).await;
    world.acting_as(&account, &["system:serviceaccounts"]).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kubelets_report_nodes_and_pods_and_make_mirror_pods() {
    let world = World::start().await;
    world.served_pod("served", "node-a").await;
    world.admin(Call::patch(NODE, annotate(key::NODE_LOCK, lock()))).await;
    let mut mirror = pod("static", json!({"nvidia.com/gpu": "1"}));
    mirror["spec"]["nodeName"] = json!("node-a");
    mirror["metadata"]["annotations"] =
        json!({"kubernetes.io/config.mirror": "1", "kubernetes.io/config.source": "file"});
    let ready =
        json!({"status": {"conditions": [{"type": "Ready", "status": "True"}], "capacity": {"nvidia.com/gpu": "1"}}});
    let running = json!({"status": {"phase": "Running"}});
    let kubelet = world.kubelet("node-a").await;
    let calls = [
        Call::patch(format!("{NODE}/status"), ready),
        Call::patch(
            NODE,
            json!({"metadata": {"annotations": {"node.alpha.kubernetes.io/ttl": "0"}, "labels": {"kubernetes.io/os": "linux"}}}),
        ),
        Call::create("/api/v1/nodes", json!({"metadata": {"name": "node-new"}})),
        Call::patch(format!("{PODS}/served/status"), running),
        Call::create(PODS, mirror),
    ];
    world.allowed(&kubelet, &calls).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn controllers_taint_collect_finish_and_evict() {
    let world = World::start().await;
    for name in ["served", "evicted", "collected"] {
        world.served_pod(name, "node-a").await;
    }
    world.admin(Call::patch(NODE, annotate(key::NODE_LOCK, lock()))).await;
    let taint = json!({"spec": {"taints": [{"key": "node.kubernetes.io/unreachable", "effect": "NoExecute"}]}});
    let served = format!("{PODS}/served");
    let eviction = json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "evicted"}});
    let calls = [
        // The node lifecycle controller, drain, uncordon.
        Call::patch(NODE, taint),
        Call::patch(NODE, json!({"spec": {"unschedulable": true}})),
        Call::create(format!("{PODS}/evicted/eviction"), eviction),
        Call::patch(NODE, json!({"spec": {"unschedulable": null, "taints": null}})),
        // Job controller, garbage collector, StatefulSet controller, ReplicaSet controller.
        Call::patch(&served, json!({"metadata": {"finalizers": ["batch.kubernetes.io/job-tracking"]}})),
        Call::patch(&served, json!({"metadata": {"finalizers": null}})),
        Call::patch(&served, json!({"metadata": {"labels": {"statefulset.kubernetes.io/pod-name": "served"}}})),
        Call::patch(&served, json!({"metadata": {"ownerReferences": null}})),
        Call::patch(
            format!("{served}/status"),
            json!({"status": {"conditions": [{"type": "DisruptionTarget", "status": "True"}]}}),
        ),
        Call::delete(format!("{PODS}/collected")),
    ];
    world.allowed(&controller(&world, "all-controllers").await, &calls).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn other_schedulers_bind_and_pods_without_devices_come_with_their_node() {
    let world = World::start().await;
    for name in ["plain", "legacy"] {
        world.admin(Call::create(PODS, pod(name, json!({})))).await;
    }
    let binding = |name: &str| json!({"metadata": {"name": name, "annotations": {"example.com/by": "kube-scheduler"}}, "target": {"kind": "Node", "name": "node-a"}});
    let mut pinned = pod("pinned", json!({"cpu": "1", "memory": "1Gi", "example.com/fpga": "1"}));
    pinned["spec"]["nodeName"] = json!("node-a");
    let calls = [
        Call::create(format!("{PODS}/plain/binding"), binding("plain")),
        Call::create("/api/v1/namespaces/ml/bindings", binding("legacy")),
        Call::create(PODS, pinned),
        Call::create(PODS, pod("waiting", json!({"nvidia.com/gpu": "1"}))),
        Call::patch(format!("{PODS}/waiting/status"), json!({"status": {"nominatedNodeName": "node-a"}})),
    ];
    world.allowed(&controller(&world, "kube-scheduler").await, &calls).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tenants_edit_what_is_theirs_of_a_served_pod() {
    let world = World::start().await;
    world.served_pod("served", "node-a").await;
    let path = format!("{PODS}/served");
    let applied = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "served", "labels": {"team": "a"}, "annotations": {"example.com/note": "b"}}});
    let calls = [
        Call::apply(&path, applied),
        Call::patch(&path, json!({"metadata": {"annotations": {"example.com/note": "c"}}})),
        Call::patch(&path, json!({"spec": {"activeDeadlineSeconds": 3600}})),
        Call::delete(&path),
    ];
    world.allowed(&world.tenant().await, &calls).await;
    let mut hinted = pod("hinted", json!({"nvidia.com/gpu": "1"}));
    hinted["metadata"]["annotations"] =
        json!({key::DEVICE_ALLOCATE_HINT: "{}", "gang.scheduling.koordinator.sh/name": "g"});
    world.allowed(&world.tenant().await, &[Call::create(PODS, hinted)]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn our_daemons_do_their_work() {
    let world = World::start().await;
    let daemon = world.node_daemon("node-a").await;
    let (vendor, model, driver) = (key::NODE_GPU_VENDOR, key::NODE_GPU_MODEL, key::NODE_GPU_DRIVER);
    let leases = format!("/apis/coordination.k8s.io/v1/namespaces/{LEASES}/leases");
    let lease = json!({"metadata": {"name": "baton-agent-node-a"}, "spec": {"holderIdentity": "node-a"}});
    let devices = "/apis/scheduling.koordinator.sh/v1alpha1/devices";
    let scheduler = world.scheduler().await;
    world.admin(Call::create(PODS, pod("bound", json!({"nvidia.com/gpu": "1"})))).await;
    let binding = json!({"metadata": {"name": "bound", "annotations": assignment()}, "target": {"kind": "Node", "name": "node-a"}});
    // The manifests bring the leader's Lease; one that is gone is made again.
    let of_leaders = format!("/apis/coordination.k8s.io/v1/namespaces/{SYSTEM}/leases");
    world.admin(Call::delete(format!("{of_leaders}/baton-scheduler"))).await;
    world
        .allowed(
            &scheduler,
            &[
                Call::patch(NODE, annotate(key::NODE_LOCK, lock())),
                Call::create(format!("{PODS}/bound/binding"), binding),
                Call::create(of_leaders, json!({"metadata": {"name": "baton-scheduler"}})),
            ],
        )
        .await;
    world.allowed(&daemon, &[
        Call::json_patch(NODE, json!([{"op": "test", "path": "/metadata/annotations/scheduling.koordinator.sh~1node-lock", "value": lock()},
            {"op": "remove", "path": "/metadata/annotations/scheduling.koordinator.sh~1node-lock"}])),
        Call::patch(NODE, json!({"metadata": {"labels": {vendor: "nvidia", model: "H200", driver: "570"}}})),
        Call::patch(NODE, json!({"metadata": {"labels": {vendor: null}}})),
        Call::apply(&format!("{devices}/node-a"), device("node-a")),
        Call::create(&leases, lease),
        Call::patch(NODE, json!({"metadata": {"labels": {model: "H100"}}})),
    ]).await;
    // A lock that stays is taken over.
    let again = [
        Call::patch(NODE, annotate(key::NODE_LOCK, lock())),
        Call::patch(NODE, annotate(key::NODE_LOCK, json!("another"))),
        Call::patch(NODE, annotate(key::NODE_LOCK, Value::Null)),
    ];
    world.allowed(&scheduler, &again).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_operator_with_the_right_to_override_breaks_the_glass() {
    let world = World::start().await;
    world.served_pod("served", "node-a").await;
    // The administrator of these tests has every right, `use` on overrides.baton.io among them.
    let mut pinned = pod("pinned", json!({"nvidia.com/gpu": "1"}));
    pinned["spec"]["nodeName"] = json!("node-a");
    for call in [
        Call::patch(NODE, annotate(key::NODE_LOCK, lock())),
        Call::patch(NODE, annotate(key::NODE_LOCK, Value::Null)),
        Call::patch(format!("{PODS}/served"), annotate(key::GPU_MINORS, json!("1"))),
        Call::create(PODS, pinned),
    ] {
        world.admin(call).await;
    }
    // A tenant gets it by a role that says so, and only by that.
    let tenant = world.tenant().await;
    let forge = Call::patch(format!("{PODS}/served"), annotate(key::GPU_MINORS, json!("2")));
    assert!(forge.send(&tenant).await.is_err());
    let rules = json!([{"apiGroups": ["baton.io"], "resources": ["overrides"], "verbs": ["use"]}]);
    world.role(None, "glass", rules, user("tenant")).await;
    crate::harness::wait::until("the override counts", crate::world::SOON, async || forge.send(&tenant).await.ok())
        .await;
}

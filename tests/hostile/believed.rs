//! The same attacks where no admission policy stands, or where the writer is a cluster-admin: what the node itself knows outweighs what an
//! annotation says.

use std::collections::BTreeSet;

use baton::contract::{DeviceId, DeviceType, key};
use baton::ops::manifests::Values;
use jiff::Timestamp;
use kube::ResourceExt;
use serde_json::{Value, json};

use crate::harness::pods::pod;
use crate::harness::wait::until;
use crate::harness::{NAMESPACE, QUICK_LEASE, SOON, TestCluster, TestServer, timings};
use crate::world::Call;

/// One node with 8 GPUs, no policies.
async fn cluster() -> TestCluster {
    let server = TestServer::start().await;
    server.install_without_policies(&Values { namespace: NAMESPACE.to_owned(), ..Values::default() }).await;
    TestCluster::on(server, 1, &[], &[&timings(QUICK_LEASE)]).await
}

async fn patch(cluster: &TestCluster, path: &str, annotations: serde_json::Value) {
    Call::patch(path, json!({"metadata": {"annotations": annotations}})).send(&cluster.client).await.expect("written");
}

/// The GPU that the kubelet gave to a pod.
fn gpu(cluster: &TestCluster, name: &str) -> Option<DeviceId> {
    cluster.in_kubelet("node-0", name).remove(&DeviceType::Gpu).and_then(|held| held.into_iter().next())
}

/// `device-allocated` and `container-devices` with one GPU, in place of what the scheduler wrote.
async fn edit(cluster: &TestCluster, name: &str, from: &DeviceId, to: &DeviceId) {
    let pod = cluster.pod(name).await.unwrap();
    let text = |key: &str| pod.annotations()[key].replace(from.as_str(), to.as_str());
    let edited = json!({key::DEVICE_ALLOCATED: text(key::DEVICE_ALLOCATED), key::CONTAINER_DEVICES: text(key::CONTAINER_DEVICES)});
    patch(cluster, &format!("/api/v1/namespaces/default/pods/{name}"), edited).await;
}

/// A GPU of the node that the pod does not hold.
async fn another(cluster: &TestCluster, held: &DeviceId) -> DeviceId {
    let path = "/apis/scheduling.koordinator.sh/v1alpha1/devices/node-0";
    let device = Call::get(path).send(&cluster.client).await.unwrap();
    let ids = device["spec"]["devices"].as_array().unwrap().iter().filter(|entry| entry["type"] == "gpu");
    let mut ids = ids.map(|entry| DeviceId::parse(entry["id"].as_str().unwrap()).unwrap());
    ids.find(|id| id != held).unwrap()
}

/// A new scheduler, and a daemon that has lost its ledger; waits until that says that `edited` may hold these devices.
async fn start_without_ledger(cluster: &mut TestCluster, held: &[&DeviceId]) {
    std::fs::remove_file(cluster.path("node-0/state/ledger.json")).expect("the ledger was there");
    cluster.scheduler.restart();
    cluster.restart_agent(0).await;
    until("the daemon says what the pod holds", SOON, async || {
        let (_, out, _) = cluster.baton(&["audit", "--baton-namespace", NAMESPACE]).await;
        (out.contains("default/edited") && held.iter().all(|id| out.contains(id.as_str()))).then_some(())
    })
    .await;
}

/// Creates pods with one GPU each, and waits until so many of them run; none has a GPU that is `taken`.
async fn fill(cluster: &TestCluster, count: usize, run: usize, taken: &DeviceId) {
    create(cluster, count).await;
    until_filled(cluster, count, run, taken).await;
}

async fn create(cluster: &TestCluster, count: usize) {
    for at in 0..count {
        cluster.create(&pod(&format!("p{at}")).app("main", &[("nvidia.com/gpu", "1")])).await;
    }
}

async fn until_filled(cluster: &TestCluster, count: usize, run: usize, taken: &DeviceId) {
    let names: Vec<String> = (0..count).map(|at| format!("p{at}")).collect();
    until(&format!("{run} of {count} pods have a GPU"), SOON, async || {
        (names.iter().filter(|name| gpu(cluster, name).is_some()).count() >= run).then_some(())
    })
    .await;
    let mut held = BTreeSet::from([taken.clone()]);
    for name in &names {
        let Some(id) = gpu(cluster, name) else { continue };
        assert!(held.insert(id.clone()), "{id} is in two containers, one of them {name}'s");
        let phase = cluster.pod(name).await.and_then(|pod| pod.status?.phase).unwrap_or_default();
        assert_ne!(phase, "Failed", "{name} was sent to a GPU that is taken");
    }
    let running = names.iter().filter(|name| gpu(cluster, name).is_some()).count();
    assert_eq!(running, run);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_old_lock_that_names_a_running_pod_deletes_nothing() {
    let cluster = cluster().await;
    cluster.runs(&pod("victim").app("main", &[("nvidia.com/gpu", "1")])).await;
    cluster.until_unlocked(SOON).await;
    let uid = cluster.pod("victim").await.unwrap().uid().unwrap();
    let alive = async || {
        let victim = cluster.pod("victim").await.expect("the victim is there");
        assert_eq!((victim.uid(), victim.metadata.deletion_timestamp), (Some(uid.clone()), None));
    };
    let forge = async |time: Timestamp| {
        let value = format!("{time:.9},default,victim,{uid}");
        patch(&cluster, "/api/v1/nodes/node-0", json!({key::NODE_LOCK: value})).await;
        value
    };
    // As old as it may be. The daemon, which would remove it, stands still: the scheduler alone judges it, for a pod that waits.
    let stamp: i128 = cluster.pod("victim").await.unwrap().annotations()[key::BIND_TIMESTAMP].parse().unwrap();
    let own = Timestamp::from_nanosecond(stamp).unwrap();
    cluster.nodes[0].agent.signal("STOP");
    let value = forge(own - jiff::SignedDuration::from_hours(1)).await;
    cluster.create(&pod("next").app("main", &[("nvidia.com/gpu", "1")])).await;
    until("the forged lock is taken over", SOON, async || {
        (cluster.lock("node-0").await != Some(value.clone())).then_some(())
    })
    .await;
    alive().await;
    cluster.nodes[0].agent.signal("CONT");
    cluster.until_running("next").await;
    // With the time of its own bind; its removal shows that it was judged.
    forge(own).await;
    cluster.until_unlocked(SOON).await;
    alive().await;
    assert!(cluster.scheduler.output().lines().all(|line| !line.contains("holder deleted")));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_edited_annotation_frees_no_device_not_even_after_a_fail_over() {
    let mut cluster = cluster().await;
    cluster.runs(&pod("edited").app("main", &[("nvidia.com/gpu", "1")])).await;
    let held = until("the kubelet knows its GPU", SOON, async || gpu(&cluster, "edited")).await;
    let other = another(&cluster, &held).await;
    edit(&cluster, "edited", &held, &other).await;
    // A scheduler that has only ever seen the edited version.
    cluster.scheduler.restart();
    until("the daemon says what the pod holds", SOON, async || {
        let (code, out, _) = cluster.baton(&["audit", "--baton-namespace", NAMESPACE]).await;
        (code == Some(1) && out.contains(held.as_str()) && out.contains("default/edited")).then_some(())
    })
    .await;
    fill(&cluster, 8, 7, &held).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_edited_annotation_and_a_lost_ledger_give_neither_set_of_devices_away() {
    let mut cluster = cluster().await;
    cluster.runs(&pod("edited").app("main", &[("nvidia.com/gpu", "1")])).await;
    let held = until("the kubelet knows its GPU", SOON, async || gpu(&cluster, "edited")).await;
    let other = another(&cluster, &held).await;
    cluster.until_unlocked(SOON).await;
    cluster.nodes[0].agent.kill();
    edit(&cluster, "edited", &held, &other).await;
    start_without_ledger(&mut cluster, &[&held, &other]).await;
    fill(&cluster, 7, 6, &held).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shortened_annotation_and_a_lost_ledger_free_no_answered_device() {
    let mut cluster = cluster().await;
    cluster.runs(&pod("edited").app("main", &[("nvidia.com/gpu", "2")])).await;
    let held = until("the kubelet knows its GPUs", SOON, async || {
        cluster.in_kubelet("node-0", "edited").remove(&DeviceType::Gpu).filter(|held| held.len() == 2)
    })
    .await;
    cluster.until_unlocked(SOON).await;
    cluster.nodes[0].agent.kill();
    // Half of it. A pod may have been served with devices that its ids do not name, so the ids prove nothing here.
    let (first, second) = (held.first().unwrap(), held.last().unwrap());
    let annotations = cluster.pod("edited").await.unwrap().annotations().clone();
    let mut allocated: Value = serde_json::from_str(&annotations[key::DEVICE_ALLOCATED]).unwrap();
    let mut split: Value = serde_json::from_str(&annotations[key::CONTAINER_DEVICES]).unwrap();
    for list in [&mut allocated["gpu"], &mut split["containers"]["main"]["gpu"]] {
        list.as_array_mut().unwrap().retain(|entry| entry["id"] == first.as_str());
    }
    let edited = json!({key::DEVICE_ALLOCATED: allocated.to_string(), key::CONTAINER_DEVICES: split.to_string()});
    patch(&cluster, "/api/v1/namespaces/default/pods/edited", edited).await;
    start_without_ledger(&mut cluster, &[second]).await;
    let (_, out, _) = cluster.baton(&["get", "pods", "--baton-namespace", NAMESPACE]).await;
    assert!(out.contains("which its annotation does not say"), "{out}");
    fill(&cluster, 7, 6, second).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_daemon_that_cannot_unlock_says_so_and_the_next_pod_gets_the_node() {
    let cluster = cluster().await;
    let path = "/apis/admissionregistration.k8s.io/v1";
    let rules = json!([{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["UPDATE"], "resources": ["nodes"]}]);
    let rule =
        json!([{"expression": "!request.userInfo.username.endsWith(':baton-device-plugin')", "message": "not now"}]);
    let spec = json!({"failurePolicy": "Fail", "matchConstraints": {"resourceRules": rules}, "validations": rule});
    let policy = json!({"metadata": {"name": "no-unlock"}, "spec": spec});
    let binding =
        json!({"metadata": {"name": "no-unlock"}, "spec": {"policyName": "no-unlock", "validationActions": ["Deny"]}});
    for (plural, object) in [("validatingadmissionpolicies", policy), ("validatingadmissionpolicybindings", binding)] {
        Call::create(format!("{path}/{plural}"), object).send(&cluster.client).await.expect("written");
    }
    let daemon = cluster.client_of(NAMESPACE, "baton-device-plugin", Some("node-0")).await;
    until("the policy is in force", SOON, async || {
        let label = json!({"metadata": {"labels": {"node.koordinator.sh/gpu-model": "x"}}});
        Call::patch("/api/v1/nodes/node-0", label).send(&daemon).await.err().filter(|why| why.contains("not now"))
    })
    .await;
    // Far within the expiry of five minutes.
    for name in ["first", "second", "third"] {
        cluster.create(&pod(name).app("main", &[("nvidia.com/gpu", "1")])).await;
    }
    for name in ["first", "second", "third"] {
        cluster.until_running(name).await;
    }
    assert!(cluster.scheduler.output().lines().all(|line| !line.contains("holder deleted")));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn edited_amounts_and_a_lost_ledger_make_no_room_on_a_gpu_that_is_taken() {
    let mut cluster = cluster().await;
    cluster.runs(&pod("edited").app("main", &[("nvidia.com/gpu", "1")])).await;
    let held = until("the kubelet knows its GPU", SOON, async || gpu(&cluster, "edited")).await;
    cluster.until_unlocked(SOON).await;
    cluster.nodes[0].agent.kill();
    let annotations = cluster.pod("edited").await.unwrap().annotations().clone();
    let text = |key: &str| annotations[key].replace("\"100\"", "\"1\"");
    let edited = json!({key::DEVICE_ALLOCATED: text(key::DEVICE_ALLOCATED), key::CONTAINER_DEVICES: text(key::CONTAINER_DEVICES)});
    patch(&cluster, "/api/v1/namespaces/default/pods/edited", edited).await;
    start_without_ledger(&mut cluster, &[&held]).await;
    fill(&cluster, 8, 7, &held).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pods_that_come_with_their_node_and_a_forged_assignment_take_no_devices() {
    let cluster = cluster().await;
    let all = Call::get("/apis/scheduling.koordinator.sh/v1alpha1/devices/node-0").send(&cluster.client).await.unwrap();
    let gpus = all["spec"]["devices"].as_array().unwrap().iter().filter(|entry| entry["type"] == "gpu");
    let whole = json!({"koordinator.sh/gpu-core": "100", "koordinator.sh/gpu-memory-ratio": "100"});
    let entries: Vec<_> = gpus.map(|gpu| json!({"minor": gpu["minor"], "id": gpu["id"], "resources": whole})).collect();
    let forged = json!({"gpu": entries}).to_string();
    for (at, name) in [key::GPU_MEMORY, "nvidia.com/mig-9g.999gb"].into_iter().enumerate() {
        let containers = json!([{"name": "main", "image": "i", "resources": {"limits": {name: "1"}}}]);
        // For a node that has no kubelet to refuse it: what counts is the scheduler's account.
        let pod = json!({"metadata": {"name": format!("pinned-{at}"), "annotations": {key::DEVICE_ALLOCATED: forged}},
            "spec": {"nodeName": "node-0", "schedulerName": "none", "containers": containers}});
        Call::create("/api/v1/namespaces/default/pods", pod).send(&cluster.client).await.expect("no policy stands");
    }
    let none = DeviceId::parse("GPU-none").unwrap();
    fill(&cluster, 8, 8, &none).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pod_that_a_dead_leader_has_bound_counts_before_its_daemon_has_heard_of_it() {
    let mut cluster = cluster().await;
    cluster.nodes[0].agent.signal("STOP");
    cluster.create(&pod("first").app("main", &[("nvidia.com/gpu", "1")])).await;
    until("the first pod is bound", SOON, async || cluster.pod("first").await?.spec?.node_name).await;
    let assigned = cluster.assigned("first").await.remove(&DeviceType::Gpu).unwrap().pop_first().unwrap();
    cluster.scheduler.restart();
    create(&cluster, 8).await;
    until("the new leader has tried all pods", SOON, async || {
        let (_, out, _) = cluster.baton(&["get", "pods", "--baton-namespace", NAMESPACE]).await;
        out.contains("free GPU").then_some(())
    })
    .await;
    cluster.nodes[0].agent.signal("CONT");
    until_filled(&cluster, 8, 7, &assigned).await;
    assert_eq!(until("the kubelet knows its GPU", SOON, async || gpu(&cluster, "first")).await, assigned);
}

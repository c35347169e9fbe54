//! What breaks around the hand-off.

use baton::agent::handoff::NodeView;
use baton::contract::deviceplugin::{AllocateRequest, ContainerAllocateRequest};
use baton::contract::key::NODE_LOCK;
use baton::sim::apiserver::{Blackout, Effect, FaultRule};

use super::handoff_node::{HandoffNode, NODE, eventually};
use super::pods::Kind::{App, Sidecar};
use super::pods::{container, gpus, pod};
use crate::prelude::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_restart_the_lock_of_a_served_pod_is_released_and_the_ledger_goes_on() {
    let mut machine = HandoffNode::start().await;
    let a = gpus("a", &["GPU-5"]);
    let uid = machine.create(&a).await;
    let time = machine.lock("a", &uid).await;
    let rule = machine.server().faults().add(FaultRule::on("patch", "nodes"), Effect::Answer(503, None));
    machine.bind(&a, &uid, time).await;
    machine.runs("a").await;
    assert_ne!(machine.lock_now(), LockRead::Free, "it could not be released");
    machine.stop_agent().await;
    machine.server().faults().remove(rule);
    machine.start_agent().await;
    let began = baton::runtime::clock::mono();
    machine.agrees(&a).await;
    println!("lock gone {:?} after the restart", baton::runtime::clock::mono() - began);
    machine.schedule(&gpus("b", &["GPU-5"])).await;
    assert!(machine.refused("b").await.contains("held by default/a"), "no device twice");
}

/// The pod `a` runs with GPU-5, and the agent has ended and has no ledger.
async fn stopped_without_ledger() -> HandoffNode {
    let mut machine = HandoffNode::start().await;
    machine.serves(&gpus("a", &["GPU-5"])).await;
    machine.stop_agent().await;
    machine.lose_ledger();
    machine
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_ledger_is_rebuilt_from_the_kubelet() {
    let mut machine = stopped_without_ledger().await;
    machine.start_agent().await;
    machine.agrees(&gpus("a", &["GPU-5"])).await;
    machine.schedule(&gpus("b", &["GPU-5"])).await;
    assert!(machine.refused("b").await.contains("held by default/a"), "no device twice");
    machine.unlocked().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pod_that_goes_while_a_lost_ledger_is_rebuilt_holds_nothing_for_long() {
    let mut machine = stopped_without_ledger().await;
    machine.server().faults().add(FaultRule::on("list", "pods"), Effect::Delay(Duration::from_secs(1)));
    let pods = machine.pods();
    let deletion = tokio::spawn(async move { pods.delete("a", &DeleteParams::default().grace_period(0)).await });
    machine.start_agent().await;
    deletion.await.unwrap().unwrap();
    machine.forgotten("a").await;
}

/// Its call could be taken for that of a pod under admission, and that pod's for a call of it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_kubelet_without_its_checkpoint_asks_for_no_container_that_starts_again() {
    let machine = HandoffNode::start().await;
    let gpu = [(NVIDIA_GPU, 1)];
    let side = |name, device| {
        pod(name, vec![container("side", Sidecar, &gpu, &[(device, 100)]), container("main", App, &[], &[])])
    };
    let uid = machine.serves(&side("a", "GPU-5")).await;
    machine.kubelet.stop().await;
    machine.agent().registered(false).await;
    std::fs::remove_file(machine.kubelet.options().checkpoint_file()).unwrap();
    machine.kubelet.start_again().await.unwrap();
    machine.agent().registered(true).await;
    let since = clock::wall().as_second();
    eventually("a second has begun", || clock::wall().as_second() > since).await;
    // A kubelet that has started lists its pods in a while.
    eventually("it knows the pod", || machine.kubelet.fail_container("default", "a", "side", 1)).await;
    assert!(machine.kubelet_of("a", "side").is_empty(), "what runs is passed over");
    // The kubelet asks the plugin first whether the container may start, and has no ids to name.
    let waiting = || {
        let status = machine.object("a").map(|object| object["status"]["initContainerStatuses"][0].clone());
        status.unwrap_or_default()["state"]["waiting"]["message"].as_str().unwrap_or_default().to_owned()
    };
    eventually("the container does not start", || waiting().contains("no devices found allocated in local cache"))
        .await;
    assert_eq!(machine.kubelet.answered_at(uid.as_str(), "side", NVIDIA_GPU), None, "no call came");
    assert_eq!(machine.agent().ledger_of("a").await, ["GPU-5"], "it stays the pod's");
    machine.serves(&side("b", "GPU-6")).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_throttled_kubelet_leaves_time_for_the_live_reads_that_a_silent_watch_needs() {
    let machine = HandoffNode::start().await;
    machine.kubelet.controls().set_pod_resources(PodResourcesMode::Throttled);
    machine.server().faults().add(FaultRule::on("watch", "nodes"), Effect::Answer(503, None));
    machine.server().faults().break_watches();
    let recovers = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        machine.kubelet.controls().set_pod_resources(PodResourcesMode::Normal);
    };
    let a = gpus("a", &["GPU-5"]);
    tokio::join!(machine.schedule(&a), recovers);
    machine.runs("a").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_pod_resources_the_lock_identifies() {
    let machine = HandoffNode::start().await;
    machine.kubelet.controls().set_pod_resources(PodResourcesMode::Absent);
    machine.serves(&gpus("a", &["GPU-2"])).await;
    let gpu = [(NVIDIA_GPU, 1)];
    let b =
        pod("b", vec![container("m1", App, &gpu, &[("GPU-4", 100)]), container("m2", App, &gpu, &[("GPU-3", 100)])]);
    machine.serves(&b).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_kubelet_that_asks_for_no_preference_is_still_given_the_assignment() {
    let machine = HandoffNode::start().await;
    machine.kubelet.controls().skip_preferred_allocation();
    machine.schedule(&gpus("a", &["GPU-6"])).await;
    machine.runs("a").await;
    machine.unlocked().await;
    assert_eq!(machine.env("a", "main", "GPUS"), "GPU-6");
    assert_eq!(machine.agent().ledger_of("a").await, ["GPU-6"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_kubelet_restart_keeps_ids_and_the_next_pod_is_served() {
    let machine = HandoffNode::start().await;
    let a = gpus("a", &["GPU-6"]);
    machine.serves(&a).await;
    machine.kubelet.restart().await.unwrap();
    machine.agrees(&a).await;
    eventually("the node offers its devices again", || {
        machine.server().objects("", "nodes")[0]["status"]["allocatable"][NVIDIA_GPU] == "8"
    })
    .await;
    machine.serves(&gpus("b", &["GPU-7"])).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_pod_resources_a_call_after_a_kubelet_restart_is_not_the_lock_holders() {
    let machine = HandoffNode::start().await;
    // From here on the kubelet's calls are made by hand, and nothing lists its pods.
    let socket = machine.kubelet.options().pod_resources_socket();
    machine.kubelet.controls().set_pod_resources(PodResourcesMode::Absent);
    eventually("PodResources is gone", || !socket.exists()).await;
    machine.kubelet.stop().await;
    let call = |id: &str| AllocateRequest {
        container_requests: vec![ContainerAllocateRequest { devices_ids: vec![id.to_owned()] }],
    };
    let service = &machine.agent().service;
    machine.schedule(&gpus("before", &["GPU-1"])).await;
    service.allocate(NVIDIA_GPU, call("GPU-1")).await.unwrap();
    machine.unlocked().await;
    machine.schedule(&gpus("holder", &["GPU-2"])).await;
    service.registration_lost();
    let refused = service.allocate(NVIDIA_GPU, call("GPU-1")).await.unwrap_err();
    assert!(refused.message().contains("default/before") && refused.message().contains("default/holder"), "{refused}");
    assert_eq!(machine.agent().ledger_of("holder").await, Vec::<String>::new());
    // Once the other runs, it cannot be the one that asks.
    let running = json!({"status": {"phase": "Running", "containerStatuses": [{
        "name": "main", "image": "busybox", "imageID": "", "ready": true, "restartCount": 0, "state": {"running": {}},
    }]}});
    machine.pods().patch_status("before", &PatchParams::default(), &Patch::Merge(running)).await.unwrap();
    let until = clock::mono() + Duration::from_secs(30);
    while service.allocate(NVIDIA_GPU, call("GPU-2")).await.is_err() {
        assert!(clock::mono() < until, "the holder is not served");
    }
    assert_eq!(machine.agent().ledger_of("holder").await, ["GPU-2"]);
    assert_eq!(machine.agent().ledger_of("before").await, ["GPU-1"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn broken_watches_make_grants_rest_on_live_reads() {
    let machine = HandoffNode::start().await;
    for (name, device) in [("a", "GPU-1"), ("b", "GPU-2"), ("c", "GPU-3")] {
        let spec = gpus(name, &[device]);
        let uid = machine.create(&spec).await;
        machine.server().faults().break_watches();
        let time = machine.lock(name, &uid).await;
        machine.bind(&spec, &uid, time).await;
        machine.agrees(&spec).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn watches_that_resume_without_any_news_are_known_to_run_again() {
    let machine = HandoffNode::start().await;
    let path = machine.root().join("watcher.kubeconfig");
    std::fs::write(&path, machine.server().plain_kubeconfig("admin")).unwrap();
    let requests = baton::runtime::metrics::RequestMetrics::default();
    let (client, resumed) = baton::cluster::client::connect_counted("baton", Some(&path), &requests).await.unwrap();
    let view = Arc::new(NodeView::new());
    let mut tasks = tokio::task::JoinSet::new();
    let (watched, of) = (view.clone(), client.clone());
    tasks.spawn(async move { watched.watch_pods(of, NODE, Duration::from_secs(120), |_| {}).await });
    let watched = view.clone();
    tasks.spawn(async move { watched.watch_node(client, NODE, NODE_LOCK, Duration::from_secs(120)).await });
    let watched = view.clone();
    tasks.spawn(async move { watched.follow_resumed(resumed).await });
    eventually("the watches run", || view.is_synced() && view.is_watching()).await;
    machine.server().faults().blackout(Blackout::Refuse);
    machine.server().faults().break_watches();
    eventually("that they broke is seen", || !view.is_watching()).await;
    machine.server().faults().blackout(Blackout::None);
    eventually("they run again, and no pod or node has changed", || view.is_watching()).await;
}

/// Pods that were read one by one so far.
fn live_reads(machine: &HandoffNode) -> u64 {
    let counts = machine.server().counts().all();
    counts.iter().filter(|(what, _)| what.verb == "get" && what.resource == "pods").map(|(_, count)| count).sum()
}

/// Serves a pod, and counts the pods that were read one by one for it.
async fn reads_of(machine: &HandoffNode, name: &'static str) -> u64 {
    let before = live_reads(machine);
    machine.serves(&gpus(name, &["GPU-1"])).await;
    let reads = live_reads(machine) - before;
    machine.delete(name).await;
    machine.forgotten(name).await;
    reads
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_the_call_of_an_unknown_pod_has_failed_the_next_pod_is_read_live() {
    let machine = HandoffNode::start().await;
    // The list with which the watch began settles first.
    let until = clock::mono() + Duration::from_secs(30);
    while reads_of(&machine, "before").await > 0 {
        assert!(clock::mono() < until, "a known pod is read live");
    }
    // No pod waits: the kubelet has rejected one that is not known, or has called for one that is gone.
    let ids = AllocateRequest {
        container_requests: vec![ContainerAllocateRequest { devices_ids: vec!["GPU-1".to_owned()] }],
    };
    machine.agent().service.allocate(NVIDIA_GPU, ids).await.unwrap_err();
    assert!(reads_of(&machine, "after").await > 0, "it may be the successor of another one of its name");
}

//! The rows of the fault table that need whole processes: what dies, is late, or is written by another client.

use baton::cluster::node_lock::LockWrite;
use k8s_openapi::api::core::v1::Event;

use crate::prelude::*;

const ONE: &[(&str, &str)] = &[(key::NVIDIA_GPU, "1")];
const ALL: &[(&str, &str)] = &[(key::NVIDIA_GPU, "8")];

/// The pod has its devices, the lock goes, and the rest of the node can be given to others.
pub(super) async fn served_exactly(cluster: &TestCluster, name: &str) {
    cluster.until_running(name).await;
    assert_eq!(cluster.assigned(name).await, cluster.in_kubelet("node-0", name));
    cluster.until_unlocked(LOCK_GONE).await;
}

/// The same, of a pod that is created.
pub(super) async fn serves_exactly(cluster: &TestCluster, pod: &PodSpec) {
    cluster.create(pod).await;
    served_exactly(cluster, pod.name()).await;
}

/// The node's daemon has not been heard of for too long: a pod that is made now waits and says so.
pub(super) async fn waits_for_a_silent_daemon(cluster: &TestCluster, name: &str) {
    until("the scheduler holds the daemon for stale", SOON, async || {
        cluster.scheduler.get("/metrics").await?.contains("baton_scheduler_daemon_fault{").then_some(())
    })
    .await;
    cluster.create(&pod(name).app("main", ONE)).await;
    cluster.until_it_says(name, "no live node daemon").await;
}

/// Every device of the node is free: one pod gets them all.
pub(super) async fn all_is_free(cluster: &TestCluster) {
    cluster.until_unlocked(LOCK_GONE).await;
    cluster.until_agent_is_ready().await;
    serves_exactly(cluster, &pod("all").app("main", ALL)).await;
}

async fn until_event(cluster: &TestCluster, reason: &str, about: &str) -> String {
    until(&format!("event {reason} about {about}"), SOON, async || {
        let is_it = |event: &&Event| {
            event.reason.as_deref() == Some(reason) && event.involved_object.name.as_deref() == Some(about)
        };
        cluster.events().await.iter().find(is_it)?.message.clone()
    })
    .await
}

/// The kubelet has taken the pod in hand.
async fn until_in_kubelet(cluster: &TestCluster, name: &str) {
    until("the kubelet has the pod", SOON, async || {
        cluster.nodes[0].kubelet.view().contains_key(&format!("default/{name}")).then_some(())
    })
    .await;
}

fn slow(cluster: &TestCluster, by: Option<u64>) {
    let mode = by.map_or(PodResourcesMode::Normal, |millis| PodResourcesMode::Slow(Duration::from_millis(millis)));
    cluster.nodes[0].kubelet.controls().set_pod_resources(mode);
}

fn late(cluster: &TestCluster, millis: Option<u64>) {
    cluster.nodes[0].kubelet.controls().delay_admission(millis.map(Duration::from_millis));
}

#[tokio::test(flavor = "multi_thread")]
async fn while_the_agent_is_down_for_longer_than_the_expiry_a_served_pod_stays() {
    let scheduler = ["--node-lock-expiry=3s", &timings("agent_settled: 3s, agent_stale: 4s, lock_sweep: 1s")];
    let mut cluster = TestCluster::with_args(1, &[&timings("heartbeat: 1s")], &scheduler).await;
    serves_exactly(&cluster, &pod("served").app("main", ONE)).await;
    let uid = cluster.pod("served").await.unwrap().metadata.uid;
    cluster.nodes[0].agent.kill();
    cluster.hold_lock_for("served").await;
    cluster.create(&pod("next").app("main", ONE)).await;
    // Expired twice over, with a pod waiting for the node all the time.
    let end = clock::mono() + Duration::from_secs(8);
    until("the expiry has passed twice", SOON, async || {
        let pod = cluster.pod("served").await.expect("a served pod is left alone");
        assert_eq!((&pod.metadata.uid, &pod.metadata.deletion_timestamp), (&uid, &None), "a served pod was deleted");
        // Its containers run, so no call will come: the lock may be taken over, the pod stays.
        (clock::mono() >= end).then_some(())
    })
    .await;
    cluster.nodes[0].agent.restart();
    served_exactly(&cluster, "next").await;
    assert_eq!(cluster.pod("served").await.unwrap().metadata.uid, uid);
    cluster.check_no_device_twice().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kubelet_restarted_inside_allocate_asks_again_and_gets_the_same_devices() {
    let cluster = TestCluster::start(1).await;
    slow(&cluster, Some(600));
    cluster.binds(&pod("p").app("a", ONE).app("b", ONE)).await;
    until_in_kubelet(&cluster, "p").await;
    cluster.nodes[0].kubelet.restart().await.unwrap();
    slow(&cluster, None);
    if cluster.until_phase("p", &["Running", "Failed"]).await == "Running" {
        served_exactly(&cluster, "p").await;
        cluster.delete("p").await;
    }
    all_is_free(&cluster).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn with_the_api_server_away_during_allocate_the_pod_is_decided_within_the_deadline() {
    let cluster = TestCluster::start(1).await;
    let Some(server) = cluster.control_plane.simulated() else { return skipped("a real API server is not taken away") };
    serves_exactly(&cluster, &pod("before").app("main", ONE)).await;
    let devices = cluster.in_kubelet("node-0", "before");
    late(&cluster, Some(1000));
    cluster.binds(&pod("p").app("main", ONE)).await;
    until_in_kubelet(&cluster, "p").await;
    let assigned = cluster.assigned("p").await;
    server.faults().blackout(Blackout::Hang);
    let since = clock::mono();
    let served = until("the kubelet has decided", SOON, async || {
        let view = cluster.nodes[0].kubelet.view();
        let pod = view.get("default/p")?;
        let held = !cluster.in_kubelet("node-0", "p").is_empty();
        (held || !pod.active).then_some(held)
    })
    .await;
    assert!(clock::mono() - since < Duration::from_secs(6), "one second until admission, two for each call");
    if served {
        assert_eq!(cluster.in_kubelet("node-0", "p"), assigned);
    }
    assert_eq!(cluster.in_kubelet("node-0", "before"), devices, "running pods are not touched");
    server.faults().blackout(Blackout::None);
    late(&cluster, None);
    cluster.until_phase("p", &["Running", "Failed"]).await;
    cluster.delete("p").await;
    cluster.delete("before").await;
    all_is_free(&cluster).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_deleted_during_allocate_is_answered_and_then_freed() {
    let cluster = TestCluster::start(1).await;
    slow(&cluster, Some(500));
    cluster.binds(&pod("gone").app("main", ALL)).await;
    until_in_kubelet(&cluster, "gone").await;
    let pods: Api<Pod> = Api::namespaced(cluster.client.clone(), "default");
    pods.delete("gone", &DeleteParams::default()).await.unwrap();
    until("the pod is gone", SOON, async || cluster.pod("gone").await.is_none().then_some(())).await;
    slow(&cluster, None);
    all_is_free(&cluster).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_deleted_before_its_lock_is_skipped() {
    let cluster = TestCluster::start(1).await;
    // Nothing is to reach this pod: a Binding for it would be seen here.
    let bound = cluster.control_plane.simulated().map(|server| {
        let rule = FaultRule::on("create", "pods").below("binding").named("deleted");
        (server, server.faults().add(rule, Effect::Answer(500, None)))
    });
    late(&cluster, Some(6000));
    cluster.binds(&pod("holder").app("main", ONE)).await;
    cluster.create(&pod("deleted").app("main", ONE)).await;
    cluster.create(&pod("next").app("main", ONE)).await;
    until("both stand in line", SOON, async || {
        let metrics = cluster.scheduler.get("/metrics").await?;
        metrics.lines().any(|line| line == "baton_scheduler_in_flight 2").then_some(())
    })
    .await;
    cluster.delete("deleted").await;
    let lock = cluster.lock("node-0").await.unwrap_or_default();
    assert!(lock.contains(",holder,"), "deleted while the other holds the lock: {lock:?}");
    late(&cluster, None);
    served_exactly(&cluster, "next").await;
    assert_eq!(cluster.assigned("holder").await, cluster.in_kubelet("node-0", "holder"));
    if let Some((server, id)) = bound {
        assert_eq!(server.faults().fired(id), 0, "a Binding was posted for a pod that was gone");
    }
    for name in ["holder", "next"] {
        cluster.delete(name).await;
    }
    all_is_free(&cluster).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_that_ended_and_stays_in_the_api_frees_its_devices_and_its_lock() {
    let cluster = TestCluster::start(1).await;
    for (name, end) in [("well", "exit 0"), ("badly", "exit 3")] {
        let mut object = pod(name).app("main", ALL).build();
        object.spec.as_mut().unwrap().containers[0].command = Some(vec!["sh".into(), "-c".into(), end.into()]);
        let pods: Api<Pod> = Api::namespaced(cluster.client.clone(), "default");
        pods.create(&PostParams::default(), &object).await.unwrap();
        cluster.until_phase(name, &["Succeeded", "Failed"]).await;
        cluster.until_unlocked(LOCK_GONE).await;
    }
    all_is_free(&cluster).await;
    assert!(cluster.pod("well").await.is_some() && cluster.pod("badly").await.is_some());
}

#[tokio::test(flavor = "multi_thread")]
async fn strange_locks_are_never_waited_for_without_end() {
    let cluster =
        TestCluster::with_args(1, &[], &["--node-lock-expiry=3s", &timings("agent_settled: 2s, lock_sweep: 1s")]).await;
    let locks = NodeLocks::new(cluster.client.clone(), key::NODE_LOCK);
    let strange = [
        ("malformed", "yes".to_owned()),
        ("huge", "x".repeat(100_000)),
        ("legacy", "2026-11-21T02:35:12Z".to_owned()),
        ("ghost", "2026-11-21T02:35:12.123456789Z,default,ghost,no-such-uid".to_owned()),
        ("future", "2199-01-01T00:00:00Z".to_owned()),
        ("future-ghost", "2199-01-01T00:00:00Z,default,ghost,no-such-uid".to_owned()),
    ];
    for (name, value) in strange {
        assert_eq!(locks.set("node-0", &value).await.unwrap(), LockWrite::Done, "{name}");
        serves_exactly(&cluster, &pod(name).app("main", ONE)).await;
    }
    cluster.check_no_device_twice().await;
}

/// Pins a pod to the node with an assignment that no scheduler of ours wrote.
async fn pinned(cluster: &TestCluster, spec: PodSpec) {
    let mut object = spec.build();
    object.spec.as_mut().unwrap().node_name = Some("node-0".to_owned());
    let pods: Api<Pod> = Api::namespaced(cluster.client.clone(), "default");
    pods.create(&PostParams::default(), &object).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_huge_or_corrupt_annotation_is_refused_whole_and_named() {
    let cluster = TestCluster::start(1).await;
    let huge = format!("{{\"gpu\":[{}]}}", vec!["{}"; 40_000].join(","));
    for (name, text) in [("huge", huge.as_str()), ("corrupt", r#"{"version":1,"node":"node-0","containers":"#)] {
        let bad = pod(name)
            .app("main", ONE)
            .annotation(key::CONTAINER_DEVICES, text)
            .annotation(key::DEVICE_ALLOCATED, text)
            .annotation(key::BIND_TIMESTAMP, "1795228512123456789");
        pinned(&cluster, bad).await;
        cluster.until_phase(name, &["Failed"]).await;
        let status = cluster.pod(name).await.unwrap().status.unwrap();
        assert_eq!(status.reason.as_deref(), Some("UnexpectedAdmissionError"));
        let message = status.message.unwrap_or_default();
        assert!(message.contains(key::CONTAINER_DEVICES) && message.len() < 1500, "{name}: {message}");
        assert!(cluster.in_kubelet("node-0", name).is_empty(), "nothing partial is served");
    }
    all_is_free(&cluster).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_admitted_while_the_plugin_was_unregistered_is_told_and_stays() {
    let scheduler = ["--node-lock-expiry=5s", &timings("agent_settled: 3s, lock_sweep: 1s")];
    let mut cluster = TestCluster::with_args(1, &[&timings("verify: 1s")], &scheduler).await;
    late(&cluster, Some(1500));
    cluster.binds(&pod("bare").app("main", ONE)).await;
    // A kubelet that knows no plugin: none is registered, and its checkpoint, which would name them, is lost.
    cluster.nodes[0].agent.kill();
    let kubelet = &cluster.nodes[0].kubelet;
    kubelet.stop().await;
    let _ = std::fs::remove_file(kubelet.options().checkpoint_file());
    late(&cluster, None);
    cluster.nodes[0].kubelet.start_again().await.unwrap();
    cluster.until_phase("bare", &["Running"]).await;
    assert!(cluster.in_kubelet("node-0", "bare").is_empty(), "admitted without its devices");
    cluster.nodes[0].agent.restart();
    until_event(&cluster, "AdmittedWithoutDevices", "bare").await;
    cluster.until_unlocked(SOON).await;
    serves_exactly(&cluster, &pod("next").app("main", ONE)).await;
    assert_eq!(cluster.pod("bare").await.unwrap().metadata.deletion_timestamp, None);
    cluster.delete("bare").await;
    cluster.delete("next").await;
    all_is_free(&cluster).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_throttled_or_absent_pod_resources_costs_no_pod_its_devices() {
    let cluster = TestCluster::start(1).await;
    for (name, mode) in [("throttled", PodResourcesMode::Throttled), ("absent", PodResourcesMode::Absent)] {
        cluster.nodes[0].kubelet.controls().set_pod_resources(mode);
        cluster.create(&pod(name).app("main", &[(key::NVIDIA_GPU, "2")])).await;
        if mode == PodResourcesMode::Throttled {
            // It passes within the budget of a call.
            tokio::time::sleep(Duration::from_millis(500)).await;
            cluster.nodes[0].kubelet.controls().set_pod_resources(PodResourcesMode::Normal);
        }
        // The answer follows the assignment, whichever ids the kubelet booked.
        cluster.until_running(name).await;
        let view = cluster.nodes[0].kubelet.view();
        let answers = view[&format!("default/{name}")].containers["main"].answers.values();
        let given: Vec<String> = answers.flat_map(|answer| answer.cdi_devices.clone()).collect();
        let assigned = cluster.assigned(name).await;
        let wanted: Vec<String> = assigned.values().flatten().map(|id| format!("koordinator.sh/gpu={id}")).collect();
        assert_eq!((given.len(), wanted.iter().all(|name| given.contains(name))), (2, true), "{given:?} {wanted:?}");
        cluster.until_unlocked(LOCK_GONE).await;
    }
    cluster.check_no_device_twice().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_device_that_fails_under_pods_is_told_on_each_holder_and_on_the_node() {
    let cluster = TestCluster::start(1).await;
    let half: &[(&str, &str)] = &[(key::GPU_CORE, "50"), (key::GPU_MEMORY_RATIO, "50")];
    for (name, asks) in [("a", half), ("b", half), ("whole", ONE)] {
        serves_exactly(&cluster, &pod(name).app("main", asks)).await;
    }
    let at = |id: &str| cluster.nodes[0].hardware.gpu_uuids().iter().position(|uuid| uuid == id).unwrap();
    let gpu_of = async |name: &str| cluster.assigned(name).await[&DeviceType::Gpu].iter().next().unwrap().to_string();
    let (shared, whole) = (gpu_of("a").await, gpu_of("whole").await);
    assert_eq!(shared, gpu_of("b").await);
    let address = |id: &str| cluster.nodes[0].hardware.gpu_addresses()[at(id)].to_string();
    cluster.nodes[0].hardware.xid(at(&shared), 79).unwrap();
    for (id, pods) in [(&shared, &["a", "b"][..]), (&whole, &["whole"])] {
        for name in pods {
            let said = until_event(&cluster, "DeviceUnhealthy", name).await;
            let begins =
                format!("gpu-{} ({id}, {}) of node node-0, which this pod has, is out of service", at(id), address(id));
            assert!(
                said.starts_with(&begins) && said.contains("GPU has fallen off the bus (hardware): drain"),
                "{said}"
            );
        }
        // Of two devices the node has two events, each with the words of its own.
        until("the node has the event", SOON, async || {
            let events = cluster.events().await;
            let mut of_node = events.iter().filter(|event| event.involved_object.kind.as_deref() == Some("Node"));
            of_node.any(|event| event.message.as_ref().is_some_and(|text| text.contains(&**id))).then_some(())
        })
        .await;
        cluster.nodes[0].hardware.xid(at(&whole), 79).unwrap();
    }
}

//! The good path: one write to bind, the line, and what operators see.

use baton::contract::LockValue;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::prelude::*;
use crate::scheduler::verbs::{status, until};

pub async fn http(address: std::net::SocketAddr, path: &str) -> (String, String) {
    let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.lines().next().unwrap().to_owned(), body.to_owned())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_binding_carries_all_annotations_and_a_pod_costs_two_writes_of_the_scheduler() {
    let (cluster, scheduler) = SchedulerCluster::running("n1").await;
    until("ready", || async { http(scheduler.admin, "/readyz").await.0.contains("200").then_some(()) }).await;
    cluster.server().counts().reset();
    cluster.pod("a", json!({"nvidia.com/gpu": "2"})).await;
    let pod = cluster.bound("a").await;
    for key in key::SCHEDULER_KEYS {
        assert!(pod.annotations().contains_key(key), "{key} is missing");
    }
    let allocation = DeviceAllocation::parse(&pod.annotations()[key::DEVICE_ALLOCATED]).unwrap();
    assert_eq!(allocation.of(&DeviceType::Gpu).len(), 2);
    let lock = LockValue::parse(&cluster.lock("n1").await.unwrap()).unwrap();
    assert!(lock.matches_bind_timestamp(&pod.annotations()[key::BIND_TIMESTAMP]));
    assert_eq!(lock.holder.unwrap().uid.unwrap().as_str(), pod.uid().unwrap());
    let counts = cluster.server().counts();
    assert_eq!(counts.of("create", "pods", "binding"), 1);
    // Our own creation of the pod is the third write on pods and nodes.
    assert_eq!((counts.writes("nodes"), counts.writes("pods")), (1, 2), "{:?}", counts.all());
    until("the metrics count the pod", || async {
        let (status, metrics) = http(scheduler.admin, "/metrics").await;
        tells(status, ["200"]);
        metrics.contains("baton_scheduler_bound_total 1").then_some(())
    })
    .await;
    scheduler.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_auto_and_an_exact_agent_the_binding_is_the_only_write() {
    let cluster = SchedulerCluster::with_node("n1").await;
    let leases: kube::Api<k8s_openapi::api::coordination::v1::Lease> =
        kube::Api::namespaced(cluster.client.clone(), "baton-system-nodes");
    let patch = json!({"metadata": {"annotations": {key::AGENT: status(Identity::Exact).print()}}});
    leases.patch("baton-agent-n1", &Default::default(), &kube::api::Patch::Merge(patch)).await.unwrap();
    let options =
        baton::scheduler::SchedulerOptions { node_lock: baton::decide::lock::LockMode::Auto, ..cluster.quick() };
    let scheduler = cluster.scheduler_with(options).await;
    cluster.server().counts().reset();
    cluster.binds("a", json!({"nvidia.com/gpu": "1"})).await;
    assert_eq!(cluster.server().counts().writes("nodes"), 0);
    scheduler.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unschedulable_pod_says_why_in_its_condition_and_at_explain() {
    let (cluster, scheduler) = SchedulerCluster::running("n1").await;
    cluster.binds("first", json!({"nvidia.com/gpu": "6"})).await;
    cluster.pod("big", json!({"nvidia.com/gpu": "4"})).await;
    let condition = until("the condition", || async {
        let status = cluster.get("big").await?.status?;
        status.conditions?.into_iter().find(|condition| condition.type_ == "PodScheduled")
    })
    .await;
    assert_eq!((condition.status.as_str(), condition.reason.as_deref()), ("False", Some("Unschedulable")));
    assert_eq!(condition.message.as_deref(), Some("0/1 nodes: 1 has fewer than 4 free GPUs"));
    let (status, body) = http(scheduler.admin, "/explain?pod=ml/big").await;
    let explained: Value = serde_json::from_str(&body).unwrap_or_else(|_| panic!("{status} {body}"));
    assert_eq!(explained["state"], "parked");
    assert_eq!(explained["nodes"][0]["devices"].as_array().unwrap().len(), 8);
    cluster.delete("first").await;
    cluster.bound("big").await;
    scheduler.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pod_that_waits_for_a_lock_says_so_in_condition_and_event_until_it_is_bound() {
    let (cluster, scheduler) = SchedulerCluster::running("n1").await;
    cluster.binds("first", json!({"nvidia.com/gpu": "1"})).await;
    cluster.pod("second", json!({"nvidia.com/gpu": "1"})).await;
    let scheduled = |pod: k8s_openapi::api::core::v1::Pod| {
        let conditions = pod.status.unwrap_or_default().conditions.unwrap_or_default();
        conditions.into_iter().find(|condition| condition.type_ == "PodScheduled")
    };
    let said = until("the wait is reported", || async { scheduled(cluster.get("second").await?) }).await;
    assert_eq!((said.status.as_str(), said.reason.as_deref()), ("False", Some("WaitingForNodeLock")));
    let message = said.message.unwrap();
    assert!(message.starts_with("goes to node n1 and waits for its lock, held by pod ml/first since "), "{message}");
    let events: kube::Api<k8s_openapi::api::events::v1::Event> = kube::Api::namespaced(cluster.client.clone(), "ml");
    let note = until("the event is there", || async {
        let all = events.list(&Default::default()).await.ok()?;
        all.items.into_iter().find(|event| event.reason.as_deref() == Some("WaitingForNodeLock"))?.note
    })
    .await;
    assert_eq!(note, message);
    cluster.set_lock("n1", None).await;
    let bound = scheduled(cluster.bound("second").await).unwrap();
    assert_eq!((bound.status.as_str(), bound.reason), ("True", None));
    scheduler.stop().await;
}

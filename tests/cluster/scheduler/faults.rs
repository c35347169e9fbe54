//! Answers that are lost, refused or late.

use super::bind::http;
use crate::prelude::*;
use crate::scheduler::verbs::until;

/// One pod through one fault: bound once, the lock names it, nothing is left over.
async fn survives(rule: FaultRule, effect: Effect) {
    let (cluster, scheduler) = SchedulerCluster::running("n1").await;
    let id = cluster.server().faults().add(rule.clone(), effect.clone());
    cluster.binds("a", json!({"nvidia.com/gpu": "1"})).await;
    assert!(cluster.server().faults().fired(id) > 0, "{rule:?} {effect:?} hit nothing");
    cluster.locked_by("n1", "a").await;
    cluster.set_lock("n1", None).await;
    cluster.binds("b", json!({"nvidia.com/gpu": "1"})).await;
    cluster.locked_by("n1", "b").await;
    scheduler.stop().await;
}

fn lock() -> FaultRule {
    FaultRule::on("patch", "nodes").times(1)
}
fn binding() -> FaultRule {
    FaultRule::on("create", "pods").below("binding").times(1)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_request_that_never_arrives() {
    survives(lock(), Effect::DropBefore).await;
}
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_binding_that_never_arrives() {
    survives(binding(), Effect::DropBefore).await;
}
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_binding_without_an_answer_in_time() {
    survives(binding(), Effect::Hang).await;
}
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_binding_refused_with_500_429_409_or_422() {
    for status in [500, 409, 422] {
        survives(binding().times(2), Effect::Answer(status, None)).await;
    }
    survives(binding(), Effect::Answer(429, Some(1))).await;
}
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_refused_with_500_429_409_or_422() {
    for status in [500, 429, 409, 422] {
        survives(lock().times(2), Effect::Answer(status, None)).await;
    }
}

/// 200 pods, two requests at a time, and an API server that answers no Binding: two may be sent, two may wait for their turn,
/// and the batch that was begun is 64.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_more_is_decided_than_can_soon_be_sent_and_all_of_it_when_the_answers_come() {
    let cluster = SchedulerCluster::with_node("n1").await;
    cluster.node("n2").await;
    let held = cluster.server().faults().add(FaultRule::on("create", "pods").below("binding"), Effect::Hang);
    let names: Vec<String> = (0..200).map(|at| format!("p{at:03}")).collect();
    for name in &names {
        cluster.pod(name, json!({"cpu": "100m"})).await;
    }
    let scheduler = cluster.scheduler_with(SchedulerOptions { concurrency: 2, ..cluster.quick() }).await;
    cluster.fires(held, 2).await;
    let waiting = metric(scheduler.admin, "baton_scheduler_queue_active").await;
    assert!((130.0..=200.0).contains(&waiting), "{waiting} pods are not decided yet");
    cluster.server().faults().remove(held);
    for name in &names {
        cluster.bound(name).await;
    }
    scheduler.stop().await;
}

async fn metric(admin: std::net::SocketAddr, name: &str) -> f64 {
    until("the metrics are up to date", async || {
        let (_, text) = http(admin, "/metrics").await;
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse::<f64>().ok())?;
        (line > 0.0).then_some(line)
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_api_server_that_is_away_for_a_while_is_waited_for() {
    let cluster = SchedulerCluster::with_node("n1").await;
    cluster.pod("a", json!({"nvidia.com/gpu": "1"})).await;
    let away = cluster.server().faults().add(FaultRule::default(), Effect::DropBefore);
    let scheduler = cluster.scheduler().await;
    cluster.fires(away, 10).await;
    cluster.server().faults().blackout(Blackout::Refuse);
    cluster.server().faults().remove(away);
    cluster.server().faults().blackout(Blackout::None);
    cluster.bound("a").await;
    cluster.server().faults().break_watches();
    cluster.server().compact();
    cluster.set_lock("n1", None).await;
    cluster.binds("b", json!({"nvidia.com/gpu": "1"})).await;
    scheduler.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pod_deleted_before_allocate_frees_the_lock_at_once() {
    let (cluster, scheduler) = SchedulerCluster::running("n1").await;
    cluster.binds("a", json!({"nvidia.com/gpu": "8"})).await;
    cluster.pod("b", json!({"nvidia.com/gpu": "8"})).await;
    cluster.delete("a").await;
    cluster.bound("b").await;
    cluster.locked_by("n1", "b").await;
    cluster.delete("b").await;
    cluster.unlocked("n1").await;
    until("nothing in flight", || async { cluster.get("b").await.is_none().then_some(()) }).await;
    scheduler.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_binding_waits_for_no_other_pods_condition_however_many_have_no_answer() {
    let cluster = SchedulerCluster::with_node("n1").await;
    let mut options = cluster.quick();
    options.concurrency = 16;
    options.timings.bind_timeout = Duration::from_secs(300);
    let scheduler = cluster.scheduler_with(options).await;
    let id = cluster.server().faults().add(FaultRule::on("patch", "pods").below("status"), Effect::Hang);
    for at in 0..40 {
        cluster.pod(&format!("big-{at}"), json!({"nvidia.com/gpu": "64"})).await;
    }
    cluster.fires(id, 2).await;
    cluster.binds("a", json!({"nvidia.com/gpu": "1"})).await;
    assert!(cluster.server().faults().fired(id) <= 4, "the events are bounded");
    scheduler.kill().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_condition_without_an_answer_delays_the_binding_of_its_own_pod_only() {
    let cluster = SchedulerCluster::start().await;
    let mut options = cluster.quick();
    options.timings.bind_timeout = Duration::from_millis(500);
    let scheduler = cluster.scheduler_with(options).await;
    let rule = FaultRule::on("patch", "pods").below("status").times(1);
    let id = cluster.server().faults().add(rule, Effect::Hang);
    cluster.pod("a", json!({"nvidia.com/gpu": "1"})).await;
    cluster.fires(id, 1).await;
    cluster.node("n1").await;
    cluster.bound("a").await;
    scheduler.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_condition_that_is_refused_or_has_no_answer_is_written_again() {
    let cluster = SchedulerCluster::start().await;
    let mut options = cluster.quick();
    options.timings.bind_timeout = Duration::from_millis(500);
    let scheduler = cluster.scheduler_with(options).await;
    for effect in [Effect::Answer(500, None), Effect::Hang] {
        let id = cluster.server().faults().add(FaultRule::on("patch", "pods").below("status").times(1), effect);
        let name = format!("p-{}", cluster.pods().list(&Default::default()).await.unwrap().items.len());
        cluster.pod(&name, json!({"nvidia.com/gpu": "1"})).await;
        cluster.fires(id, 1).await;
        cluster.waits_with(&name, "Unschedulable", "").await;
    }
    scheduler.stop().await;
}

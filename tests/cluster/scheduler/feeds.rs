//! How the watches start: from the watch itself where the API server can, else in pages.

use baton::sim::apiserver::{Effect, FaultRule};
use serde_json::json;

use crate::scheduler::verbs::{SchedulerCluster, until};

/// More than one page.
const PODS: usize = 520;

async fn crowd(cluster: &SchedulerCluster) {
    for at in 0..PODS {
        cluster.pod(&format!("idle-{at}"), json!({"nvidia.com/gpu": "9"})).await;
    }
    cluster.node("n1").await;
    cluster.pod("wanted", json!({"nvidia.com/gpu": "1"})).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_first_objects_come_from_the_watch_where_the_api_server_can() {
    let cluster = SchedulerCluster::start().await;
    crowd(&cluster).await;
    cluster.server().counts().reset();
    let scheduler = cluster.scheduler().await;
    cluster.bound("wanted").await;
    let counts = cluster.server().counts();
    assert_eq!((counts.of("list", "pods", ""), counts.of("list", "nodes", "")), (0, 0));
    scheduler.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_api_server_without_streaming_lists_is_listed_in_pages() {
    let cluster = SchedulerCluster::start().await;
    crowd(&cluster).await;
    // Kubernetes with the feature switched off refuses the parameter.
    let refused = cluster.server().faults().add(FaultRule::on("watch", "pods").times(1), Effect::Answer(422, None));
    cluster.server().counts().reset();
    let scheduler = cluster.scheduler().await;
    cluster.bound("wanted").await;
    assert_eq!(cluster.server().faults().fired(refused), 1);
    assert_eq!(cluster.server().counts().of("list", "pods", ""), 2, "521 pods are two pages");
    // What changes later is seen by the watch that follows.
    cluster.pod("late", json!({"nvidia.com/gpu": "1"})).await;
    until("the late pod is seen", || async {
        let pod = cluster.get("late").await?;
        (pod.spec?.node_name.is_some() || cluster.lock("n1").await.is_some()).then_some(())
    })
    .await;
    scheduler.stop().await;
}

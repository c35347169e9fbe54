//! PodGroups of both APIs reach the scheduler, whenever their definitions come and go.

use crate::prelude::*;

const POD_GROUP: &str = "pod-group.scheduling.sigs.k8s.io";
const COMMUNITY: &str = "scheduling.x-k8s.io/pod-group";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pods_wait_for_a_pod_group_whose_definition_comes_while_the_scheduler_runs() {
    let cluster = SchedulerCluster::with_cpus("n1", 8).await;
    let scheduler = cluster.scheduler().await;
    for n in 0..3 {
        cluster.member(&format!("late-{n}"), json!({ POD_GROUP: "late" }), json!({})).await;
    }
    cluster.waits_with("late-2", "WaitingForPodGroup", "PodGroup ml/late does not exist yet").await;
    assert!(cluster.bound_of("late").await.is_empty());
    cluster.pod_group_crd(PodGroupApi::Sigs).await;
    cluster.pod_group("late", json!({"minMember": 3})).await;
    cluster.all_bound("late", 3).await;
    cluster.event("WaitingForPodGroup").await;
    cluster.event("GangSatisfied").await;
    scheduler.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gang_of_the_communitys_api_is_held_again_when_its_definition_is_taken_away() {
    let cluster = SchedulerCluster::with_cpus("n1", 2).await;
    cluster.pod_group_crd(PodGroupApi::Community).await;
    cluster.pod_group_of(PodGroupApi::Community, "g", json!({"minMember": 3})).await;
    let scheduler = cluster.scheduler().await;
    for n in 0..3 {
        cluster.member(&format!("g-{n}"), json!({ COMMUNITY: "g" }), json!({})).await;
    }
    cluster.waits_with("g-1", "Unschedulable", "gang ml/g: 0 of 3 placed").await;
    cluster.delete_crd(PodGroupApi::Community).await;
    cluster.waits_with("g-1", "WaitingForPodGroup", "ml/g").await;
    // It comes back, in the other API.
    cluster.pod_group_crd(PodGroupApi::Sigs).await;
    cluster.pod_group("g", json!({"minMember": 2})).await;
    cluster.all_bound("g", 2).await;
    scheduler.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn where_both_apis_have_a_group_of_one_name_ours_counts_and_that_is_reported() {
    let cluster = SchedulerCluster::with_cpus("n1", 8).await;
    for (api, min) in [(PodGroupApi::Sigs, 4), (PodGroupApi::Community, 1)] {
        cluster.pod_group_crd(api).await;
        cluster.pod_group_of(api, "both", json!({ "minMember": min })).await;
    }
    let scheduler = cluster.scheduler().await;
    for n in 0..3 {
        cluster.member(&format!("both-{n}"), json!({ POD_GROUP: "both", COMMUNITY: "both" }), json!({})).await;
    }
    cluster.waits_with("both-0", "GangIncomplete", "3 of 4 pods").await;
    cluster.event("GangConfigConflict").await;
    cluster.pod_groups(PodGroupApi::Sigs).delete("both", &DeleteParams::default()).await.unwrap();
    cluster.all_bound("both", 3).await;
    scheduler.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn defaults_of_the_installation_hold_where_a_gang_says_nothing() {
    let cluster = SchedulerCluster::with_cpus("n1", 2).await;
    let mut options = cluster.quick();
    options.gangs.waiting_time = std::time::Duration::from_millis(300);
    let scheduler = cluster.scheduler_with(options).await;
    cluster.members("short", 3, 3, json!({"mode": "NonStrict"})).await;
    cluster.waits_with("short-0", "GangTimeout", "3 pods are marked as timed out").await;
    for n in 0..3 {
        let pod = cluster.get(&format!("short-{n}")).await.unwrap();
        assert_eq!(pod.metadata.annotations.unwrap()["gang.scheduling.koordinator.sh/timeout"], "true");
    }
    scheduler.stop().await;
}

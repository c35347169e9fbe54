//! Crashes between the steps, and two schedulers at once.

use baton::cluster::leadership::LeaderOptions;

use crate::prelude::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_whose_bind_cannot_be_resumed_is_released() {
    let cluster = SchedulerCluster::with_node("n1").await;
    let pod = cluster.pod("big", json!({"nvidia.com/gpu": "9"})).await;
    let time = baton::runtime::clock::wall();
    cluster.set_lock("n1", Some(&format!("{time:.9},ml,big,{}", pod.uid().unwrap()))).await;
    let scheduler = cluster.scheduler().await;
    cluster.unlocked("n1").await;
    scheduler.stop().await;
}

/// So many pods have a GPU each, and none is assigned twice.
async fn each_has_its_own(cluster: &SchedulerCluster, pods: usize) {
    let mut devices = BTreeSet::new();
    for pod in cluster.pods().list(&Default::default()).await.unwrap() {
        let allocation = DeviceAllocation::parse(&pod.annotations()[key::DEVICE_ALLOCATED]).unwrap();
        let id = allocation.of(&DeviceType::Gpu)[0].id.clone();
        assert!(devices.insert(id.clone()), "{id} is assigned twice");
    }
    assert_eq!(devices.len(), pods);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_schedulers_that_do_not_know_of_each_other_bind_every_pod_once() {
    let cluster = SchedulerCluster::with_node("n1").await;
    cluster.node("n2").await;
    let (one, two) = (cluster.scheduler().await, cluster.scheduler().await);
    for at in 0..16 {
        cluster.pod(&format!("p{at:02}"), json!({"nvidia.com/gpu": "1"})).await;
    }
    // The agents: a bound holder has been served.
    let start = tokio::time::Instant::now();
    loop {
        let pods = cluster.pods().list(&Default::default()).await.unwrap().items;
        for node in ["n1", "n2"] {
            let Some(lock) = cluster.lock(node).await else { continue };
            let served = pods.iter().any(|pod| {
                lock.ends_with(&pod.uid().unwrap()) && pod.spec.as_ref().unwrap().node_name.as_deref() == Some(node)
            });
            if served {
                cluster.set_lock(node, None).await;
            }
        }
        if pods.iter().all(|pod| pod.spec.as_ref().unwrap().node_name.is_some()) {
            break;
        }
        assert!(start.elapsed() < Duration::from_secs(60), "not all pods are bound");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    one.stop().await;
    two.stop().await;
    each_has_its_own(&cluster, 16).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_two_candidates_one_leads_and_the_other_takes_over_when_it_is_killed_or_stops() {
    let cluster = SchedulerCluster::with_node("n1").await;
    let options = |identity: &str| {
        let quick = cluster.quick();
        let leader = LeaderOptions { elect: true, identity: identity.into(), ..quick.leader };
        SchedulerOptions { leader, ..quick }
    };
    let first = cluster.scheduler_with(options("first")).await;
    cluster.binds("a", json!({"nvidia.com/gpu": "1"})).await;
    cluster.set_lock("n1", None).await;
    let second = cluster.scheduler_with(options("second")).await;
    cluster.binds("b", json!({"nvidia.com/gpu": "1"})).await;
    cluster.set_lock("n1", None).await;
    // Given away at shutdown: the next one need not wait for the Lease to expire.
    first.stop().await;
    cluster.binds("c", json!({"nvidia.com/gpu": "1"})).await;
    cluster.set_lock("n1", None).await;
    second.stop().await;
    let third = cluster.scheduler_with(options("third")).await;
    cluster.binds("d", json!({"nvidia.com/gpu": "1"})).await;
    third.stop().await;
    each_has_its_own(&cluster, 4).await;
}

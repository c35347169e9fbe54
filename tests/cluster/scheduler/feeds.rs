//! How the watches start: from the watch itself where the API server can, else in pages.

use k8s_openapi::api::resource::v1::ResourceSlice;

use crate::prelude::*;
use crate::scheduler::verbs::until;

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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn resource_slices_of_a_gpu_driver_keep_device_pods_away_where_they_are_served() {
    for served in [true, false] {
        let cluster = SchedulerCluster::with_node("n1").await;
        let slices: Api<ResourceSlice> = Api::all(cluster.client.clone());
        let pool = json!({"name": "n1", "generation": 1, "resourceSliceCount": 1});
        let spec = json!({"driver": "gpu.nvidia.com", "nodeName": "n1", "pool": pool, "devices": [{"name": "gpu-0"}]});
        let slice = serde_json::from_value(json!({"metadata": {"name": "n1-gpus"}, "spec": spec})).unwrap();
        slices.create(&PostParams::default(), &slice).await.unwrap();
        if !served {
            // A cluster before 1.34.
            cluster.server().faults().add(FaultRule::on("", "resourceslices"), Effect::Answer(404, None));
        }
        cluster.pod("wanted", json!({"nvidia.com/gpu": "1"})).await;
        let scheduler = cluster.scheduler().await;
        if served {
            until("the pod is refused", || async {
                let status = cluster.get("wanted").await?.status?;
                let said = status.conditions?.into_iter().find_map(|condition| condition.message)?;
                said.contains("AnotherGpuDriver: gpu.nvidia.com").then_some(())
            })
            .await;
            slices.delete("n1-gpus", &DeleteParams::default()).await.unwrap();
        }
        cluster.bound("wanted").await;
        scheduler.stop().await;
    }
}

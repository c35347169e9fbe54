//! The examples of `docs/gang.md` are taken by the API server and run.

use crate::prelude::*;
use crate::scheduler::verbs::until;

/// Every object of every YAML block.
fn examples() -> Vec<DynamicObject> {
    let text = include_str!("../../../docs/gang.md");
    let blocks = text.split("```yaml\n").skip(1).map(|rest| rest.split("```").next().unwrap());
    blocks
        .flat_map(|block| {
            let objects: Vec<DynamicObject> =
                serde_saphyr::from_str_multiple(block).unwrap_or_else(|error| panic!("{error}:\n{block}"));
            objects
        })
        .collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_example_runs() {
    let cluster = SchedulerCluster::with_cpus("n1", 16).await;
    cluster.pod_group_crd(PodGroupApi::Sigs).await;
    cluster.create_namespace("actors").await;
    let scheduler = cluster.scheduler().await;
    let mut pods = 0;
    for object in examples() {
        let types = object.types.clone().unwrap();
        let resource = ApiResource::from_gvk(&GroupVersionKind::try_from(&types).unwrap());
        let namespace = object.metadata.namespace.clone().unwrap_or_else(|| "default".to_owned());
        let api: Api<DynamicObject> = Api::namespaced_with(cluster.client.clone(), &namespace, &resource);
        pods += usize::from(types.kind == "Pod");
        api.create(&PostParams::default(), &object).await.unwrap();
    }
    assert!(pods >= 7, "{pods} pods");
    let all: Api<Pod> = Api::all(cluster.client.clone());
    until("every pod of the examples is bound", || async {
        let bound = all.list(&Default::default()).await.unwrap().items.into_iter();
        (bound.filter(|pod| pod.spec.as_ref().is_some_and(|spec| spec.node_name.is_some())).count() == pods)
            .then_some(())
    })
    .await;
    scheduler.stop().await;
}

//! `docs/workloads.md`: the objects that workload projects make, in the form of their sources (`tests/fixtures/workloads`), and
//! what the scheduler does with them.

use k8s_openapi::api::core::v1::ResourceQuota;

use crate::prelude::*;
use crate::scheduler::verbs::until;

/// Applies the objects of a file; returns the pods' names.
async fn apply(cluster: &SchedulerCluster, text: &str) -> Vec<String> {
    let objects: Vec<DynamicObject> = serde_saphyr::from_str_multiple(text).unwrap();
    let mut pods = Vec::new();
    for mut object in objects {
        // They do not exist here, and the garbage collector would take what they own.
        object.metadata.owner_references = None;
        let types = object.types.clone().unwrap();
        if types.kind == "Pod" {
            pods.push(object.name_any());
        }
        let resource = ApiResource::from_gvk(&GroupVersionKind::try_from(&types).unwrap());
        let api: Api<DynamicObject> = Api::namespaced_with(cluster.client.clone(), "ml", &resource);
        api.create(&PostParams::default(), &object).await.unwrap();
    }
    pods
}

/// Plays the node daemons until every pod is bound, and prints where to.
async fn all_run(cluster: &SchedulerCluster, what: &str, names: &[String], nodes: &[&str]) {
    until(&format!("the pods of {what} are bound"), || async {
        let bound = cluster.bound_of("").await;
        for node in nodes {
            let held = cluster.lock(node).await.and_then(|lock| lock.split(',').nth(2).map(str::to_owned));
            if held.is_some_and(|held| bound.contains(&held)) {
                cluster.set_lock(node, None).await;
            }
        }
        names.iter().all(|name| bound.contains(name)).then_some(())
    })
    .await;
    let mut taken = Vec::new();
    for name in names {
        let pod = cluster.get(name).await.unwrap();
        let given = DeviceAllocation::parse(&pod.annotations()[key::DEVICE_ALLOCATED]).unwrap();
        let ids: Vec<String> = given.devices.values().flatten().map(|device| device.id.to_string()).collect();
        println!("{what}: {name} -> {} {}", pod.spec.unwrap().node_name.unwrap(), ids.join(" "));
        taken.extend(ids);
    }
    taken.sort();
    let whole = taken.len();
    taken.dedup();
    // Shares meet on one GPU; whole ones do not.
    assert!(taken.len() == whole || what == "Kueue", "{what}: {taken:?}");
}

/// The objects come to a cluster with too little room: nothing starts. Then a node comes: everything does.
async fn starts_together(what: &str, text: &str, gang: &str, scheduler_name: &str) {
    let cluster = SchedulerCluster::start().await;
    cluster.pod_group_crd(PodGroupApi::Community).await;
    cluster.newest_pod_group_crd(PodGroupApi::Kubernetes).await;
    cluster.node_of("small", 1).await;
    let options = SchedulerOptions { scheduler_names: vec![scheduler_name.to_owned()], ..cluster.quick() };
    let scheduler = cluster.scheduler_with(options).await;
    let pods = apply(&cluster, text).await;
    for pod in &pods {
        // The reason that autoscalers act on.
        cluster.waits_with(pod, "Unschedulable", &format!("gang ml/{gang}: ")).await;
    }
    assert_eq!(cluster.bound_of("").await, Vec::<String>::new(), "{what}: all or none");
    cluster.node("large").await;
    all_run(&cluster, what, &pods, &["small", "large"]).await;
    scheduler.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_pods_of_each_project_start_together() {
    for (what, text, gang, scheduler) in [
        (
            "KubeRay",
            include_str!("../../fixtures/workloads/kuberay.yaml"),
            "raycluster-gang",
            "scheduler-plugins-scheduler",
        ),
        ("Trainer", include_str!("../../fixtures/workloads/trainer.yaml"), "pytorch", "baton-scheduler"),
        (
            "LeaderWorkerSet",
            include_str!("../../fixtures/workloads/lws.yaml"),
            "vllm-7f9c4d-0-6b8d9cf5c7",
            "baton-scheduler",
        ),
        ("JobSet", include_str!("../../fixtures/workloads/jobset.yaml"), "llama", "baton-scheduler"),
    ] {
        starts_together(what, text, gang, scheduler).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pods_of_kueue_are_placed_once_kueue_has_admitted_all() {
    let cluster = SchedulerCluster::with_node("n1").await;
    cluster.node("n2").await;
    let scheduler = cluster.scheduler().await;
    let pods = apply(&cluster, include_str!("../../fixtures/workloads/kueue.yaml")).await;
    // As Kueue admits: the gate goes, and the flavor's node selector comes.
    let admit = async |name: &str| {
        let patch = json!({"spec": {"schedulingGates": null, "nodeSelector": {"kubernetes.io/hostname": "n2"}}});
        cluster.pods().patch(name, &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
    };
    admit(&pods[0]).await;
    cluster.waits_with(&pods[0], "GangIncomplete", "ml/sweep").await;
    assert_eq!(cluster.bound_of("").await, Vec::<String>::new(), "the other has its gate");
    admit(&pods[1]).await;
    all_run(&cluster, "Kueue", &pods, &["n1", "n2"]).await;
    for name in &pods {
        assert_eq!(cluster.get(name).await.unwrap().spec.unwrap().node_name.as_deref(), Some("n2"));
    }
    scheduler.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_quota_on_a_share_name_counts_percent() {
    let cluster = SchedulerCluster::start().await;
    let text = include_str!("../../../docs/workloads.md").split("<!-- quota -->\n```yaml\n").nth(1).unwrap();
    let quota: ResourceQuota = serde_saphyr::from_str(text.split("```").next().unwrap()).unwrap();
    let quotas: Api<ResourceQuota> = Api::namespaced(cluster.client.clone(), "ml");
    quotas.create(&PostParams::default(), &quota).await.unwrap();
    // As its controller answers.
    let hard = quota.spec.unwrap().hard.unwrap();
    let used: BTreeMap<&String, &str> = hard.keys().map(|name| (name, "0")).collect();
    let status = json!({"status": {"hard": hard, "used": used}});
    quotas.patch_status("gpus", &PatchParams::default(), &Patch::Merge(status)).await.unwrap();
    cluster.pod("a", json!({"koordinator.sh/gpu": "150"})).await;
    let refused = async |limits: Value| {
        let pod = json!({"metadata": {"name": "b", "namespace": "ml"},
            "spec": {"containers": [{"name": "main", "image": "x", "resources": {"limits": limits}}]}});
        let pod: Pod = serde_json::from_value(pod).unwrap();
        cluster.pods().create(&PostParams::default(), &pod).await.unwrap_err().to_string()
    };
    let text = refused(json!({"koordinator.sh/gpu": "100"})).await;
    tells(text, ["exceeded quota: gpus", "requests.koordinator.sh/gpu=100"]);
    // The other names of the same devices are closed.
    for name in ["nvidia.com/gpu", "koordinator.sh/gpu-core"] {
        tells(refused(json!({name: "1"})).await, [format!("requests.{name}=1")]);
    }
    cluster.pod("c", json!({"koordinator.sh/gpu": "50"})).await;
}

/// What an autoscaler acts on, and a node that it adds: the pod waits for its node daemon.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_an_autoscaler_adds_is_used_once_its_daemon_has_reported() {
    let cluster = SchedulerCluster::start().await;
    let scheduler = cluster.scheduler().await;
    cluster.pod("train", json!({"nvidia.com/gpu": "8"})).await;
    cluster.waits_with("train", "Unschedulable", "").await;
    // As a new machine comes: Ready, and without devices.
    cluster.cpus("new", 64).await;
    cluster.waits_with("train", "Unschedulable", "1 node").await;
    cluster.nodes().delete("new", &Default::default()).await.unwrap();
    cluster.node("new").await;
    all_run(&cluster, "autoscaler", &["train".to_owned()], &["new"]).await;
    scheduler.stop().await;
}

//! PodGroups say where their gangs stand: phases, counts, conditions; written on change only, read back after a restart.

use std::time::Duration;

use baton::contract::gang::PodGroupApi;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};

use crate::scheduler::verbs::{SchedulerCluster, until};

const POD_GROUP: &str = "pod-group.scheduling.sigs.k8s.io";

async fn members(cluster: &SchedulerCluster, group: &str, numbers: std::ops::Range<usize>) {
    for n in numbers {
        cluster.member(&format!("{group}-{n}"), json!({ POD_GROUP: group }), json!({})).await;
    }
}

/// Waits until the status says so.
async fn says(cluster: &SchedulerCluster, group: &str, what: &str, check: impl Fn(&Value) -> bool) -> Value {
    let mut last = Value::Null;
    let deadline = tokio::time::Instant::now() + Duration::from_secs(30);
    loop {
        let status = cluster.status(group).await;
        if check(&status) {
            return status;
        }
        last = if status.is_null() { last } else { status };
        assert!(tokio::time::Instant::now() < deadline, "{group}: {what} did not come; last {last:#}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

fn condition<'a>(status: &'a Value, name: &str) -> &'a Value {
    let all = status["conditions"].as_array().map(Vec::as_slice).unwrap_or_default();
    all.iter().find(|condition| condition["type"] == name).unwrap_or(&Value::Null)
}

fn writes(cluster: &SchedulerCluster) -> u64 {
    cluster.server().counts().of("patch", "podgroups", "status")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_status_follows_the_gang_to_its_end_and_is_not_written_without_need() {
    let cluster = SchedulerCluster::start().await;
    cluster.pod_group_crd(PodGroupApi::Sigs).await;
    cluster.pod_group("g", json!({"minMember": 3})).await;
    let scheduler = cluster.scheduler().await;
    members(&cluster, "g", 0..2).await;
    let status = says(&cluster, "g", "two of three", |status| {
        status["phase"] == "Pending" && condition(status, "GangScheduled")["reason"] == "GangIncomplete"
    })
    .await;
    assert_eq!(condition(&status, "GangScheduled")["status"], "False");
    members(&cluster, "g", 2..3).await;
    says(&cluster, "g", "an attempt that fails", |status| {
        let scheduled = condition(status, "GangScheduled");
        status["phase"] == "PreScheduling"
            && scheduled["reason"] == "Unschedulable"
            && scheduled["message"]
                .as_str()
                .is_some_and(|text| text.starts_with("attempt ") && text.contains("0 of 3 placed"))
            && status["scheduleStartTime"].is_string()
    })
    .await;
    cluster.cpus("n1", 4).await;
    let status = says(&cluster, "g", "three scheduled", |status| status["phase"] == "Scheduled").await;
    assert_eq!((&status["scheduled"], &condition(&status, "GangSatisfied")["status"]), (&json!(3), &json!("True")));
    for n in 0..3 {
        cluster.finish(&format!("g-{n}"), "Running").await;
    }
    says(&cluster, "g", "three running", |status| status["phase"] == "Running" && status["running"] == 3).await;
    for n in 0..3 {
        cluster.finish(&format!("g-{n}"), "Succeeded").await;
    }
    says(&cluster, "g", "the end", |status| {
        status["phase"] == "Finished" && condition(status, "GangFinished")["status"] == "True"
    })
    .await;
    // Its pods are cleaned up: finished it stays, also for a scheduler that comes new, which has nothing to write.
    for n in 0..3 {
        cluster.delete(&format!("g-{n}")).await;
    }
    scheduler.stop().await;
    cluster.server().counts().reset();
    let scheduler = cluster.scheduler().await;
    cluster.member("lone", json!({}), json!({})).await;
    cluster.bound("lone").await;
    assert_eq!((writes(&cluster), &cluster.status("g").await["phase"]), (0, &json!("Finished")));
    // Pods made again are another generation.
    members(&cluster, "g", 5..6).await;
    let status = says(&cluster, "g", "a new generation", |status| status["phase"] == "Pending").await;
    assert_eq!(condition(&status, "GangFinished")["status"], "False");
    assert_eq!(condition(&status, "GangSatisfied")["status"], "False");
    scheduler.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pod_group_whose_crd_has_no_status_path_gets_its_status_with_the_object() {
    let cluster = SchedulerCluster::start().await;
    cluster.plain_pod_group_crd().await;
    cluster.pod_group("g", json!({"minMember": 2})).await;
    let denied = cluster.pod_groups(PodGroupApi::Sigs);
    let patch = Patch::Merge(json!({"status": {"phase": "Running"}}));
    let error = denied.patch_status("g", &PatchParams::default(), &patch).await.unwrap_err();
    assert!(matches!(&error, kube::Error::Api(status) if status.code == 404), "{error}");
    let scheduler = cluster.scheduler().await;
    members(&cluster, "g", 0..1).await;
    says(&cluster, "g", "one of two", |status| status["phase"] == "Pending").await;
    cluster.server().counts().reset();
    cluster.cpus("n1", 4).await;
    members(&cluster, "g", 1..2).await;
    let status = says(&cluster, "g", "both scheduled", |status| status["phase"] == "Scheduled").await;
    assert_eq!((&status["scheduled"], &condition(&status, "GangSatisfied")["status"]), (&json!(2), &json!("True")));
    assert_eq!(writes(&cluster), 0, "the path that is not there is not tried again");
    let object = cluster.pod_groups(PodGroupApi::Sigs).get("g").await.unwrap();
    assert_eq!(object.data["spec"]["minMember"], 2);
    scheduler.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restarted_scheduler_knows_that_the_gang_was_satisfied() {
    let cluster = SchedulerCluster::start().await;
    cluster.pod_group_crd(PodGroupApi::Sigs).await;
    cluster.pod_group("g", json!({"minMember": 3})).await;
    cluster.cpus("n1", 3).await;
    members(&cluster, "g", 0..4).await;
    let scheduler = cluster.scheduler().await;
    cluster.all_bound("g", 3).await;
    says(&cluster, "g", "satisfied", |status| condition(status, "GangSatisfied")["status"] == "True").await;
    scheduler.stop().await;
    for name in &cluster.bound_of("g").await[1..] {
        cluster.delete(name).await;
    }
    let scheduler = cluster.scheduler().await;
    cluster.all_bound("g", 2).await;
    scheduler.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn groups_of_other_schedulers_and_crds_without_conditions_are_not_written_again() {
    let cluster = SchedulerCluster::with_cpus("n1", 8).await;
    for api in [PodGroupApi::Sigs, PodGroupApi::Community] {
        cluster.pod_group_crd(api).await;
    }
    cluster.pod_group("theirs", json!({"minMember": 1})).await;
    cluster.pod_group_of(PodGroupApi::Community, "plain", json!({"minMember": 1})).await;
    let pod = json!({"metadata": {"name": "theirs-0", "labels": {POD_GROUP: "theirs"}}, "spec": {"schedulerName": "other",
        "automountServiceAccountToken": false, "containers": [{"name": "main", "image": "x"}]}});
    cluster.make(pod).await;
    let scheduler = cluster.scheduler().await;
    cluster.member("plain-0", json!({"scheduling.x-k8s.io/pod-group": "plain"}), json!({})).await;
    until("the phase in the community's object", || async {
        let object = cluster.pod_groups(PodGroupApi::Community).get("plain").await.unwrap();
        (object.data["status"]["phase"] == "Scheduled").then_some(())
    })
    .await;
    cluster.server().counts().reset();
    // The group is looked at again and again while its pod changes.
    for n in 0..20 {
        let patch = json!({"metadata": {"annotations": {"note": n.to_string()}}});
        cluster.pods().patch("plain-0", &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
    }
    cluster.member("lone", json!({}), json!({})).await;
    cluster.bound("lone").await;
    assert_eq!((writes(&cluster), cluster.status("theirs").await), (0, Value::Null));
    scheduler.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gang_named_by_labels_gets_its_pod_group_where_that_is_wanted() {
    let cluster = SchedulerCluster::with_cpus("n1", 8).await;
    cluster.pod_group_crd(PodGroupApi::Sigs).await;
    let mut options = cluster.quick();
    options.gangs.auto_create_pod_group = true;
    let scheduler = cluster.scheduler_with(options).await;
    let labels =
        json!({"pod-group.scheduling.sigs.k8s.io/name": "etl", "pod-group.scheduling.sigs.k8s.io/min-available": "2"});
    // Any object can be a controller; one that does not exist would have its pods collected.
    let maps: Api<ConfigMap> = Api::namespaced(cluster.client.clone(), "ml");
    let job: ConfigMap = serde_json::from_value(json!({"metadata": {"name": "etl-job"}})).unwrap();
    let uid = maps.create(&PostParams::default(), &job).await.unwrap().metadata.uid.unwrap();
    let owner = json!([{"apiVersion": "v1", "kind": "ConfigMap", "name": "etl-job", "uid": uid, "controller": true}]);
    for n in 0..2 {
        let pod = json!({"metadata": {"name": format!("etl-{n}"), "labels": labels, "ownerReferences": owner},
            "spec": {"schedulerName": "baton-scheduler", "automountServiceAccountToken": false,
                "containers": [{"name": "main", "image": "x"}]}});
        cluster.make(pod).await;
    }
    cluster.all_bound("etl", 2).await;
    let group =
        until("the PodGroup", || async { cluster.pod_groups(PodGroupApi::Sigs).get_opt("etl").await.unwrap() }).await;
    assert_eq!(group.data["spec"]["minMember"], 2);
    let meta = group.metadata;
    assert_eq!(meta.labels.unwrap()["app.kubernetes.io/managed-by"], "baton-scheduler");
    assert_eq!(meta.owner_references.unwrap()[0].name, "etl-job");
    let status = says(&cluster, "etl", "its status", |status| status["phase"] == "Scheduled").await;
    assert_eq!(status["occupiedBy"], "ml/etl-job");
    // Without a controller nothing would remove the object but the scheduler, with the last pod.
    let labels =
        json!({"pod-group.scheduling.sigs.k8s.io/name": "own", "pod-group.scheduling.sigs.k8s.io/min-available": "1"});
    cluster.member("own-0", labels, json!({})).await;
    until("the PodGroup", || async { cluster.pod_groups(PodGroupApi::Sigs).get_opt("own").await.unwrap() }).await;
    says(&cluster, "own", "its status", |status| status["phase"] == "Scheduled").await;
    cluster.pods().delete("own-0", &DeleteParams::default().grace_period(0)).await.unwrap();
    let gone = || async { cluster.pod_groups(PodGroupApi::Sigs).get_opt("own").await.unwrap().is_none().then_some(()) };
    until("the PodGroup to go", gone).await;
    assert!(cluster.pod_groups(PodGroupApi::Sigs).get_opt("etl").await.unwrap().is_some());
    scheduler.stop().await;
}

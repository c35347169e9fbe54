//! The life of jobs, as their owners see it.

use super::verbs::{JobCluster, SOON};
use crate::prelude::*;

#[tokio::test(flavor = "multi_thread")]
async fn a_job_goes_from_submission_to_success_and_leaves_nothing_behind() {
    let cluster = JobCluster::start().await;
    let controller = cluster.controller(&[]);
    cluster.submit("rl", |_| ()).await;
    cluster.play_until_stage("rl", Stage::Running).await;
    let crew = cluster.pods_of("rl").await;
    assert_eq!(crew.keys().collect::<Vec<_>>(), ["rl-actor-0", "rl-actor-1", "rl-learner"]);
    let worker = &crew["rl-actor-1"];
    let spec = worker.spec.as_ref().unwrap();
    assert_eq!(spec.scheduler_name.as_deref(), Some("baton-scheduler"));
    let env = spec.containers[0].env.clone().unwrap();
    let address = env.iter().find(|entry| entry.name == keys::ENV_LEADER_ADDRESS).unwrap().value.clone();
    assert_eq!(address, cluster.status("rl").await.leader_address);
    assert_eq!(worker.spec.as_ref().unwrap().node_name, worker.annotations().get(keys::ALLOCATION).cloned());
    tells(controller.get_at("metrics", "/metrics").await.unwrap(), ["baton_controller_pods_made_total 3"]);
    assert!(controller.get_at("probes", "/readyz").await.unwrap().ends_with("leading\n"));
    cluster.ends("rl-learner", "Succeeded").await;
    cluster.play_until_stage("rl", Stage::Succeeded).await;
    cluster.play_until("the pods are cleaned up", "rl", async || cluster.pods_of("rl").await.is_empty()).await;
    let events = cluster.events("rl").await;
    for reason in ["Pending", "Starting", "Running", "Succeeded"] {
        assert!(events.iter().any(|event| event == reason), "{reason} is not among {events:?}");
    }
    cluster.jobs().delete("rl", &DeleteParams::default()).await.unwrap();
    cluster.play_until("the job is gone", "rl", async || cluster.job("rl").await.is_none()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_foreign_pod_is_neither_adopted_nor_deleted() {
    let (cluster, _controller) = JobCluster::controlled().await;
    // It even carries the job's label; what counts is who controls it.
    let foreign = json!({
        "metadata": { "name": "rl-actor-0", "labels": { keys::JOB: "other" } },
        "spec": { "containers": [{ "name": "main", "image": "theirs" }] },
    });
    let foreign =
        cluster.pods().create(&PostParams::default(), &serde_json::from_value(foreign).unwrap()).await.unwrap();
    cluster.submit("rl", |_| ()).await;
    cluster
        .play_until("the conflict is reported", "rl", async || {
            cluster.status("rl").await.holds(condition::NAME_CONFLICT)
        })
        .await;
    assert_eq!(cluster.status("rl").await.ready.as_deref().map(|ready| ready.ends_with("/2")), Some(true));
    let left = cluster.pods().get("rl-actor-0").await.unwrap();
    assert_eq!((left.uid(), left.metadata.deletion_timestamp), (foreign.uid(), None));
    cluster.remove("rl-actor-0").await;
    cluster
        .play_until("the worker is made", "rl", async || cluster.status("rl").await.ready.as_deref() == Some("2/2"))
        .await;
    assert!(!cluster.status("rl").await.holds(condition::NAME_CONFLICT));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_that_the_api_server_can_never_take_fails_the_job() {
    let (cluster, _controller) = JobCluster::controlled().await;
    cluster
        .submit("rl", |job| {
            let containers = &mut job["spec"]["leader"]["template"]["spec"]["containers"];
            containers[0]["resources"] = json!({ "limits": { "cpu": "-1" } });
        })
        .await;
    cluster.play_until_stage("rl", Stage::Failed).await;
    let status = cluster.status("rl").await;
    assert!(status.message.as_ref().unwrap().contains("cpu"), "{status:?}");
    assert!(status.holds(condition::INVALID_SPEC) && cluster.pods_of("rl").await.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn counts_follow_and_an_edit_of_a_template_is_refused() {
    let (cluster, _controller) = JobCluster::controlled().await;
    cluster.submit("rl", |_| ()).await;
    cluster.play_until_stage("rl", Stage::Running).await;
    let pod = json!({ "spec": { "containers": [{ "name": "main", "image": "actor" }] } });
    let set = |counts: i32| json!({ "workerSets": [{ "name": "actor", "template": pod, "counts": counts }] });
    cluster.edit("rl", set(4)).await;
    cluster.play_until("four work", "rl", async || cluster.status("rl").await.ready.as_deref() == Some("4/4")).await;
    cluster.edit("rl", set(1)).await;
    cluster.play_until("one is left", "rl", async || cluster.pods_of("rl").await.len() == 2).await;
    assert!(cluster.pods_of("rl").await.contains_key("rl-actor-0"));
    cluster.edit("rl", json!({ "leader": { "template": { "spec": { "hostNetwork": true } } } })).await;
    cluster
        .play_until("it is refused", "rl", async || cluster.status("rl").await.holds(condition::INVALID_UPDATE))
        .await;
    assert_eq!(cluster.status("rl").await.stage, Some(Stage::Running));
    cluster.edit("rl", json!({ "terminating": true })).await;
    cluster.play_until_stage("rl", Stage::Succeeded).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_deleted_in_mid_creation_leaves_nothing_behind() {
    let (cluster, _controller) = JobCluster::controlled().await;
    cluster.submit("rl", |job| job["spec"]["workerSets"][0]["counts"] = 40.into()).await;
    cluster.play_until("some pods are made", "rl", async || cluster.pods_of("rl").await.len() > 1).await;
    cluster.jobs().delete("rl", &DeleteParams::default()).await.unwrap();
    cluster.play_until("the job is gone", "rl", async || cluster.job("rl").await.is_none()).await;
    until("its pods are gone", SOON, async || cluster.pods_of("rl").await.is_empty().then_some(())).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dying_leader_of_a_vanished_node_is_removed_by_force() {
    let (mut cluster, _controller) = JobCluster::controlled().await;
    cluster.submit("rl", |_| ()).await;
    cluster.play_until_stage("rl", Stage::Running).await;
    let leader = cluster.pods().get("rl-learner").await.unwrap();
    cluster.untouched.insert("rl-learner".to_owned());
    // One second of grace, and no kubelet that confirms.
    let soon = DeleteParams { grace_period_seconds: Some(1), ..DeleteParams::default() };
    cluster.pods().delete("rl-learner", &soon).await.unwrap();
    cluster.play_until_stage("rl", Stage::Rescheduling).await;
    cluster.nodes().delete(&leader.spec.unwrap().node_name.unwrap(), &DeleteParams::default()).await.unwrap();
    let former = leader.metadata.uid;
    cluster
        .play_until("its name is free for the next", "rl", async || {
            cluster.pods_of("rl").await.get("rl-learner").is_some_and(|pod| pod.metadata.uid != former)
        })
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_image_that_never_comes_and_a_job_that_never_fits_fail() {
    let (mut cluster, _controller) = JobCluster::controlled().await;
    cluster.submit("rl", |_| ()).await;
    cluster.untouched.insert("rl-learner".to_owned());
    cluster.play_until_stage("rl", Stage::Starting).await;
    let waiting = json!({ "waiting": { "reason": "InvalidImageName", "message": "couldn't parse image name" } });
    let container =
        json!({ "name": "main", "state": waiting, "ready": false, "restartCount": 0, "image": "", "imageID": "" });
    cluster.say("rl-learner", json!({ "phase": "Pending", "containerStatuses": [container] })).await;
    cluster.play_until_stage("rl", Stage::Failed).await;
    assert!(cluster.status("rl").await.message.unwrap().contains("couldn't parse image name"));
    let big = cluster.submit("big", |_| ()).await;
    until("big is pending", SOON, async || cluster.status("big").await.stage).await;
    cluster.write_places(&big, Vec::new(), ScheduleState::ScheduledFailed).await;
    until("big has failed", SOON, async || (cluster.status("big").await.stage == Some(Stage::Failed)).then_some(()))
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_controller_takes_over() {
    let cluster = JobCluster::start().await;
    let mut first = cluster.controller(&[]);
    until("the first leads", SOON, async || {
        first.get_at("probes", "/readyz").await.is_some_and(|answer| answer.ends_with("leading\n")).then_some(())
    })
    .await;
    let _second = cluster.controller(&[]);
    cluster.submit("rl", |_| ()).await;
    cluster.play_until_stage("rl", Stage::Starting).await;
    first.kill();
    cluster.play_until_stage("rl", Stage::Running).await;
    assert_eq!(cluster.status("rl").await.restarts, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn jobs_are_listed_for_people_and_for_programs() {
    let (cluster, _controller) = JobCluster::controlled().await;
    cluster.submit("rl", |_| ()).await;
    cluster.play_until_stage("rl", Stage::Running).await;
    let get = async |args: &str| {
        let (code, text, said) = cluster.baton(&args.split(' ').collect::<Vec<_>>()).await;
        assert_eq!(code, Some(0), "{said}");
        text
    };
    tells(get("get jobs").await, ["rl", "Running", "ScheduledSucceed"]);
    tells(get("get tyj rl -o wide").await, ["node-0,node-1,node-2", "workers are ready"]);
    let json: serde_json::Value = serde_json::from_str(&get("get jobs -o json").await).unwrap();
    assert_eq!(json["items"][0]["allocations"][0]["pod"], "rl-learner");
    assert!(get("get jobs -n elsewhere").await.contains("No TYJob"));
}

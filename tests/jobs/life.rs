//! The life of jobs, as their owners see it.

use baton::contract::tyjob::{ScheduleState, Stage, condition, keys};
use kube::ResourceExt;
use kube::api::{DeleteParams, PostParams};
use serde_json::json;

use crate::stage::{SOON, Theatre};
use crate::wait::until;

#[tokio::test(flavor = "multi_thread")]
async fn a_job_goes_from_submission_to_success_and_leaves_nothing_behind() {
    let theatre = Theatre::open().await;
    let controller = theatre.controller(&[]);
    theatre.submit("rl", |_| ()).await;
    theatre.play_until_stage("rl", Stage::Running).await;
    let crew = theatre.crew("rl").await;
    assert_eq!(crew.keys().collect::<Vec<_>>(), ["rl-actor-0", "rl-actor-1", "rl-learner"]);
    let worker = &crew["rl-actor-1"];
    let spec = worker.spec.as_ref().unwrap();
    assert_eq!(spec.scheduler_name.as_deref(), Some("baton-scheduler"));
    let env = spec.containers[0].env.clone().unwrap();
    let address = env.iter().find(|entry| entry.name == keys::ENV_LEADER_ADDRESS).unwrap().value.clone();
    assert_eq!(address, theatre.status("rl").await.leader_address);
    assert_eq!(worker.spec.as_ref().unwrap().node_name, worker.annotations().get(keys::ALLOCATION).cloned());
    let metrics = controller.get("/metrics").await.unwrap();
    assert!(metrics.contains("baton_controller_pods_made_total 3"), "{metrics}");
    assert!(controller.get("/readyz").await.unwrap().ends_with("leading\n"));
    theatre.ends("rl-learner", "Succeeded").await;
    theatre.play_until_stage("rl", Stage::Succeeded).await;
    theatre.play_until("the pods are cleaned up", "rl", async || theatre.crew("rl").await.is_empty()).await;
    let events = theatre.events("rl").await;
    for reason in ["Pending", "Starting", "Running", "Succeeded"] {
        assert!(events.iter().any(|event| event == reason), "{reason} is not among {events:?}");
    }
    theatre.jobs().delete("rl", &DeleteParams::default()).await.unwrap();
    theatre.play_until("the job is gone", "rl", async || theatre.job("rl").await.is_none()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_leader_reschedules_and_a_failed_worker_is_replaced() {
    let theatre = Theatre::open().await;
    let _controller = theatre.controller(&["--leader-elect=false"]);
    theatre.submit("rl", |_| ()).await;
    theatre.play_until_stage("rl", Stage::Running).await;
    let uid = |crew: &std::collections::BTreeMap<String, k8s_openapi::api::core::v1::Pod>, name: &str| {
        crew.get(name).and_then(ResourceExt::uid)
    };
    let first = theatre.crew("rl").await;
    theatre.ends("rl-actor-0", "Failed").await;
    theatre
        .play_until("the worker is replaced", "rl", async || {
            let crew = theatre.crew("rl").await;
            crew.len() == 3 && uid(&crew, "rl-actor-0") != uid(&first, "rl-actor-0")
        })
        .await;
    assert_eq!(theatre.status("rl").await.worker_set_restarts["actor"], 1);
    theatre.pods().delete("rl-learner", &DeleteParams::default()).await.unwrap();
    theatre
        .play_until("the job runs again", "rl", async || {
            let status = theatre.status("rl").await;
            status.restarts == 1 && status.stage == Some(Stage::Running)
        })
        .await;
    let second = theatre.crew("rl").await;
    assert!(second.values().all(|pod| pod.labels()[keys::ATTEMPT] == "1"));
    assert!(second.keys().all(|name| uid(&second, name) != uid(&first, name)));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_foreign_pod_is_neither_adopted_nor_deleted() {
    let theatre = Theatre::open().await;
    let _controller = theatre.controller(&["--leader-elect=false"]);
    // It even carries the job's label; what counts is who controls it.
    let foreign = json!({
        "metadata": { "name": "rl-actor-0", "labels": { keys::JOB: "other" } },
        "spec": { "containers": [{ "name": "main", "image": "theirs" }] },
    });
    let foreign =
        theatre.pods().create(&PostParams::default(), &serde_json::from_value(foreign).unwrap()).await.unwrap();
    theatre.submit("rl", |_| ()).await;
    theatre
        .play_until("the conflict is told", "rl", async || theatre.status("rl").await.holds(condition::NAME_CONFLICT))
        .await;
    assert_eq!(theatre.status("rl").await.ready.as_deref().map(|ready| ready.ends_with("/2")), Some(true));
    let left = theatre.pods().get("rl-actor-0").await.unwrap();
    assert_eq!((left.uid(), left.metadata.deletion_timestamp), (foreign.uid(), None));
    theatre
        .pods()
        .delete("rl-actor-0", &DeleteParams { grace_period_seconds: Some(0), ..Default::default() })
        .await
        .unwrap();
    theatre
        .play_until("the worker is made", "rl", async || theatre.status("rl").await.ready.as_deref() == Some("2/2"))
        .await;
    assert!(!theatre.status("rl").await.holds(condition::NAME_CONFLICT));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_that_the_api_server_can_never_take_fails_the_job() {
    let theatre = Theatre::open().await;
    let _controller = theatre.controller(&["--leader-elect=false"]);
    theatre
        .submit("rl", |job| {
            let containers = &mut job["spec"]["leader"]["template"]["spec"]["containers"];
            containers[0]["resources"] = json!({ "limits": { "cpu": "-1" } });
        })
        .await;
    theatre.play_until_stage("rl", Stage::Failed).await;
    let status = theatre.status("rl").await;
    assert!(status.message.as_ref().unwrap().contains("cpu"), "{status:?}");
    assert!(status.holds(condition::INVALID_SPEC) && theatre.crew("rl").await.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn counts_follow_and_an_edit_of_a_template_is_refused() {
    let theatre = Theatre::open().await;
    let _controller = theatre.controller(&["--leader-elect=false"]);
    theatre.submit("rl", |_| ()).await;
    theatre.play_until_stage("rl", Stage::Running).await;
    let pod = json!({ "spec": { "containers": [{ "name": "main", "image": "actor" }] } });
    let set = |counts: i32| json!({ "workerSets": [{ "name": "actor", "template": pod, "counts": counts }] });
    theatre.edit("rl", set(4)).await;
    theatre.play_until("four work", "rl", async || theatre.status("rl").await.ready.as_deref() == Some("4/4")).await;
    theatre.edit("rl", set(1)).await;
    theatre.play_until("one is left", "rl", async || theatre.crew("rl").await.len() == 2).await;
    assert!(theatre.crew("rl").await.contains_key("rl-actor-0"));
    theatre.edit("rl", json!({ "leader": { "template": { "spec": { "hostNetwork": true } } } })).await;
    theatre
        .play_until("it is refused", "rl", async || theatre.status("rl").await.holds(condition::INVALID_UPDATE))
        .await;
    assert_eq!(theatre.status("rl").await.stage, Some(Stage::Running));
    theatre.edit("rl", json!({ "terminating": true })).await;
    theatre.play_until_stage("rl", Stage::Succeeded).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_deleted_in_mid_creation_leaves_nothing_behind() {
    let theatre = Theatre::open().await;
    let _controller = theatre.controller(&["--leader-elect=false"]);
    theatre.submit("rl", |job| job["spec"]["workerSets"][0]["counts"] = 40.into()).await;
    theatre.play_until("some pods are made", "rl", async || theatre.crew("rl").await.len() > 1).await;
    theatre.jobs().delete("rl", &DeleteParams::default()).await.unwrap();
    theatre.play_until("the job is gone", "rl", async || theatre.job("rl").await.is_none()).await;
    until("its pods are gone", SOON, async || theatre.crew("rl").await.is_empty().then_some(())).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dying_leader_of_a_vanished_node_is_removed_by_force() {
    let mut theatre = Theatre::open().await;
    let _controller = theatre.controller(&["--leader-elect=false"]);
    theatre.submit("rl", |_| ()).await;
    theatre.play_until_stage("rl", Stage::Running).await;
    let leader = theatre.pods().get("rl-learner").await.unwrap();
    theatre.untouched.insert("rl-learner".to_owned());
    // One second of grace, and no kubelet that confirms.
    let soon = DeleteParams { grace_period_seconds: Some(1), ..DeleteParams::default() };
    theatre.pods().delete("rl-learner", &soon).await.unwrap();
    theatre.play_until_stage("rl", Stage::Rescheduling).await;
    theatre.nodes().delete(&leader.spec.unwrap().node_name.unwrap(), &DeleteParams::default()).await.unwrap();
    let former = leader.metadata.uid;
    theatre
        .play_until("its name is free for the next", "rl", async || {
            theatre.crew("rl").await.get("rl-learner").is_some_and(|pod| pod.metadata.uid != former)
        })
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_image_that_never_comes_and_a_job_that_never_fits_fail() {
    let mut theatre = Theatre::open().await;
    let _controller = theatre.controller(&["--leader-elect=false"]);
    theatre.submit("rl", |_| ()).await;
    theatre.untouched.insert("rl-learner".to_owned());
    theatre.play_until_stage("rl", Stage::Starting).await;
    let waiting = json!({ "waiting": { "reason": "InvalidImageName", "message": "couldn't parse image name" } });
    let container =
        json!({ "name": "main", "state": waiting, "ready": false, "restartCount": 0, "image": "", "imageID": "" });
    theatre.say("rl-learner", json!({ "phase": "Pending", "containerStatuses": [container] })).await;
    theatre.play_until_stage("rl", Stage::Failed).await;
    assert!(theatre.status("rl").await.message.unwrap().contains("couldn't parse image name"));
    let big = theatre.submit("big", |_| ()).await;
    until("big is pending", SOON, async || theatre.status("big").await.stage).await;
    theatre.write_places(&big, Vec::new(), ScheduleState::ScheduledFailed).await;
    until("big has failed", SOON, async || (theatre.status("big").await.stage == Some(Stage::Failed)).then_some(()))
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_controller_takes_over() {
    let theatre = Theatre::open().await;
    let mut first = theatre.controller(&["--identity", "first"]);
    until("the first leads", SOON, async || {
        first.get("/readyz").await.is_some_and(|answer| answer.ends_with("leading\n")).then_some(())
    })
    .await;
    let _second = theatre.controller(&["--identity", "second"]);
    theatre.submit("rl", |_| ()).await;
    theatre.play_until_stage("rl", Stage::Starting).await;
    first.kill();
    theatre.play_until_stage("rl", Stage::Running).await;
    assert_eq!(theatre.status("rl").await.restarts, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn jobs_are_listed_for_people_and_for_programs() {
    let theatre = Theatre::open().await;
    let _controller = theatre.controller(&["--leader-elect=false"]);
    theatre.submit("rl", |_| ()).await;
    theatre.play_until_stage("rl", Stage::Running).await;
    let path = theatre.dir.path().join("admin");
    let get = async |args: &str| {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_baton"));
        command.args(args.split(' ')).env("KUBECONFIG", &path);
        let output = tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    let table = get("get jobs").await;
    assert!(table.contains("rl") && table.contains("Running") && table.contains("ScheduledSucceed"), "{table}");
    let wide = get("get tyj rl -o wide").await;
    assert!(wide.contains("node-0,node-1,node-2") && wide.contains("workers are ready"), "{wide}");
    let json: serde_json::Value = serde_json::from_str(&get("get jobs -o json").await).unwrap();
    assert_eq!(json["items"][0]["allocations"][0]["pod"], "rl-learner");
    assert!(get("get jobs -n elsewhere").await.contains("No TYJob"));
}

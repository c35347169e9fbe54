//! The controller and an API server that answers late, refuses, or does not answer.

use super::verbs::{CONTROLLER, JobCluster, SOON};
use crate::prelude::*;

#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_is_never_answered_keeps_a_job_from_going_on_for_seconds_only() {
    let (cluster, _controller) = JobCluster::controlled().await;
    let of_controller = |mut rule: FaultRule, effect| {
        CONTROLLER.clone_into(&mut rule.user);
        cluster.server().faults().add(rule.times(1), effect)
    };
    let lost = [
        of_controller(FaultRule::on("create", "pods"), Effect::Hang),
        of_controller(FaultRule::on("patch", "tyjobs").below("status").named("done"), Effect::HangAfter),
    ];
    for job in ["made", "done"] {
        cluster.submit(job, |_| ()).await;
    }
    until("both jobs run", SOON, async || {
        for job in ["made", "done"] {
            cluster.play_scheduler(job).await;
            cluster.play_kubelets(job).await;
        }
        let stages = [cluster.status("made").await.stage, cluster.status("done").await.stage];
        (stages == [Some(Stage::Running); 2]).then_some(())
    })
    .await;
    assert_eq!(lost.map(|rule| cluster.server().faults().fired(rule)), [1, 1]);
    assert_eq!((cluster.pods_of("made").await.len(), cluster.pods_of("done").await.len()), (3, 3));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_conflict_is_not_called_resolved_because_a_request_fails_otherwise() {
    let (cluster, _controller) = JobCluster::controlled().await;
    let foreign = serde_json::json!({
        "metadata": { "name": "rl-actor-0" }, "spec": { "containers": [{ "name": "main", "image": "i" }] },
    });
    cluster.pods().create(&PostParams::default(), &serde_json::from_value(foreign).unwrap()).await.unwrap();
    cluster.submit("rl", |_| ()).await;
    let conflict = async || {
        let status = cluster.status("rl").await;
        status.condition(condition::NAME_CONFLICT).map(|found| (found.status == "True", found.last_transition_time.0))
    };
    cluster.play_until("the conflict is reported", "rl", async || conflict().await.is_some()).await;
    cluster.play_until("the others are there", "rl", async || cluster.pods_of("rl").await.len() == 2).await;
    let first = conflict().await;
    let mut rule = FaultRule::on("create", "pods");
    CONTROLLER.clone_into(&mut rule.user);
    let rule = cluster.server().faults().add(rule.times(8), Effect::Answer(503, None));
    until("some requests have failed", SOON, async || {
        assert_eq!(conflict().await, first, "nothing has said that the name is free");
        (cluster.server().faults().fired(rule) == 8).then_some(())
    })
    .await;
    assert_eq!(conflict().await, first);
    assert!(first.unwrap().0);
}

/// A webhook that is down gives 500.
#[tokio::test]
async fn an_error_of_the_api_server_is_shown_until_the_pod_is_made() {
    let (cluster, _controller) = JobCluster::controlled().await;
    let mut rule = FaultRule::on("create", "pods");
    CONTROLLER.clone_into(&mut rule.user);
    let rule = cluster.server().faults().add(rule, Effect::Answer(500, None));
    cluster.submit("rl", |_| ()).await;
    let refused = async || cluster.status("rl").await.condition(condition::POD_REFUSED).cloned();
    cluster.play_until("the error is shown", "rl", async || refused().await.is_some()).await;
    let shown = refused().await.unwrap();
    assert!(shown.status == "True" && shown.message.starts_with("rl-learner: "), "{shown:?}");
    cluster.server().faults().remove(rule);
    cluster.play_until("the job runs", "rl", async || cluster.status("rl").await.stage == Some(Stage::Running)).await;
    assert_eq!(refused().await.unwrap().status, "False");
}

//! The controller is killed with -9 at every call that it makes to the API server: every job ends as the undisturbed one.

use std::collections::BTreeMap;

use baton::contract::tyjob::{Stage, condition};
use baton::sim::apiserver::{Effect, FaultRule, RuleId};
use kube::api::PostParams;

use super::verbs::{CONTROLLER, JobCluster, SOON};
use crate::harness::daemon::Daemon;
use crate::harness::wait::until;

/// What a job comes to, as far as every run must agree.
#[derive(Debug, PartialEq)]
struct End {
    stage: Option<Stage>,
    restarts: i32,
    worker_restarts: BTreeMap<String, i32>,
    ready: Option<String>,
    pods: usize,
    finished: bool,
}

/// From submission over a worker's failure and a leader's to success; the controller is killed when `rule` hits.
async fn run(cluster: &JobCluster, name: &str, controller: &mut Daemon, mut rule: Option<RuleId>) -> (End, bool) {
    cluster.submit(name, |_| ()).await;
    let (leader, worker) = (format!("{name}-learner"), format!("{name}-actor-1"));
    let (mut act, mut killed) = (0, false);
    until(&format!("{name} has ended"), SOON, async || {
        if rule.is_some_and(|rule| cluster.server().faults().fired(rule) > 0) {
            controller.kill();
            cluster.server().faults().clear();
            controller.restart();
            (rule, killed) = (None, true);
        }
        cluster.play_scheduler(name).await;
        cluster.play_kubelets(name).await;
        let crew = cluster.pods_of(name).await;
        assert!(crew.len() <= 3, "{name}: more pods than asked: {:?}", crew.keys());
        let status = cluster.status(name).await;
        let all_ready = status.stage == Some(Stage::Running) && status.ready.as_deref() == Some("2/2");
        match act {
            0 if all_ready => cluster.ends(&worker, "Failed").await,
            1 if all_ready && status.worker_set_restarts.get("actor") == Some(&1) => {
                cluster.ends(&leader, "Failed").await;
            }
            2 if all_ready && status.restarts == 1 => cluster.ends(&leader, "Succeeded").await,
            3 if status.stage.is_some_and(Stage::is_terminal) && crew.is_empty() => return Some(()),
            _ => return None,
        }
        act += 1;
        None
    })
    .await;
    let status = cluster.status(name).await;
    let end = End {
        stage: status.stage,
        restarts: status.restarts,
        worker_restarts: status.worker_set_restarts,
        ready: status.ready,
        pods: cluster.pods_of(name).await.len(),
        finished: status.completion_time.is_some(),
    };
    (end, killed)
}

async fn kills_at_every_call(effect: Effect) {
    let cluster = JobCluster::start().await;
    let mut controller = cluster.controller(&["--leader-elect=false"]);
    let (undisturbed, _) = run(&cluster, "calm", &mut controller, None).await;
    assert_eq!((undisturbed.stage, undisturbed.restarts), (Some(Stage::Succeeded), 1));
    assert_eq!(undisturbed.worker_restarts["actor"], 1);
    let mut points = 0;
    loop {
        let mut rule = FaultRule::on("", "").after(points);
        CONTROLLER.clone_into(&mut rule.user);
        let rule = cluster.server().faults().add(rule.times(1), effect.clone());
        controller.restart();
        let (end, killed) = run(&cluster, &format!("kill-{points}"), &mut controller, Some(rule)).await;
        assert_eq!(end, undisturbed, "killed at call {points}");
        if !killed {
            break;
        }
        cluster.server().faults().clear();
        points += 1;
    }
    println!("killed at {points} calls");
    assert!(points > 25, "only {points} calls");
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "every call, one run each; some calls of both daemons: `killed`"]
async fn killed_before_any_call_is_applied() {
    kills_at_every_call(Effect::Hang).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "every call, one run each; some calls of both daemons: `killed`"]
async fn killed_after_any_call_was_applied_and_before_its_answer() {
    kills_at_every_call(Effect::DropAfter).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn refusals_conflicts_and_broken_watches_change_nothing_in_the_end() {
    let cluster = JobCluster::start().await;
    let mut controller = cluster.controller(&["--leader-elect=false"]);
    let (undisturbed, _) = run(&cluster, "calm", &mut controller, None).await;
    for (number, effect) in [
        Effect::Answer(500, None),
        Effect::Answer(429, Some(1)),
        Effect::Answer(409, None),
        Effect::DropBefore,
        Effect::DropAfter,
    ]
    .into_iter()
    .enumerate()
    {
        for verb in ["patch", "create", "delete"] {
            let mut rule = FaultRule::on(verb, "").with_probability(0.3);
            CONTROLLER.clone_into(&mut rule.user);
            cluster.server().faults().add(rule, effect.clone());
        }
        cluster.server().faults().break_watches();
        let (end, _) = run(&cluster, &format!("storm-{number}"), &mut controller, None).await;
        assert_eq!(end, undisturbed, "{effect:?}");
        cluster.server().faults().clear();
        cluster.server().compact();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_is_never_answered_keeps_a_job_from_going_on_for_seconds_only() {
    let cluster = JobCluster::start().await;
    let _controller = cluster.controller(&["--leader-elect=false"]);
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
    let cluster = JobCluster::start().await;
    let _controller = cluster.controller(&["--leader-elect=false"]);
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
    let cluster = JobCluster::start().await;
    let _controller = cluster.controller(&["--leader-elect=false"]);
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

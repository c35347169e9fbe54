//! Restarts on kubelets that restart containers as real ones do, with the real controller and scheduler: each counts once, against
//! the limit of the leader or of the worker set, whichever policy the pod has and whatever becomes of the controller.

use std::fmt::Write as _;

use baton::contract::tyjob::TyJobStatus;
use baton::sim::kubelet::{Kubelet, KubeletOptions};

use super::verbs::{JobCluster, SOON};
use crate::prelude::*;

/// Exits with 1 after a second.
const CRASHES: [&str; 3] = ["sh", "-c", "sleep 1; exit 1"];

impl JobCluster {
    /// A kubelet on each node. A back-off of ten seconds takes ten times `scale` seconds.
    async fn kubelets(&self, scale: f64) -> Vec<Kubelet> {
        let mut kubelets = Vec::new();
        for number in 0..3 {
            let name = format!("node-{number}");
            let mut options = KubeletOptions::new(&name, self.path(&name), self.client.clone());
            options.periods.scale = scale;
            options.periods.source_delay = Duration::from_millis(200);
            kubelets.push(Kubelet::start(options).await.unwrap());
        }
        kubelets
    }

    /// A job of a leader and one worker, of which one crashes. Nothing is cleaned up, so that what ran can be looked at.
    async fn crashing(&self, name: &str, part: &str, limit: i32, spec: Value) {
        self.submit(name, |job| {
            job["spec"]["restartLimit"] = limit.into();
            job["spec"]["workerSets"][0]["counts"] = 1.into();
            for (who, template) in [("learner", "/spec/leader/template"), ("actor", "/spec/workerSets/0/template")] {
                let template = job.pointer_mut(template).unwrap();
                template["spec"] = if who == part { spec.clone() } else { pod("Never", &["sleep", "3000"]) };
            }
        })
        .await;
    }

    /// Σ restarts that the kubelet of a pod reports, of all its containers.
    async fn reported(&self, pod: &str) -> i32 {
        let status = self.pods().get_opt(pod).await.unwrap().and_then(|pod| pod.status).unwrap_or_default();
        let lists = [status.init_container_statuses, status.container_statuses];
        lists.into_iter().flatten().flatten().map(|status| status.restart_count).sum()
    }

    async fn ended(&self, job: &str) -> TyJobStatus {
        until(&format!("{job} has ended"), SOON, async || {
            let status = self.status(job).await;
            status.stage.is_some_and(Stage::is_terminal).then_some(status)
        })
        .await
    }
}

fn pod(policy: &str, command: &[&str]) -> Value {
    json!({ "restartPolicy": policy, "containers": [{ "name": "main", "image": "i", "command": command }] })
}

/// Restarts of the crashing part and of the other one.
fn sums(status: &TyJobStatus, part: &str) -> (i32, i32) {
    let actors = status.worker_set_restarts.get("actor").copied().unwrap_or(0);
    assert_eq!(status.total_restarts, status.restarts + actors);
    if part == "learner" { (status.restarts, actors) } else { (actors, status.restarts) }
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_crashes_under_whatever_policy_is_restarted_as_often_as_the_limit_says() {
    let cluster = JobCluster::start().await;
    let _kubelets = cluster.kubelets(0.2).await;
    let _daemons = cluster.daemons();
    let mut beside = pod("Never", &["sleep", "3000"]);
    beside["initContainers"] = json!([{ "name": "side", "image": "i", "command": CRASHES, "restartPolicy": "Always" }]);
    let mut first = pod("OnFailure", &["sleep", "3000"]);
    first["initContainers"] = json!([{ "name": "fetch", "image": "i", "command": CRASHES }]);
    let stories = [
        ("leader-never", "learner", pod("Never", &CRASHES)),
        ("leader-onfailure", "learner", pod("OnFailure", &CRASHES)),
        ("leader-sidecar", "learner", beside.clone()),
        ("worker-never", "actor", pod("Never", &CRASHES)),
        ("worker-onfailure", "actor", pod("OnFailure", &CRASHES)),
        ("worker-always", "actor", pod("Always", &CRASHES)),
        ("worker-always-0", "actor", pod("Always", &["sh", "-c", "sleep 1; exit 0"])),
        ("worker-sidecar", "actor", beside),
    ];
    for (name, part, spec) in &stories {
        cluster.crashing(name, part, 2, spec.clone()).await;
    }
    cluster.crashing("leader-init", "learner", 0, first).await;
    let (mut told, mut sum_of) = (String::new(), Vec::new());
    for (name, part, spec) in &stories {
        let status = cluster.ended(name).await;
        let message = status.message.clone().unwrap_or_default();
        writeln!(told, "{name:17} {:?} {}: {message}", status.stage.unwrap(), status.total_restarts).unwrap();
        assert_eq!((status.stage, sums(&status, part).1), (Some(Stage::Failed), 0), "{name}: {status:?}");
        // A controller that does not look during a back-off of twenty seconds finds one restart more.
        let most = if spec["restartPolicy"] == "Never" && !name.ends_with("sidecar") { 2 } else { 3 };
        assert!((2..=most).contains(&status.total_restarts), "{name}: {status:?}");
        sum_of.push((*name, status.total_restarts.to_string()));
        assert!(message.contains("restartLimit"), "{name}: {message}");
        until(&format!("the pods of {name} are gone"), SOON, async || {
            cluster.pods_of(name).await.is_empty().then_some(())
        })
        .await;
    }
    until("the init container was restarted", SOON, async || {
        (cluster.reported("leader-init-learner").await > 2).then_some(())
    })
    .await;
    let status = cluster.status("leader-init").await;
    assert_eq!((status.stage, status.total_restarts), (Some(Stage::Starting), 0), "plain init containers do not count");
    let (_, table, _) = cluster.baton(&["get", "jobs", "-n", "default"]).await;
    println!("{told}{table}");
    let column = table.lines().next().unwrap().split_whitespace().position(|word| word == "RESTARTS").unwrap();
    for (name, sum) in sum_of {
        let row = table.lines().find(|line| line.split_whitespace().any(|word| word == name)).unwrap();
        assert_eq!(row.split_whitespace().nth(column), Some(&*sum), "{row}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_limit_that_is_passed_while_the_controller_is_down_fails_the_job_at_its_return() {
    let cluster = JobCluster::start().await;
    let _kubelets = cluster.kubelets(0.05).await;
    let (_scheduler, mut controller) = cluster.daemons();
    let parts = [("lead", "learner", "lead-learner"), ("work", "actor", "work-actor-0")];
    for (name, part, _) in parts {
        cluster.crashing(name, part, 2, pod("OnFailure", &CRASHES)).await;
    }
    for (.., pod) in parts {
        until(&format!("{pod} is there"), SOON, async || cluster.pods().get_opt(pod).await.unwrap().map(drop)).await;
    }
    controller.kill();
    for (.., pod) in parts {
        until(&format!("{pod} was restarted"), SOON, async || (cluster.reported(pod).await > 3).then_some(())).await;
    }
    controller.restart();
    for (name, part, _) in parts {
        let status = cluster.ended(name).await;
        println!("{name}: {}", status.message.clone().unwrap());
        assert_eq!(status.stage, Some(Stage::Failed));
        assert!(sums(&status, part).0 > 3, "{status:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_controller_that_is_killed_again_and_again_counts_every_restart_once() {
    let cluster = JobCluster::start().await;
    let kubelets = cluster.kubelets(0.05).await;
    let (_scheduler, mut controller) = cluster.daemons();
    let parts = [("lead", "learner", "lead-learner"), ("work", "actor", "work-actor-0")];
    for (name, part, _) in parts {
        cluster.crashing(name, part, 4, pod("OnFailure", &["sleep", "3000"])).await;
    }
    for (name, ..) in parts {
        until(&format!("{name} runs"), SOON, async || {
            (cluster.status(name).await.stage == Some(Stage::Running)).then_some(())
        })
        .await;
    }
    for restart in 1..=4 {
        for (.., pod) in parts {
            let runs =
                || kubelets.iter().find_map(|kubelet| Some(kubelet.view().get(&format!("default/{pod}"))?.clone()));
            until(&format!("{pod} runs"), SOON, async || runs()?.containers.get("main")?.running.then_some(())).await;
            assert!(kubelets.iter().any(|kubelet| kubelet.fail_container("default", pod, "main", 1)));
            until(&format!("{pod} is restarted"), SOON, async || {
                (cluster.reported(pod).await == restart).then_some(())
            })
            .await;
        }
        // Before, while or after it counts.
        tokio::time::sleep(Duration::from_millis(u64::try_from(restart).unwrap() * 7 % 20)).await;
        controller.kill();
        controller.restart();
    }
    for (name, part, _) in parts {
        until(&format!("all restarts of {name} are counted"), SOON, async || {
            (sums(&cluster.status(name).await, part).0 >= 4).then_some(())
        })
        .await;
    }
    tokio::time::sleep(Duration::from_millis(300)).await;
    for (name, part, pod) in parts {
        let status = cluster.status(name).await;
        println!(
            "{name}: {:?}, {} restarts, {}",
            status.stage.unwrap(),
            status.total_restarts,
            status.message.clone().unwrap()
        );
        assert_eq!(sums(&status, part), (cluster.reported(pod).await, 0), "{status:?}");
        assert_eq!(status.stage, Some(Stage::Running), "four of four");
    }
}

//! Whole paths: jobs through the real `baton scheduler` and the real `baton controller`, each with the rights of its role.
//! Only the kubelets are played: they start what is bound.

use super::verbs::{JobCluster, SOON};
use crate::harness::daemon::{QUICK_LEASE, timings};
use crate::prelude::*;

/// The user that the scheduler is.
pub const SCHEDULER: &str = "system:serviceaccount:baton-system:baton-scheduler";
const POLICIES: [&str; 6] = ["Gang", "BinPack", "LeaderFirst", "MinFragment", "JobAffinity", "JobAntiAffinity"];

impl JobCluster {
    /// The scheduler as it ships, with the rights of its role.
    pub fn scheduler(&self, more: &[&str]) -> Daemon {
        self.scheduler_with("", more)
    }

    /// With further times, each after a comma.
    pub fn scheduler_with(&self, times: &str, more: &[&str]) -> Daemon {
        let path = self.dir.path().join("scheduler");
        std::fs::write(&path, self.server().plain_kubeconfig(SCHEDULER)).unwrap();
        let path = path.to_str().unwrap();
        let quick = timings(&format!("job_period: 200ms, {QUICK_LEASE}{times}"));
        let fixed = ["scheduler", "--kubeconfig", path, "--listen", "127.0.0.1:0", &quick];
        let all = fixed.iter().chain(more);
        Daemon::start(all.map(Into::into).collect(), self.dir.path().join("scheduler.log"))
    }

    /// What every node offers.
    pub async fn offer(&self, cpu: &str) {
        for number in 0..3 {
            self.offers(&format!("node-{number}"), cpu).await;
        }
    }

    /// What one node offers.
    async fn offers(&self, node: &str, cpu: &str) {
        let offered = json!({ "cpu": cpu, "memory": "32Gi", "pods": "110" });
        let patch = Patch::Merge(json!({ "status": { "capacity": offered, "allocatable": offered } }));
        self.nodes().patch_status(node, &PatchParams::default(), &patch).await.unwrap();
    }

    /// Kubelets start what is bound and remove what is deleted, but not on lost nodes.
    pub async fn play_bound(&self, job: &str) {
        for (number, pod) in self.pods_of(job).await.values().enumerate() {
            self.play_kubelet(number, pod).await;
        }
    }

    pub async fn whole_until(&self, what: &str, job: &str, mut done: impl AsyncFnMut() -> bool) {
        until(what, SOON, async || {
            self.play_bound(job).await;
            done().await.then_some(())
        })
        .await;
    }

    pub async fn runs(&self, job: &str) {
        self.whole_until(&format!("{job} runs"), job, async || {
            let status = self.status(job).await;
            status.stage == Some(Stage::Running) && status.ready.as_deref() == Some("2/2")
        })
        .await;
    }

    async fn succeeds(&self, job: &str) {
        self.ends(&format!("{job}-learner"), "Succeeded").await;
        self.whole_until(&format!("{job} succeeds"), job, async || {
            self.status(job).await.stage == Some(Stage::Succeeded) && self.pods_of(job).await.is_empty()
        })
        .await;
    }

    pub async fn submit_with(&self, name: &str, policy: &str) {
        self.submit(name, |job| {
            job["spec"]["schedulerPolicy"] = json!({ "basicPolicy": policy });
            every_pod_asks(job, json!({ "cpu": "1", "memory": "1Gi" }));
        })
        .await;
    }
}

/// Limits of the leader and of the workers.
pub fn every_pod_asks(job: &mut Value, limits: Value) {
    for template in ["/spec/leader/template/spec/containers/0", "/spec/workerSets/0/template/spec/containers/0"] {
        job.pointer_mut(template).unwrap()["resources"] = json!({ "limits": limits });
    }
}

fn nodes(crew: &BTreeMap<String, Pod>) -> BTreeMap<String, String> {
    let node = |pod: &Pod| pod.spec.as_ref().and_then(|spec| spec.node_name.clone()).unwrap_or_default();
    crew.iter().map(|(name, pod)| (name.clone(), node(pod))).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_of_every_policy_goes_from_submission_to_success() {
    let cluster = JobCluster::start().await;
    cluster.offer("16").await;
    let scheduler = cluster.scheduler(&[]);
    let _controller = cluster.controller(&[]);
    for policy in POLICIES {
        let name = policy.to_lowercase();
        cluster.submit_with(&name, policy).await;
        cluster.runs(&name).await;
        let status = cluster.status(&name).await;
        assert_eq!(status.schedule_state, Some(ScheduleState::ScheduledSucceed), "{policy}");
        assert!(status.holds(condition::SCHEDULED), "{policy}: {status:?}");
        let crew = cluster.pods_of(&name).await;
        let places: BTreeMap<String, String> =
            status.allocations.iter().map(|place| (place.pod.clone(), place.node.clone())).collect();
        assert_eq!(nodes(&crew), places, "{policy}: every pod is where it was placed");
        assert!(crew.values().all(|pod| pod.annotations()[keys::ALLOCATION] == places[&pod.name_any()]), "{policy}");
        let used: std::collections::BTreeSet<&String> = places.values().collect();
        match policy {
            "JobAntiAffinity" => assert_eq!(used.len(), 3, "{places:?}"),
            // The last job's pods may be seen for a moment longer: the leader avoids them.
            "LeaderFirst" => assert!(used.len() <= 2, "{places:?}"),
            _ => assert_eq!(used.len(), 1, "{policy}: {places:?}"),
        }
        cluster.succeeds(&name).await;
    }
    until("every taken place is counted", SOON, async || {
        let metrics = scheduler.get("/metrics").await?;
        metrics.contains("baton_scheduler_job_places_taken_total 18").then_some(())
    })
    .await;
    tells(scheduler.get("/jobs/default/gang").await.unwrap(), ["\"class\":\"over\"", "\"basicPolicy\":\"Gang\""]);
    let events = cluster.events("gang").await;
    assert!(events.iter().any(|reason| reason == "Scheduled"), "{events:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_survives_the_death_of_both_daemons_at_every_stage() {
    let cluster = JobCluster::start().await;
    cluster.offer("4").await;
    let mut scheduler = cluster.scheduler(&[]);
    let mut controller = cluster.controller(&[]);
    cluster.submit_with("rl", "BinPack").await;
    scheduler.restart();
    cluster.whole_until("the job is placed", "rl", async || cluster.status("rl").await.allocations.len() == 3).await;
    scheduler.restart();
    controller.restart();
    let places = cluster.status("rl").await.allocations;
    cluster
        .whole_until("the leader is made", "rl", async || cluster.pods_of("rl").await.contains_key("rl-learner"))
        .await;
    scheduler.restart();
    controller.restart();
    cluster.runs("rl").await;
    assert_eq!(cluster.status("rl").await.allocations, places, "places are rebuilt from the status alone");
    scheduler.kill();
    cluster.ends("rl-actor-0", "Failed").await;
    controller.restart();
    scheduler.restart();
    cluster
        .whole_until("the worker is replaced", "rl", async || {
            let status = cluster.status("rl").await;
            status.worker_set_restarts.get("actor") == Some(&1) && status.ready.as_deref() == Some("2/2")
        })
        .await;
    cluster.succeeds("rl").await;
    cluster.jobs().delete("rl", &DeleteParams::default()).await.unwrap();
    cluster.whole_until("the job is gone", "rl", async || cluster.job("rl").await.is_none()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_node_costs_a_worker_its_place_and_the_leader_a_restart() {
    let (cluster, _scheduler, _controller) = JobCluster::whole("1").await;
    cluster.submit_with("rl", "BinPack").await;
    cluster.runs("rl").await;
    let first = nodes(&cluster.pods_of("rl").await);
    let lose = async |pod: &str| {
        let node = nodes(&cluster.pods_of("rl").await)[pod].clone();
        cluster.nodes().delete(&node, &DeleteParams::default()).await.unwrap();
    };
    lose("rl-actor-1").await;
    cluster
        .whole_until("the worker has lost its place", "rl", async || {
            let status = cluster.status("rl").await;
            status.schedule_state == Some(ScheduleState::ScheduledPartly) && status.allocations.len() == 2
        })
        .await;
    cluster.node("node-3").await;
    cluster.offers("node-3", "1").await;
    cluster
        .whole_until("the worker has another place", "rl", async || {
            let crew = nodes(&cluster.pods_of("rl").await);
            crew.get("rl-actor-1").is_some_and(|node| node == "node-3")
        })
        .await;
    cluster.runs("rl").await;
    let second = nodes(&cluster.pods_of("rl").await);
    assert_eq!(second["rl-actor-0"], first["rl-actor-0"], "a pod with a place keeps it");
    lose("rl-learner").await;
    cluster.node("node-4").await;
    cluster.offers("node-4", "1").await;
    cluster
        .whole_until("the job runs again", "rl", async || {
            let status = cluster.status("rl").await;
            status.restarts == 1 && status.stage == Some(Stage::Running) && status.ready.as_deref() == Some("2/2")
        })
        .await;
    cluster.succeeds("rl").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_can_never_fit_fails_after_the_grace() {
    let cluster = JobCluster::start().await;
    cluster.offer("4").await;
    let _scheduler = cluster.scheduler(&["--unfit-grace", "1s"]);
    let _controller = cluster.controller(&[]);
    cluster
        .submit("rl", |job| {
            let container = &mut job["spec"]["leader"]["template"]["spec"]["containers"][0];
            container["resources"] = json!({ "limits": { "cpu": "5" } });
        })
        .await;
    cluster.whole_until("the job fails", "rl", async || cluster.status("rl").await.stage == Some(Stage::Failed)).await;
    let status = cluster.status("rl").await;
    assert_eq!(status.schedule_state, Some(ScheduleState::ScheduledFailed));
    tells(&status.condition(condition::SCHEDULED).unwrap().message, ["the leader learner fits on none of 3 nodes"]);
}

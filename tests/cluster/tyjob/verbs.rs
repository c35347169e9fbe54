//! An API server with everything of `baton manifests` in it, a controller that may do what its role says and no
//! more, and what each of the other daemons would write.

use baton::contract::tyjob::{Allocation, TyJob, TyJobStatus};
use k8s_openapi::api::core::v1::Event;

use crate::harness::daemon::{QUICK_LEASE, timings};
use crate::prelude::*;

/// Longest wait for anything that should take moments.
pub const SOON: Duration = Duration::from_secs(60);
/// The user that the controller is.
pub const CONTROLLER: &str = "system:serviceaccount:baton-system:baton-controller";

pub struct JobCluster {
    api: TestServer,
    /// Pods that `play_kubelets` leaves alone.
    pub untouched: BTreeSet<String>,
}

impl std::ops::Deref for JobCluster {
    type Target = TestServer;
    fn deref(&self) -> &TestServer {
        &self.api
    }
}

impl JobCluster {
    pub async fn start() -> Self {
        let cluster = Self { api: TestServer::simulated().await, untouched: BTreeSet::new() };
        cluster.install(&Values::default()).await;
        for number in 0..3 {
            cluster.node(&format!("node-{number}")).await;
        }
        cluster
    }

    /// With a controller, which leads without a Lease.
    pub async fn controlled() -> (Self, Daemon) {
        let cluster = Self::start().await;
        let controller = cluster.controller(&["--leader-elect=false"]);
        (cluster, controller)
    }

    /// Nodes that offer so much, and both daemons as they ship, which lead without a Lease.
    pub async fn whole(cpu: &str) -> (Self, Daemon, Daemon) {
        let cluster = Self::start().await;
        cluster.offer(cpu).await;
        let (scheduler, controller) = cluster.daemons();
        (cluster, scheduler, controller)
    }

    pub fn daemons(&self) -> (Daemon, Daemon) {
        (self.scheduler(&["--leader-elect=false"]), self.controller(&["--leader-elect=false"]))
    }

    pub async fn node(&self, name: &str) {
        let status = json!({ "conditions": [{ "type": "Ready", "status": "True" }] });
        self.create_object::<Node>(json!({ "metadata": { "name": name }, "status": status })).await;
    }

    pub fn jobs(&self) -> Api<TyJob> {
        Api::namespaced(self.client.clone(), "default")
    }
    pub fn pods(&self) -> Api<Pod> {
        self.pods_in("default")
    }

    /// The controller as it ships, with the rights of its role.
    pub fn controller(&self, more: &[&str]) -> Daemon {
        let path = self.path("controller");
        std::fs::write(&path, self.server().plain_kubeconfig(CONTROLLER)).unwrap();
        let path = path.to_str().unwrap();
        let quick = timings(&format!("backoff: 50ms, backoff_max: 200ms, {QUICK_LEASE}"));
        let fixed = ["controller", "--kubeconfig", path, &quick];
        let all = fixed.iter().chain(more);
        Daemon::start(all.map(Into::into).collect(), self.path("controller.log"))
    }

    pub async fn submit(&self, name: &str, edit: impl FnOnce(&mut Value)) -> TyJob {
        let job = job(name, edit);
        self.jobs().create(&PostParams::default(), &serde_json::from_value(job).unwrap()).await.unwrap()
    }

    pub async fn job(&self, name: &str) -> Option<TyJob> {
        self.jobs().get_opt(name).await.unwrap()
    }
    pub async fn status(&self, name: &str) -> TyJobStatus {
        self.job(name).await.and_then(|job| job.status).unwrap_or_default()
    }
    pub async fn edit(&self, name: &str, spec: Value) {
        let patch = Patch::Merge(json!({ "spec": spec }));
        self.jobs().patch(name, &PatchParams::default(), &patch).await.unwrap();
    }

    /// Pods of a job by name.
    pub async fn pods_of(&self, job: &str) -> BTreeMap<String, Pod> {
        let labelled = ListParams::default().labels(&format!("{}={job}", keys::JOB));
        let list = self.pods().list(&labelled).await.unwrap();
        list.items.into_iter().map(|pod| (pod.name_any(), pod)).collect()
    }

    pub async fn events(&self, job: &str) -> Vec<String> {
        let events: Api<Event> = Api::namespaced(self.client.clone(), "default");
        let list = events.list(&ListParams::default()).await.unwrap();
        let of_job = list.items.into_iter().filter(|event| event.involved_object.name.as_deref() == Some(job));
        of_job.filter_map(|event| event.reason).collect()
    }

    // The scheduler's part.

    /// Drops void places, places every pod of the job, or gives the places of a deleted job back.
    pub async fn play_scheduler(&self, name: &str) {
        let Some(job) = self.job(name).await else { return };
        let status = job.status.clone().unwrap_or_default();
        let attempt = status.attempt;
        let deleted = job.metadata.deletion_timestamp.is_some() || status.stage.is_some_and(Stage::is_terminal);
        let void = status.allocations.iter().any(|place| place.attempt != attempt);
        let wanted: Vec<Allocation> = match job.effective(None) {
            Ok(effective) if !deleted && !void && status.stage.is_some() => effective
                .spec
                .members(name)
                .enumerate()
                .map(|(number, member)| Allocation {
                    node: format!("node-{}", number % 3),
                    pod: member.name,
                    role: member.role,
                    worker_set: member.worker_set.map(str::to_owned),
                    index: member.index,
                    attempt,
                })
                .collect(),
            _ => Vec::new(),
        };
        if wanted == status.allocations {
            return;
        }
        let state = if wanted.is_empty() { ScheduleState::Unscheduled } else { ScheduleState::ScheduledSucceed };
        self.write_places(&job, wanted, state).await;
    }

    pub async fn write_places(&self, job: &TyJob, allocations: Vec<Allocation>, state: ScheduleState) {
        let half = TyJobStatus { allocations, schedule_state: Some(state), ..TyJobStatus::default() };
        let body = json!({
            "apiVersion": keys::API_VERSION, "kind": keys::KIND, "metadata": { "name": job.name_any() },
            "status": half.of_scheduler(),
        });
        let apply = PatchParams::apply(keys::SCHEDULER_MANAGER).force();
        // The job may be gone by now.
        self.jobs().patch_status(&job.name_any(), &apply, &Patch::Apply(body)).await.ok();
    }

    // The kubelets' part.

    /// Binds, starts and removes pods of a job.
    pub async fn play_kubelets(&self, job: &str) {
        for (number, (name, pod)) in self.pods_of(job).await.into_iter().enumerate() {
            if self.untouched.contains(&name) {
                continue;
            }
            let bound = pod.spec.as_ref().and_then(|spec| spec.node_name.clone());
            if bound.is_none() && pod.metadata.deletion_timestamp.is_none() {
                self.bind(&name, &pod.annotations()[keys::ALLOCATION].clone()).await;
            } else {
                self.play_kubelet(number, &pod).await;
            }
        }
    }

    /// Starts a pod that is bound, and removes one that is deleted.
    pub async fn play_kubelet(&self, number: usize, pod: &Pod) {
        let bound = pod.spec.as_ref().is_some_and(|spec| spec.node_name.is_some());
        let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or_default();
        if pod.metadata.deletion_timestamp.is_some() {
            self.remove(&pod.name_any()).await;
        } else if bound && phase == "Pending" {
            let ready = json!([{ "type": "Ready", "status": "True" }]);
            let ip = format!("10.0.0.{number}");
            self.say(&pod.name_any(), json!({ "phase": "Running", "podIP": ip, "conditions": ready })).await;
        }
    }

    pub async fn remove(&self, pod: &str) {
        self.pods().delete(pod, &DeleteParams::default().grace_period(0)).await.ok();
    }

    pub async fn bind(&self, pod: &str, node: &str) {
        let binding = json!({
            "apiVersion": "v1", "kind": "Binding", "metadata": { "name": pod }, "target": { "kind": "Node", "name": node },
        });
        let path = format!("/api/v1/namespaces/default/pods/{pod}/binding");
        let request = http::Request::post(path).header("content-type", "application/json");
        let request = request.body(serde_json::to_vec(&binding).unwrap()).unwrap();
        self.client.request::<Value>(request).await.ok();
    }

    /// A kubelet's word about a pod.
    pub async fn say(&self, pod: &str, status: Value) {
        let patch = Patch::Merge(json!({ "status": status }));
        self.pods().patch_status(pod, &PatchParams::default(), &patch).await.ok();
    }

    pub async fn ends(&self, pod: &str, phase: &str) {
        let ready = json!([{ "type": "Ready", "status": "False" }]);
        let code = i32::from(phase == "Failed");
        let ended =
            json!({ "terminated": { "exitCode": code, "reason": if code == 0 { "Completed" } else { "Error" } } });
        let container = json!({
            "name": "main", "state": ended, "ready": false, "restartCount": 0, "image": "i", "imageID": "i",
        });
        self.say(pod, json!({ "phase": phase, "conditions": ready, "containerStatuses": [container] })).await;
    }

    /// Everybody plays until `done`.
    pub async fn play_until(&self, what: &str, job: &str, mut done: impl AsyncFnMut() -> bool) {
        until(what, SOON, async || {
            self.play_scheduler(job).await;
            self.play_kubelets(job).await;
            done().await.then_some(())
        })
        .await;
    }

    pub async fn play_until_stage(&self, job: &str, stage: Stage) {
        self.play_until(&format!("{job} is {}", stage.word()), job, async || {
            self.status(job).await.stage == Some(stage)
        })
        .await;
    }
}

/// A job of a learner and two actors.
pub fn job(name: &str, edit: impl FnOnce(&mut Value)) -> Value {
    let pod = |image: &str| json!({ "spec": { "containers": [{ "name": "main", "image": image }] } });
    let mut job = json!({
        "apiVersion": keys::API_VERSION, "kind": keys::KIND,
        "metadata": { "name": name, "namespace": "default" },
        "spec": {
            "leader": { "name": "learner", "template": pod("learner") },
            "workerSets": [{ "name": "actor", "template": pod("actor"), "counts": 2 }],
        },
    });
    edit(&mut job);
    job
}

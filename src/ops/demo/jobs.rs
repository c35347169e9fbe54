//! The demo's chapter on TYJobs: a learner and its actors are placed as one, an actor that fails is replaced, and when the
//! learner has succeeded nothing is left of the job.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::ResourceExt;
use kube::api::{Api, DeleteParams, ListParams, PostParams};

use super::cluster::DemoCluster;
use super::pods::NAMESPACE;
use super::report::JobReport;
use crate::config::read_yaml_value;
use crate::manifests::{Values, files};
use crate::view::{Follower, Snapshot};
use baton_contract::key::NODE_LOCK;
use baton_contract::tyjob::{ScheduleState, Stage, TyJob, TyJobStatus, keys};
use baton_runtime::clock;

/// Time for one scene.
const LIMIT: Duration = Duration::from_secs(60);
const LOOK: Duration = Duration::from_millis(20);
/// The job that people can apply themselves.
const EXAMPLE: &str = "examples/tyjob.yaml";
/// Container of its pods.
const CONTAINER: &str = "main";

struct JobChapter<'a> {
    cluster: &'a mut DemoCluster,
    job: TyJob,
    follower: Follower,
    seen: Snapshot,
    /// The job as the watch showed it last.
    status: TyJobStatus,
    stages: Vec<Stage>,
    shown: Option<ScheduleState>,
    violations: Vec<String>,
}

/// Plays the chapter and takes everything away again. Returns what became of the job, and what went wrong.
pub async fn play(cluster: &mut DemoCluster) -> anyhow::Result<(Option<JobReport>, Vec<String>)> {
    // One machine's GPUs may be too few for it.
    if cluster.nodes.len() < 2 {
        return Ok((None, Vec::new()));
    }
    let file = files(&Values::default()).into_iter().find(|file| file.path == EXAMPLE);
    let file = file.with_context(|| format!("there is no {EXAMPLE}"))?;
    let job =
        read_yaml_value(&file.text).map_err(anyhow::Error::msg).with_context(|| format!("{EXAMPLE} cannot be read"))?;
    let (job, misfit) = TyJob::read(&job).map_err(|bad| anyhow!("{EXAMPLE}: {bad}"))?;
    if let Some(bad) = misfit {
        bail!("{EXAMPLE}: {bad}");
    }
    cluster.progress.heading("A TYJob: a learner and its actors");
    let (follower, seen) = (Follower::of_jobs(&cluster.client), Snapshot::default());
    let (status, stages, shown, violations) = (TyJobStatus::default(), Vec::new(), None, Vec::new());
    let mut chapter = JobChapter { cluster, job, follower, seen, status, stages, shown, violations };
    let report = chapter.play().await?;
    Ok((Some(report), chapter.violations))
}

impl JobChapter<'_> {
    async fn play(&mut self) -> anyhow::Result<JobReport> {
        let (name, workers) = (self.job.name_any(), self.job.spec.total_workers());
        let ready = format!("{workers}/{workers}");
        let what =
            format!("submitted: TYJob of a learner with a GPU and {workers} actors with half of one, all or none");
        // The empty list; whatever happens to the job from here on is seen.
        self.follower.step(&mut self.seen).await;
        self.say(&name, &what);
        self.jobs().create(&PostParams::default(), &self.job).await?;
        let runs = |status: &TyJobStatus| status.stage == Some(Stage::Running) && status.ready.as_ref() == Some(&ready);
        self.wait("the job runs with all its workers", runs).await?;
        let leader_address = self.status.leader_address.clone().unwrap_or_default();
        self.say(&name, &format!("all actors run and have the learner's address {leader_address}"));
        let pods = self.check_pods(&leader_address).await?;

        let set = self.job.spec.worker_sets.first().map(|set| set.name.clone()).unwrap_or_default();
        let actor = format!("{name}-{set}-0");
        self.exit(&actor, &pods, 1);
        let limit = self.job.spec.restart_limit;
        let again = |status: &TyJobStatus| status.worker_set_restarts.get(&set) == Some(&1) && runs(status);
        self.wait("the actor is made again", again).await?;
        self.say(&actor, &format!("runs again on {}: restart 1 of {limit}", node_of(&pods, &actor)));
        if self.check_pods(&leader_address).await? != pods {
            self.violations.push(format!("TYJob {name}: pods have moved when one was made again"));
        }

        self.exit(&self.job.spec.leader_pod(&name), &pods, 0);
        self.wait("the job has succeeded", |status| status.stage == Some(Stage::Succeeded)).await?;
        self.gone("the pods of the job are gone", async || Ok(self.pods().await?.is_empty())).await?;
        let pods_left = self.pods().await?.len();
        self.say(&name, "its pods are gone, and what they held is free");
        let worker_restarts = self.status.worker_set_restarts.values().sum();
        self.delete().await?;
        let stages: Vec<&'static str> = self.stages.iter().map(|stage| stage.word()).collect();
        if stages != [Stage::Pending, Stage::Starting, Stage::Running, Stage::Succeeded].map(Stage::word) {
            self.violations.push(format!("TYJob {name} went through the stages {}", stages.join(", ")));
        }
        Ok(JobReport { name, stages, pods, leader_address, worker_restarts, pods_left })
    }

    fn say(&self, subject: &str, text: &str) {
        self.cluster.say(subject, text);
    }

    fn jobs(&self) -> Api<TyJob> {
        Api::namespaced(self.cluster.client.clone(), NAMESPACE)
    }

    async fn pods(&self) -> anyhow::Result<Vec<Pod>> {
        let pods: Api<Pod> = Api::namespaced(self.cluster.client.clone(), NAMESPACE);
        let of_job = ListParams::default().labels(&format!("{}={}", keys::JOB, self.job.name_any()));
        Ok(pods.list(&of_job).await?.items)
    }

    /// A process of the job ends.
    fn exit(&mut self, pod: &str, pods: &BTreeMap<String, String>, code: i32) {
        let node = node_of(pods, pod);
        let kubelet = self.cluster.nodes.iter().find(|found| found.name == node).map(|found| &found.kubelet);
        let ended = kubelet.is_some_and(|kubelet| kubelet.fail_container(NAMESPACE, pod, CONTAINER, code));
        self.say(pod, &format!("its process ends with exit code {code}"));
        if !ended {
            self.violations.push(format!("pod {pod} had no running container on {node:?}"));
        }
    }

    /// Where the pods are: one of each name, where the scheduler placed it, with the leader's address.
    async fn check_pods(&mut self, leader_address: &str) -> anyhow::Result<BTreeMap<String, String>> {
        let mut nodes = BTreeMap::new();
        for pod in self.pods().await? {
            let (name, role) = (pod.name_any(), pod.labels().get(keys::ROLE).cloned().unwrap_or_default());
            let spec = pod.spec.unwrap_or_default();
            let env = spec.containers.first().and_then(|container| container.env.as_ref()).into_iter().flatten();
            let address = env.into_iter().find(|entry| entry.name == keys::ENV_LEADER_ADDRESS);
            let address = address.and_then(|entry| entry.value.as_deref());
            if role == "worker" && address != Some(leader_address) {
                self.violations
                    .push(format!("pod {name} has {address:?} as the leader's address, not {leader_address}"));
            }
            nodes.insert(name, spec.node_name.unwrap_or_default());
        }
        let places = self.status.allocations.iter().map(|place| (place.pod.clone(), place.node.clone()));
        let places: BTreeMap<String, String> = places.collect();
        if nodes != places {
            self.violations.push(format!("TYJob {}: placed {places:?}, its pods are {nodes:?}", self.job.name_any()));
        }
        Ok(nodes)
    }

    /// Takes in what the watch brings, until `done`.
    async fn wait(&mut self, what: &str, done: impl Fn(&TyJobStatus) -> bool) -> anyhow::Result<()> {
        let deadline = clock::mono() + LIMIT;
        while !done(&self.status) {
            self.cluster.check_daemons()?;
            if tokio::time::timeout(LOOK, self.follower.step(&mut self.seen)).await.is_ok() {
                self.take();
            }
            self.in_time(deadline, what)?;
        }
        Ok(())
    }

    fn in_time(&self, deadline: Duration, what: &str) -> anyhow::Result<()> {
        if clock::mono() > deadline {
            let (limit, logs) = (LIMIT.as_secs(), self.cluster.last_lines(12));
            let stand = format!("{:?} {:?}", self.status.stage, self.status.message);
            bail!("not within {limit} s: {what}: {stand}; the daemons' last lines:\n{logs}");
        }
        Ok(())
    }

    fn take(&mut self) {
        let name = self.job.name_any();
        let seen = self.seen.jobs.get(&(NAMESPACE.to_owned(), name.clone()));
        let Some(Ok((job, _))) = seen.map(|raw| raw.clone().read()) else { return };
        self.status = job.status.unwrap_or_default();
        let state = self.status.schedule_state;
        if state.is_some() && state != self.shown {
            self.shown = state;
            let places = self.status.allocations.iter().map(|place| format!("{} on {}", place.pod, place.node));
            let places = places.collect::<Vec<_>>().join(", ");
            self.say(&name, &format!("{}: {places}", state.map_or("", ScheduleState::word)));
        }
        if let Some(stage) = self.status.stage.filter(|stage| self.stages.last() != Some(stage)) {
            self.stages.push(stage);
            let message = self.status.message.as_deref().map(|message| format!(": {message}")).unwrap_or_default();
            self.say(&name, &format!("stage {}{message}", stage.word()));
        }
    }

    async fn gone(&self, what: &str, is_gone: impl AsyncFn() -> anyhow::Result<bool>) -> anyhow::Result<()> {
        let deadline = clock::mono() + LIMIT;
        while !is_gone().await? {
            self.in_time(deadline, what)?;
            tokio::time::sleep(LOOK).await;
        }
        Ok(())
    }

    /// Deletes the job; nothing of it may be left, no finalizer and no lock.
    async fn delete(&mut self) -> anyhow::Result<()> {
        let name = self.job.name_any();
        self.jobs().delete(&name, &DeleteParams::background()).await?;
        self.gone("the job is gone", async || Ok(self.jobs().get_opt(&name).await?.is_none())).await?;
        for node in Api::<Node>::all(self.cluster.client.clone()).list(&ListParams::default()).await?.items {
            if let Some(lock) = node.annotations().get(NODE_LOCK) {
                self.violations.push(format!("node {} is still locked after TYJob {name}: {lock}", node.name_any()));
            }
        }
        Ok(())
    }
}

fn node_of<'a>(pods: &'a BTreeMap<String, String>, pod: &str) -> &'a str {
    pods.get(pod).map_or("", String::as_str)
}

//! One job and its pods. Effects are performed on it as an API server would, with every precondition checked; after each step
//! all invariants are.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use serde_json::{Value, json};

use crate::pod::Phase;
use crate::tyjob::stages::{CreateFailure, JobEffect, JobView, PodEffect, PodView, step};
use baton_contract::tyjob::{
    Allocation, JobMember, ScheduleState, Stage, TyJob, TyJobSpec, TyJobStatus, condition, keys,
};

pub const UID: &str = "job-uid";

pub fn spec(workers: i32) -> TyJobSpec {
    let pod = |image: &str| json!({ "spec": { "containers": [{ "name": "main", "image": image }] } });
    serde_json::from_value(json!({
        "leader": { "name": "learner", "template": pod("learner") },
        "workerSets": [{ "name": "actor", "template": pod("actor"), "counts": workers }],
    }))
    .unwrap()
}

pub struct TestJob {
    pub job: TyJob,
    pub pods: BTreeMap<String, PodView>,
    pub bodies: BTreeMap<String, Value>,
    /// `None`: the controller has just started.
    pub trouble: Option<BTreeMap<String, CreateFailure>>,
    pub now: Timestamp,
    /// Events, oldest first: reason and message.
    pub reported: Vec<(&'static str, String)>,
    /// Names of pods made and deleted, in order.
    pub calls: Vec<String>,
    pub gone: bool,
    made: u32,
    /// `resourceVersion` of the latest change of a pod.
    version: i64,
}

impl TestJob {
    pub fn new(spec: TyJobSpec) -> Self {
        let mut job = TyJob::new("rl", spec);
        job.metadata.namespace = Some("team-a".to_owned());
        job.metadata.uid = Some(UID.to_owned());
        job.metadata.generation = Some(1);
        Self {
            job,
            pods: BTreeMap::new(),
            bodies: BTreeMap::new(),
            trouble: Some(BTreeMap::new()),
            now: "2026-01-01T00:00:00Z".parse().unwrap(),
            reported: Vec::new(),
            calls: Vec::new(),
            gone: false,
            made: 0,
            version: 1,
        }
    }

    /// A job whose leader and workers are ready.
    pub fn running(workers: i32) -> Self {
        Self::running_with(spec(workers))
    }

    pub fn running_with(spec: TyJobSpec) -> Self {
        let mut test = Self::new(spec);
        test.settle();
        test.place_all();
        test.settle();
        test.ready_all();
        test.settle();
        assert_eq!(test.stage(), Stage::Running);
        test.calls.clear();
        test.reported.clear();
        test
    }

    fn in_force(&self) -> TyJobSpec {
        self.job.effective(None).map_or_else(|_| self.job.spec.clone(), |effective| effective.spec)
    }

    pub fn status(&self) -> TyJobStatus {
        self.job.status.clone().unwrap_or_default()
    }

    pub fn stage(&self) -> Stage {
        self.status().stage.unwrap()
    }

    pub fn look(&self) -> (TyJobStatus, Vec<JobEffect>) {
        let view = JobView {
            job: &self.job,
            unreadable: None,
            scheduler_name: "baton-scheduler",
            trouble: self.trouble.as_ref(),
        };
        let pods: Vec<PodView> = self.pods.values().cloned().collect();
        let first = step(&view, &pods, self.now);
        assert_eq!(first, step(&view, &pods, self.now), "the same view, the same answer");
        first
    }

    /// One step, performed whole. Answers whether anything but an event or a timer was to be done.
    pub fn step(&mut self) -> bool {
        let (status, effects) = self.look();
        let mut busy = self.write(status);
        for effect in effects {
            busy |= self.perform(effect);
        }
        busy
    }

    /// Writes the status as the controller does: its half only.
    pub fn write(&mut self, status: TyJobStatus) -> bool {
        let old = self.status();
        assert_eq!(status.of_scheduler(), old.of_scheduler(), "the scheduler's half is the scheduler's");
        if old.stage.is_some_and(Stage::is_terminal) {
            let seen = TyJobStatus { observed_generation: status.observed_generation, ..old.clone() };
            assert_eq!(status, seen, "a terminal status is never written again, but for the generation");
        }
        assert!(status.restarts >= old.restarts);
        let back: TyJobStatus = serde_json::from_value(serde_json::to_value(&status).unwrap()).unwrap();
        assert_eq!(back, status, "what is written is what is read back");
        let changed = status != old;
        self.job.status = Some(status);
        changed
    }

    pub fn perform(&mut self, effect: JobEffect) -> bool {
        match effect {
            JobEffect::AddFinalizer => self.job.metadata.finalizers = Some(vec![keys::FINALIZER.to_owned()]),
            JobEffect::RemoveFinalizer => {
                assert!(self.pods.is_empty());
                self.job.metadata.finalizers = None;
                self.gone = self.job.metadata.deletion_timestamp.is_some();
            }
            JobEffect::Pod(PodEffect::Create { name, body }) => {
                assert!(self.job.metadata.finalizers.is_some(), "nothing is made before its clean-up is sure");
                let spec = self.job.effective(None).unwrap().spec;
                assert!(spec.members("rl").any(|member| member.name == name), "{name} was never asked for");
                if self.pods.contains_key(&name) || self.trouble.as_ref().is_some_and(|found| found.contains_key(&name))
                {
                    return false;
                }
                self.made += 1;
                self.version += 1;
                let labels = &body["metadata"]["labels"];
                let pod = PodView {
                    name: name.clone(),
                    uid: format!("uid-{}", self.made),
                    attempt: labels[keys::ATTEMPT].as_str().and_then(|attempt| attempt.parse().ok()),
                    allocation: body["metadata"]["annotations"][keys::ALLOCATION].as_str().map(str::to_owned),
                    version: self.version,
                    ..PodView::default()
                };
                self.calls.push(format!("+{name}"));
                self.bodies.insert(name.clone(), body);
                self.pods.insert(name, pod);
            }
            JobEffect::Pod(PodEffect::Delete { name, uid, version, force }) => {
                let now = self.now;
                let found = self.pods.get_mut(&name);
                let Some(pod) = found.filter(|pod| pod.uid == uid && pod.version == version) else { return false };
                self.calls.push(format!("{}{name}", if force { "!" } else { "-" }));
                if force || pod.node.is_none() {
                    self.pods.remove(&name);
                } else {
                    pod.deleting.get_or_insert(now + SignedDuration::from_secs(30));
                }
            }
            JobEffect::Pod(PodEffect::Reserve { name, uid, node }) => {
                let pod = self.pods.get_mut(&name).filter(|pod| pod.uid == uid && pod.node.is_none()).unwrap();
                pod.allocation = Some(node);
            }
            JobEffect::Event { reason, message, .. } => {
                self.reported.push((reason.word(), message));
                return false;
            }
            JobEffect::Wake { at } => {
                assert!(at > self.now, "a timer that is due already");
                return false;
            }
        }
        true
    }

    /// Steps until nothing is left to do.
    pub fn settle(&mut self) {
        for _ in 0..50 {
            if !self.step() {
                return;
            }
        }
        panic!("never settles: {:?}", self.status());
    }

    // What the scheduler does.

    pub fn place(&mut self, names: &[&str], state: ScheduleState) {
        let attempt = self.status().attempt;
        let place = |member: JobMember<'_>| Allocation {
            node: format!("node-{}", member.index),
            pod: member.name,
            role: member.role,
            worker_set: member.worker_set.map(str::to_owned),
            index: member.index,
            attempt,
        };
        let spec = self.in_force();
        let members = spec.members("rl").filter(|member| names.contains(&member.name.as_str()));
        let allocations = members.map(place).collect();
        let status = self.job.status.get_or_insert_default();
        status.allocations = allocations;
        status.schedule_state = Some(state);
        status.conditions.retain(|found| found.type_ != condition::SCHEDULED);
        let scheduled = Condition {
            type_: condition::SCHEDULED.to_owned(),
            status: "True".to_owned(),
            reason: "Placed".to_owned(),
            message: "3 nodes are too small".to_owned(),
            last_transition_time: Time(self.now),
            observed_generation: None,
        };
        status.conditions.insert(0, scheduled);
    }

    pub fn place_all(&mut self) {
        let names: Vec<String> = self.in_force().members("rl").map(|member| member.name).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        self.place(&names, ScheduleState::ScheduledSucceed);
    }

    // What kubelets do.

    pub fn pod(&mut self, name: &str) -> &mut PodView {
        self.version += 1;
        let pod = self.pods.get_mut(name).unwrap_or_else(|| panic!("no pod {name}"));
        pod.version = self.version;
        pod
    }

    /// The kubelet has restarted a container this often so far.
    pub fn restarts(&mut self, name: &str, container: &str, count: i32) {
        self.pod(name).container_restarts.insert(container.to_owned(), count);
    }

    pub fn bind(&mut self, name: &str) {
        let ip = format!("10.0.0.{}", self.made);
        let pod = self.pod(name);
        pod.node.clone_from(&pod.allocation);
        pod.ip.get_or_insert(ip);
    }

    pub fn ready(&mut self, name: &str) {
        self.bind(name);
        let pod = self.pod(name);
        (pod.phase, pod.ready) = (Phase::Running, true);
    }

    /// Every pod that can be ready is, and those that come of it.
    pub fn ready_all(&mut self) {
        for _ in 0..3 {
            let names: Vec<String> = self.pods.keys().cloned().collect();
            for name in names {
                self.ready(&name);
            }
            self.settle();
        }
    }

    pub fn ends(&mut self, name: &str, phase: Phase) {
        self.bind(name);
        let pod = self.pod(name);
        (pod.phase, pod.ready) = (phase, false);
        pod.failure = (phase == Phase::Failed).then(|| "main exited with 1".to_owned());
    }

    /// Dying pods are confirmed by their kubelets.
    pub fn bury(&mut self) {
        self.pods.retain(|_, pod| pod.deleting.is_none());
    }

    pub fn evict(&mut self, name: &str) {
        let now = self.now;
        self.pod(name).deleting = Some(now + SignedDuration::from_secs(30));
    }

    pub fn pass(&mut self, seconds: i64) {
        self.now += SignedDuration::from_secs(seconds);
    }

    pub fn delete_job(&mut self) {
        self.job.metadata.deletion_timestamp = Some(Time(self.now));
    }

    pub fn names(&self) -> Vec<&str> {
        self.pods.keys().map(String::as_str).collect()
    }

    pub fn was_reported(&self, reason: &str) -> bool {
        self.reported.iter().any(|(reported, _)| *reported == reason)
    }
}

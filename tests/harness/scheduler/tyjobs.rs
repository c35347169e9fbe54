//! Verbs for TYJobs: jobs, and a player for the controller who does what its half of the contract says.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use baton::contract::quota::{LimitRangeRules, PodAsk, QuotaRules};
use baton::contract::tyjob::{BasicPolicy, JobQueuePolicy, Role, ScheduleState, Stage};
use baton::contract::{PodKey, PodRef, Quantity};
use baton::decide::core::rules::plugins::DefaultSet;
use baton::decide::pod::Phase;
use baton::decide::scheduler::Config;
use baton::decide::tyjob::JobRecord;
use baton::decide::tyjob::placement::{JobFacts, JobIdentity, JobPart, JobSpec};
use baton::decide::world::{JobClaim, Place, PodFacts, WorldEvent};

use serde_json::{Value, json};

use super::{OURS, TestScheduler, pod, wall};

pub struct TestJobs {
    pub cluster: TestScheduler,
    serial: u64,
}

pub fn key(job: &str) -> PodKey {
    PodKey::new("ml", job)
}

/// What pods of a part ask for.
pub type Limits<'a> = &'a [(&'a str, &'a str)];

impl TestJobs {
    pub fn new() -> Self {
        Self::with(Config::default())
    }

    pub fn with(config: Config) -> Self {
        Self { cluster: TestScheduler::with(config, DefaultSet::default()), serial: 0 }
    }

    /// A cluster of one node.
    pub fn on(node: &str, cpus: u32, gpus: u32) -> Self {
        let mut jobs = Self::new();
        jobs.node(node, cpus, gpus);
        jobs
    }

    /// Nodes that are alike.
    pub fn on_each(nodes: &[&str], cpus: u32, gpus: u32) -> Self {
        let mut jobs = Self::new();
        nodes.iter().for_each(|node| _ = jobs.node(node, cpus, gpus));
        jobs
    }

    /// Nodes a (free), b (half used) and c (two thirds used) of twelve CPUs each.
    pub fn uneven() -> Self {
        let mut jobs = Self::new();
        for (name, used) in [("c", "8"), ("b", "6")] {
            jobs.node(name, 12, 0);
            jobs.cluster.pod_as(&format!("on-{name}"), &[("cpu", used)], |facts| {
                facts.handoff.node = Some(name.into());
                facts.handoff.scheduler_name = "other".into();
            });
        }
        jobs.node("a", 12, 0);
        jobs
    }

    /// The cluster at rest.
    pub fn settled(&mut self) -> &mut Self {
        self.cluster.settle();
        self
    }

    /// The cluster after so many seconds.
    pub fn after(&mut self, seconds: u64) -> &mut Self {
        self.cluster.wait(seconds);
        self
    }

    /// A node of this many CPUs and GPUs, with 512 GiB.
    pub fn node(&mut self, name: &str, cpus: u32, gpus: u32) -> &mut Self {
        self.cluster.node(name, gpus);
        self.cluster.change_node(name, |facts| facts.allocatable.set("cpu", Quantity::units(i64::from(cpus))));
        self
    }

    /// A job of a leader and one set of workers, `actor`.
    pub fn job(&self, name: &str, leader: Limits<'_>, (workers, worker): (i32, Limits<'_>)) -> JobFacts {
        let part = |role, name: &str, counts, limits: Limits<'_>| {
            let mut facts = pod(name, limits, self.cluster.now);
            facts.handoff.scheduler_name = "none".into();
            let limits: BTreeMap<&str, &str> = limits.iter().copied().collect();
            let ask =
                PodAsk::read(&json!({"containers": [{"name": "main", "resources": {"limits": limits}}]})).unwrap();
            JobPart { role, name: name.into(), counts, ask, indexed: false, pod: facts }
        };
        JobFacts {
            job: JobIdentity { key: key(name), uid: format!("uid-{name}").into() },
            version: 1,
            created: wall(self.cluster.now),
            deleting: false,
            stage: Some(Stage::Pending),
            state: None,
            attempt: 0,
            has_address: false,
            ended: BTreeMap::new(),
            allocations: vec![],
            scheduled: None,
            spec: Ok(JobSpec {
                priority: 5,
                queue: JobQueuePolicy::Priority,
                basic: BasicPolicy::BinPack,
                min_workers: 1,
                topology: Ok(None),
                terminating: false,
                parts: vec![part(Role::Leader, "learner", 1, leader), part(Role::Worker, "actor", workers, worker)],
            }),
        }
    }

    pub fn submit(&mut self, facts: JobFacts) -> &mut Self {
        let key = facts.job.key.clone();
        self.cluster.jobs.insert(key.clone(), facts);
        self.cluster.tell_job(&key);
        self
    }

    /// As [`TestJobs::job`] and [`TestJobs::submit`], with an edit of the spec.
    pub fn run(
        &mut self,
        name: &str,
        leader: Limits<'_>,
        workers: (i32, Limits<'_>),
        edit: impl FnOnce(&mut JobSpec),
    ) -> &mut Self {
        let mut facts = self.job(name, leader, workers);
        edit(facts.spec.as_mut().unwrap());
        self.submit(facts).settled()
    }

    pub fn change(&mut self, name: &str, edit: impl FnOnce(&mut JobFacts)) -> &mut Self {
        let facts = self.cluster.jobs.get_mut(&key(name)).unwrap();
        facts.version += 1;
        edit(facts);
        self.cluster.tell_job(&key(name));
        self.settled()
    }

    /// A ResourceQuota of the jobs' namespace, as admission and its controller keep it.
    pub fn quota(&mut self, name: &str, spec: Value, used: Value) -> &mut Self {
        let status = json!({"hard": spec["hard"], "used": used});
        let object = json!({"metadata": {"name": name, "namespace": "ml"}, "spec": spec, "status": status});
        let rules = QuotaRules::read(&serde_json::from_value(object).unwrap());
        self.cluster.event(WorldEvent::Quota(key(name), Some(Box::new(rules))));
        self.settled()
    }

    /// A LimitRange of the jobs' namespace.
    pub fn limit_range(&mut self, item: Value) -> &mut Self {
        let object = json!({"metadata": {"name": "limits", "namespace": "ml"}, "spec": {"limits": [item]}});
        let rules = LimitRangeRules::read(&serde_json::from_value(object).unwrap());
        self.cluster.event(WorldEvent::LimitRange(key("limits"), Some(Box::new(rules))));
        self.settled()
    }

    pub fn remove(&mut self, name: &str) -> &mut Self {
        let facts = self.cluster.jobs.remove(&key(name)).unwrap();
        self.cluster.event(WorldEvent::JobGone(facts.job));
        self.settled()
    }

    pub fn facts(&self, name: &str) -> &JobFacts {
        &self.cluster.jobs[&key(name)]
    }

    pub fn state(&self, name: &str) -> Option<ScheduleState> {
        self.facts(name).state
    }

    pub fn message(&self, name: &str) -> &str {
        self.facts(name).scheduled.as_ref().map_or("", |scheduled| &scheduled.message)
    }

    /// Its state, and how many places it has.
    pub fn stand(&self, name: &str) -> (Option<ScheduleState>, usize) {
        (self.state(name), self.places(name).len())
    }

    /// Places by pod without the job's name: `learner`, `actor-0`.
    pub fn places(&self, name: &str) -> BTreeMap<String, String> {
        let facts = self.facts(name);
        let present = facts.allocations.iter().filter(|place| place.attempt == facts.attempt);
        let short = |pod: &str| pod.strip_prefix(&format!("{name}-")).unwrap().to_owned();
        present.map(|place| (short(&place.pod), place.node.clone())).collect()
    }

    /// The pod of a place, as the controller makes it.
    pub fn pod_of(&mut self, job: &str, pod_name: &str) -> PodFacts {
        let facts = self.facts(job);
        let spec = facts.spec.as_ref().unwrap();
        let seat = spec.seat(job, pod_name).unwrap();
        let mut made = spec.parts[seat.part].pod.clone();
        let claim = JobClaim { name: job.into(), uid: facts.job.uid.clone(), attempt: Some(facts.attempt) };
        made.spec.job = Some(Arc::new(claim));
        self.serial += 1;
        made.handoff.pod = PodRef::new("ml", pod_name, &format!("uid-{pod_name}-{}", self.serial));
        made.handoff.scheduler_name = OURS.into();
        made.handoff.created = wall(self.cluster.now);
        made
    }

    /// The controller makes what has a place and is not there: the leader, and the workers once it has an address.
    pub fn controller(&mut self, name: &str) -> &mut Self {
        let facts = self.facts(name);
        let placed = matches!(facts.state, Some(ScheduleState::ScheduledSucceed | ScheduleState::ScheduledPartly));
        if !placed || facts.is_over() {
            return self;
        }
        let address = facts.has_address;
        let wanted: Vec<String> = facts
            .allocations
            .iter()
            .filter(|place| place.attempt == facts.attempt && (place.role == Role::Leader || address))
            .map(|place| place.pod.clone())
            .collect();
        for pod_name in wanted {
            if !self.cluster.pods.contains_key(&key(&pod_name)) {
                let made = self.pod_of(name, &pod_name);
                self.cluster.submit(made);
                self.cluster.settle();
                self.serve();
            }
        }
        let leader = format!("{name}-learner");
        if self.facts(name).stage != Some(Stage::Starting) && self.cluster.pods.contains_key(&key(&leader)) {
            self.change(name, |facts| facts.stage = Some(Stage::Starting));
        }
        self
    }

    /// The leader runs and has an address.
    pub fn leader_up(&mut self, name: &str) -> &mut Self {
        self.cluster.change_pod(&format!("{name}-learner"), |facts| facts.handoff.phase = Phase::Running);
        self.change(name, |facts| facts.has_address = true)
    }

    /// Agents serve the holders of locks, until no lock is held.
    pub fn serve(&mut self) -> &mut Self {
        while let Some(node) = self.cluster.locks.keys().next().cloned() {
            self.cluster.agent_releases(&node);
            self.cluster.settle();
        }
        self
    }

    /// The controller and the kubelets do all that they can.
    pub fn start(&mut self, name: &str) -> &mut Self {
        self.controller(name).leader_up(name).controller(name)
    }

    pub fn reserved(&self) -> usize {
        self.cluster.job_records().values().map(JobRecord::reservations).sum()
    }

    /// No node is over-committed, places are of jobs that want them, and no job rests below its minimum.
    pub fn check(&self) {
        let world = self.cluster.world();
        for (_, node) in world.nodes() {
            let facts = node.facts.as_ref().unwrap();
            let mut left = (*facts.allocatable).clone();
            left.sub(&node.used);
            let short = left.milli_cpu < 0 || left.memory < 0 || left.scalar.iter().any(|(_, left)| left < 0);
            assert!(!short && node.pods.len() as i64 <= facts.max_pods, "{} is over-committed: {left:?}", node.name);
        }
        let imagined = world.pods().filter(|pod| pod.facts.handoff.pod.uid.as_str().starts_with("place/"));
        assert_eq!(imagined.count(), self.reserved(), "every place in the world is of a job");
        for (name, record) in self.cluster.job_records() {
            let facts = &self.cluster.jobs[name];
            if facts.is_over() {
                assert!(record.places.is_empty(), "{name} is over and holds places");
                continue;
            }
            let Ok(spec) = &facts.spec else { continue };
            let names: BTreeSet<_> = spec.seats(&name.name).map(|seat| seat.pod).collect();
            assert!(record.places.keys().all(|pod| names.contains(pod)), "{name} has places of no pod");
            let places = &record.places;
            if facts.leads() || places.is_empty() {
                continue;
            }
            let leader = places.contains_key(&*format!("{}-learner", name.name));
            let workers = places.len() as i64 - i64::from(leader);
            assert!(leader && workers >= spec.min_workers, "{name} holds {workers} workers, leader: {leader}");
            if spec.basic == BasicPolicy::Gang {
                assert_eq!(places.len(), names.len(), "{name} is a gang");
            }
        }
    }

    /// The same, before what is asserted.
    pub fn checked(&self) -> &Self {
        self.check();
        self
    }

    /// Where a pod stands in the world.
    pub fn place_of(&self, pod: &str) -> Option<Place> {
        self.cluster.world().pod_by_key(&key(pod)).map(|pod| pod.place)
    }
}

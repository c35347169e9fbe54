//! The scheduler's decisions against a cluster of plain values: effects are performed as the API server would perform them, and
//! come back as the events of a watch. Tests reach the scheduler through here, so that its interface is named in one place.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use baton::contract::gang::{Committed, GangId};
use baton::contract::tyjob::ScheduleState;
use baton::contract::{AgentStatus, DeviceAllocation, Identity, LockRead, PodKey, PodRef, Quantity, key};
use baton::decide::audit;
use baton::decide::core::rules::Annotations;
use baton::decide::core::rules::Plugins;
use baton::decide::core::rules::plugins::{DefaultSet, default_plugins};
use baton::decide::core::{JobScheduleStatus, JobWriteResult};
use baton::decide::explain::{Explanation, JobExplanation, PodState, QueueReport, WhatIf};
use baton::decide::pod::{AssignmentText, Deletion, Phase};
use baton::decide::scheduler::{
    BindResult, Config, Effect, EffectResult, Effects, LockResult, Moment, PodGroupWrite, Scheduler, Stats,
};
use baton::decide::tyjob::JobRecord;
use baton::decide::tyjob::placement::{JobFacts, JobIdentity};
use baton::decide::world::gangs::{Declared, PodGroupFacts};
use baton::decide::world::{ClaimFacts, ClassFacts, NodeFacts, PodFacts, Resources, VolumeFacts, World, WorldEvent};

use super::gangs::end;
use super::{OURS, gpu_device, pod, wall};

/// What a node daemon registers.
pub const NAMES: [&str; 6] =
    [key::NVIDIA_GPU, key::GPU, key::GPU_CORE, key::GPU_MEMORY_RATIO, key::GPU_SHARED, key::RDMA];

/// What the next request of a kind meets.
#[derive(Clone, Debug, PartialEq)]
pub enum Fault {
    /// Done, but the answer is lost.
    LostAnswer,
    /// Not done: 500 or a dead connection.
    Fails,
    /// Not done: 422 or the like.
    Refused,
    /// Done and answered, before the watch shows it.
    Unseen,
    /// Not answered, and done when [`TestScheduler::arrive`] is called.
    Late,
}

/// The scheduler, and the cluster that it sees. Times are those of [`TestScheduler::now`].
pub struct TestScheduler {
    pub scheduler: Scheduler,
    pub now: Duration,
    pub locks: BTreeMap<String, String>,
    pub pods: BTreeMap<PodKey, PodFacts>,
    pub nodes: BTreeMap<String, NodeFacts>,
    /// Nodes without a Device object and an agent.
    pub plain: BTreeSet<String>,
    pub pod_groups: BTreeMap<GangId, PodGroupFacts>,
    pub pod_group_writes: Vec<PodGroupWrite>,
    pub pod_groups_made: Vec<String>,
    pub pod_groups_removed: Vec<(String, Box<str>)>,
    config: Config,
    /// Check all invariants before every effect too, not only at rest.
    pub watchful: bool,
    /// Nothing but rules parks pods: no Permit plugin refuses any.
    parks_for_rules: bool,
    pub bind_faults: VecDeque<Fault>,
    late: Vec<(PodRef, Box<str>, Annotations)>,
    pub lock_faults: VecDeque<Fault>,
    pub release_faults: VecDeque<Fault>,
    /// Requests that stay unanswered until [`TestScheduler::deliver`].
    pub hold: bool,
    pub held: Vec<Effect>,
    pub binds: usize,
    pub lock_writes: usize,
    pub conditions: BTreeMap<String, String>,
    pub condition_writes: usize,
    /// Every message of a condition that was ever written, with its pod.
    pub condition_messages: Vec<(String, Arc<str>)>,
    /// Writes of conditions that get lost.
    pub lost_conditions: usize,
    pub reasons: BTreeMap<String, &'static str>,
    pub notices: Vec<(String, &'static str)>,
    /// The message of each of these, of the events on pods; and those on nodes.
    pub messages: Vec<(String, &'static str, String)>,
    /// Reads of pods that fail.
    pub lost_reads: usize,
    /// Pods that were read live.
    pub reads: usize,
    /// What daemons say of themselves, where that is more than the usual.
    said: BTreeMap<String, AgentStatus>,
    pub evicted: Vec<String>,
    /// Deletions that get lost.
    pub lost_evictions: usize,
    /// Writes of nominations that get lost.
    pub lost_nominations: usize,
    pub nomination_writes: usize,
    pub claims: BTreeMap<PodKey, ClaimFacts>,
    pub volumes: BTreeMap<String, VolumeFacts>,
    /// Storage classes that a restart finds again.
    pub classes: BTreeMap<String, ClassFacts>,
    pub volume_writes: usize,
    /// Writes to claims and volumes that get lost.
    pub lost_volume_writes: usize,
    pub jobs: BTreeMap<PodKey, JobFacts>,
    pub job_writes: usize,
    pub job_faults: VecDeque<Fault>,
    /// More places make the status of a job too large for the API server.
    pub most_places: usize,
    lease: u64,
}

impl TestScheduler {
    pub fn new() -> Self {
        Self::with(Config::default(), DefaultSet::default())
    }

    pub fn with(config: Config, set: DefaultSet) -> Self {
        Self { parks_for_rules: true, ..Self::with_plugins(config, default_plugins(&set).unwrap()) }
    }

    pub fn with_plugins(config: Config, plugins: Plugins) -> Self {
        let mut cluster = Self {
            scheduler: Scheduler::new(config.clone(), plugins),
            now: Duration::from_secs(1000),
            locks: BTreeMap::new(),
            pods: BTreeMap::new(),
            nodes: BTreeMap::new(),
            plain: BTreeSet::new(),
            pod_groups: BTreeMap::new(),
            pod_group_writes: Vec::new(),
            pod_groups_made: Vec::new(),
            pod_groups_removed: Vec::new(),
            config,
            watchful: true,
            parks_for_rules: false,
            bind_faults: VecDeque::new(),
            late: Vec::new(),
            lock_faults: VecDeque::new(),
            release_faults: VecDeque::new(),
            hold: false,
            held: Vec::new(),
            binds: 0,
            lock_writes: 0,
            conditions: BTreeMap::new(),
            condition_writes: 0,
            condition_messages: Vec::new(),
            lost_conditions: 0,
            lost_evictions: 0,
            lost_nominations: 0,
            nomination_writes: 0,
            reasons: BTreeMap::new(),
            notices: Vec::new(),
            messages: Vec::new(),
            lost_reads: 0,
            reads: 0,
            said: BTreeMap::new(),
            evicted: Vec::new(),
            claims: BTreeMap::new(),
            volumes: BTreeMap::new(),
            classes: BTreeMap::new(),
            volume_writes: 0,
            lost_volume_writes: 0,
            jobs: BTreeMap::new(),
            job_writes: 0,
            job_faults: VecDeque::new(),
            most_places: usize::MAX,
            lease: 0,
        };
        cluster.lead();
        cluster
    }

    pub fn moment(&self) -> Moment {
        Moment { mono: self.now, wall: wall(self.now) }
    }
    pub fn lead(&mut self) -> &mut Self {
        let effects = self.scheduler.lead(true, self.moment());
        self.perform(effects)
    }

    /// A fresh scheduler on the same cluster: the old one's memory is gone, its requests are not answered.
    pub fn restart(&mut self) {
        self.held.clear();
        self.scheduler = Scheduler::new(self.config.clone(), default_plugins(&DefaultSet::default()).unwrap());
        for facts in self.pod_groups.values().cloned().collect::<Vec<_>>() {
            self.event(WorldEvent::PodGroup(Box::new(facts)));
        }
        for node in self.nodes.keys().cloned().collect::<Vec<_>>() {
            self.tell_node(&node);
            if self.plain.contains(&node) {
                continue;
            }
            let event = WorldEvent::Devices(Box::new(gpu_device(&node, 8)));
            self.event(event);
            self.beat(&node, Identity::Lock, &NAMES);
        }
        for (name, facts) in self.classes.clone() {
            self.event(WorldEvent::Class(name.into(), facts));
        }
        for name in self.volumes.keys().cloned().collect::<Vec<_>>() {
            self.tell_volume(&name);
        }
        for key in self.claims.keys().cloned().collect::<Vec<_>>() {
            self.tell_claim(&key);
        }
        for key in self.pods.keys().cloned().collect::<Vec<_>>() {
            self.tell_pod(&key);
        }
        for key in self.jobs.keys().cloned().collect::<Vec<_>>() {
            self.tell_job(&key);
        }
        self.lead();
    }

    // Verbs: what is in the cluster. They give it back: steps that belong together stand in one line.

    pub fn node(&mut self, name: &str, gpus: u32) -> &mut Self {
        self.plain_node(name, gpus);
        let device = gpu_device(name, gpus);
        self.event(WorldEvent::Devices(Box::new(device)));
        self.beat(name, Identity::Lock, &NAMES)
    }

    pub fn plain_node(&mut self, name: &str, gpus: u32) -> &mut Self {
        let amounts = [("cpu", "64"), ("memory", "512Gi")].map(|(n, q)| (n, q.parse().unwrap()));
        let mut allocatable = Resources::of(amounts);
        for name in NAMES {
            let units = if name == key::NVIDIA_GPU { 1 } else { 100 };
            allocatable.set(name, Quantity::units(i64::from(gpus) * units));
        }
        let facts =
            NodeFacts { name: name.into(), allocatable: allocatable.into(), max_pods: 110, ..NodeFacts::default() };
        self.nodes.insert(name.into(), facts);
        self.tell_node(name)
    }

    pub fn change_node(&mut self, name: &str, change: impl FnOnce(&mut NodeFacts)) -> &mut Self {
        change(self.nodes.get_mut(name).unwrap());
        self.tell_node(name)
    }

    pub fn beat(&mut self, node: &str, identity: Identity, registered: &[&str]) -> &mut Self {
        self.beat_status(node, Self::status(identity, registered))
    }

    pub fn status(identity: Identity, registered: &[&str]) -> AgentStatus {
        AgentStatus {
            version: "1".into(),
            registered: registered.iter().map(|name| (*name).to_owned()).collect(),
            identity,
            lockless: None,
            exceptions: Some([].into()),
            lock: None,
            too_many_exceptions: false,
            ended: false,
            unreleased: None,
            leaving: [].into(),
            pod_metrics: false,
        }
    }

    /// A daemon of an older version: it does not say what pods hold.
    pub fn says_nothing(&mut self, node: &str) {
        self.say(node, AgentStatus { exceptions: None, ..Self::status(Identity::Lock, &NAMES) });
    }

    pub fn beat_status(&mut self, node: &str, status: AgentStatus) -> &mut Self {
        self.lease += 1;
        let status = Some(status);
        let version = self.lease.to_string().into();
        self.event(WorldEvent::Agent { node: node.into(), status, version, renewed: Some(wall(self.now)) })
    }

    /// A daemon says this from now on.
    pub fn say(&mut self, node: &str, status: AgentStatus) -> &mut Self {
        self.said.insert(node.into(), status.clone());
        self.beat_status(node, status)
    }

    /// Lets every agent renew its Lease.
    pub fn beat_all(&mut self) {
        for node in self.nodes.keys().cloned().collect::<Vec<_>>() {
            match self.said.get(&node).cloned() {
                Some(status) => self.beat_status(&node, status),
                None => self.beat(&node, Identity::Lock, &NAMES),
            };
        }
    }

    pub fn pod(&mut self, name: &str, limits: &[(&str, &str)]) -> &mut Self {
        let facts = pod(name, limits, self.now);
        self.submit(facts)
    }

    pub fn submit(&mut self, facts: PodFacts) -> &mut Self {
        let key = facts.handoff.pod.key.clone();
        self.pods.insert(key.clone(), facts);
        self.tell_pod(&key)
    }

    /// Another leader has bound a pod with the whole GPU of this minor.
    pub fn bound_by_another(&mut self, name: &str, node: &str, minor: i64) {
        let mut facts = pod(name, &[(key::NVIDIA_GPU, "1")], self.now);
        facts.handoff.node = Some(node.into());
        let amounts = r#"{"koordinator.sh/gpu-core":"100","koordinator.sh/gpu-memory":"80Gi","koordinator.sh/gpu-memory-ratio":"100"}"#;
        let whole = format!(r#"{{"gpu":[{{"minor":{minor},"id":"GPU-{node}-{minor}","resources":{amounts}}}]}}"#);
        facts.handoff.assignment.device_allocated = Some(whole.into());
        self.submit(facts);
    }

    pub fn change_pod(&mut self, name: &str, change: impl FnOnce(&mut PodFacts)) -> &mut Self {
        let key = PodKey::new("ml", name);
        change(self.pods.get_mut(&key).unwrap());
        self.tell_pod(&key)
    }

    pub fn delete(&mut self, name: &str) -> &mut Self {
        let key = PodKey::new("ml", name);
        let facts = self.pods.remove(&key).unwrap();
        self.event(WorldEvent::PodGone(key, facts.handoff.pod.uid))
    }

    pub fn finish(&mut self, name: &str) {
        let now = self.now;
        self.change_pod(name, |facts| end(facts, Phase::Succeeded, now));
    }

    pub fn set_lock(&mut self, node: &str, value: &str) -> &mut Self {
        self.locks.insert(node.into(), value.into());
        self.tell_node(node)
    }

    /// The agent has served the pod that holds the lock.
    pub fn agent_releases(&mut self, node: &str) -> &mut Self {
        self.locks.remove(node).expect("the node is locked");
        self.tell_node(node)
    }

    // The scheduler's interface.

    /// Another replica leads from now on.
    pub fn step_down(&mut self) -> &mut Self {
        self.scheduler.lead(false, self.moment());
        self
    }
    pub fn world(&self) -> &World {
        self.scheduler.world()
    }
    pub fn stats(&self) -> Stats {
        self.scheduler.stats()
    }
    /// How many pods are between their reservation and their Binding.
    pub fn bind_attempts(&self) -> usize {
        self.scheduler.binder().attempts().len()
    }
    /// How many pods have room reserved and no bind attempt yet.
    pub fn reservations(&self) -> usize {
        self.scheduler.reservations().all().len()
    }
    pub fn nominations(&self) -> usize {
        self.scheduler.preemption().all().len()
    }
    pub fn job_records(&self) -> &BTreeMap<PodKey, JobRecord> {
        self.scheduler.tyjobs().records()
    }
    // Explanations are those of a snapshot, as in the daemon.
    pub fn explain(&mut self, pod: &PodKey) -> Option<Explanation> {
        self.scheduler.snapshot().explain(pod, self.moment())
    }
    pub fn explain_job(&self, job: &PodKey) -> Option<JobExplanation> {
        self.scheduler.snapshot().explain_job(job, self.moment())
    }
    pub fn what_if(&mut self, facts: PodFacts) -> WhatIf {
        self.scheduler.snapshot().what_if(facts, self.moment())
    }
    pub fn queue_report(&self) -> QueueReport {
        self.scheduler.snapshot().queue_report(self.moment())
    }

    // Verbs: what is looked at.

    pub fn node_of(&self, name: &str) -> Option<&str> {
        self.pods.get(&PodKey::new("ml", name))?.handoff.node.as_deref()
    }
    pub fn nodes_of<const N: usize>(&self, names: [&str; N]) -> [Option<&str>; N] {
        names.map(|name| self.node_of(name))
    }
    pub fn holder(&self, node: &str) -> Option<&str> {
        self.locks.get(node)?.split(',').nth(2)
    }
    /// Where the pod is, and which one holds the lock of the node.
    pub fn stand(&self, pod: &str, node: &str) -> (Option<&str>, Option<&str>) {
        (self.node_of(pod), self.holder(node))
    }
    pub fn devices_of(&self, name: &str) -> DeviceAllocation {
        let text = &self.pods[&PodKey::new("ml", name)].handoff.assignment.device_allocated;
        DeviceAllocation::parse(text.as_deref().unwrap_or_default()).unwrap()
    }
    pub fn bound(&self) -> usize {
        self.pods.values().filter(|pod| pod.handoff.node.is_some()).count()
    }

    // The machinery.

    pub fn tell_node(&mut self, name: &str) -> &mut Self {
        let mut facts = self.nodes[name].clone();
        facts.lock = self.locks.get(name).map(|value| value.as_str().into());
        self.event(WorldEvent::Node(facts))
    }
    pub fn tell_pod(&mut self, key: &PodKey) -> &mut Self {
        let facts = Box::new(self.pods[key].clone());
        self.event(WorldEvent::Pod(facts))
    }

    pub fn event(&mut self, event: WorldEvent) -> &mut Self {
        let effects = self.scheduler.event(event, self.moment());
        self.perform(effects)
    }

    /// Lets the scheduler work until nothing is left to do at this time.
    pub fn settle(&mut self) {
        for _ in 0..10_000 {
            let due = self.scheduler.next().is_some_and(|at| at <= self.now);
            let effects = self.scheduler.run(self.moment());
            if effects.is_empty() && !due {
                return self.judge_rest();
            }
            self.perform(effects);
        }
        panic!("the scheduler does not come to rest");
    }

    /// At rest no pod is parked that fits a node: whatever opens room has woken it. Large clusters would take too long.
    fn judge_rest(&self) {
        let waiting: Vec<&PodKey> =
            self.pods.iter().filter(|(_, pod)| pod.handoff.node.is_none()).map(|(key, _)| key).collect();
        if !self.watchful || !self.parks_for_rules || waiting.is_empty() || waiting.len() > 16 || self.nodes.len() > 8 {
            return;
        }
        let snapshot = self.scheduler.snapshot();
        for key in waiting {
            let Some(explanation) = snapshot.explain(key, self.moment()) else { continue };
            let fits = explanation.verdict.nodes.iter().find(|node| node.fits);
            // Without a wake it waits for its TYJob, or for a change of its own.
            let waits = explanation.state == PodState::Parked && !explanation.verdict.wakes.is_empty();
            assert!(
                !waits || explanation.group.is_some() || fits.is_none(),
                "{key} is parked and fits: {explanation:?}"
            );
        }
    }

    /// Lets time pass in steps, agents alive.
    pub fn wait(&mut self, seconds: u64) {
        for _ in 0..seconds {
            self.now += Duration::from_secs(1);
            if self.now.as_secs().is_multiple_of(30) {
                self.beat_all();
            }
            self.settle();
        }
    }

    /// Of the requests that were held, the first few reach the API server; the others never left.
    pub fn deliver_only(&mut self, first: usize) -> &mut Self {
        self.hold = false;
        let mut held = std::mem::take(&mut self.held);
        held.truncate(first);
        self.perform(held)
    }

    /// One of the requests that were held reaches the API server.
    pub fn deliver_one(&mut self, at: usize) -> &mut Self {
        let effect = self.held.remove(at);
        self.perform_one(effect);
        self
    }

    pub fn deliver(&mut self) -> &mut Self {
        self.hold = false;
        let held = std::mem::take(&mut self.held);
        self.perform(held)
    }

    pub fn audit(&self) {
        let violations = audit::check_scheduler(&self.scheduler, OURS);
        assert!(violations.is_empty(), "{violations:#?}");
    }

    pub fn perform(&mut self, effects: Effects) -> &mut Self {
        if self.watchful {
            self.audit();
        }
        for effect in effects {
            let request = matches!(effect, Effect::Lock { .. } | Effect::Bind { .. } | Effect::Release { .. });
            if self.hold && request {
                self.held.push(effect);
            } else {
                self.perform_one(effect);
            }
        }
        self
    }

    pub fn report(&mut self, report: EffectResult) {
        let effects = self.scheduler.report(report, self.moment());
        self.perform(effects);
    }

    fn perform_one(&mut self, effect: Effect) {
        match effect {
            Effect::Lock { ticket, node, old, new } => {
                self.lock_writes += 1;
                let fault = self.lock_faults.pop_front();
                if matches!(fault, Some(Fault::Fails | Fault::Refused)) {
                    return self.report(EffectResult::Lock { ticket, result: LockResult::Failed("500".into(), None) });
                }
                let result = self.swap(&node, old.as_deref(), Some(&new));
                self.tell_node(&node);
                let result = if fault.is_some() { LockResult::Failed("lost".into(), None) } else { result };
                self.report(EffectResult::Lock { ticket, result });
            }
            Effect::Release { node, old, .. } => {
                let fault = self.release_faults.pop_front();
                let failed = |why: &str| LockResult::Failed(why.into(), None);
                if matches!(fault, Some(Fault::Fails)) {
                    return self.report(EffectResult::Release { node, old, result: failed("500") });
                }
                let result = self.swap(&node, Some(&old), None);
                self.tell_node(&node);
                let result = if fault.is_some() { failed("lost") } else { result };
                self.report(EffectResult::Release { node, old, result });
            }
            Effect::Bind { ticket, pod, node, annotations } => {
                self.binds += 1;
                let result = self.bind(&pod, &node, &annotations);
                self.report(EffectResult::Bind { ticket, result });
            }
            Effect::ReadPod { pod } => {
                self.reads += 1;
                let lost = self.lost_reads > 0;
                self.lost_reads = self.lost_reads.saturating_sub(1);
                let result = if lost { Err("500".into()) } else { Ok(self.pods.get(&pod).cloned().map(Box::new)) };
                self.report(EffectResult::PodRead { pod, result });
            }
            Effect::Evict { .. } if self.lost_evictions > 0 => self.lost_evictions -= 1,
            Effect::Evict { pod, .. } => {
                self.evicted.push(pod.key.name.to_string());
                let at = wall(self.now + Duration::from_secs(30));
                self.change_pod(&pod.key.name.clone(), |facts| {
                    facts.handoff.deleting = Some(Deletion { at, grace_seconds: 30 });
                });
            }
            Effect::MarkTimedOut { pod, .. } => {
                if let Some(facts) = self.pods.get_mut(&pod.key)
                    && let Some(declared) = &facts.spec.gang
                {
                    let marked = Declared { timed_out: true, ..(**declared).clone() };
                    facts.spec.gang = Some(Arc::new(marked));
                    self.tell_pod(&pod.key);
                }
            }
            // PodGroups changed by these are not shown here.
            Effect::PodGroupStatus(write) => self.pod_group_writes.push(*write),
            Effect::MakePodGroup { gang, .. } => self.pod_groups_made.push(gang.to_string()),
            Effect::RemovePodGroup { gang, uid, .. } => self.pod_groups_removed.push((gang.to_string(), uid)),
            Effect::SelectNode { claim, version, node } => self.select_node(&claim, &version, node),
            Effect::BindVolume { volume, version, claim, uid } => self.bind_volume(&volume, &version, (claim, uid)),
            Effect::Nominate { pod, .. } if self.lost_nominations > 0 => {
                self.lost_nominations -= 1;
                self.report(EffectResult::NominationLost { pod: pod.uid });
            }
            Effect::Nominate { pod, node } => {
                self.nomination_writes += 1;
                // The pod may be gone by now.
                if let Some(facts) = self.pods.get_mut(&pod.key) {
                    facts.spec.nominated = node;
                    self.tell_pod(&pod.key);
                }
            }
            Effect::Condition { pod, .. } if self.lost_conditions > 0 => {
                self.lost_conditions -= 1;
                self.report(EffectResult::ConditionLost { pod: pod.uid });
            }
            Effect::Condition { pod, message, reason, .. } => {
                self.condition_writes += 1;
                self.condition_messages.push((pod.key.name.to_string(), Arc::clone(&message)));
                self.reasons.insert(pod.key.name.to_string(), reason.word());
                self.conditions.insert(pod.key.name.to_string(), message.as_ref().to_owned());
            }
            Effect::Served { .. } if self.lost_conditions > 0 => self.lost_conditions -= 1,
            Effect::Served { pod, served, .. } => {
                if let Some(facts) = self.pods.get_mut(&pod.key) {
                    facts.spec.unserved = !served;
                    self.tell_pod(&pod.key);
                }
            }
            Effect::WriteJob { job, version, status } => {
                self.job_writes += 1;
                let result = self.write_job(&job, version, &status);
                self.report(EffectResult::JobWritten { job, result });
            }
            Effect::RateMix(sample) => self.report(EffectResult::Tables(Box::new(sample.tables()))),
            Effect::JobNotice { job, reason, .. } => self.notices.push((job.key.name.to_string(), reason.word())),
            Effect::NodeNotice { node, reason, message, .. } => {
                self.messages.push((node.to_string(), reason.word(), message));
            }
            Effect::Notice { pod, reason, message, .. } => {
                self.notices.push((pod.key.name.to_string(), reason.word()));
                self.messages.push((pod.key.name.to_string(), reason.word(), message));
            }
        }
    }

    /// Applies the scheduler's half of a job's status, as the API server would: to whatever job has the name, if it is of that
    /// version.
    fn write_job(&mut self, job: &JobIdentity, version: u64, status: &JobScheduleStatus) -> JobWriteResult {
        if self.job_faults.pop_front().is_some() {
            return JobWriteResult::Failed("500".into());
        }
        if status.allocations.len() > self.most_places {
            return JobWriteResult::TooLarge("etcdserver: request is too large".into());
        }
        let Some(facts) = self.jobs.get_mut(&job.key) else { return JobWriteResult::Gone };
        if version > 0 && version != facts.version {
            return JobWriteResult::Stale;
        }
        assert_eq!(facts.job, *job, "written to another job of the name");
        let seats = facts.spec.as_ref().map_or(Vec::new(), |_| facts.open_seats());
        let listed = |pod: &str| status.allocations.iter().any(|place| place.pod == pod);
        if status.state == ScheduleState::ScheduledSucceed && !facts.is_over() {
            assert!(
                seats.iter().all(|seat| listed(&seat.pod)),
                "{} has no place for all of its pods: {status:?}",
                job.key
            );
        }
        facts.version += 1;
        facts.state = Some(status.state);
        facts.allocations.clone_from(&status.allocations);
        facts.scheduled = Some(status.condition.clone());
        let version = facts.version;
        self.tell_job(&job.key.clone());
        JobWriteResult::Done(version)
    }

    pub fn tell_job(&mut self, key: &PodKey) -> &mut Self {
        let facts = Box::new(self.jobs[key].clone());
        self.event(WorldEvent::Job(facts))
    }

    fn swap(&mut self, node: &str, expected: Option<&str>, new: Option<&str>) -> LockResult {
        if !self.nodes.contains_key(node) {
            return LockResult::NodeGone;
        }
        let stands = self.locks.get(node).map(String::as_str);
        if stands == new {
            return LockResult::Done;
        }
        if stands != expected {
            return LockResult::Contended(LockRead::parse(stands));
        }
        match new {
            Some(new) => self.locks.insert(node.into(), new.into()),
            None => self.locks.remove(node),
        };
        LockResult::Done
    }

    /// The Bindings that were not answered reach the API server.
    pub fn arrive(&mut self) -> &mut Self {
        for (pod, node, annotations) in std::mem::take(&mut self.late) {
            self.bind(&pod, &node, &annotations);
        }
        self.settled()
    }

    fn bind(&mut self, pod: &PodRef, node: &str, annotations: &Annotations) -> BindResult {
        assert_eq!(annotations.len(), key::SCHEDULER_KEYS.len(), "every scheduler key is written");
        let fault = self.bind_faults.pop_front();
        match fault {
            Some(Fault::Fails) => return BindResult::Unknown("500".into(), None),
            Some(Fault::Refused) => return BindResult::Refused("422".into()),
            Some(Fault::Late) => {
                self.late.push((pod.clone(), node.into(), annotations.clone()));
                return BindResult::Unknown("timed out".into(), None);
            }
            _ => {}
        }
        let Some(facts) = self.pods.get_mut(&pod.key) else { return BindResult::NotFound };
        if facts.handoff.pod.uid != pod.uid || facts.handoff.node.is_some() || facts.handoff.deleting.is_some() {
            return BindResult::Conflict("409".into());
        }
        let of = |key: &str| annotations.get(key).map(Into::into);
        facts.handoff.node = Some(node.into());
        facts.handoff.scheduled_condition = true;
        facts.handoff.assignment = AssignmentText {
            device_allocated: of(key::DEVICE_ALLOCATED),
            container_devices: of(key::CONTAINER_DEVICES),
            bind_timestamp: of(key::BIND_TIMESTAMP),
            committed: annotations.get(key::GANG_COMMITTED).and_then(|text| Committed::parse(text).ok()),
            ..AssignmentText::default()
        };
        if fault == Some(Fault::Unseen) {
            return BindResult::Done;
        }
        if fault.is_some() {
            // The watch lags as well: the scheduler must find out by itself.
            return BindResult::Unknown("timed out".into(), None);
        }
        self.tell_pod(&pod.key.clone());
        BindResult::Done
    }
}

/// What the API server does with writes to claims and volumes.
impl TestScheduler {
    pub fn select_node(&mut self, claim: &PodKey, version: &str, node: Box<str>) {
        let arrives = self.volume_write_arrives();
        if let Some(facts) = self.claims.get_mut(claim).filter(|facts| arrives && *facts.version == *version) {
            facts.selected_node = Some(node);
            facts.version = format!("{version}1").into();
            self.tell_claim(claim);
        }
    }

    pub fn bind_volume(&mut self, volume: &str, version: &str, claim: (PodKey, Box<str>)) {
        let arrives = self.volume_write_arrives();
        if let Some(facts) = self.volumes.get_mut(volume).filter(|facts| arrives && *facts.version == *version) {
            (facts.claim, facts.available) = (Some(claim), false);
            facts.version = format!("{version}1").into();
            self.tell_volume(volume);
        }
    }

    fn volume_write_arrives(&mut self) -> bool {
        self.volume_writes += 1;
        let arrives = self.lost_volume_writes == 0;
        self.lost_volume_writes = self.lost_volume_writes.saturating_sub(1);
        arrives
    }

    pub fn tell_claim(&mut self, key: &PodKey) -> &mut Self {
        let facts = self.claims[key].clone();
        self.event(WorldEvent::Claim(key.clone(), facts))
    }

    pub fn tell_volume(&mut self, name: &str) -> &mut Self {
        let facts = self.volumes[name].clone();
        self.event(WorldEvent::Volume(name.into(), facts))
    }
}

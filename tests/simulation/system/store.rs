//! The API server: objects with their preconditions, and the changes that watches bring.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::Rc;
use std::time::Duration;

use baton::cluster::tyjob::{RawTyJob, job_facts};
use baton::contract::gang::{Committed, GangId};
use baton::contract::inventory::Device;
use baton::contract::tyjob::{TyJob, condition};
use baton::contract::{AgentStatus, LockRead, PodKey, PodRef, PodUid, key};
use baton::decide::controller::{ControllerReport, ShownJob};
use baton::decide::core::rules::Annotations;
use baton::decide::core::{JobScheduleStatus, JobWriteResult};
use baton::decide::pod::{AssignmentText, Deletion, HandoffPod};
use baton::decide::scheduler::{BindResult, LockResult, PodGroupWrite};
use baton::decide::tyjob::placement::{JobFacts, JobIdentity};
use baton::decide::world::gangs::PodGroupFacts;
use baton::decide::world::{NodeFacts, PodFacts};
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

/// A TYJob, and what its scheduler reads of it.
#[derive(Debug)]
pub struct StoredJob {
    pub job: TyJob,
    pub facts: JobFacts,
}

/// One change of an object. The version of a pod is the number of its change.
#[derive(Debug, Clone)]
pub enum Change {
    Pod(Rc<PodFacts>, u64),
    PodGone(Rc<PodFacts>),
    Node(Rc<NodeFacts>),
    NodeGone(Box<str>),
    Devices(Rc<Device>),
    DevicesGone(Box<str>),
    Agent(Box<str>, Rc<AgentStatus>, Timestamp, u64),
    AgentGone(Box<str>),
    Group(Rc<PodGroupFacts>),
    GroupGone(Rc<PodGroupFacts>),
    Job(Rc<StoredJob>),
    JobGone(Rc<StoredJob>),
}

/// Kinds of objects, in the order in which lists show them: [`Change::object`].
pub const NODES: usize = 0;
pub const JOBS: usize = 4;
pub const PODS: usize = 5;
pub const KINDS: usize = 6;

impl Change {
    /// Kind, namespace, name and uid: the kinds in the order in which a list shows them.
    fn object(&self) -> (usize, &str, &str, &str) {
        match self {
            Self::Node(node) => (NODES, "", &node.name, ""),
            Self::NodeGone(node) => (NODES, "", node, ""),
            Self::Devices(device) => (1, "", device.metadata.name.as_deref().unwrap_or_default(), ""),
            Self::DevicesGone(node) => (1, "", node, ""),
            Self::Agent(node, ..) | Self::AgentGone(node) => (2, "", node, ""),
            Self::Group(group) | Self::GroupGone(group) => (3, "", group.gang.name(), ""),
            Self::Job(job) | Self::JobGone(job) => (JOBS, "", &job.facts.job.key.name, ""),
            Self::Pod(pod, _) | Self::PodGone(pod) => {
                let of = &pod.handoff.pod;
                (PODS, &of.key.namespace, &of.key.name, of.uid.as_str())
            }
        }
    }

    /// That the object is gone.
    fn gone(&self) -> Self {
        match self {
            Self::Node(node) => Self::NodeGone(node.name.clone()),
            Self::Devices(device) => Self::DevicesGone(device.metadata.name.as_deref().unwrap_or_default().into()),
            Self::Agent(node, ..) => Self::AgentGone(node.clone()),
            Self::Group(group) => Self::GroupGone(group.clone()),
            Self::Job(job) => Self::JobGone(job.clone()),
            Self::Pod(pod, _) => Self::PodGone(pod.clone()),
            gone => gone.clone(),
        }
    }

    pub fn is_gone(&self) -> bool {
        matches!(
            self,
            Self::PodGone(_)
                | Self::NodeGone(_)
                | Self::DevicesGone(_)
                | Self::AgentGone(_)
                | Self::GroupGone(_)
                | Self::JobGone(_)
        )
    }
}

/// A compare-and-swap of a node's lock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Swap {
    pub node: Box<str>,
    pub old: Option<Box<str>>,
    pub new: Option<Box<str>>,
}

/// How far a process follows what has changed, by kind: each kind has a watch of its own, and none waits for another.
#[derive(Debug, Default)]
pub struct Watches([usize; KINDS]);

impl Watches {
    /// It has lists of all kinds, as they were after so many changes.
    pub fn listed(&mut self, at: usize) {
        self.0 = [at; KINDS];
    }

    /// What comes until now, kind by kind; one of them may be `behind`. `lists` come in place of the watches: what was known, what of it
    /// is gone, and then what is new, as `cluster::feed` has it; they are old only by the time that they take.
    pub fn follow(&mut self, store: &Store, lists: Option<Duration>, behind: Option<(usize, usize)>) -> Vec<Change> {
        let mut changes = Vec::new();
        let oldest = lists.map_or(0, |now| store.listed(now));
        for (kind, cursor) in self.0.iter_mut().enumerate() {
            let less = behind.filter(|(of, _)| *of == kind).map_or(0, |(_, less)| less);
            let from = *cursor;
            *cursor = store.end().saturating_sub(less).max(oldest).max(from);
            if lists.is_some() {
                let (known, now) = (store.state(from, kind), store.state(*cursor, kind));
                let gone = known.iter().filter(|(object, _)| !now.contains_key(*object));
                let (old, new): (Vec<_>, Vec<_>) = now.iter().partition(|(object, _)| known.contains_key(*object));
                changes.extend(old.into_iter().map(|(_, change)| (*change).clone()));
                changes.extend(gone.map(|(_, change)| change.gone()));
                changes.extend(new.into_iter().map(|(_, change)| (*change).clone()));
            } else {
                let of_kind = store.between(from, *cursor).iter().filter(|change| change.object().0 == kind);
                changes.extend(of_kind.cloned());
            }
        }
        changes
    }
}

/// The objects, and all that ever changed.
#[derive(Default)]
pub struct Store {
    pods: BTreeMap<PodKey, (Rc<PodFacts>, u64)>,
    nodes: BTreeMap<Box<str>, Rc<NodeFacts>>,
    devices: BTreeMap<Box<str>, Rc<Device>>,
    agents: BTreeMap<Box<str>, Rc<AgentStatus>>,
    groups: BTreeMap<GangId, Rc<PodGroupFacts>>,
    jobs: BTreeMap<PodKey, Rc<StoredJob>>,
    /// Of the schedulers and of the controllers.
    pub leases: [Option<Lease>; 2],
    versions: u64,
    log: Vec<Change>,
    is_new: bool,
    /// The lengths that the log had a moment ago.
    ends: VecDeque<(Duration, usize)>,
}

/// A list is with its reader after this time at the latest.
const UNDER_WAY: Duration = Duration::from_secs(2);

impl Store {
    fn publish(&mut self, change: Change) {
        self.log.push(change);
        self.is_new = true;
    }

    fn next_version(&mut self) -> u64 {
        self.versions += 1;
        self.versions
    }

    /// Whether anything has changed since the last call.
    pub fn take_news(&mut self, now: Duration) -> bool {
        let is_new = std::mem::take(&mut self.is_new);
        if is_new {
            self.ends.push_back((now, self.log.len()));
            self.ends.retain(|(at, _)| now < *at + UNDER_WAY);
        }
        is_new
    }

    /// How many changes a list had that was made a moment ago: it is one of the latest state, and takes its time to its reader.
    pub fn listed(&self, now: Duration) -> usize {
        let since = self.ends.iter().filter(|(at, _)| now < *at + UNDER_WAY);
        since.map(|(_, end)| *end).next().unwrap_or(self.log.len()).max(1)
    }

    /// How far the changes go.
    pub fn end(&self) -> usize {
        self.log.len()
    }

    /// The changes from a place to another.
    pub fn between(&self, from: usize, to: usize) -> &[Change] {
        &self.log[from.min(to)..to]
    }

    fn state(&self, at: usize, kind: usize) -> BTreeMap<(usize, &str, &str, &str), &Change> {
        let mut state = BTreeMap::new();
        for change in self.log[..at].iter().filter(|change| change.object().0 == kind) {
            if change.is_gone() {
                state.remove(&change.object());
            } else {
                state.insert(change.object(), change);
            }
        }
        state
    }

    /// A list as it was after so many changes.
    pub fn list(&self, at: usize) -> Vec<Change> {
        (0..KINDS).flat_map(|kind| self.state(at, kind).into_values().cloned()).collect()
    }

    pub fn pods(&self) -> impl Iterator<Item = &PodFacts> {
        self.pods.values().map(|(pod, _)| &**pod)
    }

    pub fn pod(&self, key: &PodKey) -> Option<&PodFacts> {
        self.pods.get(key).map(|(pod, _)| &**pod)
    }

    /// The pod of a name, and its version.
    pub fn versioned(&self, key: &PodKey) -> Option<(&PodFacts, u64)> {
        self.pods.get(key).map(|(pod, version)| (&**pod, *version))
    }

    pub fn of(&self, pod: &PodRef) -> Option<&PodFacts> {
        self.pod(&pod.key).filter(|found| found.handoff.pod.uid == pod.uid)
    }

    pub fn handoff(&self, key: &PodKey) -> Option<HandoffPod> {
        self.pod(key).map(|pod| pod.handoff.clone())
    }

    pub fn nodes(&self) -> impl Iterator<Item = &NodeFacts> {
        self.nodes.values().map(|node| &**node)
    }

    pub fn has_node(&self, name: &str) -> bool {
        self.nodes.contains_key(name)
    }

    pub fn is_unlocked(&self) -> bool {
        self.nodes().all(|node| node.lock.is_none())
    }

    pub fn lock(&self, node: &str) -> LockRead {
        LockRead::parse(self.nodes.get(node).and_then(|node| node.lock.as_deref()))
    }

    /// Stores a pod as it is now.
    pub fn put(&mut self, pod: PodFacts) {
        let (pod, version) = (Rc::new(pod), self.next_version());
        self.pods.insert(pod.handoff.pod.key.clone(), (pod.clone(), version));
        self.publish(Change::Pod(pod, version));
    }

    /// Changes the pod of this uid, where it is still there.
    pub fn change(&mut self, pod: &PodRef, change: impl FnOnce(&mut PodFacts)) -> bool {
        let Some(mut facts) = self.of(pod).cloned() else { return false };
        change(&mut facts);
        self.put(facts);
        true
    }

    pub fn remove(&mut self, pod: &PodRef) {
        if self.of(pod).is_some()
            && let Some((gone, _)) = self.pods.remove(&pod.key)
        {
            self.publish(Change::PodGone(gone));
        }
    }

    /// DELETE: a pod without a node goes at once, any other once its kubelet has stopped it.
    pub fn delete(&mut self, key: &PodKey, uid: Option<&PodUid>, wall: Timestamp) -> bool {
        let Some(facts) = self.pod(key).filter(|pod| uid.is_none_or(|uid| pod.handoff.pod.uid == *uid)) else {
            return false;
        };
        let pod = facts.handoff.pod.clone();
        if facts.handoff.node.is_none() || facts.handoff.phase.is_terminal() {
            self.remove(&pod);
        } else if facts.handoff.deleting.is_none() {
            let deletion = Deletion { at: wall + jiff::SignedDuration::from_secs(30), grace_seconds: 30 };
            self.change(&pod, |facts| facts.handoff.deleting = Some(deletion));
        }
        true
    }

    pub fn node(&mut self, facts: NodeFacts) {
        let facts = Rc::new(facts);
        self.nodes.insert(facts.name.clone(), facts.clone());
        self.publish(Change::Node(facts));
    }

    pub fn change_node(&mut self, name: &str, change: impl FnOnce(&mut NodeFacts)) {
        let Some(node) = self.nodes.get(name) else { return };
        let mut facts = (**node).clone();
        change(&mut facts);
        self.node(facts);
    }

    /// The Node is deleted, and with it what it owns.
    pub fn remove_node(&mut self, name: &str) {
        self.nodes.remove(name);
        self.devices.remove(name);
        self.agents.remove(name);
        self.publish(Change::NodeGone(name.into()));
        self.publish(Change::DevicesGone(name.into()));
        self.publish(Change::AgentGone(name.into()));
    }

    /// The Device object of a node, where it says something new.
    pub fn report_devices(&mut self, node: &str, device: &Device) {
        let stands = self.devices.get(node);
        if self.has_node(node) && stands.is_none_or(|stands| stands.spec.devices != device.spec.devices) {
            let mut device = device.clone();
            device.metadata.annotations = stands.and_then(|stands| stands.metadata.annotations.clone());
            self.put_devices(node, device);
        }
    }

    /// A person cordons devices of a node, or takes all cordons away.
    pub fn cordon_devices(&mut self, node: &str, text: Option<String>) {
        let Some(stands) = self.devices.get(node) else { return };
        let mut device = (**stands).clone();
        device.metadata.annotations = text.map(|text| [(key::CORDONED.to_owned(), text)].into());
        self.put_devices(node, device);
    }

    fn put_devices(&mut self, node: &str, device: Device) {
        let device = Rc::new(device);
        self.devices.insert(node.into(), device.clone());
        self.publish(Change::Devices(device));
    }

    /// A node daemon renews its Lease.
    pub fn beat(&mut self, node: &str, status: AgentStatus, wall: Timestamp) {
        if !self.has_node(node) {
            return;
        }
        let (status, version) = (Rc::new(status), self.next_version());
        self.agents.insert(node.into(), status.clone());
        self.publish(Change::Agent(node.into(), status, wall, version));
    }

    /// Pods of a node whose daemon says what they hold.
    pub fn excepted(&self, node: &str) -> BTreeSet<PodUid> {
        let exceptions = self.agents.get(node).and_then(|status| status.exceptions.as_ref());
        exceptions.into_iter().flatten().map(|(uid, _)| uid.clone()).collect()
    }

    pub fn put_group(&mut self, mut group: PodGroupFacts) {
        group.version = self.next_version().to_string().into();
        let group = Rc::new(group);
        self.groups.insert(group.gang.clone(), group.clone());
        self.publish(Change::Group(group));
    }

    /// The status of a PodGroup, unless it has changed.
    pub fn write_group(&mut self, write: &PodGroupWrite) -> bool {
        let Some(group) = self.groups.get(&write.gang).filter(|group| group.version == write.version) else {
            return false;
        };
        self.put_group(PodGroupFacts { status: write.status.clone(), ..(**group).clone() });
        true
    }

    pub fn job(&self, key: &PodKey) -> Option<&TyJob> {
        self.jobs.get(key).map(|stored| &stored.job)
    }

    pub fn put_job(&mut self, mut job: TyJob) {
        job.metadata.resource_version = Some(self.next_version().to_string());
        self.store_job(job);
    }

    fn store_job(&mut self, job: TyJob) {
        let facts = job_facts(raw(&job)).unwrap();
        let job = Rc::new(StoredJob { job, facts });
        self.jobs.insert(job.facts.job.key.clone(), job.clone());
        self.publish(Change::Job(job));
    }

    /// Changes a TYJob that is still as it was read.
    pub fn write_job(&mut self, read: &TyJob, is_blind: bool, change: impl FnOnce(&mut TyJob)) -> ControllerReport {
        let Some(stored) = self.jobs.get(&job_key(read)) else { return ControllerReport::Gone };
        if stored.job.metadata.resource_version != read.metadata.resource_version && !is_blind {
            return ControllerReport::Conflict;
        }
        let mut job = stored.job.clone();
        change(&mut job);
        job.metadata.resource_version = Some(self.next_version().to_string());
        let shown = Box::new(shown(&job));
        if job.metadata.deletion_timestamp.is_some() && job.metadata.finalizers.iter().flatten().next().is_none() {
            self.drop_job(&job_key(read));
        } else {
            self.store_job(job);
        }
        ControllerReport::Written(shown)
    }

    /// The scheduler's half of a status. Without a version it is written whatever stands there.
    pub fn write_places(&mut self, job: &JobIdentity, version: u64, status: &JobScheduleStatus) -> JobWriteResult {
        let Some(stored) = self.jobs.get(&job.key) else { return JobWriteResult::Gone };
        if version > 0 && stored.facts.version != version {
            return JobWriteResult::Stale;
        }
        let mut job = stored.job.clone();
        let half = job.status.get_or_insert_default();
        (half.schedule_state, half.allocations) = (Some(status.state), status.allocations.clone());
        half.conditions.retain(|found| found.type_ != condition::SCHEDULED);
        half.conditions.push(Condition {
            type_: condition::SCHEDULED.to_owned(),
            status: if status.condition.holds { "True" } else { "False" }.to_owned(),
            reason: status.condition.reason.to_string(),
            message: status.condition.message.to_string(),
            last_transition_time: Time(status.condition.since),
            observed_generation: None,
        });
        self.put_job(job);
        JobWriteResult::Done(self.versions)
    }

    /// DELETE of a TYJob: it goes once its finalizer has.
    pub fn delete_job(&mut self, key: &PodKey, wall: Timestamp) {
        let Some(stored) = self.jobs.get(key) else { return };
        if stored.job.metadata.finalizers.iter().flatten().next().is_none() {
            return self.drop_job(key);
        }
        let mut job = stored.job.clone();
        job.metadata.deletion_timestamp.get_or_insert(Time(wall));
        self.put_job(job);
    }

    fn drop_job(&mut self, key: &PodKey) {
        if let Some(job) = self.jobs.remove(key) {
            self.publish(Change::JobGone(job));
        }
    }

    /// PUT of a Lease; `None` is a conflict. Without `version` whatever stands there is overwritten.
    pub fn put_lease(&mut self, which: usize, mut lease: Lease, version: Option<&str>) -> Option<String> {
        let stands = self.leases[which].as_ref().and_then(|lease| lease.metadata.resource_version.as_deref());
        if stands != version {
            return None;
        }
        let version = self.next_version().to_string();
        lease.metadata.resource_version = Some(version.clone());
        self.leases[which] = Some(lease);
        Some(version)
    }

    /// The lock, by JSON Patch. `blind` leaves the test out.
    pub fn swap(&mut self, swap: &Swap, blind: bool) -> LockResult {
        let Some(node) = self.nodes.get(&swap.node) else { return LockResult::NodeGone };
        let stands = node.lock.clone();
        if stands == swap.new {
            return LockResult::Done;
        }
        if stands != swap.old && !blind {
            return LockResult::Contended(LockRead::parse(stands.as_deref()));
        }
        let new = swap.new.clone();
        self.change_node(&swap.node, |node| node.lock = new);
        LockResult::Done
    }

    /// POST of a Binding. Without `uid` it goes to whatever pod has the name.
    pub fn bind(&mut self, pod: &PodRef, uid: bool, node: &str, annotations: &Annotations) -> BindResult {
        let Some(facts) = self.pod(&pod.key) else { return BindResult::NotFound };
        if uid && facts.handoff.pod.uid != pod.uid || facts.handoff.node.is_some() || facts.handoff.deleting.is_some() {
            return BindResult::Conflict("409".into());
        }
        let mut facts = facts.clone();
        let of = |key: &str| annotations.get(key).map(Into::into);
        facts.handoff.node = Some(node.into());
        facts.handoff.scheduled_condition = true;
        facts.handoff.assignment = AssignmentText {
            device_allocated: of(key::DEVICE_ALLOCATED),
            container_devices: of(key::CONTAINER_DEVICES),
            bind_timestamp: of(key::BIND_TIMESTAMP),
            committed: annotations.get(key::GANG_COMMITTED).and_then(|text| Committed::parse(text).ok()),
            ..facts.handoff.assignment
        };
        self.put(facts);
        BindResult::Done
    }
}

/// The object as a controller reads it.
pub fn shown(job: &TyJob) -> ShownJob {
    raw(job).shown().unwrap()
}

/// The object as it is on the wire.
fn raw(job: &TyJob) -> RawTyJob {
    serde_json::from_value(serde_json::to_value(job).unwrap()).unwrap()
}

pub fn job_key(job: &TyJob) -> PodKey {
    let word = |text: &Option<String>| text.clone().unwrap_or_default();
    PodKey::new(&word(&job.metadata.namespace), &word(&job.metadata.name))
}

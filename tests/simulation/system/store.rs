//! The API server: objects with their preconditions, and the changes that watches bring.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use baton::contract::gang::Committed;
use baton::contract::{AgentStatus, LockRead, PodKey, PodRef, PodUid, key};
use baton::decide::pod::{AssignmentText, Deletion, HandoffPod};
use baton::decide::scheduler::rules::Annotations;
use baton::decide::scheduler::{BindResult, LockResult};
use baton::decide::world::{NodeFacts, PodFacts};
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;

/// One change of an object.
#[derive(Debug, Clone)]
pub enum Change {
    Pod(Rc<PodFacts>),
    PodGone(Rc<PodFacts>),
    Node(Rc<NodeFacts>),
    Agent(Box<str>, Rc<AgentStatus>, Timestamp, u64),
}

/// A compare-and-swap of a node's lock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Swap {
    pub node: Box<str>,
    pub old: Option<Box<str>>,
    pub new: Option<Box<str>>,
}

/// The objects, and all that ever changed.
#[derive(Default)]
pub struct Store {
    pods: BTreeMap<PodKey, Rc<PodFacts>>,
    nodes: BTreeMap<Box<str>, Rc<NodeFacts>>,
    agents: BTreeMap<Box<str>, Change>,
    pub lease: Option<Lease>,
    version: u64,
    log: Vec<Change>,
    is_new: bool,
}

impl Store {
    fn tell(&mut self, change: Change) {
        self.log.push(change);
        self.is_new = true;
    }

    /// Whether anything has changed since the last call.
    pub fn take_news(&mut self) -> bool {
        std::mem::take(&mut self.is_new)
    }

    /// How far the changes go.
    pub fn end(&self) -> usize {
        self.log.len()
    }

    /// The changes from a place on.
    pub fn since(&self, from: usize) -> Vec<Change> {
        self.log[from..].to_vec()
    }

    /// A list as it was after so many changes.
    pub fn list(&self, at: usize) -> Vec<Change> {
        let (mut pods, mut nodes, mut agents) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        for change in &self.log[..at] {
            match change {
                Change::Pod(pod) => {
                    pods.insert(&pod.handoff.pod.key, change);
                }
                Change::PodGone(pod) => {
                    pods.remove(&pod.handoff.pod.key);
                }
                Change::Node(node) => {
                    nodes.insert(&node.name, change);
                }
                Change::Agent(node, ..) => {
                    agents.insert(node, change);
                }
            }
        }
        nodes.into_values().chain(agents.into_values()).chain(pods.into_values()).cloned().collect()
    }

    pub fn pods(&self) -> impl Iterator<Item = &PodFacts> {
        self.pods.values().map(|pod| &**pod)
    }

    pub fn pod(&self, key: &PodKey) -> Option<&PodFacts> {
        self.pods.get(key).map(|pod| &**pod)
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

    pub fn is_unlocked(&self) -> bool {
        self.nodes().all(|node| node.lock.is_none())
    }

    pub fn lock(&self, node: &str) -> LockRead {
        LockRead::parse(self.nodes[node].lock.as_deref())
    }

    /// Stores a pod as it is now.
    pub fn put(&mut self, pod: PodFacts) {
        let pod = Rc::new(pod);
        self.pods.insert(pod.handoff.pod.key.clone(), pod.clone());
        self.tell(Change::Pod(pod));
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
            && let Some(gone) = self.pods.remove(&pod.key)
        {
            self.tell(Change::PodGone(gone));
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
        self.tell(Change::Node(facts));
    }

    pub fn change_node(&mut self, name: &str, change: impl FnOnce(&mut NodeFacts)) {
        let mut facts = (*self.nodes[name]).clone();
        change(&mut facts);
        self.node(facts);
    }

    /// A node daemon renews its Lease.
    pub fn beat(&mut self, node: &str, status: AgentStatus, wall: Timestamp) {
        self.version += 1;
        let change = Change::Agent(node.into(), Rc::new(status), wall, self.version);
        self.agents.insert(node.into(), change.clone());
        self.tell(change);
    }

    /// Pods of a node whose daemon says what they hold.
    pub fn excepted(&self, node: &str) -> BTreeSet<PodUid> {
        let Some(Change::Agent(_, status, ..)) = self.agents.get(node) else { return BTreeSet::new() };
        status.exceptions.iter().flatten().map(|(uid, _)| uid.clone()).collect()
    }

    /// PUT of the leaders' Lease; `None` is a conflict. Without `version` whatever stands there is overwritten.
    pub fn put_lease(&mut self, mut lease: Lease, version: Option<&str>) -> Option<String> {
        let stands = self.lease.as_ref().and_then(|lease| lease.metadata.resource_version.as_deref());
        if stands != version {
            return None;
        }
        self.version += 1;
        let version = self.version.to_string();
        lease.metadata.resource_version = Some(version.clone());
        self.lease = Some(lease);
        Some(version)
    }

    /// The lock, by JSON Patch. `blind` leaves the test out.
    pub fn swap(&mut self, swap: &Swap, blind: bool) -> LockResult {
        let stands = self.nodes[&swap.node].lock.clone();
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

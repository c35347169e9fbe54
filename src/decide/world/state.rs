//! The world's tables and how they are read.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use crate::contract::gang::GangId;
use crate::contract::image::ImageName;
use crate::contract::{AgentStatus, DeviceId, PodKey, PodUid, Shared};
use crate::decide::devices::{Amounts, Labels as DeviceLabels, Layout};
use crate::decide::intern::Interner;
use crate::decide::lock::{HolderState, Lookup};
use crate::decide::pod::{HandoffPod, PodContainer};
use crate::decide::world::tyjob_facts::{JobFacts, PriorityClasses};

use super::budget::BudgetFacts;
use super::capacity::Capacities;
use super::dense::Dense;
use super::finder::Finder;
use super::images::Images;
use super::journal::Journal;
use super::locked::LockedNodes;
use super::mix::Mix;
use super::node::Node;
use super::pod::{Place, Pod};
use super::resources::Resources;
use super::spec::{Labels, PodSpec};
use super::volume::{ClaimFacts, VolumeFacts, VolumePlans};
use super::{NodeId, PodId};
use crate::decide::world::gangs::{Change, GangBook, GangDefaults, GroupId};

/// Windows of observation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WorldPolicy {
    /// An agent's Lease unchanged for this long is stale. 90 s.
    pub agent_stale: Duration,
    /// What holds for gangs where nobody says anything.
    pub gangs: GangDefaults,
    /// Keep the texts of pods' assignments: an audit compares them with each other. A scheduler reads them once.
    pub keep_assignments: bool,
    /// Keep which images nodes have and pods ask for: a rule asks.
    pub images: bool,
}

impl Default for WorldPolicy {
    fn default() -> Self {
        Self {
            agent_stale: Duration::from_secs(90),
            gangs: GangDefaults::default(),
            keep_assignments: false,
            images: false,
        }
    }
}

/// The world. One writer; decisions borrow it.
#[derive(Debug, Clone, Default)]
pub struct World {
    pub(super) policy: WorldPolicy,
    pub(super) generation: u64,
    pub(super) journal: Journal,
    pub(super) next_node: u32,
    pub(super) next_pod: u64,
    /// Records of many sizes are boxed: the map's own slots stay small.
    pub(super) nodes: Dense<NodeId, Box<Node>>,
    /// Nodes that have a Node object.
    pub(super) node_objects: usize,
    pub(super) images: Images,
    pub(super) node_ids: BTreeMap<Box<str>, NodeId>,
    pub(super) pods: Dense<PodId, Box<Pod>>,
    pub(super) by_uid: Finder,
    pub(super) by_key: Finder,
    /// Bound pods by the time in their annotation.
    pub(super) by_stamp: Finder,
    pub(super) shared: SharedParts,
    /// Nodes with a lock annotation.
    pub(super) locked: LockedNodes,
    /// Placed pods with required anti-affinity: they refuse others.
    pub(super) anti: BTreeSet<PodId>,
    /// Placed pods with required affinity or preferred terms: they draw others near, or push them away.
    pub(super) drawing: BTreeSet<PodId>,
    /// Assumed pods that only have room kept for them: nominated, and not there.
    pub(super) shadows: BTreeSet<PodId>,
    /// The same by node: every filter asks for those of its node.
    pub(super) shadows_at: BTreeMap<NodeId, Vec<PodId>>,
    /// Pods whose status names a node that others leave for them.
    pub(super) nominated: BTreeSet<PodId>,
    /// What pods ask of GPUs.
    pub(super) mix: Mix,
    pub(super) namespaces: BTreeMap<Box<str>, Labels>,
    pub(super) volumes: BTreeMap<Box<str>, VolumeFacts>,
    pub(super) claims: BTreeMap<PodKey, ClaimFacts>,
    /// What pods on their way have planned for their claims, and the storage classes.
    pub(super) plans: VolumePlans,
    pub(super) capacities: Capacities,
    pub(super) budgets: BTreeMap<PodKey, BudgetFacts>,
    /// How many placed pods have each priority.
    pub(super) priorities: BTreeMap<i32, usize>,
    /// The latest deletions, oldest first.
    pub(super) deleted: VecDeque<PodUid>,
    pub(super) gangs: GangBook,
    pub(super) jobs: BTreeMap<PodKey, Shared<JobFacts>>,
    pub(super) priority_classes: PriorityClasses,
}

/// What many pods and nodes say alike.
#[derive(Debug, Clone, Default)]
pub(super) struct SharedParts {
    pub specs: Interner<PodSpec>,
    pub containers: Interner<Vec<PodContainer>>,
    pub amounts: Interner<Amounts>,
    pub device_labels: Interner<DeviceLabels>,
    pub layouts: Interner<Layout>,
    pub allocatable: Interner<Resources>,
    pub agents: Interner<AgentStatus>,
}

/// Deletions that are remembered. A lock whose holder went earlier is settled by a live read.
const DELETED: usize = 1024;

impl World {
    /// An empty world.
    pub fn new(policy: WorldPolicy) -> Self {
        Self { policy, gangs: GangBook::new(policy.gangs), ..Self::default() }
    }

    /// Rises with every change.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// Which nodes changed.
    pub fn journal(&self) -> &Journal {
        &self.journal
    }

    /// Notes a change of what decisions read of a node.
    pub(super) fn touch(&mut self, id: NodeId) {
        self.journal.note(id, self.nodes.len());
    }

    /// Nodes that have a Node object, in order of appearance.
    pub fn nodes(&self) -> impl Iterator<Item = (NodeId, &Node)> {
        self.nodes.iter().filter(|(_, node)| node.facts.is_some()).map(|(id, node)| (id, &**node))
    }

    /// How many those are.
    pub fn node_objects(&self) -> usize {
        self.node_objects
    }

    /// Bytes of an image, and how many nodes have it; `None` where no node lists it.
    pub fn image(&self, name: ImageName) -> Option<(i64, usize)> {
        self.images.find(name)
    }

    /// Every node that anything mentions.
    pub fn mentioned(&self) -> impl Iterator<Item = (NodeId, &Node)> {
        self.nodes.iter().map(|(id, node)| (id, &**node))
    }

    /// One node, if anything still mentions it.
    pub fn node(&self, id: NodeId) -> Option<&Node> {
        self.nodes.get(id).map(|node| &**node)
    }

    /// One node by name.
    pub fn node_id(&self, name: &str) -> Option<NodeId> {
        self.node_ids.get(name).copied()
    }

    /// One pod.
    pub fn pod(&self, id: PodId) -> Option<&Pod> {
        self.pods.get(id).map(|pod| &**pod)
    }

    /// One pod by uid.
    pub fn pod_id(&self, uid: &PodUid) -> Option<PodId> {
        let is_it = |id: &PodId| self.pod(*id).is_some_and(|pod| pod.facts.handoff.pod.uid == *uid);
        self.by_uid.candidates(uid).find(is_it)
    }

    /// One pod by name.
    pub fn pod_by_key(&self, key: &PodKey) -> Option<&Pod> {
        self.by_key.candidates(key).filter_map(|id| self.pod(id)).find(|pod| pod.key() == key)
    }

    /// `true` when a watch told that this very pod is gone, not long ago.
    pub fn was_deleted(&self, uid: &PodUid) -> bool {
        self.pod_id(uid).is_none() && self.deleted.contains(uid)
    }

    /// A device of this pod that is held beyond its capacity, with all pods of the node counted: somebody else was given it.
    pub fn contested_device(&self, id: PodId) -> Option<DeviceId> {
        let pod = self.pods.get(id)?;
        let (mine, node): (_, &Node) = (pod.devices.as_ref()?, self.nodes.get(pod.node()?)?);
        let others = node.pods.iter().filter(|other| **other != id).filter_map(|other| self.pods.get(*other));
        let others: Vec<_> = others.filter_map(|other| other.devices.as_ref()).collect();
        let capacity = |id: &DeviceId, name: &str| node.stock.as_ref().and_then(|stock| stock.capacity(id, name));
        let over = mine.devices().iter().find(|entry| {
            let held = others.iter().flat_map(|devices| devices.devices()).filter(|held| held.id == entry.id);
            let held: Vec<_> = held.collect();
            entry.amounts.iter().any(|(name, amount)| {
                let sum: i64 = held.iter().map(|held| held.amount(name)).sum::<i64>() + amount;
                capacity(&entry.id, name).is_some_and(|most| sum > most)
            })
        });
        over.map(|entry| entry.id.clone())
    }

    pub(super) fn remember_deletion(&mut self, uid: PodUid) {
        if self.deleted.len() == DELETED {
            self.deleted.pop_front();
        }
        self.deleted.push_back(uid);
    }

    /// Every pod.
    pub fn pods(&self) -> impl Iterator<Item = &Pod> {
        self.pods.values().map(|pod| &**pod)
    }

    /// Placed pods with required anti-affinity; those that only have room kept for them are not there.
    pub fn placed_with_anti_affinity(&self) -> impl Iterator<Item = &Pod> {
        self.anti.iter().filter(|id| !self.is_shadow(**id)).filter_map(|id| self.pod(*id))
    }

    /// The pod is assumed where it is nominated, so that others see the room that is kept for it.
    pub fn is_shadow(&self, id: PodId) -> bool {
        !self.shadows.is_empty() && self.shadows.contains(&id)
    }

    /// Pods that have room kept for them on this node.
    pub fn shadows_on(&self, node: NodeId) -> impl Iterator<Item = &Pod> {
        self.shadows_at.get(&node).into_iter().flatten().filter_map(|id| self.pod(*id))
    }

    /// Waiting pods whose status names a node that others leave for them.
    pub fn nominated(&self) -> impl Iterator<Item = &Pod> {
        self.nominated.iter().filter_map(|id| self.pod(*id)).filter(|pod| pod.place == Place::Waiting)
    }

    /// Every pod that has room kept for it.
    pub fn shadows(&self) -> impl Iterator<Item = &Pod> {
        self.shadows.iter().filter_map(|id| self.pod(*id))
    }

    /// The lowest priority of a placed pod.
    pub fn lowest_priority(&self) -> Option<i32> {
        self.priorities.keys().next().copied()
    }

    /// Placed pods with required affinity or preferred (anti-)affinity.
    pub fn placed_that_draw(&self) -> impl Iterator<Item = &Pod> {
        self.drawing.iter().filter(|id| !self.is_shadow(**id)).filter_map(|id| self.pod(*id))
    }

    /// What pods ask of GPUs.
    pub fn mix(&self) -> &Mix {
        &self.mix
    }

    /// Nodes with a lock annotation.
    pub fn locked(&self) -> impl Iterator<Item = NodeId> + '_ {
        self.locked.all()
    }

    /// Nodes with a lock that names a pod of this name, or that does not say whose it is.
    pub fn locked_for(&self, pod: &PodKey) -> impl Iterator<Item = NodeId> + '_ {
        self.locked.of(pod)
    }

    /// What the world knows of the holder of a node's lock; `None` when it is free.
    pub fn holder(&self, node: &Node, wall: jiff::Timestamp) -> Option<HolderState> {
        HolderState::of(&node.lock.read, &node.name, self, wall)
    }

    /// Every gang.
    pub fn gangs(&self) -> &GangBook {
        &self.gangs
    }

    /// Gangs that changed since the last call, by events, assumptions and their ends.
    pub fn take_changed_gangs(&mut self) -> BTreeMap<GangId, Change> {
        self.gangs.take_changed()
    }

    /// Gangs of this group count as looked at.
    pub fn settle_changed_gangs(&mut self, group: &GroupId) {
        self.gangs.settle_changed(group);
    }

    /// Labels of a namespace.
    pub fn namespace(&self, name: &str) -> Option<&Labels> {
        self.namespaces.get(name)
    }

    /// A persistent volume.
    pub fn volume(&self, name: &str) -> Option<&VolumeFacts> {
        self.volumes.get(name)
    }

    /// A claim.
    pub fn claim(&self, key: &PodKey) -> Option<&ClaimFacts> {
        self.claims.get(key)
    }
}

impl Lookup for World {
    fn by_key(&self, key: &PodKey) -> Option<&HandoffPod> {
        self.pod_by_key(key).map(|pod| &pod.facts.handoff)
    }
    fn by_bind_timestamp(&self, nanos: &str) -> Option<&HandoffPod> {
        let pods = self.by_stamp.candidates(nanos).filter_map(|id| self.pod(id)).map(|pod| &pod.facts.handoff);
        // Several pods may carry one time only by a copied annotation: the newest is meant.
        pods.filter(|pod| pod.assignment.bind_timestamp.as_deref() == Some(nanos)).last()
    }
}

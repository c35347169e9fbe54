//! The world's tables and how they are read.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use jiff::Timestamp;

use crate::devices::{HeldAmounts, Labels as DeviceLabels, Layout};
use crate::intern::Interner;
use crate::lock::{HolderState, Lookup};
use crate::pod::{HandoffPod, PodContainer};
use crate::world::tyjob_facts::{JobFacts, PriorityClasses};
use baton_contract::gang::GangId;
use baton_contract::image::ImageName;
use baton_contract::quota::{LimitRangeRules, QuotaRules};
use baton_contract::{AgentStatus, DeviceId, PodKey, PodUid, Shared};

use super::capacity::{Capacities, Storage};
use super::dense::Dense;
use super::devices::Stock;
use super::finder::{Finder, LockedNodes};
use super::journal::Journal;
use super::mix::{Mix, MixPolicy};
use super::node::{Images, Node};
use super::pod::{Place, Pod};
use super::resources::Resources;
use super::spec::{BudgetFacts, Labels, PodSpec};
use super::suspects::Suspects;
use super::volume::{ClaimFacts, ClassFacts, VolumeFacts, VolumePlan, VolumePlans};
use super::{NodeId, PodId};
use crate::world::gangs::{GangBook, GangChange, GangDefaults, GroupId};

/// Windows of observation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WorldPolicy {
    /// An agent's Lease unchanged for this long is stale. 90 s.
    pub agent_stale: Duration,
    /// What holds for gangs where neither pods nor PodGroups state anything.
    pub gangs: GangDefaults,
    /// Keep the texts of pods' assignments: an audit compares them with each other. The scheduler reads them once.
    pub keep_assignments: bool,
    /// Keep which images nodes have and pods ask for; only the rule `ImageLocality` reads them.
    pub images: bool,
    /// Learn which pods usually come; only the rule `GpuPatience` reads it.
    pub learns: bool,
    /// How that is learned.
    pub mix: MixPolicy,
}

impl Default for WorldPolicy {
    fn default() -> Self {
        Self {
            agent_stale: Duration::from_secs(90),
            gangs: GangDefaults::default(),
            keep_assignments: false,
            images: false,
            learns: false,
            mix: MixPolicy::default(),
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
    /// Nodes of the ResourceSlices of GPU drivers, by the slice's name.
    pub(super) slices: BTreeMap<Box<str>, Box<str>>,
    pub(super) pods: Dense<PodId, Box<Pod>>,
    pub(super) by_uid: Finder,
    pub(super) by_key: Finder,
    /// Bound pods by the time in their annotation.
    pub(super) by_stamp: Finder,
    pub(super) shared: SharedParts,
    /// Nodes with a lock annotation.
    pub(super) locked: LockedNodes,
    pub(super) suspects: Suspects,
    /// Placed pods with required anti-affinity: they refuse others.
    pub(super) anti: BTreeSet<PodId>,
    /// Placed pods with required affinity or preferred terms: they attract other pods, or repel them.
    pub(super) with_affinity: BTreeSet<PodId>,
    /// Assumed pods that are nominated only: their room is reserved, and they are not there.
    pub(super) nominated_reservations: BTreeSet<PodId>,
    /// The same by node: every filter looks them up.
    pub(super) nominated_by_node: BTreeMap<NodeId, Vec<PodId>>,
    /// Pods whose `status.nominatedNodeName` is set.
    pub(super) nominated: BTreeSet<PodId>,
    /// Which pods usually come.
    pub(super) mix: Mix,
    /// Pods on nodes that ask for devices.
    pub(super) device_pods: usize,
    /// Nodes that may have no use any more.
    pub(super) left: Vec<NodeId>,
    /// Nodes with devices of pods that have left before their processes.
    pub(super) leaving: BTreeSet<NodeId>,
    pub(super) namespaces: BTreeMap<Box<str>, Labels>,
    pub(super) volumes: BTreeMap<Box<str>, VolumeFacts>,
    pub(super) claims: BTreeMap<PodKey, ClaimFacts>,
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
    pub(super) quotas: BTreeMap<PodKey, Shared<QuotaRules>>,
    pub(super) limit_ranges: BTreeMap<PodKey, LimitRangeRules>,
    /// What the scheduler may not read of the two.
    pub(super) unreadable: BTreeSet<&'static str>,
    pub(super) ages: Ages,
}

/// Before these times no agent grows stale and no cordon ends: a Lease that is renewed only puts its time off.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Ages {
    pub agents: Duration,
    pub cordons: Timestamp,
}

impl Ages {
    pub fn cordon(&mut self, stock: &Stock) {
        self.cordons = stock.next_cordon_end().map_or(self.cordons, |end| self.cordons.min(end));
    }
}

/// Values that many pods and nodes have in common, each stored once.
#[derive(Debug, Clone, Default)]
pub(super) struct SharedParts {
    pub specs: Interner<PodSpec>,
    pub containers: Interner<Vec<PodContainer>>,
    pub amounts: Interner<HeldAmounts>,
    pub device_labels: Interner<DeviceLabels>,
    pub layouts: Interner<Layout>,
    pub allocatable: Interner<Resources>,
    pub agents: Interner<AgentStatus>,
}

impl SharedParts {
    /// Stores what the devices have in common with those of other nodes once. The caller counts afresh.
    pub fn store_once(&mut self, stock: &mut Stock) {
        let Self { device_labels, amounts, layouts, .. } = self;
        stock.share(|value| device_labels.intern(value), |value| amounts.intern(value), |value| layouts.intern(value));
    }
}

/// Deletions that are remembered. For a lock whose holder was deleted earlier, the holder is read live.
const DELETED: usize = 1024;

impl World {
    /// An empty world.
    pub fn new(policy: WorldPolicy) -> Self {
        Self { policy, gangs: GangBook::new(policy.gangs), mix: Mix::new(policy.mix), ..Self::default() }
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

    /// Number of Node objects.
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

    /// `true` when a watch has reported the deletion of this very pod, not long ago.
    pub fn was_deleted(&self, uid: &PodUid) -> bool {
        self.pod_id(uid).is_none() && self.deleted.contains(uid)
    }

    /// A device of this pod that is held beyond its capacity, with all pods of the node counted: another pod was given it too.
    pub fn contested_device(&self, id: PodId) -> Option<DeviceId> {
        let pod = self.pods.get(id)?;
        let node: &Node = self.nodes.get(pod.node()?)?;
        let mine = node.holding(pod)?;
        let others = node.pods.iter().filter(|other| **other != id).filter_map(|other| self.pods.get(*other));
        let others = others.filter_map(|other| node.holding(other));
        let departed = node.exceptions.departed().map(|(_, held)| held);
        let others: Vec<_> = others.chain(departed).collect();
        let capacity = |id: &DeviceId, name: &str| node.stock.as_ref().and_then(|stock| stock.capacity(id, name));
        let over = mine.devices().iter().find(|entry| {
            let held = others.iter().flat_map(|devices| devices.devices()).filter(|held| held.id == entry.id);
            let held: Vec<_> = held.collect();
            entry.amounts.iter().any(|(name, amount)| {
                let sum = held.iter().map(|held| held.amount(name)).fold(*amount, i64::saturating_add);
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

    /// Placed pods with required anti-affinity, without those that are nominated only.
    pub fn placed_with_anti_affinity(&self) -> impl Iterator<Item = &Pod> {
        self.anti.iter().filter(|id| !self.is_nominated_reservation(**id)).filter_map(|id| self.pod(*id))
    }

    /// The pod is assumed where it is nominated, so that other pods see its reserved room.
    pub fn is_nominated_reservation(&self, id: PodId) -> bool {
        !self.nominated_reservations.is_empty() && self.nominated_reservations.contains(&id)
    }

    /// Pods that are nominated only and have reserved room on this node.
    pub fn nominated_reservations_on(&self, node: NodeId) -> impl Iterator<Item = &Pod> {
        self.nominated_by_node.get(&node).into_iter().flatten().filter_map(|id| self.pod(*id))
    }

    /// Waiting pods whose `status.nominatedNodeName` is set.
    pub fn nominated(&self) -> impl Iterator<Item = &Pod> {
        self.nominated.iter().filter_map(|id| self.pod(*id)).filter(|pod| pod.place == Place::Waiting)
    }

    /// Every pod that is nominated only and has reserved room.
    pub fn nominated_reservations(&self) -> impl Iterator<Item = &Pod> {
        self.nominated_reservations.iter().filter_map(|id| self.pod(*id))
    }

    /// The lowest priority of a placed pod.
    pub fn lowest_priority(&self) -> Option<i32> {
        self.priorities.keys().next().copied()
    }

    /// Placed pods with required affinity or preferred (anti-)affinity.
    pub fn placed_with_affinity(&self) -> impl Iterator<Item = &Pod> {
        self.with_affinity.iter().filter(|id| !self.is_nominated_reservation(**id)).filter_map(|id| self.pod(*id))
    }

    /// Pods on nodes that ask for devices.
    pub fn device_pods(&self) -> usize {
        self.device_pods
    }

    /// Nodes with a lock annotation.
    pub fn locked(&self) -> impl Iterator<Item = NodeId> + '_ {
        self.locked.all()
    }

    /// Nodes with a lock that names a pod of this name, or that names no holder.
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
    pub fn take_changed_gangs(&mut self) -> BTreeMap<GangId, GangChange> {
        self.gangs.take_changed()
    }

    /// Forgets that gangs of this group changed.
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

    /// Budgets that cover this pod.
    pub fn budgets_of<'a>(&'a self, pod: &'a Pod) -> impl Iterator<Item = (&'a PodKey, &'a BudgetFacts)> {
        self.budgets.iter().filter(|(key, budget)| {
            key.namespace == pod.key().namespace
                && budget.selector.as_ref().is_some_and(|selector| selector.matches(&pod.facts.spec.labels))
        })
    }

    /// Where a volume of that many bytes can be made; `None` where every node will do: the class's provisioner is no CSI driver that
    /// publishes its capacity, or the claim names no size.
    pub fn storage_for(&self, class: &str, bytes: i64) -> Option<Storage> {
        let provisioner = &self.storage_class(class)?.provisioner;
        (bytes != 0 && self.capacities.counts(provisioner)).then(|| self.capacities.storage_for(class, bytes))
    }

    /// `true` when the capacity of that class counts.
    pub(super) fn publishes(&self, class: &str) -> bool {
        self.storage_class(class).is_some_and(|class| self.capacities.counts(&class.provisioner))
    }

    /// A storage class.
    pub fn storage_class(&self, name: &str) -> Option<&ClassFacts> {
        self.plans.classes.get(name)
    }

    /// Persistent volumes of a class, by name.
    pub fn volumes_of<'a>(&'a self, class: &'a str) -> impl Iterator<Item = (&'a str, &'a VolumeFacts)> {
        let all = self.volumes.iter().map(|(name, facts)| (&**name, facts));
        all.filter(move |(_, facts)| facts.class.as_deref() == Some(class))
    }

    /// Records what must happen to the claims of a pod that was assumed; forgotten with the assumption.
    pub fn plan_volumes(&mut self, id: PodId, plan: VolumePlan) {
        self.generation += 1;
        self.plans.plans.insert(id, plan);
    }

    /// What must happen to the claims of an assumed pod.
    pub fn volume_plan(&self, id: PodId) -> Option<&VolumePlan> {
        self.plans.plans.get(&id)
    }

    /// `true` when the plan of another pod promises the volume to one of its claims.
    pub fn is_promised(&self, volume: &str, except: PodId) -> bool {
        let others = self.plans.plans.iter().filter(|(id, _)| **id != except);
        others.flat_map(|(_, plan)| &plan.bind).any(|(_, promised)| **promised == *volume)
    }

    /// The node of another pod whose plan names the claim, and the volume that the claim gets, if one was chosen.
    pub fn planned_for(&self, claim: &PodKey, except: PodId) -> Option<(NodeId, Option<&str>)> {
        let others = self.plans.plans.iter().filter(|(id, _)| **id != except);
        let found = others.filter_map(|(id, plan)| {
            let pod = self.pod(*id).filter(|pod| pod.key().namespace == claim.namespace)?;
            let bound = plan.bind.iter().find(|(name, _)| **name == *claim.name);
            let made = plan.provision.iter().any(|provision| *provision.claim == *claim.name);
            (bound.is_some() || made).then_some(())?;
            Some((pod.node()?, bound.map(|(_, volume)| &**volume)))
        });
        found.into_iter().next()
    }

    /// A claim changed: where it shows the selected node, the provisioner has seen the plan of the pod.
    pub(super) fn claim_seen(&mut self, key: &PodKey, facts: &ClaimFacts) {
        let Some(selected) = facts.selected_node.as_deref() else { return };
        let (pods, nodes) = (&self.pods, &self.nodes);
        for (id, plan) in &mut self.plans.plans {
            let Some(pod) = pods.get(*id).filter(|pod| pod.key().namespace == key.namespace) else { continue };
            let here = pod.node().and_then(|node| nodes.get(node)).is_some_and(|node| *node.name == *selected);
            for provision in plan.provision.iter_mut().filter(|provision| here && *provision.claim == *key.name) {
                provision.seen = true;
            }
        }
    }
}

impl Lookup for World {
    fn by_key(&self, key: &PodKey) -> Option<&HandoffPod> {
        self.pod_by_key(key).map(|pod| &pod.facts.handoff)
    }
    fn by_bind_timestamp(&self, nanos: &str) -> Option<&HandoffPod> {
        let pods = self.by_stamp.candidates(nanos).filter_map(|id| self.pod(id)).map(|pod| &pod.facts.handoff);
        // Only a copied annotation makes several pods carry one time: the newest counts.
        pods.filter(|pod| pod.assignment.bind_timestamp.as_deref() == Some(nanos)).last()
    }
}

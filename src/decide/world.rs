//! The one world of the scheduler: nodes, locks, agents, devices and pods in compact own records, fed by events.
//!
//! | Owner | Owns |
//! |---|---|
//! | `Nodes` | nodes by name, with their locks, agents, Device objects, images and slices; which of them changed |
//! | `Pods` | pods by uid, name and bind time; reserved places; late deletions |
//! | `Placed` | counts over the pods that have room on a node |
//! | `SharedParts` | values that many pods and nodes have in common |
//! | `VolumeTable` | volumes, claims, classes, storage, plans for claims |
//! | `GangBook` | gangs, groups of gangs, PodGroups |
//! | `Jobs` | TYJobs and PriorityClasses |
//! | `Quotas` | what namespaces may use |
//! | `Mix` | which pods usually come |
//!
//! What concerns several of them is a function of `World`: folding events in (`feed`), a node's accounts (`reserve`), what pods
//! leave behind (`leaving`).
//!
//! The annotation `device-allocated` of bound pods is a promise, whichever scheduler bound them; where the node's daemon has handed out
//! something else, its word counts (`holders`). Every change raises the generation, so a
//! decision names the world that it was made on.

mod admission;
pub mod agent;
pub mod capacity;
mod changes;
mod confinement;
mod dense;
mod device_state;
pub mod devices;
pub mod event;
mod feed;
mod finder;
pub mod gangs;
mod gathering;
pub mod holders;
pub mod journal;
mod leaving;
pub mod mix;
pub mod node;
mod nodes;
mod offered;
mod placed;
pub mod pod;
mod pods;
mod quotas;
mod reserve;
pub mod resources;
mod shared;
pub mod spec;
mod suspects;
pub mod tyjob_facts;
mod tyjobs;
pub mod volume;
mod volumes;

pub use agent::Agent;
pub use capacity::CapacityFacts;
pub use changes::{Changes, Wake};
pub use confinement::{Confinement, MeasuredDomain};
pub use dense::{Dense, DenseId, NodeId, PodId};
pub use device_state::DeviceState;
pub use devices::{DeviceTotals, KnownChoices, Stock, Suspect};
pub use event::WorldEvent;
pub use gangs::GroupTopology;
pub use holders::{has_left, holds_otherwise, still_used, without_devices};
pub use journal::Journal;
pub use mix::{Mix, MixPolicy};
pub use node::{LockSeen, Node, NodeFacts, SliceFacts};
pub use offered::offered;
pub use pod::{Place, Pod, PodFacts};
pub use resources::{Rated, RequestParts, Resources, Scalars};
pub use spec::{BudgetFacts, JobClaim, PodSpec, Qos};
pub use volume::{AccessModes, ClaimFacts, ClassFacts, VolumeFacts, VolumePlan};
pub use volumes::VolumeTable;

use std::collections::BTreeMap;
use std::time::Duration;

use crate::lock::{HolderState, LockDelay, Lookup};
use crate::patience::{Sample, WorthTables};
use crate::pod::HandoffPod;
use crate::world::gangs::{GangBook, GangChange, GangDefaults, GroupId};
use baton_contract::gang::GangId;
use baton_contract::image::ImageName;
use baton_contract::quota::{PodAsk, QuotaRules};
use baton_contract::{DeviceId, PodKey, PodUid, Shared};

use self::nodes::Nodes;
use self::placed::Placed;
use self::pods::Pods;
use self::quotas::Quotas;
use self::shared::SharedParts;
use self::spec::Labels;
use self::tyjob_facts::JobFacts;
use self::tyjobs::Jobs;

/// Windows of observation.
#[derive(Debug, Clone, PartialEq, Eq)]
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
    policy: WorldPolicy,
    generation: u64,
    nodes: Nodes,
    pods: Pods,
    placed: Placed,
    shared: SharedParts,
    volumes: VolumeTable,
    gangs: GangBook,
    jobs: Jobs,
    quotas: Quotas,
    mix: Mix,
    namespaces: BTreeMap<Box<str>, Labels>,
    budgets: BTreeMap<PodKey, BudgetFacts>,
}

impl World {
    /// An empty world.
    pub fn new(policy: WorldPolicy) -> Self {
        let (gangs, mix) = (GangBook::new(policy.gangs.clone()), Mix::new(policy.mix));
        Self { policy, gangs, mix, ..Self::default() }
    }

    /// Rises with every change.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// Which nodes changed.
    pub fn journal(&self) -> &Journal {
        self.nodes.journal()
    }

    /// Nodes that have a Node object, in order of appearance.
    pub fn nodes(&self) -> impl Iterator<Item = (NodeId, &Node)> {
        self.nodes.iter().filter(|(_, node)| node.facts.is_some())
    }

    /// Number of Node objects.
    pub fn node_objects(&self) -> usize {
        self.nodes.objects()
    }

    /// Bytes of an image, and how many nodes have it; `None` where no node lists it.
    pub fn image(&self, name: ImageName) -> Option<(i64, usize)> {
        self.nodes.image(name)
    }

    /// Every node that anything mentions.
    pub fn mentioned(&self) -> impl Iterator<Item = (NodeId, &Node)> {
        self.nodes.iter()
    }

    /// One node, if anything still mentions it.
    pub fn node(&self, id: NodeId) -> Option<&Node> {
        self.nodes.get(id)
    }

    /// One node by name.
    pub fn node_id(&self, name: &str) -> Option<NodeId> {
        self.nodes.id(name)
    }

    /// One pod.
    pub fn pod(&self, id: PodId) -> Option<&Pod> {
        self.pods.get(id)
    }

    /// One pod by uid.
    pub fn pod_id(&self, uid: &PodUid) -> Option<PodId> {
        self.pods.id(uid)
    }

    /// One pod by name.
    pub fn pod_by_key(&self, key: &PodKey) -> Option<&Pod> {
        self.pods.by_key(key)
    }

    /// `true` when a watch has reported the deletion of this very pod, not long ago.
    pub fn was_deleted(&self, uid: &PodUid) -> bool {
        self.pods.was_deleted(uid)
    }

    /// A device of this pod that is held beyond its capacity, with all pods of the node counted: another pod was given it too.
    pub fn contested_device(&self, id: PodId) -> Option<DeviceId> {
        let pod = self.pods.get(id)?;
        let node = self.nodes.get(pod.node()?)?;
        let mine = node.holding(pod)?;
        let others = node.pods.iter().filter(|other| **other != id).filter_map(|other| self.pods.get(*other));
        let others = others.filter_map(|other| node.holding(other));
        let departed = node.exceptions.departed().map(|(_, held)| held);
        let others: Vec<_> = others.chain(departed).collect();
        let capacity = |id: &DeviceId, name: &str| node.stock.as_ref().and_then(|stock| stock.capacity(id, name));
        let over = mine.devices().iter().find(|entry| {
            let held = others.iter().flat_map(|devices| devices.devices()).filter(|held| held.id == entry.id);
            let held: Vec<_> = held.collect();
            // Most often there is no other one, and nothing has to be looked up.
            !held.is_empty()
                && entry.amounts.iter().any(|(name, amount)| {
                    let sum = held.iter().map(|held| held.amount(name)).fold(*amount, i64::saturating_add);
                    capacity(&entry.id, name).is_some_and(|most| sum > most)
                })
        });
        over.map(|entry| entry.id.clone())
    }

    /// Every pod.
    pub fn pods(&self) -> impl Iterator<Item = &Pod> {
        self.pods.iter()
    }

    /// Placed pods with required anti-affinity, without those that are nominated only.
    pub fn placed_with_anti_affinity(&self) -> impl Iterator<Item = &Pod> {
        self.placed.refusing().filter_map(|id| self.pod(id))
    }

    /// The pod is assumed where it is nominated, so that other pods see its reserved room.
    pub fn is_nominated_reservation(&self, id: PodId) -> bool {
        self.placed.is_reserved(id)
    }

    /// Pods that are nominated only and have reserved room on this node.
    pub fn nominated_reservations_on(&self, node: NodeId) -> impl Iterator<Item = &Pod> {
        self.placed.reserved_on(node).filter_map(|id| self.pod(id))
    }

    /// Waiting pods whose `status.nominatedNodeName` is set.
    pub fn nominated(&self) -> impl Iterator<Item = &Pod> {
        self.pods.nominated()
    }

    /// Every pod that is nominated only and has reserved room.
    pub fn nominated_reservations(&self) -> impl Iterator<Item = &Pod> {
        self.placed.reserved().filter_map(|id| self.pod(id))
    }

    /// The lowest priority of a placed pod.
    pub fn lowest_priority(&self) -> Option<i32> {
        self.placed.lowest_priority()
    }

    /// Placed pods with required affinity or preferred (anti-)affinity.
    pub fn placed_with_affinity(&self) -> impl Iterator<Item = &Pod> {
        self.placed.attracting().filter_map(|id| self.pod(id))
    }

    /// Pods on nodes.
    pub fn placed_pods(&self) -> usize {
        self.placed.count()
    }

    /// Terms of pods on nodes that refuse, attract or repel other pods.
    pub fn placed_terms(&self) -> usize {
        self.placed.terms()
    }

    /// Pods on nodes that ask for devices.
    pub fn device_pods(&self) -> usize {
        self.placed.with_devices()
    }

    /// Nodes with a lock annotation.
    pub fn locked(&self) -> impl Iterator<Item = NodeId> + '_ {
        self.nodes.locked().all()
    }

    /// Nodes with a lock that names a pod of this name, or that names no holder.
    pub fn locked_for(&self, pod: &PodKey) -> impl Iterator<Item = NodeId> + '_ {
        self.nodes.locked().of(pod)
    }

    /// What the world knows of the holder of a node's lock; `None` when it is free.
    pub fn holder(&self, node: &Node, wall: jiff::Timestamp) -> Option<HolderState> {
        HolderState::of(&node.lock.read, &node.name, self, wall)
    }

    /// The pod whose lock it is: by the time of its bind, or else by the name in the value.
    pub fn lock_pod(&self, node: &Node, wall: jiff::Timestamp) -> Option<PodKey> {
        match self.holder(node, wall) {
            Some(HolderState::Unbound(pod) | HolderState::BoundHere(pod)) => Some(pod.key),
            _ => node.lock.read.named().cloned(),
        }
    }

    /// The wait of the pod that is bound to the node, holds its lock and does not have its devices.
    pub fn holder_delay<'a>(&'a self, node: &'a Node, wall: jiff::Timestamp) -> Option<LockDelay<'a>> {
        let Some(HolderState::BoundHere(holder)) = self.holder(node, wall) else { return None };
        node.lock_delay(&self.pod_by_key(&holder.key)?.facts.handoff, wall)
    }

    /// The pod that holds a node's lock, and runs without its devices by the daemon's word: it gets none under this lock.
    pub fn bare_holder(&self, node: &Node, wall: jiff::Timestamp) -> Option<&Pod> {
        let pod = self.pod_by_key(&self.lock_pod(node, wall)?)?;
        node.said_of(pod).filter(|held| held.devices().is_empty()).map(|_| pod)
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

    /// One job.
    pub fn job(&self, key: &PodKey) -> Option<&Shared<JobFacts>> {
        self.jobs.get(key)
    }

    /// Every job, by namespace and name.
    pub fn jobs(&self) -> impl Iterator<Item = (&PodKey, &Shared<JobFacts>)> {
        self.jobs.iter()
    }

    /// The priority that admission gives a pod which names this class and these values itself, and whether it never
    /// preempts. The error is what admission would answer.
    pub fn admit_priority(
        &self,
        class: Option<&str>,
        priority: Option<i32>,
        never: Option<bool>,
    ) -> Result<(i32, bool), String> {
        self.jobs.admit_priority(class, priority, never)
    }

    /// Quotas of a namespace, by name.
    pub fn quotas_in<'a>(&'a self, namespace: &'a str) -> impl Iterator<Item = &'a Shared<QuotaRules>> {
        self.quotas.of(namespace)
    }

    /// What admission makes of a pod: with the class and the amounts that it gives to it. The error is what admission would answer.
    pub fn admit(&self, namespace: &str, ask: &PodAsk) -> Result<PodAsk, String> {
        self.quotas.admit(&self.jobs, namespace, ask)
    }

    /// Labels of a namespace.
    pub fn namespace(&self, name: &str) -> Option<&Labels> {
        self.namespaces.get(name)
    }

    /// Volumes, claims, classes and the plans for claims.
    pub fn volumes(&self) -> &VolumeTable {
        &self.volumes
    }

    /// Budgets that cover this pod.
    pub fn budgets_of<'a>(&'a self, pod: &'a Pod) -> impl Iterator<Item = (&'a PodKey, &'a BudgetFacts)> {
        self.budgets.iter().filter(|(key, budget)| {
            key.namespace == pod.key().namespace
                && budget.selector.as_ref().is_some_and(|selector| selector.matches(&pod.facts.spec.labels))
        })
    }

    /// What pods usually come.
    pub fn mix(&self) -> &Mix {
        &self.mix
    }

    /// Learns from the start again, from the pods that live, in the order of their creation: what a scheduler knows when it begins to lead.
    pub fn learn_again(&mut self) {
        self.mix.forget();
        if !self.policy.learns {
            return;
        }
        let live = self.pods().filter(|pod| pod.place != Place::Ended);
        let mut live: Vec<_> = live.map(|pod| (pod.facts.handoff.created, pod.id)).collect();
        live.sort_unstable();
        live.into_iter().for_each(|(_, id)| self.learn(id));
    }

    /// Counts the arrival of a pod.
    fn learn(&mut self, id: PodId) {
        if let Some(pod) = self.pods.get(id).filter(|_| self.policy.learns) {
            self.mix.learn(&pod.facts, &self.nodes);
        }
    }

    /// A sample for new tables, when they are due and none is out; [`World::rate_by`] takes the tables.
    pub fn take_sample(&mut self) -> Option<Sample> {
        if self.policy.learns { self.mix.take_sample(&self.nodes) } else { None }
    }

    /// Rates nodes by new tables from now on. Tables that were not asked for are ignored.
    pub fn rate_by(&mut self, tables: WorthTables) {
        self.mix.rate_by(tables, &self.nodes);
    }

    /// Counts a decision; every so many, looks how dear whole nodes are.
    pub fn count_decision(&mut self) {
        self.mix.count_decision(&self.nodes, self.placed.with_devices());
    }

    /// Records what must happen to the claims of a pod that was assumed; forgotten with the assumption.
    pub fn plan_volumes(&mut self, id: PodId, plan: VolumePlan) {
        self.generation += 1;
        self.volumes.plan(id, plan);
    }

    /// The node of another pod whose plan names the claim, and the volume that the claim gets, if one was chosen.
    pub fn planned_for(&self, claim: &PodKey, except: PodId) -> Option<(NodeId, Option<&str>)> {
        let found = self.volumes.plans_of_others(except).filter_map(|(id, plan)| {
            let pod = self.pod(id).filter(|pod| pod.key().namespace == claim.namespace)?;
            let bound = plan.bind.iter().find(|(name, _)| **name == *claim.name);
            let made = plan.provision.iter().any(|provision| *provision.claim == *claim.name);
            (bound.is_some() || made).then_some(())?;
            Some((pod.node()?, bound.map(|(_, volume)| &**volume)))
        });
        found.into_iter().next()
    }
}

impl Lookup for World {
    fn by_key(&self, key: &PodKey) -> Option<&HandoffPod> {
        self.pod_by_key(key).map(|pod| &pod.facts.handoff)
    }
    fn by_bind_timestamp(&self, nanos: &str) -> Option<&HandoffPod> {
        self.pods.by_stamp(nanos).map(|pod| &pod.facts.handoff)
    }
}

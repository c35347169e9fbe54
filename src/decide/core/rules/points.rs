//! The extension points. Every one is a small trait; a rule implements those that it needs.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;

use crate::core::Effects;
use crate::core::rules::Annotations;
use crate::devices::Held;
use crate::help::Help;
use crate::world::devices::DeviceChoice;
use crate::world::volume::VolumePlan;
use crate::world::{Node, NodeId, Pod, PodId, World};
use baton_contract::key;

use super::known_request::KnownRequest;
use super::outcome::Outcome;
use super::slots::Slots;

/// What every extension point may look at: the world of one generation, and the time.
#[derive(Clone, Copy)]
pub struct View<'a> {
    /// The world.
    pub world: &'a World,
    /// Monotonic time since the process started; there is no wall clock here.
    pub now: Duration,
}

/// A rule with a name, as the configuration and messages call it.
pub trait Plugin: Send + Sync {
    /// PascalCase.
    fn name(&self) -> &'static str;

    /// What the rule's Filter, PreScore and Score read for this pod; asked when every PreFilter has run. It decides whether their
    /// answers may be kept, so a rule that says too little is answered from memory. The default is right for every rule, and slow.
    fn reads(&self, pod: &Pod, slots: &Slots) -> Reads {
        let _ = (pod, slots);
        Reads::World
    }
}

/// What a rule reads, the least first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reads {
    /// Nothing: the rule does not concern this pod. Its Filter would say fit of every node, its Score would rate every node 0,
    /// PreScore does nothing, and nothing is left in the slots. They need not be asked.
    Nothing,
    /// Of the pod, no more than [`PodShape`](crate::core::PodShape) keeps, so not its labels; of the world, no more
    /// than the one node's object, agent, devices, requests and number of pods. Not the time, not other pods, not the lock.
    /// PreScore does nothing. Such an answer stays true until that node changes.
    Node,
    /// Besides, the typical mix of requests: such an answer stays true until the node changes or
    /// [`Mix::epoch`](crate::world::Mix::epoch) rises.
    Mix,
    /// Anything. Every node is judged again for every pod.
    World,
}

/// What the order of the queue may look at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Queued {
    /// `spec.priority`.
    pub priority: i32,
    /// Order within a priority, higher first; 0 where none is set.
    pub sub_priority: i64,
    /// Creation.
    pub created: Timestamp,
    /// Quality of service: 0 Guaranteed, 1 Burstable, 2 BestEffort; of a group, that of its lowest member.
    pub class: u8,
    /// Breaks ties: namespace and name of a pod, those of a group's gangs.
    pub id: Box<str>,
}

/// A place in the queue; smaller goes first.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct SortKey {
    /// Compared first to last.
    pub ranks: [i128; 4],
    /// Breaks ties.
    pub id: Box<str>,
}

/// Orders the queue. Exactly one is enabled.
pub trait QueueSort: Plugin {
    /// The item's place.
    fn key(&self, item: &Queued) -> SortKey;
}

/// Judges a pod before any node is looked at, and prepares what its filters share. What one that reads all pods
/// costs is counted in `compared` of `core/placing.rs`.
pub trait PreFilter: Plugin {
    /// Anything but fit ends the cycle.
    fn pre_filter(&self, view: View<'_>, pod: &Pod, slots: &mut Slots) -> Outcome;
}

/// How a node stands to a pod whatever is free there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Eligibility {
    /// Its labels are not those that the pod asks for.
    Never,
    /// A taint or cordon keeps the pod away for now.
    NotNow,
    /// It takes the pod where there is room.
    Now,
}

/// Judges one node.
pub trait Filter: Plugin {
    /// Fit, or why not.
    fn filter(&self, view: View<'_>, pod: &Pod, node: (NodeId, &Node), slots: &mut Slots) -> Outcome;
    /// What a refusal says of the node. Where that is not [`Eligibility::Now`], gangs do not count on the node's room, and a pod that waits
    /// for its volumes or lock there goes elsewhere.
    fn refused(&self) -> Eligibility {
        Eligibility::Now
    }
    /// Why it refuses every pod with devices there, and what may help, where that depends on how the scheduler is set.
    fn closed(&self, _node: &Node) -> Option<(String, Help)> {
        None
    }
}

/// A pod that would be evicted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Victim {
    /// The pod.
    pub pod: PodId,
    /// Its priority.
    pub priority: i32,
    /// Its creation.
    pub created: Timestamp,
    /// No PodDisruptionBudget allows it.
    pub breaks_budget: bool,
}

/// A node on which the pod would fit without these.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PreemptionCandidate {
    /// The node.
    pub node: NodeId,
    /// Pods that must leave; empty when it is enough to wait for pods that are leaving already.
    pub victims: Vec<Victim>,
}

/// Decides where pods are evicted when no node fits.
pub(crate) trait PostFilter: Plugin {
    /// The node whose victims are evicted; `None` evicts no pod.
    fn pick<'a>(&self, candidates: &'a [PreemptionCandidate]) -> Option<&'a PreemptionCandidate>;
}

/// Prepares scoring over the nodes that fit.
pub trait PreScore: Plugin {
    /// A fault ends the cycle.
    fn pre_score(&self, view: View<'_>, pod: &Pod, nodes: &[NodeId], slots: &mut Slots) -> Outcome;
}

/// A node and its score.
pub type NodeScore = (NodeId, i64);

/// Rates one node; higher is better.
pub trait Score: Plugin {
    /// Raw rating.
    fn score(&self, view: View<'_>, pod: &Pod, node: (NodeId, &Node), slots: &mut Slots) -> i64;

    /// The rating in words, for people who ask why.
    fn explain(&self, view: View<'_>, pod: &Pod, node: (NodeId, &Node), slots: &mut Slots) -> Option<String> {
        let _ = (view, pod, node, slots);
        None
    }

    /// `true` when a rating stands by itself, 0..=100: [`Score::normalize`] is not called then.
    fn is_absolute(&self) -> bool {
        false
    }

    /// Brings the raw ratings of all nodes to 0..=100. The default takes them as they are. Only which ratings there are may
    /// matter, not how many nodes have each: equal ratings stay equal. Unlike ratings, which may be kept, it is asked at every
    /// decision: what it reads of the world may change at any time.
    fn normalize(&self, view: View<'_>, pod: &Pod, scores: &mut [NodeScore]) {
        let _ = (view, pod, scores);
    }
}

/// What a reservation takes: the Reserve rules fill it in, in their order, then the world takes it as one.
#[derive(Debug)]
pub struct Claimed {
    /// The Binding's annotations, all but the time.
    annotations: Annotations,
    /// What the pod wants of devices.
    wanted: Option<Arc<KnownRequest>>,
    /// The devices that it gets.
    devices: Option<Held>,
    /// The choice behind `devices`.
    choice: Option<Arc<DeviceChoice>>,
    /// What must happen to its claims.
    volumes: Option<VolumePlan>,
}

/// [`Claimed`], taken apart.
pub(crate) struct ClaimedParts(
    pub Annotations,
    pub Option<Arc<KnownRequest>>,
    pub Option<Held>,
    pub Option<Arc<DeviceChoice>>,
    pub Option<VolumePlan>,
);

impl Default for Claimed {
    /// Nothing. Every annotation of ours is written, empty where no rule sets it: the pod may carry another scheduler's.
    fn default() -> Self {
        let annotations = Annotations::empty(&key::SCHEDULER_KEYS);
        Self { annotations, wanted: None, devices: None, choice: None, volumes: None }
    }
}

impl Claimed {
    /// What DeviceFit claims: the devices, the choice behind them, and the annotations that name them.
    pub(crate) fn claim_devices(
        &mut self,
        wanted: Option<Arc<KnownRequest>>,
        choice: Option<Arc<DeviceChoice>>,
        held: Option<(Held, [(&'static str, String); 3])>,
    ) {
        (self.wanted, self.choice) = (wanted, choice);
        if let Some((devices, annotations)) = held {
            annotations.into_iter().for_each(|(key, text)| self.annotations.set(key, text));
            self.devices = Some(devices);
        }
    }

    /// What VolumeBinding claims.
    pub(crate) fn claim_volumes(&mut self, plan: Option<VolumePlan>) {
        self.volumes = plan;
    }

    /// Takes it apart, for the world.
    pub(crate) fn into_parts(self) -> ClaimedParts {
        ClaimedParts(self.annotations, self.wanted, self.devices, self.choice, self.volumes)
    }

    /// Adds an annotation to the Binding, and so to the pod. `false`, and nothing is added, for a key that Baton writes itself.
    #[must_use]
    pub fn annotate(&mut self, key: &str, text: impl Into<String>) -> bool {
        let free = !key::SCHEDULER_KEYS.contains(&key);
        if free {
            self.annotations.set(key.to_owned(), text.into());
        }
        free
    }
}

/// Takes what the pod needs on the chosen node.
pub trait Reserve: Plugin {
    /// Adds to `claimed`. Anything but fit undoes the reservations made so far.
    fn reserve(&self, view: View<'_>, pod: &Pod, node: NodeId, slots: &mut Slots, claimed: &mut Claimed) -> Outcome;

    /// Called for every rule, in reverse order, when the reservation ends without a Binding. What the rule put into `claimed` is
    /// given back without it.
    fn unreserve(&self, pod: &Pod, node: NodeId) {
        let _ = (pod, node);
    }
}

/// Lets a reserved pod go on, wait, or fail.
pub trait Permit: Plugin {
    /// Fit goes on; wait-until keeps the reservation and is asked again then; anything else gives it back. The slots are empty each
    /// time.
    fn permit(&self, view: View<'_>, pod: &Pod, node: NodeId, slots: &mut Slots) -> Outcome;
}

/// Does what must be done before the lock.
pub(crate) trait PreBind: Plugin {
    /// Effects to perform. Fit goes on; wait-until is asked again then, or when volumes changed; anything else fails the bind.
    /// `since` is the monotonic time of the first question.
    fn pre_bind(&self, view: View<'_>, pod: &Pod, node: NodeId, since: Duration, effects: &mut Effects) -> Outcome;
}

/// Kube's normalisation: the largest becomes 100.
pub fn normalize_to_hundred(scores: &mut [NodeScore]) {
    let most = scores.iter().map(|(_, score)| *score).max().unwrap_or(0);
    for (_, score) in scores {
        *score = if most == 0 { 0 } else { *score * 100 / most };
    }
}

/// Kube's normalisation in reverse: 0 becomes 100, the largest 0.
pub fn normalize_in_reverse(scores: &mut [NodeScore]) {
    normalize_to_hundred(scores);
    for (_, score) in scores {
        *score = 100 - *score;
    }
}

/// The lowest rating becomes 0, the highest 100, evenly between; all become 0 when they are alike.
pub fn stretch(scores: &mut [NodeScore]) {
    let rating = |(_, score): &NodeScore| *score;
    let (least, most) = (scores.iter().map(rating).min(), scores.iter().map(rating).max());
    let (Some(least), Some(most)) = (least, most) else { return };
    for (_, score) in scores {
        let part = (*score - least) as f64 / (most - least).max(1) as f64;
        *score = (100.0 * part) as i64;
    }
}

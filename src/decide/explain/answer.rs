//! The answers: the scheduler sends them as JSON and `baton explain` reads them.

use std::fmt;

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use baton_contract::DeviceType;

/// The state of a pod on its way to a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum PodState {
    /// Queued; tried as soon as its turn comes.
    Active,
    /// Being bound: its node is chosen and reserved; volumes are being prepared.
    Preparing,
    /// Being bound: in the queue for the node's lock.
    WaitingForLock,
    /// Being bound: the node lock is being written.
    Locking,
    /// Being bound: the Binding is being posted.
    Binding,
    /// Its room is reserved until its gang can start or a Permit plugin allows it.
    Held,
    /// Tried again at a fixed time.
    BackOff,
    /// Tried again after a change that the refusing rules name.
    Parked,
    /// Has a node.
    Bound,
    /// Succeeded or Failed.
    Ended,
    /// Being deleted before it has a node.
    Deleting,
    /// Another scheduler places it.
    Foreign,
    /// Ours, but this process does not lead: ask the leader.
    Following,
}

impl PodState {
    /// In words that follow "is".
    pub const fn words(self) -> &'static str {
        match self {
            Self::Active => "queued, tried as soon as its turn comes",
            Self::Preparing => "being bound, waiting for its volumes",
            Self::WaitingForLock => "waiting for its turn with the lock of its node",
            Self::Locking => "being bound, the node lock is being written",
            Self::Binding => "being bound",
            Self::Held => "reserved until its gang can start",
            Self::BackOff => "backing off",
            Self::Parked => "parked until something changes that may help",
            Self::Bound => "bound",
            Self::Ended => "ended",
            Self::Deleting => "being deleted",
            Self::Foreign => "another scheduler's",
            Self::Following => "waiting; this scheduler process does not lead",
        }
    }
}

impl fmt::Display for PodState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&serialized_name(self))
    }
}

/// The value of an enum as it stands in JSON.
pub(super) fn serialized_name<T: Serialize>(value: &T) -> String {
    match serde_json::to_value(value) {
        Ok(serde_json::Value::String(name)) => name,
        _ => String::new(),
    }
}

/// The rules' verdict on a pod.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PodVerdict {
    /// One sentence: the condition's message, or the node that would be chosen.
    pub message: String,
    /// Which rules refuse, why, and on how many nodes. A rule that refuses the pod itself names no node.
    pub rules: Vec<RuleCount>,
    /// The node that lacks the fewest devices, and who holds them: `node-1 with 4 of 8 (ml/a holds 4)`.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub nearest: Option<String>,
    /// A move of another pod after which it would start, or its gang.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub one_move: Option<OneMove>,
    /// The node where room is made for the pod, which pods leave it, and until when.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub room: Option<String>,
    /// Changes that wake the pod.
    pub wakes: Vec<String>,
    /// What to do.
    pub advice: Vec<String>,
    /// Each node's verdict.
    pub nodes: Vec<NodeVerdict>,
}

/// The answer for one pod.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Explanation {
    /// `namespace/name`.
    pub pod: String,
    /// Uid.
    pub uid: String,
    /// Its state.
    pub state: PodState,
    /// `spec.schedulerName`.
    pub scheduler_name: String,
    /// `spec.priority`.
    pub priority: i32,
    /// The gangs that it starts with.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub group: Option<String>,
    /// The node, chosen or bound.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub node: Option<String>,
    /// The devices that it holds: `gpu-3 (ID)`, `50% of gpu-3 (ID)`.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub devices: Vec<String>,
    /// When a bound pod had its devices and gave back the node's lock, where the scheduler saw it.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub served_at: Option<Timestamp>,
    /// For how many milliseconds the lock stood for it.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub lock_held_millis: Option<u64>,
    /// Seconds since it was queued.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub queued_seconds: Option<u64>,
    /// How often it was tried since then.
    pub attempts: u32,
    /// Seconds until it is tried even without an event.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub next_try_seconds: Option<u64>,
    /// The rules' verdict while it waits.
    #[serde(flatten)]
    pub verdict: PodVerdict,
    /// Generation of the world that was judged.
    pub generation: u64,
}

/// A running pod that could leave its node for another one, so that one that waits starts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct OneMove {
    /// `namespace/name`.
    pub pod: String,
    /// Its node.
    pub from: String,
    /// The node that has room for it.
    pub to: String,
    /// A disruption budget of it that allows no eviction now.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub budget: Option<String>,
}

impl fmt::Display for OneMove {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} from {} to {}", self.pod, self.from, self.to)?;
        match &self.budget {
            None => Ok(()),
            Some(budget) => write!(f, ", which the disruption budget {budget} does not allow now"),
        }
    }
}

/// A refusal, and the nodes that gave it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RuleCount {
    /// Name of the rule; of several that say the same, all their names, with commas between.
    pub rule: String,
    /// Why.
    pub reason: String,
    /// How many nodes; 0 where the pod itself is refused.
    pub count: usize,
    /// The first of them.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub examples: Vec<String>,
}

/// One node's verdict.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeVerdict {
    /// Node.
    pub node: String,
    /// It fits.
    pub fits: bool,
    /// The rule that refused.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub rule: Option<String>,
    /// Why.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub reason: Option<String>,
    /// Its devices, for a pod that asks for some.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub devices: Vec<DeviceDetail>,
}

/// One device of a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DeviceDetail {
    /// `gpu`, `mig`, `rdma`.
    #[serde(rename = "type")]
    pub kind: String,
    /// Small number on the node.
    pub minor: i32,
    /// Identity.
    pub id: String,
    /// Devices that are not healthy are never chosen.
    pub healthy: bool,
    /// The cordon on it, in words: a cordoned device is given to no new pod.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub cordon: Option<String>,
    /// What a new pod may have of it: `100% core and 81920Mi memory`; `nothing` of a device that is out of use.
    pub free: String,
    /// Why it is not healthy, as the Device object has it. Told by who has read that.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub reason: Option<String>,
    /// Since when.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub since: Option<Timestamp>,
    /// Pods that hold it or a part of it.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub held_by: Vec<String>,
    /// By which pods that have left the API server it is used still.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub still_used: Vec<String>,
}

impl DeviceDetail {
    /// `gpu-3`, `nic-0`.
    pub fn name(&self) -> String {
        format!("{}-{}", if self.kind == "rdma" { "nic" } else { &self.kind }, self.minor)
    }
}

/// The answer for one node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeExplanation {
    /// Its name.
    pub node: String,
    /// Some new pod with devices may come here.
    pub takes_devices: bool,
    /// What is free, or why no new pod with devices comes; worded to follow the node's name.
    pub message: String,
    /// Taints that a pod has to tolerate.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub taints: Vec<String>,
    /// What of it no new pod gets although others may come, and why.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub not_given: Vec<String>,
    /// What to do.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub advice: Option<String>,
    /// The gang or pod that it is kept for.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub kept_for: Option<String>,
    /// Why it is suspect and takes pods nevertheless: 30 % of the nodes are out for that already.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub suspect: Option<String>,
    /// Who holds its lock, for how long.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub lock: Option<String>,
    /// Pods that wait for the lock, in order.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub waits_for_lock: Vec<String>,
    /// Pods that have room here and are not bound yet.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub reserved_for: Vec<String>,
    /// Its devices.
    pub devices: Vec<DeviceDetail>,
    /// Generation of the world that was judged.
    pub generation: u64,
}

/// What would be decided for a pod that does not exist.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct WhatIf {
    /// `namespace/name`.
    pub pod: String,
    /// What would become of it: `would start now on n1`, `would evict ml/a from node n1 to make room`, `would wait: …`.
    #[serde(default)]
    pub headline: String,
    /// A node would be chosen at once.
    pub fits: bool,
    /// That node.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub node: Option<String>,
    /// The devices that it would be given there: `gpu-3 (ID)`, `50% of gpu-3 (ID)`.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub devices: Vec<String>,
    /// The best nodes, best first.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub best: Vec<RatedNode>,
    /// Pods that would be evicted to make room; empty where preemption would not help either.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub would_evict: Vec<String>,
    /// Where and how room would be made, where that is possible.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub preemption: Option<String>,
    /// What this answer does not take into account.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub notes: Vec<String>,
    /// The rules' verdict.
    #[serde(flatten)]
    pub verdict: PodVerdict,
    /// Generation of the world that was judged.
    pub generation: u64,
}

/// What would be decided for several pods that do not exist, one after the other.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct WhatIfObjects {
    /// In the order in which they were given; the pods of a gang are one.
    pub objects: Vec<WhatIfObject>,
    /// Generation of the world that was judged.
    pub generation: u64,
}

/// One object of several.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct WhatIfObject {
    /// `Deployment default/web`, `gang ml/train`.
    pub object: String,
    /// What would become of it.
    pub headline: String,
    /// How many pods it has.
    pub pods: usize,
    /// How many of them must start together; 0 where each starts by itself.
    pub together: usize,
    /// Pods that would start now, by node.
    pub starts: BTreeMap<String, usize>,
    /// What this answer does not take into account.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub notes: Vec<String>,
}

/// A node that fits, and its rating.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RatedNode {
    /// Node.
    pub node: String,
    /// Sum of score times weight.
    pub score: i64,
    /// Its summands.
    pub ratings: Vec<Rating>,
}

/// One rule's part of a score.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Rating {
    /// Name of the rule.
    pub rule: String,
    /// 0 to 100.
    pub score: i64,
    /// Its weight.
    pub weight: i64,
    /// The rating in words, where the rule has some.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub why: Option<String>,
}

/// Everything queued.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct QueueReport {
    /// Version of the scheduler.
    pub version: String,
    /// This process leads; a follower has no queue.
    pub leading: bool,
    /// First what is being bound, then what is tried next.
    pub items: Vec<QueueItem>,
    /// Nodes that take no new pods with devices, by what no object of theirs says.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub closed: Vec<ClosedNode>,
    /// Suspect nodes that take pods nevertheless.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub unheeded: BTreeSet<String>,
    /// Devices that the scheduler has reserved and no object of the cluster shows.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub reserved: Vec<ReservedDevices>,
    /// Locks that time ends.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub locks: Vec<LockEnd>,
}

/// When a lock is taken over if it still stands.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LockEnd {
    /// The node.
    pub node: String,
    /// The annotation's value.
    pub value: String,
    /// When.
    pub at: Timestamp,
}

/// Devices of a node that are reserved for one pod.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ReservedDevices {
    /// The node.
    pub node: String,
    /// Whose they are: `TYJob ml/rl`, `gang ml/train` or `pod ml/p`.
    pub reserved_for: String,
    /// Percent by id of the device.
    pub devices: BTreeMap<String, i64>,
}

/// A node that takes no new pods with devices, or none with those of one type.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ClosedNode {
    /// Its name.
    pub node: String,
    /// The type; absent where it takes none at all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<DeviceType>,
    /// Why, in the words of `baton explain node`: `it is kept for gang ml/train`.
    pub why: String,
}

/// One queued item.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct QueueItem {
    /// `pod`, `group` or `jobs`.
    pub kind: String,
    /// `namespace/name` of the pod, or of the group's gangs.
    pub name: String,
    /// `spec.priority`.
    pub priority: i32,
    /// Its state.
    pub state: PodState,
    /// How often it was tried.
    pub attempts: u32,
    /// Seconds since it was queued.
    pub queued_seconds: u64,
    /// Seconds until it is tried even without an event; none where only an event helps.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub next_try_seconds: Option<u64>,
    /// What wakes a parked item.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub wakes: Vec<String>,
    /// Rules that refused at the last try.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub rules: Vec<String>,
    /// The node of a pod that is being bound.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub node: Option<String>,
    /// The message of the pod's condition.
    #[serde(skip_serializing_if = "String::is_empty", default)]
    pub message: String,
}

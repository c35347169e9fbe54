//! The shapes of the answers; the scheduler sends them as JSON and `baton explain` reads them.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Where a pod is on its way to a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum PodState {
    /// Queued; tried as soon as its turn comes.
    Active,
    /// Its node is chosen and its room held; volumes are being prepared.
    Preparing,
    /// Its node is chosen and its room held; it stands in the line for the node's lock.
    WaitingForLock,
    /// The node lock is being written.
    Locking,
    /// The Binding is being posted.
    Binding,
    /// Its room is held until its gang or a gatekeeper lets it go on.
    Held,
    /// Tried again at a fixed time.
    BackOff,
    /// Tried again when something changes that the refusing rules named.
    Parked,
    /// Has a node.
    Bound,
    /// Succeeded or Failed.
    Ended,
    /// Deletion has been asked for before it had a node.
    Deleting,
    /// Another scheduler's.
    Foreign,
    /// Ours, and this process does not lead: the leader knows more.
    Following,
}

impl PodState {
    /// In words that follow "is".
    pub const fn words(self) -> &'static str {
        match self {
            Self::Active => "queued, tried as soon as its turn comes",
            Self::Preparing => "in flight, waiting for its volumes",
            Self::WaitingForLock => "in flight, in the line for the node lock",
            Self::Locking => "in flight, writing the node lock",
            Self::Binding => "in flight, being bound",
            Self::Held => "holding its room until its gang can start",
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
        f.write_str(match self {
            Self::Active => "active",
            Self::Preparing => "preparing",
            Self::WaitingForLock => "waitingForLock",
            Self::Locking => "locking",
            Self::Binding => "binding",
            Self::Held => "held",
            Self::BackOff => "backOff",
            Self::Parked => "parked",
            Self::Bound => "bound",
            Self::Ended => "ended",
            Self::Deleting => "deleting",
            Self::Foreign => "foreign",
            Self::Following => "following",
        })
    }
}

/// What the rules say about a pod, now.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Verdict {
    /// One sentence: what the condition says, or the node that would be chosen.
    pub message: String,
    /// Which rule refuses, why, and how many nodes. A rule that refuses the pod itself names no node.
    pub rules: Vec<RuleCount>,
    /// What wakes the pod: any of these changes may turn a refusal.
    pub wakes: Vec<String>,
    /// What to do about it.
    pub advice: Vec<String>,
    /// What each node says.
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
    /// Where it is.
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
    /// What it holds: device type, minor, id.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub devices: Vec<String>,
    /// Seconds since it was queued.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub queued_seconds: Option<u64>,
    /// How often it was tried since then.
    pub attempts: u32,
    /// Seconds until it is tried in any case.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub next_try_seconds: Option<u64>,
    /// What the rules say while it waits.
    #[serde(flatten)]
    pub verdict: Verdict,
    /// Generation of the world that was judged.
    pub generation: u64,
}

/// A refusal, and the nodes that gave it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RuleCount {
    /// Name of the rule.
    pub rule: String,
    /// Why.
    pub reason: String,
    /// How many nodes; 0 where the pod itself is refused.
    pub count: usize,
    /// The first of them.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub examples: Vec<String>,
}

/// One node's answer.
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
    /// What is free of it: `100% core and 81920Mi memory`.
    pub free: String,
    /// Pods that hold it or a part of it.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub held_by: Vec<String>,
}

/// What would be decided for a pod that does not exist.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct WhatIf {
    /// `namespace/name`.
    pub pod: String,
    /// A node would be chosen at once.
    pub fits: bool,
    /// That node.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub node: Option<String>,
    /// The devices that it would be given there.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub devices: Vec<String>,
    /// The best nodes, best first.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub best: Vec<RatedNode>,
    /// Pods that would be evicted to make room; empty where preemption would not help either.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub would_evict: Vec<String>,
    /// What this answer does not take into account.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub notes: Vec<String>,
    /// What the rules say.
    #[serde(flatten)]
    pub verdict: Verdict,
    /// Generation of the world that was judged.
    pub generation: u64,
}

/// A node that fits, and how it is rated.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RatedNode {
    /// Node.
    pub node: String,
    /// Sum of score times weight.
    pub score: i64,
    /// What it is made of.
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
}

/// Everything queued.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct QueueReport {
    /// This process leads; whoever follows has no queue.
    pub leading: bool,
    /// First what is in flight, then what is tried next.
    pub items: Vec<QueueItem>,
}

/// One queued item.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct QueueItem {
    /// `pod` or `group`.
    pub kind: String,
    /// `namespace/name` of the pod, or of the group's gangs.
    pub name: String,
    /// `spec.priority`.
    pub priority: i32,
    /// Where it is.
    pub state: PodState,
    /// How often it was tried.
    pub attempts: u32,
    /// Seconds since it was queued.
    pub queued_seconds: u64,
    /// Seconds until it is tried in any case; none where only an event helps.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub next_try_seconds: Option<u64>,
    /// What wakes a parked item.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub wakes: Vec<String>,
    /// Rules that refused at the last try.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub rules: Vec<String>,
    /// The node of an item in flight.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub node: Option<String>,
    /// What the pod's condition says.
    #[serde(skip_serializing_if = "String::is_empty", default)]
    pub message: String,
}

//! What is known of the pod that a lock names.

use jiff::Timestamp;

use crate::contract::{LockRead, LockValue, PodKey, PodRef};
use crate::decide::pod::HandoffPod;

/// Where a decision looks pods up. The view must be synced: "not found" counts as proof.
pub trait Lookup {
    /// The pod of that namespace and name, if it exists.
    fn by_key(&self, key: &PodKey) -> Option<&HandoffPod>;
    /// The pod whose `bind-timestamp` annotation is exactly `nanos`, if there is one.
    fn by_bind_timestamp(&self, nanos: &str) -> Option<&HandoffPod>;
}

/// Why a holder will never be served.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GoneReason {
    /// No such pod.
    NotFound,
    /// A pod of that name exists, but it is another one.
    Recreated,
    /// Succeeded or Failed.
    Terminal,
    /// Bound to another node.
    Elsewhere,
    /// Deleted, and its grace period is over.
    PastGrace,
}

impl std::fmt::Display for GoneReason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::NotFound => "does not exist",
            Self::Recreated => "was deleted; another pod has its name",
            Self::Terminal => "has ended",
            Self::Elsewhere => "is bound to another node",
            Self::PastGrace => "is deleted and past its grace period",
        })
    }
}

/// The holder of a lock, as far as the reader knows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HolderState {
    /// The annotation names no pod, and no pod's `bind-timestamp` matches.
    Unknown,
    /// Will never be served: the lock is dangling.
    Gone(GoneReason),
    /// Exists and is not bound: its bind is in flight, or its scheduler died.
    Unbound(PodRef),
    /// Bound to this node and not ended.
    BoundHere(PodRef),
}

/// Judges the holder of the lock on `node`.
pub fn judge_holder(lock: &LockValue, node: &str, pods: &impl Lookup, wall: Timestamp) -> HolderState {
    let stamp = lock.bind_timestamp();
    let found = match &lock.holder {
        None => match pods.by_bind_timestamp(&stamp) {
            Some(pod) => pod,
            None => return HolderState::Unknown,
        },
        Some(holder) => {
            let Some(pod) = pods.by_key(&holder.pod) else { return HolderState::Gone(GoneReason::NotFound) };
            let same = match &holder.uid {
                Some(uid) => pod.pod.uid == *uid,
                // Without a uid, the time proves the holder; an unbound pod carries no time yet.
                None => pod.node.is_none() || pod.assignment.bind_timestamp.as_deref() == Some(stamp.as_str()),
            };
            if !same {
                return HolderState::Gone(GoneReason::Recreated);
            }
            pod
        }
    };
    if found.phase.is_terminal() {
        return HolderState::Gone(GoneReason::Terminal);
    }
    if found.deleting.is_some_and(|deletion| wall > deletion.at) {
        return HolderState::Gone(GoneReason::PastGrace);
    }
    match found.node.as_deref() {
        None => HolderState::Unbound(found.pod.clone()),
        Some(on) if on == node => HolderState::BoundHere(found.pod.clone()),
        Some(_) => HolderState::Gone(GoneReason::Elsewhere),
    }
}

/// [`judge_holder`] over whatever stands in the annotation; `None` when it is free.
impl HolderState {
    /// Judges any reading of the annotation.
    pub fn of(read: &LockRead, node: &str, pods: &impl Lookup, wall: Timestamp) -> Option<Self> {
        match read {
            LockRead::Free => None,
            LockRead::Malformed { .. } => Some(Self::Unknown),
            LockRead::Held { value, .. } => Some(judge_holder(value, node, pods, wall)),
        }
    }
}

//! What is known of the pod that a lock names.

use jiff::Timestamp;

use super::owner::{LockMatch, names};
use crate::pod::HandoffPod;
use baton_contract::{LockRead, LockValue, PodKey, PodRef};

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
    match &lock.holder {
        None => match pods.by_bind_timestamp(&lock.bind_timestamp()) {
            Some(pod) => judge_pod(lock, pod, node, wall),
            None => HolderState::Unknown,
        },
        Some(holder) => match pods.by_key(&holder.pod) {
            Some(pod) => judge_pod(lock, pod, node, wall),
            None => HolderState::Gone(GoneReason::NotFound),
        },
    }
}

/// Judges the holder of the lock on `node` by `found`, the pod of the name (or of the time) that the lock has.
pub fn judge_pod(lock: &LockValue, found: &HandoffPod, node: &str, wall: Timestamp) -> HolderState {
    let has_uid = lock.holder.as_ref().is_some_and(|holder| holder.uid.is_some());
    let timed = found.assignment.bind_timestamp.as_deref().is_some_and(|time| !time.is_empty());
    let mut proven = true;
    match names(lock, found) {
        LockMatch::ThisBind => {}
        // Without a uid, the time proves the holder; an unbound pod carries no time yet.
        LockMatch::OtherBind if has_uid || found.node.is_none() => {}
        // Bound by a scheduler that writes no time: it may be the holder or another pod of its name.
        LockMatch::OtherBind if !timed => proven = false,
        LockMatch::OtherBind | LockMatch::No => return HolderState::Gone(GoneReason::Recreated),
    }
    if found.phase.is_terminal() {
        return HolderState::Gone(GoneReason::Terminal);
    }
    if found.deleting.is_some_and(|deletion| wall > deletion.at) {
        return HolderState::Gone(GoneReason::PastGrace);
    }
    match found.node.as_deref() {
        None => HolderState::Unbound(found.pod.clone()),
        Some(on) if on == node && !proven => HolderState::Unknown,
        Some(on) if on == node => HolderState::BoundHere(found.pod.clone()),
        Some(_) => HolderState::Gone(GoneReason::Elsewhere),
    }
}

impl HolderState {
    /// [`judge_holder`] for any value of the annotation; `None` when it is free.
    pub fn of(read: &LockRead, node: &str, pods: &impl Lookup, wall: Timestamp) -> Option<Self> {
        match read {
            LockRead::Free => None,
            LockRead::Malformed { .. } => Some(Self::Unknown),
            LockRead::Held { value, .. } => Some(judge_holder(value, node, pods, wall)),
        }
    }
}

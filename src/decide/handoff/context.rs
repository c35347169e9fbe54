//! What a decision about a call is made from, at one moment.

use std::collections::BTreeSet;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use super::inventory::NodeInventory;
use super::ledger::Ledger;
use super::listing::PodResources;
use super::pods::NodePods;
use super::policy::AllocatePolicy;
use crate::pod::{HandoffPod, PodContainer};
use baton_contract::{LockRead, LockValue, PodKey};

/// What a list shows may have changed while it was on its way, and the changes come after it: a pod of a listed name may be gone
/// already, and the kubelet admit its successor.
/// The same holds after a call that failed, whose pod the kubelet has rejected.
pub const LIST_SETTLES: Duration = Duration::from_secs(2);

/// A kubelet asks for a pod within moments of its Binding. Where the watched lock is older, or younger than now, the watch may be behind
/// without knowing it.
const ASKED_WITHIN: SignedDuration = SignedDuration::from_secs(10);

/// One Allocate or GetPreferredAllocation call.
#[derive(Debug, Clone, Copy)]
pub struct AllocateCall<'a> {
    /// Resource name whose socket was called.
    pub resource: &'a str,
    /// Number of ids: the container's limit.
    pub count: i64,
    /// The kubelet's ids; empty while it only asks for a preference.
    pub ids: &'a [String],
}

/// What the agent knows.
#[derive(Debug, Clone, Copy)]
pub struct AllocateContext<'a> {
    /// This node.
    pub node: &'a str,
    /// Its pods.
    pub pods: &'a NodePods,
    /// Its lock.
    pub lock: &'a LockRead,
    /// What the kubelet lists.
    pub resources: &'a PodResources,
    /// What was handed out, and how far the kubelet is.
    pub ledger: &'a Ledger,
    /// What there is.
    pub inventory: &'a NodeInventory,
    /// What was read live for this call.
    pub live_reads: &'a LiveReads,
    /// The watches of pods and node are running, and for [`LIST_SETTLES`] the pods were not listed again and no call of an unknown pod
    /// has failed; otherwise a grant, too, needs live reads.
    pub watching: bool,
    /// Wall time of this node.
    pub now: Timestamp,
    /// The operator's choices.
    pub policy: &'a AllocatePolicy,
}

/// What has been read from the API server for one call, or must be.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LiveReads {
    /// Pods, by name (also when there was none).
    pub pods: BTreeSet<PodKey>,
    /// The node, for its lock.
    pub node: bool,
}

impl LiveReads {
    /// These pods, without the node.
    pub fn pods(keys: impl IntoIterator<Item = PodKey>) -> Self {
        Self { pods: keys.into_iter().collect(), node: false }
    }

    /// These pods and the node: what a refusal rests on.
    pub fn pods_and_node(keys: impl IntoIterator<Item = PodKey>) -> Self {
        Self { pods: keys.into_iter().collect(), node: true }
    }

    /// The part of `self` that is not in `read`; `None` when there is none.
    pub fn missing(&self, read: &Self) -> Option<Self> {
        let pods: BTreeSet<PodKey> = self.pods.difference(&read.pods).cloned().collect();
        let node = self.node && !read.node;
        (node || !pods.is_empty()).then_some(Self { pods, node })
    }

    /// Adds `other`.
    pub fn add(&mut self, other: Self) {
        self.pods.extend(other.pods);
        self.node |= other.node;
    }
}

impl AllocateContext<'_> {
    /// What is watched is what is there, as far as anything shows.
    pub(super) fn is_up_to_date(&self) -> bool {
        let is_old = |value: &LockValue| self.now.duration_since(value.time).abs() > ASKED_WITHIN;
        self.watching && !matches!(self.lock, LockRead::Held { value, .. } if is_old(value))
    }

    /// Bound here, not ended, not being deleted: the kubelet may be calling for it.
    pub fn may_call(&self, pod: &HandoffPod) -> bool {
        self.is_here(pod) && !pod.phase.is_terminal() && pod.deleting.is_none()
    }

    /// The kubelet may still ask for this container, of which it has no ids: while it admits the pod or resizes it.
    pub(super) fn may_ask_for(&self, pod: &HandoffPod, container: &PodContainer) -> bool {
        pod.resizing || !self.ledger.is_over(&pod.pod.uid) && !self.ledger.has_run(container, self.now)
    }

    /// Bound to this node.
    pub fn is_here(&self, pod: &HandoffPod) -> bool {
        pod.node.as_deref() == Some(self.node)
    }
}

//! The input of a step: the TYJob, which of its pods could not be made, and every pod that belongs to it.

use std::collections::BTreeMap;

use jiff::Timestamp;

use crate::pod::Phase;
use baton_contract::tyjob::{InvalidField, TyJob};

/// A job as it was read last.
#[derive(Debug, Clone, PartialEq)]
pub struct JobView<'a> {
    /// The object. Its `resourceVersion` is the precondition of the status that a step returns.
    pub job: &'a TyJob,
    /// The part of the object that does not fit its type; `job` then has a default there.
    pub unreadable: Option<&'a InvalidField>,
    /// Scheduler name of the pods.
    pub scheduler_name: &'a str,
    /// Pods that could not be made at the last try, by name; `None` before the controller's first try: what the status states
    /// about them then stands.
    pub trouble: Option<&'a BTreeMap<String, CreateFailure>>,
}

/// Why a pod could not be made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CreateFailure {
    /// A pod of this name exists that is not the job's; its owner.
    Foreign(String),
    /// The API server rejects the pod as invalid.
    Invalid(String),
    /// The API server refuses it for now (quota, admission).
    Refused(String),
}

/// A pod that the job controls (by uid), terminal and terminating ones included.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PodView {
    /// Name.
    pub name: String,
    /// Uid.
    pub uid: String,
    /// Attempt that it was made for; none when the label is gone or unreadable.
    pub attempt: Option<i32>,
    /// Phase: `Failed` too where it ended well because it was asked to end, and its work is not done.
    pub phase: Phase,
    /// Its status says that it failed by preemption, eviction or the end of its node, not by itself.
    pub disrupted: bool,
    /// Condition `Ready`.
    pub ready: bool,
    /// Pod IP.
    pub ip: Option<String>,
    /// Node that it is bound to.
    pub node: Option<String>,
    /// What is known of that node.
    pub reachability: NodeReachability,
    /// Node that is reserved for it, by its annotation.
    pub allocation: Option<String>,
    /// End of its grace period, when it is being deleted.
    pub deleting: Option<Timestamp>,
    /// `resourceVersion`, by which an older report is known; 0 when it is no number.
    pub version: i64,
    /// The kubelet's count of restarts by container. Plain init containers are left out: they run again with every sandbox.
    pub container_restarts: BTreeMap<String, i32>,
    /// One of these containers has ended, and the kubelet waits before it starts it again.
    pub crash_loops: bool,
    /// The first container that waits for its image, and why.
    pub image: Option<ImageWait>,
    /// Why it failed, for people: reason, message or exit codes.
    pub failure: Option<String>,
}

/// A container that waits for its image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImageWait {
    /// `InvalidImageName`, `ErrImageNeverPull`, `ErrImagePull` or `ImagePullBackOff`.
    pub reason: String,
    /// The kubelet's message.
    pub message: String,
}

/// What is known of a pod's node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum NodeReachability {
    /// It is there, or the pod has none.
    #[default]
    There,
    /// Its kubelet has not reported since.
    UnreachableSince(Timestamp),
    /// The node object is gone.
    Gone,
}

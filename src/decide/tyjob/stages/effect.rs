//! What a step wants done once its status is written.

use baton_contract::EventReason;
use jiff::Timestamp;
use serde_json::Value;

use super::view::PodView;

/// One thing to do for a job. Each is harmless when repeated.
#[derive(Debug, Clone, PartialEq)]
pub enum JobEffect {
    /// Put the clean-up finalizer on the job.
    AddFinalizer,
    /// Take it away: no pod of the job is left.
    RemoveFinalizer,
    /// Something for a pod.
    Pod(PodEffect),
    /// An event on the job.
    Event {
        /// Needs attention.
        warning: bool,
        /// Reason.
        reason: EventReason,
        /// What happened, to which pod, why.
        message: String,
    },
    /// Look again at this time, whatever happens.
    Wake {
        /// When.
        at: Timestamp,
    },
}

/// One thing to do for a pod of a job.
#[derive(Debug, Clone, PartialEq)]
pub enum PodEffect {
    /// Make a pod.
    Create {
        /// Name.
        name: String,
        /// The whole object.
        body: Value,
    },
    /// Delete a pod as it was seen, and no other: what has happened to it since may decide otherwise.
    Delete {
        /// Name.
        name: String,
        /// Uid, the precondition.
        uid: String,
        /// Its `resourceVersion`, a precondition too; 0 where that is no number.
        version: i64,
        /// Without grace: its kubelet will never confirm.
        force: bool,
    },
    /// Write the reserved node to a pod that has no node yet.
    Reserve {
        /// Name.
        name: String,
        /// Uid, the precondition.
        uid: String,
        /// The node.
        node: String,
    },
}

impl PodEffect {
    /// The deletion of a pod.
    pub(super) fn delete(pod: &PodView) -> Self {
        Self::Delete { name: pod.name.clone(), uid: pod.uid.clone(), version: pod.version, force: false }
    }

    /// The deletion of a pod that no kubelet will confirm.
    pub(super) fn force_delete(pod: &PodView) -> Self {
        Self::Delete { name: pod.name.clone(), uid: pod.uid.clone(), version: pod.version, force: true }
    }
}

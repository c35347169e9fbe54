//! What a step wants done once its status is written.

use baton_contract::EventReason;
use jiff::Timestamp;
use serde_json::Value;

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
    /// Delete a pod of this uid and no other.
    Delete {
        /// Name.
        name: String,
        /// Uid, the precondition.
        uid: String,
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

//! Why a call is refused: a rule, a gRPC code and a text that the pod's owner reads in the pod's status; and the events on pods
//! that the hand-off writes.

use std::fmt;

use baton_contract::word::word_enum;
use baton_contract::{EventReason, PodRef};

word_enum! {
    /// The rule that a call breaks.
    AllocateRule {
        /// The calling pod cannot be identified.
        Unidentified = "unidentified",
        /// Two pods could be calling.
        Ambiguous = "ambiguous",
        /// No scheduler assigned devices to the pod.
        Unassigned = "unassigned",
        /// The assignment's annotations cannot be used.
        BadAssignment = "bad-assignment",
        /// The assignment is for another node.
        OtherNode = "other-node",
        /// The node lock is not this pod's.
        Lock = "lock",
        /// `spec.schedulerName` is not a scheduler whose assignments count.
        Scheduler = "scheduler",
        /// The pod was placed by hand: no PodScheduled condition.
        NotScheduled = "not-scheduled",
        /// The container's plan does not fit its request.
        Plan = "plan",
        /// A device does not exist here.
        UnknownDevice = "unknown-device",
        /// A device is unhealthy.
        Unhealthy = "unhealthy",
        /// A device has no room.
        NoRoom = "no-room",
        /// The limits of a GPU share cannot be enforced, or not as the pod asks for.
        Isolation = "isolation",
        /// The kubelet chose other devices, and that is configured to be an error.
        IdMismatch = "id-mismatch",
        /// The request makes no sense.
        Malformed = "malformed",
        /// The API server did not answer.
        ApiUnavailable = "api-unavailable",
        /// The budget is spent.
        Deadline = "deadline",
        /// The ledger could not be written.
        Ledger = "ledger",
        /// The answer could not be built.
        Answer = "answer",
        /// This instance does not serve (yet).
        NotServing = "not-serving",
    }
}

/// The gRPC code of a refusal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)] // the words of gRPC
pub enum RefusalCode {
    InvalidArgument,
    NotFound,
    FailedPrecondition,
    Aborted,
    ResourceExhausted,
    Unavailable,
    DeadlineExceeded,
    Internal,
}

impl AllocateRule {
    /// Its gRPC code.
    pub fn code(self) -> RefusalCode {
        match self {
            Self::Unidentified => RefusalCode::NotFound,
            Self::Ambiguous => RefusalCode::Aborted,
            Self::Malformed => RefusalCode::InvalidArgument,
            Self::NoRoom => RefusalCode::ResourceExhausted,
            Self::ApiUnavailable | Self::NotServing => RefusalCode::Unavailable,
            Self::Deadline => RefusalCode::DeadlineExceeded,
            Self::Ledger | Self::Answer => RefusalCode::Internal,
            _ => RefusalCode::FailedPrecondition,
        }
    }

    /// The annotation of the lock's holder is at fault: no pod will ever be served under its lock, so the lock is released.
    pub fn makes_lock_useless(self) -> bool {
        matches!(self, Self::Unassigned | Self::BadAssignment | Self::OtherNode | Self::Plan | Self::UnknownDevice)
    }
}

/// A refused call.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text}")]
pub struct AllocateRefusal {
    /// The rule it breaks.
    pub rule: AllocateRule,
    /// Names pod, container, resource and rule, and says what to do.
    pub text: String,
    /// The pods it is about: one, several when ambiguous, none when no pod is known.
    pub pods: Vec<PodRef>,
}

impl AllocateRefusal {
    /// A refusal that is about no known pod.
    pub fn without_pod(rule: AllocateRule, resource: &str, why: impl fmt::Display) -> Self {
        Self { rule, text: format!("{resource}: {why}"), pods: Vec::new() }
    }

    /// A refusal of one container's call.
    pub fn of(rule: AllocateRule, pod: &PodRef, container: &str, resource: &str, why: impl fmt::Display) -> Self {
        let text = format!("pod {}, container {container}, {resource}: {why}", pod.key);
        Self { rule, text, pods: vec![pod.clone()] }
    }

    /// One event for each of its pods.
    pub fn notices(&self) -> impl Iterator<Item = PodNotice> + '_ {
        let reason = if self.rule == AllocateRule::Ambiguous {
            EventReason::AmbiguousAllocate
        } else {
            EventReason::AllocateRefused
        };
        self.pods.iter().map(move |pod| PodNotice::new(pod.clone(), reason, self.text.clone()))
    }
}

/// One event on one pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodNotice {
    /// The pod.
    pub pod: PodRef,
    /// Reason.
    pub reason: EventReason,
    /// One sentence; never longer than an event's note may be.
    pub note: String,
}

/// Longest note of an event, in bytes.
const MAX_NOTE: usize = 1000;

impl PodNotice {
    /// A notice with its note cut to what an event can hold.
    pub fn new(pod: PodRef, reason: EventReason, mut note: String) -> Self {
        note.truncate(note.floor_char_boundary(MAX_NOTE));
        Self { pod, reason, note }
    }
}

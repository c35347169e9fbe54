//! Why a call is refused: a rule, a gRPC code and a text that the pod's owner reads in the pod's status.

use std::fmt;

use super::notice::Notice;
use crate::contract::PodRef;

/// The rule that a call breaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Rule {
    /// Nothing tells which pod is calling.
    Unidentified,
    /// Two pods could be calling.
    Ambiguous,
    /// The pod is not bound to this node.
    NotHere,
    /// The pod has ended.
    Terminal,
    /// The pod is being deleted.
    Deleting,
    /// Nobody assigned devices to the pod.
    Unassigned,
    /// The assignment's annotations cannot be used.
    BadAssignment,
    /// The assignment is for another node.
    OtherNode,
    /// The node lock is not this pod's.
    Lock,
    /// `spec.schedulerName` is not a scheduler whose assignments count.
    Scheduler,
    /// The pod was placed by hand: no PodScheduled condition.
    NotScheduled,
    /// The container's plan does not fit its request.
    Plan,
    /// A device does not exist here.
    UnknownDevice,
    /// A device is unhealthy.
    Unhealthy,
    /// A device has no room.
    NoRoom,
    /// The kubelet chose other devices, and that is configured to be an error.
    IdMismatch,
    /// The request makes no sense.
    Malformed,
    /// The API server did not answer.
    ApiUnavailable,
    /// The budget is spent.
    Deadline,
    /// The ledger could not be written.
    Ledger,
    /// The answer could not be built.
    Answer,
    /// This instance does not serve (yet).
    NotServing,
}

/// The gRPC code of a refusal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)] // the words of gRPC
pub enum Code {
    InvalidArgument,
    NotFound,
    FailedPrecondition,
    Aborted,
    ResourceExhausted,
    Unavailable,
    DeadlineExceeded,
    Internal,
}

impl Rule {
    /// One word for metrics.
    pub fn word(self) -> &'static str {
        match self {
            Self::Unidentified => "unidentified",
            Self::Ambiguous => "ambiguous",
            Self::NotHere => "not-here",
            Self::Terminal => "terminal",
            Self::Deleting => "deleting",
            Self::Unassigned => "unassigned",
            Self::BadAssignment => "bad-assignment",
            Self::OtherNode => "other-node",
            Self::Lock => "lock",
            Self::Scheduler => "scheduler",
            Self::NotScheduled => "not-scheduled",
            Self::Plan => "plan",
            Self::UnknownDevice => "unknown-device",
            Self::Unhealthy => "unhealthy",
            Self::NoRoom => "no-room",
            Self::IdMismatch => "id-mismatch",
            Self::Malformed => "malformed",
            Self::ApiUnavailable => "api-unavailable",
            Self::Deadline => "deadline",
            Self::Ledger => "ledger",
            Self::Answer => "answer",
            Self::NotServing => "not-serving",
        }
    }

    /// Its gRPC code.
    pub fn code(self) -> Code {
        match self {
            Self::Unidentified => Code::NotFound,
            Self::Ambiguous => Code::Aborted,
            Self::Malformed => Code::InvalidArgument,
            Self::NoRoom => Code::ResourceExhausted,
            Self::ApiUnavailable | Self::NotServing => Code::Unavailable,
            Self::Deadline => Code::DeadlineExceeded,
            Self::Ledger | Self::Answer => Code::Internal,
            _ => Code::FailedPrecondition,
        }
    }

    /// The holder's own annotation is at fault: nobody will ever be served under its lock, so the lock goes.
    pub fn makes_lock_useless(self) -> bool {
        matches!(self, Self::Unassigned | Self::BadAssignment | Self::OtherNode | Self::Plan | Self::UnknownDevice)
    }
}

/// A refused call.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text}")]
pub struct Refusal {
    /// The rule it breaks.
    pub rule: Rule,
    /// Names pod, container, resource and rule, and says what to do.
    pub text: String,
    /// The pods it is about: one, two when ambiguous, none when nobody is known.
    pub pods: Vec<PodRef>,
}

impl Refusal {
    /// A refusal that is about no known pod.
    pub fn nobody(rule: Rule, resource: &str, why: impl fmt::Display) -> Self {
        Self { rule, text: format!("{resource}: {why}"), pods: Vec::new() }
    }

    /// A refusal of one container's call.
    pub fn of(rule: Rule, pod: &PodRef, container: &str, resource: &str, why: impl fmt::Display) -> Self {
        let text = format!("pod {}, container {container}, {resource}: {why}", pod.key);
        Self { rule, text, pods: vec![pod.clone()] }
    }

    /// The events that tell it.
    pub fn notices(&self) -> impl Iterator<Item = Notice> + '_ {
        let reason = if self.rule == Rule::Ambiguous { "AmbiguousAllocate" } else { "AllocateRefused" };
        self.pods.iter().map(move |pod| Notice::new(pod.clone(), reason, self.text.clone()))
    }
}

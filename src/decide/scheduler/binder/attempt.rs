//! The bind attempt of one pod.

use std::time::Duration;

use jiff::Timestamp;

use crate::contract::{PodRef, Shared};
use crate::decide::lock::LockClaim;
use crate::decide::scheduler::effect::{Effect, Ticket};
use crate::decide::scheduler::rules::Annotations;
use crate::decide::world::{NodeId, PodId};

/// A pod whose node is chosen and whose room is held, on its way to a Binding.
#[derive(Debug, Clone)]
pub struct BindAttempt {
    /// The pod.
    pub pod: PodRef,
    /// The node.
    pub node: NodeId,
    /// Its name.
    pub node_name: Box<str>,
    /// Written into the lock and into `bind-timestamp`.
    pub time: Timestamp,
    /// The kubelet will call for these names, so the lock is taken first; empty binds without a lock.
    pub calls: Shared<Vec<Box<str>>>,
    /// The lock is taken first.
    pub locks: bool,
    /// The Binding's annotations, all but the time.
    pub annotations: Shared<Annotations>,
    /// The commit of a group that it is part of.
    pub commit: Option<u64>,
    /// Where it is.
    pub stage: Stage,
    /// A lock value of ours that may stand on the node.
    pub lock_value: Option<Box<str>>,
    /// Place in the node's lock queue.
    pub turn: Turn,
    /// Monotonic time of the decision.
    pub since: Duration,
    /// Monotonic time since which it waits in the lock queue.
    pub queued: Duration,
    /// Not tried before this monotonic time.
    pub not_before: Duration,
    /// Tries that failed in a row.
    pub failures: u32,
    /// Monotonic time of the first failure of the current trouble.
    pub trouble_since: Option<Duration>,
    /// What was asked for while preparing, and when: it is not asked for twice in a row.
    pub asked: Vec<(Effect, Duration)>,
    /// Why the attempt ends as soon as the request under way is answered.
    pub cancelled: Option<Cancel>,
}

/// Place in a lock queue: higher priority, then first come.
pub type Turn = (i64, u64, PodId);

/// Where a bind attempt is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// What comes before the lock is being prepared (volumes); asked again at [`BindAttempt::not_before`] or when volumes change.
    Preparing,
    /// In the node's lock queue.
    Queued,
    /// The lock is being written.
    Locking(Ticket),
    /// The Binding is being posted.
    Binding(Ticket),
    /// The Binding failed in a way that may pass; posted again at [`BindAttempt::not_before`].
    BindAgain,
    /// The pod is being read, because it is unknown whether it is bound.
    Reading,
    /// Reading failed; read again at [`BindAttempt::not_before`].
    ReadAgain,
}

/// Why a bind attempt ends early.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Cancel {
    /// The pod is gone, ended or being deleted.
    PodGone,
    /// The pod goes back to the queue.
    Requeue(String),
}

impl BindAttempt {
    /// What the lock's decisions need.
    pub fn claim(&self) -> LockClaim {
        LockClaim { pod: self.pod.clone(), time: self.time }
    }

    /// `true` while a request is under way whose outcome decides.
    pub const fn awaits_answer(&self) -> bool {
        matches!(self.stage, Stage::Locking(_) | Stage::Binding(_) | Stage::Reading)
    }
}

//! A pod on its way from the decision to its node, and the line in which pods wait for a node's lock.

use std::collections::BTreeSet;
use std::time::Duration;

use jiff::Timestamp;

use crate::contract::{PodRef, Shared};
use crate::decide::lock::LockClaim;
use crate::decide::world::{NodeId, PodId};

use super::annotations::Annotations;
use super::effect::{Effect, Ticket};
use super::line::SaidOfLock;

/// A pod whose node is chosen and whose room is held.
#[derive(Debug, Clone)]
pub struct Flight {
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
    /// Place in the line.
    pub turn: Turn,
    /// Monotonic time of the decision.
    pub since: Duration,
    /// Monotonic time since which it stands in the line.
    pub in_line: Duration,
    /// Not tried before this monotonic time.
    pub not_before: Duration,
    /// Tries that failed in a row.
    pub failures: u32,
    /// Monotonic time of the first failure of the current trouble.
    pub trouble_since: Option<Duration>,
    /// What was asked for while preparing, and when: it is not asked for twice in a row.
    pub asked: Vec<(Effect, Duration)>,
    /// Why the flight must end as soon as the request under way has been answered.
    pub cancelled: Option<Cancel>,
}

/// Place in a line: higher priority, then first come.
pub type Turn = (i64, u64, PodId);

/// Where a flight is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// What comes before the lock is being prepared (volumes); asked again at [`Flight::not_before`] or when volumes change.
    Preparing,
    /// In the node's line.
    Line,
    /// The lock is being written.
    Locking(Ticket),
    /// The Binding is being posted.
    Binding(Ticket),
    /// The Binding failed in a way that may pass; posted again at [`Flight::not_before`].
    BindAgain,
    /// The pod is being read, because nobody knows whether it is bound.
    Reading,
    /// Reading failed; read again at [`Flight::not_before`].
    ReadAgain,
}

/// Why a flight ends early.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Cancel {
    /// The pod is gone, ended or being deleted.
    PodGone,
    /// The pod goes back to the queue.
    Requeue(String),
}

impl Flight {
    /// What the lock's decisions need.
    pub fn claim(&self) -> LockClaim {
        LockClaim { pod: self.pod.clone(), time: self.time }
    }

    /// `true` while a request is under way whose outcome decides.
    pub fn is_asking(&self) -> bool {
        matches!(self.stage, Stage::Locking(_) | Stage::Binding(_) | Stage::Reading)
    }
}

/// The line of one node.
#[derive(Debug, Clone, Default)]
pub struct Line {
    /// Waiting for the lock, first one first.
    pub waiting: BTreeSet<Turn>,
    /// Holding or writing the lock, not yet bound.
    pub head: Option<PodId>,
    /// When it is looked over, to tell those who have waited for long.
    pub look_at: Option<Duration>,
    /// What those were told of the lock that stands.
    pub said: Option<SaidOfLock>,
}

impl Line {
    /// `true` when nobody is in it.
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty() && self.head.is_none()
    }
}

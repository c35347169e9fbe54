//! Time as the caller reads it, and what happens at a later time.

use std::collections::BTreeSet;
use std::time::Duration;

use jiff::Timestamp;

use crate::world::gangs::GroupId;
use crate::world::{NodeId, PodId};
use baton_contract::PodKey;

/// One reading of both clocks, passed in by the caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Moment {
    /// Monotonic.
    pub mono: Duration,
    /// Wall.
    pub wall: Timestamp,
}

/// What happens at a later time, and the owner that does it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Timer {
    /// Binder: the pause of a bind attempt is over.
    BindAttempt(PodId),
    /// Reservations: the Permit rules run again.
    Permit(PodId),
    /// Gangs: the waiting time of a group may be over.
    GroupWait(GroupId),
    /// Gangs: a changed reason why a group is not ready is reported.
    ReportGroup(GroupId),
    /// Gangs: marks of a group that timed out are written again.
    MarkTimedOut(GroupId),
    /// Gangs: the status of a group's PodGroups is compared and written.
    PodGroups(GroupId),
    /// Preemption: victims are evicted again, or the nomination ends.
    Nomination(PodId),
    /// Preemption: a failed write of a nomination is repeated.
    WriteNomination(PodId),
    /// Binder: the node's lock and its queue are checked.
    Node(NodeId),
    /// Binder: pods that wait for long in the node's lock queue are reported.
    LockQueue(NodeId),
    /// Binder: a failed release of a lock value is repeated.
    Release(NodeId, Box<str>),
    /// Reporter: a pending condition is written.
    Report(PodId),
    /// Gangs: a member is evicted again.
    EvictMember(PodId),
    /// Binder: the deadline of a bind request has passed.
    BindRequest(PodId),
    /// TyJobs: the job is reviewed.
    TyJob(PodKey),
    /// TyJobs: places may be beyond the quotas of this namespace.
    Quotas(Box<str>),
    /// A pod of another scheduler has waited for a while.
    OtherScheduler(PodId),
    /// Earmarks: they are checked.
    Earmark,
    /// Binder: every lock is checked.
    Sweep,
}

/// Timers in order of time; equal ones are one.
#[derive(Debug, Default)]
pub struct Timers {
    due: BTreeSet<(Duration, Timer)>,
}

impl Timers {
    /// Lets `timer` fire at the monotonic time `at`.
    pub fn set(&mut self, at: Duration, timer: Timer) {
        self.due.insert((at, timer));
    }

    /// Takes the earliest timer that is due.
    pub fn pop(&mut self, now: Duration) -> Option<Timer> {
        self.due.first().filter(|(at, _)| *at <= now)?;
        self.due.pop_first().map(|(_, timer)| timer)
    }

    /// When the next one is due.
    pub fn next(&self) -> Option<Duration> {
        self.due.first().map(|(at, _)| *at)
    }
}

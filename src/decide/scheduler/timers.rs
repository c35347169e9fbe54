//! Time as the caller reads it, and what happens at a certain time.

use std::collections::BTreeSet;
use std::time::Duration;

use jiff::Timestamp;

use crate::contract::PodKey;
use crate::decide::world::gangs::GroupId;
use crate::decide::world::{NodeId, PodId};

/// One reading of both clocks, brought by the caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Moment {
    /// Monotonic.
    pub mono: Duration,
    /// Wall.
    pub wall: Timestamp,
}

/// What a timer is for; each names the owner that it wakes.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Timer {
    /// Binder: a bind attempt pauses until then.
    BindAttempt(PodId),
    /// Reservations: Permit is asked again.
    Permit(PodId),
    /// Gangs: the wait of a group may be over.
    GroupWait(GroupId),
    /// Gangs: a changed reason of a group that is not ready is written.
    ReportGroup(GroupId),
    /// Gangs: marks of a group that timed out are written again.
    MarkTimedOut(GroupId),
    /// Gangs: the status of a group's PodGroups is compared and written.
    PodGroups(GroupId),
    /// Preemption: victims are evicted again, or nominated room is opened.
    Nomination(PodId),
    /// Preemption: a nomination that was not written is written again.
    WriteNomination(PodId),
    /// Binder: the node's lock and its queue are looked at.
    Node(NodeId),
    /// Binder: pods that have waited for long in the node's lock queue get a condition.
    LockQueue(NodeId),
    /// Binder: the release of a lock value is tried again.
    Release(NodeId, Box<str>),
    /// Reporter: a condition that had to wait is written.
    Report(PodId),
    /// Gangs: the eviction of a member is asked for again.
    EvictMember(PodId),
    /// Binder: the time of a bind request is over.
    BindRequest(PodId),
    /// TyJobs: the job is reviewed.
    TyJob(PodKey),
    /// Binder: every lock is looked at.
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

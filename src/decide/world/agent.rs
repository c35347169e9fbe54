//! The agent of a node, by its Lease.

use std::time::Duration;

use jiff::Timestamp;

use baton_contract::{AgentStatus, Shared};

/// One version of a Lease.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeaseSeen {
    /// Its annotation, when readable.
    pub status: Option<Shared<AgentStatus>>,
    /// resourceVersion.
    pub version: Box<str>,
    /// `spec.renewTime`.
    pub renewed: Option<Timestamp>,
}

/// The node's agent, by its Lease.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Agent {
    /// What it serves; `None` when the annotation is missing or unreadable.
    pub status: Option<Shared<AgentStatus>>,
    /// Version of the Lease that was last seen.
    pub version: Box<str>,
    /// Its `spec.renewTime`, by the daemon's clock: for words, no judgement.
    pub renewed: Option<Timestamp>,
    /// Monotonic time at which that version was first seen.
    pub changed: Duration,
    /// Monotonic time since which it has been live without a gap; `None` while stale.
    pub live_since: Option<Duration>,
}

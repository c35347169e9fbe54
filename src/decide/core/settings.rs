//! Settings of the scheduler and its counters.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::core::queue::QueuePolicy;
use crate::lock::{LockMode, LockPolicy};
use crate::world::WorldPolicy;
use baton_contract::LockFormat;

use super::cost::PlacingCost;
use super::policies::{EarmarkPolicy, GangPolicy, JobPolicy, RetryPolicy};

/// How a node is searched for. Both find the same node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum NodeSearch {
    /// Verdicts are kept between pods of one shape; only nodes that changed are judged again.
    #[default]
    Indexed,
    /// Every node is judged for every pod: the reference for tests.
    Scanning,
}

/// Settings of the scheduler.
#[derive(Debug, Clone)]
pub struct Config {
    /// Pods with one of these scheduler names are ours.
    pub scheduler_names: BTreeSet<Box<str>>,
    /// Pods with one of these scheduler names are bound by us when their scheduler requests it
    /// ([`Scheduler::request_bind`](crate::scheduler::Scheduler::request_bind)); a lock that such a bind leaves behind is released, not resumed.
    pub asking_names: BTreeSet<Box<str>>,
    /// When a bind takes the node lock.
    pub lock_mode: LockMode,
    /// Format of the lock value.
    pub lock_format: LockFormat,
    /// Times of the lock protocol.
    pub lock_policy: LockPolicy,
    /// Times of the queue.
    pub queue: QueuePolicy,
    /// Times of observation.
    pub world: WorldPolicy,
    /// A Binding that was posted may be made for this long: its bind keeps lock and devices, and a lock of ours without a bind is released
    /// when it has not changed for as long. 60 s: an API server answers or drops a request within a minute (`--request-timeout`).
    pub abandoned: Duration,
    /// Period of the check of all locks. 10 s.
    pub sweep: Duration,
    /// How a bind is tried again. The status of a TYJob is written again with the same pauses.
    pub retry: RetryPolicy,
    /// Pause between two messages of a condition with the same reason. 10 s.
    pub condition_pause: Duration,
    /// Settings for gangs.
    pub gangs: GangPolicy,
    /// Settings for TYJobs.
    pub jobs: JobPolicy,
    /// When nodes are kept for what has waited long.
    pub earmarks: EarmarkPolicy,
    /// Items tried per [`Scheduler::run`](crate::scheduler::Scheduler::run).
    pub batch: usize,
    /// How a node is searched for.
    pub search: NodeSearch,
}

impl Default for Config {
    fn default() -> Self {
        let s = Duration::from_secs;
        Self {
            scheduler_names: ["baton-scheduler".into()].into(),
            asking_names: BTreeSet::new(),
            lock_mode: LockMode::Always,
            lock_format: LockFormat::Uid,
            lock_policy: LockPolicy::default(),
            queue: QueuePolicy::default(),
            world: WorldPolicy::default(),
            abandoned: s(60),
            sweep: s(10),
            retry: RetryPolicy::default(),
            condition_pause: s(10),
            gangs: GangPolicy::default(),
            jobs: JobPolicy::default(),
            earmarks: EarmarkPolicy::default(),
            batch: 64,
            search: NodeSearch::Indexed,
        }
    }
}

/// Counters since the start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Stats {
    /// Decisions.
    pub attempts: u64,
    /// Judged nodes.
    pub judged: u64,
    /// What placing pods has cost.
    pub work: PlacingCost,
    /// Decisions without a node.
    pub unschedulable: u64,
    /// Bind attempts.
    pub binds: BindStats,
    /// Pods evicted to make room.
    pub preempted: u64,
    /// Groups of gangs.
    pub groups: GroupStats,
    /// TYJobs.
    pub jobs: JobStats,
}

/// Counters of bind attempts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct BindStats {
    /// Pods bound by this process.
    pub bound: u64,
    /// Binds that failed for good.
    pub failed: u64,
    /// Lock writes that found another pod's lock.
    pub contended: u64,
    /// Half-done binds that were resumed.
    pub resumed: u64,
}

/// Counters of groups of gangs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct GroupStats {
    /// Attempts.
    pub attempts: u64,
    /// Full reviews.
    pub reviews: u64,
    /// Members that were checked for an offer.
    pub offered: u64,
    /// Groups that were satisfied.
    pub satisfied: u64,
    /// Groups whose waiting time was over.
    pub timeouts: u64,
    /// Groups that released their reservations.
    pub releases: u64,
}

/// Counters of TYJobs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct JobStats {
    /// Rounds over those that wait.
    pub rounds: u64,
    /// Attempts that gave one of them places.
    pub placed: u64,
    /// Places that their pods took over.
    pub places_taken: u64,
    /// Places that became void.
    pub places_void: u64,
}

//! Settings of the scheduler and its counters.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::contract::LockFormat;
use crate::decide::lock::LockPolicy;
use crate::decide::scheduler::queue::QueuePolicy;
use crate::decide::world::WorldPolicy;

use crate::decide::gang::policy::GangPolicy;
use crate::decide::tyjob::record::JobPolicy;

/// When a bind takes the node lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LockMode {
    /// Always, where the kubelet will call.
    #[default]
    Always,
    /// Not where the node's live agent identifies callers exactly.
    Auto,
}

/// How a node is looked for. Both find the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Search {
    /// Verdicts are kept between pods of one shape; only nodes that changed are judged again.
    #[default]
    Indexed,
    /// Every node is judged for every pod: the reference.
    Scanning,
}

/// Settings of the scheduler.
#[derive(Debug, Clone)]
pub struct Config {
    /// Pods with one of these scheduler names are ours.
    pub scheduler_names: BTreeSet<Box<str>>,
    /// Pods with one of these names are bound by us when their scheduler asks ([`Scheduler::request_bind`](super::Scheduler::request_bind)); a lock that such a bind left
    /// behind is removed, not resumed.
    pub asking_names: BTreeSet<Box<str>>,
    /// When the lock is taken.
    pub lock_mode: LockMode,
    /// How the lock is written.
    pub lock_format: LockFormat,
    /// Times of the lock protocol.
    pub lock_policy: LockPolicy,
    /// Times of the queue.
    pub queue: QueuePolicy,
    /// Windows of observation.
    pub world: WorldPolicy,
    /// A lock of ours that nobody pursues is released when it stood unchanged for this long. 30 s.
    pub abandoned: Duration,
    /// How often locks are looked over. 10 s.
    pub sweep: Duration,
    /// First and longest pause between tries of a bind, and for how long it is tried. 100 ms, 5 s, 60 s.
    pub retry: (Duration, Duration, Duration),
    /// A condition whose reason stays is rewritten at most this often. 10 s.
    pub condition_pause: Duration,
    /// How gangs are treated.
    pub gangs: GangPolicy,
    /// How TYJobs are treated.
    pub jobs: JobPolicy,
    /// Decisions per [`Scheduler::run`](super::Scheduler::run).
    pub batch: usize,
    /// How a node is looked for.
    pub search: Search,
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
            abandoned: s(30),
            sweep: s(10),
            retry: (Duration::from_millis(100), s(5), s(60)),
            condition_pause: s(10),
            gangs: GangPolicy::default(),
            jobs: JobPolicy::default(),
            batch: 64,
            search: Search::Indexed,
        }
    }
}

/// Counters since the start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Stats {
    /// Decisions.
    pub attempts: u64,
    /// Nodes that were judged for them.
    pub judged: u64,
    /// Decisions without a node.
    pub unschedulable: u64,
    /// Pods bound by this process.
    pub bound: u64,
    /// Binds that failed for good.
    pub bind_failures: u64,
    /// Lock writes that found somebody else's lock.
    pub contended: u64,
    /// Expired holders that were deleted.
    pub fenced: u64,
    /// Half-done binds that were resumed.
    pub resumed: u64,
    /// Pods that were evicted to make room.
    pub preempted: u64,
    /// Attempts of groups of gangs.
    pub group_attempts: u64,
    /// How often a group was judged anew as a whole.
    pub group_reviews: u64,
    /// Members that were gone through to see whom to offer.
    pub group_offered: u64,
    /// Groups that were satisfied.
    pub groups_satisfied: u64,
    /// Groups whose wait was over.
    pub group_timeouts: u64,
    /// Groups that gave back what they held.
    pub group_releases: u64,
    /// Rounds over the waiting TYJobs.
    pub job_rounds: u64,
    /// Attempts that gave a TYJob places.
    pub jobs_placed: u64,
    /// Places that their pods have taken over.
    pub job_places_taken: u64,
    /// Places that became void.
    pub job_places_void: u64,
}

//! How groups of gangs and TYJobs are treated, and what is kept for those that have waited long.

use std::time::Duration;

use baton_contract::gang::TimeoutClock;
use baton_contract::word::word_enum;

word_enum! {
    /// What becomes of the others when one member cannot be bound for good.
    #[derive(Default)]
    OnBindFailure {
        /// Nothing: that pod alone is tried again.
        #[default]
        Solo = "solo",
        /// They are deleted, so that their controller starts the gang again.
        EvictGang = "evictGang",
    }
}

/// How groups are treated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GangPolicy {
    /// When the wait of a group begins that does not say so itself.
    pub clock: TimeoutClock,
    /// What becomes of the others when one member cannot be bound for good.
    pub on_bind_failure: OnBindFailure,
    /// The condition of a member whose reason stays is rewritten at most this often, and a group is not tried again within this time
    /// while fewer GPUs are free than it lacked. 60 s.
    pub condition_pause: Duration,
    /// PodGroups are made for gangs that are named by `pod-group.scheduling.sigs.k8s.io/name`.
    pub create_pod_groups: bool,
}

impl Default for GangPolicy {
    fn default() -> Self {
        Self {
            clock: TimeoutClock::default(),
            on_bind_failure: OnBindFailure::default(),
            condition_pause: Duration::from_secs(60),
            create_pod_groups: false,
        }
    }
}

/// How what has failed is tried again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RetryPolicy {
    /// First and longest pause between tries. 100 ms, 5 s.
    pub pauses: (Duration, Duration),
    /// A bind fails for good when its tries have failed for this long. 60 s.
    pub limit: Duration,
}

impl Default for RetryPolicy {
    fn default() -> Self {
        Self { pauses: (Duration::from_millis(100), Duration::from_secs(5)), limit: Duration::from_secs(60) }
    }
}

/// Settings for jobs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct JobPolicy {
    /// Waiting jobs are tried this often. 1 s.
    pub period: Duration,
    /// A job that does not fit on all known nodes fails after this long. 5 min.
    pub unfit_grace: Duration,
    /// A place that its pod does not take within this time is void. 60 s.
    pub reservation_timeout: Duration,
    /// Places without pods are given back this long after the job was placed. 10 min.
    pub start_limit: Duration,
    /// Weights of the resources in node ratings.
    pub weights: MetricWeights,
}

impl Default for JobPolicy {
    fn default() -> Self {
        Self {
            period: Duration::from_secs(1),
            unfit_grace: Duration::from_secs(300),
            reservation_timeout: Duration::from_secs(60),
            start_limit: Duration::from_secs(600),
            weights: MetricWeights::default(),
        }
    }
}

/// Weights of the resources in a rating.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MetricWeights {
    /// Of CPU.
    pub cpu: u32,
    /// Of memory.
    pub memory: u32,
    /// Of GPUs.
    pub gpu: u32,
    /// What `LeaderFirst` puts in the place of one of them.
    pub raised: u32,
}

impl Default for MetricWeights {
    fn default() -> Self {
        Self { cpu: 1, memory: 1, gpu: 1, raised: 3 }
    }
}

/// When nodes are kept for what has waited long, and how many.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EarmarkPolicy {
    /// From this age on; zero means never. 10 min.
    pub after: Duration,
    /// Percent of all GPUs that may be kept, and of all NICs for those that wait for NICs alone. 50.
    pub share: u32,
    /// An earmark ends after this time, and the next one has its turn. 6 h.
    pub limit: Duration,
}

impl Default for EarmarkPolicy {
    fn default() -> Self {
        Self { after: Duration::from_mins(10), share: 50, limit: Duration::from_hours(6) }
    }
}

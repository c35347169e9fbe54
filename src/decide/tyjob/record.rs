//! Settings for jobs, and what the scheduler writes of a job.

use std::time::Duration;

use baton_contract::tyjob::{Allocation, ScheduleState};

use super::placement::{MetricWeights, ScheduledCondition};

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

/// The part of a job's status that the scheduler writes.
#[derive(Debug, Clone, PartialEq)]
pub struct JobScheduleStatus {
    /// `status.scheduleState`.
    pub state: ScheduleState,
    /// Places, the leader's first.
    pub allocations: Vec<Allocation>,
    /// Condition `Scheduled`.
    pub condition: ScheduledCondition,
}

/// The result of a status write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum JobWriteResult {
    /// Written; the object's resourceVersion after it, 0 when it is not a number.
    Done(u64),
    /// No job of that name and uid.
    Gone,
    /// The object has changed since, or another job has the name now: the decision has to be reviewed.
    Stale,
    /// The outcome is unknown.
    Failed(String),
}

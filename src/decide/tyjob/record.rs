//! The scheduler's record of a job, and its settings for jobs.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;

use crate::contract::Shared;
use crate::contract::tyjob::{Allocation, ScheduleState};
use crate::decide::world::PodId;

use super::placement::{Class, JobFacts, ScheduledCondition, Weights};

/// Settings for jobs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct JobPolicy {
    /// Waiting jobs are tried this often. 1 s.
    pub period: Duration,
    /// A job that does not fit on all known nodes fails after this long. 5 min.
    pub unfit_grace: Duration,
    /// A place that its pod does not take within this time is void. 60 s.
    pub reservation_timeout: Duration,
    /// Weights of the resources in node ratings.
    pub weights: Weights,
}

impl Default for JobPolicy {
    fn default() -> Self {
        Self {
            period: Duration::from_secs(1),
            unfit_grace: Duration::from_secs(300),
            reservation_timeout: Duration::from_secs(60),
            weights: Weights::default(),
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

/// The place of one pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobPlace {
    /// Node.
    pub node: Box<str>,
    /// The room that is reserved there; `None` once the pod itself takes it or has ended.
    pub reservation: Option<PodId>,
    /// Monotonic time since which the controller can create the pod; a worker's also needs [`JobRecord::address_since`].
    pub since: Duration,
}

/// One job.
#[derive(Debug, Clone, Default)]
pub struct JobRecord {
    /// Uid of the job.
    pub uid: Box<str>,
    /// Attempt that the places are for.
    pub attempt: i32,
    /// Places by pod name.
    pub places: BTreeMap<Box<str>, JobPlace>,
    /// The last decision.
    pub state: Option<ScheduleState>,
    /// Reason and message of condition `Scheduled`, and the monotonic time of their report.
    pub reported: Option<(&'static str, String, Duration)>,
    /// Reason and message that are reported when the pause after the present ones is over.
    pub(super) pending: Option<(&'static str, String)>,
    /// The last classification.
    pub class: Class,
    /// The job at the last review.
    pub(super) last_seen: Option<Shared<JobFacts>>,
    /// Monotonic time since which the leader has an address.
    pub(super) address_since: Option<Duration>,
    /// Monotonic time since which the job is known not to fit, and why.
    pub unfit: Option<(Duration, String)>,
    /// Nodes or the job's requests have changed since it was judged not to fit.
    pub(super) nodes_changed: bool,
    /// A status write is under way.
    pub(super) writing: bool,
    /// Content of the last write, unless it failed.
    pub(super) last_written: Option<JobScheduleStatus>,
    /// The object's version after that write; 0 before the first write.
    pub(super) written_version: u64,
    /// The version of the object on which the last write was decided.
    pub(super) attempted_version: u64,
    /// The newest version that is known to be out of date: the next write waits for a newer one.
    pub(super) stale_version: u64,
    /// The monotonic end of that wait.
    pub(super) stale_until: Duration,
    /// Status of the condition, and the time of its last change.
    pub(super) condition_since: Option<(bool, Timestamp)>,
    /// Failed writes in a row.
    pub(super) failures: u32,
    /// No write before this monotonic time.
    pub(super) not_before: Duration,
}

impl JobRecord {
    /// Remembers the job as it is now. Returns the job as it was if its requests or ended workers have changed, which makes earlier
    /// verdicts void.
    pub(super) fn observe(&mut self, job: &Shared<JobFacts>) -> Option<Shared<JobFacts>> {
        let former = self.last_seen.replace(job.clone())?;
        let changed = !former.is_same(job) && (&former.spec, &former.ended) != (&job.spec, &job.ended);
        if changed {
            self.unfit = None;
            self.nodes_changed = true;
        }
        changed.then_some(former)
    }

    /// The pods with a place whose template has changed.
    pub(super) fn changed_templates(&self, former: &JobFacts, job: &JobFacts) -> Vec<Box<str>> {
        let template = |job: &JobFacts, pod: &str| {
            let spec = job.spec.as_ref().ok()?;
            let seat = spec.seat(&job.job.key.name, pod)?;
            Some(spec.parts.get(seat.part)?.pod.clone())
        };
        let placed = self.places.keys();
        placed.filter(|pod| template(former, pod) != template(job, pod)).cloned().collect()
    }

    /// Number of places that no pod has taken yet.
    pub fn reservations(&self) -> usize {
        self.places.values().filter(|place| place.reservation.is_some()).count()
    }
}

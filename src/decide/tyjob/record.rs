//! What the scheduler keeps of a job, and how it treats jobs.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;

use crate::contract::Shared;
use crate::contract::tyjob::{Allocation, ScheduleState};
use crate::decide::world::PodId;

use super::placement::{Class, JobFacts, ScheduledCondition, Weights};

/// How jobs are treated.
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

/// The scheduler's half of a job's status.
#[derive(Debug, Clone, PartialEq)]
pub struct JobHalf {
    /// How far the scheduler is.
    pub state: ScheduleState,
    /// Places, the leader's first.
    pub allocations: Vec<Allocation>,
    /// Condition `Scheduled`.
    pub condition: ScheduledCondition,
}

/// What came of writing a half.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum JobWriteResult {
    /// Written; the version of the object since, 0 when it cannot be read.
    Done(u64),
    /// No job of that name and uid.
    Gone,
    /// Somebody has written meanwhile, or the name is another job's by now: what was decided is to be looked at again.
    Stale,
    /// It may or may not have happened.
    Failed(String),
}

/// The place of one pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobPlace {
    /// Node.
    pub node: Box<str>,
    /// The room that is kept there; `None` once the pod itself takes it, or has ended.
    pub reservation: Option<PodId>,
    /// Monotonic time since which the controller could make the pod, beside what [`JobRecord::address_since`] says.
    pub since: Duration,
}

/// One job.
#[derive(Debug, Clone)]
pub struct JobRecord {
    /// Uid of the job that this is about.
    pub uid: Box<str>,
    /// Attempt that the places are for.
    pub attempt: i32,
    /// Places by pod name.
    pub places: BTreeMap<Box<str>, JobPlace>,
    /// What was decided last.
    pub state: Option<ScheduleState>,
    /// Reason and message of condition `Scheduled`; its time of writing.
    pub said: Option<(&'static str, String, Duration)>,
    /// Reason and message that are to be said when the present ones have stood long enough.
    pub unsaid: Option<(&'static str, String)>,
    /// How it was classified last.
    pub class: Class,
    /// The job as it was looked at last.
    pub seen: Option<Shared<JobFacts>>,
    /// Monotonic time since which the leader has an address.
    pub address_since: Option<Duration>,
    /// Monotonic time since which the job is known not to fit, and why.
    pub unfit: Option<(Duration, String)>,
    /// Nodes changed since the job was judged not to fit, or it asks for something else.
    pub nodes_changed: bool,
    /// A write is under way.
    pub writing: bool,
    /// What the last write that went through said, and the version of the object after it.
    pub written: Option<JobHalf>,
    /// That version; 0 before the first write.
    pub version: u64,
    /// The version of the object that the last write was made for.
    pub pinned: u64,
    /// The newest version that is known to be out of date: nothing is written before a newer one is seen.
    pub stale: u64,
    /// Until when a newer version than that is waited for, monotonic.
    pub stale_until: Duration,
    /// Last change of the condition's status.
    pub told_since: Option<(bool, Timestamp)>,
    /// Writes that failed in a row.
    pub failures: u32,
    /// No write before this monotonic time.
    pub not_before: Duration,
}

impl JobRecord {
    /// Nothing placed.
    pub fn new(uid: &str, attempt: i32) -> Self {
        Self {
            uid: uid.into(),
            attempt,
            places: BTreeMap::new(),
            state: None,
            said: None,
            unsaid: None,
            class: Class::Waiting,
            seen: None,
            address_since: None,
            unfit: None,
            nodes_changed: false,
            writing: false,
            written: None,
            version: 0,
            pinned: 0,
            stale: 0,
            stale_until: Duration::ZERO,
            told_since: None,
            failures: 0,
            not_before: Duration::ZERO,
        }
    }

    /// Takes note of the job as it is now. Answers what it was when it asks for something else now, so that what was said of it
    /// does not hold any more.
    pub fn look(&mut self, job: &Shared<JobFacts>) -> Option<Shared<JobFacts>> {
        let former = self.seen.replace(job.clone())?;
        let other = !former.is_same(job) && (&former.spec, &former.ended) != (&job.spec, &job.ended);
        if other {
            self.unfit = None;
            self.nodes_changed = true;
        }
        other.then_some(former)
    }

    /// The pods with a place whose template is another one now.
    pub fn remade(&self, former: &JobFacts, job: &JobFacts) -> Vec<Box<str>> {
        let template = |job: &JobFacts, pod: &str| {
            let spec = job.spec.as_ref().ok()?;
            let seat = spec.seat(&job.job.key.name, pod)?;
            Some(spec.parts.get(seat.part)?.pod.clone())
        };
        let placed = self.places.keys();
        placed.filter(|pod| template(former, pod) != template(job, pod)).cloned().collect()
    }

    /// Places that no pod has taken yet.
    pub fn reservations(&self) -> usize {
        self.places.values().filter(|place| place.reservation.is_some()).count()
    }
}

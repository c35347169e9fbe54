//! The order in which waiting TYJobs are tried: by priority, and by dominant resource fairness, which is the part of the cluster that
//! a job asks for, of the resource of which it asks most.

use std::cmp::{Ordering, Reverse};
use std::fmt;

use jiff::Timestamp;

use baton_contract::PodKey;
use baton_contract::tyjob::JobQueuePolicy;

use super::folded::Folded;

/// What the order depends on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ranked {
    /// Which job.
    pub key: PodKey,
    /// Priority of its pods.
    pub pod_priority: i32,
    /// `spec.priority`.
    pub priority: i32,
    /// Creation.
    pub created: Timestamp,
    /// Order among jobs that the job asks for.
    pub queue: JobQueuePolicy,
    /// Its dominant share.
    pub share: Share,
}

impl Ranked {
    /// Higher priority of the pods, then of the job, then age, then name.
    fn by_priority(&self) -> impl Ord + '_ {
        (Reverse((self.pod_priority, self.priority)), self.created, &self.key.name, &self.key.namespace)
    }
}

/// All jobs by priority; the places that DRF jobs of one pod priority have in that order are then given to them by their dominant share,
/// smallest first.
pub fn order(mut jobs: Vec<Ranked>) -> Vec<Ranked> {
    jobs.sort_by(|a, b| a.by_priority().cmp(&b.by_priority()));
    let fair = |job: &Ranked| job.queue == JobQueuePolicy::Drf;
    let places: Vec<usize> = (0..jobs.len()).filter(|at| fair(&jobs[*at])).collect();
    let mut drf: Vec<Ranked> = places.iter().map(|at| jobs[*at].clone()).collect();
    drf.sort_by(|a, b| {
        let (ours, theirs) = (Reverse(a.pod_priority), Reverse(b.pod_priority));
        ours.cmp(&theirs).then_with(|| a.share.cmp(&b.share)).then_with(|| a.by_priority().cmp(&b.by_priority()))
    });
    for (at, job) in places.into_iter().zip(drf) {
        jobs[at] = job;
    }
    jobs
}

/// A fraction, compared exactly.
#[derive(Debug, Clone, Copy)]
pub struct Share {
    wanted: i64,
    /// Above zero.
    total: i64,
}

impl Share {
    /// Of nothing.
    pub const NONE: Self = Self { wanted: 0, total: 1 };

    /// As a number, for texts.
    pub fn value(self) -> f64 {
        self.wanted as f64 / self.total as f64
    }
}

impl PartialEq for Share {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Share {}

impl PartialOrd for Share {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Share {
    fn cmp(&self, other: &Self) -> Ordering {
        let cross = |a: i64, b: i64| i128::from(a) * i128::from(b);
        cross(self.wanted, other.total).cmp(&cross(other.wanted, self.total))
    }
}

impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.3}", self.value())
    }
}

/// The largest share that `demand` takes of any resource, and of which one; resources that the cluster has none of are left
/// out.
pub fn dominant_share<'a>(demand: &'a Folded, cluster: &Folded) -> (Share, Option<&'a str>) {
    let mut most = (Share::NONE, None);
    for (name, wanted) in demand.iter() {
        let total = cluster.get(name);
        let share = Share { wanted, total };
        if total > 0 && wanted > 0 && share > most.0 {
            most = (share, Some(name));
        }
    }
    most
}

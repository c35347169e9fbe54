//! The order in which waiting jobs are tried.

use std::cmp::Reverse;

use jiff::Timestamp;

use crate::contract::PodKey;
use crate::contract::tyjob::JobQueuePolicy;

use super::share::Share;

/// What the order looks at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ranked {
    /// Which job.
    pub key: PodKey,
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
    /// Higher priority, then age, then name.
    fn by_priority(&self) -> impl Ord + '_ {
        (Reverse(self.priority), self.created, &self.key.name, &self.key.namespace)
    }
}

/// All jobs by priority; the places that DRF jobs have in that order are then given to them by their dominant share, smallest
/// first.
pub fn order(mut jobs: Vec<Ranked>) -> Vec<Ranked> {
    jobs.sort_by(|a, b| a.by_priority().cmp(&b.by_priority()));
    let fair = |job: &Ranked| job.queue == JobQueuePolicy::Drf;
    let places: Vec<usize> = (0..jobs.len()).filter(|at| fair(&jobs[*at])).collect();
    let mut drf: Vec<Ranked> = places.iter().map(|at| jobs[*at].clone()).collect();
    drf.sort_by(|a, b| a.share.cmp(&b.share).then_with(|| a.by_priority().cmp(&b.by_priority())));
    for (at, job) in places.into_iter().zip(drf) {
        jobs[at] = job;
    }
    jobs
}

//! What is kept of an attempt to place a job.

use crate::contract::tyjob::{BasicPolicy, ScheduleState};

/// What of a job has a place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Tally {
    /// The leader has one.
    pub leader: bool,
    /// Workers that have one, or have done their work.
    pub workers: i64,
    /// Pods that need one and have none.
    pub missing: i64,
}

/// What becomes of the job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Verdict {
    /// What the status says.
    pub state: ScheduleState,
    /// The places stay; otherwise all of them are given back.
    pub keep: bool,
}

/// Judges an attempt. `started`: the leader pod exists, so whoever has a place keeps it.
///
/// | started | placed | state | kept |
/// | --- | --- | --- | --- |
/// | any | all | `ScheduledSucceed` | yes |
/// | no | leader and at least the minimum, not `Gang` | `ScheduledPartly` | yes |
/// | no | less | `Unscheduled` | no |
/// | yes | any | `ScheduledPartly` | yes |
pub fn verdict(policy: BasicPolicy, min_workers: i64, started: bool, tally: Tally) -> Verdict {
    let whole = tally.missing == 0;
    let enough = policy != BasicPolicy::Gang && tally.leader && tally.workers >= min_workers;
    match (whole, started || enough) {
        (true, _) => Verdict { state: ScheduleState::ScheduledSucceed, keep: true },
        (false, true) => Verdict { state: ScheduleState::ScheduledPartly, keep: true },
        (false, false) => Verdict { state: ScheduleState::Unscheduled, keep: false },
    }
}

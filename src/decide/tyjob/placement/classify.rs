//! Which TYJobs are tried, and what is kept of an attempt to place one.

use baton_contract::tyjob::{BasicPolicy, ScheduleState};

use super::JobFacts;

/// What is known of a job beside its object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Situation {
    /// Pods that need a place and have none.
    pub missing: bool,
    /// Nodes came or changed since the job was judged not to fit.
    pub nodes_changed: bool,
    /// Its places were given back, because their pods were not made in time.
    pub resting: bool,
}

/// What the scheduler does with a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum JobClass {
    /// Ended, ending or being deleted: its reservations go.
    Over,
    /// Without a valid spec: the controller ends it.
    Invalid,
    /// Does not fit into the whole cluster; tried again when nodes change.
    Unfit,
    /// Every pod has its place.
    Placed,
    /// Its places were given back: tried again when its rest is over.
    Resting,
    /// Tried in the next round.
    #[default]
    Waiting,
}

/// Classifies a job.
///
/// | job | class |
/// | --- | --- |
/// | being deleted, stage Succeeded or Failed, `terminating` | Over |
/// | no valid spec | Invalid |
/// | a place for every pod | Placed |
/// | places given back not long ago | Resting |
/// | `ScheduledFailed`, nodes as they were | Unfit |
/// | `ScheduledFailed`, nodes changed | Waiting |
/// | `Unscheduled`, `ScheduledPartly`, new, or places lost | Waiting |
pub fn classify(job: &JobFacts, state: Option<ScheduleState>, situation: Situation) -> JobClass {
    if job.is_over() {
        return JobClass::Over;
    }
    if job.spec.is_err() {
        return JobClass::Invalid;
    }
    match state {
        _ if situation.resting => JobClass::Resting,
        Some(ScheduleState::ScheduledFailed) if !situation.nodes_changed => JobClass::Unfit,
        _ if situation.missing => JobClass::Waiting,
        // A job that did not fit asks for less now: counts were lowered.
        Some(ScheduleState::ScheduledFailed) => JobClass::Waiting,
        _ => JobClass::Placed,
    }
}

/// What of a job has a place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PlacedPods {
    /// The leader has one.
    pub leader: bool,
    /// Workers that have one, or have done their work.
    pub workers: i64,
    /// Pods that need one and have none.
    pub missing: i64,
}

/// What becomes of the job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AttemptResult {
    /// What the status says.
    pub state: ScheduleState,
    /// The places stay; otherwise all of them are given back.
    pub keep: bool,
}

/// Judges an attempt. `started`: the leader pod exists, so every placed pod keeps its place.
///
/// | started | placed | state | kept |
/// | --- | --- | --- | --- |
/// | any | all | `ScheduledSucceed` | yes |
/// | no | leader and at least the minimum, not `Gang` | `ScheduledPartly` | yes |
/// | no | less | `Unscheduled` | no |
/// | yes | any | `ScheduledPartly` | yes |
pub fn verdict(policy: BasicPolicy, min_workers: i64, started: bool, tally: PlacedPods) -> AttemptResult {
    let whole = tally.missing == 0;
    let enough = policy != BasicPolicy::Gang && tally.leader && tally.workers >= min_workers;
    match (whole, started || enough) {
        (true, _) => AttemptResult { state: ScheduleState::ScheduledSucceed, keep: true },
        (false, true) => AttemptResult { state: ScheduleState::ScheduledPartly, keep: true },
        (false, false) => AttemptResult { state: ScheduleState::Unscheduled, keep: false },
    }
}

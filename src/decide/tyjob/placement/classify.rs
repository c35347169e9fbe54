//! Which jobs are tried.

use crate::contract::tyjob::ScheduleState;

use super::JobFacts;

/// What is known of a job beside its object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Situation {
    /// Pods that need a place and have none.
    pub missing: bool,
    /// Nodes came or changed since the job was judged not to fit.
    pub nodes_changed: bool,
}

/// What the scheduler does with a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Class {
    /// Ended, ending or being deleted: its reservations go.
    Over,
    /// Without a spec that can run: the controller ends it.
    Invalid,
    /// Does not fit into the whole cluster; tried again when nodes change.
    Unfit,
    /// Every pod has its place.
    Placed,
    /// Tried in the next cycle.
    Waiting,
}

/// Classifies a job.
///
/// | job | class |
/// | --- | --- |
/// | being deleted, stage Succeeded or Failed, `terminating` | Over |
/// | no valid spec | Invalid |
/// | a place for every pod | Placed |
/// | `ScheduledFailed`, nodes as they were | Unfit |
/// | `ScheduledFailed`, nodes changed | Waiting |
/// | `Unscheduled`, `ScheduledPartly`, new, or places lost | Waiting |
pub fn classify(job: &JobFacts, state: Option<ScheduleState>, situation: Situation) -> Class {
    if job.is_over() {
        return Class::Over;
    }
    if job.spec.is_err() {
        return Class::Invalid;
    }
    match state {
        Some(ScheduleState::ScheduledFailed) if !situation.nodes_changed => Class::Unfit,
        _ if situation.missing => Class::Waiting,
        // What was judged not to fit asks for nothing any more: counts were lowered.
        Some(ScheduleState::ScheduledFailed) => Class::Waiting,
        _ => Class::Placed,
    }
}

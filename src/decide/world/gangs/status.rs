//! What the status of a gang's PodGroup should be: a function of the gang, of its group's progress, and of the present status.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

use super::gang::Gang;
use super::rule;
use crate::world::PodId;
use baton_contract::ConditionReason;
use baton_contract::gang::{PodGroupPhase, PodGroupStatus, key};

/// The progress of one group: what only its attempts know. The times are wall times, for people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GangProgress {
    /// Number of the schedule cycle, from 1.
    pub cycle: u32,
    /// No member has failed in this cycle.
    pub cycle_valid: bool,
    /// The last cycle in which each member was reserved, failed or refused; members that were not yet offered are absent (0).
    pub rounds: BTreeMap<PodId, u32>,
    /// Since when members are reserved and wait for others.
    pub holding_since: Option<Timestamp>,
    /// Attempts of the group so far.
    pub attempts: u64,
    /// Why the last attempt failed; `None` after a success.
    pub last_failure: Option<String>,
    /// What is known of its present pods.
    pub generation: Generation,
}

/// What is known of the generation of pods that a group has now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Generation {
    /// Nothing yet: its members and PodGroups may prove that it was satisfied.
    #[default]
    Unknown,
    /// Every gang of the group was satisfied at once.
    Satisfied,
    /// The latest commit was cancelled, or none of its members lives any more. A `Satisfied` condition of the PodGroups is then of an
    /// earlier generation; its time has whole seconds only and cannot tell.
    New,
}

impl Default for GangProgress {
    fn default() -> Self {
        Self {
            cycle: 1,
            cycle_valid: true,
            rounds: BTreeMap::new(),
            holding_since: None,
            attempts: 0,
            last_failure: None,
            generation: Generation::Unknown,
        }
    }
}

impl GangProgress {
    /// Every gang of the group was satisfied at once.
    pub fn satisfied_once(&self) -> bool {
        self.generation == Generation::Satisfied
    }
}

/// What the scheduler knows of a gang beside its members.
#[derive(Debug, Clone, Copy)]
pub struct GroupAttempts<'a> {
    /// Its group's attempts.
    pub progress: &'a GangProgress,
    /// When the group is tried again, where only time is waited for.
    pub next_try: Option<Timestamp>,
    /// Why its group is not ready: reason and message.
    pub not_ready: Option<(ConditionReason, &'a str)>,
}

impl GroupAttempts<'_> {
    fn once(&self) -> bool {
        self.progress.satisfied_once()
    }
}

/// The status that the PodGroup of `gang` should have, given the one that it has.
pub fn status(gang: &Gang, attempts: GroupAttempts<'_>, before: &PodGroupStatus, now: Timestamp) -> PodGroupStatus {
    // On the wire times have whole seconds.
    let now = Timestamp::from_second(now.as_second()).unwrap_or(now);
    let counts = gang.counts();
    let phase = phase(gang, attempts.once(), before);
    let finished = phase == PodGroupPhase::Finished;
    let was_finished = before.phase == Some(PodGroupPhase::Finished);
    let number = |count: u32| i32::try_from(count).unwrap_or(i32::MAX);
    let mut next = PodGroupStatus {
        phase: Some(phase),
        occupied_by: occupied_by(gang).or_else(|| before.occupied_by.clone()),
        scheduled: number(counts.placed()),
        running: number(counts.running),
        succeeded: number(counts.succeeded),
        failed: number(counts.failed),
        schedule_start_time: before.schedule_start_time.clone().filter(|_| finished || !was_finished),
        conditions: before.conditions.clone(),
    };
    if finished && was_finished {
        // Its pods may be cleaned up one by one; how many succeeded stays true.
        next.succeeded = next.succeeded.max(before.succeeded);
    }
    if next.schedule_start_time.is_none() && phase != PodGroupPhase::Pending {
        next.schedule_start_time = Some(Time(now));
    }
    conditions(gang, attempts, &mut next, now);
    next
}

/// Equal but for the times at which conditions changed: an API that does not store them makes new ones each time.
pub fn is_same_but_times(old: &PodGroupStatus, new: &PodGroupStatus) -> bool {
    let timeless = |status: &PodGroupStatus| {
        let mut status = status.clone();
        status.conditions.iter_mut().for_each(|condition| condition.last_transition_time = Time(Timestamp::UNIX_EPOCH));
        status
    };
    timeless(old) == timeless(new)
}

/// Differs only in texts: nothing that a program would act on.
pub fn is_rewording(old: &PodGroupStatus, new: &PodGroupStatus) -> bool {
    let mute = |status: &PodGroupStatus| {
        let mut status = status.clone();
        status.conditions.iter_mut().for_each(|condition| condition.message.clear());
        status
    };
    mute(old) == mute(new)
}

/// The first that matches.
fn phase(gang: &Gang, once: bool, before: &PodGroupStatus) -> PodGroupPhase {
    let (config, counts) = (gang.config(), gang.counts());
    // Where no minimum rules, one member makes the difference.
    let min = config.min.unwrap_or(1).max(1);
    let kept = before.phase == Some(PodGroupPhase::Finished) && {
        let since = before.since(key::CONDITION_FINISHED);
        // Where the object keeps no conditions, a living member that is no younger than the ended ones is of their generation.
        let former = |newest: Timestamp| match since {
            Some(since) => newest < since,
            None => before.conditions.is_empty() && gang.newest_ended().is_some_and(|ended| newest <= ended),
        };
        gang.newest_live().is_none_or(former)
    };
    if kept || counts.succeeded >= min {
        PodGroupPhase::Finished
    } else if counts.failed > 0 && counts.live() + counts.succeeded < min {
        PodGroupPhase::Failed
    } else if counts.running + counts.succeeded >= min {
        PodGroupPhase::Running
    } else if counts.placed() + counts.succeeded >= min {
        PodGroupPhase::Scheduled
    } else if counts.placed() > 0 {
        PodGroupPhase::Scheduling
    } else if config.min.is_some() && counts.children() > 0 && rule::complete(config.policy, min, counts, once) {
        PodGroupPhase::PreScheduling
    } else {
        PodGroupPhase::Pending
    }
}

fn occupied_by(gang: &Gang) -> Option<String> {
    let namespace = gang.id().namespace();
    let owners: std::collections::BTreeSet<String> =
        gang.owners().map(|owner| format!("{namespace}/{}", owner.name)).collect();
    (!owners.is_empty()).then(|| owners.into_iter().collect::<Vec<_>>().join(","))
}

fn conditions(gang: &Gang, attempts: GroupAttempts<'_>, next: &mut PodGroupStatus, now: Timestamp) {
    let counts = gang.counts();
    let min = gang.config().min.unwrap_or(0);
    // Of a finished gang whose pods are cleaned up the number that succeeded is kept.
    let succeeded = counts.succeeded.max(u32::try_from(next.succeeded).unwrap_or(0));
    let placed = counts.placed() + succeeded;
    let list = &mut next.conditions;
    if counts.all() > 0 || next.phase == Some(PodGroupPhase::Finished) {
        let (word, reason, message) = if placed >= min.max(1) {
            ("True", ConditionReason::Scheduled, format!("{placed} of {min} members have a node"))
        } else if let Some((reason, message)) = attempts.not_ready {
            ("False", reason, message.to_owned())
        } else if counts.reserved > 0 && attempts.progress.holding_since.is_none() && attempts.once() {
            (
                "False",
                ConditionReason::Binding,
                format!("{placed} of {min} members have a node, {} are being bound", counts.reserved),
            )
        } else if counts.unplaced() + counts.reserved == 0 {
            (
                "False",
                ConditionReason::GangIncomplete,
                format!("{placed} of {min} members have a node, and no other one waits"),
            )
        } else {
            ("False", ConditionReason::Unschedulable, attempt_text(gang, attempts))
        };
        set(list, (key::CONDITION_SCHEDULED, word), reason, message, now);
    }
    if attempts.once() {
        let message = "every gang of the group had room for its members at once".to_owned();
        set(list, (key::CONDITION_SATISFIED, "True"), ConditionReason::GangSatisfied, message, now);
    } else if counts.children() > 0 {
        unset(list, key::CONDITION_SATISFIED, ConditionReason::NotSatisfied, "its members wait for a place", now);
    }
    if counts.timed_out > 0 {
        let (pods, them) = if counts.timed_out == 1 { ("pod is", "the pod") } else { ("pods are", "them") };
        let message = format!(
            "{} {pods} marked by the annotation {} and not scheduled: delete {them}, or remove the annotation",
            counts.timed_out,
            key::TIMEOUT
        );
        set(list, (key::CONDITION_TIMEOUT, "True"), ConditionReason::GangTimeout, message, now);
    } else {
        unset(list, key::CONDITION_TIMEOUT, ConditionReason::NoMarks, "no pod is marked any more", now);
    }
    if next.phase == Some(PodGroupPhase::Finished) {
        let message = format!("{} members succeeded", next.succeeded);
        set(list, (key::CONDITION_FINISHED, "True"), ConditionReason::Finished, message, now);
    } else {
        unset(list, key::CONDITION_FINISHED, ConditionReason::NewGeneration, "new members were made", now);
    }
}

/// Why no attempt of a satisfied gang is due, though fewer members than its minimum have a node: the minimum was raised, or members
/// have left.
pub fn after_satisfaction(gang: &Gang, once: bool) -> Option<String> {
    let (config, counts) = (gang.config(), gang.counts());
    rule::is_over(config.policy, once).then(|| {
        let (placed, min) = (counts.placed() + counts.succeeded, config.min.unwrap_or(0));
        format!("{placed} of {min} members have a node; the gang was satisfied before, so each other one is placed by itself")
    })
}

fn attempt_text(gang: &Gang, attempts: GroupAttempts<'_>) -> String {
    let Some(failure) = &attempts.progress.last_failure else {
        return after_satisfaction(gang, attempts.once()).unwrap_or_else(|| "not tried yet".to_owned());
    };
    let next = attempts.next_try.map(|at| format!("; next try at {at:.0}")).unwrap_or_default();
    format!("attempt {}: {failure}{next}", attempts.progress.attempts)
}

/// Writes a condition, by its type and status. The time of transition is kept unless the status changes.
fn set(
    list: &mut Vec<Condition>,
    (name, status): (&str, &str),
    reason: ConditionReason,
    message: String,
    now: Timestamp,
) {
    match list.iter_mut().find(|condition| condition.type_ == name) {
        Some(known) => {
            if known.status != status {
                status.clone_into(&mut known.status);
                known.last_transition_time = Time(now);
            }
            reason.word().clone_into(&mut known.reason);
            known.message = message;
        }
        None => list.push(Condition {
            type_: name.to_owned(),
            status: status.to_owned(),
            reason: reason.word().to_owned(),
            message,
            last_transition_time: Time(now),
            observed_generation: None,
        }),
    }
}

/// Sets a condition to false; one that was never true is left out.
fn unset(list: &mut Vec<Condition>, name: &str, reason: ConditionReason, message: &str, now: Timestamp) {
    if list.iter().any(|condition| condition.type_ == name && condition.status == "True") {
        set(list, (name, "False"), reason, message.to_owned(), now);
    }
}

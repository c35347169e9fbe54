//! One step of a job: which stage it is in now, and what that asks for.

use std::collections::BTreeSet;

use jiff::{Timestamp, Unit};

use super::draft::{Draft, clear, set};
use super::effect::JobEffect;
use super::forget::forgotten;
use super::view::{CreateFailure, JobView, PodView};
use baton_contract::tyjob::{InvalidField, Stage, TyJob, TyJobStatus, WorkerEnd, condition, keys};
use baton_contract::{ConditionReason, EventReason};

/// Pods that could not be made are named up to this number; the rest are counted.
const TROUBLES_NAMED: usize = 3;

/// What a job's status must be, and what is to be done after it is written. `pods` are those that the job controls.
///
/// | from | when | to |
/// | --- | --- | --- |
/// | new | valid | Pending |
/// | Pending, Rescheduling | placed for this attempt, leader pod there | Starting |
/// | Pending, Rescheduling | `ScheduledFailed` | Failed |
/// | Starting | leader and enough workers ready | Running |
/// | Starting | the leader's image cannot be had | Failed |
/// | Starting, Running | leader lost or failed | Rescheduling, or Failed at the limit |
/// | Starting, Running | too few workers can still run | Failed |
/// | all of these | leader succeeded, or `spec.terminating` | Succeeded |
///
/// Succeeded and Failed are never left; only pods are cleaned up there, and `observedGeneration` follows
/// the object. A job that is being deleted loses its pods, then its finalizer.
pub fn step(view: &JobView<'_>, pods: &[PodView], now: Timestamp) -> (TyJobStatus, Vec<JobEffect>) {
    // Whole seconds, as the object stores them: what is read back equals what was meant.
    let mut draft = Draft::new(view, pods, now.round(Unit::Second).unwrap_or(now));
    let before = draft.status.stage;
    if view.job.metadata.deletion_timestamp.is_some() {
        draft.leave();
        return (draft.status, draft.effects);
    }
    let effective = view.job.effective(view.unreadable);
    if before.is_some_and(Stage::is_terminal) {
        draft.spec = effective.map_or_else(|_| draft.spec.clone(), |effective| effective.spec);
        // `cleanPodPolicy` may be edited after the end, and what waits for a generation to be seen would wait for ever.
        draft.status.observed_generation = draft.view.job.metadata.generation;
        draft.clean();
        return (draft.status, draft.effects);
    }
    match effective {
        Err(invalid) => draft.reject(&invalid),
        Ok(effective) => {
            draft.spec = effective.spec;
            draft.refuse(&effective.refused);
            draft.live();
        }
    }
    draft.summarize();
    if draft.status.stage.is_some_and(Stage::is_terminal) {
        draft.clean();
    } else {
        draft.forget_replaced();
        draft.sweep();
    }
    draft.narrate(before);
    (draft.status, draft.effects)
}

/// Names of the pods whose records a new status takes for good: a leader that is lost or has another address than before, and workers that
/// have failed or whose failure it forgets. The watch of pods may be behind that of TYJobs and show a former pod of the name, or none: such
/// a pod counts as the API server shows it.
pub fn rests_on(job: &TyJob, status: &TyJobStatus, pods: &[PodView]) -> BTreeSet<String> {
    let Some(before) = &job.status else { return BTreeSet::new() };
    let ends = status.attempt != before.attempt
        || status.stage != before.stage && status.stage.is_some_and(Stage::is_terminal);
    let leader = (ends || status.leader_address != before.leader_address).then(|| job.effective(None).ok()).flatten();
    let leader = leader.map(|found| found.spec.leader_pod(job.metadata.name.as_deref().unwrap_or_default()));
    let has_failed = |status: &TyJobStatus, pod: &PodView| {
        status.replaces(&pod.name, &pod.uid) || status.ended_workers.get(&pod.name) == Some(&WorkerEnd::Failed)
    };
    let failed = pods.iter().filter(|pod| has_failed(status, pod) && !has_failed(before, pod));
    failed.map(|pod| pod.name.clone()).chain(leader).chain(forgotten(before, status).cloned()).collect()
}

impl Draft<'_> {
    /// The spec can never run and the job has not started.
    fn reject(&mut self, invalid: &[InvalidField]) {
        let text = list(invalid);
        set(&mut self.status, condition::INVALID_SPEC, ConditionReason::Invalid, &text, self.now);
        self.end(Stage::Failed, format!("the spec is invalid: {text}"));
        self.warning(EventReason::InvalidSpec, text);
    }

    /// An edit that a started job cannot follow.
    fn refuse(&mut self, refused: &[InvalidField]) {
        let kind = condition::INVALID_UPDATE;
        if refused.is_empty() {
            clear(&mut self.status, kind, ConditionReason::Accepted, "the spec is in force as written", self.now);
            if self.view.job.started() {
                let former = self.status.accepted_spec.take();
                self.accept();
                if let Some(former) = former.and_then(|spec| serde_json::from_value(spec).ok()) {
                    self.report_overridden(Some(&former));
                }
            }
        } else {
            let text = list(refused);
            if set(&mut self.status, kind, ConditionReason::Refused, &text, self.now) {
                self.warning(
                    EventReason::InvalidUpdate,
                    format!("the edit is refused and the last valid spec stays in force: {text}"),
                );
            }
        }
    }

    /// Remembers the spec in force, for the time when an edit is refused.
    pub fn accept(&mut self) {
        self.status.accepted_spec = serde_json::to_value(&self.spec).ok();
    }

    /// A job with a spec that can run, in a stage that can be left.
    fn live(&mut self) {
        let stage = *self.status.stage.get_or_insert(Stage::Pending);
        self.status.message.get_or_insert_with(|| "the spec is valid, and waits for a place".to_owned());
        self.count_restarts();
        if self.spec.terminating {
            return self.end(Stage::Succeeded, "ended by spec.terminating".to_owned());
        }
        let finalizers = self.view.job.metadata.finalizers.iter().flatten();
        if !finalizers.into_iter().any(|name| name == keys::FINALIZER) {
            // Nothing is made before its clean-up is sure.
            self.effects.push(JobEffect::AddFinalizer);
            return;
        }
        self.troubles();
        if self.status.stage == Some(Stage::Failed) {
            return;
        }
        if matches!(stage, Stage::Pending | Stage::Rescheduling) {
            self.wait_for_place();
        }
        if matches!(self.status.stage, Some(Stage::Starting | Stage::Running)) {
            self.work();
        }
    }

    /// Pods that could not be made.
    fn troubles(&mut self) {
        let Some(trouble) = self.view.trouble else { return };
        let list_of = |wanted: fn(&CreateFailure) -> Option<&String>| {
            let mut found = trouble.iter().filter_map(|(pod, trouble)| Some((pod, wanted(trouble)?)));
            let named: Vec<_> = found.by_ref().take(TROUBLES_NAMED).map(|(pod, why)| format!("{pod}: {why}")).collect();
            let more = found.count();
            named.join("; ") + &if more > 0 { format!("; and {more} more") } else { String::new() }
        };
        let foreign = list_of(|trouble| if let CreateFailure::Foreign(whose) = trouble { Some(whose) } else { None });
        if foreign.is_empty() {
            clear(
                &mut self.status,
                condition::NAME_CONFLICT,
                ConditionReason::Resolved,
                "the names of the pods are free",
                self.now,
            );
        } else if set(&mut self.status, condition::NAME_CONFLICT, ConditionReason::ForeignPod, &foreign, self.now) {
            self.warning(EventReason::NameConflict, format!("left alone, and tried again: {foreign}"));
        }
        let has_run = self.status.attempt > 0 || self.status.stage == Some(Stage::Running);
        let invalid = list_of(|trouble| if let CreateFailure::Invalid(why) = trouble { Some(why) } else { None });
        // What makes a pod of a job invalid that has run may be an edit, a LimitRange or a webhook: none of them ends what runs.
        let refused = list_of(if has_run {
            |trouble| match trouble {
                CreateFailure::Refused(why) | CreateFailure::Invalid(why) => Some(why),
                CreateFailure::Foreign(_) => None,
            }
        } else {
            |trouble| if let CreateFailure::Refused(why) = trouble { Some(why) } else { None }
        });
        if refused.is_empty() {
            clear(&mut self.status, condition::POD_REFUSED, ConditionReason::Resolved, "no pod is refused", self.now);
        } else if set(&mut self.status, condition::POD_REFUSED, ConditionReason::Refused, &refused, self.now) {
            self.warning(EventReason::PodRefused, format!("tried again: {refused}"));
        }
        if !has_run && !invalid.is_empty() {
            set(&mut self.status, condition::INVALID_SPEC, ConditionReason::InvalidPod, &invalid, self.now);
            self.end(Stage::Failed, format!("a template makes no valid pod: {invalid}"));
            self.warning(EventReason::InvalidSpec, invalid);
        }
    }

    /// One event per change of stage.
    fn narrate(&mut self, before: Option<Stage>) {
        let Some(stage) = self.status.stage.filter(|stage| before != Some(*stage)) else { return };
        let message = self.status.message.clone().unwrap_or_default();
        let reason = match stage {
            Stage::Pending => EventReason::Pending,
            Stage::Starting => EventReason::Starting,
            Stage::Running => EventReason::Running,
            Stage::Rescheduling => EventReason::Rescheduling,
            Stage::Succeeded => EventReason::Succeeded,
            Stage::Failed => EventReason::Failed,
        };
        if matches!(stage, Stage::Failed | Stage::Rescheduling) {
            self.warning(reason, message);
        } else {
            self.event(reason, message);
        }
    }
}

fn list(invalid: &[InvalidField]) -> String {
    invalid.iter().map(InvalidField::to_string).collect::<Vec<_>>().join("; ")
}

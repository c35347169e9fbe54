//! Reports to the job's owner and the controller: the scheduler's part of the status, written when it differs from what the object
//! shows.

use std::time::Duration;

use jiff::Unit;

use crate::core::agenda::{Agenda, Scene, Terms};
use crate::core::effect::Effect;
use crate::core::timers::Timer;
use crate::pause::doubled;
use baton_contract::tyjob::{Allocation, ScheduleState};
use baton_contract::{ConditionReason, EventReason, PodKey};

use super::placement::{JobFacts, JobIdentity, JobSpec, ScheduledCondition};
use super::{JobRecord, TyJobs};
use crate::core::{JobScheduleStatus, JobWriteResult};

/// Longest message of the condition, in bytes.
const MAX_MESSAGE: usize = 1024;

/// After a conflict the watch shows the newer object within this time; else the write is repeated, at growing intervals.
const CONFLICT_WAIT: Duration = Duration::from_secs(1);
/// Pauses between writes of a status that is too large.
const TOO_LARGE: (Duration, Duration) = (Duration::from_secs(60), Duration::from_secs(600));

impl TyJobs {
    /// Reports a decision about a job: a new state or reason at once, another message of the same reason once per pause.
    pub(super) fn report(
        &mut self,
        scene: Scene<'_>,
        agenda: &mut Agenda,
        key: &PodKey,
        state: ScheduleState,
        reason: ConditionReason,
        mut text: String,
    ) {
        let pause = scene.terms.config.condition_pause;
        let Some(record) = self.records.get_mut(key) else { return };
        text.truncate(text.floor_char_boundary(MAX_MESSAGE));
        let turned = record.state != Some(state);
        record.report.pending = None;
        match record
            .report
            .last
            .as_ref()
            .filter(|(said, _, at)| !turned && *said == reason && scene.terms.now.mono < *at + pause)
        {
            Some((_, said, at)) if *said != text => {
                record.report.pending = Some((reason, text.clone()));
                agenda.timers.set(*at + pause, Timer::TyJob(key.clone()));
            }
            Some(_) => {}
            // An unchanged message keeps the time of its first report.
            None if !turned
                && record.report.last.as_ref().is_some_and(|(said, old, _)| *said == reason && *old == text) => {}
            None => record.report.last = Some((reason, text.clone(), scene.terms.now.mono)),
        }
        let holds = matches!(state, ScheduleState::ScheduledSucceed | ScheduleState::ScheduledPartly);
        if record.report.since.is_none_or(|(held, _)| held != holds) {
            // Whole seconds, as the object stores them.
            record.report.since =
                Some((holds, scene.terms.now.wall.round(Unit::Second).unwrap_or(scene.terms.now.wall)));
        }
        record.state = Some(state);
        if turned {
            let (warning, reason) = match state {
                ScheduleState::ScheduledSucceed => (false, EventReason::Scheduled),
                ScheduleState::ScheduledPartly => (false, EventReason::ScheduledPartly),
                ScheduleState::Unscheduled => (true, EventReason::FailedScheduling),
                ScheduleState::ScheduledFailed => (true, EventReason::Unfit),
            };
            let job = JobIdentity { key: key.clone(), uid: record.uid.clone() };
            agenda.effects.push(Effect::JobNotice { job, warning, reason, message: text });
        }
        self.write_job(scene, agenda, key);
    }

    /// Reports that every pod of the job has a place.
    pub(super) fn report_placed(&mut self, scene: Scene<'_>, agenda: &mut Agenda, key: &PodKey, job: &JobFacts) {
        let workers = job.spec.as_ref().map_or(0, JobSpec::workers);
        let text = format!("the leader and {workers} workers have a place");
        self.report(scene, agenda, key, ScheduleState::ScheduledSucceed, ConditionReason::Placed, text);
    }

    /// Reports the pending message when the pause is over.
    pub(super) fn report_pending(&mut self, terms: Terms<'_>, key: &PodKey) {
        let pause = terms.config.condition_pause;
        let Some(record) = self.records.get_mut(key) else { return };
        let due = record.report.last.as_ref().is_none_or(|(_, _, at)| terms.now.mono >= *at + pause);
        if let Some((reason, text)) = record.report.pending.take_if(|_| due) {
            record.report.last = Some((reason, text, terms.now.mono));
        }
    }

    /// Reports a template of which no pod can be made although the controller has accepted the job: only its owner can correct it.
    pub(super) fn report_invalid_template(
        &mut self,
        scene: Scene<'_>,
        agenda: &mut Agenda,
        key: &PodKey,
        job: &JobFacts,
    ) {
        if let Err(why) = &job.spec
            && job.stage.is_some()
            && !job.is_over()
        {
            self.report(
                scene,
                agenda,
                key,
                ScheduleState::Unscheduled,
                ConditionReason::InvalidTemplate,
                why.to_string(),
            );
        }
    }

    /// Empties the allocations of a job that is being deleted, so that its finalizer can be removed.
    pub(super) fn clear_status(&mut self, scene: Scene<'_>, agenda: &mut Agenda, key: &PodKey, job: &JobFacts) {
        if !job.deleting || job.allocations.is_empty() {
            return;
        }
        let Some(record) = self.records.get_mut(key) else { return };
        let state = job.state.unwrap_or(ScheduleState::Unscheduled);
        let text = "the job is being deleted: its places are released".to_owned();
        record.state = Some(state);
        record.report.last = Some((ConditionReason::Deleted, text, scene.terms.now.mono));
        record.report.since = Some((false, scene.terms.now.wall.round(Unit::Second).unwrap_or(scene.terms.now.wall)));
        self.write_job(scene, agenda, key);
    }

    /// Writes the status when the object shows another one; one write at a time.
    pub(super) fn write_job(&mut self, scene: Scene<'_>, agenda: &mut Agenda, key: &PodKey) {
        let outdated = self.report_is_outdated(scene.world, key);
        let (Some(job), Some(record)) = (scene.world.job(key), self.records.get_mut(key)) else { return };
        let unaccepted = job.spec.is_err() && job.stage.is_none();
        if record.writes.under_way || (job.is_over() || unaccepted) && !job.deleting || outdated {
            return;
        }
        let Some(status) = status_of(job, record) else { return };
        // The watch may not have shown the last write yet.
        let late = record.writes.last.as_ref() == Some(&status) && job.version < record.writes.version;
        if late || is_shown(job, &status) {
            return;
        }
        // A version that is not a number cannot be a precondition.
        let version = if record.writes.version == u64::MAX { 0 } else { job.version.max(record.writes.version) };
        if version > 0 && version <= record.writes.stale && scene.terms.now.mono < record.writes.stale_until {
            // The watch shows the newer object; if there is none, the conflict had another cause and may be over then.
            agenda.timers.set(record.writes.stale_until, Timer::TyJob(key.clone()));
            return;
        }
        if scene.terms.now.mono < record.writes.not_before {
            agenda.timers.set(record.writes.not_before, Timer::TyJob(key.clone()));
            return;
        }
        (record.writes.under_way, record.writes.attempted) = (true, version);
        record.writes.last = Some(status.clone());
        agenda.effects.push(Effect::WriteJob { job: job.job.clone(), version, status: Box::new(status) });
    }

    /// The answer to a write.
    pub fn written(&mut self, scene: Scene<'_>, agenda: &mut Agenda, job: &JobIdentity, result: JobWriteResult) {
        let (first, longest) = scene.terms.config.retry.pauses;
        let Some(record) = self.records.get_mut(&job.key).filter(|record| record.uid == job.uid) else { return };
        record.writes.under_way = false;
        match result {
            JobWriteResult::Done(version) => {
                record.writes.failures = 0;
                // Without comparable versions the next change of the job is waited for.
                record.writes.version = if version == 0 { u64::MAX } else { version };
            }
            // The watch reports the deletion.
            JobWriteResult::Gone => return,
            JobWriteResult::Stale => {
                let wait = doubled((CONFLICT_WAIT, longest), record.writes.failures);
                record.writes.failures += 1;
                record.writes.stale_until = scene.terms.now.mono + wait;
                record.writes.last = None;
                record.writes.stale = record.writes.attempted;
            }
            JobWriteResult::TooLarge(_) | JobWriteResult::Failed(_) => {
                // Where no place can be given back, the same status is as large the next time.
                let rests = matches!(result, JobWriteResult::TooLarge(_)) && record.start.has_no_waits();
                let pauses = if rests { TOO_LARGE } else { (first, longest) };
                let wait = doubled(pauses, record.writes.failures);
                record.writes.failures += 1;
                record.writes.last = None;
                record.writes.not_before = scene.terms.now.mono + wait;
                if let JobWriteResult::TooLarge(said) = result {
                    let why = too_large(record, &said);
                    record.start.overflows(why.clone());
                    agenda.timers.set(scene.terms.now.mono, Timer::TyJob(job.key.clone()));
                    let (job, reason) = (job.clone(), EventReason::StatusTooLarge);
                    agenda.effects.push(Effect::JobNotice { job, warning: true, reason, message: why });
                }
            }
        }
        self.write_job(scene, agenda, &job.key);
    }
}

/// Why the status cannot be stored, and what to do.
fn too_large(record: &JobRecord, said: &str) -> String {
    let places = record.places.len();
    format!("with {places} places the status is larger than the API server stores ({said}), ask for fewer workers")
}

/// The status that the record results in; `None` before the first decision.
fn status_of(job: &JobFacts, record: &JobRecord) -> Option<JobScheduleStatus> {
    let state = record.state?;
    let mut allocations: Vec<Allocation> = Vec::new();
    if let (Ok(spec), false) = (&job.spec, job.is_over()) {
        let seats = spec.seats(&job.job.key.name);
        let placed = seats.filter_map(|seat| Some((record.places.get(&seat.pod)?, seat)));
        allocations.extend(placed.map(|(place, seat)| job.allocation(&seat, &place.node)));
    }
    let (holds, since) = record.report.since.unwrap_or((false, job.created));
    let condition = match (&record.report.last, &job.scheduled) {
        (Some((reason, message, _)), _) => {
            ScheduledCondition { holds, reason: reason.word().into(), message: message.as_str().into(), since }
        }
        // Adopted from an earlier leader: its message stays until the first report.
        (None, Some(condition)) => condition.clone(),
        (None, None) => return None,
    };
    Some(JobScheduleStatus { state, allocations, condition })
}

/// `true` when the object shows this status.
fn is_shown(job: &JobFacts, status: &JobScheduleStatus) -> bool {
    let condition = job.scheduled.as_ref().is_some_and(|condition| {
        (condition.holds, &condition.reason, &condition.message)
            == (status.condition.holds, &status.condition.reason, &status.condition.message)
    });
    condition && job.state == Some(status.state) && job.allocations == status.allocations
}

//! Reporting to a job's owner and the controller: the scheduler's half of the status, written when it differs from what is seen.

use std::time::Duration;

use jiff::Unit;

use crate::contract::PodKey;
use crate::contract::tyjob::{Allocation, ScheduleState};
use crate::decide::scheduler::context::Context;
use crate::decide::scheduler::effect::Effect;
use crate::decide::scheduler::timers::Timer;

use super::placement::{JobFacts, JobIdentity, JobSpec, ScheduledCondition};
use super::{JobHalf, JobRecord, JobWriteResult, TyJobs};

/// Longest message of the condition, in bytes.
const MAX_MESSAGE: usize = 1024;

/// In this time the watch shows what a conflict was about; then the write is tried again as it is, ever more seldom.
const WATCH_TELLS: Duration = Duration::from_secs(1);

impl TyJobs {
    /// Notes what became of a job and writes it: a new state at once, another message of the same state now and then.
    pub fn say(
        &mut self,
        cx: &mut Context<'_>,
        key: &PodKey,
        state: ScheduleState,
        reason: &'static str,
        mut text: String,
    ) {
        let pause = cx.config.condition_pause;
        let Some(record) = self.records.get_mut(key) else { return };
        text.truncate(text.floor_char_boundary(MAX_MESSAGE));
        let turned = record.state != Some(state);
        record.unsaid = None;
        match record.said.as_ref().filter(|(said, _, at)| !turned && *said == reason && cx.now.mono < *at + pause) {
            Some((_, said, at)) if *said != text => {
                record.unsaid = Some((reason, text.clone()));
                cx.timers.set(*at + pause, Timer::TyJob(key.clone()));
            }
            Some(_) => {}
            // The same words again are no news, whenever they were said.
            None if !turned && record.said.as_ref().is_some_and(|(said, old, _)| *said == reason && *old == text) => {}
            None => record.said = Some((reason, text.clone(), cx.now.mono)),
        }
        let holds = matches!(state, ScheduleState::ScheduledSucceed | ScheduleState::ScheduledPartly);
        if record.told_since.is_none_or(|(held, _)| held != holds) {
            // Whole seconds, as the object stores them.
            record.told_since = Some((holds, cx.now.wall.round(Unit::Second).unwrap_or(cx.now.wall)));
        }
        record.state = Some(state);
        if turned {
            let (warning, reason) = match state {
                ScheduleState::ScheduledSucceed => (false, "Scheduled"),
                ScheduleState::ScheduledPartly => (false, "ScheduledPartly"),
                ScheduleState::Unscheduled => (true, "FailedScheduling"),
                ScheduleState::ScheduledFailed => (true, "Unfit"),
            };
            let job = JobIdentity { key: key.clone(), uid: record.uid.clone() };
            cx.effects.push(Effect::JobNotice { job, warning, reason, message: text });
        }
        self.write_job(cx, key);
    }

    /// Every pod has its place, and the status is to say so.
    pub fn stay_placed(&mut self, cx: &mut Context<'_>, key: &PodKey, job: &JobFacts) {
        let workers = job.spec.as_ref().map_or(0, JobSpec::workers);
        let text = format!("the leader and {workers} workers have a place");
        self.say(cx, key, ScheduleState::ScheduledSucceed, "Placed", text);
    }

    /// Says what had to wait, when its time has come.
    pub fn say_late(&mut self, cx: &mut Context<'_>, key: &PodKey) {
        let pause = cx.config.condition_pause;
        let Some(record) = self.records.get_mut(key) else { return };
        let due = record.said.as_ref().is_none_or(|(_, _, at)| cx.now.mono >= *at + pause);
        if let Some((reason, text)) = record.unsaid.take_if(|_| due) {
            record.said = Some((reason, text, cx.now.mono));
        }
    }

    /// The controller has nothing against the job, and a pod of it cannot be imagined: only its owner can help.
    pub fn say_unreadable(&mut self, cx: &mut Context<'_>, key: &PodKey, job: &JobFacts) {
        if let Err(why) = &job.spec
            && job.stage.is_some()
            && !job.is_over()
        {
            self.say(cx, key, ScheduleState::Unscheduled, "InvalidTemplate", why.to_string());
        }
    }

    /// A job that is being deleted gives its places back, so that its finalizer can go.
    pub fn clear_job(&mut self, cx: &mut Context<'_>, key: &PodKey, job: &JobFacts) {
        if !job.deleting || job.allocations.is_empty() {
            return;
        }
        let Some(record) = self.records.get_mut(key) else { return };
        let state = job.state.unwrap_or(ScheduleState::Unscheduled);
        let text = "the job is being deleted: its places are given back".to_owned();
        record.state = Some(state);
        record.said = Some(("Deleted", text, cx.now.mono));
        record.told_since = Some((false, cx.now.wall.round(Unit::Second).unwrap_or(cx.now.wall)));
        self.write_job(cx, key);
    }

    /// Writes the half when it is not what the object shows, one write at a time.
    pub fn write_job(&mut self, cx: &mut Context<'_>, key: &PodKey) {
        let outdated = self.is_outdated(cx, key);
        let (Some(job), Some(record)) = (cx.world.job(key), self.records.get_mut(key)) else { return };
        let unseen = job.spec.is_err() && job.stage.is_none();
        if record.writing || (job.is_over() || unseen) && !job.deleting || outdated {
            return;
        }
        let Some(half) = half_of(job, record) else { return };
        // What was written may not be seen yet.
        let late = record.written.as_ref() == Some(&half) && job.version < record.version;
        if late || shows(job, &half) {
            return;
        }
        // Versions that cannot be compared pin nothing.
        let version = if record.version == u64::MAX { 0 } else { job.version.max(record.version) };
        if version > 0 && version <= record.stale && cx.now.mono < record.stale_until {
            // The watch will show what came between; if nothing did, the conflict was of another sort and may be over.
            cx.timers.set(record.stale_until, Timer::TyJob(key.clone()));
            return;
        }
        if cx.now.mono < record.not_before {
            cx.timers.set(record.not_before, Timer::TyJob(key.clone()));
            return;
        }
        (record.writing, record.pinned) = (true, version);
        record.written = Some(half.clone());
        cx.effects.push(Effect::WriteJob { job: job.job.clone(), version, half: Box::new(half) });
    }

    /// What came of a write.
    pub fn written(&mut self, cx: &mut Context<'_>, job: &JobIdentity, result: JobWriteResult) {
        let (first, longest, _) = cx.config.retry;
        let Some(record) = self.records.get_mut(&job.key).filter(|record| record.uid == job.uid) else { return };
        record.writing = false;
        match result {
            JobWriteResult::Done(version) => {
                record.failures = 0;
                // Versions that cannot be compared: the next change of the job is waited for.
                record.version = if version == 0 { u64::MAX } else { version };
            }
            // The watch tells.
            JobWriteResult::Gone => return,
            JobWriteResult::Stale => {
                let wait: Duration = (WATCH_TELLS * (1 << record.failures.min(16))).min(longest);
                record.failures += 1;
                record.stale_until = cx.now.mono + wait;
                record.written = None;
                record.stale = record.pinned;
            }
            JobWriteResult::Failed(_) => {
                let wait: Duration = (first * (1 << record.failures.min(16))).min(longest);
                record.failures += 1;
                record.written = None;
                record.not_before = cx.now.mono + wait;
            }
        }
        self.write_job(cx, &job.key);
    }
}

/// What the record comes to; `None` before anything was decided.
fn half_of(job: &JobFacts, record: &JobRecord) -> Option<JobHalf> {
    let state = record.state?;
    let mut allocations: Vec<Allocation> = Vec::new();
    if let (Ok(spec), false) = (&job.spec, job.is_over()) {
        let seats = spec.seats(&job.job.key.name);
        let placed = seats.filter_map(|seat| Some((record.places.get(&seat.pod)?, seat)));
        allocations.extend(placed.map(|(place, seat)| job.allocation(&seat, &place.node)));
    }
    let (holds, since) = record.told_since.unwrap_or((false, job.created));
    let condition = match (&record.said, &job.scheduled) {
        (Some((reason, message, _)), _) => {
            ScheduledCondition { holds, reason: (*reason).into(), message: message.as_str().into(), since }
        }
        // Taken over from a predecessor: its words stand until there is something to say.
        (None, Some(condition)) => condition.clone(),
        (None, None) => return None,
    };
    Some(JobHalf { state, allocations, condition })
}

/// The object says what is to be said.
fn shows(job: &JobFacts, half: &JobHalf) -> bool {
    let condition = job.scheduled.as_ref().is_some_and(|condition| {
        (condition.holds, &condition.reason, &condition.message)
            == (half.condition.holds, &half.condition.reason, &half.condition.message)
    });
    condition && job.state == Some(half.state) && job.allocations == half.allocations
}

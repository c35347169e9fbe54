//! Telling a job's owner and the controller: the scheduler's half of the status, written when it differs from what is seen.

use std::time::Duration;

use jiff::Unit;

use crate::contract::PodKey;
use crate::contract::tyjob::{Allocation, ScheduleState};
use crate::decide::scheduler::effect::{Effect, Effects};
use crate::decide::scheduler::engine::{Engine, Timer};
use crate::decide::scheduler::settings::Moment;
use crate::decide::tyjob::placement::{JobFacts, JobIdentity, Told};

use super::record::{JobHalf, JobRecord, JobWriteResult};

/// Longest message of the condition, in bytes.
const MAX_MESSAGE: usize = 1024;

/// In this time the watch shows what a conflict was about; then the write is tried again as it is, ever more seldom.
const WATCH_TELLS: Duration = Duration::from_secs(1);

impl Engine {
    /// Notes what became of a job and writes it: a new state at once, another message of the same state now and then.
    pub(in crate::decide) fn say(
        &mut self,
        key: &PodKey,
        state: ScheduleState,
        reason: &'static str,
        mut text: String,
        now: Moment,
        effects: &mut Effects,
    ) {
        let pause = self.config.condition_pause;
        let Some(record) = self.jobs.records.get_mut(key) else { return };
        text.truncate(text.floor_char_boundary(MAX_MESSAGE));
        let turned = record.state != Some(state);
        record.unsaid = None;
        match record.said.as_ref().filter(|(said, _, at)| !turned && *said == reason && now.mono < *at + pause) {
            Some((_, said, at)) if *said != text => {
                record.unsaid = Some((reason, text.clone()));
                self.timers.insert((*at + pause, Timer::Job(key.clone())));
            }
            Some(_) => {}
            // The same words again are no news, whenever they were said.
            None if !turned && record.said.as_ref().is_some_and(|(said, old, _)| *said == reason && *old == text) => {}
            None => record.said = Some((reason, text.clone(), now.mono)),
        }
        let holds = matches!(state, ScheduleState::ScheduledSucceed | ScheduleState::ScheduledPartly);
        if record.told_since.is_none_or(|(held, _)| held != holds) {
            // Whole seconds, as the object stores them.
            record.told_since = Some((holds, now.wall.round(Unit::Second).unwrap_or(now.wall)));
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
            effects.push(Effect::JobNotice { job, warning, reason, message: text });
        }
        self.write_job(key, now, effects);
    }

    /// Every pod has its place, and the status is to say so.
    pub(in crate::decide) fn stay_placed(&mut self, key: &PodKey, job: &JobFacts, now: Moment, effects: &mut Effects) {
        let workers = job.spec.as_ref().map_or(0, crate::decide::tyjob::placement::JobSpec::workers);
        let text = format!("the leader and {workers} workers have a place");
        self.say(key, ScheduleState::ScheduledSucceed, "Placed", text, now, effects);
    }

    /// Says what had to wait, when its time has come.
    pub(in crate::decide) fn say_late(&mut self, key: &PodKey, now: Moment) {
        let pause = self.config.condition_pause;
        let Some(record) = self.jobs.records.get_mut(key) else { return };
        let due = record.said.as_ref().is_none_or(|(_, _, at)| now.mono >= *at + pause);
        if let Some((reason, text)) = record.unsaid.take_if(|_| due) {
            record.said = Some((reason, text, now.mono));
        }
    }

    /// The controller has nothing against the job, and a pod of it cannot be imagined: only its owner can help.
    pub(in crate::decide) fn say_unreadable(
        &mut self,
        key: &PodKey,
        job: &JobFacts,
        now: Moment,
        effects: &mut Effects,
    ) {
        if let Err(why) = &job.spec
            && job.stage.is_some()
            && !job.is_over()
        {
            self.say(key, ScheduleState::Unscheduled, "InvalidTemplate", why.to_string(), now, effects);
        }
    }

    /// A job that is being deleted gives its places back, so that its finalizer can go.
    pub(in crate::decide) fn clear_job(&mut self, key: &PodKey, job: &JobFacts, now: Moment, effects: &mut Effects) {
        if !job.deleting || job.allocations.is_empty() {
            return;
        }
        let Some(record) = self.jobs.records.get_mut(key) else { return };
        let state = job.state.unwrap_or(ScheduleState::Unscheduled);
        let text = "the job is being deleted: its places are given back".to_owned();
        record.state = Some(state);
        record.said = Some(("Deleted", text, now.mono));
        record.told_since = Some((false, now.wall.round(Unit::Second).unwrap_or(now.wall)));
        self.write_job(key, now, effects);
    }

    /// Writes the half when it is not what the object shows, one write at a time.
    pub(in crate::decide) fn write_job(&mut self, key: &PodKey, now: Moment, effects: &mut Effects) {
        let outdated = self.is_outdated(key);
        let (Some(job), Some(record)) = (self.world.job(key), self.jobs.records.get_mut(key)) else { return };
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
        if version > 0 && version <= record.stale && now.mono < record.stale_until {
            // The watch will show what came between; if nothing did, the conflict was of another sort and may be over.
            self.timers.insert((record.stale_until, Timer::Job(key.clone())));
            return;
        }
        if now.mono < record.not_before {
            self.timers.insert((record.not_before, Timer::Job(key.clone())));
            return;
        }
        (record.writing, record.pinned) = (true, version);
        record.written = Some(half.clone());
        effects.push(Effect::WriteJob { job: job.job.clone(), version, half: Box::new(half) });
    }

    /// What came of a write.
    pub(in crate::decide) fn job_written(
        &mut self,
        job: &JobIdentity,
        result: JobWriteResult,
        now: Moment,
        effects: &mut Effects,
    ) {
        let (first, longest, _) = self.config.retry;
        let Some(record) = self.jobs.records.get_mut(&job.key).filter(|record| record.uid == job.uid) else { return };
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
                record.stale_until = now.mono + wait;
                record.written = None;
                record.stale = record.pinned;
            }
            JobWriteResult::Failed(_) => {
                let wait: Duration = (first * (1 << record.failures.min(16))).min(longest);
                record.failures += 1;
                record.written = None;
                record.not_before = now.mono + wait;
            }
        }
        self.write_job(&job.key, now, effects);
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
    let told = match (&record.said, &job.told) {
        (Some((reason, message, _)), _) => {
            Told { holds, reason: (*reason).into(), message: message.as_str().into(), since }
        }
        // Taken over from a predecessor: its words stand until there is something to say.
        (None, Some(told)) => told.clone(),
        (None, None) => return None,
    };
    Some(JobHalf { state, allocations, told })
}

/// The object says what is to be said.
fn shows(job: &JobFacts, half: &JobHalf) -> bool {
    let told = job.told.as_ref().is_some_and(|told| {
        (told.holds, &told.reason, &told.message) == (half.told.holds, &half.told.reason, &half.told.message)
    });
    told && job.state == Some(half.state) && job.allocations == half.allocations
}

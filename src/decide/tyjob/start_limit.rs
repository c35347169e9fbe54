//! The limit of a job's start: places whose pods are not made in time are given back, and tried again at growing intervals.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::core::agenda::{Agenda, Scene, Terms};
use crate::core::timers::{Moment, Timer};
use crate::pause::doubled;
use crate::world::World;
use baton_contract::{ConditionReason, PodKey};

use super::place::{claims, free_places, leader_created};
use super::placement::JobFacts;
use super::{JobPlace, JobRecord, TyJobs};

/// First and longest time between giving places back and the next try.
const PAUSE: (Duration, Duration) = (Duration::from_secs(60), Duration::from_secs(16 * 60));

/// The status of a quota follows the pods that it counts within this time.
const FRESH: Duration = Duration::from_secs(2);

/// How far the pod of a place is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PodProgress {
    /// It is not there.
    Awaited,
    /// It is there and has not taken its place over.
    Made,
    /// It holds its room itself, or has done its work.
    Settled,
}

/// A pod that is waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Wait {
    /// Monotonic time since which it has had a place.
    since: Duration,
    /// Monotonic time since which it is there.
    made: Option<Duration>,
}

/// How the start of a job goes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Start {
    /// Pods that have a place and do not run on their own room yet. One place may follow the other meanwhile.
    waits: BTreeMap<Box<str>, Wait>,
    /// Pods that were made a moment ago, and when that was seen: the use that quotas show may not contain them yet.
    fresh: BTreeMap<Box<str>, Duration>,
    /// How often places were given back since the job last had all pods that it needs.
    given_back: u32,
    rest: Option<StartRest>,
    /// Why the status cannot be stored with the places that the job has.
    too_large: Option<String>,
}

/// Places were given back.
#[derive(Debug, Clone, PartialEq, Eq)]
struct StartRest {
    /// Until then the job is not tried again.
    until: Duration,
    reason: ConditionReason,
    why: String,
}

impl Start {
    /// Why the job is not tried now.
    pub fn resting(&self) -> Option<(ConditionReason, &str)> {
        self.rest.as_ref().map(|rest| (rest.reason, &*rest.why))
    }

    /// The status cannot be stored with the places that the job has.
    pub(super) fn overflows(&mut self, why: String) {
        self.too_large = Some(why);
    }

    /// Every place is a pod's.
    pub(super) fn has_no_waits(&self) -> bool {
        self.waits.is_empty()
    }

    /// Notes how far the pod of a place is; it has been waited for since then.
    pub(super) fn note(&mut self, pod: &str, progress: PodProgress, (since, now): (Duration, Duration)) {
        if progress == PodProgress::Settled {
            if self.waits.remove(pod).is_some_and(|wait| wait.made.is_none()) {
                self.fresh.insert(pod.into(), now);
            }
            return;
        }
        let made = (progress == PodProgress::Made).then_some(now);
        if let Some(wait) = self.waits.get_mut(pod) {
            if made.is_some() && wait.made.is_none() {
                self.fresh.insert(pod.into(), now);
            }
            wait.made = made.map(|made| wait.made.unwrap_or(made));
        } else {
            self.waits.insert(pod.into(), Wait { since, made });
        }
    }

    /// Monotonic time since which a pod is there that has not taken its place over.
    pub(super) fn made(&self, pod: &str) -> Option<Duration> {
        self.waits.get(pod)?.made
    }

    /// Forgets the pods that have no place any more.
    pub(super) fn keep(&mut self, placed: impl Fn(&str) -> bool) {
        self.waits.retain(|pod, _| placed(pod));
    }

    /// Pods that were made a moment ago.
    pub(super) fn fresh(&self) -> impl Iterator<Item = &str> {
        self.fresh.keys().map(|pod| &**pod)
    }

    /// When the first of the waiting pods has waited for `limit`.
    fn late_at(&self, limit: Duration) -> Option<Duration> {
        self.waits.values().map(|wait| wait.since).min().map(|since| since + limit)
    }

    /// A new attempt of the job: what was given back counts on.
    pub(super) fn of_next_attempt(&self) -> Self {
        Self { given_back: self.given_back, ..Self::default() }
    }

    /// Ends the rest: the owner has edited the job.
    pub(super) fn end_rest(&mut self) {
        self.rest = None;
    }
}

impl TyJobs {
    /// Gives places without pods back when one of them has waited for too long, or ends the rest after that. `true` when quotas count
    /// less for the job than before.
    pub(super) fn check_start(
        &mut self,
        terms: Terms<'_>,
        world: &mut World,
        agenda: &mut Agenda,
        key: &PodKey,
        job: &JobFacts,
    ) -> bool {
        let Some(record) = self.records.get_mut(key) else { return false };
        let before = record.start.fresh.len();
        record.start.fresh.retain(|_, seen| terms.now.mono < *seen + FRESH);
        if let Some(seen) = record.start.fresh.values().min() {
            agenda.timers.set(*seen + FRESH, Timer::TyJob(key.clone()));
        }
        let counted = record.start.fresh.len() < before;
        self.check_limit(terms, world, agenda, key, job);
        counted
    }

    fn check_limit(&mut self, terms: Terms<'_>, world: &mut World, agenda: &mut Agenda, key: &PodKey, job: &JobFacts) {
        let limit = terms.config.jobs.start_limit;
        let Some(record) = self.records.get_mut(key) else { return };
        let too_large = record.start.too_large.take();
        record.start.rest.take_if(|rest| rest.until <= terms.now.mono);
        if let Some(rest) = &record.start.rest {
            return agenda.timers.set(rest.until, Timer::TyJob(key.clone()));
        }
        // Where every place is a pod's none can be given back.
        if let Some(why) = too_large.filter(|_| !record.start.has_no_waits()) {
            return self.give_back(terms, world, agenda, key, (ConditionReason::StatusTooLarge, why));
        }
        if record.start.waits.is_empty() && has_what_it_needs(record, job) {
            record.start.given_back = 0;
        }
        match record.start.late_at(limit) {
            Some(at) if at <= terms.now.mono => {}
            Some(at) => return agenda.timers.set(at, Timer::TyJob(key.clone())),
            None => return,
        }
        let late: BTreeSet<&str> = record
            .start
            .waits
            .iter()
            .filter(|(_, wait)| wait.since + limit <= terms.now.mono)
            .map(|(pod, _)| &**pod)
            .collect();
        let why = explain(terms.scene(world), job, &late);
        self.give_back(terms, world, agenda, key, (ConditionReason::StartLimit, why));
    }

    /// Gives the places without pods back, and lets the job rest, longer each time.
    fn give_back(
        &mut self,
        terms: Terms<'_>,
        world: &mut World,
        agenda: &mut Agenda,
        key: &PodKey,
        (reason, cause): (ConditionReason, String),
    ) {
        let Some(record) = self.records.get_mut(key) else { return };
        let waits = std::mem::take(&mut record.start.waits);
        let given: Vec<JobPlace> = waits.keys().filter_map(|pod| record.places.remove(pod)).collect();
        let pause = doubled(PAUSE, record.start.given_back);
        record.start.given_back += 1;
        let until = terms.now.mono + pause;
        let again = terms.now.wall.checked_add(pause).unwrap_or(terms.now.wall);
        let why = format!(
            "{cause}: {} places without pods are given back; tried again in {} ({})",
            waits.len(),
            minutes(pause),
            again.strftime("%H:%M:%SZ")
        );
        record.start.rest = Some(StartRest { until, reason, why });
        agenda.timers.set(until, Timer::TyJob(key.clone()));
        free_places(world, agenda, given);
    }
}

/// The leader and as many workers as the job needs have pods.
fn has_what_it_needs(record: &JobRecord, job: &JobFacts) -> bool {
    let Ok(spec) = &job.spec else { return false };
    let made = record.places.values().filter(|place| place.reservation.is_none()).count();
    // Those that have ended may have no place any more.
    let ended = job.ended.keys().filter(|pod| !record.places.contains_key(*pod)).count();
    (made + ended) as i64 > spec.min_workers.min(spec.workers())
}

/// Since when the pod of a place that an earlier leader of the scheduler has found is waited for: while the job has not started, since
/// its condition says so.
pub(super) fn adopted_since(job: &JobFacts, now: Moment) -> Duration {
    let placed = job.scheduled.as_ref().filter(|condition| condition.holds && !job.leads());
    let ago = placed.and_then(|condition| Duration::try_from(now.wall.duration_since(condition.since)).ok());
    now.mono.saturating_sub(ago.unwrap_or_default())
}

/// `10 min`, `90 s`.
fn minutes(time: Duration) -> String {
    match time.as_secs() {
        seconds if seconds % 60 == 0 => format!("{} min", seconds / 60),
        seconds => format!("{seconds} s"),
    }
}

/// What was waited for.
fn explain(scene: Scene<'_>, job: &JobFacts, late: &BTreeSet<&str>) -> String {
    let leader = job.spec.as_ref().ok().and_then(|spec| spec.seats(&job.job.key.name).next());
    let leader = leader.map(|seat| seat.pod).unwrap_or_default();
    let first = late.first().copied().unwrap_or_default();
    let there = |pod: &str| {
        let pod = scene.world.pod_by_key(&PodKey::new(&job.job.key.namespace, pod));
        pod.is_some_and(|pod| claims(pod, &job.job.uid, job.attempt))
    };
    let missed = |pod: &str| if there(pod) { "was not bound" } else { "was not made" };
    let cause = if late.contains(&*leader) {
        format!("pod {leader} {}", missed(&leader))
    } else if !job.has_address && leader_created(scene.world, job) {
        format!("leader {leader} has no address, so no workers were made")
    } else {
        let more = if late.len() > 1 { format!(" and {} more", late.len() - 1) } else { String::new() };
        format!("pod {first}{more} {}", missed(first))
    };
    format!("{cause} within {} of its place", minutes(scene.terms.config.jobs.start_limit))
}

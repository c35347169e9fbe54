//! Which job is looked at when: at once when something was shown of it, after a pause when a request failed, at a time that a
//! step asked for, and all of them every now and then. No job is looked at twice at once.

use std::collections::{BTreeMap, BTreeSet};
use std::mem::Discriminant;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::attend::{Found, Hands, Look, attend};
use super::sight::{JobKey, Sight};
use crate::cluster::job_feed::{FEEDS, JobMessage};
use crate::decide::tyjob::stages::Trouble;
use crate::runtime::{Backoff, clock};

/// Messages that are folded in before jobs are looked at.
const GULP: usize = 1024;
/// Metrics are brought up to date this often.
const COUNT: Duration = Duration::from_secs(1);
/// Longest sleep, so that leadership and metrics are judged in time.
const NAP: Duration = Duration::from_millis(500);

/// Periods and bounds.
#[derive(Debug, Clone, Copy)]
pub struct Pace {
    /// First and longest pause after a failure.
    pub backoff: (Duration, Duration),
    /// Every job is looked at this often.
    pub resync: Duration,
    /// Jobs that are looked at at once.
    pub concurrency: usize,
}

/// One term of leadership: it begins with empty hands and fresh watches.
pub struct Term {
    hands: Hands,
    pace: Pace,
    sight: Sight,
    missing: BTreeSet<&'static str>,
    /// To be looked at now.
    dirty: BTreeSet<JobKey>,
    /// To be looked at at a monotonic time.
    due: BTreeMap<JobKey, Duration>,
    /// Being looked at.
    busy: BTreeSet<JobKey>,
    backoffs: BTreeMap<JobKey, Backoff>,
    troubles: BTreeMap<JobKey, BTreeMap<String, Trouble>>,
    looks: JoinSet<Found>,
    resync: Duration,
    /// When the metrics were brought up to date, and whether every job was known then.
    shown: (Duration, bool),
}

/// Why a term ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TermEnd {
    /// Leadership was lost or given up.
    Deposed,
    /// The watches ended.
    Blind,
}

impl Term {
    /// A term that has seen nothing yet.
    pub fn new(hands: Hands, pace: Pace) -> Self {
        Self {
            hands,
            pace,
            sight: Sight::default(),
            missing: FEEDS.into(),
            dirty: BTreeSet::new(),
            due: BTreeMap::new(),
            busy: BTreeSet::new(),
            backoffs: BTreeMap::new(),
            troubles: BTreeMap::new(),
            looks: JoinSet::new(),
            resync: clock::mono() + pace.resync,
            shown: (Duration::ZERO, false),
        }
    }

    /// Works until leadership ends. Looks under way are dropped then: each of their requests stands for itself.
    pub async fn run(&mut self, feed: &mut mpsc::Receiver<JobMessage>) -> TermEnd {
        let mut messages = Vec::with_capacity(GULP);
        loop {
            if !self.hands.standing.leads(clock::mono()) {
                return TermEnd::Deposed;
            }
            self.look_around();
            self.show();
            let nap = self.nap();
            tokio::select! {
                count = feed.recv_many(&mut messages, GULP) => {
                    if count == 0 {
                        return TermEnd::Blind;
                    }
                    for message in messages.drain(..) {
                        self.fold(message);
                    }
                }
                Some(found) = self.looks.join_next(), if !self.looks.is_empty() => match found {
                    Ok(found) => self.take(found),
                    // A panic in a look is a bug of ours; the job is looked at again with the next term.
                    Err(error) => {
                        tracing::error!(%error, "a look at a job ended by panic");
                        return TermEnd::Deposed;
                    }
                },
                () = tokio::time::sleep(nap) => {}
            }
        }
    }

    fn fold(&mut self, message: JobMessage) {
        if let JobMessage::Synced(feed) = message {
            if self.missing.remove(feed) && self.missing.is_empty() {
                self.dirty.extend(self.sight.jobs().map(|(key, _)| key.clone()));
                tracing::info!(jobs = self.dirty.len(), "every job is known");
            }
            return;
        }
        self.dirty.extend(self.sight.fold(message));
    }

    /// Starts looks at everything that is due.
    fn look_around(&mut self) {
        if !self.missing.is_empty() {
            return;
        }
        let now = clock::mono();
        if now >= self.resync {
            self.resync = now + self.pace.resync;
            self.dirty.extend(self.sight.jobs().map(|(key, _)| key.clone()));
        }
        let due: Vec<JobKey> = self.due.iter().filter(|(_, at)| **at <= now).map(|(key, _)| key.clone()).collect();
        for key in due {
            self.due.remove(&key);
            self.dirty.insert(key);
        }
        let ready: Vec<JobKey> = self.dirty.iter().filter(|key| !self.busy.contains(*key)).cloned().collect();
        for key in ready {
            if self.busy.len() >= self.pace.concurrency {
                return;
            }
            self.dirty.remove(&key);
            let Some(seen) = self.sight.job(&key).cloned() else {
                self.backoffs.remove(&key);
                self.troubles.remove(&key);
                self.due.remove(&key);
                continue;
            };
            let pods = self.sight.crew(&seen.job);
            let trouble = self.troubles.get(&key).cloned();
            self.busy.insert(key.clone());
            self.looks.spawn(attend(self.hands.clone(), Look { key, seen, pods, trouble }));
        }
    }

    fn take(&mut self, found: Found) {
        let Found { key, job, pods, trouble, unsure, wake, again } = found;
        self.busy.remove(&key);
        if let Some(job) = job {
            // The watch tells it too; whoever comes first, the step that follows finds nothing to do twice.
            self.dirty.extend(self.sight.saw_job(*job));
        }
        for pod in pods {
            let concerned = self.sight.saw_pod(pod);
            self.dirty.extend(concerned);
        }
        if self.busy.is_empty() {
            self.sight.forget_buried();
        }
        let news = match (self.troubles.get(&key), &trouble) {
            (_, None) => false,
            (None, Some(trouble)) => unsure || !trouble.is_empty(),
            // Words may be others each time (an id of the request, what a quota has used): they alone can wait for the next try.
            (Some(former), Some(trouble)) => kinds(former) != kinds(trouble),
        };
        let pause = again || trouble.as_ref().is_some_and(|trouble| !trouble.is_empty());
        if let Some(trouble) = trouble {
            self.troubles.insert(key.clone(), trouble);
        }
        let now = clock::now();
        let wake = wake.map(|at| {
            let left = Duration::try_from(at.duration_since(now.wall)).unwrap_or_default();
            now.mono + left + Duration::from_millis(10)
        });
        if news {
            self.dirty.insert(key);
            return;
        }
        let next = if pause {
            let (min, max) = self.pace.backoff;
            let backoff = self.backoffs.entry(key.clone()).or_insert(Backoff::new(min, max));
            Some(now.mono + backoff.fail_randomly())
        } else {
            self.backoffs.remove(&key);
            None
        };
        match [next, wake].into_iter().flatten().min() {
            Some(at) => drop(self.due.insert(key, at)),
            None => drop(self.due.remove(&key)),
        }
    }

    /// Brings the metrics up to date, at most once a second: it counts every job.
    fn show(&mut self) {
        let now = clock::mono();
        let complete = self.missing.is_empty();
        if now >= self.shown.0 + COUNT || complete != self.shown.1 {
            self.shown = (now, complete);
            self.hands.metrics.show(self.missing.len(), &self.sight, self.dirty.len() + self.due.len());
        }
    }

    fn nap(&self) -> Duration {
        let now = clock::mono();
        let due = self.due.values().min().map_or(NAP, |at| at.saturating_sub(now));
        due.min(NAP).min(self.hands.standing.until().saturating_sub(now)).max(Duration::from_millis(1))
    }
}

/// Which pods are in trouble, and in which.
fn kinds(trouble: &BTreeMap<String, Trouble>) -> Vec<(&str, Discriminant<Trouble>)> {
    trouble.iter().map(|(pod, trouble)| (pod.as_str(), std::mem::discriminant(trouble))).collect()
}

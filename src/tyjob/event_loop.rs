//! When a TYJob is reconciled: at once after a watch has shown a change, after a pause when a request failed, at a time that a
//! step names, and each of them once per resync period. A TYJob is never reconciled twice at the same time.

use std::collections::{BTreeMap, BTreeSet};
use std::mem::Discriminant;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::cache::{JobCache, JobKey};
use super::options::ControllerTimings;
use super::reconcile::{ReconcileContext, ReconcileRequest, Reconciled, reconcile};
use baton_cluster::controller_feed::ControllerEvent;
use baton_cluster::feed::FeedMessage;
use baton_decide::tyjob::stages::CreateFailure;
use baton_runtime::{Backoff, clock};

/// TYJobs that are reconciled at once: each waits for the API server for most of its time, and more would crowd out its other clients.
const CONCURRENCY: usize = 16;
/// Messages that are applied before TYJobs are reconciled.
const BATCH: usize = 1024;
/// Metrics are updated this often.
const METRICS_PERIOD: Duration = Duration::from_secs(1);
/// Longest sleep, so that leadership and metrics are up to date.
const MAX_SLEEP: Duration = Duration::from_millis(500);

/// One term of leadership: it begins with an empty cache and fresh watches.
pub struct Term {
    context: ReconcileContext,
    timings: ControllerTimings,
    cache: JobCache,
    /// Watches whose first list is not complete.
    missing: BTreeSet<&'static str>,
    /// To be reconciled now.
    dirty: BTreeSet<JobKey>,
    /// To be reconciled at a monotonic time.
    due: BTreeMap<JobKey, Duration>,
    /// Being reconciled.
    busy: BTreeSet<JobKey>,
    backoffs: BTreeMap<JobKey, Backoff>,
    troubles: BTreeMap<JobKey, BTreeMap<String, CreateFailure>>,
    running: JoinSet<Reconciled>,
    resync: Duration,
    /// When the metrics were updated, and whether every TYJob was known then.
    metrics_updated: (Duration, bool),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TermEnd {
    LeadershipLost,
    WatchesEnded,
}

impl Term {
    /// A term that waits for the first lists of the watches `missing`.
    pub fn new(context: ReconcileContext, timings: ControllerTimings, missing: BTreeSet<&'static str>) -> Self {
        Self {
            context,
            timings,
            cache: JobCache::default(),
            missing,
            dirty: BTreeSet::new(),
            due: BTreeMap::new(),
            busy: BTreeSet::new(),
            backoffs: BTreeMap::new(),
            troubles: BTreeMap::new(),
            running: JoinSet::new(),
            resync: clock::mono() + timings.resync,
            metrics_updated: (Duration::ZERO, false),
        }
    }

    /// Works until leadership ends. Reconciliations under way are dropped then: each of their requests is complete in itself.
    pub async fn run(&mut self, feed: &mut mpsc::Receiver<FeedMessage<ControllerEvent>>) -> TermEnd {
        let mut messages = Vec::with_capacity(BATCH);
        loop {
            if !self.context.leadership.leads(clock::mono()) {
                return TermEnd::LeadershipLost;
            }
            self.start_due();
            self.update_metrics();
            let sleep = self.sleep_time();
            tokio::select! {
                count = feed.recv_many(&mut messages, BATCH) => {
                    if count == 0 {
                        return TermEnd::WatchesEnded;
                    }
                    for message in messages.drain(..) {
                        self.apply(message);
                    }
                }
                Some(result) = self.running.join_next(), if !self.running.is_empty() => match result {
                    Ok(result) => self.finish(result),
                    // A panic is a bug of ours. The next term reconciles the TYJob again.
                    Err(error) => {
                        tracing::error!(%error, "a reconciliation ended by panic");
                        return TermEnd::LeadershipLost;
                    }
                },
                () = tokio::time::sleep(sleep) => {}
            }
        }
    }

    fn apply(&mut self, message: FeedMessage<ControllerEvent>) {
        match message {
            FeedMessage::Event(event) => self.dirty.extend(self.cache.apply(event)),
            FeedMessage::Synced(feed) => {
                if self.missing.remove(feed) && self.missing.is_empty() {
                    self.dirty.extend(self.cache.jobs().map(|(key, _)| key.clone()));
                    tracing::info!(jobs = self.dirty.len(), "every TYJob is known");
                }
            }
        }
    }

    /// Starts the reconciliation of every TYJob that is due.
    fn start_due(&mut self) {
        if !self.missing.is_empty() {
            return;
        }
        let now = clock::mono();
        if now >= self.resync {
            self.resync = now + self.timings.resync;
            self.dirty.extend(self.cache.jobs().map(|(key, _)| key.clone()));
        }
        let due: Vec<JobKey> = self.due.iter().filter(|(_, at)| **at <= now).map(|(key, _)| key.clone()).collect();
        for key in due {
            self.due.remove(&key);
            self.dirty.insert(key);
        }
        let ready: Vec<JobKey> = self.dirty.iter().filter(|key| !self.busy.contains(*key)).cloned().collect();
        for key in ready {
            if self.busy.len() >= CONCURRENCY {
                return;
            }
            self.dirty.remove(&key);
            let Some(job) = self.cache.job(&key).cloned() else {
                self.backoffs.remove(&key);
                self.troubles.remove(&key);
                self.due.remove(&key);
                continue;
            };
            let pods = self.cache.pods_of(&job.job);
            let trouble = self.troubles.get(&key).cloned();
            self.busy.insert(key.clone());
            let request = ReconcileRequest { key, job, pods, trouble };
            self.running.spawn(reconcile(self.context.clone(), request));
        }
    }

    fn finish(&mut self, result: Reconciled) {
        let Reconciled { key, job, pods, trouble, unsure, wake, again } = result;
        self.busy.remove(&key);
        if let Some(job) = job {
            // The watch shows it too. Whichever comes first, the step that follows finds nothing to do twice.
            self.dirty.extend(self.cache.update_job(*job));
        }
        for pod in pods {
            let concerned = self.cache.update_pod(pod);
            self.dirty.extend(concerned);
        }
        if self.busy.is_empty() {
            self.cache.drop_tombstones();
        }
        let news = match (self.troubles.get(&key), &trouble) {
            (_, None) => false,
            (None, Some(trouble)) => unsure || !trouble.is_empty(),
            // The text may differ each time (an id of the request, what a quota has used): it alone can wait for the next try.
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
            let ControllerTimings { backoff: min, backoff_max: max, .. } = self.timings;
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

    /// Updates the metrics, at most once a second, because it counts every TYJob.
    fn update_metrics(&mut self) {
        let now = clock::mono();
        let complete = self.missing.is_empty();
        if now >= self.metrics_updated.0 + METRICS_PERIOD || complete != self.metrics_updated.1 {
            self.metrics_updated = (now, complete);
            self.context.metrics.update(complete, &self.cache, self.dirty.len() + self.due.len());
        }
    }

    fn sleep_time(&self) -> Duration {
        let now = clock::mono();
        let due = self.due.values().min().map_or(MAX_SLEEP, |at| at.saturating_sub(now));
        due.min(MAX_SLEEP).min(self.context.leadership.until().saturating_sub(now)).max(Duration::from_millis(1))
    }
}

/// The pods in trouble, each with the kind of its trouble.
fn kinds(trouble: &BTreeMap<String, CreateFailure>) -> Vec<(&str, Discriminant<CreateFailure>)> {
    trouble.iter().map(|(pod, trouble)| (pod.as_str(), std::mem::discriminant(trouble))).collect()
}

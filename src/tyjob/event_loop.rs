//! One term of leadership: what the watches show goes to the controller that decides, its requests are performed, and their answers
//! are reported to it.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::metrics::ControllerMetrics;
use baton_cluster::client::{is_too_large, status_code};
use baton_cluster::controller_writer::JobWriter;
use baton_cluster::feed::FeedMessage;
use baton_cluster::leadership::Leadership;
use baton_cluster::notice::{Notice, Notices, Subject};
use baton_contract::tyjob::{Stage, TyJob};
use baton_decide::controller::{
    ControllerEffect, ControllerEvent, ControllerPolicy, ControllerReport, EffectId, JobController, JobRequest,
    RequestFailure,
};
use baton_decide::scheduler::Moment;
use baton_decide::tyjob::stages::PodEffect;
use baton_runtime::{clock, words};

/// Messages that are applied before the controller decides again.
const BATCH: usize = 1024;
/// Metrics are updated this often.
const METRICS_PERIOD: Duration = Duration::from_secs(1);
/// Longest sleep, so that leadership and metrics are up to date.
const MAX_SLEEP: Duration = Duration::from_millis(500);

/// What performs effects.
#[derive(Clone)]
pub struct Performer {
    pub writer: JobWriter,
    pub notices: Notices,
    pub leadership: Leadership,
    pub metrics: ControllerMetrics,
}

pub struct Term {
    performer: Performer,
    controller: JobController,
    /// Watches whose first list is not complete.
    missing: BTreeSet<&'static str>,
    /// Requests under way.
    requests: JoinSet<(EffectId, ControllerReport)>,
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
    pub fn new(performer: Performer, settings: ControllerPolicy, missing: BTreeSet<&'static str>) -> Self {
        let controller = JobController::new(settings, moment());
        Self { performer, controller, missing, requests: JoinSet::new(), metrics_updated: (Duration::ZERO, false) }
    }

    /// Works until leadership ends. Requests under way are dropped then.
    pub async fn run(&mut self, feed: &mut mpsc::Receiver<FeedMessage<ControllerEvent>>) -> TermEnd {
        let mut messages = Vec::with_capacity(BATCH);
        loop {
            let until = self.performer.leadership.until();
            let Some(effects) = self.controller.step(moment(), until) else { return TermEnd::LeadershipLost };
            effects.into_iter().for_each(|effect| self.perform(effect));
            self.update_metrics();
            let due = self.controller.due().min(until).saturating_sub(clock::mono());
            tokio::select! {
                count = feed.recv_many(&mut messages, BATCH) => {
                    if count == 0 {
                        return TermEnd::WatchesEnded;
                    }
                    for message in messages.drain(..) {
                        self.apply(message);
                    }
                }
                Some(answer) = self.requests.join_next(), if !self.requests.is_empty() => match answer {
                    Ok((id, report)) => self.controller.report(id, report),
                    // A panic is a bug of ours. The next term reconciles the TYJob again.
                    Err(error) => {
                        tracing::error!(%error, "a request ended by panic");
                        return TermEnd::LeadershipLost;
                    }
                },
                () = tokio::time::sleep(due.clamp(Duration::from_millis(1), MAX_SLEEP)) => {}
            }
        }
    }

    fn apply(&mut self, message: FeedMessage<ControllerEvent>) {
        match message {
            FeedMessage::Event(event) => self.controller.event(event),
            FeedMessage::Synced(feed) => {
                if self.missing.remove(feed) && self.missing.is_empty() {
                    self.controller.complete();
                    tracing::info!(jobs = self.controller.cache().jobs().count(), "every TYJob is known");
                }
            }
        }
    }

    fn perform(&mut self, effect: ControllerEffect) {
        match effect {
            ControllerEffect::Request { id, job, request } => {
                let writer = self.performer.writer.clone();
                self.requests.spawn(async move { (id, answer(&writer, &job, &request).await) });
            }
            ControllerEffect::Event { job, warning, reason, message } => {
                let word = |text: &Option<String>| text.clone().unwrap_or_default();
                let (namespace, name) = (word(&job.metadata.namespace), word(&job.metadata.name));
                let subject = Subject::Job { namespace, name, uid: word(&job.metadata.uid) };
                self.performer.notices.post(Notice { subject, warning, reason, action: "Control", message });
            }
        }
    }

    /// Updates the metrics, at most once a second, because it counts every TYJob.
    fn update_metrics(&mut self) {
        let metrics = &self.performer.metrics;
        metrics.count(self.controller.take_counts());
        let now = clock::mono();
        let complete = self.missing.is_empty();
        if now >= self.metrics_updated.0 + METRICS_PERIOD || complete != self.metrics_updated.1 {
            self.metrics_updated = (now, complete);
            metrics.update(complete, &self.controller);
        }
    }
}

fn moment() -> Moment {
    let now = clock::now();
    Moment { mono: now.mono, wall: now.wall }
}

/// Makes one request.
async fn answer(writer: &JobWriter, job: &Arc<TyJob>, request: &JobRequest) -> ControllerReport {
    let (namespace, name) = (job.metadata.namespace.as_deref(), job.metadata.name.as_deref());
    let report = match writer.perform(job, request).await {
        Ok(report) => report,
        Err(error) => {
            tracing::warn!(namespace, job = name, error = words(&error), "a request failed, the job is tried again");
            return ControllerReport::Failed(match status_code(&error) {
                Some(422) => RequestFailure::Invalid,
                _ if is_too_large(&error) => RequestFailure::TooLarge,
                _ => RequestFailure::Unknown,
            });
        }
    };
    match (request, &report) {
        (JobRequest::WriteStatus(status), ControllerReport::Written(_)) => {
            let before = job.status.as_ref().and_then(|status| status.stage);
            if let Some(stage) = status.stage.filter(|stage| before != Some(*stage)) {
                tracing::info!(
                    job = name,
                    namespace,
                    from = before.map_or("new", Stage::word),
                    to = stage.word(),
                    "stage"
                );
            }
        }
        (JobRequest::Pod(PodEffect::Create { name: pod, .. }), ControllerReport::Made(_)) => {
            tracing::info!(job = name, pod, "the pod is made");
        }
        (JobRequest::Pod(PodEffect::Delete { name: pod, uid, force, .. }), ControllerReport::Deleted) => {
            tracing::info!(job = name, pod, uid, force, "the pod is deleted");
        }
        _ => {}
    }
    report
}

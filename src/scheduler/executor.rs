//! Performs the scheduler's effects: one task each, bounded in number, reported back as values.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Semaphore, mpsc};

use baton_cluster::client::said;
use baton_cluster::leadership::Leadership;
use baton_cluster::node_lock::{LockError, LockWrite, NodeLocks};
use baton_cluster::notice::{Notice, Notices, Subject};
use baton_cluster::pod_group::PodGroups;
use baton_cluster::pod_writer::PodWriter;
use baton_cluster::tyjob::JobStatuses;
use baton_cluster::volume::Volumes;
use baton_decide::core::JobWriteResult;
use baton_decide::scheduler::{BindResult, Effect, EffectResult, LockResult};
use baton_runtime::clock;

use super::backpressure::Backpressure;
use super::write_order::WriteOrder;

/// Everything that writes to the cluster.
pub struct Executor {
    /// Pods.
    pub pods: PodWriter,
    /// Node locks.
    pub locks: NodeLocks,
    /// Claims and volumes.
    pub volumes: Volumes,
    /// TYJobs' statuses.
    pub jobs: JobStatuses,
    /// Events.
    pub notices: Notices,
    /// PodGroups.
    pub pod_groups: PodGroups,
    /// Whether this process may write.
    pub leadership: Leadership,
    /// Bounds the requests under way.
    pub permits: Arc<Semaphore>,
    /// Bounds the status writes among them: no Binding waits behind thousands of conditions.
    pub status_permits: Arc<Semaphore>,
    /// Counts lock writes and Bindings, which decisions wait for.
    pub backpressure: Arc<Backpressure>,
    /// Order of the conditions and the Binding of one pod.
    pub write_order: WriteOrder,
    /// A request without an answer by then counts as lost: it may or may not have happened.
    pub limit: Duration,
    /// Where reports go.
    pub reports: mpsc::UnboundedSender<EffectResult>,
}

impl Executor {
    /// Starts to perform `effect`. The scheduler serialises what belongs together (one writer per node lock, one request per
    /// pod), so effects need no order among each other, except the status writes of a pod before its Binding.
    pub fn perform(self: &Arc<Self>, effect: Effect) {
        if let Effect::Notice { pod, warning, reason, message } = effect {
            tracing::debug!(pod = %pod.key, reason = reason.word(), message, "event");
            self.notices.post(Notice { subject: Subject::Pod(pod), warning, reason, action: "Scheduling", message });
            return;
        }
        if let Effect::NodeNotice { node, warning, reason, message } = effect {
            tracing::info!(node = %node, reason = reason.word(), message, "event");
            self.notices.post(Notice { subject: Subject::Node(node), warning, reason, action: "Scheduling", message });
            return;
        }
        if let Effect::JobNotice { job, warning, reason, message } = effect {
            tracing::info!(job = %job.key, reason = reason.word(), message, "TYJob");
            let (namespace, name) = (job.key.namespace.to_string(), job.key.name.to_string());
            let subject = Subject::Job { namespace, name, uid: job.uid.to_string() };
            self.notices.post(Notice { subject, warning, reason, action: "Scheduling", message });
            return;
        }
        if let Effect::RateMix(sample) = effect {
            let reports = self.reports.clone();
            tokio::task::spawn_blocking(move || reports.send(EffectResult::Tables(Box::new(sample.tables()))));
            return;
        }
        let this = self.clone();
        let mut ordered = match &effect {
            Effect::Condition { pod, .. } | Effect::Nominate { pod, .. } => Some(self.write_order.enter(&pod.uid)),
            Effect::Bind { pod, .. } => Some(self.write_order.enter(&pod.uid)),
            _ => None,
        };
        let counted = matches!(effect, Effect::Lock { .. } | Effect::Bind { .. }).then(|| self.backpressure.count());
        tokio::spawn(async move {
            let _counted = counted;
            // Before a permit is taken: a task that holds one must never wait for a task that needs one.
            if let Some(ordered) = &mut ordered {
                ordered.turn().await;
            }
            let _status_permit = match &effect {
                Effect::Condition { .. } | Effect::PodGroupStatus(_) => {
                    this.status_permits.clone().acquire_owned().await.ok()
                }
                _ => None,
            };
            let Ok(_permit) = this.permits.clone().acquire_owned().await else { return };
            let lost = unperformed(&effect, &format!("no answer within {:?}", this.limit));
            // Boxed, so that the thousands of tasks that may wait for a permit stay small.
            let answered = tokio::time::timeout(this.limit, Box::pin(this.request(effect))).await;
            if answered.is_err() {
                tracing::warn!(limit = ?this.limit, "the API server has not answered a request");
            }
            if let Some(report) = answered.unwrap_or(lost) {
                // The receiver is gone only when the process ends.
                this.reports.send(report).ok();
            }
        });
    }

    async fn request(&self, effect: Effect) -> Option<EffectResult> {
        // A leader that loses its Lease stops writing before the Lease ends; reads do no harm.
        if !matches!(effect, Effect::ReadPod { .. }) && !self.leadership.leads(clock::mono()) {
            let report = unperformed(&effect, "this scheduler does not lead any more");
            tracing::debug!(?report, "not written: this scheduler does not lead any more");
            return report;
        }
        match effect {
            Effect::Lock { ticket, node, old, new } => {
                let result = answer(match &old {
                    None => self.locks.set(&node, &new).await,
                    Some(old) => self.locks.take_over(&node, old, &new).await,
                });
                tracing::info!(node = %node, lock = %new, took_over = old.as_deref(), ?result, "node lock");
                Some(EffectResult::Lock { ticket, result })
            }
            Effect::Release { node, old, reason } => {
                let result = answer(self.locks.release(&node, &old).await);
                tracing::info!(node = %node, lock = %old, reason = %reason, ?result, "release of a node lock");
                Some(EffectResult::Release { node, old, result })
            }
            Effect::Bind { ticket, pod, node, annotations } => {
                let result = self.pods.bind(&pod, &node, &*annotations).await;
                tracing::info!(pod = %pod.key, uid = %pod.uid, node = %node, ?result, "binding");
                Some(EffectResult::Bind { ticket, result })
            }
            Effect::ReadPod { pod } => {
                let result = self.pods.read(&pod).await;
                let result = result.map(|found| found.map(Box::new)).map_err(|error| said(&error));
                Some(EffectResult::PodRead { pod, result })
            }
            Effect::Evict { pod, message } => {
                let result = self.pods.evict(&pod, &message).await;
                tracing::info!(pod = %pod.key, uid = %pod.uid, reason = %message, ?result, "evicted");
                None
            }
            Effect::MarkTimedOut { pod, key } => {
                let result = self.pods.annotate(&pod, key, "true").await;
                tracing::info!(pod = %pod.key, uid = %pod.uid, key, ?result, "marked");
                None
            }
            Effect::PodGroupStatus(write) => {
                let result = self.pod_groups.status(&write).await;
                if let Err(error) = &result {
                    tracing::debug!(gang = %write.gang, %error, "status of a PodGroup not written");
                }
                let result = result.ok().map(Box::new);
                Some(EffectResult::PodGroup { gang: write.gang, result })
            }
            Effect::MakePodGroup { gang, min, owners } => {
                let result = self.pod_groups.make(&gang, min, &owners).await;
                tracing::info!(gang = %gang, min, ?result, "PodGroup made");
                None
            }
            Effect::RemovePodGroup { gang, uid, version } => {
                let result = self.pod_groups.remove(&gang, &uid, &version).await;
                tracing::info!(gang = %gang, ?result, "PodGroup removed");
                None
            }
            Effect::SelectNode { claim, version, node } => {
                let result = self.volumes.select_node(&claim, &version, &node).await;
                tracing::info!(claim = %claim, node = %node, ?result, "node selected for a claim");
                None
            }
            Effect::BindVolume { volume, version, claim, uid } => {
                let result = self.volumes.bind(&volume, &version, &claim, &uid).await;
                tracing::info!(volume = %volume, claim = %claim, ?result, "volume promised to a claim");
                None
            }
            Effect::Nominate { pod, node } => {
                let lost = EffectResult::NominationLost { pod: pod.uid.clone() };
                let error = self.pods.nominate(&pod, node.as_deref()).await.err()?;
                tracing::debug!(pod = %pod.key, %error, "nomination not written");
                Some(lost)
            }
            Effect::Condition { pod, reason, message, first } => {
                let since = first.then(clock::wall);
                match self.pods.unscheduled(&pod, reason, &message, since).await {
                    Ok(()) => None,
                    Err(error) => {
                        tracing::debug!(pod = %pod.key, %error, "condition not written");
                        Some(EffectResult::ConditionLost { pod: pod.uid })
                    }
                }
            }
            Effect::Served { pod, node, served } => {
                let result = self.pods.served(&pod, &node, served).await;
                tracing::info!(pod = %pod.key, uid = %pod.uid, node = %node, served, ?result, "condition of its devices");
                None
            }
            Effect::WriteJob { job, version, status } => {
                let result = self.jobs.write(&job, version, &status).await;
                let places = status.allocations.len();
                tracing::info!(job = %job.key, state = ?status.state, places, ?result, "TYJob status");
                Some(EffectResult::JobWritten { job, result })
            }
            Effect::Notice { .. } | Effect::NodeNotice { .. } | Effect::JobNotice { .. } | Effect::RateMix(_) => None,
        }
    }
}

/// The report of an effect that was not performed, or that had no answer in time.
fn unperformed(effect: &Effect, why: &str) -> Option<EffectResult> {
    let why = || why.to_owned();
    Some(match effect {
        Effect::Lock { ticket, .. } => EffectResult::Lock { ticket: *ticket, result: LockResult::Failed(why(), None) },
        Effect::Release { node, old, .. } => {
            let result = LockResult::Failed(why(), None);
            EffectResult::Release { node: node.clone(), old: old.clone(), result }
        }
        Effect::Bind { ticket, .. } => EffectResult::Bind { ticket: *ticket, result: BindResult::Unknown(why(), None) },
        Effect::ReadPod { pod } => EffectResult::PodRead { pod: pod.clone(), result: Err(why()) },
        Effect::PodGroupStatus(write) => EffectResult::PodGroup { gang: write.gang.clone(), result: None },
        Effect::WriteJob { job, .. } => {
            EffectResult::JobWritten { job: job.clone(), result: JobWriteResult::Failed(why()) }
        }
        Effect::Condition { pod, .. } => EffectResult::ConditionLost { pod: pod.uid.clone() },
        Effect::Nominate { pod, .. } => EffectResult::NominationLost { pod: pod.uid.clone() },
        // The scheduler repeats these by itself, or does not wait for them.
        Effect::Evict { .. }
        | Effect::MarkTimedOut { .. }
        | Effect::Served { .. }
        | Effect::MakePodGroup { .. }
        | Effect::RemovePodGroup { .. }
        | Effect::SelectNode { .. }
        | Effect::BindVolume { .. }
        | Effect::Notice { .. }
        | Effect::NodeNotice { .. }
        | Effect::JobNotice { .. }
        | Effect::RateMix(_) => return None,
    })
}

fn answer(result: Result<LockWrite, LockError>) -> LockResult {
    match result {
        Ok(LockWrite::Done) => LockResult::Done,
        Ok(LockWrite::Contended(read)) => LockResult::Contended(read),
        Err(LockError::NodeGone(_)) => LockResult::NodeGone,
        Err(error @ LockError::Api { .. }) => LockResult::Failed(error.to_string(), error.retry_after()),
    }
}

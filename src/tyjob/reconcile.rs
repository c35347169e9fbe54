//! One reconciliation of one TYJob: a step, the write of its status, its effects. Every request is made only while this process
//! leads.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures::StreamExt;
use jiff::Timestamp;

use super::cache::{CachedJob, JobKey};
use super::metrics::{ControllerMetrics, Counted};
use baton_cluster::client::status_code;
use baton_cluster::controller_feed::OwnedPod;
use baton_cluster::controller_writer::{JobWrite, JobWriter, PodMade};
use baton_cluster::leadership::Leadership;
use baton_cluster::notice::{Notice, Notices, Subject};
use baton_cluster::tyjob::RawTyJob;
use baton_contract::EventReason;
use baton_contract::tyjob::{Stage, TyJob, condition};
use baton_decide::tyjob::stages::{CreateFailure, JobEffect, JobView, NodeReachability, PodView, missing_leader, step};
use baton_runtime::{clock, words};

/// Pods of one job that are made or deleted at once.
const AT_ONCE: usize = 8;

/// What every reconciliation needs.
#[derive(Clone)]
pub struct ReconcileContext {
    pub writer: JobWriter,
    pub notices: Notices,
    pub leadership: Leadership,
    pub metrics: ControllerMetrics,
    /// `spec.schedulerName` of the pods.
    pub scheduler_name: Arc<str>,
}

/// A TYJob to reconcile, as the watches have shown it.
pub struct ReconcileRequest {
    pub key: JobKey,
    pub job: CachedJob,
    pub pods: Vec<PodView>,
    /// Pods that the last reconciliation could not make; `None` before the first one that got as far as making pods.
    pub trouble: Option<BTreeMap<String, CreateFailure>>,
}

/// Outcome of a reconciliation.
#[derive(Debug, Default)]
pub struct Reconciled {
    pub key: JobKey,
    /// The TYJob as it was written.
    pub job: Option<Box<RawTyJob>>,
    /// Pods that were made or result.
    pub pods: Vec<OwnedPod>,
    /// Pods that could not be made now; what was known before where none was tried.
    pub trouble: Option<BTreeMap<String, CreateFailure>>,
    /// The status names pods that could not be made, and before this reconciliation it was unknown whether that still holds.
    pub unsure: bool,
    /// Reconcile again at this time.
    pub wake: Option<Timestamp>,
    /// A request failed, or an answer is out of date: reconcile again after a pause.
    pub again: bool,
}

pub async fn reconcile(context: ReconcileContext, request: ReconcileRequest) -> Reconciled {
    let mut result = Reconciled { key: request.key.clone(), trouble: request.trouble.clone(), ..Reconciled::default() };
    match try_reconcile(&context, request, &mut result).await {
        Ok(()) => {}
        Err(Stop::NotLeading) => result.again = true,
        Err(Stop::Failed(error)) => {
            context.metrics.count(Counted::Failure);
            let job = format!("{}/{}", result.key.0, result.key.1);
            tracing::warn!(job, error = words(&error), "a request failed, the job is tried again");
            result.again = true;
        }
    }
    result
}

enum Stop {
    NotLeading,
    Failed(kube::Error),
}

impl From<kube::Error> for Stop {
    fn from(error: kube::Error) -> Self {
        Self::Failed(error)
    }
}

async fn try_reconcile(
    context: &ReconcileContext,
    request: ReconcileRequest,
    result: &mut Reconciled,
) -> Result<(), Stop> {
    let ReconcileRequest { job: CachedJob { job, unreadable }, mut pods, trouble, .. } = request;
    context.may_write()?;
    confirm_nodes(context, &mut pods).await?;
    confirm_leader(context, &job, &mut pods, result).await?;
    let holds = |kind: &str| job.status.as_ref().is_some_and(|status| status.holds(kind));
    result.unsure = trouble.is_none() && (holds(condition::NAME_CONFLICT) || holds(condition::POD_REFUSED));
    let view = JobView {
        job: &job,
        unreadable: unreadable.as_ref(),
        scheduler_name: &context.scheduler_name,
        trouble: trouble.as_ref(),
    };
    context.metrics.count(Counted::Step);
    let (status, effects) = step(&view, &pods, clock::wall());
    let mut now = job.clone();
    if job.status.as_ref() != Some(&status) {
        context.may_write()?;
        let written = context.writer.status(&job, &status).await;
        if written.as_ref().is_err_and(|error| status_code(error) == Some(422)) {
            // A TYJob that is older than the schema may break a rule that every write of it is held to. Its status cannot say
            // so then, so an event does.
            for effect in &effects {
                if let JobEffect::Event { warning: true, reason, message } = effect {
                    record_event(context, &job, true, *reason, message.clone());
                }
            }
        }
        match written? {
            JobWrite::Done(written) => {
                context.metrics.count(Counted::StatusWrite);
                log_stage(&job, status.stage);
                now.metadata.resource_version.clone_from(&written.metadata.resource_version);
                result.job = Some(written);
            }
            JobWrite::Conflict => {
                context.metrics.count(Counted::Conflict);
                result.again = true;
                return Ok(());
            }
            JobWrite::Gone => return Ok(()),
        }
    }
    perform(context, &now, effects, result).await
}

/// Reads a leader pod that the watch does not show; one of its name that it still shows is of an earlier attempt, and gone.
async fn confirm_leader(
    context: &ReconcileContext,
    job: &TyJob,
    pods: &mut Vec<PodView>,
    result: &mut Reconciled,
) -> Result<(), Stop> {
    let Some(name) = missing_leader(job, pods) else { return Ok(()) };
    let found = context.writer.own_pod(job, &name).await?;
    pods.retain(|known| known.name != name);
    if let Some(pod) = found {
        pods.push(pod.view.clone());
        result.pods.push(pod);
    }
    Ok(())
}

/// A node counts as gone only when the API server says so: the watch of nodes may be behind the watch of pods.
async fn confirm_nodes(context: &ReconcileContext, pods: &mut [PodView]) -> Result<(), Stop> {
    let mut there: BTreeMap<String, bool> = BTreeMap::new();
    for pod in pods.iter_mut().filter(|pod| pod.reachability == NodeReachability::Gone) {
        let Some(node) = pod.node.clone() else { continue };
        let known = match there.get(&node) {
            Some(known) => *known,
            None => context.writer.has_node(&node).await?,
        };
        there.insert(node, known);
        if known {
            pod.reachability = NodeReachability::There;
        }
    }
    Ok(())
}

/// Performs effects in their order. Pods are made and deleted several at once.
async fn perform(
    context: &ReconcileContext,
    job: &TyJob,
    effects: Vec<JobEffect>,
    result: &mut Reconciled,
) -> Result<(), Stop> {
    let (of_pods, others): (Vec<_>, Vec<_>) = effects.into_iter().partition(|effect| {
        matches!(effect, JobEffect::Create { .. } | JobEffect::Delete { .. } | JobEffect::Reserve { .. })
    });
    for effect in others {
        match effect {
            JobEffect::Event { warning, reason, message } => record_event(context, job, warning, reason, message),
            JobEffect::Wake { at } => result.wake = Some(result.wake.map_or(at, |wake| wake.min(at))),
            JobEffect::AddFinalizer => finalize(context, job, true, result).await?,
            JobEffect::RemoveFinalizer => {
                // A late request may have made a pod: the finalizer goes only when no pod is left.
                context.may_write()?;
                let left = context.writer.own_pods(job).await?;
                if left.is_empty() {
                    finalize(context, job, false, result).await?;
                } else {
                    result.pods.extend(left);
                    result.again = true;
                }
            }
            JobEffect::Create { .. } | JobEffect::Delete { .. } | JobEffect::Reserve { .. } => {}
        }
    }
    let requests = of_pods.into_iter().map(async |effect| {
        let name = if let JobEffect::Create { name, .. } = &effect { Some(name.clone()) } else { None };
        (name, perform_one(context, job, effect).await)
    });
    let mut answers = futures::stream::iter(requests).buffer_unordered(AT_ONCE);
    let mut stop = None;
    let former = result.trouble.take();
    let mut trouble = BTreeMap::new();
    while let Some((name, answer)) = answers.next().await {
        match answer {
            Ok(None) => {}
            Ok(Some((name, made))) => match made {
                PodMade::Ours(pod) | PodMade::Former(pod) => result.pods.push(*pod),
                PodMade::Foreign(whose) => drop(trouble.insert(name, CreateFailure::Foreign(whose))),
                PodMade::Invalid(why) => drop(trouble.insert(name, CreateFailure::Invalid(why))),
                PodMade::Refused(why) => drop(trouble.insert(name, CreateFailure::Refused(why))),
                PodMade::Again => result.again = true,
            },
            Err(error) => {
                // Not known to be free now: the name keeps its trouble.
                let known = name.and_then(|name| Some((name.clone(), former.as_ref()?.get(&name)?.clone())));
                trouble.extend(known);
                stop = Some(error);
            }
        }
    }
    // Where no trouble was known and not every pod was tried, the status keeps what it says.
    let unknown = former.is_none() && stop.is_some() && trouble.is_empty();
    result.trouble = (!unknown).then_some(trouble);
    stop.map_or(Ok(()), Err)
}

async fn perform_one(
    context: &ReconcileContext,
    job: &TyJob,
    effect: JobEffect,
) -> Result<Option<(String, PodMade)>, Stop> {
    context.may_write()?;
    match effect {
        JobEffect::Create { name, body } => {
            let made = context.writer.create(job, &name, &body).await?;
            if let PodMade::Ours(_) = &made {
                context.metrics.count(Counted::PodMade);
                tracing::info!(job = job.metadata.name, pod = name, "the pod is made");
            }
            Ok(Some((name, made)))
        }
        JobEffect::Delete { name, uid, force } => {
            if !context.writer.delete(job, &name, &uid, force).await? {
                return Ok(Some((name, PodMade::Again)));
            }
            context.metrics.count(Counted::PodDeleted);
            tracing::info!(job = job.metadata.name, pod = name, uid, force, "the pod is deleted");
            Ok(None)
        }
        JobEffect::Reserve { name, uid, node } => {
            let written = context.writer.reserve(job, &name, &uid, &node).await?;
            Ok((!written).then_some((name, PodMade::Again)))
        }
        _ => Ok(None),
    }
}

async fn finalize(context: &ReconcileContext, job: &TyJob, present: bool, result: &mut Reconciled) -> Result<(), Stop> {
    context.may_write()?;
    match context.writer.finalizer(job, present).await? {
        JobWrite::Done(written) => result.job = Some(written),
        JobWrite::Conflict => result.again = true,
        JobWrite::Gone => {}
    }
    Ok(())
}

impl ReconcileContext {
    fn may_write(&self) -> Result<(), Stop> {
        if self.leadership.leads(clock::mono()) { Ok(()) } else { Err(Stop::NotLeading) }
    }
}

fn record_event(context: &ReconcileContext, job: &TyJob, warning: bool, reason: EventReason, message: String) {
    let meta = &job.metadata;
    let subject = Subject::Job {
        namespace: meta.namespace.clone().unwrap_or_default(),
        name: meta.name.clone().unwrap_or_default(),
        uid: meta.uid.clone().unwrap_or_default(),
    };
    context.notices.post(Notice { subject, warning, reason, action: "Control", message });
}

fn log_stage(job: &TyJob, stage: Option<Stage>) {
    let before = job.status.as_ref().and_then(|status| status.stage);
    if before != stage
        && let Some(stage) = stage
    {
        let from = before.map_or("new", Stage::word);
        tracing::info!(job = job.metadata.name, namespace = job.metadata.namespace, from, to = stage.word(), "stage");
    }
}

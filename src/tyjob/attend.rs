//! One look at one job: a step, its status, its effects. Every request is made only while this process leads.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures::StreamExt;
use jiff::Timestamp;

use super::metrics::Metrics;
use super::sight::{JobKey, SeenJob};
use crate::cluster::client::status_code;
use crate::cluster::job_feed::{OwnedPod, RawJob};
use crate::cluster::job_writer::{JobWrite, JobWriter, PodMade};
use crate::cluster::leadership::Standing;
use crate::cluster::notice::{Notice, Notices, Subject};
use crate::contract::tyjob::{Stage, TyJob, condition};
use crate::decide::tyjob::stages::{Effect, JobView, NodeSight, PodView, Trouble, step};
use crate::runtime::{clock, words};

/// Pods of one job that are made or deleted at once.
const AT_ONCE: usize = 8;

/// What every look needs.
#[derive(Clone)]
pub struct Hands {
    /// Writes.
    pub writer: JobWriter,
    /// Events.
    pub notices: Notices,
    /// Whether writing is allowed.
    pub standing: Standing,
    /// Counters.
    pub metrics: Metrics,
    /// Scheduler name of the pods.
    pub scheduler_name: Arc<str>,
}

/// A job as the watches have shown it.
pub struct Look {
    /// Which.
    pub key: JobKey,
    /// The job.
    pub seen: SeenJob,
    /// Its pods.
    pub pods: Vec<PodView>,
    /// Pods that could not be made at the last look; `None` before the first one that got as far as making pods.
    pub trouble: Option<BTreeMap<String, Trouble>>,
}

/// What came of a look.
#[derive(Debug, Default)]
pub struct Found {
    /// Which job.
    pub key: JobKey,
    /// The job as it was written.
    pub job: Option<Box<RawJob>>,
    /// Pods that were made or found.
    pub pods: Vec<OwnedPod>,
    /// Pods that could not be made now; what was known before where none was tried.
    pub trouble: Option<BTreeMap<String, Trouble>>,
    /// The status tells of pods that could not be made, and before this look nobody knew whether that still holds.
    pub unsure: bool,
    /// Look again at this time.
    pub wake: Option<Timestamp>,
    /// A request failed, or an answer is out of date: look again after a pause.
    pub again: bool,
}

/// One look.
pub async fn attend(hands: Hands, look: Look) -> Found {
    let mut found = Found { key: look.key.clone(), trouble: look.trouble.clone(), ..Found::default() };
    match attempt(&hands, look, &mut found).await {
        Ok(()) => {}
        Err(Stop::NotLeading) => found.again = true,
        Err(Stop::Failed(error)) => {
            hands.metrics.failed();
            let job = format!("{}/{}", found.key.0, found.key.1);
            tracing::warn!(job, error = words(&error), "a request failed, the job is tried again");
            found.again = true;
        }
    }
    found
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

async fn attempt(hands: &Hands, look: Look, found: &mut Found) -> Result<(), Stop> {
    let Look { seen: SeenJob { job, unreadable }, mut pods, trouble, .. } = look;
    hands.may_write()?;
    confirm_nodes(hands, &mut pods).await?;
    confirm_leader(hands, &job, &mut pods, found).await?;
    let told = |kind: &str| job.status.as_ref().is_some_and(|status| status.holds(kind));
    found.unsure = trouble.is_none() && (told(condition::NAME_CONFLICT) || told(condition::POD_REFUSED));
    let view = JobView {
        job: &job,
        unreadable: unreadable.as_ref(),
        scheduler_name: &hands.scheduler_name,
        trouble: trouble.as_ref(),
    };
    hands.metrics.stepped();
    let (status, effects) = step(&view, &pods, clock::wall());
    let mut now = job.clone();
    if job.status.as_ref() != Some(&status) {
        hands.may_write()?;
        let written = hands.writer.status(&job, &status).await;
        if written.as_ref().is_err_and(|error| status_code(error) == Some(422)) {
            // A job that came in before the schema did may break a rule that every write of it is held to: where its status
            // cannot say so, an event does.
            for effect in &effects {
                if let Effect::Tell { warning: true, reason, message } = effect {
                    tell(hands, &job, true, reason, message.clone());
                }
            }
        }
        match written? {
            JobWrite::Done(written) => {
                hands.metrics.wrote();
                tell_stage(&job, status.stage);
                now.metadata.resource_version.clone_from(&written.metadata.resource_version);
                found.job = Some(written);
            }
            JobWrite::Conflict => {
                hands.metrics.conflicted();
                found.again = true;
                return Ok(());
            }
            JobWrite::Gone => return Ok(()),
        }
    }
    perform(hands, &now, effects, found).await
}

/// A watch of pods may be behind the watch of jobs: a leader counts as gone only when the server says so.
async fn confirm_leader(hands: &Hands, job: &TyJob, pods: &mut Vec<PodView>, found: &mut Found) -> Result<(), Stop> {
    let stage = job.status.as_ref().and_then(|status| status.stage);
    if !matches!(stage, Some(Stage::Starting | Stage::Running)) || job.metadata.deletion_timestamp.is_some() {
        return Ok(());
    }
    let Ok(effective) = job.effective(None) else { return Ok(()) };
    let name = effective.spec.leader_pod(job.metadata.name.as_deref().unwrap_or_default());
    if pods.iter().any(|pod| pod.name == name) {
        return Ok(());
    }
    if let Some(pod) = hands.writer.own_pod(job, &name).await? {
        pods.push(pod.view.clone());
        found.pods.push(pod);
    }
    Ok(())
}

/// A watch of nodes may be behind the watch of pods: a node counts as gone only when the server says so.
async fn confirm_nodes(hands: &Hands, pods: &mut [PodView]) -> Result<(), Stop> {
    let mut there: BTreeMap<String, bool> = BTreeMap::new();
    for pod in pods.iter_mut().filter(|pod| pod.sight == NodeSight::Gone) {
        let Some(node) = pod.node.clone() else { continue };
        let known = match there.get(&node) {
            Some(known) => *known,
            None => hands.writer.has_node(&node).await?,
        };
        there.insert(node, known);
        if known {
            pod.sight = NodeSight::There;
        }
    }
    Ok(())
}

/// Effects in their order; runs of pods to be made or deleted go several at once.
async fn perform(hands: &Hands, job: &TyJob, effects: Vec<Effect>, found: &mut Found) -> Result<(), Stop> {
    let (of_pods, others): (Vec<_>, Vec<_>) = effects
        .into_iter()
        .partition(|effect| matches!(effect, Effect::Create { .. } | Effect::Delete { .. } | Effect::Reserve { .. }));
    for effect in others {
        match effect {
            Effect::Tell { warning, reason, message } => tell(hands, job, warning, reason, message),
            Effect::Wake { at } => found.wake = Some(found.wake.map_or(at, |wake| wake.min(at))),
            Effect::AddFinalizer => finalize(hands, job, true, found).await?,
            Effect::RemoveFinalizer => {
                // Nothing that a late request has made is left behind.
                hands.may_write()?;
                let left = hands.writer.own_pods(job).await?;
                if left.is_empty() {
                    finalize(hands, job, false, found).await?;
                } else {
                    found.pods.extend(left);
                    found.again = true;
                }
            }
            Effect::Create { .. } | Effect::Delete { .. } | Effect::Reserve { .. } => {}
        }
    }
    let requests = of_pods.into_iter().map(async |effect| {
        let name = if let Effect::Create { name, .. } = &effect { Some(name.clone()) } else { None };
        (name, perform_one(hands, job, effect).await)
    });
    let mut answers = futures::stream::iter(requests).buffer_unordered(AT_ONCE);
    let mut stop = None;
    let former = found.trouble.take();
    let mut trouble = BTreeMap::new();
    while let Some((name, answer)) = answers.next().await {
        match answer {
            Ok(None) => {}
            Ok(Some((name, made))) => match made {
                PodMade::Ours(pod) | PodMade::Former(pod) => found.pods.push(*pod),
                PodMade::Foreign(whose) => drop(trouble.insert(name, Trouble::Foreign(whose))),
                PodMade::Invalid(why) => drop(trouble.insert(name, Trouble::Invalid(why))),
                PodMade::Refused(why) => drop(trouble.insert(name, Trouble::Refused(why))),
                PodMade::Again => found.again = true,
            },
            Err(error) => {
                // Nobody has said that the name is free now.
                let known = name.and_then(|name| Some((name.clone(), former.as_ref()?.get(&name)?.clone())));
                trouble.extend(known);
                stop = Some(error);
            }
        }
    }
    // Where nothing was known and not everything was tried, what the status says stands.
    let unknown = former.is_none() && stop.is_some() && trouble.is_empty();
    found.trouble = (!unknown).then_some(trouble);
    stop.map_or(Ok(()), Err)
}

async fn perform_one(hands: &Hands, job: &TyJob, effect: Effect) -> Result<Option<(String, PodMade)>, Stop> {
    hands.may_write()?;
    match effect {
        Effect::Create { name, body } => {
            let made = hands.writer.create(job, &name, &body).await?;
            if let PodMade::Ours(_) = &made {
                hands.metrics.made();
                tracing::info!(job = job.metadata.name, pod = name, "the pod is made");
            }
            Ok(Some((name, made)))
        }
        Effect::Delete { name, uid, force } => {
            if !hands.writer.delete(job, &name, &uid, force).await? {
                return Ok(Some((name, PodMade::Again)));
            }
            hands.metrics.deleted();
            tracing::info!(job = job.metadata.name, pod = name, uid, force, "the pod is deleted");
            Ok(None)
        }
        Effect::Reserve { name, uid, node } => {
            let told = hands.writer.reserve(job, &name, &uid, &node).await?;
            Ok((!told).then_some((name, PodMade::Again)))
        }
        _ => Ok(None),
    }
}

async fn finalize(hands: &Hands, job: &TyJob, present: bool, found: &mut Found) -> Result<(), Stop> {
    hands.may_write()?;
    match hands.writer.finalizer(job, present).await? {
        JobWrite::Done(written) => found.job = Some(written),
        JobWrite::Conflict => found.again = true,
        JobWrite::Gone => {}
    }
    Ok(())
}

impl Hands {
    fn may_write(&self) -> Result<(), Stop> {
        if self.standing.leads(clock::mono()) { Ok(()) } else { Err(Stop::NotLeading) }
    }
}

fn tell(hands: &Hands, job: &TyJob, warning: bool, reason: &'static str, message: String) {
    let meta = &job.metadata;
    let subject = Subject::Job {
        namespace: meta.namespace.clone().unwrap_or_default(),
        name: meta.name.clone().unwrap_or_default(),
        uid: meta.uid.clone().unwrap_or_default(),
    };
    hands.notices.tell(Notice { subject, warning, reason, action: "Control", message });
}

fn tell_stage(job: &TyJob, stage: Option<Stage>) {
    let before = job.status.as_ref().and_then(|status| status.stage);
    if before != stage
        && let Some(stage) = stage
    {
        let from = before.map_or("new", Stage::as_str);
        tracing::info!(job = job.metadata.name, namespace = job.metadata.namespace, from, to = stage.as_str(), "stage");
    }
}

//! One reconciliation of one job: what is read, the step, its status, and what follows once that is stored.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use jiff::Timestamp;

use super::cache::{JobCache, JobKey};
use super::effect::{
    ControllerCounts, ControllerEffect, ControllerEvent, ControllerReport, EffectId, JobRequest, OwnedPod,
    RequestFailure, ShownJob,
};
use crate::pod::Phase;
use crate::tyjob::stages::{CreateFailure, JobEffect, JobView, NodeReachability, PodEffect, PodView, rests_on, step};
use baton_contract::EventReason;
use baton_contract::tyjob::{InvalidField, TyJob, condition};

/// Requests of one job that are under way at once.
const AT_ONCE: usize = 8;

/// Pods that could not be made, by name.
pub(super) type Troubles = BTreeMap<String, CreateFailure>;

/// A job under way.
pub(super) struct Reconciliation {
    job: Arc<TyJob>,
    unreadable: Option<InvalidField>,
    pods: Vec<PodView>,
    progress: Progress,
    /// Requests that are not sent yet.
    waiting: VecDeque<JobRequest>,
    /// Those without an answer, each with the node or pod that the answer is about.
    sent: BTreeMap<EffectId, Option<String>>,
    /// Pods that the last reconciliation could not make; `None` before the first one that got as far as making pods.
    former: Option<Troubles>,
    /// Uid of the leader pod.
    leader: Option<String>,
    /// The job has been edited, is being deleted or has lost its leader since: pods that are not asked for yet are not made.
    is_outdated: bool,
    end: End,
}

/// What the requests under way are for; see the table of this folder.
enum Progress {
    /// The pods that were read.
    Reading(BTreeSet<String>),
    /// The effects of the step.
    Writing(Vec<JobEffect>),
    /// Warnings of a step whose status the API server rejects.
    Rejected(Vec<JobEffect>),
    /// The requests for pods.
    Finalizing(VecDeque<JobRequest>),
    Making,
    Over,
}

/// What a reconciliation leaves.
#[derive(Debug, Default)]
pub(super) struct End {
    /// Pods that could not be made now; what was known before where none was tried.
    pub troubles: Option<Troubles>,
    /// Other pods are in trouble than the status names, or for another kind of reason.
    pub is_news: bool,
    /// Look again at this time.
    pub wake: Option<Timestamp>,
    /// An answer is out of date, or a request has failed: look again after a pause.
    pub again: bool,
    /// A request has failed.
    pub failed: bool,
    /// A pod was made: a pause that follows is no longer than the first.
    pub made: bool,
}

/// What an advance adds to.
pub(super) struct Output<'a> {
    pub scheduler_name: &'a str,
    pub wall: Timestamp,
    pub last_id: &'a mut u64,
    pub counts: &'a mut ControllerCounts,
    pub effects: &'a mut Vec<ControllerEffect>,
}

impl Reconciliation {
    /// Of a job and its pods as the watches have shown them. A node counts as gone only when the API server says so: one watch may be
    /// behind another.
    pub fn new(shown: ShownJob, pods: Vec<PodView>, former: Option<Troubles>) -> Self {
        let ShownJob { job, unreadable } = shown;
        let gone = pods.iter().filter(|pod| pod.reachability == NodeReachability::Gone);
        let nodes: BTreeSet<&String> = gone.filter_map(|pod| pod.node.as_ref()).collect();
        let waiting = nodes.into_iter().cloned().map(JobRequest::ReadNode).collect();
        let end = End { troubles: former.clone(), ..End::default() };
        let leader = job.spec.leader_pod(job.metadata.name.as_deref().unwrap_or_default());
        let leader = pods.iter().find(|pod| pod.name == leader).map(|pod| pod.uid.clone());
        let (job, progress, sent) = (Arc::new(job), Progress::Reading(BTreeSet::new()), BTreeMap::new());
        Self { job, unreadable, pods, progress, waiting, sent, former, leader, is_outdated: false, end }
    }

    /// A watch has shown something of the job.
    pub fn see(&mut self, cache: &JobCache, key: &JobKey) {
        let version = |job: &TyJob| {
            let meta = &job.metadata;
            (meta.uid.clone(), meta.generation, meta.deletion_timestamp.is_some())
        };
        let is_lost = |uid: &String| {
            cache
                .pod(uid)
                .is_none_or(|pod| pod.deleting.is_some() || matches!(pod.phase, Phase::Failed | Phase::Succeeded))
        };
        let is_same = cache.job(key).is_some_and(|shown| version(&shown.job) == version(&self.job));
        self.is_outdated |= !is_same || self.leader.as_ref().is_some_and(is_lost);
    }

    pub fn is_asked(&self, id: EffectId) -> bool {
        self.sent.contains_key(&id)
    }

    /// Sends what may be sent now. `true` at the end: no request is under way and none follows.
    pub fn advance(&mut self, out: &mut Output<'_>) -> bool {
        loop {
            while self.sent.len() < AT_ONCE
                && let Some(request) = self.waiting.pop_front()
            {
                if self.is_outdated && matches!(request, JobRequest::Pod(PodEffect::Create { .. })) {
                    self.keep_trouble(request.subject());
                    continue;
                }
                *out.last_id += 1;
                let id = EffectId(*out.last_id);
                self.sent.insert(id, request.subject().cloned());
                out.effects.push(ControllerEffect::Request { id, job: self.job.clone(), request });
            }
            if !self.sent.is_empty() {
                return false;
            }
            self.progress = match std::mem::replace(&mut self.progress, Progress::Over) {
                Progress::Reading(read) => self.decide(read, out),
                Progress::Writing(effects) => Progress::Finalizing(self.follow(effects, out)),
                Progress::Rejected(warnings) => {
                    self.follow(warnings, out);
                    Progress::Over
                }
                Progress::Finalizing(pods) => {
                    self.waiting = pods;
                    self.end.troubles = Some(Troubles::new());
                    Progress::Making
                }
                Progress::Making | Progress::Over => return true,
            };
        }
    }

    /// The step. Its status is to be written where it says something new, once all the pods that it rests on are read.
    fn decide(&mut self, mut read: BTreeSet<String>, out: &mut Output<'_>) -> Progress {
        let view = JobView {
            job: &self.job,
            unreadable: self.unreadable.as_ref(),
            scheduler_name: out.scheduler_name,
            trouble: self.former.as_ref(),
        };
        let (status, effects) = step(&view, &self.pods, out.wall);
        let rests_on = rests_on(&self.job, &status, &self.pods);
        self.waiting.extend(rests_on.difference(&read).cloned().map(JobRequest::ReadPod));
        if !self.waiting.is_empty() {
            read.extend(rests_on);
            return Progress::Reading(read);
        }
        out.counts.steps += 1;
        if self.job.status.as_ref() != Some(&status) {
            self.waiting.push_back(JobRequest::WriteStatus(Box::new(status)));
        }
        Progress::Writing(effects)
    }

    /// What follows a status that is stored: events and the finalizer. Answers the requests for pods, which come after them.
    fn follow(&mut self, effects: Vec<JobEffect>, out: &mut Output<'_>) -> VecDeque<JobRequest> {
        let mut pods = VecDeque::new();
        for effect in effects {
            match effect {
                JobEffect::Event { warning, reason, message } => {
                    out.effects.push(ControllerEffect::Event { job: self.job.clone(), warning, reason, message });
                }
                JobEffect::Wake { at } => self.end.wake = Some(self.end.wake.map_or(at, |wake| wake.min(at))),
                JobEffect::AddFinalizer => self.waiting.push_back(JobRequest::AddFinalizer),
                // A late request may have made a pod: the finalizer goes only when no pod is left.
                JobEffect::RemoveFinalizer => self.waiting.push_back(JobRequest::ListPods),
                JobEffect::Pod(effect) => pods.push_back(JobRequest::Pod(effect)),
            }
        }
        pods
    }

    /// A request was answered. Returns what the answer shows.
    pub fn answer(
        &mut self,
        id: EffectId,
        report: ControllerReport,
        counts: &mut ControllerCounts,
    ) -> Vec<ControllerEvent> {
        let Some(name) = self.sent.remove(&id) else { return Vec::new() };
        let is_status = matches!(self.progress, Progress::Writing(_));
        match report {
            ControllerReport::NodeRead(true) => {
                for pod in self.pods.iter_mut().filter(|pod| pod.node == name) {
                    pod.reachability = NodeReachability::There;
                }
            }
            ControllerReport::PodRead(found) => {
                self.replace_pod(name.as_ref(), found.as_deref());
                return found.map(ControllerEvent::Pod).into_iter().collect();
            }
            ControllerReport::PodsListed(left) if left.is_empty() => {
                self.waiting.push_back(JobRequest::RemoveFinalizer);
            }
            ControllerReport::PodsListed(left) => {
                self.end.again = true;
                return left.into_iter().map(|pod| ControllerEvent::Pod(Box::new(pod))).collect();
            }
            ControllerReport::Written(shown) => {
                counts.status_writes += u64::from(is_status);
                let version = &shown.job.metadata.resource_version;
                Arc::make_mut(&mut self.job).metadata.resource_version.clone_from(version);
                // The watch shows it too. Whichever comes first, the step that follows finds nothing to do twice.
                return vec![ControllerEvent::Job(shown)];
            }
            ControllerReport::Gone if is_status => self.stop(),
            ControllerReport::PodGone(uid) => return vec![ControllerEvent::PodGone(uid)],
            ControllerReport::NodeRead(false) | ControllerReport::Gone | ControllerReport::Reserved => {}
            ControllerReport::Conflict => {
                self.end.again = true;
                if is_status {
                    counts.conflicts += 1;
                    self.stop();
                }
            }
            ControllerReport::Made(pod) => {
                counts.pods_made += 1;
                self.end.made = true;
                return vec![ControllerEvent::Pod(pod)];
            }
            ControllerReport::Held(pod) => return vec![ControllerEvent::Pod(pod)],
            ControllerReport::NotMade(why) => self.not_made(name, why),
            ControllerReport::Deleted => counts.pods_deleted += 1,
            ControllerReport::Failed(failure) => {
                (self.end.failed, self.end.again) = (true, true);
                self.fail(name, failure);
            }
        }
        Vec::new()
    }

    /// A pod of this name was read. What the watch knows of its node stands; another one of the name is gone.
    fn replace_pod(&mut self, name: Option<&String>, found: Option<&OwnedPod>) {
        let known = self.pods.iter().find(|known| found.is_some_and(|pod| pod.view.uid == known.uid));
        let reachability = known.map_or_else(NodeReachability::default, |known| known.reachability);
        self.pods.retain(|known| Some(&known.name) != name);
        self.pods.extend(found.map(|pod| PodView { reachability, ..pod.view.clone() }));
    }

    fn not_made(&mut self, name: Option<String>, why: CreateFailure) {
        if let (CreateFailure::Refused(_) | CreateFailure::Invalid(_), Some(name)) = (&why, &name) {
            // What refuses one pod of a set refuses the others: they are tried when it is tried again.
            let of_set = |pod: &String| set_of(pod) == set_of(name);
            self.waiting.retain(|request| !request.subject().is_some_and(of_set));
        }
        // Admission and validation come before the name: a refusal does not say that the name is free.
        let known = name.as_ref().and_then(|name| self.former.as_ref()?.get(name));
        let why = match (known, why) {
            (Some(taken @ CreateFailure::Foreign(_)), CreateFailure::Refused(_) | CreateFailure::Invalid(_)) => {
                taken.clone()
            }
            (_, why) => why,
        };
        self.end.troubles.get_or_insert_default().extend(name.map(|name| (name, why)));
    }

    /// Nothing follows a request that failed, but among requests for pods none depends on another.
    fn fail(&mut self, name: Option<String>, failure: RequestFailure) {
        match &mut self.progress {
            Progress::Making => self.keep_trouble(name.as_ref()),
            // A TYJob that is older than the schema may break a rule that every write of it is held to. Its status cannot say so then,
            // so an event does.
            Progress::Writing(effects) if failure == RequestFailure::Invalid => {
                effects.retain(|effect| matches!(effect, JobEffect::Event { warning: true, .. }));
                self.progress = Progress::Rejected(std::mem::take(effects));
            }
            Progress::Writing(_) if failure == RequestFailure::TooLarge => {
                self.progress = Progress::Rejected(vec![too_large()]);
            }
            _ => self.stop(),
        }
    }

    /// Not known to be free now: the name keeps its trouble.
    fn keep_trouble(&mut self, name: Option<&String>) {
        let known = name.and_then(|name| self.former.as_ref()?.get_key_value(name));
        let known = known.map(|(name, trouble)| (name.clone(), trouble.clone()));
        self.end.troubles.get_or_insert_default().extend(known);
    }

    fn stop(&mut self) {
        self.waiting.clear();
        self.progress = Progress::Over;
    }

    /// What it leaves.
    pub fn end(self) -> End {
        let Self { job, former, is_outdated, mut end, .. } = self;
        if former.is_none() && (end.failed || is_outdated) && end.troubles.as_ref().is_some_and(Troubles::is_empty) {
            // No trouble was known and not every pod was tried: the status keeps what it says.
            end.troubles = None;
        }
        let holds = |kind: &str| job.status.as_ref().is_some_and(|status| status.holds(kind));
        end.is_news = match (&former, &end.troubles) {
            (_, None) => false,
            (None, Some(now)) => !now.is_empty() || holds(condition::NAME_CONFLICT) || holds(condition::POD_REFUSED),
            // The text may differ each time (an id of the request, what a quota has used): it alone can wait for the next try.
            (Some(former), Some(now)) => kinds(former) != kinds(now),
        };
        end
    }
}

/// Its status cannot say it.
fn too_large() -> JobEffect {
    let message = "the status is larger than the API server stores, so nothing more is done for the job: ask for fewer workers, or make \
                   the job again with shorter names";
    JobEffect::Event { warning: true, reason: EventReason::StatusTooLarge, message: message.to_owned() }
}

/// The pods in trouble, each with the kind of its trouble; of those that are refused only the set: which of its pods are tried is chance.
fn kinds(troubles: &Troubles) -> BTreeSet<(&str, u8)> {
    let named = troubles.iter().map(|(pod, trouble)| match trouble {
        CreateFailure::Refused(_) => (set_of(pod), 0),
        CreateFailure::Foreign(_) => (pod.as_str(), 1),
        CreateFailure::Invalid(_) => (set_of(pod), 2),
    });
    named.collect()
}

/// The part of a worker's name that its set has in common.
fn set_of(pod: &str) -> &str {
    pod.rsplit_once('-').map_or(pod, |(set, _)| set)
}

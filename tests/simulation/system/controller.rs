//! A TYJob controller as a process: the term of a leader with its cache, reconciliations and their requests, as
//! `tyjob::event_loop` and `tyjob::reconcile` handle them, around the step that ships.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::mem::Discriminant;
use std::time::Duration;

use baton::cluster::controller_feed::{ControllerEvent, OwnedPod};
use baton::cluster::controller_writer::PodMade;
use baton::cluster::pod::LightPod;
use baton::contract::tyjob::{TyJob, TyJobStatus, condition, keys};
use baton::contract::{PodKey, PodUid};
use baton::decide::pod::Phase;
use baton::decide::tyjob::stages::{
    CreateFailure, JobEffect, JobView, NodeReachability, PodView, missing_leader, step,
};
use baton::decide::world::PodFacts;
use baton::tyjob::cache::{JobCache, JobKey};
use jiff::Timestamp;
use serde_json::Value;

use super::process::Process;
use super::store::{Change, JobWrite, job_key, raw};
use super::{Candidate, Fault, Happening, Mutant, OURS, Reader, System};
use crate::harness::wall;

/// Every job is reconciled this often.
const RESYNC: Duration = Duration::from_secs(60);
/// A request without an answer by then counts as lost.
const LIMIT: Duration = Duration::from_secs(10);
/// The first pause after a failure; it doubles some times.
const PAUSE: Duration = Duration::from_millis(200);
const DOUBLED: u32 = 6;

type Trouble = BTreeMap<String, CreateFailure>;

/// One controller.
pub struct ControllerProcess {
    pub process: Process,
    term: Option<Term>,
    terms: u64,
    turn: Option<Duration>,
}

/// What a leader keeps in memory.
struct Term {
    /// Which of the process's terms.
    number: u64,
    cache: JobCache,
    /// Of the watch of TYJobs and nodes, and of that of pods.
    cursors: [usize; 2],
    is_synced: bool,
    dirty: BTreeSet<JobKey>,
    due: BTreeMap<JobKey, Duration>,
    busy: BTreeMap<JobKey, Reconciliation>,
    failures: BTreeMap<JobKey, u32>,
    troubles: BTreeMap<JobKey, Trouble>,
    resync: Duration,
}

/// A job under way.
struct Reconciliation {
    job: TyJob,
    /// What follows once the status is written.
    effects: VecDeque<JobEffect>,
    /// Pods that could not be made before, and now.
    former: Option<Trouble>,
    trouble: Trouble,
    /// The status names pods that could not be made, and whether that still holds is not known.
    unsure: bool,
    /// Some request failed: what was not tried keeps its trouble.
    failed: bool,
    again: bool,
    wake: Option<Timestamp>,
}

/// One request of a reconciliation.
#[derive(Debug)]
pub struct JobRequest {
    at: usize,
    life: u64,
    term: u64,
    job: Box<TyJob>,
    what: What,
}

#[derive(Debug, Clone)]
enum What {
    Status(Box<TyJobStatus>),
    Effect(JobEffect),
}

/// Its answer; `Err` for one that failed or was lost.
#[derive(Debug)]
pub struct JobAnswer {
    request: JobRequest,
    reply: Result<Reply, ()>,
}

#[derive(Debug)]
enum Reply {
    Job(JobWrite, Option<Box<TyJob>>),
    Made(String, PodMade),
    /// Pods that keep the finalizer on its job.
    Left(Vec<OwnedPod>),
    Done,
}

impl ControllerProcess {
    pub fn new(at: usize) -> Self {
        Self { process: Process::new(Candidate::Controller(at)), term: None, terms: 0, turn: None }
    }
}

impl Term {
    fn new(number: u64, now: Duration) -> Self {
        Self {
            number,
            cache: JobCache::default(),
            cursors: [0; 2],
            is_synced: false,
            dirty: BTreeSet::new(),
            due: BTreeMap::new(),
            busy: BTreeMap::new(),
            failures: BTreeMap::new(),
            troubles: BTreeMap::new(),
            resync: now + RESYNC,
        }
    }
}

/// The controller's record of a pod. Its annotation of the reserved node stands among its labels here.
fn owned((pod, version): (&PodFacts, u64)) -> OwnedPod {
    let (of, claim) = (&pod.handoff, pod.spec.job.as_ref());
    let phase = of.phase;
    let view = PodView {
        name: of.pod.key.name.to_string(),
        uid: of.pod.uid.to_string(),
        attempt: claim.and_then(|claim| claim.attempt),
        phase,
        stopped: phase.is_terminal() && of.deleting.is_some(),
        disrupted: false,
        ready: phase == Phase::Running,
        ip: (phase == Phase::Running).then(|| "10.0.0.7".to_owned()),
        node: of.node.as_deref().map(str::to_owned),
        reachability: NodeReachability::There,
        allocation: pod.spec.labels.get(keys::ALLOCATION).cloned(),
        deleting: of.deleting.as_ref().map(|deletion| deletion.at),
        version: i64::try_from(version).unwrap_or(0),
        container_restarts: BTreeMap::new(),
        crash_loops: false,
        image: None,
        failure: (phase == Phase::Failed).then(|| "refused".to_owned()),
    };
    OwnedPod { job_uid: claim.map(|claim| claim.uid.to_string()), view }
}

fn kinds(trouble: &Trouble) -> Vec<(&str, Discriminant<CreateFailure>)> {
    trouble.iter().map(|(pod, trouble)| (pod.as_str(), std::mem::discriminant(trouble))).collect()
}

impl System {
    /// A fresh process; what an earlier one knew is gone.
    pub fn start_controller(&mut self, at: usize) {
        let who = Candidate::Controller(at);
        let process = self.controllers[at].process.next(who);
        let terms = self.controllers[at].terms;
        self.controllers[at] = ControllerProcess { process, terms, ..ControllerProcess::new(at) };
        self.begins(who);
    }

    fn leads(&self, at: usize) -> bool {
        self.controllers[at].process.lease.leads(self.now)
    }

    /// The watches of a leader, or the lists with which its term begins.
    pub fn news_for_controller(&mut self, at: usize, life: u64) {
        let who = Candidate::Controller(at);
        if self.is_held(who, life, || Happening::News(Reader::Candidate(who), life)) {
            return;
        }
        self.controllers[at].process.has_news = false;
        let expired = self.faults.lists_again(Reader::Candidate(who));
        let end = self.store.end();
        // The watch of pods may be behind that of TYJobs.
        let behind = if self.pace.below(4) == 0 { self.pace.below(60) as usize } else { 0 };
        let Some(term) = &mut self.controllers[at].term else { return };
        let pods_until = (end - behind.min(end)).max(term.cursors[1]).max(1);
        let mut changes = Vec::new();
        for (watch, until) in [end, pods_until].into_iter().enumerate() {
            let of_watch =
                |change: &Change| usize::from(matches!(change, Change::Pod(..) | Change::PodGone(_))) == watch;
            let shown = if term.is_synced && !expired {
                self.store.between(term.cursors[watch], until)
            } else {
                let mut shown = self.store.gone_since(term.cursors[watch]);
                shown.extend(self.store.list(until));
                shown
            };
            changes.extend(shown.into_iter().filter(of_watch));
            term.cursors[watch] = until;
        }
        term.is_synced = true;
        if behind > 0 {
            let pause = self.soon(5, 2000);
            self.controllers[at].process.has_news = true;
            self.after(pause, Happening::News(Reader::Candidate(who), life));
        }
        let Some(term) = &mut self.controllers[at].term else { return };
        let name = |key: &PodKey| (key.namespace.to_string(), key.name.to_string());
        for change in changes {
            let event = match change {
                Change::Job(job) => ControllerEvent::Job(Box::new(raw(&job.job))),
                Change::JobGone(job) => {
                    let (namespace, name) = name(&job.facts.job.key);
                    ControllerEvent::JobGone(namespace, name)
                }
                Change::Pod(pod, version) if pod.spec.job.is_some() => {
                    ControllerEvent::Pod(Box::new(owned((&pod, version))))
                }
                Change::PodGone(pod) if pod.spec.job.is_some() => {
                    ControllerEvent::PodGone(pod.handoff.pod.uid.to_string())
                }
                Change::Node(node) => ControllerEvent::Node(node.name.to_string(), NodeReachability::There),
                Change::NodeGone(node) => ControllerEvent::NodeGone(node.to_string()),
                _ => continue,
            };
            term.dirty.extend(term.cache.apply(event));
        }
        self.controller_turns(at);
    }

    /// One round of the event loop: leadership first, then what is due.
    pub fn controller_turns(&mut self, at: usize) {
        let leads = self.leads(at);
        let controller = &mut self.controllers[at];
        if leads != controller.term.is_some() {
            controller.terms += 1;
            controller.term = leads.then(|| Term::new(controller.terms, self.now));
            let life = controller.process.life;
            self.note(|| format!("controller {at} {}", if leads { "leads" } else { "leads no more" }));
            if leads {
                let listed = self.soon(20, 300);
                self.controllers[at].process.has_news = true;
                self.after(listed, Happening::News(Reader::Candidate(Candidate::Controller(at)), life));
            } else {
                self.history.sometimes("a leading controller steps down");
            }
        }
        let now = self.now;
        let Some(term) = self.controllers[at].term.as_mut().filter(|term| term.is_synced) else { return };
        if now >= term.resync {
            term.resync = now + RESYNC;
            term.dirty.extend(term.cache.jobs().map(|(key, _)| key.clone()));
        }
        let due: Vec<JobKey> = term.due.iter().filter(|(_, at)| **at <= now).map(|(key, _)| key.clone()).collect();
        for key in due {
            term.due.remove(&key);
            term.dirty.insert(key);
        }
        let ready: Vec<JobKey> = term.dirty.iter().filter(|key| !term.busy.contains_key(*key)).cloned().collect();
        for key in ready {
            self.reconcile(at, key);
        }
        let Some(term) = &self.controllers[at].term else { return };
        let next = term.due.values().copied().chain([term.resync]).min().unwrap_or(term.resync);
        let controller = &mut self.controllers[at];
        if controller.turn.is_none_or(|turn| turn <= now || next < turn) {
            controller.turn = Some(next);
            let life = controller.process.life;
            self.at(next.max(now), Happening::ControllerTurn { at, life });
        }
    }

    pub fn controller_turn(&mut self, at: usize, life: u64) {
        if !self.is_held(Candidate::Controller(at), life, || Happening::ControllerTurn { at, life }) {
            self.controllers[at].turn = None;
            self.controller_turns(at);
        }
    }

    /// One step of a job; its status is written, then its effects are performed.
    fn reconcile(&mut self, at: usize, key: JobKey) {
        let failed = self.faults.is_cut(Reader::Candidate(Candidate::Controller(at)), self.now)
            || self.strikes(Fault::ServerError);
        let skips = self.is(Mutant::LeaderGoneByWatch);
        let clock = wall(self.now) + self.controllers[at].process.skew;
        let Some(term) = &mut self.controllers[at].term else { return };
        term.dirty.remove(&key);
        let Some(cached) = term.cache.job(&key).cloned() else {
            term.failures.remove(&key);
            term.troubles.remove(&key);
            term.due.remove(&key);
            return;
        };
        if failed {
            return self.fails(at, &key);
        }
        let job = cached.job;
        let mut pods = term.cache.pods_of(&job);
        for pod in pods.iter_mut().filter(|pod| pod.reachability == NodeReachability::Gone) {
            if pod.node.as_deref().is_some_and(|node| self.store.has_node(node)) {
                pod.reachability = NodeReachability::There;
            }
        }
        let mut concerned = Vec::new();
        if let Some(leader) = missing_leader(&job, &pods).filter(|_| !skips) {
            let found = self.store.versioned(&PodKey::new(&key.0, &leader)).map(owned);
            pods.retain(|known| known.name != leader);
            if let Some(pod) = found.filter(|pod| pod.job_uid.is_some() && pod.job_uid == job.metadata.uid) {
                self.history.sometimes("the leader of a job is there, which its controller has not been shown");
                pods.push(pod.view.clone());
                concerned = term.cache.update_pod(pod);
            }
        }
        term.dirty.extend(concerned.into_iter().filter(|of| *of != key));
        let former = term.troubles.get(&key).cloned();
        let view = JobView {
            job: &job,
            unreadable: cached.unreadable.as_ref(),
            scheduler_name: OURS,
            trouble: former.as_ref(),
        };
        let (status, effects) = step(&view, &pods, clock);
        let holds = |kind: &str| job.status.as_ref().is_some_and(|status| status.holds(kind));
        let unsure = former.is_none() && (holds(condition::NAME_CONFLICT) || holds(condition::POD_REFUSED));
        let (of_pods, others): (Vec<_>, Vec<_>) = effects.into_iter().partition(is_of_pod);
        let is_new = job.status.as_ref() != Some(&status);
        let reconciliation = Reconciliation {
            job: job.clone(),
            effects: others.into_iter().chain(of_pods).collect(),
            former,
            trouble: Trouble::new(),
            unsure,
            failed: false,
            again: false,
            wake: None,
        };
        term.busy.insert(key.clone(), reconciliation);
        if is_new {
            self.send_for_job(at, &key, What::Status(Box::new(status)));
        } else {
            self.next_effect(at, &key);
        }
    }

    fn send_for_job(&mut self, at: usize, key: &JobKey, what: What) {
        let life = self.controllers[at].process.life;
        let Some(term) = &self.controllers[at].term else { return };
        let Some(under_way) = term.busy.get(key) else { return };
        let request = JobRequest { at, life, term: term.number, job: Box::new(under_way.job.clone()), what };
        let is_cut = self.faults.cannot_send(Reader::Candidate(Candidate::Controller(at)), self.now);
        if is_cut || self.strikes(Fault::LostRequest) {
            return self.answer_job(request, Err(()), LIMIT);
        }
        let mut pause = self.soon(1, 20);
        if self.strikes(Fault::LateRequest) {
            pause += self.soon(500, 9000);
        }
        self.after(pause, Happening::JobRequest(Box::new(request)));
    }

    fn answer_job(&mut self, request: JobRequest, reply: Result<Reply, ()>, pause: Duration) {
        self.after(pause, Happening::JobAnswer(Box::new(JobAnswer { request, reply })));
    }

    /// A request is at the API server. Its sender may have ended meanwhile.
    pub fn job_request(&mut self, request: JobRequest) {
        let mut pause = self.soon(1, 20);
        if self.strikes(Fault::ServerError) || self.strikes(Fault::TooManyRequests) {
            return self.answer_job(request, Err(()), pause);
        }
        let who = Candidate::Controller(request.at);
        let reply = self.execute_for_job(&request);
        if self.process(who).life == request.life && self.strikes(Fault::ControllerKilledUnanswered) {
            self.stop(who);
            self.starts_again(who);
        }
        if self.faults.cannot_hear(Reader::Candidate(who), self.now) || self.strikes(Fault::LostAnswer) {
            return self.answer_job(request, Err(()), LIMIT);
        }
        if self.strikes(Fault::LateAnswer) {
            pause += self.soon(500, 9000);
        }
        self.answer_job(request, Ok(reply), pause);
    }

    /// What the API server does.
    fn execute_for_job(&mut self, request: &JobRequest) -> Reply {
        let JobRequest { at, job, what, .. } = request;
        let (key, wall) = (job_key(job), wall(self.now));
        let written = |system: &Self, write: JobWrite| {
            Reply::Job(write, system.store.job(&key).filter(|_| write == JobWrite::Done).cloned().map(Box::new))
        };
        match what {
            What::Status(_) if self.strikes(Fault::Conflict) => Reply::Job(JobWrite::Conflict, None),
            What::Status(status) => {
                let blind = self.is(Mutant::StatusWithoutVersion);
                let before = self.store.job(&key).cloned();
                let write = self.store.write_job(job, blind, |job| {
                    let former = job.status.take().unwrap_or_default();
                    let mut status = (**status).clone();
                    // The scheduler's half has another owner.
                    (status.schedule_state, status.allocations) = (former.schedule_state, former.allocations);
                    status.conditions.retain(|found| found.type_ != condition::SCHEDULED);
                    let theirs = former.conditions.into_iter();
                    status.conditions.extend(theirs.filter(|f| f.type_ == condition::SCHEDULED));
                    job.status = Some(status);
                });
                self.note(|| {
                    format!("controller {at} writes {} {:?}, attempt {}: {write:?}", key, status.stage, status.attempt)
                });
                if write == JobWrite::Done {
                    self.judge_status(job, before.as_ref());
                    self.judge_stage(&key, before.and_then(|job| job.status).as_ref());
                }
                written(self, write)
            }
            What::Effect(JobEffect::AddFinalizer) => {
                let write = self
                    .store
                    .write_job(job, false, |job| job.metadata.finalizers = Some(vec![keys::FINALIZER.to_owned()]));
                written(self, write)
            }
            What::Effect(JobEffect::RemoveFinalizer) => {
                let left: Vec<OwnedPod> = self.pods_of_job(job).collect();
                if !left.is_empty() && !self.is(Mutant::FinalizerByWatch) {
                    self.history.sometimes("a late pod keeps the finalizer on its job");
                    return Reply::Left(left);
                }
                let write = self.store.write_job(job, false, |job| job.metadata.finalizers = None);
                self.note(|| format!("controller {at} lets {key} go: {write:?}"));
                if write == JobWrite::Done {
                    self.judge_job_gone(job);
                }
                written(self, write)
            }
            What::Effect(JobEffect::Create { name, body }) => {
                let made = self.make_for_job(job, name, body);
                self.note(|| format!("controller {at} makes {name}: {}", made_words(&made)));
                Reply::Made(name.clone(), made)
            }
            What::Effect(JobEffect::Delete { name, uid, force }) => {
                let key = PodKey::new(&key.namespace, name);
                let uid = PodUid::new(uid);
                let of = (!self.is(Mutant::JobDeletesWithoutUid)).then_some(&uid);
                self.note(|| format!("controller {at} deletes {name}"));
                self.judge_deletion(job, &key, &uid, of.is_some());
                if *force && let Some(pod) = self.store.pod(&key).filter(|pod| pod.handoff.pod.uid == uid) {
                    let pod = pod.handoff.pod.clone();
                    self.store.remove(&pod);
                } else {
                    self.store.delete(&key, of, wall);
                }
                Reply::Done
            }
            What::Effect(JobEffect::Reserve { name, uid, node }) => {
                let key = PodKey::new(&key.namespace, name);
                let found = self.store.pod(&key).filter(|pod| pod.handoff.pod.uid.as_str() == uid);
                if let Some(pod) = found.map(|pod| pod.handoff.pod.clone()) {
                    self.store.change(&pod, |facts| {
                        facts.spec.labels.insert(keys::ALLOCATION.to_owned(), node.clone());
                    });
                }
                Reply::Done
            }
            What::Effect(_) => Reply::Done,
        }
    }

    fn pods_of_job<'a>(&'a self, job: &'a TyJob) -> impl Iterator<Item = OwnedPod> + 'a {
        let uid = job.metadata.uid.as_deref();
        let ours = move |pod: &&PodFacts| pod.spec.job.as_ref().map(|claim| &*claim.uid) == uid;
        let found = self.store.pods().filter(ours);
        found.filter_map(|pod| self.store.versioned(&pod.handoff.pod.key)).map(owned)
    }

    fn make_for_job(&mut self, job: &TyJob, name: &str, body: &Value) -> PodMade {
        let key = PodKey::new(job.metadata.namespace.as_deref().unwrap_or_default(), name);
        if let Some(found) = self.store.versioned(&key).map(owned) {
            if found.job_uid.is_none() || found.job_uid != job.metadata.uid {
                return PodMade::Foreign("it is another's".to_owned());
            }
            let attempt = body["metadata"]["labels"][keys::ATTEMPT].as_str().and_then(|text| text.parse().ok());
            let is_same = found.view.attempt == attempt && found.view.deleting.is_none();
            return if is_same { PodMade::Ours(Box::new(found)) } else { PodMade::Former(Box::new(found)) };
        }
        if self.strikes(Fault::Forbidden) {
            return PodMade::Refused("403".to_owned());
        }
        let mut facts = serde_json::from_value::<LightPod>(body.clone()).unwrap().facts();
        facts.handoff.pod = self.jobs.next_pod(name);
        facts.handoff.created = wall(self.now);
        let node = body["metadata"]["annotations"][keys::ALLOCATION].as_str().unwrap_or_default();
        facts.spec.labels.insert(keys::ALLOCATION.to_owned(), node.to_owned());
        self.judge_made(job, &facts);
        self.store.put(facts);
        PodMade::Ours(Box::new(owned(self.store.versioned(&key).unwrap())))
    }

    /// An answer is back at the controller.
    pub fn job_answer(&mut self, answer: JobAnswer) {
        let JobAnswer { request, reply } = answer;
        let (at, key) =
            (request.at, (job_key(&request.job).namespace.to_string(), job_key(&request.job).name.to_string()));
        if !self.controllers[at].process.is_up || self.controllers[at].process.life != request.life {
            return;
        }
        if let Some(until) = self.faults.paused_until(Candidate::Controller(at), self.now) {
            return self.at(until, Happening::JobAnswer(Box::new(JobAnswer { request, reply })));
        }
        let leads = self.leads(at);
        let Some(term) = self.controllers[at].term.as_mut().filter(|term| term.number == request.term && leads) else {
            return self.controller_turns(at);
        };
        let Some(under_way) = term.busy.get_mut(&key) else { return };
        let of_pods = matches!(&request.what, What::Effect(effect) if is_of_pod(effect));
        match reply {
            Err(()) => {
                (under_way.again, under_way.failed) = (true, true);
                if !of_pods {
                    under_way.effects.clear();
                } else if let What::Effect(JobEffect::Create { name, .. }) = &request.what {
                    let known = under_way.former.as_ref().and_then(|former| former.get(name)).cloned();
                    under_way.trouble.extend(known.map(|trouble| (name.clone(), trouble)));
                }
            }
            Ok(Reply::Job(JobWrite::Done, job)) => {
                if let Some(job) = job {
                    under_way.job.metadata.resource_version.clone_from(&job.metadata.resource_version);
                    let concerned = term.cache.update_job(raw(&job));
                    term.dirty.extend(concerned);
                }
            }
            Ok(Reply::Job(write, _)) => {
                under_way.again |= write == JobWrite::Conflict;
                under_way.failed = true;
                under_way.effects.clear();
            }
            Ok(Reply::Left(pods)) => {
                under_way.again = true;
                let concerned: Vec<JobKey> = pods.into_iter().flat_map(|pod| term.cache.update_pod(pod)).collect();
                term.dirty.extend(concerned);
            }
            Ok(Reply::Made(name, made)) => match made {
                PodMade::Ours(pod) | PodMade::Former(pod) => {
                    let concerned = term.cache.update_pod(*pod);
                    term.dirty.extend(concerned);
                }
                PodMade::Foreign(whose) => drop(under_way.trouble.insert(name, CreateFailure::Foreign(whose))),
                PodMade::Invalid(why) => drop(under_way.trouble.insert(name, CreateFailure::Invalid(why))),
                PodMade::Refused(why) => drop(under_way.trouble.insert(name, CreateFailure::Refused(why))),
                PodMade::Again => under_way.again = true,
            },
            Ok(Reply::Done) => {}
        }
        self.next_effect(at, &key);
        self.controller_turns(at);
    }

    /// The next request of a reconciliation, or its end.
    fn next_effect(&mut self, at: usize, key: &JobKey) {
        let Some(term) = &mut self.controllers[at].term else { return };
        let Some(under_way) = term.busy.get_mut(key) else { return };
        while let Some(effect) = under_way.effects.pop_front() {
            match effect {
                JobEffect::Event { reason, .. } => self.history.sometimes(reason.word()),
                JobEffect::Wake { at } => under_way.wake = Some(under_way.wake.map_or(at, |wake| wake.min(at))),
                effect => return self.send_for_job(at, key, What::Effect(effect)),
            }
        }
        self.finish(at, key);
    }

    fn finish(&mut self, at: usize, key: &JobKey) {
        let clock = wall(self.now) + self.controllers[at].process.skew;
        let now = self.now;
        let Some(term) = &mut self.controllers[at].term else { return };
        let Some(done) = term.busy.remove(key) else { return };
        if term.busy.is_empty() {
            term.cache.drop_tombstones();
        }
        // Where no trouble was known and not every pod was tried, the status keeps what it says.
        let unknown = done.failed && done.trouble.is_empty();
        let trouble = if unknown { done.former.clone() } else { Some(done.trouble) };
        let is_news = match (term.troubles.get(key), &trouble) {
            (_, None) => false,
            (None, Some(trouble)) => done.unsure || !trouble.is_empty(),
            (Some(former), Some(trouble)) => kinds(former) != kinds(trouble),
        };
        let pauses = done.again || trouble.as_ref().is_some_and(|trouble| !trouble.is_empty());
        term.troubles.extend(trouble.map(|trouble| (key.clone(), trouble)));
        if is_news {
            term.dirty.insert(key.clone());
            return;
        }
        let wake = done.wake.map(|at| {
            now + Duration::try_from(at.duration_since(clock)).unwrap_or_default() + Duration::from_millis(10)
        });
        if pauses {
            self.fails(at, key);
        } else {
            term.failures.remove(key);
            term.due.remove(key);
        }
        let Some(term) = &mut self.controllers[at].term else { return };
        if let Some(wake) = wake {
            let due = term.due.entry(key.clone()).or_insert(wake);
            *due = wake.min(*due);
        }
    }

    fn fails(&mut self, at: usize, key: &JobKey) {
        let jitter = self.soon(0, 100);
        let now = self.now;
        let Some(term) = &mut self.controllers[at].term else { return };
        let failures = term.failures.entry(key.clone()).or_default();
        let pause = PAUSE * 2u32.pow((*failures).min(DOUBLED));
        *failures += 1;
        term.due.insert(key.clone(), now + pause + jitter);
    }
}

fn is_of_pod(effect: &JobEffect) -> bool {
    matches!(effect, JobEffect::Create { .. } | JobEffect::Delete { .. } | JobEffect::Reserve { .. })
}

fn made_words(made: &PodMade) -> &'static str {
    match made {
        PodMade::Ours(_) => "made",
        PodMade::Former(_) => "the former one is not gone",
        PodMade::Foreign(_) => "the name is another's",
        PodMade::Invalid(_) => "invalid",
        PodMade::Refused(_) => "refused",
        PodMade::Again => "again",
    }
}

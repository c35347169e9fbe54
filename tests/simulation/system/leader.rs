//! A scheduler as a process: the watches, the requests and their answers, as `scheduler::daemon` and `scheduler::executor` handle
//! them, around the decisions that ship.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use baton::contract::{PodUid, key};
use baton::decide::core::JobWriteResult;
use baton::decide::core::queue::Item;
use baton::decide::core::rules::plugins::{DefaultSet, default_plugins};
use baton::decide::scheduler::{BindResult, Config, Effect, EffectResult, Effects, LockResult, Moment, Scheduler};
use baton::decide::world::gangs::Declared;
use baton::decide::world::{PodId, WorldEvent};
use jiff::SignedDuration;
use serde_json::Value;

use super::process::Process;
use super::store::{Change, KINDS, Swap, Watches};
use super::{Candidate, Fault, Happening, Mutant, OURS, Reader, System};
use crate::harness::wall;

/// Later than any time of a run.
const LATEST: Duration = Duration::from_secs(1 << 20);

/// A request without an answer by then counts as lost.
const LIMIT: Duration = Duration::from_secs(10);
/// Between two tries of a lock's write, as `cluster::node_lock` has it, and how many there are.
pub const AGAIN: Duration = Duration::from_millis(100);
pub const TRIES: u32 = 5;
/// The checks of the whole scheduler take as long as many decisions: once in so many turns.
const AUDIT_EVERY: u64 = 8;

/// One scheduler.
pub struct SchedulerProcess {
    pub process: Process,
    scheduler: Scheduler,
    is_synced: bool,
    pub leads_since: Option<Duration>,
    /// What it was shown to be cordoned: nodes by name, and devices of nodes.
    cordoned: BTreeMap<Box<str>, Cordoned>,
    watches: Watches,
    in_flight: BTreeMap<u64, Effect>,
    /// When the last write to a pod has arrived: the next comes after it.
    ordered: BTreeMap<PodUid, Duration>,
    turn: Option<Duration>,
    turns: u64,
}

/// What of a node takes no new pod.
#[derive(Debug, Default)]
pub struct Cordoned {
    pub node: bool,
    pub devices: Vec<String>,
}

/// On its way to the API server.
#[derive(Debug)]
pub struct Request {
    at: usize,
    life: u64,
    id: u64,
    effect: Effect,
    tries: u32,
}

fn fresh() -> Scheduler {
    Scheduler::new(Config::default(), default_plugins(&DefaultSet::default()).unwrap())
}

impl SchedulerProcess {
    pub fn new(at: usize) -> Self {
        Self {
            process: Process::new(Candidate::Scheduler(at)),
            scheduler: fresh(),
            is_synced: false,
            leads_since: None,
            cordoned: BTreeMap::new(),
            watches: Watches::default(),
            in_flight: BTreeMap::new(),
            ordered: BTreeMap::new(),
            turn: None,
            turns: 0,
        }
    }

    pub fn scheduler(&self) -> &Scheduler {
        &self.scheduler
    }

    /// What of a node it was shown to be cordoned.
    pub fn cordoned(&self, node: &str) -> Option<&Cordoned> {
        self.cordoned.get(node)
    }

    fn see_cordons(&mut self, change: &Change) {
        match change {
            Change::Node(node) => self.cordoned.entry(node.name.clone()).or_default().node = node.unschedulable,
            Change::Devices(device) => {
                let node = device.metadata.name.as_deref().unwrap_or_default();
                let text = device.metadata.annotations.iter().flatten().find(|(name, _)| *name == key::CORDONED);
                let named = text.and_then(|(_, text)| serde_json::from_str::<BTreeMap<String, Value>>(text).ok());
                self.cordoned.entry(node.into()).or_default().devices =
                    named.into_iter().flatten().map(|(id, _)| id).collect();
            }
            Change::NodeGone(node) => drop(self.cordoned.remove(node)),
            _ => {}
        }
        self.cordoned.retain(|_, of| of.node || !of.devices.is_empty());
    }

    /// Pods for which a node is kept: its room is theirs first.
    fn owners(&self) -> BTreeSet<PodId> {
        let pod = |item: &Item| match item {
            Item::Pod(id) => Some(*id),
            _ => None,
        };
        self.scheduler.earmarks().all().iter().filter_map(|earmark| pod(earmark.item())).collect()
    }

    /// Pods whose bind attempts are under way.
    fn attempted(&self) -> BTreeSet<PodId> {
        self.scheduler.binder().attempts().keys().copied().collect()
    }
}

impl System {
    /// A fresh process; what an earlier one knew is gone.
    pub fn start_scheduler(&mut self, at: usize) {
        let who = Candidate::Scheduler(at);
        let process = self.schedulers[at].process.next(who);
        self.schedulers[at] = SchedulerProcess { process, ..SchedulerProcess::new(at) };
        self.begins(who);
    }

    pub fn moment(&self, at: usize) -> Moment {
        // Two clocks never agree to the microsecond, so that two leaders do not write the same lock.
        let apart = SignedDuration::from_micros(7 * at as i64);
        Moment { mono: self.now, wall: wall(self.now) + self.schedulers[at].process.skew + apart }
    }

    /// The watches, or the lists with which they begin.
    pub fn news_for_scheduler(&mut self, at: usize, life: u64) {
        if self.is_held(Candidate::Scheduler(at), life, || {
            Happening::News(Reader::Candidate(Candidate::Scheduler(at)), life)
        }) {
            return;
        }
        self.schedulers[at].process.has_news = false;
        let who = Candidate::Scheduler(at);
        let expired = self.schedulers[at].is_synced && self.faults.lists_again(Reader::Candidate(who));
        if expired {
            self.note(|| format!("scheduler {at} lists again"));
        }
        let forgets = expired && self.is(Mutant::GoneIsForgotten);
        let behind = self.one_is_behind(&std::array::from_fn::<_, KINDS, _>(|kind| kind));
        let is = &mut self.schedulers[at];
        let lists = (expired || !std::mem::replace(&mut is.is_synced, true)).then_some(self.now);
        let changes = is.watches.follow(&self.store, lists, behind);
        for change in changes.iter().filter(|change| !forgets || !change.is_gone()) {
            self.show_change(at, change);
        }
        if behind.is_some() {
            self.comes_later(Reader::Candidate(who), life);
        }
        self.turn_now(at);
    }

    fn show_change(&mut self, at: usize, change: &Change) {
        self.schedulers[at].see_cordons(change);
        let reverse = self.is(Mutant::AgesReversed);
        let event = match change {
            Change::Pod(pod, _) => {
                let mut pod = (**pod).clone();
                if reverse {
                    pod.handoff.created = wall(LATEST) - pod.handoff.created.duration_since(wall(Duration::ZERO));
                }
                WorldEvent::Pod(Box::new(pod))
            }
            Change::PodGone(pod) => WorldEvent::PodGone(pod.handoff.pod.key.clone(), pod.handoff.pod.uid.clone()),
            Change::Node(node) => WorldEvent::Node((**node).clone()),
            Change::NodeGone(node) => WorldEvent::NodeGone(node.clone()),
            Change::Devices(device) => WorldEvent::Devices(Box::new((**device).clone())),
            Change::DevicesGone(node) => WorldEvent::DevicesGone(node.clone()),
            Change::Agent(node, status, renewed, version) => WorldEvent::Agent {
                node: node.clone(),
                status: Some((**status).clone()),
                version: version.to_string().into(),
                renewed: Some(*renewed),
            },
            Change::AgentGone(node) => WorldEvent::AgentGone(node.clone()),
            Change::Group(group) => WorldEvent::PodGroup(Box::new((**group).clone())),
            Change::GroupGone(group) => WorldEvent::PodGroupGone(group.api, group.gang.clone()),
            Change::Job(job) => WorldEvent::Job(Box::new(job.facts.clone())),
            Change::JobGone(job) => WorldEvent::JobGone(job.facts.job.clone()),
        };
        // A node whose lock has gone: what wakes the pods that wait for it.
        if self.is(Mutant::UnlockIsNoNews) && matches!(&event, WorldEvent::Node(node) if node.lock.is_none()) {
            return;
        }
        if self.is(Mutant::JobGoneIsNoNews) && matches!(&event, WorldEvent::JobGone(_)) {
            return;
        }
        self.show(at, event);
    }

    fn show(&mut self, at: usize, event: WorldEvent) {
        let moment = self.moment(at);
        let effects = self.schedulers[at].scheduler.event(event, moment);
        self.perform(at, effects);
    }

    pub fn turn_now(&mut self, at: usize) {
        let life = self.schedulers[at].process.life;
        self.schedulers[at].turn = Some(self.now);
        self.turn(at, life);
    }

    /// One round of the event loop: leadership first, then what is due.
    pub fn turn(&mut self, at: usize, life: u64) {
        if self.schedulers[at].turn != Some(self.now) && self.schedulers[at].process.life == life {
            return; // it has come earlier
        }
        if self.is_held(Candidate::Scheduler(at), life, || Happening::Turn { at, life }) {
            if let Some(until) = self.faults.paused_until(Candidate::Scheduler(at), self.now) {
                self.schedulers[at].turn = Some(until);
            }
            return;
        }
        let moment = self.moment(at);
        let never_ends = self.is(Mutant::LeadsForEver);
        let is = &mut self.schedulers[at];
        let held = is.process.lease.leads(self.now) || never_ends && is.scheduler.is_leading();
        let leads = is.is_synced && held;
        if leads != is.scheduler.is_leading() {
            is.leads_since = leads.then_some(self.now);
            let effects = is.scheduler.lead(leads, moment);
            self.note(|| format!("scheduler {at} {}", if leads { "leads" } else { "leads no more" }));
            self.history.sometimes(if leads { "a scheduler begins to lead" } else { "a leader steps down" });
            self.perform(at, effects);
        }
        let is = &mut self.schedulers[at];
        let before = is.attempted();
        let owners = is.owners();
        let effects = is.scheduler.run(moment);
        is.turns += 1;
        let (turns, next) = (is.turns, is.scheduler.next());
        self.perform(at, effects);
        self.watch_commits(at);
        self.judge_cordons(at, &before);
        self.judge_order(at, &(&before | &owners));
        if turns.is_multiple_of(AUDIT_EVERY) {
            self.audit(at);
        }
        let longest = self.now + Duration::from_secs(1);
        let due = next.map_or(longest, |due| due.clamp(self.now + Duration::from_millis(1), longest));
        self.schedulers[at].turn = Some(due);
        self.at(due, Happening::Turn { at, life });
    }

    /// Starts what the scheduler asks for, unless it may not write any more.
    fn perform(&mut self, at: usize, effects: Effects) {
        let may_write = self.schedulers[at].process.lease.leads(self.now) || self.is(Mutant::StaleLeaderWrites);
        for effect in effects {
            match &effect {
                Effect::Notice { .. } | Effect::NodeNotice { .. } | Effect::JobNotice { .. } => continue,
                Effect::RateMix(sample) => {
                    let tables = EffectResult::Tables(Box::new(sample.tables()));
                    self.answer_soon(at, effect, Some(tables));
                    continue;
                }
                _ => {}
            }
            if !may_write && !matches!(effect, Effect::ReadPod { .. }) {
                let report = failure(&effect, "this scheduler does not lead any more", None);
                self.history.sometimes("a scheduler that leads no more is kept from writing");
                self.answer_soon(at, effect, report);
                continue;
            }
            if let Effect::Bind { pod, node, .. } = &effect {
                self.watch_place(at, pod, node);
            }
            let pod = match &effect {
                Effect::Condition { pod, .. } | Effect::Nominate { pod, .. } => Some(pod.uid.clone()),
                Effect::Bind { pod, .. } => Some(pod.uid.clone()),
                _ => None,
            };
            let not_before = pod.as_ref().and_then(|uid| self.schedulers[at].ordered.get(uid)).copied();
            let arrived = self.send(at, effect, not_before.unwrap_or(self.now));
            if let Some(uid) = pod {
                self.schedulers[at].ordered.insert(uid, arrived);
            }
        }
    }

    fn answer_soon(&mut self, at: usize, effect: Effect, report: Option<EffectResult>) {
        let (id, life) = (self.serial, self.schedulers[at].process.life);
        self.serial += 1;
        self.schedulers[at].in_flight.insert(id, effect);
        self.after(Duration::from_millis(1), Happening::Answered { at, life, id, report: Box::new(report) });
    }

    /// Sends a request; answers when it will arrive.
    fn send(&mut self, at: usize, effect: Effect, not_before: Duration) -> Duration {
        if !self.schedulers[at].process.lease.leads(self.now) && !matches!(effect, Effect::ReadPod { .. }) {
            self.violates("only a leader writes", format!("scheduler {at}: {effect:?}"));
        }
        let (id, life) = (self.serial, self.schedulers[at].process.life);
        self.serial += 1;
        self.schedulers[at].in_flight.insert(id, effect.clone());
        self.after(LIMIT, Happening::Limit { at, life, id });
        if let Effect::Bind { ticket, .. } = &effect
            && self.is(Mutant::BindCountsWhenSent)
        {
            let report = Some(EffectResult::Bind { ticket: *ticket, result: BindResult::Done });
            self.after(Duration::ZERO, Happening::Answered { at, life, id, report: Box::new(report) });
        }
        let mut arrives = not_before.max(self.now) + self.soon(1, 20);
        let is_cut = self.faults.cannot_send(Reader::Candidate(Candidate::Scheduler(at)), self.now);
        if is_cut || self.strikes(Fault::LostRequest) {
            return arrives; // it never does
        }
        if self.strikes(Fault::LateRequest) {
            arrives += self.soon(500, 12_000);
        }
        self.at(arrives, Happening::Arrives(Box::new(Request { at, life, id, effect, tries: 0 })));
        arrives
    }

    /// A request is at the API server. Its sender may have ended meanwhile.
    pub fn arrives(&mut self, request: Request) {
        let Request { at, life, id, effect, tries } = request;
        let again = |effect| Happening::Arrives(Box::new(Request { at, life, id, effect, tries: tries + 1 }));
        let is_swap = matches!(effect, Effect::Lock { .. } | Effect::Release { .. });
        if is_swap && self.strikes(Fault::ServerError) {
            if tries + 1 < TRIES {
                return self.after(AGAIN, again(effect));
            }
            return self.answer(at, life, id, failure(&effect, "500", None));
        }
        let refused = if self.strikes(Fault::TooManyRequests) {
            Some(failure(&effect, "429", Some(Duration::from_secs(1))))
        } else if !is_swap && self.strikes(Fault::ServerError) {
            Some(failure(&effect, "500", None))
        } else {
            self.refusal(&effect).map(Some)
        };
        if let Some(report) = refused {
            return self.answer(at, life, id, report);
        }
        let report = self.execute(at, &effect);
        let who = Candidate::Scheduler(at);
        if self.process(who).life == life && self.strikes(Fault::SchedulerKilledUnanswered) {
            self.stop(who);
            self.starts_again(who);
        }
        if self.strikes(Fault::LostAnswer) {
            // The connection is reset: a lock is read and tried again, a Binding is not.
            if is_swap {
                return self.after(AGAIN, again(effect));
            }
            let refused = self.is(Mutant::LostAnswerIsRefusal).then(|| match &effect {
                Effect::Bind { ticket, .. } => {
                    Some(EffectResult::Bind { ticket: *ticket, result: BindResult::Refused("lost".into()) })
                }
                _ => None,
            });
            let report = refused.flatten().or_else(|| failure(&effect, "connection reset", None));
            return self.answer(at, life, id, report);
        }
        self.answer(at, life, id, report);
    }

    /// What the API server says instead of doing it.
    fn refusal(&mut self, effect: &Effect) -> Option<EffectResult> {
        Some(match effect {
            Effect::Bind { ticket, .. } if self.strikes(Fault::Forbidden) => {
                EffectResult::Bind { ticket: *ticket, result: BindResult::Refused("403".into()) }
            }
            Effect::Bind { ticket, .. } if self.strikes(Fault::Conflict) => {
                EffectResult::Bind { ticket: *ticket, result: BindResult::Conflict("409".into()) }
            }
            Effect::WriteJob { job, .. } if self.strikes(Fault::Conflict) => {
                EffectResult::JobWritten { job: job.clone(), result: JobWriteResult::Stale }
            }
            Effect::Lock { ticket, node, .. } if self.strikes(Fault::Unprocessable) => {
                EffectResult::Lock { ticket: *ticket, result: LockResult::Contended(self.store.lock(node)) }
            }
            _ => return None,
        })
    }

    fn answer(&mut self, at: usize, life: u64, id: u64, report: Option<EffectResult>) {
        let mut pause = self.soon(1, 20);
        if self.faults.cannot_hear(Reader::Candidate(Candidate::Scheduler(at)), self.now) {
            return;
        }
        if self.strikes(Fault::LateAnswer) {
            pause += self.soon(500, 12_000);
        }
        self.after(pause, Happening::Answered { at, life, id, report: Box::new(report) });
    }

    pub fn answered(&mut self, at: usize, life: u64, id: u64, report: Option<EffectResult>) {
        let again = || Happening::Answered { at, life, id, report: Box::new(report.clone()) };
        if self.is_held(Candidate::Scheduler(at), life, again) {
            return;
        }
        if self.schedulers[at].in_flight.remove(&id).is_some()
            && let Some(report) = report
        {
            self.report(at, report);
        }
        self.turn_now(at);
    }

    pub fn limit(&mut self, at: usize, life: u64, id: u64) {
        if self.is_held(Candidate::Scheduler(at), life, || Happening::Limit { at, life, id })
            || self.is(Mutant::WaitsForEver)
        {
            return;
        }
        let Some(effect) = self.schedulers[at].in_flight.remove(&id) else { return };
        self.history.sometimes("a request has no answer in time");
        if let Some(report) = failure(&effect, "no answer within 10 s", None) {
            self.report(at, report);
            self.turn_now(at);
        }
    }

    fn report(&mut self, at: usize, report: EffectResult) {
        let moment = self.moment(at);
        let effects = self.schedulers[at].scheduler.report(report, moment);
        self.perform(at, effects);
    }

    /// What the API server does.
    fn execute(&mut self, at: usize, effect: &Effect) -> Option<EffectResult> {
        let wall = wall(self.now);
        Some(match effect {
            Effect::Lock { ticket, node, old, new } => {
                let swap = Swap { node: node.clone(), old: old.clone(), new: Some(new.clone()) };
                let result = self.swap(&swap, self.is(Mutant::LockWithoutTest), Some(at), || format!("scheduler {at}"));
                EffectResult::Lock { ticket: *ticket, result }
            }
            Effect::Release { node, old, .. } => {
                let swap = Swap { node: node.clone(), old: Some(old.clone()), new: None };
                let blind = self.is(Mutant::ReleaseWithoutOwner);
                let result = self.swap(&swap, blind, Some(at), || format!("scheduler {at}"));
                EffectResult::Release { node: node.clone(), old: old.clone(), result }
            }
            Effect::Bind { ticket, pod, node, annotations } => {
                let uid = !self.is(Mutant::BindWithoutUid);
                let result = self.store.bind(pod, uid, node, annotations);
                let commit = annotations.get(key::GANG_COMMITTED).filter(|text| !text.is_empty());
                let commit = commit.map(|text| format!(" in commit {text}")).unwrap_or_default();
                self.note(|| format!("scheduler {at} binds {} to {node}{commit}: {result:?}", pod.key));
                if result == BindResult::Done {
                    self.judge_bound(at, &pod.key);
                }
                if self.is(Mutant::UnlocksAfterBinding) {
                    self.unlocks_early(node, "a scheduler");
                }
                EffectResult::Bind { ticket: *ticket, result }
            }
            Effect::ReadPod { pod } => {
                let result = Ok(self.store.pod(pod).cloned().map(Box::new));
                EffectResult::PodRead { pod: pod.clone(), result }
            }
            Effect::Evict { pod, .. } => {
                self.note(|| format!("scheduler {at} evicts {}", pod.key));
                self.history.sometimes("a pod is preempted");
                self.delete(pod, wall);
                return None;
            }
            Effect::MarkTimedOut { pod, .. } => {
                self.history.sometimes("the waiting time of a gang is over");
                self.store.change(pod, |facts| {
                    if let Some(declared) = &facts.spec.gang {
                        facts.spec.gang = Some(Arc::new(Declared { timed_out: true, ..(**declared).clone() }));
                    }
                });
                return None;
            }
            Effect::Served { pod, served, .. } => {
                self.store.change(pod, |facts| facts.spec.unserved = !served);
                return None;
            }
            Effect::Nominate { pod, node } => {
                self.store.change(pod, |facts| facts.spec.nominated.clone_from(node));
                return None;
            }
            Effect::PodGroupStatus(write) => {
                let result = self.store.write_group(write).then(|| Box::new(write.status.clone()));
                EffectResult::PodGroup { gang: write.gang.clone(), result }
            }
            Effect::WriteJob { job, version, status } => {
                let result = self.store.write_places(job, *version, status);
                self.note(|| {
                    format!(
                        "scheduler {at} says {:?} of {} with {} places: {result:?}",
                        status.state,
                        job.key,
                        status.allocations.len()
                    )
                });
                EffectResult::JobWritten { job: job.clone(), result }
            }
            _ => return None,
        })
    }

    fn delete(&mut self, pod: &baton::contract::PodRef, wall: jiff::Timestamp) {
        let uid = (!self.is(Mutant::DeleteWithoutUid)).then_some(&pod.uid);
        let found = self.store.pod(&pod.key).map(|found| &found.handoff.pod.uid);
        if let Some(other) = found.filter(|found| uid.is_none() && **found != pod.uid) {
            let what = format!("{} with uid {other} is deleted for {}", pod.key, pod.uid);
            return self.violates("a scheduler deletes only the pod that it means", what);
        }
        self.jobs.evicted.insert(pod.uid.clone());
        self.store.delete(&pod.key, uid, wall);
    }

    /// A lock's compare-and-swap, by a scheduler or a node daemon.
    pub fn swap(&mut self, swap: &Swap, blind: bool, scheduler: Option<usize>, who: impl Fn() -> String) -> LockResult {
        let before = self.store.lock(&swap.node);
        let result = self.store.swap(swap, blind);
        self.note(|| {
            let new = swap.new.as_deref().map_or("unlocks".to_owned(), |new| format!("locks for {new}"));
            format!("{} {} {new}: {result:?}", who(), swap.node)
        });
        if result == LockResult::Done {
            self.judge_swap(swap, &before, scheduler);
        }
        result
    }
}

/// The report of an effect that was not performed, or perhaps.
fn failure(effect: &Effect, why: &str, pause: Option<Duration>) -> Option<EffectResult> {
    let lost = || LockResult::Failed(why.to_owned(), pause);
    Some(match effect {
        Effect::Lock { ticket, .. } => EffectResult::Lock { ticket: *ticket, result: lost() },
        Effect::Release { node, old, .. } => {
            EffectResult::Release { node: node.clone(), old: old.clone(), result: lost() }
        }
        Effect::Bind { ticket, .. } => {
            EffectResult::Bind { ticket: *ticket, result: BindResult::Unknown(why.to_owned(), pause) }
        }
        Effect::ReadPod { pod } => EffectResult::PodRead { pod: pod.clone(), result: Err(why.to_owned()) },
        Effect::PodGroupStatus(write) => EffectResult::PodGroup { gang: write.gang.clone(), result: None },
        Effect::WriteJob { job, .. } => {
            EffectResult::JobWritten { job: job.clone(), result: JobWriteResult::Failed(why.to_owned()) }
        }
        Effect::Condition { pod, .. } => EffectResult::ConditionLost { pod: pod.uid.clone() },
        Effect::Nominate { pod, .. } => EffectResult::NominationLost { pod: pod.uid.clone() },
        _ => return None,
    })
}

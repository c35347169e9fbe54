//! A scheduler as a process: the Lease, the watches, the requests and their answers, as `scheduler::daemon` and `scheduler::executor`
//! handle them, around the decisions that ship.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use baton::cluster::lease::{LeaseConfig, LeaseJudge, LeaseMove};
use baton::contract::{PodKey, PodUid};
use baton::decide::audit::{Violation as AccountError, check_scheduler};
use baton::decide::scheduler::rules::plugins::{DefaultSet, default_plugins};
use baton::decide::scheduler::{BindResult, Config, Effect, EffectResult, Effects, LockResult, Moment, Scheduler};
use baton::decide::world::gangs::Declared;
use baton::decide::world::{LeaseHome, WorldEvent};
use jiff::SignedDuration;
use k8s_openapi::api::coordination::v1::Lease;

use super::store::{Change, Swap};
use super::{Fault, Happening, Mutant, OURS, Reader, System};
use crate::harness::wall;

/// A request without an answer by then counts as lost.
const LIMIT: Duration = Duration::from_secs(10);
/// Between two tries of a lock's write, as `cluster::node_lock` has it, and how many there are.
pub const AGAIN: Duration = Duration::from_millis(100);
pub const TRIES: u32 = 5;
/// Between two tries to lead.
const RETRY: Duration = Duration::from_secs(2);
/// The checks of the whole scheduler take as long as many decisions: once in so many turns.
const AUDIT_EVERY: u64 = 8;

/// One scheduler.
pub struct SchedulerProcess {
    /// Counts its starts; what belongs to an earlier one comes to nobody.
    pub life: u64,
    pub is_told: bool,
    pub is_up: bool,
    /// Its clock is ahead of the others by so much.
    pub skew: SignedDuration,
    scheduler: Scheduler,
    lease: LeaseJudge,
    is_synced: bool,
    cursor: usize,
    known: BTreeMap<PodKey, PodUid>,
    in_flight: BTreeMap<u64, Effect>,
    /// When the last write to a pod has arrived: the next comes after it.
    ordered: BTreeMap<PodUid, Duration>,
    turn: Option<Duration>,
    turns: u64,
}

/// On its way to the API server.
#[derive(Debug)]
pub struct Request {
    at: usize,
    life: u64,
    id: u64,
    what: What,
    tries: u32,
}

#[derive(Debug, Clone)]
enum What {
    Effect(Effect),
    Lease { lease: Box<Lease>, version: Option<String>, sent: Duration },
}

/// On its way back.
#[derive(Debug)]
pub enum Answer {
    Effect(Option<EffectResult>),
    /// The version that was stored; `None` after a conflict.
    Lease {
        won: Option<String>,
        sent: Duration,
    },
}

fn fresh() -> Scheduler {
    Scheduler::new(Config::default(), default_plugins(&DefaultSet::default()).unwrap())
}

impl SchedulerProcess {
    pub fn new(at: usize) -> Self {
        Self {
            life: 0,
            is_told: false,
            is_up: false,
            skew: SignedDuration::ZERO,
            scheduler: fresh(),
            lease: Self::candidate(at, 0),
            is_synced: false,
            cursor: 0,
            known: BTreeMap::new(),
            in_flight: BTreeMap::new(),
            ordered: BTreeMap::new(),
            turn: None,
            turns: 0,
        }
    }

    fn candidate(at: usize, life: u64) -> LeaseJudge {
        LeaseJudge::new(LeaseConfig::new("baton", "scheduler", &format!("scheduler-{at}-{life}")))
    }

    pub fn scheduler(&self) -> &Scheduler {
        &self.scheduler
    }
}

impl System {
    /// A fresh process; what an earlier one knew is gone.
    pub fn start_scheduler(&mut self, at: usize) {
        let is = &mut self.schedulers[at];
        let life = is.life + 1;
        let skew = is.skew;
        *is = SchedulerProcess { life, skew, is_up: true, is_told: true, ..SchedulerProcess::new(at) };
        is.lease = SchedulerProcess::candidate(at, life);
        let (listed, campaign) = (self.soon(50, 500), self.soon(10, 1500));
        self.note(|| format!("scheduler {at} starts"));
        self.after(listed, Happening::News(Reader::Scheduler(at), life));
        self.after(campaign, Happening::Campaign { at, life });
    }

    pub fn stop_scheduler(&mut self, at: usize) {
        let is = &mut self.schedulers[at];
        (is.is_up, is.life) = (false, is.life + 1);
        self.note(|| format!("scheduler {at} is killed"));
    }

    fn moment(&self, at: usize) -> Moment {
        Moment { mono: self.now, wall: wall(self.now) + self.schedulers[at].skew }
    }

    /// A process that does not run at this moment goes on later.
    fn is_held(&mut self, at: usize, life: u64, happening: impl FnOnce() -> Happening) -> bool {
        let is = &self.schedulers[at];
        if !is.is_up || is.life != life {
            return true;
        }
        let Some(until) = self.faults.paused_until(at, self.now) else { return false };
        self.at(until, happening());
        true
    }

    /// The watches, or the lists with which they begin.
    pub fn news_for_scheduler(&mut self, at: usize, life: u64) {
        if self.is_held(at, life, || Happening::News(Reader::Scheduler(at), life)) {
            return;
        }
        self.schedulers[at].is_told = false;
        let is = &mut self.schedulers[at];
        let expired = is.is_synced && self.faults.lists_again(Reader::Scheduler(at));
        let changes = if is.is_synced && !expired {
            self.store.since(is.cursor)
        } else {
            let listed = self.store.list(self.store.end());
            if !is.is_synced {
                for machine in &self.machines {
                    let device = WorldEvent::Devices(Box::new(machine.device()));
                    drop(is.scheduler.event(device, Moment { mono: self.now, wall: wall(self.now) }));
                }
            }
            listed
        };
        if expired {
            self.note(|| format!("scheduler {at} lists again"));
            let there = |key: &PodKey, uid: &PodUid| self.store.pod(key).is_some_and(|pod| pod.handoff.pod.uid == *uid);
            let known = self.schedulers[at].known.clone();
            let gone: Vec<_> = known.into_iter().filter(|(key, uid)| !there(key, uid)).collect();
            for (key, uid) in gone {
                self.schedulers[at].known.remove(&key);
                if !self.is(Mutant::GoneIsForgotten) {
                    self.tell_scheduler(at, WorldEvent::PodGone(key, uid));
                }
            }
        }
        for change in changes {
            self.tell_change(at, &change);
        }
        let is = &mut self.schedulers[at];
        (is.cursor, is.is_synced) = (self.store.end(), true);
        self.turn_now(at);
    }

    fn tell_change(&mut self, at: usize, change: &Change) {
        let event = match change {
            Change::Pod(pod) => {
                let of = pod.handoff.pod.clone();
                let former = self.schedulers[at].known.insert(of.key.clone(), of.uid.clone());
                if let Some(former) = former.filter(|uid| *uid != of.uid) {
                    self.tell_scheduler(at, WorldEvent::PodGone(of.key, former));
                }
                WorldEvent::Pod(Box::new((**pod).clone()))
            }
            Change::PodGone(pod) => {
                let of = pod.handoff.pod.clone();
                if self.schedulers[at].known.get(&of.key) == Some(&of.uid) {
                    self.schedulers[at].known.remove(&of.key);
                }
                WorldEvent::PodGone(of.key, of.uid)
            }
            Change::Node(node) => WorldEvent::Node((**node).clone()),
            Change::Agent(node, status, renewed, version) => WorldEvent::Agent {
                node: node.clone(),
                home: LeaseHome::Nodes,
                status: Some((**status).clone()),
                version: version.to_string().into(),
                renewed: Some(*renewed),
            },
        };
        // A node whose lock has gone: what wakes the pods that wait for it.
        if self.is(Mutant::UnlockIsNoNews) && matches!(&event, WorldEvent::Node(node) if node.lock.is_none()) {
            return;
        }
        self.tell_scheduler(at, event);
    }

    fn tell_scheduler(&mut self, at: usize, event: WorldEvent) {
        let moment = self.moment(at);
        let effects = self.schedulers[at].scheduler.event(event, moment);
        self.perform(at, effects);
    }

    fn turn_now(&mut self, at: usize) {
        let life = self.schedulers[at].life;
        self.schedulers[at].turn = Some(self.now);
        self.turn(at, life);
    }

    /// One round of the event loop: leadership first, then what is due.
    pub fn turn(&mut self, at: usize, life: u64) {
        if self.schedulers[at].turn != Some(self.now) && self.schedulers[at].life == life {
            return; // it has come earlier
        }
        if self.is_held(at, life, || Happening::Turn { at, life }) {
            if let Some(until) = self.faults.paused_until(at, self.now) {
                self.schedulers[at].turn = Some(until);
            }
            return;
        }
        let moment = self.moment(at);
        let never_ends = self.is(Mutant::LeadsForEver);
        let is = &mut self.schedulers[at];
        let held = is.lease.leads(self.now) || never_ends && is.scheduler.is_leading();
        let leads = is.is_synced && held;
        if leads != is.scheduler.is_leading() {
            let effects = is.scheduler.lead(leads, moment);
            self.note(|| format!("scheduler {at} {}", if leads { "leads" } else { "leads no more" }));
            self.history.sometimes(if leads { "a scheduler begins to lead" } else { "a leader steps down" });
            self.perform(at, effects);
        }
        let is = &mut self.schedulers[at];
        let effects = is.scheduler.run(moment);
        is.turns += 1;
        let (turns, next) = (is.turns, is.scheduler.next());
        self.perform(at, effects);
        if turns.is_multiple_of(AUDIT_EVERY) {
            self.audit(at);
        }
        let longest = self.now + Duration::from_secs(1);
        let due = next.map_or(longest, |due| due.clamp(self.now + Duration::from_millis(1), longest));
        self.schedulers[at].turn = Some(due);
        self.at(due, Happening::Turn { at, life });
    }

    /// The accounts of a scheduler against a recount, and whether it has lost or doubled a pod.
    pub fn audit(&mut self, at: usize) {
        let mut found = check_scheduler(&self.schedulers[at].scheduler, OURS);
        self.judges.ran_without |= self.runs_without_devices();
        if self.judges.ran_without {
            // Its daemon said so, and a pod after it was given them. A daemon that loses its ledger takes it for served, and refuses
            // the later one.
            found.retain(|violation| !matches!(violation, AccountError::DeviceTwice { .. }));
        }
        if let Some(found) = found.first() {
            self.violates("the accounts equal a recount", format!("scheduler {at}: {found:?}"));
        }
    }

    /// Runs for leadership, as `cluster::leadership` does.
    pub fn campaign(&mut self, at: usize, life: u64) {
        if self.is_held(at, life, || Happening::Campaign { at, life }) {
            return;
        }
        let pause = RETRY + self.soon(0, 50);
        self.after(pause, Happening::Campaign { at, life });
        if self.faults.is_cut(Reader::Scheduler(at), self.now) {
            return;
        }
        let wall = self.moment(at).wall;
        let read = self.store.lease.clone();
        let version = read.as_ref().and_then(|lease| lease.metadata.resource_version.clone());
        match self.schedulers[at].lease.judge(read, self.now, wall) {
            LeaseMove::Create(lease) | LeaseMove::Replace(lease) => {
                let what = What::Lease { lease, version, sent: self.now };
                self.send(at, what, self.now);
            }
            LeaseMove::Follow { .. } => {}
        }
        self.turn_now(at);
    }

    /// Starts what the scheduler asks for, unless it may not write any more.
    fn perform(&mut self, at: usize, effects: Effects) {
        let may_write = self.schedulers[at].lease.leads(self.now) || self.is(Mutant::StaleLeaderWrites);
        for effect in effects {
            match &effect {
                Effect::Notice { .. } | Effect::JobNotice { .. } => continue,
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
            let pod = match &effect {
                Effect::Condition { pod, .. } | Effect::Nominate { pod, .. } => Some(pod.uid.clone()),
                Effect::Bind { pod, .. } => Some(pod.uid.clone()),
                _ => None,
            };
            let not_before = pod.as_ref().and_then(|uid| self.schedulers[at].ordered.get(uid)).copied();
            let arrived = self.send(at, What::Effect(effect), not_before.unwrap_or(self.now));
            if let Some(uid) = pod {
                self.schedulers[at].ordered.insert(uid, arrived);
            }
        }
    }

    fn answer_soon(&mut self, at: usize, effect: Effect, report: Option<EffectResult>) {
        let (id, life) = (self.serial, self.schedulers[at].life);
        self.serial += 1;
        self.schedulers[at].in_flight.insert(id, effect);
        let answer = Box::new(Answer::Effect(report));
        self.after(Duration::from_millis(1), Happening::Answered { at, life, id, answer });
    }

    /// Sends a request; answers when it will arrive.
    fn send(&mut self, at: usize, what: What, not_before: Duration) -> Duration {
        let (id, life) = (self.serial, self.schedulers[at].life);
        self.serial += 1;
        if let What::Effect(effect) = &what {
            self.schedulers[at].in_flight.insert(id, effect.clone());
            self.after(LIMIT, Happening::Limit { at, life, id });
        }
        let mut arrives = not_before.max(self.now) + self.soon(1, 20);
        if self.faults.is_cut(Reader::Scheduler(at), self.now) {
            return arrives; // it never does
        }
        if self.strikes(Fault::LateRequest) {
            arrives += self.soon(500, 12_000);
        }
        self.at(arrives, Happening::Arrives(Box::new(Request { at, life, id, what, tries: 0 })));
        arrives
    }

    /// A request is at the API server. Its sender may have ended meanwhile.
    pub fn arrives(&mut self, request: Request) {
        let Request { at, life, id, what, tries } = request;
        let again = |what, tries| Box::new(Request { at, life, id, what, tries });
        let effect = match what {
            What::Lease { lease, version, sent } => {
                if self.strikes(Fault::ServerError) {
                    return;
                }
                let stands = self.store.lease.as_ref().and_then(|lease| lease.metadata.resource_version.clone());
                let version = if self.is(Mutant::LeaseWithoutVersion) { stands } else { version };
                let won = self.store.put_lease(*lease, version.as_deref());
                self.note(|| {
                    format!("scheduler {at} {} the Lease", if won.is_some() { "writes" } else { "loses the race for" })
                });
                return self.answer(at, life, id, Answer::Lease { won, sent });
            }
            What::Effect(effect) => effect,
        };
        let is_swap = matches!(effect, Effect::Lock { .. } | Effect::Release { .. });
        if is_swap && self.strikes(Fault::ServerError) {
            if tries + 1 < TRIES {
                return self.after(AGAIN, Happening::Arrives(again(What::Effect(effect), tries + 1)));
            }
            let report = failure(&effect, "500", None);
            return self.answer(at, life, id, Answer::Effect(report));
        }
        let refused = if self.strikes(Fault::TooManyRequests) {
            Some(failure(&effect, "429", Some(Duration::from_secs(1))))
        } else if !is_swap && self.strikes(Fault::ServerError) {
            Some(failure(&effect, "500", None))
        } else if let Effect::Bind { ticket, .. } = &effect
            && self.strikes(Fault::Forbidden)
        {
            Some(Some(EffectResult::Bind { ticket: *ticket, result: BindResult::Refused("403".into()) }))
        } else {
            None
        };
        if let Some(report) = refused {
            return self.answer(at, life, id, Answer::Effect(report));
        }
        let report = self.execute(at, &effect);
        if self.strikes(Fault::LostAnswer) {
            // The connection is reset: a lock is read and tried again, a Binding is not.
            if is_swap {
                return self.after(AGAIN, Happening::Arrives(again(What::Effect(effect), tries + 1)));
            }
            let refused = self.is(Mutant::LostAnswerIsRefusal).then(|| match &effect {
                Effect::Bind { ticket, .. } => {
                    Some(EffectResult::Bind { ticket: *ticket, result: BindResult::Refused("lost".into()) })
                }
                _ => None,
            });
            let report = refused.flatten().or_else(|| failure(&effect, "connection reset", None));
            return self.answer(at, life, id, Answer::Effect(report));
        }
        self.answer(at, life, id, Answer::Effect(report));
    }

    fn answer(&mut self, at: usize, life: u64, id: u64, answer: Answer) {
        let mut pause = self.soon(1, 20);
        if self.faults.is_cut(Reader::Scheduler(at), self.now) {
            return;
        }
        if self.strikes(Fault::LateAnswer) {
            pause += self.soon(500, 12_000);
        }
        self.after(pause, Happening::Answered { at, life, id, answer: Box::new(answer) });
    }

    pub fn answered(&mut self, at: usize, life: u64, id: u64, answer: Answer) {
        if !self.schedulers[at].is_up || self.schedulers[at].life != life {
            return;
        }
        if let Some(until) = self.faults.paused_until(at, self.now) {
            let answer = Box::new(answer);
            return self.at(until, Happening::Answered { at, life, id, answer });
        }
        match answer {
            Answer::Lease { won: Some(version), sent } => self.schedulers[at].lease.won(Some(version), sent),
            Answer::Lease { won: None, .. } => self.schedulers[at].lease.lost_race(),
            Answer::Effect(report) => {
                if self.schedulers[at].in_flight.remove(&id).is_some()
                    && let Some(report) = report
                {
                    self.report(at, report);
                }
            }
        }
        self.turn_now(at);
    }

    pub fn limit(&mut self, at: usize, life: u64, id: u64) {
        if self.is_held(at, life, || Happening::Limit { at, life, id }) || self.is(Mutant::WaitsForEver) {
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
                let result = self.swap(&swap, self.is(Mutant::LockWithoutTest), || format!("scheduler {at}"));
                EffectResult::Lock { ticket: *ticket, result }
            }
            Effect::Release { node, old, .. } => {
                let swap = Swap { node: node.clone(), old: Some(old.clone()), new: None };
                let result = self.swap(&swap, self.is(Mutant::ReleaseWithoutOwner), || format!("scheduler {at}"));
                EffectResult::Release { node: node.clone(), old: old.clone(), result }
            }
            Effect::Bind { ticket, pod, node, annotations } => {
                let uid = !self.is(Mutant::BindWithoutUid);
                let result = self.store.bind(pod, uid, node, annotations);
                self.note(|| format!("scheduler {at} binds {} to {node}: {result:?}", pod.key));
                if result == BindResult::Done {
                    self.judge_bound(&pod.key);
                }
                EffectResult::Bind { ticket: *ticket, result }
            }
            Effect::ReadPod { pod } => {
                let result = Ok(self.store.pod(pod).cloned().map(Box::new));
                EffectResult::PodRead { pod: pod.clone(), result }
            }
            Effect::Fence { pod, node, age } => {
                self.note(|| format!("scheduler {at} fences {} on {node} after {age:?}", pod.key));
                self.history.sometimes("the holder of an expired lock is deleted");
                self.judge_fence(pod);
                self.delete(pod, wall);
                return None;
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
            Effect::Nominate { pod, node } => {
                self.store.change(pod, |facts| facts.spec.nominated.clone_from(node));
                return None;
            }
            Effect::PodGroupStatus(write) => EffectResult::PodGroup { gang: write.gang.clone(), result: None },
            _ => return None,
        })
    }

    fn delete(&mut self, pod: &baton::contract::PodRef, wall: jiff::Timestamp) {
        let uid = (!self.is(Mutant::DeleteWithoutUid)).then_some(&pod.uid);
        self.jobs.evicted.insert(pod.uid.clone());
        self.store.delete(&pod.key, uid, wall);
    }

    /// A lock's compare-and-swap, for anybody.
    pub fn swap(&mut self, swap: &Swap, blind: bool, who: impl Fn() -> String) -> LockResult {
        let before = self.store.lock(&swap.node);
        let result = self.store.swap(swap, blind);
        self.note(|| {
            let new = swap.new.as_deref().map_or("unlocks".to_owned(), |new| format!("locks for {new}"));
            format!("{} {} {new}: {result:?}", who(), swap.node)
        });
        if result == LockResult::Done {
            self.judge_swap(swap, &before);
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
            EffectResult::Bind { ticket: *ticket, result: BindResult::Retry(why.to_owned(), pause) }
        }
        Effect::ReadPod { pod } => EffectResult::PodRead { pod: pod.clone(), result: Err(why.to_owned()) },
        Effect::PodGroupStatus(write) => EffectResult::PodGroup { gang: write.gang.clone(), result: None },
        Effect::Condition { pod, .. } => EffectResult::ConditionLost { pod: pod.uid.clone() },
        Effect::Nominate { pod, .. } => EffectResult::NominationLost { pod: pod.uid.clone() },
        _ => return None,
    })
}

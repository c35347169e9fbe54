//! From a reserved pod to its Binding: volumes, the node's lock, the Binding, and every answer.
//!
//! ```text
//!   reserved ──start──▶ preparing ──▶ in the node's lock queue ──▶ locking ──▶ binding ──▶ bound
//!      ▲                    │  (volumes)     ▲      │                │            │
//!      │                    │                └──────┴── contended ───┘            │
//!      └── queued again ◀───┴──────────────── final failure ◀─────────────────────┘
//! ```

mod attempt;
mod lock_queue;
mod locks;
mod requests;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use crate::contract::{LockRead, PodKey, PodUid, key};
use crate::decide::lock::ReleaseReason;
use crate::decide::world::{NodeId, PodId, Wake};

use super::context::{BindEvent, Context, Step};
use super::effect::{BindResult, Effect, Effects, LockResult, Ticket};
use super::reservations::{Reservations, expected_names};
use super::rules::Outcome;
use super::settings::LockMode;
use super::timers::Timer;

use attempt::Turn;
pub use attempt::{BindAttempt, Cancel, Stage};

/// What comes before the lock is asked for again after this time, unless its object has changed.
const ASK_AGAIN: Duration = Duration::from_secs(5);

/// Every bind attempt, the lock queues of nodes, and the locks that are released.
#[derive(Debug, Default)]
pub struct Binder {
    attempts: BTreeMap<PodId, BindAttempt>,
    /// Attempts whose volumes, or whatever else comes before the lock, are being prepared.
    preparing: BTreeSet<PodId>,
    tickets: BTreeMap<Ticket, PodId>,
    queues: BTreeMap<NodeId, LockQueue>,
    locks: Locks,
    /// Binds that another scheduler asked for.
    requests: BTreeMap<PodId, BindRequest>,
    answers: Vec<BindAnswer>,
    /// From creation to bind, of pods since the last report.
    pod_waits: Vec<Duration>,
    /// From the lock queue to the lock, of attempts since the last report.
    lock_waits: Vec<Duration>,
}

/// The lock queue of one node.
#[derive(Debug, Clone, Default)]
pub struct LockQueue {
    /// Waiting for the lock, first one first.
    pub waiting: BTreeSet<Turn>,
    /// Holding or writing the lock, not yet bound.
    pub head: Option<PodId>,
    /// When pods are looked for that have waited for long.
    look_at: Option<Duration>,
    /// What was reported of the lock that stands.
    reported: Option<ReportedLock>,
}

impl LockQueue {
    /// `true` when no pod is in it.
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty() && self.head.is_none()
    }
}

/// What was last reported of a lock, so that the times in it stay the same while it stands.
#[derive(Debug, Clone, PartialEq, Eq)]
struct ReportedLock {
    of: (Box<str>, Outlook),
    text: Arc<str>,
}

/// What is to be expected of a lock that stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outlook {
    /// Its holder is being served; it counts as expired at some time.
    Held,
    /// It names no pod; it is taken over at some time.
    Unknown,
    /// It has expired, and no node daemon is there that knows whether the holder was served.
    AgentAway,
    /// It has expired, and the settings leave it to an operator.
    Operator,
    /// It is about to go: its holder is looked for, or being deleted.
    Ending,
}

/// What is known of lock values.
#[derive(Debug, Default)]
struct Locks {
    /// Values being removed, why, and `true` while the request is under way.
    releases: BTreeMap<(NodeId, Box<str>), (ReleaseReason, bool)>,
    /// Values whose holder is proven gone.
    proven: BTreeSet<Box<str>>,
    /// Values whose holder is being read, and since when.
    asked: BTreeMap<Box<str>, Duration>,
    /// Values under which a bind was resumed once.
    resumed: BTreeSet<Box<str>>,
    /// Holders that were deleted, and when.
    fenced: BTreeMap<PodUid, Duration>,
}

impl Locks {
    /// Forgets what only a leader may rely on.
    fn clear(&mut self) {
        self.releases.clear();
        self.asked.clear();
        self.resumed.clear();
    }
}

/// Names one request of a bind; never used again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub u64);

/// The end of a bind that was asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BindVerdict {
    /// The pod is bound to that node with its devices.
    Bound,
    /// No watch has shown a pod of this uid: give the world what a live read finds, and ask again.
    Unknown,
    /// It did not come about; no lock of it stays.
    Failed(String),
}

/// One answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BindAnswer {
    /// Of the request.
    pub request: RequestId,
    /// What came of it.
    pub verdict: BindVerdict,
}

/// The caller of a bind attempt.
#[derive(Debug, Clone)]
struct BindRequest {
    id: RequestId,
    /// Monotonic.
    deadline: Duration,
    wait: Duration,
    /// The latest failure that may pass.
    trouble: Option<String>,
}

impl Binder {
    /// Bind attempts by pod.
    pub const fn attempts(&self) -> &BTreeMap<PodId, BindAttempt> {
        &self.attempts
    }

    /// Lock queues by node.
    pub const fn queues(&self) -> &BTreeMap<NodeId, LockQueue> {
        &self.queues
    }

    /// How long pods waited that were bound since the last call.
    pub fn take_pod_waits(&mut self) -> Vec<Duration> {
        std::mem::take(&mut self.pod_waits)
    }

    /// How long attempts waited for their node's lock that got it since the last call.
    pub fn take_lock_waits(&mut self) -> Vec<Duration> {
        std::mem::take(&mut self.lock_waits)
    }

    /// Ends every attempt: this process starts or stops leading. The next leader resumes them from the cluster. Which holders are
    /// proven gone, which were fenced, and answers that are to be taken, stay.
    pub fn clear(&mut self, cx: &mut Context<'_>) {
        self.fail_requests();
        for id in self.attempts.keys().copied().collect::<Vec<_>>() {
            self.forget(id);
            cx.world.forget(id);
        }
        self.locks.clear();
        *self = Self {
            locks: std::mem::take(&mut self.locks),
            answers: std::mem::take(&mut self.answers),
            pod_waits: std::mem::take(&mut self.pod_waits),
            lock_waits: std::mem::take(&mut self.lock_waits),
            ..Self::default()
        };
    }

    /// Starts to bind a reserved pod: its room is the attempt's from now on.
    pub fn start(&mut self, cx: &mut Context<'_>, id: PodId) {
        let Some(reservation) = cx.reservations.take(id) else { return };
        let (time, number) = (cx.sequence.stamp(cx.now.wall), cx.sequence.number());
        let (Some(pod), Some(node)) = (cx.world.pod(id), cx.world.node(reservation.node)) else { return };
        let calls = expected_names(pod, node, reservation.wanted.as_deref());
        let exact = cx.config.lock_mode == LockMode::Auto && node.needs_no_lock(&pod.facts.handoff.scheduler_name);
        let resumed = cx.reservations.unpin(id) == Some(reservation.node);
        let attempt = BindAttempt {
            pod: pod.facts.handoff.pod.clone(),
            node: reservation.node,
            node_name: node.name.clone(),
            time,
            locks: !calls.is_empty() && !exact,
            calls,
            annotations: reservation.annotations,
            commit: reservation.commit,
            stage: Stage::Preparing,
            lock_value: resumed.then(|| node.lock.read.raw().map(Into::into)).flatten(),
            // A commit in progress goes before others of its priority.
            turn: (-2 * i64::from(pod.facts.spec.priority) - i64::from(reservation.commit.is_some()), number, id),
            since: cx.now.mono,
            queued: cx.now.mono,
            not_before: Duration::ZERO,
            failures: 0,
            trouble_since: None,
            asked: Vec::new(),
            cancelled: None,
        };
        cx.reporter.binding(id);
        self.attempts.insert(id, attempt);
        self.prepare(cx, id);
    }

    /// Asks every PreBind rule; when all say fit, the pod goes for its lock or its Binding.
    fn prepare(&mut self, cx: &mut Context<'_>, id: PodId) {
        let Some(attempt) = self.attempts.get(&id).filter(|attempt| attempt.stage == Stage::Preparing) else { return };
        let Some(pod) = cx.world.pod(id) else { return };
        let (node, since, now) = (attempt.node, attempt.since, cx.now.mono);
        let mut wait: Option<Duration> = None;
        let mut asked = Effects::new();
        for rule in &cx.rules.enabled().pre_bind {
            match rule.pre_bind(cx.view(), pod, node, since, &mut asked) {
                Outcome::Fit => {}
                Outcome::WaitUntil(at, _) => wait = Some(wait.map_or(at, |wait| wait.min(at))),
                Outcome::Unfit(no) | Outcome::Never(no) => return self.give_up(cx, id, no.text.into_owned()),
                Outcome::Fault(text) => return self.give_up(cx, id, text.into_owned()),
            }
        }
        let Some(attempt) = self.attempts.get_mut(&id) else { return };
        // Every change of any volume asks again: what is under way is not sent twice.
        attempt.asked.retain(|(_, at)| now < *at + ASK_AGAIN);
        asked.retain(|effect| !attempt.asked.iter().any(|(known, _)| known == effect));
        attempt.asked.extend(asked.iter().map(|effect| (effect.clone(), now)));
        cx.effects.extend(asked);
        if let Some(at) = wait {
            // Never at once again: time has to pass, or volumes to change.
            attempt.not_before = at.max(now + Duration::from_millis(1));
            cx.timers.set(attempt.not_before, Timer::BindAttempt(id));
            self.preparing.insert(id);
            return;
        }
        self.preparing.remove(&id);
        match attempt.commit {
            None => self.proceed(cx, id),
            // No member of a commit locks before the volumes of all are settled.
            Some(commit) => cx.steps.push(Step::Bind(BindEvent::Prepared { pod: id, commit })),
        }
    }

    /// Volumes changed: every attempt that waits for them is looked at.
    pub fn prepare_all(&mut self, cx: &mut Context<'_>) {
        for id in self.preparing.clone() {
            self.prepare(cx, id);
        }
    }

    /// Sends a prepared attempt for its lock or its Binding.
    pub fn proceed(&mut self, cx: &mut Context<'_>, id: PodId) {
        let preparing = |attempt: &&mut BindAttempt| attempt.stage == Stage::Preparing;
        let Some(attempt) = self.attempts.get_mut(&id).filter(preparing) else { return };
        attempt.stage = Stage::Queued;
        attempt.not_before = Duration::ZERO;
        attempt.queued = cx.now.mono;
        let (node, locks, turn) = (attempt.node, attempt.locks, attempt.turn);
        if locks {
            self.queues.entry(node).or_default().waiting.insert(turn);
            self.advance(cx, node);
            self.watch_queue(cx, node);
        } else {
            self.bind(cx, id);
        }
    }

    fn ticket(&mut self, cx: &mut Context<'_>, id: PodId) -> Ticket {
        let ticket = Ticket(cx.sequence.number());
        self.tickets.insert(ticket, id);
        ticket
    }

    /// Posts the Binding.
    fn bind(&mut self, cx: &mut Context<'_>, id: PodId) {
        let ticket = self.ticket(cx, id);
        let Some(attempt) = self.attempts.get_mut(&id) else { return };
        attempt.stage = Stage::Binding(ticket);
        attempt.annotations.set(key::BIND_TIMESTAMP, attempt.time.as_nanosecond().to_string());
        cx.effects.push(Effect::Bind {
            ticket,
            pod: attempt.pod.clone(),
            node: attempt.node_name.clone(),
            annotations: attempt.annotations.clone(),
        });
    }

    /// The API shows the pod bound, by us or by another scheduler.
    pub fn seen_bound(&mut self, cx: &mut Context<'_>, id: PodId) {
        let (Some(attempt), Some(pod)) = (self.attempts.get(&id), cx.world.pod(id)) else { return };
        let stamp = pod.facts.handoff.assignment.bind_timestamp.as_deref();
        let ours = pod.node() == Some(attempt.node) && stamp == Some(attempt.time.as_nanosecond().to_string().as_str());
        if ours {
            self.bound(cx, id);
        } else {
            // Another scheduler was faster; what it wrote is the truth.
            self.fail_request(id, "another scheduler has bound the pod");
            self.end(cx, id);
        }
    }

    /// The pod is bound by us.
    fn bound(&mut self, cx: &mut Context<'_>, id: PodId) {
        let Some(attempt) = self.forget(id) else { return };
        cx.reporter.forget(id);
        if let Some(commit) = attempt.commit {
            cx.steps.push(Step::Bind(BindEvent::Bound { pod: id, commit }));
        }
        cx.stats.bound += 1;
        cx.queue.remove(id);
        // The scheduler that asked for the bind writes the event itself.
        if !self.answer(id, BindVerdict::Bound) {
            let message = format!("Successfully assigned {} to {}", attempt.pod.key, attempt.node_name);
            cx.event(id, false, "Scheduled", message);
        }
        if let Some(pod) = cx.world.pod(id) {
            let waited = cx.now.wall.duration_since(pod.facts.handoff.created);
            self.pod_waits.push(Duration::try_from(waited).unwrap_or_default());
        }
        if let Some(raw) = attempt.lock_value.filter(|_| !attempt.locks) {
            // No call will come for this pod, so the node daemon does not release its lock.
            self.release(cx, attempt.node, &raw, ReleaseReason::NoCall);
        }
        cx.wake(Wake::POD_PLACED);
        self.advance(cx, attempt.node);
    }

    /// Ends an attempt whose pod is not ours to bind any more: its lock goes, its room too.
    fn end(&mut self, cx: &mut Context<'_>, id: PodId) {
        if let Some(commit) = self.end_quietly(cx, id) {
            cx.steps.push(Step::Bind(BindEvent::Ended { pod: id, commit }));
        }
    }

    /// [`Binder::end`] without an event; returns the commit that the pod was part of.
    fn end_quietly(&mut self, cx: &mut Context<'_>, id: PodId) -> Option<u64> {
        let node = self.attempts.get(&id)?.node;
        self.fail_request(id, "the pod is gone or changed while it was being bound");
        let commit = self.withdraw(cx, id);
        self.advance(cx, node);
        commit
    }

    /// Gives back the lock and the room of an attempt; returns the commit that the pod was part of.
    pub fn withdraw(&mut self, cx: &mut Context<'_>, id: PodId) -> Option<u64> {
        let attempt = self.forget(id)?;
        if let Some(raw) = attempt.lock_value {
            self.release(cx, attempt.node, &raw, ReleaseReason::BindFailed);
        }
        Reservations::free(cx, id, attempt.node);
        attempt.commit
    }

    /// Ends an attempt for good and lets the pod be queued again.
    fn give_up(&mut self, cx: &mut Context<'_>, id: PodId, why: String) {
        cx.stats.bind_failures += 1;
        let requested = self.fail_request(id, &why);
        let commit = self.end_quietly(cx, id);
        cx.steps.push(Step::Bind(BindEvent::Failed { pod: id, commit, why, requested }));
    }

    /// Ends an attempt as soon as no request is under way for it.
    pub fn cancel(&mut self, cx: &mut Context<'_>, id: PodId, why: Cancel) {
        let Some(attempt) = self.attempts.get_mut(&id) else { return };
        if attempt.awaits_answer() {
            attempt.cancelled = Some(why);
            return;
        }
        match why {
            Cancel::PodGone => self.end(cx, id),
            Cancel::Requeue(why) => {
                self.fail_request(id, &why);
                // Not the pod's fault: it is tried at once.
                self.end(cx, id);
                cx.steps.push(Step::Retry(id));
            }
        }
    }

    /// Takes an attempt out of every table; its room stays taken in the world.
    fn forget(&mut self, id: PodId) -> Option<BindAttempt> {
        let attempt = self.attempts.remove(&id)?;
        if let Stage::Locking(ticket) | Stage::Binding(ticket) = attempt.stage {
            self.tickets.remove(&ticket);
        }
        self.preparing.remove(&id);
        if let Some(queue) = self.queues.get_mut(&attempt.node) {
            queue.waiting.remove(&attempt.turn);
            queue.head = queue.head.filter(|head| *head != id);
            if queue.is_empty() {
                self.queues.remove(&attempt.node);
            }
        }
        Some(attempt)
    }

    /// Pauses an attempt after a failure that may pass. `false` when it has lasted too long.
    fn pause(&mut self, cx: &mut Context<'_>, id: PodId, stage: Stage, at_least: Option<Duration>) -> bool {
        let (first, longest, limit) = cx.config.retry;
        let now = cx.now.mono;
        let Some(attempt) = self.attempts.get_mut(&id) else { return false };
        let since = *attempt.trouble_since.get_or_insert(now);
        if now >= since + limit {
            return false;
        }
        let wait = (first * (1 << attempt.failures.min(16))).min(longest).max(at_least.unwrap_or_default());
        attempt.failures += 1;
        attempt.not_before = now + wait;
        attempt.stage = stage;
        cx.timers.set(attempt.not_before, Timer::BindAttempt(id));
        if stage == Stage::Queued {
            self.queue_again(cx, id);
        }
        true
    }

    fn queue_again(&mut self, cx: &mut Context<'_>, id: PodId) {
        let Some(attempt) = self.attempts.get(&id) else { return };
        let queue = self.queues.entry(attempt.node).or_default();
        queue.head = None;
        queue.waiting.insert(attempt.turn);
        self.watch_queue(cx, attempt.node);
    }

    /// A paused attempt goes on.
    pub fn resume(&mut self, cx: &mut Context<'_>, id: PodId) {
        let now = cx.now.mono;
        let Some(attempt) = self.attempts.get(&id).filter(|attempt| attempt.not_before <= now) else { return };
        match attempt.stage {
            Stage::Queued => self.advance(cx, attempt.node),
            Stage::Preparing => self.prepare(cx, id),
            Stage::BindAgain => self.bind(cx, id),
            Stage::ReadAgain => self.read(cx, id),
            Stage::Locking(_) | Stage::Binding(_) | Stage::Reading => {}
        }
    }

    /// Why the decision behind an attempt does not hold any more; `None` while it does.
    fn outdated(cx: &Context<'_>, attempt: &BindAttempt) -> Option<String> {
        let Some(node) = cx.world.node(attempt.node).filter(|node| node.facts.is_some()) else {
            return Some(format!("node {} is gone", attempt.node_name));
        };
        if let Some(name) = attempt.calls.iter().find(|name| !node.serves(name)) {
            return Some(format!("the agent of node {} does not serve {name} any more", attempt.node_name));
        }
        let id = cx.world.pod_id(&attempt.pod.uid)?;
        let devices = cx.world.pod(id)?.devices.as_ref()?;
        if let Some(device) = cx.world.contested_device(id) {
            return Some(format!("device {device} of node {} went to another pod", attempt.node_name));
        }
        let unhealthy = node.stock.as_ref().map_or_else(Vec::new, |stock| stock.unhealthy_of(devices));
        unhealthy.first().map(|device| format!("device {device} of node {} is not healthy", attempt.node_name))
    }

    /// The answer to a write of a lock.
    pub fn lock_answered(&mut self, cx: &mut Context<'_>, ticket: Ticket, result: LockResult) {
        let Some(id) = self.tickets.remove(&ticket) else { return };
        let Some(attempt) = self.attempts.get_mut(&id) else { return };
        let node = attempt.node;
        attempt.stage = Stage::Queued;
        match result {
            LockResult::Done => {
                let value = attempt.lock_value.clone();
                attempt.trouble_since = None;
                attempt.failures = 0;
                self.lock_waits.push(cx.now.mono.saturating_sub(attempt.queued));
                cx.world.observe_lock(node, LockRead::parse(value.as_deref()), cx.now.mono);
                if !self.ended_by_cancel(cx, id) {
                    self.bind(cx, id);
                }
            }
            LockResult::Contended(read) => {
                cx.stats.contended += 1;
                if read.raw() != attempt.lock_value.as_deref() {
                    attempt.lock_value = None;
                }
                let free = read == LockRead::Free;
                cx.world.observe_lock(node, read, cx.now.mono);
                if self.ended_by_cancel(cx, id) {
                    return;
                }
                // A lock that comes and goes meanwhile: not at once again.
                if !(free && self.pause(cx, id, Stage::Queued, None)) {
                    self.queue_again(cx, id);
                    self.advance(cx, node);
                }
            }
            LockResult::NodeGone => {
                attempt.lock_value = None;
                if !self.ended_by_cancel(cx, id) {
                    self.give_up(cx, id, "the node is gone".to_owned());
                }
            }
            LockResult::Failed(why, after) => {
                self.note_trouble(id, &why);
                if !self.ended_by_cancel(cx, id) && !self.pause(cx, id, Stage::Queued, after) {
                    self.give_up(cx, id, why);
                }
            }
        }
    }

    /// The answer to a Binding.
    pub fn bind_answered(&mut self, cx: &mut Context<'_>, ticket: Ticket, result: BindResult) {
        let Some(id) = self.tickets.remove(&ticket) else { return };
        let Some(attempt) = self.attempts.get_mut(&id) else { return };
        match result {
            BindResult::Done => self.bound(cx, id),
            BindResult::NotFound => {
                attempt.stage = Stage::Queued;
                self.end(cx, id);
                // Should the watch still show the pod, it is tried again after a while; most often the deletion is on its way.
                cx.steps.push(Step::Fail(id));
            }
            BindResult::Conflict(_) => self.read(cx, id),
            BindResult::Refused(why) => {
                attempt.stage = Stage::Queued;
                if !self.ended_by_cancel(cx, id) {
                    self.give_up(cx, id, why);
                }
            }
            BindResult::Retry(why, after) => {
                let gone = attempt.cancelled.is_some();
                self.note_trouble(id, &why);
                // The answer may be lost and the pod bound: only a read shows it.
                if gone || !self.pause(cx, id, Stage::BindAgain, after) {
                    self.read(cx, id);
                }
            }
        }
    }

    fn read(&mut self, cx: &mut Context<'_>, id: PodId) {
        let Some(attempt) = self.attempts.get_mut(&id) else { return };
        attempt.stage = Stage::Reading;
        cx.effects.push(Effect::ReadPod { pod: attempt.pod.key.clone() });
    }

    fn reading(&self, key: &PodKey) -> Option<PodId> {
        let reading =
            |(_, attempt): &(&PodId, &BindAttempt)| attempt.pod.key == *key && attempt.stage == Stage::Reading;
        self.attempts.iter().find(reading).map(|(id, _)| *id)
    }

    /// A pod could not be read: neither bound nor unbound is known, so neither lock nor room may go.
    pub fn read_failed(&mut self, cx: &mut Context<'_>, key: &PodKey) {
        let Some(id) = self.reading(key) else { return };
        if let Some(attempt) = self.attempts.get_mut(&id) {
            attempt.stage = Stage::ReadAgain;
            attempt.not_before = cx.now.mono + Duration::from_secs(1);
            cx.timers.set(attempt.not_before, Timer::BindAttempt(id));
        }
    }

    /// A live read found no pod `key`, or this uid, which may be one that is being deleted. The world knows it already.
    pub fn read_done(&mut self, cx: &mut Context<'_>, key: &PodKey, found: Option<(&PodUid, bool)>) {
        let reading = self.reading(key);
        self.prove(cx, key, found.map(|(uid, _)| uid.as_str()));
        let Some(id) = reading.filter(|id| self.attempts.get(id).is_some_and(|it| it.stage == Stage::Reading)) else {
            return;
        };
        let Some(attempt) = self.attempts.get_mut(&id) else { return };
        attempt.stage = Stage::BindAgain;
        if !found.is_some_and(|(uid, deleting)| attempt.pod.uid == *uid && !deleting) {
            attempt.cancelled = Some(Cancel::PodGone);
        }
        if !self.ended_by_cancel(cx, id) && !self.pause(cx, id, Stage::BindAgain, None) {
            self.give_up(cx, id, "the Binding did not come about in time".to_owned());
        }
    }

    fn ended_by_cancel(&mut self, cx: &mut Context<'_>, id: PodId) -> bool {
        let Some(why) = self.attempts.get_mut(&id).and_then(|attempt| attempt.cancelled.take()) else { return false };
        self.cancel(cx, id, why);
        true
    }
}

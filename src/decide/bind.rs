//! The binding cycle: from a reserved pod to its Binding, and the answer to each request.
//!
//! | `BindPhase` | waits for | then |
//! |---|---|---|
//! | `Volumes` | the PreBind rules; of a gang, those of all members | `Queue`, or `Post` where no lock is needed |
//! | `Queue` | its turn, and the node's lock free or its own | `Lock`; `Post` under a lock that is its own already |
//! | `Lock` | the answer to the compare-and-swap | `Post`; `Queue` when another holder was faster |
//! | `Post` | the answer to the Binding | bound; `PostAgain` when the answer is lost; `Confirm` when it contradicts, or is lost too late |
//! | `PostAgain` | a pause | `Post`: the API server refuses a second Binding of a pod |
//! | `Confirm` | a live read of the pod | bound; `PostAgain`; `ConfirmAgain`; the end, with room and lock given back |
//! | `ConfirmAgain` | a pause | `Confirm`: neither room nor lock is given back before a read shows that no Binding can arrive |
//!
//! A Binding whose answer is lost may be made until `BindAttempt::may_arrive`: until then its room and its lock stay.
//! A watch that shows the pod bound ends an attempt in every phase. A pod that is gone ends it as soon as no request is under way.

mod attempt;
mod intent;
mod lock_queue;
mod locks;
mod requests;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use crate::lock::{HolderState, Intent, LockMode, ReleaseReason};
use crate::world::{NodeId, PodId, Wake};
use baton_contract::{EventReason, LockRead, PodKey, PodUid, key, print_bind_timestamp};

use crate::core::agenda::{Agenda, BindEvent, Scene, Step, Terms};
use crate::core::context::Context;
use crate::core::effect::{BindResult, Effect, Effects, LockResult, Ticket};
use crate::core::placing::Rooms;
use crate::core::reservations::expected_names;
use crate::core::rules::Outcome;
use crate::core::timers::Timer;

pub use attempt::{BindAttempt, BindPhase, Cancel};
use attempt::{Requested, Trouble, Turn};
use intent::intent;
pub(crate) use intent::lock_end;

/// Bind attempts, the lock queues of nodes, and the locks that are released.
#[derive(Debug, Clone, Default)]
pub struct Binder {
    /// When this process began or ceased to lead: the leader before may have posted Bindings until then.
    since: Duration,
    attempts: BTreeMap<PodId, BindAttempt>,
    /// Attempts whose decision is some time old: they wait for their PreBind rules (volumes), or had reserved their room before.
    preparing: BTreeSet<PodId>,
    tickets: BTreeMap<Ticket, PodId>,
    queues: BTreeMap<NodeId, LockQueue>,
    locks: Locks,
    /// Binds that another scheduler requested.
    requests: BTreeMap<PodId, BindRequest>,
    answers: Vec<BindAnswer>,
    /// Times from creation to bind, until taken.
    pod_waits: Vec<Duration>,
    /// Times in the lock queue until the lock, until taken.
    lock_waits: Vec<Duration>,
}

/// The lock queue of one node.
#[derive(Debug, Clone, Default)]
pub struct LockQueue {
    /// Attempts that wait for the lock, in order.
    pub waiting: BTreeSet<Turn>,
    /// The pod that holds or writes the lock and is not bound yet.
    pub head: Option<PodId>,
    /// Monotonic time of the next check for pods that have waited for long.
    check_at: Option<Duration>,
    /// The last report about the present lock.
    reported: Option<ReportedLock>,
}

impl LockQueue {
    /// `true` when no pod is in it.
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty() && self.head.is_none()
    }
}

/// The last report about a lock; kept so that the times in it do not change while the lock does not.
#[derive(Debug, Clone, PartialEq, Eq)]
struct ReportedLock {
    of: (Box<str>, Outlook),
    text: Arc<str>,
}

/// How a present lock is expected to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outlook {
    /// Its holder is being served; it expires at some time.
    Held,
    /// It names no pod; it is taken over at some time.
    Unknown,
    /// It has expired, and the node daemon that knows whether the holder was served does not report.
    AgentAway,
    /// It is about to be removed: its holder is gone or is being deleted.
    Ending,
}

/// What is known about lock values.
#[derive(Debug, Clone, Default)]
struct Locks {
    /// Values being released, why, and `true` while the request is under way.
    releases: BTreeMap<(NodeId, Box<str>), (ReleaseReason, bool)>,
    /// Values whose holder is proven to be gone.
    proven: BTreeSet<Box<str>>,
    /// Values whose holder is being read, and when the read was requested.
    reads: BTreeMap<Box<str>, Duration>,
    /// Values under which a bind was resumed.
    resumed: BTreeSet<Box<str>>,
    /// What was said last on the holder of a value that stands too long.
    said: BTreeMap<Box<str>, String>,
}

impl Locks {
    /// Drops what only holds while this process leads.
    fn clear(&mut self) {
        self.releases.clear();
        self.reads.clear();
        self.resumed.clear();
        self.said.clear();
    }
}

/// Identifies one bind request; never reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub u64);

/// The answer to a bind request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BindVerdict {
    /// The pod is bound to the node with its devices.
    Bound,
    /// No watch has shown a pod of this uid: request again once it has.
    Unknown,
    /// The bind failed. It leaves no lock, but where a Binding was posted that may still be made.
    Failed(String),
}

/// The answer to one request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BindAnswer {
    /// The request.
    pub request: RequestId,
    /// The result.
    pub verdict: BindVerdict,
}

/// A request for a bind attempt.
#[derive(Debug, Clone)]
struct BindRequest {
    id: RequestId,
    /// Monotonic.
    deadline: Duration,
    wait: Duration,
    /// The latest transient failure.
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

    /// Waiting times of the pods that were bound since the last call.
    pub fn take_pod_waits(&mut self) -> Vec<Duration> {
        std::mem::take(&mut self.pod_waits)
    }

    /// Waiting times of the attempts that got their node's lock since the last call.
    pub fn take_lock_waits(&mut self) -> Vec<Duration> {
        std::mem::take(&mut self.lock_waits)
    }

    /// Ends every attempt: this process starts or stops leading. The next leader resumes them from the cluster. Proofs about holders and
    /// answers not yet taken stay.
    pub fn clear(&mut self, rooms: &mut Rooms<'_>) {
        let Rooms { terms, world, reservations, agenda } = rooms;
        self.fail_requests();
        for id in self.attempts.keys().copied().collect::<Vec<_>>() {
            if let Some(attempt) = self.forget(id) {
                reservations.free(*terms, world, agenda, id, attempt.node);
            }
        }
        self.locks.clear();
        *self = Self {
            since: terms.now.mono,
            locks: std::mem::take(&mut self.locks),
            answers: std::mem::take(&mut self.answers),
            pod_waits: std::mem::take(&mut self.pod_waits),
            lock_waits: std::mem::take(&mut self.lock_waits),
            ..Self::default()
        };
    }

    /// Starts the bind attempt of a reserved pod, which takes over its reservation.
    pub fn start(&mut self, cx: &mut Context<'_>, id: PodId) {
        let Some(reservation) = cx.reservations.take(id) else { return };
        let (time, number) = (cx.agenda.sequence.stamp(cx.terms.now.wall), cx.agenda.sequence.number());
        let (Some(pod), Some(node)) = (cx.world.pod(id), cx.world.node(reservation.node)) else { return };
        let calls = expected_names(pod, node, reservation.wanted.as_deref());
        let exact =
            cx.terms.config.lock_mode == LockMode::Auto && node.needs_no_lock(&pod.facts.handoff.scheduler_name);
        let resumed = cx.reservations.unpin(id) == Some(reservation.node);
        // The leader before may still bind the pod under its lock: that Binding is then known as this one.
        let time = match &node.lock.read {
            LockRead::Held { value, .. } if resumed => value.time,
            _ => time,
        };
        let attempt = BindAttempt {
            pod: Arc::new(pod.facts.handoff.pod.clone()),
            node: reservation.node,
            node_name: (*node.name).into(),
            time,
            locks: !calls.is_empty() && !exact,
            calls,
            annotations: reservation.annotations,
            commit: reservation.commit,
            phase: BindPhase::Volumes { again: Duration::ZERO, requested: Requested::default() },
            lock_value: resumed.then(|| node.lock.read.raw().map(Into::into)).flatten(),
            // Members of a commit go before other pods of their priority.
            turn: (-2 * i64::from(pod.facts.spec.priority) - i64::from(reservation.commit.is_some()), number, id),
            since: cx.terms.now.mono,
            may_arrive: resumed.then(|| cx.terms.now.mono + cx.terms.config.abandoned),
            trouble: Trouble::default(),
            cancelled: None,
        };
        cx.reporter.binding(id);
        self.attempts.insert(id, attempt);
        self.preparing.extend((reservation.since < cx.terms.now.mono).then_some(id));
        self.prepare(cx, id);
    }

    /// Runs the PreBind rules; when all are satisfied, the pod is queued for its lock or bound.
    fn prepare(&mut self, cx: &mut Context<'_>, id: PodId) {
        let is_here = |attempt: &&BindAttempt| matches!(attempt.phase, BindPhase::Volumes { .. });
        let Some(attempt) = self.attempts.get(&id).filter(is_here) else { return };
        let Some(pod) = cx.world.pod(id) else { return };
        let (node, since, now) = (attempt.node, attempt.since, cx.terms.now.mono);
        let mut wait: Option<Duration> = None;
        let mut requested = Effects::new();
        for rule in cx.terms.rules.enabled().pre_bind() {
            match rule.pre_bind(cx.terms.view(cx.world), pod, node, since, &mut requested) {
                Outcome::Fit => {}
                Outcome::WaitUntil(at, _) => wait = Some(wait.map_or(at, |wait| wait.min(at))),
                Outcome::Unfit(no) | Outcome::Never(no) => return self.give_up(cx, id, no.text.into_owned()),
                Outcome::Fault(text) => return self.give_up(cx, id, text.into_owned()),
            }
        }
        let Some(attempt) = self.attempts.get_mut(&id) else { return };
        let BindPhase::Volumes { again, requested: under_way } = &mut attempt.phase else { return };
        cx.agenda.effects.extend(under_way.add(requested, now));
        if let Some(at) = wait {
            // At least a millisecond has to pass, so that the rules do not run in a loop.
            *again = at.max(now + Duration::from_millis(1));
            cx.agenda.timers.set(*again, Timer::BindAttempt(id));
            self.preparing.insert(id);
            return;
        }
        let waited = self.preparing.remove(&id);
        match attempt.commit {
            None if waited => self.proceed(cx, id),
            None => self.line_up(cx, id),
            // No member of a commit is locked for before the volumes of all are ready.
            Some(commit) => cx.agenda.steps.push(Step::Bind(BindEvent::Prepared(id, commit))),
        }
    }

    /// Runs the PreBind rules of every attempt that waits for them: a volume changed.
    pub fn prepare_all(&mut self, cx: &mut Context<'_>) {
        for id in self.preparing.clone() {
            self.prepare(cx, id);
        }
    }

    /// Goes on with an attempt that has waited for its volumes, or for those of others. One that takes a lock is judged again when it does.
    pub fn proceed(&mut self, cx: &mut Context<'_>, id: PodId) {
        let unlocked = |of: &&BindAttempt| !of.locks && matches!(of.phase, BindPhase::Volumes { .. });
        match self.attempts.get(&id).filter(unlocked).and_then(|attempt| attempt.outdated(cx.world)) {
            Some(why) => self.cancel(cx, id, Cancel::Requeue(why)),
            None => self.line_up(cx, id),
        }
    }

    /// Queues a prepared attempt for its lock, or binds it if it needs none.
    fn line_up(&mut self, cx: &mut Context<'_>, id: PodId) {
        let is_here = |attempt: &&mut BindAttempt| matches!(attempt.phase, BindPhase::Volumes { .. });
        let Some(attempt) = self.attempts.get_mut(&id).filter(is_here) else { return };
        attempt.phase = BindPhase::Queue { since: cx.terms.now.mono, not_before: Duration::ZERO };
        let (node, locks, turn) = (attempt.node, attempt.locks, attempt.turn);
        if locks {
            self.queues.entry(node).or_default().waiting.insert(turn);
            self.advance(cx, node);
            self.watch_queue(cx.terms, cx.agenda, node);
        } else {
            self.bind(cx.agenda, id);
        }
    }

    fn ticket(&mut self, agenda: &mut Agenda, id: PodId) -> Ticket {
        let ticket = Ticket(agenda.sequence.number());
        self.tickets.insert(ticket, id);
        ticket
    }

    /// Lets the first pod of a node's lock queue take the lock, if it may.
    pub fn advance(&mut self, cx: &mut Context<'_>, node_id: NodeId) {
        while cx.terms.leading {
            let Some(id) = self.next_in_queue(cx.terms.scene(cx.world), node_id) else { return };
            let Some(attempt) = self.attempts.get(&id) else { return };
            if let Some(why) = attempt.outdated(cx.world) {
                self.cancel(cx, id, Cancel::Requeue(why));
                continue;
            }
            if attempt.phase.due().is_none_or(|at| at > cx.terms.now.mono) {
                return;
            }
            let Some(node) = cx.world.node(node_id) else { return };
            if node.lock.read.raw().is_some_and(|raw| self.locks.releases.contains_key(&(node_id, raw.into()))) {
                return;
            }
            if let Some((holder, raw)) = self.unknown_outcome(cx.world, node) {
                self.read_holder(cx.terms, cx.agenda, &raw, holder, node_id);
                return;
            }
            let claim = attempt.claim();
            let written = node.lock.read.raw().is_some_and(|raw| attempt.lock_value.as_deref() == Some(raw));
            // A value that this attempt wrote may name no holder, and the answer to the write may be lost. A value that names the pod
            // may be older than the attempt: the bind then uses the time of that lock.
            let intent = if written {
                Intent::Own { time: attempt.time }
            } else {
                intent(cx.terms.scene(cx.world), node, &claim)
            };
            match intent {
                Intent::Set => self.lock(cx.terms, cx.agenda, id, None),
                Intent::Own { time } => {
                    let raw = node.lock.read.raw().map(Into::into);
                    self.make_head(id);
                    if let Some(attempt) = self.attempts.get_mut(&id) {
                        attempt.time = time;
                        attempt.lock_value = raw;
                        attempt.may_arrive = Some(cx.terms.now.mono + cx.terms.config.abandoned);
                    }
                    self.bind(cx.agenda, id);
                }
                Intent::TakeOver { old, reason } => {
                    if let Some(holder) = self.unproven(&node.lock.read, reason) {
                        self.read_holder(cx.terms, cx.agenda, &old, holder, node_id);
                        return;
                    }
                    self.lock(cx.terms, cx.agenda, id, Some(old));
                }
                Intent::Wait { recheck, .. } => {
                    if let Some(attempt) = self.attempts.get_mut(&id) {
                        attempt.trouble.is_past();
                    }
                    if let Some(at) = recheck {
                        cx.agenda.timers.set(at, Timer::Node(node_id));
                    }
                }
            }
            return;
        }
    }

    /// The next attempt of a node's queue: one that already holds the lock (a bind that is resumed), else the first one.
    fn next_in_queue(&self, scene: Scene<'_>, node_id: NodeId) -> Option<PodId> {
        let queue = self.queues.get(&node_id).filter(|queue| queue.head.is_none())?;
        let &(_, _, first) = queue.waiting.first()?;
        let raw = scene.world.node(node_id)?.lock.read.raw();
        let wrote = |id: &PodId| self.attempts.get(id).is_some_and(|attempt| attempt.lock_value.as_deref() == raw);
        if raw.is_some()
            && let Some((.., writer)) = queue.waiting.iter().find(|(.., id)| wrote(id))
        {
            return Some(*writer);
        }
        let holder = match scene.world.holder(scene.world.node(node_id)?, scene.terms.now.wall) {
            Some(HolderState::Unbound(pod)) => scene.world.pod_id(&pod.uid),
            _ => None,
        };
        let waits = |id: &PodId| self.attempts.get(id).is_some_and(|attempt| queue.waiting.contains(&attempt.turn));
        Some(holder.filter(waits).unwrap_or(first))
    }

    fn make_head(&mut self, id: PodId) {
        let Some(attempt) = self.attempts.get(&id) else { return };
        if let Some(queue) = self.queues.get_mut(&attempt.node) {
            queue.waiting.remove(&attempt.turn);
            queue.head = Some(id);
        }
    }

    fn lock(&mut self, terms: Terms<'_>, agenda: &mut Agenda, id: PodId, old: Option<Box<str>>) {
        self.make_head(id);
        let ticket = self.ticket(agenda, id);
        let format = terms.config.lock_format;
        let Some(attempt) = self.attempts.get_mut(&id) else { return };
        let new: Box<str> = attempt.claim().value(format).into();
        attempt.phase = BindPhase::Lock { ticket, since: attempt.queued_since().unwrap_or(terms.now.mono) };
        attempt.lock_value = Some(new.clone());
        agenda.effects.push(Effect::Lock { ticket, node: (*attempt.node_name).into(), old, new });
    }

    /// Names a commit of the group in Bindings that are still to come: the gang names those whose Binding was never requested.
    pub fn restate_commit(&mut self, pods: &[PodId], committed: &str) {
        for id in pods {
            if let Some(attempt) = self.attempts.get_mut(id) {
                attempt.annotations.set(key::GANG_COMMITTED, committed.to_owned());
            }
        }
    }

    /// Posts the Binding.
    fn bind(&mut self, agenda: &mut Agenda, id: PodId) {
        let ticket = self.ticket(agenda, id);
        let Some(attempt) = self.attempts.get_mut(&id) else { return };
        attempt.phase = BindPhase::Post(ticket);
        if let Some(commit) = attempt.commit {
            // Before what else this call has left: its Binding is on its way.
            agenda.steps.insert(0, Step::Bind(BindEvent::Requested(id, commit)));
        }
        attempt.annotations.set(key::BIND_TIMESTAMP, print_bind_timestamp(attempt.time));
        agenda.effects.push(Effect::Bind {
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
        let ours = pod.node() == Some(attempt.node) && stamp == Some(print_bind_timestamp(attempt.time).as_str());
        if ours {
            self.bound(cx, id);
        } else {
            // Another scheduler was faster; its Binding counts.
            self.fail_request(id, "another scheduler has bound the pod");
            self.end(cx, id);
        }
    }

    /// Completes an attempt whose pod is bound by us.
    fn bound(&mut self, cx: &mut Context<'_>, id: PodId) {
        let Some(attempt) = self.forget(id) else { return };
        cx.reporter.forget(id);
        if let Some(commit) = attempt.commit {
            cx.agenda.steps.push(Step::Bind(BindEvent::Bound(id, commit)));
        }
        cx.agenda.stats.bound += 1;
        cx.agenda.queue.remove(id);
        // The scheduler that requested the bind writes the event itself.
        if !self.answer(id, BindVerdict::Bound) {
            let message = format!("Successfully assigned {} to {}", attempt.pod.key, attempt.node_name);
            cx.agenda.event(cx.world, id, false, EventReason::Scheduled, message);
        }
        if let Some(pod) = cx.world.pod(id) {
            let waited = cx.terms.now.wall.duration_since(pod.facts.handoff.created);
            self.pod_waits.push(Duration::try_from(waited).unwrap_or_default());
        }
        if let Some(raw) = attempt.lock_value.filter(|_| !attempt.locks) {
            // The kubelet calls for no device of this pod, so the node daemon does not release the lock.
            self.release_lock(cx.world, cx.agenda, attempt.node, &raw, ReleaseReason::NoCall);
        }
        cx.agenda.wake(Wake::POD_PLACED);
        self.advance(cx, attempt.node);
    }

    /// Ends an attempt whose pod cannot be bound by us any more, and releases its lock and its room.
    fn end(&mut self, cx: &mut Context<'_>, id: PodId) {
        if let Some(commit) = self.end_quietly(cx, id) {
            cx.agenda.steps.push(Step::Bind(BindEvent::Ended(id, commit)));
        }
    }

    /// [`Binder::end`] without an event; returns the pod's commit.
    fn end_quietly(&mut self, cx: &mut Context<'_>, id: PodId) -> Option<u64> {
        let node = self.attempts.get(&id)?.node;
        self.fail_request(id, "the pod is gone or changed while it was being bound");
        let commit = self.withdraw(&mut cx.rooms(), id);
        self.advance(cx, node);
        commit
    }

    /// Removes an attempt and releases its lock and its room; returns the pod's commit.
    pub fn withdraw(&mut self, rooms: &mut Rooms<'_>, id: PodId) -> Option<u64> {
        let Rooms { terms, world, reservations, agenda } = rooms;
        let attempt = self.forget(id)?;
        if let Some(raw) = attempt.lock_value {
            self.release_lock(world, agenda, attempt.node, &raw, ReleaseReason::BindFailed);
        }
        reservations.free(*terms, world, agenda, id, attempt.node);
        attempt.commit
    }

    /// Ends an attempt whose commit is void; its gang queues the pod again. One whose Binding may still be made goes on by itself.
    pub fn take_back(&mut self, cx: &mut Context<'_>, id: PodId) {
        let now = cx.terms.now.mono;
        match self.attempts.get_mut(&id).filter(|attempt| attempt.may_arrive(now)) {
            Some(attempt) => {
                attempt.commit = None;
                self.cancel(cx, id, Cancel::Requeue("its gang is decided again".to_owned()));
            }
            None => _ = self.withdraw(&mut cx.rooms(), id),
        }
    }

    /// Ends an attempt after a final failure, once no Binding of it can still be made; the pod is queued again.
    fn give_up(&mut self, cx: &mut Context<'_>, id: PodId, why: String) {
        if self.stays(cx.terms, cx.agenda, id, Some(&why)) {
            return self.note_trouble(id, &why);
        }
        cx.agenda.stats.bind_failures += 1;
        let requested = self.fail_request(id, &why);
        let commit = self.end_quietly(cx, id);
        cx.agenda.steps.push(Step::Bind(BindEvent::Failed { pod: id, commit, why, requested }));
    }

    /// Ends an attempt as soon as no request is under way for it.
    pub fn cancel(&mut self, cx: &mut Context<'_>, id: PodId, why: Cancel) {
        let Some(attempt) = self.attempts.get_mut(&id) else { return };
        match attempt.phase.due() {
            None => attempt.cancelled = Some(why),
            Some(_) => self.end_by(cx, id, why),
        }
    }

    fn end_by(&mut self, cx: &mut Context<'_>, id: PodId, why: Cancel) {
        match why {
            Cancel::PodGone => self.end(cx, id),
            Cancel::Requeue(why) => {
                self.fail_request(id, &why);
                if self.stays(cx.terms, cx.agenda, id, None) {
                    if let Some(attempt) = self.attempts.get_mut(&id) {
                        attempt.cancelled = Some(Cancel::Requeue(why));
                    }
                    return;
                }
                // The pod is not the cause: it is tried at once.
                self.end(cx, id);
                cx.agenda.steps.push(Step::Retry(id));
            }
        }
    }

    /// `true` while a Binding that was posted may still be made: the attempt keeps lock and room, and the pod is read again.
    fn stays(&mut self, terms: Terms<'_>, agenda: &mut Agenda, id: PodId, refused: Option<&str>) -> bool {
        let now = terms.now.mono;
        let Some(attempt) = self.attempts.get_mut(&id).filter(|attempt| attempt.may_arrive(now)) else { return false };
        let again = attempt.may_arrive.map_or(now, |until| until.min(now + terms.config.retry.1));
        if let Some(queue) = self.queues.get_mut(&attempt.node)
            && queue.waiting.remove(&attempt.turn)
        {
            queue.head = queue.head.or(Some(id));
        }
        attempt.phase = BindPhase::ConfirmAgain(again, refused.map(str::to_owned));
        agenda.timers.set(again, Timer::BindAttempt(id));
        true
    }

    /// Removes an attempt from every table; its room stays taken in the world.
    fn forget(&mut self, id: PodId) -> Option<BindAttempt> {
        let attempt = self.attempts.remove(&id)?;
        if let BindPhase::Lock { ticket, .. } | BindPhase::Post(ticket) = attempt.phase {
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

    /// Pauses an attempt after a transient failure, in this phase. `false` when failures have lasted too long.
    fn pause(
        &mut self,
        terms: Terms<'_>,
        agenda: &mut Agenda,
        id: PodId,
        at_least: Option<Duration>,
        phase: impl FnOnce(Duration) -> BindPhase,
    ) -> bool {
        let Some(attempt) = self.attempts.get_mut(&id) else { return false };
        let Some(until) = attempt.trouble.pause(terms.now.mono, terms.config.retry, at_least) else {
            return false;
        };
        attempt.phase = phase(until);
        agenda.timers.set(until, Timer::BindAttempt(id));
        true
    }

    fn queue_again(&mut self, terms: Terms<'_>, agenda: &mut Agenda, id: PodId) {
        let Some(attempt) = self.attempts.get(&id) else { return };
        let queue = self.queues.entry(attempt.node).or_default();
        queue.head = None;
        queue.waiting.insert(attempt.turn);
        self.watch_queue(terms, agenda, attempt.node);
    }

    /// Continues a paused attempt.
    pub fn resume(&mut self, cx: &mut Context<'_>, id: PodId) {
        let now = cx.terms.now.mono;
        let Some(attempt) = self.attempts.get_mut(&id) else { return };
        if attempt.phase.due().is_none_or(|at| at > now) {
            return;
        }
        match &mut attempt.phase {
            BindPhase::Volumes { .. } => self.prepare(cx, id),
            BindPhase::Queue { .. } => {
                let node = attempt.node;
                self.advance(cx, node);
            }
            BindPhase::PostAgain(_) => self.bind(cx.agenda, id),
            BindPhase::ConfirmAgain(_, refused) => {
                let refused = refused.take();
                self.read(cx.agenda, id, refused);
            }
            BindPhase::Lock { .. } | BindPhase::Post(_) | BindPhase::Confirm(_) => {}
        }
    }

    /// Queues the pods again that wait on a node for their volumes or its lock after a decision that is void now, the last in line first:
    /// those before it may have its devices then. A Binding that was posted may still arrive: its pod keeps its lock and its devices.
    pub fn requeue_outdated(&mut self, cx: &mut Context<'_>, node: NodeId) {
        let waits = |attempt: &BindAttempt| {
            matches!(attempt.phase, BindPhase::Volumes { .. } | BindPhase::Queue { .. }) && attempt.may_arrive.is_none()
        };
        let here = self.attempts.values().filter(|attempt| attempt.node == node && waits(attempt));
        let mut turns: Vec<Turn> = here.map(|attempt| attempt.turn).collect();
        turns.sort_unstable();
        for (.., id) in turns.into_iter().rev() {
            if let Some(attempt) = self.attempts.get(&id).filter(|attempt| waits(attempt))
                && let Some(why) = attempt.outdated(cx.world)
            {
                self.cancel(cx, id, Cancel::Requeue(why));
            }
        }
    }

    /// The answer to a write of a lock.
    pub fn lock_answered(&mut self, cx: &mut Context<'_>, ticket: Ticket, result: LockResult) {
        let Some(id) = self.tickets.remove(&ticket) else { return };
        let Some(attempt) = self.attempts.get_mut(&id) else { return };
        let node = attempt.node;
        let BindPhase::Lock { since, .. } = attempt.phase else { return };
        // Unless it gets further, it waits for the lock as before.
        attempt.phase = BindPhase::Queue { since, not_before: Duration::ZERO };
        let again = |not_before| BindPhase::Queue { since, not_before };
        match result {
            LockResult::Done => {
                let value = attempt.lock_value.clone();
                attempt.trouble = Trouble::default();
                self.lock_waits.push(cx.terms.now.mono.saturating_sub(since));
                cx.world.observe_lock(node, LockRead::parse(value.as_deref()), cx.terms.now.mono);
                // The write may have been late: locks of another leader may have come and gone since it was decided.
                if let Some(attempt) = self.attempts.get_mut(&id)
                    && let Some(why) = attempt.outdated(cx.world)
                {
                    attempt.cancelled.get_or_insert(Cancel::Requeue(why));
                }
                if !self.ended_by_cancel(cx, id) {
                    self.bind(cx.agenda, id);
                }
            }
            LockResult::Contended(read) => {
                cx.agenda.stats.contended += 1;
                if read.raw() != attempt.lock_value.as_deref() {
                    attempt.lock_value = None;
                }
                let free = read == LockRead::Free;
                cx.world.observe_lock(node, read, cx.terms.now.mono);
                if self.ended_by_cancel(cx, id) {
                    return;
                }
                // The other lock is gone already: a pause avoids a loop of conflicts.
                let paused = free && self.pause(cx.terms, cx.agenda, id, None, again);
                self.queue_again(cx.terms, cx.agenda, id);
                if !paused {
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
                if self.ended_by_cancel(cx, id) {
                    return;
                }
                if self.pause(cx.terms, cx.agenda, id, after, again) {
                    self.queue_again(cx.terms, cx.agenda, id);
                } else {
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
                self.end(cx, id);
                // Usually the deletion is on its way; if the watch still shows the pod later, it is tried again.
                cx.agenda.steps.push(Step::Fail(id));
            }
            BindResult::Conflict(_) => self.read(cx.agenda, id, None),
            BindResult::Refused(why) if attempt.may_arrive.is_some() => self.read(cx.agenda, id, Some(why)),
            BindResult::Refused(why) => {
                if !self.ended_by_cancel(cx, id) {
                    self.give_up(cx, id, why);
                }
            }
            BindResult::Unknown(why, after) => {
                let gone = attempt.cancelled.is_some();
                attempt.may_arrive = Some(cx.terms.now.mono + cx.terms.config.abandoned);
                self.note_trouble(id, &why);
                // The pod may be bound although the answer is lost: posting again cannot bind it twice, and a read shows it in the end.
                if gone || !self.pause(cx.terms, cx.agenda, id, after, BindPhase::PostAgain) {
                    self.read(cx.agenda, id, None);
                }
            }
        }
    }

    fn read(&mut self, agenda: &mut Agenda, id: PodId, refused: Option<String>) {
        let Some(attempt) = self.attempts.get_mut(&id) else { return };
        attempt.phase = BindPhase::Confirm(refused);
        agenda.effects.push(Effect::ReadPod { pod: attempt.pod.key.clone() });
    }

    fn reading(&self, key: &PodKey) -> Option<PodId> {
        let reading = |(_, attempt): &(&PodId, &BindAttempt)| {
            attempt.pod.key == *key && matches!(attempt.phase, BindPhase::Confirm(_))
        };
        self.attempts.iter().find(reading).map(|(id, _)| *id)
    }

    /// A pod could not be read: it may be bound, so neither lock nor room is released.
    pub fn read_failed(&mut self, terms: Terms<'_>, agenda: &mut Agenda, key: &PodKey) {
        let Some(id) = self.reading(key) else { return };
        if let Some(attempt) = self.attempts.get_mut(&id)
            && let BindPhase::Confirm(refused) = &mut attempt.phase
        {
            let again = terms.now.mono + Duration::from_secs(1);
            attempt.phase = BindPhase::ConfirmAgain(again, refused.take());
            agenda.timers.set(again, Timer::BindAttempt(id));
        }
    }

    /// A live read of `key` found no pod, or one with this uid, `true` when it is being deleted. The world has it as read, where the
    /// watch shows it.
    pub fn read_done(&mut self, cx: &mut Context<'_>, key: &PodKey, found: Option<(&PodUid, bool)>) {
        let reading = self.reading(key);
        self.prove(cx, key, found.map(|(uid, _)| uid));
        let Some((id, attempt)) = reading.and_then(|id| Some((id, self.attempts.get_mut(&id)?))) else { return };
        let BindPhase::Confirm(refused) = &mut attempt.phase else { return };
        let refused = refused.take();
        if !found.is_some_and(|(uid, deleting)| attempt.pod.uid == *uid && !deleting) {
            attempt.cancelled = Some(Cancel::PodGone);
        }
        if self.ended_by_cancel(cx, id) {
            return;
        }
        if let Some(why) = refused {
            self.give_up(cx, id, why);
        } else if !self.pause(cx.terms, cx.agenda, id, None, BindPhase::PostAgain) {
            self.give_up(cx, id, "the Binding was not made in time".to_owned());
        }
    }

    fn ended_by_cancel(&mut self, cx: &mut Context<'_>, id: PodId) -> bool {
        let Some(why) = self.attempts.get_mut(&id).and_then(|attempt| attempt.cancelled.take()) else { return false };
        self.end_by(cx, id, why);
        true
    }
}

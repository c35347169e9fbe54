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
//! | `ConfirmAgain` | a pause | `Confirm`: neither room nor lock is given back while a Binding may arrive |
//!
//! A Binding whose answer is lost may be made until `BindAttempt::may_arrive`: until then its room and its lock stay.
//! A watch or a read that shows the pod bound ends an attempt in every phase (`seen_bound`). A pod that is gone ends it as soon as no request is under way.

mod answers;
mod attempt;
mod end;
mod intent;
mod lock_queue;
mod locks;
mod requests;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use crate::lock::{HolderState, Intent, LockMode, ReleaseReason};
use crate::world::{NodeId, PodId};
use baton_contract::{LockRead, key, print_bind_timestamp};

use crate::core::agenda::{Agenda, BindEvent, Scene, Step, Terms};
use crate::core::context::Context;
use crate::core::effect::{Effect, Effects, Ticket};
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
        match self.attempts.get(&id).filter(unlocked).and_then(|attempt| attempt.outdated(cx.terms.scene(cx.world))) {
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
            if let Some(why) = attempt.outdated(cx.terms.scene(cx.world)) {
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
}

//! What every owner works with: the facts, the owners below it, and the consequences for the others.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;

use crate::decide::world::gangs::GroupId;
use crate::decide::world::{NodeId, Pod, PodId, Wake, World};

use super::effect::{Effect, Effects};
use super::preemption::Preemption;
use super::queue::Queue;
use super::reporter::Reporter;
use super::reservations::Reservations;
use super::rules::{Plugins, View};
use super::select::choose::{Choice, choose};
use super::select::index::Index;
use super::settings::{Config, Search, Stats};
use super::timers::{Moment, Timers};

/// One call into the scheduler. [`Binder`](super::Binder), [`Gangs`](crate::decide::gang::Gangs) and
/// [`TyJobs`](crate::decide::tyjob::TyJobs) stand above it: they are lent it and cannot reach each other; what one of them
/// means for another is a [`Step`].
pub struct Context<'a> {
    /// The time of the call.
    pub now: Moment,
    /// `true` while this process leads.
    pub leading: bool,
    /// Settings.
    pub config: &'a Config,
    /// Enabled rules.
    pub rules: &'a Plugins,
    /// Facts and accounts.
    pub world: &'a mut World,
    /// Groups and single pods that wait.
    pub queue: &'a mut Queue,
    /// Verdicts kept by pod shape.
    pub index: &'a mut Index,
    /// What happens later.
    pub timers: &'a mut Timers,
    /// What was written into pods' conditions.
    pub reporter: &'a mut Reporter,
    /// Room that is held for pods that are not being bound yet.
    pub reservations: &'a mut Reservations,
    /// Nominated pods.
    pub preemption: &'a mut Preemption,
    /// Numbers and bind times that are used once.
    pub sequence: &'a mut Sequence,
    /// Counters.
    pub stats: &'a mut Stats,
    /// What is to be done in the cluster.
    pub effects: &'a mut Effects,
    /// What follows for other owners, in order.
    pub steps: &'a mut Vec<Step>,
}

/// A consequence of what one owner did, for another one. The scheduler routes each at once, in order, before anything else is
/// decided.
#[derive(Debug)]
pub enum Step {
    /// A pod that waits is queued, by itself or with its group.
    Enqueue(PodId),
    /// The same, and it is tried at once.
    Retry(PodId),
    /// The same, and it is tried again after a pause.
    Fail(PodId),
    /// A reserved pod asks the Permit rules.
    Permit(PodId),
    /// A pod waits for this reason: condition, and an event unless its gang reports for it.
    Report(PodId, &'static str, Arc<str>),
    /// Room is free: pods, groups and jobs that wait for room are tried.
    RoomFreed(Wake),
    /// Prepared members of a commit go for their locks.
    Proceed(Vec<PodId>),
    /// Members of a commit that is taken back: their bind attempts end.
    Withdraw(Vec<PodId>),
    /// A group was tried: what the attempt left behind is sorted out.
    AfterAttempt(GroupId),
    /// The group of a member that could not be bound rests before it is tried again.
    RestGroup(PodId),
    /// A node holds the lock of a pod of ours that is not being bound.
    HalfBound(NodeId, PodId, Box<str>),
    /// What became of a bind attempt.
    Bind(BindEvent),
}

/// What became of a bind attempt.
#[derive(Debug)]
pub enum BindEvent {
    /// The volumes of this member of a commit are settled.
    Prepared {
        /// The member.
        pod: PodId,
        /// Its commit.
        commit: u64,
    },
    /// The pod is bound by us.
    Bound {
        /// The pod.
        pod: PodId,
        /// Its commit.
        commit: u64,
    },
    /// The attempt ended without a Binding of ours, and its room is free.
    Ended {
        /// The pod.
        pod: PodId,
        /// Its commit.
        commit: u64,
    },
    /// The pod cannot be bound for good; [`BindEvent::Ended`] follows.
    Failed {
        /// The pod.
        pod: PodId,
        /// Its commit, if any.
        commit: Option<u64>,
        /// Why.
        why: String,
        /// Another scheduler asked for the bind and reports the failure itself.
        requested: bool,
    },
}

impl Context<'_> {
    /// What a rule may look at.
    pub fn view(&self) -> View<'_> {
        View { world: self.world, now: self.now.mono }
    }

    /// Chooses a node for a pod of the world, or judges `only` that node; also returns how many nodes were judged.
    pub fn choose(&mut self, id: PodId, only: Option<NodeId>) -> Option<(Choice, u64)> {
        let pod = self.world.pod(id)?;
        let view = View { world: self.world, now: self.now.mono };
        Some(match self.config.search {
            Search::Indexed => self.index.choose(view, self.rules, pod, only),
            Search::Scanning => choose(view, self.rules, pod, only),
        })
    }

    /// Queues a pod that waits, as soon as the present owner is done.
    pub fn enqueue(&mut self, id: PodId) {
        self.steps.push(Step::Enqueue(id));
    }

    /// Wakes what waits for this in the queue.
    pub fn wake(&mut self, wake: Wake) {
        self.queue.wake(wake, self.rules.queue_sort());
    }

    /// Writes an event about a pod.
    pub fn event(&mut self, id: PodId, warning: bool, reason: &'static str, message: String) {
        if let Some(pod) = self.world.pod(id) {
            self.effects.push(Effect::Notice { pod: pod.facts.handoff.pod.clone(), warning, reason, message });
        }
    }

    /// `true` when the pod's scheduler name is one of ours.
    pub fn is_ours(&self, pod: &Pod) -> bool {
        self.config.scheduler_names.contains(&pod.facts.handoff.scheduler_name)
    }
}

/// Numbers and bind times of this process; none is used twice.
#[derive(Debug, Default)]
pub struct Sequence {
    number: u64,
    stamp: Timestamp,
}

impl Sequence {
    /// The next number.
    pub fn number(&mut self) -> u64 {
        self.number += 1;
        self.number
    }

    /// A wall time that no earlier bind of this process has used: `now`, or a nanosecond after the last one.
    pub fn stamp(&mut self, now: Timestamp) -> Timestamp {
        let after = self.stamp.checked_add(Duration::from_nanos(1)).unwrap_or(now);
        self.stamp = now.max(after);
        self.stamp
    }
}

//! What every owner is lent: the terms of the call, the world beside them, and the agenda, to which it adds what is to be done.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;

use crate::lock::Delay;
use crate::world::gangs::GroupId;
use crate::world::{NodeId, Pod, PodId, Wake, World};

use super::effect::{Effect, Effects};
use super::queue::Queue;
use super::rules::{Plugins, View};
use super::settings::{Config, Stats};
use super::silent_nodes::SilentNodes;
use super::timers::{Moment, Timers};
use baton_contract::{ConditionReason, EventReason};

/// Id of a pod that is judged and does not exist yet.
pub const NEW_POD: PodId = PodId(u64::MAX);

/// What holds during one call into the scheduler.
#[derive(Clone, Copy)]
pub struct Terms<'a> {
    /// The time of the call.
    pub now: Moment,
    /// `true` while this process leads.
    pub leading: bool,
    /// Settings.
    pub config: &'a Config,
    /// Enabled rules.
    pub rules: &'a Plugins,
}

impl<'a> Terms<'a> {
    /// What rules read.
    pub fn view(self, world: &'a World) -> View<'a> {
        View { world, now: self.now.mono }
    }

    /// The world beside them.
    pub fn scene(self, world: &'a World) -> Scene<'a> {
        Scene { terms: self, world }
    }

    /// `true` when the pod's scheduler name is one of ours.
    pub fn is_ours(self, pod: &Pod) -> bool {
        self.config.scheduler_names.contains(&pod.facts.handoff.scheduler_name)
    }
}

/// What a decision reads.
#[derive(Clone, Copy)]
pub struct Scene<'a> {
    /// Time, settings and rules.
    pub terms: Terms<'a>,
    /// Facts from watches, and accounts.
    pub world: &'a World,
}

impl<'a> Scene<'a> {
    /// What rules read.
    pub fn view(self) -> View<'a> {
        self.terms.view(self.world)
    }
}

/// What is to be done: by the scheduler, now or later, and by adapters. Every owner adds to it; only the scheduler takes from it.
#[derive(Default)]
pub struct Agenda {
    /// Items that wait to be tried.
    pub queue: Queue,
    /// What happens at a later time.
    pub timers: Timers,
    /// Consequences for other owners, in order.
    pub steps: Vec<Step>,
    /// Requests to the cluster that this call returns.
    pub effects: Effects,
    /// Nodes whose daemon does not serve, as an event has said.
    pub silent: SilentNodes,
    /// Counters.
    pub stats: Stats,
    /// Numbers and bind times that are used once.
    pub sequence: Sequence,
}

impl Agenda {
    /// Queues a waiting pod as soon as the present owner has returned.
    pub fn enqueue(&mut self, id: PodId) {
        self.steps.push(Step::Enqueue(id));
    }

    /// Wakes parked items of the queue that wait for such a change, and jobs after the present call where room is free.
    pub fn wake(&mut self, wake: Wake) {
        self.queue.wake(wake);
        if wake.meets(Wake::POD_FREED) {
            self.steps.push(Step::RoomFreed);
        }
    }

    /// Room is free.
    pub fn room_freed(&mut self) {
        self.wake(Wake::POD_FREED);
    }

    /// Says of pods that were served late how long their node's lock stood.
    pub fn report_late(&mut self, world: &World, served: &[(PodId, Duration)]) {
        for (pod, held) in served.iter().filter(|(_, held)| Delay::of(*held) == Delay::Stuck) {
            let text = format!("has its devices {} s after its node was locked for it", held.as_secs());
            self.event(world, *pod, EventReason::ServedLate, text);
        }
    }

    /// Writes an event about a pod, of type `Normal`.
    pub fn event(&mut self, world: &World, id: PodId, reason: EventReason, message: String) {
        if let Some(pod) = world.pod(id) {
            self.effects.push(Effect::Notice { pod: pod.facts.handoff.pod.clone(), warning: false, reason, message });
        }
    }

    /// Writes an event about a pod, of type `Warning`.
    pub fn warning(&mut self, world: &World, id: PodId, reason: EventReason, message: String) {
        if let Some(pod) = world.pod(id) {
            self.effects.push(Effect::Notice { pod: pod.facts.handoff.pod.clone(), warning: true, reason, message });
        }
    }
}

/// A consequence of what one owner did, for another one. Steps exist because owners do not call each other: the scheduler performs
/// them in order, depth first, as soon as the owner has returned and before the next decision.
#[derive(Debug)]
pub enum Step {
    /// Queue a waiting pod, by itself or with its group.
    Enqueue(PodId),
    /// The same, and try it at once.
    Retry(PodId),
    /// The same, and try it again after a pause.
    Fail(PodId),
    /// Run the Permit rules for a reserved pod, and start its bind attempt if they allow it.
    Permit(PodId),
    /// Report why a pod waits: by its condition, and by an event unless its gang reports for it.
    Report(PodId, ConditionReason, Arc<str>),
    /// Try jobs that wait for room: some is free.
    RoomFreed,
    /// Name a later commit in Bindings that are still to come: their members have counted for it.
    RestateCommit(Vec<PodId>, String),
    /// Queue the prepared members of a commit for their locks.
    Proceed(Vec<PodId>),
    /// End the bind attempts of a commit that is rolled back.
    Withdraw(Vec<PodId>),
    /// Evaluate the last attempt of a group.
    AfterAttempt(GroupId),
    /// Let the group of a member that could not be bound pause.
    BindRefused(PodId),
    /// A node has the lock of a pod of ours without a bind attempt: resume the bind, or release the lock value.
    HalfBound(NodeId, PodId, Box<str>),
    /// A bind attempt has changed.
    Bind(BindEvent),
}

/// A change of a bind attempt that its gang has to know.
#[derive(Debug)]
pub enum BindEvent {
    /// The volumes of this member of this commit are ready.
    Prepared(PodId, u64),
    /// The Binding of this member of this commit is requested: what it says of its commit is final.
    Requested(PodId, u64),
    /// This member of this commit is bound by us.
    Bound(PodId, u64),
    /// The attempt of this member of this commit ended without a Binding of ours, and its room was released.
    Ended(PodId, u64),
    /// The attempt failed for good, and its room was released.
    Failed {
        /// The pod.
        pod: PodId,
        /// Its commit, if any.
        commit: Option<u64>,
        /// Why.
        why: String,
        /// Another scheduler requested the bind and reports the failure itself.
        requested: bool,
    },
}

/// Numbers and bind times of this process; each is used once.
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

//! What a scheduler does: decide, judge the lock, write it, bind, release; look over locks that no bind pursues. The order
//! of steps is `decide::scheduler`'s; every judgement is `decide::lock`'s.

use std::time::Duration;

use baton::contract::{AgentStatus, PodRef};
use baton::decide::lock::{
    AgentLiveness, BoundHolder, GoneReason, HolderState, Intent, LockClaim, LockPolicy, LockView, Lookup,
    ReleaseReason, WaitReason, acquire,
};

use super::coverage::Branch;
use super::machine::Handoff;
use super::properties::Broken;
use super::setup::{NODE_NAMES, Proof, Shape, time_of, wall};
use super::state::{Bound, CONTAINERS, DEVICES, Flight, Life, Lock, PODS, Phase, Scheduler, State, Step};
use super::view::bit;

const EXPIRY: Duration = Duration::from_secs(300);

impl Handoff {
    /// Devices of a node that no live bound pod was assigned.
    pub fn free(&self, state: &State, node: usize, but: usize) -> Vec<u8> {
        let taken = |device: u8| {
            let others = (0..PODS).filter(|pod| *pod != but).map(|pod| (pod, &state.pods[pod]));
            others
                .filter(|(number, pod)| pod.exists() && !pod.ended() && self.setup.shapes[*number] != Shape::Foreign)
                .any(|(_, pod)| pod.bound.is_some_and(|bound| bound.devices.contains(&device)))
        };
        if self.setup.faults.edits > 0 {
            let counted = self.counted(state, node);
            let taken = (0..PODS).filter(|pod| *pod != but).fold(0, |all, pod| all | counted[pod]);
            let here = (0..DEVICES as u8).filter(|device| self.setup.home[usize::from(*device)] == node);
            return here.filter(|device| taken & bit(*device) == 0).collect();
        }
        (0..DEVICES as u8).filter(|device| self.setup.home[usize::from(*device)] == node && !taken(*device)).collect()
    }

    /// A pod leaves the queue with a plan.
    pub fn start(&self, state: &mut State, scheduler: usize, pod: usize, node: usize, devices: [u8; CONTAINERS]) {
        let time = state.fresh_time(pod);
        let is = &mut state.schedulers[scheduler];
        is.queued[pod] = false;
        is.flight = Some(Flight { pod: pod as u8, node: node as u8, devices, time, wrote: false, step: Step::Line });
    }

    /// The intent of a claim on a node's lock, or of a sweep without one.
    pub fn intent(&self, state: &State, node: usize, claim: Option<Lock>) -> Intent {
        let is = &state.nodes[node];
        let now = if is.expired { EXPIRY } else { Duration::from_secs(1) };
        let liveness = self.liveness(state, node, now);
        let alive = match liveness {
            AgentLiveness::Stale => 0,
            AgentLiveness::LiveSince(since) if since == now => 1,
            AgentLiveness::LiveSince(_) => 2,
        };
        let status = self.status(state, node);
        let key = (node, is.lock, is.expired, alive, state.pods, claim, status.unreleased.is_some());
        self.memo.intents.of(key, || {
            let claim = match claim {
                Some(of) => {
                    let pod = self.setup.table.pods[usize::from(of.pod)].pod.clone();
                    LockClaim { pod, time: time_of(of.pod, of.time) }
                }
                None => LockClaim { pod: PodRef::new("", "", ""), time: wall() },
            };
            self.judged(state, node, &claim, &status, (liveness, now))
        })
    }

    fn judged(
        &self,
        state: &State,
        node: usize,
        claim: &LockClaim,
        status: &AgentStatus,
        (mut liveness, mut now): (AgentLiveness, Duration),
    ) -> Intent {
        let read = self.lock_read(state.nodes[node].lock);
        let api = self.api(state);
        let holder = HolderState::of(&read, NODE_NAMES[node], &api, wall()).unwrap_or(HolderState::Unknown);
        let holding = match &holder {
            HolderState::BoundHere(pod) => api.by_key(&pod.key),
            _ => None,
        };
        let bound = holding.map(|pod| BoundHolder::of(&read, pod, Some(status))).unwrap_or_default();
        match self.setup.flaws.without {
            None => {}
            Some(Proof::Watched) => now = EXPIRY,
            Some(Proof::Settled) => liveness = AgentLiveness::LiveSince(Duration::ZERO),
        }
        let view = LockView { read, first_seen: Duration::ZERO, holder, bound };
        acquire(&view, claim, liveness, &LockPolicy::default(), now, wall())
    }

    /// An agent that is up has been so for long enough to have released what it can; one that has not is not settled.
    fn liveness(&self, state: &State, node: usize, now: Duration) -> AgentLiveness {
        let is = &state.nodes[node];
        if !is.agent_up {
            return AgentLiveness::Stale;
        }
        let busy = is.expired && !is.mute && (is.release.is_some() || self.fate(state, node).is_some());
        AgentLiveness::LiveSince(if busy { now } else { Duration::ZERO })
    }

    /// The first in the line looks at the lock.
    pub fn judge(&self, state: &mut State, scheduler: usize) {
        let Some(mut flight) = state.schedulers[scheduler].flight else { return };
        let (pod, node) = (usize::from(flight.pod), usize::from(flight.node));
        if !state.pods[pod].waits() {
            // Gone, being deleted, or bound by another scheduler: the bind attempt ends and its lock goes.
            self.end_flight(state, scheduler);
            return;
        }
        match self.intent(state, node, Some(Lock { pod: flight.pod, time: flight.time })) {
            Intent::Set => {
                flight.step = Step::Write { old: None, proven: true };
                state.schedulers[scheduler].flight = Some(flight);
            }
            Intent::Own { time } => {
                self.hit(Branch::Own);
                flight.time = super::setup::number_of(time).1;
                flight.wrote = true;
                flight.step = Step::Bind;
                state.schedulers[scheduler].flight = Some(flight);
            }
            Intent::TakeOver { old, reason } => {
                self.hit(take_over(reason));
                let old = self.lock_of_text(&old);
                let proven = match reason {
                    ReleaseReason::Unserved => self.is_overdue(state, node),
                    _ => self.may_go(state, node, old),
                };
                flight.step = Step::Write { old: Some(old), proven };
                state.schedulers[scheduler].flight = Some(flight);
            }
            Intent::Wait { reason, .. } => {
                self.hit(match reason {
                    WaitReason::AgentNotSettled(_) => Branch::NotSettled,
                    _ => Branch::Contended,
                });
                self.end_flight(state, scheduler);
            }
        }
    }

    /// The lock is written by compare-and-swap.
    pub fn write(&self, state: &mut State, scheduler: usize, lost: bool) {
        let Some(mut flight) = state.schedulers[scheduler].flight else { return };
        let Step::Write { old, proven } = flight.step else { return };
        let node = usize::from(flight.node);
        let new = Lock { pod: flight.pod, time: flight.time };
        if state.nodes[node].lock == old {
            if old.is_none() {
                self.hit(Branch::Set);
            }
            if let Some(holder) = old.map(|lock| usize::from(lock.pod)) {
                state.pods[holder].overtaken |= state.pods[holder].on(node) && !self.is_served(state, holder);
            }
            Self::grant(state, node, new, proven);
            flight.wrote = true;
            flight.step = if lost { Step::Line } else { Step::Bind };
        } else {
            self.hit(Branch::LockLost);
            flight.step = Step::Line;
        }
        state.schedulers[scheduler].flight = Some(flight);
        if flight.step == Step::Line {
            self.judge(state, scheduler);
        }
    }

    /// Notes a grant: the one before must have been ended by a release, or might be taken over when judged.
    fn grant(state: &mut State, node: usize, new: Lock, proven: bool) {
        let is = &mut state.nodes[node];
        let taken_over = is.lock.is_some() && proven;
        if is.granted.is_some_and(|before| before != new) && !taken_over {
            state.broken |= Broken::Grants.bit();
        }
        (is.lock, is.granted, is.expired) = (Some(new), Some(new), false);
    }

    /// The Binding is posted, with the pod's uid as precondition.
    pub fn bind(&self, state: &mut State, scheduler: usize, lost: bool) {
        let Some(flight) = state.schedulers[scheduler].flight else { return };
        let pod = usize::from(flight.pod);
        let new = Bound { node: flight.node, devices: flight.devices, time: flight.time };
        let is = &mut state.pods[pod];
        if is.waits() {
            is.bound = Some(new);
            // The watch tells every scheduler.
            state.schedulers.iter_mut().for_each(|of| of.queued[pod] = false);
            if !lost {
                state.schedulers[scheduler].flight = None;
            }
        } else if is.exists() && is.bound.is_some_and(|bound| (bound.node, bound.time) == (new.node, new.time)) {
            self.hit(Branch::BindOurs);
            state.schedulers[scheduler].flight = None;
        } else {
            self.hit(if is.exists() { Branch::BindConflict } else { Branch::BindGone });
            self.end_flight(state, scheduler);
        }
    }

    /// A flight ends without a bind: its lock goes, its pod returns to the queue if it still waits.
    fn end_flight(&self, state: &mut State, scheduler: usize) {
        let Some(flight) = state.schedulers[scheduler].flight.take() else { return };
        if flight.wrote {
            let own = Lock { pod: flight.pod, time: flight.time };
            state.schedulers[scheduler].release = Some((flight.node, own));
        }
        let pod = usize::from(flight.pod);
        state.schedulers[scheduler].queued[pod] = state.pods[pod].waits();
    }

    /// A release by compare-and-swap on the value that was judged.
    pub fn release(&self, state: &mut State, scheduler: usize, lost: bool) {
        let Some((node, lock)) = state.schedulers[scheduler].release else { return };
        self.remove(state, usize::from(node), lock);
        if !lost {
            state.schedulers[scheduler].release = None;
        }
    }

    /// Removes a lock value; what else stands there stays, unless the model is to be careless.
    pub fn remove(&self, state: &mut State, node: usize, judged: Lock) {
        let is = &mut state.nodes[node];
        if is.lock == Some(judged) {
            (is.lock, is.expired) = (None, false);
            if state.broken & Broken::Removal.bit() == 0 {
                is.granted = None;
            }
        } else if self.setup.flaws.blind_release && is.lock.is_some() {
            (is.lock, is.expired) = (None, false);
            state.broken |= Broken::Removal.bit();
        } else {
            self.hit(Branch::ReleaseRaced);
        }
    }

    /// What a look at a lock that no bind pursues brings: a scheduler resumes its own half-done bind, or removes a dangling lock.
    pub fn sweep(&self, state: &mut State, scheduler: usize, node: usize) {
        let Some(lock) = state.nodes[node].lock else { return };
        match self.intent(state, node, None) {
            // Nobody needs the lock, and the holder's call may still come.
            Intent::TakeOver { reason: ReleaseReason::Unserved, .. }
            | Intent::Wait { .. }
            | Intent::Set
            | Intent::Own { .. } => {}
            Intent::TakeOver { reason, .. } => {
                self.hit(take_over(reason));
                if !self.may_go(state, node, lock) {
                    state.broken |= Broken::Removal.bit();
                }
                state.schedulers[scheduler].release = Some((node as u8, lock));
            }
        }
    }

    /// The unbound holder of a node's lock, if it is not in flight in this scheduler.
    pub fn half_done(&self, state: &State, scheduler: &Scheduler, node: usize) -> Option<usize> {
        let pod = usize::from(state.nodes[node].lock?.pod);
        let flies = scheduler.flight.is_some_and(|flight| usize::from(flight.pod) == pod);
        (state.pods[pod].waits() && !flies).then_some(pod)
    }

    /// Some scheduler has a flight of this pod.
    pub fn flies(&self, state: &State, pod: usize) -> bool {
        state.schedulers.iter().any(|of| of.flight.is_some_and(|flight| usize::from(flight.pod) == pod))
    }

    /// The lock of a half-done bind goes: the owner's service ends it.
    pub fn abandon(&self, state: &mut State, scheduler: usize, node: usize) {
        let read = self.lock_read(state.nodes[node].lock);
        let holder = HolderState::of(&read, NODE_NAMES[node], &self.api(state), wall());
        if let (Some(HolderState::Unbound(_)), Some(raw)) = (holder, read.raw()) {
            self.hit(Branch::Abandoned);
            state.schedulers[scheduler].release = Some((node as u8, self.lock_of_text(raw)));
        }
    }

    /// A deletion with grace; a pod that is not bound, or has ended, is gone at once.
    pub fn delete(&self, state: &mut State, pod: usize) {
        let is = &mut state.pods[pod];
        is.life = if is.bound.is_none() { Life::Gone } else { Life::Deleting };
        state.schedulers.iter_mut().for_each(|of| of.queued[pod] = false);
    }

    /// Proof, by the truth: no pod will be served under this lock.
    pub fn will_never_be_served(&self, state: &State, node: usize, lock: Lock) -> bool {
        let pod = &state.pods[usize::from(lock.pod)];
        let other_bind = pod.bound.is_some_and(|bound| bound.time != lock.time || usize::from(bound.node) != node);
        let abandoned = pod.bound.is_none() && state.nodes[node].expired;
        !pod.exists() || pod.ended() || pod.life == Life::PastGrace || other_bind || abandoned
    }

    /// Proof, by the truth: no call needs this lock any more.
    fn may_go(&self, state: &State, node: usize, lock: Lock) -> bool {
        let pod = usize::from(lock.pod);
        let started = state.pods[pod].phase == Phase::Running;
        self.will_never_be_served(state, node, lock) || started || self.is_served(state, pod)
    }

    /// By the truth: the holder has had the expiry for its calls, and there is an agent that would have answered.
    fn is_overdue(&self, state: &State, node: usize) -> bool {
        state.nodes[node].expired && state.nodes[node].agent_up
    }

    /// A client that may annotate Nodes writes a lock that names a bound pod: with the pod's own bind time, or with an old one.
    pub fn forge(&self, state: &mut State, node: usize, lock: Lock) {
        self.hit(Branch::Forged);
        let is = &mut state.nodes[node];
        // What was granted before has no lock any more: its pod is on its own, as after a release.
        (is.lock, is.expired, is.granted) = (Some(lock), false, Some(lock));
    }

    /// Every container has an entry in the ledger.
    pub fn is_served(&self, state: &State, pod: usize) -> bool {
        (0..self.setup.kinds(pod).len()).all(|at| state.books[pod].entries[at].is_some_and(|entry| entry.asked > 0))
    }
}

fn take_over(reason: ReleaseReason) -> Branch {
    match reason {
        ReleaseReason::Gone(GoneReason::NotFound) => Branch::TakeOverGone,
        ReleaseReason::Gone(GoneReason::Recreated) => Branch::TakeOverRecreated,
        ReleaseReason::Gone(GoneReason::Terminal) => Branch::TakeOverTerminal,
        ReleaseReason::Gone(GoneReason::Elsewhere) => Branch::TakeOverElsewhere,
        ReleaseReason::Gone(GoneReason::PastGrace) => Branch::TakeOverPastGrace,
        ReleaseReason::Started => Branch::TakeOverStarted,
        ReleaseReason::Served => Branch::TakeOverServed,
        ReleaseReason::Unserved => Branch::TakeOverUnserved,
        _ => Branch::TakeOverUnbound,
    }
}

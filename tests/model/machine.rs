//! The actions of the modelled world, and the stateright model over them.

use baton::decide::handoff::Admission;
use stateright::{Model, Property};

use super::coverage::Branch;
use super::heal::Healer;
use super::properties;
use super::setup::{Setup, Shape};
use super::state::{
    Book, Bound, CONTAINERS, DEVICES, Faults, Kube, Life, Lock, NODES, NONE, Node, OLD, PODS, Phase, Pod, SCHEDULERS,
    Scheduler, State, Step,
};

/// What goes wrong inside a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trouble {
    Nothing,
    /// The ledger is written, the answer does not leave.
    AgentDies,
    /// The answer arrives, the checkpoint is not written.
    KubeletDies,
    /// PodResources answers ResourceExhausted until the budget is spent.
    Throttled,
}

/// One step of one process or person.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    Create { pod: usize },
    Start { scheduler: usize, pod: usize, node: usize, devices: [u8; CONTAINERS], resumed: bool },
    Judge { scheduler: usize },
    Write { scheduler: usize, lost: bool },
    Bind { scheduler: usize, lost: bool },
    Release { scheduler: usize, lost: bool },
    Sweep { scheduler: usize, node: usize },
    Abandon { scheduler: usize, node: usize },
    SchedulerDies { scheduler: usize },
    Delete { pod: usize, force: bool },
    GraceEnds { pod: usize },
    LockAges { node: usize },
    Admit { pod: usize },
    AdmitWithout { pod: usize },
    Call { pod: usize, id: Option<u8>, trouble: Trouble },
    Run { pod: usize },
    Finish { pod: usize },
    Terminate { pod: usize },
    KubeletRestarts { node: usize },
    AgentDies { node: usize },
    AgentStarts { node: usize, lost: bool },
    Unlock { node: usize },
    Unlocked { node: usize, lost: bool },
    Expire { node: usize },
    Forge { node: usize, lock: Lock },
    Edit { pod: usize, to: u8 },
    Mute { node: usize },
}

#[derive(Clone)]
pub struct Handoff {
    pub setup: Setup,
    pub healer: std::sync::Arc<Healer>,
    pub memo: std::sync::Arc<super::memo::Memo>,
}

impl Handoff {
    pub fn new(setup: Setup) -> Self {
        Self { setup, healer: std::sync::Arc::default(), memo: std::sync::Arc::default() }
    }

    pub fn hit(&self, branch: Branch) {
        self.setup.coverage.hit(branch);
    }

    fn initial(&self) -> State {
        let absent = |pod: usize| matches!(self.setup.shapes[pod], Shape::Foreign | Shape::Successor);
        let life = |pod| if absent(pod) { Life::Absent } else { Life::There };
        let queued = std::array::from_fn(|pod| !absent(pod));
        State {
            pods: std::array::from_fn(|pod| Pod::new(life(pod), Phase::Pending)),
            kube: [Kube::default(); PODS],
            books: [Book::default(); PODS],
            schedulers: [Scheduler { queued, ..Scheduler::default() }; SCHEDULERS],
            nodes: [Node { lock: None, expired: false, agent_up: true, mute: false, release: None, granted: None };
                NODES],
            left: self.setup.faults,
            broken: 0,
        }
    }

    fn scheduler_actions(&self, state: &State, scheduler: usize, actions: &mut Vec<Action>) {
        let is = &state.schedulers[scheduler];
        let may_lose = state.left.lost_replies > 0;
        if is.release.is_some() {
            actions.push(Action::Release { scheduler, lost: false });
            if may_lose {
                actions.push(Action::Release { scheduler, lost: true });
            }
        }
        match is.flight.map(|flight| flight.step) {
            None => {
                for pod in (0..PODS).filter(|pod| is.queued[*pod]) {
                    let plans = Self::nodes().flat_map(|node| {
                        let free = self.free(state, node, pod);
                        self.setup.fits(pod, &free).into_iter().map(move |devices| (node, devices))
                    });
                    // First fit, unless the setup asks for every choice.
                    let plans = plans.take(if self.setup.any_fit { usize::MAX } else { 1 });
                    actions.extend(plans.map(|(node, devices)| Action::Start {
                        scheduler,
                        pod,
                        node,
                        devices,
                        resumed: false,
                    }));
                }
            }
            Some(Step::Line) => actions.push(Action::Judge { scheduler }),
            Some(Step::Write { .. }) => {
                actions.push(Action::Write { scheduler, lost: false });
                if may_lose {
                    actions.push(Action::Write { scheduler, lost: true });
                }
            }
            Some(Step::Bind) => {
                actions.push(Action::Bind { scheduler, lost: false });
                if may_lose {
                    actions.push(Action::Bind { scheduler, lost: true });
                }
            }
        }
        if is.release.is_none() {
            for node in (0..NODES).filter(|node| state.nodes[*node].lock.is_some()) {
                actions.push(Action::Sweep { scheduler, node });
                if let Some(pod) = self.half_done(state, is, node) {
                    let resume = self.setup.fits(pod, &self.free(state, node, pod)).first().copied();
                    match resume.filter(|_| is.flight.is_none()) {
                        Some(devices) => actions.push(Action::Start { scheduler, pod, node, devices, resumed: true }),
                        // A value that has stood for 30 s: a flight has ended long before.
                        None if self.setup.impatient || !self.flies(state, pod) => {
                            actions.push(Action::Abandon { scheduler, node });
                        }
                        None => {}
                    }
                }
            }
        }
        if state.left.crashes > 0 && is.flight.is_some_and(|flight| flight.step != Step::Line || flight.wrote) {
            actions.push(Action::SchedulerDies { scheduler });
        }
    }

    fn node_actions(&self, state: &State, node: usize, actions: &mut Vec<Action>) {
        let is = &state.nodes[node];
        let left = &state.left;
        if is.lock.is_some() && !is.expired && left.expiries > 0 {
            actions.push(Action::LockAges { node });
        }
        if left.forgeries > 0 {
            for pod in (0..PODS).filter(|pod| state.pods[*pod].on(node) && state.pods[*pod].exists()) {
                let own = state.pods[pod].bound.map_or(0, |bound| bound.time);
                let locks = [own, OLD].map(|time| Lock { pod: pod as u8, time });
                actions.extend(locks.map(|lock| Action::Forge { node, lock }));
            }
        }
        if left.mutes > 0 && !is.mute {
            actions.push(Action::Mute { node });
        }
        for pod in self.callers(state, node) {
            let Some(at) = self.next_container(state, pod) else { continue };
            let (free, must) = self.available(state, pod, at);
            actions.push(Action::Call { pod, id: None, trouble: Trouble::Nothing });
            let choice = if must.is_empty() { &free } else { &must };
            if is.agent_up {
                for id in choice {
                    actions.push(Action::Call { pod, id: Some(*id), trouble: Trouble::Nothing });
                    if left.throttles > 0 {
                        actions.push(Action::Call { pod, id: Some(*id), trouble: Trouble::Throttled });
                    }
                    if left.crashes > 0 {
                        actions.push(Action::Call { pod, id: Some(*id), trouble: Trouble::AgentDies });
                    }
                    if left.kubelet_restarts > 0 {
                        actions.push(Action::Call { pod, id: Some(*id), trouble: Trouble::KubeletDies });
                    }
                }
            }
        }
        let used = (0..PODS).any(|pod| state.pods[pod].on(node));
        if left.kubelet_restarts > 0 && (0..PODS).any(|pod| state.pods[pod].on(node) && state.kube[pod].active) {
            actions.push(Action::KubeletRestarts { node });
        }
        if is.agent_up {
            if left.crashes > 0 && used {
                actions.push(Action::AgentDies { node });
            }
            if is.mute {
                // Every try to remove the lock is denied.
            } else if is.release.is_some() {
                actions.push(Action::Unlocked { node, lost: false });
                if left.lost_replies > 0 {
                    actions.push(Action::Unlocked { node, lost: true });
                }
            } else if is.lock.is_some() {
                actions.push(Action::Unlock { node });
            }
            if self.setup.flaws.replay_by_ids && self.can_expire(state, node) {
                actions.push(Action::Expire { node });
            }
        } else {
            actions.push(Action::AgentStarts { node, lost: false });
            if left.lost_ledgers > 0 {
                actions.push(Action::AgentStarts { node, lost: true });
            }
        }
    }

    fn pod_actions(&self, state: &State, pod: usize, actions: &mut Vec<Action>) {
        let is = &state.pods[pod];
        if is.life == Life::Absent {
            if self.setup.shapes[pod] == Shape::Foreign || state.pods[1].life == Life::Gone {
                actions.push(Action::Create { pod });
            }
            return;
        }
        if self.can_admit(state, pod) {
            if self.next_container(state, pod).is_none() || state.kube[pod].without {
                actions.push(Action::Admit { pod });
            }
            let agent_up = is.bound.is_some_and(|bound| state.nodes[usize::from(bound.node)].agent_up);
            if !agent_up && state.kube[pod].ids[0].is_none() {
                actions.push(Action::AdmitWithout { pod });
            }
        }
        if is.life == Life::There && !is.ended() && state.left.deletions > 0 {
            actions.push(Action::Delete { pod, force: false });
            if is.bound.is_some() {
                actions.push(Action::Delete { pod, force: true });
            }
        }
        let one = |bound: Bound| bound.devices[1] == NONE && self.setup.shapes[pod] != Shape::Foreign;
        if let Some(bound) = is.bound.filter(|bound| state.left.edits > 0 && is.exists() && !is.ended() && one(*bound))
        {
            let home = |device: &u8| self.setup.home[usize::from(*device)] == usize::from(bound.node);
            let others = (0..DEVICES as u8).filter(|to| home(to) && *to != is.edited.unwrap_or(bound.devices[0]));
            actions.extend(others.map(|to| Action::Edit { pod, to }));
        }
        if is.life == Life::Deleting {
            actions.push(Action::GraceEnds { pod });
        }
        if self.setup.runs && self.can_run(state, pod) {
            actions.push(Action::Run { pod });
        }
        let admitted = if self.setup.runs { is.phase == Phase::Running } else { self.can_run(state, pod) };
        if admitted && state.kube[pod].active && is.life == Life::There {
            actions.push(Action::Finish { pod });
        }
        if self.can_terminate(state, pod) {
            actions.push(Action::Terminate { pod });
        }
    }

    /// What the action makes of the state; faults are counted by the caller.
    pub fn apply(&self, state: &mut State, action: Action) {
        match action {
            Action::Create { pod } => {
                state.pods[pod].life = Life::There;
                if self.setup.shapes[pod] == Shape::Foreign {
                    let bound = super::state::Bound { node: 0, devices: [0, super::state::NONE], time: 0 };
                    state.pods[pod].bound = Some(bound);
                } else {
                    state.schedulers.iter_mut().for_each(|of| of.queued[pod] = true);
                }
            }
            Action::Start { scheduler, pod, node, devices, resumed } => {
                if resumed {
                    self.hit(Branch::Resumed);
                }
                self.start(state, scheduler, pod, node, devices);
                self.judge(state, scheduler);
            }
            Action::Judge { scheduler } => self.judge(state, scheduler),
            Action::Write { scheduler, lost } => self.write(state, scheduler, lost),
            Action::Bind { scheduler, lost } => self.bind(state, scheduler, lost),
            Action::Release { scheduler, lost } => self.release(state, scheduler, lost),
            Action::Sweep { scheduler, node } => self.sweep(state, scheduler, node),
            Action::Abandon { scheduler, node } => self.abandon(state, scheduler, node),
            Action::SchedulerDies { scheduler } => {
                self.hit(Branch::SchedulerCrash);
                let queued = std::array::from_fn(|pod| state.pods[pod].waits());
                state.schedulers[scheduler] = Scheduler { queued, ..Scheduler::default() };
            }
            Action::Delete { pod, force } => {
                if force {
                    self.hit(Branch::ForceDeleted);
                    state.pods[pod].life = Life::Gone;
                    state.schedulers.iter_mut().for_each(|of| of.queued[pod] = false);
                } else {
                    self.hit(Branch::Deleted);
                    self.delete(state, pod);
                }
            }
            Action::GraceEnds { pod } => state.pods[pod].life = Life::PastGrace,
            Action::LockAges { node } => {
                self.hit(Branch::LockExpired);
                state.nodes[node].expired = true;
            }
            Action::Admit { pod } => Self::admit(state, pod),
            Action::AdmitWithout { pod } => self.admit_without(state, pod),
            Action::Call { pod, id, trouble } => {
                if trouble == Trouble::Throttled {
                    self.hit(Branch::Throttled);
                }
                self.call(state, pod, id, trouble);
            }
            Action::Run { pod } => state.pods[pod].phase = Phase::Running,
            Action::Finish { pod } => self.finish(state, pod),
            Action::Terminate { pod } => self.terminate(state, pod),
            Action::KubeletRestarts { node } => {
                self.hit(Branch::KubeletRestart);
                self.restart_kubelet(state, node);
            }
            Action::AgentDies { node } => {
                self.hit(Branch::AgentCrash);
                self.agent_dies(state, node);
            }
            Action::AgentStarts { node, lost } => self.agent_starts(state, node, lost),
            Action::Unlock { node } => self.unlock(state, node),
            Action::Unlocked { node, lost } => {
                if let Some(lock) = state.nodes[node].release {
                    self.remove(state, node, lock);
                    if !lost {
                        state.nodes[node].release = None;
                    }
                }
            }
            Action::Expire { node } => self.expire(state, node),
            Action::Forge { node, lock } => self.forge(state, node, lock),
            Action::Edit { pod, to } => {
                self.hit(Branch::Edited);
                state.pods[pod].edited = Some(to);
                state.pods[pod].named |= super::view::bit(to);
            }
            Action::Mute { node } => {
                self.hit(Branch::Muted);
                (state.nodes[node].mute, state.nodes[node].release) = (true, None);
            }
        }
    }

    /// Forgets what can make no difference any more, so that states which differ only in that are one.
    fn tidy(&self, state: &mut State) {
        if !self.setup.flaws.replay_by_ids {
            // Every decision passes over entries that hold nothing, so when they go makes no difference.
            for node in 0..NODES {
                if state.nodes[node].agent_up && self.can_expire(state, node) {
                    self.expire(state, node);
                }
            }
        }
        for pod in 0..PODS {
            let init = self.setup.shapes[pod] == Shape::Init;
            // A pod that asks for nothing more, or is not listed, is no candidate, whether passed by or not.
            let may_call = state.kube[pod].active && self.next_container(state, pod).is_some();
            state.books[pod].admission =
                state.books[pod].admission.filter(|how| may_call || *how == Admission::Unusable);
            // Read only where the listing does not tell.
            let blind = !self.setup.pod_resources;
            state.books[pod].may_repeat &= blind;
            for kept in state.books[pod].entries.iter_mut().flatten() {
                if !init && !blind {
                    kept.asked = kept.asked.min(1);
                }
            }
            let is = &mut state.pods[pod];
            if is.phase == Phase::Failed {
                is.phase = Phase::Succeeded;
            }
            let named = |lock: Option<super::state::Lock>| lock.is_some_and(|lock| usize::from(lock.pod) == pod);
            let over = !is.exists() || is.ended();
            let kept = state.kube[pod].active || state.books[pod].entries.iter().any(Option::is_some);
            let locked = state.nodes.iter().any(|node| named(node.lock) || named(node.release));
            if over && !kept && !locked && is.life != Life::Absent && self.setup.shapes[pod] != Shape::Foreign {
                let rests = state.schedulers.iter().all(|of| {
                    of.flight.is_none_or(|flight| usize::from(flight.pod) != pod)
                        && !of.release.is_some_and(|(_, lock)| named(Some(lock)))
                });
                if rests && !matches!(is.life, Life::Deleting | Life::PastGrace) {
                    // Whether it has ended or is gone matters to its successor alone.
                    let life = if self.setup.shapes[2] == Shape::Successor { is.life } else { Life::Gone };
                    *is = Pod::new(life, Phase::Succeeded);
                    state.books[pod] = Book::default();
                    state.kube[pod] = Kube::default();
                }
            }
        }
        if !self.setup.flaws.blind_release {
            // No value comes twice, so a release whose value does not stand any more changes nothing when it is done.
            let locks = state.nodes.map(|node| node.lock);
            let mut raced = false;
            for (node, lock) in state.nodes.iter_mut().zip(locks) {
                raced |= node.release.take_if(|value| lock != Some(*value)).is_some();
            }
            for of in &mut state.schedulers {
                raced |= of.release.take_if(|(node, value)| locks[usize::from(*node)] != Some(*value)).is_some();
            }
            if raced {
                self.hit(Branch::ReleaseRaced);
            }
        }
        if self.setup.shapes == [Shape::One; PODS] && !self.setup.flaws.first_pending {
            super::symmetry::sort_pods(state);
        }
    }

    fn spend(&self, left: &mut Faults, action: Action) {
        match action {
            Action::Write { lost: true, .. }
            | Action::Bind { lost: true, .. }
            | Action::Release { lost: true, .. }
            | Action::Unlocked { lost: true, .. } => {
                self.hit(Branch::ReplyLost);
                left.lost_replies -= 1;
            }
            Action::SchedulerDies { .. }
            | Action::AgentDies { .. }
            | Action::Call { trouble: Trouble::AgentDies, .. } => left.crashes -= 1,
            Action::Delete { .. } => left.deletions -= 1,
            Action::LockAges { .. } => left.expiries -= 1,
            Action::KubeletRestarts { .. } | Action::Call { trouble: Trouble::KubeletDies, .. } => {
                left.kubelet_restarts -= 1;
            }
            Action::AgentStarts { lost: true, .. } => left.lost_ledgers -= 1,
            Action::Call { trouble: Trouble::Throttled, .. } => left.throttles -= 1,
            Action::Forge { .. } => left.forgeries -= 1,
            Action::Edit { .. } => left.edits -= 1,
            Action::Mute { .. } => left.mutes -= 1,
            _ => {}
        }
    }
}

impl Model for Handoff {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![self.initial()]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        if state.broken != 0 {
            return;
        }
        for scheduler in 0..SCHEDULERS {
            self.scheduler_actions(state, scheduler, actions);
        }
        for node in 0..NODES {
            self.node_actions(state, node, actions);
        }
        for pod in 0..PODS {
            self.pod_actions(state, pod, actions);
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut next = last.clone();
        self.apply(&mut next, action);
        if next == *last {
            return None;
        }
        self.spend(&mut next.left, action);
        properties::watch(last, &mut next);
        self.tidy(&mut next);
        Some(next.canonical())
    }

    fn properties(&self) -> Vec<Property<Self>> {
        properties::of(&self.setup)
    }
}

//! From any state: does a run without further faults free the locks? One fixed fair order of steps is enough, and states
//! that are known to heal end a run early.

use std::collections::HashSet;
use std::hash::{BuildHasher, RandomState};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use baton::decide::lock::{Intent, ReleaseReason};

use super::machine::{Action, Handoff, Trouble};
use super::state::{Faults, Life, NODES, PODS, SCHEDULERS, State, Step};

const SHARDS: usize = 64;
/// No healed run of the modelled worlds is near this long.
const LONGEST: usize = 400;

/// States that are known to heal.
pub struct Healer {
    known: Vec<Mutex<HashSet<u64>>>,
    hasher: RandomState,
    longest: AtomicU64,
}

impl Default for Healer {
    fn default() -> Self {
        let known = (0..SHARDS).map(|_| Mutex::default()).collect();
        Self { known, hasher: RandomState::new(), longest: AtomicU64::new(0) }
    }
}

impl Healer {
    /// Longest healed run so far, in steps to a state that was known to heal.
    pub fn longest(&self) -> u64 {
        self.longest.load(Ordering::Relaxed)
    }

    /// `true` when the locks of all nodes become free, or the next claim on them may take them over.
    pub fn heals(&self, model: &Handoff, state: &State) -> bool {
        if state.broken != 0 {
            return true;
        }
        let mut state = State { left: Faults::default(), ..state.clone() };
        let mut passed = Vec::new();
        for step in 0..LONGEST {
            let print = self.hasher.hash_one(&state);
            let shard = &self.known[print as usize % SHARDS];
            let overdue = |node| {
                matches!(model.intent(&state, node, None), Intent::TakeOver { reason: ReleaseReason::Unserved, .. })
            };
            let is_free = (0..NODES).all(|node| state.nodes[node].lock.is_none() || overdue(node))
                && state.schedulers.iter().all(|scheduler| scheduler.flight.is_none());
            if is_free || shard.lock().expect("no panic under this lock").contains(&print) {
                self.longest.fetch_max(step as u64, Ordering::Relaxed);
                for print in passed {
                    let shard: &Mutex<HashSet<u64>> = &self.known[print as usize % SHARDS];
                    shard.lock().expect("no panic under this lock").insert(print);
                }
                return true;
            }
            passed.push(print);
            let before = state.clone();
            let moved = model.healing(&before).into_iter().any(|action| {
                model.apply(&mut state, action);
                state != before
            });
            if !moved {
                return false;
            }
        }
        false
    }
}

impl Handoff {
    /// Steps of a healed run in the order in which they are tried; the first that changes anything is taken. No pod leaves
    /// the queue but to resume a half-done bind; time passes last.
    fn healing(&self, state: &State) -> Vec<Action> {
        let mut steps = Vec::new();
        for node in (0..NODES).filter(|node| !state.nodes[*node].agent_up) {
            steps.push(Action::AgentStarts { node, lost: false });
        }
        for node in (0..NODES).filter(|node| state.nodes[*node].agent_up) {
            if state.nodes[node].mute {
                continue;
            }
            if state.nodes[node].release.is_some() {
                steps.push(Action::Unlocked { node, lost: false });
            } else if self.fate(state, node).is_some() {
                steps.push(Action::Unlock { node });
            }
        }
        for scheduler in 0..SCHEDULERS {
            let is = &state.schedulers[scheduler];
            if is.release.is_some() {
                steps.push(Action::Release { scheduler, lost: false });
            }
            steps.extend(is.flight.map(|flight| match flight.step {
                Step::Line => Action::Judge { scheduler },
                Step::Write { .. } => Action::Write { scheduler, lost: false },
                Step::Bind => Action::Bind { scheduler, lost: false },
            }));
        }
        for node in 0..NODES {
            let next = self.callers(state, node).into_iter().filter(|pod| self.next_container(state, *pod).is_some());
            steps.extend(next.map(|pod| Action::Call { pod, id: None, trouble: Trouble::Nothing }));
        }
        for pod in 0..PODS {
            if self.can_terminate(state, pod) {
                steps.push(Action::Terminate { pod });
            }
            if self.can_admit(state, pod) {
                let called = self.next_container(state, pod).is_some() && !state.kube[pod].without;
                steps.extend((!called).then_some(Action::Admit { pod }));
            }
        }
        for node in 0..NODES {
            if let Some(pod) = self.half_done(state, &state.schedulers[0], node) {
                let resume = self.setup.fits(pod, &self.free(state, node, pod)).first().copied();
                let devices = resume.filter(|_| state.schedulers[0].flight.is_none());
                steps.push(match devices {
                    Some(devices) => Action::Start { scheduler: 0, pod, node, devices, resumed: true },
                    None => Action::Abandon { scheduler: 0, node },
                });
            }
            steps.push(Action::Sweep { scheduler: 0, node });
        }
        for pod in (0..PODS).filter(|pod| self.setup.runs && self.can_run(state, *pod)) {
            steps.push(Action::Run { pod });
        }
        for pod in (0..PODS).filter(|pod| state.pods[*pod].life == Life::Deleting) {
            steps.push(Action::GraceEnds { pod });
        }
        for node in (0..NODES).filter(|node| state.nodes[*node].lock.is_some() && !state.nodes[*node].expired) {
            steps.push(Action::LockAges { node });
        }
        steps
    }
}

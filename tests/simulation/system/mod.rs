//! The whole system in one process, in virtual time, from one seed: schedulers and TYJob controllers with their Leases, node daemons
//! with their ledgers, kubelets, and the API server between them. Every decision is made by the functions that ship; what is here performs it.
//!
//! Nothing here has a thread, a socket or a clock, so that the same [`Plan`] gives the same history, line by line.

mod calls;
mod controller;
mod daemon;
mod faults;
mod history;
mod housekeeping;
mod job_judges;
mod job_requests;
mod judges;
mod kubelet;
mod leader;
mod machine;
mod mutants;
mod process;
mod runtime;
mod shrink;
mod store;
mod workload;

use std::collections::BTreeMap;
use std::time::Duration;

pub use faults::Fault;
pub use history::{History, RARE, RAREST, Violation};
pub use mutants::Mutant;
pub use shrink::shrink;
pub use workload::FAILED;

use super::dice::Dice;
use super::harness::OURS;
use controller::ControllerProcess;
use leader::SchedulerProcess;
use machine::Machine;
use store::{Store, Swap};

use baton::contract::PodRef;
use baton::decide::scheduler::EffectResult;

/// What a run is made of. It says everything of its history.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    pub seed: u64,
    /// Pods that come.
    pub pods: u32,
    /// Most faults that happen.
    pub faults: u32,
    /// Kinds of faults that do not happen.
    pub spared: Vec<Fault>,
    /// Tenants write what is not theirs.
    pub hostile: bool,
    /// What is wrong with the adapters.
    pub mutant: Option<Mutant>,
    /// Lines that are kept.
    pub lines: usize,
}

impl Plan {
    pub fn new(seed: u64, pods: u32) -> Self {
        // With every clock right and no forgery, more can be judged.
        let spared = if seed.is_multiple_of(2) { Vec::new() } else { vec![Fault::ClockSkew] };
        Self { seed, pods, faults: u32::MAX, spared, hostile: seed.is_multiple_of(4), mutant: None, lines: LAST }
    }
}

/// What a run has shown.
#[derive(Debug)]
pub struct Outcome {
    pub history: History,
    pub violation: Option<Violation>,
    /// Pods by how they ended.
    pub ended: BTreeMap<&'static str, u32>,
    /// How much virtual time has passed.
    pub took: Duration,
    pub counts: BTreeMap<Fault, u64>,
}

impl Outcome {
    /// Pods that lived; one that was made again counts each time.
    pub fn lives(&self) -> u64 {
        self.ended.values().map(|count| u64::from(*count)).sum()
    }

    /// All faults that happened.
    pub fn faults(&self) -> u64 {
        self.counts.values().sum()
    }
}

/// One thing that happens at its time.
#[derive(Debug)]
enum Happening {
    /// A scheduler works.
    Turn { at: usize, life: u64 },
    /// A controller works.
    ControllerTurn { at: usize, life: u64 },
    /// A candidate's Lease is read or written.
    Lease { who: Candidate, life: u64, step: process::LeaseStep },
    /// News of the API server come to their readers.
    News(Reader, u64),
    /// A request of a scheduler arrives at the API server.
    Arrives(Box<leader::Request>),
    /// Its answer is back.
    Answered { at: usize, life: u64, id: u64, report: Box<Option<EffectResult>> },
    /// It counts as lost.
    Limit { at: usize, life: u64, id: u64 },
    /// A request of a controller arrives.
    Asked(Box<controller::Asked>),
    /// Its answer is back.
    Replied(Box<controller::Replied>),
    /// A node daemon's release of its lock arrives.
    Release { node: usize, life: u64, swap: Swap },
    /// What a node daemon does beside calls.
    Daemon { node: usize, life: u64, task: daemon::Task },
    /// The kubelet goes on with its pods.
    Kubelet { node: usize, life: u64 },
    /// Processes of a node end.
    Processes(usize),
    /// A pod is deleted by force.
    Forced(PodRef),
    /// Those of a node that is cut off are.
    NodeForced(usize),
    /// A pod's status arrives.
    Status(usize, kubelet::StatusWrite),
    /// The next pods come, or one goes.
    Work,
    /// Controllers make their pods again.
    Owners,
    /// The user of a TYJob deletes it.
    JobDeleted(String),
    /// The PodGroup of a gang comes.
    PodGroup { name: String, min: u32 },
    /// Something breaks.
    Fault,
    /// What was broken works again.
    Mend(faults::Mend),
}

/// Who follows the API server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Reader {
    Candidate(Candidate),
    Daemon(usize),
    Kubelet(usize),
}

/// A process that runs for a Lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Candidate {
    Scheduler(usize),
    Controller(usize),
}

/// The simulated system.
pub struct System {
    plan: Plan,
    /// Of the workload, of the faults, and of everything that takes time: each its own, so that less of one changes no other.
    work: Dice,
    fate: Dice,
    pace: Dice,
    now: Duration,
    agenda: BTreeMap<(Duration, u64), Happening>,
    serial: u64,
    store: Store,
    schedulers: Vec<SchedulerProcess>,
    controllers: Vec<ControllerProcess>,
    machines: Vec<Machine>,
    jobs: workload::Workload,
    faults: faults::Faults,
    judges: judges::Judges,
    history: History,
    violation: Option<Violation>,
}

/// Lines that are kept of a history.
const LAST: usize = 50;
/// When the world begins: a monotonic clock is not at zero.
const START: Duration = Duration::from_secs(1000);
/// Faults happen until then.
const STORM: Duration = Duration::from_secs(600);
/// Everything has been put away by then.
const REST: Duration = Duration::from_secs(60);
/// Once they have ended, something must end or be bound within this time, for as long as a pod waits.
const CALM: Duration = Duration::from_secs(900);
/// Ten times what a plan takes: pods that are evicted and made again without end keep the cluster from its rest.
const LONGEST: Duration = Duration::from_secs(7200);

impl System {
    /// Runs a plan to its end, or to the first violation.
    pub fn run(plan: Plan) -> Outcome {
        let mut system = Self::new(plan);
        system.begin();
        while system.violation.is_none() {
            let Some(((at, _), happening)) = system.agenda.pop_first() else { break };
            system.now = at;
            if system.is_over() {
                break;
            }
            system.happen(happening);
            if system.now > START + LONGEST {
                system.violates("everything comes to rest", "pods come and go without end".to_owned());
            }
        }
        if system.violation.is_none() {
            system.judge_end();
        }
        let ended = system.ended();
        let took = system.now.saturating_sub(START);
        Outcome { history: system.history, violation: system.violation, ended, took, counts: system.faults.counts }
    }

    fn new(plan: Plan) -> Self {
        let seed = plan.seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mut work = Dice(seed ^ 1);
        let nodes = 2 + work.below(3) as usize;
        let gpus: Vec<u32> = (0..nodes).map(|_| 2 + work.below(3) * 2).collect();
        let has_parts = gpus[0] > 2 && work.below(2) == 0;
        let machine = |(at, gpus): (usize, &u32)| Machine::new(at, *gpus, has_parts && at == 0);
        let machines = gpus.iter().enumerate().map(machine).collect();
        Self {
            fate: Dice(seed ^ 2),
            pace: Dice(seed ^ 3),
            now: START,
            agenda: BTreeMap::new(),
            serial: 0,
            store: Store::default(),
            schedulers: (0..2).map(SchedulerProcess::new).collect(),
            controllers: (0..2).map(ControllerProcess::new).collect(),
            machines,
            jobs: workload::Workload::default(),
            faults: faults::Faults::default(),
            judges: judges::Judges::default(),
            history: History::keeping(plan.lines),
            violation: None,
            work,
            plan,
        }
    }

    fn begin(&mut self) {
        for node in 0..self.machines.len() {
            self.store.node(self.machines[node].facts());
            self.start_kubelet(node);
            self.start_daemon(node);
        }
        (0..self.schedulers.len()).for_each(|at| self.start_scheduler(at));
        (0..self.controllers.len()).for_each(|at| self.start_controller(at));
        self.after(Duration::from_secs(5), Happening::Work);
        self.after(Duration::from_secs(6), Happening::Owners);
        self.after(Duration::from_secs(10), Happening::Fault);
        self.after(STORM, Happening::Mend(faults::Mend::Clocks));
    }

    /// Nothing is left to run, or nothing has moved for too long.
    fn is_over(&mut self) -> bool {
        let all_came = self.jobs.came >= self.plan.pods;
        // What was broken last works again by then, and hears of what it has missed.
        let since = self.judges.moved.max(START + STORM);
        let rests = self.now >= since + REST;
        if all_came && rests && self.jobs.is_over() && self.store.is_unlocked() && self.nothing_leaves() {
            return true;
        }
        self.now >= since + CALM
    }

    fn happen(&mut self, happening: Happening) {
        match happening {
            Happening::Turn { at, life } => self.turn(at, life),
            Happening::ControllerTurn { at, life } => self.controller_turn(at, life),
            Happening::Lease { who, life, step } => self.lease_step(who, life, step),
            Happening::News(reader, life) => self.news(reader, life),
            Happening::Arrives(request) => self.arrives(*request),
            Happening::Answered { at, life, id, report } => self.answered(at, life, id, *report),
            Happening::Limit { at, life, id } => self.limit(at, life, id),
            Happening::Asked(asked) => self.asked(*asked),
            Happening::Replied(replied) => self.replied(replied),
            Happening::PodGroup { name, min } => self.pod_group_comes(&name, min),
            Happening::Release { node, life, swap } => self.release_arrives(node, life, swap),
            Happening::Daemon { node, life, task } => self.daemon_works(node, life, task),
            Happening::Kubelet { node, life } => self.kubelet_works(node, life),
            Happening::Processes(node) => self.processes_end(node),
            Happening::Forced(pod) => self.force(&pod),
            Happening::NodeForced(node) => self.force_node(node),
            Happening::Status(node, write) => self.status_arrives(node, write),
            Happening::Work => self.next_work(),
            Happening::Owners => self.owners_work(),
            Happening::JobDeleted(name) => self.tyjob_deleted(&name),
            Happening::Fault => self.next_fault(),
            Happening::Mend(mend) => self.mend(mend),
        }
        self.spread();
    }

    fn after(&mut self, pause: Duration, happening: Happening) {
        self.at(self.now + pause, happening);
    }

    fn at(&mut self, at: Duration, happening: Happening) {
        self.serial += 1;
        self.agenda.insert((at, self.serial), happening);
    }

    /// Between so many milliseconds.
    fn soon(&mut self, from: u32, to: u32) -> Duration {
        Duration::from_millis(u64::from(from + self.pace.below(to - from + 1)))
    }

    fn note(&mut self, line: impl FnOnce() -> String) {
        self.history.note(self.now - START, &line());
    }

    fn is(&self, mutant: Mutant) -> bool {
        self.plan.mutant == Some(mutant)
    }

    /// Of which of these kinds a watch is behind the others, and by how many changes.
    fn one_is_behind(&mut self, kinds: &[usize]) -> Option<(usize, usize)> {
        let kind = (self.pace.below(4) == 0).then(|| kinds[self.pace.below(kinds.len() as u32) as usize])?;
        Some((kind, self.pace.below(60) as usize))
    }

    /// The rest comes later to this reader.
    fn comes_later(&mut self, reader: Reader, life: u64) {
        match reader {
            Reader::Candidate(who) => self.process(who).has_news = true,
            Reader::Daemon(node) => self.machines[node].daemon_has_news = true,
            Reader::Kubelet(node) => self.machines[node].kubelet_has_news = true,
        }
        let pause = self.soon(5, 2000);
        self.after(pause, Happening::News(reader, life));
    }

    /// The readers of what has changed hear of it, each in its own time.
    fn spread(&mut self) {
        if !self.store.take_news(self.now) {
            return;
        }
        let schedulers = (0..self.schedulers.len()).map(Candidate::Scheduler);
        for who in schedulers.chain((0..self.controllers.len()).map(Candidate::Controller)) {
            let pause = self.soon(1, 30);
            let reader = self.process(who);
            if !std::mem::replace(&mut reader.has_news, true) {
                let life = reader.life;
                self.after(pause, Happening::News(Reader::Candidate(who), life));
            }
        }
        for node in 0..self.machines.len() {
            let (daemon, kubelet) = (self.soon(1, 30), self.soon(1, 30));
            let machine = &mut self.machines[node];
            let lives = (machine.daemon_life, machine.kubelet_life);
            let knows = (
                std::mem::replace(&mut machine.daemon_has_news, true),
                std::mem::replace(&mut machine.kubelet_has_news, true),
            );
            if !knows.0 {
                self.after(daemon, Happening::News(Reader::Daemon(node), lives.0));
            }
            if !knows.1 {
                self.after(kubelet, Happening::News(Reader::Kubelet(node), lives.1));
            }
        }
    }

    fn news(&mut self, reader: Reader, life: u64) {
        if let Some(until) = self.faults.deaf_until(reader, self.now) {
            if let Reader::Kubelet(node) = reader
                && self.faults.cannot_hear(reader, self.now)
            {
                self.machines[node].kubelet.was_cut = true;
            }
            self.at(until, Happening::News(reader, life));
            return;
        }
        match reader {
            Reader::Candidate(Candidate::Scheduler(at)) => self.news_for_scheduler(at, life),
            Reader::Candidate(Candidate::Controller(at)) => self.news_for_controller(at, life),
            Reader::Daemon(node) => self.news_for_daemon(node, life),
            Reader::Kubelet(node) => self.news_for_kubelet(node, life),
        }
    }
}

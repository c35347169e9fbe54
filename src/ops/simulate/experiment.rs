//! One run: a policy, a seed, and what is measured of it.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::cluster::{GangDomains, OnFailure, PodNumber, Rest, SimulatedCluster};
use super::stream::{Arrival, Ends};
use super::trace::{Trace, WHOLE};

/// Why GPUs lie idle.
pub const CAUSES: [&str; 5] = ["model", "restTooSmall", "noCpu", "noMemory", "usable"];

/// What is measured of one run. Shares are percent.
#[derive(Debug, Clone, Default)]
pub struct RunFigures {
    /// Allocation of GPUs by the demand that has arrived, in whole percents of all GPUs.
    pub curve: BTreeMap<u32, f64>,
    /// Allocation in steady state, where pods end.
    pub steady: Option<f64>,
    /// Demand that had arrived with the first rejected pod.
    pub first_rejection: Option<f64>,
    /// Pods by size: how many came, and how many of them were rejected.
    pub sizes: BTreeMap<String, (u64, u64)>,
    /// GPUs that lie idle at the end, by [`CAUSES`].
    pub idle: [f64; CAUSES.len()],
    /// Where pods end.
    pub departures: Option<Departures>,
    /// What is left on each machine at the end.
    pub rests: Vec<Rest>,
    /// Time of each decision.
    pub decisions: Vec<Duration>,
    /// In how many domains gangs got their places, by label.
    pub domains: BTreeMap<Box<str>, GangDomains>,
}

/// What is measured where pods end, in steady state.
#[derive(Debug, Clone, Copy, Default)]
pub struct Departures {
    /// Demand that was rejected, or that never got a place.
    pub rejected: f64,
    /// The same of pods with several GPUs.
    pub rejected_multi: f64,
    /// Demand that waits at a time, of all GPUs.
    pub waiting: f64,
    /// Mean wait of pods that got a place, seconds.
    pub wait: f64,
}

/// Runs the arrivals. Pods that come before `measured_from` are not counted. `None` when it was stopped.
pub fn run(
    trace: &Trace,
    arrivals: &[Arrival],
    measured_from: Option<f64>,
    on_failure: OnFailure,
    cluster: &mut dyn SimulatedCluster,
    stop: &CancellationToken,
) -> Option<RunFigures> {
    let mut run = RunFigures::default();
    let capacity = trace.capacity() as f64;
    let (mut arrived, mut used, mut waiting) = (0i64, 0i64, 0i64);
    let mut events: BTreeMap<u32, (f64, u32)> = BTreeMap::new();
    let mut ends = Ends::default();
    let mut late = Late::default();
    let mut steady = Steady::default();
    for (pod, arrival) in arrivals.iter().enumerate() {
        if pod % 64 == 0 && stop.is_cancelled() {
            return None;
        }
        if measured_from.is_some() {
            while let Some((at, ended)) = ends.next(arrival.at) {
                let mut placed = cluster.wait(at);
                used -= trace.asks[arrivals[ended].ask].demand();
                placed.extend(cluster.end(at, ended));
                for pod in placed {
                    late.placed(pod, at, arrivals, &mut ends);
                    let demand = trace.asks[arrivals[pod].ask].demand();
                    (used, waiting) = (used + demand, waiting - demand);
                }
            }
        }
        let ask = &trace.asks[arrival.ask];
        arrived += ask.demand();
        let measured = measured_from.is_none_or(|from| arrival.at >= from);
        let placed = cluster.arrive(arrival.at, pod, arrival.ask);
        if placed {
            used += ask.demand();
            if let Some(life) = arrival.life {
                ends.add(arrival.at + life, pod);
            }
        } else if on_failure == OnFailure::Queue {
            waiting += ask.demand();
            late.since.insert(pod, arrival.at);
        }
        if !placed && run.first_rejection.is_none() {
            run.first_rejection = Some(100.0 * arrived as f64 / capacity);
        }
        if measured {
            let size = run.sizes.entry(ask.size()).or_default();
            size.0 += 1;
            size.1 += u64::from(!placed && on_failure == OnFailure::Drop);
            steady.note(ask.demand(), ask.gpus > 1, placed, used as f64 / capacity, waiting as f64 / capacity);
        }
        let percent = (100.0 * arrived as f64 / capacity).round() as u32;
        let point = events.entry(percent).or_default();
        *point = (point.0 + 100.0 * used as f64 / capacity, point.1 + 1);
    }
    if on_failure == OnFailure::Queue {
        for pod in late.since.keys().filter(|pod| measured_from.is_none_or(|from| arrivals[**pod].at >= from)) {
            let ask = &trace.asks[arrivals[*pod].ask];
            run.sizes.entry(ask.size()).or_default().1 += 1;
            steady.late(ask.demand(), ask.gpus > 1);
        }
    }
    run.curve = events.into_iter().map(|(percent, (sum, count))| (percent, sum / f64::from(count))).collect();
    run.rests = cluster.rests();
    run.idle = idle(trace, arrivals, &run.rests);
    run.decisions = cluster.decisions().to_vec();
    run.domains = cluster.domains();
    if measured_from.is_some() {
        run.steady = Some(steady.allocation());
        run.departures = Some(steady.departures(on_failure, late.wait / steady.placed(late.count)));
    }
    Some(run)
}

/// Pods that wait, and how long those waited that got a place.
#[derive(Default)]
struct Late {
    since: BTreeMap<PodNumber, f64>,
    wait: f64,
    count: u64,
}

impl Late {
    /// A pod that waited has a place.
    fn placed(&mut self, pod: PodNumber, now: f64, arrivals: &[Arrival], ends: &mut Ends) {
        if let Some(since) = self.since.remove(&pod) {
            (self.wait, self.count) = (self.wait + now - since, self.count + 1);
        }
        if let Some(life) = arrivals[pod].life {
            ends.add(now + life, pod);
        }
    }
}

/// Sums over the pods that are measured; of demand, of all pods and of those with several GPUs.
#[derive(Default)]
struct Steady {
    pods: u64,
    at_once: u64,
    asked: [i64; 2],
    rejected: [i64; 2],
    never: [i64; 2],
    allocation: f64,
    waiting: f64,
}

impl Steady {
    fn note(&mut self, demand: i64, multi: bool, placed: bool, allocation: f64, waiting: f64) {
        self.pods += 1;
        self.at_once += u64::from(placed);
        for at in 0..=usize::from(multi) {
            self.asked[at] += demand;
            self.rejected[at] += if placed { 0 } else { demand };
        }
        (self.allocation, self.waiting) = (self.allocation + allocation, self.waiting + waiting);
    }

    /// A pod that waited to the end.
    fn late(&mut self, demand: i64, multi: bool) {
        self.never[0] += demand;
        self.never[1] += if multi { demand } else { 0 };
    }

    fn placed(&self, late: u64) -> f64 {
        (self.at_once as f64 + late as f64).max(1.0)
    }

    fn allocation(&self) -> f64 {
        100.0 * self.allocation / self.pods.max(1) as f64
    }

    fn departures(&self, on_failure: OnFailure, wait: f64) -> Departures {
        let lost = if on_failure == OnFailure::Queue { self.never } else { self.rejected };
        let part = |at: usize| 100.0 * lost[at] as f64 / self.asked[at].max(1) as f64;
        let waiting = 100.0 * self.waiting / self.pods.max(1) as f64;
        Departures { rejected: part(0), rejected_multi: part(1), waiting, wait }
    }
}

/// What lies idle and why: for every kind of pods that came, weighed by its demand, the first thing that it lacks on each machine.
fn idle(trace: &Trace, arrivals: &[Arrival], rests: &[Rest]) -> [f64; CAUSES.len()] {
    let mut demand = vec![0i64; trace.asks.len()];
    arrivals.iter().for_each(|arrival| demand[arrival.ask] += trace.asks[arrival.ask].demand());
    let all: i64 = demand.iter().sum();
    let kinds: Vec<_> = demand.iter().zip(&trace.asks).filter(|(demand, _)| **demand > 0).collect();
    let mut idle = [0.0; CAUSES.len()];
    for rest in rests {
        let left: i64 = rest.gpus.iter().sum();
        if left == 0 {
            continue;
        }
        let model = &trace.machines[rest.machine].model;
        for (demand, ask) in &kinds {
            let fitting: Vec<i64> = rest.gpus.iter().copied().filter(|free| *free >= ask.milli).collect();
            let mut note = |cause: usize, milli: i64| idle[cause] += milli as f64 * **demand as f64 / all as f64;
            if !ask.accepts(model) {
                note(0, left);
            } else if fitting.len() < ask.gpus as usize {
                note(1, left);
            } else if rest.milli_cpu < ask.milli_cpu {
                note(2, left);
            } else if rest.memory < ask.memory {
                note(3, left);
            } else {
                let usable: i64 = fitting.iter().sum();
                note(4, usable);
                note(1, left - usable);
            }
        }
    }
    let capacity: i64 = trace.machines.iter().map(|machine| i64::from(machine.gpus) * WHOLE).sum();
    idle.map(|milli| 100.0 * milli / capacity as f64)
}

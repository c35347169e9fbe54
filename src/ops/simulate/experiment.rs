//! One run: a policy, a seed, and what is measured of it.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::time::Duration;

use serde::Serialize;
use tokio_util::sync::CancellationToken;

use super::cluster::{GangDomains, OnFailure, PodNumber, Rest, SimulatedCluster};
use super::stream::{Arrival, Ends};
use super::trace::Trace;

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
    pub departures: Option<Departures<f64>>,
    /// What is left on each machine at the end.
    pub rests: Vec<Rest>,
    /// Time of each decision.
    pub decisions: Vec<Duration>,
    /// In how many domains gangs got their places, by label.
    pub domains: BTreeMap<Box<str>, GangDomains>,
}

/// Where pods end, in steady state: a number of one run, or what those of several runs come to.
#[derive(Debug, Clone, Copy, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Departures<T> {
    /// Percent of the demand that was rejected; with `--on-failure queue`, that never got a place.
    pub rejected_share: T,
    /// The same of pods with several GPUs.
    pub rejected_multi_gpu_share: T,
    /// Percent of all GPUs that are waited for at a time.
    pub waiting_share: T,
    /// Mean wait of pods that got a place, seconds.
    pub mean_wait_seconds: T,
}

/// So long after the last change, pods that wait have been tried in every way: from the tenth minute on, nodes are kept for one of them for
/// six hours at most.
const SETTLED: f64 = 8.0 * 3600.0;

/// Runs the arrivals; where a time is measured, pods end. Pods that come before that time are not counted. `None` when it was stopped.
pub fn run(
    trace: &Trace,
    arrivals: &[Arrival],
    measured: Option<Range<f64>>,
    on_failure: OnFailure,
    cluster: &mut dyn SimulatedCluster,
    stop: &CancellationToken,
) -> Option<RunFigures> {
    let mut run = RunFigures::default();
    let capacity = trace.capacity() as f64;
    let window = measured.clone().unwrap_or(0.0..f64::INFINITY);
    let mut course = Course::of(trace, arrivals, window.clone());
    let mut events: BTreeMap<u32, (f64, u32)> = BTreeMap::new();
    let (mut pod, mut arrived, mut changed) = (0, 0i64, 0.0);
    let mut lost = BTreeSet::new();
    loop {
        if stop.is_cancelled() {
            return None;
        }
        let next = arrivals.get(pod);
        let until = next.map_or(window.end, |arrival| arrival.at);
        let waits = measured.is_some() && !course.waits.is_empty();
        let settled = until.min(course.ends.first()).min(changed + SETTLED);
        if let Some((now, placed)) = waits.then(|| cluster.wait(settled)).flatten() {
            course.pass(now);
            changed = if placed.is_empty() { changed } else { now };
            placed.into_iter().for_each(|pod| course.place(pod));
        } else if let Some((now, ended)) = course.ends.next(until) {
            course.pass(now);
            course.used -= course.demand(ended);
            changed = now;
            cluster.end(now, ended).into_iter().for_each(|pod| course.place(pod));
        } else if let Some(arrival) = next {
            course.pass(arrival.at);
            course.come(pod);
            changed = arrival.at;
            cluster.arrive(arrival.at, pod, arrival.ask).into_iter().for_each(|pod| course.place(pod));
            arrived += course.demand(pod);
            if course.waits.contains(&pod) && run.first_rejection.is_none() {
                run.first_rejection = Some(100.0 * arrived as f64 / capacity);
            }
            if on_failure == OnFailure::Drop && course.leave(pod) {
                lost.insert(pod);
            }
            let percent = (100.0 * arrived as f64 / capacity).round() as u32;
            let point = events.entry(percent).or_default();
            *point = (point.0 + 100.0 * course.used as f64 / capacity, point.1 + 1);
            pod += 1;
        } else {
            break;
        }
    }
    lost.append(&mut course.waits);
    let (mut asked, mut rejected) = ([0i64; 2], [0i64; 2]);
    for (pod, arrival) in arrivals.iter().enumerate().filter(|(_, arrival)| arrival.at >= window.start) {
        let (ask, lost) = (&trace.asks[arrival.ask], lost.contains(&pod));
        let size = run.sizes.entry(ask.size()).or_default();
        *size = (size.0 + 1, size.1 + u64::from(lost));
        for at in 0..=usize::from(ask.gpus > 1) {
            asked[at] += ask.demand();
            rejected[at] += if lost { ask.demand() } else { 0 };
        }
    }
    run.curve = events.into_iter().map(|(percent, (sum, count))| (percent, sum / f64::from(count))).collect();
    run.rests = cluster.rests();
    run.idle = idle(trace, arrivals, &run.rests);
    run.decisions = cluster.decisions().to_vec();
    run.domains = cluster.domains();
    if measured.is_some() {
        let part = |at: usize| 100.0 * rejected[at] as f64 / asked[at].max(1) as f64;
        let [used, waiting_share] = course.means().map(|milli| 100.0 * milli / capacity);
        run.steady = Some(used);
        run.departures = Some(Departures {
            rejected_share: part(0),
            rejected_multi_gpu_share: part(1),
            waiting_share,
            mean_wait_seconds: course.waited / course.placed.max(1) as f64,
        });
    }
    Some(run)
}

/// What is in use and waited for, in thousandths of GPUs, and what that comes to over the time that is measured.
struct Course<'a> {
    trace: &'a Trace,
    arrivals: &'a [Arrival],
    window: Range<f64>,
    now: f64,
    ends: Ends,
    /// Pods that wait.
    waits: BTreeSet<PodNumber>,
    used: i64,
    waiting: i64,
    /// Measured: seconds, and those of each thousandth that was in use and waited for.
    seconds: f64,
    sums: [f64; 2],
    /// Of pods that are counted: seconds until they had a place, and how many have one.
    waited: f64,
    placed: u64,
}

impl<'a> Course<'a> {
    fn of(trace: &'a Trace, arrivals: &'a [Arrival], window: Range<f64>) -> Self {
        let (ends, waits, now) = (Ends::default(), BTreeSet::new(), 0.0);
        let (used, waiting, seconds, sums, waited, placed) = (0, 0, 0.0, [0.0; 2], 0.0, 0);
        Self { trace, arrivals, window, now, ends, waits, used, waiting, seconds, sums, waited, placed }
    }

    fn demand(&self, pod: PodNumber) -> i64 {
        self.trace.asks[self.arrivals[pod].ask].demand()
    }

    fn pass(&mut self, now: f64) {
        let seconds = (now.min(self.window.end) - self.now.max(self.window.start)).max(0.0);
        self.seconds += seconds;
        self.sums[0] += self.used as f64 * seconds;
        self.sums[1] += self.waiting as f64 * seconds;
        self.now = now;
    }

    /// A pod comes, and waits.
    fn come(&mut self, pod: PodNumber) {
        self.waiting += self.demand(pod);
        self.waits.insert(pod);
    }

    /// A pod does not wait any more; `true` when it did.
    fn leave(&mut self, pod: PodNumber) -> bool {
        let waited = self.waits.remove(&pod);
        self.waiting -= if waited { self.demand(pod) } else { 0 };
        waited
    }

    /// A pod has a place.
    fn place(&mut self, pod: PodNumber) {
        let arrival = self.arrivals[pod];
        self.leave(pod);
        self.used += self.demand(pod);
        if let Some(life) = arrival.life {
            self.ends.add(self.now + life, pod);
        }
        if arrival.at >= self.window.start {
            (self.waited, self.placed) = (self.waited + self.now - arrival.at, self.placed + 1);
        }
    }

    /// Means over the time that is measured; where that is but a moment, what is true then.
    fn means(&self) -> [f64; 2] {
        let now = [self.used as f64, self.waiting as f64];
        if self.seconds > 0.0 { self.sums.map(|sum| sum / self.seconds) } else { now }
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
    idle.map(|milli| 100.0 * milli / trace.capacity() as f64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simulate::engine::Engine;
    use crate::simulate::stream::recorded;
    use crate::simulate::trace::{Span, TraceAsk, TraceMachine, WHOLE};
    use baton_decide::core::rules::plugins::{DefaultSet, default_plugins};
    use baton_decide::world::WorldPolicy;

    /// Pods, by arrival, end and GPUs, on a machine with so many GPUs.
    fn replay(gpus: u32, pods: &[(f64, Option<f64>, u32)], on_failure: OnFailure) -> RunFigures {
        let machine = TraceMachine { milli_cpu: 64_000, memory: 1 << 38, gpus, ..TraceMachine::default() };
        let mut trace = Trace::of(String::new(), vec![machine]);
        let ask = |gpus| TraceAsk { gpus, milli: WHOLE, ..TraceAsk::default() };
        pods.iter().for_each(|(arrive, end, gpus)| trace.add(ask(*gpus), Some(Span { arrive: *arrive, end: *end }), 1));
        let plugins = default_plugins(&DefaultSet::default()).unwrap();
        let mut cluster = Engine::new(&trace, &[0], plugins, WorldPolicy::default(), on_failure);
        let stop = CancellationToken::new();
        run(&trace, &recorded(&trace), Some(0.0..f64::INFINITY), on_failure, &mut cluster, &stop).unwrap()
    }

    #[test]
    fn pods_that_wait_after_the_last_arrival_get_the_places_of_those_that_end() {
        let pods = [(0.0, Some(100.0), 1), (1.0, Some(11.0), 1), (2.0, Some(12.0), 1), (3.0, None, 2)];
        let run = replay(1, &pods, OnFailure::Queue);
        let ends = run.departures.unwrap();
        let waits: f64 = 99.0 + 108.0;
        let figures = (ends.rejected_share, ends.rejected_multi_gpu_share, ends.mean_wait_seconds.round());
        assert_eq!(figures, (40.0, 100.0, (waits / 3.0).round()), "two GPUs are nowhere");
        assert_eq!((run.sizes["1"], run.sizes["2"]), ((3, 0), (1, 1)));
        assert_eq!(run.rests[0].gpus, [WHOLE]);
    }

    #[test]
    fn gpus_in_use_and_waited_for_are_means_over_time() {
        let means = |gpus, pods: &[_]| {
            let run = replay(gpus, pods, OnFailure::Queue);
            (run.steady.unwrap().round(), run.departures.unwrap().waiting_share.round())
        };
        assert_eq!(means(16, &[(0.0, Some(100_000.0), 1); 16]), (100.0, 0.0));
        assert_eq!(means(16, &[(0.0, None, 1); 4]), (25.0, 0.0), "nothing ends: as it is then");
        let mut burst = vec![(0.0, Some(10.0), 1); 16];
        burst.push((100_000.0, Some(100_010.0), 1));
        assert_eq!(means(16, &burst), (0.0, 0.0));
        assert_eq!(means(2, &[(0.0, Some(100.0), 2), (50.0, Some(100.0), 1), (150.0, Some(200.0), 2)]), (88.0, 13.0));
    }

    #[test]
    fn a_gap_of_three_hundred_years_is_passed_over() {
        let pods = [(0.0, None, 1), (1.0, None, 2), (1e10, Some(1e10), 1)];
        for on_failure in [OnFailure::Drop, OnFailure::Queue] {
            let run = replay(2, &pods, on_failure);
            let figures = (run.steady.unwrap().round(), run.departures.unwrap().rejected_share);
            assert_eq!(figures, (50.0, 50.0), "{on_failure:?}");
        }
        let chain: Vec<_> = (0..40).map(|_| (0.0, Some(1e10), 1)).collect();
        assert_eq!(replay(1, &chain, OnFailure::Queue).sizes["1"], (40, 0));
    }

    /// It has no room and always something to try; at the third time the run is stopped.
    struct Restless(CancellationToken, usize);

    impl SimulatedCluster for Restless {
        fn arrive(&mut self, _: f64, _: PodNumber, _: usize) -> Vec<PodNumber> {
            Vec::new()
        }

        fn end(&mut self, _: f64, _: PodNumber) -> Vec<PodNumber> {
            Vec::new()
        }

        fn wait(&mut self, until: f64) -> Option<(f64, Vec<PodNumber>)> {
            self.1 += 1;
            if self.1 == 3 {
                self.0.cancel();
            }
            (self.1 < 10).then_some((until / 2.0, Vec::new()))
        }

        fn rests(&self) -> Vec<Rest> {
            Vec::new()
        }

        fn decisions(&self) -> &[Duration] {
            &[]
        }
    }

    #[test]
    fn a_run_is_stopped_while_pods_wait() {
        let mut trace = Trace::of(String::new(), Vec::new());
        trace.add(TraceAsk { gpus: 1, milli: WHOLE, ..TraceAsk::default() }, None, 1);
        let arrivals = [0.0, 1e6].map(|at| Arrival { ask: 0, at, life: None });
        let mut cluster = Restless(CancellationToken::new(), 0);
        let stop = cluster.0.clone();
        let measured = Some(0.0..f64::INFINITY);
        assert!(run(&trace, &arrivals, measured, OnFailure::Queue, &mut cluster, &stop).is_none());
        assert_eq!(cluster.1, 3);
    }
}

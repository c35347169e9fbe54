//! The arrivals of one run.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::trace::Trace;

/// A pod of a run.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Arrival {
    /// What it asks for.
    pub ask: usize,
    /// When it comes, seconds.
    pub at: f64,
    /// How long it lives once it has a place; `None` for ever.
    pub life: Option<f64>,
}

/// The published protocol: the list's pods in random order, then draws with replacement until the demand reaches `load` of all GPUs;
/// where the list asks for more than that, random pods are taken away. Nothing ends.
pub fn filling(trace: &Trace, load: f64, random: &mut fastrand::Rng) -> Vec<Arrival> {
    let ask = |pod: usize| &trace.asks[trace.pods[pod].ask];
    let target = load * trace.capacity() as f64;
    let mut pods: Vec<usize> = (0..trace.pods.len()).collect();
    random.shuffle(&mut pods);
    let mut demand: i64 = pods.iter().map(|pod| ask(*pod).demand()).sum();
    while demand as f64 > target {
        // The order of the others is random whichever way they close up.
        demand -= ask(pods.swap_remove(random.usize(..pods.len()))).demand();
    }
    loop {
        let pod = random.usize(..trace.pods.len());
        // As published: the check counts one GPU of the pod, the sum all of them.
        if (demand + ask(pod).milli) as f64 > target {
            break;
        }
        demand += ask(pod).demand();
        pods.push(pod);
    }
    let arrival = |(at, pod): (usize, usize)| Arrival { ask: trace.pods[pod].ask, at: at as f64 * 0.001, life: None };
    pods.into_iter().enumerate().map(arrival).collect()
}

/// The pods of the trace as they came.
pub fn recorded(trace: &Trace) -> Vec<Arrival> {
    let arrival = |pod: &super::trace::TracePod| {
        let span = pod.span?;
        Some(Arrival { ask: pod.ask, at: span.arrive, life: span.end.map(|end| end - span.arrive) })
    };
    let mut arrivals: Vec<Arrival> = trace.pods.iter().filter_map(arrival).collect();
    arrivals.sort_by(|a, b| a.at.total_cmp(&b.at));
    let first = arrivals.first().map_or(0.0, |arrival| arrival.at);
    arrivals.iter_mut().for_each(|arrival| arrival.at -= first);
    arrivals
}

/// Pods by the time at which they end.
#[derive(Default)]
pub struct Ends(BinaryHeap<Reverse<(u64, usize)>>);

impl Ends {
    /// The pod ends at that time.
    pub fn add(&mut self, at: f64, pod: usize) {
        self.0.push(Reverse(((at * 1e6) as u64, pod)));
    }

    /// When the next pod ends; infinity where none does.
    pub fn first(&self) -> f64 {
        self.0.peek().map_or(f64::INFINITY, |Reverse((at, _))| *at as f64 / 1e6)
    }

    /// The next pod that ends until then, and when.
    pub fn next(&mut self, until: f64) -> Option<(f64, usize)> {
        let due = self.0.peek().is_some_and(|Reverse((at, _))| *at <= (until * 1e6) as u64);
        if due { self.0.pop().map(|Reverse((at, pod))| (at as f64 / 1e6, pod)) } else { None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simulate::trace::{TraceAsk, TraceMachine};

    fn trace(pods: usize) -> Trace {
        let machine = TraceMachine { name: "a".into(), milli_cpu: 1, memory: 1, gpus: 10, ..TraceMachine::default() };
        let mut trace = Trace::of(String::new(), vec![machine]);
        trace.add(TraceAsk { gpus: 1, milli: 500, ..TraceAsk::default() }, None, pods);
        trace.add(TraceAsk::default(), None, 1);
        trace
    }

    #[test]
    fn the_demand_is_filled_up_or_cut_to_the_load() {
        for pods in [1, 5, 100] {
            let trace = trace(pods);
            let arrivals = filling(&trace, 1.3, &mut fastrand::Rng::with_seed(7));
            let demand: i64 = arrivals.iter().map(|arrival| trace.asks[arrival.ask].demand()).sum();
            assert_eq!(demand, 13_000, "{pods} pods in the list");
        }
    }
}

//! Pods that come at random times and end.

use std::ops::Range;

use baton::ops::simulate::stream::Arrival;
use baton::ops::simulate::trace::Trace;

/// Mean lifetime, seconds.
const MEAN_LIFE: f64 = 3600.0;
/// Mean lifetimes of a run: the first [`WARM_UP`] of them fill the cluster.
const LIVES: f64 = 8.0;
/// Mean lifetimes that are not measured.
const WARM_UP: f64 = 3.0;

/// Arrival rate times mean lifetime times GPUs is `load` of all GPUs. Also returns the time that is measured.
pub fn steady(trace: &Trace, load: f64, random: &mut fastrand::Rng) -> (Vec<Arrival>, Range<f64>) {
    let exponential = |random: &mut fastrand::Rng| -(1.0 - random.f64()).ln();
    let demand: i64 = trace.pods.iter().map(|pod| trace.asks[pod.ask].demand()).sum();
    let rate = load * trace.capacity() as f64 * trace.pods.len() as f64 / (demand as f64 * MEAN_LIFE);
    let (mut at, mut arrivals) = (0.0, Vec::new());
    loop {
        at += exponential(random) / rate;
        if at > LIVES * MEAN_LIFE {
            return (arrivals, WARM_UP * MEAN_LIFE..LIVES * MEAN_LIFE);
        }
        let ask = trace.pods[random.usize(..trace.pods.len())].ask;
        arrivals.push(Arrival { ask, at, life: Some(MEAN_LIFE * exponential(random)) });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use baton::ops::simulate::trace::{TraceAsk, TraceMachine};

    #[test]
    fn in_steady_state_as_much_is_asked_for_as_the_load_says() {
        let machine = TraceMachine { name: "a".into(), milli_cpu: 1, memory: 1, gpus: 10, ..TraceMachine::default() };
        let mut trace = Trace::of(String::new(), vec![machine]);
        trace.add(TraceAsk { gpus: 1, milli: 500, ..TraceAsk::default() }, None, 2);
        trace.add(TraceAsk::default(), None, 1);
        let (arrivals, _) = steady(&trace, 0.95, &mut fastrand::Rng::with_seed(7));
        let work: f64 =
            arrivals.iter().map(|arrival| trace.asks[arrival.ask].demand() as f64 * arrival.life.unwrap()).sum();
        let offered = work / (LIVES * MEAN_LIFE) / trace.capacity() as f64;
        assert!((0.7..1.2).contains(&offered), "{offered}, of {} pods", arrivals.len());
    }
}

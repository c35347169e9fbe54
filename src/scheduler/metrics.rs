//! The scheduler's metrics in OpenMetrics text.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use super::gang::GangMetrics;
use super::tyjob::JobMetrics;
use crate::decide::cycle::{Engine, Stats};
use crate::decide::queue::QueueState;

/// Counters and gauges; cheap to share.
#[derive(Clone)]
pub struct Metrics {
    registry: Arc<Registry>,
    counters: [Counter; 9],
    gauges: [Gauge<i64, AtomicI64>; 6],
    gangs: GangMetrics,
    jobs: JobMetrics,
}

const COUNTERS: [(&str, &str); 9] = [
    ("attempts", "Decisions"),
    ("nodes_judged", "Nodes judged for decisions"),
    ("unschedulable", "Decisions that found no node"),
    ("bound", "Pods bound by this process"),
    ("bind_failures", "Binds that failed for good"),
    ("lock_contended", "Lock writes that found another lock"),
    ("fenced", "Holders of expired locks that were deleted"),
    ("resumed", "Half-done binds that were resumed"),
    ("preempted", "Pods that were evicted to make room"),
];
const GAUGES: [(&str, &str); 6] = [
    ("leading", "1 while this process leads"),
    ("queue_active", "Pods to be tried"),
    ("queue_backoff", "Pods backing off"),
    ("queue_parked", "Pods waiting for an event"),
    ("in_flight", "Pods with a node that are not bound yet"),
    ("nodes", "Nodes known"),
];

impl Metrics {
    /// All at zero.
    pub fn new() -> Self {
        let mut registry = Registry::with_prefix("baton_scheduler");
        let counters = COUNTERS.map(|(name, help)| {
            let counter = Counter::default();
            registry.register(name, help, counter.clone());
            counter
        });
        let gauges = GAUGES.map(|(name, help)| {
            let gauge = Gauge::default();
            registry.register(name, help, gauge.clone());
            gauge
        });
        let (gangs, jobs) = (GangMetrics::new(&mut registry), JobMetrics::new(&mut registry));
        Self { registry: Arc::new(registry), counters, gauges, gangs, jobs }
    }

    /// Takes over what the engine counted.
    pub fn update(&self, engine: &mut Engine) {
        self.gangs.update(engine);
        self.jobs.update(engine);
        let Stats {
            attempts, judged, unschedulable, bound, bind_failures, contended, fenced, resumed, preempted, ..
        } = engine.stats();
        let counts = [attempts, judged, unschedulable, bound, bind_failures, contended, fenced, resumed, preempted];
        for (counter, count) in self.counters.iter().zip(counts) {
            counter.inner().store(count, Ordering::Relaxed);
        }
        let (mut active, mut backoff, mut parked) = (0, 0, 0);
        for (_, state) in engine.queue().iter() {
            match state {
                QueueState::Active(_) => active += 1,
                QueueState::BackOff(_) => backoff += 1,
                QueueState::Parked(..) => parked += 1,
                QueueState::Taken => {}
            }
        }
        let flights = engine.flights().len() as i64;
        let nodes = engine.world().nodes().count() as i64;
        let values = [i64::from(engine.is_leading()), active, backoff, parked, flights, nodes];
        for (gauge, value) in self.gauges.iter().zip(values) {
            gauge.set(value);
        }
    }

    /// The text.
    pub fn print(&self) -> String {
        let mut text = String::new();
        // Writing to a string does not fail.
        encode(&mut text, &self.registry).ok();
        text
    }
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn every_metric_is_documented() {
        crate::runtime::documented::check(&super::Metrics::new().print(), "baton scheduler");
    }
}

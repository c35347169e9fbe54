//! Metrics of gangs.

use std::sync::atomic::{AtomicI64, Ordering};

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Registry, Unit};

use crate::decide::scheduler::{Engine, Stats};

const COUNTERS: [(&str, &str); 4] = [
    ("gang_attempts", "Attempts of groups of gangs"),
    ("gangs_satisfied", "Groups of gangs that were satisfied"),
    ("gang_timeouts", "Groups of gangs whose wait was over"),
    ("gang_releases", "Groups of gangs that gave back what they held"),
];

/// Counters, a gauge and a histogram; cheap to share.
#[derive(Clone)]
pub struct GangMetrics {
    counters: [Counter; 4],
    waiting: Gauge<i64, AtomicI64>,
    waits: Histogram,
}

impl GangMetrics {
    /// All at zero, in `registry`.
    pub fn new(registry: &mut Registry) -> Self {
        let counters = COUNTERS.map(|(name, help)| {
            let counter = Counter::default();
            registry.register(name, help, counter.clone());
            counter
        });
        let waiting = Gauge::default();
        registry.register("gangs_waiting", "Groups of gangs that wait for a place", waiting.clone());
        // 0.1 s to 27 minutes.
        let waits = Histogram::new(exponential_buckets(0.1, 2.0, 15));
        let help = "From the creation of a group of gangs to its satisfaction";
        registry.register_with_unit("gang_wait", help, Unit::Seconds, waits.clone());
        Self { counters, waiting, waits }
    }

    /// Takes over what the engine counted.
    pub fn update(&self, engine: &mut Engine) {
        let Stats { group_attempts, groups_satisfied, group_timeouts, group_releases, .. } = engine.stats();
        let counts = [group_attempts, groups_satisfied, group_timeouts, group_releases];
        for (counter, count) in self.counters.iter().zip(counts) {
            counter.inner().store(count, Ordering::Relaxed);
        }
        self.waiting.set(i64::try_from(engine.waiting_groups()).unwrap_or(i64::MAX));
        engine.take_group_waits().into_iter().for_each(|wait| self.waits.observe(wait.as_secs_f64()));
    }
}

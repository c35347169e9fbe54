//! Metrics of TYJobs.

use std::sync::atomic::{AtomicI64, Ordering};

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use crate::decide::scheduler::{Engine, JobRecord, Stats};
use crate::decide::tyjob::placement::Class;

const COUNTERS: [(&str, &str); 4] = [
    ("job_rounds", "Rounds over the waiting TYJobs"),
    ("jobs_placed", "Attempts that gave a TYJob places"),
    ("job_places_taken", "Places of TYJobs that their pods have taken over"),
    ("job_places_void", "Places of TYJobs that became void"),
];
const GAUGES: [(&str, &str); 2] = [
    ("jobs_waiting", "TYJobs that wait for places"),
    ("job_reservations", "Places of TYJobs that no pod has taken yet"),
];

/// Counters and gauges; cheap to share.
#[derive(Clone)]
pub struct JobMetrics {
    counters: [Counter; 4],
    gauges: [Gauge<i64, AtomicI64>; 2],
}

impl JobMetrics {
    /// All at zero, in `registry`.
    pub fn new(registry: &mut Registry) -> Self {
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
        Self { counters, gauges }
    }

    /// Takes over what the engine counted.
    pub fn update(&self, engine: &Engine) {
        let Stats { job_rounds, jobs_placed, job_places_taken, job_places_void, .. } = engine.stats();
        let counts = [job_rounds, jobs_placed, job_places_taken, job_places_void];
        for (counter, count) in self.counters.iter().zip(counts) {
            counter.inner().store(count, Ordering::Relaxed);
        }
        let records = engine.job_records().values();
        let waiting = records.clone().filter(|record| record.class == Class::Waiting).count();
        let reservations: usize = records.map(JobRecord::reservations).sum();
        for (gauge, value) in self.gauges.iter().zip([waiting, reservations]) {
            gauge.set(i64::try_from(value).unwrap_or(i64::MAX));
        }
    }
}

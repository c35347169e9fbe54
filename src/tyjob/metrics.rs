//! The controller's metrics in OpenMetrics text, and the state behind its readiness probe.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use super::cache::JobCache;
use baton_contract::tyjob::Stage;
use baton_runtime::build_info;

const COUNTERS: [(&str, &str); 6] = [
    ("steps", "Reconciliations of a TYJob"),
    ("status_writes", "Status writes"),
    ("conflicts", "Status writes that found a newer TYJob"),
    ("pods_made", "Pods made, or found made"),
    ("pods_deleted", "Pods deleted"),
    ("failures", "Reconciliations that ended with a failed request"),
];

/// The counters, in the order of [`COUNTERS`].
#[derive(Debug, Clone, Copy)]
pub enum Counted {
    Step,
    StatusWrite,
    Conflict,
    PodMade,
    PodDeleted,
    Failure,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct InStage {
    stage: String,
}

/// Counters and gauges; cheap to share.
#[derive(Clone)]
pub struct Metrics {
    registry: Arc<Registry>,
    counters: [Counter; COUNTERS.len()],
    leading: Gauge<i64, AtomicI64>,
    queue: Gauge<i64, AtomicI64>,
    jobs: Family<InStage, Gauge<i64, AtomicI64>>,
    complete: Arc<AtomicBool>,
}

impl Metrics {
    pub fn new() -> Self {
        let mut whole = Registry::default();
        build_info::register(&mut whole);
        let registry = whole.sub_registry_with_prefix("baton_controller");
        let counters = COUNTERS.map(|(name, help)| {
            let counter = Counter::default();
            registry.register(name, help, counter.clone());
            counter
        });
        let (leading, queue) = (Gauge::default(), Gauge::default());
        let jobs = Family::default();
        registry.register("leading", "1 while this process leads", leading.clone());
        registry.register("queue", "TYJobs to be reconciled, now or later", queue.clone());
        registry.register("jobs", "TYJobs by stage", jobs.clone());
        Self { registry: Arc::new(whole), counters, leading, queue, jobs, complete: Arc::default() }
    }

    pub fn count(&self, counted: Counted) {
        self.counters[counted as usize].inc();
    }

    /// Updates the gauges from the cache of the current term; `complete` when every first list is.
    pub fn update(&self, complete: bool, cache: &JobCache, queue: usize) {
        self.complete.store(complete, Ordering::Relaxed);
        self.leading.set(1);
        self.queue.set(queue as i64);
        let mut stages: BTreeMap<&str, i64> = Stage::ALL.iter().map(|stage| (stage.word(), 0)).collect();
        for (_, cached) in cache.jobs() {
            let stage = cached.job.status.as_ref().and_then(|status| status.stage);
            *stages.entry(stage.unwrap_or(Stage::Pending).word()).or_default() += 1;
        }
        for (stage, count) in stages {
            self.jobs.get_or_create(&InStage { stage: stage.to_owned() }).set(count);
        }
    }

    pub fn term_ended(&self) {
        self.leading.set(0);
        self.complete.store(false, Ordering::Relaxed);
    }

    /// Whether this process leads, and whether it knows every TYJob.
    pub fn readiness(&self) -> (bool, bool) {
        (self.leading.get() == 1, self.complete.load(Ordering::Relaxed))
    }

    pub fn print(&self) -> String {
        let mut text = String::new();
        // Writing to a string does not fail.
        encode(&mut text, &self.registry).ok();
        text
    }
}

#[cfg(test)]
#[path = "../../tests/harness/documented.rs"]
mod documented;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_metric_is_documented() {
        let metrics = Metrics::new();
        metrics.jobs.get_or_create(&InStage { stage: "Running".to_owned() }).set(1);
        super::documented::check(&metrics.print(), "baton controller");
    }
}

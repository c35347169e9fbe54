//! The controller's metrics in OpenMetrics text, and the state behind its readiness probe.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;

use baton_contract::tyjob::Stage;
use baton_decide::controller::{ControllerCounts, JobController};
use baton_runtime::metrics::{MetricSet, RequestMetrics};

const COUNTERS: [(&str, &str); 6] = [
    ("steps", "Reconciliations of a TYJob"),
    ("status_writes", "Status writes"),
    ("conflicts", "Status writes that found a newer TYJob"),
    ("pods_made", "Pods made, or found made"),
    ("pods_deleted", "Pods deleted"),
    ("failures", "Reconciliations that ended with a failed request"),
];

/// Counters and gauges; cheap to share.
#[derive(Clone)]
pub struct ControllerMetrics {
    set: Arc<MetricSet>,
    counters: [Counter; COUNTERS.len()],
    leading: Gauge,
    queue: Gauge,
    /// By `stage`.
    jobs: Family<[(&'static str, &'static str); 1], Gauge>,
    complete: Arc<AtomicBool>,
}

impl ControllerMetrics {
    pub fn new(requests: &RequestMetrics) -> Self {
        let mut set = MetricSet::new("baton_controller");
        set.requests(requests);
        Self {
            counters: COUNTERS.map(|(name, help)| set.add(name, help)),
            leading: set.add("leading", "1 while this process leads"),
            queue: set.add("queue", "TYJobs to be reconciled, now or later"),
            jobs: set.add("jobs", "TYJobs by stage"),
            complete: Arc::default(),
            set: Arc::new(set),
        }
    }

    /// What has happened since the last call.
    pub fn count(&self, counts: ControllerCounts) {
        let ControllerCounts { steps, status_writes, conflicts, pods_made, pods_deleted, failures } = counts;
        let more = [steps, status_writes, conflicts, pods_made, pods_deleted, failures];
        for (counter, more) in self.counters.iter().zip(more) {
            counter.inc_by(more);
        }
    }

    /// Updates the gauges from the current term; `complete` when every first list is.
    pub fn update(&self, complete: bool, term: &JobController) {
        self.complete.store(complete, Ordering::Relaxed);
        self.leading.set(1);
        self.queue.set(term.waiting() as i64);
        let mut stages: BTreeMap<&'static str, i64> = Stage::ALL.iter().map(|stage| (stage.word(), 0)).collect();
        for (_, shown) in term.cache().jobs() {
            let stage = shown.job.status.as_ref().and_then(|status| status.stage);
            *stages.entry(stage.unwrap_or(Stage::Pending).word()).or_default() += 1;
        }
        for (stage, count) in stages {
            self.jobs.get_or_create(&[("stage", stage)]).set(count);
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
        self.set.print()
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
        let metrics = ControllerMetrics::new(&documented::requests());
        metrics.jobs.get_or_create(&[("stage", "Running")]).set(1);
        super::documented::check(&metrics.print(), "baton controller");
    }
}

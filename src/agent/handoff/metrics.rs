//! What the hand-off counts.

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};

use baton_decide::handoff::verify;
use baton_runtime::metrics::MetricSet;

/// Counters by one label whose values are words of ours.
pub(crate) type ByWord = Family<[(&'static str, &'static str); 1], Counter>;

/// The hand-off's metrics; clones share their values. [`HandoffMetrics::new`] says what each is.
#[derive(Debug, Clone)]
pub struct HandoffMetrics {
    /// `result`: `served`, `repeated`, or the rule of a refusal.
    allocations: Family<[(&'static str, String); 2], Counter>,
    refused: Family<[(&'static str, String); 1], Counter>,
    allocate_seconds: Histogram,
    pub(crate) live_reads: ByWord,
    pub(crate) watch_wait_seconds: Histogram,
    pub(crate) identified: ByWord,
    pub(crate) id_mismatches: Counter,
    pub(crate) released: ByWord,
    pub(crate) lock_held_seconds: Histogram,
    pub(crate) ledger_entries: Gauge,
    pub(crate) divergences: ByWord,
}

impl HandoffMetrics {
    /// Enters all of them.
    pub fn new(set: &mut MetricSet) -> Self {
        // A call waits for up to 2 s (`AgentTimings::rpc_budget`): 0.1 ms to 3.3 s.
        let call = || Histogram::new(exponential_buckets(0.000_1, 2.0, 16));
        let wait = "Seconds that calls waited for the watch to bring what they overtook";
        let held = "Seconds from the time in a node lock to its release by this agent";
        let mismatch = "Calls in which the kubelet chose other devices than the assigned ones";
        let metrics = Self {
            allocations: set.add("allocate", "Allocate calls by resource and result"),
            refused: set.add("allocate_refused", "Allocate calls that were refused"),
            allocate_seconds: set.seconds("allocate", "Seconds of an Allocate call", call()),
            live_reads: set.add("live_reads", "Reads of the API server that calls waited for"),
            watch_wait_seconds: set.seconds("watch_wait", wait, call()),
            identified: set.add("identified", "How the calling pod was identified"),
            id_mismatches: set.add("id_mismatch", mismatch),
            released: set.add("lock_released", "Node locks released by reason"),
            lock_held_seconds: set.seconds("lock_held", held, Histogram::new(exponential_buckets(0.005, 2.0, 18))),
            ledger_entries: set.add("ledger_entries", "Entries of the ledger"),
            divergences: set.add("divergence", "Findings of the verify loop"),
        };
        // An alert sees a counter grow only from a value that it has seen.
        for reason in verify::REASONS {
            let _ = metrics.divergences.get_or_create(&[("reason", reason.word())]);
        }
        metrics
    }

    /// Calls may come for this resource from here on.
    pub fn expect_calls(&self, resource: &str) {
        let _ = self.refused.get_or_create(&[("resource", resource.to_owned())]);
    }

    /// Counts one Allocate call.
    pub fn count_call(&self, resource: &str, result: &'static str, seconds: f64) {
        self.allocations.get_or_create(&[("resource", resource.to_owned()), ("result", result.to_owned())]).inc();
        if !matches!(result, "served" | "repeated") {
            self.refused.get_or_create(&[("resource", resource.to_owned())]).inc();
        }
        self.allocate_seconds.observe(seconds);
    }
}

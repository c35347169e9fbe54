//! What the hand-off counts.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Registry, Unit};

use baton_decide::handoff::verify;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct CallLabels {
    pub resource: String,
    /// `served`, `repeated`, or the rule of a refusal.
    pub result: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct ResourceLabel {
    pub resource: String,
}

/// Which of the kubelet's calls.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct CallLabel {
    pub call: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct ReasonLabel {
    pub reason: &'static str,
}

/// The hand-off's metrics; clones share their values. [`HandoffMetrics::register`] says what each is.
#[derive(Debug, Clone)]
pub struct HandoffMetrics {
    pub(crate) allocations: Family<CallLabels, Counter>,
    pub(crate) refused: Family<ResourceLabel, Counter>,
    pub(crate) allocate_seconds: Histogram,
    pub(crate) live_reads: Family<CallLabel, Counter>,
    pub(crate) watch_wait_seconds: Histogram,
    pub(crate) identified: Family<ReasonLabel, Counter>,
    pub(crate) id_mismatches: Counter,
    pub(crate) released: Family<ReasonLabel, Counter>,
    pub(crate) lock_held_seconds: Histogram,
    pub(crate) ledger_entries: Gauge,
    pub(crate) divergences: Family<ReasonLabel, Counter>,
}

impl Default for HandoffMetrics {
    fn default() -> Self {
        Self {
            allocations: Family::default(),
            refused: Family::default(),
            allocate_seconds: Histogram::new(exponential_buckets(0.000_1, 2.0, 16)),
            live_reads: Family::default(),
            // A call waits for up to --rpc-budget, 2 s by default: 0.1 ms to 3.3 s.
            watch_wait_seconds: Histogram::new(exponential_buckets(0.000_1, 2.0, 16)),
            identified: Family::default(),
            id_mismatches: Counter::default(),
            released: Family::default(),
            lock_held_seconds: Histogram::new(exponential_buckets(0.005, 2.0, 18)),
            ledger_entries: Gauge::default(),
            divergences: Family::default(),
        }
    }
}

impl HandoffMetrics {
    /// Registers all of them.
    pub fn register(&self, registry: &mut Registry) {
        registry.register("baton_allocate", "Allocate calls by resource and result", self.allocations.clone());
        registry.register("baton_allocate_refused", "Allocate calls that were refused", self.refused.clone());
        let help = "Seconds of an Allocate call";
        registry.register_with_unit("baton_allocate", help, Unit::Seconds, self.allocate_seconds.clone());
        registry.register("baton_live_reads", "Reads of the API server that calls waited for", self.live_reads.clone());
        registry.register_with_unit(
            "baton_watch_wait",
            "Seconds that calls waited for the watch to bring what they overtook",
            Unit::Seconds,
            self.watch_wait_seconds.clone(),
        );
        registry.register("baton_identified", "How the calling pod was identified", self.identified.clone());
        registry.register(
            "baton_id_mismatch",
            "Calls in which the kubelet chose other devices than the assigned ones",
            self.id_mismatches.clone(),
        );
        registry.register("baton_lock_released", "Node locks released by reason", self.released.clone());
        registry.register_with_unit(
            "baton_lock_held",
            "Seconds from the time in a node lock to its release by this agent",
            Unit::Seconds,
            self.lock_held_seconds.clone(),
        );
        registry.register("baton_ledger_entries", "Entries of the ledger", self.ledger_entries.clone());
        registry.register("baton_divergence", "Findings of the verify loop", self.divergences.clone());
        // An alert sees a counter grow only from a value that it has seen.
        for reason in verify::REASONS {
            let _ = self.divergences.get_or_create(&ReasonLabel { reason });
        }
    }

    /// Calls may come for this resource from here on.
    pub fn expect_calls(&self, resource: &str) {
        let _ = self.refused.get_or_create(&ResourceLabel { resource: resource.to_owned() });
    }

    /// Counts one Allocate call.
    pub fn count_call(&self, resource: &str, result: &'static str, seconds: f64) {
        self.allocations.get_or_create(&CallLabels { resource: resource.to_owned(), result }).inc();
        if !matches!(result, "served" | "repeated") {
            self.refused.get_or_create(&ResourceLabel { resource: resource.to_owned() }).inc();
        }
        self.allocate_seconds.observe(seconds);
    }
}

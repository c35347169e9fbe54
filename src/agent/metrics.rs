//! What the daemon counts.

use std::sync::atomic::AtomicU64;
use std::time::Duration;

use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

type Labels = Vec<(&'static str, String)>;
type Count = Counter<u64, AtomicU64>;

/// Bounds in seconds: an answer beside the PodResources call takes well under a millisecond, the budget is two seconds.
const CALL_SECONDS: [f64; 12] = [0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1.0, 2.0];
const LOCK_SECONDS: [f64; 11] = [0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 30.0, 300.0];

/// All of it. Methods never block and never fail.
pub struct Metrics {
    registry: Registry,
    allocate_seconds: Family<Labels, Histogram, fn() -> Histogram>,
    allocations: Family<Labels, Count>,
    identified: Family<Labels, Count>,
    id_mismatches: Count,
    lock_held_seconds: Histogram,
    locks_released: Family<Labels, Count>,
    registrations: Family<Labels, Count>,
    registered: Family<Labels, Gauge>,
    xids: Family<Labels, Count>,
    device_healthy: Family<Labels, Gauge>,
    ledger_entries: Gauge,
    divergences: Family<Labels, Count>,
    offered: Family<Labels, Gauge>,
}

impl Default for Metrics {
    fn default() -> Self {
        let mut metrics = Self {
            registry: Registry::with_prefix("baton"),
            allocate_seconds: Family::new_with_constructor(|| Histogram::new(CALL_SECONDS)),
            allocations: Family::default(),
            identified: Family::default(),
            id_mismatches: Count::default(),
            lock_held_seconds: Histogram::new(LOCK_SECONDS),
            locks_released: Family::default(),
            registrations: Family::default(),
            registered: Family::default(),
            xids: Family::default(),
            device_healthy: Family::default(),
            ledger_entries: Gauge::default(),
            divergences: Family::default(),
            offered: Family::default(),
        };
        let m = &mut metrics;
        let r = &mut m.registry;
        r.register("allocate_seconds", "Time of Allocate calls by resource", m.allocate_seconds.clone());
        r.register("allocations", "Allocate calls by resource and result", m.allocations.clone());
        r.register("identifications", "How the calling pod was told", m.identified.clone());
        r.register("id_mismatches", "Calls in which the kubelet chose other ids", m.id_mismatches.clone());
        r.register("node_lock_held_seconds", "From taking to releasing the node lock", m.lock_held_seconds.clone());
        r.register("node_locks_released", "Locks released by reason", m.locks_released.clone());
        r.register("registrations_lost", "Registrations lost by resource and reason", m.registrations.clone());
        r.register("registered", "1 while the kubelet has the resource", m.registered.clone());
        r.register("xid_events", "XID events by code and action", m.xids.clone());
        r.register("device_healthy", "1 while the device takes new pods", m.device_healthy.clone());
        r.register("ledger_entries", "Container allocations in the ledger", m.ledger_entries.clone());
        r.register("divergences", "Disagreements found by the verify loop", m.divergences.clone());
        r.register("devices_offered", "Ids in the kubelet's list by resource and health", m.offered.clone());
        metrics
    }
}

fn labels<const N: usize>(pairs: [(&'static str, &str); N]) -> Labels {
    pairs.map(|(key, value)| (key, value.to_owned())).into()
}

impl Metrics {
    /// One Allocate call; `result` is `ok`, `repeated` or the rule that refused it.
    pub fn allocate(&self, resource: &str, result: &str, took: Duration) {
        self.allocate_seconds.get_or_create(&labels([("resource", resource)])).observe(took.as_secs_f64());
        self.allocations.get_or_create(&labels([("resource", resource), ("result", result)])).inc();
    }

    /// The calling pod was told by `method`.
    pub fn identified(&self, method: &str) {
        self.identified.get_or_create(&labels([("method", method)])).inc();
    }

    /// The kubelet chose other ids than the assignment.
    pub fn id_mismatch(&self) {
        self.id_mismatches.inc();
    }

    /// A lock was released after it was held for so long.
    pub fn lock_released(&self, why: &str, held: Option<Duration>) {
        self.locks_released.get_or_create(&labels([("reason", why)])).inc();
        if let Some(held) = held {
            self.lock_held_seconds.observe(held.as_secs_f64());
        }
    }

    /// A registration was lost.
    pub fn registration_lost(&self, resource: &str, why: &str) {
        self.registrations.get_or_create(&labels([("resource", resource), ("reason", why)])).inc();
    }

    /// The kubelet has the resource, or not.
    pub fn registered(&self, resource: &str, yes: bool) {
        self.registered.get_or_create(&labels([("resource", resource)])).set(i64::from(yes));
    }

    /// An XID was reported and judged.
    pub fn xid(&self, xid: u64, action: &str) {
        self.xids.get_or_create(&labels([("xid", &xid.to_string()), ("action", action)])).inc();
    }

    /// How the devices are; devices that are not among them any more are forgotten.
    pub fn devices<'a>(&self, devices: impl Iterator<Item = (&'a str, &'a str, bool)>) {
        self.device_healthy.clear();
        for (kind, id, healthy) in devices {
            self.device_healthy.get_or_create(&labels([("type", kind), ("id", id)])).set(i64::from(healthy));
        }
    }

    /// What one resource name offers: healthy ids and all.
    pub fn offered(&self, resource: &str, healthy: usize, all: usize) {
        let of = |health: &str, count: usize| {
            self.offered.get_or_create(&labels([("resource", resource), ("health", health)])).set(count as i64);
        };
        of("healthy", healthy);
        of("unhealthy", all - healthy);
    }

    /// Size of the ledger.
    pub fn ledger(&self, entries: usize) {
        self.ledger_entries.set(entries as i64);
    }

    /// The verify loop found something.
    pub fn divergence(&self, kind: &str) {
        self.divergences.get_or_create(&labels([("kind", kind)])).inc();
    }

    /// OpenMetrics text.
    pub fn print(&self) -> String {
        let mut text = String::new();
        if let Err(error) = encode(&mut text, &self.registry) {
            tracing::error!(%error, "metrics cannot be printed");
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_counted_is_printed_with_its_labels() {
        let metrics = Metrics::default();
        metrics.allocate("nvidia.com/gpu", "no-room", Duration::from_micros(300));
        metrics.xid(48, "unhealthy");
        metrics.devices([("gpu", "GPU-a", false)].into_iter());
        metrics.devices([("gpu", "GPU-b", true)].into_iter());
        metrics.offered("nvidia.com/gpu", 3, 4);
        let text = metrics.print();
        for line in [
            r#"baton_allocations_total{resource="nvidia.com/gpu",result="no-room"} 1"#,
            r#"baton_xid_events_total{xid="48",action="unhealthy"} 1"#,
            r#"baton_device_healthy{type="gpu",id="GPU-b"} 1"#,
            r#"baton_devices_offered{resource="nvidia.com/gpu",health="unhealthy"} 1"#,
        ] {
            assert!(text.contains(line), "{line} is missing in\n{text}");
        }
        assert!(!text.contains("GPU-a"), "a device that left is forgotten");
    }
}

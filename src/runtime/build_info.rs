//! The metric with a daemon's version: a half-done upgrade can be counted.

use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

/// Puts `baton_build_info` into a registry without a prefix.
pub fn register(registry: &mut Registry) {
    let family = Family::<[(&'static str, &'static str); 1], Gauge>::default();
    family.get_or_create(&[("version", env!("CARGO_PKG_VERSION"))]).set(1);
    registry.register("baton_build_info", "Always 1, with the version of this daemon", family);
}

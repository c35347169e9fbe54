//! The metrics of a daemon in OpenMetrics text.

use std::sync::atomic::AtomicU64;

use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::{Metric, Registry, Unit};

/// A gauge of fractions.
pub type FloatGauge = Gauge<f64, AtomicU64>;

/// Metrics by name; among them `baton_build_info`, by which a half-done upgrade can be counted.
#[derive(Debug)]
pub struct MetricSet {
    registry: Registry,
    prefix: &'static str,
}

impl MetricSet {
    /// A set whose further names begin with `prefix` and an underscore.
    pub fn new(prefix: &'static str) -> Self {
        let mut registry = Registry::default();
        let family = Family::<[(&'static str, &'static str); 1], Gauge>::default();
        family.get_or_create(&[("version", env!("CARGO_PKG_VERSION"))]).set(1);
        registry.register("baton_build_info", "Always 1, with the version of this daemon", family);
        Self { registry, prefix }
    }

    /// A metric that begins empty.
    pub fn add<M: Metric + Clone + Default>(&mut self, name: &str, help: &str) -> M {
        let metric = M::default();
        self.registry.register(self.named(name), help, metric.clone());
        metric
    }

    /// A metric of seconds: its name ends in the unit.
    pub fn seconds<M: Metric + Clone>(&mut self, name: &str, help: &str, metric: M) -> M {
        self.registry.register_with_unit(self.named(name), help, Unit::Seconds, metric.clone());
        metric
    }

    fn named(&self, name: &str) -> String {
        format!("{}_{name}", self.prefix)
    }

    /// The text.
    pub fn print(&self) -> String {
        let mut text = String::new();
        // Writing to a string does not fail.
        encode(&mut text, &self.registry).ok();
        text
    }
}

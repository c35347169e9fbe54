//! The metrics of a daemon in OpenMetrics text.

use std::collections::BTreeSet;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, PoisonError};

use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::{Metric, Registry, Unit};

use super::clock;

/// A gauge of fractions.
pub type FloatGauge = Gauge<f64, AtomicU64>;

/// Labels whose values are not words of ours.
pub type LabelPairs = Vec<(&'static str, String)>;

/// Labels with these values.
pub fn labels<const N: usize>(pairs: [(&'static str, &str); N]) -> LabelPairs {
    pairs.map(|(key, value)| (key, value.to_owned())).into()
}

/// A gauge of which a series is there only while there is something to say.
#[derive(Debug, Clone, Default)]
pub struct PassingGauge {
    family: Family<LabelPairs, FloatGauge>,
    shown: Arc<Mutex<BTreeSet<LabelPairs>>>,
}

impl PassingGauge {
    /// Registers it.
    pub fn of(set: &mut MetricSet, name: &str, help: &str) -> Self {
        let gauge = Self::default();
        set.put(name, help, gauge.family.clone());
        gauge
    }

    /// The same of seconds.
    pub fn of_seconds(set: &mut MetricSet, name: &str, help: &str) -> Self {
        let gauge = Self::default();
        set.seconds(name, help, gauge.family.clone());
        gauge
    }

    /// These series are there from now on, and no others. A reader in between sees both, never none.
    pub fn show(&self, series: impl IntoIterator<Item = (LabelPairs, f64)>) {
        let mut now = BTreeSet::new();
        for (labels, value) in series {
            self.family.get_or_create(&labels).set(value);
            now.insert(labels);
        }
        let mut shown = self.shown.lock().unwrap_or_else(PoisonError::into_inner);
        shown.difference(&now).for_each(|labels| {
            self.family.remove(labels);
        });
        *shown = now;
    }
}

/// What a client of the API server counts.
#[derive(Debug, Clone, Default)]
pub struct RequestMetrics {
    sent: Family<LabelPairs, Counter>,
    heard: Family<LabelPairs, FloatGauge>,
}

impl RequestMetrics {
    /// A request is sent. It counts once: with its answer, or without one when it fails or its sender gives it up.
    pub fn sent(&self, verb: &'static str) -> SentRequest {
        SentRequest { sent: self.sent.clone(), verb, status: None }
    }

    /// There are no such objects any more: their definition is gone.
    pub fn absent(&self, resource: &str) {
        self.heard.remove(&labels([("resource", resource)]));
    }

    /// A watch of these objects has begun: what to call whenever it is heard.
    pub fn watched(&self, resource: &str) -> impl Fn() + Send + Sync + use<> {
        let heard = self.heard.get_or_create_owned(&labels([("resource", resource)]));
        move || {
            heard.set(clock::wall().as_second() as f64);
        }
    }
}

/// A request whose answer is awaited.
#[derive(Debug)]
pub struct SentRequest {
    sent: Family<LabelPairs, Counter>,
    verb: &'static str,
    status: Option<u16>,
}

impl SentRequest {
    /// It was answered with this HTTP status.
    pub fn answered(mut self, status: u16) {
        self.status = Some(status);
    }
}

impl Drop for SentRequest {
    fn drop(&mut self) {
        let code = self.status.map_or("none".to_owned(), |status| status.to_string());
        self.sent.get_or_create(&vec![("verb", self.verb.to_owned()), ("code", code)]).inc();
    }
}

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

    /// A metric whose values are kept elsewhere.
    pub fn put(&mut self, name: &str, help: &str, metric: impl Metric) {
        self.registry.register(self.named(name), help, metric);
    }

    /// The requests of this process to the API server.
    pub fn requests(&mut self, requests: &RequestMetrics) {
        self.put("api_requests", "Requests to the API server by verb and code", requests.sent.clone());
        let help = "Unix time at which a watch of these objects was heard last; a watch that lives is heard about once a minute";
        self.seconds("watch_heard_timestamp", help, requests.heard.clone());
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

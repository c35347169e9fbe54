//! What takes pods: the scheduler itself, or a model with a published policy.

use std::collections::BTreeMap;
use std::time::Duration;

/// The number of a pod within one run.
pub type PodNumber = usize;

/// What is left on a machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rest {
    /// The machine's place in the trace.
    pub machine: usize,
    /// Thousandths of a CPU.
    pub milli_cpu: i64,
    /// Bytes.
    pub memory: i64,
    /// Thousandths of each GPU.
    pub gpus: Vec<i64>,
}

/// Domains of one layer, summed over gangs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct GangDomains {
    /// Gangs that got their places.
    pub gangs: u64,
    /// Domains in which their members run, those of each gang counted by themselves.
    pub domains: u64,
}

/// A cluster of one run. Times are virtual, in seconds.
pub trait SimulatedCluster {
    /// A pod comes. Returns the pods that got a place by that.
    fn arrive(&mut self, now: f64, pod: PodNumber, ask: usize) -> Vec<PodNumber>;

    /// A pod goes, placed or waiting. Returns the pods that got a place by that.
    fn end(&mut self, now: f64, pod: PodNumber) -> Vec<PodNumber>;

    /// Time passes to when pods that wait are tried again. Returns that time and the pods that got a place; `None` when it is after
    /// `until`.
    fn wait(&mut self, until: f64) -> Option<(f64, Vec<PodNumber>)> {
        let _ = until;
        None
    }

    /// What is left on every machine.
    fn rests(&self) -> Vec<Rest>;

    /// How long each decision took.
    fn decisions(&self) -> &[Duration];

    /// In how many domains of each layer gangs got their places.
    fn domains(&self) -> BTreeMap<Box<str>, GangDomains> {
        BTreeMap::new()
    }
}

/// What becomes of a pod for which there is no room.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum)]
pub enum OnFailure {
    /// It is gone.
    #[default]
    Drop,
    /// It waits.
    Queue,
}

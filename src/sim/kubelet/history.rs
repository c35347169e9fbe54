//! What really ran, for tests to judge by. No daemon sees it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::instance::Injected;

/// One run of a container's process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProcessRun {
    /// Pod uid.
    pub uid: String,
    /// Pod namespace.
    pub namespace: String,
    /// Pod name.
    pub name: String,
    /// Container name.
    pub container: String,
    /// What it was started with.
    pub injected: Injected,
    /// Device ids by resource that the kubelet had given to the container when it started.
    pub devices: BTreeMap<String, BTreeSet<String>>,
    /// Monotonic start.
    pub started: Duration,
    /// Monotonic end; `None` while it runs.
    pub ended: Option<Duration>,
}

impl ProcessRun {
    /// Whether both ran at one moment.
    pub fn overlaps(&self, other: &Self) -> bool {
        let before = |end: Option<Duration>, start: Duration| end.is_some_and(|end| end <= start);
        !before(self.ended, other.started) && !before(other.ended, self.started)
    }
}

//! `PrioritySort`: priority, then the last failure or else creation, then id.

use crate::decide::framework::{Plugin, QueueSort, Queued, SortKey};

/// The order.
pub struct PrioritySort;

impl Plugin for PrioritySort {
    fn name(&self) -> &'static str {
        "PrioritySort"
    }
}

impl QueueSort for PrioritySort {
    fn key(&self, pod: &Queued) -> SortKey {
        let time = pod.failed.unwrap_or(pod.created).as_nanosecond();
        SortKey { ranks: [-i128::from(pod.priority), time, 0], uid: pod.uid.clone() }
    }
}

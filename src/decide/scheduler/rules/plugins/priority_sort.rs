//! `PrioritySort`: priority, sub-priority, then the last failure or else creation, then id.

use crate::decide::scheduler::rules::{Plugin, QueueSort, Queued, SortKey};

/// The order.
pub struct PrioritySort;

impl Plugin for PrioritySort {
    fn name(&self) -> &'static str {
        "PrioritySort"
    }
}

impl QueueSort for PrioritySort {
    fn key(&self, item: &Queued) -> SortKey {
        let time = item.failed.unwrap_or(item.created).as_nanosecond();
        let ranks = [-i128::from(item.priority), -i128::from(item.sub_priority), time, 0];
        SortKey { ranks, id: item.id.clone() }
    }
}

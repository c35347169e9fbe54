//! The two orders of the queue. `PrioritySort`: priority, sub-priority, creation, id. `QoSSort` puts the class of service
//! (Guaranteed, Burstable, BestEffort) behind the priority. A failed item keeps its place.

use crate::core::rules::{Plugin, QueueSort, Queued, SortKey};

/// By priority, then age.
pub struct PrioritySort;

/// By priority, then class of service, then age.
pub struct QoSSort;

impl Plugin for PrioritySort {
    fn name(&self) -> &'static str {
        "PrioritySort"
    }
}

impl QueueSort for PrioritySort {
    fn key(&self, item: &Queued) -> SortKey {
        key(item, 0)
    }
}

impl Plugin for QoSSort {
    fn name(&self) -> &'static str {
        "QoSSort"
    }
}

impl QueueSort for QoSSort {
    fn key(&self, item: &Queued) -> SortKey {
        key(item, item.class)
    }
}

fn key(item: &Queued, class: u8) -> SortKey {
    let ranks =
        [-i128::from(item.priority), i128::from(class), -i128::from(item.sub_priority), item.created.as_nanosecond()];
    SortKey { ranks, id: item.id.clone() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::world::Qos;
    use jiff::Timestamp;

    #[test]
    fn class_of_service_breaks_ties_of_priority_and_age_those_of_class() {
        let key = |priority, qos: Qos, created| {
            let created = Timestamp::from_second(created).unwrap();
            let id = "u".into();
            QoSSort.key(&Queued { priority, sub_priority: 0, created, class: qos as u8, id })
        };
        let order = [
            key(9, Qos::BestEffort, 9),
            key(1, Qos::Guaranteed, 5),
            key(1, Qos::Guaranteed, 6),
            key(1, Qos::Burstable, 1),
            key(1, Qos::BestEffort, 0),
        ];
        assert!(order.is_sorted(), "{order:#?}");
    }
}

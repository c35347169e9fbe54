//! Everything queued, in flight first, then in the order in which it is tried.

use crate::decide::cycle::engine::Engine;
use crate::decide::cycle::settings::Moment;
use crate::decide::queue::{Item, QueueState, Standing};

use super::answer::{PodState, QueueItem, QueueReport};
use super::judged::wakes;
use super::pod::next_try;

impl Engine {
    /// What the queue holds.
    pub fn queue_report(&self, now: Moment) -> QueueReport {
        let mut items: Vec<_> =
            self.queue.standings().map(|(item, standing)| self.report_one(item, standing, now)).collect();
        items.sort_by(|a, b| a.0.cmp(&b.0));
        QueueReport { leading: self.leading, items: items.into_iter().map(|(_, item)| item).collect() }
    }

    /// The item, and its place in the report.
    fn report_one(&self, item: &Item, standing: Standing<'_>, now: Moment) -> (impl Ord + use<>, QueueItem) {
        let (kind, name) = match item {
            Item::Pod(id) => ("pod", self.world.pod(*id).map(|pod| pod.key().to_string()).unwrap_or_default()),
            Item::Group(group) => ("group", group.to_string()),
            Item::Jobs => ("jobs", "waiting TYJobs".to_owned()),
        };
        let pod = match item {
            Item::Pod(id) => self.world.pod(*id),
            Item::Group(_) | Item::Jobs => None,
        };
        let told = pod.and_then(|pod| self.told.get(&pod.id));
        let state = match (pod, standing.state) {
            (Some(pod), QueueState::Taken) => self.pod_state(pod),
            (None, QueueState::Taken) => PodState::Held,
            (_, QueueState::Active(_)) => PodState::Active,
            (_, QueueState::BackOff(_)) => PodState::BackOff,
            (_, QueueState::Parked(..)) => PodState::Parked,
        };
        let at = next_try(standing);
        let order = match standing.state {
            QueueState::Taken => (0, None, at),
            QueueState::Active(key) => (1, Some(key.clone()), at),
            QueueState::BackOff(_) => (2, None, at),
            QueueState::Parked(..) => (3, None, at),
        };
        let report = QueueItem {
            kind: kind.to_owned(),
            name,
            priority: standing.priority,
            state,
            attempts: standing.attempts,
            queued_seconds: now.mono.saturating_sub(standing.since).as_secs(),
            next_try_seconds: at.map(|at| at.saturating_sub(now.mono).as_secs()),
            wakes: match standing.state {
                QueueState::Parked(wake, _) => wakes(*wake),
                _ => Vec::new(),
            },
            rules: told.iter().flat_map(|told| &told.rules).map(|rule| (*rule).to_owned()).collect(),
            node: pod.and_then(|pod| self.node_name(pod.node())),
            message: told
                .map(|told| told.pending.as_ref().unwrap_or(&told.message).as_ref().to_owned())
                .unwrap_or_default(),
        };
        (order, report)
    }
}

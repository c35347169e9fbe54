//! The queue: items that are being bound first, then in the order in which they are tried.

use std::collections::BTreeMap;

use jiff::SignedDuration;

use crate::bind::lock_end;
use crate::core::queue::{Item, QueueState, Standing};
use crate::core::rules::plugins::{node_affinity, scheduling_gates};
use crate::core::timers::Moment;
use crate::gang::waiting;
use crate::scheduler::Scheduler;
use crate::world::gangs::Gang;
use crate::world::{Place, PodId};

use super::answer::{ClosedNode, LockEnd, PodState, QueueItem, QueueReport, ReservedDevices};
use super::judged::{GANG_CHANGES, is_label_of_a_node, selected, wakes};
use super::node::unknown_kinds;
use super::pod::next_try;

/// Rule of items that their gang holds back.
const GANG: &str = "Gang";

/// Whether a node has a label with a value, of those that were looked for: pods of one template demand the same.
type LabelsOfNodes = BTreeMap<(String, String), bool>;

impl Scheduler {
    /// The queue, and what the scheduler holds outside it: gangs that are held back and requested binds.
    pub fn queue_report(&self, now: Moment) -> QueueReport {
        let mut known = LabelsOfNodes::new();
        let standings = self.queue().standings();
        let mut items: Vec<_> =
            standings.map(|(item, standing)| self.report_one(item, standing, now, &mut known)).collect();
        items.sort_by(|a, b| a.0.cmp(&b.0));
        let mut items: Vec<QueueItem> = items.into_iter().map(|(_, item)| item).collect();
        items.extend(self.held_groups(now));
        items.extend(self.requested_binds(now));
        let closed = self.world().nodes().flat_map(|(_, node)| {
            let all = self.closed_besides(node).map(|(why, _)| (None, why));
            let some = unknown_kinds(node).map(|(kind, why)| (Some(kind), why));
            all.into_iter().chain(some).map(move |(kind, why)| ClosedNode { node: node.name.to_string(), kind, why })
        });
        let unheeded = self.world().nodes().filter(|(_, node)| matches!(node.suspect(), Some((_, false))));
        let locked = self.world().locked().filter_map(|id| self.world().node(id));
        let locks = locked.filter_map(|node| {
            let value = node.lock.read.raw()?.to_owned();
            Some(LockEnd { node: node.name.to_string(), value, at: lock_end(self.scene(now), node)? })
        });
        QueueReport {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            leading: self.is_leading(),
            items,
            closed: closed.collect(),
            unheeded: unheeded.map(|(_, node)| node.name.to_string()).collect(),
            reserved: self.reserved(),
            locks: locks.collect(),
        }
    }

    /// Devices of places of TYJobs and of pods that are not bound yet.
    fn reserved(&self) -> Vec<ReservedDevices> {
        let jobs = self.tyjobs().records().iter().flat_map(|(key, record)| {
            let places = record.places.values().filter_map(|place| place.reservation);
            places.map(move |place| (place, format!("TYJob {key}")))
        });
        let jobs: BTreeMap<PodId, String> = jobs.collect();
        let assumed = self.world().pods().filter(|pod| matches!(pod.place, Place::Assumed(_)));
        let reserved = assumed.filter_map(|pod| {
            let devices = pod.devices.as_ref().filter(|held| !held.devices().is_empty())?;
            let gang = || Some(format!("gang {}", self.world().gangs().gang_of(pod.id)?.id()));
            let reserved_for = jobs.get(&pod.id).cloned().or_else(gang);
            Some(ReservedDevices {
                node: self.node_name(pod.node())?,
                reserved_for: reserved_for.unwrap_or_else(|| format!("pod {}", pod.key())),
                devices: devices.devices().iter().map(|held| (held.id.to_string(), held.percent())).collect(),
            })
        });
        reserved.collect()
    }

    /// Binds that another scheduler has requested: their pods are not in the queue.
    fn requested_binds(&self, now: Moment) -> impl Iterator<Item = QueueItem> {
        self.binder().requests(now.mono).filter_map(move |(id, waited)| {
            let pod = self.world().pod(id)?;
            Some(QueueItem {
                kind: "pod".to_owned(),
                name: pod.key().to_string(),
                priority: pod.facts.spec.priority,
                state: self.pod_state(pod),
                attempts: 1,
                queued_seconds: waited.as_secs(),
                next_try_seconds: None,
                wakes: Vec::new(),
                rules: Vec::new(),
                node: self.node_name(pod.node()),
                message: self.state_message(pod, now),
            })
        })
    }

    /// Groups that a rule of gangs holds back: they are not in the queue.
    fn held_groups(&self, now: Moment) -> impl Iterator<Item = QueueItem> {
        self.gangs().records().iter().filter_map(move |(group, record)| {
            let (reason, message) = record.not_ready.as_ref()?;
            let mut gangs = self.world().gangs().of_group(group);
            let waits = |gang: &Gang| gang.counts().pending + gang.counts().gated + gang.counts().timed_out > 0;
            let priority = gangs.find(|gang| waits(gang))?.members().map(|member| self.world().pod(member.pod));
            let priority = priority.flatten().map(|pod| pod.facts.spec.priority).max();
            let members = waiting(self.world(), &self.config().scheduler_names, group)
                .filter_map(|member| self.world().pod(member.pod));
            let since = members.map(|pod| pod.facts.handoff.created).min().unwrap_or(now.wall);
            let waited = now.wall.duration_since(since).max(SignedDuration::ZERO).unsigned_abs();
            Some(QueueItem {
                kind: "group".to_owned(),
                name: group.to_string(),
                priority: priority.unwrap_or(0),
                state: PodState::Parked,
                attempts: record.progress.attempts as u32,
                queued_seconds: waited.as_secs(),
                next_try_seconds: None,
                wakes: vec![GANG_CHANGES.to_owned()],
                rules: vec![GANG.to_owned()],
                node: None,
                message: format!("{reason}: {message}"),
            })
        })
    }

    /// Rules that refused a waiting item, and their message.
    fn refused_by(&self, item: &Item, known: &mut LabelsOfNodes) -> (Vec<String>, String) {
        match item {
            Item::Pod(id) => {
                if let Some((message, rules)) = self.reporter().latest(*id) {
                    let by_label = rules.contains(&node_affinity::NAME);
                    let typo = by_label.then(|| self.unknown_label(*id, known)).flatten().unwrap_or_default();
                    let message = format!("{message}{typo}");
                    return (rules.iter().map(|rule| (*rule).to_owned()).collect(), message);
                }
                // A gate is not reported: the API server writes it into the condition.
                let gates = self.world().pod(*id).map(|pod| pod.facts.spec.gates.join(", ")).unwrap_or_default();
                let gated = !gates.is_empty();
                let rules = gated.then(|| scheduling_gates::NAME.to_owned()).into_iter().collect();
                (rules, if gated { format!("scheduling is gated by {gates}") } else { String::new() })
            }
            Item::Group(group) => {
                let Some(record) = self.gangs().record(group) else { return Default::default() };
                let message = record.progress.last_failure.clone().unwrap_or_default();
                let refused = record.root_cause.is_some() || record.not_ready.is_some();
                (refused.then(|| GANG.to_owned()).into_iter().collect(), message)
            }
            Item::Jobs => (vec!["TYJob".to_owned()], String::new()),
        }
    }

    /// The first label that the pod's nodeSelector demands and no node has, mostly a typing error: after the pod's message.
    fn unknown_label(&self, id: PodId, known: &mut LabelsOfNodes) -> Option<String> {
        let (name, value) = selected(self.world().pod(id)?).find(|label| {
            let of = || is_label_of_a_node(self.world(), *label);
            !*known.entry((label.0.to_owned(), label.1.to_owned())).or_insert_with(of)
        })?;
        Some(format!("; no node has the label {name}={value}"))
    }

    /// The item, and its position in the report.
    fn report_one(
        &self,
        item: &Item,
        standing: Standing<'_>,
        now: Moment,
        known: &mut LabelsOfNodes,
    ) -> (impl Ord + use<>, QueueItem) {
        let (kind, name) = match item {
            Item::Pod(id) => ("pod", self.world().pod(*id).map(|pod| pod.key().to_string()).unwrap_or_default()),
            Item::Group(group) => ("group", group.to_string()),
            Item::Jobs => ("jobs", "waiting TYJobs".to_owned()),
        };
        let pod = match item {
            Item::Pod(id) => self.world().pod(*id),
            Item::Group(_) | Item::Jobs => None,
        };
        let (rules, message) = self.refused_by(item, known);
        let state = match (pod, standing.state) {
            (Some(pod), QueueState::Taken) => self.pod_state(pod),
            (None, QueueState::Taken) => PodState::Held,
            (_, QueueState::Active) => PodState::Active,
            (_, QueueState::BackOff(_)) => PodState::BackOff,
            (_, QueueState::Parked(..)) => PodState::Parked,
        };
        let at = next_try(standing);
        let order = match standing.state {
            QueueState::Taken => (0, None, at),
            QueueState::Active => (1, Some(standing.key.clone()), at),
            QueueState::BackOff(_) => (2, None, at),
            // What frees room wakes them all, and they are tried by their rank.
            QueueState::Parked(..) => (3, Some(standing.key.clone()), at),
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
            rules,
            node: pod.and_then(|pod| self.node_name(pod.node())),
            message,
        };
        (order, report)
    }
}

//! One pod: where it is, which rule refused which nodes, what would wake it, what to do.

use crate::contract::{LockRead, PodKey};
use crate::decide::devices::Held;
use crate::decide::gang::Route;
use crate::decide::scheduler::engine::Engine;
use crate::decide::scheduler::flight::{Flight, Stage};
use crate::decide::scheduler::queue::{Item, QueueState, Standing};
use crate::decide::scheduler::rules::View;
use crate::decide::scheduler::select::choose::rate;
use crate::decide::scheduler::settings::Moment;
use crate::decide::world::gangs::GroupId;
use crate::decide::world::{NodeId, Place, Pod, PodId};

use super::answer::{Explanation, PodState, RatedNode, Rating, Verdict};
use super::judged::{Judged, judge_all, wakes};

/// What helps who waits for a node's lock.
const LOCK: &str = "Mostly nothing is to be done: the lock is free again when the pod before has its devices. `baton get locks` says who \
                    holds it, whether that is as it should be, and what to do if not";
/// Best nodes that are named.
const BEST: usize = 5;

impl Engine {
    /// Explains the pod of that name; `None` when there is none.
    pub fn explain(&mut self, key: &PodKey, now: Moment) -> Option<Explanation> {
        let pod = self.world.pod_by_key(key)?;
        let (id, place, priority) = (pod.id, pod.place, pod.facts.spec.priority);
        let state = self.pod_state(pod);
        let route = self.route(pod);
        let item = self.item_of(pod, &route);
        let standing = item.as_ref().and_then(|item| self.queue.standing(item.clone()));
        let seconds = |at: std::time::Duration| at.saturating_sub(now.mono).as_secs();
        let devices = pod.devices.iter().flat_map(Held::devices);
        let mut explanation = Explanation {
            pod: key.to_string(),
            uid: pod.facts.handoff.pod.uid.to_string(),
            state,
            scheduler_name: pod.facts.handoff.scheduler_name.to_string(),
            priority,
            group: match &route {
                Route::Group(group) | Route::Owed(group) => Some(group.to_string()),
                Route::Held(_) => self.world.gangs().gang_of(id).map(|gang| gang.group().to_string()),
                Route::Alone => None,
            },
            node: self.node_name(pod.node()),
            devices: devices.map(|device| format!("{} (minor {})", device.id, device.minor)).collect(),
            queued_seconds: standing.map(|standing| now.mono.saturating_sub(standing.since).as_secs()),
            attempts: standing.map_or(0, |standing| standing.attempts),
            next_try_seconds: standing.and_then(next_try).map(seconds),
            verdict: Verdict::default(),
            generation: self.world.generation(),
        };
        let woken = match standing.map(|standing| standing.state) {
            Some(QueueState::Parked(wake, _)) => Some(wakes(*wake)),
            _ => None,
        };
        explanation.verdict.message = self.state_message(pod, now);
        let waits = match state {
            PodState::Active | PodState::BackOff | PodState::Parked | PodState::Following => true,
            // Not ours to place, but what the nodes say may be asked.
            PodState::Foreign => place == Place::Waiting,
            _ => false,
        };
        if state == PodState::WaitingForLock {
            explanation.verdict.advice = vec![LOCK.to_owned()];
        }
        if state == PodState::Ended {
            let advice = format!("How it ended, and why if it failed, stands in its status: `baton get pods {key}`");
            explanation.verdict.advice = vec![advice];
        }
        if !waits {
            return Some(explanation);
        }
        let asked = self.asks_by_extender(id);
        let judged = self.on_live_world(id, priority, asked, now);
        if asked {
            let Explanation { scheduler_name, verdict, .. } = &mut explanation;
            let message = format!("{scheduler_name} places it and asks here about devices: {}", judged.message);
            *verdict = Verdict { message, ..judged };
            return Some(explanation);
        }
        if state == PodState::Foreign {
            explanation.verdict.nodes = judged.nodes;
            let ours = self.config.scheduler_names.first().map_or("", |name| name);
            let advice = format!(
                "Make the pod anew with `schedulerName: {ours}` if it is to be placed here: it cannot be changed"
            );
            explanation.verdict.advice = vec![advice];
            return Some(explanation);
        }
        explanation.verdict = match &route {
            Route::Alone => Verdict { wakes: woken.unwrap_or(judged.wakes), ..judged },
            Route::Group(group) | Route::Owed(group) => self.of_member(id, group, woken, judged, now),
            // No node has anything to do with it.
            Route::Held(hold) => Verdict {
                message: hold.to_string(),
                advice: self.gang_advice(id, now).into_iter().collect(),
                wakes: vec![super::queue::GANG_CHANGES.to_owned()],
                ..Verdict::default()
            },
        };
        if let Some(nomination) = self.nominations.get(&id) {
            let node = self.node_name(Some(nomination.node)).unwrap_or_default();
            let left = nomination.victims.len();
            let text = format!("; room is being made on node {node}, {left} pods have yet to leave");
            explanation.verdict.message.push_str(&text);
        }
        Some(explanation)
    }

    /// A member starts with its gang or not at all: what its gang lacks comes first, what the nodes say to the pod by itself second.
    fn of_member(
        &self,
        id: PodId,
        group: &GroupId,
        woken: Option<Vec<String>>,
        judged: Verdict,
        now: Moment,
    ) -> Verdict {
        let failure = self.groups.get(group).and_then(|record| record.progress.last_failure.clone());
        let gang = failure.unwrap_or_else(|| format!("gang {group} was not tried yet"));
        let own = if judged.message.is_empty() { String::new() } else { format!("; by itself: {}", judged.message) };
        let mut advice: Vec<String> = self.gang_advice(id, now).into_iter().collect();
        advice.extend(judged.advice);
        Verdict { message: gang + &own, advice, wakes: woken.unwrap_or(judged.wakes), ..judged }
    }

    /// What helps the gang of a pod, and where more is told.
    fn gang_advice(&self, id: PodId, now: Moment) -> Option<String> {
        let gang = self.world.gangs().gang_of(id)?.id().clone();
        let advice = self.explain_gang(&gang, now)?.advice;
        let mut letters = advice.chars();
        let first = letters.next()?.to_uppercase();
        Some(format!("{first}{}; `baton explain gang {gang}` tells of all members", letters.as_str()))
    }

    /// Another scheduler places the pod, and asks this one about its devices.
    fn asks_by_extender(&self, id: PodId) -> bool {
        self.world.pod(id).is_some_and(|pod| {
            let name = &pod.facts.handoff.scheduler_name;
            self.config.asking_names.contains(name) && !self.config.scheduler_names.contains(name)
        })
    }

    /// What the rules say now to a pod that waits, with the room closed that others were promised. Where a pod that is `asked`
    /// about goes is not decided here.
    fn on_live_world(&mut self, id: PodId, priority: i32, asked: bool, now: Moment) -> Verdict {
        let facts = self.world.pod(id).filter(|_| asked).map(|pod| pod.facts.clone());
        let shadows = match facts {
            Some(facts) => self.shadow_nominated(&facts, now),
            None => self.shadow(priority, id, now),
        };
        let verdict = self.world.pod(id).map(|pod| {
            let view = View { world: &self.world, now: now.mono };
            let mut judged = judge_all(view, &self.plugins, pod);
            if !judged.fitting.is_empty() {
                let best = self.best_nodes(view, pod, &mut judged);
                let node = best.first().map(|best| best.node.clone()).unwrap_or_default();
                judged.verdict.message = match judged.fitting.len() {
                    1 if asked => format!("fits node {node}"),
                    count if asked => format!("fits {count} nodes"),
                    _ => format!("would go to node {node}"),
                };
            }
            judged.verdict
        });
        self.lift(shadows);
        verdict.unwrap_or_default()
    }

    /// The best of [`Engine::rated_nodes`].
    pub(in crate::decide) fn best_nodes(&self, view: View<'_>, pod: &Pod, judged: &mut Judged) -> Vec<RatedNode> {
        let mut nodes = self.rated_nodes(view, pod, judged);
        nodes.truncate(BEST);
        nodes
    }

    /// The nodes that fit, best first, the oldest first among equals.
    pub(in crate::decide) fn rated_nodes(&self, view: View<'_>, pod: &Pod, judged: &mut Judged) -> Vec<RatedNode> {
        let mut rated: Vec<(NodeId, RatedNode)> = judged
            .fitting
            .iter()
            .map(|id| {
                let node = self.node_name(Some(*id)).unwrap_or_default();
                (*id, RatedNode { node, score: 0, ratings: Vec::new() })
            })
            .collect();
        // Rules report every node in the same order.
        let each = |id: NodeId, rule: &'static str, score: i64, weight: i64| {
            if let Ok(at) = rated.binary_search_by_key(&id, |(id, _)| *id) {
                rated[at].1.score += score * weight;
                rated[at].1.ratings.push(Rating { rule: rule.to_owned(), score, weight });
            }
        };
        if let Err(text) = rate(view, &self.plugins, pod, &judged.fitting, &mut judged.slots, each) {
            judged.verdict.message = text.into_owned();
        }
        rated.sort_by(|a, b| b.1.score.cmp(&a.1.score).then(a.0.cmp(&b.0)));
        rated.into_iter().map(|(_, node)| node).collect()
    }

    pub(in crate::decide) fn node_name(&self, id: Option<NodeId>) -> Option<String> {
        self.world.node(id?).map(|node| node.name.to_string())
    }

    /// Under what the pod is queued.
    fn item_of(&self, pod: &Pod, route: &Route) -> Option<Item> {
        let item = match route {
            Route::Alone | Route::Held(_) => Item::Pod(pod.id),
            Route::Group(group) | Route::Owed(group) => Item::Group(group.clone()),
        };
        self.queue.state(item.clone()).map(|_| item)
    }

    /// Where a pod is.
    pub(in crate::decide) fn pod_state(&self, pod: &Pod) -> PodState {
        if let Some(flight) = self.flights.get(&pod.id) {
            return flight_state(flight);
        }
        if self.holds.contains_key(&pod.id) {
            return PodState::Held;
        }
        let handoff = &pod.facts.handoff;
        match pod.place {
            Place::Bound(_) | Place::Assumed(_) => return PodState::Bound,
            Place::Ended => return PodState::Ended,
            Place::Waiting if handoff.deleting.is_some() => return PodState::Deleting,
            Place::Waiting if !self.config.scheduler_names.contains(&handoff.scheduler_name) => {
                return PodState::Foreign;
            }
            Place::Waiting if !self.leading => return PodState::Following,
            Place::Waiting => {}
        }
        let state = self.item_of(pod, &self.route(pod)).and_then(|item| self.queue.state(item));
        match state {
            Some(QueueState::BackOff(_)) => PodState::BackOff,
            Some(QueueState::Active(_) | QueueState::Taken) => PodState::Active,
            // A member that its gang holds back is in no queue.
            Some(QueueState::Parked(..)) | None => PodState::Parked,
        }
    }

    /// What is to be said of a pod whose state says more than the rules.
    pub(in crate::decide) fn state_message(&self, pod: &Pod, now: Moment) -> String {
        let node = self.node_name(pod.node()).unwrap_or_default();
        let handoff = &pod.facts.handoff;
        match self.pod_state(pod) {
            PodState::Foreign => {
                let ours: Vec<&str> = self.config.scheduler_names.iter().map(|name| &**name).collect();
                let (theirs, ours) = (&handoff.scheduler_name, ours.join(", "));
                format!("spec.schedulerName is {theirs}; this scheduler places pods of {ours}")
            }
            PodState::Bound => format!("bound to node {node}"),
            PodState::Ended => "has ended and holds nothing".to_owned(),
            PodState::Deleting => "is being deleted and will not be placed".to_owned(),
            PodState::Held => format!("holds its room on node {node} until its gang can start"),
            PodState::Preparing => format!("goes to node {node}; waits for its volumes"),
            PodState::WaitingForLock => {
                let lock = pod.node().and_then(|id| self.world.node(id)).map(|node| &node.lock);
                let age = lock.map_or(0, |lock| now.mono.saturating_sub(lock.first_seen).as_secs());
                match lock.map(|lock| &lock.read) {
                    Some(LockRead::Held { value, .. }) => {
                        let holder =
                            value.holder.as_ref().map_or("nobody that it names".to_owned(), |h| h.pod.to_string());
                        format!("goes to node {node}; waits for its lock, held by {holder} for {age} s")
                    }
                    Some(LockRead::Malformed { .. }) => {
                        format!("goes to node {node}; waits for its lock, which names no pod and is {age} s old")
                    }
                    Some(LockRead::Free) | None => format!("goes to node {node}; waits for its turn"),
                }
            }
            PodState::Locking => format!("goes to node {node}; its lock is being written"),
            PodState::Binding => format!("goes to node {node}; the Binding is being posted"),
            PodState::Active | PodState::BackOff | PodState::Parked | PodState::Following => String::new(),
        }
    }
}

/// Where a flight is.
pub(in crate::decide) fn flight_state(flight: &Flight) -> PodState {
    match flight.stage {
        Stage::Preparing => PodState::Preparing,
        Stage::Line => PodState::WaitingForLock,
        Stage::Locking(_) => PodState::Locking,
        Stage::Binding(_) | Stage::BindAgain | Stage::Reading | Stage::ReadAgain => PodState::Binding,
    }
}

/// Monotonic time of the next try in any case.
pub(in crate::decide) fn next_try(standing: Standing<'_>) -> Option<std::time::Duration> {
    match standing.state {
        QueueState::Active(_) => Some(std::time::Duration::ZERO),
        QueueState::BackOff(at) => Some(*at),
        QueueState::Parked(_, latest) => *latest,
        QueueState::Taken => None,
    }
}

//! Explains one pod: its state, which rule refused which nodes, what would wake it, what to do.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::time::Duration;

use jiff::SignedDuration;

use crate::bind::{BindAttempt, BindPhase, lock_end};
use crate::core::placing::enter_nominated;
use crate::core::preemption::Nomination;
use crate::core::queue::{Item, QueueState, Standing};
use crate::core::rules::View;
use crate::core::select::choose::rate;
use crate::core::timers::Moment;
use crate::core::{other_scheduler_text, wants_of_another};
use crate::gang::Route;
use crate::lock::{Delay, HolderState, LockDelay};
use crate::scheduler::Scheduler;
use crate::world::gangs::GroupId;
use crate::world::{Node, NodeId, Place, Pod, PodId, PodSpec, World, holds_otherwise, still_used, without_devices};
use baton_contract::{LeavingPod, PodKey};

use super::answer::{Explanation, PodState, PodVerdict, RatedNode, Rating};
use super::judged::{NodeJudgements, frees, held_words, judge_all, wakes};
use super::node::taken_over;

/// For pods that wait for a node's lock.
const LOCK_ADVICE: &str = "Usually nothing: the lock is free again when the pod that holds it has its devices. `baton get locks` shows the holder, \
                           whether that is as it should be, and what to do if not";
/// For pods for which others leave a node.
const LEAVING_ADVICE: &str = "Usually nothing: it starts when they have left; if one is still there by then, room is made on another node, where there is one";
/// Pods that leave a node, by name.
const NAMED: usize = 3;
/// Best nodes that are named.
const BEST: usize = 5;

impl Scheduler {
    /// Explains the pod of that name; `None` when there is none.
    pub fn explain(&self, key: &PodKey, now: Moment) -> Option<Explanation> {
        let pod = self.world().pod_by_key(key)?;
        let (id, state, route) = (pod.id, self.pod_state(pod), self.route_of(pod));
        let standing = self.item_of(pod, &route).and_then(|item| self.queue().standing(item));
        let mut explanation = self.explain_state(pod, &route, standing, now);
        let woken = match standing.map(|standing| standing.state) {
            Some(QueueState::Parked(wake, _)) => Some(wakes(*wake)),
            _ => None,
        };
        let waits = match state {
            PodState::Active | PodState::BackOff | PodState::Parked | PodState::Following => true,
            // Another scheduler places it, but the nodes' verdicts may be of interest.
            PodState::Foreign => pod.place == Place::Waiting,
            _ => false,
        };
        if !waits {
            return Some(explanation);
        }
        let by_extender = self.asks_by_extender(id);
        let judged = self.judge_live(id, by_extender, now);
        // What frees room does not help one that no empty node holds.
        let helps = |when: &String| route != Route::Alone || !frees(when) || judged.wakes.contains(when);
        let woken = woken.map(|all: Vec<String>| all.into_iter().filter(helps).collect());
        if by_extender {
            let Explanation { scheduler_name, verdict, .. } = &mut explanation;
            let message = format!("{scheduler_name} places it and asks here about devices: {}", judged.message);
            *verdict = PodVerdict { message, ..judged };
            return Some(explanation);
        }
        if state == PodState::Foreign {
            explanation.verdict.nodes = judged.nodes;
            let ours = self.config().scheduler_names.first().map_or("", |name| name);
            let advice =
                format!("To place it here, create it again with `schedulerName: {ours}`: the field cannot be changed");
            explanation.verdict.advice = vec![advice];
            return Some(explanation);
        }
        explanation.verdict = match &route {
            Route::Alone => PodVerdict { wakes: woken.unwrap_or(judged.wakes), ..judged },
            Route::Group(group) => self.member_verdict(id, group, woken, judged, now),
            // The nodes' verdicts do not matter.
            Route::NotReady(why) => PodVerdict {
                message: why.to_string(),
                advice: self.gang_advice(id, now).into_iter().collect(),
                wakes: vec![super::judged::GANG_CHANGES.to_owned()],
                ..PodVerdict::default()
            },
        };
        let group = match &route {
            Route::Group(group) => Some(group),
            Route::Alone | Route::NotReady(_) => None,
        };
        let nomination = self.preemption().get(id);
        let fits = explanation.verdict.nodes.iter().any(|node| node.fits);
        if nomination.is_none() && !matches!(route, Route::NotReady(_)) && (group.is_some() || !fits) {
            explanation.verdict.one_move = self.move_beside_nominated(id, group, now);
        }
        if let Some(nomination) = nomination {
            self.add_room(&mut explanation.verdict, nomination, now);
        }
        Some(explanation)
    }

    /// What is known of a pod whatever the rules say of it.
    fn explain_state(&self, pod: &Pod, route: &Route, standing: Option<Standing<'_>>, now: Moment) -> Explanation {
        let (state, key) = (self.pod_state(pod), pod.key());
        let seconds = |at: Duration| at.saturating_sub(now.mono).as_secs();
        // A bound pod holds what its node's daemon says.
        let bound = pod.node().filter(|_| state == PodState::Bound).and_then(|id| self.world().node(id));
        let held = bound.map_or(pod.devices.as_ref(), |node| node.holding(pod));
        let mut verdict = PodVerdict { message: self.state_message(pod, now), ..PodVerdict::default() };
        if state == PodState::WaitingForLock {
            verdict.advice = vec![self.lock_advice(pod.id, now)];
        }
        if bound.and_then(|node| node.said_of(pod)).is_some_and(|held| held.devices().is_empty()) {
            verdict.advice = vec!["Delete it, so that its owner makes another".to_owned()];
        } else if let Some(delay) = self.lock_delay(pod, now).filter(|delay| delay.judge() > Delay::Usual) {
            verdict.advice = vec![delay.advice()];
        }
        if state == PodState::Ended {
            let advice = format!("Its status shows how it ended, and why if it failed: `baton get pods {key}`");
            verdict.advice = vec![advice];
        }
        Explanation {
            pod: key.to_string(),
            uid: pod.facts.handoff.pod.uid.to_string(),
            state,
            scheduler_name: pod.facts.handoff.scheduler_name.to_string(),
            priority: pod.facts.spec.priority,
            group: match route {
                Route::Group(group) => Some(group.to_string()),
                Route::NotReady(_) => self.world().gangs().gang_of(pod.id).map(|gang| gang.group().to_string()),
                Route::Alone => None,
            },
            node: self.node_name(pod.node()),
            devices: held.map(held_words).unwrap_or_default(),
            served_at: pod.served.and_then(|served| {
                now.wall.checked_sub(SignedDuration::try_from(now.mono.saturating_sub(served.at)).ok()?).ok()
            }),
            lock_held_millis: pod.served.and_then(|served| served.held.as_millis().try_into().ok()),
            queued_seconds: standing.map(|standing| now.mono.saturating_sub(standing.since).as_secs()),
            attempts: standing.map_or(0, |standing| standing.attempts),
            next_try_seconds: standing.and_then(next_try).map(seconds),
            verdict,
            generation: self.world().generation(),
        }
    }

    fn add_room(&self, verdict: &mut PodVerdict, nomination: &Nomination, now: Moment) {
        if !nomination.victims.is_empty() {
            verdict.advice = vec![LEAVING_ADVICE.to_owned()];
        }
        let text = self.room(nomination, now);
        let _ = write!(verdict.message, "; {text}");
        verdict.room = Some(text);
    }

    /// The node where room is made or kept, which pods have yet to leave it, and until when.
    fn room(&self, nomination: &Nomination, now: Moment) -> String {
        let node = self.node_name(Some(nomination.node)).unwrap_or_default();
        let left = SignedDuration::try_from(nomination.until.saturating_sub(now.mono)).unwrap_or(SignedDuration::MAX);
        let until = now.wall.saturating_add(left).unwrap_or(now.wall);
        let victim = |uid| Some(self.world().pod(self.world().pod_id(uid)?)?.key().to_string());
        let victims: Vec<String> = nomination.victims.iter().filter_map(victim).collect();
        let more = victims.len().saturating_sub(NAMED);
        let named = victims.iter().take(NAMED).cloned().collect::<Vec<_>>().join(", ");
        match (victims.len(), more) {
            (0, _) => format!("room is kept on node {node} until {until:.0}"),
            (1, _) => format!("room is made on node {node}: {named} leaves by {until:.0}"),
            (_, 0) => format!("room is made on node {node}: {named} leave by {until:.0}"),
            _ => format!("room is made on node {node}: {named} and {more} more leave by {until:.0}"),
        }
    }

    /// The verdict on a member: what its gang lacks comes first, since the member starts with it or not at all; then the nodes'
    /// verdicts on the pod by itself.
    fn member_verdict(
        &self,
        id: PodId,
        group: &GroupId,
        woken: Option<Vec<String>>,
        judged: PodVerdict,
        now: Moment,
    ) -> PodVerdict {
        let failure = self.gangs().record(group).and_then(|record| record.progress.last_failure.clone());
        let gang = failure.unwrap_or_else(|| format!("gang {group} was not tried yet"));
        // Members are alike: what the gang lacks is mostly what this one does.
        let known = judged.message.split("; nearest: ").next().is_some_and(|own| gang.contains(own));
        let never = self.never_starts(group);
        // Room on a node helps one that may start.
        let said =
            if never { judged.message.split("; nearest: ").next().unwrap_or_default() } else { &*judged.message };
        let own = if known { String::new() } else { format!("; by itself: {said}") };
        let mut advice: Vec<String> = self.gang_advice(id, now).into_iter().collect();
        let mut wakes = woken.unwrap_or(judged.wakes);
        if never {
            wakes.retain(|when| !frees(when));
        } else {
            advice.extend(judged.advice);
        }
        let nearest = judged.nearest.filter(|_| !never);
        PodVerdict { message: gang + &own, advice, wakes, nearest, ..judged }
    }

    /// What to do about the gang of a pod, and which command shows more.
    fn gang_advice(&self, id: PodId, now: Moment) -> Option<String> {
        let gang = self.world().gangs().gang_of(id)?.id().clone();
        let advice = self.gang_state(&gang, now)?.advice;
        let mut letters = advice.chars();
        let first = letters.next()?.to_uppercase();
        Some(format!("{first}{}; `baton explain gang {gang}` shows all members", letters.as_str()))
    }

    /// `true` when another scheduler places the pod and asks this one about its devices.
    fn asks_by_extender(&self, id: PodId) -> bool {
        self.world().pod(id).is_some_and(|pod| {
            let name = &pod.facts.handoff.scheduler_name;
            self.config().asking_names.contains(name) && !self.config().scheduler_names.contains(name)
        })
    }

    /// The rules' verdict on a waiting pod now, with nominated room closed. `by_extender`: another scheduler chooses its node.
    fn judge_live(&self, id: PodId, by_extender: bool, now: Moment) -> PodVerdict {
        let verdict = self.world().pod(id).map(|pod| {
            let world = self.as_found_by(pod, now);
            let view = View { world: &world, now: now.mono };
            let mut judged = judge_all(view, self.rules(), pod);
            if !judged.fitting.is_empty() {
                let best = self.best_nodes(view, pod, &mut judged);
                let node = best.first().map(|best| best.node.clone()).unwrap_or_default();
                judged.verdict.message = match judged.fitting.len() {
                    1 if by_extender => format!("fits node {node}"),
                    count if by_extender => format!("fits {count} nodes"),
                    _ => format!("would go to node {node}"),
                };
            }
            judged.verdict
        });
        verdict.unwrap_or_default()
    }

    /// The best of [`Scheduler::rated_nodes`].
    pub(super) fn best_nodes(&self, view: View<'_>, pod: &Pod, judged: &mut NodeJudgements) -> Vec<RatedNode> {
        let mut nodes = self.rated_nodes(view, pod, judged);
        nodes.truncate(BEST);
        for rated in &mut nodes {
            let Some((id, node)) = view.world.node_id(&rated.node).and_then(|id| Some((id, view.world.node(id)?)))
            else {
                continue;
            };
            for rating in &mut rated.ratings {
                let rule = self.rules().enabled().score.iter().find(|(rule, _)| rule.name() == rating.rule);
                rating.why = rule.and_then(|(rule, _)| rule.explain(view, pod, (id, node), &mut judged.slots));
            }
        }
        nodes
    }

    /// The nodes that fit, best first, the oldest first among equals.
    pub(super) fn rated_nodes(&self, view: View<'_>, pod: &Pod, judged: &mut NodeJudgements) -> Vec<RatedNode> {
        let mut rated: Vec<(NodeId, RatedNode)> = judged
            .fitting
            .iter()
            .map(|id| {
                let node = self.node_name(Some(*id)).unwrap_or_default();
                (*id, RatedNode { node, score: 0, ratings: Vec::new() })
            })
            .collect();
        // `fitting` is sorted by id.
        let each = |id: NodeId, rule: &'static str, score: i64, weight: i64| {
            if let Ok(at) = rated.binary_search_by_key(&id, |(id, _)| *id) {
                rated[at].1.score += score * weight;
                rated[at].1.ratings.push(Rating { rule: rule.to_owned(), score, weight, why: None });
            }
        };
        if let Err(text) = rate(view, self.rules(), pod, &judged.fitting, &mut judged.slots, each) {
            judged.verdict.message = text.into_owned();
        }
        rated.sort_by(|a, b| b.1.score.cmp(&a.1.score).then(a.0.cmp(&b.0)));
        rated.into_iter().map(|(_, node)| node).collect()
    }

    pub(super) fn node_name(&self, id: Option<NodeId>) -> Option<String> {
        self.world().node(id?).map(|node| node.name.to_string())
    }

    /// Whether a waiting pod is queued by itself or with its group.
    fn route_of(&self, pod: &Pod) -> Route {
        self.gangs().route(self.world(), self.reservations(), pod)
    }

    /// `true` when a waiting pod is in the queue, by itself or with its group, or its gang has reported why it is not ready.
    pub fn is_queued(&self, pod: &Pod) -> bool {
        match self.route_of(pod) {
            Route::Group(group) => {
                let record = self.gangs().record(&group);
                self.queue().state(Item::Group(group)).is_some()
                    || record.is_some_and(|record| record.not_ready.is_some() || !record.marking.is_empty())
            }
            Route::NotReady(_) => true,
            Route::Alone => self.queue().state(pod.id).is_some(),
        }
    }

    /// The world as a pod finds it whose turn has come: the room of nominated pods is closed, and nodes that are kept for less are open.
    /// A copy where there are any.
    pub(super) fn as_found_by(&self, pod: &Pod, now: Moment) -> Cow<'_, World> {
        let none_is_nominated = self.preemption().all().is_empty() && self.world().nominated().next().is_none();
        if none_is_nominated && self.earmarks().all().is_empty() {
            return Cow::Borrowed(self.world());
        }
        let mut world = self.world().clone();
        let PodSpec { priority, deadline, .. } = *pod.facts.spec;
        let group = world.gangs().gang_of(pod.id).map(|gang| Item::Group(gang.group().clone()));
        let item = group.unwrap_or(Item::Pod(pod.id));
        self.earmarks().open_in(&mut world, (&item, priority, deadline), now.wall);
        enter_nominated(self.preemption(), &mut world, self.scene(now).terms, (priority, pod.id));
        Cow::Owned(world)
    }

    /// The item of the queue that stands for the pod.
    fn item_of(&self, pod: &Pod, route: &Route) -> Option<Item> {
        let item = match route {
            Route::Alone | Route::NotReady(_) => Item::Pod(pod.id),
            Route::Group(group) => Item::Group(group.clone()),
        };
        self.queue().state(item.clone()).map(|_| item)
    }

    /// The state of a pod.
    pub(super) fn pod_state(&self, pod: &Pod) -> PodState {
        if let Some(attempt) = self.binder().attempts().get(&pod.id) {
            return attempt_state(attempt);
        }
        if self.reservations().get(pod.id).is_some() {
            return PodState::Held;
        }
        let handoff = &pod.facts.handoff;
        match pod.place {
            Place::Bound(_) | Place::Assumed(_) => return PodState::Bound,
            Place::Ended => return PodState::Ended,
            Place::Waiting if handoff.deleting.is_some() => return PodState::Deleting,
            Place::Waiting if !self.config().scheduler_names.contains(&handoff.scheduler_name) => {
                return PodState::Foreign;
            }
            Place::Waiting if !self.is_leading() => return PodState::Following,
            Place::Waiting => {}
        }
        let state = self.item_of(pod, &self.route_of(pod)).and_then(|item| self.queue().state(item));
        match state {
            Some(QueueState::BackOff(_)) => PodState::BackOff,
            Some(QueueState::Active | QueueState::Taken) => PodState::Active,
            // A member that its gang holds back is not in the queue.
            Some(QueueState::Parked(..)) | None => PodState::Parked,
        }
    }

    /// A bound pod that waits for its devices under its node's lock.
    pub(super) fn lock_delay<'a>(&'a self, pod: &'a Pod, now: Moment) -> Option<LockDelay<'a>> {
        let Place::Bound(node) = pod.place else { return None };
        self.world().node(node)?.lock_delay(&pod.facts.handoff, now.wall)
    }

    /// What to do about the lock for which a pod waits.
    fn lock_advice(&self, id: PodId, now: Moment) -> String {
        let node = self.binder().attempts().get(&id).and_then(|attempt| self.world().node(attempt.node));
        let delay = node.and_then(|node| self.world().holder_delay(node, now.wall));
        let nameless = |node: &&Node| {
            node.lock.read.named().is_none() && self.world().holder(node, now.wall) == Some(HolderState::Unknown)
        };
        match node.filter(nameless) {
            Some(node) => {
                let end = lock_end(self.scene(now), node).map(|at| taken_over(&format!("at {at:.0}")));
                format!(
                    "No pod holds the lock: {}; or find out what wrote it, and remove it by the command that `baton get locks {}` prints",
                    end.as_deref().unwrap_or("it is about to be taken over"),
                    node.name
                )
            }
            None => match delay.filter(|delay| delay.judge() >= Delay::Stuck) {
                Some(delay) => format!("Look at what keeps {} from its devices: `{}`", delay.holder, delay.look()),
                None => match node.and_then(|node| Some((node, self.world().bare_holder(node, now.wall)?))) {
                    Some((node, holder)) => format!("{} {}", holder.key(), without_devices(&node.name)),
                    None => LOCK_ADVICE.to_owned(),
                },
            },
        }
    }

    /// The message for a pod whose state matters more than the rules; empty for a pod that waits.
    pub(super) fn state_message(&self, pod: &Pod, now: Moment) -> String {
        let node = self.node_name(pod.node()).unwrap_or_default();
        let handoff = &pod.facts.handoff;
        match self.pod_state(pod) {
            PodState::Foreign => {
                let (theirs, ours) = (&handoff.scheduler_name, &self.config().scheduler_names);
                let served = |name: &str| ours.contains(name) || self.config().asking_names.contains(name);
                match (wants_of_another(self.world(), pod, served), ours.first()) {
                    (Some(want), Some(ours)) => other_scheduler_text(want, theirs, ours),
                    _ => format!("spec.schedulerName is {theirs}, which is not Baton"),
                }
            }
            PodState::Bound => self.bound_message(pod, now),
            PodState::Ended => match self.still_used(pod) {
                Some(used) => format!("has ended, and its devices are {used}"),
                None => "has ended and holds nothing".to_owned(),
            },
            PodState::Deleting => "is being deleted and will not be placed".to_owned(),
            PodState::Held => format!("holds its room on node {node} until its gang can start"),
            PodState::Preparing => format!("goes to node {node}; waits for its volumes"),
            PodState::WaitingForLock => {
                let attempt = self.binder().attempts().get(&pod.id);
                let wait = attempt.and_then(|attempt| self.binder().lock_wait(self.scene(now), attempt));
                wait.unwrap_or_else(|| format!("goes to node {node}"))
            }
            PodState::Locking => format!("goes to node {node}; its lock is being written"),
            PodState::Binding => format!("goes to node {node}; the Binding is being posted"),
            PodState::Active | PodState::BackOff | PodState::Parked | PodState::Following => String::new(),
        }
    }
}

impl Scheduler {
    /// How far a bound pod is, and what is wrong there.
    fn bound_message(&self, pod: &Pod, now: Moment) -> String {
        let Some(node) = pod.node().and_then(|id| self.world().node(id)) else { return String::new() };
        let (name, handoff) = (&node.name, &pod.facts.handoff);
        match node.said_of(pod) {
            Some(held) if held.devices().is_empty() => format!("bound to node {name}, and {}", without_devices(name)),
            // Served without a scheduler, it has no annotation that could be wrong.
            Some(held) if handoff.assignment.device_allocated.is_some() => {
                let held = held.devices().iter().map(|device| device.id.as_str());
                format!("bound to node {name}, and {}", holds_otherwise(held))
            }
            _ => {
                let delay = self.lock_delay(pod, now).map(|delay| delay.to_string());
                let fault = delay.or_else(|| node.daemon(now.wall).fault_for(handoff, name));
                format!("bound to node {name}{}", fault.map(|fault| format!("; {fault}")).unwrap_or_default())
            }
        }
    }

    /// By which processes the devices of a pod that has ended are used still.
    fn still_used(&self, pod: &Pod) -> Option<String> {
        let node = self.world().node(self.world().node_id(pod.facts.handoff.node.as_deref()?)?)?;
        let is_it = |left: &LeavingPod| left.namespace == pod.key().namespace && left.name == pod.key().name;
        node.leaving().find(|(left, held)| is_it(left) && !held.devices().is_empty()).map(|(left, _)| still_used(left))
    }
}

/// The state of a pod that is being bound.
fn attempt_state(attempt: &BindAttempt) -> PodState {
    match attempt.phase {
        BindPhase::Volumes { .. } => PodState::Preparing,
        BindPhase::Queue { .. } => PodState::WaitingForLock,
        BindPhase::Lock { .. } => PodState::Locking,
        BindPhase::Post(_) | BindPhase::PostAgain(_) | BindPhase::Confirm(_) | BindPhase::ConfirmAgain(..) => {
            PodState::Binding
        }
    }
}

/// Monotonic time of the next try, if no event comes before.
pub(super) fn next_try(standing: Standing<'_>) -> Option<Duration> {
    match standing.state {
        QueueState::Active => Some(Duration::ZERO),
        QueueState::BackOff(at) => Some(*at),
        QueueState::Parked(_, latest) => *latest,
        QueueState::Taken => None,
    }
}

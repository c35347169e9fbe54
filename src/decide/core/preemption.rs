//! Preemption: room for a pod that fits no node, at the cost of pods of lower priority. This file keeps the nominations: on which
//! node room is made, until when it is kept, and which pods may not take it.
//!
//! ```text
//!   no node fits ──dry run per node──▶ candidates ──PostFilter picks──▶ nominated, victims evicted
//!                                                                          │
//!      tried again when they are gone; meanwhile its room is closed to pods of equal and lower priority
//! ```
//!
//! A gang is never left with fewer members than its minimum: its surplus leaves first, else all of it.
//!
//! A dry run takes pods out of the world's accounts, runs the rules that decide placement, and puts everything back.

mod dry_run;
mod units;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::world::gangs::{Gang, GroupId};
use crate::world::{NodeId, Place, Pod, PodId, World};
use baton_contract::{EventReason, PodUid};

use super::context::Context;
use super::effect::Effect;
use super::queue::Item;
use super::rules::plugins::device_fit;
use super::rules::{Outcome, Plugins, PreemptionCandidate, Reads, Slots, View};
use super::select::choose::{judge, prepare};
use super::timers::Timer;

pub use dry_run::{
    VictimSet, candidates, judge_budgets, lower_priority, most_important_first, split_leaving, victim_sets,
};
pub use units::Units;

/// How long the room stays closed after the last victim has left.
const KEPT: Duration = Duration::from_secs(60);
/// First and longest pause before a nomination whose write failed is written again.
const REWRITE: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));
/// A victim that has not left is evicted again after this time.
const EVICT_AGAIN: Duration = Duration::from_secs(10);

/// Room that is kept for a pod, or being made for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Nomination {
    /// The node.
    pub node: NodeId,
    /// Monotonic time when this was decided, or read from the pod's status.
    pub since: Duration,
    /// Victims that have not left yet.
    pub victims: BTreeSet<PodUid>,
    /// Monotonic time until which the room stays closed; set when the last victim has left, of a group the last of all victims.
    pub until: Option<Duration>,
    /// The group, where room is made for all of it.
    pub group: Option<GroupId>,
}

/// Nominated pods.
#[derive(Debug, Clone, Default)]
pub struct Preemption {
    nominations: BTreeMap<PodId, Nomination>,
    /// Nominations that are not written to the pod's status yet, with the number of consecutive failures.
    unwritten: BTreeMap<PodId, u32>,
}

impl Preemption {
    /// The nomination of a pod.
    pub fn get(&self, id: PodId) -> Option<&Nomination> {
        self.nominations.get(&id)
    }

    /// All of them by pod.
    pub const fn all(&self) -> &BTreeMap<PodId, Nomination> {
        &self.nominations
    }

    /// Waiting for victims is of no use: one of these nodes is lost, or refuses its nominated pod even when it is empty. Only rules
    /// that read nothing but the node count: members of a group with affinity to each other all wait, and none of them would find
    /// the others.
    pub fn is_hopeless<'p>(cx: &Context<'_>, nominated: impl IntoIterator<Item = (&'p Pod, NodeId)>) -> bool {
        let mut last: Option<(&Pod, Option<Slots>)> = None;
        nominated.into_iter().any(|(pod, id)| {
            let Some(node) = cx.world.node(id).filter(|node| node.facts.is_some()) else { return true };
            if pod.asks_for_devices() && node.stock.is_some() && node.live_agent().is_none() {
                return true;
            }
            // Pods of one template are prepared once.
            let slots = match last.take() {
                Some((before, slots)) if before.is_of_template(pod) => slots,
                _ => prepare(cx.terms.view(cx.world), cx.terms.rules, pod).ok(),
            };
            let (_, slots) = last.insert((pod, slots));
            slots.as_mut().is_some_and(|slots| Self::refuses_for_good(cx, pod, id, slots))
        })
    }

    /// The node refuses the pod even when it is empty.
    pub fn refuses_for_good(cx: &Context<'_>, pod: &Pod, id: NodeId, slots: &mut Slots) -> bool {
        let Some(node) = cx.world.node(id) else { return true };
        cx.terms.rules.enabled().filter.iter().any(|rule| {
            rule.reads(pod, slots) <= Reads::Node
                && matches!(rule.filter(cx.terms.view(cx.world), pod, (id, node), slots), Outcome::Never(_))
        })
    }

    /// Every victim that has not left yet.
    pub fn chosen_victims(&self, world: &World) -> BTreeSet<PodId> {
        let victims = self.nominations.values().flat_map(|nomination| &nomination.victims);
        victims.filter_map(|uid| world.pod_id(uid)).collect()
    }

    /// The victims for a pod that fits no node, as the PostFilter rules choose them. `None` when no victims make room. `gone`: pods
    /// that are victims already.
    pub fn pick(cx: &mut Context<'_>, pod: &Pod, gone: &BTreeSet<PodId>) -> Option<PreemptionCandidate> {
        let found = Self::with_nominated(cx, pod.facts.spec.priority, pod.id, |cx| {
            candidates(cx.world, cx.terms.rules, pod, gone, cx.terms.now.mono)
        });
        cx.terms.rules.enabled().post_filter().iter().find_map(|rule| rule.pick(&found)).cloned()
    }

    /// Evicts the victims and closes the room on the node to pods of the same or a lower priority. Returns what to report.
    pub fn nominate(cx: &mut Context<'_>, id: PodId, picked: &PreemptionCandidate, group: Option<&GroupId>) -> String {
        let (Some(pod), Some(node)) = (cx.world.pod(id), cx.world.node(picked.node)) else { return String::new() };
        let (by, node_name) = (pod.facts.handoff.pod.clone(), node.name.clone());
        let mut victims = leaving_uids(cx.world, picked.node, pod);
        for victim in &picked.victims {
            let Some(other) = cx.world.pod(victim.pod) else { continue };
            let reference = other.facts.handoff.pod.clone();
            victims.insert(reference.uid.clone());
            let mut message = format!("preempted by pod {} ({}) on node {node_name}", by.key, by.uid);
            if let Some(at) = other.node().filter(|at| *at != picked.node).and_then(|at| cx.world.node(at)) {
                message = format!("{message}: leaves node {} with the other members of its gang", at.name);
            }
            cx.agenda.effects.push(Effect::Notice {
                pod: reference.clone(),
                warning: false,
                reason: EventReason::Preempted,
                message: message.clone(),
            });
            cx.agenda.effects.push(Effect::Evict { pod: reference, message });
            cx.agenda.stats.preempted += 1;
        }
        let eviction = eviction_text(cx.world, picked);
        Self::enter(cx, id, picked.node, victims, group.cloned());
        cx.preemption.unwritten.remove(&id);
        cx.agenda.effects.push(Effect::Nominate { pod: by, node: Some(node_name.clone()) });
        match eviction {
            None => format!("waits for pods that are leaving node {node_name}"),
            Some(eviction) => format!("evicting {eviction}"),
        }
    }

    fn enter(cx: &mut Context<'_>, id: PodId, node: NodeId, victims: BTreeSet<PodUid>, group: Option<GroupId>) {
        let until = (victims.is_empty() && group.is_none()).then(|| cx.terms.now.mono + KEPT);
        cx.agenda.timers.set(until.unwrap_or(cx.terms.now.mono + EVICT_AGAIN), Timer::Nomination(id));
        let nomination = Nomination { node, since: cx.terms.now.mono, victims, until, group };
        let before = cx.preemption.nominations.insert(id, nomination);
        if before.is_some_and(|before| before.node != node) {
            cx.agenda.room_freed();
        }
    }

    /// A pod is gone or has ended: it may have been the last victim of a nomination.
    pub fn victim_gone(cx: &mut Context<'_>, uid: &PodUid) {
        let mut freed: Vec<(PodId, Option<GroupId>)> = Vec::new();
        for (id, nomination) in &mut cx.preemption.nominations {
            if nomination.victims.remove(uid) && nomination.victims.is_empty() {
                freed.push((*id, nomination.group.clone()));
            }
        }
        for (id, group) in freed {
            Self::last_victim_gone(cx, id, group.as_ref());
        }
    }

    /// The last victim of this pod has left: its room is kept from now on for a limited time; that of a group, when this is so for
    /// all its members.
    fn last_victim_gone(cx: &mut Context<'_>, id: PodId, group: Option<&GroupId>) {
        let until = cx.terms.now.mono + KEPT;
        let together = |other: PodId, nomination: &Nomination| match group {
            None => other == id,
            Some(group) => nomination.group.as_ref() == Some(group),
        };
        let nominations = &mut cx.preemption.nominations;
        if nominations.iter().any(|(other, found)| together(*other, found) && !found.victims.is_empty()) {
            return;
        }
        for (other, nomination) in nominations {
            if together(*other, nomination) && nomination.until.is_none() {
                nomination.until = Some(until);
                cx.agenda.timers.set(until, Timer::Nomination(*other));
            }
        }
    }

    /// The timer of a nomination fired: its time is over, or its victims are evicted again.
    pub fn due(cx: &mut Context<'_>, id: PodId) {
        let Some(nomination) = cx.preemption.nominations.get(&id) else { return };
        match nomination.until {
            Some(until) if until <= cx.terms.now.mono => {
                Self::withdraw(cx, id);
                cx.agenda.room_freed();
            }
            Some(_) => {}
            None if nomination.victims.is_empty() => {
                // The last member of its group with victims may have been deleted.
                let group = nomination.group.clone();
                cx.agenda.timers.set(cx.terms.now.mono + EVICT_AGAIN, Timer::Nomination(id));
                Self::last_victim_gone(cx, id, group.as_ref());
            }
            None if cx.world.pod(id).is_some_and(|pod| Self::is_hopeless(cx, [(pod, nomination.node)])) => {
                let group = nomination.group.clone();
                Self::withdraw(cx, id);
                let item = if let Some(group) = group {
                    // The plan for the whole group is void.
                    Self::withdraw_group(cx, &group);
                    Item::Group(group)
                } else {
                    Item::Pod(id)
                };
                cx.agenda.queue.activate(item);
                cx.agenda.room_freed();
            }
            None => {
                // An eviction may have failed; the watch shows one that succeeded.
                let victims = nomination.victims.iter().filter_map(|uid| cx.world.pod(cx.world.pod_id(uid)?));
                for victim in victims.filter(|victim| victim.facts.handoff.deleting.is_none()) {
                    let pod = victim.facts.handoff.pod.clone();
                    cx.agenda.effects.push(Effect::Evict { pod, message: "preempted, asked again".to_owned() });
                }
                cx.agenda.timers.set(cx.terms.now.mono + EVICT_AGAIN, Timer::Nomination(id));
            }
        }
    }

    /// The pod needs no room any more: the room that was kept for it opens.
    pub fn forget(cx: &mut Context<'_>, id: PodId) {
        if cx.preemption.nominations.remove(&id).is_some() {
            cx.agenda.room_freed();
        }
    }

    /// The pod is gone: its nomination ends, and is not written any more.
    pub fn gone(cx: &mut Context<'_>, id: PodId) {
        cx.preemption.unwritten.remove(&id);
        Self::forget(cx, id);
    }

    /// Opens the room again. The pod's status is cleared only while the pod waits.
    pub fn withdraw(cx: &mut Context<'_>, id: PodId) {
        if cx.preemption.nominations.remove(&id).is_some()
            && let Some(pod) = cx.world.pod(id).filter(|pod| pod.place == Place::Waiting)
            && pod.facts.handoff.deleting.is_none()
        {
            cx.agenda.effects.push(Effect::Nominate { pod: pod.facts.handoff.pod.clone(), node: None });
            cx.preemption.unwritten.remove(&id);
        }
    }

    /// Opens the room that was kept for any member of a group, which has its places now.
    pub fn withdraw_group(cx: &mut Context<'_>, group: &GroupId) {
        let gangs = cx.world.gangs();
        let of_group = |id: &PodId| gangs.gang_of(*id).is_some_and(|gang| gang.group() == group);
        let nominated: Vec<PodId> = cx.preemption.nominations.keys().copied().filter(of_group).collect();
        if nominated.is_empty() {
            return;
        }
        nominated.into_iter().for_each(|id| Self::withdraw(cx, id));
        // The group may have other nodes, and the room that was kept for it fits other pods.
        cx.agenda.room_freed();
    }

    /// The write or removal of a nomination failed: it is retried with a growing pause for as long as the pod waits.
    pub fn nomination_lost(cx: &mut Context<'_>, pod: &PodUid) {
        let Some(id) = cx.world.pod_id(pod).filter(|_| cx.terms.leading) else { return };
        let failures = cx.preemption.unwritten.entry(id).or_default();
        let pause = REWRITE.0.saturating_mul(1 << (*failures).min(6)).min(REWRITE.1);
        *failures += 1;
        cx.agenda.timers.set(cx.terms.now.mono + pause, Timer::WriteNomination(id));
    }

    /// Writes the present nomination, unless the pod's status has it already.
    pub fn write_again(cx: &mut Context<'_>, id: PodId) {
        if !cx.preemption.unwritten.contains_key(&id) {
            return;
        }
        let wanted = cx.preemption.nominations.get(&id).and_then(|nomination| cx.world.node(nomination.node));
        let wanted = wanted.map(|node| node.name.clone());
        let waits = |pod: &&Pod| pod.place == Place::Waiting && pod.facts.handoff.deleting.is_none();
        match cx.world.pod(id).filter(waits) {
            Some(pod) if pod.facts.spec.nominated != wanted => {
                cx.agenda.effects.push(Effect::Nominate { pod: pod.facts.handoff.pod.clone(), node: wanted });
            }
            _ => {
                cx.preemption.unwritten.remove(&id);
            }
        }
    }

    /// Takes over the nominations of an earlier leader: the pod's status names the node, and pods that are leaving it are its victims.
    pub fn adopt(cx: &mut Context<'_>) {
        let nominated: Vec<PodId> =
            cx.world.nominated().filter(|pod| cx.terms.is_ours(pod)).map(|pod| pod.id).collect();
        for id in nominated {
            let Some(pod) = cx.world.pod(id) else { continue };
            let Some(at) = pod.facts.spec.nominated.as_deref().and_then(|name| cx.world.node_id(name)) else {
                continue;
            };
            let victims = leaving_uids(cx.world, at, pod);
            let group = cx.world.gangs().gang_of(id).map(|gang| gang.group().clone());
            Self::enter(cx, id, at, victims, group);
        }
    }

    /// Runs `decide` for `except`, a pod of this priority, while nominated pods of equal or higher priority count as reserved on
    /// their nodes: a node must fit with them and, where rules read other pods, also without any of them. Room that is made for
    /// the group of `except` is open to it. Where devices of a nominated pod are not free yet, the node is closed for such devices.
    pub fn with_nominated<T>(
        cx: &mut Context<'_>,
        priority: i32,
        except: PodId,
        decide: impl FnOnce(&mut Context<'_>) -> T,
    ) -> T {
        let entered = cx.preemption.enter_nominated(cx.world, cx.terms.rules, cx.terms.now.mono, (priority, except));
        let decided = decide(cx);
        entered.into_iter().rev().for_each(|id| _ = cx.world.forget(id));
        decided
    }

    /// [`Preemption::with_nominated`] without pods whose devices are not free yet: these close the node to new pods, not to a
    /// reservation that an earlier leader made.
    pub fn with_nominated_placed<T>(
        cx: &mut Context<'_>,
        priority: i32,
        except: PodId,
        decide: impl FnOnce(&mut Context<'_>) -> T,
    ) -> T {
        let entered = cx.preemption.enter_nominated(cx.world, cx.terms.rules, cx.terms.now.mono, (priority, except));
        let waits = |pod: &Pod| pod.asks_for_devices() && pod.devices.is_none();
        let (waiting, placed): (Vec<PodId>, Vec<PodId>) =
            entered.into_iter().partition(|id| cx.world.pod(*id).is_some_and(waits));
        waiting.into_iter().rev().for_each(|id| _ = cx.world.forget(id));
        let decided = decide(cx);
        placed.into_iter().rev().for_each(|id| _ = cx.world.forget(id));
        decided
    }

    /// Enters nominated pods into the accounts of their nodes, for [`Preemption::with_nominated`] or in a copy of the world. Returns
    /// the entered pods.
    pub fn enter_nominated(
        &self,
        world: &mut World,
        rules: &Plugins,
        now: Duration,
        (priority, except): (i32, PodId),
    ) -> Vec<PodId> {
        if self.nominations.is_empty() {
            return Vec::new();
        }
        let own = world.gangs().gang_of(except).map(Gang::group);
        let closed = |id: PodId| {
            let pod = world.pod(id).filter(|pod| pod.place == Place::Waiting && pod.facts.spec.priority >= priority);
            id != except && pod.is_some() && (own.is_none() || world.gangs().gang_of(id).map(Gang::group) != own)
        };
        let nominated = self.nominations.iter().map(|(id, nomination)| (*id, nomination.node));
        let closed: Vec<(PodId, NodeId)> = nominated.filter(|(id, _)| closed(*id)).collect();
        let mut entered = Vec::new();
        for (id, at) in closed {
            let Some(pod) = world.pod(id) else { continue };
            let view = View { world, now };
            let devices = prepare(view, rules, pod).ok().and_then(|mut slots| {
                let node = world.node(at)?;
                let fits = judge(view, rules, pod, (at, node), &mut slots).is_fit();
                fits.then(|| device_fit::plan(&slots, (at, node)))?.map(|plan| plan.held())
            });
            if world.assume_nominated(id, at, devices) {
                entered.push(id);
            }
        }
        entered
    }
}

/// `a, b from node n to make room`: which pods leave which nodes; `None` where none is evicted. The other members of a gang or job leave
/// their nodes with the one that makes room.
pub fn eviction_text(world: &World, picked: &PreemptionCandidate) -> Option<String> {
    let mut by_node: BTreeMap<(bool, &str), Vec<String>> = BTreeMap::new();
    for pod in picked.victims.iter().filter_map(|victim| world.pod(victim.pod)) {
        let at = pod.node().unwrap_or(picked.node);
        let name = world.node(at).map_or("", |node| &node.name);
        by_node.entry((at != picked.node, name)).or_default().push(pod.key().to_string());
    }
    let from = |((_, node), pods): (&(bool, &str), &Vec<String>)| format!("{} from node {node}", pods.join(", "));
    let all = by_node.iter().map(from).collect::<Vec<_>>().join(", ");
    let elsewhere = by_node.keys().any(|(elsewhere, _)| *elsewhere);
    let node = world.node(picked.node).map(|node| format!(" on node {}", node.name)).filter(|_| elsewhere);
    (!by_node.is_empty()).then(|| format!("{all} to make room{}", node.unwrap_or_default()))
}

/// Terminating pods of a node with a lower priority than `pod`.
pub fn leaving<'w>(world: &'w World, node: NodeId, pod: &Pod) -> impl Iterator<Item = &'w Pod> + use<'w> {
    let below = pod.facts.spec.priority;
    let pods = world.node(node).into_iter().flat_map(|node| node.pods.iter()).filter_map(|id| world.pod(*id));
    pods.filter(move |other| other.facts.handoff.deleting.is_some() && other.facts.spec.priority < below)
}

fn leaving_uids(world: &World, node: NodeId, pod: &Pod) -> BTreeSet<PodUid> {
    leaving(world, node, pod).map(|other| other.facts.handoff.pod.uid.clone()).collect()
}

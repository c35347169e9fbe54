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
mod leaving;
mod units;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::world::gangs::{Gang, GroupId};
use crate::world::{NodeId, Place, Pod, PodId, World};
use baton_contract::{EventReason, PodUid};

use super::agenda::{Agenda, Scene, Terms};
use super::effect::Effect;
use super::queue::Item;
use super::rules::plugins::device_fit;
use super::rules::{Outcome, PreemptionCandidate, Reads, Slots, View};
use super::select::choose::{judge, prepare};
use super::timers::Timer;

pub use dry_run::{
    VictimSet, candidates, judge_budgets, lower_priority, most_important_first, split_leaving, victim_sets,
};
pub use leaving::{SOON, leaves_within, leaving};
use leaving::{gone_by, leaving_uids};
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
    /// Monotonic time until which the room stays closed. While victims are there, of a group any, they leave by then, or others have to.
    pub until: Duration,
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

    /// Every victim that has not left yet.
    pub fn chosen_victims(&self, world: &World) -> BTreeSet<PodId> {
        let victims = self.nominations.values().flat_map(|nomination| &nomination.victims);
        victims.filter_map(|uid| world.pod_id(uid)).collect()
    }

    /// Evicts the victims and closes the room on the node to pods of the same or a lower priority. Returns what to report.
    pub fn nominate(
        &mut self,
        scene: Scene<'_>,
        agenda: &mut Agenda,
        id: PodId,
        picked: &PreemptionCandidate,
        group: Option<&GroupId>,
    ) -> String {
        let (Some(pod), Some(node)) = (scene.world.pod(id), scene.world.node(picked.node)) else {
            return String::new();
        };
        let (by, node_name) = (pod.facts.handoff.pod.clone(), node.name.clone());
        let mut victims = leaving_uids(scene.world, picked.node, pod, (scene.terms.now.mono, SOON));
        for victim in &picked.victims {
            let Some(other) = scene.world.pod(victim.pod) else { continue };
            let reference = other.facts.handoff.pod.clone();
            victims.insert(reference.uid.clone());
            let mut message = format!("preempted by pod {} ({}) on node {node_name}", by.key, by.uid);
            if let Some(at) = other.node().filter(|at| *at != picked.node).and_then(|at| scene.world.node(at)) {
                message = format!("{message}: leaves node {} with the other members of its gang", at.name);
            }
            agenda.effects.push(Effect::Notice {
                pod: reference.clone(),
                warning: false,
                reason: EventReason::Preempted,
                message: message.clone(),
            });
            agenda.effects.push(Effect::Evict { pod: reference, message });
            agenda.stats.preempted += 1;
        }
        let eviction = eviction_text(scene.world, picked);
        self.enter(scene, agenda, id, picked.node, victims, group.cloned());
        self.unwritten.remove(&id);
        agenda.effects.push(Effect::Nominate { pod: by, node: Some(node_name.clone()) });
        match eviction {
            None => format!("waits for pods that are leaving node {node_name}"),
            Some(eviction) => format!("evicting {eviction}"),
        }
    }

    fn enter(
        &mut self,
        scene: Scene<'_>,
        agenda: &mut Agenda,
        id: PodId,
        node: NodeId,
        victims: BTreeSet<PodUid>,
        group: Option<GroupId>,
    ) {
        let now = scene.terms.now;
        let mut nomination = Nomination { node, since: now.mono, victims, until: now.mono + KEPT, group };
        nomination.until = nomination.gone_by(scene.world).unwrap_or(nomination.until);
        agenda.timers.set(nomination.until.min(now.mono + EVICT_AGAIN), Timer::Nomination(id));
        let before = self.nominations.insert(id, nomination);
        if before.is_some_and(|before| before.node != node) {
            agenda.room_freed();
        }
    }

    /// A pod is gone or has ended: it may have been the last victim of a nomination.
    pub fn victim_gone(&mut self, terms: Terms<'_>, agenda: &mut Agenda, uid: &PodUid) {
        let mut freed: Vec<PodId> = Vec::new();
        for (id, nomination) in &mut self.nominations {
            if nomination.victims.remove(uid) && nomination.victims.is_empty() {
                freed.push(*id);
            }
        }
        for id in freed {
            // The room of a group is kept for a limited time from when this is so for all its members.
            let unit = self.unit(id);
            if unit.iter().any(|other| !self.nominations[other].victims.is_empty()) {
                continue;
            }
            let until = terms.now.mono + KEPT;
            for other in unit {
                if let Some(nomination) = self.nominations.get_mut(&other) {
                    nomination.until = until;
                    agenda.timers.set(until, Timer::Nomination(other));
                }
            }
        }
    }

    /// The pods for which room is made together with this one: the members of its group, or the pod alone.
    fn unit(&self, id: PodId) -> Vec<PodId> {
        let Some(nomination) = self.nominations.get(&id) else { return Vec::new() };
        let Some(group) = &nomination.group else { return vec![id] };
        let of_group = |(_, other): &(&PodId, &Nomination)| other.group.as_ref() == Some(group);
        self.nominations.iter().filter(of_group).map(|(id, _)| *id).collect()
    }

    /// Waiting for the victims of these pods is of no use: one does not leave, or the room would not help.
    pub fn is_hopeless(&self, scene: Scene<'_>, ids: &[PodId]) -> bool {
        let nominated = || ids.iter().filter_map(|id| Some((scene.world.pod(*id)?, self.nominations.get(id)?)));
        let stays = |nomination: &Nomination| {
            let gone_by = nomination.gone_by(scene.world);
            gone_by.is_some_and(|by| by <= scene.terms.now.mono)
        };
        nominated().any(|(_, nomination)| stays(nomination))
            || is_useless(scene, nominated().map(|(pod, nomination)| (pod, nomination.node)))
    }

    /// The timer of a nomination fired: its time is over, or its victims are evicted again.
    pub fn due(&mut self, scene: Scene<'_>, agenda: &mut Agenda, id: PodId) {
        let now = scene.terms.now;
        let unit = self.unit(id);
        let gone_by = unit.iter().filter_map(|id| self.nominations.get(id)?.gone_by(scene.world)).max();
        let hopeless = gone_by.is_some() && self.is_hopeless(scene, &unit);
        let Some(nomination) = self.nominations.get_mut(&id) else { return };
        if hopeless {
            let group = nomination.group.clone();
            self.withdraw(scene.world, agenda, id);
            let item = if let Some(group) = group {
                // The plan for the whole group is void.
                self.withdraw_group(scene.world, agenda, &group);
                Item::Group(group)
            } else {
                Item::Pod(id)
            };
            agenda.queue.activate(item);
            agenda.room_freed();
        } else if let Some(by) = gone_by {
            nomination.until = by;
            // An eviction may have failed; the watch shows one that succeeded.
            let victims = nomination.victims.iter().filter_map(|uid| scene.world.pod(scene.world.pod_id(uid)?));
            for victim in victims.filter(|victim| victim.facts.handoff.deleting.is_none()) {
                let pod = victim.facts.handoff.pod.clone();
                agenda.effects.push(Effect::Evict { pod, message: "preempted, asked again".to_owned() });
            }
            agenda.timers.set(by.min(now.mono + EVICT_AGAIN), Timer::Nomination(id));
        } else if nomination.until <= now.mono {
            self.withdraw(scene.world, agenda, id);
            agenda.room_freed();
        } else {
            agenda.timers.set(nomination.until, Timer::Nomination(id));
        }
    }

    /// The pod needs no room any more: the room that was kept for it opens.
    pub fn forget(&mut self, agenda: &mut Agenda, id: PodId) {
        if self.nominations.remove(&id).is_some() {
            agenda.room_freed();
        }
    }

    /// The pod has room on this node: room that was made on another one opens.
    pub fn placed(&mut self, agenda: &mut Agenda, id: PodId, node: NodeId) {
        if self.nominations.get(&id).is_some_and(|nomination| nomination.node != node) {
            self.forget(agenda, id);
        }
    }

    /// The pod is gone: its nomination ends, and is not written any more.
    pub fn gone(&mut self, agenda: &mut Agenda, id: PodId) {
        self.unwritten.remove(&id);
        self.forget(agenda, id);
    }

    /// Opens the room again. The pod's status is cleared only while the pod waits.
    pub fn withdraw(&mut self, world: &World, agenda: &mut Agenda, id: PodId) {
        if self.nominations.remove(&id).is_some()
            && let Some(pod) = world.pod(id).filter(|pod| pod.place == Place::Waiting)
            && pod.facts.handoff.deleting.is_none()
        {
            agenda.effects.push(Effect::Nominate { pod: pod.facts.handoff.pod.clone(), node: None });
            self.unwritten.remove(&id);
        }
    }

    /// Opens the room that was kept for any member of a group, which has its places now.
    pub fn withdraw_group(&mut self, world: &World, agenda: &mut Agenda, group: &GroupId) {
        let gangs = world.gangs();
        let of_group = |id: &PodId| gangs.gang_of(*id).is_some_and(|gang| gang.group() == group);
        let nominated: Vec<PodId> = self.nominations.keys().copied().filter(of_group).collect();
        if nominated.is_empty() {
            return;
        }
        nominated.into_iter().for_each(|id| self.withdraw(world, agenda, id));
        // The group may have other nodes, and the room that was kept for it fits other pods.
        agenda.room_freed();
    }

    /// The write or removal of a nomination failed: it is retried with a growing pause for as long as the pod waits.
    pub fn nomination_lost(&mut self, scene: Scene<'_>, agenda: &mut Agenda, pod: &PodUid) {
        let Some(id) = scene.world.pod_id(pod).filter(|_| scene.terms.leading) else { return };
        let failures = self.unwritten.entry(id).or_default();
        let pause = REWRITE.0.saturating_mul(1 << (*failures).min(6)).min(REWRITE.1);
        *failures += 1;
        agenda.timers.set(scene.terms.now.mono + pause, Timer::WriteNomination(id));
    }

    /// Writes the present nomination, unless the pod's status has it already.
    pub fn write_again(&mut self, world: &World, agenda: &mut Agenda, id: PodId) {
        if !self.unwritten.contains_key(&id) {
            return;
        }
        let wanted = self.nominations.get(&id).and_then(|nomination| world.node(nomination.node));
        let wanted = wanted.map(|node| node.name.clone());
        let waits = |pod: &&Pod| pod.place == Place::Waiting && pod.facts.handoff.deleting.is_none();
        match world.pod(id).filter(waits) {
            Some(pod) if pod.facts.spec.nominated != wanted => {
                agenda.effects.push(Effect::Nominate { pod: pod.facts.handoff.pod.clone(), node: wanted });
            }
            _ => {
                self.unwritten.remove(&id);
            }
        }
    }

    /// Takes over the nominations of an earlier leader: the pod's status names the node, and pods that are leaving it are its victims.
    pub fn adopt(&mut self, scene: Scene<'_>, agenda: &mut Agenda) {
        let nominated: Vec<PodId> =
            scene.world.nominated().filter(|pod| scene.terms.is_ours(pod)).map(|pod| pod.id).collect();
        for id in nominated {
            let Some(pod) = scene.world.pod(id) else { continue };
            let Some(at) = pod.facts.spec.nominated.as_deref().and_then(|name| scene.world.node_id(name)) else {
                continue;
            };
            let victims = leaving_uids(scene.world, at, pod, (scene.terms.now.mono, Duration::MAX));
            let group = scene.world.gangs().gang_of(id).map(|gang| gang.group().clone());
            self.enter(scene, agenda, id, at, victims, group);
        }
    }

    /// Enters pods that are nominated here into the accounts of their nodes, for [`super::placing::enter_nominated`]. Returns the entered
    /// pods.
    pub fn enter_own(&self, world: &mut World, terms: Terms<'_>, (priority, except): (i32, PodId)) -> Vec<PodId> {
        let (rules, now) = (terms.rules, terms.now.mono);
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

impl Nomination {
    /// Monotonic time by which its victims have left, those that leave at all; `None` where it has none. One whose deletion does not come
    /// about, or whose processes outlast it, has the same time as one that leaves by itself.
    fn gone_by(&self, world: &World) -> Option<Duration> {
        let by = |uid: &PodUid| {
            let leaves = world.pod_id(uid).and_then(|id| world.pod(id)).and_then(gone_by);
            leaves.unwrap_or_else(|| self.until.max(self.since + SOON))
        };
        self.victims.iter().map(by).max()
    }
}

/// Waiting for victims is of no use: one of these nodes is lost, or refuses its nominated pod even when it is empty. Only rules
/// that read nothing but the node count: members of a group with affinity to each other all wait, and none of them would find
/// the others.
fn is_useless<'p>(scene: Scene<'_>, nominated: impl IntoIterator<Item = (&'p Pod, NodeId)>) -> bool {
    let mut last: Option<(&Pod, Option<Slots>)> = None;
    nominated.into_iter().any(|(pod, id)| {
        let Some(node) = scene.world.node(id).filter(|node| node.facts.is_some()) else { return true };
        if pod.asks_for_devices() && node.stock.is_some() && node.live_agent().is_none() {
            return true;
        }
        // Pods of one template are prepared once.
        let slots = match last.take() {
            Some((before, slots)) if before.is_of_template(pod) => slots,
            _ => prepare(scene.view(), scene.terms.rules, pod).ok(),
        };
        let (_, slots) = last.insert((pod, slots));
        slots.as_mut().is_some_and(|slots| refuses_for_good(scene, pod, id, slots))
    })
}

/// The node refuses the pod even when it is empty.
pub fn refuses_for_good(scene: Scene<'_>, pod: &Pod, id: NodeId, slots: &mut Slots) -> bool {
    let Some(node) = scene.world.node(id) else { return true };
    scene.terms.rules.enabled().filter.iter().any(|rule| {
        rule.reads(pod, slots) <= Reads::Node
            && matches!(rule.filter(scene.view(), pod, (id, node), slots), Outcome::Never(_))
    })
}

//! A pod for which others make room: where, until when, and who may not take that room.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::contract::PodUid;
use crate::decide::gang::is_twin;
use crate::decide::scheduler::effect::{Effect, Effects};
use crate::decide::scheduler::engine::{Engine, Timer};
use crate::decide::scheduler::queue::Item;
use crate::decide::scheduler::rules::plugins::device_fit;
use crate::decide::scheduler::rules::{Candidate, Outcome, Reads, Slots, View};
use crate::decide::scheduler::settings::Moment;
use crate::decide::world::gangs::{Gang, GroupId};
use crate::decide::world::{NodeId, Place, Pod, PodId, Wake};

use super::dry_run::candidates;
use crate::decide::scheduler::select::choose::{judge, prepare};

/// How long the room stays closed after the last victim is gone.
const KEPT: Duration = Duration::from_secs(60);
/// First and longest pause before a nomination that was lost is written again.
const REWRITE: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));
/// A victim that does not leave is evicted again after this time.
const ASK_AGAIN: Duration = Duration::from_secs(10);

/// Room that is being made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Nomination {
    /// Where.
    pub node: NodeId,
    /// Monotonic time when this was decided, or read from the pod's status.
    pub since: Duration,
    /// Whoever has to leave and has not yet.
    pub victims: BTreeSet<PodUid>,
    /// Monotonic time until which the room stays closed; set when the last victim is gone, of a group when all of its are.
    pub until: Option<Duration>,
    /// The group for which as a whole others make room.
    pub group: Option<GroupId>,
}

impl Engine {
    /// Looks for victims for a pod that fits nowhere; evicts them and nominates the pod. Returns what to say about it.
    pub(in crate::decide) fn preempt(&mut self, id: PodId, now: Moment, effects: &mut Effects) -> Option<String> {
        let pod = self.world.pod(id)?.clone();
        if pod.facts.spec.never_preempts || self.plugins.enabled().post_filter.is_empty() {
            return None;
        }
        if self.nominations.get(&id).is_some_and(|nomination| self.is_hopeless(&pod, nomination.node, now)) {
            self.denominate(id, effects);
            self.woken(Wake::POD_FREED);
            self.jobs_news(Wake::POD_FREED, now);
        }
        if let Some(nomination) = self.nominations.get(&id).filter(|nomination| !nomination.victims.is_empty()) {
            let node = self.world.node(nomination.node).map_or("", |node| &node.name);
            return Some(format!("waits for {} pods to leave node {node}", nomination.victims.len()));
        }
        let pick = |engine: &mut Self| {
            let shadows = engine.shadow(pod.facts.spec.priority, id, now);
            let gone = engine.chosen_victims();
            let found = candidates(&mut engine.world, &engine.plugins, &pod, &gone, now.mono);
            engine.lift(shadows);
            engine.plugins.enabled().post_filter.iter().find_map(|plugin| plugin.pick(&found)).cloned()
        };
        // Where neither the room that groups hold nor that of victims is enough, both together may be.
        let below = self.holders_below(pod.facts.spec.priority);
        let picked = pick(self).map(|picked| (picked, Vec::new()));
        let (picked, released) = picked.or_else(|| self.give_way(&below, pick, |_| {}))?;
        if !released.is_empty() {
            self.tell_released(&released, &format!("pod {} goes first", pod.key()), effects);
        }
        Some(self.nominate(id, &picked, None, now, effects))
    }

    /// The node refuses the pod whoever leaves, or has died: what leaves it may never be gone.
    pub(in crate::decide) fn is_hopeless(&self, pod: &Pod, node: NodeId, now: Moment) -> bool {
        self.is_any_hopeless([(pod, node)], now)
    }

    /// One of these nodes refuses its pod whoever leaves, or has died. Only what a node says by itself counts: members of a group
    /// that want to be near each other all wait, so that none of them finds the others.
    pub(in crate::decide) fn is_any_hopeless<'a>(
        &self,
        nominated: impl IntoIterator<Item = (&'a Pod, NodeId)>,
        now: Moment,
    ) -> bool {
        let view = View { world: &self.world, now: now.mono };
        let mut last: Option<(&Pod, Option<Slots>)> = None;
        nominated.into_iter().any(|(pod, id)| {
            let Some(node) = self.world.node(id).filter(|node| node.facts.is_some()) else { return true };
            if pod.asks_for_devices() && node.stock.is_some() && node.live_agent().is_none() {
                return true;
            }
            // Pods of one template are prepared once.
            let slots = match last.take() {
                Some((before, slots)) if is_twin(before, pod) => slots,
                _ => prepare(view, &self.plugins, pod).ok(),
            };
            let (_, slots) = last.insert((pod, slots));
            slots.as_mut().is_some_and(|slots| self.refuses_for_good(pod, id, slots, now))
        })
    }

    /// The node by itself refuses the pod, whoever leaves.
    pub(in crate::decide) fn refuses_for_good(&self, pod: &Pod, id: NodeId, slots: &mut Slots, now: Moment) -> bool {
        let view = View { world: &self.world, now: now.mono };
        let Some(node) = self.world.node(id) else { return true };
        self.plugins.enabled().filter.iter().any(|plugin| {
            plugin.reads(pod, slots) <= Reads::Node
                && matches!(plugin.filter(view, pod, (id, node), slots), Outcome::Never(_))
        })
    }

    /// Everybody who has been evicted for somebody and is still there.
    pub(in crate::decide) fn chosen_victims(&self) -> BTreeSet<PodId> {
        let victims = self.nominations.values().flat_map(|nomination| &nomination.victims);
        victims.filter_map(|uid| self.world.pod_id(uid)).collect()
    }

    /// Evicts the victims and closes the room on the node for everybody of the same or a lower priority.
    pub(in crate::decide) fn nominate(
        &mut self,
        id: PodId,
        picked: &Candidate,
        group: Option<&GroupId>,
        now: Moment,
        effects: &mut Effects,
    ) -> String {
        let (Some(pod), Some(node)) = (self.world.pod(id), self.world.node(picked.node)) else { return String::new() };
        let (by, node_name) = (pod.facts.handoff.pod.clone(), node.name.clone());
        let leaving = node.pods.iter().filter_map(|id| self.world.pod(*id)).filter(|other| {
            other.facts.handoff.deleting.is_some() && other.facts.spec.priority < pod.facts.spec.priority
        });
        let mut victims: BTreeSet<PodUid> = leaving.map(|other| other.facts.handoff.pod.uid.clone()).collect();
        let mut names = Vec::new();
        for victim in &picked.victims {
            let Some(other) = self.world.pod(victim.pod) else { continue };
            let reference = other.facts.handoff.pod.clone();
            victims.insert(reference.uid.clone());
            names.push(reference.key.to_string());
            let message = format!("preempted by pod {} ({}) on node {node_name}", by.key, by.uid);
            effects.push(Effect::Notice {
                pod: reference.clone(),
                warning: false,
                reason: "Preempted",
                message: message.clone(),
            });
            effects.push(Effect::Evict { pod: reference, message });
        }
        self.stats.preempted += names.len() as u64;
        let until = (victims.is_empty() && group.is_none()).then(|| now.mono + KEPT);
        self.timers.insert((until.unwrap_or(now.mono + ASK_AGAIN), Timer::Nomination(id)));
        let (node, group) = (picked.node, group.cloned());
        self.nominations.insert(id, Nomination { node, since: now.mono, victims, until, group });
        self.unwritten.remove(&id);
        effects.push(Effect::Nominate { pod: by, node: Some(node_name.clone()) });
        if names.is_empty() {
            format!("waits for pods that are leaving node {node_name}")
        } else {
            format!("evicting {} from node {node_name} to make room", names.join(", "))
        }
    }

    /// A pod is gone or has ended: it may have been the last one somebody waited for.
    pub(in crate::decide) fn victim_gone(&mut self, uid: &PodUid, now: Moment) {
        let mut freed: Vec<(PodId, Option<GroupId>)> = Vec::new();
        for (id, nomination) in &mut self.nominations {
            if nomination.victims.remove(uid) && nomination.victims.is_empty() {
                freed.push((*id, nomination.group.clone()));
            }
        }
        for (id, group) in freed {
            self.last_victim_gone(id, group.as_ref(), now);
        }
    }

    /// Nobody is waited for any more for this pod: the time of its room runs, of a group's when that is so for all of it.
    fn last_victim_gone(&mut self, id: PodId, group: Option<&GroupId>, now: Moment) {
        let until = now.mono + KEPT;
        let together = |other: PodId, nomination: &Nomination| match group {
            None => other == id,
            Some(group) => nomination.group.as_ref() == Some(group),
        };
        if self.nominations.iter().any(|(other, found)| together(*other, found) && !found.victims.is_empty()) {
            return;
        }
        for (other, nomination) in &mut self.nominations {
            if together(*other, nomination) && nomination.until.is_none() {
                nomination.until = Some(until);
                self.timers.insert((until, Timer::Nomination(*other)));
            }
        }
    }

    /// The time of a nomination is over.
    pub(in crate::decide) fn nomination_due(&mut self, id: PodId, now: Moment, effects: &mut Effects) {
        let Some(nomination) = self.nominations.get(&id) else { return };
        match nomination.until {
            Some(until) if until <= now.mono => {
                self.denominate(id, effects);
                self.woken(Wake::POD_FREED);
                self.jobs_news(Wake::POD_FREED, now);
            }
            Some(_) => {}
            None if nomination.victims.is_empty() => {
                // Whoever waited with it may be gone.
                let group = nomination.group.clone();
                self.timers.insert((now.mono + ASK_AGAIN, Timer::Nomination(id)));
                self.last_victim_gone(id, group.as_ref(), now);
            }
            None if self.world.pod(id).is_some_and(|pod| self.is_hopeless(pod, nomination.node, now)) => {
                let group = nomination.group.clone();
                self.denominate(id, effects);
                if let Some(group) = group {
                    // What was planned for all of them does not stand any more.
                    self.denominate_group(&group, effects);
                    self.queue.activate(Item::Group(group), self.plugins.queue_sort());
                } else {
                    self.queue.activate(id, self.plugins.queue_sort());
                }
                self.woken(Wake::POD_FREED);
                self.jobs_news(Wake::POD_FREED, now);
            }
            None => {
                // An eviction may have failed; one that was heard is seen in the watch.
                let asked = nomination.victims.iter().filter_map(|uid| self.world.pod(self.world.pod_id(uid)?));
                for victim in asked.filter(|victim| victim.facts.handoff.deleting.is_none()) {
                    let pod = victim.facts.handoff.pod.clone();
                    effects.push(Effect::Evict { pod, message: "preempted, asked again".to_owned() });
                }
                self.timers.insert((now.mono + ASK_AGAIN, Timer::Nomination(id)));
            }
        }
    }

    /// The pod needs no room any more: what was kept for it is open, and whoever waits for room hears of it.
    pub(in crate::decide) fn forget_nomination(&mut self, id: PodId, now: Moment) {
        if self.nominations.remove(&id).is_some() {
            self.woken(Wake::POD_FREED);
            self.jobs_news(Wake::POD_FREED, now);
        }
    }

    /// Opens the room again. What the pod's status says is left alone when the pod has found a place.
    pub(in crate::decide) fn denominate(&mut self, id: PodId, effects: &mut Effects) {
        if self.nominations.remove(&id).is_some()
            && let Some(pod) = self.world.pod(id).filter(|pod| pod.place == Place::Waiting)
            && pod.facts.handoff.deleting.is_none()
        {
            effects.push(Effect::Nominate { pod: pod.facts.handoff.pod.clone(), node: None });
            self.unwritten.remove(&id);
        }
    }

    /// A nomination, or that there is none any more, was not written: it is tried again, later each time, for as long as the pod waits.
    pub(in crate::decide) fn nomination_lost(&mut self, pod: &PodUid, now: Moment) {
        let Some(id) = self.world.pod_id(pod).filter(|_| self.leading) else { return };
        let failures = self.unwritten.entry(id).or_default();
        let pause = REWRITE.0.saturating_mul(1 << (*failures).min(6)).min(REWRITE.1);
        *failures += 1;
        self.timers.insert((now.mono + pause, Timer::Nominate(id)));
    }

    /// Writes what holds now, unless the pod's status says so already.
    pub(in crate::decide) fn nominate_again(&mut self, id: PodId, effects: &mut Effects) {
        if !self.unwritten.contains_key(&id) {
            return;
        }
        let wanted = self.nominations.get(&id).and_then(|nomination| self.world.node(nomination.node));
        let wanted = wanted.map(|node| node.name.clone());
        let waits = |pod: &&Pod| pod.place == Place::Waiting && pod.facts.handoff.deleting.is_none();
        match self.world.pod(id).filter(waits) {
            Some(pod) if pod.facts.spec.nominated != wanted => {
                effects.push(Effect::Nominate { pod: pod.facts.handoff.pod.clone(), node: wanted });
            }
            _ => {
                self.unwritten.remove(&id);
            }
        }
    }

    /// A group has its room: what was kept for any of its members is open again.
    pub(in crate::decide) fn denominate_group(&mut self, group: &GroupId, effects: &mut Effects) {
        let of_group = |id: &PodId| self.world.gangs().gang_of(*id).is_some_and(|gang| gang.group() == group);
        let nominated: Vec<PodId> = self.nominations.keys().copied().filter(of_group).collect();
        if nominated.is_empty() {
            return;
        }
        nominated.into_iter().for_each(|id| self.denominate(id, effects));
        // It may have gone elsewhere, and what was kept for it fits others.
        self.woken(Wake::POD_FREED);
    }

    /// What a predecessor has nominated: the pod's status says where, and whoever is leaving there is waited for.
    pub(in crate::decide) fn nominated_before(&mut self, now: Moment) {
        let ours: Vec<PodId> = self.world.nominated().map(|pod| pod.id).collect();
        for id in ours {
            let Some(pod) = self.world.pod(id) else { continue };
            if !self.config.scheduler_names.contains(&pod.facts.handoff.scheduler_name) {
                continue;
            }
            let Some(at) = pod.facts.spec.nominated.as_deref().and_then(|name| self.world.node_id(name)) else {
                continue;
            };
            let Some(node) = self.world.node(at) else { continue };
            let leaving = node.pods.iter().filter_map(|other| self.world.pod(*other)).filter(|other| {
                other.facts.handoff.deleting.is_some() && other.facts.spec.priority < pod.facts.spec.priority
            });
            let victims: BTreeSet<PodUid> = leaving.map(|other| other.facts.handoff.pod.uid.clone()).collect();
            let group = self.world.gangs().gang_of(id).map(|gang| gang.group().clone());
            let until = (victims.is_empty() && group.is_none()).then(|| now.mono + KEPT);
            self.timers.insert((until.unwrap_or(now.mono + ASK_AGAIN), Timer::Nomination(id)));
            self.nominations.insert(id, Nomination { node: at, since: now.mono, victims, until, group });
        }
    }

    /// Enters nominated pods of the same or a higher priority into the accounts of their nodes, so that `except` sees what it may
    /// take: a node must fit with those nominated to it and, where rules read other pods, without any of them as well; room that is made for its own group is not closed to it. Where their devices are not free yet, the node is closed for such devices.
    pub(in crate::decide) fn shadow(&mut self, priority: i32, except: PodId, now: Moment) -> Vec<PodId> {
        if self.nominations.is_empty() {
            return Vec::new();
        }
        let own = self.world.gangs().gang_of(except).map(Gang::group);
        let closed: Vec<(PodId, NodeId)> = self
            .nominations
            .iter()
            .filter(|(id, _)| **id != except)
            .filter(|(id, _)| own.is_none() || self.world.gangs().gang_of(**id).map(Gang::group) != own)
            .filter(|(id, _)| {
                let pod = self.world.pod(**id).filter(|pod| pod.place == Place::Waiting);
                pod.is_some_and(|pod| pod.facts.spec.priority >= priority)
            })
            .map(|(id, nomination)| (*id, nomination.node))
            .collect();
        let mut shadows = Vec::new();
        for (id, at) in closed {
            let Some(pod) = self.world.pod(id) else { continue };
            let view = View { world: &self.world, now: now.mono };
            let devices = prepare(view, &self.plugins, pod).ok().and_then(|mut slots| {
                let node = self.world.node(at)?;
                let fits = judge(view, &self.plugins, pod, (at, node), &mut slots).is_fit();
                fits.then(|| device_fit::plan(&slots, (at, node)))?.map(|plan| plan.held())
            });
            if self.world.keep_room(id, at, devices) {
                shadows.push(id);
            }
        }
        shadows
    }

    /// Takes the shadows out again.
    pub(in crate::decide) fn lift(&mut self, shadows: Vec<PodId>) {
        for id in shadows.into_iter().rev() {
            self.world.forget(id);
        }
    }
}

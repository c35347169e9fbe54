//! Folding events into the world.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;

use baton_contract::gang::GangId;
use baton_contract::inventory::Device;
use baton_contract::quota::LimitRangeRules;
use baton_contract::{LockRead, PodKey, PodUid, Shared};

use super::agent::LeaseSeen;
use super::changes::{Changes, Wake};
use super::devices::{exclusive_of, may_hold};
use super::event::WorldEvent;
use super::gangs::{Gang, GangBook};
use super::node::{Node, NodeFacts, SliceFacts};
use super::pod::{Place, Pod, PodFacts, Served};
use super::spec::PodSpec;
use super::{NodeId, PodId, World};
use crate::devices::{Exclusive, Held};

impl World {
    /// Folds one event in. `now` is the monotonic time, `wall` the wall time.
    pub fn apply(&mut self, event: WorldEvent, now: Duration, wall: Timestamp) -> Changes {
        self.generation += 1;
        self.nodes.forget_left();
        let mut changes = Changes::default();
        match event {
            WorldEvent::Node(facts) => self.node_set(facts, now, &mut changes),
            WorldEvent::NodeGone(name) => {
                self.node_id(&name).into_iter().for_each(|id| self.nodes.take_object(id));
                self.change_node(&name, &mut changes, Wake::POD_PLACED, |node, changes| {
                    node.see_lock(LockRead::Free, now);
                    node.exceptions.restarted(changes);
                    true
                });
            }
            WorldEvent::Pod(facts) => self.pod_set(*facts, (now, wall), &mut changes),
            WorldEvent::PodRead(facts) => {
                if self.pod_id(&facts.handoff.pod.uid).is_some() {
                    self.pod_set(*facts, (now, wall), &mut changes);
                }
            }
            WorldEvent::PodGone(key, uid) => self.pod_gone(&key, &uid, (now, wall), &mut changes),
            WorldEvent::Devices(device) => self.devices_set(&device, wall, &mut changes),
            WorldEvent::DevicesGone(name) => self.devices_gone(&name, &mut changes),
            WorldEvent::Agent { node, status, version, renewed } => {
                let id = self.nodes.mention(&node);
                let status = status.map(|status| self.shared.agent(status));
                let lease = LeaseSeen { status, version, renewed };
                if self.nodes.see_agent(id, lease, self.policy.agent_stale, (now, wall), &mut changes) {
                    self.node_changed(id, Wake::AGENT, &mut changes);
                }
            }
            WorldEvent::AgentGone(name) => {
                self.change_node(&name, &mut changes, Wake::NONE, |node, _| node.agent.take().is_some());
            }
            WorldEvent::Slice(name, facts) => self.slice_set(name, facts, &mut changes),
            WorldEvent::Namespace(name, labels) => {
                self.namespaces.insert(name, labels);
                changes.wake = Wake::NAMESPACE;
            }
            WorldEvent::NamespaceGone(name) => {
                self.namespaces.remove(&name);
            }
            WorldEvent::Volume(..)
            | WorldEvent::VolumeGone(_)
            | WorldEvent::Claim(..)
            | WorldEvent::ClaimGone(_)
            | WorldEvent::Class(..)
            | WorldEvent::ClassGone(_)
            | WorldEvent::Driver(..)
            | WorldEvent::Capacity(..) => {
                let (pods, nodes) = (&self.pods, &self.nodes);
                let at = |id| pods.get(id).and_then(|pod| Some((pod, &*nodes.get(pod.node()?)?.name)));
                changes.wake = self.volumes.apply(event, at);
            }
            WorldEvent::PriorityClass(name, class) => self.jobs.priority_class(name, Some(class), &mut changes),
            WorldEvent::PriorityClassGone(name) => self.jobs.priority_class(name, None, &mut changes),
            WorldEvent::Job(mut facts) => {
                self.quotas.fill_new(&mut facts);
                self.jobs.set(*facts, &mut changes);
            }
            WorldEvent::JobGone(job) => self.jobs.gone(job, &mut changes),
            WorldEvent::Quota(key, rules) => {
                let namespace = key.namespace.clone();
                let changed = self.quotas.quota(key, rules.map(|rules| *rules));
                self.jobs.allowance_changed(changed.then_some(namespace), &mut changes);
            }
            WorldEvent::LimitRange(key, rules) => self.limit_range_set(key, rules.map(|rules| *rules), &mut changes),
            WorldEvent::Readable(name, readable) => {
                if self.quotas.readable(name, readable) && self.jobs.any() {
                    changes.wake = Wake::QUOTA;
                }
            }
            WorldEvent::PodGroup(facts) => {
                let gang = facts.gang.clone();
                let change = |gangs: &mut GangBook| gangs.pod_group(*facts);
                self.pod_group_changed(&gang, change, (now, wall), &mut changes);
            }
            WorldEvent::PodGroupGone(api, gang) => {
                let change = |gangs: &mut GangBook| gangs.pod_group_gone(api, &gang);
                self.pod_group_changed(&gang, change, (now, wall), &mut changes);
            }
            WorldEvent::Layers(layers) => {
                if self.gangs.set_layers(layers) {
                    // What is gathered may fit elsewhere, as if the nodes' labels had changed.
                    changes.wake = Wake::NODE_CHANGED;
                }
            }
            WorldEvent::Budget(key, facts) => {
                self.budgets.insert(key, facts);
            }
            WorldEvent::BudgetGone(key) => {
                self.budgets.remove(&key);
            }
        }
        changes
    }

    /// Lets agents grow stale, cordons of devices end, and devices be free of which daemons have said nothing.
    pub fn age(&mut self, now: Duration, wall: Timestamp) -> Changes {
        let mut changes = Changes::default();
        if self.nodes.may_age(now, wall) {
            let opened = self.nodes.age(self.policy.agent_stale, (now, wall), &mut self.shared, &mut changes);
            if !opened.is_empty() {
                changes.wake = Wake::DEVICES;
                self.mix.devices_changed();
                opened.iter().for_each(|id| self.recount_devices(*id));
                changes.nodes.extend(opened);
            }
        }
        self.age_leaving(now, &mut changes);
        self.generation += u64::from(!changes.nodes.is_empty());
        changes.nodes.iter().for_each(|id| self.nodes.touch(*id));
        changes
    }

    /// Records what a writer found in a node's lock, ahead of the watch. `true` when it is news.
    pub fn observe_lock(&mut self, id: NodeId, read: LockRead, now: Duration) -> bool {
        let before = self.lock_holder(id);
        let Some(node) = self.nodes.get_mut(id) else { return false };
        let news = node.see_lock(read, now);
        self.note_served(id, before, now);
        self.nodes.note_lock(id);
        self.generation += u64::from(news);
        news
    }

    fn change_node(
        &mut self,
        name: &str,
        changes: &mut Changes,
        wake: Wake,
        change: impl FnOnce(&mut Node, &mut Changes) -> bool,
    ) {
        let Some(id) = self.node_id(name) else { return };
        let Some(node) = self.nodes.get_mut(id) else { return };
        if change(node, changes) {
            self.node_changed(id, wake, changes);
        }
        self.nodes.note_lock(id);
        self.nodes.forget_if_unused(id);
    }

    fn node_changed(&mut self, id: NodeId, wake: Wake, changes: &mut Changes) {
        changes.wake = changes.wake.or(wake);
        changes.nodes.push(id);
        self.recount_devices(id);
        self.nodes.touch(id);
    }

    fn node_set(&mut self, mut facts: NodeFacts, now: Duration, changes: &mut Changes) {
        let id = self.nodes.mention(&facts.name);
        self.shared.allocatable(&mut facts.allocatable);
        if !self.policy.images {
            facts.images = Box::default();
        }
        self.mix.classify(id, &facts);
        let before = self.lock_holder(id);
        if self.nodes.set_object(id, facts, now, changes) {
            self.recount_devices(id);
        }
        changes.served.extend(self.note_served(id, before, now));
    }

    fn devices_set(&mut self, device: &Device, wall: Timestamp, changes: &mut Changes) {
        let id = self.nodes.mention(device.metadata.name.as_deref().unwrap_or_default());
        self.mix.devices_changed();
        let before = self.nodes.suspicion(id);
        if self.nodes.set_devices(id, device, wall, &mut self.shared) {
            self.node_changed(id, Wake::DEVICES, changes);
        }
        self.nodes.suspects_changed(id, before, changes);
    }

    fn devices_gone(&mut self, name: &str, changes: &mut Changes) {
        let Some(id) = self.node_id(name) else { return };
        let before = self.nodes.suspicion(id);
        self.change_node(name, changes, Wake::DEVICES, |node, _| node.stock.take().is_some());
        self.nodes.suspects_changed(id, before, changes);
    }

    /// A slice has come, changed, moved to another node or, with `None`, gone.
    fn slice_set(&mut self, name: Box<str>, facts: Option<SliceFacts>, changes: &mut Changes) {
        let facts = facts.filter(|facts| SliceFacts::is_gpu_driver(&facts.driver));
        let left = self.nodes.move_slice(&name, facts.as_ref().map(|facts| facts.node.clone()));
        if let Some(node) = left.filter(|node| facts.as_ref().is_none_or(|facts| facts.node != *node)) {
            self.change_node(&node, changes, Wake::DEVICES, |node, _| node.leave_slice(&name));
        }
        if let Some(SliceFacts { node, driver }) = facts {
            self.nodes.mention(&node);
            self.change_node(&node, changes, Wake::NONE, |node, _| node.enter_slice(name, driver));
        }
    }

    fn limit_range_set(&mut self, key: PodKey, rules: Option<LimitRangeRules>, changes: &mut Changes) {
        let namespace = key.namespace.clone();
        if self.quotas.limit_range(key, rules) {
            let quotas = &self.quotas;
            self.jobs.limits_changed(&namespace, changes, |facts| quotas.fill(facts));
            self.jobs.allowance_changed(Some(namespace), changes);
        }
    }

    /// The pod that a node's lock names, and since when.
    fn lock_holder(&self, id: NodeId) -> Option<(PodId, Duration)> {
        let lock = &self.nodes.get(id)?.lock;
        let LockRead::Held { value, .. } = &lock.read else { return None };
        let pod = self.pod_id(value.holder.as_ref()?.uid.as_ref()?)?;
        Some((pod, lock.first_seen))
    }

    /// A lock that goes while its holder is bound there: the holder has its devices. Answers the holder, and how long the lock stood.
    fn note_served(
        &mut self,
        id: NodeId,
        before: Option<(PodId, Duration)>,
        now: Duration,
    ) -> Option<(PodId, Duration)> {
        let (holder, since) = before.filter(|before| self.lock_holder(id).is_none_or(|after| after.0 != before.0))?;
        let pod = self.pods.get_mut(holder).filter(|pod| pod.place == Place::Bound(id))?;
        let held = now.saturating_sub(since);
        pod.served = Some(Served { at: now, held });
        Some((holder, held))
    }

    fn pod_set(&mut self, mut facts: PodFacts, now: (Duration, Timestamp), changes: &mut Changes) {
        if !self.policy.images && !facts.spec.images.is_empty() {
            facts.spec.images = Box::default();
        }
        let known = self.pod_id(&facts.handoff.pod.uid);
        let namesake = self.pod_by_key(&facts.handoff.pod.key).map(|pod| pod.id);
        if let Some(old) = namesake.filter(|old| known != Some(*old)) {
            // The name was given to a new pod and the deletion of the old one was not seen.
            self.drop_pod(old, now, changes);
        }
        let ended = facts.handoff.phase.is_terminal();
        let mut recorded = self.digest(&mut facts);
        if let Some(old) = known.and_then(|id| self.pods.get(id)).filter(|old| matches!(old.place, Place::Bound(_))) {
            // The first version with a node name counts: a later edit does not change what the node's agent serves.
            recorded.clone_from(&old.devices);
        }
        let id = known.unwrap_or_else(|| self.pods.next_id());
        let old = self.pods.get(id);
        if old.is_some_and(|old| is_ahead(old, &facts)) {
            return;
        }
        let bound = facts.handoff.node.is_some() && !ended;
        let same = |old: &Pod| old.facts == facts && (!bound || old.devices == recorded);
        if old.is_some_and(|old| same(old) && !matches!(old.place, Place::Assumed(_))) {
            return;
        }
        let (old_place, old_devices) = old.map_or((Place::Waiting, None), |old| (old.place, old.devices.clone()));
        let old_exclusive = old.map(|old| old.exclusive).unwrap_or_default();
        let served = old.and_then(|old| old.served);
        let leaves = leaves_at(old, &facts, now.0);
        let recounted = old.is_some_and(|old| is_recounted(old, &facts));
        // The node's accounts stay as they are, and the node need not be judged again.
        let confirmed = bound && old.is_some_and(|old| self.confirms(old, &facts, recorded.as_ref()));
        if old.is_some() {
            if ended && facts.handoff.any_runs() {
                self.keep_devices(id, now);
            }
            if !confirmed {
                self.discharge(id);
            }
        }
        let place = match (ended, &facts.handoff.node, old_place) {
            (true, ..) => Place::Ended,
            (false, Some(node), _) => Place::Bound(self.nodes.mention(node)),
            (false, None, Place::Assumed(node)) => Place::Assumed(node),
            (false, None, _) => Place::Waiting,
        };
        let devices = match place {
            Place::Bound(_) => recorded,
            Place::Assumed(_) => old_devices,
            Place::Waiting | Place::Ended => None,
        };
        if !matches!(place, Place::Assumed(_)) {
            self.volumes.forget_plan(id);
        }
        // The first version of a pod on a node counts, as it does for the node's agent.
        let exclusive = match (old_place, place) {
            (Place::Bound(_) | Place::Assumed(_), Place::Bound(_) | Place::Assumed(_)) => old_exclusive,
            (_, Place::Bound(_)) => exclusive_of(&facts),
            _ => Exclusive::default(),
        };
        if facts.handoff.has_ended() {
            self.has_stopped(&facts.handoff, changes);
        }
        let before = self.pods.insert(Pod { id, facts, place, devices, exclusive, served, leaves });
        if known.is_none() && !ended {
            self.learn(id);
        }
        if !confirmed {
            self.charge(id);
        }
        self.enter_gang(id);
        if let (Place::Ended, Some(at)) = (place, old_place.node())
            && let Some(pod) = self.pods.get(id)
        {
            self.room_left(at, &pod.facts.handoff.pod.uid, changes);
        }
        if matches!(place, Place::Bound(_)) && (old_place != place || recounted) {
            changes.wake = changes.wake.or(Wake::POD_PLACED);
        }
        // Also where it was assumed and another leader gave it another node or other devices. One that is being deleted holds its room
        // until it has gone.
        if before.zip(self.pods.get(id)).is_some_and(|(before, now)| before.leaves_room(now)) {
            changes.wake = changes.wake.or(Wake::POD_FREED);
        }
        self.note_job(id, changes);
        changes.pods.push(id);
        changes.ended.extend((place == Place::Ended && old_place != place).then_some(id));
    }

    /// What was assumed of a pod has come true as it was chosen.
    fn confirms(&self, old: &Pod, facts: &PodFacts, recorded: Option<&Held>) -> bool {
        let here = facts.handoff.node.as_deref().and_then(|name| self.node_id(name));
        matches!(old.place, Place::Assumed(node) if Some(node) == here)
            && old.devices.as_ref() == recorded
            && old.facts.spec == facts.spec
            && old.facts.handoff.containers == facts.handoff.containers
    }

    /// Lets a change of a PodGroup happen, and its pods follow the priority that it states.
    fn pod_group_changed(
        &mut self,
        gang: &GangId,
        change: impl FnOnce(&mut GangBook),
        now: (Duration, Timestamp),
        changes: &mut Changes,
    ) {
        let before = self.gangs.stated_priority(gang);
        change(&mut self.gangs);
        if self.gangs.stated_priority(gang) == before {
            return;
        }
        let members = self.gangs.gang(gang).into_iter().flat_map(Gang::members);
        let members: Vec<PodId> = members.map(|member| member.pod).collect();
        for id in members {
            if let Some(facts) = self.pods.get(id).map(|pod| pod.facts.clone()) {
                self.pod_set(facts, now, changes);
            }
        }
    }

    /// The priority that counts: what the PodGroup of its gang states goes before what the pod states.
    fn follow_pod_group(&self, spec: &mut Shared<PodSpec>) {
        let Some(declared) = &spec.gang else { return };
        let own = spec.own_priority.unwrap_or((spec.priority, spec.never_preempts));
        let gang = self.gangs.named(declared).and_then(Result::ok);
        let (priority, never) = gang.map(|gang| self.gangs.stated_priority(gang)).unwrap_or_default();
        let counts = (priority.unwrap_or(own.0), never.unwrap_or(own.1));
        let own = (counts != own).then_some(own);
        if (spec.priority, spec.never_preempts) != counts || spec.own_priority != own {
            (spec.priority, spec.never_preempts) = counts;
            spec.own_priority = own;
        }
    }

    /// Reads what a bound pod's annotation records, drops the texts that are not read again, and stores equal values once.
    fn digest(&mut self, facts: &mut PodFacts) -> Option<Held> {
        // A pod holds no device that it does not ask for, whatever its annotation says: the kubelet never calls the agent for it.
        let asks = may_hold(&facts.handoff);
        let mut devices = facts.handoff.promise().filter(|_| asks).map(|devices| Held::of(&devices));
        let assignment = &mut facts.handoff.assignment;
        if !self.policy.keep_assignments {
            (assignment.device_allocated, assignment.container_devices) = (None, None);
        }
        let allowed = self.gangs.defaults();
        if facts.spec.gang.as_ref().is_some_and(|declared| declared.exceeds(allowed)) {
            facts.spec.gang.iter_mut().for_each(|declared| Arc::make_mut(declared).clamp(allowed));
        }
        self.follow_pod_group(&mut facts.spec);
        self.shared.facts(facts);
        self.shared.held(&mut devices);
        devices
    }

    /// Its last object counts: a deletion changes nothing in it, and every other change has been an event of its own.
    fn pod_gone(&mut self, key: &PodKey, uid: &PodUid, now: (Duration, Timestamp), changes: &mut Changes) {
        let by_key = || self.pod_by_key(key).map(|pod| pod.id);
        let found = if uid.as_str().is_empty() { by_key() } else { self.pod_id(uid) };
        if let Some(id) = found {
            self.drop_pod(id, now, changes);
        }
    }

    fn drop_pod(&mut self, id: PodId, now: (Duration, Timestamp), changes: &mut Changes) {
        self.note_job(id, changes);
        if self.pods.get(id).is_some_and(|pod| pod.facts.handoff.any_runs()) {
            self.keep_devices(id, now);
        }
        self.discharge(id);
        let Some(pod) = self.pods.remove(id) else { return };
        self.volumes.forget_plan(id);
        self.gangs.pod_gone(id);
        let uid = &pod.facts.handoff.pod.uid;
        self.pods.remember_deletion(uid.clone());
        if let Some(node) = pod.node() {
            self.room_left(node, uid, changes);
            self.nodes.forget_if_unused(node);
        } else if pod.place == Place::Waiting && pod.facts.spec.nominated.is_some() {
            changes.wake = changes.wake.or(Wake::POD_FREED);
        }
        changes.gone.push(id);
    }

    /// Notes the job of a pod that came, changed or goes.
    fn note_job(&self, id: PodId, changes: &mut Changes) {
        let pod = self.pods.get(id);
        let claim = pod.and_then(|pod| Some((pod.key(), pod.facts.spec.job.as_ref()?)));
        changes.jobs.extend(claim.map(|(key, claim)| PodKey::new(&key.namespace, &claim.name)));
    }
}

/// What is known of a pod is newer. A watch may lag behind a live read: a bound pod is never unbound, and one that ended by its
/// kubelet's word never runs again. What another client wrote of one that runs, or is to start, is taken back by its kubelet.
fn is_ahead(known: &Pod, facts: &PodFacts) -> bool {
    let is_final = |of: &PodFacts| of.handoff.has_ended() && (of.handoff.has_started() || of.spec.refused);
    match known.place {
        Place::Bound(_) => facts.handoff.node.is_none(),
        Place::Ended => !facts.handoff.phase.is_terminal() && (is_final(&known.facts) || facts.handoff.node.is_none()),
        Place::Waiting | Place::Assumed(_) => false,
    }
}

/// Monotonic time at which the grace period of a pod that is being deleted is over, as it was first known.
fn leaves_at(old: Option<&Pod>, facts: &PodFacts, now: Duration) -> Option<Duration> {
    let grace = Duration::from_secs(facts.handoff.deleting?.grace_seconds.try_into().unwrap_or(0));
    let ends = now.saturating_add(grace);
    Some(old.and_then(|old| old.leaves).map_or(ends, |known| known.min(ends)))
}

/// Spread constraints count it in another way: by other labels, or not any more, since it is being deleted.
fn is_recounted(old: &Pod, facts: &PodFacts) -> bool {
    let is_leaving = |of: &PodFacts| of.handoff.deleting.is_some();
    old.facts.spec.labels != facts.spec.labels || is_leaving(&old.facts) != is_leaving(facts)
}

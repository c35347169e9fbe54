//! Folding events into the world.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;

use baton_contract::gang::GangId;
use baton_contract::{LockRead, PodKey, PodUid, Shared};

use super::agent::LeaseSeen;
use super::devices::{Stock, exclusive_of, may_hold};
use super::event::{Changes, Wake, WorldEvent};
use super::gangs::{Gang, GangBook};
use super::node::{Node, NodeFacts, SliceFacts};
use super::pod::{Place, Pod, PodFacts};
use super::spec::PodSpec;
use super::state::{Ages, World};
use super::{NodeId, PodId};
use crate::devices::{Exclusive, Held};

impl World {
    /// Folds one event in. `now` is the monotonic time, `wall` the wall time.
    pub fn apply(&mut self, event: WorldEvent, now: Duration, wall: Timestamp) -> Changes {
        self.generation += 1;
        std::mem::take(&mut self.left).into_iter().for_each(|node| self.forget_if_unused(node));
        let mut changes = Changes::default();
        match event {
            WorldEvent::Node(facts) => self.node_set(facts, now, &mut changes),
            WorldEvent::NodeGone(name) => {
                if let Some(facts) = self.node_id(&name).and_then(|id| self.nodes.get(id)?.facts.as_ref()) {
                    self.images.leave(&facts.images);
                    self.node_objects -= 1;
                }
                self.change_node(&name, &mut changes, Wake::POD_PLACED, |node, changes| {
                    node.facts = None;
                    node.see_lock(LockRead::Free, now);
                    node.exceptions.restarted(changes);
                    true
                });
            }
            WorldEvent::Pod(facts) => self.pod_set(*facts, (now, wall), &mut changes),
            WorldEvent::PodReadAgain(facts) => {
                if self.pod_id(&facts.handoff.pod.uid).is_some() {
                    self.pod_set(*facts, (now, wall), &mut changes);
                }
            }
            WorldEvent::PodGone(key, uid) => self.pod_gone(&key, &uid, (now, wall), &mut changes),
            WorldEvent::Devices(device) => {
                let name = device.metadata.name.clone().unwrap_or_default();
                self.mention(&name);
                self.mix.devices_changed();
                let (mut shared, mut ages) = (std::mem::take(&mut self.shared), self.ages);
                let before = self.suspicion(&name);
                self.change_node(&name, &mut changes, Wake::DEVICES, |node, _| {
                    let news = match &mut node.stock {
                        Some(stock) => stock.update(&device, wall),
                        none => {
                            *none = Some(Stock::new(&device, wall));
                            true
                        }
                    };
                    if let Some(stock) = &mut node.stock {
                        ages.cordon(stock);
                        if news {
                            shared.store_once(stock);
                        }
                    }
                    news
                });
                (self.shared, self.ages) = (shared, ages);
                if let Some(id) = self.node_id(&name) {
                    self.suspects_changed(id, before, &mut changes);
                }
            }
            WorldEvent::DevicesGone(name) => {
                let (id, before) = (self.node_id(&name), self.suspicion(&name));
                self.change_node(&name, &mut changes, Wake::DEVICES, |node, _| node.stock.take().is_some());
                if let Some(id) = id {
                    self.suspects_changed(id, before, &mut changes);
                }
            }
            WorldEvent::Agent { node, status, version, renewed } => {
                self.mention(&node);
                let stale = self.policy.agent_stale;
                self.ages.agents = self.ages.agents.min(now + stale);
                let mut status = status.map(Shared::from);
                status.iter_mut().for_each(|status| self.shared.agents.intern(status));
                self.change_node(&node, &mut changes, Wake::AGENT, |node, changes| {
                    node.see_agent(LeaseSeen { status, version, renewed }, stale, (now, wall), changes)
                });
            }
            WorldEvent::AgentGone(name) => {
                self.change_node(&name, &mut changes, Wake::NONE, |node, _| node.agent.take().is_some());
            }
            WorldEvent::Slice(name, facts) => {
                let facts = facts.filter(|facts| SliceFacts::is_gpu_driver(&facts.driver));
                let left = self.slices.remove(&name);
                if let Some(node) = left.filter(|node| facts.as_ref().is_none_or(|facts| facts.node != *node)) {
                    self.change_node(&node, &mut changes, Wake::DEVICES, |node, _| node.slices.remove(&name).is_some());
                }
                if let Some(SliceFacts { node, driver }) = facts {
                    self.mention(&node);
                    self.change_node(&node, &mut changes, Wake::NONE, |node, _| {
                        node.slices.insert(name.clone(), driver.clone()) != Some(driver)
                    });
                    self.slices.insert(name, node);
                }
            }
            WorldEvent::Namespace(name, labels) => {
                self.namespaces.insert(name, labels);
                changes.wake = Wake::NAMESPACE;
            }
            WorldEvent::NamespaceGone(name) => {
                self.namespaces.remove(&name);
            }
            WorldEvent::Volume(name, facts) => {
                self.volumes.insert(name, facts);
                changes.wake = Wake::VOLUME;
            }
            WorldEvent::VolumeGone(name) => {
                self.volumes.remove(&name);
                changes.wake = Wake::VOLUME;
            }
            WorldEvent::Claim(key, facts) => {
                self.claim_seen(&key, &facts);
                self.claims.insert(key, facts);
                changes.wake = Wake::VOLUME;
            }
            WorldEvent::ClaimGone(key) => {
                self.claims.remove(&key);
                changes.wake = Wake::VOLUME;
            }
            WorldEvent::Class(name, facts) => {
                self.plans.classes.insert(name, facts);
                changes.wake = Wake::VOLUME;
            }
            WorldEvent::PriorityClass(name, class) => self.priority_class(name, Some(class), &mut changes),
            WorldEvent::PriorityClassGone(name) => self.priority_class(name, None, &mut changes),
            WorldEvent::ClassGone(name) => {
                self.plans.classes.remove(&name);
            }
            WorldEvent::Driver(name, counts) => {
                if self.capacities.driver(name, counts) {
                    changes.wake = Wake::VOLUME;
                }
            }
            WorldEvent::Capacity(key, facts) => {
                let counts = facts.as_ref().is_some_and(|facts| self.publishes(&facts.class));
                if self.capacities.object(key, facts) && counts {
                    changes.wake = Wake::VOLUME;
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
            WorldEvent::Job(facts) => self.job_set(*facts, &mut changes),
            WorldEvent::JobGone(job) => self.job_gone(job, &mut changes),
            WorldEvent::Quota(key, rules) => self.quota(key, rules.map(|rules| *rules), &mut changes),
            WorldEvent::Readable(name, readable) => self.readable(name, readable, &mut changes),
            WorldEvent::LimitRange(key, rules) => self.limit_range(key, rules.map(|rules| *rules), &mut changes),
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
        if now >= self.ages.agents || wall >= self.ages.cordons {
            self.age_nodes(now, wall, &mut changes);
        }
        self.age_leaving(now, &mut changes);
        self.generation += u64::from(!changes.nodes.is_empty());
        changes.nodes.iter().for_each(|id| self.touch(*id));
        changes
    }

    fn age_nodes(&mut self, now: Duration, wall: Timestamp, changes: &mut Changes) {
        let stale = self.policy.agent_stale;
        let mut opened = Vec::new();
        self.ages = Ages { agents: Duration::MAX, cordons: Timestamp::MAX };
        for (id, node) in self.nodes.iter_mut() {
            if let Some(stock) = &mut node.stock {
                if stock.age(wall) {
                    self.shared.store_once(stock);
                    opened.push(id);
                }
                self.ages.cordon(stock);
            }
            if node.age_agent(stale, now) {
                changes.nodes.push(id);
            }
            if let Some(live) = node.live_until(stale) {
                self.ages.agents = self.ages.agents.min(live);
            }
        }
        if !opened.is_empty() {
            changes.wake = Wake::DEVICES;
            self.mix.devices_changed();
            opened.iter().for_each(|id| self.recount_devices(*id));
            changes.nodes.extend(opened);
        }
    }

    /// Records what a writer found in a node's lock, ahead of the watch. `true` when it is news.
    pub fn observe_lock(&mut self, id: NodeId, read: LockRead, now: Duration) -> bool {
        let Some(node) = self.nodes.get_mut(id) else { return false };
        let news = node.see_lock(read, now);
        self.index_lock(id);
        self.generation += u64::from(news);
        news
    }

    /// The id of a node, made when it is first mentioned.
    pub(super) fn mention(&mut self, name: &str) -> NodeId {
        if let Some(id) = self.node_ids.get(name) {
            return *id;
        }
        let id = NodeId(self.next_node);
        self.next_node += 1;
        self.node_ids.insert(name.into(), id);
        self.nodes.insert(id, Box::new(Node::mentioned(name)));
        id
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
            changes.wake = changes.wake.or(wake);
            changes.nodes.push(id);
            self.recount_devices(id);
            self.touch(id);
        }
        self.index_lock(id);
        self.forget_if_unused(id);
    }

    fn node_set(&mut self, mut facts: NodeFacts, now: Duration, changes: &mut Changes) {
        let name = facts.name.clone();
        let id = self.mention(&name);
        self.shared.allocatable.intern(&mut facts.allocatable);
        if !self.policy.images {
            facts.images = Box::default();
        }
        let Some(node) = self.nodes.get_mut(id) else { return };
        let locked = node.see_lock(LockRead::parse(facts.lock.as_deref()), now);
        changes.wake = match &node.facts {
            None => Wake::NODE_ADDED,
            Some(old) => {
                let mut wake = Wake::NONE;
                if old.labels != facts.labels || old.taints != facts.taints || old.unschedulable != facts.unschedulable
                {
                    wake = wake.or(Wake::NODE_CHANGED);
                }
                if old.allocatable != facts.allocatable || old.max_pods != facts.max_pods {
                    wake = wake.or(Wake::NODE_ROOM);
                }
                wake
            }
        };
        let rebooted = node.facts.as_ref().is_some_and(|old| old.boot_id != facts.boot_id);
        let freed = rebooted && node.exceptions.restarted(changes);
        if locked || !changes.wake.is_none() {
            changes.nodes.push(id);
        }
        let listed = node.facts.as_ref().map_or(&[][..], |old| &old.images);
        let pulled = *listed != *facts.images;
        if pulled {
            self.images.leave(listed);
            self.images.enter(&facts.images);
        }
        self.node_objects += usize::from(node.facts.is_none());
        let offers_others = node.facts.as_ref().is_none_or(|old| {
            let [before, after] = [old, &facts].map(|facts| facts.allocatable.scalar.iter().map(|(name, _)| name));
            !old.allocatable.is_same(&facts.allocatable) && !before.eq(after)
        });
        self.mix.classify(id, &facts);
        node.facts = Some(facts);
        if pulled || !changes.wake.is_none() {
            self.touch(id);
        }
        // Pods that ask for nothing the node offers hold nothing there.
        if offers_others || freed {
            self.recount_devices(id);
        }
        self.index_lock(id);
    }

    fn index_lock(&mut self, id: NodeId) {
        match self.nodes.get(id) {
            Some(node) => self.locked.note(id, &node.lock.read),
            None => self.locked.note(id, &LockRead::Free),
        }
    }

    pub(super) fn forget_if_unused(&mut self, id: NodeId) {
        if self.nodes.get(id).is_some_and(|node| node.is_forgotten())
            && let Some(node) = self.nodes.remove(id)
        {
            self.node_ids.remove(&node.name);
            self.locked.note(id, &LockRead::Free);
            self.touch(id);
        }
    }

    fn pod_set(&mut self, mut facts: PodFacts, now: (Duration, Timestamp), changes: &mut Changes) {
        if !self.policy.images && !facts.spec.images.is_empty() {
            facts.spec.images = Box::default();
        }
        let known = self.pod_id(&facts.handoff.pod.uid);
        // A live read may be ahead of the watch, which then reports once more the pod that had the name before.
        let later = |pod: &Pod| pod.facts.handoff.created > facts.handoff.created;
        if known.is_none()
            && self
                .pod_by_key(&facts.handoff.pod.key)
                .is_some_and(|pod| later(pod) || self.was_deleted(&facts.handoff.pod.uid))
        {
            return;
        }
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
        let id = known.unwrap_or_else(|| {
            let id = PodId(self.next_pod);
            self.next_pod += 1;
            self.by_uid.enter(&facts.handoff.pod.uid, id);
            self.by_key.enter(&facts.handoff.pod.key, id);
            id
        });
        let old = self.pods.get(id).map(|pod| &**pod);
        // A watch may lag behind a live read: a bound pod is never unbound, and one that ended by its kubelet's word never runs
        // again. What another client wrote of one that runs, or is to start, is taken back by its kubelet.
        let is_final = |of: &PodFacts| of.handoff.has_ended() && (of.handoff.has_started() || of.spec.refused);
        let stale = |old: &Pod| match old.place {
            Place::Bound(_) => facts.handoff.node.is_none(),
            Place::Ended => !ended && (is_final(&old.facts) || facts.handoff.node.is_none()),
            Place::Waiting | Place::Assumed(_) => false,
        };
        if old.is_some_and(stale) {
            return;
        }
        let bound = facts.handoff.node.is_some() && !ended;
        let same = |old: &Pod| old.facts == facts && (!bound || old.devices == recorded);
        if old.is_some_and(|old| same(old) && !matches!(old.place, Place::Assumed(_))) {
            return;
        }
        let (old_place, old_devices) = old.map_or((Place::Waiting, None), |old| (old.place, old.devices.clone()));
        let old_exclusive = old.map(|old| old.exclusive).unwrap_or_default();
        // One that is being deleted is not counted any more by spread constraints.
        let recounted = old.is_some_and(|old| {
            let is_leaving = |of: &PodFacts| of.handoff.deleting.is_some();
            old.facts.spec.labels != facts.spec.labels || is_leaving(&old.facts) != is_leaving(&facts)
        });
        // A pod that is resized leaves room to other pods; one that is being deleted holds its own until it has gone.
        let resized = old.is_some_and(|old| old.facts.spec.requests != facts.spec.requests);
        // Our own choice, confirmed: the node's accounts stay as they are, and the node need not be judged again.
        let confirmed = old.is_some_and(|old| {
            let here = facts.handoff.node.as_deref().and_then(|name| self.node_id(name));
            bound
                && matches!(old.place, Place::Assumed(node) if Some(node) == here)
                && old.devices == recorded
                && old.facts.spec == facts.spec
                && old.facts.handoff.containers == facts.handoff.containers
        });
        if let Some(old) = old {
            if let Some(stamp) = &old.facts.handoff.assignment.bind_timestamp {
                self.by_stamp.leave(&**stamp, id);
            }
            if ended && facts.handoff.any_runs() {
                self.keep_devices(id, now);
            }
            if !confirmed {
                self.discharge(id);
            }
        }
        let place = match (ended, &facts.handoff.node, old_place) {
            (true, ..) => Place::Ended,
            (false, Some(node), _) => Place::Bound(self.mention(node)),
            (false, None, Place::Assumed(node)) => Place::Assumed(node),
            (false, None, _) => Place::Waiting,
        };
        let devices = match place {
            Place::Bound(_) => recorded,
            Place::Assumed(_) => old_devices,
            Place::Waiting | Place::Ended => None,
        };
        if let (Some(stamp), Place::Bound(_)) = (&facts.handoff.assignment.bind_timestamp, place)
            && !stamp.is_empty()
        {
            self.by_stamp.enter(&**stamp, id);
        }
        if !matches!(place, Place::Assumed(_)) {
            self.plans.plans.remove(&id);
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
        self.pods.insert(id, Box::new(Pod { id, facts, place, devices, exclusive }));
        if known.is_none() && !ended {
            self.learn(id);
        }
        let nominated = self.pods.get(id).is_some_and(|pod| pod.facts.spec.nominated.is_some());
        if nominated && matches!(place, Place::Waiting | Place::Assumed(_)) {
            self.nominated.insert(id);
        } else {
            self.nominated.remove(&id);
        }
        if !confirmed {
            self.charge(id);
        }
        self.enter_gang(id);
        let had_room = old_place.node().is_some();
        if let (Place::Ended, Some(at)) = (place, old_place.node())
            && let Some(pod) = self.pods.get(id)
        {
            self.room_left(at, &pod.facts.handoff.pod.uid, changes);
        }
        if matches!(place, Place::Bound(_)) && (old_place != place || recounted) {
            changes.wake = changes.wake.or(Wake::POD_PLACED);
        }
        // Where it was assumed, and another scheduler bound it elsewhere, it leaves room too.
        if had_room && (place.node() != old_place.node() || resized) {
            changes.wake = changes.wake.or(Wake::POD_FREED);
        }
        self.note_job(id, changes);
        changes.pods.push(id);
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
        self.shared.specs.intern(&mut facts.spec);
        self.shared.containers.intern(&mut facts.handoff.containers);
        let amounts = &mut self.shared.amounts;
        devices.iter_mut().for_each(|held| held.share(|value| amounts.intern(value)));
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
        self.plans.plans.remove(&id);
        self.nominated.remove(&id);
        self.gangs.pod_gone(id);
        let handoff = &pod.facts.handoff;
        self.remember_deletion(handoff.pod.uid.clone());
        self.by_uid.leave(&handoff.pod.uid, id);
        self.by_key.leave(&handoff.pod.key, id);
        if let Some(stamp) = &handoff.assignment.bind_timestamp {
            self.by_stamp.leave(&**stamp, id);
        }
        if let Some(node) = pod.node() {
            self.room_left(node, &pod.facts.handoff.pod.uid, changes);
            self.forget_if_unused(node);
        }
        changes.gone.push(id);
    }
}

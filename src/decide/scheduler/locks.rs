//! The node's line, and locks that nobody pursues: handoff rules 3 to 6.

use std::collections::BTreeSet;

use crate::contract::{LockRead, PodKey, PodRef};
use crate::decide::lock::{GoneReason, HolderState, Intent, LockClaim, LockView, ReleaseReason, acquire};
use crate::decide::world::{Node, NodeId, Place, PodId};

use super::effect::{Effect, Effects};
use super::engine::{Engine, Timer};
use super::flight::{Cancel, Stage};
use super::settings::Moment;
use crate::decide::gang::Route;

/// A holder that is being read, or that is being deleted, is not asked for again within this time.
const ASK_AGAIN: std::time::Duration = std::time::Duration::from_secs(10);

impl Engine {
    /// Lets the first pod of a node's line go on, if it may.
    pub(in crate::decide) fn advance(&mut self, node_id: NodeId, now: Moment, effects: &mut Effects) {
        while self.leading {
            let Some(id) = self.next_in_line(node_id, now) else { return };
            let Some(flight) = self.flights.get(&id) else { return };
            if let Some(why) = self.outdated(flight) {
                self.cancel(id, Cancel::Requeue(why), now, effects);
                continue;
            }
            if flight.not_before > now.mono {
                return;
            }
            let Some(node) = self.world.node(node_id) else { return };
            if node.lock.read.raw().is_some_and(|raw| self.releases.contains_key(&(node_id, raw.into()))) {
                return;
            }
            if let Some((holder, raw)) = self.unknown_outcome(node) {
                self.ask(&raw, holder, node_id, now, effects);
                return;
            }
            let claim = flight.claim();
            let written = node.lock.read.raw().is_some_and(|raw| flight.lock_value.as_deref() == Some(raw));
            // The value that this flight has written, the answer to which was lost, may not say whose it is. One that does
            // may be older than the flight: the bind is then under that lock's time.
            let intent = match self.intent(node, &claim, now) {
                Intent::Own { time } => Intent::Own { time },
                _ if written => Intent::Own { time: flight.time },
                other => other,
            };
            match intent {
                Intent::Set => self.lock(id, None, effects),
                Intent::Own { time } => {
                    let raw = node.lock.read.raw().map(Into::into);
                    self.make_head(id);
                    if let Some(flight) = self.flights.get_mut(&id) {
                        flight.time = time;
                        flight.lock_value = raw;
                    }
                    self.bind(id, effects);
                }
                Intent::TakeOver { old, reason } => {
                    if let Some(holder) = self.unproven(&node.lock.read, reason) {
                        self.ask(&old, holder, node_id, now, effects);
                        return;
                    }
                    self.lock(id, Some(old), effects);
                }
                Intent::Fence { pod, age } => self.fence(node_id, pod, age, now, effects),
                Intent::Wait { recheck, .. } => {
                    // It stands in line now: what was in trouble before has not lasted.
                    if let Some(flight) = self.flights.get_mut(&id) {
                        flight.trouble_since = None;
                    }
                    if let Some(at) = recheck {
                        self.timers.insert((at, Timer::Node(node_id)));
                    }
                }
            }
            return;
        }
    }

    /// Whose turn it is on a node: whoever waits there and holds the lock already (a bind that is resumed), else the first one.
    fn next_in_line(&self, node_id: NodeId, now: Moment) -> Option<PodId> {
        let line = self.lines.get(&node_id).filter(|line| line.head.is_none())?;
        let &(_, _, first) = line.waiting.first()?;
        let raw = self.world.node(node_id)?.lock.read.raw();
        let wrote = |id: &PodId| self.flights.get(id).is_some_and(|flight| flight.lock_value.as_deref() == raw);
        if raw.is_some()
            && let Some((.., writer)) = line.waiting.iter().find(|(.., id)| wrote(id))
        {
            return Some(*writer);
        }
        let holder = match self.world.holder(self.world.node(node_id)?, now.wall) {
            Some(HolderState::Unbound(pod)) => self.world.pod_id(&pod.uid),
            _ => None,
        };
        let waits = |id: &PodId| self.flights.get(id).is_some_and(|flight| line.waiting.contains(&flight.turn));
        Some(holder.filter(waits).unwrap_or(first))
    }

    /// Looks at the lock of a node for which nobody waits: dangling, expired and abandoned locks go.
    pub(in crate::decide) fn sweep(&mut self, node_id: NodeId, now: Moment, effects: &mut Effects) {
        if !self.leading {
            return;
        }
        let Some(node) = self.world.node(node_id) else { return };
        let Some(raw) = node.lock.read.raw().map(Box::<str>::from) else { return };
        let claimed = self.lines.get(&node_id).is_some_and(|line| !line.is_empty());
        if self.releases.contains_key(&(node_id, raw.clone())) {
            return;
        }
        let Some(holder) = self.world.holder(node, now.wall) else { return };
        if let HolderState::Unbound(pod) = &holder {
            let id = self.world.pod_id(&pod.uid);
            if id.and_then(|id| self.flights.get(&id)).is_some_and(|flight| flight.node == node_id) {
                return;
            }
            if let Some(id) = id.filter(|id| self.is_ours(*id)) {
                self.resume_or_release(node_id, id, &raw, now, effects);
                return;
            }
            if id.is_some_and(|id| self.is_of(id, &self.config.asking_names)) {
                // Its scheduler asks again, for this node or another one.
                self.release_abandoned(node_id, &raw, now, effects);
                return;
            }
        }
        if claimed {
            return;
        }
        let nobody = LockClaim { pod: PodRef::new("", "", ""), time: now.wall };
        match self.intent(node, &nobody, now) {
            Intent::TakeOver { old, reason } => match self.unproven(&node.lock.read, reason) {
                Some(holder) => self.ask(&old, holder, node_id, now, effects),
                None => self.release(node_id, &old, reason, effects),
            },
            Intent::Fence { pod, age } => self.fence(node_id, pod, age, now, effects),
            Intent::Wait { recheck: Some(at), .. } => {
                self.timers.insert((at, Timer::Node(node_id)));
            }
            Intent::Wait { recheck: None, .. } | Intent::Set | Intent::Own { .. } => {}
        }
    }

    /// Looks at every lock, and again after a while.
    pub(in crate::decide) fn sweep_all(&mut self, now: Moment, effects: &mut Effects) {
        let locked: Vec<NodeId> = self.world.locked().collect();
        for id in &locked {
            self.sweep(*id, now, effects);
            self.advance(*id, now, effects);
        }
        let standing: std::collections::BTreeSet<&str> =
            locked.iter().filter_map(|id| self.world.node(*id)?.lock.read.raw()).collect();
        self.proven.retain(|raw| standing.contains(&**raw));
        self.resumed.retain(|raw| standing.contains(&**raw));
        self.asked.retain(|raw, _| standing.contains(&**raw));
        self.fenced.retain(|_, at| now.mono < *at + ASK_AGAIN);
        self.timers.insert((now.mono + self.config.sweep, Timer::Sweep));
    }

    /// Rule 6: a half-done bind of ours is resumed once under its lock; else its lock goes when it has stood for a while.
    fn resume_or_release(&mut self, node_id: NodeId, id: PodId, raw: &str, now: Moment, effects: &mut Effects) {
        let free = self.world.pod(id).is_some_and(|pod| matches!(self.route(pod), Route::Alone | Route::Owed(_)));
        if free && !self.flights.contains_key(&id) && self.resumed.insert(raw.into()) {
            self.stats.resumed += 1;
            self.pinned.insert(id, node_id);
            self.enqueue(id, now, effects);
            self.queue.activate(id, self.plugins.queue_sort());
            return;
        }
        if self.pinned.contains_key(&id) {
            return;
        }
        self.release_abandoned(node_id, raw, now, effects);
    }

    fn release_abandoned(&mut self, node_id: NodeId, raw: &str, now: Moment, effects: &mut Effects) {
        let Some(node) = self.world.node(node_id) else { return };
        let at = node.lock.first_seen + self.config.abandoned;
        if now.mono >= at {
            self.release(node_id, raw, ReleaseReason::Abandoned, effects);
        } else {
            self.timers.insert((at, Timer::Node(node_id)));
        }
    }

    fn is_ours(&self, id: PodId) -> bool {
        self.is_of(id, &self.config.scheduler_names)
    }

    fn is_of(&self, id: PodId, names: &BTreeSet<Box<str>>) -> bool {
        self.world.pod(id).is_some_and(|pod| names.contains(&pod.facts.handoff.scheduler_name))
    }

    pub(in crate::decide) fn intent(&self, node: &Node, claim: &LockClaim, now: Moment) -> Intent {
        let view = LockView {
            read: node.lock.read.clone(),
            first_seen: node.lock.first_seen,
            holder: self.world.holder(node, now.wall).unwrap_or(HolderState::Unknown),
        };
        acquire(&view, claim, node.liveness(), &self.config.lock_policy, now.mono, now.wall)
    }

    fn make_head(&mut self, id: PodId) {
        let Some(flight) = self.flights.get(&id) else { return };
        if let Some(line) = self.lines.get_mut(&flight.node) {
            line.waiting.remove(&flight.turn);
            line.head = Some(id);
        }
    }

    fn lock(&mut self, id: PodId, old: Option<Box<str>>, effects: &mut Effects) {
        self.make_head(id);
        let ticket = self.ticket(id);
        let format = self.config.lock_format;
        let Some(flight) = self.flights.get_mut(&id) else { return };
        let new: Box<str> = flight.claim().value(format).into();
        flight.stage = Stage::Locking(ticket);
        flight.lock_value = Some(new.clone());
        effects.push(Effect::Lock { ticket, node: flight.node_name.clone(), old, new });
    }

    /// A holder that our watch does not know may have been created a moment ago: one live read settles it. Returns whom to
    /// read; `None` when the proof stands.
    fn unproven(&self, read: &LockRead, reason: ReleaseReason) -> Option<PodKey> {
        let LockRead::Held { value, raw } = read else { return None };
        match reason {
            ReleaseReason::Gone(GoneReason::NotFound | GoneReason::Recreated) if !self.proven.contains(raw) => {
                value.holder.as_ref().map(|holder| holder.pod.clone())
            }
            _ => None,
        }
    }

    /// Another scheduler's lock went away before our watch showed what came of its pod. The pod may hold devices by now that
    /// we think are free, so it is read before we write. Returns whom to read, and the lock.
    fn unknown_outcome(&self, node: &Node) -> Option<(PodKey, Box<str>)> {
        let (holder, raw) = node.lock.previous.as_ref().filter(|(_, raw)| !self.proven.contains(raw))?;
        let waiting = match self.world.pod_by_key(&holder.pod) {
            Some(pod) => pod.place == Place::Waiting && !self.flights.contains_key(&pod.id),
            None => !holder.uid.as_ref().is_some_and(|uid| self.world.was_deleted(uid)),
        };
        waiting.then(|| (holder.pod.clone(), raw.clone()))
    }

    fn ask(&mut self, raw: &str, holder: PodKey, node: NodeId, now: Moment, effects: &mut Effects) {
        if self.asked.get(raw).is_some_and(|at| now.mono < *at + ASK_AGAIN) {
            return;
        }
        self.asked.insert(raw.into(), now.mono);
        self.timers.insert((now.mono + ASK_AGAIN, Timer::Node(node)));
        effects.push(Effect::ReadPod { pod: holder });
    }

    /// A live read found `key` absent, or with this uid: locks that name another pod are proven dangling.
    pub(in crate::decide) fn prove(&mut self, key: &PodKey, uid: Option<&str>, now: Moment, effects: &mut Effects) {
        let mut nodes = Vec::new();
        for id in self.lines.keys() {
            // What came of an earlier lock's pod is known now.
            let previous = self.world.node(*id).and_then(|node| node.lock.previous.as_ref());
            if let Some((_, raw)) = previous.filter(|(holder, _)| holder.pod == *key) {
                self.proven.insert(raw.clone());
                nodes.push(*id);
            }
        }
        for id in self.world.locked() {
            let Some(LockRead::Held { value, raw }) = self.world.node(id).map(|node| &node.lock.read) else { continue };
            let Some(holder) = value.holder.as_ref().filter(|holder| holder.pod == *key) else { continue };
            // Without a uid the time is the proof, and the world judges it on the pod that was just read.
            let other = |held: &crate::contract::PodUid| uid.is_none_or(|found| held.as_str() != found);
            if holder.uid.as_ref().is_none_or(other) {
                self.proven.insert(raw.clone());
                nodes.push(id);
            }
        }
        for id in nodes {
            self.sweep(id, now, effects);
            self.advance(id, now, effects);
        }
    }

    /// The watch told of a deletion: that is proof for the lock that the pod held.
    pub(in crate::decide) fn prove_deleted(&mut self) {
        for id in self.world.locked() {
            let Some(LockRead::Held { value, raw }) = self.world.node(id).map(|node| &node.lock.read) else { continue };
            let uid = value.holder.as_ref().and_then(|holder| holder.uid.as_ref());
            if uid.is_some_and(|uid| self.world.was_deleted(uid)) {
                self.proven.insert(raw.clone());
            }
        }
    }

    fn fence(&mut self, node: NodeId, pod: PodRef, age: std::time::Duration, now: Moment, effects: &mut Effects) {
        self.timers.insert((now.mono + ASK_AGAIN, Timer::Node(node)));
        if self.fenced.get(&pod.uid).is_some_and(|at| now.mono < *at + ASK_AGAIN) {
            return;
        }
        let Some(name) = self.world.node(node).map(|node| node.name.clone()) else { return };
        self.stats.fenced += 1;
        self.fenced.insert(pod.uid.clone(), now.mono);
        let message = format!(
            "deleted: it holds the lock of node {name} for {} s and its devices were never allocated",
            age.as_secs()
        );
        effects.push(Effect::Notice { pod: pod.clone(), warning: true, reason: "ExpiredLockHolder", message });
        effects.push(Effect::Fence { pod, node: name, age });
    }

    /// Removes a lock value from a node, until that is known to be done.
    pub(in crate::decide) fn release(&mut self, node: NodeId, raw: &str, reason: ReleaseReason, effects: &mut Effects) {
        let Some(name) = self.world.node(node).map(|node| node.name.clone()) else { return };
        let earlier = self.releases.insert((node, raw.into()), (reason, true));
        if !earlier.is_some_and(|(_, under_way)| under_way) {
            effects.push(Effect::Release { node: name, old: raw.into(), reason });
        }
    }

    pub(in crate::decide) fn release_again(&mut self, node: NodeId, raw: &str, effects: &mut Effects) {
        if let Some((reason, _)) = self.releases.get(&(node, raw.into())).copied() {
            self.release(node, raw, reason, effects);
        }
    }
}

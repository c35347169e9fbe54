//! What becomes of node locks beside bind attempts: they are resumed or released (docs/lock.md, from "Who may take and remove
//! it" on).

use std::collections::BTreeSet;
use std::time::Duration;

use crate::core::agenda::{Agenda, Scene, Step, Terms};
use crate::core::context::Context;
use crate::core::effect::{Effect, LockResult};
use crate::core::reservations::Reservations;
use crate::core::timers::Timer;
use crate::lock::{Delay, GoneReason, HolderState, Intent, ReleaseReason};
use crate::world::{Node, NodeId, Place, Pod, PodId, World};
use baton_contract::{EventReason, Holder, LockRead, PodKey, PodUid};

use super::Binder;
use super::intent::{intent, unclaimed};

/// The read of a holder is repeated after this time.
const REPEAT_AFTER: Duration = Duration::from_secs(10);

impl Binder {
    /// Checks the lock of a node without a bind attempt: dangling, expired and abandoned locks are released.
    pub fn sweep(&mut self, scene: Scene<'_>, reservations: &Reservations, agenda: &mut Agenda, node_id: NodeId) {
        if !scene.terms.leading {
            return;
        }
        let Some(node) = scene.world.node(node_id) else { return };
        let Some(raw) = node.lock.read.raw().map(Box::<str>::from) else { return };
        let claimed = self.queues.get(&node_id).is_some_and(|queue| !queue.is_empty());
        if self.locks.releases.contains_key(&(node_id, raw.clone())) {
            return;
        }
        let Some(holder) = scene.world.holder(node, scene.terms.now.wall) else { return };
        if let HolderState::Unbound(pod) = &holder {
            let id = scene.world.pod_id(&pod.uid);
            if id.and_then(|id| self.attempts.get(&id)).is_some_and(|attempt| attempt.node == node_id) {
                return;
            }
            let pod = id.and_then(|id| scene.world.pod(id));
            let is_bound = |pod: &Pod| pod.place == Place::Assumed(node_id) && reservations.get(pod.id).is_none();
            if pod.is_some_and(is_bound) {
                return; // by us: the watch is yet to show it
            }
            if let Some(pod) = pod.filter(|pod| scene.terms.is_ours(pod)) {
                return agenda.steps.push(Step::HalfBound(node_id, pod.id, raw));
            }
            if pod.is_some_and(|pod| scene.terms.config.asking_names.contains(&pod.facts.handoff.scheduler_name)) {
                // Its scheduler requests the bind again, on this node or another one.
                return self.release_abandoned(scene, agenda, node_id, &raw);
            }
        }
        if claimed {
            return;
        }
        match intent(scene, node, &unclaimed(scene)) {
            // No bind needs the lock of a pod that waits, and under it the pod's call may still be served.
            Intent::TakeOver { reason: ReleaseReason::Unserved, .. }
            | Intent::Wait { recheck: None, .. }
            | Intent::Set
            | Intent::Own { .. } => {}
            Intent::TakeOver { old, reason } => match self.unproven(&node.lock.read, reason) {
                Some(holder) => self.read_holder(scene.terms, agenda, &old, holder, node_id),
                None => self.release_lock(scene.world, agenda, node_id, &old, reason),
            },
            Intent::Wait { recheck: Some(at), .. } => {
                agenda.timers.set(at, Timer::Node(node_id));
            }
        }
    }

    /// Checks every lock, and sets the timer for the next check.
    pub fn sweep_all(&mut self, cx: &mut Context<'_>) {
        let locked: Vec<NodeId> = cx.world.locked().collect();
        for id in &locked {
            self.sweep(cx.terms.scene(cx.world), cx.reservations, cx.agenda, *id);
            self.advance(cx, *id);
            self.report_unserved(cx.terms.scene(cx.world), cx.agenda, *id);
        }
        let standing: BTreeSet<&str> = locked.iter().filter_map(|id| cx.world.node(*id)?.lock.read.raw()).collect();
        self.locks.proven.retain(|raw| standing.contains(&**raw));
        self.locks.resumed.retain(|raw| standing.contains(&**raw));
        self.locks.reads.retain(|raw, _| standing.contains(&**raw));
        self.locks.said.retain(|raw, _| standing.contains(&**raw));
        cx.agenda.timers.set(cx.terms.now.mono + cx.terms.config.sweep, Timer::Sweep);
    }

    /// Says on the holder of a lock that it waits for longer than a kubelet is busy, or that the lock's age is not known, and what does
    /// not answer: one event for each sentence, which are few.
    fn report_unserved(&mut self, scene: Scene<'_>, agenda: &mut Agenda, node: NodeId) {
        let Some(node) = scene.world.node(node).filter(|_| scene.terms.leading) else { return };
        let delay = scene.world.holder_delay(node, scene.terms.now.wall);
        let Some(delay) = delay.filter(|delay| delay.judge() >= Delay::Stuck) else { return };
        let Some(id) = scene.world.pod_by_key(delay.holder).map(|pod| pod.id) else { return };
        let Some(raw) = node.lock.read.raw() else { return };
        let text = format!("bound to node {}; {delay}; look: {}", node.name, delay.look());
        if self.locks.said.get(raw) != Some(&text) {
            self.locks.said.insert(raw.into(), text.clone());
            agenda.warning(scene.world, id, EventReason::NotServed, text);
        }
    }

    /// A half-done bind of ours is resumed once under its lock; else its lock is released once it counts as abandoned. `free`:
    /// the pod's gang does not hold it back.
    pub fn resume_or_release(
        &mut self,
        scene: Scene<'_>,
        reservations: &mut Reservations,
        agenda: &mut Agenda,
        (node, raw): (NodeId, &str),
        id: PodId,
        free: bool,
    ) {
        if free && !self.attempts.contains_key(&id) && self.locks.resumed.insert(raw.into()) {
            agenda.stats.binds.resumed += 1;
            reservations.pin(id, node);
            agenda.steps.push(Step::Retry(id));
        } else if reservations.pinned(id).is_none() {
            self.release_abandoned(scene, agenda, node, raw);
        }
    }

    fn release_abandoned(&mut self, scene: Scene<'_>, agenda: &mut Agenda, node_id: NodeId, raw: &str) {
        let Some(node) = scene.world.node(node_id) else { return };
        let at = node.lock.first_seen.max(self.since) + scene.terms.config.abandoned;
        if scene.terms.now.mono >= at {
            self.release_lock(scene.world, agenda, node_id, raw, ReleaseReason::Abandoned);
        } else {
            agenda.timers.set(at, Timer::Node(node_id));
        }
    }

    /// The holder that has to be read before its lock is removed: one that the watch does not show may have been created a moment
    /// ago. `None` when it is proven to be gone.
    pub(super) fn unproven(&self, read: &LockRead, reason: ReleaseReason) -> Option<PodKey> {
        let LockRead::Held { value, raw } = read else { return None };
        match reason {
            ReleaseReason::Gone(GoneReason::NotFound | GoneReason::Recreated) if !self.locks.proven.contains(raw) => {
                value.holder.as_ref().map(|holder| holder.pod.clone())
            }
            _ => None,
        }
    }

    /// The holder of a removed lock of another scheduler, and that lock, if the watch has not shown the outcome of its bind: the pod
    /// may hold devices that seem free here, so it is read before the lock is written.
    pub(super) fn unknown_outcome(&self, world: &World, node: &Node) -> Option<(PodKey, Box<str>)> {
        let (holder, raw) = node.lock.previous.as_ref().filter(|(_, raw)| !self.locks.proven.contains(raw))?;
        let waiting = match world.pod_by_key(&holder.pod) {
            Some(pod) => pod.place == Place::Waiting && !self.attempts.contains_key(&pod.id),
            None => !holder.uid.as_ref().is_some_and(|uid| world.was_deleted(uid)),
        };
        waiting.then(|| (holder.pod.clone(), raw.clone()))
    }

    pub(super) fn read_holder(
        &mut self,
        terms: Terms<'_>,
        agenda: &mut Agenda,
        raw: &str,
        holder: PodKey,
        node: NodeId,
    ) {
        if self.locks.reads.get(raw).is_some_and(|at| terms.now.mono < *at + REPEAT_AFTER) {
            return;
        }
        self.locks.reads.insert(raw.into(), terms.now.mono);
        agenda.timers.set(terms.now.mono + REPEAT_AFTER, Timer::Node(node));
        agenda.effects.push(Effect::ReadPod { pod: holder });
    }

    /// A live read found no pod `key`, or one with this uid: locks that name another pod of this name are proven to be dangling. One that
    /// the watch is yet to show proves nothing about itself: what it holds is not known.
    pub fn prove(&mut self, cx: &mut Context<'_>, key: &PodKey, uid: Option<&PodUid>) {
        let mut nodes = Vec::new();
        let unseen = uid.filter(|uid| cx.world.pod_id(uid).is_none());
        let may_be = |holder: &Holder, found| holder.uid.as_ref().is_none_or(|held| held == found);
        let says = |holder: &Holder| holder.pod == *key && !unseen.is_some_and(|found| may_be(holder, found));
        for id in self.queues.keys() {
            // The outcome of the removed lock's bind is known now.
            let previous = cx.world.node(*id).and_then(|node| node.lock.previous.as_ref());
            if let Some((_, raw)) = previous.filter(|(holder, _)| says(holder)) {
                self.locks.proven.insert(raw.clone());
                nodes.push(*id);
            }
        }
        for id in cx.world.locked() {
            let Some(LockRead::Held { value, raw }) = cx.world.node(id).map(|node| &node.lock.read) else { continue };
            let Some(holder) = value.holder.as_ref().filter(|holder| says(holder)) else { continue };
            // A lock without a uid is judged by its time, against the pod that was just read.
            let other = |held: &PodUid| uid.is_none_or(|found| held != found);
            if holder.uid.as_ref().is_none_or(other) {
                self.locks.proven.insert(raw.clone());
                nodes.push(id);
            }
        }
        for id in nodes {
            self.sweep(cx.terms.scene(cx.world), cx.reservations, cx.agenda, id);
            self.advance(cx, id);
        }
    }

    /// The watch reported deletions: locks of these pods are proven to be dangling.
    pub fn prove_deleted(&mut self, world: &World) {
        for id in world.locked() {
            let Some(LockRead::Held { value, raw }) = world.node(id).map(|node| &node.lock.read) else { continue };
            let uid = value.holder.as_ref().and_then(|holder| holder.uid.as_ref());
            if uid.is_some_and(|uid| world.was_deleted(uid)) {
                self.locks.proven.insert(raw.clone());
            }
        }
    }

    /// Removes a lock value from a node; repeated until the result is known.
    pub(super) fn release_lock(
        &mut self,
        world: &World,
        agenda: &mut Agenda,
        node: NodeId,
        raw: &str,
        reason: ReleaseReason,
    ) {
        let Some(name) = world.node(node).map(|node| node.name.clone()) else { return };
        let earlier = self.locks.releases.insert((node, raw.into()), (reason, true));
        if !earlier.is_some_and(|(_, under_way)| under_way) {
            agenda.effects.push(Effect::Release { node: name, old: raw.into(), reason });
        }
    }

    /// Repeats a release that failed.
    pub fn release_again(&mut self, world: &World, agenda: &mut Agenda, node: NodeId, raw: &str) {
        if let Some((reason, _)) = self.locks.releases.get(&(node, raw.into())).copied() {
            self.release_lock(world, agenda, node, raw, reason);
        }
    }

    /// The answer to the removal of a lock value.
    pub fn release_answered(&mut self, cx: &mut Context<'_>, node: &str, old: &str, result: LockResult) {
        let Some(id) = cx.world.node_id(node) else {
            return self.locks.releases.retain(|(_, raw), _| **raw != *old);
        };
        let key: (NodeId, Box<str>) = (id, old.into());
        match result {
            LockResult::Done => {
                self.locks.releases.remove(&key);
                if cx.world.node(id).is_some_and(|node| node.lock.read.raw() == Some(old)) {
                    cx.world.observe_lock(id, LockRead::Free, cx.terms.now.mono);
                }
            }
            LockResult::Contended(read) => {
                self.locks.releases.remove(&key);
                cx.world.observe_lock(id, read, cx.terms.now.mono);
            }
            LockResult::NodeGone => {
                self.locks.releases.remove(&key);
            }
            LockResult::Failed(_, at_least) => {
                if let Some((_, under_way)) = self.locks.releases.get_mut(&key) {
                    *under_way = false;
                }
                let wait = Duration::from_secs(1).max(at_least.unwrap_or_default());
                cx.agenda.timers.set(cx.terms.now.mono + wait, Timer::Release(id, old.into()));
            }
        }
        self.sweep(cx.terms.scene(cx.world), cx.reservations, cx.agenda, id);
        self.advance(cx, id);
    }
}

//! One node: its object, its lock, its agent, its devices, and what runs on it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;

use crate::devices::Held;
use crate::lock::{self, AgentLiveness, BoundHolder, DaemonState, Heard, LockAge, LockDelay, LockMatch};
use crate::pod::HandoffPod;
use baton_contract::image::ImageName;
use baton_contract::{AgentStatus, DeviceType, Holder, LockRead, Shared};

use super::agent::{Agent, LeaseSeen};
use super::changes::Changes;
use super::devices::{Stock, Suspect};
use super::holders::{Holders, NodeExceptions};
use super::offered::offered;
use super::pod::Pod;
use super::resources::{Rated, Resources};
use super::spec::{Labels, Taint};
use super::{PodId, Wake};

/// How far the clock of a node may be ahead of the reader's.
const FUTURE: Duration = Duration::from_secs(60);

/// What the Node object says.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct NodeFacts {
    /// Name.
    pub name: Box<str>,
    /// Labels.
    pub labels: Labels,
    /// Taints.
    pub taints: Vec<Taint>,
    /// `spec.unschedulable`.
    pub unschedulable: bool,
    /// Condition `Ready` is there and not True.
    pub not_ready: bool,
    /// `status.allocatable`.
    pub allocatable: Shared<Resources>,
    /// `status.allocatable.pods`.
    pub max_pods: i64,
    /// The lock annotation's value.
    pub lock: Option<Box<str>>,
    /// `status.nodeInfo.bootID`: another one after each start of the machine.
    pub boot_id: Box<str>,
    /// `status.images`: every name once, in order, and the image's bytes. Empty unless
    /// [`WorldPolicy::images`](super::WorldPolicy::images).
    pub images: Box<[(ImageName, i64)]>,
}

impl NodeFacts {
    /// Nothing that the node says of itself keeps every pod away; rules judge one pod.
    pub const fn takes_pods(&self) -> bool {
        !self.unschedulable
    }

    /// What the change from `old` wakes; that also voids kept verdicts, so a fact that only falls wakes too.
    pub(super) fn wakes(&self, old: &Self) -> Wake {
        // A new field does not compile here until it is named: where rules read it, it wakes. Below the line is what they do not read, or
        // what `Nodes::set_object` compares.
        let Self {
            labels,
            taints,
            unschedulable,
            allocatable,
            max_pods,
            // ---
            name: _,
            not_ready: _,
            lock: _,
            boot_id: _,
            images: _,
        } = old;
        let moved = *labels != self.labels || *taints != self.taints || *unschedulable != self.unschedulable;
        let resized = *allocatable != self.allocatable || *max_pods != self.max_pods;
        let wake = |holds: bool, wake: Wake| if holds { wake } else { Wake::NONE };
        wake(moved, Wake::NODE_CHANGED).or(wake(resized, Wake::NODE_ROOM))
    }

    /// The node's domain in a layer of this label, or of the first of these that it has.
    pub fn domain(&self, labels: &str) -> Option<&str> {
        labels.split(',').find_map(|label| self.labels.get(label)).map(|value| &**value)
    }
}

/// What a ResourceSlice of one node says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SliceFacts {
    /// Whose devices these are.
    pub node: Box<str>,
    /// Who hands them out.
    pub driver: Box<str>,
}

impl SliceFacts {
    /// `true` when a driver of this name hands out NVIDIA's GPUs, as node daemons do.
    pub fn is_gpu_driver(driver: &str) -> bool {
        ["gpu.nvidia.com", "hami-core-gpu.project-hami.io"].contains(&driver)
    }
}

/// The lock as this process has observed it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LockSeen {
    /// The annotation.
    pub read: LockRead,
    /// Monotonic time at which exactly this value was first seen.
    pub first_seen: Duration,
    /// The lock that stood before, when it named a pod.
    pub previous: Option<(Holder, Box<str>)>,
}

/// A node. It exists from the first mention by any object; [`Node::facts`] is there while the Node object is.
#[derive(Debug, Clone)]
pub struct Node {
    /// Name.
    pub name: Box<str>,
    /// The Node object.
    pub facts: Option<NodeFacts>,
    /// The lock.
    pub lock: LockSeen,
    /// The agent; `None` without a Lease.
    pub agent: Option<Agent>,
    /// Devices; `None` without a Device object.
    pub stock: Option<Stock>,
    /// Where what pods hold is not what their annotations say.
    pub exceptions: NodeExceptions,
    /// Sum of the requests of [`Node::pods`].
    pub used: Resources,
    /// The same as ratings count it.
    pub rated: Rated,
    /// Bound and assumed pods that have not ended.
    pub pods: BTreeSet<PodId>,
    /// ResourceSlices of GPU drivers by name, and their drivers: these GPUs may be handed out without us.
    slices: BTreeMap<Box<str>, Box<str>>,
    /// It is kept for this group or pod: no other pod with devices comes here.
    pub kept_for: Option<Arc<str>>,
    /// Its daemon calls it suspect and that is heeded: no new pod with devices comes here.
    shunned: bool,
}

impl Node {
    /// A name and nothing else.
    pub fn mentioned(name: &str) -> Self {
        Self {
            name: name.into(),
            facts: None,
            lock: LockSeen { read: LockRead::Free, first_seen: Duration::ZERO, previous: None },
            agent: None,
            stock: None,
            exceptions: NodeExceptions::default(),
            used: Resources::default(),
            rated: Rated::default(),
            pods: BTreeSet::new(),
            slices: BTreeMap::new(),
            kept_for: None,
            shunned: false,
        }
    }

    /// A driver beside us that hands out GPUs of this node.
    pub fn gpu_driver(&self) -> Option<&str> {
        self.slices.values().next().map(|driver| &**driver)
    }

    /// Enters a ResourceSlice of a GPU driver. `true` when that is news.
    pub(super) fn enter_slice(&mut self, slice: Box<str>, driver: Box<str>) -> bool {
        self.slices.insert(slice, driver.clone()) != Some(driver)
    }

    /// Takes a ResourceSlice out. `true` when it was there.
    pub(super) fn leave_slice(&mut self, slice: &str) -> bool {
        self.slices.remove(slice).is_some()
    }

    /// Heeds that its daemon calls it suspect, or does so no more. `true` when that is news.
    pub(super) fn shun(&mut self, shun: bool) -> bool {
        std::mem::replace(&mut self.shunned, shun) != shun
    }

    /// Why its daemon calls it suspect, and whether that is heeded: pods with devices are kept away.
    pub fn suspect(&self) -> Option<(&Suspect, bool)> {
        Some((self.stock.as_ref()?.suspect()?, self.shunned))
    }

    /// `true` when nothing in the cluster mentions this node any more.
    pub fn is_forgotten(&self) -> bool {
        self.facts.is_none()
            && self.agent.is_none()
            && self.stock.is_none()
            && self.pods.is_empty()
            && self.slices.is_empty()
    }

    /// The agent's status while it is live.
    pub fn live_agent(&self) -> Option<&Shared<AgentStatus>> {
        let agent = self.agent.as_ref()?;
        agent.live_since?;
        agent.status.as_ref()
    }

    /// Its daemon, in the words of every surface.
    pub fn daemon(&self, wall: Timestamp) -> DaemonState {
        let since = |renewed: Timestamp| Duration::try_from(wall.duration_since(renewed)).unwrap_or_default();
        let has_devices = self.stock.as_ref().is_some_and(Stock::lists_devices);
        DaemonState::of(Heard {
            renewed: self.agent.as_ref().map(|agent| agent.renewed.map(since).unwrap_or_default()),
            is_live: self.agent.as_ref().is_some_and(|agent| agent.live_since.is_some()),
            has_ended: self.agent_status().is_some_and(|status| status.ended),
            is_registered: !has_devices || self.agent_status().is_some_and(|status| !status.registered.is_empty()),
            is_ready: self.facts.as_ref().is_none_or(|facts| !facts.not_ready),
            not_offered: self.not_offered(),
        })
    }

    /// What does not answer where it has devices and its daemon serves none, and the command that shows more.
    pub fn unserved(&self, wall: Timestamp) -> Option<String> {
        let (daemon, name) = (self.daemon_of_devices(wall).filter(|daemon| !daemon.serves())?, &self.name);
        Some(format!("{}, so no new pod gets devices there; look: {}", daemon.fault(name)?, daemon.look(name)))
    }

    /// It has devices, and its daemon serves them.
    pub fn gives_devices(&self, wall: Timestamp) -> bool {
        self.daemon_of_devices(wall).is_some_and(DaemonState::serves)
    }

    fn daemon_of_devices(&self, wall: Timestamp) -> Option<DaemonState> {
        let lists = self.facts.is_some() && self.stock.as_ref().is_some_and(Stock::lists_devices);
        lists.then(|| self.daemon(wall))
    }

    /// How old its lock is, where there is one that says so.
    pub fn lock_age(&self, wall: Timestamp) -> Option<LockAge> {
        match &self.lock.read {
            LockRead::Held { value, .. } => Some(LockAge::of(value, wall)),
            LockRead::Free | LockRead::Malformed { .. } => None,
        }
    }

    /// The wait of a pod that is bound here and whose devices are not handed out, under its lock.
    pub fn lock_delay<'a>(&'a self, pod: &'a HandoffPod, wall: Timestamp) -> Option<LockDelay<'a>> {
        let LockRead::Held { value, .. } = &self.lock.read else { return None };
        let waits = BoundHolder::of(&self.lock.read, pod, self.agent_status()) == BoundHolder::Waits;
        (waits && lock::names(value, pod) != LockMatch::No).then(|| LockDelay {
            node: &self.name,
            holder: &pod.pod.key,
            age: LockAge::of(value, wall),
            daemon: self.daemon(wall),
        })
    }

    /// For the lock's decisions.
    pub fn liveness(&self) -> AgentLiveness {
        match self.agent.as_ref().and_then(|agent| agent.live_since) {
            Some(since) => AgentLiveness::LiveSince(since),
            None => AgentLiveness::Stale,
        }
    }

    /// The daemon's latest word, also while it is stale.
    pub fn agent_status(&self) -> Option<&AgentStatus> {
        self.agent.as_ref()?.status.as_deref()
    }

    /// `true` while the kubelet would call this node's agent for `resource`: registered, and not zeroed by the kubelet.
    pub fn serves(&self, resource: &str) -> bool {
        let serves = |status: &Shared<AgentStatus>| !status.too_many_exceptions && status.registers(resource);
        self.live_agent().is_some_and(serves)
            && self.facts.as_ref().is_some_and(|facts| facts.allocatable.scalar(resource) > 0)
    }

    /// The daemon says that it is registered for `resource`, and the kubelet offers none: the daemon's socket is gone.
    pub fn is_not_offered(&self, resource: &str) -> bool {
        self.agent_status().is_some_and(|status| status.registers(resource))
            && self.facts.as_ref().is_some_and(|facts| facts.allocatable.scalar(resource) == 0)
    }

    /// Healthy devices of which the kubelet offers none although the node daemon says that it is registered: it has died. One that ends by
    /// itself takes its names back from its Lease first.
    fn not_offered(&self) -> Option<(usize, &'static str)> {
        let (facts, stock) = (self.facts.as_ref()?, self.stock.as_ref()?);
        self.agent_status().filter(|status| !status.registered.is_empty())?;
        let devices = stock.pool().devices();
        let gpus = devices.gpus.iter().filter(|gpu| gpu.common.healthy && gpu.core > 0).count();
        let gpus = gpus + devices.migs.iter().filter(|mig| mig.common.healthy).count();
        let nics = devices.nics.iter().filter(|nic| nic.common.healthy).count();
        let none = |kind: &DeviceType| offered(facts.allocatable.scalar.iter(), kind) == 0;
        let all = [(gpus, "GPUs", DeviceType::Gpu), (nics, "NICs", DeviceType::Rdma)];
        all.into_iter().find(|(healthy, _, kind)| *healthy > 0 && none(kind)).map(|(healthy, what, _)| (healthy, what))
    }

    /// What a pod on this node holds, if that is known.
    pub fn holding<'a>(&'a self, pod: &'a Pod) -> Option<&'a Held> {
        self.holders().of(pod)
    }

    /// What its daemon says that a pod holds, where the annotation does not say so; nothing of one that runs without its devices.
    pub fn said_of(&self, pod: &Pod) -> Option<&Held> {
        self.exceptions.of_pod(&pod.facts.handoff.pod.uid)
    }

    /// What decides what pods on this node hold.
    pub fn holders(&self) -> Holders<'_> {
        holders(&self.exceptions, self.agent.as_ref(), self.facts.as_ref())
    }

    /// The same, and the devices to count them on.
    pub(super) fn stock_and_holders(&mut self) -> (Option<&mut Stock>, Holders<'_>) {
        let Self { stock, exceptions, agent, facts, .. } = self;
        (stock.as_mut(), holders(exceptions, agent.as_ref(), facts.as_ref()))
    }

    /// `true` while the agent serves pods of `scheduler` without the lock.
    pub fn needs_no_lock(&self, scheduler: &str) -> bool {
        self.live_agent().is_some_and(|status| status.needs_no_lock(scheduler))
    }

    /// Records a reading of the lock. The time of a value that stays is kept. `true` when the value changed.
    pub fn see_lock(&mut self, read: LockRead, now: Duration) -> bool {
        if self.lock.read == read {
            return false;
        }
        let previous = match std::mem::replace(&mut self.lock.read, LockRead::Free) {
            LockRead::Held { value, raw } => value.holder.map(|holder| (holder, raw)),
            LockRead::Free => self.lock.previous.take(),
            LockRead::Malformed { .. } => None,
        };
        self.lock = LockSeen { read, first_seen: now, previous };
        true
    }

    /// Records a version of the agent's Lease. `lease.renewed` is the Lease's own time: one that is twice as old as `stale` at first
    /// reading, or of the future, belongs to a dead agent. `true` when liveness or status changed.
    pub fn see_agent(
        &mut self,
        lease: LeaseSeen,
        stale: Duration,
        (mono, wall): (Duration, Timestamp),
        changes: &mut Changes,
    ) -> bool {
        let LeaseSeen { status, version, renewed } = lease;
        let live_since = match &self.agent {
            Some(agent) if agent.version == version => return false,
            // It is renewed: its writer is alive.
            Some(agent) => agent.live_since.or(Some(mono)),
            None => {
                let age = renewed.and_then(|at| Duration::try_from(wall.duration_since(at)).ok()).unwrap_or_default();
                let may_live = age < stale * 2 && renewed.is_none_or(|at| at <= wall + FUTURE);
                may_live.then_some(mono)
            }
        };
        if self.agent.as_ref().is_none_or(|agent| agent.status != status) {
            self.exceptions.hear(status.as_deref(), changes);
        }
        let is_news = self.agent.as_ref().is_none_or(|of| of.status != status || of.live_since != live_since);
        self.agent = Some(Agent { status, version, renewed, changed: mono, live_since });
        is_news
    }

    /// Marks the agent stale when its Lease stood unchanged for `stale`. `true` when that is news.
    pub fn age_agent(&mut self, stale: Duration, now: Duration) -> bool {
        match &mut self.agent {
            Some(agent) if agent.live_since.is_some() && now >= agent.changed + stale => {
                agent.live_since = None;
                true
            }
            _ => false,
        }
    }

    /// When a live agent grows stale unless its Lease changes before.
    pub fn live_until(&self, stale: Duration) -> Option<Duration> {
        self.agent.as_ref().filter(|agent| agent.live_since.is_some()).map(|agent| agent.changed + stale)
    }
}

fn holders<'a>(exceptions: &'a NodeExceptions, agent: Option<&'a Agent>, facts: Option<&'a NodeFacts>) -> Holders<'a> {
    let registered = agent.and_then(|agent| agent.status.as_ref()).map(|status| &*status.registered);
    Holders::new(exceptions, registered, facts.map(|facts| &facts.allocatable.scalar))
}

/// Every image that some node lists; kept with [`WorldPolicy::images`](super::WorldPolicy::images).
#[derive(Debug, Clone, Default)]
pub(super) struct Images(BTreeMap<ImageName, Image>);

#[derive(Debug, Clone, Copy)]
struct Image {
    /// Bytes, as the first node that listed it states.
    size: i64,
    nodes: usize,
}

impl Images {
    /// Counts the images of a node; each name once.
    pub fn enter(&mut self, listed: &[(ImageName, i64)]) {
        for (name, size) in listed {
            self.0.entry(*name).or_insert(Image { size: *size, nodes: 0 }).nodes += 1;
        }
    }

    /// Takes the images of a node out.
    pub fn leave(&mut self, listed: &[(ImageName, i64)]) {
        for (name, _) in listed {
            if let Some(image) = self.0.get_mut(name) {
                image.nodes -= 1;
                if image.nodes == 0 {
                    self.0.remove(name);
                }
            }
        }
    }

    /// Bytes, and how many nodes have it; `None` where no node lists it.
    pub fn find(&self, name: ImageName) -> Option<(i64, usize)> {
        self.0.get(&name).map(|image| (image.size, image.nodes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STALE: Duration = Duration::from_secs(90);

    #[test]
    fn a_lease_that_was_left_or_is_of_the_future_is_no_sign_of_life_until_renewed() {
        let now = "2026-11-22T10:00:00Z".parse::<Timestamp>().unwrap();
        let second = Duration::from_secs(1);
        for (renewed, is_live) in [
            (now - STALE * 2 + second, true),
            (now - STALE * 2, false),
            (now + FUTURE, true),
            (now + FUTURE + second, false),
        ] {
            let mut node = Node::mentioned("n");
            let mut sees = |version: &str| {
                let lease = LeaseSeen { status: None, version: version.into(), renewed: Some(renewed) };
                node.see_agent(lease, STALE, (STALE, now), &mut Changes::default());
                node.liveness() == AgentLiveness::LiveSince(STALE)
            };
            assert_eq!([sees("1"), sees("1"), sees("2")], [is_live, is_live, true], "{renewed}");
        }
    }
}

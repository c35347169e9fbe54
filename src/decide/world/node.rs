//! One node: its object, its lock, its agent, its devices, and what runs on it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::Timestamp;

use crate::contract::image::ImageName;
use crate::contract::{AgentStatus, Holder, LockRead, Shared};
use crate::decide::lock::AgentLiveness;

use super::PodId;
use super::devices::Stock;
use super::resources::{Rated, Resources};
use super::spec::{Labels, Taint};

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
    /// `status.images`: every name once, in order, and the image's bytes. Empty unless
    /// [`WorldPolicy::images`](super::WorldPolicy::images).
    pub images: Box<[(ImageName, i64)]>,
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

/// The node's agent, by its Lease.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Agent {
    /// What it serves; `None` when the annotation is missing or unreadable.
    pub status: Option<Shared<AgentStatus>>,
    /// Version of the Lease that was last seen.
    pub version: Box<str>,
    /// Monotonic time at which that version was first seen.
    pub changed: Duration,
    /// Monotonic time since which it has been live without a gap; `None` while stale.
    pub live_since: Option<Duration>,
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
    /// Sum of the requests of [`Node::pods`].
    pub used: Resources,
    /// The same as ratings count it.
    pub rated: Rated,
    /// Bound and assumed pods that have not ended.
    pub pods: BTreeSet<PodId>,
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
            used: Resources::default(),
            rated: Rated::default(),
            pods: BTreeSet::new(),
        }
    }

    /// `true` when nothing in the cluster mentions this node any more.
    pub fn is_forgotten(&self) -> bool {
        self.facts.is_none() && self.agent.is_none() && self.stock.is_none() && self.pods.is_empty()
    }

    /// The agent's status while it is live.
    pub fn live_agent(&self) -> Option<&Shared<AgentStatus>> {
        let agent = self.agent.as_ref()?;
        agent.live_since?;
        agent.status.as_ref()
    }

    /// For the lock's decisions.
    pub fn liveness(&self) -> AgentLiveness {
        match self.agent.as_ref().and_then(|agent| agent.live_since) {
            Some(since) => AgentLiveness::LiveSince(since),
            None => AgentLiveness::Stale,
        }
    }

    /// `true` while the kubelet would call this node's agent for `resource`: registered, and not zeroed by the kubelet.
    pub fn serves(&self, resource: &str) -> bool {
        self.live_agent().is_some_and(|status| status.registered.iter().any(|name| name == resource))
            && self.facts.as_ref().is_some_and(|facts| facts.allocatable.scalar(resource) > 0)
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

    /// Records a version of the agent's Lease. `renewed` is the Lease's own time: one that was twice as old as `stale` at
    /// first reading belongs to a dead agent. `true` when liveness or status changed.
    pub fn see_agent(
        &mut self,
        status: Option<Shared<AgentStatus>>,
        version: &str,
        renewed: Option<Timestamp>,
        stale: Duration,
        now: (Duration, Timestamp),
    ) -> bool {
        let (mono, wall) = now;
        match &mut self.agent {
            Some(agent) if *agent.version == *version => false,
            Some(agent) => {
                let changed = agent.status != status || agent.live_since.is_none();
                agent.status = status;
                agent.version = version.into();
                agent.changed = mono;
                agent.live_since.get_or_insert(mono);
                changed
            }
            none => {
                let age = renewed.and_then(|at| Duration::try_from(wall.duration_since(at)).ok()).unwrap_or_default();
                let live_since = (age < stale * 2).then_some(mono);
                *none = Some(Agent { status, version: version.into(), changed: mono, live_since });
                true
            }
        }
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

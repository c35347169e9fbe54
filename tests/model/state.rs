//! One state of the modelled world: small numbers only, so that millions of states can be kept apart by their hash.

use baton::decide::handoff::Admission;

/// Pods, nodes, devices, containers per pod, schedulers.
pub const PODS: usize = 3;
pub const NODES: usize = 2;
pub const DEVICES: usize = 2;
pub const CONTAINERS: usize = 2;
pub const SCHEDULERS: usize = 2;

/// A container that a pod does not have gets this device.
pub const NONE: u8 = u8::MAX;

/// Value of a lock annotation: its pod, and which of the pod's bind times it carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Lock {
    pub pod: u8,
    pub time: u8,
}

/// What a Binding wrote.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Bound {
    pub node: u8,
    /// Device per container.
    pub devices: [u8; CONTAINERS],
    pub time: u8,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Life {
    /// Not created yet.
    Absent,
    There,
    /// Deleted, within its grace period.
    Deleting,
    /// Deleted, its grace period is over, the kubelet has not confirmed.
    PastGrace,
    Gone,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Phase {
    Pending,
    Running,
    Succeeded,
    Failed,
}

/// A pod in the API, kept with its last binding when it is gone: the kubelet may still run it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Pod {
    pub life: Life,
    pub phase: Phase,
    pub bound: Option<Bound>,
    /// The device that its annotation names since it was edited.
    pub edited: Option<u8>,
    /// Ghost: every device that an edit has named, a bit each.
    pub named: u8,
    /// Ghost: its lock was taken over while it waited for its devices.
    pub overtaken: bool,
}

/// What the kubelet of the pod's node knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Kube {
    /// In the active set: PodResources lists it.
    pub active: bool,
    /// Under admission.
    pub admitting: bool,
    /// Ids per container, in the checkpoint.
    pub ids: [Option<u8>; CONTAINERS],
    /// Device that the answer named, per container.
    pub answer: [Option<u8>; CONTAINERS],
    /// Admitted although no call was made.
    pub without: bool,
}

/// One entry of the agent's ledger.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Entry {
    /// The kubelet's id; `None` where a rebuilt init container's is not known.
    pub id: Option<u8>,
    pub served: u8,
    /// Rebuilt where the kubelet and the annotation differ: the other device.
    pub also: Option<u8>,
    /// The device that the stored answer names; `None` where it was rebuilt without one.
    pub answer: Option<u8>,
    /// How often the kubelet asked: 2 is more than once, 0 not known.
    pub asked: u8,
    /// Rebuilt for a pod that the API server does not know.
    pub orphan: bool,
}

/// What the agent of the pod's node holds of it: ledger on disk, the rest in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Book {
    pub entries: [Option<Entry>; CONTAINERS],
    pub admission: Option<Admission>,
    /// Served before the kubelet or the agent last started.
    pub may_repeat: bool,
    /// The edited device that the agent saw first, where it did not see what the Binding wrote.
    pub first: Option<u8>,
}

/// Where a flight is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Step {
    /// Looks at the lock next.
    Line,
    /// Has judged `old` and writes its own value over it. Ghost: by the truth at that moment it might.
    Write { old: Option<Lock>, proven: bool },
    /// Holds the lock and posts the Binding.
    Bind,
}

/// A pod between decision and Binding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Flight {
    pub pod: u8,
    pub node: u8,
    pub devices: [u8; CONTAINERS],
    pub time: u8,
    /// A lock value of this flight may stand.
    pub wrote: bool,
    pub step: Step,
}

/// One scheduler's memory. The queue is kept as a set: order changes no invariant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Scheduler {
    pub queued: [bool; PODS],
    pub flight: Option<Flight>,
    /// A lock value that it is about to remove.
    pub release: Option<(u8, Lock)>,
}

/// A node: its annotation, its agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Node {
    pub lock: Option<Lock>,
    /// The value has stood for longer than the expiry.
    pub expired: bool,
    pub agent_up: bool,
    /// The agent may write its Lease and not its Node.
    pub mute: bool,
    /// A lock value that the agent is about to remove.
    pub release: Option<Lock>,
    /// Ghost: the last grant that no release has ended.
    pub granted: Option<Lock>,
}

/// Faults that are left.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Faults {
    pub crashes: u8,
    pub lost_replies: u8,
    pub expiries: u8,
    pub deletions: u8,
    pub kubelet_restarts: u8,
    pub lost_ledgers: u8,
    pub throttles: u8,
    pub forgeries: u8,
    pub edits: u8,
    pub mutes: u8,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct State {
    pub pods: [Pod; PODS],
    pub kube: [Kube; PODS],
    pub books: [Book; PODS],
    pub schedulers: [Scheduler; SCHEDULERS],
    pub nodes: [Node; NODES],
    pub left: Faults,
    /// Broken rules, one bit each ([`super::properties::Broken`]); never cleared.
    pub broken: u8,
}

/// From here on, numbers of bind times stand for times of an hour ago that no Binding has written.
pub const OLD: u8 = 90;

impl Pod {
    /// Nothing is bound.
    pub fn new(life: Life, phase: Phase) -> Self {
        Self { life, phase, bound: None, edited: None, named: 0, overtaken: false }
    }
    pub fn exists(&self) -> bool {
        !matches!(self.life, Life::Absent | Life::Gone)
    }
    pub fn ended(&self) -> bool {
        matches!(self.phase, Phase::Succeeded | Phase::Failed)
    }
    pub fn waits(&self) -> bool {
        self.life == Life::There && self.bound.is_none() && !self.ended()
    }
    pub fn on(&self, node: usize) -> bool {
        self.bound.is_some_and(|bound| usize::from(bound.node) == node)
    }
}

impl State {
    /// Holds its devices: in the API and not ended, or still run by the kubelet.
    pub fn is_live(&self, pod: usize) -> bool {
        self.kube[pod].active || (self.pods[pod].exists() && !self.pods[pod].ended())
    }

    /// The two schedulers are alike: one order stands for both.
    pub fn canonical(mut self) -> Self {
        self.schedulers.sort();
        self
    }

    /// The smallest bind time of `pod` that nothing refers to any more; real ones are never used twice.
    pub fn fresh_time(&self, pod: usize) -> u8 {
        let same = |lock: &Lock| usize::from(lock.pod) == pod;
        let locks = self.nodes.iter().flat_map(|node| [node.lock, node.release, node.granted]).flatten();
        let releases = self.schedulers.iter().filter_map(|scheduler| scheduler.release.map(|(_, lock)| lock));
        let olds = self.schedulers.iter().filter_map(|scheduler| match scheduler.flight?.step {
            Step::Write { old, .. } => old,
            _ => None,
        });
        let flights = self.schedulers.iter().filter_map(|scheduler| scheduler.flight);
        let mut used: Vec<u8> = locks.chain(releases).chain(olds).filter(same).map(|lock| lock.time).collect();
        used.extend(flights.filter(|flight| usize::from(flight.pod) == pod).map(|flight| flight.time));
        used.extend(self.pods[pod].bound.map(|bound| bound.time));
        (0..).find(|time| !used.contains(time)).unwrap_or(0)
    }
}

//! What watches report to the world, and what kind of change that is for pods that wait.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;

use baton_contract::inventory::Device;
use baton_contract::quota::{LimitRangeRules, QuotaRules};
use baton_contract::{AgentStatus, PodKey, PodUid};

use crate::world::gangs::PodGroupFacts;
use baton_contract::gang::{GangId, PodGroupApi, TopologyLayer};

use crate::world::tyjob_facts::{JobFacts, JobIdentity, PriorityClassFacts};

use super::capacity::CapacityFacts;
use super::node::{NodeFacts, SliceFacts};
use super::pod::PodFacts;
use super::spec::{BudgetFacts, Labels};
use super::volume::{ClaimFacts, ClassFacts, VolumeFacts};
use super::{NodeId, PodId};

/// One fact from a watch.
#[derive(Debug, Clone)]
pub enum WorldEvent {
    /// A node, new or changed.
    Node(NodeFacts),
    /// A node is gone.
    NodeGone(Box<str>),
    /// A pod, new or changed; ended pods too.
    Pod(Box<PodFacts>),
    /// A pod as a live read beside the watch has found it. One that the watch does not show is not taken in: it may be gone before any
    /// watch or list has shown it, and then nothing ever says so.
    PodRead(Box<PodFacts>),
    /// A pod is gone.
    PodGone(PodKey, PodUid),
    /// The Device object of a node; it is named after the node.
    Devices(Box<Device>),
    /// The Device object is gone.
    DevicesGone(Box<str>),
    /// The Lease of a node's agent.
    Agent {
        /// Node.
        node: Box<str>,
        /// Its annotation, when readable.
        status: Option<AgentStatus>,
        /// resourceVersion.
        version: Box<str>,
        /// `spec.renewTime`.
        renewed: Option<Timestamp>,
    },
    /// The Lease is gone.
    AgentGone(Box<str>),
    /// A ResourceSlice: its name, and the node and driver of the devices that it offers; `None` for one that is gone or offers none.
    Slice(Box<str>, Option<SliceFacts>),
    /// A namespace, new or changed.
    Namespace(Box<str>, Labels),
    /// A namespace is gone.
    NamespaceGone(Box<str>),
    /// A persistent volume.
    Volume(Box<str>, VolumeFacts),
    /// A persistent volume is gone.
    VolumeGone(Box<str>),
    /// A claim.
    Claim(PodKey, ClaimFacts),
    /// A claim is gone.
    ClaimGone(PodKey),
    /// A storage class.
    Class(Box<str>, ClassFacts),
    /// A storage class is gone.
    ClassGone(Box<str>),
    /// A CSI driver, and whether the capacity that it publishes counts (`spec.storageCapacity`); `false` for one that is gone.
    Driver(Box<str>, bool),
    /// What a driver can still provide for some nodes; `None` for what is gone, or of no use.
    Capacity(PodKey, Option<CapacityFacts>),
    /// A PodGroup, new or changed.
    PodGroup(Box<PodGroupFacts>),
    /// A PodGroup is gone, or its whole API.
    PodGroupGone(PodGroupApi, GangId),
    /// The layers that an object states; `None` where it is gone.
    Layers(Option<Arc<[TopologyLayer]>>),
    /// A TYJob, new or changed.
    Job(Box<JobFacts>),
    /// A TYJob is gone.
    JobGone(JobIdentity),
    /// A PriorityClass.
    PriorityClass(Box<str>, PriorityClassFacts),
    /// A PriorityClass is gone.
    PriorityClassGone(Box<str>),
    /// A ResourceQuota; `None` for one that is gone.
    Quota(PodKey, Option<Box<QuotaRules>>),
    /// A LimitRange; `None` for one that is gone.
    LimitRange(PodKey, Option<Box<LimitRangeRules>>),
    /// Whether the scheduler may read the objects of this name, without which it does not know what namespaces may use.
    Readable(&'static str, bool),
    /// A PodDisruptionBudget.
    Budget(PodKey, BudgetFacts),
    /// A PodDisruptionBudget is gone.
    BudgetGone(PodKey),
}

/// Kinds of change, as a set. A refusal names those that may turn it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Wake(u16);

impl Wake {
    /// Nothing.
    pub const NONE: Self = Self(0);
    /// A node came.
    pub const NODE_ADDED: Self = Self(1);
    /// Labels, taints or `unschedulable` of a node: its words.
    pub const NODE_CHANGED: Self = Self(1 << 1);
    /// A node offers more of something that is counted.
    pub const NODE_ROOM: Self = Self(1 << 2);
    /// An agent came to life or serves other names.
    pub const AGENT: Self = Self(1 << 3);
    /// A node's inventory.
    pub const DEVICES: Self = Self(1 << 4);
    /// A pod that took room is gone, ended or was forgotten.
    pub const POD_FREED: Self = Self(1 << 5);
    /// A pod was bound, or what rules count of a bound pod changed: its labels, and that it is being deleted.
    pub const POD_PLACED: Self = Self(1 << 6);
    /// Namespaces.
    pub const NAMESPACE: Self = Self(1 << 7);
    /// Volumes and claims, and room for more.
    pub const VOLUME: Self = Self(1 << 8);
    /// What the namespace of a TYJob may use.
    pub const QUOTA: Self = Self(1 << 9);
    /// A node comes, or one that is there takes pods again or offers more.
    pub const NODE: Self =
        Self::NODE_ADDED.or(Self::NODE_CHANGED).or(Self::NODE_ROOM).or(Self::AGENT).or(Self::DEVICES);
    /// Number of kinds.
    pub const KINDS: usize = 10;
    /// All of them.
    pub const ANY: Self = Self((1 << Self::KINDS) - 1);

    /// Both.
    #[must_use]
    pub const fn or(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
    /// `true` when they have a kind in common.
    pub const fn meets(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }
    /// `true` for no kind.
    pub const fn is_none(self) -> bool {
        self.0 == 0
    }
    /// Each kind in words that follow "when".
    pub fn words(self) -> impl Iterator<Item = &'static str> {
        const WORDS: [&str; Wake::KINDS] = [
            "a node is added",
            "labels, taints or cordon of a node change",
            "a node offers more",
            "a node daemon becomes ready or serves more",
            "the devices of a node change",
            "a pod leaves its node",
            "a pod is placed",
            "labels of a namespace change",
            "a volume or claim changes, or a driver has more storage",
            "a ResourceQuota or LimitRange changes",
        ];
        self.kinds().map(|kind| WORDS[kind])
    }
    /// The kinds, as numbers below [`Wake::KINDS`].
    pub fn kinds(self) -> impl Iterator<Item = usize> {
        (0..Self::KINDS).filter(move |kind| self.0 & (1 << kind) != 0)
    }
}

/// What one event changed.
#[derive(Debug, Clone, Default)]
pub struct Changes {
    /// For pods that wait.
    pub wake: Wake,
    /// Pods that appeared, changed or moved.
    pub pods: Vec<PodId>,
    /// Pods that have ended, each once.
    pub ended: Vec<PodId>,
    /// Pods that are gone.
    pub gone: Vec<PodId>,
    /// Pods that held room and hold nothing of it any more: gone or ended, and their processes with them.
    pub left: Vec<PodUid>,
    /// Nodes whose lock, agent, devices or object changed.
    pub nodes: Vec<NodeId>,
    /// Pods whose node's lock went, since they have their devices, and how long it stood.
    pub served: Vec<(PodId, Duration)>,
    /// TYJobs whose object or pods changed.
    pub jobs: Vec<PodKey>,
    /// Namespaces with TYJobs whose quotas or limits changed, or the classes that admission gives there.
    pub quotas: Vec<Box<str>>,
}

//! What watches report to the world.

use std::sync::Arc;

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

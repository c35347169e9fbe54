//! What would help a pod that was refused: each refusal names it, so that the advice does not depend on the text.

/// Which advice a refusal deserves beside its own text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum Help {
    /// The name of the rule says enough.
    #[default]
    Rule,
    /// The node daemon must come back.
    Daemon,
    /// The node daemon was stopped in order, and must be started again.
    Stopped,
    /// The kubelet must come back.
    Kubelet,
    /// Scheduler and node daemon must lock nodes alike.
    AgentConfig,
    /// A GPU driver of dynamic resource allocation must leave the node, or the node daemon must.
    AnotherGpuDriver,
    /// What fails pods on the node must be mended.
    NodeSuspect,
    /// What enforces the limits of GPU shares on the node must come back.
    SharesUnavailable,
    /// Another node must enforce the limits of GPU shares as the pod asks for.
    ShareIsolation,
    /// The node daemon must publish its devices.
    Inventory,
    /// The kubelet must know the resource name.
    Registration,
    /// The node daemon must name the devices of pods without an assignment.
    Unassigned,
    /// Another pod must leave, or this pod must ask for less.
    Room,
    /// The pod must ask for less: it is larger than the empty node.
    LargerNode,
    /// A device must have the labels that the pod selects.
    Selector,
    /// The operator must write the node's partition table.
    PartitionTable,
    /// The pod must have fewer parts.
    SmallerPod,
    /// The kubelet's limit of pods is reached.
    MaxPods,
    /// A storage class is missing.
    StorageClass,
    /// A claim is missing.
    Claim,
    /// A volume of a class without a provisioner is missing.
    Volume,
    /// A CSI driver has too little free storage where the node is.
    Storage,
    /// The pod's volume is somewhere else.
    Reach,
}

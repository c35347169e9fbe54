//! What would help a pod that was refused: said by whoever refuses it, so that the advice does not hang on the words.

/// Which advice a refusal deserves beside its own text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum Help {
    /// The name of the rule says enough.
    #[default]
    Rule,
    /// The node daemon must come back.
    Daemon,
    /// The node daemon must publish its devices.
    Inventory,
    /// The kubelet must know the resource name.
    Registration,
    /// The node daemon must name the devices of pods that nobody assigned.
    Unassigned,
    /// Somebody must leave, or the pod must ask for less.
    Room,
    /// A device must have the labels that the pod selects.
    Selector,
    /// Somebody must write the node's partition table.
    PartitionTable,
    /// The kubelet's limit of pods is reached.
    MaxPods,
    /// A storage class is missing.
    StorageClass,
    /// A claim is missing.
    Claim,
    /// A volume of a class that nobody provisions is missing.
    Volume,
    /// A CSI driver has too little free storage where the node is.
    Storage,
    /// The pod's volume is somewhere else.
    Reach,
}

//! Why a node cannot serve a request: a value that explains itself for one node and counts over many.

use std::borrow::Cow;
use std::fmt;

use crate::help::Help;
use baton_contract::hint::{ExclusivePolicy, TopologyScope};

/// Why no devices were chosen. `Display` is about this node; [`Reason::summary`] is the same on every node with the same
/// refusal, so that refusals can be counted: `0/12 nodes: 7 have fewer than 4 free GPUs, …`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reason {
    /// Too few whole GPUs.
    FewGpus {
        /// Asked for.
        wanted: u32,
        /// Free and eligible.
        free: u32,
        /// Of the node.
        total: u32,
    },
    /// No GPU has room for a share in both dimensions.
    NoShareRoom {
        /// Percent of compute asked for.
        core: i64,
        /// Memory asked for.
        memory: ShareMemory,
        /// Number of shares asked for together.
        shares: u32,
    },
    /// Too few MIG devices.
    FewMigs {
        /// Profile.
        profile: Box<str>,
        /// Asked for.
        wanted: u32,
        /// Free.
        free: u32,
        /// Of the node.
        total: u32,
    },
    /// Too few whole NICs.
    FewNics {
        /// Asked for.
        wanted: u32,
        /// Free and eligible.
        free: u32,
        /// Of the node.
        total: u32,
    },
    /// No NIC has room for a share.
    NoNicRoom {
        /// Percent asked for.
        percent: u32,
        /// Most that is free on one.
        most: u32,
    },
    /// Enough devices, but not within the required scope.
    Scope {
        /// `GPUs`, `NICs` or `MIG devices`.
        what: &'static str,
        /// Scope.
        scope: TopologyScope,
        /// Asked for.
        wanted: u32,
    },
    /// `SamePCIe` cannot hold.
    NotNear {
        /// NICs asked for.
        wanted: u32,
        /// Most that can be near the GPUs.
        near: u32,
    },
    /// Devices are there, but not for this pod alone.
    NotAlone {
        /// `GPU` or `NIC`.
        what: &'static str,
        /// Policy.
        policy: ExclusivePolicy,
    },
    /// The hint's selector leaves no healthy device.
    NoMatch {
        /// `GPU` or `NIC`.
        what: &'static str,
    },
    /// NICs are there, but no virtual function that is free and matches.
    NoVf,
    /// `Restricted`, and the node's partition table has no free partition of that size and bandwidth, or there is no table.
    Partition {
        /// GPUs asked for.
        wanted: u32,
        /// The node has a table.
        table: bool,
    },
}

/// Memory of a share as it was asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ShareMemory {
    /// Percent.
    Ratio(i64),
    /// Bytes.
    Bytes(i64),
}

impl fmt::Display for ShareMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ratio(percent) => write!(f, "{percent}% memory"),
            Self::Bytes(bytes) => write!(f, "{} memory", baton_contract::Quantity::bytes(*bytes)),
        }
    }
}

fn scope_word(scope: TopologyScope) -> &'static str {
    match scope {
        TopologyScope::Device => "one device",
        TopologyScope::Pcie => "one PCIe switch",
        TopologyScope::NumaNode => "one NUMA node",
        TopologyScope::Node => "one node",
    }
}

fn policy_word(policy: ExclusivePolicy) -> &'static str {
    match policy {
        ExclusivePolicy::DeviceLevel => "DeviceLevel",
        ExclusivePolicy::PcieLevel => "PCIeLevel",
    }
}

impl Reason {
    /// What would help.
    pub fn help(&self) -> Help {
        match self {
            Self::FewGpus { .. }
            | Self::NoShareRoom { .. }
            | Self::FewMigs { .. }
            | Self::FewNics { .. }
            | Self::NoNicRoom { .. }
            | Self::Scope { .. }
            | Self::NotNear { .. }
            | Self::NotAlone { .. }
            | Self::NoVf
            | Self::Partition { table: true, .. } => Help::Room,
            Self::NoMatch { .. } => Help::Selector,
            Self::Partition { table: false, .. } => Help::PartitionTable,
        }
    }

    /// The refusal without this node's numbers, worded to follow a count of nodes.
    pub fn summary(&self) -> Cow<'static, str> {
        match self {
            Self::FewGpus { wanted: 1, .. } => "have no free GPU".into(),
            Self::FewGpus { wanted, .. } => format!("have fewer than {wanted} free GPUs").into(),
            Self::NoShareRoom { core, memory, shares: 1 } => {
                format!("have no GPU with {memory} and {core}% core left").into()
            }
            Self::NoShareRoom { core, memory, shares } => {
                format!("have no room for {shares} GPU shares, the largest of {memory} and {core}% core").into()
            }
            Self::FewMigs { profile, wanted: 1, .. } => format!("have no free MIG device {profile}").into(),
            Self::FewMigs { profile, wanted, .. } => {
                format!("have fewer than {wanted} free MIG devices {profile}").into()
            }
            Self::FewNics { wanted: 1, .. } => "have no free RDMA NIC".into(),
            Self::FewNics { wanted, .. } => format!("have fewer than {wanted} free RDMA NICs").into(),
            Self::NoNicRoom { percent, .. } => format!("have no RDMA NIC with {percent}% left").into(),
            Self::Scope { what, scope, wanted } => {
                format!("have no {wanted} free {what} within {}", scope_word(*scope)).into()
            }
            Self::NotNear { wanted, .. } => {
                format!("have no {wanted} free NICs under the same PCIe switch as the GPUs").into()
            }
            Self::NotAlone { what, policy } => {
                format!("have no {what} that no other pod uses (exclusivePolicy {})", policy_word(*policy)).into()
            }
            Self::NoMatch { what } => format!("have no healthy {what} that matches the hint's selector").into(),
            Self::NoVf => "have no free virtual function that matches".into(),
            Self::Partition { wanted, table: true } => format!("have no free GPU partition of {wanted}").into(),
            Self::Partition { table: false, .. } => "have no GPU partition table".into(),
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::FewGpus { wanted, free, total } => {
                write!(f, "{free} of {wanted} GPUs free (the node has {total})")
            }
            Self::NoShareRoom { core, memory, shares: 1 } => write!(f, "no GPU has {memory} and {core}% core left"),
            Self::NoShareRoom { core, memory, shares } => {
                write!(f, "no room for {shares} GPU shares, the largest of {memory} and {core}% core")
            }
            Self::FewMigs { profile, wanted, free, total } => {
                write!(f, "{free} of {wanted} MIG devices {profile} free (the node has {total})")
            }
            Self::FewNics { wanted, free, total } => {
                write!(f, "{free} of {wanted} RDMA NICs free (the node has {total})")
            }
            Self::NoNicRoom { percent, most } => {
                write!(f, "no RDMA NIC has {percent}% left, the most is {most}%")
            }
            Self::Scope { what, scope, wanted } => {
                write!(f, "no {wanted} free {what} within {}", scope_word(*scope))
            }
            Self::NotNear { wanted, near } => write!(f, "NICs under the same PCIe switch: {near} of {wanted}"),
            Self::NotAlone { what, policy } => {
                write!(f, "no {what} that no other pod uses (exclusivePolicy {})", policy_word(*policy))
            }
            Self::NoMatch { what } => write!(f, "no healthy {what} matches the hint's selector"),
            Self::NoVf => f.write_str("no free virtual function matches"),
            Self::Partition { wanted, table: true } => {
                write!(f, "no free GPU partition of {wanted} in the node's table")
            }
            Self::Partition { table: false, .. } => {
                f.write_str("gpu-partition-spec is Restricted and the node has no GPU partition table")
            }
        }
    }
}

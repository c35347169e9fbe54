//! What this node can hand out, as the hand-off needs it: a plain value that the agent replaces whole on every change.

use std::collections::{BTreeMap, BTreeSet};

use crate::shares::ShareOffer;
use baton_contract::{DeviceId, DeviceType};

/// The devices of this node and the resource names that its agent serves.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct NodeInventory {
    /// Whole GPUs, MIG devices, NICs and their virtual functions, by physical identity. A device that an assignment may
    /// still name stays here and is marked unhealthy; it is not dropped.
    pub devices: BTreeMap<DeviceId, InventoryDevice>,
    /// Resource names that the agent registers by configuration, whether or not the kubelet has accepted them yet.
    pub registered: BTreeSet<Box<str>>,
    /// How GPU shares are held to their limits.
    pub shares: ShareOffer,
}

/// One device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InventoryDevice {
    /// GPU (MIG devices too) or NIC (virtual functions too).
    pub kind: DeviceType,
    /// Minor in the Device object: a MIG device and a virtual function have their parent's.
    pub minor: i32,
    /// Takes new pods.
    pub healthy: bool,
    /// Why not, for the refusal's text.
    pub reason: Option<Box<str>>,
    /// Total memory in bytes; `None` where the device has none or it is unknown.
    pub memory_bytes: Option<i64>,
    /// The GPU of a MIG device, the physical function of a virtual one.
    pub parent: Option<DeviceId>,
    /// `1g.10gb` on a MIG device.
    pub mig_profile: Option<Box<str>>,
}

impl NodeInventory {
    /// `true` for a name whose Allocate calls come to this agent.
    pub fn registers(&self, resource: &str) -> bool {
        self.registered.contains(resource)
    }
}

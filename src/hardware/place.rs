//! Where a PCI device sits: what the scheduler needs to put a NIC beside a GPU.

use serde::{Deserialize, Serialize};

use super::bdf::Bdf;

/// A device's place on the PCI fabric. Every part is optional: containers and odd machines hide some of it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Place {
    /// Root complex as the kernel names it, `pci0000:3a`.
    #[serde(default)]
    pub root_complex: Option<String>,
    /// The root port that the path goes through; `None` for a device on the root bus itself.
    #[serde(default)]
    pub root_port: Option<Bdf>,
    /// Upstream port of the nearest PCIe switch above the device; `None` where there is no switch.
    #[serde(default)]
    pub switch: Option<Bdf>,
    /// NUMA node, `None` when the kernel says negative or nothing.
    #[serde(default)]
    pub numa_node: Option<u32>,
    /// CPU package of that NUMA node.
    #[serde(default)]
    pub socket: Option<u32>,
}

impl Place {
    /// The port that stands for "same PCIe switch": the switch, and without one the root port. Two devices are under
    /// one switch exactly when both have a neighbourhood and it is equal.
    pub fn neighbourhood(&self) -> Option<Bdf> {
        self.switch.or(self.root_port)
    }
}

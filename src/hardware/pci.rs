//! Where a PCI device is, from the kernel's device tree (`/sys/devices/pci<dom>:<bus>/<port>/…/<bdf>`): what the scheduler needs to
//! put a NIC beside a GPU.

use std::collections::BTreeSet;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::bdf::Bdf;
use super::tree::{Tree, TreeError};

/// A device's place on the PCI fabric. Every part is optional: containers and odd machines hide some of it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PciPlace {
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

impl PciPlace {
    /// The port that stands for "same PCIe switch": the switch, and without one the root port. Two devices are under
    /// one switch exactly when both have a neighbourhood and it is equal.
    pub fn neighbourhood(&self) -> Option<Bdf> {
        self.switch.or(self.root_port)
    }
}

/// The kernel's NUMA nodes; containers may hide them.
const NODES: &str = "devices/system/node";
/// PCI Express capability id.
const CAPABILITY_EXPRESS: u8 = 0x10;
/// Device/port types of the PCI Express capabilities register.
const TYPE_SWITCH_UPSTREAM: u8 = 5;

/// Where `bdf` sits. Fails only when the device has no directory or it leads out of the tree; what else is hidden
/// stays unknown in the answer.
pub fn place(sysfs: &Tree, bdf: Bdf) -> Result<PciPlace, TreeError> {
    Ok(place_at(sysfs, &sysfs.resolve(format!("bus/pci/devices/{bdf}"))?))
}

/// The kernel sees this device, whichever driver it has.
pub fn is_present(sysfs: &Tree, bdf: Bdf) -> bool {
    sysfs.exists(format!("bus/pci/devices/{bdf}"))
}

/// Where the device with this resolved directory sits; what is hidden stays unknown.
pub fn place_at(sysfs: &Tree, path: &Path) -> PciPlace {
    let (root_complex, above) = ancestors(path);
    let numa_node: Option<u32> = sysfs.text(path.join("numa_node")).ok().and_then(|text| text.parse().ok());
    // Firmware names nodes that the kernel does not have.
    let has_node = |node: &u32| sysfs.exists(format!("{NODES}/node{node}")) || !sysfs.exists(NODES);
    let numa_node = numa_node.filter(has_node);
    PciPlace {
        root_complex,
        root_port: above.first().copied(),
        switch: nearest_switch(sysfs, path, &above),
        numa_node,
        socket: numa_node.and_then(|node| socket(sysfs, node)),
    }
}

/// Root complex and the ports above the device, outermost first, from `devices/pci0000:3a/0000:3a:01.0/…/<bdf>`.
pub fn ancestors(path: &Path) -> (Option<String>, Vec<Bdf>) {
    let names: Vec<&str> = path.components().filter_map(|part| part.as_os_str().to_str()).collect();
    // The complex may hang below other buses (`devices/platform/…`), or below a device of another complex (VMD): the
    // innermost one is the fabric that the device is on.
    let Some(complex) = names.iter().rposition(|name| is_root_complex(name)) else { return (None, Vec::new()) };
    let mut above: Vec<Bdf> = names[complex..].iter().filter_map(|name| name.parse().ok()).collect();
    above.pop();
    (Some(names[complex].to_owned()), above)
}

fn is_root_complex(name: &str) -> bool {
    let hex = |text: &str| text.bytes().all(|b| b.is_ascii_hexdigit());
    let parts = name.strip_prefix("pci").and_then(|rest| rest.split_once(':'));
    parts.is_some_and(|(domain, bus)| (4..=8).contains(&domain.len()) && bus.len() == 2 && hex(domain) && hex(bus))
}

/// The closest upstream port above the device. Without configuration space (not root, or a guest) the shape must do:
/// a device below a switch has the downstream port as parent and the upstream port as grandparent.
fn nearest_switch(sysfs: &Tree, path: &Path, above: &[Bdf]) -> Option<Bdf> {
    let types: Vec<Option<u8>> = path
        .ancestors()
        .skip(1)
        .take(above.len())
        .map(|port| sysfs.bytes(port.join("config")).ok().and_then(|config| port_type(&config)))
        .collect();
    if types.iter().all(Option::is_none) {
        return (above.len() >= 3).then(|| above[above.len() - 2]);
    }
    let nearest = types.iter().position(|kind| *kind == Some(TYPE_SWITCH_UPSTREAM))?;
    above.iter().rev().nth(nearest).copied()
}

/// Device/port type from configuration space; `None` when the capability is absent or beyond the bytes readable
/// (without CAP_SYS_ADMIN the kernel shows 64).
pub fn port_type(config: &[u8]) -> Option<u8> {
    let has_list = config.get(0x06)? & 0x10 != 0;
    let mut at = usize::from(*config.get(0x34)? & 0xfc);
    // 48 capabilities fill the space; more is a loop.
    for _ in 0..48 {
        if !has_list || at < 0x40 {
            return None;
        }
        if *config.get(at)? == CAPABILITY_EXPRESS {
            return Some(config.get(at + 2)? >> 4);
        }
        at = usize::from(*config.get(at + 1)? & 0xfc);
    }
    None
}

/// CPU package of a NUMA node; `None` for a node without CPUs.
fn socket(sysfs: &Tree, node: u32) -> Option<u32> {
    let cpus = sysfs.text(format!("{NODES}/node{node}/cpulist")).ok()?;
    let first: u32 = cpus.split([',', '-']).next()?.trim().parse().ok()?;
    sysfs.text(format!("devices/system/cpu/cpu{first}/topology/physical_package_id")).ok()?.parse().ok()
}

/// Functions bound to the `nvidia` kernel driver; `None` when the driver has no directory.
pub fn nvidia_functions(sysfs: &Tree) -> Option<BTreeSet<Bdf>> {
    let names = sysfs.names("bus/pci/drivers/nvidia").ok()?;
    Some(names.iter().filter_map(|name| name.parse().ok()).collect())
}

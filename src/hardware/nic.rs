//! What an RDMA NIC is to the rest of the crate. Its identity is the PCI address: udev renames the rest.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::bdf::Bdf;
use super::pci::PciPlace;

/// One RDMA-capable PCI function.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NicInfo {
    /// PCI address: the id in every annotation and every kubelet id.
    pub bdf: Bdf,
    /// The kernel's name of the moment, `mlx5_0` or `rocep59s0`.
    pub ibdev: String,
    /// `0c42:a103:00aa:bb00`; all zeros on an unconfigured VF.
    #[serde(default)]
    pub node_guid: Option<String>,
    /// Firmware version.
    #[serde(default)]
    pub firmware: Option<String>,
    /// PCI vendor and device id, `15b3:101e`.
    #[serde(default)]
    pub pci_id: Option<(u16, u16)>,
    /// Its kernel driver, `mlx5_core`.
    #[serde(default)]
    pub driver: Option<String>,
    /// Ports by number.
    pub ports: Vec<Port>,
    /// Whether this is a physical function, and which others belong to it.
    pub function: PciFunction,
    /// Character devices that a container needs.
    pub chars: CharDevices,
    /// Names of the network interfaces in this network namespace.
    #[serde(default)]
    pub netdevs: Vec<String>,
    /// The interface of the host's default route that goes over it.
    #[serde(default)]
    pub carries: Option<String>,
    /// Where it sits on the PCI fabric.
    #[serde(default)]
    pub place: PciPlace,
}

impl NicInfo {
    /// A virtual function (`physfn` exists).
    pub fn is_vf(&self) -> bool {
        matches!(self.function, PciFunction::Virtual { .. })
    }
}

/// The SR-IOV relation of a function.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum PciFunction {
    /// A physical function with its virtual functions in order (empty without SR-IOV).
    Physical {
        /// `virtfn<i>` in order of i.
        vfs: Vec<Bdf>,
    },
    /// A virtual function.
    Virtual {
        /// Its physical function.
        pf: Bdf,
    },
}

/// One port of a NIC.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Port {
    /// Port number, from 1.
    pub number: u32,
    /// Logical state.
    pub state: PortState,
    /// Physical state text, `LinkUp`.
    #[serde(default)]
    pub phys_state: Option<String>,
    /// `InfiniBand` or `Ethernet`.
    #[serde(default)]
    pub link_layer: Option<String>,
    /// Rate text, `400 Gb/sec (4X NDR)`.
    #[serde(default)]
    pub rate: Option<String>,
}

/// Logical state of a port, as the kernel numbers it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum PortState {
    /// 1
    Down,
    /// 2
    Init,
    /// 3
    Armed,
    /// 4: traffic flows.
    Active,
    /// 5: link lost for a moment, still configured.
    ActiveDefer,
    /// Anything else, or unreadable.
    Unknown,
}

impl PortState {
    /// The link is there, whether traffic flows yet or not.
    pub fn is_linked(self) -> bool {
        !matches!(self, Self::Down | Self::Unknown)
    }

    /// As the kernel writes it, without its number.
    pub fn word(self) -> &'static str {
        match self {
            Self::Down => "DOWN",
            Self::Init => "INIT",
            Self::Armed => "ARMED",
            Self::Active => "ACTIVE",
            Self::ActiveDefer => "ACTIVE_DEFER",
            Self::Unknown => "UNKNOWN",
        }
    }

    /// Reads the `state` file: `4: ACTIVE`.
    pub fn parse(text: &str) -> Self {
        let number = text.trim().split(':').next().unwrap_or_default();
        match number.trim() {
            "1" => Self::Down,
            "2" => Self::Init,
            "3" => Self::Armed,
            "4" => Self::Active,
            "5" => Self::ActiveDefer,
            _ => Self::Unknown,
        }
    }
}

/// Character devices of a NIC, as paths in the container and on the host (`/dev/infiniband/uverbs0`), whatever the
/// injected dev root. `uverbs` and `rdma_cm` are required to serve the NIC, the rest is optional.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CharDevices {
    /// Verbs.
    pub uverbs: Option<PathBuf>,
    /// Connection manager, one for the machine.
    pub rdma_cm: Option<PathBuf>,
    /// Management datagrams.
    #[serde(default)]
    pub umad: Vec<PathBuf>,
    /// Subnet management.
    #[serde(default)]
    pub issm: Vec<PathBuf>,
    /// The old InfiniBand connection manager.
    #[serde(default)]
    pub ucm: Option<PathBuf>,
}

impl CharDevices {
    /// What is missing of the required two, by name.
    pub fn missing(&self) -> Vec<&'static str> {
        let uverbs = self.uverbs.is_none().then_some("uverbs");
        let cm = self.rdma_cm.is_none().then_some("rdma_cm");
        uverbs.into_iter().chain(cm).collect()
    }

    /// All that exist, required ones first.
    pub fn all(&self) -> impl Iterator<Item = &PathBuf> {
        let required = self.uverbs.iter().chain(&self.rdma_cm);
        required.chain(&self.umad).chain(&self.issm).chain(&self.ucm)
    }
}

/// An entry of `/sys/class/infiniband` that could not be read as a NIC; the others are not affected.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NicFault {
    /// The entry's name, escaped and cut to 64 characters.
    pub ibdev: String,
    /// Its PCI address, when that much was known.
    pub bdf: Option<Bdf>,
    /// What could not be read and why.
    pub reason: String,
    /// A read of it does not come back.
    #[serde(default)]
    pub hangs: bool,
}

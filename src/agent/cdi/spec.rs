//! The words of a CDI spec file, as far as we write them.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// The oldest version of the format that has all we use (`hostPath`, names that begin with a digit). A runtime refuses a file of a version
/// later than its library: that of containerd 1.7.2 to 1.7.11 and of CRI-O 1.27 is 0.5.
pub const VERSION: &str = "0.5.0";

/// A CDI spec, as far as we write one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Spec {
    /// Version of the format.
    pub cdi_version: String,
    /// `vendor/class`.
    pub kind: String,
    /// What every device of the file brings along.
    #[serde(default, skip_serializing_if = "Edits::is_empty")]
    pub container_edits: Edits,
    /// The devices.
    pub devices: Vec<Device>,
}

/// One name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Device {
    /// The part after `=`.
    pub name: String,
    /// What it brings.
    pub container_edits: Edits,
}

/// Changes to a container.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Edits {
    /// `NAME=value`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub env: Vec<String>,
    /// Device nodes.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub device_nodes: Vec<DeviceNode>,
    /// Bind mounts.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub mounts: Vec<Mount>,
}

/// A device node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DeviceNode {
    /// Path in the container.
    pub path: PathBuf,
    /// Path on the host, where it is another.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_path: Option<PathBuf>,
    /// Cgroup permissions.
    pub permissions: String,
}

/// A bind mount.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Mount {
    /// On the host.
    pub host_path: PathBuf,
    /// In the container.
    pub container_path: PathBuf,
    /// Mount options.
    pub options: Vec<String>,
}

impl Edits {
    /// Nothing is changed. Valid for a whole file, not for a device.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

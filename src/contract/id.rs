//! Identities: pods, devices, device types.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::name::{BadName, bad};

/// Physical identity of a device: GPU UUID, MIG UUID or PCI address. Shares carry the id of their device.
///
/// 1 to 128 printable ASCII characters without blank, comma, slash, or `::` (which separates share units), and without a
/// colon at the end (whose units would read as another device's).
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct DeviceId(Arc<str>);

impl DeviceId {
    /// Checks and wraps `value`.
    pub fn parse(value: &str) -> Result<Self, BadName> {
        let bad = |rule| Err(bad("device id", value, rule));
        if value.is_empty() || value.len() > 128 {
            return bad("is not valid: expected 1 to 128 characters");
        }
        if !value.bytes().all(|b| b.is_ascii_graphic() && b != b',' && b != b'/' && b != b'\\') {
            return bad("is not valid: expected printable ASCII without blanks, commas and slashes");
        }
        if value.contains("::") || value == "." || value == ".." {
            return bad("is not valid: `::` separates share units and dots name no device");
        }
        if value.ends_with(':') {
            return bad("is not valid: a colon at the end makes its share units those of another device");
        }
        Ok(Self(value.into()))
    }

    /// The id as written on every wire.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The kubelet's id of unit `k` of this device's share, `<id>::<k>`.
    pub fn unit(&self, k: u32) -> String {
        format!("{}::{k}", self.0)
    }

    /// The device of a kubelet id: `GPU-1::17` and `GPU-1` are both `GPU-1`.
    pub fn of_kubelet_id(id: &str) -> Result<Self, BadName> {
        Self::parse(id.split_once("::").map_or(id, |(device, _)| device))
    }
}

impl TryFrom<String> for DeviceId {
    type Error = BadName;
    fn try_from(value: String) -> Result<Self, BadName> {
        Self::parse(&value)
    }
}

impl From<DeviceId> for String {
    fn from(id: DeviceId) -> Self {
        id.as_str().to_owned()
    }
}

impl fmt::Display for DeviceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Kind of a device. Types that Baton does not know are kept as they came.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(from = "String", into = "String")]
pub enum DeviceType {
    /// `gpu`
    Gpu,
    /// `rdma`
    Rdma,
    /// Anything else, as written.
    Other(Box<str>),
}

impl DeviceType {
    /// The word on the wire.
    pub fn as_str(&self) -> &str {
        match self {
            Self::Gpu => "gpu",
            Self::Rdma => "rdma",
            Self::Other(name) => name,
        }
    }
}

impl From<String> for DeviceType {
    fn from(value: String) -> Self {
        match value.as_str() {
            "gpu" => Self::Gpu,
            "rdma" => Self::Rdma,
            _ => Self::Other(value.into()),
        }
    }
}

impl From<DeviceType> for String {
    fn from(kind: DeviceType) -> Self {
        kind.as_str().to_owned()
    }
}

impl fmt::Display for DeviceType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Namespace and name of a pod, printed `namespace/name`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct PodKey {
    /// Namespace.
    pub namespace: Box<str>,
    /// Name.
    pub name: Box<str>,
}

impl PodKey {
    /// From words that the API server has already validated.
    pub fn new(namespace: &str, name: &str) -> Self {
        Self { namespace: namespace.into(), name: name.into() }
    }
}

impl fmt::Display for PodKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// `metadata.uid` of a pod: the only identity that survives deletion and re-creation under the same name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct PodUid(pub Box<str>);

impl PodUid {
    /// Wraps `metadata.uid`.
    pub fn new(uid: &str) -> Self {
        Self(uid.into())
    }
    /// The uid as written.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for PodUid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// One pod for good: key and uid.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct PodRef {
    /// Namespace and name.
    pub key: PodKey,
    /// Uid.
    pub uid: PodUid,
}

impl PodRef {
    /// From words that the API server has already validated.
    pub fn new(namespace: &str, name: &str, uid: &str) -> Self {
        Self { key: PodKey::new(namespace, name), uid: PodUid::new(uid) }
    }
}

impl fmt::Display for PodRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (uid {})", self.key, self.uid)
    }
}

//! What was decided for one Allocate call, and who turns it into the kubelet's words.

use crate::contract::deviceplugin::ContainerAllocateResponse;
use crate::contract::{DeviceEntry, DeviceType, PodRef};

/// The devices of one container for one call. Everything in it has been validated against the inventory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Grant {
    /// Resource name whose socket was called; it is the one that delivers.
    pub resource: Box<str>,
    /// The pod.
    pub pod: PodRef,
    /// Its container.
    pub container: Box<str>,
    /// Devices, in the order of the assignment; all of the type that `resource` stands for.
    pub entries: Vec<(DeviceType, DeviceEntry)>,
    /// `true` when the entries are parts of devices and not whole ones.
    pub shares: bool,
}

/// Builds the answer of a grant. Called within Allocate: no NVML call, no API call, no waiting.
pub trait Answerer: Send + Sync {
    /// The answer for one container. The kubelet replays it on every restart of the container, so whatever it names must
    /// stay valid for the pod's life.
    fn answer(&self, grant: &Grant) -> Result<ContainerAllocateResponse, AnswerError>;
}

/// Why a grant could not be turned into an answer. The text ends in the pod's status message.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct AnswerError(pub String);

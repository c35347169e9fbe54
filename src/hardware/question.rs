//! Questions to NVML by name, and those that a GPU did not answer: each costs what it is about.

use std::fmt;

use serde::{Deserialize, Serialize};

use baton_contract::HealthReason;

/// A question about one GPU that has not been answered, or whose answer cannot be.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FailedQuestion {
    /// The question.
    pub question: Question,
    /// What came instead of an answer.
    pub why: String,
}

impl fmt::Display for FailedQuestion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.question.call(), self.why)
    }
}

macro_rules! questions {
    ($($(#[$meta:meta])* $question:ident = $call:literal => $reason:ident,)+) => {
        /// A question about one GPU.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
        #[serde(rename_all = "camelCase")]
        pub enum Question { $($(#[$meta])* $question,)+ }

        impl Question {
            /// The function of the library.
            pub const fn call(self) -> &'static str {
                match self { $(Self::$question => $call,)+ }
            }

            /// The condition of a GPU that does not answer it.
            pub const fn reason(self) -> HealthReason {
                match self { $(Self::$question => HealthReason::$reason,)+ }
            }
        }
    };
}

questions! {
    /// Its handle.
    Handle = "nvmlDeviceGetHandleByIndex_v2" => NvmlError,
    /// Its identity.
    Uuid = "nvmlDeviceGetUUID" => NvmlError,
    /// Its PCI address.
    PciAddress = "nvmlDeviceGetPciInfo_v3" => PlaceUnknown,
    /// The number of its device node.
    Minor = "nvmlDeviceGetMinorNumber" => MinorUnknown,
    /// Its product name.
    Model = "nvmlDeviceGetName" => ModelUnknown,
    /// Its compute capability.
    ComputeCapability = "nvmlDeviceGetCudaComputeCapability" => ModelUnknown,
    /// Its memory.
    Memory = "nvmlDeviceGetMemoryInfo" => MemoryUnknown,
    /// Whether it is split.
    MigMode = "nvmlDeviceGetMigMode" => MigUnknown,
    /// How many MIG devices it may have.
    MigCount = "nvmlDeviceGetMaxMigDeviceCount" => MigDevicesUnknown,
    /// The handle of a MIG device.
    MigDevice = "nvmlDeviceGetMigDeviceHandleByIndex" => MigDevicesUnknown,
    /// Its GPU instance.
    MigGpuInstance = "nvmlDeviceGetGpuInstanceId" => MigDevicesUnknown,
    /// Its compute instance.
    MigComputeInstance = "nvmlDeviceGetComputeInstanceId" => MigDevicesUnknown,
    /// Its size.
    MigAttributes = "nvmlDeviceGetAttributes_v2" => MigDevicesUnknown,
    /// Its identity.
    MigUuid = "nvmlDeviceGetUUID of a MIG device" => MigDevicesUnknown,
    /// Whether an NVLink is in use.
    LinkState = "nvmlDeviceGetNvLinkState" => LinksUnknown,
    /// What an NVLink ends at.
    LinkEnd = "nvmlDeviceGetNvLinkRemoteDeviceType" => LinksUnknown,
    /// The address of that.
    LinkAddress = "nvmlDeviceGetNvLinkRemotePciInfo_v2" => LinksUnknown,
    /// How far another GPU is.
    Topology = "nvmlDeviceGetTopologyCommonAncestor" => LinksUnknown,
    /// Its registration with the NVSwitch fabric.
    Fabric = "nvmlDeviceGetGpuFabricInfo" => StateUnknown,
    /// What the driver wants done with it.
    Recovery = "nvmlDeviceGetFieldValues" => StateUnknown,
}

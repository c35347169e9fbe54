//! The layout of `nvml/state.h` in bytes: what the library maps, this side writes with plain file writes.

/// Size of the whole state.
pub const SIZE: usize = 45_056;
/// Marks a state file.
pub const MAGIC: u32 = 0x4d56_4e42;
/// Must equal `STATE_VERSION`.
pub const VERSION: u32 = 2;
/// Devices a machine can have.
pub const MAX_DEVICES: usize = 16;
/// MIG instances of one device.
pub const MAX_MIG: usize = 8;
/// NVLinks of one device.
pub const MAX_LINKS: usize = 18;
/// Events remembered.
pub const MAX_EVENTS: u64 = 64;

pub const INIT_ERROR: u64 = 8;
pub const DEVICES: u64 = 12;
pub const EVENT_HEAD: u64 = 16;
pub const CALL_ERROR: u64 = 24;
pub const EVENTS_UNSUPPORTED: u64 = 28;
pub const DRIVER_VERSION: u64 = 32;
pub const NVML_VERSION: u64 = 112;
pub const CUDA_VERSION: u64 = 192;
pub const WEDGE_INIT: u64 = 196;
pub const EVENTS: u64 = 256;
pub const EVENT_SIZE: u64 = 32;
pub const LEVELS: u64 = 2304;
pub const DEVICE: u64 = 4096;
pub const DEVICE_SIZE: u64 = 2048;
pub const COUNTERS: u64 = 36_864;
pub const COUNTER_SIZE: u64 = 64;
pub const COUNTER_NAME: usize = 56;

/// Offsets inside a device.
pub mod device {
    pub const PRESENT: u64 = 0;
    pub const LOST: u64 = 4;
    pub const WEDGED: u64 = 8;
    pub const MINOR: u64 = 12;
    pub const DOMAIN: u64 = 16;
    pub const BUS: u64 = 20;
    pub const DEVICE: u64 = 24;
    pub const PCI_ID: u64 = 28;
    pub const UUID: u64 = 32;
    pub const NAME: u64 = 128;
    pub const MEMORY_BYTES: u64 = 224;
    pub const MEMORY_SUPPORTED: u64 = 232;
    pub const CC_MAJOR: u64 = 236;
    pub const CC_MINOR: u64 = 240;
    pub const MIG_MODE: u64 = 244;
    pub const MIG_COUNT: u64 = 248;
    pub const EVENT_TYPES: u64 = 252;
    pub const RECOVERY: u64 = 256;
    pub const RECOVERY_SUPPORTED: u64 = 260;
    pub const LINK_COUNT: u64 = 264;
    pub const FAULT: u64 = 268;
    pub const SERIAL: u64 = 280;
    pub const LINKS: u64 = 312;
    pub const FABRIC_STATE: u64 = 600;
    pub const FABRIC_STATUS: u64 = 604;
    pub const MIG: u64 = 640;
    pub const MIG_SIZE: u64 = 160;
    pub const FAILING: u64 = 1920;
    pub const FAILING_ANSWER: u64 = 1976;
}

/// Every function that the library exports and counts.
pub const FUNCTIONS: [&str; 36] = [
    "nvmlInit_v2",
    "nvmlInit",
    "nvmlInitWithFlags",
    "nvmlShutdown",
    "nvmlSystemGetDriverVersion",
    "nvmlSystemGetNVMLVersion",
    "nvmlSystemGetCudaDriverVersion",
    "nvmlSystemGetCudaDriverVersion_v2",
    "nvmlDeviceGetCount_v2",
    "nvmlDeviceGetHandleByIndex_v2",
    "nvmlDeviceGetHandleByUUID",
    "nvmlDeviceGetUUID",
    "nvmlDeviceGetName",
    "nvmlDeviceGetMinorNumber",
    "nvmlDeviceGetIndex",
    "nvmlDeviceGetPciInfo_v3",
    "nvmlDeviceGetMemoryInfo",
    "nvmlDeviceGetMemoryInfo_v2",
    "nvmlDeviceGetCudaComputeCapability",
    "nvmlDeviceGetSerial",
    "nvmlDeviceGetTopologyCommonAncestor",
    "nvmlDeviceGetTotalEccErrors",
    "nvmlDeviceGetNvLinkState",
    "nvmlDeviceGetNvLinkRemoteDeviceType",
    "nvmlDeviceGetNvLinkRemotePciInfo_v2",
    "nvmlDeviceGetGpuFabricInfo",
    "nvmlDeviceGetFieldValues",
    "nvmlDeviceGetMigMode",
    "nvmlDeviceGetMaxMigDeviceCount",
    "nvmlDeviceGetMigDeviceHandleByIndex",
    "nvmlDeviceGetDeviceHandleFromMigDeviceHandle",
    "nvmlDeviceIsMigDeviceHandle",
    "nvmlDeviceGetGpuInstanceId",
    "nvmlDeviceGetComputeInstanceId",
    "nvmlDeviceGetAttributes_v2",
    "nvmlEventSetCreate",
];

/// The rest of the exported functions: those of an event set's life.
pub const EVENT_FUNCTIONS: [&str; 4] =
    ["nvmlEventSetFree", "nvmlDeviceGetSupportedEventTypes", "nvmlDeviceRegisterEvents", "nvmlEventSetWait_v2"];

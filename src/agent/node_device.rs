//! One device of this node: what it is, where it is plugged in, and how it is.

use jiff::Timestamp;

use baton_contract::{DeviceId, DeviceType, HealthReason};
use baton_decide::health::{ConditionEffect, DeviceCondition};
use baton_hardware::gpu::MigInstance;
use baton_hardware::{Bdf, GpuInfo, NicInfo, PciPlace};

/// One device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeDevice {
    /// Physical identity.
    pub id: DeviceId,
    /// Number in the Device object; parts have their whole's.
    pub minor: i32,
    /// What it is.
    pub body: DeviceBody,
    /// PCI address, where it is known; a MIG device has its GPU's.
    pub bdf: Option<Bdf>,
    /// Where it is plugged in.
    pub place: PciPlace,
    /// How it is.
    pub health: DeviceHealth,
}

/// What a device is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DeviceBody {
    /// A GPU.
    Gpu {
        /// As NVML answered.
        gpu: Box<GpuInfo>,
        /// Only its MIG devices are handed out.
        split: bool,
        /// Number of its NVLink neighbourhood, when it has neighbours.
        nvlink: Option<u32>,
    },
    /// A MIG device.
    Mig {
        /// Its GPU.
        parent: DeviceId,
        /// Number of its GPU in NVML.
        parent_index: u32,
        /// Number of its GPU's device node, where it is known.
        parent_minor: Option<u32>,
        /// Its number below the GPU in NVML, as NVIDIA's plugin counts them: with gaps where instances were destroyed.
        slot: u32,
        /// Model of the GPU, where it is known.
        model: Option<String>,
        /// The instance.
        instance: MigInstance,
    },
    /// A NIC that is listed: a physical function, or a virtual one without a visible parent.
    Nic {
        /// As sysfs said.
        nic: Box<NicInfo>,
        /// Its virtual functions that are there.
        vfs: Vec<DeviceId>,
        /// Only they are handed out, under a name of their own.
        split: bool,
    },
    /// A virtual function of a listed NIC.
    Vf {
        /// Its physical function.
        parent: DeviceId,
        /// Number below it.
        number: u32,
        /// As sysfs said.
        nic: Box<NicInfo>,
        /// It is handed out under a name of its own, and not as a part of its NIC.
        apart: bool,
    },
}

impl NodeDevice {
    /// The word for its type on every wire.
    pub fn kind(&self) -> DeviceType {
        match self.body {
            DeviceBody::Gpu { .. } | DeviceBody::Mig { .. } => DeviceType::Gpu,
            DeviceBody::Nic { .. } | DeviceBody::Vf { .. } => DeviceType::Rdma,
        }
    }

    /// The device that this one is a part of.
    pub fn parent(&self) -> Option<&DeviceId> {
        match &self.body {
            DeviceBody::Mig { parent, .. } | DeviceBody::Vf { parent, .. } => Some(parent),
            DeviceBody::Gpu { .. } | DeviceBody::Nic { .. } => None,
        }
    }

    /// Parts of it are handed out.
    pub fn may_be_shared(&self) -> bool {
        matches!(self.body, DeviceBody::Gpu { split: false, .. })
    }

    /// Memory in bytes, where it is known.
    pub fn memory(&self) -> Option<i64> {
        let bytes = match &self.body {
            DeviceBody::Gpu { gpu, .. } => gpu.memory_bytes,
            DeviceBody::Mig { instance, .. } => instance.memory_bytes,
            DeviceBody::Nic { .. } | DeviceBody::Vf { .. } => None,
        };
        bytes.and_then(|bytes| i64::try_from(bytes).ok())
    }
}

/// How a device is, and since when.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceHealth {
    /// Takes new pods.
    pub healthy: bool,
    /// Reason of the condition.
    pub reason: HealthReason,
    /// For people: what happened and what to do.
    pub message: Box<str>,
    /// When it became so.
    pub since: Timestamp,
    /// Every condition that holds, in the order of the table.
    pub conditions: Vec<DeviceCondition>,
}

impl DeviceHealth {
    /// As the conditions that hold make it.
    pub fn of(conditions: Vec<DeviceCondition>, since: Timestamp) -> Self {
        let worst = conditions.first().filter(|first| first.effect() < ConditionEffect::Limited);
        let reason = worst.map_or(HealthReason::Healthy, |worst| worst.reason);
        let message = match worst {
            Some(worst) => worst.to_string(),
            None => conditions.iter().fold("no fault seen".to_owned(), |all, limit| format!("{all}; {}", told(limit))),
        };
        Self { healthy: worst.is_none(), reason, message: message.into(), since, conditions }
    }

    /// What limits it although it is in service.
    pub fn limits(&self) -> impl Iterator<Item = &DeviceCondition> {
        self.conditions.iter().filter(|condition| condition.effect() == ConditionEffect::Limited)
    }
}

/// A condition by its name.
fn told(condition: &DeviceCondition) -> String {
    format!("{}: {}", condition.reason, condition.seen)
}

//! The devices that a scheduler gave to a pod, split per container.

use std::collections::BTreeMap;

use super::inventory::NodeInventory;
use super::split;
use crate::contract::allocation::Entries;
use crate::contract::{AllocationError, ContainerDevices, DeviceAllocation, DeviceId, DeviceType, key};
use crate::decide::pod::{ExpectedCall, HandoffPod};

/// Why a pod's annotations give no usable assignment.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AssignmentError {
    /// One annotation is refused whole.
    #[error(transparent)]
    Annotation(#[from] AllocationError),
    /// `device-allocated`, the only annotation there is, does not hold enough for a container.
    #[error(
        "annotation {} gives container {container} {found} of the {wanted} {kind} devices that it asks for",
        key::DEVICE_ALLOCATED
    )]
    TooFew {
        /// The container.
        container: Box<str>,
        /// `gpu` or `rdma`.
        kind: DeviceType,
        /// Devices asked for.
        wanted: usize,
        /// Devices found.
        found: usize,
    },
}

/// The plan: which container gets which devices.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Assignment {
    /// The node that the scheduler chose the devices on; `None` where its annotation does not say.
    pub node: Option<Box<str>>,
    /// Entries by container and type.
    pub containers: BTreeMap<Box<str>, Entries>,
}

impl Assignment {
    /// Reads the pod's annotations; `None` when nobody assigned anything. `container-devices` counts where it is there;
    /// else `device-allocated` is split by the containers' counts.
    pub fn read(pod: &HandoffPod, inventory: &NodeInventory) -> Result<Option<Self>, AssignmentError> {
        let text = &pod.assignment;
        if let Some(split) = text.container_devices.as_deref().map(ContainerDevices::parse).transpose()?.flatten() {
            return Ok(Some(Self { node: Some(split.node), containers: split.containers }));
        }
        let Some(allocated) = text.device_allocated.as_deref().filter(|text| !text.is_empty()) else { return Ok(None) };
        let allocated = DeviceAllocation::parse(allocated)?;
        if allocated.devices.values().all(Vec::is_empty) {
            return Ok(None);
        }
        Ok(Some(Self { node: None, containers: split::split(pod, &allocated, inventory)? }))
    }

    /// Entries of one type in one container.
    pub fn of(&self, container: &str, kind: &DeviceType) -> &[crate::contract::DeviceEntry] {
        self.containers.get(container).and_then(|types| types.get(kind)).map_or(&[], Vec::as_slice)
    }

    /// Every device of the pod, of one type, in the order of the containers; each once.
    pub fn pod_set(&self, pod: &HandoffPod, kind: &DeviceType) -> Vec<DeviceId> {
        let mut set = Vec::new();
        for container in &pod.containers {
            for entry in self.of(&container.name, kind) {
                if !set.contains(&entry.id) {
                    set.push(entry.id.clone());
                }
            }
        }
        set
    }

    /// Every device that is named anywhere, virtual functions too.
    pub fn named(&self) -> impl Iterator<Item = &DeviceId> {
        self.containers.values().flat_map(BTreeMap::values).flatten().flat_map(|entry| {
            let vfs = entry.extension.iter().flat_map(|extension| &extension.vfs).map(|vf| &vf.bus_id);
            std::iter::once(&entry.id).chain(vfs)
        })
    }
}

/// Type of the devices that `resource` stands for.
pub fn kind_of(resource: &str) -> DeviceType {
    if resource == key::RDMA { DeviceType::Rdma } else { DeviceType::Gpu }
}

/// `false` for the GPU names of a container that only accompany the one that delivers: their calls are answered empty.
pub fn delivers(call: &ExpectedCall<'_>) -> bool {
    call.resource == key::RDMA
        || call.container.request.as_ref().is_ok_and(|request| request.delivering_gpu_name() == Some(call.resource))
}

//! `Assignment`: the answer of `pick`, and the annotations that say it.

use super::grant::{Grant, Part};
use super::pool::NodePool;
use super::request::PodDeviceRequest;
use super::summary::share_of;
use crate::contract::allocation::Entries;
use crate::contract::{ContainerDevices, DeviceAllocation, DeviceEntry, DeviceType, Extension, Quantity, Vf, key};

/// The devices chosen for a pod on one node. The pod's set (`grant`) is the assignment; the split per container is a plan.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Assignment {
    /// What to take from the pool.
    pub grant: Grant,
    /// Parts per container, in the order of the request's names; init containers too.
    pub containers: Vec<Vec<Part>>,
}

impl Assignment {
    /// `device-allocated`: one merged entry per device, with the peak of the pod's phases.
    pub fn device_allocated(&self, pool: &NodePool) -> DeviceAllocation {
        DeviceAllocation { devices: entries(pool, &self.grant.parts), ..DeviceAllocation::default() }
    }

    /// `container-devices`: the plan per container, init containers too.
    pub fn container_devices(&self, pool: &NodePool, request: &PodDeviceRequest, node: &str) -> ContainerDevices {
        let named = request.names().iter().zip(&self.containers);
        let containers = named.map(|(name, parts)| (name.clone(), entries(pool, parts))).collect();
        ContainerDevices { node: node.into(), containers }
    }

    /// `gpu-minors`.
    pub fn gpu_minors(&self, pool: &NodePool) -> String {
        self.device_allocated(pool).gpu_minors()
    }
}

fn entries(pool: &NodePool, parts: &[Part]) -> Entries {
    let mut entries = Entries::new();
    for part in parts {
        let (kind, entry) = entry(pool, *part);
        entries.entry(kind).or_default().push(entry);
    }
    for list in entries.values_mut() {
        list.sort_by(|a, b| (a.minor, &a.id).cmp(&(b.minor, &b.id)));
    }
    entries
}

fn entry(pool: &NodePool, part: Part) -> (DeviceType, DeviceEntry) {
    let devices = pool.devices();
    let id = pool.id(part.slot()).clone();
    let units = |name: &str, amount: i64| (name.to_owned(), Quantity::units(amount));
    match part {
        Part::Gpu { gpu, core, memory } => {
            let gpu = &devices.gpus[usize::from(gpu)];
            let ratio = share_of(memory, gpu.memory);
            let mut resources =
                [units(key::GPU_CORE, core.into()), units(key::GPU_MEMORY_RATIO, ratio.into())].into_iter().collect();
            if gpu.bytes_known {
                std::collections::BTreeMap::insert(&mut resources, key::GPU_MEMORY.to_owned(), Quantity::bytes(memory));
            }
            (DeviceType::Gpu, DeviceEntry { minor: gpu.minor, id, resources, extension: None })
        }
        Part::Mig { mig } => {
            let mig = &devices.migs[usize::from(mig)];
            let resources = [units(&format!("{}{}", key::MIG_PREFIX, mig.profile), 1)].into();
            (DeviceType::Gpu, DeviceEntry { minor: mig.minor, id, resources, extension: None })
        }
        Part::Nic { nic, percent, vfs } => {
            let nic = &devices.nics[usize::from(nic)];
            let chosen = super::place::bits(vfs).filter_map(|at| nic.vfs.get(usize::from(at)));
            let vfs: Vec<Vf> = chosen.map(|vf| Vf { minor: vf.minor, bus_id: vf.bus_id.clone() }).collect();
            let resources = [units(key::RDMA, percent.into())].into();
            let extension = (!vfs.is_empty()).then_some(Extension { vfs });
            (DeviceType::Rdma, DeviceEntry { minor: nic.minor, id, resources, extension })
        }
    }
}

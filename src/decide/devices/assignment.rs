//! `Assignment`: the answer of `pick`, and the annotations that say it.

use std::collections::BTreeMap;

use super::annotate::{Named, kind_of, minor_of, vfs_of};
use super::grant::{Grant, Part};
use super::pool::NodePool;
use super::request::PodDeviceRequest;
use crate::contract::allocation::Entries;
use crate::contract::{ContainerDevices, DeviceAllocation, DeviceEntry, DeviceType, Extension, Vf};

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
    let mut resources = BTreeMap::new();
    Named::of(pool, part).each(|all| {
        resources = all.iter().map(|(name, amount)| ((*name).to_owned(), *amount)).collect();
    });
    let vfs: Vec<Vf> = vfs_of(pool, part).map(|(minor, id)| Vf { minor, bus_id: id.clone() }).collect();
    let extension = (!vfs.is_empty()).then_some(Extension { vfs });
    let (minor, id) = (minor_of(pool, part), pool.id(part.slot()).clone());
    (kind_of(part), DeviceEntry { minor, id, resources, extension })
}

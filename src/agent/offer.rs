//! Which resource names this node offers, and which devices under each: what ListAndWatch sends.

use std::collections::{BTreeMap, BTreeSet};

use super::kubelet::{Advertised, AdvertisedDevice, IdUnits};
use super::node_device::{DeviceBody, NodeDevice};
use super::options::AgentOptions;
use super::options::MigStrategy;
use baton_contract::{DeviceId, HealthReason, key};

/// Devices that pods hold, by the resource name they were asked for under.
pub type InUse = BTreeMap<Box<str>, BTreeSet<DeviceId>>;

/// The names that a part of a GPU is asked for under.
const SHARES: [&str; 4] = [key::GPU, key::GPU_CORE, key::GPU_MEMORY_RATIO, key::GPU_SHARED];

/// The names that are offered by configuration; with the mixed MIG strategy the profiles found come on top.
pub fn configured(options: &AgentOptions) -> BTreeSet<Box<str>> {
    let mut names: BTreeSet<Box<str>> = [key::NVIDIA_GPU.into()].into();
    if options.gpu_sharing {
        names.extend(SHARES.map(Box::from));
    }
    if options.rdma {
        names.insert(key::RDMA.into());
    }
    names
}

/// Kinds of devices that may be in the machine although none is listed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Unseen {
    /// There is an NVML library and it cannot be used.
    pub gpus: bool,
    /// Some RDMA device cannot be read.
    pub nics: bool,
}

/// The lists, of names with a device. A device in use stays in its list, marked unhealthy when it is not in `devices` any more.
///
/// A name that the machine has nothing for is not registered at all: the kubelet refuses a pod whose limit of a registered name
/// is zero ("no healthy devices present") where the name has no healthy device. What is only hidden is registered, and
/// once registered a name stays so: a pod that asks for a name that the kubelet does not know runs without devices.
pub fn offers(
    devices: &[NodeDevice],
    options: &AgentOptions,
    in_use: &InUse,
    unseen: Unseen,
) -> BTreeMap<Box<str>, Advertised> {
    let units = |name: &str| match name {
        key::NVIDIA_GPU => IdUnits::Whole,
        name if name.starts_with(key::MIG_PREFIX) || name == options.rdma_vf_resource => IdUnits::Whole,
        _ => IdUnits::Shares(key::WHOLE as u32),
    };
    let mut lists: BTreeMap<Box<str>, Advertised> =
        configured(options).into_iter().map(|name| (name.clone(), Advertised::none(units(&name)))).collect();
    for device in devices {
        for name in names_of(device, options) {
            let list = lists.entry(name.as_str().into()).or_insert_with(|| Advertised::none(units(&name)));
            let numa = device.place.numa_node.filter(|_| options.numa_hints);
            // Of a NIC that its pod has in its own namespace the kubelet keeps counting the ids: they are that pod's.
            let healthy = device.health.healthy || device.health.reason == HealthReason::NicAway;
            list.devices.push(AdvertisedDevice { id: device.id.clone(), healthy, numa });
        }
    }
    for (name, held) in in_use.iter().filter(|(name, _)| key::is_device_resource(name)) {
        let list = lists.entry(name.clone()).or_insert_with(|| Advertised::none(units(name)));
        for id in held {
            if list.devices.iter().all(|device| device.id != *id) {
                list.devices.push(AdvertisedDevice { id: id.clone(), healthy: false, numa: None });
            }
        }
    }
    lists.retain(|name, list| {
        let may_come =
            if &**name == key::RDMA || **name == *options.rdma_vf_resource { unseen.nics } else { unseen.gpus };
        may_come || !list.devices.is_empty()
    });
    lists
}

/// The names that a device is offered under.
fn names_of(device: &NodeDevice, options: &AgentOptions) -> Vec<String> {
    match &device.body {
        DeviceBody::Vf { apart: true, .. } if options.rdma => vec![options.rdma_vf_resource.clone()],
        DeviceBody::Gpu { split: true, .. } | DeviceBody::Vf { .. } | DeviceBody::Nic { split: true, .. } => Vec::new(),
        DeviceBody::Gpu { .. } if device.health.reason == HealthReason::NotSplit => Vec::new(),
        DeviceBody::Gpu { .. } => {
            let shares = SHARES.iter().filter(|_| options.gpu_sharing);
            [key::NVIDIA_GPU].iter().chain(shares).map(|name| (*name).to_owned()).collect()
        }
        DeviceBody::Mig { instance, .. } if options.mig_strategy == MigStrategy::Mixed => {
            vec![mig_name(&instance.profile)]
        }
        DeviceBody::Mig { .. } => vec![key::NVIDIA_GPU.to_owned()],
        DeviceBody::Nic { .. } if options.rdma => vec![key::RDMA.to_owned()],
        DeviceBody::Nic { .. } => Vec::new(),
    }
}

/// Resource name of a MIG profile.
pub fn mig_name(profile: &str) -> String {
    format!("{}{}", key::MIG_PREFIX, profile_word(profile))
}

/// A profile as it stands in names and labels, which cannot hold a `+`: `1g.10gb+me` is `1g.10gb.me`, as NVIDIA writes it.
pub fn profile_word(profile: &str) -> String {
    profile.replace('+', ".")
}

//! The devices as the scheduler sees them (Device object, node labels) and as the hand-off does.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

use super::node_device::{DeviceBody, NodeDevice};
use super::offer::{mig_name, profile_word};
use baton_contract::inventory::{DeviceInfo, DeviceLocation, VfGroup, VirtualFunction};
use baton_contract::{Quantity, ShareIsolation, key};
use baton_decide::handoff::inventory::{InventoryDevice, NodeInventory};
use baton_decide::shares::ShareOffer;
use baton_hardware::nic::PortState;
use baton_hardware::{Machine, PciPlace};

/// Longest value of a label.
const LABEL: usize = 63;

/// `spec.devices` of the Device object: GPUs with their MIG devices, then NICs. Virtual functions stand in their NIC's group.
pub fn device_infos(devices: &[NodeDevice]) -> Vec<DeviceInfo> {
    devices.iter().filter(|device| !matches!(device.body, DeviceBody::Vf { .. })).map(|d| info(d, devices)).collect()
}

fn info(device: &NodeDevice, all: &[NodeDevice]) -> DeviceInfo {
    DeviceInfo {
        kind: device.kind(),
        labels: labels(device),
        id: device.id.clone(),
        minor: device.minor,
        module_id: None,
        health: device.health.healthy,
        resources: resources(device),
        topology: Some(topology(&device.place, device)),
        vf_groups: vf_groups(device, all),
        conditions: vec![Condition {
            type_: "Healthy".to_owned(),
            status: if device.health.healthy { "True" } else { "False" }.to_owned(),
            reason: device.health.reason.to_string(),
            message: device.health.message.to_string(),
            last_transition_time: Time(to_seconds(device.health.since)),
            observed_generation: None,
        }],
    }
}

/// The API keeps times of conditions in whole seconds; anything finer would look like a change at every comparison.
pub(super) fn to_seconds(at: jiff::Timestamp) -> jiff::Timestamp {
    jiff::Timestamp::from_second(at.as_second()).unwrap_or(at)
}

fn labels(device: &NodeDevice) -> BTreeMap<String, String> {
    let mut labels = BTreeMap::new();
    let mut put = |key: &str, value: String| drop(labels.insert(key.to_owned(), value));
    if let Some(port) = device.place.neighbourhood() {
        put(key::PCIE_SWITCH, port.to_string());
    }
    match &device.body {
        DeviceBody::Gpu { gpu, nvlink, .. } => {
            put(key::UUID, device.id.to_string());
            gpu.model.iter().for_each(|model| put(key::MODEL, label_value(model)));
            if let Some(domain) = nvlink {
                put(key::NVLINK_DOMAIN, domain.to_string());
            }
        }
        DeviceBody::Mig { parent, model, instance, .. } => {
            put(key::UUID, device.id.to_string());
            model.iter().for_each(|model| put(key::MODEL, label_value(model)));
            put(key::MIG_PROFILE, profile_word(&instance.profile));
            put(key::PARENT, parent.to_string());
        }
        DeviceBody::Nic { nic, .. } | DeviceBody::Vf { nic, .. } => {
            if let Some((vendor, model)) = nic.pci_id {
                put(key::MODEL, format!("{vendor:04x}-{model:04x}"));
            }
            if let Some(interface) = nic.netdevs.first() {
                put(key::INTERFACE, label_value(interface));
            }
            // Of several ports, the first that works.
            let active = nic.ports.iter().find(|port| port.state == PortState::Active);
            if let Some(port) = active.or(nic.ports.first()) {
                put(key::PORT_STATE, port.state.word().to_owned());
                // `400 Gb/sec (4X NDR)`
                let rate = port.rate.as_deref().and_then(|rate| rate.split_once(" Gb/sec"));
                let rate = rate.map(|(rate, _)| format!("{rate}Gbps"));
                if let Some(layer) = &port.link_layer {
                    put(key::LINK_LAYER, label_value(layer));
                }
                if let Some(rate) = rate {
                    put(key::RATE, label_value(&rate));
                }
            }
        }
    }
    labels
}

fn resources(device: &NodeDevice) -> BTreeMap<String, Quantity> {
    let of = |names: &[(&str, Quantity)]| names.iter().map(|(name, amount)| ((*name).to_owned(), *amount)).collect();
    let whole = Quantity::units(key::WHOLE);
    match &device.body {
        DeviceBody::Gpu { split: true, .. } | DeviceBody::Vf { .. } => BTreeMap::new(),
        DeviceBody::Gpu { .. } => {
            let mut resources: BTreeMap<String, Quantity> =
                of(&[(key::GPU_CORE, whole), (key::GPU_MEMORY_RATIO, whole)]);
            if let Some(bytes) = device.memory() {
                resources.insert(key::GPU_MEMORY.to_owned(), Quantity::bytes(bytes));
            }
            resources
        }
        DeviceBody::Mig { instance, .. } => of(&[(&mig_name(&instance.profile), Quantity::units(1))]),
        DeviceBody::Nic { split: true, .. } => of(&[(key::RDMA, Quantity::units(0))]),
        DeviceBody::Nic { .. } => of(&[(key::RDMA, whole)]),
    }
}

fn topology(place: &PciPlace, device: &NodeDevice) -> DeviceLocation {
    DeviceLocation {
        socket_id: place.socket.map_or(-1, |socket| socket as i32),
        node_id: place.numa_node.map_or(-1, |node| node as i32),
        pcie_id: place.root_complex.clone().unwrap_or_default(),
        bus_id: device.bdf.map(|bdf| bdf.to_string()),
    }
}

/// Functions that can be handed out: one that is worse than its NIC (its device nodes are missing) is left out, so that
/// schedulers, which take the lowest address, take the next one.
fn vf_groups(device: &NodeDevice, all: &[NodeDevice]) -> Vec<VfGroup> {
    let usable = |part: &NodeDevice| part.health.healthy || !device.health.healthy;
    let vfs = all.iter().filter(|part| usable(part)).filter_map(|part| match &part.body {
        DeviceBody::Vf { parent, number, apart: false, .. } if *parent == device.id => {
            Some(VirtualFunction { minor: *number as i32, bus_id: part.id.clone() })
        }
        _ => None,
    });
    let vfs: Vec<_> = vfs.collect();
    if vfs.is_empty() { Vec::new() } else { vec![VfGroup { labels: BTreeMap::new(), vfs }] }
}

/// The node's labels, and that of its Device object which says how GPU shares are limited; `None` takes a label away.
pub fn node_labels(machine: &Machine, isolation: ShareIsolation) -> BTreeMap<&'static str, Option<String>> {
    let first = machine.gpus.gpus.first();
    let driver = Some(label_value(&machine.gpus.driver_version)).filter(|text| !text.is_empty());
    [
        (key::NODE_GPU_VENDOR, first.map(|_| "nvidia".to_owned())),
        (key::NODE_GPU_MODEL, first.and_then(|gpu| gpu.model.as_deref()).map(label_value)),
        (key::NODE_GPU_DRIVER, first.and(driver)),
        (key::GPU_ISOLATION_PROVIDER, first.map(|_| isolation.provider().to_owned())),
    ]
    .into()
}

/// What may stand in a label: blanks become `-`, other strange characters go, at most 63 characters, letters at the ends.
pub fn label_value(text: &str) -> String {
    let kept: String = text
        .chars()
        .map(|c| if c.is_whitespace() { '-' } else { c })
        .filter(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.'))
        .take(LABEL)
        .collect();
    kept.trim_matches(|c: char| !c.is_ascii_alphanumeric()).to_owned()
}

/// Why only parts of the device are handed out, or the part not by assignment.
fn is_split(device: &NodeDevice) -> Option<&'static str> {
    match device.body {
        DeviceBody::Gpu { split: true, .. } => Some("it is split into MIG devices"),
        DeviceBody::Nic { split: true, .. } | DeviceBody::Vf { apart: true, .. } => {
            Some("virtual functions are a resource of their own on this node (--rdma-vf-resource)")
        }
        _ => None,
    }
}

/// The devices as the hand-off sees them. A GPU of which only the MIG devices are handed out takes no pod itself.
pub fn node_inventory(devices: &[NodeDevice], registered: BTreeSet<Box<str>>, shares: ShareOffer) -> NodeInventory {
    let of = |device: &NodeDevice| InventoryDevice {
        kind: device.kind(),
        minor: device.minor,
        healthy: device.health.healthy && is_split(device).is_none(),
        reason: is_split(device)
            .map(Into::into)
            .or_else(|| (!device.health.healthy).then(|| device.health.message.clone())),
        memory_bytes: device.memory(),
        parent: device.parent().cloned(),
        mig_profile: match &device.body {
            DeviceBody::Mig { instance, .. } => Some(profile_word(&instance.profile).into()),
            _ => None,
        },
    };
    NodeInventory {
        devices: devices.iter().map(|device| (device.id.clone(), of(device))).collect(),
        registered,
        shares,
    }
}

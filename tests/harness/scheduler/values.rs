//! Pods, inventories and times as plain values, for tests and benches.

use std::time::Duration;

use baton::contract::inventory::{Device, DeviceInfo, DeviceLocation, DeviceSpec, DeviceStatus};
use baton::contract::{ContainerRequest, PodRef, Quantity, key};
use baton::decide::pod::{AssignmentText, ContainerKind, HandoffPod, Phase, PodContainer};
use baton::decide::world::{PodFacts, PodSpec, RequestParts, Resources};
use jiff::Timestamp;

/// Our name as pods give it.
pub const OURS: &str = "baton-scheduler";

/// The time of day at this moment of a test.
pub fn wall(now: Duration) -> Timestamp {
    "2026-11-21T02:00:00Z".parse::<Timestamp>().unwrap() + now
}

/// A pod of one container.
pub fn pod(name: &str, limits: &[(&str, &str)], now: Duration) -> PodFacts {
    let limits: Vec<(&str, Quantity)> = limits.iter().map(|(name, amount)| (*name, amount.parse().unwrap())).collect();
    let requests = RequestParts {
        containers: vec![(ContainerKind::App, Resources::of(limits.iter().copied()))],
        ..RequestParts::default()
    };
    let container = PodContainer {
        name: "main".into(),
        kind: ContainerKind::App,
        request: ContainerRequest::judge(limits),
        running: false,
        started: false,
        lacks_devices: false,
        ended: None,
        dra_backed: vec![],
    };
    PodFacts {
        handoff: HandoffPod {
            pod: PodRef::new("ml", name, &format!("uid-{name}")),
            node: None,
            scheduler_name: OURS.into(),
            phase: Phase::Pending,
            deleting: None,
            grace_seconds: 30,
            scheduled_condition: false,
            resizing: false,
            created: wall(now),
            containers: vec![container].into(),
            assignment: AssignmentText::default(),
        },
        spec: PodSpec { requests: requests.total(), ..PodSpec::default() }.into(),
        rank: None,
    }
}

/// An inventory of GPUs of 80 GiB, four to a switch, one NVLink domain.
pub fn gpu_device(node: &str, gpus: u32) -> Device {
    let gpu = |minor: u32| DeviceInfo {
        kind: baton::contract::DeviceType::Gpu,
        labels: [
            (key::PCIE_SWITCH.to_owned(), format!("0000:{}0:00.0", minor / 4)),
            (key::NVLINK_DOMAIN.to_owned(), "0".to_owned()),
        ]
        .into(),
        id: baton::contract::DeviceId::parse(&format!("GPU-{node}-{minor}")).unwrap(),
        minor: minor as i32,
        module_id: None,
        health: true,
        resources: [
            (key::GPU_CORE.to_owned(), Quantity::units(100)),
            (key::GPU_MEMORY.to_owned(), Quantity::bytes(80 << 30)),
            (key::GPU_MEMORY_RATIO.to_owned(), Quantity::units(100)),
        ]
        .into(),
        topology: Some(DeviceLocation {
            socket_id: 0,
            node_id: (minor / 4) as i32,
            pcie_id: format!("pci0000:{}0", minor / 4),
            bus_id: None,
        }),
        vf_groups: vec![],
        conditions: vec![],
    };
    let mut device = Device::new(node, DeviceSpec { devices: (0..gpus).map(gpu).collect() });
    device.status = Some(DeviceStatus::default());
    device
}

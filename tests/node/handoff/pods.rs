//! Pods with their plans.

use baton::contract::allocation::Entries;
use baton::contract::{ContainerDevices, DeviceAllocation, DeviceEntry, Quantity};

use super::handoff_node::NODE;
use crate::prelude::*;

#[derive(Clone)]
pub struct PodSpec {
    pub name: &'static str,
    pub containers: Vec<Container>,
    pub node_name: Option<&'static str>,
    /// How long plain init containers run.
    pub init_seconds: &'static str,
    /// `device-allocate-hint`.
    pub hint: Option<&'static str>,
}

#[derive(Clone)]
pub struct Container {
    pub name: &'static str,
    pub kind: Kind,
    pub limits: Vec<(&'static str, i64)>,
    /// Device and percent.
    pub plan: Vec<(&'static str, i64)>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Init,
    Sidecar,
    App,
}

pub fn container(
    name: &'static str,
    kind: Kind,
    limits: &[(&'static str, i64)],
    plan: &[(&'static str, i64)],
) -> Container {
    Container { name, kind, limits: limits.to_vec(), plan: plan.to_vec() }
}

pub fn pod(name: &'static str, containers: Vec<Container>) -> PodSpec {
    PodSpec { name, containers, node_name: None, init_seconds: "0", hint: None }
}

/// One container `main` with whole GPUs.
pub fn gpus(name: &'static str, devices: &[&'static str]) -> PodSpec {
    let plan: Vec<_> = devices.iter().map(|device| (*device, 100)).collect();
    pod(name, vec![container("main", Kind::App, &[(key::NVIDIA_GPU, devices.len() as i64)], &plan)])
}

impl PodSpec {
    pub fn object(&self) -> Value {
        let list = |kinds: &[Kind]| -> Vec<Value> {
            let of = self.containers.iter().filter(|container| kinds.contains(&container.kind));
            of.map(|container| {
                let limits: BTreeMap<&str, String> =
                    container.limits.iter().map(|(name, amount)| (*name, amount.to_string())).collect();
                let seconds = if container.kind == Kind::Init { self.init_seconds } else { "3600" };
                let mut made = json!({
                    "name": container.name, "image": "busybox", "command": ["/bin/sleep", seconds],
                    "resources": {"limits": limits},
                });
                if container.kind == Kind::Sidecar {
                    made["restartPolicy"] = json!("Always");
                }
                made
            })
            .collect()
        };
        let mut spec = json!({
            "schedulerName": "baton-scheduler", "restartPolicy": "Never", "terminationGracePeriodSeconds": 1,
            "initContainers": list(&[Kind::Init, Kind::Sidecar]), "containers": list(&[Kind::App]),
        });
        let mut metadata = json!({"name": self.name, "namespace": "default"});
        if let Some(node) = self.node_name {
            spec["nodeName"] = json!(node);
            metadata["annotations"] = json!(self.annotations(jiff::Timestamp::UNIX_EPOCH));
        }
        if let Some(hint) = self.hint {
            metadata["annotations"][key::DEVICE_ALLOCATE_HINT] = json!(hint);
        }
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})
    }

    pub fn annotations(&self, time: jiff::Timestamp) -> BTreeMap<String, String> {
        let mut split = ContainerDevices { node: NODE.into(), containers: BTreeMap::new() };
        let mut merged = DeviceAllocation::default();
        for container in &self.containers {
            let mut types = Entries::new();
            for (device, percent) in &container.plan {
                let (kind, entry) = entry(device, *percent);
                let all = merged.devices.entry(kind.clone()).or_default();
                if all.iter().all(|known| known.id != entry.id) {
                    all.push(entry.clone());
                }
                types.entry(kind).or_default().push(entry);
            }
            split.containers.insert(container.name.into(), types);
        }
        let minors: Vec<String> = merged.of(&DeviceType::Gpu).iter().map(|entry| entry.minor.to_string()).collect();
        [
            (key::CONTAINER_DEVICES, split.print()),
            (key::DEVICE_ALLOCATED, merged.print()),
            (key::BIND_TIMESTAMP, time.as_nanosecond().to_string()),
            (key::GPU_MINORS, minors.join(",")),
            (key::GANG_COMMITTED, String::new()),
        ]
        .map(|(name, value)| (name.to_owned(), value))
        .into()
    }

    /// Every device of the plan, sorted, once.
    pub fn devices(&self) -> Vec<String> {
        let mut all: Vec<String> =
            self.containers.iter().flat_map(|c| c.plan.iter().map(|(device, _)| (*device).to_owned())).collect();
        all.sort();
        all.dedup();
        all
    }
}

fn entry(device: &str, percent: i64) -> (DeviceType, DeviceEntry) {
    let id = DeviceId::parse(device).unwrap();
    if let Some(minor) = device.strip_prefix("GPU-") {
        let resources = [
            (key::GPU_CORE.to_owned(), Quantity::units(percent)),
            (key::GPU_MEMORY_RATIO.to_owned(), Quantity::units(percent)),
            (key::GPU_MEMORY.to_owned(), Quantity::bytes((80 << 30) / 100 * percent)),
        ];
        let entry = DeviceEntry { minor: minor.parse().unwrap(), id, resources: resources.into(), extension: None };
        return (DeviceType::Gpu, entry);
    }
    let resources = [(key::RDMA.to_owned(), Quantity::units(percent))].into();
    (DeviceType::Rdma, DeviceEntry { minor: device[6..7].parse().unwrap(), id, resources, extension: None })
}

//! Verbs for tests of the hand-off: pods, plans, locks and listings in one line each.

use std::collections::{BTreeMap, BTreeSet};

use super::inventory::{InventoryDevice, NodeInventory};
use super::ledger::{CallState, ContainerSlot, LedgerEntry};
use super::listing::{ListedPod, PodListing};
use super::pods::NodePods;
use crate::pod::{AssignmentText, ContainerKind, HandoffPod, Phase, PodContainer};
use baton_contract::allocation::Entries;
use baton_contract::{
    ContainerDevices, ContainerRequest, DeviceAllocation, DeviceEntry, DeviceId, DeviceType, Holder, LockFormat,
    LockRead, LockValue, PodRef, Quantity, key,
};

pub const NODE: &str = "node-a";

pub fn id(text: &str) -> DeviceId {
    DeviceId::parse(text).unwrap()
}

/// `GPU-0…` with 80 GiB each and NICs `0000:00.0`…, all names registered.
pub fn inventory(gpus: i32) -> NodeInventory {
    let mut inventory = NodeInventory::default();
    let device = |kind, minor, memory_bytes| InventoryDevice {
        kind,
        minor,
        healthy: true,
        reason: None,
        memory_bytes,
        parent: None,
        mig_profile: None,
    };
    for minor in 0..gpus {
        inventory.devices.insert(id(&format!("GPU-{minor}")), device(DeviceType::Gpu, minor, Some(80 << 30)));
    }
    for minor in 0..4 {
        inventory.devices.insert(id(&format!("nic-{minor}")), device(DeviceType::Rdma, minor, None));
    }
    let names = [key::NVIDIA_GPU, key::GPU, key::GPU_CORE, key::GPU_MEMORY_RATIO, key::GPU_SHARED, key::RDMA];
    inventory.registered = names.into_iter().map(Box::from).collect();
    inventory
}

pub fn container(name: &str, kind: ContainerKind, limits: &[(&str, i64)]) -> PodContainer {
    let limits = limits.iter().map(|(name, amount)| (*name, Quantity::units(*amount)));
    PodContainer {
        name: name.into(),
        kind,
        request: ContainerRequest::judge(limits),
        running: false,
        started: false,
        lacks_devices: false,
        ended: None,
        dra_backed: vec![],
    }
}

/// A pending pod on [`NODE`], uid `<name>-uid`.
pub fn pod(name: &str, containers: Vec<PodContainer>) -> HandoffPod {
    HandoffPod {
        pod: PodRef::new("default", name, &format!("{name}-uid")),
        node: Some(NODE.into()),
        scheduler_name: "baton-scheduler".into(),
        phase: Phase::Pending,
        deleting: None,
        grace_seconds: 30,
        scheduled_condition: true,
        resizing: false,
        created: jiff::Timestamp::UNIX_EPOCH,
        containers: containers.into(),
        assignment: AssignmentText::default(),
    }
}

/// One app container `main` that asks for whole GPUs.
pub fn gpu_pod(name: &str, count: i64) -> HandoffPod {
    pod(name, vec![container("main", ContainerKind::App, &[(key::NVIDIA_GPU, count)])])
}

pub fn whole(name: &str) -> DeviceEntry {
    if name.starts_with("nic") {
        let resources = BTreeMap::from([(key::RDMA.to_owned(), Quantity::units(100))]);
        return DeviceEntry { minor: minor(name), id: id(name), resources, extension: None };
    }
    share_of(name, 100, 100, 80 << 30)
}

pub fn share_of(name: &str, core: i64, ratio: i64, bytes: i64) -> DeviceEntry {
    let resources = BTreeMap::from([
        (key::GPU_CORE.to_owned(), Quantity::units(core)),
        (key::GPU_MEMORY_RATIO.to_owned(), Quantity::units(ratio)),
        (key::GPU_MEMORY.to_owned(), Quantity::bytes(bytes)),
    ]);
    DeviceEntry { minor: minor(name), id: id(name), resources, extension: None }
}

fn minor(name: &str) -> i32 {
    name.rsplit('-').next().and_then(|n| n.parse().ok()).unwrap_or(0)
}

pub fn merged(gpus: &[&str]) -> DeviceAllocation {
    let mut allocation = DeviceAllocation::default();
    allocation.devices.insert(DeviceType::Gpu, gpus.iter().map(|name| whole(name)).collect());
    allocation
}

/// Gives `pod` a plan of entries per container, and a bind timestamp made from its name.
pub fn with_entries(mut pod: HandoffPod, plan: &[(&str, Vec<DeviceEntry>)]) -> HandoffPod {
    let mut split = ContainerDevices { node: NODE.into(), containers: BTreeMap::new() };
    for (container, entries) in plan {
        let mut types = Entries::new();
        for entry in entries {
            let rdma = entry.resources.contains_key(key::RDMA);
            let kind = if rdma { DeviceType::Rdma } else { DeviceType::Gpu };
            types.entry(kind).or_default().push(entry.clone());
        }
        split.containers.insert((*container).into(), types);
    }
    pod.assignment.container_devices = Some(split.print().into());
    pod.assignment.bind_timestamp = Some(stamp(&pod).as_nanosecond().to_string().into());
    pod
}

/// The same with whole devices (`GPU-…` or `nic-…`).
pub fn with_assignment(pod: HandoffPod, plan: &[(&str, &[&str])]) -> HandoffPod {
    let plan: Vec<_> =
        plan.iter().map(|(name, devices)| (*name, devices.iter().map(|d| whole(d)).collect::<Vec<_>>())).collect();
    with_entries(pod, &plan)
}

/// When pods are bound, to the second.
pub const LOCKED: jiff::Timestamp = jiff::Timestamp::constant(1_795_228_512, 0);

fn stamp(pod: &HandoffPod) -> jiff::Timestamp {
    let salt: i128 = pod.pod.key.name.bytes().map(i128::from).fold(7, |sum, byte| sum * 31 + byte);
    LOCKED + jiff::SignedDuration::from_nanos((salt % 1_000_000_000) as i64)
}

/// The lock under which `pod` was bound.
pub fn lock_of(pod: &HandoffPod) -> LockRead {
    let holder = Some(Holder { pod: pod.pod.key.clone(), uid: Some(pod.pod.uid.clone()) });
    LockRead::parse(Some(&LockValue { time: stamp(pod), holder }.print(LockFormat::Uid)))
}

pub fn pods(all: &[&HandoffPod]) -> NodePods {
    let mut pods = NodePods::default();
    for pod in all {
        pods.apply((*pod).clone());
    }
    pods
}

/// `("a", "main", "nvidia.com/gpu", &["GPU-0"])`; an empty list of ids lists the container alone.
pub fn listing(rows: &[(&str, &str, &str, &[&str])]) -> PodListing {
    let mut listing = PodListing::default();
    for (name, container, resource, ids) in rows {
        let key = baton_contract::PodKey::new("default", name);
        let at = listing.pods.iter().position(|pod| pod.key == key).unwrap_or_else(|| {
            listing.pods.push(ListedPod { key, containers: BTreeMap::new() });
            listing.pods.len() - 1
        });
        let resources = listing.pods[at].containers.entry((*container).into()).or_default();
        if !ids.is_empty() {
            resources.insert((*resource).into(), ids.iter().map(|id| Box::from(*id)).collect::<BTreeSet<_>>());
        }
    }
    listing
}

/// A ledger in which these containers of `pod` have been served whole GPUs or NICs, in this order.
pub fn granted(pod: &HandoffPod, rows: &[(&str, &[&str])]) -> super::ledger::Ledger {
    let mut ledger = super::ledger::Ledger::default();
    grant(&mut ledger, pod, rows);
    ledger
}

/// Adds grants of whole devices.
pub fn grant(ledger: &mut super::ledger::Ledger, pod: &HandoffPod, rows: &[(&str, &[&str])]) {
    for (container, devices) in rows {
        for (resource, prefix) in [(key::NVIDIA_GPU, "GPU"), (key::RDMA, "nic")] {
            let of_kind: Vec<&str> = devices.iter().copied().filter(|d| d.starts_with(prefix)).collect();
            if of_kind.is_empty() {
                continue;
            }
            let kind = if resource == key::RDMA { DeviceType::Rdma } else { DeviceType::Gpu };
            let slot = ContainerSlot::of(pod, container);
            let ids = of_kind.iter().map(|id| Box::from(*id)).collect();
            let served = of_kind.iter().map(|name| (kind.clone(), whole(name))).collect();
            let entry = LedgerEntry::new(&pod.pod, container, resource, slot, ids, served, CallState::Answered);
            ledger.record(LedgerEntry { answer: Some(vec![1, 2, 3]), ..entry });
        }
    }
}

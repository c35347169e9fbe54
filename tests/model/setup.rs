//! What is modelled: which pods, which devices where, which faults, and which rule is replaced by an unsafe one.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use baton::contract::allocation::Entries;
use baton::contract::{
    ContainerDevices, ContainerRequest, DeviceEntry, DeviceId, DeviceType, LockFormat, PodRef, Quantity, key,
};
use baton::decide::handoff::{AllocatePolicy, InventoryDevice, NodeInventory};
use baton::decide::lock::LockMode;
use baton::decide::pod::{AssignmentText, ContainerKind, HandoffPod, Phase, PodContainer};
use jiff::Timestamp;

use super::coverage::{Branch, Coverage};
use super::state::{CONTAINERS, DEVICES, Faults, NODES, NONE, OLD, PODS};

pub const NODE_NAMES: [&str; NODES] = ["node-0", "node-1"];
pub const DEVICE_NAMES: [&str; DEVICES] = ["GPU-0", "GPU-1"];
pub const GPU: &str = key::NVIDIA_GPU;

/// A pod's shape; every container asks for one whole GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    One,
    /// Two containers that run together: two GPUs.
    Two,
    /// A plain init container and an app container: one GPU, used twice.
    Init,
    /// One container; put on node 0 by hand with a corrupt assignment and no lock, at any time.
    Foreign,
    /// One container, with the name of pod 1; created when that is gone.
    Successor,
}

/// Functions of the protocol replaced by what one might write instead.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Unsafe {
    /// An annotation that cannot be read releases the lock, whosoever it is.
    pub foreign_release: bool,
    /// The lock goes when the holder has been served anything.
    pub unlock_after_first: bool,
    /// The caller is the first Pending pod with an assignment.
    pub first_pending: bool,
    /// Ids that are in the ledger are answered as before.
    pub replay_by_ids: bool,
    /// Releases remove whatever stands there; without a pending pod the lock goes too.
    pub blind_release: bool,
    /// Without PodResources, the lock's holder is the caller, whoever else waits for a call.
    pub lock_alone: bool,
    /// A lock is taken over without this proof.
    pub without: Option<Proof>,
}

/// What must be known before the lock of a pod that waits for its devices is taken over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Proof {
    /// The lock has been watched for the whole expiry.
    Watched,
    /// The agent is there, and has had the time to release what it served.
    Settled,
}

#[derive(Clone)]
pub struct Setup {
    pub name: &'static str,
    pub shapes: [Shape; PODS],
    /// Node of each device.
    pub home: [usize; DEVICES],
    pub format: LockFormat,
    pub pod_resources: bool,
    /// The faults that may happen, a letter each.
    pub budget: String,
    pub faults: Faults,
    /// Schedulers consider every fit, not only the first.
    pub any_fit: bool,
    /// Phase Running is a state of its own; only what reads it needs that.
    pub runs: bool,
    /// Half-done binds are abandoned without waiting for flights to end.
    pub impatient: bool,
    /// The kubelet's checkpoint can be read.
    pub checkpoint: bool,
    pub flaws: Unsafe,
    /// Check that every state can heal.
    pub healing: bool,
    /// Branches that the search must pass.
    pub reaches: Vec<Branch>,
    pub coverage: Arc<Coverage>,
    pub table: Arc<Table>,
}

/// Values of the shipping types, made once.
pub struct Table {
    pub pods: [HandoffPod; PODS],
    pub inventory: [NodeInventory; NODES],
    pub policy: AllocatePolicy,
    assignments: BTreeMap<(usize, u8, [u8; CONTAINERS]), AssignmentText>,
}

/// Now, by the wall clock: one moment is enough, ages come in as monotonic time.
pub fn wall() -> Timestamp {
    Timestamp::from_second(1_795_228_800).expect("a valid time")
}

const HOUR: Duration = Duration::from_secs(3600);

/// The bind time that a number stands for.
pub fn time_of(pod: u8, time: u8) -> Timestamp {
    let age = if time >= OLD { HOUR } else { Duration::ZERO };
    wall() - age - Duration::from_nanos(1_000 - u64::from(pod) * 100 - u64::from(time))
}

/// [`time_of`] backwards.
pub fn number_of(time: Timestamp) -> (u8, u8) {
    let left = wall().duration_since(time).as_nanos() % HOUR.as_nanos() as i128;
    let code = 1_000 - left;
    ((code / 100) as u8, (code % 100) as u8)
}

impl Setup {
    pub fn new(name: &'static str, shapes: [Shape; PODS], home: [usize; DEVICES], budget: &str) -> Self {
        let faults = faults(budget);
        let budget = budget.to_owned();
        let flaws = Unsafe::default();
        let coverage = Arc::default();
        let table = Arc::new(Table::new(shapes, home, LockMode::Always));
        let (format, reaches) = (LockFormat::Uid, Vec::new());
        Self {
            name,
            shapes,
            home,
            format,
            pod_resources: true,
            budget,
            faults,
            any_fit: false,
            runs: false,
            impatient: false,
            checkpoint: true,
            flaws,
            healing: true,
            reaches,
            coverage,
            table,
        }
    }

    /// The agents serve a pod that a known scheduler has placed, whatever the lock says.
    pub fn lock_free(self) -> Self {
        Self { table: Arc::new(Table::new(self.shapes, self.home, LockMode::Auto)), ..self }
    }

    pub fn kinds(&self, pod: usize) -> &'static [ContainerKind] {
        kinds(self.shapes[pod])
    }

    /// The assignment that a Binding of `pod` writes.
    pub fn assignment(&self, pod: usize, node: u8, devices: [u8; CONTAINERS], time: u8) -> AssignmentText {
        if self.shapes[pod] == Shape::Foreign {
            return AssignmentText { container_devices: Some("{\"version\":1,".into()), ..AssignmentText::default() };
        }
        let text = &self.table.assignments[&(pod, node, devices)];
        let stamp = time_of(pod as u8, time).as_nanosecond().to_string();
        AssignmentText { bind_timestamp: Some(stamp.into()), ..text.clone() }
    }

    /// Splits of free devices that fit `pod`.
    pub fn fits(&self, pod: usize, free: &[u8]) -> Vec<[u8; CONTAINERS]> {
        match self.shapes[pod] {
            Shape::One | Shape::Foreign | Shape::Successor => free.iter().map(|device| [*device, NONE]).collect(),
            Shape::Init => free.iter().map(|device| [*device, *device]).collect(),
            Shape::Two => match free {
                [first, second] => vec![[*first, *second]],
                _ => Vec::new(),
            },
        }
    }
}

/// A letter per fault: crash, lost reply, expiry, deletion, kubelet restart, lost ledger, throttled PodResources, forged lock, annotation
/// edited, writes of a Node denied to its agent.
fn faults(text: &str) -> Faults {
    let mut faults = Faults::default();
    for letter in text.chars() {
        match letter {
            'c' => faults.crashes += 1,
            'r' => faults.lost_replies += 1,
            'e' => faults.expiries += 1,
            'd' => faults.deletions += 1,
            'k' => faults.kubelet_restarts += 1,
            'l' => faults.lost_ledgers += 1,
            't' => faults.throttles += 1,
            'f' => faults.forgeries += 1,
            'a' => faults.edits += 1,
            'w' => faults.mutes += 1,
            other => panic!("no fault {other}"),
        }
    }
    faults
}

fn kinds(shape: Shape) -> &'static [ContainerKind] {
    match shape {
        Shape::One | Shape::Foreign | Shape::Successor => &[ContainerKind::App],
        Shape::Two => &[ContainerKind::App, ContainerKind::App],
        Shape::Init => &[ContainerKind::Init, ContainerKind::App],
    }
}

impl Table {
    fn new(shapes: [Shape; PODS], home: [usize; DEVICES], lock: LockMode) -> Self {
        let pods = std::array::from_fn(|pod| template(pod, shapes[pod]));
        let inventory = std::array::from_fn(|node| inventory(node, home));
        let mut assignments = BTreeMap::new();
        for (pod, shape) in shapes.into_iter().enumerate() {
            for node in 0..NODES as u8 {
                for split in [[0, NONE], [1, NONE], [0, 0], [1, 1], [0, 1]] {
                    if split.iter().filter(|device| **device != NONE).count() == kinds(shape).len() {
                        assignments.insert((pod, node, split), text(shape, node, split));
                    }
                }
            }
        }
        Self { pods, inventory, policy: AllocatePolicy { lock, ..AllocatePolicy::default() }, assignments }
    }
}

fn template(pod: usize, shape: Shape) -> HandoffPod {
    let name = if shape == Shape::Successor { "pod-1".to_owned() } else { format!("pod-{pod}") };
    let containers = kinds(shape).iter().enumerate().map(|(at, kind)| PodContainer {
        name: container(at).into(),
        kind: *kind,
        request: ContainerRequest::judge([(GPU, Quantity::units(1))]),
        running: false,
        started: false,
        lacks_devices: false,
        ended: None,
        dra_backed: vec![],
    });
    HandoffPod {
        pod: PodRef::new("ml", &name, &format!("uid-{pod}")),
        node: None,
        scheduler_name: "baton-scheduler".into(),
        phase: Phase::Pending,
        deleting: None,
        grace_seconds: 30,
        scheduled_condition: shape != Shape::Foreign,
        resizing: false,
        created: Timestamp::UNIX_EPOCH + std::time::Duration::from_secs(pod as u64),
        containers: containers.collect(),
        assignment: AssignmentText::default(),
    }
}

pub fn container(at: usize) -> &'static str {
    ["first", "second"][at]
}

/// The entry of a whole GPU.
pub fn entry(device: u8) -> DeviceEntry {
    let resources = [(key::GPU_CORE, 100), (key::GPU_MEMORY_RATIO, 100)];
    DeviceEntry {
        minor: i32::from(device),
        id: DeviceId::parse(DEVICE_NAMES[usize::from(device)]).expect("a device id"),
        resources: resources.into_iter().map(|(name, units)| (name.to_owned(), Quantity::units(units))).collect(),
        extension: None,
    }
}

fn text(shape: Shape, node: u8, devices: [u8; CONTAINERS]) -> AssignmentText {
    let mut split = ContainerDevices { node: NODE_NAMES[usize::from(node)].into(), ..ContainerDevices::default() };
    for (at, device) in devices.into_iter().enumerate().take(kinds(shape).len()) {
        split.containers.insert(container(at).into(), Entries::from([(DeviceType::Gpu, vec![entry(device)])]));
    }
    AssignmentText { container_devices: Some(split.print().into()), ..AssignmentText::default() }
}

fn inventory(node: usize, home: [usize; DEVICES]) -> NodeInventory {
    let mut inventory = NodeInventory { registered: [GPU.into()].into(), ..NodeInventory::default() };
    for device in (0..DEVICES).filter(|device| home[*device] == node) {
        let of = entry(device as u8);
        let known = InventoryDevice {
            kind: DeviceType::Gpu,
            minor: of.minor,
            healthy: true,
            reason: None,
            memory_bytes: Some(80 << 30),
            parent: None,
            mig_profile: None,
        };
        inventory.devices.insert(of.id, known);
    }
    inventory
}

//! What must hold of every world at every moment: checked in tests after each step, and by operators.

use std::collections::BTreeMap;

use crate::contract::{DeviceId, DeviceType, key};
use crate::decide::cycle::Engine;
use crate::decide::world::{Node, Place, Resources, World};

/// Something that must not be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Violation {
    /// More of a device is held than there is.
    DeviceTwice {
        /// Node.
        node: Box<str>,
        /// Device.
        device: DeviceId,
        /// Which dimension: compute, memory or bandwidth.
        what: &'static str,
        /// Sum of what pods hold.
        held: i64,
        /// What there is.
        total: i64,
    },
    /// The pool's free amount is not the inventory less what pods hold.
    Pool {
        /// Node.
        node: Box<str>,
        /// Device.
        device: DeviceId,
        /// Free by the pool.
        free: i64,
        /// Total less held.
        expected: i64,
    },
    /// A node's accounts are not the sum of its pods.
    Accounts {
        /// Node.
        node: Box<str>,
    },
    /// A pod is in the accounts of a node where it is not, or missing from those where it is.
    Misplaced {
        /// `namespace/name`.
        pod: String,
    },
    /// A pod of ours that is not exactly one of queued, in flight, bound, ended.
    States {
        /// `namespace/name`.
        pod: String,
        /// Those it is in.
        states: Vec<&'static str>,
    },
    /// Somebody stands in a node's line without a flight, or twice.
    Line {
        /// Node.
        node: String,
    },
}

/// Checks a world.
pub fn check(world: &World) -> Vec<Violation> {
    let mut found = Vec::new();
    for (id, node) in world.mentioned() {
        let mut used = Resources::default();
        for pod in &node.pods {
            match world.pod(*pod).filter(|pod| pod.node() == Some(id)) {
                Some(pod) => used.add(&pod.facts.spec.requests),
                None => found.push(Violation::Misplaced { pod: format!("{pod:?}") }),
            }
        }
        used.sub(&Resources::default());
        if used != node.used {
            found.push(Violation::Accounts { node: node.name.clone() });
        }
        check_devices(world, node, &mut found);
    }
    for pod in world.pods() {
        let counted = pod.node().is_none_or(|id| world.node(id).is_some_and(|node| node.pods.contains(&pod.id)));
        if !counted {
            found.push(Violation::Misplaced { pod: pod.key().to_string() });
        }
    }
    found
}

/// Checks an engine: its world, and that every pod of ours is exactly one of queued, held, in flight, bound and ended.
pub fn check_engine(engine: &Engine, scheduler_name: &str) -> Vec<Violation> {
    let mut found = check(engine.world());
    for pod in engine.world().pods() {
        let handoff = &pod.facts.handoff;
        let ours = *handoff.scheduler_name == *scheduler_name;
        let flying = engine.flights().contains_key(&pod.id);
        let mut states = Vec::new();
        if flying {
            states.push("in flight");
        }
        match pod.place {
            Place::Waiting if engine.queue().state(pod.id).is_some() && !flying => states.push("queued"),
            Place::Assumed(_) if engine.holds().contains_key(&pod.id) => states.push("held"),
            // Assumed without a flight: bound by us, the watch is yet to show it.
            Place::Bound(_) | Place::Assumed(_) if !flying => states.push("bound"),
            Place::Ended if !flying => states.push("ended"),
            _ => {}
        }
        if ours && engine.is_leading() && handoff.deleting.is_none() && states.len() != 1 {
            found.push(Violation::States { pod: pod.key().to_string(), states });
        }
    }
    for (node, line) in engine.lines() {
        let here = |id| engine.flights().get(id).is_some_and(|flight| flight.node == *node);
        let sound = line.waiting.iter().all(|(_, _, id)| here(id)) && line.head.as_ref().is_none_or(here);
        let once = line.head.is_none_or(|head| line.waiting.iter().all(|(_, _, id)| *id != head));
        if !sound || !once {
            found.push(Violation::Line { node: format!("{node:?}") });
        }
    }
    found
}

fn check_devices(world: &World, node: &Node, found: &mut Vec<Violation>) {
    let Some(stock) = &node.stock else { return };
    let mut held: BTreeMap<(&DeviceId, &'static str), i64> = BTreeMap::new();
    let holders = node.pods.iter().filter_map(|id| world.pod(*id)).filter_map(|pod| pod.devices.as_ref());
    for devices in holders {
        for entry in devices.of(&DeviceType::Gpu) {
            *held.entry((&entry.id, "compute")).or_insert(0) += entry.amount(key::GPU_CORE);
            *held.entry((&entry.id, "memory")).or_insert(0) += entry.amount(key::GPU_MEMORY);
        }
        for entry in devices.of(&DeviceType::Rdma) {
            *held.entry((&entry.id, "bandwidth")).or_insert(0) += entry.amount(key::RDMA);
        }
    }
    let pool = stock.pool();
    let mut judge = |id: &DeviceId, what, total: i64, free: i64| {
        let held = held.get(&(id, what)).copied().unwrap_or(0);
        // A device of unknown size was never listed, only named by a pod.
        if total == 0 {
            return;
        }
        if held > total {
            let (node, device) = (node.name.clone(), id.clone());
            found.push(Violation::DeviceTwice { node, device, what, held, total });
        }
        if !stock.is_blocked(&DeviceType::Gpu) && !stock.has_published() && free != (total - held).max(0) {
            let (node, device) = (node.name.clone(), id.clone());
            found.push(Violation::Pool { node, device, free, expected: total - held });
        }
    };
    for (at, gpu) in (0u8..).zip(&pool.devices().gpus) {
        let (core, memory) = pool.gpu_room(at);
        judge(&gpu.id, "compute", i64::from(gpu.core), i64::from(core));
        if gpu.bytes_known {
            judge(&gpu.id, "memory", gpu.memory, memory);
        }
    }
    for (at, nic) in (0u8..).zip(&pool.devices().nics) {
        judge(&nic.id, "bandwidth", i64::from(nic.percent), i64::from(pool.nic_room(at)));
    }
}

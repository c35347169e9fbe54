//! What must hold of a cluster at rest and in motion, read from its objects alone.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::Timestamp;

use super::violation::{Violation, lock_ahead};
use super::world::check;
use crate::devices::Held;
use crate::handoff::assignment::{delivers, kind_of};
use crate::lock::{DaemonState, Delay, LockAge};
use crate::pod::HandoffPod;
use crate::world::{Node, Place, Pod, Stock, World, still_used};
use baton_contract::{ContainerDevices, DeviceAllocation, DeviceId, LockRead};

/// Checks a world that was just read from a cluster: [`check`]; bound pods' assignments are complete; every lock says
/// whose it is, and none stands for longer than `lock_ends` (by the reader's clock `wall`).
pub fn check_cluster(world: &World, wall: Timestamp, lock_ends: Duration) -> Vec<Violation> {
    let mut found = check(world);
    found.extend(world.pods().filter_map(|pod| check_assignment(world, pod)));
    for (_, node) in world.mentioned() {
        for (uid, held) in node.exceptions.iter() {
            let known = world.pod_id(uid).and_then(|id| world.pod(id));
            // Served without a scheduler, as `--unassigned-pods=serve` has it: there is no annotation that could be wrong.
            if known.is_some_and(|pod| pod.facts.handoff.assignment.device_allocated.is_none())
                && !held.devices().is_empty()
            {
                continue;
            }
            let leaves = node.agent_status().is_some_and(|status| status.leaving.contains_key(uid));
            if leaves && known.is_none_or(|pod| pod.place == Place::Ended) {
                continue;
            }
            let pod = known.map_or_else(|| uid.to_string(), |pod| pod.key().to_string());
            let devices = held.devices().iter().map(|device| device.id.clone()).collect();
            found.push(Violation::HeldOtherwise { pod, node: node.name.clone(), devices });
        }
    }
    for (_, node) in world.mentioned() {
        let served = node.stock.is_some() || node.agent.is_some();
        if let Some(driver) = node.gpu_driver().filter(|_| served) {
            found.push(Violation::AnotherGpuDriver { node: node.name.clone(), driver: driver.into() });
        }
        let daemon = node.daemon(wall);
        if let Some(why) = daemon.fault(&node.name).filter(|_| matches!(daemon, DaemonState::Gone(..))) {
            found.push(Violation::DaemonGone { node: node.name.clone(), why });
        }
        if let Some(why) = node.stock.as_ref().and_then(Stock::unreadable_cordons) {
            found.push(Violation::Cordons { node: node.name.clone(), why: why.to_owned() });
        }
    }
    let locked = world.locked().filter_map(|id| world.node(id));
    found.extend(locked.filter_map(|node| check_lock(world, node, wall, lock_ends)));
    found
}

fn check_assignment(world: &World, pod: &Pod) -> Option<Violation> {
    let Place::Bound(id) = pod.place else { return None };
    let node = world.node(id)?;
    let handoff = &pod.facts.handoff;
    // Only our schedulers and those that speak our protocol note when they bound; others' pods are served without one.
    if handoff.assignment.bind_timestamp.is_none() || !handoff.asks_for_devices() {
        return None;
    }
    let why = is_complete(handoff, node).err()?;
    Some(Violation::Assignment { pod: pod.key().to_string(), node: node.name.clone(), why })
}

fn check_lock(world: &World, node: &Node, wall: Timestamp, lock_ends: Duration) -> Option<Violation> {
    let (value, raw) = match &node.lock.read {
        LockRead::Free => return None,
        LockRead::Malformed { raw } => {
            return Some(Violation::MalformedLock { node: node.name.clone(), value: raw.clone() });
        }
        LockRead::Held { value, raw } => (value, raw),
    };
    let age = LockAge::of(value, wall);
    if age.distance() <= lock_ends {
        return None;
    }
    let delay = world.holder_delay(node, wall);
    let why = delay.map(|delay| format!("pod {} is {delay}; look: {}", delay.holder, delay.look()));
    let holder = world.lock_pod(node, wall).map(|pod| pod.to_string());
    let (node, value, seconds) = (node.name.clone(), raw.clone(), age.distance().as_secs());
    Some(match age {
        LockAge::Since(_) => Violation::Lock { node, value, holder, seconds, why },
        LockAge::Ahead(_) => Violation::LockAhead { node, value, holder, seconds },
    })
}

/// Locks that stand for longer than a kubelet is busy, and not yet for `lock_ends`, or whose time is in the future by no more.
pub fn stuck(world: &World, wall: Timestamp, lock_ends: Duration) -> Vec<String> {
    let words = |node: &Node| {
        let age = node.lock_age(wall).filter(|age| age.judge() >= Delay::Stuck && age.distance() <= lock_ends)?;
        if age.known().is_none() {
            let whose = world.lock_pod(node, wall).map(|pod| pod.to_string()).or_else(|| node.lock.read.whose())?;
            return Some(lock_ahead(&node.name, &whose, age));
        }
        let delay = world.holder_delay(node, wall)?;
        let (name, holder) = (&node.name, delay.holder);
        Some(format!("node {name} has been locked {age} by {holder}, which is {delay}; look: {}", delay.look()))
    };
    world.locked().filter_map(|id| words(world.node(id)?)).collect()
}

/// Nodes with devices whose daemon serves none: no promise is broken, and no new pod gets one there. One that is gone is a violation.
pub fn unserved(world: &World, wall: Timestamp) -> Vec<String> {
    let is_gone = |node: &Node| matches!(node.daemon(wall), DaemonState::Gone(..));
    world.nodes().filter(|(_, node)| !is_gone(node)).filter_map(|(_, node)| node.unserved(wall)).collect()
}

/// Devices that are not free although no pod of the API server holds them. That is no fault: they will be.
pub fn leaving(world: &World) -> Vec<String> {
    let of_node = |node: &Node| -> Vec<String> {
        let device = |held: &Held| held.devices().iter().map(|device| device.id.to_string()).collect::<Vec<_>>();
        let words = |(pod, held)| format!("node {}: {} {}", node.name, device(held).join(" "), still_used(pod));
        node.leaving().map(words).collect()
    };
    world.mentioned().flat_map(|(_, node)| of_node(node)).collect()
}

/// Both annotations can be read and say the same; every call that the kubelet makes has devices, all of this node.
fn is_complete(pod: &HandoffPod, node: &Node) -> Result<(), String> {
    let text = &pod.assignment;
    let merged = text.device_allocated.as_deref().map(DeviceAllocation::parse).transpose();
    let split = text.container_devices.as_deref().map(ContainerDevices::parse).transpose();
    let merged = merged.map_err(|error| error.to_string())?.unwrap_or_default();
    let split = split.map_err(|error| error.to_string())?.flatten();
    let held: BTreeSet<&DeviceId> = merged.devices.values().flatten().map(|entry| &entry.id).collect();
    if held.is_empty() {
        return Err("it was bound without devices".to_owned());
    }
    if let Some(split) = split {
        if *split.node != *node.name {
            return Err(format!("its devices were chosen on node {}", split.node));
        }
        for call in pod.expected_calls(|_| true).filter(delivers) {
            let types = split.containers.get(&call.container.name);
            if types.and_then(|types| types.get(&kind_of(call.resource))).is_none_or(Vec::is_empty) {
                return Err(format!(
                    "container {} asks for {} and was assigned none",
                    call.container.name, call.resource
                ));
            }
        }
        let planned = split.containers.values().flat_map(BTreeMap::values).flatten().map(|entry| &entry.id).collect();
        if held != planned {
            return Err(format!("its two assignments name different devices: {} and {}", list(&held), list(&planned)));
        }
    }
    let Some(stock) = &node.stock else { return Ok(()) };
    match held.iter().find(|id| !stock.lists(id)) {
        Some(id) => Err(format!("device {id} is not in the node's inventory")),
        None => Ok(()),
    }
}

fn list(ids: &BTreeSet<&DeviceId>) -> String {
    ids.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
}

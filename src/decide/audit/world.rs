//! Whether a world's accounts are right, and no device is held twice.

use std::collections::{BTreeMap, BTreeSet};

use super::violation::Violation;
use crate::world::{Node, Rated, Resources, World};
use baton_contract::{DeviceId, DeviceType, key};

/// Checks a world.
pub fn check(world: &World) -> Vec<Violation> {
    let mut found = Vec::new();
    for (id, node) in world.mentioned() {
        let (mut used, mut rated) = (Resources::default(), Rated::default());
        for pod in &node.pods {
            match world.pod(*pod).filter(|pod| pod.node() == Some(id)) {
                Some(pod) => {
                    used.add(&pod.facts.spec.requests);
                    rated.add(pod.facts.spec.rated);
                }
                None => found.push(Violation::Misplaced { pod: format!("{pod:?}") }),
            }
        }
        used.sub(&Resources::default());
        if used != node.used || rated != node.rated {
            found.push(Violation::Accounts { node: node.name.clone() });
        }
        check_devices(world, node, &mut found);
    }
    let with_devices = world.pods().filter(|pod| pod.node().is_some() && pod.asks_for_devices()).count();
    if with_devices != world.device_pods() {
        found.push(Violation::DevicePods);
    }
    for pod in world.pods() {
        let counted = pod.node().is_none_or(|id| world.node(id).is_some_and(|node| node.pods.contains(&pod.id)));
        if !counted {
            found.push(Violation::Misplaced { pod: pod.key().to_string() });
        }
    }
    found
}

fn check_devices(world: &World, node: &Node, found: &mut Vec<Violation>) {
    let Some(stock) = &node.stock else { return };
    let mut held: BTreeMap<(&DeviceId, &'static str), i64> = BTreeMap::new();
    // A daemon names the memory of a GPU by its ratio alone, and so does what is remembered of its word.
    let mut by_ratio: BTreeSet<&DeviceId> = BTreeSet::new();
    let holders = node.pods.iter().filter_map(|id| world.pod(*id)).filter_map(|pod| node.holding(pod));
    let holders = holders.chain(node.exceptions.departed().map(|(_, held)| held));
    for devices in holders {
        for entry in devices.of_kind(&DeviceType::Gpu) {
            let sum = held.entry((&entry.id, "compute")).or_insert(0);
            *sum = sum.saturating_add(entry.amount(key::GPU_CORE));
            let sum = held.entry((&entry.id, "memory")).or_insert(0);
            *sum = sum.saturating_add(entry.amount(key::GPU_MEMORY));
            if entry.amount(key::GPU_MEMORY) == 0 {
                by_ratio.insert(&entry.id);
            }
        }
        for entry in devices.of_kind(&DeviceType::Rdma) {
            let sum = held.entry((&entry.id, "bandwidth")).or_insert(0);
            *sum = sum.saturating_add(entry.amount(key::RDMA));
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
        let named =
            !stock.is_blocked(&DeviceType::Gpu) && !stock.has_published() && node.exceptions.iter().next().is_none();
        if named && free != (total - held).max(0) {
            let (node, device) = (node.name.clone(), id.clone());
            found.push(Violation::Pool { node, device, free, expected: total - held });
        }
    };
    for (at, gpu) in (0u8..).zip(&pool.devices().gpus) {
        let (core, memory) = pool.gpu_room(at);
        judge(&gpu.id, "compute", i64::from(gpu.core), i64::from(core));
        if gpu.bytes_known && !by_ratio.contains(&gpu.id) {
            judge(&gpu.id, "memory", gpu.memory, memory);
        }
    }
    for (at, nic) in (0u8..).zip(&pool.devices().nics) {
        judge(&nic.id, "bandwidth", i64::from(nic.percent), i64::from(pool.nic_room(at)));
    }
}

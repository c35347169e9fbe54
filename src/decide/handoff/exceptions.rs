//! Where what this node has really handed out is not what the pods' annotations say: what the scheduler must count instead.
//!
//! In normal operation there is none. An annotation that was edited, emptied or forged, a pod that was served without one, and a
//! pod that runs without having been served are exceptions.

use std::collections::BTreeMap;

use super::assignment::PodAssignment;
use super::inventory::NodeInventory;
use super::ledger::LedgerEntry;
use super::pods::NodePods;
use super::rebuild::unknown_uid;
use super::room;
use crate::contract::allocation::Entries;
use crate::contract::{DeviceAllocation, DeviceEntry, DeviceType, Exceptions, PodUid, Quantity, key};
use crate::decide::pod::HandoffPod;

/// The exceptions of `node`: `pods` as the API server has them, `entries` of the ledger.
pub fn exceptions<'a>(
    node: &str,
    pods: &NodePods,
    entries: impl Iterator<Item = &'a LedgerEntry>,
    inventory: &NodeInventory,
) -> Exceptions {
    let mut served: BTreeMap<&PodUid, Vec<&LedgerEntry>> = BTreeMap::new();
    for entry in entries {
        served.entry(&entry.pod.uid).or_default().push(entry);
    }
    let mut found = Exceptions::new();
    for pod in pods.iter().filter(|pod| pod.node.as_deref() == Some(node) && !pod.phase.is_terminal()) {
        let uid = &pod.pod.uid;
        match served.remove(uid) {
            Some(own) => found.extend(differs(pods, pod, &own, inventory).map(|held| (uid.clone(), held))),
            // Served before this daemon knows of it, or never: its containers run, and no call is recorded.
            None if pod.has_started() && pod.expected_calls(|name| inventory.registers(name)).next().is_some() => {
                found.insert(uid.clone(), Entries::new());
            }
            // Not served yet, and edited since the bind: it will get what its first version says.
            None if pods.is_edited(uid) => found.extend(planned(pod, inventory).map(|held| (uid.clone(), held))),
            None => {}
        }
    }
    // Held by pods that the API server never had, by the kubelet's word. Those that have ended or are gone give their devices back.
    let orphans =
        served.into_iter().filter(|(_, own)| own.iter().any(|entry| unknown_uid(&entry.pod.key) == entry.pod.uid));
    found.extend(orphans.map(|(uid, own)| (uid.clone(), merged(&own))));
    found
}

/// What a served pod holds, where its annotation as it stands now does not cover that.
fn differs(pods: &NodePods, pod: &HandoffPod, own: &[&LedgerEntry], inventory: &NodeInventory) -> Option<Entries> {
    let said = pods.current(&pod.pod.uid).and_then(|pod| pod.promise()).unwrap_or_default();
    let served = || own.iter().flat_map(|entry| &entry.served);
    if served().all(|(kind, device)| covers(&said, kind, device)) && !pods.is_edited(&pod.pod.uid) {
        return None;
    }
    let mut held = merged(own);
    // Calls are still to come: they are answered by the first version.
    if pods.is_edited(&pod.pod.uid) {
        for (kind, list) in planned(pod, inventory).unwrap_or_default() {
            let known = held.entry(kind).or_default();
            known
                .extend(list.into_iter().filter(|entry| own.iter().all(|own| own.devices().all(|id| *id != entry.id))));
        }
    }
    Some(held)
}

/// The first version's devices of a pod that is not served.
fn planned(pod: &HandoffPod, inventory: &NodeInventory) -> Option<Entries> {
    let assignment = PodAssignment::read(pod, inventory).ok().flatten()?;
    let mut held = Entries::new();
    for (kind, list) in assignment.containers.into_values().flatten() {
        let known = held.entry(kind).or_default();
        for entry in list {
            if known.iter().all(|device: &DeviceEntry| device.id != entry.id) {
                known.push(entry);
            }
        }
    }
    Some(held)
}

/// The annotation names the device, and at least as much of it.
fn covers(said: &DeviceAllocation, kind: &DeviceType, device: &DeviceEntry) -> bool {
    let whole = room::is_whole(kind, device);
    said.of(kind).iter().filter(|entry| entry.id == device.id).any(|entry| {
        if whole {
            return room::is_whole(kind, entry);
        }
        let amounts = [key::GPU_CORE, key::GPU_MEMORY_RATIO, key::RDMA];
        room::is_whole(kind, entry) || amounts.iter().all(|name| entry.amount(name) >= device.amount(name))
    })
}

/// Each device once, with what the containers that run beside each other hold of it, or the init container that holds most.
fn merged(own: &[&LedgerEntry]) -> Entries {
    let mut held = Entries::new();
    for entry in own {
        for (kind, device) in &entry.served {
            let device = explicit(kind, device);
            let list = held.entry(kind.clone()).or_default();
            match list.iter_mut().find(|known| known.id == device.id) {
                None => list.push(device),
                Some(known) => {
                    for (name, amount) in device.resources {
                        let sum = known.resources.entry(name).or_insert(Quantity::ZERO);
                        let together = if entry.slot.init { 0 } else { sum.value() };
                        *sum = Quantity::units((together + amount.value()).max(sum.value()));
                    }
                }
            }
        }
    }
    held
}

/// With its amounts: an entry without any stands for the whole device.
fn explicit(kind: &DeviceType, device: &DeviceEntry) -> DeviceEntry {
    let mut device = device.clone();
    if device.resources.is_empty() {
        let names: &[&str] =
            if *kind == DeviceType::Rdma { &[key::RDMA] } else { &[key::GPU_CORE, key::GPU_MEMORY_RATIO] };
        device.resources = names.iter().map(|name| ((*name).to_owned(), Quantity::units(key::WHOLE))).collect();
    }
    device
}

#[cfg(test)]
mod tests {
    use super::super::ledger::Ledger;
    use super::super::testing::{NODE, gpu_pod, granted, inventory, pods, whole, with_assignment};
    use super::*;
    use crate::decide::pod::Phase;

    fn of(pods: &NodePods, ledger: &Ledger) -> Exceptions {
        exceptions(NODE, pods, ledger.iter(), &inventory(4))
    }

    /// With both annotations, as the Binding writes them.
    fn bound(count: i64, devices: &[&str]) -> HandoffPod {
        let mut pod = with_assignment(gpu_pod("a", count), &[("main", devices)]);
        let list = devices.iter().map(|id| whole(id)).collect();
        let allocation = DeviceAllocation { devices: [(DeviceType::Gpu, list)].into(), ..DeviceAllocation::default() };
        pod.assignment.device_allocated = Some(allocation.print().into());
        pod
    }

    fn ids(held: &Entries) -> Vec<&str> {
        held.values().flatten().map(|entry| entry.id.as_str()).collect()
    }

    #[test]
    fn a_pod_that_holds_what_its_annotation_says_is_no_exception() {
        let pod = bound(2, &["GPU-1", "GPU-2"]);
        let ledger = granted(&pod, &[("main", &["GPU-1", "GPU-2"])]);
        assert_eq!(of(&pods(&[&pod]), &ledger), Exceptions::new());
        assert_eq!(of(&pods(&[&pod]), &Ledger::default()), Exceptions::new(), "not served yet");
        let partly = granted(&pod, &[("main", &["GPU-1"])]);
        assert_eq!(of(&pods(&[&pod]), &partly), Exceptions::new(), "a part of it");
    }

    #[test]
    fn an_annotation_that_is_edited_emptied_or_forged_changes_nothing() {
        let first = bound(1, &["GPU-1"]);
        let ledger = granted(&first, &[("main", &["GPU-1"])]);
        let mut emptied = first.clone();
        (emptied.assignment.device_allocated, emptied.assignment.container_devices) = (None, None);
        let moved = bound(1, &["GPU-3"]);
        let grown = bound(1, &["GPU-3", "GPU-1", "GPU-2"]);
        for edited in [emptied, moved, grown] {
            // While the daemon runs, and after it has started again with the edited version as the first that it sees.
            let mut watched = pods(&[&first]);
            watched.apply(edited.clone());
            for pods in [watched, pods(&[&edited])] {
                let found = of(&pods, &ledger);
                assert_eq!(ids(&found[&first.pod.uid]), ["GPU-1"], "{edited:?}");
            }
        }
    }

    #[test]
    fn a_pod_that_is_edited_before_it_is_served_gets_its_first_version() {
        let first = bound(1, &["GPU-1"]);
        let mut pods = pods(&[&first]);
        pods.apply(bound(1, &["GPU-3"]));
        assert_eq!(ids(&of(&pods, &Ledger::default())[&first.pod.uid]), ["GPU-1"]);
    }

    #[test]
    fn a_pod_that_runs_without_having_been_served_holds_nothing() {
        let mut pod = bound(1, &["GPU-1"]);
        pod.phase = Phase::Running;
        assert_eq!(of(&pods(&[&pod]), &Ledger::default())[&pod.pod.uid], Entries::new());
    }

    #[test]
    fn a_pod_without_an_assignment_holds_what_it_was_served() {
        let pod = gpu_pod("a", 1);
        let ledger = granted(&pod, &[("main", &["GPU-2"])]);
        let found = of(&pods(&[&pod]), &ledger);
        let entry = &found[&pod.pod.uid][&DeviceType::Gpu][0];
        assert_eq!((entry.id.as_str(), entry.amount(key::GPU_CORE)), ("GPU-2", 100));
    }

    #[test]
    fn a_pod_that_the_api_server_never_had_keeps_its_devices_and_one_that_is_gone_does_not() {
        let pod = bound(1, &["GPU-1"]);
        let ledger = granted(&pod, &[("main", &["GPU-1"])]);
        assert_eq!(of(&NodePods::default(), &ledger), Exceptions::new());
        let mut ended = pod.clone();
        ended.phase = Phase::Failed;
        assert_eq!(of(&pods(&[&ended]), &ledger), Exceptions::new());
        let mut orphan = pod.clone();
        orphan.pod.uid = unknown_uid(&pod.pod.key);
        let ledger = granted(&orphan, &[("main", &["GPU-1"])]);
        assert_eq!(ids(&of(&NodePods::default(), &ledger)[&orphan.pod.uid]), ["GPU-1"]);
    }
}

//! The ledger from PodResources and the pods' annotations, when the file is lost, torn or of another boot.
//!
//! All calls of a pod are made while the kubelet admits it, before any of its containers starts; and after a reboot the
//! kubelet re-admits checkpointed pods without calling. So a listed container has been served, and plain init containers,
//! which are never listed, have been served when anything after them has.

use std::collections::BTreeSet;

use super::assignment::{Assignment, delivers, kind_of};
use super::inventory::NodeInventory;
use super::ledger::{Entry, Ledger, Slot, State};
use super::listing::{ListedPod, Listing};
use super::plan::Plan;
use super::pods::NodePods;
use super::room;
use crate::contract::{DeviceEntry, DeviceId, DeviceType, PodRef, PodUid};
use crate::decide::pod::{ExpectedCall, HandoffPod, Phase};

/// Rebuilds every entry that PodResources or a running pod proves. Entries have no answer: a repetition is answered anew.
pub fn rebuild(node: &str, pods: &NodePods, listing: &Listing, inventory: &NodeInventory) -> Ledger {
    let mut ledger = Ledger::default();
    for listed in &listing.pods {
        // Of two pods of one name the one that is not being deleted is the successor.
        let here = pods
            .of_key(&listed.key)
            .filter(|pod| pod.node.as_deref() == Some(node) && !pod.phase.is_terminal())
            .min_by_key(|pod| pod.deleting.is_some());
        match here {
            Some(pod) => pod_entries(&mut ledger, pod, listed, inventory),
            None => orphan_entries(&mut ledger, listed, inventory),
        }
    }
    ledger
}

fn pod_entries(ledger: &mut Ledger, pod: &HandoffPod, listed: &ListedPod, inventory: &NodeInventory) {
    let calls: Vec<ExpectedCall<'_>> = pod.expected_calls(|name| inventory.registers(name)).collect();
    let reached = pod.containers.iter().rposition(|container| listed.has_devices(&container.name));
    let started = pod.phase == Phase::Running || pod.containers.iter().any(|container| container.running);
    let assignment = Assignment::read(pod, inventory).ok().flatten();
    for call in &calls {
        let slot = Slot::of(pod, &call.container.name);
        let ids = listed.ids(&call.container.name, call.resource);
        let is_served = if slot.init {
            started && reached.is_some()
                || reached.is_some_and(|reached| usize::from(slot.order) < reached)
                || (started && only_init(pod, &calls))
        } else {
            ids.is_some()
        };
        if !is_served {
            continue;
        }
        let ids: BTreeSet<Box<str>> = ids.cloned().unwrap_or_default();
        let served = match (&assignment, delivers(call)) {
            (_, false) => Vec::new(),
            (Some(assignment), true) => planned(pod, assignment, ledger, inventory, call, &ids),
            (None, true) => by_ids(&ids, call.resource, inventory),
        };
        ledger.record(Entry {
            pod: pod.pod.clone(),
            container: call.container.name.clone(),
            resource: call.resource.into(),
            slot,
            ids: ids.into_iter().collect(),
            served,
            answer: None,
            state: State::Committed,
            asked: 1,
            seq: 0,
            assigned: assignment.is_some(),
        });
    }
}

/// Nothing but plain init containers asks for devices: then only the pod's progress tells.
fn only_init(pod: &HandoffPod, calls: &[ExpectedCall<'_>]) -> bool {
    calls.iter().all(|call| Slot::of(pod, &call.container.name).init)
}

fn planned(
    pod: &HandoffPod,
    assignment: &Assignment,
    ledger: &Ledger,
    inventory: &NodeInventory,
    call: &ExpectedCall<'_>,
    ids: &BTreeSet<Box<str>>,
) -> Vec<(DeviceType, DeviceEntry)> {
    let kind = kind_of(call.resource);
    let mut plan = Plan::new(pod, assignment, ledger, inventory);
    let chosen: BTreeSet<DeviceId> = ids.iter().filter_map(|id| DeviceId::of_kubelet_id(id).ok()).collect();
    plan.adopt(call.container, &kind, &chosen);
    plan.of(&call.container.name, &kind).iter().map(|entry| (kind.clone(), entry.clone())).collect()
}

/// Devices that the kubelet holds for a pod whose assignment nobody knows: counted as whole, which errs on the safe side.
fn by_ids(ids: &BTreeSet<Box<str>>, resource: &str, inventory: &NodeInventory) -> Vec<(DeviceType, DeviceEntry)> {
    let devices: BTreeSet<DeviceId> = ids.iter().filter_map(|id| DeviceId::of_kubelet_id(id).ok()).collect();
    let entry = |id: DeviceId| {
        let minor = inventory.devices.get(&id).map_or(0, |device| device.minor);
        DeviceEntry { minor, id, resources: std::collections::BTreeMap::new(), extension: None }
    };
    devices.into_iter().map(|id| (kind_of(resource), entry(id))).collect()
}

/// A listed pod that the API server does not know: its devices are in use for as long as it is listed.
fn orphan_entries(ledger: &mut Ledger, listed: &ListedPod, inventory: &NodeInventory) {
    let uid = PodUid::new(&format!("unknown:{}", listed.key));
    for (container, resources) in &listed.containers {
        for (resource, ids) in
            resources.iter().filter(|(resource, ids)| inventory.registers(resource) && !ids.is_empty())
        {
            ledger.record(Entry {
                pod: PodRef { key: listed.key.clone(), uid: uid.clone() },
                container: container.clone(),
                resource: resource.clone(),
                slot: Slot { order: u16::MAX, init: false, sidecar: false },
                ids: ids.iter().cloned().collect(),
                served: by_ids(ids, resource, inventory),
                answer: None,
                state: State::Committed,
                asked: 1,
                seq: 0,
                assigned: false,
            });
        }
    }
}

/// `true` when an entry's devices are parts: for building its answer anew.
pub fn is_share(entry: &Entry) -> bool {
    entry.served.iter().any(|(kind, device)| !room::is_whole(kind, device))
}

#[cfg(test)]
mod tests {
    use super::super::testing::{NODE, container, inventory, listing, pod, pods, with_assignment};
    use super::*;
    use crate::contract::key;
    use crate::decide::pod::ContainerKind::{App, Init, Sidecar};

    const GPU: &str = key::NVIDIA_GPU;

    fn devices(ledger: &Ledger, container: &str) -> Option<Vec<String>> {
        let entry = ledger.iter().find(|entry| &*entry.container == container)?;
        Some(entry.devices().map(ToString::to_string).collect())
    }

    #[test]
    fn listed_containers_and_the_init_containers_before_them_are_served_with_the_ids_that_the_kubelet_holds() {
        let gpu = [(GPU, 1)];
        let pod = pod(
            "b",
            vec![
                container("init", Init, &gpu),
                container("side", Sidecar, &gpu),
                container("m1", App, &gpu),
                container("m2", App, &gpu),
            ],
        );
        let pod =
            with_assignment(pod, &[("init", &["GPU-0"]), ("side", &["GPU-0"]), ("m1", &["GPU-1"]), ("m2", &["GPU-2"])]);
        let listing = listing(&[("b", "side", GPU, &["GPU-1"]), ("b", "m1", GPU, &["GPU-0"]), ("b", "m2", GPU, &[])]);
        let ledger = rebuild(NODE, &pods(&[&pod]), &listing, &inventory(4));
        assert_eq!(devices(&ledger, "init").unwrap(), ["GPU-0"]);
        assert_eq!(devices(&ledger, "side").unwrap(), ["GPU-1"], "the kubelet's choice inside the pod's set");
        assert_eq!(devices(&ledger, "m1").unwrap(), ["GPU-0"]);
        assert_eq!(devices(&ledger, "m2"), None, "still to be asked for");
    }

    #[test]
    fn a_listed_pod_that_nobody_knows_holds_its_devices() {
        let listing = listing(&[("x", "main", GPU, &["GPU-3"])]);
        let ledger = rebuild(NODE, &NodePods::default(), &listing, &inventory(4));
        assert_eq!(devices(&ledger, "main").unwrap(), ["GPU-3"]);
    }
}

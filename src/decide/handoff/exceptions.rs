//! Where what this node has really handed out is not what the pods' annotations say: what the scheduler must count instead.
//!
//! In normal operation there is none. An annotation that was edited, emptied or forged, a pod that was served without one, a pod that
//! runs without having been served, and one that has left before its processes are exceptions.

use std::collections::{BTreeMap, BTreeSet};

use super::assignment::{PodAssignment, delivers};
use super::inventory::NodeInventory;
use super::ledger::{ContainerSlot, LedgerEntry};
use super::pods::NodePods;
use super::rebuild::unknown_uid;
use super::room;
use crate::pod::HandoffPod;
use baton_contract::allocation::Entries;
use baton_contract::{
    DeviceAllocation, DeviceEntry, DeviceType, Exceptions, LeavingPod, PodKey, PodUid, Quantity, key,
};

/// The exceptions of `node`: `pods` as the API server has them, `entries` of the ledger, `left` the pods of it that have left and use
/// their devices still, `unserved` the pods that are proven to run without having been served. A pod of which it is not known what it
/// holds is the error.
pub fn exceptions<'a>(
    node: &str,
    pods: &NodePods,
    entries: impl Iterator<Item = &'a LedgerEntry>,
    left: &BTreeMap<PodUid, LeavingPod>,
    unserved: &BTreeSet<PodUid>,
    inventory: &NodeInventory,
) -> Result<Exceptions, PodKey> {
    let mut served: BTreeMap<&PodUid, Vec<&LedgerEntry>> = BTreeMap::new();
    for entry in entries {
        served.entry(&entry.pod.uid).or_default().push(entry);
    }
    let mut found = Exceptions::new();
    for pod in pods.iter().filter(|pod| pod.node.as_deref() == Some(node) && !pod.phase.is_terminal()) {
        let uid = &pod.pod.uid;
        match served.remove(uid) {
            // Rebuilt for a pod without an assignment, before the kubelet has listed what it holds.
            Some(own) if own.iter().any(|entry| is_unknown(pod, entry, inventory)) => return Err(pod.pod.key.clone()),
            Some(own) => found.extend(differs(pods, pod, &own, inventory).map(|held| (uid.clone(), held))),
            None if unserved.contains(uid) => drop(found.insert(uid.clone(), Entries::new())),
            // Not served yet, and edited since the bind: it will get what its first version says.
            None if pods.is_edited(uid) => found.extend(planned(pod, inventory).map(|held| (uid.clone(), held))),
            None => {}
        }
    }
    // Held by pods that have left, and by those that the API server never had, by the kubelet's word.
    let orphans = served.into_iter().filter(|(uid, own)| {
        left.contains_key(*uid) || own.iter().any(|entry| unknown_uid(&entry.pod.key) == entry.pod.uid)
    });
    found.extend(orphans.map(|(uid, own)| (uid.clone(), merged(own.iter().map(|of| (of.slot, &*of.served))))));
    Ok(found)
}

/// What the entry's container holds is not known yet. A container that has ended holds nothing, and one that is never listed, an init
/// container of a pod that has started, has ended.
fn is_unknown(pod: &HandoffPod, entry: &LedgerEntry, inventory: &NodeInventory) -> bool {
    let empty = !entry.assigned && entry.answer.is_none() && entry.ids.is_empty() && entry.served.is_empty();
    let is_over = entry.slot.init && pod.has_started();
    empty && !is_over && delivering(pod, entry, inventory)
}

/// The entry's call is one that delivers devices.
fn delivering(pod: &HandoffPod, entry: &LedgerEntry, inventory: &NodeInventory) -> bool {
    let mut calls = pod.expected_calls(|name| inventory.registers(name)).filter(delivers);
    calls.any(|call| (&*call.container.name, call.resource) == (&*entry.container, &*entry.resource))
}

/// What a served pod holds, where its annotation as it stands now does not cover that, or names more.
fn differs(pods: &NodePods, pod: &HandoffPod, own: &[&LedgerEntry], inventory: &NodeInventory) -> Option<Entries> {
    let said = pods.current(&pod.pod.uid).and_then(|pod| pod.promise()).unwrap_or_default();
    let held = merged(own.iter().map(|entry| (entry.slot, &*entry.served)));
    let mut calls = pod.expected_calls(|name| inventory.registers(name));
    let is_due = calls
        .any(|call| own.iter().all(|of| (&*of.container, &*of.resource) != (&*call.container.name, call.resource)));
    // Nothing is no exception but where it is proven: the promise counts.
    if held.is_empty() {
        return None;
    }
    if !(is_due && pods.is_edited(&pod.pod.uid)) {
        let more = !is_due
            && said.devices.iter().any(|(kind, list)| {
                let own = held.get(kind).map_or(&[][..], Vec::as_slice);
                list.iter().any(|device| own.iter().all(|held| held.id != device.id))
            });
        return (more || !covers(&said, &held)).then_some(held);
    }
    // Calls are still to come: they are answered by the first version.
    let first = planned(pod, inventory).unwrap_or_default();
    let (both, either) = ([listed(held), listed(first)], ContainerSlot { order: 0, init: true, sidecar: false });
    Some(merged(both.iter().map(|list| (either, &**list))))
}

/// The first version's devices of a pod that is not served.
fn planned(pod: &HandoffPod, inventory: &NodeInventory) -> Option<Entries> {
    let assignment = PodAssignment::read(pod, inventory).ok().flatten()?;
    let of = |(container, types): (Box<str>, Entries)| {
        let slot = ContainerSlot::of(pod, &container);
        (slot, listed(types))
    };
    let containers: Vec<(ContainerSlot, LedgerDevices)> = assignment.containers.into_iter().map(of).collect();
    Some(merged(containers.iter().map(|(slot, list)| (*slot, &**list))))
}

/// Devices with their types, as the ledger has them.
type LedgerDevices = Vec<(DeviceType, DeviceEntry)>;

fn listed(types: Entries) -> LedgerDevices {
    types.into_iter().flat_map(|(kind, list)| list.into_iter().map(move |entry| (kind.clone(), entry))).collect()
}

/// The annotation names each device, what stands for it, and at least as much of it.
fn covers(said: &DeviceAllocation, held: &Entries) -> bool {
    held.iter().flat_map(|(kind, list)| list.iter().map(move |device| (kind, device))).all(|(kind, device)| {
        said.of(kind).iter().filter(|entry| entry.id == device.id).any(|entry| {
            let entry = explicit(kind, entry);
            let named: BTreeSet<_> = entry.named().collect();
            let enough = |name: &str| entry.amount(name) >= device.amount(name).min(key::WHOLE);
            // Bytes are rounded from percent, and the reverse.
            let bytes = entry.amount(key::GPU_MEMORY);
            let bytes = bytes == 0 || bytes >= device.amount(key::GPU_MEMORY) / 100 * 99;
            device.named().all(|id| named.contains(id))
                && bytes
                && [key::GPU_CORE, key::GPU_MEMORY_RATIO, key::RDMA].into_iter().all(enough)
        })
    })
}

/// Each device once, with the most that is held of it at one time: an init container runs beside the sidecars before it.
fn merged<'a>(containers: impl Iterator<Item = (ContainerSlot, &'a [(DeviceType, DeviceEntry)])>) -> Entries {
    let mut containers: Vec<_> = containers.collect();
    containers.sort_by_key(|(slot, _)| slot.order);
    let (mut staying, mut most) = (Entries::new(), Entries::new());
    for (slot, list) in containers {
        for (kind, device) in list {
            let mut now = explicit(kind, device);
            let stays = staying.entry(kind.clone()).or_default();
            if let Some(held) = stays.iter().find(|held| held.id == device.id) {
                join(&mut now, held, i64::saturating_add);
            }
            if !slot.init {
                stays.retain(|held| held.id != now.id);
                stays.push(now.clone());
            }
            let most = most.entry(kind.clone()).or_default();
            match most.iter_mut().find(|known| known.id == now.id) {
                Some(known) => join(known, &now, i64::max),
                None => most.push(now),
            }
        }
    }
    most
}

/// Brings two entries of one device together, amount by amount; the virtual functions are those of both.
fn join(one: &mut DeviceEntry, other: &DeviceEntry, with: impl Fn(i64, i64) -> i64) {
    for (name, amount) in &other.resources {
        let own = one.resources.entry(name.clone()).or_insert(Quantity::ZERO);
        *own = Quantity::units(with(own.value(), amount.value()));
    }
    for vf in other.vfs() {
        let own = one.extension.get_or_insert_default();
        if !own.vfs.contains(vf) {
            own.vfs.push(vf.clone());
        }
    }
}

/// With its amounts: an entry without any stands for the whole device.
fn explicit(kind: &DeviceType, device: &DeviceEntry) -> DeviceEntry {
    let mut device = device.clone();
    if device.resources.is_empty() {
        room::make_whole(kind, &mut device);
    }
    device
}

#[cfg(test)]
mod tests {
    use super::super::ledger::{CallState, Ledger};
    use super::super::testing::{
        NODE, container, gpu_pod, granted, inventory, pod as handoff_pod, pods, whole, with_assignment,
    };
    use super::*;
    use crate::pod::ContainerKind::App;
    use crate::pod::Phase;
    use baton_contract::DeviceId;
    use baton_contract::allocation::{DeviceExtension, Vf};

    fn of(pods: &NodePods, ledger: &Ledger) -> Exceptions {
        exceptions(NODE, pods, ledger.iter(), &BTreeMap::new(), &BTreeSet::new(), &inventory(4)).unwrap()
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
        let single = bound(1, &["GPU-1"]);
        assert_eq!(of(&pods(&[&single]), &granted(&single, &[("main", &["GPU-1"])])), Exceptions::new());
    }

    #[test]
    fn a_pod_whose_calls_are_all_served_holds_no_more_than_they_gave_it() {
        let pod = bound(2, &["GPU-1", "GPU-2"]);
        let ledger = granted(&pod, &[("main", &["GPU-1"])]);
        assert_eq!(ids(&of(&pods(&[&pod]), &ledger)[&pod.pod.uid]), ["GPU-1"]);
        let two = [container("one", App, &[(key::NVIDIA_GPU, 1)]), container("two", App, &[(key::NVIDIA_GPU, 1)])];
        let mut pod = with_assignment(handoff_pod("a", two.to_vec()), &[("one", &["GPU-1"]), ("two", &["GPU-2"])]);
        let list = ["GPU-1", "GPU-2"].map(whole).to_vec();
        let allocation = DeviceAllocation { devices: [(DeviceType::Gpu, list)].into(), ..DeviceAllocation::default() };
        pod.assignment.device_allocated = Some(allocation.print().into());
        let ledger = granted(&pod, &[("one", &["GPU-1"])]);
        assert_eq!(of(&pods(&[&pod]), &ledger), Exceptions::new(), "the call of the second container is still to come");
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
        let mut edited = pods(&[&first]);
        edited.apply(bound(1, &["GPU-3"]));
        assert_eq!(ids(&of(&edited, &Ledger::default())[&first.pod.uid]), ["GPU-1"]);
        let elsewhere = |pod| HandoffPod { node: Some("node-b".into()), ..pod };
        let mut edited = pods(&[&elsewhere(first)]);
        edited.apply(elsewhere(bound(1, &["GPU-3"])));
        assert_eq!(of(&edited, &Ledger::default()), Exceptions::new(), "a pod of another node holds nothing here");
    }

    #[test]
    fn a_pod_that_is_proven_to_run_unserved_holds_nothing() {
        let mut pod = bound(1, &["GPU-1"]);
        pod.phase = Phase::Running;
        let pods = pods(&[&pod]);
        assert_eq!(
            of(&pods, &Ledger::default()),
            Exceptions::new(),
            "its call may have been answered before the ledger was lost"
        );
        let proven = BTreeSet::from([pod.pod.uid.clone()]);
        let found = exceptions(NODE, &pods, std::iter::empty(), &BTreeMap::new(), &proven, &inventory(4)).unwrap();
        assert_eq!(found[&pod.pod.uid], Entries::new());
    }

    #[test]
    fn amounts_that_were_edited_are_an_exception_too() {
        let pod = bound(1, &["GPU-1"]);
        let ledger = granted(&pod, &[("main", &["GPU-1"])]);
        for (from, to) in [("\"100\"", "\"1\""), ("80Gi", "1"), ("80Gi", "40Gi")] {
            let mut edited = pod.clone();
            let text = edited.assignment.device_allocated.take().unwrap().replace(from, to);
            edited.assignment.device_allocated = Some(text.into());
            let found = of(&pods(&[&edited]), &ledger);
            assert_eq!(found[&pod.pod.uid][&DeviceType::Gpu][0].amount(key::GPU_CORE), 100, "{from} -> {to}");
        }
    }

    #[test]
    fn nothing_is_said_while_it_is_not_known_what_a_pod_without_an_assignment_holds() {
        let mut pod = gpu_pod("a", 1);
        pod.phase = Phase::Running;
        let all = pods(&[&pod]);
        let ledger =
            super::super::rebuild::rebuild(NODE, &all, &super::super::listing::PodListing::default(), &inventory(4));
        assert_eq!(
            exceptions(NODE, &all, ledger.iter(), &BTreeMap::new(), &BTreeSet::new(), &inventory(4)),
            Err(pod.pod.key.clone())
        );
        let entry = ledger.iter().next().unwrap().clone();
        let listed =
            LedgerEntry { ids: vec!["GPU-2".into()], served: vec![(DeviceType::Gpu, whole("GPU-2"))], ..entry };
        assert_eq!(ids(&of(&all, &Ledger::of([listed]))[&pod.pod.uid]), ["GPU-2"], "the kubelet lists its id");
    }

    #[test]
    fn a_call_that_delivers_nothing_leaves_nothing_unknown() {
        let share = [(key::GPU_CORE, 50), (key::GPU_MEMORY_RATIO, 50)];
        let pod = HandoffPod { phase: Phase::Running, ..handoff_pod("a", vec![container("main", App, &share)]) };
        let slot = ContainerSlot::of(&pod, "main");
        let names = pod.expected_calls(|_| true).map(|call| call.resource.to_owned());
        let (mut delivering, mut accompanying) = (0, 0);
        for name in names.collect::<Vec<_>>() {
            let empty = LedgerEntry::new(&pod.pod, "main", &name, slot, vec![], vec![], CallState::Listed);
            let empty = LedgerEntry { assigned: false, ..empty };
            match exceptions(
                NODE,
                &pods(&[&pod]),
                [&empty].into_iter(),
                &BTreeMap::new(),
                &BTreeSet::new(),
                &inventory(4),
            ) {
                Err(_) => delivering += 1,
                Ok(found) => {
                    assert_eq!(found, Exceptions::new());
                    accompanying += 1;
                }
            }
        }
        assert_eq!((delivering, accompanying), (1, 1));
        let empty = LedgerEntry::new(&pod.pod, "main", key::GPU_CORE, slot, vec![], vec![], CallState::Listed);
        assert_eq!(of(&pods(&[&pod]), &Ledger::of([empty])), Exceptions::new(), "it was assigned nothing");
    }

    #[test]
    fn two_containers_on_one_nic_hold_the_virtual_functions_of_both() {
        let half = [(key::RDMA, 50)];
        let containers = ["one", "two"].map(|name| container(name, App, &half));
        let pod = handoff_pod("a", containers.to_vec());
        let of_vf = |container: &str, minor: i32| {
            let vf = Vf { minor, bus_id: DeviceId::parse(&format!("nic-0-{minor}")).unwrap() };
            let resources = [(key::RDMA.to_owned(), Quantity::units(50))].into();
            let nic = DeviceEntry { resources, extension: Some(DeviceExtension { vfs: vec![vf] }), ..whole("nic-0") };
            let slot = ContainerSlot::of(&pod, container);
            let served = vec![(DeviceType::Rdma, nic)];
            LedgerEntry::new(&pod.pod, container, key::RDMA, slot, vec![], served, CallState::Listed)
        };
        let found = of(&pods(&[&pod]), &Ledger::of([of_vf("one", 1), of_vf("two", 2)]));
        let [nic] = &*found[&pod.pod.uid][&DeviceType::Rdma] else { panic!("{found:?}") };
        assert_eq!(nic.amount(key::RDMA), 100);
        assert_eq!(nic.named().map(DeviceId::as_str).collect::<Vec<_>>(), ["nic-0", "nic-0-1", "nic-0-2"]);
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
    fn a_pod_the_api_server_never_had_keeps_its_devices_and_one_that_is_gone_does_not() {
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

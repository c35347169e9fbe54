//! The ledger when its file is lost, torn or of another boot, by one rule: ids that PodResources lists and answers that the kubelet has
//! stored prove that a call was made. For calls that nothing proves, what the pod's annotation names is held until the pod has ended, and
//! a call is decided as the first.
//!
//! A stored answer is what the container gets each time that it starts. Without it the answer is not known: it may have followed the
//! annotation or the ids. Where annotation and kubelet differ, the devices of both are held. All calls of a pod are made in the order of
//! its containers, while the kubelet admits it: plain init containers, which are never listed, were served when anything after them was,
//! and a pod that has started was served.

use std::collections::{BTreeMap, BTreeSet};

use super::assignment::{PodAssignment, delivers, kind_of};
use super::inventory::NodeInventory;
use super::ledger::{CallState, ContainerSlot, Ledger, LedgerEntry};
use super::listing::{EntryKey, ListedPod, PodListing, StoredAnswer};
use super::plan::Plan;
use super::pods::NodePods;
use super::room;
use crate::pod::{ExpectedCall, HandoffPod};
use baton_contract::{DeviceEntry, DeviceId, DeviceType, GpuRequest, PodKey, PodRef, PodUid, key};

/// Rebuilds it. `listing` is empty where the kubelet has no PodResources; it is read after `pods`.
pub fn rebuild(node: &str, pods: &NodePods, listing: &PodListing, inventory: &NodeInventory) -> Ledger {
    let mut ledger = Ledger::default();
    learn(&mut ledger, node, pods, listing, inventory);
    for listed in listing.pods.iter().filter(|listed| of_key(node, pods, listed).is_none()) {
        // Its processes show when one that has ended is gone, however long its kubelet lists it.
        match pods.of_key(&listed.key).find(|pod| pod.node.as_deref() == Some(node)) {
            Some(ended) => _ = pod_entries(&mut ledger, ended, listed, listing, inventory),
            None => orphan_entries(&mut ledger, listed, listing, inventory),
        }
    }
    for pod in pods.iter().filter(|pod| pod.node.as_deref() == Some(node) && !pod.phase.is_terminal()) {
        // What a pod has that has started and that nothing tells of is not known: the node takes no pods with devices until it ends.
        let is_due = pod.has_started() || matches!(PodAssignment::read(pod, inventory), Ok(Some(_)));
        for call in pod.expected_calls(|name| inventory.registers(name)) {
            let answer = listing.answers.get(&call_key(pod, &call));
            if is_due || answer.is_some() {
                let state = if answer.is_some() { CallState::Answered } else { CallState::Held };
                add(&mut ledger, pod, &call, (BTreeSet::new(), answer), state, inventory);
            }
        }
    }
    ledger.proves(|uid| pods.by_uid(uid).is_some_and(HandoffPod::has_started));
    ledger
}

/// Adds what PodResources lists and the ledger does not know: pods that the kubelet re-admitted without calling, or that
/// another plugin served before this agent came; and the ids of what was rebuilt before the kubelet listed it. `true` when
/// anything was added.
pub fn learn(
    ledger: &mut Ledger,
    node: &str,
    pods: &NodePods,
    listing: &PodListing,
    inventory: &NodeInventory,
) -> bool {
    let mut learned = ledger.proves(|uid| pods.by_uid(uid).is_some_and(HandoffPod::has_started));
    for listed in &listing.pods {
        if let Some(pod) = of_key(node, pods, listed) {
            learned |= pod_entries(ledger, pod, listed, listing, inventory);
        }
    }
    learned
}

/// The pod that is listed. Of two of one name the one that is not being deleted is the successor.
fn of_key<'a>(node: &str, pods: &'a NodePods, listed: &ListedPod) -> Option<&'a HandoffPod> {
    pods.of_key(&listed.key)
        .filter(|pod| pod.node.as_deref() == Some(node) && !pod.phase.is_terminal())
        .min_by_key(|pod| pod.deleting.is_some())
}

fn call_key(pod: &HandoffPod, call: &ExpectedCall<'_>) -> EntryKey {
    EntryKey::new(&pod.pod.uid, &call.container.name, call.resource)
}

/// Adds the calls of a listed pod that are proven.
fn pod_entries(
    ledger: &mut Ledger,
    pod: &HandoffPod,
    listed: &ListedPod,
    listing: &PodListing,
    inventory: &NodeInventory,
) -> bool {
    // What is listed may still be the predecessor's of the same name.
    let may_be_of = |entry: &LedgerEntry| entry.pod.key == pod.pod.key && entry.leaving().is_none();
    if ledger.iter().any(|entry| may_be_of(entry) && entry.pod.uid != pod.pod.uid) {
        return false;
    }
    let mut added = false;
    let reached = pod.containers.iter().rposition(|container| listed.has_devices(&container.name)).unwrap_or(0);
    let calls: Vec<ExpectedCall<'_>> = pod.expected_calls(|name| inventory.registers(name)).collect();
    for call in &calls {
        let slot = ContainerSlot::of(pod, &call.container.name);
        let ids = listed.ids(&call.container.name, call.resource);
        let answer = listing.answers.get(&call_key(pod, call));
        let is_behind = slot.init && usize::from(slot.order) < reached;
        if ids.is_some() || answer.is_some() || is_behind {
            let known = (ids.cloned().unwrap_or_default(), answer);
            added |= add(ledger, pod, call, known, CallState::Listed, inventory);
        }
    }
    added
}

/// Adds a call of a pod that has ended, by the answer that the kubelet has stored. Where another client wrote the end, the kubelet takes
/// it back, and the pod starts with what is recorded here.
pub(super) fn add_ended(
    ledger: &mut Ledger,
    pod: &HandoffPod,
    (key, answer): (&EntryKey, &StoredAnswer),
    state: CallState,
    inventory: &NodeInventory,
) {
    let mut calls = pod.expected_calls(|name| inventory.registers(name));
    if let Some(call) = calls.find(|call| call_key(pod, call) == *key) {
        add(ledger, pod, &call, (BTreeSet::new(), Some(answer)), state, inventory);
    }
}

/// Adds one call with the kubelet's ids and its stored answer, where it has them. `true` when there are news.
fn add(
    ledger: &mut Ledger,
    pod: &HandoffPod,
    call: &ExpectedCall<'_>,
    (ids, answer): (BTreeSet<Box<str>>, Option<&StoredAnswer>),
    state: CallState,
    inventory: &NodeInventory,
) -> bool {
    let key = call_key(pod, call);
    if let Some(known) = ledger.get(&key) {
        // No call is without ids: this one was rebuilt before the kubelet listed what it holds.
        if !known.ids.is_empty() || ids.is_empty() {
            return false;
        }
        // What it has is known by its stored answer: only the ids are news.
        if known.answer.is_some() {
            let ids = ids.into_iter().collect();
            let known = known.clone();
            ledger.restore(LedgerEntry { ids, ..known });
            return true;
        }
        ledger.forget(&key);
    }
    // An answer that names no device says nothing of one that delivers.
    let answer = answer.filter(|answer| !answer.devices.is_empty() || !delivers(call));
    let assignment = PodAssignment::read(pod, inventory).ok().flatten();
    let (mut served, mut unnamed) = (Vec::new(), BTreeSet::new());
    if delivers(call) {
        let kind = kind_of(call.resource);
        served = assignment.as_ref().map(|of| planned(pod, of, ledger, inventory, call, &ids)).unwrap_or_default();
        let mut more = answer.map_or_else(|| devices_of(&ids), |answer| answer.devices.clone());
        if let Some(answer) = answer {
            let is_named = |device: &DeviceEntry| device.named().any(|id| answer.devices.contains(id));
            unnamed.extend(served.iter().filter(|(_, of)| !is_named(of)).map(|(_, of)| of.id.clone()));
            served.iter().flat_map(|(_, device)| device.named()).for_each(|id| _ = more.remove(id));
        } else if let Some(assignment) = &assignment {
            // Ids of devices that are assigned to another container of the pod say nothing: the kubelet chose them.
            assignment.pod_set(pod, &kind).iter().for_each(|id| _ = more.remove(id));
            unnamed.clone_from(&more);
        }
        served.extend(whole_devices(&more, call.resource, inventory));
    }
    let slot = ContainerSlot::of(pod, &call.container.name);
    // No list names an init container that has ended; it may start again.
    let stored = answer.filter(|_| ids.is_empty()).map(|answer| answer.ids.clone());
    let ids = stored.unwrap_or(ids).into_iter().collect();
    let entry = LedgerEntry::new(&pod.pod, &call.container.name, call.resource, slot, ids, served, state);
    let answer = answer.map(|answer| answer.encoded.clone());
    let grace_seconds = pod.grace_seconds;
    let entry = LedgerEntry { assigned: assignment.is_some(), unnamed, answer, grace_seconds, ..entry };
    ledger.rebuilt(entry, call.container.running);
    true
}

/// What the annotation gives the container, the devices of the kubelet's ids first. It may have been edited while no ledger knew better:
/// less than the container asks for is not believed.
fn planned(
    pod: &HandoffPod,
    assignment: &PodAssignment,
    ledger: &Ledger,
    inventory: &NodeInventory,
    call: &ExpectedCall<'_>,
    ids: &BTreeSet<Box<str>>,
) -> Vec<(DeviceType, DeviceEntry)> {
    let kind = kind_of(call.resource);
    let mut plan = Plan::new(pod, assignment, ledger, inventory);
    plan.adopt(call.container, &kind, &devices_of(ids));
    let entry = |entry: &DeviceEntry| {
        let mut entry = entry.clone();
        if !is_asked_for(pod, call, &kind, &entry) {
            room::make_whole(&kind, &mut entry);
        }
        (kind.clone(), entry)
    };
    plan.of(&call.container.name, &kind).iter().map(entry).collect()
}

/// The devices of a kubelet's ids.
pub(super) fn devices_of(ids: &BTreeSet<Box<str>>) -> BTreeSet<DeviceId> {
    ids.iter().filter_map(|id| DeviceId::of_kubelet_id(id).ok()).collect()
}

/// Devices counted as whole, which errs on the safe side.
pub(super) fn whole_devices(
    devices: &BTreeSet<DeviceId>,
    resource: &str,
    inventory: &NodeInventory,
) -> Vec<(DeviceType, DeviceEntry)> {
    let entry = |id: &DeviceId| {
        let minor = inventory.devices.get(id).map_or(0, |device| device.minor);
        DeviceEntry { minor, id: id.clone(), resources: BTreeMap::new(), extension: None }
    };
    devices.iter().map(|id| (kind_of(resource), entry(id))).collect()
}

/// The entry gives the container as much of the device as it asks for.
fn is_asked_for(pod: &HandoffPod, call: &ExpectedCall<'_>, kind: &DeviceType, device: &DeviceEntry) -> bool {
    let hinted = pod.assignment.nics.strategy.is_some();
    let Ok(request) = &call.container.request else { return false };
    match (kind, &request.gpu) {
        // With a hint an amount may stand for NICs of another size.
        (DeviceType::Rdma, _) => request
            .rdma
            .is_some_and(|nic| room::is_whole(kind, device) || hinted || device.amount(key::RDMA) >= nic.percent),
        (_, Some(GpuRequest::Share { core, ratio, memory, .. })) => {
            device.amount(key::GPU_CORE) >= *core
                && ratio.is_none_or(|ratio| device.amount(key::GPU_MEMORY_RATIO) >= ratio)
                && memory.is_none_or(|bytes| device.amount(key::GPU_MEMORY) >= bytes)
        }
        (_, Some(GpuRequest::Whole { .. })) => room::is_whole(kind, device),
        (_, Some(GpuRequest::Mig { .. })) => true,
        (_, None) => false,
    }
}

/// Stands for the uid of a pod that neither the API server nor the kubelet's checkpoint has.
pub(super) fn unknown_uid(key: &PodKey) -> PodUid {
    PodUid::new(&format!("unknown:{key}"))
}

/// A listed pod that the API server does not know: its devices are in use for as long as it is listed, and then until its processes
/// have gone, which show by the uid that the kubelet's checkpoint has for its ids.
fn orphan_entries(ledger: &mut Ledger, listed: &ListedPod, listing: &PodListing, inventory: &NodeInventory) {
    for (container, resources) in &listed.containers {
        for (resource, ids) in
            resources.iter().filter(|(resource, ids)| inventory.registers(resource) && !ids.is_empty())
        {
            let is_its = |key: &EntryKey| (&key.container, &key.resource) == (container, resource);
            let stored = listing.answers.iter().find(|(key, answer)| is_its(key) && answer.ids == *ids);
            let uid = stored.map_or_else(|| unknown_uid(&listed.key), |(key, _)| key.uid.clone());
            let pod = PodRef { key: listed.key.clone(), uid };
            let slot = ContainerSlot { order: u16::MAX, init: false, sidecar: false };
            let answered = stored.map(|(_, answer)| &answer.devices).filter(|devices| !devices.is_empty());
            let served = whole_devices(answered.unwrap_or(&devices_of(ids)), resource, inventory);
            let ids = ids.iter().cloned().collect();
            let entry = LedgerEntry::new(&pod, container, resource, slot, ids, served, CallState::Listed);
            ledger.rebuilt(LedgerEntry { assigned: false, ..entry }, true);
        }
    }
}

/// `true` when an entry's devices are parts: for building its answer again.
pub fn is_share(entry: &LedgerEntry) -> bool {
    entry.served.iter().any(|(kind, device)| !room::is_whole(kind, device))
}

#[cfg(test)]
mod tests {
    use super::super::exceptions::exceptions;
    use super::super::testing::whole as device;
    use super::super::testing::{
        NODE, container, gpu_pod, granted, inventory, listing, pod, pods, share_of, with_assignment, with_entries,
    };
    use super::super::verify::verify;
    use super::*;
    use crate::pod::ContainerKind::{App, Init, Sidecar};
    use crate::pod::Phase;
    use baton_contract::Quantity;
    use baton_contract::hint::{AllocateStrategy, Counting};

    const GPU: &str = key::NVIDIA_GPU;

    fn devices(ledger: &Ledger, container: &str) -> Option<Vec<String>> {
        let entry = ledger.iter().find(|entry| &*entry.container == container)?;
        Some(entry.devices().map(ToString::to_string).collect())
    }

    #[test]
    fn listed_containers_and_earlier_init_containers_keep_the_ids_of_the_kubelet() {
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
        let m2 = ledger.get(&EntryKey::new(&pod.pod.uid, "m2", GPU)).unwrap();
        assert_eq!((m2.state, m2.devices().count()), (CallState::Held, 1), "still to be asked for");
    }

    #[test]
    fn what_nothing_proves_is_held_until_the_pods_progress_or_the_kubelet_shows_more() {
        let gpu = [(GPU, 1)];
        let pod = pod("a", vec![container("init", Init, &gpu), container("main", App, &gpu)]);
        let mut pod = with_assignment(pod, &[("init", &["GPU-1"]), ("main", &["GPU-1"])]);
        let unlisted = PodListing::default();
        let states = |ledger: &Ledger| ledger.iter().map(|entry| entry.state).collect::<Vec<_>>();
        // Listed or not, its calls may be to come, or have been made before the ledger was lost.
        for listing in [&unlisted, &listing(&[("a", "main", GPU, &[])])] {
            let ledger = rebuild(NODE, &pods(&[&pod]), listing, &inventory(4));
            assert_eq!(
                (devices(&ledger, "main").unwrap(), states(&ledger)),
                (vec!["GPU-1".into()], vec![CallState::Held; 2])
            );
            assert!(!ledger.has_served(&pod.pod.uid), "a call is decided as the first");
            // Its kubelet says late that it runs: nothing proves that it runs without its devices.
            let runs = HandoffPod { phase: Phase::Running, ..pod.clone() };
            assert_eq!(verify(NODE, &pods(&[&runs]), listing, &ledger, &inventory(4)), []);
        }
        let mut ledger = rebuild(NODE, &pods(&[&pod]), &unlisted, &inventory(4));
        assert!(!learn(&mut ledger, NODE, &pods(&[&pod]), &unlisted, &inventory(4)), "it has not started");
        pod.phase = Phase::Running;
        assert_eq!(states(&rebuild(NODE, &pods(&[&pod]), &unlisted, &inventory(4))), [CallState::Answered; 2]);
        let mut unread = ledger.clone();
        assert!(learn(&mut unread, NODE, &pods(&[&pod]), &unlisted, &inventory(4)) && unread.has_served(&pod.pod.uid));
        let listing = listing(&[("a", "main", GPU, &["GPU-1"])]);
        assert!(learn(&mut ledger, NODE, &pods(&[&pod]), &listing, &inventory(4)));
        assert_eq!(states(&ledger), [CallState::Answered, CallState::Listed]);
        assert!(!learn(&mut ledger, NODE, &pods(&[&pod]), &listing, &inventory(4)), "once");
    }

    #[test]
    fn what_a_pod_has_that_has_started_and_of_which_nothing_tells_is_not_known() {
        let mut unassigned = gpu_pod("b", 1);
        for listing in [PodListing::default(), listing(&[("b", "main", GPU, &[])])] {
            unassigned.phase = Phase::Pending;
            assert!(rebuild(NODE, &pods(&[&unassigned]), &listing, &inventory(4)).is_empty(), "its call is to come");
            unassigned.phase = Phase::Running;
            let all = pods(&[&unassigned]);
            let ledger = rebuild(NODE, &all, &listing, &inventory(4));
            assert_eq!(
                exceptions(NODE, &all, ledger.iter(), &[].into(), &[].into(), &inventory(4)),
                Err(unassigned.pod.key.clone())
            );
            assert!(!ledger.has_served(&unassigned.pod.uid), "what it is answered is decided then");
        }
    }

    type Ids = &'static [&'static str];

    #[test]
    fn a_stored_answer_tells_what_a_container_has_and_ids_alone_do_not() {
        let named = |device: &str| with_assignment(gpu_pod("a", 1), &[("main", &[device])]);
        let (unassigned, ids) = (gpu_pod("a", 1), "GPU-3");
        let cases: [(_, Option<Ids>, Ids, Ids); 6] = [
            (&named("GPU-3"), None, &["GPU-3"], &["GPU-3"]),
            (&named("GPU-1"), None, &["GPU-1", "GPU-3"], &["GPU-1"]),
            (&unassigned, None, &["GPU-3"], &["GPU-3"]),
            (&named("GPU-1"), Some(&["GPU-1"]), &["GPU-1"], &["GPU-1"]),
            // The annotation was edited while no daemon ran.
            (&named("GPU-0"), Some(&["GPU-1", "GPU-2"]), &["GPU-0", "GPU-1", "GPU-2"], &["GPU-1", "GPU-2"]),
            (&unassigned, Some(&["GPU-1"]), &["GPU-1"], &["GPU-1"]),
        ];
        let print = |entries: &mut dyn Iterator<Item = &(DeviceType, DeviceEntry)>| {
            entries.map(|(_, device)| device.id.to_string()).collect::<Vec<_>>()
        };
        for (pod, answer, held, answered) in cases {
            let key = || EntryKey::new(&pod.pod.uid, "main", GPU);
            let answers = answer.into_iter().map(|devices| (key(), stored(devices))).collect();
            let unlisted = PodListing { answers, ..PodListing::default() };
            let listed = PodListing { answers: unlisted.answers.clone(), ..listing(&[("a", "main", GPU, &[ids])]) };
            let mut late = rebuild(NODE, &pods(&[pod]), &unlisted, &inventory(4));
            learn(&mut late, NODE, &pods(&[pod]), &listed, &inventory(4));
            assert!(!learn(&mut late, NODE, &pods(&[pod]), &listed, &inventory(4)), "once");
            for ledger in [rebuild(NODE, &pods(&[pod]), &listed, &inventory(4)), late] {
                let entry = ledger.get(&key()).unwrap();
                let found = (print(&mut entry.served.iter()), print(&mut entry.to_answer()));
                let expected = [held, answered].map(|ids| ids.iter().map(ToString::to_string).collect::<Vec<_>>());
                assert_eq!([found.0, found.1], expected, "{answer:?}");
                assert_eq!((&*entry.ids, entry.was_asked()), ([Box::from(ids)].as_slice(), true));
                assert_eq!(entry.answer.is_some(), answer.is_some());
            }
        }
    }

    #[test]
    fn what_is_rebuilt_before_the_kubelet_lists_it_takes_the_ids_listed_later() {
        let mut assigned = with_assignment(gpu_pod("a", 1), &[("main", &["GPU-2"])]);
        let mut unassigned = gpu_pod("b", 1);
        (assigned.phase, unassigned.phase) = (Phase::Running, Phase::Running);
        let all = pods(&[&assigned, &unassigned]);
        let mut ledger = rebuild(NODE, &all, &PodListing::default(), &inventory(4));
        assert_eq!(ledger.iter().map(|entry| entry.ids.len()).collect::<Vec<_>>(), [0, 0]);
        let listing = listing(&[("a", "main", GPU, &["GPU-2"]), ("b", "main", GPU, &["GPU-1"])]);
        assert!(learn(&mut ledger, NODE, &all, &listing, &inventory(4)));
        for (pod, device) in [(&assigned, "GPU-2"), (&unassigned, "GPU-1")] {
            let entry = ledger.of_pod(&pod.pod.uid).next().unwrap();
            assert_eq!((&*entry.ids, entry.state), ([Box::from(device)].as_slice(), CallState::Listed));
            assert_eq!(entry.devices().map(ToString::to_string).collect::<Vec<_>>(), [device], "no other pod gets it");
        }
        assert!(!learn(&mut ledger, NODE, &all, &listing, &inventory(4)), "once");
    }

    #[test]
    fn every_call_of_a_pod_that_was_rebuilt_unlisted_takes_its_ids() {
        let container = container("main", App, &[(GPU, 1), (key::RDMA, 1)]);
        let pod = HandoffPod { phase: Phase::Running, ..pod("a", vec![container]) };
        let all = pods(&[&pod]);
        let mut ledger = rebuild(NODE, &all, &PodListing::default(), &inventory(4));
        assert_eq!(ledger.len(), 2);
        let listing = listing(&[("a", "main", GPU, &["GPU-2"]), ("a", "main", key::RDMA, &["nic-1::0"])]);
        assert!(learn(&mut ledger, NODE, &all, &listing, &inventory(4)));
        assert!(ledger.iter().all(|entry| entry.ids.len() == 1 && entry.devices().count() == 1), "{ledger:?}");
    }

    #[test]
    fn devices_of_a_later_listing_are_learned_once_and_never_from_a_predecessor() {
        let pod = with_assignment(gpu_pod("a", 1), &[("main", &["GPU-2"])]);
        let (all, listing) = (pods(&[&pod]), listing(&[("a", "main", GPU, &["GPU-2"])]));
        let mut ledger = Ledger::default();
        assert!(learn(&mut ledger, NODE, &all, &listing, &inventory(4)));
        assert!(!learn(&mut ledger, NODE, &all, &listing, &inventory(4)));
        let mut predecessor = pod.clone();
        predecessor.pod.uid = PodUid::new("before");
        let mut ledger = granted(&predecessor, &[("main", &["GPU-2"])]);
        assert!(!learn(&mut ledger, NODE, &all, &listing, &inventory(4)));
    }

    #[test]
    fn an_annotation_whose_amounts_were_edited_gives_the_device_as_a_whole() {
        let mut pod = with_assignment(gpu_pod("a", 1), &[("main", &["GPU-1"])]);
        let text = pod.assignment.container_devices.take().unwrap();
        pod.assignment.container_devices = Some(text.replace("\"100\"", "\"1\"").into());
        let listing = listing(&[("a", "main", GPU, &["GPU-1"])]);
        let ledger = rebuild(NODE, &pods(&[&pod]), &listing, &inventory(4));
        let entry = ledger.iter().next().unwrap();
        assert!(entry.served.iter().all(|(kind, device)| room::is_whole(kind, device)), "{entry:?}");
    }

    #[test]
    fn a_share_whose_memory_was_edited_gives_the_device_as_a_whole() {
        let share = [(key::GPU_CORE, 50), (key::GPU_MEMORY_RATIO, 50)];
        for (ratio, whole) in [(50, false), (1, true)] {
            let pod = pod("a", vec![container("main", App, &share)]);
            let pod = with_entries(pod, &[("main", vec![share_of("GPU-1", 50, ratio, 40 << 30)])]);
            let listing = listing(&[("a", "main", key::GPU_CORE, &["GPU-1::0"])]);
            let ledger = rebuild(NODE, &pods(&[&pod]), &listing, &inventory(4));
            let entry = ledger.iter().find(|entry| !entry.served.is_empty()).unwrap();
            assert_eq!(!is_share(entry), whole, "{ratio}: {entry:?}");
        }
        let share = [(key::GPU_CORE, 50), (key::GPU_MEMORY, 20 << 30)];
        for (bytes, whole) in [(20 << 30, false), (1 << 30, true)] {
            let pod = pod("a", vec![container("main", App, &share)]);
            let pod = with_entries(pod, &[("main", vec![share_of("GPU-1", 50, 25, bytes)])]);
            let listing = listing(&[("a", "main", key::GPU_CORE, &["GPU-1::0"])]);
            let ledger = rebuild(NODE, &pods(&[&pod]), &listing, &inventory(4));
            let entry = ledger.iter().find(|entry| !entry.served.is_empty()).unwrap();
            assert_eq!(!is_share(entry), whole, "{bytes}: {entry:?}");
        }
    }

    #[test]
    fn an_edited_part_of_a_nic_is_the_whole_nic_unless_amounts_count_nics() {
        let as_count = Counting { strategy: Some(AllocateStrategy::RequestsAsCount), alone: false };
        for (percent, nics, whole) in
            [(50, Counting::default(), false), (1, Counting::default(), true), (1, as_count, false)]
        {
            let resources = [(key::RDMA.to_owned(), Quantity::units(percent))].into();
            let nic = DeviceEntry { resources, ..device("nic-1") };
            let mut pod =
                with_entries(pod("a", vec![container("main", App, &[(key::RDMA, 50)])]), &[("main", vec![nic])]);
            pod.assignment.nics = nics;
            let listing = listing(&[("a", "main", key::RDMA, &["nic-1::0"])]);
            let ledger = rebuild(NODE, &pods(&[&pod]), &listing, &inventory(4));
            assert_eq!(!is_share(ledger.iter().next().unwrap()), whole, "{percent} percent, {nics:?}");
        }
    }

    fn stored(devices: &[&str]) -> StoredAnswer {
        let ids = devices.iter().map(|id| DeviceId::parse(id).unwrap());
        StoredAnswer { devices: ids.collect(), encoded: devices.join(",").into_bytes(), ..StoredAnswer::default() }
    }

    #[test]
    fn an_answer_without_device_ids_says_nothing_of_a_name_that_delivers() {
        let container = container("main", App, &[(key::GPU_CORE, 50), (key::GPU_MEMORY_RATIO, 50)]);
        let pod = HandoffPod { phase: Phase::Pending, ..pod("a", vec![container]) };
        let mut unlisted = PodListing::default();
        for name in [key::GPU_CORE, key::GPU_MEMORY_RATIO] {
            unlisted.answers.insert(EntryKey::new(&pod.pod.uid, "main", name), stored(&[]));
        }
        let mut ledger = rebuild(NODE, &pods(&[&pod]), &unlisted, &inventory(4));
        assert_eq!(ledger.len(), 2, "both calls were served, or the pod would count as unserved");
        let listing = listing(&[
            ("a", "main", key::GPU_CORE, &["GPU-2::0"]),
            ("a", "main", key::GPU_MEMORY_RATIO, &["GPU-1::0"]),
        ]);
        assert!(learn(&mut ledger, NODE, &pods(&[&pod]), &listing, &inventory(4)));
        assert_eq!(devices(&ledger, "main").unwrap(), ["GPU-2"], "the ids of the one that delivers");
    }

    #[test]
    fn an_init_containers_call_is_served_once_its_answer_is_stored() {
        let gpu = [(GPU, 1)];
        let pod = pod("a", vec![container("init", Init, &gpu), container("main", App, &[])]);
        let pod = with_assignment(pod, &[("init", &["GPU-1"])]);
        let mut listing = listing(&[("a", "main", GPU, &[])]);
        let is_served =
            |listing: &PodListing| rebuild(NODE, &pods(&[&pod]), listing, &inventory(4)).has_served(&pod.pod.uid);
        assert!(!is_served(&listing));
        listing.answers.insert(EntryKey::new(&pod.pod.uid, "init", GPU), stored(&["GPU-1"]));
        assert!(is_served(&listing));
    }

    #[test]
    fn a_pod_of_another_node_holds_nothing_here_and_what_its_name_has_is_an_orphans() {
        let pod = with_assignment(gpu_pod("x", 1), &[("main", &["GPU-1"])]);
        let elsewhere = HandoffPod { phase: Phase::Running, node: Some("node-b".into()), ..pod };
        let all = pods(&[&elsewhere]);
        assert!(rebuild(NODE, &all, &PodListing::default(), &inventory(4)).is_empty());
        let listing = listing(&[("x", "main", GPU, &["GPU-3"])]);
        let ledger = rebuild(NODE, &all, &listing, &inventory(4));
        let owners: Vec<_> = ledger.iter().map(|entry| entry.pod.uid.clone()).collect();
        assert_eq!(owners, [unknown_uid(&elsewhere.pod.key)]);
    }

    #[test]
    fn a_listed_pod_that_the_api_server_does_not_have_holds_its_devices() {
        let rows: [(&str, &str, &str, &[&str]); 3] =
            [("x", "main", GPU, &["GPU-3"]), ("x", "main", "example.com/fpga", &["fpga-0"]), ("x", "other", GPU, &[])];
        let ledger = rebuild(NODE, &NodePods::default(), &listing(&rows), &inventory(4));
        assert_eq!((devices(&ledger, "main").unwrap(), ledger.len()), (vec!["GPU-3".into()], 1));
        assert!(ledger.iter().all(|entry| !entry.assigned));
    }

    #[test]
    fn what_a_listed_pod_holds_goes_with_its_processes_where_the_checkpoint_has_its_uid() {
        let mut listing = listing(&[("x", "main", GPU, &["GPU-3"])]);
        for (uid, id) in [("another", "GPU-2"), ("its-own", "GPU-3")] {
            let answer = StoredAnswer { ids: [id.into()].into(), ..StoredAnswer::default() };
            listing.answers.insert(EntryKey::new(&PodUid::new(uid), "main", GPU), answer);
        }
        let ledger = rebuild(NODE, &NodePods::default(), &listing, &inventory(4));
        assert!(ledger.holds(&PodUid::new("its-own")) && ledger.len() == 1);
    }

    #[test]
    fn a_listed_pod_that_is_unknown_holds_what_its_stored_answer_names() {
        let mut listing = listing(&[("x", "main", GPU, &["GPU-3"])]);
        // The kubelet chose another id than the assigned one.
        let answer = StoredAnswer { ids: [Box::from("GPU-3")].into(), ..stored(&["GPU-1"]) };
        listing.answers.insert(EntryKey::new(&PodUid::new("its-own"), "main", GPU), answer);
        let ledger = rebuild(NODE, &NodePods::default(), &listing, &inventory(4));
        assert_eq!(devices(&ledger, "main").unwrap(), ["GPU-1"]);
    }

    #[test]
    fn what_a_pod_holds_that_has_ended_and_is_listed_goes_with_its_processes() {
        let pod = HandoffPod { phase: Phase::Succeeded, ..gpu_pod("x", 1) };
        let listing = listing(&[("x", "main", GPU, &["GPU-3"])]);
        let ledger = rebuild(NODE, &pods(&[&pod]), &listing, &inventory(4));
        assert!(ledger.holds(&pod.pod.uid) && ledger.len() == 1);
    }
}

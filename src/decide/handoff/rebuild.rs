//! The ledger from PodResources and the pods' annotations, when the file is lost, torn or of another boot.
//!
//! All calls of a pod are made while the kubelet admits it, before any of its containers starts; and after a reboot the
//! kubelet re-admits checkpointed pods without calling. So a listed container has been served, and plain init containers,
//! which are never listed, have been served when anything after them has.

use std::collections::BTreeSet;

use super::assignment::{PodAssignment, delivers, kind_of};
use super::inventory::NodeInventory;
use super::ledger::{CallState, ContainerSlot, Ledger, LedgerEntry};
use super::listing::{EntryKey, ListedPod, PodListing, StoredAnswer};
use super::plan::Plan;
use super::pods::NodePods;
use super::room;
use crate::lock::{LockMatch, names};
use crate::pod::{ExpectedCall, HandoffPod};
use baton_contract::{DeviceEntry, DeviceId, DeviceType, GpuRequest, LockRead, PodKey, PodRef, PodUid, key};

/// Rebuilds every entry that PodResources, the kubelet's stored answers or the API server prove. One without a stored answer has none: for a
/// repetition it is built.
///
/// A pod may be not listed (yet: the kubelet comes up, or has no PodResources). Calls whose answers the kubelet has stored are served
/// nevertheless. A pod that has started by its status counts as served by its plan, uncertain until it is listed or has ended; so does
/// one that is listed without the devices that it was assigned, because a kubelet that has started again without its checkpoint does
/// not ask for containers that run. A kubelet that is cut off says late that a pod has started: where the lock of a pod with an
/// assignment has gone, its calls may have been answered. Its devices are held then, and a call is decided as the first. `lock`: of the
/// node, read after `pods` were; `None` where it cannot be read, so that it may have gone.
pub fn rebuild(
    node: &str,
    pods: &NodePods,
    listing: &PodListing,
    inventory: &NodeInventory,
    lock: Option<&LockRead>,
) -> Ledger {
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
        let is_listed = listing.lists(&pod.pod.key);
        let is_assigned = matches!(PodAssignment::read(pod, inventory), Ok(Some(_)));
        let is_its_lock =
            |lock: &LockRead| matches!(lock, LockRead::Held { value, .. } if names(value, pod) != LockMatch::No);
        let is_unlocked = !lock.is_some_and(is_its_lock);
        // What a listed pod without an assignment holds would stay unknown for as long as it runs.
        let counts_as_served = pod.has_started() && (!is_listed || is_assigned);
        let may_be_served = is_unlocked && is_assigned && !counts_as_served;
        for call in pod.expected_calls(|name| inventory.registers(name)) {
            let known = KnownCall::of(listing, pod, &call, None);
            let is_served = counts_as_served || (!is_listed && known.answer.is_some());
            if !is_served && !may_be_served {
                continue;
            }
            let state = if is_served { CallState::Answered } else { CallState::Held };
            add(&mut ledger, pod, &call, known, state, inventory);
        }
    }
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
    let mut learned = adopt(ledger, node, pods);
    // A pod that has started was served, as at a rebuild.
    learned |= ledger.proves(|uid| pods.by_uid(uid).is_some_and(HandoffPod::has_started));
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
    let calls: Vec<ExpectedCall<'_>> = pod.expected_calls(|name| inventory.registers(name)).collect();
    let reached = pod.containers.iter().rposition(|container| listed.has_devices(&container.name));
    let only_init = calls.iter().all(|call| ContainerSlot::of(pod, &call.container.name).init);
    for call in &calls {
        let slot = ContainerSlot::of(pod, &call.container.name);
        let ids = listed.ids(&call.container.name, call.resource);
        let is_served = if slot.init {
            match reached {
                Some(reached) => pod.has_started() || usize::from(slot.order) < reached,
                // Nothing of it is ever listed: only the pod's progress shows it.
                None => only_init && pod.has_started(),
            }
        } else {
            ids.is_some()
        };
        let known = KnownCall::of(listing, pod, call, ids);
        if is_served || known.answer.is_some() {
            added |= add(ledger, pod, call, known, CallState::Listed, inventory);
        }
    }
    added
}

/// What the kubelet knows of one served call.
struct KnownCall<'a> {
    /// Its ids.
    ids: BTreeSet<Box<str>>,
    /// Its stored answer.
    answer: Option<&'a StoredAnswer>,
}

impl<'a> KnownCall<'a> {
    fn of(
        listing: &'a PodListing,
        pod: &HandoffPod,
        call: &ExpectedCall<'_>,
        ids: Option<&BTreeSet<Box<str>>>,
    ) -> Self {
        let key = EntryKey::new(&pod.pod.uid, &call.container.name, call.resource);
        Self { ids: ids.cloned().unwrap_or_default(), answer: listing.answers.get(&key) }
    }
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
    let call = calls.find(|call| (&call.container.name, call.resource) == (&key.container, &*key.resource));
    if let Some(call) = call {
        add(ledger, pod, &call, KnownCall { ids: BTreeSet::new(), answer: Some(answer) }, state, inventory);
    }
}

fn add(
    ledger: &mut Ledger,
    pod: &HandoffPod,
    call: &ExpectedCall<'_>,
    known: KnownCall<'_>,
    state: CallState,
    inventory: &NodeInventory,
) -> bool {
    let KnownCall { ids, answer } = known;
    let key = EntryKey::new(&pod.pod.uid, &call.container.name, call.resource);
    if let Some(known) = ledger.get(&key) {
        // No call is without ids: this one was rebuilt before the kubelet listed what it holds.
        if !known.ids.is_empty() || ids.is_empty() {
            return false;
        }
        // What it has is known by its stored answer: only the ids are news.
        if known.answer.is_some() {
            let known = known.clone();
            let state = if known.was_asked() { known.state } else { CallState::Listed };
            ledger.restore(LedgerEntry { ids: ids.into_iter().collect(), state, ..known });
            return true;
        }
        ledger.forget(&key);
    }
    let assignment = PodAssignment::read(pod, inventory).ok().flatten();
    // An answer that names no device says nothing of one that delivers.
    let answer = answer.filter(|answer| !answer.devices.is_empty() || !delivers(call));
    let answered = answer.map(|answer| answer.devices.clone()).unwrap_or_default();
    let held = if delivers(call) { whole_devices(&answered, &ids, call.resource, inventory) } else { Vec::new() };
    let (served, unnamed) = match &assignment {
        Some(assignment) if delivers(call) => {
            let mut planned = planned(pod, assignment, ledger, inventory, call, &ids);
            // An annotation may have been edited while no ledger knew better: less than the container asks for is not believed.
            for (kind, device) in planned.iter_mut().filter(|(kind, device)| !is_asked_for(pod, call, kind, device)) {
                room::make_whole(kind, device);
            }
            both(planned, held, &answered, &assignment.pod_set(pod, &kind_of(call.resource)))
        }
        _ => (held, BTreeSet::new()),
    };
    let slot = ContainerSlot::of(pod, &call.container.name);
    let ids = ids.into_iter().collect();
    let entry = LedgerEntry::new(&pod.pod, &call.container.name, call.resource, slot, ids, served, state);
    let answer = answer.map(|answer| answer.encoded.clone());
    let grace_seconds = pod.grace_seconds;
    let entry = LedgerEntry { assigned: assignment.is_some(), unnamed, answer, grace_seconds, ..entry };
    ledger.rebuilt(entry, call.container.running);
    true
}

/// Where the kubelet's word (`held`) and the annotation (`planned`) differ, the devices of neither are given to another pod until this
/// one has ended; the second value are those that the container's answer does not name: what is `answered`, else what is planned, is named.
/// Ids of devices that are assigned to another container of the pod (`of_pod`) say nothing: the kubelet chose them.
fn both(
    mut planned: Vec<(DeviceType, DeviceEntry)>,
    held: Vec<(DeviceType, DeviceEntry)>,
    answered: &BTreeSet<DeviceId>,
    of_pod: &[DeviceId],
) -> (Vec<(DeviceType, DeviceEntry)>, BTreeSet<DeviceId>) {
    let known = |id: &DeviceId| planned.iter().any(|(_, device)| device.named().any(|named| named == id));
    let more = held
        .into_iter()
        .filter(|(_, device)| if answered.is_empty() { !of_pod.contains(&device.id) } else { !known(&device.id) });
    let more: Vec<_> = more.collect();
    let unnamed = if answered.is_empty() {
        more.iter().map(|(_, device)| device.id.clone()).collect()
    } else {
        let is_named = |device: &DeviceEntry| device.named().any(|id| answered.contains(id));
        planned.iter().filter(|(_, device)| !is_named(device)).map(|(_, device)| device.id.clone()).collect()
    };
    planned.extend(more);
    (planned, unnamed)
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
    let chosen: BTreeSet<DeviceId> = ids.iter().filter_map(|id| DeviceId::of_kubelet_id(id).ok()).collect();
    plan.adopt(call.container, &kind, &chosen);
    plan.of(&call.container.name, &kind).iter().map(|entry| (kind.clone(), entry.clone())).collect()
}

/// Devices that a container has by its stored answer, else by the kubelet's ids: counted as whole, which errs on the safe side.
pub(super) fn whole_devices(
    answered: &BTreeSet<DeviceId>,
    ids: &BTreeSet<Box<str>>,
    resource: &str,
    inventory: &NodeInventory,
) -> Vec<(DeviceType, DeviceEntry)> {
    let devices: BTreeSet<DeviceId> = if answered.is_empty() {
        ids.iter().filter_map(|id| DeviceId::of_kubelet_id(id).ok()).collect()
    } else {
        answered.clone()
    };
    let entry = |id: DeviceId| {
        let minor = inventory.devices.get(&id).map_or(0, |device| device.minor);
        DeviceEntry { minor, id, resources: std::collections::BTreeMap::new(), extension: None }
    };
    devices.into_iter().map(|id| (kind_of(resource), entry(id))).collect()
}

/// A pod that the API server did not have when it was served or found is there now, as the mirror of a static pod comes after
/// its admission: what it holds is filed under its own uid once it has started. Before that it may be a successor of the name, on whose
/// predecessor's deletion the kubelet is late. `true` when anything changed.
pub fn adopt(ledger: &mut Ledger, node: &str, pods: &NodePods) -> bool {
    let of_pod = |entry: &LedgerEntry| {
        let is_unknown = entry.pod.uid == unknown_uid(&entry.pod.key) && entry.leaving().is_none();
        let is_mirror = |pod: &&HandoffPod| pod.node.as_deref() == Some(node) && pod.is_live() && pod.has_started();
        let pod = pods.of_key(&entry.pod.key).find(is_mirror).filter(|_| is_unknown)?;
        let (slot, uid) = (ContainerSlot::of(pod, &entry.container), pod.pod.uid.clone());
        let free = ledger.get(&EntryKey::new(&uid, &entry.container, &entry.resource)).is_none();
        free.then(|| (entry.key(), LedgerEntry { slot, pod: pod.pod.clone(), ..entry.clone() }))
    };
    let adopted: Vec<(EntryKey, LedgerEntry)> = ledger.iter().filter_map(of_pod).collect();
    let any = !adopted.is_empty();
    for (key, entry) in adopted {
        ledger.forget(&key);
        ledger.restore(entry);
    }
    any
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
            let answered = stored.map(|(_, answer)| answer.devices.clone()).unwrap_or_default();
            let served = whole_devices(&answered, ids, resource, inventory);
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
    use super::super::testing::whole as device;
    use super::super::testing::{
        NODE, container, gpu_pod, granted, inventory, listing, lock_of, pod, pods, share_of, with_assignment,
        with_entries,
    };
    use super::super::verify::verify;
    use super::*;
    use crate::pod::ContainerKind::{App, Init, Sidecar};
    use crate::pod::Phase;
    use baton_contract::Quantity;
    use baton_contract::hint::{AllocateStrategy, Counting};

    use super::super::listing::PodResources;
    use std::time::Duration;

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
        let ledger = rebuild(NODE, &pods(&[&pod]), &listing, &inventory(4), Some(&lock_of(&pod)));
        assert_eq!(devices(&ledger, "init").unwrap(), ["GPU-0"]);
        assert_eq!(devices(&ledger, "side").unwrap(), ["GPU-1"], "the kubelet's choice inside the pod's set");
        assert_eq!(devices(&ledger, "m1").unwrap(), ["GPU-0"]);
        assert_eq!(devices(&ledger, "m2"), None, "still to be asked for");
    }

    #[test]
    fn a_pod_that_has_started_and_is_not_listed_yet_holds_its_plan() {
        let mut pod = with_assignment(gpu_pod("a", 1), &[("main", &["GPU-2"])]);
        let (lock, unlisted) = (lock_of(&pod), PodListing::default());
        let rebuilt = |pod: &HandoffPod| rebuild(NODE, &pods(&[pod]), &unlisted, &inventory(4), Some(&lock));
        assert!(rebuilt(&pod).is_empty(), "it may be still to come");
        pod.phase = Phase::Running;
        let ledger = rebuilt(&pod);
        assert_eq!(devices(&ledger, "main").unwrap(), ["GPU-2"]);
        assert!(ledger.has_served(&pod.pod.uid), "a pod that has started was served");
    }

    #[test]
    fn a_pod_that_is_listed_was_served_also_where_its_lock_has_gone() {
        let pod = with_assignment(gpu_pod("a", 1), &[("main", &["GPU-2"])]);
        let listing = listing(&[("a", "main", GPU, &["GPU-2"])]);
        let ledger = rebuild(NODE, &pods(&[&pod]), &listing, &inventory(4), Some(&LockRead::Free));
        assert!(ledger.has_served(&pod.pod.uid));
    }

    #[test]
    fn a_pod_whose_lock_has_gone_may_have_been_served_before_the_ledger_was_lost() {
        let pod = with_assignment(gpu_pod("a", 1), &[("main", &["GPU-2"])]);
        let other = with_assignment(gpu_pod("b", 1), &[("main", &["GPU-3"])]);
        let listing = listing(&[("a", "main", GPU, &[])]);
        let rebuilt = |lock: Option<&LockRead>| rebuild(NODE, &pods(&[&pod]), &listing, &inventory(4), lock);
        assert!(rebuilt(Some(&lock_of(&pod))).is_empty(), "its calls are still to come");
        let malformed = LockRead::parse(Some("of no format"));
        for lock in [Some(&LockRead::Free), Some(&lock_of(&other)), Some(&malformed), None] {
            let ledger = rebuilt(lock);
            assert_eq!(devices(&ledger, "main").unwrap(), ["GPU-2"], "{lock:?}");
            assert!(!ledger.has_served(&pod.pod.uid), "a call is decided as the first");
            // Its kubelet says late that it runs: nothing proves that it runs without its devices.
            let runs = HandoffPod { phase: Phase::Running, ..pod.clone() };
            assert_eq!(verify(NODE, &pods(&[&runs]), &listing, &ledger, &inventory(4)), []);
        }
        let unassigned = gpu_pod("a", 1);
        assert!(rebuild(NODE, &pods(&[&unassigned]), &listing, &inventory(4), Some(&LockRead::Free)).is_empty());
    }

    #[test]
    fn what_was_in_doubt_is_believed_once_the_pods_progress_or_the_kubelet_shows_it() {
        let gpu = [(GPU, 1)];
        let pod = pod("a", vec![container("init", Init, &gpu), container("main", App, &gpu)]);
        let mut pod = with_assignment(pod, &[("init", &["GPU-1"]), ("main", &["GPU-1"])]);
        let unlisted = PodListing::default();
        let mut ledger = rebuild(NODE, &pods(&[&pod]), &unlisted, &inventory(4), Some(&LockRead::Free));
        assert!(ledger.len() == 2 && !ledger.has_served(&pod.pod.uid));
        assert!(!learn(&mut ledger, NODE, &pods(&[&pod]), &unlisted, &inventory(4)), "it has not started");
        assert!(!ledger.has_served(&pod.pod.uid));
        pod.phase = Phase::Running;
        let mut unread = ledger.clone();
        assert!(learn(&mut unread, NODE, &pods(&[&pod]), &unlisted, &inventory(4)) && unread.has_served(&pod.pod.uid));
        let listing = listing(&[("a", "main", GPU, &["GPU-1"])]);
        assert!(learn(&mut ledger, NODE, &pods(&[&pod]), &listing, &inventory(4)));
        assert!(ledger.iter().all(LedgerEntry::was_asked), "{ledger:?}");
        assert!(!learn(&mut ledger, NODE, &pods(&[&pod]), &listing, &inventory(4)), "once");
    }

    #[test]
    fn a_pod_that_runs_keeps_its_devices_where_the_kubelet_has_lost_its_checkpoint() {
        let mut assigned = with_assignment(gpu_pod("a", 1), &[("main", &["GPU-2"])]);
        let mut unassigned = gpu_pod("b", 1);
        let listing = listing(&[("a", "main", GPU, &[]), ("b", "main", GPU, &[])]);
        let lock = lock_of(&assigned);
        let rebuilt =
            |all: &[&HandoffPod]| -> Ledger { rebuild(NODE, &pods(all), &listing, &inventory(4), Some(&lock)) };
        assert!(rebuilt(&[&assigned, &unassigned]).is_empty(), "the kubelet may be about to ask");
        (assigned.phase, unassigned.phase) = (Phase::Running, Phase::Running);
        let ledger = rebuilt(&[&assigned, &unassigned]);
        assert_eq!((devices(&ledger, "main").unwrap(), ledger.len()), (vec!["GPU-2".into()], 1));
        let entry = ledger.of_pod(&assigned.pod.uid).next().unwrap();
        assert_eq!(
            (entry.state, entry.ids.len()),
            (CallState::Answered, 0),
            "uncertain until the kubelet asks or lists"
        );
    }

    #[test]
    fn what_is_rebuilt_before_the_kubelet_lists_it_takes_the_ids_listed_later() {
        let mut assigned = with_assignment(gpu_pod("a", 1), &[("main", &["GPU-2"])]);
        let mut unassigned = gpu_pod("b", 1);
        (assigned.phase, unassigned.phase) = (Phase::Running, Phase::Running);
        let all = pods(&[&assigned, &unassigned]);
        let mut ledger = rebuild(NODE, &all, &PodListing::default(), &inventory(4), None);
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
    fn where_the_kubelet_and_the_annotation_differ_both_hold_and_one_is_answered() {
        let pod = with_assignment(gpu_pod("a", 1), &[("main", &["GPU-1"])]);
        let ids = |entries: &mut dyn Iterator<Item = &(DeviceType, DeviceEntry)>| {
            entries.map(|(_, device)| device.id.to_string()).collect::<Vec<_>>()
        };
        let found = |answer: Option<&str>| {
            let mut listing = listing(&[("a", "main", GPU, &["GPU-3"])]);
            let stored = |device| StoredAnswer {
                ids: BTreeSet::from([Box::from("GPU-3")]),
                devices: BTreeSet::from([super::super::testing::id(device)]),
                encoded: vec![7],
            };
            let key = |device| (EntryKey::new(&pod.pod.uid, "main", GPU), stored(device));
            listing.answers = answer.into_iter().map(key).collect();
            let ledger = rebuild(NODE, &pods(&[&pod]), &listing, &inventory(4), None);
            let entry = ledger.iter().next().unwrap();
            (ids(&mut entry.served.iter()), ids(&mut entry.to_answer()))
        };
        let both = |answered: &[&str]| answered.iter().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(found(None), (both(&["GPU-1", "GPU-3"]), both(&["GPU-1"])), "a repetition is answered as assigned");
        assert_eq!(found(Some("GPU-2")), (both(&["GPU-1", "GPU-2"]), both(&["GPU-2"])), "the answer is stored");
        assert_eq!(found(Some("GPU-1")), (both(&["GPU-1"]), both(&["GPU-1"])));
    }

    #[test]
    fn every_call_of_a_pod_that_was_rebuilt_unlisted_takes_its_ids() {
        let container = container("main", App, &[(GPU, 1), (key::RDMA, 1)]);
        let pod = HandoffPod { phase: Phase::Running, ..pod("a", vec![container]) };
        let all = pods(&[&pod]);
        let mut ledger = rebuild(NODE, &all, &PodListing::default(), &inventory(4), None);
        assert_eq!(ledger.len(), 2);
        let listing = listing(&[("a", "main", GPU, &["GPU-2"]), ("a", "main", key::RDMA, &["nic-1::0"])]);
        assert!(learn(&mut ledger, NODE, &all, &listing, &inventory(4)));
        assert!(ledger.iter().all(|entry| entry.ids.len() == 1 && entry.devices().count() == 1), "{ledger:?}");
    }

    #[test]
    fn what_a_static_pod_holds_is_its_mirrors_once_that_is_there() {
        let listing = listing(&[("x", "main", GPU, &["GPU-3"])]);
        let mut ledger = rebuild(NODE, &NodePods::default(), &listing, &inventory(4), None);
        let mut mirror = gpu_pod("x", 1);
        assert!(!adopt(&mut ledger, NODE, &NodePods::default()));
        assert!(
            !adopt(&mut ledger, NODE, &pods(&[&mirror])),
            "it may be a successor that the kubelet has yet to admit"
        );
        mirror.phase = Phase::Running;
        let elsewhere = HandoffPod { node: Some("node-b".into()), ..mirror.clone() };
        assert!(!adopt(&mut ledger, NODE, &pods(&[&elsewhere])));
        let mut unlisted = ledger.clone();
        let nothing = PodResources::Listed(PodListing::default());
        unlisted.follow(&NodePods::default(), &nothing, (Duration::ZERO, jiff::Timestamp::UNIX_EPOCH));
        assert!(!adopt(&mut unlisted, NODE, &pods(&[&mirror])), "what was listed has left");
        assert!(adopt(&mut ledger, NODE, &pods(&[&mirror])));
        let entry = ledger.of_pod(&mirror.pod.uid).next().unwrap();
        assert_eq!(entry.slot, ContainerSlot::of(&mirror, "main"));
        assert_eq!(
            (entry.devices().map(ToString::to_string).collect::<Vec<_>>(), ledger.len()),
            (vec!["GPU-3".into()], 1)
        );
        assert!(!adopt(&mut ledger, NODE, &pods(&[&mirror])), "once");
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
        let ledger = rebuild(NODE, &pods(&[&pod]), &listing, &inventory(4), None);
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
            let ledger = rebuild(NODE, &pods(&[&pod]), &listing, &inventory(4), Some(&lock_of(&pod)));
            let entry = ledger.iter().find(|entry| !entry.served.is_empty()).unwrap();
            assert_eq!(!is_share(entry), whole, "{ratio}: {entry:?}");
        }
        let share = [(key::GPU_CORE, 50), (key::GPU_MEMORY, 20 << 30)];
        for (bytes, whole) in [(20 << 30, false), (1 << 30, true)] {
            let pod = pod("a", vec![container("main", App, &share)]);
            let pod = with_entries(pod, &[("main", vec![share_of("GPU-1", 50, 25, bytes)])]);
            let listing = listing(&[("a", "main", key::GPU_CORE, &["GPU-1::0"])]);
            let ledger = rebuild(NODE, &pods(&[&pod]), &listing, &inventory(4), Some(&lock_of(&pod)));
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
            let ledger = rebuild(NODE, &pods(&[&pod]), &listing, &inventory(4), Some(&lock_of(&pod)));
            assert_eq!(!is_share(ledger.iter().next().unwrap()), whole, "{percent} percent, {nics:?}");
        }
    }

    #[test]
    fn where_the_kubelet_and_an_edited_annotation_differ_both_sets_take_no_other_pod() {
        let pod = with_assignment(gpu_pod("a", 1), &[("main", &["GPU-3"])]);
        let listing = listing(&[("a", "main", GPU, &["GPU-1"])]);
        let ledger = rebuild(NODE, &pods(&[&pod]), &listing, &inventory(4), None);
        assert_eq!(devices(&ledger, "main").unwrap(), ["GPU-3", "GPU-1"]);
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
        let mut ledger = rebuild(NODE, &pods(&[&pod]), &unlisted, &inventory(4), None);
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
        assert!(rebuild(NODE, &pods(&[&pod]), &listing, &inventory(4), Some(&lock_of(&pod))).is_empty());
        listing.answers.insert(EntryKey::new(&pod.pod.uid, "init", GPU), stored(&["GPU-1"]));
        assert_eq!(devices(&rebuild(NODE, &pods(&[&pod]), &listing, &inventory(4), None), "init").unwrap(), ["GPU-1"]);
    }

    #[test]
    fn the_answers_that_the_kubelet_has_stored_outweigh_its_ids() {
        // Served with GPU-1 and GPU-2 under other ids; the annotation was shortened while no daemon ran.
        let pod = with_assignment(gpu_pod("a", 2), &[("main", &["GPU-1"])]);
        let mut listing = listing(&[("a", "main", GPU, &["GPU-0", "GPU-3"])]);
        let key = EntryKey::new(&pod.pod.uid, "main", GPU);
        listing.answers.insert(key, stored(&["GPU-1", "GPU-2"]));
        let ledger = rebuild(NODE, &pods(&[&pod]), &listing, &inventory(4), None);
        assert_eq!(devices(&ledger, "main").unwrap(), ["GPU-1", "GPU-2"]);
        // Without an assignment too.
        let ledger = rebuild(NODE, &pods(&[&gpu_pod("a", 2)]), &listing, &inventory(4), None);
        assert_eq!(devices(&ledger, "main").unwrap(), ["GPU-1", "GPU-2"]);
        // Moved: neither set goes to another pod.
        let moved = with_assignment(gpu_pod("a", 1), &[("main", &["GPU-3"])]);
        let ledger = rebuild(NODE, &pods(&[&moved]), &listing, &inventory(4), None);
        assert_eq!(devices(&ledger, "main").unwrap(), ["GPU-3", "GPU-1", "GPU-2"]);
    }

    #[test]
    fn an_unlisted_pod_has_what_its_stored_answer_names_also_once_listed() {
        // Not started by its status either: the kubelet has just started again, and admits the pod without a call.
        let pod = with_assignment(gpu_pod("a", 1), &[("main", &["GPU-1"])]);
        let mut unlisted = PodListing::default();
        unlisted.answers.insert(EntryKey::new(&pod.pod.uid, "main", GPU), stored(&["GPU-2"]));
        let mut ledger = rebuild(NODE, &pods(&[&pod]), &unlisted, &inventory(4), None);
        assert_eq!(devices(&ledger, "main").unwrap(), ["GPU-1", "GPU-2"]);
        let listing = listing(&[("a", "main", GPU, &["GPU-0"])]);
        assert!(learn(&mut ledger, NODE, &pods(&[&pod]), &listing, &inventory(4)));
        assert_eq!(devices(&ledger, "main").unwrap(), ["GPU-1", "GPU-2"], "its ids prove nothing");
        let entry = ledger.iter().next().unwrap();
        assert_eq!((&*entry.ids, entry.answer.as_deref()), (["GPU-0".into()].as_slice(), Some(b"GPU-2".as_slice())));
        assert!(!learn(&mut ledger, NODE, &pods(&[&pod]), &listing, &inventory(4)), "once");
        // The kubelet lists what it asked for.
        let entry = ledger.iter().next().unwrap().clone();
        ledger.restore(LedgerEntry { ids: Vec::new(), asked: 0, ..entry });
        assert!(learn(&mut ledger, NODE, &pods(&[&pod]), &listing, &inventory(4)));
        assert!(ledger.has_served(&pod.pod.uid));
    }

    #[test]
    fn a_pod_of_another_node_holds_nothing_here_and_what_its_name_has_is_an_orphans() {
        let pod = with_assignment(gpu_pod("x", 1), &[("main", &["GPU-1"])]);
        let elsewhere = HandoffPod { phase: Phase::Running, node: Some("node-b".into()), ..pod };
        let all = pods(&[&elsewhere]);
        assert!(rebuild(NODE, &all, &PodListing::default(), &inventory(4), None).is_empty());
        let listing = listing(&[("x", "main", GPU, &["GPU-3"])]);
        let ledger = rebuild(NODE, &all, &listing, &inventory(4), None);
        let owners: Vec<_> = ledger.iter().map(|entry| entry.pod.uid.clone()).collect();
        assert_eq!(owners, [unknown_uid(&elsewhere.pod.key)]);
    }

    #[test]
    fn a_listed_pod_that_the_api_server_does_not_have_holds_its_devices() {
        let rows: [(&str, &str, &str, &[&str]); 3] =
            [("x", "main", GPU, &["GPU-3"]), ("x", "main", "example.com/fpga", &["fpga-0"]), ("x", "other", GPU, &[])];
        let ledger = rebuild(NODE, &NodePods::default(), &listing(&rows), &inventory(4), None);
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
        let ledger = rebuild(NODE, &NodePods::default(), &listing, &inventory(4), None);
        assert!(ledger.holds(&PodUid::new("its-own")) && ledger.len() == 1);
    }

    #[test]
    fn a_listed_pod_that_is_unknown_holds_what_its_stored_answer_names() {
        let mut listing = listing(&[("x", "main", GPU, &["GPU-3"])]);
        // The kubelet chose another id than the assigned one.
        let answer = StoredAnswer { ids: [Box::from("GPU-3")].into(), ..stored(&["GPU-1"]) };
        listing.answers.insert(EntryKey::new(&PodUid::new("its-own"), "main", GPU), answer);
        let ledger = rebuild(NODE, &NodePods::default(), &listing, &inventory(4), None);
        assert_eq!(devices(&ledger, "main").unwrap(), ["GPU-1"]);
    }

    #[test]
    fn what_a_pod_holds_that_has_ended_and_is_listed_goes_with_its_processes() {
        let pod = HandoffPod { phase: Phase::Succeeded, ..gpu_pod("x", 1) };
        let listing = listing(&[("x", "main", GPU, &["GPU-3"])]);
        let ledger = rebuild(NODE, &pods(&[&pod]), &listing, &inventory(4), None);
        assert!(ledger.holds(&pod.pod.uid) && ledger.len() == 1);
    }
}

//! Compares PodResources, the ledger, the pods' annotations and the pods' statuses, after the grants.

use std::collections::BTreeSet;

use super::assignment::PodAssignment;
use super::inventory::NodeInventory;
use super::ledger::{ContainerSlot, Ledger, LedgerEntry};
use super::listing::PodListing;
use super::pods::NodePods;
use super::rebuild::is_share;
use super::refusal::PodNotice;
use crate::pod::Phase;
use baton_contract::{DeviceId, EventReason, PodUid};

/// The kubelet, the annotation and the ledger name different devices.
pub const DIVERGENCE: EventReason = EventReason::DeviceDivergence;
/// A pod that runs without the devices that it asked for: the kubelet made no call.
pub const ADMITTED_WITHOUT_DEVICES: EventReason = EventReason::AdmittedWithoutDevices;
/// Reasons of the events that `verify` gives.
pub const REASONS: [EventReason; 2] = [DIVERGENCE, ADMITTED_WITHOUT_DEVICES];

/// Compares what the kubelet lists, what the pods' statuses name and what the annotations say with what was served; every
/// finding is one event on the pod.
pub fn verify(
    node: &str,
    pods: &NodePods,
    listing: &PodListing,
    ledger: &Ledger,
    inventory: &NodeInventory,
) -> Vec<PodNotice> {
    let served = ledger.iter().filter(|entry| !entry.served.is_empty());
    let mut found: Vec<PodNotice> =
        served.flat_map(|entry| divergences(entry, pods, listing, ledger, inventory)).collect();
    found.extend(without_devices(node, pods, listing, ledger, inventory));
    found
}

/// What contradicts one grant.
fn divergences(
    entry: &LedgerEntry,
    pods: &NodePods,
    listing: &PodListing,
    ledger: &Ledger,
    inventory: &NodeInventory,
) -> Vec<PodNotice> {
    let Some(pod) = pods.by_uid(&entry.pod.uid) else { return Vec::new() };
    let served: BTreeSet<DeviceId> = entry.devices().cloned().collect();
    let mut found = Vec::new();
    let mut report = |source: &str, theirs: &BTreeSet<DeviceId>| {
        let (container, resource) = (&entry.container, &entry.resource);
        let (theirs, ours) = (print(theirs), print(&served));
        let note = format!("container {container}, {resource}: {source} {theirs}, the container was given {ours}");
        found.push(PodNotice::new(entry.pod.clone(), DIVERGENCE, note));
    };
    // A plain init container's devices go on to the next ones: only the grant itself is compared with the plan.
    if !entry.slot.init {
        let ids = || listing.ids(&entry.pod.key, &entry.container, &entry.resource);
        let listed = devices(ids());
        let of_pod = ledger.handed_on(&entry.pod.uid, &entry.resource, entry.slot);
        if !listed.is_empty() && !names(&listed, ids().count(), &served, &of_pod) {
            report("the kubelet holds", &listed);
        }
        let status = pods.reported(&entry.pod.uid, &entry.container).and_then(|names| names.get(&entry.resource));
        let reported = devices(status.into_iter().flatten().map(|id| &**id));
        // What the kubelet holds is reported already.
        let count = status.map_or(0, BTreeSet::len);
        if !reported.is_empty() && !names(&reported, count, &served, &of_pod) && reported != listed {
            report("the pod's status (allocatedResourcesStatus) names", &reported);
        }
    }
    if entry.assigned
        && let Ok(Some(assignment)) = PodAssignment::read(pod, inventory)
    {
        let assigned: BTreeSet<DeviceId> = assignment.named().cloned().collect();
        if !served.is_subset(&assigned) {
            report("the pod's annotations assign", &assigned);
        }
    }
    found
}

/// What the kubelet holds, by so many ids, are the served devices. Fewer ids than devices (`ApplyForAll`) cannot name them all; ids of
/// `of_pod` say nothing, because the kubelet had to hand them on.
fn names(held: &BTreeSet<DeviceId>, ids: usize, served: &BTreeSet<DeviceId>, of_pod: &BTreeSet<DeviceId>) -> bool {
    let few = ids < served.len() || !of_pod.is_empty();
    held == served || (few && held.iter().all(|id| served.contains(id) || of_pod.contains(id)))
}

/// Devices behind the kubelet's ids.
fn devices<'a>(ids: impl Iterator<Item = &'a str>) -> BTreeSet<DeviceId> {
    ids.filter_map(|id| DeviceId::of_kubelet_id(id).ok()).collect()
}

fn print(ids: &BTreeSet<DeviceId>) -> String {
    ids.iter().map(DeviceId::as_str).collect::<Vec<_>>().join(", ")
}

/// Pods past their admission for which no call came. A pod with an entry has been served, whatever the kubelet lists: it drops a pod
/// whose phase another client writes, and lists it again without its ids.
fn without_devices<'a>(
    node: &'a str,
    pods: &'a NodePods,
    listing: &'a PodListing,
    ledger: &'a Ledger,
    inventory: &'a NodeInventory,
) -> impl Iterator<Item = PodNotice> + 'a {
    let here = pods.iter().filter(move |pod| pod.node.as_deref() == Some(node) && !pod.phase.is_terminal());
    here.filter(|pod| pod.phase == Phase::Running || pod.any_runs())
        .filter(|pod| !ledger.holds(&pod.pod.uid))
        .filter_map(move |pod| {
            let call = pod.expected_calls(|name| inventory.registers(name)).find(|call| {
                let listed = listing.ids(&pod.pod.key, &call.container.name, call.resource).next().is_some();
                !ContainerSlot::of(pod, &call.container.name).init && !listed
            })?;
            let note = format!(
                "the kubelet started the pod without asking for {} of container {}: no device plugin served that name \
                 when it was admitted; delete and re-create the pod",
                call.resource, call.container.name
            );
            Some(PodNotice::new(pod.pod.clone(), ADMITTED_WITHOUT_DEVICES, note))
        })
}

/// Whether a container may start: what the kubelet committed for `ids` is what was served. Used by the start barrier.
/// `Err` names what differs.
pub fn may_start(resource: &str, ids: &[String], ledger: &Ledger, pods: &NodePods) -> Result<(), String> {
    let asked: BTreeSet<&str> = ids.iter().map(String::as_str).collect();
    let live = |uid: &PodUid| pods.by_uid(uid).is_some_and(|pod| !pod.phase.is_terminal());
    let holders: Vec<_> = ledger
        .iter()
        .filter(|entry| &*entry.resource == resource && live(&entry.pod.uid))
        .filter(|entry| entry.ids.iter().map(|id| &**id).collect::<BTreeSet<_>>() == asked)
        .collect();
    let chosen: BTreeSet<DeviceId> = ids.iter().filter_map(|id| DeviceId::of_kubelet_id(id).ok()).collect();
    if holders.is_empty() && !chosen.is_empty() && rebuilt_for(resource, &chosen, ledger, live) {
        return Ok(());
    }
    if holders.is_empty() {
        return Err(format!(
            "{resource}: no container was given these devices ({}); it is not started",
            ids.join(", ")
        ));
    }
    let agrees = |entry: &&&LedgerEntry| {
        let of_pod = ledger.handed_on(&entry.pod.uid, resource, entry.slot);
        entry.served.is_empty() || names(&chosen, asked.len(), &entry.devices().cloned().collect(), &of_pod)
    };
    match holders.iter().find(|entry| !agrees(entry)) {
        Some(entry) if !holders.iter().any(|entry| agrees(&entry)) => Err(format!(
            "pod {}, container {}, {resource}: the kubelet committed {}, assigned are {}; it is not started",
            entry.pod.key,
            entry.container,
            ids.join(", "),
            entry.devices().map(ToString::to_string).collect::<Vec<_>>().join(", ")
        )),
        _ => Ok(()),
    }
}

/// What the container was given that the kubelet is about to start: by its ids, or by its devices where the ledger was rebuilt before the
/// kubelet listed them. Several have the same ids where containers of a pod follow each other.
pub fn to_start<'a>(resource: &str, ids: &[String], ledger: &'a Ledger) -> impl Iterator<Item = &'a LedgerEntry> {
    let asked: BTreeSet<&str> = ids.iter().map(String::as_str).collect();
    let chosen: BTreeSet<DeviceId> = ids.iter().filter_map(|id| DeviceId::of_kubelet_id(id).ok()).collect();
    let is_asked_for = |entry: &&LedgerEntry| {
        if entry.ids.is_empty() {
            entry.devices().any(|device| chosen.contains(device))
        } else {
            entry.ids.iter().map(|id| &**id).collect::<BTreeSet<_>>() == asked
        }
    };
    let found: Vec<_> = ledger.iter().filter(|entry| &*entry.resource == resource).filter(is_asked_for).collect();
    let is_exact = found.iter().any(|entry| !entry.ids.is_empty());
    found.into_iter().filter(move |entry| !is_exact || !entry.ids.is_empty())
}

/// The containers with a GPU share of which the kubelet is about to start one.
pub fn shares_to_start<'a>(resource: &str, ids: &[String], ledger: &'a Ledger) -> Vec<&'a LedgerEntry> {
    to_start(resource, ids, ledger).filter(|entry| is_share(entry)).collect()
}

/// Whether none of the containers runs of which the kubelet is about to start one: all have its ids, and are one container and plain init
/// containers of its pod, which follow each other.
pub fn none_runs(starting: &[&LedgerEntry]) -> bool {
    let is_live = |entry: &&LedgerEntry| !entry.ids.is_empty() && entry.leaving().is_none();
    let of_one_pod = starting.windows(2).all(|two| two[0].pod.uid == two[1].pod.uid);
    of_one_pod && starting.iter().all(is_live) && starting.iter().filter(|entry| !entry.slot.init).count() < 2
}

/// The kubelet never lists plain init containers, so that entries which were rebuilt for them have no ids. The kubelet takes
/// their devices from those of the pod: some live pod that has such an entry was given all that were chosen.
fn rebuilt_for(resource: &str, chosen: &BTreeSet<DeviceId>, ledger: &Ledger, live: impl Fn(&PodUid) -> bool) -> bool {
    let nameless = ledger.iter().filter(|entry| &*entry.resource == resource && entry.ids.is_empty());
    nameless.filter(|entry| live(&entry.pod.uid)).any(|entry| {
        let of_pod = ledger.iter().filter(|other| other.pod.uid == entry.pod.uid);
        let given: BTreeSet<&DeviceId> = of_pod.flat_map(LedgerEntry::devices).collect();
        chosen.iter().all(|id| given.contains(id))
    })
}

#[cfg(test)]
mod tests {
    use super::super::ledger::{CallState, Leaving};
    use super::super::listing::EntryKey;
    use super::super::pods::LastSeen;
    use super::super::testing::{
        NODE, container, gpu_pod, grant, granted, inventory, listing, pod, pods, share_of, whole, with_assignment,
    };
    use super::*;
    use crate::pod::ContainerKind::App;
    use crate::pod::HandoffPod;
    use baton_contract::key::{GPU_CORE, NVIDIA_GPU as GPU};
    use baton_contract::{DeviceEntry, DeviceType};
    use std::time::Duration;

    #[test]
    fn a_kubelet_that_holds_other_devices_than_were_served_is_reported() {
        let pod = with_assignment(gpu_pod("a", 1), &[("main", &["GPU-0"])]);
        let ledger = granted(&pod, &[("main", &["GPU-0"])]);
        let reasons = |rows: &[(&str, &str, &str, &[&str])]| -> Vec<_> {
            let found = verify(NODE, &pods(&[&pod]), &listing(rows), &ledger, &inventory(4));
            found.into_iter().map(|notice| notice.reason).collect()
        };
        assert_eq!(reasons(&[("a", "main", GPU, &["GPU-1"])]), [DIVERGENCE]);
        assert_eq!(reasons(&[("a", "main", GPU, &["GPU-0"])]), Vec::new());
    }

    #[test]
    fn a_status_that_names_other_devices_than_were_served_is_told_and_not_twice() {
        let pod = with_assignment(gpu_pod("a", 1), &[("main", &["GPU-0"])]);
        let ledger = granted(&pod, &[("main", &["GPU-0"])]);
        let notes = |listed: &[&str], reported: &[&str]| -> Vec<String> {
            let mut pods = pods(&[&pod]);
            let ids = reported.iter().map(|id| Box::from(*id)).collect();
            pods.report(&pod.pod.uid, [("main".into(), [(GPU.into(), ids)].into())].into());
            let listing = listing(&[("a", "main", GPU, listed)]);
            let found = verify(NODE, &pods, &listing, &ledger, &inventory(4));
            assert!(found.iter().all(|notice| notice.reason == DIVERGENCE));
            found.into_iter().map(|notice| notice.note).collect()
        };
        assert_eq!(notes(&["GPU-0"], &["GPU-0"]), [""; 0]);
        assert_eq!(notes(&["GPU-0"], &[]), [""; 0], "a kubelet that does not tell");
        let reported = notes(&["GPU-0"], &["GPU-2"]);
        assert!(reported.len() == 1 && reported[0].contains("allocatedResourcesStatus) names GPU-2"), "{reported:?}");
        assert_eq!(notes(&["GPU-2"], &["GPU-2"]).len(), 1, "the kubelet and the status agree: one finding");
        assert_eq!(notes(&["GPU-2"], &["GPU-3"]).len(), 2);
    }

    #[test]
    fn a_share_is_compared_by_its_device_and_a_claim_not_at_all() {
        let pod = with_assignment(gpu_pod("a", 1), &[("main", &["GPU-0"])]);
        let ledger = granted(&pod, &[("main", &["GPU-0"])]);
        let mut pods = pods(&[&pod]);
        let of = |name: &str, id: &str| (Box::from(name), BTreeSet::from([Box::from(id)]));
        let reported = [of(GPU, "GPU-0::17"), of("claim:other/gpu", "GPU-3")];
        pods.report(&pod.pod.uid, [("main".into(), reported.into())].into());
        let listing = listing(&[("a", "main", GPU, &["GPU-0::17"])]);
        assert_eq!(verify(NODE, &pods, &listing, &ledger, &inventory(4)), []);
    }

    #[test]
    fn a_grant_beside_the_annotations_is_reported() {
        let pod = with_assignment(gpu_pod("a", 1), &[("main", &["GPU-0"])]);
        let ledger = granted(&pod, &[("main", &["GPU-1"])]);
        let listing = listing(&[("a", "main", GPU, &["GPU-1"])]);
        let found = verify(NODE, &pods(&[&pod]), &listing, &ledger, &inventory(4));
        assert!(found.len() == 1 && found[0].note.contains("annotations assign GPU-0"), "{found:?}");
    }

    #[test]
    fn a_pod_that_runs_without_its_devices_is_reported() {
        let mut pod = with_assignment(gpu_pod("a", 1), &[("main", &["GPU-0"])]);
        let rows: &[(&str, &str, &str, &[&str])] = &[("a", "main", GPU, &[])];
        let find = |pod: &_| verify(NODE, &pods(&[pod]), &listing(rows), &Ledger::default(), &inventory(4));
        assert_eq!(find(&pod), []);
        pod.containers[0].running = true;
        assert_eq!(find(&pod)[0].reason, ADMITTED_WITHOUT_DEVICES);
        pod.node = Some("node-b".into());
        assert_eq!(find(&pod), [], "the kubelet of another node has it");
    }

    #[test]
    fn a_start_with_other_devices_than_the_assignment_is_refused() {
        let pod = with_assignment(gpu_pod("a", 1), &[("main", &["GPU-0"])]);
        let ledger = granted(&pod, &[("main", &["GPU-0"])]);
        let all = pods(&[&pod]);
        assert_eq!(may_start(GPU, &["GPU-0".to_owned()], &ledger, &all), Ok(()));
        assert!(may_start(GPU, &["GPU-1".to_owned()], &ledger, &all).is_err());
        let ended = HandoffPod { phase: Phase::Failed, ..pod };
        assert!(may_start(GPU, &["GPU-0".to_owned()], &ledger, &pods(&[&ended])).is_err());
    }

    #[test]
    fn a_container_rebuilt_without_ids_starts_with_devices_of_its_pod_only() {
        let pod = with_assignment(gpu_pod("a", 2), &[("main", &["GPU-0", "GPU-1"])]);
        let mut ledger = granted(&pod, &[("main", &["GPU-0", "GPU-1"])]);
        let key = ledger.iter().next().unwrap().key();
        ledger.repeat(&key, Vec::new());
        let may = |ids: &[&str]| {
            let ids: Vec<String> = ids.iter().map(|id| (*id).to_owned()).collect();
            may_start(GPU, &ids, &ledger, &pods(&[&pod]))
        };
        assert_eq!(may(&["GPU-0", "GPU-1"]), Ok(()));
        assert!(may(&["GPU-0", "GPU-2"]).is_err());
        assert!(may(&["GPU-2"]).is_err());
    }

    #[test]
    fn fewer_ids_than_devices_agree_where_they_are_among_them() {
        let pod = with_assignment(gpu_pod("a", 1), &[("main", &["GPU-0", "GPU-1"])]);
        let may = |id: &str| {
            let mut ledger = granted(&pod, &[("main", &["GPU-0", "GPU-1"])]);
            let key = ledger.iter().next().unwrap().key();
            ledger.repeat(&key, vec![id.into()]);
            may_start(GPU, &[id.to_owned()], &ledger, &pods(&[&pod]))
        };
        assert_eq!(may("GPU-1"), Ok(()));
        assert!(may("GPU-2").unwrap_err().contains("committed GPU-2"));
        let mut ledger = granted(&pod, &[("main", &["GPU-0", "GPU-1"])]);
        let key = ledger.iter().next().unwrap().key();
        let parts = ["GPU-0::0", "GPU-0::1"];
        ledger.repeat(&key, parts.map(Box::from).to_vec());
        assert!(may_start(GPU, &parts.map(str::to_owned), &ledger, &pods(&[&pod])).is_err(), "as many, of one device");
        let ledger = granted(&pod, &[("main", &["GPU-0", "GPU-1"])]);
        let found = |id| verify(NODE, &pods(&[&pod]), &listing(&[("a", "main", GPU, &[id])]), &ledger, &inventory(4));
        assert_eq!(found("GPU-1"), []);
        assert_eq!(found("GPU-2").len(), 1);
    }

    #[test]
    fn containers_start_with_the_ids_of_one_call_and_its_devices() {
        let gpu = [(GPU, 1)];
        let two = pod("a", vec![container("one", App, &gpu), container("two", App, &gpu)]);
        let two = with_assignment(two, &[("one", &["GPU-0"]), ("two", &["GPU-1"])]);
        let mut ledger = granted(&two, &[("one", &["GPU-0"]), ("two", &["GPU-1"])]);
        let both = ["GPU-0".to_owned(), "GPU-1".to_owned()];
        assert!(may_start(GPU, &both, &ledger, &pods(&[&two])).is_err(), "no call was for both");
        // Another pod was served under the same ids: which of them starts is not said.
        let other = with_assignment(gpu_pod("b", 1), &[("main", &["GPU-5"])]);
        grant(&mut ledger, &other, &[("main", &["GPU-5"])]);
        ledger.repeat(&EntryKey::new(&other.pod.uid, "main", GPU), vec!["GPU-0".into()]);
        assert_eq!(may_start(GPU, &["GPU-0".to_owned()], &ledger, &pods(&[&two, &other])), Ok(()));
    }

    #[test]
    fn the_share_that_starts_is_found_by_its_ids_before_its_device() {
        let entry = |name: &str, resource: &str, ids: &[&str], device: DeviceEntry| {
            let pod = gpu_pod(name, 1);
            let slot = ContainerSlot::of(&pod, "main");
            let ids = ids.iter().map(|id| Box::from(*id)).collect();
            let served = vec![(DeviceType::Gpu, device)];
            LedgerEntry::new(&pod.pod, "main", resource, slot, ids, served, CallState::Listed)
        };
        let half = || share_of("GPU-0", 50, 50, 40 << 30);
        let rebuilt = entry("z-rebuilt", GPU_CORE, &[], half());
        let served = entry("a-served", GPU_CORE, &["GPU-0::0"], half());
        let found = |entries: &[&LedgerEntry]| {
            let ledger = Ledger::of(entries.iter().map(|entry| (*entry).clone()));
            let found = shares_to_start(GPU_CORE, &["GPU-0::0".to_owned()], &ledger);
            let names: Vec<String> = found.iter().map(|entry| entry.pod.key.name.to_string()).collect();
            names.join(" ")
        };
        assert_eq!(found(&[&rebuilt, &served]), "a-served");
        assert_eq!(found(&[&rebuilt]), "z-rebuilt");
        let others = [
            entry("ids", GPU_CORE, &["GPU-0::9"], half()),
            entry("whole", GPU_CORE, &["GPU-0::0"], whole("GPU-0")),
            entry("name", GPU, &["GPU-0::0"], half()),
        ];
        assert_eq!(found(&others.each_ref()), "");
    }

    #[test]
    fn none_runs_of_containers_that_follow_each_other_with_the_same_ids() {
        let entry = |name: &str, container: &str, init: bool| {
            let pod = gpu_pod(name, 1);
            let slot = ContainerSlot { order: 0, init, sidecar: false };
            let served = vec![(DeviceType::Gpu, share_of("GPU-0", 50, 50, 40 << 30))];
            LedgerEntry::new(&pod.pod, container, GPU_CORE, slot, vec!["GPU-0::0".into()], served, CallState::Listed)
        };
        let (main, init) = (entry("a", "main", false), entry("a", "init", true));
        assert!(none_runs(&[&main]) && none_runs(&[&init, &main]));
        assert!(!none_runs(&[&main, &entry("a", "other", false)]), "both may run");
        assert!(!none_runs(&[&main, &entry("b", "main", false)]), "which of them starts is not said");
        assert!(!none_runs(&[&LedgerEntry { ids: Vec::new(), ..main.clone() }]), "it may be any one of the GPU");
        let left = Leaving { at: jiff::Timestamp::UNIX_EPOCH, since: Duration::ZERO, last: LastSeen::Running };
        assert!(!none_runs(&[&LedgerEntry { state: CallState::Leaving(left), ..main }]), "its processes may run on");
    }
}

//! Does everybody agree? Compares PodResources, the ledger and the pods, after the fact.

use std::collections::BTreeSet;

use super::inventory::NodeInventory;
use super::ledger::{Ledger, Slot};
use super::listing::Listing;
use super::notice::Notice;
use super::pods::NodePods;
use crate::contract::{DeviceId, PodUid};
use crate::decide::pod::Phase;

/// Events that `verify` gives, by reason.
pub const DIVERGENCE: &str = "DeviceDivergence";
/// A pod that runs without the devices that it asked for: the kubelet made no call.
pub const ADMITTED_WITHOUT_DEVICES: &str = "AdmittedWithoutDevices";

/// Compares what the kubelet lists with what was served; every finding is one event on the pod.
pub fn verify(
    node: &str,
    pods: &NodePods,
    listing: &Listing,
    ledger: &Ledger,
    inventory: &NodeInventory,
) -> Vec<Notice> {
    let mut found = Vec::new();
    for entry in ledger.iter().filter(|entry| !entry.slot.init && !entry.served.is_empty()) {
        let listed: BTreeSet<DeviceId> = listing
            .ids(&entry.pod.key, &entry.container, &entry.resource)
            .filter_map(|id| DeviceId::of_kubelet_id(id).ok())
            .collect();
        let served: BTreeSet<DeviceId> = entry.devices().cloned().collect();
        if pods.by_uid(&entry.pod.uid).is_some() && !listed.is_empty() && listed != served {
            let print = |ids: &BTreeSet<DeviceId>| ids.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
            let note = format!(
                "container {}, {}: the kubelet holds {}, the container was given {}",
                entry.container,
                entry.resource,
                print(&listed),
                print(&served)
            );
            found.push(Notice::new(entry.pod.clone(), DIVERGENCE, note));
        }
    }
    found.extend(without_devices(node, pods, listing, ledger, inventory));
    found
}

/// Pods past their admission for which no call came.
fn without_devices<'a>(
    node: &'a str,
    pods: &'a NodePods,
    listing: &'a Listing,
    ledger: &'a Ledger,
    inventory: &'a NodeInventory,
) -> impl Iterator<Item = Notice> + 'a {
    let here = pods.iter().filter(move |pod| pod.node.as_deref() == Some(node) && !pod.phase.is_terminal());
    here.filter(|pod| pod.phase == Phase::Running || pod.containers.iter().any(|container| container.running))
        .filter_map(move |pod| {
            let call = pod.expected_calls(|name| inventory.registers(name)).find(|call| {
                let listed = listing.ids(&pod.pod.key, &call.container.name, call.resource).next().is_some();
                !Slot::of(pod, &call.container.name).init
                    && !listed
                    && ledger.asked(&pod.pod.uid, &call.container.name, call.resource) == 0
            })?;
            let note = format!(
                "the kubelet started the pod without asking for {} of container {}: no device plugin served that name \
                 when it was admitted; delete and re-create the pod",
                call.resource, call.container.name
            );
            Some(Notice::new(pod.pod.clone(), ADMITTED_WITHOUT_DEVICES, note))
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
    if holders.is_empty() {
        return Err(format!(
            "{resource}: no container was given these devices ({}); it is not started",
            ids.join(", ")
        ));
    }
    let chosen: BTreeSet<DeviceId> = ids.iter().filter_map(|id| DeviceId::of_kubelet_id(id).ok()).collect();
    let agrees = |entry: &&&super::ledger::Entry| {
        entry.served.is_empty() || entry.devices().cloned().collect::<BTreeSet<_>>() == chosen
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

#[cfg(test)]
mod tests {
    use super::super::testing::{NODE, gpu_pod, granted, inventory, listing, pods, with_assignment};
    use super::*;
    use crate::contract::key::NVIDIA_GPU as GPU;

    #[test]
    fn a_kubelet_that_holds_other_devices_than_were_served_is_told() {
        let pod = with_assignment(gpu_pod("a", 1), &[("main", &["GPU-0"])]);
        let ledger = granted(&pod, &[("main", &["GPU-0"])]);
        let reasons = |rows: &[(&str, &str, &str, &[&str])]| -> Vec<_> {
            let found = verify(NODE, &pods(&[&pod]), &listing(rows), &ledger, &inventory(4));
            found.into_iter().map(|notice| notice.reason).collect()
        };
        assert_eq!(reasons(&[("a", "main", GPU, &["GPU-1"])]), [DIVERGENCE]);
        assert_eq!(reasons(&[("a", "main", GPU, &["GPU-0"])]), Vec::<&str>::new());
    }

    #[test]
    fn a_pod_that_runs_without_its_devices_is_told() {
        let mut pod = with_assignment(gpu_pod("a", 1), &[("main", &["GPU-0"])]);
        let rows: &[(&str, &str, &str, &[&str])] = &[("a", "main", GPU, &[])];
        let find = |pod: &_| verify(NODE, &pods(&[pod]), &listing(rows), &Ledger::default(), &inventory(4));
        assert_eq!(find(&pod), []);
        pod.containers[0].running = true;
        assert_eq!(find(&pod)[0].reason, ADMITTED_WITHOUT_DEVICES);
    }

    #[test]
    fn a_start_with_other_devices_than_the_assignment_is_refused() {
        let pod = with_assignment(gpu_pod("a", 1), &[("main", &["GPU-0"])]);
        let ledger = granted(&pod, &[("main", &["GPU-0"])]);
        let all = pods(&[&pod]);
        assert_eq!(may_start(GPU, &["GPU-0".to_owned()], &ledger, &all), Ok(()));
        assert!(may_start(GPU, &["GPU-1".to_owned()], &ledger, &all).is_err());
    }
}

//! Which device is behind each id that the kubelet has given away. It chooses ids itself, while devices are the scheduler's choice: an id
//! stands for a device, and not always for the one whose name it has.

use std::collections::{BTreeMap, BTreeSet};
use std::iter::repeat_n;

use super::assignment::kind_of;
use super::ledger::LedgerEntry;
use baton_contract::DeviceId;

/// The device behind an id, by resource name and id.
pub type DevicesBehind = BTreeMap<Box<str>, BTreeMap<Box<str>, DeviceId>>;

/// Of all ids that containers have. A device has as many of its container's ids as each other one, its own first.
pub fn devices_behind<'a>(entries: impl IntoIterator<Item = &'a LedgerEntry>) -> DevicesBehind {
    let mut entries: Vec<&LedgerEntry> = entries.into_iter().filter(|entry| entry.leaving().is_none()).collect();
    // The kubelet gives ids of init containers on.
    entries.sort_by_key(|entry| (!entry.slot.init, entry.seq));
    let container = |entry: &'a LedgerEntry| (&entry.pod.uid, &entry.container, kind_of(&entry.resource));
    // A name that only accompanies another one has that one's devices.
    let mut devices: BTreeMap<_, BTreeSet<&DeviceId>> = BTreeMap::new();
    for entry in &entries {
        devices.entry(container(entry)).or_default().extend(entry.in_use().map(|(_, device)| &device.id));
    }
    let mut behind = DevicesBehind::new();
    for entry in entries {
        let devices = &devices[&container(entry)];
        let Some(each) = entry.ids.len().checked_div(devices.len()).filter(|each| *each > 0) else { continue };
        let mut left: BTreeMap<&DeviceId, usize> = devices.iter().map(|device| (*device, each)).collect();
        let is_own = |id: &&str| {
            let own = DeviceId::of_kubelet_id(id).ok().and_then(|own| left.get_mut(&own)).filter(|left| **left > 0);
            own.map(|left| *left -= 1).is_some()
        };
        let (own, other): (Vec<_>, Vec<_>) = entry.ids.iter().map(|id| &**id).partition(is_own);
        let spare = left.into_iter().flat_map(|(device, left)| repeat_n(device.clone(), left));
        let of_name = behind.entry(entry.resource.clone()).or_default();
        of_name.extend(other.into_iter().map(Box::from).zip(spare));
        of_name.extend(own.into_iter().filter_map(|id| Some((id.into(), DeviceId::of_kubelet_id(id).ok()?))));
    }
    behind
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::handoff::testing::{gpu_pod, whole};
    use crate::handoff::{CallState, ContainerSlot, Ledger};
    use baton_contract::{DeviceType, key};

    fn entry(pod: &str, resource: &str, ids: &[String], devices: &[&str]) -> LedgerEntry {
        let served = devices.iter().map(|device| (DeviceType::Gpu, whole(device))).collect();
        let (pod, ids) = (gpu_pod(pod, 1), ids.iter().map(|id| id.as_str().into()).collect());
        let slot = ContainerSlot::of(&pod, "main");
        LedgerEntry::new(&pod.pod, "main", resource, slot, ids, served, CallState::Answered)
    }

    #[test]
    fn an_id_stands_for_a_device_of_its_container_and_first_for_its_own() {
        let ids = |ids: &[&str]| ids.iter().map(|id| (*id).to_owned()).collect::<Vec<_>>();
        let shares = |gpu: &str, count| (0..count).map(|unit| format!("{gpu}::{unit}")).collect::<Vec<_>>();
        let ledger = Ledger::of([
            entry("a", key::NVIDIA_GPU, &ids(&["GPU-0", "GPU-1"]), &["GPU-1", "GPU-2"]),
            entry("b", key::GPU_CORE, &[shares("GPU-3", 30), shares("GPU-4", 20)].concat(), &["GPU-3"]),
            entry("b", key::GPU_MEMORY_RATIO, &shares("GPU-5", 50), &[]),
            entry("c", key::GPU, &[shares("GPU-6", 50), shares("GPU-7", 150)].concat(), &["GPU-6", "GPU-7"]),
            entry("d", key::NVIDIA_GPU, &[], &["GPU-8"]),
            // Rebuilt: the annotation says another device than the answer.
            LedgerEntry {
                answer: Some(vec![1]),
                unnamed: [DeviceId::parse("GPU-9").unwrap()].into(),
                ..entry("e", key::NVIDIA_GPU, &ids(&["GPU-9"]), &["GPU-9", "GPU-10"])
            },
            // The kubelet gave the id of an init container on, which comes last by its name.
            LedgerEntry {
                container: "warm".into(),
                slot: ContainerSlot { order: 0, init: true, sidecar: false },
                ..entry("f", key::NVIDIA_GPU, &ids(&["GPU-11"]), &["GPU-11"])
            },
            entry("f", key::NVIDIA_GPU, &ids(&["GPU-11"]), &["GPU-12"]),
        ]);
        let behind = devices_behind(ledger.iter());
        let of = |name: &str, id: &str| behind[name].get(id).map(ToString::to_string).unwrap_or_default();
        assert_eq!((&*of(key::NVIDIA_GPU, "GPU-1"), &*of(key::NVIDIA_GPU, "GPU-0")), ("GPU-1", "GPU-2"));
        assert_eq!((&*of(key::GPU_CORE, "GPU-3::7"), &*of(key::GPU_CORE, "GPU-4::7")), ("GPU-3", "GPU-3"));
        assert_eq!(of(key::GPU_MEMORY_RATIO, "GPU-5::7"), "GPU-3", "it accompanies the other name");
        assert_eq!((&*of(key::NVIDIA_GPU, "GPU-9"), &*of(key::NVIDIA_GPU, "GPU-11")), ("GPU-10", "GPU-12"));
        let count = |device: &str| behind[key::GPU].values().filter(|of| of.as_str() == device).count();
        assert_eq!((count("GPU-6"), count("GPU-7"), &*of(key::GPU, "GPU-6::0")), (100, 100, "GPU-6"));
    }
}

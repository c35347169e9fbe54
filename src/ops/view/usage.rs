//! Which pods hold which devices: by their assignments, by the node daemons' word where that differs, and by what the Device object
//! says of pods without one.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::Serialize;

use super::snapshot::Snapshot;
use crate::say::amount;
use baton_cluster::agent_lease::LightLease;
use baton_contract::allocation::Entries;
use baton_contract::inventory::Device;
use baton_contract::{AgentStatus, DeviceEntry, DeviceType, PodKey, PodUid, key};
use baton_decide::pod::HandoffPod;
use baton_decide::world::still_used;

/// A pod that holds a device or a part of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct DeviceHolder {
    /// `namespace/name`.
    pub pod: PodKey,
    /// Percent of the device: of compute or memory, whichever is more; 100 for a MIG device.
    pub percent: i64,
    #[serde(skip)]
    pub uid: PodUid,
    /// When it was created, as far as the API server has it.
    #[serde(skip)]
    pub created: Option<Timestamp>,
    /// It has left the API server and uses the device still: in words.
    #[serde(skip)]
    pub leaving: Option<String>,
}

/// The holders of every device, by node and id.
#[derive(Debug, Default)]
pub struct DeviceHolders(BTreeMap<Box<str>, BTreeMap<Box<str>, Vec<DeviceHolder>>>);

impl DeviceHolders {
    pub fn of(snapshot: &Snapshot) -> Self {
        let status = |node: &str| snapshot.leases.get(&AgentStatus::lease_name(node))?.status();
        let mut exceptions: BTreeMap<&str, _> = BTreeMap::new();
        let mut usage = Self::default();
        for (key, pod) in &snapshot.pods {
            let Some(node) = pod.node.as_deref().filter(|_| pod.is_live()) else { continue };
            let otherwise = exceptions.entry(node).or_insert_with(|| status(node)?.exceptions);
            for entry in held_by(pod, otherwise.as_ref()).values().flatten() {
                usage.put(node, entry.id.as_str(), key, &pod.pod.uid, percent(entry)).created = Some(pod.created);
            }
        }
        for (node, uid, pod, held) in snapshot.leaving() {
            let key = PodKey::new(&pod.namespace, &pod.name);
            for entry in held.values().flatten() {
                let held = usage.put(&node, entry.id.as_str(), &key, &uid, percent(entry));
                held.leaving = Some(still_used(&pod));
            }
        }
        snapshot.devices.iter().for_each(|(node, device)| usage.published(node, device));
        usage
    }

    /// Devices of pods without an assignment; each is held whole.
    fn published(&mut self, node: &str, device: &Device) {
        let held = device.status.iter().flat_map(|status| &status.allocations);
        for (kind, entry) in held.flat_map(|held| held.entries.iter().map(|entry| (&held.kind, entry))) {
            let (pod, uid) = (PodKey::new(&entry.namespace, &entry.name), PodUid::new(&entry.uuid));
            let named = |minor: i32, of: &DeviceType| of == kind && entry.minors.contains(&minor);
            for info in device.spec.devices.iter().filter(|info| named(info.minor, &info.kind)) {
                self.put(node, info.id.as_str(), &pod, &uid, key::WHOLE);
            }
        }
    }

    fn put(&mut self, node: &str, id: &str, pod: &PodKey, uid: &PodUid, percent: i64) -> &mut DeviceHolder {
        let holders = self.0.entry(node.into()).or_default().entry(id.into()).or_default();
        let at = holders.iter().position(|holder| holder.uid == *uid).unwrap_or(holders.len());
        if at == holders.len() {
            holders.push(DeviceHolder { pod: pod.clone(), percent, uid: uid.clone(), created: None, leaving: None });
        }
        holders[at].percent = holders[at].percent.max(percent);
        &mut holders[at]
    }

    pub fn holders(&self, node: &str, id: &str) -> &[DeviceHolder] {
        self.0.get(node).and_then(|devices| devices.get(id)).map_or(&[], Vec::as_slice)
    }

    /// The pods that have left the API server and use the device still, in words.
    pub fn leaving(&self, node: &str, id: &str) -> impl Iterator<Item = &str> {
        self.holders(node, id).iter().filter_map(|holder| holder.leaving.as_deref())
    }

    /// Percent of the device that is held.
    pub fn percent(&self, node: &str, id: &str) -> i64 {
        self.holders(node, id).iter().map(|holder| holder.percent).sum()
    }
}

/// What a bound pod has: what its node's daemon says of it, else what its assignment promises.
fn held_by(pod: &HandoffPod, exceptions: Option<&BTreeMap<PodUid, Entries>>) -> Entries {
    let otherwise = exceptions.and_then(|pods| pods.get(&pod.pod.uid)).cloned();
    otherwise.or_else(|| Some(pod.promise()?.devices)).unwrap_or_default()
}

/// The same of one pod.
pub fn entries_of(snapshot: &Snapshot, pod: &HandoffPod) -> Entries {
    let lease = pod.node.as_deref().and_then(|node| snapshot.leases.get(&AgentStatus::lease_name(node)));
    held_by(pod, lease.and_then(LightLease::status).and_then(|status| status.exceptions).as_ref())
}

/// Devices in the words of requests: `2 GPUs, 50% of a GPU, 1 NIC`.
pub fn amounts(devices: &Entries) -> String {
    let word = |kind, entry: &DeviceEntry| match kind {
        &DeviceType::Gpu if entry.id.as_str().starts_with("MIG-") => "MIG device".to_owned(),
        DeviceType::Gpu => "GPU".to_owned(),
        DeviceType::Rdma => "NIC".to_owned(),
        DeviceType::Other(name) => name.to_string(),
    };
    let mut counts = BTreeMap::<(&DeviceType, String, Reverse<i64>), usize>::new();
    for (kind, entries) in devices {
        for entry in entries {
            *counts.entry((kind, word(kind, entry), Reverse(percent(entry)))).or_default() += 1;
        }
    }
    let words = |((_, what, Reverse(percent)), count): ((&DeviceType, String, Reverse<i64>), usize)| {
        let what = what.as_str();
        match (percent, count) {
            (key::WHOLE.., count) => amount(count, what),
            (percent, 1) => format!("{percent}% of a {what}"),
            (percent, count) => format!("{count} × {percent}% of a {what}"),
        }
    };
    counts.into_iter().map(words).collect::<Vec<_>>().join(", ")
}

/// An entry without a known amount (MIG) is the whole device.
pub fn percent(entry: &DeviceEntry) -> i64 {
    let amounts = [key::GPU_CORE, key::GPU_MEMORY_RATIO, key::RDMA].map(|name| entry.amount(name));
    amounts.into_iter().max().filter(|most| *most > 0).unwrap_or(key::WHOLE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_counted_and_parts_of_them_said_as_parts() {
        let said = |text: &str| amounts(&baton_contract::DeviceAllocation::parse(text).unwrap().devices);
        let part = |minor: i32, core: i64| {
            format!(r#"{{"minor":{minor},"id":"GPU-{minor}","resources":{{"koordinator.sh/gpu-core":"{core}"}}}}"#)
        };
        let nic = r#"{"minor":0,"id":"0000:10:00.0","resources":{"koordinator.sh/rdma":"100"}}"#;
        let gpus = [part(0, 100), part(1, 50), part(2, 100)].join(",");
        assert_eq!(said(&format!(r#"{{"gpu":[{gpus}],"rdma":[{nic}]}}"#)), "2 GPUs, 50% of a GPU, 1 NIC");
        let halves = [part(0, 50), part(1, 50)].join(",");
        assert_eq!(said(&format!(r#"{{"gpu":[{halves}]}}"#)), "2 × 50% of a GPU");
        assert_eq!(said("{}"), "");
    }
}

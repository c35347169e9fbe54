//! The device manager's state: which resources are known, how healthy their devices are and who holds them.
//!
//! Pure: no I/O, no clock (times are monotonic [`Duration`]s given as values); randomness comes in as a generator, because a
//! real kubelet iterates over hash maps where it chooses.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::grants::{Grant, Grants, Ids, NO_NUMA};
use baton_contract::deviceplugin::{ContainerAllocateResponse, Device, DevicePluginOptions};
use baton_runtime::clock;

/// The word for a healthy device on the wire.
pub const HEALTHY: &str = "Healthy";

/// What the device manager knows of a resource's plugin.
#[derive(Debug, Clone, Default)]
pub struct Endpoint {
    /// When its stream ended, or when the kubelet started without it; `None` while connected.
    pub stopped_at: Option<Duration>,
    /// The plugin's options; `None` for a resource known from the checkpoint only.
    pub options: Option<DevicePluginOptions>,
}

/// Devices by their last reported health.
#[derive(Debug, Clone, Default)]
pub struct Health {
    /// Devices that may be handed out.
    pub healthy: Ids,
    /// Devices that count for capacity only.
    pub unhealthy: Ids,
}

/// Capacity and allocatable of one resource.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Amount {
    /// All devices.
    pub capacity: usize,
    /// Healthy devices.
    pub allocatable: usize,
}

/// The state of the device manager.
#[derive(Debug, Clone, Default)]
pub struct Devices {
    /// Known resources. A resource is known from its first ListAndWatch message (or the checkpoint) until its grace ends.
    pub health: BTreeMap<String, Health>,
    /// Plugins by resource.
    pub endpoints: BTreeMap<String, Endpoint>,
    /// The last full device list of each resource, with topology and health.
    pub known: BTreeMap<String, BTreeMap<String, Device>>,
    /// Devices handed out or being handed out.
    pub allocated: BTreeMap<String, Ids>,
    /// Who holds what.
    pub grants: Grants,
    /// Monotonic time at which the plugin's answer was there, by pod uid, container and resource; not in the checkpoint.
    pub answered: BTreeMap<(String, String, String), Duration>,
}

impl Devices {
    /// The state of a kubelet that has just read its checkpoint: resources are known but empty, their plugins stopped.
    pub fn restore(grants: Grants, registered: &BTreeSet<String>, now: Duration) -> Self {
        let mut devices = Self { allocated: grants.in_use(), grants, ..Self::default() };
        for resource in registered {
            devices.health.insert(resource.clone(), Health::default());
            devices.endpoints.insert(resource.clone(), Endpoint { stopped_at: Some(now), options: None });
        }
        devices
    }

    /// A plugin has connected and sent its options.
    pub fn connected(&mut self, resource: &str, options: DevicePluginOptions) {
        self.endpoints.insert(resource.to_owned(), Endpoint { stopped_at: None, options: Some(options) });
    }

    /// A plugin's stream has ended: its devices are unhealthy at once.
    pub fn disconnected(&mut self, resource: &str, now: Duration) {
        if let Some(endpoint) = self.endpoints.get_mut(resource) {
            endpoint.stopped_at = Some(now);
            let health = self.health.entry(resource.to_owned()).or_default();
            let healthy = std::mem::take(&mut health.healthy);
            health.unhealthy.extend(healthy);
        }
    }

    /// A ListAndWatch message: the full list, replacing the last one. Returns the uids whose devices changed health.
    pub fn listed(&mut self, resource: &str, devices: Vec<Device>) -> BTreeSet<String> {
        let old = self.known.remove(resource).unwrap_or_default();
        let mut health = Health::default();
        let mut changed = Ids::new();
        let mut known = BTreeMap::new();
        for device in devices {
            if device.health == HEALTHY { &mut health.healthy } else { &mut health.unhealthy }
                .insert(device.id.clone());
            if old.get(&device.id).is_none_or(|before| before.health != device.health) {
                changed.insert(device.id.clone());
            }
            known.insert(device.id.clone(), device);
        }
        self.health.insert(resource.to_owned(), health);
        self.known.insert(resource.to_owned(), known);
        self.grants
            .iter()
            .filter(|(_, _, name, grant)| *name == resource && !grant.ids().is_disjoint(&changed))
            .map(|(uid, ..)| uid.to_owned())
            .collect()
    }

    /// Whether a name is a device plugin resource: known now, or with devices handed out.
    pub fn is_plugin_resource(&self, resource: &str) -> bool {
        self.health.contains_key(resource) || self.allocated.contains_key(resource)
    }

    /// Capacity and allocatable of all resources, and the names dropped now because their plugin stayed away for `grace`.
    pub fn amounts(&mut self, now: Duration, grace: Duration) -> (BTreeMap<String, Amount>, Vec<String>) {
        let gone: Vec<String> = self
            .health
            .keys()
            .filter(|name| {
                self.endpoints
                    .get(*name)
                    .is_none_or(|endpoint| endpoint.stopped_at.is_some_and(|at| now.saturating_sub(at) > grace))
            })
            .cloned()
            .collect();
        for name in &gone {
            self.health.remove(name);
            self.endpoints.remove(name);
        }
        let amounts = self
            .health
            .iter()
            .map(|(name, health)| {
                let allocatable = health.healthy.len();
                (name.clone(), Amount { capacity: allocatable + health.unhealthy.len(), allocatable })
            })
            .collect();
        (amounts, gone)
    }

    /// Frees what pods outside `active` hold.
    pub fn free_all_but(&mut self, active: &BTreeSet<String>) {
        let gone: Vec<String> = self.grants.uids().difference(active).cloned().collect();
        if gone.is_empty() {
            return;
        }
        for uid in gone {
            self.grants.remove(&uid);
            self.answered.retain(|(pod, ..), _| *pod != uid);
        }
        self.allocated = self.grants.in_use();
    }

    /// Takes back what a failed allocation had reserved.
    pub fn forget_reservations(&mut self) {
        self.allocated = self.grants.in_use();
    }

    /// Records an answered allocation.
    pub fn grant(
        &mut self,
        uid: &str,
        container: &str,
        resource: &str,
        ids: &[String],
        answer: ContainerAllocateResponse,
    ) {
        let mut by_numa: BTreeMap<i64, Vec<String>> = BTreeMap::new();
        for id in ids {
            let nodes = self.numa_nodes(resource, id);
            if nodes.is_empty() {
                by_numa.entry(NO_NUMA).or_default().push(id.clone());
            }
            for node in nodes {
                by_numa.entry(node).or_default().push(id.clone());
            }
        }
        self.grants.insert(uid, container, resource, Grant { by_numa, answer });
        self.answered.insert((uid.to_owned(), container.to_owned(), resource.to_owned()), clock::mono());
    }

    /// The NUMA nodes that a device reports.
    pub fn numa_nodes(&self, resource: &str, id: &str) -> Vec<i64> {
        let device = self.known.get(resource).and_then(|devices| devices.get(id));
        let topology = device.and_then(|device| device.topology.as_ref());
        topology.map(|topology| topology.nodes.iter().map(|node| node.id).collect()).unwrap_or_default()
    }

    /// Health of a granted device as it stands in a pod's status: healthy unless the last list says otherwise.
    pub fn is_healthy(&self, resource: &str, id: &str) -> bool {
        self.known.get(resource).and_then(|devices| devices.get(id)).is_none_or(|device| device.health == HEALTHY)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device(id: &str, health: &str) -> Device {
        Device { id: id.into(), health: health.into(), topology: None }
    }

    fn two_devices() -> Devices {
        let mut devices = Devices::default();
        devices.connected("a.b/c", DevicePluginOptions::default());
        devices.listed("a.b/c", vec![device("0", HEALTHY), device("1", "Unhealthy")]);
        devices
    }

    const GRACE: Duration = Duration::from_secs(300);

    #[test]
    fn an_unhealthy_device_counts_for_capacity_only() {
        let (amounts, gone) = two_devices().amounts(Duration::ZERO, GRACE);
        assert_eq!(amounts["a.b/c"], Amount { capacity: 2, allocatable: 1 });
        assert!(gone.is_empty());
    }

    #[test]
    fn an_ended_stream_zeroes_allocatable_and_drops_the_resource_after_its_grace() {
        let mut devices = two_devices();
        devices.disconnected("a.b/c", Duration::from_secs(10));
        let (amounts, _) = devices.amounts(Duration::from_secs(310), GRACE);
        assert_eq!(amounts["a.b/c"], Amount { capacity: 2, allocatable: 0 });
        let (amounts, gone) = devices.amounts(Duration::from_secs(311), GRACE);
        assert!(amounts.is_empty());
        assert_eq!(gone, ["a.b/c"]);
        assert!(!devices.is_plugin_resource("a.b/c"));
    }

    #[test]
    fn a_resource_is_not_known_before_its_first_list() {
        let mut devices = Devices::default();
        devices.connected("a.b/c", DevicePluginOptions::default());
        assert!(!devices.is_plugin_resource("a.b/c"));
    }

    #[test]
    fn a_restored_resource_is_known_but_empty() {
        let registered = BTreeSet::from(["a.b/c".to_owned()]);
        let mut devices = Devices::restore(Grants::default(), &registered, Duration::ZERO);
        assert!(devices.is_plugin_resource("a.b/c"));
        assert_eq!(devices.amounts(Duration::ZERO, GRACE).0["a.b/c"], Amount { capacity: 0, allocatable: 0 });
    }

    #[test]
    fn pods_that_are_gone_free_their_devices() {
        let mut devices = two_devices();
        devices.grant("uid", "main", "a.b/c", &["0".into()], ContainerAllocateResponse::default());
        devices.forget_reservations();
        assert!(devices.allocated["a.b/c"].contains("0"));
        devices.free_all_but(&BTreeSet::new());
        assert!(devices.allocated.is_empty());
    }

    #[test]
    fn a_health_change_names_the_pods_it_touches() {
        let mut devices = two_devices();
        devices.grant("uid", "main", "a.b/c", &["0".into()], ContainerAllocateResponse::default());
        let touched = devices.listed("a.b/c", vec![device("0", "Unhealthy"), device("1", "Unhealthy")]);
        assert_eq!(touched, BTreeSet::from(["uid".to_owned()]));
        assert!(devices.listed("a.b/c", vec![device("0", "Unhealthy"), device("1", HEALTHY)]).is_empty());
    }
}

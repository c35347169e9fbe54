//! What the kubelet's PodResources said at one moment.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use baton_contract::{DeviceId, PodKey, PodUid};

/// The answer of `PodResources.List`, or why there is none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PodResources {
    /// The kubelet answered.
    Listed(PodListing),
    /// This kubelet has none: no socket, or no such call.
    Missing,
    /// It did not list its pods in time: it throttles its callers, or fails.
    Silent,
}

/// Every pod that the kubelet counts as active. No uids; two pods of one name may be listed while one replaces the other.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PodListing {
    /// In the kubelet's (random) order.
    pub pods: Vec<ListedPod>,
    /// The answers that the kubelet has stored and gives to a container each time it starts: what the container really has. Read where
    /// a ledger is rebuilt; empty where the kubelet's checkpoint cannot be read.
    pub answers: BTreeMap<EntryKey, StoredAnswer>,
}

/// One call of a container. The kubelet stores its answer, the ledger what it gave, by this key.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct EntryKey {
    /// Pod.
    pub uid: PodUid,
    /// Container.
    pub container: Box<str>,
    /// Resource name whose socket was called.
    pub resource: Box<str>,
}

impl EntryKey {
    /// The key of one call.
    pub fn new(uid: &PodUid, container: &str, resource: &str) -> Self {
        Self { uid: uid.clone(), container: container.into(), resource: resource.into() }
    }
}

/// An answer in the kubelet's checkpoint.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct StoredAnswer {
    /// Devices that it names. Empty where it names none, or not by their ids.
    pub devices: BTreeSet<DeviceId>,
    /// The ids that the kubelet asked for.
    pub ids: BTreeSet<Box<str>>,
    /// As it was given.
    pub encoded: Vec<u8>,
}

/// Resource name → kubelet ids, without duplicates.
pub type ListedResources = BTreeMap<Box<str>, BTreeSet<Box<str>>>;

/// Container name → its devices.
pub type ListedContainers = BTreeMap<Box<str>, ListedResources>;

/// One active pod. Plain init containers are not listed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListedPod {
    /// Namespace and name.
    pub key: PodKey,
    /// By container name.
    pub containers: ListedContainers,
}

impl ListedPod {
    /// Ids of `resource` in `container`; `None` when there are none.
    pub fn ids(&self, container: &str, resource: &str) -> Option<&BTreeSet<Box<str>>> {
        self.containers.get(container)?.get(resource).filter(|ids| !ids.is_empty())
    }

    /// The container has devices of any resource.
    pub fn has_devices(&self, container: &str) -> bool {
        self.containers.get(container).is_some_and(|resources| resources.values().any(|ids| !ids.is_empty()))
    }

    /// Some container has no device of `resource`: this pod may be the one whose turn it is.
    pub fn lacks(&self, resource: &str) -> bool {
        self.containers.is_empty() || self.containers.keys().any(|container| self.ids(container, resource).is_none())
    }
}

impl PodListing {
    /// Pods of that name: two when one replaces the other.
    pub fn of<'a>(&'a self, key: &'a PodKey) -> impl Iterator<Item = &'a ListedPod> {
        self.pods.iter().filter(move |pod| pod.key == *key)
    }

    /// The pod is active.
    pub fn lists(&self, key: &PodKey) -> bool {
        self.of(key).next().is_some()
    }

    /// Ids of one container and resource, over all pods of that name.
    pub fn ids<'a>(
        &'a self,
        key: &'a PodKey,
        container: &'a str,
        resource: &'a str,
    ) -> impl Iterator<Item = &'a str> + 'a {
        self.of(key).filter_map(move |pod| pod.ids(container, resource)).flatten().map(|id| &**id)
    }
}

impl PodResources {
    /// The listing, if there is one.
    pub fn listing(&self) -> Option<&PodListing> {
        match self {
            Self::Listed(listing) => Some(listing),
            Self::Missing | Self::Silent => None,
        }
    }
}

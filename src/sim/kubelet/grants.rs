//! Which devices each container holds, with the plugin's answer: what the kubelet's checkpoint keeps.

use std::collections::{BTreeMap, BTreeSet};

use baton_contract::deviceplugin::ContainerAllocateResponse;

/// Device ids of one resource.
pub type Ids = BTreeSet<String>;

/// The NUMA key of devices that report no topology.
pub const NO_NUMA: i64 = -1;

/// What one container holds of one resource.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Grant {
    /// Device ids by NUMA node ([`NO_NUMA`] without topology). A device of two nodes is listed under both.
    pub by_numa: BTreeMap<i64, Vec<String>>,
    /// The plugin's answer, replayed at every container start without another call.
    pub answer: ContainerAllocateResponse,
}

impl Grant {
    /// All ids, each once.
    pub fn ids(&self) -> Ids {
        self.by_numa.values().flatten().cloned().collect()
    }

    /// The NUMA nodes of each id; empty for a device without topology.
    pub fn numa_of_ids(&self) -> BTreeMap<String, Vec<i64>> {
        let mut nodes: BTreeMap<String, Vec<i64>> = BTreeMap::new();
        for (node, ids) in &self.by_numa {
            for id in ids {
                let of_id = nodes.entry(id.clone()).or_default();
                if *node != NO_NUMA {
                    of_id.push(*node);
                }
            }
        }
        nodes
    }
}

/// Resource name to grant, of one container.
pub type ContainerGrants = BTreeMap<String, Grant>;

/// All grants: pod uid → container name → resource name → grant.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Grants {
    pods: BTreeMap<String, BTreeMap<String, ContainerGrants>>,
}

impl Grants {
    /// Records a grant, replacing an earlier one.
    pub fn insert(&mut self, uid: &str, container: &str, resource: &str, grant: Grant) {
        let pod = self.pods.entry(uid.to_owned()).or_default();
        pod.entry(container.to_owned()).or_default().insert(resource.to_owned(), grant);
    }

    /// What a container holds; `None` when nothing was ever granted to it.
    pub fn container(&self, uid: &str, container: &str) -> Option<&ContainerGrants> {
        self.pods.get(uid)?.get(container)
    }

    /// The ids a container holds of a resource.
    pub fn ids(&self, uid: &str, container: &str, resource: &str) -> Option<Ids> {
        Some(self.container(uid, container)?.get(resource)?.ids())
    }

    /// Uids of all pods with grants.
    pub fn uids(&self) -> BTreeSet<String> {
        self.pods.keys().cloned().collect()
    }

    /// Forgets a pod.
    pub fn remove(&mut self, uid: &str) {
        self.pods.remove(uid);
    }

    /// Everything in use, by resource.
    pub fn in_use(&self) -> BTreeMap<String, Ids> {
        let mut used: BTreeMap<String, Ids> = BTreeMap::new();
        for (_, _, resource, grant) in self.iter() {
            used.entry(resource.to_owned()).or_default().extend(grant.ids());
        }
        used
    }

    /// Every grant as (uid, container, resource, grant).
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str, &str, &Grant)> {
        self.pods.iter().flat_map(|(uid, containers)| {
            containers.iter().flat_map(move |(container, grants)| {
                grants.iter().map(move |(resource, grant)| (uid.as_str(), container.as_str(), resource.as_str(), grant))
            })
        })
    }
}

/// Devices that a pod's finished init containers leave to its next containers, by resource.
#[derive(Debug, Clone, Default)]
pub struct Reusable(BTreeMap<String, Ids>);

impl Reusable {
    /// What may be reused of a resource.
    pub fn of(&self, resource: &str) -> Ids {
        self.0.get(resource).cloned().unwrap_or_default()
    }

    /// A plain init container leaves what it holds.
    pub fn leave(&mut self, held: Option<&ContainerGrants>) {
        for (resource, grant) in held.into_iter().flatten() {
            self.0.entry(resource.clone()).or_default().extend(grant.ids());
        }
    }

    /// A container that keeps running takes what it holds away from the later ones.
    pub fn take(&mut self, held: Option<&ContainerGrants>) {
        for (resource, grant) in held.into_iter().flatten() {
            if let Some(left) = self.0.get_mut(resource) {
                left.retain(|id| !grant.ids().contains(id));
            }
        }
    }
}

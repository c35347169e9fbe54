//! The pod's set is the assignment; the split per container is a plan. Where the kubelet reuses devices inside a pod in its
//! own way, the plan follows: the adopted device swaps places with the planned one, in every container still to come.

use std::collections::{BTreeMap, BTreeSet};

use super::assignment::PodAssignment;
use super::inventory::NodeInventory;
use super::ledger::{ContainerSlot, Ledger};
use super::room::{ByPod, DeviceClaim, DeviceLoads, fits, peak};
use crate::pod::{HandoffPod, PodContainer};
use baton_contract::allocation::{DeviceExtension, Entries};
use baton_contract::{ContainerRequest, DeviceEntry, DeviceId, DeviceType};

/// The plan of one pod as it stands after the grants so far.
#[derive(Debug, Clone)]
pub struct Plan<'a> {
    pod: &'a HandoffPod,
    inventory: &'a NodeInventory,
    containers: BTreeMap<Box<str>, Entries>,
    /// What goes with a device wherever it is used.
    catalog: BTreeMap<DeviceId, (i32, Option<DeviceExtension>)>,
    /// Most that the pod holds of each device by the original plan: no swap makes it more.
    peak: DeviceLoads,
    /// Served so far, by container and type.
    served: BTreeMap<(Box<str>, DeviceType), Vec<DeviceId>>,
}

impl<'a> Plan<'a> {
    /// The original plan, changed by the swaps that the grants of this pod in `ledger` brought.
    pub fn new(pod: &'a HandoffPod, assignment: &PodAssignment, ledger: &Ledger, inventory: &'a NodeInventory) -> Self {
        let mut plan = Self {
            pod,
            inventory,
            containers: assignment.containers.clone(),
            catalog: BTreeMap::new(),
            peak: DeviceLoads::new(),
            served: BTreeMap::new(),
        };
        let of = |claim: &DeviceClaim<'_>| (claim.entry.id.clone(), (claim.entry.minor, claim.entry.extension.clone()));
        let (catalog, peak) = (plan.claims().iter().map(of).collect(), peak(&plan.claims(), inventory));
        (plan.catalog, plan.peak) = (catalog, peak);
        let mut grants: Vec<_> = ledger.of_pod(&pod.pod.uid).filter(|entry| !entry.served.is_empty()).collect();
        grants.sort_by_key(|entry| (entry.slot.order, entry.seq));
        for grant in grants {
            let kind = super::assignment::kind_of(&grant.resource);
            let devices: Vec<DeviceId> = grant.devices().cloned().collect();
            plan.follow(&grant.container, &kind, &devices);
            plan.served.insert((grant.container.clone(), kind), devices);
        }
        plan
    }

    /// The container's entries of one type.
    pub fn of(&self, container: &str, kind: &DeviceType) -> &[DeviceEntry] {
        self.containers.get(container).and_then(|types| types.get(kind)).map_or(&[], Vec::as_slice)
    }

    /// Devices of one type that containers which run together with `container` have been served.
    pub fn held_beside(&self, container: &str, kind: &DeviceType) -> BTreeSet<DeviceId> {
        let slot = ContainerSlot::of(self.pod, container);
        self.served
            .iter()
            .filter(|((other, k), _)| {
                k == kind && **other != *container && ContainerSlot::of(self.pod, other).meets(slot)
            })
            .flat_map(|(_, devices)| devices.iter().cloned())
            .collect()
    }

    /// Adopts what the kubelet chose for `container`, as far as it belongs to the pod's set, is not held beside it, and the
    /// swap changes no joint choice and needs no more of any device. What cannot be adopted stays as planned.
    pub fn adopt(&mut self, container: &PodContainer, kind: &DeviceType, chosen: &BTreeSet<DeviceId>) {
        let held = self.held_beside(&container.name, kind);
        let planned: Vec<DeviceId> = self.of(&container.name, kind).iter().map(|entry| entry.id.clone()).collect();
        let mut leaving: Vec<&DeviceId> = planned.iter().filter(|id| !chosen.contains(*id)).collect();
        for wanted in chosen.iter().filter(|id| !planned.contains(*id) && !held.contains(*id)) {
            let fitting = leaving.iter().position(|left| self.may_swap(container, kind, left, wanted));
            if let Some(at) = fitting {
                let left = leaving.remove(at);
                self.swap(kind, left, wanted);
            }
        }
    }

    /// Brings the plan in line with a grant that was made.
    fn follow(&mut self, container: &str, kind: &DeviceType, devices: &[DeviceId]) {
        let planned: Vec<DeviceId> = self.of(container, kind).iter().map(|entry| entry.id.clone()).collect();
        let came: Vec<&DeviceId> = devices.iter().filter(|id| !planned.contains(id)).collect();
        let left: Vec<&DeviceId> = planned.iter().filter(|id| !devices.contains(id)).collect();
        for (left, came) in left.into_iter().zip(came) {
            self.swap(kind, left, came);
        }
    }

    /// What the containers hold.
    fn claims(&self) -> Vec<DeviceClaim<'_>> {
        let mut claims = Vec::new();
        for container in &self.pod.containers {
            let slot = ContainerSlot::of(self.pod, &container.name);
            for (kind, entries) in self.containers.get(&container.name).into_iter().flatten() {
                claims.extend(entries.iter().map(|entry| DeviceClaim { slot, kind, entry }));
            }
        }
        claims
    }

    fn may_swap(&self, container: &PodContainer, kind: &DeviceType, a: &DeviceId, b: &DeviceId) -> bool {
        let touched = self.pod.containers.iter().filter(|other| {
            !self.served.contains_key(&(other.name.clone(), kind.clone()))
                && self.of(&other.name, kind).iter().any(|entry| entry.id == *a || entry.id == *b)
        });
        if self.is_joint(container) || touched.into_iter().any(|other| self.is_joint(other)) {
            return false;
        }
        // What is served keeps its device: beside that, the others may have no room on the one that they get.
        let mut after = self.clone();
        after.swap(kind, a, b);
        let claims = after.claims();
        let covered = |(id, load): (&DeviceId, _)| self.peak.get(id).is_some_and(|most| most.covers(load));
        fits(&claims, &ByPod::new(), self.inventory).is_ok()
            && peak(&claims, self.inventory).iter().all(|(id, load)| covered((id, *load)))
    }

    /// The container's GPUs and NICs were chosen for each other; neither may change alone.
    fn is_joint(&self, container: &PodContainer) -> bool {
        let both = |request: &ContainerRequest| request.gpu.is_some() && request.rdma.is_some();
        self.pod.assignment.joint && container.request.as_ref().is_ok_and(both)
    }

    /// Exchanges two devices in every container that is not served yet. An exchange of names keeps disjoint what was
    /// disjoint.
    fn swap(&mut self, kind: &DeviceType, a: &DeviceId, b: &DeviceId) {
        let Self { containers, catalog, served, .. } = self;
        for (name, types) in containers.iter_mut() {
            if served.contains_key(&(name.clone(), kind.clone())) {
                continue;
            }
            for entry in types.get_mut(kind).into_iter().flatten() {
                let to = if entry.id == *a {
                    b
                } else if entry.id == *b {
                    a
                } else {
                    continue;
                };
                if let Some((minor, extension)) = catalog.get(to) {
                    entry.id = to.clone();
                    entry.minor = *minor;
                    entry.extension.clone_from(extension);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{container, granted, id, inventory, pod, with_assignment};
    use super::*;
    use crate::pod::ContainerKind::{App, Init, Sidecar};
    use baton_contract::key;
    use proptest::prelude::*;

    const GPU: DeviceType = DeviceType::Gpu;

    fn ids(plan: &Plan<'_>, container: &str) -> Vec<String> {
        plan.of(container, &GPU).iter().map(|entry| entry.id.to_string()).collect()
    }

    fn chosen(devices: &[&str]) -> BTreeSet<DeviceId> {
        devices.iter().map(|name| id(name)).collect()
    }

    /// init 2, sidecar 1, m1 2, m2 1; the init's devices are those of the sidecar and of m1.
    fn family() -> HandoffPod {
        let gpus = |n| [(key::NVIDIA_GPU, n)];
        let pod = pod(
            "b",
            vec![
                container("init", Init, &gpus(2)),
                container("side", Sidecar, &gpus(1)),
                container("m1", App, &gpus(2)),
                container("m2", App, &gpus(1)),
            ],
        );
        with_assignment(
            pod,
            &[("init", &["GPU-0", "GPU-1"]), ("side", &["GPU-0"]), ("m1", &["GPU-1", "GPU-2"]), ("m2", &["GPU-3"])],
        )
    }

    #[test]
    fn an_adopted_device_swaps_places_with_the_planned_one() {
        let (pod, inventory) = (family(), inventory(8));
        let assignment = PodAssignment::read(&pod, &inventory).unwrap().unwrap();
        let ledger = granted(&pod, &[("init", &["GPU-0", "GPU-1"])]);
        let mut plan = Plan::new(&pod, &assignment, &ledger, &inventory);
        plan.adopt(pod.container("side").unwrap(), &GPU, &chosen(&["GPU-1"]));
        assert_eq!(
            (ids(&plan, "side"), ids(&plan, "m1")),
            (vec!["GPU-1".into()], vec!["GPU-0".into(), "GPU-2".into()])
        );
    }

    #[test]
    fn the_swaps_of_earlier_grants_are_found_again_from_the_ledger() {
        let (pod, inventory) = (family(), inventory(8));
        let assignment = PodAssignment::read(&pod, &inventory).unwrap().unwrap();
        let ledger = granted(&pod, &[("init", &["GPU-0", "GPU-1"]), ("side", &["GPU-1"])]);
        let plan = Plan::new(&pod, &assignment, &ledger, &inventory);
        assert_eq!(ids(&plan, "m1"), ["GPU-0", "GPU-2"]);
        assert_eq!(ids(&plan, "m2"), ["GPU-3"]);
    }

    #[test]
    fn a_device_held_by_a_running_container_or_foreign_to_the_pod_is_not_adopted() {
        let (pod, inventory) = (family(), inventory(8));
        let assignment = PodAssignment::read(&pod, &inventory).unwrap().unwrap();
        let ledger = granted(&pod, &[("init", &["GPU-0", "GPU-1"]), ("side", &["GPU-0"])]);
        let mut plan = Plan::new(&pod, &assignment, &ledger, &inventory);
        plan.adopt(pod.container("m1").unwrap(), &GPU, &chosen(&["GPU-0", "GPU-7"]));
        assert_eq!(ids(&plan, "m1"), ["GPU-1", "GPU-2"]);
    }

    #[test]
    fn nothing_is_adopted_where_gpu_and_nic_were_chosen_for_each_other() {
        let both = [(key::NVIDIA_GPU, 1), (key::RDMA, 100)];
        let pod = pod("b", vec![container("m1", App, &both), container("m2", App, &both)]);
        let mut pod = with_assignment(pod, &[("m1", &["GPU-0", "nic-0"]), ("m2", &["GPU-1", "nic-1"])]);
        let inventory = inventory(8);
        for (joint, expected) in [(true, "GPU-0"), (false, "GPU-1")] {
            pod.assignment.joint = joint;
            let assignment = PodAssignment::read(&pod, &inventory).unwrap().unwrap();
            let mut plan = Plan::new(&pod, &assignment, &Ledger::default(), &inventory);
            plan.adopt(pod.container("m1").unwrap(), &GPU, &chosen(&["GPU-1"]));
            assert_eq!(ids(&plan, "m1"), [expected]);
        }
    }

    #[test]
    fn a_device_of_a_later_joint_choice_stays_there_and_others_change_places() {
        let (gpu, both) = ([(key::NVIDIA_GPU, 1)], [(key::NVIDIA_GPU, 1), (key::RDMA, 100)]);
        let pod = pod("b", vec![container("m1", App, &gpu), container("m2", App, &both), container("m3", App, &gpu)]);
        let mut pod = with_assignment(pod, &[("m1", &["GPU-0"]), ("m2", &["GPU-1", "nic-1"]), ("m3", &["GPU-2"])]);
        pod.assignment.joint = true;
        let inventory = inventory(8);
        let assignment = PodAssignment::read(&pod, &inventory).unwrap().unwrap();
        for (wanted, expected) in [("GPU-1", ["GPU-0", "GPU-2"]), ("GPU-2", ["GPU-2", "GPU-0"])] {
            let mut plan = Plan::new(&pod, &assignment, &Ledger::default(), &inventory);
            plan.adopt(pod.container("m1").unwrap(), &GPU, &chosen(&[wanted]));
            assert_eq!([ids(&plan, "m1"), ids(&plan, "m3")].concat(), expected);
        }
    }

    proptest! {
        #[test]
        fn adoption_never_leaves_the_pods_set_and_containers_that_meet_stay_disjoint(
            picks in proptest::collection::vec(proptest::collection::btree_set(0..8usize, 0..4), 4)
        ) {
            let (pod, inventory) = (family(), inventory(8));
            let assignment = PodAssignment::read(&pod, &inventory).unwrap().unwrap();
            let set = assignment.pod_set(&pod, &GPU);
            let mut grants: Vec<(String, Vec<String>)> = Vec::new();
            for (container, pick) in pod.containers.iter().zip(picks) {
                let rows: Vec<(&str, Vec<&str>)> = grants.iter().map(|(c, d)| (c.as_str(), d.iter().map(String::as_str).collect())).collect();
                let rows: Vec<(&str, &[&str])> = rows.iter().map(|(c, d)| (*c, d.as_slice())).collect();
                let ledger = granted(&pod, &rows);
                let mut plan = Plan::new(&pod, &assignment, &ledger, &inventory);
                let picked: BTreeSet<DeviceId> = pick.iter().map(|n| id(&format!("GPU-{n}"))).collect();
                plan.adopt(container, &GPU, &picked);
                let mine = ids(&plan, &container.name);
                prop_assert_eq!(mine.len(), assignment.of(&container.name, &GPU).len());
                prop_assert!(mine.iter().all(|device| set.contains(&id(device))));
                let held = plan.held_beside(&container.name, &GPU);
                prop_assert!(mine.iter().all(|device| !held.contains(&id(device))), "{:?} beside {:?}", mine, held);
                grants.push((container.name.to_string(), mine));
            }
        }
    }
}

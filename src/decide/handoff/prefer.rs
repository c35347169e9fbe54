//! GetPreferredAllocation: steering the kubelet to the assigned devices, so that its checkpoint, PodResources and every
//! exporter name the same devices as the assignment.
//!
//! In this order: must-include, the container's own plan, the rest of the pod's set, ids that no live assignment names, and
//! what is left. Never fails: an error would fail the pod, and a short answer is completed at random.

use std::collections::{BTreeMap, BTreeSet};

use super::assignment::{PodAssignment, kind_of};
use super::context::{AllocateCall, AllocateContext, LiveReads};
use super::identify::{Identified, identify};
use super::ledger::{ContainerSlot, Ledger};
use super::listing::EntryKey;
use super::plan::Plan;
use crate::pod::{ContainerKind, HandoffPod};
use baton_contract::{DeviceId, PodUid};

/// Which devices to prefer.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PreferenceOrder {
    /// The container's own plan.
    pub own: Vec<DeviceId>,
    /// The rest of the pod's set that no other container of it holds.
    pub rest: Vec<DeviceId>,
    /// Devices that other pods' assignments name, or that are served to them.
    pub named: BTreeSet<DeviceId>,
    /// How many more ids of each device the pod may have without taking those of others; empty: that does not matter.
    pub left: BTreeMap<DeviceId, usize>,
}

/// What to prefer for a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Preference {
    /// Read these live first, if there is time.
    NeedLive(LiveReads),
    /// Prefer these; with the identification, where there is one.
    Order(PreferenceOrder, Option<EntryKey>),
}

/// Decides what to prefer. A caller that cannot be identified gets an order that avoids the devices of all pods.
pub fn preference(context: &AllocateContext<'_>, call: &AllocateCall<'_>) -> Preference {
    let (missing, caller) = match identify(context, call) {
        Identified::NeedLive(missing) => (Some(missing), None),
        Identified::Refuse(_, rests_on) => (rests_on.missing(context.live_reads), None),
        Identified::Caller(caller) => (None, Some(caller)),
    };
    if let Some(missing) = missing {
        return Preference::NeedLive(missing);
    }
    let own = caller.map(|caller| &caller.pod.pod.uid);
    let mut order = PreferenceOrder { named: named_by_others(context, own), ..PreferenceOrder::default() };
    let Some(caller) = caller else { return Preference::Order(order, None) };
    let key = EntryKey::new(&caller.pod.pod.uid, &caller.container.name, call.resource);
    let kind = kind_of(call.resource);
    if let Some(entry) = context.ledger.get(&key).filter(|entry| !entry.served.is_empty()) {
        order.own = entry.to_answer().map(|(_, device)| device.id.clone()).collect();
    } else if let Ok(Some(assignment)) = PodAssignment::read(caller.pod, context.inventory) {
        let plan = Plan::new(caller.pod, &assignment, context.ledger, context.inventory);
        order.own = plan.of(&caller.container.name, &kind).iter().map(|entry| entry.id.clone()).collect();
        let held = plan.held_beside(&caller.container.name, &kind);
        let set = assignment.pod_set(caller.pod, &kind);
        order.rest = set.into_iter().filter(|id| !order.own.contains(id) && !held.contains(id)).collect();
        let slot = ContainerSlot::of(caller.pod, &caller.container.name);
        if !context.ledger.handed_on(&caller.pod.pod.uid, call.resource, slot).is_empty() {
            order.left = ids_left(caller.pod, &plan, context.ledger, call.resource);
        }
    }
    Preference::Order(order, Some(key))
}

/// As many ids of each device as the pod's containers need of it at one time, less those that the pod has. A container that is given
/// ids of another one's device leaves that many of its own device for later ones.
fn ids_left(pod: &HandoffPod, plan: &Plan<'_>, ledger: &Ledger, resource: &str) -> BTreeMap<DeviceId, usize> {
    let (mut staying, mut most) = (BTreeMap::<&DeviceId, usize>::new(), BTreeMap::<DeviceId, usize>::new());
    for container in &pod.containers {
        let names = container.request.as_ref().map(|request| &request.names);
        let Some(count) = names.ok().and_then(|names| names.get(resource)) else { continue };
        let devices = plan.of(&container.name, &kind_of(resource));
        for device in devices {
            let here = usize::try_from(*count).unwrap_or_default().div_ceil(devices.len());
            let now = staying.get(&device.id).copied().unwrap_or_default() + here;
            let top = most.entry(device.id.clone()).or_default();
            *top = now.max(*top);
            if container.kind != ContainerKind::Init {
                staying.insert(&device.id, now);
            }
        }
    }
    let of_name = ledger.of_pod(&pod.pod.uid).filter(|entry| *entry.resource == *resource);
    let ids: BTreeSet<&str> = of_name.flat_map(|entry| &entry.ids).map(|id| &**id).collect();
    for device in ids.into_iter().filter_map(|id| DeviceId::of_kubelet_id(id).ok()) {
        if let Some(left) = most.get_mut(&device) {
            *left = left.saturating_sub(1);
        }
    }
    most
}

fn named_by_others(context: &AllocateContext<'_>, own: Option<&PodUid>) -> BTreeSet<DeviceId> {
    let others = context.pods.iter().filter(|pod| Some(&pod.pod.uid) != own && context.is_here(pod) && pod.is_live());
    let assigned = others.filter_map(|pod| PodAssignment::read(pod, context.inventory).ok().flatten());
    let mut named: BTreeSet<DeviceId> = assigned.flat_map(|plan| plan.named().cloned().collect::<Vec<_>>()).collect();
    let served = context.ledger.live(context.pods, context.resources).filter(|entry| Some(&entry.pod.uid) != own);
    named.extend(served.flat_map(|entry| entry.devices().cloned().collect::<Vec<_>>()));
    named
}

/// Picks exactly `size` of the available ids (all of them when there are fewer), must-include first.
pub fn pick(order: &PreferenceOrder, available: &[String], must_include: &[String], size: usize) -> Vec<String> {
    let all: BTreeSet<&str> = available.iter().map(String::as_str).collect();
    let mut by_device: BTreeMap<&str, Vec<(u32, &str)>> = BTreeMap::new();
    for id in &all {
        let (device, unit) = parts(id);
        by_device.entry(device).or_default().push((unit, id));
    }
    by_device.values_mut().for_each(|units| units.sort_unstable());
    let units = |device: &str| by_device.get(device).into_iter().flatten().map(|(_, id)| *id);
    let units_of = |device: &DeviceId| units(device.as_str());
    let mut picked = Picked { ids: Vec::new(), seen: BTreeSet::new(), size };
    picked.add(must_include.iter().filter_map(|id| all.get(id.as_str()).copied()));
    // Shares spread evenly over the planned devices: each gives its part first.
    let quota = size.div_ceil(order.own.len().max(1));
    for own in &order.own {
        let have = units_of(own).filter(|id| picked.seen.contains(id)).count();
        let left = order.left.get(own).copied().unwrap_or(usize::MAX);
        let fresh: Vec<&str> = units_of(own).filter(|id| !picked.seen.contains(id)).collect();
        picked.add(fresh.into_iter().take(quota.saturating_sub(have).min(left)));
    }
    let must: BTreeSet<&str> = must_include.iter().map(String::as_str).collect();
    for (device, left) in &order.left {
        let have = units_of(device).filter(|id| picked.seen.contains(id) && !must.contains(id)).count();
        let fresh: Vec<&str> = units_of(device).filter(|id| !picked.seen.contains(id)).collect();
        picked.add(fresh.into_iter().take(left.saturating_sub(have)));
    }
    picked.add(order.own.iter().chain(&order.rest).flat_map(units_of));
    let named: BTreeSet<&str> = order.named.iter().map(DeviceId::as_str).collect();
    // What no assignment plans comes from one device where one has room for all of it, best from one that gives already: a
    // share that is spread over devices is refused.
    let left = size.saturating_sub(picked.ids.len());
    let too_small = |of: &str| units(of).filter(|id| !picked.seen.contains(id)).count() < left;
    let is_unused = |of: &str| units(of).all(|id| !picked.seen.contains(id));
    let mut others: Vec<&str> = by_device.keys().copied().collect();
    others.sort_by_cached_key(|of| (is_unused(of) || too_small(of), too_small(of), named.contains(of)));
    picked.add(others.into_iter().flat_map(units));
    picked.ids.into_iter().map(str::to_owned).collect()
}

struct Picked<'a> {
    ids: Vec<&'a str>,
    seen: BTreeSet<&'a str>,
    size: usize,
}

impl<'a> Picked<'a> {
    fn add(&mut self, ids: impl Iterator<Item = &'a str>) {
        for id in ids {
            if self.ids.len() < self.size && self.seen.insert(id) {
                self.ids.push(id);
            }
        }
    }
}

/// The device of an id, and its number there.
fn parts(id: &str) -> (&str, u32) {
    id.split_once("::").map_or((id, 0), |(device, unit)| (device, unit.parse().unwrap_or(0)))
}

#[cfg(test)]
mod tests {
    use super::super::testing::id;
    use super::*;
    use proptest::prelude::*;

    fn order(own: &[&str], rest: &[&str], named: &[&str]) -> PreferenceOrder {
        PreferenceOrder {
            own: own.iter().map(|d| id(d)).collect(),
            rest: rest.iter().map(|d| id(d)).collect(),
            named: named.iter().map(|d| id(d)).collect(),
            left: BTreeMap::new(),
        }
    }

    fn gpus(n: usize) -> Vec<String> {
        (0..n).map(|i| format!("GPU-{i}")).collect()
    }

    fn names(ids: &[&str]) -> Vec<String> {
        ids.iter().map(|id| (*id).to_owned()).collect()
    }

    #[test]
    fn must_include_then_own_then_the_pods_then_unnamed_then_the_rest() {
        let order = order(&["GPU-5"], &["GPU-6"], &["GPU-0", "GPU-1"]);
        let must = names(&["GPU-7"]);
        assert_eq!(pick(&order, &gpus(8), &must, 1), ["GPU-7"]);
        assert_eq!(pick(&order, &gpus(8), &must, 4), ["GPU-7", "GPU-5", "GPU-6", "GPU-2"]);
        assert_eq!(pick(&order, &gpus(3), &[], 3), ["GPU-2", "GPU-0", "GPU-1"]);
    }

    #[test]
    fn shares_take_their_units_from_each_planned_device_evenly() {
        let units: Vec<String> = (0..4).flat_map(|g| (0..100).map(move |k| format!("GPU-{g}::{k}"))).collect();
        let order = order(&["GPU-3", "GPU-1"], &[], &[]);
        let picked = pick(&order, &units, &[], 60);
        assert_eq!(picked.iter().filter(|id| id.starts_with("GPU-3::")).count(), 30);
        assert_eq!(picked.iter().filter(|id| id.starts_with("GPU-1::")).count(), 30);
        assert_eq!(picked[0], "GPU-3::0");
    }

    #[test]
    fn a_share_without_a_plan_comes_from_one_device_that_has_room_for_it() {
        let units = |g: &str, n: usize| (0..n).map(|k| format!("GPU-{g}::{k}")).collect::<Vec<_>>();
        let available: Vec<String> = [units("a", 70), units("b", 90), units("c", 85)].concat();
        let from = |order: &PreferenceOrder, must: &[String], size| -> BTreeMap<String, usize> {
            let mut from = BTreeMap::new();
            for id in pick(order, &available, must, size) {
                *from.entry(parts(&id).0.to_owned()).or_default() += 1;
            }
            from
        };
        let one = |device: &str, units| BTreeMap::from([(device.to_owned(), units)]);
        let unplanned = order(&[], &[], &[]);
        assert_eq!(from(&unplanned, &[], 80), one("GPU-b", 80), "the first has too little");
        assert_eq!(from(&unplanned, &[], 60), one("GPU-a", 60));
        assert_eq!(
            from(&order(&[], &[], &["GPU-b"]), &[], 80),
            one("GPU-c", 80),
            "an unnamed device before a named one"
        );
        assert_eq!(from(&order(&[], &[], &["GPU-c"]), &[], 90), one("GPU-b", 90));
        assert_eq!(from(&unplanned, &names(&["GPU-c::7"]), 60), one("GPU-c", 60), "where it must take one anyway");
        assert_eq!(
            from(&unplanned, &[], 100).values().sum::<usize>(),
            100,
            "no device has room for all: never too few"
        );
    }

    proptest! {
        #[test]
        fn the_answer_has_exactly_the_size_and_only_available_ids_and_all_that_must_be(
            available in proptest::collection::btree_set(0..20usize, 0..20), must in proptest::collection::btree_set(0..20usize, 0..4),
            own in proptest::collection::vec(0..24usize, 0..5), rest in proptest::collection::vec(0..24usize, 0..5),
            named in proptest::collection::btree_set(0..24usize, 0..9), size in 0..22usize,
        ) {
            let device = |n: &usize| id(&format!("GPU-{n}"));
            let order = PreferenceOrder { own: own.iter().map(device).collect(), rest: rest.iter().map(device).collect(), named: named.iter().map(device).collect(), left: BTreeMap::new() };
            let available: Vec<String> = available.iter().map(|n| format!("GPU-{n}")).collect();
            let must: Vec<String> = must.iter().map(|n| format!("GPU-{n}")).filter(|id| available.contains(id)).collect();
            let picked = pick(&order, &available, &must, size);
            prop_assert_eq!(picked.len(), size.min(available.len()));
            prop_assert!(picked.iter().all(|id| available.contains(id)));
            prop_assert_eq!(picked.iter().collect::<BTreeSet<_>>().len(), picked.len());
            prop_assert!(must.iter().take(size).all(|id| picked.contains(id)));
        }
    }
}

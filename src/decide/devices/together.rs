//! Devices of one node for several pods at once: the exact search behind gangs.
//!
//! [`pick()`](super::pick()) gives one pod its best devices and looks no further. Where pods that go together do not all find
//! devices that way, other choices for the first ones are tried: each is `pick` again with some devices barred. Devices that
//! differ only in their names are one choice, and a state of the node that was in vain is not tried twice.

use std::cmp::Reverse;
use std::collections::{BTreeSet, VecDeque};

use super::assignment::Assignment;
use super::grant::Part;
use super::inventory::Devices;
use super::pick::{Barred, pick_without};
use super::place::{DeviceSet, Slot};
use super::pool::NodePool;
use super::request::PodDeviceRequest;
use super::wishes::Wishes;
use crate::pod::ContainerKind;
use baton_contract::GpuRequest;
use baton_contract::key::WHOLE;

/// Devices for each of `requests`, all on this node at one time; `None` when there are none, or when `tries` ran out. One try
/// is one choice for one pod.
pub fn together(pool: &NodePool, requests: &[&PodDeviceRequest], tries: &mut usize) -> Option<Vec<Assignment>> {
    let mut order: Vec<usize> = (0..requests.len()).collect();
    let first_like = |at: usize| requests.iter().position(|other| other.shape() == requests[at].shape());
    order.sort_by_key(|at| (Reverse(least_compute(requests[*at])), first_like(*at), *at));
    let classes = Classes::of(pool, Sameness::of(requests));
    let mut search = JointSearch { requests, order, classes, dead: BTreeSet::new(), tries };
    let mut found = Vec::with_capacity(requests.len());
    if !search.place_from(pool, &mut found) {
        return None;
    }
    let mut all: Vec<(usize, Assignment)> = search.order.iter().copied().zip(found).collect();
    all.sort_by_key(|(at, _)| *at);
    Some(all.into_iter().map(|(_, assignment)| assignment).collect())
}

/// Percent of compute that a request takes at least, wherever it lies.
fn least_compute(request: &PodDeviceRequest) -> i64 {
    if request.shape().wishes.gpu.allocate_strategy.is_some() {
        // How many devices that comes to, the node decides.
        return 0;
    }
    let wants = request.shape().wants.iter().filter(|want| want.kind != ContainerKind::Init);
    let compute = wants.map(|want| match &want.gpu {
        Some(GpuRequest::Whole { count }) => i64::from(*count).saturating_mul(WHOLE),
        Some(GpuRequest::Share { count, core, .. }) => i64::from(*count).saturating_mul(*core),
        Some(GpuRequest::Mig { .. }) | None => 0,
    });
    compute.fold(0, i64::saturating_add)
}

struct JointSearch<'a> {
    requests: &'a [&'a PodDeviceRequest],
    /// Positions in `requests`: the larger first, equal ones side by side.
    order: Vec<usize>,
    classes: Classes,
    /// States of the node in which there is no place for the rest.
    dead: BTreeSet<(usize, FreeState)>,
    tries: &'a mut usize,
}

impl JointSearch<'_> {
    fn place_from(&mut self, pool: &NodePool, found: &mut Vec<Assignment>) -> bool {
        let at = found.len();
        if at == self.order.len() {
            return true;
        }
        let rest = self.order[at..].iter().map(|at| least_compute(self.requests[*at]));
        if rest.fold(0, i64::saturating_add) > i64::from(pool.summary().core_free) {
            return false;
        }
        let state = (at, self.classes.state(pool));
        if self.dead.contains(&state) {
            return false;
        }
        let request = self.requests[self.order[at]];
        let mut seen: BTreeSet<FreeState> = BTreeSet::new();
        let mut known: BTreeSet<Barred> = BTreeSet::from([Barred::default()]);
        let mut ways: VecDeque<Barred> = VecDeque::from([Barred::default()]);
        while let Some(barred) = ways.pop_front() {
            if *self.tries == 0 {
                return false;
            }
            *self.tries -= 1;
            let Ok(assignment) = pick_without(pool, request, &barred) else { continue };
            for other in self.classes.others(pool, request, &assignment, &barred) {
                if known.insert(other.clone()) {
                    ways.push_back(other);
                }
            }
            let mut after = pool.clone();
            if after.take(&assignment.grant).is_err() || !seen.insert(self.classes.state(&after)) {
                continue;
            }
            found.push(assignment);
            if self.place_from(&after, found) {
                return true;
            }
            found.pop();
        }
        self.dead.insert(state);
        false
    }
}

/// What is free of each device, whichever device of its class it is; sorted.
type FreeState = Vec<(u16, FreeOfDevice)>;

/// What is free of one device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct FreeOfDevice {
    percent: u16,
    memory: i64,
    vfs: u128,
    held: bool,
    closed: bool,
}

impl FreeOfDevice {
    fn of(pool: &NodePool, slot: Slot) -> Self {
        let (percent, memory) = match slot {
            Slot::Gpu(at) => pool.gpu_room(at),
            Slot::Mig(_) => (0, 0),
            Slot::Nic(at) => (pool.nic_room(at), 0),
        };
        let used = pool.used(slot).copied().unwrap_or_default();
        Self { percent, memory, vfs: used.vfs, held: used.holders > 0, closed: used.closed > 0 }
    }
}

/// What two devices have to share, so that either will do for the requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sameness {
    /// Their type.
    Type,
    /// Type, place and labels.
    Place,
    /// No other device will do: the requests name them.
    Name,
}

impl Sameness {
    fn of(requests: &[&PodDeviceRequest]) -> Self {
        let wishes = || requests.iter().map(|request| &request.shape().wishes);
        if wishes().any(Wishes::names_devices) {
            Self::Name
        } else if wishes().all(Wishes::is_plain) {
            Self::Type
        } else {
            Self::Place
        }
    }
}

/// Devices that are alike but for their names and what is taken of them: a class number for each.
struct Classes(Vec<(Slot, u16)>);

impl Classes {
    fn of(pool: &NodePool, sameness: Sameness) -> Self {
        let devices = pool.devices();
        let (mut classes, mut last) = (Vec::<(Slot, u16)>::new(), 0);
        for slot in devices.slots() {
            let known = classes.iter().find(|(other, _)| are_alike(devices, *other, slot, sameness));
            let class = known.map_or(last + 1, |(_, class)| *class);
            last = last.max(class);
            classes.push((slot, class));
        }
        Self(classes)
    }

    fn state(&self, pool: &NodePool) -> FreeState {
        let mut state: FreeState = self.0.iter().map(|(slot, class)| (*class, FreeOfDevice::of(pool, *slot))).collect();
        state.sort_unstable();
        state
    }

    /// Devices of the class of `slot` of which as much is free.
    fn like(&self, pool: &NodePool, slot: Slot) -> DeviceSet {
        let own = FreeOfDevice::of(pool, slot);
        let class = self.0.iter().find(|(other, _)| *other == slot).map(|(_, class)| *class);
        let like =
            self.0.iter().filter(|(other, number)| Some(*number) == class && FreeOfDevice::of(pool, *other) == own);
        like.map(|(other, _)| *other).collect()
    }

    /// Ways to bar devices so that every choice other than `taken` and its likes is found with one of them.
    fn others(&self, pool: &NodePool, request: &PodDeviceRequest, taken: &Assignment, barred: &Barred) -> Vec<Barred> {
        let parts =
            || taken.containers.iter().enumerate().flat_map(|(at, parts)| parts.iter().map(move |part| (at, *part)));
        let wants = &request.shape().wants;
        let pieces = wants.iter().filter_map(|want| want.gpu.as_ref()).map(shares_of).fold(0, u32::saturating_add);
        let alone = pieces == 1 && request.shape().wishes.gpu.allocate_strategy.is_none();
        let mut whole = DeviceSet::default();
        let mut ways = Vec::new();
        let mut share = |devices, container| {
            let mut way = barred.clone();
            way.bar_share(container, devices);
            ways.push(way);
        };
        for (container, part) in parts() {
            match part {
                Part::Gpu { .. } if matches!(wants[container].gpu, Some(GpuRequest::Share { .. })) => {
                    // With several shares in a pod, GPUs differ in what its other shares leave.
                    let set = if alone { self.like(pool, part.slot()) } else { DeviceSet::of(part.slot()) };
                    share(set, container);
                }
                Part::Nic { .. } if wants[container].rdma.is_some_and(|want| want.percent < WHOLE) => {
                    share(DeviceSet::of(part.slot()), container);
                }
                part => whole |= DeviceSet::of(part.slot()),
            }
        }
        // Another choice takes fewer of some class: all but so many of it are barred.
        ways.extend(fewer(whole, !barred.whole, |slot| self.like(pool, slot)).map(|more| {
            let mut way = barred.clone();
            way.whole |= more;
            way
        }));
        ways
    }
}

/// For each class of which `taken` takes some: so many of its open devices that one less than now is left.
fn fewer(taken: DeviceSet, open: DeviceSet, like: impl Fn(Slot) -> DeviceSet) -> impl Iterator<Item = DeviceSet> {
    let mut left = taken;
    std::iter::from_fn(move || {
        let slot = left.slots().next()?;
        let class = like(slot) & open;
        let keep = (class & taken).slots().count().saturating_sub(1);
        left = left & !class & !DeviceSet::of(slot);
        Some(class.slots().skip(keep).collect())
    })
}

fn shares_of(request: &GpuRequest) -> u32 {
    match request {
        GpuRequest::Share { count, .. } => *count,
        GpuRequest::Whole { .. } | GpuRequest::Mig { .. } => 0,
    }
}

/// The two devices are of one type and differ in their names only, and in their places and labels where these do not matter.
fn are_alike(devices: &Devices, one: Slot, other: Slot, sameness: Sameness) -> bool {
    let spatial = match sameness {
        Sameness::Type => false,
        Sameness::Place => true,
        Sameness::Name => return false,
    };
    let apart = || {
        let differ = devices.place(one) != devices.place(other) || devices.labels(one) != devices.labels(other);
        spatial && differ
    };
    let usable = || devices.is_usable(one) == devices.is_usable(other);
    match (one, other) {
        // A partition table names GPUs one by one.
        (Slot::Gpu(_), Slot::Gpu(_)) if spatial && devices.partitions.is_some() => false,
        (Slot::Gpu(a), Slot::Gpu(b)) => {
            let (a, b) = (&devices.gpus[usize::from(a)], &devices.gpus[usize::from(b)]);
            (a.core, a.memory, a.bytes_known) == (b.core, b.memory, b.bytes_known) && usable() && !apart()
        }
        (Slot::Mig(a), Slot::Mig(b)) => {
            let (a, b) = (&devices.migs[usize::from(a)], &devices.migs[usize::from(b)]);
            a.profile == b.profile && usable() && !(spatial && a.parent != b.parent) && !apart()
        }
        (Slot::Nic(a), Slot::Nic(b)) => {
            let (a, b) = (&devices.nics[usize::from(a)], &devices.nics[usize::from(b)]);
            a.vfs.is_empty() && b.vfs.is_empty() && a.percent == b.percent && usable() && !apart()
        }
        _ => false,
    }
}

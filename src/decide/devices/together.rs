//! Devices of one node for several pods at once: the exact search behind gangs.
//!
//! [`pick()`](super::pick()) gives one pod its best devices and looks no further. Where pods that go together do not all find
//! devices that way, other choices for the first ones are tried: each is `pick` again with some devices barred. Devices that
//! nothing but their names tells apart are one choice, and a state of the node that was in vain is not tried twice.

use std::cmp::Reverse;
use std::collections::{BTreeSet, VecDeque};

use super::assignment::Assignment;
use super::grant::Part;
use super::pick::pick_without;
use super::place::{bit, bits};
use super::pool::NodePool;
use super::request::PodDeviceRequest;
use crate::contract::GpuRequest;
use crate::contract::key::WHOLE;
use crate::decide::pod::ContainerKind;

/// Devices that a choice has to do without, so that another one is found.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(super) struct Barred {
    /// As whole GPUs.
    pub gpus: u128,
    /// MIG devices.
    pub migs: u128,
    /// As whole NICs.
    pub nics: u128,
    /// GPUs for the share of a container, by its place in the request.
    gpu_shares: Vec<u128>,
    /// NICs for the share of a container.
    nic_shares: Vec<u128>,
}

impl Barred {
    /// GPUs that must not carry a share of the container.
    pub fn gpus_for(&self, container: usize) -> u128 {
        self.gpu_shares.get(container).copied().unwrap_or(0)
    }

    /// No GPU is barred for shares.
    pub fn has_no_shares(&self) -> bool {
        self.gpu_shares.iter().all(|mask| *mask == 0)
    }

    /// NICs that must not carry a share of the container.
    pub fn nics_for(&self, container: usize) -> u128 {
        self.nic_shares.get(container).copied().unwrap_or(0)
    }
}

fn bar(masks: &mut Vec<u128>, container: usize, mask: u128) {
    if masks.len() <= container {
        masks.resize(container + 1, 0);
    }
    masks[container] |= mask;
}

/// Devices for each of `requests`, all on this node at one time; `None` when there are none, or when `tries` ran out. One try
/// is one choice for one pod.
pub fn together(pool: &NodePool, requests: &[&PodDeviceRequest], tries: &mut usize) -> Option<Vec<Assignment>> {
    let mut order: Vec<usize> = (0..requests.len()).collect();
    let first_like = |at: usize| requests.iter().position(|other| other.shape() == requests[at].shape());
    order.sort_by_key(|at| (Reverse(least_compute(requests[*at])), first_like(*at), *at));
    let spatial = requests.iter().any(|request| !request.shape().wishes.is_plain());
    let mut search = Search { requests, order, classes: Classes::of(pool, spatial), dead: BTreeSet::new(), tries };
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

struct Search<'a> {
    requests: &'a [&'a PodDeviceRequest],
    /// Positions in `requests`: the larger first, equal ones side by side.
    order: Vec<usize>,
    classes: Classes,
    /// States of the node from which the rest found no place.
    dead: BTreeSet<(usize, Look)>,
    tries: &'a mut usize,
}

impl Search<'_> {
    fn place_from(&mut self, pool: &NodePool, found: &mut Vec<Assignment>) -> bool {
        let at = found.len();
        if at == self.order.len() {
            return true;
        }
        let rest = self.order[at..].iter().map(|at| least_compute(self.requests[*at]));
        if rest.fold(0, i64::saturating_add) > i64::from(pool.summary().core_free) {
            return false;
        }
        let state = (at, self.classes.look(pool));
        if self.dead.contains(&state) {
            return false;
        }
        let request = self.requests[self.order[at]];
        let mut seen: BTreeSet<Look> = BTreeSet::new();
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
            if after.take(&assignment.grant).is_err() || !seen.insert(self.classes.look(&after)) {
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
type Look = Vec<(u8, Free)>;

/// What is free of one device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Free {
    percent: u16,
    memory: i64,
    vfs: u128,
    held: bool,
    closed: bool,
}

/// Devices that are alike but for their names and what is taken of them: a class number per device.
struct Classes {
    gpus: Vec<u8>,
    migs: Vec<u8>,
    nics: Vec<u8>,
}

impl Classes {
    /// `spatial`: where devices are and what their labels say matters.
    fn of(pool: &NodePool, spatial: bool) -> Self {
        let devices = pool.devices();
        // A partition table names GPUs one by one.
        let named = spatial && devices.partitions.is_some();
        let mut next = 0u8;
        let gpus = numbered(&devices.gpus, &mut next, |a, b| {
            let apart = spatial && (a.place != b.place || a.labels != b.labels);
            !named
                && !apart
                && (a.core, a.memory, a.bytes_known, a.healthy) == (b.core, b.memory, b.bytes_known, b.healthy)
        });
        let migs = numbered(&devices.migs, &mut next, |a, b| {
            let apart = spatial && (a.place != b.place || a.labels != b.labels || a.parent != b.parent);
            !apart && (&a.profile, a.healthy) == (&b.profile, b.healthy)
        });
        let nics = numbered(&devices.nics, &mut next, |a, b| {
            let apart = spatial && (a.place != b.place || a.labels != b.labels);
            !apart && a.vfs.is_empty() && b.vfs.is_empty() && (a.percent, a.healthy) == (b.percent, b.healthy)
        });
        Self { gpus, migs, nics }
    }

    fn look(&self, pool: &NodePool) -> Look {
        let gpus = (0u8..).zip(&self.gpus).map(|(at, class)| (*class, gpu_free(pool, at)));
        let migs = (0u8..).zip(&self.migs).map(|(at, class)| (*class, mig_free(pool, at)));
        let nics = (0u8..).zip(&self.nics).map(|(at, class)| (*class, nic_free(pool, at)));
        let mut look: Look = gpus.chain(migs).chain(nics).collect();
        look.sort_unstable();
        look
    }

    /// Ways to bar devices so that every choice other than `taken` and its likes is found with one of them.
    fn others(&self, pool: &NodePool, request: &PodDeviceRequest, taken: &Assignment, barred: &Barred) -> Vec<Barred> {
        let parts =
            || taken.containers.iter().enumerate().flat_map(|(at, parts)| parts.iter().map(move |part| (at, *part)));
        let wants = &request.shape().wants;
        let pieces = wants.iter().filter_map(|want| want.gpu.as_ref()).map(shares_of).fold(0, u32::saturating_add);
        let alone = pieces == 1 && request.shape().wishes.gpu.allocate_strategy.is_none();
        let (mut gpus, mut migs, mut nics) = (0u128, 0u128, 0u128);
        let mut ways = Vec::new();
        for (container, part) in parts() {
            match part {
                Part::Gpu { gpu, .. } if matches!(wants[container].gpu, Some(GpuRequest::Share { .. })) => {
                    // With several shares in a pod, what its other shares leave tells GPUs apart.
                    let mask = if alone { self.gpus_like(pool, gpu) } else { bit(gpu) };
                    let mut way = barred.clone();
                    bar(&mut way.gpu_shares, container, mask);
                    ways.push(way);
                }
                Part::Gpu { gpu, .. } => gpus |= bit(gpu),
                Part::Mig { mig } => migs |= bit(mig),
                Part::Nic { nic, .. } if wants[container].rdma.is_some_and(|want| want.percent < WHOLE) => {
                    let mut way = barred.clone();
                    bar(&mut way.nic_shares, container, bit(nic));
                    ways.push(way);
                }
                Part::Nic { nic, .. } => nics |= bit(nic),
            }
        }
        // Another choice takes fewer of some class: all but so many of it are barred.
        ways.extend(fewer(gpus, !barred.gpus, |at| self.gpus_like(pool, at)).map(|mask| {
            let gpus = barred.gpus | mask;
            Barred { gpus, ..barred.clone() }
        }));
        ways.extend(fewer(migs, !barred.migs, |at| self.migs_like(pool, at)).map(|mask| {
            let migs = barred.migs | mask;
            Barred { migs, ..barred.clone() }
        }));
        ways.extend(fewer(nics, !barred.nics, |at| self.nics_like(pool, at)).map(|mask| {
            let nics = barred.nics | mask;
            Barred { nics, ..barred.clone() }
        }));
        ways
    }

    fn gpus_like(&self, pool: &NodePool, at: u8) -> u128 {
        alike(&self.gpus, at, |at| gpu_free(pool, at))
    }
    fn migs_like(&self, pool: &NodePool, at: u8) -> u128 {
        alike(&self.migs, at, |at| mig_free(pool, at))
    }
    fn nics_like(&self, pool: &NodePool, at: u8) -> u128 {
        alike(&self.nics, at, |at| nic_free(pool, at))
    }
}

/// For each class of which `taken` takes some: so many of its open devices that one less than now is left.
fn fewer(taken: u128, open: u128, like: impl Fn(u8) -> u128) -> impl Iterator<Item = u128> {
    let mut left = taken;
    std::iter::from_fn(move || {
        let at = bits(left).next()?;
        let class = like(at) & open;
        let keep = (class & taken).count_ones().saturating_sub(1);
        left &= !class;
        left &= !bit(at);
        Some(bits(class).skip(keep as usize).fold(0, |mask, at| mask | bit(at)))
    })
}

fn shares_of(request: &GpuRequest) -> u32 {
    match request {
        GpuRequest::Share { count, .. } => *count,
        GpuRequest::Whole { .. } | GpuRequest::Mig { .. } => 0,
    }
}

/// A number per device, the same for devices that are alike; numbers go on from `next`.
fn numbered<T>(all: &[T], next: &mut u8, alike: impl Fn(&T, &T) -> bool) -> Vec<u8> {
    let mut classes: Vec<u8> = Vec::with_capacity(all.len());
    for (at, device) in all.iter().enumerate() {
        let known = all[..at].iter().position(|other| alike(other, device)).map(|other| classes[other]);
        classes.push(known.unwrap_or_else(|| {
            *next = next.saturating_add(1);
            *next
        }));
    }
    classes
}

/// Devices of the class of `at` of which as much is free.
fn alike(classes: &[u8], at: u8, free: impl Fn(u8) -> Free) -> u128 {
    let (class, own) = (classes[usize::from(at)], free(at));
    let like = (0u8..).zip(classes).filter(|(other, number)| **number == class && free(*other) == own);
    like.fold(0, |mask, (other, _)| mask | bit(other))
}

fn gpu_free(pool: &NodePool, at: u8) -> Free {
    let (percent, memory) = pool.gpu_room(at);
    let used = pool.used_gpu(at);
    Free { percent, memory, vfs: 0, held: used.holders > 0, closed: used.closed > 0 }
}

fn mig_free(pool: &NodePool, at: u8) -> Free {
    let used = pool.used_mig(at);
    Free { percent: 0, memory: 0, vfs: 0, held: used.holders > 0, closed: used.closed > 0 }
}

fn nic_free(pool: &NodePool, at: u8) -> Free {
    let used = pool.used_nic(at);
    Free { percent: pool.nic_room(at), memory: 0, vfs: used.vfs, held: used.holders > 0, closed: used.closed > 0 }
}

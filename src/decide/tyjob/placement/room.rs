//! How many more pods of a TYJob a node has room for, by what each of them takes and by which of them exclude each other. Whether
//! the node accepts such a pod at all is decided by the filters.

use std::collections::{BTreeMap, BTreeSet};

use crate::devices::{NodePool, PodDeviceRequest, PoolState, pick};
use crate::world::spec::Labels;
use crate::world::{Node, Resources, Stock};
use baton_contract::key;
use baton_contract::request::GpuRequest;

use super::score::wanted;

/// Pods of one part of a job that have no place.
#[derive(Debug, Clone)]
pub struct Guests {
    /// Position of the part.
    pub part: usize,
    /// What each asks for.
    pub requests: Resources,
    /// The devices of each, where percent of GPUs do not say it all; see [`is_plain`].
    pub devices: Option<PodDeviceRequest>,
    /// How many there are.
    pub count: i64,
    /// Parts whose pods these cannot share a node with: on nodes that have the label, or on any. With one of their own they
    /// are one on a node.
    pub apart: Vec<(usize, Option<Box<str>>)>,
}

/// `true` where the percent of GPUs that the pod asks for in all tell how many such pods a node has room for: whole GPUs, or
/// one share of which as much is compute as is memory.
pub fn is_plain(request: &PodDeviceRequest) -> bool {
    let shape = request.shape();
    let plain = |gpu: &GpuRequest| match gpu {
        GpuRequest::Whole { .. } => true,
        GpuRequest::Share { count: 1, core, ratio, memory: None } => *ratio == Some(*core),
        GpuRequest::Share { .. } | GpuRequest::Mig { .. } => false,
    };
    let wants = shape.wants.iter().all(|want| want.rdma.is_none() && want.gpu.as_ref().is_none_or(plain));
    shape.wants.len() <= 1 && wants && shape.wishes.is_plain()
}

/// How many of these pods fit on a node beside what is there, taken in this order.
pub fn room_for<'a>(node: &Node, guests: impl IntoIterator<Item = &'a Guests>) -> i64 {
    let Some(mut left) = NodeRemainder::on(node) else { return 0 };
    let labels = node.facts.as_ref().map(|facts| &facts.labels);
    let mut here: Vec<usize> = Vec::new();
    let mut fitting = 0;
    for guest in guests {
        for _ in 0..guest.count {
            if here.iter().any(|part| guest.shuns(*part, labels)) || !left.take(guest) {
                break;
            }
            fitting += 1;
            if here.last() != Some(&guest.part) {
                here.push(guest.part);
            }
        }
    }
    fitting
}

/// The room of nodes that were judged before: nodes that are equal in all that these pods take have the same room. Devices are
/// picked one pod after the other, which would cost too much on thousands of equal nodes.
pub struct KnownRooms<'a> {
    guests: &'a [Guests],
    /// Most that all the pods together take: more than that is as good as that.
    most: Resources,
    count: i64,
    by_key: BTreeMap<RoomKey, Vec<KnownRoom>>,
    asked: usize,
}

/// What a node has for the pods, cut at what they take.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct RoomKey {
    fingerprint: Option<u64>,
    gpus: Option<Vec<i64>>,
    free: Vec<i64>,
    pods: i64,
    /// Which pods are counted there, and which of the labels that keep them apart the node has.
    welcome: Vec<bool>,
    labels: Vec<bool>,
}

/// Devices of a node that was asked, and its room.
type KnownRoom = (Option<PoolState>, i64);

impl<'a> KnownRooms<'a> {
    /// Nodes that are judged device by device for one decision; further nodes that differ are not judged.
    pub const MOST: usize = 128;

    /// Nothing known yet of the room for these.
    pub fn new(guests: &'a [Guests]) -> Self {
        let mut most = Resources::default();
        for guest in guests {
            let times = |amount: i64| amount.saturating_mul(guest.count);
            let scalar = guest.requests.scalar.iter().map(|(name, amount)| (name.into(), times(amount))).collect();
            let Resources { milli_cpu, memory, ephemeral, .. } = &guest.requests;
            most.add(&Resources {
                milli_cpu: times(*milli_cpu),
                memory: times(*memory),
                ephemeral: times(*ephemeral),
                scalar,
            });
        }
        let count = guests.iter().map(|guest| guest.count).sum();
        Self { guests, most, count, by_key: BTreeMap::new(), asked: 0 }
    }

    /// How many of those that `welcome` lets in fit on the node; `None` for a node that would have to be looked at in detail when
    /// enough were.
    pub fn room(&mut self, node: &Node, welcome: impl Fn(&Guests) -> bool) -> Option<i64> {
        let guests: &'a [Guests] = self.guests;
        let here = || guests.iter().filter(|guest| welcome(guest));
        let Some(left) = NodeRemainder::on(node).filter(|_| here().any(|guest| guest.devices.is_some())) else {
            return Some(room_for(node, here()));
        };
        let named =
            |guest: &Guests| guest.devices.as_ref().is_some_and(|request| request.shape().wishes.names_devices());
        if here().any(named) {
            return Some(room_for(node, here()));
        }
        let look = self.look(node, &left, &welcome);
        let pool = left.stock.map(Stock::pool);
        let same = |state: &Option<PoolState>| match (state, pool) {
            (Some(state), Some(pool)) => state.is_of(pool),
            (None, None) => true,
            _ => false,
        };
        if let Some((_, room)) = self.by_key.get(&look).into_iter().flatten().find(|(state, _)| same(state)) {
            debug_assert_eq!(*room, room_for(node, here()), "equal nodes have the same room");
            return Some(*room);
        }
        if self.asked >= Self::MOST {
            return None;
        }
        let room = room_for(node, here());
        self.asked += 1;
        self.by_key.entry(look).or_default().push((pool.map(PoolState::of), room));
        Some(room)
    }

    fn look(&self, node: &Node, left: &NodeRemainder<'_>, welcome: impl Fn(&Guests) -> bool) -> RoomKey {
        let Resources { milli_cpu, memory, ephemeral, scalar } = &self.most;
        let free = &left.free;
        let mut amounts =
            vec![free.milli_cpu.min(*milli_cpu), free.memory.min(*memory), free.ephemeral.min(*ephemeral)];
        amounts.extend(scalar.iter().map(|(name, most)| free.scalar(name).min(most)));
        let labels = node.facts.as_ref().map(|facts| &facts.labels);
        let keys: BTreeSet<&str> =
            self.guests.iter().flat_map(|guest| &guest.apart).filter_map(|(_, key)| key.as_deref()).collect();
        RoomKey {
            fingerprint: left.stock.map(|stock| stock.pool().fingerprint()),
            gpus: left.gpus.clone(),
            free: amounts,
            pods: left.pods.min(self.count),
            welcome: self.guests.iter().map(welcome).collect(),
            labels: keys.into_iter().map(|key| labels.is_some_and(|labels| labels.contains_key(key))).collect(),
        }
    }
}

impl Guests {
    fn shuns(&self, part: usize, labels: Option<&Labels>) -> bool {
        let holds = |key: &Option<Box<str>>| {
            key.as_ref().is_none_or(|key| labels.is_some_and(|labels| labels.contains_key(&**key)))
        };
        self.apart.iter().any(|(other, key)| *other == part && holds(key))
    }
}

/// What is left on a node.
struct NodeRemainder<'a> {
    free: Resources,
    pods: i64,
    /// Percent of compute and of memory that is free on each GPU; `None` where the devices are not known.
    gpus: Option<Vec<i64>>,
    stock: Option<&'a Stock>,
    /// The devices, once a pod has taken some by id.
    pool: Option<NodePool>,
}

impl<'a> NodeRemainder<'a> {
    fn on(node: &'a Node) -> Option<Self> {
        let facts = node.facts.as_ref()?;
        let mut free: Resources = (*facts.allocatable).clone();
        free.sub(&node.used);
        let stock = node.stock.as_ref();
        let pods = facts.max_pods - node.pods.len() as i64;
        Some(Self { free, pods, gpus: stock.map(|stock| stock.gpu_rooms().collect()), stock, pool: None })
    }

    fn take(&mut self, guest: &Guests) -> bool {
        let requests = &guest.requests;
        let counted = |name: &str| {
            let by_name = guest.devices.is_some() && key::is_device_resource(name);
            self.stock.is_some() && (by_name || name.starts_with("koordinator.sh/gpu"))
        };
        let short = self.pods < 1
            || requests.milli_cpu > self.free.milli_cpu.max(0)
            || requests.memory > self.free.memory.max(0)
            || requests.ephemeral > self.free.ephemeral.max(0)
            || requests.scalar.iter().any(|(name, wanted)| !counted(name) && wanted > self.free.scalar(name).max(0));
        if short || !self.take_devices(guest) {
            return false;
        }
        self.pods -= 1;
        self.free.sub(requests);
        true
    }

    fn take_devices(&mut self, guest: &Guests) -> bool {
        match (&guest.devices, self.stock) {
            (Some(request), Some(stock)) => {
                let pool = self.pool.get_or_insert_with(|| stock.pool().clone());
                let Ok(found) = pick(pool, request) else { return false };
                pool.take(&found.grant).is_ok()
            }
            _ => self.take_gpus(wanted(&guest.requests)[2]),
        }
    }

    /// Whole GPUs are taken whole; a share from the fullest GPU that has room for it.
    fn take_gpus(&mut self, percent: i64) -> bool {
        let Some(gpus) = self.gpus.as_mut().filter(|_| percent > 0) else { return true };
        let (whole, share) = (percent / 100, percent % 100);
        let free: Vec<usize> = (0..gpus.len()).filter(|at| gpus[*at] >= 100).take(whole as usize).collect();
        if (free.len() as i64) < whole {
            return false;
        }
        let best = (0..gpus.len()).filter(|at| gpus[*at] >= share && !free.contains(at)).min_by_key(|at| gpus[*at]);
        if share > 0 && best.is_none() {
            return false;
        }
        for at in free {
            gpus[at] = 0;
        }
        if let Some(at) = best.filter(|_| share > 0) {
            gpus[at] -= share;
        }
        true
    }
}

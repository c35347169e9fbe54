//! How many more pods of a job a node has room for, when all that is known is what each of them takes and which of them keep
//! apart. Whether the node takes such a pod at all is for the filters to say.

use crate::contract::key;
use crate::contract::request::GpuRequest;
use crate::decide::alloc::{NodePool, PodDeviceRequest, pick};
use crate::decide::world::spec::Labels;
use crate::decide::world::{Node, Resources, Stock};

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
    let Some(mut left) = Left::on(node) else { return 0 };
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

impl Guests {
    fn shuns(&self, part: usize, labels: Option<&Labels>) -> bool {
        let holds = |key: &Option<Box<str>>| {
            key.as_ref().is_none_or(|key| labels.is_some_and(|labels| labels.contains_key(&**key)))
        };
        self.apart.iter().any(|(other, key)| *other == part && holds(key))
    }
}

/// What is left on a node.
struct Left<'a> {
    free: Resources,
    pods: i64,
    /// Percent of compute and of memory that is free on each GPU; `None` where the devices are not known.
    gpus: Option<Vec<i64>>,
    stock: Option<&'a Stock>,
    /// The devices, once somebody has taken some by name.
    pool: Option<NodePool>,
}

impl<'a> Left<'a> {
    fn on(node: &'a Node) -> Option<Self> {
        let facts = node.facts.as_ref()?;
        let mut free: Resources = (*facts.allocatable).clone();
        free.sub(&node.used);
        let stock = node.stock.as_ref();
        let pods = facts.max_pods - node.pods.len() as i64;
        Some(Self { free, pods, gpus: stock.map(Stock::gpu_rooms), stock, pool: None })
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
            || requests.scalar.iter().any(|(name, wanted)| !counted(name) && *wanted > self.free.scalar(name).max(0));
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

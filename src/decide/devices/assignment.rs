//! `Assignment`: the answer of `pick`; the Binding's annotations about it, written straight from the choice, and what the pod holds.

use std::cmp::Ordering;
use std::ops::Range;
use std::sync::Arc;

use super::accounts::share_of;
use super::grant::{Grant, Part};
use super::held::{Held, HeldAmounts, HeldDevice};
use super::place::bits;
use super::pool::NodePool;
use super::request::PodDeviceRequest;
use baton_contract::entry_text::{EntryText, push_amounts, push_json};
use baton_contract::{ContainerDevices, DeviceId, DeviceType, Quantity, Shared, key};

/// The devices chosen for a pod on one node. The pod's set (`grant`) is the assignment; the split per container is a plan.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Assignment {
    /// What to take from the pool.
    pub grant: Grant,
    /// Parts per container, in the order of the request's names; init containers too.
    pub containers: Vec<Vec<Part>>,
}

/// Resource names and amounts of one part, in the order of the names.
enum PartAmounts {
    Gpu([(&'static str, Quantity); 3]),
    GpuWithoutBytes([(&'static str, Quantity); 2]),
    Mig((String, Quantity)),
    Nic([(&'static str, Quantity); 1]),
}

impl PartAmounts {
    fn of(pool: &NodePool, part: Part) -> Self {
        let devices = pool.devices();
        match part {
            Part::Gpu { gpu, core, memory } => {
                let gpu = &devices.gpus[usize::from(gpu)];
                let core = (key::GPU_CORE, Quantity::units(core.into()));
                let ratio = (key::GPU_MEMORY_RATIO, Quantity::units(share_of(memory, gpu.memory).into()));
                if gpu.bytes_known {
                    Self::Gpu([core, (key::GPU_MEMORY, Quantity::bytes(memory)), ratio])
                } else {
                    Self::GpuWithoutBytes([core, ratio])
                }
            }
            Part::Mig { mig } => {
                let profile = &devices.migs[usize::from(mig)].profile;
                Self::Mig((format!("{}{profile}", key::MIG_PREFIX), Quantity::units(1)))
            }
            Part::Nic { percent, .. } => Self::Nic([(key::RDMA, Quantity::units(percent.into()))]),
        }
    }

    fn each(&self, look: impl FnOnce(&[(&str, Quantity)])) {
        match self {
            Self::Gpu(all) => look(all),
            Self::GpuWithoutBytes(all) => look(all),
            Self::Mig((name, amount)) => look(&[(name.as_str(), *amount)]),
            Self::Nic(all) => look(all),
        }
    }
}

/// Room for one entry, and for what stands around all of them: ids and resource names are not much longer.
const ENTRY: usize = 192;
const FRAME: usize = 16;

/// How much of one device: for the accounts, and as the annotation says it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Portion {
    amounts: Shared<HeldAmounts>,
    text: Arc<str>,
}

impl Assignment {
    /// `device-allocated` (one merged entry per device, with the peak of the pod's phases), `container-devices` (the plan per
    /// container, init containers too) and `gpu-minors`.
    pub fn annotations(&self, pool: &NodePool, request: &PodDeviceRequest, node: &str) -> [String; 3] {
        self.annotations_of(pool, &[], request, node)
    }

    /// [`Assignment::annotations`], where [`Assignment::portions`] are known.
    pub fn annotations_of(
        &self,
        pool: &NodePool,
        portions: &[Portion],
        request: &PodDeviceRequest,
        node: &str,
    ) -> [String; 3] {
        let known = |part: Part| self.grant.parts.iter().zip(portions).find(|(own, _)| **own == part);
        let text = |part: Part| known(part).map(|(_, portion)| &*portion.text);
        let mut parts: Vec<Part> = self.grant.parts.to_vec();
        let mut allocated = String::with_capacity(FRAME + ENTRY * parts.len());
        push_types(&mut allocated, pool, &mut parts, text);
        if parts.is_empty() {
            allocated.clear();
        }
        let mut minors = String::with_capacity(4 * parts.len());
        for part in parts.iter().filter(|part| kind_of(**part) == DeviceType::Gpu) {
            if !minors.is_empty() {
                minors.push(',');
            }
            minors.push_str(itoa::Buffer::new().format(pool.devices().minor(part.slot())));
        }
        // Of a pod with one such container, that container's list is the pod's.
        let alone = self.containers.len() == 1 && self.containers[0][..] == self.grant.parts[..];
        let mut split = String::with_capacity(allocated.len() + 64 * (1 + self.containers.len()));
        split.push_str(ContainerDevices::HEAD);
        push_json(&mut split, node);
        split.push_str(",\"containers\":{");
        let mut named: Vec<(&str, &Vec<Part>)> =
            request.names().iter().map(|name| &**name).zip(&self.containers).collect();
        named.sort_unstable_by_key(|(name, _)| *name);
        for (at, (name, own)) in named.into_iter().enumerate() {
            if at > 0 {
                split.push(',');
            }
            push_json(&mut split, name);
            split.push(':');
            if alone && !allocated.is_empty() {
                split.push_str(&allocated);
                continue;
            }
            parts.clear();
            parts.extend(own);
            push_types(&mut split, pool, &mut parts, text);
        }
        split.push_str("}}");
        [allocated, split, minors]
    }

    /// What the pod holds, as [`Held::of`] reads it from `device-allocated`.
    pub fn held(&self, pool: &NodePool) -> Held {
        self.held_of(pool, &self.portions(pool))
    }

    /// How much of each device the pod holds, in the order of the grant: the same on every node that looks like this one.
    pub fn portions(&self, pool: &NodePool) -> Box<[Portion]> {
        let mut last: Option<(Part, Portion)> = None;
        let portions = self.grant.parts.iter().map(|part| {
            let portion = match &last {
                Some((like, portion)) if is_alike(pool, *like, *part) => portion.clone(),
                _ => {
                    let (mut amounts, mut text) = (HeldAmounts::default(), String::with_capacity(ENTRY));
                    PartAmounts::of(pool, *part).each(|all| {
                        amounts = all.iter().map(|(name, amount)| ((*name).into(), amount.value())).collect();
                        push_amounts(&mut text, all);
                    });
                    Portion { amounts: amounts.into(), text: text.into() }
                }
            };
            last = Some((*part, portion.clone()));
            portion
        });
        portions.collect()
    }

    /// [`Assignment::held`], where [`Assignment::portions`] are known.
    pub fn held_of(&self, pool: &NodePool, portions: &[Portion]) -> Held {
        let mut parts: Vec<(Part, &Portion)> = self.grant.parts.iter().copied().zip(portions).collect();
        parts.sort_by(|a, b| in_order(pool, a.0, b.0));
        let devices = parts.into_iter().map(|(part, portion)| {
            let vfs = vfs_of(pool, part).map(|(_, address)| address.clone()).collect();
            let (id, minor) = (pool.id(part.slot()).clone(), pool.devices().minor(part.slot()));
            let amounts = portion.amounts.clone();
            (kind_of(part), HeldDevice { id, amounts, vfs, minor })
        });
        Held::from_ordered(devices)
    }
}

/// The same amounts of two devices that have the same.
fn is_alike(pool: &NodePool, one: Part, other: Part) -> bool {
    let gpus = &pool.devices().gpus;
    match (one, other) {
        (Part::Gpu { gpu: a, core, memory }, Part::Gpu { gpu: b, core: c, memory: m }) => {
            let (a, b) = (&gpus[usize::from(a)], &gpus[usize::from(b)]);
            (core, memory) == (c, m) && (a.memory, a.bytes_known) == (b.memory, b.bytes_known)
        }
        (Part::Nic { percent: a, .. }, Part::Nic { percent: b, .. }) => a == b,
        _ => false,
    }
}

fn kind_of(part: Part) -> DeviceType {
    if matches!(part, Part::Nic { .. }) { DeviceType::Rdma } else { DeviceType::Gpu }
}

fn vfs_of(pool: &NodePool, part: Part) -> impl Iterator<Item = (i32, &DeviceId)> {
    let (nic, mask) = match part {
        Part::Nic { nic, vfs, .. } => (Some(&pool.devices().nics[usize::from(nic)]), vfs),
        _ => (None, 0),
    };
    let found = bits(mask).filter_map(move |at| nic?.vfs.get(usize::from(at)));
    found.map(|vf| (vf.minor, &vf.bus_id))
}

/// By type, minor and id.
fn in_order(pool: &NodePool, a: Part, b: Part) -> Ordering {
    let key = |part: Part| (matches!(part, Part::Nic { .. }), pool.devices().minor(part.slot()));
    key(a).cmp(&key(b)).then_with(|| pool.id(a.slot()).cmp(pool.id(b.slot())))
}

/// `{"gpu":[…],"rdma":[…]}`; puts the parts in that order. `text` gives amounts that have been written before.
fn push_types<'a>(out: &mut String, pool: &NodePool, parts: &mut [Part], text: impl Fn(Part) -> Option<&'a str>) {
    parts.sort_by(|a, b| in_order(pool, *a, *b));
    out.push('{');
    let mut of: Option<DeviceType> = None;
    // Devices of one pod most often have the same amounts: their text is written once.
    let mut last: Option<(Part, Range<usize>)> = None;
    for part in parts.iter() {
        let kind = kind_of(*part);
        if of.as_ref() == Some(&kind) {
            out.push(',');
        } else {
            out.push_str(if of.is_some() { "],\"" } else { "\"" });
            out.push_str(kind.as_str());
            out.push_str("\":[");
            of = Some(kind);
        }
        let vfs: Vec<(i32, &DeviceId)> = vfs_of(pool, *part).collect();
        EntryText { minor: pool.devices().minor(part.slot()), id: pool.id(part.slot()), vfs: &vfs }.push_to(
            out,
            |out| {
                let from = out.len();
                match &last {
                    Some((like, written)) if is_alike(pool, *like, *part) => out.extend_from_within(written.clone()),
                    _ => match text(*part) {
                        Some(text) => out.push_str(text),
                        None => PartAmounts::of(pool, *part).each(|amounts| push_amounts(out, amounts)),
                    },
                }
                last = Some((*part, from..out.len()));
            },
        );
    }
    out.push_str(if of.is_some() { "]}" } else { "}" });
}

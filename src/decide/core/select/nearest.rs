//! The node that lacks least of what a pod asks for, and who holds what is missing there.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::fmt;

use crate::core::rules::{Outcome, Plugins, View};
use crate::devices::{Held, Reason, pick};
use crate::help::Help;
use crate::world::devices::request_of;
use crate::world::{Node, NodeId, Pod, Stock, World, has_left};
use baton_contract::{DeviceType, key};

use super::choose::{judge, prepare};
use super::free::percent;

/// Holders that are named.
const NAMED: usize = 3;
/// Nodes that are judged until one lacks nothing but devices.
const JUDGED: usize = 64;
/// Nodes on which devices are chosen for it.
const PICKED: usize = 256;

/// What a pod has of a node's devices.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
struct HeldCount {
    devices: usize,
    /// Of one of them at least not the whole.
    parts: bool,
}

/// A node with fewer free devices than a pod asks for. Displayed as `node-1 with 4 of 8 (ml/a holds 3, 1 is cordoned)`.
pub struct Nearest<'a> {
    node: &'a Node,
    stock: &'a Stock,
    /// `gpu` or `rdma`.
    kind: DeviceType,
    wanted: i64,
    free: i64,
    /// These are devices, not percents of one.
    counted: bool,
    /// What the empty node has, where that is less than what is wanted.
    total: Option<u32>,
    /// `with 4 of 8`.
    text: String,
    /// Pods and how many devices they hold, most first.
    holders: Vec<(String, HeldCount)>,
    /// `1 is cordoned`.
    others: Vec<String>,
}

/// Of nodes that were refused for their devices alone. `None` where no number says which node is nearest.
pub fn nearest<'a>(world: &World, pod: &Pod, refused: impl Iterator<Item = &'a Node>) -> Option<Nearest<'a>> {
    let request = request_of(pod).ok()?;
    let short = |node: &'a Node| Nearest::of(pick(node.stock.as_ref()?.pool(), &request).err()?, node);
    refused.filter_map(short).min_by_key(Nearest::distance).map(|found| found.blamed(world))
}

/// The first of these nodes by what they lack of the pod's devices; those of which no number says that come last.
pub fn nearest_first<'a>(pod: &Pod, mut nodes: Vec<(NodeId, &'a Node)>, most: usize) -> Vec<NodeId> {
    let request = request_of(pod).ok();
    let distance = |node: &'a Node| {
        let reason = request.as_ref().and_then(|request| pick(node.stock.as_ref()?.pool(), request).err())?;
        Nearest::of(reason, node).map(|found| (found.wanted - found.free, Reverse(found.free)))
    };
    nodes.sort_by_cached_key(|(_, node)| {
        let distance = distance(node);
        (distance.is_none(), distance, &node.name)
    });
    nodes.truncate(most);
    nodes.into_iter().map(|(id, _)| id).collect()
}

/// Of all nodes, while `taken` whole GPUs of a node are as good as held. A node of which something is taken comes after all others, and
/// only where others hold devices too. A gang that waits asks at each attempt, so that devices are chosen only on the nodes that their free
/// counts put first.
pub fn nearest_beside<'a>(
    view: View<'a>,
    rules: &Plugins,
    pod: &Pod,
    taken: &BTreeMap<NodeId, i64>,
) -> Option<Nearest<'a>> {
    let request = request_of(pod).ok()?;
    let asked = percent(&pod.facts.spec.requests);
    let wanted = asked / key::WHOLE;
    let short = |node: &'a Node, taken: i64| {
        let pool = node.stock.as_ref()?.pool();
        let found = match pick(pool, &request) {
            Err(reason) => Nearest::of(reason, node)?,
            Ok(_) if taken > 0 && wanted > 0 => {
                let (free, total) = (pool.summary().free_gpus.count_ones(), pool.summary().gpus);
                Nearest::of(Reason::FewGpus { wanted: wanted as u32, free, total }, node)?
            }
            Ok(_) => return None,
        };
        let found = Nearest { free: found.free - taken, ..found };
        (found.free < found.wanted).then_some(found)
    };
    let first = |(id, node): (NodeId, &'a Node)| {
        let taken = taken.get(&id).copied().unwrap_or(0);
        let (lack, free) = least_lack(node.stock.as_ref()?, asked, taken);
        // One with enough that is free is refused for more than its devices, or not at all.
        let last = taken > 0 || asked > 0 && lack <= 0;
        Some(Reverse((last, (lack, Reverse(free), &*node.name), id)))
    };
    let mut slots = prepare(view, rules, pod).ok()?;
    let inside = view.world.nodes().filter(|(_, node)| slots.outside(node).is_none());
    let mut next: BinaryHeap<_> = inside.filter_map(first).collect();
    let mut chosen: BTreeMap<NodeId, Nearest<'a>> = BTreeMap::new();
    let (mut picks, mut judged) = (0, 0);
    while let Some(Reverse((_, _, id))) = next.pop() {
        let is_taken = taken.get(&id).is_some_and(|taken| *taken > 0);
        let Some(found) = chosen.remove(&id) else {
            picks += 1;
            let Some(node) = view.world.node(id).filter(|_| asked == 0 || picks <= PICKED) else { continue };
            let Some(found) = short(node, taken.get(&id).copied().unwrap_or(0)) else { continue };
            next.push(Reverse((is_taken, found.distance(), id)));
            chosen.insert(id, found);
            continue;
        };
        judged += 1;
        let outcome = judge(view, rules, pod, (id, found.node), &mut slots);
        let for_room = match &outcome {
            Outcome::Unfit(no) => matches!(no.help, Help::Room | Help::LargerNode),
            outcome => is_taken && outcome.is_fit(),
        };
        if for_room {
            // What no other pod holds there is free for those that take it.
            return Some(found.blamed(view.world)).filter(|found| !is_taken || !found.holders.is_empty());
        }
        if judged == JUDGED {
            break;
        }
    }
    None
}

/// How many devices, or percents of one, a node lacks at least by its free counts, and how many are free. What these do not count may
/// be near on any node.
fn least_lack(stock: &Stock, asked: i64, taken: i64) -> (i64, i64) {
    match (asked / key::WHOLE, asked) {
        (wanted @ 1.., _) => {
            let sum = stock.pool().summary();
            // With the strategy `single` MIG devices are offered as GPUs.
            let free = if sum.gpus > 0 { sum.free_gpus } else { sum.free_migs };
            let free = i64::from(free.count_ones()) - taken;
            (wanted - free, free)
        }
        (_, 1..) => {
            let most = stock.gpu_rooms().max().unwrap_or(0);
            (key::WHOLE - most, most)
        }
        _ => (i64::MIN, i64::MAX),
    }
}

impl<'a> Nearest<'a> {
    fn of(reason: Reason, node: &'a Node) -> Option<Self> {
        let stock = node.stock.as_ref()?;
        let of = |kind, wanted: i64, free: i64, text| {
            Some(Self {
                node,
                stock,
                kind,
                wanted,
                free,
                counted: false,
                total: None,
                text,
                holders: Vec::new(),
                others: Vec::new(),
            })
        };
        let counted = |kind, wanted: u32, free: u32, total: u32| {
            let short = of(kind, wanted.into(), free.into(), format!("with {free} of {wanted}"))?;
            Some(Self { counted: true, total: (wanted > total).then_some(total), ..short })
        };
        match reason {
            Reason::FewGpus { wanted, free, total } | Reason::FewMigs { wanted, free, total, .. } => {
                counted(DeviceType::Gpu, wanted, free, total)
            }
            Reason::FewNics { wanted, free, total } => counted(DeviceType::Rdma, wanted, free, total),
            Reason::NoShareRoom { shares: 1, .. } => {
                let most = stock.gpu_rooms().max().unwrap_or(0);
                of(DeviceType::Gpu, 100, most, format!("with {most}% left on its emptiest GPU"))
            }
            Reason::NoNicRoom { percent, most } => {
                of(DeviceType::Rdma, percent.into(), most.into(), format!("with {most}% left on its emptiest NIC"))
            }
            _ => None,
        }
    }

    fn distance(&self) -> (i64, Reverse<i64>, &'a str) {
        (self.wanted - self.free, Reverse(self.free), &self.node.name)
    }

    /// With who holds the devices, and which are out of use.
    fn blamed(mut self, world: &World) -> Self {
        let mut holders: BTreeMap<String, HeldCount> = BTreeMap::new();
        let pods = self.node.pods.iter().filter_map(|id| world.pod(*id));
        let held = pods.filter_map(|pod| Some((pod.key().to_string(), self.node.holding(pod)?)));
        let leaving = self.node.leaving().map(|(pod, held)| (format!("{},", has_left(pod)), held));
        for (holder, held) in held.chain(leaving) {
            let held = Held::of_kind(held, &self.kind);
            if !held.is_empty() {
                holders.entry(holder).or_default().add(HeldCount {
                    devices: held.len(),
                    parts: held.iter().any(|device| device.percent() < key::WHOLE),
                });
            }
        }
        self.holders = holders.into_iter().collect();
        self.holders.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
        let rooms = self.stock.describe();
        let of_kind = rooms.iter().filter(|room| (room.kind == "rdma") == (self.kind == DeviceType::Rdma));
        let out = |healthy: bool| {
            of_kind.clone().filter(|room| room.healthy == healthy && (!healthy || room.cordon.is_some())).count()
        };
        for (count, word) in [(out(true), "cordoned"), (out(false), "unhealthy")] {
            match count {
                0 => {}
                1 => self.others.push(format!("1 is {word}")),
                count => self.others.push(format!("{count} are {word}")),
            }
        }
        self.others.extend(self.total.map(|total| format!("the node has {total}")));
        self
    }

    /// `node-0 lacks 2, held by default/a`.
    pub fn lack(&self) -> String {
        let name = &self.node.name;
        let lack = if self.counted { format!("lacks {}", self.wanted - self.free) } else { self.text.clone() };
        let names: Vec<&str> = self.holders.iter().take(NAMED).map(|(pod, _)| pod.trim_end_matches(',')).collect();
        let held = if names.is_empty() { String::new() } else { format!(", held by {}", names.join(", ")) };
        let more = match self.holders.len().saturating_sub(NAMED) {
            0 => String::new(),
            1 => " and another pod".to_owned(),
            more => format!(" and {more} more pods"),
        };
        let text = format!("{name} {lack}{held}{more}");
        self.others.iter().fold(text, |text, other| format!("{text}, {other}"))
    }
}

impl HeldCount {
    fn add(&mut self, other: Self) {
        self.devices += other.devices;
        self.parts |= other.parts;
    }
}

impl fmt::Display for HeldCount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self { parts: false, devices } => write!(f, "{devices}"),
            Self { devices: 1, .. } => f.write_str("a part of 1"),
            Self { devices, .. } => write!(f, "parts of {devices}"),
        }
    }
}

impl fmt::Display for Nearest<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.node.name, self.text)?;
        let mut parts: Vec<String> =
            self.holders.iter().take(NAMED).map(|(pod, held)| format!("{pod} holds {held}")).collect();
        let mut rest = HeldCount::default();
        self.holders.iter().skip(NAMED).for_each(|(_, held)| rest.add(*held));
        match self.holders.len().saturating_sub(NAMED) {
            0 => {}
            1 => parts.push(format!("another pod holds {rest}")),
            others => parts.push(format!("{others} more hold {rest}")),
        }
        parts.extend(self.others.iter().cloned());
        if parts.is_empty() { Ok(()) } else { write!(f, " ({})", parts.join(", ")) }
    }
}

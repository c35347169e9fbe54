//! The node that lacks least of what a pod asks for, and who holds what is missing there.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use crate::devices::{Held, Reason, pick};
use crate::world::devices::request_of;
use crate::world::{Node, Pod, Stock, World, has_left};
use baton_contract::DeviceType;

/// Holders that are named.
const NAMED: usize = 3;

/// A node with fewer free devices than a pod asks for.
struct Short<'a> {
    node: &'a Node,
    stock: &'a Stock,
    /// `gpu` or `rdma`.
    kind: DeviceType,
    wanted: i64,
    free: i64,
    /// What the empty node has, where that is less than what is wanted.
    total: Option<u32>,
    /// `4 of 8`.
    text: String,
}

/// `node-1 with 4 of 8 (ml/a holds 3, 1 is cordoned)`, of the nodes that were refused for their devices alone. `None` where no
/// number says which node is nearest.
pub(super) fn nearest<'a>(world: &World, pod: &Pod, refused: impl Iterator<Item = &'a Node>) -> Option<String> {
    let request = request_of(pod).ok()?;
    let short = |node: &'a Node| {
        let stock = node.stock.as_ref()?;
        let reason = pick(stock.pool(), &request).err()?;
        let of =
            |kind, wanted: i64, free: i64, text| Some(Short { node, stock, kind, wanted, free, total: None, text });
        let counted = |kind, wanted: u32, free: u32, total: u32| {
            let short = of(kind, wanted.into(), free.into(), format!("with {free} of {wanted}"))?;
            Some(Short { total: (wanted > total).then_some(total), ..short })
        };
        match reason {
            Reason::FewGpus { wanted, free, total } | Reason::FewMigs { wanted, free, total, .. } => {
                counted(DeviceType::Gpu, wanted, free, total)
            }
            Reason::FewNics { wanted, free, total } => counted(DeviceType::Rdma, wanted, free, total),
            Reason::NoShareRoom { shares: 1, .. } => {
                let most = stock.gpu_rooms().into_iter().max().unwrap_or(0);
                of(DeviceType::Gpu, 100, most, format!("with {most}% left on its emptiest GPU"))
            }
            Reason::NoNicRoom { percent, most } => {
                of(DeviceType::Rdma, percent.into(), most.into(), format!("with {most}% left on its emptiest NIC"))
            }
            _ => None,
        }
    };
    let nearest = refused
        .filter_map(short)
        .min_by_key(|short| (short.wanted - short.free, Reverse(short.free), &short.node.name))?;
    let blame = blame(world, &nearest);
    let blame = if blame.is_empty() { String::new() } else { format!(" ({blame})") };
    Some(format!("{} {}{blame}", nearest.node.name, nearest.text))
}

/// Who holds the devices, and which are out of use.
fn blame(world: &World, short: &Short<'_>) -> String {
    let mut holders: BTreeMap<String, usize> = BTreeMap::new();
    for pod in short.node.pods.iter().filter_map(|id| world.pod(*id)) {
        let held = short.node.holding(pod).map_or(0, |held: &Held| held.of_kind(&short.kind).len());
        if held > 0 {
            *holders.entry(pod.key().to_string()).or_default() += held;
        }
    }
    for (pod, held) in short.node.leaving() {
        let held = held.of_kind(&short.kind).len();
        if held > 0 {
            *holders.entry(format!("{},", has_left(pod))).or_default() += held;
        }
    }
    let mut holders: Vec<(String, usize)> = holders.into_iter().collect();
    holders.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
    let rest: usize = holders.iter().skip(NAMED).map(|(_, held)| held).sum();
    let others = holders.len().saturating_sub(NAMED);
    let mut parts: Vec<String> = holders.iter().take(NAMED).map(|(pod, held)| format!("{pod} holds {held}")).collect();
    match others {
        0 => {}
        1 => parts.push(format!("another pod holds {rest}")),
        others => parts.push(format!("{others} more hold {rest}")),
    }
    let of_kind = |room: &&crate::world::devices::DeviceRoom| (room.kind == "rdma") == (short.kind == DeviceType::Rdma);
    let rooms = short.stock.describe();
    let cordoned = rooms.iter().filter(of_kind).filter(|room| room.healthy && room.cordon.is_some()).count();
    let unhealthy = rooms.iter().filter(of_kind).filter(|room| !room.healthy).count();
    for (count, word) in [(cordoned, "cordoned"), (unhealthy, "unhealthy")] {
        match count {
            0 => {}
            1 => parts.push(format!("1 is {word}")),
            count => parts.push(format!("{count} are {word}")),
        }
    }
    parts.extend(short.total.map(|total| format!("the node has {total}")));
    parts.join(", ")
}

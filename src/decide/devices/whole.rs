//! The best set of whole GPUs.
//!
//! GPUs with the same place are the same to every part of the objective but the minors, so of each such cell only the lowest
//! minors are ever part of the best set: the search counts how many to take from each cell. Up to 16 candidates that is at
//! most 12,870 sets and the answer is exact; it stays exact above as long as the counts are few, and is greedy beyond.

use super::objective::{Dispersion, Objective, objective};
use super::place::{DevicePlace, bit, bits};
use super::pool::NodePool;

/// Most sets that are looked at before the search turns greedy: no 16 candidates have more.
pub const MAX_SETS: u64 = 12_870;

/// The best set, and how many sets were looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Best {
    /// Mask of GPU numbers and how good it is; `None` when no set is acceptable.
    pub set: Option<(u128, Objective)>,
    /// Sets looked at.
    pub looked_at: u64,
}

/// Candidates of one place, lowest minor first.
pub(super) struct Cell {
    pub place: DevicePlace,
    pub gpus: Vec<u8>,
}

/// Chooses `count` of `candidates`. `nic_distance` tells how far the NICs of a set would be, `None` when the set cannot be
/// used; it is 0 where NICs do not matter. Tests compare it with a look at every set.
pub fn best(pool: &NodePool, candidates: u128, count: u32, mut nic_distance: impl FnMut(u128) -> Option<u32>) -> Best {
    best_split(pool, candidates, count, |set| Some((Dispersion::default(), nic_distance(set)?)))
}

/// [`best()`] for several containers: `split` tells, besides, how far apart their own GPUs of a set would lie.
pub(super) fn best_split(
    pool: &NodePool,
    candidates: u128,
    count: u32,
    mut split: impl FnMut(u128) -> Option<(Dispersion, u32)>,
) -> Best {
    let mut best = Best { set: None, looked_at: 0 };
    if count == 0 || candidates.count_ones() < count {
        return best;
    }
    let cells = cells(pool, candidates);
    let mut judge = |set: u128, best: &mut Best| {
        best.looked_at += 1;
        if let Some((spread, distance)) = split(set) {
            let value = Objective { spread, ..objective(pool, set, distance) };
            if best.set.is_none_or(|(_, least)| value < least) {
                best.set = Some((set, value));
            }
        }
    };
    if ways(&cells, count) <= MAX_SETS {
        each(&cells, count, 0, &mut |set| {
            judge(set, &mut best);
            false
        });
    } else {
        for seed in 0..cells.len() {
            judge(grown(&cells, seed, count), &mut best);
        }
    }
    best
}

pub(super) fn cells(pool: &NodePool, candidates: u128) -> Vec<Cell> {
    let gpus = &pool.devices().gpus;
    let mut order: Vec<u8> = bits(candidates).collect();
    order.sort_by_key(|at| (gpus[usize::from(*at)].common.minor, *at));
    let mut cells: Vec<Cell> = Vec::new();
    for at in order {
        let place = gpus[usize::from(at)].common.place;
        match cells.iter_mut().find(|cell| cell.place == place) {
            Some(cell) => cell.gpus.push(at),
            None => cells.push(Cell { place, gpus: vec![at] }),
        }
    }
    cells
}

/// In how many ways `count` GPUs can be counted out of the cells; saturates.
pub(super) fn ways(cells: &[Cell], count: u32) -> u64 {
    let count = count as usize;
    let mut ways = vec![0u64; count + 1];
    ways[0] = 1;
    for cell in cells {
        for total in (1..=count).rev() {
            let most = cell.gpus.len().min(total);
            ways[total] = (0..=most).fold(0, |sum: u64, n| sum.saturating_add(ways[total - n]));
        }
    }
    ways[count]
}

/// Calls `found` with ways to take `left` GPUs from `cells`, in addition to `taken`, until it answers `true`.
pub(super) fn each(cells: &[Cell], left: u32, taken: u128, found: &mut impl FnMut(u128) -> bool) -> bool {
    if left == 0 {
        return found(taken);
    }
    let Some((cell, rest)) = cells.split_first() else { return false };
    let later: u32 = rest.iter().map(|cell| cell.gpus.len() as u32).sum();
    let mut set = taken;
    for n in 0..=cell.gpus.len().min(left as usize) {
        if n > 0 {
            set |= bit(cell.gpus[n - 1]);
        }
        if left - n as u32 <= later && each(rest, left - n as u32, set, found) {
            return true;
        }
    }
    false
}

/// `count` GPUs from the cell `seed` and the cells nearest to it.
pub(super) fn grown(cells: &[Cell], seed: usize, count: u32) -> u128 {
    let start = cells[seed].place;
    let mut order: Vec<usize> = (0..cells.len()).collect();
    let other_domain = |place: DevicePlace| place.nvlink != start.nvlink;
    order.sort_by_key(|at| (*at != seed, other_domain(cells[*at].place), cells[*at].place.distance(start), *at));
    let nearest = order.iter().flat_map(|at| cells[*at].gpus.iter());
    nearest.take(count as usize).fold(0, |set, at| set | bit(*at))
}

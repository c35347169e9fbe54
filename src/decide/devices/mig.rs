//! MIG devices by profile: from the parents that are already cut into most, so that whole parents stay free.

use super::grant::Part;
use super::place::{bit, bits};
use super::pool::NodePool;

/// Those of `candidates` (numbers of this pool) that are of `profile`.
pub(super) fn of_profile(pool: &NodePool, candidates: u128, profile: &str) -> u128 {
    let migs = &pool.devices().migs;
    bits(candidates).filter(|at| *migs[usize::from(*at)].profile == *profile).fold(0, |mask, at| mask | bit(at))
}

/// Adds the MIG devices of `split` to what the containers hold.
pub(super) fn hand_out(split: &[Vec<u8>], containers: &mut [Vec<Part>]) {
    for (parts, own) in containers.iter_mut().zip(split) {
        parts.extend(own.iter().map(|mig| Part::Mig { mig: *mig }));
    }
}

/// Free MIG devices of the parents that these parts are of: the fewer, the more these are cut into already.
pub(super) fn opened(pool: &NodePool, containers: &[Vec<Part>]) -> u32 {
    let migs = &pool.devices().migs;
    let taken = containers.iter().flatten().filter_map(|part| match part {
        Part::Mig { mig } => Some(&migs[usize::from(*mig)].parent),
        _ => None,
    });
    let parents: Vec<_> = taken.collect();
    let open = bits(pool.summary().free_migs).filter(|at| parents.contains(&&migs[usize::from(*at)].parent));
    open.count() as u32
}

/// Chooses `count` of `candidates`, all of one profile: on one parent where one suffices (of these, the one with the fewest
/// free MIG devices), else from the parents with the most candidates, to touch few.
pub(super) fn choose(pool: &NodePool, candidates: u128, count: u32) -> Option<Vec<u8>> {
    if candidates.count_ones() < count {
        return None;
    }
    let migs = &pool.devices().migs;
    let siblings = |at: u8, among: u128| {
        let parent = &migs[usize::from(at)].parent;
        bits(among).filter(|other| migs[usize::from(*other)].parent == *parent).fold(0u128, |mask, at| mask | bit(at))
    };
    let (mut left, mut chosen) = (candidates, Vec::with_capacity(count as usize));
    while (chosen.len() as u32) < count {
        let wanted = count - chosen.len() as u32;
        let next = bits(left).min_by_key(|at| {
            let here = siblings(*at, left).count_ones();
            let free = siblings(*at, pool.summary().free_migs).count_ones();
            let enough = here >= wanted;
            (!enough, if enough { free } else { u32::MAX - here }, migs[usize::from(*at)].minor, *at)
        })?;
        for at in bits(siblings(next, left)).take(wanted as usize) {
            left &= !bit(at);
            chosen.push(at);
        }
    }
    Some(chosen)
}

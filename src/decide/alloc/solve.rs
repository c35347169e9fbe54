//! Puts pieces onto devices one after the other, each onto its first choice that leaves room for all others.

use std::cell::Cell;

/// Most choices that one search tries; far above what pods of a few containers need, and a bound on hostile ones.
const MAX_TRIES: u32 = 1024;

/// Most choices that all searches for one pod on one node try.
pub(super) const MAX_TRIES_OF_POD: u32 = 1 << 16;

/// A device for each of `pieces` pieces. `options(chosen)` tells the devices that the next piece may go to, best first, when
/// the pieces before it lie on `chosen`; `holds` what must be true of a complete choice. The first one in that order is taken;
/// `None` when there is none. `left` counts the tries that the pod has left.
pub(super) fn solve(
    pieces: usize,
    options: &dyn Fn(&[u8]) -> Vec<u8>,
    holds: &dyn Fn(&[u8]) -> bool,
    left: &Cell<u32>,
) -> Option<Vec<u8>> {
    struct Search<'a> {
        pieces: usize,
        options: &'a dyn Fn(&[u8]) -> Vec<u8>,
        holds: &'a dyn Fn(&[u8]) -> bool,
        tries: u32,
    }
    fn go(search: &mut Search<'_>, chosen: &mut Vec<u8>) -> bool {
        if chosen.len() == search.pieces {
            return (search.holds)(chosen);
        }
        for device in (search.options)(chosen) {
            if search.tries == 0 {
                return false;
            }
            search.tries -= 1;
            chosen.push(device);
            if go(search, chosen) {
                return true;
            }
            chosen.pop();
        }
        false
    }
    // The first way down is always tried: without wishes it is the only one that matters.
    let granted = MAX_TRIES.min(left.get().max(pieces as u32));
    let (mut chosen, mut search) = (Vec::with_capacity(pieces), Search { pieces, options, holds, tries: granted });
    let found = go(&mut search, &mut chosen);
    left.set(left.get().saturating_sub(granted - search.tries));
    found.then_some(chosen)
}

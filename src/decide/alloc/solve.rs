//! Puts pieces onto devices one after the other, each onto its first choice that leaves room for all others.

/// Most choices that are tried; far above what pods of a few containers need, and a bound on hostile ones.
const MAX_TRIES: u32 = 1024;

/// A device for each of `pieces` pieces. `options(chosen)` tells the devices that the next piece may go to, best first, when
/// the pieces before it lie on `chosen`. The first complete choice in that order is taken; `None` when there is none.
pub(super) fn solve(pieces: usize, options: &dyn Fn(&[u8]) -> Vec<u8>) -> Option<Vec<u8>> {
    fn go(pieces: usize, chosen: &mut Vec<u8>, options: &dyn Fn(&[u8]) -> Vec<u8>, tries: &mut u32) -> bool {
        if chosen.len() == pieces {
            return true;
        }
        for device in options(chosen) {
            if *tries == 0 {
                return false;
            }
            *tries -= 1;
            chosen.push(device);
            if go(pieces, chosen, options, tries) {
                return true;
            }
            chosen.pop();
        }
        false
    }
    let (mut chosen, mut tries) = (Vec::with_capacity(pieces), MAX_TRIES);
    go(pieces, &mut chosen, options, &mut tries).then_some(chosen)
}

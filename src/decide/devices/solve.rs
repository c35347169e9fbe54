//! Puts pieces onto devices one after the other, each onto its first choice that leaves room for all others.

use std::cell::Cell;
use std::collections::BTreeSet;

/// Most choices that one search tries; far above what pods of a few containers need, and a bound on hostile ones.
const MAX_TRIES: u32 = 4096;

/// Most choices that all searches for one pod on one node try.
pub(super) const MAX_TRIES_OF_POD: u32 = 1 << 16;

/// What tells two states of a search apart.
pub(super) type SearchState = Vec<i64>;

/// What is to be placed, and how.
pub(super) struct DeviceSearch<'a> {
    /// How many pieces.
    pub pieces: usize,
    /// Where the first of them lie already.
    pub first: &'a [u8],
    /// The devices that the next piece may go to, best first, when the pieces before it lie on `chosen`.
    pub options: &'a dyn Fn(&[u8]) -> Vec<u8>,
    /// What must be true of a complete choice.
    pub holds: &'a dyn Fn(&[u8]) -> bool,
    /// States of which one has a complete choice exactly when an equal one has: what was in vain is not tried again.
    pub state: &'a dyn Fn(&[u8]) -> SearchState,
}

/// A device for each piece: the first complete choice in the order of the options; `None` when there is none. `left` counts the
/// tries that the pod has left.
pub(super) fn solve(search: &DeviceSearch<'_>, left: &Cell<u32>) -> Option<Vec<u8>> {
    // The first way down is always tried: without wishes it is the only one that matters.
    let granted = MAX_TRIES.min(left.get().max(search.pieces as u32));
    let mut run = SearchRun { search, tries: granted, dead: BTreeSet::new() };
    let mut chosen = Vec::with_capacity(search.pieces);
    chosen.extend(search.first);
    let found = run.go(&mut chosen);
    left.set(left.get().saturating_sub(granted - run.tries));
    found.then_some(chosen)
}

struct SearchRun<'a> {
    search: &'a DeviceSearch<'a>,
    tries: u32,
    dead: BTreeSet<(usize, SearchState)>,
}

impl SearchRun<'_> {
    fn go(&mut self, chosen: &mut Vec<u8>) -> bool {
        if chosen.len() == self.search.pieces {
            return (self.search.holds)(chosen);
        }
        let known = |dead: &BTreeSet<(usize, SearchState)>, chosen: &[u8]| {
            !dead.is_empty() && dead.contains(&(chosen.len(), (self.search.state)(chosen)))
        };
        if known(&self.dead, chosen) {
            return false;
        }
        for device in (self.search.options)(chosen) {
            if self.tries == 0 {
                return false;
            }
            chosen.push(device);
            if !known(&self.dead, chosen) {
                self.tries -= 1;
                if self.go(chosen) {
                    return true;
                }
            }
            chosen.pop();
        }
        if self.tries > 0 {
            self.dead.insert((chosen.len(), (self.search.state)(chosen)));
        }
        false
    }
}

/// The state in which each owner's pieces lie on those devices, in whichever order it got them.
pub(super) fn by_owner<T: PartialEq>(owners: &[T], chosen: &[u8]) -> SearchState {
    let mut state: SearchState = Vec::with_capacity(chosen.len());
    let mut from = 0;
    for (at, device) in chosen.iter().enumerate() {
        if at > 0 && owners[at] != owners[at - 1] {
            state[from..].sort_unstable();
            from = at;
        }
        state.push(i64::from(*device));
    }
    state[from..].sort_unstable();
    state
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_of_one_owner_may_change_places_and_those_of_two_may_not() {
        assert_eq!(by_owner(&["a", "a", "b"], &[3, 1, 2]), [1, 3, 2]);
        assert_eq!(by_owner(&["a", "b"], &[3, 1]), [3, 1]);
    }

    #[test]
    fn a_search_ends_with_the_first_choice_that_holds_or_with_none() {
        let options = |chosen: &[u8]| (0..4u8).filter(|at| !chosen.contains(at)).collect::<Vec<u8>>();
        let owners = ["a"; 3];
        let state = |chosen: &[u8]| by_owner(&owners, chosen);
        let find = |holds: &dyn Fn(&[u8]) -> bool| {
            let left = Cell::new(MAX_TRIES_OF_POD);
            let search = DeviceSearch { pieces: 3, first: &[], options: &options, holds, state: &state };
            (solve(&search, &left), MAX_TRIES_OF_POD - left.get())
        };
        assert_eq!(find(&|chosen| chosen.contains(&3)).0, Some(vec![0, 1, 3]));
        let (none, tries) = find(&|_| false);
        assert_eq!(none, None);
        assert!(tries <= 4 + 6 + 4 * 6, "each set is tried once, not in each order: {tries}");
    }
}

//! What placing pods costs, in placements that a search tries: it bounds what one call does, without a clock.

/// Judging so many nodes costs as much as one placement that a search tries.
pub const LOOKS: u64 = 16;
/// What the searches of one call may cost: as much as one in each of 16 domains and what follows. About a second.
const MOST: u64 = 200_000;

/// What placing pods has cost, in placements that a search tries: nodes that are judged and pods that are compared count, too.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PlacingCost {
    done: u64,
    /// At which the searches of the present call end.
    until: u64,
}

impl PlacingCost {
    /// A call begins, or the last that it tries: its searches may cost as much as those of any other.
    pub const fn begin(&mut self) {
        self.until = self.done + MOST;
    }

    /// Since the start of the process.
    pub const fn done(self) -> u64 {
        self.done
    }

    /// Counts more.
    pub const fn add(&mut self, more: u64) {
        self.done += more;
    }

    /// Nothing is left for searches in this call.
    pub const fn is_spent(self) -> bool {
        self.done >= self.until
    }

    /// No more than half is left.
    pub const fn is_half_spent(self) -> bool {
        self.done + MOST / 2 >= self.until
    }
}

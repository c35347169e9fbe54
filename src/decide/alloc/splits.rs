//! Who of a pod's containers gets which GPUs of a set, where their NICs have a say.

use super::grant::Part;
use super::need::Need;
use super::phases::{overlap, split};
use super::pick::Choice;
use super::place::{Level, Place, bit, bits};
use super::whole;
use crate::decide::pod::ContainerKind;

/// Most ways to split one set of GPUs that NICs are searched for.
const MAX_SPLITS: u32 = 256;
/// What one of them costs of the pod's tries; one that is only looked at costs one.
const SPLIT: u32 = 8;
/// Most GPUs of one container that are looked at for one set.
const MAX_LOOKS: u32 = 8192;

/// The containers of one pod that want whole GPUs, and what they hold besides.
pub(super) struct Splits<'a, 'b> {
    choice: &'a Choice<'b>,
    counts: &'a [u32],
    others: &'a [Vec<Part>],
    /// Containers that want GPUs, in the order in which they choose.
    order: Vec<usize>,
    /// The GPUs that each container may have, as far as one GPU alone can tell.
    reach: Vec<u128>,
}

/// The search among the ways to split one set.
struct Ways {
    set: u128,
    split: Vec<Vec<u8>>,
    best: Option<(u32, Vec<Vec<u8>>)>,
    /// No way is nearer than this.
    least: u32,
    /// Containers of which every choice is looked at.
    exact: Vec<bool>,
    looks: u32,
    searches: u32,
}

impl Ways {
    fn is_best(&self) -> bool {
        self.best.as_ref().is_some_and(|(distance, _)| *distance <= self.least)
    }
}

impl<'a, 'b> Splits<'a, 'b> {
    /// `counts` of `candidates` for the containers, which hold `others` already.
    pub fn new(choice: &'a Choice<'b>, candidates: u128, counts: &'a [u32], others: &'a [Vec<Part>]) -> Self {
        let cells = if choice.strict() && choice.joint_nics() { whole::cells(choice.pool, candidates) } else { vec![] };
        let reach = (0..counts.len()).map(|at| {
            if counts[at] == 0 || !choice.strict() || !choice.has_nics_to_be_near(at) {
                return u128::MAX;
            }
            let near = cells.iter().filter(|cell| choice.steps_to_nics(at, cell.place).is_some());
            near.flat_map(|cell| &cell.gpus).fold(0, |mask, gpu| mask | bit(*gpu))
        });
        // Those that have NICs to be near choose first, plain init containers reuse what the others hold.
        let mut order: Vec<usize> = (0..counts.len()).filter(|at| counts[*at] > 0).collect();
        let rank = |at: &usize| (choice.kinds[*at] == ContainerKind::Init, !choice.has_nics_to_be_near(*at), *at);
        order.sort_by_key(rank);
        Self { choice, counts, others, order, reach: reach.collect() }
    }

    /// `false` when no way to split GPUs of `open` can hold, as far as can be said without choosing NICs.
    pub fn may_fit(&self, open: u128) -> bool {
        self.may_all_fit(0, |_| open)
    }

    /// Which container gets which GPUs of `set`, and how far the NICs are then: containers take neighbours, unless another
    /// way brings their NICs nearer. `None` where NICs must be near and no way brings them there.
    pub fn of(&self, set: u128) -> Option<(u32, Vec<Vec<u8>>)> {
        let choice = self.choice;
        choice.looked.set(choice.looked.get() + 1);
        let first = split(&choice.kinds, self.counts, &choice.neighbours(set));
        if !choice.joint_nics() {
            return Some((0, first));
        }
        if !self.may_fit(set) {
            return None;
        }
        let best = self.steps(&first).map(|distance| (distance, first));
        if best.as_ref().is_some_and(|(distance, _)| *distance == 0) || self.order.len() < 2 {
            return best;
        }
        let few = |at: usize| {
            whole::ways(&whole::cells(choice.pool, set & self.reach[at]), self.counts[at]) <= whole::MAX_SETS
        };
        let mut ways = Ways {
            set,
            split: vec![Vec::new(); self.counts.len()],
            best,
            least: self.least(set),
            exact: (0..self.counts.len()).map(few).collect(),
            looks: MAX_LOOKS,
            searches: MAX_SPLITS,
        };
        if !ways.is_best() {
            self.each(0, &mut ways);
        }
        ways.best
    }

    /// How far the NICs are when the whole GPUs are split like this.
    fn steps(&self, split: &[Vec<u8>]) -> Option<u32> {
        let own = |at: usize| self.places(split[at].iter().fold(0, |mask, gpu| mask | bit(*gpu)));
        if self.choice.strict() && !self.order.iter().all(|at| self.choice.has_enough_near(*at, &own(*at))) {
            return None;
        }
        let mut containers = self.others.to_vec();
        self.choice.hand_out(split, &mut containers);
        self.choice.nic_distance(&containers)
    }

    /// What the distance comes to when every container has the GPUs of `set` nearest to its NICs, and NICs of its own.
    fn least(&self, set: u128) -> u32 {
        let needs = &self.choice.needs;
        let own = self.order.iter().filter(|at| needs[**at].nic_count() > 0);
        own.filter_map(|at| self.choice.steps_to_nics_of(&needs[*at], &self.places(set & self.reach[*at]))).sum()
    }

    /// Goes through the ways to split the set over the containers from `depth` on; `true` when it is time to stop.
    fn each(&self, depth: usize, ways: &mut Ways) -> bool {
        let Some(at) = self.order.get(depth).copied() else { return self.judge(ways) };
        let choice = self.choice;
        let count = self.counts[at];
        if !choice.has_nics_to_be_near(at) {
            let open = self.open(at, ways);
            ways.split[at] = choice.neighbours(open).into_iter().take(count as usize).collect();
            let done = self.each(depth + 1, ways);
            ways.split[at].clear();
            return done;
        }
        if !self.may_all_fit(depth, |later| self.open(later, ways)) {
            return false;
        }
        // Of two containers that ask for the same, one order is as good as the other.
        let twin = depth.checked_sub(1).map(|before| self.order[before]);
        let twin = twin.filter(|other| ways.exact[at] && self.are_twins(*other, at));
        let before = twin.map(|other| self.places(ways.split[other].iter().fold(0, |mask, gpu| mask | bit(*gpu))));
        let cells = whole::cells(choice.pool, self.open(at, ways) & self.reach[at]);
        let broad = !ways.exact[at] && whole::ways(&cells, count) > whole::MAX_SETS;
        let mut look = |own: u128| {
            let left = choice.tries.get();
            if ways.looks == 0 || left == 0 {
                return true;
            }
            ways.looks -= 1;
            choice.tries.set(left - 1);
            choice.looked.set(choice.looked.get() + 1);
            let places = self.places(own);
            if before.as_ref().is_some_and(|before| places > *before)
                || (choice.strict() && choice.too_many(at, &places))
            {
                return false;
            }
            ways.split[at] = bits(own).collect();
            let done = self.each(depth + 1, ways);
            ways.split[at].clear();
            done
        };
        // Where there are too many choices to look at all, those side by side come first.
        (broad && (0..cells.len()).any(|seed| look(whole::grown(&cells, seed, count))))
            || whole::each(&cells, count, 0, &mut look)
    }

    /// Chooses NICs for a complete split; `true` when it is time to stop.
    fn judge(&self, ways: &mut Ways) -> bool {
        let left = self.choice.tries.get();
        if ways.searches == 0 || left < SPLIT {
            return true;
        }
        ways.searches -= 1;
        self.choice.tries.set(left - SPLIT);
        if let Some(distance) = self.steps(&ways.split)
            && ways.best.as_ref().is_none_or(|(least, _)| distance < *least)
        {
            ways.best = Some((distance, ways.split.clone()));
        }
        ways.is_best()
    }

    /// GPUs of the set that nobody holds who runs together with the container.
    fn open(&self, at: usize, ways: &Ways) -> u128 {
        let held = ways.split.iter().enumerate().filter(|(other, _)| overlap(&self.choice.kinds, *other, at));
        ways.set & !held.flat_map(|(_, own)| own).fold(0, |mask, gpu| mask | bit(*gpu))
    }

    /// Each of the containers from `depth` on may find GPUs near NICs among those that are `open` to it, and those that stay
    /// may all find some.
    fn may_all_fit(&self, depth: usize, open: impl Fn(usize) -> u128) -> bool {
        let choice = self.choice;
        if !choice.strict() || !choice.joint_nics() {
            return true;
        }
        let (mut wanted, mut offered) = (0, 0u128);
        for at in self.order[depth..].iter().copied().filter(|at| choice.has_nics_to_be_near(*at)) {
            let (open, count) = (open(at) & self.reach[at], self.counts[at]);
            let nics = choice.needs[at].nic_count();
            let few = |level| nics == 0 || self.fewest(open, count, level) <= nics;
            if open.count_ones() < count || !(few(Level::Switch) || few(Level::Root)) {
                return false;
            }
            if choice.kinds[at] != ContainerKind::Init {
                wanted += count;
                offered |= open;
            }
        }
        offered.count_ones() >= wanted
    }

    /// Over how many groups `count` GPUs of `open` are spread at least.
    fn fewest(&self, open: u128, count: u32, level: Level) -> u32 {
        let mut groups: Vec<(u8, u32)> = Vec::new();
        for at in bits(open) {
            let group = self.choice.pool.devices().gpus[usize::from(at)].place.at(level);
            match groups.iter_mut().find(|(known, _)| *known == group) {
                Some((_, size)) => *size += 1,
                None => groups.push((group, 1)),
            }
        }
        groups.sort_unstable_by_key(|(_, size)| std::cmp::Reverse(*size));
        let (mut left, mut fewest) = (count, 0);
        for (_, size) in groups {
            if left == 0 {
                break;
            }
            left = left.saturating_sub(size);
            fewest += 1;
        }
        fewest
    }

    /// The two containers run at the same times and ask for the same. Only apps do for sure: what runs beside an init
    /// container depends on when it starts.
    fn are_twins(&self, one: usize, other: usize) -> bool {
        let app = |at: usize| self.choice.kinds[at] == ContainerKind::App;
        let asks = |at: usize| {
            let Need { whole, share, mig, nics, nic_share } = &self.choice.needs[at];
            (*whole, *share, *mig, *nics, *nic_share)
        };
        app(one) && app(other) && asks(one) == asks(other)
    }

    fn places(&self, set: u128) -> Vec<Place> {
        let gpus = &self.choice.pool.devices().gpus;
        let mut places: Vec<Place> = bits(set).map(|at| gpus[usize::from(at)].place).collect();
        places.sort_unstable();
        places
    }
}

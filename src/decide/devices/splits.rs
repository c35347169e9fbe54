//! Which of a pod's containers gets which GPUs of a set: those that are near each other, or, where NICs have a say, near NICs.

use super::grant::Part;
use super::objective::Dispersion;
use super::phases::{overlap, split};
use super::pick::{Need, PickInput};
use super::place::{DevicePlace, DeviceSet, Level, bits, mask};
use super::pool::NodePool;
use super::whole;
use crate::pod::ContainerKind;

/// Most ways to split one set of GPUs that NICs are searched for.
const MAX_SPLITS: u32 = 256;
/// What one of them costs of the pod's tries; one that is only looked at costs one.
const SPLIT: u32 = 8;
/// Most GPUs of one container that are looked at for one set.
const MAX_LOOKS: u32 = 8192;
/// The same where NICs have no say.
const MAX_NEAREST: u32 = 1024;

/// The containers of one pod that want whole GPUs, and what they hold besides.
pub(super) struct Splits<'a, 'b> {
    choice: &'a PickInput<'b>,
    counts: &'a [u32],
    others: &'a [Vec<Part>],
    /// Containers that want GPUs, in the order in which they choose.
    order: Vec<usize>,
    /// The GPUs that each container may have, as far as one GPU alone can tell.
    reach: Vec<u128>,
}

/// One way to split a set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Split {
    /// How far apart the GPUs of each container lie, where NICs have no say.
    pub spread: Dispersion,
    /// How far the NICs are, where they have.
    pub distance: u32,
    /// GPUs by container.
    pub gpus: Vec<Vec<u8>>,
}

/// The search among the ways to split one set.
struct SplitSearch {
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

impl SplitSearch {
    fn is_best(&self) -> bool {
        self.best.as_ref().is_some_and(|(distance, _)| *distance <= self.least)
    }
}

/// The search for the way in which each container's own GPUs are nearest to each other.
struct NearestSearch {
    set: u128,
    /// Containers in the order in which they choose.
    order: Vec<usize>,
    /// What the containers from each place in that order on come to at least.
    least: Vec<Dispersion>,
    split: Vec<Vec<u8>>,
    /// Of the containers that have chosen.
    so_far: Dispersion,
    best: Split,
    looks: u32,
}

impl<'a, 'b> Splits<'a, 'b> {
    /// `counts` of `candidates` for the containers, which hold `others` already.
    pub fn new(choice: &'a PickInput<'b>, candidates: u128, counts: &'a [u32], others: &'a [Vec<Part>]) -> Self {
        let cells = if choice.strict() && choice.joint_nics() { whole::cells(choice.pool, candidates) } else { vec![] };
        let reach = (0..counts.len()).map(|at| {
            if counts[at] == 0 || !choice.strict() || !choice.has_nics_to_be_near(at) {
                return u128::MAX;
            }
            let near = cells.iter().filter(|cell| choice.steps_to_nics(at, cell.place).is_some());
            mask(near.flat_map(|cell| &cell.gpus).copied())
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

    /// There is one container to give GPUs to, and no NIC has a say.
    pub fn are_trivial(&self) -> bool {
        self.order.len() < 2 && !self.choice.joint_nics()
    }

    /// Which container gets which GPUs of `set`, and how far the NICs are then: containers take neighbours, unless another
    /// way brings their GPUs nearer to each other, or to their NICs where these have a say. `None` where NICs must be near
    /// and no way brings them there.
    pub fn of(&self, set: u128) -> Option<Split> {
        let choice = self.choice;
        choice.looked.set(choice.looked.get() + 1);
        let first = split(&choice.kinds, self.counts, &choice.neighbours(set));
        if !choice.joint_nics() {
            return Some(self.nearest(set, first));
        }
        let (distance, split) = self.near_nics(set, first)?;
        Some(Split { spread: Dispersion::default(), distance, gpus: split })
    }

    /// The way in which each container's own GPUs of `set` are nearest to each other; `first` where none is better.
    fn nearest(&self, set: u128, first: Vec<Vec<u8>>) -> Split {
        if self.order.len() < 2 {
            return Split { spread: Dispersion::default(), distance: 0, gpus: first };
        }
        let pool = self.choice.pool;
        let mut order = self.order.clone();
        // Large ones are hard to place.
        order.sort_by_key(|at| {
            (self.choice.kinds[*at] == ContainerKind::Init, std::cmp::Reverse(self.counts[*at]), *at)
        });
        let of = |at: &usize| spread(pool, mask(first[*at].iter().copied()));
        let mut least = vec![Dispersion::default(); order.len() + 1];
        for (depth, at) in order.iter().enumerate().rev() {
            least[depth] = least[depth + 1].plus(least_spread(pool, set, self.counts[*at]));
        }
        let best = Split {
            spread: order.iter().map(of).fold(Dispersion::default(), Dispersion::plus),
            distance: 0,
            gpus: first,
        };
        let split = vec![Vec::new(); self.counts.len()];
        let mut search =
            NearestSearch { set, order, least, split, so_far: Dispersion::default(), best, looks: MAX_NEAREST };
        if search.best.spread > search.least[0] {
            self.each_near(0, &mut search);
        }
        search.best
    }

    /// Goes through the GPUs that the containers from `depth` on may have; `true` when it is time to stop.
    fn each_near(&self, depth: usize, search: &mut NearestSearch) -> bool {
        let Some(at) = search.order.get(depth).copied() else {
            search.best = Split { spread: search.so_far, distance: 0, gpus: search.split.clone() };
            return search.best.spread <= search.least[0];
        };
        let choice = self.choice;
        let before = search.so_far;
        let cells = whole::cells(choice.pool, self.open(at, search.set, &search.split));
        whole::each(&cells, self.counts[at], 0, &mut |own| {
            let left = choice.tries.get();
            if search.looks == 0 || left == 0 {
                return true;
            }
            search.looks -= 1;
            choice.tries.set(left - 1);
            search.so_far = before.plus(spread(choice.pool, own));
            if search.so_far.plus(search.least[depth + 1]) >= search.best.spread {
                return false;
            }
            search.split[at] = bits(own).collect();
            let done = self.each_near(depth + 1, search);
            search.split[at].clear();
            done
        })
    }

    /// [`Self::of`] where NICs have a say: how far they are, and the split.
    fn near_nics(&self, set: u128, first: Vec<Vec<u8>>) -> Option<(u32, Vec<Vec<u8>>)> {
        let choice = self.choice;
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
        let mut ways = SplitSearch {
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
        let own = |at: usize| self.places(mask(split[at].iter().copied()));
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
    fn each(&self, depth: usize, ways: &mut SplitSearch) -> bool {
        let Some(at) = self.order.get(depth).copied() else { return self.judge(ways) };
        let choice = self.choice;
        let count = self.counts[at];
        if !choice.has_nics_to_be_near(at) {
            let open = self.open(at, ways.set, &ways.split);
            ways.split[at] = choice.neighbours(open).into_iter().take(count as usize).collect();
            let done = self.each(depth + 1, ways);
            ways.split[at].clear();
            return done;
        }
        if !self.may_all_fit(depth, |later| self.open(later, ways.set, &ways.split)) {
            return false;
        }
        // Of two containers that ask for the same, one order is as good as the other.
        let same = depth.checked_sub(1).map(|before| self.order[before]);
        let same = same.filter(|other| ways.exact[at] && self.ask_the_same(*other, at));
        let before = same.map(|other| self.places(mask(ways.split[other].iter().copied())));
        let cells = whole::cells(choice.pool, self.open(at, ways.set, &ways.split) & self.reach[at]);
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
    fn judge(&self, ways: &mut SplitSearch) -> bool {
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

    /// GPUs of the set that no container holds which runs together with this one.
    fn open(&self, at: usize, set: u128, split: &[Vec<u8>]) -> u128 {
        let held = split.iter().enumerate().filter(|(other, _)| overlap(&self.choice.kinds, *other, at));
        set & !mask(held.flat_map(|(_, own)| own).copied())
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
            let group = self.choice.pool.devices().gpus[usize::from(at)].common.place.at(level);
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
    fn ask_the_same(&self, one: usize, other: usize) -> bool {
        let app = |at: usize| self.choice.kinds[at] == ContainerKind::App;
        let asks = |at: usize| {
            let Need { whole, share, mig, nics, nic_share } = &self.choice.needs[at];
            (*whole, *share, *mig, *nics, *nic_share)
        };
        app(one) && app(other) && asks(one) == asks(other)
    }

    fn places(&self, set: u128) -> Vec<DevicePlace> {
        let gpus = &self.choice.pool.devices().gpus;
        let mut places: Vec<DevicePlace> = bits(set).map(|at| gpus[usize::from(at)].common.place).collect();
        places.sort_unstable();
        places
    }
}

/// How far apart the GPUs of one container lie.
fn spread(pool: &NodePool, own: u128) -> Dispersion {
    let groups = |level: Level| {
        let taken = |group: &DeviceSet| group.gpus & own;
        let all = pool.devices().groups(level).iter().map(taken).filter(|taken| *taken != 0);
        let (count, placed) = all.fold((0, 0), |(count, placed), taken| (count + 1, placed | taken));
        // One of unknown place is in a group of its own.
        count + (own & !placed).count_ones()
    };
    spread_by(groups)
}

/// No `count` GPUs of `set` lie nearer to each other than this.
fn least_spread(pool: &NodePool, set: u128, count: u32) -> Dispersion {
    let fewest = |level: Level| {
        let mut sizes: Vec<u32> =
            pool.devices().groups(level).iter().map(|group| (group.gpus & set).count_ones()).collect();
        sizes.sort_unstable_by_key(|size| std::cmp::Reverse(*size));
        let (mut left, mut groups) = (count, 0);
        for size in sizes.into_iter().take_while(|size| *size > 0) {
            if left == 0 {
                break;
            }
            left = left.saturating_sub(size);
            groups += 1;
        }
        groups + left
    };
    spread_by(fewest)
}

/// By how many groups of each level there are.
fn spread_by(groups: impl Fn(Level) -> u32) -> Dispersion {
    let switches = groups(Level::Switch);
    Dispersion {
        nvlink_domains: groups(Level::Nvlink),
        beyond_switch: u32::from(switches > 1),
        numa_nodes: groups(Level::Numa),
        switches,
    }
}

//! What a node is worth to the pods that usually come.

use std::sync::Arc;

use super::kind::{GROUPS, PodKind};
use super::sample::WorthTables;

/// How many pods to come a placement thinks of. `Q(p) = M p / (M p + 1 - p)` is about the chance that a kind of frequency `p` is among
/// the next `M`; `p` itself thinks of one pod, for which rare kinds count for nothing.
const AHEAD: f64 = 12.0;
/// Weight of the GPUs' rests by themselves against what CPU and memory beside them allow.
pub(super) const REST: f64 = 8.0;
/// Weight of a GPU of a scarce class: below a tenth of a GPU's worth, so that it decides between nodes that are equally good.
const SCARCE: f64 = 0.5;
/// Pods of a larger group for each node that could take one, at which whole nodes are as dear as anything else.
const CROWD: f64 = 0.3;
/// Weights of groups are taken over when one of them changed by this factor: every kept rating is made again then.
const CHANGE: f64 = 2.0;

/// What is free on a node.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct FreeOnNode<'a> {
    /// Percent of each GPU.
    pub gpus: &'a [u8],
    /// Thousandths of a CPU.
    pub milli_cpu: i64,
    /// Bytes.
    pub memory: i64,
    /// The selectors that admit the node, by bit.
    pub class: u64,
}

impl FreeOnNode<'_> {
    /// Whether a pod of this kind fits.
    pub fn takes(&self, kind: &PodKind) -> bool {
        let fitting = self.gpus.iter().filter(|percent| **percent >= kind.share).count();
        self.may_take(kind) && fitting >= kind.gpus as usize
    }

    /// The same but for the GPUs.
    pub fn may_take(&self, kind: &PodKind) -> bool {
        self.class >> kind.selector & 1 == 1 && kind.milli_cpu <= self.milli_cpu && kind.memory <= self.memory
    }
}

/// The worth of nodes by one set of tables.
#[derive(Debug, Clone, PartialEq)]
pub struct Worth {
    tables: Arc<WorthTables>,
    /// How dear nodes are to each group now, 0 to 1.
    dear: [f64; GROUPS],
    /// Weights of the groups that follow; their sum is 1.
    groups: [f64; GROUPS],
}

impl Worth {
    /// By new tables, with the dearness of the earlier ones.
    pub fn new(tables: WorthTables, earlier: Option<&Self>, keep_whole: f64) -> Self {
        let dear = earlier.map_or([1.0, keep_whole, keep_whole, keep_whole], |earlier| earlier.dear);
        let groups = weights(&tables, dear);
        Self { tables: tables.into(), dear, groups }
    }

    /// The tables.
    pub fn tables(&self) -> &WorthTables {
        &self.tables
    }

    /// Looks how many nodes could take the most frequent pod of each larger group while so many pods hold devices. `true` when the
    /// weights changed.
    pub fn weigh(&mut self, holders: usize, open: [usize; GROUPS], keep_whole: f64) -> bool {
        let mut dear = [1.0; GROUPS];
        for group in 1..GROUPS {
            let crowd = CROWD * holders as f64 * self.tables.arrivals[group] / open[group].max(1) as f64;
            dear[group] = crowd.clamp(keep_whole, 1.0);
        }
        let moved = |(new, old): (&f64, &f64)| *new >= old * CHANGE || *new <= old / CHANGE;
        let moved = dear.iter().zip(&self.dear).any(moved);
        if moved {
            (self.groups, self.dear) = (weights(&self.tables, dear), dear);
        }
        moved
    }

    /// The worth of a node, in eighths of a GPU.
    pub fn of(&self, free: FreeOnNode<'_>) -> f64 {
        let rests: f64 = free.gpus.iter().map(|percent| self.tables.rest[usize::from(*percent).min(100)]).sum();
        let total: u32 = free.gpus.iter().map(|percent| u32::from(*percent)).sum();
        let groups = self.groups.iter().zip(&self.tables.kinds).filter(|(weight, _)| **weight > 0.0);
        let potential: f64 = groups.map(|(weight, kinds)| weight * potential(kinds, free)).sum();
        REST * rests + potential + SCARCE * self.scarcity(free.class) * f64::from(total) / 100.0
    }

    /// How scarce nodes of this class are.
    pub fn scarcity(&self, class: u64) -> f64 {
        self.tables.scarce.iter().find(|(of, _)| *of == class).map_or(0.0, |(_, scarce)| *scarce)
    }
}

fn weights(tables: &WorthTables, dear: [f64; GROUPS]) -> [f64; GROUPS] {
    let weights: [f64; GROUPS] = std::array::from_fn(|group| tables.demand[group] * dear[group]);
    let sum: f64 = weights.iter().sum();
    if sum > 0.0 { weights.map(|weight| weight / sum) } else { [0.0; GROUPS] }
}

/// GPUs that the kinds of one group could use, those that could use most first, each by the chance that none before it comes.
fn potential(kinds: &[(PodKind, f64)], free: FreeOnNode<'_>) -> f64 {
    let mut useful = [(0.0, 0.0); 24];
    let mut count = 0;
    for (kind, part) in kinds {
        let usable = usable(kind, free);
        if usable > 0.0 && count < useful.len() {
            useful[count] = (usable, *part);
            count += 1;
        }
    }
    let useful = &mut useful[..count];
    useful.sort_unstable_by(|a, b| b.0.total_cmp(&a.0));
    let (mut sum, mut part, mut before) = (0.0, 0.0, 0.0);
    for (usable, of) in useful {
        part += *of;
        let come = chance(part);
        sum += *usable * (come - before);
        before = come;
    }
    sum
}

fn chance(part: f64) -> f64 {
    let part = part.min(1.0);
    AHEAD * part / (AHEAD * part + 1.0 - part)
}

/// GPUs of the node that pods of this kind could use, if only they came. A request of 0 does not limit.
pub fn usable(kind: &PodKind, free: FreeOnNode<'_>) -> f64 {
    if !free.may_take(kind) {
        return 0.0;
    }
    let times = |have: i64, want: i64| if want <= 0 { f64::INFINITY } else { have as f64 / want as f64 };
    let beside = times(free.milli_cpu, kind.milli_cpu).min(times(free.memory, kind.memory));
    let (mut count, mut fit, mut room) = (0u32, 0u32, 0u32);
    for percent in free.gpus.iter().filter(|percent| **percent >= kind.share) {
        count += 1;
        fit += u32::from(percent / kind.share.max(1));
        room += u32::from(*percent);
    }
    if count < kind.gpus {
        return 0.0;
    }
    // Of whole GPUs and of shares alike: the room of the GPUs that it fits on, by the part for which there is CPU and memory.
    let fit = f64::from(fit) / f64::from(kind.gpus);
    f64::from(room) / 100.0 * fit.min(beside) / fit
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::patience::Sample;

    const WHOLE: PodKind = PodKind { gpus: 1, share: 100, milli_cpu: 8000, memory: 0, selector: 0 };

    fn free(gpus: &[u8], milli_cpu: i64) -> FreeOnNode<'_> {
        FreeOnNode { gpus, milli_cpu, memory: 1 << 40, class: 1 }
    }

    fn near(a: f64, b: f64) -> bool {
        (a - b).abs() < 1e-6
    }

    #[test]
    fn usable_is_limited_by_gpus_cpu_memory_and_nodes() {
        let share = PodKind { share: 30, milli_cpu: 1000, ..WHOLE };
        let pair = PodKind { gpus: 2, ..WHOLE };
        assert!(near(usable(&WHOLE, free(&[100, 100, 60], 64_000)), 2.0));
        assert!(near(usable(&WHOLE, free(&[100, 100], 12_000)), 1.5), "CPU for one and a half");
        assert!(near(usable(&WHOLE, free(&[100, 100], 7_999)), 0.0));
        assert!(near(usable(&pair, free(&[100, 99], 64_000)), 0.0));
        assert!(near(usable(&pair, free(&[100, 100, 100], 64_000)), 3.0));
        assert!(near(usable(&share, free(&[70, 29, 100], 64_000)), 1.7), "five fit, on two GPUs");
        assert!(near(usable(&share, free(&[70, 29, 100], 2_000)), 1.7 * 2.0 / 5.0), "CPU for two of five");
        let elsewhere = PodKind { selector: 1, ..WHOLE };
        assert!(near(usable(&elsewhere, free(&[100], 64_000)), 0.0));
        let nothing_beside = PodKind { milli_cpu: 0, ..WHOLE };
        assert!(near(usable(&nothing_beside, free(&[100], 0)), 1.0));
    }

    fn worth(parts: &[(PodKind, f64)]) -> Worth {
        let sample = Sample { parts: parts.iter().copied().collect(), classes: vec![(1, 64)] };
        Worth::new(sample.tables(), None, 0.05)
    }

    #[test]
    fn cpu_that_gpus_need_is_worth_something_and_other_cpu_is_not() {
        let worth = worth(&[(WHOLE, 1.0)]);
        let at = |cpu| worth.of(free(&[100, 100], cpu));
        assert!(near(at(64_000), at(16_000)), "16 CPUs are enough for two GPUs");
        assert!(at(15_000) < at(16_000));
        assert!(near(at(16_000), 8.0 * 2.0 + 2.0));
    }

    #[test]
    fn whole_nodes_become_dear_while_few_are_left() {
        let large = PodKind { gpus: 8, milli_cpu: 64_000, ..WHOLE };
        let mut worth = worth(&[(WHOLE, 0.9), (large, 0.1)]);
        let empty = free(&[100; 8], 64_000);
        let first_pod = |worth: &Worth| {
            let mut after = [100; 8];
            after[0] = 0;
            worth.of(empty) - worth.of(free(&after, 56_000))
        };
        let cheap = first_pod(&worth);
        assert!(!worth.weigh(10, [0, 0, 0, 100], 0.05), "0.3 * 10 * 0.1 / 100 is below keepWhole");
        assert!(worth.weigh(1000, [0, 0, 0, 30], 0.05), "0.3 * 1000 * 0.1 / 30 = 1");
        assert!(first_pod(&worth) > cheap + 1.0, "{} after {cheap}", first_pod(&worth));
        assert!(!worth.weigh(1000, [0, 0, 0, 45], 0.05), "a change by less than half is not taken over");
    }

    #[test]
    fn a_node_without_gpus_or_tables_without_kinds_are_worth_nothing() {
        assert!(near(worth(&[(WHOLE, 1.0)]).of(free(&[], 64_000)), 0.0));
        assert!(near(worth(&[]).of(free(&[100], 64_000)), 8.0));
    }
}

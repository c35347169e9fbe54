//! From the weights of kinds to what nodes are rated by.

use std::collections::BTreeMap;

use super::kind::{GROUPS, PodKind};
use super::prices::rest;
use super::scarcity::{NodeClass, scarcity};

/// Kinds of at most one GPU that are read at every rating, the most frequent ones: the rest is hardly a hundredth of the demand.
const SMALL: usize = 24;
/// The same of larger kinds.
const LARGE: usize = 12;

/// What tables are made of: plain values, so that they can be made anywhere.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Sample {
    /// Each kind's part of the arrivals; selectors are numbers of bits below 64.
    pub parts: BTreeMap<PodKind, f64>,
    /// GPUs of each class of nodes.
    pub classes: Vec<NodeClass>,
}

/// What the worth of every node is read from.
#[derive(Debug, Clone, PartialEq)]
pub struct WorthTables {
    /// Worth of a GPU of which so many percent are free, in GPUs.
    pub rest: [f64; 101],
    /// The kinds of each group that are read, the most frequent first, with their part of the group.
    pub kinds: [Vec<(PodKind, f64)>; GROUPS],
    /// Each group's part of the demand for GPUs.
    pub demand: [f64; GROUPS],
    /// Each group's part of the arrivals.
    pub arrivals: [f64; GROUPS],
    /// How scarce a class of nodes is, at least 0.
    pub scarce: Vec<(u64, f64)>,
}

impl Sample {
    /// Makes the tables; 1 to 2 ms.
    pub fn tables(&self) -> WorthTables {
        let mut sorted: Vec<(PodKind, f64)> = self.parts.iter().map(|(kind, part)| (*kind, *part)).collect();
        // Stable: among equally frequent kinds the smaller comes first.
        sorted.sort_by(|a, b| b.1.total_cmp(&a.1));
        let (mut demand, mut arrivals) = ([0.0; GROUPS], [0.0; GROUPS]);
        let all: f64 = sorted.iter().map(|(kind, part)| part * kind.demand()).sum();
        let mut kinds: [Vec<(PodKind, f64)>; GROUPS] = Default::default();
        let (mut small, mut large) = (SMALL, LARGE);
        for (kind, part) in sorted {
            let group = kind.group();
            demand[group] += part * kind.demand() / all;
            arrivals[group] += part;
            let left = if group == 0 { &mut small } else { &mut large };
            if *left > 0 {
                *left -= 1;
                kinds[group].push((kind, part));
            }
        }
        for group in &mut kinds {
            let sum: f64 = group.iter().map(|(_, part)| part).sum();
            group.iter_mut().for_each(|(_, part)| *part /= sum);
        }
        WorthTables { rest: rest(&self.parts), kinds, demand, arrivals, scarce: scarcity(&self.parts, &self.classes) }
    }
}

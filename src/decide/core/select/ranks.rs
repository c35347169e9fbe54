//! Fitting nodes in the order of the Score plugins: the highest sum first, the oldest node among equals.
//!
//! Ratings that stand by themselves are summed once per node. Ratings that are normalised over all fitting nodes cannot be:
//! nodes with the same such ratings form a group, within which the sum alone decides, and only the groups' first nodes are
//! compared with normalised ratings. Clusters have few groups (most often one), however many nodes there are.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::core::rules::NodeScore;
use crate::world::{Node, NodeId};

use super::concern::{Concern, RuleSet};

/// The order of fitting nodes.
pub trait Ranking: Default {
    /// What is kept of a node: enough to find it in the order.
    type Rank: Clone;
    /// What every rating depends on beside pod and node: under another one, every node is judged again.
    type Basis: Default + PartialEq;

    /// Enters a node with its rating and its relative ratings.
    fn enter(&mut self, node: (NodeId, &Node), rating: i64, relative: &[i64]) -> Self::Rank;

    /// Takes a node out.
    fn leave(&mut self, id: NodeId, rank: &Self::Rank);

    /// Moves a node to the place of its new ratings.
    fn change(&mut self, rank: &mut Self::Rank, node: (NodeId, &Node), rating: i64, relative: &[i64]) {
        self.leave(node.0, rank);
        *rank = self.enter(node, rating, relative);
    }
}

/// Raw ratings by the rules that normalise, in the order of the rules.
type Ratings = Arc<[i64]>;

/// Nodes by the ratings that are normalised; those with equal ones by their sums. Sums are small numbers that many nodes share, so
/// a node that moves from one to another costs a few steps.
#[derive(Default)]
pub(super) struct Ranks(BTreeMap<Ratings, EqualRatings>);

/// Nodes with equal normalised ratings, by sum, the lowest first. No set is empty.
#[derive(Default)]
struct EqualRatings(Vec<(i64, NodeSet)>);

impl EqualRatings {
    fn enter(&mut self, id: NodeId, sum: i64) {
        let at = self.at(sum).unwrap_or_else(|at| {
            self.0.insert(at, (sum, NodeSet::default()));
            at
        });
        self.0[at].1.insert(id);
    }

    fn leave(&mut self, id: NodeId, sum: i64) {
        if let Ok(at) = self.at(sum) {
            self.0[at].1.remove(id);
            if self.0[at].1.is_empty() {
                self.0.remove(at);
            }
        }
    }

    fn best(&self) -> Option<(i64, NodeId)> {
        let (sum, nodes) = self.0.last()?;
        Some((*sum, nodes.first()?))
    }

    fn at(&self, sum: i64) -> Result<usize, usize> {
        self.0.binary_search_by_key(&sum, |(sum, _)| *sum)
    }
}

impl Ranking for Ranks {
    /// The weighted sum of the absolute ratings, and the others.
    type Rank = (i64, Ratings);
    /// The epoch of the typical mix, where a rule reads it, and the rules whose ratings are kept.
    type Basis = (Option<u64>, RuleSet);

    fn enter(&mut self, (id, _): (NodeId, &Node), sum: i64, relative: &[i64]) -> Self::Rank {
        if let Some(group) = self.0.get_mut(relative) {
            group.enter(id, sum);
            // Equal ratings are stored once.
            return (sum, self.0.get_key_value(relative).map(|(known, _)| known.clone()).unwrap_or_default());
        }
        let ratings: Ratings = relative.into();
        self.0.entry(ratings.clone()).or_default().enter(id, sum);
        (sum, ratings)
    }

    fn leave(&mut self, id: NodeId, (sum, ratings): &Self::Rank) {
        if let Some(group) = self.0.get_mut(ratings) {
            group.leave(id, *sum);
            if group.0.is_empty() {
                self.0.remove(ratings);
            }
        }
    }

    fn change(&mut self, rank: &mut Self::Rank, node: (NodeId, &Node), sum: i64, relative: &[i64]) {
        if *rank.1 != *relative {
            self.leave(node.0, rank);
            *rank = self.enter(node, sum, relative);
        } else if rank.0 != sum
            && let Some(group) = self.0.get_mut(relative)
        {
            group.leave(node.0, rank.0);
            group.enter(node.0, sum);
            rank.0 = sum;
        }
    }
}

impl Ranks {
    /// The node with the highest weighted score; the oldest among equals.
    pub fn best(&self, rules: &Concern<'_>) -> Option<NodeId> {
        let mut heads = self.heads();
        let (_, sum, id) = heads.next()?;
        let Some(second) = heads.next() else { return Some(id) };
        let mut totals = vec![(sum, id), (second.1, second.2)];
        totals.extend(heads.map(|(_, sum, id)| (sum, id)));
        for (at, (plugin, weight)) in rules.relative().enumerate() {
            let mut scores: Vec<NodeScore> = self.heads().map(|(ratings, _, id)| (id, ratings[at])).collect();
            plugin.normalize(rules.view, rules.pod, &mut scores);
            for ((total, _), (_, score)) in totals.iter_mut().zip(scores) {
                *total += score.clamp(0, 100) * weight;
            }
        }
        totals.into_iter().max_by(|a, b| a.0.cmp(&b.0).then(b.1.cmp(&a.1))).map(|(_, id)| id)
    }

    /// The best node of each group, and the ratings that they have.
    fn heads(&self) -> impl Iterator<Item = (&[i64], i64, NodeId)> {
        self.0.iter().filter_map(|(ratings, group)| group.best().map(|(sum, id)| (&**ratings, sum, id)))
    }
}

/// A set of nodes of which the oldest is at hand: bits of words, by number. Words without bits are left out, so that few nodes
/// cost little.
#[derive(Debug, Clone, Default)]
struct NodeSet(Vec<(u32, u64)>);

impl NodeSet {
    fn insert(&mut self, node: NodeId) {
        let (word, bit) = place(node);
        match self.at(word) {
            Ok(at) => self.0[at].1 |= bit,
            Err(at) => self.0.insert(at, (word, bit)),
        }
    }

    fn remove(&mut self, node: NodeId) {
        let (word, bit) = place(node);
        if let Ok(at) = self.at(word) {
            self.0[at].1 &= !bit;
            if self.0[at].1 == 0 {
                self.0.remove(at);
            }
        }
    }

    /// The oldest node.
    fn first(&self) -> Option<NodeId> {
        self.0.first().map(|(word, bits)| NodeId(word * u64::BITS + bits.trailing_zeros()))
    }

    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn at(&self, word: u32) -> Result<usize, usize> {
        self.0.binary_search_by_key(&word, |(word, _)| *word)
    }
}

fn place(node: NodeId) -> (u32, u64) {
    (node.0 / u64::BITS, 1 << (node.0 % u64::BITS))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn it_says_what_an_ordered_set_says(steps in proptest::collection::vec((0u32..300, any::<bool>()), 0..200)) {
            let (mut nodes, mut ordered) = (NodeSet::default(), BTreeSet::new());
            for (id, enters) in steps {
                if enters {
                    nodes.insert(NodeId(id));
                    ordered.insert(NodeId(id));
                } else {
                    nodes.remove(NodeId(id));
                    ordered.remove(&NodeId(id));
                }
                prop_assert_eq!((nodes.first(), nodes.is_empty()), (ordered.first().copied(), ordered.is_empty()));
            }
        }
    }
}

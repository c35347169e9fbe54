//! Fitting nodes in the order in which they are asked for: the highest sum first, the oldest node among equals.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::decide::world::NodeId;

use super::node_set::NodeSet;

/// Raw ratings by the rules that normalise, in the order of the rules.
pub(in crate::decide) type Ratings = Arc<[i64]>;

/// Nodes by normalised ratings; those with equal ones by their sums. Sums are small numbers that many nodes share, so a node
/// that moves from one to another costs a few steps.
#[derive(Default)]
pub(in crate::decide) struct Ranks(BTreeMap<Ratings, Group>);

/// Nodes with equal normalised ratings, by sum, the lowest first. No set is empty.
#[derive(Default)]
struct Group(Vec<(i64, NodeSet)>);

impl Group {
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

impl Ranks {
    /// Enters a node. Equal ratings are stored once: keep those that are returned.
    pub fn enter(&mut self, id: NodeId, sum: i64, ratings: &[i64]) -> Ratings {
        if let Some(group) = self.0.get_mut(ratings) {
            group.enter(id, sum);
            return self.0.get_key_value(ratings).map(|(known, _)| known.clone()).unwrap_or_default();
        }
        let ratings: Ratings = ratings.into();
        self.0.entry(ratings.clone()).or_default().enter(id, sum);
        ratings
    }

    /// A node's sum is another one, and its ratings are not.
    pub fn shift(&mut self, id: NodeId, ratings: &[i64], from: i64, to: i64) {
        if let Some(group) = self.0.get_mut(ratings) {
            group.leave(id, from);
            group.enter(id, to);
        }
    }

    /// Takes a node out.
    pub fn leave(&mut self, id: NodeId, sum: i64, ratings: &[i64]) {
        if let Some(group) = self.0.get_mut(ratings) {
            group.leave(id, sum);
            if group.0.is_empty() {
                self.0.remove(ratings);
            }
        }
    }

    /// The best node of each group, and the ratings that they have.
    pub fn heads(&self) -> impl Iterator<Item = (&Ratings, i64, NodeId)> {
        self.0.iter().filter_map(|(ratings, group)| group.best().map(|(sum, id)| (ratings, sum, id)))
    }
}

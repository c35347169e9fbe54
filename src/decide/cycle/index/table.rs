//! What every node says to one shape, ordered so that the best node is at hand.
//!
//! Ratings that stand by themselves are summed once per node. Ratings that are normalised over all fitting nodes cannot be:
//! nodes with the same such ratings form a group, within which the sum alone decides, and only the groups' first nodes are
//! compared with normalised ratings. Clusters have few groups (most often one), however many nodes there are.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::decide::cycle::choose::Diagnosis;
use crate::decide::cycle::refusals::Refusals;
use crate::decide::framework::{NodeScore, Outcome, Plugins, Refusal, Slots, Text, View};
use crate::decide::world::{Dense, NodeId, Pod};

use super::concern::Concern;

/// Raw ratings by the rules that normalise, in the order of the rules.
type Ratings = Arc<[i64]>;

/// What one node said.
enum Verdict {
    /// Fits; the weighted sum of the absolute ratings, and the others.
    Fits(i64, Ratings),
    Refuses(Arc<Refusal>),
}

/// The nodes' answers to one shape.
#[derive(Default)]
pub(super) struct Table {
    verdicts: Dense<NodeId, Verdict>,
    ranks: Ranks,
    /// Position in the world's journal up to which this is true; `None` before the first filling.
    mark: Option<u64>,
    /// Epoch of the typical mix under which it is true; `None` when no rule reads the mix.
    epoch: Option<u64>,
}

/// The same verdicts in the order in which they are asked for.
#[derive(Default)]
struct Ranks {
    /// Fitting nodes by normalised ratings; the highest sum first, the oldest node among equals.
    groups: BTreeMap<Ratings, BTreeSet<(Reverse<i64>, NodeId)>>,
    refusals: Refusals,
}

impl Table {
    /// Brings the table up to the world. Returns the nodes that were judged, in order. A rule that could not judge leaves the table
    /// of no use. `epoch` is that of the typical mix, where a rule reads it: under another one, every node is judged again.
    pub fn catch_up(
        &mut self,
        view: View<'_>,
        plugins: &Plugins,
        (pod, concern): (&Pod, &Concern),
        slots: &mut Slots,
        epoch: Option<u64>,
    ) -> Result<Vec<NodeId>, Text> {
        let journal = view.world.journal();
        let mark = self.mark.filter(|_| self.epoch == epoch);
        let changed: Option<Vec<NodeId>> = mark.and_then(|mark| Some(journal.since(mark)?.collect()));
        let mut stale = changed.unwrap_or_else(|| {
            *self = Self { epoch, ..Self::default() };
            view.world.nodes().map(|(id, _)| id).collect()
        });
        stale.sort_unstable();
        stale.dedup();
        let mut ratings = Vec::new();
        for id in &stale {
            let Some(node) = view.world.node(*id).filter(|node| node.facts.is_some()) else {
                if let Some(verdict) = self.verdicts.remove(*id) {
                    self.ranks.leave(*id, verdict);
                }
                continue;
            };
            let answer = match concern.judge(view, plugins, pod, (*id, node), slots) {
                Outcome::Fit => {
                    Answer::Fits(concern.rate(view, plugins, pod, (*id, node), slots, &mut ratings), &ratings)
                }
                Outcome::Unfit(refusal) | Outcome::Never(refusal) | Outcome::WaitUntil(_, refusal) => {
                    Answer::Refuses(refusal)
                }
                Outcome::Fault(text) => return Err(text),
            };
            match self.verdicts.get_mut(*id) {
                Some(known) if known.is(&answer) => {}
                Some(known) => {
                    let former = std::mem::replace(known, self.ranks.enter(*id, answer));
                    self.ranks.leave(*id, former);
                }
                None => {
                    self.verdicts.insert(*id, self.ranks.enter(*id, answer));
                }
            }
        }
        self.mark = Some(journal.mark());
        Ok(stale)
    }

    /// The node with the highest weighted score; the oldest among equals.
    pub fn best(&self, plugins: &Plugins) -> Option<NodeId> {
        let heads: Vec<(i64, NodeId)> =
            self.ranks.groups.values().filter_map(|nodes| nodes.first()).map(|(sum, id)| (sum.0, *id)).collect();
        if heads.len() <= 1 {
            return heads.first().map(|(_, id)| *id);
        }
        let mut totals = heads;
        let relative = plugins.enabled().score.iter().filter(|(plugin, _)| !plugin.is_absolute());
        for (at, (plugin, weight)) in relative.enumerate() {
            let ratings = self.ranks.groups.keys().zip(&totals).map(|(ratings, (_, id))| (*id, ratings[at]));
            let mut scores: Vec<NodeScore> = ratings.collect();
            plugin.normalize(&mut scores);
            for ((total, _), (_, score)) in totals.iter_mut().zip(scores) {
                *total += score.clamp(0, 100) * weight;
            }
        }
        totals.into_iter().max_by(|a, b| a.0.cmp(&b.0).then(b.1.cmp(&a.1))).map(|(_, id)| id)
    }

    /// Why no node fits.
    pub fn diagnosis(&self) -> Diagnosis {
        Diagnosis::of(self.verdicts.len(), self.ranks.refusals.counted().clone())
    }
}

impl Ranks {
    fn leave(&mut self, id: NodeId, verdict: Verdict) {
        match verdict {
            Verdict::Fits(sum, ratings) => {
                if let Some(nodes) = self.groups.get_mut(&ratings) {
                    nodes.remove(&(Reverse(sum), id));
                    if nodes.is_empty() {
                        self.groups.remove(&ratings);
                    }
                }
            }
            Verdict::Refuses(refusal) => self.refusals.leave(&refusal),
        }
    }

    /// Equal ratings and equal refusals are stored once.
    fn enter(&mut self, id: NodeId, answer: Answer<'_>) -> Verdict {
        match answer {
            Answer::Fits(sum, ratings) => {
                if let Some((known, _)) = self.groups.get_key_value(ratings) {
                    let known = known.clone();
                    if let Some(nodes) = self.groups.get_mut(ratings) {
                        nodes.insert((Reverse(sum), id));
                    }
                    return Verdict::Fits(sum, known);
                }
                let ratings: Ratings = ratings.into();
                self.groups.entry(ratings.clone()).or_default().insert((Reverse(sum), id));
                Verdict::Fits(sum, ratings)
            }
            Answer::Refuses(refusal) => Verdict::Refuses(self.refusals.enter(Arc::new(refusal))),
        }
    }
}

/// What one node says now: the weighted sum of the absolute ratings and the others, or why not.
enum Answer<'a> {
    Fits(i64, &'a [i64]),
    Refuses(Refusal),
}

impl Verdict {
    fn is(&self, answer: &Answer<'_>) -> bool {
        match (self, answer) {
            (Self::Fits(known, by), Answer::Fits(sum, ratings)) => known == sum && **by == **ratings,
            (Self::Refuses(known), Answer::Refuses(refusal)) => **known == *refusal,
            _ => false,
        }
    }
}

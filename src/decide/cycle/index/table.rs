//! What every node says to one shape, ordered so that the best node is at hand.
//!
//! Ratings that stand by themselves are summed once per node. Ratings that are normalised over all fitting nodes cannot be:
//! nodes with the same such ratings form a group, within which the sum alone decides, and only the groups' first nodes are
//! compared with normalised ratings. Clusters have few groups (most often one), however many nodes there are.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::decide::cycle::choose::{Diagnosis, judge};
use crate::decide::cycle::refusals::Refusals;
use crate::decide::framework::{NodeScore, Outcome, Plugins, Refusal, Slots, Text, View};
use crate::decide::world::{KnownChoices, Node, NodeId, Pod};

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
    verdicts: BTreeMap<NodeId, Verdict>,
    /// Fitting nodes by normalised ratings; the highest sum first, the oldest node among equals.
    groups: BTreeMap<Ratings, BTreeSet<(Reverse<i64>, NodeId)>>,
    refusals: Refusals,
    /// Position in the world's journal up to which this is true; `None` before the first filling.
    mark: Option<u64>,
    /// Epoch of the typical mix under which it is true; `None` when no rule reads the mix.
    epoch: Option<u64>,
    /// Devices chosen for this shape on nodes as they looked then.
    pub choices: KnownChoices,
}

impl Table {
    /// Brings the table up to the world. Returns the nodes that were judged. A rule that could not judge leaves the table of no
    /// use. `epoch` is that of the typical mix, where a rule reads it: under another one, every node is judged again.
    pub fn catch_up(
        &mut self,
        view: View<'_>,
        plugins: &Plugins,
        pod: &Pod,
        slots: &mut Slots,
        epoch: Option<u64>,
    ) -> Result<BTreeSet<NodeId>, Text> {
        let journal = view.world.journal();
        let mark = self.mark.filter(|_| self.epoch == epoch);
        let changed = mark.and_then(|mark| Some(journal.since(mark)?.collect()));
        let stale: BTreeSet<NodeId> = changed.unwrap_or_else(|| {
            *self = Self { epoch, ..Self::default() };
            view.world.nodes().map(|(id, _)| id).collect()
        });
        let mut ratings = Vec::new();
        for id in &stale {
            let Some(node) = view.world.node(*id).filter(|node| node.facts.is_some()) else {
                self.leave(*id);
                continue;
            };
            let answer = ask(view, plugins, pod, (*id, node), slots, &mut ratings)?;
            match (self.verdicts.get(id), &answer) {
                (Some(Verdict::Fits(known, by)), Answer::Fits(sum)) if known == sum && **by == *ratings => continue,
                (Some(Verdict::Refuses(known)), Answer::Refuses(refusal)) if **known == *refusal => continue,
                _ => {}
            }
            self.leave(*id);
            self.enter(*id, answer, &ratings);
        }
        self.mark = Some(journal.mark());
        Ok(stale)
    }

    /// The node with the highest weighted score; the oldest among equals.
    pub fn best(&self, plugins: &Plugins) -> Option<NodeId> {
        let heads: Vec<(i64, NodeId)> =
            self.groups.values().filter_map(|nodes| nodes.first()).map(|(sum, id)| (sum.0, *id)).collect();
        if heads.len() <= 1 {
            return heads.first().map(|(_, id)| *id);
        }
        let mut totals = heads;
        let relative = plugins.enabled().score.iter().filter(|(plugin, _)| !plugin.is_absolute());
        for (at, (plugin, weight)) in relative.enumerate() {
            let ratings = self.groups.keys().zip(&totals).map(|(ratings, (_, id))| (*id, ratings[at]));
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
        Diagnosis::of(self.verdicts.len(), self.refusals.counted().clone())
    }

    fn leave(&mut self, id: NodeId) {
        match self.verdicts.remove(&id) {
            None => {}
            Some(Verdict::Fits(sum, ratings)) => {
                if let Some(nodes) = self.groups.get_mut(&ratings) {
                    nodes.remove(&(Reverse(sum), id));
                    if nodes.is_empty() {
                        self.groups.remove(&ratings);
                    }
                }
            }
            Some(Verdict::Refuses(refusal)) => self.refusals.leave(&refusal),
        }
    }

    /// Equal ratings are stored once.
    fn enter(&mut self, id: NodeId, answer: Answer, ratings: &[i64]) {
        let verdict = match answer {
            Answer::Fits(sum) => {
                let known = self.groups.get_key_value(ratings).map(|(known, _)| known.clone());
                let ratings: Ratings = known.unwrap_or_else(|| ratings.into());
                self.groups.entry(ratings.clone()).or_default().insert((Reverse(sum), id));
                Verdict::Fits(sum, ratings)
            }
            Answer::Refuses(refusal) => Verdict::Refuses(self.refusals.enter(Arc::new(refusal))),
        };
        self.verdicts.insert(id, verdict);
    }
}

/// What one node says now; the ratings of one that fits stand beside it.
enum Answer {
    Fits(i64),
    Refuses(Refusal),
}

/// Asks one node, and leaves its ratings in `ratings`. The error is a rule that could not judge.
fn ask(
    view: View<'_>,
    plugins: &Plugins,
    pod: &Pod,
    node: (NodeId, &Node),
    slots: &mut Slots,
    ratings: &mut Vec<i64>,
) -> Result<Answer, Text> {
    match judge(view, plugins, pod, node, slots) {
        Outcome::Fit => {}
        Outcome::Unfit(refusal) | Outcome::Never(refusal) | Outcome::WaitUntil(_, refusal) => {
            return Ok(Answer::Refuses(refusal));
        }
        Outcome::Fault(text) => return Err(text),
    }
    let mut sum = 0;
    ratings.clear();
    for (plugin, weight) in &plugins.enabled().score {
        let rating = plugin.score(view, pod, node, slots);
        if plugin.is_absolute() {
            sum += rating.clamp(0, 100) * weight;
        } else {
            ratings.push(rating);
        }
    }
    Ok(Answer::Fits(sum))
}

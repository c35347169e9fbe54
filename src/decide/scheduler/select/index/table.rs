//! What every node says to one shape, ordered so that the best node is at hand.
//!
//! Ratings that stand by themselves are summed once per node. Ratings that are normalised over all fitting nodes cannot be:
//! nodes with the same such ratings form a group, within which the sum alone decides, and only the groups' first nodes are
//! compared with normalised ratings. Clusters have few groups (most often one), however many nodes there are.

use crate::decide::scheduler::rules::{NodeScore, Outcome, Plugins, Refusal, Slots, Text, View};
use crate::decide::scheduler::select::choose::Diagnosis;
use crate::decide::scheduler::select::refusals::{Refusals, Said};
use crate::decide::world::{Dense, NodeId, Pod};

use super::concern::{Concern, Places};
use super::ranks::{Ranks, Ratings};

/// What one node said.
enum Verdict {
    /// Fits; the weighted sum of the absolute ratings, and the others.
    Fits(i64, Ratings),
    Refuses(Said),
}

/// The nodes' answers to one shape.
#[derive(Default)]
pub(in crate::decide) struct Table {
    verdicts: Dense<NodeId, Verdict>,
    /// The same verdicts in the order in which they are asked for.
    ranks: Ranks,
    refusals: Refusals,
    /// Position in the world's journal up to which this is true; `None` before the first filling.
    mark: Option<u64>,
    /// Epoch of the typical mix under which it is true; `None` when no rule reads the mix.
    epoch: Option<u64>,
    /// The rules whose ratings it keeps.
    rated_by: Places,
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
        let mark = self.mark.filter(|_| self.epoch == epoch && self.rated_by == concern.scores);
        let changed: Option<Vec<NodeId>> = mark.and_then(|mark| Some(journal.since(mark)?.collect()));
        let mut stale = changed.unwrap_or_else(|| {
            *self = Self { epoch, rated_by: concern.scores, ..Self::default() };
            view.world.nodes().map(|(id, _)| id).collect()
        });
        stale.sort_unstable();
        stale.dedup();
        let mut ratings = Vec::new();
        for id in &stale {
            let Some(node) = view.world.node(*id).filter(|node| node.facts.is_some()) else {
                self.leave(*id);
                continue;
            };
            match concern.judge(view, plugins, pod, (*id, node), slots) {
                Outcome::Fit => {
                    let sum = concern.rate(view, plugins, pod, (*id, node), slots, &mut ratings);
                    self.fits(*id, sum, &ratings);
                }
                Outcome::Unfit(no) | Outcome::Never(no) | Outcome::WaitUntil(_, no) => self.refuses(*id, no),
                Outcome::Fault(text) => return Err(text),
            }
        }
        self.mark = Some(journal.mark());
        Ok(stale)
    }

    /// The node with the highest weighted score; the oldest among equals. `concern` is that of the last [`Table::catch_up`].
    pub fn best(&self, view: View<'_>, plugins: &Plugins, (pod, concern): (&Pod, &Concern)) -> Option<NodeId> {
        let mut heads = self.ranks.heads();
        let (_, sum, id) = heads.next()?;
        let Some(second) = heads.next() else { return Some(id) };
        let mut totals = vec![(sum, id), (second.1, second.2)];
        totals.extend(heads.map(|(_, sum, id)| (sum, id)));
        for (at, (plugin, weight)) in concern.relative(plugins).enumerate() {
            let ratings = self.ranks.heads().map(|(ratings, _, id)| (id, ratings[at]));
            let mut scores: Vec<NodeScore> = ratings.collect();
            plugin.normalize(view, pod, &mut scores);
            for ((total, _), (_, score)) in totals.iter_mut().zip(scores) {
                *total += score.clamp(0, 100) * weight;
            }
        }
        totals.into_iter().max_by(|a, b| a.0.cmp(&b.0).then(b.1.cmp(&a.1))).map(|(_, id)| id)
    }

    /// Why no node fits.
    pub fn diagnosis(&self) -> Diagnosis {
        Diagnosis::of(self.verdicts.len(), self.refusals.counted())
    }

    /// The node fits: the weighted sum of its absolute ratings, and the others.
    fn fits(&mut self, id: NodeId, sum: i64, ratings: &[i64]) {
        if let Some(Verdict::Fits(known, by)) = self.verdicts.get_mut(id)
            && **by == *ratings
        {
            if *known != sum {
                self.ranks.shift(id, ratings, *known, sum);
                *known = sum;
            }
            return;
        }
        self.leave(id);
        let ratings = self.ranks.enter(id, sum, ratings);
        self.verdicts.insert(id, Verdict::Fits(sum, ratings));
    }

    /// The node does not fit, and why.
    fn refuses(&mut self, id: NodeId, refusal: Refusal) {
        if let Some(Verdict::Refuses(said)) = self.verdicts.get(id)
            && *self.refusals.get(*said) == refusal
        {
            return;
        }
        self.leave(id);
        let said = self.refusals.enter(refusal);
        self.verdicts.insert(id, Verdict::Refuses(said));
    }

    /// Forgets what the node said.
    fn leave(&mut self, id: NodeId) {
        match self.verdicts.remove(id) {
            None => {}
            Some(Verdict::Fits(sum, ratings)) => self.ranks.leave(id, sum, &ratings),
            Some(Verdict::Refuses(said)) => self.refusals.leave(said),
        }
    }
}

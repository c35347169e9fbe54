//! Which of the enabled rules have to be asked about a pod: most have nothing to say about most pods.

use std::sync::Arc;

use crate::core::rules::{Outcome, Plugin, Plugins, Reads, Score, Slots, View};
use crate::world::{Node, NodeId, Pod};

/// How nodes are judged and rated for one pod.
pub trait NodeJudge {
    /// The first refusal of the filters.
    fn judge(&self, node: (NodeId, &Node), slots: &mut Slots) -> Outcome;

    /// The rating of a fitting node, as far as it needs no other node. Ratings that are compared with those of other nodes go to
    /// `relative`, which the table has emptied.
    fn rate(&self, node: (NodeId, &Node), slots: &mut Slots, relative: &mut Vec<i64>) -> i64;
}

/// The rules that do not say [`Reads::Nothing`] about one pod, by their places.
pub(super) struct Concern<'a> {
    pub view: View<'a>,
    plugins: &'a Plugins,
    pub pod: &'a Pod,
    /// The most that any of them reads.
    pub reads: Reads,
    filters: RuleSet,
    pub scores: RuleSet,
}

/// RuleSet in a list, those from the last bit on together.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct RuleSet(u64);

impl RuleSet {
    const LAST: usize = u64::BITS as usize - 1;

    fn bit(at: usize) -> u64 {
        1 << at.min(Self::LAST)
    }

    fn has(self, at: usize) -> bool {
        self.0 & Self::bit(at) != 0
    }

    /// Every place of a list of this length, in order.
    fn of(self, length: usize) -> impl Iterator<Item = usize> {
        let mut left = self.0 & !Self::bit(Self::LAST);
        let single = std::iter::from_fn(move || {
            let at = left.trailing_zeros() as usize;
            left &= left.wrapping_sub(1);
            (at < Self::LAST).then_some(at)
        });
        let last = if self.has(Self::LAST) { Self::LAST..length } else { 0..0 };
        single.chain(last)
    }
}

impl<'a> Concern<'a> {
    /// Asks every rule what it reads. Call it when every PreFilter has run.
    pub fn of(view: View<'a>, plugins: &'a Plugins, pod: &'a Pod, slots: &Slots) -> Self {
        let enabled = plugins.enabled();
        let mut most = Reads::Nothing;
        let mut ask = |at: usize, plugin: &dyn Plugin, places: &mut RuleSet| {
            let reads = plugin.reads(pod, slots);
            most = most.max(reads);
            if reads != Reads::Nothing {
                places.0 |= RuleSet::bit(at);
            }
        };
        let (mut filters, mut scores) = (RuleSet::default(), RuleSet::default());
        enabled.filter.iter().enumerate().for_each(|(at, plugin)| ask(at, &**plugin, &mut filters));
        enabled.pre_score.iter().for_each(|plugin| ask(0, &**plugin, &mut RuleSet::default()));
        enabled.score.iter().enumerate().for_each(|(at, (plugin, _))| ask(at, &**plugin, &mut scores));
        Self { view, plugins, pod, reads: most, filters, scores }
    }

    /// The rules whose ratings are normalised over all nodes, with their weights. A rule that has nothing to say rates all nodes
    /// alike: it is not among them.
    pub fn relative(&self) -> impl Iterator<Item = &'a (Arc<dyn Score>, i64)> {
        let scores = &self.plugins.enabled().score;
        self.scores.of(scores.len()).map(|at| &scores[at]).filter(|(plugin, _)| !plugin.is_absolute())
    }
}

impl NodeJudge for Concern<'_> {
    fn judge(&self, node: (NodeId, &Node), slots: &mut Slots) -> Outcome {
        let filters = &self.plugins.enabled().filter;
        if cfg!(debug_assertions) {
            for (_, plugin) in filters.iter().enumerate().filter(|(at, _)| !self.filters.has(*at)) {
                let fits = plugin.filter(self.view, self.pod, node, slots).is_fit();
                debug_assert!(fits, "{} has nothing to say", plugin.name());
            }
        }
        for at in self.filters.of(filters.len()) {
            let outcome = filters[at].filter(self.view, self.pod, node, slots);
            if !outcome.is_fit() {
                return outcome;
            }
        }
        Outcome::Fit
    }

    /// The weighted sum of the absolute ratings; `relative` gets the others, in the order of [`Concern::relative`].
    fn rate(&self, node: (NodeId, &Node), slots: &mut Slots, relative: &mut Vec<i64>) -> i64 {
        let scores = &self.plugins.enabled().score;
        if cfg!(debug_assertions) {
            for (_, (plugin, _)) in scores.iter().enumerate().filter(|(at, _)| !self.scores.has(*at)) {
                let rating = plugin.score(self.view, self.pod, node, slots);
                debug_assert_eq!(rating, 0, "{} has nothing to say", plugin.name());
            }
        }
        let mut sum = 0;
        for at in self.scores.of(scores.len()) {
            let (plugin, weight) = &scores[at];
            let rating = plugin.score(self.view, self.pod, node, slots);
            if plugin.is_absolute() {
                sum += rating.clamp(0, 100) * weight;
            } else {
                relative.push(rating);
            }
        }
        sum
    }
}

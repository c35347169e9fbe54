//! Which of the enabled rules have to be asked about a pod: most have nothing to say about most pods.

use std::sync::Arc;

use crate::decide::scheduler::rules::{Outcome, Plugin, Plugins, Reads, Score, Slots, View};
use crate::decide::world::{Node, NodeId, Pod};

/// The rules that do not say [`Reads::Nothing`] about one pod, by their places.
pub(in crate::decide) struct Concern {
    /// The most that any of them reads.
    pub reads: Reads,
    /// Those that rate.
    pub scores: Places,
    filters: Places,
}

/// Places in a list, those from the last bit on together.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(in crate::decide) struct Places(u64);

impl Places {
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

impl Concern {
    /// Asks every rule what it reads. Call it when every PreFilter has run.
    pub fn of(plugins: &Plugins, pod: &Pod, slots: &Slots) -> Self {
        let enabled = plugins.enabled();
        let mut most = Reads::Nothing;
        let mut ask = |at: usize, plugin: &dyn Plugin, places: &mut Places| {
            let reads = plugin.reads(pod, slots);
            most = most.max(reads);
            if reads != Reads::Nothing {
                places.0 |= Places::bit(at);
            }
        };
        let (mut filters, mut scores) = (Places::default(), Places::default());
        enabled.filter.iter().enumerate().for_each(|(at, plugin)| ask(at, &**plugin, &mut filters));
        enabled.pre_score.iter().for_each(|plugin| ask(0, &**plugin, &mut Places::default()));
        enabled.score.iter().enumerate().for_each(|(at, (plugin, _))| ask(at, &**plugin, &mut scores));
        Self { reads: most, scores, filters }
    }

    /// The first filter that does not say fit.
    pub fn judge(
        &self,
        view: View<'_>,
        plugins: &Plugins,
        pod: &Pod,
        node: (NodeId, &Node),
        slots: &mut Slots,
    ) -> Outcome {
        let filters = &plugins.enabled().filter;
        if cfg!(debug_assertions) {
            for (_, plugin) in filters.iter().enumerate().filter(|(at, _)| !self.filters.has(*at)) {
                debug_assert!(plugin.filter(view, pod, node, slots).is_fit(), "{} has nothing to say", plugin.name());
            }
        }
        for at in self.filters.of(filters.len()) {
            let outcome = filters[at].filter(view, pod, node, slots);
            if !outcome.is_fit() {
                return outcome;
            }
        }
        Outcome::Fit
    }

    /// Rates one node: returns the weighted sum of the absolute ratings, and leaves the others in `ratings`, in the order of
    /// [`Concern::relative`].
    pub fn rate(
        &self,
        view: View<'_>,
        plugins: &Plugins,
        pod: &Pod,
        node: (NodeId, &Node),
        slots: &mut Slots,
        ratings: &mut Vec<i64>,
    ) -> i64 {
        let scores = &plugins.enabled().score;
        if cfg!(debug_assertions) {
            for (_, (plugin, _)) in scores.iter().enumerate().filter(|(at, _)| !self.scores.has(*at)) {
                debug_assert_eq!(plugin.score(view, pod, node, slots), 0, "{} has nothing to say", plugin.name());
            }
        }
        let mut sum = 0;
        ratings.clear();
        for at in self.scores.of(scores.len()) {
            let (plugin, weight) = &scores[at];
            let rating = plugin.score(view, pod, node, slots);
            if plugin.is_absolute() {
                sum += rating.clamp(0, 100) * weight;
            } else {
                ratings.push(rating);
            }
        }
        sum
    }

    /// The rules whose ratings are normalised over all nodes, with their weights. One that has nothing to say rates all nodes
    /// alike: it is not among them.
    pub fn relative<'a>(&self, plugins: &'a Plugins) -> impl Iterator<Item = &'a (Arc<dyn Score>, i64)> {
        let scores = &plugins.enabled().score;
        self.scores.of(scores.len()).map(|at| &scores[at]).filter(|(plugin, _)| !plugin.is_absolute())
    }
}

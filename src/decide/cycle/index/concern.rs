//! Which of the enabled rules have to be asked about a pod: most have nothing to say about most pods.

use crate::decide::framework::{Outcome, Plugin, Plugins, Reads, Slots, View};
use crate::decide::world::{Node, NodeId, Pod};

/// The rules that do not say [`Reads::Nothing`] about one pod, by their places.
pub(super) struct Concern {
    /// The most that any of them reads.
    pub reads: Reads,
    filters: Places,
    scores: Places,
}

/// Places in a list, those from the last bit on together.
#[derive(Clone, Copy, Default)]
struct Places(u64);

impl Places {
    fn bit(at: usize) -> u64 {
        1 << at.min(63)
    }

    fn has(self, at: usize) -> bool {
        self.0 & Self::bit(at) != 0
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
        Self { reads: most, filters, scores }
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
        for (at, plugin) in plugins.enabled().filter.iter().enumerate() {
            if self.filters.has(at) {
                let outcome = plugin.filter(view, pod, node, slots);
                if !outcome.is_fit() {
                    return outcome;
                }
            } else {
                debug_assert!(plugin.filter(view, pod, node, slots).is_fit(), "{} has nothing to say", plugin.name());
            }
        }
        Outcome::Fit
    }

    /// Rates one node: returns the weighted sum of the absolute ratings, and leaves the others in `ratings`.
    pub fn rate(
        &self,
        view: View<'_>,
        plugins: &Plugins,
        pod: &Pod,
        node: (NodeId, &Node),
        slots: &mut Slots,
        ratings: &mut Vec<i64>,
    ) -> i64 {
        let mut sum = 0;
        ratings.clear();
        for (at, (plugin, weight)) in plugins.enabled().score.iter().enumerate() {
            let rating = if self.scores.has(at) {
                plugin.score(view, pod, node, slots)
            } else {
                debug_assert_eq!(plugin.score(view, pod, node, slots), 0, "{} has nothing to say", plugin.name());
                0
            };
            if plugin.is_absolute() {
                sum += rating.clamp(0, 100) * weight;
            } else {
                ratings.push(rating);
            }
        }
        sum
    }
}

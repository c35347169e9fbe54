//! `InterPodAffinity` as a rating: preferred terms of the pod and of pods that are placed draw it near or push it away.
//!
//! A placed pod's required affinity draws as well, with a weight of its own: whoever had to be near is glad of company.

use std::collections::BTreeMap;

use crate::decide::scheduler::rules::{NodeScore, Outcome, PreScore, Score, Slots, View};
use crate::decide::world::spec::PodTerm;
use crate::decide::world::{Node, NodeId, Pod, World};

use super::inter_pod_affinity::{InterPodAffinity, matches, node_labels, placed};

/// How strongly a place draws: by topology key, then value.
#[derive(Default)]
struct Pulls(BTreeMap<String, BTreeMap<String, i64>>);

impl Pulls {
    fn add(&mut self, world: &World, term: &PodTerm, at: &Pod, weight: i64) {
        if let Some(value) = node_labels(world, at).and_then(|labels| labels.get(&term.topology_key)) {
            let places = self.0.entry(term.topology_key.clone()).or_default();
            *places.entry(value.clone()).or_insert(0) += weight;
        }
    }
}

impl InterPodAffinity {
    /// The terms of a placed pod that draw others, with their weights.
    pub(super) fn drawing<'a>(&self, other: &'a Pod) -> impl Iterator<Item = (i64, &'a PodTerm)> + use<'a> {
        let (spec, hard) = (&other.facts.spec, self.hard_weight);
        let required = spec.affinity.iter().filter(move |_| hard > 0).map(move |term| (hard, term));
        required.chain(spec.pods_preferred.iter().map(|(weight, term)| (*weight, term)))
    }

    /// `true` when some placed pod's terms mean this pod.
    pub(super) fn is_drawn(&self, world: &World, pod: &Pod) -> bool {
        let means = |other: &Pod| self.drawing(other).any(|(_, term)| matches(term, other, pod, world));
        !self.ignores_others(pod) && world.placed_that_draw().any(|other| other.id != pod.id && means(other))
    }

    fn ignores_others(&self, pod: &Pod) -> bool {
        self.ignore_preferred_of_others && pod.facts.spec.pods_preferred.is_empty()
    }
}

impl PreScore for InterPodAffinity {
    fn pre_score(&self, view: View<'_>, pod: &Pod, _: &[NodeId], slots: &mut Slots) -> Outcome {
        let (world, own) = (view.world, &pod.facts.spec.pods_preferred);
        if self.ignores_others(pod) {
            return Outcome::Fit;
        }
        let mut pulls = Pulls::default();
        for other in world.placed_that_draw().filter(|other| other.id != pod.id) {
            for (weight, term) in self.drawing(other).filter(|(_, term)| matches(term, other, pod, world)) {
                pulls.add(world, term, other, weight);
            }
        }
        if !own.is_empty() {
            for other in placed(world).filter(|other| other.id != pod.id) {
                for (weight, term) in own.iter().filter(|(_, term)| matches(term, pod, other, world)) {
                    pulls.add(world, term, other, *weight);
                }
            }
        }
        if !pulls.0.is_empty() {
            slots.put(pulls);
        }
        Outcome::Fit
    }
}

impl Score for InterPodAffinity {
    /// The sum of what draws to the node's places.
    fn score(&self, _: View<'_>, _: &Pod, (_, node): (NodeId, &Node), slots: &mut Slots) -> i64 {
        let (Some(Pulls(pulls)), Some(facts)) = (slots.get::<Pulls>(), &node.facts) else { return 0 };
        let here = pulls.iter().filter_map(|(key, places)| places.get(facts.labels.get(key)?));
        here.sum()
    }

    /// The weakest is 0, the strongest 100, evenly between; all 0 when they are alike.
    fn normalize(&self, _: View<'_>, _: &Pod, scores: &mut [NodeScore]) {
        stretch(scores);
    }
}

/// The lowest rating becomes 0, the highest 100, evenly between; all become 0 when they are alike.
pub(super) fn stretch(scores: &mut [NodeScore]) {
    let rating = |(_, score): &NodeScore| *score;
    let (least, most) = (scores.iter().map(rating).min(), scores.iter().map(rating).max());
    let (Some(least), Some(most)) = (least, most) else { return };
    for (_, score) in scores {
        let part = (*score - least) as f64 / (most - least).max(1) as f64;
        *score = (100.0 * part) as i64;
    }
}

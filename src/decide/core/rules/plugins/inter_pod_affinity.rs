//! `InterPodAffinity`: pods that must lie near others, or away from them, by the nodes' topology labels.
//!
//! As a rating: preferred terms of the pod and of placed pods attract or repel it. A placed pod's required affinity attracts as
//! well, with a weight of its own.

use std::collections::BTreeMap;

use crate::core::rules::points::stretch;
use crate::core::rules::{Filter, NodeScore, Outcome, Plugin, PreFilter, PreScore, Reads, Score, Slots, View};
use crate::world::spec::{Labels, PodTerm};
use crate::world::{Node, NodeId, Pod, Wake, World};

/// The rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InterPodAffinity {
    /// What a placed pod's required affinity weighs in the rating, 0..=100.
    pub hard_weight: i64,
    /// Rate pods without preferred terms without a look at what others prefer.
    pub ignore_preferred_of_others: bool,
}

impl Default for InterPodAffinity {
    fn default() -> Self {
        Self { hard_weight: 1, ignore_preferred_of_others: false }
    }
}

const NAME: &str = "InterPodAffinity";
const WAKE: Wake = Wake::POD_PLACED.or(Wake::POD_FREED).or(Wake::NODE_ADDED).or(Wake::NODE_CHANGED).or(Wake::NAMESPACE);

/// Pods by place: topology key and value.
type Counts = BTreeMap<(String, String), usize>;

/// Terms of the pod and of placed pods, counted once per pod and read per node.
#[derive(Clone, Default)]
struct TermCounts {
    /// Places with pods that match all affinity terms.
    affinity: Counts,
    /// Places with pods that match an anti-affinity term, by term.
    anti_affinity: Vec<Counts>,
    /// Places of pods whose anti-affinity selects this pod.
    existing_anti_affinity: Counts,
    /// Some placed pod's preferences select this pod: its rating needs more than single nodes.
    preferred_by_others: bool,
    /// Some nominated pod's anti-affinity selects this pod: the nominated node refuses it.
    refused_by_nominated: bool,
    /// The pod matches its own affinity terms: the first of a group may go anywhere.
    matches_itself: bool,
}

/// Stands for [`TermCounts`] without contents: no term of the pod or of a placed pod applies.
struct NoTerms;

impl TermCounts {
    /// `true` when some other pod selects this one.
    fn is_selected(&self) -> bool {
        !self.existing_anti_affinity.is_empty() || self.preferred_by_others || self.refused_by_nominated
    }

    /// Counts the terms of `pod` that select a placed pod.
    fn count_own(&mut self, pod: &Pod, other: &Pod, world: &World) {
        let (spec, Some(labels)) = (&pod.facts.spec, node_labels(world, other)) else { return };
        if !spec.affinity.is_empty() && spec.affinity.iter().all(|term| matches(term, pod, other, world)) {
            spec.affinity.iter().for_each(|term| count(&mut self.affinity, term, labels));
        }
        for (term, counts) in spec.anti_affinity.iter().zip(&mut self.anti_affinity) {
            if matches(term, pod, other, world) {
                count(counts, term, labels);
            }
        }
    }

    /// Counts the anti-affinity of a placed pod that selects `pod`.
    fn count_existing(&mut self, pod: &Pod, other: &Pod, world: &World) {
        let Some(labels) = node_labels(world, other) else { return };
        for term in &other.facts.spec.anti_affinity {
            if matches(term, other, pod, world) {
                count(&mut self.existing_anti_affinity, term, labels);
            }
        }
    }
}

impl Plugin for InterPodAffinity {
    fn name(&self) -> &'static str {
        NAME
    }

    fn reads(&self, pod: &Pod, slots: &Slots) -> Reads {
        let spec = &pod.facts.spec;
        let no_terms = spec.affinity.is_empty() && spec.anti_affinity.is_empty() && spec.pods_preferred.is_empty();
        let selected = || slots.get::<TermCounts>().is_none_or(TermCounts::is_selected);
        if slots.get::<NoTerms>().is_some() || no_terms && !selected() { Reads::Nothing } else { Reads::World }
    }
}

impl PreFilter for InterPodAffinity {
    fn pre_filter(&self, view: View<'_>, pod: &Pod, slots: &mut Slots) -> Outcome {
        let spec = &pod.facts.spec;
        let anti_affinity = vec![Counts::new(); spec.anti_affinity.len()];
        let mut counted = TermCounts {
            anti_affinity,
            preferred_by_others: self.is_preferred_by_others(view.world, pod),
            ..TermCounts::default()
        };
        for other in view.world.placed_with_anti_affinity().filter(|other| other.id != pod.id) {
            counted.count_existing(pod, other, view.world);
        }
        let selects =
            |other: &Pod| other.facts.spec.anti_affinity.iter().any(|term| matches(term, other, pod, view.world));
        counted.refused_by_nominated =
            view.world.nominated_reservations().any(|other| other.id != pod.id && selects(other));
        if !spec.affinity.is_empty() || !spec.anti_affinity.is_empty() {
            for other in placed(view.world).filter(|other| other.id != pod.id) {
                counted.count_own(pod, other, view.world);
            }
            counted.matches_itself = spec.affinity.iter().all(|term| matches(term, pod, pod, view.world));
        }
        let no_terms = spec.affinity.is_empty() && spec.anti_affinity.is_empty() && spec.pods_preferred.is_empty();
        if no_terms && !counted.is_selected() {
            slots.put(NoTerms);
        } else {
            slots.put(counted);
        }
        Outcome::Fit
    }
}

impl Filter for InterPodAffinity {
    /// Judged without the pods that are nominated to the node, then with them: they may come or not.
    fn filter(&self, view: View<'_>, pod: &Pod, (id, node): (NodeId, &Node), slots: &mut Slots) -> Outcome {
        let (Some(counted), Some(facts)) = (slots.get::<TermCounts>(), &node.facts) else { return Outcome::Fit };
        let outcome = judge(counted, pod, &facts.labels);
        let spec = &pod.facts.spec;
        let no_terms = spec.affinity.is_empty() && spec.anti_affinity.is_empty();
        // Most pods have no terms, and no term of a nominated pod selects them.
        if !outcome.is_fit() || no_terms && !counted.refused_by_nominated {
            return outcome;
        }
        let mut nominated = view.world.nominated_reservations_on(id).filter(|other| other.id != pod.id).peekable();
        if nominated.peek().is_none() {
            return outcome;
        }
        let mut with = counted.clone();
        for other in nominated {
            with.count_existing(pod, other, view.world);
            with.count_own(pod, other, view.world);
        }
        judge(&with, pod, &facts.labels)
    }
}

/// Weights of the places, by topology key, then value.
#[derive(Default)]
struct TopologyScores(BTreeMap<String, BTreeMap<String, i64>>);

impl TopologyScores {
    fn add(&mut self, world: &World, term: &PodTerm, at: &Pod, weight: i64) {
        if let Some(value) = node_labels(world, at).and_then(|labels| labels.get(&term.topology_key)) {
            let places = self.0.entry(term.topology_key.clone()).or_default();
            *places.entry(value.clone()).or_insert(0) += weight;
        }
    }
}

impl InterPodAffinity {
    /// The terms by which a placed pod prefers others, with their weights.
    fn preferring_terms<'a>(&self, other: &'a Pod) -> impl Iterator<Item = (i64, &'a PodTerm)> + use<'a> {
        let (spec, hard) = (&other.facts.spec, self.hard_weight);
        let required = spec.affinity.iter().filter(move |_| hard > 0).map(move |term| (hard, term));
        required.chain(spec.pods_preferred.iter().map(|(weight, term)| (*weight, term)))
    }

    /// `true` when some placed pod's preferences select this pod.
    fn is_preferred_by_others(&self, world: &World, pod: &Pod) -> bool {
        let selects = |other: &Pod| self.preferring_terms(other).any(|(_, term)| matches(term, other, pod, world));
        !self.ignores_others(pod) && world.placed_with_affinity().any(|other| other.id != pod.id && selects(other))
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
        let mut scores = TopologyScores::default();
        for other in world.placed_with_affinity().filter(|other| other.id != pod.id) {
            for (weight, term) in self.preferring_terms(other).filter(|(_, term)| matches(term, other, pod, world)) {
                scores.add(world, term, other, weight);
            }
        }
        if !own.is_empty() {
            for other in placed(world).filter(|other| other.id != pod.id) {
                for (weight, term) in own.iter().filter(|(_, term)| matches(term, pod, other, world)) {
                    scores.add(world, term, other, *weight);
                }
            }
        }
        if !scores.0.is_empty() {
            slots.put(scores);
        }
        Outcome::Fit
    }
}

impl Score for InterPodAffinity {
    /// The sum of the weights of the node's places.
    fn score(&self, _: View<'_>, _: &Pod, (_, node): (NodeId, &Node), slots: &mut Slots) -> i64 {
        let (Some(TopologyScores(scores)), Some(facts)) = (slots.get::<TopologyScores>(), &node.facts) else {
            return 0;
        };
        let here = scores.iter().filter_map(|(key, places)| places.get(facts.labels.get(key)?));
        here.sum()
    }

    /// The weakest is 0, the strongest 100, evenly between; all 0 when they are alike.
    fn normalize(&self, _: View<'_>, _: &Pod, scores: &mut [NodeScore]) {
        stretch(scores);
    }
}

fn judge(counted: &TermCounts, pod: &Pod, labels: &Labels) -> Outcome {
    let spec = &pod.facts.spec;
    if !wanted_here(&spec.affinity, counted, labels) {
        return Outcome::never(NAME, "pod affinity", WAKE);
    }
    let crowded = |(term, counts): (&PodTerm, &Counts)| place(term, labels).is_some_and(|at| counts.contains_key(&at));
    if spec.anti_affinity.iter().zip(&counted.anti_affinity).any(crowded) {
        return Outcome::unfit(NAME, "pod anti-affinity", WAKE);
    }
    let refused = !counted.existing_anti_affinity.is_empty()
        && labels.iter().any(|(key, value)| counted.existing_anti_affinity.contains_key(&(key.clone(), value.clone())));
    if refused {
        return Outcome::unfit(NAME, "anti-affinity of a pod there", WAKE);
    }
    Outcome::Fit
}

fn wanted_here(terms: &[PodTerm], counted: &TermCounts, labels: &Labels) -> bool {
    let mut all_there = true;
    for term in terms {
        match place(term, labels) {
            None => return false,
            Some(at) => all_there &= counted.affinity.contains_key(&at),
        }
    }
    all_there || (counted.affinity.is_empty() && counted.matches_itself)
}

/// Bound and assumed pods; those that only have room kept for them are not there.
fn placed(world: &World) -> impl Iterator<Item = &Pod> {
    let there = world.nodes().flat_map(|(_, node)| &node.pods).filter(|id| !world.is_nominated_reservation(**id));
    there.filter_map(|id| world.pod(*id))
}

fn node_labels<'a>(world: &'a World, pod: &Pod) -> Option<&'a Labels> {
    Some(&world.node(pod.node()?)?.facts.as_ref()?.labels)
}

fn place(term: &PodTerm, labels: &Labels) -> Option<(String, String)> {
    labels.get(&term.topology_key).map(|value| (term.topology_key.clone(), value.clone()))
}

fn count(counts: &mut Counts, term: &PodTerm, labels: &Labels) {
    if let Some(at) = place(term, labels) {
        *counts.entry(at).or_insert(0) += 1;
    }
}

/// Topology keys by which these two cannot be in one place, as either of them requires.
pub(crate) fn keep_apart<'a>(a: &'a Pod, b: &'a Pod, world: &World) -> Vec<&'a str> {
    let terms = |owner: &'a Pod, other: &'a Pod| {
        let all = owner.facts.spec.anti_affinity.iter();
        all.filter(move |term| matches(term, owner, other, world)).map(|term| term.topology_key.as_str())
    };
    terms(a, b).chain(terms(b, a)).collect()
}

/// `true` when `term`, written by `owner`, selects `other`.
pub(crate) fn matches(term: &PodTerm, owner: &Pod, other: &Pod, world: &World) -> bool {
    let namespace = &*other.key().namespace;
    let own_only = term.namespaces.is_empty() && term.namespace_selector.is_none();
    let no_labels = Labels::new();
    let in_namespace = (own_only && *owner.key().namespace == *namespace)
        || term.namespaces.iter().any(|name| *name == *namespace)
        || term
            .namespace_selector
            .as_ref()
            .is_some_and(|selector| selector.matches(world.namespace(namespace).unwrap_or(&no_labels)));
    in_namespace && term.selector.as_ref().is_some_and(|selector| selector.matches(&other.facts.spec.labels))
}

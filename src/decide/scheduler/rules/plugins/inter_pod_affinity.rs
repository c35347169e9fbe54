//! `InterPodAffinity`: pods that must lie near others, or away from them, by the nodes' topology labels.
//!
//! As a rating: preferred terms of the pod and of placed pods draw it near or push it away. A placed pod's required affinity draws as
//! well, with a weight of its own.

use std::collections::BTreeMap;

use crate::decide::scheduler::rules::points::stretch;
use crate::decide::scheduler::rules::{
    Filter, NodeScore, Outcome, Plugin, PreFilter, PreScore, Reads, Score, Slots, View,
};
use crate::decide::world::spec::{Labels, PodTerm};
use crate::decide::world::{Node, NodeId, Pod, Wake, World};

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

/// What is counted once per pod and read per node.
#[derive(Clone, Default)]
struct Near {
    /// Places with pods that match all affinity terms.
    wanted: Counts,
    /// Places with pods that match an anti-affinity term, by term.
    unwanted: Vec<Counts>,
    /// Places where pods live whose anti-affinity refuses this pod.
    refused: Counts,
    /// Some placed pod's preferences mean this pod: it is rated by more than single nodes.
    drawn: bool,
    /// Some nominated pod's anti-affinity means this pod: its node refuses it.
    shunned: bool,
    /// The pod matches its own affinity terms: the first of a group may go anywhere.
    first_of_group: bool,
}

/// Neither the pod nor anybody near any node means anybody: said in place of a [`Near`] without contents.
struct Nobody;

impl Near {
    /// `true` when some other pod means this one.
    fn is_meant(&self) -> bool {
        !self.refused.is_empty() || self.drawn || self.shunned
    }

    /// Counts the terms of `pod` that mean a placed pod.
    fn count_meant(&mut self, pod: &Pod, other: &Pod, world: &World) {
        let (spec, Some(labels)) = (&pod.facts.spec, node_labels(world, other)) else { return };
        if !spec.affinity.is_empty() && spec.affinity.iter().all(|term| matches(term, pod, other, world)) {
            spec.affinity.iter().for_each(|term| count(&mut self.wanted, term, labels));
        }
        for (term, counts) in spec.anti_affinity.iter().zip(&mut self.unwanted) {
            if matches(term, pod, other, world) {
                count(counts, term, labels);
            }
        }
    }

    /// Counts the anti-affinity of a placed pod that means `pod`.
    fn count_refusing(&mut self, pod: &Pod, other: &Pod, world: &World) {
        let Some(labels) = node_labels(world, other) else { return };
        for term in &other.facts.spec.anti_affinity {
            if matches(term, other, pod, world) {
                count(&mut self.refused, term, labels);
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
        let meant = || slots.get::<Near>().is_none_or(Near::is_meant);
        if slots.get::<Nobody>().is_some() || no_terms && !meant() { Reads::Nothing } else { Reads::World }
    }
}

impl PreFilter for InterPodAffinity {
    fn pre_filter(&self, view: View<'_>, pod: &Pod, slots: &mut Slots) -> Outcome {
        let spec = &pod.facts.spec;
        let unwanted = vec![Counts::new(); spec.anti_affinity.len()];
        let mut near = Near { unwanted, drawn: self.is_drawn(view.world, pod), ..Near::default() };
        for other in view.world.placed_with_anti_affinity().filter(|other| other.id != pod.id) {
            near.count_refusing(pod, other, view.world);
        }
        let means =
            |other: &Pod| other.facts.spec.anti_affinity.iter().any(|term| matches(term, other, pod, view.world));
        near.shunned = view.world.nominated_reservations().any(|other| other.id != pod.id && means(other));
        if !spec.affinity.is_empty() || !spec.anti_affinity.is_empty() {
            for other in placed(view.world).filter(|other| other.id != pod.id) {
                near.count_meant(pod, other, view.world);
            }
            near.first_of_group = spec.affinity.iter().all(|term| matches(term, pod, pod, view.world));
        }
        let no_terms = spec.affinity.is_empty() && spec.anti_affinity.is_empty() && spec.pods_preferred.is_empty();
        if no_terms && !near.is_meant() {
            slots.put(Nobody);
        } else {
            slots.put(near);
        }
        Outcome::Fit
    }
}

impl Filter for InterPodAffinity {
    /// As things are, and once more with the pods that are nominated to the node: whether they come, nobody knows.
    fn filter(&self, view: View<'_>, pod: &Pod, (id, node): (NodeId, &Node), slots: &mut Slots) -> Outcome {
        let (Some(near), Some(facts)) = (slots.get::<Near>(), &node.facts) else { return Outcome::Fit };
        let outcome = judge(near, pod, &facts.labels);
        let spec = &pod.facts.spec;
        let no_terms = spec.affinity.is_empty() && spec.anti_affinity.is_empty();
        // Most pods mean nobody, and none of those that are nominated means them.
        if !outcome.is_fit() || no_terms && !near.shunned {
            return outcome;
        }
        let mut shadows = view.world.nominated_reservations_on(id).filter(|other| other.id != pod.id).peekable();
        if shadows.peek().is_none() {
            return outcome;
        }
        let mut with = near.clone();
        for other in shadows {
            with.count_refusing(pod, other, view.world);
            with.count_meant(pod, other, view.world);
        }
        judge(&with, pod, &facts.labels)
    }
}

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
    fn drawing<'a>(&self, other: &'a Pod) -> impl Iterator<Item = (i64, &'a PodTerm)> + use<'a> {
        let (spec, hard) = (&other.facts.spec, self.hard_weight);
        let required = spec.affinity.iter().filter(move |_| hard > 0).map(move |term| (hard, term));
        required.chain(spec.pods_preferred.iter().map(|(weight, term)| (*weight, term)))
    }

    /// `true` when some placed pod's terms mean this pod.
    fn is_drawn(&self, world: &World, pod: &Pod) -> bool {
        let means = |other: &Pod| self.drawing(other).any(|(_, term)| matches(term, other, pod, world));
        !self.ignores_others(pod) && world.placed_with_affinity().any(|other| other.id != pod.id && means(other))
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
        for other in world.placed_with_affinity().filter(|other| other.id != pod.id) {
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

fn judge(near: &Near, pod: &Pod, labels: &Labels) -> Outcome {
    let spec = &pod.facts.spec;
    if !wanted_here(&spec.affinity, near, labels) {
        return Outcome::never(NAME, "pod affinity", WAKE);
    }
    let crowded = |(term, counts): (&PodTerm, &Counts)| place(term, labels).is_some_and(|at| counts.contains_key(&at));
    if spec.anti_affinity.iter().zip(&near.unwanted).any(crowded) {
        return Outcome::unfit(NAME, "pod anti-affinity", WAKE);
    }
    let refused = !near.refused.is_empty()
        && labels.iter().any(|(key, value)| near.refused.contains_key(&(key.clone(), value.clone())));
    if refused {
        return Outcome::unfit(NAME, "anti-affinity of a pod there", WAKE);
    }
    Outcome::Fit
}

fn wanted_here(terms: &[PodTerm], near: &Near, labels: &Labels) -> bool {
    let mut all_there = true;
    for term in terms {
        match place(term, labels) {
            None => return false,
            Some(at) => all_there &= near.wanted.contains_key(&at),
        }
    }
    all_there || (near.wanted.is_empty() && near.first_of_group)
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
pub(in crate::decide) fn keep_apart<'a>(a: &'a Pod, b: &'a Pod, world: &World) -> Vec<&'a str> {
    let terms = |owner: &'a Pod, other: &'a Pod| {
        let all = owner.facts.spec.anti_affinity.iter();
        all.filter(move |term| matches(term, owner, other, world)).map(|term| term.topology_key.as_str())
    };
    terms(a, b).chain(terms(b, a)).collect()
}

/// `true` when `term`, written by `owner`, means `other`.
pub(in crate::decide) fn matches(term: &PodTerm, owner: &Pod, other: &Pod, world: &World) -> bool {
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

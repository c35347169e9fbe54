//! `PodTopologySpread`: required constraints bound how unevenly matching pods may lie over places; soft ones prefer places with
//! fewer matching pods.
//!
//! In the rating, a place's pods weigh more where a constraint has more places (by the logarithm), so that spreading over few zones
//! is not drowned by spreading over many nodes. A node that lacks one of the topology labels is rated last.

use std::collections::{BTreeMap, BTreeSet};

use crate::core::rules::{Filter, NodeScore, Outcome, Plugin, PreFilter, PreScore, Reads, Score, Slots, View};
use crate::world::spec::{Spread, TaintEffect};
use crate::world::{Node, NodeFacts, NodeId, Pod, Wake, World};
use baton_contract::hint::LabelSelector;

/// The rule.
pub struct PodTopologySpread;

const NAME: &str = "PodTopologySpread";
const WAKE: Wake = Wake::POD_PLACED.or(Wake::POD_FREED).or(Wake::NODE_ADDED).or(Wake::NODE_CHANGED);

/// Nodes under this label are places of their own, counted one by one.
const HOSTNAME: &str = "kubernetes.io/hostname";
/// A node that is no place for some constraint.
const NO_PLACE: i64 = -1;

/// Matching pods by place, one table per required constraint.
#[derive(Clone, Default)]
struct PodsByPlace(Vec<BTreeMap<String, i64>>);

impl Plugin for PodTopologySpread {
    fn name(&self) -> &'static str {
        NAME
    }

    fn reads(&self, pod: &Pod, _: &Slots) -> Reads {
        if pod.facts.spec.spread.is_empty() { Reads::Nothing } else { Reads::World }
    }
}

impl PreFilter for PodTopologySpread {
    fn pre_filter(&self, view: View<'_>, pod: &Pod, slots: &mut Slots) -> Outcome {
        let required: Vec<&Spread> = required(pod).collect();
        if required.is_empty() {
            return Outcome::Fit;
        }
        let mut places = PodsByPlace(vec![BTreeMap::new(); required.len()]);
        for (_, node) in view.world.nodes() {
            let Some(facts) = &node.facts else { continue };
            // A node that lacks one of the labels is no place for any constraint.
            if required.iter().any(|spread| !facts.labels.contains_key(&spread.topology_key)) {
                continue;
            }
            for (spread, counts) in required.iter().zip(&mut places.0) {
                if is_place(spread, pod, facts) {
                    let place = counts.entry(facts.labels[&spread.topology_key].clone()).or_insert(0);
                    *place += matching(spread, pod, node, view.world);
                }
            }
        }
        slots.put(places);
        Outcome::Fit
    }
}

impl Filter for PodTopologySpread {
    /// Judged without the pods that are nominated to the node, then with them: they may come or not.
    fn filter(&self, view: View<'_>, pod: &Pod, (id, node): (NodeId, &Node), slots: &mut Slots) -> Outcome {
        let (Some(places), Some(facts)) = (slots.get::<PodsByPlace>(), &node.facts) else { return Outcome::Fit };
        let outcome = judge(places, pod, facts);
        if !outcome.is_fit() || required(pod).next().is_none() {
            return outcome;
        }
        let mut nominated = view.world.nominated_reservations_on(id).filter(|other| other.id != pod.id).peekable();
        if nominated.peek().is_none() {
            return outcome;
        }
        let mut with = places.clone();
        for other in nominated {
            for (spread, counts) in required(pod).zip(&mut with.0) {
                if is_place(spread, pod, facts) && counts_for(spread, pod, other) {
                    *counts.entry(facts.labels[&spread.topology_key].clone()).or_insert(0) += 1;
                }
            }
        }
        judge(&with, pod, facts)
    }
}

fn judge(places: &PodsByPlace, pod: &Pod, facts: &NodeFacts) -> Outcome {
    for (spread, counts) in required(pod).zip(&places.0) {
        let Some(place) = facts.labels.get(&spread.topology_key) else {
            return Outcome::never(NAME, format!("no label {} to spread over", spread.topology_key), WAKE);
        };
        let itself = spread.selector.as_ref().is_some_and(|selector| selector.matches(&pod.facts.spec.labels));
        let enough = counts.len() as i64 >= spread.min_domains;
        let least = if enough { counts.values().copied().min().unwrap_or(0) } else { 0 };
        let here = counts.get(place).copied().unwrap_or(0) + i64::from(itself);
        if here - least > spread.max_skew {
            return Outcome::unfit(NAME, format!("spread over {}", spread.topology_key), WAKE);
        }
    }
    Outcome::Fit
}

fn required(pod: &Pod) -> impl Iterator<Item = &Spread> {
    pod.facts.spec.spread.iter().filter(|spread| spread.required)
}

/// One soft constraint, counted over the cluster.
struct Soft {
    /// Matching pods by place; only places of nodes that fit. Empty for hostnames.
    pods: BTreeMap<String, i64>,
    weight: f64,
}

/// The soft constraints in the order of the pod.
struct SoftPlaces(Vec<Soft>);

fn soft(pod: &Pod) -> impl Iterator<Item = &Spread> {
    pod.facts.spec.spread.iter().filter(|spread| !spread.required)
}

fn has_all(pod: &Pod, node: &Node) -> bool {
    node.facts.as_ref().is_some_and(|facts| soft(pod).all(|spread| facts.labels.contains_key(&spread.topology_key)))
}

impl PreScore for PodTopologySpread {
    fn pre_score(&self, view: View<'_>, pod: &Pod, nodes: &[NodeId], slots: &mut Slots) -> Outcome {
        let constraints: Vec<&Spread> = soft(pod).collect();
        if constraints.is_empty() {
            return Outcome::Fit;
        }
        let fitting = nodes.iter().filter_map(|id| view.world.node(*id)).filter(|node| has_all(pod, node));
        let fitting: Vec<&Node> = fitting.collect();
        let mut places = Vec::with_capacity(constraints.len());
        for spread in &constraints {
            let value = |node: &Node| node.facts.as_ref()?.labels.get(&spread.topology_key).cloned();
            let values: BTreeSet<String> = fitting.iter().filter_map(|node| value(node)).collect();
            let size = if spread.topology_key == HOSTNAME { fitting.len() } else { values.len() };
            let weight = (size as f64 + 2.0).ln();
            let mut pods: BTreeMap<String, i64> = BTreeMap::new();
            if spread.topology_key != HOSTNAME {
                pods.extend(values.into_iter().map(|value| (value, 0)));
                for (_, node) in view.world.nodes().filter(|(_, node)| has_all(pod, node)) {
                    let Some(facts) = node.facts.as_ref().filter(|facts| is_place(spread, pod, facts)) else {
                        continue;
                    };
                    if let Some(count) = pods.get_mut(&facts.labels[&spread.topology_key]) {
                        *count += matching(spread, pod, node, view.world);
                    }
                }
            }
            places.push(Soft { pods, weight });
        }
        slots.put(SoftPlaces(places));
        Outcome::Fit
    }
}

impl Score for PodTopologySpread {
    /// How crowded the node's places are; `NO_PLACE` where there is none, so that a pod without soft constraints rates every node 0.
    fn score(&self, view: View<'_>, pod: &Pod, (_, node): (NodeId, &Node), slots: &mut Slots) -> i64 {
        let Some(SoftPlaces(places)) = slots.get::<SoftPlaces>() else {
            return if pod.facts.spec.spread.is_empty() { 0 } else { NO_PLACE };
        };
        let Some(facts) = node.facts.as_ref().filter(|_| has_all(pod, node)) else { return NO_PLACE };
        let crowd = soft(pod).zip(places).map(|(spread, soft)| {
            let count = if spread.topology_key == HOSTNAME {
                matching(spread, pod, node, view.world)
            } else {
                soft.pods.get(&facts.labels[&spread.topology_key]).copied().unwrap_or(0)
            };
            count as f64 * soft.weight + (spread.max_skew - 1) as f64
        });
        crowd.sum::<f64>().round() as i64
    }

    fn normalize(&self, _: View<'_>, _: &Pod, scores: &mut [NodeScore]) {
        let places = || scores.iter().map(|(_, score)| *score).filter(|score| *score != NO_PLACE);
        let (least, most) = (places().min().unwrap_or(0), places().max().unwrap_or(0));
        for (_, score) in scores.iter_mut() {
            *score = match (*score, most) {
                (NO_PLACE, _) => 0,
                (_, 0) => 100,
                (score, most) => 100 * (most + least - score) / most,
            };
        }
    }
}

fn is_place(spread: &Spread, pod: &Pod, facts: &NodeFacts) -> bool {
    let spec = &pod.facts.spec;
    let hard = [TaintEffect::NoSchedule, TaintEffect::NoExecute];
    (!spread.honor_affinity || spec.accepts_node(&facts.name, &facts.labels))
        && (!spread.honor_taints || spec.untolerated(&facts.taints, &hard).is_none())
}

/// Pods of the same namespace on the node that the selector selects; those being deleted do not count, nor those that only have
/// room kept for them, and neither does anything for an empty selector.
fn matching(spread: &Spread, pod: &Pod, node: &Node, world: &World) -> i64 {
    if selects_none(spread) {
        return 0;
    }
    let there = node.pods.iter().filter(|id| !world.is_nominated_reservation(**id)).filter_map(|id| world.pod(*id));
    there.filter(|other| counts_for(spread, pod, other)).count() as i64
}

fn selects_none(spread: &Spread) -> bool {
    let empty = |selector: &LabelSelector| selector.match_labels.is_empty() && selector.match_expressions.is_empty();
    spread.selector.as_ref().is_none_or(empty)
}

fn counts_for(spread: &Spread, pod: &Pod, other: &Pod) -> bool {
    !selects_none(spread)
        && other.key().namespace == pod.key().namespace
        && other.facts.handoff.deleting.is_none()
        && spread.selector.as_ref().is_some_and(|selector| selector.matches(&other.facts.spec.labels))
}

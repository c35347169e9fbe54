//! `PodTopologySpread` as a rating: soft constraints prefer places with fewer matching pods.
//!
//! A place's pods weigh more where a constraint has more places (by the logarithm), so that spreading over few zones is not
//! drowned by spreading over many nodes. A node that lacks one of the topology labels is rated last.

use std::collections::{BTreeMap, BTreeSet};

use crate::decide::scheduler::rules::{NodeScore, Outcome, PreScore, Score, Slots, View};
use crate::decide::world::spec::Spread;
use crate::decide::world::{Node, NodeId, Pod};

use super::topology_spread::{PodTopologySpread, is_place, matching};

/// Nodes under this label are places of their own, counted one by one.
const HOSTNAME: &str = "kubernetes.io/hostname";
/// A node that is no place for some constraint.
const NO_PLACE: i64 = -1;

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

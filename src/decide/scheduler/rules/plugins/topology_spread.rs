//! `PodTopologySpread`: required constraints bound how unevenly matching pods may lie over places.

use std::collections::BTreeMap;

use crate::contract::hint::LabelSelector;
use crate::decide::scheduler::rules::{Filter, Outcome, Plugin, PreFilter, Reads, Slots, View};
use crate::decide::world::spec::{Spread, TaintEffect};
use crate::decide::world::{Node, NodeFacts, NodeId, Pod, Wake, World};

/// The rule.
pub struct PodTopologySpread;

const NAME: &str = "PodTopologySpread";
const WAKE: Wake = Wake::POD_PLACED.or(Wake::POD_FREED).or(Wake::NODE_ADDED).or(Wake::NODE_CHANGED);

/// Matching pods by place, one table per required constraint.
#[derive(Clone, Default)]
struct Places(Vec<BTreeMap<String, i64>>);

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
        let mut places = Places(vec![BTreeMap::new(); required.len()]);
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
    /// As things are, and once more with the pods that are nominated to the node: whether they come, nobody knows.
    fn filter(&self, view: View<'_>, pod: &Pod, (id, node): (NodeId, &Node), slots: &mut Slots) -> Outcome {
        let (Some(places), Some(facts)) = (slots.get::<Places>(), &node.facts) else { return Outcome::Fit };
        let outcome = judge(places, pod, facts);
        if !outcome.is_fit() || required(pod).next().is_none() {
            return outcome;
        }
        let mut shadows = view.world.shadows_on(id).filter(|other| other.id != pod.id).peekable();
        if shadows.peek().is_none() {
            return outcome;
        }
        let mut with = places.clone();
        for other in shadows {
            for (spread, counts) in required(pod).zip(&mut with.0) {
                if is_place(spread, pod, facts) && counts_for(spread, pod, other) {
                    *counts.entry(facts.labels[&spread.topology_key].clone()).or_insert(0) += 1;
                }
            }
        }
        judge(&with, pod, facts)
    }
}

fn judge(places: &Places, pod: &Pod, facts: &NodeFacts) -> Outcome {
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

pub(super) fn is_place(spread: &Spread, pod: &Pod, facts: &NodeFacts) -> bool {
    let spec = &pod.facts.spec;
    let hard = [TaintEffect::NoSchedule, TaintEffect::NoExecute];
    (!spread.honor_affinity || spec.accepts_node(&facts.name, &facts.labels))
        && (!spread.honor_taints || spec.untolerated(&facts.taints, &hard).is_none())
}

/// Pods of the same namespace on the node that the selector selects; those being deleted do not count, nor those that only have
/// room kept for them, and neither does anything for an empty selector.
pub(super) fn matching(spread: &Spread, pod: &Pod, node: &Node, world: &World) -> i64 {
    if selects_nothing(spread) {
        return 0;
    }
    let there = node.pods.iter().filter(|id| !world.is_shadow(**id)).filter_map(|id| world.pod(*id));
    there.filter(|other| counts_for(spread, pod, other)).count() as i64
}

fn selects_nothing(spread: &Spread) -> bool {
    let empty = |selector: &LabelSelector| selector.match_labels.is_empty() && selector.match_expressions.is_empty();
    spread.selector.as_ref().is_none_or(empty)
}

fn counts_for(spread: &Spread, pod: &Pod, other: &Pod) -> bool {
    !selects_nothing(spread)
        && other.key().namespace == pod.key().namespace
        && other.facts.handoff.deleting.is_none()
        && spread.selector.as_ref().is_some_and(|selector| selector.matches(&other.facts.spec.labels))
}

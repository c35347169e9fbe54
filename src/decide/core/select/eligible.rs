//! What keeps pods from a node whatever is free there: labels, taints, a cordon.

use crate::core::rules::plugins::{node_affinity, taints, unschedulable};
use crate::core::rules::{Filter, Outcome, Plugins, Slots, View};
use crate::core::select::choose::agreed;
use crate::core::select::shape::PodShape;
use crate::world::{Node, NodeId, Pod};

/// Whether a node takes pods.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Eligibility {
    /// Its labels are not those that they ask for.
    Never,
    /// A taint or cordon keeps them away for now.
    NotNow,
    /// It does.
    Now,
}

/// The rules that decide that, and the pods: one of each shape.
pub struct NodeEligibility<'a> {
    rules: Vec<&'a dyn Filter>,
    pods: Vec<(PodShape, Pod)>,
}

/// The rules' names.
const NAMES: [&str; 3] = [node_affinity::NAME, taints::NAME, unschedulable::NAME];

/// Why the node takes the pod no more for what it says of itself; kubelets refuse pods for its labels, too.
pub fn keeps_away(view: View<'_>, rules: &Plugins, pod: &Pod, (id, node): (NodeId, &Node)) -> Option<String> {
    let facts = node.facts.as_ref()?;
    let spec = &pod.facts.spec;
    // Most pods may go to any node, and most nodes take any pod.
    if !facts.unschedulable && facts.taints.is_empty() && spec.node_selector.is_empty() && spec.node_required.is_none()
    {
        return None;
    }
    let mut asked = rules.enabled().filter.iter().filter(|rule| NAMES.contains(&rule.name()));
    asked.find_map(|rule| match rule.filter(view, pod, (id, node), &mut Slots::default()) {
        Outcome::Never(no) => Some(agreed(1, &no.text).into_owned()),
        _ => None,
    })
}

impl<'a> NodeEligibility<'a> {
    /// For these pods.
    pub fn of<'p>(rules: &'a Plugins, pods: impl IntoIterator<Item = &'p Pod>) -> Self {
        let enabled = || rules.enabled().filter.iter().map(AsRef::as_ref);
        // A node whose labels are others is no place even when its taint goes.
        let rules = NAMES.into_iter().filter_map(|name| enabled().find(|rule: &&dyn Filter| rule.name() == name));
        let mut shapes: Vec<(PodShape, Pod)> = Vec::new();
        for pod in pods {
            if !shapes.iter().any(|(shape, _)| shape.is_of(pod)) {
                shapes.push((PodShape::of(pod), pod.clone()));
            }
        }
        Self { rules: rules.collect(), pods: shapes }
    }

    /// Whether the node takes any of them.
    pub fn on(&self, view: View<'_>, node: (NodeId, &Node)) -> Eligibility {
        let refuses = |pod: &Pod, rule: &&&dyn Filter| {
            matches!(rule.filter(view, pod, node, &mut Slots::default()), Outcome::Never(_))
        };
        let of_pod = |(_, pod): &(PodShape, Pod)| match self.rules.iter().find(|rule| refuses(pod, rule)) {
            None => Eligibility::Now,
            Some(rule) if rule.name() == node_affinity::NAME => Eligibility::Never,
            Some(_) => Eligibility::NotNow,
        };
        self.pods.iter().map(of_pod).max().unwrap_or(Eligibility::Now)
    }
}

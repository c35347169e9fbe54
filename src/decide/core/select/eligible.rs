//! What keeps pods from a node whatever is free there: labels, taints, a cordon.

use crate::core::rules::plugins::{node_affinity, taints, unschedulable};
use crate::core::rules::{Filter, Outcome, Plugins, Slots, View};
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

impl<'a> NodeEligibility<'a> {
    /// For these pods.
    pub fn of<'p>(rules: &'a Plugins, pods: impl IntoIterator<Item = &'p Pod>) -> Self {
        let names = [node_affinity::NAME, taints::NAME, unschedulable::NAME];
        let enabled = || rules.enabled().filter.iter().map(AsRef::as_ref);
        // A node whose labels are others is no place even when its taint goes.
        let rules = names.into_iter().filter_map(|name| enabled().find(|rule: &&dyn Filter| rule.name() == name));
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

//! What keeps pods from a node whatever is free there: labels, taints, a cordon.

use crate::core::rules::{Eligibility, Filter, Outcome, Plugins, Slots, View};
use crate::core::select::choose::agreed;
use crate::core::select::shape::PodShape;
use crate::world::{Node, NodeId, Pod};

/// The rules that decide that, and the pods: one of each shape.
pub struct NodeEligibility<'a> {
    rules: Vec<&'a dyn Filter>,
    pods: Vec<(PodShape, Pod)>,
}

/// Why the node takes the pod no more for what it says of itself; kubelets refuse pods for its labels, too.
pub fn keeps_away(view: View<'_>, rules: &Plugins, pod: &Pod, node: (NodeId, &Node)) -> Option<String> {
    of_node(rules).find_map(|rule| match rule.filter(view, pod, node, &mut Slots::default()) {
        Outcome::Never(no) => Some(agreed(1, &no.text).into_owned()),
        _ => None,
    })
}

/// The rules that keep pods away whatever is free.
fn of_node(rules: &Plugins) -> impl Iterator<Item = &dyn Filter> {
    rules.enabled().filter.iter().map(AsRef::as_ref).filter(|rule| rule.refused() != Eligibility::Now)
}

impl<'a> NodeEligibility<'a> {
    /// For these pods.
    pub fn of<'p>(rules: &'a Plugins, pods: impl IntoIterator<Item = &'p Pod>) -> Self {
        let mut rules: Vec<&dyn Filter> = of_node(rules).collect();
        // A node whose labels are others is no place even when its taint goes.
        rules.sort_by_key(|rule| rule.refused());
        let mut shapes: Vec<(PodShape, Pod)> = Vec::new();
        for pod in pods {
            if !shapes.iter().any(|(shape, _)| shape.is_of(pod)) {
                shapes.push((PodShape::of(pod), pod.clone()));
            }
        }
        Self { rules, pods: shapes }
    }

    /// Whether the node takes any of them.
    pub fn on(&self, view: View<'_>, node: (NodeId, &Node)) -> Eligibility {
        let refuses = |pod: &Pod, rule: &&&dyn Filter| {
            matches!(rule.filter(view, pod, node, &mut Slots::default()), Outcome::Never(_))
        };
        let of_pod = |(_, pod): &(PodShape, Pod)| {
            self.rules.iter().find(|rule| refuses(pod, rule)).map_or(Eligibility::Now, |rule| rule.refused())
        };
        self.pods.iter().map(of_pod).max().unwrap_or(Eligibility::Now)
    }
}

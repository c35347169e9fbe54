//! `TaintToleration`: taints refuse pods that do not tolerate them; `PreferNoSchedule` taints cost score.

use crate::core::rules::points::normalize_in_reverse;
use crate::core::rules::{Eligibility, Filter, NodeScore, Outcome, Plugin, Reads, Score, Slots, View};
use crate::help::Help;
use crate::world::spec::{TaintEffect, Toleration};
use crate::world::{Node, NodeId, Pod, Wake};

/// The rule.
pub struct TaintToleration;

/// The rule's name.
pub const NAME: &str = "TaintToleration";

/// These go once the kubelet answers and is well.
const KUBELETS: [&str; 2] = ["node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"];

impl Plugin for TaintToleration {
    fn name(&self) -> &'static str {
        NAME
    }

    fn reads(&self, _: &Pod, _: &Slots) -> Reads {
        Reads::Node
    }
}

impl Filter for TaintToleration {
    fn filter(&self, _: View<'_>, pod: &Pod, (_, node): (NodeId, &Node), _: &mut Slots) -> Outcome {
        let taints = node.facts.as_ref().map_or(&[][..], |facts| &facts.taints);
        match pod.facts.spec.untolerated(taints, &[TaintEffect::NoSchedule, TaintEffect::NoExecute]) {
            None => Outcome::Fit,
            Some(taint) => {
                // A toleration would bring the pod to a machine that starts none.
                let help = if KUBELETS.contains(&&*taint.key) { Help::Kubelet } else { Help::Rule };
                Outcome::never(NAME, format!("taint {taint}"), Wake::NODE_CHANGED).helped_by(help)
            }
        }
    }

    fn refused(&self) -> Eligibility {
        Eligibility::NotNow
    }
}

impl Score for TaintToleration {
    /// Number of soft taints that are not tolerated.
    fn score(&self, _: View<'_>, pod: &Pod, (_, node): (NodeId, &Node), _: &mut Slots) -> i64 {
        let taints = node.facts.as_ref().map_or(&[][..], |facts| &facts.taints);
        if taints.is_empty() {
            return 0;
        }
        let soft =
            |toleration: &&Toleration| toleration.effect.is_none_or(|effect| effect == TaintEffect::PreferNoSchedule);
        let tolerations: Vec<&Toleration> = pod.facts.spec.tolerations.iter().filter(soft).collect();
        let soft_taints = taints.iter().filter(|taint| taint.effect == TaintEffect::PreferNoSchedule);
        soft_taints.filter(|taint| !tolerations.iter().any(|toleration| toleration.covers(taint))).count() as i64
    }

    fn normalize(&self, _: View<'_>, _: &Pod, scores: &mut [NodeScore]) {
        normalize_in_reverse(scores);
    }
}

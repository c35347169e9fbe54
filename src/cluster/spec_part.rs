//! Parts of specs at the border that several objects share: selectors, affinities, tolerations, constraints, names of images.

use std::fmt;

use k8s_openapi::api::core::v1::{
    self as core, NodeSelectorRequirement, NodeSelectorTerm, PodAffinityTerm, TopologySpreadConstraint,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1 as meta;
use serde::de::{Deserialize, Deserializer, Error, Visitor};

use baton_contract::hint::{LabelSelector, Operator, Requirement};
use baton_contract::image::ImageName;
use baton_decide::world::spec::{
    Labels, NodeOperator, NodeRequirement, NodeTerm, PodTerm, Spread, Taint, TaintEffect, Toleration,
    TolerationOperator,
};

/// Required and preferred terms.
pub(super) type AffinityTerms = (Option<Vec<NodeTerm>>, Vec<(i64, NodeTerm)>);

pub(super) fn node_affinity(affinity: Option<&core::NodeAffinity>) -> AffinityTerms {
    let Some(affinity) = affinity else { return (None, Vec::new()) };
    let required = affinity.required_during_scheduling_ignored_during_execution.as_ref();
    let preferred = affinity.preferred_during_scheduling_ignored_during_execution.iter().flatten();
    (
        required.map(|selector| selector.node_selector_terms.iter().map(node_term).collect()),
        preferred.map(|term| (i64::from(term.weight), node_term(&term.preference))).collect(),
    )
}

pub(super) fn node_term(term: &NodeSelectorTerm) -> NodeTerm {
    let all = |list: &Option<Vec<NodeSelectorRequirement>>| list.iter().flatten().map(node_requirement).collect();
    NodeTerm { expressions: all(&term.match_expressions), fields: all(&term.match_fields) }
}

fn node_requirement(requirement: &NodeSelectorRequirement) -> NodeRequirement {
    NodeRequirement {
        key: requirement.key.clone(),
        operator: match requirement.operator.as_str() {
            "In" => NodeOperator::In,
            "NotIn" => NodeOperator::NotIn,
            "Exists" => NodeOperator::Exists,
            "DoesNotExist" => NodeOperator::DoesNotExist,
            "Gt" => NodeOperator::Gt,
            "Lt" => NodeOperator::Lt,
            _ => NodeOperator::Unknown,
        },
        values: requirement.values.clone().unwrap_or_default(),
    }
}

pub(super) fn effect(word: &str) -> Option<TaintEffect> {
    match word {
        "NoSchedule" => Some(TaintEffect::NoSchedule),
        "PreferNoSchedule" => Some(TaintEffect::PreferNoSchedule),
        "NoExecute" => Some(TaintEffect::NoExecute),
        _ => None,
    }
}

pub(super) fn taint(taint: &core::Taint) -> Option<Taint> {
    let value = taint.value.clone().unwrap_or_default();
    Some(Taint { key: taint.key.clone(), value, effect: effect(&taint.effect)? })
}

pub(super) fn toleration(toleration: &core::Toleration) -> Toleration {
    let word = toleration.effect.as_deref().unwrap_or_default();
    let known = effect(word);
    Toleration {
        key: toleration.key.clone().unwrap_or_default(),
        operator: match toleration.operator.as_deref().unwrap_or_default() {
            // An effect that this version does not know covers none of the effects that it knows.
            _ if known.is_none() && !word.is_empty() => TolerationOperator::Unknown,
            "" | "Equal" => TolerationOperator::Equal,
            "Exists" => TolerationOperator::Exists,
            "Lt" => TolerationOperator::Lt,
            "Gt" => TolerationOperator::Gt,
            _ => TolerationOperator::Unknown,
        },
        value: toleration.value.clone().unwrap_or_default(),
        effect: known,
    }
}

pub(super) fn pod_terms(terms: Option<&[PodAffinityTerm]>) -> Vec<PodTerm> {
    terms.unwrap_or_default().iter().map(pod_term).collect()
}

/// `matchLabelKeys` are merged into the selector by the API server.
pub(super) fn pod_term(term: &PodAffinityTerm) -> PodTerm {
    PodTerm {
        selector: term.label_selector.as_ref().map(selector),
        namespaces: term.namespaces.clone().unwrap_or_default(),
        namespace_selector: term.namespace_selector.as_ref().map(selector),
        topology_key: term.topology_key.clone(),
    }
}

pub(super) fn selector(selector: &meta::LabelSelector) -> LabelSelector {
    let expressions = selector.match_expressions.iter().flatten().filter_map(|requirement| {
        let operator = match requirement.operator.as_str() {
            "In" => Operator::In,
            "NotIn" => Operator::NotIn,
            "Exists" => Operator::Exists,
            "DoesNotExist" => Operator::DoesNotExist,
            _ => return None,
        };
        let values = requirement.values.clone().unwrap_or_default();
        Some(Requirement { key: requirement.key.clone(), operator, values })
    });
    LabelSelector {
        match_labels: selector.match_labels.clone().unwrap_or_default(),
        match_expressions: expressions.collect(),
    }
}

pub(super) fn spread(spread: &TopologySpreadConstraint, labels: &Labels) -> Spread {
    let honors = |policy: &Option<String>, default: bool| policy.as_deref().map_or(default, |word| word == "Honor");
    let mut own = spread.label_selector.as_ref().map(selector);
    if let Some(own) = &mut own {
        for key in spread.match_label_keys.iter().flatten() {
            if let Some(value) = labels.get(key) {
                let values = vec![value.clone()];
                own.match_expressions.push(Requirement { key: key.clone(), operator: Operator::In, values });
            }
        }
    }
    Spread {
        max_skew: i64::from(spread.max_skew),
        topology_key: spread.topology_key.clone(),
        required: spread.when_unsatisfiable == "DoNotSchedule",
        selector: own,
        min_domains: i64::from(spread.min_domains.unwrap_or(1)),
        honor_affinity: honors(&spread.node_affinity_policy, true),
        honor_taints: honors(&spread.node_taints_policy, false),
    }
}

/// The name of an image as a node lists it, hashed while it is parsed: the text is not needed.
#[derive(Debug, Clone, Copy)]
pub(super) struct ListedImage(pub ImageName);

/// The same as a container or a volume asks for it; none for an empty name.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct AskedImage(pub Option<ImageName>);

/// Makes a value of a text, without a copy of the text.
pub(super) struct OfText<T>(pub fn(&str) -> T);

impl<T> Visitor<'_> for OfText<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a text")
    }

    fn visit_str<E: Error>(self, name: &str) -> Result<T, E> {
        Ok(self.0(name))
    }
}

impl<'de> Deserialize<'de> for ListedImage {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_str(OfText(|name| Self(ImageName::listed(name))))
    }
}

impl<'de> Deserialize<'de> for AskedImage {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_str(OfText(|name| Self((!name.is_empty()).then(|| ImageName::asked(name)))))
    }
}

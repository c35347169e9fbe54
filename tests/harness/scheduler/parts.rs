//! Parts of pods and nodes that many tests need: labels, and what pods ask for by them.

use std::collections::BTreeMap;

use baton::contract::hint::LabelSelector;
use baton::decide::world::spec::{NodeOperator, NodeRequirement, NodeTerm, PodTerm, Spread};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

/// This label alone.
pub fn labels_of(key: &str, value: &str) -> BTreeMap<String, String> {
    [(key.to_owned(), value.to_owned())].into()
}

/// What has this label.
pub fn with_label(key: &str, value: &str) -> LabelSelector {
    LabelSelector { match_labels: labels_of(key, value), ..LabelSelector::default() }
}

/// Pods with this label `app`, in a domain of the nodes' key.
pub fn near(app: &str, topology_key: &str) -> PodTerm {
    PodTerm { selector: Some(with_label("app", app)), topology_key: topology_key.to_owned(), ..PodTerm::default() }
}

/// Nodes whose label has one of these values.
pub fn among(key: &str, values: &[&str]) -> NodeTerm {
    let values = values.iter().map(|value| (*value).to_owned()).collect();
    let expressions = vec![NodeRequirement { key: key.to_owned(), operator: NodeOperator::In, values }];
    NodeTerm { expressions, ..NodeTerm::default() }
}

/// Pods with this label `app` must be spread evenly over the domains of the nodes' key.
pub fn spread(app: &str, topology_key: &str) -> Spread {
    Spread {
        max_skew: 1,
        topology_key: topology_key.to_owned(),
        required: true,
        selector: Some(with_label("app", app)),
        min_domains: 1,
        honor_affinity: true,
        honor_taints: false,
    }
}

/// A condition that holds since then.
pub fn condition(of: &str, reason: &str, message: &str, since: Timestamp) -> Condition {
    Condition {
        type_: of.to_owned(),
        status: "True".to_owned(),
        reason: reason.to_owned(),
        message: message.to_owned(),
        last_transition_time: Time(since),
        observed_generation: None,
    }
}

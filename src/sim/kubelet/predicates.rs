//! The kubelet's own checks at admission, after devices were given: node selector and enough of everything.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Pod;

use super::lifecycle::{Role, containers};
use super::locked;
use super::machine::Machine;
use super::quantity::milli;

/// Reason and message when the node cannot take the pod.
pub(super) fn refusal(machine: &Machine, pod: &Pod) -> Option<(String, String)> {
    let wanted = pod.spec.as_ref().and_then(|spec| spec.node_selector.as_ref());
    let labels = super::node::labels(&machine.options);
    if wanted.into_iter().flatten().any(|(key, value)| labels.get(key) != Some(value)) {
        let text = "Predicate NodeAffinity failed: node(s) didn't match Pod's node affinity/selector";
        return Some(("NodeAffinity".to_owned(), text.to_owned()));
    }
    let state = locked(&machine.state);
    let mut capacity: BTreeMap<String, i128> =
        machine.options.capacity.iter().map(|(name, quantity)| (name.clone(), milli(quantity))).collect();
    for (name, count) in &state.node_allocatable {
        // What is already handed out counts as there, whatever its plugin says now.
        let given = state.devices.allocated.get(name).map_or(0, std::collections::BTreeSet::len);
        capacity.insert(name.clone(), i128::from(*count).max(given as i128) * 1000);
    }
    let uid = pod.metadata.uid.as_deref().unwrap_or_default();
    let others: Vec<_> = state.active().filter(|other| other.uid != uid).map(|other| other.pod()).collect();
    let mut used: BTreeMap<String, i128> = BTreeMap::new();
    for other in &others {
        for (name, amount) in requests(other) {
            *used.entry(name).or_default() += amount;
        }
    }
    for (name, requested) in requests(pod).into_iter().filter(|(_, requested)| *requested > 0) {
        // A name that the node does not have is another plugin's business.
        let Some(capacity) = capacity.get(&name) else { continue };
        let used = used.get(&name).copied().unwrap_or(0);
        if used + requested > *capacity {
            let unit = if name == "cpu" { 1 } else { 1000 };
            let [requested, used, capacity] = [requested, used, *capacity].map(|amount| amount / unit);
            let text = format!(
                "Node didn't have enough resource: {name}, requested: {requested}, used: {used}, capacity: {capacity}"
            );
            return Some((format!("OutOf{name}"), text));
        }
    }
    None
}

/// A pod's requests in thousandths: app containers and sidecars together, or the largest init phase if larger.
fn requests(pod: &Pod) -> BTreeMap<String, i128> {
    let mut total: BTreeMap<String, i128> = BTreeMap::from([("pods".to_owned(), 1000)]);
    let mut sidecars: BTreeMap<String, i128> = BTreeMap::new();
    let mut peak: BTreeMap<String, i128> = BTreeMap::new();
    for (role, container) in containers(pod) {
        let resources = container.resources.clone().unwrap_or_default();
        let mut requests = resources.limits.unwrap_or_default();
        requests.extend(resources.requests.unwrap_or_default());
        for (name, quantity) in requests {
            let amount = milli(&quantity.0);
            match role {
                Role::Init => {
                    let beside = sidecars.get(&name).copied().unwrap_or(0);
                    let phase = peak.entry(name).or_default();
                    *phase = (*phase).max(amount + beside);
                }
                Role::Sidecar => {
                    *sidecars.entry(name.clone()).or_default() += amount;
                    *total.entry(name).or_default() += amount;
                }
                Role::App => *total.entry(name).or_default() += amount,
            }
        }
    }
    for (name, amount) in peak {
        let sum = total.entry(name).or_default();
        *sum = (*sum).max(amount);
    }
    total
}

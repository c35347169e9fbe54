//! How large a pod may be. A megabyte and a half of short values takes twenty times as much in memory, and every decision would read it.

use k8s_openapi::api::core::v1::{Affinity, NodeSelectorTerm, PodAffinityTerm};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;

use super::pod::LightPodSpec;
use baton_contract::key;

/// Most parts of a pod, and of a selector. The names of all nodes of a large cluster are fewer.
pub(super) const MOST_PARTS: usize = 8192;
/// Of a pod with more, so many containers are read. Baton gives no more of them devices.
const CONTAINERS: usize = 256;

/// Lengths of lists, with one for what has them.
fn one_and(lists: impl IntoIterator<Item = usize>) -> usize {
    lists.into_iter().fold(1, usize::saturating_add)
}

fn values(values: Option<&Vec<String>>) -> usize {
    one_and(values.map(Vec::len))
}

/// Labels, expressions and values.
pub(super) fn selector(selector: Option<&LabelSelector>) -> usize {
    let Some(selector) = selector else { return 0 };
    let labels = selector.match_labels.iter().map(std::collections::BTreeMap::len);
    one_and(labels.chain(selector.match_expressions.iter().flatten().map(|part| values(part.values.as_ref()))))
}

fn node_term(term: &NodeSelectorTerm) -> usize {
    let parts = term.match_expressions.iter().chain(&term.match_fields).flatten();
    one_and(parts.map(|part| values(part.values.as_ref())))
}

fn pod_term(term: &PodAffinityTerm) -> usize {
    let selectors = [&term.label_selector, &term.namespace_selector].map(|of| selector(of.as_ref()));
    one_and(selectors.into_iter().chain([values(term.namespaces.as_ref())]))
}

fn affinity(affinity: &Affinity) -> usize {
    let nodes = affinity.node_affinity.as_ref();
    let required = nodes.and_then(|of| of.required_during_scheduling_ignored_during_execution.as_ref());
    let preferred = nodes.and_then(|of| of.preferred_during_scheduling_ignored_during_execution.as_ref());
    let near = affinity.pod_affinity.as_ref();
    let away = affinity.pod_anti_affinity.as_ref();
    let pods = [
        near.and_then(|of| of.required_during_scheduling_ignored_during_execution.as_ref()),
        away.and_then(|of| of.required_during_scheduling_ignored_during_execution.as_ref()),
    ];
    let weighted = [
        near.and_then(|of| of.preferred_during_scheduling_ignored_during_execution.as_ref()),
        away.and_then(|of| of.preferred_during_scheduling_ignored_during_execution.as_ref()),
    ];
    let nodes = required.into_iter().flat_map(|of| &of.node_selector_terms);
    let nodes = nodes.chain(preferred.into_iter().flatten().map(|of| &of.preference)).map(node_term);
    let pods = pods.into_iter().flatten().flatten();
    let pods = pods.chain(weighted.into_iter().flatten().flatten().map(|of| &of.pod_affinity_term)).map(pod_term);
    one_and(nodes.chain(pods))
}

impl LightPodSpec {
    fn parts(&self) -> usize {
        let containers = self
            .all_containers()
            .map(|(of, _)| one_and([of.ports.len(), of.resources.requests.len(), of.resources.limits.len()]));
        let spreads = self
            .topology_spread_constraints
            .iter()
            .map(|of| one_and([selector(of.label_selector.as_ref()), values(of.match_label_keys.as_ref())]));
        let lists = [
            self.node_selector.len(),
            self.tolerations.len(),
            self.scheduling_gates.len(),
            self.volumes.len(),
            self.overhead.len(),
            self.resources.as_ref().map_or(0, |of| of.requests.len() + of.limits.len()),
            self.affinity.as_ref().map_or(0, affinity),
        ];
        one_and(lists.into_iter().chain(containers).chain(spreads))
    }

    /// Of a pod with too many parts, leaves what is counted where it runs, and says why it is not placed.
    pub(super) fn reduce(&mut self) -> Option<Box<str>> {
        let parts = self.parts();
        if parts <= MOST_PARTS {
            return None;
        }
        (self.affinity, self.node_selector) = Default::default();
        (self.tolerations, self.scheduling_gates, self.topology_spread_constraints) = Default::default();
        self.volumes.clear();
        let is_counted = |name: &str| !name.contains('/') || key::is_device_resource(name);
        self.overhead.retain(|name, _| is_counted(name));
        for containers in [&mut self.init_containers, &mut self.containers] {
            containers.truncate(CONTAINERS);
            for container in containers {
                container.ports.clear();
                container.resources.requests.retain(|name, _| is_counted(name));
                container.resources.limits.retain(|name, _| is_counted(name));
            }
        }
        let counted = "containers, ports, resources, volumes, tolerations, gates, terms and values of selectors";
        Some(format!("the pod has {parts} parts ({counted}), the limit is {MOST_PARTS}").into())
    }
}

#[cfg(test)]
mod tests {
    use super::super::pod::LightPod;
    use super::*;
    use serde_json::{Value, json};

    fn refused(spec: Value) -> Option<String> {
        let mut spec = spec;
        spec["containers"] = spec.get("containers").cloned().unwrap_or_else(|| json!([{"name": "main"}]));
        let pod = json!({"metadata": {"name": "p", "namespace": "ml", "uid": "u"}, "spec": spec});
        let facts = serde_json::from_value::<LightPod>(pod).unwrap().facts();
        let kept = facts.spec.too_large.is_none();
        assert!(kept || facts.spec.node_required.is_none() && facts.spec.tolerations.is_empty());
        facts.spec.too_large.as_deref().map(str::to_owned)
    }

    fn many(one: impl Fn(usize) -> Value) -> Vec<Value> {
        (0..MOST_PARTS).map(one).collect()
    }

    #[test]
    fn a_list_of_all_nodes_of_a_large_cluster_is_read() {
        let names: Vec<String> = (0..5000).map(|n| format!("node-{n}")).collect();
        let terms = json!([{"matchExpressions": [{"key": "host", "operator": "In", "values": names}]}]);
        let required = json!({"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}});
        assert_eq!(refused(json!({"affinity": {"nodeAffinity": required}})), None);
    }

    #[test]
    fn whatever_a_pod_has_too_much_of_is_not_kept_and_said() {
        let word = |n: usize| json!(format!("v{n}"));
        let expression = json!({"key": "k", "operator": "In", "values": many(word)});
        let selector = json!({"matchExpressions": [expression]});
        let pods = json!({"topologyKey": "host", "labelSelector": selector});
        let required = "requiredDuringSchedulingIgnoredDuringExecution";
        let preferred = "preferredDuringSchedulingIgnoredDuringExecution";
        let term = json!({"matchExpressions": [expression]});
        let names: serde_json::Map<String, Value> = (0..MOST_PARTS).map(|n| (format!("a.b/{n}"), json!("1"))).collect();
        for spec in [
            json!({"affinity": {"nodeAffinity": {required: {"nodeSelectorTerms": [term]}}}}),
            json!({"affinity": {"nodeAffinity": {preferred: [{"weight": 1, "preference": term}]}}}),
            json!({"affinity": {"podAffinity": {required: [pods]}}}),
            json!({"affinity": {"podAntiAffinity": {preferred: [{"weight": 1, "podAffinityTerm": pods}]}}}),
            json!({"affinity": {"podAffinity": {required: [{"topologyKey": "host", "namespaces": many(word)}]}}}),
            json!({"tolerations": many(|n| json!({"key": format!("k{n}"), "operator": "Exists"}))}),
            json!({"schedulingGates": many(|n| json!({"name": format!("g{n}")}))}),
            json!({"volumes": many(|n| json!({"name": format!("v{n}"), "emptyDir": {}}))}),
            json!({"nodeSelector": names}),
            json!({"topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "host", "whenUnsatisfiable": "DoNotSchedule",
                "labelSelector": selector}]}),
            json!({"containers": many(|n| json!({"name": format!("c{n}")}))}),
            json!({"containers": [{"name": "main", "resources": {"limits": names}}]}),
            json!({"containers": [{"name": "main", "ports": many(|n| json!({"containerPort": n + 1}))}]}),
        ] {
            let why = refused(spec.clone()).unwrap_or_else(|| panic!("{}", &spec.to_string()[..80]));
            assert!(why.contains("the limit is 8192"), "{why}");
        }
    }

    #[test]
    fn what_counts_where_a_large_pod_runs_is_kept() {
        let mut limits = json!({"cpu": "2", "nvidia.com/gpu": "1"});
        (0..MOST_PARTS).for_each(|n| limits[format!("a.b/{n}")] = json!("1"));
        let pod = json!({"metadata": {"name": "p", "namespace": "ml", "uid": "u"},
            "spec": {"nodeName": "n", "containers": [{"name": "main", "resources": {"limits": limits}}]}});
        let facts = serde_json::from_value::<LightPod>(pod).unwrap().facts();
        let asked = &facts.spec.requests;
        assert_eq!((asked.milli_cpu, asked.scalar(key::NVIDIA_GPU), asked.scalar.iter().count()), (2000, 1, 1));
        assert!(facts.handoff.asks_for_devices());
    }
}

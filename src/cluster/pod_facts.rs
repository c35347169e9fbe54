//! Pods for the scheduler: from the wire type to the record that placement works on.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;

use super::pod::{LightCondition, LightPod, LightResources, WrittenAmounts};
use super::spec_part as part;
use baton_contract::image::ImageName;
use baton_contract::{Quantity, key};
use baton_decide::pod::{ContainerKind, Phase};
use baton_decide::world::gangs::{DeclarationSource, Declared, Owner, unsupported};
use baton_decide::world::spec::{DeviceWishes, FaultVictims, HostPort, Spread, VolumeUse};
use baton_decide::world::{JobClaim, PodFacts, PodSpec, Qos, Rated, RequestParts, Resources};

impl LightResources {
    /// What is asked for: the API server fills requests in from limits, and so does this.
    fn asked(&self) -> impl Iterator<Item = (&str, Quantity)> {
        let limits = self.limits.iter().filter(|(name, _)| !self.requests.contains_key(*name));
        // The API server has validated the quantities.
        self.requests.iter().chain(limits).filter_map(|(name, text)| Some((&**name, text.parse().ok()?)))
    }

    fn names_cpu_or_memory(&self) -> bool {
        let names = |list: &WrittenAmounts| list.contains_key("cpu") || list.contains_key("memory");
        names(&self.requests) || names(&self.limits)
    }

    /// Asked for and limited: CPU in thousandths, memory in bytes.
    fn cpu_and_memory(&self) -> ([i64; 2], [i64; 2]) {
        let amount = |list: &WrittenAmounts, name: &str| list.get(name)?.parse::<Quantity>().ok();
        let asked =
            |name: &str| amount(if self.requests.contains_key(name) { &self.requests } else { &self.limits }, name);
        let cpu = |amount: Option<Quantity>| amount.map_or(0, Quantity::milli_value);
        let memory = |amount: Option<Quantity>| amount.map_or(0, Quantity::value);
        let limits = [cpu(amount(&self.limits, "cpu")), memory(amount(&self.limits, "memory"))];
        ([cpu(asked("cpu")), memory(asked("memory"))], limits)
    }
}

impl LightPod {
    /// The scheduler's record.
    pub fn facts(mut self) -> PodFacts {
        let too_large = self.spec.reduce();
        let mut spec = PodSpec { too_large, ..self.placement() };
        let rank = self.annotation(baton_contract::gang::key::NETWORK_TOPOLOGY_INDEX);
        let rank = rank.and_then(|text| {
            baton_contract::gang::parse_rank(baton_contract::gang::key::NETWORK_TOPOLOGY_INDEX, text).ok()
        });
        // Moved, not copied: this is done for every event of every pod.
        let labels = self.metadata.labels.take().unwrap_or_default();
        spec.node_selector = std::mem::take(&mut self.spec.node_selector);
        let mut handoff = self.handoff();
        // In the wishes, where the shape of the pod is made of.
        handoff.assignment.shares = None;
        if handoff.node.is_none() && spec.gang.is_none() && handoff.asks_for_devices() {
            spec.controller = self.controller().map(|owner| owner.uid.as_str().into());
        }
        // An ended pod holds nothing and no rule looks at it: what it asked for and its labels are not needed any more.
        let spec = if handoff.phase.is_terminal() {
            PodSpec {
                priority: spec.priority,
                gang: spec.gang,
                job: spec.job,
                refused: spec.refused,
                ..PodSpec::default()
            }
        } else {
            PodSpec { labels, ..spec }
        };
        PodFacts { handoff, spec: spec.into(), rank }
    }

    /// All but labels and node selector.
    fn placement(&self) -> PodSpec {
        let spec = &self.spec;
        let [asked, rated] = self.requests();
        let annotation = |key: &str| self.annotation(key).map(Box::<str>::from);
        let affinity = spec.affinity.clone().unwrap_or_default();
        let (node_required, node_preferred) = part::node_affinity(affinity.node_affinity.as_ref());
        let near = affinity.pod_affinity.unwrap_or_default();
        let away = affinity.pod_anti_affinity.unwrap_or_default();
        let preferred = near.preferred_during_scheduling_ignored_during_execution.unwrap_or_default();
        let unpreferred = away.preferred_during_scheduling_ignored_during_execution.unwrap_or_default();
        PodSpec {
            priority: spec.priority.unwrap_or(0),
            deadline: spec.active_deadline_seconds.and_then(|seconds| u32::try_from(seconds).ok()),
            never_preempts: spec.preemption_policy.as_deref() == Some("Never"),
            nominated: self.status.nominated_node_name.clone().filter(|name| !name.is_empty()),
            refused: self.status.refused(),
            unserved: self.status.unserved(),
            on_fault: FaultVictims::read(self.annotation(key::EVICT_ON_FAULT), self.controller().is_some()),
            qos: self.qos(),
            requests: asked.total(),
            rated: Rated::from(&rated.total()),
            node_selector: BTreeMap::new(),
            node_required,
            node_preferred,
            tolerations: spec.tolerations.iter().map(part::toleration).collect(),
            host_ports: self.host_ports(),
            gates: spec.scheduling_gates.iter().map(|gate| gate.name.clone()).collect(),
            resource_claims: !spec.resource_claims.is_empty(),
            affinity: part::pod_terms(near.required_during_scheduling_ignored_during_execution.as_deref()),
            anti_affinity: part::pod_terms(away.required_during_scheduling_ignored_during_execution.as_deref()),
            pods_preferred: preferred
                .iter()
                .map(|weighted| (i64::from(weighted.weight), part::pod_term(&weighted.pod_affinity_term)))
                .chain(unpreferred.iter().map(|w| (-i64::from(w.weight), part::pod_term(&w.pod_affinity_term))))
                .collect(),
            spread: self.spread(),
            volumes: self.volumes(),
            images: self.images(),
            wishes: DeviceWishes {
                hint: annotation(key::DEVICE_ALLOCATE_HINT),
                joint: annotation(key::DEVICE_JOINT_ALLOCATE),
                partition: annotation(key::GPU_PARTITION_SPEC),
                shares: self.share_terms(),
            },
            gang: self.gang().map(Arc::new),
            too_large: None,
            unsupported: unsupported(self.metadata.labels.as_ref(), self.metadata.annotations.as_ref()),
            annotation_bytes: self.annotation_bytes(),
            own_priority: None,
            job: self.job().map(Arc::new),
            controller: None,
            labels: BTreeMap::new(),
        }
    }

    fn annotation_bytes(&self) -> u32 {
        let annotations = self.metadata.annotations.iter().flatten();
        let bytes: usize = annotations.map(|(key, value)| key.len() + value.len()).sum();
        if bytes > key::MAX_ANNOTATIONS / 2 { bytes as u32 } else { 0 }
    }

    fn spread(&self) -> Vec<Spread> {
        let none = BTreeMap::new();
        let labels = self.metadata.labels.as_ref().unwrap_or(&none);
        self.spec.topology_spread_constraints.iter().map(|spread| part::spread(spread, labels)).collect()
    }

    /// The owner that controls the pod.
    pub fn controller(&self) -> Option<&OwnerReference> {
        self.metadata.owner_references.iter().flatten().find(|owner| owner.controller == Some(true))
    }

    fn gang(&self) -> Option<Declared> {
        let meta = &self.metadata;
        let source = DeclarationSource {
            namespace: meta.namespace.as_deref().unwrap_or_default(),
            labels: meta.labels.as_ref(),
            annotations: meta.annotations.as_ref(),
            scheduling_group: self.spec.scheduling_group.as_ref().and_then(|group| group.pod_group_name.as_deref()),
        };
        let owner = || {
            let owner = self.controller()?;
            Some(Owner {
                api_version: owner.api_version.as_str().into(),
                kind: owner.kind.as_str().into(),
                name: owner.name.as_str().into(),
                uid: owner.uid.as_str().into(),
            })
        };
        let ends =
            self.status.all_containers().filter_map(|container| container.state.terminated.as_ref()?.finished_at);
        let ended = ends.max().filter(|_| Phase::of(self.status.phase.as_deref()).is_terminal());
        Some(Declared { ended, ..Declared::read(&source, owner)? })
    }

    fn job(&self) -> Option<JobClaim> {
        let meta = &self.metadata;
        let owner = self.controller();
        let owner = owner.map(|o| (o.kind.as_str(), o.api_version.as_str(), o.name.as_str(), o.uid.as_str()));
        let label = |key: &str| meta.labels.as_ref()?.get(key).map(String::as_str);
        JobClaim::read(owner, label, |key| self.annotation(key))
    }

    /// What the pod asks for.
    pub(super) fn requested(&self) -> Resources {
        let [asked, _] = self.requests();
        asked.total()
    }

    /// What the containers ask for; and CPU and memory alone, as nodes are rated by them.
    fn requests(&self) -> [RequestParts; 2] {
        let spec = &self.spec;
        let overhead = spec.overhead.iter().filter_map(|(name, text)| Some((&**name, text.parse().ok()?)));
        let mut asked = RequestParts {
            containers: Vec::with_capacity(spec.init_containers.len() + spec.containers.len()),
            pod_level: spec.resources.as_ref().map(|level| {
                let counted = self.most(level, self.status.resources.as_ref(), &self.status.allocated_resources);
                counted.into_iter().map(|(name, amount)| (name.into(), amount)).collect()
            }),
            overhead: Resources::of(overhead),
        };
        let mut rated = asked.clone();
        let Rated { milli_cpu, memory } = Rated::UNNAMED;
        for (container, kind) in spec.all_containers() {
            let (mut own, mut seen) = (Resources::default(), Resources { milli_cpu, memory, ..Resources::default() });
            let mut statuses = self.status.all_containers().filter(|status| status.name == container.name);
            let status = statuses.find(|status| status.resources.is_some());
            let has = status.and_then(|status| status.resources.as_ref());
            let kept = status.map_or(const { &BTreeMap::new() }, |status| &status.allocated_resources);
            for (name, amount) in self.most(&container.resources, has, kept) {
                own.set(name, amount);
                if matches!(name, "cpu" | "memory") {
                    seen.set(name, amount);
                }
            }
            asked.containers.push((kind, own));
            rated.containers.push((kind, seen));
        }
        [asked, rated]
    }

    /// What counts of a container, or of the pod as a whole, against its node: what it asks for, or while it is resized the most of that,
    /// of what it has and of what the node keeps for it. A resize that the node will never do does not count.
    fn most<'a>(
        &self,
        asked: &'a LightResources,
        has: Option<&'a LightResources>,
        kept: &'a WrittenAmounts,
    ) -> BTreeMap<&'a str, Quantity> {
        let refused =
            |condition: &LightCondition| &*condition.kind == "PodResizePending" && &*condition.reason == "Infeasible";
        let Some(has) = has else { return asked.asked().collect() };
        let mut most: BTreeMap<&str, Quantity> = BTreeMap::new();
        if !self.status.conditions.iter().any(refused) {
            most.extend(asked.asked());
        }
        for (name, text) in has.requests.iter().chain(kept) {
            let Ok(amount) = text.parse::<Quantity>() else { continue };
            let known = most.entry(name).or_insert(amount);
            *known = (*known).max(amount);
        }
        most
    }

    /// By the containers, unless the pod as a whole names CPU or memory.
    fn qos(&self) -> Qos {
        let spec = &self.spec;
        if let Some(whole) = spec.resources.as_ref().filter(|level| level.names_cpu_or_memory()) {
            return Qos::of([whole.cpu_and_memory()]);
        }
        Qos::of(spec.all_containers().map(|(container, _)| container.resources.cpu_and_memory()))
    }

    fn host_ports(&self) -> Vec<HostPort> {
        let lasting = self.spec.all_containers().filter(|(_, kind)| *kind != ContainerKind::Init);
        let ports = lasting.flat_map(|(container, _)| &container.ports);
        let taken = ports.filter_map(|port| {
            Some(HostPort {
                ip: port.host_ip.clone().filter(|ip| !ip.is_empty()).unwrap_or_else(|| "0.0.0.0".into()),
                protocol: port.protocol.clone().unwrap_or_else(|| "TCP".into()),
                port: port.host_port.filter(|port| *port > 0)?,
            })
        });
        taken.collect()
    }

    fn images(&self) -> Box<[ImageName]> {
        let containers = self.spec.all_containers().map(|(container, _)| container.image);
        let volumes = self.spec.volumes.iter().filter_map(|volume| volume.image.as_ref()).map(|image| image.reference);
        containers.chain(volumes).filter_map(|asked| asked.0).collect()
    }

    fn volumes(&self) -> Vec<VolumeUse> {
        let pod = self.metadata.name.as_deref().unwrap_or_default();
        let claims = self.spec.volumes.iter().filter_map(|volume| match &volume.persistent_volume_claim {
            Some(claim) => Some(VolumeUse::Claim(claim.claim_name.clone())),
            None => volume.ephemeral.map(|_| VolumeUse::Ephemeral(format!("{pod}-{}", volume.name).into())),
        });
        claims.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn cpu(asked: &str, has: Option<&str>, kept: &str, conditions: Value) -> i64 {
        let mut status = json!({"name": "main", "allocatedResources": {"cpu": kept}});
        if let Some(has) = has {
            status["resources"] = json!({"requests": {"cpu": has, "memory": "1Gi"}});
        }
        let pod = json!({"metadata": {"name": "p", "namespace": "ml", "uid": "u"},
            "spec": {"nodeName": "n", "containers": [{"name": "main", "resources": {"requests": {"cpu": asked}}}]},
            "status": {"phase": "Running", "containerStatuses": [status], "conditions": conditions}});
        serde_json::from_value::<LightPod>(pod).unwrap().facts().spec.requests.milli_cpu
    }

    #[test]
    fn a_pod_that_is_resized_counts_with_the_most_it_asks_for_has_and_is_kept_for_it() {
        let infeasible = json!([{"type": "PodResizePending", "status": "True", "reason": "Infeasible"}]);
        let deferred = json!([{"type": "PodResizePending", "status": "True", "reason": "Deferred"}]);
        assert_eq!(cpu("1", Some("6"), "6", json!([])), 6_000, "smaller, and not done yet");
        assert_eq!(cpu("8", Some("6"), "6", deferred), 8_000, "larger, and not done yet");
        assert_eq!(cpu("100", Some("1"), "1", infeasible), 1_000, "never done");
        assert_eq!(cpu("1", None, "6", json!([])), 1_000, "a kubelet that reports nothing of what a container has");
        assert_eq!(cpu("2", Some("2"), "2", json!([])), 2_000);
    }

    #[test]
    fn a_pod_that_is_resized_as_a_whole_counts_by_the_same_rule() {
        let cpu = |asked: &str, has: &str, reason: &str| {
            let pod = json!({"metadata": {"name": "p", "namespace": "ml", "uid": "u"},
                "spec": {"nodeName": "n", "resources": {"requests": {"cpu": asked}}, "containers": [{"name": "main"}]},
                "status": {"phase": "Running", "resources": {"requests": {"cpu": has}}, "allocatedResources": {"cpu": has},
                    "conditions": [{"type": "PodResizePending", "status": "True", "reason": reason}]}});
            serde_json::from_value::<LightPod>(pod).unwrap().facts().spec.requests.milli_cpu
        };
        assert_eq!(cpu("1", "6", "Deferred"), 6_000, "smaller, and not done yet");
        assert_eq!(cpu("8", "6", "Deferred"), 8_000, "larger, and not done yet");
        assert_eq!(cpu("100", "1", "Infeasible"), 1_000, "never done");
    }

    #[test]
    fn a_member_has_ended_when_its_last_container_did() {
        let ended = |phase: &str, ends: &[&str]| {
            let of = |at: &&str| json!({"name": "c", "state": {"terminated": {"finishedAt": at}}});
            let statuses: Vec<Value> = ends.iter().map(of).collect();
            let keys = json!({"gang.scheduling.koordinator.sh/name": "g"});
            let pod = json!({"metadata": {"name": "p", "namespace": "ml", "annotations": keys},
                "status": {"phase": phase, "containerStatuses": statuses}});
            let facts = serde_json::from_value::<LightPod>(pod).unwrap().facts();
            facts.spec.gang.as_ref().unwrap().ended.map(|at| at.to_string())
        };
        let (first, last) = ("2026-11-21T02:00:00Z", "2026-11-21T02:00:09Z");
        assert_eq!(ended("Succeeded", &[last, first]).as_deref(), Some(last));
        assert_eq!(ended("Failed", &[first]).as_deref(), Some(first));
        assert_eq!(ended("Running", &[first]), None, "another container runs, or this one starts again");
        assert_eq!(ended("Failed", &[]), None, "refused, or failed by the controller of a node that is gone");
    }
}

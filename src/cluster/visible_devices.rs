//! Pods that name GPUs in their environment and ask for none: the light wire type. NVIDIA's runtime gives a container what
//! `NVIDIA_VISIBLE_DEVICES` names; the policy `baton-visible-devices` refuses the same.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Pod;
use kube::Resource;
use kube::api::ObjectMeta;
use serde::Deserialize;
use serde::de::IgnoredAny;

use super::light_meta::light;
use baton_contract::key;

const VARIABLE: &str = "NVIDIA_VISIBLE_DEVICES";

/// A pod with its containers' environment. Read with it, never write.
#[derive(Debug, Clone, Deserialize, Resource)]
#[resource(inherit = Pod)]
pub struct NamingPod {
    /// Metadata without `managedFields`.
    #[serde(deserialize_with = "super::light_meta::read_short")]
    pub metadata: ObjectMeta,
    #[serde(default)]
    spec: NamingSpec,
    #[serde(default)]
    status: NamingStatus,
}

light! {
    struct NamingSpec {
        containers: Vec<NamingContainer>,
        init_containers: Vec<NamingContainer>,
        ephemeral_containers: Vec<NamingContainer>,
    }

    struct NamingStatus {
        phase: String,
    }

    struct NamingContainer {
        name: Box<str>,
        resources: NamingResources,
        env: Vec<NamingVariable>,
    }

    struct NamingResources {
        limits: BTreeMap<String, IntOrText>,
    }

    struct NamingVariable {
        name: Box<str>,
        value: Option<Box<str>>,
        value_from: Option<IgnoredAny>,
    }
}

/// An amount as it is written.
type IntOrText = serde_json::Value;

impl NamingPod {
    /// The first container that names GPUs and asks for none, with what it names, in words; `None` for a pod that has ended.
    pub fn names_unasked(&self) -> Option<String> {
        let NamingSpec { containers, init_containers, ephemeral_containers } = &self.spec;
        if ["Succeeded", "Failed"].contains(&self.status.phase.as_str()) {
            return None;
        }
        let mut all = containers.iter().chain(init_containers).chain(ephemeral_containers);
        all.find_map(|container| {
            let named = container.env.iter().find_map(NamingVariable::names)?;
            (!container.asks()).then(|| format!("container {} sets {VARIABLE}{named}", container.name))
        })
    }
}

impl NamingContainer {
    fn asks(&self) -> bool {
        let of_gpu =
            |name: &str| name != key::RDMA && key::DEVICE_NAMES.contains(&name) || name.starts_with(key::MIG_PREFIX);
        self.resources.limits.iter().any(|(name, amount)| of_gpu(name) && *amount != "0" && *amount != 0)
    }
}

impl NamingVariable {
    /// Empty is as `void`, by NVIDIA's documentation.
    fn names(&self) -> Option<String> {
        let value = self.value.as_deref().unwrap_or_default();
        match (&*self.name == VARIABLE, &self.value_from) {
            (true, Some(_)) => Some(" from elsewhere".to_owned()),
            (true, None) if !["", "void"].contains(&value) => Some(format!("={value}")),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, from_value, json};

    fn said(list: &str, limits: Value, variable: Value, phase: &str) -> Option<String> {
        let container =
            json!({"name": "c", "resources": {"limits": limits}, "env": [{"name": "A", "value": "all"}, variable]});
        let pod = json!({"metadata": {"name": "p"}, "spec": {list: [container]}, "status": {"phase": phase}});
        from_value::<NamingPod>(pod).unwrap().names_unasked()
    }

    #[test]
    fn who_names_gpus_and_asks_for_none_is_found_in_every_list() {
        let value = |value: &str| json!({"name": VARIABLE, "value": value});
        let words = Some("container c sets NVIDIA_VISIBLE_DEVICES=all".to_owned());
        for list in ["containers", "initContainers", "ephemeralContainers"] {
            assert_eq!(said(list, json!({}), value("all"), "Running"), words, "{list}");
        }
        for limits in [
            json!({"nvidia.com/gpu": "0"}),
            json!({"nvidia.com/gpu": 0}),
            json!({"koordinator.sh/rdma": "1", "cpu": "1"}),
        ] {
            assert_eq!(said("containers", limits, value("all"), "Pending"), words);
        }
        let from = json!({"name": VARIABLE, "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}});
        assert_eq!(
            said("containers", json!({}), from, "Running").unwrap(),
            "container c sets NVIDIA_VISIBLE_DEVICES from elsewhere"
        );
        assert!(said("containers", json!({}), value("none"), "Running").is_some());
        for limits in ["nvidia.com/gpu", "nvidia.com/mig-1g.5gb", "koordinator.sh/gpu-core"] {
            assert_eq!(said("containers", json!({limits: "1"}), value("all"), "Running"), None, "{limits}");
        }
        for harmless in [
            value("void"),
            value(""),
            json!({"name": VARIABLE}),
            json!({"name": "NVIDIA_DRIVER_CAPABILITIES", "value": "all"}),
        ] {
            assert_eq!(said("containers", json!({}), harmless, "Running"), None);
        }
        assert_eq!(said("containers", json!({}), value("all"), "Succeeded"), None);
    }
}

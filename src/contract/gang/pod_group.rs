//! The PodGroup object, in the API groups that clusters have it in. The first two have the same fields.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::core::ApiResource;
use kube::{CustomResource, CustomResourceExt};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::quantity::Quantity;

/// Which API group a PodGroup belongs to. The order is the precedence where several have an object of one name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PodGroupApi {
    /// `scheduling.sigs.k8s.io/v1alpha1`: Koordinator's, and the one that Baton ships.
    Sigs,
    /// `scheduling.x-k8s.io/v1alpha1`: the community's scheduler plugins'.
    Community,
    /// `scheduling.k8s.io`: Kubernetes' own, in the newest of its versions that the cluster serves; read, never written.
    Kubernetes,
}

impl PodGroupApi {
    /// All, the winner first.
    pub const ALL: [Self; 3] = [Self::Sigs, Self::Community, Self::Kubernetes];

    /// API group.
    pub const fn group(self) -> &'static str {
        match self {
            Self::Sigs => "scheduling.sigs.k8s.io",
            Self::Community => "scheduling.x-k8s.io",
            Self::Kubernetes => "scheduling.k8s.io",
        }
    }

    /// Versions that are read, the newest first. What they say of a gang's minimum is the same.
    pub const fn versions(self) -> &'static [&'static str] {
        match self {
            Self::Sigs | Self::Community => &["v1alpha1"],
            Self::Kubernetes => &["v1beta1", "v1alpha3", "v1alpha2"],
        }
    }

    /// How requests name it in the newest version.
    pub fn resource(self) -> ApiResource {
        self.resource_of(self.versions()[0])
    }

    /// How requests name it in one of [`Self::versions`].
    pub fn resource_of(self, version: &str) -> ApiResource {
        ApiResource {
            group: self.group().to_owned(),
            version: version.to_owned(),
            api_version: format!("{}/{version}", self.group()),
            kind: "PodGroup".to_owned(),
            plural: "podgroups".to_owned(),
        }
    }
}

/// The spec of a PodGroup. Annotations with gang keys on the object win over these fields.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, CustomResource, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[kube(
    group = "scheduling.sigs.k8s.io",
    version = "v1alpha1",
    kind = "PodGroup",
    plural = "podgroups",
    singular = "podgroup",
    shortname = "pg",
    namespaced,
    status = "PodGroupStatus",
    derive = "PartialEq",
    annotation("api-approved.kubernetes.io", "https://github.com/kubernetes-sigs/scheduler-plugins/pull/50"),
    printcolumn = r#"{"name":"Phase","type":"string","jsonPath":".status.phase"}"#,
    printcolumn = r#"{"name":"MinMember","type":"integer","jsonPath":".spec.minMember"}"#,
    printcolumn = r#"{"name":"Scheduled","type":"integer","jsonPath":".status.scheduled"}"#,
    printcolumn = r#"{"name":"Running","type":"integer","jsonPath":".status.running"}"#,
    printcolumn = r#"{"name":"Succeeded","type":"integer","jsonPath":".status.succeeded","priority":1}"#,
    printcolumn = r#"{"name":"Failed","type":"integer","jsonPath":".status.failed","priority":1}"#,
    printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp"}"#
)]
pub struct PodGroupSpec {
    /// Fewest members that may run. 0 means no gang rule.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub min_member: Option<i32>,
    /// What the smallest set of members requests in all; compared with free capacity before an attempt.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub min_resources: BTreeMap<String, Quantity>,
    /// Seconds that reserved members wait for the others; only values above 0 count.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub schedule_timeout_seconds: Option<i32>,
}

/// The status of a gang, written by the scheduler.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PodGroupStatus {
    /// Phase of the gang as a whole.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub phase: Option<PodGroupPhase>,
    /// Owners of the members, `namespace/name`, joined by commas.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub occupied_by: Option<String>,
    /// Members that have a node and have not ended.
    pub scheduled: i32,
    /// Members in phase Running.
    pub running: i32,
    /// Members in phase Succeeded.
    pub succeeded: i32,
    /// Members in phase Failed.
    pub failed: i32,
    /// When the members could first be scheduled.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub schedule_start_time: Option<Time>,
    /// `GangScheduled`, `GangSatisfied`, `GangTimeout`, `GangFinished`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
}

// No field is a float: every value equals itself.
impl Eq for PodGroupStatus {}

impl PodGroupStatus {
    /// Since when a condition is True; `None` where it is not.
    pub fn since(&self, condition: &str) -> Option<Timestamp> {
        let found = self.conditions.iter().find(|known| known.type_ == condition && known.status == "True")?;
        Some(found.last_transition_time.0)
    }
}

/// `status.phase`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
pub enum PodGroupPhase {
    /// Too few members.
    Pending,
    /// Enough members, none has a node.
    PreScheduling,
    /// Some members have a node.
    Scheduling,
    /// Enough members have a node.
    Scheduled,
    /// Enough members run.
    Running,
    /// Enough members succeeded.
    Finished,
    /// A member failed, and the remaining members cannot reach the minimum.
    Failed,
}

/// The CRD of [`PodGroup`].
pub fn crd() -> CustomResourceDefinition {
    PodGroup::crd()
}

/// The definition of the community's PodGroup, for clusters whose users bring its YAML: the same fields in its API group.
pub fn community_crd() -> CustomResourceDefinition {
    let mut crd = PodGroup::crd();
    let group = PodGroupApi::Community.group();
    crd.metadata.name = Some(format!("{}.{group}", crd.spec.names.plural));
    group.clone_into(&mut crd.spec.group);
    crd
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_golden_object_is_read_and_printed_back() {
        let golden: serde_json::Value =
            serde_json::from_str(include_str!("../../../tests/golden/pod-group.json")).unwrap();
        let group: PodGroup = serde_json::from_value(golden.clone()).unwrap();
        assert_eq!(serde_json::to_value(&group).unwrap(), golden);
        let status = group.status.unwrap();
        assert_eq!(status.phase, Some(PodGroupPhase::Running));
        assert_eq!(status.since("GangSatisfied"), Some("2026-11-21T02:00:05Z".parse().unwrap()));
        assert_eq!(status.since("GangTimeout"), None, "a condition that is False does not hold");
    }

    #[test]
    fn the_crd_has_a_status_subresource_and_the_approval_that_its_group_needs() {
        let crd = serde_json::to_value(crd()).unwrap();
        let version = &crd["spec"]["versions"][0];
        assert_eq!(version["subresources"]["status"], serde_json::json!({}));
        assert_eq!(crd["spec"]["scope"], "Namespaced");
        assert!(crd["metadata"]["annotations"]["api-approved.kubernetes.io"].is_string(), "{}", crd["metadata"]);
        let spec = &version["schema"]["openAPIV3Schema"]["properties"]["spec"];
        assert_eq!(spec["required"], serde_json::Value::Null, "every field has a meaning when it is absent");
        assert_eq!(spec["properties"]["minMember"]["minimum"].as_f64(), Some(0.0));
        assert_eq!(PodGroupApi::Sigs.group(), crd["spec"]["group"]);
        assert_eq!(crd["metadata"]["name"], "podgroups.scheduling.sigs.k8s.io");
    }
}

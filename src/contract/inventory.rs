//! The Device object: one per node, `devices.scheduling.koordinator.sh/v1alpha1`, readable by Koordinator's own tools.

use std::borrow::Cow;
use std::collections::BTreeMap;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{CustomResource, CustomResourceExt};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

use super::id::{DeviceId, DeviceType};
use super::key;
use super::quantity::Quantity;
use super::reason::HealthReason;

/// The devices of one node. The object is named after its node and owned by it.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, CustomResource, JsonSchema)]
#[kube(
    group = "scheduling.koordinator.sh",
    version = "v1alpha1",
    kind = "Device",
    plural = "devices",
    singular = "device",
    status = "DeviceStatus",
    derive = "PartialEq",
    printcolumn = r#"{"name":"GPUs","type":"integer","jsonPath":".status.counts.gpus","description":"GPUs and MIG devices"}"#,
    printcolumn = r#"{"name":"NICs","type":"integer","jsonPath":".status.counts.nics","description":"RDMA NICs"}"#,
    printcolumn = r#"{"name":"Unhealthy","type":"integer","jsonPath":".status.counts.unhealthy","description":"GPUs, MIG devices and NICs that take no new pods"}"#,
    printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp"}"#
)]
pub struct DeviceSpec {
    /// Every device of the node, sorted by type and minor.
    #[serde(default)]
    pub devices: Vec<DeviceInfo>,
}

/// One device.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DeviceInfo {
    /// `gpu`, `rdma`, …
    #[serde(rename = "type")]
    #[schemars(with = "String")]
    pub kind: DeviceType,
    /// Locality and model, see `contract::key`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// GPU UUID, MIG UUID or PCI address.
    #[schemars(with = "String")]
    pub id: DeviceId,
    /// Small number of the device; a MIG device has its parent's.
    #[serde(default)]
    pub minor: i32,
    /// Module (slot) number, where known.
    #[serde(default, rename = "moduleID", skip_serializing_if = "Option::is_none")]
    pub module_id: Option<i32>,
    /// `false` takes no new pods.
    pub health: bool,
    /// Capacity by resource name.
    #[serde(default)]
    pub resources: BTreeMap<String, Quantity>,
    /// Its place in the machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub topology: Option<DeviceLocation>,
    /// Groups of virtual functions.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub vf_groups: Vec<VfGroup>,
    /// `Healthy`, with reason and message.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
}

/// The names of a node's devices, in their order: `gpu-3`, `nic-0`, and `mig-3-0` for the first MIG device of GPU 3.
pub fn device_names(devices: &[DeviceInfo]) -> Vec<String> {
    let mut parts = BTreeMap::<i32, usize>::new();
    let mut name = |info: &DeviceInfo| match &info.kind {
        DeviceType::Gpu if info.labels.contains_key(key::PARENT) => {
            let part = parts.entry(info.minor).or_default();
            *part += 1;
            format!("mig-{}-{}", info.minor, *part - 1)
        }
        DeviceType::Rdma => format!("nic-{}", info.minor),
        kind => format!("{kind}-{}", info.minor),
    };
    devices.iter().map(&mut name).collect()
}

/// A reason with its message, which may begin with it.
pub fn reasoned(reason: &str, message: &str) -> String {
    match message {
        "" => reason.to_owned(),
        _ if message.get(..reason.len()).is_some_and(|head| head.eq_ignore_ascii_case(reason)) => message.to_owned(),
        _ => format!("{reason}: {message}"),
    }
}

/// Of a device that its Device object calls unhealthy without a reason.
const UNSAID: &str = "not healthy; the Device object gives no reason, `baton doctor` on the node may";

impl DeviceInfo {
    /// Why it takes no new pods: the reason of its condition and its message. `None` for a healthy one.
    pub fn fault(&self) -> Option<String> {
        let of = |condition: &Condition| match &*condition.status {
            "True" => UNSAID.to_owned(),
            _ => reasoned(&condition.reason, &condition.message),
        };
        let unhealthy = || self.health_condition().map_or_else(|| UNSAID.to_owned(), of);
        (!self.health).then(unhealthy)
    }

    /// The same, where it concerns the pods that have it, too.
    pub fn fault_of_holder(&self) -> Option<String> {
        let serves =
            |of: &Condition| HealthReason::ALL.iter().any(|one| one.serves_its_pod() && one.word() == of.reason);
        self.fault().filter(|_| !self.health_condition().is_some_and(serves))
    }

    /// Its condition `Healthy`.
    pub fn health_condition(&self) -> Option<&Condition> {
        self.conditions.iter().find(|condition| condition.type_ == "Healthy")
    }

    /// Its PCI address, where it is known.
    pub fn bus_id(&self) -> Option<&str> {
        self.topology.as_ref()?.bus_id.as_deref()
    }
}

/// The place of a device in the machine.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct DeviceLocation {
    /// CPU socket, −1 when unknown.
    #[serde(rename = "socketID")]
    pub socket_id: i32,
    /// NUMA node, −1 when unknown.
    #[serde(rename = "nodeID")]
    pub node_id: i32,
    /// PCIe root complex, e.g. `pci0000:3a`.
    #[serde(rename = "pcieID")]
    pub pcie_id: String,
    /// PCI address.
    #[serde(default, rename = "busID", skip_serializing_if = "Option::is_none")]
    pub bus_id: Option<String>,
}

/// Virtual functions with common labels.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct VfGroup {
    /// Matched by the hint's `vfSelector`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// The functions.
    #[serde(default)]
    pub vfs: Vec<VirtualFunction>,
}

/// One virtual function.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct VirtualFunction {
    /// Number below its physical function.
    #[serde(default)]
    pub minor: i32,
    /// PCI address.
    #[serde(rename = "busID")]
    #[schemars(with = "String")]
    pub bus_id: DeviceId,
}

/// What pods hold.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
pub struct DeviceStatus {
    /// Devices that pods hold without an assignment of the scheduler, by type.
    #[serde(default)]
    pub allocations: Vec<DeviceHeld>,
    /// For people: what `kubectl get devices` shows. No decision reads it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub counts: Option<DeviceCounts>,
    /// `NodeSuspect`, while the node daemon holds the machine itself to blame for pods that failed; `SharesUnavailable`, while it cannot
    /// hold GPU shares to their limits; `NoDevicesSelected`, while `--rdma-select` takes none of its NICs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
}

impl DeviceStatus {
    /// Type of the condition of a node that takes no new pods with devices for a while.
    pub const SUSPECT: &str = "NodeSuspect";

    /// The condition of a suspect node.
    pub fn suspect(&self) -> Option<&Condition> {
        self.condition(Self::SUSPECT)
    }

    /// Type of the condition of a node that takes no pods with GPU shares, because it cannot hold them to their limits.
    pub const SHARES_UNAVAILABLE: &str = "SharesUnavailable";

    /// The condition of a node that takes no pods with GPU shares.
    pub fn shares_unavailable(&self) -> Option<&Condition> {
        self.condition(Self::SHARES_UNAVAILABLE)
    }

    /// Type of the condition of a node that has NICs, of which the operator's selection takes none.
    pub const NO_DEVICES_SELECTED: &str = "NoDevicesSelected";

    fn condition(&self, of: &str) -> Option<&Condition> {
        self.conditions.iter().find(|condition| condition.type_ == of && condition.status == "True")
    }
}

/// The devices of the node in numbers, as the node daemon last wrote them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct DeviceCounts {
    /// GPUs and MIG devices; a GPU that is split counts for its parts.
    pub gpus: u32,
    /// RDMA NICs.
    pub nics: u32,
    /// GPUs, MIG devices and NICs that take no new pods.
    pub unhealthy: u32,
}

/// Pods that hold devices of one type.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DeviceHeld {
    /// `gpu`, `rdma`, …
    #[serde(rename = "type")]
    #[schemars(with = "String")]
    pub kind: DeviceType,
    /// The pods.
    #[serde(default)]
    pub entries: Vec<HeldBy>,
}

/// One pod and what it holds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct HeldBy {
    /// Pod name.
    pub name: String,
    /// Pod namespace.
    pub namespace: String,
    /// Pod uid.
    pub uuid: String,
    /// Minors of the devices.
    #[serde(default)]
    pub minors: Vec<i32>,
}

impl JsonSchema for Quantity {
    fn schema_name() -> Cow<'static, str> {
        "Quantity".into()
    }
    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "x-kubernetes-int-or-string": true })
    }
}

/// The CRD of [`Device`]. Its status is not a subresource, as in Koordinator's own.
pub fn crd() -> CustomResourceDefinition {
    let mut crd = Device::crd();
    for version in &mut crd.spec.versions {
        version.subresources = None;
    }
    crd
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_golden_object_is_read_and_printed_back() {
        let golden: serde_json::Value = serde_json::from_str(include_str!("../../tests/golden/device.json")).unwrap();
        let device: Device = serde_json::from_value(golden.clone()).unwrap();
        assert_eq!(serde_json::to_value(&device).unwrap(), golden);
        assert_eq!(device.spec.devices[0].kind, DeviceType::Gpu);
    }

    #[test]
    fn the_crd_requires_health_and_three_topology_ids_and_has_no_status_subresource() {
        let crd = serde_json::to_value(crd()).unwrap();
        let version = &crd["spec"]["versions"][0];
        assert_eq!(version["subresources"], serde_json::Value::Null);
        assert_eq!(crd["spec"]["scope"], "Cluster");
        let device = &version["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]["devices"]["items"];
        let required = |of: &serde_json::Value| of["required"].as_array().cloned().unwrap_or_default();
        assert!(required(device).contains(&"health".into()), "{device}");
        assert_eq!(required(&device["properties"]["topology"]), ["nodeID", "pcieID", "socketID"]);
    }
}

//! Annotations by which a user influences the choice of devices: `device-allocate-hint`, `device-joint-allocate`, `gpu-partition-spec`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::allocation::{AllocationError, parse_json};
use super::id::DeviceType;
use super::key;
use super::quantity::Quantity;
use super::request::RdmaRequest;

/// `device-allocate-hint`: wishes per device type.
pub type DeviceHints = BTreeMap<DeviceType, DeviceHint>;

/// Wishes for one device type.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DeviceHint {
    /// Labels that the device must carry.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub selector: Option<LabelSelector>,
    /// Labels that the virtual function must carry.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vf_selector: Option<LabelSelector>,
    /// How the request is spread over matching devices.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allocate_strategy: Option<AllocateStrategy>,
    /// Widest topology level that may hold all devices.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub required_topology_scope: Option<TopologyScope>,
    /// Whether other pods may use what is near.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exclusive_policy: Option<ExclusivePolicy>,
}

/// How a request is spread over the devices that match.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum AllocateStrategy {
    /// Every matching device.
    ApplyForAll,
    /// The request is a count of devices.
    RequestsAsCount,
}

/// How many devices a request stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Count {
    /// So many.
    Exactly(u32),
    /// Every one that matches, at least one.
    All,
}

/// The part of a hint that says how many devices an amount stands for: the scheduler chooses by it, and the node counts what
/// was chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counting {
    /// `allocateStrategy`.
    pub strategy: Option<AllocateStrategy>,
    /// `exclusivePolicy` is `DeviceLevel`.
    pub alone: bool,
}

impl Counting {
    /// Devices that a request for `count` of them stands for.
    pub fn devices(self, count: u32) -> Count {
        match self.strategy {
            Some(AllocateStrategy::ApplyForAll) => Count::All,
            Some(AllocateStrategy::RequestsAsCount) | None => Count::Exactly(count),
        }
    }

    /// NICs that `rdma` stands for, and percent of each.
    pub fn nics(self, rdma: RdmaRequest) -> (Count, i64) {
        let RdmaRequest { count, percent } = rdma;
        match self.strategy {
            // The amount itself is a number of NICs; each gives one unit, or all of itself where it is exclusive.
            Some(AllocateStrategy::RequestsAsCount) => {
                let amount = if count == 1 { percent as u32 } else { count.saturating_mul(key::WHOLE as u32) };
                (Count::Exactly(amount), if self.alone { key::WHOLE } else { 1 })
            }
            Some(AllocateStrategy::ApplyForAll) | None => (self.devices(count), percent),
        }
    }
}

impl DeviceHint {
    /// How it counts devices.
    pub fn counting(&self) -> Counting {
        let alone = self.exclusive_policy == Some(ExclusivePolicy::DeviceLevel);
        Counting { strategy: self.allocate_strategy, alone }
    }
}

/// Topology levels, narrowest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum TopologyScope {
    /// One device.
    Device,
    /// Below one PCIe switch (or root complex, where there is none).
    #[serde(rename = "PCIe")]
    Pcie,
    /// On one NUMA node.
    #[serde(rename = "NUMANode")]
    NumaNode,
    /// Anywhere on the node.
    Node,
}

/// Whether other pods may use what is near.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum ExclusivePolicy {
    /// No other pod on the device.
    DeviceLevel,
    /// No other pod below the PCIe switch.
    #[serde(rename = "PCIeLevel")]
    PcieLevel,
}

/// A Kubernetes label selector.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct LabelSelector {
    /// All must be equal.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub match_labels: BTreeMap<String, String>,
    /// All must hold.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub match_expressions: Vec<Requirement>,
}

/// One expression of a label selector.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Requirement {
    /// Label key.
    pub key: String,
    /// What must hold.
    pub operator: Operator,
    /// Values of `In` and `NotIn`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub values: Vec<String>,
}

/// Operators of a label selector.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Operator {
    /// The label is one of the values.
    In,
    /// The label is absent or none of the values.
    NotIn,
    /// The label is there.
    Exists,
    /// The label is absent.
    DoesNotExist,
}

impl LabelSelector {
    /// `true` when `labels` satisfy every part. An empty selector matches everything.
    pub fn matches(&self, labels: &BTreeMap<String, String>) -> bool {
        self.holds(|key| labels.get(key).map(String::as_str))
    }

    /// The same of a device that has its `uuid` as a label too.
    pub fn matches_device(&self, labels: &BTreeMap<String, String>, uuid: Option<&str>) -> bool {
        self.holds(|key| if key == key::UUID { uuid } else { labels.get(key).map(String::as_str) })
    }

    /// It reads the device's uuid, so that devices which differ in nothing else are different to it.
    pub fn names_devices(&self) -> bool {
        self.keys().any(|key| key == key::UUID)
    }

    fn keys(&self) -> impl Iterator<Item = &String> {
        self.match_labels.keys().chain(self.match_expressions.iter().map(|requirement| &requirement.key))
    }

    fn holds<'a>(&self, value: impl Fn(&str) -> Option<&'a str>) -> bool {
        self.match_labels.iter().all(|(key, wanted)| value(key) == Some(wanted))
            && self.match_expressions.iter().all(|requirement| requirement.holds(value(&requirement.key)))
    }
}

impl Requirement {
    /// `true` when it holds of this value of its label.
    pub fn holds(&self, value: Option<&str>) -> bool {
        let listed = |value: &str| self.values.iter().any(|listed| listed == value);
        match self.operator {
            Operator::In => value.is_some_and(listed),
            Operator::NotIn => value.is_none_or(|value| !listed(value)),
            Operator::Exists => value.is_some(),
            Operator::DoesNotExist => value.is_none(),
        }
    }
}

/// `device-joint-allocate`: device types that are chosen near each other.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct JointAllocate {
    /// The first is the primary type.
    pub device_types: Vec<DeviceType>,
    /// Without a scope, nearness is a preference.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub required_scope: Option<JointScope>,
}

/// How near jointly allocated devices must be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum JointScope {
    /// Below one PCIe switch or root complex.
    #[serde(rename = "SamePCIe")]
    SamePcie,
}

/// `gpu-partition-spec`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PartitionSpec {
    /// Whether only listed partitions may be used.
    pub allocate_policy: PartitionPolicy,
    /// Least ring bus bandwidth of the partition.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ring_bus_bandwidth: Option<Quantity>,
}

/// Whether only partitions of the node's table may be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum PartitionPolicy {
    /// Only those.
    Restricted,
    /// Those if possible.
    #[default]
    BestEffort,
}

/// Reads `device-allocate-hint`.
///
/// What it says about types of other systems is theirs to read and is left out.
pub fn parse_hints(text: &str) -> Result<DeviceHints, AllocationError> {
    let expected = r#"{"gpu":{"requiredTopologyScope":"PCIe"}}"#;
    // Go writes what is absent as null.
    let all: Option<BTreeMap<DeviceType, serde_json::Value>> = parse_json(key::DEVICE_ALLOCATE_HINT, expected, text)?;
    let mut all = all.unwrap_or_default();
    all.retain(|kind, hint| matches!(kind, DeviceType::Gpu | DeviceType::Rdma) && !hint.is_null());
    if all.is_empty() {
        return Ok(DeviceHints::new());
    }
    // Read again from text, so that an error says where it is.
    let hints: DeviceHints =
        parse_json(key::DEVICE_ALLOCATE_HINT, expected, &serde_json::to_string(&all).unwrap_or_default())?;
    let selectors = hints.values().flat_map(|hint| hint.selector.iter().chain(&hint.vf_selector));
    let moved = selectors
        .flat_map(LabelSelector::keys)
        .find_map(|label| Some(format!("label {label} is not read any more; the key is {}", key::moved(label)?)));
    moved.map_or(Ok(hints), |problem| Err(AllocationError::new(key::DEVICE_ALLOCATE_HINT, problem)))
}

/// Reads `device-joint-allocate`.
pub fn parse_joint(text: &str) -> Result<JointAllocate, AllocationError> {
    let joint: JointAllocate =
        parse_json(key::DEVICE_JOINT_ALLOCATE, r#"{"deviceTypes":["gpu","rdma"],"requiredScope":"SamePCIe"}"#, text)?;
    if joint.device_types.is_empty() {
        let problem = "deviceTypes is empty; expected at least one of \"gpu\", \"rdma\"";
        return Err(AllocationError::new(key::DEVICE_JOINT_ALLOCATE, problem));
    }
    Ok(joint)
}

/// Reads `gpu-partition-spec`.
pub fn parse_partition(text: &str) -> Result<PartitionSpec, AllocationError> {
    parse_json(key::GPU_PARTITION_SPEC, r#"{"allocatePolicy":"Restricted","ringBusBandwidth":"400G"}"#, text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_golden_hints_are_read_and_printed_back() {
        let golden: BTreeMap<String, serde_json::Value> =
            serde_json::from_str(include_str!("../../tests/golden/hints.json")).unwrap();
        let text = |key: &str| golden[key].to_string();
        let hints = parse_hints(&text(key::DEVICE_ALLOCATE_HINT)).unwrap();
        assert_eq!(serde_json::to_value(&hints).unwrap(), golden[key::DEVICE_ALLOCATE_HINT]);
        assert_eq!(hints[&DeviceType::Gpu].required_topology_scope, Some(TopologyScope::Pcie));
        let joint = parse_joint(&text(key::DEVICE_JOINT_ALLOCATE)).unwrap();
        assert_eq!(serde_json::to_value(&joint).unwrap(), golden[key::DEVICE_JOINT_ALLOCATE]);
        let partition = parse_partition(&text(key::GPU_PARTITION_SPEC)).unwrap();
        assert_eq!(serde_json::to_value(&partition).unwrap(), golden[key::GPU_PARTITION_SPEC]);
    }

    #[test]
    fn a_label_that_is_not_read_any_more_is_named_with_the_one_that_is() {
        let with =
            |label: &str| parse_hints(&format!(r#"{{"rdma":{{"selector":{{"matchLabels":{{"{label}":"x"}}}}}}}}"#));
        let error = with(&key::MODEL.replace("baton.io", "scheduling.koordinator.sh")).unwrap_err().to_string();
        assert!(error.contains("is not read any more; the key is baton.io/model"), "{error}");
        assert!(with(key::MODEL).is_ok() && with("example.com/any").is_ok());
    }

    #[test]
    fn a_wrong_word_is_named() {
        for nothing in ["null", "{}", r#"{"gpu":null}"#] {
            assert!(parse_hints(nothing).unwrap().is_empty(), "{nothing}");
        }
        let error = parse_hints(r#"{"gpu":{"requiredTopologyScope":"Rack"}}"#).unwrap_err().to_string();
        assert!(error.contains("Rack") && error.contains("NUMANode"), "{error}");
        assert!(parse_joint(r#"{"deviceTypes":[]}"#).unwrap_err().to_string().contains("empty"));
    }

    #[test]
    fn selectors_match_as_kubernetes_does() {
        let labels = BTreeMap::from([("a".to_owned(), "1".to_owned())]);
        let matches = |text: &str| serde_json::from_str::<LabelSelector>(text).unwrap().matches(&labels);
        assert!(matches("{}"));
        assert!(matches(r#"{"matchLabels":{"a":"1"}}"#));
        assert!(!matches(r#"{"matchLabels":{"a":"2"}}"#));
        assert!(matches(r#"{"matchExpressions":[{"key":"b","operator":"NotIn","values":["1"]}]}"#));
        assert!(!matches(r#"{"matchExpressions":[{"key":"b","operator":"Exists"}]}"#));
        assert!(matches(r#"{"matchExpressions":[{"key":"a","operator":"In","values":["1"]}]}"#));
    }

    proptest! {
        #[test]
        fn no_text_panics(text in "\\PC*") {
            let _ = (parse_hints(&text), parse_joint(&text), parse_partition(&text));
        }
    }
}

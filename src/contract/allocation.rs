//! The devices of a pod as its annotations write them: `device-allocated` and the entries shared with `container-devices`.

use std::collections::BTreeMap;
use std::fmt;

use serde::de::{Error as _, MapAccess, Visitor};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::id::{DeviceId, DeviceType};
use super::key;
use super::quantity::Quantity;

/// Most entries that one device type may list. No node has more devices: a longer list is an attack or a bug.
pub const MAX_ENTRIES: usize = 1024;

/// Why an annotation is refused, whole: too large, not of the contract's shape, or impossible.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("annotation {key}: {problem}")]
pub struct AllocationError {
    key: &'static str,
    problem: String,
}

impl AllocationError {
    /// A refusal of annotation `key`; `problem` names the offending part and what was expected.
    pub fn new(key: &'static str, problem: impl Into<String>) -> Self {
        Self { key, problem: problem.into() }
    }

    fn shape(key: &'static str, problem: impl fmt::Display, expected: &str) -> Self {
        Self::new(key, format!("cannot be read: {problem}; expected {expected}"))
    }

    /// The same refusal, of a part of the annotation.
    pub(super) fn within(self, part: &str) -> Self {
        Self::new(self.key, format!("{part}: {}", self.problem))
    }
}

/// Writers in Go leave `null` where they mean an empty list or map.
fn null_is_empty<'de, T: Default + Deserialize<'de>, D: serde::Deserializer<'de>>(from: D) -> Result<T, D::Error> {
    Ok(Option::deserialize(from)?.unwrap_or_default())
}

/// One device, or a part of one, given to a pod.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct DeviceEntry {
    /// Small number of the device on its node.
    pub minor: i32,
    /// GPU or MIG UUID, or PCI address.
    pub id: DeviceId,
    /// How much of the device, by resource name; written as strings, read as strings or numbers.
    #[serde(default, deserialize_with = "null_is_empty")]
    pub resources: BTreeMap<String, Quantity>,
    /// Virtual functions of a NIC.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub extension: Option<DeviceExtension>,
}

/// Parts of a device that are devices of their own.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize)]
pub struct DeviceExtension {
    /// SR-IOV virtual functions.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "null_is_empty")]
    pub vfs: Vec<Vf>,
}

/// A virtual function.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Vf {
    /// Number below its physical function; absent means 0.
    #[serde(default)]
    pub minor: i32,
    /// PCI address.
    #[serde(rename = "busID")]
    pub bus_id: DeviceId,
}

impl DeviceEntry {
    /// Amount of `resource` in this entry; zero when not named.
    pub fn amount(&self, resource: &str) -> i64 {
        self.resources.get(resource).map_or(0, |q| q.value())
    }

    /// Ids of everything that this entry names: the device, and the virtual functions that stand for it.
    pub fn named(&self) -> impl Iterator<Item = &DeviceId> {
        std::iter::once(&self.id).chain(self.vfs().iter().map(|vf| &vf.bus_id))
    }

    /// The virtual functions that stand for the device.
    pub fn vfs(&self) -> &[Vf] {
        self.extension.as_ref().map_or(&[], |extension| &extension.vfs)
    }
}

/// Entries by type, as both annotations hold them.
pub type Entries = BTreeMap<DeviceType, Vec<DeviceEntry>>;

/// `device-allocated`: every device of a pod, one merged entry per device.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DeviceAllocation {
    /// Devices of the types that Baton knows.
    pub devices: Entries,
    /// Device types of other systems, unchanged.
    pub other: BTreeMap<String, Value>,
}

const EXPECTED: &str = r#"{"gpu":[{"minor":0,"id":"GPU-…","resources":{"koordinator.sh/gpu-core":"100"}}]}"#;

impl DeviceAllocation {
    /// Reads the annotation. An empty text (how the Binding writes "no devices") is no device.
    pub fn parse(text: &str) -> Result<Self, AllocationError> {
        if text.is_empty() {
            return Ok(Self::default());
        }
        let ByType(allocation) = parse_json(key::DEVICE_ALLOCATED, EXPECTED, text)?;
        for (kind, list) in &allocation.devices {
            judge(key::DEVICE_ALLOCATED, kind, list)?;
        }
        Ok(allocation)
    }

    /// The annotation's text: compact JSON, types in order; empty when there is no device.
    pub fn print(&self) -> String {
        #[derive(Serialize)]
        struct Printed<'a> {
            #[serde(flatten)]
            devices: &'a Entries,
            #[serde(flatten)]
            other: &'a BTreeMap<String, Value>,
        }
        if self.devices.is_empty() && self.other.is_empty() {
            return String::new();
        }
        serde_json::to_string(&Printed { devices: &self.devices, other: &self.other }).unwrap_or_default()
    }

    /// What is left of it for a pod that may hold so many devices of each type, none of them by more than it asks for: the first
    /// entries, each cut down to `most` of its amounts.
    #[must_use]
    pub fn clipped(mut self, counts: &BTreeMap<DeviceType, usize>, most: &BTreeMap<&'static str, i64>) -> Self {
        for (kind, list) in &mut self.devices {
            list.truncate(counts.get(kind).copied().unwrap_or(0));
            for (name, amount) in list.iter_mut().flat_map(|entry| &mut entry.resources) {
                if let Some(most) = most.get(name.as_str()).filter(|most| amount.value() > **most) {
                    *amount = Quantity::units(*most);
                }
            }
        }
        self.devices.retain(|_, list| !list.is_empty());
        self
    }

    /// Entries of one type.
    pub fn of(&self, kind: &DeviceType) -> &[DeviceEntry] {
        self.devices.get(kind).map_or(&[], Vec::as_slice)
    }
}

/// The annotation's content, not judged.
struct ByType(DeviceAllocation);

impl<'de> Deserialize<'de> for ByType {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Reader;
        impl<'de> Visitor<'de> for Reader {
            type Value = ByType;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a map")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut from: A) -> Result<ByType, A::Error> {
                let mut found = DeviceAllocation::default();
                while let Some(kind) = from.next_key::<String>()? {
                    match DeviceType::from(kind) {
                        DeviceType::Other(kind) => drop(found.other.insert(kind.into(), from.next_value()?)),
                        kind => {
                            let list =
                                from.next_value().map_err(|error| A::Error::custom(format!("{kind}: {error}")))?;
                            found.devices.insert(kind, list);
                        }
                    }
                }
                Ok(ByType(found))
            }
        }
        from.deserialize_map(Reader)
    }
}

/// Reads capped JSON.
pub(super) fn parse_json<'a, T: Deserialize<'a>>(
    key: &'static str,
    expected: &'static str,
    text: &'a str,
) -> Result<T, AllocationError> {
    if text.len() > key::MAX_ANNOTATION {
        let limit = key::MAX_ANNOTATION;
        return Err(AllocationError::new(key, format!("has {} bytes, the limit is {limit}", text.len())));
    }
    serde_json::from_str(text).map_err(|error| AllocationError::shape(key, error, expected))
}

/// Reads and judges the entries of one device type.
pub(super) fn entries(
    key: &'static str,
    expected: &'static str,
    kind: &DeviceType,
    value: Value,
) -> Result<Vec<DeviceEntry>, AllocationError> {
    let list: Vec<DeviceEntry> = serde_json::from_value(value)
        .map_err(|error| AllocationError::shape(key, format_args!("{kind}: {error}"), expected))?;
    judge(key, kind, &list)?;
    Ok(list)
}

/// No device twice, no negative minor or amount.
fn judge(key: &'static str, kind: &DeviceType, list: &[DeviceEntry]) -> Result<(), AllocationError> {
    let meaning = |problem: String| Err(AllocationError::new(key, problem));
    if list.len() > MAX_ENTRIES {
        return meaning(format!("{kind} lists {} devices, the limit is {MAX_ENTRIES}", list.len()));
    }
    let mut seen = std::collections::BTreeSet::new();
    for entry in list {
        if entry.minor < 0 {
            return meaning(format!("{kind} {} has the negative minor {}", entry.id, entry.minor));
        }
        if !seen.insert(&entry.id) {
            return meaning(format!("{kind} {} is listed twice", entry.id));
        }
        if let Some((name, amount)) = entry.resources.iter().find(|(_, amount)| **amount < Quantity::ZERO) {
            return meaning(format!("{kind} {} has the negative amount {amount} of {name}", entry.id));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const GOLDEN: &str = include_str!("../../tests/golden/device-allocated.json");

    #[test]
    fn the_golden_annotation_is_read_and_printed_back() {
        let allocation = DeviceAllocation::parse(GOLDEN.trim_end()).unwrap();
        let gpu = &allocation.of(&DeviceType::Gpu)[0];
        assert_eq!((gpu.minor, gpu.amount(key::GPU_CORE), gpu.amount(key::GPU_MEMORY)), (1, 100, 81_559 << 20));
        assert_eq!(allocation.print(), GOLDEN.trim_end());
    }

    #[test]
    fn numbers_unknown_fields_and_unknown_types_are_no_error() {
        let text = r#"{"fpga":[{"anything":1}],"gpu":[{"minor":0,"id":"GPU-a","resources":{"koordinator.sh/gpu-core":50},"new":{}}],"rdma":[{"minor":1,"id":"0000:3c:00.0","extension":{"vfs":[{"busID":"0000:3c:00.2"}]}}]}"#;
        let allocation = DeviceAllocation::parse(text).unwrap();
        assert_eq!(allocation.of(&DeviceType::Gpu)[0].amount(key::GPU_CORE), 50);
        let vf = &allocation.of(&DeviceType::Rdma)[0].extension.as_ref().unwrap().vfs[0];
        assert_eq!((vf.minor, vf.bus_id.as_str()), (0, "0000:3c:00.2"));
        assert_eq!(DeviceAllocation::parse(&allocation.print()).unwrap(), allocation);
    }

    #[test]
    fn a_bad_annotation_is_refused_whole_and_the_error_names_the_part() {
        for (text, part) in [
            ("{", "line 1"),
            ("[]", "expected"),
            (r#"{"gpu":[{"minor":0}]}"#, "id"),
            (r#"{"gpu":[{"minor":0,"id":"../../etc"}]}"#, "../../etc"),
            (r#"{"gpu":[{"minor":-1,"id":"GPU-a"}]}"#, "-1"),
            (r#"{"gpu":[{"minor":0,"id":"GPU-a"},{"minor":0,"id":"GPU-a"}]}"#, "twice"),
            (r#"{"gpu":[{"minor":0,"id":"GPU-a","resources":{"koordinator.sh/gpu-core":"-5"}}]}"#, "-5"),
            (r#"{"gpu":[{"minor":99999999999,"id":"GPU-a"}]}"#, "99999999999"),
        ] {
            let error = DeviceAllocation::parse(text).unwrap_err().to_string();
            assert!(error.contains(part) && error.contains(key::DEVICE_ALLOCATED), "{text}: {error}");
        }
        let huge = format!("{{\"gpu\":\"{}\"}}", "x".repeat(key::MAX_ANNOTATION));
        assert!(DeviceAllocation::parse(&huge).unwrap_err().to_string().contains("bytes, the limit is"));
    }

    prop_compose! {
        fn entry()(minor in 0..64i32, id in "GPU-[a-f0-9]{8}", core in 0..=100i64, memory in 0i64..1 << 40, vf in proptest::option::of("[0-9a-f]{4}:3c:00\\.[0-7]")) -> DeviceEntry {
            DeviceEntry {
                minor,
                id: DeviceId::parse(&id).unwrap(),
                resources: [(key::GPU_CORE.to_owned(), Quantity::units(core)), (key::GPU_MEMORY.to_owned(), Quantity::bytes(memory))].into(),
                extension: vf.map(|bus| DeviceExtension { vfs: vec![Vf { minor: 0, bus_id: DeviceId::parse(&bus).unwrap() }] }),
            }
        }
    }

    proptest! {
        #[test]
        fn printing_then_reading_gives_the_same_allocation(mut list in proptest::collection::vec(entry(), 1..16)) {
            list.sort_by(|a, b| a.id.cmp(&b.id));
            list.dedup_by(|a, b| a.id == b.id);
            let allocation = DeviceAllocation { devices: [(DeviceType::Gpu, list)].into(), other: BTreeMap::new() };
            prop_assert_eq!(DeviceAllocation::parse(&allocation.print()).unwrap(), allocation);
        }
        #[test]
        fn no_text_panics(text in "\\PC*") {
            let _ = DeviceAllocation::parse(&text);
        }
        #[test]
        fn no_nearly_right_text_panics(at in 0usize..200, with in "\\PC{0,3}") {
            let mut text = GOLDEN.to_owned();
            let at = text.floor_char_boundary(at.min(text.len()));
            text.insert_str(at, &with);
            let _ = DeviceAllocation::parse(&text);
        }
    }
}

//! `container-devices`: the devices of a pod, split per container, and the node they are on.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::allocation::{AllocationError, DeviceEntry, Entries, entries, parse_json};
use super::id::DeviceType;
use super::key;

const EXPECTED: &str = r#"{"version":1,"node":"…","containers":{"main":{"gpu":[{"minor":0,"id":"GPU-…"}]}}}"#;
/// The only version there is.
const VERSION: u32 = 1;
/// Most containers that a split may name.
const MAX_CONTAINERS: usize = 256;

/// The split. Plain init containers are listed too; the devices of one container may be those of another when the two never
/// run at the same time.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ContainerDevices {
    /// Node the devices are on.
    pub node: Box<str>,
    /// Entries by container name and device type.
    pub containers: BTreeMap<Box<str>, Entries>,
}

#[derive(Deserialize)]
struct Raw {
    version: u32,
    node: Box<str>,
    containers: BTreeMap<Box<str>, BTreeMap<String, Value>>,
}

#[derive(Serialize)]
struct PrintedValue<'a> {
    version: u32,
    node: &'a str,
    containers: &'a BTreeMap<Box<str>, Entries>,
}

impl ContainerDevices {
    /// How the text begins; the node's name follows.
    pub const HEAD: &str = r#"{"version":1,"node":"#;

    /// Reads the annotation. An empty text (how the Binding writes "no devices") gives `None`.
    pub fn parse(text: &str) -> Result<Option<Self>, AllocationError> {
        const KEY: &str = key::CONTAINER_DEVICES;
        if text.is_empty() {
            return Ok(None);
        }
        let raw: Raw = parse_json(KEY, EXPECTED, text)?;
        let meaning = |problem: String| Err(AllocationError::new(KEY, problem));
        if raw.version != VERSION {
            return meaning(format!("version {} is not known, expected {VERSION}", raw.version));
        }
        if raw.containers.len() > MAX_CONTAINERS {
            return meaning(format!("names {} containers, the limit is {MAX_CONTAINERS}", raw.containers.len()));
        }
        let mut split = Self { node: raw.node, containers: BTreeMap::new() };
        for (container, types) in raw.containers {
            let mut of_container = Entries::new();
            for (kind, value) in types {
                let kind = DeviceType::from(kind);
                if !matches!(kind, DeviceType::Other(_)) {
                    let list = entries(KEY, EXPECTED, &kind, value);
                    let list = list.map_err(|error| error.within(&format!("container {container}")))?;
                    of_container.insert(kind, list);
                }
            }
            split.containers.insert(container, of_container);
        }
        Ok(Some(split))
    }

    /// The annotation's text: compact JSON.
    pub fn print(&self) -> String {
        let printed = PrintedValue { version: VERSION, node: &self.node, containers: &self.containers };
        serde_json::to_string(&printed).unwrap_or_default()
    }

    /// Entries of one type in one container.
    pub fn of(&self, container: &str, kind: &DeviceType) -> &[DeviceEntry] {
        self.containers.get(container).and_then(|types| types.get(kind)).map_or(&[], Vec::as_slice)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const GOLDEN: &str = include_str!("../../tests/golden/container-devices.json");

    #[test]
    fn the_golden_annotation_is_read_and_printed_back() {
        let split = ContainerDevices::parse(GOLDEN.trim_end()).unwrap().unwrap();
        assert_eq!(&*split.node, "node-a");
        assert_eq!(split.of("main", &DeviceType::Gpu).len(), 2);
        assert_eq!(split.of("main", &DeviceType::Rdma)[0].id.as_str(), "0000:3c:00.0");
        assert!(split.of("other", &DeviceType::Gpu).is_empty());
        assert_eq!(split.print(), GOLDEN.trim_end());
    }

    #[test]
    fn a_bad_split_is_refused_and_the_error_names_the_container_or_part() {
        for (text, part) in [
            (r#"{"version":2,"node":"n","containers":{}}"#, "version 2"),
            (r#"{"version":1,"containers":{}}"#, "node"),
            (r#"{"version":1,"node":"n","containers":{"main":{"gpu":[{"minor":0,"id":""}]}}}"#, "container main"),
            (r#"{"version":1,"node":"n","containers":{"main":{"gpu":{}}}}"#, "container main"),
        ] {
            let error = ContainerDevices::parse(text).unwrap_err().to_string();
            assert!(error.contains(part), "{text}: {error}");
        }
        assert_eq!(ContainerDevices::parse("").unwrap(), None);
    }

    proptest! {
        #[test]
        fn no_text_panics(text in "\\PC*") {
            let _ = ContainerDevices::parse(&text);
        }
        #[test]
        fn no_nearly_right_text_panics_and_what_is_read_prints_the_same(at in 0usize..300, with in "[\\PC]{0,3}") {
            let mut text = GOLDEN.trim_end().to_owned();
            let at = text.floor_char_boundary(at.min(text.len()));
            text.insert_str(at, &with);
            if let Ok(Some(split)) = ContainerDevices::parse(&text) {
                prop_assert_eq!(ContainerDevices::parse(&split.print()).unwrap().unwrap(), split);
            }
        }
    }
}

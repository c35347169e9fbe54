//! `baton.io/cordoned` on a Device object: the devices that people have taken out of use, JSON of device id →
//! `{"reason":…,"until":…,"by":…}`.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::{Deserialize, Serialize};

use super::allocation::{AllocationError, parse_json};
use super::id::DeviceId;
use super::inventory::Device;
use super::key;

/// Why a device is out of use, and for how long.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cordon {
    /// In its author's words.
    #[serde(default)]
    pub reason: String,
    /// When it ends by itself; never where absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<Timestamp>,
    /// Its author.
    #[serde(default)]
    pub by: String,
}

impl Cordon {
    /// `true` before its end.
    pub fn is_in_force(&self, wall: Timestamp) -> bool {
        self.until.is_none_or(|until| wall < until)
    }

    /// `cordoned by ada until 2026-11-23T10:00:00Z: fan fails`.
    pub fn words(&self) -> String {
        let part = |word: &str, text: &str| if text.is_empty() { String::new() } else { format!("{word}{text}") };
        let until = self.until.map(|until| until.to_string()).unwrap_or_default();
        format!("cordoned{}{}{}", part(" by ", &self.by), part(" until ", &until), part(": ", &self.reason))
    }
}

/// The cordons of one node's devices.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Cordons {
    by_id: BTreeMap<DeviceId, Cordon>,
    /// Of every device, where the annotation cannot be read.
    all: Option<Box<Cordon>>,
}

impl Cordons {
    /// Reads the annotation, whole.
    pub fn parse(text: &str) -> Result<Self, AllocationError> {
        let expected = r#"an object like {"GPU-…":{"reason":"fan fails","until":"2026-11-23T10:00:00Z","by":"ada"}}"#;
        Ok(Self { by_id: parse_json(key::CORDONED, expected, text)?, all: None })
    }

    /// Those of a Device object. One that cannot be read covers every device of the node: which ones its author meant is not known.
    pub fn of_object(device: &Device) -> Self {
        Self::of_metadata(&device.metadata)
    }

    /// The same, of the object's metadata.
    pub fn of_metadata(metadata: &ObjectMeta) -> Self {
        let text = metadata.annotations.as_ref().and_then(|all| all.get(key::CORDONED));
        text.filter(|text| !text.is_empty()).map_or_else(Self::default, |text| {
            Self::parse(text).unwrap_or_else(|error| {
                let all = Cordon { reason: error.to_string(), until: None, by: String::new() };
                Self { by_id: BTreeMap::new(), all: Some(Box::new(all)) }
            })
        })
    }

    /// Why the annotation cannot be read.
    pub fn unreadable(&self) -> Option<&str> {
        self.all.as_ref().map(|all| all.reason.as_str())
    }

    /// The cordon in force on a device; a MIG device has its own or that of the GPU that it is a part of.
    pub fn of(&self, id: &str, parent: Option<&str>, wall: Timestamp) -> Option<&Cordon> {
        let named = |id: &str| self.by_id.iter().find(|(named, _)| named.as_str() == id).map(|(_, cordon)| cordon);
        let own = [Some(id), parent].into_iter().flatten().filter_map(named).find(|cordon| cordon.is_in_force(wall));
        own.or(self.all.as_deref())
    }

    /// Drops those that have ended. `true` when there was one.
    pub fn prune(&mut self, wall: Timestamp) -> bool {
        let before = self.by_id.len();
        self.by_id.retain(|_, cordon| cordon.is_in_force(wall));
        self.by_id.len() != before
    }

    /// The earliest end of a cordon.
    pub fn next_end(&self) -> Option<Timestamp> {
        self.by_id.values().filter_map(|cordon| cordon.until).min()
    }

    /// No device is cordoned.
    pub fn is_empty(&self) -> bool {
        self.by_id.is_empty() && self.all.is_none()
    }

    /// Cordons a device; a former cordon of it goes.
    pub fn set(&mut self, id: DeviceId, cordon: Cordon) {
        self.by_id.insert(id, cordon);
    }

    /// Takes a device's own cordon away; `None` when it has none.
    pub fn lift(&mut self, id: &DeviceId) -> Option<Cordon> {
        self.by_id.remove(id)
    }

    /// The annotation; `None` when no device is cordoned.
    pub fn print(&self) -> Option<String> {
        let texts = self.by_id.iter().map(|(id, cordon)| (id.as_str(), cordon)).collect::<BTreeMap<_, _>>();
        (!texts.is_empty()).then(|| serde_json::to_string(&texts).unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    #[test]
    fn a_cordon_holds_until_its_end_and_covers_the_mig_devices_of_its_gpu() {
        let text = r#"{"GPU-1":{"reason":"fan","until":"2026-11-23T10:00:00Z","by":"ada"},"MIG-7":{}}"#;
        let cordons = Cordons::parse(text).unwrap();
        let (before, after) = (at("2026-11-23T09:59:59Z"), at("2026-11-23T10:00:00Z"));
        assert_eq!(
            cordons.of("GPU-1", None, before).unwrap().words(),
            "cordoned by ada until 2026-11-23T10:00:00Z: fan"
        );
        assert!(cordons.of("MIG-1", Some("GPU-1"), before).is_some() && cordons.of("GPU-2", None, before).is_none());
        assert!(cordons.of("GPU-1", None, after).is_none() && cordons.of("MIG-7", Some("GPU-1"), after).is_some());
        assert_eq!(cordons.print().unwrap(), text.replace("{}", r#"{"reason":"","by":""}"#));
    }

    #[test]
    fn changes_keep_the_others_and_what_has_ended_is_dropped() {
        let now = at("2026-11-23T10:00:00Z");
        let mut cordons = Cordons::parse(r#"{"GPU-1":{"until":"2026-11-23T09:00:00Z"},"GPU-2":{"by":"bob"}}"#).unwrap();
        let id = |text| DeviceId::parse(text).unwrap();
        let mine = Cordon { reason: "mine".into(), until: None, by: "ada".into() };
        assert!(cordons.prune(now) && !cordons.prune(now));
        cordons.set(id("GPU-3"), mine.clone());
        assert!(cordons.of("GPU-2", None, now).is_some() && !cordons.print().unwrap().contains("GPU-1"));
        assert_eq!(cordons.lift(&id("GPU-3")), Some(mine));
        assert_eq!(cordons.lift(&id("GPU-3")), None);
        assert!(cordons.lift(&id("GPU-2")).is_some() && cordons.print().is_none());
    }

    #[test]
    fn what_cannot_be_read_covers_every_device_and_says_why() {
        for text in ["GPU-1", "[]", r#"{"a b":{}}"#, r#"{"GPU-1":{"until":"tomorrow"}}"#, r#"{"GPU-1":"fan"}"#] {
            let mut device = Device::new("n", Default::default());
            device.metadata.annotations = Some([(key::CORDONED.to_owned(), text.to_owned())].into());
            let cordons = Cordons::of_object(&device);
            let why = cordons.of("GPU-9", None, Timestamp::UNIX_EPOCH).unwrap().words();
            assert!(why.contains(key::CORDONED) && cordons.unreadable().is_some(), "{text}: {why}");
            assert!(Cordons::parse(text).is_err());
        }
        assert_eq!(Cordons::of_object(&Device::new("n", Default::default())), Cordons::default());
    }
}

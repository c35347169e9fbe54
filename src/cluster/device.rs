//! Device objects at the border: a lenient wire type, read device by device, so that one bad entry costs no other one.

use kube::Resource;
use kube::api::ObjectMeta;
use serde::Deserialize;
use serde_json::Value;

use baton_contract::inventory::{Device, DeviceInfo, DeviceSpec, DeviceStatus};

/// A Device object as it is on the wire, whatever it says: the CRD lets through what no reader can use, and other systems list
/// devices of their own.
#[derive(Debug, Clone, Deserialize, Resource)]
#[resource(inherit = Device)]
pub struct RawDevice {
    #[serde(deserialize_with = "super::light_meta::read")]
    metadata: ObjectMeta,
    #[serde(default)]
    spec: Value,
    #[serde(default)]
    status: Value,
}

impl RawDevice {
    /// The same without conditions of healthy devices: a scheduler has no use for them.
    pub fn read_for_scheduler(self) -> (Device, Vec<String>) {
        let (mut device, skipped) = self.read();
        device.spec.devices.iter_mut().filter(|info| info.health).for_each(|info| info.conditions.clear());
        (device, skipped)
    }

    /// The object with every entry that can be read, and what is wrong with the others.
    pub fn read(self) -> (Device, Vec<String>) {
        let Self { metadata, mut spec, status } = self;
        let mut skipped = Vec::new();
        let listed = match spec["devices"].take() {
            Value::Array(listed) => listed,
            Value::Null => Vec::new(),
            _ => {
                skipped.push("spec.devices is not a list".to_owned());
                Vec::new()
            }
        };
        let mut devices: Vec<DeviceInfo> = Vec::with_capacity(listed.len());
        for (at, mut entry) in listed.into_iter().enumerate() {
            // Words that cannot be read cost no device.
            let conditions = entry.as_object_mut().and_then(|fields| fields.remove("conditions"));
            match serde_json::from_value::<DeviceInfo>(entry) {
                Ok(device) => {
                    let conditions = conditions.and_then(|of| serde_json::from_value(of).ok()).unwrap_or_default();
                    devices.push(DeviceInfo { conditions, ..device });
                }
                Err(error) => skipped.push(format!("spec.devices[{at}]: {error}")),
            }
        }
        let status: Option<DeviceStatus> = match status {
            Value::Null => None,
            status => match serde_json::from_value(status) {
                Ok(status) => Some(status),
                Err(error) => {
                    skipped.push(format!("status: {error}"));
                    None
                }
            },
        };
        (Device { metadata, spec: DeviceSpec { devices }, status }, skipped)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn read(object: Value) -> (Device, Vec<String>) {
        serde_json::from_value::<RawDevice>(object).unwrap().read_for_scheduler()
    }

    #[test]
    fn the_golden_object_is_read_whole_but_for_conditions() {
        let golden: Value = serde_json::from_str(include_str!("../../tests/golden/device.json")).unwrap();
        let (found, skipped) = read(golden.clone());
        let mut wanted: Device = serde_json::from_value(golden).unwrap();
        wanted.spec.devices.iter_mut().for_each(|device| device.conditions.clear());
        assert_eq!((found.spec, skipped), (wanted.spec, Vec::<String>::new()));
    }

    #[test]
    fn a_bad_entry_costs_no_other_one() {
        let good = json!({"type": "gpu", "id": "GPU-1", "minor": 0, "health": false});
        let (found, skipped) = read(json!({"metadata": {"name": "n"}, "spec": {"devices": [
            {"type": "fpga", "id": "", "minor": 0, "health": true},
            good,
            {"type": "gpu", "id": "GPU-2", "health": true, "resources": {"koordinator.sh/gpu-core": "n/a"}},
            "odd",
        ]}, "status": {"allocations": 7}}));
        assert_eq!(found.spec.devices.len(), 1);
        assert!(!found.spec.devices[0].health && found.status.is_none());
        assert_eq!(skipped.len(), 4, "{skipped:?}");
        assert!(skipped[1].starts_with("spec.devices[2]"), "{skipped:?}");
    }

    #[test]
    fn why_a_device_is_unhealthy_is_read_and_words_that_cannot_be_read_cost_none() {
        let condition = json!({"type": "Healthy", "status": "False", "reason": "Xid", "message": "XID 79",
            "lastTransitionTime": "2026-11-21T02:36:00Z"});
        for (conditions, expected) in [(json!([condition]), 1), (json!([{"type": 7}]), 0), (json!("odd"), 0)] {
            let gpu = json!({"type": "gpu", "id": "GPU-1", "minor": 0, "health": false, "conditions": conditions});
            let (found, skipped) = read(json!({"metadata": {"name": "n"}, "spec": {"devices": [gpu]}}));
            assert_eq!((found.spec.devices[0].conditions.len(), skipped.len()), (expected, 0), "{conditions}");
        }
    }

    #[test]
    fn an_object_without_anything_lists_nothing() {
        for object in [json!({"metadata": {}}), json!({"metadata": {}, "spec": {"devices": null}})] {
            let (found, skipped) = read(object);
            assert!(found.spec.devices.is_empty() && skipped.is_empty());
        }
    }
}

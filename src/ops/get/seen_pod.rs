//! A pod as `baton get` lists it: the hand-off's record, and what else says why it is where it is.

use k8s_openapi::api::core::v1::Pod;
use kube::Resource;
use kube::api::ObjectMeta;
use serde::{Deserialize, Deserializer, de::Error};
use serde_json::Value;

use crate::cluster::pod::LightPod;
use crate::contract::hint::parse_hints;
use crate::contract::key;

/// A listed pod.
#[derive(Debug, Clone, Resource)]
#[resource(inherit = Pod)]
pub struct SeenPod {
    /// Metadata.
    pub metadata: ObjectMeta,
    /// What daemons read of a pod.
    pub light: LightPod,
    /// What only people read.
    pub notes: Notes,
}

/// Why a pod is where it is, in others' words.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Notes {
    /// Message of condition `PodScheduled` while it is False.
    pub unscheduled: Option<String>,
    /// Somebody has written condition `PodScheduled`.
    pub looked_at: bool,
    /// `status.reason` and `status.message` of a pod that failed.
    pub failed: Option<String>,
    /// Why `device-allocate-hint` cannot be read.
    pub hint: Option<String>,
}

impl Notes {
    fn of(pod: &Value) -> Self {
        let status = &pod["status"];
        let text = |value: &Value| value.as_str().filter(|text| !text.is_empty()).map(str::to_owned);
        let conditions = status["conditions"].as_array().into_iter().flatten();
        let scheduled = conditions.into_iter().find(|condition| condition["type"] == "PodScheduled");
        let refused = scheduled.filter(|condition| condition["status"] == "False");
        let words = |of: &Value| {
            let parts = [text(&of["reason"]), text(&of["message"])];
            let parts: Vec<String> = parts.into_iter().flatten().collect();
            (!parts.is_empty()).then(|| parts.join(": "))
        };
        let hint = pod["metadata"]["annotations"][key::DEVICE_ALLOCATE_HINT].as_str();
        Self {
            unscheduled: refused.and_then(|of| text(&of["message"]).or_else(|| text(&of["reason"]))),
            looked_at: scheduled.is_some(),
            failed: words(status).filter(|_| status["phase"] == "Failed"),
            hint: hint.and_then(|hint| parse_hints(hint).err()).map(|bad| bad.to_string()),
        }
    }
}

impl<'de> Deserialize<'de> for SeenPod {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let pod = Value::deserialize(deserializer)?;
        let notes = Notes::of(&pod);
        let light: LightPod = serde_json::from_value(pod).map_err(Error::custom)?;
        Ok(Self { metadata: light.metadata.clone(), light, notes })
    }
}

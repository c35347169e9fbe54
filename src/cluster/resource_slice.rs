//! ResourceSlices, by which drivers of dynamic resource allocation offer devices: the light wire type.

use k8s_openapi::api::resource::v1::ResourceSlice;
use kube::Resource;
use kube::api::ObjectMeta;
use serde::Deserialize;
use serde::de::IgnoredAny;

use super::light_meta::light;
use baton_decide::world::SliceFacts;

/// A ResourceSlice with the fields that say whose devices it offers. Watch and read with it, never write.
#[derive(Debug, Clone, Deserialize, Resource)]
#[resource(inherit = ResourceSlice)]
pub struct LightSlice {
    /// Metadata without `managedFields`.
    #[serde(deserialize_with = "super::light_meta::read")]
    pub metadata: ObjectMeta,
    #[serde(default)]
    spec: LightSliceSpec,
}

light! {
    struct LightSliceSpec {
        driver: Box<str>,
        node_name: Option<Box<str>>,
        devices: Vec<IgnoredAny>,
    }
}

impl LightSlice {
    /// Node and driver; `None` where it offers no device of one node.
    pub fn facts(&self) -> Option<SliceFacts> {
        let node = self.spec.node_name.clone().filter(|node| !node.is_empty() && !self.spec.devices.is_empty())?;
        Some(SliceFacts { node, driver: self.spec.driver.clone() })
    }
}

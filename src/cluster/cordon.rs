//! Writes which devices of a node people have taken out of use, by compare-and-swap on the Device object's annotation, and asks the
//! API server to evict pods.

use super::device::RawDevice;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, DeleteParams, EvictParams, Patch, PatchParams, Preconditions};
use kube::{Client, ResourceExt};
use serde_json::json;

use super::client::status_code;
use baton_contract::inventory::Device;
use baton_contract::{Cordons, PodRef, key};

/// Outcome of a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CordonWrite {
    /// The annotation is now as wished.
    Done,
    /// It is not what was judged any more: read and decide again.
    Contended,
}

/// Replaces the cordons of `seen`, as it was read, by `cordons`.
pub async fn write_cordons(
    devices: &Api<RawDevice>,
    seen: &Device,
    cordons: &Cordons,
) -> Result<CordonWrite, kube::Error> {
    let (name, text) = (seen.name_any(), cordons.print());
    let old = seen.annotations().get(key::CORDONED);
    if old == text.as_ref() {
        return Ok(CordonWrite::Done);
    }
    let path = format!("/metadata/annotations/{}", key::CORDONED.replace('/', "~1"));
    let bare = seen.annotations().is_empty();
    let operations = match (&text, old) {
        // JSON Patch cannot add below a map that is not there.
        (Some(text), None) if bare => json!([
            {"op": "test", "path": "/metadata/resourceVersion", "value": seen.resource_version()},
            {"op": "add", "path": "/metadata/annotations", "value": {key::CORDONED: text}},
        ]),
        (Some(text), _) => {
            json!([{"op": "test", "path": path, "value": old}, {"op": "add", "path": path, "value": text}])
        }
        (None, _) => json!([{"op": "test", "path": path, "value": old}, {"op": "remove", "path": path}]),
    };
    let patch: json_patch::Patch = serde_json::from_value(operations).map_err(kube::Error::SerdeError)?;
    let written = devices.patch_metadata(&name, &PatchParams::default(), &Patch::Json::<()>(patch)).await;
    let Err(error) = written else { return Ok(CordonWrite::Done) };
    if !matches!(status_code(&error), Some(409 | 422)) {
        return Err(error);
    }
    // A test that fails is 422, as are other refusals: what stands there now says which it was.
    let now = devices.get_metadata(&name).await?;
    let same =
        now.annotations().get(key::CORDONED) == old && (!bare || now.resource_version() == seen.resource_version());
    if same { Err(error) } else { Ok(CordonWrite::Contended) }
}

/// The answer to an eviction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Eviction {
    /// The pod is being deleted, or is gone.
    Done,
    /// Not now, and why: a PodDisruptionBudget.
    Later(String),
}

/// Asks for the eviction of the pod of this uid, which a PodDisruptionBudget may put off.
pub async fn evict(client: &Client, pod: &PodRef) -> Result<Eviction, kube::Error> {
    let pods: Api<Pod> = Api::namespaced(client.clone(), &pod.key.namespace);
    let preconditions = Preconditions { uid: Some(pod.uid.to_string()), resource_version: None };
    let delete_options = Some(DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() });
    match pods.evict(&pod.key.name, &EvictParams { delete_options, ..EvictParams::default() }).await {
        Ok(_) => Ok(Eviction::Done),
        Err(kube::Error::Api(status)) if status.code == 429 => {
            let causes = status.details.iter().flat_map(|details| &details.causes).map(|cause| cause.message.clone());
            Ok(Eviction::Later([status.message.clone()].into_iter().chain(causes).collect::<Vec<_>>().join(" ")))
        }
        // Gone, or another pod of this name.
        Err(error) if matches!(status_code(&error), Some(404 | 409)) => Ok(Eviction::Done),
        Err(error) => Err(error),
    }
}

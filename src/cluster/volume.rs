//! Writes what claims need before their pod is bound. One request each; a changed object refuses it.

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kube::Client;
use kube::api::{Api, Patch, PatchParams};
use serde_json::json;

use super::feed_volume::SELECTED_NODE;
use crate::contract::PodKey;

/// Patches claims and volumes.
#[derive(Clone)]
pub struct Volumes(Client);

impl Volumes {
    /// Volumes by this client.
    pub fn new(client: Client) -> Self {
        Self(client)
    }

    /// Tells the provisioner for which node the claim's volume is made; 409 when the claim is not at `version` any more.
    pub async fn select_node(&self, claim: &PodKey, version: &str, node: &str) -> Result<(), kube::Error> {
        let patch = json!({"metadata": {"resourceVersion": version, "annotations": {SELECTED_NODE: node}}});
        let claims: Api<PersistentVolumeClaim> = Api::namespaced(self.0.clone(), &claim.namespace);
        claims.patch_metadata(&claim.name, &PatchParams::default(), &Patch::Merge(patch)).await.map(drop)
    }

    /// Promises the volume to the claim of this uid, as kube-scheduler does; 409 when the volume is not at `version` any more.
    pub async fn bind(&self, volume: &str, version: &str, claim: &PodKey, uid: &str) -> Result<(), kube::Error> {
        let reference = json!({
            "apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": claim.namespace, "name": claim.name, "uid": uid,
        });
        let patch = json!({
            "metadata": {"resourceVersion": version, "annotations": {"pv.kubernetes.io/bound-by-controller": "yes"}},
            "spec": {"claimRef": reference},
        });
        let volumes: Api<PersistentVolume> = Api::all(self.0.clone());
        volumes.patch_metadata(volume, &PatchParams::default(), &Patch::Merge(patch)).await.map(drop)
    }
}

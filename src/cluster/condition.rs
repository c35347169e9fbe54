//! Writes the condition `PodScheduled=False`.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::Client;
use kube::api::{Api, Patch, PatchParams};
use serde_json::json;

use crate::contract::PodRef;

/// Patches pod conditions.
#[derive(Clone)]
pub struct Conditions(Client);

impl Conditions {
    /// Conditions by this client.
    pub fn new(client: Client) -> Self {
        Self(client)
    }

    /// Writes one annotation of the pod of this uid, by way of its status: the right to write specs is not needed.
    pub async fn annotate(&self, pod: &PodRef, key: &str, value: &str) -> Result<(), kube::Error> {
        let patch = json!({"metadata": {"uid": pod.uid.as_str(), "annotations": {key: value}}});
        let pods: Api<Pod> = Api::namespaced(self.0.clone(), &pod.key.namespace);
        pods.patch_status(&pod.key.name, &PatchParams::default(), &Patch::Merge(patch)).await.map(drop)
    }

    /// Says why the pod of this uid has no node. `since` is given when the condition has not been False before.
    pub async fn unscheduled(
        &self,
        pod: &PodRef,
        reason: &str,
        message: &str,
        since: Option<Timestamp>,
    ) -> Result<(), kube::Error> {
        let mut condition = json!({"type": "PodScheduled", "status": "False", "reason": reason, "message": message});
        if let Some(since) = since {
            condition["lastTransitionTime"] = json!(format!("{since:.0}"));
        }
        let patch = json!({"metadata": {"uid": pod.uid.as_str()}, "status": {"conditions": [condition]}});
        let pods: Api<Pod> = Api::namespaced(self.0.clone(), &pod.key.namespace);
        pods.patch_status(&pod.key.name, &PatchParams::default(), &Patch::Strategic(patch)).await.map(drop)
    }
}

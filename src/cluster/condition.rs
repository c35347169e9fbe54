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

//! Writes PodGroups: their status with a precondition, and objects for gangs that have none.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

use kube::Client;
use kube::api::{Api, Patch, PatchParams, PostParams};
use kube::core::Request;
use serde_json::{Value, json};

use super::client::status_code;
use super::feed_pod_group::RawPodGroup;
use crate::contract::gang::{GangId, PodGroupApi, PodGroupStatus, key};
use crate::decide::scheduler::PodGroupWrite;
use crate::decide::world::gangs::Owner;

/// Fields of the status that a merge patch must name to take them away.
const FIELDS: [&str; 4] = ["phase", "occupiedBy", "scheduleStartTime", "conditions"];

/// Writes PodGroups.
#[derive(Clone)]
pub struct PodGroups {
    client: Client,
    plain: Arc<Mutex<Plain>>,
}

/// APIs whose CRD declares no status subresource, as Koordinator's own does: there the status is a field of the object like
/// any other, and its own path answers 404.
#[derive(Default)]
struct Plain {
    known: BTreeSet<PodGroupApi>,
    warned: BTreeSet<PodGroupApi>,
}

impl PodGroups {
    /// By this client.
    pub fn new(client: Client) -> Self {
        Self { client, plain: Arc::default() }
    }

    fn plain<T>(&self, look: impl FnOnce(&mut Plain) -> T) -> T {
        look(&mut self.plain.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Writes a status if the object is still the one that was read; the status as it is stored then.
    pub async fn status(&self, write: &PodGroupWrite) -> Result<PodGroupStatus, kube::Error> {
        let mut status = serde_json::to_value(&write.status).map_err(kube::Error::SerdeError)?;
        for field in FIELDS {
            if status[field].is_null() {
                status[field] = Value::Null;
            }
        }
        let meta = json!({"uid": write.uid, "resourceVersion": write.version});
        let patch = json!({
            "apiVersion": write.api.api_version(), "kind": "PodGroup", "metadata": meta, "status": status,
        });
        let groups: Api<RawPodGroup> = Api::namespaced_with(self.client.clone(), write.gang.namespace(), &write.api);
        let (name, params, patch) = (write.gang.name(), PatchParams::default(), Patch::Merge(patch));
        let read = |stored: RawPodGroup| stored.facts(write.api).map(|facts| facts.status).unwrap_or_default();
        if self.plain(|plain| plain.known.contains(&write.api)) {
            let stored = read(groups.patch(name, &params, &patch).await?);
            if stored.phase == write.status.phase {
                return Ok(stored);
            }
            // The CRD has got the subresource since: the object's own path leaves the status as it is.
            self.plain(|plain| plain.known.remove(&write.api));
        }
        match groups.patch_status(name, &params, &patch).await {
            Err(error) if status_code(&error) == Some(404) => {
                // Either there is no such object, and this is answered with 404 too, or the path is not served.
                let stored = read(groups.patch(name, &params, &patch).await?);
                let first = self.plain(|plain| {
                    plain.known.insert(write.api);
                    plain.warned.insert(write.api)
                });
                if first {
                    tracing::warn!(
                        api = write.api.api_version(),
                        "the CRD of PodGroups has no status subresource; the status is written with the object"
                    );
                }
                Ok(stored)
            }
            other => other.map(read),
        }
    }

    /// Makes the PodGroup of a gang; one that exists is left as it is.
    pub async fn make(&self, gang: &GangId, min: u32, owners: &[Owner]) -> Result<(), kube::Error> {
        let api = PodGroupApi::Sigs;
        let owners: Vec<Value> = owners
            .iter()
            .map(|owner| {
                json!({"apiVersion": owner.api_version, "kind": owner.kind, "name": owner.name, "uid": owner.uid})
            })
            .collect();
        let object = json!({
            "apiVersion": api.api_version(),
            "kind": "PodGroup",
            "metadata": {
                "name": gang.name(), "namespace": gang.namespace(),
                "labels": {key::MANAGED_BY: key::MANAGED_BY_BATON}, "ownerReferences": owners,
            },
            "spec": {"minMember": min},
        });
        let path = format!("/apis/{}/namespaces/{}/podgroups", api.api_version(), gang.namespace());
        let bytes = serde_json::to_vec(&object).map_err(kube::Error::SerdeError)?;
        let mut request =
            Request::new(path).create(&PostParams::default(), bytes).map_err(kube::Error::BuildRequest)?;
        request.extensions_mut().insert("create");
        match self.client.request::<Value>(request).await {
            Err(error) if status_code(&error) == Some(409) => Ok(()),
            other => other.map(drop),
        }
    }
}

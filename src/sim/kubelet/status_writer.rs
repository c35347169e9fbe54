//! Writes pod statuses to the API server, newest first forgotten never: one queue, off the pods' path.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Pod, PodStatus};
use kube::api::{Api, DeleteParams, Patch, PatchParams, Preconditions};
use serde_json::{Map, Value, json};
use tokio::sync::Notify;

use super::locked;
use super::options::Periods;
use super::pod::{PodHandle, is_terminal, phase};

/// How long one write may take before it is tried again later.
const WRITE_TIMEOUT: Duration = Duration::from_secs(10);

/// Statuses to write and pods to delete.
pub(super) struct StatusWriter {
    client: kube::Client,
    entries: Mutex<BTreeMap<String, StatusEntry>>,
    changed: Notify,
}

#[derive(Clone)]
struct StatusEntry {
    namespace: String,
    name: String,
    status: PodStatus,
    written: Map<String, Value>,
    /// The pod is over and being deleted: after its status is written, it is removed from the API server.
    delete: bool,
    dirty: bool,
}

impl StatusWriter {
    pub fn new(client: kube::Client) -> Self {
        Self { client, entries: Mutex::default(), changed: Notify::new() }
    }

    /// The last status reported, else the one in the API.
    pub fn current(&self, pod: &PodHandle) -> Option<PodStatus> {
        let reported = locked(&self.entries).get(&pod.uid).map(|entry| entry.status.clone());
        reported.or_else(|| pod.pod().status.clone())
    }

    /// Reports a status.
    pub fn put(&self, pod: &PodHandle, status: PodStatus) {
        let mut entries = locked(&self.entries);
        let entry = entries.entry(pod.uid.clone()).or_insert_with(|| StatusEntry::of(pod));
        if entry.status != status || entry.written.is_empty() {
            entry.status = status;
            entry.dirty = true;
            self.changed.notify_one();
        }
    }

    /// Whether another client has written a terminal phase over the reported one. The next write takes it back.
    pub fn is_overwritten(&self, pod: &PodHandle) -> bool {
        let object = pod.pod();
        let mut entries = locked(&self.entries);
        let Some(entry) = entries.get_mut(&pod.uid) else { return false };
        let foreign = is_terminal(phase(&object)) && !is_terminal(entry.status.phase.as_deref());
        if foreign {
            entry.written = object.status.as_ref().map(fields).unwrap_or_default();
        }
        foreign
    }

    /// Writes the reported status again where another client has overwritten it.
    pub fn write_again(&self, pod: &PodHandle) {
        if self.is_overwritten(pod)
            && let Some(entry) = locked(&self.entries).get_mut(&pod.uid)
        {
            entry.dirty = true;
            self.changed.notify_one();
        }
    }

    /// The pod is over: once its deletion was asked for, it is removed.
    pub fn delete(&self, pod: &PodHandle) {
        let mut entries = locked(&self.entries);
        let entry = entries.entry(pod.uid.clone()).or_insert_with(|| StatusEntry::of(pod));
        entry.delete = true;
        self.changed.notify_one();
    }

    /// The pod has left the API server.
    pub fn forget(&self, uid: &str) {
        locked(&self.entries).remove(uid);
    }

    /// Writes until the kubelet stops.
    pub async fn run(&self, periods: Periods) {
        loop {
            let work: Vec<String> = {
                let entries = locked(&self.entries);
                entries.iter().filter(|(_, entry)| entry.dirty || entry.delete).map(|(uid, _)| uid.clone()).collect()
            };
            let mut failed = false;
            for uid in work {
                let write = tokio::time::timeout(WRITE_TIMEOUT, self.write(&uid));
                match write.await {
                    Ok(Ok(())) => {}
                    Ok(Err(error)) => {
                        tracing::warn!(%uid, %error, "cannot write a pod's status, will retry");
                        failed = true;
                    }
                    Err(_) => failed = true,
                }
            }
            if failed {
                let pause = periods.scaled(periods.sync_backoff).max(Duration::from_millis(50));
                let _ = tokio::time::timeout(pause, self.changed.notified()).await;
            } else {
                self.changed.notified().await;
            }
        }
    }

    async fn write(&self, uid: &str) -> Result<(), kube::Error> {
        let Some(entry) = locked(&self.entries).get(uid).cloned() else { return Ok(()) };
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), &entry.namespace);
        if entry.dirty {
            let new = fields(&entry.status);
            let patch = json!({"metadata": {"uid": uid}, "status": difference(&entry.written, &new)});
            let written = pods.patch_status(&entry.name, &PatchParams::default(), &Patch::Strategic(patch)).await;
            if let Err(error) = written
                && !is_gone(&error)
            {
                return Err(error);
            }
            if let Some(now) = locked(&self.entries).get_mut(uid) {
                now.dirty = now.status != entry.status;
                now.written = new;
            }
        }
        if entry.delete {
            let preconditions = Preconditions { uid: Some(uid.to_owned()), resource_version: None };
            let params = DeleteParams {
                grace_period_seconds: Some(0),
                preconditions: Some(preconditions),
                ..DeleteParams::default()
            };
            match pods.delete(&entry.name, &params).await {
                Err(error) if !is_gone(&error) => return Err(error),
                _ => self.forget(uid),
            }
        }
        Ok(())
    }
}

impl StatusEntry {
    fn of(pod: &PodHandle) -> Self {
        let status = pod.pod().status.clone().unwrap_or_default();
        Self {
            namespace: pod.namespace.clone(),
            name: pod.name.clone(),
            written: fields(&status),
            status,
            delete: false,
            dirty: false,
        }
    }
}

/// The pod is not there any more, or another one has its name. Any other conflict is tried again.
fn is_gone(error: &kube::Error) -> bool {
    let kube::Error::Api(status) = error else { return false };
    let of_uid = status.message.to_lowercase().contains("uid");
    status.code == 404 || matches!(status.code, 409 | 422) && of_uid
}

fn fields(status: &PodStatus) -> Map<String, Value> {
    match serde_json::to_value(status) {
        Ok(Value::Object(fields)) => fields,
        _ => Map::new(),
    }
}

/// What changed at the top level; a field that went away becomes `null`, also of a condition: by its type it is merged with the one before.
fn difference(old: &Map<String, Value>, new: &Map<String, Value>) -> Map<String, Value> {
    // What others own in a pod's status stays as it is.
    const FOREIGN: [&str; 3] = ["nominatedNodeName", "resourceClaimStatuses", "extendedResourceClaimStatus"];
    let mut patch: Map<String, Value> =
        new.iter().filter(|(key, value)| old.get(*key) != Some(value)).map(|(k, v)| (k.clone(), v.clone())).collect();
    for key in old.keys().filter(|key| !new.contains_key(*key) && !FOREIGN.contains(&key.as_str())) {
        patch.insert(key.clone(), Value::Null);
    }
    for condition in patch.get_mut("conditions").and_then(Value::as_array_mut).into_iter().flatten() {
        for key in ["reason", "message"] {
            if condition.get(key).is_none() {
                condition[key] = Value::Null;
            }
        }
    }
    patch
}

//! Writes of the scheduler to pods: Bindings, conditions, nominations, evictions; and the live read of one pod. One request
//! each: the caller decides whether it is tried again.

use std::time::Duration;

use jiff::Timestamp;
use kube::Client;
use kube::api::{Api, DeleteParams, Patch, PatchParams, Preconditions};
use serde::Serialize;
use serde::de::IgnoredAny;
use serde_json::{Value, json};

use super::client::retry_after;
use super::pod::LightPod;
use super::selected_labels::SelectedLabels;
use baton_contract::{ConditionReason, PodKey, PodRef, key};
use baton_decide::scheduler::BindResult;
use baton_decide::world::{PodFacts, without_devices};
use baton_runtime::clock;

/// How long an eviction waits until its reason is written: a small part of what it may take in all.
const EVICTION_REASON: Duration = Duration::from_secs(2);

/// `v1/Binding` of borrowed parts: the library's type takes a copy of every text.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Binding<'a, A> {
    api_version: &'static str,
    kind: &'static str,
    metadata: BindingMeta<'a, A>,
    target: EventTarget<'a>,
}

#[derive(Serialize)]
struct BindingMeta<'a, A> {
    name: &'a str,
    namespace: &'a str,
    uid: &'a str,
    annotations: &'a A,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct EventTarget<'a> {
    api_version: &'static str,
    kind: &'static str,
    name: &'a str,
}

/// Writes pods.
#[derive(Clone)]
pub struct PodWriter {
    client: Client,
    labels: SelectedLabels,
}

impl PodWriter {
    /// The client sends each request once; how long an answer is waited for is its caller's choice. `labels` says which labels of a pod
    /// that is read are needed.
    pub fn new(client: Client, labels: SelectedLabels) -> Self {
        Self { client, labels }
    }

    /// `POST pods/binding` with the pod's uid as precondition: assignment and node in one atomic write.
    /// `annotations` are written as an object of texts.
    pub async fn bind(&self, pod: &PodRef, node: &str, annotations: &(impl Serialize + Sync)) -> BindResult {
        let PodKey { namespace, name } = &pod.key;
        let binding = Binding {
            api_version: "v1",
            kind: "Binding",
            metadata: BindingMeta { name, namespace, uid: pod.uid.as_str(), annotations },
            target: EventTarget { api_version: "v1", kind: "Node", name: node },
        };
        let body = match serde_json::to_vec(&binding) {
            Ok(body) => body,
            Err(error) => return BindResult::Refused(format!("the Binding cannot be written: {error}")),
        };
        let uri = format!("/api/v1/namespaces/{namespace}/pods/{name}/binding");
        let request =
            axum::http::Request::post(uri).header(axum::http::header::CONTENT_TYPE, "application/json").body(body);
        let request = match request {
            Ok(request) => request,
            Err(error) => return BindResult::Refused(format!("the Binding cannot be sent: {error}")),
        };
        match self.client.request::<IgnoredAny>(request).await {
            Ok(_) => BindResult::Done,
            Err(error) => refusal(&error),
        }
    }

    /// The pod as the API server has it now; `None` when there is none of that name.
    pub async fn read(&self, pod: &PodKey) -> Result<Option<PodFacts>, kube::Error> {
        Ok(self.pods(pod).get_opt(&pod.name).await?.map(|pod| self.labels.facts(pod)))
    }

    /// Says in the pod's conditions that it is preempted, and deletes it with its own grace period.
    pub async fn evict(&self, pod: &PodRef, message: &str) -> Result<(), kube::Error> {
        let condition = json!({
            "type": "DisruptionTarget", "status": "True", "reason": ConditionReason::PreemptionByScheduler.word(), "message": message,
            "lastTransitionTime": format!("{:.0}", clock::wall()),
        });
        let patch = json!({"metadata": {"uid": pod.uid.as_str()}, "status": {"conditions": [condition]}});
        let pods = self.pods(&pod.key);
        // The condition is for people and controllers only: the eviction does not depend on it and waits for a short time.
        let (params, patch) = (PatchParams::default(), Patch::Strategic(patch));
        let written = pods.patch_status(&pod.key.name, &params, &patch);
        tokio::time::timeout(EVICTION_REASON, written).await.ok();
        let uid = Some(pod.uid.to_string());
        let preconditions = Some(Preconditions { uid, resource_version: None });
        pods.delete(&pod.key.name, &DeleteParams { preconditions, ..DeleteParams::default() }).await.map(drop)
    }

    /// Writes `status.nominatedNodeName`.
    pub async fn nominate(&self, pod: &PodRef, node: Option<&str>) -> Result<(), kube::Error> {
        let patch = json!({"metadata": {"uid": pod.uid.as_str()}, "status": {"nominatedNodeName": node}});
        self.patch_status(pod, Patch::Strategic(patch)).await
    }

    /// Writes one annotation of the pod of this uid through its status: the right to write specs is not needed.
    pub async fn annotate(&self, pod: &PodRef, key: &str, value: &str) -> Result<(), kube::Error> {
        let patch = json!({"metadata": {"uid": pod.uid.as_str(), "annotations": {key: value}}});
        self.patch_status(pod, Patch::Merge(patch)).await
    }

    /// Writes the condition `PodScheduled=False`, which says why the pod of this uid has no node. `since` is given when the
    /// condition has not been False before.
    pub async fn unscheduled(
        &self,
        pod: &PodRef,
        reason: ConditionReason,
        message: &str,
        since: Option<Timestamp>,
    ) -> Result<(), kube::Error> {
        let mut condition =
            json!({"type": "PodScheduled", "status": "False", "reason": reason.word(), "message": message});
        if let Some(since) = since {
            condition["lastTransitionTime"] = json!(format!("{since:.0}"));
        }
        let patch = json!({"metadata": {"uid": pod.uid.as_str()}, "status": {"conditions": [condition]}});
        self.patch_status(pod, Patch::Strategic(patch)).await
    }

    /// Writes the condition `baton.io/DevicesServed`: whether the pod of this uid runs with its devices.
    pub async fn served(&self, pod: &PodRef, node: &str, served: bool) -> Result<(), kube::Error> {
        let (status, reason, message) = if served {
            ("True", ConditionReason::Served, format!("the node daemon of {node} has served its devices"))
        } else {
            let message = format!("the pod {}", without_devices(node));
            ("False", ConditionReason::AdmittedWithoutDevices, message)
        };
        let condition = json!({
            "type": key::DEVICES_SERVED, "status": status, "reason": reason.word(), "message": message,
            "lastTransitionTime": format!("{:.0}", clock::wall()),
        });
        let patch = json!({"metadata": {"uid": pod.uid.as_str()}, "status": {"conditions": [condition]}});
        self.patch_status(pod, Patch::Strategic(patch)).await
    }

    fn pods(&self, pod: &PodKey) -> Api<LightPod> {
        Api::namespaced(self.client.clone(), &pod.namespace)
    }

    async fn patch_status(&self, pod: &PodRef, patch: Patch<Value>) -> Result<(), kube::Error> {
        self.pods(&pod.key).patch_status(&pod.key.name, &PatchParams::default(), &patch).await.map(drop)
    }
}

/// The result of a bind that the API server refused.
fn refusal(error: &kube::Error) -> BindResult {
    let kube::Error::Api(status) = error else { return BindResult::Unknown(error.to_string(), None) };
    let text = status.message.clone();
    match status.code {
        404 => BindResult::NotFound,
        409 => BindResult::Conflict(text),
        400 | 403 | 405 | 413 | 415 | 422 => BindResult::Refused(text),
        _ => BindResult::Unknown(text, retry_after(error)),
    }
}

//! Posts Bindings, reads single pods, fences holders. One request each: who may try again is decided elsewhere.

use std::time::Duration;

use kube::Client;
use kube::api::{Api, DeleteParams, Patch, PatchParams, Preconditions};
use serde::Serialize;
use serde::de::IgnoredAny;
use serde_json::json;

use super::client::retry_after;
use super::feed_pod::FeedPod;
use crate::contract::{PodKey, PodRef};
use crate::decide::scheduler::BindResult;
use crate::decide::world::PodFacts;
use crate::runtime::clock;

/// How long an eviction waits until its reason is written: a small part of what it may take in all.
const TELLING: Duration = Duration::from_secs(2);

/// `v1/Binding`, of what is at hand: the library's type wants a copy of every text.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Binding<'a, A> {
    api_version: &'static str,
    kind: &'static str,
    metadata: BindingMeta<'a, A>,
    target: Target<'a>,
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
struct Target<'a> {
    api_version: &'static str,
    kind: &'static str,
    name: &'a str,
}

/// Writes pods into nodes.
#[derive(Clone)]
pub struct Binder {
    client: Client,
    timeout: Duration,
}

impl Binder {
    /// One request takes at most `timeout`. The client must not retry by itself.
    pub fn new(client: Client, timeout: Duration) -> Self {
        Self { client, timeout }
    }

    /// `POST pods/binding` with the pod's uid as precondition: assignment and node in one atomic write.
    /// `annotations` are written as an object of texts.
    pub async fn bind(&self, pod: &PodRef, node: &str, annotations: &(impl Serialize + Sync)) -> BindResult {
        let PodKey { namespace, name } = &pod.key;
        let binding = Binding {
            api_version: "v1",
            kind: "Binding",
            metadata: BindingMeta { name, namespace, uid: pod.uid.as_str(), annotations },
            target: Target { api_version: "v1", kind: "Node", name: node },
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
        match tokio::time::timeout(self.timeout, self.client.request::<IgnoredAny>(request)).await {
            Ok(Ok(_)) => BindResult::Done,
            Ok(Err(error)) => judge(&error),
            Err(_) => BindResult::Retry(format!("no answer within {:?}", self.timeout), None),
        }
    }

    /// The pod as the API server has it now; `None` when there is none of that name.
    pub async fn read(&self, pod: &PodKey) -> Result<Option<PodFacts>, kube::Error> {
        let pods: Api<FeedPod> = Api::namespaced(self.client.clone(), &pod.namespace);
        Ok(pods.get_opt(&pod.name).await?.map(FeedPod::facts))
    }

    /// Says in the pod's conditions that it is preempted, and deletes it with its own grace period.
    pub async fn evict(&self, pod: &PodRef, message: &str) -> Result<(), kube::Error> {
        let condition = json!({
            "type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler", "message": message,
            "lastTransitionTime": format!("{:.0}", clock::wall()),
        });
        let patch = json!({"metadata": {"uid": pod.uid.as_str()}, "status": {"conditions": [condition]}});
        let pods: Api<FeedPod> = Api::namespaced(self.client.clone(), &pod.key.namespace);
        // For people and controllers only: the eviction does not depend on it, nor waits for it for long.
        let (params, patch) = (PatchParams::default(), Patch::Strategic(patch));
        let told = pods.patch_status(&pod.key.name, &params, &patch);
        tokio::time::timeout(TELLING, told).await.ok();
        self.fence(pod).await
    }

    /// Writes `status.nominatedNodeName`.
    pub async fn nominate(&self, pod: &PodRef, node: Option<&str>) -> Result<(), kube::Error> {
        let patch = json!({"metadata": {"uid": pod.uid.as_str()}, "status": {"nominatedNodeName": node}});
        let pods: Api<FeedPod> = Api::namespaced(self.client.clone(), &pod.key.namespace);
        pods.patch_status(&pod.key.name, &PatchParams::default(), &Patch::Strategic(patch)).await.map(drop)
    }

    /// Deletes the pod of this uid.
    pub async fn fence(&self, pod: &PodRef) -> Result<(), kube::Error> {
        let pods: Api<FeedPod> = Api::namespaced(self.client.clone(), &pod.key.namespace);
        let uid = Some(pod.uid.to_string());
        let params = DeleteParams {
            preconditions: Some(Preconditions { uid, resource_version: None }),
            ..DeleteParams::default()
        };
        pods.delete(&pod.key.name, &params).await.map(drop)
    }
}

/// What a refusal means for the bind.
fn judge(error: &kube::Error) -> BindResult {
    let kube::Error::Api(status) = error else { return BindResult::Retry(error.to_string(), None) };
    let text = status.message.clone();
    match status.code {
        404 => BindResult::NotFound,
        409 => BindResult::Conflict(text),
        400 | 403 | 405 | 413 | 415 | 422 => BindResult::Refused(text),
        _ => BindResult::Retry(text, retry_after(error)),
    }
}

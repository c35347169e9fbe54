//! The pods of a scenario: created at once, deleted at once.

use std::time::Duration;

use baton::contract::key;
use futures::StreamExt as _;
use k8s_openapi::api::core::v1::Pod;
use kube::Client;
use kube::api::{Api, DeleteParams, ListParams, PostParams};
use serde_json::{Value, json};

use crate::server::NAMESPACE;
use crate::wait::until;

/// What each pod asks for.
#[derive(Clone, Copy)]
pub enum Shape {
    OneGpu,
    /// So many GPUs of one node.
    Gpus(u32),
    /// One of eight shares of a GPU.
    Share,
    /// More GPUs than any node has.
    Never,
}

impl Shape {
    fn limits(self) -> Value {
        match self {
            Self::OneGpu => json!({key::NVIDIA_GPU: "1", "cpu": "8", "memory": "64Gi"}),
            Self::Gpus(gpus) => json!({key::NVIDIA_GPU: gpus.to_string()}),
            Self::Share => json!({key::GPU: "12", "cpu": "1", "memory": "8Gi"}),
            Self::Never => json!({key::NVIDIA_GPU: "64", "cpu": "1"}),
        }
    }
}

/// Pods of one kind.
#[derive(Clone, Copy)]
pub struct Batch<'a> {
    /// What their names begin with.
    pub name: &'a str,
    pub count: usize,
    pub shape: Shape,
    /// The only node that they may go to.
    pub on: Option<&'a str>,
    /// All or none of so many at a time.
    pub gangs_of: Option<usize>,
}

/// Creates a batch of pods.
pub async fn create(client: &Client, Batch { name, count, shape, on, gangs_of }: Batch<'_>) {
    let pods: Api<Pod> = Api::namespaced(client.clone(), NAMESPACE);
    let selector = on.map_or(json!({}), |node| json!({"kubernetes.io/hostname": node}));
    let gang = |at: usize| match gangs_of {
        None => json!({}),
        Some(size) => json!({"gang.scheduling.koordinator.sh/name": format!("{name}-{:03}", at / size),
            "gang.scheduling.koordinator.sh/min-available": size.to_string()}),
    };
    let each = (0..count).map(|at| {
        let pod = json!({"metadata": {"name": format!("{name}-{at:05}"), "annotations": gang(at),
                "labels": {"app": "train", "job": "resnet"}},
            "spec": {"schedulerName": "baton-scheduler", "automountServiceAccountToken": false, "nodeSelector": selector,
                "containers": [{"name": "main", "image": "registry.invalid/train:1", "command": ["train", "--epochs=90"],
                    "resources": {"limits": shape.limits()}}]}});
        let (pods, pod) = (pods.clone(), serde_json::from_value(pod).unwrap());
        async move { pods.create(&PostParams::default(), &pod).await.map(drop).unwrap() }
    });
    futures::stream::iter(each).buffer_unordered(32).collect::<Vec<()>>().await;
}

/// Deletes all pods; returns when they are gone.
pub async fn delete(client: &Client) {
    let pods: Api<Pod> = Api::namespaced(client.clone(), NAMESPACE);
    let now = DeleteParams::default().grace_period(0);
    pods.delete_collection(&now, &ListParams::default()).await.unwrap();
    until("all pods are gone", Duration::from_secs(120), async || {
        pods.list_metadata(&ListParams::default().limit(1)).await.unwrap().items.is_empty().then_some(())
    })
    .await;
}

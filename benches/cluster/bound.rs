//! Watches pods become bound, without reading more of them than their metadata.

use std::collections::BTreeMap;
use std::time::Duration;

use baton::contract::key;
use baton::runtime::clock;
use futures::StreamExt as _;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, WatchEvent, WatchParams};
use kube::{Client, ResourceExt as _};
use tokio::sync::mpsc;

use crate::server::NAMESPACE;

/// What was seen.
pub struct Seen {
    /// From the first to the last.
    pub span: Duration,
    /// Annotations by pod.
    pub annotations: BTreeMap<String, BTreeMap<String, String>>,
}

/// Returns when `count` pods are bound; tells `heard` of the uid of each.
pub async fn all(client: Client, count: usize, heard: Option<mpsc::UnboundedSender<String>>) -> Seen {
    let pods: Api<Pod> = Api::namespaced(client, NAMESPACE);
    let mut annotations = BTreeMap::new();
    let (mut first, mut version) = (None, "0".to_owned());
    loop {
        let mut events = pods.watch_metadata(&WatchParams::default(), &version).await.unwrap().boxed();
        while let Some(Ok(event)) = events.next().await {
            let (WatchEvent::Added(pod) | WatchEvent::Modified(pod)) = event else { continue };
            version = pod.resource_version().unwrap_or_default();
            if pod.annotations().get(key::BIND_TIMESTAMP).is_none_or(String::is_empty) {
                continue;
            }
            let now = clock::mono();
            let since = *first.get_or_insert(now);
            if annotations.insert(pod.name_any(), pod.annotations().clone()).is_none()
                && let Some(heard) = &heard
            {
                heard.send(pod.uid().unwrap()).ok();
            }
            if annotations.len() == count {
                return Seen { span: now - since, annotations };
            }
        }
    }
}

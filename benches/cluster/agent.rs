//! The agents' part in the hand-off, for all nodes: a lock goes as soon as its holder is bound.

use std::collections::{BTreeMap, BTreeSet};

use baton::cluster::node_lock::NodeLocks;
use baton::contract::key;
use futures::StreamExt as _;
use k8s_openapi::api::core::v1::Node;
use kube::api::{Api, WatchEvent, WatchParams};
use kube::{Client, ResourceExt as _};
use tokio::sync::mpsc;

/// Removes locks until `bound` ends and no lock stands any more. `bound` tells the uids of bound pods.
pub async fn release_locks(client: Client, mut bound: mpsc::UnboundedReceiver<String>) {
    let locks = NodeLocks::new(client.clone(), key::NODE_LOCK);
    let (seen, mut locked) = mpsc::unbounded_channel();
    let watching = tokio::spawn(watch(client, seen));
    // Lock by holder, and holders that are bound.
    let mut standing: BTreeMap<String, (String, String)> = BTreeMap::new();
    let mut served: BTreeSet<String> = BTreeSet::new();
    let mut open = true;
    while open || !served.is_empty() {
        tokio::select! {
            Some((node, raw)) = locked.recv() => {
                let holder = raw.rsplit(',').next().unwrap_or_default().to_owned();
                standing.insert(holder, (node, raw));
            }
            uid = bound.recv(), if open => match uid {
                Some(uid) => drop(served.insert(uid)),
                None => open = false,
            },
        }
        let due: Vec<String> = served.iter().filter(|uid| standing.contains_key(*uid)).cloned().collect();
        for uid in due {
            served.remove(&uid);
            let (node, raw) = standing.remove(&uid).unwrap();
            let locks = locks.clone();
            tokio::spawn(async move { locks.release(&node, &raw).await.map(drop).unwrap() });
        }
    }
    watching.abort();
}

async fn watch(client: Client, seen: mpsc::UnboundedSender<(String, String)>) {
    let nodes: Api<Node> = Api::all(client);
    let mut version = "0".to_owned();
    loop {
        let mut events = nodes.watch_metadata(&WatchParams::default(), &version).await.unwrap().boxed();
        while let Some(Ok(event)) = events.next().await {
            let (WatchEvent::Added(node) | WatchEvent::Modified(node)) = event else { continue };
            version = node.resource_version().unwrap_or_default();
            if let Some(raw) = node.annotations().get(key::NODE_LOCK) {
                seen.send((node.name_any(), raw.clone())).ok();
            }
        }
    }
}

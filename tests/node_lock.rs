//! The lock's compare-and-swap against an API server: how many writes it takes, and that nobody's value is lost.

#![cfg(feature = "sim")]
#![allow(clippy::unwrap_used)] // a test may

use baton::cluster::node_lock::{LockWrite, NodeLocks};
use baton::contract::key::NODE_LOCK;
use baton::sim::apiserver::{ApiServer, Options};
use k8s_openapi::api::core::v1::Node;
use kube::api::{Api, PostParams};
use serde_json::{Value, json};

struct Cluster {
    server: ApiServer,
    nodes: Api<Node>,
    locks: NodeLocks,
}

async fn cluster(annotations: Value) -> Cluster {
    let folder = tempfile::tempdir().unwrap();
    let server = ApiServer::start(Options::default()).await.unwrap();
    let path = folder.path().join("kubeconfig");
    std::fs::write(&path, server.kubeconfig("admin")).unwrap();
    let client = baton::cluster::client::connect(Some(&path)).await.unwrap();
    let nodes: Api<Node> = Api::all(client.clone());
    let node = serde_json::from_value(json!({"metadata": {"name": "n", "annotations": annotations}})).unwrap();
    nodes.create(&PostParams::default(), &node).await.unwrap();
    Cluster { server, nodes, locks: NodeLocks::new(client, NODE_LOCK) }
}

impl Cluster {
    async fn see(&self) {
        self.locks.observe(&self.nodes.get("n").await.unwrap().metadata);
    }
    fn writes(&self) -> u64 {
        self.server.counts().of("patch", "nodes", "")
    }
    async fn value(&self) -> Option<String> {
        self.nodes.get("n").await.unwrap().metadata.annotations?.remove(NODE_LOCK)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_was_seen_takes_one_write_to_lock_and_one_to_release_with_or_without_annotations() {
    for annotations in [json!(null), json!({"other": "value"})] {
        let cluster = cluster(annotations).await;
        for round in 0..3 {
            cluster.see().await;
            let before = cluster.writes();
            assert_eq!(cluster.locks.set("n", "mine").await.unwrap(), LockWrite::Done);
            cluster.see().await;
            assert_eq!(cluster.locks.release("n", "mine").await.unwrap(), LockWrite::Done);
            assert_eq!(cluster.writes() - before, 2, "round {round}");
            assert_eq!(cluster.value().await, None);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_without_annotations_that_was_never_seen_is_locked_too() {
    let cluster = cluster(json!(null)).await;
    assert_eq!(cluster.locks.set("n", "mine").await.unwrap(), LockWrite::Done);
    assert_eq!(cluster.value().await.as_deref(), Some("mine"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stale_sight_of_a_bare_node_never_overwrites_somebody_elses_lock() {
    let cluster = cluster(json!(null)).await;
    cluster.see().await;
    let other = NodeLocks::new(other_client(&cluster).await, NODE_LOCK);
    assert_eq!(other.set("n", "theirs").await.unwrap(), LockWrite::Done);
    // What was seen is older than their lock: the write must fail on the version, and the lock be found.
    assert!(matches!(cluster.locks.set("n", "mine").await.unwrap(), LockWrite::Contended(_)));
    assert_eq!(cluster.value().await.as_deref(), Some("theirs"));
}

async fn other_client(cluster: &Cluster) -> kube::Client {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("kubeconfig");
    std::fs::write(&path, cluster.server.kubeconfig("admin")).unwrap();
    baton::cluster::client::connect(Some(&path)).await.unwrap()
}

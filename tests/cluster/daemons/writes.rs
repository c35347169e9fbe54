//! The writers of `cluster/` against an API server that fails, races and loses answers.

use baton::cluster::lease::{LeaseCandidate, LeaseConfig, LeaseState};
use baton::cluster::node_lock::{LockError, LockWrite};
use baton::contract::LockRead;

use crate::prelude::*;

const A: &str = "2026-11-21T02:00:00.000000001Z,ml,a,uid-a";
const B: &str = "2026-11-21T02:00:00.000000002Z,ml,b,uid-b";

/// An API server with one node, `n`.
struct LockedNode {
    server: TestServer,
    locks: NodeLocks,
}

async fn node(annotations: serde_json::Value) -> LockedNode {
    let server = TestServer::start().await;
    server.create_object::<Node>(json!({"metadata": {"name": "n", "annotations": annotations}})).await;
    let locks = NodeLocks::new(server.client.clone(), key::NODE_LOCK);
    LockedNode { server, locks }
}

impl LockedNode {
    async fn annotation(&self, key: &str) -> Option<String> {
        self.server.node_annotation("n", key).await
    }

    /// The node as a watch has it reaches the locks.
    async fn see(&self) {
        self.locks.observe(&self.server.nodes().get("n").await.unwrap().metadata);
    }
}

fn contended(raw: &str) -> LockWrite {
    LockWrite::Contended(LockRead::parse(Some(raw)))
}

#[tokio::test]
async fn a_lock_is_set_once_taken_over_by_value_and_released_by_value() {
    for annotations in [json!(null), json!({}), json!({"other": "kept"})] {
        let node = node(annotations.clone()).await;
        let locks = &node.locks;
        assert_eq!(locks.read("n").await.unwrap(), LockRead::Free);
        assert_eq!(locks.set("n", A).await.unwrap(), LockWrite::Done, "{annotations}");
        assert_eq!(locks.set("n", B).await.unwrap(), contended(A));
        assert_eq!(locks.set("n", A).await.unwrap(), LockWrite::Done, "our own value is success");
        assert_eq!(locks.release("n", B).await.unwrap(), contended(A), "only its owner removes a lock");
        assert_eq!(locks.take_over("n", B, A).await.unwrap(), LockWrite::Done, "already as wished");
        assert_eq!(locks.take_over("n", A, B).await.unwrap(), LockWrite::Done);
        assert_eq!(locks.release("n", A).await.unwrap(), contended(B));
        assert_eq!(locks.release("n", B).await.unwrap(), LockWrite::Done);
        assert_eq!(locks.release("n", B).await.unwrap(), LockWrite::Done, "gone is gone");
        assert_eq!(node.annotation(key::NODE_LOCK).await, None);
        assert_eq!(
            node.annotation("other").await.is_some(),
            annotations.get("other").is_some(),
            "other annotations stay"
        );
    }
}

#[tokio::test]
async fn of_many_writers_exactly_one_wins_the_lock() {
    let node = node(json!(null)).await;
    let writers = (0..16).map(|n| {
        let locks = node.locks.clone();
        async move { locks.set("n", &format!("2026-11-21T02:00:00.000000001Z,ml,p{n},uid-{n}")).await.unwrap() }
    });
    let results = futures::future::join_all(writers).await;
    assert_eq!(results.iter().filter(|result| **result == LockWrite::Done).count(), 1, "{results:?}");
}

#[tokio::test]
async fn a_lost_answer_counts_as_success_when_our_value_stands_there() {
    let node = node(json!({"a": "b"})).await;
    let Some(server) = node.server.control_plane.simulated() else { return skipped("needs injected faults") };
    server.faults().add(FaultRule::on("patch", "nodes").times(1), Effect::DropAfter);
    assert_eq!(node.locks.set("n", A).await.unwrap(), LockWrite::Done);
    server.faults().add(FaultRule::on("patch", "nodes").times(1), Effect::DropAfter);
    assert_eq!(node.locks.release("n", A).await.unwrap(), LockWrite::Done);
    assert_eq!(node.annotation(key::NODE_LOCK).await, None);
}

#[tokio::test]
async fn passing_failures_are_retried_and_lasting_ones_are_reported() {
    let node = node(json!({"a": "b"})).await;
    let Some(server) = node.server.control_plane.simulated() else { return skipped("needs injected faults") };
    for status in [429, 500, 503] {
        server.faults().add(FaultRule::on("patch", "nodes").times(3), Effect::Answer(status, None));
        assert_eq!(node.locks.set("n", A).await.unwrap(), LockWrite::Done, "{status}");
        assert_eq!(node.locks.release("n", A).await.unwrap(), LockWrite::Done);
    }
    server.faults().add(FaultRule::on("patch", "nodes"), Effect::Answer(500, None));
    let error = node.locks.set("n", A).await.unwrap_err();
    assert!(matches!(error, LockError::Api { tries: 5, .. }), "{error}");
    server.faults().clear();
    assert!(matches!(node.locks.set("none", A).await.unwrap_err(), LockError::NodeGone(name) if name == "none"));
}

#[tokio::test]
async fn a_write_to_another_annotation_does_not_disturb_the_lock() {
    let node = node(json!({"a": "b"})).await;
    let nodes: Api<Node> = Api::all(node.server.client.clone());
    assert_eq!(node.locks.set("n", A).await.unwrap(), LockWrite::Done);
    let other = Patch::Merge(json!({"metadata": {"annotations": {"a": "c"}}}));
    nodes.patch("n", &PatchParams::default(), &other).await.unwrap();
    assert_eq!(node.locks.release("n", A).await.unwrap(), LockWrite::Done);
    assert_eq!(node.annotation("a").await.as_deref(), Some("c"));
}

/// The Lease of the manifests.
async fn free_lease(client: &Client) {
    let lease = serde_json::from_value(json!({"metadata": {"name": "baton"}})).unwrap();
    Api::<Lease>::namespaced(client.clone(), "default").create(&PostParams::default(), &lease).await.unwrap();
}

#[tokio::test]
async fn a_silent_leader_is_replaced_after_its_lease_on_the_followers_clock() {
    let node = node(json!(null)).await;
    free_lease(&node.server.client).await;
    let candidate =
        |name: &str| LeaseCandidate::new(node.server.client.clone(), LeaseConfig::new("default", "baton", name));
    let (mut a, mut b) = (candidate("a"), candidate("b"));
    let at = Duration::from_secs;
    let wall = clock::wall();
    assert_eq!(a.step(at(100), wall).await.unwrap(), LeaseState::Leading);
    let following = LeaseState::Following { leader: Some("a".to_owned()) };
    assert_eq!(b.step(at(7), wall).await.unwrap(), following, "clocks of two processes have nothing in common");
    assert!(a.leads(at(109)) && !a.leads(at(110)), "a leader stops before its lease ends");
    assert_eq!(b.step(at(21), wall).await.unwrap(), following);
    let later = wall + at(12);
    assert_eq!(a.step(at(112), later).await.unwrap(), LeaseState::Leading);
    assert_eq!(b.step(at(23), wall).await.unwrap(), following, "renewed: the count starts again");
    assert_eq!(b.step(at(37), wall).await.unwrap(), following);
    assert_eq!(b.step(at(38), wall).await.unwrap(), LeaseState::Leading);
    assert!(matches!(a.step(at(130), wall).await.unwrap(), LeaseState::Following { .. }));
    assert!(!a.leads(at(130)));
    b.release(wall).await.unwrap();
    assert_eq!(a.step(at(131), wall).await.unwrap(), LeaseState::Leading, "a released lease is free at once");
}

#[tokio::test]
async fn a_lease_that_says_it_lasts_for_ever_holds_its_followers_up_for_a_minute() {
    let node = node(json!(null)).await;
    let leases: Api<Lease> = Api::namespaced(node.server.client.clone(), "default");
    let wall = clock::wall();
    let spec = json!({"holderIdentity": "gone", "leaseDurationSeconds": 2_000_000_000});
    let lease = serde_json::from_value(json!({"metadata": {"name": "baton"}, "spec": spec})).unwrap();
    leases.create(&PostParams::default(), &lease).await.unwrap();
    let mut follower = LeaseCandidate::new(node.server.client.clone(), LeaseConfig::new("default", "baton", "a"));
    let following = LeaseState::Following { leader: Some("gone".to_owned()) };
    for second in [0, 30, 59] {
        assert_eq!(follower.step(Duration::from_secs(second), wall).await.unwrap(), following, "second {second}");
    }
    assert_eq!(follower.step(Duration::from_secs(60), wall).await.unwrap(), LeaseState::Leading);
}

#[tokio::test]
async fn two_candidates_that_race_for_a_free_or_missing_lease_do_not_both_lead() {
    for is_free in [true, false] {
        let node = node(json!(null)).await;
        if is_free {
            free_lease(&node.server.client).await;
        }
        let wall = clock::wall();
        let mut candidates: Vec<LeaseCandidate> = (0..8)
            .map(|n| {
                LeaseCandidate::new(node.server.client.clone(), LeaseConfig::new("default", "baton", &format!("c{n}")))
            })
            .collect();
        let mut standings = Vec::new();
        for at in if is_free { &[0][..] } else { &[0, 15] } {
            let steps = candidates.iter_mut().map(|candidate| candidate.step(Duration::from_secs(*at), wall));
            standings = futures::future::join_all(steps).await;
        }
        let leading = standings.iter().filter(|standing| matches!(standing, Ok(LeaseState::Leading))).count();
        assert_eq!(leading, 1, "{standings:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_was_seen_takes_one_write_to_lock_and_one_to_release() {
    for annotations in [json!(null), json!({"other": "value"})] {
        let node = node(annotations).await;
        let Some(server) = node.server.control_plane.simulated() else { return skipped("needs counted requests") };
        let writes = || server.counts().of("patch", "nodes", "");
        for round in 0..3 {
            node.see().await;
            let before = writes();
            assert_eq!(node.locks.set("n", A).await.unwrap(), LockWrite::Done);
            node.see().await;
            assert_eq!(node.locks.release("n", A).await.unwrap(), LockWrite::Done);
            assert_eq!(writes() - before, 2, "round {round}");
            assert_eq!(node.annotation(key::NODE_LOCK).await, None);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_view_older_than_another_lock_never_overwrites_that_lock() {
    let node = node(json!(null)).await;
    node.see().await;
    let other = NodeLocks::new(node.server.client.clone(), key::NODE_LOCK);
    assert_eq!(other.set("n", B).await.unwrap(), LockWrite::Done);
    // The write must fail on the version, and the other lock be found.
    assert_eq!(node.locks.set("n", A).await.unwrap(), contended(B));
    assert_eq!(node.annotation(key::NODE_LOCK).await.as_deref(), Some(B));
}

/// What `kubectl get devices` prints, by column.
async fn printed(server: &TestServer) -> std::collections::BTreeMap<String, serde_json::Value> {
    let request = http::Request::get("/apis/scheduling.koordinator.sh/v1alpha1/devices")
        .header("accept", "application/json;as=Table;v=v1;g=meta.k8s.io")
        .body(Vec::new())
        .unwrap();
    let table: serde_json::Value = server.client.request(request).await.unwrap();
    let names = table["columnDefinitions"].as_array().unwrap().iter().map(|column| column["name"].as_str().unwrap());
    let cells = table["rows"][0]["cells"].as_array().unwrap().iter().cloned();
    names.map(str::to_owned).zip(cells).collect()
}

#[tokio::test]
async fn kubectl_shows_the_devices_of_a_node_in_numbers_that_change_with_hardware_alone() {
    let server = TestServer::start().await;
    server.create_crds([baton::contract::inventory::crd()]).await;
    let nodes: Api<Node> = server.nodes();
    crate::harness::wait::until("the CRD is served", Duration::from_secs(30), async || {
        let path = http::Request::get("/apis/scheduling.koordinator.sh/v1alpha1/devices").body(Vec::new()).unwrap();
        server.client.request::<serde_json::Value>(path).await.ok().map(drop)
    })
    .await;
    server.create_object::<Node>(json!({"metadata": {"name": "n"}})).await;
    let whole = json!({key::GPU_CORE: "100"});
    let gpu = |minor: usize, health: bool, resources: &serde_json::Value| json!({"type": "gpu", "id": format!("GPU-{minor}"), "minor": minor, "health": health, "resources": resources});
    let nic =
        json!({"type": "rdma", "id": "0000:3c:00.0", "minor": 0, "health": true, "resources": {key::RDMA: "100"}});
    // GPU 4 is split and counts for its parts.
    let listed = json!([
        gpu(0, true, &whole),
        gpu(1, true, &whole),
        gpu(2, false, &whole),
        gpu(3, true, &whole),
        gpu(4, true, &json!({})),
        nic
    ]);
    let mut now =
        baton::cluster::inventory::Published { devices: serde_json::from_value(listed).unwrap(), ..Default::default() };
    let mut writer = baton::cluster::inventory::InventoryWriter::new(server.client.clone(), "n");
    assert!(writer.publish(&now).await.unwrap().device);
    let numbers = |row: &std::collections::BTreeMap<String, serde_json::Value>| {
        ["GPUs", "NICs", "Unhealthy"].map(|column| row[column].as_i64().unwrap())
    };
    assert_eq!(numbers(&printed(&server).await), [4, 1, 1]);
    assert!(!writer.publish(&now).await.unwrap().device, "nothing is new");
    let cordon = json!({"metadata": {"annotations": {key::CORDONED: r#"{"GPU-3":{"reason":"fan"}}"#}}});
    let devices: Api<baton::contract::inventory::Device> = Api::all(nodes.into_client());
    devices.patch("n", &PatchParams::default(), &Patch::Merge(cordon)).await.unwrap();
    assert!(!writer.publish(&now).await.unwrap().device, "a cordon is no change of hardware");
    let kept = devices.get("n").await.unwrap().metadata.annotations.unwrap();
    assert!(kept.contains_key(key::CORDONED), "the daemon leaves the word of people alone");
    now.devices[0].health = false;
    assert!(writer.publish(&now).await.unwrap().device);
    assert_eq!(numbers(&printed(&server).await), [4, 1, 2]);
    assert!(!writer.publish(&now).await.unwrap().device, "nothing is new");
    // The kind takes any text for an id.
    let unread = json!([{"op": "replace", "path": "/spec/devices/0/id", "value": "GPU-a/b"}]);
    let unread: Patch<()> = Patch::Json(serde_json::from_value(unread).unwrap());
    devices.patch_metadata("n", &PatchParams::default(), &unread).await.unwrap();
    let mut writer = baton::cluster::inventory::InventoryWriter::new(server.client.clone(), "n");
    assert!(writer.publish(&now).await.unwrap().device, "words that cannot be read are undone");
    assert_eq!(devices.get("n").await.unwrap().spec.devices[0].id.as_str(), "GPU-0");
}

#[tokio::test]
async fn where_the_kind_is_koordinators_devices_are_published_without_numbers() {
    let server = TestServer::start().await;
    let kind = include_str!("../../fixtures/koordinator/devices.yaml");
    server.create_crds([serde_saphyr::from_str(kind).unwrap()]).await;
    let node: Node = server.create_object(json!({"metadata": {"name": "n"}})).await;
    let devices: Api<baton::contract::inventory::Device> = Api::all(server.client.clone());
    // As koordlet makes it: deletion of the Node waits for it.
    let theirs = json!({"metadata": {"name": "n", "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": "n",
        "uid": node.metadata.uid, "controller": true, "blockOwnerDeletion": true}]}, "spec": {"devices": []}});
    let theirs = serde_json::from_value(theirs).unwrap();
    crate::harness::wait::until("koordlet's object is there", Duration::from_secs(30), async || {
        devices.create(&PostParams::default(), &theirs).await.ok()
    })
    .await;
    let gpu = json!([{"type": "gpu", "id": "GPU-0", "minor": 0, "health": true, "resources": {key::GPU_CORE: "100"}}]);
    let mut now =
        baton::cluster::inventory::Published { devices: serde_json::from_value(gpu).unwrap(), ..Default::default() };
    let mut writer = baton::cluster::inventory::InventoryWriter::new(server.client.clone(), "n");
    assert!(writer.publish(&now).await.unwrap().device);
    assert!(!writer.publish(&now).await.unwrap().device, "nothing is new");
    now.devices[0].health = false;
    assert!(writer.publish(&now).await.unwrap().device);
    let published = devices.get("n").await.unwrap();
    assert_eq!((published.spec.devices, published.status.unwrap().counts), (now.devices, None));
}

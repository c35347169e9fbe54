//! Lists in pages, watches through selectors, streaming lists, reflectors.

use futures::{StreamExt, TryStreamExt};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::Api;
use kube::api::{Patch, PatchParams};
use kube::runtime::watcher::{Config, Event};
use serde_json::{Value, json};

use crate::server::{DEADLINE, HttpApi, MERGE, PODS, pod};

#[tokio::test(flavor = "multi_thread")]
async fn objects_come_into_view_and_leave_it_as_their_fields_and_labels_change() {
    let c = HttpApi::new().await;
    let from = c.server.version();
    c.pod("a").await;
    c.bind("a", "n").await;
    c.patch(&format!("{PODS}/a"), MERGE, json!({"metadata": {"labels": {"app": "x"}}})).await;
    c.patch(&format!("{PODS}/a"), MERGE, json!({"metadata": {"labels": {"app": "y"}}})).await;
    c.delete(&format!("{PODS}/a?gracePeriodSeconds=0")).await;
    let watch = |selector: &str| format!("{PODS}?watch=1&resourceVersion={from}&timeoutSeconds=1&{selector}");
    let words =
        |events: &Value| events.as_array().unwrap().iter().map(|event| event["type"].clone()).collect::<Vec<_>>();
    let by_node = c.read(&watch("fieldSelector=spec.nodeName%3Dn")).await;
    assert_eq!(words(&by_node), ["ADDED", "MODIFIED", "MODIFIED", "MODIFIED", "DELETED"]);
    let unbound = c.read(&watch("fieldSelector=spec.nodeName%3D")).await;
    assert_eq!(words(&unbound), ["ADDED", "DELETED"]);
    let by_label = c.read(&watch("labelSelector=app%3Dx")).await;
    assert_eq!(words(&by_label), ["ADDED", "DELETED"]);
    assert_eq!(by_label[1]["object"]["metadata"]["labels"]["app"], "x", "it is shown as it was");
    let versions: Vec<&Value> =
        by_label.as_array().unwrap().iter().map(|e| &e["object"]["metadata"]["resourceVersion"]).collect();
    assert_ne!(versions[0], versions[1], "but in the version of the change");
}

#[tokio::test(flavor = "multi_thread")]
async fn pages_are_of_one_version_and_expire_with_it() {
    let c = HttpApi::new().await;
    for n in 0..5 {
        c.pod(&format!("p{n}")).await;
    }
    let first = c.read(&format!("{PODS}?limit=2")).await;
    c.pod("p00").await;
    c.delete(&format!("{PODS}/p4")).await;
    let token = first["metadata"]["continue"].as_str().unwrap().to_owned();
    let rest = c.read(&format!("{PODS}?limit=10&continue={token}")).await;
    let names: Vec<&str> =
        rest["items"].as_array().unwrap().iter().filter_map(|p| p["metadata"]["name"].as_str()).collect();
    assert_eq!(names, ["p2", "p3", "p4"]);
    assert_eq!(rest["metadata"]["resourceVersion"], first["metadata"]["resourceVersion"]);
    c.server.compact();
    let (status, body) = c.get(&format!("{PODS}?limit=10&continue={token}")).await;
    assert_eq!((status, &body["reason"]), (410, &json!("Expired")));
    let token = body["metadata"]["continue"].as_str().expect("a token to go on with").to_owned();
    let rest = c.read(&format!("{PODS}?limit=10&continue={token}")).await;
    assert_eq!(rest["items"].as_array().unwrap().len(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kube_watcher_relists_after_breaks_and_compaction() {
    for config in [Config::default(), Config::default().streaming_lists()] {
        let c = HttpApi::with_pod().await;
        let pods: Api<Pod> = Api::default_namespaced(c.client("admin").await);
        let mut stream = kube::runtime::watcher(pods, config).boxed();
        let mut next = async |wanted: &str| {
            let find = async {
                loop {
                    match stream.next().await {
                        Some(Ok(Event::Apply(p) | Event::InitApply(p)))
                            if p.metadata.name.as_deref() == Some(wanted) =>
                        {
                            return;
                        }
                        // A break or an expiry is an error that the watcher recovers from.
                        Some(_) => {}
                        None => panic!("the watcher ended"),
                    }
                }
            };
            tokio::time::timeout(DEADLINE, find).await.unwrap_or_else(|_| panic!("{wanted} was never seen"));
        };
        next("a").await;
        c.server.faults().break_watches();
        c.pod("b").await;
        next("b").await;
        c.server.faults().break_watches();
        c.pod("c").await;
        c.server.compact();
        next("c").await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn kube_patches_of_every_kind_arrive() {
    let c = HttpApi::new().await;
    let nodes: Api<Node> = Api::all(c.client("admin").await);
    let params = PatchParams::apply("test");
    let applied: Value = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n", "labels": {"a": "1"}}});
    nodes.patch("n", &params, &Patch::Apply(&applied)).await.unwrap();
    let plain = PatchParams::default();
    nodes.patch("n", &plain, &Patch::Merge(json!({"metadata": {"labels": {"b": "2"}}}))).await.unwrap();
    nodes.patch("n", &plain, &Patch::Strategic(json!({"metadata": {"labels": {"c": "3"}}}))).await.unwrap();
    let operations: json_patch::Patch =
        serde_json::from_value(json!([{"op": "add", "path": "/metadata/labels/d", "value": "4"}])).unwrap();
    let node = nodes.patch("n", &plain, &Patch::Json::<Node>(operations)).await.unwrap();
    let labels: Vec<String> = node.metadata.labels.unwrap().into_keys().collect();
    assert_eq!(labels, ["a", "b", "c", "d"]);
    let status = json!({"status": {"conditions": [{"type": "Ready", "status": "True"}]}});
    nodes.patch_status("n", &plain, &Patch::Strategic(status)).await.unwrap();
    // The lifecycle controller takes the taint of a node that is ready.
    let watching = kube::runtime::wait::await_condition(nodes, "n", |n: Option<&Node>| {
        n.is_some_and(|n| n.spec.as_ref().is_some_and(|s| s.taints.is_none()))
    });
    tokio::time::timeout(DEADLINE, watching).await.expect("the taint goes").unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_watcher_of_one_node_hears_of_its_pods_only() {
    let c = HttpApi::new().await;
    let pods: Api<Pod> = Api::all(c.client("admin").await);
    let stream = kube::runtime::watcher(pods, Config::default().fields("spec.nodeName=n1"));
    let mut stream = stream.boxed();
    while !matches!(stream.try_next().await.unwrap(), Some(Event::InitDone)) {}
    for name in ["a", "b", "c"] {
        c.create(PODS, pod(name)).await;
    }
    c.bind("a", "n2").await;
    c.bind("b", "n1").await;
    c.delete(&format!("{PODS}/c")).await;
    let heard = tokio::time::timeout(DEADLINE, stream.try_next()).await.expect("an event").unwrap();
    let Some(Event::Apply(pod)) = heard else { panic!("{heard:?}") };
    assert_eq!(pod.metadata.name.as_deref(), Some("b"));
}

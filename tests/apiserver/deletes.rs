//! Grace, finalizers, owners, namespaces, budgets.

use serde_json::{Value, json};

use crate::server::{HttpApi, JSON, MERGE, PODS, message, pod, until};

#[tokio::test(flavor = "multi_thread")]
async fn a_bound_pod_stays_until_its_kubelet_deletes_it_with_no_grace() {
    let c = HttpApi::new().await;
    let made = c.pod("a").await;
    c.bind("a", "n").await;
    let path = format!("{PODS}/a");
    let (_, terminating) = c.delete(&path).await;
    assert_eq!(terminating["metadata"]["deletionGracePeriodSeconds"], 30);
    let (_, again) = c.delete(&path).await;
    assert_eq!(again["metadata"]["deletionTimestamp"], terminating["metadata"]["deletionTimestamp"]);
    let options = |uid: &Value| json!({"gracePeriodSeconds": 0, "preconditions": {"uid": uid}});
    assert_eq!(c.send("DELETE", &path, JSON, options(&json!("other"))).await.0, 409);
    assert_eq!(c.send("DELETE", &path, JSON, options(&made["metadata"]["uid"])).await.0, 200);
    assert_eq!(c.get(&path).await.0, 404);
}

#[tokio::test(flavor = "multi_thread")]
async fn dependents_follow_their_owner_and_orphans_do_not() {
    let c = HttpApi::new().await;
    let maps = "/api/v1/namespaces/default/configmaps";
    for (policy, kept) in [("Background", false), ("Foreground", false), ("Orphan", true)] {
        let owner = c.create(maps, json!({"metadata": {"name": "owner"}})).await;
        let mut child = pod("child");
        child["metadata"]["ownerReferences"] = json!([{
            "apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": owner["metadata"]["uid"],
            "blockOwnerDeletion": true,
        }]);
        c.create(PODS, child).await;
        let path = format!("{maps}/owner?propagationPolicy={policy}");
        assert_eq!(c.delete(&path).await.0, 200, "{policy}");
        c.until_status(&format!("{maps}/owner"), 404).await;
        if kept {
            let child = c.read(&format!("{PODS}/child")).await;
            assert_eq!(child["metadata"].get("ownerReferences"), None);
        } else {
            c.until_status(&format!("{PODS}/child"), 404).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_foreground_deletion_waits_for_a_dependent_that_is_held() {
    let c = HttpApi::new().await;
    let maps = "/api/v1/namespaces/default/configmaps";
    let owner = c.create(maps, json!({"metadata": {"name": "owner"}})).await;
    let mut child = pod("child");
    child["metadata"]["finalizers"] = json!(["x/hold"]);
    child["metadata"]["ownerReferences"] = json!([{
        "apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": owner["metadata"]["uid"],
        "blockOwnerDeletion": true,
    }]);
    c.create(PODS, child).await;
    c.delete(&format!("{maps}/owner?propagationPolicy=Foreground")).await;
    let deleted = async || c.read(&format!("{PODS}/child")).await["metadata"].get("deletionTimestamp").is_some();
    until("the dependent is deleted first", deleted).await;
    assert_eq!(c.get(&format!("{maps}/owner")).await.0, 200);
    c.patch(&format!("{PODS}/child"), MERGE, json!({"metadata": {"finalizers": null}})).await;
    c.until_status(&format!("{maps}/owner"), 404).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_namespace_takes_its_contents_along_and_takes_nothing_new() {
    let c = HttpApi::new().await;
    c.create("/api/v1/namespaces", json!({"metadata": {"name": "team"}})).await;
    let pods = "/api/v1/namespaces/team/pods";
    let mut held = pod("held");
    held["metadata"]["finalizers"] = json!(["x/hold"]);
    c.create(pods, held).await;
    c.create("/api/v1/namespaces/team/configmaps", json!({"metadata": {"name": "m"}})).await;
    let (_, body) = c.delete("/api/v1/namespaces/team").await;
    assert_eq!(body["status"]["phase"], "Terminating");
    let (status, body) = c.post(pods, pod("late")).await;
    assert_eq!(status, 403);
    assert!(message(&body).contains("because it is being terminated"), "{body}");
    c.until_status("/api/v1/namespaces/team/configmaps/m", 404).await;
    c.patch(&format!("{pods}/held"), MERGE, json!({"metadata": {"finalizers": null}})).await;
    c.until_status("/api/v1/namespaces/team", 404).await;
    let (status, body) = c.post(pods, pod("later")).await;
    assert_eq!((status, message(&body)), (404, "namespaces \"team\" not found"));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_eviction_respects_the_disruption_budget() {
    let c = HttpApi::new().await;
    let mut labelled = pod("a");
    labelled["metadata"]["labels"] = json!({"app": "x"});
    c.create(PODS, labelled).await;
    c.bind("a", "n").await;
    c.patch(&format!("{PODS}/a/status"), MERGE, json!({"status": {"phase": "Running"}})).await;
    let budgets = "/apis/policy/v1/namespaces/default/poddisruptionbudgets";
    let spec = json!({"minAvailable": 1, "selector": {"matchLabels": {"app": "x"}}});
    c.create(budgets, json!({"metadata": {"name": "b"}, "spec": spec})).await;
    let eviction = format!("{PODS}/a/eviction");
    let body = json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "a"}});
    let evict = || c.post(&eviction, body.clone());
    let (status, body) = evict().await;
    assert_eq!(status, 429);
    assert_eq!(message(&body), "Cannot evict pod as it would violate the pod's disruption budget.");
    c.patch(&format!("{budgets}/b/status"), MERGE, json!({"status": {"disruptionsAllowed": 1}})).await;
    assert_eq!(evict().await.0, 201);
    let pod = c.read(&format!("{PODS}/a")).await;
    assert!(pod["metadata"]["deletionTimestamp"].is_string());
    assert!(pod["status"]["conditions"].as_array().unwrap().iter().any(|c| c["type"] == "DisruptionTarget"));
    assert_eq!(c.read(&format!("{budgets}/b")).await["status"]["disruptionsAllowed"], 0);
}

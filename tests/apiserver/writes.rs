//! Patches, ownership, bindings, versions.

use serde_json::{Value, json};

use crate::server::{APPLY, HttpApi, JSON, JSON_PATCH, MERGE, PODS, STRATEGIC, message, pod};

#[tokio::test(flavor = "multi_thread")]
async fn a_write_that_changes_nothing_keeps_the_version() {
    let c = HttpApi::new().await;
    let made = c.pod("a").await;
    let path = format!("{PODS}/a");
    for (media, body) in [
        (MERGE, json!({"metadata": {"labels": null}})),
        (STRATEGIC, json!({"spec": {"containers": [{"name": "main", "image": "x"}]}})),
        (JSON_PATCH, json!([{"op": "test", "path": "/spec/restartPolicy", "value": "Always"}])),
    ] {
        let (status, body) = c.patch(&path, media, body).await;
        assert_eq!(
            (status, &body["metadata"]["resourceVersion"]),
            (200, &made["metadata"]["resourceVersion"]),
            "{media}"
        );
    }
    let (status, put) = c.send("PUT", &path, JSON, made.clone()).await;
    assert_eq!((status, &put["metadata"]["resourceVersion"]), (200, &made["metadata"]["resourceVersion"]));
}

#[tokio::test(flavor = "multi_thread")]
async fn of_many_compare_and_swap_writers_exactly_one_wins() {
    let c = HttpApi::new().await;
    c.create("/api/v1/nodes", json!({"metadata": {"name": "n", "annotations": {"a": "b"}}})).await;
    let tries = (0..16).map(|n| {
        let patch = json!([
            {"op": "test", "path": "/metadata/annotations/x~1lock", "value": null},
            {"op": "add", "path": "/metadata/annotations/x~1lock", "value": format!("holder-{n}")},
        ]);
        c.patch("/api/v1/nodes/n", JSON_PATCH, patch)
    });
    let answers = futures::future::join_all(tries).await;
    let won: Vec<&Value> = answers.iter().filter(|(s, _)| *s == 200).map(|(_, b)| b).collect();
    assert_eq!(won.len(), 1);
    assert!(answers.iter().all(|(s, _)| *s == 200 || *s == 422));
    let now = c.read("/api/v1/nodes/n").await;
    assert_eq!(now["metadata"]["annotations"]["x/lock"], won[0]["metadata"]["annotations"]["x/lock"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn of_many_binders_exactly_one_wins() {
    let c = HttpApi::with_pod().await;
    let nodes: Vec<String> = (0..16).map(|n| format!("n{n}")).collect();
    let answers = futures::future::join_all(nodes.iter().map(|n| c.bind("a", n))).await;
    assert_eq!(answers.iter().filter(|(s, _)| *s == 201).count(), 1, "{answers:?}");
    assert_eq!(answers.iter().filter(|(s, _)| *s == 409).count(), 15);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_binding_overwrites_annotations_and_leaves_the_others() {
    let c = HttpApi::new().await;
    let mut forged = pod("a");
    forged["metadata"]["annotations"] = json!({"x/forged": "by the author", "x/own": "kept"});
    c.create(PODS, forged).await;
    let binding =
        json!({"metadata": {"name": "a", "annotations": {"x/forged": "", "x/new": "1"}}, "target": {"name": "n"}});
    assert_eq!(c.post(&format!("{PODS}/a/binding"), binding).await.0, 201);
    let bound = c.read(&format!("{PODS}/a")).await;
    assert_eq!(bound["metadata"]["annotations"], json!({"x/forged": "", "x/own": "kept", "x/new": "1"}));
    assert_eq!(bound["spec"]["nodeName"], "n");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_that_is_being_deleted_cannot_be_bound() {
    let c = HttpApi::new().await;
    let mut held = pod("a");
    held["metadata"]["finalizers"] = json!(["x/hold"]);
    c.create(PODS, held).await;
    c.delete(&format!("{PODS}/a")).await;
    let (status, body) = c.bind("a", "n").await;
    assert_eq!(status, 409);
    assert!(message(&body).contains("pod a is being deleted, cannot be assigned to a host"), "{body}");
}

#[tokio::test(flavor = "multi_thread")]
async fn apply_owns_merges_conflicts_and_removes() {
    let c = HttpApi::new().await;
    let path = "/api/v1/namespaces/default/configmaps/m";
    let doc = |data: Value| json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "m"}, "data": data});
    let by = |manager: &str, force: bool| format!("{path}?fieldManager={manager}&force={force}");
    assert_eq!(c.patch(&by("a", false), APPLY, doc(json!({"x": "1", "y": "1"}))).await.0, 201);
    assert_eq!(c.patch(&by("b", false), APPLY, doc(json!({"z": "1"}))).await.0, 200);
    let (status, body) = c.patch(&by("b", false), APPLY, doc(json!({"x": "2", "z": "1"}))).await;
    assert_eq!((status, message(&body)), (409, "Apply failed with 1 conflict: conflict with \"a\": .data.x"));
    let (status, body) = c.patch(&by("b", true), APPLY, doc(json!({"x": "2", "z": "1"}))).await;
    assert_eq!((status, &body["data"]), (200, &json!({"x": "2", "y": "1", "z": "1"})));
    // What a no longer applies goes, unless another manager holds it.
    let (status, body) = c.patch(&by("a", false), APPLY, doc(json!({}))).await;
    assert_eq!((status, &body["data"]), (200, &json!({"x": "2", "z": "1"})));
    // An update takes ownership without asking; the next apply of the old value conflicts.
    assert_eq!(c.patch(&format!("{path}?fieldManager=hand"), MERGE, json!({"data": {"z": "9"}})).await.0, 200);
    let (status, body) = c.patch(&by("b", false), APPLY, doc(json!({"x": "2", "z": "1"}))).await;
    assert_eq!(
        (status, message(&body)),
        (409, "Apply failed with 1 conflict: conflict with \"hand\" using v1: .data.z")
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn status_and_spec_are_written_through_their_own_paths_only() {
    let c = HttpApi::with_pod().await;
    let (_, body) = c.patch(&format!("{PODS}/a"), MERGE, json!({"status": {"phase": "Running"}})).await;
    assert_eq!(body["status"]["phase"], "Pending");
    let forged = json!({"spec": {"nodeName": "n"}, "status": {"phase": "Running"}});
    let (status, body) = c.patch(&format!("{PODS}/a/status"), MERGE, forged).await;
    assert_eq!((status, &body["status"]["phase"], body["spec"].get("nodeName")), (200, &json!("Running"), None));
}

#[tokio::test(flavor = "multi_thread")]
async fn unknown_fields_are_dropped_warned_about_or_refused() {
    let c = HttpApi::new().await;
    let mut odd = pod("a");
    odd["spec"]["containers"][0]["imagee"] = json!("typo");
    let (status, body) = c.post(&format!("{PODS}?fieldValidation=Strict"), odd.clone()).await;
    assert_eq!(status, 400);
    assert!(message(&body).contains("strict decoding error: unknown field \"spec.containers[0].imagee\""), "{body}");
    let made = c.create(PODS, odd).await;
    assert_eq!(made["spec"]["containers"][0].get("imagee"), None);
}

#[tokio::test(flavor = "multi_thread")]
async fn extended_resources_cannot_be_overcommitted() {
    let c = HttpApi::new().await;
    let with = |resources: Value| {
        let mut p = pod("a");
        p["spec"]["containers"][0]["resources"] = resources;
        p
    };
    for (resources, text) in [
        (json!({"requests": {"x.io/gpu": "1"}}), "Limit must be set for non overcommitable resources"),
        (json!({"requests": {"x.io/gpu": "1"}, "limits": {"x.io/gpu": "2"}}), "must be equal to x.io/gpu limit of 2"),
        (json!({"limits": {"x.io/gpu": "500m"}}), "must be an integer"),
        (json!({"limits": {"cpu": "1"}, "requests": {"cpu": "2"}}), "must be less than or equal to cpu limit of 1"),
    ] {
        let (status, body) = c.post(PODS, with(resources)).await;
        assert_eq!(status, 422, "{body}");
        assert!(message(&body).contains(text), "{body}");
    }
    let (status, body) = c.post(PODS, with(json!({"limits": {"cpu": "lots"}}))).await;
    assert_eq!(status, 400);
    assert!(message(&body).contains("quantities must match"), "{body}");
    let made = c.create(PODS, with(json!({"limits": {"x.io/gpu": 2, "cpu": 0.5}}))).await;
    assert_eq!(made["spec"]["containers"][0]["resources"]["requests"], json!({"x.io/gpu": "2", "cpu": "500m"}));
}

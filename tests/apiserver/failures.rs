//! Faults on command, blackouts, users, counters.

use std::time::Duration;

use baton::sim::apiserver::{Blackout, Effect, FaultRule, Rule};
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::PostParams;
use serde_json::{Value, json};

use crate::server::{HttpApi, JSON, MERGE, PODS, message, pod, until};

#[tokio::test(flavor = "multi_thread")]
async fn a_rule_answers_the_nth_matching_request_and_nothing_else() {
    let c = HttpApi::with_pod().await;
    let rule = FaultRule::on("patch", "pods").named("a").after(1).times(1);
    let id = c.server.faults().add(rule, Effect::Answer(429, Some(7)));
    let patch = |n: u32| {
        c.patch("/api/v1/namespaces/default/pods/a", MERGE, json!({"metadata": {"labels": {"n": n.to_string()}}}))
    };
    assert_eq!(patch(1).await.0, 200);
    let (status, body) = patch(2).await;
    assert_eq!((status, &body["details"]["retryAfterSeconds"]), (429, &json!(7)));
    assert_eq!(patch(3).await.0, 200);
    assert_eq!(c.server.faults().remove(id), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_answer_leaves_the_write_and_a_dropped_request_does_not() {
    let c = HttpApi::new().await;
    let pods: Api<Pod> = Api::default_namespaced(c.client("admin").await);
    let make = |name: &str| serde_json::from_value::<Pod>(pod(name)).unwrap();
    let faults = c.server.faults();
    faults.add(FaultRule::on("create", "pods").times(1), Effect::DropAfter);
    pods.create(&PostParams::default(), &make("lost-answer")).await.unwrap_err();
    assert_eq!(c.get(&format!("{PODS}/lost-answer")).await.0, 200);
    faults.add(FaultRule::on("create", "pods").times(1), Effect::DropBefore);
    pods.create(&PostParams::default(), &make("never-arrived")).await.unwrap_err();
    assert_eq!(c.get(&format!("{PODS}/never-arrived")).await.0, 404);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_silent_watch_is_accepted_and_says_nothing() {
    let c = HttpApi::with_pod().await;
    c.server.faults().add(FaultRule::on("watch", "pods").times(1), Effect::SilentWatch);
    let silent = c.read(&format!("{PODS}?watch=1&resourceVersion=0&timeoutSeconds=1")).await;
    assert_eq!(silent, json!([]));
    let heard = c.read(&format!("{PODS}?watch=1&resourceVersion=0&timeoutSeconds=1")).await;
    assert_eq!(heard["type"], "ADDED");
}

#[tokio::test(flavor = "multi_thread")]
async fn probabilities_follow_the_seed() {
    let c = HttpApi::new().await;
    let rule = FaultRule::on("list", "nodes").with_probability(0.5);
    let id = c.server.faults().add(rule, Effect::Answer(500, None));
    let mut failed = 0;
    for _ in 0..40 {
        failed += u64::from(c.get("/api/v1/nodes").await.0 == 500);
    }
    assert!((5..35).contains(&failed), "{failed} of 40");
    assert_eq!(c.server.faults().fired(id), failed);
}

#[tokio::test(flavor = "multi_thread")]
async fn objects_survive_a_restart_on_the_same_port() {
    let c = HttpApi::with_pod().await;
    let client = c.client("admin").await;
    let pods: Api<Pod> = Api::default_namespaced(client);
    let before = c.server.url();
    c.server.stop();
    pods.get("a").await.unwrap_err();
    c.server.restart().await.unwrap();
    assert_eq!(c.server.url(), before);
    until("the same client gets through again", async || pods.get("a").await.is_ok()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_blackout_refuses_or_hangs_and_ends() {
    let c = HttpApi::with_pod().await;
    let pods: Api<Pod> = Api::default_namespaced(c.client("admin").await);
    c.server.faults().blackout(Blackout::Refuse);
    pods.get("a").await.unwrap_err();
    c.server.faults().blackout(Blackout::Hang);
    let hanging = tokio::time::timeout(Duration::from_millis(300), pods.get("a")).await;
    assert!(hanging.is_err(), "{hanging:?}");
    c.server.faults().blackout(Blackout::None);
    until("the blackout is over", async || pods.get("a").await.is_ok()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn users_may_do_what_rules_and_roles_say() {
    let c = HttpApi::with_pod().await;
    let agent = "system:serviceaccount:default:agent";
    let try_as = |user: &'static str, method: &'static str, path: String, body: Option<Value>| {
        let c = &c;
        async move { c.as_user(user, method, &path, MERGE, body).await }
    };
    assert_eq!(try_as(agent, "GET", PODS.to_owned(), None).await.0, 403);
    c.create("/apis/rbac.authorization.k8s.io/v1/clusterroles", json!({
        "metadata": {"name": "reader"}, "rules": [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list"]}],
    })).await;
    c.create("/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", json!({
        "metadata": {"name": "reader"}, "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "reader"},
        "subjects": [{"kind": "ServiceAccount", "name": "agent", "namespace": "default"}],
    })).await;
    assert_eq!(try_as(agent, "GET", PODS.to_owned(), None).await.0, 200);
    let (status, body) = try_as(agent, "PATCH", format!("{PODS}/a"), Some(json!({}))).await;
    assert_eq!(status, 403);
    assert_eq!(
        message(&body),
        "pods \"a\" is forbidden: User \"system:serviceaccount:default:agent\" cannot patch resource \"pods\" in API group \
         \"\" in the namespace \"default\""
    );
    c.server.allow("limited", vec![Rule::new("core", "nodes", "get")]);
    assert_eq!(try_as("limited", "GET", "/api/v1/nodes/n".into(), None).await.0, 404);
    assert_eq!(try_as("limited", "GET", "/api/v1/nodes".into(), None).await.0, 403);
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_are_counted_by_verb_resource_and_subresource() {
    let c = HttpApi::new().await;
    c.server.counts().reset();
    c.pod("a").await;
    c.bind("a", "n").await;
    c.get(&format!("{PODS}/a")).await;
    c.patch(&format!("{PODS}/a"), MERGE, json!({"metadata": {"labels": {"x": "y"}}})).await;
    let counts = c.server.counts();
    assert_eq!((counts.of("create", "pods", ""), counts.of("create", "pods", "binding")), (1, 1));
    assert_eq!((counts.of("get", "pods", ""), counts.writes("pods")), (1, 3));
    assert_eq!(counts.sum(|k| k.agent == "test" && k.user == "admin"), 4);
}

#[tokio::test(flavor = "multi_thread")]
async fn oversized_and_malformed_bodies_are_refused() {
    let c = HttpApi::new().await;
    let (status, body) =
        c.post(PODS, json!({"metadata": {"name": "a", "annotations": {"x": "y".repeat(4 << 20)}}})).await;
    assert_eq!((status, message(&body)), (413, "Request entity too large: limit is 3145728"));
    let (status, _) = c.send("POST", PODS, "text/plain", pod("a")).await;
    assert_eq!(status, 415);
    let (status, _) = c.send("POST", PODS, JSON, json!([1, 2])).await;
    assert_eq!(status, 400);
    let (status, body) =
        c.send("POST", PODS, JSON, json!({"kind": "Node", "apiVersion": "v1", "metadata": {"name": "a"}})).await;
    assert_eq!(status, 400, "{body}");
}

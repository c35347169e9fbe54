//! Tokens of service accounts and what reviews say of them; who may do what by RBAC.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use baton::sim::apiserver::{ApiServer, Options, Rule};
use jiff::ToSpan;
use serde_json::{Value, json};

use crate::server::{HttpApi, JSON, MERGE, PODS, message, pod};

const TOKEN: &str = "/api/v1/namespaces/default/serviceaccounts/s/token";
const ACCOUNTS: &str = "/api/v1/namespaces/default/serviceaccounts";
const SELF: &str = "/apis/authentication.k8s.io/v1/selfsubjectreviews";
const REVIEWS: &str = "/apis/authentication.k8s.io/v1/tokenreviews";

/// A server with the service account `s` and the node `n`.
async fn with_account() -> HttpApi {
    let c = HttpApi::new().await;
    c.create(ACCOUNTS, json!({"metadata": {"name": "s"}})).await;
    c.create("/api/v1/nodes", json!({"metadata": {"name": "n"}})).await;
    c
}

fn bound(kind: &str, name: &str) -> Value {
    json!({"spec": {"boundObjectRef": {"kind": kind, "apiVersion": "v1", "name": name}}})
}

/// Who the server says that the owner of a token is.
async fn who(c: &HttpApi, token: &str) -> (u16, Value) {
    let (code, body) = c.with_token(token, &[], "POST", (SELF, JSON), Some(json!({}))).await;
    (code, body["status"]["userInfo"].clone())
}

async fn pod_of(c: &HttpApi, name: &str, account: &str) -> Value {
    let mut made = pod(name);
    made["spec"]["serviceAccountName"] = json!(account);
    made["spec"]["automountServiceAccountToken"] = json!(false);
    c.create(PODS, made).await
}

fn extra<'a>(info: &'a Value, key: &str) -> &'a Value {
    &info["extra"][format!("authentication.kubernetes.io/{key}")]
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_stands_for_its_service_account() {
    let c = with_account().await;
    let made = c.create(TOKEN, json!({"spec": {"expirationSeconds": 600}})).await;
    assert_eq!((&made["kind"], &made["spec"]["expirationSeconds"]), (&json!("TokenRequest"), &json!(600)));
    assert!(made["status"]["expirationTimestamp"].is_string(), "{made}");
    let (code, info) = who(&c, made["status"]["token"].as_str().unwrap()).await;
    assert_eq!((code, &info["username"]), (201, &json!("system:serviceaccount:default:s")));
    for group in ["system:serviceaccounts", "system:serviceaccounts:default", "system:authenticated"] {
        assert!(info["groups"].as_array().unwrap().contains(&json!(group)), "{info}");
    }
    assert_eq!(extra(&info, "node-name"), &Value::Null);
    assert_eq!(c.post(&TOKEN.replace("/s/", "/absent/"), json!({"spec": {}})).await.0, 404);
    let (code, _) = c.post(TOKEN, json!({"spec": {"expirationSeconds": 5}})).await;
    assert_eq!(code, 422);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_ends_when_it_says_and_a_review_says_so() {
    let seconds = Arc::new(AtomicI64::new(0));
    let time = seconds.clone();
    let clock = move || jiff::Timestamp::UNIX_EPOCH + time.load(Ordering::Relaxed).seconds();
    let options = Options { clock: Arc::new(clock), ..Options::default() };
    let c = HttpApi { server: ApiServer::start(options).await.unwrap() };
    c.create(ACCOUNTS, json!({"metadata": {"name": "s"}})).await;
    let made = c.create(TOKEN, json!({"spec": {"expirationSeconds": 600}})).await;
    let token = made["status"]["token"].as_str().unwrap();
    for (at, code) in [(0, 201), (599, 201), (600, 401)] {
        seconds.store(at, Ordering::Relaxed);
        assert_eq!(who(&c, token).await.0, code, "after {at} s");
    }
    let body = c.create(REVIEWS, json!({"spec": {"token": token}})).await;
    assert_eq!(body["status"].get("authenticated"), None, "{body}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_of_a_pod_tells_pod_and_node() {
    let c = with_account().await;
    let made = pod_of(&c, "a", "s").await;
    let token = c.create(TOKEN, bound("Pod", "a")).await;
    let (_, info) = who(&c, token["status"]["token"].as_str().unwrap()).await;
    assert_eq!(extra(&info, "pod-name"), &json!(["a"]));
    assert_eq!(extra(&info, "pod-uid"), &json!([made["metadata"]["uid"]]));
    assert_eq!(extra(&info, "node-name"), &Value::Null, "the pod has no node yet");
    assert_eq!(c.bind("a", "n").await.0, 201);
    let token = c.create(TOKEN, bound("Pod", "a")).await;
    let token = token["status"]["token"].as_str().unwrap();
    let (_, info) = who(&c, token).await;
    let node = c.read("/api/v1/nodes/n").await;
    assert_eq!(extra(&info, "node-name"), &json!(["n"]));
    assert_eq!(extra(&info, "node-uid"), &json!([node["metadata"]["uid"]]));
    assert_eq!(c.delete(&format!("{PODS}/a?gracePeriodSeconds=0")).await.0, 200);
    assert_eq!(who(&c, token).await.0, 401, "the token goes with its pod");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_is_bound_only_to_what_is_there_and_the_accounts_own() {
    let c = with_account().await;
    pod_of(&c, "other", "default").await;
    let made = pod_of(&c, "a", "s").await;
    let (code, body) = c.post(TOKEN, bound("Pod", "absent")).await;
    assert_eq!((code, message(&body)), (404, "pods \"absent\" not found"));
    assert_eq!(c.post(TOKEN, bound("Node", "absent")).await.0, 404);
    let (code, body) = c.post(TOKEN, bound("Pod", "other")).await;
    let why = "cannot bind token for serviceaccount \"s\" to pod running with different serviceaccount name.";
    assert_eq!((code, message(&body)), (400, why));
    assert_eq!(c.post(TOKEN, bound("Service", "a")).await.0, 400);
    let mut reference = bound("Pod", "a");
    reference["spec"]["boundObjectRef"]["uid"] = json!("no");
    let (code, body) = c.post(TOKEN, reference.clone()).await;
    assert_eq!(code, 409);
    assert!(message(&body).starts_with("Operation cannot be fulfilled on Pod \"a\": the UID in the bound"), "{body}");
    reference["spec"]["boundObjectRef"]["uid"] = made["metadata"]["uid"].clone();
    assert_eq!(c.post(TOKEN, reference).await.0, 201);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_for_others_is_not_for_the_server() {
    let c = with_account().await;
    let token = c.create(TOKEN, json!({"spec": {"audiences": ["vault"]}})).await;
    let token = token["status"]["token"].as_str().unwrap();
    assert_eq!(who(&c, token).await.0, 401);
    let review = |audiences: Value| json!({"spec": {"token": token, "audiences": audiences}});
    let body = c.create(REVIEWS, review(json!(["vault", "x"]))).await;
    assert_eq!(body["status"]["authenticated"], true, "{body}");
    assert_eq!(body["status"]["audiences"], json!(["vault"]));
    assert_eq!(body["status"]["user"]["username"], "system:serviceaccount:default:s");
    for audiences in [json!([]), json!(["x"])] {
        let body = c.create(REVIEWS, review(audiences)).await;
        assert_eq!(body["status"].get("authenticated"), None, "{body}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_review_tells_what_a_token_says() {
    let c = with_account().await;
    let token = c.create(TOKEN, bound("Node", "n")).await;
    let body = c.create(REVIEWS, json!({"spec": {"token": token["status"]["token"]}})).await;
    let (user, node) = (&body["status"]["user"], c.read("/api/v1/nodes/n").await);
    assert_eq!((&body["kind"], extra(user, "node-name")), (&json!("TokenReview"), &json!(["n"])));
    assert_eq!((extra(user, "node-uid"), extra(user, "pod-name")), (&json!([node["metadata"]["uid"]]), &Value::Null));
    assert!(user["groups"].as_array().unwrap().contains(&json!("system:serviceaccounts:default")), "{body}");
    let body = c.create(REVIEWS, json!({"spec": {"token": "no"}})).await;
    assert_eq!(body["status"].get("authenticated"), None, "{body}");
    assert_eq!(c.post(REVIEWS, json!({"spec": {}})).await.0, 400);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_on_a_node_lets_a_policy_hold_a_daemon_to_its_node() {
    let c = with_account().await;
    c.create("/api/v1/nodes", json!({"metadata": {"name": "m"}})).await;
    let group = "/apis/admissionregistration.k8s.io/v1";
    let expression = "has(request.userInfo.extra) \
                      && 'authentication.kubernetes.io/node-name' in request.userInfo.extra \
                      && request.userInfo.extra['authentication.kubernetes.io/node-name'] == [request.name]";
    let rule = json!({
        "apiGroups": [""], "apiVersions": ["v1"], "operations": ["UPDATE"], "resources": ["nodes", "nodes/status"],
    });
    let policy = json!({"metadata": {"name": "p"}, "spec": {
        "matchConstraints": {"resourceRules": [rule]}, "validations": [{"expression": expression}],
        "matchConditions": [
            {"name": "a", "expression": "request.userInfo.username == 'system:serviceaccount:default:s'"},
        ],
    }});
    c.create(&format!("{group}/validatingadmissionpolicies"), policy).await;
    let binding = json!({"metadata": {"name": "p"}, "spec": {"policyName": "p", "validationActions": ["Deny"]}});
    c.create(&format!("{group}/validatingadmissionpolicybindings"), binding).await;
    let account = "system:serviceaccount:default:s";
    let unbound = c.server.allow(account, vec![Rule::new("core", "nodes nodes/status", "patch")]);
    let on_n = c.server.token_on_node(account, "n");
    assert_eq!(on_n, c.server.token_on_node(account, "n"), "each node has one token");
    assert_ne!(on_n, c.server.token_on_node(account, "m"));
    assert_eq!(unbound, c.server.token(account));
    assert!(c.server.kubeconfig_on_node(account, "n").contains(&on_n));
    assert!(c.server.plain_kubeconfig_on_node(account, "n").contains(&on_n));
    let requested = c.create(TOKEN, bound("Node", "n")).await;
    let requested = requested["status"]["token"].as_str().unwrap();
    let label = json!({"metadata": {"labels": {"a": "b"}}});
    for (token, node, wanted) in
        [(&*on_n, "n", 200), (&on_n, "m", 422), (requested, "n", 200), (requested, "m", 422), (&unbound, "n", 422)]
    {
        for path in [format!("/api/v1/nodes/{node}"), format!("/api/v1/nodes/{node}/status")] {
            let (code, body) = c.with_token(token, &[], "PATCH", (&path, MERGE), Some(label.clone())).await;
            assert_eq!(code, wanted, "{token} {path}: {body}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_administrator_may_claim_what_a_token_says() {
    let c = HttpApi::new().await;
    let headers = [
        ("Impersonate-User", "system:serviceaccount:default:s"),
        ("Impersonate-Extra-Authentication.kubernetes.io%2Fnode-Name", "n"),
    ];
    let (_, body) = c.as_if(&headers, "POST", (SELF, JSON), Some(json!({}))).await;
    let info = &body["status"]["userInfo"];
    assert_eq!(extra(info, "node-name"), &json!(["n"]));
    assert!(info["groups"].as_array().unwrap().contains(&json!("system:serviceaccounts:default")), "{info}");
    let token = c.server.token("u");
    assert_eq!(c.with_token(&token, &headers, "POST", (SELF, JSON), Some(json!({}))).await.0, 403);
}

/// Gives a user the rules of a cluster role.
async fn grant(c: &HttpApi, user: &str, rules: Value) {
    let path = "/apis/rbac.authorization.k8s.io/v1";
    c.create(&format!("{path}/clusterroles"), json!({"metadata": {"name": user}, "rules": rules})).await;
    let role = json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": user});
    let subject = json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user});
    let binding = json!({"metadata": {"name": user}, "roleRef": role, "subjects": [subject]});
    c.create(&format!("{path}/clusterrolebindings"), binding).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_review_judges_the_user_that_it_names() {
    let c = HttpApi::new().await;
    let rules = json!([
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}, {"nonResourceURLs": ["/logs/*"], "verbs": ["get"]},
    ]);
    grant(&c, "u", rules).await;
    let review = |spec: Value| {
        let c = &c;
        async move {
            let body = c.create("/apis/authorization.k8s.io/v1/subjectaccessreviews", json!({ "spec": spec })).await;
            body["status"]["allowed"].clone()
        }
    };
    let attributes = |verb: &str| json!({"verb": verb, "resource": "pods", "namespace": "default"});
    assert_eq!(review(json!({"user": "u", "resourceAttributes": attributes("get")})).await, true);
    assert_eq!(review(json!({"user": "u", "resourceAttributes": attributes("delete")})).await, false);
    assert_eq!(review(json!({"user": "v", "resourceAttributes": attributes("get")})).await, false);
    let masters = json!({"user": "v", "groups": ["system:masters"], "resourceAttributes": attributes("delete")});
    assert_eq!(review(masters).await, true);
    let path = |path: &str| json!({"user": "u", "nonResourceAttributes": {"verb": "get", "path": path}});
    assert_eq!(review(path("/logs/a")).await, true);
    assert_eq!(review(path("/debug")).await, false);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rule_for_names_allows_only_what_names_them() {
    let c = HttpApi::new().await;
    let verbs = json!(["create", "update", "get", "list", "watch"]);
    grant(&c, "u", json!([{"apiGroups": [""], "resources": ["configmaps"], "verbs": verbs, "resourceNames": ["a"]}]))
        .await;
    let maps = "/api/v1/namespaces/default/configmaps";
    c.create(maps, json!({"metadata": {"name": "a"}})).await;
    let (who, body) = ([("Impersonate-User", "u")], json!({"metadata": {"name": "a"}, "data": {"x": "y"}}));
    for (method, path, wanted) in [
        ("GET", format!("{maps}/a"), 200),
        ("GET", format!("{maps}/b"), 403),
        ("PUT", format!("{maps}/a"), 200),
        ("POST", maps.to_owned(), 403),
        ("GET", maps.to_owned(), 403),
        ("GET", format!("{maps}?fieldSelector=metadata.name%3Da"), 200),
        ("GET", format!("{maps}?fieldSelector=metadata.name%3Db"), 403),
        ("GET", format!("{maps}?watch=true&timeoutSeconds=1"), 403),
    ] {
        let sent = (method != "GET").then(|| body.clone());
        assert_eq!(c.as_if(&who, method, (&path, JSON), sent).await.0, wanted, "{method} {path}");
    }
}

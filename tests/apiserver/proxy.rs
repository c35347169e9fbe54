//! The pod proxy: requests through the API server to a pod, without what is meant for the API server alone.

use axum::extract::Request;
use axum::routing::any;
use axum::{Json, Router};
use serde_json::json;

use crate::server::{HttpApi, JSON, MERGE, PODS, message};

/// A server with the pod `p`, which answers what it was sent; the path of its proxy.
async fn with_pod(c: &HttpApi) -> String {
    let answer = any(|request: Request| async move {
        let word = |name: &str| request.headers().get(name).and_then(|value| value.to_str().ok()).map(str::to_owned);
        let path = request.uri().to_string();
        Json(
            json!({"method": request.method().as_str(), "path": path, "own": word("x-own"), "authorization": word("authorization")}),
        )
    });
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move { axum::serve(listener, Router::new().fallback(answer)).await.unwrap() });
    c.pod("p").await;
    let status = json!({"status": {"podIP": "127.0.0.1", "podIPs": [{"ip": "127.0.0.1"}]}});
    assert_eq!(c.patch(&format!("{PODS}/p/status"), MERGE, status).await.0, 200);
    format!("{PODS}/p:{port}/proxy")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_reaches_the_pod_without_the_users_token() {
    let c = HttpApi::new().await;
    let proxy = with_pod(&c).await;
    let token = c.server.token("admin");
    let sent = (&*format!("{proxy}/a/b?c=d"), JSON);
    let (code, body) = c.with_token(&token, &[("X-Own", "kept")], "GET", sent, None).await;
    let seen = json!({"method": "GET", "path": "/a/b?c=d", "own": "kept", "authorization": null});
    assert_eq!((code, body), (200, seen));
    let (code, body) = c.post(&format!("{proxy}/x"), json!({"y": 1})).await;
    assert_eq!((code, &body["method"]), (200, &json!("POST")));
}

#[tokio::test(flavor = "multi_thread")]
async fn it_takes_the_right_to_the_proxy_and_a_pod_with_an_address() {
    let c = HttpApi::new().await;
    let proxy = with_pod(&c).await;
    let stranger = c.server.token("stranger");
    let (code, body) = c.with_token(&stranger, &[], "GET", (&proxy, JSON), None).await;
    assert_eq!(code, 403);
    assert!(message(&body).contains("cannot get resource \"pods/proxy\""), "{body}");
    assert_eq!(c.get(&format!("{PODS}/absent:1/proxy/")).await.0, 404);
    c.pod("q").await;
    assert_eq!(c.get(&format!("{PODS}/q:1/proxy/")).await.0, 400);
    let (code, body) = c.get(&format!("{PODS}/p:1/proxy/")).await;
    assert_eq!(code, 503);
    assert!(message(&body).contains("error trying to reach service"), "{body}");
}

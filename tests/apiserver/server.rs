//! A server and one-line verbs on it.

use std::time::Duration;

use baton::sim::apiserver::{ApiServer, Options};
use kube::config::{KubeConfigOptions, Kubeconfig};
use serde_json::{Value, json};

use crate::http;

pub const JSON: &str = "application/json";
pub const JSON_PATCH: &str = "application/json-patch+json";
pub const MERGE: &str = "application/merge-patch+json";
pub const STRATEGIC: &str = "application/strategic-merge-patch+json";
pub const APPLY: &str = "application/apply-patch+yaml";
pub const PODS: &str = "/api/v1/namespaces/default/pods";
pub const DEADLINE: Duration = Duration::from_secs(10);

pub struct HttpApi {
    pub server: ApiServer,
}

impl HttpApi {
    pub async fn new() -> Self {
        Self { server: ApiServer::start(Options::default()).await.expect("the server starts") }
    }

    /// With pod `a`.
    pub async fn with_pod() -> Self {
        let c = Self::new().await;
        c.pod("a").await;
        c
    }

    /// A request as a user; answers status and body (of a watch: the lines as an array).
    pub async fn as_user(
        &self,
        user: &str,
        method: &str,
        path: &str,
        media: &str,
        body: Option<Value>,
    ) -> (u16, Value) {
        self.with_token(&self.server.token(user), &[], method, (path, media), body).await
    }

    /// A request as a user whom the administrator impersonates.
    pub async fn as_if(
        &self,
        who: &[(&str, &str)],
        method: &str,
        (path, media): (&str, &str),
        body: Option<Value>,
    ) -> (u16, Value) {
        self.with_token(&self.server.token("admin"), who, method, (path, media), body).await
    }

    /// A request with a token and more headers.
    pub async fn with_token(
        &self,
        token: &str,
        more: &[(&str, &str)],
        method: &str,
        (path, media): (&str, &str),
        body: Option<Value>,
    ) -> (u16, Value) {
        let mut headers = vec![
            ("Authorization", format!("Bearer {token}")),
            ("Content-Type", media.to_owned()),
            ("User-Agent", "test/1".to_owned()),
        ];
        headers.extend(more.iter().map(|(name, value)| (*name, (*value).to_owned())));
        let address = self.server.url().trim_start_matches("http://").to_owned();
        let text = body.map(|b| b.to_string());
        let answer = http::send(&address, method, path, &headers, text.as_deref()).await.expect("an answer");
        assert_eq!(answer.headers.get("content-type").map(String::as_str), Some(JSON), "{method} {path}");
        let parsed = serde_json::from_str(&answer.body).unwrap_or_else(|_| {
            answer.body.lines().map(|l| serde_json::from_str::<Value>(l).expect("JSON lines")).collect()
        });
        (answer.status, parsed)
    }

    pub async fn send(&self, method: &str, path: &str, media: &str, body: Value) -> (u16, Value) {
        self.as_user("admin", method, path, media, (!body.is_null()).then_some(body)).await
    }

    pub async fn get(&self, path: &str) -> (u16, Value) {
        self.send("GET", path, JSON, Value::Null).await
    }

    /// A GET that must succeed.
    pub async fn read(&self, path: &str) -> Value {
        let (status, body) = self.get(path).await;
        assert_eq!(status, 200, "GET {path}: {body}");
        body
    }

    pub async fn post(&self, path: &str, body: Value) -> (u16, Value) {
        self.send("POST", path, JSON, body).await
    }

    /// A POST that must create.
    pub async fn create(&self, path: &str, body: Value) -> Value {
        let (status, body) = self.post(path, body).await;
        assert_eq!(status, 201, "POST {path}: {body}");
        body
    }

    pub async fn patch(&self, path: &str, media: &str, body: Value) -> (u16, Value) {
        self.send("PATCH", path, media, body).await
    }

    pub async fn delete(&self, path: &str) -> (u16, Value) {
        self.send("DELETE", path, JSON, Value::Null).await
    }

    pub async fn pod(&self, name: &str) -> Value {
        self.create(PODS, pod(name)).await
    }

    /// Binds a pod; answers the status.
    pub async fn bind(&self, name: &str, node: &str) -> (u16, Value) {
        let binding = json!({"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name}, "target": {"kind": "Node", "name": node}});
        self.post(&format!("{PODS}/{name}/binding"), binding).await
    }

    /// Waits until a GET answers with this status.
    pub async fn until_status(&self, path: &str, wanted: u16) {
        until(&format!("{path} answers {wanted}"), async || self.get(path).await.0 == wanted).await;
    }

    /// A kube-rs client over TLS.
    pub async fn client(&self, user: &str) -> kube::Client {
        let config = Kubeconfig::from_yaml(&self.server.kubeconfig(user)).expect("a valid kubeconfig");
        let config =
            kube::Config::from_custom_kubeconfig(config, &KubeConfigOptions::default()).await.expect("a config");
        kube::Client::try_from(config).expect("a client")
    }
}

pub async fn until(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let wait = async {
        while !holds().await {
            tokio::task::yield_now().await;
        }
    };
    assert!(tokio::time::timeout(DEADLINE, wait).await.is_ok(), "never so: {what}");
}

pub fn pod(name: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
        "spec": {"containers": [{"name": "main", "image": "x"}]},
    })
}

pub fn message(body: &Value) -> &str {
    body["message"].as_str().unwrap_or_default()
}

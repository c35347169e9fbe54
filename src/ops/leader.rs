//! Requests to the leading scheduler: at an address, or through the API server's proxy to its pod; with a token that is good for
//! nothing else.

use std::time::Duration;

use anyhow::{Context, anyhow};
use clap::Args;
use futures::future::join_all;
use http::{Request, Uri};
use k8s_openapi::api::authentication::v1::{TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::{Pod, ServiceAccount};
use kube::Client;
use kube::api::{Api, ListParams, PostParams};
use kube::client::Body;
use serde::de::DeserializeOwned;

use super::live::{self, Access};
use super::say::{UsageError, remark};
use baton_cluster::client::{self, status_code};
use baton_runtime::auth::{AUDIENCE, HEADER};

/// Labels of the scheduler's pods, with or without the extender.
pub(super) const LABELS: &str = "app.kubernetes.io/part-of=baton,app.kubernetes.io/component=scheduler";
/// Names of the ports in their containers, and the ports where none has the name.
const ADMIN: (&str, i32) = ("admin", 9413);
const PROBES: (&str, i32) = ("probes", 9403);
const SCHEDULER: &str = "scheduler";
/// The same of node daemons.
const NODE_LABELS: &str = "app.kubernetes.io/part-of=baton,app.kubernetes.io/name=baton-device-plugin";
const NODE_ADMIN: (&str, i32) = ("admin", 9412);
/// Most bytes of an answer: a daemon on a stolen node says what it likes.
const MOST: usize = 64 << 20;
/// The ServiceAccount that commands ask as, never as the user: the daemons see its token.
pub(super) const VIEWER: &str = "baton-viewer";
/// Seconds of its tokens; an API server makes none for a shorter time.
const LIFETIME: i64 = 600;
/// How often a command waits where the scheduler asks it to, and the longest that it waits each time.
const WAITS: u32 = 5;
const LONGEST_WAIT: Duration = Duration::from_secs(5);

/// How the scheduler is found.
#[derive(Debug, Clone, Args)]
pub struct LeaderArgs {
    /// Admin address of the leading scheduler, e.g. https://127.0.0.1:9413 of a port-forward; else BATON_ADMIN_URL, or it is found
    /// through the API server.
    #[arg(long, value_name = "URL", global = true)]
    pub admin_url: Option<Uri>,
    /// Namespace of the scheduler's pods.
    #[arg(long, default_value = "baton-system", value_name = "NAMESPACE", global = true)]
    pub scheduler_namespace: String,
}

/// An empty variable counts as unset.
fn admin_url(variable: Option<String>) -> Result<Option<Uri>, UsageError> {
    let Some(text) = variable.filter(|text| !text.is_empty()) else { return Ok(None) };
    let url = text.parse().map_err(|error| UsageError(format!("BATON_ADMIN_URL {text:?}: {error}")))?;
    Ok(Some(url))
}

/// The leading scheduler, or a node daemon.
pub struct LeaderClient {
    client: Client,
    /// Before each path.
    prefix: String,
    /// For the scheduler; none over plain HTTP.
    token: Option<String>,
    /// What it is and where, for messages.
    kind: &'static str,
    place: String,
    /// Other pods that lead as well.
    others: Vec<String>,
}

impl LeaderClient {
    /// Finds it. A given address is used as it is.
    pub async fn find(args: &LeaderArgs, access: &Access) -> anyhow::Result<Self> {
        if let Some(url) = &args.admin_url.clone().or(admin_url(std::env::var("BATON_ADMIN_URL").ok())?) {
            if url.scheme_str() != Some("http") && url.scheme_str() != Some("https") {
                return Err(UsageError(format!("--admin-url {url}: expected a URL like https://127.0.0.1:9413")).into());
            }
            let token = match url.scheme_str() {
                Some("https") => Some(viewer_token(access.connect().await?, &args.scheduler_namespace).await?),
                _ => None,
            };
            let (client, place) = (client::at(url.clone())?, url.to_string());
            return Ok(Self { client, prefix: String::new(), token, kind: SCHEDULER, place, others: Vec::new() });
        }
        let how = "cannot look for the scheduler; --admin-url URL names it directly";
        let client = access.connect().await.context(how)?;
        let namespace = &args.scheduler_namespace;
        let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
        let params = ListParams::default().labels(LABELS);
        let looking = || format!("looking for the scheduler in namespace {namespace}");
        let pods = live::patiently(pods.list(&params), looking).await.context(how)?;
        let asked = pods.items.iter().map(|pod| Self::at(pod, namespace, &client));
        let (mut leading, mut silent) = (Vec::new(), Vec::new());
        for found in join_all(asked).await {
            match found {
                Ok(leader) => leading.push(leader),
                Err(why) => silent.push(why),
            }
        }
        let others = leading.iter().skip(1).map(|leader| leader.place.clone()).collect();
        if let Some(leader) = leading.into_iter().next() {
            let token = Some(viewer_token(client.clone(), namespace).await?);
            return Ok(Self { token, others, ..leader });
        }
        let found = if silent.is_empty() { format!("no pod there has the labels {LABELS}") } else { silent.join(", ") };
        Err(anyhow!("no scheduler leads in namespace {namespace}: {found}; give --scheduler-namespace or --admin-url"))
    }

    /// The node daemon on `node`, which is asked in the same way: at `url`, or in its pod in `namespace`.
    pub async fn of_node(client: Client, namespace: &str, node: &str, url: Option<&Uri>) -> anyhow::Result<Self> {
        let (kind, others) = ("node daemon", Vec::new());
        if let Some(url) = url {
            let (client, place) = (client::at(url.clone())?, url.to_string());
            return Ok(Self { client, prefix: String::new(), token: None, kind, place, others });
        }
        let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
        let params = ListParams::default().labels(NODE_LABELS).fields(&format!("spec.nodeName={node}"));
        let pods = pods.list(&params).await.with_context(|| format!("cannot look for the node daemon of {node}"))?;
        let runs = |pod: &&Pod| pod.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Running");
        let pod = pods.items.iter().find(runs);
        let pod = pod.ok_or_else(|| anyhow!("no pod in namespace {namespace} runs the node daemon of {node}"))?;
        let name = pod.metadata.name.as_deref().unwrap_or_default();
        let port = container_port(pod, NODE_ADMIN);
        let prefix = format!("/api/v1/namespaces/{namespace}/pods/https:{name}:{port}/proxy");
        let token = Some(viewer_token(client.clone(), namespace).await?);
        Ok(Self { client, prefix, token, kind, place: format!("pod {namespace}/{name}"), others })
    }

    /// The scheduler in a pod if it leads, without a token; else why not.
    async fn at(pod: &Pod, namespace: &str, client: &Client) -> Result<Self, String> {
        let name = pod.metadata.name.clone().unwrap_or_default();
        let proxy = |scheme: &str, port| {
            let port = container_port(pod, port);
            format!("/api/v1/namespaces/{namespace}/pods/{scheme}{name}:{port}/proxy")
        };
        let (prefix, place) = (proxy("", PROBES), format!("pod {namespace}/{name}"));
        let (client, kind) = (client.clone(), SCHEDULER);
        let probes = Self { client, prefix, token: None, kind, place, others: Vec::new() };
        match probes.request(http::Method::GET, "/leading", String::new()).await {
            Ok((200, _)) => Ok(Self { prefix: proxy("https:", ADMIN), ..probes }),
            Ok((503, _)) => Err(format!("{name} does not lead")),
            Ok((status, text)) => Err(format!("{name} answers {status} {}", text.trim())),
            Err(error) => Err(format!("{name}: {error:#}")),
        }
    }

    /// Finds it for a command, which says on standard error where several lead.
    pub async fn find_one(args: &LeaderArgs, access: &Access) -> anyhow::Result<Self> {
        let leader = Self::find(args, access).await?;
        leader.rivals().iter().for_each(remark);
        Ok(leader)
    }

    /// What is wrong where further pods say that they lead.
    pub fn rivals(&self) -> Option<String> {
        (!self.others.is_empty()).then(|| {
            format!(
                "{} and {} lead at once: one may be cut off from the API server, and then ends within seconds, or there are two \
                 installations; `kubectl get leases -A` shows who holds the Lease. Answers are those of {}",
                self.others.join(", "),
                self.place,
                self.place
            )
        })
    }

    /// Where it is, for messages.
    pub fn place(&self) -> &str {
        &self.place
    }

    /// The answer to a GET, read from JSON. A refusal is an error with the scheduler's text.
    pub async fn get<T: DeserializeOwned>(&self, path: &str) -> anyhow::Result<T> {
        self.ask(http::Method::GET, path, String::new()).await
    }

    /// The answer to a POST of `body`.
    pub async fn post<T: DeserializeOwned>(&self, path: &str, body: String) -> anyhow::Result<T> {
        self.ask(http::Method::POST, path, body).await
    }

    async fn ask<T: DeserializeOwned>(&self, method: http::Method, path: &str, body: String) -> anyhow::Result<T> {
        let (status, text) = self.request(method, path, body).await?;
        match status {
            429 => Err(anyhow!("too many questions reach {} at once: ask again", self.place)),
            200 => serde_json::from_str(&text)
                .with_context(|| format!("{} does not answer {path} as this version of baton reads it", self.place)),
            400 | 404 | 413 | 422 if !text.trim_start().starts_with('{') => Err(anyhow!("{}", text.trim())),
            status => Err(anyhow!("{} answers {path} with {status}: {}", self.place, text.trim())),
        }
    }

    /// Status and text of the answer. While the scheduler asks to wait, it is asked again: all commands reach it from the API
    /// server's address, and it answers so many new tokens from one address in a second.
    async fn request(&self, method: http::Method, path: &str, body: String) -> anyhow::Result<(u16, String)> {
        let answer = async {
            let mut waits = WAITS;
            loop {
                let (status, wait, text) = self.request_once(method.clone(), path, body.clone()).await?;
                let (Some(wait), Some(left)) = (wait.filter(|_| status == 429), waits.checked_sub(1)) else {
                    return Ok((status, text));
                };
                waits = left;
                tokio::time::sleep(wait.min(LONGEST_WAIT)).await;
            }
        };
        live::patiently(answer, || format!("asking the {} at {}", self.kind, self.place)).await
    }

    /// Status, for how long it asks to wait, and text.
    async fn request_once(
        &self,
        method: http::Method,
        path: &str,
        body: String,
    ) -> anyhow::Result<(u16, Option<Duration>, String)> {
        let uri = format!("{}{path}", self.prefix);
        let token = self.token.iter().map(|token| (HEADER, token));
        let request = token
            .fold(Request::builder().method(method).uri(uri), |request, (name, token)| request.header(name, token));
        let request = request.body(Body::from(body.into_bytes()))?;
        let cannot = || format!("cannot ask the {} at {}", self.kind, self.place);
        let response = self.client.send(request).await.with_context(cannot)?;
        let status = response.status().as_u16();
        let wait = response.headers().get(http::header::RETRY_AFTER).and_then(|wait| wait.to_str().ok()?.parse().ok());
        let body = axum::body::Body::new(response.into_body());
        let bytes = axum::body::to_bytes(body, MOST).await.with_context(cannot)?;
        Ok((status, wait.map(Duration::from_secs), String::from_utf8_lossy(&bytes).into_owned()))
    }
}

fn container_port(pod: &Pod, (name, default): (&str, i32)) -> i32 {
    let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
    let mut ports = containers.flat_map(|container| container.ports.iter().flatten());
    ports.find(|port| port.name.as_deref() == Some(name)).map_or(default, |port| port.container_port)
}

/// A token of the viewer, which Baton's daemons alone accept.
async fn viewer_token(client: Client, namespace: &str) -> anyhow::Result<String> {
    let spec = TokenRequestSpec {
        audiences: Some(vec![AUDIENCE.to_owned()]),
        expiration_seconds: Some(LIFETIME),
        ..TokenRequestSpec::default()
    };
    let request = TokenRequest { spec: Some(spec), ..TokenRequest::default() };
    let accounts: Api<ServiceAccount> = Api::namespaced(client, namespace);
    let (making, params) = (|| format!("making a token of ServiceAccount {namespace}/{VIEWER}"), PostParams::default());
    let made = live::patiently(accounts.create_token_request(VIEWER, &params, &request), making).await;
    let made = made.map_err(|error| {
        let advice = match status_code(&error) {
            Some(403) => format!(
                "this user may not ask Baton's daemons: `kubectl -n {namespace} create rolebinding NAME --clusterrole=baton-operator --user=USER` lets it"
            ),
            Some(404) => format!("is Baton installed in namespace {namespace}? `baton manifests` brings the ServiceAccount"),
            _ => "the API server makes no token".to_owned(),
        };
        anyhow::Error::from(error).context(format!("cannot ask Baton's daemons as {namespace}/{VIEWER}; {advice}"))
    })?;
    let token = made.status.and_then(|status| status.token).filter(|token| !token.is_empty());
    token.ok_or_else(|| anyhow!("the API server made an empty token of ServiceAccount {namespace}/{VIEWER}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::Router;
    use axum::http::StatusCode;
    use axum::response::{IntoResponse as _, Response};
    use axum::routing::get;
    use serde_json::{Value, json};
    use std::sync::atomic::{AtomicUsize, Ordering};

    /// A scheduler that asks to wait, twice.
    async fn busy() -> Response {
        static ASKED: AtomicUsize = AtomicUsize::new(0);
        if ASKED.fetch_add(1, Ordering::Relaxed) < 2 {
            return flooded().await;
        }
        axum::Json(json!({"leading": true, "items": []})).into_response()
    }

    /// A scheduler that asks to wait, whenever it is asked.
    async fn flooded() -> Response {
        (StatusCode::TOO_MANY_REQUESTS, [(http::header::RETRY_AFTER, "0")], "too many tokens\n").into_response()
    }

    /// An API server with two schedulers, the second of which leads, behind its pod proxy.
    async fn api_server() -> (tempfile::NamedTempFile, std::net::SocketAddr) {
        let pod = |name: &str| {
            json!({"metadata": {"name": name, "namespace": "system"}, "spec": {"containers": [{"name": "scheduler",
                "ports": [{"name": "admin", "containerPort": 9500}]}]}})
        };
        let list = json!({"apiVersion": "v1", "kind": "PodList", "metadata": {}, "items": [pod("one"), pod("two")]});
        let torn = list.clone();
        let proxy = "/api/v1/namespaces/system/pods";
        let router = Router::new()
            .route(proxy, get(move || async move { axum::Json(list) }))
            .route(
                "/api/v1/namespaces/empty/pods",
                get(|| async {
                    axum::Json(json!({"apiVersion": "v1", "kind": "PodList", "metadata": {}, "items": []}))
                }),
            )
            .route(
                &format!("{proxy}/one:9403/proxy/leading"),
                get(|| async { (StatusCode::SERVICE_UNAVAILABLE, "following\n") }),
            )
            .route(&format!("{proxy}/two:9403/proxy/leading"), get(|| async { "leading\n" }))
            .route("/api/v1/namespaces/torn/pods", get(move || async move { axum::Json(torn) }))
            .route("/api/v1/namespaces/torn/pods/one:9403/proxy/leading", get(|| async { "leading\n" }))
            .route("/api/v1/namespaces/torn/pods/two:9403/proxy/leading", get(|| async { "leading\n" }))
            .route("/api/v1/namespaces/torn/serviceaccounts/baton-viewer/token", get(|| async {}).post(|| async {
                axum::Json(json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "metadata": {},
                    "spec": {"audiences": []}, "status": {"token": "t", "expirationTimestamp": "2026-11-23T10:00:00Z"}}))
            }))
            .route(
                &format!("{proxy}/https:two:9500/proxy/queue"),
                get(|headers: axum::http::HeaderMap| async move {
                    assert_eq!(headers[HEADER], "of-the-viewer");
                    axum::Json(json!({"leading": true, "items": []}))
                }),
            )
            .route(
                "/api/v1/namespaces/system/serviceaccounts/baton-viewer/token",
                axum::routing::post(|asked: axum::Json<Value>| async move {
                    let spec = json!({"audiences": ["baton-admin"], "expirationSeconds": 600});
                    assert_eq!(asked["spec"], spec);
                    let status = json!({"token": "of-the-viewer", "expirationTimestamp": "2026-11-23T10:00:00Z"});
                    axum::Json(json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "metadata": {},
                        "spec": spec, "status": status}))
                }),
            )
            .route("/busy/queue", get(busy))
            .route("/flooded/queue", get(flooded))
            .route("/admin/queue", get(|| async { axum::Json(json!({"leading": true, "items": []})) }));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        let file = tempfile::NamedTempFile::new().unwrap();
        let config = json!({"apiVersion": "v1", "kind": "Config", "current-context": "a",
            "contexts": [{"name": "a", "context": {"cluster": "a", "user": "a"}}], "users": [{"name": "a", "user": {}}],
            "clusters": [{"name": "a", "cluster": {"server": format!("http://{address}")}}]});
        std::fs::write(file.path(), config.to_string()).unwrap();
        (file, address)
    }

    #[tokio::test]
    async fn the_leading_pod_is_reached_through_the_api_servers_proxy() {
        let (kubeconfig, address) = api_server().await;
        let access = Access { kubeconfig: Some(kubeconfig.path().to_owned()), context: None };
        let args = LeaderArgs { admin_url: None, scheduler_namespace: "system".into() };
        let leader = LeaderClient::find(&args, &access).await.unwrap();
        let queue: Value = leader.get("/queue").await.unwrap();
        assert_eq!(queue["leading"], true);
        assert_eq!(leader.rivals(), None);
        let torn = LeaderArgs { scheduler_namespace: "torn".into(), ..args.clone() };
        let rivals = LeaderClient::find(&torn, &access).await.unwrap().rivals().unwrap();
        assert!(rivals.starts_with("pod torn/two and pod torn/one lead at once"), "{rivals}");
        let nowhere = LeaderArgs { scheduler_namespace: "empty".into(), ..args };
        let error = LeaderClient::find(&nowhere, &access).await.err().unwrap().to_string();
        assert!(error.contains("namespace empty") && error.contains("--admin-url"), "{error}");
        // An address is used as it is, and over plain HTTP nothing is shown to it.
        let url = format!("http://{address}/admin").parse().unwrap();
        let direct = LeaderArgs { admin_url: Some(url), ..nowhere };
        let leader = LeaderClient::find(&direct, &Access::default()).await.unwrap();
        let queue: Value = leader.get("/queue").await.unwrap();
        assert_eq!(queue["leading"], true);
    }
    #[tokio::test]
    async fn where_the_scheduler_asks_to_wait_a_command_asks_again_and_not_for_ever() {
        let (_, address) = api_server().await;
        let ask = async |path: &str| {
            let url = format!("http://{address}/{path}").parse().unwrap();
            let args = LeaderArgs { admin_url: Some(url), scheduler_namespace: "system".into() };
            LeaderClient::find(&args, &Access::default()).await.unwrap().get::<Value>("/queue").await
        };
        assert_eq!(ask("busy").await.unwrap()["leading"], true);
        let why = ask("flooded").await.unwrap_err().to_string();
        assert!(why.contains("too many questions reach http://"), "{why}");
    }
}

//! Requests to the leading scheduler: at an address, or through the API server's proxy to its pod.

use anyhow::{Context, anyhow};
use clap::Args;
use http::{Request, Uri};
use k8s_openapi::api::core::v1::Pod;
use kube::Client;
use kube::api::{Api, ListParams};
use kube::client::Body;
use serde::de::DeserializeOwned;

use super::live::{self, Access};
use super::say::Usage;
use crate::cluster::client;

/// Labels of the scheduler's pods, with or without the extender.
pub(super) const LABELS: &str = "app.kubernetes.io/part-of=baton,app.kubernetes.io/component=scheduler";
/// Name of the admin port in their containers, and the port where none has that name.
const PORT: (&str, i32) = ("admin", 9403);

/// How the scheduler is found.
#[derive(Debug, Clone, Args)]
pub struct LeaderArgs {
    /// Admin HTTP of the leading scheduler, e.g. http://127.0.0.1:9403; else BATON_ADMIN_URL, or it is found through the API
    /// server.
    #[arg(long, value_name = "URL", global = true)]
    pub admin_url: Option<Uri>,
    /// Namespace of the scheduler's pods.
    #[arg(long, default_value = "baton-system", value_name = "NAMESPACE", global = true)]
    pub scheduler_namespace: String,
}

/// An empty variable counts as unset.
fn admin_url(variable: Option<String>) -> Result<Option<Uri>, Usage> {
    let Some(text) = variable.filter(|text| !text.is_empty()) else { return Ok(None) };
    let url = text.parse().map_err(|error| Usage(format!("BATON_ADMIN_URL {text:?}: {error}")))?;
    Ok(Some(url))
}

/// The leading scheduler.
pub struct Leader {
    client: Client,
    /// Before each path.
    prefix: String,
    /// For messages.
    place: String,
}

impl Leader {
    /// Finds it. A given address is used as it is.
    pub async fn find(args: &LeaderArgs, access: &Access) -> anyhow::Result<Self> {
        if let Some(url) = &args.admin_url.clone().or(admin_url(std::env::var("BATON_ADMIN_URL").ok())?) {
            if url.scheme_str() != Some("http") && url.scheme_str() != Some("https") {
                return Err(Usage(format!("--admin-url {url}: expected a URL like http://127.0.0.1:9403")).into());
            }
            return Ok(Self { client: client::at(url.clone())?, prefix: String::new(), place: url.to_string() });
        }
        let how = "cannot look for the scheduler; --admin-url URL names it directly";
        let client = access.connect().await.context(how)?;
        let namespace = &args.scheduler_namespace;
        let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
        let params = ListParams::default().labels(LABELS);
        let looking = || format!("looking for the scheduler in namespace {namespace}");
        let pods = live::patiently(pods.list(&params), looking).await.context(how)?;
        let mut silent = Vec::new();
        for pod in &pods.items {
            let name = pod.metadata.name.clone().unwrap_or_default();
            let ports = pod
                .spec
                .iter()
                .flat_map(|spec| &spec.containers)
                .flat_map(|container| container.ports.iter().flatten());
            let mut ports = ports.filter(|port| port.name.as_deref() == Some(PORT.0));
            let port = ports.next().map_or(PORT.1, |port| port.container_port);
            let prefix = format!("/api/v1/namespaces/{namespace}/pods/{name}:{port}/proxy");
            let leader = Self { client: client.clone(), prefix, place: format!("pod {namespace}/{name}") };
            match leader.request(http::Method::GET, "/leading", String::new()).await {
                Ok((200, _)) => return Ok(leader),
                Ok((503, _)) => silent.push(format!("{name} does not lead")),
                Ok((status, text)) => silent.push(format!("{name} answers {status} {}", text.trim())),
                Err(error) => silent.push(format!("{name}: {error:#}")),
            }
        }
        let found = if silent.is_empty() { format!("no pod there has the labels {LABELS}") } else { silent.join(", ") };
        Err(anyhow!("no scheduler leads in namespace {namespace}: {found}; give --scheduler-namespace or --admin-url"))
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
            200 => serde_json::from_str(&text)
                .with_context(|| format!("{} does not answer {path} as this version of baton reads it", self.place)),
            400 | 404 | 413 | 422 if !text.trim_start().starts_with('{') => Err(anyhow!("{}", text.trim())),
            status => Err(anyhow!("{} answers {path} with {status}: {}", self.place, text.trim())),
        }
    }

    async fn request(&self, method: http::Method, path: &str, body: String) -> anyhow::Result<(u16, String)> {
        let uri = format!("{}{path}", self.prefix);
        let request = Request::builder().method(method).uri(uri).body(Body::from(body.into_bytes()))?;
        let cannot = || format!("cannot ask the scheduler at {}", self.place);
        let answer = async {
            let response = self.client.send(request).await.with_context(cannot)?;
            let status = response.status().as_u16();
            let bytes = response.into_body().collect_bytes().await.with_context(cannot)?;
            Ok((status, String::from_utf8_lossy(&bytes).into_owned()))
        };
        live::patiently(answer, || format!("asking the scheduler at {}", self.place)).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::Router;
    use axum::http::StatusCode;
    use axum::routing::get;
    use serde_json::{Value, json};

    /// An API server with two schedulers, the second of which leads, behind its pod proxy.
    async fn api_server() -> (tempfile::NamedTempFile, std::net::SocketAddr) {
        let pod = |name: &str| {
            json!({"metadata": {"name": name, "namespace": "system"}, "spec": {"containers": [{"name": "scheduler",
                "ports": [{"name": "admin", "containerPort": 9500}]}]}})
        };
        let list = json!({"apiVersion": "v1", "kind": "PodList", "metadata": {}, "items": [pod("one"), pod("two")]});
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
                &format!("{proxy}/one:9500/proxy/leading"),
                get(|| async { (StatusCode::SERVICE_UNAVAILABLE, "following\n") }),
            )
            .route(&format!("{proxy}/two:9500/proxy/leading"), get(|| async { "leading\n" }))
            .route(
                &format!("{proxy}/two:9500/proxy/queue"),
                get(|| async { axum::Json(json!({"leading": true, "items": []})) }),
            );
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
        let leader = Leader::find(&args, &access).await.unwrap();
        let queue: Value = leader.get("/queue").await.unwrap();
        assert_eq!(queue["leading"], true);
        let nowhere = LeaderArgs { scheduler_namespace: "empty".into(), ..args };
        let error = Leader::find(&nowhere, &access).await.err().unwrap().to_string();
        assert!(error.contains("namespace empty") && error.contains("--admin-url"), "{error}");
        // An address is used as it is.
        let url = format!("http://{address}/api/v1/namespaces/system/pods/two:9500/proxy").parse().unwrap();
        let direct = LeaderArgs { admin_url: Some(url), ..nowhere };
        let leader = Leader::find(&direct, &Access::default()).await.unwrap();
        let queue: Value = leader.get("/queue").await.unwrap();
        assert_eq!(queue["leading"], true);
    }
}

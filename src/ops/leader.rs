//! Requests to the leading scheduler and to node daemons: over one port-forward to the pod, or at an address.

use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use axum::body::Body;
use clap::Args;
use http::{Method, Request, Uri};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, ListParams};
use kube::{Client, ResourceExt};
use serde::de::DeserializeOwned;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::Mutex;

use super::live::{self, Access, Home};
use super::say::UsageError;
use baton_cluster::forward::{self, EndReason, ForwardError};

/// Labels of the scheduler's pods, with or without the extender.
pub(super) const LABELS: &str = "app.kubernetes.io/part-of=baton,app.kubernetes.io/component=scheduler";
/// The Lease of the one that leads.
const LEASE: &str = "baton-scheduler";
/// Name of the port in their containers, and the port where none has the name.
const ADMIN: (&str, u16) = ("admin", 9413);
const SCHEDULER: &str = "scheduler";
/// The same of node daemons.
const NODE_LABELS: &str = "app.kubernetes.io/part-of=baton,app.kubernetes.io/name=baton-device-plugin";
const NODE_ADMIN: (&str, u16) = ("admin", 9412);
/// Most bytes of an answer: a daemon on a stolen node says what it likes.
const MOST: usize = 64 << 20;
/// Longest wait for a connection to an address, and for an answer.
const CONNECT: Duration = Duration::from_secs(5);
const ANSWER: Duration = Duration::from_secs(15);

/// How the scheduler is found.
#[derive(Debug, Clone, Args)]
pub struct LeaderArgs {
    /// Admin address of the leading scheduler, e.g. http://127.0.0.1:9413 beside `kubectl port-forward`; else BATON_ADMIN_URL, or it is
    /// found and reached through the API server.
    #[arg(long, value_name = "URL", global = true)]
    pub admin_url: Option<Uri>,
    #[command(flatten)]
    pub home: Home,
}

/// An empty variable counts as unset.
fn admin_url(variable: Option<String>) -> Result<Option<Uri>, UsageError> {
    let Some(text) = variable.filter(|text| !text.is_empty()) else { return Ok(None) };
    let url = text.parse().map_err(|error| UsageError(format!("BATON_ADMIN_URL {text:?}: {error}")))?;
    Ok(Some(url))
}

/// Where the admin address of a daemon is.
enum Way {
    /// At a URL of this machine or network.
    Url(Uri),
    /// On the loopback of a pod.
    Pod { client: Client, namespace: String, name: String, port: u16 },
}

/// A connection, and why it ended.
type AdminConnection = (SendRequest<Body>, EndReason);

/// The leading scheduler, or a node daemon.
pub struct LeaderClient {
    way: Way,
    /// What it is, for messages.
    kind: &'static str,
    /// What to try where it cannot be reached.
    instead: String,
    /// Kept from question to question.
    connection: Mutex<Option<AdminConnection>>,
}

impl LeaderClient {
    fn at(kind: &'static str, url: Uri, namespace: &str) -> Self {
        let port = url.port_u16().unwrap_or(80);
        let instead = format!("`kubectl -n {namespace} port-forward POD {port}` opens this way to the daemon of a pod");
        Self { way: Way::Url(url), kind, instead, connection: Mutex::default() }
    }

    fn in_pod(kind: &'static str, client: &Client, pod: &Pod, port: (&str, u16)) -> Self {
        let (namespace, name) = (pod.namespace().unwrap_or_default(), pod.name_any());
        let port = container_port(pod, port);
        let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()).unwrap_or_default();
        let instead = if kind == SCHEDULER {
            format!(
                "another way is --admin-url http://127.0.0.1:{port} beside `kubectl -n {namespace} port-forward {name} {port}`; both go \
                 through the kubelet of {node}: `kubectl get node {node}`"
            )
        } else {
            format!(
                "it is asked through the kubelet of {node}: `kubectl get node {node}`, `kubectl -n {namespace} logs {name}`"
            )
        };
        let way = Way::Pod { client: client.clone(), namespace, name, port };
        Self { way, kind, instead, connection: Mutex::default() }
    }

    /// Finds the leading scheduler. A given address is used as it is.
    pub async fn find(args: &LeaderArgs, access: &Access) -> anyhow::Result<Self> {
        if let Some(url) = args.admin_url.clone().or(admin_url(std::env::var("BATON_ADMIN_URL").ok())?) {
            if url.scheme_str() != Some("http") || url.host().is_none() {
                let text = format!("--admin-url {url}: expected a URL like http://127.0.0.1:9413");
                return Err(UsageError(text).into());
            }
            return Ok(Self::at(SCHEDULER, url, &args.home.namespace));
        }
        let how = "cannot look for the scheduler; --admin-url URL names it directly";
        let client = access.connect().await.context(how)?;
        let namespace = &args.home.namespace;
        let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
        let leases: Api<Lease> = Api::namespaced(client.clone(), namespace);
        let params = ListParams::default().labels(LABELS);
        let looking = async { tokio::join!(pods.list(&params), leases.get_opt(LEASE)) };
        let looking = live::patiently(looking, || format!("looking for the scheduler in namespace {namespace}"));
        let (pods, lease) = looking.await;
        let list = format!("list pods in namespace {namespace}");
        let mut pods = pods.map_err(|error| live::cannot_in(namespace, &list, error)).context(how)?.items;
        // Without the Lease every pod may be the one.
        let holder = lease.ok().flatten().and_then(|lease| lease.spec?.holder_identity).unwrap_or_default();
        pods.sort_by_key(|pod| !holds(pod, &holder));
        let (mut silent, mut asked) = (Vec::new(), 0);
        for pod in &pods {
            let scheduler = Self::in_pod(SCHEDULER, &client, pod, ADMIN);
            match scheduler.request(Method::GET, "/leading", "").await {
                Ok((200, _)) => return Ok(scheduler),
                Ok((503, _)) => {
                    asked += 1;
                    silent.push(format!("{} does not lead", scheduler.place()));
                }
                Ok((status, text)) => silent.push(format!("{} answers {status} {}", scheduler.place(), text.trim())),
                // The same for every pod.
                Err(error) if matches!(error.downcast_ref(), Some(ForwardError::Forbidden { .. })) => {
                    return Err(error);
                }
                Err(error) => silent.push(format!("{error:#}")),
            }
        }
        if silent.is_empty() {
            let elsewhere = Api::<Pod>::all(client).list_metadata(&params).await.ok();
            if let Some(there) = elsewhere.and_then(|pods| pods.items.first()?.namespace()) {
                bail!(
                    "no scheduler of Baton is in namespace {namespace}, but in {there}: give --baton-namespace {there}, or set BATON_NAMESPACE"
                );
            }
            silent.push(format!("no pod there has the labels {LABELS}"));
        } else if asked < silent.len() {
            // One of those that cannot be asked may lead.
            let silent = silent.join(", ");
            bail!("it is not known which scheduler leads in namespace {namespace}: {silent}; give --admin-url");
        }
        let found = silent.join(", ");
        bail!("no scheduler leads in namespace {namespace}: {found}; give --baton-namespace or --admin-url")
    }

    /// The node daemon on `node`, which is asked in the same way: at `url`, or in its pod in `namespace`.
    pub async fn of_node(client: Client, namespace: &str, node: &str, url: Option<&Uri>) -> anyhow::Result<Self> {
        let kind = "node daemon";
        if let Some(url) = url {
            return Ok(Self::at(kind, url.clone(), namespace));
        }
        let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
        let params = ListParams::default().labels(NODE_LABELS).fields(&format!("spec.nodeName={node}"));
        let look = format!("look for the node daemon of {node}");
        let pods = pods.list(&params).await.map_err(|error| live::cannot_in(namespace, &look, error))?;
        let runs = |pod: &&Pod| pod.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Running");
        let pod = pods.items.iter().find(runs);
        let pod = pod.ok_or_else(|| anyhow!("no pod in namespace {namespace} runs the node daemon of {node}"))?;
        Ok(Self::in_pod(kind, &client, pod, NODE_ADMIN))
    }

    pub async fn leads(&self) -> bool {
        matches!(self.request(Method::GET, "/leading", "").await, Ok((200, _)))
    }

    /// Where it is, for messages.
    pub fn place(&self) -> String {
        match &self.way {
            Way::Url(url) => url.to_string(),
            Way::Pod { namespace, name, .. } => format!("pod {namespace}/{name}"),
        }
    }

    /// The answer to a GET, read from JSON. A refusal is an error with the scheduler's text.
    pub async fn get<T: DeserializeOwned>(&self, path: &str) -> anyhow::Result<T> {
        self.ask(Method::GET, path, "").await
    }

    /// The answer to a POST of `body`.
    pub async fn post<T: DeserializeOwned>(&self, path: &str, body: String) -> anyhow::Result<T> {
        self.ask(Method::POST, path, &body).await
    }

    async fn ask<T: DeserializeOwned>(&self, method: Method, path: &str, body: &str) -> anyhow::Result<T> {
        let (status, text) = self.request(method, path, body).await?;
        match status {
            200 => serde_json::from_str(&text)
                .with_context(|| format!("{} does not answer {path} as this version of baton reads it", self.place())),
            400 | 404 | 413 | 422 if !text.trim_start().starts_with('{') => Err(anyhow!("{}", text.trim())),
            status => Err(anyhow!("{} answers {path} with {status}: {}", self.place(), text.trim())),
        }
    }

    /// Status and text of the answer.
    async fn request(&self, method: Method, path: &str, body: &str) -> anyhow::Result<(u16, String)> {
        let answer = async {
            let mut kept = self.connection.lock().await;
            // The daemon may have closed it, or started again, since the last question; every question may be asked twice.
            if let Some(connection) = kept.take()
                && let Ok((answer, connection)) = self.exchange(connection, &method, path, body).await
            {
                *kept = Some(connection);
                return Ok(answer);
            }
            let connection = self.open().await?;
            let (answer, connection) = self.exchange(connection, &method, path, body).await?;
            *kept = Some(connection);
            Ok(answer)
        };
        let answer = live::patiently(answer, || format!("asking the {} at {}", self.kind, self.place())).await;
        answer.map_err(|error: anyhow::Error| {
            let cannot = format!("cannot ask the {} at {}", self.kind, self.place());
            match error.downcast_ref() {
                Some(ForwardError::Forbidden { .. }) => error.context(cannot),
                _ => error.context(format!("{cannot}; {}", self.instead)),
            }
        })
    }

    async fn open(&self) -> anyhow::Result<AdminConnection> {
        match &self.way {
            Way::Url(url) => {
                let host = url.host().unwrap_or_default().trim_start_matches('[').trim_end_matches(']');
                let stream = TcpStream::connect((host, url.port_u16().unwrap_or(80)));
                let stream = tokio::time::timeout(CONNECT, stream).await.context("no connection within 5 s")??;
                connected(stream, Box::pin(std::future::ready(None))).await
            }
            Way::Pod { client, namespace, name, port } => {
                let (stream, reason) = forward::open(client, namespace, name, *port).await?;
                connected(stream, reason).await
            }
        }
    }

    async fn exchange(
        &self,
        (mut sender, reason): AdminConnection,
        method: &Method,
        path: &str,
        body: &str,
    ) -> anyhow::Result<((u16, String), AdminConnection)> {
        let prefix = match &self.way {
            Way::Url(url) => url.path().trim_end_matches('/'),
            Way::Pod { .. } => "",
        };
        let request = Request::builder().method(method).uri(format!("{prefix}{path}")).header("host", "baton");
        let request = request.body(Body::from(body.to_owned()))?;
        let exchanged = tokio::time::timeout(ANSWER, async {
            sender.ready().await?;
            let response = sender.send_request(request).await?;
            let status = response.status().as_u16();
            let bytes = axum::body::to_bytes(Body::new(response.into_body()), MOST).await?;
            anyhow::Ok((status, String::from_utf8_lossy(&bytes).into_owned()))
        });
        match exchanged.await {
            Ok(Ok(answer)) => Ok((answer, (sender, reason))),
            Ok(Err(error)) => match reason.await {
                Some(why) => Err(anyhow!("{why}; {NO_LISTENER}")),
                None => Err(error),
            },
            Err(_) => Err(anyhow!("no answer within {} s", ANSWER.as_secs())),
        }
    }
}

/// Of a port that is closed in a pod.
const NO_LISTENER: &str = "a daemon in the host's network opens no admin address unless --listen names one";

async fn connected<S>(stream: S, reason: EndReason) -> anyhow::Result<AdminConnection>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (sender, connection) = handshake(TokioIo::new(stream)).await?;
    // Its errors are those of the requests on it.
    tokio::spawn(connection);
    Ok((sender, reason))
}

/// Whether the holder of the Lease is the process in this pod: its identity begins with the name of its host, which is that of the pod,
/// cut off where it is long, or in the host's network that of the node.
fn holds(pod: &Pod, holder: &str) -> bool {
    let host = holder.rsplitn(3, '_').nth(2).unwrap_or_default();
    let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref());
    let named = pod.metadata.name.as_deref().is_some_and(|name| name.starts_with(host));
    !host.is_empty() && (named || node == Some(host))
}

fn container_port(pod: &Pod, (name, default): (&str, u16)) -> u16 {
    let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
    let mut ports = containers.flat_map(|container| container.ports.iter().flatten());
    let named = ports.find(|port| port.name.as_deref() == Some(name));
    named.and_then(|port| port.container_port.try_into().ok()).unwrap_or(default)
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::Router;
    use axum::routing::get;
    use serde_json::{Value, json};

    async fn server() -> std::net::SocketAddr {
        let queue = get(|| async { axum::Json(json!({"leading": true, "items": []})) });
        let router = Router::new().route("/admin/queue", queue);
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        address
    }

    async fn found(url: &str) -> anyhow::Result<LeaderClient> {
        let args = LeaderArgs { admin_url: Some(url.parse().unwrap()), home: Home { namespace: "empty".into() } };
        LeaderClient::find(&args, &Access::default()).await
    }

    #[tokio::test]
    async fn an_address_is_used_as_it_is_and_one_that_is_closed_says_how_to_open_it() {
        let address = server().await;
        let leader = found(&format!("http://{address}/admin")).await.unwrap();
        for _ in 0..2 {
            assert_eq!(leader.get::<Value>("/queue").await.unwrap()["leading"], true);
        }
        let closed = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
        let leader = found(&format!("http://{closed}")).await.unwrap();
        let why = format!("{:#}", leader.get::<Value>("/queue").await.unwrap_err());
        let command = format!("`kubectl -n empty port-forward POD {}`", closed.port());
        assert!(why.contains(&command) && why.contains("refused"), "{why}");
        for bad in ["https://127.0.0.1:9413", "127.0.0.1:9413"] {
            let why = found(bad).await.err().unwrap().to_string();
            assert!(why.contains(bad) && why.contains("http://127.0.0.1:9413"), "{why}");
        }
    }

    #[test]
    fn the_holder_of_the_lease_is_the_pod_or_the_node_of_its_host() {
        let long = format!("baton-scheduler-{}-x7k2p", "a".repeat(60));
        let pod: Pod = serde_json::from_value(
            json!({"metadata": {"name": long}, "spec": {"nodeName": "node-1", "containers": []}}),
        )
        .unwrap();
        for (holder, expected) in [
            (format!("{}_1_1764230400000", &long[..63]), true),
            ("node-1_814_1764230400000".to_owned(), true),
            ("node-12_814_1764230400000".to_owned(), false),
            ("baton-scheduler-b_1_1764230400000".to_owned(), false),
            ("chosen-by-hand".to_owned(), false),
            (String::new(), false),
        ] {
            assert_eq!(holds(&pod, &holder), expected, "{holder}");
        }
    }
}

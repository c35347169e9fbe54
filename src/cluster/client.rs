//! Connecting to the API server.

use std::path::{Path, PathBuf};
use std::time::Duration;

use axum::body::Body;
use http::{HeaderValue, Response, header};
use kube::client::ClientBuilder;
use kube::config::{KubeConfigOptions, Kubeconfig, KubeconfigError};
use kube::{Client, Config};
use serde_json::json;
use tower::util::MapResponseLayer;

use super::requests::{ANSWER, Requests, Resumed};
use baton_runtime::metrics::RequestMetrics;
use baton_runtime::words;

/// Why there is no client.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The kubeconfig cannot be read.
    #[error("kubeconfig {path} cannot be used: {source}")]
    Kubeconfig {
        /// The file.
        path: PathBuf,
        /// Why.
        source: KubeconfigError,
    },
    /// The kubeconfig has no such context.
    #[error("the kubeconfig has no context {name:?}; it has {}", known.join(", "))]
    Context {
        /// What was asked for.
        name: String,
        /// Those that it has.
        known: Vec<String>,
    },
    /// Neither in a cluster nor is there a kubeconfig.
    #[error(
        "no API server to talk to: not in a cluster, and no kubeconfig found ({source}); give --kubeconfig FILE or set KUBECONFIG"
    )]
    Infer {
        /// Why.
        source: kube::config::InferConfigError,
    },
    /// The configuration names something that cannot be loaded (certificate, token file).
    #[error("the API server's configuration cannot be used: {source}")]
    Client {
        /// Why.
        source: kube::Error,
    },
}

/// [`connect_as`] for commands that are no daemon: `baton/<version>`.
pub async fn connect(kubeconfig: Option<&Path>) -> Result<Client, ConnectError> {
    connect_as("baton", kubeconfig).await
}

/// The same for a context of the kubeconfig that is not its current one.
pub async fn connect_to(kubeconfig: Option<&Path>, context: Option<&str>) -> Result<Client, ConnectError> {
    Ok(client_of("baton", configuration(kubeconfig, context).await?, &RequestMetrics::default())?.0)
}

/// A client for the cluster that `kubeconfig` names, or else the in-cluster configuration or `KUBECONFIG`. Its requests say
/// `User-Agent: <program>/<version>`, by which audit logs distinguish our daemons; `program` is a plain word.
///
/// The library's blind retry of 429, 503 and 504 is off: whether a Binding or an eviction is sent again is the caller's
/// decision. Callers back off themselves.
pub async fn connect_as(program: &'static str, kubeconfig: Option<&Path>) -> Result<Client, ConnectError> {
    Ok(connect_counted(program, kubeconfig, &RequestMetrics::default()).await?.0)
}

/// [`connect_as`], with the watches that resume; what is sent and heard is counted.
pub async fn connect_counted(
    program: &'static str,
    kubeconfig: Option<&Path>,
    requests: &RequestMetrics,
) -> Result<(Client, Resumed), ConnectError> {
    client_of(program, configuration(kubeconfig, None).await?, requests)
}

fn client_of(
    program: &'static str,
    mut config: Config,
    requests: &RequestMetrics,
) -> Result<(Client, Resumed), ConnectError> {
    let agent = format!("{program}/{}", env!("CARGO_PKG_VERSION"));
    config.headers.extend(HeaderValue::from_str(&agent).ok().map(|agent| (header::USER_AGENT, agent)));
    config.default_retry = false;
    config.connect_timeout = Some(Duration::from_secs(5));
    config.read_timeout = Some(Duration::from_secs(330));
    config.write_timeout = Some(Duration::from_secs(15));
    let builder = ClientBuilder::try_from(config).map_err(|source| ConnectError::Client { source })?;
    let resumed = Resumed::new();
    let client = builder
        .with_layer(&Requests { resumed: resumed.clone(), answer: ANSWER, metrics: requests.clone() })
        .with_layer(&MapResponseLayer::new(overload_as_status))
        .build();
    Ok((client, resumed))
}

/// The address of the API server that [`connect`] would use. Nothing is asked there.
pub fn server(kubeconfig: Option<&Path>) -> Result<http::Uri, ConnectError> {
    // Only the types of the library are asynchronous: it reads files.
    futures::executor::block_on(configuration(kubeconfig, None)).map(|config| config.cluster_url)
}

/// The namespace of the context that [`connect`] would use; `default` where there is none.
pub async fn namespace(kubeconfig: Option<&Path>, context: Option<&str>) -> String {
    configuration(kubeconfig, context).await.map_or_else(|_| "default".to_owned(), |config| config.default_namespace)
}

async fn configuration(kubeconfig: Option<&Path>, context: Option<&str>) -> Result<Config, ConnectError> {
    let failed = |source| ConnectError::Kubeconfig {
        path: kubeconfig.unwrap_or(Path::new("~/.kube/config")).to_owned(),
        source,
    };
    let file = match (kubeconfig, context) {
        (Some(path), _) => read(path).map_err(failed)?,
        (None, Some(_)) => Kubeconfig::read().map_err(failed)?,
        (None, None) => {
            let config = Config::infer().await.map_err(|source| ConnectError::Infer { source })?;
            let named = Kubeconfig::read().is_ok_and(|file| names_proxy(&file, None));
            return Ok(if named { config } else { without_environment_proxy(config) });
        }
    };
    if let Some(name) = context.filter(|name| file.contexts.iter().all(|known| known.name != **name)) {
        let known = file.contexts.iter().map(|context| context.name.clone()).collect();
        return Err(ConnectError::Context { name: name.to_owned(), known });
    }
    let named = names_proxy(&file, context);
    let options = KubeConfigOptions { context: context.map(str::to_owned), ..KubeConfigOptions::default() };
    let config = Config::from_custom_kubeconfig(file, &options).await.map_err(failed)?;
    Ok(if named { config } else { without_environment_proxy(config) })
}

/// One file, or several as in `KUBECONFIG=a:b`: the first one wins, and missing files are skipped.
fn read(path: &Path) -> Result<Kubeconfig, KubeconfigError> {
    let several: Vec<PathBuf> = std::env::split_paths(path).filter(|part| part.exists()).collect();
    if path.exists() || several.is_empty() {
        return Kubeconfig::read_from(path);
    }
    let files = several.iter().map(Kubeconfig::read_from).collect::<Result<Vec<_>, _>>()?;
    files.into_iter().try_fold(Kubeconfig::default(), Kubeconfig::merge)
}

/// Whether the file names a proxy for the cluster of the context, else of the current one.
fn names_proxy(file: &Kubeconfig, context: Option<&str>) -> bool {
    let name = context.or(file.current_context.as_deref());
    let context = file.contexts.iter().find(|context| Some(context.name.as_str()) == name);
    let cluster = context.and_then(|context| context.context.as_ref()).map(|context| &context.cluster);
    let cluster = file.clusters.iter().find(|found| Some(&found.name) == cluster);
    cluster.and_then(|found| found.cluster.as_ref()).is_some_and(|found| found.proxy_url.is_some())
}

/// The library takes `HTTPS_PROXY` for the cluster's proxy and ignores `NO_PROXY`. The API server of a cluster is reached
/// directly, unless the kubeconfig names a proxy.
fn without_environment_proxy(mut config: Config) -> Config {
    if let Some(proxy) = config.proxy_url.take() {
        tracing::info!(%proxy, "the proxy of the environment is not used for the API server; name it as proxy-url in the kubeconfig if it must be");
    }
    config
}

/// An overloaded API server answers in plain text, with the time to wait in a header that the library drops. The answer becomes
/// a Status like other refusals.
fn overload_as_status(response: Response<Body>) -> Response<Body> {
    let code = response.status().as_u16();
    let headers = response.headers();
    let word = |name| headers.get(name).and_then(|value: &HeaderValue| value.to_str().ok());
    let json = word(header::CONTENT_TYPE).is_some_and(|kind| kind.starts_with("application/json"));
    let seconds = word(header::RETRY_AFTER).and_then(|text| text.trim().parse::<u32>().ok());
    let Some(seconds) = seconds.filter(|_| matches!(code, 429 | 503) && !json) else { return response };
    let status = json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "code": code,
        "reason": if code == 429 { "TooManyRequests" } else { "ServiceUnavailable" },
        "message": format!("the API server is overloaded and asks to wait {seconds} s"),
        "details": {"retryAfterSeconds": seconds},
    });
    let (mut parts, _) = response.into_parts();
    parts.headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    parts.headers.remove(header::CONTENT_LENGTH);
    Response::from_parts(parts, Body::from(status.to_string()))
}

/// How long the API server asks to wait before the request is sent again.
pub fn retry_after(error: &kube::Error) -> Option<Duration> {
    let kube::Error::Api(status) = error else { return None };
    let seconds = status.details.as_ref()?.retry_after_seconds;
    (seconds > 0).then(|| Duration::from_secs(u64::from(seconds)))
}

/// The error for the owner of an object: of a refusal, the API server's message and nothing else.
pub fn said(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) if !status.message.is_empty() => status.message.clone(),
        _ => words(error),
    }
}

/// The API server cannot store the object. It hands on what etcd says of it, mostly with the code 500.
pub fn is_too_large(error: &kube::Error) -> bool {
    let words = ["request is too large", "message larger than max"];
    status_code(error) == Some(413) || words.iter().any(|words| said(error).contains(words))
}

/// HTTP status of a refusal by the API server; `None` for transport errors.
pub fn status_code(error: &kube::Error) -> Option<u16> {
    match error {
        kube::Error::Api(status) => Some(status.code),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_that_is_too_large_is_told_from_a_server_that_fails() {
        let too_large = |code: u16, message: &str| {
            let status = json!({ "status": "Failure", "code": code, "reason": "", "message": message });
            is_too_large(&kube::Error::Api(Box::new(serde_json::from_value(status).unwrap())))
        };
        assert!(too_large(413, "Request entity too large: limit is 3145728"));
        assert!(too_large(500, "etcdserver: request is too large"));
        let sent =
            "rpc error: code = ResourceExhausted desc = trying to send message larger than max (2231033 vs. 2097152)";
        assert!(too_large(500, sent));
        assert!(!too_large(500, "etcdserver: leader changed"));
    }

    fn overloaded(code: u16, kind: &'static str, wait: Option<&'static str>) -> Response<Body> {
        let mut answer = Response::builder().status(code).header(header::CONTENT_TYPE, kind);
        if let Some(wait) = wait {
            answer = answer.header(header::RETRY_AFTER, wait);
        }
        answer.body(Body::from("Too many requests, please try again later.")).unwrap()
    }

    async fn text(response: Response<Body>) -> String {
        String::from_utf8(axum::body::to_bytes(response.into_body(), 4096).await.unwrap().to_vec()).unwrap()
    }

    #[tokio::test]
    async fn an_overloaded_servers_plain_words_become_a_status_that_says_when_to_come_again() {
        let answer = overload_as_status(overloaded(429, "text/plain; charset=utf-8", Some("7")));
        let status: kube::core::Status = serde_json::from_str(&text(answer).await).unwrap();
        assert_eq!(status.code, 429);
        assert_eq!(retry_after(&kube::Error::Api(status.boxed())), Some(Duration::from_secs(7)));
    }

    #[test]
    fn a_refusal_is_reported_in_the_api_servers_own_words() {
        let status = kube::core::Status::failure("Pod \"a\" is invalid: spec: no", "Invalid").with_code(422);
        assert_eq!(said(&kube::Error::Api(status.boxed())), "Pod \"a\" is invalid: spec: no");
        let wordless = kube::core::Status::failure("", "Conflict").with_code(409);
        assert!(said(&kube::Error::Api(wordless.boxed())).contains("Conflict"));
    }

    #[tokio::test]
    async fn answers_that_say_all_themselves_are_left_alone() {
        for left in [
            overloaded(429, "application/json", Some("7")),
            overloaded(429, "text/plain", None),
            overloaded(500, "text/plain", Some("7")),
        ] {
            assert!(text(overload_as_status(left)).await.starts_with("Too many"));
        }
    }
}

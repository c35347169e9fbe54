//! Connecting to the API server.

use std::path::{Path, PathBuf};
use std::time::Duration;

use http::{HeaderValue, header};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};

/// Why there is no client.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The kubeconfig cannot be read.
    #[error("kubeconfig {path} cannot be used: {source}")]
    Kubeconfig {
        /// The file.
        path: PathBuf,
        /// Why.
        source: kube::config::KubeconfigError,
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

/// A client for the cluster that `kubeconfig` names, or else the in-cluster configuration or `KUBECONFIG`. Its requests say
/// `User-Agent: <program>/<version>`, by which audit logs tell our daemons apart; `program` is a plain word.
///
/// The library's blind retry of 429, 503 and 504 is off: a binding or an eviction that is sent again by a layer below is not
/// the caller's decision any more. Callers back off themselves.
pub async fn connect_as(program: &'static str, kubeconfig: Option<&Path>) -> Result<Client, ConnectError> {
    let mut config = match kubeconfig {
        Some(path) => {
            let file = |source| ConnectError::Kubeconfig { path: path.to_owned(), source };
            let parsed = Kubeconfig::read_from(path).map_err(file)?;
            Config::from_custom_kubeconfig(parsed, &KubeConfigOptions::default()).await.map_err(file)?
        }
        None => Config::infer().await.map_err(|source| ConnectError::Infer { source })?,
    };
    let agent = format!("{program}/{}", env!("CARGO_PKG_VERSION"));
    config.headers.extend(HeaderValue::from_str(&agent).ok().map(|agent| (header::USER_AGENT, agent)));
    config.default_retry = false;
    config.connect_timeout = Some(Duration::from_secs(5));
    config.read_timeout = Some(Duration::from_secs(330));
    config.write_timeout = Some(Duration::from_secs(15));
    Client::try_from(config).map_err(|source| ConnectError::Client { source })
}

/// A client for plain HTTP at `url`, which is no API server: the scheduler's admin address.
pub fn at(url: http::Uri) -> Result<Client, ConnectError> {
    let mut config = Config::new(url);
    config.default_retry = false;
    config.connect_timeout = Some(Duration::from_secs(5));
    config.read_timeout = Some(Duration::from_secs(15));
    config.write_timeout = Some(Duration::from_secs(15));
    Client::try_from(config).map_err(|source| ConnectError::Client { source })
}

/// HTTP status of a refusal by the API server; `None` for transport errors.
pub fn status_code(error: &kube::Error) -> Option<u16> {
    match error {
        kube::Error::Api(status) => Some(status.code),
        _ => None,
    }
}

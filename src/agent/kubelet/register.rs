//! One Register call on the kubelet's socket.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;
use tonic::transport::{Channel, Endpoint};

use baton_contract::deviceplugin::RegisterRequest;
use baton_contract::deviceplugin::registration_client::RegistrationClient;

/// Why the kubelet did not register a plugin.
#[derive(Debug, thiserror::Error)]
pub enum RegisterError {
    /// There is no socket.
    #[error("the kubelet is absent: {} does not exist; waiting for it (check --kubelet-dir if it runs)", .0.display())]
    Absent(PathBuf),
    /// No process listens, or the connection broke.
    #[error("the kubelet's socket {} cannot be used: {source}", path.display())]
    Connect {
        /// The socket.
        path: PathBuf,
        /// Why.
        source: tonic::transport::Error,
    },
    /// The kubelet answered no.
    #[error("the kubelet refused the registration: {} ({:?})", .0.message(), .0.code())]
    Refused(tonic::Status),
    /// No answer.
    #[error("the kubelet did not answer within {0:?}")]
    Silent(Duration),
}

impl RegisterError {
    /// The kubelet may have taken the registration all the same: a broken answer comes as a refusal.
    pub fn may_be_taken(&self) -> bool {
        matches!(self, Self::Silent(_) | Self::Refused(_))
    }
}

/// A channel to a Unix socket. `:authority` is the plain name `localhost`: strict HTTP/2 parsers refuse a path there.
pub async fn dial(path: &Path, connect: Duration) -> Result<Channel, tonic::transport::Error> {
    let path = path.to_owned();
    let connector = tower::service_fn(move |_: tonic::transport::Uri| {
        let path = path.clone();
        async move { Ok::<_, io::Error>(TokioIo::new(UnixStream::connect(path).await?)) }
    });
    Endpoint::from_static("http://localhost").connect_timeout(connect).connect_with_connector(connector).await
}

/// Registers. The kubelet dials the plugin back inside the call, so the plugin serves already.
pub async fn register(kubelet: &Path, request: RegisterRequest, timeout: Duration) -> Result<(), RegisterError> {
    if !kubelet.exists() {
        return Err(RegisterError::Absent(kubelet.to_owned()));
    }
    let call = async {
        let channel = dial(kubelet, timeout.min(Duration::from_secs(5)))
            .await
            .map_err(|source| RegisterError::Connect { path: kubelet.to_owned(), source })?;
        RegistrationClient::new(channel).register(request).await.map_err(RegisterError::Refused)
    };
    tokio::time::timeout(timeout, call).await.map_err(|_| RegisterError::Silent(timeout))?.map(drop)
}

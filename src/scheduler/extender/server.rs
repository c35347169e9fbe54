//! The extender's address and the limits of its clients.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use super::options::{ExtenderError, ExtenderOptions};
use super::requests::Front;
use super::tls::Renewed;
use super::verbs;
use crate::runtime::http::{HttpServer, Tls};

/// Open connections: each pod that kube-scheduler is binding has one. Further ones wait in the kernel's queue.
const CONNECTIONS: usize = 1024;
/// Time for a request's head; an idle connection is closed after it.
const HEAD: Duration = Duration::from_secs(60);

/// The extender's open address.
pub struct Extender {
    listener: TcpListener,
    tls: Option<Tls>,
}

impl Extender {
    /// Opens the address; `None` when the options name none. Port 0 takes a free port.
    pub async fn open(options: &ExtenderOptions) -> Result<Option<Self>, ExtenderError> {
        options.validate()?;
        let Some(address) = options.listen else { return Ok(None) };
        let tls = Renewed::open(options)?.map(|tls| -> Tls { Arc::new(move || tls.acceptor()) });
        let listener = TcpListener::bind(address).await.map_err(|source| ExtenderError::Listen { address, source })?;
        tracing::info!(%address, tls = tls.is_some(), "serving kube-scheduler's extender calls");
        Ok(Some(Self { listener, tls }))
    }

    /// Where it is.
    pub fn address(&self) -> Option<SocketAddr> {
        self.listener.local_addr().ok()
    }

    /// Serves until `stop`. A panicking handler answers 500 and harms nothing else.
    pub async fn serve(self, front: Front, stop: CancellationToken) {
        let Self { listener, tls } = self;
        let server = HttpServer { name: "extender", listener, tls, connections: CONNECTIONS, head: HEAD };
        server.serve(verbs::router(front), stop).await;
    }
}

//! The extender's address and the limits of its clients.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use super::options::{ExtenderError, ExtenderOptions};
use super::requests::Front;
use super::verbs;
use baton_runtime::admin::listen;
use baton_runtime::http::{HttpServer, Limits};
use baton_runtime::tls::Tls;

/// Each pod that kube-scheduler is binding has a connection. How long an answer may take is the verbs' own business.
const LIMITS: Limits =
    Limits { connections: 1024, one_request: false, head: Duration::from_secs(60), answer: None, age: None };

/// The extender's open address.
pub struct Extender {
    listener: TcpListener,
    tls: Option<Tls>,
}

impl Extender {
    /// Opens the address; `None` when the options name none. Port 0 takes a free port.
    pub fn open(options: &ExtenderOptions) -> Result<Option<Self>, ExtenderError> {
        options.validate()?;
        let Some(address) = options.listen else { return Ok(None) };
        let tls = options.tls()?;
        let listener = listen(address, "kube-scheduler", "--extender-listen")?;
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
        let server = HttpServer { name: "extender", listener, tls, limits: LIMITS };
        server.serve(verbs::router(front), stop).await;
    }
}

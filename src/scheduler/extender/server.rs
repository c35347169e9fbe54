//! The listener: every connection has its own task and its own limits, so that no client can hold up another one.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tower_http::catch_panic::CatchPanicLayer;

use super::ask::Front;
use super::options::{ExtenderError, ExtenderOptions};
use super::tls::acceptor;
use super::verbs;

/// Largest request body, in bytes.
pub const MAX_BODY: usize = 8 << 20;
/// Connections at once: each pod that kube-scheduler binds at the moment has one. Further ones wait in the kernel's queue.
const CONNECTIONS: usize = 1024;
/// Time for the TLS handshake.
const HANDSHAKE: Duration = Duration::from_secs(5);
/// Time for a request's head; an idle connection is closed after it.
const HEAD: Duration = Duration::from_secs(60);
/// A client that does not take its answer for this long is cut off, in milliseconds.
const UNREAD: u32 = 15_000;
/// Time that open connections get at shutdown.
const GRACE: Duration = Duration::from_secs(2);

/// The extender's open address.
pub struct Extender {
    listener: TcpListener,
    tls: Option<TlsAcceptor>,
}

impl Extender {
    /// Opens the address; `None` when the options name none. Port 0 takes a free port.
    pub async fn open(options: &ExtenderOptions) -> Result<Option<Self>, ExtenderError> {
        options.validate()?;
        let Some(address) = options.listen else { return Ok(None) };
        let tls = acceptor(options)?;
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
        let router = verbs::router(front).layer(CatchPanicLayer::new());
        let permits = Arc::new(Semaphore::new(CONNECTIONS));
        let mut connections = JoinSet::new();
        loop {
            let accepted = tokio::select! {
                () = stop.cancelled() => break,
                Some(_) = connections.join_next() => continue,
                accepted = accept(&self.listener, &permits) => accepted,
            };
            let Some((stream, permit)) = accepted else { break };
            let (router, stop, tls) = (router.clone(), stop.clone(), self.tls.clone());
            connections.spawn(async move {
                let _permit = permit;
                greet(stream, tls, router, stop).await;
            });
        }
        let ended = async { while connections.join_next().await.is_some() {} };
        tokio::time::timeout(GRACE, ended).await.ok();
    }
}

async fn accept(listener: &TcpListener, permits: &Arc<Semaphore>) -> Option<(TcpStream, OwnedSemaphorePermit)> {
    let permit = permits.clone().acquire_owned().await.ok()?;
    loop {
        match listener.accept().await {
            Ok((stream, _)) => return Some((stream, permit)),
            Err(error) => {
                // Out of descriptors, or a client that left: a pause keeps this from spinning.
                tracing::debug!(%error, "extender: accept failed");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

async fn greet(stream: TcpStream, tls: Option<TlsAcceptor>, router: Router, stop: CancellationToken) {
    stream.set_nodelay(true).ok();
    rustix::net::sockopt::set_tcp_user_timeout(&stream, UNREAD).ok();
    let Some(tls) = tls else { return connection(stream, router, stop).await };
    match tokio::time::timeout(HANDSHAKE, tls.accept(stream)).await {
        Ok(Ok(stream)) => connection(stream, router, stop).await,
        Ok(Err(error)) => tracing::warn!(%error, "extender: TLS handshake refused"),
        Err(_) => tracing::warn!("extender: TLS handshake not finished in time"),
    }
}

/// A client that closes its connection ends its handler, wherever that is.
async fn connection<S>(stream: S, router: Router, stop: CancellationToken)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let mut builder = auto::Builder::new(TokioExecutor::new()).http1_only();
    builder.http1().timer(TokioTimer::new()).header_read_timeout(HEAD).max_buf_size(64 << 10);
    let connection = builder.serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
    tokio::pin!(connection);
    let mut stopping = false;
    loop {
        tokio::select! {
            ended = &mut connection => {
                if let Err(error) = ended {
                    tracing::debug!(%error, "extender: connection ended");
                }
                return;
            }
            () = stop.cancelled(), if !stopping => {
                stopping = true;
                connection.as_mut().graceful_shutdown();
            }
        }
    }
}

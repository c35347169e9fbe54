//! HTTP/1.1 for a daemon: every connection has its own task and its own limits, so that no client can delay another one.

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

/// Time for the TLS handshake.
const HANDSHAKE: Duration = Duration::from_secs(5);
/// A client that does not take its answer for this long is cut off, in milliseconds.
const UNREAD: u32 = 15_000;
/// Time that open connections get at shutdown.
const GRACE: Duration = Duration::from_secs(2);

/// The TLS of the next connection: certificates may be renewed meanwhile.
pub type Tls = Arc<dyn Fn() -> TlsAcceptor + Send + Sync>;

/// One address and the limits of its clients.
pub struct HttpServer {
    /// What is served, for logs.
    pub name: &'static str,
    /// The open address.
    pub listener: TcpListener,
    /// `None`: plain text.
    pub tls: Option<Tls>,
    /// Connections served at once; further ones wait in the kernel's queue.
    pub connections: usize,
    /// Time for a request's head, so that a silent client does not hold a connection. An idle one is closed after it.
    pub head: Duration,
}

impl HttpServer {
    /// Serves until `stop`; then open requests get two seconds. A panicking handler answers 500 and harms nothing else.
    pub async fn serve(self, router: Router, stop: CancellationToken) {
        let router = router.layer(CatchPanicLayer::new());
        let permits = Arc::new(Semaphore::new(self.connections));
        let mut connections = JoinSet::new();
        loop {
            let accepted = tokio::select! {
                () = stop.cancelled() => break,
                Some(_) = connections.join_next() => continue,
                accepted = self.accept(&permits) => accepted,
            };
            let Some((stream, permit)) = accepted else { break };
            let client = Client { name: self.name, tls: self.tls.clone(), head: self.head };
            let (router, stop) = (router.clone(), stop.clone());
            connections.spawn(async move {
                let _permit = permit;
                client.handshake(stream, router, stop).await;
            });
        }
        let ended = async { while connections.join_next().await.is_some() {} };
        if tokio::time::timeout(GRACE, ended).await.is_err() {
            tracing::warn!(server = self.name, "connections still open at shutdown were cut");
        }
    }

    async fn accept(&self, permits: &Arc<Semaphore>) -> Option<(TcpStream, OwnedSemaphorePermit)> {
        let permit = permits.clone().acquire_owned().await.ok()?;
        loop {
            match self.listener.accept().await {
                Ok((stream, _)) => return Some((stream, permit)),
                Err(error) => {
                    // Out of descriptors, or a client that left: a pause keeps this from spinning.
                    tracing::debug!(server = self.name, %error, "accept failed");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            }
        }
    }
}

/// One connection.
struct Client {
    name: &'static str,
    tls: Option<Tls>,
    head: Duration,
}

impl Client {
    async fn handshake(self, stream: TcpStream, router: Router, stop: CancellationToken) {
        stream.set_nodelay(true).ok();
        rustix::net::sockopt::set_tcp_user_timeout(&stream, UNREAD).ok();
        let Some(tls) = self.tls.clone() else { return self.connection(stream, router, stop).await };
        // It may read files, which may block on a hung mount: not on the accepting task, and only for a limited time.
        let accepted = async {
            let acceptor = tokio::task::spawn_blocking(move || tls()).await.map_err(std::io::Error::other)?;
            acceptor.accept(stream).await
        };
        match tokio::time::timeout(HANDSHAKE, accepted).await {
            Ok(Ok(stream)) => self.connection(stream, router, stop).await,
            Ok(Err(error)) => tracing::warn!(server = self.name, %error, "TLS handshake refused"),
            Err(_) => tracing::warn!(server = self.name, "TLS handshake not finished in time"),
        }
    }

    /// Serves one connection. A client that closes it ends its handler at once.
    async fn connection<S>(&self, stream: S, router: Router, stop: CancellationToken)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let mut builder = auto::Builder::new(TokioExecutor::new()).http1_only();
        builder.http1().timer(TokioTimer::new()).header_read_timeout(self.head).max_buf_size(64 << 10);
        let connection = builder.serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
        tokio::pin!(connection);
        let mut stopping = false;
        loop {
            tokio::select! {
                ended = &mut connection => {
                    if let Err(error) = ended {
                        tracing::debug!(server = self.name, %error, "connection ended");
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
}

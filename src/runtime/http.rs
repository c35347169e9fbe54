//! HTTP/1.1 for a daemon: every connection has its own task and its own limits, so that no client can delay another one.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::{Request, StatusCode};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use tokio::task::{AbortHandle, JoinSet};
use tokio_util::sync::CancellationToken;
use tower::ServiceExt;
use tower_http::catch_panic::CatchPanicLayer;
use tower_http::timeout::TimeoutLayer;

use super::tls::Tls;

/// Time for the TLS handshake.
const HANDSHAKE: Duration = Duration::from_secs(5);
/// A client that does not take its answer for this long is cut off, in milliseconds.
const UNREAD: u32 = 15_000;
/// Time that open connections get at shutdown.
const GRACE: Duration = Duration::from_secs(2);
/// Before a connection is cut for its age, it is asked to end.
const NOTICE: Duration = Duration::from_secs(10);
/// For limits that there are not.
const NEVER: Duration = Duration::from_secs(365 * 86_400);

/// One address and the limits of its clients.
pub struct HttpServer {
    /// What is served, for logs.
    pub name: &'static str,
    /// The open address.
    pub listener: TcpListener,
    /// `None`: plain text.
    pub tls: Option<Tls>,
    /// Limits of its clients.
    pub limits: Limits,
}

/// Limits of the clients of one address.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Connections at once. Beyond them, the oldest one without a request in work is cut for a new one, so that slow clients keep no
    /// other one out. Where every one has a request in work, new ones wait in the kernel's queue.
    pub connections: usize,
    /// Time for a request's head, so that a silent client does not hold a connection. An idle one is closed after it.
    pub head: Duration,
    /// Time from a request's head to its answer.
    pub answer: Option<Duration>,
    /// A connection ends at this age.
    pub age: Option<Duration>,
}

/// A connection that is open.
struct Open {
    task: AbortHandle,
    /// A request of it is in work.
    busy: Arc<AtomicBool>,
}

impl HttpServer {
    /// Serves until `stop`; then open requests get two seconds. A panicking handler answers 500 and harms nothing else.
    pub async fn serve(self, router: Router, stop: CancellationToken) {
        let late = TimeoutLayer::with_status_code(StatusCode::REQUEST_TIMEOUT, self.limits.answer.unwrap_or(NEVER));
        let router = router.layer(late).layer(CatchPanicLayer::new());
        let (mut connections, mut open) = (JoinSet::new(), VecDeque::<Open>::new());
        let freed = Arc::new(Notify::new());
        loop {
            let cut = open.iter().position(|one| !one.busy.load(Ordering::Relaxed));
            let room = open.len() < self.limits.connections || cut.is_some();
            let stream = tokio::select! {
                () = stop.cancelled() => break,
                Some(_) = connections.join_next() => {
                    open.retain(|one| !one.task.is_finished());
                    continue;
                }
                () = freed.notified(), if !room => continue,
                stream = self.accept(), if room => stream,
            };
            if open.len() >= self.limits.connections
                && let Some(one) = cut.and_then(|at| open.remove(at))
            {
                tracing::debug!(server = self.name, "the oldest idle connection is cut for a new one");
                one.task.abort();
            }
            let busy = Arc::new(AtomicBool::new(false));
            let client = Client {
                name: self.name,
                tls: self.tls.clone(),
                limits: self.limits,
                busy: busy.clone(),
                freed: freed.clone(),
            };
            let (router, stop, age) = (router.clone(), stop.clone(), self.limits.age.unwrap_or(NEVER));
            let task = connections.spawn(async move {
                // Its end by age needs no word: a client that is cut was asked to end before.
                let _ = tokio::time::timeout(age, client.handshake(stream, router, stop)).await;
            });
            open.push_back(Open { task, busy });
        }
        let ended = async { while connections.join_next().await.is_some() {} };
        if tokio::time::timeout(GRACE, ended).await.is_err() {
            tracing::warn!(server = self.name, "connections still open at shutdown were cut");
        }
    }

    async fn accept(&self) -> TcpStream {
        loop {
            match self.listener.accept().await {
                Ok((stream, _)) => return stream,
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
    limits: Limits,
    busy: Arc<AtomicBool>,
    freed: Arc<Notify>,
}

/// A request in work.
struct Work(Arc<AtomicBool>, Arc<Notify>);

impl Drop for Work {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Relaxed);
        self.1.notify_one();
    }
}

impl Client {
    async fn handshake(self, stream: TcpStream, router: Router, stop: CancellationToken) {
        stream.set_nodelay(true).ok();
        rustix::net::sockopt::set_tcp_user_timeout(&stream, UNREAD).ok();
        let Some(tls) = &self.tls else { return self.connection(stream, router, stop).await };
        match tokio::time::timeout(HANDSHAKE, tls.accept(stream)).await {
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
        builder.http1().timer(TokioTimer::new()).header_read_timeout(self.limits.head).max_buf_size(64 << 10);
        let (busy, freed) = (self.busy.clone(), self.freed.clone());
        let service = tower::service_fn(move |request: Request<_>| {
            busy.store(true, Ordering::Relaxed);
            let (work, router) = (Work(busy.clone(), freed.clone()), router.clone());
            async move {
                let answer = router.oneshot(request.map(Body::new)).await;
                drop(work);
                answer
            }
        });
        let connection = builder.serve_connection(TokioIo::new(stream), TowerToHyperService::new(service));
        tokio::pin!(connection);
        let aged = tokio::time::sleep(self.limits.age.unwrap_or(NEVER).saturating_sub(NOTICE));
        tokio::pin!(aged);
        let mut ending = false;
        loop {
            tokio::select! {
                ended = &mut connection => {
                    if let Err(error) = ended {
                        tracing::debug!(server = self.name, %error, "connection ended");
                    }
                    return;
                }
                () = stop.cancelled(), if !ending => {}
                () = &mut aged, if !ending => {}
            }
            ending = true;
            connection.as_mut().graceful_shutdown();
        }
    }
}

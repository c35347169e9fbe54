//! Connections: plain and TLS, HTTP/1.1 and HTTP/2, and how they end on shutdown.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto::Builder;
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;

use super::core::Core;
use super::dispatch;
use super::faults::Blackout;

/// Longest TLS handshake.
const HANDSHAKE: Duration = Duration::from_secs(10);

/// Accepts connections until `stop`.
pub async fn accept(core: Arc<Core>, listener: TcpListener, tls: Option<TlsAcceptor>, stop: CancellationToken) {
    loop {
        let stream = tokio::select! {
            () = stop.cancelled() => return,
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => stream,
                Err(error) => {
                    tracing::warn!(%error, "accepting a connection failed");
                    tokio::time::sleep(Duration::from_millis(20)).await;
                    continue;
                }
            },
        };
        if *core.faults.blackouts().borrow() == Blackout::Refuse {
            reset(stream);
            continue;
        }
        let (core, tls, stop) = (Arc::clone(&core), tls.clone(), stop.clone());
        tokio::spawn(async move {
            let _ = stream.set_nodelay(true);
            tokio::select! {
                () = stop.cancelled() => {}
                () = connection(core, stream, tls) => {}
            }
        });
    }
}

/// Closes with a reset, so that the client does not wait.
fn reset(stream: TcpStream) {
    let _ = stream.set_zero_linger();
    drop(stream);
}

async fn connection(core: Arc<Core>, stream: TcpStream, tls: Option<TlsAcceptor>) {
    match tls {
        None => speak(core, stream).await,
        Some(acceptor) => {
            if let Ok(Ok(stream)) = tokio::time::timeout(HANDSHAKE, acceptor.accept(stream)).await {
                speak(core, stream).await;
            }
        }
    }
}

async fn speak<S>(core: Arc<Core>, stream: S)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let mut blackouts = core.faults.blackouts();
    let serving = Arc::clone(&core);
    let service = tower::service_fn(move |request: axum::http::Request<_>| {
        let core = Arc::clone(&serving);
        async move { dispatch::serve(core, request.map(Body::new)).await }
    });
    let builder = Builder::new(TokioExecutor::new());
    let connection = builder.serve_connection_with_upgrades(TokioIo::new(stream), TowerToHyperService::new(service));
    let mut connection = std::pin::pin!(connection);
    loop {
        let mode = *blackouts.borrow_and_update();
        match mode {
            Blackout::None => {}
            Blackout::Refuse => return,
            Blackout::Hang => {
                // Nothing is read or written until the blackout ends; then the connection is gone.
                while *blackouts.borrow_and_update() == Blackout::Hang {
                    if blackouts.changed().await.is_err() {
                        return;
                    }
                }
                return;
            }
        }
        tokio::select! {
            _ = &mut connection => return,
            changed = blackouts.changed() => if changed.is_err() { return },
        }
    }
}

/// The server as a service without sockets. Dropped connections come out as 502, since there is none to drop.
pub fn router(core: Arc<Core>) -> axum::Router {
    axum::Router::new().fallback_service(tower::service_fn(move |request: axum::http::Request<Body>| {
        let core = Arc::clone(&core);
        async move {
            let response = dispatch::serve(core, request).await.unwrap_or_else(|dropped| {
                super::codec::bytes(502, "text/plain; charset=utf-8", dropped.to_string().into_bytes())
            });
            Ok::<_, Infallible>(response)
        }
    }))
}

//! Admin HTTP of a daemon: `/livez`, `/readyz`, `/metrics`, and the routes that the daemon adds; `/` lists them.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use futures::future::BoxFuture;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tower_http::limit::RequestBodyLimitLayer;

use super::http::HttpServer;

/// Connections served at once; further ones wait in the kernel's queue.
const CONNECTIONS: usize = 32;
/// Time for a request's head, so that a silent client does not hold a connection.
const HEAD: Duration = Duration::from_secs(10);
/// Largest request body, in bytes.
const BODY: usize = 64 << 20;

/// Answers one probe: the text goes to the client, with 200 or 503.
pub type Check = Arc<dyn Fn() -> BoxFuture<'static, Result<String, String>> + Send + Sync>;
/// Prints the metrics in OpenMetrics text.
pub type Metrics = Arc<dyn Fn() -> String + Send + Sync>;

/// The answers of a daemon.
#[derive(Clone)]
pub struct Admin {
    /// `/livez`: the process works; a failure requests a restart.
    pub live: Check,
    /// `/readyz`: the process serves.
    pub ready: Check,
    /// `/metrics`.
    pub metrics: Metrics,
    /// Routes that the daemon adds, for the list at `/`.
    pub more: &'static [&'static str],
}

/// The admin address cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {address} for admin HTTP: {source}; choose another address with --listen")]
pub struct AdminError {
    address: SocketAddr,
    source: std::io::Error,
}

/// Opens the admin address. Port 0 takes a free port; `local_addr` of the listener is the one taken.
pub async fn bind(address: SocketAddr) -> Result<TcpListener, AdminError> {
    TcpListener::bind(address).await.map_err(|source| AdminError { address, source })
}

/// The routes of [`Admin`].
pub fn router(admin: Admin) -> Router {
    let Admin { live, ready, metrics, more } = admin;
    let paths = [&["/livez", "/readyz", "/metrics"], more].concat().join("\n") + "\n";
    let open_metrics = [(header::CONTENT_TYPE, "application/openmetrics-text; version=1.0.0; charset=utf-8")];
    Router::new()
        .route("/livez", get(move || probe(live)))
        .route("/readyz", get(move || probe(ready)))
        .route("/metrics", get(move || async move { (open_metrics, metrics()) }))
        .route("/", get(move || async move { paths }))
        .fallback(|| async { (StatusCode::NOT_FOUND, "no such path; / lists those that there are\n") })
}

async fn probe(check: Check) -> Response {
    match check().await {
        Ok(text) => (StatusCode::OK, text + "\n").into_response(),
        Err(text) => (StatusCode::SERVICE_UNAVAILABLE, text + "\n").into_response(),
    }
}

/// Serves until `stop`; then open requests get two seconds. A panicking handler answers 500 and harms nothing else.
pub async fn serve(listener: TcpListener, router: Router, stop: CancellationToken) {
    let server = HttpServer { name: "admin HTTP", listener, tls: None, connections: CONNECTIONS, head: HEAD };
    server.serve(router.layer(RequestBodyLimitLayer::new(BODY)), stop).await;
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpStream;

    fn admin() -> Admin {
        Admin {
            live: Arc::new(|| Box::pin(async { Ok("alive".to_owned()) })),
            ready: Arc::new(|| Box::pin(async { Err("nothing is registered".to_owned()) })),
            metrics: Arc::new(|| "# EOF\n".to_owned()),
            more: &["/boom"],
        }
    }

    async fn get(address: SocketAddr, path: &str) -> String {
        let mut stream = TcpStream::connect(address).await.unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nHost: admin\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer
    }

    #[tokio::test]
    async fn probes_answer_with_their_text_and_a_panicking_route_harms_nothing_else() {
        let listener = bind(([127, 0, 0, 1], 0).into()).await.unwrap();
        let address = listener.local_addr().unwrap();
        let panicking: axum::routing::MethodRouter = axum::routing::get(|| async {
            assert!(std::hint::black_box(false), "a handler that panics");
        });
        let stop = CancellationToken::new();
        let server = tokio::spawn(serve(listener, router(admin()).route("/boom", panicking), stop.clone()));
        assert!(get(address, "/boom").await.starts_with("HTTP/1.1 500"));
        assert!(get(address, "/livez").await.ends_with("alive\n"));
        let ready = get(address, "/readyz").await;
        assert!(ready.starts_with("HTTP/1.1 503") && ready.ends_with("nothing is registered\n"), "{ready}");
        assert!(get(address, "/metrics").await.contains("openmetrics-text"));
        let other = get(address, "/other").await;
        assert!(other.starts_with("HTTP/1.1 404") && other.ends_with("/ lists those that there are\n"), "{other}");
        assert!(get(address, "/").await.ends_with("\r\n\r\n/livez\n/readyz\n/metrics\n/boom\n"));
        stop.cancel();
        server.await.unwrap();
        assert!(TcpStream::connect(address).await.is_err());
    }

    #[tokio::test]
    async fn an_address_in_use_is_named() {
        let taken = bind(([127, 0, 0, 1], 0).into()).await.unwrap();
        let address = taken.local_addr().unwrap();
        let error = bind(address).await.unwrap_err().to_string();
        assert!(error.contains(&address.to_string()) && error.contains("--listen"), "{error}");
    }
}

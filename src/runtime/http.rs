//! HTTP/1.1 for a daemon: every connection has its own task and its own limits, so that no client can delay another one.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::{Request, StatusCode};
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{AbortHandle, JoinSet};
use tokio_util::sync::CancellationToken;
use tower::ServiceExt;
use tower_http::catch_panic::CatchPanicLayer;
use tower_http::timeout::TimeoutLayer;

use super::tls::Tls;

/// Time for the TLS handshake.
const HANDSHAKE: Duration = Duration::from_secs(3);
/// A client that does not take its answer for this long is cut off, in milliseconds.
const UNREAD: u32 = 15_000;
/// Time that open connections get at shutdown.
const GRACE: Duration = Duration::from_secs(2);
/// Before a connection is cut for its age, it is asked to end.
const NOTICE: Duration = Duration::from_secs(10);
/// Pause after a connection was cut for a new one: however fast clients come, each has some time to send its request.
const PACE: Duration = Duration::from_millis(1);
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
    /// Connections at once. Beyond them, one is cut for each new one: of the machine that has the most of them, the oldest without a
    /// request in work, or else its oldest. So a client is cut by its own connections, not by another machine's.
    pub connections: usize,
    /// One request for each connection.
    pub one_request: bool,
    /// Time for a request's head, so that a silent client does not hold a connection. An idle one is closed after it.
    pub head: Duration,
    /// Time from a request's head to its answer.
    pub answer: Option<Duration>,
    /// A connection ends at this age.
    pub age: Option<Duration>,
}

/// A connection that is open.
struct OpenConnection {
    task: AbortHandle,
    from: IpAddr,
    /// A request of it is in work.
    busy: Arc<AtomicBool>,
}

/// The machine that a request comes from, as its address tells: of IPv6 the network that one machine is given.
fn peer(address: SocketAddr) -> IpAddr {
    match address.ip().to_canonical() {
        IpAddr::V6(ip) if !ip.is_loopback() => {
            let [a, b, c, d, ..] = ip.segments();
            Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0).into()
        }
        ip => ip,
    }
}

/// Which connection is cut for a new one.
fn victim(open: &[OpenConnection]) -> Option<usize> {
    let mut counts = BTreeMap::<IpAddr, usize>::new();
    open.iter().for_each(|one| *counts.entry(one.from).or_default() += 1);
    let most = counts.values().max()?;
    let idle = |one: &OpenConnection| !one.busy.load(Ordering::Relaxed);
    let of_most = |one: &&OpenConnection| counts.get(&one.from) == Some(most);
    let mut oldest = open.iter().enumerate().filter(|(_, one)| of_most(one));
    oldest.clone().find(|(_, one)| idle(one)).or_else(|| oldest.next()).map(|(at, _)| at)
}

impl HttpServer {
    /// Serves until `stop`; then open requests get two seconds. A panicking handler answers 500 and harms nothing else.
    pub async fn serve(self, router: Router, stop: CancellationToken) {
        let late = TimeoutLayer::with_status_code(StatusCode::REQUEST_TIMEOUT, self.limits.answer.unwrap_or(NEVER));
        let router = router.layer(late).layer(CatchPanicLayer::new());
        let (mut connections, mut open) = (JoinSet::new(), Vec::<OpenConnection>::new());
        loop {
            let (stream, from) = tokio::select! {
                () = stop.cancelled() => break,
                Some(_) = connections.join_next() => {
                    open.retain(|one| !one.task.is_finished());
                    continue;
                }
                accepted = self.accept() => accepted,
            };
            if open.len() >= self.limits.connections
                && let Some(at) = victim(&open)
            {
                let one = open.remove(at);
                tracing::debug!(server = self.name, from = %one.from, "a connection is cut for a new one");
                one.task.abort();
                tokio::time::sleep(PACE).await;
            }
            let busy = Arc::new(AtomicBool::new(false));
            let client = Client { name: self.name, tls: self.tls.clone(), limits: self.limits, busy: busy.clone() };
            let (router, stop, age) = (router.clone(), stop.clone(), self.limits.age.unwrap_or(NEVER));
            let task = connections.spawn(async move {
                // Its end by age needs no word: a client that is cut was asked to end before.
                let _ = tokio::time::timeout(age, client.handshake(stream, router, stop)).await;
            });
            open.push(OpenConnection { task, from, busy });
            // A burst of connections does not keep those that came before from being served.
            tokio::task::yield_now().await;
        }
        let ended = async { while connections.join_next().await.is_some() {} };
        if tokio::time::timeout(GRACE, ended).await.is_err() {
            tracing::warn!(server = self.name, "connections still open at shutdown were cut");
        }
    }

    async fn accept(&self) -> (TcpStream, IpAddr) {
        loop {
            match self.listener.accept().await {
                Ok((stream, address)) => return (stream, peer(address)),
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
}

/// A request in work.
struct Work(Arc<AtomicBool>);

impl Drop for Work {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Relaxed);
    }
}

impl Client {
    async fn handshake(self, stream: TcpStream, router: Router, stop: CancellationToken) {
        stream.set_nodelay(true).ok();
        rustix::net::sockopt::set_tcp_user_timeout(&stream, UNREAD).ok();
        let Some(tls) = &self.tls else { return self.connection(stream, router, stop).await };
        match tokio::time::timeout(HANDSHAKE, tls.accept(stream)).await {
            Ok(Ok(stream)) => self.connection(stream, router, stop).await,
            // An operator wants to know why a client's certificate is refused.
            Ok(Err(error)) => tracing::warn!(server = self.name, %error, "TLS handshake refused"),
            Err(_) => tracing::debug!(server = self.name, "TLS handshake not finished in time"),
        }
    }

    /// Serves one connection. A client that closes it ends its handler at once.
    async fn connection<S>(&self, stream: S, router: Router, stop: CancellationToken)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let mut http = http1::Builder::new();
        http.timer(TokioTimer::new()).header_read_timeout(self.limits.head).max_buf_size(64 << 10);
        http.keep_alive(!self.limits.one_request);
        let busy = self.busy.clone();
        let service = tower::service_fn(move |request: Request<_>| {
            busy.store(true, Ordering::Relaxed);
            let (work, router) = (Work(busy.clone()), router.clone());
            async move {
                let answer = router.oneshot(request.map(Body::new)).await;
                drop(work);
                answer
            }
        });
        let connection = http.serve_connection(TokioIo::new(stream), TowerToHyperService::new(service));
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

#[cfg(test)]
mod tests {
    use axum::routing::{get, post};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::sync::Notify;

    use super::*;

    const SHORT: Duration = Duration::from_millis(50);
    const LONG: Duration = Duration::from_secs(30);

    /// A server with these limits: `/` answers, `/never` does not, `/read` takes a body. It tells of each request that is in work for
    /// ever.
    async fn served_telling(limits: Limits) -> (SocketAddr, Arc<Notify>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let begun = Arc::new(Notify::new());
        let tell = begun.clone();
        let never = || async move {
            tell.notify_one();
            std::future::pending::<()>().await;
        };
        let router = Router::new()
            .route("/", get(|| async { "here" }))
            .route("/never", get(never))
            .route("/read", post(|body: String| async move { body }));
        let server = HttpServer { name: "test", listener, tls: None, limits };
        tokio::spawn(server.serve(router, CancellationToken::new()));
        (address, begun)
    }

    async fn served(limits: Limits) -> SocketAddr {
        served_telling(limits).await.0
    }

    fn limits() -> Limits {
        Limits { connections: 2, one_request: false, head: LONG, answer: None, age: None }
    }

    async fn connected(address: SocketAddr, text: &str) -> TcpStream {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(text.as_bytes()).await.unwrap();
        stream
    }

    /// What comes until the server closes the connection.
    async fn rest(mut stream: TcpStream) -> String {
        let mut text = Vec::new();
        // A connection that is cut may end with a reset.
        let read = async { while matches!(stream.read_buf(&mut text).await, Ok(1..)) {} };
        tokio::time::timeout(LONG, read).await.expect("the server closes the connection");
        String::from_utf8(text).unwrap()
    }

    const ASK: &str = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";
    const NEVER_ANSWERED: &str = "GET /never HTTP/1.1\r\nHost: a\r\n\r\n";

    #[tokio::test]
    async fn a_silent_and_an_idle_connection_are_closed_after_the_time_for_a_head() {
        let address = served(Limits { head: SHORT, ..limits() }).await;
        assert_eq!(rest(connected(address, "GET / HT").await).await.matches("here").count(), 0);
        assert_eq!(rest(connected(address, ASK).await).await.matches("here").count(), 1);
    }

    #[tokio::test]
    async fn a_request_ends_in_time_whether_the_client_or_the_handler_is_slow() {
        let address = served(Limits { answer: Some(SHORT), age: Some(LONG), ..limits() }).await;
        let slow_body = "POST /read HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\nabc";
        for request in [NEVER_ANSWERED, slow_body] {
            let mut stream = connected(address, request).await;
            let mut head = [0; 12];
            tokio::time::timeout(LONG, stream.read_exact(&mut head)).await.unwrap().unwrap();
            assert_eq!(&head, b"HTTP/1.1 408", "{request}");
        }
    }

    #[tokio::test]
    async fn a_connection_ends_at_its_age_whatever_it_does() {
        let address = served(Limits { age: Some(SHORT), ..limits() }).await;
        for request in ["", ASK, NEVER_ANSWERED] {
            rest(connected(address, request).await).await;
        }
    }

    #[tokio::test]
    async fn the_oldest_idle_connection_goes_for_a_new_one_and_a_busy_one_stays() {
        let (address, begun) = served_telling(limits()).await;
        let busy = connected(address, NEVER_ANSWERED).await;
        begun.notified().await;
        let idle = connected(address, "GET / HT").await;
        let mut answered = connected(address, ASK).await;
        let mut head = [0; 12];
        tokio::time::timeout(LONG, answered.read_exact(&mut head)).await.unwrap().unwrap();
        assert_eq!(&head, b"HTTP/1.1 200");
        assert_eq!(rest(idle).await, "");
        assert!(busy.try_read(&mut head).is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock));
    }

    fn open(from: u8, busy: bool) -> OpenConnection {
        let task = tokio::spawn(std::future::pending::<()>()).abort_handle();
        OpenConnection { task, from: [10, 0, 0, from].into(), busy: Arc::new(AtomicBool::new(busy)) }
    }

    #[tokio::test]
    async fn a_machine_with_many_connections_is_cut_and_not_the_one_with_few() {
        assert_eq!(victim(&[]), None);
        // The kubelet was here first, and is idle; the other machine is always busy.
        let mut all = vec![open(1, false)];
        all.extend((0..3).map(|_| open(2, true)));
        assert_eq!(victim(&all), Some(1));
        all.push(open(2, false));
        assert_eq!(victim(&all), Some(4), "an idle one rather than the oldest");
    }

    #[test]
    fn an_address_of_ipv6_stands_for_its_network_and_a_mapped_one_for_itself() {
        let of = |text: &str| peer(SocketAddr::new(text.parse().unwrap(), 1)).to_string();
        assert_eq!(of("::ffff:10.1.2.3"), "10.1.2.3");
        assert_eq!(of("2001:db8:1:2:3:4:5:6"), "2001:db8:1:2::");
        assert_eq!(of("::1"), "::1");
    }
}

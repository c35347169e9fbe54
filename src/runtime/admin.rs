//! The two addresses of a daemon: probes, for the kubelet alone, and the admin address, with metrics and what people ask.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use futures::future::BoxFuture;
use rustix::io::Errno;
use tokio::net::{TcpListener, TcpSocket};
use tokio_util::sync::CancellationToken;
use tower_http::limit::RequestBodyLimitLayer;

use super::auth::{Guard, guarded};
use super::http::{HttpServer, Limits};
use super::options::OptionError;
use super::tls::{Tls, TlsError, TlsFiles};

/// Of the admin address: with the handshake, 10 s for a request as a whole; a minute for a connection.
const ADMIN: Limits = Limits {
    connections: 64,
    one_request: false,
    head: Duration::from_secs(2),
    answer: Some(Duration::from_secs(5)),
    age: Some(Duration::from_secs(60)),
};
/// Of the probes: a kubelet waits for one second by default, and closes its connection.
const PROBES: Limits = Limits {
    connections: 64,
    one_request: true,
    head: Duration::from_secs(2),
    answer: Some(Duration::from_secs(6)),
    age: Some(Duration::from_secs(15)),
};
/// Largest request body, in bytes.
const BODY: usize = 2 << 20;
/// Connections that the kernel keeps for an address.
const BACKLOG: u32 = 1024;

/// Answers one probe: the text goes to the client, with 200 or 503.
pub type Check = Arc<dyn Fn() -> BoxFuture<'static, Result<String, String>> + Send + Sync>;
/// Prints the metrics in OpenMetrics text.
pub type PrintMetrics = Arc<dyn Fn() -> String + Send + Sync>;

/// Who is served on the admin address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum AdminAuth {
    /// Clients with a token of the cluster whose user may read the path, over HTTPS.
    #[default]
    Token,
    /// Every client of this machine, over plain HTTP.
    None,
}

/// The addresses of a daemon.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PortOptions {
    /// Of the probes; `None` opens none.
    pub probe_listen: Option<SocketAddr>,
    /// The admin address; `None` opens none.
    pub listen: Option<SocketAddr>,
    /// Who is served there.
    pub auth: AdminAuth,
    /// PEM file of the certificate chain there; `None` makes one.
    pub tls_cert: Option<PathBuf>,
    /// PEM file of its private key.
    pub tls_key: Option<PathBuf>,
}

const CERT: &str = "--admin-tls-cert";
const KEY: &str = "--admin-tls-key";

impl PortOptions {
    /// These ports, on every address of the machine.
    pub fn on(listen: u16, probe_listen: u16) -> Self {
        let every = |port| Some(SocketAddr::from((Ipv6Addr::UNSPECIFIED, port)));
        Self {
            probe_listen: every(probe_listen),
            listen: every(listen),
            auth: AdminAuth::default(),
            tls_cert: None,
            tls_key: None,
        }
    }

    /// Checks what types cannot.
    pub fn validate(&self) -> Result<(), OptionError> {
        let bad = |option, problem| Err(OptionError::value(option, problem));
        match self.listen {
            Some(address) if self.auth == AdminAuth::None && !address.ip().is_loopback() => {
                let problem = format!(
                    "none serves every client that reaches --listen={address}: listen on 127.0.0.1, or keep token"
                );
                return bad("--admin-auth", problem);
            }
            _ => {}
        }
        match (&self.tls_cert, &self.tls_key) {
            (Some(cert), None) => bad(KEY, format!("is not set, and {CERT} is {}: give both", cert.display())),
            (None, Some(key)) => bad(CERT, format!("is not set, and {KEY} is {}: give both", key.display())),
            _ => Ok(()),
        }
    }
}

/// The answers of a daemon.
#[derive(Clone)]
pub struct Answers {
    /// `/livez`: the process works; a failure requests a restart.
    pub live: Check,
    /// `/readyz`: the process serves.
    pub ready: Check,
    /// `/leading`: this is the one process that works; `None` where every process does.
    pub leading: Option<Check>,
    /// `/metrics`.
    pub metrics: PrintMetrics,
    /// What else the admin address answers.
    pub questions: Router,
    /// Its paths, for the list at `/`.
    pub paths: &'static [&'static str],
}

/// Why the addresses cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum PortError {
    /// An address is taken, or not one of this machine.
    #[error("cannot listen on {address} for {what}: {source}; choose another address with {option}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// What it is for.
        what: &'static str,
        /// The flag.
        option: &'static str,
        /// Why.
        source: std::io::Error,
    },
    /// No TLS.
    #[error(transparent)]
    Tls(#[from] TlsError),
}

/// The open addresses of a daemon.
pub struct OpenPorts {
    probes: Option<TcpListener>,
    admin: Option<(TcpListener, Option<Tls>)>,
    auth: AdminAuth,
}

impl OpenPorts {
    /// Opens the addresses. Port 0 takes a free port.
    pub fn open(options: &PortOptions) -> Result<Self, PortError> {
        let probes = match options.probe_listen {
            Some(address) => Some(listen(address, "probes", "--probe-listen")?),
            None => None,
        };
        let admin = match options.listen {
            Some(address) => {
                let listener = listen(address, "metrics and questions", "--listen")?;
                let tls = match (options.auth, &options.tls_cert, &options.tls_key) {
                    (AdminAuth::None, ..) => None,
                    (_, Some(cert), Some(key)) => {
                        let (cert, key) = ((CERT, cert.clone()), (KEY, key.clone()));
                        Some(Tls::files(TlsFiles { cert, key, clients: None })?)
                    }
                    _ => Some(Tls::self_made()?),
                };
                Some((listener, tls))
            }
            None => None,
        };
        let ports = Self { probes, admin, auth: options.auth };
        if let Some(address) = ports.probe_address() {
            tracing::info!(%address, "probes");
        }
        if let Some(address) = ports.admin_address() {
            tracing::info!(%address, tls = options.auth != AdminAuth::None, "admin HTTP");
        }
        Ok(ports)
    }

    /// Where the probes are answered.
    pub fn probe_address(&self) -> Option<SocketAddr> {
        self.probes.as_ref().and_then(|listener| listener.local_addr().ok())
    }

    /// The admin address.
    pub fn admin_address(&self) -> Option<SocketAddr> {
        self.admin.as_ref().and_then(|(listener, _)| listener.local_addr().ok())
    }

    /// Serves both until `stop`; then open requests get two seconds. A panicking handler answers 500 and harms nothing else.
    pub async fn serve(self, answers: Answers, guard: Guard, stop: CancellationToken) {
        let Self { probes, admin, auth } = self;
        let probe_router = probe_router(&answers).fallback(unknown);
        let probing = async {
            if let Some(listener) = probes {
                let server = HttpServer { name: "probes", listener, tls: None, limits: PROBES };
                server.serve(probe_router, stop.clone()).await;
            }
        };
        let serving = async {
            if let Some((listener, tls)) = admin {
                let mut router = admin_router(answers);
                if auth != AdminAuth::None {
                    router = router.layer(axum::middleware::from_fn_with_state(guard, guarded));
                }
                let server = HttpServer { name: "admin HTTP", listener, tls, limits: ADMIN };
                server.serve(router, stop.clone()).await;
            }
        };
        tokio::join!(probing, serving, stop.cancelled());
    }
}

/// Opens an address; `option` is the flag that names it. `[::]` is every address of both families, or of IPv4 alone where this
/// machine has no IPv6.
pub fn listen(address: SocketAddr, what: &'static str, option: &'static str) -> Result<TcpListener, PortError> {
    let mut opened = open(address);
    if let Err(error) = &opened
        && address.ip() == Ipv6Addr::UNSPECIFIED
        && [Errno::AFNOSUPPORT, Errno::ADDRNOTAVAIL].map(Errno::raw_os_error).map(Some).contains(&error.raw_os_error())
    {
        tracing::info!(what, %error, "this machine has no IPv6: listening on IPv4 alone");
        opened = open(SocketAddr::from((Ipv4Addr::UNSPECIFIED, address.port())));
    }
    opened.map_err(|source| PortError::Listen { address, what, option, source })
}

fn open(address: SocketAddr) -> std::io::Result<TcpListener> {
    let socket = if address.is_ipv6() { TcpSocket::new_v6()? } else { TcpSocket::new_v4()? };
    if address.is_ipv6() {
        // Not as the machine is configured: `[::]` means both families.
        rustix::net::sockopt::set_ipv6_v6only(&socket, false)?;
    }
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

fn probe_router(answers: &Answers) -> Router {
    let route = |router: Router, path: &str, check: &Check| {
        let check = check.clone();
        router.route(path, get(move || probe(check)))
    };
    let router = route(route(Router::new(), "/livez", &answers.live), "/readyz", &answers.ready);
    answers.leading.iter().fold(router, |router, check| route(router, "/leading", check))
}

/// The routes of the admin address; the probes are among them, for people.
fn admin_router(answers: Answers) -> Router {
    let leading: &[&str] = if answers.leading.is_some() { &["/leading"] } else { &[] };
    let paths = [&["/livez", "/readyz"], leading, &["/metrics"], answers.paths].concat().join("\n") + "\n";
    let open_metrics = [(header::CONTENT_TYPE, "application/openmetrics-text; version=1.0.0; charset=utf-8")];
    let metrics = answers.metrics.clone();
    probe_router(&answers)
        .route("/metrics", get(move || async move { (open_metrics, metrics()) }))
        .merge(answers.questions)
        .route("/", get(move || async move { paths }))
        .fallback(unknown)
        .layer(RequestBodyLimitLayer::new(BODY))
}

async fn unknown() -> (StatusCode, &'static str) {
    (StatusCode::NOT_FOUND, "no such path; / of the admin address lists those that there are\n")
}

async fn probe(check: Check) -> Response {
    match check().await {
        Ok(text) => (StatusCode::OK, text + "\n").into_response(),
        Err(text) => (StatusCode::SERVICE_UNAVAILABLE, text + "\n").into_response(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::auth::{AccessJudge, User};
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpStream;

    const HERE: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

    fn answers() -> Answers {
        let panicking: axum::routing::MethodRouter = axum::routing::get(|| async {
            assert!(std::hint::black_box(false), "a handler that panics");
        });
        Answers {
            live: Arc::new(|| Box::pin(async { Ok("alive".to_owned()) })),
            ready: Arc::new(|| Box::pin(async { Err("nothing is registered".to_owned()) })),
            leading: None,
            metrics: Arc::new(|| "# EOF\n".to_owned()),
            questions: Router::new().route("/boom", panicking),
            paths: &["/boom"],
        }
    }

    /// Knows no token.
    struct Stranger;
    impl AccessJudge for Stranger {
        fn identify<'a>(&'a self, _: &'a str, _: Option<&'a str>) -> BoxFuture<'a, Result<Option<User>, String>> {
            Box::pin(async { Ok(None) })
        }
        fn allows<'a>(&'a self, _: &'a User, _: &'a str, _: &'a str) -> BoxFuture<'a, Result<bool, String>> {
            Box::pin(async { Ok(false) })
        }
    }

    struct Served {
        probes: SocketAddr,
        admin: SocketAddr,
        stop: CancellationToken,
        task: tokio::task::JoinHandle<()>,
    }

    fn serve(auth: AdminAuth) -> Served {
        let options = PortOptions { probe_listen: Some(HERE), listen: Some(HERE), auth, ..PortOptions::on(0, 0) };
        let ports = OpenPorts::open(&options).unwrap();
        let (probes, admin) = (ports.probe_address().unwrap(), ports.admin_address().unwrap());
        let stop = CancellationToken::new();
        let guard = Guard::new(Arc::new(Stranger), || Duration::ZERO);
        let task = tokio::spawn(ports.serve(answers(), guard, stop.clone()));
        Served { probes, admin, stop, task }
    }

    async fn request(address: SocketAddr, method: &str, path: &str) -> String {
        let mut stream = TcpStream::connect(address).await.unwrap();
        let request = format!("{method} {path} HTTP/1.1\r\nHost: admin\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer
    }

    async fn get(address: SocketAddr, path: &str) -> String {
        request(address, "GET", path).await
    }

    #[tokio::test]
    async fn probes_answer_with_their_text_and_a_panicking_route_harms_nothing_else() {
        let Served { probes, admin, stop, task } = serve(AdminAuth::None);
        assert!(get(admin, "/boom").await.starts_with("HTTP/1.1 500"));
        for address in [probes, admin] {
            assert!(get(address, "/livez").await.ends_with("alive\n"));
            let ready = get(address, "/readyz").await;
            assert!(ready.starts_with("HTTP/1.1 503") && ready.ends_with("nothing is registered\n"), "{ready}");
            let other = get(address, "/other").await;
            assert!(other.starts_with("HTTP/1.1 404") && other.ends_with("lists those that there are\n"), "{other}");
        }
        assert!(get(admin, "/metrics").await.contains("openmetrics-text"));
        assert!(get(admin, "/").await.ends_with("\r\n\r\n/livez\n/readyz\n/metrics\n/boom\n"));
        for path in ["/metrics", "/", "/boom"] {
            assert!(get(probes, path).await.starts_with("HTTP/1.1 404"), "{path} is none of the kubelet's business");
        }
        assert!(request(probes, "POST", "/livez").await.starts_with("HTTP/1.1 405"));
        stop.cancel();
        task.await.unwrap();
        assert!(TcpStream::connect(admin).await.is_err());
    }

    #[tokio::test]
    async fn an_address_that_speaks_tls_shows_nothing_over_plain_http() {
        let served = serve(AdminAuth::Token);
        assert!(!get(served.admin, "/metrics").await.contains("openmetrics"));
    }

    #[tokio::test]
    async fn silent_clients_keep_no_probe_out() {
        let served = serve(AdminAuth::None);
        for address in [served.probes, served.admin] {
            let mut silent = Vec::new();
            for _ in 0..200 {
                let mut stream = TcpStream::connect(address).await.unwrap();
                stream.write_all(b"GET /livez HT").await.unwrap();
                silent.push(stream);
            }
            assert!(get(address, "/livez").await.ends_with("alive\n"));
        }
    }

    /// One request for each connection, and the oldest ones go: clients that never stop asking keep no probe out either.
    #[tokio::test]
    async fn clients_that_ask_without_end_keep_no_probe_out() {
        let served = serve(AdminAuth::None);
        let mut endless = Vec::new();
        for _ in 0..100 {
            let mut stream = TcpStream::connect(served.probes).await.unwrap();
            endless.push(tokio::spawn(async move {
                let many = b"GET /livez HTTP/1.1\r\nHost: admin\r\n\r\n".repeat(1000);
                while stream.write_all(&many).await.is_ok() {}
            }));
        }
        for _ in 0..20 {
            assert!(get(served.probes, "/livez").await.ends_with("alive\n"));
        }
        endless.into_iter().for_each(|task| task.abort());
    }

    #[tokio::test]
    async fn an_address_in_use_is_named() {
        let taken = listen(HERE, "probes", "--probe-listen").unwrap();
        let address = taken.local_addr().unwrap();
        let error = listen(address, "probes", "--probe-listen").unwrap_err().to_string();
        assert!(error.contains(&address.to_string()) && error.contains("--probe-listen"), "{error}");
    }

    #[tokio::test]
    async fn every_address_is_one_of_both_families() {
        let every = SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0));
        let listener = listen(every, "probes", "--probe-listen").unwrap();
        let port = listener.local_addr().unwrap().port();
        assert!(TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await.is_ok());
        if std::net::TcpListener::bind((Ipv6Addr::LOCALHOST, 0)).is_ok() {
            assert!(TcpStream::connect((Ipv6Addr::LOCALHOST, port)).await.is_ok());
        }
    }

    #[test]
    fn plain_http_is_for_this_machine_alone_and_a_certificate_needs_its_key() {
        let said = |options: PortOptions| options.validate().unwrap_err().to_string();
        let none = PortOptions { auth: AdminAuth::None, ..PortOptions::on(9412, 9402) };
        assert!(said(none.clone()).contains("--listen=[::]:9412"), "{}", said(none.clone()));
        for listen in [Some(HERE), None] {
            assert_eq!(PortOptions { listen, ..none.clone() }.validate(), Ok(()));
        }
        let half = PortOptions { tls_cert: Some("/a.crt".into()), ..PortOptions::on(9412, 9402) };
        assert!(said(half.clone()).contains("/a.crt"), "{}", said(half));
    }

    #[tokio::test]
    async fn a_certificate_that_cannot_be_read_is_named() {
        let options = PortOptions {
            probe_listen: None,
            listen: Some(HERE),
            tls_cert: Some("/nonexistent.crt".into()),
            tls_key: Some("/nonexistent.key".into()),
            ..PortOptions::on(0, 0)
        };
        let said = OpenPorts::open(&options).err().unwrap().to_string();
        assert!(said.contains("--admin-tls-cert") && said.contains("/nonexistent.crt"), "{said}");
    }
}

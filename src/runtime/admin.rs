//! The addresses of a daemon: probes, for the kubelet; metrics, for collectors; and on loopback the admin address, which people reach
//! by a port-forward.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;
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

use super::http::{HttpServer, Limits};
use super::options::OptionError;
use super::tls::TlsError;

/// Of the admin address: a command asks again over the port-forward that it has.
const ADMIN: Limits = Limits {
    connections: 64,
    one_request: false,
    head: Duration::from_secs(60),
    answer: Some(Duration::from_secs(5)),
    age: None,
};
/// Of the metrics: any client of the network may come.
const METRICS: Limits = Limits { head: Duration::from_secs(2), age: Some(Duration::from_secs(60)), ..ADMIN };
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

/// Where the admin address is. It serves every client, so it is on loopback.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AdminListen {
    /// Nowhere.
    None,
    /// On 127.0.0.1 with the daemon's port, in the network of a pod; nowhere in the host's, where every process would be served.
    InPod,
    /// There, in the host's network too.
    At(SocketAddr),
}

/// The addresses of a daemon; `None` opens none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PortOptions {
    /// Of the probes.
    pub probe_listen: Option<SocketAddr>,
    /// Of the metrics.
    pub metrics_listen: Option<SocketAddr>,
    /// The admin address.
    pub listen: AdminListen,
    /// Its port where it is [`AdminListen::InPod`].
    pub admin_port: u16,
}

impl PortOptions {
    /// These ports: probes and metrics on every address of the machine.
    pub fn on(admin_port: u16, probes: u16, metrics: u16) -> Self {
        let every = |port| Some(SocketAddr::from((Ipv6Addr::UNSPECIFIED, port)));
        Self { probe_listen: every(probes), metrics_listen: every(metrics), listen: AdminListen::InPod, admin_port }
    }

    /// No address at all.
    pub fn none() -> Self {
        Self { probe_listen: None, metrics_listen: None, listen: AdminListen::None, admin_port: 0 }
    }

    /// Checks what types cannot.
    pub fn validate(&self) -> Result<(), OptionError> {
        match self.listen {
            AdminListen::At(address) if !address.ip().is_loopback() => {
                let problem = format!(
                    "{address} would serve every client that reaches it: listen on 127.0.0.1:{}, which `kubectl port-forward` reaches; /metrics is at --metrics-listen",
                    address.port()
                );
                Err(OptionError::value("--listen", problem))
            }
            _ => Ok(()),
        }
    }

    /// The admin address, by whether this is the host's network.
    fn admin(&self, of_host: bool) -> Option<SocketAddr> {
        let here = SocketAddr::from((Ipv4Addr::LOCALHOST, self.admin_port));
        match self.listen {
            AdminListen::None => None,
            AdminListen::At(address) => Some(address),
            AdminListen::InPod if of_host => {
                tracing::warn!(
                    "no admin address is opened: in the host's network every process of the machine would be served; --listen={here} opens it"
                );
                None
            }
            AdminListen::InPod => Some(here),
        }
    }
}

/// Whether this process is in the network namespace of the machine: these settings are of the machine, and no other namespace has them.
fn in_host_network() -> bool {
    Path::new("/proc/sys/net/core/netdev_max_backlog").exists()
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
    metrics: Option<TcpListener>,
    admin: Option<TcpListener>,
}

impl OpenPorts {
    /// Opens the addresses. Port 0 takes a free port.
    pub fn open(options: &PortOptions) -> Result<Self, PortError> {
        let open = |address: Option<SocketAddr>, what, option| {
            let opened = address.map(|address| listen(address, what, option)).transpose()?;
            if let Some(address) = opened.as_ref().and_then(|listener| listener.local_addr().ok()) {
                tracing::info!(%address, "{what}");
            }
            Ok::<_, PortError>(opened)
        };
        Ok(Self {
            probes: open(options.probe_listen, "probes", "--probe-listen")?,
            metrics: open(options.metrics_listen, "metrics", "--metrics-listen")?,
            admin: open(options.admin(in_host_network()), "admin HTTP", "--listen")?,
        })
    }

    /// The admin address.
    pub fn admin_address(&self) -> Option<SocketAddr> {
        self.admin.as_ref().and_then(|listener| listener.local_addr().ok())
    }

    /// Serves all until `stop`; then open requests get two seconds. A panicking handler answers 500 and harms nothing else.
    pub async fn serve(self, answers: Answers, stop: CancellationToken) {
        let served = |name, listener: Option<TcpListener>, router: Router, limits| {
            let stop = stop.clone();
            async move {
                let Some(listener) = listener else { return };
                HttpServer { name, listener, tls: None, limits }.serve(router, stop).await;
            }
        };
        let probes = served("probes", self.probes, probe_router(&answers).fallback(unknown), PROBES);
        let metrics = served("metrics", self.metrics, metrics_router(&answers).fallback(unknown), METRICS);
        let admin = served("admin HTTP", self.admin, admin_router(answers), ADMIN);
        tokio::join!(probes, metrics, admin, stop.cancelled());
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

fn metrics_router(answers: &Answers) -> Router {
    let open_metrics = [(header::CONTENT_TYPE, "application/openmetrics-text; version=1.0.0; charset=utf-8")];
    let metrics = answers.metrics.clone();
    Router::new().route("/metrics", get(move || async move { (open_metrics, metrics()) }))
}

/// The routes of the admin address; probes and metrics are among them, for people.
fn admin_router(answers: Answers) -> Router {
    let leading: &[&str] = if answers.leading.is_some() { &["/leading"] } else { &[] };
    let paths = [&["/livez", "/readyz"], leading, &["/metrics"], answers.paths].concat().join("\n") + "\n";
    probe_router(&answers)
        .merge(metrics_router(&answers))
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

    struct Served {
        probes: SocketAddr,
        metrics: SocketAddr,
        admin: SocketAddr,
        stop: CancellationToken,
        task: tokio::task::JoinHandle<()>,
    }

    fn serve() -> Served {
        let options = PortOptions {
            probe_listen: Some(HERE),
            metrics_listen: Some(HERE),
            listen: AdminListen::At(HERE),
            ..PortOptions::none()
        };
        let ports = OpenPorts::open(&options).unwrap();
        let address = |listener: &Option<TcpListener>| listener.as_ref().unwrap().local_addr().unwrap();
        let (probes, metrics, admin) = (address(&ports.probes), address(&ports.metrics), address(&ports.admin));
        let stop = CancellationToken::new();
        let task = tokio::spawn(ports.serve(answers(), stop.clone()));
        Served { probes, metrics, admin, stop, task }
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
        let Served { probes, metrics, admin, stop, task } = serve();
        assert!(get(admin, "/boom").await.starts_with("HTTP/1.1 500"));
        for address in [probes, admin] {
            assert!(get(address, "/livez").await.ends_with("alive\n"));
            let ready = get(address, "/readyz").await;
            assert!(ready.starts_with("HTTP/1.1 503") && ready.ends_with("nothing is registered\n"), "{ready}");
            let other = get(address, "/other").await;
            assert!(other.starts_with("HTTP/1.1 404") && other.ends_with("lists those that there are\n"), "{other}");
        }
        for address in [metrics, admin] {
            assert!(get(address, "/metrics").await.contains("openmetrics-text"));
        }
        assert!(get(admin, "/").await.ends_with("\r\n\r\n/livez\n/readyz\n/metrics\n/boom\n"));
        for path in ["/metrics", "/", "/boom"] {
            assert!(get(probes, path).await.starts_with("HTTP/1.1 404"), "{path} is none of the kubelet's business");
        }
        for path in ["/", "/boom", "/livez"] {
            assert!(get(metrics, path).await.starts_with("HTTP/1.1 404"), "{path} is none of a collector's business");
        }
        assert!(request(probes, "POST", "/livez").await.starts_with("HTTP/1.1 405"));
        stop.cancel();
        task.await.unwrap();
        assert!(TcpStream::connect(admin).await.is_err());
    }

    #[tokio::test]
    async fn silent_clients_keep_no_probe_out() {
        let served = serve();
        for address in [served.probes, served.admin, served.metrics] {
            let mut silent = Vec::new();
            for _ in 0..200 {
                let mut stream = TcpStream::connect(address).await.unwrap();
                stream.write_all(b"GET /livez HT").await.unwrap();
                silent.push(stream);
            }
            assert!(get(address, "/livez").await.starts_with("HTTP/1.1"));
        }
    }

    /// One request for each connection, and the oldest ones go: clients that never stop asking keep no probe out either.
    #[tokio::test]
    async fn clients_that_ask_without_end_keep_no_probe_out() {
        let served = serve();
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
    fn the_admin_address_is_on_loopback_and_in_the_hosts_network_only_where_told() {
        let at = |listen| PortOptions { listen, ..PortOptions::on(9412, 9402, 9422) };
        for address in ["[::]:9412", "10.0.0.1:9412", "0.0.0.0:0"] {
            let said = at(AdminListen::At(address.parse().unwrap())).validate().unwrap_err().to_string();
            assert!(
                said.contains(address) && said.contains("127.0.0.1") && said.contains("--metrics-listen"),
                "{said}"
            );
        }
        let here = SocketAddr::from((Ipv4Addr::LOCALHOST, 9412));
        for (listen, in_pod, of_host) in [
            (AdminListen::InPod, Some(here), None),
            (AdminListen::At(HERE), Some(HERE), Some(HERE)),
            (AdminListen::None, None, None),
        ] {
            let options = at(listen);
            assert_eq!(options.validate(), Ok(()));
            assert_eq!((options.admin(false), options.admin(true)), (in_pod, of_host), "{listen:?}");
        }
    }
}

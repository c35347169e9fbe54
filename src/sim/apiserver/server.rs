//! The handle of a running server.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};

use base64::Engine as _;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;

use super::auth::{Credential, Rule};
use super::core::{Clock, Core};
use super::counts::Counts;
use super::faults::Faults;
use super::listen;
use super::tidy;
use super::tls::{Tls, TlsError};
use super::user::{NODE_NAME, User};

/// How a server is started.
#[derive(Clone)]
pub struct Options {
    /// TCP port of plain HTTP on 127.0.0.1; 0 picks one.
    pub port: u16,
    /// TCP port of TLS on 127.0.0.1; 0 picks one.
    pub tls_port: u16,
    /// Seed of uids, name suffixes and fault probabilities.
    pub seed: u64,
    /// Wall time of the objects.
    pub clock: Clock,
    /// Garbage collection, namespace removal.
    pub garbage_collection: bool,
    /// Taints of nodes follow their Ready condition, as a node lifecycle controller has it.
    pub node_lifecycle: bool,
    /// Whether ValidatingAdmissionPolicies and their bindings are served and judge writes; without, they are unknown, as
    /// on an older server.
    pub admission_policies: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            port: 0,
            tls_port: 0,
            seed: 0,
            clock: Arc::new(baton_runtime::clock::wall),
            garbage_collection: true,
            node_lifecycle: true,
            admission_policies: true,
        }
    }
}

/// Why a server did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// A port could not be opened.
    #[error("could not listen on 127.0.0.1:{port}: {source}")]
    Listen {
        /// Port asked for.
        port: u16,
        /// Cause.
        source: std::io::Error,
    },
    /// No certificate.
    #[error(transparent)]
    Tls(#[from] TlsError),
}

/// A running simulated API server. Dropping it closes its ports.
///
/// ```no_run
/// # async fn f() -> Result<(), Box<dyn std::error::Error>> {
/// use baton_sim::apiserver::{ApiServer, Options};
/// let server = ApiServer::start(Options::default()).await?;
/// std::fs::write("kubeconfig", server.kubeconfig("admin"))?;
/// # Ok(()) }
/// ```
pub struct ApiServer {
    core: Arc<Core>,
    tls: Tls,
    address: SocketAddr,
    tls_address: SocketAddr,
    listening: Mutex<Option<CancellationToken>>,
    background: tokio::task::JoinSet<()>,
}

impl ApiServer {
    /// Starts a server with the namespaces of a fresh cluster.
    pub async fn start(options: Options) -> Result<Self, StartError> {
        let secret = format!("baton-{:08x}", options.seed);
        let core = Core::new(Arc::clone(&options.clock), options.seed, &secret);
        seed(&core);
        if !options.admission_policies {
            let mut registry = (**core.registry.load()).clone();
            registry.remove_group(super::policies::GROUP);
            core.registry.store(Arc::new(registry));
        }
        let tls = Tls::new()?;
        let plain = bind(options.port).await?;
        let secure = bind(options.tls_port).await?;
        let address = local(&plain, options.port)?;
        let tls_address = local(&secure, options.tls_port)?;
        core.set_address(tls_address.to_string());
        let mut background = tokio::task::JoinSet::new();
        if options.garbage_collection {
            background.spawn(tidy::sweep_forever(Arc::clone(&core)));
        }
        if options.node_lifecycle {
            background.spawn(tidy::taint_forever(Arc::clone(&core)));
        }
        let server = Self { core, tls, address, tls_address, listening: Mutex::default(), background };
        server.listen(plain, secure);
        Ok(server)
    }

    fn listen(&self, plain: TcpListener, secure: TcpListener) {
        let stop = CancellationToken::new();
        let acceptor = TlsAcceptor::from(Arc::clone(&self.tls.config));
        tokio::spawn(listen::accept(Arc::clone(&self.core), plain, None, stop.clone()));
        tokio::spawn(listen::accept(Arc::clone(&self.core), secure, Some(acceptor), stop.clone()));
        *self.listening.lock().unwrap_or_else(PoisonError::into_inner) = Some(stop);
    }

    /// Closes the ports and all connections; objects stay.
    pub fn stop(&self) {
        if let Some(stop) = self.listening.lock().unwrap_or_else(PoisonError::into_inner).take() {
            stop.cancel();
        }
    }

    /// Goes back to an earlier version of all objects, as a server whose etcd was restored from a backup.
    pub fn restore(&self, version: u64) {
        self.core.store.restore(version);
    }

    /// Has the objects and definitions of another server in place of its own, as if the same had been written to it.
    pub fn copy(&self, of: &Self) {
        self.core.copy(&of.core);
    }

    /// Opens the same ports again after [`stop`](Self::stop), with the same objects and certificates.
    pub async fn restart(&self) -> Result<(), StartError> {
        self.stop();
        let mut tries = 0;
        loop {
            // The old listeners close in their own tasks, so the ports may still be taken for a moment.
            match (bind(self.address.port()).await, bind(self.tls_address.port()).await) {
                (Ok(plain), Ok(secure)) => {
                    self.listen(plain, secure);
                    return Ok(());
                }
                (Err(error), _) | (_, Err(error)) if tries >= 100 => return Err(error),
                _ => {}
            }
            tries += 1;
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
    }

    /// `http://127.0.0.1:<port>`.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// `https://127.0.0.1:<port>`.
    pub fn tls_url(&self) -> String {
        format!("https://{}", self.tls_address)
    }

    /// PEM of the authority that signed the server's certificate.
    pub fn ca(&self) -> &str {
        &self.tls.ca
    }

    /// Bearer token of a user; a new user in no group (so without any permission) is made where there is none.
    /// `system:node:<name>` becomes a member of `system:nodes`, `system:serviceaccount:…` of the service account groups.
    pub fn token(&self, user: &str) -> String {
        self.token_of(user, None)
    }

    /// Bearer token of a user, bound to a node: its requests carry the node's name, as those of a service account's pod on
    /// that node do. Each pair of user and node has a token of its own.
    pub fn token_on_node(&self, user: &str, node: &str) -> String {
        self.token_of(user, Some(node))
    }

    fn token_of(&self, name: &str, node: Option<&str>) -> String {
        if let Some(token) = self.core.users.token(name, node) {
            return token;
        }
        let mut user = User::named(name);
        user.extra.extend(node.map(|node| (NODE_NAME.to_owned(), vec![node.to_owned()])));
        let token = format!("{}-{}", name.replace(':', "-"), self.core.uuid());
        self.core.users.add(Credential { user, ..Credential::default() }, &token);
        token
    }

    /// Gives a user exactly these permissions, beside what RBAC objects in the store give; answers its token.
    pub fn allow(&self, user: &str, rules: Vec<Rule>) -> String {
        self.core.users.allow(user, rules);
        self.token(user)
    }

    /// A kubeconfig for a user, over TLS, with authority and token inside.
    pub fn kubeconfig(&self, user: &str) -> String {
        self.secure_config(user, &self.token(user))
    }

    /// A kubeconfig for a user, over TLS, with the user's token that is bound to a node.
    pub fn kubeconfig_on_node(&self, user: &str, node: &str) -> String {
        self.secure_config(user, &self.token_on_node(user, node))
    }

    /// A kubeconfig for a user, over plain HTTP.
    pub fn plain_kubeconfig(&self, user: &str) -> String {
        config_text(user, &self.url(), "", &self.token(user))
    }

    /// A kubeconfig for a user, over plain HTTP, with the user's token that is bound to a node.
    pub fn plain_kubeconfig_on_node(&self, user: &str, node: &str) -> String {
        config_text(user, &self.url(), "", &self.token_on_node(user, node))
    }

    fn secure_config(&self, user: &str, token: &str) -> String {
        let ca = base64::engine::general_purpose::STANDARD.encode(&self.tls.ca);
        config_text(user, &self.tls_url(), &format!("\n    certificate-authority-data: {ca}"), token)
    }

    /// Faults on command.
    pub fn faults(&self) -> &Faults {
        &self.core.faults
    }

    /// Requests counted by verb, resource, subresource, user and program.
    pub fn counts(&self) -> &Counts {
        &self.core.counts
    }

    /// Forgets all history: older versions answer 410 from now on.
    pub fn compact(&self) {
        self.core.store.compact();
    }

    /// The current resourceVersion.
    pub fn version(&self) -> u64 {
        self.core.store.version()
    }

    /// Current objects of a stored resource (`""`/`pods`), without kind and version, read without a request.
    pub fn objects(&self, group: &str, plural: &str) -> Vec<Value> {
        let collection = format!("{group}/{plural}");
        let found = self.core.store.list(&collection, "/", None, None);
        found.map(|s| s.items.iter().map(|(_, o)| o.value.clone()).collect()).unwrap_or_default()
    }

    /// The server as a service, for clients in the same process.
    pub fn service(&self) -> axum::Router {
        listen::router(Arc::clone(&self.core))
    }
}

impl Drop for ApiServer {
    fn drop(&mut self) {
        self.stop();
        self.background.abort_all();
    }
}

/// A kubeconfig; `ca` is the line of the authority, if any.
fn config_text(user: &str, url: &str, ca: &str, token: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Config\nclusters:\n- name: baton\n  cluster:\n    server: {url}{ca}\nusers:\n- name: \
         \"{user}\"\n  user:\n    token: {token}\ncontexts:\n- name: baton\n  context:\n    cluster: baton\n    user: \
         \"{user}\"\n    namespace: default\ncurrent-context: baton\n"
    )
}

async fn bind(port: u16) -> Result<TcpListener, StartError> {
    TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await.map_err(|source| StartError::Listen { port, source })
}

fn local(listener: &TcpListener, port: u16) -> Result<SocketAddr, StartError> {
    listener.local_addr().map_err(|source| StartError::Listen { port, source })
}

/// What a fresh cluster has.
fn seed(core: &Core) {
    let put = |collection: &str, key: String, mut value: Value| {
        value["metadata"]["uid"] = json!(core.uuid());
        value["metadata"]["creationTimestamp"] = json!(core.now());
        let _ = core.store.commit(collection, &key, None, Some(value));
    };
    for name in ["default", "kube-node-lease", "kube-public", "kube-system"] {
        let labels = json!({"kubernetes.io/metadata.name": name});
        put(
            "/namespaces",
            format!("/{name}"),
            json!({
                "metadata": {"name": name, "labels": labels}, "spec": {"finalizers": ["kubernetes"]},
                "status": {"phase": "Active"},
            }),
        );
        put(
            "/serviceaccounts",
            format!("/{name}/default"),
            json!({
                "metadata": {"name": "default", "namespace": name},
            }),
        );
    }
    for (name, value, about) in [
        (
            "system-cluster-critical",
            2_000_000_000,
            "Used for system critical pods that must run in the cluster, but can be moved to another node if necessary.",
        ),
        (
            "system-node-critical",
            2_000_001_000,
            "Used for system critical pods that must not be moved from their current node.",
        ),
    ] {
        put(
            "scheduling.k8s.io/priorityclasses",
            format!("/{name}"),
            json!({
                "metadata": {"name": name, "generation": 1}, "value": value, "description": about,
                "preemptionPolicy": "PreemptLowerPriority",
            }),
        );
    }
}

//! The API server under test: the simulated one, or, with `KUBEBUILDER_ASSETS` (a directory with `etcd` and
//! `kube-apiserver`), a real one. Tests do not see which.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use baton::sim::apiserver::ApiServer;
use kube::Client;

use super::wait::until;

/// A running API server; stops when dropped.
pub enum ControlPlane {
    Simulated(ApiServer),
    /// etcd and kube-apiserver as child processes.
    Real(RealControlPlane),
}

impl ControlPlane {
    /// Starts whichever the environment asks for, with its files below `dir`; a real one with these flags, if it has them.
    pub async fn start(dir: &Path, flags: &NewerFlags) -> Self {
        match std::env::var_os("KUBEBUILDER_ASSETS") {
            Some(assets) => Self::Real(RealControlPlane::start(Path::new(&assets), dir, flags).await),
            None => Self::Simulated(
                ApiServer::start(baton::sim::apiserver::Options::default()).await.expect("simulated API server starts"),
            ),
        }
    }

    /// The simulated server, for tests that inject faults or count requests; they are skipped on a real one.
    pub fn simulated(&self) -> Option<&ApiServer> {
        match self {
            Self::Simulated(server) => Some(server),
            Self::Real(_) => None,
        }
    }

    /// Writes a kubeconfig with all rights below `dir`.
    pub fn kubeconfig(&self, dir: &Path) -> PathBuf {
        let path = dir.join("kubeconfig");
        let text = match self {
            Self::Simulated(server) => server.kubeconfig("admin"),
            Self::Real(real) => real.kubeconfig(),
        };
        std::fs::write(&path, text).expect("kubeconfig is writable");
        path
    }
}

/// Flags of kube-apiserver that have a meaning since this minor version.
pub struct NewerFlags {
    pub since: u32,
    pub flags: &'static [&'static str],
}

impl NewerFlags {
    pub const NONE: Self = Self { since: 0, flags: &[] };
}

/// A real etcd and kube-apiserver without controllers, as envtest runs them.
pub struct RealControlPlane {
    etcd: Child,
    apiserver: Child,
    port: u16,
    ca: String,
    /// It runs with the flags that were asked for.
    pub flagged: bool,
}

const TOKEN: &str = "baton-test-token";

impl RealControlPlane {
    async fn start(assets: &Path, dir: &Path, flags: &NewerFlags) -> Self {
        let flagged = minor_version(assets) >= flags.since;
        let [etcd_client, etcd_peer, port] = free_ports();
        let data = dir.join("etcd");
        let etcd = spawn(
            dir,
            "etcd",
            Command::new(assets.join("etcd"))
                .arg(format!("--data-dir={}", data.display()))
                .arg(format!("--listen-client-urls=http://127.0.0.1:{etcd_client}"))
                .arg(format!("--advertise-client-urls=http://127.0.0.1:{etcd_client}"))
                .arg(format!("--listen-peer-urls=http://127.0.0.1:{etcd_peer}"))
                .arg("--unsafe-no-fsync=true"),
        );
        let certs = dir.join("certs");
        std::fs::create_dir_all(&certs).expect("certificate directory");
        // The signing key is read as PKCS#8; the other flag takes public keys, and no EC private key in that form.
        let key = rcgen::KeyPair::generate().expect("key");
        std::fs::write(certs.join("sa.key"), key.serialize_pem()).expect("service account key");
        std::fs::write(certs.join("sa.pub"), key.public_key_pem()).expect("service account key");
        std::fs::write(certs.join("tokens.csv"), format!("{TOKEN},baton-test,baton-test,\"system:masters\"\n"))
            .expect("token file");
        let apiserver = spawn(
            dir,
            "kube-apiserver",
            Command::new(assets.join("kube-apiserver"))
                .arg(format!("--etcd-servers=http://127.0.0.1:{etcd_client}"))
                .arg(format!("--cert-dir={}", certs.display()))
                .arg(format!("--secure-port={port}"))
                .arg("--bind-address=127.0.0.1")
                .arg("--advertise-address=192.0.2.1")
                .arg(format!("--token-auth-file={}", certs.join("tokens.csv").display()))
                .arg("--authorization-mode=RBAC")
                .arg("--service-account-issuer=https://localhost")
                .arg(format!("--service-account-key-file={}", certs.join("sa.pub").display()))
                .arg(format!("--service-account-signing-key-file={}", certs.join("sa.key").display()))
                .arg("--service-cluster-ip-range=10.0.0.0/24")
                .arg("--allow-privileged=true")
                // No controllers run here that make service account tokens or lift the not-ready taint.
                .arg("--disable-admission-plugins=ServiceAccount,TaintNodesByCondition")
                .args(flags.flags.iter().filter(|_| flagged)),
        );
        let ca_file = certs.join("apiserver.crt");
        // It writes its own certificate and then that of the CA which signed it.
        let ca = until("kube-apiserver writes its certificates", Duration::from_secs(60), async || {
            let text = std::fs::read_to_string(&ca_file).ok()?;
            (text.matches("END CERTIFICATE").count() == 2).then_some(text)
        })
        .await;
        let this = Self { etcd, apiserver, port, ca, flagged };
        let path = dir.join("admin.kubeconfig");
        std::fs::write(&path, this.kubeconfig()).expect("kubeconfig");
        let client: Client = baton::cluster::client::connect(Some(&path)).await.expect("client");
        until("kube-apiserver is ready", Duration::from_secs(90), async || {
            let request = http::Request::get("/readyz").body(vec![]).expect("request");
            client.request_text(request).await.ok()
        })
        .await;
        let namespaces: kube::Api<k8s_openapi::api::core::v1::Namespace> = kube::Api::all(client);
        until("the namespace default is there", Duration::from_secs(30), async || namespaces.get("default").await.ok())
            .await;
        this
    }

    fn kubeconfig(&self) -> String {
        use base64::Engine as _;
        let ca = base64::engine::general_purpose::STANDARD.encode(&self.ca);
        let port = self.port;
        format!(
            "apiVersion: v1\nkind: Config\nclusters:\n- name: t\n  cluster:\n    server: https://127.0.0.1:{port}\n    certificate-authority-data: {ca}\ncontexts:\n- name: t\n  context: {{cluster: t, user: t}}\ncurrent-context: t\nusers:\n- name: t\n  user: {{token: {TOKEN}}}\n"
        )
    }
}

impl Drop for RealControlPlane {
    fn drop(&mut self) {
        for child in [&mut self.apiserver, &mut self.etcd] {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// `37` of `Kubernetes v1.37.2`.
fn minor_version(assets: &Path) -> u32 {
    let output = Command::new(assets.join("kube-apiserver")).arg("--version").output().expect("kube-apiserver runs");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.split('.').nth(1).and_then(|minor| minor.parse().ok()).unwrap_or_else(|| panic!("no version: {text:?}"))
}

fn spawn(dir: &Path, name: &str, command: &mut Command) -> Child {
    let mut log = std::fs::File::create(dir.join(format!("{name}.log"))).expect("log file");
    writeln!(log, "{command:?}").expect("log");
    let err = log.try_clone().expect("log");
    command.stdout(log).stderr(Stdio::from(err)).spawn().unwrap_or_else(|error| panic!("{name}: {error}"))
}

fn free_ports<const N: usize>() -> [u16; N] {
    let listeners = [(); N].map(|()| std::net::TcpListener::bind("127.0.0.1:0").expect("free port"));
    listeners.each_ref().map(|listener| listener.local_addr().expect("address").port())
}

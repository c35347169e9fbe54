//! The API server, in a process of its own so that its work is not counted as ours.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Mutex;
use std::time::Duration;

use baton::contract::{AgentStatus, inventory};
use baton::sim::apiserver::ApiServer;
use k8s_openapi::api::core::v1::Namespace;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::Client;
use kube::api::{Api, PostParams};
use serde_json::json;

use crate::control_plane::{ControlPlane, NewerFlags};
use crate::wait::until;

const SERVE: &str = "BATON_BENCH_SERVE";
/// Where agents' Leases and the scheduler's are.
pub const SYSTEM: &str = "baton-system";
/// Where the pods are.
pub const NAMESPACE: &str = "ml";

/// `true` in the process that is to be the API server.
pub fn is_asked_for() -> bool {
    std::env::var_os(SERVE).is_some()
}

/// Serves until the other end of the standard input is closed; answers each line there with the number of writes so far.
pub fn serve() {
    let dir = PathBuf::from(std::env::var_os(SERVE).unwrap());
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let control_plane = ControlPlane::start(&dir, &NewerFlags::NONE).await;
        let kubeconfig = control_plane.kubeconfig(&dir);
        println!("{}", kubeconfig.display());
        std::io::stdout().flush().unwrap();
        let next = || tokio::task::spawn_blocking(|| std::io::stdin().read_line(&mut String::new()));
        while next().await.unwrap().unwrap() > 0 {
            let beside = |resource: &str| matches!(resource, "events" | "leases");
            let write = |verb: &str| matches!(verb, "create" | "update" | "patch" | "delete" | "deletecollection");
            let counts = control_plane.simulated().map(ApiServer::counts);
            println!("{}", counts.map_or(0, |all| all.sum(|of| write(&of.verb) && !beside(&of.resource))));
            std::io::stdout().flush().unwrap();
        }
    });
}

/// A running API server with its namespaces and the Device CRD; ends when dropped.
pub struct Server {
    pub client: Client,
    pub kubeconfig: PathBuf,
    pub dir: tempfile::TempDir,
    process: Child,
    answers: Mutex<BufReader<ChildStdout>>,
}

impl Server {
    /// Writes so far, of anyone, beside events and Leases; 0 of a real API server.
    pub fn writes(&self) -> u64 {
        writeln!(self.process.stdin.as_ref().unwrap()).unwrap();
        let mut line = String::new();
        self.answers.lock().unwrap().read_line(&mut line).unwrap();
        line.trim().parse().unwrap()
    }

    pub async fn start() -> Self {
        let dir = tempfile::Builder::new().prefix("bench").tempdir_in("/tmp").unwrap();
        let mut process = Command::new(std::env::current_exe().unwrap())
            .env(SERVE, dir.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let mut answers = BufReader::new(process.stdout.take().unwrap());
        answers.read_line(&mut line).unwrap();
        let kubeconfig = PathBuf::from(line.trim());
        let client = baton::cluster::client::connect(Some(Path::new(&kubeconfig))).await.unwrap();
        let server = Self { client, kubeconfig, dir, process, answers: Mutex::new(answers) };
        server.prepare().await;
        server
    }

    async fn prepare(&self) {
        let namespaces: Api<Namespace> = Api::all(self.client.clone());
        for name in [SYSTEM, &AgentStatus::lease_namespace(SYSTEM), NAMESPACE] {
            let namespace = serde_json::from_value(json!({"metadata": {"name": name}})).unwrap();
            namespaces.create(&PostParams::default(), &namespace).await.unwrap();
        }
        let crds: Api<CustomResourceDefinition> = Api::all(self.client.clone());
        crds.create(&PostParams::default(), &inventory::crd()).await.unwrap();
        let devices: Api<inventory::Device> = Api::all(self.client.clone());
        until("the Device CRD is served", Duration::from_secs(30), async || {
            devices.list(&kube::api::ListParams::default()).await.ok()
        })
        .await;
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Its standard input closes with it; a server that does not end then is killed.
        drop(self.process.stdin.take());
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

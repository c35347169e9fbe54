//! An API server for a test, with a client that may do everything.

use std::path::PathBuf;
use std::process::Command;

use baton::sim::apiserver::{ApiServer, Options};
use k8s_openapi::api::core::v1::{Namespace, Node, Pod};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Api, PostParams};
use kube::{Client, ResourceExt};
use serde_json::{Value, json};

use super::control_plane::ControlPlane;

/// The API server, and a directory for everything beside it; both go when it is dropped.
pub struct TestServer {
    pub control_plane: ControlPlane,
    /// With all rights.
    pub client: Client,
    /// The kubeconfig of that client.
    pub kubeconfig: PathBuf,
    pub dir: tempfile::TempDir,
}

impl TestServer {
    /// The simulated server or, with `KUBEBUILDER_ASSETS`, a real one.
    pub async fn start() -> Self {
        let dir = directory();
        let control_plane = ControlPlane::start(dir.path()).await;
        let kubeconfig = control_plane.kubeconfig(dir.path());
        Self::of(control_plane, kubeconfig, dir).await
    }

    /// The simulated server, over plain HTTP.
    pub async fn simulated() -> Self {
        let (dir, server) =
            (directory(), ApiServer::start(Options::default()).await.expect("simulated API server starts"));
        let kubeconfig = dir.path().join("kubeconfig");
        std::fs::write(&kubeconfig, server.plain_kubeconfig("admin")).expect("kubeconfig is writable");
        Self::of(ControlPlane::Simulated(server), kubeconfig, dir).await
    }

    /// The simulated server, over TLS.
    pub async fn with_tls() -> Self {
        let (dir, server) =
            (directory(), ApiServer::start(Options::default()).await.expect("simulated API server starts"));
        let control_plane = ControlPlane::Simulated(server);
        let kubeconfig = control_plane.kubeconfig(dir.path());
        Self::of(control_plane, kubeconfig, dir).await
    }

    async fn of(control_plane: ControlPlane, kubeconfig: PathBuf, dir: tempfile::TempDir) -> Self {
        let client = baton::cluster::client::connect(Some(&kubeconfig)).await.expect("client");
        Self { control_plane, client, kubeconfig, dir }
    }

    /// The simulated server itself, to count requests and inject faults.
    pub fn server(&self) -> &ApiServer {
        self.control_plane.simulated().expect("this test starts a simulated API server")
    }

    /// A place in the directory.
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Creates an object that has no namespace.
    pub async fn create_object<K>(&self, object: Value) -> K
    where
        K: kube::Resource<DynamicType = ()> + Clone + std::fmt::Debug + serde::de::DeserializeOwned + serde::Serialize,
    {
        let object: K = serde_json::from_value(object).expect("an object of that kind");
        Api::all(self.client.clone()).create(&PostParams::default(), &object).await.expect("the object is created")
    }

    pub async fn create_namespace(&self, name: &str) {
        self.create_object::<Namespace>(json!({"metadata": {"name": name}})).await;
    }

    pub async fn create_crds(&self, crds: impl IntoIterator<Item = CustomResourceDefinition>) {
        for crd in crds {
            Api::all(self.client.clone()).create(&PostParams::default(), &crd).await.expect("the CRD is created");
        }
    }

    pub fn nodes(&self) -> Api<Node> {
        Api::all(self.client.clone())
    }

    pub fn pods_in(&self, namespace: &str) -> Api<Pod> {
        Api::namespaced(self.client.clone(), namespace)
    }

    /// An annotation of a node.
    pub async fn node_annotation(&self, node: &str, key: &str) -> Option<String> {
        self.nodes().get_metadata(node).await.expect("node is read").annotations().get(key).cloned()
    }

    /// Runs `baton args…` with the kubeconfig: exit code, standard output, standard error.
    pub async fn baton(&self, args: &[&str]) -> (Option<i32>, String, String) {
        let mut command = Command::new(env!("CARGO_BIN_EXE_baton"));
        command.args(args).env("KUBECONFIG", &self.kubeconfig);
        let output = tokio::task::spawn_blocking(move || command.output().expect("baton runs")).await.expect("it ends");
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("UTF-8");
        (output.status.code(), text(output.stdout), text(output.stderr))
    }
}

/// Short, because socket paths are limited.
fn directory() -> tempfile::TempDir {
    tempfile::Builder::new().prefix("bt").tempdir_in("/tmp").expect("temporary directory")
}

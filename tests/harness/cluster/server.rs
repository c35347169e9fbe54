//! An API server for a test, with a client that may do everything.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use baton::ops::demo::apply_all;
use baton::ops::manifests::{Values, files};
use baton::sim::apiserver::{ApiServer, Options};
use k8s_openapi::api::core::v1::{Namespace, Node, Pod, ServiceAccount};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Api, Patch, PatchParams, PostParams};
use kube::{Client, ResourceExt};
use serde_json::{Value, json};

use super::SOON;
use super::control_plane::{ControlPlane, NewerFlags};
use super::daemon::Daemon;
use super::directory::directory;
use super::wait::until;

/// A server for each installation that was asked for, and the version of an empty one: to copy it takes less time than to install again.
static INSTALLED: tokio::sync::Mutex<Vec<(Values, u64, ApiServer)>> = tokio::sync::Mutex::const_new(Vec::new());

/// The API server, and a directory for everything beside it; both go when it is dropped.
pub struct TestServer {
    pub control_plane: ControlPlane,
    /// With all rights.
    pub client: Client,
    /// The kubeconfig of that client.
    pub kubeconfig: PathBuf,
    /// Of the daemons.
    pub namespace: &'static str,
    pub dir: tempfile::TempDir,
}

impl TestServer {
    /// The simulated server or, with `KUBEBUILDER_ASSETS`, a real one.
    pub async fn start() -> Self {
        Self::with_flags(&NewerFlags::NONE).await
    }

    /// The same; a real one with these flags, if it has them.
    pub async fn with_flags(flags: &NewerFlags) -> Self {
        let dir = directory();
        let control_plane = ControlPlane::start(dir.path(), flags).await;
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

    pub async fn with_tls() -> Self {
        Self::around(ApiServer::start(Options::default()).await.expect("simulated API server starts")).await
    }

    /// This simulated server, over TLS.
    pub async fn around(server: ApiServer) -> Self {
        let (dir, control_plane) = (directory(), ControlPlane::Simulated(server));
        let kubeconfig = control_plane.kubeconfig(dir.path());
        Self::of(control_plane, kubeconfig, dir).await
    }

    async fn of(control_plane: ControlPlane, kubeconfig: PathBuf, dir: tempfile::TempDir) -> Self {
        let client = baton::cluster::client::connect(Some(&kubeconfig)).await.expect("client");
        Self { control_plane, client, kubeconfig, namespace: super::NAMESPACE, dir }
    }

    /// The simulated server itself, to count requests and inject faults.
    pub fn server(&self) -> &ApiServer {
        self.control_plane.simulated().expect("this test starts a simulated API server")
    }

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

    /// Installs what `baton manifests` prints, the workloads aside: namespaces, CRDs, RBAC, admission policies. Returns when the
    /// API server judges by them.
    pub async fn install(&self, values: &Values) {
        let Some(own) = self.control_plane.simulated() else { return self.install_by_requests(values).await };
        let mut installed = INSTALLED.lock().await;
        match installed.iter().find(|(of, ..)| of == values) {
            Some((_, empty, like)) if own.version() == *empty => own.copy(like),
            // It has objects of its own.
            Some(_) => self.install_by_requests(values).await,
            None => {
                let like = ApiServer::start(Options::default()).await.expect("simulated API server starts");
                let (empty, is_empty) = (like.version(), like.version() == own.version());
                self.install_by_requests(values).await;
                if is_empty {
                    like.copy(own);
                    like.stop();
                    installed.push((values.clone(), empty, like));
                }
            }
        }
    }

    async fn install_by_requests(&self, values: &Values) {
        baton::ops::demo::install(&self.client, values).await.expect("the manifests are applied");
        self.until_established().await;
        self.until_judged(values).await;
    }

    /// The same without the admission policies.
    pub async fn install_without_policies(&self, values: &Values) {
        for file in files(values).iter().filter(|file| file.applied && file.path != "admission.yaml") {
            apply_all(&self.client, &file.text).await.expect("the manifests are applied");
        }
        self.until_established().await;
    }

    async fn until_established(&self) {
        let crds: Api<CustomResourceDefinition> = Api::all(self.client.clone());
        until("the CRDs are established", Duration::from_secs(30), async || {
            let established = |crd: &CustomResourceDefinition| {
                let conditions = crd.status.as_ref().and_then(|status| status.conditions.as_ref());
                conditions.into_iter().flatten().any(|of| of.type_ == "Established" && of.status == "True")
            };
            crds.list(&Default::default()).await.ok()?.items.iter().all(established).then_some(())
        })
        .await;
    }

    /// A real API server takes a moment from a policy to its first denial. The last policy that was applied denies now.
    pub async fn until_judged(&self, values: &Values) {
        let account = format!("system:serviceaccount:{}:baton-scheduler", values.namespace);
        let forger = self.acting_as(&account, &[]).await;
        let group = json!({"apiVersion": "scheduling.sigs.k8s.io/v1alpha1", "kind": "PodGroup", "metadata": {"name": "forged"}, "spec": {"minMember": 1}});
        until("the admission policies are in force", Duration::from_secs(30), async || {
            let request =
                http::Request::post("/apis/scheduling.sigs.k8s.io/v1alpha1/namespaces/default/podgroups?dryRun=All")
                    .header("content-type", "application/json")
                    .body(serde_json::to_vec(&group).expect("JSON"))
                    .expect("request");
            let refused = forger.request::<Value>(request).await.err()?;
            refused.to_string().contains("denied request").then_some(())
        })
        .await;
    }

    /// A client of an administrator who acts as another user.
    pub async fn acting_as(&self, user: &str, groups: &[&str]) -> Client {
        let path = self.path("acting.kubeconfig");
        let groups = [groups, &["system:authenticated"]].concat();
        self.kubeconfig_with(&path, |of| (of["as"], of["as-groups"]) = (json!(user), json!(groups)));
        baton::cluster::client::connect(Some(&path)).await.expect("client")
    }

    /// The administrator's kubeconfig with its user changed.
    fn kubeconfig_with(&self, path: &Path, change: impl FnOnce(&mut Value)) {
        let text = std::fs::read_to_string(&self.kubeconfig).expect("kubeconfig is readable");
        let mut config: Value = serde_saphyr::from_str(&text).expect("kubeconfig is YAML");
        change(&mut config["users"][0]["user"]);
        std::fs::write(path, config.to_string()).expect("kubeconfig is writable");
    }

    /// A kubeconfig with a token that the API server makes for a ServiceAccount; with `node`, one that is bound to that Node, as
    /// the token of a pod on it is.
    pub async fn credentials(&self, namespace: &str, account: &str, node: Option<&str>) -> PathBuf {
        let bound = node.map(|name| json!({"apiVersion": "v1", "kind": "Node", "name": name}));
        let ask = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"audiences": [], "boundObjectRef": bound}});
        let path = format!("/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token");
        let answer: Value = until("the API server makes a token", Duration::from_secs(30), async || {
            let body = serde_json::to_vec(&ask).expect("JSON");
            let request =
                http::Request::post(&path).header("content-type", "application/json").body(body).expect("request");
            self.client.request(request).await.ok()
        })
        .await;
        // A node's name may be longer than that of a file.
        let node = node.map_or("unbound", |name| name.split('.').next().unwrap_or(name));
        let path = self.path(&format!("{account}-{node}.kubeconfig"));
        self.kubeconfig_with(&path, |user| *user = json!({"token": answer["status"]["token"]}));
        path
    }

    /// A client with such a token.
    pub async fn client_of(&self, namespace: &str, account: &str, node: Option<&str>) -> Client {
        let kubeconfig = self.credentials(namespace, account, node).await;
        baton::cluster::client::connect(Some(&kubeconfig)).await.expect("client")
    }

    pub fn nodes(&self) -> Api<Node> {
        Api::all(self.client.clone())
    }

    pub fn pods_in(&self, namespace: &str) -> Api<Pod> {
        Api::namespaced(self.client.clone(), namespace)
    }

    /// The pod in which the daemon would run, on a node: a port-forward leads to the daemon.
    pub async fn pod_of(&self, daemon: &Daemon, name: &str, labels: &[(&str, &str)], node: &str) {
        let admin = until(&format!("{name} has its address"), SOON, async || daemon.address("admin HTTP")).await;
        let labels: BTreeMap<_, _> = labels.iter().chain(&[("app.kubernetes.io/part-of", "baton")]).copied().collect();
        let ports = json!([{"name": "admin", "containerPort": admin.port()}]);
        let pod = json!({"metadata": {"name": name, "labels": labels},
            "spec": {"nodeName": node, "containers": [{"name": "main", "image": "i", "ports": ports}]}});
        let pods = self.pods_in(self.namespace);
        pods.create(&PostParams::default(), &serde_json::from_value(pod).expect("a pod")).await.expect("created");
        let status = json!({"status": {"phase": "Running"}});
        pods.patch_status(name, &PatchParams::default(), &Patch::Merge(status)).await.expect("it runs");
    }

    /// Makes an account in the daemons' namespace.
    pub async fn create_account(&self, name: &str) {
        let accounts: Api<ServiceAccount> = Api::namespaced(self.client.clone(), self.namespace);
        let account = serde_json::from_value(json!({"metadata": {"name": name}})).expect("an account");
        accounts.create(&PostParams::default(), &account).await.expect("the account is created");
    }

    /// Gives an account of the daemons' namespace a role: `ClusterRole` in the whole cluster, or `Role` there.
    pub async fn bind_role(&self, account: &str, kind: &str, role: &str) {
        let binding = json!({"metadata": {"name": format!("{account}-{role}")},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": role},
            "subjects": [{"kind": "ServiceAccount", "name": account, "namespace": self.namespace}]});
        let own = format!("namespaces/{}/rolebindings", self.namespace);
        self.post_rbac(if kind == "Role" { &own } else { "clusterrolebindings" }, &binding).await;
    }

    pub async fn post_rbac(&self, path: &str, object: &Value) {
        let request = http::Request::post(format!("/apis/rbac.authorization.k8s.io/v1/{path}"));
        let request = request.header("content-type", "application/json").body(object.to_string().into_bytes());
        self.client.request::<Value>(request.expect("a request")).await.expect("created");
    }

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

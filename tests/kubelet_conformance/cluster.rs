//! The API server under the kubelet.

use baton::sim::apiserver::{ApiServer, Options};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::waiting::wait;

pub struct Cluster {
    client: Client,
    server: ApiServer,
}

impl Cluster {
    pub async fn start() -> Self {
        let server = ApiServer::start(Options::default()).await.unwrap();
        let kubeconfig = Kubeconfig::from_yaml(&server.plain_kubeconfig("admin")).unwrap();
        let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await.unwrap();
        Self { client: Client::try_from(config).unwrap(), server }
    }

    pub fn client(&self) -> Client {
        self.client.clone()
    }

    /// The server itself, to break it.
    pub fn server(&self) -> &ApiServer {
        &self.server
    }

    /// The node's Lease as JSON; null when there is none.
    pub async fn lease(&self, name: &str) -> Value {
        get(&Api::<Lease>::namespaced(self.client(), "kube-node-lease"), name).await
    }

    /// Creates a pod on the node, as the recorder did.
    pub async fn create_pod(&self, pod: &Value) {
        let mut spec = pod["spec"].clone();
        spec["nodeName"] = json!("node-a");
        let pod = json!({"metadata": {"name": pod["name"]}, "spec": spec});
        self.pods().create(&PostParams::default(), &serde_json::from_value(pod).unwrap()).await.unwrap();
    }

    /// A pod as JSON; null when there is none.
    pub async fn pod(&self, name: &str) -> Value {
        get(&self.pods(), name).await
    }

    /// A node as JSON; null when there is none.
    pub async fn node(&self, name: &str) -> Value {
        get(&Api::<Node>::all(self.client()), name).await
    }

    /// Writes the status of a node, as a controller does.
    pub async fn patch_node_status(&self, name: &str, patch: &Value) {
        let nodes = Api::<Node>::all(self.client());
        nodes.patch_status(name, &PatchParams::default(), &Patch::Strategic(patch)).await.unwrap();
    }

    /// Asks for the deletion of all pods and waits until the kubelet has let them go.
    pub async fn delete_pods(&self) {
        let pods = self.pods();
        for pod in pods.list(&ListParams::default()).await.unwrap() {
            pods.delete(&pod.metadata.name.unwrap(), &DeleteParams::default()).await.unwrap();
        }
        wait("the pods to be gone", async || {
            pods.list(&ListParams::default()).await.unwrap().items.is_empty().then_some(())
        })
        .await;
    }

    fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.client(), "default")
    }
}

async fn get<K>(api: &Api<K>, name: &str) -> Value
where
    K: Clone + std::fmt::Debug + DeserializeOwned + Serialize,
{
    serde_json::to_value(api.get_opt(name).await.unwrap()).unwrap()
}

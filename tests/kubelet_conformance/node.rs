//! A node with one GPU plugin, for tests of what the recordings do not show.

use super::cluster::Cluster;
use super::plugin::{Log, Plugin, dial};
use super::prelude::*;
use super::waiting::wait;

pub const GPU: &str = "example.com/gpu";

pub struct Node {
    pub cluster: Cluster,
    pub kubelet: Kubelet,
    pub gpu: Plugin,
    pub log: Log,
    pub dir: tempfile::TempDir,
}

impl Node {
    /// A node whose GPU plugin is registered.
    pub async fn start() -> Self {
        Self::with(|_| {}).await
    }

    pub async fn with(change: impl FnOnce(&mut KubeletOptions)) -> Self {
        let dir = crate::directory::directory();
        let cluster = Cluster::start().await;
        let mut options = KubeletOptions::new("node-a", dir.path().join("k"), cluster.client());
        options.proc_root = Some(dir.path().join("proc"));
        options.cdi_root = Some(dir.path().join("cdi"));
        options.periods = Periods { scale: 0.02, ..Periods::default() };
        change(&mut options);
        let kubelet = Kubelet::start(options).await.unwrap();
        let log = Log::default();
        let gpu = Plugin::new("gpu", 4, &dir.path().join("k"), log.clone());
        gpu.start().await;
        let node = Self { cluster, kubelet, gpu, log, dir };
        node.allocatable("4").await;
        node
    }

    pub async fn allocatable(&self, count: &str) {
        wait(&format!("allocatable {count}"), async || {
            (self.cluster.node("node-a").await["status"]["allocatable"][GPU] == count).then_some(())
        })
        .await;
    }

    pub async fn create(&self, name: &str, spec: Value) {
        self.cluster.create_pod(&json!({"name": name, "spec": spec})).await;
    }

    pub async fn create_simple(&self, name: &str, count: u32) {
        self.create(name, pod("Never", &["sleep", "3000"], count)).await;
    }

    pub async fn phase(&self, name: &str, phase: &str) -> Value {
        wait(&format!("{name} to be {phase}"), async || {
            let pod = self.cluster.pod(name).await;
            (pod["status"]["phase"] == phase).then_some(pod)
        })
        .await
    }

    pub fn held(&self, name: &str) -> BTreeSet<String> {
        let view = self.kubelet.view();
        view.get(&format!("default/{name}")).map(|pod| pod.devices(GPU)).unwrap_or_default()
    }

    pub fn calls(&self, rpc: &str) -> usize {
        self.log.since(0).iter().filter(|call| call["rpc"] == rpc && call["event"].is_null()).count()
    }

    pub async fn pod_resources(&self) -> PodResourcesListerClient<tonic::transport::Channel> {
        PodResourcesListerClient::new(dial(self.kubelet.options().pod_resources_socket()).await)
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.gpu.stop();
    }
}

pub fn pod(restart_policy: &str, command: &[&str], count: u32) -> Value {
    json!({"restartPolicy": restart_policy, "containers": [container("main", command, count)]})
}

pub fn container(name: &str, command: &[&str], count: u32) -> Value {
    json!({"name": name, "image": "pause", "command": command, "resources": {"limits": {GPU: count.to_string()}}})
}

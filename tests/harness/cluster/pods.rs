//! Pods in a line or two.

use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};

use baton::contract::key;

/// A pod for our scheduler; containers are added by kind.
#[derive(Clone)]
pub struct PodSpec {
    name: String,
    node: Option<String>,
    annotations: serde_json::Map<String, Value>,
    labels: serde_json::Map<String, Value>,
    volumes: Vec<Value>,
    init: Vec<Value>,
    app: Vec<Value>,
    restarts: &'static str,
}

pub fn pod(name: &str) -> PodSpec {
    let (name, none) = (name.to_owned(), serde_json::Map::new());
    PodSpec {
        name,
        node: None,
        annotations: none.clone(),
        labels: none,
        volumes: vec![],
        init: vec![],
        app: vec![],
        restarts: "Never",
    }
}

fn container(name: &str, limits: &[(&str, &str)], seconds: u32) -> Value {
    let limits: serde_json::Map<String, Value> = limits.iter().map(|(k, v)| ((*k).to_owned(), json!(v))).collect();
    json!({"name": name, "image": "docker.io/local/pause:1", "imagePullPolicy": "Never", "command": ["/bin/sleep", seconds.to_string()], "resources": {"limits": limits}})
}

impl PodSpec {
    /// An app container that runs "for ever".
    pub fn app(mut self, name: &str, limits: &[(&str, &str)]) -> Self {
        self.app.push(container(name, limits, 100_000));
        self
    }
    /// An init container that ends at once.
    pub fn init(mut self, name: &str, limits: &[(&str, &str)]) -> Self {
        self.init.push(container(name, limits, 0));
        self
    }
    pub fn sidecar(mut self, name: &str, limits: &[(&str, &str)]) -> Self {
        let mut sidecar = container(name, limits, 100_000);
        sidecar["restartPolicy"] = json!("Always");
        self.init.push(sidecar);
        self
    }
    /// Its containers start again when they have ended.
    pub fn restarting(mut self) -> Self {
        self.restarts = "Always";
        self
    }
    /// On this node and no other.
    pub fn on(mut self, node: &str) -> Self {
        self.node = Some(node.to_owned());
        self
    }
    pub fn annotation(mut self, key: &str, value: &str) -> Self {
        self.annotations.insert(key.to_owned(), json!(value));
        self
    }
    pub fn label(mut self, key: &str, value: &str) -> Self {
        self.labels.insert(key.to_owned(), json!(value));
        self
    }
    /// An empty volume at this place of its last app container.
    pub fn volume_at(mut self, path: &str) -> Self {
        let name = format!("volume-{}", self.volumes.len());
        self.app.last_mut().expect("a container")["volumeMounts"] = json!([{"name": name, "mountPath": path}]);
        self.volumes.push(json!({"name": name, "emptyDir": {}}));
        self
    }
    /// GPUs and NICs near each other.
    pub fn joint(self) -> Self {
        self.annotation(key::DEVICE_JOINT_ALLOCATE, r#"{"deviceTypes":["gpu","rdma"],"requiredScope":"SamePCIe"}"#)
    }
    pub fn name(&self) -> &str {
        &self.name
    }
    pub fn build(&self) -> Pod {
        let selector = self.node.as_ref().map(|node| json!({"kubernetes.io/hostname": node}));
        serde_json::from_value(json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": self.name, "namespace": "default", "annotations": self.annotations, "labels": self.labels},
            "spec": {"schedulerName": "baton-scheduler", "nodeSelector": selector, "restartPolicy": self.restarts, "terminationGracePeriodSeconds": 1,
                "tolerations": [{"operator": "Exists"}], "initContainers": self.init, "containers": self.app, "volumes": self.volumes}
        }))
        .expect("a pod")
    }
}

/// A pod of each kind of request.
pub fn every_kind() -> [PodSpec; 5] {
    [
        pod("one").app("main", &[("nvidia.com/gpu", "1")]),
        pod("two").app("a", &[("nvidia.com/gpu", "1")]).app("b", &[("nvidia.com/gpu", "1")]),
        pod("phases")
            .init("prepare", &[("nvidia.com/gpu", "1")])
            .sidecar("side", &[(key::RDMA, "10")])
            .app("main", &[("nvidia.com/gpu", "1")]),
        pod("share").app("main", &[(key::GPU_CORE, "30"), (key::GPU_MEMORY_RATIO, "40")]),
        pod("joint").app("main", &[("nvidia.com/gpu", "2"), (key::RDMA, "100")]).joint(),
    ]
}

//! Nodes of eight GPUs as the API server shows them: Node, Device object, and the Lease of an agent that tells callers apart.

use baton::contract::inventory::Device;
use baton::contract::{AgentStatus, Identity, key};
use baton::runtime::clock;
use futures::StreamExt as _;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Node;
use kube::api::{Api, Patch, PatchParams, PostParams};
use kube::{Client, ResourceExt as _};
use serde_json::{Value, json};

use crate::server::SYSTEM;

const NAMES: [&str; 6] = [key::NVIDIA_GPU, key::GPU, key::GPU_CORE, key::GPU_MEMORY_RATIO, key::GPU_SHARED, key::RDMA];
/// Requests under way while the cluster is set up.
const AT_ONCE: usize = 32;

/// Name of a node.
pub fn name(at: usize) -> String {
    format!("gpu-node-{at:05}")
}

/// Creates `count` nodes.
pub async fn create(client: &Client, count: usize) {
    let each = (0..count).map(|at| one(client.clone(), at));
    futures::stream::iter(each).buffer_unordered(AT_ONCE).collect::<Vec<()>>().await;
}

async fn one(client: Client, at: usize) {
    let name = name(at);
    let amounts = json!({"cpu": "128", "memory": "2048Gi", "pods": "110", "nvidia.com/gpu": "8",
        "koordinator.sh/gpu": "800", "koordinator.sh/gpu-core": "800", "koordinator.sh/gpu-memory-ratio": "800",
        "koordinator.sh/gpu.shared": "800"});
    let labels = json!({"kubernetes.io/hostname": name, "kubernetes.io/arch": "amd64", "kubernetes.io/os": "linux",
        "node.kubernetes.io/instance-type": "gpu-8", "topology.kubernetes.io/zone": format!("zone-{}", at % 3)});
    let node = json!({"metadata": {"name": name, "labels": labels, "annotations": {"node.alpha/ttl": "0"}}});
    let status = json!({"status": {"capacity": amounts, "allocatable": amounts,
        "conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady", "message": ""}]}});
    let nodes: Api<Node> = Api::all(client.clone());
    let created = nodes.create(&PostParams::default(), &serde_json::from_value(node).unwrap()).await.unwrap();
    nodes.patch_status(&name, &PatchParams::default(), &Patch::Merge(status)).await.unwrap();
    let devices: Api<Device> = Api::all(client.clone());
    let device = device(&name, &created.uid().unwrap());
    devices.create(&PostParams::default(), &serde_json::from_value(device).unwrap()).await.unwrap();
    let leases: Api<Lease> = Api::namespaced(client, &AgentStatus::lease_namespace(SYSTEM));
    leases.create(&PostParams::default(), &serde_json::from_value(lease(&name)).unwrap()).await.unwrap();
}

fn device(node: &str, uid: &str) -> Value {
    let gpus: Vec<Value> = (0..8)
        .map(|minor| {
            let labels = json!({key::PCIE_SWITCH: format!("0000:{}0:00.0", minor / 2), key::NVLINK_DOMAIN: "0",
                key::MODEL: "NVIDIA-H100-80GB-HBM3"});
            json!({"type": "gpu", "id": format!("GPU-{node}-{minor:04}-0000-000000000000"), "minor": minor, "health": true,
                "labels": labels,
                "resources": {key::GPU_CORE: "100", key::GPU_MEMORY: "80Gi", key::GPU_MEMORY_RATIO: "100"},
                "topology": {"socketID": 0, "nodeID": minor / 4, "pcieID": format!("pci0000:{}0", minor / 2)}})
        })
        .collect();
    json!({"apiVersion": "scheduling.koordinator.sh/v1alpha1", "kind": "Device",
        "metadata": {"name": node, "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": node, "uid": uid}]},
        "spec": {"devices": gpus}})
}

fn lease(node: &str) -> Value {
    let registered = NAMES.map(str::to_owned).to_vec();
    let status = AgentStatus {
        version: "bench".into(),
        registered,
        identity: Identity::Exact,
        lockless: None,
        exceptions: None,
        lock: None,
        too_many_exceptions: false,
        ended: false,
        unreleased: None,
        leaving: [].into(),
        pod_metrics: false,
    };
    json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
        "metadata": {"name": AgentStatus::lease_name(node), "annotations": {key::AGENT: status.print()}},
        "spec": {"holderIdentity": node, "renewTime": format!("{:.6}", clock::wall())}})
}

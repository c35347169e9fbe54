//! A simulated API server with GPU nodes, the scheduler in process, and an agent played by the test.

use std::future::Future;

use baton::cluster::leadership::LeaderOptions;
use baton::cluster::lease::LeaseTimings;
use baton::contract::AgentStatus;
use baton::runtime::admin::{AdminListen, PortOptions};
use baton::scheduler::{SchedulerDaemon, SchedulerTimings};
use baton::sim::apiserver::RuleId;
use tokio::task::JoinHandle;

use crate::harness::wait;
use crate::prelude::*;

pub const NAMES: [&str; 6] =
    [key::NVIDIA_GPU, key::GPU, key::GPU_CORE, key::GPU_MEMORY_RATIO, key::GPU_SHARED, key::RDMA];
const DEADLINE: Duration = Duration::from_secs(30);

pub struct SchedulerCluster {
    api: TestServer,
}

pub struct Running {
    stop: CancellationToken,
    task: JoinHandle<()>,
    pub admin: std::net::SocketAddr,
}

impl Running {
    /// SIGTERM.
    pub async fn stop(self) {
        self.stop.cancel();
        self.task.await.unwrap();
    }
    /// `kill -9`, as far as the API server can tell: the loop and its timers are gone at once.
    pub async fn kill(self) {
        self.task.abort();
        self.task.await.ok();
    }
}

/// What an agent of this kind says of itself.
pub fn status(identity: Identity) -> AgentStatus {
    AgentStatus {
        version: "test".into(),
        registered: NAMES.map(str::to_owned).to_vec(),
        identity,
        lockless: None,
        exceptions: None,
        lock: None,
        too_many_exceptions: false,
        ended: false,
        unreleased: None,
        pod_metrics: false,
        leaving: [].into(),
    }
}

/// Waits for a condition; panics when it does not come within half a minute, naming `what`.
pub async fn until<T, F: Future<Output = Option<T>>>(what: &str, mut check: impl FnMut() -> F) -> T {
    wait::until(what, DEADLINE, async || check().await).await
}

impl std::ops::Deref for SchedulerCluster {
    type Target = TestServer;
    fn deref(&self) -> &TestServer {
        &self.api
    }
}

impl SchedulerCluster {
    pub async fn start() -> Self {
        let cluster = Self { api: TestServer::simulated().await };
        cluster.create_crds([baton::contract::inventory::crd()]).await;
        for name in ["ml", "baton-system", "baton-system-nodes"] {
            cluster.create_namespace(name).await;
        }
        let devices: Api<Device> = Api::all(cluster.client.clone());
        until("the Device CRD", || async { devices.list(&Default::default()).await.ok() }).await;
        cluster
    }

    /// With one node of 8 GPUs whose agent lives.
    pub async fn with_node(name: &str) -> Self {
        let cluster = Self::start().await;
        cluster.node(name).await;
        cluster
    }

    /// With one node of 8 GPUs, and the scheduler.
    pub async fn running(node: &str) -> (Self, Running) {
        let cluster = Self::with_node(node).await;
        let scheduler = cluster.scheduler().await;
        (cluster, scheduler)
    }

    /// With one node of so many CPUs.
    pub async fn with_cpus(name: &str, cpus: u32) -> Self {
        let cluster = Self::start().await;
        cluster.cpus(name, cpus).await;
        cluster
    }

    pub async fn make(&self, pod: Value) -> Pod {
        self.pods().create(&PostParams::default(), &serde_json::from_value(pod).unwrap()).await.unwrap()
    }

    /// Waits until a fault has hit so often.
    pub async fn fires(&self, rule: RuleId, times: u64) {
        until(&format!("the fault hits {times} times"), || async {
            (self.server().faults().fired(rule) >= times).then_some(())
        })
        .await;
    }

    pub fn options(&self) -> SchedulerOptions {
        SchedulerOptions {
            kubeconfig: Some(self.kubeconfig.clone()),
            ports: PortOptions { listen: AdminListen::At(([127, 0, 0, 1], 0).into()), ..PortOptions::none() },
            leader: LeaderOptions { elect: false, ..LeaderOptions::of_lease("baton-scheduler") },
            ..SchedulerOptions::default()
        }
    }

    /// Short periods, so that the test need not wait.
    pub fn quick(&self) -> SchedulerOptions {
        let ms = Duration::from_millis;
        let options = self.options();
        SchedulerOptions {
            leader: LeaderOptions {
                timings: LeaseTimings {
                    lease_duration: ms(3000),
                    lease_renew_deadline: ms(1000),
                    lease_retry: ms(200),
                },
                ..options.leader
            },
            timings: SchedulerTimings {
                lock_abandoned: ms(1000),
                lock_sweep: ms(200),
                backoff: ms(100),
                backoff_max: ms(500),
                bind_timeout: ms(2000),
                gang_condition_pause: ms(200),
                ..SchedulerTimings::default()
            },
            ..options
        }
    }

    pub async fn scheduler(&self) -> Running {
        self.scheduler_with(self.quick()).await
    }

    pub async fn scheduler_with(&self, options: SchedulerOptions) -> Running {
        let scheduler = SchedulerDaemon::new(options).await.unwrap();
        let admin = scheduler.admin_address().unwrap();
        let stop = CancellationToken::new();
        let token = stop.clone();
        let task = tokio::spawn(async move { scheduler.run(token).await.unwrap() });
        Running { stop, task, admin }
    }

    pub fn pods(&self) -> Api<Pod> {
        self.pods_in("ml")
    }

    /// A node of 8 GPUs whose agent lives.
    pub async fn node(&self, name: &str) {
        self.node_of(name, 8).await;
    }

    /// A node of so many GPUs whose agent lives.
    pub async fn node_of(&self, name: &str, count: u32) {
        let units = (count * 100).to_string();
        let amounts = json!({"cpu": "64", "memory": "512Gi", "pods": "110", "nvidia.com/gpu": count.to_string(), "koordinator.sh/gpu": units,
            "koordinator.sh/gpu-core": units, "koordinator.sh/gpu-memory-ratio": units, "koordinator.sh/gpu.shared": units});
        let node = json!({"metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}, "annotations": {"other": "value"}}, "status": {"capacity": amounts, "allocatable": amounts,
            "conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady", "message": ""}]}});
        let node: Node = serde_json::from_value(node).unwrap();
        let created = self.nodes().create(&PostParams::default(), &node).await.unwrap();
        // A real API server takes no status from a create by everybody; written apart it holds everywhere.
        let status = json!({"status": serde_json::to_value(node.status).unwrap()});
        self.nodes().patch_status(name, &PatchParams::default(), &Patch::Merge(status)).await.unwrap();
        let gpus: Vec<Value> = (0..count)
            .map(|minor| {
                json!({"type": "gpu", "id": format!("GPU-{name}-{minor}"), "minor": minor, "health": true,
                    "labels": {key::PCIE_SWITCH: format!("0000:{}0:00.0", minor / 4), key::NVLINK_DOMAIN: "0"},
                    "resources": {key::GPU_CORE: "100", key::GPU_MEMORY: "80Gi", key::GPU_MEMORY_RATIO: "100"},
                    "topology": {"socketID": 0, "nodeID": minor / 4, "pcieID": format!("pci0000:{}0", minor / 4)}})
            })
            .collect();
        let device = json!({"apiVersion": "scheduling.koordinator.sh/v1alpha1", "kind": "Device",
            "metadata": {"name": name, "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": name, "uid": created.uid()}]},
            "spec": {"devices": gpus}});
        let devices: Api<Device> = Api::all(self.client.clone());
        devices.create(&PostParams::default(), &serde_json::from_value(device).unwrap()).await.unwrap();
        self.beat(name, Identity::Lock).await;
    }

    pub async fn beat(&self, node: &str, identity: Identity) {
        let lease = json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
            "metadata": {"name": AgentStatus::lease_name(node), "annotations": {key::AGENT: status(identity).print()}},
            "spec": {"holderIdentity": node, "renewTime": format!("{:.6}", baton::runtime::clock::wall())}});
        let leases: Api<Lease> = Api::namespaced(self.client.clone(), "baton-system-nodes");
        let lease: Lease = serde_json::from_value(lease).unwrap();
        leases.create(&PostParams::default(), &lease).await.unwrap();
    }

    pub async fn pod(&self, name: &str, limits: Value) -> Pod {
        self.pod_with(name, limits, json!({})).await
    }

    pub async fn pod_with(&self, name: &str, limits: Value, annotations: Value) -> Pod {
        let pod = json!({"metadata": {"name": name, "namespace": "ml", "annotations": annotations},
            "spec": {"schedulerName": "baton-scheduler", "automountServiceAccountToken": false,
                "containers": [{"name": "main", "image": "x", "resources": {"limits": limits}}]}});
        self.make(pod).await
    }

    pub async fn get(&self, name: &str) -> Option<Pod> {
        self.pods().get_opt(name).await.unwrap()
    }

    pub async fn bound(&self, name: &str) -> Pod {
        until(&format!("{name} is bound"), || async {
            self.get(name).await.filter(|pod| pod.spec.as_ref().unwrap().node_name.is_some())
        })
        .await
    }

    /// Creates a pod and waits until it is bound.
    pub async fn binds(&self, name: &str, limits: Value) -> Pod {
        self.pod(name, limits).await;
        self.bound(name).await
    }

    pub async fn lock(&self, node: &str) -> Option<String> {
        self.node_annotation(node, key::NODE_LOCK).await
    }

    pub async fn locked_by(&self, node: &str, pod: &str) -> String {
        until(&format!("the lock of {node} names {pod}"), || async {
            self.lock(node).await.filter(|value| value.split(',').nth(2) == Some(pod))
        })
        .await
    }

    pub async fn unlocked(&self, node: &str) {
        until(&format!("{node} is unlocked"), || async { self.lock(node).await.is_none().then_some(()) }).await;
    }

    pub async fn set_lock(&self, node: &str, value: Option<&str>) {
        let patch = json!({"metadata": {"annotations": {key::NODE_LOCK: value}}});
        self.nodes().patch_metadata(node, &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
    }

    pub async fn delete(&self, name: &str) {
        self.pods().delete(name, &DeleteParams::default().grace_period(0)).await.unwrap();
    }
}

//! One node, and the scheduler's side of the hand-off by hand: lock, then one Binding with all annotations.

use baton::cluster::node_lock::{LockWrite, NodeLocks};
use baton::contract::{Holder, LockFormat, LockValue, PodKey, PodUid};
use baton::sim::kubelet::KubeletOptions;
use k8s_openapi::api::core::v1::Pod;

use super::agent::Agent;
use super::pods::PodSpec;
use crate::harness::TestServer;
use crate::prelude::*;

pub const NODE: &str = "node-a";
/// A condition that does not hold within this time fails.
/// Everything here takes milliseconds; a busy machine may take longer.
pub const DEADLINE: Duration = Duration::from_secs(30);

pub struct HandoffNode {
    pub kubelet: Kubelet,
    pub agent: Option<Agent>,
    pub policy: AllocatePolicy,
    barrier: bool,
    server: TestServer,
}

pub async fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    wait::until(what, DEADLINE, async || holds().then_some(())).await;
}

impl std::ops::Deref for HandoffNode {
    type Target = TestServer;
    fn deref(&self) -> &TestServer {
        &self.server
    }
}

impl HandoffNode {
    pub async fn start() -> Self {
        Self::with(AllocatePolicy::default()).await
    }

    pub async fn with(policy: AllocatePolicy) -> Self {
        Self::of(policy, false).await
    }

    /// With `--verify-before-start`.
    pub async fn with_barrier(policy: AllocatePolicy) -> Self {
        Self::of(policy, true).await
    }

    async fn of(policy: AllocatePolicy, barrier: bool) -> Self {
        let server = TestServer::simulated().await;
        let mut options = KubeletOptions::new(NODE, server.path("kubelet"), server.client.clone());
        options.set_machine(&server.path("machine/sys"), &server.path("machine/proc"));
        options.periods.scale = 0.02;
        options.periods.fast_status = true;
        options.periods.source_delay = Duration::from_millis(200);
        let kubelet = Kubelet::start(options).await.unwrap();
        eventually("the node is there", || !server.server().objects("", "nodes").is_empty()).await;
        let mut machine = Self { kubelet, agent: None, policy, barrier, server };
        machine.start_agent().await;
        machine
    }

    pub async fn start_agent(&mut self) {
        let boot = self.kubelet.boot_id();
        let agent = Agent::start(self.client.clone(), self.dir.path(), &boot, self.policy.clone(), self.barrier).await;
        self.agent = Some(agent);
        // The kubelet refuses pods for names that its node does not offer yet.
        eventually("the node offers its devices", || {
            let node = self.server().objects("", "nodes");
            node[0]["status"]["allocatable"][key::NVIDIA_GPU] == "8"
                && node[0]["status"]["allocatable"][key::RDMA] == "400"
        })
        .await;
    }

    pub async fn stop_agent(&mut self) {
        self.agent.take().unwrap().stop().await;
    }

    pub fn lose_ledger(&self) {
        std::fs::remove_file(self.dir.path().join("state/ledger.json")).unwrap();
    }

    /// Where everything of this node lies.
    pub fn root(&self) -> &Path {
        self.dir.path()
    }

    /// The ledger holds nothing of that pod any more.
    pub async fn forgotten(&self, pod: &str) {
        let is_empty = async || self.agent().ledger_of(pod).await.is_empty().then_some(());
        wait::until(&format!("{pod} holds no devices"), DEADLINE, is_empty).await;
    }

    pub fn agent(&self) -> &Agent {
        self.agent.as_ref().unwrap()
    }

    pub fn locks(&self) -> NodeLocks {
        NodeLocks::new(self.client.clone(), key::NODE_LOCK)
    }

    pub fn pods(&self) -> Api<Pod> {
        self.pods_in("default")
    }

    /// Creates the pod, unbound; answers its uid.
    pub async fn create(&self, spec: &PodSpec) -> PodUid {
        let pod: Pod = serde_json::from_value(spec.object()).unwrap();
        let made = self.pods().create(&PostParams::default(), &pod).await.unwrap();
        PodUid::new(made.metadata.uid.as_deref().unwrap())
    }

    /// Locks the node for the pod, as soon as it is free; answers the lock's time.
    pub async fn lock(&self, pod: &str, uid: &PodUid) -> jiff::Timestamp {
        let until = clock::mono() + DEADLINE;
        loop {
            let time = clock::wall();
            let holder = Some(Holder { pod: PodKey::new("default", pod), uid: Some(uid.clone()) });
            let value = LockValue { time, holder }.print(LockFormat::Uid);
            if self.locks().set(NODE, &value).await.unwrap() == LockWrite::Done {
                return time;
            }
            assert!(clock::mono() < until, "the lock is not released for {pod}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Binds with the plan of `spec` and this bind time.
    pub async fn bind(&self, spec: &PodSpec, uid: &PodUid, time: jiff::Timestamp) {
        let annotations: BTreeMap<String, String> = spec.annotations(time);
        let binding = json!({
            "apiVersion": "v1", "kind": "Binding",
            "metadata": {"name": spec.name, "namespace": "default", "uid": uid.as_str(), "annotations": annotations},
            "target": {"apiVersion": "v1", "kind": "Node", "name": NODE},
        });
        let _: Value =
            self.pods().create_subresource("binding", spec.name, &PostParams::default(), &binding).await.unwrap();
    }

    /// Create, lock, bind.
    pub async fn schedule(&self, spec: &PodSpec) -> PodUid {
        let uid = self.create(spec).await;
        let time = self.lock(spec.name, &uid).await;
        self.bind(spec, &uid, time).await;
        uid
    }

    /// The pod is scheduled, and gets what it was assigned.
    pub async fn serves(&self, spec: &PodSpec) -> PodUid {
        let uid = self.schedule(spec).await;
        self.agrees(spec).await;
        uid
    }

    /// The pod is bound, and its node was never locked for it.
    pub async fn bind_without_lock(&self, spec: &PodSpec) {
        let uid = self.create(spec).await;
        self.bind(spec, &uid, clock::wall()).await;
    }

    pub fn events(&self, reason: &str) -> Vec<Value> {
        let all = [self.server().objects("events.k8s.io", "events"), self.server().objects("", "events")].concat();
        all.into_iter().filter(|event| event["reason"] == reason).collect()
    }

    pub async fn delete(&self, pod: &str) {
        self.pods().delete(pod, &DeleteParams::default()).await.unwrap();
        eventually("the pod is gone", || self.object(pod).is_none()).await;
    }

    /// The uid of the pod that has this name now.
    pub fn uid(&self, pod: &str) -> Option<PodUid> {
        Some(PodUid::new(self.object(pod)?["metadata"]["uid"].as_str()?))
    }

    pub fn object(&self, pod: &str) -> Option<Value> {
        self.server().objects("", "pods").into_iter().find(|object| object["metadata"]["name"] == pod)
    }

    pub async fn runs(&self, pod: &str) {
        let mut seen = Value::Null;
        let phase = |object: &Value| object["status"]["phase"].as_str().unwrap_or_default().to_owned();
        eventually("the pod runs or has failed", || {
            seen = self.object(pod).unwrap_or_default();
            ["Running", "Failed"].contains(&phase(&seen).as_str())
        })
        .await;
        assert_eq!(phase(&seen), "Running", "{}", seen["status"]);
    }

    /// Waits until the kubelet has refused the pod; answers the message in its status.
    pub async fn refused(&self, pod: &str) -> String {
        let mut status = Value::Null;
        eventually("the pod is refused", || {
            status = self.object(pod).map(|object| object["status"].clone()).unwrap_or_default();
            ["Running", "Failed"].contains(&status["phase"].as_str().unwrap_or_default())
        })
        .await;
        assert_eq!(
            (&status["phase"], &status["reason"]),
            (&json!("Failed"), &json!("UnexpectedAdmissionError")),
            "{status}"
        );
        status["message"].as_str().unwrap().to_owned()
    }

    /// The lock in the node's annotation.
    pub fn lock_now(&self) -> LockRead {
        let nodes = self.server().objects("", "nodes");
        LockRead::parse(nodes[0]["metadata"]["annotations"][key::NODE_LOCK].as_str())
    }

    pub async fn unlocked(&self) {
        eventually("the lock is gone", || self.lock_now() == LockRead::Free).await;
    }

    /// Devices that the kubelet holds for one container: share units collapsed.
    pub fn kubelet_of(&self, pod: &str, container: &str) -> BTreeSet<String> {
        let view = self.kubelet.view();
        let Some(pod) = view.get(&format!("default/{pod}")) else { return BTreeSet::new() };
        let held = pod.containers[container].devices.values().flatten();
        held.map(|id| id.split("::").next().unwrap().to_owned()).collect()
    }

    /// Value of an environment variable that the container was started with.
    pub fn env(&self, pod: &str, container: &str, name: &str) -> String {
        let view = self.kubelet.view();
        let injected = view[&format!("default/{pod}")].containers[container].injected.clone().unwrap();
        serde_json::to_value(injected).unwrap()["envs"][name].as_str().unwrap_or_default().to_owned()
    }

    /// The pod runs, and assignment, kubelet, ledger and container agree; the lock is gone.
    pub async fn agrees(&self, spec: &PodSpec) {
        self.runs(spec.name).await;
        self.unlocked().await;
        let assigned = spec.devices();
        let until = clock::mono() + DEADLINE;
        loop {
            let held = spec.containers.iter().flat_map(|container| self.kubelet_of(spec.name, container.name));
            let kubelet: Vec<String> = held.collect::<BTreeSet<_>>().into_iter().collect();
            let ledger = self.agent().ledger_of(spec.name).await;
            if kubelet == assigned && ledger == assigned {
                return;
            }
            let name = spec.name;
            assert!(clock::mono() < until, "{name}: assigned {assigned:?}, kubelet {kubelet:?}, ledger {ledger:?}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

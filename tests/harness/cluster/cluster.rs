//! A whole cluster for a test: API server, nodes with virtual hardware and kubelets, and our daemons as child processes.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use baton::contract::inventory::Device;
use baton::contract::{ContainerDevices, DeviceAllocation, DeviceId, DeviceType, key};
use baton::decide::audit::Violation;
use baton::ops::audit;
use baton::ops::manifests::Values;
use baton::sim::hardware::{NodeSpec, VirtualNode};
use baton::sim::kubelet::{Kubelet, KubeletOptions};
use k8s_openapi::api::core::v1::{Event, Pod};
use kube::ResourceExt;
use kube::api::{Api, DeleteParams, PostParams};

use super::daemon::Daemon;
use super::pods::PodSpec;
use super::server::TestServer;
use super::wait::until;

/// Longest wait for anything that should take moments.
pub const SOON: Duration = Duration::from_secs(30);
/// The daemons' namespace, unless the server says otherwise; the pods of the tests are there too.
pub const NAMESPACE: &str = "default";
/// Within this a lock must be gone after its holder was served or ended.
pub const LOCK_GONE: Duration = Duration::from_secs(10);

pub struct ClusterNode {
    pub name: String,
    pub hardware: VirtualNode,
    pub kubelet: Kubelet,
    pub agent: Daemon,
}

/// The cluster. Everything ends when it is dropped.
pub struct TestCluster {
    /// Nodes in order of creation.
    pub nodes: Vec<ClusterNode>,
    pub scheduler: Daemon,
    /// Daemons of different versions meet each other's objects here: some are denied for a while.
    pub of_two_versions: bool,
    api: TestServer,
}

impl std::ops::Deref for TestCluster {
    type Target = TestServer;
    fn deref(&self) -> &TestServer {
        &self.api
    }
}

impl TestCluster {
    /// Starts an API server, `nodes` nodes with 8 GPUs and 4 NICs each, and our daemons; returns when every node takes
    /// device pods.
    pub async fn start(nodes: usize) -> Self {
        Self::with_agent_args(nodes, &[]).await
    }

    /// As [`TestCluster::start`], with more arguments for the agents.
    pub async fn with_agent_args(nodes: usize, agent_args: &[&str]) -> Self {
        Self::with_args(nodes, agent_args, &[]).await
    }

    /// As [`TestCluster::start`], with more arguments for the agents and for the scheduler.
    pub async fn with_args(nodes: usize, agent_args: &[&str], scheduler_args: &[&str]) -> Self {
        let api = TestServer::start().await;
        api.install(&Values { namespace: NAMESPACE.to_owned(), ..Values::default() }).await;
        Self::on(api, nodes, agent_args, scheduler_args).await
    }

    /// The same on an API server that has Baton's objects already.
    pub async fn on(api: TestServer, nodes: usize, agent_args: &[&str], scheduler_args: &[&str]) -> Self {
        let kubeconfig = api.credentials(api.namespace, "baton-scheduler", None).await;
        let scheduler = start_scheduler(&kubeconfig, api.namespace, scheduler_args, api.path("scheduler.log"));
        let mut cluster = Self { nodes: vec![], scheduler, of_two_versions: false, api };
        for number in 0..nodes {
            cluster.add_node(&format!("node-{number}"), agent_args).await;
        }
        for node in &cluster.nodes {
            cluster.until_ready(&node.name).await;
        }
        cluster
    }

    /// Starts one more scheduler, which stands by until the leader is gone.
    pub async fn spare_scheduler(&self, more: &[&str]) -> Daemon {
        let kubeconfig = self.credentials(self.namespace, "baton-scheduler", None).await;
        start_scheduler(&kubeconfig, self.namespace, more, self.dir.path().join("spare-scheduler.log"))
    }

    async fn add_node(&mut self, name: &str, agent_args: &[&str]) {
        self.add_machine(name, name, agent_args).await;
    }

    /// A machine with a kubelet that calls itself the node `name`.
    pub async fn add_machine(&mut self, machine: &str, name: &str, agent_args: &[&str]) {
        self.add(machine, name, agent_args).await;
        self.nodes.last_mut().expect("it was added").agent.restart();
    }

    /// A node whose agent is not started yet.
    pub async fn add_idle_machine(&mut self, name: &str) {
        self.add(name, name, &[]).await;
    }

    async fn add(&mut self, machine: &str, name: &str, agent_args: &[&str]) {
        let root = self.dir.path().join(machine);
        let hardware = VirtualNode::create(root.join("hw"), NodeSpec::new(machine)).expect("virtual hardware");
        let mut options = KubeletOptions::new(name, root.join("k"), self.client.clone());
        options.set_machine(&hardware.sysfs_root(), &hardware.proc_root());
        options.cdi_root = Some(root.join("cdi"));
        options.periods.scale = 0.05;
        options.periods.source_delay = Duration::from_millis(200);
        options.periods.node_status = Duration::from_secs(4);
        let kubelet = Kubelet::start(options).await.expect("kubelet");
        let credentials = self.credentials(self.namespace, "baton-device-plugin", Some(name)).await;
        let of_kubelet = [kubelet.options().device_plugins_dir(), kubelet.options().pod_resources_socket()];
        let command = agent_command([name, self.namespace], &root, &hardware, of_kubelet, &credentials, agent_args);
        let agent = Daemon::idle(command, root.join("agent.log"));
        self.nodes.push(ClusterNode { name: name.to_owned(), hardware, kubelet, agent });
    }

    /// Waits until the node advertises every device, so that the scheduler takes device pods to it.
    pub async fn until_ready(&self, node: &str) {
        let nodes = self.nodes();
        until(&format!("{node} advertises its devices"), SOON, async || {
            let allocatable = nodes.get(node).await.ok()?.status?.allocatable?;
            let has = |name: &str| allocatable.get(name).is_some_and(|q| q.0 != "0");
            (has(key::NVIDIA_GPU) && has(key::GPU) && has(key::RDMA)).then_some(())
        })
        .await;
    }

    /// Waits until every agent says that the kubelet has all its registrations, and the nodes advertise them again.
    pub async fn until_agent_is_ready(&self) {
        for node in &self.nodes {
            until(&format!("the agent of {} is ready", node.name), SOON, async || {
                node.agent.get("/readyz").await?.starts_with("HTTP/1.1 200").then_some(())
            })
            .await;
            self.until_ready(&node.name).await;
        }
    }

    fn pods(&self) -> Api<Pod> {
        self.pods_in("default")
    }

    pub async fn create(&self, pod: &PodSpec) {
        self.pods().create(&PostParams::default(), &pod.build()).await.expect("pod is created");
    }

    /// Creates a pod and waits until it runs.
    pub async fn runs(&self, pod: &PodSpec) {
        self.create(pod).await;
        self.until_running(pod.name()).await;
    }

    /// Creates a pod and waits until it is bound.
    pub async fn binds(&self, pod: &PodSpec) {
        self.create(pod).await;
        self.until_bound(pod.name()).await;
    }

    /// The daemon of a node is killed and starts again, until the nodes take device pods.
    pub async fn restart_agent(&mut self, node: usize) {
        self.nodes[node].agent.restart();
        self.until_agent_is_ready().await;
    }

    /// Creates a pod where the API server may be away; `true` when it is there.
    pub async fn try_create(&self, pod: &PodSpec) -> bool {
        match self.pods().create(&PostParams::default(), &pod.build()).await {
            Err(kube::Error::Api(status)) => status.code == 409,
            made => made.is_ok(),
        }
    }

    /// The pod as the API server has it.
    pub async fn pod(&self, name: &str) -> Option<Pod> {
        // A connection that a blackout has cut fails once.
        until("the pod is read", SOON, async || self.pods().get_opt(name).await.ok()).await
    }

    /// Deletes a pod and waits until it is gone.
    pub async fn delete(&self, name: &str) {
        let _ = self.pods().delete(name, &DeleteParams::default()).await;
        until(&format!("pod {name} is gone"), SOON, async || self.pod(name).await.is_none().then_some(())).await;
    }

    /// Waits until the pod's phase is one of `phases`; gives the phase.
    pub async fn until_phase(&self, name: &str, phases: &[&str]) -> String {
        until(&format!("pod {name} is {phases:?}"), SOON, async || {
            let phase = self.pod(name).await?.status?.phase?;
            phases.contains(&phase.as_str()).then_some(phase)
        })
        .await
    }

    pub async fn until_running(&self, name: &str) {
        let phase = self.until_phase(name, &["Running", "Failed"]).await;
        assert_eq!(phase, "Running", "pod {name}: {:?}", self.pod(name).await.and_then(|pod| pod.status));
    }

    pub async fn until_bound(&self, name: &str) -> String {
        until(&format!("pod {name} is bound"), SOON, async || self.pod(name).await?.spec?.node_name).await
    }

    /// Waits until a condition of the pod says that.
    pub async fn until_it_says(&self, name: &str, words: &str) {
        until(&format!("pod {name} waits and says {words:?}"), SOON, async || {
            let conditions = self.pod(name).await?.status?.conditions?;
            conditions.iter().any(|of| of.message.as_ref().is_some_and(|text| text.contains(words))).then_some(())
        })
        .await;
    }

    pub async fn lock(&self, node: &str) -> Option<String> {
        self.node_annotation(node, key::NODE_LOCK).await
    }

    pub async fn events(&self) -> Vec<Event> {
        let events: Api<Event> = Api::namespaced(self.client.clone(), "default");
        events.list(&Default::default()).await.map_or_else(|_| Vec::new(), |list| list.items)
    }

    /// Waits for an event for this reason.
    pub async fn until_told(&self, reason: &str) {
        until(&format!("event {reason}"), SOON, async || {
            self.events().await.iter().any(|event| event.reason.as_deref() == Some(reason)).then_some(())
        })
        .await;
    }

    /// Waits until a device of the first node is out of service.
    pub async fn until_out_of_service(&self, id: &str) {
        let devices: Api<Device> = Api::all(self.client.clone());
        until(&format!("{id} leaves service"), SOON, async || {
            let device = devices.get("node-0").await.ok()?;
            device.spec.devices.iter().any(|of| of.id.as_str() == id && !of.health).then_some(())
        })
        .await;
    }

    /// No device is given twice, and no lock stays.
    pub async fn check_at_rest(&self) {
        self.check_no_device_twice().await;
        self.until_unlocked(LOCK_GONE).await;
    }

    pub async fn until_unlocked(&self, deadline: Duration) {
        for node in &self.nodes {
            until(&format!("{} is unlocked", node.name), deadline, async || {
                self.lock(&node.name).await.is_none().then_some(())
            })
            .await;
        }
    }

    /// Devices that the scheduler assigned to the pod.
    pub async fn assigned(&self, name: &str) -> BTreeMap<DeviceType, BTreeSet<DeviceId>> {
        let pod = self.pod(name).await.expect("pod exists");
        let text = pod.annotations().get(key::DEVICE_ALLOCATED).cloned().unwrap_or_default();
        let allocation = DeviceAllocation::parse(&text).expect("assignment is readable");
        allocation
            .devices
            .iter()
            .map(|(kind, list)| (kind.clone(), list.iter().map(|entry| entry.id.clone()).collect()))
            .collect()
    }

    /// The split per container.
    pub async fn split(&self, name: &str) -> ContainerDevices {
        let pod = self.pod(name).await.expect("pod exists");
        ContainerDevices::parse(&pod.annotations()[key::CONTAINER_DEVICES])
            .expect("split is readable")
            .expect("split is there")
    }

    /// Devices that the kubelet believes the pod holds, share units collapsed.
    pub fn in_kubelet(&self, node: &str, name: &str) -> BTreeMap<DeviceType, BTreeSet<DeviceId>> {
        let node = self.nodes.iter().find(|n| n.name == node).expect("node");
        let view = node.kubelet.view();
        let mut devices: BTreeMap<DeviceType, BTreeSet<DeviceId>> = BTreeMap::new();
        // Of a pod that is over the kubelet forgets lazily, at its next allocation.
        let Some(pod) = view.get(&format!("default/{name}")).filter(|pod| pod.active) else { return devices };
        for (resource, ids) in pod.containers.values().flat_map(|container| &container.devices) {
            let kind = if resource == key::RDMA { DeviceType::Rdma } else { DeviceType::Gpu };
            let ids = ids.iter().map(|id| DeviceId::of_kubelet_id(id).expect("device id"));
            devices.entry(kind).or_default().extend(ids);
        }
        devices
    }

    /// The promises that hold at any moment, by the same rules as `baton audit`: no device (or over-full share) is held by two
    /// live pods, assignments are complete.
    pub async fn check_no_device_twice(&self) {
        let rules = audit::AuditRules { lock_ends: Duration::MAX, ..audit::AuditRules::default() };
        let mut report = audit::read(self.client.clone(), self.namespace, &rules).await.expect("the cluster is read");
        // A daemon that was killed is gone until it has started again.
        report.violations.retain(|found| !matches!(found, Violation::DaemonGone { .. }));
        assert!(report.pods > 0 || report.nodes > 0, "nothing was read");
        assert!(report.violations.is_empty(), "{:#?}", report.violations);
        if !self.of_two_versions {
            self.check_rights();
        }
    }

    /// The daemons work within their rights and the policies.
    fn check_rights(&self) {
        for daemon in self.nodes.iter().map(|node| &node.agent).chain([&self.scheduler]) {
            let output = daemon.output();
            let denied = output.lines().find(|line| line.contains("denied request") || line.contains("is forbidden"));
            assert_eq!(denied, None, "a daemon was denied what it needs");
        }
    }
}

/// The command of a node daemon, which keeps its files below `root`. The kubelet has this directory and this socket.
pub fn agent_command(
    [name, namespace]: [&str; 2],
    root: &Path,
    hardware: &VirtualNode,
    [kubelet_dir, pod_resources]: [PathBuf; 2],
    kubeconfig: &Path,
    more: &[&str],
) -> Vec<OsString> {
    let mut command: Vec<OsString> = vec!["device-plugin".into()];
    let places: [(&str, PathBuf); 10] = [
        ("--kubeconfig", kubeconfig.to_owned()),
        ("--kubelet-dir", kubelet_dir),
        ("--pod-resources-socket", pod_resources),
        ("--sysfs-root", hardware.sysfs_root()),
        ("--proc-root", hardware.proc_root()),
        ("--dev-root", hardware.dev_root()),
        ("--driver-root", hardware.driver_root()),
        ("--nvml-library", hardware.nvml_library().to_owned()),
        ("--cdi-root", root.join("cdi")),
        ("--state-dir", root.join("state")),
    ];
    for (flag, path) in places {
        command.extend([flag.into(), path.into_os_string()]);
    }
    let words = ["--node-name", name, "--namespace", namespace, "--listen", "127.0.0.1:0"];
    command.extend(words.iter().chain(more).map(OsString::from));
    command
}

fn start_scheduler(kubeconfig: &Path, namespace: &str, more: &[&str], log: PathBuf) -> Daemon {
    let tail = [&["--listen", "127.0.0.1:0", "--namespace", namespace], more].concat();
    Daemon::start(args(&["scheduler", "--kubeconfig"], kubeconfig, &tail), log)
}

fn args(head: &[&str], path: &Path, tail: &[&str]) -> Vec<OsString> {
    let mut all: Vec<OsString> = head.iter().map(OsString::from).collect();
    all.push(path.into());
    all.extend(tail.iter().map(OsString::from));
    all
}

impl TestCluster {
    /// Puts the lock of a bound pod back, as if its release had not come about.
    pub async fn hold_lock_for(&self, name: &str) {
        let pod = self.pod(name).await.expect("pod exists");
        let nanos: i128 = pod.annotations()[key::BIND_TIMESTAMP].parse().expect("a timestamp");
        let time = jiff::Timestamp::from_nanosecond(nanos).expect("a time");
        let claim = baton::decide::lock::LockClaim {
            pod: baton::contract::PodRef::new("default", name, &pod.uid().expect("uid")),
            time,
        };
        let node = pod.spec.and_then(|spec| spec.node_name).expect("bound");
        let locks = baton::cluster::node_lock::NodeLocks::new(self.client.clone(), key::NODE_LOCK);
        let value = claim.value(baton::contract::LockFormat::Uid);
        let written = locks.set(&node, &value).await.expect("lock is written");
        assert!(
            written == baton::cluster::node_lock::LockWrite::Done || self.lock(&node).await.as_deref() == Some(&value),
            "{written:?}"
        );
    }
}

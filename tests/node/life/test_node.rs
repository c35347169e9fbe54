//! One node: a virtual machine, a simulated kubelet, and the daemon.

use std::path::PathBuf;
use std::sync::Mutex;

use baton::agent::handoff::StateDir;
use baton::agent::kubelet::DeviceCalls;
use baton::agent::metrics::PodShare;
use baton::agent::node_handoff::{Handoff, HeldDevices, LedgerLine, ListedLine, OpenHandoff, OpeningContext};
use baton::agent::offer::InUse;
use baton::agent::{AgentError, AgentOptions, Answerer, ContainerGrant, daemon};
use baton::contract::deviceplugin as api;
use baton::contract::inventory::DeviceHeld;
use baton::contract::podresources::AllocatableResourcesRequest;
use baton::contract::podresources::pod_resources_lister_client::PodResourcesListerClient;
use baton::contract::{DeviceEntry, Identity, PodRef};
use baton::decide::handoff::{DevicesBehind, NodeInventory, UnassignedPods};
use baton::decide::node::HandoffStatus;
use baton::runtime::admin::{AdminListen, PortOptions};
use baton::sim::hardware::VirtualNode;
use baton::sim::kubelet::KubeletOptions;
use futures::future::BoxFuture;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::harness::directory::directory;
use crate::prelude::*;

/// Longest wait for anything; a condition that holds ends it at once.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// The node. Directories go with it.
pub struct TestNode {
    pub machine: VirtualNode,
    pub options: AgentOptions,
    pub handoff: Arc<Chosen>,
    root: tempfile::TempDir,
}

pub struct Daemon {
    stop: CancellationToken,
    task: JoinHandle<Result<(), AgentError>>,
}

impl TestNode {
    /// A node of `spec`; no API server is there, and nothing waits for one.
    pub fn new(spec: NodeSpec) -> Self {
        let root = directory();
        let at = |name: &str| root.path().join(name);
        let machine = VirtualNode::create(at("m"), spec).unwrap();
        std::fs::write(at("kubeconfig"), KUBECONFIG).unwrap();
        let mut options = AgentOptions {
            node_name: "node-a".into(),
            kubeconfig: Some(at("kubeconfig")),
            ports: PortOptions::none(),
            unassigned_pods: UnassignedPods::Serve,
            ..AgentOptions::default()
        };
        let paths = &mut options.paths;
        paths.kubelet_dir = at("k/device-plugins");
        paths.pod_resources_socket = at("k/pod-resources/kubelet.sock");
        paths.sysfs_root = machine.sysfs_root();
        paths.proc_root = machine.proc_root();
        paths.dev_root = machine.dev_root();
        paths.driver_root = machine.driver_root();
        paths.nvml_library = Some(machine.nvml_library().to_owned());
        paths.cdi_root = at("cdi");
        paths.state_dir = at("state");
        options.timings.link_down = Duration::from_millis(100);
        // Long enough to be seen on a busy machine before it is over.
        options.periods.recovery_window = Duration::from_millis(1500);
        let timings = &mut options.timings;
        timings.rescan = Duration::from_millis(200);
        timings.health_poll = Duration::from_millis(50);
        timings.recovery_probe = Duration::from_millis(20);
        timings.kubelet_poll = Duration::from_millis(200);
        timings.backoff_min = Duration::from_millis(50);
        timings.backoff_max = Duration::from_millis(500);
        Self { machine, options, handoff: Arc::default(), root }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.root.path().join(name)
    }

    pub async fn kubelet(&self) -> Kubelet {
        self.kubelet_of(no_server()).await
    }

    /// Starts the kubelet, beside an API server.
    pub async fn kubelet_of(&self, client: kube::Client) -> Kubelet {
        Kubelet::start(self.kubelet_options(client)).await.unwrap()
    }

    /// Starts the kubelet of Kubernetes 1.`minor`.
    pub async fn kubelet_of_version(&self, minor: u32) -> Kubelet {
        Kubelet::start(KubeletOptions { minor, ..self.kubelet_options(no_server()) }).await.unwrap()
    }

    fn kubelet_options(&self, client: kube::Client) -> KubeletOptions {
        let mut options = KubeletOptions::new("node-a", self.path("k"), client);
        options.set_machine(&self.machine.sysfs_root(), &self.machine.proc_root());
        options.periods.scale = 0.02;
        options.periods.fast_status = true;
        options.periods.source_delay = Duration::from_millis(200);
        options
    }

    pub fn daemon(&self) -> Daemon {
        let stop = CancellationToken::new();
        let handoff = self.handoff.clone();
        let open: OpenHandoff = Box::new(move |opening| {
            handoff.open(opening);
            handoff
        });
        let task = tokio::spawn(daemon::run_with(self.options.clone(), stop.clone(), open));
        Daemon { stop, task }
    }

    /// Starts kubelet and daemon, until the kubelet has so many healthy ids of `resource`.
    pub async fn start(&self, resource: &str, count: usize) -> (Kubelet, Daemon) {
        let (kubelet, daemon) = (self.kubelet().await, self.daemon());
        self.until(resource, count).await;
        (kubelet, daemon)
    }

    /// Starts the daemon as it ships, with the real hand-off.
    pub fn shipped(&self) -> Daemon {
        let stop = CancellationToken::new();
        Daemon { task: tokio::spawn(daemon::run(self.options.clone(), stop.clone())), stop }
    }

    /// The daemon listens at the address that is answered.
    pub fn listens(&mut self) -> SocketAddr {
        let address = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        self.options.ports.listen = AdminListen::At(address);
        address
    }

    /// Why a device is out of service; empty where it is not.
    pub fn reason(&self, id: &str) -> String {
        let inventory = self.handoff.inventory.lock().unwrap();
        let Some(device) = inventory.devices.get(&DeviceId::parse(id).unwrap()) else { return "not there".to_owned() };
        device.reason.as_deref().unwrap_or_default().to_owned()
    }

    /// What the CDI file of `gpu` or `rdma` says.
    pub fn cdi(&self, kind: &str) -> String {
        std::fs::read_to_string(self.path("cdi").join(format!("koordinator.sh-{kind}.json"))).unwrap()
    }

    /// The same, parsed.
    pub fn cdi_spec(&self, kind: &str) -> Value {
        serde_json::from_str(&self.cdi(kind)).unwrap()
    }

    /// Healthy ids by resource, as the kubelet has them. Empty while it does not answer.
    pub async fn offered(&self) -> BTreeMap<String, BTreeSet<String>> {
        let ask = async {
            let channel = dial(&self.options.paths.pod_resources_socket, PATIENCE).await.ok()?;
            let mut client = PodResourcesListerClient::new(channel);
            let answer = client.get_allocatable_resources(AllocatableResourcesRequest {}).await.ok()?.into_inner();
            let mut found: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
            for device in answer.devices {
                found.entry(device.resource_name).or_default().extend(device.device_ids);
            }
            Some(found)
        };
        ask.await.unwrap_or_default()
    }

    /// How many ids of `resource` the kubelet may hand out.
    pub async fn count(&self, resource: &str) -> usize {
        self.offered().await.get(resource).map_or(0, BTreeSet::len)
    }

    /// Waits until the kubelet has `count` healthy ids of `resource`; returns how long it took.
    pub async fn until(&self, resource: &str, count: usize) -> Duration {
        let start = baton::runtime::clock::mono();
        loop {
            let now = self.count(resource).await;
            let took = baton::runtime::clock::mono() - start;
            if now == count {
                return took;
            }
            assert!(took < PATIENCE, "{resource}: {now} ids, expected {count}");
            // PodResources answers a hundred calls a second.
            tokio::time::sleep(Duration::from_millis(15)).await;
        }
    }

    /// Our sockets in the kubelet's directory.
    pub fn sockets(&self) -> BTreeSet<PathBuf> {
        let entries = std::fs::read_dir(&self.options.paths.kubelet_dir).into_iter().flatten().flatten();
        let ours = |path: &Path| path.file_name().unwrap().to_string_lossy().starts_with("baton-");
        entries.map(|entry| entry.path()).filter(|path| ours(path)).collect()
    }
}

/// For an API server that is not there.
fn no_server() -> kube::Client {
    kube::Client::try_from(kube::Config::new("http://127.0.0.1:1".parse().unwrap())).unwrap()
}

impl Daemon {
    /// SIGTERM, as the process hears it.
    pub async fn stop(self) {
        self.stop.cancel();
        tokio::time::timeout(PATIENCE, self.task).await.expect("the daemon ends in time").unwrap().unwrap();
    }

    /// The error that it ends with.
    pub async fn error(self) -> String {
        let ended = tokio::time::timeout(PATIENCE, self.task).await.expect("the daemon ends in time").unwrap();
        ended.expect_err("it ends with an error").to_string()
    }

    pub fn runs(&self) -> bool {
        !self.task.is_finished()
    }
}

pub async fn until(what: &str, mut holds: impl FnMut() -> bool) -> Duration {
    let start = baton::runtime::clock::mono();
    wait::until(what, PATIENCE, async || holds().then_some(())).await;
    baton::runtime::clock::mono() - start
}

/// Decides as the kubelet does: what it chose is served. Who is calling does not matter to the life of the daemon.
pub struct Chosen {
    answerer: Mutex<Option<Arc<dyn Answerer>>>,
    state: Mutex<Option<StateDir>>,
    pub in_use: Mutex<InUse>,
    pub behind: Mutex<DevicesBehind>,
    pub functions: Mutex<BTreeSet<DeviceId>>,
    pub inventory: Mutex<NodeInventory>,
    handed_out: watch::Sender<u64>,
    identity: watch::Sender<Identity>,
    status: watch::Sender<Option<HandoffStatus>>,
}

impl Default for Chosen {
    fn default() -> Self {
        Self {
            answerer: Mutex::default(),
            state: Mutex::default(),
            in_use: Mutex::default(),
            behind: Mutex::default(),
            functions: Mutex::default(),
            inventory: Mutex::default(),
            handed_out: watch::Sender::new(1),
            status: watch::Sender::new(Some(HandoffStatus::default())),
            identity: watch::Sender::new(Identity::Exact),
        }
    }
}

impl Chosen {
    fn open(&self, opening: OpeningContext) {
        *self.answerer.lock().unwrap() = Some(opening.answerer);
        *self.state.lock().unwrap() = Some(opening.state);
    }

    fn answer(&self, resource: &str, ids: &[String]) -> Result<api::ContainerAllocateResponse, tonic::Status> {
        let devices: BTreeSet<DeviceId> = ids.iter().map(|id| DeviceId::of_kubelet_id(id).unwrap()).collect();
        let kind = if resource.ends_with("rdma") { DeviceType::Rdma } else { DeviceType::Gpu };
        let entry = |id| DeviceEntry { minor: 0, id, resources: BTreeMap::new(), extension: None };
        let grant = ContainerGrant {
            resource: resource.into(),
            pod: PodRef::new("default", "p", "u"),
            container: "main".into(),
            entries: devices.into_iter().map(|id| (kind.clone(), entry(id))).collect(),
            shares: false,
        };
        let answerer = self.answerer.lock().unwrap().clone().expect("opened");
        answerer.answer(&grant).map_err(|error| tonic::Status::internal(error.to_string()))
    }
}

impl DeviceCalls for Chosen {
    fn allocate<'a>(
        &'a self,
        resource: &'a str,
        request: api::AllocateRequest,
    ) -> BoxFuture<'a, Result<api::AllocateResponse, tonic::Status>> {
        Box::pin(async move {
            let answers =
                request.container_requests.iter().map(|container| self.answer(resource, &container.devices_ids));
            Ok(api::AllocateResponse { container_responses: answers.collect::<Result<_, _>>()? })
        })
    }

    fn preferred<'a>(
        &'a self,
        _: &'a str,
        request: api::PreferredAllocationRequest,
    ) -> BoxFuture<'a, api::PreferredAllocationResponse> {
        let choose = |container: api::ContainerPreferredAllocationRequest| {
            let size = container.allocation_size as usize;
            let device_i_ds = container.available_device_i_ds.into_iter().take(size).collect();
            api::ContainerPreferredAllocationResponse { device_i_ds }
        };
        let container_responses = request.container_requests.into_iter().map(choose).collect();
        Box::pin(async move { api::PreferredAllocationResponse { container_responses } })
    }

    fn pre_start<'a>(
        &'a self,
        _: &'a str,
        _: api::PreStartContainerRequest,
    ) -> BoxFuture<'a, Result<(), tonic::Status>> {
        Box::pin(async { Ok(()) })
    }
}

impl HeldDevices for Chosen {
    fn set_inventory(&self, inventory: NodeInventory) {
        *self.inventory.lock().unwrap() = inventory;
    }
    fn in_use(&self) -> InUse {
        self.in_use.lock().unwrap().clone()
    }
    fn behind(&self) -> DevicesBehind {
        self.behind.lock().unwrap().clone()
    }
    fn functions_in_use(&self) -> BTreeSet<DeviceId> {
        self.functions.lock().unwrap().clone()
    }
    fn held(&self) -> Vec<DeviceHeld> {
        Vec::new()
    }
    fn pod_shares(&self) -> Vec<PodShare> {
        Vec::new()
    }
    fn holders(&self, _: &DeviceId) -> BTreeSet<PodRef> {
        BTreeSet::new()
    }
}

impl Handoff for Chosen {
    fn calls(self: Arc<Self>) -> Arc<dyn DeviceCalls> {
        self
    }
    fn handed_out(&self) -> watch::Receiver<u64> {
        self.handed_out.subscribe()
    }
    fn registered(&self) {}
    fn registration_lost(&self) {}
    fn identity(&self) -> watch::Receiver<Identity> {
        self.identity.subscribe()
    }
    fn status(&self) -> watch::Receiver<Option<HandoffStatus>> {
        self.status.subscribe()
    }
    fn ledger(&self) -> Vec<LedgerLine> {
        Vec::new()
    }
    fn listed(&self) -> BoxFuture<'static, Option<Vec<ListedLine>>> {
        Box::pin(async { None })
    }
    fn run(self: Arc<Self>, stop: CancellationToken) -> BoxFuture<'static, ()> {
        Box::pin(async move {
            // Held by the task: however that ends, the next daemon may start.
            let _state = self.state.lock().unwrap().take();
            stop.cancelled().await;
        })
    }
}

const KUBECONFIG: &str = r"
apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: 'http://127.0.0.1:1'}}]
users: [{name: u, user: {}}]
contexts: [{name: x, context: {cluster: c, user: u}}]
current-context: x
";

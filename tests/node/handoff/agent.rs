//! The node's agent, as the daemon puts it together, less discovery.

use arc_swap::ArcSwap;
use baton::agent::cgroups::Cgroups;
use baton::agent::handoff::{
    HandoffContext, HandoffMetrics, HandoffService, HandoffSettings, KubeHandoffApi, NodeView, PodResourcesClient,
    StateDir, housekeeping, unlocker,
};
use baton::agent::kubelet::{Advertised, AdvertisedDevice, IdUnits, PluginsConfig, ResourcePlugins};
use baton::agent::{AnswerError, Answerer, ContainerGrant};
use baton::cluster::notice::Notices;
use baton::contract::deviceplugin::ContainerAllocateResponse;
use baton::decide::handoff::{InventoryDevice, NodeInventory};
use baton::runtime::Backoff;
use baton::runtime::metrics::MetricSet;
use tokio::task::JoinSet;

use super::handoff_node::{NODE, eventually};
use crate::prelude::*;

const NAMES: [&str; 4] = [key::NVIDIA_GPU, key::GPU_CORE, key::GPU_MEMORY_RATIO, key::RDMA];

/// How long a watch lasts.
const WATCH: Duration = Duration::from_secs(120);

/// Answers with the devices' names in the environment.
struct Names;

impl Answerer for Names {
    fn answer(&self, grant: &ContainerGrant) -> Result<ContainerAllocateResponse, AnswerError> {
        let ids: Vec<String> = grant.entries.iter().map(|(_, entry)| entry.id.to_string()).collect();
        let kind = if &*grant.resource == key::RDMA { "NICS" } else { "GPUS" };
        let envs = [(kind.to_owned(), ids.join(","))].into();
        Ok(ContainerAllocateResponse { envs, ..ContainerAllocateResponse::default() })
    }
}

pub struct Agent {
    pub service: Arc<HandoffService>,
    plugins: ResourcePlugins,
    tasks: JoinSet<()>,
}

/// Eight GPUs `GPU-0…` of 80 GiB, four NICs `0000:0<n>:00.0`.
pub fn inventory() -> NodeInventory {
    let mut inventory = NodeInventory::default();
    let mut add = |id: String, kind, minor, memory_bytes| {
        let device =
            InventoryDevice { kind, minor, healthy: true, reason: None, memory_bytes, parent: None, mig_profile: None };
        inventory.devices.insert(DeviceId::parse(&id).unwrap(), device);
    };
    (0..8).for_each(|minor| add(format!("GPU-{minor}"), DeviceType::Gpu, minor, Some(80 << 30)));
    (0..4).for_each(|minor| add(format!("0000:0{minor}:00.0"), DeviceType::Rdma, minor, None));
    inventory.registered = NAMES.into_iter().map(Box::from).collect();
    inventory
}

fn lists(inventory: &NodeInventory) -> BTreeMap<Box<str>, Advertised> {
    let list = |name: &str| {
        let units = if name == key::NVIDIA_GPU { IdUnits::Whole } else { IdUnits::Shares(100) };
        let kind = if name == key::RDMA { DeviceType::Rdma } else { DeviceType::Gpu };
        let devices = inventory.devices.iter().filter(|(_, device)| device.kind == kind);
        let devices =
            devices.map(|(id, device)| AdvertisedDevice { id: id.clone(), healthy: device.healthy, numa: None });
        let mut list = Advertised::none(units);
        list.devices.extend(devices);
        list
    };
    NAMES.into_iter().map(|name| (name.into(), list(name))).collect()
}

impl Agent {
    /// Starts one whose state is in `root/state` and whose kubelet is in `root/kubelet`; with `barrier` it verifies before
    /// containers start.
    pub async fn start(
        client: kube::Client,
        root: &Path,
        boot_id: &str,
        policy: AllocatePolicy,
        barrier: bool,
    ) -> Self {
        let kubelet = root.join("kubelet");
        let (notices, writer) = Notices::start(client.clone(), "baton-agent", NODE, || std::future::ready(()));
        let world = Arc::new(KubeHandoffApi::new(client.clone(), NODE, key::NODE_LOCK, notices));
        let view = Arc::new(NodeView::new());
        let inventory = Arc::new(ArcSwap::from_pointee(inventory()));
        let settings = HandoffSettings {
            node: NODE.into(),
            policy,
            budget: Duration::from_secs(2),
            kubelet_dir: kubelet.join("device-plugins"),
            verify_before_start: barrier,
        };
        let parts = HandoffContext {
            view: view.clone(),
            api: world,
            inventory: inventory.clone(),
            answerer: Arc::new(Names),
            pod_resources: Arc::new(PodResourcesClient::new(&kubelet.join("pod-resources/kubelet.sock"))),
            cgroups: Arc::new(Cgroups::new(vec![root.join("machine/sys/fs/cgroup")], &root.join("machine/proc"))),
            metrics: HandoffMetrics::new(&mut MetricSet::new("baton")),
            outcomes: tokio::sync::mpsc::channel(1).0,
        };
        let service = HandoffService::new(settings, parts);
        let mut tasks = JoinSet::new();
        tasks.spawn(async move { writer.await.unwrap_or_default() });
        let (pods, of) = (view.clone(), client.clone());
        tasks.spawn(async move { pods.watch_pods(of, NODE, WATCH, |_| {}).await });
        tasks.spawn(async move { view.watch_node(client, NODE, key::NODE_LOCK, WATCH).await });
        let (opened, state, boot) = (service.clone(), root.join("state"), boot_id.to_owned());
        tasks.spawn(async move { opened.open(StateDir::acquire(&state).await.unwrap(), &boot).await });
        tasks.spawn(unlocker::run(service.clone(), Duration::from_secs(5)));
        tasks.spawn(housekeeping::run(service.clone(), Duration::from_millis(500)));
        let restarted = service.clone();
        let mut plugins = ResourcePlugins::start(PluginsConfig {
            directory: kubelet.join("device-plugins"),
            poll: Duration::from_millis(200),
            register_timeout: Duration::from_secs(5),
            backoff: Backoff::new(Duration::from_millis(50), Duration::from_secs(1)),
            budget: Duration::from_secs(2),
            grace: Duration::from_millis(200),
            calls: service.clone(),
            on_registration: Arc::new(move |_, result| match result {
                Ok(()) => restarted.registered(),
                Err(_) => restarted.registration_lost(),
            }),
        });
        plugins.update(lists(&inventory.load())).unwrap();
        let agent = Self { service, plugins, tasks };
        agent.registered(true).await;
        eventually("the ledger is known", || agent.service.is_ready()).await;
        agent
    }

    /// All names are registered, or not all are.
    pub async fn registered(&self, all: bool) {
        let states = self.plugins.states();
        eventually("the names are registered, or are not", || {
            let registered =
                states.borrow().values().all(|s| matches!(s, baton::agent::kubelet::PluginState::Registered));
            (registered && states.borrow().len() == NAMES.len()) == all
        })
        .await;
    }

    /// Ends it. The state directory is free afterwards.
    pub async fn stop(mut self) {
        self.plugins.finish().await;
        self.tasks.shutdown().await;
    }

    /// Devices that the ledger says a pod was served: sorted, each once.
    pub async fn ledger_of(&self, pod: &str) -> Vec<String> {
        let entries = self.service.ledger().await;
        let of_pod = entries.iter().filter(|entry| &*entry.pod.key.name == pod);
        let mut devices: Vec<String> = of_pod.flat_map(|entry| entry.devices().map(ToString::to_string)).collect();
        devices.sort();
        devices.dedup();
        devices
    }
}

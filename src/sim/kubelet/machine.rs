//! One run of the kubelet, from its start to its stop or restart: shared state, tasks and plugin connections.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use k8s_openapi::api::core::v1::Pod;
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::checkpoint;
use super::connections::Connections;
use super::controls::Controls;
use super::devices::Devices;
use super::error::KubeletError;
use super::grants::Reusable;
use super::link;
use super::locked;
use super::options::KubeletOptions;
use super::pod::PodHandle;
use super::runtime::Runtime;
use super::status_writer::StatusWriter;
use baton_runtime::clock;

/// Everything the tasks of one run share.
pub(super) struct Machine {
    pub options: Arc<KubeletOptions>,
    /// The API server, unless the node is cut off.
    pub client: kube::Client,
    pub controls: Arc<Controls>,
    pub runtime: Arc<Runtime>,
    pub boot_id: String,
    pub state: Mutex<KubeletState>,
    /// Connected plugins.
    pub plugins: Mutex<Connections>,
    /// Devices changed: the node status may be written early.
    pub devices_changed: Notify,
    pub statuses: StatusWriter,
    /// What the init containers of the pod that was given devices last have left.
    pub reusable: Mutex<Option<(String, Reusable)>>,
    rng: Mutex<fastrand::Rng>,
    stop: CancellationToken,
    tasks: Mutex<JoinSet<()>>,
}

/// What the kubelet believes.
#[derive(Default)]
pub(super) struct KubeletState {
    pub devices: Devices,
    /// Pods of this node by uid, as last seen.
    pub pods: BTreeMap<String, Arc<PodHandle>>,
    /// The first full list of pods has been handled.
    pub sources_ready: bool,
    /// (uid, container) running when this kubelet started.
    pub running_at_start: BTreeSet<(String, String)>,
    /// The node's allocatable as last written.
    pub node_allocatable: BTreeMap<String, i64>,
}

impl KubeletState {
    /// Pods that hold or may hold devices: not over, and not terminal unless still stopping.
    pub fn active(&self) -> impl Iterator<Item = &Arc<PodHandle>> {
        self.pods.values().filter(|pod| pod.is_active())
    }

    /// Frees devices of pods that are no longer active; not before the first list of pods is in.
    pub fn free_inactive(&mut self) {
        if self.sources_ready {
            let active = self.active().map(|pod| pod.uid.clone()).collect();
            self.devices.free_all_but(&active);
        }
    }
}

impl Machine {
    /// Reads the checkpoint, empties the directory of sockets and starts every task.
    pub fn start(
        options: Arc<KubeletOptions>,
        controls: Arc<Controls>,
        runtime: Arc<Runtime>,
        boot_id: String,
        seed: u64,
    ) -> Result<Arc<Self>, KubeletError> {
        let restored = checkpoint::read(&options.checkpoint_file()).unwrap_or_else(|error| {
            tracing::error!(%error, "starting without the device checkpoint");
            None
        });
        let devices = restored
            .map(|(grants, registered)| Devices::restore(grants, &registered, clock::mono()))
            .unwrap_or_default();
        let state = KubeletState { devices, running_at_start: runtime.running(), ..KubeletState::default() };
        let client = link::through(options.client.clone(), controls.cut());
        let plugins = Mutex::new(Connections::new(options.minor));
        let machine = Arc::new(Self {
            statuses: StatusWriter::new(client.clone()),
            options,
            client,
            controls,
            runtime,
            boot_id,
            state: Mutex::new(state),
            plugins,
            devices_changed: Notify::new(),
            reusable: Mutex::default(),
            rng: Mutex::new(fastrand::Rng::with_seed(seed)),
            stop: CancellationToken::new(),
            tasks: Mutex::default(),
        });
        super::registration::serve(&machine)?;
        super::podresources::serve(&machine);
        super::node::run(&machine);
        super::source::run(&machine);
        let writer = machine.clone();
        machine.spawn(async move { writer.statuses.run(writer.options.periods.clone()).await });
        Ok(machine)
    }

    /// Runs a task until the kubelet stops.
    pub fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let stop = self.stop.clone();
        let mut tasks = locked(&self.tasks);
        while tasks.try_join_next().is_some() {}
        tasks.spawn(async move {
            tokio::select! {
                () = stop.cancelled() => {}
                () = task => {}
            }
        });
    }

    /// Ends every task, calls in flight included: plugins see their streams end.
    pub async fn stop(&self) {
        self.stop.cancel();
        let mut tasks = std::mem::take(&mut *locked(&self.tasks));
        tasks.shutdown().await;
        locked(&self.plugins).clear();
        // The calls that would have killed containers end with their caller.
        self.runtime.spare();
    }

    /// Lets every task end by itself.
    pub fn cancel(&self) {
        self.stop.cancel();
    }

    /// Resolves when the kubelet stops.
    pub fn stopping(&self) -> CancellationToken {
        self.stop.clone()
    }

    /// Runs a function with the random generator.
    pub fn random<T>(&self, draw: impl FnOnce(&mut fastrand::Rng) -> T) -> T {
        draw(&mut locked(&self.rng))
    }

    /// The pod with this name, if seen.
    pub fn pod_named(&self, namespace: &str, name: &str) -> Option<Arc<PodHandle>> {
        let state = locked(&self.state);
        let matching = |pod: &Pod| {
            pod.metadata.name.as_deref() == Some(name) && pod.metadata.namespace.as_deref() == Some(namespace)
        };
        // A successor of the same name is younger; uids say nothing about age, activity does.
        let mut pods: Vec<_> = state.pods.values().filter(|pod| matching(&pod.pod())).cloned().collect();
        pods.sort_by_key(|pod| pod.is_active());
        pods.pop()
    }

    /// Writes the checkpoint from the state as it is now.
    pub fn write_checkpoint(&self) -> std::io::Result<()> {
        let state = locked(&self.state);
        let content = checkpoint::encode(&state.devices);
        // Under the lock, so that an older state never replaces a newer one.
        checkpoint::write(&self.options.checkpoint_file(), &content)
    }
}

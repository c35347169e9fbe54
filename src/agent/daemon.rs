//! The daemon as a whole: what starts in which order, and how it ends.
//!
//! ```text
//! options ─► addresses ─► lock on the state directory ─► first look at the hardware ─► ledger
//!   ─► CDI files ─► sockets, registration ─► Device object, Lease, locks (as soon as the API server is there)
//! ```

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::admin::{AdminState, ServingState, answers};
use super::answer::{AllocateAnswers, Answerer};
use super::devices::{self, DeviceFindings};
use super::error::AgentError;
use super::functions::FunctionCalls;
use super::handoff::StateDir;
use super::health::HealthBook;
use super::inventory::node_inventory;
use super::kubelet::{DeviceCalls, PluginsConfig, ResourcePlugins};
use super::metrics::AgentMetrics;
use super::nic_reads::NicReads;
use super::node_handoff::{self, Handoff, OpenHandoff, OpeningContext};
use super::offer::{InUse, Unseen, configured, offers};
use super::options::AgentOptions;
use super::reconciler::{DeviceReconciler, ReconcilerContext};
use super::reporting;
use super::scan::{self, MachineScan};
use super::shares::ShareGuard;
use baton_cluster::agent_lease::AgentLease;
use baton_cluster::client;
use baton_cluster::inventory::{InventoryWriter, Published};
use baton_cluster::notice::Notices;
use baton_cluster::restored::Restored;
use baton_contract::{AgentStatus, LockWord};
use baton_decide::handoff::NodeInventory;
use baton_decide::health::ServeOutcome;
use baton_hardware::{EventSink, GpuEvent, GpuProvider, NvmlOptions, NvmlProvider, RecordedProvider, Roots, nodes};
use baton_runtime::admin::OpenPorts;
use baton_runtime::metrics::RequestMetrics;
use baton_runtime::{Backoff, clock};

/// Hardware events that may wait. The reconciler takes each within microseconds; a full channel is a storm of repetitions.
const EVENTS: usize = 1024;
/// The task that renews the Lease.
const LEASE: &str = "lease";
/// How long the end waits for the Lease to say so.
const LAST_WORD: Duration = Duration::from_secs(1);
/// How long the first lists wait for the ledger, and the start for the Device object.
const LEDGER: Duration = Duration::from_secs(1);

/// The runtime that the daemon is made for: one thread for everything that does not block, at most three for a scan of the
/// hardware, the ports of NICs and name resolution, which end when they are idle. NVML's two threads come on top: six. While a scan reads the NICs, its thread waits for one of its own; only reads that hang keep more.
pub fn runtime() -> std::io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(3)
        .thread_stack_size(512 << 10)
        .thread_keep_alive(Duration::from_secs(2))
        .build()
}

/// Runs the daemon until `shutdown` (then `Ok`) or until something fails that it cannot mend.
pub async fn run(options: AgentOptions, shutdown: CancellationToken) -> Result<(), AgentError> {
    run_with(options, shutdown, Box::new(node_handoff::open)).await
}

/// [`run`] with another hand-off.
pub async fn run_with(options: AgentOptions, shutdown: CancellationToken, open: OpenHandoff) -> Result<(), AgentError> {
    options.validate()?;
    HealthBook::new(&options)?;
    let options = Arc::new(options);
    let requests = RequestMetrics::default();
    let metrics = Arc::new(AgentMetrics::new(&requests));
    let admin_state = Arc::new(AdminState::default());
    let mut tasks = JoinSet::new();
    // Ends what the calls in hand still need, after they have ended.
    let ending = CancellationToken::new();
    let started = start(options, (metrics, requests), admin_state, &mut tasks, open, &ending);
    let mut reconciler = tokio::select! {
        started = started => started?,
        () = shutdown.cancelled() => return Ok(()),
    };
    let failure = tokio::select! {
        error = reconciler.run() => Some(error),
        Some(ended) = tasks.join_next() => Some(match ended {
            Err(error) => AgentError::Panicked(error.to_string()),
            Ok(EndedTask { why: Err(restored), .. }) => restored.into(),
            Ok(EndedTask { name, .. }) => AgentError::Panicked(format!("{name} ended")),
        }),
        () = shutdown.cancelled() => None,
    };
    if let Some(error) = &failure {
        tracing::error!(%error, "ending");
    }
    // Calls in hand still need the hand-off: it goes after them, and with it the lock on the state directory.
    reconciler.finish().await;
    // The Lease says last that nothing is registered any more: schedulers need not find out by its age.
    let reported = async {
        while tasks.join_next().await.is_some_and(|ended| !matches!(ended, Ok(EndedTask { name: LEASE, .. }))) {}
    };
    let _ = tokio::time::timeout(LAST_WORD, reported).await;
    ending.cancel();
    tasks.shutdown().await;
    failure.map_or(Ok(()), Err)
}

async fn start(
    options: Arc<AgentOptions>,
    (metrics, requests): (Arc<AgentMetrics>, RequestMetrics),
    admin_state: Arc<AdminState>,
    tasks: &mut JoinSet<EndedTask>,
    open: OpenHandoff,
    ending: &CancellationToken,
) -> Result<DeviceReconciler, AgentError> {
    let kubeconfig = options.kubeconfig.as_deref();
    let (client, resumed) = client::connect_counted("baton-device-plugin", kubeconfig, &requests).await?;
    let state = lock_and_listen(&options, &metrics, &admin_state, tasks).await?;
    let writer = InventoryWriter::new(client.clone(), &options.node_name);
    // Where the API server does not answer, no scheduler sends a pod either.
    if let Ok(Ok(Some(before))) = tokio::time::timeout(LEDGER, writer.cordoned_before()).await {
        return Err(AgentError::CordonedBefore { node: options.node_name.clone(), before });
    }
    admin_state.set_phase("looking at the hardware");
    let (sink, events) = event_channel();
    let roots = roots(&options);
    let provider = provider(&options, &sink);
    let reads = NicReads::new(options.timings.nic_deadline);
    let first = first_scan(&options, &roots, &provider, &reads).await?;
    let looked = clock::mono();
    admin_state.set_phase("opening the ledger");
    let answers = Arc::new(AllocateAnswers::new(options.clone()));
    // The writer ends by itself when the last handle is gone.
    let (notices, _) =
        Notices::start(client.clone(), "baton-device-plugin", &options.node_name, || std::future::ready(()));
    let (outcome_sink, outcomes) = mpsc::channel(EVENTS);
    let opening = OpeningContext {
        outcomes: outcome_sink.clone(),
        options: options.clone(),
        state,
        inventory: first_inventory(&options, &first),
        client: client.clone(),
        resumed,
        answerer: answers.clone(),
        metrics: metrics.clone(),
        notices: notices.clone(),
        boot_id: first.machine.as_ref().ok().and_then(|machine| machine.boot_id.clone()),
        booted: roots.proc_tree().ok().and_then(|proc| Timestamp::from_second(nodes::booted(&proc)?).ok()),
    };
    let handoff = open(opening);
    tasks.spawn(named("hand-off", handoff.clone().run(ending.clone())));
    // What is in use decides what stays in lists and CDI files. A ledger that has to be rebuilt with the API server's help
    // may take longer than a kubelet shall wait; it is caught up with when it is there.
    let mut known = handoff.handed_out();
    let _ = tokio::time::timeout(LEDGER, known.wait_for(|version| *version > 0)).await;
    let (published, publication) = watch::channel(Arc::new(Published::default()));
    let calls = function_calls(&options, handoff.clone().calls(), answers.clone(), outcome_sink);
    let context = ReconcilerContext {
        options: options.clone(),
        roots,
        provider,
        events,
        event_sink: sink,
        answers,
        holdings: handoff.clone(),
        handed_out: handoff.handed_out(),
        outcomes,
        published,
        metrics: metrics.clone(),
        notices,
        reads,
    };
    let plugins = ResourcePlugins::start(plugins_config(&options, calls, handoff.clone(), &metrics));
    let reconciler = DeviceReconciler::start(context, plugins, first)?;
    let states = reconciler.plugins().states();
    admin_state.serve(ServingState {
        states: states.clone(),
        socket: reconciler.plugins().newest_socket(),
        handoff: handoff.clone(),
        lacks: reconciler.lacks(),
    });

    let heartbeat = options.timings.heartbeat;
    let lease = AgentLease::new(client, &AgentStatus::lease_namespace(&options.namespace), &options.node_name);
    tasks.spawn(named("inventory", reporting::inventory(writer, publication, heartbeat)));
    let lock = LockWord::new(&options.node_lock_key, options.node_lock_format);
    let own = (options.lockless(), lock, options.pod_metrics);
    let renewing = reporting::lease(lease, states.clone(), handoff.identity(), handoff.status(), own, heartbeat);
    tasks.spawn(async { EndedTask { name: LEASE, why: renewing.await } });
    tasks.spawn(named("registration metrics", count_registered(states, metrics, looked)));
    Ok(reconciler)
}

/// What the rebuilding of a lost ledger judges by, before the reconciler takes over.
fn first_inventory(options: &Arc<AgentOptions>, first: &MachineScan) -> NodeInventory {
    let mut registered = configured(options);
    // The calls that were made are known without the machine; which devices it has is not.
    let Ok(machine) = &first.machine else { return NodeInventory { registered, ..NodeInventory::default() } };
    let list = devices::list(machine, options, &DeviceFindings::default(), clock::wall());
    registered.extend(offers(&list, options, &InUse::new(), Unseen::default()).into_keys());
    node_inventory(&list, registered, ShareGuard::new(options.clone()).look())
}

/// A task of the daemon that has ended.
struct EndedTask {
    name: &'static str,
    why: Result<(), Restored>,
}

async fn named(name: &'static str, work: impl Future<Output = ()>) -> EndedTask {
    work.await;
    EndedTask { name, why: Ok(()) }
}

/// The addresses are opened first, so that a waiting daemon can be asked why it waits. In one network namespace with the daemon
/// that it waits for, they are free only after the lock is.
async fn lock_and_listen(
    options: &AgentOptions,
    metrics: &Arc<AgentMetrics>,
    admin_state: &Arc<AdminState>,
    tasks: &mut JoinSet<EndedTask>,
) -> Result<StateDir, AgentError> {
    admin_state.set_phase("waiting for another daemon of this node to end");
    let directory = &options.paths.state_dir;
    let mut serve = |ports: OpenPorts| {
        let answers = answers(admin_state.clone(), metrics.clone());
        // They answer until the end: tasks are ended after the calls in hand are.
        tasks.spawn(named("HTTP", ports.serve(answers, CancellationToken::new())));
    };
    match OpenPorts::open(&options.ports) {
        Ok(ports) => {
            serve(ports);
            Ok(StateDir::acquire(directory).await?)
        }
        Err(first) => {
            if let Some(state) = StateDir::try_acquire(directory)? {
                drop(state);
                return Err(first.into());
            }
            let state = StateDir::acquire(directory).await?;
            serve(OpenPorts::open(&options.ports)?);
            Ok(state)
        }
    }
}

/// The first look. With `--fail-on-init-error=false` NVML may fail: the reconciler tries it again, and the NICs do not wait.
async fn first_scan(
    options: &AgentOptions,
    roots: &Roots,
    provider: &Arc<dyn GpuProvider>,
    reads: &NicReads,
) -> Result<MachineScan, AgentError> {
    let (roots, provider, reads) = (roots.clone(), provider.clone(), reads.clone());
    let scan = tokio::task::spawn_blocking(move || scan::scan(&roots, &*provider, &reads)).await;
    let mut scan = scan.map_err(|error| AgentError::Panicked(error.to_string()))?;
    if let Some(error) = scan.nvml.take_if(|error| options.fail_on_init_error && !error.is_hang()) {
        return Err(AgentError::Init(error));
    }
    Ok(scan)
}

fn event_channel() -> (EventSink, mpsc::Receiver<GpuEvent>) {
    let (sender, receiver) = mpsc::channel(EVENTS);
    let sink = move |event| {
        if let Err(error) = sender.try_send(event) {
            tracing::warn!(%error, "a hardware event was dropped; polling will find what it meant");
        }
    };
    (Arc::new(sink), receiver)
}

/// Where the machine's files are.
pub fn roots(options: &AgentOptions) -> Roots {
    let paths = &options.paths;
    Roots {
        sysfs: paths.sysfs_root.clone(),
        proc: paths.proc_root.clone(),
        dev: paths.dev_root.clone(),
        driver: paths.driver_root.clone(),
        net: paths.host_net_dir.clone(),
    }
}

fn provider(options: &AgentOptions, sink: &EventSink) -> Arc<dyn GpuProvider> {
    let paths = &options.paths;
    if let Some(recording) = &paths.gpu_recording {
        return Arc::new(RecordedProvider::new(recording));
    }
    Arc::new(NvmlProvider::new(nvml_options(options), sink.clone()))
}

/// Where NVML is and how long it may take.
pub fn nvml_options(options: &AgentOptions) -> NvmlOptions {
    let paths = &options.paths;
    NvmlOptions {
        library: paths.nvml_library.clone(),
        driver_root: paths.driver_root.clone(),
        sysfs: Some(paths.sysfs_root.clone()),
        deadline: options.timings.nvml_deadline,
        clock: Some(clock::mono),
        ..NvmlOptions::default()
    }
}

/// Virtual functions under a name of their own go past the hand-off.
fn function_calls(
    options: &AgentOptions,
    rest: Arc<dyn DeviceCalls>,
    answerer: Arc<dyn Answerer>,
    outcomes: mpsc::Sender<ServeOutcome>,
) -> Arc<dyn DeviceCalls> {
    match options.rdma_vf_resource.as_str() {
        "" => rest,
        resource => Arc::new(FunctionCalls { resource: resource.to_owned(), answerer, outcomes, rest }),
    }
}

fn plugins_config(
    options: &AgentOptions,
    calls: Arc<dyn DeviceCalls>,
    handoff: Arc<dyn Handoff>,
    metrics: &Arc<AgentMetrics>,
) -> PluginsConfig {
    let timings = &options.timings;
    let metrics = metrics.clone();
    PluginsConfig {
        directory: options.paths.kubelet_dir.clone(),
        poll: timings.kubelet_poll,
        register_timeout: timings.register_timeout,
        backoff: Backoff::new(timings.backoff_min, timings.backoff_max),
        budget: timings.rpc_budget,
        grace: timings.shutdown_grace,
        calls,
        on_registration: Arc::new(move |resource, result| match result {
            Ok(()) => handoff.registered(),
            Err(why) => {
                metrics.registration_lost(resource, why);
                handoff.registration_lost();
            }
        }),
    }
}

async fn count_registered(
    mut states: watch::Receiver<super::kubelet::PluginStates>,
    metrics: Arc<AgentMetrics>,
    looked: Duration,
) {
    let mut was_ready = false;
    loop {
        let mut all = true;
        for (resource, state) in states.borrow_and_update().iter() {
            let registered = *state == super::kubelet::PluginState::Registered;
            all &= registered;
            metrics.registered(resource, registered);
        }
        if all && !was_ready {
            was_ready = true;
            metrics.ready_after(clock::mono().saturating_sub(looked));
        }
        if states.changed().await.is_err() {
            return;
        }
    }
}

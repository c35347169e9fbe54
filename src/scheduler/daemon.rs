//! The scheduler as a process: feeds bring events to the scheduler, the executor performs its effects, one event loop owns the
//! world.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt as _;
use futures::future::BoxFuture;
use kube::Client;
use tokio::sync::{Semaphore, mpsc, watch};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::admin::{self, LoopState, Question};
use super::backpressure::Backpressure;
use super::executor::Executor;
use super::extender::{self, ExtenderError, ExtenderRequest, Front, PendingRequests};
use super::fault_evictor::FaultEvictor;
use super::metrics::SchedulerMetrics;
use super::options::{OptionsError, SchedulerOptions};
use super::write_order::WriteOrder;
use baton_cluster::client::{ConnectError, connect_counted};
use baton_cluster::feed::FeedMessage;
use baton_cluster::feed_set::{FeedSettings, start_feeds};
use baton_cluster::leadership::{Campaign, Leadership, identity};
use baton_cluster::lease::LeaseConfig;
use baton_cluster::node_lock::NodeLocks;
use baton_cluster::notice::Notices;
use baton_cluster::pod_group::PodGroups;
use baton_cluster::pod_writer::PodWriter;
use baton_cluster::restored::Restored;
use baton_cluster::selected_labels::SelectedLabels;
use baton_cluster::tyjob::JobStatuses;
use baton_cluster::volume::Volumes;
use baton_contract::key;
use baton_decide::core::queue::QueuePolicy;
use baton_decide::core::rules::{Plugins, RegistryError};
use baton_decide::core::{JobPolicy, RetryPolicy};
use baton_decide::lock::LockPolicy;
use baton_decide::scheduler::{Config, EffectResult, Effects, Moment, Scheduler};
use baton_decide::world::{WorldEvent, WorldPolicy};
use baton_runtime::admin::{OpenPorts, PortError};
use baton_runtime::clock;
use baton_runtime::http::HttpServer;
use baton_runtime::metrics::RequestMetrics;

/// Messages that feeds may be ahead of the loop. Each may be a Device object as it was read, 20 kB: while the cluster is listed,
/// feeds are faster than the loop, and memory that a full queue once took stays with the process.
const BACKLOG: usize = 128;
/// Messages that are applied before the scheduler decides again.
const BATCH: usize = 128;
/// Decisions stop at so many times the requests that may be under way: enough that no permit is idle while the loop decides.
const DECISIONS_PER_PERMIT: usize = 2;
/// One in so many requests under way may be a status write.
const STATUS_SHARE: usize = 8;
/// While Bindings are under way, an event is written this often: as often as kube-scheduler's client may write any.
const EVENT_PAUSE: Duration = Duration::from_millis(20);
/// Metrics are updated this often.
const METRICS_PERIOD: Duration = Duration::from_secs(1);
/// Requests under way at shutdown get this long.
const GRACE: Duration = Duration::from_secs(5);

/// Why the scheduler cannot run.
#[derive(Debug, thiserror::Error)]
pub enum SchedulerError {
    /// A setting that cannot work.
    #[error(transparent)]
    Options(#[from] OptionsError),
    /// A set of plugins that cannot work.
    #[error(transparent)]
    Plugins(#[from] RegistryError),
    /// No API server to talk to.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// Its addresses cannot be served.
    #[error(transparent)]
    Ports(#[from] PortError),
    /// kube-scheduler's calls cannot be served.
    #[error(transparent)]
    Extender(#[from] ExtenderError),
    /// The API server's store was restored from a backup.
    #[error(transparent)]
    Restored(#[from] Restored),
    /// A task that never ends has ended.
    #[error("{0} ended unexpectedly")]
    Ended(&'static str),
}

/// Runs a scheduler with these rules until `stop`; the options change Baton's own rules among them.
pub async fn run(options: SchedulerOptions, plugins: &Plugins, stop: CancellationToken) -> Result<(), SchedulerError> {
    SchedulerDaemon::with_plugins(options, plugins).await?.run(stop).await
}

/// A scheduler that is set up and not yet started.
pub struct SchedulerDaemon {
    options: SchedulerOptions,
    client: Client,
    metrics: SchedulerMetrics,
    ports: OpenPorts,
    extender: Option<HttpServer>,
    scheduler: Scheduler,
}

impl SchedulerDaemon {
    /// A scheduler with Baton's rules alone.
    pub async fn new(options: SchedulerOptions) -> Result<Self, SchedulerError> {
        Self::with_plugins(options, &Plugins::default()).await
    }

    /// Checks options and rules, opens the addresses. An API server that is not there yet is waited for later.
    pub async fn with_plugins(options: SchedulerOptions, plugins: &Plugins) -> Result<Self, SchedulerError> {
        options.validate()?;
        let plugins = plugins.configured(&options.plugin_set()?)?;
        let requests = RequestMetrics::default();
        let (client, _) = connect_counted("baton-scheduler", options.kubeconfig.as_deref(), &requests).await?;
        let scheduler = Scheduler::new(scheduler_config(&options), plugins);
        let ports = OpenPorts::open(&options.ports)?;
        let extender = options.extender.open()?;
        Ok(Self { options, client, metrics: SchedulerMetrics::new(&requests), ports, extender, scheduler })
    }

    /// The admin address.
    pub fn admin_address(&self) -> Option<SocketAddr> {
        self.ports.admin_address()
    }

    /// Runs until `stop`, then finishes what is under way and gives the Lease away.
    pub async fn run(self, stop: CancellationToken) -> Result<(), SchedulerError> {
        let Self { options, client, metrics, ports, extender, scheduler } = self;
        let (feed_out, feed_in) = mpsc::channel(BACKLOG);
        let (report_out, report_in) = mpsc::unbounded_channel();
        let (question_out, question_in) = mpsc::channel(16);
        let mut tasks = JoinSet::new();
        let settings = FeedSettings {
            lock_key: options.node_lock_key.clone(),
            namespace: options.namespace.clone(),
            scheduling_groups: options.gangs.scheduling_group,
        };
        let locks = NodeLocks::new(client.clone(), &options.node_lock_key);
        let labels = SelectedLabels::default();
        let missing = start_feeds(&client, &settings, &locks, &labels, &feed_out, &mut tasks);
        drop(feed_out);
        tokio::spawn(ports.serve(admin::answers(question_out.clone(), metrics.clone()), stop.clone()));
        let pods = PodWriter::new(client.clone(), labels);
        let (front, requests) = Front::new(pods.clone());
        if let Some(server) = extender {
            tokio::spawn(server.serve(extender::router(front.clone()), stop.clone()));
        }
        let instance = identity(&options.leader.identity, "scheduler");
        let lease = options.leader.elect.then(|| lease_config(&options, &instance));
        let mut campaign = Campaign::start(client.clone(), lease);
        let leadership = campaign.leadership.clone();
        let backpressure = Backpressure::new(options.concurrency * DECISIONS_PER_PERMIT);
        let (notices, _writer) =
            Notices::start(client.clone(), &options.scheduler_names[0], &instance, event_pause(&backpressure));
        let executor = Arc::new(Executor {
            pods,
            locks,
            volumes: Volumes::new(client.clone()),
            jobs: JobStatuses::new(client.clone()),
            notices,
            pod_groups: PodGroups::new(client.clone()),
            leadership: leadership.clone(),
            permits: Arc::new(Semaphore::new(options.concurrency)),
            status_permits: Arc::new(Semaphore::new(options.concurrency.div_ceil(STATUS_SHARE))),
            backpressure,
            write_order: WriteOrder::default(),
            limit: options.timings.bind_timeout,
            reports: report_out,
        });
        let pending = PendingRequests::new(options.timings.bind_wait, options.extender.gang);
        let evictor = options.evict_on_fault.then(|| FaultEvictor::new(client, options.timings.fault_grace));
        let mut event_loop = EventLoop {
            scheduler,
            executor,
            leadership,
            metrics,
            missing,
            pending,
            evictor,
            metrics_updated: Duration::ZERO,
        };
        let changed = campaign.changed.clone();
        let result = tokio::select! {
            ended = event_loop.run(feed_in, report_in, question_in, requests, changed, &stop) => ended,
            restored = campaign.restored() => Err(restored.into()),
        };
        drop(front);
        tasks.shutdown().await;
        // Requests under way hold permits. The next leader finds their outcome in any case.
        let all = u32::try_from(options.concurrency).unwrap_or(u32::MAX);
        tokio::time::timeout(GRACE, event_loop.executor.permits.acquire_many(all)).await.ok();
        // The Lease is given away only when no request of ours is under way any more.
        campaign.end().await;
        result
    }
}

struct EventLoop {
    scheduler: Scheduler,
    executor: Arc<Executor>,
    leadership: Leadership,
    metrics: SchedulerMetrics,
    /// Feeds whose first list is not complete.
    missing: BTreeSet<&'static str>,
    /// Binds of kube-scheduler that wait for their answer.
    pending: PendingRequests,
    /// With `--evict-on-fault`.
    evictor: Option<FaultEvictor>,
    metrics_updated: Duration,
}

impl EventLoop {
    async fn run(
        &mut self,
        mut feed: mpsc::Receiver<FeedMessage<WorldEvent>>,
        mut reports: mpsc::UnboundedReceiver<EffectResult>,
        mut questions: mpsc::Receiver<Question>,
        mut requests: mpsc::UnboundedReceiver<ExtenderRequest>,
        mut changed: watch::Receiver<u64>,
        stop: &CancellationToken,
    ) -> Result<(), SchedulerError> {
        let mut messages = Vec::with_capacity(BATCH);
        let mut answers = Vec::with_capacity(BATCH);
        loop {
            self.update_leadership();
            let room = self.executor.backpressure.has_room();
            let effects = if room { self.scheduler.run(moment()) } else { self.scheduler.pass(moment()) };
            self.perform(effects);
            self.pending.deliver(&mut self.scheduler);
            if let Some(evictor) = &mut self.evictor {
                evictor.look(&self.scheduler, &self.executor);
            }
            if clock::mono() >= self.metrics_updated + METRICS_PERIOD {
                self.metrics_updated = clock::mono();
                self.metrics.update(&mut self.scheduler, moment());
            }
            // Without room for a decision, only timers are due.
            let due = if room { self.scheduler.next() } else { self.scheduler.next_timer() };
            let wake = self.wake(due);
            tokio::select! {
                () = stop.cancelled() => return Ok(()),
                count = feed.recv_many(&mut messages, BATCH) => {
                    if count == 0 {
                        return Err(SchedulerError::Ended("the watches"));
                    }
                    for message in messages.drain(..) {
                        self.apply(message);
                    }
                }
                _ = reports.recv_many(&mut answers, BATCH) => {
                    for report in answers.drain(..) {
                        let effects = self.scheduler.report(report, moment());
                        self.perform(effects);
                    }
                }
                Some(question) = questions.recv() => self.answer(question),
                Some(request) = requests.recv() => {
                    let effects = self.pending.handle(request, &mut self.scheduler, moment());
                    self.perform(effects);
                }
                Ok(()) = changed.changed() => {}
                () = self.executor.backpressure.room(), if !room => {}
                () = tokio::time::sleep(wake) => {}
            }
        }
    }

    fn apply(&mut self, message: FeedMessage<WorldEvent>) {
        match message {
            FeedMessage::Event(event) => {
                self.evictor.iter_mut().for_each(|evictor| evictor.see(&event));
                let effects = self.scheduler.event(event, moment());
                self.perform(effects);
            }
            FeedMessage::Synced(name) => {
                if self.missing.remove(name) && self.missing.is_empty() {
                    let nodes = self.scheduler.world().nodes().count();
                    let pods = self.scheduler.world().pods().count();
                    tracing::info!(nodes, pods, "the world is complete");
                }
            }
        }
    }

    fn update_leadership(&mut self) {
        let leads = self.missing.is_empty() && self.leadership.leads(clock::mono());
        if leads != self.scheduler.is_leading() {
            let effects = self.scheduler.lead(leads, moment());
            self.perform(effects);
        }
    }

    /// Time until something is due: what is `due` to the scheduler, or the end of leadership.
    fn wake(&self, due: Option<Duration>) -> Duration {
        let now = clock::mono();
        let longest = Duration::from_secs(1);
        let due = due.map_or(longest, |at| at.saturating_sub(now));
        let end = if self.scheduler.is_leading() { self.leadership.until().saturating_sub(now) } else { longest };
        due.min(end).min(longest)
    }

    fn answer(&self, question: Question) {
        match question {
            // An answer is dropped when its HTTP client has left.
            Question::State(answer) => {
                let missing = self.missing.iter().copied().collect();
                drop(answer.send(LoopState { missing, leading: self.scheduler.is_leading() }));
            }
            Question::Ask(ask) => {
                let snapshot = self.scheduler.snapshot();
                tokio::task::spawn_blocking(move || ask(&snapshot, moment()));
            }
        }
    }

    fn perform(&self, effects: Effects) {
        for effect in effects {
            self.executor.perform(effect);
        }
    }
}

/// Events wait for a short time while Bindings are under way: both are requests to the same API server.
fn event_pause(backpressure: &Arc<Backpressure>) -> impl Fn() -> BoxFuture<'static, ()> + Send + 'static + use<> {
    let backpressure = backpressure.clone();
    move || {
        let backpressure = backpressure.clone();
        async move { drop(tokio::time::timeout(EVENT_PAUSE, backpressure.idle()).await) }.boxed()
    }
}

fn moment() -> Moment {
    let now = clock::now();
    Moment { mono: now.mono, wall: now.wall }
}

fn scheduler_config(options: &SchedulerOptions) -> Config {
    let t = &options.timings;
    let defaults = Config::default();
    Config {
        scheduler_names: options.scheduler_names.iter().map(|name| name.as_str().into()).collect(),
        asking_names: options.extender.asking_names(),
        lock_mode: options.node_lock,
        lock_format: options.node_lock_format,
        lock_policy: LockPolicy { expiry: options.node_lock_expiry, agent_settled: t.agent_settled },
        queue: QueuePolicy { backoff: t.backoff, backoff_max: t.backoff_max, ..QueuePolicy::default() },
        world: WorldPolicy {
            agent_stale: t.agent_stale,
            gangs: options.gangs.defaults(),
            mix: options.plugins.patience,
            ..WorldPolicy::default()
        },
        abandoned: t.lock_abandoned,
        sweep: t.lock_sweep,
        retry: RetryPolicy { limit: t.bind_limit, ..RetryPolicy::default() },
        condition_pause: t.condition_pause,
        gangs: options.gangs.policy(t.gang_condition_pause),
        jobs: JobPolicy {
            period: t.job_period,
            unfit_grace: options.unfit_grace,
            reservation_timeout: t.reservation_timeout,
            start_limit: t.start_limit,
            weights: options.job_weights,
        },
        earmarks: options.earmarks,
        batch: defaults.batch,
        search: defaults.search,
    }
}

fn lease_config(options: &SchedulerOptions, identity: &str) -> LeaseConfig {
    let annotations = [(key::SCHEDULER.to_owned(), options.lock_word().print())].into();
    LeaseConfig { annotations, ..options.leader.config(&options.namespace, identity) }
}

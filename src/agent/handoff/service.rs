//! The service behind the kubelet's calls: serialised, within a budget, the ledger written before an answer leaves.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use futures::future::BoxFuture;
use prost::Message;
use tokio::sync::{Mutex, Notify, mpsc, watch};
use tonic::Status;

use super::api::HandoffApi;
use super::ledger_file::LedgerFile;
use super::metrics::HandoffMetrics;
use super::node_view::NodeView;
use super::pod_resources::PodResourcesClient;
use crate::answer::{Answerer, ContainerGrant};
use crate::cgroups::Cgroups;
use crate::kubelet::DeviceCalls;
use baton_contract::deviceplugin::{
    AllocateRequest, AllocateResponse, ContainerAllocateResponse, PreStartContainerRequest, PreferredAllocationRequest,
    PreferredAllocationResponse,
};
use baton_contract::{DeviceId, PodUid, Shared};
use baton_decide::handoff::rebuild::{is_share, learn};
use baton_decide::handoff::{
    AllocateCall, AllocateContext, AllocateOutcome, AllocatePolicy, AllocateRefusal, AllocateRule, EntryKey,
    LIST_SETTLES, Ledger, LedgerEntry, LiveReads, NewGrant, NodeInventory, PodNotice, PodResources, Processes,
    RefusalCode, decide, passed_by,
};
use baton_decide::health::{Blame, ServeOutcome};
use baton_runtime::{clock, vital};

/// How long the identification of a GetPreferredAllocation holds for the Allocate that follows with the ids it answered.
const PREFERENCE_HOLDS: Duration = Duration::from_secs(1);
/// Kept from the budget so that the error still reaches the kubelet in time.
pub(super) const RESERVE: Duration = Duration::from_millis(50);
/// The kubelet and this daemon see a pod at the same moment; where the kubelet's call comes first, the watch follows within
/// milliseconds. Asking the API server takes longer than that.
const HEAD_START: Duration = Duration::from_millis(10);
/// Between two attempts to read live.
const ASK_AGAIN: Duration = Duration::from_millis(75);
/// Decisions that may ask for live reads one after another.
pub(super) const MAX_ROUNDS: usize = 6;

/// Settings of the hand-off.
#[derive(Debug, Clone)]
pub struct HandoffSettings {
    /// This node.
    pub node: Box<str>,
    /// The operator's choices.
    pub policy: AllocatePolicy,
    /// Budget of one call.
    pub budget: Duration,
    /// The kubelet's device-plugins directory.
    pub kubelet_dir: PathBuf,
    /// Starts are refused while the kubelet's commitment is not the assignment.
    pub verify_before_start: bool,
}

/// What the service works with.
pub struct HandoffContext {
    /// Pods and lock.
    pub view: Arc<NodeView>,
    /// The cluster.
    pub api: Arc<dyn HandoffApi>,
    /// The devices; replaced whole on every change.
    pub inventory: Arc<ArcSwap<NodeInventory>>,
    /// Builds answers.
    pub answerer: Arc<dyn Answerer>,
    /// The kubelet's PodResources.
    pub pod_resources: Arc<PodResourcesClient>,
    /// Whether processes of pods run.
    pub cgroups: Arc<Cgroups>,
    /// Counters.
    pub metrics: HandoffMetrics,
    /// Receives what became of pods here.
    pub outcomes: mpsc::Sender<ServeOutcome>,
}

/// Answers Allocate, GetPreferredAllocation and PreStartContainer.
pub struct HandoffService {
    pub(super) settings: HandoffSettings,
    pub(super) context: HandoffContext,
    pub(super) state: Mutex<Option<HandoffState>>,
    /// The ledger is known: calls are served.
    pub(super) ready: watch::Sender<bool>,
    /// A call came before the ledger is known.
    pub(super) call_waits: Notify,
    /// How often the kubelet was seen to start again.
    pub(super) kubelet_starts: AtomicU64,
    /// Monotonic milliseconds until which no pod is known by the watches alone: the call of an unknown pod has failed.
    pub(super) unsure_until: AtomicU64,
    /// What follows from answers.
    pub(super) after: Arc<FollowUp>,
    /// Pods that run without having been served.
    pub(super) unserved: ArcSwap<BTreeSet<PodUid>>,
    /// `None` until the unlocker has looked at the lock.
    pub(super) unreleased: watch::Sender<Option<ServedLock>>,
}

/// What became of the lock of a holder that was served.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ServedLock {
    /// There is none.
    Released,
    /// This value could not be removed so far.
    Stands(Box<str>),
}

impl ServedLock {
    /// The value that stands.
    pub fn raw(self) -> Option<Box<str>> {
        match self {
            Self::Released => None,
            Self::Stands(raw) => Some(raw),
        }
    }
}

/// What is remembered from one call of the kubelet to the next.
pub(super) struct HandoffState {
    pub ledger: Ledger,
    pub file: LedgerFile,
    pub processes: Processes,
    pub passed: BTreeSet<PodUid>,
    pub may_repeat: BTreeSet<PodUid>,
    pub unusable: BTreeSet<PodUid>,
    pub preference: Option<LastPreference>,
    /// Of `HandoffService::kubelet_starts`: the last that these marks know of.
    pub kubelet_start: u64,
}

impl HandoffState {
    /// The kubelet admits its pods again: no admission is over, and served pods may ask once more.
    pub fn admits_again(&mut self) {
        self.passed.clear();
        self.preference = None;
        self.may_repeat = self.ledger.iter().map(|entry| entry.pod.uid.clone()).collect();
    }
}

/// The last preference call.
pub(super) struct LastPreference {
    pub resource: Box<str>,
    pub ids: BTreeSet<String>,
    pub at: Duration,
    pub key: EntryKey,
    pub resources: Arc<PodResources>,
}

/// What one call has learned beyond the watches so far.
pub(super) struct CallReads {
    call: &'static str,
    deadline: Duration,
    /// Read live.
    pub fresh: LiveReads,
    /// Times that the API server was asked.
    pub rounds: usize,
    /// Until when the watch may catch up; set when something is missed for the first time.
    head_start: Option<Duration>,
    /// The view's version that was decided on last.
    seen: u64,
    /// After a read that failed: the API server is not asked again before this.
    not_before: Duration,
}

impl CallReads {
    /// For a call that must be decided before `deadline` (monotonic), on what `view` shows now.
    pub fn new(call: &'static str, deadline: Duration, view: &NodeView) -> Self {
        Self {
            call,
            deadline,
            fresh: LiveReads::default(),
            rounds: 0,
            head_start: None,
            seen: view.version(),
            not_before: Duration::ZERO,
        }
    }
}

impl HandoffService {
    /// A service that serves nothing until [`Self::open`] has given it a ledger.
    pub fn new(settings: HandoffSettings, context: HandoffContext) -> Arc<Self> {
        let after = Arc::new(FollowUp::new(context.api.clone(), context.metrics.clone()));
        Arc::new(Self {
            settings,
            context,
            state: Mutex::new(None),
            ready: watch::Sender::new(false),
            call_waits: Notify::new(),
            kubelet_starts: AtomicU64::new(0),
            unsure_until: AtomicU64::new(0),
            after,
            unserved: ArcSwap::default(),
            unreleased: watch::Sender::new(None),
        })
    }

    /// `true` once the ledger is known.
    pub fn is_ready(&self) -> bool {
        *self.ready.borrow()
    }

    /// Announces every change of the ledger.
    pub fn ledger_changes(&self) -> watch::Receiver<u64> {
        self.after.changes.subscribe()
    }

    /// The entries of the ledger: what every live pod was given. Empty before it is known.
    pub async fn ledger(&self) -> Vec<Shared<LedgerEntry>> {
        let state = self.state.lock().await;
        state.as_ref().map(|state| state.ledger.stored().values().cloned().collect()).unwrap_or_default()
    }

    /// What was made for containers that hold nothing any more goes. Called under the lock of the state: no answer is being built.
    pub(super) fn retain_answers(&self, ledger: &Ledger) {
        let holds =
            |uid: &str, container: &str| ledger.of_pod(&PodUid::new(uid)).any(|entry| &*entry.container == container);
        self.context.answerer.retain(&holds);
    }

    /// Starts serving with this ledger.
    pub(super) async fn begin(&self, ledger: Ledger, file: LedgerFile) {
        let mut state = HandoffState {
            ledger,
            file,
            processes: Processes::default(),
            passed: BTreeSet::new(),
            may_repeat: BTreeSet::new(),
            unusable: BTreeSet::new(),
            preference: None,
            kubelet_start: self.kubelet_starts.load(Ordering::SeqCst),
        };
        // What the kubelet did before this agent started is not known.
        state.admits_again();
        self.context.metrics.ledger_entries.set(state.ledger.len() as i64);
        self.retain_answers(&state.ledger);
        *self.state.lock().await = Some(state);
        self.ready.send_replace(true);
        self.after.ledger_changed();
        self.after.lock_matters();
    }

    /// Serves one Allocate call on `resource`'s socket. An error is a refusal; its text ends in the pod's status.
    pub async fn allocate(&self, resource: &str, request: AllocateRequest) -> Result<AllocateResponse, Status> {
        let began = clock::mono();
        let deadline = began + self.settings.budget.saturating_sub(RESERVE);
        let answered = tokio::time::timeout(self.settings.budget, self.allocate_before(resource, request, deadline));
        let answered = answered.await.unwrap_or_else(|_| {
            self.rejected_unknown();
            Err(self.too_late(resource))
        });
        let seconds = clock::mono().saturating_sub(began).as_secs_f64();
        let result = match &answered {
            Ok((_, result)) => result,
            Err(refusal) => refusal.rule.word(),
        };
        self.context.metrics.count_call(resource, result, seconds);
        if matches!(&answered, Err(refusal) if refusal.rule == AllocateRule::IdMismatch) {
            self.context.metrics.id_mismatches.inc();
        }
        match answered {
            Ok((answer, _)) => Ok(AllocateResponse { container_responses: vec![answer] }),
            Err(refusal) => {
                tracing::warn!(resource, rule = refusal.rule.word(), text = refusal.text, "Allocate refused");
                refusal.notices().for_each(|notice| self.context.api.report(notice));
                Err(status(&refusal))
            }
        }
    }

    /// The kubelet has rejected a pod for good, and it is not known which: the next call may be its successor's.
    fn rejected_unknown(&self) {
        let until = clock::mono() + LIST_SETTLES;
        self.unsure_until.store(until.as_millis() as u64, Ordering::SeqCst);
    }

    fn too_late(&self, resource: &str) -> AllocateRefusal {
        let why = format!(
            "not decided within {:?}: the API server or the kubelet's PodResources did not answer in time; delete and re-create the pod",
            self.settings.budget
        );
        AllocateRefusal::without_pod(AllocateRule::Deadline, resource, why)
    }

    async fn allocate_before(
        &self,
        resource: &str,
        request: AllocateRequest,
        deadline: Duration,
    ) -> Result<(ContainerAllocateResponse, &'static str), AllocateRefusal> {
        let ids = match request.container_requests.as_slice() {
            [one] if !one.devices_ids.is_empty() => &one.devices_ids,
            other => {
                let why = format!("expected one container with at least one device id, got {} containers", other.len());
                return Err(AllocateRefusal::without_pod(AllocateRule::Malformed, resource, why));
            }
        };
        self.is_ready_before(resource, deadline).await?;
        let mut guard = self.state.lock().await;
        let Some(state) = guard.as_mut() else {
            return Err(AllocateRefusal::without_pod(
                AllocateRule::NotServing,
                resource,
                "the ledger is not known yet",
            ));
        };
        self.reconcile_restarts(state);
        let call = AllocateCall { resource, count: i64::try_from(ids.len()).unwrap_or(i64::MAX), ids };
        let (known, resources) = self.kubelet_view(state, &call, deadline).await;
        let (outcome, passed) = self.decide_live(state, &call, known.as_ref(), &resources, deadline).await?;
        state.passed.extend(passed);
        match outcome {
            AllocateOutcome::Serve(serving) => {
                let uid = serving.entry.pod.uid.clone();
                let served = self.serve(state, *serving);
                if served.is_err() {
                    state.passed.insert(uid);
                }
                served.map(|answer| (answer, "served"))
            }
            AllocateOutcome::Repeat { key, how } => {
                let repeated = self.repeat(state, &key, ids, how.word());
                if repeated.is_err() {
                    state.passed.insert(key.uid);
                }
                repeated.map(|answer| (answer, "repeated"))
            }
            AllocateOutcome::Refuse(refusal) => {
                if refusal.pods.is_empty() || refusal.rule == AllocateRule::Ambiguous {
                    self.rejected_unknown();
                }
                for pod in &refusal.pods {
                    if refusal.rule != AllocateRule::Ambiguous {
                        state.passed.insert(pod.uid.clone());
                    }
                    if refusal.rule.makes_lock_useless() {
                        state.unusable.insert(pod.uid.clone());
                        self.after.lock_matters();
                    }
                }
                Err(refusal)
            }
            AllocateOutcome::NeedLive(_) => Err(self.too_late(resource)),
        }
    }

    pub(super) async fn is_ready_before(&self, resource: &str, deadline: Duration) -> Result<(), AllocateRefusal> {
        let mut ready = self.ready.subscribe();
        if !*ready.borrow() {
            self.call_waits.notify_one();
        }
        let left = deadline.saturating_sub(clock::mono());
        let why = if tokio::time::timeout(left, ready.wait_for(|ready| *ready)).await.is_err() {
            "this node daemon does not know yet what it has handed out (another instance holds its state, or the API server \
             cannot be reached); delete and re-create the pod"
        } else if !self.context.view.synced_before(deadline).await {
            "the API server could not be reached since this node daemon started, so the pod's assignment is not known; delete \
             and re-create the pod when it is back"
        } else {
            return Ok(());
        };
        Err(AllocateRefusal::without_pod(AllocateRule::NotServing, resource, why))
    }

    /// The kubelet's view: the one of the preference call just before, if this is the call that it prepared; else a new one.
    async fn kubelet_view(
        &self,
        state: &mut HandoffState,
        call: &AllocateCall<'_>,
        deadline: Duration,
    ) -> (Option<EntryKey>, Arc<PodResources>) {
        if let Some(last) = state.preference.take()
            && *last.resource == *call.resource
            && clock::mono().saturating_sub(last.at) <= PREFERENCE_HOLDS
            && last.ids.len() == call.ids.len()
            && call.ids.iter().all(|id| last.ids.contains(id))
        {
            return (Some(last.key), last.resources);
        }
        let resources = self.list(state, deadline).await;
        (None, Arc::new(resources))
    }

    pub(super) async fn list(&self, state: &mut HandoffState, deadline: Duration) -> PodResources {
        // A kubelet that goes on throttling must not use up the time of the live reads that the decision may need.
        let reads = self.settings.budget / 4;
        let until = deadline.saturating_sub(reads).max(deadline.min(clock::mono() + reads));
        let resources = self.context.pod_resources.list(until).await;
        self.take_in(state, &resources);
        resources
    }

    /// Brings what the kubelet lists into the ledger: it settles intents, and shows pods that were re-admitted without a
    /// call. `true` when the ledger changed.
    pub(super) fn take_in(&self, state: &mut HandoffState, resources: &PodResources) -> bool {
        let settled = state.ledger.settle(resources);
        let Some(listing) = resources.listing() else { return settled };
        let inventory = self.context.inventory.load();
        let seen = self.context.view.seen();
        let learned = learn(&mut state.ledger, &self.settings.node, &seen.pods, listing, &inventory);
        if learned {
            tracing::info!(entries = state.ledger.len(), "devices in use were learned from PodResources");
        }
        if settled || learned {
            self.after.ledger_changed();
        }
        settled || learned
    }

    /// Pods that run although no call was made for them, as the last comparison with the kubelet has proven.
    pub fn unserved(&self) -> Arc<BTreeSet<PodUid>> {
        self.unserved.load_full()
    }

    /// Announces a lock that stays although its holder was served; `None` until the lock was looked at.
    pub fn unreleased(&self) -> watch::Receiver<Option<ServedLock>> {
        self.unreleased.subscribe()
    }

    /// Says what became of the lock of a served holder.
    pub(super) fn say_served_lock(&self, now: ServedLock) {
        self.unreleased.send_if_modified(|known| known.replace(now.clone()) != Some(now));
    }

    /// Decides, reading live what the decision asks for. Also returns the pods whose admission is over.
    async fn decide_live(
        &self,
        state: &mut HandoffState,
        call: &AllocateCall<'_>,
        known: Option<&EntryKey>,
        resources: &PodResources,
        deadline: Duration,
    ) -> Result<(AllocateOutcome, Vec<PodUid>), AllocateRefusal> {
        let mut reads = CallReads::new("Allocate", deadline, &self.context.view);
        while reads.rounds < MAX_ROUNDS {
            let (outcome, passed) = self.with_context(state, resources, &reads.fresh, |context| {
                let outcome = decide(context, call, known);
                let caller = match &outcome {
                    AllocateOutcome::Serve(serving) => Some(&serving.entry.pod.uid),
                    AllocateOutcome::Repeat { key, .. } => Some(&key.uid),
                    _ => None,
                };
                let passed = caller.map(|uid| passed_by(context, uid)).unwrap_or_default();
                (outcome, passed)
            });
            let AllocateOutcome::NeedLive(wanted) = outcome else { return Ok((outcome, passed)) };
            let concerned = wanted.pods.clone();
            if let Err(refusal) = self.learn_more(&mut reads, wanted, call.resource).await {
                let rejected: Vec<PodUid> = {
                    let seen = self.context.view.seen();
                    let pods = concerned.iter().flat_map(|key| seen.pods.of_key(key));
                    pods.map(|pod| pod.pod.uid.clone()).collect()
                };
                if rejected.is_empty() {
                    self.rejected_unknown();
                }
                state.passed.extend(rejected);
                return Err(refusal);
            }
        }
        self.rejected_unknown();
        Err(self.too_late(call.resource))
    }

    /// Gets what a decision lacks: lets the watch catch up first, once in a call, and then asks the API server. The decision
    /// has to be made again after each.
    pub(super) async fn learn_more(
        &self,
        reads: &mut CallReads,
        wanted: LiveReads,
        resource: &str,
    ) -> Result<(), AllocateRefusal> {
        let began = clock::mono();
        let until = *reads.head_start.get_or_insert(reads.deadline.min(began + HEAD_START));
        if self.context.view.is_watching() && began < until {
            let news = self.context.view.change_before(reads.seen, until).await;
            self.context.metrics.watch_wait_seconds.observe(clock::mono().saturating_sub(began).as_secs_f64());
            if let Some(version) = news {
                reads.seen = version;
                return Ok(());
            }
        }
        reads.rounds += 1;
        loop {
            tokio::time::sleep(reads.not_before.saturating_sub(clock::mono())).await;
            let Err(refusal) = self.read_live(&wanted, reads, resource).await else { break };
            // The kubelet fails a pod for good: an answer that did not come once is asked for again while there is time, and
            // the watch may bring it meanwhile. What this read has brought is no news.
            reads.not_before = clock::mono() + ASK_AGAIN;
            reads.seen = self.context.view.version();
            if reads.not_before + ASK_AGAIN > reads.deadline {
                return Err(refusal);
            }
            tracing::debug!(%refusal.text, "asking the API server again");
            if let Some(version) = self.context.view.change_before(reads.seen, reads.not_before).await {
                reads.seen = version;
                // Nothing was read: this was no round.
                reads.rounds -= 1;
                return Ok(());
            }
        }
        reads.fresh.add(wanted);
        Ok(())
    }

    /// Runs a decision on everything that is known now.
    pub(super) fn with_context<T>(
        &self,
        state: &HandoffState,
        resources: &PodResources,
        fresh: &LiveReads,
        look: impl FnOnce(&AllocateContext<'_>) -> T,
    ) -> T {
        let inventory = self.context.inventory.load();
        let seen = self.context.view.seen();
        let (now, unsure) = (clock::mono(), Duration::from_millis(self.unsure_until.load(Ordering::SeqCst)));
        look(&AllocateContext {
            node: &self.settings.node,
            pods: &seen.pods,
            lock: &seen.lock,
            resources,
            ledger: &state.ledger,
            inventory: &inventory,
            passed: &state.passed,
            may_repeat: &state.may_repeat,
            live_reads: fresh,
            watching: seen.pods_watching && seen.node_watching && now >= (seen.pods_listed + LIST_SETTLES).max(unsure),
            now: clock::wall(),
            policy: &self.settings.policy,
        })
    }

    async fn read_live(&self, wanted: &LiveReads, reads: &CallReads, resource: &str) -> Result<(), AllocateRefusal> {
        let api = &self.context.api;
        let count = wanted.pods.len() as u64 + u64::from(wanted.node);
        self.context.metrics.live_reads.get_or_create(&[("call", reads.call)]).inc_by(count);
        let pods = futures::future::join_all(wanted.pods.iter().map(|key| api.pod(key)));
        let lock = async { if wanted.node { Some(api.lock().await) } else { None } };
        let left = reads.deadline.saturating_sub(clock::mono());
        let Ok((pods, lock)) = tokio::time::timeout(left, futures::future::join(pods, lock)).await else {
            return Err(self.too_late(resource));
        };
        let unavailable = |error| {
            let why =
                format!("the API server is needed to decide and did not answer: {error}; delete and re-create the pod");
            AllocateRefusal::without_pod(AllocateRule::ApiUnavailable, resource, why)
        };
        for (key, pod) in wanted.pods.iter().zip(pods) {
            if let Some(notice) = self.context.view.apply_live(key, pod.map_err(unavailable)?) {
                api.report(notice);
            }
        }
        if let Some(lock) = lock {
            self.context.view.apply_lock(lock.map_err(unavailable)?);
        }
        Ok(())
    }

    /// Builds the answer, writes the entry, and only then lets the answer go. Nothing waits in between.
    fn serve(&self, state: &mut HandoffState, serving: NewGrant) -> Result<ContainerAllocateResponse, AllocateRefusal> {
        let NewGrant { mut entry, how, shares, mismatch, notices } = serving;
        let answer = self.answer(&entry, shares)?;
        let devices: BTreeSet<_> =
            entry.served.iter().map(|(kind, device)| (kind.clone(), device.id.clone())).collect();
        entry.answer = Some(answer.encode_to_vec());
        let key = entry.key();
        let before = state.ledger.get(&key).cloned();
        state.ledger.record(entry);
        if let Err(error) = state.file.save(&state.ledger) {
            state.ledger.forget(&key);
            before.into_iter().for_each(|doubtful| state.ledger.restore(doubtful));
            if let Some((kind, _)) = devices.first() {
                let why = format!("the ledger cannot be written ({error})").into();
                self.report(ServeOutcome::Failed { blame: Blame::Node(kind.clone()), why });
            }
            return Err(Self::unwritten(&key, &error));
        }
        self.report(ServeOutcome::Served(devices));
        let entries = state.ledger.len();
        let entry = state.ledger.stored().get(&key).cloned();
        self.after.spawn(ServedCall { what: "served", entry, how: how.word(), mismatch, notices, entries });
        Ok(answer)
    }

    /// The stored answer again, with this call's ids on record. For an entry that was rebuilt the answer is built.
    fn repeat(
        &self,
        state: &mut HandoffState,
        key: &EntryKey,
        ids: &[String],
        how: &'static str,
    ) -> Result<ContainerAllocateResponse, AllocateRefusal> {
        let gone =
            || AllocateRefusal::without_pod(AllocateRule::Ledger, &key.resource, "the entry of this call is gone");
        let entry = state.ledger.get(key).ok_or_else(gone)?;
        let stored = entry.answer.as_deref().and_then(|bytes| ContainerAllocateResponse::decode(bytes).ok());
        let answer = match stored {
            Some(answer) => answer,
            None => self.answer(entry, is_share(entry))?,
        };
        let before = entry.clone();
        let stored_entry = state.ledger.stored().get(key).cloned();
        state.ledger.repeat(key, ids.iter().map(|id| id.as_str().into()).collect());
        state.ledger.set_answer(key, answer.encode_to_vec());
        if let Err(error) = state.file.save(&state.ledger) {
            state.ledger.restore(before);
            return Err(Self::unwritten(key, &error));
        }
        let (entries, notices) = (state.ledger.len(), Vec::new());
        self.after.spawn(ServedCall {
            what: "served again",
            entry: stored_entry,
            how,
            mismatch: false,
            notices,
            entries,
        });
        Ok(answer)
    }

    fn answer(&self, entry: &LedgerEntry, shares: bool) -> Result<ContainerAllocateResponse, AllocateRefusal> {
        if entry.served.is_empty() {
            // A name that only accompanies the delivering one. An empty list would fail the pod; an empty answer does not.
            return Ok(ContainerAllocateResponse::default());
        }
        let grant = ContainerGrant {
            resource: entry.resource.clone(),
            pod: entry.pod.clone(),
            container: entry.container.clone(),
            entries: entry.to_answer().cloned().collect(),
            shares,
        };
        self.context.answerer.answer(&grant).map_err(|error| {
            if let Some(blame) = error.blame.clone() {
                self.report(ServeOutcome::Failed { blame, why: error.why.as_str().into() });
            }
            AllocateRefusal::of(AllocateRule::Answer, &entry.pod, &entry.container, &entry.resource, error)
        })
    }

    /// The next outcome says as much where too many wait.
    pub fn report(&self, outcome: ServeOutcome) {
        let _ = self.context.outcomes.try_send(outcome);
    }

    fn unwritten(key: &EntryKey, error: &std::io::Error) -> AllocateRefusal {
        let why = format!(
            "container {}: the grant could not be written to the ledger ({error}); free space in --state-dir and re-create the pod",
            key.container
        );
        AllocateRefusal::without_pod(AllocateRule::Ledger, &key.resource, why)
    }

    /// The kubelet has restarted: it admits its pods again. Known to every call that begins after this, whatever is being
    /// served now.
    pub fn kubelet_restarted(&self) {
        self.kubelet_starts.fetch_add(1, Ordering::SeqCst);
    }

    /// Brings the marks of admissions up to the kubelet's last start.
    pub(super) fn reconcile_restarts(&self, state: &mut HandoffState) {
        let starts = self.kubelet_starts.load(Ordering::SeqCst);
        if std::mem::replace(&mut state.kubelet_start, starts) != starts {
            state.admits_again();
        }
    }
}

impl DeviceCalls for HandoffService {
    fn allocate<'a>(
        &'a self,
        resource: &'a str,
        request: AllocateRequest,
    ) -> BoxFuture<'a, Result<AllocateResponse, Status>> {
        Box::pin(self.allocate(resource, request))
    }

    fn preferred<'a>(
        &'a self,
        resource: &'a str,
        request: PreferredAllocationRequest,
    ) -> BoxFuture<'a, PreferredAllocationResponse> {
        Box::pin(self.prefer(resource, request))
    }

    fn pre_start<'a>(
        &'a self,
        resource: &'a str,
        request: PreStartContainerRequest,
    ) -> BoxFuture<'a, Result<(), Status>> {
        Box::pin(self.verify_start(resource, request))
    }
}

fn status(refusal: &AllocateRefusal) -> Status {
    let code = match refusal.rule.code() {
        RefusalCode::InvalidArgument => tonic::Code::InvalidArgument,
        RefusalCode::NotFound => tonic::Code::NotFound,
        RefusalCode::FailedPrecondition => tonic::Code::FailedPrecondition,
        RefusalCode::Aborted => tonic::Code::Aborted,
        RefusalCode::ResourceExhausted => tonic::Code::ResourceExhausted,
        RefusalCode::Unavailable => tonic::Code::Unavailable,
        RefusalCode::DeadlineExceeded => tonic::Code::DeadlineExceeded,
        RefusalCode::Internal => tonic::Code::Internal,
    };
    Status::new(code, refusal.text.clone())
}

/// Receives what was answered, and does what need not come before the answer: the log line, counters, events, waking the unlocker,
/// announcing the new ledger. The kubelet admits the node's pods one at a time and waits for the answer.
pub(super) struct FollowUp {
    api: Arc<dyn HandoffApi>,
    metrics: HandoffMetrics,
    /// Something was served or refused: the lock may have to go.
    lock_matters: Notify,
    /// Counts changes of the ledger.
    changes: watch::Sender<u64>,
}

/// A call that was answered with devices.
pub(super) struct ServedCall {
    /// The log line's verb.
    pub what: &'static str,
    /// The grant.
    pub entry: Option<Shared<LedgerEntry>>,
    /// How the caller was identified.
    pub how: &'static str,
    /// The kubelet chose other devices.
    pub mismatch: bool,
    /// Events to write.
    pub notices: Vec<PodNotice>,
    /// Entries of the ledger now.
    pub entries: usize,
}

impl FollowUp {
    pub fn new(api: Arc<dyn HandoffApi>, metrics: HandoffMetrics) -> Self {
        Self { api, metrics, lock_matters: Notify::new(), changes: watch::Sender::new(0) }
    }

    /// The ledger is another one now.
    pub fn ledger_changed(&self) {
        self.changes.send_modify(|version| *version += 1);
    }

    /// The lock may have to go.
    pub fn lock_matters(&self) {
        self.lock_matters.notify_one();
    }

    /// Waits until the lock may have to go.
    pub async fn until_lock_matters(&self) {
        self.lock_matters.notified().await;
    }

    /// Does the rest once the answer that is being returned has been written to the kubelet's socket.
    pub fn spawn(self: &Arc<Self>, served: ServedCall) {
        let this = self.clone();
        vital::spawn("what follows an answer", async move {
            // Behind everything that is ready to run, the connection with the answer among it.
            tokio::task::yield_now().await;
            this.perform(served);
        });
    }

    fn perform(&self, served: ServedCall) {
        // The lock first: the next pod of the node waits for it.
        self.lock_matters();
        self.ledger_changed();
        self.metrics.ledger_entries.set(served.entries as i64);
        self.metrics.identified.get_or_create(&[("reason", served.how)]).inc();
        if served.mismatch {
            self.metrics.id_mismatches.inc();
        }
        served.notices.into_iter().for_each(|notice| self.api.report(notice));
        if let Some(entry) = &served.entry {
            log(served.what, entry, served.how);
        }
    }
}

/// One line for each grant.
fn log(what: &str, entry: &LedgerEntry, how: &'static str) {
    let devices: Vec<&str> = entry.devices().map(DeviceId::as_str).collect();
    let LedgerEntry { pod, container, resource, .. } = entry;
    tracing::info!(pod = %pod.key, uid = %pod.uid, container = &**container, resource = &**resource, devices = devices.join(","), how, "{what}");
}

#[cfg(test)]
mod tests;

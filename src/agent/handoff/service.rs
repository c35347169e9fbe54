//! The service behind the kubelet's calls: one at a time, within a budget, in the order that `decide::node` states.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwap;
use futures::future::BoxFuture;
use prost::Message;
use tokio::sync::{Mutex, Notify, mpsc, watch};
use tonic::Status;

use super::api::{HandoffApi, HandoffApiError};
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
use baton_decide::handoff::{
    AllocatePolicy, AllocateRefusal, AllocateRule, Ledger, LedgerEntry, LiveReads, NodeInventory, RefusalCode,
};
use baton_decide::health::ServeOutcome;
use baton_decide::node::{
    Allocating, BuildAnswer, CallAnswer, CallEffect, CallEvent, CallReport, Facts, HandOff, ReadFailure, ServedCall,
    ServedLock, Time,
};
use baton_runtime::{clock, vital};

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
    /// What happened since the last call began.
    events: std::sync::Mutex<Vec<CallEvent>>,
    /// What follows from answers.
    pub(super) after: Arc<FollowUp>,
    /// Pods that run without having been served.
    pub(super) unserved: ArcSwap<BTreeSet<PodUid>>,
    /// `None` until the unlocker has looked at the lock.
    pub(super) unreleased: watch::Sender<Option<ServedLock>>,
}

/// What is remembered from one call of the kubelet to the next, and the file that the ledger of it goes to.
pub(super) struct HandoffState {
    pub hand_off: HandOff,
    pub file: LedgerFile,
}

impl HandoffService {
    /// A service that serves nothing until [`Self::open`] has given it a ledger.
    pub fn new(settings: HandoffSettings, context: HandoffContext) -> Arc<Self> {
        let after = Arc::new(FollowUp::new(context.api.clone(), context.metrics.clone(), context.outcomes.clone()));
        Arc::new(Self {
            settings,
            context,
            state: Mutex::new(None),
            ready: watch::Sender::new(false),
            call_waits: Notify::new(),
            events: std::sync::Mutex::default(),
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
        state.as_ref().map(|state| state.hand_off.ledger().stored().values().cloned().collect()).unwrap_or_default()
    }

    /// What was made for containers that hold nothing any more goes. Called under the lock of the state: no answer is being built.
    pub(super) fn retain_answers(&self, ledger: &Ledger) {
        let holds =
            |uid: &str, container: &str| ledger.of_pod(&PodUid::new(uid)).any(|entry| &*entry.container == container);
        self.context.answerer.retain(&holds);
    }

    /// Starts serving with this ledger.
    pub(super) async fn begin(&self, ledger: Ledger, file: LedgerFile) {
        self.context.metrics.ledger_entries.set(ledger.len() as i64);
        self.retain_answers(&ledger);
        let state = HandoffState { hand_off: HandOff::begin(ledger), file };
        *self.state.lock().await = Some(state);
        self.ready.send_replace(true);
        self.after.ledger_changed();
        self.after.lock_matters();
    }

    /// Serves one Allocate call on `resource`'s socket. An error is a refusal; its text ends in the pod's status.
    pub async fn allocate(&self, resource: &str, request: AllocateRequest) -> Result<AllocateResponse, Status> {
        let began = clock::mono();
        let time = Time::new(began, self.settings.budget);
        let answered = tokio::time::timeout(self.settings.budget, self.allocate_before(resource, request, time)).await;
        let answered = answered.unwrap_or_else(|_| {
            self.event(CallEvent::Lapsed(clock::mono()));
            Err(time.too_late(resource))
        });
        let seconds = clock::mono().saturating_sub(began).as_secs_f64();
        let result = match &answered {
            Ok((_, false)) => "served",
            Ok((_, true)) => "repeated",
            Err(refusal) => refusal.rule.word(),
        };
        self.context.metrics.count_call(resource, result, seconds);
        match answered {
            Ok((answer, _)) => Ok(AllocateResponse { container_responses: vec![answer] }),
            Err(refusal) => {
                if refusal.rule == AllocateRule::IdMismatch {
                    self.context.metrics.id_mismatches.inc();
                }
                tracing::warn!(resource, rule = refusal.rule.word(), text = refusal.text, "Allocate refused");
                Err(status(&refusal))
            }
        }
    }

    /// The answer, and whether it was given before.
    async fn allocate_before(
        &self,
        resource: &str,
        request: AllocateRequest,
        time: Time,
    ) -> Result<(ContainerAllocateResponse, bool), AllocateRefusal> {
        let mut containers = request.container_requests;
        let ids = match containers.as_mut_slice() {
            [one] if !one.devices_ids.is_empty() => std::mem::take(&mut one.devices_ids),
            other => {
                let why = format!("expected one container with at least one device id, got {} containers", other.len());
                return Err(AllocateRefusal::without_pod(AllocateRule::Malformed, resource, why));
            }
        };
        self.is_ready_before(resource, time.deadline).await?;
        let mut guard = self.state.lock().await;
        let Some(state) = guard.as_mut() else {
            return Err(AllocateRefusal::without_pod(
                AllocateRule::NotServing,
                resource,
                "the ledger is not known yet",
            ));
        };
        self.deliver_events(state);
        let mut call = Allocating::new(resource, ids, time);
        let mut effects = self.with_facts(|facts| call.begin(&mut state.hand_off, facts)).into_iter();
        let mut asks = Asks { call: "Allocate", deadline: time.deadline };
        loop {
            let report = match effects.next() {
                Some(CallEffect::Build(grant)) => Some(CallReport::Built(self.build(*grant))),
                Some(CallEffect::Write) => {
                    let written = state.file.save(state.hand_off.ledger());
                    Some(CallReport::Written(written.map_err(|error| error.to_string())))
                }
                Some(CallEffect::Answer(answer)) => {
                    self.after.spawn(effects);
                    let CallAnswer { encoded, again } = answer?;
                    return match ContainerAllocateResponse::decode(&*encoded) {
                        Ok(answer) => Ok((answer, again)),
                        Err(error) => Err(AllocateRefusal::without_pod(AllocateRule::Answer, resource, error)),
                    };
                }
                Some(effect) => self.perform(effect, &mut asks).await,
                None => return Err(time.too_late(resource)),
            };
            if let Some(report) = report {
                effects = self.with_facts(|facts| call.report(report, &mut state.hand_off, facts)).into_iter();
            }
        }
    }

    /// Performs what every call may need; `None` where nothing is reported.
    pub(super) async fn perform(&self, effect: CallEffect, of: &mut Asks) -> Option<CallReport> {
        match effect {
            CallEffect::List { until } => Some(CallReport::Listed(self.context.pod_resources.list(until).await)),
            CallEffect::Await { since, until } => {
                let began = clock::mono();
                let news = self.context.view.change_before(since, until).await.is_some();
                let waited = clock::mono().saturating_sub(began);
                self.context.metrics.watch_wait_seconds.observe(waited.as_secs_f64());
                Some(CallReport::Waited { news })
            }
            CallEffect::Read(wanted) => Some(CallReport::Read(self.read_live(&wanted, of).await)),
            CallEffect::Learned => {
                tracing::info!("devices in use were learned from PodResources");
                None
            }
            effect => {
                self.after.perform(effect);
                None
            }
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

    /// What happens beside calls: known to every call that begins after this, whatever is being served now.
    fn event(&self, event: CallEvent) {
        self.events.lock().unwrap_or_else(PoisonError::into_inner).push(event);
    }

    /// The kubelet has taken a registration.
    pub fn registered(&self) {
        self.event(CallEvent::Registered(clock::wall()));
    }

    /// A registration was lost: the kubelet may have started again, and then admits its pods again.
    pub fn registration_lost(&self) {
        self.event(CallEvent::KubeletStarted);
    }

    /// Before a call begins.
    pub(super) fn deliver_events(&self, state: &mut HandoffState) {
        let events = std::mem::take(&mut *self.events.lock().unwrap_or_else(PoisonError::into_inner));
        events.into_iter().for_each(|event| state.hand_off.event(event));
    }

    /// Pods that run although no call was made for them, as the last comparison with the kubelet has proven.
    pub fn unserved(&self) -> Arc<BTreeSet<PodUid>> {
        self.unserved.load_full()
    }

    /// Announces a lock that stays although its holder was served; `None` until the lock was looked at.
    pub fn unreleased(&self) -> watch::Receiver<Option<ServedLock>> {
        self.unreleased.subscribe()
    }

    /// Lends everything that is known now; for a moment only.
    pub(crate) fn with_facts<T>(&self, look: impl FnOnce(&Facts<'_>) -> T) -> T {
        let version = self.context.view.version();
        let inventory = self.context.inventory.load();
        let seen = self.context.view.seen();
        let now = clock::now();
        look(&Facts {
            node: &self.settings.node,
            policy: &self.settings.policy,
            seen: &seen,
            version,
            inventory: &inventory,
            mono: now.mono,
            wall: now.wall,
        })
    }

    async fn read_live(&self, wanted: &LiveReads, of: &Asks) -> Result<(), ReadFailure> {
        let api = &self.context.api;
        let count = wanted.pods.len() as u64 + u64::from(wanted.node);
        self.context.metrics.live_reads.get_or_create(&[("call", of.call)]).inc_by(count);
        let pods = futures::future::join_all(wanted.pods.iter().map(|key| api.pod(key)));
        let lock = async { if wanted.node { Some(api.lock().await) } else { None } };
        let left = of.deadline.saturating_sub(clock::mono());
        let Ok((pods, lock)) = tokio::time::timeout(left, futures::future::join(pods, lock)).await else {
            return Err(ReadFailure::OutOfTime);
        };
        let unavailable = |error: HandoffApiError| ReadFailure::Unavailable(error.to_string());
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

    /// The stored answer, where there is one that can be read; else it is built.
    fn build(&self, grant: BuildAnswer) -> Result<Vec<u8>, String> {
        let BuildAnswer { entry, shares } = grant;
        if let Some(stored) = &entry.answer
            && ContainerAllocateResponse::decode(&**stored).is_ok()
        {
            return Ok(stored.clone());
        }
        if entry.served.is_empty() {
            // A name that only accompanies the delivering one. An empty list would fail the pod; an empty answer does not.
            return Ok(Vec::new());
        }
        let entries = entry.to_answer().cloned().collect();
        let LedgerEntry { resource, pod, container, .. } = entry;
        let answer = self.context.answerer.answer(&ContainerGrant { resource, pod, container, entries, shares });
        answer.map(|answer| answer.encode_to_vec()).map_err(|error| {
            if let Some(blame) = error.blame.clone() {
                self.report(ServeOutcome::Failed { blame, why: error.why.as_str().into() });
            }
            error.to_string()
        })
    }

    /// Says what became of a pod here.
    pub fn report(&self, outcome: ServeOutcome) {
        self.after.report(outcome);
    }
}

/// How a call asks.
pub(super) struct Asks {
    /// Its name, for counters.
    pub call: &'static str,
    /// Until when it must be decided, monotonic.
    pub deadline: Duration,
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

/// Does what need not come before an answer: the log line, counters, events, waking the unlocker, announcing the new ledger. The kubelet
/// admits the node's pods one at a time and waits for the answer.
pub(super) struct FollowUp {
    api: Arc<dyn HandoffApi>,
    metrics: HandoffMetrics,
    outcomes: mpsc::Sender<ServeOutcome>,
    /// Something was served or refused: the lock may have to go.
    lock_matters: Notify,
    /// Counts changes of the ledger.
    changes: watch::Sender<u64>,
}

impl FollowUp {
    pub fn new(api: Arc<dyn HandoffApi>, metrics: HandoffMetrics, outcomes: mpsc::Sender<ServeOutcome>) -> Self {
        Self { api, metrics, outcomes, lock_matters: Notify::new(), changes: watch::Sender::new(0) }
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

    /// The next outcome says as much where too many wait.
    fn report(&self, outcome: ServeOutcome) {
        let _ = self.outcomes.try_send(outcome);
    }

    /// Does the rest once the answer that is being returned has been written to the kubelet's socket.
    pub fn spawn(self: &Arc<Self>, effects: impl Iterator<Item = CallEffect> + Send + 'static) {
        let this = self.clone();
        vital::spawn("what follows an answer", async move {
            // Behind everything that is ready to run, the connection with the answer among it.
            tokio::task::yield_now().await;
            effects.for_each(|effect| this.perform(effect));
        });
    }

    fn perform(&self, effect: CallEffect) {
        match effect {
            CallEffect::Unlock => self.lock_matters(),
            CallEffect::Publish => self.ledger_changed(),
            CallEffect::Outcome(outcome) => self.report(outcome),
            CallEffect::Notice(notice) => self.api.report(notice),
            CallEffect::Log(served) => self.log(&served),
            CallEffect::Prefer(_) | CallEffect::Learned => {}
            // The call's own: each has a report, which nothing awaits after the answer.
            CallEffect::List { .. }
            | CallEffect::Await { .. }
            | CallEffect::Read(_)
            | CallEffect::Build(_)
            | CallEffect::Write
            | CallEffect::Answer(_) => tracing::error!(?effect, "a call asks for this after its answer: not done"),
        }
    }

    /// Counts a grant, and writes its line.
    fn log(&self, served: &ServedCall) {
        let ServedCall { entry, again, how, mismatch, entries } = served;
        let how = how.word();
        self.metrics.ledger_entries.set(*entries as i64);
        self.metrics.identified.get_or_create(&[("reason", how)]).inc();
        if *mismatch {
            self.metrics.id_mismatches.inc();
        }
        let what = if *again { "served again" } else { "served" };
        let devices: Vec<&str> = entry.devices().map(DeviceId::as_str).collect();
        let LedgerEntry { pod, container, resource, .. } = &**entry;
        tracing::info!(pod = %pod.key, uid = %pod.uid, container = &**container, resource = &**resource, devices = devices.join(","), how, "{what}");
    }
}

#[cfg(test)]
mod tests;

//! What follows an answer happens beside it; the ledger's file comes before it.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Mutex;

use futures::future::BoxFuture;
use tokio::net::UnixListener;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::service::Routes;
use tonic::transport::Server;

use super::*;
use crate::answer::AnswerError;
use crate::handoff::ledger_file::{self, LoadedLedger, StateDir};
use baton_cluster::node_lock::LockWrite;
use baton_contract::deviceplugin::ContainerAllocateRequest;
use baton_contract::{
    ContainerDevices, ContainerRequest, DeviceEntry, DeviceType, Holder, LockFormat, LockRead, LockValue, PodKey,
    PodRef, Quantity, key, print_bind_timestamp,
};
use baton_decide::handoff::{CallState, ContainerSlot, IdentifiedBy, InventoryDevice, PodNotice};
use baton_decide::pod::{AssignmentText, ContainerKind, HandoffPod, Phase, PodContainer};
use baton_runtime::metrics::MetricSet;

const NODE: &str = "node-a";
const GPU: &str = "GPU-0";

/// Records events; nothing is read from it.
#[derive(Default)]
struct Ear(Mutex<Vec<&'static str>>);

impl HandoffApi for Ear {
    fn pod<'a>(&'a self, _: &'a PodKey) -> BoxFuture<'a, Result<Option<HandoffPod>, HandoffApiError>> {
        unreachable!("nothing is read after an answer")
    }
    fn lock(&self) -> BoxFuture<'_, Result<LockRead, HandoffApiError>> {
        unreachable!("nothing is read after an answer")
    }
    fn release<'a>(&'a self, _: &'a str) -> BoxFuture<'a, Result<LockWrite, HandoffApiError>> {
        unreachable!("the unlocker is only woken up")
    }
    fn report(&self, notice: PodNotice) {
        self.0.lock().unwrap().push(notice.reason.word());
    }
}

#[tokio::test]
async fn nothing_that_follows_an_answer_comes_before_it_is_written() {
    let ear = Arc::new(Ear::default());
    let after =
        Arc::new(FollowUp::new(ear.clone(), HandoffMetrics::new(&mut MetricSet::new("baton")), mpsc::channel(1).0));
    let mut changes = after.changes.subscribe();
    let reason = baton_contract::EventReason::DeviceIdMismatch;
    let pod = PodRef::new("default", "p", "u");
    let notice = PodNotice::new(pod.clone(), reason, "other ids".into());
    let slot = ContainerSlot { order: 0, init: false, sidecar: false };
    let entry = LedgerEntry::new(&pod, "main", "nvidia.com/gpu", slot, vec![], vec![], CallState::Answered).into();
    let served = ServedCall { entry, again: false, how: IdentifiedBy::Lock, mismatch: true, entries: 3 };
    let effects =
        [CallEffect::Unlock, CallEffect::Publish, CallEffect::Log(Box::new(served)), CallEffect::Notice(notice)];
    after.spawn(effects.into_iter());
    // The connection: ready to run when the call returns, and it has to wake up another task to write.
    let (seen, heard) = (changes.clone(), ear.clone());
    let connection = tokio::spawn(async move {
        let writer = tokio::spawn(async move { (*seen.borrow(), heard.0.lock().unwrap().len()) });
        writer.await.unwrap()
    });
    assert_eq!(connection.await.unwrap(), (0, 0));
    changes.changed().await.unwrap();
    after.until_lock_matters().await;
    assert_eq!(*ear.0.lock().unwrap(), ["DeviceIdMismatch"]);
    assert_eq!((after.metrics.id_mismatches.get(), after.metrics.ledger_entries.get()), (1, 3));
}

/// A cluster of one pod that holds the lock of its node, set at this time.
struct OnePod(HandoffPod, jiff::Timestamp);

impl OnePod {
    fn new() -> Self {
        let quantity = |name: &str, amount| (name.to_owned(), amount);
        let resources = BTreeMap::from([
            quantity(key::GPU_CORE, Quantity::units(100)),
            quantity(key::GPU_MEMORY_RATIO, Quantity::units(100)),
            quantity(key::GPU_MEMORY, Quantity::bytes(80 << 30)),
        ]);
        let entry = DeviceEntry { minor: 0, id: DeviceId::parse(GPU).unwrap(), resources, extension: None };
        let devices = BTreeMap::from([(DeviceType::Gpu, vec![entry])]);
        let split = ContainerDevices { node: NODE.into(), containers: BTreeMap::from([("main".into(), devices)]) };
        let main = PodContainer {
            name: "main".into(),
            kind: ContainerKind::App,
            request: ContainerRequest::judge(Some((key::NVIDIA_GPU, Quantity::units(1)))),
            running: false,
            started: false,
            lacks_devices: false,
            ended: None,
            dra_backed: Vec::new(),
        };
        let bound = clock::wall();
        let pod = HandoffPod {
            pod: PodRef::new("default", "a", "a-uid"),
            node: Some(NODE.into()),
            scheduler_name: "baton-scheduler".into(),
            phase: Phase::Pending,
            deleting: None,
            grace_seconds: 30,
            scheduled_condition: true,
            resizing: false,
            created: jiff::Timestamp::UNIX_EPOCH,
            containers: vec![main].into(),
            assignment: AssignmentText {
                container_devices: Some(split.print().into()),
                bind_timestamp: Some(print_bind_timestamp(bound).into()),
                ..AssignmentText::default()
            },
        };
        Self(pod, bound)
    }
}

impl HandoffApi for OnePod {
    fn pod<'a>(&'a self, _: &'a PodKey) -> BoxFuture<'a, Result<Option<HandoffPod>, HandoffApiError>> {
        Box::pin(async { Ok(Some(self.0.clone())) })
    }
    fn lock(&self) -> BoxFuture<'_, Result<LockRead, HandoffApiError>> {
        let holder = Holder { pod: self.0.pod.key.clone(), uid: Some(self.0.pod.uid.clone()) };
        let value = LockValue { time: self.1, holder: Some(holder) };
        Box::pin(async move { Ok(LockRead::parse(Some(&value.print(LockFormat::Uid)))) })
    }
    fn release<'a>(&'a self, _: &'a str) -> BoxFuture<'a, Result<LockWrite, HandoffApiError>> {
        unreachable!("no unlocker runs")
    }
    fn report(&self, _: PodNotice) {}
}

struct EmptyAnswers;

impl Answerer for EmptyAnswers {
    fn answer(&self, _: &ContainerGrant) -> Result<ContainerAllocateResponse, AnswerError> {
        Ok(ContainerAllocateResponse::default())
    }
}

/// A service that knows the pod and its GPU, on a kubelet without PodResources; and what becomes of pods.
fn service(dir: &Path) -> (Arc<HandoffService>, mpsc::Receiver<ServeOutcome>) {
    let socket = dir.join("pod-resources.sock");
    let listener = UnixListenerStream::new(UnixListener::bind(&socket).unwrap());
    tokio::spawn(Server::builder().add_routes(Routes::default()).serve_with_incoming(listener));
    let view = NodeView::new();
    {
        let mut seen = view.seen();
        (seen.pods_synced, seen.node_synced) = (true, true);
    }
    let device = InventoryDevice {
        kind: DeviceType::Gpu,
        minor: 0,
        healthy: true,
        reason: None,
        memory_bytes: Some(80 << 30),
        parent: None,
        mig_profile: None,
    };
    let inventory = NodeInventory {
        devices: BTreeMap::from([(DeviceId::parse(GPU).unwrap(), device)]),
        registered: BTreeSet::from([key::NVIDIA_GPU.into()]),
        ..NodeInventory::default()
    };
    let (outcomes, became) = mpsc::channel(8);
    let context = HandoffContext {
        view: Arc::new(view),
        api: Arc::new(OnePod::new()),
        inventory: Arc::new(ArcSwap::from_pointee(inventory)),
        answerer: Arc::new(EmptyAnswers),
        pod_resources: Arc::new(PodResourcesClient::new(&socket)),
        cgroups: Arc::new(Cgroups::new(Vec::new(), dir)),
        metrics: HandoffMetrics::new(&mut MetricSet::new("baton")),
        outcomes,
    };
    let settings = HandoffSettings {
        node: NODE.into(),
        policy: AllocatePolicy::default(),
        budget: Duration::from_secs(20),
        kubelet_dir: dir.to_owned(),
        verify_before_start: false,
    };
    (HandoffService::new(settings, context), became)
}

#[tokio::test]
async fn the_file_has_a_grant_before_its_answer_and_without_the_file_none_is_made() {
    for lost in [None, Some("the directory is gone"), Some("a file is in its place")] {
        let dir = tempfile::tempdir().unwrap();
        let state = dir.path().join("state");
        let (service, mut became) = service(dir.path());
        let file = LedgerFile::new(StateDir::try_acquire(&state).unwrap().unwrap(), "boot");
        service.begin(Ledger::default(), file).await;
        if let Some(what) = lost {
            std::fs::remove_dir_all(&state).unwrap();
            if what.contains("file") {
                std::fs::write(&state, "").unwrap();
            }
        }
        let one = ContainerAllocateRequest { devices_ids: vec![GPU.to_owned()] };
        let answer = service.allocate(key::NVIDIA_GPU, AllocateRequest { container_requests: vec![one] }).await;
        let written = match ledger_file::load(&state, "boot") {
            LoadedLedger::Ledger(ledger) => ledger.len(),
            LoadedLedger::Lost(_) => 0,
        };
        let granted = service.ledger().await.len();
        let Some(what) = lost else {
            assert_eq!((answer.map(|_| ()).map_err(|status| status.to_string()), written, granted), (Ok(()), 1, 1));
            continue;
        };
        let refusal = answer.unwrap_err();
        assert!(refusal.message().contains("could not be written to the ledger"), "{what}: {refusal}");
        assert_eq!((written, granted), (0, 0), "{what}");
        assert!(matches!(became.try_recv(), Ok(ServeOutcome::Failed { .. })), "{what}");
    }
}

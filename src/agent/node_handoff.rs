//! The hand-off as the rest of the daemon sees it, and as it ships: its service with the node's watches, its unlocker and its
//! housekeeping.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwap;
use futures::future::BoxFuture;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

use super::answer::Answerer;
use super::cgroups::Cgroups;
use super::handoff::{
    HandoffApi, HandoffContext, HandoffService, HandoffSettings, KubeHandoffApi, NodeView, PodResourcesClient,
    StateDir, housekeeping, unlocker,
};
use super::kubelet::DeviceCalls;
use super::metrics::{AgentMetrics, PodShare};
use super::offer::InUse;
use super::options::AgentOptions;
use baton_cluster::notice::Notices;
use baton_cluster::requests::Resumed;
use baton_contract::inventory::{DeviceHeld, HeldBy};
use baton_contract::{DeviceEntry, DeviceId, DeviceType, Identity, PodRef, Shared, key};
use baton_decide::handoff::{
    AllocatePolicy, DevicesBehind, LedgerEntry, NodeInventory, PodListing, devices_behind, functions_in_use,
};
use baton_decide::health::ServeOutcome;
use baton_decide::node::publishing::{LEAVING_AGAIN, PAUSE};
use baton_decide::node::{Facts, HandoffStatus, NotKnown, Starts};
use baton_runtime::clock;

/// What pods hold, and what they may be given.
pub trait HeldDevices: Send + Sync {
    /// The inventory is another one now.
    fn set_inventory(&self, inventory: NodeInventory);
    /// Devices that pods hold, by the name they were asked for under.
    fn in_use(&self) -> InUse;
    /// Which of them is behind each id of the kubelet's.
    fn behind(&self) -> DevicesBehind;
    /// Virtual functions that pods hold: they have no ids of their own at the kubelet.
    fn functions_in_use(&self) -> BTreeSet<DeviceId>;
    /// Devices that pods hold without an assignment.
    fn held(&self) -> Vec<DeviceHeld>;
    /// Which container has how much of which GPU or MIG device.
    fn pod_shares(&self) -> Vec<PodShare>;
    /// Pods that hold a device or a part of it.
    fn holders(&self, device: &DeviceId) -> BTreeSet<PodRef>;
}

/// Identifies callers, serves them, remembers what it served, and releases the node lock.
pub trait Handoff: HeldDevices {
    /// Answers the kubelet's calls.
    fn calls(self: Arc<Self>) -> Arc<dyn DeviceCalls>;
    /// Changes when what is handed out did; 0 while that is not known.
    fn handed_out(&self) -> watch::Receiver<u64>;
    /// The kubelet has taken a registration.
    fn registered(&self);
    /// A registration was lost: the kubelet may have started again.
    fn registration_lost(&self);
    /// How surely callers are identified.
    fn identity(&self) -> watch::Receiver<Identity>;
    /// What schedulers have to know of this node's pods; `None` until ledger, pods and lock are known.
    fn status(&self) -> watch::Receiver<Option<HandoffStatus>>;
    /// What was served, for people and for comparisons.
    fn ledger(&self) -> Vec<LedgerLine>;
    /// What the kubelet lists, for the same; `None` where it does not answer.
    fn listed(&self) -> BoxFuture<'static, Option<Vec<ListedLine>>>;
    /// Makes the ledger known, watches pods, settles and verifies, releases locks; until `stop`.
    fn run(self: Arc<Self>, stop: CancellationToken) -> BoxFuture<'static, ()>;
}

/// One entry of the ledger.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LedgerLine {
    /// Pod namespace.
    pub namespace: Box<str>,
    /// Pod name.
    pub pod: Box<str>,
    /// Pod uid.
    pub uid: Box<str>,
    /// Container.
    pub container: Box<str>,
    /// Resource name.
    pub resource: Box<str>,
    /// It is a plain init container, which the kubelet does not list.
    pub init: bool,
    /// Ids that the kubelet named.
    pub ids: Vec<Box<str>>,
    /// Devices that were served, by type.
    pub served: BTreeMap<DeviceType, Vec<DeviceId>>,
    /// The same devices with how much of each.
    pub devices: Vec<DeviceEntry>,
}

/// What the kubelet says that a container has.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ListedLine {
    /// Pod namespace.
    pub namespace: Box<str>,
    /// Pod name.
    pub pod: Box<str>,
    /// Container.
    pub container: Box<str>,
    /// Resource name.
    pub resource: Box<str>,
    /// The kubelet's ids.
    pub ids: Vec<Box<str>>,
}

/// What a hand-off is opened with.
pub struct OpeningContext {
    /// Configuration.
    pub options: Arc<AgentOptions>,
    /// The locked state directory.
    pub state: StateDir,
    /// What is in the machine, by the first scan.
    pub inventory: NodeInventory,
    /// The API server.
    pub client: kube::Client,
    /// Announces its watches that resume.
    pub resumed: Resumed,
    /// Builds answers.
    pub answerer: Arc<dyn Answerer>,
    /// Counters.
    pub metrics: Arc<AgentMetrics>,
    /// Events.
    pub notices: Notices,
    /// The kernel's boot id.
    pub boot_id: Option<String>,
    /// When the machine has started.
    pub booted: Option<Timestamp>,
    /// Receives what became of pods here.
    pub outcomes: mpsc::Sender<ServeOutcome>,
}

/// Makes the hand-off once the state directory is locked and the machine was looked at.
pub type OpenHandoff = Box<dyn FnOnce(OpeningContext) -> Arc<dyn Handoff> + Send>;

/// How often an absent PodResources is looked for.
const LOOK_AGAIN: Duration = Duration::from_secs(2);
/// The kubelet is asked for people once in this time, because calls in hand ask it too and it answers a limited number.
const LISTED_AGAIN: Duration = Duration::from_secs(1);
/// Time for its answer.
const LISTED_BUDGET: Duration = Duration::from_secs(2);

/// When the kubelet was asked, and its answer.
type KubeletListing = (Duration, Option<Vec<ListedLine>>);

/// The service and everything that runs beside it.
pub struct NodeHandoff {
    options: Arc<AgentOptions>,
    client: kube::Client,
    resumed: Resumed,
    service: Arc<HandoffService>,
    view: Arc<NodeView>,
    api: Arc<dyn HandoffApi>,
    inventory: Arc<ArcSwap<NodeInventory>>,
    pod_resources: Arc<PodResourcesClient>,
    /// When the kubelet was asked last for people, and what it said.
    listed: Arc<tokio::sync::Mutex<Option<KubeletListing>>>,
    /// The ledger as of its last change: readers of it never wait for a call in hand.
    entries: ArcSwap<Vec<Shared<LedgerEntry>>>,
    handed_out: watch::Sender<u64>,
    identity: watch::Sender<Identity>,
    status: watch::Sender<Option<HandoffStatus>>,
    /// Taken by the one run.
    opening: Mutex<Option<(StateDir, Box<str>)>>,
}

/// Builds it. Nothing runs before [`Handoff::run`].
pub fn open(opening: OpeningContext) -> Arc<dyn Handoff> {
    let OpeningContext { options, state, inventory, client, resumed, answerer, metrics, .. } = opening;
    let OpeningContext { notices, boot_id, booted, outcomes, .. } = opening;
    let view = Arc::new(NodeView::new().booted(booted));
    let api = KubeHandoffApi::new(client.clone(), &options.node_name, &options.node_lock_key, notices);
    let api: Arc<dyn HandoffApi> = Arc::new(api.booted(booted));
    let inventory = Arc::new(ArcSwap::from_pointee(inventory));
    let pod_resources = Arc::new(PodResourcesClient::new(&options.paths.pod_resources_socket));
    let settings = HandoffSettings {
        node: options.node_name.as_str().into(),
        policy: policy(&options),
        budget: options.timings.rpc_budget,
        kubelet_dir: options.paths.kubelet_dir.clone(),
        verify_before_start: options.verify_before_start,
    };
    let parts = HandoffContext {
        view: view.clone(),
        api: api.clone(),
        inventory: inventory.clone(),
        answerer,
        pod_resources: pod_resources.clone(),
        cgroups: Arc::new(cgroups(&options)),
        metrics: metrics.handoff(),
        outcomes,
    };
    Arc::new(NodeHandoff {
        service: HandoffService::new(settings, parts),
        options,
        client,
        resumed,
        view,
        api,
        inventory,
        pod_resources,
        listed: Arc::default(),
        entries: ArcSwap::default(),
        handed_out: watch::Sender::new(0),
        identity: watch::Sender::new(Identity::Lock),
        status: watch::Sender::new(None),
        opening: Mutex::new(Some((state, boot_id.unwrap_or_default().into()))),
    })
}

/// Where the manifests mount the host's cgroups.
const CGROUPS: &str = "/run/cgroup";

/// The cgroups of this node's pods.
pub fn cgroups(options: &AgentOptions) -> Cgroups {
    let roots = vec![CGROUPS.into(), options.paths.sysfs_root.join("fs/cgroup")];
    Cgroups::new(roots, &options.paths.proc_root)
}

fn policy(options: &AgentOptions) -> AllocatePolicy {
    AllocatePolicy {
        lock: options.node_lock,
        scheduler_names: options.scheduler_names.iter().map(|name| name.as_str().into()).collect(),
        unassigned: options.unassigned_pods,
        id_mismatch: options.id_mismatch,
    }
}

impl NodeHandoff {
    async fn open_ledger(&self) {
        let opening = self.opening.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some((state, boot_id)) = opening {
            self.service.open(state, &boot_id).await;
        }
    }

    /// Copies the ledger after each change, for readers that must not wait.
    async fn mirror(&self) {
        let mut changes = self.service.ledger_changes();
        loop {
            let version = *changes.borrow_and_update();
            if version > 0 {
                self.entries.store(Arc::new(self.service.ledger().await));
                self.handed_out.send_replace(version);
            }
            if changes.changed().await.is_err() {
                return;
            }
        }
    }

    /// Compares what was handed out with what the pods' annotations and the lock say, after each change.
    async fn watch_status(&self) {
        let (mut pods, mut handed_out) = (self.view.changes(), self.handed_out.subscribe());
        let mut unreleased = self.service.unreleased();
        let mut starts = Starts::default();
        let mut before = Err(NotKnown::Yet);
        loop {
            if *handed_out.borrow_and_update() > 0 && self.view.is_synced() {
                pods.mark_unchanged();
                let entries = self.entries.load();
                let served: BTreeSet<_> = entries.iter().map(|entry| &entry.pod.uid).collect();
                starts.look(&self.view.seen().pods, &served).into_iter().for_each(|news| self.service.report(news));
                let (lock, unserved) = (unreleased.borrow_and_update().clone(), self.service.unserved());
                let of = |facts: &Facts<'_>| HandoffStatus::of(entries.iter(), &unserved, lock.as_ref(), facts);
                let found = self.service.with_facts(of);
                if found != before {
                    match &found {
                        Ok(found) if found.exceptions.len() > found.leaving.len() => {
                            let pods = found.exceptions.len() - found.leaving.len();
                            tracing::warn!(pods, "pods hold other devices than their annotations say");
                        }
                        Err(NotKnown::Pod(pod)) => {
                            tracing::warn!(%pod, "nothing tells what the pod has: the node takes no pods with devices until it has ended");
                        }
                        _ => {}
                    }
                    self.status.send_replace(found.clone().ok());
                    before = found;
                }
            }
            // What comes in a burst is looked at once.
            tokio::time::sleep(PAUSE).await;
            let any_leaves = self.entries.load().iter().any(|entry| entry.leaving().is_some());
            tokio::select! {
                () = tokio::time::sleep(LEAVING_AGAIN), if any_leaves => {}
                _ = pods.changed() => {}
                _ = handed_out.changed() => {}
                _ = unreleased.changed() => {}
            }
        }
    }

    /// Callers are identified exactly where PodResources answers.
    async fn watch_identity(&self) {
        loop {
            // The comparison with the kubelet on the same tick, or the one before, has asked already.
            let recent = self.options.timings.heartbeat + LOOK_AGAIN;
            let identity = if self.pod_resources.is_available(recent).await { Identity::Exact } else { Identity::Lock };
            self.identity.send_if_modified(|now| std::mem::replace(now, identity) != identity);
            let again = if identity == Identity::Exact { Duration::MAX } else { LOOK_AGAIN };
            // On the tick that the Lease is renewed at.
            tokio::time::sleep(clock::until_tick(self.options.timings.heartbeat).min(again)).await;
        }
    }
}

impl Handoff for NodeHandoff {
    fn calls(self: Arc<Self>) -> Arc<dyn DeviceCalls> {
        self.service.clone()
    }

    fn handed_out(&self) -> watch::Receiver<u64> {
        self.handed_out.subscribe()
    }

    fn registered(&self) {
        self.service.registered();
    }

    fn registration_lost(&self) {
        self.service.registration_lost();
    }

    fn identity(&self) -> watch::Receiver<Identity> {
        self.identity.subscribe()
    }

    fn status(&self) -> watch::Receiver<Option<HandoffStatus>> {
        self.status.subscribe()
    }

    fn ledger(&self) -> Vec<LedgerLine> {
        self.entries.load().iter().map(|entry| line(entry)).collect()
    }

    fn listed(&self) -> BoxFuture<'static, Option<Vec<ListedLine>>> {
        let (client, asked) = (self.pod_resources.clone(), self.listed.clone());
        Box::pin(async move {
            let mut asked = asked.lock().await;
            let now = clock::mono();
            if let Some((at, lines)) = &*asked
                && now.saturating_sub(*at) < LISTED_AGAIN
            {
                return lines.clone();
            }
            let lines = client.list(now + LISTED_BUDGET).await.listing().map(listed);
            *asked = Some((clock::mono(), lines.clone()));
            lines
        })
    }

    fn run(self: Arc<Self>, stop: CancellationToken) -> BoxFuture<'static, ()> {
        Box::pin(async move {
            let (client, node, timings) = (&self.client, &self.options.node_name, self.options.timings);
            let ledger_then_mirror = async {
                tokio::join!(self.open_ledger(), self.mirror());
            };
            // None of these ends by itself; the first that does ends the daemon, aloud.
            tokio::select! {
                () = stop.cancelled() => {}
                () = ledger_then_mirror => tracing::error!("the ledger's mirror ended"),
                () = self.view.watch_pods(client.clone(), node, timings.watch_timeout, |notice| self.api.report(notice)) => {
                    tracing::error!("the watch of pods ended");
                }
                () = self.view.watch_node(client.clone(), node, &self.options.node_lock_key, timings.watch_timeout) => {
                    tracing::error!("the watch of the node ended");
                }
                () = self.view.follow_resumed(self.resumed.clone()) => tracing::error!("the watches are not followed any more"),
                () = unlocker::run(self.service.clone(), timings.unlock_retry) => tracing::error!("the unlocker ended"),
                () = housekeeping::run(self.service.clone(), timings.verify) => {
                    tracing::error!("the housekeeping ended");
                }
                () = self.watch_identity() => {}
                () = self.watch_status() => {}
            }
        })
    }
}

impl HeldDevices for NodeHandoff {
    fn set_inventory(&self, inventory: NodeInventory) {
        if **self.inventory.load() != inventory {
            self.inventory.store(Arc::new(inventory));
        }
    }

    fn in_use(&self) -> InUse {
        let mut in_use = InUse::new();
        for entry in self.entries.load().iter() {
            let held = in_use.entry(entry.resource.clone()).or_default();
            held.extend(entry.devices().cloned());
            // Units of one device lie side by side.
            let devices = entry.ids.chunk_by(|a, b| device_of(a) == device_of(b)).filter_map(<[_]>::first);
            held.extend(devices.filter_map(|id| DeviceId::of_kubelet_id(id).ok()));
        }
        in_use
    }

    fn behind(&self) -> DevicesBehind {
        devices_behind(self.entries.load().iter().map(|entry| &**entry))
    }

    fn functions_in_use(&self) -> BTreeSet<DeviceId> {
        functions_in_use(self.entries.load().iter().map(|entry| &**entry))
    }

    fn held(&self) -> Vec<DeviceHeld> {
        held(&self.entries.load(), &self.inventory.load())
    }

    fn pod_shares(&self) -> Vec<PodShare> {
        pod_shares(&self.entries.load())
    }

    fn holders(&self, device: &DeviceId) -> BTreeSet<PodRef> {
        let entries = self.entries.load();
        let held = entries.iter().filter(|entry| entry.devices().any(|held| held == device));
        held.map(|entry| entry.pod.clone()).collect()
    }
}

/// Several names of one container may name the same device: the largest part counts.
fn pod_shares(entries: &[Shared<LedgerEntry>]) -> Vec<PodShare> {
    let mut shares: BTreeMap<(&PodRef, &str, &str), i64> = BTreeMap::new();
    for entry in entries {
        for (_, device) in entry.served.iter().filter(|(kind, _)| *kind == DeviceType::Gpu) {
            let part = device.amount(key::GPU_CORE).max(device.amount(key::GPU_MEMORY_RATIO));
            let known = shares.entry((&entry.pod, &entry.container, device.id.as_str())).or_default();
            // An entry without a known amount (MIG) is the whole device.
            *known = (*known).max(if part > 0 { part } else { key::WHOLE });
        }
    }
    let share = |((pod, container, uuid), percent): ((&PodRef, &str, &str), i64)| PodShare {
        namespace: pod.key.namespace.clone(),
        pod: pod.key.name.clone(),
        container: container.into(),
        uuid: uuid.into(),
        share: percent as f64 / key::WHOLE as f64,
    };
    shares.into_iter().map(share).collect()
}

/// What pods hold without an assignment, by type and pod. The number of a NIC may be another one than when it was given: the Device
/// object has those of now. A device that has left has none: by its former number another one would count as held.
fn held(entries: &[Shared<LedgerEntry>], inventory: &NodeInventory) -> Vec<DeviceHeld> {
    let mut by_type: BTreeMap<DeviceType, BTreeMap<&PodRef, Vec<i32>>> = BTreeMap::new();
    for entry in entries.iter().filter(|entry| !entry.assigned) {
        for (kind, device) in &entry.served {
            let minors = by_type.entry(kind.clone()).or_default().entry(&entry.pod).or_default();
            minors.extend(inventory.devices.get(&device.id).map(|known| known.minor));
        }
    }
    let of_pod = |(pod, mut minors): (&PodRef, Vec<i32>)| {
        minors.sort_unstable();
        minors.dedup();
        HeldBy {
            name: pod.key.name.to_string(),
            namespace: pod.key.namespace.to_string(),
            uuid: pod.uid.to_string(),
            minors,
        }
    };
    by_type
        .into_iter()
        .map(|(kind, pods)| DeviceHeld { kind, entries: pods.into_iter().map(of_pod).collect() })
        .collect()
}

/// The device's part of a kubelet id.
fn device_of(id: &str) -> &str {
    id.split_once("::").map_or(id, |(device, _)| device)
}

fn line(entry: &LedgerEntry) -> LedgerLine {
    let mut served: BTreeMap<DeviceType, Vec<DeviceId>> = BTreeMap::new();
    for (kind, device) in &entry.served {
        served.entry(kind.clone()).or_default().push(device.id.clone());
    }
    LedgerLine {
        namespace: entry.pod.key.namespace.clone(),
        pod: entry.pod.key.name.clone(),
        uid: entry.pod.uid.as_str().into(),
        container: entry.container.clone(),
        resource: entry.resource.clone(),
        ids: entry.ids.clone(),
        served,
        init: entry.slot.init,
        devices: entry.served.iter().map(|(_, device)| device.clone()).collect(),
    }
}

fn listed(listing: &PodListing) -> Vec<ListedLine> {
    let mut lines = Vec::new();
    for pod in &listing.pods {
        for (container, resources) in &pod.containers {
            lines.extend(resources.iter().map(|(resource, ids)| ListedLine {
                namespace: pod.key.namespace.clone(),
                pod: pod.key.name.clone(),
                container: container.clone(),
                resource: resource.clone(),
                ids: ids.iter().cloned().collect(),
            }));
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use baton_decide::handoff::{CallState, ContainerSlot, InventoryDevice};

    #[test]
    fn what_a_pod_holds_is_published_under_the_number_that_it_has_now() {
        let id = DeviceId::parse("0000:3c:00.0").unwrap();
        let given = DeviceEntry { minor: 1, id: id.clone(), resources: BTreeMap::new(), extension: None };
        let entry = LedgerEntry {
            pod: PodRef::new("default", "p", "uid-p"),
            container: "main".into(),
            resource: key::RDMA.into(),
            slot: ContainerSlot { order: 0, init: false, sidecar: false },
            ids: Vec::new(),
            served: vec![(DeviceType::Rdma, given)],
            unnamed: BTreeSet::new(),
            answer: None,
            state: CallState::Listed,
            asked: 1,
            seq: 1,
            assigned: false,
            grace_seconds: 30,
        };
        let now = InventoryDevice {
            kind: DeviceType::Rdma,
            minor: 0,
            healthy: true,
            reason: None,
            memory_bytes: None,
            parent: None,
            mig_profile: None,
        };
        let inventory = NodeInventory { devices: [(id, now)].into(), ..NodeInventory::default() };
        let minors = |inventory: &NodeInventory| held(&[entry.clone().into()], inventory)[0].entries[0].minors.clone();
        assert_eq!((minors(&inventory), minors(&NodeInventory::default())), (vec![0], vec![]));
    }
}

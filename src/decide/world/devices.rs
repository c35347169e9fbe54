//! A node's devices: the inventory of its Device object and what of it pods hold.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::Timestamp;

use crate::devices::{
    AfterGrant, Assignment, Exclusive, Held, HeldAmounts, Labels, Layout, NodePool, PodDeviceRequest, PoolState,
    Portion, RequestProblem, Slot, Wishes, pick, score, together,
};
use crate::help::Help;
use crate::pod::HandoffPod;
use crate::shares::{ShareOffer, ShareRefusal};
use crate::text::Text;
use baton_contract::inventory::{Device, DeviceStatus};
use baton_contract::{Cordon, Cordons, DeviceId, DeviceType, GpuRequest, PodUid, ShareIsolation, Shared, key};

use super::device_state::DeviceState;
use super::holders::Holders;
use super::pod::{Place, Pod, PodFacts};

/// The devices of one node.
#[derive(Debug, Clone)]
pub struct Stock {
    /// Nothing taken.
    empty: NodePool,
    pool: NodePool,
    /// Those in force.
    cordons: Cordons,
    /// `status.allocations`: devices of pods without an assignment.
    published: Box<[PublishedDevices]>,
    /// The node daemon calls the node suspect.
    suspect: Option<Suspect>,
    /// How GPU shares are held to their limits.
    shares: ShareOffer,
    /// Types of which a bound pod holds devices that are not named yet.
    blocked: BTreeSet<DeviceType>,
}

/// What a node's devices come to, the unhealthy ones' too.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct DeviceTotals {
    /// Percent of GPU compute.
    pub gpu_percent: i64,
    /// Bytes of GPU memory; `i64::MAX` where the size of a GPU's memory is not known.
    pub gpu_memory: i64,
    /// Percent of NICs.
    pub nic_percent: i64,
    /// MIG devices by resource name.
    pub migs: BTreeMap<String, i64>,
}

/// Whole devices that the node says a pod holds.
#[derive(Debug, Clone, PartialEq, Eq)]
struct PublishedDevices {
    kind: DeviceType,
    uid: Box<str>,
    minors: Box<[i32]>,
}

/// A node's daemon says that its machine fails pods.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Suspect {
    /// Since when.
    pub since: Timestamp,
    /// Why, and until when; for people.
    pub message: Box<str>,
}

/// Why there is no choice.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NoChoice {
    /// Worded to follow a count of nodes.
    pub text: Text,
    /// What people can do.
    pub help: Help,
}

/// Devices that could be a pod's on one node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceChoice {
    assignment: Assignment,
    portions: Box<[Portion]>,
    after: AfterGrant,
    /// 0..=100: how well the devices lie together.
    pub quality: i64,
}

impl DeviceChoice {
    fn of(pool: &NodePool, assignment: Assignment, quality: i64) -> Self {
        Self { portions: assignment.portions(pool), assignment, after: AfterGrant::default(), quality }
    }
}

/// A choice, or why there is none.
pub type Chosen = Result<Arc<DeviceChoice>, NoChoice>;

/// Choices that were made before, for **one** shape of request: nodes of one make on which the same is taken give the same answer.
#[derive(Debug, Default)]
pub struct KnownChoices {
    /// On shelves by the lowest bits of the state's fingerprint. Nothing is ever read in their order.
    shelves: Vec<Vec<(PoolState, Chosen)>>,
    count: usize,
}

impl KnownChoices {
    /// Most choices that are kept; then all are made afresh.
    pub const MOST: usize = 1024;
    /// A power of two, so that few states share a shelf.
    const SHELVES: usize = 1024;

    /// [`Stock::choose`], looked up where it was asked before.
    pub fn choose(&mut self, stock: &Stock, request: &PodDeviceRequest) -> Chosen {
        if request.shape().wishes.names_devices() {
            return stock.choose(request).map(Arc::new);
        }
        let pool = stock.pool();
        if self.count >= Self::MOST {
            *self = Self::default();
        }
        if self.shelves.is_empty() {
            self.shelves.resize_with(Self::SHELVES, Vec::new);
        }
        let shelf = &mut self.shelves[pool.fingerprint() as usize % Self::SHELVES];
        if let Some((_, chosen)) = shelf.iter().find(|(state, _)| state.is_of(pool)) {
            debug_assert!(
                *chosen == stock.choose(request).map(Arc::new),
                "equal nodes give equal choices: {chosen:?}, {:?}",
                stock.choose(request)
            );
            return chosen.clone();
        }
        let chosen = stock.choose(request).map(Arc::new);
        self.count += 1;
        shelf.push((PoolState::of(pool), chosen.clone()));
        chosen
    }
}

/// Devices chosen for a pod on one node, on the state of the node that they were chosen on.
#[derive(Debug, Clone, Copy)]
pub struct DevicePlan<'a> {
    choice: &'a DeviceChoice,
    pool: &'a NodePool,
    request: &'a PodDeviceRequest,
    node: &'a str,
}

impl DevicePlan<'_> {
    /// The Binding's device annotations.
    pub fn annotations(&self) -> [(&'static str, String); 3] {
        let DeviceChoice { assignment, portions, .. } = self.choice;
        let [allocated, split, minors] = assignment.annotations_of(self.pool, portions, self.request, self.node);
        [(key::DEVICE_ALLOCATED, allocated), (key::CONTAINER_DEVICES, split), (key::GPU_MINORS, minors)]
    }

    /// What the pod holds then.
    pub fn held(&self) -> Held {
        self.choice.assignment.held_of(self.pool, &self.choice.portions)
    }
}

/// What one pod on the node takes.
pub struct Charge<'a> {
    uid: Option<&'a PodUid>,
    devices: Option<&'a Held>,
    exclusive: Exclusive,
    kinds: DeviceKinds,
}

/// Device types that a pod's containers ask for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DeviceKinds {
    gpu: bool,
    rdma: bool,
}

impl DeviceKinds {
    /// Each of them.
    pub fn iter(self) -> impl Iterator<Item = DeviceType> {
        let gpu = self.gpu.then_some(DeviceType::Gpu);
        gpu.into_iter().chain(self.rdma.then_some(DeviceType::Rdma))
    }
}

impl<'a> Charge<'a> {
    /// `None` for a pod that holds nothing, or whose request alone says nothing of what it holds. The daemon knows of no pod that has yet
    /// to come: the devices that one waits for are unknown while they are not chosen.
    pub fn of(pod: &'a Pod, holders: Holders<'a>) -> Option<Self> {
        let to_come = matches!(pod.place, Place::Assumed(_));
        let (devices, known) = (holders.of(pod), holders.exceptions().are_known() && !to_come);
        if devices.is_none() && (known || !pod.asks_for_devices()) {
            return None;
        }
        // Where the daemon names what pods hold, nothing else is held.
        let kinds = if known { DeviceKinds::default() } else { kinds_of(pod) };
        Some(Self { uid: Some(&pod.facts.handoff.pod.uid), devices, exclusive: pod.exclusive, kinds })
    }

    /// Of every pod of `pods`, and of what is held on the node by others.
    pub fn all(pods: impl Iterator<Item = &'a Pod>, holders: Holders<'a>) -> impl Iterator<Item = Self> {
        let departed = |(_, held): (&'a PodUid, &'a Held)| Self {
            uid: None,
            devices: Some(held),
            exclusive: Exclusive::default(),
            kinds: DeviceKinds::default(),
        };
        let departed = holders.exceptions().departed().map(departed);
        pods.filter_map(move |pod| Self::of(pod, holders)).chain(departed)
    }
}

impl Stock {
    /// All devices of the object, nothing taken.
    pub fn new(device: &Device, wall: Timestamp) -> Self {
        let (pool, cordons) = listed(device, wall);
        let (empty, published) = (pool.without_accounts(), published(device));
        let (suspect, shares) = (suspect(device), shares(device));
        Self { empty, pool, cordons, published, suspect, shares, blocked: BTreeSet::new() }
    }

    /// Lets equal labels, amounts and layouts of devices be stored once, over all nodes. The caller counts afresh.
    pub fn share(
        &mut self,
        labels: impl FnMut(&mut Shared<Labels>),
        amounts: impl FnMut(&mut Shared<HeldAmounts>),
        layouts: impl FnMut(&mut Shared<Layout>),
    ) {
        self.pool = NodePool::default();
        self.empty.share(labels, amounts, layouts);
        self.pool = self.empty.emptied();
    }

    /// Takes over a newer object; the caller counts afresh, by the devices' ids. `true` when it says something new. What is not
    /// listed any more goes, and comes back as an unlisted device while a pod holds it: it is no capacity, no other device takes its
    /// minor, and it is kept no longer than that.
    pub fn update(&mut self, device: &Device, wall: Timestamp) -> bool {
        let (pool, cordons) = listed(device, wall);
        let empty = pool.without_accounts();
        self.cordons = cordons;
        let (published, suspect, shares) = (published(device), suspect(device), shares(device));
        let news = (&published, &suspect, &shares) != (&self.published, &self.suspect, &self.shares)
            || !empty.is_like(&self.empty);
        if news {
            (self.empty, self.published, self.suspect, self.shares) = (empty, published, suspect, shares);
        }
        news
    }

    /// Lets cordons end whose time is over. `true` when one did; the caller shares and counts afresh.
    pub fn age(&mut self, wall: Timestamp) -> bool {
        let over = self.cordons.prune(wall);
        if over {
            let mut pool = self.empty.emptied();
            pool.cordon(|id, parent| self.cordons.of(id, parent, wall).is_some());
            self.empty = pool.without_accounts();
        }
        over
    }

    /// The earliest end of a cordon.
    pub fn next_cordon_end(&self) -> Option<Timestamp> {
        self.cordons.next_end()
    }

    /// Counts what pods hold: by their assignment, else by what the node has published, else the type is blocked.
    pub fn recount<'a>(&mut self, charges: impl Iterator<Item = Charge<'a>>) {
        let before = std::mem::replace(&mut self.pool, self.empty.emptied());
        self.blocked.clear();
        for charge in charges {
            if let Some(devices) = charge.devices {
                let (_, _) = self.pool.take_held(devices, charge.exclusive);
            }
            for kind in charge.kinds.iter() {
                if charge.devices.is_some_and(|devices| !devices.of_kind(&kind).is_empty()) {
                    continue;
                }
                let published = self.published.iter();
                match published
                    .into_iter()
                    .find(|held| held.kind == kind && charge.uid.is_some_and(|uid| *held.uid == *uid.as_str()))
                {
                    Some(held) => {
                        self.pool.take_minors(&kind, &held.minors);
                    }
                    None => {
                        self.blocked.insert(kind);
                    }
                }
            }
        }
        self.pool.keep_layout(&before);
    }

    /// Counts one more pod. `false`, and nothing has changed, when all pods must be counted afresh: not all that it holds is
    /// named, or it does not fit beside what is counted. `choice` is where what it holds comes from, if that is known.
    pub fn count_in(&mut self, charge: &Charge<'_>, choice: Option<&DeviceChoice>) -> bool {
        let Some(devices) = charge.devices else { return false };
        if charge.kinds.iter().any(|kind| devices.of_kind(&kind).is_empty()) {
            return false;
        }
        if let Some(choice) = choice {
            return self.pool.take_as_before(&choice.assignment.grant, &choice.after).is_ok();
        }
        let mut pool = self.pool.clone();
        let (_, misfits) = pool.take_held(devices, charge.exclusive);
        if misfits.is_empty() {
            self.pool = pool;
        }
        misfits.is_empty()
    }

    /// `true` while a pod holds devices of this type that are not named.
    pub fn is_blocked(&self, kind: &DeviceType) -> bool {
        self.blocked.contains(kind)
    }

    /// What a device has of one resource; `None` when it is not listed or does not say.
    pub fn capacity(&self, id: &DeviceId, resource: &str) -> Option<i64> {
        self.empty.devices().capacity(id, resource)
    }

    /// `true` when the object lists the device.
    pub fn lists(&self, id: &DeviceId) -> bool {
        self.empty.devices().lists(id)
    }

    /// `true` when the node has published devices of pods without an assignment.
    pub fn has_published(&self) -> bool {
        !self.published.is_empty()
    }

    /// The node daemon calls the node suspect.
    pub fn suspect(&self) -> Option<&Suspect> {
        self.suspect.as_ref()
    }

    /// How GPU shares are held to their limits.
    pub fn shares(&self) -> &ShareOffer {
        &self.shares
    }

    /// Why a pod that is on its way to the node would not be served its GPU shares.
    pub fn refusal_of_shares(&self, pod: &Pod) -> Option<ShareRefusal> {
        let asks = pod.facts.handoff.containers.iter().any(|container| {
            container.request.as_ref().is_ok_and(|request| matches!(request.gpu, Some(GpuRequest::Share { .. })))
        });
        self.shares.refusal(pod.facts.spec.wishes.shares.as_deref()).filter(|_| asks)
    }

    /// What is taken and free.
    pub fn pool(&self) -> &NodePool {
        &self.pool
    }

    /// Chooses devices; changes nothing.
    pub fn choose(&self, request: &PodDeviceRequest) -> Result<DeviceChoice, NoChoice> {
        let assignment = pick(&self.pool, request)
            .map_err(|reason| NoChoice { text: reason.summary().into(), help: reason.help() })?;
        let quality = i64::from(score::topology_fit(&self.pool, &assignment));
        Ok(DeviceChoice::of(&self.pool, assignment, quality))
    }

    /// The devices could be the pod's if no pod had any and all were in service.
    pub fn could_serve(&self, request: &PodDeviceRequest) -> bool {
        pick(&self.pool.emptied(), request).is_ok() || pick(&self.pool.as_new(), request).is_ok()
    }

    /// Every choice on the empty nodes is the same, as far as can be seen at once.
    pub fn is_of_make(&self, other: &Self) -> bool {
        self.pool.devices().layout().is_same(other.pool.devices().layout())
    }

    /// Devices for several pods at one time, whichever way each of them gets some; changes nothing. One of `tries` is one choice
    /// for one pod; `None` when they ran out, too.
    pub fn choose_together(&self, requests: &[&PodDeviceRequest], tries: &mut usize) -> Option<Vec<DeviceChoice>> {
        let found = together(&self.pool, requests, tries)?;
        Some(found.into_iter().map(|assignment| DeviceChoice::of(&self.pool, assignment, 0)).collect())
    }

    /// Equal for nodes whose devices are equal to any pod in all but their names; with `places`, in where they are as well.
    pub fn look(&self, places: bool) -> String {
        let devices = self.pool.devices();
        let one = |(slot, room): (Slot, &DeviceRoom)| {
            let at = || format!("{:?}{:?}", devices.place(slot), devices.labels(slot));
            let open = room.healthy && room.cordon.is_none();
            format!("{}{open}{}{}", room.kind, room.free, if places { at() } else { String::new() })
        };
        let mut all: Vec<String> = devices.slots().zip(&self.describe()).map(one).collect();
        all.sort_unstable();
        all.concat()
    }

    /// What is free of each GPU, now or once a choice of this state is taken.
    pub fn rests(&self, taken: Option<&DeviceChoice>) -> score::Rests {
        score::rests(&self.pool, taken.map(|choice| &choice.assignment.grant))
    }

    /// What a choice comes to that was made on this very state of the node.
    pub fn plan<'a>(
        &'a self,
        choice: &'a DeviceChoice,
        request: &'a PodDeviceRequest,
        node: &'a str,
    ) -> DevicePlan<'a> {
        DevicePlan { choice, pool: &self.pool, request, node }
    }

    /// So many bytes in percent of one GPU's memory; 0 where that is not known.
    pub fn memory_percent(&self, bytes: i64) -> i64 {
        let known = self.pool.devices().gpus.iter().find(|gpu| gpu.bytes_known && gpu.memory > 0);
        known.map_or(0, |gpu| bytes.saturating_mul(key::WHOLE) / gpu.memory)
    }

    /// Used and total percent of GPUs, of each the more used of compute and memory, the unhealthy ones too.
    pub fn gpu_percent(&self) -> (i64, i64) {
        let summary = self.pool.summary();
        if self.is_cut_whole() {
            return self.mig_percent();
        }
        (i64::from(summary.taken), i64::from(summary.core_total))
    }

    /// `true` where there is no GPU that is not cut into MIG devices.
    pub fn is_cut_whole(&self) -> bool {
        self.pool.summary().core_total == 0
    }

    /// Used and total MIG devices in percent: each counts as one GPU, whatever its profile.
    pub fn mig_percent(&self) -> (i64, i64) {
        let free = i64::from(self.pool.summary().free_migs.count_ones());
        let all = self.pool.devices().migs.len() as i64;
        ((all - free) * key::WHOLE, all * key::WHOLE)
    }

    /// What there is, held or free.
    pub fn listed(&self) -> DeviceTotals {
        let devices = self.empty.devices();
        let whole = devices.gpus.iter().filter(|gpu| gpu.core > 0);
        let bytes = whole.map(|gpu| if gpu.bytes_known { gpu.memory } else { i64::MAX });
        let mut migs = BTreeMap::new();
        for mig in &devices.migs {
            *migs.entry(format!("{}{}", key::MIG_PREFIX, mig.profile)).or_insert(0) += 1;
        }
        DeviceTotals {
            gpu_percent: self.gpu_percent().1,
            gpu_memory: bytes.fold(0, i64::saturating_add),
            nic_percent: devices.nics.iter().map(|nic| i64::from(nic.percent)).sum(),
            migs,
        }
    }

    /// There is something that a node daemon could offer.
    pub fn lists_devices(&self) -> bool {
        let devices = self.empty.devices();
        !(devices.gpus.is_empty() && devices.migs.is_empty() && devices.nics.is_empty())
    }

    /// Percent of compute or memory, whichever is less, that is free on each open GPU.
    pub fn gpu_rooms(&self) -> impl Iterator<Item = i64> {
        let devices = self.pool.devices();
        let open = self.pool.summary().open_gpus;
        (0u8..).zip(&devices.gpus).filter(move |(at, _)| open & (1 << at) != 0).map(|(at, gpu)| {
            let (core, memory) = self.pool.gpu_room(at);
            let memory = if gpu.memory > 0 { memory.saturating_mul(key::WHOLE) / gpu.memory } else { key::WHOLE };
            i64::from(core).min(memory)
        })
    }

    /// Percent of compute that is free on all open GPUs. A free MIG device, which may be offered as a GPU, counts as one.
    pub fn free_percent(&self) -> i64 {
        let summary = self.pool.summary();
        let gpus = (0u8..).take(self.pool.devices().gpus.len()).filter(|at| summary.open_gpus & (1 << at) != 0);
        let whole: i64 = gpus.map(|at| i64::from(self.pool.gpu_room(at).0)).sum();
        whole + i64::from(summary.free_migs.count_ones()) * key::WHOLE
    }

    /// The same of all devices that are listed, free or not.
    pub fn listed_percent(&self) -> i64 {
        let devices = self.pool.devices();
        (devices.gpus.len() + devices.migs.len()) as i64 * key::WHOLE
    }

    /// The first of `devices` that no new pod may have, and why: it is not listed as healthy, or cordoned.
    pub fn out_of_use<'a>(&self, devices: &'a Held) -> Option<(&'a DeviceId, &'static str)> {
        let listed = self.empty.devices();
        devices.devices().iter().map(|entry| &entry.id).find_map(|id| match listed.slot(id) {
            Some(slot) if listed.is_healthy(slot) => listed.is_cordoned(slot).then_some((id, "is cordoned")),
            _ => Some((id, "is not healthy")),
        })
    }

    /// The listed devices, each with its type and what it is to new pods, where its node takes some.
    pub fn states(&self) -> impl Iterator<Item = (&'static str, DeviceState)> {
        let devices = self.empty.devices();
        devices.slots().map(move |slot| {
            let (kind, split) = match slot {
                Slot::Gpu(at) => ("gpu", devices.gpus[usize::from(at)].core == 0),
                Slot::Mig(_) => ("mig", false),
                Slot::Nic(_) => ("rdma", false),
            };
            let state = match self.pool.held_percent(slot) {
                _ if !devices.is_healthy(slot) => DeviceState::Unhealthy,
                _ if devices.is_cordoned(slot) => DeviceState::Cordoned,
                _ if split => DeviceState::Split,
                key::WHOLE.. => DeviceState::Held,
                1.. => DeviceState::Partly,
                _ => DeviceState::Free,
            };
            (kind, state)
        })
    }

    /// Why the annotation of cordons cannot be read: every device is out of use then.
    pub fn unreadable_cordons(&self) -> Option<&str> {
        self.cordons.unreadable()
    }

    /// Every device and what is free of it.
    pub fn describe(&self) -> Vec<DeviceRoom> {
        let devices = self.pool.devices();
        let free_migs = self.pool.summary().free_migs;
        let describe = |slot| {
            let parent = match slot {
                Slot::Mig(at) => Some(&*devices.migs[usize::from(at)].parent),
                Slot::Gpu(_) | Slot::Nic(_) => None,
            };
            let id = devices.id(slot).clone();
            let cordon = self.cordons.of(id.as_str(), parent, Timestamp::MIN);
            let (kind, free) = match slot {
                Slot::Gpu(at) => {
                    let gpu = &devices.gpus[usize::from(at)];
                    let (core, memory) = self.pool.gpu_room(at);
                    let (memory, unit) = if gpu.bytes_known { (memory >> 20, "Mi") } else { (memory, "%") };
                    ("gpu", format!("{core}% core and {memory}{unit} memory"))
                }
                Slot::Mig(at) => {
                    let mig = &devices.migs[usize::from(at)];
                    let free = if free_migs & (1 << at) == 0 { "nothing" } else { "all" };
                    ("mig", format!("{free} of {}", mig.profile))
                }
                Slot::Nic(at) => ("rdma", format!("{}%", self.pool.nic_room(at))),
            };
            let healthy = devices.is_healthy(slot);
            // What is out of use has room for no new pod.
            let free = if healthy && cordon.is_none() { free } else { "nothing".to_owned() };
            DeviceRoom { kind, minor: devices.minor(slot), id, healthy, cordon: cordon.map(Cordon::words), free }
        };
        devices.slots().map(describe).collect()
    }
}

/// One device and what is free of it, for people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceRoom {
    /// `gpu`, `mig`, `rdma`.
    pub kind: &'static str,
    /// Small number on the node.
    pub minor: i32,
    /// Identity.
    pub id: DeviceId,
    /// Healthy.
    pub healthy: bool,
    /// The cordon on it.
    pub cordon: Option<String>,
    /// `100% core and 81920Mi memory`.
    pub free: String,
}

/// The devices of the object, nothing taken, and the cordons in force.
fn listed(device: &Device, wall: Timestamp) -> (NodePool, Cordons) {
    let ((mut pool, _), mut cordons) = (NodePool::from_device(device), Cordons::of_object(device));
    cordons.prune(wall);
    if !cordons.is_empty() {
        pool.cordon(|id, parent| cordons.of(id, parent, wall).is_some());
    }
    (pool, cordons)
}

/// What the node has published about pods without an assignment.
fn published(device: &Device) -> Box<[PublishedDevices]> {
    let all = device.status.iter().flat_map(|status| &status.allocations);
    let entries = all.flat_map(|held| held.entries.iter().map(|entry| (&held.kind, entry)));
    let published = entries.map(|(kind, entry)| PublishedDevices {
        kind: kind.clone(),
        uid: entry.uuid.as_str().into(),
        minors: entry.minors.clone().into(),
    });
    published.collect()
}

/// What the node daemon says of the node itself.
fn suspect(device: &Device) -> Option<Suspect> {
    let condition = device.status.as_ref()?.suspect()?;
    Some(Suspect { since: condition.last_transition_time.0, message: condition.message.as_str().into() })
}

/// What the node daemon says of the limits of GPU shares. What it says and no one knows limits nothing that a pod could ask for.
fn shares(device: &Device) -> ShareOffer {
    let label = device.metadata.labels.as_ref().and_then(|labels| labels.get(key::GPU_ISOLATION_PROVIDER));
    let condition = device.status.as_ref().and_then(DeviceStatus::shares_unavailable);
    ShareOffer {
        isolation: label.and_then(|label| ShareIsolation::of_provider(label)).unwrap_or_default(),
        unavailable: condition.map(|condition| condition.message.as_str().into()),
    }
}

/// Some container asks for devices, or for something that only another system understands.
pub(super) fn may_hold(pod: &HandoffPod) -> bool {
    pod.containers.iter().any(|container| match &container.request {
        Ok(request) => !request.names.is_empty(),
        Err(_) => true,
    })
}

/// Device types that a pod's containers ask for.
pub fn kinds_of(pod: &Pod) -> DeviceKinds {
    let mut kinds = DeviceKinds::default();
    for container in &pod.facts.handoff.containers {
        let Ok(request) = &container.request else { continue };
        let served_otherwise =
            request.names.keys().all(|name| container.dra_backed.iter().any(|backed| backed == name));
        if served_otherwise {
            continue;
        }
        kinds.gpu |= request.gpu.is_some();
        kinds.rdma |= request.rdma.is_some();
    }
    kinds
}

/// Which pods may not be near the pod's devices, as its annotations stand now.
pub(super) fn exclusive_of(facts: &PodFacts) -> Exclusive {
    if facts.spec.wishes.hint.is_none() {
        return Exclusive::default();
    }
    wishes_of(facts).map(|wishes| wishes.exclusive()).unwrap_or_default()
}

fn wishes_of(facts: &PodFacts) -> Result<Wishes, baton_contract::AllocationError> {
    let wishes = &facts.spec.wishes;
    Wishes::parse(wishes.hint.as_deref(), wishes.joint.as_deref(), wishes.partition.as_deref())
}

/// The pod's devices as one request, or the rule that it breaks.
pub fn request_of(pod: &Pod) -> Result<PodDeviceRequest, RequestProblem> {
    PodDeviceRequest::of_containers(&pod.facts.handoff.containers, wishes_of(&pod.facts)?)
}

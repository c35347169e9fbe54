//! Whether the identified pod may be served, and with which devices.

use std::collections::{BTreeMap, BTreeSet};

use super::assignment::{PodAssignment, delivers, kind_of};
use super::context::{AllocateCall, AllocateContext, LiveReads};
use super::identify::Caller;
use super::ledger::{ContainerSlot, LedgerEntry};
use super::plan::Plan;
use super::policy::{IdMismatch, UnassignedPods};
use super::refusal::{AllocateRefusal, AllocateRule};
use super::room::{self, ByPod, DeviceClaim};
use crate::lock::{LockMatch, LockMode, names};
use crate::pod::{ExpectedCall, HandoffPod, PodContainer};
use crate::shares::ShareRefusal;
use baton_contract::hint::Count;
use baton_contract::{
    ContainerRequest, DeviceEntry, DeviceId, DeviceType, GpuRequest, LockRead, PodKey, Quantity, key,
};

/// The devices for one call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServedDevices {
    /// In the order of the plan; empty for a name that only accompanies the delivering one.
    pub served: Vec<(DeviceType, DeviceEntry)>,
    /// Parts of devices.
    pub shares: bool,
    /// The kubelet's ids name other devices.
    pub mismatch: bool,
    /// A scheduler assigned them.
    pub assigned: bool,
}

/// A refusal and what it rests on.
pub type UnconfirmedRefusal = Box<(AllocateRefusal, LiveReads)>;

/// Judges one call of a known caller by every rule.
pub fn devices(
    context: &AllocateContext<'_>,
    call: &AllocateCall<'_>,
    caller: &Caller<'_>,
) -> Result<ServedDevices, UnconfirmedRefusal> {
    let Caller { pod, container, .. } = *caller;
    let refuse = |rule, why| Box::new(refused(call, caller, rule, why));
    let request = ExpectedCall { container, resource: call.resource, count: call.count };
    let assignment = PodAssignment::read(pod, context.inventory).map_err(|error| {
        refuse(
            AllocateRule::BadAssignment,
            format!("{error}; the whole assignment is refused, delete and re-create the pod"),
        )
    })?;
    let Some(assignment) = assignment else {
        return unassigned_devices(context, call, caller, &request).map_err(|(rule, why)| refuse(rule, why));
    };
    if let Some(other) = assignment.node.as_deref().filter(|node| *node != context.node) {
        let why = format!(
            "its devices were assigned on node {other}, this is {}; delete and re-create the pod",
            context.node
        );
        return Err(refuse(AllocateRule::OtherNode, why));
    }
    is_entitled(context, pod).map_err(|(rule, why)| refuse(rule, why))?;
    if !delivers(&request) {
        return Ok(ServedDevices { served: vec![], shares: false, mismatch: false, assigned: true });
    }
    let kind = kind_of(call.resource);
    let mut plan = Plan::new(pod, &assignment, context.ledger, context.inventory);
    let chosen: BTreeSet<DeviceId> = call.ids.iter().filter_map(|id| DeviceId::of_kubelet_id(id).ok()).collect();
    plan.adopt(container, &kind, &chosen);
    let entries = plan.of(&container.name, &kind);
    fits_request(pod, container, &kind, entries).map_err(|why| refuse(AllocateRule::Plan, why))?;
    are_usable(context, entries, &kind).map_err(|(rule, why)| refuse(rule, why))?;
    beside_others(context, call, caller, &kind, entries)?;
    let served: BTreeSet<&DeviceId> = entries.iter().flat_map(DeviceEntry::named).collect();
    let slot = ContainerSlot::of(pod, &container.name);
    let handed_on = !context.ledger.handed_on(&pod.pod.uid, call.resource, slot).is_empty();
    let of_pod = if handed_on { assignment.pod_set(pod, &kind) } else { Vec::new() };
    let mismatch = !chosen.iter().all(|id| served.contains(id) || of_pod.contains(id));
    if mismatch && context.policy.id_mismatch == IdMismatch::Reject {
        let list =
            |ids: &mut dyn Iterator<Item = &DeviceId>| ids.map(ToString::to_string).collect::<Vec<_>>().join(", ");
        let why = format!(
            "the kubelet chose {} and the assignment is {}; --id-mismatch=reject refuses that, serve-assignment would serve the assignment",
            list(&mut chosen.iter()),
            list(&mut entries.iter().map(|entry| &entry.id)),
        );
        return Err(refuse(AllocateRule::IdMismatch, why));
    }
    let shares = entries.iter().any(|entry| !room::is_whole(&kind, entry));
    may_be_limited(context, pod, entries, &kind).map_err(|(rule, why)| refuse(rule, why))?;
    let served = entries.iter().map(|entry| (kind.clone(), entry.clone())).collect();
    Ok(ServedDevices { served, shares, mismatch, assigned: true })
}

/// Whether a repetition may be answered with what was rebuilt for it: that may be more than the container has, and another pod's.
pub fn repetition(
    context: &AllocateContext<'_>,
    call: &AllocateCall<'_>,
    caller: &Caller<'_>,
    rebuilt: &LedgerEntry,
) -> Result<(), UnconfirmedRefusal> {
    let (kind, entries) = (kind_of(call.resource), rebuilt.to_answer().map(|(_, entry)| entry.clone()));
    let entries: Vec<DeviceEntry> = entries.collect();
    // What runs keeps its devices, healthy or not; a node that has started again starts nothing on what has failed since.
    let usable = if caller.pod.any_runs() { Ok(()) } else { are_usable(context, &entries, &kind) };
    usable
        .and_then(|()| may_be_limited(context, caller.pod, &entries, &kind))
        .map_err(|(rule, why)| Box::new(refused(call, caller, rule, why)))?;
    beside_others(context, call, caller, &kind, &entries)
}

fn refused(
    call: &AllocateCall<'_>,
    caller: &Caller<'_>,
    rule: AllocateRule,
    why: String,
) -> (AllocateRefusal, LiveReads) {
    let rests_on = LiveReads::pods_and_node([caller.pod.pod.key.clone()]);
    (AllocateRefusal::of(rule, &caller.pod.pod, &caller.container.name, call.resource, why), rests_on)
}

/// The devices have room beside what other pods and containers hold.
fn beside_others(
    context: &AllocateContext<'_>,
    call: &AllocateCall<'_>,
    caller: &Caller<'_>,
    kind: &DeviceType,
    entries: &[DeviceEntry],
) -> Result<(), UnconfirmedRefusal> {
    have_room(context, caller.pod, caller.container, kind, entries).map_err(|full| {
        let users = full.users.iter().filter_map(|uid| context.ledger.of_pod(uid).next());
        let users: Vec<_> = users.map(|entry| entry.pod.key.clone()).collect();
        let by: Vec<String> = users.iter().map(ToString::to_string).collect();
        let by = if by.is_empty() { String::new() } else { format!(", held by {}", by.join(" and ")) };
        let why = format!("{full}{by}; delete and re-create the pod so that it is assigned free devices");
        let mut refused = Box::new(refused(call, caller, AllocateRule::NoRoom, why));
        refused.1.pods.extend(users);
        // All holders of the assigned devices are read at once: eight GPUs of a node may have eight holders that are gone.
        refused.1.pods.extend(holders(context, caller.pod, entries));
        refused
    })
}

type Broken = (AllocateRule, String);

/// The lock is this bind's, or, under `auto`, a known scheduler placed the pod. Under `always` a pod that has been served
/// before needs neither.
fn is_entitled(context: &AllocateContext<'_>, pod: &HandoffPod) -> Result<(), Broken> {
    match context.policy.lock {
        LockMode::Always => is_locked(context, pod),
        // A lock of this bind proves as much as a name.
        LockMode::Auto => was_scheduled(context, pod).or_else(|why| is_locked(context, pod).map_err(|_| why)),
    }
}

fn is_locked(context: &AllocateContext<'_>, pod: &HandoffPod) -> Result<(), Broken> {
    if context.ledger.has_served(&pod.pod.uid) {
        return Ok(());
    }
    let node = context.node;
    let raw = context.lock.raw().unwrap_or_default();
    let raw = &raw[..raw.floor_char_boundary(200)];
    let named = match context.lock {
        LockRead::Free => None,
        LockRead::Held { value, .. } => Some(names(value, pod)),
        LockRead::Malformed { .. } => Some(LockMatch::No),
    };
    let why = match named {
        Some(LockMatch::ThisBind) => return Ok(()),
        None => format!(
            "node {node} has no lock, so no scheduler is handing devices to this pod now; {}",
            without_lock(context, pod)
        ),
        Some(LockMatch::No) => {
            format!("the lock of node {node} is another pod's ({raw}); delete and re-create this pod")
        }
        Some(LockMatch::OtherBind) => format!(
            "the lock of node {node} ({raw}) is of another bind than the pod's bind-timestamp; delete and re-create the pod"
        ),
    };
    Err((AllocateRule::Lock, why))
}

/// What to do about a pod whose scheduler holds no lock for it.
fn without_lock(context: &AllocateContext<'_>, pod: &HandoffPod) -> String {
    let (names, scheduler) = (&context.policy.scheduler_names, &pod.scheduler_name);
    if names.contains(scheduler) {
        return format!(
            "delete and re-create it. If {scheduler} never writes the lock, start the node daemon with --node-lock=auto"
        );
    }
    format!(
        "schedule it with {}; or, for pods of {scheduler}, which writes no lock, start the node daemon with --node-lock=auto \
         --scheduler-names={},{scheduler}",
        names.join(" or "),
        names.join(",")
    )
}

fn was_scheduled(context: &AllocateContext<'_>, pod: &HandoffPod) -> Result<(), Broken> {
    if !context.policy.scheduler_names.contains(&pod.scheduler_name) {
        let why = format!(
            "its scheduler {} is none of --scheduler-names ({}), its assignment does not count",
            pod.scheduler_name,
            context.policy.scheduler_names.join(", ")
        );
        return Err((AllocateRule::Scheduler, why));
    }
    if !pod.scheduled_condition {
        let why =
            "it was placed by spec.nodeName and not by a scheduler (no PodScheduled condition); leave nodeName out";
        return Err((AllocateRule::NotScheduled, why.to_owned()));
    }
    Ok(())
}

fn unassigned_devices(
    context: &AllocateContext<'_>,
    call: &AllocateCall<'_>,
    caller: &Caller<'_>,
    request: &ExpectedCall<'_>,
) -> Result<ServedDevices, Broken> {
    if context.policy.unassigned == UnassignedPods::Deny {
        let why = format!(
            "no scheduler assigned devices to the pod: set spec.schedulerName to one of {} (and leave spec.nodeName out), \
             or run the node daemon with --unassigned-pods=serve",
            context.policy.scheduler_names.join(", ")
        );
        return Err((AllocateRule::Unassigned, why));
    }
    if !delivers(request) {
        return Ok(ServedDevices { served: vec![], shares: false, mismatch: false, assigned: false });
    }
    let kind = kind_of(call.resource);
    let entries = unassigned_entries(context, call, caller).map_err(|why| (AllocateRule::Unassigned, why))?;
    are_usable(context, &entries, &kind)?;
    have_room(context, caller.pod, caller.container, &kind, &entries)
        .map_err(|full| (AllocateRule::NoRoom, format!("the kubelet chose a device in use: {full}")))?;
    let shares = entries.iter().any(|entry| !room::is_whole(&kind, entry));
    may_be_limited(context, caller.pod, &entries, &kind)?;
    let served = entries.into_iter().map(|entry| (kind.clone(), entry)).collect();
    Ok(ServedDevices { served, shares, mismatch: false, assigned: false })
}

/// A share of a GPU is served where its limits are enforced as the pod asks for, and not where they should be and cannot.
fn may_be_limited(
    context: &AllocateContext<'_>,
    pod: &HandoffPod,
    entries: &[DeviceEntry],
    kind: &DeviceType,
) -> Result<(), Broken> {
    let mut shares = entries.iter().filter(|entry| *kind == DeviceType::Gpu && !room::is_whole(kind, entry)).peekable();
    if shares.peek().is_none() {
        return Ok(());
    }
    let offer = &context.inventory.shares;
    let why = match offer.refusal(pod.assignment.shares.as_deref()) {
        None => match shares.find(|entry| !offer.can_limit(entry.amount(key::GPU_MEMORY))) {
            None => return Ok(()),
            Some(entry) => format!(
                "node {} limits GPU shares (--share-isolation={}), and how much memory the share of {} has is not known",
                context.node, offer.isolation, entry.id
            ),
        },
        Some(ShareRefusal::Unavailable(why)) => {
            format!("node {} serves no GPU shares now, because it cannot limit them: {why}", context.node)
        }
        Some(ShareRefusal::Terms(why)) => format!("node {}: {why}", context.node),
    };
    Err((AllocateRule::Isolation, why))
}

/// As many devices as the container asks for, and of the sort it asks for.
fn fits_request(
    pod: &HandoffPod,
    container: &PodContainer,
    kind: &DeviceType,
    entries: &[DeviceEntry],
) -> Result<(), String> {
    let request = container.request.as_ref().map_err(ToString::to_string)?;
    let (wanted, wants_whole) = match (kind, &request.gpu) {
        (DeviceType::Rdma, _) => match request.rdma.map(|rdma| pod.assignment.nics.nics(rdma)) {
            Some((count, percent)) => (count, percent >= key::WHOLE),
            None => (Count::Exactly(0), false),
        },
        (_, Some(GpuRequest::Mig { count, .. })) => (Count::Exactly(*count), true),
        (_, Some(gpu)) => (pod.assignment.gpus.devices(gpu.count()), !matches!(gpu, GpuRequest::Share { .. })),
        (_, None) => (Count::Exactly(0), false),
    };
    let why = match wanted {
        Count::Exactly(wanted) if entries.len() != wanted as usize => format!("{wanted} {kind} devices"),
        Count::All if entries.is_empty() => format!("all {kind} devices that match (ApplyForAll)"),
        _ => String::new(),
    };
    if !why.is_empty() {
        let found = entries.len();
        return Err(format!("it asks for {why} and the assignment has {found} for it; delete and re-create the pod"));
    }
    match entries.iter().find(|entry| wants_whole && !room::is_whole(kind, entry) && entry.vfs().is_empty()) {
        Some(entry) => Err(format!("it asks for whole devices and the assignment has a share of {}", entry.id)),
        None => Ok(()),
    }
}

/// Every device exists here, is of the right kind and healthy; a divided GPU is not usable itself.
fn are_usable(context: &AllocateContext<'_>, entries: &[DeviceEntry], kind: &DeviceType) -> Result<(), Broken> {
    for (entry, id) in entries.iter().flat_map(|entry| entry.named().map(move |id| (entry, id))) {
        let Some(device) = context.inventory.devices.get(id).filter(|device| device.kind == *kind) else {
            let why = format!("node {} has no {kind} device {id}; delete and re-create the pod", context.node);
            return Err((AllocateRule::UnknownDevice, why));
        };
        if *id != entry.id && device.parent.as_ref().is_some_and(|parent| *parent != entry.id) {
            return Err((
                AllocateRule::UnknownDevice,
                format!("virtual function {id} does not belong to {}", entry.id),
            ));
        }
        if !device.healthy {
            let reason = device.reason.as_deref().unwrap_or("no reason known");
            let why =
                format!("device {id} is unhealthy ({reason}); delete and re-create the pod so that it gets another");
            return Err((AllocateRule::Unhealthy, why));
        }
    }
    Ok(())
}

/// A pod that the watch does not show holds its devices until the watch or a live read confirms that it is deleted. One that has left
/// refuses no call, although its processes may use them: a failed admission cannot be repaired, so that the container's start waits.
fn occupies(context: &AllocateContext<'_>, held: &LedgerEntry) -> bool {
    let uid = &held.pod.uid;
    let confirmed = context.pods.is_deleted(uid) || context.live_reads.pods.contains(&held.pod.key);
    let unconfirmed = context.pods.by_uid(uid).is_none() && held.leaving().is_none() && !confirmed;
    unconfirmed || context.ledger.is_live(held, context.pods, context.resources)
}

/// Other pods that have one of these devices.
fn holders(context: &AllocateContext<'_>, pod: &HandoffPod, entries: &[DeviceEntry]) -> BTreeSet<PodKey> {
    let wanted: BTreeSet<&DeviceId> = entries.iter().flat_map(DeviceEntry::named).collect();
    let has = |held: &&LedgerEntry| held.pod.uid != pod.pod.uid && held.named().any(|id| wanted.contains(id));
    context.ledger.iter().filter(has).filter(|held| occupies(context, held)).map(|held| held.pod.key.clone()).collect()
}

/// The container's devices beside everything that is served to live pods, this pod's other containers included.
fn have_room(
    context: &AllocateContext<'_>,
    pod: &HandoffPod,
    container: &PodContainer,
    kind: &DeviceType,
    entries: &[DeviceEntry],
) -> Result<(), room::Full> {
    let mut others = ByPod::new();
    let mut own = Vec::new();
    for held in context.ledger.iter().filter(|held| occupies(context, held)) {
        if held.pod.uid == pod.pod.uid
            && held.container == container.name
            && super::assignment::kind_of(&held.resource) == *kind
        {
            continue;
        }
        let claims = held.served.iter().map(|(kind, entry)| DeviceClaim { slot: held.slot, kind, entry });
        if held.pod.uid == pod.pod.uid {
            own.extend(claims);
        } else {
            others.entry(held.pod.uid.clone()).or_default().extend(claims);
        }
    }
    let slot = ContainerSlot::of(pod, &container.name);
    own.extend(entries.iter().map(|entry| DeviceClaim { slot, kind, entry }));
    room::fits(&own, &others, context.inventory)
}

/// The kubelet's ids as entries; an error says which device another bound pod still waits for, or which id means nothing.
fn unassigned_entries(
    context: &AllocateContext<'_>,
    call: &AllocateCall<'_>,
    caller: &Caller<'_>,
) -> Result<Vec<DeviceEntry>, String> {
    let kind = kind_of(call.resource);
    let devices = call.ids.iter().map(|id| DeviceId::of_kubelet_id(id)).collect::<Result<BTreeSet<DeviceId>, _>>();
    let devices = devices.map_err(|error| error.to_string())?;
    for device in &devices {
        if let Some(waiting) = waits_for(context, caller, device) {
            return Err(format!(
                "the kubelet chose device {device}, which is assigned to pod {waiting}; create the pod again"
            ));
        }
    }
    let request = caller.container.request.as_ref().map_err(ToString::to_string)?;
    let wanted = match kind {
        DeviceType::Rdma => request.rdma.map_or(0, |rdma| rdma.count),
        _ => request.gpu.as_ref().map_or(0, GpuRequest::count),
    };
    if devices.len() != wanted as usize {
        return Err(format!(
            "the kubelet spread it over {} devices and it asks for {wanted}; without a scheduler's assignment only whole \
             devices are sure to be served",
            devices.len()
        ));
    }
    Ok(devices.into_iter().map(|id| unassigned_entry(context, id, &kind, request)).collect())
}

/// A bound pod whose assignment names the device and that has not been served all of it yet.
fn waits_for(context: &AllocateContext<'_>, caller: &Caller<'_>, device: &DeviceId) -> Option<String> {
    let others =
        context.pods.iter().filter(|pod| pod.pod.uid != caller.pod.pod.uid && context.is_here(pod) && pod.is_live());
    let mut unserved = others.filter(|pod| !context.ledger.fully_served(pod, context.inventory));
    let waiting = unserved.find(|pod| {
        matches!(PodAssignment::read(pod, context.inventory), Ok(Some(plan)) if plan.named().any(|named| named == device))
    })?;
    Some(waiting.pod.key.to_string())
}

fn unassigned_entry(
    context: &AllocateContext<'_>,
    id: DeviceId,
    kind: &DeviceType,
    request: &ContainerRequest,
) -> DeviceEntry {
    let device = context.inventory.devices.get(&id);
    let total = device.and_then(|device| device.memory_bytes);
    let mut resources = BTreeMap::new();
    let mut set = |name: &str, amount| resources.insert(name.to_owned(), amount);
    match (kind, &request.gpu) {
        (DeviceType::Rdma, _) => {
            set(key::RDMA, Quantity::units(request.rdma.map_or(key::WHOLE, |rdma| rdma.percent)));
        }
        (_, Some(GpuRequest::Share { core, ratio, memory, .. })) => {
            set(key::GPU_CORE, Quantity::units(*core));
            let of_total = |percent: i64| total.map(|bytes| bytes / key::WHOLE * percent);
            let of_bytes = |bytes: i64| {
                total.filter(|total| *total > 0).map(|total| {
                    i64::try_from((i128::from(bytes) * 100 + i128::from(total) - 1) / i128::from(total))
                        .unwrap_or(i64::MAX)
                })
            };
            if let Some(ratio) = ratio.or_else(|| memory.and_then(of_bytes)) {
                set(key::GPU_MEMORY_RATIO, Quantity::units(ratio));
            }
            if let Some(bytes) = memory.or_else(|| ratio.and_then(of_total)) {
                set(key::GPU_MEMORY, Quantity::bytes(bytes));
            }
        }
        (_, Some(GpuRequest::Mig { profile, .. })) => {
            set(&format!("{}{profile}", key::MIG_PREFIX), Quantity::units(1));
        }
        _ => {
            set(key::GPU_CORE, Quantity::units(key::WHOLE));
            set(key::GPU_MEMORY_RATIO, Quantity::units(key::WHOLE));
            if let Some(total) = total {
                set(key::GPU_MEMORY, Quantity::bytes(total));
            }
        }
    }
    DeviceEntry { minor: device.map_or(0, |device| device.minor), id, resources, extension: None }
}

//! Whether the identified pod may be served, and with which devices.

use std::collections::BTreeSet;

use super::assignment::{Assignment, delivers, kind_of};
use super::identify::Caller;
use super::ledger::{Entry, Slot};
use super::plan::Plan;
use super::policy::{IdMismatch, LockMode, Unassigned};
use super::refusal::{Refusal, Rule};
use super::room::{self, ByPod, Claim};
use super::sight::{Call, Fresh, Sight};
use super::unassigned;
use crate::contract::hint::Count;
use crate::contract::{DeviceEntry, DeviceId, DeviceType, GpuRequest, LockRead, PodKey, key};
use crate::decide::lock::{Named, names};
use crate::decide::pod::{ExpectedCall, HandoffPod, PodContainer};

/// The devices for one call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Devices {
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
pub type Refused = Box<(Refusal, Fresh)>;

/// Judges one call of a known caller by every rule.
pub fn devices(sight: &Sight<'_>, call: &Call<'_>, caller: &Caller<'_>) -> Result<Devices, Refused> {
    let Caller { pod, container, .. } = *caller;
    let refuse = |rule: Rule, why: String| -> Refused {
        let rests_on = Fresh::pods_and_node([pod.pod.key.clone()]);
        Box::new((Refusal::of(rule, &pod.pod, &container.name, call.resource, why), rests_on))
    };
    may_be_served(sight, pod).map_err(|(rule, why)| refuse(rule, why))?;
    let request = ExpectedCall { container, resource: call.resource, count: call.count };
    let assignment = Assignment::read(pod, sight.inventory).map_err(|error| {
        refuse(Rule::BadAssignment, format!("{error}; the whole assignment is refused, delete and re-create the pod"))
    })?;
    let Some(assignment) = assignment else {
        return unassigned_devices(sight, call, caller, &request).map_err(|(rule, why)| refuse(rule, why));
    };
    if let Some(other) = assignment.node.as_deref().filter(|node| *node != sight.node) {
        let why =
            format!("its devices were assigned on node {other}, this is {}; delete and re-create the pod", sight.node);
        return Err(refuse(Rule::OtherNode, why));
    }
    is_entitled(sight, pod).map_err(|(rule, why)| refuse(rule, why))?;
    if !delivers(&request) {
        return Ok(Devices { served: vec![], shares: false, mismatch: false, assigned: true });
    }
    let kind = kind_of(call.resource);
    let mut plan = Plan::new(pod, &assignment, sight.ledger, sight.inventory);
    let chosen: BTreeSet<DeviceId> = call.ids.iter().filter_map(|id| DeviceId::of_kubelet_id(id).ok()).collect();
    plan.adopt(container, &kind, &chosen);
    let entries = plan.of(&container.name, &kind);
    fits_request(pod, container, &kind, entries).map_err(|why| refuse(Rule::Plan, why))?;
    are_usable(sight, entries, &kind).map_err(|(rule, why)| refuse(rule, why))?;
    have_room(sight, pod, container, &kind, entries).map_err(|full| {
        let users = full.users.iter().filter_map(|uid| sight.ledger.of_pod(uid).next());
        let users: Vec<_> = users.map(|entry| entry.pod.key.clone()).collect();
        let by: Vec<String> = users.iter().map(ToString::to_string).collect();
        let by = if by.is_empty() { String::new() } else { format!(", held by {}", by.join(" and ")) };
        let why = format!("{full}{by}; delete and re-create the pod so that it is assigned free devices");
        let mut refused = refuse(Rule::NoRoom, why);
        refused.1.pods.extend(users);
        // Whoever else has what is assigned is asked about at once: eight GPUs of a node may have eight holders that are gone.
        refused.1.pods.extend(holders(sight, pod, entries));
        refused
    })?;
    let served: BTreeSet<&DeviceId> = entries.iter().flat_map(DeviceEntry::named).collect();
    let mismatch = !call.ids.is_empty() && !chosen.iter().all(|id| served.contains(id));
    if mismatch && sight.policy.id_mismatch == IdMismatch::Reject {
        let list =
            |ids: &mut dyn Iterator<Item = &DeviceId>| ids.map(ToString::to_string).collect::<Vec<_>>().join(", ");
        let why = format!(
            "the kubelet chose {} and the assignment is {}; --id-mismatch=reject refuses that, serve-assignment would serve the assignment",
            list(&mut chosen.iter()),
            list(&mut entries.iter().map(|entry| &entry.id)),
        );
        return Err(refuse(Rule::IdMismatch, why));
    }
    let shares = entries.iter().any(|entry| !room::is_whole(&kind, entry));
    let served = entries.iter().map(|entry| (kind.clone(), entry.clone())).collect();
    Ok(Devices { served, shares, mismatch, assigned: true })
}

type Broken = (Rule, String);

/// Bound here, not ended, not being deleted.
fn may_be_served(sight: &Sight<'_>, pod: &HandoffPod) -> Result<(), Broken> {
    if !sight.is_here(pod) {
        let on = pod.node.as_deref().unwrap_or("no node");
        return Err((Rule::NotHere, format!("the pod is bound to {on}, this is node {}", sight.node)));
    }
    if pod.phase.is_terminal() {
        return Err((Rule::Terminal, format!("the pod has ended ({:?})", pod.phase)));
    }
    if pod.deleting.is_some() {
        return Err((Rule::Deleting, "the pod is being deleted".to_owned()));
    }
    Ok(())
}

/// The lock is this bind's, or, under `auto`, a known scheduler placed the pod. Under `always` a pod that has been served
/// before needs neither.
fn is_entitled(sight: &Sight<'_>, pod: &HandoffPod) -> Result<(), Broken> {
    match sight.policy.lock {
        LockMode::Always => is_locked(sight, pod),
        // A lock of this bind proves as much as a name.
        LockMode::Auto => was_scheduled(sight, pod).or_else(|why| is_locked(sight, pod).map_err(|_| why)),
    }
}

fn is_locked(sight: &Sight<'_>, pod: &HandoffPod) -> Result<(), Broken> {
    if sight.ledger.holds(&pod.pod.uid) {
        return Ok(());
    }
    let node = sight.node;
    let raw = sight.lock.raw().unwrap_or_default();
    let raw = &raw[..raw.floor_char_boundary(200)];
    let named = match sight.lock {
        LockRead::Free => None,
        LockRead::Held { value, .. } => Some(names(value, pod)),
        LockRead::Malformed { .. } => Some(Named::No),
    };
    let why = match named {
        Some(Named::Yes) => return Ok(()),
        None => format!(
            "node {node} has no lock, so no scheduler is handing devices to this pod now; schedule it with one of {}",
            sight.policy.scheduler_names.join(", ")
        ),
        Some(Named::No) => format!("the lock of node {node} is another pod's ({raw}); delete and re-create this pod"),
        Some(Named::OtherBind) => format!(
            "the lock of node {node} ({raw}) is of another bind than the pod's bind-timestamp; delete and re-create the pod"
        ),
    };
    Err((Rule::Lock, why))
}

fn was_scheduled(sight: &Sight<'_>, pod: &HandoffPod) -> Result<(), Broken> {
    if !sight.policy.scheduler_names.contains(&pod.scheduler_name) {
        let why = format!(
            "its scheduler {} is none of --scheduler-names ({}), its assignment does not count",
            pod.scheduler_name,
            sight.policy.scheduler_names.join(", ")
        );
        return Err((Rule::Scheduler, why));
    }
    if !pod.scheduled_condition {
        let why =
            "it was placed by spec.nodeName and not by a scheduler (no PodScheduled condition); leave nodeName out";
        return Err((Rule::NotScheduled, why.to_owned()));
    }
    Ok(())
}

fn unassigned_devices(
    sight: &Sight<'_>,
    call: &Call<'_>,
    caller: &Caller<'_>,
    request: &ExpectedCall<'_>,
) -> Result<Devices, Broken> {
    if sight.policy.unassigned == Unassigned::Deny {
        let why = format!(
            "no scheduler assigned devices to the pod: set spec.schedulerName to one of {} (and leave spec.nodeName out), \
             or run the node's agent with --unassigned-pods=serve",
            sight.policy.scheduler_names.join(", ")
        );
        return Err((Rule::Unassigned, why));
    }
    if !delivers(request) {
        return Ok(Devices { served: vec![], shares: false, mismatch: false, assigned: false });
    }
    let kind = kind_of(call.resource);
    let entries = unassigned::entries(sight, call, caller).map_err(|why| (Rule::Unassigned, why))?;
    are_usable(sight, &entries, &kind)?;
    have_room(sight, caller.pod, caller.container, &kind, &entries)
        .map_err(|full| (Rule::NoRoom, format!("the kubelet chose a device in use: {full}")))?;
    let shares = entries.iter().any(|entry| !room::is_whole(&kind, entry));
    let served = entries.into_iter().map(|entry| (kind.clone(), entry)).collect();
    Ok(Devices { served, shares, mismatch: false, assigned: false })
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
    let has_vf = |entry: &DeviceEntry| entry.extension.as_ref().is_some_and(|extension| !extension.vfs.is_empty());
    match entries.iter().find(|entry| wants_whole && !room::is_whole(kind, entry) && !has_vf(entry)) {
        Some(entry) => Err(format!("it asks for whole devices and the assignment has a share of {}", entry.id)),
        None => Ok(()),
    }
}

/// Every device exists here, is of the right kind and healthy; a divided GPU is not usable itself.
fn are_usable(sight: &Sight<'_>, entries: &[DeviceEntry], kind: &DeviceType) -> Result<(), Broken> {
    for (entry, id) in entries.iter().flat_map(|entry| entry.named().map(move |id| (entry, id))) {
        let Some(device) = sight.inventory.devices.get(id).filter(|device| device.kind == *kind) else {
            let why = format!("node {} has no {kind} device {id}; delete and re-create the pod", sight.node);
            return Err((Rule::UnknownDevice, why));
        };
        if *id != entry.id && device.parent.as_ref().is_some_and(|parent| *parent != entry.id) {
            return Err((Rule::UnknownDevice, format!("virtual function {id} does not belong to {}", entry.id)));
        }
        if !device.healthy {
            let reason = device.reason.as_deref().unwrap_or("no reason known");
            let why =
                format!("device {id} is unhealthy ({reason}); delete and re-create the pod so that it gets another");
            return Err((Rule::Unhealthy, why));
        }
    }
    Ok(())
}

/// A pod that the watch does not show holds its devices until the watch's own word or a live read has said that it is deleted.
fn occupies(sight: &Sight<'_>, held: &Entry) -> bool {
    let uid = &held.pod.uid;
    let told = sight.pods.is_deleted(uid) || sight.fresh.pods.contains(&held.pod.key);
    let unconfirmed = sight.pods.by_uid(uid).is_none() && !told;
    unconfirmed || sight.ledger.is_live(held, sight.pods, sight.resources)
}

/// Other pods that have one of these devices.
fn holders(sight: &Sight<'_>, pod: &HandoffPod, entries: &[DeviceEntry]) -> BTreeSet<PodKey> {
    let wanted: BTreeSet<&DeviceId> =
        entries.iter().flat_map(|entry| entry.named().chain(std::iter::once(&entry.id))).collect();
    let has = |held: &&Entry| {
        held.pod.uid != pod.pod.uid
            && held
                .served
                .iter()
                .any(|(_, entry)| wanted.contains(&entry.id) || entry.named().any(|id| wanted.contains(id)))
    };
    sight.ledger.iter().filter(has).filter(|held| occupies(sight, held)).map(|held| held.pod.key.clone()).collect()
}

/// The container's devices beside everything that is served to live pods, this pod's other containers included.
fn have_room(
    sight: &Sight<'_>,
    pod: &HandoffPod,
    container: &PodContainer,
    kind: &DeviceType,
    entries: &[DeviceEntry],
) -> Result<(), room::Full> {
    let mut others = ByPod::new();
    let mut own = Vec::new();
    for held in sight.ledger.iter().filter(|held| occupies(sight, held)) {
        if held.pod.uid == pod.pod.uid
            && held.container == container.name
            && super::assignment::kind_of(&held.resource) == *kind
        {
            continue;
        }
        let claims = held.served.iter().map(|(kind, entry)| Claim { slot: held.slot, kind, entry });
        if held.pod.uid == pod.pod.uid {
            own.extend(claims);
        } else {
            others.entry(held.pod.uid.clone()).or_default().extend(claims);
        }
    }
    let slot = Slot::of(pod, &container.name);
    own.extend(entries.iter().map(|entry| Claim { slot, kind, entry }));
    room::fits(&own, &others, sight.inventory)
}

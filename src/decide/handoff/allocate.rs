//! One Allocate call, decided: identify, then validate; before any refusal look at the API server itself.

use super::context::{AllocateCall, AllocateContext, LiveReads};
use super::identify::{Caller, Identified, IdentifiedBy, identify};
use super::ledger::{CallState, ContainerSlot, LedgerEntry};
use super::listing::EntryKey;
use super::refusal::{AllocateRefusal, PodNotice};
use super::validate;
use baton_contract::{EventReason, PodUid};

/// What the agent does with a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AllocateOutcome {
    /// Read these live, then decide again.
    NeedLive(LiveReads),
    /// A new grant: build the answer, write the entry, answer.
    Serve(Box<NewGrant>),
    /// Asked before: the stored answer again, with this call's ids on record.
    Repeat {
        /// The entry.
        key: EntryKey,
        /// How the pod was identified.
        how: IdentifiedBy,
    },
    /// An error; the kubelet fails the pod with its text.
    Refuse(AllocateRefusal),
}

/// A new grant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewGrant {
    /// What goes into the ledger; its answer is to be filled in.
    pub entry: LedgerEntry,
    /// How the pod was identified.
    pub how: IdentifiedBy,
    /// The entries are parts of devices.
    pub shares: bool,
    /// The kubelet's ids name other devices than the ones served.
    pub mismatch: bool,
    /// Events to write.
    pub notices: Vec<PodNotice>,
}

/// Decides an Allocate call. `known` is the identification that the preference call just before gave for the same ids.
pub fn decide(context: &AllocateContext<'_>, call: &AllocateCall<'_>, known: Option<&EntryKey>) -> AllocateOutcome {
    let remembered = known.and_then(|key| remembered(context, key));
    let caller = match remembered.map_or_else(|| identify(context, call), Identified::Caller) {
        Identified::Caller(caller) => caller,
        Identified::NeedLive(missing) => return AllocateOutcome::NeedLive(missing),
        Identified::Refuse(refusal, rests_on) => return refuse(context, refusal, rests_on),
    };
    let rests_on = LiveReads::pods_and_node([caller.pod.pod.key.clone()]);
    // A pod whose call failed has been rejected by the kubelet: what calls by its name may be its successor.
    let is_sure = context.is_up_to_date() && !context.ledger.is_over(&caller.pod.pod.uid);
    if let Some(missing) = rests_on.missing(context.live_reads).filter(|_| !is_sure) {
        return AllocateOutcome::NeedLive(missing);
    }
    serve(context, call, &caller)
}

fn serve(context: &AllocateContext<'_>, call: &AllocateCall<'_>, caller: &Caller<'_>) -> AllocateOutcome {
    let key = EntryKey::new(&caller.pod.pod.uid, &caller.container.name, call.resource);
    let Some(entry) = context.ledger.get(&key).filter(|entry| entry.was_asked()) else {
        return grant(context, call, caller);
    };
    // The kubelet's list names no uid, and a list of pods may be an old one: what asks again may be a successor of the same name.
    if let Some(missing) = LiveReads::pods([caller.pod.pod.key.clone()]).missing(context.live_reads) {
        return AllocateOutcome::NeedLive(missing);
    }
    // A rebuilt entry may hold more than its container has, so that nothing of it goes to another pod.
    if entry.answer.is_none()
        && let Err(refused) = validate::repetition(context, call, caller, entry)
    {
        let (refusal, rests_on) = *refused;
        return refuse(context, refusal, rests_on);
    }
    AllocateOutcome::Repeat { key, how: caller.how }
}

fn grant(context: &AllocateContext<'_>, call: &AllocateCall<'_>, caller: &Caller<'_>) -> AllocateOutcome {
    match validate::devices(context, call, caller) {
        Ok(devices) => AllocateOutcome::Serve(Box::new(serving(call, caller, devices))),
        Err(refused) => {
            let (refusal, rests_on) = *refused;
            refuse(context, refusal, rests_on)
        }
    }
}

/// No refusal rests on watched state alone.
fn refuse(context: &AllocateContext<'_>, refusal: AllocateRefusal, rests_on: LiveReads) -> AllocateOutcome {
    match rests_on.missing(context.live_reads) {
        Some(missing) => AllocateOutcome::NeedLive(missing),
        None => AllocateOutcome::Refuse(refusal),
    }
}

fn remembered<'a>(context: &AllocateContext<'a>, key: &EntryKey) -> Option<Caller<'a>> {
    let pod = context.pods.by_uid(&key.uid).filter(|pod| context.may_call(pod))?;
    Some(Caller { pod, container: pod.container(&key.container)?, how: IdentifiedBy::Preference })
}

fn serving(call: &AllocateCall<'_>, caller: &Caller<'_>, devices: validate::ServedDevices) -> NewGrant {
    let Caller { pod, container, how } = *caller;
    let mut ids: Vec<Box<str>> = call.ids.iter().map(|id| id.as_str().into()).collect();
    ids.sort();
    let mut notices = Vec::new();
    if devices.mismatch {
        let served: Vec<String> = devices.served.iter().map(|(_, entry)| entry.id.to_string()).collect();
        let note = format!(
            "container {}, {}: the kubelet chose {}, the assigned {} were served",
            container.name,
            call.resource,
            ids.join(", "),
            served.join(", ")
        );
        notices.push(PodNotice::new(pod.pod.clone(), EventReason::DeviceIdMismatch, note));
    }
    let slot = ContainerSlot::of(pod, &container.name);
    let entry =
        LedgerEntry::new(&pod.pod, &container.name, call.resource, slot, ids, devices.served, CallState::Answered);
    let entry = LedgerEntry { assigned: devices.assigned, grace_seconds: pod.grace_seconds, ..entry };
    NewGrant { entry, how, shares: devices.shares, mismatch: devices.mismatch, notices }
}

/// Pods whose admission is over now that `caller` is under admission: all others that the kubelet lists, because it admits one pod
/// at a time. One that it resizes is not under admission.
pub fn passed_by(context: &AllocateContext<'_>, caller: &PodUid) -> Vec<PodUid> {
    let is_resized = context.pods.by_uid(caller).is_some_and(|pod| pod.resizing);
    let Some(listing) = context.resources.listing().filter(|_| !is_resized) else { return Vec::new() };
    let listed = context.pods.iter().filter(|pod| pod.pod.uid != *caller && listing.lists(&pod.pod.key));
    listed.map(|pod| pod.pod.uid.clone()).collect()
}

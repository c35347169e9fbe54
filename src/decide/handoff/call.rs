//! One Allocate call, decided: identify, then validate; before any refusal look at the API server itself.

use super::identify::{Caller, How, Identified, identify};
use super::ledger::{Entry, EntryKey, Slot, State};
use super::notice::Notice;
use super::rebuild;
use super::refusal::Refusal;
use super::sight::{Call, Fresh, Sight};
use super::validate;
use crate::contract::{ContainerRequest, PodKey, PodRef, PodUid, Quantity};
use crate::decide::pod::{AssignmentText, ContainerKind, HandoffPod, Phase, PodContainer};

/// What the agent does with a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// Read these live, then decide again.
    NeedLive(Fresh),
    /// A new grant: build the answer, write the entry, answer.
    Serve(Box<Serving>),
    /// Asked before: the stored answer again, with this call's ids on record.
    Repeat {
        /// The entry.
        key: EntryKey,
        /// How the pod was identified.
        how: How,
    },
    /// An error; the kubelet fails the pod with its text.
    Refuse(Refusal),
}

/// A new grant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Serving {
    /// What goes into the ledger; its answer is to be filled in.
    pub entry: Entry,
    /// How the pod was identified.
    pub how: How,
    /// The entries are parts of devices.
    pub shares: bool,
    /// The kubelet's ids name other devices than the ones served.
    pub mismatch: bool,
    /// Events to tell.
    pub notices: Vec<Notice>,
}

/// Decides an Allocate call. `known` is the identification that the preference call just before gave for the same ids.
pub fn decide(sight: &Sight<'_>, call: &Call<'_>, known: Option<&EntryKey>) -> Outcome {
    let remembered = known.and_then(|key| remembered(sight, key));
    let caller = match remembered.map_or_else(|| identify(sight, call), Identified::Caller) {
        Identified::Caller(caller) => caller,
        Identified::NeedLive(missing) => return Outcome::NeedLive(missing),
        Identified::Stranger { key, container } => return serve_stranger(sight, call, key, &container),
        Identified::Refuse(refusal, rests_on) => return refuse(sight, refusal, rests_on),
    };
    let rests_on = Fresh::pods_and_node([caller.pod.pod.key.clone()]);
    if let Some(missing) = rests_on.missing(sight.fresh).filter(|_| !sight.watching) {
        return Outcome::NeedLive(missing);
    }
    serve(sight, call, &caller)
}

/// A static pod is admitted before the API server has its mirror: what the call says of it is all that there is.
fn serve_stranger(sight: &Sight<'_>, call: &Call<'_>, key: PodKey, container: &str) -> Outcome {
    let limit = Some((call.resource, Quantity::units(call.count)));
    let container = PodContainer {
        name: container.into(),
        kind: ContainerKind::App,
        request: ContainerRequest::judge(limit),
        running: false,
        dra_backed: Vec::new(),
    };
    let pod = HandoffPod {
        pod: PodRef { uid: rebuild::unknown_uid(&key), key },
        node: Some(sight.node.into()),
        scheduler_name: "".into(),
        phase: Phase::Pending,
        deleting: None,
        scheduled_condition: false,
        created: jiff::Timestamp::UNIX_EPOCH,
        containers: vec![container].into(),
        assignment: AssignmentText::default(),
    };
    // Never a repetition: what was stored may be an earlier pod's of that name, and the kubelet asks because it keeps nothing.
    grant(sight, call, &Caller { pod: &pod, container: &pod.containers[0], how: How::PodResources })
}

fn serve(sight: &Sight<'_>, call: &Call<'_>, caller: &Caller<'_>) -> Outcome {
    let key = EntryKey::new(&caller.pod.pod.uid, &caller.container.name, call.resource);
    if sight.ledger.get(&key).is_some() {
        return Outcome::Repeat { key, how: caller.how };
    }
    grant(sight, call, caller)
}

fn grant(sight: &Sight<'_>, call: &Call<'_>, caller: &Caller<'_>) -> Outcome {
    match validate::devices(sight, call, caller) {
        Ok(devices) => Outcome::Serve(Box::new(serving(call, caller, devices))),
        Err(refused) => {
            let (refusal, rests_on) = *refused;
            refuse(sight, refusal, rests_on)
        }
    }
}

/// No refusal rests on watched state alone.
fn refuse(sight: &Sight<'_>, refusal: Refusal, rests_on: Fresh) -> Outcome {
    match rests_on.missing(sight.fresh) {
        Some(missing) => Outcome::NeedLive(missing),
        None => Outcome::Refuse(refusal),
    }
}

fn remembered<'a>(sight: &Sight<'a>, key: &EntryKey) -> Option<Caller<'a>> {
    let pod = sight.pods.by_uid(&key.uid).filter(|pod| sight.may_call(pod))?;
    Some(Caller { pod, container: pod.container(&key.container)?, how: How::Preference })
}

fn serving(call: &Call<'_>, caller: &Caller<'_>, devices: validate::Devices) -> Serving {
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
        notices.push(Notice::new(pod.pod.clone(), "DeviceIdMismatch", note));
    }
    let entry = Entry {
        pod: pod.pod.clone(),
        container: container.name.clone(),
        resource: call.resource.into(),
        slot: Slot::of(pod, &container.name),
        ids,
        served: devices.served,
        answer: None,
        state: State::Intent,
        asked: 1,
        seq: 0,
        assigned: devices.assigned,
    };
    Serving { entry, how, shares: devices.shares, mismatch: devices.mismatch, notices }
}

/// Pods whose admission is over now that `caller` is the one under admission: everybody else that the kubelet lists. It
/// admits one pod at a time.
pub fn passed_by(sight: &Sight<'_>, caller: &PodUid) -> Vec<PodUid> {
    let Some(listing) = sight.resources.listing() else { return Vec::new() };
    let listed = sight.pods.iter().filter(|pod| pod.pod.uid != *caller && listing.lists(&pod.pod.key));
    listed.map(|pod| pod.pod.uid.clone()).collect()
}

//! Which pod is calling. The ids alone never identify it: the kubelet reuses them inside a pod.
//!
//! A kubelet calls for containers of which it has no ids, in their order: when it admits the pod, one pod after the other, each once and,
//! since it may have lost its checkpoint, once more after it has started again, but for what runs then; and up to 1.36 when it resizes the
//! pod, whatever runs. It calls at no other time: for a container without ids that starts again it would call PreStartContainer first, and
//! has none to name (`.ci/real-node.lost`).

use std::collections::BTreeSet;

use super::context::{AllocateCall, AllocateContext, LiveReads};
use super::ledger::Ledger;
use super::listing::{ListedPod, PodListing, PodResources};
use super::refusal::{AllocateRefusal, AllocateRule};
use crate::lock::{LockMatch, names};
use crate::pod::{ContainerKind, HandoffPod, PodContainer};
use baton_contract::word::word_enum;
use baton_contract::{LockRead, LockValue, PodKey, PodRef, PodUid};

word_enum! {
    /// How a pod was identified; for metrics.
    IdentifiedBy {
        /// PodResources and the lock agree.
        Both = "pod-resources+lock",
        /// PodResources alone.
        PodResources = "pod-resources",
        /// The lock alone.
        Lock = "lock",
        /// From the preference call just before.
        Preference = "preference",
    }
}

/// The pod and container behind a call. The pod is bound here, has not ended and is not being deleted.
#[derive(Debug, Clone, Copy)]
pub struct Caller<'a> {
    /// The pod.
    pub pod: &'a HandoffPod,
    /// Its container.
    pub container: &'a PodContainer,
    /// How it is known.
    pub how: IdentifiedBy,
}

/// What came of looking.
#[derive(Debug, Clone)]
pub enum Identified<'a> {
    /// It is this one.
    Caller(Caller<'a>),
    /// No pod, or several; final only when everything it rests on was read live.
    Refuse(AllocateRefusal, LiveReads),
    /// These must be read live before anything can be said.
    NeedLive(LiveReads),
}

/// Identifies the caller. Refuses rather than guesses.
pub fn identify<'a>(context: &AllocateContext<'a>, call: &AllocateCall<'_>) -> Identified<'a> {
    match context.resources {
        PodResources::Listed(listing) => by_listing(context, call, listing),
        PodResources::Missing => by_lock(context, call),
        PodResources::Silent => {
            let why = "the kubelet's PodResources API did not list its pods in time, so that it is not known which pod calls; delete the pod, \
                       so that its owner or you create it again";
            let refusal = AllocateRefusal::without_pod(AllocateRule::Unidentified, call.resource, why);
            Identified::Refuse(refusal, LiveReads::default())
        }
    }
}

fn found(candidate: CallCandidate<'_>, how: IdentifiedBy) -> Identified<'_> {
    Identified::Caller(Caller { pod: candidate.pod, container: candidate.container, how })
}

/// The lock alone identifies the caller only as it stands now, and only while its holder waits: as watched, it may still be that of
/// a pod which the kubelet has rejected meanwhile, and the call that of its successor.
fn found_by_lock<'a>(candidate: CallCandidate<'a>, context: &AllocateContext<'a>) -> Identified<'a> {
    match LiveReads::pods_and_node([candidate.pod.pod.key.clone()]).missing(context.live_reads) {
        Some(missing) => Identified::NeedLive(missing),
        None => found(candidate, IdentifiedBy::Lock),
    }
}

/// The pod that the lock names, by this bind or another one, among those known here.
fn lock_holder<'a>(context: &AllocateContext<'a>) -> Option<&'a HandoffPod> {
    let LockRead::Held { value, .. } = context.lock else { return None };
    context.pods.iter().find(|pod| names(value, pod) != LockMatch::No)
}

/// Key of the pod that the lock names, where the format has one.
fn holder_key(lock: &LockRead) -> Option<&PodKey> {
    match lock {
        LockRead::Held { value: LockValue { holder: Some(holder), .. }, .. } => Some(&holder.pod),
        _ => None,
    }
}

/// Who may be calling, by what the kubelet lists.
#[derive(Default)]
struct ListedCallers<'a> {
    /// Containers that wait for devices.
    waiting: Vec<CallCandidate<'a>>,
    /// Containers for which the kubelet has asked, and of which it lists no ids: it may ask once more.
    again: Vec<CallCandidate<'a>>,
    /// The same, and those that may have been served, of pods that are being deleted or have ended.
    late: Vec<CallCandidate<'a>>,
    /// Containers that may have been served before the ledger was lost.
    behind: Vec<CallCandidate<'a>>,
    /// Pods that are not known here.
    unknown: Vec<PodKey>,
    /// Pods that cannot be calling, but of which a successor may.
    ended: Vec<PodKey>,
    /// Pods of containers that are not asked for any more, as far as is known.
    done: Vec<PodKey>,
}

impl<'a> ListedCallers<'a> {
    fn of(context: &AllocateContext<'a>, call: &AllocateCall<'_>, listing: &PodListing) -> Self {
        let mut found = Self::default();
        for listed in &listing.pods {
            let (mut known, mut may_call, mut is_asking) = (false, false, false);
            for pod in context.pods.of_key(&listed.key) {
                // An ended pod stays ended; only its successor could be calling, and the watch brings that. It is itself resized, and
                // calls, until its kubelet has read its end.
                let is_settled = if pod.phase.is_terminal() { !pod.resizing } else { pod.deleting.is_none() };
                known |= context.is_here(pod) && is_settled;
                is_asking |= pod.containers.iter().any(|container| asks(pod, container, call.resource).is_some());
                if context.may_call(pod) {
                    may_call = true;
                    found.waiting.extend(candidates(pod, (listed, false), call, context.ledger));
                }
                if !context.is_here(pod) {
                    continue;
                }
                // A kubelet asks for a pod until it has read of its deletion or end, and resizes it until its object is gone. It lists
                // none of which it has read that it has ended.
                let is_leaving = pod.deleting.is_some() || pod.phase.is_terminal();
                for of in without_ids(pod, listed, call, context.ledger) {
                    match of.asked > 0 && context.ledger.may_repeat(&pod.pod.uid) {
                        is_lost if is_leaving && (is_lost || pod.resizing) => found.late.push(of),
                        true => found.again.push(of),
                        // It runs without devices, and asks for them only if it is resized.
                        false if of.asked == 0 && of.container.running => found.done.push(pod.pod.key.clone()),
                        false => {}
                    }
                }
                // It may have been served before the ledger was lost: then its admission is over.
                if context.ledger.of_pod(&pod.pod.uid).any(|entry| !entry.was_asked()) {
                    let of_pod = candidates(pod, (listed, true), call, context.ledger);
                    let held = if is_leaving { &mut found.late } else { &mut found.behind };
                    held.extend(of_pod.into_iter().filter(|candidate| candidate.asked == 0));
                }
            }
            match (listed.lacks(call.resource) && !may_call, known) {
                (true, false) => found.unknown.push(listed.key.clone()),
                (true, true) if is_asking => found.ended.push(listed.key.clone()),
                _ => {}
            }
        }
        let Self { again, late, behind, done, .. } = &mut found;
        for of in [again, late, behind] {
            done.extend(of.extract_if(.., |of| !context.may_ask_for(of.pod, of.container)).map(|of| of.key()));
        }
        found
    }
}

fn by_listing<'a>(context: &AllocateContext<'a>, call: &AllocateCall<'_>, listing: &PodListing) -> Identified<'a> {
    let ListedCallers { waiting, again, late, behind, unknown, ended, done } =
        ListedCallers::of(context, call, listing);
    let mut left = likeliest(waiting, context);
    // Whatever pod seems to be under admission, the call may be for one of which the kubelet has lost the ids, or may have lost them. And
    // a call that seems to be for such a one may be that of the successor of a pod that has ended.
    let is_first = left.iter().any(|candidate| candidate.asked == 0);
    let lost = again.iter().chain(&late).chain(&behind).map(CallCandidate::key).chain(done);
    let doubtful = unknown.iter().cloned().chain(lost).chain(ended.into_iter().filter(|_| !is_first));
    if let Some(missing) = LiveReads::pods(doubtful).missing(context.live_reads) {
        return Identified::NeedLive(missing);
    }
    let own: BTreeSet<&PodUid> = left.iter().map(|candidate| &candidate.pod.pod.uid).collect();
    let is_beside =
        |of: &CallCandidate<'_>| (!of.container.running || of.pod.resizing) && !own.contains(&of.pod.pod.uid);
    if is_first {
        left.extend(again.into_iter().chain(late).chain(behind).filter(is_beside));
    } else {
        // A container that a status shows waiting hides those behind it: the status may be old, and the admission over.
        if left.is_empty() && !(again.is_empty() && behind.is_empty()) {
            left = likeliest(again, context);
            left.extend(unlisted_holder(context, call, listing));
        } else {
            left.extend(again.into_iter().filter(is_beside));
        }
        left.extend(behind);
        // What runs asks for nothing, and a plugin that registers in the middle of an admission is asked for the containers that are left.
        if !left.is_empty() && left.iter().all(|of| of.container.running) {
            left.extend(listing.pods.iter().flat_map(|listed| hidden(context, call, listed)));
        }
        let asks_late = |pod: &HandoffPod| {
            pod.containers.iter().any(|container| asks(pod, container, call.resource) == Some(call.count))
        };
        if !left.is_empty() && unknown.iter().any(|key| context.pods.of_key(key).all(asks_late)) {
            let (refusal, rests_on) = unidentified(context, call, &unknown);
            return Identified::Refuse(refusal, rests_on);
        }
    }
    left.dedup_by_key(|candidate| (&candidate.pod.pod.uid, &candidate.container.name));
    match left.as_slice() {
        [only] => {
            let named = lock_holder(context).is_some_and(|holder| holder.pod.uid == only.pod.pod.uid);
            found(*only, if named { IdentifiedBy::Both } else { IdentifiedBy::PodResources })
        }
        [] => none_listed(context, call, listing, &unknown),
        many => ambiguous(many, call),
    }
}

/// Containers of pods under admission, also behind one that lacks devices.
fn hidden<'a>(
    context: &AllocateContext<'a>,
    call: &AllocateCall<'_>,
    listed: &ListedPod,
) -> impl Iterator<Item = CallCandidate<'a>> {
    let here = context.pods.of_key(&listed.key).filter(|pod| context.may_call(pod));
    let all = here.flat_map(|pod| candidates(pod, (listed, true), call, context.ledger));
    all.filter(|of| of.asked == 0 && !of.admitted && context.may_ask_for(of.pod, of.container))
}

/// Containers of which the kubelet lists no ids: of a served one it has lost them. Plain init containers are never listed.
fn without_ids<'a>(
    pod: &'a HandoffPod,
    listed: &ListedPod,
    call: &AllocateCall<'_>,
    ledger: &Ledger,
) -> impl Iterator<Item = CallCandidate<'a>> {
    pod.containers.iter().filter_map(move |container| {
        let asked = ledger.asked(&pod.pod.uid, &container.name, call.resource);
        let is_lost = container.kind != ContainerKind::Init && listed.ids(&container.name, call.resource).is_none();
        let is_same = asks(pod, container, call.resource) == Some(call.count);
        (is_lost && is_same).then_some(CallCandidate { pod, container, asked, admitted: true })
    })
}

/// Pods under admission first, unserved before served. Then all pods of which a container runs: a status that says which container
/// has ended may be on its way, so it cannot decide between them. Unserved containers that run were admitted without a call and
/// will not call. A served one that waits calls beside pods that the kubelet admits once more, and one that is resized beside all.
fn likeliest<'a>(mut candidates: Vec<CallCandidate<'a>>, context: &AllocateContext<'_>) -> Vec<CallCandidate<'a>> {
    let may_ask = |of: &CallCandidate<'_>| context.may_ask_for(of.pod, of.container);
    candidates.retain(|of| of.asked == 0 || may_ask(of));
    let rank = |of: &CallCandidate<'_>| match (of.asked, of.container.running, of.admitted) {
        (0, true, _) => None,
        (0, false, false) if may_ask(of) => Some(0),
        (0, false, false) => Some(1),
        (_, false, false) => Some(2),
        (_, _, true) | (_, true, false) => Some(3),
    };
    let best = candidates.iter().filter_map(rank).min();
    let waits = |of: &CallCandidate<'_>| best == Some(2) && of.asked > 0 && !of.container.running;
    // Of a plain init container, which is never listed, the kubelet has the ids, unless it has started again since.
    let is_resized = |of: &CallCandidate<'_>| {
        let is_kept = of.container.kind == ContainerKind::Init && !context.ledger.may_repeat(&of.pod.pod.uid);
        of.pod.resizing && (of.asked == 0 || !is_kept)
    };
    candidates.retain(|of| best.is_some() && rank(of) == best || waits(of) || is_resized(of));
    candidates
}

/// PodResources works and lists no pod that could be calling. The lock's holder can be calling only if the kubelet does not list it
/// (it lists the pod under admission, so this is a kubelet of another kind) and every listed pod is known.
fn none_listed<'a>(
    context: &AllocateContext<'a>,
    call: &AllocateCall<'_>,
    listing: &PodListing,
    unknown: &[PodKey],
) -> Identified<'a> {
    if let Some(candidate) = unlisted_holder(context, call, listing).filter(|_| unknown.is_empty()) {
        return found_by_lock(candidate, context);
    }
    let (refusal, mut rests_on) = unidentified(context, call, unknown);
    if let Some(invalid) = invalid_request(context, call, listing) {
        rests_on.pods.extend(invalid.pods.iter().map(|pod| pod.key.clone()));
        return Identified::Refuse(invalid, rests_on);
    }
    Identified::Refuse(refusal, rests_on)
}

/// No pod that may be served is known to be calling, and what that rests on.
fn unidentified(
    context: &AllocateContext<'_>,
    call: &AllocateCall<'_>,
    unknown: &[PodKey],
) -> (AllocateRefusal, LiveReads) {
    let why = match unknown {
        [] => format!(
            "no pod on node {} that could be calling waits for {} of it; delete the pod, so that its owner or you create it again",
            context.node, call.count
        ),
        [pod, ..] => format!(
            "the kubelet seems to be admitting pod {pod}, which is deleted, has ended or is not bound to this node, or is a static pod: no \
             scheduler assigns devices to those; run it as a pod of the API server, of a DaemonSet for example"
        ),
    };
    let rests_on = unknown.iter().chain(holder_key(context.lock)).cloned();
    let refusal = AllocateRefusal::without_pod(AllocateRule::Unidentified, call.resource, why);
    (refusal, LiveReads::pods_and_node(rests_on))
}

/// The first call of the lock's holder, where the kubelet does not list it.
fn unlisted_holder<'a>(
    context: &AllocateContext<'a>,
    call: &AllocateCall<'_>,
    listing: &PodListing,
) -> Option<CallCandidate<'a>> {
    let holder = lock_holder(context).filter(|pod| context.may_call(pod) && !listing.lists(&pod.pod.key));
    holder.and_then(|pod| may_ask(pod, call, context).into_iter().find(|candidate| candidate.asked == 0))
}

/// A listed pod that asks for this resource in a way that cannot be served, and came here past the scheduler.
fn invalid_request(
    context: &AllocateContext<'_>,
    call: &AllocateCall<'_>,
    listing: &PodListing,
) -> Option<AllocateRefusal> {
    let listed = context.pods.iter().filter(|pod| context.may_call(pod) && listing.lists(&pod.pod.key));
    let mut broken = listed.flat_map(|pod| {
        pod.containers.iter().filter_map(move |container| Some((pod, container, container.request.as_ref().err()?)))
    });
    let (pod, container, error) = broken.find(|(_, container, _)| !container.running)?;
    Some(AllocateRefusal::of(AllocateRule::Plan, &pod.pod, &container.name, call.resource, error))
}

/// Without PodResources the lock's holder is served, read live, where nothing else may be making this call; a repetition never is.
fn by_lock<'a>(context: &AllocateContext<'a>, call: &AllocateCall<'_>) -> Identified<'a> {
    let here = context.pods.iter().filter(|pod| context.is_here(pod) && !pod.phase.is_terminal());
    let waiting: Vec<CallCandidate<'a>> = here.flat_map(|pod| may_ask(pod, call, context)).collect();
    let holder = lock_holder(context).filter(|pod| context.may_call(pod));
    let is_holders = |of: &CallCandidate<'_>| holder.is_some_and(|holder| holder.pod.uid == of.pod.pod.uid);
    // Cut off from the API server, a kubelet that has started again starts containers of pods that have left.
    let left = context.ledger.iter().filter(|entry| {
        let uid = &entry.pod.uid;
        *entry.resource == *call.resource && context.ledger.may_repeat(uid) && context.pods.has_left(uid)
    });
    let left: BTreeSet<&PodRef> = left.map(|entry| &entry.pod).collect();
    let first = waiting.iter().find(|of| is_holders(of) && of.asked == 0);
    match first {
        Some(first) if left.is_empty() && waiting.iter().all(|of| is_holders(of) && of.asked == 0) => {
            found_by_lock(*first, context)
        }
        _ => {
            let pods: BTreeSet<&PodRef> = left.into_iter().chain(waiting.iter().map(|of| &of.pod.pod)).collect();
            let names: Vec<String> = pods.iter().take(4).map(|pod| pod.key.to_string()).collect();
            let why = format!(
                "the kubelet has no PodResources API, and the lock of node {} alone does not tell which pod calls for {} of it ({}); \
                 mount pod-resources of the kubelet's --root-dir into the node daemon (--pod-resources-socket), every kubelet since 1.28 has it",
                context.node,
                call.count,
                if names.is_empty() { "none waits for that".to_owned() } else { names.join(" or ") }
            );
            let rule = first.map_or(AllocateRule::Unidentified, |_| AllocateRule::Ambiguous);
            let rests_on = pods.iter().map(|pod| &pod.key).chain(holder_key(context.lock)).cloned();
            let refusal = AllocateRefusal::without_pod(rule, call.resource, why);
            let named = pods.iter().filter(|_| first.is_some()).map(|pod| (*pod).clone()).collect();
            Identified::Refuse(AllocateRefusal { pods: named, ..refusal }, LiveReads::pods_and_node(rests_on))
        }
    }
}

/// Containers of the pod for which the kubelet may make this call: before any of them starts, and once more after it has started again
/// without its checkpoint. A status that says that one runs is an old one where the kubelet has begun to ask for the pod once more.
fn may_ask<'a>(pod: &'a HandoffPod, call: &AllocateCall<'_>, context: &AllocateContext<'_>) -> Vec<CallCandidate<'a>> {
    let admitted = pod.containers.iter().any(|container| container.running);
    let ledger = context.ledger;
    let repeats = context.ledger.may_repeat(&pod.pod.uid);
    let has_begun = ledger.of_pod(&pod.pod.uid).any(|entry| entry.asked > 1);
    let asking = pod.containers.iter().filter(|container| asks(pod, container, call.resource) == Some(call.count));
    let candidates = asking.map(|container| {
        let asked = ledger.asked(&pod.pod.uid, &container.name, call.resource);
        CallCandidate { pod, container, asked, admitted }
    });
    let may_ask = |of: &CallCandidate<'_>| match of.asked {
        0 => !admitted || pod.resizing,
        _ => repeats && (has_begun || !of.container.running || pod.resizing),
    };
    candidates.filter(may_ask).collect()
}

fn ambiguous<'a>(candidates: &[CallCandidate<'_>], call: &AllocateCall<'_>) -> Identified<'a> {
    let one_pod = candidates.iter().all(|candidate| candidate.pod.pod.uid == candidates[0].pod.pod.uid);
    let names: Vec<String> = candidates
        .iter()
        .take(4)
        .map(|candidate| format!("{} (container {})", candidate.pod.pod.key, candidate.container.name))
        .collect();
    let text = format!(
        "{}: {} {} could be calling for {} of it and nothing tells them apart: {}; {}",
        call.resource,
        candidates.len(),
        if one_pod { "containers" } else { "pods" },
        call.count,
        names.join(" and "),
        if one_pod {
            "delete the pod, so that its owner or you create it again"
        } else {
            "delete the one that should not be here"
        },
    );
    let mut pods: Vec<_> = candidates.iter().map(|candidate| candidate.pod.pod.clone()).collect();
    pods.dedup();
    let rests_on = LiveReads::pods_and_node(pods.iter().map(|pod| pod.key.clone()));
    Identified::Refuse(AllocateRefusal { rule: AllocateRule::Ambiguous, text, pods }, rests_on)
}

/// The container of one pod that a call would be for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct CallCandidate<'a> {
    pod: &'a HandoffPod,
    container: &'a PodContainer,
    /// How often the kubelet has asked for it already; 0 is unserved.
    asked: u32,
    /// Some container of the pod runs: its admission is over.
    admitted: bool,
}

impl CallCandidate<'_> {
    fn key(&self) -> PodKey {
        self.pod.pod.key.clone()
    }
}

/// The container of `pod` that is next on this resource; several when nothing distinguishes them. `listed` is what PodResources says
/// of the pod; it may look behind a container that lacks its ids and waits.
///
/// The kubelet goes through init containers and sidecars in spec order, then app containers, and makes all calls of a
/// container before it comes to the next. So a listed container with devices proves that everything before it is done, and
/// behind the first container that lacks this resource no container is asked for yet, unless its pod was admitted while no plugin was
/// known. Plain init containers are never listed.
/// What remains is the unserved before the served, then the kubelet's order.
///
/// A kubelet that has lost its checkpoint admits its pods once more and asks for what does not run, ended init containers
/// among that. So one that runs comes after all that do not, unless its pod is resized; and among several that the API shows running, one
/// has ended and its status is still on its way.
fn candidates<'a>(
    pod: &'a HandoffPod,
    (listed, looks_behind): (&ListedPod, bool),
    call: &AllocateCall<'_>,
    ledger: &Ledger,
) -> Vec<CallCandidate<'a>> {
    let reached = pod.containers.iter().rposition(|container| listed.has_devices(&container.name)).unwrap_or(0);
    let admitted = pod.containers.iter().any(|container| container.running);
    // An admission goes by what ran as the kubelet started; a resize asks for all containers without ids.
    let has_lost = pod.resizing && ledger.may_repeat(&pod.pod.uid);
    let mut candidates = Vec::new();
    for (order, container) in pod.containers.iter().enumerate() {
        let is_listed_kind = container.kind != ContainerKind::Init;
        let Some(count) = asks(pod, container, call.resource) else { continue };
        let done = if is_listed_kind {
            listed.ids(&container.name, call.resource).is_some()
        } else {
            order < reached && !has_lost
        };
        if done {
            continue;
        }
        if count == call.count {
            let asked = ledger.asked(&pod.pod.uid, &container.name, call.resource);
            candidates.push(CallCandidate { pod, container, asked, admitted });
        }
        if !looks_behind && is_listed_kind && !container.running {
            break;
        }
    }
    // `min_by_key` takes the first of equals: the kubelet's order.
    let first = candidates
        .iter()
        .filter(|candidate| !candidate.container.running)
        .min_by_key(|candidate| candidate.asked)
        .copied();
    candidates.retain(|of| match first {
        _ if pod.resizing && of.container.running => true,
        Some(first) => *of == first,
        // Unserved containers that run were admitted without a call and will not call.
        None => of.asked > 0,
    });
    candidates
}

/// The number of ids that the kubelet will ask for, if this container's call comes to this agent at all.
fn asks(pod: &HandoffPod, container: &PodContainer, resource: &str) -> Option<i64> {
    pod.expected_calls(|name| name == resource)
        .find(|call| call.container.name == container.name)
        .map(|call| call.count)
}

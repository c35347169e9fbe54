//! Which pod is calling? Ids alone never tell: the kubelet reuses them inside a pod.

use super::holder;
use super::listing::Listing;
use super::policy::Unassigned;
use super::refusal::{Refusal, Rule};
use super::sight::{Call, Fresh, Sight};
use super::turn::{Turn, turns};
use crate::contract::PodKey;
use crate::decide::pod::{HandoffPod, PodContainer};

/// How a pod was identified; for metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum How {
    /// PodResources and the lock agree.
    Both,
    /// PodResources alone.
    PodResources,
    /// The lock alone.
    Lock,
    /// From the preference call just before.
    Preference,
}

impl How {
    /// One word for metrics.
    pub fn word(self) -> &'static str {
        match self {
            Self::Both => "pod-resources+lock",
            Self::PodResources => "pod-resources",
            Self::Lock => "lock",
            Self::Preference => "preference",
        }
    }
}

/// The pod and container behind a call.
#[derive(Debug, Clone, Copy)]
pub struct Caller<'a> {
    /// The pod.
    pub pod: &'a HandoffPod,
    /// Its container.
    pub container: &'a PodContainer,
    /// How it is known.
    pub how: How,
}

/// What came of looking.
#[derive(Debug, Clone)]
pub enum Identified<'a> {
    /// It is this one.
    Caller(Caller<'a>),
    /// Nobody, or too many; final only when everything it rests on was read live.
    Refuse(Refusal, Fresh),
    /// The kubelet lists one pod more than the API server has, a static pod under admission: its mirror comes later.
    Stranger {
        /// Its name as listed.
        key: PodKey,
        /// The only container without this resource.
        container: Box<str>,
    },
    /// These must be read live before anything can be said.
    NeedLive(Fresh),
}

/// Identifies the caller. Refuses rather than guesses.
pub fn identify<'a>(sight: &Sight<'a>, call: &Call<'_>) -> Identified<'a> {
    match sight.resources.listing() {
        Some(listing) => by_listing(sight, call, listing),
        None => by_lock(sight, call),
    }
}

fn found(turn: Turn<'_>, how: How) -> Identified<'_> {
    Identified::Caller(Caller { pod: turn.pod, container: turn.container, how })
}

/// The pod that the lock names, among those known here.
fn lock_holder<'a>(sight: &Sight<'a>) -> Option<&'a HandoffPod> {
    sight.pods.iter().find(|pod| holder::is_of(sight.lock, pod))
}

fn by_listing<'a>(sight: &Sight<'a>, call: &Call<'_>, listing: &Listing) -> Identified<'a> {
    let mut waiting: Vec<Turn<'a>> = Vec::new();
    let mut unknown: Vec<PodKey> = Vec::new();
    for listed in &listing.pods {
        let mut known = false;
        for pod in sight.pods.of_key(&listed.key) {
            // An ended pod stays ended; only its successor could be calling, and the watch brings that.
            known |= sight.is_here(pod) && (pod.deleting.is_none() || pod.phase.is_terminal());
            if sight.may_call(pod) {
                waiting.extend(turns(pod, Some(listed), call, sight.ledger));
            }
        }
        if !known && listed.lacks(call.resource) {
            unknown.push(listed.key.clone());
        }
    }
    if let Some(missing) = Fresh::pods(unknown.iter().cloned()).missing(sight.fresh) {
        return Identified::NeedLive(missing);
    }
    let mut left = likeliest(waiting, sight);
    left.dedup_by_key(|turn| (&turn.pod.pod.uid, &turn.container.name));
    match left.as_slice() {
        [only] => {
            let named = lock_holder(sight).is_some_and(|holder| holder.pod.uid == only.pod.pod.uid);
            found(*only, if named { How::Both } else { How::PodResources })
        }
        [] => nobody_listed(sight, call, listing, &unknown),
        many => ambiguous(many, call),
    }
}

/// Under admission, unserved before served. Then everybody of whom something runs: the API's word on which container has ended
/// may be on its way, so that it does not tell one pod from another. Unserved containers that run were admitted without a call
/// and will not call.
fn likeliest<'a>(turns: Vec<Turn<'a>>, sight: &Sight<'_>) -> Vec<Turn<'a>> {
    let rank = |turn: &Turn<'_>| match (turn.asked, turn.container.running, turn.admitted) {
        (0, true, _) => None,
        (0, false, false) if !sight.passed.contains(&turn.pod.pod.uid) => Some(0),
        (0, false, false) => Some(1),
        (_, false, false) => Some(2),
        (_, _, true) | (_, true, false) => Some(3),
    };
    let best = turns.iter().filter_map(rank).min();
    turns.into_iter().filter(|turn| best.is_some() && rank(turn) == best).collect()
}

/// PodResources works and shows nobody. The lock's holder can be calling only if the kubelet does not list it (it lists
/// the pod under admission, so this is a kubelet of another kind) and nobody that is listed is a riddle.
fn nobody_listed<'a>(sight: &Sight<'a>, call: &Call<'_>, listing: &Listing, unknown: &[PodKey]) -> Identified<'a> {
    let holder = lock_holder(sight).filter(|pod| sight.may_call(pod) && !listing.lists(&pod.pod.key));
    let its_turn = holder.and_then(|pod| only_turn(pod, call, sight)).filter(|turn| turn.asked == 0);
    if let Some(turn) = its_turn.filter(|_| unknown.is_empty()) {
        return found(turn, How::Lock);
    }
    let keys = unknown.iter().cloned().chain(holder::key(sight.lock).cloned());
    if let Some(refusal) = invalid_request(sight, call, listing) {
        let judged: Vec<PodKey> = refusal.pods.iter().map(|pod| pod.key.clone()).collect();
        return Identified::Refuse(refusal, Fresh::pods_and_node(keys.chain(judged)));
    }
    let rests_on = Fresh::pods_and_node(keys);
    if let Some((key, container)) = stranger(sight, call, listing, unknown) {
        return match rests_on.missing(sight.fresh) {
            Some(missing) => Identified::NeedLive(missing),
            None => Identified::Stranger { key, container },
        };
    }
    let why = match unknown {
        [] => format!(
            "no pod on node {} that could be calling waits for {} of it; delete the pod, so that its owner or you create it again",
            sight.node, call.count
        ),
        [pod, ..] => format!(
            "the kubelet seems to be admitting pod {pod}, which is deleted or not bound to this node, or is a static pod: no \
             scheduler assigns devices to those (--unassigned-pods=serve serves one whose only container asks)"
        ),
    };
    Identified::Refuse(Refusal::nobody(Rule::Unidentified, call.resource, why), rests_on)
}

/// The one listed pod that the API server does not have under any uid, where the operator lets unassigned pods be served.
fn stranger(sight: &Sight<'_>, call: &Call<'_>, listing: &Listing, unknown: &[PodKey]) -> Option<(PodKey, Box<str>)> {
    let [key] = unknown else { return None };
    if sight.policy.unassigned != Unassigned::Serve || sight.pods.of_key(key).next().is_some() {
        return None;
    }
    let mut listed = listing.of(key);
    let (pod, None) = (listed.next()?, listed.next()) else { return None };
    let mut lacking = pod.containers.keys().filter(|container| pod.ids(container, call.resource).is_none());
    // With several nothing tells which one asks: the listing has no order.
    let (container, None) = (lacking.next()?, lacking.next()) else { return None };
    Some((key.clone(), container.clone()))
}

/// A listed pod that asks for this resource in a way that cannot be served, and came here past the scheduler.
fn invalid_request(sight: &Sight<'_>, call: &Call<'_>, listing: &Listing) -> Option<Refusal> {
    let listed = sight.pods.iter().filter(|pod| sight.may_call(pod) && listing.lists(&pod.pod.key));
    let mut broken = listed.flat_map(|pod| {
        pod.containers.iter().filter_map(move |container| Some((pod, container, container.request.as_ref().err()?)))
    });
    let (pod, container, error) = broken.find(|(_, container, _)| !container.running)?;
    Some(Refusal::of(Rule::Plan, &pod.pod, &container.name, call.resource, error))
}

/// Without PodResources only the lock tells, and it tells nothing when somebody else could be calling.
fn by_lock<'a>(sight: &Sight<'a>, call: &Call<'_>) -> Identified<'a> {
    let holder_key = || Fresh::pods_and_node(holder::key(sight.lock).cloned());
    let holder = lock_holder(sight).filter(|pod| sight.may_call(pod));
    let Some(turn_of_holder) = holder.and_then(|pod| only_turn(pod, call, sight)) else {
        let why = format!(
            "cannot tell which pod is calling: the kubelet's PodResources API does not answer and the lock of node {} \
             names no pod that waits for {} of it; enable the PodResources API (--pod-resources-socket)",
            sight.node, call.count
        );
        return Identified::Refuse(Refusal::nobody(Rule::Unidentified, call.resource, why), holder_key());
    };
    let rivals = sight
        .pods
        .iter()
        .filter(|pod| pod.pod.uid != turn_of_holder.pod.pod.uid && sight.is_here(pod) && !pod.phase.is_terminal());
    let rivals = rivals.flat_map(|pod| turns(pod, None, call, sight.ledger));
    // A kubelet that has started again asks for served pods once more, until they run. A holder that was served already is
    // proof of that; else whoever saw the kubelet go tells. The stored answer must not go to the wrong pod, nor the
    // holder's devices to one that repeats.
    let repeats = |turn: &Turn<'_>| turn_of_holder.asked > 0 || sight.may_repeat.contains(&turn.pod.pod.uid);
    let rival: Vec<Turn<'a>> = rivals.filter(|turn| !turn.admitted && (turn.asked == 0 || repeats(turn))).collect();
    if rival.is_empty() {
        return found(turn_of_holder, How::Lock);
    }
    let all: Vec<Turn<'a>> = std::iter::once(turn_of_holder).chain(rival).collect();
    ambiguous(&all, call)
}

/// Whose turn it is in the pod as far as the ledger tells.
fn only_turn<'a>(pod: &'a HandoffPod, call: &Call<'_>, sight: &Sight<'_>) -> Option<Turn<'a>> {
    turns(pod, None, call, sight.ledger).into_iter().next()
}

fn ambiguous<'a>(turns: &[Turn<'_>], call: &Call<'_>) -> Identified<'a> {
    let one_pod = turns.iter().all(|turn| turn.pod.pod.uid == turns[0].pod.pod.uid);
    let names: Vec<String> =
        turns.iter().take(4).map(|turn| format!("{} (container {})", turn.pod.pod.key, turn.container.name)).collect();
    let text = format!(
        "{}: {} {} could be calling for {} of it and nothing tells them apart: {}; {}",
        call.resource,
        turns.len(),
        if one_pod { "containers" } else { "pods" },
        call.count,
        names.join(" and "),
        if one_pod { "the kubelet asks again" } else { "delete the one that should not be here" },
    );
    let mut pods: Vec<_> = turns.iter().map(|turn| turn.pod.pod.clone()).collect();
    pods.dedup();
    let rests_on = Fresh::pods_and_node(pods.iter().map(|pod| pod.key.clone()));
    Identified::Refuse(Refusal { rule: Rule::Ambiguous, text, pods }, rests_on)
}

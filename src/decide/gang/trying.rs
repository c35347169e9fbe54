//! Room for members, one after the other: each takes its best node.

use crate::core::placing::Placing;
use crate::core::select::choose::NodeChoice;
use crate::world::{PodId, Wake};

use super::alike::MemberKind;
use super::{TryOrder, UnfitMember};

/// The first member that fits no node, and the kinds that fit none.
#[derive(Default)]
pub(super) struct Failures {
    pub first: Option<UnfitMember>,
    pub kinds: Vec<MemberKind>,
}

/// Reserves room for members in this order, up to the first that fits no node. Returns the reserved ones and that one.
pub(super) fn try_until_unfit(
    placing: &mut Placing<'_>,
    members: impl IntoIterator<Item = PodId>,
) -> (Vec<PodId>, Option<UnfitMember>) {
    let mut held = Vec::new();
    for id in members {
        match try_member(placing, id) {
            Ok(()) => held.push(id),
            Err(unfit) => return (held, Some(unfit)),
        }
    }
    (held, None)
}

/// Reserves room for up to `limit` of these members. Members of a kind that has failed are skipped.
pub(super) fn try_each(
    placing: &mut Placing<'_>,
    order: &TryOrder,
    members: impl IntoIterator<Item = PodId>,
    limit: usize,
    failures: &mut Failures,
) -> Vec<PodId> {
    let mut held = Vec::new();
    for id in members {
        if held.len() == limit {
            break;
        }
        if placing.world.pod(id).is_none_or(|pod| order.is_any(placing.world, &failures.kinds, pod)) {
            continue;
        }
        match try_member(placing, id) {
            Ok(()) => held.push(id),
            Err(unfit) => {
                failures.kinds.extend(placing.world.pod(id).map(|pod| order.kind(placing.world, pod)));
                match &mut failures.first {
                    // An event that may help any of them wakes the group.
                    Some(first) => first.wake = first.wake.or(unfit.wake),
                    None => failures.first = Some(unfit),
                }
            }
        }
    }
    held
}

/// Chooses a node for one member and reserves its room.
pub(super) fn try_member(placing: &mut Placing<'_>, id: PodId) -> Result<(), UnfitMember> {
    let unfit = |text: String, wake: Wake| Err(UnfitMember::of(id, text, wake));
    let Some(priority) = placing.world.pod(id).map(|pod| pod.facts.spec.priority) else {
        return unfit("the pod is gone".to_owned(), Wake::NONE);
    };
    placing.stats.attempts += 1;
    let pinned = placing.reservations.pinned(id);
    let (found, unpinned) = placing.with_nominated(priority, id, |placing| {
        // First the node whose lock the pod holds: on another node, that lock would stand until it expires.
        let there = pinned.and_then(|_| placing.choose(id, pinned));
        let there = there.filter(|(choice, _)| matches!(choice, NodeChoice::Node(..)));
        let unpinned = pinned.is_some() && there.is_none();
        (there.or_else(|| placing.choose(id, None)), unpinned)
    });
    if unpinned {
        // The bind cannot be resumed on that node: its lock is released when it has stood for a while.
        placing.reservations.unpin(id);
    }
    let Some((choice, judged)) = found else { return unfit("the pod is gone".to_owned(), Wake::NONE) };
    placing.stats.judged += judged;
    match choice {
        NodeChoice::Node(node, slots) => {
            let reserved = placing.reservations.reserve(placing.terms, placing.world, id, node, *slots);
            if reserved { Ok(()) } else { unfit("a reservation was refused".to_owned(), Wake::ANY) }
        }
        NodeChoice::Nowhere(diagnosis) => {
            let reason = diagnosis.reason();
            Err(UnfitMember { reason, judged: true, ..UnfitMember::of(id, diagnosis.message(), diagnosis.wake) })
        }
        NodeChoice::WaitUntil(_, refusal) => unfit(refusal.text.into_owned(), Wake::ANY),
        NodeChoice::Fault(text) => unfit(text.into_owned(), Wake::ANY),
    }
}

//! What may be done about a node's lock, by what the world knows of its holder.

use jiff::Timestamp;

use crate::core::agenda::Scene;
use crate::lock::{BoundHolder, HolderState, Intent, LockClaim, LockView, acquire};
use crate::world::{Node, Pod};
use baton_contract::PodRef;

/// What to do about the lock of a node for this claim.
pub(super) fn intent(scene: Scene<'_>, node: &Node, claim: &LockClaim) -> Intent {
    let read = node.lock.read.clone();
    let holder = scene.world.holder(node, scene.terms.now.wall).unwrap_or(HolderState::Unknown);
    let bound = match &holder {
        HolderState::BoundHere(pod) => scene.world.pod_id(&pod.uid).and_then(|id| scene.world.pod(id)),
        HolderState::Unbound(_) | HolderState::Unknown | HolderState::Gone(_) => None,
    };
    let of = |pod: &Pod| BoundHolder::of(&read, &pod.facts.handoff, node.agent_status());
    let bound = bound.map(of).unwrap_or_default();
    let view = LockView { read, first_seen: node.lock.first_seen, holder, bound };
    acquire(&view, claim, node.liveness(), &scene.terms.config.lock_policy, scene.terms.now.mono, scene.terms.now.wall)
}

/// A claim of no pod.
pub(super) fn unclaimed(scene: Scene<'_>) -> LockClaim {
    LockClaim { pod: PodRef::new("", "", ""), time: scene.terms.now.wall }
}

/// When time alone lets a claim take the node's lock over, if the lock still stands then and the node daemon reports. To the second.
pub(crate) fn lock_end(scene: Scene<'_>, node: &Node) -> Option<Timestamp> {
    node.lock.read.raw()?;
    let now = scene.terms.now;
    match intent(scene, node, &unclaimed(scene)) {
        Intent::Wait { recheck, .. } => {
            let end = now.wall.checked_add(recheck?.saturating_sub(now.mono)).ok()?;
            Timestamp::from_second(end.as_second()).ok()
        }
        Intent::Set | Intent::Own { .. } | Intent::TakeOver { .. } => None,
    }
}

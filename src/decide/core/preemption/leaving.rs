//! Pods that are being deleted: by when each has left, and which are waited for.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::core::timers::Moment;
use crate::pod::Deletion;
use crate::world::{NodeId, Pod, World};
use baton_contract::PodUid;

/// How long after its grace period a pod may still be there.
const LATE: Duration = Duration::from_secs(60);
/// A pod that leaves later than this by itself is not waited for: another node may make room sooner.
pub const SOON: Duration = Duration::from_secs(600);

/// Monotonic time by which a pod that is being deleted has left, if it ever leaves.
pub fn gone_by(deletion: Deletion, now: Moment) -> Duration {
    let ahead = deletion.at.duration_since(now.wall);
    let grace = ahead.unsigned_abs();
    let ends = if ahead.is_negative() { now.mono.saturating_sub(grace) } else { now.mono.saturating_add(grace) };
    ends.saturating_add(LATE)
}

/// The pod is being deleted, and leaves within this time.
pub fn leaves_within(pod: &Pod, (now, time): (Moment, Duration)) -> bool {
    let gone_by = pod.facts.handoff.deleting.map(|deletion| gone_by(deletion, now));
    gone_by.is_some_and(|by| now.mono < by && by <= now.mono.saturating_add(time))
}

/// Terminating pods of a node that leave soon, with a lower priority than `pod`.
pub fn leaving<'w>(world: &'w World, node: NodeId, pod: &Pod, now: Moment) -> impl Iterator<Item = &'w Pod> + use<'w> {
    leaving_within(world, node, pod, (now, SOON))
}

fn leaving_within<'w>(
    world: &'w World,
    node: NodeId,
    pod: &Pod,
    within: (Moment, Duration),
) -> impl Iterator<Item = &'w Pod> + use<'w> {
    let below = pod.facts.spec.priority;
    let pods = world.node(node).into_iter().flat_map(|node| node.pods.iter()).filter_map(|id| world.pod(*id));
    pods.filter(move |other| leaves_within(other, within) && other.facts.spec.priority < below)
}

pub fn leaving_uids(world: &World, node: NodeId, pod: &Pod, within: (Moment, Duration)) -> BTreeSet<PodUid> {
    leaving_within(world, node, pod, within).map(|other| other.facts.handoff.pod.uid.clone()).collect()
}

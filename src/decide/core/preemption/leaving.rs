//! Pods that are being deleted: by when each has left, and which are waited for.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::world::{NodeId, Pod, World};
use baton_contract::PodUid;

/// How long after its grace period a pod may still be there.
const LATE: Duration = Duration::from_secs(60);
/// A pod that leaves later than this by itself is not waited for: another node may make room sooner.
pub const SOON: Duration = Duration::from_secs(600);

/// Monotonic time by which a pod that is being deleted has left, if it ever leaves.
pub fn gone_by(pod: &Pod) -> Option<Duration> {
    pod.leaves.map(|ends| ends.saturating_add(LATE))
}

/// The pod is being deleted, and leaves within this time.
pub fn leaves_within(pod: &Pod, (now, time): (Duration, Duration)) -> bool {
    gone_by(pod).is_some_and(|by| now < by && by <= now.saturating_add(time))
}

/// Terminating pods of a node that leave soon, with a lower priority than `pod`.
pub fn leaving<'w>(
    world: &'w World,
    node: NodeId,
    pod: &Pod,
    now: Duration,
) -> impl Iterator<Item = &'w Pod> + use<'w> {
    leaving_within(world, node, pod, (now, SOON))
}

fn leaving_within<'w>(
    world: &'w World,
    node: NodeId,
    pod: &Pod,
    within: (Duration, Duration),
) -> impl Iterator<Item = &'w Pod> + use<'w> {
    let below = pod.facts.spec.priority;
    let pods = world.node(node).into_iter().flat_map(|node| node.pods.iter()).filter_map(|id| world.pod(*id));
    pods.filter(move |other| leaves_within(other, within) && other.facts.spec.priority < below)
}

pub fn leaving_uids(world: &World, node: NodeId, pod: &Pod, within: (Duration, Duration)) -> BTreeSet<PodUid> {
    leaving_within(world, node, pod, within).map(|other| other.facts.handoff.pod.uid.clone()).collect()
}

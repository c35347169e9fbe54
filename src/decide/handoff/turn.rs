//! Which container of a pod is next, by the kubelet's order.

use super::ledger::Ledger;
use super::listing::ListedPod;
use super::sight::Call;
use crate::decide::pod::{ContainerKind, HandoffPod, PodContainer};

/// The container of one pod that a call would be for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Turn<'a> {
    pub pod: &'a HandoffPod,
    pub container: &'a PodContainer,
    /// How often the kubelet has asked for it already; 0 is unserved.
    pub asked: u32,
    /// Some container of the pod runs: its admission is over.
    pub admitted: bool,
}

/// The container of `pod` whose turn it is on this resource; several when nothing tells them apart. `listed` is what
/// PodResources says of the pod; without it only the ledger tells how far the kubelet is.
///
/// The kubelet goes through init containers and sidecars in spec order, then app containers, and makes all calls of a
/// container before it comes to the next. So a listed container with devices proves that everything before it is done, and
/// behind the first container that lacks this resource nobody is asked for yet. Plain init containers are never listed.
/// What remains is the unserved before the served, then the kubelet's order.
///
/// A kubelet that has lost its checkpoint admits its pods once more and asks for what does not run, ended init containers
/// among that; then, outside of any admission, for each container that it starts again. So one that runs comes after all that
/// do not; and among several that the API shows running, one has ended and its status is still on its way.
pub(super) fn turns<'a>(
    pod: &'a HandoffPod,
    listed: Option<&ListedPod>,
    call: &Call<'_>,
    ledger: &Ledger,
) -> Vec<Turn<'a>> {
    let reached = listed.map_or(0, |listed| {
        pod.containers.iter().rposition(|container| listed.has_devices(&container.name)).unwrap_or(0)
    });
    let admitted = pod.containers.iter().any(|container| container.running);
    let mut candidates = Vec::new();
    for (order, container) in pod.containers.iter().enumerate() {
        let is_listed_kind = container.kind != ContainerKind::Init;
        let Some(count) = asks(pod, container, call.resource) else { continue };
        if let Some(listed) = listed {
            let done =
                if is_listed_kind { listed.ids(&container.name, call.resource).is_some() } else { order < reached };
            if done {
                continue;
            }
        }
        if count == call.count {
            let asked = ledger.asked(&pod.pod.uid, &container.name, call.resource);
            candidates.push(Turn { pod, container, asked, admitted });
        }
        if listed.is_some() && is_listed_kind && !container.running {
            break;
        }
    }
    // `min_by_key` takes the first of equals: the kubelet's order.
    let first = candidates.iter().filter(|turn| !turn.container.running).min_by_key(|turn| turn.asked).copied();
    match first {
        Some(first) => vec![first],
        // Unserved containers that run were admitted without a call and will not call.
        None => candidates.into_iter().filter(|turn| turn.asked > 0).collect(),
    }
}

/// The number of ids that the kubelet will ask for, if this container's call comes to this agent at all.
fn asks(pod: &HandoffPod, container: &PodContainer, resource: &str) -> Option<i64> {
    pod.expected_calls(|name| name == resource)
        .find(|call| call.container.name == container.name)
        .map(|call| call.count)
}

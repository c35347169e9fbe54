//! Pods that run without their devices. The node's daemon says so in its Lease; the scheduler, which may write statuses of pods, says
//! it in the pod's conditions, where its gang and its TYJob read it.

use crate::core::effect::Effect;
use crate::world::World;

/// What to write about the pods of `node`, whose Lease was read. It is compared with every version of the Lease, so a write that was
/// lost is repeated.
pub fn conditions<'a>(world: &'a World, node: &str) -> impl Iterator<Item = Effect> + use<'a> {
    let node = world.node_id(node).and_then(|id| world.node(id));
    // A daemon that has just started does not know yet, and one with too many exceptions names none.
    let known = node.and_then(|node| Some((node, node.live_agent().filter(|status| status.names_exceptions())?)));
    known.into_iter().flat_map(move |(node, status)| {
        let pods = node.pods.iter().filter_map(|id| world.pod(*id));
        pods.filter_map(move |pod| {
            let served = !status.is_unserved(&pod.facts.handoff.pod.uid);
            let differs = served == pod.facts.spec.unserved && pod.facts.handoff.node.is_some();
            differs.then(|| Effect::Served { pod: pod.facts.handoff.pod.clone(), node: node.name.clone(), served })
        })
    })
}

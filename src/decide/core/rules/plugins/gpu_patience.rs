//! `GpuPatience`: rates a node by how much of its worth to the pods that usually come is left with this pod on it.
//!
//! Ratings are small steps: nodes that are as good as each other share a rating, and the oldest of them is taken, so that the
//! youngest stay whole. Where CPU and memory strand GPUs they count, so that pods without GPUs avoid such nodes.

use crate::core::rules::{NodeScore, Plugin, Reads, Score, Slots, View};
use crate::patience::{FreeOnNode, Worth};
use crate::world::mix::free;
use crate::world::{Node, NodeId, Pod};

use super::device_fit::choice;

/// The rule.
pub struct GpuPatience;

/// The rule's name.
pub const NAME: &str = "GpuPatience";
/// Of worth, an eightieth of a GPU. Finer steps open a new node for a difference that no pod notices.
const STEP: f64 = 0.1;

impl Plugin for GpuPatience {
    fn name(&self) -> &'static str {
        NAME
    }

    fn reads(&self, _: &Pod, _: &Slots) -> Reads {
        Reads::Mix
    }
}

impl Score for GpuPatience {
    fn score(&self, view: View<'_>, pod: &Pod, node: (NodeId, &Node), slots: &mut Slots) -> i64 {
        let rating = |worth: &Worth, before: FreeOnNode<'_>, after: FreeOnNode<'_>| {
            ((worth.of(after) - worth.of(before)) / STEP).round() as i64
        };
        compare(view, pod, node, slots, rating).unwrap_or(0)
    }

    fn explain(&self, view: View<'_>, pod: &Pod, node: (NodeId, &Node), slots: &mut Slots) -> Option<String> {
        compare(view, pod, node, slots, Worth::explain)
    }

    /// The best node gets 100; each other one a point less for each step that it is worse.
    fn normalize(&self, _: View<'_>, _: &Pod, scores: &mut [NodeScore]) {
        let best = scores.iter().map(|(_, score)| *score).max().unwrap_or(0);
        scores.iter_mut().for_each(|(_, score)| *score = (100 - (best - *score)).max(0));
    }
}

/// What `of` says of the node without and with the pod; `None` before anything is known of the pods that come.
fn compare<T>(
    view: View<'_>,
    pod: &Pod,
    (id, node): (NodeId, &Node),
    slots: &Slots,
    of: impl FnOnce(&Worth, FreeOnNode<'_>, FreeOnNode<'_>) -> T,
) -> Option<T> {
    let mix = view.world.mix();
    let (worth, stock) = (mix.worth()?, node.stock.as_ref()?);
    let (rests, left) = (stock.rests(None), stock.rests(choice(slots, id)));
    let before = free(node, rests.percents(), mix.class(id))?;
    let wanted = &pod.facts.spec.requests;
    let after = FreeOnNode {
        gpus: left.percents(),
        milli_cpu: before.milli_cpu - wanted.milli_cpu,
        memory: before.memory - wanted.memory,
        ..before
    };
    Some(of(worth, before, after))
}

//! `GpuFragmentation`: rates a node by how much of its free GPU compute the pod would make useless for the requests that are
//! typical in this cluster ("Beware of Fragmentation", fragmentation gradient descent).
//!
//! The gradient itself decides, in millionths of a GPU, not a rounded score of it: only the order over the nodes that fit is
//! brought to 0..=100. CPU and memory count where their lack strands GPUs, so pods without GPUs avoid such nodes.

use crate::decide::devices::score::FreeCpuMemory;
use crate::decide::scheduler::rules::points::stretch;
use crate::decide::scheduler::rules::{NodeScore, Plugin, Reads, Score, Slots, View};
use crate::decide::world::{Node, NodeId, Pod};

use super::device_fit::choice;

/// The rule.
pub struct GpuFragmentation;

/// Resolution of the rating: parts of a GPU.
const PARTS: f64 = 1e6;

impl Plugin for GpuFragmentation {
    fn name(&self) -> &'static str {
        "GpuFragmentation"
    }

    fn reads(&self, _: &Pod, _: &Slots) -> Reads {
        Reads::Mix
    }
}

impl Score for GpuFragmentation {
    /// Millionths of a GPU that become useful again; below zero for those that become useless.
    fn score(&self, view: View<'_>, pod: &Pod, (id, node): (NodeId, &Node), slots: &mut Slots) -> i64 {
        let (Some(stock), Some(facts)) = (&node.stock, &node.facts) else { return 0 };
        let (have, used, wanted) = (&facts.allocatable, &node.used, &pod.facts.spec.requests);
        let before = FreeCpuMemory { milli_cpu: have.milli_cpu - used.milli_cpu, memory: have.memory - used.memory };
        let after =
            FreeCpuMemory { milli_cpu: before.milli_cpu - wanted.milli_cpu, memory: before.memory - wanted.memory };
        let choice = choice(slots, id);
        let change = stock.fragmentation_change(choice, [before, after], view.world.mix().typical());
        (-change * PARTS).round() as i64
    }

    fn normalize(&self, _: View<'_>, _: &Pod, scores: &mut [NodeScore]) {
        stretch(scores);
    }
}

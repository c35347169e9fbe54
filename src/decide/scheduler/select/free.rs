//! How many GPUs are free in all, kept up from the world's journal: what needs more fits nowhere, however it is placed.

use crate::world::{Dense, Node, NodeId, Resources, World};
use baton_contract::key;

/// Percents of free GPUs, at least as many as any pods could get.
#[derive(Debug, Clone, Default)]
pub struct FreeGpus {
    by_node: Dense<NodeId, i64>,
    total: i64,
    /// Position in the world's journal up to which this is true.
    mark: Option<u64>,
}

impl FreeGpus {
    /// The sum over all nodes, as it is now. Costs a look at each node that has changed since the last call.
    pub fn total(&mut self, world: &World) -> i64 {
        if let Some(changed) = self.mark.and_then(|mark| world.journal().since(mark)) {
            changed.for_each(|id| self.look(id, world.node(id)));
        } else {
            *self = Self::default();
            world.nodes().for_each(|(id, node)| self.look(id, Some(node)));
        }
        self.mark = Some(world.journal().mark());
        self.total
    }

    fn look(&mut self, id: NodeId, node: Option<&Node>) {
        let free = node.map_or(0, free_on);
        self.total += free - self.by_node.insert(id, free).unwrap_or(0);
    }
}

/// By the devices that its daemon lists; where there is none, by what the kubelet counts.
fn free_on(node: &Node) -> i64 {
    match (&node.stock, &node.facts) {
        (Some(stock), _) => stock.free_percent(),
        (None, Some(facts)) => (percent(&facts.allocatable) - percent(&node.used)).max(0),
        (None, None) => 0,
    }
}

/// Whole GPUs and compute, in percent of one GPU.
pub fn percent(requests: &Resources) -> i64 {
    let of = |name| requests.scalar(name);
    of(key::NVIDIA_GPU).saturating_mul(key::WHOLE).saturating_add(of(key::GPU)).saturating_add(of(key::GPU_CORE))
}

//! How many GPUs are free in all, kept up from the world's journal: what needs more fits nowhere, however it is placed.

use crate::world::devices::Stock;
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

/// By the devices that its daemon lists, or by what the kubelet counts: which of them rules go by depends on the daemon.
pub fn free_on(node: &Node) -> i64 {
    let listed = node.stock.as_ref().map_or(0, Stock::free_percent);
    let counted = node.facts.as_ref().map_or(0, |facts| percent(&facts.allocatable) - percent(&node.used));
    listed.max(counted)
}

/// Whole GPUs or compute, in percent of one GPU: the same GPU may be asked for by one name in an init container, and by another one later.
pub fn percent(requests: &Resources) -> i64 {
    let of = |name| requests.scalar(name);
    of(key::NVIDIA_GPU).saturating_mul(key::WHOLE).max(of(key::GPU)).max(of(key::GPU_CORE))
}

//! `DeviceTopology`: rates a node by how well the planned devices lie together.

use crate::decide::framework::{Plugin, Score, Slots, View};
use crate::decide::world::{Node, NodeId, Pod};

use super::device_fit::Plans;

/// The rule.
pub struct DeviceTopology;

impl Plugin for DeviceTopology {
    fn name(&self) -> &'static str {
        "DeviceTopology"
    }
}

impl Score for DeviceTopology {
    fn score(&self, _: View<'_>, _: &Pod, (id, _): (NodeId, &Node), slots: &mut Slots) -> i64 {
        slots.get::<Plans>().and_then(|plans| plans.of(id)).map_or(0, |plan| plan.quality)
    }
}

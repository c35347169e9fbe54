//! `DeviceTopology`: rates a node by how well the planned devices lie together.

use crate::core::rules::{Plugin, Reads, Score, Slots, View};
use crate::world::{Node, NodeId, Pod};

use super::device_fit::choice;

/// The rule.
pub struct DeviceTopology;

impl Plugin for DeviceTopology {
    fn name(&self) -> &'static str {
        "DeviceTopology"
    }

    fn reads(&self, _: &Pod, _: &Slots) -> Reads {
        Reads::Node
    }
}

impl Score for DeviceTopology {
    fn score(&self, _: View<'_>, _: &Pod, (id, _): (NodeId, &Node), slots: &mut Slots) -> i64 {
        choice(slots, id).map_or(0, |choice| choice.quality)
    }

    fn is_absolute(&self) -> bool {
        true
    }
}

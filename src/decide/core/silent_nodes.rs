//! Nodes that have an event because their daemon fell silent: they have another one when it serves again.

use std::collections::BTreeSet;

use crate::world::{Changes, Node, NodeId, World};
use baton_contract::EventReason;

use super::effect::{Effect, Effects};
use super::timers::Moment;

/// Most nodes that have an event when they fall silent in one moment. Where many do at once, it is rather their Leases that are not heard,
/// and events of pods do not wait behind thousands of nodes; conditions and `baton audit` say it all the same.
const MOST: usize = 20;

/// These nodes, as this leader has reported them.
#[derive(Debug, Default)]
pub struct SilentNodes(BTreeSet<NodeId>);

impl SilentNodes {
    /// Events of nodes whose daemon has fallen silent, with what does not answer, and of those that serve again.
    pub fn report(&mut self, world: &World, changes: &Changes, now: Moment) -> Effects {
        let silent: &[NodeId] = if changes.silent.len() > MOST { &[] } else { &changes.silent };
        let mut effects: Effects = silent.iter().filter_map(|id| self.begins(world, *id, now)).collect();
        effects.extend(changes.nodes.iter().filter_map(|id| self.ends(world, *id, now)));
        effects
    }

    fn begins(&mut self, world: &World, id: NodeId, now: Moment) -> Option<Effect> {
        let node = world.node(id)?;
        let message = node.unserved(now.wall)?;
        self.0.insert(id);
        Some(notice(node, EventReason::NotServed, message))
    }

    fn ends(&mut self, world: &World, id: NodeId, now: Moment) -> Option<Effect> {
        let serves = |node: &Node| node.gives_devices(now.wall);
        let node = world.node(id).filter(|node| self.0.contains(&id) && serves(node))?;
        self.0.remove(&id);
        let message = format!("kubelet and node daemon of {} serve again: new pods get devices there", node.name);
        Some(notice(node, EventReason::Served, message))
    }
}

fn notice(node: &Node, reason: EventReason, message: String) -> Effect {
    Effect::NodeNotice { node: node.name.clone(), warning: reason == EventReason::NotServed, reason, message }
}

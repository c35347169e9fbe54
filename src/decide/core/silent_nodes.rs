//! Nodes that have an event because their daemon fell silent: they have another one when it serves again.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::world::{Changes, Node, NodeId, World};
use baton_contract::EventReason;

use super::effect::{Effect, Effects};
use super::timers::Moment;

/// Most nodes that have an event when they fall silent in one moment. Where many do at once, it is rather their Leases that are not heard,
/// and events of pods do not wait behind thousands of nodes; conditions and `baton audit` say it all the same.
const MOST: usize = 20;

/// These nodes, and when their daemon was last heard.
#[derive(Debug, Default)]
pub struct SilentNodes(BTreeMap<NodeId, Duration>);

impl SilentNodes {
    /// Events of nodes whose daemon has fallen silent, with what does not answer, and of those whose daemon serves again.
    pub fn report(&mut self, world: &World, changes: &Changes, now: Moment) -> Effects {
        let silent: &[NodeId] = if changes.silent.len() > MOST { &[] } else { &changes.silent };
        let mut effects: Effects = silent.iter().filter_map(|id| self.begins(world, *id, now)).collect();
        effects.extend(changes.nodes.iter().filter_map(|id| self.ends(world, *id, now)));
        effects
    }

    fn begins(&mut self, world: &World, id: NodeId, now: Moment) -> Option<Effect> {
        let node = world.node(id)?;
        let message = node.unserved(now.wall)?;
        self.0.insert(id, node.agent.as_ref().map_or(now.mono, |agent| agent.changed));
        Some(notice(node, EventReason::NotServed, message))
    }

    fn ends(&mut self, world: &World, id: NodeId, now: Moment) -> Option<Effect> {
        let heard = self.0.remove(&id)?;
        // A node that nothing mentions any more is forgotten here, too.
        let node = world.node(id)?;
        if !node.gives_devices(now.wall) {
            self.0.insert(id, heard);
            return None;
        }
        let (name, silent) = (&node.name, now.mono.saturating_sub(heard).as_secs());
        let message = format!(
            "the node daemon of {name} serves again, {silent} s after it was last heard: new pods get devices there"
        );
        Some(notice(node, EventReason::Served, message))
    }
}

fn notice(node: &Node, reason: EventReason, message: String) -> Effect {
    Effect::NodeNotice { node: node.name.clone(), warning: reason == EventReason::NotServed, reason, message }
}

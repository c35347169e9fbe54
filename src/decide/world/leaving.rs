//! Pods that leave before their processes have: their object goes, or another client says that they have ended, while a container
//! runs by their last status. Nothing of them counts any more but their devices: the kubelet frees those at once and stops the
//! containers later, after seconds, or never.
//!
//! The node's daemon sees the processes and says so in its Lease; until it has had the time to, they are remembered here. A mistake
//! costs a bad placement only: the daemon starts no container on a device that another pod's processes use.

use std::time::Duration;

use jiff::Timestamp;

use super::changes::{Changes, Wake};
use super::node::Node;
use super::{NodeId, PodId, World};
use crate::devices::Held;
use crate::pod::HandoffPod;
use baton_contract::{AgentStatus, LeavingPod, PodUid};

impl World {
    /// A bound pod leaves while a container runs: its devices stay held.
    pub(super) fn keep_devices(&mut self, id: PodId, (now, wall): (Duration, Timestamp)) {
        let Some(pod) = self.pods.get(id) else { return };
        let Some(at) = pod.node() else { return };
        let Some(node) = self.nodes.get_mut(at).filter(|node| node.facts.is_some()) else { return };
        let Some(held) = node.holding(pod).filter(|held| !held.devices().is_empty()).cloned() else { return };
        let (uid, key) = (&pod.facts.handoff.pod.uid, pod.key());
        let leaving = LeavingPod { namespace: key.namespace.clone(), name: key.name.clone(), since: wall };
        node.exceptions.leave(uid, leaving, now, held);
        self.nodes.note_leaving(at);
    }

    /// A pod has given its room up. Who waits for all of it, as a preemptor does, waits for devices that it holds still.
    pub(super) fn room_left(&self, at: NodeId, uid: &PodUid, changes: &mut Changes) {
        if !self.nodes.get(at).is_some_and(|node| node.exceptions.holds(uid)) {
            changes.left.push(uid.clone());
        }
        changes.wake = changes.wake.or(Wake::POD_FREED);
    }

    /// The kubelet says of an ended pod that nothing of it runs.
    pub(super) fn has_stopped(&mut self, pod: &HandoffPod, changes: &mut Changes) {
        let Some(id) = pod.node.as_deref().and_then(|name| self.node_id(name)) else { return };
        if let Some(node) = self.nodes.get_mut(id)
            && node.exceptions.has_ended(&pod.pod.uid, changes)
        {
            changes.nodes.push(id);
            self.recount_devices(id);
            self.nodes.touch(id);
        }
    }

    /// Frees the devices of which daemons have said nothing although they had the time to.
    pub(super) fn age_leaving(&mut self, now: Duration, changes: &mut Changes) {
        for id in self.nodes.take_leaving() {
            let Some(node) = self.nodes.get_mut(id) else { continue };
            let live = node.agent.as_ref().and_then(|agent| Some((agent.live_since?, agent.changed)));
            if live.is_some_and(|(since, spoken)| node.exceptions.unnamed(since, spoken, now, changes)) {
                changes.nodes.push(id);
                self.recount_devices(id);
            }
            if self.nodes.get(id).is_some_and(|node| node.exceptions.left().next().is_some()) {
                self.nodes.note_leaving(id);
            }
        }
    }
}

impl Node {
    /// Pods that have left and whose processes use their devices still, and these devices: by the daemon's word, or by our memory
    /// until it has spoken.
    pub fn leaving(&self) -> impl Iterator<Item = (&LeavingPod, &Held)> {
        let said = self.agent_status().into_iter().flat_map(AgentStatus::leaving);
        let said = said.filter_map(|(uid, pod, _)| Some((pod, self.exceptions.of_pod(uid)?)));
        said.chain(self.exceptions.left())
    }
}

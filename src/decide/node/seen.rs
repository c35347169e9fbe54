//! What the watches of a node daemon have shown so far, and what is lent to a decision.

use std::time::Duration;

use jiff::Timestamp;

use crate::handoff::{AllocatePolicy, NodeInventory, NodePods};
use baton_contract::LockRead;

/// Pods and lock of one node by two watches and by live reads.
#[derive(Debug, Clone, Default)]
pub struct NodeSeen {
    /// Pods bound to this node.
    pub pods: NodePods,
    /// The node's lock.
    pub lock: LockRead,
    /// The pods have been listed at least once.
    pub pods_synced: bool,
    /// When they were listed last, monotonic.
    pub pods_listed: Duration,
    /// The node has been read at least once.
    pub node_synced: bool,
    /// The watch of the pods runs.
    pub pods_watching: bool,
    /// The watch of the node runs.
    pub node_watching: bool,
    /// When the watch of the pods broke last, monotonic.
    pub pods_broke: Duration,
    /// When the watch of the node broke last, monotonic.
    pub node_broke: Duration,
}

impl NodeSeen {
    /// Pods and node are known.
    pub fn is_synced(&self) -> bool {
        self.pods_synced && self.node_synced
    }

    /// This value of the lock was removed, unless the watch has brought a newer one already.
    pub fn lock_released(&mut self, raw: &str) {
        if self.lock.raw() == Some(raw) {
            self.lock = LockRead::Free;
        }
    }

    /// Both watches run.
    pub fn is_watching(&self) -> bool {
        self.pods_watching && self.node_watching
    }
}

/// What is lent to one step.
#[derive(Debug, Clone, Copy)]
pub struct Facts<'a> {
    /// This node.
    pub node: &'a str,
    /// The operator's choices.
    pub policy: &'a AllocatePolicy,
    /// What the watches show now.
    pub seen: &'a NodeSeen,
    /// Counts the changes of `seen`.
    pub version: u64,
    /// The devices.
    pub inventory: &'a NodeInventory,
    /// Monotonic time.
    pub mono: Duration,
    /// Wall time.
    pub wall: Timestamp,
}

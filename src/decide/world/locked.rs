//! Nodes with a lock annotation, found by the pod that the lock names.

use std::collections::{BTreeMap, BTreeSet};

use crate::contract::{LockRead, PodKey};

use super::NodeId;
use super::finder::hash;

/// Nodes with a lock.
#[derive(Debug, Clone, Default)]
pub struct LockedNodes {
    /// Hash of the holder's key; `None` where the lock names no pod.
    nodes: BTreeMap<NodeId, Option<u64>>,
    holders: BTreeSet<(Option<u64>, NodeId)>,
}

impl LockedNodes {
    /// Records what stands on a node.
    pub fn note(&mut self, id: NodeId, read: &LockRead) {
        if let Some(old) = self.nodes.remove(&id) {
            self.holders.remove(&(old, id));
        }
        let holder = match read {
            LockRead::Free => return,
            LockRead::Held { value, .. } => value.holder.as_ref().map(|holder| hash(&holder.pod)),
            LockRead::Malformed { .. } => None,
        };
        self.nodes.insert(id, holder);
        self.holders.insert((holder, id));
    }

    /// Every node.
    pub fn all(&self) -> impl Iterator<Item = NodeId> + '_ {
        self.nodes.keys().copied()
    }

    /// Nodes whose lock names a pod of this name (seldom another one), or none.
    pub fn of(&self, pod: &PodKey) -> impl Iterator<Item = NodeId> + '_ {
        let with = |holder| self.holders.range((holder, NodeId(0))..=(holder, NodeId(u32::MAX))).map(|(_, id)| *id);
        with(Some(hash(pod))).chain(with(None))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_locked_node_is_found_by_its_holder_until_the_lock_changes() {
        let key = |name: &str| PodKey::new("ml", name);
        let lock = |name: &str| LockRead::parse(Some(&format!("2026-11-21T02:00:00Z,ml,{name},uid-{name}")));
        let mut locked = LockedNodes::default();
        locked.note(NodeId(1), &lock("a"));
        locked.note(NodeId(2), &lock("b"));
        locked.note(NodeId(3), &LockRead::parse(Some("2026-11-21T02:00:00Z")));
        assert_eq!(locked.of(&key("a")).collect::<Vec<_>>(), [NodeId(1), NodeId(3)]);
        locked.note(NodeId(1), &lock("b"));
        assert_eq!(locked.of(&key("a")).collect::<Vec<_>>(), [NodeId(3)]);
        assert_eq!(locked.of(&key("b")).collect::<Vec<_>>(), [NodeId(1), NodeId(2), NodeId(3)]);
        for id in 1..=3 {
            locked.note(NodeId(id), &LockRead::Free);
        }
        assert_eq!((locked.all().count(), locked.of(&key("b")).count()), (0, 0));
    }
}

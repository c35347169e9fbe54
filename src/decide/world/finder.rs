//! Finds pods by a text, and nodes by the holder of their lock, without keeping the text: the record itself has it; and the objects
//! of a namespace.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};

use baton_contract::{LockRead, PodKey};

use super::{NodeId, PodId};

/// Pods by the hash of a key. Several keys may share a hash: the caller compares the pod's own key.
#[derive(Debug, Clone, Default)]
pub struct Finder(BTreeSet<(u64, PodId)>);

impl Finder {
    /// Enters a pod under `key`.
    pub fn enter(&mut self, key: &(impl Hash + ?Sized), id: PodId) {
        self.0.insert((hash(key), id));
    }

    /// Takes a pod out; nothing happens when it is not there.
    pub fn leave(&mut self, key: &(impl Hash + ?Sized), id: PodId) {
        self.0.remove(&(hash(key), id));
    }

    /// Pods that may have `key`, the oldest first.
    pub fn candidates(&self, key: &(impl Hash + ?Sized)) -> impl Iterator<Item = PodId> + '_ {
        let hash = hash(key);
        self.0.range((hash, PodId(0))..=(hash, PodId(u64::MAX))).map(|(_, id)| *id)
    }
}

/// Equal in every process: decisions must not depend on a random seed.
fn hash(key: &(impl Hash + ?Sized)) -> u64 {
    let mut hasher = DefaultHasher::new();
    key.hash(&mut hasher);
    hasher.finish()
}

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

/// Entries of a namespace.
pub(super) fn within<'a, T>(all: &'a BTreeMap<PodKey, T>, namespace: &'a str) -> impl Iterator<Item = &'a T> {
    let from = all.range(PodKey::new(namespace, "")..);
    from.take_while(move |(key, _)| *key.namespace == *namespace).map(|(_, value)| value)
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

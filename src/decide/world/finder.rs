//! Finds pods by a text without keeping the text: the pod's own record has it.

use std::collections::BTreeSet;
use std::hash::{DefaultHasher, Hash, Hasher};

use super::PodId;

/// Pods by the hash of a key. Several keys may share a hash: whoever looks up compares the pod's own key.
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

/// The same in every process: decisions must not depend on a random seed.
pub(super) fn hash(key: &(impl Hash + ?Sized)) -> u64 {
    let mut hasher = DefaultHasher::new();
    key.hash(&mut hasher);
    hasher.finish()
}

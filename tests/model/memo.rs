//! Answers of the shipping functions by what they look at: many states differ only in what one decision does not see.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hash, RandomState};
use std::sync::Mutex;

use baton::decide::lock::{Intent, ReleaseReason};

use super::state::{Book, Lock, PODS, Pod};

const SHARDS: usize = 64;

/// What an agent's look at its lock sees: node, lock, all pods, and its own books.
pub type LockKey = (usize, Option<Lock>, [Pod; PODS], [Book; PODS]);
/// What a claim on a lock sees: node, lock, expiry and liveness, all pods, the claimant (`None` for none), and whether the agent says that
/// the holder is served.
pub type ClaimKey = (usize, Option<Lock>, bool, u8, [Pod; PODS], Option<Lock>, bool);
/// What an account of a node sees: node, its agent, all pods, its books, which pods are live.
pub type CountKey = (usize, bool, [Pod; PODS], [Book; PODS], [bool; PODS]);

pub struct Known<K, V> {
    shards: Vec<Mutex<HashMap<K, V>>>,
    hasher: RandomState,
}

impl<K, V> Default for Known<K, V> {
    fn default() -> Self {
        Self { shards: (0..SHARDS).map(|_| Mutex::default()).collect(), hasher: RandomState::new() }
    }
}

impl<K: Hash + Eq, V: Clone> Known<K, V> {
    /// The answer to `key`, asked for once.
    pub fn of(&self, key: K, ask: impl FnOnce() -> V) -> V {
        let shard = &self.shards[self.hasher.hash_one(&key) as usize % SHARDS];
        if let Some(known) = shard.lock().expect("no panic under this lock").get(&key) {
            return known.clone();
        }
        let answer = ask();
        shard.lock().expect("no panic under this lock").insert(key, answer.clone());
        answer
    }
}

/// Everything that is asked often.
#[derive(Default)]
pub struct Memo {
    /// Whether an agent takes the lock away, and why.
    pub fates: Known<LockKey, Option<(Lock, ReleaseReason)>>,
    /// Whether live pods' answers are sound.
    pub answers: Known<super::answers::Answers, bool>,
    /// What a claim on a lock comes to.
    pub intents: Known<ClaimKey, Intent>,
    /// What the scheduler counts for the pods of a node.
    pub counted: Known<CountKey, [u8; PODS]>,
}

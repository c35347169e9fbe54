//! The objects, their history and their watchers, under one lock and one version counter.
//!
//! A write is optimistic: readers take an `Arc`, compute the next value outside the lock, and commit it against the
//! version they read. History is kept per collection, so that watches and lists at an old version can be served until
//! it is compacted. Watchers get events by channel; one that does not drain its channel is cut off, as on a real server.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::ops::Bound;
use std::sync::{Arc, Mutex, MutexGuard};

use serde_json::{Value, json};
use tokio::sync::mpsc;

use super::object::{Object, key_of, metadata_mut, text};
use super::selectors::{Change, Selection};

/// Events kept per collection before the oldest are forgotten.
const HISTORY: usize = 50_000;
/// Events a watcher may lag behind before it is cut off.
const WATCH_BUFFER: usize = 100_000;

/// Why a commit was refused.
#[derive(Debug, PartialEq, Eq)]
pub enum Refused {
    /// The object is not in the version that was read: read again.
    Changed,
}

/// The requested version is no longer kept.
#[derive(Debug, PartialEq, Eq)]
pub struct Compacted {
    /// Oldest version that can still be asked for.
    pub oldest: u64,
}

struct Watcher {
    id: u64,
    prefix: String,
    selection: Arc<Selection>,
    tx: mpsc::Sender<Arc<Change>>,
}

#[derive(Default)]
struct Collection {
    objects: BTreeMap<String, Arc<Object>>,
    history: VecDeque<Arc<Change>>,
    /// Versions below this one are forgotten.
    floor: u64,
    /// Version of the last change.
    changed: u64,
    watchers: Vec<Watcher>,
    /// Watchers that select one node name: (pods only) found without asking all others.
    by_node: HashMap<String, Vec<Watcher>>,
}

struct StoreState {
    version: u64,
    next_watcher: u64,
    collections: HashMap<String, Collection>,
}

/// The store. Cheap to share; all methods are short and never block on anything but the lock.
pub struct Store {
    inner: Mutex<StoreState>,
    /// Raised when a write leaves something to clean up.
    pub(super) untidy: tokio::sync::Notify,
}

/// Objects under a prefix at one version.
pub struct StoreSnapshot {
    /// Version of the list.
    pub version: u64,
    /// Objects in key order, with keys.
    pub items: Vec<(String, Arc<Object>)>,
}

/// A registered watcher's receiving end.
pub struct Subscription {
    /// Changes after the start version, in order.
    pub rx: mpsc::Receiver<Arc<Change>>,
    /// Changes from history to send first.
    pub backlog: Vec<Arc<Change>>,
    /// Version at registration.
    pub version: u64,
    collection: String,
    id: u64,
    store: std::sync::Weak<Store>,
}

impl Drop for Subscription {
    fn drop(&mut self) {
        if let Some(store) = self.store.upgrade() {
            store.unsubscribe(&self.collection, self.id);
        }
    }
}

impl Store {
    /// An empty store whose first write gets version `first + 1`.
    pub fn new(first: u64) -> Arc<Self> {
        let inner = StoreState { version: first, next_watcher: 0, collections: HashMap::new() };
        Arc::new(Self { inner: Mutex::new(inner), untidy: tokio::sync::Notify::new() })
    }

    fn lock(&self) -> MutexGuard<'_, StoreState> {
        self.inner.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// The current version.
    pub fn version(&self) -> u64 {
        self.lock().version
    }

    /// One object.
    pub fn get(&self, collection: &str, key: &str) -> Option<Arc<Object>> {
        self.lock().collections.get(collection)?.objects.get(key).cloned()
    }

    /// Number of objects in a collection.
    pub fn count(&self, collection: &str) -> usize {
        self.lock().collections.get(collection).map_or(0, |c| c.objects.len())
    }

    /// Version of the last change in any of some collections; 0 when there was none.
    pub fn changed(&self, collections: &[&str]) -> u64 {
        let inner = self.lock();
        collections.iter().filter_map(|name| inner.collections.get(*name)).map(|c| c.changed).max().unwrap_or(0)
    }

    /// Commits `after` for `key` if the object is still in version `read` (`None`: absent). `after` gets its
    /// resourceVersion here. `None` for `after` deletes; then the answer is the last state in the deletion's version.
    pub fn commit(
        &self,
        collection: &str,
        key: &str,
        read: Option<u64>,
        after: Option<Value>,
    ) -> Result<Arc<Object>, Refused> {
        let mut inner = self.lock();
        let inner = &mut *inner;
        let slot = inner.collections.entry(collection.to_owned()).or_default();
        let before = slot.objects.get(key).cloned();
        if before.as_ref().map(|o| o.version) != read {
            return Err(Refused::Changed);
        }
        inner.version += 1;
        let version = inner.version;
        let stamp = |mut value: Value| {
            metadata_mut(&mut value).insert("resourceVersion".into(), json!(version.to_string()));
            Object::new(value, version)
        };
        let (result, change) = if let Some(value) = after {
            debug_assert_eq!(key_of(&value), key, "an object is stored under its own key");
            let object = stamp(value);
            slot.objects.insert(key.to_owned(), Arc::clone(&object));
            let after = Some(Arc::clone(&object));
            (object, Change { key: key.to_owned(), version, before, after, last: None })
        } else {
            let Some(was) = slot.objects.remove(key) else { return Err(Refused::Changed) };
            let last = stamp(was.value.clone());
            let change = Change { key: key.to_owned(), version, before, after: None, last: Some(Arc::clone(&last)) };
            (last, change)
        };
        let owned = || result.value["metadata"].get("ownerReferences").is_some();
        if change.after.is_none() || super::object::deleting(&result.value) || (change.before.is_none() && owned()) {
            self.untidy.notify_one();
        }
        slot.changed = version;
        slot.publish(Arc::new(change));
        Ok(result)
    }

    /// Objects whose key starts with `prefix`, from key `start` on, at `version` (`None`: now).
    pub fn list(
        &self,
        collection: &str,
        prefix: &str,
        start: Option<&str>,
        version: Option<u64>,
    ) -> Result<StoreSnapshot, Compacted> {
        let inner = self.lock();
        let now = inner.version;
        let at = version.unwrap_or(now);
        let Some(slot) = inner.collections.get(collection) else {
            return Ok(StoreSnapshot { version: at, items: Vec::new() });
        };
        if at < slot.floor {
            return Err(Compacted { oldest: now });
        }
        let from = start.unwrap_or(prefix).to_owned();
        let mut items: Vec<(String, Arc<Object>)> = slot
            .objects
            .range((Bound::Included(from.clone()), Bound::Unbounded))
            .take_while(|(k, _)| k.starts_with(prefix))
            .map(|(k, o)| (k.clone(), Arc::clone(o)))
            .collect();
        if at < now {
            // Undo what came later, newest first.
            let mut map: BTreeMap<String, Arc<Object>> = items.into_iter().collect();
            for change in slot.history.iter().rev().take_while(|c| c.version > at) {
                if !change.key.starts_with(prefix) || change.key < from {
                    continue;
                }
                match &change.before {
                    Some(o) => map.insert(change.key.clone(), Arc::clone(o)),
                    None => map.remove(&change.key),
                };
            }
            items = map.into_iter().collect();
        }
        Ok(StoreSnapshot { version: at, items })
    }

    /// Registers a watcher of changes after `from` under `prefix`. `None`: from now on.
    pub fn subscribe(
        self: &Arc<Self>,
        collection: &str,
        prefix: &str,
        from: Option<u64>,
        selection: Arc<Selection>,
    ) -> Result<Subscription, Compacted> {
        let mut inner = self.lock();
        let inner = &mut *inner;
        let version = inner.version;
        inner.next_watcher += 1;
        let id = inner.next_watcher;
        let slot = inner.collections.entry(collection.to_owned()).or_default();
        let from = from.unwrap_or(version);
        if from < slot.floor {
            return Err(Compacted { oldest: slot.floor });
        }
        let first = slot.history.partition_point(|c| c.version <= from);
        let backlog: Vec<Arc<Change>> = slot
            .history
            .range(first..)
            .filter(|c| c.key.starts_with(prefix) && selection.concerns(c))
            .map(Arc::clone)
            .collect();
        let (tx, rx) = mpsc::channel(WATCH_BUFFER);
        let node = selection.node_name().map(str::to_owned);
        let watcher = Watcher { id, prefix: prefix.to_owned(), selection, tx };
        match node {
            Some(node) => slot.by_node.entry(node).or_default().push(watcher),
            None => slot.watchers.push(watcher),
        }
        Ok(Subscription { rx, backlog, version, collection: collection.to_owned(), id, store: Arc::downgrade(self) })
    }

    fn unsubscribe(&self, collection: &str, id: u64) {
        let mut inner = self.lock();
        if let Some(slot) = inner.collections.get_mut(collection) {
            slot.watchers.retain(|w| w.id != id);
            slot.by_node.retain(|_, list| {
                list.retain(|w| w.id != id);
                !list.is_empty()
            });
        }
    }

    /// Forgets all history before the current version.
    pub fn compact(&self) {
        let mut inner = self.lock();
        let version = inner.version;
        for slot in inner.collections.values_mut() {
            slot.history.clear();
            slot.floor = version;
        }
    }

    /// Goes back to `version`, as a store that was restored from a backup: what came later is undone, and every watch ends.
    pub fn restore(&self, version: u64) {
        let mut inner = self.lock();
        inner.version = version;
        for slot in inner.collections.values_mut() {
            while let Some(change) = slot.history.pop_back_if(|change| change.version > version) {
                match &change.before {
                    Some(object) => slot.objects.insert(change.key.clone(), Arc::clone(object)),
                    None => slot.objects.remove(&change.key),
                };
            }
            slot.watchers.clear();
            slot.by_node.clear();
        }
    }

    /// Has the objects of another store in place of its own, without their history.
    pub fn copy(&self, of: &Self) {
        let of = of.lock();
        let mut inner = self.lock();
        inner.version = of.version;
        for (name, from) in &of.collections {
            let slot = inner.collections.entry(name.clone()).or_default();
            slot.objects.clone_from(&from.objects);
            slot.history.clear();
            (slot.changed, slot.floor) = (from.changed, of.version);
        }
    }

    /// Collections that hold at least one object.
    pub fn collections(&self) -> Vec<String> {
        self.lock().collections.iter().filter(|(_, c)| !c.objects.is_empty()).map(|(n, _)| n.clone()).collect()
    }
}

impl Collection {
    fn publish(&mut self, change: Arc<Change>) {
        if self.history.len() >= HISTORY
            && let Some(old) = self.history.pop_front()
        {
            self.floor = old.version;
        }
        deliver(&mut self.watchers, &change);
        if !self.by_node.is_empty() {
            let node = |o: &Option<Arc<Object>>| {
                o.as_ref().map(|o| text(&o.value, &["spec", "nodeName"]).to_owned()).unwrap_or_default()
            };
            let (was, is) = (node(&change.before), node(&change.after));
            for name in if was == is { vec![is] } else { vec![was, is] } {
                if let Some(list) = self.by_node.get_mut(&name) {
                    deliver(list, &change);
                }
            }
        }
        self.history.push_back(change);
    }
}

/// Sends a change to every watcher that selects it; a full or closed one is dropped.
fn deliver(watchers: &mut Vec<Watcher>, change: &Arc<Change>) {
    watchers.retain(|w| {
        if !change.key.starts_with(&w.prefix) || !w.selection.concerns(change) {
            return true;
        }
        w.tx.try_send(Arc::clone(change)).is_ok()
    });
}

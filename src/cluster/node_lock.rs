//! Performs lock intents by compare-and-swap on the node's annotation. Which pod may have the lock is decided elsewhere.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use k8s_openapi::api::core::v1::Node;
use kube::api::{Api, ObjectMeta, Patch, PatchParams};
use kube::{Client, ResourceExt};
use serde_json::{Value, json};

use baton_contract::LockRead;

use super::client::{retry_after, said, status_code};

/// Tries of one write before it is reported as failed.
const TRIES: u32 = 5;
/// Pause between tries; each is between half and one and a half of it.
const PAUSE: Duration = Duration::from_millis(100);

/// Outcome of a write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LockWrite {
    /// The annotation is now as wished (also when an earlier, lost request had done it).
    Done,
    /// Another value stands there: read and decide again.
    Contended(LockRead),
}

/// Why a write failed.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// No such node.
    #[error("node {0} does not exist")]
    NodeGone(String),
    /// The API server refused or could not be reached; the write may or may not have happened.
    #[error("the lock of node {node} could not be written after {tries} tries: {}", said(source))]
    Api {
        /// The node.
        node: String,
        /// How often it was tried.
        tries: u32,
        /// The last error.
        source: Box<kube::Error>,
    },
}

impl LockError {
    /// How long the API server asks to wait before the next try.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::NodeGone(_) => None,
            Self::Api { source, .. } => retry_after(source),
        }
    }
}

/// The lock annotation of the cluster's nodes.
#[derive(Clone)]
pub struct NodeLocks {
    nodes: Api<Node>,
    key: String,
    pointer: String,
    /// Nodes that were last seen without an annotations map, with that resourceVersion.
    bare: Arc<Mutex<BTreeMap<String, String>>>,
}

impl NodeLocks {
    /// Locks under the annotation `key`.
    pub fn new(client: Client, key: &str) -> Self {
        let pointer = format!("/metadata/annotations/{}", key.replace('~', "~0").replace('/', "~1"));
        Self { nodes: Api::all(client), key: key.to_owned(), pointer, bare: Arc::default() }
    }

    /// Takes over what a watch shows of a node. A JSON Patch cannot add below a map that is not there: knowing that beforehand
    /// spares the API server a refused write, and the pod the pause after it.
    pub fn observe(&self, node: &ObjectMeta) {
        let (Some(name), Some(version)) = (&node.name, &node.resource_version) else { return };
        let mut bare = self.bare.lock().unwrap_or_else(PoisonError::into_inner);
        if has_no_map(node) {
            bare.insert(name.clone(), version.clone());
        } else {
            bare.remove(name);
        }
    }

    fn bare_version(&self, node: &str) -> Option<String> {
        self.bare.lock().unwrap_or_else(PoisonError::into_inner).get(node).cloned()
    }

    /// Sets `new` where there is no lock.
    pub async fn set(&self, node: &str, new: &str) -> Result<LockWrite, LockError> {
        self.swap(node, None, Some(new)).await
    }

    /// Replaces exactly `old` by `new`.
    pub async fn take_over(&self, node: &str, old: &str, new: &str) -> Result<LockWrite, LockError> {
        self.swap(node, Some(old), Some(new)).await
    }

    /// Removes exactly `old`. A lock that is gone already is [`LockWrite::Done`]; another lock is not touched and is
    /// [`LockWrite::Contended`].
    pub async fn release(&self, node: &str, old: &str) -> Result<LockWrite, LockError> {
        self.swap(node, Some(old), None).await
    }

    /// Reads the lock from the API server, not from a cache.
    pub async fn read(&self, node: &str) -> Result<LockRead, LockError> {
        self.get(node).await.map(|(read, _)| read).map_err(|error| failed(node, 1, error))
    }

    async fn get(&self, node: &str) -> Result<(LockRead, Option<String>), kube::Error> {
        let found = self.nodes.get_metadata(node).await?;
        let version = has_no_map(&found.metadata).then(|| found.resource_version()).flatten();
        Ok((LockRead::parse(found.annotations().get(&self.key).map(String::as_str)), version))
    }

    /// The common case is one request. After a refused test (422) or a failure the lock is read, once per try, and the write is
    /// tried again only while the value that was judged still stands.
    async fn swap(&self, node: &str, old: Option<&str>, new: Option<&str>) -> Result<LockWrite, LockError> {
        let known_bare = old.is_none().then(|| self.bare_version(node)).flatten();
        let mut request =
            known_bare.map_or_else(|| self.json_patch(old, new), |version| self.merge_patch(new, &version));
        let mut last = None;
        let mut wrong_form = false;
        for attempt in 0..TRIES {
            // A missing map is no contention: the other form of the write goes out at once.
            if attempt > 0 && !wrong_form {
                tokio::time::sleep(jittered()).await;
            }
            let patched = self.nodes.patch_metadata(node, &PatchParams::default(), &request).await;
            let Err(error) = patched else { return Ok(LockWrite::Done) };
            // A request that the API server asks to delay is not sent again at once.
            if matches!(status_code(&error), Some(401 | 403 | 404)) || retry_after(&error).is_some() {
                return Err(failed(node, attempt + 1, error));
            }
            let (read, version_without_map) = match self.get(node).await {
                Ok(found) => found,
                Err(unread) => {
                    last = Some(unread);
                    continue;
                }
            };
            if read.raw() == new {
                return Ok(LockWrite::Done);
            }
            if read.raw() != old {
                return Ok(LockWrite::Contended(read));
            }
            wrong_form = version_without_map.is_some() && matches!(request, Patch::Json(_));
            last = Some(error);
            request = match version_without_map {
                // JSON Patch cannot add below a map that is not there, and must not replace one that is.
                Some(version) => self.merge_patch(new, &version),
                None => self.json_patch(old, new),
            };
        }
        match last {
            Some(error) => Err(failed(node, TRIES, error)),
            None => Ok(LockWrite::Contended(LockRead::Free)),
        }
    }

    /// The compare-and-swap from `old` to `new`, either of which may be absent.
    fn json_patch(&self, old: Option<&str>, new: Option<&str>) -> Patch<Value> {
        let path = &self.pointer;
        let change = match (old, new) {
            (None, _) => json!({"op": "add", "path": path, "value": new}),
            (Some(_), Some(new)) => json!({"op": "replace", "path": path, "value": new}),
            (Some(_), None) => json!({"op": "remove", "path": path}),
        };
        match serde_json::from_value(json!([{"op": "test", "path": path, "value": old}, change])) {
            Ok(patch) => Patch::Json(patch),
            // Not reachable: the operations above are well-formed. An empty patch changes nothing and is judged by reading.
            Err(_) => Patch::Json(json_patch::Patch(vec![])),
        }
    }

    fn merge_patch(&self, new: Option<&str>, version: &str) -> Patch<Value> {
        Patch::Merge(json!({"metadata": {"resourceVersion": version, "annotations": {&self.key: new}}}))
    }
}

/// An empty map is not stored: it reads back as none.
fn has_no_map(node: &ObjectMeta) -> bool {
    node.annotations.as_ref().is_none_or(BTreeMap::is_empty)
}

fn failed(node: &str, tries: u32, error: kube::Error) -> LockError {
    match status_code(&error) {
        Some(404) => LockError::NodeGone(node.to_owned()),
        _ => LockError::Api { node: node.to_owned(), tries, source: Box::new(error) },
    }
}

/// Spreads competing writers: half to one and a half of [`PAUSE`], by the clock's last digits.
fn jittered() -> Duration {
    let spread = baton_runtime::clock::wall().subsec_nanosecond().unsigned_abs() % 1000;
    PAUSE / 2 + PAUSE * spread / 1000
}

//! This node's pods and its lock, fed by two watches and by live reads.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::{Stream, StreamExt};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use kube::api::PartialObjectMeta;
use kube::runtime::watcher::{self, Event, InitialListStrategy, watcher};
use kube::{Api, Client};
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::watch;

use baton_cluster::feed::refuses_streaming;
use baton_cluster::pod::LightPod;
use baton_cluster::requests::Resumed;
use baton_cluster::rewatch::{ON_EVERY_NODE, patient};
use baton_contract::{LockRead, PodKey, PodUid};
use baton_decide::handoff::{ListedContainers, NodePods, PodNotice};
use baton_decide::node::NodeSeen;
use baton_decide::pod::HandoffPod;
use baton_runtime::{clock, words};

/// What is known of this node. Cheap to read; every change is announced.
pub struct NodeView {
    /// When the node has started: what ran before has ended.
    booted: Option<Timestamp>,
    seen: Mutex<NodeSeen>,
    changed: watch::Sender<u64>,
}

impl Default for NodeView {
    fn default() -> Self {
        Self { booted: None, seen: Mutex::default(), changed: watch::Sender::new(0) }
    }
}

impl NodeView {
    /// A view that knows nothing yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// The same on a node that has started at `booted`.
    #[must_use]
    pub fn booted(self, booted: Option<Timestamp>) -> Self {
        Self { booted, ..self }
    }

    /// Reads it; hold the guard for a moment only.
    pub fn seen(&self) -> MutexGuard<'_, NodeSeen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Announces every change.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }

    /// Counts the changes.
    pub fn version(&self) -> u64 {
        *self.changed.borrow()
    }

    /// Waits for a version other than `seen`; `None` when `deadline` (monotonic) comes first.
    pub async fn change_before(&self, seen: u64, deadline: Duration) -> Option<u64> {
        let mut changes = self.changes();
        let left = deadline.saturating_sub(clock::mono());
        let other = tokio::time::timeout(left, changes.wait_for(|version| *version != seen)).await.ok()?.ok()?;
        Some(*other)
    }

    /// Pods and node are known.
    pub fn is_synced(&self) -> bool {
        self.seen().is_synced()
    }

    /// Both watches run.
    pub fn is_watching(&self) -> bool {
        self.seen().is_watching()
    }

    /// Waits until pods and node are known; `false` when `deadline` (monotonic) comes first.
    pub async fn synced_before(&self, deadline: Duration) -> bool {
        let mut changes = self.changes();
        let left = deadline.saturating_sub(clock::mono());
        let wait = async {
            while !self.is_synced() {
                if changes.changed().await.is_err() {
                    std::future::pending::<()>().await;
                }
            }
        };
        tokio::time::timeout(left, wait).await.is_ok()
    }

    fn update<T>(&self, change: impl FnOnce(&mut NodeSeen) -> T) -> T {
        let result = change(&mut self.seen());
        self.changed.send_modify(|version| *version += 1);
        result
    }

    /// A live read of one pod. What was known already is no news.
    pub fn apply_live(&self, key: &PodKey, found: Option<HandoffPod>) -> Option<PodNotice> {
        if self.seen().pods.of_key(key).eq(found.as_ref()) {
            return None;
        }
        self.update(|seen| seen.pods.apply_live(key, found))
    }

    /// A live read of the lock, or what our own write left.
    pub fn apply_lock(&self, lock: LockRead) {
        if self.seen().lock != lock {
            self.update(|seen| seen.lock = lock);
        }
    }

    /// The whole list of pods, each with what its status says that it has.
    fn replace_pods(&self, pods: Vec<(HandoffPod, ListedContainers)>) -> Vec<PodNotice> {
        self.update(|seen| {
            (seen.pods_synced, seen.pods_watching, seen.pods_listed) = (true, true, clock::mono());
            let (pods, reported): (Vec<_>, Vec<_>) =
                pods.into_iter().map(|(pod, reported)| (pod.clone(), (pod.pod.uid, reported))).unzip();
            let notices = seen.pods.replace(pods);
            for (uid, reported) in reported {
                seen.pods.report(&uid, reported);
            }
            notices
        })
    }

    /// Watches the pods that are bound to `node`, forever, each watch for at most `timeout`; `report` gets the events to write.
    pub async fn watch_pods(&self, client: Client, node: &str, timeout: Duration, report: impl Fn(PodNotice)) {
        let pods: Api<LightPod> = Api::all(client);
        let config = watched(timeout).fields(&format!("spec.nodeName={node}"));
        let stream = patient(watcher(pods.clone(), config.clone().streaming_lists()), ON_EVERY_NODE);
        self.follow_pods(stream, InitialListStrategy::StreamingList, &report).await;
        tracing::info!("the API server has no streaming lists: listing in pages");
        let stream = patient(watcher(pods, config.page_size(PAGE)), ON_EVERY_NODE);
        self.follow_pods(stream, InitialListStrategy::ListWatch, &report).await;
    }

    /// Returns when the API server cannot stream the first list.
    async fn follow_pods(
        &self,
        stream: impl Stream<Item = Result<Event<LightPod>, watcher::Error>>,
        lists: InitialListStrategy,
        report: &impl Fn(PodNotice),
    ) {
        let streaming = lists == InitialListStrategy::StreamingList;
        let mut stream = std::pin::pin!(stream);
        // Of each pod only what is needed: the labels of a tenant's pods may be large.
        let mut listing: Option<Vec<(HandoffPod, ListedContainers)>> = None;
        while let Some(event) = stream.next().await {
            match event {
                // A server without streaming lists shows every object and never marks the end of the list.
                Ok(Event::Init) if streaming && listing.as_ref().is_some_and(|pods| !pods.is_empty()) => return,
                Err(error) if streaming && refuses_streaming(&error) => return,
                Ok(Event::Init) => listing = Some(Vec::new()),
                Ok(Event::InitApply(pod)) => {
                    let read = (pod.handoff_since(self.booted), pod.reported());
                    listing.get_or_insert_default().push(read);
                }
                Ok(Event::InitDone) => {
                    let pods = listing.take().unwrap_or_default();
                    tracing::debug!(pods = pods.len(), "pods of this node listed");
                    self.replace_pods(pods).into_iter().for_each(report);
                }
                Ok(Event::Apply(pod)) => {
                    let notice = self.update(|seen| {
                        seen.pods_watching = true;
                        take_in(&mut seen.pods, &pod, self.booted)
                    });
                    notice.into_iter().for_each(report);
                }
                Ok(Event::Delete(pod)) => self.update(|seen| {
                    seen.pods_watching = true;
                    // The object with which it went says whether it had ended.
                    take_in(&mut seen.pods, &pod, self.booted);
                    seen.pods.remove(&pod.handoff().pod.uid);
                }),
                Err(error) => {
                    tracing::warn!(error = words(&error), "watch of this node's pods broke; trying again");
                    self.update(|seen| (seen.pods_watching, seen.pods_broke) = (false, clock::mono()));
                }
            }
        }
    }

    /// Follows the watches of pods and of the node that resume after they broke, forever: nothing was missed, and the next
    /// change may be hours away.
    pub async fn follow_resumed(&self, resumed: Resumed) {
        let mut paths = resumed.paths();
        loop {
            match paths.recv().await {
                Ok((path, at)) => self.resumed(&path, at),
                Err(RecvError::Lagged(_)) => {}
                Err(RecvError::Closed) => std::future::pending().await,
            }
        }
    }

    fn resumed(&self, path: &str, at: Duration) {
        let seen = self.seen();
        // A watch that begins with an error, as one from a version that is gone, has not resumed.
        let pods = path.ends_with("/pods") && seen.pods_synced && !seen.pods_watching && seen.pods_broke < at;
        let node = path.ends_with("/nodes") && seen.node_synced && !seen.node_watching && seen.node_broke < at;
        let news = pods || node;
        drop(seen);
        if news {
            tracing::info!(path, "the watch runs again");
            self.update(|seen| {
                seen.pods_watching |= pods;
                seen.node_watching |= node;
            });
        }
    }

    /// Watches the lock annotation `lock_key` of `node`, forever.
    pub async fn watch_node(&self, client: Client, node: &str, lock_key: &str, timeout: Duration) {
        let nodes: Api<PartialObjectMeta<Node>> = Api::all(client);
        let config = watched(timeout).fields(&format!("metadata.name={node}"));
        let stream = patient(watcher(nodes, config), ON_EVERY_NODE);
        let mut stream = std::pin::pin!(stream);
        while let Some(event) = stream.next().await {
            match event {
                Ok(Event::Apply(node) | Event::InitApply(node)) => {
                    let lock = lock_of(&node, lock_key);
                    self.update(|seen| {
                        seen.lock = lock;
                        (seen.node_synced, seen.node_watching) = (true, true);
                    });
                }
                Ok(Event::Init) => {}
                Ok(Event::InitDone) => self.update(|seen| seen.node_watching = true),
                Ok(Event::Delete(_)) => self.update(|seen| seen.lock = LockRead::Free),
                Err(error) => {
                    tracing::warn!(error = words(&error), "watch of this node broke; trying again");
                    self.update(|seen| (seen.node_watching, seen.node_broke) = (false, clock::mono()));
                }
            }
        }
    }
}

/// Pods of one page of a list: each may have more than a megabyte.
const PAGE: u32 = 10;

/// The server closes a watch after `timeout`, and it goes on where it was; the library takes one that is silent for five
/// seconds longer for dead.
fn watched(timeout: Duration) -> watcher::Config {
    watcher::Config::default().timeout(u32::try_from(timeout.as_secs()).unwrap_or(u32::MAX).max(1))
}

fn take_in(pods: &mut NodePods, pod: &LightPod, booted: Option<Timestamp>) -> Option<PodNotice> {
    let notice = pods.apply(pod.handoff_since(booted));
    pods.report(&PodUid::new(pod.metadata.uid.as_deref().unwrap_or_default()), pod.reported());
    notice
}

fn lock_of(node: &PartialObjectMeta<Node>, key: &str) -> LockRead {
    LockRead::parse(node.metadata.annotations.as_ref().and_then(|map| map.get(key)).map(String::as_str))
}

//! `--watch`: a snapshot that follows the cluster.

use std::collections::BTreeSet;
use std::time::Duration;

use futures::stream::{self, BoxStream, StreamExt};
use kube::api::Api;
use kube::runtime::watcher::{self, Event};
use kube::runtime::{WatchStreamExt, watcher as watch};
use kube::{Client, Resource, ResourceExt};
use serde::de::DeserializeOwned;

use super::snapshot::Snapshot;
use baton_cluster::agent_lease::LightLease;
use baton_cluster::client::status_code;
use baton_cluster::device::RawDevice;
use baton_cluster::node::LightNode;
use baton_cluster::pod::LightPod;
use baton_cluster::tyjob::RawTyJob;
use baton_contract::{AgentStatus, LEASE_PREFIX, PodKey};
use baton_runtime::{clock, words};

/// Changes that come within this time are shown together.
const TOGETHER: Duration = Duration::from_millis(250);

type Change = Box<dyn FnOnce(&mut Snapshot) + Send>;
/// Namespace and name.
type ObjectKey = (String, String);

/// A kind of object that a snapshot holds.
trait FollowedKind:
    Resource<DynamicType = ()> + Clone + std::fmt::Debug + DeserializeOwned + Send + Sync + Sized + 'static
{
    fn put(self, snapshot: &mut Snapshot);
    fn remove(snapshot: &mut Snapshot, key: &ObjectKey);
    fn keys(snapshot: &Snapshot) -> Vec<ObjectKey>;
    fn key(&self) -> ObjectKey {
        (self.namespace().unwrap_or_default(), self.name_any())
    }
}

impl FollowedKind for LightNode {
    fn put(self, snapshot: &mut Snapshot) {
        snapshot.changed.insert(self.name_any());
        let annotations = self.metadata.annotations.clone();
        if let Some(before) = snapshot.nodes.insert(self.name_any(), self)
            && before.metadata.annotations != annotations
        {
            snapshot.replaced.push((before, clock::wall()));
        }
    }
    fn remove(snapshot: &mut Snapshot, (_, name): &ObjectKey) {
        snapshot.changed.insert(name.clone());
        snapshot.nodes.remove(name);
    }
    fn keys(snapshot: &Snapshot) -> Vec<ObjectKey> {
        snapshot.nodes.keys().map(|name| (String::new(), name.clone())).collect()
    }
}

impl FollowedKind for RawDevice {
    fn put(self, snapshot: &mut Snapshot) {
        snapshot.changed.insert(self.name_any());
        snapshot.put_device(self);
    }
    fn remove(snapshot: &mut Snapshot, (_, name): &ObjectKey) {
        snapshot.changed.insert(name.clone());
        snapshot.devices.remove(name);
        snapshot.skipped.remove(name);
    }
    fn keys(snapshot: &Snapshot) -> Vec<ObjectKey> {
        snapshot.devices.keys().map(|name| (String::new(), name.clone())).collect()
    }
}

impl FollowedKind for LightPod {
    fn put(self, snapshot: &mut Snapshot) {
        snapshot.put_pod(self);
    }
    fn remove(snapshot: &mut Snapshot, (namespace, name): &ObjectKey) {
        snapshot.remove_pod(&PodKey::new(namespace, name));
    }
    fn keys(snapshot: &Snapshot) -> Vec<ObjectKey> {
        snapshot.pods.keys().map(|key| (key.namespace.to_string(), key.name.to_string())).collect()
    }
}

impl FollowedKind for LightLease {
    fn put(self, snapshot: &mut Snapshot) {
        let before = snapshot.leases.insert(self.name_any(), self.clone());
        // A renewal alone comes every few seconds from every node, and rows are looked at again before a Lease grows stale.
        if before.is_none_or(|before| before.metadata.annotations != self.metadata.annotations) {
            snapshot.changed.extend(self.name_any().strip_prefix(LEASE_PREFIX).map(str::to_owned));
        }
    }
    fn remove(snapshot: &mut Snapshot, (_, name): &ObjectKey) {
        snapshot.changed.extend(name.strip_prefix(LEASE_PREFIX).map(str::to_owned));
        snapshot.leases.remove(name);
    }
    fn keys(snapshot: &Snapshot) -> Vec<ObjectKey> {
        let namespace = |lease: &LightLease| lease.namespace().unwrap_or_default();
        snapshot.leases.iter().map(|(name, lease)| (namespace(lease), name.clone())).collect()
    }
}

impl FollowedKind for RawTyJob {
    fn put(self, snapshot: &mut Snapshot) {
        snapshot.jobs.insert(self.key(), self);
    }
    fn remove(snapshot: &mut Snapshot, key: &ObjectKey) {
        snapshot.jobs.remove(key);
    }
    fn keys(snapshot: &Snapshot) -> Vec<ObjectKey> {
        snapshot.jobs.keys().cloned().collect()
    }
}

/// The changes of one kind of objects, one of which lists them again after a broken watch.
fn changes<K: FollowedKind>(api: Api<K>) -> BoxStream<'static, Change> {
    let events = watch(api, watcher::Config::default()).default_backoff();
    let mut listed = BTreeSet::<ObjectKey>::new();
    let change = move |event: watcher::Result<Event<K>>| -> Option<Change> {
        Some(match event {
            Err(error) => {
                let why = refusal(&error)?;
                Box::new(move |snapshot| drop(snapshot.unread.insert(K::plural(&()).into_owned(), why)))
            }
            Ok(Event::Init) => {
                listed.clear();
                return None;
            }
            Ok(Event::InitApply(object)) => {
                listed.insert(object.key());
                Box::new(move |snapshot| object.put(snapshot))
            }
            Ok(Event::InitDone) => {
                let listed = std::mem::take(&mut listed);
                Box::new(move |snapshot| {
                    snapshot.unread.remove(&*K::plural(&()));
                    let known = K::keys(snapshot);
                    known.iter().filter(|key| !listed.contains(*key)).for_each(|key| K::remove(snapshot, key));
                })
            }
            Ok(Event::Apply(object)) => Box::new(move |snapshot| object.put(snapshot)),
            Ok(Event::Delete(object)) => {
                let gone = object.key();
                Box::new(move |snapshot| K::remove(snapshot, &gone))
            }
        })
    };
    events.map(change).filter_map(|change| async { change }).boxed()
}

/// Why the API server does not let this user read; `None` where it did not answer, or the watch was only broken off.
fn refusal(error: &watcher::Error) -> Option<String> {
    let (watcher::Error::InitialListFailed(source) | watcher::Error::WatchStartFailed(source)) = error else {
        return None;
    };
    matches!(status_code(source), Some(401 | 403 | 404)).then(|| words(source))
}

/// Changes of the snapshot, in portions.
pub struct Follower(BoxStream<'static, Change>);

impl Follower {
    /// Of nodes, devices, pods and the Leases of the daemons in `namespace`.
    pub fn of_cluster(client: &Client, namespace: &str) -> Self {
        let leases = Api::namespaced(client.clone(), &AgentStatus::lease_namespace(namespace));
        Self(
            stream::select_all([
                changes(Api::<LightNode>::all(client.clone())),
                changes(Api::<RawDevice>::all(client.clone())),
                changes(Api::<LightPod>::all(client.clone())),
                changes::<LightLease>(leases),
            ])
            .boxed(),
        )
    }

    /// Of TYJobs.
    pub fn of_jobs(client: &Client) -> Self {
        Self(changes(Api::<RawTyJob>::all(client.clone())))
    }

    /// The same with TYJobs.
    pub fn of_everything(client: &Client, namespace: &str) -> Self {
        Self(stream::select(Self::of_cluster(client, namespace).0, Self::of_jobs(client).0).boxed())
    }

    /// Waits for one change and applies it.
    pub async fn step(&mut self, snapshot: &mut Snapshot) {
        match self.0.next().await {
            Some(change) => change(snapshot),
            None => std::future::pending().await,
        }
    }

    /// Waits for changes and applies all that come within a short time.
    pub async fn advance(&mut self, snapshot: &mut Snapshot) {
        self.step(snapshot).await;
        let rest = async {
            loop {
                self.step(snapshot).await;
            }
        };
        let _ = tokio::time::timeout(TOGETHER, rest).await;
        snapshot.changed.clear();
        snapshot.replaced.clear();
    }
}

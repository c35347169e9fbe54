//! `--watch`: a snapshot that follows the cluster.

use std::collections::BTreeSet;
use std::time::Duration;

use futures::stream::{self, BoxStream, StreamExt};
use kube::api::Api;
use kube::runtime::watcher::{self, Event};
use kube::runtime::{WatchStreamExt, watcher as watch};
use kube::{Client, Resource, ResourceExt};
use serde::de::DeserializeOwned;

use super::snapshot::{Notes, Snapshot};
use crate::cluster::agent_lease::LightLease;
use crate::cluster::node::LightNode;
use crate::cluster::pod::LightPod;
use crate::cluster::tyjob::RawTyJob;
use crate::contract::inventory::Device;
use crate::contract::{AgentStatus, PodKey};

/// Changes that come within this time are shown together.
const TOGETHER: Duration = Duration::from_millis(250);

type Change = Box<dyn FnOnce(&mut Snapshot) + Send>;
/// Namespace and name.
type Key = (String, String);

/// A kind of object that a snapshot holds.
trait Followed:
    Resource<DynamicType = ()> + Clone + std::fmt::Debug + DeserializeOwned + Send + Sync + Sized + 'static
{
    fn put(self, snapshot: &mut Snapshot);
    /// Keeps those of these keys.
    fn retain(snapshot: &mut Snapshot, keep: &dyn Fn(&str, &str) -> bool);
    fn key(&self) -> Key {
        (self.namespace().unwrap_or_default(), self.name_any())
    }
}

impl Followed for LightNode {
    fn put(self, snapshot: &mut Snapshot) {
        snapshot.nodes.insert(self.name_any(), self);
    }
    fn retain(snapshot: &mut Snapshot, keep: &dyn Fn(&str, &str) -> bool) {
        snapshot.nodes.retain(|name, _| keep("", name));
    }
}

impl Followed for Device {
    fn put(self, snapshot: &mut Snapshot) {
        snapshot.devices.insert(self.name_any(), self);
    }
    fn retain(snapshot: &mut Snapshot, keep: &dyn Fn(&str, &str) -> bool) {
        snapshot.devices.retain(|name, _| keep("", name));
    }
}

impl Followed for LightPod {
    fn put(self, snapshot: &mut Snapshot) {
        let (notes, pod) = (Notes::of(&self), self.handoff());
        snapshot.notes.insert(pod.pod.key.clone(), notes);
        snapshot.pods.insert(pod.pod.key.clone(), pod);
    }
    fn retain(snapshot: &mut Snapshot, keep: &dyn Fn(&str, &str) -> bool) {
        let kept = |key: &PodKey| keep(&key.namespace, &key.name);
        snapshot.notes.retain(|key, _| kept(key));
        snapshot.pods.retain(|key, _| kept(key));
    }
}

impl Followed for LightLease {
    fn put(self, snapshot: &mut Snapshot) {
        snapshot.leases.insert(self.name_any(), self);
    }
    fn retain(snapshot: &mut Snapshot, keep: &dyn Fn(&str, &str) -> bool) {
        snapshot.leases.retain(|name, lease| keep(lease.namespace().as_deref().unwrap_or_default(), name));
    }
}

impl Followed for RawTyJob {
    fn put(self, snapshot: &mut Snapshot) {
        snapshot.jobs.insert(self.key(), self);
    }
    fn retain(snapshot: &mut Snapshot, keep: &dyn Fn(&str, &str) -> bool) {
        snapshot.jobs.retain(|(namespace, name), _| keep(namespace, name));
    }
}

/// The changes of one kind of objects, one of which lists them again after a broken watch.
fn changes<K: Followed>(api: Api<K>) -> BoxStream<'static, Change> {
    let events = watch(api, watcher::Config::default()).default_backoff();
    let mut listed = BTreeSet::<Key>::new();
    let change = move |event: watcher::Result<Event<K>>| -> Option<Change> {
        Some(match event.ok()? {
            Event::Init => {
                listed.clear();
                return None;
            }
            Event::InitApply(object) => {
                listed.insert(object.key());
                Box::new(move |snapshot| object.put(snapshot))
            }
            Event::InitDone => {
                let listed = std::mem::take(&mut listed);
                let known = move |space: &str, name: &str| listed.contains(&(space.to_owned(), name.to_owned()));
                Box::new(move |snapshot| K::retain(snapshot, &known))
            }
            Event::Apply(object) => Box::new(move |snapshot| object.put(snapshot)),
            Event::Delete(object) => {
                let gone = object.key();
                let other = move |space: &str, name: &str| (space, name) != (&*gone.0, &*gone.1);
                Box::new(move |snapshot| K::retain(snapshot, &other))
            }
        })
    };
    events.map(change).filter_map(|change| async { change }).boxed()
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
                changes(Api::<Device>::all(client.clone())),
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

    /// Waits for changes and applies all that come within a short time.
    pub async fn advance(&mut self, snapshot: &mut Snapshot) {
        let Some(first) = self.0.next().await else { return std::future::pending().await };
        first(snapshot);
        let rest = async {
            while let Some(change) = self.0.next().await {
                change(snapshot);
            }
        };
        let _ = tokio::time::timeout(TOGETHER, rest).await;
    }
}

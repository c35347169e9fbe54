//! Watches folded straight into the scheduler's events: nothing is cached here but the names of what was seen.

use std::collections::BTreeSet;
use std::fmt::Debug;

use futures::{Stream, StreamExt};
use kube::Resource;
use kube::api::{Api, ObjectMeta};
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Config, Event};
use serde::de::DeserializeOwned;
use tokio::sync::mpsc;

use crate::decide::world::WorldEvent;

/// What a feed tells.
#[derive(Debug, Clone)]
pub enum FeedMessage {
    /// Something happened.
    Event(WorldEvent),
    /// The first list of this feed is complete.
    Synced(&'static str),
}

/// Identity of an object that was seen.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Seen {
    /// Namespace; empty for cluster-scoped objects.
    pub namespace: Box<str>,
    /// Name.
    pub name: Box<str>,
    /// Uid.
    pub uid: Box<str>,
}

impl Seen {
    fn of(meta: &ObjectMeta) -> Self {
        let word = |text: &Option<String>| text.as_deref().unwrap_or_default().into();
        Self { namespace: word(&meta.namespace), name: word(&meta.name), uid: word(&meta.uid) }
    }
}

/// Makes an event of what a watch showed; `None` skips it.
pub type Telling<T> = Box<dyn Fn(T) -> Option<WorldEvent> + Send + Sync>;
/// Makes an event of what a watch does not show any more; `None` skips it.
pub type Losing = Box<dyn Fn(&Seen) -> Option<WorldEvent> + Send + Sync>;

/// One kind of object to watch.
pub struct Feed<K> {
    /// For the log and for [`FeedMessage::Synced`].
    pub name: &'static str,
    /// Where.
    pub api: Api<K>,
    /// Which.
    pub config: Config,
    /// A missing API or permission counts as an empty list instead of holding the start up.
    pub optional: bool,
    /// The event of an object; `None` skips it.
    pub told: Telling<K>,
    /// The event of an object that is gone.
    pub gone: Losing,
}

impl<K> Feed<K>
where
    K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
{
    /// Watches until the receiver is dropped. Lists anew after an expired version, with back-off after errors, and tells what
    /// vanished meanwhile.
    pub async fn run(self, out: mpsc::Sender<FeedMessage>) {
        let stream = watcher::watcher(self.api.clone(), self.config.clone()).default_backoff();
        self.follow(stream, out).await;
    }

    async fn follow(self, stream: impl Stream<Item = watcher::Result<Event<K>>>, out: mpsc::Sender<FeedMessage>) {
        let mut stream = std::pin::pin!(stream);
        let mut known: BTreeSet<Seen> = BTreeSet::new();
        let mut fresh: BTreeSet<Seen> = BTreeSet::new();
        while let Some(next) = stream.next().await {
            let mut events = Vec::new();
            let mut synced = false;
            match next {
                Ok(Event::Init) => fresh.clear(),
                Ok(Event::InitApply(object)) => {
                    fresh.insert(Seen::of(object.meta()));
                    events.extend((self.told)(object));
                }
                Ok(Event::InitDone) => {
                    events.extend(known.difference(&fresh).filter_map(|seen| (self.gone)(seen)));
                    known = std::mem::take(&mut fresh);
                    synced = true;
                }
                Ok(Event::Apply(object)) => {
                    known.insert(Seen::of(object.meta()));
                    events.extend((self.told)(object));
                }
                Ok(Event::Delete(object)) => {
                    let seen = Seen::of(object.meta());
                    known.remove(&seen);
                    events.extend((self.gone)(&seen));
                }
                Err(error) => {
                    tracing::warn!(feed = self.name, %error, "watch failed, trying again");
                    synced = self.optional && is_missing(&error);
                }
            }
            for event in events {
                if out.send(FeedMessage::Event(event)).await.is_err() {
                    return;
                }
            }
            if synced && out.send(FeedMessage::Synced(self.name)).await.is_err() {
                return;
            }
        }
    }
}

/// The API or the permission is not there.
fn is_missing(error: &watcher::Error) -> bool {
    match error {
        watcher::Error::InitialListFailed(kube::Error::Api(status))
        | watcher::Error::WatchStartFailed(kube::Error::Api(status)) => matches!(status.code, 403 | 404),
        _ => false,
    }
}

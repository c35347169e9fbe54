//! Watches of objects, turned into events one by one: nothing is cached here but the identities of the objects.

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::time::Duration;

use futures::{Stream, StreamExt};
use kube::Resource;
use kube::api::{Api, ObjectMeta};
use kube::runtime::watcher::{self, Config, Event};
use serde::de::DeserializeOwned;
use tokio::sync::mpsc;

use super::rewatch::{CENTRAL, patient};
use baton_runtime::backoff::Backoff;
use baton_runtime::words;

/// Pauses, first and longest, before an API that is not installed is requested again. Once it is installed, its objects are
/// known within the longest one.
const ABSENT: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(5));

/// A message of a feed.
#[derive(Debug, Clone)]
pub enum FeedMessage<E> {
    /// An object is new, changed or gone.
    Event(E),
    /// The first list of this feed is complete.
    Synced(&'static str),
}

/// Identity of a watched object: one text, because there is one for every object of the cluster.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct WatchedObject {
    /// Namespace, name and uid.
    text: Box<str>,
    /// Where the name begins, and the uid.
    starts: (u32, u32),
}

impl WatchedObject {
    fn of(meta: &ObjectMeta) -> Self {
        let words = [&meta.namespace, &meta.name, &meta.uid].map(|word| word.as_deref().unwrap_or_default());
        let name_at = words[0].len() as u32;
        Self { text: words.concat().into(), starts: (name_at, name_at + words[1].len() as u32) }
    }

    /// Another object of this namespace and name among those known.
    fn former(&self, known: &BTreeSet<Self>) -> Option<Self> {
        let name = &self.text[..self.starts.1 as usize];
        let from = Self { text: name.into(), starts: (0, 0) };
        let alike = known.range(from..).take_while(|object| object.text.starts_with(name));
        let mut same = alike.filter(|object| object.starts == self.starts && object.text != self.text);
        same.next().cloned()
    }

    /// Namespace; empty for cluster-scoped objects.
    pub fn namespace(&self) -> &str {
        &self.text[..self.starts.0 as usize]
    }

    /// Name.
    pub fn name(&self) -> &str {
        &self.text[self.starts.0 as usize..self.starts.1 as usize]
    }

    /// Uid.
    pub fn uid(&self) -> &str {
        &self.text[self.starts.1 as usize..]
    }
}

/// Makes an event of a new or changed object; `None` skips it.
pub type OnApply<K, E> = Box<dyn Fn(K) -> Option<E> + Send + Sync>;
/// Makes an event of an object that is gone; `None` skips it.
pub type OnDelete<E> = Box<dyn Fn(&WatchedObject) -> Option<E> + Send + Sync>;

/// One kind of object to watch.
pub struct Feed<K, E> {
    /// For the log and for [`FeedMessage::Synced`].
    pub name: &'static str,
    /// Where: the versions of the API, of which the first that is served is watched.
    pub apis: Vec<Api<K>>,
    /// Which.
    pub config: Config,
    /// A missing API or permission counts as an empty list instead of holding the start up.
    pub optional: bool,
    /// Makes an event of whether these objects may be read, where it matters that there are none only because they may not.
    pub on_access: Option<fn(bool) -> E>,
    /// For new and changed objects.
    pub on_apply: OnApply<K, E>,
    /// For objects that are gone.
    pub on_delete: OnDelete<E>,
}

impl<K, E: Send> Feed<K, E>
where
    K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
{
    /// Watches until the receiver is dropped. Takes the first objects from the watch itself where the API server can do that
    /// (streaming lists), else from a list in pages. Lists again after an expired version, with back-off after errors, and
    /// reports the objects that are gone since. An optional API that is not installed is requested again until it is.
    pub async fn run(self, out: mpsc::Sender<FeedMessage<E>>) {
        let mut known = BTreeSet::new();
        let mut streaming = true;
        let mut absent = Backoff::new(ABSENT.0, ABSENT.1);
        let mut version = 0;
        loop {
            let Some(api) = self.apis.get(version) else { return };
            let config = if streaming { self.config.clone().streaming_lists() } else { self.config.clone() };
            let stream = patient(watcher::watcher(api.clone(), config), CENTRAL);
            match self.follow(stream, streaming, &mut known, &mut absent, &out).await {
                FeedEnd::NoStreamingLists => {
                    tracing::info!(feed = self.name, "the API server has no streaming lists: listing in pages");
                    streaming = false;
                }
                FeedEnd::Absent if version + 1 < self.apis.len() => version += 1,
                FeedEnd::Absent => {
                    version = 0;
                    if absent.failures() == 0 {
                        tracing::info!(
                            feed = self.name,
                            "the API of these objects is not installed: there are none for now"
                        );
                    }
                    // The objects are deleted with their definition.
                    let gone = std::mem::take(&mut known);
                    let events = gone.iter().filter_map(|object| (self.on_delete)(object)).map(FeedMessage::Event);
                    for message in events.chain([FeedMessage::Synced(self.name)]) {
                        if out.send(message).await.is_err() {
                            return;
                        }
                    }
                    tokio::time::sleep(absent.fail_randomly()).await;
                }
                FeedEnd::ReceiverDropped => return,
            }
        }
    }

    async fn follow(
        &self,
        stream: impl Stream<Item = watcher::Result<Event<K>>>,
        streaming: bool,
        known: &mut BTreeSet<WatchedObject>,
        absent: &mut Backoff,
        out: &mpsc::Sender<FeedMessage<E>>,
    ) -> FeedEnd {
        let mut stream = std::pin::pin!(stream);
        let mut fresh: BTreeSet<WatchedObject> = BTreeSet::new();
        let mut listing = false;
        while let Some(next) = stream.next().await {
            let mut events = Vec::new();
            let mut synced = false;
            match next {
                // A server without streaming lists shows every object and never marks the end of the list.
                Ok(Event::Init) if streaming && listing && !fresh.is_empty() => return FeedEnd::NoStreamingLists,
                Ok(Event::Init) => {
                    listing = true;
                    fresh.clear();
                }
                Ok(Event::InitApply(object)) => {
                    let identity = WatchedObject::of(object.meta());
                    if let Some(former) = identity.former(known) {
                        // It was deleted and created again between two watches: the former one goes first.
                        events.extend((self.on_delete)(&former));
                        known.remove(&former);
                    }
                    fresh.insert(identity);
                    events.extend((self.on_apply)(object));
                }
                Ok(Event::InitDone) => {
                    events.extend(known.difference(&fresh).filter_map(|object| (self.on_delete)(object)));
                    events.extend(self.on_access.map(|event| event(true)));
                    *known = std::mem::take(&mut fresh);
                    absent.succeed();
                    (listing, synced) = (false, true);
                }
                Ok(Event::Apply(object)) => {
                    known.insert(WatchedObject::of(object.meta()));
                    events.extend((self.on_apply)(object));
                }
                Ok(Event::Delete(object)) => {
                    let identity = WatchedObject::of(object.meta());
                    known.remove(&identity);
                    events.extend((self.on_delete)(&identity));
                }
                Err(error) if streaming && refuses_streaming(&error) => return FeedEnd::NoStreamingLists,
                Err(error) if self.optional && answered(&error) == Some(404) => return FeedEnd::Absent,
                Err(error) => {
                    tracing::warn!(feed = self.name, error = words(&error), "watch failed, trying again");
                    synced = self.optional && answered(&error) == Some(403);
                    events.extend(self.on_access.filter(|_| synced).map(|event| event(false)));
                }
            }
            for event in events {
                if out.send(FeedMessage::Event(event)).await.is_err() {
                    return FeedEnd::ReceiverDropped;
                }
            }
            if synced && out.send(FeedMessage::Synced(self.name)).await.is_err() {
                return FeedEnd::ReceiverDropped;
            }
        }
        FeedEnd::ReceiverDropped
    }
}

/// Why a watch is not followed any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FeedEnd {
    ReceiverDropped,
    NoStreamingLists,
    Absent,
}

/// The API server does not take `sendInitialEvents`: it is older, or the feature is off.
pub fn refuses_streaming(error: &watcher::Error) -> bool {
    let code = match error {
        watcher::Error::WatchStartFailed(kube::Error::Api(status)) | watcher::Error::WatchError(status) => status.code,
        _ => return false,
    };
    matches!(code, 400 | 422)
}

/// The API server's answer to the start of a watch, when that was an error.
fn answered(error: &watcher::Error) -> Option<u16> {
    match error {
        watcher::Error::InitialListFailed(kube::Error::Api(status))
        | watcher::Error::WatchStartFailed(kube::Error::Api(status)) => Some(status.code),
        _ => None,
    }
}

/// The server closes a watch after this many seconds, and the watch goes on where it was. A watch that is silent for half a
/// minute longer counts as broken.
const WATCH_SECONDS: u32 = 120;

/// The configuration of every feed's watch.
pub(super) fn watch_config() -> Config {
    Config::default().timeout(WATCH_SECONDS)
}

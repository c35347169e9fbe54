//! Watches folded straight into the scheduler's events: nothing is cached here but the names of what was seen.

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
use crate::decide::world::WorldEvent;
use crate::runtime::backoff::Backoff;
use crate::runtime::words;

/// An API that is not installed is asked for again after these times, first and longest: whoever installs it waits no longer.
const ABSENT: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(5));

/// What a feed tells.
#[derive(Debug, Clone)]
pub enum FeedMessage {
    /// Something happened.
    Event(WorldEvent),
    /// The first list of this feed is complete.
    Synced(&'static str),
}

/// Identity of an object that was seen: one text, because there is one for every object of the cluster.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Seen {
    /// Namespace, name and uid.
    text: Box<str>,
    /// Where the name begins, and the uid.
    starts: (u32, u32),
}

impl Seen {
    fn of(meta: &ObjectMeta) -> Self {
        let words = [&meta.namespace, &meta.name, &meta.uid].map(|word| word.as_deref().unwrap_or_default());
        let name_at = words[0].len() as u32;
        Self { text: words.concat().into(), starts: (name_at, name_at + words[1].len() as u32) }
    }

    /// Another object of this namespace and name among those known.
    fn former(&self, known: &BTreeSet<Self>) -> Option<Self> {
        let name = &self.text[..self.starts.1 as usize];
        let from = Self { text: name.into(), starts: (0, 0) };
        let alike = known.range(from..).take_while(|seen| seen.text.starts_with(name));
        let mut same = alike.filter(|seen| seen.starts == self.starts && seen.text != self.text);
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
    /// Watches until the receiver is dropped. Takes the first objects from the watch itself where the API server can do that
    /// (streaming lists), else from a list in pages. Lists anew after an expired version, with back-off after errors, and tells
    /// what vanished meanwhile. An optional API that is not installed is asked for again until it is.
    pub async fn run(self, out: mpsc::Sender<FeedMessage>) {
        let mut known = BTreeSet::new();
        let mut streaming = true;
        let mut absent = Backoff::new(ABSENT.0, ABSENT.1);
        loop {
            let config = if streaming { self.config.clone().streaming_lists() } else { self.config.clone() };
            let stream = patient(watcher::watcher(self.api.clone(), config), CENTRAL);
            match self.follow(stream, streaming, &mut known, &mut absent, &out).await {
                Ended::NoStreamingLists => {
                    tracing::info!(feed = self.name, "the API server has no streaming lists: listing in pages");
                    streaming = false;
                }
                Ended::Absent => {
                    if absent.failures() == 0 {
                        tracing::info!(feed = self.name, "the API server does not know these objects: none for now");
                    }
                    // Whoever takes a definition away takes its objects along.
                    let gone = std::mem::take(&mut known);
                    let events = gone.iter().filter_map(|seen| (self.gone)(seen)).map(FeedMessage::Event);
                    for message in events.chain([FeedMessage::Synced(self.name)]) {
                        if out.send(message).await.is_err() {
                            return;
                        }
                    }
                    tokio::time::sleep(absent.fail_randomly()).await;
                }
                Ended::NobodyListens => return,
            }
        }
    }

    async fn follow(
        &self,
        stream: impl Stream<Item = watcher::Result<Event<K>>>,
        streaming: bool,
        known: &mut BTreeSet<Seen>,
        absent: &mut Backoff,
        out: &mpsc::Sender<FeedMessage>,
    ) -> Ended {
        let mut stream = std::pin::pin!(stream);
        let mut fresh: BTreeSet<Seen> = BTreeSet::new();
        let mut listing = false;
        while let Some(next) = stream.next().await {
            let mut events = Vec::new();
            let mut synced = false;
            match next {
                // A server that does not know of streaming lists shows everything and never says that this was all.
                Ok(Event::Init) if streaming && listing && !fresh.is_empty() => return Ended::NoStreamingLists,
                Ok(Event::Init) => {
                    listing = true;
                    fresh.clear();
                }
                Ok(Event::InitApply(object)) => {
                    let seen = Seen::of(object.meta());
                    if let Some(former) = seen.former(known) {
                        // It was made anew while nobody watched: the old one went first.
                        events.extend((self.gone)(&former));
                        known.remove(&former);
                    }
                    fresh.insert(seen);
                    events.extend((self.told)(object));
                }
                Ok(Event::InitDone) => {
                    events.extend(known.difference(&fresh).filter_map(|seen| (self.gone)(seen)));
                    *known = std::mem::take(&mut fresh);
                    absent.succeed();
                    (listing, synced) = (false, true);
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
                Err(error) if streaming && refuses_streaming(&error) => return Ended::NoStreamingLists,
                Err(error) if self.optional && answered(&error) == Some(404) => return Ended::Absent,
                Err(error) => {
                    tracing::warn!(feed = self.name, error = words(&error), "watch failed, trying again");
                    synced = self.optional && answered(&error) == Some(403);
                }
            }
            for event in events {
                if out.send(FeedMessage::Event(event)).await.is_err() {
                    return Ended::NobodyListens;
                }
            }
            if synced && out.send(FeedMessage::Synced(self.name)).await.is_err() {
                return Ended::NobodyListens;
            }
        }
        Ended::NobodyListens
    }
}

/// Why a watch is not followed any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ended {
    NobodyListens,
    NoStreamingLists,
    Absent,
}

/// The API server does not take `sendInitialEvents`: it is older, or the feature is off.
fn refuses_streaming(error: &watcher::Error) -> bool {
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

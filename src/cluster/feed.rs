//! Watches of objects, turned into events one by one: nothing is cached here but the identities of the objects.

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::time::Duration;

use futures::{Stream, StreamExt};
use kube::Resource;
use kube::api::{Api, ObjectMeta};
use kube::runtime::watcher::{self, Config, Event, InitialListStrategy};
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
    /// A missing API counts as an empty list. Objects that may not be read hold the start up, but for `on_access`.
    pub optional: bool,
    /// Makes an event of whether these objects may be read, where work goes on without them.
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
        // Every object that the receiver has been shown and that is not gone for it.
        let mut known = BTreeSet::new();
        let mut lists = InitialListStrategy::StreamingList;
        let mut absent = Backoff::new(ABSENT.0, ABSENT.1);
        let mut version = 0;
        loop {
            let Some(api) = self.apis.get(version) else { return };
            let config = Config { initial_list_strategy: lists.clone(), ..self.config.clone() };
            let stream = patient(watcher::watcher(api.clone(), config), CENTRAL);
            match self.follow(stream, &lists, &mut known, &mut absent, &out).await {
                FeedEnd::NoStreamingLists => {
                    tracing::info!(feed = self.name, "the API server has no streaming lists: listing in pages");
                    lists = InitialListStrategy::ListWatch;
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
        lists: &InitialListStrategy,
        known: &mut BTreeSet<WatchedObject>,
        absent: &mut Backoff,
        out: &mpsc::Sender<FeedMessage<E>>,
    ) -> FeedEnd {
        let streaming = *lists == InitialListStrategy::StreamingList;
        let mut stream = std::pin::pin!(stream);
        // Of what the receiver knows, what the list under way has not shown; and whether that list has shown anything.
        let (mut unseen, mut shown) = (BTreeSet::new(), false);
        // What the list shows that is new, until what is gone has been reported: a name or a gang never has both.
        let mut new = Vec::new();
        while let Some(next) = stream.next().await {
            let mut events = Vec::new();
            let mut synced = false;
            match next {
                // A server without streaming lists shows every object and never marks the end of the list.
                Ok(Event::Init) if streaming && shown => return FeedEnd::NoStreamingLists,
                Ok(Event::Init) => {
                    (unseen, shown) = (known.clone(), false);
                    new.clear();
                }
                Ok(Event::InitApply(object)) => {
                    let identity = WatchedObject::of(object.meta());
                    unseen.remove(&identity);
                    shown = true;
                    if known.contains(&identity) {
                        events.extend((self.on_apply)(object));
                    } else {
                        new.push((identity, (self.on_apply)(object)));
                    }
                    if unseen.is_empty() {
                        enter(&mut new, known, &mut events);
                    }
                }
                Ok(Event::InitDone) => {
                    for gone in std::mem::take(&mut unseen) {
                        known.remove(&gone);
                        events.extend((self.on_delete)(&gone));
                    }
                    enter(&mut new, known, &mut events);
                    events.extend(self.on_access.map(|event| event(true)));
                    absent.succeed();
                    (shown, synced) = (false, true);
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
                    // A list that breaks off is begun again, which says nothing of the server's way of listing.
                    shown = false;
                    // An API server that has just started refuses for a while what it allows: only a feed that says so goes on.
                    let refused = self.on_access.filter(|_| answered(&error) == Some(403));
                    synced = refused.is_some();
                    events.extend(refused.map(|event| event(false)));
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

/// Reports what a list has shown.
fn enter<E>(new: &mut Vec<(WatchedObject, Option<E>)>, known: &mut BTreeSet<WatchedObject>, events: &mut Vec<E>) {
    for (identity, event) in new.drain(..) {
        known.insert(identity);
        events.extend(event);
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

#[cfg(test)]
mod tests {
    use futures::stream;
    use k8s_openapi::api::core::v1::ConfigMap;

    use super::*;

    /// Objects by name, with their uid, as the API server has them; what kube's watcher shows of them; and what the receiver knows.
    struct Scene {
        dice: fastrand::Rng,
        objects: std::collections::BTreeMap<u8, u32>,
        known: BTreeSet<WatchedObject>,
        received: BTreeSet<(String, String)>,
        created: u32,
    }

    impl Scene {
        fn object(name: u8, uid: u32) -> ConfigMap {
            let metadata =
                ObjectMeta { name: Some(name.to_string()), uid: Some(uid.to_string()), ..ObjectMeta::default() };
            ConfigMap { metadata, ..ConfigMap::default() }
        }

        fn list(&self) -> Vec<Event<ConfigMap>> {
            self.objects.iter().map(|(name, uid)| Event::InitApply(Self::object(*name, *uid))).collect()
        }

        /// One write, as a watch shows it.
        fn write(&mut self) -> Event<ConfigMap> {
            let name = self.dice.u8(0..6);
            if let Some(uid) = self.objects.remove(&name) {
                return Event::Delete(Self::object(name, uid));
            }
            self.created += 1;
            self.objects.insert(name, self.created);
            Event::Apply(Self::object(name, self.created))
        }

        /// Writes that no watch shows.
        fn writes(&mut self) {
            (0..self.dice.usize(0..4)).for_each(|_| drop(self.write()));
        }

        /// A list, which breaks off a few times, with or without an error; writes that the watch shows; and its end.
        fn watch(&mut self) -> Vec<watcher::Result<Event<ConfigMap>>> {
            let mut shown = Vec::new();
            while self.dice.bool() {
                shown.push(Ok(Event::Init));
                let list = self.list();
                let part = self.dice.usize(0..=list.len());
                shown.extend(list.into_iter().take(part).map(Ok));
                shown.extend(self.dice.bool().then_some(Err(watcher::Error::NoResourceVersion)));
                self.writes();
            }
            shown.push(Ok(Event::Init));
            shown.extend(self.list().into_iter().map(Ok));
            shown.push(Ok(Event::InitDone));
            for _ in 0..self.dice.usize(0..4) {
                shown.push(Ok(self.write()));
            }
            shown
        }

        /// Shows all of it to the feed, which gives up streaming at most once.
        async fn follow(&mut self, shown: Vec<watcher::Result<Event<ConfigMap>>>, lists: &mut InitialListStrategy) {
            let named = |of: &WatchedObject| (of.name().to_owned(), of.uid().to_owned());
            let feed: Feed<ConfigMap, (bool, (String, String))> = Feed {
                name: "objects",
                apis: Vec::new(),
                config: watch_config(),
                optional: false,
                on_access: None,
                on_apply: Box::new(move |object: ConfigMap| Some((true, named(&WatchedObject::of(&object.metadata))))),
                on_delete: Box::new(move |gone| Some((false, named(gone)))),
            };
            let (out, mut messages) = mpsc::channel(1024);
            let mut shown = stream::iter(shown);
            let mut absent = Backoff::new(ABSENT.0, ABSENT.1);
            while feed.follow(&mut shown, lists, &mut self.known, &mut absent, &out).await == FeedEnd::NoStreamingLists
            {
                assert_eq!(std::mem::take(lists), InitialListStrategy::StreamingList, "it lists in pages already");
                // The watch that begins instead shows all objects.
                shown = stream::iter(
                    std::iter::once(Ok(Event::Init)).chain(shown.collect::<Vec<_>>().await).collect::<Vec<_>>(),
                );
            }
            drop(out);
            while let Some(message) = messages.recv().await {
                match message {
                    FeedMessage::Event((true, object)) => _ = self.received.insert(object),
                    FeedMessage::Event((false, object)) => _ = self.received.remove(&object),
                    FeedMessage::Synced(_) => {}
                }
            }
        }
    }

    #[tokio::test]
    async fn the_receiver_knows_what_there_is_after_lists_that_broke_off() {
        for seed in 0..2_000 {
            let (dice, objects) = (fastrand::Rng::with_seed(seed), std::collections::BTreeMap::new());
            let mut scene = Scene { dice, objects, known: BTreeSet::new(), received: BTreeSet::new(), created: 0 };
            let mut lists = InitialListStrategy::StreamingList;
            for _ in 0..4 {
                scene.writes();
                let shown = scene.watch();
                scene.follow(shown, &mut lists).await;
                let there: BTreeSet<_> =
                    scene.objects.iter().map(|(name, uid)| (name.to_string(), uid.to_string())).collect();
                assert_eq!(scene.received, there, "seed {seed}");
            }
        }
    }

    /// As it was in the API server: a gang whose pods were all made again had none in between.
    #[tokio::test]
    async fn of_a_later_list_what_is_gone_goes_before_what_is_new() {
        let feed: Feed<ConfigMap, String> = Feed {
            name: "objects",
            apis: Vec::new(),
            config: watch_config(),
            optional: false,
            on_access: None,
            on_apply: Box::new(|object: ConfigMap| {
                Some(object.metadata.resource_version.or(object.metadata.name).unwrap())
            }),
            on_delete: Box::new(|gone| Some(format!("{} is gone", gone.name()))),
        };
        let list = |names: &[u8]| {
            let objects = names.iter().map(|name| Ok(Event::InitApply(Scene::object(*name, (*name).into()))));
            [Ok(Event::Init)].into_iter().chain(objects).chain([Ok(Event::InitDone)]).collect::<Vec<_>>()
        };
        let mut second = list(&[1, 2, 4, 6]);
        // What changes meanwhile is shown again.
        let mut changed = Scene::object(1, 1);
        changed.metadata.resource_version = Some("1, later".to_owned());
        second.insert(5, Ok(Event::InitApply(changed)));
        let shown = list(&[3, 4, 5]).into_iter().chain(second);
        let (out, mut messages) = mpsc::channel(64);
        let (mut known, mut absent) = (BTreeSet::new(), Backoff::new(ABSENT.0, ABSENT.1));
        let lists = InitialListStrategy::ListWatch;
        feed.follow(stream::iter(shown), &lists, &mut known, &mut absent, &out).await;
        drop(out);
        let mut said = Vec::new();
        while let Some(message) = messages.recv().await {
            said.extend(match message {
                FeedMessage::Event(event) => Some(event),
                FeedMessage::Synced(_) => None,
            });
        }
        assert_eq!(said, ["3", "4", "5", "4", "3 is gone", "5 is gone", "1", "2", "6", "1, later"]);
    }

    /// What feeds say of objects that may not be read, for a while after the API server has started or for good.
    #[tokio::test]
    async fn objects_that_may_not_be_read_do_not_count_as_absent() {
        for (code, on_access, synced) in [(403, false, false), (403, true, true), (500, true, false)] {
            let on_access: Option<fn(bool) -> bool> = on_access.then_some(|readable| readable);
            let (name, apis, config) = ("objects", Vec::<Api<ConfigMap>>::new(), watch_config());
            let (on_apply, on_delete): (OnApply<_, _>, OnDelete<_>) = (Box::new(|_| None), Box::new(|_| None));
            let feed = Feed { name, apis, config, optional: true, on_access, on_apply, on_delete };
            let (out, mut messages) = mpsc::channel(8);
            let refused = kube::core::Status::failure("no", "Forbidden").with_code(code).boxed();
            let refused = watcher::Error::InitialListFailed(kube::Error::Api(refused));
            let (mut known, mut absent) = (BTreeSet::new(), Backoff::new(ABSENT.0, ABSENT.1));
            let end = feed
                .follow(
                    stream::iter([Err(refused)]),
                    &InitialListStrategy::StreamingList,
                    &mut known,
                    &mut absent,
                    &out,
                )
                .await;
            assert_eq!(end, FeedEnd::ReceiverDropped);
            drop(out);
            let mut said = Vec::new();
            while let Some(message) = messages.recv().await {
                said.push(format!("{message:?}"));
            }
            let expected: &[&str] = if synced { &["Event(false)", "Synced(\"objects\")"] } else { &[] };
            assert_eq!(said, expected, "{code}");
        }
    }

    #[tokio::test]
    async fn a_streaming_list_that_breaks_off_is_asked_for_again() {
        let mut scene = Scene {
            dice: fastrand::Rng::with_seed(1),
            objects: [(1, 1), (2, 2)].into(),
            known: BTreeSet::new(),
            received: BTreeSet::new(),
            created: 2,
        };
        let whole = || [Ok(Event::Init), Ok(Event::InitApply(Scene::object(1, 1)))];
        let mut lists = InitialListStrategy::StreamingList;
        let broken = whole().into_iter().chain([Err(watcher::Error::NoResourceVersion)]).chain(whole());
        scene.follow(broken.collect(), &mut lists).await;
        assert_eq!(lists, InitialListStrategy::StreamingList, "the connection broke, not the server's list");
        scene.follow(whole().into_iter().chain(whole()).collect(), &mut lists).await;
        assert_eq!(lists, InitialListStrategy::ListWatch, "a list without an end");
    }
}

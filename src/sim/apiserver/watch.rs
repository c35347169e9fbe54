//! Watches: history first, then what happens, with bookmarks, streaming lists, selectors, tables, and faults.

use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::Response;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};

use super::codec::{self, Form};
use super::core::Core;
use super::events::{from_stored, is_stored_form};
use super::failure::Failure;
use super::object::{Object, metadata_mut, typed};
use super::read::prefix;
use super::request::{Query, Request};
use super::resource::Resource;
use super::schema::zero_object;
use super::selectors::{Change, Seen, Selection};
use super::store::Subscription;

/// Longest life of a watch that names none.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(45 * 60);
/// Bookmarks come about this often.
const BOOKMARK_EVERY: Duration = Duration::from_secs(60);
/// And once this long before the end.
const BOOKMARK_BEFORE_END: Duration = Duration::from_secs(2);

/// How one watch writes its events.
struct Encoder {
    resource: Arc<Resource>,
    form: Form,
    include: String,
    first_table: bool,
}

type Chunk = Result<Bytes, std::io::Error>;

/// What a watch sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WatchSends {
    Events,
    /// It is accepted, and nothing comes.
    Nothing,
}

/// Starts a watch.
pub fn watch(
    core: &Arc<Core>,
    resource: &Arc<Resource>,
    request: &Request,
    sends: WatchSends,
) -> Result<Response<Body>, Failure> {
    let query = &request.query;
    let form = codec::form(&request.accept)?;
    let mut selection = Selection::parse(query.text("labelSelector"), query.text("fieldSelector"), resource)?;
    if !request.target.name.is_empty() {
        selection = selection.named(&request.target.name);
    }
    let selection = Arc::new(selection);
    let initial = query.flag("sendInitialEvents");
    let number = version(query)?;
    let timeout = query.number("timeoutSeconds").map_or(DEFAULT_TIMEOUT, Duration::from_secs);
    let prefix = prefix(resource, &request.target.namespace);
    let (tx, rx) = mpsc::channel::<Chunk>(64);
    // Without a version, or at 0, and for streaming lists the current state comes first.
    let state_first = initial || (number == 0 && query.get("sendInitialEvents").is_none());
    let from = (!state_first && number > 0).then_some(number);
    let subscription = core.store.subscribe(&resource.storage, &prefix, from, Arc::clone(&selection));
    let encoder = Encoder {
        resource: Arc::clone(resource),
        form,
        include: query.text("includeObject").to_owned(),
        first_table: true,
    };
    match subscription {
        Err(compacted) => {
            let text = format!("too old resource version: {number} ({})", compacted.oldest);
            let event = json!({"type": "ERROR", "object": Failure::expired(text).body()});
            let _ = tx.try_send(Ok(Bytes::from(format!("{event}\n"))));
        }
        Ok(subscription) => {
            let mut items = if state_first { state(core, resource, &prefix, subscription.version) } else { Vec::new() };
            items.retain(|o| selection.matches(&o.value));
            let run = Run {
                core: Arc::clone(core),
                encoder,
                selection,
                subscription,
                tx,
                bookmarks: query.flag("allowWatchBookmarks"),
                end_mark: initial && query.flag("allowWatchBookmarks"),
                last_bookmark: 0,
                // A version from the future: nothing older is of interest.
                skip_to: from.unwrap_or(0),
                deadline: Instant::now() + timeout,
                sends,
            };
            tokio::spawn(run.go(items));
        }
    }
    let stream = tokio_stream::wrappers::ReceiverStream::new(rx);
    let mut response = codec::bytes(200, "application/json", Vec::new());
    *response.body_mut() = Body::from_stream(stream);
    Ok(response)
}

/// The version from which a watch is asked for; 0 where it names none.
fn version(query: &Query) -> Result<u64, Failure> {
    if query.flag("sendInitialEvents") && query.text("resourceVersionMatch") != "NotOlderThan" {
        return Err(Failure::bad_request(
            "ListOptions.meta.k8s.io \"\" is invalid: resourceVersionMatch: Forbidden: sendInitialEvents requires setting \
             resourceVersionMatch to NotOlderThan",
        ));
    }
    match query.text("resourceVersion") {
        "" => Ok(0),
        version => version
            .parse()
            .map_err(|_| Failure::bad_request(format!("strconv.ParseUint: parsing \"{version}\": invalid syntax"))),
    }
}

/// All objects at a version.
fn state(core: &Core, resource: &Resource, prefix: &str, version: u64) -> Vec<Arc<Object>> {
    let at = core.store.list(&resource.storage, prefix, None, Some(version));
    // History may have been compacted in between; then the current state is as good.
    let state = at.or_else(|_| core.store.list(&resource.storage, prefix, None, None)).ok();
    state.map(|s| s.items.into_iter().map(|(_, o)| o).collect()).unwrap_or_default()
}

struct Run {
    core: Arc<Core>,
    encoder: Encoder,
    selection: Arc<Selection>,
    subscription: Subscription,
    tx: mpsc::Sender<Chunk>,
    bookmarks: bool,
    end_mark: bool,
    last_bookmark: u64,
    skip_to: u64,
    deadline: Instant,
    sends: WatchSends,
}

impl Run {
    async fn go(mut self, items: Vec<Arc<Object>>) {
        let mut breaks = self.core.faults.watch_breaks();
        if self.sends == WatchSends::Nothing {
            tokio::select! {
                () = self.tx.closed() => {}
                _ = breaks.changed() => { self.cut().await; }
                () = sleep_until(self.deadline) => {}
            }
            return;
        }
        let mut out = Vec::new();
        for object in &items {
            self.encoder.write(&mut out, Seen::Added, object);
            if out.len() > 64 * 1024 && !self.send(&mut out).await {
                return;
            }
        }
        if self.end_mark {
            let version = self.subscription.version;
            self.bookmark(&mut out, version, Some("k8s.io/initial-events-end"));
        }
        for change in std::mem::take(&mut self.subscription.backlog) {
            self.write_change(&mut out, &change);
        }
        if !self.send(&mut out).await {
            return;
        }
        let mut next_bookmark = self.next_bookmark();
        loop {
            tokio::select! {
                biased;
                () = self.tx.closed() => return,
                _ = breaks.changed() => { self.cut().await; return; }
                change = self.subscription.rx.recv() => match change {
                    Some(change) => {
                        self.write_change(&mut out, &change);
                        while out.len() < 256 * 1024 && let Ok(more) = self.subscription.rx.try_recv() {
                            self.write_change(&mut out, &more);
                        }
                        if !self.send(&mut out).await { return; }
                    }
                    // Cut off for being slow: the client must come back.
                    None => return,
                },
                () = sleep_until(self.deadline) => return,
                () = sleep_until(next_bookmark.unwrap_or(self.deadline)), if self.bookmarks && next_bookmark.is_some() => {
                    // All changes up to this version are in the channel already.
                    let version = self.core.store.version();
                    while let Ok(more) = self.subscription.rx.try_recv() {
                        self.write_change(&mut out, &more);
                    }
                    if version != self.last_bookmark {
                        self.bookmark(&mut out, version, None);
                    }
                    if !self.send(&mut out).await { return; }
                    next_bookmark = self.next_bookmark();
                }
            }
        }
    }

    fn next_bookmark(&self) -> Option<Instant> {
        let now = Instant::now();
        let regular = now + BOOKMARK_EVERY;
        let last = self.deadline.checked_sub(BOOKMARK_BEFORE_END).filter(|t| *t > now);
        match last {
            Some(last) if last < regular => Some(last),
            _ => (regular < self.deadline).then_some(regular),
        }
    }

    fn write_change(&mut self, out: &mut Vec<u8>, change: &Change) {
        if change.version <= self.skip_to {
            return;
        }
        let Some(seen) = self.selection.view(change) else { return };
        // An object that left the view is shown as it was, in the version of the change.
        let shown = match (seen, &change.after, &change.last) {
            (Seen::Deleted, None, Some(last)) => Arc::clone(last),
            (Seen::Deleted, Some(after), _) => match &change.before {
                Some(before) => {
                    let mut value = before.value.clone();
                    metadata_mut(&mut value).insert("resourceVersion".into(), json!(after.version.to_string()));
                    Object::new(value, after.version)
                }
                None => return,
            },
            (_, Some(after), _) => Arc::clone(after),
            _ => return,
        };
        self.encoder.write(out, seen, &shown);
    }

    /// `mark`: the annotation that it has.
    fn bookmark(&mut self, out: &mut Vec<u8>, version: u64, mark: Option<&str>) {
        self.last_bookmark = version;
        let resource = &self.encoder.resource;
        let mut value = if resource.custom.is_some() { json!({}) } else { zero_object(&resource.schema) };
        let mut metadata = json!({"resourceVersion": version.to_string()});
        if let Some(mark) = mark {
            metadata["annotations"] = json!({mark: "true"});
        }
        value["metadata"] = metadata;
        let value = self.encoder.shown(&from_stored(resource, &value));
        out.extend_from_slice(format!("{{\"type\":\"BOOKMARK\",\"object\":{value}}}\n").as_bytes());
    }

    async fn send(&self, out: &mut Vec<u8>) -> bool {
        if out.is_empty() {
            return true;
        }
        self.tx.send(Ok(Bytes::from(std::mem::take(out)))).await.is_ok()
    }

    /// Ends the stream in the middle, as a broken connection does.
    async fn cut(&self) {
        let _ = self.tx.send(Err(std::io::ErrorKind::ConnectionReset.into())).await;
    }
}

impl Encoder {
    fn write(&mut self, out: &mut Vec<u8>, seen: Seen, object: &Arc<Object>) {
        out.extend_from_slice(b"{\"type\":\"");
        out.extend_from_slice(seen.word().as_bytes());
        out.extend_from_slice(b"\",\"object\":");
        if self.form == Form::Plain && is_stored_form(&self.resource) {
            object.write_typed(&self.resource, out);
        } else {
            let value = self.shown(&from_stored(&self.resource, &object.value));
            out.extend_from_slice(value.to_string().as_bytes());
        }
        out.extend_from_slice(b"}\n");
    }

    fn shown(&mut self, value: &Value) -> Value {
        match self.form {
            Form::Plain => typed(&self.resource, value),
            Form::Partial => codec::partial(value),
            Form::Table => {
                let metadata = json!({"resourceVersion": value["metadata"]["resourceVersion"]});
                let one = std::slice::from_ref(value);
                let mut table = super::table::table(&self.resource, one, metadata, &self.include);
                if !std::mem::take(&mut self.first_table) {
                    table["columnDefinitions"] = Value::Null;
                }
                table
            }
        }
    }
}

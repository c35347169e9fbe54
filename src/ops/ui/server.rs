//! The pages, their stream, and what they ask for.

use std::collections::{BTreeMap, VecDeque};
use std::convert::Infallible;
use std::fmt::Display;
use std::sync::Arc;
use std::time::Duration;

use anyhow::anyhow;
use axum::body::{Body, Bytes};
use axum::extract::{DefaultBodyLimit, Path, Query, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router, middleware};
use futures::stream::{self, StreamExt};
use kube::Client;
use serde_json::{Value, json};
use tokio::sync::{Mutex, OwnedSemaphorePermit, Semaphore, mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;

use super::ask::{LeadingScheduler, NodeDaemons};
use super::door::{self, Door};
use super::feed::{Next, RowFeed};
use super::model::{Model, ModelQuestion};
use super::node;
use crate::{audit, explain};
use baton_contract::PodKey;
use baton_contract::key::MAX_OBJECT;
use baton_contract::name::{check_label_name, check_subdomain};
use baton_runtime::clock;
use baton_runtime::words;

/// Streams at once.
pub const STREAMS: usize = 64;
/// A stream without changes says that it lives.
const PING: Duration = Duration::from_secs(15);
/// A page that found no stream comes again.
const LATER: Duration = Duration::from_secs(10);

const HTML: &str = "text/html; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";
const JS: &str = "text/javascript; charset=utf-8";

/// File name, type and content.
pub const ASSETS: [(&str, &str, &str); 15] = [
    ("", HTML, include_str!("assets/index.html")),
    ("icon.svg", "image/svg+xml", include_str!("assets/icon.svg")),
    ("style.css", CSS, include_str!("assets/style.css")),
    ("main.js", JS, include_str!("assets/main.js")),
    ("stream.js", JS, include_str!("assets/stream.js")),
    ("store.js", JS, include_str!("assets/store.js")),
    ("dom.js", JS, include_str!("assets/dom.js")),
    ("devices.js", JS, include_str!("assets/devices.js")),
    ("cluster.js", JS, include_str!("assets/cluster.js")),
    ("node.js", JS, include_str!("assets/node.js")),
    ("queue.js", JS, include_str!("assets/queue.js")),
    ("gangs.js", JS, include_str!("assets/gangs.js")),
    ("locks.js", JS, include_str!("assets/locks.js")),
    ("health.js", JS, include_str!("assets/health.js")),
    ("runbooks.txt", "text/plain; charset=utf-8", include_str!("../../../docs/runbooks.md")),
];

pub struct Ui {
    /// With the operator's rights.
    pub client: Client,
    pub scheduler: Arc<LeadingScheduler>,
    pub daemons: NodeDaemons,
    pub feed: Arc<RowFeed>,
    /// The way to the model.
    pub questions: mpsc::Sender<ModelQuestion>,
    /// Namespace that pages show first.
    pub namespace: Option<String>,
    /// Where they link nodes and GPUs to.
    pub grafana: Option<String>,
    /// Namespace of the daemons, and what `baton audit` takes for granted.
    pub audit: (String, audit::AuditRules),
    /// One audit at a time: it reads the whole cluster.
    pub auditing: Mutex<()>,
    /// Free places for streams.
    pub streams: Arc<Semaphore>,
    /// Marks the revisions of this process.
    pub epoch: String,
    pub stop: CancellationToken,
}

/// Everything behind the door.
pub fn router(ui: Arc<Ui>, door: Arc<Door>) -> Router {
    Router::new()
        .route("/", get(|| asset(Path(String::new()))))
        .route("/{file}", get(asset))
        .route("/api/stream", get(open_stream))
        .route("/api/node/{name}", get(of_node))
        .route("/api/labels", get(labels))
        .route("/api/pod/{namespace}/{name}", get(of_pod))
        .route("/api/gang/{namespace}/{name}", get(of_gang))
        .route("/api/job/{namespace}/{name}", get(of_job))
        .route("/api/what-if", post(what_if).layer(DefaultBodyLimit::max(MAX_OBJECT)))
        .route("/api/audit", get(audited))
        .with_state(ui)
        .layer(middleware::from_fn_with_state(door, door::check))
}

async fn asset(Path(file): Path<String>) -> Response {
    match ASSETS.iter().find(|(name, ..)| *name == file) {
        Some((_, kind, text)) => ([(header::CONTENT_TYPE, *kind)], *text).into_response(),
        None => (StatusCode::NOT_FOUND, "no such page\n").into_response(),
    }
}

/// One event of a stream. The text of a delta or a snapshot is that of every stream: none has a copy.
struct Event {
    head: String,
    data: Bytes,
}

impl Event {
    fn new(name: &str, data: impl Into<Bytes>) -> Self {
        Self { head: format!("event: {name}\ndata: "), data: data.into() }
    }

    fn with(self, field: &str, value: impl Display) -> Self {
        Self { head: format!("{field}: {value}\n{}", self.head), ..self }
    }

    /// Its data is JSON in one line.
    fn pieces(self) -> [Bytes; 3] {
        [self.head.into(), self.data, Bytes::from_static(b"\n\n")]
    }
}

struct Stream {
    ui: Arc<Ui>,
    revisions: watch::Receiver<u64>,
    sent: Option<u64>,
    ready: VecDeque<Event>,
    /// `None` for a stream that ends at once.
    place: Option<OwnedSemaphorePermit>,
}

async fn open_stream(State(ui): State<Arc<Ui>>, headers: HeaderMap) -> Response {
    let last = headers.get("last-event-id").and_then(|id| id.to_str().ok()?.split_once('-'));
    let sent = last.filter(|(epoch, _)| *epoch == ui.epoch).and_then(|(_, revision)| revision.parse().ok());
    let (revisions, place) = (ui.feed.revisions(), ui.streams.clone().try_acquire_owned().ok());
    let leader = ui.feed.row("about", "scheduler").and_then(|about| about.get("leader").cloned());
    let hello = json!({
        "rev": *revisions.borrow(), "leader": leader, "version": env!("CARGO_PKG_VERSION"), "at": clock::wall().as_millisecond(),
        "namespace": ui.namespace, "grafana": ui.grafana,
    });
    let full = json!({"why": format!("{STREAMS} streams are open: close a window")});
    let first = match place {
        Some(_) => Event::new("hello", hello.to_string()),
        None => Event::new("gone", full.to_string()).with("retry", LATER.as_millis()),
    };
    let stream = Stream { ui, revisions, sent, ready: [first].into(), place };
    let events = stream::unfold(stream, |mut stream| async { Some((stream.next().await?, stream)) });
    let pieces = events.flat_map(|event| stream::iter(event.pieces().map(Ok::<_, Infallible>)));
    ([(header::CONTENT_TYPE, "text/event-stream")], Body::from_stream(pieces)).into_response()
}

impl Stream {
    /// The next event. It is asked for when the reader has taken the ones before, so a slow one finds a snapshot here.
    async fn next(&mut self) -> Option<Event> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Some(event);
            }
            self.place.as_ref()?;
            self.revisions.mark_unchanged();
            let stamped = |name, (revision, text): (u64, Bytes)| {
                Event::new(name, text).with("id", format_args!("{}-{revision}", self.ui.epoch))
            };
            match self.ui.feed.next(self.sent) {
                Next::Snapshot(revision, text) => {
                    self.sent = Some(revision);
                    return Some(stamped("snapshot", (revision, text)));
                }
                Next::Deltas(deltas) => {
                    self.sent = deltas.last().map(|(revision, _)| *revision);
                    self.ready = deltas.into_iter().map(|delta| stamped("delta", delta)).collect();
                    continue;
                }
                Next::Nothing => {}
            }
            tokio::select! {
                _ = self.revisions.changed() => {}
                () = tokio::time::sleep(PING) => {
                    return Some(Event::new("ping", json!({"at": clock::wall().as_millisecond()}).to_string()));
                }
                () = self.ui.stop.cancelled() => {
                    self.place = None;
                    return Some(Event::new("gone", json!({"why": "`baton ui` has ended"}).to_string()));
                }
            }
        }
    }
}

/// Asks the model.
async fn asked<T: Send + 'static>(ui: &Ui, question: impl FnOnce(&Model) -> T + Send + 'static) -> anyhow::Result<T> {
    let (answer, answered) = oneshot::channel();
    let ending = || anyhow!("`baton ui` is ending");
    let asked = ui.questions.send(Box::new(move |model| drop(answer.send(question(model))))).await;
    asked.map_err(|_| ending())?;
    answered.await.map_err(|_| ending())
}

/// An answer, or `{"error":…}`.
fn reply(answer: anyhow::Result<Value>) -> Response {
    match answer {
        Ok(answer) => Json(answer).into_response(),
        Err(error) => (StatusCode::BAD_GATEWAY, Json(json!({"error": words(error.as_ref())}))).into_response(),
    }
}

/// Of an object's name that is put into a path.
fn checked(namespace: &str, name: &str) -> anyhow::Result<()> {
    check_label_name("namespace", namespace)?;
    Ok(check_subdomain("name", name)?)
}

async fn of_node(State(ui): State<Arc<Ui>>, Path(name): Path<String>) -> Response {
    let detail = async {
        check_subdomain("name", &name)?;
        let of = name.clone();
        if !asked(&ui, move |model| model.snapshot.node(&of).is_some()).await? {
            return Ok(None);
        }
        let path = format!("/nodes/{name}");
        let (events, said, records) = tokio::join!(
            node::events(ui.client.clone(), &name),
            ui.scheduler.ask::<Value>(&path, None),
            ui.daemons.records(&name),
        );
        let of = name.clone();
        let Some(mut detail) = asked(&ui, move |model| node::detail(model, &of, &records)).await? else {
            return Ok(None);
        };
        let said = said.unwrap_or_else(|error| json!({"why": words(error.as_ref())}));
        (detail["events"], detail["scheduler"]) = (events, said);
        anyhow::Ok(Some(detail))
    };
    match detail.await.transpose() {
        Some(answer) => reply(answer),
        None => (StatusCode::NOT_FOUND, Json(json!({"error": format!("there is no node {name:?}")}))).into_response(),
    }
}

async fn labels(State(ui): State<Arc<Ui>>, Query(asks): Query<BTreeMap<String, String>>) -> Response {
    reply(asked(&ui, move |model| node::labels(model, asks.get("key").map(String::as_str))).await)
}

/// What the scheduler says of an object.
async fn said(ui: &Ui, (namespace, name): (String, String), path: impl Fn(&str) -> String) -> Response {
    reply(match checked(&namespace, &name) {
        Ok(()) => ui.scheduler.ask(&path(&format!("{namespace}/{name}")), None).await,
        Err(error) => Err(error),
    })
}

async fn of_pod(State(ui): State<Arc<Ui>>, Path((namespace, name)): Path<(String, String)>) -> Response {
    let explained = async {
        checked(&namespace, &name)?;
        let mut answer: Value = ui.scheduler.ask(&format!("/explain?pod={namespace}/{name}"), None).await?;
        let bound = answer["node"].as_str().filter(|_| answer["state"] == "bound").map(str::to_owned);
        if let (Some(node), Some(fields)) = (bound, answer.as_object_mut()) {
            let key = PodKey::new(&namespace, &name);
            let held =
                move |model: &Model| explain::held(&model.snapshot.part(&[node].into(), &model.rules.lock_key), &key);
            asked(&ui, held).await?.complete(fields);
        }
        anyhow::Ok(answer)
    };
    reply(explained.await)
}

async fn of_gang(State(ui): State<Arc<Ui>>, Path(of): Path<(String, String)>) -> Response {
    said(&ui, of, |of| format!("/gangs/{of}")).await
}

async fn of_job(State(ui): State<Arc<Ui>>, Path(of): Path<(String, String)>) -> Response {
    said(&ui, of, |of| format!("/jobs/{of}")).await
}

async fn what_if(State(ui): State<Arc<Ui>>, manifest: String) -> Response {
    reply(ui.scheduler.ask("/explain", Some(manifest)).await)
}

async fn audited(State(ui): State<Arc<Ui>>) -> Response {
    let _one = ui.auditing.lock().await;
    let (namespace, rules) = &ui.audit;
    let found = audit::found(ui.client.clone(), namespace, rules).await;
    reply(found.map(|(report, policies)| audit::json(&report, &policies)))
}

#[cfg(test)]
mod tests {
    use super::ASSETS;

    #[test]
    fn every_chapter_that_the_page_health_links_is_in_the_runbooks() {
        let text = |file: &str| ASSETS.iter().find(|(name, ..)| *name == file).unwrap().2;
        let linked: Vec<_> =
            text("health.js").split("runbook('").skip(1).map(|rest| rest.split('\'').next().unwrap()).collect();
        assert!(linked.len() >= 4, "{linked:?}");
        for chapter in linked {
            assert!(text("runbooks.txt").contains(&format!("\n## {chapter}\n")), "{chapter}");
        }
    }
}

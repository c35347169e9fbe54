//! Rules for every request to the API server: none waits for ever for its answer, no list is older than its request, and a watch
//! that resumes is reported.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody};
use http::{Method, Request, Response, StatusCode, Uri};
use http_body_util::BodyExt as _;
use tokio::sync::broadcast;
use tower::{BoxError, Layer, Service};
use tower_http::timeout::TimeoutBody;

use baton_runtime::clock;
use baton_runtime::metrics::RequestMetrics;

/// Time for the answer to a request that is no watch, and for each further part of a long answer. An overloaded API server
/// refuses after 15 s in its queue, and admission webhooks have 10 s by default: a later answer got lost on its way, which
/// nothing else would show for minutes.
pub const ANSWER: Duration = Duration::from_secs(20);
/// Time for the head of a watch's answer; then events come as they happen.
const WATCH_HEAD: Duration = Duration::from_secs(60);
/// Resumed watches that a receiver may be behind; a receiver that misses some gets the later ones.
const RESUMED_BACKLOG: usize = 16;

/// Reports watches that go on where they were broken off: the library itself reports nothing then until the next change.
#[derive(Debug, Clone)]
pub struct Resumed(broadcast::Sender<Resumption>);

/// The path of a watch (`/api/v1/pods`) and the monotonic time at which its answer began.
pub type Resumption = (Box<str>, Duration);

impl Resumed {
    pub(super) fn new() -> Self {
        Self(broadcast::Sender::new(RESUMED_BACKLOG))
    }

    /// The watches that resume from now on.
    pub fn paths(&self) -> broadcast::Receiver<Resumption> {
        self.0.subscribe()
    }
}

/// The layer of a client.
#[derive(Debug, Clone)]
pub(super) struct Requests {
    pub resumed: Resumed,
    pub answer: Duration,
    pub metrics: RequestMetrics,
}

impl<S> Layer<S> for Requests {
    type Service = Requesting<S>;

    fn layer(&self, inner: S) -> Requesting<S> {
        Requesting { inner, by: self.clone() }
    }
}

/// What [`Requests`] makes of a service.
#[derive(Debug, Clone)]
pub(super) struct Requesting<S> {
    inner: S,
    by: Requests,
}

impl<S, Q, A> Service<Request<Q>> for Requesting<S>
where
    S: Service<Request<Q>, Response = Response<A>, Error = BoxError>,
    S::Future: Send + 'static,
    A: HttpBody<Data = Bytes> + Send + 'static,
    A::Error: Into<BoxError>,
{
    type Response = Response<Body>;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, BoxError>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, mut request: Request<Q>) -> Self::Future {
        let kind = RequestKind::of(request.uri());
        if kind == RequestKind::List
            && let Some(uri) = newest(request.uri())
        {
            *request.uri_mut() = uri;
        }
        let head = if kind == RequestKind::Other { self.by.answer } else { WATCH_HEAD };
        let what = format!("{} {}", request.method(), request.uri().path());
        let path: Box<str> = request.uri().path().into();
        let verb = verb(kind, request.method());
        let (sent, Requests { resumed, answer: each, metrics }) = (self.inner.call(request), self.by.clone());
        Box::pin(async move {
            let late = |_| BoxError::from(format!("the API server did not answer {what} within {} s", head.as_secs()));
            let unanswered = metrics.sent(verb);
            let response = tokio::time::timeout(head, sent).await.map_err(late).flatten()?;
            unanswered.answered(response.status().as_u16());
            if kind == RequestKind::Other {
                return Ok(response.map(|body| Body::new(TimeoutBody::new(each, body))));
            }
            let resource = path.rsplit('/').next().unwrap_or(&path);
            if response.status() == StatusCode::NOT_FOUND {
                metrics.absent(resource);
            }
            let heard = response.status().is_success().then(|| metrics.watched(resource));
            let response = response.map(|body| {
                body.map_frame(move |frame| {
                    heard.iter().for_each(|heard| heard());
                    frame
                })
            });
            if kind == RequestKind::Resumption && response.status().is_success() {
                // Without a receiver the report is not needed.
                let _ = resumed.0.send((path, clock::mono()));
            }
            Ok(response.map(Body::new))
        })
    }
}

/// The kinds of requests with rules of their own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RequestKind {
    /// A watch that begins with the objects there are.
    List,
    /// A watch from a version on.
    Resumption,
    /// Answered once.
    Other,
}

impl RequestKind {
    fn of(uri: &Uri) -> Self {
        let has = |wanted: &str| uri.query().is_some_and(|query| query.split('&').any(|pair| pair == wanted));
        match (has("watch=true"), has("sendInitialEvents=true")) {
            (false, _) => Self::Other,
            (true, true) => Self::List,
            (true, false) => Self::Resumption,
        }
    }
}

/// The API's verb; a list is a GET.
fn verb(kind: RequestKind, method: &Method) -> &'static str {
    match method.as_str() {
        "GET" if kind != RequestKind::Other => "watch",
        "GET" => "get",
        "POST" => "create",
        "PUT" => "update",
        "PATCH" => "patch",
        "DELETE" => "delete",
        _ => "other",
    }
}

/// The same without `resourceVersion=0`, "any version, however old": objects missing in such a list would count as gone, though
/// the server's cache may only be behind. Without a version the server brings its cache up to date first.
fn newest(uri: &Uri) -> Option<Uri> {
    let query = uri.query()?;
    let kept: Vec<&str> = query.split('&').filter(|pair| *pair != "resourceVersion=0").collect();
    if kept.len() == query.split('&').count() {
        return None;
    }
    let mut parts = uri.clone().into_parts();
    parts.path_and_query = Some(format!("{}?{}", uri.path(), kept.join("&")).parse().ok()?);
    Uri::from_parts(parts).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use baton_runtime::metrics::MetricSet;
    use std::convert::Infallible;
    use tokio_stream::StreamExt as _;

    const LIST: &str =
        "/api/v1/pods?watch=true&resourceVersion=0&sendInitialEvents=true&resourceVersionMatch=NotOlderThan";
    const RESUMPTION: &str = "/api/v1/pods?watch=true&resourceVersion=7";

    /// Stands for [`ANSWER`].
    const SOON: Duration = Duration::from_secs(1);

    /// A client over `server`, which answers each request by its URI.
    fn client<F, A>(
        server: F,
        resumed: Resumed,
    ) -> impl Service<Request<()>, Response = Response<Body>, Error = BoxError>
    where
        F: Fn(Uri) -> A + Clone + Send + 'static,
        A: Future<Output = Response<Body>> + Send + 'static,
    {
        let served = tower::service_fn(move |request: Request<()>| {
            let answer = server(request.uri().clone());
            async move { Ok::<_, BoxError>(answer.await) }
        });
        Requests { resumed, answer: SOON, metrics: RequestMetrics::default() }.layer(served)
    }

    async fn get(
        client: &mut impl Service<Request<()>, Response = Response<Body>, Error = BoxError>,
        uri: &str,
    ) -> Result<Response<Body>, BoxError> {
        client.call(Request::get(uri).body(()).unwrap()).await
    }

    #[tokio::test]
    async fn an_answer_that_never_comes_is_an_error_that_names_the_request() {
        let mut client = client(|_| std::future::pending(), Resumed::new());
        let error = get(&mut client, "/api/v1/nodes/a").await.unwrap_err();
        assert_eq!(error.to_string(), "the API server did not answer GET /api/v1/nodes/a within 1 s");
    }

    #[tokio::test]
    async fn a_request_counts_once_also_when_its_sender_gives_up() {
        let metrics = RequestMetrics::default();
        let served = tower::service_fn(|request: Request<()>| async move {
            if request.uri().path() == "/silent" {
                std::future::pending().await
            } else {
                Ok::<_, BoxError>(Response::new(Body::empty()))
            }
        });
        let mut client =
            Requests { resumed: Resumed::new(), answer: SOON * 60, metrics: metrics.clone() }.layer(served);
        get(&mut client, "/answered").await.unwrap();
        assert!(tokio::time::timeout(SOON / 10, get(&mut client, "/silent")).await.is_err());
        let mut set = MetricSet::new("test");
        set.requests(&metrics);
        let text = set.print();
        for code in ["200", "none"] {
            let line = format!(r#"test_api_requests_total{{verb="get",code="{code}"}} 1"#);
            assert!(text.contains(&line), "{line} in {text}");
        }
    }

    #[tokio::test]
    async fn an_answer_that_stops_halfway_is_an_error_and_a_silent_watch_is_not() {
        let first = || tokio_stream::once(Ok::<_, Infallible>("{"));
        let stuck = move |_| async move { Response::new(Body::from_stream(first().chain(tokio_stream::pending()))) };
        let mut client = client(stuck, Resumed::new());
        let list = get(&mut client, "/api/v1/pods").await.unwrap();
        assert!(axum::body::to_bytes(list.into_body(), 4096).await.is_err());
        let watch = get(&mut client, RESUMPTION).await.unwrap();
        let silent = axum::body::to_bytes(watch.into_body(), 4096);
        assert!(tokio::time::timeout(SOON * 2, silent).await.is_err(), "it goes on");
    }

    #[tokio::test]
    async fn a_list_by_watch_is_requested_as_of_now_and_nothing_else_is_changed() {
        let echo = |uri: Uri| async move { Response::new(Body::from(uri.to_string())) };
        let mut client = client(echo, Resumed::new());
        for (asked, sent) in [
            (LIST, "/api/v1/pods?watch=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan"),
            (RESUMPTION, RESUMPTION),
            ("/api/v1/pods?limit=500&resourceVersion=0", "/api/v1/pods?limit=500&resourceVersion=0"),
        ] {
            let answer = get(&mut client, asked).await.unwrap();
            assert_eq!(axum::body::to_bytes(answer.into_body(), 4096).await.unwrap(), sent.as_bytes());
        }
    }

    #[tokio::test]
    async fn only_a_watch_that_resumes_is_reported() {
        let resumed = Resumed::new();
        let mut paths = resumed.paths();
        let gone = |uri: Uri| async move {
            let code = if uri.path().ends_with("nodes") { 410 } else { 200 };
            Response::builder().status(code).body(Body::empty()).unwrap()
        };
        let mut client = client(gone, resumed);
        for asked in [LIST, "/api/v1/pods", "/api/v1/nodes?watch=true&resourceVersion=7", RESUMPTION] {
            get(&mut client, asked).await.unwrap();
        }
        assert_eq!(&*paths.try_recv().unwrap().0, "/api/v1/pods");
        assert!(paths.try_recv().is_err(), "once");
    }
}

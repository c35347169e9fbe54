//! Admin HTTP of the scheduler: probes, metrics, `/explain?pod=namespace/name`.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::Router;
use axum::extract::{Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use serde::Deserialize;
use tokio::sync::{mpsc, oneshot};

use super::metrics::Metrics;
use crate::contract::PodKey;
use crate::decide::cycle::Explanation;
use crate::runtime::admin::{self, Admin};

/// The event loop answers within this time, or the process is not live.
const ANSWER: Duration = Duration::from_secs(5);

/// A question to the event loop.
#[derive(Debug)]
pub enum Question {
    /// Why is this pod where it is?
    Explain(PodKey, oneshot::Sender<Option<Explanation>>),
    /// Is the world complete, and does this process lead?
    State(oneshot::Sender<LoopState>),
}

/// What the event loop says of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoopState {
    /// Feeds whose first list is not complete.
    pub missing: Vec<&'static str>,
    /// This process leads.
    pub leading: bool,
}

/// The routes.
pub fn router(queries: mpsc::Sender<Question>, metrics: Metrics) -> Router {
    let (live, ready) = (queries.clone(), queries.clone());
    let scraped = metrics.clone();
    let admin = Admin {
        live: Arc::new(move || {
            let queries = live.clone();
            Box::pin(async move { state(&queries).await.map(|_| "alive".to_owned()) })
        }),
        ready: Arc::new(move || {
            let queries = ready.clone();
            Box::pin(async move {
                let state = state(&queries).await?;
                match (state.missing.is_empty(), state.leading) {
                    (false, _) => Err(format!("waiting for the first list of {}", state.missing.join(", "))),
                    (true, true) => Ok("leading".to_owned()),
                    (true, false) => Ok("following".to_owned()),
                }
            })
        }),
        metrics: Arc::new(move || scraped.print()),
    };
    admin::router(admin)
        .route("/leading", get(leading).with_state(queries.clone()))
        .route("/explain", get(explain).with_state(queries))
}

async fn state(queries: &mpsc::Sender<Question>) -> Result<LoopState, String> {
    let (answer, answered) = oneshot::channel();
    let asked = async {
        queries.send(Question::State(answer)).await.map_err(|_| "the event loop has ended".to_owned())?;
        answered.await.map_err(|_| "the event loop has ended".to_owned())
    };
    tokio::time::timeout(ANSWER, asked).await.map_err(|_| "the event loop does not answer".to_owned())?
}

/// 200 on the one process that answers kube-scheduler: a Service needs no other one.
async fn leading(State(queries): State<mpsc::Sender<Question>>) -> Response {
    match state(&queries).await {
        Ok(LoopState { leading: true, .. }) => (StatusCode::OK, "leading\n").into_response(),
        Ok(_) => (StatusCode::SERVICE_UNAVAILABLE, "following\n").into_response(),
        Err(why) => (StatusCode::SERVICE_UNAVAILABLE, why + "\n").into_response(),
    }
}

#[derive(Deserialize)]
struct Asked {
    pod: Option<String>,
}

async fn explain(State(queries): State<mpsc::Sender<Question>>, Query(asked): Query<Asked>) -> Response {
    let named = asked.pod.as_deref().and_then(|pod| pod.split_once('/'));
    let Some((namespace, name)) = named else {
        return (StatusCode::BAD_REQUEST, "expected /explain?pod=namespace/name\n").into_response();
    };
    let (answer, answered) = oneshot::channel();
    let key = PodKey::new(namespace, name);
    if queries.send(Question::Explain(key.clone(), answer)).await.is_err() {
        return (StatusCode::SERVICE_UNAVAILABLE, "the event loop has ended\n").into_response();
    }
    match answered.await {
        Ok(Some(explanation)) => Json(explanation).into_response(),
        Ok(None) => (StatusCode::NOT_FOUND, format!("no pod {key}\n")).into_response(),
        Err(_) => (StatusCode::SERVICE_UNAVAILABLE, "the event loop has ended\n").into_response(),
    }
}

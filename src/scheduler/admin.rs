//! Admin HTTP of the scheduler: probes, metrics, `/leading`, `/explain?pod=namespace/name`, what-if by a POST of a manifest to
//! `/explain`, `/queue`.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::Router;
use axum::extract::rejection::StringRejection;
use axum::extract::{DefaultBodyLimit, Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use serde::Deserialize;
use tokio::sync::{mpsc, oneshot};

use super::gang::{self, GangQuestion};
use super::manifest;
use super::metrics::Metrics;
use super::tyjob::{self, JobQuestion};
use crate::contract::PodKey;
use crate::contract::key::MAX_OBJECT;
use crate::decide::scheduler::{Explanation, QueueReport, Unadmitted, WhatIf};
use crate::runtime::admin::{self, Admin};

/// The event loop answers within this time, or the process is not live.
const ANSWER: Duration = Duration::from_secs(5);

/// A question to the event loop.
#[derive(Debug)]
pub enum Question {
    /// Why is this pod where it is?
    Explain(PodKey, oneshot::Sender<Option<Explanation>>),
    /// What would be decided for this pod?
    WhatIf(Box<Unadmitted>, oneshot::Sender<Result<WhatIf, String>>),
    /// What is queued?
    Queue(oneshot::Sender<QueueReport>),
    /// About gangs.
    Gangs(GangQuestion),
    /// Of a TYJob.
    Job(JobQuestion),
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
        more: &[
            "/leading",
            "/explain?pod=NAMESPACE/NAME",
            "/queue",
            "/gangs",
            "/gangs/NAMESPACE/NAME",
            "/jobs/NAMESPACE/NAME",
        ],
    };
    admin::router(admin)
        .merge(gang::router(queries.clone()))
        .merge(tyjob::router(queries.clone()))
        .route("/leading", get(leading).with_state(queries.clone()))
        .route(
            "/explain",
            get(explain).post(what_if).layer(DefaultBodyLimit::max(MAX_OBJECT)).with_state(queries.clone()),
        )
        .route("/queue", get(queue).with_state(queries))
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
    let key = PodKey::new(namespace, name);
    match ask(&queries, |answer| Question::Explain(key.clone(), answer)).await {
        Ok(Some(explanation)) => Json(explanation).into_response(),
        Ok(None) => (StatusCode::NOT_FOUND, format!("there is no pod {key}\n")).into_response(),
        Err(why) => (StatusCode::SERVICE_UNAVAILABLE, why + "\n").into_response(),
    }
}

async fn what_if(State(queries): State<mpsc::Sender<Question>>, manifest: Result<String, StringRejection>) -> Response {
    let manifest = match manifest {
        Ok(manifest) => manifest,
        Err(rejection) => return (rejection.status(), rejection.body_text() + "\n").into_response(),
    };
    let pod = match manifest::read(&manifest) {
        Ok(pod) => Box::new(pod),
        Err(error) => {
            return (StatusCode::BAD_REQUEST, format!("the manifest cannot be used: {error}\n")).into_response();
        }
    };
    match ask(&queries, |answer| Question::WhatIf(pod, answer)).await {
        Ok(Ok(answer)) => Json(answer).into_response(),
        Ok(Err(why)) => {
            (StatusCode::BAD_REQUEST, format!("the API server would refuse the pod: {why}\n")).into_response()
        }
        Err(why) => (StatusCode::SERVICE_UNAVAILABLE, why + "\n").into_response(),
    }
}

async fn queue(State(queries): State<mpsc::Sender<Question>>) -> Response {
    match ask(&queries, Question::Queue).await {
        Ok(report) => Json(report).into_response(),
        Err(why) => (StatusCode::SERVICE_UNAVAILABLE, why + "\n").into_response(),
    }
}

/// Asks the event loop once the world is complete: before that, nothing that it says of pods is true.
pub(super) async fn ask<T>(
    queries: &mpsc::Sender<Question>,
    question: impl FnOnce(oneshot::Sender<T>) -> Question,
) -> Result<T, String> {
    let missing = state(queries).await?.missing;
    if !missing.is_empty() {
        return Err(format!("waiting for the first list of {}", missing.join(", ")));
    }
    let (answer, answered) = oneshot::channel();
    let asked = async {
        queries.send(question(answer)).await.map_err(|_| "the event loop has ended".to_owned())?;
        answered.await.map_err(|_| "the event loop has ended".to_owned())
    };
    tokio::time::timeout(ANSWER, asked).await.map_err(|_| "the event loop does not answer".to_owned())?
}

//! Admin HTTP of the scheduler: probes, metrics, `/leading`, `/explain?pod=namespace/name`, what-if by a POST of a manifest to
//! `/explain`, `/queue`, `/gangs`, `/gangs/<namespace>/<name>`, `/jobs/<namespace>/<name>`, `/nodes/<name>`.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::rejection::StringRejection;
use axum::extract::{DefaultBodyLimit, Path, Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio::sync::{mpsc, oneshot};

use super::manifest;
use super::metrics::Metrics;
use crate::contract::PodKey;
use crate::contract::gang::GangId;
use crate::contract::key::MAX_OBJECT;
use crate::decide::explain::{
    Explanation, GangExplanation, GangView, JobExplanation, NodeExplanation, QueueReport, Unadmitted, WhatIf,
};
use crate::runtime::admin::{self, Admin};

/// The event loop answers within this time, or the process is not live.
const ANSWER: Duration = Duration::from_secs(5);

/// A question to the event loop, with the channel for its answer.
#[derive(Debug)]
pub enum Question {
    /// Why is this pod where it is?
    Explain(PodKey, oneshot::Sender<Option<Explanation>>),
    /// What would be decided for this pod?
    WhatIf(Box<Unadmitted>, oneshot::Sender<Result<WhatIf, String>>),
    /// What is queued?
    Queue(oneshot::Sender<QueueReport>),
    /// Which gangs are there?
    Gangs(oneshot::Sender<Vec<GangView>>),
    /// Why is this gang where it is?
    ExplainGang(GangId, oneshot::Sender<Option<GangExplanation>>),
    /// What does this node take?
    ExplainNode(String, oneshot::Sender<Option<NodeExplanation>>),
    /// Why is this TYJob where it is?
    ExplainJob(PodKey, oneshot::Sender<Option<JobExplanation>>),
    /// Is the world complete, and does this process lead?
    State(oneshot::Sender<LoopState>),
}

/// State of the event loop.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoopState {
    /// Feeds whose first list is not complete.
    pub missing: Vec<&'static str>,
    /// This process leads.
    pub leading: bool,
}

type Questions = mpsc::Sender<Question>;

/// The routes.
pub fn router(questions: Questions, metrics: Metrics) -> Router {
    let (live, ready) = (questions.clone(), questions.clone());
    let admin = Admin {
        live: Arc::new(move || {
            let questions = live.clone();
            Box::pin(async move { put(&questions, Question::State).await.map(|_| "alive".to_owned()) })
        }),
        ready: Arc::new(move || {
            let questions = ready.clone();
            Box::pin(async move {
                let state = put(&questions, Question::State).await?;
                match (state.missing.is_empty(), state.leading) {
                    (false, _) => Err(format!("waiting for the first list of {}", state.missing.join(", "))),
                    (true, true) => Ok("leading".to_owned()),
                    (true, false) => Ok("following".to_owned()),
                }
            })
        }),
        metrics: Arc::new(move || metrics.print()),
        more: &[
            "/leading",
            "/explain?pod=NAMESPACE/NAME",
            "/queue",
            "/gangs",
            "/gangs/NAMESPACE/NAME",
            "/jobs/NAMESPACE/NAME",
            "/nodes/NAME",
        ],
    };
    let routes = Router::new()
        .route("/leading", get(leading))
        .route("/explain", get(explain).post(what_if).layer(DefaultBodyLimit::max(MAX_OBJECT)))
        .route("/queue", get(queue))
        .route("/gangs", get(gangs))
        .route("/gangs/{namespace}/{name}", get(explain_gang))
        .route("/jobs/{namespace}/{name}", get(explain_job))
        .route("/nodes/{name}", get(explain_node));
    admin::router(admin).merge(routes.with_state(questions))
}

/// 200 on the leader only: it is the one process that may answer kube-scheduler, so a Service needs no other endpoint.
async fn leading(State(questions): State<Questions>) -> Response {
    match put(&questions, Question::State).await {
        Ok(LoopState { leading: true, .. }) => (StatusCode::OK, "leading\n").into_response(),
        Ok(_) => (StatusCode::SERVICE_UNAVAILABLE, "following\n").into_response(),
        Err(why) => (StatusCode::SERVICE_UNAVAILABLE, why + "\n").into_response(),
    }
}

#[derive(Deserialize)]
struct ExplainQuery {
    pod: Option<String>,
}

async fn explain(State(questions): State<Questions>, Query(query): Query<ExplainQuery>) -> Response {
    let Some((namespace, name)) = query.pod.as_deref().and_then(|pod| pod.split_once('/')) else {
        return (StatusCode::BAD_REQUEST, "expected /explain?pod=namespace/name\n").into_response();
    };
    let key = PodKey::new(namespace, name);
    let answer = ask(&questions, |answer| Question::Explain(key.clone(), answer)).await;
    reply(answer.map(|found| found.ok_or_else(|| (StatusCode::NOT_FOUND, format!("there is no pod {key}\n")))))
}

async fn what_if(State(questions): State<Questions>, manifest: Result<String, StringRejection>) -> Response {
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
    let refused = |why| (StatusCode::BAD_REQUEST, format!("the API server would refuse the pod: {why}\n"));
    reply(ask(&questions, |answer| Question::WhatIf(pod, answer)).await.map(|answer| answer.map_err(refused)))
}

async fn queue(State(questions): State<Questions>) -> Response {
    reply(ask(&questions, Question::Queue).await.map(Ok))
}

async fn gangs(State(questions): State<Questions>) -> Response {
    reply(ask(&questions, Question::Gangs).await.map(|items| Ok(json!({ "items": items }))))
}

async fn explain_gang(State(questions): State<Questions>, Path(path): Path<(String, String)>) -> Response {
    let id = match GangId::new(&path.0, &path.1) {
        Ok(id) => id,
        Err(bad) => return (StatusCode::BAD_REQUEST, format!("{bad}\n")).into_response(),
    };
    let missing = || (StatusCode::NOT_FOUND, format!("there is no gang {id}; `baton get gangs -A` lists them all\n"));
    let answer = ask(&questions, |answer| Question::ExplainGang(id.clone(), answer)).await;
    reply(answer.map(|found| found.ok_or_else(missing)))
}

async fn explain_job(State(questions): State<Questions>, Path(path): Path<(String, String)>) -> Response {
    let job = PodKey::new(&path.0, &path.1);
    let answer = ask(&questions, |answer| Question::ExplainJob(job.clone(), answer)).await;
    reply(answer.map(|found| found.ok_or_else(|| (StatusCode::NOT_FOUND, format!("there is no TYJob {job}\n")))))
}

async fn explain_node(State(questions): State<Questions>, Path(name): Path<String>) -> Response {
    let missing = || (StatusCode::NOT_FOUND, format!("there is no node {name}; `baton get nodes` lists them all\n"));
    let answer = ask(&questions, |answer| Question::ExplainNode(name.clone(), answer)).await;
    reply(answer.map(|found| found.ok_or_else(missing)))
}

/// The answer as JSON, a refusal with its status, or 503 where the event loop gave no answer.
fn reply<T: Serialize>(answer: Result<Result<T, (StatusCode, String)>, String>) -> Response {
    match answer {
        Ok(Ok(answer)) => Json(answer).into_response(),
        Ok(Err(refusal)) => refusal.into_response(),
        Err(why) => (StatusCode::SERVICE_UNAVAILABLE, why + "\n").into_response(),
    }
}

/// Asks the event loop once the world is complete: before that, an answer about pods would be wrong.
async fn ask<T>(questions: &Questions, question: impl FnOnce(oneshot::Sender<T>) -> Question) -> Result<T, String> {
    let missing = put(questions, Question::State).await?.missing;
    if !missing.is_empty() {
        return Err(format!("waiting for the first list of {}", missing.join(", ")));
    }
    put(questions, question).await
}

async fn put<T>(questions: &Questions, question: impl FnOnce(oneshot::Sender<T>) -> Question) -> Result<T, String> {
    let (answer, answered) = oneshot::channel();
    let ended = || "the event loop has ended".to_owned();
    let asked = async {
        questions.send(question(answer)).await.map_err(|_| ended())?;
        answered.await.map_err(|_| ended())
    };
    tokio::time::timeout(ANSWER, asked).await.map_err(|_| "the event loop does not answer".to_owned())?
}

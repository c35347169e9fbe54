//! What the scheduler's addresses answer: probes, metrics, `/leading`, `/explain?pod=namespace/name`, what-if by a POST of a manifest to
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
use tokio::sync::{Semaphore, mpsc, oneshot};

use super::manifest;
use super::metrics::SchedulerMetrics;
use baton_contract::PodKey;
use baton_contract::gang::GangId;
use baton_contract::key::MAX_OBJECT;
use baton_decide::scheduler::{Moment, Scheduler};
use baton_runtime::admin::{Answers, Check};

/// The event loop answers within this time, or the process is not live.
const ANSWER: Duration = Duration::from_secs(5);
/// A question waits this long for its turn.
const TURN: Duration = Duration::from_secs(2);

/// Questions that are answered at once; each may judge every node and holds a snapshot of the cluster meanwhile.
const AT_ONCE: usize = 2;

/// Answers from a snapshot of the scheduler.
type SnapshotReader = Box<dyn FnOnce(&Scheduler, Moment) + Send>;

/// A question to the event loop.
pub enum Question {
    /// Is the world complete, and does this process lead?
    State(oneshot::Sender<LoopState>),
    /// Something that takes time: the event loop hands a snapshot out and goes on.
    Ask(SnapshotReader),
}

/// State of the event loop.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoopState {
    /// Feeds whose first list is not complete.
    pub missing: Vec<&'static str>,
    /// This process leads.
    pub leading: bool,
}

/// The way to the event loop.
#[derive(Clone)]
struct Questions {
    out: mpsc::Sender<Question>,
    permits: Arc<Semaphore>,
}

/// What probes and questions are answered.
pub fn answers(questions: mpsc::Sender<Question>, metrics: SchedulerMetrics) -> Answers {
    let questions = Questions { out: questions, permits: Arc::new(Semaphore::new(AT_ONCE)) };
    let check = |judge: fn(LoopState) -> Result<String, String>| -> Check {
        let questions = questions.clone();
        Arc::new(move || {
            let questions = questions.clone();
            Box::pin(async move { judge(put(&questions, Question::State).await?) })
        })
    };
    Answers {
        live: check(|_| Ok("alive".to_owned())),
        ready: check(|state| {
            let missing = state.missing.join(", ");
            if missing.is_empty() { Ok(word(&state)) } else { Err(format!("waiting for the first list of {missing}")) }
        }),
        // It is the one process that may answer kube-scheduler, so a Service needs no other endpoint.
        leading: Some(check(|state| if state.leading { Ok(word(&state)) } else { Err(word(&state)) })),
        metrics: Arc::new(move || metrics.print()),
        paths: &[
            "/explain?pod=NAMESPACE/NAME",
            "/queue",
            "/gangs",
            "/gangs/NAMESPACE/NAME",
            "/jobs/NAMESPACE/NAME",
            "/nodes/NAME",
        ],
        questions: router(questions),
    }
}

fn word(state: &LoopState) -> String {
    if state.leading { "leading" } else { "following" }.to_owned()
}

fn router(questions: Questions) -> Router {
    Router::new()
        .route("/explain", get(explain).post(what_if).layer(DefaultBodyLimit::max(MAX_OBJECT)))
        .route("/queue", get(queue))
        .route("/gangs", get(gangs))
        .route("/gangs/{namespace}/{name}", get(explain_gang))
        .route("/jobs/{namespace}/{name}", get(explain_job))
        .route("/nodes/{name}", get(explain_node))
        .with_state(questions)
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
    let answer = {
        let key = key.clone();
        ask(&questions, move |scheduler, now| scheduler.explain(&key, now)).await
    };
    reply(answer.map(|found| found.ok_or_else(|| (StatusCode::NOT_FOUND, format!("there is no pod {key}\n")))))
}

async fn what_if(State(questions): State<Questions>, manifest: Result<String, StringRejection>) -> Response {
    let manifest = match manifest {
        Ok(manifest) => manifest,
        Err(rejection) => return (rejection.status(), rejection.body_text() + "\n").into_response(),
    };
    let mut objects = match manifest::read_all(&manifest) {
        Ok(objects) => objects,
        Err(error) => {
            return (StatusCode::BAD_REQUEST, format!("the manifest cannot be used: {error}\n")).into_response();
        }
    };
    let refused = |why| (StatusCode::BAD_REQUEST, format!("the API server would refuse the pod: {why}\n"));
    // One Pod is judged with every node's verdict.
    if objects.len() == 1
        && objects[0].name.starts_with("Pod ")
        && let Some(pod) = objects.pop().and_then(|mut object| object.pods.pop())
    {
        let pod = Box::new(pod);
        let answer = ask(&questions, move |scheduler, now| scheduler.what_if_admitted(*pod, now)).await;
        return reply(answer.map(|answer| answer.map_err(refused)));
    }
    let answer = ask(&questions, move |scheduler, now| scheduler.what_if_objects(objects, now)).await;
    reply(answer.map(|answer| answer.map_err(refused)))
}

async fn queue(State(questions): State<Questions>) -> Response {
    reply(ask(&questions, Scheduler::queue_report).await.map(Ok))
}

async fn gangs(State(questions): State<Questions>) -> Response {
    reply(ask(&questions, Scheduler::gang_views).await.map(|items| Ok(json!({ "items": items }))))
}

async fn explain_gang(State(questions): State<Questions>, Path(path): Path<(String, String)>) -> Response {
    let id = match GangId::new(&path.0, &path.1) {
        Ok(id) => id,
        Err(bad) => return (StatusCode::BAD_REQUEST, format!("{bad}\n")).into_response(),
    };
    let missing = || (StatusCode::NOT_FOUND, format!("there is no gang {id}; `baton get gangs -A` lists them all\n"));
    let answer = {
        let id = id.clone();
        ask(&questions, move |scheduler, now| scheduler.explain_gang(&id, now)).await
    };
    reply(answer.map(|found| found.ok_or_else(missing)))
}

async fn explain_job(State(questions): State<Questions>, Path(path): Path<(String, String)>) -> Response {
    let job = PodKey::new(&path.0, &path.1);
    let answer = {
        let job = job.clone();
        ask(&questions, move |scheduler, now| scheduler.explain_job(&job, now)).await
    };
    reply(answer.map(|found| found.ok_or_else(|| (StatusCode::NOT_FOUND, format!("there is no TYJob {job}\n")))))
}

async fn explain_node(State(questions): State<Questions>, Path(name): Path<String>) -> Response {
    let missing = || (StatusCode::NOT_FOUND, format!("there is no node {name}; `baton get nodes` lists them all\n"));
    let answer = {
        let name = name.clone();
        ask(&questions, move |scheduler, now| scheduler.explain_node(&name, now)).await
    };
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

/// Asks a snapshot once the world is complete: before that, an answer about pods would be wrong.
async fn ask<T: Send + 'static>(
    questions: &Questions,
    question: impl FnOnce(&Scheduler, Moment) -> T + Send + 'static,
) -> Result<T, String> {
    let missing = put(questions, Question::State).await?.missing;
    if !missing.is_empty() {
        return Err(format!("waiting for the first list of {}", missing.join(", ")));
    }
    let turn = tokio::time::timeout(TURN, questions.permits.clone().acquire_owned()).await;
    let turn = turn.map_err(|_| format!("{AT_ONCE} other questions are being answered: ask again"))?;
    put(questions, move |answer| {
        Question::Ask(Box::new(move |scheduler, now| {
            // Its place is free when the work is done, whether or not its client still waits.
            let _turn = turn;
            drop(answer.send(question(scheduler, now)));
        }))
    })
    .await
}

async fn put<T>(questions: &Questions, question: impl FnOnce(oneshot::Sender<T>) -> Question) -> Result<T, String> {
    let (answer, answered) = oneshot::channel();
    let ended = || "the event loop has ended".to_owned();
    let asked = async {
        questions.out.send(question(answer)).await.map_err(|_| ended())?;
        answered.await.map_err(|_| ended())
    };
    tokio::time::timeout(ANSWER, asked).await.map_err(|_| "the event loop does not answer".to_owned())?
}

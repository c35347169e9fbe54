//! `/jobs/<namespace>/<name>` of the admin HTTP.

use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use tokio::sync::{mpsc, oneshot};

use crate::contract::PodKey;
use crate::decide::scheduler::{Engine, JobExplanation, Moment};
use crate::scheduler::admin::{Question, ask};

/// Why is this TYJob where it is?
#[derive(Debug)]
pub struct JobQuestion {
    job: PodKey,
    answer: oneshot::Sender<Option<JobExplanation>>,
}

impl JobQuestion {
    /// Answers it. Whoever asked may have left.
    pub fn answer(self, engine: &Engine, now: Moment) {
        drop(self.answer.send(engine.explain_job(&self.job, now)));
    }
}

/// The routes.
pub fn router(questions: mpsc::Sender<Question>) -> Router {
    Router::new().route("/jobs/{namespace}/{name}", get(explain)).with_state(questions)
}

async fn explain(
    State(questions): State<mpsc::Sender<Question>>,
    Path((namespace, name)): Path<(String, String)>,
) -> Response {
    let job = PodKey::new(&namespace, &name);
    match ask(&questions, |answer| Question::Job(JobQuestion { job: job.clone(), answer })).await {
        Ok(Some(explanation)) => Json(explanation).into_response(),
        Ok(None) => (StatusCode::NOT_FOUND, format!("there is no TYJob {job}\n")).into_response(),
        Err(why) => (StatusCode::SERVICE_UNAVAILABLE, why + "\n").into_response(),
    }
}

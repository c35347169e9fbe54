//! `/gangs` and `/gangs/<namespace>/<name>` of the admin HTTP.

use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use serde_json::json;
use tokio::sync::{mpsc, oneshot};

use crate::contract::gang::GangId;
use crate::decide::scheduler::{Engine, GangExplanation, GangView, Moment};
use crate::scheduler::admin::{Question, ask};

/// A question to the event loop.
#[derive(Debug)]
pub enum GangQuestion {
    /// Which gangs are there?
    All(oneshot::Sender<Vec<GangView>>),
    /// Why is this gang where it is?
    Explain(GangId, oneshot::Sender<Option<GangExplanation>>),
}

impl GangQuestion {
    /// Answers it. Whoever asked may have left.
    pub fn answer(self, engine: &Engine, now: Moment) {
        match self {
            Self::All(answer) => drop(answer.send(engine.gangs(now))),
            Self::Explain(id, answer) => drop(answer.send(engine.explain_gang(&id, now))),
        }
    }
}

/// The routes.
pub fn router(questions: mpsc::Sender<Question>) -> Router {
    Router::new().route("/gangs", get(all)).route("/gangs/{namespace}/{name}", get(explain)).with_state(questions)
}

async fn all(State(questions): State<mpsc::Sender<Question>>) -> Response {
    match ask(&questions, |answer| Question::Gangs(GangQuestion::All(answer))).await {
        Ok(items) => Json(json!({ "items": items })).into_response(),
        Err(why) => (StatusCode::SERVICE_UNAVAILABLE, why + "\n").into_response(),
    }
}

async fn explain(
    State(questions): State<mpsc::Sender<Question>>,
    Path((namespace, name)): Path<(String, String)>,
) -> Response {
    let id = match GangId::new(&namespace, &name) {
        Ok(id) => id,
        Err(bad) => return (StatusCode::BAD_REQUEST, format!("{bad}\n")).into_response(),
    };
    match ask(&questions, |answer| Question::Gangs(GangQuestion::Explain(id.clone(), answer))).await {
        Ok(Some(explanation)) => Json(explanation).into_response(),
        Ok(None) => (StatusCode::NOT_FOUND, format!("there is no gang {id}; `baton get gangs -A` lists them all\n"))
            .into_response(),
        Err(why) => (StatusCode::SERVICE_UNAVAILABLE, why + "\n").into_response(),
    }
}

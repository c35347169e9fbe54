//! The verbs of the extender: one handler each, from body to body, with the bounds of a request's body.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use axum::body::to_bytes;
use axum::extract::{Request, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::requests::{ExtenderRequest, Front};
use baton_cluster::pod::LightPod;
use baton_contract::extender::{
    ExtenderArgs, ExtenderBindingArgs, ExtenderBindingResult, ExtenderFilterResult, ExtenderPreemptionArgs,
    ExtenderPreemptionResult, HostPriority, MAX_SCORE, MetaPod, MetaVictims,
};
use baton_contract::{PodRef, PodUid};
use baton_decide::scheduler::{DeviceFits, NodeVictims};
use baton_decide::world::PodFacts;

/// Every verb but bind answers within this time.
const ANSWER: Duration = Duration::from_secs(5);
/// Largest request body, in bytes.
const MAX_BODY: usize = 8 << 20;

/// The routes. The verbs are the words that `baton manifests --extender` gives kube-scheduler.
pub fn router(front: Front) -> Router {
    Router::new()
        .route("/filter", post(filter))
        .route("/prioritize", post(prioritize))
        .route("/preempt", post(preempt))
        .route("/bind", post(bind))
        .route("/livez", get(|| async { "alive\n" }))
        .with_state(front)
}

/// The candidates by name, and as they came.
struct Candidates {
    names: Vec<String>,
    list: Option<Value>,
}

impl Candidates {
    fn of(names: Option<Vec<String>>, list: Option<Value>) -> Result<Self, Refused> {
        if let Some(names) = names {
            return Ok(Self { names, list: None });
        }
        let Some(list) = list else { return Ok(Self { names: Vec::new(), list: None }) };
        let items = match &list["items"] {
            Value::Array(items) => items.as_slice(),
            Value::Null => &[],
            _ => return Err(Refused(StatusCode::BAD_REQUEST, "Nodes.items is not a list".to_owned())),
        };
        let name = |item: &Value| item["metadata"]["name"].as_str().map(str::to_owned);
        let names: Option<Vec<String>> = items.iter().map(name).collect();
        let unnamed = || Refused(StatusCode::BAD_REQUEST, "a node in Nodes.items has no metadata.name".to_owned());
        Ok(Self { names: names.ok_or_else(unnamed)?, list: Some(list) })
    }
}

async fn filter(State(front): State<Front>, request: Request) -> Result<Response, Refused> {
    let args: ExtenderArgs = read(request).await?;
    let candidates = Candidates::of(args.node_names, args.nodes)?;
    let pod = facts(args.pod)?;
    let fits = front.ask(|answer| ExtenderRequest::Fit(Box::new(pod), candidates.names.clone(), answer));
    Ok(match in_time(fits).await {
        Ok(fits) => Json(filtered(fits, candidates)).into_response(),
        Err(error) => last(Json(ExtenderFilterResult { error, ..ExtenderFilterResult::default() })),
    })
}

/// An answer after which the connection ends. Through a Service the next one leads to the process that leads then: kube-scheduler
/// would go on with this one for as long as it has pods.
fn last(answer: impl IntoResponse) -> Response {
    ([(header::CONNECTION, "close")], answer).into_response()
}

fn filtered(fits: DeviceFits, candidates: Candidates) -> ExtenderFilterResult {
    let mut result = ExtenderFilterResult {
        failed_nodes: fits.failed,
        failed_and_unresolvable_nodes: fits.never,
        ..ExtenderFilterResult::default()
    };
    match candidates.list {
        None => result.node_names = Some(fits.fitting),
        Some(mut list) => {
            let kept: BTreeSet<&str> = fits.fitting.iter().map(String::as_str).collect();
            if let Some(items) = list["items"].as_array_mut() {
                items.retain(|item| item["metadata"]["name"].as_str().is_some_and(|name| kept.contains(name)));
            }
            result.nodes = Some(list);
        }
    }
    result
}

async fn prioritize(State(front): State<Front>, request: Request) -> Result<Json<Vec<HostPriority>>, Refused> {
    let args: ExtenderArgs = read(request).await?;
    let candidates = Candidates::of(args.node_names, args.nodes)?;
    let pod = facts(args.pod)?;
    // kube-scheduler goes on without the scores of an extender that has none.
    let unavailable = |error| Refused(StatusCode::SERVICE_UNAVAILABLE, error);
    let rated = in_time(front.ask(|answer| ExtenderRequest::Rate(Box::new(pod), candidates.names, answer)))
        .await
        .map_err(unavailable)?;
    let tenth = |(host, rating): (String, i64)| HostPriority { host, score: (rating * MAX_SCORE + 50) / 100 };
    Ok(Json(rated.into_iter().map(tenth).collect()))
}

async fn preempt(State(front): State<Front>, request: Request) -> Result<Json<ExtenderPreemptionResult>, Refused> {
    let args: ExtenderPreemptionArgs = read(request).await?;
    let proposed = args.victims();
    let pod = facts(args.pod)?;
    let uids = |victims: &MetaVictims| victims.pods.iter().map(|pod| PodUid::new(&pod.uid)).collect();
    let victims: BTreeMap<String, Vec<PodUid>> =
        proposed.iter().map(|(node, victims)| (node.clone(), uids(victims))).collect();
    let unavailable = |error| Refused(StatusCode::SERVICE_UNAVAILABLE, error);
    let room = in_time(front.ask(|answer| ExtenderRequest::Room(Box::new(pod), victims, answer)))
        .await
        .map_err(unavailable)?;
    let with_budget = |(node, room): (String, NodeVictims)| {
        let theirs = proposed.get(&node).map_or(0, |victims| victims.num_pdb_violations);
        let num_pdb_violations = theirs + room.more_broken;
        let pods = room.victims.iter().map(|uid| MetaPod { uid: uid.to_string() }).collect();
        (node, MetaVictims { pods, num_pdb_violations })
    };
    Ok(Json(ExtenderPreemptionResult { node_name_to_meta_victims: room.into_iter().map(with_budget).collect() }))
}

async fn bind(State(front): State<Front>, request: Request) -> Result<Response, Refused> {
    let args: ExtenderBindingArgs = read(request).await?;
    let given = [
        ("PodName", &args.pod_name),
        ("PodNamespace", &args.pod_namespace),
        ("PodUID", &args.pod_uid),
        ("Node", &args.node),
    ];
    if let Some((key, _)) = given.iter().find(|(_, value)| value.is_empty()) {
        return Err(Refused(StatusCode::BAD_REQUEST, format!("{key} is empty")));
    }
    // These become part of a request's path.
    if let Some((key, value)) = given.iter().find(|(_, value)| !is_name(value)) {
        let shown: String = value.chars().take(80).collect();
        return Err(Refused(StatusCode::BAD_REQUEST, format!("{key} {shown:?} is not the name of an object")));
    }
    let pod = PodRef::new(&args.pod_namespace, &args.pod_name, &args.pod_uid);
    let Err(error) = front.bind(pod, &args.node).await else {
        return Ok(Json(ExtenderBindingResult::default()).into_response());
    };
    let (pod, namespace, node) = (&args.pod_name, &args.pod_namespace, &args.node);
    tracing::info!(pod, namespace, node, error, "bind for kube-scheduler failed");
    Ok(last(Json(ExtenderBindingResult { error })))
}

fn is_name(text: &str) -> bool {
    text.len() <= 253 && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_'))
}

async fn in_time<T>(answer: impl Future<Output = Result<T, String>>) -> Result<T, String> {
    let late = |_| Err("the scheduler did not answer in time: ask again".to_owned());
    tokio::time::timeout(ANSWER, answer).await.unwrap_or_else(late)
}

/// Time for a request's body to arrive.
const BODY: Duration = Duration::from_secs(5);

/// A refused request: status and reason.
struct Refused(StatusCode, String);

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        tracing::debug!(status = self.0.as_u16(), reason = self.1, "extender request refused");
        last((self.0, self.1 + "\n"))
    }
}

/// Reads and parses the body.
async fn read<T: DeserializeOwned>(request: Request) -> Result<T, Refused> {
    let length = request.headers().get(header::CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse().ok());
    let too_large = || Refused(StatusCode::PAYLOAD_TOO_LARGE, format!("the body is larger than {MAX_BODY} bytes"));
    if length.is_some_and(|length: usize| length > MAX_BODY) {
        return Err(too_large());
    }
    let bytes = match tokio::time::timeout(BODY, to_bytes(request.into_body(), MAX_BODY)).await {
        Ok(Ok(bytes)) => bytes,
        Ok(Err(error)) => {
            let limit = std::error::Error::source(&error).is_some_and(|source| source.to_string().contains("limit"));
            let broken = || Refused(StatusCode::BAD_REQUEST, format!("the body could not be read: {error}"));
            return Err(if limit { too_large() } else { broken() });
        }
        Err(_) => {
            let text = format!("the body did not arrive within {BODY:?}");
            return Err(Refused(StatusCode::REQUEST_TIMEOUT, text));
        }
    };
    serde_json::from_slice(&bytes)
        .map_err(|error| Refused(StatusCode::BAD_REQUEST, format!("the body is not what this verb reads: {error}")))
}

/// The world's record of a `v1.Pod`.
fn facts(mut pod: Value) -> Result<PodFacts, Refused> {
    let bad = |text: String| Refused(StatusCode::BAD_REQUEST, text);
    if !pod.is_object() {
        return Err(bad("Pod is not an object".to_owned()));
    }
    // Go writes absent lists and times as null.
    drop_nulls(&mut pod);
    let pod: LightPod = serde_json::from_value(pod).map_err(|error| bad(format!("Pod cannot be read: {error}")))?;
    Ok(pod.facts())
}

fn drop_nulls(value: &mut Value) {
    match value {
        Value::Object(map) => {
            map.retain(|_, value| !value.is_null());
            map.values_mut().for_each(drop_nulls);
        }
        Value::Array(list) => list.iter_mut().for_each(drop_nulls),
        _ => {}
    }
}

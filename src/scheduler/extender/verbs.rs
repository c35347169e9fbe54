//! The verbs: one handler each, from body to body.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::routing::{get, post};
use axum::{Json, Router};
use serde_json::Value;

use super::ask::Front;
use super::gang::{GangPods, membership};
use super::reply::{Refused, facts, read};
use crate::contract::extender::{
    ExtenderArgs, ExtenderBindingArgs, ExtenderBindingResult, ExtenderFilterResult, ExtenderPreemptionArgs,
    ExtenderPreemptionResult, HostPriority, MAX_SCORE, MetaPod, MetaVictims,
};
use crate::contract::{PodRef, PodUid};
use crate::decide::scheduler::{Fits, Room};

/// Every verb but bind answers within this time.
const ANSWER: Duration = Duration::from_secs(5);

/// The routes. The verbs are the words that `baton manifests --extender` gives kube-scheduler.
pub(super) fn router(front: Front) -> Router {
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

async fn filter(State(front): State<Front>, request: Request) -> Result<Json<ExtenderFilterResult>, Refused> {
    let args: ExtenderArgs = read(request).await?;
    let gang = membership(&args.pod).filter(|_| front.gang == GangPods::Refuse);
    let candidates = Candidates::of(args.node_names, args.nodes)?;
    let pod = facts(args.pod)?;
    if let Some(gang) = gang {
        let why = format!(
            "gang pod ({gang}): kube-scheduler places pods one by one; give it the schedulerName of the standalone scheduler, or run the extender with --extender-gang=ignore"
        );
        let never = candidates.names.iter().map(|node| (node.clone(), why.clone())).collect();
        return Ok(Json(filtered(Fits { never, ..Fits::default() }, candidates)));
    }
    Ok(Json(match in_time(front.fit(pod, candidates.names.clone())).await {
        Ok(fits) => filtered(fits, candidates),
        Err(error) => ExtenderFilterResult { error, ..ExtenderFilterResult::default() },
    }))
}

fn filtered(fits: Fits, candidates: Candidates) -> ExtenderFilterResult {
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
    let rated = in_time(front.rate(pod, candidates.names)).await.map_err(unavailable)?;
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
    let room = in_time(front.room(pod, victims)).await.map_err(unavailable)?;
    let with_budget = |(node, room): (String, Room)| {
        let theirs = proposed.get(&node).map_or(0, |victims| victims.num_pdb_violations);
        let num_pdb_violations = theirs + room.more_broken;
        let pods = room.victims.iter().map(|uid| MetaPod { uid: uid.to_string() }).collect();
        (node, MetaVictims { pods, num_pdb_violations })
    };
    Ok(Json(ExtenderPreemptionResult { node_name_to_meta_victims: room.into_iter().map(with_budget).collect() }))
}

async fn bind(State(front): State<Front>, request: Request) -> Result<Json<ExtenderBindingResult>, Refused> {
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
    let error = front.bind(pod, &args.node).await.err().unwrap_or_default();
    if !error.is_empty() {
        let (pod, namespace, node) = (&args.pod_name, &args.pod_namespace, &args.node);
        tracing::info!(pod, namespace, node, error, "bind for kube-scheduler failed");
    }
    Ok(Json(ExtenderBindingResult { error }))
}

fn is_name(text: &str) -> bool {
    text.len() <= 253 && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_'))
}

async fn in_time<T>(answer: impl Future<Output = Result<T, String>>) -> Result<T, String> {
    let late = |_| Err("the scheduler did not answer in time: ask again".to_owned());
    tokio::time::timeout(ANSWER, answer).await.unwrap_or_else(late)
}

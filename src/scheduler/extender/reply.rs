//! Reading a request's body within its bounds, and refusing it in words.

use std::time::Duration;

use axum::body::{Body, to_bytes};
use axum::extract::Request;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::server::MAX_BODY;
use crate::cluster::feed_pod::FeedPod;
use crate::decide::world::PodFacts;

/// Time for a request's body to arrive.
const BODY: Duration = Duration::from_secs(5);

/// A refusal: status and reason.
pub(super) struct Refused(pub StatusCode, pub String);

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        tracing::debug!(status = self.0.as_u16(), reason = self.1, "extender request refused");
        (self.0, self.1 + "\n").into_response()
    }
}

/// Reads and parses the body.
pub(super) async fn read<T: DeserializeOwned>(request: Request) -> Result<T, Refused> {
    let length = request.headers().get(header::CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse().ok());
    let too_large = || Refused(StatusCode::PAYLOAD_TOO_LARGE, format!("the body is larger than {MAX_BODY} bytes"));
    if length.is_some_and(|length: usize| length > MAX_BODY) {
        return Err(too_large());
    }
    let body: Body = request.into_body();
    let bytes = match tokio::time::timeout(BODY, to_bytes(body, MAX_BODY)).await {
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
pub(super) fn facts(mut pod: Value) -> Result<PodFacts, Refused> {
    let bad = |text: String| Refused(StatusCode::BAD_REQUEST, text);
    if !pod.is_object() {
        return Err(bad("Pod is not an object".to_owned()));
    }
    // Go writes absent lists and times as null.
    drop_nulls(&mut pod);
    let pod: FeedPod = serde_json::from_value(pod).map_err(|error| bad(format!("Pod cannot be read: {error}")))?;
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

//! Which form an answer takes, and how bodies are read.

use axum::body::{Body, Bytes};
use axum::http::{HeaderValue, Response, StatusCode, header};
use serde_json::Value;

use super::failure::Failure;
use super::object::typed;
use super::protobuf;
use super::request::Request;
use super::resource::Resource;

/// Most bytes of a request body.
pub const BODY_LIMIT: usize = 3 * 1024 * 1024;

/// The form of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// The objects.
    Plain,
    /// `Table` for `kubectl get`.
    Table,
    /// Metadata only.
    Partial,
}

/// Picks the first acceptable form.
pub fn form(accept: &str) -> Result<Form, Failure> {
    if accept.trim().is_empty() {
        return Ok(Form::Plain);
    }
    for part in accept.split(',') {
        let mut words = part.split(';').map(str::trim);
        let media = words.next().unwrap_or_default();
        if !matches!(media, "application/json" | "application/*" | "*/*" | "application/yaml") {
            continue;
        }
        let parameter = |key: &str| {
            part.split(';').skip(1).filter_map(|p| p.trim().split_once('=')).find(|(k, _)| *k == key).map(|(_, v)| v)
        };
        match (parameter("as"), parameter("g"), parameter("v")) {
            (None, _, _) => return Ok(Form::Plain),
            (Some("Table"), Some("meta.k8s.io"), Some("v1")) => return Ok(Form::Table),
            (Some("PartialObjectMetadata" | "PartialObjectMetadataList"), Some("meta.k8s.io"), Some("v1")) => {
                return Ok(Form::Partial);
            }
            _ => {}
        }
    }
    Err(Failure::not_acceptable())
}

/// An answer with a JSON body.
pub fn json(code: u16, body: &Value) -> Response<Body> {
    bytes(code, "application/json", body.to_string().into_bytes())
}

/// An answer with a body of a media type.
pub fn bytes(code: u16, media: &'static str, body: Vec<u8>) -> Response<Body> {
    let mut response = Response::new(Body::from(body));
    *response.status_mut() = StatusCode::from_u16(code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(media));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache, private"));
    response
}

/// The answer to a refused request.
pub fn failure(failure: &Failure) -> Response<Body> {
    let mut response = json(failure.code(), &failure.body());
    if let Some(seconds) = failure.retry_after() {
        response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
    }
    response
}

/// One object in the form asked for; `value` as stored in the resource's version.
pub fn object(request: &Request, resource: &Resource, code: u16, value: &Value) -> Result<Response<Body>, Failure> {
    let body = match form(&request.accept)? {
        Form::Plain => typed(resource, value),
        Form::Table => {
            let include = request.query.text("includeObject");
            super::table::table(resource, std::slice::from_ref(value), value["metadata"].clone(), include)
        }
        Form::Partial => partial(value),
    };
    Ok(json(code, &body))
}

/// `PartialObjectMetadata` of an object.
pub fn partial(value: &Value) -> Value {
    serde_json::json!({
        "kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": value["metadata"],
    })
}

/// Reads a body that is JSON, YAML or, of some kinds, protobuf.
pub fn read(request: &Request, body: &Bytes) -> Result<Value, Failure> {
    match request.content_type.as_str() {
        "" | "application/json" | "application/apply-patch+yaml" | "application/yaml" => {}
        protobuf::MEDIA => return protobuf::read(body),
        _ => {
            return Err(Failure::unsupported_media(&["application/json", "application/yaml"]));
        }
    }
    if let Ok(value) = serde_json::from_slice(body) {
        return Ok(value);
    }
    if request.content_type.ends_with("yaml") {
        let text = std::str::from_utf8(body).map_err(|e| Failure::bad_request(format!("error decoding YAML: {e}")))?;
        return serde_saphyr::from_str(text).map_err(|e| Failure::bad_request(format!("error decoding YAML: {e}")));
    }
    let why = serde_json::from_slice::<Value>(body).err().map(|e| e.to_string()).unwrap_or_default();
    Err(Failure::bad_request(format!("the object provided is unrecognized (must be of type JSON): {why}")))
}

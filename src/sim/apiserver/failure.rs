//! Every error that the server answers, as a Kubernetes `Status`, with the texts of a real 1.36 server.

use serde_json::{Map, Value, json};

use super::resource::Resource;

/// A refused request: HTTP status and the `Status` body that explains it.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("{} {}: {}", .0.code, .0.reason, .0.message)]
pub struct Failure(Box<Body>);

#[derive(Debug, Clone, PartialEq)]
struct Body {
    code: u16,
    reason: &'static str,
    message: String,
    details: Option<Value>,
    continue_token: Option<String>,
    retry_after: Option<u32>,
}

/// One offending field of an `Invalid` answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cause {
    /// Machine readable, e.g. `FieldValueInvalid`.
    pub reason: &'static str,
    /// Text without the field.
    pub message: String,
    /// Path, e.g. `spec.containers[0].name`.
    pub field: String,
}

impl Cause {
    /// `Invalid value: <shown>: <why>`.
    pub fn invalid(field: impl Into<String>, shown: &Value, why: &str) -> Self {
        Self {
            reason: "FieldValueInvalid",
            message: format!("Invalid value: {}: {why}", go(shown)),
            field: field.into(),
        }
    }

    /// `Required value` with an optional explanation.
    pub fn required(field: impl Into<String>, why: &str) -> Self {
        let message = if why.is_empty() { "Required value".to_owned() } else { format!("Required value: {why}") };
        Self { reason: "FieldValueRequired", message, field: field.into() }
    }

    /// `Forbidden: <why>`.
    pub fn forbidden(field: impl Into<String>, why: &str) -> Self {
        Self { reason: "FieldValueForbidden", message: format!("Forbidden: {why}"), field: field.into() }
    }

    /// `Duplicate value: <shown>`.
    pub fn duplicate(field: impl Into<String>, shown: &Value) -> Self {
        Self { reason: "FieldValueDuplicate", message: format!("Duplicate value: {}", go(shown)), field: field.into() }
    }

    /// `Unsupported value: <shown>: supported values: …`.
    pub fn unsupported(field: impl Into<String>, shown: &Value, allowed: &[String]) -> Self {
        let list = allowed.iter().map(|a| format!("\"{a}\"")).collect::<Vec<_>>().join(", ");
        Self {
            reason: "FieldValueNotSupported",
            message: format!("Unsupported value: {}: supported values: {list}", go(shown)),
            field: field.into(),
        }
    }

    /// `Too long: may not be more than <n> bytes`.
    pub fn too_long(field: impl Into<String>, why: &str) -> Self {
        Self { reason: "FieldValueTooLong", message: format!("Too long: {why}"), field: field.into() }
    }

    /// `Invalid value: "<type found>": <why>` as structural schemas answer for a wrong type.
    pub fn wrong_type(field: impl Into<String>, why: &str) -> Self {
        Self { reason: "FieldValueTypeInvalid", message: format!("Invalid value: {why}"), field: field.into() }
    }
}

/// A value as Go's `%#v`-like field errors show it: strings quoted, numbers bare, the rest as JSON.
fn go(value: &Value) -> String {
    match value {
        Value::Null => "null".to_owned(),
        other => other.to_string(),
    }
}

impl Failure {
    fn new(code: u16, reason: &'static str, message: impl Into<String>, details: Option<Value>) -> Self {
        Self(Box::new(Body { code, reason, message: message.into(), details, continue_token: None, retry_after: None }))
    }

    /// 404 of an object.
    pub fn not_found(resource: &Resource, name: &str) -> Self {
        Self::new(
            404,
            "NotFound",
            format!("{} \"{name}\" not found", resource.qualified()),
            Some(resource.details(name, &resource.plural)),
        )
    }

    /// 404 of a path that serves no resource.
    pub fn unknown_resource() -> Self {
        Self::new(404, "NotFound", "the server could not find the requested resource", Some(json!({})))
    }

    /// 400.
    pub fn bad_request(message: impl Into<String>) -> Self {
        Self::new(400, "BadRequest", message, None)
    }

    /// 401.
    pub fn unauthorized() -> Self {
        Self::new(401, "Unauthorized", "Unauthorized", None)
    }

    /// 403 with the details that name what was asked for.
    pub fn forbidden(message: impl Into<String>, details: Value) -> Self {
        Self::new(403, "Forbidden", message, Some(details))
    }

    /// A write that an admission policy denies; `reason` as its validation gives it, `Invalid` where it gives none.
    pub fn denied(resource: &Resource, name: &str, reason: &str, why: &str) -> Self {
        let (code, reason) = match reason {
            "Forbidden" => (403, "Forbidden"),
            "Unauthorized" => (401, "Unauthorized"),
            "RequestEntityTooLarge" => (413, "RequestEntityTooLarge"),
            _ => (422, "Invalid"),
        };
        let mut details = resource.details(name, &resource.plural);
        details["causes"] = json!([{ "message": why }]);
        Self::new(code, reason, format!("{} \"{name}\" is forbidden: {why}", resource.qualified()), Some(details))
    }

    /// 405.
    pub fn method_not_allowed() -> Self {
        Self::new(
            405,
            "MethodNotAllowed",
            "the server does not allow this method on the requested resource",
            Some(json!({})),
        )
    }

    /// 501: part of the API that this server leaves out.
    pub fn not_served(what: &str) -> Self {
        Self::new(501, "NotImplemented", format!("the simulated API server does not serve {what}"), None)
    }

    /// 406: no representation that the client accepts.
    pub fn not_acceptable() -> Self {
        Self::new(
            406,
            "NotAcceptable",
            "only the following media types are accepted: application/json, application/yaml",
            None,
        )
    }

    /// 409: an object of that name is there already.
    pub fn already_exists(resource: &Resource, name: &str) -> Self {
        Self::new(
            409,
            "AlreadyExists",
            format!("{} \"{name}\" already exists", resource.qualified()),
            Some(resource.details(name, &resource.plural)),
        )
    }

    /// 409 with `what` naming the object's kind in the text, e.g. `pods/binding`.
    pub fn conflict(resource: &Resource, what: &str, name: &str, why: &str) -> Self {
        let qualified = if resource.group.is_empty() { what.to_owned() } else { format!("{what}.{}", resource.group) };
        Self::new(
            409,
            "Conflict",
            format!("Operation cannot be fulfilled on {qualified} \"{name}\": {why}"),
            Some(resource.details(name, what)),
        )
    }

    /// 409: the resourceVersion given is not the current one.
    pub fn modified(resource: &Resource, name: &str) -> Self {
        Self::conflict(
            resource,
            &resource.plural,
            name,
            "the object has been modified; please apply your changes to the latest version and try again",
        )
    }

    /// 409 of a server-side apply; `conflicts` are (message, field).
    pub fn apply_conflict(message: impl Into<String>, conflicts: &[(String, String)]) -> Self {
        let causes: Vec<Value> = conflicts
            .iter()
            .map(|(message, field)| json!({"reason": "FieldManagerConflict", "message": message, "field": field}))
            .collect();
        Self::new(409, "Conflict", message, Some(json!({ "causes": causes })))
    }

    /// 410 with a text.
    pub fn expired(message: impl Into<String>) -> Self {
        Self::new(410, "Expired", message, None)
    }

    /// 410 of a continue token, with the token that goes on inconsistently.
    pub fn continue_expired(token: String) -> Self {
        let mut failure = Self::expired(
            "The provided continue parameter is too old to display a consistent list result. You can start a new list \
             without the continue parameter, or use the continue token in this response to retrieve the remainder of \
             the results. Continuing with the provided token results in an inconsistent list - objects that were \
             created, modified, or deleted between the time the first chunk was returned and now may show up in the \
             list.",
        );
        failure.0.continue_token = Some(token);
        failure
    }
    /// 413.
    pub fn too_large(limit: usize) -> Self {
        Self::new(413, "RequestEntityTooLarge", format!("Request entity too large: limit is {limit}"), None)
    }

    /// 415, naming what is accepted.
    pub fn unsupported_media(accepted: &[&str]) -> Self {
        Self::new(
            415,
            "UnsupportedMediaType",
            format!(
                "the body of the request was in an unknown format - accepted media types include: {}",
                accepted.join(", ")
            ),
            None,
        )
    }

    /// 422 with the fields that are wrong, titled by kind.
    pub fn invalid(resource: &Resource, name: &str, causes: &[Cause]) -> Self {
        Self::invalid_as(resource, &resource.kind, name, causes)
    }

    /// 422 titled by `what` (a kind or a plural).
    pub fn invalid_as(resource: &Resource, what: &str, name: &str, causes: &[Cause]) -> Self {
        let title = if resource.group.is_empty() { what.to_owned() } else { format!("{what}.{}", resource.group) };
        let mut details = resource.details(name, what);
        details["causes"] = causes_json(causes);
        Self::new(422, "Invalid", format!("{title} \"{name}\" is invalid: {}", aggregate(causes)), Some(details))
    }

    /// 422 of a patch whose result the type cannot hold.
    pub fn patch_unfit(shown: &str, why: &str) -> Self {
        let quoted = Value::String(shown.to_owned()).to_string();
        let cause = Cause {
            reason: "FieldValueInvalid",
            message: format!("Invalid value: {quoted}: {why}"),
            field: "patch".to_owned(),
        };
        let message = format!(" \"\" is invalid: {}", aggregate(std::slice::from_ref(&cause)));
        Self::new(422, "Invalid", message, Some(json!({"causes": causes_json(&[cause])})))
    }

    /// 422 of a JSON patch that cannot be applied.
    pub fn patch_failed() -> Self {
        Self::new(422, "Invalid", "the server rejected our request due to an error in our request", Some(json!({})))
    }

    /// 429 with Retry-After in seconds.
    pub fn too_many_requests(message: impl Into<String>, retry_after: u32, causes: Option<Value>) -> Self {
        let mut details = json!({ "retryAfterSeconds": retry_after });
        if let Some(causes) = causes {
            details["causes"] = causes;
        }
        let mut failure = Self::new(429, "TooManyRequests", message, Some(details));
        failure.0.retry_after = Some(retry_after);
        failure
    }

    /// 500 with a text and no reason, as an internal Go error comes out.
    pub fn internal(message: impl Into<String>) -> Self {
        Self::new(500, "", message, None)
    }

    /// 504: the version asked for has not come yet.
    pub fn internal_timeout(message: impl Into<String>) -> Self {
        let details = json!({
            "causes": [{"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}],
            "retryAfterSeconds": 1,
        });
        let mut failure = Self::new(504, "Timeout", format!("Timeout: {}", message.into()), Some(details));
        failure.0.retry_after = Some(1);
        failure
    }

    /// Any status, for injected faults.
    pub fn injected(code: u16, retry_after: Option<u32>) -> Self {
        let (reason, message) = match code {
            409 => ("Conflict", "Operation cannot be fulfilled: injected conflict"),
            410 => ("Expired", "too old resource version: injected"),
            422 => ("Invalid", "the server rejected our request due to an error in our request"),
            429 => ("TooManyRequests", "the server has received too many requests and has asked us to try again later"),
            500 => ("InternalError", "Internal error occurred: injected"),
            503 => ("ServiceUnavailable", "the server is currently unable to handle the request"),
            504 => ("Timeout", "the server was unable to return a response in the time allotted"),
            _ => ("", "injected"),
        };
        let details = retry_after.map(|s| json!({ "retryAfterSeconds": s }));
        let mut failure = Self::new(code, reason, message, details);
        failure.0.retry_after = retry_after;
        failure
    }

    /// HTTP status code.
    pub fn code(&self) -> u16 {
        self.0.code
    }

    /// Seconds of the `Retry-After` header, if any.
    pub fn retry_after(&self) -> Option<u32> {
        self.0.retry_after
    }

    /// The `Status` object.
    pub fn body(&self) -> Value {
        let mut metadata = Map::new();
        if let Some(token) = &self.0.continue_token {
            metadata.insert("continue".into(), json!(token));
        }
        let mut status = json!({
            "kind": "Status", "apiVersion": "v1", "metadata": metadata, "status": "Failure",
            "message": self.0.message, "code": self.0.code,
        });
        if !self.0.reason.is_empty() {
            status["reason"] = json!(self.0.reason);
        }
        if let Some(details) = &self.0.details {
            status["details"] = details.clone();
        }
        status
    }
}

/// The `Status` of a request that succeeded and has no object to show.
pub fn success(details: Option<Value>, code: Option<u16>) -> Value {
    let mut status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"});
    if let Some(details) = details {
        status["details"] = details;
    }
    if let Some(code) = code {
        status["code"] = json!(code);
    }
    status
}

fn causes_json(causes: &[Cause]) -> Value {
    causes.iter().map(|c| json!({"reason": c.reason, "message": c.message, "field": c.field})).collect()
}

/// One text for all causes, each distinct one once, in brackets when there are several.
fn aggregate(causes: &[Cause]) -> String {
    let mut texts: Vec<String> = Vec::new();
    for cause in causes {
        let text = format!("{}: {}", cause.field, cause.message);
        if !texts.contains(&text) {
            texts.push(text);
        }
    }
    if texts.len() == 1 { texts.remove(0) } else { format!("[{}]", texts.join(", ")) }
}

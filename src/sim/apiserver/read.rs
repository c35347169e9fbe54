//! GET of one object and of lists: selectors, paging, versions, forms.

use std::sync::Arc;

use axum::body::Body;
use axum::http::Response;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Value, json};

use super::codec::{self, Form};
use super::core::Core;
use super::events::{from_stored, is_stored_form};
use super::failure::Failure;
use super::object::{Object, key};
use super::request::Request;
use super::resource::Resource;
use super::selectors::Selection;
use super::store::StoreSnapshot;

/// GET of one object.
pub fn get(core: &Core, resource: &Resource, request: &Request) -> Result<Response<Body>, Failure> {
    let name = &request.target.name;
    let found = core
        .store
        .get(&resource.storage, &key(&request.target.namespace, name))
        .ok_or_else(|| Failure::not_found(resource, name))?;
    if is_stored_form(resource) && codec::form(&request.accept)? == Form::Plain {
        let mut out = Vec::with_capacity(found.bytes().len() + 64);
        found.write_typed(resource, &mut out);
        return Ok(codec::bytes(200, "application/json", out));
    }
    codec::object(request, resource, 200, &from_stored(resource, &found.value))
}

/// The key prefix that a list or watch covers.
pub fn prefix(resource: &Resource, namespace: &str) -> String {
    if resource.namespaced && !namespace.is_empty() { format!("/{namespace}/") } else { "/".to_owned() }
}

/// Parsed continue token.
struct Token {
    /// `None`: whatever is current (the client went on after an expiry).
    version: Option<u64>,
    start: String,
}

fn encode_token(version: Option<u64>, start: &str) -> String {
    let rv = version.map_or(json!(-1), |v| json!(v));
    // Field order is part of what clients have been seen to compare.
    let text = format!("{{\"v\":\"meta.k8s.io/v1\",\"rv\":{rv},\"start\":{}}}", go_string(start));
    URL_SAFE_NO_PAD.encode(text)
}

/// A JSON string as Go writes it (NUL as `\u0000`).
fn go_string(text: &str) -> String {
    Value::String(text.to_owned()).to_string()
}

fn decode_token(token: &str, prefix: &str) -> Result<Token, Failure> {
    let bad = |why: String| Failure::bad_request(format!("invalid continue token: continue key is not valid: {why}"));
    let bytes = URL_SAFE_NO_PAD.decode(token).map_err(|_| bad("illegal base64 data at input byte 0".to_owned()))?;
    let value: Value = serde_json::from_slice(&bytes).map_err(|_| {
        let first = bytes.first().copied().map_or(' ', char::from);
        bad(format!("invalid character '{first}' looking for beginning of value"))
    })?;
    let start = value["start"].as_str().unwrap_or_default();
    if value["v"] != "meta.k8s.io/v1" || start.is_empty() {
        return Err(bad("continue key is not valid: encoded start key empty (version meta.k8s.io/v1)".to_owned()));
    }
    let version = value["rv"].as_i64().and_then(|v| u64::try_from(v).ok());
    Ok(Token { version, start: format!("{}{}", prefix.trim_end_matches('/'), start) })
}

/// The version that a list asks for: (exact version, what to answer).
fn wanted_version(core: &Core, request: &Request) -> Result<Option<u64>, Failure> {
    let query = &request.query;
    let (version, rule) = (query.text("resourceVersion"), query.text("resourceVersionMatch"));
    if !rule.is_empty() && version.is_empty() {
        return Err(invalid_option(
            "resourceVersionMatch",
            "resourceVersionMatch is forbidden unless resourceVersion is provided",
        ));
    }
    if !query.text("continue").is_empty() {
        if !rule.is_empty() {
            return Err(invalid_option(
                "resourceVersionMatch",
                "resourceVersionMatch is forbidden when continue is provided",
            ));
        }
        if !matches!(version, "" | "0") {
            return Err(Failure::bad_request("specifying resource version is not allowed when using continue"));
        }
        return Ok(None);
    }
    if matches!(version, "" | "0") {
        if rule == "Exact" && version == "0" {
            return Err(invalid_option(
                "resourceVersionMatch",
                "resourceVersionMatch \"Exact\" is forbidden for resourceVersion \"0\"",
            ));
        }
        return Ok(None);
    }
    let number: u64 = version.parse().map_err(|_| {
        Failure::bad_request(format!(
            "Invalid value: \"{version}\": strconv.ParseUint: parsing \"{version}\": invalid syntax"
        ))
    })?;
    let current = core.store.version();
    if number > current {
        return Err(too_new(number, current));
    }
    let limited = query.number("limit").unwrap_or(0) > 0;
    match rule {
        "Exact" => Ok(Some(number)),
        "" if limited => Ok(Some(number)),
        "NotOlderThan" | "" => Ok(None),
        other => Err(invalid_option(
            "resourceVersionMatch",
            &format!("Unsupported value: \"{other}\": supported values: \"Exact\", \"NotOlderThan\", \"\""),
        )),
    }
}

fn invalid_option(field: &str, why: &str) -> Failure {
    Failure::bad_request(format!("ListOptions.meta.k8s.io \"\" is invalid: {field}: Forbidden: {why}"))
}

/// The answer to a version that is not there yet.
pub fn too_new(wanted: u64, current: u64) -> Failure {
    Failure::internal_timeout(format!("Too large resource version: {wanted}, current: {current}"))
}

/// The objects that a list request selects, unpaged (used by deletecollection too).
pub fn select(core: &Core, resource: &Resource, request: &Request) -> Result<StoreSnapshot, Failure> {
    let selection =
        Selection::parse(request.query.text("labelSelector"), request.query.text("fieldSelector"), resource)?;
    let prefix = prefix(resource, &request.target.namespace);
    let mut snapshot = core
        .store
        .list(&resource.storage, &prefix, None, None)
        .map_err(|_| Failure::expired("The resourceVersion for the provided list is too old."))?;
    snapshot.items.retain(|(_, o)| selection.matches(&o.value));
    Ok(snapshot)
}

/// GET of a list.
pub fn list(core: &Core, resource: &Resource, request: &Request) -> Result<Response<Body>, Failure> {
    let form = codec::form(&request.accept)?;
    let query = &request.query;
    let selection = Selection::parse(query.text("labelSelector"), query.text("fieldSelector"), resource)?;
    let mut version = wanted_version(core, request)?;
    let prefix = prefix(resource, &request.target.namespace);
    let mut start = None;
    let continued = query.text("continue");
    if !continued.is_empty() {
        let token = decode_token(continued, &prefix)?;
        version = token.version;
        start = Some(token.start);
    }
    let snapshot =
        core.store.list(&resource.storage, &prefix, start.as_deref(), version).map_err(|_| match &start {
            Some(start) => Failure::continue_expired(encode_token(
                None,
                start.strip_prefix(prefix.trim_end_matches('/')).unwrap_or(start),
            )),
            None => Failure::expired("The resourceVersion for the provided list is too old."),
        })?;
    let limit = usize::try_from(query.number("limit").unwrap_or(0)).unwrap_or(usize::MAX);
    let page = page(&snapshot, &selection, limit, &prefix);
    let mut metadata = json!({ "resourceVersion": snapshot.version.to_string() });
    if let Some(token) = &page.token {
        metadata["continue"] = json!(token);
        if let Some(left) = page.left {
            metadata["remainingItemCount"] = json!(left);
        }
    }
    match form {
        Form::Plain => Ok(codec::bytes(200, "application/json", plain(resource, &metadata, &page.items))),
        Form::Table => {
            let values: Vec<Value> = page.items.iter().map(|o| from_stored(resource, &o.value)).collect();
            let table = super::table::table(resource, &values, metadata, query.text("includeObject"));
            Ok(codec::json(200, &table))
        }
        Form::Partial => {
            let items: Vec<Value> = page.items.iter().map(|o| codec::partial(&o.value)).collect();
            let body = json!({
                "kind": "PartialObjectMetadataList", "apiVersion": "meta.k8s.io/v1", "metadata": metadata,
                "items": items,
            });
            Ok(codec::json(200, &body))
        }
    }
}

struct Page<'a> {
    items: Vec<&'a Arc<Object>>,
    token: Option<String>,
    left: Option<usize>,
}

fn page<'a>(snapshot: &'a StoreSnapshot, selection: &Selection, limit: usize, prefix: &str) -> Page<'a> {
    let mut items = Vec::new();
    for (index, (key, object)) in snapshot.items.iter().enumerate() {
        if !selection.matches(&object.value) {
            continue;
        }
        items.push(object);
        let rest = snapshot.items.len() - index - 1;
        if limit > 0 && items.len() == limit && rest > 0 {
            let start = format!("{}\0", &key[prefix.len() - 1..]);
            let token = encode_token(Some(snapshot.version), &start);
            let left = selection.is_everything().then_some(rest);
            return Page { items, token: Some(token), left };
        }
    }
    Page { items, token: None, left: None }
}

/// The list, spliced together from the objects' own bytes.
fn plain(resource: &Resource, metadata: &Value, items: &[&Arc<Object>]) -> Vec<u8> {
    let size: usize = items.iter().map(|o| o.bytes().len() + 80).sum();
    let mut out = Vec::with_capacity(size + 256);
    let head = format!(
        "{{\"kind\":\"{}\",\"apiVersion\":\"{}\",\"metadata\":{metadata},\"items\":[",
        resource.list_kind,
        resource.api_version()
    );
    out.extend_from_slice(head.as_bytes());
    for (index, object) in items.iter().enumerate() {
        if index > 0 {
            out.push(b',');
        }
        if resource.custom.is_some() {
            object.write_typed(resource, &mut out);
        } else if is_stored_form(resource) {
            // Items of built-in lists carry no kind and version of their own.
            out.extend_from_slice(object.bytes());
        } else {
            out.extend_from_slice(from_stored(resource, &object.value).to_string().as_bytes());
        }
    }
    out.extend_from_slice(b"]}");
    out
}

//! One request from head to answer: who, faults, may they, which handler.

use std::sync::Arc;

use axum::body::{Body, Bytes, to_bytes};
use axum::http::{HeaderMap, HeaderValue, Method, Request as HttpRequest, Response, header};
use serde_json::{Value, json};

use super::codec;
use super::core::Core;
use super::counts::Counted;
use super::definitions;
use super::delete::{self, DeleteOptions, Gone};
use super::discovery;
use super::failure::Failure;
use super::faults::Effect;
use super::forward;
use super::object::{meta, typed};
use super::openapi;
use super::read;
use super::request::Request;
use super::resource::Resource;
use super::reviews;
use super::subresources;
use super::tokens;
use super::user::{User, account_groups};
use super::watch::{self, WatchSends};
use super::write::{Write, Written};

/// The connection must be closed instead of answering.
#[derive(Debug, thiserror::Error)]
#[error("the connection was dropped by an injected fault")]
pub struct Dropped;

/// Serves one request.
pub async fn serve(core: Arc<Core>, http: HttpRequest<Body>) -> Result<Response<Body>, Dropped> {
    let (mut head, body) = http.into_parts();
    let authorization = head.headers.get(header::AUTHORIZATION).and_then(|v| v.to_str().ok());
    let user = match core.users.authenticate(authorization, &core.store, core.time()) {
        Ok(user) => user,
        Err(failure) => return Ok(codec::failure(&failure)),
    };
    let user = match impersonated(&head.headers, user) {
        Ok(user) => user,
        Err(failure) => return Ok(codec::failure(&failure)),
    };
    let request = Request::read(&head.method, &head.uri, &head.headers, user);
    count(&core, &request);
    let (mut drop_after, mut hang_after) = (false, false);
    let mut sends = WatchSends::Events;
    match core.faults.hit(&request) {
        None => {}
        Some(Effect::Answer(code, retry_after)) => {
            return Ok(codec::failure(&Failure::injected(code, retry_after)));
        }
        Some(Effect::Delay(time)) => tokio::time::sleep(time).await,
        Some(Effect::DropBefore) => return Err(Dropped),
        Some(Effect::DropAfter) => drop_after = true,
        Some(Effect::Hang) => std::future::pending().await,
        Some(Effect::HangAfter) => hang_after = true,
        Some(Effect::SilentWatch) => sends = WatchSends::Nothing,
    }
    // What is moderately too large is read all the same, so that the client hears why it is refused.
    let body = match to_bytes(body, 16 * codec::BODY_LIMIT).await {
        Ok(body) if body.len() <= codec::BODY_LIMIT => body,
        _ => return Ok(codec::failure(&Failure::too_large(codec::BODY_LIMIT))),
    };
    let answer = match forwarded(&core, &request) {
        Some(pods) => authorize(&core, &request, Some(&pods)).and_then(|()| {
            forward::authorize(&core, &request)?;
            forward::forward(&core, &pods, &request, &head.headers, head.extensions.remove())
        }),
        None => answer(&core, &head.method, &request, body, sends),
    };
    let answer = answer.unwrap_or_else(|f| codec::failure(&f));
    if hang_after {
        std::future::pending::<()>().await;
    }
    if drop_after { Err(Dropped) } else { Ok(answer) }
}

/// An administrator may act as another user (`kubectl --as`).
fn impersonated(headers: &HeaderMap, user: User) -> Result<User, Failure> {
    let Some(name) = headers.get("impersonate-user").and_then(|v| v.to_str().ok()) else { return Ok(user) };
    if !user.groups.iter().any(|g| g == "system:masters") {
        return Err(Failure::forbidden(
            format!(
                "users \"{name}\" is forbidden: User \"{}\" cannot impersonate resource \"users\" in API group \"\" at the \
                 cluster scope",
                user.name
            ),
            json!({"name": name, "kind": "users"}),
        ));
    }
    let mut groups: Vec<String> =
        headers.get_all("impersonate-group").iter().filter_map(|v| v.to_str().ok()).map(str::to_owned).collect();
    if groups.is_empty() {
        groups = account_groups(name);
    }
    if name != "system:anonymous" && !groups.iter().any(|g| g == "system:authenticated") {
        groups.push("system:authenticated".to_owned());
    }
    if name == "system:anonymous" && groups.is_empty() {
        groups.push("system:unauthenticated".to_owned());
    }
    let mut user = User { name: name.to_owned(), groups, ..User::default() };
    for (header, value) in headers {
        let (Some(key), Ok(value)) = (header.as_str().strip_prefix("impersonate-extra-"), value.to_str()) else {
            continue;
        };
        let key = super::request::decode(key).to_lowercase();
        user.extra.entry(key).or_default().push(value.to_owned());
    }
    Ok(user)
}

fn count(core: &Core, request: &Request) {
    let target = &request.target;
    core.counts.add(Counted {
        verb: target.verb.clone(),
        resource: if target.resource.is_empty() { request.path.clone() } else { target.resource.clone() },
        subresource: target.subresource.clone(),
        user: request.user.name.clone(),
        agent: request.agent.split('/').next().unwrap_or_default().to_owned(),
    });
}

/// The resource of pods, where a request begins a stream to one of them.
fn forwarded(core: &Core, request: &Request) -> Option<Arc<Resource>> {
    let target = &request.target;
    let pods = core.registry.load().find(&target.group, &target.version, &target.resource)?;
    let streams = target.subresource == "portforward" && target.verb == "get";
    (pods.is("", "pods") && streams).then_some(pods)
}

fn authorize(core: &Core, request: &Request, resource: Option<&Resource>) -> Result<(), Failure> {
    core.users.authorize(&request.user, &request.to_authorize(), resource, &request.path, &core.store)
}

fn answer(
    core: &Arc<Core>,
    method: &Method,
    request: &Request,
    body: Bytes,
    sends: WatchSends,
) -> Result<Response<Body>, Failure> {
    let target = &request.target;
    let registry = core.registry.load_full();
    let resource = registry.find(&target.group, &target.version, &target.resource);
    authorize(core, request, resource.as_deref())?;
    if target.resource.is_empty() {
        return plain_path(core, method, request);
    }
    let resource = resource.ok_or_else(Failure::unknown_resource)?;
    if resource.namespaced
        && target.namespace.is_empty()
        && !matches!(target.verb.as_str(), "list" | "watch")
        && !resource.storage.is_empty()
    {
        return Err(Failure::unknown_resource());
    }
    if !resource.namespaced && !target.namespace.is_empty() && !resource.is("", "namespaces") {
        return Err(Failure::unknown_resource());
    }
    if !target.subresource.is_empty() {
        return subresource(core, &resource, request, &body);
    }
    if !resource.verbs.contains(&target.verb) {
        return Err(Failure::method_not_allowed());
    }
    if resource.storage.is_empty() {
        return virtual_resource(core, &resource, request, &body);
    }
    let answer = main_resource(core, &resource, request, &body, sends)?;
    let write = !matches!(target.verb.as_str(), "get" | "list" | "watch");
    if write && resource.storage == definitions::COLLECTION {
        definitions::serve_all(core, &target.name, &body);
    }
    Ok(answer)
}

fn main_resource(
    core: &Arc<Core>,
    resource: &Arc<Resource>,
    request: &Request,
    body: &Bytes,
    sends: WatchSends,
) -> Result<Response<Body>, Failure> {
    let target = &request.target;
    let mut write = Write::new(core, resource, request);
    match target.verb.as_str() {
        "get" => read::get(core, resource, request),
        "list" => read::list(core, resource, request),
        "watch" => watch::watch(core, resource, request, sends),
        "create" => {
            let written = write.create(codec::read(request, body)?)?;
            written_answer(request, resource, &write, &written)
        }
        "update" => {
            let written = write.replace(&codec::read(request, body)?)?;
            written_answer(request, resource, &write, &written)
        }
        "patch" => {
            let written = write.patch(body)?;
            written_answer(request, resource, &write, &written)
        }
        "delete" => {
            let options = DeleteOptions::read(request, delete_body(request, body)?.as_ref());
            match delete::delete(core, resource, (&target.namespace, &target.name), &options, Some(request))? {
                Gone::Object(value) => codec::object(request, resource, 200, &value),
                Gone::Status(status) => Ok(codec::json(200, &status)),
            }
        }
        "deletecollection" => delete_collection(core, resource, request, body),
        _ => Err(Failure::method_not_allowed()),
    }
}

fn delete_body(request: &Request, body: &Bytes) -> Result<Option<Value>, Failure> {
    if body.is_empty() { Ok(None) } else { codec::read(request, body).map(Some) }
}

fn delete_collection(
    core: &Core,
    resource: &Resource,
    request: &Request,
    body: &Bytes,
) -> Result<Response<Body>, Failure> {
    let options = DeleteOptions::read(request, delete_body(request, body)?.as_ref());
    let selected = read::select(core, resource, request)?;
    let mut items = Vec::new();
    for (_, object) in selected.items {
        let (namespace, name) = (meta(&object.value, "namespace"), meta(&object.value, "name"));
        match delete::delete(core, resource, (namespace, name), &options, Some(request)) {
            Ok(_) => items.push(object.value.clone()),
            Err(failure) if failure.code() == 404 => {}
            Err(failure) => return Err(failure),
        }
    }
    let list = json!({
        "kind": resource.list_kind, "apiVersion": resource.api_version(),
        "metadata": {"resourceVersion": core.store.version().to_string()}, "items": items,
    });
    Ok(codec::json(200, &list))
}

fn written_answer(
    request: &Request,
    resource: &Resource,
    write: &Write<'_>,
    written: &Written,
) -> Result<Response<Body>, Failure> {
    let mut response = codec::object(request, resource, if written.created { 201 } else { 200 }, &written.value)?;
    for warning in &write.warnings {
        let quoted = Value::String(warning.clone()).to_string();
        if let Ok(value) = HeaderValue::from_str(&format!("299 - {quoted}")) {
            response.headers_mut().append(header::WARNING, value);
        }
    }
    Ok(response)
}

fn subresource(
    core: &Arc<Core>,
    resource: &Arc<Resource>,
    request: &Request,
    body: &Bytes,
) -> Result<Response<Body>, Failure> {
    let target = &request.target;
    let found = resource.subresources.iter().find(|s| s.name == target.subresource);
    // Of a custom resource, a path that its version does not declare reads as if the object were not there.
    let found = found.ok_or_else(|| match &resource.custom {
        Some(_) => Failure::not_found(resource, &target.name),
        None => Failure::unknown_resource(),
    })?;
    if !found.verbs.contains(&target.verb) {
        return Err(Failure::method_not_allowed());
    }
    let mut write = Write::new(core, resource, request);
    match (target.subresource.as_str(), target.verb.as_str()) {
        ("binding", _) => {
            let status = subresources::bind(core, resource, request, &target.name, &codec::read(request, body)?)?;
            Ok(codec::json(201, &status))
        }
        ("eviction", _) => {
            let status = subresources::evict(core, resource, request, &target.name, &codec::read(request, body)?)?;
            Ok(codec::json(201, &status))
        }
        ("token", _) => {
            let token = tokens::request(core, resource, request, codec::read(request, body)?)?;
            Ok(codec::json(201, &token))
        }
        ("status" | "resize" | "ephemeralcontainers", "get") => read::get(core, resource, request),
        ("status" | "finalize" | "resize" | "ephemeralcontainers", "update") => {
            let written = write.replace(&codec::read(request, body)?)?;
            written_answer(request, resource, &write, &written)
        }
        ("status" | "resize" | "ephemeralcontainers", "patch") => {
            let written = write.patch(body)?;
            written_answer(request, resource, &write, &written)
        }
        // No kubelet stands behind this server to stream from, and nothing scales.
        _ => Err(Failure::not_served(&format!("{}/{}", resource.plural, target.subresource))),
    }
}

/// Resources without objects: reviews, bindings, component statuses.
fn virtual_resource(
    core: &Arc<Core>,
    resource: &Arc<Resource>,
    request: &Request,
    body: &Bytes,
) -> Result<Response<Body>, Failure> {
    match resource.plural.as_str() {
        "bindings" => {
            let binding = codec::read(request, body)?;
            let registry = core.registry.load();
            let pods = registry.find("", "v1", "pods").ok_or_else(Failure::unknown_resource)?;
            let status = subresources::bind(core, &pods, request, meta(&binding, "name"), &binding)?;
            Ok(codec::json(201, &status))
        }
        "componentstatuses" => {
            let list = json!({"kind": "ComponentStatusList", "apiVersion": "v1", "metadata": {}, "items": []});
            Ok(codec::json(200, &list))
        }
        _ => {
            let review = reviews::review(core, resource, request, codec::read(request, body)?)?;
            Ok(codec::json(201, &typed(resource, &review)))
        }
    }
}

fn plain_path(core: &Core, method: &Method, request: &Request) -> Result<Response<Body>, Failure> {
    let registry = core.registry.load_full();
    if *method != Method::GET && *method != Method::HEAD {
        return Err(Failure::method_not_allowed());
    }
    let aggregated = discovery::wants_aggregated(&request.accept);
    let parts: Vec<&str> = request.path.split('/').filter(|p| !p.is_empty()).collect();
    let text = |body: &str| Ok(codec::bytes(200, "text/plain; charset=utf-8", body.as_bytes().to_vec()));
    match parts.as_slice() {
        ["readyz" | "livez" | "healthz", ..] => text("ok"),
        ["version"] => Ok(codec::json(200, &discovery::version())),
        ["api"] if aggregated => {
            let body = discovery::aggregated_core(&registry).to_string().into_bytes();
            Ok(codec::bytes(200, discovery::AGGREGATED, body))
        }
        ["apis"] if aggregated => {
            let body = discovery::aggregated_groups(&registry).to_string().into_bytes();
            Ok(codec::bytes(200, discovery::AGGREGATED, body))
        }
        ["api"] => Ok(codec::json(200, &discovery::core_versions(&core.address()))),
        ["apis"] => Ok(codec::json(200, &discovery::groups(&registry))),
        ["api", "v1"] => Ok(codec::json(200, &discovery::resources(&registry, "", "v1"))),
        ["apis", group] => {
            let found = registry.groups().iter().find(|(g, _)| g == group).ok_or_else(Failure::unknown_resource)?;
            let mut body = discovery::group(&found.0, &found.1);
            body["kind"] = json!("APIGroup");
            body["apiVersion"] = json!("v1");
            Ok(codec::json(200, &body))
        }
        ["apis", group, version] => {
            let known = registry.groups().iter().any(|(g, v)| g == group && v.iter().any(|v| v == version));
            if !known {
                return Err(Failure::unknown_resource());
            }
            Ok(codec::json(200, &discovery::resources(&registry, group, version)))
        }
        ["openapi", "v3"] => {
            let body = openapi::index(&registry).to_string().into_bytes();
            Ok(codec::bytes(200, "text/plain; charset=utf-8", body))
        }
        ["openapi", "v3", rest @ ..] => {
            let document = openapi::document(&registry, &rest.join("/")).ok_or_else(Failure::unknown_resource)?;
            Ok(codec::json(200, &document))
        }
        _ => Err(Failure::unknown_resource()),
    }
}

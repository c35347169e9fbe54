//! `pods/<scheme>:<name>:<port>/proxy/<path>`: a request to a pod, on behalf of the client.

use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, Method, Request as HttpRequest, Response, Uri, header};
use kube::{Client, Config};

use super::core::Core;
use super::failure::Failure;
use super::object::{key, text};
use super::registry::Resource;
use super::request::Request;

/// What is meant for the API server itself, or for one connection. Only the API server may see the user's token.
const OWN_HEADERS: [header::HeaderName; 4] =
    [header::AUTHORIZATION, header::HOST, header::CONNECTION, header::CONTENT_LENGTH];

/// Sends the request on and gives back the pod's answer. A real server refuses loopback addresses of pods; here they are all of
/// one machine.
pub async fn proxy(
    core: &Core,
    pods: &Resource,
    request: &Request,
    method: Method,
    uri: &Uri,
    headers: &HeaderMap,
    body: Bytes,
) -> Result<Response<Body>, Failure> {
    let (scheme, name, port) = match request.target.name.split(':').collect::<Vec<_>>().as_slice() {
        [name] => ("http", *name, None),
        [name, port] => ("http", *name, Some(*port)),
        [scheme @ ("http" | "https"), name, port] => (*scheme, *name, Some(*port).filter(|port| !port.is_empty())),
        _ => return Err(Failure::bad_request(format!("invalid pod request {:?}", request.target.name))),
    };
    let pod = core.store.get(&pods.storage, &key(&request.target.namespace, name));
    let pod = pod.ok_or_else(|| Failure::not_found(pods, name))?;
    let address = text(&pod.value, &["status", "podIP"]);
    if address.is_empty() {
        return Err(Failure::bad_request("address not allowed"));
    }
    let address = if address.contains(':') { format!("[{address}]") } else { address.to_owned() };
    let first = pod.value["spec"]["containers"][0]["ports"][0]["containerPort"].as_u64();
    let port = port.map(str::to_owned).or(first.map(|port| port.to_string())).unwrap_or_else(|| "80".to_owned());
    let path = uri.path().split_once("/proxy").map_or("", |(_, path)| path);
    let query = uri.query().map(|query| format!("?{query}")).unwrap_or_default();
    let unreachable = |error: &dyn std::fmt::Display| {
        Failure::unavailable(format!("error trying to reach service: {scheme}://{address}:{port}: {error}"))
    };
    let base: Uri = format!("{scheme}://{address}:{port}").parse().map_err(|error| unreachable(&error))?;
    let mut sent = HttpRequest::builder().method(method).uri(format!("/{}{query}", path.trim_start_matches('/')));
    for (name, value) in headers.iter().filter(|(name, _)| !OWN_HEADERS.contains(name)) {
        sent = sent.header(name, value);
    }
    let sent = sent.body(kube::client::Body::from(body.to_vec())).map_err(|error| unreachable(&error))?;
    let mut config = Config::new(base);
    config.accept_invalid_certs = true;
    config.default_retry = false;
    let client = Client::try_from(config).map_err(|error| unreachable(&error))?;
    let (mut head, body) = client.send(sent).await.map_err(|error| unreachable(&error))?.into_parts();
    let bytes = body.collect_bytes().await.map_err(|error| unreachable(&error))?;
    head.headers.remove(header::TRANSFER_ENCODING);
    Ok(Response::from_parts(head, Body::from(bytes)))
}

//! `pods/<name>/portforward`: streams to ports of a pod over one WebSocket, as a kubelet speaks `v4.channel.k8s.io`. Older ways, over
//! SPDY, are not served.

use std::net::Ipv4Addr;
use std::sync::Arc;

use axum::body::Body;
use axum::http::{HeaderMap, Response, header};
use futures::{SinkExt as _, StreamExt as _};
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::mpsc;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
use tokio_tungstenite::tungstenite::protocol::Role;

use super::core::Core;
use super::failure::Failure;
use super::object::{key, text};
use super::request::{Request, Target};
use super::resource::Resource;

const PROTOCOL: &str = "v4.channel.k8s.io";
/// Most bytes of a frame.
const PIECE: usize = 16 << 10;

/// Refuses who may not: a GET that becomes a stream takes `create` too, and for that a server gives no reason.
pub fn authorize(core: &Core, request: &Request) -> Result<(), Failure> {
    let target = Target { verb: "create".to_owned(), ..request.target.clone() };
    if core.users.allowed(&request.user, &target, &core.store) {
        return Ok(());
    }
    let name = &target.name;
    Err(Failure::forbidden(format!("pods \"{name}\" is forbidden: "), json!({"name": name, "kind": "pods"})))
}

/// Begins the streams. The loopback of every pod is that of this machine, and a pod is where the ports are that it declares.
pub fn forward(
    core: &Arc<Core>,
    pods: &Resource,
    request: &Request,
    headers: &HeaderMap,
    upgrade: Option<OnUpgrade>,
) -> Result<Response<Body>, Failure> {
    let (namespace, name) = (&request.target.namespace, &request.target.name);
    let pod = core.store.get(&pods.storage, &key(namespace, name)).ok_or_else(|| Failure::not_found(pods, name))?;
    if text(&pod.value, &["spec", "nodeName"]).is_empty() {
        return Err(Failure::bad_request(format!("pod {name} does not have a host assigned")));
    }
    if text(&pod.value, &["status", "phase"]) != "Running" {
        return Err(Failure::internal(format!("pod not found (\"{name}_{namespace}\")")));
    }
    let word = |name| headers.get(name).and_then(|value| value.to_str().ok());
    let spoken = word(header::SEC_WEBSOCKET_PROTOCOL).unwrap_or_default();
    let (Some(upgrade), Some(nonce), true) =
        (upgrade, word(header::SEC_WEBSOCKET_KEY), spoken.split(',').any(|protocol| protocol.trim() == PROTOCOL))
    else {
        return Err(Failure::bad_request("Upgrade request required"));
    };
    let ports: Option<Vec<u16>> = request.query.text("ports").split(',').map(|port| port.parse().ok()).collect();
    let ports = ports.ok_or_else(|| Failure::bad_request("query parameter \"ports\" is required"))?;
    let ports = ports.into_iter().map(|port| (port, declares(&pod.value, port))).collect();
    tokio::spawn(serve(Arc::clone(core), upgrade, ports));
    let response = Response::builder()
        .status(101)
        .header(header::CONNECTION, "Upgrade")
        .header(header::UPGRADE, "websocket")
        .header(header::SEC_WEBSOCKET_ACCEPT, derive_accept_key(nonce.as_bytes()))
        .header(header::SEC_WEBSOCKET_PROTOCOL, PROTOCOL);
    response.body(Body::empty()).map_err(|error| Failure::internal(error.to_string()))
}

fn declares(pod: &Value, port: u16) -> bool {
    let containers = pod["spec"]["containers"].as_array().into_iter().flatten();
    let mut ports = containers.flat_map(|container| container["ports"].as_array().into_iter().flatten());
    ports.any(|declared| declared["containerPort"] == port)
}

/// Two channels for each port: its bytes, and why it cannot be reached. Both begin with the port.
async fn serve(core: Arc<Core>, upgrade: OnUpgrade, ports: Vec<(u16, bool)>) {
    let Ok(upgraded) = upgrade.await else { return };
    let (mut sink, mut source) =
        WebSocketStream::from_raw_socket(TokioIo::new(upgraded), Role::Server, None).await.split();
    let (out, mut frames) = mpsc::channel(16);
    let mut writers: Vec<Option<OwnedWriteHalf>> = Vec::new();
    for ((port, declared), channel) in ports.into_iter().zip((0..=u8::MAX).step_by(2)) {
        for channel in [channel, channel + 1] {
            if sink.send(frame(channel, &port.to_le_bytes())).await.is_err() {
                return;
            }
        }
        let connected = if declared { TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await.ok() } else { None };
        let (reader, writer) = connected.map(TcpStream::into_split).unzip();
        if let Some(reader) = reader {
            tokio::spawn(read(reader, channel, out.clone()));
        } else {
            let why =
                format!("error forwarding port {port} to pod: dial tcp4 127.0.0.1:{port}: connect: connection refused");
            let _ = sink.send(frame(channel + 1, why.as_bytes())).await;
        }
        writers.push(writer);
    }
    drop(out);
    let mut blackouts = core.faults.blackouts();
    loop {
        tokio::select! {
            // All ports have ended where there is no more.
            piece = frames.recv() => {
                let Some(piece) = piece else { break };
                if sink.send(piece).await.is_err() {
                    return;
                }
            }
            message = source.next() => match message {
                Some(Ok(Message::Binary(bytes))) if !bytes.is_empty() => {
                    let port = writers.get_mut(usize::from(bytes[0] / 2)).and_then(Option::as_mut);
                    if let Some(port) = port && port.write_all(&bytes[1..]).await.is_err() {
                        break;
                    }
                }
                Some(Ok(Message::Close(_)) | Err(_)) | None => break,
                Some(Ok(_)) => {}
            },
            _ = blackouts.changed() => return,
        }
    }
    let _ = sink.send(Message::Close(None)).await;
}

fn frame(channel: u8, bytes: &[u8]) -> Message {
    Message::binary([&[channel], bytes].concat())
}

async fn read(mut port: OwnedReadHalf, channel: u8, out: mpsc::Sender<Message>) {
    let mut piece = vec![0; PIECE];
    while let Ok(read @ 1..) = port.read(&mut piece).await {
        if out.send(frame(channel, &piece[..read])).await.is_err() {
            return;
        }
    }
}

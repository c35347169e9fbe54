//! Local processes that send what no kubelet sends: nothing breaks, and the kubelet is served meanwhile.

use std::os::unix::fs::PermissionsExt;

use baton::contract::deviceplugin as api;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

use super::test_node::{PATIENCE, TestNode};
use crate::prelude::*;
use crate::skip::skipped;

#[tokio::test]
async fn malformed_oversized_and_endless_calls_do_no_harm() {
    let node = TestNode::new(NodeSpec::new("hostile"));
    let (_kubelet, daemon) = node.start(NVIDIA_GPU, 8).await;
    let socket = node.sockets().into_iter().next().unwrap();
    assert_eq!(std::fs::metadata(&socket).unwrap().permissions().mode() & 0o777, 0o600);

    // Not HTTP/2, half of HTTP/2, and HTTP/2 with a frame that claims 16 MiB.
    let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    let giant = [&preface[..], b"\xff\xff\xff\x00\x00\x00\x00\x00\x01"].concat();
    for bytes in [&b"GET / HTTP/1.1\r\n\r\n"[..], &preface[..10], &giant, &[0u8; 4096]] {
        let mut stream = UnixStream::connect(&socket).await.unwrap();
        stream.write_all(bytes).await.unwrap();
        let mut answer = [0; 1024];
        let _ = tokio::time::timeout(Duration::from_millis(200), stream.read(&mut answer)).await;
    }
    // A message above the limit.
    let channel = dial(&socket, PATIENCE).await.unwrap();
    let mut client = DevicePluginClient::new(channel).max_encoding_message_size(64 << 20);
    let ids = vec!["x".repeat(1 << 20); 5];
    let request = api::AllocateRequest { container_requests: vec![api::ContainerAllocateRequest { devices_ids: ids }] };
    let refused = client.allocate(request).await.unwrap_err();
    assert!(
        matches!(refused.code(), tonic::Code::OutOfRange | tonic::Code::ResourceExhausted | tonic::Code::Internal),
        "{refused}"
    );
    // A flood of streams that are not read.
    let mut held = Vec::new();
    for _ in 0..12 {
        held.push(client.list_and_watch(api::Empty {}).await.unwrap());
    }
    node.machine.xid(0, 79).unwrap();
    node.until(NVIDIA_GPU, 7).await;
    drop(held);
    node.until(NVIDIA_GPU, 8).await;
    assert!(daemon.runs());
    daemon.stop().await;
}

#[tokio::test]
async fn silent_connections_do_not_keep_the_kubelet_out() {
    let node = TestNode::new(NodeSpec::new("silent"));
    let (kubelet, daemon) = node.start(NVIDIA_GPU, 8).await;
    let mut silent = Vec::new();
    for socket in node.sockets() {
        for _ in 0..8 {
            silent.push(UnixStream::connect(&socket).await.unwrap());
        }
    }
    kubelet.restart().await.unwrap();
    node.until(NVIDIA_GPU, 8).await;
    daemon.stop().await;
}

/// One HTTP/2 frame.
fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// The header block of a call: POST, http, this path, `localhost`.
fn call(method: &str) -> Vec<u8> {
    let path = format!("/v1beta1.DevicePlugin/{method}");
    let mut block = vec![0x83, 0x86, 0x04, u8::try_from(path.len()).unwrap()];
    block.extend(path.as_bytes());
    block.extend(b"\x01\x09localhost");
    block
}

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RESET: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GO_AWAY: u8 = 7;
const WINDOW: u8 = 8;
const CONTINUATION: u8 = 9;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;

/// What a process sends that wants to do harm within the protocol, or just beside it.
fn attacks() -> Vec<(&'static str, Vec<u8>)> {
    let streams = |count: u32| (0..count).map(|n| 2 * n + 1);
    let reset = streams(20_000).flat_map(|id| {
        let open = frame(HEADERS, END_HEADERS, id, &call("ListAndWatch"));
        [open, frame(RESET, 0, id, &8u32.to_be_bytes())].concat()
    });
    let endless = (0..8192).flat_map(|_| frame(CONTINUATION, 0, 1, &[0x40, 1, b'a', 1, b'b'].repeat(200)));
    let flood = |one: Vec<u8>| one.repeat(50_000);
    let calls = streams(5000).flat_map(|id| {
        let open = frame(HEADERS, END_HEADERS, id, &call("Allocate"));
        [open, frame(DATA, END_STREAM, id, &[0, 0, 0, 0, 4, 0x0a, 2, 0x0a, 0])].concat()
    });
    vec![
        ("streams that are opened and reset", reset.collect()),
        ("headers without end", [frame(HEADERS, 0, 1, &call("Allocate")), endless.collect()].concat()),
        ("pings", flood(frame(PING, 0, 0, &[7; 8]))),
        ("settings", flood(frame(SETTINGS, 0, 0, &[]))),
        ("a window that overflows", flood(frame(WINDOW, 0, 0, &0x7fff_ffffu32.to_be_bytes()))),
        ("data of no stream", frame(DATA, 0, 0, b"x")),
        ("headers that are no headers", frame(HEADERS, END_HEADERS, 1, &[0xff; 64])),
        ("a message that claims 4 GiB", {
            let open = frame(HEADERS, END_HEADERS, 1, &call("Allocate"));
            [open, frame(DATA, 0, 1, &[0, 0xff, 0xff, 0xff, 0xff])].concat()
        }),
        ("a message that is said to be packed", {
            let open = frame(HEADERS, END_HEADERS, 1, &call("Allocate"));
            [open, frame(DATA, END_STREAM, 1, &[1, 0, 0, 0, 1, 0])].concat()
        }),
        ("a goodbye and calls after it", [frame(GO_AWAY, 0, 0, &[0; 8]), calls.collect()].concat()),
    ]
}

#[tokio::test]
async fn floods_of_frames_and_streams_leave_the_daemon_small_and_serving() {
    let mut node = TestNode::new(NodeSpec::new("floods"));
    node.options.gpu_sharing = false;
    let (_kubelet, daemon) = node.start(NVIDIA_GPU, 8).await;
    let socket = node.sockets().into_iter().next().unwrap();
    let before = resident_kib();
    for (what, bytes) in attacks() {
        let mut stream = UnixStream::connect(&socket).await.unwrap();
        let start = [&b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"[..], &frame(SETTINGS, 0, 0, &[])].concat();
        let send = async {
            stream.write_all(&start).await?;
            stream.write_all(&bytes).await
        };
        // It may be cut off in the middle.
        let sent = tokio::time::timeout(Duration::from_millis(500), send).await;
        println!("{what}: {} bytes, {sent:?}", bytes.len());
        let mut client = DevicePluginClient::new(dial(&socket, PATIENCE).await.unwrap());
        let served = tokio::time::timeout(PATIENCE, client.get_device_plugin_options(api::Empty {})).await;
        assert!(served.expect("it answers others meanwhile").is_ok(), "{what}");
    }
    let grown = resident_kib().saturating_sub(before);
    println!("resident memory grew by {grown} KiB");
    assert!(grown < 64 << 10, "{grown} KiB");
    node.machine.xid(0, 79).unwrap();
    node.until(NVIDIA_GPU, 7).await;
    node.until(NVIDIA_GPU, 8).await;
    assert!(daemon.runs());
    daemon.stop().await;
}

/// Of this process, which is daemon, kubelet and attacker at once.
fn resident_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.split_whitespace().next().unwrap().parse().unwrap()
}

const STRANGER_SOCKET: &str = "BATON_TEST_STRANGER_SOCKET";

#[tokio::test]
async fn a_process_of_another_user_is_turned_away_even_where_the_file_lets_it_in() {
    if !rustix::process::geteuid().is_root() {
        return skipped("only root can become another user");
    }
    let node = TestNode::new(NodeSpec::new("stranger"));
    let (_kubelet, daemon) = node.start(NVIDIA_GPU, 8).await;
    let socket = node.sockets().into_iter().next().unwrap();
    // As if every directory on the way to the socket were open to all.
    for path in socket.ancestors().take_while(|path| path.starts_with(node.path(""))) {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o777)).unwrap();
    }
    let of_user = |uid: u32| {
        let mut command = tokio::process::Command::new("/proc/self/exe");
        command.args(["--ignored", "--exact", "life::hostile::connects_as_a_stranger", "--nocapture"]);
        command.env(STRANGER_SOCKET, &socket).uid(uid).gid(uid);
        command
    };
    for (uid, expected) in [(65_534, "turned away"), (0, "let in")] {
        let output = of_user(uid).output().await.unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(text.contains(expected), "uid {uid}: {text}{}", String::from_utf8_lossy(&output.stderr));
    }
    daemon.stop().await;
}

#[test]
#[ignore = "run by another test as another user"]
fn connects_as_a_stranger() {
    use std::io::{Read, Write};
    let mut stream = std::os::unix::net::UnixStream::connect(std::env::var(STRANGER_SOCKET).unwrap()).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut answer = [0; 9];
    let hello = [&b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"[..], &frame(SETTINGS, 0, 0, &[])].concat();
    let spoken = stream.write_all(&hello).and_then(|()| stream.read_exact(&mut answer));
    println!("{}", if spoken.is_ok() { "let in" } else { "turned away" });
}

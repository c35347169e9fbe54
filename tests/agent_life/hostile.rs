//! Local processes that send what no kubelet sends: nothing breaks, and the kubelet is served meanwhile.

use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use baton::agent::kubelet::register::dial;
use baton::contract::deviceplugin as api;
use baton::contract::deviceplugin::device_plugin_client::DevicePluginClient;
use baton::contract::key::NVIDIA_GPU;
use baton::sim::hardware::NodeSpec;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

use super::rig::{PATIENCE, Rig};

#[tokio::test]
async fn malformed_oversized_and_endless_calls_do_no_harm() {
    let rig = Rig::new(NodeSpec::new("hostile"));
    let _kubelet = rig.kubelet().await;
    let daemon = rig.daemon();
    rig.until(NVIDIA_GPU, 8).await;
    let socket = rig.sockets().into_iter().next().unwrap();
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
    // A flood of streams that nobody reads.
    let mut held = Vec::new();
    for _ in 0..12 {
        held.push(client.list_and_watch(api::Empty {}).await.unwrap());
    }
    rig.machine.xid(0, 79).unwrap();
    rig.until(NVIDIA_GPU, 7).await;
    drop(held);
    rig.until(NVIDIA_GPU, 8).await;
    assert!(daemon.runs());
    daemon.stop().await;
}

#[tokio::test]
async fn silent_connections_do_not_keep_the_kubelet_out() {
    let rig = Rig::new(NodeSpec::new("silent"));
    let kubelet = rig.kubelet().await;
    let daemon = rig.daemon();
    rig.until(NVIDIA_GPU, 8).await;
    let mut silent = Vec::new();
    for socket in rig.sockets() {
        for _ in 0..8 {
            silent.push(UnixStream::connect(&socket).await.unwrap());
        }
    }
    kubelet.restart().await.unwrap();
    rig.until(NVIDIA_GPU, 8).await;
    daemon.stop().await;
}

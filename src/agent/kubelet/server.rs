//! One gRPC server on one socket, with limits against whatever a local process may send.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tonic::transport::Server;

use super::service::{PluginService, START, STARTS};
use super::socket::{self, CONNECTIONS, Incoming, Unlink};
use baton_contract::deviceplugin::device_plugin_server::DevicePluginServer;
use baton_runtime::vital;

/// Largest message in either direction, as gRPC's default and the kubelet's limit have it.
const MESSAGE: usize = 4 << 20;
/// Streams of one connection at a time: starts that wait leave room for calls, which come by the same connection.
const STREAMS: u32 = 16 + STARTS;
/// Largest header block.
const HEADERS: u32 = 16 << 10;

/// A listening server.
#[derive(Debug)]
pub struct PluginServer {
    path: PathBuf,
    stop: CancellationToken,
    streams: CancellationToken,
    connections: Arc<Semaphore>,
    server: JoinHandle<()>,
    file: Unlink,
}

impl PluginServer {
    /// Listens at `path` and serves at once.
    pub fn start(path: PathBuf, mut service: PluginService) -> io::Result<Self> {
        let listener = socket::listen(&path)?;
        let file = Unlink::new(path.clone());
        let stop = service.stop.child_token();
        let streams = stop.child_token();
        service.stop = streams.clone();
        // Each call has its own limit; a start may wait longest.
        let longest = START + Duration::from_secs(1);
        let resource = service.resource.clone();
        let plugin = DevicePluginServer::new(service);
        let plugin = plugin.max_decoding_message_size(MESSAGE).max_encoding_message_size(MESSAGE);
        let router = Server::builder()
            .timeout(longest)
            .concurrency_limit_per_connection(STREAMS as usize)
            .max_concurrent_streams(Some(STREAMS))
            .http2_max_header_list_size(Some(HEADERS))
            .http2_max_pending_accept_reset_streams(Some(STREAMS as usize))
            .http2_max_local_error_reset_streams(Some(64))
            .add_service(plugin);
        let ended = stop.clone().cancelled_owned();
        let incoming = Incoming::new(listener);
        let connections = incoming.permits();
        let server = vital::spawn("device plugin socket", async move {
            if let Err(error) = router.serve_with_incoming_shutdown(incoming.into_stream(), ended).await {
                tracing::error!(%resource, %error, "the server of a device plugin socket ended");
            }
        });
        Ok(Self { path, stop, streams, connections, server, file })
    }

    /// The file is still there and ours. The kubelet deletes every socket when it starts.
    pub fn is_in_place(&self) -> bool {
        self.file.is_in_place()
    }

    /// Ends the streams, and resolves when no peer is connected any more, at the latest after `limit`. Calls are still served.
    pub async fn end_streams(&self, limit: Duration) {
        self.streams.cancel();
        let _ = tokio::time::timeout(limit, self.connections.acquire_many(CONNECTIONS)).await;
    }

    /// Lets the calls in hand end in the background.
    pub fn retire(self, grace: Duration) {
        tokio::spawn(self.finish(grace));
    }

    /// `true` when the server ended by itself.
    pub fn is_dead(&self) -> bool {
        self.server.is_finished()
    }

    /// Stops accepting, lets the calls in hand end for at most `grace`, and closes.
    pub async fn finish(self, grace: Duration) {
        self.stop.cancel();
        let mut server = self.server;
        if tokio::time::timeout(grace, &mut server).await.is_err() {
            tracing::warn!(socket = %self.path.display(), "calls still in progress at the end were ended");
            server.abort();
        }
    }
}

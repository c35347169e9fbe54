//! The connection to one device plugin and the calls made to it.

use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use tonic::transport::Channel;
use tonic::{Request, Status};

use super::grants::Ids;
use baton_contract::deviceplugin::device_plugin_client::DevicePluginClient;
use baton_contract::deviceplugin::{
    AllocateRequest, AllocateResponse, ContainerAllocateRequest, ContainerPreferredAllocationRequest,
    DevicePluginOptions, Empty, PreStartContainerRequest, PreferredAllocationRequest,
};

/// A connected plugin.
#[derive(Debug)]
pub(super) struct Plugin {
    socket: PathBuf,
    channel: Channel,
    closed: CancellationToken,
}

impl Plugin {
    pub fn new(socket: PathBuf, channel: Channel) -> Self {
        Self { socket, channel, closed: CancellationToken::new() }
    }

    /// Where it was dialled.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    pub fn client(&self) -> DevicePluginClient<Channel> {
        DevicePluginClient::new(self.channel.clone())
    }

    /// Closes the connection; calls in flight fail.
    pub fn close(&self) {
        self.closed.cancel();
    }

    /// Asks for the plugin's options. No deadline.
    pub async fn options(&self) -> Result<DevicePluginOptions, Status> {
        let mut client = self.client();
        self.open(client.get_device_plugin_options(Empty {})).await.map(tonic::Response::into_inner)
    }

    /// Asks which devices the plugin prefers. No deadline.
    pub async fn preferred(&self, offered: Vec<String>, must_include: Vec<String>, size: usize) -> Result<Ids, Status> {
        let request = PreferredAllocationRequest {
            container_requests: vec![ContainerPreferredAllocationRequest {
                available_device_i_ds: offered,
                must_include_device_i_ds: must_include,
                allocation_size: i32::try_from(size).unwrap_or(i32::MAX),
            }],
        };
        let mut client = self.client();
        let response = self.open(client.get_preferred_allocation(request)).await?.into_inner();
        Ok(response
            .container_responses
            .into_iter()
            .next()
            .map(|first| first.device_i_ds)
            .into_iter()
            .flatten()
            .collect())
    }

    /// Allocates devices for one container. No deadline.
    pub async fn allocate(&self, ids: Vec<String>) -> Result<AllocateResponse, Status> {
        let request = AllocateRequest { container_requests: vec![ContainerAllocateRequest { devices_ids: ids }] };
        let mut client = self.client();
        self.open(client.allocate(request)).await.map(tonic::Response::into_inner)
    }

    /// Says to the plugin that a container is about to start.
    pub async fn pre_start(&self, ids: Vec<String>, timeout: Duration) -> Result<(), Status> {
        let mut request = Request::new(PreStartContainerRequest { devices_ids: ids });
        request.set_timeout(timeout);
        let mut client = self.client();
        let call = tokio::time::timeout(timeout, self.open(client.pre_start_container(request)));
        call.await.map_err(|_| Status::deadline_exceeded("context deadline exceeded"))?.map(|_| ())
    }

    /// The result of a call, which fails when the connection is closed.
    pub async fn open<T>(&self, call: impl Future<Output = Result<T, Status>>) -> Result<T, Status> {
        tokio::select! {
            () = self.closed.cancelled() => Err(Status::cancelled("grpc: the client connection is closing")),
            result = call => result,
        }
    }
}

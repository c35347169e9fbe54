//! Another device plugin, which serves `nvidia.com/gpu` and answers with the GPUs that the kubelet chose.

use std::pin::Pin;

use baton::contract::deviceplugin::device_plugin_server::{DevicePlugin, DevicePluginServer};
use baton::contract::deviceplugin::registration_client::RegistrationClient;
use baton::contract::deviceplugin::{
    AllocateRequest, AllocateResponse, ContainerAllocateResponse, Device, DevicePluginOptions, Empty,
    ListAndWatchResponse, PreStartContainerRequest, PreStartContainerResponse, PreferredAllocationRequest,
    PreferredAllocationResponse, RegisterRequest,
};
use futures::Stream;
use hyper_util::rt::TokioIo;
use tokio::net::{UnixListener, UnixStream};
use tokio_stream::wrappers::{ReceiverStream, UnixListenerStream};
use tonic::transport::{Endpoint, Server};
use tonic::{Request, Response, Status};

use crate::prelude::*;

/// Runs until it is dropped; its socket goes with it.
pub struct Plugin {
    stop: CancellationToken,
    socket: PathBuf,
}

/// Ids that it offers; behind `::` the number of a replica, as HAMi and time-slicing have it.
#[derive(Clone)]
struct Service {
    ids: Vec<String>,
    stop: CancellationToken,
}

impl Plugin {
    pub async fn start(dir: PathBuf, ids: Vec<String>) -> Self {
        let (stop, socket) = (CancellationToken::new(), dir.join("nvidia-gpu.sock"));
        let listener = UnixListenerStream::new(UnixListener::bind(&socket).unwrap());
        let service = DevicePluginServer::new(Service { ids, stop: stop.clone() });
        let served = Server::builder()
            .add_service(service)
            .serve_with_incoming_shutdown(listener, stop.clone().cancelled_owned());
        tokio::spawn(async { served.await.unwrap() });
        let kubelet = dir.join("kubelet.sock");
        let connector = tower::service_fn(move |_: tonic::transport::Uri| {
            let kubelet = kubelet.clone();
            async move { UnixStream::connect(kubelet).await.map(TokioIo::new) }
        });
        let channel = Endpoint::from_static("http://localhost").connect_with_connector(connector).await.unwrap();
        let request = RegisterRequest {
            version: "v1beta1".into(),
            endpoint: "nvidia-gpu.sock".into(),
            resource_name: key::NVIDIA_GPU.into(),
            options: None,
        };
        RegistrationClient::new(channel).register(request).await.unwrap();
        Self { stop, socket }
    }
}

impl Drop for Plugin {
    fn drop(&mut self) {
        self.stop.cancel();
        let _ = std::fs::remove_file(&self.socket);
    }
}

#[tonic::async_trait]
impl DevicePlugin for Service {
    type ListAndWatchStream = Pin<Box<dyn Stream<Item = Result<ListAndWatchResponse, Status>> + Send>>;

    async fn get_device_plugin_options(&self, _: Request<Empty>) -> Result<Response<DevicePluginOptions>, Status> {
        Ok(Response::new(DevicePluginOptions::default()))
    }

    async fn list_and_watch(&self, _: Request<Empty>) -> Result<Response<Self::ListAndWatchStream>, Status> {
        let device = |id: &String| Device { id: id.clone(), health: "Healthy".into(), topology: None };
        let devices = self.ids.iter().map(device).collect();
        let (messages, stream) = tokio::sync::mpsc::channel(1);
        messages.send(Ok(ListAndWatchResponse { devices })).await.unwrap();
        let stop = self.stop.clone();
        tokio::spawn(async move {
            stop.cancelled().await;
            drop(messages);
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(stream))))
    }

    async fn get_preferred_allocation(
        &self,
        _: Request<PreferredAllocationRequest>,
    ) -> Result<Response<PreferredAllocationResponse>, Status> {
        Err(Status::unimplemented("it did not offer that"))
    }

    async fn allocate(&self, request: Request<AllocateRequest>) -> Result<Response<AllocateResponse>, Status> {
        let answer = |ids: Vec<String>| {
            let gpus: Vec<&str> = ids.iter().map(|id| id.split("::").next().unwrap()).collect();
            ContainerAllocateResponse {
                envs: [("NVIDIA_VISIBLE_DEVICES".to_owned(), gpus.join(","))].into(),
                ..ContainerAllocateResponse::default()
            }
        };
        let requests = request.into_inner().container_requests;
        let container_responses = requests.into_iter().map(|request| answer(request.devices_ids)).collect();
        Ok(Response::new(AllocateResponse { container_responses }))
    }

    async fn pre_start_container(
        &self,
        _: Request<PreStartContainerRequest>,
    ) -> Result<Response<PreStartContainerResponse>, Status> {
        Err(Status::unimplemented("it did not offer that"))
    }
}

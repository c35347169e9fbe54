//! ListAndWatch, in front of the generated service: its lists are written into the stream as they are kept, see
//! [`Advertised::message`]. Every other call goes on to the generated code.

use std::convert::Infallible;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures::future::{BoxFuture, Ready, ready};
use prost::bytes::BufMut;
use tonic::body::Body;
use tonic::codec::{Codec, EncodeBuf, Encoder};
use tonic::server::{Grpc, NamedService, ServerStreamingService};
use tonic::{Request, Response, Status};
use tonic_prost::ProstDecoder;

use super::advertised::Advertised;
use super::service::{ListStream, PluginService};
use super::socket::Connection;
use baton_contract::deviceplugin::Empty;
use baton_contract::deviceplugin::device_plugin_server::{DevicePluginServer, SERVICE_NAME};

const PATH: &str = "/v1beta1.DevicePlugin/ListAndWatch";

/// All five calls of one resource name.
#[derive(Clone)]
pub struct PluginRoutes {
    service: PluginService,
    others: DevicePluginServer<PluginService>,
    largest: usize,
}

impl PluginRoutes {
    /// For `service`; no message is larger than `largest` bytes.
    pub fn new(service: PluginService, largest: usize) -> Self {
        let others = DevicePluginServer::new(service.clone());
        let others = others.max_decoding_message_size(largest).max_encoding_message_size(largest);
        Self { service, others, largest }
    }
}

impl NamedService for PluginRoutes {
    const NAME: &'static str = SERVICE_NAME;
}

impl tower::Service<http::Request<Body>> for PluginRoutes {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        if request.uri().path() != PATH {
            return self.others.call(request);
        }
        let (service, largest) = (self.service.clone(), Some(self.largest));
        Box::pin(async move {
            let mut grpc = Grpc::new(AsKept).apply_max_message_size_config(largest, largest);
            Ok(grpc.server_streaming(Lists(service), request).await)
        })
    }
}

struct Lists(PluginService);

impl ServerStreamingService<Empty> for Lists {
    type Response = Arc<Advertised>;
    type ResponseStream = ListStream;
    type Future = Ready<Result<Response<ListStream>, Status>>;

    fn call(&mut self, request: Request<Empty>) -> Self::Future {
        let asked = request.extensions().get::<Connection>().is_some_and(Connection::asked_for_options);
        ready(Ok(Response::new(self.0.listing(asked))))
    }
}

/// Lists as they are kept, requests as messages.
struct AsKept;

impl Codec for AsKept {
    type Encode = Arc<Advertised>;
    type Decode = Empty;
    type Encoder = Self;
    type Decoder = ProstDecoder<Empty>;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self::Decoder {
        ProstDecoder::default()
    }
}

impl Encoder for AsKept {
    type Item = Arc<Advertised>;
    type Error = Status;

    fn encode(&mut self, list: Arc<Advertised>, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        let message = list.message();
        buffer.reserve(message.len());
        buffer.put_slice(message);
        Ok(())
    }
}

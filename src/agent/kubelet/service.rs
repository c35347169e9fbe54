//! The five calls of one resource name, over the decisions that stand behind [`DeviceCalls`].

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::Arc;

use std::task::{Context, Poll};
use std::time::Duration;

use futures::future::BoxFuture;
use futures::{Stream, StreamExt};
use tokio::sync::{Semaphore, SemaphorePermit, watch};
use tokio_stream::wrappers::WatchStream;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status};

use super::advertised::Advertised;
use super::socket::Connection;
use baton_contract::deviceplugin::device_plugin_server::DevicePlugin;
use baton_contract::deviceplugin::{
    AllocateRequest, AllocateResponse, DevicePluginOptions, Empty, ListAndWatchResponse, PreStartContainerRequest,
    PreStartContainerResponse, PreferredAllocationRequest, PreferredAllocationResponse,
};

/// Calls of one socket that are worked on at once. The kubelet admits one pod at a time, but starts containers side by side.
const CALLS: usize = 8;
/// Starts of containers that may wait on one socket.
pub(super) const STARTS: u32 = 256;
/// The kubelet waits for the answer to a start for 30 s.
pub(super) const START: Duration = Duration::from_secs(28);

/// Answers the calls that need a decision. `resource` is the name whose socket was called.
pub trait DeviceCalls: Send + Sync + 'static {
    /// Allocate: an answer for each container, or an error that the pod's owner reads.
    fn allocate<'a>(
        &'a self,
        resource: &'a str,
        request: AllocateRequest,
    ) -> BoxFuture<'a, Result<AllocateResponse, Status>>;

    /// GetPreferredAllocation. Never an error: the kubelet would fail the pod.
    fn preferred<'a>(
        &'a self,
        resource: &'a str,
        request: PreferredAllocationRequest,
    ) -> BoxFuture<'a, PreferredAllocationResponse>;

    /// PreStartContainer: an error keeps the container from starting; the kubelet tries again.
    fn pre_start<'a>(
        &'a self,
        resource: &'a str,
        request: PreStartContainerRequest,
    ) -> BoxFuture<'a, Result<(), Status>>;
}

/// One resource name, as the kubelet calls it. Cheap to clone.
#[derive(Clone)]
pub struct PluginService {
    /// The name.
    pub resource: Arc<str>,
    /// The list, replaced whole on every change.
    pub list: watch::Receiver<Arc<Advertised>>,
    /// The decisions.
    pub calls: Arc<dyn DeviceCalls>,
    /// Open ListAndWatch streams.
    pub streams: Arc<watch::Sender<Streams>>,
    /// Ends the streams, so that the server can end.
    pub stop: CancellationToken,
    /// Longest time for one call.
    pub budget: Duration,
    /// Permits for calls.
    pub permits: Arc<Semaphore>,
    /// Permits for starts of containers, which may wait long: they never keep a call waiting.
    pub starts: Arc<Semaphore>,
}

/// ListAndWatch streams of one socket.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Streams {
    /// Open now, by number: whether its connection asked for our options first, as the kubelet does. Other processes of the node's
    /// administrator may look at the list as well.
    pub open: BTreeMap<u64, bool>,
    /// Opened since the start: the number of the last one.
    pub opened: u64,
}

impl PluginService {
    /// Permits for the calls of one service.
    pub fn permits() -> Arc<Semaphore> {
        Arc::new(Semaphore::new(CALLS))
    }

    /// Permits for the starts of its containers.
    pub fn starts() -> Arc<Semaphore> {
        Arc::new(Semaphore::new(STARTS as usize))
    }

    /// Resolves when the calls in hand have ended. Until the permits are dropped, no other begins.
    pub async fn quiet(&self) -> Option<SemaphorePermit<'_>> {
        self.permits.acquire_many(CALLS as u32).await.ok()
    }

    /// Runs one call within the budget and the number of permits; it waits for a permit within the budget too.
    async fn bounded<T>(&self, call: impl Future<Output = Result<T, Status>>) -> Result<Response<T>, Status> {
        let placed = async {
            let full = |_| Status::resource_exhausted(format!("{CALLS} calls for {} are in progress", self.resource));
            let _place = self.permits.acquire().await.map_err(full)?;
            call.await
        };
        match tokio::time::timeout(self.budget, placed).await {
            Ok(answer) => answer.map(Response::new),
            Err(_) => Err(Status::deadline_exceeded(format!("{}: no answer within {:?}", self.resource, self.budget))),
        }
    }
}

#[tonic::async_trait]
impl DevicePlugin for PluginService {
    type ListAndWatchStream = ListStream;

    async fn get_device_plugin_options(
        &self,
        request: Request<Empty>,
    ) -> Result<Response<DevicePluginOptions>, Status> {
        if let Some(connection) = request.extensions().get::<Connection>() {
            connection.asks_for_options();
        }
        Ok(Response::new(options()))
    }

    async fn list_and_watch(&self, request: Request<Empty>) -> Result<Response<ListStream>, Status> {
        // Else a kubelet that comes late to a socket before the newest would count as one that came to this.
        if self.stop.is_cancelled() {
            return Err(Status::unavailable(format!("{}: this registration has ended", self.resource)));
        }
        tracing::debug!(resource = %self.resource, "ListAndWatch opened");
        let asked = request.extensions().get::<Connection>().is_some_and(Connection::asked_for_options);
        let list = WatchStream::new(self.list.clone()).map(|list| Ok(list.list()));
        let list = list.take_until(self.stop.clone().cancelled_owned()).boxed();
        Ok(Response::new(ListStream { list, _open: OpenStream::new(self.streams.clone(), asked) }))
    }

    async fn get_preferred_allocation(
        &self,
        request: Request<PreferredAllocationRequest>,
    ) -> Result<Response<PreferredAllocationResponse>, Status> {
        let call = self.calls.preferred(&self.resource, request.into_inner());
        self.bounded(async { Ok(call.await) }).await
    }

    async fn allocate(&self, request: Request<AllocateRequest>) -> Result<Response<AllocateResponse>, Status> {
        self.bounded(self.calls.allocate(&self.resource, request.into_inner())).await
    }

    async fn pre_start_container(
        &self,
        request: Request<PreStartContainerRequest>,
    ) -> Result<Response<PreStartContainerResponse>, Status> {
        let later = |why: &str| Status::unavailable(format!("{}: {why}; the start is tried again", self.resource));
        let Ok(_place) = self.starts.try_acquire() else { return Err(later("too many starts wait")) };
        tokio::select! {
            () = self.stop.cancelled() => Err(later("this registration has ended")),
            answer = tokio::time::timeout(START, self.calls.pre_start(&self.resource, request.into_inner())) => match answer {
                Ok(answer) => answer.map(|()| Response::new(PreStartContainerResponse {})),
                Err(_) => Err(later("no answer in time")),
            },
        }
    }
}

/// The options that the kubelet gets at registration and when it asks.
pub fn options() -> DevicePluginOptions {
    DevicePluginOptions { pre_start_required: true, get_preferred_allocation_available: true }
}

/// One ListAndWatch stream: the list now, and again on every change. It ends with its socket's registration.
pub struct ListStream {
    list: futures::stream::BoxStream<'static, Result<ListAndWatchResponse, Status>>,
    _open: OpenStream,
}

impl Stream for ListStream {
    type Item = Result<ListAndWatchResponse, Status>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.list.as_mut().poll_next(cx)
    }
}

/// Counts a stream for as long as it lives; the transport drops it as soon as the peer is gone.
struct OpenStream {
    streams: Arc<watch::Sender<Streams>>,
    number: u64,
}

impl OpenStream {
    fn new(streams: Arc<watch::Sender<Streams>>, asked: bool) -> Self {
        let mut number = 0;
        streams.send_modify(|seen| {
            seen.opened += 1;
            number = seen.opened;
            seen.open.insert(number, asked);
        });
        Self { streams, number }
    }
}

impl Drop for OpenStream {
    fn drop(&mut self) {
        self.streams.send_modify(|seen| {
            seen.open.remove(&self.number);
        });
    }
}

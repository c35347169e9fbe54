//! The kubelet's PodResources, over its Unix socket.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::Mutex;
use tonic::transport::Channel;
use tonic::{Code, Status};

use crate::kubelet::register::dial;
use baton_contract::PodKey;
use baton_contract::podresources::ListPodResourcesRequest;
use baton_contract::podresources::ListPodResourcesResponse;
use baton_contract::podresources::pod_resources_lister_client::PodResourcesListerClient;
use baton_decide::handoff::{ListedPod, PodListing, PodResources};
use baton_runtime::{backoff, clock};

/// A kubelet's answer for a full node is well below this.
const MAX_MESSAGE: usize = 16 << 20;
/// One attempt; the kubelet answers in about 2 ms.
const ATTEMPT: Duration = Duration::from_millis(800);

/// The client. One connection, made when needed.
pub struct PodResourcesClient {
    socket: PathBuf,
    channel: Mutex<Option<Channel>>,
    /// When the kubelet answered last (monotonic milliseconds); 0 when it did not, the last time it was asked.
    answered: AtomicU64,
}

impl PodResourcesClient {
    /// For the kubelet's `pod-resources/kubelet.sock`.
    pub fn new(socket: &Path) -> Self {
        Self { socket: socket.to_owned(), channel: Mutex::new(None), answered: AtomicU64::new(0) }
    }

    /// Lists the active pods. Asks again every 10 to 20 ms while the kubelet answers ResourceExhausted, until `deadline`
    /// (monotonic). Without a socket, or when the kubelet does not answer: [`PodResources::Unavailable`].
    pub async fn list(&self, deadline: Duration) -> PodResources {
        let answer = self.list_before(deadline).await;
        let answered = match &answer {
            PodResources::Unavailable => 0,
            PodResources::Listed(_) | PodResources::Throttled => (clock::mono().as_millis() as u64).max(1),
        };
        self.answered.store(answered, Ordering::Relaxed);
        answer
    }

    async fn list_before(&self, deadline: Duration) -> PodResources {
        let mut reconnected = false;
        loop {
            let left = deadline.saturating_sub(clock::mono()).min(ATTEMPT);
            let answer = tokio::time::timeout(left, self.ask()).await;
            match answer {
                Ok(Ok(response)) => return PodResources::Listed(listing(response)),
                Ok(Err(status)) if status.code() == Code::ResourceExhausted && !is_too_large(&status) => {
                    let pause = Duration::from_millis(10).mul_f64(1.0 + backoff::jitter());
                    if clock::mono() + pause >= deadline {
                        return PodResources::Throttled;
                    }
                    tokio::time::sleep(pause).await;
                }
                Ok(Err(status)) if !reconnected && status.code() != Code::NotFound => {
                    // The kubelet may have restarted since the last call.
                    reconnected = true;
                    *self.channel.lock().await = None;
                }
                Ok(Err(status)) => {
                    tracing::debug!(socket = %self.socket.display(), %status, "PodResources is not available");
                    return PodResources::Unavailable;
                }
                Err(_) => {
                    tracing::warn!(socket = %self.socket.display(), "PodResources did not answer in time");
                    *self.channel.lock().await = None;
                    return PodResources::Unavailable;
                }
            }
        }
    }

    /// `true` when the kubelet offers PodResources. What others learned within the last `recent` is taken for the answer, so
    /// that a daemon at rest does not ask twice.
    pub async fn is_available(&self, recent: Duration) -> bool {
        let answered = Duration::from_millis(self.answered.load(Ordering::Relaxed));
        let known = !answered.is_zero() && clock::mono().saturating_sub(answered) <= recent;
        known || !matches!(self.list(clock::mono() + ATTEMPT).await, PodResources::Unavailable)
    }

    async fn ask(&self) -> Result<ListPodResourcesResponse, Status> {
        let channel = self.channel().await?;
        let mut client = PodResourcesListerClient::new(channel).max_decoding_message_size(MAX_MESSAGE);
        Ok(client.list(ListPodResourcesRequest {}).await?.into_inner())
    }

    async fn channel(&self) -> Result<Channel, Status> {
        let mut channel = self.channel.lock().await;
        if let Some(open) = channel.as_ref() {
            return Ok(open.clone());
        }
        let missing = |error: &dyn std::fmt::Display| Status::not_found(error.to_string());
        if !self.socket.exists() {
            return Err(missing(&"no such socket"));
        }
        let open = dial(&self.socket, Duration::from_millis(200)).await.map_err(|error| missing(&error))?;
        *channel = Some(open.clone());
        Ok(open)
    }
}

/// tonic, too, says ResourceExhausted, when a message is beyond its limit; asking again does not help then.
fn is_too_large(status: &Status) -> bool {
    status.message().contains("message length")
}

/// The kubelet has one entry for each id and NUMA node: grouped by resource, without duplicates.
fn listing(response: ListPodResourcesResponse) -> PodListing {
    let pods = response.pod_resources.into_iter().map(|pod| {
        let mut containers: BTreeMap<Box<str>, _> = BTreeMap::new();
        for container in pod.containers {
            let resources: &mut BTreeMap<Box<str>, std::collections::BTreeSet<Box<str>>> =
                containers.entry(container.name.into()).or_default();
            for devices in container.devices {
                let ids = resources.entry(devices.resource_name.into()).or_default();
                ids.extend(devices.device_ids.into_iter().map(Box::from));
            }
        }
        ListedPod { key: PodKey::new(&pod.namespace, &pod.name), containers }
    });
    PodListing { pods: pods.collect(), ..PodListing::default() }
}

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
    /// When the kubelet was asked last and had PodResources (monotonic milliseconds); 0 when it had none.
    answered: AtomicU64,
}

impl PodResourcesClient {
    /// For the kubelet's `pod-resources/kubelet.sock`.
    pub fn new(socket: &Path) -> Self {
        Self { socket: socket.to_owned(), channel: Mutex::new(None), answered: AtomicU64::new(0) }
    }

    /// Lists the active pods. While the kubelet throttles or fails it is asked again every 10 to 20 ms, until `deadline` (monotonic).
    pub async fn list(&self, deadline: Duration) -> PodResources {
        let answer = self.list_before(deadline).await;
        let answered = match &answer {
            PodResources::Missing => 0,
            PodResources::Listed(_) | PodResources::Silent => (clock::mono().as_millis() as u64).max(1),
        };
        self.answered.store(answered, Ordering::Relaxed);
        answer
    }

    async fn list_before(&self, deadline: Duration) -> PodResources {
        loop {
            let left = deadline.saturating_sub(clock::mono()).min(ATTEMPT);
            let answer = tokio::time::timeout(left, self.ask()).await;
            let status = answer.unwrap_or_else(|_| Err(Status::deadline_exceeded("no answer")));
            let status = match status {
                Ok(response) => return PodResources::Listed(listing(response)),
                Err(status) => status,
            };
            match status.code() {
                Code::Unimplemented => {
                    tracing::debug!(socket = %self.socket.display(), %status, "the kubelet has no PodResources");
                    return PodResources::Missing;
                }
                Code::ResourceExhausted => {}
                // The kubelet may have restarted since the last call.
                _ => *self.channel.lock().await = None,
            }
            let pause = Duration::from_millis(10).mul_f64(1.0 + backoff::jitter());
            if clock::mono() + pause >= deadline {
                tracing::warn!(socket = %self.socket.display(), %status, "PodResources did not list the pods in time");
                return PodResources::Silent;
            }
            tokio::time::sleep(pause).await;
        }
    }

    /// `true` when the kubelet offers PodResources. What others learned within the last `recent` is taken for the answer, so
    /// that a daemon at rest does not ask twice.
    pub async fn is_available(&self, recent: Duration) -> bool {
        let answered = Duration::from_millis(self.answered.load(Ordering::Relaxed));
        let known = !answered.is_zero() && clock::mono().saturating_sub(answered) <= recent;
        known || !matches!(self.list(clock::mono() + ATTEMPT).await, PodResources::Missing)
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
        if !self.socket.exists() {
            return Err(Status::unimplemented("no such socket"));
        }
        let open = dial(&self.socket, Duration::from_millis(200)).await;
        let open = open.map_err(|error| Status::unavailable(error.to_string()))?;
        *channel = Some(open.clone());
        Ok(open)
    }
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

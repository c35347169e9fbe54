//! What the hand-off asks of the cluster beyond its watches: live reads, the release of the lock, events.

use futures::future::BoxFuture;
use jiff::Timestamp;
use kube::{Api, Client};

use baton_cluster::client::{said, status_code};
use baton_cluster::node_lock::{LockWrite, NodeLocks};
use baton_cluster::notice::{self, Notices, Subject};
use baton_cluster::pod::LightPod;
use baton_contract::{LockRead, PodKey};
use baton_decide::handoff::PodNotice;
use baton_decide::pod::HandoffPod;

/// The API server did not answer, or answered with an error.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct HandoffApiError(pub String);

/// The cluster, as the hand-off needs it.
pub trait HandoffApi: Send + Sync + 'static {
    /// Reads a pod from the API server; `None` when there is none.
    fn pod<'a>(&'a self, key: &'a PodKey) -> BoxFuture<'a, Result<Option<HandoffPod>, HandoffApiError>>;
    /// Reads this node's lock from the API server.
    fn lock(&self) -> BoxFuture<'_, Result<LockRead, HandoffApiError>>;
    /// Removes exactly this value of this node's lock.
    fn release<'a>(&'a self, raw: &'a str) -> BoxFuture<'a, Result<LockWrite, HandoffApiError>>;
    /// Writes an event on a pod. Never waits.
    fn report(&self, notice: PodNotice);
}

/// The real one.
#[derive(Clone)]
pub struct KubeHandoffApi {
    client: Client,
    locks: NodeLocks,
    notices: Notices,
    node: Box<str>,
    /// When the node has started.
    booted: Option<Timestamp>,
}

impl KubeHandoffApi {
    /// For `node`; its lock is under the annotation `lock_key`.
    pub fn new(client: Client, node: &str, lock_key: &str, notices: Notices) -> Self {
        let locks = NodeLocks::new(client.clone(), lock_key);
        Self { client, locks, notices, node: node.into(), booted: None }
    }

    /// What ran before then has ended.
    #[must_use]
    pub fn booted(self, booted: Option<Timestamp>) -> Self {
        Self { booted, ..self }
    }
}

impl HandoffApi for KubeHandoffApi {
    fn pod<'a>(&'a self, key: &'a PodKey) -> BoxFuture<'a, Result<Option<HandoffPod>, HandoffApiError>> {
        Box::pin(async move {
            let pods: Api<LightPod> = Api::namespaced(self.client.clone(), &key.namespace);
            match pods.get(&key.name).await {
                Ok(pod) => Ok(Some(pod.handoff_since(self.booted))),
                Err(error) if status_code(&error) == Some(404) => Ok(None),
                Err(error) => Err(HandoffApiError(format!("pod {key} cannot be read: {}", said(&error)))),
            }
        })
    }

    fn lock(&self) -> BoxFuture<'_, Result<LockRead, HandoffApiError>> {
        Box::pin(async { self.locks.read(&self.node).await.map_err(|error| HandoffApiError(error.to_string())) })
    }

    fn release<'a>(&'a self, raw: &'a str) -> BoxFuture<'a, Result<LockWrite, HandoffApiError>> {
        Box::pin(async move {
            self.locks.release(&self.node, raw).await.map_err(|error| HandoffApiError(error.to_string()))
        })
    }

    fn report(&self, notice: PodNotice) {
        self.notices.post(notice::Notice {
            subject: Subject::Pod(notice.pod),
            warning: true,
            reason: notice.reason,
            action: "Allocate",
            message: notice.note,
        });
    }
}

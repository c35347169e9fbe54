//! The Lease by which an agent says that it lives and what it serves.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use kube::Client;
use kube::api::{Api, PostParams};

use super::client::status_code;
use crate::contract::{AgentStatus, key};

/// Readers hold an agent for gone after this much silence.
const STALE: Duration = Duration::from_secs(90);

/// One agent's Lease.
pub struct AgentLease {
    api: Api<Lease>,
    node: String,
    name: String,
    /// The object as last written or read; its version makes the next write a compare-and-swap.
    current: Option<Lease>,
}

impl AgentLease {
    /// The Lease of `node`'s agent in `namespace`.
    pub fn new(client: Client, namespace: &str, node: &str) -> Self {
        Self {
            api: Api::namespaced(client, namespace),
            node: node.to_owned(),
            name: AgentStatus::lease_name(node),
            current: None,
        }
    }

    /// Writes `status` and the time. One request as long as nobody else writes the Lease; a conflict is read and written
    /// over once, because there is one agent for each node.
    pub async fn renew(&mut self, status: &AgentStatus, wall: Timestamp) -> Result<(), kube::Error> {
        for last_try in [false, true] {
            let base = match self.current.take() {
                Some(lease) => Some(lease),
                None => self.api.get_opt(&self.name).await?,
            };
            let result = match base {
                None => self.api.create(&PostParams::default(), &self.filled(Lease::default(), status, wall)).await,
                Some(lease) => {
                    let filled = self.filled(lease, status, wall);
                    self.api.replace(&self.name, &PostParams::default(), &filled).await
                }
            };
            match result {
                Ok(written) => {
                    self.current = Some(written);
                    return Ok(());
                }
                Err(error) if !last_try && matches!(status_code(&error), Some(404 | 409)) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn filled(&self, lease: Lease, status: &AgentStatus, wall: Timestamp) -> Lease {
        let mut metadata = ObjectMeta { name: Some(self.name.clone()), ..lease.metadata };
        metadata.managed_fields = None;
        metadata.annotations.get_or_insert_default().insert(key::AGENT.to_owned(), status.print());
        let spec = lease.spec.unwrap_or_default();
        let acquired = spec.acquire_time.unwrap_or(MicroTime(wall));
        Lease {
            metadata,
            spec: Some(LeaseSpec {
                holder_identity: Some(self.node.clone()),
                lease_duration_seconds: i32::try_from(STALE.as_secs()).ok(),
                acquire_time: Some(acquired),
                renew_time: Some(MicroTime(wall)),
                ..spec
            }),
        }
    }
}

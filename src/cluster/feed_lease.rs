//! Leases of agents for the scheduler.

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use kube::Resource;
use kube::api::ObjectMeta;
use serde::Deserialize;

use crate::contract::{AgentStatus, key};
use crate::decide::world::WorldEvent;

/// A Lease with what tells of an agent. Watch with it, never write.
#[derive(Debug, Clone, Deserialize, Resource)]
#[resource(inherit = Lease)]
pub struct FeedLease {
    /// Metadata.
    #[serde(deserialize_with = "super::light_meta::read")]
    pub metadata: ObjectMeta,
    #[serde(default)]
    spec: FeedLeaseSpec,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct FeedLeaseSpec {
    renew_time: Option<MicroTime>,
}

/// The node of an agent's Lease, by its name.
pub(super) fn agent_node(lease: &str) -> Option<&str> {
    lease.strip_prefix(&AgentStatus::lease_name("")).filter(|node| !node.is_empty())
}

impl FeedLease {
    /// The event of an agent's Lease; `None` for another one.
    pub(super) fn event(self) -> Option<WorldEvent> {
        let node = agent_node(self.metadata.name.as_deref()?)?;
        let annotation = self.metadata.annotations.as_ref().and_then(|all| all.get(key::AGENT));
        Some(WorldEvent::Agent {
            node: node.into(),
            status: annotation.and_then(|text| AgentStatus::parse(text)),
            version: self.metadata.resource_version.clone().unwrap_or_default().into(),
            renewed: self.spec.renew_time.as_ref().map(|time| time.0),
        })
    }
}

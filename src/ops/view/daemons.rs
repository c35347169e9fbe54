//! The daemon of each node: what its Lease says, and how it is judged.

use std::time::Duration;

use jiff::Timestamp;
use serde::Serialize;

use super::snapshot::{Snapshot, name_of};
use baton_cluster::agent_lease::LightLease;
use baton_cluster::node::LightNode;
use baton_contract::inventory::DeviceInfo;
use baton_contract::{AgentStatus, DeviceType, Identity};
use baton_decide::lock::{DaemonState, Heard};
use baton_decide::world::{WorldPolicy, offered};

/// Status of a node daemon, from its Lease.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct AgentRow {
    /// Version; absent when the Lease carries no status.
    pub version: Option<String>,
    /// Resource names that the kubelet has registered.
    pub registered: Vec<String>,
    /// How it identifies the calling pod.
    pub identity: Option<Identity>,
    /// It knows what every pod of its node holds.
    pub knows_pods: bool,
    /// Since the last renewal, by this machine's clock.
    pub renewed_seconds: Option<u64>,
    /// It has ended by itself.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub ended: bool,
    /// Its pods hold more than its Lease can say.
    #[serde(skip)]
    pub too_many_exceptions: bool,
    /// Renewed within the time after which the scheduler holds it for stale.
    pub fresh: bool,
}

pub(crate) fn agent(lease: &LightLease, wall: Timestamp) -> AgentRow {
    let status = lease.status();
    // A renewal from the future comes from a clock that is ahead: just renewed.
    let renewed = lease.renewed().map(|time| Duration::try_from(wall.duration_since(time)).unwrap_or_default());
    AgentRow {
        version: status.as_ref().map(|status| status.version.clone()),
        identity: status.as_ref().map(|status| status.identity),
        knows_pods: status.as_ref().is_some_and(|status| status.exceptions.is_some()),
        ended: status.as_ref().is_some_and(|status| status.ended),
        too_many_exceptions: status.as_ref().is_some_and(|status| status.too_many_exceptions),
        registered: status.map(|status| status.registered).unwrap_or_default(),
        renewed_seconds: renewed.map(|renewed| renewed.as_secs()),
        fresh: renewed.is_some_and(|renewed| renewed <= WorldPolicy::default().agent_stale),
    }
}

/// The status of the daemon of `node`; `None` where it never wrote a Lease.
pub(super) fn of_node(snapshot: &Snapshot, node: &LightNode) -> Option<AgentRow> {
    let lease = snapshot.leases.get(&AgentStatus::lease_name(name_of(node)))?;
    Some(agent(lease, snapshot.wall))
}

/// The daemon of `node`, which has this status.
pub(super) fn state(snapshot: &Snapshot, node: &LightNode, agent: Option<&AgentRow>) -> DaemonState {
    let listed = snapshot.devices.get(name_of(node)).map(|device| &*device.spec.devices).unwrap_or_default();
    let is_registered = agent.is_some_and(|agent| !agent.registered.is_empty());
    let none = |(kind, what)| {
        let healthy = |info: &&DeviceInfo| info.kind == kind && info.health && !info.resources.is_empty();
        let healthy = listed.iter().filter(healthy).count();
        (healthy > 0 && offered(node.allocatable(), &kind) == 0).then_some((healthy, what))
    };
    DaemonState::of(Heard {
        renewed: agent.map(|agent| Duration::from_secs(agent.renewed_seconds.unwrap_or_default())),
        is_live: agent.is_some_and(|agent| agent.fresh),
        has_ended: agent.is_some_and(|agent| agent.ended),
        is_registered: is_registered || listed.is_empty(),
        is_ready: node.kubelet_ready(),
        not_offered: [(DeviceType::Gpu, "GPUs"), (DeviceType::Rdma, "NICs")].into_iter().find_map(none),
    })
}

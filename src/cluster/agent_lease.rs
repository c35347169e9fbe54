//! The Lease by which an agent says that it is alive and what it serves: its writer and its light wire type.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta, OwnerReference};
use kube::api::{Api, PostParams};
use kube::{Client, Resource};
use serde::Deserialize;

use super::client::status_code;
use super::light_meta::light;
use super::restored::{HighestVersion, LeaseError};
use baton_contract::{AgentStatus, LEASE_PREFIX, key};
use baton_decide::world::WorldEvent;

/// For readers: an agent is gone when its Lease has not been renewed for this long.
const STALE: Duration = Duration::from_secs(90);

/// One agent's Lease.
pub struct AgentLease {
    api: Api<Lease>,
    nodes: Api<Node>,
    node: String,
    name: String,
    /// The object as last written or read, with its owner; its version makes the next write a compare-and-swap.
    current: Option<Lease>,
    highest: HighestVersion,
}

impl AgentLease {
    /// The Lease of `node`'s agent in `namespace`.
    pub fn new(client: Client, namespace: &str, node: &str) -> Self {
        Self {
            api: Api::namespaced(client.clone(), namespace),
            nodes: Api::all(client),
            node: node.to_owned(),
            name: AgentStatus::lease_name(node),
            current: None,
            highest: HighestVersion::default(),
        }
    }

    /// Writes `status` and the time. One request unless another client writes the Lease; after a conflict it is read and written
    /// once more, because there is one agent for each node. Without a Node nothing is written: the Lease goes with the Node.
    pub async fn renew(&mut self, status: &AgentStatus, wall: Timestamp) -> Result<(), LeaseError> {
        for last_try in [false, true] {
            let base = match self.current.take() {
                Some(lease) => lease,
                None => self.owned(self.api.get_opt(&self.name).await?.unwrap_or_default()).await?,
            };
            self.highest.see(&base.metadata)?;
            let is_new = base.metadata.resource_version.is_none();
            let filled = self.filled(base, status, wall);
            let result = if is_new {
                self.api.create(&PostParams::default(), &filled).await
            } else {
                self.api.replace(&self.name, &PostParams::default(), &filled).await
            };
            match result {
                Ok(written) => {
                    self.highest.see(&written.metadata)?;
                    self.current = Some(written);
                    return Ok(());
                }
                Err(error) if !last_try && matches!(status_code(&error), Some(404 | 409)) => {
                    if status_code(&error) == Some(409) && !is_new {
                        tracing::warn!(
                            lease = self.name,
                            "another client has written the Lease of this node's daemon: if this repeats, two machines run under this node \
                             name, and pods are refused on the one that does not have their devices; give each machine a name of its own"
                        );
                    }
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// With the Node as its owner, as the kubelet's own Leases have it: when the Node goes, the garbage collector takes the Lease,
    /// and the next renewal, which finds none, asks for the uid of whatever Node has the name then.
    async fn owned(&self, mut lease: Lease) -> Result<Lease, kube::Error> {
        let node = self.nodes.get_metadata(&self.node).await?;
        lease.metadata.owner_references = Some(vec![OwnerReference {
            api_version: Node::api_version(&()).into_owned(),
            kind: Node::kind(&()).into_owned(),
            name: self.node.clone(),
            uid: node.metadata.uid.unwrap_or_default(),
            ..OwnerReference::default()
        }]);
        Ok(lease)
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

/// A Lease with the fields that say something of an agent. Watch and read with it, never write.
#[derive(Debug, Clone, Deserialize, Resource)]
#[resource(inherit = Lease)]
pub struct LightLease {
    /// Metadata without `managedFields`.
    #[serde(deserialize_with = "super::light_meta::read")]
    pub metadata: ObjectMeta,
    #[serde(default)]
    spec: LightLeaseSpec,
}

light! {
    struct LightLeaseSpec {
        renew_time: Option<MicroTime>,
    }
}

/// The node of an agent's Lease, by its name.
pub(super) fn agent_node(lease: &str) -> Option<&str> {
    lease.strip_prefix(LEASE_PREFIX).filter(|node| !node.is_empty())
}

impl LightLease {
    /// What the agent serves; `None` when the Lease carries no status that can be read.
    pub fn status(&self) -> Option<AgentStatus> {
        self.metadata.annotations.as_ref()?.get(key::AGENT).and_then(|text| AgentStatus::parse(text))
    }

    /// Time of the last renewal, by the agent's clock.
    pub fn renewed(&self) -> Option<Timestamp> {
        self.spec.renew_time.as_ref().map(|time| time.0)
    }

    /// The event of an agent's Lease; `None` for another one.
    pub fn event(self) -> Option<WorldEvent> {
        let node = agent_node(self.metadata.name.as_deref()?)?;
        Some(WorldEvent::Agent {
            node: node.into(),
            status: self.status(),
            version: self.metadata.resource_version.clone().unwrap_or_default().into(),
            renewed: self.renewed(),
        })
    }
}
